//! `Queue`: who may use how much.
//!
//! ```text
//!   admin ──▶ Queue.spec (tree by `parent`, quota per class) ──▶ engine charges every gang to one queue
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{common::one, duration::Duration, word::Word};

/// A queue.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Queue",
    doc = "A queue: a share of the accelerators, and who may use it.",
    plural = "queues",
    shortname = "mq",
    category = "muster",
    status = "QueueStatus",
    derive = "PartialEq",
    validation = crate::rules::short_name(),
    validation = crate::rules::queue_parent(),
    printcolumn(name = "Parent", type_ = "string", json_path = ".spec.parent"),
    printcolumn(name = "Weight", type_ = "integer", json_path = ".spec.weight"),
    printcolumn(name = "Pending", type_ = "integer", json_path = ".status.pending"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueSpec {
    /// The queue that this one is a part of. Default: none, it is at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub parent: Option<String>,
    /// Quota by accelerator class. A class that is not listed has no quota of its own: it can only be borrowed.
    /// An empty list: no quota at all, every class may be used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "quotas_schema")]
    pub quotas: Vec<ClassQuota>,
    /// Share of what is free, relative to its siblings.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 1_000_000))]
    pub weight: u32,
    /// Use of others' idle quota, and of its own by others.
    pub borrowing: Borrowing,
    /// Whom its gangs may displace, and for whom they give way.
    pub preemption: Preemption,
    /// Namespaces that may use the queue. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<NamespaceRule>,
}

fn quotas_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["class"],
        "items": generator.subschema_for::<ClassQuota>(),
    })
}

/// Quota of one accelerator class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::CLASS_QUOTA)))]
pub struct ClassQuota {
    /// Name of the AcceleratorClass.
    #[schemars(length(min = 1, max = 63))]
    pub class: String,
    /// Accelerators that the queue can always get back.
    #[schemars(with = "i32", range(min = 0, max = 10_000_000))]
    pub nominal: u32,
    /// Most that it uses, borrowed ones included. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 0, max = 10_000_000))]
    pub limit: Option<u32>,
}

/// Use of idle quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Borrowing {
    /// Whether it may use what others leave idle.
    pub borrow: bool,
    /// Whether others may use what it leaves idle.
    pub lend: bool,
}

impl Default for Borrowing {
    fn default() -> Self {
        Self { borrow: true, lend: true }
    }
}

/// Whom a queue's gangs may displace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreemptionPolicy {
    /// Nobody.
    Never,
    /// Gangs of lower priority.
    #[default]
    LowerPriority,
    /// Anybody who uses more than its share.
    Any,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// Preemption rules of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Preemption {
    /// Whom its gangs may displace inside the queue.
    pub within_queue: PreemptionPolicy,
    /// Whom its gangs may displace in other queues to get the nominal quota back.
    pub reclaim: PreemptionPolicy,
    /// Its gangs are not displaced before they have run for so long.
    pub min_runtime: Duration,
}

impl Default for Preemption {
    fn default() -> Self {
        Self {
            within_queue: PreemptionPolicy::LowerPriority,
            reclaim: PreemptionPolicy::Any,
            min_runtime: "0s".into(),
        }
    }
}

/// Namespaces that may use a queue: those listed and those whose labels match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceRule {
    /// Names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 63)))]
    pub names: Vec<String>,
    /// Labels of the namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Use of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassUse {
    /// Name of the AcceleratorClass.
    pub class: String,
    /// Accelerators in use, borrowed ones included.
    #[schemars(with = "i32", range(min = 0))]
    pub used: u32,
    /// How many of them are borrowed.
    #[schemars(with = "i32", range(min = 0))]
    pub borrowed: u32,
}

/// The state of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Gangs that wait.
    #[schemars(with = "i32", range(min = 0))]
    pub pending: u32,
    /// Gangs that hold a plan.
    #[schemars(with = "i32", range(min = 0))]
    pub running: u32,
    /// Accelerators in use, all classes.
    #[schemars(with = "i32", range(min = 0))]
    pub gpus: u32,
    /// Use by class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassUse>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
