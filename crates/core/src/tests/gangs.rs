//! A gang's plans, Services and pods: nothing of one plan outlives it, and nobody else's pod stands for one of its own.

use super::*;

fn service_marks(asked: &[Want]) -> Vec<String> {
    let selector = |child: &Child| {
        let patched = child.patch.as_array().into_iter().flatten().find(|op| op["path"] == "/spec/selector");
        let wanted = match (&child.base, patched) {
            (Some(_), Some(op)) => op["value"].clone(),
            _ => child.body["spec"]["selector"].clone(),
        };
        wanted["muster.dev/incarnation"].as_str().unwrap().to_owned()
    };
    let services = asked.iter().filter_map(|want| match want {
        Want::Apply(child) if child.kind == Kind::Service => Some(selector(child)),
        _ => None,
    });
    services.collect()
}

/// A node that was busy once is not held against the next plan: each wait for room has its own time.
#[test]
fn a_second_restart_waits_for_room_as_long_as_the_first() {
    let mut table = Table::new(3);
    table.submit("gang", 2);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    let restart = |table: &mut Table| {
        let old: Vec<(String, Vec<u8>)> = table.pods.clone().into_iter().collect();
        let failed = table.first_pod();
        table.end(&failed, 1);
        // The other pod takes its time to leave.
        let stays = |want: &Want| {
            matches!(want, Want::EndPod { .. }).then_some(Outcome::Done { version: None, uid: None })
        };
        for (name, body) in &old {
            if *name != failed {
                table.tell(Event::Pod(Change::Set(leaving(body, name))));
            }
        }
        table.settle_but(60_000, stays);
        for (name, _) in &old {
            table.pods.remove(name);
            let key = ObjectKey::new("space", name.clone());
            table.tell(Event::Pod(Change::Gone(key, Uid(name.clone()))));
        }
        table.settle(400_000);
        table.run_all();
        table.settle(5_000);
    };
    restart(&mut table);
    let plan = table.plan("gang");
    table.settle(900_000);
    restart(&mut table);
    let status = &table.gangs["gang"]["status"];
    assert_eq!(status["phase"], "Running", "{status}");
    assert_eq!(table.plan("gang"), plan, "it was driven from its nodes");
    assert_eq!(status["restartsTotal"], 2, "{status}");
}

/// A plan that cannot be read is given back once; then the gang is placed anew.
#[test]
fn a_plan_that_cannot_be_read_is_given_back_once() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let gang = table.gangs.get_mut("gang").unwrap();
    gang["status"] = json!({
        "phase": "Running", "epoch": 1, "lastGeneration": 3, "units": { "summary": "1/1" },
        "plan": { "generation": 3, "pods": 1, "chunks": [{ "name": "gone", "sha256": "0" }] },
    });
    table.edit_gang("gang", |_| {});
    let asked = table.settle(60_000);
    let given = count(
        &asked,
        |want| matches!(want, Want::WriteGang { status, .. } if status.reason.as_deref() == Some("PlanUnreadable")),
    );
    assert_eq!(given, 1, "{asked:?}");
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
    assert_eq!(table.gangs["gang"]["status"]["lastGeneration"], 4);
}

/// An older request about rank 0's Service neither wins nor counts for a newer one: no pod of a plan comes before its
/// own Service is there.
#[test]
fn rank0s_service_follows_the_newest_plan() {
    let mut table = Table::new(3);
    table.submit_with("gang", 1, &json!({ "launch": { "framework": "Torchrun" } }));
    let first = table.until(|want| matches!(want, Want::Apply(child) if child.kind == Kind::Service));
    // Its node dies before the answer; another plan is made.
    table.tell(Event::Node(Change::Gone(ObjectKey::new("", "node-0"), Uid("node-0".into()))));
    let held = table.settle_but(5_000, |_| None);
    assert_eq!(count(&held, is_creation), 0, "no pod before its Service");
    table.answer(&first, Outcome::Transient("too many requests".into()));
    let asked = table.settle(60_000);
    assert_eq!(service_marks(&asked).last().map(String::as_str), Some("2"), "{:?}", service_marks(&asked));
    assert_eq!(count(&asked, is_creation), 1);
    // Deleted under our hands it comes back at once.
    let (kind, name) = table.children.keys().next().unwrap().clone();
    table.children.clear();
    table.run_all();
    table.settle(1_000);
    table.tell(Event::Service(Change::Gone(ObjectKey::new("space", name), Uid("gone".into()))));
    assert_eq!(kind, Kind::Service);
    assert_eq!(service_marks(&table.settle(5_000)), ["2"]);
}

