//! What kube-scheduler's default plugins would refuse, plugin by plugin: enforced here (a case that is placed, a case
//! that is not), or refused by the template's field, or left to kube-scheduler on the planned node.
//!
//! ```text
//!   node, foreign pods, pod template (JSON) ──convert, template::role──▶ Cluster ──decide──▶ Verdict
//! ```
//!
//! The plugins are those of kube-scheduler 1.37's default profile that can say no to a node or a pod.

use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec};
use muster_api::{RoleSpec, UnitBounds};
use muster_cluster::{Cluster, PodFacts, convert, template};
use muster_engine::Decision;
use muster_model::{AcceleratorClass, Gang, GangState, NodeRefusal, ObjectKey, Reason, Uid};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What becomes of a job of one pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It is placed.
    Placed,
    /// The only node refuses, for this reason.
    Refuses(NodeRefusal),
    /// The template is refused, at this field.
    Invalid(&'static str),
    /// It is placed, and kube-scheduler judges the pod on that node: noted at this field.
    LeftToScheduler(&'static str),
    /// It is placed; that the field never blocks is noted.
    Noted(&'static str),
}
use Verdict::{Invalid, LeftToScheduler, Noted, Placed, Refuses};

struct Row {
    plugin: &'static str,
    /// Changes to the node.
    node: Value,
    /// Specification of a pod that is on the node; null for none.
    there: Value,
    /// The template's pod specification, containers excepted where it names none.
    template: Value,
    verdict: Verdict,
}

fn row(plugin: &'static str, node: Value, there: Value, template: Value, verdict: Verdict) -> Row {
    Row { plugin, node, there, template, verdict }
}

/// Puts `patch` over `base`, objects by key.
fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch.clone(),
    }
}

fn node(patch: &Value) -> Node {
    let mut node = json!({
        "metadata": { "name": "n", "uid": "n", "labels": {
            "kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z", "size": "7" } },
        "spec": {},
        "status": {
            "allocatable": { "cpu": "8", "memory": "64Gi", "pods": "10", "ephemeral-storage": "10Gi",
                "example.com/fpga": "2", "nvidia.com/gpu": "8" },
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    merge(&mut node, patch);
    serde_json::from_value(node).expect("a node")
}

fn pod(spec: &Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": "there", "namespace": "other", "uid": "there" },
        "spec": { "nodeName": "n", "containers": [{ "name": "c" }] },
        "status": { "phase": "Running" },
    });
    merge(&mut pod["spec"], spec);
    serde_json::from_value(pod).expect("a pod")
}

fn role(spec: &Value) -> RoleSpec {
    let mut template = json!({
        "metadata": { "labels": { "app": "train" } },
        "spec": { "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
    });
    merge(&mut template["spec"], spec);
    let template: PodTemplateSpec = serde_json::from_value(template).expect("a template");
    RoleSpec {
        name: "w".into(),
        template,
        pods_per_unit: 1,
        units: UnitBounds { min: 1, max: 1, valid: Vec::new() },
        ..RoleSpec::default()
    }
}

fn gang(role: muster_model::Role, classes: Vec<AcceleratorClass>) -> Gang {
    Gang {
        key: ObjectKey::new("research", "g"),
        uid: Uid::from("g"),
        queue: "default".into(),
        priority: 0,
        since: 0,
        classes,
        roles: vec![role],
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }
}

/// What the operator makes of one row.
fn judge(row: &Row) -> Result<Vec<String>, Reason> {
    let mut cluster = Cluster::new();
    let (facts, warnings) = convert::node(&node(&row.node));
    assert_eq!(warnings, Vec::<String>::new());
    cluster.set_node(facts);
    if !row.there.is_null() {
        cluster.set_pod(PodFacts::of(&pod(&row.there)).0);
    }
    let mut wanted = role(&row.template);
    // A template that asks for a GPU stands for a job with one accelerator.
    let spec = wanted.template.spec.clone().expect("a specification");
    wanted.devices = u32::from(row.template.to_string().contains("nvidia.com/gpu"));
    let class =
        AcceleratorClass { name: "any".into(), resource: "nvidia.com/gpu".into(), requirements: Vec::new() };
    let role = template::role("spec.roles[0]", &wanted, None, std::slice::from_ref(&class))?;
    cluster.set_gang(gang(role, vec![class]));
    match cluster.decide(0, 1).remove(0) {
        Decision::Place { .. } => {
            let notes = template::review("spec.roles[0].template.spec", &spec).notes;
            Ok(notes.into_iter().map(|note| note.field).collect())
        }
        Decision::Refuse { reason, .. } => Err(reason),
    }
}

fn check(row: &Row) {
    let (plugin, template) = (row.plugin, &row.template);
    let answer = judge(row);
    let full = |field: &str| format!("spec.roles[0].template.spec.{field}");
    match (&row.verdict, answer) {
        (Placed, Ok(notes)) => assert_eq!(notes, Vec::<String>::new(), "{plugin} {template}"),
        (LeftToScheduler(field) | Noted(field), Ok(notes)) => {
            assert_eq!(notes, [full(field)], "{plugin} {template}");
        }
        (Invalid(field), Err(Reason::Invalid { field: at, message, remedy })) => {
            assert_eq!(at, full(field), "{plugin} {template}");
            assert!(!message.is_empty() && !remedy.is_empty(), "{plugin}: {at}");
        }
        (
            Refuses(refusal),
            Err(Reason::NoNodeFits { nodes, .. } | Reason::InsufficientCapacity { nodes, .. }),
        ) => {
            assert_eq!(nodes.into_iter().collect::<Vec<_>>(), [(*refusal, 1)], "{plugin} {template}");
        }
        (verdict, answer) => panic!("{plugin} {template}: {verdict:?} expected, got {answer:?}"),
    }
}

fn containers(container: &Value) -> Value {
    let mut base = json!({ "name": "c" });
    merge(&mut base, container);
    json!({ "containers": [base] })
}

fn asks(resource: &str, amount: &str) -> Value {
    containers(&json!({ "resources": { "requests": { resource: amount }, "limits": { resource: amount } } }))
}

fn affinity(requirements: &Value, kind: &str) -> Value {
    json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ kind: requirements }] } } } })
}

