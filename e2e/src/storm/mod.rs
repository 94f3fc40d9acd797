//! Random storms over the whole operator, on the in-memory API in virtual time.
//!
//! ```text
//!   seed ─▶ Trace ─▶ Stage (users, machines, weather, crew) ─▶ calm ─▶ rest ─▶ quiet ─▶ all deleted ─▶ Outcome
//!                      every write ─▶ Judge      every plan ─▶ muster-check        complaints, writes, leftovers
//! ```
//!
//! One seed is one trace, byte for byte: one thread, paused time, no hash order. A failing trace is shrunk and kept in
//! `e2e/storm/regressions.txt`. The operator is reached by its client, its clock and what it shows, and by nothing else.

mod apply;
mod crew;
mod gate;
mod judge;
mod make;
mod manifest;
mod process;
mod rest;
mod rng;
mod seen;
mod shrink;
mod sim;
mod tamper;
mod trace;
mod weather;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub use judge::Fault;
pub use shrink::shrink;
pub use sim::{Counts, prepare};
pub use tamper::Tamper;
pub use trace::{Step, Trace};

use apply::Stage;
use serde::de::DeserializeOwned;
use sim::Sim;

/// How a storm is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    /// A fault that is planted.
    pub tamper: Option<Tamper>,
    /// Keep the log in words.
    pub keep_log: bool,
}

/// What came of a storm.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What must not be; empty when all is well.
    pub faults: Vec<Fault>,
    /// What was done to the operator, and how often.
    pub counts: Counts,
    /// Names all requests and their answers, in order and time.
    pub hash: u64,
    /// How many requests there were.
    pub requests: u64,
    /// Virtual time that passed.
    pub millis: i64,
    /// The log in words, where it was wanted.
    pub log: Vec<String>,
    /// How often the planted fault struck.
    pub tampered: u64,
}

const MINUTE: i64 = 60_000;
/// How long it may take until everything has come to rest: back-offs and avoided nodes take many minutes.
const PATIENCE: i64 = 45 * MINUTE;
/// The same where a fault is planted, which no time cures.
const PATIENCE_TAMPERED: i64 = 12 * MINUTE;
/// For so many minutes nothing may be written then.
const QUIET: u64 = 5;
/// So many such spells may pass before one is quiet.
const LOUD: u64 = 4;
/// How long it may take until nothing is left of what was deleted.
const CLEARING: i64 = 10 * MINUTE;

