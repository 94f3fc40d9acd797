//! `NodePartition`: how the cards of one node are to be divided, and how far that has come.
//!
//! ```text
//!   planner ──▶ NodePartition.spec ──drain → apply → verify (or roll back)──▶ NodePartition.status
//! ```
//!
//! It has the name of its node.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{common::one, word::Word};

/// The wanted division of a node's cards.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "NodePartition",
    doc = "The division of one node's cards by MIG or time-slicing. The scheduler writes it; it has the name of its node.",
    plural = "nodepartitions",
    shortname = "npart",
    category = "muster",
    status = "NodePartitionStatus",
    derive = "PartialEq",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NodePartitionSpec {
    /// The cards, by index. Cards that are not listed stay as they are.
    #[schemars(schema_with = "gpus_schema")]
    pub gpus: Vec<GpuPartition>,
    /// UID of the node it was planned for: a node made anew has other cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub node_uid: Option<String>,
}

fn gpus_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": 256,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["index"],
        "items": generator.subschema_for::<GpuPartition>(),
    })
}

/// How a card is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharingMode {
    /// Not at all.
    #[default]
    Whole,
    /// Hardware partitions with their own memory.
    Mig,
    /// Turns on the whole card; neither memory nor faults are isolated.
    TimeSlice,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// The division of one card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::GPU_PARTITION)))]
pub struct GpuPartition {
    /// Index of the card on its node.
    #[schemars(with = "i32", range(min = 0, max = 255))]
    pub index: u32,
    /// How it is shared.
    #[serde(default)]
    pub mode: SharingMode,
    /// MIG instances.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub instances: Vec<MigInstance>,
    /// Pods that take turns, for TimeSlice.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub replicas: u32,
}

/// One MIG instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigInstance {
    /// Profile, such as `1g.10gb`.
    #[schemars(length(min = 1, max = 32))]
    pub profile: String,
    /// First memory slice.
    #[schemars(with = "i32", range(min = 0, max = 63))]
    pub start: u32,
}

/// How far a change has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartitionPhase {
    /// Nothing has begun.
    #[default]
    Pending,
    /// Pods on the cards are leaving.
    Draining,
    /// The node's agent divides the cards.
    Applying,
    /// What the node advertises is compared with what is wanted.
    Verifying,
    /// The cards are as wanted.
    Ready,
    /// The former division is restored.
    RollingBack,
    /// The former division is back, or that failed too; see the message.
    Failed,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// The state of a node's cards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePartitionStatus {
    /// How far the change has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::word")]
    pub phase: Option<PartitionPhase>,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Epoch of the leader that wrote this status.
    pub epoch: i64,
    /// The division that the node has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<GpuPartition>,
    /// The division to go back to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub previous: Vec<GpuPartition>,
    /// When the present phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Attempts at the present change.
    #[schemars(with = "i32", range(min = 0))]
    pub attempts: u32,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
