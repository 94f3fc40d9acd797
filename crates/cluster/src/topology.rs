//! What the nodes make of the levels: the status of a Topology.
//!
//! ```text
//!   Topology + nodes ──status──▶ TopologyStatus: domains by level, condition Ready (False: ContradictoryLabels)
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{
    condition::{self, Now},
    topology::{LevelStatus, TopologyStatus},
};
use muster_model::{DomainKey, Node, Topology, contradiction::contradictions};
use std::collections::BTreeSet;

/// Contradictions that a condition names.
const MOST_NAMED: usize = 5;
/// Reason of the condition where labels contradict each other.
pub const CONTRADICTORY: &str = "ContradictoryLabels";

/// Whether the labels of the nodes agree, as a condition `Ready`: False names the nodes, the label keys and the values.
pub fn consistent<'a>(topology: &Topology, nodes: impl IntoIterator<Item = &'a Node>) -> Now {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    let found = contradictions(topology, nodes.iter().copied());
    if found.is_empty() {
        return Now::yes(condition::READY, "Consistent", "the topology labels of all nodes agree");
    }
    let mut words: Vec<String> = found.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    if found.len() > MOST_NAMED {
        words.push(format!("and {} more", found.len() - MOST_NAMED));
    }
    Now::no(
        condition::READY,
        CONTRADICTORY,
        format!("{}; correct the labels of these nodes", words.join("; ")),
    )
}

/// The status of a Topology, from its old one: equal to that when nothing changed. `devices` names the resources that
/// count as accelerators. O(nodes × levels): for changes of labels, not for every event.
pub fn status<'a>(
    topology: &Topology,
    nodes: impl IntoIterator<Item = &'a Node>,
    devices: &BTreeSet<String>,
    old: &TopologyStatus,
    generation: Option<i64>,
    now: &Time,
) -> TopologyStatus {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    let carries = |level: usize, node: &&Node| topology.label(level, &node.labels).is_some();
    let present: Vec<bool> =
        (0..topology.levels.len()).map(|level| nodes.iter().any(|node| carries(level, node))).collect();
    let paths: Vec<Vec<DomainKey>> =
        nodes.iter().map(|node| topology.path(&node.name, &node.labels, &present)).collect();
    let domains = topology.levels.iter().enumerate().map(|(at, level)| {
        let labelled = nodes.iter().zip(&paths).filter(|(node, _)| carries(at, node));
        let named: BTreeSet<&[DomainKey]> = labelled.map(|(_, path)| &path[..=at]).collect();
        let unlabelled = nodes.iter().filter(|node| !carries(at, node)).count();
        LevelStatus { name: level.name.clone(), domains: named.len() as u32, unlabelled: unlabelled as u32 }
    });
    let names: Vec<&str> = topology
        .levels
        .iter()
        .zip(&present)
        .filter(|(_, present)| **present)
        .map(|(level, _)| level.name.as_str())
        .collect();
    let accelerated = |node: &&&Node| devices.iter().any(|device| node.allocatable.get(device) > 0);
    TopologyStatus {
        observed_generation: generation,
        levels: Some(names.join(" > ")).filter(|text| !text.is_empty()),
        nodes: nodes.iter().filter(accelerated).count() as u32,
        domains: domains.collect(),
        conditions: condition::merge(
            &old.conditions,
            &[consistent(topology, nodes.iter().copied())],
            generation,
            now,
        ),
    }
}
