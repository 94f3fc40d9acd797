//! From a training job's sizes to units, pods and segments, with every problem named by its field.
//!
//! ```text
//!   TrainingSpec ──check──▶ ranks::Layout::closure ──▶ r replicas a unit ──▶ pods, bounds, segments ──▶ Derived
//!                   └──▶ Vec<FieldError>
//! ```
//!
//! A pod holds a contiguous block of ranks. Replicas that share a pod or an expert group belong to one unit, so a job
//! changes its size in multiples of r replicas. A job that fits one pod is one unit, of one pod, and cannot be elastic.
//!
//! Refused are: sizes of 0; a tensor group that neither divides a pod nor is a whole number of pods; numbers of
//! replicas that would split a unit or an expert group; bounds that contradict `data`; worlds above [`MAX_RANKS`].

use muster_model::{Mode, Segment, topology::NVLINK_DOMAIN};
use std::fmt;

use crate::{
    launch::Framework,
    ranks::{Layout, RankOrder},
    segments,
};

/// Most ranks of a job. It bounds the work of [`derive`] and the digits in the names of pods.
pub const MAX_RANKS: u64 = 262_144;

const DATA: &str = "spec.parallelism.data";
const EXPERT: &str = "spec.parallelism.expert";
const PER_POD: &str = "spec.accelerator.perPod";

/// Sizes of the parallel axes; a world has tensor · pipeline · context · data ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parallelism {
    /// Tensor-parallel size.
    pub tensor: u32,
    /// Pipeline stages.
    pub pipeline: u32,
    /// Context-parallel size.
    pub context: u32,
    /// Expert-parallel size.
    pub expert: u32,
    /// Tensor-parallel size of the experts; whoever leaves it out means `tensor`.
    pub expert_tensor: u32,
    /// Data-parallel replicas.
    pub data: u32,
}

impl Default for Parallelism {
    fn default() -> Self {
        Self { tensor: 1, pipeline: 1, context: 1, expert: 1, expert_tensor: 1, data: 1 }
    }
}

impl Parallelism {
    /// Ranks of one replica in one stage: tensor · context.
    pub fn block_ranks(&self) -> u64 {
        u64::from(self.tensor) * u64::from(self.context)
    }

    /// Ranks of one replica: tensor · context · pipeline, saturating.
    pub fn replica_ranks(&self) -> u64 {
        self.block_ranks().saturating_mul(u64::from(self.pipeline))
    }

    /// Ranks of an expert group: expertTensor · expert.
    pub fn expert_group_ranks(&self) -> u64 {
        u64::from(self.expert_tensor) * u64::from(self.expert)
    }
}

/// Bounds on the number of data-parallel replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elastic {
    /// Fewest; default the smallest of `valid_data`, else `data`.
    pub min_data: Option<u32>,
    /// Most; default the largest of `valid_data`, else `data`.
    pub max_data: Option<u32>,
    /// The only valid numbers; empty: all multiples of a unit between the bounds.
    pub valid_data: Vec<u32>,
}

/// Blocks of ranks lie in one domain of `level` each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name of the topology level.
    pub level: String,
    /// Whether it binds.
    pub mode: Mode,
}

impl Rule {
    /// A rule from its parts.
    pub fn new(level: impl Into<String>, mode: Mode) -> Self {
        Self { level: level.into(), mode }
    }
}

/// Placement rules by axis; `None`: no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Each tensor group.
    pub tensor: Option<Rule>,
    /// Each expert group. Without effect where `expert` is 1.
    pub expert: Option<Rule>,
    /// Each tensor · context block.
    pub context: Option<Rule>,
    /// Each unit, all its stages.
    pub pipeline: Option<Rule>,
}

impl Default for Rules {
    /// NVIDIA's rule of thumb: tensor groups inside NVLink, experts where they fit, stages below one spine.
    fn default() -> Self {
        Self {
            tensor: Some(Rule::new(NVLINK_DOMAIN, Mode::Required)),
            expert: Some(Rule::new(NVLINK_DOMAIN, Mode::Preferred)),
            context: None,
            pipeline: Some(Rule::new("Block", Mode::Preferred)),
        }
    }
}

/// What a training job says of its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingSpec {
    /// Which rank order.
    pub framework: Framework,
    /// Sizes of the axes.
    pub parallelism: Parallelism,
    /// Other sizes at which it may run.
    pub elastic: Elastic,
    /// Accelerators, and so ranks, of a full pod. 0: pods of one rank without accelerators.
    pub gpus_per_pod: u32,
    /// Where groups must lie.
    pub rules: Rules,
    /// Nodes held to replace one that fails.
    pub spares: u32,
}

