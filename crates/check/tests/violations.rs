//! For every violation: a snapshot or decision that has it, and the nearest that has not.

use muster_check::{Invariant, PodView, Snapshot, Use, Violation, check, check_placement, plan_uses};
use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Node, NodeRefusal, NodeSelectorTerm, ObjectKey,
    PlannedUnit, Requirement, Resources, Role, Segment, Taint, TaintEffect, Toleration, Topology, UnitId,
    Within,
    plan::{PlacedUnit, Placement, Plan},
};
use std::collections::{BTreeMap, BTreeSet};

const GPU: &str = "nvidia.com/gpu";

/// Two blocks of two racks of two nodes, 8 GPUs each: `n0` to `n7`; racks `a b` in block `x`, `a c` in block `y`.
fn nodes() -> Vec<Node> {
    let at = [("x", "a"), ("x", "b"), ("y", "a"), ("y", "c")];
    (0..8_usize)
        .map(|i| Node {
            name: format!("n{i}").into(),
            uid: format!("uid-n{i}").as_str().into(),
            labels: [("block", at[i / 2].0), ("rack", at[i / 2].1), ("card", "h100")]
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            taints: vec![Taint { key: "gpu".into(), value: "only".into(), effect: TaintEffect::NoSchedule }],
            allocatable: Resources::of([("cpu", 64_000), ("pods", 10), (GPU, 8)]),
            ready: true,
            cordoned: false,
        })
        .collect()
}

fn topology() -> Topology {
    let level = |name: &str, key: &str| Level { name: name.into(), keys: vec![key.into()] };
    Topology { levels: vec![level("Block", "block"), level("Rack", "rack")] }
}

fn class(name: &str, card: &str) -> AcceleratorClass {
    AcceleratorClass {
        name: name.into(),
        resource: GPU.into(),
        requirements: vec![Requirement::label_in("card", &[card])],
    }
}

fn unit(index: u32, nodes: &[&str]) -> PlacedUnit {
    PlacedUnit {
        id: UnitId { role: "worker".into(), index },
        class: Some("h100".into()),
        nodes: nodes.iter().map(|node| (*node).into()).collect(),
    }
}

/// Two units of two 8-GPU pods, each unit in one rack, all in one block; n0 to n3.
fn gang() -> Gang {
    let role = Role {
        name: "worker".into(),
        requests: Resources::of([("cpu", 4_000)]),
        devices: 8,
        node_selector: BTreeMap::new(),
        affinity: Vec::new(),
        tolerations: vec![Toleration {
            key: Some("gpu".into()),
            exists: true,
            value: String::new(),
            effect: None,
        }],
        pods_per_unit: 2,
        min: 1,
        max: 3,
        valid: Vec::new(),
        segments: vec![Segment { pods: 2, level: "Rack".into(), mode: Mode::Required }],
        spares: 0,
    };
    let planned = |placed| PlannedUnit { placed, incarnation: 1 };
    let units = vec![planned(unit(0, &["n0", "n1"])), planned(unit(1, &["n2", "n3"]))];
    Gang {
        key: ObjectKey::new("research", "llama"),
        uid: "g1".into(),
        queue: "research".into(),
        priority: 0,
        since: 0,
        classes: vec![class("h100", "h100"), class("h200", "h200")],
        roles: vec![role],
        within: Some(Within { level: "Block".into(), mode: Mode::Required }),
        avoid: BTreeSet::new(),
        state: GangState::Holding(Plan { generation: 1, units, spares: BTreeMap::new() }),
    }
}

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
    let foreign = Use { node: "n0".into(), requests: Resources::of([("cpu", 60_000), ("pods", 1)]) };
    Snapshot {
        topology: topology(),
        nodes: nodes(),
        uses: BTreeMap::from([("foreign".to_owned(), foreign)]),
        gangs: vec![gang],
        pods,
    }
}

type Change = fn(&mut Snapshot);

