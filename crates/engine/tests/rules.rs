//! One test per rule of the interface: capacity, eligibility, classes, order of decisions, refusals.

mod common;

use common::{class_of, engine_of as engine, gang_of, node_at, role_of};
use muster_engine::{Decision, Engine, Event, How};
use muster_model::{
    Gang, GangState, Mode, Node, NodeSelectorTerm, Operator, Plan, Reason, Requirement, Resources, Role,
    Segment, Taint, TaintEffect, Toleration, TolerationOperator, Within, plan::Placement,
    reason::NodeRefusal,
};
use std::collections::BTreeSet;

/// A node with 8 GPUs of a class, in a block and a rack.
fn gpu_node(name: &str, block: &str, rack: &str, class: &str) -> Node {
    let labels = [
        ("network.topology.nvidia.com/spine", block),
        ("network.topology.nvidia.com/leaf", rack),
        ("gpu", class),
    ];
    node_at(name, labels, Resources::of([("nvidia.com/gpu", 8), ("cpu", 64_000), ("pods", 110)]))
}

/// Two blocks of two racks of two nodes: a0 … d1.
fn pool() -> Vec<Node> {
    [("a", "b0", "r0"), ("b", "b0", "r1"), ("c", "b1", "r0"), ("d", "b1", "r1")]
        .iter()
        .flat_map(|(n, block, rack)| (0..2).map(move |i| gpu_node(&format!("{n}{i}"), block, rack, "h100")))
        .collect()
}

/// A role of whole nodes.
fn worker(pods: u32, min: u32, max: u32) -> Role {
    Role { devices: 8, ..role_of("worker", Resources::of([("cpu", 1_000)]), pods, min, max) }
}

fn gang(name: &str, role: Role) -> Gang {
    Gang { classes: vec![class_of("h100")], ..gang_of(name, vec![role]) }
}

fn segment(pods: u32, level: &str, mode: Mode) -> Segment {
    Segment { pods, level: level.into(), mode }
}

