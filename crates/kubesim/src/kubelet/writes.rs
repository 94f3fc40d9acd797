//! The requests a simulated kubelet makes; answers are not decoded.
//!
//! ```text
//! (namespace, name, uid, Job) ──► PATCH pods/status | DELETE pod
//! NodeReport                  ──► Node, nodes/status, Lease
//! ```

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::{Value, json};

use super::node::Job;
use super::spec::LEASE_NAMESPACE;

/// No request of a kubelet waits longer than this.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// The object is gone.
    Gone,
    /// To be made again; when another pod has the name by now, the watch ends that.
    Failed,
}

/// Any answer: its content is of no interest.
#[derive(serde::Deserialize)]
struct Ack {}

async fn send(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), kube::Error> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    match tokio::time::timeout(TIMEOUT, client.request::<Ack>(request)).await {
        Ok(answer) => answer.map(|_| ()),
        Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
    }
}

/// Whether the API answered with this HTTP code.
pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn pods(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

/// Makes one write of a pod.
pub(crate) async fn pod(client: &Client, namespace: &str, name: &str, uid: &str, job: &Job) -> Written {
    let request = match job {
        Job::Status(status) => {
            let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
            pods(namespace).patch_subresource("status", name, &PatchParams::default(), &patch)
        }
        Job::Delete => {
            let uid = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
            pods(namespace).delete(name, &DeleteParams::default().grace_period(0).preconditions(uid))
        }
    };
    match send(client, request).await {
        Ok(()) => Written::Done,
        Err(error) if is_code(&error, 404) => Written::Gone,
        Err(error) => {
            tracing::debug!(namespace, name, %error, "pod write failed; it is made again");
            Written::Failed
        }
    }
}

fn nodes() -> Request {
    Request::new(Node::url_path(&(), None))
}

fn leases() -> Request {
    Request::new(Lease::url_path(&(), Some(LEASE_NAMESPACE)))
}

fn body(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Creates the Node, or brings labels, annotations and taints of the existing one up to date.
pub(crate) async fn register(client: &Client, name: &str, object: &Value) -> Result<(), kube::Error> {
    match send(client, nodes().create(&PostParams::default(), body(object))).await {
        Err(error) if is_code(&error, 409) => patch_node(client, name, object).await,
        answer => answer,
    }
}

/// A merge patch of a Node.
pub(crate) async fn patch_node(client: &Client, name: &str, patch: &Value) -> Result<(), kube::Error> {
    send(client, nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch))).await
}

/// A strategic merge patch of a Node's status.
pub(crate) async fn node_status(client: &Client, name: &str, status: &Value) -> Result<(), kube::Error> {
    let patch = Patch::Strategic(status);
    send(client, nodes().patch_subresource("status", name, &PatchParams::default(), &patch)).await
}

/// Deletes a Node and its Lease; neither need exist.
pub(crate) async fn delete_node(client: &Client, name: &str) -> Result<(), kube::Error> {
    for request in [nodes(), leases()] {
        match send(client, request.delete(name, &DeleteParams::default())).await {
            Err(error) if !is_code(&error, 404) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Renews a node's Lease, or creates it.
pub(crate) async fn renew_lease(client: &Client, name: &str, lease: &Value) -> Result<(), kube::Error> {
    let patch = json!({"spec": lease["spec"]});
    match send(client, leases().patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await {
        Err(error) if is_code(&error, 404) => {
            send(client, leases().create(&PostParams::default(), body(lease))).await
        }
        answer => answer,
    }
}
