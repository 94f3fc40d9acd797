//! The end-to-end suite: what users see, on every backend.
//!
//! ```text
//!   scenarios (one async function each) ──▶ World { API server, simulated kubelets, operator }
//!                                             ├─ memory: in-memory API, virtual time
//!                                             └─ cluster: a real control plane (local, kind, any kubeconfig)
//! ```
//!
//! A scenario that passes on one backend and not on the other is a fault of ours, and becomes a test.

pub mod hook;
pub mod jobs;
pub mod oracle;
pub mod process;
pub mod rights;
pub mod scenarios;
pub mod storm;
pub mod world;

pub use world::{Backend, World};
