//! Pure decisions about a job's life: its layout in ranks and pods, the environment of its pods, which nodes are lost, and
//! what follows a loss.
//!
//! ```text
//!   TrainingSpec ─parallelism─▶ Derived (units, segments) ─▶ Gang ─▶ Plan ─launch─▶ environment, hostfile
//!                     ▲ ranks: one table of rank orders ▲
//!   PodEnd ─recovery::classify─▶ Fault ─recovery::decide─▶ Verdict
//!   signs of all nodes ─nodes::judge─▶ lost, recovered, brakes
//! ```
//!
//! No kube, no clock, no randomness: time is an argument, and what must outlive the operator comes in from a status.

pub mod gang;
pub mod launch;
pub mod nodes;
pub mod parallelism;
pub mod ranks;
pub mod recovery;
mod segments;

pub use launch::Framework;

use muster_model::Millis;

/// A moment, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds on a clock that never jumps: for everything that waits or expires.
    pub at: Millis,
    /// Milliseconds since the Unix epoch: only for what is written into objects and compared with what stands there.
    pub wall: Millis,
}
