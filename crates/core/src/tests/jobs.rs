//! Jobs and their gangs: what is edited, replaced, deleted and refused.

use super::*;

fn is_apply(want: &Want) -> bool {
    matches!(want, Want::Apply(child) if child.kind == Kind::Gang)
}

/// A creation whose answer is late is never sent for a job that is gone: the new job of the name gets its own gang.
#[test]
fn a_late_creation_does_not_take_the_next_jobs_gang() {
    let mut table = Table::new(2);
    table.submit_job("job", "first", 1);
    let late = table.until(is_apply);
    table.answer(&late, Outcome::Transient("too many requests".into()));
    // The job is replaced while the retry waits.
    table.job_gone("job");
    table.submit_job("job", "second", 1);
    let asked = table.settle(60_000);
    for want in &asked {
        if let Want::Apply(child) = want {
            assert_eq!(child.owner, Uid("second".into()), "a gang for a job that is gone");
        }
    }
    let owner = &table.gangs["job"]["metadata"]["ownerReferences"][0]["uid"];
    assert_eq!(owner, "second");
    assert!(table.plan("job").is_some(), "{}", table.gangs["job"]);
}

/// The newest specification wins, whichever request is answered last, and a retry of an older one is never sent.
#[test]
fn the_newest_specification_wins() {
    let mut table = Table::new(2);
    table.submit_job("job", "uid", 1);
    table.settle(1_000);
    table.edit_job("job", |spec| spec["suspend"] = json!(true));
    let first = table.until(is_apply);
    table.edit_job("job", |spec| spec["suspend"] = json!(false));
    table.pass(10);
    assert!(!table.asked.iter().any(|ticket| is_apply(&ticket.want)), "one request at a time");
    table.answer(&first, Outcome::Transient("too many requests".into()));
    table.settle(60_000);
    assert_eq!(table.gangs["job"]["spec"]["suspend"], false);
    let status = &table.jobs["job"]["status"];
    assert_ne!(status["phase"], "Suspended", "{status}");
}