/// What is wrong with a field, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// Path, such as `spec.parallelism.expert`.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl FieldError {
    fn new(field: &str, message: String, remedy: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message, remedy: remedy.into() }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.message, self.remedy)
    }
}

impl std::error::Error for FieldError {}

/// A job in units and pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// Replicas in a unit (r).
    pub replicas_per_unit: u32,
    /// Pods in a unit.
    pub pods_per_unit: u32,
    /// Pods of a unit with consecutive ranks: those of one stage; the whole unit where it is a world of its own.
    pub pods_per_stage: u32,
    /// Ranks in a pod, at least 1.
    pub ranks_per_pod: u32,
    /// Accelerators in a pod; fewer than asked where the whole job needs fewer. 0: none.
    pub devices_per_pod: u32,
    /// Units at `parallelism.data`.
    pub units: u32,
    /// Fewest units.
    pub min_units: u32,
    /// Most units.
    pub max_units: u32,
    /// The only valid counts, ascending. Empty: all between the bounds.
    pub valid_units: Vec<u32>,
    /// Placement rules, sizes ascending and dividing each other and the unit.
    pub segments: Vec<Segment>,
    /// Spare pods' worth of nodes.
    pub spares: u32,
}

impl Derived {
    /// Ranks with so many units.
    pub fn world_size(&self, units: u32) -> u32 {
        units * self.pods_per_unit * self.ranks_per_pod
    }

    /// Replicas with so many units.
    pub fn data(&self, units: u32) -> u32 {
        units * self.replicas_per_unit
    }
}

/// The units, pods and segments of a job; or all that is wrong with it.
pub fn derive(spec: &TrainingSpec) -> Result<Derived, Vec<FieldError>> {
    let errors = check_sizes(spec);
    if !errors.is_empty() {
        return Err(errors);
    }
    let bounds = Bounds::of(spec);
    let errors = check_bounds(spec, &bounds);
    if !errors.is_empty() {
        return Err(errors);
    }
    let ranks_per_pod = spec.gpus_per_pod.max(1);
    let sizes = &spec.parallelism;
    if sizes.replica_ranks() * u64::from(bounds.max) <= u64::from(ranks_per_pod) && bounds.min == bounds.max {
        return Ok(one_pod(spec));
    }
    let replicas = replicas_per_unit(spec.framework, sizes, ranks_per_pod).map_err(|error| vec![error])?;
    let errors = check_multiples(spec, &bounds, replicas);
    if !errors.is_empty() {
        return Err(errors);
    }
    let unit_ranks = sizes.replica_ranks() * u64::from(replicas);
    let pods_per_unit = (unit_ranks / u64::from(ranks_per_pod)) as u32;
    let stages = if RankOrder::of(spec.framework).unit_worlds { 1 } else { sizes.pipeline };
    Ok(Derived {
        replicas_per_unit: replicas,
        pods_per_unit,
        pods_per_stage: pods_per_unit / stages,
        ranks_per_pod,
        devices_per_pod: spec.gpus_per_pod,
        units: sizes.data / replicas,
        min_units: bounds.valid.first().unwrap_or(&bounds.min) / replicas,
        max_units: bounds.valid.last().unwrap_or(&bounds.max) / replicas,
        valid_units: bounds.valid.iter().map(|data| data / replicas).collect(),
        segments: segments::of_unit(sizes, &spec.rules, unit_ranks, ranks_per_pod),
        spares: spec.spares,
    })
}

/// A job that fits one pod: one unit that holds all replicas.
fn one_pod(spec: &TrainingSpec) -> Derived {
    let data = spec.parallelism.data;
    let ranks = (spec.parallelism.replica_ranks() * u64::from(data)) as u32;
    Derived {
        replicas_per_unit: data,
        pods_per_unit: 1,
        pods_per_stage: 1,
        ranks_per_pod: ranks,
        devices_per_pod: if spec.gpus_per_pod == 0 { 0 } else { ranks },
        units: 1,
        min_units: 1,
        max_units: 1,
        valid_units: Vec::new(),
        segments: Vec::new(),
        spares: spec.spares,
    }
}

/// Size of the classes of replicas that share a pod or an expert group, from the framework's rank function.
fn replicas_per_unit(
    framework: Framework,
    sizes: &Parallelism,
    ranks_per_pod: u32,
) -> Result<u32, FieldError> {
    // The pattern of pods and groups over replicas repeats after so many of them, in every stage alike; the classes
    // are read off two periods.
    let (pod, block) = (u64::from(ranks_per_pod), sizes.block_ranks());
    let period = lcm(lcm(pod, sizes.expert_group_ranks()), block) / block;
    if period.saturating_mul(sizes.replica_ranks()) > MAX_RANKS {
        return Err(FieldError::new(
            EXPERT,
            format!(
                "expert groups of {} ranks, pods of {pod} and replicas of {} a stage share a boundary only after {} \
                 ranks a stage, more than a job can have",
                sizes.expert_group_ranks(),
                block,
                period.saturating_mul(block)
            ),
            format!("choose expert · expertTensor and {PER_POD} that divide tensor · context · data"),
        ));
    }
    let sample = Parallelism { data: 2 * period as u32, ..*sizes };
    let classes = Layout::new(framework, sample, 1).closure(ranks_per_pod);
    Ok(classes.iter().filter(|first| **first == 0).count() as u32)
}

