//! The in-memory API server, through `kube::Client` and under a paused clock.

#[path = "api_server/admission.rs"]
mod admission;
mod common;
#[path = "api_server/custom.rs"]
mod custom;
#[path = "api_server/faults.rs"]
mod faults;
#[path = "api_server/garbage.rs"]
mod garbage;
#[path = "api_server/objects.rs"]
mod objects;
#[path = "api_server/watches.rs"]
mod watches;

use std::sync::Arc;

use kube::Client;
use kubesim::api::{ApiServer, Options};
use kubesim::clock::TokioClock;
use serde_json::{Value, json};

pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server with a paused clock that starts in 2026, and a client of it.
pub(crate) fn server() -> (ApiServer, Client) {
    server_with(Options::default())
}

pub(crate) fn server_with(options: Options) -> (ApiServer, Client) {
    let clock = TokioClock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let server = ApiServer::with_options(Arc::new(clock), options);
    let client = server.client("tester");
    (server, client)
}

pub(crate) fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {"containers": [{"name": "main", "image": "example/image:1"}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

pub(crate) fn config_map(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}
