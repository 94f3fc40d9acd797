//! Where volumes let pods run, claim by claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PodSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use muster_api::RoleSpec;
use muster_cluster::template::{self, Around, Learned};
use muster_cluster::volumes::{self, Claim, Found, Reach, Source};
use muster_model::{NodeSelectorTerm, Requirement};
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn claim(spec: &Value) -> PersistentVolumeClaim {
    serde_json::from_value(json!({ "metadata": { "name": "data" }, "spec": spec })).expect("a claim")
}

fn volume(metadata: &Value, spec: &Value) -> PersistentVolume {
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).expect("a volume")
}

fn class(more: &Value) -> StorageClass {
    let mut class = json!({ "metadata": { "name": "fast" }, "provisioner": "disks" });
    class.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(class).expect("a class")
}

/// Whether a node with these labels is within reach.
fn allows(reach: &Reach, labels: &[(&str, &str)]) -> bool {
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let terms = volumes::all_of(reach).expect("few terms");
    terms.is_empty() || terms.iter().any(|term| term.matches("node", &labels))
}

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";

#[test]
fn a_bound_volume_is_used_where_its_affinity_says() {
    let terms = json!([
        { "matchExpressions": [{ "key": ZONE, "operator": "In", "values": ["a"] }] },
        { "matchExpressions": [{ "key": "disk", "operator": "Exists" }] },
    ]);
    let bound = volume(
        &json!({ "name": "v" }),
        &json!({ "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } }),
    );
    let known =
        Claim { object: Some(claim(&json!({ "volumeName": "v" }))), volume: Some(bound), class: None };
    let Found { reach, bound, exclusive, .. } = volumes::find("data", &known).expect("usable");
    assert!(bound && !exclusive);
    assert!(allows(&reach, &[(ZONE, "a")]) && allows(&reach, &[(ZONE, "b"), ("disk", "")]));
    assert!(!allows(&reach, &[(ZONE, "b")]) && !allows(&reach, &[]));
}

#[test]
fn a_volume_of_zones_is_used_there_and_on_nodes_that_name_no_place() {
    for label in [ZONE, "failure-domain.beta.kubernetes.io/zone"] {
        let reach =
            volumes::of_volume(&volume(&json!({ "labels": { label: "a__b", REGION: "r" } }), &json!({})));
        assert!(allows(&reach, &[(ZONE, "b"), (REGION, "r")]) && allows(&reach, &[]), "{label}");
        assert!(!allows(&reach, &[(ZONE, "c"), (REGION, "r")]), "{label}");
        assert!(!allows(&reach, &[(ZONE, "a"), (REGION, "other")]), "{label}");
    }
}

#[test]
fn a_volume_without_a_place_is_used_everywhere() {
    let reach = volumes::of_volume(&volume(
        &json!({ "name": "v" }),
        &json!({ "nfs": { "path": "/", "server": "s" } }),
    ));
    assert!(reach.is_empty());
}

#[test]
fn a_claim_that_is_bound_late_is_used_where_its_class_makes_volumes() {
    let late = json!({ "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [
        { "matchLabelExpressions": [{ "key": ZONE, "values": ["a", "b"] }] },
    ] });
    let unbound = Claim {
        object: Some(claim(&json!({ "storageClassName": "fast" }))),
        volume: None,
        class: Some(class(&late)),
    };
    let Found { reach, bound, .. } = volumes::find("data", &unbound).expect("usable");
    assert!(!bound && allows(&reach, &[(ZONE, "b")]) && !allows(&reach, &[(ZONE, "c")]));
}

#[test]
fn what_keeps_pods_from_starting_is_said() {
    let immediate = || Some(class(&json!({ "volumeBindingMode": "Immediate" })));
    let leaving: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "data", "deletionTimestamp": "2026-01-01T00:00:00Z" }, "spec": { "volumeName": "v" },
    }))
    .expect("a claim");
    let cases = vec![
        (Claim::default(), "it does not exist"),
        (Claim { object: Some(leaving), ..Claim::default() }, "it is being deleted"),
        (
            Claim { object: Some(claim(&json!({ "volumeName": "v" }))), ..Claim::default() },
            "its volume \"v\" does not exist",
        ),
        (
            Claim { object: Some(claim(&json!({ "storageClassName": "fast" }))), ..Claim::default() },
            "its StorageClass \"fast\" does not exist",
        ),
        (
            Claim {
                object: Some(claim(&json!({ "storageClassName": "fast" }))),
                class: immediate(),
                ..Claim::default()
            },
            "it is not bound to a volume yet",
        ),
        (
            Claim { object: Some(claim(&json!({ "storageClassName": "" }))), ..Claim::default() },
            "it is not bound to a volume yet",
        ),
    ];
    for (known, message) in cases {
        let reason = volumes::find("data", &known).expect_err(message);
        assert_eq!(reason.to_string(), format!("PersistentVolumeClaim \"data\": {message}"));
    }
}

