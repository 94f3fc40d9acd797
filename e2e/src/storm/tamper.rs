//! Planted faults: requests of the operator that are changed on their way, so that the judge can be judged.
//!
//! ```text
//!   operator ──write──▶ Tampering: pass | another body | swallowed, with a made-up answer ──▶ API server
//! ```

use bytes::Bytes;
use http::Method;
use muster_api::plan_codec::nodes;
use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::seen::uid;
use super::sim::{MERGE, Sim};

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tamper {
    /// I1: a plan names the nodes of another gang's plan.
    SharePlan,
    /// I2: a pod is created on another node than planned.
    MovePod,
    /// I2 and I8: deletions of pods are not done.
    KeepPod,
    /// I3: some creations of pods are not done.
    DropPod,
    /// I4: a plan with a rack rule gets a node of another rack.
    BreakRack,
    /// I7: the history of restarts is emptied.
    ForgetRestarts,
    /// Rest: Gangs of jobs are never made.
    DropGang,
    /// Rest: statuses of jobs are never written.
    DropJobStatus,
    /// Rest: something is written again and again.
    KeepWriting,
    /// Rest: finalizers of Gangs are never taken away.
    KeepGang,
    /// Fence: pods of an earlier epoch are let in.
    OldEpoch,
}

impl Tamper {
    /// All, each with the words with which the judge may find it.
    pub const ALL: [(Self, &'static [&'static str]); 11] = [
        (Self::SharePlan, &["I1 "]),
        (Self::MovePod, &["I2 "]),
        (
            Self::KeepPod,
            &["I2 ", "I1 ", "a job that has ended has pods", "suspended", "left", "does not go", "rest"],
        ),
        (Self::DropPod, &["I3 ", "missing", "no rest", "left"]),
        (Self::BreakRack, &["I4 "]),
        (Self::ForgetRestarts, &["I7 "]),
        (Self::DropGang, &["room", "without a status", "no rest"]),
        (Self::DropJobStatus, &["without a status"]),
        (Self::KeepWriting, &["writes"]),
        (Self::KeepGang, &["does not go", "left"]),
        (Self::OldEpoch, &["fence"]),
    ];
}

/// What becomes of a request.
pub enum Verdict {
    /// It is done as it is.
    Pass,
    /// This is done instead.
    Instead(Bytes),
    /// It is not done, and this is answered.
    Swallow(u16, Value),
}

/// A planted fault, and how often it could have struck.
#[derive(Debug)]
pub struct Tampering {
    what: Tamper,
    turns: u64,
    /// How often it struck.
    pub struck: u64,
}

impl Tampering {
    /// A planted fault.
    pub fn new(what: Tamper) -> Self {
        Self { what, turns: 0, struck: 0 }
    }

    /// True each n-th time.
    fn each(&mut self, nth: u64) -> bool {
        self.turns += 1;
        self.turns.is_multiple_of(nth)
    }

    /// What becomes of a write.
    pub fn look(&mut self, sim: &Sim, method: &Method, path: &str, body: &[u8]) -> Verdict {
        let verdict = self.decide(sim, method, path, body);
        if !matches!(verdict, Verdict::Pass) {
            self.struck += 1;
        }
        verdict
    }

    fn decide(&mut self, sim: &Sim, method: &Method, path: &str, body: &[u8]) -> Verdict {
        let pod = path.starts_with("/api/v1/namespaces/storm-") && path.contains("/pods");
        let created = *method == Method::POST && pod;
        let what = self.what;
        match what {
            Tamper::MovePod if created && self.each(3) => change(body, move_pod),
            Tamper::OldEpoch if created && self.each(3) => past_the_fence(sim, path, body),
            Tamper::DropPod if created && self.each(3) => {
                let mut pod: Value = serde_json::from_slice(body).unwrap_or_default();
                pod["metadata"]["uid"] = json!(format!("nobody-{}", self.turns));
                pod["metadata"]["resourceVersion"] = json!(sim.server.revision().to_string());
                Verdict::Swallow(201, pod)
            }
            Tamper::KeepPod if *method == Method::DELETE && pod => {
                Verdict::Swallow(200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
            }
            Tamper::ForgetRestarts if path.ends_with("/status") && path.contains("/gangs/") => {
                change(body, |body| {
                    each_object(body, "restarts", &mut |status| {
                        status["restarts"] = json!([]);
                        status["restartsTotal"] = json!(0);
                        true
                    })
                })
            }
            Tamper::SharePlan if path.ends_with("/status") && path.contains("/gangs/") => {
                let others = other_nodes(sim, path);
                change(body, |body| each_object(body, "runs", &mut |plan| share(plan, &others)))
            }
            Tamper::BreakRack if path.ends_with("/status") && confined(sim, path) => {
                change(body, |body| each_object(body, "runs", &mut |plan| spread(sim, plan)))
            }
            Tamper::DropGang if *method == Method::POST && path.ends_with("/gangs") => {
                let mut gang: Value = serde_json::from_slice(body).unwrap_or_default();
                gang["metadata"]["uid"] = json!(format!("nobody-{}", self.turns));
                gang["metadata"]["resourceVersion"] = json!(sim.server.revision().to_string());
                Verdict::Swallow(201, gang)
            }
            Tamper::DropJobStatus if path.contains("/trainingjobs/") && path.ends_with("/status") => {
                Verdict::Swallow(200, live(sim, "trainingjobs", path))
            }
            Tamper::KeepGang
                if *method == Method::PATCH && path.contains("/gangs/") && drops_finalizer(body) =>
            {
                Verdict::Swallow(200, live(sim, "gangs", path))
            }
            Tamper::KeepWriting if path.contains("/leases/") && self.each(10) => {
                keep_writing(sim, self.turns);
                self.struck += 1;
                Verdict::Pass
            }
            _ => Verdict::Pass,
        }
    }
}

fn change(body: &[u8], edit: impl FnOnce(&mut Value) -> bool) -> Verdict {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return Verdict::Pass };
    if edit(&mut value) { Verdict::Instead(Bytes::from(value.to_string())) } else { Verdict::Pass }
}

