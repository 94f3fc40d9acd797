//! What a pod's status says of its end and of what keeps it from starting, and whose pod it is.

use k8s_openapi::api::core::v1::Pod;
use muster_cluster::{Cluster, PodFacts, PodOutcome, pods::MAX_STEP, text};
use muster_model::{Gang, GangState, Node, NodeName, ObjectKey, Plan, PlannedUnit, Resources, Role, Uid};
use muster_model::{UnitId, plan::PlacedUnit};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A pod of a gang with two containers, an init container and a sidecar.
fn pod(status: &Value) -> Value {
    json!({
        "metadata": {
            "name": "train-a1-0-2-0", "namespace": "team", "uid": "7f0c",
            "labels": { "muster.dev/role": "w", "muster.dev/unit": "0", "muster.dev/incarnation": "2", "muster.dev/index": "0" },
            "annotations": { "muster.dev/container": "trainer" },
            "ownerReferences": [{ "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "name": "train", "uid": "a1", "controller": true }],
        },
        "spec": {
            "nodeName": "n",
            "initContainers": [{ "name": "fetch" }, { "name": "agent", "restartPolicy": "Always" }],
            "containers": [{ "name": "proxy" }, { "name": "trainer", "resources": { "limits": { "nvidia.com/gpu": "8" } } }],
        },
        "status": status,
    })
}

fn facts(pod: &Value) -> PodFacts {
    PodFacts::of(&serde_json::from_value::<Pod>(pod.clone()).expect("a pod")).0
}

fn status(name: &str, state: &Value) -> Value {
    json!({ "name": name, "ready": false, "restartCount": 0, "image": "i", "imageID": "d", "state": state })
}

fn ended(code: i32) -> Value {
    json!({ "terminated": { "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
        "message": format!("said {code}"), "startedAt": "2026-01-01T00:00:00Z" } })
}

fn runs() -> Value {
    json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })
}

fn waits(reason: &str, message: &str) -> Value {
    json!({ "waiting": { "reason": reason, "message": message } })
}

/// The failure of an init container is the program's, not the node's.
#[test]
fn an_init_container_that_fails_says_its_code_its_name_and_its_message() {
    let facts = facts(&pod(&json!({
        "phase": "Failed", "startTime": "2026-01-01T00:00:00Z",
        "initContainerStatuses": [status("fetch", &ended(93)), status("agent", &waits("PodInitializing", ""))],
        "containerStatuses": [status("proxy", &waits("PodInitializing", "")), status("trainer", &waits("PodInitializing", ""))],
    })));
    let end = facts.end.clone().expect("an end");
    assert_eq!((end.exit_code, end.container.as_deref(), end.init), (Some(93), Some("fetch"), true));
    assert_eq!((end.reason.as_str(), end.message.as_str()), ("Error", "said 93"));
    assert_eq!((facts.outcome(), facts.started), (Some(PodOutcome::Failed), true));
    assert!(facts.waiting.is_none(), "it waits no more");
}

/// A sidecar that ends with an error beside the program does not explain the program's end.
#[test]
fn a_sidecar_is_no_init_container() {
    let facts = facts(&pod(&json!({
        "phase": "Failed",
        "initContainerStatuses": [status("fetch", &ended(0)), status("agent", &ended(137))],
        "containerStatuses": [status("proxy", &ended(0)), status("trainer", &ended(7))],
    })));
    let end = facts.end.expect("an end");
    assert_eq!((end.exit_code, end.container.as_deref(), end.init), (Some(7), Some("trainer"), false));
}

