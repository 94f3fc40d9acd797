//! The recovery ladder: one notion for the API, which lists it, the lifecycle, which judges a loss by it, and the engine,
//! which walks it.

use serde::{Deserialize, Serialize};

/// A rung of the recovery ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RecoveryStep {
    /// The same nodes, new pods.
    RestartInPlace,
    /// Other nodes for the lost units: a spare, then free capacity of the same domain, then any.
    ReplaceNode,
    /// The next smaller valid size on what is left.
    Shrink,
    /// Give everything back and be placed anew as a whole: at once where there is room, else from the queue.
    Requeue,
}

impl RecoveryStep {
    /// All of them, in the order of the default ladder.
    pub const ALL: [Self; 4] = [Self::RestartInPlace, Self::ReplaceNode, Self::Shrink, Self::Requeue];

    /// As it is written in `spec.recovery.ladder`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RestartInPlace => "RestartInPlace",
            Self::ReplaceNode => "ReplaceNode",
            Self::Shrink => "Shrink",
            Self::Requeue => "Requeue",
        }
    }
}
