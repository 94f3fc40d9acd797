//! What would let a refused gang run: each change named was tried, and nothing is left behind by trying.

mod common;

use common::{gang_of, node_at, role_of};
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
            "free room for 1 more w pods in b0/b0/b0/r0",
            "set roles[w].segments[0].level to Block instead of Rack",
            "set roles[w].segments[0].mode to Preferred",
        ]
    );
    let two = texts(&mut scattered, &gang(2, 2, 2, &[(2, "Rack")]));
    assert_eq!(two[0], "free room for 2 more w pods in b0/b0/b0/r0, b0/b0/b0/r1");
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
