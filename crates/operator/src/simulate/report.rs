//! The answer, as text or JSON.
//!
//! ```text
//!   Answer ──map──▶ MapInput ──▶ text (cluster::map::render) | SVG (svg)
//!         └──json──▶ one JSON object
//! ```

use muster_cluster::map::{Claim, MapInput, MapJob, render};
use muster_model::{
    NodeName, ObjectKey, Resources, contradiction::contradictions, plan::Placement, resources,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{
    changes::Advice,
    place::{Answer, Outcome},
};

/// Resources that are accelerators: those that jobs ask for as devices, and those of nodes that look like one.
fn device_resources(answer: &Answer) -> BTreeSet<String> {
    let asked = answer.outcomes.iter().filter_map(|outcome| outcome.job.gang.as_ref().ok());
    let asked = asked.flat_map(|gang| gang.classes.iter().map(|class| class.resource.clone()));
    let there = answer.nodes.values().flat_map(|node| node.allocatable.0.keys());
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

/// What is used of each node by others than the placed jobs: pods, and the plans of gangs that are there.
fn others(answer: &Answer, devices: &BTreeSet<String>) -> Vec<Claim> {
    let placed = answer.outcomes.iter().filter(|outcome| outcome.placement.is_ok());
    let placed: BTreeSet<&ObjectKey> = placed.map(|outcome| &outcome.job.key).collect();
    let claim = |view: &muster_engine::NodeView| {
        let ours = view.gangs.iter().filter(|occupant| placed.contains(&occupant.gang));
        let mut used = view.allocatable.clone();
        used.subtract(&view.free);
        for occupant in ours {
            used.subtract(&occupant.requests);
        }
        // On a node without accelerators a pod is all that shows.
        let count = devices.iter().map(|resource| used.get(resource)).sum();
        (used.get(resources::PODS) > 0).then(|| Claim { node: view.name.clone(), devices: count, job: None })
    };
    let known = answer.views.iter().filter(|view| answer.nodes.contains_key(&view.name));
    known.filter_map(claim).collect()
}

/// The map of the cluster with the placed jobs in it.
pub fn map(answer: &Answer) -> MapInput {
    let devices = device_resources(answer);
    let mut claims = others(answer, &devices);
    let placed =
        || answer.outcomes.iter().filter_map(|outcome| Some((outcome, outcome.placement.as_ref().ok()?)));
    for (at, (outcome, placement)) in placed().enumerate() {
        let pods = placement.units.iter().map(|unit| (&unit.id.role, &unit.nodes)).chain(&placement.spares);
        for (role, nodes) in pods {
            let count = outcome.devices_per_pod(role);
            claims.extend(nodes.iter().map(|node| Claim {
                node: node.clone(),
                devices: count,
                job: Some(at),
            }));
        }
    }
    let mut map = MapInput::new(&answer.topology, answer.nodes.values(), &devices, &claims, Vec::new());
    let jobs = placed()
        .map(|(outcome, placement)| MapJob {
            name: outcome.job.key.to_string(),
            note: note(&map, outcome, placement),
        })
        .collect();
    map.jobs = jobs;
    map
}

/// How much of the cluster is used, in a sentence.
pub fn summary(answer: &Answer) -> String {
    let devices = device_resources(answer);
    let sum = |amounts: &Resources| devices.iter().map(|name| amounts.get(name)).sum::<i64>();
    let total: i64 = answer.nodes.values().map(|node| sum(&node.allocatable)).sum();
    let foreign: i64 = others(answer, &devices).iter().map(|claim| claim.devices).sum();
    let placed = answer.outcomes.iter().filter(|outcome| outcome.placement.is_ok()).count();
    let used = foreign + answer.outcomes.iter().map(|outcome| outcome.devices).sum::<i64>();
    format!(
        "{placed} of {} placed; {used} of {total} GPUs used on {}",
        counted(answer.outcomes.len(), "job"),
        counted(answer.nodes.len(), "node")
    )
}

/// What stands below the picture: notes, and what waits and why.
pub fn remarks(answer: &Answer) -> Vec<String> {
    let mut remarks: Vec<String> = answer.notes.iter().map(|note| format!("Note: {note}.")).collect();
    for outcome in &answer.outcomes {
        let Err(refusal) = &outcome.placement else { continue };
        let mut remark = format!("{} is not placed: {}.", outcome.job.key, refusal.message);
        if let Some(change) = refusal.changes.first() {
            let _ = write!(remark, " It would run after this: {}.", change.sentence);
        }
        remarks.push(remark);
    }
    remarks
}

/// The whole answer as text: summary, map, and what waits and why.
pub fn text(answer: &Answer, width: usize, color: bool) -> String {
    let mut text = summary(answer);
    text.push_str("\n\n");
    text.push_str(&render(&map(answer), width, color));
    for note in &answer.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    for contradiction in contradictions(&answer.topology, answer.nodes.values()) {
        let _ = writeln!(text, "\nthe labels of nodes contradict each other: {contradiction}");
    }
    for outcome in &answer.outcomes {
        let (kind, key) = (outcome.job.kind, &outcome.job.key);
        for note in &outcome.job.notes {
            let _ = writeln!(text, "\n{kind} {key}: note: {note}");
        }
        let Err(refusal) = &outcome.placement else { continue };
        let _ = writeln!(text, "\n{kind} {key} is not placed: {}", refusal.code);
        let _ = writeln!(text, "  {}", refusal.message);
        for near in &refusal.near {
            let _ = writeln!(text, "  also near: {near}");
        }
        let _ = writeln!(text, "  what to do: {}", refusal.remedy);
        for (at, change) in refusal.changes.iter().enumerate() {
            let words = if at == 0 { "it would run after this" } else { "or after this" };
            let _ = writeln!(text, "  {words}: {}", change.sentence);
        }
    }
    text
}

/// The whole answer as one JSON object.
pub fn json(answer: &Answer) -> Value {
    let jobs: Vec<Value> = answer.outcomes.iter().map(job_json).collect();
    let mut held: BTreeMap<&NodeName, BTreeSet<String>> = BTreeMap::new();
    for outcome in &answer.outcomes {
        for node in outcome.placement.iter().flat_map(nodes_of) {
            held.entry(node).or_default().insert(outcome.job.key.to_string());
        }
    }
    let nodes: Vec<Value> = answer
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
    let contradictions: Vec<Value> = contradictions(&answer.topology, answer.nodes.values())
        .into_iter()
        .map(|found| {
            let message = found.to_string();
            let mut found = json!(found);
            found["message"] = json!(message);
            found
        })
        .collect();
    json!({
        "summary": summary(answer),
        "notes": answer.notes,
        "jobs": jobs,
        "nodes": nodes,
        "contradictions": contradictions,
    })
}

fn job_json(outcome: &Outcome) -> Value {
    let mut job = json!({
        "namespace": outcome.job.key.namespace,
        "name": outcome.job.key.name,
        "kind": outcome.job.kind,
        "placed": outcome.placement.is_ok(),
        "gpus": outcome.devices,
        "micros": outcome.micros as u64,
        "notes": outcome.job.notes,
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
                "changes": refusal.changes.iter().map(changed).collect::<Vec<_>>(),
            });
        }
    }
    job
}

/// A change that suffices: its sentence beside its numbers.
fn changed(change: &Advice) -> Value {
    let mut all = change.detail.clone();
    all["sentence"] = json!(change.sentence);
    all
}
