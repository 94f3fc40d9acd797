//! What templates ask for beside what their gang gives: accelerators of other containers, ports and names on the node's
//! network, fields that are ours.

use k8s_openapi::api::core::v1::PodSpec;
use muster_api::RoleSpec;
use muster_cluster::template::{self, Around, Learned};
use muster_model::{AcceleratorClass, Reason, Resources, Role};
use serde_json::{Value, json};

fn class(name: &str, resource: &str) -> AcceleratorClass {
    AcceleratorClass { name: name.into(), resource: resource.into(), requirements: Vec::new() }
}

fn role_spec(devices: u32, spec: &Value) -> RoleSpec {
    serde_json::from_value(json!({
        "name": "w", "units": { "min": 1, "max": 1 }, "devices": devices, "template": { "spec": spec },
    }))
    .expect("a role")
}

fn role(devices: u32, spec: &Value, classes: &[AcceleratorClass]) -> Result<Role, Reason> {
    let around = Around { classes, ..Around::default() };
    template::role("spec.roles[0]", &role_spec(devices, spec), None, &around)
}

/// The field and the message of a refusal.
fn refused(answer: Result<Role, Reason>) -> (String, String) {
    match answer {
        Err(Reason::Invalid { field, message, remedy }) => {
            assert!(!remedy.is_empty(), "{field}");
            (field, message)
        }
        other => panic!("a refusal expected, got {other:?}"),
    }
}

fn gpus(name: &str, count: u32) -> Value {
    json!({ "name": name, "resources": { "limits": { "nvidia.com/gpu": count.to_string() } } })
}

/// As kube-scheduler counts: containers and sidecars together, or the peak while init containers run.
#[test]
fn accelerators_of_every_container_count() {
    let gpu = [class("h100", "nvidia.com/gpu")];
    let mut sidecar = gpus("telemetry", 1);
    sidecar["restartPolicy"] = json!("Always");
    for (spec, total) in [
        (json!({ "containers": [{ "name": "trainer" }] }), 8),
        (json!({ "containers": [gpus("trainer", 8)] }), 8),
        (json!({ "containers": [{ "name": "trainer" }, gpus("telemetry", 1)] }), 9),
        (json!({ "containers": [{ "name": "trainer" }], "initContainers": [sidecar] }), 9),
        (json!({ "containers": [{ "name": "trainer" }], "initContainers": [gpus("warm", 1)] }), 8),
        (json!({ "containers": [{ "name": "trainer" }], "initContainers": [gpus("warm", 16)] }), 16),
        (json!({ "containers": [{ "name": "trainer" }], "initContainers": [sidecar, gpus("warm", 8)] }), 9),
    ] {
        let role = role(8, &spec, &gpu).expect("a role");
        assert_eq!(role.devices, total, "{spec}");
        assert_eq!(role.pod_requests(gpu.first()).get("nvidia.com/gpu"), i64::from(total), "{spec}");
    }
    let two = json!({ "containers": [{ "name": "trainer" }, gpus("other", 2)] });
    assert_eq!(role(0, &two, &gpu).expect("a role").devices, 2, "none given, two asked for");
    assert_eq!(
        role(0, &two, &[]).expect("a role").requests.get("nvidia.com/gpu"),
        2,
        "without a class a plain resource"
    );
}

/// What webhooks add counts as well.
#[test]
fn accelerators_that_admission_adds_count() {
    let gpu = [class("h100", "nvidia.com/gpu")];
    let learned =
        Learned { requests: Resources::of([("nvidia.com/gpu", 9), ("cpu", 1)]), ..Learned::default() };
    let around = Around { classes: &gpu, ..Around::default() };
    let spec = role_spec(8, &json!({ "containers": [{ "name": "trainer" }] }));
    assert_eq!(template::role("r", &spec, Some(learned), &around).expect("a role").devices, 9);
}