fn decide(engine: &mut Engine, gang: &Gang) -> Result<Placement, Reason> {
    engine.apply(Event::Gang(gang.clone()));
    let mut decisions = engine.decide(0, 10);
    assert_eq!(decisions.len(), 1, "{decisions:?}");
    match decisions.remove(0) {
        Decision::Place { placement, .. } => Ok(placement),
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

fn names(placement: &Placement) -> Vec<Vec<String>> {
    placement.units.iter().map(|unit| unit.nodes.iter().map(ToString::to_string).collect()).collect()
}

fn plan(placement: Placement) -> Plan {
    Plan::next(None, 1, placement, &BTreeSet::new(), false)
}

#[test]
fn the_most_units_in_the_smallest_subtree_with_ranks_along_the_tree() {
    let mut engine = engine(pool());
    let placement = decide(&mut engine, &gang("g", worker(2, 1, 2))).unwrap();
    assert_eq!(names(&placement), [["a0", "a1"], ["b0", "b1"]], "one block, each unit in a rack");
}

#[test]
fn a_decision_is_held_at_once_and_until_a_gang_event_says_otherwise() {
    let mut engine = engine(pool());
    let first = gang("first", worker(8, 1, 1));
    decide(&mut engine, &first).unwrap();
    let second = gang("second", worker(1, 1, 1));
    assert!(decide(&mut engine, &second).is_err());
    assert!(engine.decide(0, 10).is_empty(), "refused once, and nothing has changed since");
    engine.apply(Event::Gang(Gang { state: GangState::Inactive, ..first.clone() }));
    let decisions = engine.decide(0, 10);
    assert!(matches!(&decisions[..], [Decision::Place { key, .. }] if *key == second.key), "{decisions:?}");
}

#[test]
fn higher_priority_first_then_longest_waiting_then_key() {
    let mut engine = engine(pool());
    let waiting = |name: &str, priority, since| Gang { priority, since, ..gang(name, worker(1, 1, 1)) };
    for gang in [waiting("c", 0, 5), waiting("b", 0, 1), waiting("a", 0, 5), waiting("z", 9, 9)] {
        engine.apply(Event::Gang(gang));
    }
    let order = |decisions: Vec<Decision>| -> Vec<String> {
        decisions
            .into_iter()
            .map(|d| match d {
                Decision::Place { key, .. } | Decision::Refuse { key, .. } => key.name,
            })
            .collect()
    };
    assert_eq!(order(engine.decide(0, 3)), ["z", "b", "a"]);
    assert_eq!(order(engine.decide(0, 3)), ["c"], "the limit defers, it does not drop");
}

#[test]
fn a_smaller_gang_goes_ahead_of_one_that_cannot_be_placed() {
    let mut engine = engine(pool());
    engine.apply(Event::Gang(Gang { priority: 5, ..gang("large", worker(9, 1, 1)) }));
    engine.apply(Event::Gang(gang("small", worker(1, 1, 1))));
    let decisions = engine.decide(0, 10);
    assert!(matches!(&decisions[..], [Decision::Refuse { .. }, Decision::Place { .. }]), "{decisions:?}");
}

#[test]
fn capacity_counts_plans_spares_foreign_use_and_pod_slots() {
    let one = || vec![gpu_node("a0", "b0", "r0", "h100")];
    let small = |devices| gang("g", Role { devices, ..worker(1, 1, 1) });
    let holder = |placement| Gang {
        state: GangState::Holding(plan(placement)),
        ..gang("h", Role { devices: 4, ..worker(1, 1, 1) })
    };
    let unit = decide(&mut engine(one()), &gang("h", Role { devices: 4, ..worker(1, 1, 1) })).unwrap();

    let mut with_plan = engine(one());
    with_plan.apply(Event::Gang(holder(unit.clone())));
    assert!(decide(&mut with_plan, &small(5)).is_err());
    assert!(decide(&mut with_plan, &small(4)).is_ok());

    let mut with_spare = engine(one());
    let mut spared = unit.clone();
    spared.spares.insert("worker".into(), vec!["a0".into()]);
    with_spare.apply(Event::Gang(holder(spared)));
    assert!(decide(&mut with_spare, &small(1)).is_err(), "the unit and its spare hold four each");

    let mut foreign = engine(one());
    let requests = Resources::of([("nvidia.com/gpu", 8), ("pods", 1)]);
    foreign.apply(Event::Use { id: "x".into(), node: "a0".into(), requests: requests.clone() });
    foreign.apply(Event::Use { id: "x".into(), node: "a0".into(), requests });
    assert!(decide(&mut foreign, &small(1)).is_err());
    foreign.apply(Event::UseGone { id: "x".into() });
    assert!(matches!(&foreign.decide(0, 1)[..], [Decision::Place { .. }]), "the same use twice is once");

    let mut slots =
        engine(vec![node_at("n", [("gpu", "h100")], Resources::of([("cpu", 64_000), ("pods", 2)]))]);
    assert!(decide(&mut slots, &gang_of("g", vec![role_of("w", Resources::default(), 3, 1, 1)])).is_err());
}

#[test]
fn a_gang_that_is_not_valid_is_asked_again_only_when_the_topology_changes() {
    let mut engine = engine(pool());
    let segments = vec![segment(1, "Row", Mode::Required)];
    engine.apply(Event::Gang(gang("g", Role { segments, ..worker(1, 1, 1) })));
    let decided = engine.decide(0, 1);
    assert!(matches!(&decided[..], [Decision::Refuse { reason: Reason::Invalid { .. }, .. }]), "{decided:?}");
    assert_eq!(engine.decide(0, 1), []);
    let level = muster_model::Level { name: "Row".into(), keys: vec!["row".into()] };
    engine.apply(Event::Topology(muster_model::Topology { levels: vec![level] }));
    assert!(matches!(&engine.decide(0, 1)[..], [Decision::Place { .. }]));
}

#[test]
fn use_of_a_node_that_comes_later_counts() {
    let mut engine = Engine::new();
    let requests = Resources::of([("nvidia.com/gpu", 8), ("pods", 1)]);
    engine.apply(Event::Use { id: "x".into(), node: "a0".into(), requests });
    engine.apply(Event::Node(gpu_node("a0", "b0", "r0", "h100")));
    assert!(decide(&mut engine, &gang("g", worker(1, 1, 1))).is_err());
}

/// What to change in a node and a gang, the refusal expected, and whether an empty, healthy cluster would have it.
type Change<'a> = (&'a dyn Fn(&mut Node), &'a dyn Fn(&mut Gang), NodeRefusal, bool);

#[test]
fn nodes_that_may_not_be_used_and_the_reason_that_says_so() {
    let taint = |effect| Taint { key: "k".into(), value: "v".into(), effect };
    let selector = |gang: &mut Gang| {
        gang.roles[0].node_selector.insert("zone".into(), "z".into());
    };
    let affinity = |gang: &mut Gang| {
        let requirements = vec![Requirement::label_in("gpu", &["a100"])];
        gang.roles[0].affinity = vec![NodeSelectorTerm { requirements }];
    };
    let other = |gang: &mut Gang| gang.classes = vec![class_of("h200")];
    let avoid = |gang: &mut Gang| {
        gang.avoid.insert("a0".into());
    };
    let large = |gang: &mut Gang| gang.roles[0].devices = 9;
    let same = |_: &mut Gang| {};
    let table: [Change<'_>; 9] = [
        (&|n| n.ready = false, &same, NodeRefusal::NotReady, false),
        (&|n| n.cordoned = true, &same, NodeRefusal::Cordoned, false),
        (&|_| {}, &avoid, NodeRefusal::Avoided, false),
        (&|_| {}, &other, NodeRefusal::OtherClass, true),
        (&|n| n.taints = vec![taint(TaintEffect::NoSchedule)], &same, NodeRefusal::Tainted, true),
        (&|n| n.taints = vec![taint(TaintEffect::NoExecute)], &same, NodeRefusal::Tainted, true),
        (&|_| {}, &selector, NodeRefusal::Selector, true),
        (&|_| {}, &affinity, NodeRefusal::Selector, true),
        (&|_| {}, &large, NodeRefusal::TooSmall, true),
    ];
    for (change_node, change_gang, refusal, lasting) in table {
        let mut node = gpu_node("a0", "b0", "r0", "h100");
        change_node(&mut node);
        let mut wanted = gang("g", worker(1, 1, 1));
        change_gang(&mut wanted);
        let reason = decide(&mut engine(vec![node]), &wanted).unwrap_err();
        let (Reason::NoNodeFits { nodes, .. } | Reason::InsufficientCapacity { nodes, .. }) = &reason else {
            panic!("{refusal:?}: {reason:?}");
        };
        assert_eq!(matches!(reason, Reason::NoNodeFits { .. }), lasting, "{refusal:?}: {reason:?}");
        assert_eq!(nodes.iter().collect::<Vec<_>>(), [(&refusal, &1)], "{reason}");
    }
}

#[test]
fn tolerated_and_soft_taints_do_not_exclude() {
    let mut node = gpu_node("a0", "b0", "r0", "h100");
    node.taints = vec![
        Taint { key: "gpu".into(), value: String::new(), effect: TaintEffect::NoSchedule },
        Taint { key: "soft".into(), value: String::new(), effect: TaintEffect::PreferNoSchedule },
    ];
    let toleration = Toleration {
        key: Some("gpu".into()),
        operator: TolerationOperator::Exists,
        value: String::new(),
        effect: None,
    };
    let role = Role { tolerations: vec![toleration], ..worker(1, 1, 1) };
    assert!(decide(&mut engine(vec![node]), &gang("g", role)).is_ok());
}

#[test]
fn plans_on_nodes_that_may_not_be_used_still_count() {
    let mut engine = engine(vec![gpu_node("a0", "b0", "r0", "h100")]);
    let role = Role { devices: 4, ..worker(1, 1, 1) };
    let placement = decide(&mut engine, &gang("h", role.clone())).unwrap();
    let mut holder = gang("h", role);
    holder.avoid.insert("a0".into());
    holder.state = GangState::Holding(plan(placement));
    engine.apply(Event::Gang(holder));
    assert!(decide(&mut engine, &gang("g", Role { devices: 5, ..worker(1, 1, 1) })).is_err());
}

#[test]
fn classes_are_tried_in_order_and_never_mixed() {
    let mut nodes: Vec<Node> = (0..3).map(|i| gpu_node(&format!("h{i}"), "b0", "r0", "h100")).collect();
    nodes.extend((0..4).map(|i| gpu_node(&format!("x{i}"), "b0", "r0", "h200")));
    let with = |min, max, classes: &[&str]| Gang {
        classes: classes.iter().map(|c| class_of(c)).collect(),
        ..gang("g", worker(1, min, max))
    };
    let class = |wanted: &Gang| {
        let placement = decide(&mut engine(nodes.clone()), wanted).ok()?;
        let mut all: Vec<Option<String>> = placement.units.iter().map(|u| u.class.clone()).collect();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), 1, "one class for all units");
        Some((all.remove(0)?, count))
    };
    assert_eq!(class(&with(2, 4, &["h100", "h200"])), Some(("h100".into(), 3)), "the first that reaches min");
    assert_eq!(class(&with(4, 4, &["h100", "h200"])), Some(("h200".into(), 4)));
    assert_eq!(class(&with(5, 5, &["h100", "h200"])), None, "seven nodes, but no class has five");
}

