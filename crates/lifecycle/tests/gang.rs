//! A gang's life, as tables: what is committed, what is seen, what comes next.

use muster_lifecycle::Now;
use muster_lifecycle::gang::{
    Ask, Cause, Committed, Facts, Freed, How, Life, Move, Next, Outcome, Patience, PodState, RoleTerms,
    Sight, Stage, Standing, Terms, Trouble,
};
use muster_lifecycle::recovery::{PodEnd, Policy};
use muster_model::plan::{PlacedUnit, Placement};
use muster_model::{NodeName, Plan, Reason, RecoveryStep, Slot, Uid, UnitId};
use std::collections::BTreeSet;

fn unit(index: u32) -> UnitId {
    UnitId { role: "worker".into(), index }
}

fn placement(nodes: &[&str]) -> Placement {
    let units = nodes.iter().enumerate().map(|(at, node)| PlacedUnit {
        id: unit(at as u32),
        class: None,
        nodes: vec![NodeName::from(*node)],
    });
    Placement { units: units.collect(), ..Placement::default() }
}

fn plan(generation: u64, nodes: &[&str]) -> Plan {
    Plan::next(None, generation, placement(nodes), &BTreeSet::new(), true)
}

fn terms(units: u32) -> Terms {
    Terms {
        outcome: Outcome::Pod { role: "worker".into(), unit: 0, index: 0 },
        policy: Policy::default(),
        whole: true,
        roles: vec![RoleTerms {
            name: "worker".into(),
            pods_per_unit: 1,
            min: 1,
            max: units,
            valid: Vec::new(),
            revision: "1".into(),
            held: false,
        }],
        ..Terms::default()
    }
}

fn placed(generation: u64, nodes: &[&str]) -> Committed {
    Committed {
        standing: Standing::Placed,
        plan: Ok(Some(plan(generation, nodes))),
        last_generation: generation,
        ..Committed::default()
    }
}

fn next(life: &mut Life, terms: &Terms, at: i64) -> Next {
    let facts = Facts { unsound: None, cannot: &|_, _| None, reshaped: false };
    life.next(terms, &facts, &Patience::default(), Now { at, wall: at })
}

fn see(life: &mut Life, index: u32, state: PodState, code: Option<i32>, at: i64) {
    let uid = Uid(format!("pod-{index}"));
    let incarnation = life.plan().map_or(0, |plan| plan.units[index as usize].incarnation);
    let slot = Slot { unit: unit(index), incarnation, index: 0 };
    let sight = Sight {
        uid: &uid,
        name: "pod",
        node: None,
        state,
        admitted: true,
        ready: true,
        end: PodEnd { started: true, exit_code: code, ..PodEnd::default() },
        waits: String::new(),
    };
    life.observe(&slot, &sight, at);
}

/// From nothing to an end: a stage begins when its status is on the server, not when it is decided.
#[test]
fn a_gang_lives_by_what_is_committed() {
    let terms = terms(2);
    let mut life = Life::new(Committed::default(), 0);
    assert_eq!(life.asks(&terms, true), Ask::Place);
    assert_eq!(life.asks(&terms, false), Ask::Nothing, "something else keeps it from being placed");
    assert!(life.decided(&terms, placement(&["a", "b"]), How::Fresh));
    let Next::Commit(Move::Put(put)) = next(&mut life, &terms, 1) else { panic!("a plan is put in force") };
    assert_eq!((put.plan.generation, &put.cause), (1, &Cause::First));
    assert!(life.waiting().is_some(), "decided is not committed");
    assert_eq!(life.asks(&terms, true), Ask::AsBefore);
    life.commit(placed(1, &["a", "b"]), 2);
    assert!(life.holding().is_some_and(|holding| holding.creates() && holding.slots.tally().missing == 2));
    for index in 0..2 {
        see(&mut life, index, PodState::Running, None, 3);
    }
    assert_eq!(next(&mut life, &terms, 4), Next::Report);
    see(&mut life, 0, PodState::Succeeded, Some(0), 5);
    let Next::Commit(Move::End { well: true, .. }) = next(&mut life, &terms, 6) else { panic!("it ended") };
    life.commit(Committed { standing: Standing::Ended, ..placed(1, &["a", "b"]) }, 7);
    assert!(matches!(life.stage(), Stage::Ended(_)));
    assert_eq!((next(&mut life, &terms, 8), life.asks(&terms, true)), (Next::Rest, Ask::Nothing));
}

