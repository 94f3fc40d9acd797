//! For every violation: a snapshot that has it, and the nearest that has not.

mod fixture;

use fixture::{gang, kinds, nodes, topology, unit};
use muster_check::{PodView, Snapshot, Use, check};
use muster_model::{
    Gang, GangState, Mode, Near, PlannedUnit, Ratio, RecoveryStep, Resources, Spread, plan::Plan,
};
use std::collections::BTreeMap;

fn plan(gang: &mut Gang) -> &mut Plan {
    match &mut gang.state {
        GangState::Holding(plan) | GangState::Replan { plan, .. } => plan,
        _ => panic!("the fixture's gang holds a plan"),
    }
}

/// The pod of a slot, as planned.
fn pod(gang: &Gang, index: u32, within: u32) -> PodView {
    let GangState::Holding(plan) = &gang.state else { panic!("the fixture's gang holds a plan") };
    let unit = &plan.units[index as usize];
    PodView {
        uid: format!("pod-{index}-{within}"),
        name: format!("llama-{index}-{within}"),
        node: Some(unit.placed.nodes[within as usize].clone()),
        gang: gang.uid.clone(),
        unit: unit.placed.id.clone(),
        incarnation: unit.incarnation,
        index: within,
        terminal: false,
        leaving: false,
        requests: gang.roles[0].pod_requests(Some(&gang.classes[0])),
    }
}

/// The placed gang with all its pods running, and a foreign pod without GPUs on n0.
fn sound() -> Snapshot {
    let gang = gang();
    let pods = (0..2).flat_map(|unit| [pod(&gang, unit, 0), pod(&gang, unit, 1)]).collect();
    let requests = Resources::of([("cpu", 60_000), ("pods", 1)]);
    let foreign = Use { node: "n0".into(), requests, repels: Vec::new() };
    Snapshot {
        topology: topology(),
        nodes: nodes(),
        uses: BTreeMap::from([("foreign".to_owned(), foreign)]),
        gangs: vec![gang],
        pods,
    }
}

/// Unit 0 (n0, n1) is lost, and another gang is planned onto its nodes.
fn lose_unit_0_to_another_gang(s: &mut Snapshot) {
    let mut other = gang();
    other.uid = "g2".into();
    plan(&mut other).units.truncate(1);
    let lost = plan(&mut s.gangs[0]).units[0].placed.id.clone();
    s.gangs[0].state = GangState::Replan {
        plan: plan(&mut s.gangs[0]).clone(),
        lost: [lost].into(),
        steps: RecoveryStep::ALL.to_vec(),
    };
    s.gangs.push(other);
}

/// So many workers for each decode unit; there are two workers and one decode unit, without pods yet.
fn add_ratio(s: &mut Snapshot, decode: u32) {
    let gang = &mut s.gangs[0];
    let role =
        muster_model::Role { name: "decode".into(), devices: 0, pods_per_unit: 1, ..gang.roles[0].clone() };
    gang.roles.push(muster_model::Role { segments: Vec::new(), ..role });
    gang.rules.ratios =
        vec![Ratio { role: "worker".into(), of: "decode".into(), per: decode, min: 2, max: 2 }];
    let mut unit = plan(gang).units[1].clone();
    unit.placed.id = muster_model::UnitId { role: "decode".into(), index: 0 };
    unit.placed.class = None;
    unit.placed.nodes.truncate(1);
    plan(gang).units.push(unit);
}

fn add_near(s: &mut Snapshot, level: &str) {
    s.gangs[0].rules.near =
        vec![Near { roles: vec!["worker".into()], level: level.into(), mode: Mode::Required }];
}

fn add_spread(s: &mut Snapshot, level: &str, units: u32) {
    s.gangs[0].rules.spread =
        vec![Spread { role: "worker".into(), level: level.into(), units, mode: Mode::Required, group: None }];
}