#[test]
fn a_gang_without_devices_uses_no_class() {
    let mut engine = engine(pool());
    let role = role_of("w", Resources::of([("cpu", 1_000)]), 1, 1, 1);
    let placement = decide(&mut engine, &gang_of("g", vec![role])).unwrap();
    assert_eq!(placement.units[0].class, None);
}

#[test]
fn specifications_that_cannot_be_meant() {
    let wrong_level = Role { segments: vec![segment(2, "Row", Mode::Required)], ..worker(2, 1, 1) };
    let no_divisor = Role { segments: vec![segment(3, "Rack", Mode::Required)], ..worker(4, 1, 1) };
    let sizes = Role {
        segments: vec![segment(2, "Rack", Mode::Required), segment(3, "Block", Mode::Required)],
        ..worker(6, 1, 1)
    };
    let table: [(Gang, &str, &str); 7] = [
        (
            gang("g", wrong_level),
            "roles[worker].segments[0].level",
            "Region, Zone, Block, Rack, NvlinkDomain, Node",
        ),
        (gang("g", no_divisor), "roles[worker].segments[0].pods", "divides"),
        (gang("g", sizes), "roles[worker].segments", "divide each other"),
        (Gang { classes: vec![], ..gang("g", worker(1, 1, 1)) }, "classes", "class"),
        (gang("g", worker(1, 3, 2)), "roles[worker].min", "lower min"),
        (gang("g", Role { valid: vec![8], ..worker(1, 1, 4) }), "roles[worker].valid", "within"),
        (
            Gang {
                within: Some(Within { level: "Hall".into(), mode: Mode::Required }),
                ..gang("g", worker(1, 1, 1))
            },
            "within.level",
            "Rack",
        ),
    ];
    for (wanted, at, hint) in table {
        match decide(&mut engine(pool()), &wanted) {
            Err(Reason::Invalid { field, remedy, .. }) => {
                assert_eq!(field, at);
                assert!(remedy.contains(hint), "{remedy}");
            }
            other => panic!("{at}: {other:?}"),
        }
    }
}

