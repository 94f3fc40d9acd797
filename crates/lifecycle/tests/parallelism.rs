//! The layout of jobs: rank orders, units, segments and refusals.

use muster_lifecycle::Framework;
use muster_lifecycle::parallelism::{
    Derived, Elastic, FieldError, MAX_RANKS, Parallelism, Rule, Rules, TrainingSpec, derive,
};
use muster_lifecycle::ranks::{Coordinates, Layout};
use muster_model::{Mode, Segment};
use proptest::prelude::*;

const FRAMEWORKS: [Framework; 6] = [
    Framework::Torchrun,
    Framework::Megatron,
    Framework::DeepSpeed,
    Framework::TorchFT,
    Framework::Mpi,
    Framework::Plain,
];

/// tensor, pipeline, context, expert, expertTensor, data.
fn sizes(s: [u32; 6]) -> Parallelism {
    let [tensor, pipeline, context, expert, expert_tensor, data] = s;
    Parallelism { tensor, pipeline, context, expert, expert_tensor, data }
}

fn spec(s: [u32; 6], gpus_per_pod: u32) -> TrainingSpec {
    TrainingSpec {
        framework: Framework::Megatron,
        parallelism: sizes(s),
        gpus_per_pod,
        ..TrainingSpec::default()
    }
}

fn elastic(mut spec: TrainingSpec, min: u32, max: u32, valid: &[u32]) -> TrainingSpec {
    let some = |value: u32| (value > 0).then_some(value);
    spec.elastic = Elastic { min_data: some(min), max_data: some(max), valid_data: valid.to_vec() };
    spec
}

fn ok(spec: &TrainingSpec) -> Derived {
    derive(spec).unwrap_or_else(|errors| panic!("{spec:?}: {errors:?}"))
}

fn refused(spec: &TrainingSpec) -> Vec<FieldError> {
    match derive(spec) {
        Ok(derived) => panic!("{spec:?} became {derived:?}"),
        Err(errors) => errors,
    }
}

