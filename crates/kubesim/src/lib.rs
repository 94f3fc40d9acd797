//! Simulated kubelets over any kube client, and an in-memory Kubernetes API; knows nothing of Muster.
//!
//! ```text
//! kube::Client ──► api::ApiServer (in memory)  ┐
//!             └──► a real kube-apiserver       ┴──► kubelet (simulated) ──► pod and node status
//! ```

pub mod api;
pub mod clock;
pub mod kubelet;
pub mod node_controllers;