/// Whatever a stage knew is gone when it ends: waits for room, troubles, decisions.
#[test]
fn nothing_outlives_its_stage() {
    let terms = terms(2);
    let mut life = Life::new(placed(1, &["a", "b"]), 0);
    let holding = life.holding_mut().unwrap();
    holding.block(&NodeName::from("a"), 1);
    holding.pause.fail(1);
    life.broken(Reason::PodRefused { message: "quota".into() });
    life.commit(placed(2, &["a", "b"]), 2);
    let holding = life.holding().unwrap();
    assert!(holding.blocked.is_empty() && holding.broken.is_none() && holding.pause.until == 0);
    // A decision that a deletion overtakes is dropped with the stage.
    see(&mut life, 1, PodState::Running, None, 3);
    life.lose_node(&NodeName::from("b"), "is gone");
    assert_eq!(next(&mut life, &terms, 4), Next::Rest, "the engine is asked");
    assert!(life.decided(&terms, placement(&["a", "c"]), How::Replaced));
    assert!(matches!(life.holding().unwrap().trouble, Trouble::Decided(_)));
    life.leave();
    assert_eq!((next(&mut life, &terms, 5), life.asks(&terms, true)), (Next::Rest, Ask::Nothing));
    // A plan that cannot be read is no state: once it is given back, the gang waits.
    let mut life = Life::new(Committed { plan: Err("a part is missing".into()), ..placed(3, &["a"]) }, 0);
    let Next::Commit(Move::Free(Freed::Unreadable(_))) = next(&mut life, &terms, 1) else {
        panic!("given back")
    };
    life.commit(Committed { last_generation: 3, ..Committed::default() }, 2);
    assert_eq!((next(&mut life, &terms, 3), life.asks(&terms, true)), (Next::Rest, Ask::Place));
}

/// A refusal is what the gang waits for until something else is known; it is consumed by the write that it leads to, and
/// by nothing before.
#[test]
fn a_refusal_lasts_until_it_is_committed() {
    let terms = Terms {
        policy: Policy {
            ladder: vec![RecoveryStep::ReplaceNode, RecoveryStep::Requeue],
            ..Policy::default()
        },
        ..terms(2)
    };
    let mut life = Life::new(placed(1, &["a", "b"]), 0);
    for index in 0..2 {
        see(&mut life, index, PodState::Running, None, 1);
    }
    life.lose_node(&NodeName::from("b"), "is gone");
    next(&mut life, &terms, 2);
    assert!(matches!(life.asks(&terms, true), Ask::Replace(..)));
    assert!(life.refused(Reason::NotFound { states: 1 }));
    for at in 3..6 {
        // The status write may conflict as often as it likes.
        let Next::Commit(Move::Free(Freed::Lost(..))) = next(&mut life, &terms, at) else {
            panic!("requeued")
        };
        life.drop_decision();
    }
    life.commit(Committed { last_generation: 1, ..Committed::default() }, 7);
    assert!(life.waiting().is_some_and(|waiting| waiting.refusal.is_none()));
}

/// A pod that was given up with its node and had ended well before is done; one that failed stays lost.
#[test]
fn a_pod_that_had_ended_well_is_done() {
    for (state, code, done) in [(PodState::Succeeded, 0, 1), (PodState::Failed, 1, 0)] {
        let mut life = Life::new(placed(1, &["a"]), 0);
        see(&mut life, 0, PodState::Running, None, 1);
        life.lose_node(&NodeName::from("a"), "is silent");
        see(&mut life, 0, state, Some(code), 2);
        let tally = life.slots().unwrap().tally();
        assert_eq!((tally.done, tally.lost), (done, 1 - done));
    }
}

/// Pods that were all created and are not there when a leader begins are lost, but for those known to have ended well.
#[test]
fn what_is_missing_at_the_start_is_lost() {
    let committed = Committed { launched: true, done: [1].into(), ..placed(1, &["a", "b", "c"]) };
    let mut life = Life::new(committed, 0);
    see(&mut life, 0, PodState::Running, None, 1);
    life.start();
    let tally = life.slots().unwrap().tally();
    assert_eq!((tally.running, tally.done, tally.lost), (1, 1, 1));
}

/// A creation that the server confirmed is lost once everything newer was seen without it.
#[test]
fn a_pod_that_nobody_saw_is_lost_once_all_newer_ones_were_seen() {
    let mut life = Life::new(placed(1, &["a", "b"]), 0);
    let slot = |index| Slot { unit: unit(index), incarnation: 1, index: 0 };
    let slots = life.slots_mut().unwrap();
    slots.ask(&slot(0));
    slots.ask(&slot(1));
    slots.made(&slot(0), Some(10));
    slots.made(&slot(1), Some(30));
    assert_eq!(slots.seen_up_to(20), [slot(0)]);
    assert_eq!((slots.tally().asked, slots.tally().lost), (1, 1));
}

