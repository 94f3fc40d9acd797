//! `InferenceService`: what a team that serves a model applies.
//!
//! ```text
//!   user ──apply──▶ InferenceService.spec ──(controller)──▶ one Gang a replica or role ──▶ pods
//! ```
//!
//! `data` of `parallelism` lies inside a replica (engines step their data-parallel ranks together); `replicas` counts
//! independent copies.

use k8s_openapi::{
    api::core::v1::PodTemplateSpec,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{Accelerator, Parallelism, UnitCounts, default_queue, one},
    duration::Duration,
    node_partition::SharingMode,
    training_job::Placement,
    word::Word,
};

/// An inference service: replicas of one model.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "InferenceService",
    doc = "An inference service: replicas of one model behind one name.",
    plural = "inferenceservices",
    shortname = "infsvc",
    category = "muster",
    namespaced,
    status = "InferenceServiceStatus",
    derive = "PartialEq",
    validation = crate::rules::gang_name(),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Tier", type_ = "string", json_path = ".spec.tier"),
    printcolumn(
        name = "Units",
        type_ = "string",
        json_path = ".status.units.summary",
        description = "Replicas ready of replicas desired"
    ),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.queue"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::INFERENCE_SERVICE)))]
pub struct InferenceServiceSpec {
    /// The Queue that the service is charged to.
    #[serde(default = "default_queue")]
    #[schemars(length(min = 1, max = 63))]
    pub queue: String,
    /// PriorityClass that ranks the service. Default: the cluster's default class, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// What the service promises.
    #[serde(default)]
    pub tier: Tier,
    /// The model. Default: the image brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    /// The serving engine: which flags, environment and metrics it has.
    #[serde(default)]
    pub engine: Engine,
    /// The accelerators of the pods.
    #[serde(default)]
    pub accelerator: Accelerator,
    /// How a card is shared.
    #[serde(default)]
    pub sharing: Sharing,
    /// Sizes of the parallel axes of one replica.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// Replicas. With `autoscaling` it is where scaling begins.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 0, max = 65536))]
    pub replicas: u32,
    /// Bounds and targets of scaling. Default: the number of replicas is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
    /// Prefill apart from decode. Default: one engine does both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Prefill>,
    /// How a change reaches the replicas.
    #[serde(default)]
    pub rollout: Rollout,
    /// Where groups of ranks must lie.
    #[serde(default)]
    pub placement: Placement,
    /// Port on which leaders serve.
    #[serde(default = "serving_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// The pods.
    #[schemars(schema_with = "crate::template::schema")]
    pub template: PodTemplateSpec,
}

fn serving_port() -> u16 {
    8_000
}

/// What a service promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Tier {
    /// Latency-sensitive: dedicated cards or MIG slices; training never displaces it, it may displace training.
    P0,
    /// Batch inference: elastic.
    #[default]
    P1,
    /// Offline: fills gaps, may be displaced at any time.
    P2,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// A serving engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Engine {
    /// vLLM.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
    /// TensorRT-LLM, started by mpirun.
    TensorRtLlm,
    /// Any other: it gets the ranks' environment and no flags.
    Custom,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// The model that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Name under which clients ask for it.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Where its weights are, such as `hf://org/model`, `s3://bucket/path` or `pvc://claim/path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub uri: Option<String>,
}

/// How a service's pods share a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::SHARING)))]
pub struct Sharing {
    /// How.
    pub mode: SharingMode,
    /// MIG profile of each pod, such as `1g.10gb`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub profile: Option<String>,
    /// Pods that take turns on a card, for TimeSlice.
    #[schemars(with = "i32", range(min = 1, max = 64))]
    pub replicas: u32,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { mode: SharingMode::Whole, profile: None, replicas: 1 }
    }
}

/// Bounds and targets of scaling. A target that is not set is not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::AUTOSCALING)))]
pub struct Autoscaling {
    /// Fewest replicas; 0 needs a signal from outside the pods.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 0, max = 65536))]
    pub min_replicas: u32,
    /// Most replicas.
    #[schemars(with = "i32", range(min = 1, max = 65536))]
    pub max_replicas: u32,
    /// Requests that wait, a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 1_000_000))]
    pub queued_requests: Option<u32>,
    /// Use of the key-value cache, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 100))]
    pub kv_cache_percent: Option<u32>,
    /// 95th percentile of the time to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_first_token: Option<Duration>,
    /// 95th percentile of the time for each further token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_per_output_token: Option<Duration>,
    /// How long fewer replicas must have been enough before one goes.
    #[serde(default = "scale_down_delay")]
    pub scale_down_delay: Duration,
}

fn scale_down_delay() -> Duration {
    "5m".into()
}

/// Prefill apart from decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prefill {
    /// Prefill replicas for `per` decode replicas.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 1024))]
    pub replicas: u32,
    /// Decode replicas that `replicas` prefill replicas feed.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 1024))]
    pub per: u32,
    /// The accelerators of prefill pods. Default: those of decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// Sizes of the parallel axes of one prefill replica. Default: those of decode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<Parallelism>,
    /// Arguments appended in prefill pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), inner(length(max = 1024)))]
    pub args: Vec<String>,
}

/// How a change reaches the replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::ROLLOUT)))]
pub struct Rollout {
    /// Replicas above the wanted number during a change.
    #[schemars(with = "i32", range(min = 0, max = 65536))]
    pub max_surge: u32,
    /// Replicas that may be missing during a change; used when there is no room to surge.
    #[schemars(with = "i32", range(min = 0, max = 65536))]
    pub max_unavailable: u32,
    /// Per cent of the replicas that get the change first. Default: none apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 99))]
    pub canary_percent: Option<u32>,
    /// A replica that is not ready after so long has failed.
    pub progress_deadline: Duration,
    /// Time from leaving the endpoints to SIGTERM, for requests under way.
    pub drain: Duration,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_surge: 1,
            max_unavailable: 1,
            canary_percent: None,
            progress_deadline: "30m".into(),
            drain: "30s".into(),
        }
    }
}

/// What a service is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServicePhase {
    /// No replica is ready.
    #[default]
    Pending,
    /// All wanted replicas are ready.
    Ready,
    /// Some are.
    Degraded,
    /// A change is under way.
    RollingOut,
    /// Scaled to zero.
    Idle,
    /// It cannot become ready without a change of the specification.
    Failed,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// The state of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InferenceServiceStatus {
    /// What it is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::word")]
    pub phase: Option<ServicePhase>,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Replicas, as units.
    pub units: UnitCounts,
    /// Replicas that exist.
    #[schemars(with = "i32", range(min = 0))]
    pub replicas: u32,
    /// Replicas of the newest revision.
    #[schemars(with = "i32", range(min = 0))]
    pub updated_replicas: u32,
    /// Accelerators that the service holds.
    #[schemars(with = "i32", range(min = 0))]
    pub gpus: u32,
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the number of replicas last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// URL inside the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Label selector of the service's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}
