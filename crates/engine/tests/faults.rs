//! Classes of fault that users of other gang schedulers report, each as a test that it cannot happen here.
//!
//! | class | fault | test |
//! | --- | --- | --- |
//! | topology | the rule of a subgroup is ignored | `the_rule_of_a_part_is_kept_inside_the_rule_of_the_whole` |
//! | topology | two soft rules, of the job and of its parts, spread the job | `a_soft_rule_for_the_gang_and_one_for_its_parts_do_not_spread_it` |
//! | topology | a job of several NVLink nodes spans cabinets | `a_multi_node_nvlink_job_does_not_span_cabinets` |
//! | topology | a replaced part lands in another domain | `what_stays_put_is_replaced_in_its_own_rack` |
//! | topology | labels that contradict each other make two domains one | `a_rack_that_its_nodes_put_under_two_spines_is_not_taken_for_one` |
//! | fragmentation | pods of one GPU are scattered over all racks | `single_gpu_jobs_are_not_scattered_over_racks` |
//! | fragmentation | a pod of eight GPUs is admitted by the sum and fits nowhere | `eight_free_gpus_on_eight_nodes_are_no_place_for_one_pod_of_eight` |
//! | fragmentation | whole domains are broken into without need | `small_jobs_fill_broken_racks_so_that_whole_ones_stay_whole` |
//! | fragmentation | nobody says which domain to empty for a large job | `a_refusal_for_scattered_room_names_the_domain_to_empty_and_by_how_much` |
//! | deadlock | two gangs hold half of what each needs | `two_gangs_never_hold_half_of_the_cluster_each` |
//! | deadlock | a job that can never run takes the turns of others | `an_invalid_gang_is_refused_once_and_takes_no_turns` |
//! | scale | many domains are searched one by one before a refusal | `many_domains_do_not_make_a_refusal_exhaustive` |
//!
//! Jobs that run are not moved together again yet: against fragmentation that is there, the engine names what to empty.

mod common;

use common::{class_of, gang_of, node_at, role_of};
use muster_engine::{Change, Decision, Engine, Event};
use muster_model::{
    Gang, GangState, Level, Mode, Node, Plan, Reason, RecoveryStep, Resources, Role, Segment, Topology,
    Within, plan::Placement,
};
use std::collections::{BTreeMap, BTreeSet};

const GPU: &str = "nvidia.com/gpu";

/// Racks of `per_rack` nodes of 8 GPUs, four racks a block; each rack is an NVLink domain.
fn node(index: usize, per_rack: usize) -> Node {
    let rack = index / per_rack;
    let labels = [
        ("network.topology.nvidia.com/spine", format!("b{}", rack / 4)),
        ("network.topology.nvidia.com/leaf", format!("r{rack}")),
        ("nvidia.com/gpu.clique", format!("c{rack}")),
        ("gpu", "h100".into()),
    ];
    node_at(&format!("n{index:03}"), labels, Resources::of([(GPU, 8), ("cpu", 64_000), ("pods", 110)]))
}

fn engine(racks: usize, per_rack: usize) -> Engine {
    let mut engine = Engine::new();
    for index in 0..racks * per_rack {
        engine.apply(Event::Node(node(index, per_rack)));
    }
    engine
}

fn rack_of(name: &str, per_rack: usize) -> usize {
    name[1..].parse::<usize>().expect("a number") / per_rack
}

fn gang(name: &str, devices: u32, pods: u32, segments: &[(u32, &str, Mode)]) -> Gang {
    let segments = segments
        .iter()
        .map(|(pods, level, mode)| Segment { pods: *pods, level: (*level).into(), mode: *mode })
        .collect();
    let role = Role { devices, segments, ..role_of("w", Resources::of([("cpu", 1_000)]), pods, 1, 1) };
    Gang { classes: vec![class_of("h100")], ..gang_of(name, vec![role]) }
}

fn busy(engine: &mut Engine, index: usize, gpus: i64) {
    let requests = Resources::of([(GPU, gpus), ("pods", 1)]);
    engine.apply(Event::Use { id: format!("use {index}"), node: format!("n{index:03}").into(), requests });
}

