//! Answers that are lost, late or wrong, and what must never follow; what of templates and objects is heeded.

use super::*;

/// Whatever becomes of the answer to a plan's write, and however late the watch is: its nodes are nobody else's.
#[test]
fn a_plan_without_an_answer_keeps_its_place() {
    for written in [true, false] {
        for answer in [Outcome::Transient("no answer".into()), Outcome::Conflict] {
            let mut table = Table::new(2);
            table.submit("last-by-name", 1);
            let ticket = table.until(|effect| is_plan(effect, "last-by-name"));
            let Want::WriteGang { version, status, .. } = &*ticket.want.clone() else { unreachable!() };
            if written {
                table.write("last-by-name", version, status);
            }
            table.answer(&ticket, answer.clone());
            // Another one comes before the watch does. Asked again, the engine would serve it first.
            table.submit("first-by-name", 1);
            table.settle(60_000);
            let (last, first) = (table.plan("last-by-name"), table.plan("first-by-name"));
            assert!(last.is_some() && first.is_some(), "{last:?} and {first:?}: both have room");
            assert_ne!(last, first, "written: {written}, {answer:?}: one node for two gangs");
            let gang = &table.gangs["last-by-name"]["status"];
            assert_eq!(gang["lastGeneration"], 1, "written: {written}, {answer:?}: it was placed twice");
        }
    }
}

/// What a RuntimeClass adds to the pods on admission decides about their nodes: its selector and its tolerations.
#[test]
fn what_admission_adds_about_nodes_is_heeded() {
    let sandboxed = |at: usize| {
        let mut node = node(at, true);
        node.0.metadata.labels = Some([("sandbox".to_owned(), "kata".to_owned())].into());
        taint(&mut node);
        node
    };
    let select = |spec: &mut PodSpec| {
        spec.node_selector.get_or_insert_default().insert("sandbox".into(), "kata".into());
    };
    let both = |spec: &mut PodSpec| {
        spec.node_selector.get_or_insert_default().insert("sandbox".into(), "kata".into());
        let toleration = Toleration {
            key: Some("sandbox".into()),
            operator: Some("Exists".into()),
            ..Toleration::default()
        };
        spec.tolerations.get_or_insert_default().push(toleration);
    };
    let admissions: [(Option<Admission>, Option<&str>); 3] =
        [(None, Some("node-0")), (Some(select), None), (Some(both), Some("node-1"))];
    for (admission, planned) in admissions {
        let mut table = Table::new(1);
        table.admission = admission;
        table.tell(Event::Node(Change::Set(sandboxed(1))));
        table.submit("gang", 1);
        table.settle(10_000);
        assert_eq!(table.plan("gang").as_deref(), planned);
    }
}

/// A place found while an older sentence about the gang is being written is not forgotten.
#[test]
fn a_decision_outlives_the_write_of_a_refusal() {
    let mut table = Table::new(0);
    table.tell(Event::Node(Change::Set(node(0, false))));
    table.submit("gang", 1);
    let refusal = table.until(|effect| matches!(effect, Want::WriteGang { .. }));
    // The node gets ready while the refusal is on its way.
    table.tell(Event::Node(Change::Set(node(0, true))));
    table.pass(10);
    let outcome = table.perform(&refusal.want);
    table.answer(&refusal, outcome);
    table.settle(60_000);
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
}

/// A pod that was seen stays seen, although the answer to its creation is lost.
#[test]
fn a_lost_answer_does_not_unmake_a_pod() {
    for answer in [Outcome::Transient("no answer".into()), Outcome::Conflict, Outcome::Refused("no".into())] {
        let mut table = Table::new(1);
        table.submit("gang", 1);
        let creation = table.until(is_creation);
        table.perform(&creation.want);
        table.answer(&creation, answer);
        let again = table.settle(60_000).into_iter().filter(is_creation).count();
        assert_eq!(again, 0, "the pod is there");
        let status = &table.gangs["gang"]["status"];
        assert_eq!(status["phase"], "Placed", "{status}");
    }
}

