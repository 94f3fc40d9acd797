//! Stand-ins for the controllers of kube-controller-manager and kube-scheduler that pods depend on.
//! A real cluster has the originals: use these with the in-memory API only (except [`resolver`]).
//!
//! ```text
//! Leases, Nodes ──► NodeLifecycle ──► Ready=Unknown, taints, evictions
//! Services, Pods ─► EndpointSlices ──► resolver (works on any cluster)
//! Nodes, Pods ────► PodGc ──► deletions
//! Pods, Nodes ────► Scheduler ──► bindings
//! ```
//!
//! Each runs as one task until its token is cancelled, keeps what it needs of the objects in a
//! [`mirror::Mirror`], and acts on a timer or shortly after a change.

mod endpoints;
mod lifecycle;
mod mirror;
mod pod_gc;
mod pods;
pub mod resolver;
mod scheduler;

pub use endpoints::EndpointSlices;
pub use lifecycle::NodeLifecycle;
pub use pod_gc::PodGc;
pub use scheduler::Scheduler;
