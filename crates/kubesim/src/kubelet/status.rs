//! A pod's record as the status that a kubelet writes.
//!
//! ```text
//! PodRecord ──► render ──► JSON for a strategic merge patch of pods/status
//! ```

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::node::SIGKILL_EXIT;
use super::pod::{Exit, PodRecord, Run, RunState, Stage};
use super::view::ContainerView;

/// A timestamp as Kubernetes writes it: whole seconds, UTC.
pub(crate) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The conditions of a node of which the node controller has not heard.
pub(crate) fn silent_node(now: Timestamp) -> Value {
    let of = |kind| {
        json!({"type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
               "message": "Kubelet stopped posting node status.", "lastTransitionTime": time(now)})
    };
    ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].into_iter().map(of).collect()
}

/// The status of `record` on a node at `host_ip`.
pub(crate) fn render(record: &PodRecord, host_ip: &str) -> Value {
    let mut status = Map::new();
    let phase = phase(record);
    status.insert("phase".into(), json!(phase));
    if let Some(started) = record.started {
        status.insert("startTime".into(), json!(time(started)));
    }
    if let Stage::Rejected(refusal) = &record.stage {
        status.insert("reason".into(), json!(refusal.reason));
        status.insert("message".into(), json!(refusal.message));
        return Value::Object(status);
    }
    if record.overdue && record.stage == Stage::Ended {
        status.insert("reason".into(), json!("DeadlineExceeded"));
        status
            .insert("message".into(), json!("Pod was active on the node longer than the specified deadline"));
    }
    status.insert("hostIP".into(), json!(host_ip));
    status.insert("hostIPs".into(), json!([{"ip": host_ip}]));
    if let Some(ip) = &record.ip {
        status.insert("podIP".into(), json!(ip));
        status.insert("podIPs".into(), json!([{"ip": ip}]));
    }
    status.insert("conditions".into(), conditions(record, phase));
    let (sidecars, main): (Vec<_>, Vec<_>) = record.runs.iter().partition(|run| run.view.sidecar);
    let mut init: Vec<_> = record.view.init.iter().map(|view| finished_init(record, view)).collect();
    init.extend(sidecars.into_iter().map(|run| container(record, run)));
    if !init.is_empty() {
        status.insert("initContainerStatuses".into(), Value::Array(init));
    }
    if !main.is_empty() {
        let main = main.into_iter().map(|run| container(record, run)).collect();
        status.insert("containerStatuses".into(), Value::Array(main));
    }
    Value::Object(status)
}

/// The kubelet's getPhase.
fn phase(record: &PodRecord) -> &'static str {
    let main = || record.runs.iter().filter(|run| !run.view.sidecar);
    match record.stage {
        Stage::Rejected(_) => "Failed",
        Stage::Active if main().all(Run::has_started) => "Running",
        Stage::New | Stage::Active => "Pending",
        Stage::Ended => {
            let all_succeeded =
                main().count() > 0 && main().all(|run| run.exit().is_some_and(|e| e.code == 0));
            if all_succeeded && !record.overdue { "Succeeded" } else { "Failed" }
        }
    }
}

fn conditions(record: &PodRecord, phase: &str) -> Value {
    let at = record.started.or(record.ended);
    let since = |t: Option<Timestamp>| t.or(at).map(time);
    let condition = |kind: &str, holds: bool, t: Option<Timestamp>, reason: Option<&str>| {
        let mut c = json!({"type": kind, "status": if holds { "True" } else { "False" }, "lastTransitionTime": since(t)});
        // A strategic merge keeps what is not named: a reason that no longer holds is cleared.
        c["reason"] = json!(reason);
        c
    };
    let started = record.runs.iter().all(Run::has_started) && !record.runs.is_empty();
    let ready_since = ready_since(record);
    let (ready, reason) = match (phase, ready_since) {
        ("Succeeded", _) => (false, Some("PodCompleted")),
        ("Failed", _) => (false, Some("PodFailed")),
        (_, Some(_)) => (true, None),
        _ => (false, Some("ContainersNotReady")),
    };
    let turned = ready_since.or(record.ended);
    json!([
        condition("PodScheduled", true, None, None),
        condition("PodReadyToStartContainers", started && record.ended.is_none(), record.ended, None),
        condition("Initialized", started, None, (phase == "Succeeded").then_some("PodCompleted")),
        condition("ContainersReady", ready, turned, reason),
        condition("Ready", ready, turned, reason),
    ])
}

/// Since when every container is ready; `None` while one is not.
fn ready_since(record: &PodRecord) -> Option<Timestamp> {
    let each = record.runs.iter().map(|run| match run.state {
        RunState::Running { ready_at, ready: true, .. } => Some(ready_at),
        _ => None,
    });
    each.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn container(record: &PodRecord, run: &Run) -> Value {
    let uid = &record.view.uid;
    let (state, running, ready) = match run.state {
        RunState::Waiting { .. } => (json!({"waiting": {"reason": waiting_reason(run)}}), false, false),
        RunState::Running { since, ready, .. } => {
            (json!({"running": {"startedAt": time(since)}}), true, ready)
        }
        RunState::Exited(exit) => {
            (json!({"terminated": terminated(uid, run, &exit, run.restarts)}), false, false)
        }
    };
    let mut status = json!({
        "name": run.view.name,
        "image": run.view.image,
        "imageID": run.view.image,
        "ready": ready,
        "started": running,
        "restartCount": run.restarts,
        "state": state,
    });
    if run.has_started() {
        status["containerID"] = json!(container_id(uid, &run.view.name, run.restarts));
    }
    if let Some(last) = &run.last {
        let before = run.restarts.saturating_sub(1);
        status["lastState"] = json!({"terminated": terminated(uid, run, last, before)});
    }
    status
}

fn waiting_reason(run: &Run) -> &'static str {
    if run.last.is_some() { "CrashLoopBackOff" } else { "ContainerCreating" }
}

fn terminated(uid: &str, run: &Run, exit: &Exit, restarts: u32) -> Value {
    let reason = match exit.code {
        0 => "Completed",
        _ => "Error",
    };
    let mut value = json!({
        "exitCode": exit.code,
        "reason": reason,
        "startedAt": time(exit.started),
        "finishedAt": time(exit.at),
        "containerID": container_id(uid, &run.view.name, restarts),
    });
    if exit.code == SIGKILL_EXIT {
        value["signal"] = json!(9);
    }
    value
}

/// Init containers take no time: they have ended when the others start.
fn finished_init(record: &PodRecord, view: &ContainerView) -> Value {
    let id = container_id(&record.view.uid, &view.name, 0);
    let started = record.runs.iter().any(Run::has_started);
    let at = record.started.map(time);
    let state = if started {
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at, "finishedAt": at, "containerID": id}})
    } else {
        json!({"waiting": {"reason": "PodInitializing"}})
    };
    json!({"name": view.name, "image": view.image, "imageID": view.image, "ready": started, "started": false,
           "restartCount": 0, "state": state})
}

fn container_id(uid: &str, name: &str, restarts: u32) -> String {
    format!("kubesim://{uid}/{name}/{restarts}")
}
