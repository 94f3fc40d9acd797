//! What would let a refused gang run: each change named was tried, and nothing is left behind by trying.

mod common;

use common::{class_of, gang_of, node_at, role_of};
use muster_engine::{Change, Engine, Event};
use muster_model::{Gang, Mode, Reason, Resources, Role, Segment, Within};

/// Two blocks of two racks of two nodes; `busy` nodes are in use.
fn engine(busy: &[&str]) -> Engine {
    let mut engine = Engine::new();
    for (n, block, rack) in [("a", "b0", "r0"), ("b", "b0", "r1"), ("c", "b1", "r0"), ("d", "b1", "r1")] {
        for i in 0..2 {
            let labels =
                [("network.topology.nvidia.com/spine", block), ("network.topology.nvidia.com/leaf", rack)];
            let node = node_at(&format!("{n}{i}"), labels, Resources::of([("cpu", 1_000), ("pods", 10)]));
            engine.apply(Event::Node(node));
        }
    }
    for node in busy {
        let requests = Resources::of([("cpu", 1_000), ("pods", 1)]);
        engine.apply(Event::Use { id: (*node).into(), node: (*node).into(), requests });
    }
    engine
}

fn gang(pods: u32, min: u32, max: u32, segments: &[(u32, &str)]) -> Gang {
    let segments = segments
        .iter()
        .map(|(pods, level)| Segment { pods: *pods, level: (*level).into(), mode: Mode::Required })
        .collect();
    gang_of("g", vec![Role { segments, ..role_of("w", Resources::of([("cpu", 1_000)]), pods, min, max) }])
}

fn texts(engine: &mut Engine, gang: &Gang) -> Vec<String> {
    let before = engine.occupancy();
    let changes = engine.explain(gang).expect("it cannot be placed").changes;
    assert_eq!(engine.occupancy(), before, "explaining changes nothing");
    assert_eq!(engine.explain(gang).map(|e| e.changes), Some(changes.clone()), "nor the next answer");
    changes.iter().map(ToString::to_string).collect()
}

#[test]
fn the_least_room_to_free_or_a_rule_further_out() {
    let mut scattered = engine(&["a0", "b0", "c0", "d0"]);
    assert_eq!(
        texts(&mut scattered, &gang(2, 1, 1, &[(2, "Rack")])),
        [
            "free room for 1 more w pods in b0/r0",
            "set roles[w].segments[0].level to Block instead of Rack",
            "set roles[w].segments[0].mode to Preferred",
        ]
    );
    let two = texts(&mut scattered, &gang(2, 2, 2, &[(2, "Rack")]));
    assert_eq!(two[0], "free room for 2 more w pods in b0/r0, b0/r1");
}

#[test]
fn fewer_units_where_the_cluster_is_too_small() {
    assert_eq!(texts(&mut engine(&[]), &gang(1, 9, 9, &[])), ["lower the minimum of w to 8 units"]);
    assert_eq!(
        texts(&mut engine(&["a0", "a1", "b0"]), &gang(1, 6, 8, &[])),
        ["free room for 1 more w pods in cluster", "lower the minimum of w to 5 units"]
    );
}

#[test]
fn a_domain_that_could_never_hold_it() {
    let within = |level: &str| Some(Within { level: level.into(), mode: Mode::Required });
    let asked = Gang { within: within("Rack"), ..gang(4, 1, 1, &[]) };
    let explanation = engine(&[]).explain(&asked).expect("it cannot be placed");
    assert!(
        matches!(explanation.reason, Reason::SegmentTooLarge { pods: 4, .. }),
        "{:?}",
        explanation.reason
    );
    assert_eq!(
        explanation.changes,
        [
            Change::Widen { field: "within.level".into(), from: "Rack".into(), to: "Block".into() },
            Change::Prefer { field: "within.mode".into() },
        ]
    );
}

#[test]
fn nothing_to_explain_and_nothing_to_mend() {
    assert_eq!(engine(&[]).explain(&gang(8, 1, 1, &[])), None);
    let invalid = engine(&[]).explain(&gang(2, 1, 1, &[(2, "Row")])).expect("it cannot be placed");
    assert!(matches!(invalid.reason, Reason::Invalid { .. }));
    assert_eq!(invalid.changes, []);
}

/// What a change is, so that a table can tell that none is missing. A new change does not compile until it is here.
fn kind(change: &Change) -> &'static str {
    match change {
        Change::Free { .. } => "free",
        Change::Class { .. } => "class",
        Change::Fewer { .. } => "fewer",
        Change::Widen { .. } => "widen",
        Change::Raise { .. } => "raise",
        Change::LeaveOut { .. } => "leave out",
        Change::InGroup { .. } => "in group",
        Change::Prefer { .. } => "prefer",
    }
}