fn label(operator: &str, values: &Value) -> Value {
    affinity(&json!([{ "key": "size", "operator": operator, "values": values }]), "matchExpressions")
}

fn named(operator: &str, name: &str) -> Value {
    affinity(&json!([{ "key": "metadata.name", "operator": operator, "values": [name] }]), "matchFields")
}

fn tainted(effect: &str) -> Value {
    json!({ "spec": { "taints": [{ "key": "k", "value": "5", "effect": effect }] } })
}

fn tolerates(operator: &str, value: &str, effect: &str) -> Value {
    json!({ "tolerations": [{ "key": "k", "operator": operator, "value": value, "effect": effect }] })
}

fn port(fields: &Value) -> Value {
    let mut base = json!({ "containerPort": 80 });
    merge(&mut base, fields);
    containers(&json!({ "ports": [base] }))
}

fn keeps_away(selector: &Value, more: &Value) -> Value {
    let mut term = json!({ "labelSelector": selector, "topologyKey": "topology.kubernetes.io/zone" });
    merge(&mut term, more);
    json!({ "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } })
}

const NONE: Value = Value::Null;

fn nodes_and_names() -> Vec<Row> {
    let unset = || json!({});
    let cordoned = || json!({ "spec": { "unschedulable": true } });
    let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    let tolerates_cordon = json!({ "tolerations": [
        { "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }] });
    vec![
        row(
            "SchedulingGates",
            unset(),
            NONE,
            json!({ "schedulingGates": [{ "name": "g" }] }),
            Invalid("schedulingGates"),
        ),
        row("SchedulingGates", unset(), NONE, unset(), Placed),
        row(
            "GangScheduling",
            unset(),
            NONE,
            json!({ "schedulingGroup": { "podGroupName": "p" } }),
            Invalid("schedulingGroup"),
        ),
        row("GangScheduling", unset(), NONE, unset(), Placed),
        row("NodeName", unset(), NONE, json!({ "nodeName": "n" }), Invalid("nodeName")),
        row("NodeName", unset(), NONE, named("In", "n"), Placed),
        row("NodeUnschedulable", unset(), NONE, unset(), Placed),
        row("NodeUnschedulable", cordoned(), NONE, unset(), Refuses(NodeRefusal::Cordoned)),
        // Stricter than kube-scheduler: a cordon is for jobs too that tolerate it, which is noted.
        row("NodeUnschedulable", cordoned(), NONE, tolerates_cordon.clone(), Refuses(NodeRefusal::Cordoned)),
        row("NodeUnschedulable", unset(), NONE, tolerates_cordon, Noted("tolerations[0]")),
        // Not a plugin of its own: kube-scheduler sees a node that is not ready by its taint.
        row("TaintToleration", not_ready, NONE, unset(), Refuses(NodeRefusal::NotReady)),
    ]
}

fn taints() -> Vec<Row> {
    let refused = || Refuses(NodeRefusal::Tainted);
    let taint = |effect: &str, template: Value, verdict: Verdict| {
        row("TaintToleration", tainted(effect), NONE, template, verdict)
    };
    vec![
        taint("NoSchedule", json!({}), refused()),
        taint("NoExecute", json!({}), refused()),
        taint("PreferNoSchedule", json!({}), Placed),
        taint("NoSchedule", tolerates("Exists", "", ""), Placed),
        taint("NoSchedule", tolerates("Exists", "", "NoExecute"), refused()),
        taint("NoSchedule", tolerates("Equal", "5", "NoSchedule"), Placed),
        taint("NoSchedule", tolerates("", "6", ""), refused()),
        taint("NoSchedule", tolerates("Lt", "6", ""), Placed),
        taint("NoSchedule", tolerates("Lt", "5", ""), refused()),
        taint("NoSchedule", tolerates("Gt", "4", ""), Placed),
        taint("NoSchedule", tolerates("Gt", "5", ""), refused()),
        taint("NoSchedule", tolerates("Gt", "high", ""), Invalid("tolerations[0].value")),
        taint("NoSchedule", tolerates("Like", "5", ""), Invalid("tolerations[0].operator")),
        taint("NoSchedule", tolerates("Exists", "", "Never"), Invalid("tolerations[0].effect")),
        taint("NoSchedule", json!({ "tolerations": [{ "operator": "Exists" }] }), Placed),
        taint("NoSchedule", json!({ "tolerations": [{ "value": "5" }] }), Invalid("tolerations[0].key")),
    ]
}

fn affinities() -> Vec<Row> {
    let refused = || Refuses(NodeRefusal::Selector);
    let of = |template: Value, verdict: Verdict| row("NodeAffinity", json!({}), NONE, template, verdict);
    let terms = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let expression: &'static str = Box::leak(format!("{terms}[0].matchExpressions[0]").into_boxed_str());
    let field: &'static str = Box::leak(format!("{terms}[0].matchFields[0]").into_boxed_str());
    let wish = json!({ "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        { "weight": 1, "preference": { "matchExpressions": [{ "key": "none", "operator": "Exists" }] } }] } } });
    let nothing = json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [] } } } });
    vec![
        of(json!({ "nodeSelector": { "size": "7" } }), Placed),
        of(json!({ "nodeSelector": { "size": "8" } }), refused()),
        of(label("In", &json!(["6", "7"])), Placed),
        of(label("In", &json!(["6"])), refused()),
        of(label("NotIn", &json!(["6"])), Placed),
        of(label("NotIn", &json!(["7"])), refused()),
        of(label("Exists", &NONE), Placed),
        of(label("DoesNotExist", &NONE), refused()),
        of(label("Gt", &json!(["6"])), Placed),
        of(label("Gt", &json!(["7"])), refused()),
        of(label("Lt", &json!(["8"])), Placed),
        of(label("Lt", &json!(["7"])), refused()),
        of(label("Lt", &json!(["many"])), Invalid(expression)),
        of(label("Near", &json!(["7"])), Invalid(expression)),
        of(named("In", "n"), Placed),
        of(named("In", "m"), refused()),
        of(named("NotIn", "m"), Placed),
        of(named("NotIn", "n"), refused()),
        of(named("Exists", "n"), Invalid(field)),
        of(
            affinity(
                &json!([{ "key": "metadata.uid", "operator": "NotIn", "values": ["x"] }]),
                "matchFields",
            ),
            Invalid(field),
        ),
        of(nothing, Invalid(terms)),
        of(wish, Noted("affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]")),
    ]
}

fn ports() -> Vec<Row> {
    let of = |there: Value, template: Value, verdict: Verdict| {
        row("NodePorts", json!({}), there, template, verdict)
    };
    let busy = || Refuses(NodeRefusal::Busy);
    let sidecar = json!({ "initContainers": [{ "name": "s", "restartPolicy": "Always",
        "ports": [{ "containerPort": 80, "hostPort": 9000 }] }] });
    let init =
        json!({ "initContainers": [{ "name": "s", "ports": [{ "containerPort": 80, "hostPort": 9000 }] }] });
    let on = |address: &str| port(&json!({ "hostPort": 9000, "hostIP": address }));
    let mut shared = port(&json!({ "containerPort": 9000 }));
    shared["hostNetwork"] = json!(true);
    vec![
        of(NONE, port(&json!({ "hostPort": 9000 })), Placed),
        of(port(&json!({ "hostPort": 9000 })), port(&json!({ "hostPort": 9000 })), busy()),
        of(port(&json!({ "hostPort": 9000 })), port(&json!({ "hostPort": 9001 })), Placed),
        of(port(&json!({ "hostPort": 9000 })), port(&json!({})), Placed),
        of(port(&json!({ "hostPort": 9000, "protocol": "UDP" })), port(&json!({ "hostPort": 9000 })), Placed),
        of(on("10.0.0.1"), on("10.0.0.2"), Placed),
        of(on("10.0.0.1"), on("10.0.0.1"), busy()),
        of(on("10.0.0.1"), on("0.0.0.0"), busy()),
        of(on(""), on("10.0.0.1"), busy()),
        of(sidecar, port(&json!({ "hostPort": 9000 })), busy()),
        of(init, port(&json!({ "hostPort": 9000 })), Placed),
        of(port(&json!({ "hostPort": 9000 })), shared.clone(), busy()),
        of(shared, port(&json!({ "hostPort": 9000 })), busy()),
    ]
}

fn resources() -> Vec<Row> {
    let of = |there: Value, template: Value, verdict: Verdict| {
        row("NodeResourcesFit", json!({}), there, template, verdict)
    };
    let (small, busy) = (|| Refuses(NodeRefusal::TooSmall), || Refuses(NodeRefusal::Busy));
    let init = json!({ "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "9" } } }] });
    let overhead = json!({ "overhead": { "cpu": "8" } });
    let pod_level = json!({ "resources": { "requests": { "cpu": "9" } } });
    vec![
        of(NONE, asks("cpu", "8"), Placed),
        of(NONE, asks("cpu", "8001m"), small()),
        of(asks("cpu", "4"), asks("cpu", "5"), busy()),
        of(NONE, asks("memory", "64Gi"), Placed),
        of(NONE, asks("memory", "65Gi"), small()),
        of(NONE, asks("ephemeral-storage", "11Gi"), small()),
        of(NONE, asks("hugepages-2Mi", "2Mi"), small()),
        of(NONE, asks("example.com/fpga", "2"), Placed),
        of(asks("example.com/fpga", "1"), asks("example.com/fpga", "2"), busy()),
        of(NONE, asks("nvidia.com/gpu", "1"), Placed),
        of(asks("nvidia.com/gpu", "8"), asks("nvidia.com/gpu", "1"), busy()),
        of(NONE, init, small()),
        of(NONE, overhead, small()),
        of(NONE, pod_level, small()),
        row(
            "NodeResourcesFit",
            json!({ "status": { "allocatable": { "pods": "1" } } }),
            json!({}),
            json!({}),
            busy(),
        ),
    ]
}

fn volumes() -> Vec<Row> {
    let with = |volume: Value| json!({ "volumes": [volume] });
    let claim = || with(json!({ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }));
    let own = || {
        with(json!({ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": {
            "accessModes": ["ReadWriteOncePod"], "resources": { "requests": { "storage": "1Gi" } } } } } }))
    };
    let of = |plugin: &'static str, template: Value, verdict: Verdict| {
        row(plugin, json!({}), NONE, template, verdict)
    };
    let judged = || LeftToScheduler("volumes[0].persistentVolumeClaim");
    vec![
        of(
            "VolumeRestrictions",
            with(json!({ "name": "v", "gcePersistentDisk": { "pdName": "d" } })),
            Invalid("volumes[0].gcePersistentDisk"),
        ),
        of(
            "VolumeRestrictions",
            with(json!({ "name": "v", "iscsi": { "targetPortal": "p", "iqn": "i", "lun": 0 } })),
            Invalid("volumes[0].iscsi"),
        ),
        of(
            "VolumeRestrictions",
            with(json!({ "name": "v", "rbd": { "monitors": ["m"], "image": "i" } })),
            Invalid("volumes[0].rbd"),
        ),
        of("VolumeRestrictions", claim(), judged()),
        of(
            "NodeVolumeLimits",
            with(json!({ "name": "v", "awsElasticBlockStore": { "volumeID": "d" } })),
            Invalid("volumes[0].awsElasticBlockStore"),
        ),
        of(
            "NodeVolumeLimits",
            with(json!({ "name": "v", "azureDisk": { "diskName": "d", "diskURI": "u" } })),
            Invalid("volumes[0].azureDisk"),
        ),
        of("NodeVolumeLimits", claim(), judged()),
        of("VolumeBinding", claim(), judged()),
        of("VolumeBinding", own(), LeftToScheduler("volumes[0].ephemeral")),
        of("VolumeZone", claim(), judged()),
        of("VolumeZone", with(json!({ "name": "v", "emptyDir": {} })), Placed),
        of("VolumeBinding", with(json!({ "name": "v", "nfs": { "server": "s", "path": "/" } })), Placed),
        of(
            "DynamicResources",
            json!({ "resourceClaims": [{ "name": "c", "resourceClaimName": "r" }] }),
            LeftToScheduler("resourceClaims"),
        ),
    ]
}

fn other_pods() -> Vec<Row> {
    let spread = |when: &str| {
        json!({ "topologySpreadConstraints": [
            { "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": when }] })
    };
    let term = json!({ "labelSelector": {}, "topologyKey": "kubernetes.io/hostname" });
    let required = |kind: &str| json!({ "affinity": { kind: { "requiredDuringSchedulingIgnoredDuringExecution": [term] } } });
    let preferred = |kind: &str| {
        json!({ "affinity": { kind: { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "podAffinityTerm": term }] } } })
    };
    let of = |there: Value, template: Value, verdict: Verdict| {
        row("InterPodAffinity", json!({}), there, template, verdict)
    };
    let train = || json!({ "matchLabels": { "app": "train" } });
    let everywhere = || json!({ "namespaceSelector": {} });
    vec![
        row(
            "PodTopologySpread",
            json!({}),
            NONE,
            spread("DoNotSchedule"),
            Invalid("topologySpreadConstraints[0]"),
        ),
        row(
            "PodTopologySpread",
            json!({}),
            NONE,
            spread("ScheduleAnyway"),
            Noted("topologySpreadConstraints[0]"),
        ),
        of(
            NONE,
            required("podAffinity"),
            Invalid("affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"),
        ),
        of(
            NONE,
            required("podAntiAffinity"),
            Invalid("affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"),
        ),
        of(
            NONE,
            preferred("podAffinity"),
            Noted("affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution"),
        ),
        of(
            NONE,
            preferred("podAntiAffinity"),
            Noted("affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution"),
        ),
        // The other way round: pods that are there keep ours away.
        of(keeps_away(&train(), &everywhere()), json!({}), Refuses(NodeRefusal::Repelled)),
        of(
            keeps_away(&train(), &json!({ "namespaces": ["research"] })),
            json!({}),
            Refuses(NodeRefusal::Repelled),
        ),
        of(keeps_away(&train(), &json!({ "namespaces": ["x"] })), json!({}), Placed),
        of(keeps_away(&train(), &json!({})), json!({}), Placed),
        of(keeps_away(&json!({ "matchLabels": { "app": "other" } }), &everywhere()), json!({}), Placed),
        of(keeps_away(&NONE, &everywhere()), json!({}), Placed),
        of(
            keeps_away(&train(), &json!({ "namespaceSelector": {}, "topologyKey": "rack" })),
            json!({}),
            Placed,
        ),
        of(
            keeps_away(
                &json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] }),
                &everywhere(),
            ),
            json!({}),
            Refuses(NodeRefusal::Repelled),
        ),
    ]
}

