//! `TrainingJob`: what a researcher applies.
//!
//! ```text
//!   user ──apply──▶ TrainingJob.spec ──(controller derives ranks, units, segments)──▶ Gang
//!   user ◀──get──── TrainingJob.status ◀──(controller condenses)────────────────────── Gang.status
//! ```
//!
//! # Edits of a live job
//!
//! | field | when it may change | what a change does |
//! | --- | --- | --- |
//! | `framework`, `accelerator`, `parallelism` other than `data`, `placement`, `template`, `outcome`, `queue` | only while `suspend` was already true | takes effect when the job resumes |
//! | `parallelism.data`, `elastic` | always, within the elastic bounds | a new size: every pod gets a new environment |
//! | `suspend` | always | true: pods leave after their checkpoint; false: the job waits for a placement again |
//! | `priorityClassName`, `recovery`, `ttlAfterFinished`, `activeDeadline` | always | used from the next decision on |
//! | `checkpoint` | always | pods that exist keep their grace period; new ones get the new one |

use k8s_openapi::{
    api::core::v1::PodTemplateSpec,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use muster_model::{Mode, topology::NVLINK_DOMAIN};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{Accelerator, Framework, Parallelism, PlacementRule, Recovery, UnitCounts, default_queue},
    duration::Duration,
    word::Word,
};

/// A training job: a world of ranks that run together.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    doc = "A training job: a world of ranks that run together, or not at all.",
    plural = "trainingjobs",
    shortname = "tj",
    category = "muster",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    validation = crate::rules::gang_name(),
    scale(
        spec_replicas_path = ".spec.parallelism.data",
        status_replicas_path = ".status.data",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Units",
        type_ = "string",
        json_path = ".status.units.summary",
        description = "Units ready of units desired"
    ),
    printcolumn(
        name = "GPUs",
        type_ = "integer",
        json_path = ".status.gpus",
        description = "Accelerators that the job holds"
    ),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.queue"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restarts", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::TRAINING_JOB)))]
pub struct TrainingJobSpec {
    /// The Queue that the job is charged to.
    #[serde(default = "default_queue")]
    #[schemars(length(min = 1, max = 63))]
    pub queue: String,
    /// PriorityClass that ranks the job among those of its queue. Default: the cluster's default class, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// True: the job holds nothing and waits for nothing.
    #[serde(default)]
    pub suspend: bool,
    /// Which environment the pods get.
    #[serde(default)]
    pub framework: Framework,
    /// The accelerators of the pods.
    #[serde(default)]
    pub accelerator: Accelerator,
    /// Sizes of the parallel axes.
    #[serde(default)]
    pub parallelism: Parallelism,
    /// Sizes other than `parallelism.data` at which the job may run. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// Where groups of ranks must lie.
    #[serde(default)]
    pub placement: Placement,
    /// How the job saves its progress.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What is done after a loss.
    #[serde(default)]
    pub recovery: Recovery,
    /// Whose exit decides the outcome.
    #[serde(default)]
    pub outcome: Outcome,
    /// A finished job is deleted after so long. Default: it is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<Duration>,
    /// A job whose plans have been in force for so long, all added up, fails: starting and recovering count, suspended and
    /// waiting do not. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline: Option<Duration>,
    /// The pods. All ranks use the same; the accelerators are added to the container that `accelerator` names.
    #[schemars(schema_with = "crate::template::schema")]
    pub template: PodTemplateSpec,
}

/// Bounds on the number of data-parallel replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::ELASTIC)))]
pub struct Elastic {
    /// Fewest replicas with which the job runs. Default: the least of `validData`, else `parallelism.data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 65536))]
    pub min_data: Option<u32>,
    /// Most replicas that it can use. Default: the largest of `validData`, else `parallelism.data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 65536))]
    pub max_data: Option<u32>,
    /// The only numbers of replicas that are valid; instead of the bounds, or within them. Default: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<i32>", length(max = 64), inner(range(min = 1, max = 65536)))]
    pub valid_data: Vec<u32>,
}

