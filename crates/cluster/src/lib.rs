//! From watch events to engine state, synchronously.
//!
//! ```text
//!   Topology + nodes ──topology::status──▶ TopologyStatus
//!   pod template ──template::review──▶ what is refused, what is noted
//!   Node, Pod (as `seen`) ──convert──▶ model::Node, PodFacts ──┐
//!   model::Gang with its plan ───────────────────────────────────┴─▶ Cluster ──Event──▶ Engine
//! ```
//!
//! Whole Kubernetes objects are not kept: what is needed of a node or pod is taken at the edge.

pub mod convert;
mod features;
pub mod map;
pub mod pods;
pub mod seen;
mod state;
pub mod template;
pub mod text;
pub mod topology;
pub mod volumes;

pub use muster_model::Slot;
pub use pods::{PodEnd, PodFacts, PodOutcome, PodPhase, Waiting};
pub use state::Cluster;