/// The room of a pod that did not come after all is given to the one who waits for it.
#[test]
fn room_that_is_given_up_is_told() {
    let mut table = Table::new(1);
    table.submit("old", 1);
    let late = table.until(is_creation);
    // The old gang goes while its pod's creation is on its way; the engine gives the node to the new one.
    let Want::CreatePod { gang, .. } = &*late.want.clone() else { unreachable!() };
    let uid = Uid("uid-old".into());
    table.tell(Event::Gang(Change::Gone(gang.clone(), uid)));
    table.gangs.remove("old");
    table.submit("new", 1);
    let waited = table.settle(5_000).into_iter().filter(is_creation).count();
    assert_eq!(waited, 0, "the old pod may still come");
    table.answer(&late, Outcome::Refused("the gang is gone".into()));
    let created = table.settle(1_000).into_iter().filter(is_creation).count();
    assert_eq!(created, 1, "the room is free");
}

/// A job past its deadline ends; whoever leads then takes its gang away, whether or not it wrote the end itself.
#[test]
fn the_gang_of_an_ended_job_is_taken_away() {
    let mut table = Table::new(1);
    table.submit("job", 1);
    let owner = json!([{ "apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": "job", "controller": true }]);
    table.gangs.get_mut("job").unwrap()["metadata"]["ownerReferences"] = owner;
    table.show("job");
    let ended: TrainingJob = serde_json::from_value(json!({
        "metadata": { "name": "job", "namespace": "space", "uid": "job", "resourceVersion": "9" },
        "spec": { "framework": "Plain", "parallelism": { "data": 1 }, "template": { "spec": { "containers": [] } } },
        "status": { "phase": "Failed", "reason": "DeadlineExceeded" },
    }))
    .unwrap();
    table.tell(Event::Job(Change::Set(ended)));
    let gone = ObjectKey::new("space", "job");
    let asked = table.settle(1_000);
    let deletions = asked.iter().filter(|e| matches!(e, Want::Delete { key, .. } if *key == gone)).count();
    assert_eq!(deletions, 1, "{asked:?}");
}

/// Pods that exist are no news: the plan is the one write until one runs. That all were created is in the next.
#[test]
fn that_all_pods_exist_costs_no_write_of_its_own() {
    let mut table = Table::new(2);
    table.submit("gang", 2);
    let asked = table.settle(60_000);
    let writes = |asked: &[Want]| asked.iter().filter(|e| matches!(e, Want::WriteGang { .. })).count();
    assert_eq!(writes(&asked), 1, "{asked:?}");
    let created = asked.iter().find_map(|effect| match effect {
        Want::CreatePod { pod, body, .. } => Some((pod.clone(), body.clone())),
        _ => None,
    });
    let (pod, body) = created.unwrap();
    table.tell(Event::Pod(Change::Set(running(&body, &pod.name))));
    assert_eq!(writes(&table.settle(60_000)), 1, "one pod of two runs");
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["launched"], &status["units"]["ready"]), (&json!(true), &json!(1)), "{status}");
}

