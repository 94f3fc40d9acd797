//! Simulated kubelets over any kube client, hundreds to thousands in one task.
//!
//! ```text
//! Pod ──► view ──► node (admission, pod: pure state machines, time is an argument)
//!                     │ jobs                       ▲ observe, forget, advance
//!                     ▼                            │
//!                  writes ◄── fleet: one watch, one timer queue, bounded writes ◄── FleetHandle
//! ```
//!
//! A kubelet here decides admission with the reasons and messages of the real one, runs containers
//! that exist only as timers, and reports phases with as few writes as a real kubelet needs at
//! least: one when the pod starts, one when it has ended, one DELETE when it was leaving.

pub mod admission;
mod direct;
mod fleet;
mod handle;
pub mod node;
mod pod;
pub mod quantity;
pub mod script;
mod spec;
mod status;
pub mod view;
mod writes;

pub use direct::{DirectFleet, DirectOptions};
pub use fleet::{Fleet, FleetOptions, ScriptHook};
pub(crate) use handle::edit_taints;
pub use handle::{FleetError, FleetHandle};
pub use script::Script;
pub use spec::{LEASE_NAMESPACE, NodeSpec};
pub(crate) use status::{silent_node, time};
pub use view::PodView;
pub(crate) use writes::is_code;
