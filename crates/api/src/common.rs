//! Pieces that several kinds share.

use muster_model::Mode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{duration::Duration, word::Word};

/// API group of every kind.
pub const GROUP: &str = "muster.dev";
/// Version of every kind.
pub const VERSION: &str = "v1alpha1";
/// The queue of objects that name none.
pub const DEFAULT_QUEUE: &str = "default";
/// Port on which rank 0 listens for the other ranks (PyTorch's default).
pub const DEFAULT_PORT: u16 = 29_500;
/// Most restarts that a budget may allow: the status keeps each that is within the window, about 100 bytes a restart.
pub const MAX_RESTARTS: u32 = 1_000;
/// Most ranks of a job and most pods of a gang. It bounds the digits in the names of pods.
pub const MAX_RANKS: u32 = 262_144;

pub(crate) fn default_queue() -> String {
    DEFAULT_QUEUE.to_owned()
}

/// Name of the template that a role begins with.
pub fn first_revision() -> String {
    "1".into()
}

pub(crate) fn one() -> u32 {
    1
}

/// Which environment the pods get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Framework {
    /// torchrun (PyTorch elastic): `PET_*`; one launcher a pod starts a process a rank.
    #[default]
    Torchrun,
    /// Megatron-LM and NeMo: torchrun's environment and the parallel sizes.
    Megatron,
    /// DeepSpeed: a hostfile and a headless Service besides torchrun's environment.
    DeepSpeed,
    /// torchft: `TORCHFT_LIGHTHOUSE` and replica groups; units come and go without a restart of the others.
    TorchFT,
    /// MPI: a hostfile and a headless Service; rank 0 runs mpirun.
    Mpi,
    /// Nothing but Muster's own `MUSTER_*` variables.
    Plain,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// Accelerators of a job's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Accelerator {
    /// Names of AcceleratorClasses, best first: the first that fits is taken, and one unit never mixes two.
    /// Empty: any class that the cluster has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub classes: Vec<String>,
    /// Accelerators, and so ranks, of one pod. Default: all of a node's. 0: pods without accelerators, one rank each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 0, max = 256))]
    pub per_pod: Option<u32>,
    /// Name of the container that gets them. Default: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub container: Option<String>,
}

/// Sizes of the parallel axes. The world has tensor · pipeline · context · data ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::PARALLELISM)))]
pub struct Parallelism {
    /// Tensor-parallel size: neighbouring ranks that exchange activations in every layer.
    #[schemars(with = "i32", range(min = 1, max = 4096))]
    pub tensor: u32,
    /// Pipeline stages.
    #[schemars(with = "i32", range(min = 1, max = 4096))]
    pub pipeline: u32,
    /// Context-parallel size.
    #[schemars(with = "i32", range(min = 1, max = 4096))]
    pub context: u32,
    /// Expert-parallel size: the experts of a mixture are spread over so many groups of ranks.
    #[schemars(with = "i32", range(min = 1, max = 4096))]
    pub expert: u32,
    /// Tensor-parallel size of the experts. Default: `tensor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 1, max = 4096))]
    pub expert_tensor: Option<u32>,
    /// Data-parallel replicas.
    #[schemars(with = "i32", range(min = 1, max = 65536))]
    pub data: u32,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self { tensor: 1, pipeline: 1, context: 1, expert: 1, expert_tensor: None, data: 1 }
    }
}

impl Parallelism {
    /// Ranks of the whole job, saturating.
    pub fn world(&self) -> u32 {
        self.replica().saturating_mul(self.data)
    }

    /// Ranks of one data-parallel replica, saturating.
    pub fn replica(&self) -> u32 {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.context)
    }

    /// Tensor-parallel size of the experts, the default applied.
    pub fn expert_tensor(&self) -> u32 {
        self.expert_tensor.unwrap_or(self.tensor)
    }
}

/// A placement rule: each block lies in one domain of a topology level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRule {
    /// Topology level, such as NvlinkDomain, Rack, Block or Node.
    #[schemars(length(min = 1, max = 63))]
    pub within: String,
    /// Required: no placement breaks it. Preferred: placements that break fewer blocks are better.
    #[serde(default = "required")]
    #[schemars(schema_with = "crate::schema::mode")]
    pub mode: Mode,
}

fn required() -> Mode {
    Mode::Required
}

impl PlacementRule {
    /// A rule from its two parts.
    pub fn new(within: &str, mode: Mode) -> Self {
        Self { within: within.to_owned(), mode }
    }
}

/// A rung of the recovery ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum RecoveryStep {
    /// The same nodes, new pods.
    RestartInPlace,
    /// Other nodes for the lost units: a spare, then free capacity of the same domain, then any.
    ReplaceNode,
    /// The next smaller valid size on what is left.
    Shrink,
    /// Give everything back and wait in the queue for a whole placement.
    Requeue,
    /// A word of a newer version.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// What is done after a loss, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = crate::rules::json(crate::rules::RECOVERY)))]
pub struct Recovery {
    /// Rungs in the order in which they are tried. Empty: the first loss fails the job.
    #[schemars(length(max = 4))]
    pub ladder: Vec<RecoveryStep>,
    /// Restarts within `window` after which the job fails. Restarts that are no fault of the job (preemption, a node
    /// that never started the pod) do not count.
    #[schemars(with = "i32", range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// The sliding window in which restarts are counted.
    pub window: Duration,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            ladder: vec![
                RecoveryStep::RestartInPlace,
                RecoveryStep::ReplaceNode,
                RecoveryStep::Shrink,
                RecoveryStep::Requeue,
            ],
            max_restarts: 20,
            window: "24h".into(),
        }
    }
}

/// How many units there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UnitCounts {
    /// Units that the specification asks for.
    #[schemars(with = "i32", range(min = 0))]
    pub desired: u32,
    /// Units that the plan in force places.
    #[schemars(with = "i32", range(min = 0))]
    pub planned: u32,
    /// Units whose pods are all running.
    #[schemars(with = "i32", range(min = 0))]
    pub ready: u32,
    /// `ready/desired`, for people.
    pub summary: String,
}

impl UnitCounts {
    /// Counts with their summary.
    pub fn new(desired: u32, planned: u32, ready: u32) -> Self {
        Self { desired, planned, ready, summary: format!("{ready}/{desired}") }
    }
}
