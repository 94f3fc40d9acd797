//! The proof that the fence holds: dry runs that each binding of the policy must refuse, and two that it must not.
//!
//! ```text
//!   binding of pods      a pod under the epoch before      ─▶ denied;  under ours ─▶ not denied by the fence
//!   each other binding   a Lease named as the binding, under the epoch before     ─▶ denied
//!   rule of the writer   such a Lease written by another   ─▶ denied;  by us      ─▶ not denied
//! ```
//!
//! A refusal by anything else proves nothing: a quota, a LimitRange or a webhook that quotes our names.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use muster_api::labels;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

use crate::answer::{Answer, Denial, FENCE_POLICY, of};
use crate::lease::{LeaderError, LeaseConfig};

/// The bindings beside that of pods, each with what it covers, in words.
const BINDINGS: [(&str, &str); 3] = [
    ("muster-fence-plans", "a plan"),
    ("muster-fence-objects", "a change of pods, Services or ConfigMaps"),
    ("muster-fence-gangs", "a change of Gangs or TrainingJobs"),
];
/// Annotation: who writes an object, where it says so itself. The policy compares it with the holder of the Lease.
const WRITER: &str = "muster.dev/writer";
/// Nobody's name: names of pods have no capitals.
const STRANGER: &str = "Nobody";

/// Whether the fence refuses former leaders and lets us write, for a term of this epoch.
///
/// # Errors
/// What is missing, or what stands in the way of knowing.
pub(crate) async fn prove(client: &Client, config: &LeaseConfig, epoch: i64) -> Result<(), LeaderError> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &config.namespace);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &config.namespace);
    let before = epoch - 1;
    let answer = attempt(&pods, pod(before)).await;
    must_be_denied(answer, FENCE_POLICY, || format!("a pod of epoch {before} was not refused"))?;
    must_pass(attempt(&pods, pod(epoch)).await)?;
    for (binding, what) in BINDINGS {
        let answer = attempt(&leases, witness(binding, before, &config.identity)).await;
        must_be_denied(answer, binding, || format!("{what} under epoch {before} would not be refused"))?;
    }
    // The rule is the policy's: through one binding as through all.
    let (binding, _) = BINDINGS[0];
    let answer = attempt(&leases, witness(binding, epoch, STRANGER)).await;
    must_be_denied(answer, binding, || "what another pod writes would not be refused".into())?;
    must_pass(attempt(&leases, witness(binding, epoch, &config.identity)).await)
}

fn must_be_denied(answer: Tried, binding: &str, gap: impl Fn() -> String) -> Result<(), LeaderError> {
    match answer {
        Tried::Denied(denial) if denial.binding == binding => Ok(()),
        Tried::Denied(denial) => Err(LeaderError::NotFenced(format!(
            "{}: not by the binding {binding} but by {}",
            gap(),
            denial.binding
        ))),
        Tried::Passed => Err(LeaderError::NotFenced(gap())),
        Tried::Refused(message) => Err(LeaderError::Unproven(message)),
    }
}

fn must_pass(answer: Tried) -> Result<(), LeaderError> {
    match answer {
        Tried::Denied(denial) => Err(LeaderError::ShutOut(denial.message)),
        // What else refuses a pod here does not concern the pods of gangs elsewhere.
        Tried::Passed | Tried::Refused(_) => Ok(()),
    }
}

/// What came of a dry run.
enum Tried {
    Passed,
    Denied(Denial),
    /// Something else refused, or did not answer.
    Refused(String),
}

async fn attempt<K>(api: &Api<K>, object: Value) -> Tried
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = match serde_json::from_value(object) {
        Ok(object) => object,
        Err(error) => return Tried::Refused(error.to_string()),
    };
    let params = PostParams { dry_run: true, field_manager: None };
    match api.create(&params, &object).await {
        Ok(_) => Tried::Passed,
        Err(kube::Error::Api(status)) => match of(&status) {
            Answer::Denied(denial) => Tried::Denied(denial),
            _ => Tried::Refused(status.message),
        },
        Err(error) => Tried::Refused(error.to_string()),
    }
}

fn metadata(epoch: i64) -> Value {
    json!({
        // The fence looks at what is labelled as ours only.
        "labels": { labels::GANG: "proof", labels::MANAGED_BY: labels::MANAGED_BY_VALUE },
        "annotations": { labels::EPOCH: epoch.to_string() },
    })
}

/// The least pod of a gang that there can be, which also passes the "restricted" Pod Security level.
fn pod(epoch: i64) -> Value {
    let mut metadata = metadata(epoch);
    metadata["generateName"] = json!("proof-");
    metadata["ownerReferences"] = json!([{
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Gang",
        "name": "proof",
        "uid": "00000000-0000-0000-0000-000000000000",
        "controller": true,
    }]);
    json!({
        "metadata": metadata,
        "spec": {
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "proof",
                "image": "proof",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                },
                "resources": {
                    "requests": { "cpu": "1m", "memory": "1Mi" },
                    "limits": { "cpu": "1m", "memory": "1Mi" },
                },
            }],
        },
    })
}

/// A Lease that the binding of this name judges as if it were what the binding is for.
fn witness(binding: &str, epoch: i64, writer: &str) -> Value {
    let mut metadata = metadata(epoch);
    metadata["name"] = json!(binding);
    metadata["annotations"][WRITER] = json!(writer);
    json!({ "metadata": metadata })
}
