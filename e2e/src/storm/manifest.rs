//! Jobs, gangs and hostile objects as JSON.

use muster_api::labels;
use serde_json::{Value, json};

use super::make::hand;
use super::seen::{HOSTILE, REVISION};
use super::sim::space;
use super::trace::{End, FRAMEWORKS, PRIORITIES, Shape, Target};

/// The name of a job or, from [`hand`] on, of a gang.
pub fn name(target: Target) -> String {
    let first = hand(Target { space: 0, at: 0 }).at;
    if target.at >= first { format!("g{}", target.at - first) } else { format!("j{}", target.at) }
}

/// The path of a namespace's objects of ours.
pub fn path(plural: &str, target: Target) -> String {
    format!("/apis/muster.dev/v1alpha1/namespaces/{}/{plural}", space(target.space))
}

fn template(shape: &Shape) -> Value {
    let mut notes = json!({ REVISION: "r0" });
    match shape.end {
        End::Never => {}
        End::After(seconds) => notes["kubesim.dev/run-for"] = json!(format!("{seconds}s")),
        End::Fails(seconds) => {
            notes["kubesim.dev/run-for"] = json!(format!("{seconds}s"));
            notes["kubesim.dev/exit-code"] = json!("1");
        }
    }
    json!({
        "metadata": { "annotations": notes },
        "spec": { "containers": [{
            "name": "main", "image": "example/main",
            "resources": { "requests": { "cpu": "2", "memory": "1Gi" } },
        }] },
    })
}

/// A rule that keeps all pods in one rack.
pub fn rack(on: bool) -> Value {
    if on { json!({ "within": "Rack", "mode": "Required" }) } else { Value::Null }
}

/// A TrainingJob: each pod is a unit.
pub fn job(target: Target, shape: &Shape) -> Value {
    let data = u32::from(shape.pods) * u32::from(shape.gpus);
    let mut spec = json!({
        "framework": FRAMEWORKS[usize::from(shape.framework) % FRAMEWORKS.len()],
        "accelerator": { "perPod": shape.gpus },
        "parallelism": { "data": data },
        "placement": { "spares": shape.spares },
        "recovery": { "maxRestarts": shape.budget, "window": "24h" },
        "outcome": if shape.all { "AllRanks" } else { "Rank0" },
        "template": template(shape),
    });
    if shape.rack {
        spec["placement"]["job"] = rack(true);
    }
    if shape.min < shape.pods {
        let least = u32::from(shape.min) * u32::from(shape.gpus);
        spec["elastic"] = json!({ "minData": least, "maxData": data });
    }
    if let Some((class, _)) = PRIORITIES[usize::from(shape.priority) % PRIORITIES.len()] {
        spec["priorityClassName"] = json!(class);
    }
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": { "name": name(target) }, "spec": spec,
    })
}

/// A Gang as somebody writes it by hand.
pub fn gang(target: Target, shape: &Shape) -> Value {
    let mut spec = json!({
        "classes": ["h100"],
        "priorityClassName": PRIORITIES[usize::from(shape.priority) % PRIORITIES.len()].map(|(class, _)| class),
        "roles": [{
            "name": "worker", "template": template(shape), "devices": shape.gpus, "podsPerUnit": 1,
            "units": { "min": shape.min, "max": shape.pods }, "spares": shape.spares,
        }],
        "recovery": {
            "ladder": ["RestartInPlace", "ReplaceNode", "Shrink", "Requeue"],
            "maxRestarts": shape.budget, "window": "24h",
        },
        "outcome": { "policy": if shape.all { "All" } else { "Pod" } },
    });
    if shape.rack {
        spec["within"] = json!({ "level": "Rack", "mode": "Required" });
    }
    json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": { "name": name(target) }, "spec": spec,
    })
}

/// A pod of somebody else on a node.
pub fn foreign(name: &str, node: &str, gpus: u8) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { HOSTILE: "foreign" } },
        "spec": { "nodeName": node, "containers": [{
            "name": "main", "image": "example/other",
            "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } },
        }] },
    })
}

/// A pod that claims to be the first of a gang.
pub fn impostor(name: &str, node: &str, gang: &Value) -> Value {
    let meta = &gang["metadata"];
    let run = &gang["status"]["plan"]["runs"][0];
    let role = run["role"].as_str().or(gang["spec"]["roles"][0]["name"].as_str()).unwrap_or("worker");
    json!({
        "metadata": {
            "name": name,
            "annotations": { HOSTILE: "impostor", "kubesim.dev/run-for": "5s" },
            "labels": {
                labels::GANG: meta["name"], labels::GANG_UID: meta["uid"], labels::ROLE: role,
                labels::UNIT: "0", labels::INDEX: "0",
                labels::INCARNATION: run["incarnation"].as_u64().unwrap_or(1).to_string(),
            },
            "ownerReferences": [{
                "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "name": meta["name"], "uid": meta["uid"],
                "controller": true,
            }],
        },
        "spec": { "nodeName": node, "restartPolicy": "Never", "containers": [{
            "name": "main", "image": "example/other",
        }] },
    })
}