fn decide(engine: &mut Engine, gang: &Gang) -> Result<Placement, Reason> {
    engine.apply(Event::Gang(gang.clone()));
    match engine.decide(0, 1).remove(0) {
        Decision::Place { placement, .. } => Ok(placement),
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

fn racks(placement: &Placement, per_rack: usize) -> BTreeSet<usize> {
    placement.units.iter().flat_map(|u| &u.nodes).map(|n| rack_of(n.as_str(), per_rack)).collect()
}

#[test]
fn two_gangs_never_hold_half_of_the_cluster_each() {
    let mut engine = engine(25, 4);
    for name in ["a", "b"] {
        engine.apply(Event::Gang(gang(name, 8, 100, &[])));
    }
    let decisions = engine.decide(0, 10);
    assert!(matches!(&decisions[..], [Decision::Place { .. }, Decision::Refuse { .. }]), "{decisions:?}");
    let held: u32 = engine.occupancy().iter().flat_map(|node| &node.gangs).map(|o| o.pods).sum();
    assert_eq!(held, 100, "the refused one holds nothing");
}

#[test]
fn an_invalid_gang_is_refused_once_and_takes_no_turns() {
    let mut engine = engine(1, 2);
    let first = Gang { priority: 9, ..gang("first", 8, 1, &[(1, "Hall", Mode::Required)]) };
    engine.apply(Event::Gang(first.clone()));
    engine.apply(Event::Gang(gang("second", 8, 1, &[])));
    let refused = |decisions: &[Decision]| matches!(decisions, [Decision::Refuse { key, reason: Reason::Invalid { .. }, .. }] if *key == first.key);
    assert!(refused(&engine.decide(0, 1)));
    let next = engine.decide(0, 1);
    assert!(matches!(next.as_slice(), [Decision::Place { .. }]), "{next:?}");
    assert_eq!(engine.decide(0, 1), []);
    // Another topology may have the level.
    let levels = vec![Level { name: "Hall".into(), keys: vec!["hall".into()] }];
    engine.apply(Event::Topology(Topology { levels }));
    let again = engine.decide(0, 1);
    assert!(matches!(again.as_slice(), [Decision::Place { .. }]), "{again:?}");
}

#[test]
fn the_rule_of_a_part_is_kept_inside_the_rule_of_the_whole() {
    // Half of every rack is in use: no rack has four, every block has eight.
    let mut engine = engine(8, 4);
    for index in (0..32).step_by(2) {
        busy(&mut engine, index, 8);
    }
    let rules = [(2, "Rack", Mode::Required), (8, "Block", Mode::Required)];
    let placement = decide(&mut engine, &gang("g", 8, 8, &rules)).unwrap();
    for pair in placement.units[0].nodes.chunks(2) {
        assert_eq!(rack_of(pair[0].as_str(), 4), rack_of(pair[1].as_str(), 4));
    }
    assert_eq!(racks(&placement, 4).into_iter().map(|rack| rack / 4).collect::<BTreeSet<_>>().len(), 1);
}

#[test]
fn a_soft_rule_for_the_gang_and_one_for_its_parts_do_not_spread_it() {
    let mut engine = engine(8, 4);
    let mut soft = gang("g", 8, 16, &[(4, "Rack", Mode::Preferred)]);
    soft.within = Some(Within { level: "Block".into(), mode: Mode::Preferred });
    let placement = decide(&mut engine, &soft).unwrap();
    assert_eq!(racks(&placement, 4).len(), 4, "one block, every part in its rack");
    assert!(
        placement.units[0]
            .nodes
            .chunks(4)
            .all(|part| { part.iter().all(|n| rack_of(n.as_str(), 4) == rack_of(part[0].as_str(), 4)) })
    );
}

#[test]
fn a_multi_node_nvlink_job_does_not_span_cabinets() {
    let mut engine = engine(4, 4);
    for index in [0, 4, 8, 12] {
        busy(&mut engine, index, 1);
    }
    let whole = gang("g", 8, 4, &[(4, "NvlinkDomain", Mode::Required)]);
    assert!(decide(&mut engine, &whole).is_err(), "three whole nodes a cabinet are not four");
    engine.apply(Event::UseGone { id: "use 8".into() });
    let decisions = engine.decide(0, 1);
    let [Decision::Place { placement, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    assert_eq!(racks(placement, 4), BTreeSet::from([2]));
}

#[test]
fn single_gpu_jobs_are_not_scattered_over_racks() {
    let mut engine = engine(33, 4);
    for index in 0..64 {
        engine.apply(Event::Gang(gang(&format!("g{index:02}"), 1, 1, &[])));
    }
    let mut used = BTreeSet::new();
    for decision in engine.decide(0, 100) {
        let Decision::Place { placement, .. } = decision else { panic!("{decision:?}") };
        used.extend(racks(&placement, 4));
    }
    assert_eq!(used.len(), 2, "64 GPUs are two racks of 32");
    let partly = engine.occupancy().iter().filter(|n| (1..8).contains(&n.free.get(GPU))).count();
    assert_eq!(partly, 0, "and no node is left half used");
}

#[test]
fn eight_free_gpus_on_eight_nodes_are_no_place_for_one_pod_of_eight() {
    let mut engine = engine(2, 4);
    for index in 0..8 {
        busy(&mut engine, index, 7);
    }
    let reason = decide(&mut engine, &gang("g", 8, 1, &[])).unwrap_err();
    assert!(matches!(reason, Reason::InsufficientCapacity { fits: 0, empty: 8, .. }), "{reason:?}");
}

#[test]
fn small_jobs_fill_broken_racks_so_that_whole_ones_stay_whole() {
    let mut engine = engine(6, 4);
    for rack in 0..4 {
        busy(&mut engine, rack * 4, 8);
    }
    for index in 0..4 {
        assert!(decide(&mut engine, &gang(&format!("three{index}"), 8, 3, &[])).is_ok());
    }
    for index in 0..2 {
        let whole = gang(&format!("whole{index}"), 8, 4, &[(4, "Rack", Mode::Required)]);
        assert!(decide(&mut engine, &whole).is_ok(), "racks 4 and 5 were left alone");
    }
}

#[test]
fn what_stays_put_is_replaced_in_its_own_rack() {
    let mut engine = engine(4, 4);
    let role = Role { max: 3, min: 3, ..gang("g", 8, 1, &[]).roles.remove(0) };
    let asked = Gang { roles: vec![role], ..gang("g", 8, 1, &[]) };
    let placement = decide(&mut engine, &asked).unwrap();
    let home = racks(&placement, 4);
    assert_eq!(home.len(), 1);
    let lost = placement.units[1].clone();
    busy(&mut engine, lost.nodes[0].as_str()[1..].parse().unwrap(), 8);
    let plan = Plan::next(None, 1, placement, &BTreeSet::new(), false);
    let state =
        GangState::Replan { plan, lost: BTreeSet::from([lost.id]), steps: RecoveryStep::ALL.to_vec() };
    let again = decide(&mut engine, &Gang { state, ..asked }).unwrap();
    assert_eq!(racks(&again, 4), home);
    assert_eq!(again.spares, BTreeMap::new());
}

#[test]
fn many_domains_do_not_make_a_refusal_exhaustive() {
    // 1,000 nodes in 250 racks, none of which holds a unit: one answer, with the nearest misses, from the counts.
    let mut engine = engine(250, 4);
    for rack in 0..250 {
        busy(&mut engine, rack * 4, 8);
    }
    let reason = decide(&mut engine, &gang("g", 8, 400, &[(4, "Rack", Mode::Required)])).unwrap_err();
    let Reason::InsufficientCapacity { fits: 0, empty: 2, level: Some(level), nearest, .. } = &reason else {
        panic!("{reason:?}")
    };
    assert_eq!((level.as_str(), nearest[0].pods, nearest[0].wanted), ("Rack", 3, 4));
}

#[test]
fn a_rack_that_its_nodes_put_under_two_spines_is_not_taken_for_one() {
    let mut engine = engine(4, 4);
    let mut astray = node(3, 4);
    astray.labels.insert("network.topology.nvidia.com/spine".into(), "b9".into());
    engine.apply(Event::Node(astray));
    for rack in 1..4 {
        busy(&mut engine, rack * 4, 8);
    }
    let whole = gang("g", 8, 4, &[(4, "Rack", Mode::Required)]);
    let reason = decide(&mut engine, &whole).unwrap_err();
    let Reason::InsufficientCapacity { nearest, .. } = &reason else { panic!("{reason:?}") };
    assert_eq!((nearest[0].pods, nearest[0].wanted), (3, 4), "where all nodes agree there are three");
}

#[test]
fn a_refusal_for_scattered_room_names_the_domain_to_empty_and_by_how_much() {
    // Every rack has a node in use, rack 2 two; 11 free nodes are enough, but not together.
    let mut engine = engine(4, 4);
    for index in [0, 4, 8, 9, 12] {
        busy(&mut engine, index, 8);
    }
    busy(&mut engine, 12, 1);
    let asked = gang("g", 8, 4, &[(4, "Rack", Mode::Required)]);
    let changes = engine.explain(&asked).expect("it cannot be placed").changes;
    let Some(Change::Free { pods: 1, domains, .. }) = changes.first() else { panic!("{changes:?}") };
    assert_eq!((domains[0].pods, domains[0].wanted), (3, 4));
    let rack = domains[0].domain.clone();
    assert!(!rack.contains("r2"), "{rack} lacks less");
    engine.apply(Event::UseGone { id: "use 0".into() });
    let placement = decide(&mut engine, &asked).expect("the rack named is empty now");
    assert_eq!(racks(&placement, 4), BTreeSet::from([0]));
    assert!(rack.contains("r0"), "{rack}");
}