#[test]
fn only_valid_counts_are_placed() {
    let counts = |valid: &[u32], min| {
        let role = Role { valid: valid.to_vec(), ..worker(1, min, 16) };
        decide(&mut engine(pool()), &gang("g", role)).map(|p| p.units.len())
    };
    assert_eq!(counts(&[2, 4, 16], 2), Ok(4));
    assert_eq!(counts(&[], 2), Ok(8));
    assert!(counts(&[16], 2).is_err());
}

#[test]
fn a_segment_no_domain_could_ever_hold_is_told_from_one_that_must_wait() {
    let role = |pods| Role { segments: vec![segment(pods, "Rack", Mode::Required)], ..worker(pods, 1, 1) };
    let reason = decide(&mut engine(pool()), &gang("g", role(3))).unwrap_err();
    let Reason::SegmentTooLarge { pods: 3, level, largest: Some(largest), .. } = &reason else {
        panic!("{reason:?}")
    };
    assert_eq!((level.as_str(), largest.pods), ("Rack", 2));

    let mut busy = engine(pool());
    for node in ["a0", "b0", "c0", "d0"] {
        let requests = Resources::of([("nvidia.com/gpu", 1), ("pods", 1)]);
        busy.apply(Event::Use { id: node.into(), node: node.into(), requests });
    }
    let reason = decide(&mut busy, &gang("g", role(2))).unwrap_err();
    let Reason::InsufficientCapacity {
        fits: 0, min: 1, empty: 4, level: Some(level), nearest, nodes, ..
    } = &reason
    else {
        panic!("{reason:?}")
    };
    assert_eq!(level, "Rack");
    assert_eq!((nearest[0].pods, nearest[0].wanted), (1, 2));
    assert_eq!(
        nearest[0].domain, "b0/r0",
        "levels that nobody labels are called as the next inside, and not twice"
    );
    assert_eq!(nodes[&NodeRefusal::Busy], 4);
}