#[test]
fn sources_are_claims_and_classes_of_ephemeral_volumes() {
    let spec: PodSpec = serde_json::from_value(json!({ "containers": [], "volumes": [
        { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
        { "name": "b", "ephemeral": { "volumeClaimTemplate": { "spec": { "storageClassName": "fast" } } } },
        { "name": "c", "ephemeral": { "volumeClaimTemplate": { "spec": {} } } },
        { "name": "d", "emptyDir": {} },
    ] }))
    .expect("a pod");
    assert_eq!(volumes::sources(&spec), [Source::Claim("data".into()), Source::Class("fast".into())]);
}

#[test]
fn alternatives_multiply_and_what_matches_nothing_stays_so() {
    let term = |key: &str| NodeSelectorTerm { requirements: vec![Requirement::label_in(key, &["x"])] };
    let either = || vec![term("a"), term("b")];
    let all = volumes::all_of(&[either(), vec![term("c")], either()]).expect("few");
    assert_eq!(all.len(), 2, "the same list counts once");
    assert!(all.iter().all(|term| term.requirements.len() == 2));
    let nothing = volumes::all_of(&[vec![NodeSelectorTerm::default()], either()]).expect("few");
    assert!(!nothing.is_empty() && nothing.iter().all(|term| term.requirements.is_empty()));
    let many = |key: &str| (0..20).map(|at| term(&format!("{key}{at}"))).collect::<Vec<_>>();
    assert_eq!(volumes::all_of(&[many("a"), many("b")]), Err(400));
}

#[test]
fn a_claim_for_one_pod_is_no_claim_for_a_gang() {
    let object = claim(&json!({ "volumeName": "v", "accessModes": ["ReadWriteOncePod"] }));
    let known = Claim { object: Some(object), volume: Some(PersistentVolume::default()), class: None };
    let found = volumes::find("data", &known).expect("usable");
    assert!(found.exclusive);
    for (pods, refused) in [(1, false), (2, true)] {
        let role: RoleSpec = serde_json::from_value(json!({
            "name": "w", "units": { "min": 1, "max": 4 }, "podsPerUnit": pods,
            "template": { "spec": { "containers": [{ "name": "c" }] } },
        }))
        .expect("a role");
        let mut learned = Learned::default();
        learned.add(&Source::Claim("data".into()), found.clone());
        let answer = template::role("spec.roles[0]", &role, Some(learned), &Around::default());
        assert_eq!(answer.is_err(), refused, "{pods} pods: {answer:?}");
    }
}

/// A volume that is attached to one node serves the pods of that node only: kube-scheduler does not judge it, and pods of
/// other nodes would wait for it for ever.
#[test]
fn a_claim_for_one_node_is_no_claim_for_pods_that_may_lie_on_several() {
    let bound = |modes: Value, source: Value| {
        let mut spec = json!({ "accessModes": modes });
        spec.as_object_mut().expect("an object").extend(source.as_object().expect("an object").clone());
        let object = claim(&json!({ "volumeName": "v", "accessModes": ["ReadWriteOnce"] }));
        let known = Claim { object: Some(object), volume: Some(volume(&json!({}), &spec)), class: None };
        volumes::find("data", &known).expect("usable").one_node
    };
    let csi = json!({ "csi": { "driver": "d", "volumeHandle": "h" } });
    assert!(bound(json!(["ReadWriteOnce"]), csi.clone()));
    assert!(!bound(json!(["ReadWriteOnce", "ReadWriteMany"]), csi.clone()));
    assert!(!bound(json!(["ReadWriteOnce", "ReadOnlyMany"]), csi.clone()));
    assert!(!bound(json!([]), csi), "nothing is known");
    assert!(
        !bound(json!(["ReadWriteOnce"]), json!({ "nfs": { "server": "s", "path": "/" } })),
        "nothing to attach"
    );
    let late = Claim {
        object: Some(claim(&json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "fast" }))),
        volume: None,
        class: Some(class(&json!({ "volumeBindingMode": "WaitForFirstConsumer" }))),
    };
    let found = volumes::find("data", &late).expect("usable");
    assert!(found.one_node && !found.bound);

    let node = json!([{ "pods": 2, "level": "Node", "mode": "Required" }]);
    let within = muster_model::Within { level: "Node".into(), mode: muster_model::Mode::Required };
    for (max, pods, segments, within, refused) in [
        (1, 1, json!([]), None, false),
        (2, 1, json!([]), None, true),
        (1, 2, json!([]), None, true),
        (1, 2, node.clone(), None, false),
        (2, 2, node, None, true),
        (2, 2, json!([]), Some(&within), false),
    ] {
        let role: RoleSpec = serde_json::from_value(json!({
            "name": "w", "units": { "min": 1, "max": max }, "podsPerUnit": pods, "segments": segments,
            "template": { "spec": { "containers": [{ "name": "c" }] } },
        }))
        .expect("a role");
        let mut learned = Learned::default();
        learned.add(&Source::Claim("data".into()), found.clone());
        let around = Around { within, ..Around::default() };
        let answer = template::role("spec.roles[0]", &role, Some(learned.clone()), &around);
        assert_eq!(answer.is_err(), refused, "{max} units of {pods}: {answer:?}");
        let shared = template::shared_claim([Some(learned.clone()), Some(learned)], within);
        assert_eq!(shared.is_none(), within.is_some(), "two roles");
    }
}
