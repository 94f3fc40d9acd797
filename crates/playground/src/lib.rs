//! A local Kubernetes with simulated GPU nodes: the demo, and a backend of the end-to-end suite.
//!
//! ```text
//! e2e/cluster (Go) ── binaries::ensure ──▶ programs in a cache ── LocalCluster::start ──▶ install ──▶ Session
//!                                                                   simulated nodes, `muster run` ──▶ demo
//! ```

pub mod binaries;
pub mod cluster;
pub mod demo;
pub mod install;
mod logs;
pub mod session;
