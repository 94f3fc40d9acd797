//! The life of a gang: a state machine over what is committed in its status.
//!
//! ```text
//!   status on the server ─commit─▶ Stage: Waiting ─▶ Holding ─▶ Ended      (Leaving from any of them)
//!   pods, nodes ─observe, lose─▶     │        │
//!   engine ─decided, refused─▶       └─asks───┴──next──▶ Move: the status that should be committed
//! ```
//!
//! What is done to pods follows from what is committed, so a stage begins when its status is on the server and not when
//! it is decided. A stage owns its data ([`stage`]): nothing that belonged to one plan outlives it. What does outlive a
//! plan is named in [`Memory`]: it is little.

mod cause;
mod life;
mod sight;
mod slots;
mod stage;
mod start;
mod terms;

pub use cause::{Cause, Lost, Renews};
pub use life::{Ask, Committed, Facts, Freed, Life, Memory, Move, Next, Standing};
pub use sight::{Loss, PodState, Says, Sight};
pub use slots::{PlannedPod, SlotState, Slots, Tally};
pub use stage::{Decided, Holding, How, Pause, Stage, Trouble, Waiting};
pub use start::Patience;
pub use terms::{Outcome, RoleTerms, Terms};
