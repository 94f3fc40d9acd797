//! `Topology`: which labels name the domains of the cluster.
//!
//! ```text
//!   admin ──▶ Topology "default" ──to_model()──▶ model::Topology ──▶ engine's tree
//! ```
//!
//! Without the object the built-in levels of `model::Topology::default()` hold.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use muster_model::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the one Topology that rules.
pub const TOPOLOGY_NAME: &str = "default";

/// The levels of the cluster.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Topology",
    doc = "The topology of the cluster: its levels and the labels that name their domains.",
    plural = "topologies",
    shortname = "topo",
    category = "muster",
    status = "TopologyStatus",
    derive = "PartialEq",
    validation = crate::rules::topology_name(),
    printcolumn(name = "Levels", type_ = "string", json_path = ".status.levels"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::TOPOLOGY)))]
pub struct TopologySpec {
    /// The levels above the node, outermost first. The node itself is the implied last level.
    #[schemars(schema_with = "crate::schema::levels")]
    pub levels: Vec<Level>,
}

impl TopologySpec {
    /// The levels as the engine knows them.
    pub fn to_model(&self) -> muster_model::Topology {
        muster_model::Topology { levels: self.levels.clone() }
    }
}

/// How many domains a level has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LevelStatus {
    /// Name of the level.
    pub name: String,
    /// Domains that a label names.
    #[schemars(with = "i32", range(min = 0))]
    pub domains: u32,
    /// Nodes that carry none of the level's labels; each is a domain of its own.
    #[schemars(with = "i32", range(min = 0))]
    pub unlabelled: u32,
}

/// What was found in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyStatus {
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Names of the levels that have domains, outermost first, joined by ` > `.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<String>,
    /// Nodes with accelerators.
    #[schemars(with = "i32", range(min = 0))]
    pub nodes: u32,
    /// Domains by level, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<LevelStatus>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
