//! Preferred node affinity and taints that ask to be avoided: they decide between what is equally compact.

use muster_engine::{Decision, Engine, Event};
use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Node, NodeSelectorTerm, ObjectKey, PodTraits, Preference,
    Requirement, Resources, Role, Rules, Taint, TaintEffect, Topology, Uid,
};
use std::collections::{BTreeMap, BTreeSet};

const GPU: &str = "example.com/gpu";

/// Racks of two nodes of eight GPUs; `label` gives a node its labels beside the rack's.
fn engine(racks: usize, label: impl Fn(usize) -> Vec<(&'static str, &'static str)>) -> Engine {
    let mut engine = Engine::new();
    engine.apply(Event::Topology(Topology {
        levels: vec![Level { name: "Rack".into(), keys: vec!["rack".into()] }],
    }));
    for index in 0..2 * racks {
        let mut labels = BTreeMap::from([("rack".to_owned(), format!("r{}", index / 2))]);
        let mut taints = Vec::new();
        for (key, value) in label(index) {
            if key == "avoid" {
                let effect = TaintEffect::PreferNoSchedule;
                taints.push(Taint { key: key.into(), value: value.into(), effect });
            } else {
                labels.insert(key.into(), value.into());
            }
        }
        engine.apply(Event::Node(Node {
            name: format!("n{index}").into(),
            uid: Uid::default(),
            labels,
            taints,
            allocatable: Resources::of([(GPU, 8), ("cpu", 100), ("pods", 20)]),
            ready: true,
            cordoned: false,
        }));
    }
    engine
}

fn role(name: &str, devices: u32, pods: u32, wish: Option<&str>) -> Role {
    let preferred = wish.map(|value| Preference {
        weight: 10,
        term: NodeSelectorTerm { requirements: vec![Requirement::label_in("pool", &[value])] },
    });
    Role {
        name: name.into(),
        requests: Resources::of([("cpu", 1)]),
        devices,
        node_selector: BTreeMap::new(),
        affinity: Vec::new(),
        tolerations: Vec::new(),
        traits: PodTraits { labels: BTreeMap::new(), preferred: preferred.into_iter().collect() },
        pods_per_unit: pods,
        min: 1,
        max: 1,
        valid: Vec::new(),
        segments: Vec::new(),
        spares: 0,
    }
}

fn placed(engine: &mut Engine, roles: Vec<Role>) -> Vec<String> {
    engine.apply(Event::Gang(Gang {
        key: ObjectKey::new("ns", "gang"),
        uid: Uid::default(),
        queue: "main".into(),
        priority: 0,
        since: 0,
        classes: vec![AcceleratorClass { name: "a".into(), resource: GPU.into(), requirements: Vec::new() }],
        roles,
        within: None,
        rules: Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }));
    let decisions = engine.decide(0, 1);
    let [Decision::Place { placement, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    placement.units.iter().flat_map(|unit| &unit.nodes).map(ToString::to_string).collect()
}

/// The last rack's nodes are of the pool that is wished for.
fn last_is_good(index: usize) -> Vec<(&'static str, &'static str)> {
    vec![("pool", if index >= 4 { "good" } else { "other" })]
}

#[test]
fn of_racks_that_are_equally_compact_the_preferred_one_is_taken() {
    assert_eq!(placed(&mut engine(3, last_is_good), vec![role("w", 8, 2, None)]), ["n0", "n1"]);
    assert_eq!(placed(&mut engine(3, last_is_good), vec![role("w", 8, 2, Some("good"))]), ["n4", "n5"]);
    // Also where another rack would be filled exactly.
    let mut used = engine(3, last_is_good);
    let requests = Resources::of([(GPU, 4), ("pods", 1)]);
    used.apply(Event::Use { id: "u".into(), node: "n0".into(), requests });
    assert_eq!(placed(&mut used, vec![role("w", 4, 1, Some("good"))]), ["n4"]);
}

#[test]
fn a_taint_that_asks_to_be_avoided_is_avoided() {
    let first = |index: usize| if index < 2 { vec![("avoid", "me")] } else { Vec::new() };
    assert_eq!(placed(&mut engine(2, first), vec![role("w", 8, 2, None)]), ["n2", "n3"]);
    // It never blocks.
    let all = |_: usize| vec![("avoid", "me")];
    assert_eq!(placed(&mut engine(1, all), vec![role("w", 8, 2, None)]), ["n0", "n1"]);
}

#[test]
fn a_wish_costs_no_rack() {
    // One node of each rack is good: both pods would lie on good nodes, in two racks.
    let odd = |index: usize| vec![("pool", if index % 2 == 1 { "good" } else { "other" })];
    let nodes = placed(&mut engine(2, odd), vec![role("w", 8, 2, Some("good"))]);
    assert_eq!(nodes, ["n0", "n1"]);
    assert_eq!(placed(&mut engine(2, odd), vec![role("w", 8, 1, Some("good"))]), ["n1"]);
}

#[test]
fn the_wishes_of_every_role_are_heard() {
    let odd = |index: usize| vec![("pool", if index % 2 == 1 { "good" } else { "other" })];
    let both = |wish| vec![role("driver", 0, 1, None), role("w", 8, 1, wish)];
    let plain = placed(&mut engine(1, odd), both(None));
    let wished = placed(&mut engine(1, odd), both(Some("good")));
    assert_eq!(plain[1], "n0");
    assert_eq!(wished, ["n1", "n1"], "what lies on a node moves as a whole");
}
