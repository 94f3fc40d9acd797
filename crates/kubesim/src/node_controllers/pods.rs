//! The writes that several controllers make on pods.
//!
//! ```text
//! evict: condition DisruptionTarget ──► DELETE with a uid precondition
//! ```

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::mirror::Key;
use crate::kubelet::is_code;

/// Patches a pod's status if it is still the pod with this uid; a pod that is gone is no error.
pub(super) async fn patch_status(client: &Client, key: &Key, uid: &str, status: Value) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.0);
    let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": status}));
    let answer = api.patch_status(&key.1, &PatchParams::default(), &patch).await;
    report(key, "status", answer.err());
}

/// Deletes a pod with its own grace period, or by force.
pub(super) async fn delete(client: &Client, key: &Key, uid: &str, force: bool) {
    let api: Api<Pod> = Api::namespaced(client.clone(), &key.0);
    let uid = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let mut params = DeleteParams::default().preconditions(uid);
    if force {
        params = params.grace_period(0);
    }
    report(key, "deletion", api.delete(&key.1, &params).await.err());
}

/// The `DisruptionTarget` condition.
pub(super) fn disruption(reason: &str, message: &str, now: &str) -> Value {
    json!([{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": now}])
}

fn report(key: &Key, what: &str, error: Option<kube::Error>) {
    if let Some(error) = error.filter(|error| !is_code(error, 404) && !is_code(error, 409)) {
        tracing::warn!(namespace = key.0, name = key.1, %error, "a {what} of a pod failed; it is tried again");
    }
}