/// Edits every object that has this field, wherever it is.
fn each_object(value: &mut Value, field: &str, edit: &mut dyn FnMut(&mut Value) -> bool) -> bool {
    let mut changed = false;
    if value.get(field).is_some() {
        changed |= edit(value);
    }
    match value {
        Value::Object(map) => map.values_mut().for_each(|inner| changed |= each_object(inner, field, edit)),
        Value::Array(list) => list.iter_mut().for_each(|inner| changed |= each_object(inner, field, edit)),
        _ => {}
    }
    changed
}

/// Created by somebody whom the fence does not judge, as if it were not there.
fn past_the_fence(sim: &Sim, path: &str, body: &[u8]) -> Verdict {
    let mut pod: Value = serde_json::from_slice(body).unwrap_or_default();
    pod["metadata"]["annotations"][muster_api::labels::EPOCH] = json!("0");
    match sim.server.act("nobody", Method::POST, path, "application/json", &pod) {
        Ok(pod) => Verdict::Swallow(201, pod),
        Err(_) => Verdict::Pass,
    }
}

fn move_pod(pod: &mut Value) -> bool {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() {
        return false;
    }
    pod["spec"]["nodeName"] = json!(if node == "node-0" { "node-1" } else { "node-0" });
    true
}

/// Namespace and name of the object that a path names.
fn named(path: &str) -> (String, String) {
    let parts: Vec<&str> = path.split('/').collect();
    let after = |word: &str| {
        let at = parts.iter().position(|part| *part == word);
        at.and_then(|at| parts.get(at + 1)).map(|part| (*part).to_owned()).unwrap_or_default()
    };
    let name = if path.contains("/gangs/") { after("gangs") } else { after("trainingjobs") };
    (after("namespaces"), name)
}

fn live(sim: &Sim, plural: &str, path: &str) -> Value {
    let (namespace, name) = named(path);
    sim.ours(plural, &namespace, &name).map(|object| (*object).clone()).unwrap_or_default()
}

/// Nodes of the plans of other gangs.
fn other_nodes(sim: &Sim, path: &str) -> Vec<String> {
    let own = uid(&live(sim, "gangs", path));
    let judge = sim.judge();
    let others = judge.gangs.iter().filter(|(id, gang)| **id != own && gang.holds());
    let full = others.flat_map(|(_, gang)| gang.plan.values()).filter(|entry| entry.gpus > 4);
    let nodes: BTreeSet<String> = full.map(|entry| entry.node.clone()).collect();
    nodes.into_iter().collect()
}

/// The nodes of a run, and as text again.
fn decoded(run: &Value) -> Vec<String> {
    nodes::decode(run["nodes"].as_str().unwrap_or_default(), 1_000).unwrap_or_default()
}

fn share(plan: &mut Value, others: &[String]) -> bool {
    let Some(other) = others.first() else { return false };
    let run = &mut plan["runs"][0];
    let mut own = decoded(run);
    let Some(first) = own.first_mut() else { return false };
    other.clone_into(first);
    run["nodes"] = json!(nodes::encode(own.iter().map(String::as_str)));
    true
}

fn confined(sim: &Sim, path: &str) -> bool {
    path.contains("/gangs/") && !live(sim, "gangs", path)["spec"]["within"].is_null()
}

/// Moves the last pod of a plan to a free node of another rack.
fn spread(sim: &Sim, plan: &mut Value) -> bool {
    let run = &mut plan["runs"][0];
    let mut own = decoded(run);
    if own.len() < 2 {
        return false;
    }
    let rack = |node: &Value| node["metadata"]["labels"]["fabric.topograph.run/tier-0"].clone();
    let all = sim.server.objects("", "nodes");
    let first = all.iter().find(|node| node["metadata"]["name"] == own[0].as_str()).map(|node| rack(node));
    let used: BTreeSet<String> = {
        let judge = sim.judge();
        let plans = judge.gangs.values().flat_map(|gang| gang.plan.values().map(|entry| entry.node.clone()));
        plans.chain(judge.pods.values().map(|pod| pod.node.clone())).collect()
    };
    let name = |node: &Value| node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let other = all.iter().find(|node| Some(rack(node)) != first && !used.contains(&name(node)));
    let (Some(other), Some(last)) = (other, own.last_mut()) else { return false };
    *last = name(other);
    run["nodes"] = json!(nodes::encode(own.iter().map(String::as_str)));
    true
}

/// Whether a patch takes the last finalizer away.
fn drops_finalizer(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
    let merged = body.get("metadata").and_then(|meta| meta.get("finalizers")).is_some();
    let listed = body.as_array().into_iter().flatten().any(|step| {
        step["path"].as_str().is_some_and(|path| path.starts_with("/metadata/finalizers"))
            && step["op"] != "add"
    });
    merged || listed
}

fn keep_writing(sim: &Sim, turn: u64) {
    let Some(gang) = sim.server.objects("muster.dev", "gangs").into_iter().next() else { return };
    let (namespace, name) = super::seen::key(&gang);
    let path = format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/gangs/{name}");
    let patch = json!({"metadata": {"annotations": {"storm/turn": turn.to_string()}}});
    // A gang that has just gone is not written.
    let _gone = sim.server.act(crate::world::OPERATOR_USER, Method::PATCH, &path, MERGE, &patch);
    sim.judge().writes += 1;
}