#[test]
fn accelerators_that_do_not_add_up_are_refused_at_their_field() {
    let (nvidia, amd) = (class("h100", "nvidia.com/gpu"), class("mi300", "amd.com/gpu"));
    let path = "spec.roles[0].template.spec";
    let other = json!({ "containers": [{ "name": "trainer" }, gpus("telemetry", 1)] });
    let (field, message) = refused(role(8, &other, &[nvidia.clone(), amd]));
    assert_eq!(field, format!("{path}.containers[1].resources.limits[nvidia.com/gpu]"));
    assert!(message.contains("only some"), "{message}");
    for text in ["4", "1500m", "1e1", "8.0"] {
        let stated = json!({ "containers": [{ "name": "trainer", "resources": { "limits": { "nvidia.com/gpu": text } } }] });
        let (field, message) = refused(role(8, &stated, std::slice::from_ref(&nvidia)));
        assert_eq!(field, format!("{path}.containers[0].resources.limits[nvidia.com/gpu]"));
        assert!(message.contains(text) && message.contains('8'), "{message}");
    }
    let mut named = role_spec(8, &json!({ "containers": [{ "name": "trainer" }] }));
    named.container = Some("trainr".into());
    let around = Around { classes: std::slice::from_ref(&nvidia), ..Around::default() };
    let (field, message) = refused(template::role("spec.roles[0]", &named, None, &around));
    assert_eq!(field, "spec.roles[0].container");
    assert!(message.contains("trainr"), "{message}");
}

/// What is wrong with a template is said at its field, whatever the API server has let through.
#[test]
fn a_template_that_cannot_be_used_is_invalid_at_its_field() {
    for (template, field) in [
        (json!({ "spec": { "containers": "many" } }), "template.spec.containers"),
        (
            json!({ "spec": { "containers": [{ "name": "c", "livenessProbe": { "tcpSocket": { "port": 3_000_000_000_u64 } } }] } }),
            "template.spec.containers[0].livenessProbe.tcpSocket.port",
        ),
        (json!({ "spec": {} }), "template.spec.containers"),
        (json!({}), "template.spec.containers"),
        (
            json!({ "spec": { "containers": [{ "name": "c" }], "restartPolicy": "Always" } }),
            "template.spec.restartPolicy",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "-1" } } }] } }),
            "template.spec.containers[c].resources[cpu]",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "lots" } } }] } }),
            "template.spec.containers[c].resources[cpu]",
        ),
        (json!({ "spec": { "containers": [{ "name": "c" }], "nodeName": "n" } }), "template.spec.nodeName"),
        (
            json!({ "metadata": { "annotations": { "muster.dev/checkpoint-step": "7" } }, "spec": { "containers": [{ "name": "c" }] } }),
            "template.metadata.annotations[muster.dev/checkpoint-step]",
        ),
        (
            json!({ "metadata": { "labels": { "muster.dev/unit": "7" } }, "spec": { "containers": [{ "name": "c" }] } }),
            "template.metadata.labels[muster.dev/unit]",
        ),
    ] {
        let spec: RoleSpec = serde_json::from_value(json!({
            "name": "w", "units": { "min": 1, "max": 1 }, "template": template,
        }))
        .expect("a role");
        let (at, _) = refused(template::role("spec.roles[0]", &spec, None, &Around::default()));
        assert_eq!(at, format!("spec.roles[0].{field}"));
    }
}

#[test]
fn ports_that_pods_are_told_are_ports_of_the_node_on_its_network() {
    let shared = json!({ "hostNetwork": true, "containers": [{ "name": "c" }] });
    let around = Around { ports: &[29_500, 29_510], ..Around::default() };
    let role = |spec: &Value| template::role("r", &role_spec(0, spec), None, &around).expect("a role");
    let ports: Vec<String> =
        role(&shared).requests.0.into_keys().filter(|name| name.starts_with("hostPort/")).collect();
    assert_eq!(ports, ["hostPort/TCP/29500", "hostPort/TCP/29510"]);
    let stated = json!({ "hostNetwork": true, "containers": [{ "name": "c", "ports": [{ "containerPort": 29_500 }] }] });
    assert_eq!(role(&stated).requests, role(&shared).requests, "stated as well, it counts once");
    let own = json!({ "containers": [{ "name": "c" }] });
    assert!(role(&own).requests.0.keys().all(|name| !name.starts_with("hostPort/")));
}

#[test]
fn names_of_services_are_found_on_the_network_of_the_node() {
    let policy = |network: bool, policy: Option<&str>| {
        template::dns_policy(&PodSpec {
            host_network: Some(network),
            dns_policy: policy.map(str::to_owned),
            ..PodSpec::default()
        })
    };
    for (network, stated, becomes) in [
        (true, None, Some("ClusterFirstWithHostNet")),
        (true, Some("ClusterFirst"), Some("ClusterFirstWithHostNet")),
        (true, Some("Default"), None),
        (true, Some("None"), None),
        (false, None, None),
        (false, Some("ClusterFirst"), None),
    ] {
        assert_eq!(policy(network, stated), becomes, "{network} {stated:?}");
    }
}
