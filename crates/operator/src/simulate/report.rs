//! The answer, as text or JSON.
//!
//! ```text
//!   Scenario + Outcomes ──map──▶ MapInput ──▶ text (cluster::map::render) | SVG (svg)
//!                      └──json──▶ one JSON object
//! ```

use muster_cluster::map::{Claim, MapInput, MapJob, render};
use muster_model::{NodeName, contradiction::contradictions, plan::Placement};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::place::{Outcome, Scenario, devices_per_pod};

/// Resources that are accelerators: those that jobs ask for as devices, and those of nodes that look like one.
fn device_resources(scenario: &Scenario) -> BTreeSet<String> {
    let asked = scenario.jobs.iter().filter_map(|job| job.gang.as_ref().ok());
    let asked = asked.flat_map(|gang| gang.classes.iter().map(|class| class.resource.clone()));
    let there = scenario.nodes.values().flat_map(|node| node.allocatable.0.keys());
    let known =
        there.filter(|name| name.ends_with("/gpu") || *name == muster_api::accelerator_class::NVIDIA_GPU);
    asked.chain(known.cloned()).collect()
}

/// "1 unit", "3 units".
fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// How many domains of a map's lines a placement uses.
fn lines_used(map: &MapInput, nodes: &BTreeSet<&NodeName>) -> usize {
    let nodes: BTreeSet<&str> = nodes.iter().map(|node| node.as_str()).collect();
    map.domains
        .iter()
        .filter(|domain| domain.nodes.iter().any(|node| nodes.contains(node.name.as_str())))
        .count()
}

/// All nodes of a placement, spares included.
fn nodes_of(placement: &Placement) -> BTreeSet<&NodeName> {
    placement.units.iter().flat_map(|unit| &unit.nodes).chain(placement.spares.values().flatten()).collect()
}

/// What stands behind a job's name in the legend.
fn note(map: &MapInput, outcome: &Outcome, placement: &Placement) -> String {
    let nodes = nodes_of(placement);
    let mut parts = vec![counted(placement.units.len(), "unit")];
    if outcome.devices > 0 {
        parts.push(counted(outcome.devices as usize, "GPU"));
    }
    let spares: usize = placement.spares.values().map(Vec::len).sum();
    if spares > 0 {
        parts.push(counted(spares, "spare"));
    }
    let mut text = format!("{} on {}", parts.join(", "), counted(nodes.len(), "node"));
    if !map.level.is_empty() {
        let _ = write!(text, " in {}", counted(lines_used(map, &nodes), &map.level));
    }
    let classes: BTreeSet<&str> = placement.units.iter().filter_map(|unit| unit.class.as_deref()).collect();
    if !classes.is_empty() {
        let _ = write!(text, " ({})", classes.into_iter().collect::<Vec<_>>().join(", "));
    }
    text
}

/// The map of the cluster with the placed jobs in it.
pub fn map(scenario: &Scenario, outcomes: &[Outcome]) -> MapInput {
    let devices = device_resources(scenario);
    let mut claims = Vec::new();
    for (node, requests) in scenario.uses.values() {
        let count = devices.iter().map(|resource| requests.get(resource)).sum();
        claims.push(Claim { node: node.clone(), devices: count, job: None });
    }
    let placed = || outcomes.iter().filter_map(|outcome| Some((outcome, outcome.placement.as_ref().ok()?)));
    for (at, (outcome, placement)) in placed().enumerate() {
        let gang =
            scenario.jobs.iter().find(|job| job.key == outcome.key).and_then(|job| job.gang.as_ref().ok());
        let pods = placement.units.iter().map(|unit| (&unit.id.role, &unit.nodes)).chain(&placement.spares);
        for (role, nodes) in pods {
            let count = gang.map_or(0, |gang| devices_per_pod(gang, role));
            claims.extend(nodes.iter().map(|node| Claim {
                node: node.clone(),
                devices: count,
                job: Some(at),
            }));
        }
    }
    let mut map = MapInput::new(&scenario.topology, scenario.nodes.values(), &devices, &claims, Vec::new());
    let jobs = placed()
        .map(|(outcome, placement)| MapJob {
            name: outcome.key.to_string(),
            note: note(&map, outcome, placement),
        })
        .collect();
    map.jobs = jobs;
    map
}