fn table() -> Vec<Row> {
    [nodes_and_names(), taints(), affinities(), ports(), resources(), volumes(), other_pods()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn every_predicate_is_enforced_refused_or_left_to_the_scheduler() {
    for row in table() {
        check(&row);
    }
}

/// The plugins of the default profile with a say about nodes or pods, alone or as part of PreEnqueue.
const PLUGINS: &[&str] = &[
    "SchedulingGates",
    "NodeName",
    "NodeUnschedulable",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "PodTopologySpread",
    "InterPodAffinity",
    "DynamicResources",
    "GangScheduling",
];

#[test]
fn no_plugin_is_forgotten_and_each_can_be_passed_and_failed() {
    for plugin in PLUGINS {
        let verdicts: Vec<Verdict> =
            table().into_iter().filter(|row| row.plugin == *plugin).map(|row| row.verdict).collect();
        let passes = verdicts.iter().any(|v| matches!(v, Placed | LeftToScheduler(_) | Noted(_)));
        let left = verdicts.iter().any(|v| matches!(v, LeftToScheduler(_)));
        let fails = verdicts.iter().any(|v| matches!(v, Refuses(_) | Invalid(_)));
        assert!(passes && (fails || left), "{plugin}: {verdicts:?}");
    }
}

#[test]
fn ports_and_anti_affinity_of_pods_that_go_keep_nobody_away() {
    for there in [
        port(&json!({ "hostPort": 9000 })),
        keeps_away(&json!({ "matchLabels": { "app": "train" } }), &json!({ "namespaceSelector": {} })),
    ] {
        let mut cluster = Cluster::new();
        cluster.set_node(convert::node(&node(&json!({}))).0);
        let there = PodFacts::of(&pod(&there)).0;
        let role =
            template::role("r", &role(&port(&json!({ "hostPort": 9000 }))), None, &[]).expect("a role");
        cluster.set_pod(there.clone());
        cluster.set_gang(gang(role.clone(), Vec::new()));
        assert!(matches!(&cluster.decide(0, 1)[..], [Decision::Refuse { .. }]));
        assert!(cluster.decide(0, 1).is_empty(), "nothing changed");
        cluster.remove_pod(&there.uid);
        assert!(matches!(&cluster.decide(0, 1)[..], [Decision::Place { .. }]));
        // And the other way round: what comes while a gang waits counts.
        cluster.remove_gang(&ObjectKey::new("research", "g"), &Uid::from("g"));
        cluster.set_gang(gang(role, Vec::new()));
        cluster.set_pod(there);
        assert!(matches!(&cluster.decide(0, 1)[..], [Decision::Refuse { .. }]));
    }
}

#[test]
fn a_port_is_taken_once_a_node_by_the_pods_of_a_gang_too() {
    let mut cluster = Cluster::new();
    for name in ["a", "b"] {
        cluster.set_node(convert::node(&node(&json!({ "metadata": { "name": name } }))).0);
    }
    let role = |units| RoleSpec {
        units: UnitBounds { min: units, max: units, valid: Vec::new() },
        ..role(&port(&json!({ "hostPort": 9000 })))
    };
    let wanted = |units| template::role("r", &role(units), None, &[]).expect("a role");
    cluster.set_gang(gang(wanted(3), Vec::new()));
    let decisions = cluster.decide(0, 1);
    let [Decision::Refuse { reason, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    assert!(matches!(reason, Reason::InsufficientCapacity { fits: 2, min: 3, empty: 2, .. }), "{reason}");
    cluster.set_gang(gang(wanted(2), Vec::new()));
    let decisions = cluster.decide(0, 1);
    let [Decision::Place { placement, .. }] = &decisions[..] else { panic!("{decisions:?}") };
    let nodes: BTreeSet<&str> =
        placement.units.iter().flat_map(|unit| &unit.nodes).map(muster_model::NodeName::as_str).collect();
    assert_eq!(nodes, BTreeSet::from(["a", "b"]));
    let left = cluster.free_now(&"a".into()).expect("a node");
    let asked = wanted(1).pod_requests(None);
    assert_eq!(left.fits(&asked), 1, "what is really free counts the port as well");
    cluster.expect(ObjectKey::new("research", "p"), "a".into(), asked.clone());
    assert_eq!(cluster.free_now(&"a".into()).expect("a node").fits(&asked), 0);
}
