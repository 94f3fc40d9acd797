//! Nodes that join tainted and lose the taint later: what waited for them is placed.

use muster_engine::{Decision, Engine, Event};
use muster_model::{
    AcceleratorClass, Gang, GangState, Node, NodeName, ObjectKey, PodTraits, Resources, Role, Taint,
    TaintEffect, Uid,
};
use std::collections::{BTreeMap, BTreeSet};

fn node(name: &str, tainted: bool) -> Node {
    let taint = Taint {
        key: "node.kubernetes.io/not-ready".into(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    };
    Node {
        name: NodeName::from(name),
        uid: Uid(name.into()),
        labels: BTreeMap::new(),
        taints: if tainted { vec![taint] } else { Vec::new() },
        allocatable: Resources::of([("cpu", 64_000), ("nvidia.com/gpu", 8), ("pods", 110)]),
        ready: true,
        cordoned: false,
    }
}

fn gang(units: u32) -> Gang {
    Gang {
        key: ObjectKey::new("ns", "gang"),
        uid: Uid("gang".into()),
        queue: "default".into(),
        priority: 0,
        since: 0,
        classes: vec![AcceleratorClass {
            name: "any".into(),
            resource: "nvidia.com/gpu".into(),
            requirements: Vec::new(),
        }],
        roles: vec![Role {
            name: "worker".into(),
            requests: Resources::of([("cpu", 4_000)]),
            devices: 8,
            node_selector: BTreeMap::new(),
            affinity: Vec::new(),
            tolerations: Vec::new(),
            traits: PodTraits::default(),
            pods_per_unit: 1,
            min: units,
            max: units,
            valid: Vec::new(),
            segments: Vec::new(),
            spares: 0,
        }],
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }
}

/// One after the other the nodes lose their taints, and the gang is placed when the last it needs has.
#[test]
fn a_gang_is_placed_when_enough_nodes_lose_their_taints() {
    let mut engine = Engine::new();
    for at in 0..4 {
        engine.apply(Event::Node(node(&format!("n{at}"), at > 0)));
    }
    engine.apply(Event::Gang(gang(2)));
    let first = engine.decide(0, 10);
    assert!(matches!(first.as_slice(), [Decision::Refuse { .. }]), "{first:?}");
    engine.apply(Event::Node(node("n1", false)));
    let second = engine.decide(1, 10);
    assert!(matches!(second.as_slice(), [Decision::Place { .. }]), "{second:?}");
}

/// The same when the class is recognised by a label whose values are spelt out anew as nodes join.
#[test]
fn a_gang_whose_class_is_told_anew_is_placed_too() {
    let mut engine = Engine::new();
    for at in 0..4 {
        engine.apply(Event::Node(node(&format!("n{at}"), at > 0)));
    }
    engine.apply(Event::Gang(gang(2)));
    assert_eq!(engine.decide(0, 10).len(), 1);
    engine.apply(Event::Gang(gang(2)));
    engine.decide(1, 10);
    for at in 1..4 {
        engine.apply(Event::Node(node(&format!("n{at}"), false)));
    }
    let placed = engine.decide(2, 10);
    assert!(matches!(placed.as_slice(), [Decision::Place { .. }]), "{placed:?}");
}
