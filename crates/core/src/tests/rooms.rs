//! Room on nodes: who waits for it, and whose it is while a pod is in doubt.

use super::*;

/// A pod that waits for the room of an old one is looked at when something of its node changes, and not before: a dead
/// node's pods may hang for minutes.
#[test]
fn waiting_for_room_costs_nothing() {
    let mut table = Table::new(2);
    table.submit("gang", 2);
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    let old: Vec<(String, Vec<u8>)> = table.pods.clone().into_iter().collect();
    let hangs = |want: &Want| {
        matches!(want, Want::EndPod { .. }).then_some(Outcome::Done { version: None, uid: None })
    };
    table.end(&old[0].0, 1);
    table.tell(Event::Pod(Change::Set(leaving(&old[1].1, &old[1].0))));
    table.settle_but(5_000, hangs);
    assert_eq!(table.gangs["gang"]["status"]["lastGeneration"], 2, "{}", table.gangs["gang"]["status"]);
    let mut turns = 0;
    for _ in 0..10_000 {
        table.now += 1;
        if table.core.next_wake().is_some_and(|due| due <= table.now) {
            turns += 1;
            table.core.advance(table.now);
            for ticket in table.core.take(table.now) {
                let outcome = hangs(&ticket.want).unwrap_or_else(|| table.perform(&ticket.want));
                table.answer(&ticket, outcome);
            }
        }
    }
    assert!(turns < 30, "{turns} turns in ten seconds");
    // When it lasts, the status says so, once.
    let asked = table.settle_but(90_000, hangs);
    let status = &table.gangs["gang"]["status"];
    let message = status["message"].as_str().unwrap();
    assert_eq!(status["reason"], "NotStarting", "{status}");
    assert!(message.contains("room on node node-1") && message.contains("out-of-service"), "{message}");
    assert_eq!(count(&asked, |want| matches!(want, Want::WriteGang { .. })), 1, "{asked:?}");
    // It has the place as soon as that is free.
    table.tell(Event::Pod(Change::Gone(ObjectKey::new("space", old[1].0.clone()), Uid(old[1].0.clone()))));
    let asked = table.settle(100);
    assert_eq!(count(&asked, is_creation), 1, "{asked:?}");
}

/// A pod of somebody else on a node.
fn foreign(name: &str, on: &str) -> SeenPod {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "space", "uid": name },
        "spec": { "nodeName": on, "containers": [{ "name": "it", "resources": { "requests": { "cpu": "4" } } }] },
        "status": { "phase": "Running" },
    }))
    .unwrap()
}

/// A pod whose creation got no answer is there although another took the room meanwhile: it waits for none, and once it
/// runs the status says so.
#[test]
fn a_pod_that_is_there_waits_for_no_room() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let creation = table.until(is_creation);
    let Want::CreatePod { pod, body, .. } = Want::clone(&creation.want) else { unreachable!() };
    table.answer(&creation, Outcome::Transient("no answer".into()));
    table.tell(Event::Pod(Change::Set(foreign("other", "node-0"))));
    let asked = table.settle(50_000);
    assert_eq!(count(&asked, is_creation), 0, "{asked:?}");
    assert!(table.gangs["gang"]["status"]["message"].as_str().unwrap().contains("waits for room"));
    // The watch was late.
    table.tell(Event::Pod(Change::Set(running(&body, &pod.name))));
    table.settle(60_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Running"), &json!("Running")), "{status}");
}

/// A creation without an answer may have been done. When its plan is over meanwhile, nobody asks again, and its node is not
/// free for others before the pod must have been seen.
#[test]
fn a_pod_that_may_have_been_created_keeps_its_room() {
    let mut table = Table::new(1);
    table.submit("gang", 1);
    let late = table.until(is_creation);
    table.edit_gang("gang", |gang| gang["spec"]["suspend"] = json!(true));
    table.settle(5_000);
    table.answer(&late, Outcome::Transient("timed out".into()));
    table.submit("next", 1);
    assert_eq!(count(&table.settle(30_000), is_creation), 0, "the pod may be there");
    assert_eq!(count(&table.settle(90_000), is_creation), 1, "it never was");
}