/// Another namespace's pod with our gang's UID and labels is use of its node, and nothing else: it takes no place, ends
/// nothing, and is not deleted.
#[test]
fn a_pod_of_another_namespace_stands_for_nothing() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    let Want::CreatePod { body, pod, .. } = &*creation.want else { unreachable!() };
    let mut theirs = ended(body, "a-smaller-uid", 0);
    theirs.0.metadata.namespace = Some("theirs".into());
    table.tell(Event::Pod(Change::Set(theirs)));
    let mut runs = running(body, "another");
    runs.0.metadata.namespace = Some("theirs".into());
    table.tell(Event::Pod(Change::Set(runs)));
    let outcome = table.perform(&creation.want);
    table.answer(&creation, outcome);
    let asked = table.settle(30_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!(status["phase"], "Placed", "{status}");
    assert_eq!(count(&asked, |want| matches!(want, Want::EndPod { .. })), 0, "{asked:?}");
    assert!(table.pods.contains_key(&pod.name));
}

/// What one kubelet says of a stranger's pod takes no node from others; what it says of ours ends with the node.
#[test]
fn a_refused_pod_takes_no_node_from_others() {
    // Somebody's pod that asks for far too much.
    let mut table = Table::new(1);
    table.submit("first", 1);
    let creation = table.until(is_creation);
    let Want::CreatePod { body, .. } = &*creation.want else { unreachable!() };
    let mut stranger = refused(body, "stranger", "OutOfcpu");
    stranger.0.metadata.owner_references = None;
    stranger.0.metadata.name = Some("stranger".into());
    table.gone("first");
    table.answer(&creation, Outcome::Refused("gone".into()));
    table.tell(Event::Pod(Change::Set(stranger)));
    table.submit("second", 1);
    table.settle(10_000);
    assert!(table.plan("second").is_some(), "{}", table.gangs["second"]["status"]);

    // Our own pod is refused although there is room by the node's word; the node is registered anew.
    let mut table = Table::new(1);
    table.submit("first", 1);
    table.settle(2_000);
    let (name, body) = table.pods.pop_first().unwrap();
    table.tell(Event::Pod(Change::Set(refused(&body, &name, "OutOfcpu"))));
    table.gone("first");
    table.tell(Event::Pod(Change::Gone(ObjectKey::new("space", name.clone()), Uid(name))));
    table.submit("second", 1);
    table.settle(30_000);
    assert_eq!(table.plan("second"), None, "the kubelet's word is believed for a while");
    table.tell(Event::Node(Change::Gone(ObjectKey::new("", "node-0"), Uid("node-0".into()))));
    let mut again = node(0, true);
    again.0.metadata.uid = Some("another-machine".into());
    table.tell(Event::Node(Change::Set(again)));
    table.settle(10_000);
    assert!(table.plan("second").is_some(), "{}", table.gangs["second"]["status"]);
}