/// Nobody waits for ever for pods to start: an error that a kubelet names has a short limit, all else a long one.
#[test]
fn pods_that_do_not_start_give_their_nodes_back() {
    let patience = Patience::default();
    let starts = |waits: &str, at: i64| {
        let mut life = Life::new(placed(1, &["a"]), 0);
        let uid = Uid("pod".into());
        let slot = Slot { unit: unit(0), incarnation: 1, index: 0 };
        let sight = Sight {
            uid: &uid,
            name: "pod",
            node: None,
            state: PodState::Pending,
            admitted: true,
            ready: false,
            end: PodEnd::default(),
            waits: waits.into(),
        };
        life.observe(&slot, &sight, 0);
        life.look(&patience, at);
        let holding = life.holding().unwrap();
        (holding.broken.clone().map(|reason| reason.to_string()), holding.slots.tally().lost)
    };
    let image = "ErrImagePull: no such image";
    assert_eq!(starts(image, patience.errors - 1), (None, 0));
    let (broken, _) = starts(image, patience.errors);
    assert!(broken.is_some_and(|words| words.contains(image)));
    assert_eq!(starts("", patience.start - 1), (None, 0));
    assert_eq!(starts("", patience.start), (None, 1), "another node may do");
}

/// A pod that nobody takes in is given up with the reason of whoever does not: kube-scheduler's, where it binds.
#[test]
fn a_pod_that_nobody_takes_in_is_lost_with_their_words() {
    let patience = Patience::default();
    let mut life = Life::new(placed(1, &["a"]), 0);
    let uid = Uid("pod".into());
    let words = "Unschedulable: 0/1 nodes are available";
    let sight = Sight {
        uid: &uid,
        name: "pod",
        node: None,
        state: PodState::Pending,
        admitted: false,
        ready: false,
        end: PodEnd::default(),
        waits: words.into(),
    };
    life.observe(&Slot { unit: unit(0), incarnation: 1, index: 0 }, &sight, 0);
    life.look(&patience, patience.admit - 1);
    assert_eq!(life.slots().unwrap().tally().lost, 0);
    life.look(&patience, patience.admit);
    let (_, loss) = life.slots().unwrap().lost().next().unwrap();
    assert!(loss.message.contains(words), "{}", loss.message);
}

/// Each cause has its word, and only losses of the job's own count.
#[test]
fn only_losses_count_against_the_budget() {
    let others = [
        Cause::First,
        Cause::Grow,
        Cause::Give { to: Uid("other".into()) },
        Cause::Move,
        Cause::Rollout { revision: "2".into() },
        Cause::Resize,
    ];
    let words: BTreeSet<&str> = others.iter().map(Cause::reason).collect();
    assert_eq!(words.len(), others.len(), "each has a word of its own");
    assert!(others.iter().all(|cause| cause.counts_as().is_none() && !cause.warns()));
}

/// Which template a unit's pods are made from changes only when they start anew, and not while the newer one needs another
/// place; a new placement takes it in any case.
#[test]
fn a_unit_keeps_its_revision_until_it_starts_anew() {
    let with = |revision: &str, held: bool| {
        let mut terms = Terms { whole: false, outcome: Outcome::Never, ..terms(2) };
        terms.roles[0].revision = revision.into();
        terms.roles[0].held = held;
        terms
    };
    let revisions = |plan: &Plan| plan.units.iter().map(|unit| unit.revision.clone()).collect::<Vec<_>>();
    for (now, cause, expected) in [
        (with("2", false), "loss", ["1", "2"]),
        (with("2", true), "loss", ["1", "1"]),
        (with("2", true), "first", ["2", "2"]),
    ] {
        let mut life = Life::new(Committed::default(), 0);
        assert!(life.decided(&with("1", false), placement(&["a", "b"]), How::Fresh));
        let Next::Commit(Move::Put(put)) = next(&mut life, &now, 1) else { panic!("a plan is put in force") };
        assert_eq!(revisions(&put.plan), ["1", "1"]);
        if cause == "first" {
            life.drop_decision();
            assert!(life.decided(&now, placement(&["a", "b"]), How::Fresh));
        } else {
            let committed = Committed { plan: Ok(Some(put.plan)), ..placed(1, &["a", "b"]) };
            life.commit(committed, 2);
            see(&mut life, 0, PodState::Running, None, 3);
            see(&mut life, 1, PodState::Failed, Some(1), 3);
        }
        let Next::Commit(Move::Put(put)) = next(&mut life, &now, 4) else {
            panic!("another plan is put in force")
        };
        assert_eq!(revisions(&put.plan), expected, "{cause} under {:?}", now.roles[0]);
    }
}
