//! The status of a Topology: counts by level, and labels that contradict each other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{condition, topology::TopologyStatus};
use muster_cluster::topology::{CONTRADICTORY, status};
use muster_model::{Node, Resources, Topology, Uid};
use std::collections::BTreeSet;

const SPINE: &str = "network.topology.nvidia.com/spine";
const LEAF: &str = "network.topology.nvidia.com/leaf";

fn node(name: &str, labels: &[(&str, &str)], gpus: i64) -> Node {
    Node {
        name: name.into(),
        uid: Uid::from(name),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        taints: Vec::new(),
        allocatable: Resources::of([("nvidia.com/gpu", gpus)]),
        ready: true,
        cordoned: false,
    }
}

fn time(second: i64) -> Time {
    serde_json::from_value(serde_json::json!(format!("2026-01-01T00:00:{second:02}Z"))).expect("a time")
}

#[test]
fn a_contradiction_is_a_condition_that_names_nodes_keys_and_values_and_ends_when_it_is_mended() {
    let topology = Topology::default();
    let devices = BTreeSet::from(["nvidia.com/gpu".to_owned()]);
    let of = |last: &[(&str, &str)], old: &TopologyStatus, second: i64| {
        let nodes = [
            node("a", &[(SPINE, "s0"), (LEAF, "l0")], 8),
            node("b", &[(SPINE, "s1"), (LEAF, "l1")], 8),
            node("c", last, 0),
        ];
        status(&topology, &nodes, &devices, old, Some(1), &time(second))
    };
    let split = of(&[(SPINE, "s1"), (LEAF, "l0")], &TopologyStatus::default(), 0);
    let ready = condition::find(&split.conditions, condition::READY).expect("the condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", CONTRADICTORY));
    for part in [LEAF, "=l0", SPINE, "=s0 on a", "=s1 on c"] {
        assert!(ready.message.contains(part), "{part}: {}", ready.message);
    }
    let rack = split.domains.iter().find(|level| level.name == "Rack").expect("the level");
    assert_eq!((rack.domains, rack.unlabelled), (3, 0), "the rack counts twice");
    assert_eq!((split.nodes, split.levels.as_deref()), (2, Some("Block > Rack")));

    let mended = of(&[(SPINE, "s0"), (LEAF, "l0")], &split, 1);
    assert!(condition::is_true(&mended.conditions, condition::READY));
    assert_eq!(of(&[(SPINE, "s0"), (LEAF, "l0")], &mended, 2), mended, "nothing to write");
    let bare = of(&[], &mended, 3);
    assert_eq!(bare.domains.iter().map(|level| level.unlabelled).max(), Some(3), "regions: nobody has one");
    assert!(
        condition::is_true(&bare.conditions, condition::READY),
        "a node without any label contradicts nobody"
    );
}
