//! What kube-scheduler's default plugins would refuse, plugin by plugin: enforced here (a case that is placed, a case
//! that is not), or refused by the template's field, or left to kube-scheduler on the planned node.
//!
//! ```text
//!   rows ──node, foreign pods, pod template (JSON)──convert, template::role──▶ Cluster ──decide──▶ Verdict
//! ```
//!
//! The plugins are those of kube-scheduler 1.37's default profile that can say no to a node or a pod, and the one of
//! admission that adds to pods what these then judge.

mod rows;

use k8s_openapi::api::core::v1::{Node, Pod};
use muster_api::{PodTemplate, RoleSpec, UnitBounds};
use muster_cluster::{
    Cluster, PodFacts, convert, template,
    template::{Around, Learned},
};
use muster_engine::Decision;
use muster_model::{AcceleratorClass, Gang, GangState, NodeRefusal, ObjectKey, Reason, Slot, Uid, UnitId};
use rows::{keeps_away, port, table};
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
    /// What admission adds to it; null for nothing.
    admission: Value,
    verdict: Verdict,
}

fn row(plugin: &'static str, node: Value, there: Value, template: Value, verdict: Verdict) -> Row {
    Row { plugin, node, there, template, admission: Value::Null, verdict }
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
    let template: PodTemplate = serde_json::from_value(template).expect("a template");
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
    let spec = wanted.template.pod_spec().expect("a specification");
    wanted.devices = u32::from(row.template.to_string().contains("nvidia.com/gpu"));
    let class =
        AcceleratorClass { name: "any".into(), resource: "nvidia.com/gpu".into(), requirements: Vec::new() };
    let learned = (!row.admission.is_null()).then(|| {
        let mut admitted = serde_json::to_value(&spec).expect("JSON");
        merge(&mut admitted, &row.admission);
        Learned::of(&serde_json::from_value(admitted).expect("a specification")).expect("facts")
    });
    let around = Around { classes: std::slice::from_ref(&class), ..Around::default() };
    let role = template::role("spec.roles[0]", &wanted, learned, &around)?;
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

#[test]
fn every_predicate_is_enforced_refused_or_left_to_the_scheduler() {
    for row in table() {
        check(&row);
    }
}

/// The plugins of the default profile with a say about nodes or pods, alone or as part of PreEnqueue; and admission's
/// RuntimeClass.
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
    "NodeDeclaredFeatures",
    "RuntimeClass",
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
        let role = template::role("r", &role(&port(&json!({ "hostPort": 9000 }))), None, &Around::default())
            .expect("a role");
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
    let wanted = |units| template::role("r", &role(units), None, &Around::default()).expect("a role");
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
    let slot = Slot { unit: UnitId { role: "worker".into(), index: 0 }, incarnation: 1, index: 0 };
    cluster.expect(ObjectKey::new("research", "p"), Uid::from("other"), slot, "a".into(), asked.clone());
    assert_eq!(cluster.used_beyond(&"a".into(), &Uid::from("uid")), asked, "no plan has it");
    assert_eq!(cluster.free_now(&"a".into()).expect("a node").fits(&asked), 0);
}