/// The numbers of replicas at which a job may run.
struct Bounds {
    min: u32,
    max: u32,
    /// Ascending, without repetitions.
    valid: Vec<u32>,
}

impl Bounds {
    fn of(spec: &TrainingSpec) -> Self {
        let mut valid = spec.elastic.valid_data.clone();
        valid.sort_unstable();
        valid.dedup();
        let data = spec.parallelism.data;
        let min = spec.elastic.min_data.or(valid.first().copied()).unwrap_or(data);
        let max = spec.elastic.max_data.or(valid.last().copied()).unwrap_or(data);
        Self { min, max, valid }
    }
}

/// Sizes out of range, and tensor groups that lie askew in pods.
fn check_sizes(spec: &TrainingSpec) -> Vec<FieldError> {
    let sizes = &spec.parallelism;
    let fields = [
        ("spec.parallelism.tensor", sizes.tensor),
        ("spec.parallelism.pipeline", sizes.pipeline),
        ("spec.parallelism.context", sizes.context),
        (EXPERT, sizes.expert),
        ("spec.parallelism.expertTensor", sizes.expert_tensor),
        (DATA, sizes.data),
        (PER_POD, spec.gpus_per_pod.max(1)),
    ];
    let mut errors: Vec<FieldError> = fields
        .into_iter()
        .filter_map(|(field, size)| match u64::from(size) {
            0 => Some(FieldError::new(field, "the size is 0".into(), "set it to 1 or more")),
            size if size > MAX_RANKS => {
                let message = format!("{size} is more than a job may have ranks ({MAX_RANKS})");
                Some(FieldError::new(field, message, format!("set it to {MAX_RANKS} or less")))
            }
            _ => None,
        })
        .collect();
    if !errors.is_empty() {
        return errors;
    }
    let (tensor, pod) = (sizes.tensor, spec.gpus_per_pod.max(1));
    let fits_one = sizes.replica_ranks().saturating_mul(u64::from(sizes.data)) <= u64::from(pod);
    if !tensor.is_multiple_of(pod) && !pod.is_multiple_of(tensor) && !fits_one {
        let good = |size: u32| size.is_multiple_of(pod) || pod.is_multiple_of(size);
        let below = (1..tensor).rev().find(|size| good(*size)).unwrap_or(1);
        let above = (tensor..=tensor.next_multiple_of(pod)).find(|size| good(*size)).unwrap_or(pod);
        let per_pod =
            (1..=pod).rev().find(|g| tensor.is_multiple_of(*g) || g.is_multiple_of(tensor)).unwrap_or(1);
        errors.push(FieldError::new(
            "spec.parallelism.tensor",
            format!("tensor groups of {tensor} ranks would lie askew in pods of {pod}"),
            format!("set it to {below} or {above}, or {PER_POD} to {per_pod}"),
        ));
    }
    errors
}

/// Bounds that contradict each other or `data`, and worlds that are too large.
fn check_bounds(spec: &TrainingSpec, bounds: &Bounds) -> Vec<FieldError> {
    const MIN: &str = "spec.elastic.minData";
    const MAX: &str = "spec.elastic.maxData";
    const VALID: &str = "spec.elastic.validData";
    let data = spec.parallelism.data;
    let Bounds { min, max, valid } = bounds;
    let mut errors = Vec::new();
    if *min == 0 || valid.first() == Some(&0) {
        let field = if spec.elastic.min_data == Some(0) { MIN } else { VALID };
        errors.push(FieldError::new(field, "a job cannot run with 0 replicas".into(), "set it to 1 or more"));
    }
    if let Some(min) = spec.elastic.min_data.filter(|min| *min > data) {
        let message = format!("{min} is above parallelism.data ({data})");
        errors.push(FieldError::new(MIN, message, format!("lower it to {data} or less, or raise {DATA}")));
    }
    if let Some(max) = spec.elastic.max_data.filter(|max| *max < data) {
        let message = format!("{max} is below parallelism.data ({data})");
        errors.push(FieldError::new(MAX, message, format!("raise it to {data} or more, or lower {DATA}")));
    }
    if !valid.is_empty() {
        if !valid.contains(&data) {
            let message = format!("parallelism.data ({data}) is not among the valid numbers {valid:?}");
            errors.push(FieldError::new(VALID, message, format!("add {data}, or set {DATA} to one of them")));
        }
        let outside: Vec<u32> = valid.iter().copied().filter(|data| !(*min..=*max).contains(data)).collect();
        if !outside.is_empty() {
            let message = format!("{outside:?} lie outside minData..maxData ({min}..{max})");
            errors.push(FieldError::new(VALID, message, "remove them or widen the bounds"));
        }
    }
    let largest = (*max).max(data);
    let world = spec.parallelism.replica_ranks().saturating_mul(u64::from(largest));
    if world > MAX_RANKS {
        let field = if largest > data { MAX } else { DATA };
        let most = MAX_RANKS / spec.parallelism.replica_ranks().max(1);
        let (field, remedy) = match most {
            0 => ("spec.parallelism", "make tensor · context · pipeline smaller".to_owned()),
            most => (field, format!("lower it to {most} or less")),
        };
        errors.push(FieldError::new(field, format!("{world} ranks are more than {MAX_RANKS}"), remedy));
    }
    errors
}

