//! What touches the world: leadership, watches, the writer, look-ups of volumes. It decides nothing.
//!
//! ```text
//!   API server ──watch──▶ muster_core::Core ──Effects──▶ Writer ──▶ API server
//!                                                          ▲ leader: term, epoch, fence
//! ```

pub mod answer;
pub mod clock;
pub mod decode;
mod epochs;
pub mod leader;
pub mod lease;
mod proof;
pub mod pulse;
pub mod run;
pub mod volumes;
pub mod watch;
pub mod writer;

pub use clock::{Clock, SystemClock};
pub use lease::LeaseConfig;
pub use pulse::Pulse;
pub use run::{Operator, Options, Snapshot};