fn segments(of: &Derived) -> Vec<(u32, &str, Mode)> {
    of.segments.iter().map(|segment| (segment.pods, segment.level.as_str(), segment.mode)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u64, b: u64) -> u64 {
    a / gcd(a, b) * b
}

/// r by arithmetic, which the code derives from the rank function.
fn expected_replicas(framework: Framework, s: &Parallelism, g: u64) -> u64 {
    let block = s.block_ranks();
    let experts = lcm(block, s.expert_group_ranks()) / block;
    let pods = match framework {
        // Replica groups are worlds of their own: a pod covers all stages of a replica.
        Framework::TorchFT => lcm(s.replica_ranks(), g) / s.replica_ranks(),
        _ => lcm(block, g) / block,
    };
    lcm(experts, pods)
}

#[test]
fn the_example_of_the_design() {
    let derived = ok(&elastic(spec([8, 4, 1, 8, 1, 4], 8), 2, 8, &[]));
    assert_eq!((derived.replicas_per_unit, derived.pods_per_unit, derived.pods_per_stage), (1, 4, 1));
    assert_eq!((derived.units, derived.min_units, derived.max_units), (4, 2, 8));
    assert_eq!(derived.world_size(4), 128);
    // Tensor and expert groups lie in one pod each; the unit is wished into one block.
    assert_eq!(segments(&derived), [(4, "Block", Mode::Preferred)]);
}

#[test]
fn units() {
    // axes, GPUs a pod → replicas a unit, pods a unit, pods a stage
    let cases = [
        ([8, 1, 1, 1, 8, 4], 8, (1, 1, 1)),
        ([4, 2, 1, 1, 4, 8], 8, (2, 2, 1)),
        ([2, 2, 1, 1, 2, 8], 8, (4, 2, 1)),
        ([1, 1, 1, 1, 1, 64], 8, (8, 1, 1)),
        ([16, 2, 1, 1, 16, 3], 8, (1, 4, 2)),
        // Expert groups of 64 ranks span 8 replicas.
        ([8, 2, 1, 8, 8, 8], 8, (8, 16, 8)),
        ([8, 1, 2, 32, 1, 4], 4, (2, 8, 8)),
        // Pods of four hold a third of a replica of 12 ranks.
        ([4, 1, 3, 1, 4, 2], 8, (2, 3, 3)),
        // No accelerators: one rank a pod.
        ([1, 1, 1, 1, 1, 5], 0, (1, 1, 1)),
    ];
    for (axes, per_pod, expected) in cases {
        let derived = ok(&spec(axes, per_pod));
        let got = (derived.replicas_per_unit, derived.pods_per_unit, derived.pods_per_stage);
        assert_eq!(got, expected, "{axes:?} in pods of {per_pod}");
        assert_eq!(derived.devices_per_pod, per_pod);
    }
}

#[test]
fn a_replica_group_of_torchft_needs_no_neighbours_in_its_pods() {
    let of = |framework| ok(&TrainingSpec { framework, ..spec([2, 4, 1, 1, 2, 8], 8) });
    let (group, grid) = (of(Framework::TorchFT), of(Framework::Megatron));
    assert_eq!((group.replicas_per_unit, group.pods_per_unit, group.pods_per_stage), (1, 1, 1));
    assert_eq!((grid.replicas_per_unit, grid.pods_per_unit, grid.pods_per_stage), (4, 4, 1));
}

#[test]
fn a_job_that_fits_one_pod_is_one_unit_of_its_own_size() {
    let derived = ok(&spec([3, 1, 1, 1, 3, 2], 8));
    assert_eq!((derived.replicas_per_unit, derived.pods_per_unit, derived.units), (2, 1, 1));
    assert_eq!((derived.ranks_per_pod, derived.devices_per_pod, derived.world_size(1)), (6, 6, 6));
    assert!(derived.segments.is_empty());
}

#[test]
fn bounds_in_units() {
    let derived = ok(&elastic(spec([4, 1, 1, 1, 4, 4], 8), 0, 0, &[8, 4, 2, 4]));
    assert_eq!(
        (derived.min_units, derived.max_units, derived.valid_units.as_slice()),
        (1, 4, [1, 2, 4].as_slice())
    );
    let derived = ok(&elastic(spec([4, 1, 1, 1, 4, 4], 8), 2, 0, &[]));
    assert_eq!((derived.min_units, derived.units, derived.max_units), (1, 2, 2));
    assert!(derived.valid_units.is_empty());
}

#[test]
fn refusals_name_the_field_and_the_nearest_remedy() {
    // what → field, part of the remedy
    let base = [8, 1, 1, 1, 8, 4];
    let cases: Vec<(TrainingSpec, &str, &str)> = vec![
        (spec([0, 1, 1, 1, 8, 4], 8), "spec.parallelism.tensor", "1 or more"),
        (spec([8, 1, 1, 1, 8, 0], 8), "spec.parallelism.data", "1 or more"),
        (spec([6, 1, 1, 1, 6, 4], 8), "spec.parallelism.tensor", "4 or 8, or spec.accelerator.perPod to 6"),
        (
            spec([12, 1, 1, 1, 12, 4], 8),
            "spec.parallelism.tensor",
            "8 or 16, or spec.accelerator.perPod to 6",
        ),
        (spec([2, 1, 1, 1, 2, 6], 8), "spec.parallelism.data", "4 or 8, or spec.accelerator.perPod to 6"),
        (
            spec([1, 4, 1, 1, 1, 4], 8),
            "spec.parallelism.data",
            "set it to 8, or spec.accelerator.perPod to 4",
        ),
        // The trap of the default: experts of tensor size 8 need 64 ranks a group.
        (spec([8, 1, 1, 8, 8, 4], 8), "spec.parallelism.expert", "spec.parallelism.expertTensor to 1"),
        (spec([8, 1, 1, 64, 1, 4], 8), "spec.parallelism.expert", "spec.parallelism.data to 8"),
        (elastic(spec([4, 1, 1, 1, 4, 4], 8), 3, 0, &[]), "spec.elastic.minData", "2 or 4"),
        (elastic(spec([4, 1, 1, 1, 4, 4], 8), 0, 7, &[]), "spec.elastic.maxData", "6 or 8"),
        (elastic(spec([4, 1, 1, 1, 4, 4], 8), 0, 0, &[3, 4]), "spec.elastic.validData", "2 or 4"),
        (elastic(spec(base, 8), 5, 0, &[]), "spec.elastic.minData", "4 or less"),
        (elastic(spec(base, 8), 0, 3, &[]), "spec.elastic.maxData", "4 or more"),
        (elastic(spec(base, 8), 0, 0, &[2, 8]), "spec.elastic.validData", "add 4"),
        (elastic(spec(base, 8), 2, 8, &[4, 16]), "spec.elastic.validData", "widen"),
        (elastic(spec(base, 8), 0, 0, &[0, 4]), "spec.elastic.validData", "1 or more"),
        (elastic(spec(base, 8), 0, 40_000, &[]), "spec.elastic.maxData", "32768 or less"),
        (spec([8, 1, 1, 1, 8, 40_000], 8), "spec.parallelism.data", "32768 or less"),
        (spec([u32::MAX, 1, 1, 1, 8, 4], 8), "spec.parallelism.tensor", "262144 or less"),
        (spec(base, u32::MAX), "spec.accelerator.perPod", "262144 or less"),
        (spec([4096, 4096, 4096, 1, 1, 1], 8), "spec.parallelism", "smaller"),
    ];
    for (spec, field, remedy) in cases {
        let errors = refused(&spec);
        let found = errors.iter().any(|error| error.field == field && error.remedy.contains(remedy));
        assert!(found, "{field} ({remedy}) for {spec:?}: {errors:#?}");
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let errors = refused(&elastic(spec([4, 1, 1, 1, 4, 5], 8), 3, 7, &[]));
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.parallelism.data", "spec.elastic.minData", "spec.elastic.maxData"]);
}

#[test]
fn a_grid_that_no_job_can_hold_is_refused_in_words() {
    let errors = refused(&spec([8, 1, 1, 4093, 4091, 8], 8));
    assert_eq!(errors[0].field, "spec.parallelism.expert", "{errors:?}");
}

#[test]
fn segments_nest() {
    let rule = |level: &str, mode| Some(Rule::new(level, mode));
    let (required, preferred) = (Mode::Required, Mode::Preferred);
    let with = |axes, per_pod, rules: Rules| ok(&TrainingSpec { rules, ..spec(axes, per_pod) });
    let defaults = Rules::default();
    // Racks of NVLink with pods of four: tensor 2 pods, experts 8 pods, the unit 32.
    let derived = with([8, 4, 1, 32, 1, 4], 4, defaults.clone());
    let expected = [(2, "NvlinkDomain", required), (8, "NvlinkDomain", preferred), (32, "Block", preferred)];
    assert_eq!(segments(&derived), expected);
    // A Required block implies the smaller ones at its level.
    let rules = Rules { expert: rule("NvlinkDomain", required), ..defaults.clone() };
    let derived = with([8, 4, 1, 32, 1, 4], 4, rules);
    assert_eq!(segments(&derived), [(8, "NvlinkDomain", required), (32, "Block", preferred)]);
    // Equal sizes at one level are one rule, the stricter; at two levels they stay two.
    let rules = Rules {
        context: rule("NvlinkDomain", preferred),
        pipeline: rule("Rack", required),
        ..defaults.clone()
    };
    let derived = with([8, 1, 1, 1, 8, 4], 4, rules);
    assert_eq!(segments(&derived), [(2, "NvlinkDomain", required), (2, "Rack", required)]);
    // Replicas of 12 ranks in pods of 8 do not end with a pod: the block grows to 24 ranks.
    let rules = Rules { context: rule("Rack", required), pipeline: None, ..defaults.clone() };
    let derived = with([4, 2, 3, 1, 4, 2], 8, rules);
    assert_eq!(segments(&derived), [(3, "Rack", required)]);
    // Experts of 24 ranks over tensor groups of 16: grown to 48, so that sizes divide.
    let derived = with([16, 1, 1, 24, 1, 6], 8, Rules { pipeline: None, ..defaults.clone() });
    assert_eq!(segments(&derived), [(2, "NvlinkDomain", required), (6, "NvlinkDomain", preferred)]);
    // Groups inside a pod, or one pod: nothing to say.
    let derived = with([4, 1, 2, 1, 4, 2], 8, Rules { context: rule("Node", required), ..defaults });
    assert_eq!(segments(&derived), []);
}

#[test]
fn ranks_of_megatron_by_hand() {
    let layout = Layout::new(Framework::Megatron, sizes([2, 2, 2, 1, 2, 3]), 1);
    let at = |tensor, context, data, pipeline| Coordinates { tensor, context, data, pipeline };
    // rank = p·(tp·cp·dp) + d·(tp·cp) + c·tp + t
    for (place, rank) in [
        (at(1, 0, 0, 0), 1),
        (at(0, 1, 0, 0), 2),
        (at(0, 0, 1, 0), 4),
        (at(0, 0, 0, 1), 12),
        (at(1, 1, 2, 1), 23),
    ] {
        assert_eq!(layout.rank(place), rank);
        assert_eq!(layout.at(rank), place);
    }
}

fn axis() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(1u32), 4 => Just(2u32), 2 => Just(4u32), 1 => Just(8u32), 1 => Just(3u32)]
}

