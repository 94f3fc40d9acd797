//! What the watches skip of pods and nodes must not matter: the facts are those of the whole object.

use k8s_openapi::api::core::v1::{Node, Pod};
use muster_cluster::seen::{SeenNode, SeenPod};
use muster_cluster::{PodFacts, convert};
use serde_json::{Value, json};

/// A pod with every field that some fact comes from, and much else.
fn pod(status: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train-w0-1-0", "namespace": "team", "uid": "7f0c", "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
            "finalizers": ["muster.dev/result", "example.com/other"],
            "labels": {
                "app": "train", "muster.dev/role": "worker", "muster.dev/unit": "3", "muster.dev/incarnation": "2",
                "muster.dev/index": "1",
            },
            "annotations": { "example.com/note": "long", "muster.dev/checkpoint-step": "1200" },
            "ownerReferences": [{
                "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "name": "train", "uid": "a1", "controller": true,
            }],
            "managedFields": [{ "manager": "muster", "operation": "Update", "fieldsV1": { "f:spec": {} } }],
        },
        "spec": {
            "nodeName": "node-7", "hostNetwork": true, "schedulerName": "default-scheduler",
            "containers": [{
                "name": "trainer", "image": "example/trainer", "env": [{ "name": "A", "value": "b" }],
                "resources": { "requests": { "cpu": "4" }, "limits": { "nvidia.com/gpu": "8" } },
                "ports": [{ "containerPort": 29500, "hostPort": 29500, "protocol": "TCP" }],
            }],
            "initContainers": [{
                "name": "sidecar", "restartPolicy": "Always", "resources": { "requests": { "cpu": "500m" } },
            }],
            "resources": { "requests": { "memory": "64Gi" } },
            "overhead": { "cpu": "250m" },
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "other" } },
            }]}},
        },
        "status": status,
    })
}

#[test]
fn the_facts_of_a_pod_are_those_of_the_whole_object() {
    let statuses = [
        json!({}),
        json!({ "phase": "Pending", "nominatedNodeName": "node-9" }),
        json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:05Z", "podIP": "10.0.0.1", "qosClass": "Burstable",
            "conditions": [
                { "type": "Ready", "status": "True" },
                { "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" },
            ],
            "containerStatuses": [{
                "name": "trainer", "ready": true, "restartCount": 0, "image": "i", "imageID": "d",
                "allocatedResources": { "cpu": "6" }, "state": { "running": { "startedAt": "2026-01-01T00:00:09Z" } },
            }],
        }),
        json!({
            "phase": "Failed", "reason": "Evicted", "message": "the node was low on memory",
            "containerStatuses": [{
                "name": "trainer", "ready": false, "restartCount": 1, "image": "i", "imageID": "d",
                "lastState": { "terminated": { "exitCode": 1, "startedAt": "2026-01-01T00:00:09Z" } },
                "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
            }],
            "initContainerStatuses": [{
                "name": "sidecar", "ready": false, "restartCount": 2, "image": "i", "imageID": "d",
            }],
        }),
        init_failed(),
    ];
    for status in statuses {
        let text = pod(&status).to_string();
        let whole: Pod = serde_json::from_str(&text).expect("a pod");
        let seen: SeenPod = serde_json::from_str(&text).expect("what is seen of it");
        let (facts, warnings) = PodFacts::of(&seen.0);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(facts, PodFacts::of(&whole).0, "{status}");
        assert_eq!(facts.checkpoint_step, Some(1_200));
        assert_eq!(facts.slot.map(|slot| slot.unit.index), Some(3));
        assert!(
            seen.0.metadata.managed_fields.is_none()
                && seen.0.spec.is_some_and(|spec| spec.volumes.is_none())
        );
    }
}

/// As a kubelet writes it: the program's own container waits.
fn init_failed() -> serde_json::Value {
    json!({
        "phase": "Failed",
        "containerStatuses": [{
            "name": "trainer", "ready": false, "restartCount": 0, "image": "i", "imageID": "",
            "state": { "waiting": { "reason": "PodInitializing" } },
        }],
        "initContainerStatuses": [
            {
                "name": "look", "ready": true, "restartCount": 0, "image": "i", "imageID": "d",
                "state": { "terminated": { "exitCode": 0, "startedAt": "2026-01-01T00:00:07Z" } },
            },
            {
                "name": "fetch", "ready": false, "restartCount": 0, "image": "i", "imageID": "d",
                "state": { "terminated": {
                    "exitCode": 1, "reason": "Error", "message": "no such bucket", "startedAt": "2026-01-01T00:00:09Z",
                } },
            },
        ],
    })
}

#[test]
fn an_init_container_that_failed_is_how_the_pod_ended() {
    let whole: Pod = serde_json::from_value(pod(&init_failed())).expect("a pod");
    let facts = PodFacts::of(&whole).0;
    let end = facts.end.expect("it has ended");
    assert!(facts.started);
    assert_eq!((end.exit_code, end.container.as_str(), end.init), (Some(1), "fetch", true));
    assert_eq!(end.message, "no such bucket");
    // Where the program ran, it explains the pod; what ended beside it does not.
    let mut status = init_failed();
    status["containerStatuses"][0]["state"] = json!({ "terminated": { "exitCode": 3 } });
    let whole: Pod = serde_json::from_value(pod(&status)).expect("a pod");
    let end = PodFacts::of(&whole).0.end.expect("it has ended");
    assert_eq!((end.exit_code, end.container.as_str(), end.init), (Some(3), "trainer", false));
}

#[test]
fn the_facts_of_a_node_are_those_of_the_whole_object() {
    let text = json!({
        "metadata": { "name": "node-7", "uid": "n7", "resourceVersion": "3", "labels": { "rack": "r1", "muster.dev/x": "y" } },
        "spec": {
            "podCIDR": "10.0.0.0/24", "unschedulable": true,
            "taints": [{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }],
        },
        "status": {
            "capacity": { "cpu": "64", "nvidia.com/gpu": "8" },
            "allocatable": { "cpu": "63", "nvidia.com/gpu": "8", "pods": "110" },
            "conditions": [{ "type": "Ready", "status": "True" }],
            "declaredFeatures": ["RestartAllContainersOnContainerExits", "Other"],
            "images": [{ "names": ["example/trainer"], "sizeBytes": 1 }],
        },
    })
    .to_string();
    let whole: Node = serde_json::from_str(&text).expect("a node");
    let seen: SeenNode = serde_json::from_str(&text).expect("what is seen of it");
    assert_eq!(convert::node(&seen.0), convert::node(&whole));
    assert_eq!(
        convert::node(&seen.0).0.labels.len(),
        3,
        "one of the features is one that pods are scheduled by"
    );
    assert!(convert::node(&seen.0).0.cordoned && seen.0.status.is_some_and(|status| status.images.is_none()));
}
