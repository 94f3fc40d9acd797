//! `GangPlan`: a part of a plan that is too large for the status of its Gang.
//!
//! ```text
//!   Plan ──plan_codec::split──▶ Chunk ──object──▶ GangPlan (written first) ◀──name, hash── Gang.status.plan (then)
//! ```
//!
//! A kind of its own, so that the operator needs no right on ConfigMaps and tenants need none on plans. It never changes:
//! its name holds a hash of its text, another plan has other parts.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Gang,
    common::{GROUP, VERSION},
    labels,
    plan_codec::Chunk,
};

/// A part of a gang's plan.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "GangPlan",
    doc = "A part of the plan of a large Gang. The scheduler writes it; it never changes and goes with its Gang.",
    plural = "gangplans",
    shortname = "gplan",
    category = "muster",
    namespaced,
    derive = "PartialEq",
    validation = crate::rules::short_name(),
    printcolumn(name = "Gang", type_ = "string", json_path = r".metadata.labels.muster\.dev/gang"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::GANG_PLAN)))]
pub struct GangPlanSpec {
    /// The text; see `plan_codec`.
    // As much as `plan_codec::MAX_CHUNK`.
    #[schemars(length(max = 786_432))]
    pub text: String,
}

/// The object of a part of a gang's plan, as it is created.
pub fn object(gang: &Gang, chunk: &Chunk) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "GangPlan",
        "metadata": {
            "name": chunk.name,
            "namespace": gang.metadata.namespace,
            "labels": {
                labels::GANG: gang.metadata.name,
                labels::GANG_UID: gang.metadata.uid,
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
            },
            "ownerReferences": [{
                "apiVersion": format!("{GROUP}/{VERSION}"),
                "kind": "Gang",
                "name": gang.metadata.name,
                "uid": gang.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": { "text": chunk.text },
    })
}