/// Two racks of two 8-GPU nodes of class h100 in one block, one node of each in use; one rack of two of class h200.
fn two_classes() -> Engine {
    let mut engine = Engine::new();
    for (name, rack, class) in [
        ("a0", "r0", "h100"),
        ("a1", "r0", "h100"),
        ("b0", "r1", "h100"),
        ("b1", "r1", "h100"),
        ("x0", "r2", "h200"),
        ("x1", "r2", "h200"),
    ] {
        let labels = [
            ("network.topology.nvidia.com/spine", "b0"),
            ("network.topology.nvidia.com/leaf", rack),
            ("gpu", class),
        ];
        let room = Resources::of([("nvidia.com/gpu", 8), ("cpu", 64_000), ("pods", 10)]);
        engine.apply(Event::Node(node_at(name, labels, room)));
    }
    for node in ["a0", "b0"] {
        let requests = Resources::of([("nvidia.com/gpu", 8), ("pods", 1)]);
        engine.apply(Event::Use { id: node.into(), node: node.into(), requests });
    }
    engine
}

#[test]
fn every_kind_of_change_is_named_where_it_alone_suffices() {
    let worker = |pods: u32, min: u32, level: Option<&str>| {
        let segments = level.map(|level| Segment { pods, level: level.into(), mode: Mode::Required });
        let role = Role {
            devices: 8,
            segments: segments.into_iter().collect(),
            ..role_of("w", Resources::default(), pods, min, min)
        };
        Gang { classes: vec![class_of("h100")], ..gang_of("g", vec![role]) }
    };
    let within = |level: &str| {
        let within = Some(Within { level: level.into(), mode: Mode::Required });
        Gang { within, ..worker(1, 2, None) }
    };
    let table: [(Gang, &[&str]); 5] = [
        // Two free nodes in two racks.
        (worker(2, 1, Some("Rack")), &["free", "class", "widen", "prefer"]),
        (within("Rack"), &["free", "class", "fewer", "widen", "prefer"]),
        // Four nodes of the class, two free.
        (worker(1, 3, None), &["free", "fewer"]),
        // More than the cluster has.
        (worker(1, 5, None), &["fewer"]),
        // No rack is so large; the block is, but is in use.
        (worker(3, 1, Some("Rack")), &[]),
    ];
    let classes = [class_of("h100"), class_of("b200"), class_of("h200")];
    let mut seen = std::collections::BTreeSet::new();
    for (asked, expected) in table {
        let mut engine = two_classes();
        let before = engine.occupancy();
        let changes = engine.explain_among(&asked, &classes).expect("it cannot be placed").changes;
        assert_eq!(engine.occupancy(), before, "explaining changes nothing");
        let kinds: Vec<&str> = changes.iter().map(kind).collect();
        assert_eq!(kinds, expected, "{changes:?}");
        seen.extend(kinds);
        for change in &changes {
            let runs = match change {
                // Each change is made, and the gang runs.
                Change::Class { class } => {
                    assert_eq!(class, "h200");
                    engine.explain(&Gang { classes: vec![class_of(class)], ..asked.clone() }).is_none()
                }
                Change::Fewer { min, .. } => {
                    let role = Role { min: *min, ..asked.roles[0].clone() };
                    engine.explain(&Gang { roles: vec![role], ..asked.clone() }).is_none()
                }
                _ => continue,
            };
            assert!(runs, "{change}");
        }
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}

#[test]
fn the_class_on_which_least_must_be_freed_decides_where() {
    let mut engine = two_classes();
    let requests = Resources::of([("nvidia.com/gpu", 8), ("pods", 1)]);
    for node in ["a1", "x0"] {
        engine.apply(Event::Use { id: node.into(), node: node.into(), requests: requests.clone() });
    }
    let role = Role { devices: 8, ..role_of("w", Resources::default(), 2, 1, 1) };
    let within = Some(Within { level: "Rack".into(), mode: Mode::Required });
    // Of class h100 rack r1 has one free node, of class h200 rack r2 has one.
    let asked =
        Gang { classes: vec![class_of("h100"), class_of("h200")], within, ..gang_of("g", vec![role]) };
    let changes = engine.explain(&asked).expect("it cannot be placed").changes;
    assert_eq!(changes[0].to_string(), "free room for 1 more w pods in b0/r1");
    engine.apply(Event::Use { id: "b1".into(), node: "b1".into(), requests });
    let changes = engine.explain(&asked).expect("it cannot be placed").changes;
    assert_eq!(changes[0].to_string(), "free room for 1 more w pods in b0/r2");
}
