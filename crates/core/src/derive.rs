//! From a TrainingJob's specification to the numbers of its gang, with every problem named by its field.
//!
//! ```text
//!   TrainingJobSpec + World (classes, nodes seen) ──derive──▶ Derived, or Problems ──▶ condition Valid=False
//! ```

use muster_api::{
    AcceleratorClassSpec, Framework, GangOutcome, GangSpec, Launch, Outcome as JobOutcome, OutcomePolicy,
    PlacementRule, PodTemplate, RoleSpec, TrainingJobSpec, UnitBounds, common::first_revision,
};
use muster_cluster::template::{self, Review, devices};
use muster_lifecycle::parallelism::{self, Elastic, Rule, Rules, TrainingSpec};
use muster_model::{Mode, Reason, Segment, topology::NVLINK_DOMAIN};
use std::fmt;

use crate::World;
use crate::launch;

/// Name of the one role of a training job.
pub const ROLE: &str = "worker";

/// What is wrong with a field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path, such as `spec.queue`.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Problem {
    /// A problem.
    pub fn new(field: &str, message: String, remedy: &str) -> Self {
        Self { field: field.to_owned(), message, remedy: remedy.to_owned() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.message, self.remedy)
    }
}

/// All that is wrong, as one sentence.
pub fn sentence(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The numbers of a job's gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Accelerator classes as the job names them; empty for any.
    pub classes: Vec<String>,
    /// Most accelerators of a pod, from which the pods' size was derived.
    pub per_pod: u32,
    /// Accelerators of one pod.
    pub devices: u32,
    /// Data-parallel replicas in a unit.
    pub replicas_per_unit: u32,
    /// Pods in a unit.
    pub pods_per_unit: u32,
    /// Pods of one pipeline stage of a unit.
    pub pods_per_stage: u32,
    /// Fewest units.
    pub min: u32,
    /// Most units.
    pub max: u32,
    /// The valid numbers of units; empty for all.
    pub valid: Vec<u32>,
    /// Placement rules.
    pub segments: Vec<Segment>,
}

/// What the job's pods ask that cannot be enforced, and what is only noted.
pub fn review(spec: &TrainingJobSpec) -> Review {
    template::review_template("spec.template", &spec.template)
}

/// Field of a TrainingJob that a field of its Gang comes from: its user has written no other.
pub fn field_of_job(field: &str) -> String {
    const FIELDS: [(&str, &str); 7] = [
        ("spec.roles[0].template", "spec.template"),
        ("spec.roles[0].devices", "spec.accelerator.perPod"),
        ("spec.roles[0].container", "spec.accelerator.container"),
        ("spec.roles[0].segments", "spec.placement"),
        ("spec.classes", "spec.accelerator.classes"),
        ("spec.within", "spec.placement.job"),
        ("spec.launch.framework", "spec.framework"),
    ];
    let of = |(gang, job): &(&str, &str)| field.strip_prefix(gang).map(|rest| format!("{job}{rest}"));
    FIELDS.iter().find_map(of).unwrap_or_else(|| field.to_owned())
}

/// A sentence about the gang in the words of the job: what is invalid is named by the field that the user has.
pub fn in_words_of_job(reason: Option<&str>, message: &str) -> String {
    match message.split_once(':') {
        Some((field, rest)) if reason == Some("Invalid") => format!("{}:{rest}", field_of_job(field)),
        _ => message.to_owned(),
    }
}

/// Derives, and adds what is wrong to `problems`. `frozen`: the [`Derived::per_pod`] from which a plan in force was
/// derived; then nodes that came or went since change nothing.
pub fn derive(
    spec: &TrainingJobSpec,
    world: &World,
    frozen: Option<u32>,
    problems: &mut Vec<Problem>,
) -> Option<Derived> {
    if let Some(problem) = newer(spec) {
        problems.push(problem);
        return None;
    }
    let derived = numbers(spec, world, frozen, problems);
    let refused = review(spec).refused.into_iter();
    problems.extend(refused.chain(accelerators(spec, world, derived.as_ref())).filter_map(|reason| {
        match reason {
            Reason::Invalid { field, message, remedy } => Some(Problem { field, message, remedy }),
            _ => None,
        }
    }));
    derived
}

