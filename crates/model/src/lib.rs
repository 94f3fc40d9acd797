//! Ids, quantities, topology, pod shapes, gangs, plans and reasons: the words that every crate shares.
//!
//! ```text
//!   api objects ──(cluster converts at the edge)──▶ model::{Node, Gang} ──▶ engine ──▶ model::{Plan, Reason}
//! ```
//!
//! Nothing here knows kube, tokio, JSON or a clock. Time is milliseconds since the Unix epoch, given as an argument.

pub mod contradiction;
pub mod duration;
pub mod gang;
pub mod id;
pub mod node;
pub mod plan;
pub mod quantity;
pub mod reason;
pub mod recovery;
pub mod resources;
pub mod rules;
pub mod selector;
pub mod topology;

pub use gang::{AcceleratorClass, Gang, GangState, Mode, PodTraits, Role, Segment, Within};
pub use id::{NodeName, ObjectKey, Uid};
pub use node::{Node, Taint, TaintEffect, Toleration, TolerationOperator};
pub use plan::{Plan, PlannedUnit, Slot, UnitId};
pub use reason::{DomainMiss, NodeRefusal, Reason};
pub use recovery::RecoveryStep;
pub use resources::Resources;
pub use rules::{Near, Ratio, Rules, Spread};
pub use selector::{NodeSelectorTerm, Operator, PodTerm, Preference, Requirement};
pub use topology::{DomainKey, Level, Topology};

/// Milliseconds since the Unix epoch. Always an argument, never read from a clock here.
pub type Millis = i64;
