//! Pods that do not start, servers that fail for long, ends.

use super::*;

/// A server that fails for minutes in the midst of a creation: the tries grow seldom, and the nodes are given back.
#[test]
fn creations_that_fail_for_minutes_give_the_nodes_back() {
    let mut table = Table::new(2);
    table.submit("gang", 2);
    let mut first = true;
    let mut tries = 0;
    let mut given_back = Vec::new();
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
                }
                table.perform(&ticket.want)
            };
            table.answer(&ticket, outcome);
        }
    }
    assert!(tries < 60, "{tries} tries in seven minutes");
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
    let until = table.now + 60_000;
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
    assert!((2..=16).contains(&writes), "{writes} writes in a minute");
    // Its place is not held meanwhile.
    table.submit("next", 1);
    table.settle_but(30_000, |want| is_plan(want, "gang").then(|| Outcome::Refused("too large".into())));
    assert!(table.plan("next").is_some(), "{}", table.gangs["next"]["status"]);
}

/// A pod that the server made and that was never seen is lost once everything newer was: nothing waits for it for ever.
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