/// A word of a newer version of Muster.
fn newer(spec: &TrainingJobSpec) -> Option<Problem> {
    let (field, word) = match (spec.framework, spec.outcome) {
        (Framework::Unknown(word), _) => ("spec.framework", word),
        (_, JobOutcome::Unknown(word)) => ("spec.outcome", word),
        _ => return None,
    };
    let message = format!("{word:?} is not known to this version of Muster");
    Some(Problem::new(field, message, "use a word that it knows (see kubectl explain), or a newer version"))
}

/// What is wrong with the accelerators that the template itself asks for.
fn accelerators(spec: &TrainingJobSpec, world: &World, derived: Option<&Derived>) -> Option<Reason> {
    let names = allowed(spec, world);
    let classes = names.iter().filter_map(|name| world.class(name));
    let resources = classes.map(|class| class.resource.as_str()).collect();
    let fields = devices::Fields {
        spec: "spec.template.spec",
        devices: "spec.accelerator.perPod",
        container: "spec.accelerator.container",
        classes: "spec.accelerator.classes",
    };
    let pod = spec.template.spec.clone().unwrap_or_default();
    let container = spec.accelerator.container.as_deref();
    devices::total(&fields, &pod, container, derived?.devices, &resources).err()
}

fn numbers(
    spec: &TrainingJobSpec,
    world: &World,
    frozen: Option<u32>,
    problems: &mut Vec<Problem>,
) -> Option<Derived> {
    let classes = classes(spec, world, problems)?;
    let per_pod = spec.accelerator.per_pod.or(frozen).or_else(|| {
        // Pods must fit the smallest of the allowed nodes.
        classes.iter().map(|(_, class)| world.gpus_per_node(class)).min()
    });
    let Some(gpus_per_pod) = per_pod else {
        problems.push(Problem::new(
            "spec.accelerator",
            "names no class, and no node of the cluster has an accelerator that is known".into(),
            "name a class in spec.accelerator.classes, or set spec.accelerator.perPod",
        ));
        return None;
    };
    if frozen.is_none() {
        check_nvlink(spec, &classes, world, problems);
    }
    let elastic = spec.elastic.clone().unwrap_or_default();
    let rule = |rule: &PlacementRule| Rule { level: rule.within.clone(), mode: rule.mode };
    let training = TrainingSpec {
        framework: launch::framework(spec.framework),
        parallelism: launch::parallelism(&spec.parallelism),
        elastic: Elastic {
            min_data: elastic.min_data,
            max_data: elastic.max_data,
            valid_data: elastic.valid_data,
        },
        gpus_per_pod,
        rules: Rules {
            tensor: Some(rule(&spec.placement.tensor)),
            expert: Some(rule(&spec.placement.expert)),
            context: spec.placement.context.as_ref().map(rule),
            pipeline: Some(rule(&spec.placement.pipeline)),
        },
        spares: spec.placement.spares,
    };
    match parallelism::derive(&training) {
        Ok(derived) => Some(Derived {
            classes: spec.accelerator.classes.clone(),
            per_pod: gpus_per_pod,
            devices: derived.devices_per_pod,
            replicas_per_unit: derived.replicas_per_unit,
            pods_per_unit: derived.pods_per_unit,
            pods_per_stage: derived.pods_per_stage,
            min: derived.min_units,
            max: derived.max_units,
            valid: derived.valid_units,
            segments: derived.segments,
        }),
        Err(errors) => {
            problems.extend(errors.into_iter().map(|error| Problem {
                field: error.field,
                message: error.message,
                remedy: error.remedy,
            }));
            None
        }
    }
}