/// Numbers of replicas that split a unit.
fn check_multiples(spec: &TrainingSpec, bounds: &Bounds, replicas: u32) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let sizes = &spec.parallelism;
    if !sizes.data.is_multiple_of(replicas) {
        errors.push(split_data(spec, replicas));
    }
    // A bound that only repeats `data` has been dealt with.
    let mut bound = |field: &str, data: u32| {
        if data != sizes.data && !data.is_multiple_of(replicas) {
            let message = format!("{data} would split a unit: {replicas} replicas share {}", what(spec));
            errors.push(FieldError::new(field, message, format!("set it to {}", nearest(data, replicas))));
        }
    };
    if let Some(min) = spec.elastic.min_data {
        bound("spec.elastic.minData", min);
    }
    if let Some(max) = spec.elastic.max_data {
        bound("spec.elastic.maxData", max);
    }
    for data in &bounds.valid {
        bound("spec.elastic.validData", *data);
    }
    errors
}

/// `data` is no multiple of a unit: the expert grid is to blame if it does not divide the stage, else the pods.
fn split_data(spec: &TrainingSpec, replicas: u32) -> FieldError {
    let sizes = &spec.parallelism;
    let (stage, group) = (sizes.block_ranks() * u64::from(sizes.data), sizes.expert_group_ranks());
    let data = nearest(sizes.data, replicas);
    if !stage.is_multiple_of(group) {
        let message = format!(
            "expert groups of expertTensor · expert = {} · {} = {group} ranks do not divide a stage of tensor · context · \
             data = {stage} ranks",
            sizes.expert_tensor, sizes.expert
        );
        let remedy = if sizes.expert_tensor > 1 && stage.is_multiple_of(u64::from(sizes.expert)) {
            format!("set spec.parallelism.expertTensor to 1 (it defaults to tensor), or {DATA} to {data}")
        } else {
            format!("set {DATA} to {data}, or make expert · expertTensor a divisor of {stage}")
        };
        return FieldError::new(EXPERT, message, remedy);
    }
    let message =
        format!("{} replicas would split a unit: {replicas} of them share {}", sizes.data, what(spec));
    // The most accelerators a pod with which this `data` is whole.
    let whole = |g: &u32| {
        let ranks = if RankOrder::of(spec.framework).unit_worlds {
            sizes.replica_ranks()
        } else {
            sizes.block_ranks()
        };
        (ranks * u64::from(sizes.data)).is_multiple_of(u64::from(*g))
            && (sizes.tensor.is_multiple_of(*g) || g.is_multiple_of(sizes.tensor))
    };
    let per_pod = (1..=spec.gpus_per_pod).rev().find(whole).filter(|g| *g < spec.gpus_per_pod);
    let other = per_pod.map_or(String::new(), |g| format!(", or {PER_POD} to {g}"));
    FieldError::new(DATA, message, format!("set it to {data}{other}"))
}

fn what(spec: &TrainingSpec) -> &'static str {
    if spec.parallelism.expert_group_ranks() > spec.parallelism.block_ranks() {
        "pods or expert groups"
    } else {
        "pods"
    }
}

/// The nearest multiples around a value, in words.
fn nearest(value: u32, of: u32) -> String {
    let above = u64::from(value).next_multiple_of(u64::from(of));
    match value / of * of {
        0 => above.to_string(),
        below => format!("{below} or {above}"),
    }
}

pub(crate) fn lcm(a: u64, b: u64) -> u64 {
    (a / gcd(a, b)).saturating_mul(b)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
