//! Pods that do not start, servers that fail for long, ends.

use super::*;

/// A server that fails for minutes in the midst of a creation: the tries grow seldom, and the nodes are given back.
#[test]
fn creations_that_fail_for_minutes_give_the_nodes_back() {
    let mut table = Table::new(2);
    table.submit("gang", 2);
    let mut first = true;
    let mut tries = 0;
    let (mut given_back, mut told) = (Vec::new(), String::new());
    let until = table.now + 420_000;
    while table.now < until {
        table.pass(10);
        for ticket in std::mem::take(&mut table.asked) {
            let outcome = if is_creation(&ticket.want) && !std::mem::take(&mut first) {
                tries += 1;
                Outcome::Transient("webhook timed out".into())
            } else {
                if let Want::WriteGang { status, .. } = &*ticket.want
                    && status.plan.is_none()
                {
                    given_back.push((status.reason.clone(), status.message.clone().unwrap_or_default()));
                } else if let Want::WriteGang { status, .. } = &*ticket.want
                    && given_back.is_empty()
                {
                    told = status.message.clone().unwrap_or_default();
                }
                table.perform(&ticket.want)
            };
            table.answer(&ticket, outcome);
        }
    }
    assert!(tries < 60, "{tries} tries in seven minutes");
    assert!(told.contains("none can be created: webhook timed out"), "meanwhile it says: {told}");
    let (reason, message) = &given_back[0];
    assert_eq!(reason.as_deref(), Some("NotStarting"));
    assert!(message.contains("webhook timed out"), "{message}");
    assert_eq!(table.gangs["gang"]["status"]["lastGeneration"], 2, "after a while it is tried again");
    assert!(table.pods.is_empty(), "the part that was created went");
}

/// A status that is refused after an attempt without an answer is looked up, not tried for ever.
#[test]
fn a_status_that_is_refused_for_good_is_not_tried_for_ever() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let plan = table.until(|want| is_plan(want, "gang"));
    table.answer(&plan, Outcome::Transient("no answer".into()));
    let mut writes = 0;
    // A server may be at work on the first attempt for a minute.
    let until = table.now + 120_000;
    while table.now < until {
        table.pass(10);
        for ticket in std::mem::take(&mut table.asked) {
            let outcome = match &*ticket.want {
                want if is_plan(want, "gang") => {
                    writes += 1;
                    Outcome::Refused("status.plan: too large".into())
                }
                Want::ReadGang { gang } => {
                    Outcome::Gang(Box::new(serde_json::from_value(table.gangs[&gang.name].clone()).unwrap()))
                }
                want => table.perform(want),
            };
            table.answer(&ticket, outcome);
        }
    }
    assert!((2..=16).contains(&writes), "{writes} writes in two minutes");
    let status = &table.gangs["gang"]["status"];
    assert!(status["message"].as_str().unwrap_or_default().contains("status.plan: too large"), "{status}");
    // Its place is not held meanwhile.
    table.submit("next", 1);
    table.settle_but(30_000, |want| is_plan(want, "gang").then(|| Outcome::Refused("too large".into())));
    assert!(table.plan("next").is_some(), "{}", table.gangs["next"]["status"]);
}

/// Between a failure and the restart after it, the status says when it starts again, and not that all pods run.
#[test]
fn during_the_delay_before_a_restart_the_status_says_so() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    table.settle(2_000);
    for _ in 0..2 {
        table.run_all();
        table.settle(5_000);
        let pod = table.first_pod();
        table.end(&pod, 1);
        table.pods.remove(&pod);
        table.settle(3_000);
    }
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Placed"), &json!("Recovering")), "{status}");
    assert!(status["message"].as_str().unwrap().contains("exit code 1"), "{status}");
}

/// The status of a pod with one container that ended beside others, as a kubelet writes it.
fn containers(phase: &str, inits: &Value, states: &Value) -> Value {
    let list = |states: &Value| {
        let states = states.as_object().into_iter().flatten();
        let status = |(name, state): (&String, &Value)| json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        states.map(status).collect::<Vec<_>>()
    };
    json!({
        "phase": phase, "startTime": "2026-01-01T00:00:00Z",
        "initContainerStatuses": list(inits), "containerStatuses": list(states),
    })
}

fn exit(code: i32) -> Value {
    json!({ "terminated": { "exitCode": code, "startedAt": "2026-01-01T00:00:01Z", "reason": "Error" } })
}

fn waits(reason: &str, message: &str) -> Value {
    json!({ "waiting": { "reason": reason, "message": message } })
}

/// The only pod that there is shows a status.
fn show_pod(table: &mut Table, status: Value) {
    let (name, body) = table.pods.first_key_value().map(|(name, body)| (name.clone(), body.clone())).unwrap();
    table.tell(Event::Pod(Change::Set(with_status(&body, &name, status))));
}