/// A gang that is leaving holds no decision: what was decided for it is anybody's.
#[test]
fn a_decision_for_a_gang_that_leaves_is_dropped() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    table.settle(2_000);
    table.run_all();
    let progress = table.until(|want| matches!(want, Want::WriteGang { .. }));
    // Its node dies while its progress is being written; another is decided on; then it is deleted.
    table.tell(Event::Node(Change::Gone(ObjectKey::new("", "node-0"), Uid("node-0".into()))));
    table.pass(10);
    table.pass(10);
    table.edit_gang("gang", |gang| gang["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    table.submit("next", 1);
    table.settle_but(20_000, |want| matches!(want, Want::EndPod { .. }).then_some(Outcome::Gone));
    assert!(table.plan("next").is_some(), "{}", table.gangs["next"]["status"]);
    table.answer(&progress, Outcome::Conflict);
}

/// Thousands of jobs that differ in their arguments alone are one shape; a refusal asks about none of them again.
#[test]
fn arguments_make_no_shape_of_their_own() {
    let mut table = Table::new(1);
    let mut probes = 0;
    for at in 0..500 {
        let role = json!([{
            "name": "worker",
            "template": { "spec": { "containers": [{
                "name": "trainer", "args": [format!("--seed={at}")],
                "resources": { "requests": { "cpu": "4" } },
            }] } },
            "units": { "min": 1, "max": 1 },
        }]);
        table.submit_with(&format!("gang-{at}"), 1, &json!({ "roles": role }));
        if at % 100 == 0 {
            probes += count(&table.settle(1_000), |want| matches!(want, Want::Probe { .. }));
        }
    }
    probes += count(&table.settle(60_000), |want| matches!(want, Want::Probe { .. }));
    assert_eq!(probes, 1);
    table.tell(Event::Node(Change::Set(node(1, true))));
    let asked = table.settle(60_000);
    assert_eq!(count(&asked, |want| matches!(want, Want::Probe { .. })), 0);
    assert_eq!(
        count(&asked, |want| matches!(want, Want::WriteGang { status, .. } if status.plan.is_some())),
        1
    );
}

/// What admission makes of pods is asked again when a LimitRange changed, and when a kubelet refused one.
#[test]
fn admission_is_asked_again_when_it_may_have_changed() {
    let mut table = Table::new(1);
    let large: Admission = |spec| {
        let requests = spec.containers[0].resources.get_or_insert_default();
        requests.requests.get_or_insert_default().insert("cpu".into(), Quantity("500".into()));
    };
    table.admission = Some(large);
    table.submit("gang", 1);
    table.settle(5_000);
    assert_eq!(table.gangs["gang"]["status"]["reason"], "NoNodeFits");
    table.admission = None;
    let limits = json!({ "metadata": { "name": "defaults", "namespace": "space", "uid": "1" } });
    table.tell(Event::Limits(Change::Set(partial(&limits))));
    table.settle(10_000);
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
}

/// Ranks that ended well are remembered by the status: pods that were collected since are no loss to the next leader.
#[test]
fn ranks_that_ended_well_are_not_lost_by_the_next_leader() {
    let mut table = Table::new(3);
    table.submit("gang", 3);
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    let worker = table.pods.keys().find(|name| name.ends_with("-1-1-0")).unwrap().clone();
    table.end(&worker, 0);
    table.settle(10_000);
    assert_eq!(table.gangs["gang"]["status"]["done"], "1", "{}", table.gangs["gang"]["status"]);
    // PodGC collects it; the leader changes; rank 0 still works.
    table.pods.remove(&worker);
    let rest = table.pods.clone();
    table.core = Core::new(Config::default(), 2);
    for at in 0..3 {
        table.tell(Event::Node(Change::Set(node(at, true))));
    }
    table.show("gang");
    for (name, body) in rest {
        table.tell(Event::Pod(Change::Set(running(&body, &name))));
    }
    table.core.start();
    table.settle(30_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["phase"], &status["restartsTotal"]), (&json!("Running"), &json!(0)), "{status}");
}

/// A gang made by hand gets our finalizer before its first plan, so that none of its pods hangs when it is deleted.
#[test]
fn a_gang_is_guarded_before_it_is_placed() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    table.edit_gang("gang", |gang| drop(gang["metadata"].as_object_mut().unwrap().remove("finalizers")));
    let guard = table.until(|want| matches!(want, Want::Guard { .. }));
    assert_eq!(table.plan("gang"), None);
    let outcome = table.perform(&guard.want);
    table.answer(&guard, outcome);
    table.settle(5_000);
    assert!(table.plan("gang").is_some());
}

/// A pod whose gang is gone is let go, whenever it comes.
#[test]
fn a_pod_whose_gang_is_gone_is_let_go() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    table.gone("gang");
    table.settle(1_000);
    // The creation was executed late.
    let Want::CreatePod { body, pod, .. } = &*creation.want else { unreachable!() };
    table.tell(Event::Pod(Change::Set(pod_of(body, &pod.name))));
    let asked = table.settle(1_000);
    let let_go = |want: &Want| matches!(want, Want::EndPod { release: Some(_), delete: Some(_), .. });
    assert_eq!(count(&asked, let_go), 1, "{asked:?}");
}

/// What comes to light while pods are being created is looked at at once, though nothing else happens for minutes.
#[test]
fn a_node_that_is_lost_to_a_creation_is_replaced_at_once() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    let plan = table.until(|want| is_plan(want, "gang"));
    let mut cordoned = node(0, true);
    cordoned.0.spec.get_or_insert_default().unschedulable = Some(true);
    table.tell(Event::Node(Change::Set(cordoned)));
    table.pass(10);
    let outcome = table.perform(&plan.want);
    table.answer(&plan, outcome);
    table.settle(500);
    assert_eq!(table.plan("gang").as_deref(), Some("node-1"), "{}", table.gangs["gang"]["status"]);
}

