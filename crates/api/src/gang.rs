//! `Gang`: the scheduler's only input, and its plan.
//!
//! ```text
//!   TrainingJob, InferenceService ──controllers──▶ Gang.spec ──cluster converts──▶ model::Gang ──▶ engine
//!   executor ◀── Gang.status.plan ◀──one status write (plan_codec)── model::Plan ◀──────────────────┘
//! ```
//!
//! A gang knows units, roles and segments. `launch` says what environment the pods get; the engine never reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use muster_model::{Rules, Segment, Within};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        DEFAULT_PORT, Framework, Parallelism, Recovery, UnitCounts, default_queue, first_revision, one,
    },
    plan_codec::PlanStatus,
    pod_template::PodTemplate,
    word::Word,
};

/// A gang: groups of identical pods that are placed as one.
#[derive(CustomResource, JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "Gang",
    doc = "A gang: groups of identical pods that are placed as one. Controllers write it, users read it.",
    plural = "gangs",
    shortname = "gang",
    category = "muster",
    namespaced,
    status = "GangStatus",
    derive = "PartialEq",
    validation = crate::rules::gang_name(),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[0]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[1]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[2]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[3]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[4]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[5]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[6]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[7]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[8]),
    validation = crate::rules::root(&crate::rules::GANG_LIVE[9]),
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
        description = "Accelerators that the plan holds"
    ),
    printcolumn(name = "Queue", type_ = "string", json_path = ".spec.queue"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Plan", type_ = "integer", json_path = ".status.plan.generation", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::GANG)))]
pub struct GangSpec {
    /// The Queue that the gang is charged to.
    #[serde(default = "default_queue")]
    #[schemars(length(min = 1, max = 63))]
    pub queue: String,
    /// PriorityClass that ranks the gang; its pods are created with it, so that kubelets and kube-scheduler rank them
    /// alike. Default: the cluster's default class, else 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Accelerator classes that it may use, best first. Empty for a gang without accelerators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub classes: Vec<String>,
    /// Its roles.
    #[schemars(schema_with = "roles_schema")]
    pub roles: Vec<RoleSpec>,
    /// A rule for the whole gang. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::within")]
    pub within: Option<Within>,
    /// Rules between roles and between units. Default: none.
    #[serde(default, skip_serializing_if = "Rules::is_empty")]
    #[schemars(schema_with = "crate::schema::rules")]
    pub rules: Rules,
    /// The environment of the pods.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::open::<Launch>")]
    pub launch: Launch,
    /// What is done after a loss.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::open::<Recovery>")]
    pub recovery: Recovery,
    /// Whose exit decides the outcome.
    #[serde(default)]
    #[schemars(schema_with = "crate::schema::open::<GangOutcome>")]
    pub outcome: GangOutcome,
    /// True: the gang holds nothing and waits for nothing.
    #[serde(default)]
    pub suspend: bool,
}

/// One pod shape and how many of it make a unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::ROLE)))]
pub struct RoleSpec {
    /// Name, such as `worker`; unique in the gang.
    #[schemars(length(min = 1, max = 30), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The pods: metadata with labels and annotations, and the specification of a pod.
    pub template: PodTemplate,
    /// Name of `template`. While the gang holds a plan, another template needs another name, and the one before goes to
    /// `revisions`.
    #[serde(default = "first_revision")]
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub revision: String,
    /// Earlier templates. A unit keeps the one that its pods were made from until they start anew; `status.revisions` says
    /// which are in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "revisions_schema")]
    pub revisions: Vec<Revision>,
    /// Seconds from SIGTERM to SIGKILL. Default: what the template says, else Kubernetes' 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0, max = 31_536_000))]
    pub termination_grace_period_seconds: Option<i64>,
    /// Accelerators of one pod; the class says by which resource name.
    #[serde(default)]
    #[schemars(with = "i32", range(min = 0, max = 256))]
    pub devices: u32,
    /// Name of the container that gets them. Default: the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
    /// Pods in a unit.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 262_144))]
    pub pods_per_unit: u32,
    /// How many units.
    pub units: UnitBounds,
    /// Placement rules over a unit's pods: sizes ascending, each a divisor of the next and of podsPerUnit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::segments")]
    pub segments: Vec<Segment>,
    /// Nodes held near the units to replace one that fails.
    #[serde(default)]
    #[schemars(with = "i32", range(min = 0, max = 1024))]
    pub spares: u32,
}

impl RoleSpec {
    /// The template of a revision; the present one where none is named.
    pub fn template_of(&self, revision: &str) -> Option<&PodTemplate> {
        if revision.is_empty() || revision == self.revision {
            return Some(&self.template);
        }
        self.revisions.iter().find(|earlier| earlier.name == revision).map(|earlier| &earlier.template)
    }

    /// The role as it is for units of a revision; `None` where it has no such template.
    pub fn at(&self, revision: &str) -> Option<Self> {
        let template = self.template_of(revision)?.clone();
        let name = if revision.is_empty() { &self.revision } else { revision };
        Some(Self { template, revision: name.to_owned(), ..self.clone() })
    }
}

/// A template that a role had before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::REVISION)))]
pub struct Revision {
    /// Its name.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-zA-Z0-9]([-._a-zA-Z0-9]*[a-zA-Z0-9])?$"))]
    pub name: String,
    /// The pods.
    pub template: PodTemplate,
}

/// Most earlier templates of a role.
pub const MAX_REVISIONS: usize = 8;

fn revisions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "maxItems": MAX_REVISIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": generator.subschema_for::<Revision>(),
    })
}

