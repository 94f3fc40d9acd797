//! What becomes of a job's template: numbers from the nodes that are there, and the pods that are made of it.

use k8s_openapi::api::core::v1::Node;
use muster_api::{Gang, TrainingJob};
use muster_cluster::{Cluster, Slot, convert};
use muster_core::{
    World,
    derive::{self, Problem},
    manifest::{Blueprint, Stamp},
};
use muster_model::{AcceleratorClass, GangState, ObjectKey, Reason, UnitId};
use serde_json::{Value, json};

fn node(name: &str, product: &str, amounts: &Value) -> muster_model::Node {
    let node: Node = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "nvidia.com/gpu.product": product } },
        "status": { "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .expect("a node");
    convert::node(&node).0
}

fn world(nodes: Vec<muster_model::Node>) -> World {
    let mut cluster = Cluster::new();
    for node in nodes {
        cluster.set_node(node);
    }
    let mut world = World::default();
    world.look_at_nodes(&cluster);
    world
}

fn job(spec: &Value) -> TrainingJob {
    let mut all = json!({ "template": { "spec": { "containers": [{ "name": "trainer" }] } } });
    all.as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    serde_json::from_value(json!({ "metadata": { "name": "job", "namespace": "team" }, "spec": all }))
        .expect("a job")
}

fn problems(spec: &Value, world: &World) -> Vec<Problem> {
    let mut problems = Vec::new();
    derive::derive(&job(spec).spec, world, None, &mut problems);
    problems
}

/// Network devices, shares of cards and virtual machines are advertised by the hundred beside eight cards.
#[test]
fn only_the_resource_of_its_class_counts_as_a_nodes_accelerators() {
    let amounts = json!({
        "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "rdma/shared": "1000", "devices.kubevirt.io/kvm": "1k",
        "example.com/nic": "64", "cpu": "96", "pods": "110",
    });
    let world = world(vec![node("p5", "NVIDIA-H100-80GB-HBM3", &amounts)]);
    let mut problems = Vec::new();
    let spec = job(&json!({ "parallelism": { "data": 16 } })).spec;
    let derived = derive::derive(&spec, &world, None, &mut problems).expect("numbers");
    assert_eq!((derived.devices, derived.pods_per_unit, problems.len()), (8, 1, 0));
    // A node of the product without cards, as before its device plugin starts, says nothing.
    let world = self::world(vec![node("new", "NVIDIA-H100-80GB-HBM3", &json!({ "example.com/nic": "64" }))]);
    let derived = derive::derive(&spec, &world, None, &mut problems).expect("numbers");
    assert_eq!(derived.devices, 8, "what is typical of the class");
}

/// Users are told of the fields that they have written.
#[test]
fn what_is_wrong_with_a_template_is_said_at_a_field_of_the_job() {
    let world = world(vec![node("n", "NVIDIA-H100-80GB-HBM3", &json!({ "nvidia.com/gpu": "8" }))]);
    let container = |resources: Value| {
        json!({ "accelerator": { "classes": ["h100"], "perPod": 8 }, "parallelism": { "data": 8 },
            "template": { "spec": { "containers": [{ "name": "trainer", "resources": resources }] } } })
    };
    for (spec, field) in [
        (
            container(json!({ "limits": { "cpu": "lots" } })),
            "spec.template.spec.containers[trainer].resources[cpu]",
        ),
        (
            container(json!({ "limits": { "nvidia.com/gpu": "-1" } })),
            "spec.template.spec.containers[trainer].resources[nvidia.com/gpu]",
        ),
        (
            container(json!({ "limits": { "nvidia.com/gpu": "4" } })),
            "spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        (
            json!({ "accelerator": { "classes": ["h100"], "perPod": 8, "container": "trainr" }, "parallelism": { "data": 8 } }),
            "spec.accelerator.container",
        ),
        (json!({ "framework": "Jax" }), "spec.framework"),
    ] {
        let problems = problems(&spec, &world);
        assert_eq!(problems.first().map(|problem| problem.field.as_str()), Some(field), "{problems:?}");
    }
    for (gang, job) in [
        ("spec.roles[0].template.spec.volumes", "spec.template.spec.volumes"),
        ("spec.roles[0].devices", "spec.accelerator.perPod"),
        ("spec.classes[1]", "spec.accelerator.classes[1]"),
        ("spec.within", "spec.placement.job"),
        ("spec.queue", "spec.queue"),
    ] {
        assert_eq!(derive::field_of_job(gang), job);
    }
}

/// All that is wrong is told in one round, whatever was found before.
#[test]
fn what_is_wrong_elsewhere_hides_nothing() {
    let world = world(vec![node("n", "NVIDIA-H100-80GB-HBM3", &json!({ "nvidia.com/gpu": "8" }))]);
    let queue = Problem::new("spec.queue", "Queue \"other\" does not exist".into(), "create it");
    let mut problems = vec![queue];
    let spec = json!({ "accelerator": { "classes": ["h100"], "perPod": 8 }, "parallelism": { "tensor": 3, "data": 8 } });
    assert_eq!(derive::derive(&job(&spec).spec, &world, None, &mut problems), None);
    assert!(problems.len() > 1, "{problems:?}");
}

fn gang(spec: &Value) -> Gang {
    serde_json::from_value(json!({
        "metadata": { "name": "g", "namespace": "team", "uid": "u-1" }, "spec": spec,
    }))
    .expect("a gang")
}

