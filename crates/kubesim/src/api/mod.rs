//! An in-memory Kubernetes API server behind `kube::Client`.
//!
//! ```text
//! kube::Client ─► faults ─► Call ─► mutate ─► validate ─► admission ─► Store ─► history ─► watches
//!                                  (defaults)  (schema)    (quota, VAP)    └─► controllers (GC, namespaces)
//! ```
//!
//! Requests run one at a time under one lock, so a run is a deterministic function of the order of
//! requests and of the [`Clock`](crate::clock::Clock). Nothing here opens a socket.
//!
//! Left out on purpose: authorisation, managed fields, webhooks, API versions converted into each
//! other, and the two event APIs sharing their objects.

mod admission;
mod cel_eval;
mod controllers;
mod defaults;
mod delete;
mod discovery;
mod json;
mod limits;
mod metadata;
mod patch;
mod pods;
mod policy;
mod quantity;
mod quota;
mod read;
mod request;
mod resources;
mod runtime_class;
mod schema;
mod selector;
mod server;
mod signal;
mod status;
mod store;
mod subresources;
mod watch;
mod write;

pub use request::RequestInfo;
pub use server::{AnswerBody, ApiServer, BoxError, Fault, FaultHook, Options, RequestCount, RequestKey};
pub use status::ApiError;
pub use store::Written;