/// What the container that decides has ended with counts, while others run on and whatever they end with.
#[test]
fn the_container_that_decides_ends_the_pod_while_others_run_on() {
    let of = |phase: &str, proxy: &Value, trainer: &Value| {
        facts(&pod(&json!({ "phase": phase,
            "containerStatuses": [status("proxy", proxy), status("trainer", trainer)] })))
    };
    for (phase, proxy, trainer, outcome, code) in [
        ("Running", runs(), runs(), None, None),
        ("Running", runs(), ended(1), Some(PodOutcome::Failed), Some(1)),
        ("Running", runs(), ended(0), Some(PodOutcome::Succeeded), Some(0)),
        // The other container does not decide.
        ("Running", ended(1), runs(), None, None),
        ("Failed", ended(1), ended(0), Some(PodOutcome::Succeeded), Some(0)),
        ("Failed", ended(1), ended(3), Some(PodOutcome::Failed), Some(3)),
        ("Succeeded", ended(0), ended(0), Some(PodOutcome::Succeeded), Some(0)),
    ] {
        let facts = of(phase, &proxy, &trainer);
        assert_eq!(facts.outcome(), outcome, "{phase} {proxy} {trainer}");
        assert_eq!(facts.end.as_ref().and_then(|end| end.exit_code), code, "{phase} {proxy} {trainer}");
        assert_eq!(facts.terminal(), phase != "Running", "it uses its node as long as others run");
    }
    // Without the annotation the first that failed explains the pod, and nothing ends it early.
    let mut plain = pod(&json!({ "phase": "Running",
        "containerStatuses": [status("proxy", &runs()), status("trainer", &ended(1))] }));
    plain["metadata"]["annotations"] = json!({});
    assert_eq!(facts(&plain).outcome(), None);
    // A container that may start again has not ended.
    let mut again = pod(&json!({ "phase": "Running",
        "containerStatuses": [status("proxy", &runs()), status("trainer", &ended(1))] }));
    again["spec"]["containers"][1]["restartPolicy"] = json!("OnFailure");
    assert_eq!(facts(&again).outcome(), None);
}

