//! What the schema admits, the types read: one object that they do not read would hide a whole kind from the operator.
//!
//! ```text
//!   all_crds ──schema──▶ Maker(seed) ──▶ an object that the API server takes ──▶ the type reads it
//! ```
//!
//! CEL rules are left out: without them more is admitted, and all of it must be read.

mod make;

use make::Maker;
use muster_api::{
    AcceleratorClass, Framework, Gang, GangPhase, GangPlan, InferenceService, JobPhase, NodePartition, Queue,
    RecoveryStep, Topology, TrainingJob, Word, all_crds,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Kind → schema.
static SCHEMAS: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let schema = |crd: &serde_json::Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    all_crds()
        .into_iter()
        .map(|crd| (crd.spec.names.kind.clone(), schema(&serde_json::to_value(crd).unwrap())))
        .collect()
});

fn schema(kind: &str) -> &'static Value {
    &SCHEMAS.iter().find(|(name, _)| name == kind).unwrap_or_else(|| panic!("{kind} is no kind of ours")).1
}

/// Reads an object as its kind.
fn read(kind: &str, object: &Value) -> Result<(), String> {
    fn of<T: DeserializeOwned>(object: &Value) -> Result<(), String> {
        let read: Result<T, _> = serde_path_to_error::deserialize(object);
        read.map(drop).map_err(|error| format!("{}: {}", error.path(), error.inner()))
    }
    match kind {
        "TrainingJob" => of::<TrainingJob>(object),
        "InferenceService" => of::<InferenceService>(object),
        "Queue" => of::<Queue>(object),
        "Topology" => of::<Topology>(object),
        "AcceleratorClass" => of::<AcceleratorClass>(object),
        "Gang" => of::<Gang>(object),
        "GangPlan" => of::<GangPlan>(object),
        "NodePartition" => of::<NodePartition>(object),
        other => panic!("{other} is no kind of ours"),
    }
}

fn object(kind: &str, seed: u64) -> Value {
    let mut made = Maker::new(seed).value(schema(kind));
    made["apiVersion"] = json!("muster.dev/v1alpha1");
    made["kind"] = json!(kind);
    made["metadata"] = json!({ "name": "a", "namespace": "b", "uid": "c", "generation": 1 });
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn what_the_schema_admits_is_read(seed in any::<u64>()) {
        for (kind, _) in SCHEMAS.iter() {
            let made = object(kind, seed);
            if let Err(error) = read(kind, &made) {
                return Err(TestCaseError::fail(format!("{kind} (seed {seed}): {error}")));
            }
        }
    }

    #[test]
    fn no_template_of_a_gang_brings_the_reader_down(seed in any::<u64>()) {
        let gang: Gang = serde_json::from_value(object("Gang", seed)).unwrap();
        for role in &gang.spec.roles {
            if let Err(error) = role.template.parse() {
                prop_assert!(error.path.starts_with("template"), "{}", error);
            }
            let written = serde_json::to_value(role).unwrap();
            let read: muster_api::RoleSpec = serde_json::from_value(written).unwrap();
            prop_assert_eq!(&read, role, "it is written as it was read");
        }
    }
}

/// Whether the schema takes a value at a path of properties (`[]` for items).
fn admits(kind: &str, path: &[&str], value: &Value) -> bool {
    let at = path.iter().fold(schema(kind), |schema, step| match *step {
        "[]" => &schema["items"],
        "{}" => &schema["additionalProperties"],
        name => &schema["properties"][name],
    });
    assert!(at.is_object(), "{kind} {path:?}: no such field");
    make::admits(at, value)
}

#[test]
fn ports_and_amounts_that_no_type_reads_are_refused() {
    let probe: Vec<&str> = "spec template spec containers [] livenessProbe httpGet port".split(' ').collect();
    for (value, taken) in [
        (json!(3_000_000_000_u64), false),
        (json!(65_536), false),
        (json!(-1), false),
        (json!(65_535), true),
        (json!("http"), true),
        (json!("8080"), true),
        (json!("muster fence!"), false),
    ] {
        for kind in ["TrainingJob", "InferenceService"] {
            assert_eq!(admits(kind, &probe, &value), taken, "{kind} {value}");
        }
    }
    let limit: Vec<&str> = "spec template spec containers [] resources limits {}".split(' ').collect();
    for (value, taken) in [(json!(-1), false), (json!("-1"), false), (json!(8), true), (json!("8"), true)] {
        assert_eq!(admits("TrainingJob", &limit, &value), taken, "{value}");
    }
    let label: Vec<&str> = "spec template metadata labels {}".split(' ').collect();
    assert!(!admits("TrainingJob", &label, &json!("muster-fence!")));
    assert!(admits("TrainingJob", &label, &json!("team_a.1")));
    let budget = ["spec", "recovery", "maxRestarts"];
    assert!(admits("TrainingJob", &budget, &json!(1_000)) && !admits("TrainingJob", &budget, &json!(10_000)));
}