/// Reasons that change to and fro are told now and then, by the gang as by its job: thousands may wait so.
#[test]
fn reasons_that_alternate_are_told_now_and_then() {
    let mut table = Table::new(1);
    table.submit("first", 1);
    table.submit_job("job", "uid", 1);
    table.settle(2_000);
    let quota = |left: u32| {
        serde_json::from_value(json!({
            "metadata": { "name": "pods", "namespace": "space" },
            "spec": { "hard": { "pods": left.to_string() } }, "status": { "used": { "pods": "0" } },
        }))
        .unwrap()
    };
    let mut asked = Vec::new();
    for at in 0..120 {
        table.tell(Event::Quota(Change::Set(quota(at % 2))));
        asked.extend(table.settle(500));
    }
    let gang = count(&asked, |want| matches!(want, Want::WriteGang { gang, .. } if gang.name == "job"));
    let job = count(&asked, |want| matches!(want, Want::WriteJob { .. }));
    assert!((2..=4).contains(&gang) && job <= gang, "{gang} and {job} writes in a minute");
}

/// A plan that cannot be read: its pods are there all the same, and nobody gets their node before they have left.
#[test]
fn the_pods_of_an_unreadable_plan_keep_their_node() {
    let mut table = Table::new(1);
    table.submit("first", 1);
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    let (name, body) = table.pods.first_key_value().map(|(name, body)| (name.clone(), body.clone())).unwrap();
    table.core = Core::new(Config::default(), 2);
    table.asked.clear();
    table.tell(Event::Node(Change::Set(node(0, true))));
    let plan = json!({ "generation": 1, "pods": 1, "chunks": [{ "name": "gone", "sha256": "0" }] });
    table.gangs.get_mut("first").unwrap()["status"]["plan"] = plan;
    table.show("first");
    table.tell(Event::Pod(Change::Set(running(&body, &name))));
    table.core.start();
    table.submit("second", 1);
    // It goes, and takes its time.
    let hangs = |want: &Want| {
        matches!(want, Want::EndPod { .. }).then_some(Outcome::Done { version: None, uid: None })
    };
    let mut asked = table.settle_but(1_000, hangs);
    table.tell(Event::Pod(Change::Set(leaving(&body, &name))));
    asked.extend(table.settle_but(60_000, hangs));
    assert!(asked.iter().any(|want| matches!(want, Want::EndPod { delete: Some(_), .. })), "{asked:?}");
    assert_eq!(count(&asked, is_creation), 0, "two pods on one node");
    assert_eq!((table.plan("first"), table.plan("second")), (None, None));
    table.pods.remove(&name);
    table.tell(Event::Pod(Change::Gone(ObjectKey::new("space", name.clone()), Uid(name))));
    assert_eq!(count(&table.settle(5_000), is_creation), 1, "then one of them gets it");
}

/// A gang over which the operator fails says so, once, and rests until it is changed; others go on.
#[test]
fn a_fault_of_the_operator_is_told_in_the_status_of_its_gang() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    let plan = table.until(|want| is_plan(want, "gang"));
    let outcome = table.perform(&plan.want);
    table.answer(&plan, outcome);
    // A time that no sum holds.
    let holding = |table: &mut Table, broken: bool| {
        let gang = table.core.gangs.get_mut(&ObjectKey::new("space", "gang")).unwrap();
        let blocked = &mut gang.life.holding_mut().unwrap().blocked;
        blocked.clear();
        blocked.extend(broken.then(|| (muster_model::NodeName::from("node-0"), Millis::MAX)));
    };
    holding(&mut table, true);
    table.submit("other", 1);
    let asked = table.settle(60_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Placed"), &json!("OperatorFault")),
        "{status}"
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("overflow") && message.contains("report this"), "{message}");
    let writes = |want: &Want| matches!(want, Want::WriteGang { gang, .. } if gang.name == "gang");
    assert_eq!((count(&asked, writes), table.core.counters().tripped), (1, 1));
    assert!(table.plan("other").is_some(), "{}", table.gangs["other"]["status"]);
    holding(&mut table, false);
    table.edit_gang("gang", |gang| gang["spec"]["recovery"] = json!({ "maxRestarts": 3 }));
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Running"), &json!("Running")), "{status}");
}

