//! A local Kubernetes with simulated GPU nodes: the demo, and a backend of the end-to-end suite.
//!
//! ```text
//! e2e/cluster (Go) ── binaries::ensure ──> programs in a cache ── LocalCluster::start ──> kubeconfig
//! ```

pub mod binaries;
pub mod cluster;
mod logs;