/// What a violation is called in the tables below.
fn kind(violation: &Violation) -> String {
    if let Violation::NodeRefuses { refusal, .. } = violation {
        return format!("NodeRefuses {refusal:?}");
    }
    let text = format!("{violation:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// The kinds found, each once: one fault may show on several resources of a node.
fn kinds(found: &[Violation]) -> Vec<String> {
    found.iter().map(kind).collect::<BTreeSet<_>>().into_iter().collect()
}

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
            plan(&mut other).units = vec![PlannedUnit { placed: unit(0, &["n0", "n1"]), incarnation: 1 }];
            s.gangs.push(other);
        },
        |s| {
            let mut other = gang();
            other.uid = "g2".into();
            plan(&mut other).units = vec![PlannedUnit { placed: unit(0, &["n4", "n5"]), incarnation: 1 }];
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
            let own = Use { node: "n0".into(), requests: s.pods[0].requests.clone() };
            s.uses.insert(s.pods[0].uid.clone(), own);
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
            // Both lack an outer level's label: what the inner label says still counts.
            s.gangs[0].within = None;
            for node in &mut s.nodes[..2] {
                node.labels.remove("block");
            }
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

type Decision = (Vec<Node>, BTreeMap<String, Use>, Gang, Placement);

fn decision() -> Decision {
    let mut gang = gang();
    gang.state = GangState::Waiting;
    let units = vec![unit(0, &["n0", "n1"]), unit(1, &["n2", "n3"])];
    (nodes(), BTreeMap::new(), gang, Placement { units, spares: BTreeMap::new() })
}

/// The gang of the fixture, holding unit 0, with unit 1 lost.
fn replan(gang: &mut Gang) {
    let held = self::gang();
    let GangState::Holding(plan) = held.state else { panic!("the fixture's gang holds a plan") };
    gang.state = GangState::Replan { plan, lost: [UnitId { role: "worker".into(), index: 1 }].into() };
}

type DecisionChange = fn(&mut Decision);

const DECISIONS: &[(&str, DecisionChange, DecisionChange)] = &[
    ("UnitCount", |d| d.2.roles[0].min = 3, |d| d.2.roles[0].min = 2),
    (
        "BlockBroken",
        |d| drop(d.0[1].labels.insert("rack".into(), "q".into())),
        |d| {
            d.0[7].labels.insert("rack".into(), "q".into());
        },
    ),
    ("NodeOfOtherClass", |d| drop(d.0[3].labels.remove("card")), |d| drop(d.0[4].labels.remove("card"))),
    ("UnknownNode", |d| drop(d.0.remove(0)), |d| drop(d.0.remove(7))),
    (
        "Overcommitted", // two pods of one unit on one node
        |d| d.3.units[0].nodes[1] = "n0".into(),
        |d| {
            d.3.units[0].nodes[1] = "n0".into();
            d.2.roles[0].devices = 4;
        },
    ),
    (
        "Overcommitted", // next to another gang's plan
        |d| {
            let mut other = d.2.clone();
            other.uid = "g2".into();
            let one = Placement { units: vec![unit(0, &["n3", "n4"])], spares: BTreeMap::new() };
            d.1 = plan_uses(&d.0, &other, &one);
        },
        |d| {
            let mut other = d.2.clone();
            other.uid = "g2".into();
            let one = Placement { units: vec![unit(0, &["n5", "n4"])], spares: BTreeMap::new() };
            d.1 = plan_uses(&d.0, &other, &one);
        },
    ),
    ("NodeRefuses NotReady", |d| d.0[0].ready = false, |d| d.0[4].ready = false),
    (
        "NodeRefuses Cordoned", // a lost unit, even where it was, must find a node that takes it
        |d| {
            replan(&mut d.2);
            d.0[2].cordoned = true;
        },
        |d| {
            replan(&mut d.2);
            d.0[0].cordoned = true; // held, not lost: it stays
        },
    ),
    ("NodeRefuses Avoided", |d| d.2.avoid = ["n0".into()].into(), |d| d.2.avoid = ["n4".into()].into()),
    (
        "NodeRefuses Tainted",
        |d| d.0[0].taints[0].key = "other".into(),
        |d| {
            d.0[0].taints[0].key = "other".into();
            d.0[0].taints[0].effect = TaintEffect::PreferNoSchedule;
        },
    ),
    (
        "NodeRefuses Selector",
        |d| {
            d.2.roles[0].node_selector = BTreeMap::from([("card".into(), "h100".into())]);
            d.2.classes[0].requirements.clear();
            d.0[0].labels.insert("card".into(), "h200".into());
        },
        |d| d.2.roles[0].node_selector = BTreeMap::from([("card".into(), "h100".into())]),
    ),
    (
        "NodeRefuses Selector",
        |d| {
            let not_n0 = Requirement {
                key: "metadata.name".into(),
                operator: muster_model::Operator::NotIn,
                values: vec!["n0".into()],
                field: true,
            };
            d.2.roles[0].affinity = vec![NodeSelectorTerm { requirements: vec![not_n0] }];
        },
        |d| {
            let card = Requirement::label_in("card", &["h100"]);
            // Terms are alternatives, and an empty one matches nothing.
            d.2.roles[0].affinity =
                vec![NodeSelectorTerm::default(), NodeSelectorTerm { requirements: vec![card] }];
        },
    ),
];

#[test]
fn each_violation_of_a_decision_and_the_nearest_that_is_none() {
    let judge = |(nodes, uses, gang, placement): &Decision| {
        check_placement(nodes, &topology(), uses, gang, placement)
    };
    assert_eq!(judge(&decision()), Vec::new());
    for (at, (expected, breaks, spares)) in DECISIONS.iter().enumerate() {
        let mut broken = decision();
        breaks(&mut broken);
        assert_eq!(kinds(&judge(&broken)), [*expected], "row {at}, broken");
        let mut whole = decision();
        spares(&mut whole);
        assert_eq!(judge(&whole), Vec::new(), "row {at} ({expected}), nearest");
    }
}

#[test]
fn the_constraints_alone_can_be_asked() {
    let (mut nodes, _, gang, placement) = decision();
    nodes[3].ready = false;
    let found = muster_check::check_constraints(&nodes, &gang, &placement);
    let [Violation::NodeRefuses { node, refusal: NodeRefusal::NotReady, .. }] = found.as_slice() else {
        panic!("one refusal expected: {found:?}")
    };
    assert_eq!(node.as_str(), "n3");
    assert_eq!(found[0].invariant(), Invariant::Constraint);
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
