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

pub mod launch;
pub mod nodes;
pub mod parallelism;
pub mod ranks;
pub mod recovery;
mod segments;

pub use launch::Framework;
