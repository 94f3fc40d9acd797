//! `AcceleratorClass`: how to recognise a kind of card, and what it can do.
//!
//! ```text
//!   catalogue (built in) ─┐
//!   AcceleratorClass ─────┴─ by name, the object wins ──to_model(products seen)──▶ model::AcceleratorClass ──▶ engine
//! ```

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Condition};
use kube::CustomResource;
use muster_model::{Operator, Requirement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::common::one;

/// The resource that NVIDIA's device plugin advertises.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// The label in which NVIDIA's GPU feature discovery names the card.
pub const PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

/// A kind of accelerator.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "AcceleratorClass",
    doc = "A kind of accelerator: how to recognise it, and what it can do. A catalogue is built in; an object of the same name replaces its entry.",
    plural = "acceleratorclasses",
    shortname = "accel",
    category = "muster",
    status = "AcceleratorClassStatus",
    derive = "PartialEq",
    validation = crate::rules::short_name(),
    printcolumn(name = "Resource", type_ = "string", json_path = ".spec.resource"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.memory"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct AcceleratorClassSpec {
    /// Extended resource that nodes with such a card advertise.
    #[serde(default = "nvidia_gpu")]
    #[schemars(length(min = 1, max = 317))]
    pub resource: String,
    /// Node label whose value names the card.
    #[serde(default = "product_label")]
    #[schemars(length(min = 1, max = 317))]
    pub product_label: String,
    /// Values of that label: exact, or a beginning followed by `*`. Values of shared or partitioned cards
    /// (`…-SHARED`, `…-MIG-…`) match only when written out. Empty: every node with the resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 64)))]
    pub products: Vec<String>,
    /// Memory of one card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::quantity")]
    pub memory: Option<Quantity>,
    /// Streaming multiprocessors of one card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 100_000))]
    pub compute_units: Option<u32>,
    /// Cards of a typical node: what a job's pod gets when no node is there to ask.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 256))]
    pub gpus_per_node: u32,
    /// Most nodes that one NVLink domain spans.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 1024))]
    pub nvlink_nodes: u32,
    /// How the card is partitioned. Default: it cannot be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigGrid>,
    /// Price of one card for an hour, in any currency, as a decimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+(\.[0-9]+)?$"))]
    pub price_per_hour: Option<String>,
}

fn nvidia_gpu() -> String {
    NVIDIA_GPU.to_owned()
}

fn product_label() -> String {
    PRODUCT_LABEL.to_owned()
}

impl AcceleratorClassSpec {
    /// Whether a node with this product is of the class. Shared and partitioned cards are others.
    pub fn matches(&self, product: &str) -> bool {
        self.products.is_empty()
            || self.products.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(beginning) => product.starts_with(beginning) && !is_divided(product),
                None => product == pattern,
            })
    }

    /// The class as the engine knows it. `seen` are the values of `productLabel` that nodes carry now: the engine
    /// compares whole values, so a beginning is spelt out in those that it stands for.
    pub fn to_model<'a>(
        &self,
        name: &str,
        seen: impl IntoIterator<Item = &'a str>,
    ) -> muster_model::AcceleratorClass {
        let requirements = if self.products.is_empty() {
            Vec::new()
        } else {
            let mut values: Vec<String> =
                seen.into_iter().filter(|product| self.matches(product)).map(str::to_owned).collect();
            values.sort_unstable();
            values.dedup();
            vec![Requirement {
                key: self.product_label.clone(),
                operator: Operator::In,
                values,
                field: false,
            }]
        };
        muster_model::AcceleratorClass {
            name: name.to_owned(),
            resource: self.resource.clone(),
            requirements,
        }
    }
}

/// Whether a product label's value is that of a time-sliced or partitioned card.
fn is_divided(product: &str) -> bool {
    product.ends_with("-SHARED") || product.contains("-MIG-")
}

/// How a card is partitioned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigGrid {
    /// Memory slices of the card.
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub memory_slices: u32,
    /// Compute slices of the card.
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub compute_slices: u32,
    /// Profiles.
    #[schemars(length(min = 1, max = 64))]
    pub profiles: Vec<MigProfile>,
}

/// One MIG profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigProfile {
    /// Name, such as `1g.10gb`. Names are not portable across cards.
    #[schemars(length(min = 1, max = 32))]
    pub name: String,
    /// Compute slices.
    #[schemars(with = "i32", range(min = 0, max = 64))]
    pub compute: u32,
    /// Memory slices, contiguous.
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub memory: u32,
    /// Legal first memory slices.
    #[schemars(with = "Vec<i32>", length(min = 1, max = 64), inner(range(min = 0, max = 63)))]
    pub starts: Vec<u32>,
    /// Most instances on one card.
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub max: u32,
}

/// What was found in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceleratorClassStatus {
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Nodes of the class.
    #[schemars(with = "i32", range(min = 0))]
    pub nodes: u32,
    /// Cards of the class.
    #[schemars(with = "i32", range(min = 0))]
    pub gpus: u32,
    /// Products seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<String>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
