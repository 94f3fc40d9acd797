//! Each validation rule, once refused and once accepted, by a real API server.
//!
//! `MUSTER_TEST_KUBECONFIG` names the server (`make test` starts one and sets it); without it only the check that
//! every rule has a case is made. Nothing is kept: requests are dry runs, but for one job that is edited and deleted.

mod cases;
mod server;

use cases::{
    CASES, Case,
    edits::{
        EDITS, FREED, GANG, GANG_ALLOWED, GANG_EDITS, PLACED, PLAN_CHANGED, REVISED, REVISIONS, allowed_edits,
    },
    manifests::{KINDS, base, job, manifest, through_types, without_templates},
};
use serde_json::{Value, json};
use server::{COPY, GANG_COPY, PLAN_COPY, Server};
use std::collections::BTreeSet;

/// The messages of all CEL rules of a schema.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Array(rules)) = map.get("x-kubernetes-validations") {
                found.extend(rules.iter().filter_map(|rule| rule["message"].as_str()).map(str::to_owned));
            }
            map.values().for_each(|below| messages(below, found));
        }
        Value::Array(items) => items.iter().for_each(|below| messages(below, found)),
        _ => {}
    }
}

#[test]
fn every_rule_has_a_case() {
    let mut rules = BTreeSet::new();
    for crd in muster_api::all_crds() {
        messages(&serde_json::to_value(crd).unwrap(), &mut rules);
    }
    assert!(rules.len() > 40, "only {} rules found", rules.len());
    let edits = EDITS.iter().chain(GANG_EDITS).chain(REVISIONS).map(|edit| edit.says);
    let said: Vec<&str> = CASES.iter().map(|case| case.says).chain(edits).chain([PLAN_CHANGED]).collect();
    let without: Vec<&String> = rules.iter().filter(|rule| !said.contains(&rule.as_str())).collect();
    assert!(without.is_empty(), "rules without a case: {without:#?}");
}

/// What is wrong with the server's answers to one case.
async fn faults(server: &Server, case: &Case) -> Vec<String> {
    let mut faults = Vec::new();
    let at = format!("{} {}: {}", case.kind, case.field, case.says);
    let refused = manifest(case.kind, case.refused);
    match server.create(case.kind, &refused, true).await {
        Ok(_) => faults.push(format!("{at}\n  was accepted: {}", case.refused)),
        Err(answer) if !answer.contains(case.says) || !answer.contains(case.field) => {
            faults.push(format!("{at}\n  was refused with: {answer}"));
        }
        Err(_) => {}
    }
    let accepted = manifest(case.kind, case.accepted);
    if let Err(answer) = server.create(case.kind, &accepted, true).await {
        faults.push(format!("{at}\n  the accepted case {} was refused with: {answer}", case.accepted));
    }
    faults
}