fn any_spec() -> impl Strategy<Value = TrainingSpec> {
    let grid = (axis(), axis(), axis(), axis(), axis(), 1u32..=24);
    let level = prop_oneof![Just("NvlinkDomain"), Just("Rack"), Just("Block")];
    let mode = prop_oneof![Just(Mode::Required), Just(Mode::Preferred)];
    let rule = proptest::option::of((level, mode).prop_map(|(level, mode)| Rule::new(level, mode)));
    let rules = (rule.clone(), rule.clone(), rule.clone(), rule);
    (0..FRAMEWORKS.len(), grid, prop_oneof![Just(1u32), Just(4u32), Just(8u32), 0u32..=9], rules).prop_map(
        |(framework, (t, p, c, e, et, d), gpus_per_pod, (tensor, expert, context, pipeline))| TrainingSpec {
            framework: FRAMEWORKS[framework],
            parallelism: sizes([t, p, c, e, et, d]),
            gpus_per_pod,
            rules: Rules { tensor, expert, context, pipeline },
            ..TrainingSpec::default()
        },
    )
}

/// For every group of an axis with a rule: the unit-local pods that it touches, and the rule.
fn groups(spec: &TrainingSpec, derived: &Derived) -> Vec<(Vec<u32>, Rule)> {
    let s = &spec.parallelism;
    let rules = &spec.rules;
    // Unit-local ranks: the unit as a world of its own.
    let unit = Parallelism { data: derived.replicas_per_unit, ..*s };
    let layout = Layout::new(spec.framework, unit, unit.data);
    let axes = [
        (u64::from(s.tensor), &rules.tensor),
        (s.block_ranks(), &rules.context),
        (s.expert_group_ranks(), if s.expert > 1 { &rules.expert } else { &None }),
    ];
    let mut all = Vec::new();
    for (size, rule) in axes {
        let Some(rule) = rule else { continue };
        let mut of: std::collections::BTreeMap<(u32, u64), Vec<u32>> = std::collections::BTreeMap::new();
        for rank in 0..layout.ranks() {
            let at = layout.at(rank);
            let pods = of.entry((at.pipeline, layout.in_stage(at) / size)).or_default();
            pods.push((rank / u64::from(derived.ranks_per_pod)) as u32);
        }
        all.extend(of.into_values().map(|pods| (pods, rule.clone())));
    }
    if let Some(rule) = &rules.pipeline {
        all.push(((0..derived.pods_per_unit).collect(), rule.clone()));
    }
    all
}

