//! The smallest valid manifest of each kind, and changes to it.

use muster_api::{
    AcceleratorClass, Gang, GangPlan, InferenceService, NodePartition, Queue, Topology, TrainingJob,
};
use serde_json::{Value, json};

/// Kind, plural, whether it is namespaced.
pub const KINDS: &[(&str, &str, bool)] = &[
    ("TrainingJob", "trainingjobs", true),
    ("InferenceService", "inferenceservices", true),
    ("Queue", "queues", false),
    ("Topology", "topologies", false),
    ("AcceleratorClass", "acceleratorclasses", false),
    ("Gang", "gangs", true),
    ("GangPlan", "gangplans", true),
    ("NodePartition", "nodepartitions", false),
];

/// The job whose edits are tried.
pub fn job() -> Value {
    manifest(
        "TrainingJob",
        r#"{"spec":{"accelerator":{"classes":["h100"]},"parallelism":{"tensor":8,"expertTensor":8,"data":2},"elastic":{"minData":1,"maxData":8}}}"#,
    )
}

/// The smallest valid manifest of a kind.
pub fn base(kind: &str) -> Value {
    let pods = json!({ "spec": { "containers": [{ "name": "main", "image": "example/main" }] } });
    let spec = match kind {
        "TrainingJob" | "InferenceService" => json!({ "template": pods }),
        "Gang" => {
            json!({ "roles": [{ "name": "worker", "units": { "min": 1, "max": 1 }, "template": pods }] })
        }
        "Topology" => json!({ "levels": [{ "name": "Rack", "keys": ["example.com/rack"] }] }),
        "GangPlan" => json!({ "text": "{}" }),
        "NodePartition" => json!({ "gpus": [{ "index": 0 }] }),
        _ => json!({}),
    };
    let name = if kind == "Topology" { "default" } else { "base" };
    json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// [`base`] with a merge patch.
pub fn manifest(kind: &str, patch: &str) -> Value {
    let mut object = base(kind);
    merge(&mut object, &serde_json::from_str(patch).expect("the patch is JSON"));
    object
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}

/// A manifest read into the Rust type and written again: with the defaults of the types.
pub fn through_types(kind: &str, object: &Value) -> Value {
    fn round<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value) -> Value {
        let typed: T = serde_json::from_value(object.clone()).expect("a manifest of the kind");
        serde_json::to_value(typed).expect("it can be written")
    }
    match kind {
        "TrainingJob" => round::<TrainingJob>(object),
        "InferenceService" => round::<InferenceService>(object),
        "Queue" => round::<Queue>(object),
        "Topology" => round::<Topology>(object),
        "AcceleratorClass" => round::<AcceleratorClass>(object),
        "Gang" => round::<Gang>(object),
        "GangPlan" => round::<GangPlan>(object),
        "NodePartition" => round::<NodePartition>(object),
        other => panic!("{other} is no kind of ours"),
    }
}

/// Takes pod templates away.
pub fn without_templates(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("template");
            map.values_mut().for_each(without_templates);
        }
        Value::Array(items) => items.iter_mut().for_each(without_templates),
        _ => {}
    }
}