/// A gang that is deleted by hand is made again, and the job says so meanwhile; one that is edited by hand is put right.
#[test]
fn a_gang_that_is_deleted_or_edited_by_hand_comes_back() {
    let mut table = Table::new(2);
    table.submit_job("job", "uid", 1);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    assert_eq!(table.jobs["job"]["status"]["phase"], "Running");
    let first = table.gangs["job"]["metadata"]["uid"].clone();
    table.edit_gang("job", |gang| gang["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    let hangs = |want: &Want| {
        matches!(want, Want::EndPod { .. }).then_some(Outcome::Done { version: None, uid: None })
    };
    table.settle_but(5_000, hangs);
    let status = &table.jobs["job"]["status"];
    let said = (&status["phase"], &status["reason"], &status["gpus"]);
    assert_eq!(said, (&json!("Pending"), &json!("EarlierGangLeaving"), &json!(0)), "{status}");
    for name in std::mem::take(&mut table.pods).into_keys() {
        table.tell(Event::Pod(Change::Gone(ObjectKey::new("space", name.clone()), Uid(name))));
    }
    table.settle(10_000);
    table.run_all();
    table.settle(10_000);
    assert_ne!(table.gangs["job"]["metadata"]["uid"], first, "it was made again");
    assert_eq!(table.jobs["job"]["status"]["phase"], "Running");
    table.edit_gang("job", |gang| gang["spec"]["recovery"]["maxRestarts"] = json!(999));
    table.settle(5_000);
    assert_eq!(table.gangs["job"]["spec"]["recovery"]["maxRestarts"], 20, "a budget that nobody gave it");
}

/// What is taken out of a job is taken out of its gang.
#[test]
fn what_is_removed_from_a_job_is_removed_from_its_gang() {
    let mut table = Table::new(2);
    let confined =
        json!({ "suspend": true, "placement": { "job": { "within": "Rack", "mode": "Required" } } });
    table.submit_job_with("job", "uid", 1, &confined);
    table.settle(2_000);
    assert_eq!(table.gangs["job"]["spec"]["within"]["level"], "Rack");
    table.edit_job("job", |spec| {
        spec["suspend"] = json!(false);
        spec["placement"].as_object_mut().unwrap().remove("job");
    });
    table.settle(2_000);
    assert_eq!(table.gangs["job"]["spec"].get("within"), None);
}

/// A gang of the job's name that is not the job's is not touched, and the job says whose it is; so it does while an
/// earlier job's gang is leaving.
#[test]
fn a_gang_that_is_somebody_elses_is_never_adopted() {
    let mut table = Table::new(2);
    table.submit("job", 1);
    table.settle(2_000);
    let theirs = table.gangs["job"]["spec"].clone();
    table.submit_job("job", "uid", 2);
    table.settle(10_000);
    assert_eq!(table.gangs["job"]["spec"], theirs);
    let status = &table.jobs["job"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("NameTaken")), "{status}");
    // It goes, but its pod hangs on a node.
    table.edit_gang("job", |gang| gang["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    let hangs = |want: &Want| {
        matches!(want, Want::EndPod { .. }).then_some(Outcome::Done { version: None, uid: None })
    };
    table.settle_but(10_000, hangs);
    let status = &table.jobs["job"]["status"];
    assert_eq!(status["reason"], "EarlierGangLeaving", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("on node node-0") && message.contains("out-of-service"), "{message}");
}

/// A gang that the API server refuses: the job says so, and it is tried again ever more seldom.
#[test]
fn a_job_whose_gang_is_refused_says_so() {
    let mut table = Table::new(2);
    table.submit_job("job", "uid", 1);
    let refuse = |want: &Want| is_apply(want).then(|| Outcome::Refused("exceeded quota: gangs".into()));
    let asked = table.settle_but(600_000, refuse);
    let tries = count(&asked, is_apply);
    assert!((4..=10).contains(&tries), "{tries} tries in ten minutes");
    let status = &table.jobs["job"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("GangRefused")), "{status}");
    assert!(status["message"].as_str().unwrap().contains("exceeded quota: gangs"));
    table.settle(400_000);
    assert_eq!(table.jobs["job"]["status"]["reason"], "Placed");
}

/// An edit that the server will not have for the Gang is told, on and on in one write, while the Gang runs on as it was.
#[test]
fn an_edit_that_is_refused_for_the_gang_is_told() {
    let mut table = Table::new(2);
    table.submit_job("job", "uid", 1);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    table.edit_job("job", |spec| spec["parallelism"]["data"] = json!(2));
    let refuse = |want: &Want| is_apply(want).then(|| Outcome::Refused("policy: no".into()));
    let asked = table.settle_but(100_000, refuse);
    let status = &table.jobs["job"]["status"];
    let valid = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "Valid").unwrap();
    assert_eq!((&valid["status"], &valid["reason"]), (&json!("False"), &json!("GangRefused")), "{status}");
    assert_eq!(status["phase"], "Running", "{status}");
    let writes = count(&asked, |want| matches!(want, Want::WriteJob { .. }));
    assert!(writes <= 3, "{writes} writes");
}

