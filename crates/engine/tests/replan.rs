//! Lost units: replaced near the survivors, dropped, or the whole gang moves; in the order of the ladder.

mod common;

use common::{engine_of, gang_of, node_at, role_of};
use muster_engine::{Decision, Engine, Event, How};
use muster_model::{
    Gang, GangState, Mode, Node, Plan, Reason, RecoveryStep, Resources, Role, Segment, UnitId, Within,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

fn node(name: &str) -> Node {
    let rack = name[..1].to_owned();
    let labels = [("network.topology.nvidia.com/leaf".to_owned(), rack)];
    node_at(name, labels, Resources::of([("cpu", 1_000), ("pods", 10)]))
}

/// Racks a, b, … with nodes of one core each.
fn engine(names: &[&str]) -> Engine {
    engine_of(names.iter().map(|name| node(name)))
}

fn role(pods: u32, min: u32, max: u32) -> Role {
    role_of("w", Resources::of([("cpu", 1_000)]), pods, min, max)
}

fn unit(index: u32) -> UnitId {
    UnitId { role: "w".into(), index }
}

fn plan(units: &[&[&str]], spares: &[&str]) -> Plan {
    let units = units.iter().enumerate().map(|(index, nodes)| PlacedUnit {
        id: unit(index as u32),
        class: None,
        nodes: nodes.iter().map(|n| (*n).into()).collect(),
    });
    let mut placement = Placement { units: units.collect(), spares: BTreeMap::new() };
    if !spares.is_empty() {
        placement.spares.insert("w".into(), spares.iter().map(|n| (*n).into()).collect());
    }
    Plan::next(None, 1, placement, &BTreeSet::new(), false)
}

/// One unit is lost, and every step of the ladder is allowed.
fn lose(plan: Plan, index: u32) -> GangState {
    GangState::Replan { plan, lost: [unit(index)].into(), steps: RecoveryStep::ALL.to_vec() }
}

fn replan(engine: &mut Engine, role: Role, plan: Plan, lost: &[u32]) -> Result<(Vec<String>, How), Reason> {
    let lost = lost.iter().map(|index| unit(*index)).collect();
    let gang = Gang {
        state: GangState::Replan { plan, lost, steps: RecoveryStep::ALL.to_vec() },
        ..gang_of("g", vec![role])
    };
    engine.apply(Event::Gang(gang));
    match engine.decide(0, 1).remove(0) {
        Decision::Place { placement, how, .. } => {
            let text = |u: &PlacedUnit| {
                let nodes: Vec<&str> = u.nodes.iter().map(muster_model::NodeName::as_str).collect();
                format!("{}:{}", u.id.index, nodes.join(","))
            };
            Ok((placement.units.iter().map(text).collect(), how))
        }
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

/// A pod that is leaving, or was lost with its node.
fn leave(engine: &mut Engine, node: &str) {
    let requests = Resources::of([("cpu", 1_000), ("pods", 1)]);
    engine.apply(Event::Use { id: format!("pod on {node}"), node: node.into(), requests });
}

#[test]
fn a_lost_unit_goes_near_the_survivors_and_keeps_its_index() {
    let mut engine = engine(&["a0", "a1", "a2", "b0", "b1", "b2"]);
    leave(&mut engine, "b0");
    let result = replan(&mut engine, role(1, 2, 2), plan(&[&["b0"], &["b1"]], &[]), &[0]);
    assert_eq!(result, Ok((vec!["0:b2".into(), "1:b1".into()], How::Replaced)));
}

#[test]
fn outside_the_survivors_domain_if_that_is_full() {
    let mut engine = engine(&["a0", "a1", "b0", "b1"]);
    leave(&mut engine, "b0");
    let result = replan(&mut engine, role(1, 2, 2), plan(&[&["b0"], &["b1"]], &[]), &[0]);
    assert_eq!(result, Ok((vec!["0:a0".into(), "1:b1".into()], How::Replaced)));
}

#[test]
fn the_spare_is_used_first_and_a_new_one_chosen() {
    let mut engine = engine(&["a0", "a1", "a2", "b0"]);
    leave(&mut engine, "a0");
    let with_spare = Role { spares: 1, ..role(1, 2, 2) };
    let gang = Gang { state: lose(plan(&[&["a0"], &["a1"]], &["a2"]), 0), ..gang_of("g", vec![with_spare]) };
    engine.apply(Event::Gang(gang));
    let decisions = engine.decide(0, 1);
    let [Decision::Place { placement, how: How::Replaced, .. }] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!(placement.units[0].nodes, ["a2".into()]);
    assert!(placement.spares.is_empty(), "rack a has no other node, and the replacement stays in it");
}

#[test]
fn old_nodes_of_lost_units_are_free_unless_something_is_there() {
    let mut free = engine(&["a0", "a1"]);
    let result = replan(&mut free, role(1, 2, 2), plan(&[&["a0"], &["a1"]], &[]), &[0]);
    assert_eq!(result, Ok((vec!["0:a0".into(), "1:a1".into()], How::Replaced)));

    let mut busy = engine(&["a0", "a1"]);
    leave(&mut busy, "a0");
    assert!(replan(&mut busy, role(1, 2, 2), plan(&[&["a0"], &["a1"]], &[]), &[0]).is_err());
}

#[test]
fn survivors_are_renumbered_when_no_node_is_left_and_the_count_is_valid() {
    let mut engine = engine(&["a0", "a1", "a2"]);
    leave(&mut engine, "a1");
    let three = plan(&[&["a0"], &["a1"], &["a2"]], &[]);
    let result = replan(&mut engine, role(1, 1, 3), three.clone(), &[1]);
    assert_eq!(result, Ok((vec!["0:a0".into(), "1:a2".into()], How::Shrunk)));
    let odd = Role { valid: vec![1, 3], ..role(1, 1, 3) };
    let result = replan(&mut engine, odd, three, &[1]);
    let one = Ok((vec!["0:a0".into()], How::Shrunk));
    assert_eq!(result, one, "two units are not allowed, one is, and it stays where it is");
}

#[test]
fn the_whole_gang_moves_when_survivors_are_too_few_and_their_own_nodes_count_as_free() {
    // Two pods must share a rack. Rack a has lost a node, rack b has two.
    let mut engine = engine(&["a0", "a1", "b0", "b1", "b2"]);
    leave(&mut engine, "a1");
    leave(&mut engine, "b0");
    let together = Role {
        segments: vec![Segment { pods: 1, level: "Rack".into(), mode: Mode::Required }],
        ..role(1, 2, 2)
    };
    let gang = Gang {
        within: Some(muster_model::Within { level: "Rack".into(), mode: Mode::Required }),
        state: lose(plan(&[&["a0"], &["a1"]], &[]), 1),
        ..gang_of("g", vec![together])
    };
    engine.apply(Event::Gang(gang));
    let decisions = engine.decide(0, 1);
    let [Decision::Place { placement, how: How::Moved, .. }] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    let nodes: Vec<&str> =
        placement.units.iter().flat_map(|u| &u.nodes).map(muster_model::NodeName::as_str).collect();
    assert_eq!(nodes, ["b1", "b2"]);
}

#[test]
fn a_refused_replan_keeps_holding_its_survivors_and_is_asked_again_when_room_appears() {
    let mut engine = engine(&["a0", "a1"]);
    leave(&mut engine, "a0");
    assert!(replan(&mut engine, role(1, 2, 2), plan(&[&["a0"], &["a1"]], &[]), &[0]).is_err());
    let other = gang_of("other", vec![role(1, 1, 1)]);
    engine.apply(Event::Gang(other.clone()));
    assert!(matches!(&engine.decide(0, 9)[..], [Decision::Refuse { key, .. }] if *key == other.key));
    engine.apply(Event::GangGone(other.key));
    engine.apply(Event::UseGone { id: "pod on a0".into() });
    assert!(matches!(&engine.decide(0, 9)[..], [Decision::Place { how: How::Replaced, .. }]));
}

#[test]
fn a_gang_of_one_unit_is_placed_anew() {
    let mut engine = engine(&["a0", "a1", "b0", "b1"]);
    leave(&mut engine, "a0");
    leave(&mut engine, "a1");
    let result = replan(&mut engine, role(2, 1, 1), plan(&[&["a0", "a1"]], &[]), &[0]);
    assert_eq!(result, Ok((vec!["0:b0,b1".into()], How::Replaced)));
}

#[test]
fn beside_a_unit_whose_node_is_gone_nothing_is_placed_before_it_is_known_where_it_lies() {
    let mut engine = engine(&["a0", "a1", "b0"]);
    engine.apply(Event::NodeGone("a0".into()));
    let state = lose(plan(&[&["a0"], &["b0"]], &[]), 1);
    let within = Some(Within { level: "Rack".into(), mode: Mode::Required });
    engine.apply(Event::Gang(Gang { state, within, ..gang_of("g", vec![role(1, 2, 2)]) }));
    assert!(matches!(&engine.decide(0, 1)[..], [Decision::Refuse { .. }]), "b0 may be far from it");
    assert!(engine.decide(0, 1).is_empty(), "nothing changed");
    // The node makes no room by coming back, it is full; but now it is known that a1 is beside it.
    engine.apply(Event::Node(node("a0")));
    let decisions = engine.decide(0, 1);
    let [Decision::Place { placement, how: How::Replaced, .. }] = &decisions[..] else {
        panic!("{decisions:?}")
    };
    assert_eq!(placement.units[1].nodes, ["a1".into()]);
}

/// Three units of one core in rack a, of which the last is lost; what is possible then.
struct World {
    what: &'static str,
    /// Nodes without the gang's own.
    free: &'static [&'static str],
    min: u32,
    /// All of it in one rack.
    within: bool,
    possible: &'static [RecoveryStep],
}

use RecoveryStep::{ReplaceNode, Requeue, RestartInPlace, Shrink};

const WORLDS: [World; 6] = [
    World {
        what: "a node is free, two units are enough",
        free: &["a3"],
        min: 2,
        within: false,
        possible: &[ReplaceNode, Shrink, Requeue],
    },
    World {
        what: "a node is free, all are needed",
        free: &["a3"],
        min: 3,
        within: false,
        possible: &[ReplaceNode, Requeue],
    },
    World { what: "two units are enough", free: &[], min: 2, within: false, possible: &[Shrink, Requeue] },
    World {
        what: "only another rack has room",
        free: &["b0", "b1", "b2"],
        min: 3,
        within: true,
        possible: &[Requeue],
    },
    World {
        what: "another rack has room, two units are enough",
        free: &["b0", "b1", "b2"],
        min: 2,
        within: true,
        possible: &[Shrink, Requeue],
    },
    World { what: "nothing is free, all are needed", free: &[], min: 3, within: false, possible: &[] },
];

fn in_world(world: &World, steps: &[RecoveryStep]) -> Result<How, Reason> {
    let mut engine = engine(&[&["a0", "a1", "a2"], world.free].concat());
    leave(&mut engine, "a2");
    let plan = plan(&[&["a0"], &["a1"], &["a2"]], &[]);
    let state = GangState::Replan { plan, lost: [unit(2)].into(), steps: steps.to_vec() };
    let within = world.within.then(|| Within { level: "Rack".into(), mode: Mode::Required });
    engine.apply(Event::Gang(Gang { state, within, ..gang_of("g", vec![role(1, world.min, 3)]) }));
    match engine.decide(0, 1).remove(0) {
        Decision::Place { how, .. } => Ok(how),
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

/// Every ordered choice of steps.
fn ladders() -> Vec<Vec<RecoveryStep>> {
    let mut all = vec![Vec::new()];
    let mut at = 0;
    while at < all.len() {
        let longer = RecoveryStep::ALL.into_iter().filter(|step| !all[at].contains(step));
        let longer: Vec<_> = longer.map(|step| [all[at].clone(), vec![step]].concat()).collect();
        all.extend(longer);
        at += 1;
    }
    all
}

#[test]
fn every_ladder_is_walked_in_its_own_order() {
    assert_eq!(ladders().len(), 65, "1 + 4 + 12 + 24 + 24");
    for world in &WORLDS {
        for steps in ladders() {
            // After Requeue everything is given back.
            let end = steps.iter().position(|step| *step == Requeue).map_or(steps.len(), |at| at + 1);
            let expected = steps[..end].iter().find(|step| world.possible.contains(step));
            let found = in_world(world, &steps);
            let step = found.as_ref().ok().and_then(|how| how.step());
            assert_eq!(step.as_ref(), expected, "{}, {steps:?}: {found:?}", world.what);
            let Err(reason) = found else { continue };
            assert!(!matches!(reason, Reason::NotFound { .. }), "{}, {steps:?}: {reason}", world.what);
            let unlisted = world.possible.iter().find(|step| !steps.contains(step)).copied();
            let forbidden = unlisted.filter(|_| !steps.contains(&Requeue));
            let named = match reason {
                Reason::LadderForbids { step } => Some(step),
                _ => None,
            };
            assert_eq!(named, forbidden, "{}, {steps:?}", world.what);
        }
    }
}

#[test]
fn a_ladder_without_replace_node_shrinks_although_a_node_is_free() {
    assert_eq!(in_world(&WORLDS[0], &[RestartInPlace, Shrink]), Ok(How::Shrunk));
    assert_eq!(in_world(&WORLDS[0], &[Shrink, ReplaceNode]), Ok(How::Shrunk));
    assert_eq!(in_world(&WORLDS[1], &[Shrink, ReplaceNode]), Ok(How::Replaced));
}

#[test]
fn what_a_ladder_forbids_is_said() {
    let said = |world: usize, steps: &[RecoveryStep]| {
        let reason = in_world(&WORLDS[world], steps).expect_err("it is not allowed");
        format!("{}: {reason}; {}", reason.code(), reason.remedy())
    };
    let free = "LadderForbids: nodes are free for the lost units, but spec.recovery.ladder lists no ReplaceNode; \
                add ReplaceNode to spec.recovery.ladder";
    assert_eq!(said(1, &[RestartInPlace, Shrink]), free);
    assert_eq!(
        said(2, &[ReplaceNode]),
        "LadderForbids: it could go on in a smaller size, but spec.recovery.ladder lists no Shrink; add Shrink to \
         spec.recovery.ladder"
    );
    assert_eq!(
        said(3, &[ReplaceNode, Shrink]),
        "LadderForbids: there is room for the whole gang elsewhere, but spec.recovery.ladder lists no Requeue; add \
         Requeue to spec.recovery.ladder"
    );
    assert!(
        said(5, &[Shrink]).starts_with("TooFewLeft: 2 w units are left, and it runs with no fewer than 3")
    );
    assert!(said(5, &[ReplaceNode, Shrink]).starts_with("InsufficientCapacity"));
    assert!(said(5, &[ReplaceNode]).starts_with("InsufficientCapacity: 0 of at least 1 w units fit now"));
}

#[test]
fn a_ladder_that_changes_is_a_new_question() {
    let mut engine = engine(&["a0", "a1", "a2", "a3"]);
    leave(&mut engine, "a2");
    let plan = plan(&[&["a0"], &["a1"], &["a2"]], &[]);
    let gang = |steps: &[RecoveryStep]| Gang {
        state: GangState::Replan { plan: plan.clone(), lost: [unit(2)].into(), steps: steps.to_vec() },
        ..gang_of("g", vec![role(1, 3, 3)])
    };
    engine.apply(Event::Gang(gang(&[Shrink])));
    let refused = Reason::LadderForbids { step: ReplaceNode };
    assert!(matches!(&engine.decide(0, 1)[..], [Decision::Refuse { reason, .. }] if *reason == refused));
    engine.apply(Event::Gang(gang(&[ReplaceNode])));
    assert!(matches!(&engine.decide(0, 1)[..], [Decision::Place { how: How::Replaced, .. }]));
}