/// The classes that the job may use: those it names, or those that the cluster has.
fn allowed(spec: &TrainingJobSpec, world: &World) -> Vec<String> {
    if spec.accelerator.classes.is_empty() {
        world.classes_present()
    } else {
        spec.accelerator.classes.clone()
    }
}

/// These classes, all of which must exist.
fn classes<'a>(
    spec: &TrainingJobSpec,
    world: &'a World,
    problems: &mut Vec<Problem>,
) -> Option<Vec<(String, &'a AcceleratorClassSpec)>> {
    let (mut found, before) = (Vec::new(), problems.len());
    for (at, name) in allowed(spec, world).into_iter().enumerate() {
        if let Some(class) = world.class(&name) {
            found.push((name, class));
        } else {
            problems.push(Problem::new(
                &format!("spec.accelerator.classes[{at}]"),
                format!("AcceleratorClass {name:?} does not exist"),
                &format!("create it or use one of {}", world.class_names().join(", ")),
            ));
        }
    }
    (problems.len() == before).then_some(found)
}

/// A tensor-parallel group that must lie in one NVLink domain has to fit one of some allowed class.
fn check_nvlink(
    spec: &TrainingJobSpec,
    classes: &[(String, &AcceleratorClassSpec)],
    world: &World,
    problems: &mut Vec<Problem>,
) {
    let rule = &spec.placement.tensor;
    if rule.mode != Mode::Required || rule.within != NVLINK_DOMAIN || classes.is_empty() {
        return;
    }
    let domain = |class: &AcceleratorClassSpec| world.gpus_per_node(class).saturating_mul(class.nvlink_nodes);
    let largest = classes.iter().max_by_key(|(_, class)| domain(class));
    if let Some((name, class)) = largest
        && spec.parallelism.tensor > domain(class)
    {
        problems.push(Problem::new(
            "spec.parallelism.tensor",
            format!(
                "is {}, but the largest NVLink domain of the allowed classes has {} accelerators ({name})",
                spec.parallelism.tensor,
                domain(class)
            ),
            "lower it, allow a class with larger domains, or set spec.placement.tensor.mode: Preferred",
        ));
    }
}

/// The gang that a job comes to.
pub fn gang_spec(spec: &TrainingJobSpec, derived: Derived) -> GangSpec {
    // The grace period is the time for a last checkpoint. It may change while the job runs, the template may not.
    let grace = spec.checkpoint.grace.millis().unwrap_or(30_000);
    GangSpec {
        queue: spec.queue.clone(),
        priority_class_name: spec.priority_class_name.clone(),
        classes: derived.classes,
        roles: vec![RoleSpec {
            name: ROLE.into(),
            template: PodTemplate::from(&spec.template),
            revision: first_revision(),
            revisions: Vec::new(),
            termination_grace_period_seconds: Some((grace + 999) / 1000),
            devices: derived.devices,
            container: spec.accelerator.container.clone(),
            pods_per_unit: derived.pods_per_unit,
            units: UnitBounds { min: derived.min, max: derived.max, valid: derived.valid },
            segments: derived.segments,
            spares: spec.placement.spares,
        }],
        within: spec
            .placement
            .job
            .as_ref()
            .map(|rule| muster_model::Within { level: rule.within.clone(), mode: rule.mode }),
        rules: muster_model::Rules::default(),
        launch: Launch {
            framework: spec.framework,
            parallelism: spec.parallelism.clone(),
            replicas_per_unit: derived.replicas_per_unit,
            pods_per_stage: derived.pods_per_stage,
            ..Launch::default()
        },
        recovery: spec.recovery.clone(),
        outcome: GangOutcome {
            policy: match spec.outcome {
                JobOutcome::Rank0 => OutcomePolicy::Pod,
                JobOutcome::AllRanks => OutcomePolicy::All,
                JobOutcome::Unknown(word) => OutcomePolicy::Unknown(word),
            },
            ..GangOutcome::default()
        },
        suspend: spec.suspend,
    }
}