/// How much of the cluster is used, in a sentence.
pub fn summary(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let devices = device_resources(scenario);
    let sum = |amounts: &muster_model::Resources| devices.iter().map(|name| amounts.get(name)).sum::<i64>();
    let total: i64 = scenario.nodes.values().map(|node| sum(&node.allocatable)).sum();
    let foreign: i64 = scenario.uses.values().map(|(_, requests)| sum(requests)).sum();
    let placed = outcomes.iter().filter(|outcome| outcome.placement.is_ok()).count();
    let used = foreign + outcomes.iter().map(|outcome| outcome.devices).sum::<i64>();
    format!(
        "{placed} of {} placed; {used} of {total} GPUs used on {}",
        counted(outcomes.len(), "job"),
        counted(scenario.nodes.len(), "node")
    )
}

/// The whole answer as text: summary, map, and what waits and why.
pub fn text(scenario: &Scenario, outcomes: &[Outcome], width: usize, color: bool) -> String {
    let mut text = summary(scenario, outcomes);
    text.push_str("\n\n");
    text.push_str(&render(&map(scenario, outcomes), width, color));
    for contradiction in contradictions(&scenario.topology, scenario.nodes.values()) {
        let _ = writeln!(text, "\nthe labels of nodes contradict each other: {contradiction}");
    }
    for outcome in outcomes {
        for note in &outcome.notes {
            let _ = writeln!(text, "\n{} {}: note: {note}", outcome.kind, outcome.key);
        }
        let Err(refusal) = &outcome.placement else { continue };
        let _ = writeln!(text, "\n{} {} is not placed: {}", outcome.kind, outcome.key, refusal.code);
        let _ = writeln!(text, "  {}", refusal.message);
        for near in &refusal.near {
            let _ = writeln!(text, "  also near: {near}");
        }
        let _ = writeln!(text, "  what to do: {}", refusal.remedy);
    }
    text
}

/// The whole answer as one JSON object.
pub fn json(scenario: &Scenario, outcomes: &[Outcome]) -> Value {
    let jobs: Vec<Value> = outcomes.iter().map(job_json).collect();
    let mut held: BTreeMap<&NodeName, BTreeSet<String>> = BTreeMap::new();
    for outcome in outcomes {
        for node in outcome.placement.iter().flat_map(nodes_of) {
            held.entry(node).or_default().insert(outcome.key.to_string());
        }
    }
    let nodes: Vec<Value> = scenario
        .nodes
        .values()
        .map(|node| {
            json!({
                "name": node.name,
                "ready": node.ready,
                "cordoned": node.cordoned,
                "jobs": held.get(&node.name),
            })
        })
        .collect();
    let contradictions: Vec<Value> = contradictions(&scenario.topology, scenario.nodes.values())
        .into_iter()
        .map(|found| {
            let message = found.to_string();
            let mut found = json!(found);
            found["message"] = json!(message);
            found
        })
        .collect();
    json!({
        "summary": summary(scenario, outcomes),
        "jobs": jobs,
        "nodes": nodes,
        "contradictions": contradictions,
    })
}

fn job_json(outcome: &Outcome) -> Value {
    let mut job = json!({
        "namespace": outcome.key.namespace,
        "name": outcome.key.name,
        "kind": outcome.kind,
        "placed": outcome.placement.is_ok(),
        "gpus": outcome.devices,
        "micros": outcome.micros as u64,
        "notes": outcome.notes,
    });
    match &outcome.placement {
        Ok(placement) => {
            job["units"] = placement
                .units
                .iter()
                .map(|unit| json!({ "role": unit.id.role, "index": unit.id.index, "class": unit.class, "nodes": unit.nodes }))
                .collect();
            job["spares"] = json!(placement.spares);
        }
        Err(refusal) => {
            job["reason"] = json!({
                "code": refusal.code,
                "message": refusal.message,
                "near": refusal.near,
                "remedy": refusal.remedy,
            });
        }
    }
    job
}