/// The gang with unit 0 alone, and a second one with a unit in the other rack of the block; a group for both.
fn add_group(s: &mut Snapshot, level: &str, units: u32) {
    add_spread(s, level, units);
    s.pods.truncate(2);
    plan(&mut s.gangs[0]).units.truncate(1);
    s.gangs[0].rules.spread[0].group = Some("web".into());
    let mut other = s.gangs[0].clone();
    (other.key.name, other.uid) = ("other".into(), "g2".into());
    plan(&mut other).units[0].placed = unit(0, &["n2", "n3"]);
    s.gangs.push(other);
}

type Change = fn(&mut Snapshot);

#[test]
fn a_sound_snapshot_has_no_violation() {
    assert_eq!(check(&sound()), Vec::new());
    assert_eq!(check(&Snapshot::default()), Vec::new());
}

/// (violation, change that brings it about, nearest change that does not)
const SNAPSHOTS: &[(&str, Change, Change)] = &[
    // I1
    (
        "Overcommitted", // a foreign pod asks one millicore more than the entry leaves
        |s| s.uses.get_mut("foreign").unwrap().requests.set("cpu", 60_001),
        |s| s.uses.get_mut("foreign").unwrap().requests.set("cpu", 60_000),
    ),
    (
        "Overcommitted", // two gangs planned onto n0
        |s| {
            let mut other = gang();
            other.uid = "g2".into();
            plan(&mut other).units =
                vec![PlannedUnit { placed: unit(0, &["n0", "n1"]), incarnation: 1, revision: String::new() }];
            s.gangs.push(other);
        },
        |s| {
            let mut other = gang();
            other.uid = "g2".into();
            plan(&mut other).units =
                vec![PlannedUnit { placed: unit(0, &["n4", "n5"]), incarnation: 1, revision: String::new() }];
            s.gangs.push(other);
        },
    ),
    (
        "Overcommitted", // a dead incarnation's pod still holds the devices
        |s| {
            s.pods[0].leaving = true;
            s.pods[0].incarnation = 0;
        },
        |s| {
            s.pods[0].leaving = true; // of the present incarnation: its entry's own pod
        },
    ),
    (
        "Overcommitted", // an orphan that is leaving, on a planned node
        |s| {
            s.pods[0].leaving = true;
            s.pods[0].gang = "gone".into();
        },
        |s| {
            s.pods[0].terminal = true;
            s.pods[0].gang = "gone".into();
        },
    ),
    (
        "Overcommitted", // admission added a sidecar that does not fit next to the foreign pod
        |s| s.pods[0].requests.set("cpu", 4_001),
        |s| s.pods[2].requests.set("cpu", 60_000),
    ),
    (
        "Overcommitted", // pod slots are a resource
        |s| s.nodes[0].allocatable.set("pods", 1),
        |s| s.nodes[0].allocatable.set("pods", 2),
    ),
    (
        "Overcommitted", // a spare holds one pod's worth
        |s| {
            s.gangs[0].roles[0].spares = 1;
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n3".into()])]);
        },
        |s| {
            s.gangs[0].roles[0].spares = 1;
            s.gangs[0].within = None;
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n4".into()])]);
        },
    ),
    (
        "Overcommitted", // one of ours that is leaving, counted once though it stands in the uses as well
        |s| {
            let mut late = s.pods[0].clone();
            (late.uid, late.leaving, late.incarnation) = ("late".into(), true, 0);
            s.pods.push(late);
        },
        |s| {
            let requests = s.pods[0].requests.clone();
            let own = Use { node: "n0".into(), requests, repels: Vec::new() };
            s.uses.insert(s.pods[0].uid.clone(), own);
        },
    ),
    (
        "Overcommitted", // a lost unit's entries hold nothing, but its pods are still there
        |s| {
            lose_unit_0_to_another_gang(s);
        },
        |s| {
            lose_unit_0_to_another_gang(s);
            s.pods[0].terminal = true;
            s.pods[1].terminal = true;
        },
    ),
    // I2
    (
        "PodOfNoGang",
        |s| {
            s.pods[0].gang = "gone".into();
            s.pods[0].node = None;
        },
        |s| {
            s.pods[0].gang = "gone".into();
            s.pods[0].node = None;
            s.pods[0].leaving = true;
        },
    ),
    (
        "PodOfUnplacedGang",
        |s| {
            s.gangs[0].state = GangState::Waiting;
            s.pods.truncate(1);
        },
        |s| {
            s.gangs[0].state = GangState::Waiting;
            s.pods.truncate(1);
            s.pods[0].terminal = true;
        },
    ),
    (
        "PodOfNoSlot",
        |s| (s.pods[0].unit.index, s.pods[0].node) = (2, None),
        |s| {
            (s.pods[0].unit.index, s.pods[0].node, s.pods[0].leaving) = (2, None, true);
        },
    ),
    ("PodOfNoSlot", |s| (s.pods[0].index, s.pods[0].node) = (2, None), |s| s.pods[0].node = None),
    (
        "PodOfOtherIncarnation",
        |s| {
            s.pods[0].node = None;
            s.pods[0].incarnation = 2;
        },
        |s| {
            s.pods[0].incarnation = 2;
            plan(&mut s.gangs[0]).units[0].incarnation = 2;
            s.pods[1].incarnation = 2;
        },
    ),
    ("PodOnOtherNode", |s| s.pods[0].node = Some("n7".into()), |s| s.pods[0].node = Some("n0".into())),
    (
        "TwoPods",
        |s| {
            let mut twin = s.pods[0].clone();
            (twin.uid, twin.node) = ("twin".into(), None);
            s.pods.push(twin);
        },
        |s| {
            let mut twin = s.pods[0].clone();
            (twin.uid, twin.node, twin.leaving) = ("twin".into(), None, true);
            s.pods.push(twin);
        },
    ),
    // I3
    ("UnitCount", |s| s.gangs[0].roles[0].min = 3, |s| s.gangs[0].roles[0].min = 2),
    ("UnitCount", |s| s.gangs[0].roles[0].max = 1, |s| s.gangs[0].roles[0].max = 2),
    ("UnitCount", |s| s.gangs[0].roles[0].valid = vec![1, 3], |s| s.gangs[0].roles[0].valid = vec![1, 2]),
    (
        "UnitCount", // units of one role only, where the other needs some
        |s| {
            let mut role = s.gangs[0].roles[0].clone();
            role.name = "decode".into();
            s.gangs[0].roles.push(role);
        },
        |s| {
            let mut role = s.gangs[0].roles[0].clone();
            (role.name, role.min) = ("decode".into(), 0);
            s.gangs[0].roles.push(role);
        },
    ),
    (
        "UnitNumbers",
        |s| {
            plan(&mut s.gangs[0]).units[0].placed.id.index = 2;
            s.pods.drain(..2);
        },
        |s| {
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
        },
    ),
    (
        "PodCount",
        |s| {
            plan(&mut s.gangs[0]).units[1].placed.nodes.pop();
            s.pods.pop();
        },
        |s| {
            s.pods.pop(); // the plan is whole; a pod that is not there yet is no violation
        },
    ),
    (
        "UnknownRole",
        |s| {
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("decode".into(), Vec::new())]);
        },
        |s| {
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), Vec::new())]);
        },
    ),
    (
        "TooManySpares",
        |s| {
            s.gangs[0].within = None;
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n4".into()])]);
        },
        |s| {
            s.gangs[0].within = None;
            s.gangs[0].roles[0].spares = 1;
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n4".into()])]);
        },
    ),
    // I4
    (
        "BlockBroken",
        |s| {
            let nodes = &mut plan(&mut s.gangs[0]).units;
            (nodes[0].placed.nodes[1], nodes[1].placed.nodes[0]) = ("n2".into(), "n1".into());
            nodes[1].placed.id.index = 1;
            s.pods.clear();
            plan(&mut s.gangs[0]).units.truncate(1);
        },
        |s| {
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.clear();
        },
    ),
    (
        "BlockBroken", // but not of a unit that is lost
        |s| {
            plan(&mut s.gangs[0]).units.truncate(1);
            plan(&mut s.gangs[0]).units[0].placed.nodes[1] = "n2".into();
            s.pods.clear();
        },
        |s| {
            plan(&mut s.gangs[0]).units.truncate(1);
            plan(&mut s.gangs[0]).units[0].placed.nodes[1] = "n2".into();
            s.pods.clear();
            let plan = plan(&mut s.gangs[0]).clone();
            let lost = plan.units.iter().map(|unit| unit.placed.id.clone()).collect();
            s.gangs[0].state = GangState::Replan { plan, lost, steps: RecoveryStep::ALL.to_vec() };
        },
    ),
    (
        "BlockBroken", // equal rack names under different blocks are different racks
        |s| {
            s.gangs[0].within = None;
            plan(&mut s.gangs[0]).units[0].placed.nodes = vec!["n0".into(), "n4".into()];
            s.pods.clear();
        },
        |s| {
            s.gangs[0].within = None;
            s.nodes[4].labels.insert("block".into(), "x".into());
            plan(&mut s.gangs[0]).units[0].placed.nodes = vec!["n0".into(), "n4".into()];
            s.pods.clear();
        },
    ),
    (
        "BlockBroken", // nodes without the label are domains of their own
        |s| {
            s.gangs[0].within = None;
            for node in &mut s.nodes[..2] {
                node.labels.remove("rack");
            }
        },
        |s| {
            s.gangs[0].within = None;
            for node in &mut s.nodes[2..4] {
                node.labels.remove("rack");
            }
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
        },
    ),
    (
        "BlockBroken", // without the outer label each is a block of its own, and so is its rack
        |s| {
            s.gangs[0].within = None;
            for node in &mut s.nodes[..2] {
                node.labels.remove("block");
            }
        },
        |s| {
            // Where nobody labels blocks, racks are blocks.
            s.gangs[0].within = None;
            for node in &mut s.nodes {
                node.labels.remove("block");
            }
        },
    ),
    (
        "GangBroken", // where nobody labels blocks, racks are blocks
        |s| {
            for node in &mut s.nodes {
                node.labels.remove("block");
            }
        },
        |s| {
            for node in &mut s.nodes {
                node.labels.remove("block");
            }
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
        },
    ),
    (
        "BlockBroken", // the last level is the node
        |s| s.gangs[0].roles[0].segments[0].level = "Node".into(),
        |s| {
            s.gangs[0].roles[0].segments[0].level = "Node".into();
            s.gangs[0].roles[0].segments[0].mode = Mode::Preferred;
        },
    ),
    (
        "GangBroken",
        |s| {
            plan(&mut s.gangs[0]).units[1].placed.nodes = vec!["n4".into(), "n5".into()];
            s.pods.clear();
        },
        |s| {
            plan(&mut s.gangs[0]).units[1].placed.nodes = vec!["n4".into(), "n5".into()];
            s.gangs[0].within.as_mut().unwrap().mode = Mode::Preferred;
            s.pods.clear();
        },
    ),
    ("RatioBroken", |s| add_ratio(s, 2), |s| add_ratio(s, 1)),
    ("RolesApart", |s| add_near(s, "Rack"), |s| add_near(s, "Block")),
    (
        "RolesApart", // a spare may become a rank
        |s| {
            s.gangs[0].roles[0].spares = 1;
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n3".into()])]);
            add_near(s, "Rack");
        },
        |s| {
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
            add_near(s, "Rack");
        },
    ),
    ("TooManyTogether", |s| add_spread(s, "Block", 1), |s| add_spread(s, "Rack", 1)),
    ("TooManyOfGroup", |s| add_group(s, "Block", 1), |s| add_group(s, "Rack", 1)),
    (
        "TooManyOfGroup",
        |s| add_group(s, "Block", 1),
        |s| {
            add_group(s, "Block", 1);
            s.gangs[1].key.namespace = "other".into();
        },
    ),
    (
        "TooManyOfGroup",
        |s| add_group(s, "Block", 1),
        |s| {
            add_group(s, "Block", 1);
            let plan = plan(&mut s.gangs[1]).clone();
            let lost = [plan.units[0].placed.id.clone()].into();
            s.gangs[1].state = GangState::Replan { plan, lost, steps: RecoveryStep::ALL.to_vec() };
        },
    ),
    (
        "GroupDisagrees",
        |s| {
            add_group(s, "Block", 2);
            s.gangs[1].rules.spread[0].units = 3;
        },
        |s| {
            add_group(s, "Block", 2);
            s.gangs[1].rules.spread[0].units = 3;
            s.gangs[1].rules.spread[0].group = Some("another".into());
        },
    ),
    (
        "GroupDisagrees", // a group is named once in a gang
        |s| {
            add_group(s, "Block", 2);
            let rule = s.gangs[0].rules.spread[0].clone();
            s.gangs[0].rules.spread.push(rule);
        },
        |s| {
            add_group(s, "Block", 2);
            let rule = s.gangs[0].rules.spread[0].clone();
            s.gangs[0].rules.spread.push(Spread { group: None, ..rule });
        },
    ),
    ("UnitSplit", |s| add_spread(s, "Node", 2), |s| add_spread(s, "Block", 2)),
    ("RuleInvalid", |s| add_spread(s, "Row", 2), |s| add_spread(s, "Rack", 2)),
    (
        "GangBroken", // a spare may become a rank
        |s| {
            s.gangs[0].roles[0].spares = 1;
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n4".into()])]);
        },
        |s| {
            s.gangs[0].roles[0].spares = 1;
            plan(&mut s.gangs[0]).units.truncate(1);
            s.pods.truncate(2);
            plan(&mut s.gangs[0]).spares = BTreeMap::from([("worker".into(), vec!["n3".into()])]);
        },
    ),
    (
        "RuleInvalid",
        |s| s.gangs[0].roles[0].segments[0].level = "Row".into(),
        |s| s.gangs[0].roles[0].segments[0].level = "Block".into(),
    ),
    (
        "RuleInvalid",
        |s| s.gangs[0].roles[0].segments[0].pods = 0,
        |s| s.gangs[0].roles[0].segments[0].pods = 1,
    ),
    (
        "RuleInvalid",
        |s| s.gangs[0].within.as_mut().unwrap().level = "Row".into(),
        |s| s.gangs[0].within = None,
    ),
    (
        "ClassNotAllowed",
        |s| plan(&mut s.gangs[0]).units[0].placed.class = None,
        |s| {
            plan(&mut s.gangs[0]).units[0].placed.class = None;
            s.gangs[0].roles[0].devices = 0;
        },
    ),
    (
        "ClassNotAllowed",
        |s| plan(&mut s.gangs[0]).units[0].placed.class = Some("gb200".into()),
        |s| {
            // Another class than the other unit is allowed: classes are never mixed inside a unit, only.
            plan(&mut s.gangs[0]).units[0].placed.class = Some("h200".into());
            for node in &mut s.nodes[..2] {
                node.labels.insert("card".into(), "h200".into());
            }
        },
    ),
    (
        "NodeOfOtherClass", // mixed inside a unit
        |s| drop(s.nodes[1].labels.insert("card".into(), "h200".into())),
        |s| drop(s.nodes[7].labels.insert("card".into(), "h200".into())),
    ),
];

#[test]
fn each_violation_and_the_nearest_that_is_none() {
    for (at, (expected, breaks, spares)) in SNAPSHOTS.iter().enumerate() {
        let mut broken = sound();
        breaks(&mut broken);
        assert_eq!(kinds(&check(&broken)), [*expected], "row {at}, broken");
        let mut whole = sound();
        spares(&mut whole);
        assert_eq!(check(&whole), Vec::new(), "row {at} ({expected}), nearest");
    }
}

#[test]
fn a_violation_names_what_a_person_needs() {
    let mut snapshot = sound();
    snapshot.pods[0].node = Some("n7".into());
    snapshot.gangs[0].within = None;
    plan(&mut snapshot.gangs[0]).units[1].placed.nodes[1] = "n4".into();
    let texts: Vec<String> = check(&snapshot).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "I2: pod llama-0-0 (research/llama worker[0].0) is on node n7, its plan says n0",
            "I2: pod llama-1-1 (research/llama worker[1].1) is on node n3, its plan says n4",
            "I4: block 0 (of 2 pods) of research/llama worker[1] must lie in one Rack, it lies in x/b, y/a",
        ]
    );
}