fn roles_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": generator.subschema_for::<RoleSpec>(),
    })
}

/// How many units a role has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::UNIT_BOUNDS)))]
pub struct UnitBounds {
    /// Fewest units with which the gang runs.
    #[schemars(with = "i32", range(min = 0, max = 262_144))]
    pub min: u32,
    /// Most units that it can use.
    #[schemars(with = "i32", range(min = 0, max = 262_144))]
    pub max: u32,
    /// The only counts between them that are valid. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<i32>", length(max = 64), inner(range(min = 0, max = 262_144)))]
    pub valid: Vec<u32>,
}

/// What the executor needs to give each pod its ranks and environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Launch {
    /// Which environment.
    pub framework: Framework,
    /// Sizes of the parallel axes; `data` is that of the specification, not that of the plan in force.
    pub parallelism: Parallelism,
    /// Data-parallel replicas in a unit.
    #[schemars(with = "i32", range(min = 1, max = 65536))]
    pub replicas_per_unit: u32,
    /// Pods of one pipeline stage of a unit: unit-local pod index = stage · podsPerStage + position.
    #[schemars(with = "i32", range(min = 1, max = 262_144))]
    pub pods_per_stage: u32,
    /// Port on which rank 0 listens.
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
}

impl Default for Launch {
    fn default() -> Self {
        Self {
            framework: Framework::Plain,
            parallelism: Parallelism::default(),
            replicas_per_unit: 1,
            pods_per_stage: 1,
            port: DEFAULT_PORT,
        }
    }
}

/// Whose exit decides the outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutcomePolicy {
    /// One pod's.
    #[default]
    Pod,
    /// Every pod must succeed.
    All,
    /// None: the gang serves until it is deleted, and a pod that ends is a loss.
    Never,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// Whose exit decides the outcome of a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GangOutcome {
    /// One pod, all or none.
    pub policy: OutcomePolicy,
    /// Role of the one pod. Default: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 30))]
    pub role: Option<String>,
    /// Unit of the one pod.
    #[schemars(with = "i32", range(min = 0, max = 262_144))]
    pub unit: u32,
    /// Index of the one pod in its unit.
    #[schemars(with = "i32", range(min = 0, max = 262_144))]
    pub index: u32,
}

/// Where a gang stands in the commit protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum GangPhase {
    /// No plan.
    #[default]
    Pending,
    /// The plan is durable, its capacity must first be freed.
    Reserved,
    /// The capacity is free and counted: pods appear.
    Placed,
    /// All pods of the plan run.
    Running,
    /// The outcome was success.
    Succeeded,
    /// The outcome was failure.
    Failed,
    /// It gave its capacity to another; it goes back to Pending.
    Preempted,
    /// It gave its capacity back after a loss; it goes back to Pending.
    Requeued,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

impl GangPhase {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// One restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Restart {
    /// When.
    pub time: Time,
    /// Why, in one CamelCase word.
    pub cause: String,
    /// Generation of the plan that came after it.
    #[schemars(with = "i64", range(min = 0))]
    pub generation: u64,
    /// How many restarts this stands for: older ones are counted together.
    #[serde(default = "one")]
    #[schemars(with = "i32", range(min = 1, max = 1_000_000))]
    pub count: u32,
}

/// How a gang ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GangResult {
    /// Exit code of the container that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the pod that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Why, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the pod ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

/// What a Reserved plan waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// After this the plan is made anew.
    pub deadline: Time,
    /// Gangs that give way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub victims: Vec<Victim>,
}

/// A gang that gives way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Units that it gives, by role; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<VictimUnits>,
}

/// Units of one role that a victim gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VictimUnits {
    /// The role.
    pub role: String,
    /// Their indices.
    #[schemars(with = "Vec<i32>", inner(range(min = 0)))]
    pub units: Vec<u32>,
}

/// How many units run from a revision of a role's template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionUse {
    /// The role.
    pub role: String,
    /// The revision.
    pub name: String,
    /// Units of the plan in force.
    #[schemars(with = "i32", range(min = 0))]
    pub units: u32,
}

/// The state of a gang. Only the leader writes it, as a whole: so who manages which field of it is not kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct GangStatus {
    /// Where it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::word")]
    pub phase: Option<GangPhase>,
    /// Epoch of the leader that wrote this status: `leaseTransitions` of its Lease.
    pub epoch: i64,
    /// The `metadata.generation` that this status was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The plan in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// The templates that the plan in force is made from, by role and revision.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 72))]
    pub revisions: Vec<RevisionUse>,
    /// Generation of the latest plan, also while none is in force: the next plan's is higher.
    #[schemars(with = "i64", range(min = 0))]
    pub last_generation: u64,
    /// Whether all pods of the plan's generation were created: one that is missing from then on is lost.
    pub launched: bool,
    /// What the plan in force was made from: requests, tolerations and reach of its pods as admission left them. For the
    /// operator: the plan is judged by this, whatever becomes of other objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::anything")]
    pub basis: Option<serde_json::Value>,
    /// Which of the plan's pods ended well, by their position in it, such as `0-31,40`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<String>,
    /// What a Reserved plan waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Restarts within the recovery window, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<Restart>,
    /// Restarts since the gang was made.
    pub restarts_total: i64,
    /// Step of the last complete checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<i64>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Units, all roles.
    pub units: UnitCounts,
    /// Accelerators that the plan holds.
    #[schemars(with = "i32", range(min = 0))]
    pub gpus: u32,
    /// Why it is in this phase, in one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<GangResult>,
    /// When all pods of the first plan ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}
