//! The table of predicates: for each plugin what it lets pass and what it refuses.

use muster_model::NodeRefusal;
use serde_json::{Value, json};

use crate::{
    Row,
    Verdict::{self, Invalid, LeftToScheduler, Noted, Placed, Refuses},
    merge, row,
};

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

pub fn port(fields: &Value) -> Value {
    let mut base = json!({ "containerPort": 80 });
    merge(&mut base, fields);
    containers(&json!({ "ports": [base] }))
}

pub fn keeps_away(selector: &Value, more: &Value) -> Value {
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

/// The features that nodes declare and pods need.
fn features() -> Vec<Row> {
    let of = |declared: &[&str], template: &Value, verdict: Verdict| {
        let node = json!({ "status": { "declaredFeatures": declared } });
        row("NodeDeclaredFeatures", node, NONE, template.clone(), verdict)
    };
    let refused = || Refuses(NodeRefusal::Selector);
    let restarts = containers(&json!({ "restartPolicy": "Never", "restartPolicyRules": [
        { "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [42] } }] }));
    let one = containers(&json!({ "restartPolicy": "Never", "restartPolicyRules": [
        { "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }] }));
    let users = json!({ "hostNetwork": true, "hostUsers": false });
    let mounts = json!({ "initContainers": [{ "name": "i", "volumeMounts": [
        { "name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"] }] }], "volumes": [{ "name": "v", "emptyDir": {} }] });
    let name = [
        "RestartAllContainersOnContainerExits",
        "UserNamespacesHostNetworkSupport",
        "VolumeBindMountOptions",
    ];
    vec![
        of(&[], &json!({}), Placed),
        of(&[], &one, Placed),
        of(&[], &restarts, refused()),
        of(&name[1..], &restarts, refused()),
        of(&name[..1], &restarts, Placed),
        of(&[], &users, refused()),
        of(&name[1..2], &users, Noted("hostNetwork")),
        of(&[], &json!({ "hostUsers": false }), Placed),
        of(&[], &mounts, refused()),
        of(&name[2..], &mounts, Placed),
    ]
}

/// What admission adds to pods from their RuntimeClass.
fn runtime_class() -> Vec<Row> {
    let of = |node: Value, added: Value, verdict: Verdict| Row {
        admission: added,
        ..row("RuntimeClass", node, NONE, json!({ "runtimeClassName": "kata" }), verdict)
    };
    let selects = |size: &str| json!({ "nodeSelector": { "size": size } });
    vec![
        of(json!({}), selects("7"), Placed),
        of(json!({}), selects("8"), Refuses(NodeRefusal::Selector)),
        of(tainted("NoSchedule"), json!({}), Refuses(NodeRefusal::Tainted)),
        of(tainted("NoSchedule"), tolerates("Exists", "", ""), Placed),
        of(json!({}), json!({ "overhead": { "cpu": "7" } }), Placed),
        of(json!({}), json!({ "overhead": { "cpu": "7500m" } }), Refuses(NodeRefusal::TooSmall)),
    ]
}

pub fn table() -> Vec<Row> {
    let all = [
        nodes_and_names(),
        taints(),
        affinities(),
        ports(),
        resources(),
        volumes(),
        other_pods(),
        features(),
        runtime_class(),
    ];
    all.into_iter().flatten().collect()
}