/// Where groups of ranks must lie, axis by axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Each tensor-parallel group.
    pub tensor: PlacementRule,
    /// Each expert group (expertTensor · expert ranks of a stage). Without effect where expert is 1.
    pub expert: PlacementRule,
    /// Each tensor · context block. Default: no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<PlacementRule>,
    /// Each unit, all its pipeline stages.
    pub pipeline: PlacementRule,
    /// The whole job. Default: no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<PlacementRule>,
    /// Nodes held near the job to replace one that fails.
    #[schemars(with = "i32", range(min = 0, max = 1024))]
    pub spares: u32,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            tensor: PlacementRule::new(NVLINK_DOMAIN, Mode::Required),
            expert: PlacementRule::new(NVLINK_DOMAIN, Mode::Preferred),
            context: None,
            pipeline: PlacementRule::new("Block", Mode::Preferred),
            job: None,
            spares: 0,
        }
    }
}

/// How a job saves its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Checkpoint {
    /// Usual time between two checkpoints: with the time since the last one it is what an interruption costs.
    pub interval: Duration,
    /// Time from SIGTERM to SIGKILL, for a last checkpoint; the pods' grace period.
    pub grace: Duration,
    /// Where the job reports its progress. Default: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { interval: "30m".into(), grace: "30s".into(), progress: None }
    }
}

/// Where a job reports its progress, as Prometheus text of rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Port of rank 0's pod.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub metrics_port: u16,
    /// HTTP path.
    #[serde(default = "metrics_path")]
    #[schemars(length(min = 1, max = 256))]
    pub path: String,
    /// Gauge that holds the step of the last complete checkpoint.
    #[serde(default = "checkpoint_metric")]
    #[schemars(length(min = 1, max = 256))]
    pub checkpoint_step_metric: String,
}

fn metrics_path() -> String {
    "/metrics".to_owned()
}

fn checkpoint_metric() -> String {
    "checkpoint_step".to_owned()
}

/// Whose exit decides the outcome of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// Rank 0's pod: when it succeeds, the job has succeeded, whatever the others do.
    #[default]
    Rank0,
    /// Every pod must succeed.
    AllRanks,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum JobPhase {
    /// It waits for a placement.
    #[default]
    Pending,
    /// It is suspended.
    Suspended,
    /// It has a placement, and its pods are being made.
    Starting,
    /// Its pods run.
    Running,
    /// It lost something and comes back.
    Recovering,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

impl JobPhase {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A checkpoint that the job has reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Training step.
    pub step: i64,
    /// When it was first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// The state of a job. It answers "why is it not running". Only the leader writes it, as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct TrainingJobStatus {
    /// What it is doing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::word")]
    pub phase: Option<JobPhase>,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence, with what can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Valid, Placed, Running, Finished.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Units.
    pub units: UnitCounts,
    /// Data-parallel replicas placed now.
    #[schemars(with = "i32", range(min = 0))]
    pub data: u32,
    /// Accelerators that the job holds.
    #[schemars(with = "i32", range(min = 0))]
    pub gpus: u32,
    /// Restarts since the job was made.
    #[schemars(with = "i32", range(min = 0))]
    pub restarts: u32,
    /// Generation of the plan in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub generation: Option<u64>,
    /// The last complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// When all pods of the first plan ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// UID of the Gang that the numbers are about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// Restarts of Gangs that the job had before: deleted by hand, say.
    #[schemars(with = "i32", range(min = 0))]
    pub earlier_restarts: u32,
    /// Since when a plan has been in force without a break: what `activeDeadline` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_since: Option<Time>,
    /// For how many seconds plans were in force before that.
    #[schemars(range(min = 0))]
    pub active_seconds: i64,
    /// When it succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Label selector of the job's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
}
