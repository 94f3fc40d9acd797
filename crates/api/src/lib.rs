//! The custom resources of muster.dev, their labels and conditions.
//!
//! ```text
//!   YAML ──▶ API server (schema and CEL rules of `all_crds`) ──▶ these types ──▶ cluster, controllers, cli
//! ```
//!
//! `crds/*.yaml` is generated from here: `cargo run -p muster-api --example crds`.

#![allow(clippy::duplicated_attributes, reason = "two printer columns of one type are not duplicates")]

pub mod accelerator_class;
pub mod catalogue;
pub mod common;
pub mod condition;
pub mod crds;
pub mod duration;
pub mod gang;
pub mod gang_plan;
pub mod inference_service;
pub mod labels;
pub mod names;
pub mod node_partition;
pub mod plan_codec;
pub mod pod_template;
pub mod queue;
pub mod rules;
pub mod schema;
pub mod template;
pub mod topology;
pub mod training_job;
pub mod word;

pub use accelerator_class::{AcceleratorClass, AcceleratorClassSpec};
pub use common::{Accelerator, Framework, Parallelism, PlacementRule, Recovery, RecoveryStep, UnitCounts};
pub use crds::all_crds;
pub use duration::Duration;
pub use gang::{
    Gang, GangOutcome, GangPhase, GangSpec, GangStatus, Launch, OutcomePolicy, RoleSpec, UnitBounds,
};
pub use gang_plan::{GangPlan, GangPlanSpec};
pub use inference_service::{InferenceService, InferenceServiceSpec};
pub use node_partition::{NodePartition, NodePartitionSpec};
pub use plan_codec::PlanStatus;
pub use pod_template::{PodTemplate, TemplateError};
pub use queue::{Queue, QueueSpec};
pub use topology::{Topology, TopologySpec};
pub use training_job::{JobPhase, Outcome, TrainingJob, TrainingJobSpec, TrainingJobStatus};
pub use word::Word;