/// Runs a storm to its end, or to its first fault. Must not be called inside a runtime.
pub fn run(trace: &Trace, tuning: Tuning) -> Outcome {
    prepare();
    // Back-offs of watches draw from this thread's generator.
    fastrand::seed(trace.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(storm(trace, tuning))
}

async fn storm(trace: &Trace, tuning: Tuning) -> Outcome {
    let sim = Sim::new(trace, tuning.tamper, tuning.keep_log);
    let stage = Stage::new(trace, sim.clone());
    let machines = tokio::spawn(sim.clone().drive());
    stage.crew.start();
    let blown = blow(&stage, trace).await && settle(&stage).await && quiet(&stage).await;
    if blown {
        clear(&stage).await;
    }
    stage.crew.end().await;
    machines.abort();
    let log = std::mem::take(&mut *sim.log());
    let tampered = sim.tampering.as_ref().map_or(0, |tampering| tampering.lock().map_or(0, |t| t.struck));
    Outcome {
        faults: sim.judge().faults.clone(),
        counts: sim.counts().clone(),
        hash: log.hash,
        requests: log.requests,
        millis: sim.millis(),
        log: log.lines.unwrap_or_default(),
        tampered,
    }
}

/// Whether no fault has been found so far.
async fn well(stage: &Arc<Stage>) -> bool {
    let sim = &stage.sim;
    if let Some(said) = stage.crew.crashed().await {
        sim.judge().fail("the operator ends by itself", said);
    }
    let changed = {
        let mut judge = sim.judge();
        judge.look(sim.millis());
        std::mem::take(&mut judge.plans_changed)
    };
    if changed {
        check(sim);
    }
    sim.judge().faults.is_empty()
}

/// The steps.
async fn blow(stage: &Arc<Stage>, trace: &Trace) -> bool {
    for timed in &trace.steps {
        sleep(Duration::from_millis(u64::from(timed.after))).await;
        stage.apply(&timed.step).await;
        if !well(stage).await {
            return false;
        }
    }
    true
}

/// Until nothing is to be complained of.
async fn settle(stage: &Arc<Stage>) -> bool {
    stage.calm();
    let patience = if stage.sim.tampering.is_some() { PATIENCE_TAMPERED } else { PATIENCE };
    let until = stage.sim.millis() + patience;
    let mut pause = 2;
    loop {
        sleep(Duration::from_secs(pause)).await;
        if !well(stage).await {
            return false;
        }
        let Some(first) = rest::complaint(stage) else { return true };
        if stage.sim.millis() > until {
            stage.sim.judge().fail(first.kind, first.what);
            return false;
        }
        pause = (pause * 2).min(30);
    }
}

/// Nothing is written while nothing happens.
async fn quiet(stage: &Arc<Stage>) -> bool {
    let mut written = 0;
    // A status may speak of something that ends by itself, such as a node that is avoided for a while.
    for _ in 0..LOUD {
        // What was about to be written when rest was found may still be.
        sleep(Duration::from_secs(60)).await;
        let before = stage.sim.judge().writes;
        stage.sim.note(|| "== quiet".to_owned());
        for _ in 0..QUIET {
            sleep(Duration::from_secs(60)).await;
            if !well(stage).await {
                return false;
            }
        }
        written = stage.sim.judge().writes - before;
        if written == 0 {
            break;
        }
    }
    if written > 0 {
        let what = format!("{written} writes in the last {QUIET} of many minutes in which nothing happened");
        stage.sim.judge().fail("the operator writes although nothing happens", what);
    }
    if let Some(first) = rest::complaint(stage) {
        stage.sim.judge().fail(first.kind, format!("after it had come to rest: {}", first.what));
    }
    well(stage).await
}

/// Everything is deleted, and nothing is left.
async fn clear(stage: &Arc<Stage>) {
    let sim = &stage.sim;
    sim.note(|| "== everything is deleted".to_owned());
    for plural in ["trainingjobs", "gangs"] {
        for object in sim.server.objects("muster.dev", plural) {
            let (namespace, name) = seen::key(&object);
            let path = format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/{plural}/{name}");
            // A gang may go with its job.
            let _gone = sim.act(&http::Method::DELETE, &path, &serde_json::Value::Null);
        }
    }
    let until = sim.millis() + CLEARING;
    let mut pause = 2;
    while let Some(left) = rest::leftovers(stage) {
        if sim.millis() > until {
            sim.judge().fail(left.kind, left.what);
            return;
        }
        sleep(Duration::from_secs(pause)).await;
        pause = (pause * 2).min(30);
        if !well(stage).await {
            return;
        }
    }
}

fn all<K: DeserializeOwned>(objects: &[Arc<serde_json::Value>]) -> Vec<K> {
    objects.iter().filter_map(|object| serde_json::from_value((**object).clone()).ok()).collect()
}

/// The oracle that shares no code with the engine, on the plans as they are. Capacity is what machines have: what a storm
/// takes away afterwards breaks no promise.
fn check(sim: &Sim) {
    let server = &sim.server;
    let mut nodes = server.objects("", "nodes");
    for node in &mut nodes {
        let capacity = node["status"]["capacity"].clone();
        Arc::make_mut(node)["status"]["allocatable"] = capacity;
    }
    // What leaves holds what its pods hold, not its plan; a plan is judged by the specification that it was made for.
    let mut gangs = server.objects("muster.dev", "gangs");
    gangs.retain(|gang| {
        gang["metadata"]["deletionTimestamp"].is_null()
            && gang["status"]["observedGeneration"] == gang["metadata"]["generation"]
    });
    let objects = crate::oracle::Objects {
        topology: None,
        nodes: all(&nodes),
        classes: all(&server.objects("muster.dev", "acceleratorclasses")),
        queues: all(&server.objects("muster.dev", "queues")),
        parts: Vec::new(),
        gangs: all(&gangs),
        pods: Vec::new(),
    };
    match crate::oracle::snapshot_of(objects) {
        Ok(snapshot) => {
            if let Some(first) = muster_check::check(&snapshot).first() {
                let kind = match first.invariant() {
                    muster_check::Invariant::I1 => "I1 a device is in two plans",
                    muster_check::Invariant::I3 => "I3 a plan of a size that is not allowed",
                    muster_check::Invariant::I4 => "I4 a required rule is broken",
                    _ => "the oracle refuses a plan",
                };
                sim.judge().fail(kind, first.to_string());
            }
        }
        // A gang that was edited by hand may be invalid and hold its plan.
        Err(error) => sim.note(|| format!("-- the oracle cannot judge: {error}")),
    }
}

/// Adds counts.
pub fn add(total: &mut BTreeMap<&'static str, u64>, more: &Counts) {
    for (what, count) in more {
        *total.entry(what).or_insert(0) += count;
    }
}