#[tokio::test]
async fn each_rule_refuses_and_accepts() {
    let Some(server) = Server::connect().await else { return };
    let mut all = Vec::new();
    for case in CASES {
        all.extend(faults(&server, case).await);
    }
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

#[tokio::test]
async fn a_live_job_changes_only_where_it_may() {
    let Some(server) = Server::connect().await else { return };
    let name = format!("edits-{}", std::process::id());
    let mut object = job();
    object["metadata"]["name"] = json!(name);
    server.create("TrainingJob", &object, false).await.unwrap();
    let mut all = Vec::new();
    for edit in EDITS {
        match server.edit("TrainingJob", &name, edit.change, true).await {
            Ok(_) => all.push(format!("{} changed while the job was live", edit.field)),
            Err(answer) if !answer.contains(edit.says) || !answer.contains(edit.field) => {
                all.push(format!("{} was refused with: {answer}", edit.field));
            }
            Err(_) => {}
        }
    }
    for change in allowed_edits() {
        if let Err(answer) = server.edit("TrainingJob", &name, change, true).await {
            all.push(format!("{change} was refused with: {answer}"));
        }
    }
    // Suspending and changing at once is still a change of a live job.
    let both = r#"{"spec": {"suspend": true, "framework": "Mpi"}}"#;
    if server.edit("TrainingJob", &name, both, true).await.is_ok() {
        all.push("framework changed in the same request that suspends".into());
    }
    server.edit("TrainingJob", &name, r#"{"spec": {"suspend": true}}"#, false).await.unwrap();
    for edit in EDITS {
        if let Err(answer) = server.edit("TrainingJob", &name, edit.change, true).await {
            all.push(format!("{} of a suspended job was refused with: {answer}", edit.field));
        }
    }
    server.delete("TrainingJob", &name).await.unwrap();
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

/// What a hand changes of a gang that holds a plan would leave pods of two kinds; what the operator changes is taken.
#[tokio::test]
async fn a_gang_in_force_changes_only_where_it_may() {
    let Some(server) = Server::connect().await else { return };
    server.install_copy(GANG_COPY).await;
    let name = &format!("edited-{}", std::process::id());
    let mut object = manifest("Gang", GANG);
    object["apiVersion"] = json!(format!("{COPY}/v1alpha1"));
    object["metadata"]["name"] = json!(name);
    server.create(GANG_COPY, &object, false).await.unwrap();
    let mut all = Vec::new();
    for edit in GANG_EDITS {
        if let Err(answer) = server.edit(GANG_COPY, name, edit.change, true).await {
            all.push(format!("{} of a waiting gang was refused with: {answer}", edit.field));
        }
    }
    server.edit(GANG_COPY, &format!("{name}/status"), PLACED, false).await.unwrap();
    for edit in GANG_EDITS {
        match server.edit(GANG_COPY, name, edit.change, true).await {
            Ok(_) => all.push(format!("{} changed while the gang held a plan", edit.field)),
            Err(answer) if !answer.contains(edit.says) || !answer.contains(edit.field) => {
                all.push(format!("{} was refused with: {answer}", edit.field));
            }
            Err(_) => {}
        }
    }
    for change in GANG_ALLOWED {
        if let Err(answer) = server.edit(GANG_COPY, name, change, true).await {
            all.push(format!("{change} was refused with: {answer}"));
        }
    }
    // Pods of the plan may still run: that it is to be suspended is not enough.
    server.edit(GANG_COPY, name, r#"{"spec": {"suspend": true}}"#, false).await.unwrap();
    for edit in GANG_EDITS {
        if server.edit(GANG_COPY, name, edit.change, true).await.is_ok() {
            all.push(format!("{} changed while the gang was to be suspended and held a plan", edit.field));
        }
    }
    server.edit(GANG_COPY, &format!("{name}/status"), FREED, false).await.unwrap();
    for edit in GANG_EDITS {
        if let Err(answer) = server.edit(GANG_COPY, name, edit.change, true).await {
            all.push(format!("{} of a gang without a plan was refused with: {answer}", edit.field));
        }
    }
    server.edit(GANG_COPY, name, REVISED, false).await.unwrap();
    for edit in REVISIONS {
        match server.edit(GANG_COPY, name, edit.change, true).await {
            Ok(_) => all.push(format!("{} changed: {}", edit.field, edit.says)),
            Err(answer) if !answer.contains(edit.says) || !answer.contains(edit.field) => {
                all.push(format!("{} was refused with: {answer}", edit.field));
            }
            Err(_) => {}
        }
    }
    server.remove_copy(GANG_COPY).await;
    assert!(all.is_empty(), "{} faults:\n{}", all.len(), all.join("\n"));
}

#[tokio::test]
async fn a_part_of_a_plan_never_changes() {
    let Some(server) = Server::connect().await else { return };
    server.install_copy(PLAN_COPY).await;
    let name = format!("part-{}", std::process::id());
    let mut object = base("GangPlan");
    object["apiVersion"] = json!(format!("{COPY}/v1alpha1"));
    object["metadata"]["name"] = json!(name);
    let got = server.create(PLAN_COPY, &object, false).await.unwrap();
    let answer = server.edit(PLAN_COPY, &name, r#"{"spec":{"text":"other"}}"#, true).await.unwrap_err();
    let labels = server.edit(PLAN_COPY, &name, r#"{"metadata":{"labels":{"a":"b"}}}"#, true).await;
    server.remove_copy(PLAN_COPY).await;
    assert_eq!(got["spec"], through_types("GangPlan", &base("GangPlan"))["spec"]);
    assert!(answer.contains(PLAN_CHANGED), "{answer}");
    labels.unwrap();
}

#[tokio::test]
async fn defaults_of_the_server_are_those_of_the_types() {
    let Some(server) = Server::connect().await else { return };
    // Nobody but the operator makes parts of plans; theirs are compared where they are tried.
    for (kind, ..) in KINDS.iter().copied().filter(|row| row.0 != "GangPlan") {
        let sent = base(kind);
        let mut got = server.create(kind, &sent, true).await.unwrap();
        let mut ours = through_types(kind, &sent);
        for object in [&mut got, &mut ours] {
            object.as_object_mut().unwrap().retain(|key, _| key == "spec");
            // Quantities and the template's defaults are Kubernetes' own.
            without_templates(object);
        }
        assert_eq!(got, ours, "{kind}");
    }
}

#[tokio::test]
async fn scale_follows_data() {
    let Some(server) = Server::connect().await else { return };
    let name = format!("scaled-{}", std::process::id());
    let mut object = job();
    object["metadata"]["name"] = json!(name);
    server.create("TrainingJob", &object, false).await.unwrap();
    let scale = server.scale("TrainingJob", &name, 4).await;
    let beyond = server.scale("TrainingJob", &name, 400).await;
    server.delete("TrainingJob", &name).await.unwrap();
    assert_eq!(scale.unwrap()["spec"]["replicas"], 4);
    let answer = beyond.unwrap_err();
    assert!(answer.contains("elastic.maxData must not be below parallelism.data"), "{answer}");
}