/// An image that cannot be pulled: the job names the pod, its node and the kubelet's words, and does not hold the node for
/// ever. Its deadline counts from when it holds accelerators, whether or not it ever starts.
#[test]
fn a_pod_that_does_not_start_says_why_and_gives_its_node_back() {
    let stuck = |spec: &Value, time: Millis| {
        let mut table = Table::new(1);
        table.submit_job_with("job", "uid", 1, spec);
        table.settle(2_000);
        let image = json!({ "trainer": waits("ErrImagePull", "no such image") });
        show_pod(&mut table, containers("Pending", &json!({}), &image));
        table.settle(time);
        let status = table.jobs["job"]["status"].clone();
        (table, status)
    };
    let (mut table, status) = stuck(&json!({}), 60_000);
    let message = status["message"].as_str().unwrap();
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Starting"), &json!("NotStarting")),
        "{status}"
    );
    for words in ["0 of 1 pods run", &table.first_pod(), "node-0", "ErrImagePull", "no such image"] {
        assert!(message.contains(words), "{words:?}: {message}");
    }
    table.settle(65_000);
    let status = &table.jobs["job"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Pending"), &json!("NotStarting")), "{status}");
    assert!(status["message"].as_str().unwrap().contains("no such image"), "{status}");
    assert!(table.pods.is_empty() && table.plan("job").is_none(), "it holds a node");
    table.settle(30_000);
    assert!(table.plan("job").is_some(), "after a while it is tried again");

    let (_, status) = stuck(&json!({ "activeDeadline": "40s" }), 45_000);
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Failed"), &json!("DeadlineExceeded")),
        "{status}"
    );
}

/// A gang of one pod with an init container, and a second container beside the program.
fn two_containers(table: &mut Table) {
    let role = json!([{
        "name": "worker", "units": { "min": 1, "max": 1 },
        "template": { "spec": {
            "initContainers": [{ "name": "fetch" }],
            "containers": [{ "name": "trainer", "resources": { "requests": { "cpu": "4" } } }, { "name": "proxy" }],
        } },
    }]);
    table.submit_with("gang", 1, &json!({ "roles": role }));
    table.settle(2_000);
}

/// How the program ends is how its gang does, whatever runs on beside it: no accelerator is held for a proxy.
#[test]
fn the_programs_end_is_the_gangs_while_another_container_runs_on() {
    let runs = json!({ "running": { "startedAt": "2026-01-01T00:00:01Z" } });
    for (code, phase, restarts) in [(0, "Succeeded", 0), (1, "Placed", 1)] {
        let mut table = Table::new(1);
        two_containers(&mut table);
        let first = table.first_pod();
        show_pod(&mut table, containers("Running", &json!({}), &json!({ "trainer": runs, "proxy": runs })));
        table.settle(3_000);
        show_pod(
            &mut table,
            containers("Running", &json!({}), &json!({ "trainer": exit(code), "proxy": runs })),
        );
        table.settle(60_000);
        let status = &table.gangs["gang"]["status"];
        assert_eq!(
            (&status["phase"], &status["restartsTotal"]),
            (&json!(phase), &json!(restarts)),
            "{status}"
        );
        assert!(!table.pods.contains_key(&first), "code {code}: the old pod keeps its node");
    }
}

/// An init container that fails is the program's failure: it is named, counted and started again where it was.
#[test]
fn an_init_container_that_fails_costs_no_node() {
    let mut table = Table::new(2);
    two_containers(&mut table);
    let plan = table.plan("gang");
    let waits = waits("PodInitializing", "");
    let failed =
        containers("Failed", &json!({ "fetch": exit(1) }), &json!({ "trainer": waits, "proxy": waits }));
    show_pod(&mut table, failed);
    table.settle(1_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!(
        (status["restarts"][0]["cause"].as_str(), table.plan("gang")),
        (Some("ApplicationFailed"), plan)
    );
    assert!(status["message"].as_str().unwrap().contains("init container fetch: exit code 1"), "{status}");
}

/// A pod is deleted and then let go. That it leaves and has our finalizer still is seen in between, and nothing is asked
/// twice for it.
#[test]
fn a_pod_that_is_being_let_go_is_not_let_go_again() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    table.settle(5_000);
    table.run_all();
    table.settle(5_000);
    let pod = table.first_pod();
    let body = table.pods[&pod].clone();
    table.edit_gang("gang", |gang| gang["spec"]["suspend"] = json!(true));
    let ends = |want: &Want| matches!(want, Want::EndPod { .. });
    let ticket = table.until(ends);
    assert!(
        matches!(&*ticket.want, Want::EndPod { delete: Some(false), release: Some(0), .. }),
        "{ticket:?}"
    );
    table.tell(Event::Pod(Change::Set(leaving(&body, &pod))));
    table.pass(1_000);
    table.answer(&ticket, Outcome::Done { version: None, uid: None });
    let asked = table.settle(60_000);
    assert_eq!(count(&asked, ends), 0, "{asked:?}");
}

/// Two clocks that are read one after the other differ by a little each time: a time of the day in a status stays what it
/// was.
#[test]
fn clocks_that_tremble_write_nothing() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    table.answer(&creation, Outcome::Transient("no answer".into()));
    let since = table.core.gangs.values().next().unwrap().life.holding().unwrap().pause.since;
    let fails = |want: &Want| is_creation(want).then(|| Outcome::Transient("no answer".into()));
    let offset = 1_700_000_000_000 - since % 1_000;
    table.core.set_wall_offset(offset);
    table.settle_but(60_000, fails);
    let mut writes = 0;
    for at in 0..60 {
        table.core.set_wall_offset(offset - at % 2);
        let asked = table.settle_but(2_000, fails);
        writes += count(&asked, |want| matches!(want, Want::WriteGang { .. }));
    }
    assert!(writes <= 1, "{writes} writes in two minutes");
}