#[test]
fn a_gang_kept_within_one_domain() {
    let within = |level: &str, pods| Gang {
        within: Some(Within { level: level.into(), mode: Mode::Required }),
        ..gang("g", worker(pods, 1, 1))
    };
    let placement = decide(&mut engine(pool()), &within("Block", 4)).unwrap();
    assert_eq!(names(&placement), [["a0", "a1", "b0", "b1"]]);
    assert!(matches!(
        decide(&mut engine(pool()), &within("Block", 5)),
        Err(Reason::SegmentTooLarge { pods: 5, level, .. }) if level == "Block"
    ));
}

#[test]
fn spares_are_held_beside_the_units_they_serve_and_dropped_where_they_cost_units() {
    let mut engine = engine(pool());
    let placement = decide(&mut engine, &gang("g", Role { spares: 1, ..worker(1, 3, 3) })).unwrap();
    assert_eq!(names(&placement), [["a0"], ["a1"], ["b0"]]);
    assert_eq!(placement.spares["worker"], ["b1".into()]);
    let placement = decide(&mut engine, &gang("h", Role { spares: 1, ..worker(1, 1, 8) })).unwrap();
    assert_eq!(placement.units.len(), 4, "units before spares");
    assert!(placement.spares.is_empty());
}

#[test]
fn a_node_whose_labels_change_moves() {
    let mut engine = engine(pool());
    let role = Role { segments: vec![segment(3, "Rack", Mode::Required)], ..worker(3, 1, 1) };
    assert!(decide(&mut engine, &gang("g", role)).is_err());
    engine.apply(Event::Node(gpu_node("b0", "b0", "r0", "h100")));
    assert!(matches!(&engine.decide(0, 1)[..], [Decision::Place { how: How::Fresh, .. }]));
}

#[test]
fn the_node_is_the_nvlink_domain_where_nothing_says_otherwise() {
    let nodes = vec![gpu_node("a0", "b0", "r0", "h100"), gpu_node("a1", "b0", "r0", "h100")];
    let role = Role { segments: vec![segment(2, "NvlinkDomain", Mode::Required)], ..worker(2, 1, 1) };
    assert!(decide(&mut engine(nodes.clone()), &gang("g", role.clone())).is_err());
    let cliqued = nodes.into_iter().map(|mut node| {
        node.labels.insert("nvidia.com/gpu.clique".into(), "uuid.1".into());
        node
    });
    assert!(decide(&mut engine(cliqued), &gang("g", role)).is_ok());
}

#[test]
fn several_roles_share_nodes_and_all_reach_their_minimum() {
    let mut engine = engine(pool());
    let server = role_of("ps", Resources::of([("cpu", 60_000)]), 1, 2, 2);
    let both = Gang { classes: vec![class_of("h100")], ..gang_of("g", vec![worker(1, 4, 8), server]) };
    let placement = decide(&mut engine, &both).unwrap();
    let count = |role: &str| placement.units.iter().filter(|u| u.id.role == role).count();
    assert_eq!((count("worker"), count("ps")), (8, 2));
}

#[test]
fn affinity_requirements_on_the_node_name() {
    let requirement = Requirement {
        key: "metadata.name".into(),
        operator: Operator::In,
        values: vec!["d1".into()],
        field: true,
    };
    let term = NodeSelectorTerm { requirements: vec![requirement] };
    let placement =
        decide(&mut engine(pool()), &gang("g", Role { affinity: vec![term], ..worker(1, 1, 1) })).unwrap();
    assert_eq!(names(&placement), [["d1"]]);
}