/// Nodes that come and go change nothing of a job that runs: its shape was derived once.
#[test]
fn nodes_of_another_kind_do_not_restart_a_running_job() {
    let mut table = Table::new(0);
    for at in 0..2 {
        table.tell(Event::Node(Change::Set(gpu_node(at, "NVIDIA-H100-80GB-HBM3", 8, 64))));
    }
    let spec =
        json!({ "accelerator": {}, "template": { "spec": { "containers": [{ "name": "trainer" }] } } });
    table.submit_job_with("job", "uid", 16, &spec);
    table.settle(5_000);
    assert_eq!(table.gangs["job"]["spec"]["roles"][0]["devices"], 8, "network cards are no accelerators");
    let plan = table.plan("job");
    assert!(plan.is_some(), "{}", table.jobs["job"]["status"]);
    table.tell(Event::Node(Change::Set(gpu_node(7, "Tesla-T4", 1, 0))));
    let asked = table.settle(60_000);
    assert_eq!(
        count(&asked, |want| is_apply(want) || matches!(want, Want::WriteGang { .. })),
        0,
        "{asked:?}"
    );
    assert_eq!(table.plan("job"), plan);
    // Edited, it is derived anew from what there is.
    table.edit_job("job", |spec| spec["suspend"] = json!(true));
    table.settle(5_000);
    table.edit_job("job", |spec| spec["suspend"] = json!(false));
    table.settle(5_000);
    assert_eq!(table.gangs["job"]["spec"]["roles"][0]["devices"], 1);
}

/// The deadline counts the time during which the job holds its nodes, and no other.
#[test]
fn a_suspended_job_spends_no_deadline() {
    let mut table = Table::new(1);
    table.submit_job_with("job", "uid", 1, &json!({ "activeDeadline": "40s" }));
    table.settle(10_000);
    table.edit_job("job", |spec| spec["suspend"] = json!(true));
    table.settle(100_000);
    assert_eq!(table.jobs["job"]["status"]["phase"], "Suspended");
    table.edit_job("job", |spec| spec["suspend"] = json!(false));
    table.settle(20_000);
    assert_ne!(table.jobs["job"]["status"]["phase"], "Failed", "30 s of 40");
    table.settle(20_000);
    let status = &table.jobs["job"]["status"];
    assert_eq!(status["reason"], "DeadlineExceeded", "{status}");
}

/// The next leader finds a job past its freeze with the shape that this one derived.
#[test]
fn the_next_leader_keeps_a_running_jobs_shape() {
    let mut table = Table::new(2);
    table.submit_job("job", "uid", 2);
    table.settle(5_000);
    let (plan, spec) = (table.plan("job"), table.gangs["job"]["spec"].clone());
    assert!(plan.is_some());
    table.next_leader();
    for (name, body) in table.pods.clone() {
        table.tell(Event::Pod(Change::Set(running(&body, &name))));
    }
    table.settle(30_000);
    assert_eq!((table.plan("job"), &table.gangs["job"]["spec"]), (plan, &spec));
}

/// A template that a hand gives a job's gang goes again, and costs the job nothing while no pod was made from it; what a
/// unit does run from is given back with the plan.
#[test]
fn a_template_that_is_not_the_jobs_goes_again() {
    for renewed in [false, true] {
        let mut table = Table::new(2);
        table.submit_job("job", "uid", 2);
        table.settle(5_000);
        table.run_all();
        table.settle(5_000);
        let before = table.pods.clone();
        table.edit_gang("job", |gang| {
            let role = &mut gang["spec"]["roles"][0];
            role["revisions"] = json!([{ "name": "1", "template": role["template"] }]);
            role["revision"] = json!("2");
            role["template"]["spec"]["containers"][0]["image"] = json!("example/two");
            if renewed {
                let plan = &mut gang["status"]["plan"]["runs"][0];
                plan["revision"] = json!("2");
                gang["status"]["revisions"] = json!([{ "role": "worker", "name": "2", "units": 2 }]);
            }
        });
        let asked = table.settle(120_000);
        let role = &table.gangs["job"]["spec"]["roles"][0];
        assert_eq!((&role["revision"], &role["revisions"]), (&json!("1"), &Value::Null), "{role}");
        assert_eq!(table.gangs["job"]["spec"]["suspend"], false);
        let same = table.pods.keys().eq(before.keys());
        assert_eq!(same, !renewed, "{:?}", table.gangs["job"]["status"]);
        let patches = count(&asked, is_apply);
        assert!(patches <= 2 + usize::from(renewed), "{patches} patches");
    }
}