/// Words of a newer version are one label of the metric, however many there are.
#[test]
fn phases_of_a_newer_version_are_counted_as_one() {
    let mut table = Table::new(0);
    for (name, phase) in [("one", "Hibernating"), ("two", "Draining"), ("three", "Running")] {
        table.submit(name, 1);
        table.edit_gang(name, |gang| gang["status"] = json!({ "phase": phase, "epoch": 1 }));
    }
    let phases: Vec<(String, usize)> = table.core.phases().into_iter().collect();
    assert_eq!(phases, [("Running".to_owned(), 1), ("Unknown".to_owned(), 2)]);
}

/// A creation without an answer, whose pod the watch shows: nothing waits to be created, and a gang that runs is not said
/// to.
#[test]
fn a_lost_answer_is_no_trouble_of_a_gang_that_runs() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    let Want::CreatePod { pod, body, .. } = Want::clone(&creation.want) else { unreachable!() };
    table.answer(&creation, Outcome::Transient("no answer".into()));
    table.tell(Event::Pod(Change::Set(running(&body, &pod.name))));
    table.settle(10_000);
    assert_eq!(table.gangs["gang"]["status"]["reason"], "Running", "{}", table.gangs["gang"]["status"]);
    // Something of the gang changes later, and it is looked at.
    table.settle(60_000);
    table.edit_gang("gang", |gang| gang["metadata"]["labels"] = json!({ "a": "b" }));
    table.settle(10_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Running"), &json!("Running")), "{status}");
}

/// What admission adds to pods with accelerators is known of the second gang as of the first, whose template it has.
#[test]
fn what_admission_adds_is_heeded_for_the_next_gang_too() {
    let mut table = Table::new(0);
    for at in 0..2 {
        let mut node = gpu_node(at, "NVIDIA-H100-80GB-HBM3", 8, 0);
        taint(&mut node);
        table.tell(Event::Node(Change::Set(node)));
    }
    table.admission = Some(tolerate);
    for name in ["first", "second"] {
        let role = json!([{
            "name": "worker", "units": { "min": 1, "max": 1 }, "devices": 8,
            "template": { "spec": { "containers": [{ "name": "trainer" }] } },
        }]);
        table.submit_with(name, 1, &json!({ "roles": role }));
        table.settle(10_000);
        assert!(table.plan(name).is_some(), "{}", table.gangs[name]["status"]);
    }
}

/// Another template is another request, also where the API server was asked about it for another gang.
#[test]
fn a_gang_that_waits_takes_what_is_known_of_its_new_template() {
    let mut table = Table::new(1);
    let cpu = |cpu: &str| json!({ "containers": [{ "name": "trainer", "resources": { "requests": { "cpu": cpu } } }] });
    table.submit("small", 1);
    table.edit_gang("small", |gang| gang["spec"]["roles"][0]["template"]["spec"] = cpu("1"));
    table.settle(5_000);
    table.submit("gang", 1);
    table.edit_gang("gang", |gang| gang["spec"]["roles"][0]["template"]["spec"] = cpu("8"));
    table.settle(5_000);
    assert_eq!(table.gangs["gang"]["status"]["reason"], "NoNodeFits", "{}", table.gangs["gang"]["status"]);
    table.edit_gang("gang", |gang| gang["spec"]["roles"][0]["template"]["spec"] = cpu("1"));
    table.settle(20_000);
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
}

/// A gang over which the operator fails holds no place for a plan that is never written.
#[test]
fn a_gang_that_rests_takes_no_place_from_others() {
    let mut table = Table::new(1);
    table.submit("first", 1);
    table.settle(2_000);
    table.submit("faulty", 1);
    table.settle(2_000);
    // A time that no sum holds.
    let faulty = ObjectKey::new("space", "faulty");
    table.core.gangs.get_mut(&faulty).unwrap().reported = Millis::MAX;
    table.edit_gang("faulty", |gang| gang["metadata"]["labels"] = json!({ "a": "b" }));
    let quota = json!({
        "metadata": { "name": "pods", "namespace": "space" },
        "spec": { "hard": { "pods": "0" } }, "status": { "used": { "pods": "0" } },
    });
    table.tell(Event::Quota(Change::Set(serde_json::from_value(quota.clone()).unwrap())));
    table.settle(2_000);
    assert_eq!(table.core.counters().tripped, 1, "{}", table.gangs["faulty"]["status"]);
    table.tell(Event::Quota(Change::Gone(ObjectKey::new("space", "pods"), Uid("pods".into()))));
    table.submit("other", 1);
    table.settle(2_000);
    table.edit_gang("first", |gang| gang["spec"]["suspend"] = json!(true));
    table.settle(60_000);
    assert!(table.plan("other").is_some(), "{}", table.gangs["other"]["status"]);
}