/// What of a template never blocks is not dropped silently: the condition names the field, on the gang and on its job.
#[test]
fn wishes_that_are_not_heeded_are_named() {
    let wish = json!({ "containers": [{ "name": "trainer" }], "affinity": { "podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": { "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "cache" } } },
        }],
    } } });
    let mut table = Table::new(1);
    table.submit("gang", 1);
    table.gangs.get_mut("gang").unwrap()["spec"]["roles"][0]["template"]["spec"] = wish.clone();
    table.gangs.get_mut("gang").unwrap()["metadata"]["ownerReferences"] = json!([{ "apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "gang", "uid": "job", "controller": true }]);
    table.show("gang");
    let job: TrainingJob = serde_json::from_value(json!({
        "metadata": { "name": "gang", "namespace": "space", "uid": "job", "resourceVersion": "9" },
        "spec": {
            "framework": "Plain", "parallelism": { "data": 1 }, "accelerator": { "perPod": 0 },
            "template": { "spec": wish },
        },
    }))
    .unwrap();
    table.tell(Event::Job(Change::Set(job)));
    let asked = table.settle(60_000);
    let said = |conditions: &Value| {
        let all = conditions.as_array().unwrap();
        let valid = all.iter().find(|c| c["type"] == "Valid").unwrap();
        assert_eq!(valid["status"], "True");
        valid["message"].as_str().unwrap().to_owned()
    };
    let rest =
        "template.spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution: not considered";
    let of_gang = said(&table.gangs["gang"]["status"]["conditions"]);
    assert!(of_gang.contains(&format!("; spec.roles[0].{rest}")), "{of_gang}");
    let mut jobs = asked.iter().filter_map(|effect| match effect {
        Want::WriteJob { status, .. } => Some(json!(status)),
        _ => None,
    });
    let of_job = said(&jobs.next_back().unwrap()["conditions"]);
    assert!(of_job.contains(&format!("; spec.{rest}")), "{of_job}");
}

/// A claim that no pod can use yet is the reason, not a plan that kube-scheduler then refuses; waiting writes nothing more.
#[test]
fn a_gang_waits_for_its_claim() {
    let mut table = Table::new(1);
    let message = "it does not exist".to_owned();
    table.claims.problem = Some(Reason::ClaimNotReady { claim: "data".into(), message });
    table.submit("gang", 1);
    let asked = table.settle(60_000);
    let writes = asked.iter().filter(|e| matches!(e, Want::WriteGang { .. })).count();
    let probes = asked.iter().filter(|e| matches!(e, Want::Probe { .. })).count();
    let status = &table.gangs["gang"]["status"];
    assert_eq!(status["reason"], "ClaimNotReady", "{status}");
    assert!(status["message"].as_str().unwrap().contains("\"data\": it does not exist"), "{status}");
    assert!(writes == 1 && (4..=7).contains(&probes), "{writes} writes, {probes} looks in a minute");
    table.claims.problem = None;
    table.settle(20_000);
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
}

/// A volume that is bound for a gang's first pods binds those that come after them.
#[test]
fn what_is_replaced_follows_the_volume() {
    let mut table = Table::new(3);
    table.claims.claims = Claims::Unbound;
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    let created = Want::clone(&creation.want);
    let outcome = table.perform(&created);
    table.answer(&creation, outcome);
    assert_eq!(table.plan("gang").as_deref(), Some("node-0"));
    // It runs, and by then its volume is where only the last node reaches it.
    let only_last = NodeSelectorTerm {
        requirements: vec![Requirement {
            field: true,
            ..Requirement::label_in("metadata.name", &["node-2"])
        }],
    };
    table.claims = Probe {
        claims: Claims::Bound,
        learned: Learned { volumes: vec![vec![only_last]], ..Learned::default() },
        ..Probe::default()
    };
    let Want::CreatePod { pod, body, .. } = &created else { unreachable!() };
    table.tell(Event::Pod(Change::Set(running(body, &pod.name))));
    table.settle(5_000);
    assert_eq!(table.gangs["gang"]["status"]["phase"], "Running", "{}", table.gangs["gang"]["status"]);
    table.tell(Event::Node(Change::Set(node(0, false))));
    table.settle(120_000);
    assert_eq!(table.plan("gang").as_deref(), Some("node-2"));
}

/// Queues and classes say who uses them and what is there; a queue counts those inside it. When nothing changes, nothing
/// is written.
#[test]
fn queues_and_classes_are_counted() {
    let mut table = Table::new(1);
    table.apply(Kind::Queue, "org", &json!({}));
    table.apply(Kind::Queue, "team", &json!({ "parent": "org" }));
    table.apply(Kind::Queue, "lost", &json!({ "parent": "nowhere" }));
    table.apply(Kind::Queue, "round", &json!({ "parent": "about" }));
    table.apply(Kind::Queue, "about", &json!({ "parent": "round" }));
    let class = json!({ "resource": "example.com/card", "productLabel": "card", "products": ["big"] });
    table.apply(Kind::Class, "big", &class);
    for name in ["one", "two"] {
        table.submit(name, 1);
        table.gangs.get_mut(name).unwrap()["spec"]["queue"] = json!("team");
        table.show(name);
    }
    table.settle(20_000);
    for queue in ["org", "team"] {
        let status = table.status(Kind::Queue, queue);
        assert_eq!((&status["running"], &status["pending"]), (&json!(1), &json!(1)), "{queue}: {status}");
    }
    let ready = |kind: Kind, name: &str| {
        let condition = &table.status(kind, name)["conditions"][0];
        assert_eq!(condition["type"], "Ready");
        (condition["status"].clone(), condition["reason"].clone())
    };
    assert_eq!(ready(Kind::Queue, "team"), (json!("True"), json!("Ready")));
    let said = table.status(Kind::Queue, "team")["conditions"][0]["message"].as_str().unwrap();
    assert!(said.contains("bind nobody yet"), "it promises what nothing enforces: {said}");
    assert_eq!(ready(Kind::Queue, "lost"), (json!("False"), json!("ParentUnknown")));
    assert_eq!(ready(Kind::Queue, "round"), (json!("False"), json!("ParentsInACircle")));
    assert_eq!(ready(Kind::Class, "big"), (json!("False"), json!("NoNodes")));
    let mut card: SeenNode = node(7, true);
    card.0.metadata.labels = Some([("card".to_owned(), "big".to_owned())].into());
    let room = card.0.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    room.insert(
        "example.com/card".into(),
        k8s_openapi::apimachinery::pkg::api::resource::Quantity("4".into()),
    );
    table.tell(Event::Node(Change::Set(card)));
    table.settle(20_000);
    let status = table.status(Kind::Class, "big");
    assert_eq!(
        (&status["nodes"], &status["gpus"], &status["products"]),
        (&json!(1), &json!(4), &json!(["big"]))
    );
    // The new node took the gang that waited.
    assert_eq!(table.status(Kind::Queue, "org")["running"], 2);
    let quiet = table.settle(120_000);
    assert!(!quiet.iter().any(|effect| matches!(effect, Want::Report { .. })), "{quiet:?}");
}

/// What was learned of a volume is learned for the template that was asked about: another one since takes nothing from what
/// the plan stands on.
#[test]
fn an_answer_about_an_earlier_template_makes_no_basis() {
    let mut table = Table::new(1);
    let tainted = |at: usize| {
        let mut node = node(at, true);
        taint(&mut node);
        node
    };
    table.tell(Event::Node(Change::Set(tainted(0))));
    table.admission = Some(tolerate);
    table.claims.claims = Claims::Unbound;
    table.submit("gang", 1);
    table.settle(2_000);
    let before = table.gangs["gang"]["status"]["basis"].clone();
    table.run_all();
    let probe = table.until(|want| matches!(want, Want::Probe { .. }));
    table.edit_gang("gang", |gang| {
        let role = &mut gang["spec"]["roles"][0];
        role["revisions"] = json!([{ "name": "1", "template": role["template"] }]);
        role["revision"] = json!("2");
        role["template"]["spec"]["containers"][0]["image"] = json!("example/two");
    });
    table.pass(10);
    let outcome = table.perform(&probe.want);
    table.answer(&probe, outcome);
    table.settle(60_000);
    assert_eq!(table.gangs["gang"]["status"]["basis"], before);
}

/// A plan without an answer that the server refuses when asked again may be written all the same by the first request, as
/// long as a server works on one: its node is nobody else's until then.
#[test]
fn a_refused_plan_keeps_its_place_while_the_first_attempt_may_come() {
    for comes in [true, false] {
        let mut table = Table::new(1);
        table.submit("gang", 1);
        let first = table.until(|want| is_plan(want, "gang"));
        table.submit("other", 1);
        table.answer(&first, Outcome::Transient("no answer".into()));
        let second = table.until(|want| is_plan(want, "gang"));
        table.answer(&second, Outcome::Refused("a webhook fails".into()));
        let there = serde_json::from_value::<Object>(table.gangs["gang"].clone()).unwrap();
        let reads = |want: &Want| {
            matches!(want, Want::ReadGang { .. }).then(|| Outcome::Gang(Box::new(there.clone())))
        };
        let asked = table.settle_but(50_000, reads);
        let looks = count(&asked, |want| matches!(want, Want::ReadGang { .. }));
        assert!(table.plan("other").is_none() && looks < 15, "{looks} looks");
        if comes {
            table.perform(&first.want);
        }
        table.settle_but(60_000, reads);
        let placed = (table.plan("gang").is_some(), table.plan("other").is_some());
        assert_eq!(placed, (comes, !comes), "{}", table.gangs["gang"]["status"]);
    }
}