/// What was found once; each was kept and not read.
#[test]
fn objects_that_were_not_read_are_refused_or_pruned_now() {
    let job = |template: Value| json!({ "metadata": { "name": "a" }, "spec": { "template": template } });
    for spec in [
        json!({ "containers": [{ "name": "a", "livenessProbe": { "tcpSocket": { "port": 3_000_000_000_u64 } } }] }),
        json!({ "containers": [{ "name": "a", "ports": [{ "containerPort": 3_000_000_000_u64 }] }] }),
        json!({ "containers": [{ "name": "a" }], "volumes": [{ "name": "v", "ephemeral": { "volumeClaimTemplate": {
            "metadata": { "creationTimestamp": "9999-12-31T23:59:59Z" }, "spec": {},
        }}}]}),
    ] {
        let mut object = job(json!({ "spec": spec }));
        assert!(read("TrainingJob", &object).is_err(), "the type reads it by now: {object}");
        let schema = schema("TrainingJob");
        make::prune(schema, &mut object);
        let readable = read("TrainingJob", &object).is_ok();
        assert!(readable || !make::admits(schema, &object), "the schema admits it: {object}");
    }
}

/// A rollback: words that came later are read, and written back as they were.
#[test]
fn words_of_a_newer_version_survive() {
    let pods = json!({ "spec": { "containers": [{ "name": "a" }] } });
    let gang = json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "metadata": { "name": "a" },
        "spec": {
            "roles": [{ "name": "worker", "units": { "min": 1, "max": 1 }, "template": pods }],
            "launch": { "framework": "Jax" },
            "recovery": { "ladder": ["RestartInPlace", "Migrate"] },
            "outcome": { "policy": "Quorum" },
        },
        "status": { "phase": "Growing" },
    });
    let read: Gang = serde_json::from_value(gang.clone()).unwrap();
    assert_eq!(read.spec.launch.framework, Framework::Unknown(Word::new("Jax")));
    assert_eq!(read.spec.recovery.ladder[1], RecoveryStep::Unknown(Word::new("Migrate")));
    let phase = read.status.as_ref().and_then(|status| status.phase).unwrap();
    assert_eq!(phase, GangPhase::Unknown(Word::new("Growing")));
    assert!(!phase.is_final());
    let written = serde_json::to_value(&read).unwrap();
    for pointer in
        ["/spec/launch/framework", "/spec/recovery/ladder", "/spec/outcome/policy", "/status/phase"]
    {
        assert_eq!(written.pointer(pointer), gang.pointer(pointer), "{pointer}");
    }
    assert!(make::admits(schema("Gang"), &gang), "an older API server takes it back");
    let job = json!({ "metadata": { "name": "a" }, "spec": { "framework": "Jax", "template": pods }, "status": { "phase": "Growing" } });
    let read: TrainingJob = serde_json::from_value(job.clone()).unwrap();
    assert_eq!(read.status.unwrap().phase, Some(JobPhase::Unknown(Word::new("Growing"))));
    assert!(!make::admits(schema("TrainingJob"), &job), "users are told of a framework that does not exist");
}

#[test]
fn a_word_is_bounded_and_keeps_whole_characters() {
    for (text, word) in [("", ""), ("Jax", "Jax"), (&"x".repeat(50), &"x".repeat(40))] {
        assert_eq!(Word::new(text).as_str(), word);
    }
    assert_eq!(Word::new(&"é".repeat(30)).as_str(), "é".repeat(20));
}

/// A template is read only on demand, and what is wrong is said with its field.
#[test]
fn a_template_that_does_not_fit_leaves_its_gang_readable() {
    let gang = |template: Value| -> Gang {
        serde_json::from_value(json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Gang", "metadata": { "name": "a" },
            "spec": { "roles": [{ "name": "worker", "units": { "min": 1, "max": 1 }, "template": template }] },
        }))
        .unwrap()
    };
    let broken = json!({
        "metadata": { "labels": { "a": "b", "c": 5 } },
        "spec": { "containers": [{ "name": "a", "ports": [{ "containerPort": "many" }] }], "later": true },
    });
    let gang = gang(broken.clone());
    let template = &gang.spec.roles[0].template;
    let error = template.parse().unwrap_err();
    assert_eq!(error.path, "template.metadata.labels.c");
    let error = template.pod_spec().unwrap_err();
    assert_eq!(error.path, "template.spec.containers[0].ports[0].containerPort");
    assert_eq!(template.labels().into_iter().collect::<Vec<_>>(), [("a".to_owned(), "b".to_owned())]);
    assert_eq!(template.raw_spec(), broken["spec"], "what later versions know reaches the API server");
    let whole: Gang = serde_json::from_value(serde_json::to_value(&gang).unwrap()).unwrap();
    assert_eq!(whole, gang);
}