fn nested(segments: &[Segment], pods_per_unit: u32) -> bool {
    let sizes: Vec<u32> = segments.iter().map(|segment| segment.pods).chain([pods_per_unit]).collect();
    sizes.windows(2).all(|pair| pair[0] > 1 && pair[1].is_multiple_of(pair[0]))
}

proptest! {
    #[test]
    fn rank_and_place_are_inverse(spec in any_spec(), r in 1u32..=3) {
        let sizes = Parallelism { data: spec.parallelism.data * r, ..spec.parallelism };
        let layout = Layout::new(spec.framework, sizes, r);
        for rank in 0..layout.ranks() {
            prop_assert_eq!(layout.rank(layout.at(rank)), rank);
        }
    }

    #[test]
    fn accepted_jobs_are_whole(spec in any_spec()) {
        let Ok(derived) = derive(&spec) else { return Ok(()) };
        let s = &spec.parallelism;
        let world = s.replica_ranks() * u64::from(s.data);
        prop_assert_eq!(u64::from(derived.world_size(derived.units)), world);
        prop_assert_eq!(derived.data(derived.units), s.data);
        prop_assert!(world <= MAX_RANKS);
        prop_assert!(nested(&derived.segments, derived.pods_per_unit), "{:?}", derived);
        if derived.units * derived.pods_per_unit > 1 {
            let g = u64::from(spec.gpus_per_pod.max(1));
            prop_assert_eq!(u64::from(derived.replicas_per_unit), expected_replicas(spec.framework, s, g));
            prop_assert_eq!(u64::from(derived.ranks_per_pod), g);
        }
    }

    /// The classes of the whole job at its own size are just its units.
    #[test]
    fn units_are_the_closure_at_every_size(spec in any_spec()) {
        let Ok(derived) = derive(&spec) else { return Ok(()) };
        let layout = Layout::new(spec.framework, spec.parallelism, derived.replicas_per_unit);
        let r = derived.replicas_per_unit;
        let expected: Vec<u32> = (0..spec.parallelism.data).map(|replica| replica / r * r).collect();
        let classes = layout.closure(derived.ranks_per_pod);
        // A unit in which replicas are further joined only by the size of a torchft world is coarser than its classes.
        for (class, unit) in classes.iter().zip(&expected) {
            prop_assert!(class / r * r == *unit);
        }
        if spec.framework != Framework::TorchFT {
            let one_pod = derived.units * derived.pods_per_unit == 1;
            prop_assert!(one_pod || classes == expected, "{:?} {:?}", classes, expected);
        }
    }

    /// A rule holds for its groups if the segments hold: each group lies in one block of a segment of its level, at
    /// least as strict, or in one pod.
    #[test]
    fn segments_keep_every_group_together(spec in any_spec()) {
        let Ok(derived) = derive(&spec) else { return Ok(()) };
        for (pods, rule) in groups(&spec, &derived) {
            let (first, last) = (pods.iter().min().copied().unwrap_or(0), pods.iter().max().copied().unwrap_or(0));
            let kept = first == last || derived.segments.iter().any(|segment| {
                segment.level == rule.level
                    && segment.mode <= rule.mode
                    && first / segment.pods == last / segment.pods
            });
            prop_assert!(kept, "{:?} {:?} {:?}", pods, rule, derived);
        }
    }

    /// The remedy of a refused number of replicas is accepted.
    #[test]
    fn the_nearest_numbers_are_accepted(spec in any_spec()) {
        let Err(errors) = derive(&spec) else { return Ok(()) };
        let Some(error) = errors.iter().find(|error| error.field == "spec.parallelism.data") else { return Ok(()) };
        let numbers: Vec<u32> = error.remedy.split([',', ' ']).map_while(|word| match word {
            "set" | "it" | "to" | "or" => Some(None),
            word => word.parse().ok().map(Some),
        }).flatten().collect();
        prop_assert!(!numbers.is_empty(), "{}", error);
        for data in numbers {
            let parallelism = Parallelism { data, ..spec.parallelism };
            let again = derive(&TrainingSpec { parallelism, ..spec.clone() });
            prop_assert!(again.is_ok(), "{}: {:?}", data, again);
        }
    }
}