/// A hand-made Gang ranks itself by a PriorityClass and nothing else; a word of a newer version keeps it from new plans.
#[test]
fn a_gang_is_ranked_by_its_priority_class_only() {
    let mut world = world(Vec::new());
    let class =
        serde_json::from_value(json!({ "metadata": { "name": "high" }, "value": 1000 })).expect("a class");
    world.set_priority("high", Some(&class));
    let roles = json!([{ "name": "w", "units": { "min": 1, "max": 1 },
        "template": { "spec": { "containers": [{ "name": "c" }] } } }]);
    let request = |more: &Value| {
        let mut spec = json!({ "roles": roles });
        spec.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        world.request(&gang(&spec), &|_| None, 0)
    };
    assert_eq!(request(&json!({ "priority": 2_000_000 })).expect("a gang").priority, 0);
    let ranked = request(&json!({ "priorityClassName": "high" })).expect("a gang");
    assert_eq!((ranked.priority, ranked.state), (1_000, GangState::Inactive));
    for (more, at) in [
        (json!({ "priorityClassName": "other" }), "spec.priorityClassName"),
        (json!({ "launch": { "framework": "Jax" } }), "spec.launch.framework"),
        (json!({ "outcome": { "policy": "Quorum" } }), "spec.outcome.policy"),
    ] {
        match request(&more) {
            Err(Reason::Invalid { field, .. }) => assert_eq!(field, at),
            other => panic!("{at}: {other:?}"),
        }
    }
}

/// The body of one pod of a gang.
fn body(spec: &Value) -> Value {
    let gang = gang(spec);
    let class =
        AcceleratorClass { name: "h100".into(), resource: "nvidia.com/gpu".into(), requirements: Vec::new() };
    let blueprint = Blueprint::new(&gang, &gang.spec.roles[0], Some(&class)).expect("a blueprint");
    let slot = Slot { unit: UnitId { role: "w".into(), index: 0 }, incarnation: 1, index: 0 };
    let stamp = Stamp {
        pod: &ObjectKey::new("team", "g-0"),
        slot: &slot,
        generation: 1,
        node: None,
        epoch: 3,
        env: Vec::new(),
        decides: false,
        subdomain: None,
        hostfile: None,
    };
    serde_json::from_slice(&blueprint.stamp(&stamp)).expect("JSON")
}

/// The pod says itself whose exit decides, and no template speaks in our name.
#[test]
fn a_pod_names_the_container_that_decides_and_keeps_no_word_of_ours_from_its_template() {
    let spec = |container: &Value| {
        json!({ "roles": [{
            "name": "w", "units": { "min": 1, "max": 1 }, "devices": 8, "container": container,
            "terminationGracePeriodSeconds": 90,
            "template": {
                "metadata": {
                    "labels": { "app": "a", "muster.dev/unit": "7" },
                    "annotations": { "note": "b", "muster.dev/checkpoint-step": "9000", "muster.dev/container": "proxy" },
                    "finalizers": ["example.com/held"], "generateName": "x",
                },
                "spec": { "laterField": { "x": 1 }, "containers": [{ "name": "first" }, { "name": "trainer" }] },
            },
        }]})
    };
    for (container, name) in [(json!("trainer"), "trainer"), (json!(null), "first")] {
        let pod = body(&spec(&container));
        assert_eq!(
            pod["metadata"]["annotations"],
            json!({
                "note": "b", "muster.dev/container": name, "muster.dev/epoch": "3",
            })
        );
        assert_eq!(
            (&pod["metadata"]["labels"]["app"], &pod["metadata"]["labels"]["muster.dev/unit"]),
            (&json!("a"), &json!("0"))
        );
        assert_eq!(
            (&pod["metadata"]["finalizers"], &pod["metadata"]["generateName"]),
            (&Value::Null, &Value::Null)
        );
        let spec = &pod["spec"];
        assert_eq!(spec["laterField"], json!({ "x": 1 }), "what a newer API server knows reaches it");
        assert_eq!(
            (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]),
            (&json!("Never"), &json!(90))
        );
    }
}

#[test]
fn on_the_network_of_its_node_a_pod_states_its_ports_and_finds_services() {
    let spec = |framework: &str, pod: Value| {
        json!({ "launch": { "framework": framework }, "roles": [
            { "name": "w", "units": { "min": 1, "max": 1 }, "template": { "spec": pod } },
            { "name": "v", "units": { "min": 1, "max": 1 }, "template": { "spec": { "containers": [{ "name": "c" }] } } },
        ]})
    };
    let shared = json!({ "hostNetwork": true, "containers": [{ "name": "c" }] });
    let port = |number: u32| json!({ "containerPort": number, "hostPort": number, "protocol": "TCP" });
    let pod = body(&spec("Torchrun", shared.clone()));
    assert_eq!(pod["spec"]["dnsPolicy"], json!("ClusterFirstWithHostNet"));
    assert_eq!(pod["spec"]["containers"][0]["ports"], json!([port(29_500)]));
    let pod = body(&spec("TorchFT", shared));
    assert_eq!(pod["spec"]["containers"][0]["ports"], json!([port(29_500), port(29_510)]));
    let stated = json!({ "hostNetwork": true, "dnsPolicy": "Default",
        "containers": [{ "name": "c", "ports": [{ "containerPort": 29_500 }] }] });
    let pod = body(&spec("Megatron", stated));
    assert_eq!(pod["spec"]["containers"][0]["ports"], json!([{ "containerPort": 29_500 }]));
    assert_eq!(pod["spec"]["dnsPolicy"], json!("Default"));
    let pod = body(&spec("Torchrun", json!({ "containers": [{ "name": "c" }] })));
    assert_eq!(
        (&pod["spec"]["dnsPolicy"], &pod["spec"]["containers"][0]["ports"]),
        (&Value::Null, &Value::Null)
    );
}