/// Roles may change places in the specification: the pods are those of their roles all the same, for the next leader too.
#[test]
fn roles_that_change_places_lose_no_pod() {
    let mut table = Table::new(4);
    let role = |name: &str| {
        let container = json!({ "name": "trainer", "resources": { "requests": { "cpu": "4" } } });
        json!({
            "name": name, "units": { "min": 2, "max": 2 },
            "template": { "spec": { "containers": [container] } },
        })
    };
    let roles = json!([role("worker"), role("writer")]);
    table.submit_with("gang", 2, &json!({ "roles": roles, "outcome": { "policy": "Never" } }));
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    let disturbs = |want: &Want| matches!(want, Want::EndPod { .. } | Want::CreatePod { .. });
    table.edit_gang("gang", |gang| gang["spec"]["roles"].as_array_mut().unwrap().reverse());
    let asked = table.settle(60_000);
    assert_eq!(count(&asked, disturbs), 0, "{asked:?}");
    table.core = Core::new(Config::default(), 2);
    table.asked.clear();
    for at in 0..4 {
        table.tell(Event::Node(Change::Set(node(at, true))));
    }
    table.show("gang");
    table.run_all();
    table.core.start();
    let asked = table.settle(60_000);
    assert_eq!((count(&asked, disturbs), table.pods.len()), (0, 4), "{}", table.gangs["gang"]["status"]);
    // One that is lost is made anew under its role's name.
    table.end(&table.first_pod(), 1);
    table.settle(60_000);
    assert_eq!(table.pods.len(), 4, "{:?}", table.pods.keys());
}

/// That the queue of a gang in force is gone is said of its specification, until it is back; once each.
#[test]
fn a_queue_that_comes_back_makes_a_specification_valid_again() {
    let mut table = Table::new(1);
    table.apply(Kind::Queue, "team", &json!({}));
    table.submit_with("gang", 1, &json!({ "queue": "team" }));
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    let valid = |table: &Table| {
        let conditions = table.gangs["gang"]["status"]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "Valid").unwrap()["status"].clone()
    };
    let writes = |want: &Want| matches!(want, Want::WriteGang { .. });
    table.tell(Event::Queue(Change::Gone(ObjectKey::new("", "team"), Uid("team".into()))));
    let gone = count(&table.settle(60_000), writes);
    assert_eq!((valid(&table), gone, table.pods.len()), (json!("False"), 1, 1));
    table.show_other(Kind::Queue, "team");
    let back = count(&table.settle(60_000), writes);
    assert_eq!((valid(&table), back, table.pods.len()), (json!("True"), 1, 1));
}

/// Roles may come and go once no plan is in force, while pods of the last one are still there: they are the gang's, and go.
#[test]
fn pods_of_roles_that_are_gone_go_too() {
    let mut table = Table::new(4);
    let role = |name: &str| {
        let container = json!({ "name": "trainer", "resources": { "requests": { "cpu": "4" } } });
        json!({
            "name": name, "units": { "min": 1, "max": 1 },
            "template": { "spec": { "containers": [container] } },
        })
    };
    let roles = json!([role("worker"), role("driver")]);
    table.submit_with("gang", 2, &json!({ "roles": roles, "outcome": { "policy": "Never" } }));
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    table.edit_gang("gang", |gang| gang["spec"]["suspend"] = json!(true));
    let freed = table.until(|want| matches!(want, Want::WriteGang { .. }));
    table.perform(&freed.want);
    assert_eq!((table.plan("gang"), table.pods.len()), (None, 2));
    // The leader dies, and the next finds other roles.
    table.core = Core::new(Config::default(), 2);
    table.asked.clear();
    for at in 0..4 {
        table.tell(Event::Node(Change::Set(node(at, true))));
    }
    table.edit_gang("gang", |gang| {
        gang["spec"]["roles"] = json!([role("worker")]);
        gang["spec"]["suspend"] = json!(false);
    });
    table.run_all();
    table.core.start();
    table.settle(60_000);
    assert_eq!(table.pods.keys().collect::<Vec<_>>(), ["gang-uid-ga-0-2-0"]);
}