/// A program that saves its work and ends with 0 because its pod must go has not succeeded.
#[test]
fn a_program_that_was_told_to_go_has_not_succeeded() {
    let containers = json!([status("proxy", &ended(1)), status("trainer", &ended(0))]);
    let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory", "containerStatuses": containers });
    let disrupted = json!({ "phase": "Failed", "containerStatuses": containers,
        "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }] });
    for status in [evicted, disrupted] {
        assert_eq!(facts(&pod(&status)).outcome(), Some(PodOutcome::Failed), "{status}");
    }
    let mut deleted = pod(&json!({ "phase": "Running", "containerStatuses": containers }));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    assert_eq!(facts(&deleted).outcome(), None);
    deleted["status"]["phase"] = json!("Failed");
    assert_eq!(facts(&deleted).outcome(), Some(PodOutcome::Failed));
}

#[test]
fn what_keeps_a_pod_from_starting_is_said() {
    let of = |status: Value| {
        let waiting = facts(&pod(&status)).waiting;
        waiting.map(|waiting| (waiting.container.unwrap_or_default(), waiting.reason, waiting.message))
    };
    let said = |container: &str, reason: &str, message: &str| {
        Some((container.to_owned(), reason.to_owned(), message.to_owned()))
    };
    let usual = [
        status("proxy", &waits("ContainerCreating", "")),
        status("trainer", &waits("ContainerCreating", "")),
    ];
    assert_eq!(of(json!({ "phase": "Pending", "containerStatuses": usual })), None);
    for reason in ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "InvalidImageName"] {
        let containers = json!([
            status("proxy", &waits("ContainerCreating", "")),
            status("trainer", &waits(reason, "why"))
        ]);
        let answer = of(json!({ "phase": "Pending", "containerStatuses": containers,
            "conditions": [{ "type": "ContainersReady", "status": "False", "reason": "ContainersNotReady" }] }));
        assert_eq!(answer, said("trainer", reason, "why"));
    }
    let first = json!({ "phase": "Pending", "containerStatuses": usual,
        "initContainerStatuses": [status("fetch", &waits("ErrImagePull", "not found"))] });
    assert_eq!(of(first), said("fetch", "ErrImagePull", "not found"));
    let unbound = json!({ "phase": "Pending", "conditions": [
        { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" } ] });
    assert_eq!(of(unbound), said("", "Unschedulable", "0/1 nodes are available"));
    assert_eq!(of(json!({ "phase": "Running", "reason": "NodeLost" })), said("", "NodeLost", ""));
}

#[test]
fn texts_of_pods_are_bounded_and_on_one_line() {
    let long = format!("a\n\u{1b}[31m{}", "é".repeat(10_000));
    let failed = facts(&pod(&json!({ "phase": "Failed", "reason": long, "message": long,
        "conditions": [{ "type": "DisruptionTarget", "status": "True", "reason": long }] })));
    let end = failed.end.expect("an end");
    let waiting = facts(&pod(
        &json!({ "phase": "Pending", "containerStatuses": [status("trainer", &waits(&long, &long))] }),
    ));
    let waiting = waiting.waiting.expect("it waits");
    for (said, most) in [
        (end.reason, text::REASON),
        (end.message, text::MESSAGE),
        (failed.disruption.expect("a reason"), text::REASON),
        (waiting.reason, text::REASON),
        (waiting.message, text::MESSAGE),
    ] {
        assert!(said.chars().count() <= most && !said.chars().any(char::is_control), "{said:?}");
        assert!(said.starts_with("a  [31mé") && said.ends_with('…'), "{said:?}");
    }
}

#[test]
fn a_checkpoint_step_is_believed_within_reason() {
    for (text, step) in [
        ("0", Some(0)),
        ("1200", Some(1_200)),
        ("1000000000000", Some(MAX_STEP)),
        ("1000000000001", None),
        ("9223372036854775807", None),
        ("-1", None),
        ("many", None),
    ] {
        let mut object = pod(&json!({}));
        object["metadata"]["annotations"]["muster.dev/checkpoint-step"] = json!(text);
        assert_eq!(facts(&object).checkpoint_step, step, "{text}");
    }
}

/// A cluster of one node and one gang of one pod there, planned with 8 GPUs.
fn cluster() -> (Cluster, ObjectKey, Uid) {
    let mut cluster = Cluster::new();
    cluster.set_node(Node {
        name: "n".into(),
        uid: "n".into(),
        labels: [].into(),
        taints: Vec::new(),
        allocatable: Resources::of([("nvidia.com/gpu", 16), ("pods", 10)]),
        ready: true,
        cordoned: false,
    });
    let (key, uid) = (ObjectKey::new("team", "train"), Uid::from("a1"));
    let role = Role {
        name: "w".into(),
        requests: Resources::of([("nvidia.com/gpu", 8)]),
        pods_per_unit: 1,
        min: 1,
        max: 1,
        ..empty()
    };
    let placed = PlacedUnit {
        id: UnitId { role: "w".into(), index: 0 },
        class: None,
        nodes: vec![NodeName::from("n")],
    };
    let plan = Plan {
        generation: 2,
        units: vec![PlannedUnit { placed, incarnation: 2, revision: String::new() }],
        ..Plan::default()
    };
    cluster.set_gang(Gang {
        key: key.clone(),
        uid: uid.clone(),
        queue: "default".into(),
        priority: 0,
        since: 0,
        classes: Vec::new(),
        roles: vec![role],
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Holding(plan),
    });
    (cluster, key, uid)
}

fn empty() -> Role {
    Role {
        name: String::new(),
        requests: Resources::default(),
        devices: 0,
        node_selector: [].into(),
        affinity: Vec::new(),
        tolerations: Vec::new(),
        traits: muster_model::PodTraits::default(),
        pods_per_unit: 1,
        min: 1,
        max: 1,
        valid: Vec::new(),
        segments: Vec::new(),
        spares: 0,
    }
}

/// Whether one more pod of 8 GPUs is placed beside what is there.
fn room(cluster: &mut Cluster) -> bool {
    let asks = Gang {
        key: ObjectKey::new("team", "asks"),
        uid: "asks".into(),
        queue: "default".into(),
        priority: 0,
        since: 1,
        classes: Vec::new(),
        roles: vec![Role { name: "w".into(), requests: Resources::of([("nvidia.com/gpu", 8)]), ..empty() }],
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    };
    cluster.set_gang(asks);
    let placed = matches!(&cluster.decide(0, 1)[..], [muster_engine::Decision::Place { .. }]);
    cluster.remove_gang(&ObjectKey::new("team", "asks"), &"asks".into());
    placed
}

/// Anybody may name a Gang as the controller of a pod: it is the gang's own only in its namespace, under its planned name.
#[test]
fn a_pod_that_only_says_it_is_ours_is_foreign_use() {
    let own = pod(&json!({ "phase": "Running" }));
    let name = muster_api::names::pod("train", &"a1".into(), None, 0, 2, 0);
    let with = |namespace: &str, name: &str| {
        let mut pod = own.clone();
        pod["metadata"]["namespace"] = json!(namespace);
        pod["metadata"]["name"] = json!(name);
        facts(&pod)
    };
    for (namespace, name, ours) in
        [("team", name.as_str(), true), ("other", &name, false), ("team", "other", false)]
    {
        let (mut cluster, key, uid) = cluster();
        let pod = with(namespace, name);
        let slot = pod.planned_slot(&key, &uid, ["w"]);
        assert_eq!(slot.map(|slot| (slot.incarnation, slot.index)), ours.then_some((2, 0)));
        cluster.set_pod(pod);
        assert_eq!(cluster.pods_of(&uid).count(), 1, "by UID it is found all the same");
        // Ours is counted by the plan; another is counted besides.
        assert_eq!(room(&mut cluster), ours, "{namespace}/{name}");
    }
}

/// A label that was changed by hand moves no pod to another place.
#[test]
fn the_name_says_a_pods_place_and_not_its_labels() {
    let (mut cluster, _, _) = cluster();
    let mut edited = pod(&json!({ "phase": "Running" }));
    edited["metadata"]["labels"] = json!({ "muster.dev/role": "other", "muster.dev/unit": "9" });
    let before = facts(&edited);
    assert!(cluster.set_pod(before.clone()).is_none());
    assert!(room(&mut cluster), "it is counted by the plan");
    edited["metadata"]["ownerReferences"] = json!([]);
    let known = cluster.set_pod(facts(&edited)).expect("it was known");
    assert_eq!(known, before, "whose it was is told");
    assert!(!room(&mut cluster), "without its controller it is anybody's");
}

/// What a node has decides whether a pod may start there again, not what is free at the moment.
#[test]
fn a_node_that_lost_a_device_cannot_hold_the_pod_again() {
    let (mut cluster, _, _) = cluster();
    let asks = Resources::of([("nvidia.com/gpu", 16), ("pods", 1)]);
    assert!(cluster.could_hold(&"n".into(), &asks), "in use, but it has them");
    let mut node = cluster.node(&"n".into()).expect("a node").clone();
    node.allocatable.set("nvidia.com/gpu", 15);
    cluster.set_node(node);
    assert!(!cluster.could_hold(&"n".into(), &asks) && !cluster.could_hold(&"gone".into(), &asks));
}

#[test]
fn pods_whose_gang_nobody_knows_are_orphans() {
    let (mut cluster, _, uid) = cluster();
    let mut stray = pod(&json!({ "phase": "Running" }));
    stray["metadata"]["uid"] = json!("stray");
    stray["metadata"]["ownerReferences"][0]["uid"] = json!("gone");
    cluster.set_pod(facts(&pod(&json!({ "phase": "Running" }))));
    cluster.set_pod(facts(&stray));
    let orphans: Vec<&str> = cluster.orphans(|gang| *gang == uid).map(|pod| pod.uid.0.as_str()).collect();
    assert_eq!(orphans, ["stray"]);
}
