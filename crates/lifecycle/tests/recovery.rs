//! Faults, the ladder, the budget and the delays.

use muster_lifecycle::recovery::{
    self, Case, FIRST_DELAY, Fault, KEPT, LONGEST_DELAY, LostPod, MISFIT_WINDOW, MISFITS_KEPT, Misfit,
    PodEnd, Policy, QUIET, REFUSALS, Spent, Verdict, bound, classify, remember, within_window,
};
use muster_model::{Millis, NodeName, Reason, RecoveryStep, RecoveryStep as Step, UnitId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const NOW: Millis = 1_800_000_000_000;
const FAULTS: [Fault; 9] = [
    Fault::DoNotRequeue,
    Fault::NodeLost,
    Fault::DeviceUnhealthy,
    Fault::Preempted,
    Fault::Evicted,
    Fault::Misfit,
    Fault::PodDeleted,
    Fault::OutOfMemory,
    Fault::Application,
];

fn unit(index: u32) -> UnitId {
    UnitId { role: "worker".into(), index }
}

fn lost(index: u32, fault: Fault) -> LostPod {
    LostPod {
        unit: unit(index),
        node: NodeName::from(format!("n{index}")),
        fault,
        refusal: String::new(),
        message: format!("pod {index} ended"),
        exit_code: Some(1),
    }
}

/// A pod that a kubelet did not take.
fn refused(node: &str, refusal: &str) -> LostPod {
    LostPod {
        node: node.into(),
        refusal: refusal.into(),
        message: format!("pod a failed on node {node} ({refusal})"),
        exit_code: None,
        ..lost(0, Fault::Misfit)
    }
}

fn once(at: Millis) -> Spent {
    Spent::once(at)
}

const NOWHERE: &BTreeMap<UnitId, String> = &BTreeMap::new();

fn case<'a>(restarts: &'a [Spent], lost: &'a [LostPod]) -> Case<'a> {
    Case { lost, restarts, misfits: &[], cannot: NOWHERE, pods: 4, others_run: false }
}

fn decide(policy: &Policy, restarts: &[Spent], lost: &[LostPod], now: Millis) -> Verdict {
    recovery::decide(policy, &case(restarts, lost), now)
}

fn ladder(steps: &[Step]) -> Policy {
    Policy { ladder: steps.to_vec(), ..Policy::default() }
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::RestartInPlace { .. } => "in place",
        Verdict::Replan { .. } => "replan",
        Verdict::Requeue { .. } => "requeue",
        Verdict::GiveUp { reason, .. } => reason,
        Verdict::TakeBack { .. } => "take back",
        Verdict::Wait { .. } => "wait",
        Verdict::Nothing => "nothing",
    }
}

#[test]
fn ends_are_classified() {
    // started, exit code, reason, disruption → fault
    let cases = [
        (true, Some(1), "Error", None, Fault::Application),
        (true, Some(143), "", None, Fault::Application),
        (true, Some(137), "OOMKilled", None, Fault::OutOfMemory),
        (true, Some(93), "Error", None, Fault::DoNotRequeue),
        (true, Some(93), "Error", Some("EvictionByEvictionAPI"), Fault::DoNotRequeue),
        (true, Some(137), "Evicted", Some("TerminationByKubelet"), Fault::Evicted),
        (true, Some(137), "Evicted", None, Fault::Evicted),
        (true, Some(137), "", Some("EvictionByEvictionAPI"), Fault::Evicted),
        (true, Some(137), "", Some("PreemptionByScheduler"), Fault::Preempted),
        (true, None, "", Some("DeletionByTaintManager"), Fault::NodeLost),
        (true, None, "", Some("DeletionByPodGC"), Fault::NodeLost),
        (true, None, "", Some("DeletionByDeviceTaintManager"), Fault::DeviceUnhealthy),
        (true, None, "", Some("ANewOne"), Fault::Evicted),
        (true, None, "NodeLost", None, Fault::NodeLost),
        (true, Some(137), "ContainerStatusUnknown", None, Fault::NodeLost),
        (true, None, "", None, Fault::NodeLost),
        (true, None, "UnexpectedAdmissionError", None, Fault::Misfit),
        (false, None, "OutOfnvidia.com/gpu", None, Fault::Misfit),
        (false, None, "WhateverKubeletsSayNext", None, Fault::Misfit),
        (false, None, "Evicted", Some("TerminationByKubelet"), Fault::Misfit),
        (false, None, "", Some("PreemptionByScheduler"), Fault::Preempted),
    ];
    for (started, exit_code, reason, disruption, fault) in cases {
        let end = PodEnd {
            started,
            exit_code,
            reason: reason.into(),
            disruption: disruption.map(ToOwned::to_owned),
            ..PodEnd::default()
        };
        assert_eq!(classify(&end), fault, "{end:?}");
    }
}

#[test]
fn a_leaving_pod_has_the_fault_that_its_disruption_names() {
    // started, disruption → fault
    let cases = [
        (true, Some("PreemptionByScheduler"), Fault::Preempted),
        (false, Some("PreemptionByScheduler"), Fault::Preempted),
        (true, Some("DeletionByTaintManager"), Fault::NodeLost),
        (true, Some("DeletionByPodGC"), Fault::NodeLost),
        (true, Some("DeletionByDeviceTaintManager"), Fault::DeviceUnhealthy),
        (true, Some("EvictionByEvictionAPI"), Fault::Evicted),
        (true, Some("ANewOne"), Fault::Evicted),
        (true, None, Fault::PodDeleted),
        (false, None, Fault::Misfit),
        (false, Some("DeletionByTaintManager"), Fault::Misfit),
    ];
    for (started, disruption, fault) in cases {
        let disruption = disruption.map(ToOwned::to_owned);
        let end = PodEnd { leaving: true, started, disruption, ..PodEnd::default() };
        assert_eq!(classify(&end), fault, "{end:?}");
        assert_eq!(end.refusal(), "", "no kubelet refused it");
    }
}

#[test]
fn an_init_container_that_fails_is_the_programs_fault_and_is_named() {
    let end = |exit_code: i32, reason: &str| PodEnd {
        started: true,
        exit_code: Some(exit_code),
        container: "fetch".into(),
        init: true,
        reason: reason.into(),
        message: "no such bucket".into(),
        ..PodEnd::default()
    };
    let cases = [
        (1, "Error", Fault::Application, "init container fetch: exit code 1"),
        (137, "OOMKilled", Fault::OutOfMemory, "init container fetch: OOMKilled, exit code 137"),
        (93, "Error", Fault::DoNotRequeue, "init container fetch: exit code 93"),
    ];
    for (code, reason, fault, words) in cases {
        let end = end(code, reason);
        assert_eq!(classify(&end), fault);
        assert_eq!(
            end.sentence("a-0", &"n1".into()),
            format!("pod a-0 failed on node n1 ({words}): no such bucket")
        );
    }
}

#[test]
fn what_a_kubelet_says_is_one_short_line() {
    let end = PodEnd { reason: "OutOfcpu".into(), message: "a\nb".repeat(10_000), ..PodEnd::default() };
    let sentence = end.sentence("a-0", &"n1".into());
    assert!(sentence.starts_with("pod a-0 failed on node n1 (OutOfcpu): a ba b"), "{sentence}");
    assert!(sentence.chars().count() < 500 && !sentence.contains('\n'), "{sentence}");
    assert_eq!(PodEnd { reason: "x".repeat(1_000), ..end }.refusal().chars().count(), 64);
}

#[test]
fn what_faults_mean() {
    let free: Vec<Fault> = FAULTS.into_iter().filter(|fault| !fault.counts()).collect();
    assert_eq!(free, [Fault::Preempted, Fault::Misfit]);
    let here: Vec<Fault> = FAULTS.into_iter().filter(|fault| !fault.moves()).collect();
    assert_eq!(here, [Fault::DoNotRequeue, Fault::PodDeleted, Fault::OutOfMemory, Fault::Application]);
    let mut causes: Vec<&str> = FAULTS.into_iter().map(Fault::cause).collect();
    causes.sort_unstable();
    causes.dedup();
    assert_eq!(causes.len(), FAULTS.len());
    assert!(FAULTS.is_sorted(), "the order of causes");
}

#[test]
fn the_ladder() {
    use Step::{ReplaceNode, Requeue, RestartInPlace, Shrink};
    let all = [RestartInPlace, ReplaceNode, Shrink, Requeue];
    let cases: [(&[Step], Fault, &str); 14] = [
        (&all, Fault::Application, "in place"),
        (&all, Fault::OutOfMemory, "in place"),
        (&all, Fault::PodDeleted, "in place"),
        (&all, Fault::NodeLost, "replan"),
        (&all, Fault::Evicted, "replan"),
        (&all, Fault::DoNotRequeue, "DoNotRequeue"),
        (&[RestartInPlace], Fault::Application, "in place"),
        (&[RestartInPlace], Fault::NodeLost, "NoStepLeft"),
        (&[RestartInPlace], Fault::Misfit, "replan"),
        (&[Shrink], Fault::Application, "replan"),
        (&[Requeue], Fault::Application, "requeue"),
        (&[RestartInPlace, Requeue], Fault::NodeLost, "requeue"),
        (&[], Fault::Application, "ApplicationFailed"),
        (&[], Fault::Misfit, "replan"),
    ];
    for (steps, fault, expected) in cases {
        let verdict = decide(&ladder(steps), &[], &[lost(0, fault)], NOW);
        assert_eq!(name(&verdict), expected, "{steps:?} {fault:?}: {verdict:?}");
    }
}

#[test]
fn the_cause_is_judged_and_only_its_units_move() {
    let many = [lost(0, Fault::Application), lost(2, Fault::NodeLost), lost(3, Fault::Application)];
    let Verdict::Replan { lost: moved, steps, about } = decide(&Policy::default(), &[], &many, NOW) else {
        panic!("a lost node asks for another")
    };
    assert_eq!(moved, [unit(2)].into());
    assert_eq!(steps, [Step::ReplaceNode, Step::Shrink, Step::Requeue]);
    assert_eq!((about.cause, about.counts), ("NodeLost", true));
    assert_eq!(about.message(), "pod 2 ended; other nodes are looked for (restart 1 of 20 within 24h)");
}

#[test]
fn what_is_no_fault_of_the_job_costs_no_budget() {
    let policy = Policy { max_restarts: 0, ..Policy::default() };
    for fault in FAULTS {
        let verdict = decide(&policy, &[], &[lost(0, fault)], NOW);
        match verdict {
            Verdict::Replan { about, .. } => assert!(!fault.counts() && !about.counts),
            Verdict::GiveUp { reason: "RestartBudgetExhausted", message, .. } => {
                assert!(fault.counts());
                let expected = "pod 0 ended; spec.recovery.maxRestarts is 0, so the first loss ends the job: raise it to restart";
                assert_eq!(message, expected);
            }
            other => assert_eq!(name(&other), "DoNotRequeue", "{fault:?}"),
        }
    }
}

#[test]
fn the_window_slides() {
    let policy = Policy { max_restarts: 2, window: 3_600_000, ..Policy::default() };
    let history = [NOW - 100, NOW - 3_600_000, NOW - 3_599_999].map(once);
    assert_eq!(within_window(&policy, &history, NOW), [NOW - 3_599_999, NOW - 100].map(once));
    let node = [lost(0, Fault::NodeLost)];
    assert_eq!(name(&decide(&policy, &history, &node, NOW)), "RestartBudgetExhausted");
    assert_eq!(name(&decide(&policy, &history, &node, NOW + 1)), "replan");
}

#[test]
fn a_spent_budget_is_told_in_good_english() {
    let told = |max_restarts: u32| {
        let policy = Policy { max_restarts, ..Policy::default() };
        let history: Vec<Spent> = (0..i64::from(max_restarts)).map(|i| once(NOW - 1 - i)).collect();
        match decide(&policy, &history, &[lost(0, Fault::NodeLost)], NOW) {
            Verdict::GiveUp { reason: "RestartBudgetExhausted", message, .. } => message,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        told(0),
        "pod 0 ended; spec.recovery.maxRestarts is 0, so the first loss ends the job: raise it to restart"
    );
    assert_eq!(
        told(1),
        "pod 0 ended; 1 restart within 24h is spent (spec.recovery.maxRestarts = 1): mend the cause, or raise it"
    );
    assert_eq!(
        told(2),
        "pod 0 ended; 2 restarts within 24h are spent (spec.recovery.maxRestarts = 2): mend the cause, or raise it"
    );
}

#[test]
fn while_it_waits_it_says_when_it_starts_again() {
    let history = [NOW - 3_000, NOW - 2_000, NOW - 1_000].map(once);
    let verdict = decide(&Policy::default(), &history, &[lost(0, Fault::Application)], NOW);
    let Verdict::Wait { until, about } = verdict else { panic!("{verdict:?}") };
    assert_eq!(until, NOW + 39_000);
    assert_eq!(
        about.message_at("23:21:23"),
        "pod 0 ended; starts again at 23:21:23 (restart 4 of 20 within 24h)"
    );
    assert_eq!(about.cause, "ApplicationFailed");
}

#[test]
fn in_place_only_where_the_places_hold_their_pods() {
    let why = "node n0 has 7 of 8 nvidia.com/gpu".to_owned();
    let failed = [lost(0, Fault::Application)];
    let judge = |policy: &Policy, restarts: &[Spent], units: &[u32]| {
        let cannot = units.iter().map(|index| (unit(*index), why.clone())).collect();
        recovery::decide(policy, &Case { cannot: &cannot, ..case(restarts, &failed) }, NOW)
    };
    let policy = Policy::default();
    assert_eq!(name(&judge(&policy, &[], &[])), "in place");
    // At once, without the delay of a restart: the place is the fault.
    let Verdict::Replan { lost, about, .. } = judge(&policy, &[once(NOW - 1)], &[0]) else {
        panic!("its node is too small")
    };
    assert_eq!((lost, about.cause, about.counts), ([unit(0)].into(), "DeviceUnhealthy", true));
    assert_eq!(
        about.message(),
        "pod 0 ended; node n0 has 7 of 8 nvidia.com/gpu; other nodes are looked for (restart 2 of 20 within 24h)"
    );
    // Where all units restart as one, a place counts that lost no pod.
    let Verdict::Replan { lost, .. } = judge(&policy, &[], &[2]) else { panic!("a node is too small") };
    assert_eq!(lost, [unit(2)].into());
    assert_eq!(name(&judge(&ladder(&[Step::RestartInPlace]), &[], &[0])), "NoStepLeft");
    assert_eq!(name(&judge(&ladder(&[Step::RestartInPlace, Step::Requeue]), &[], &[0])), "requeue");
}

/// A pod that every kubelet refuses: few nodes see it, later and later, and then none for a while.
#[test]
fn a_pod_that_kubelets_refuse_does_not_walk_through_the_cluster() {
    let (mut now, mut misfits, mut seen, mut at) = (NOW, Vec::new(), Vec::new(), 0);
    while seen.last().is_none_or(|last: &String| !last.starts_with("take back")) {
        let pods = [refused(&format!("n{at}"), "OutOfcpu")];
        let verdict =
            recovery::decide(&Policy::default(), &Case { misfits: &misfits, ..case(&[], &pods) }, now);
        match &verdict {
            Verdict::Wait { until, about } => {
                assert!(*until > now && !about.counts);
                seen.push(format!("wait {}", (until - now) / 1000));
                now = *until;
                continue;
            }
            Verdict::TakeBack { reason, until } => {
                seen.push(format!("take back for {}", (until - now) / 1000));
                assert_eq!(
                    reason.to_string(),
                    "4 nodes refused its pods: pod a failed on node n3 (OutOfcpu)"
                );
            }
            other => seen.push(name(other).into()),
        }
        remember(&mut misfits, &pods, now);
        at += 1;
    }
    let expected = ["replan", "wait 10", "replan", "wait 20", "replan", "take back for 80"];
    assert_eq!(seen, expected);
    assert_eq!(misfits.len(), REFUSALS);
    // Later it may try again, and one more refusal is enough; after the window it is as new.
    let again = |now: Millis| {
        let pods = [refused("n9", "OutOfcpu")];
        recovery::decide(&Policy::default(), &Case { misfits: &misfits, ..case(&[], &pods) }, now)
    };
    assert_eq!(name(&again(now + LONGEST_DELAY)), "take back");
    assert_eq!(name(&again(now + MISFIT_WINDOW)), "replan");
}

#[test]
fn refusals_for_different_reasons_or_by_one_node_are_not_the_pods_fault() {
    let judge = |misfits: &[Misfit], pods: &[LostPod], size: usize| {
        let case = Case { misfits, pods: size, ..case(&[], pods) };
        name(&recovery::decide(&Policy::default(), &case, NOW))
    };
    let earlier = |node: &str, refusal: &str| Misfit {
        at: NOW - MISFIT_WINDOW + 1,
        node: node.into(),
        refusal: refusal.into(),
    };
    let words = ["OutOfcpu", "OutOfmemory", "TopologyAffinityError", "OutOfpods"];
    let many: Vec<Misfit> =
        words.iter().enumerate().map(|(i, word)| earlier(&format!("n{i}"), word)).collect();
    assert_eq!(judge(&many, &[refused("n9", "OutOfcpu")], 1), "replan");
    let one: Vec<Misfit> = (0..9).map(|_| earlier("n1", "OutOfcpu")).collect();
    assert_eq!(judge(&one, &[refused("n1", "OutOfcpu")], 1), "replan");
    // No kubelet refused these: their nodes changed before they came.
    let gone: Vec<LostPod> = (0..9).map(|index| lost(index, Fault::Misfit)).collect();
    assert_eq!(judge(&[], &gone, 9), "replan");
    // Four of a thousand are a coincidence, four of four are not.
    let four: Vec<LostPod> = (0..4).map(|i| refused(&format!("n{i}"), "OutOfcpu")).collect();
    assert_eq!(judge(&[], &four, 1_000), "replan");
    assert_eq!(judge(&[], &four, 4), "take back");
}

#[test]
fn what_runs_goes_on_smaller_when_nobody_takes_the_rest() {
    let four: Vec<LostPod> = (0..4).map(|i| refused(&format!("n{i}"), "OutOfcpu")).collect();
    let judge = |steps: &[Step]| {
        recovery::decide(&ladder(steps), &Case { others_run: true, ..case(&[], &four) }, NOW)
    };
    let Verdict::Replan { steps, about, .. } = judge(&RecoveryStep::ALL) else { panic!("it may shrink") };
    assert_eq!((steps, about.counts), (vec![Step::Shrink, Step::Requeue], false));
    assert!(matches!(
        judge(&[Step::ReplaceNode]),
        Verdict::TakeBack { reason: Reason::KubeletsRefuse { .. }, .. }
    ));
}

#[test]
fn a_misfit_looks_for_another_node_whatever_the_ladder() {
    use Step::{ReplaceNode, Requeue, RestartInPlace, Shrink};
    let cases: [(&[Step], &[Step]); 5] = [
        (&[], &[ReplaceNode, Requeue]),
        (&[RestartInPlace], &[ReplaceNode, Requeue]),
        (&[Shrink], &[ReplaceNode, Shrink, Requeue]),
        (&[Shrink, ReplaceNode], &[ReplaceNode, Shrink, Requeue]),
        (&[Requeue], &[ReplaceNode, Requeue]),
    ];
    for (listed, expected) in cases {
        let verdict = decide(&ladder(listed), &[], &[lost(0, Fault::Misfit)], NOW);
        let Verdict::Replan { steps, .. } = verdict else { panic!("{listed:?}: {verdict:?}") };
        assert_eq!(steps, expected, "{listed:?}");
    }
}

#[test]
fn the_ladders_order_is_handed_on() {
    use Step::{ReplaceNode, RestartInPlace, Shrink};
    let policy = ladder(&[Shrink, RestartInPlace, ReplaceNode]);
    let Verdict::Replan { steps, .. } = decide(&policy, &[], &[lost(0, Fault::NodeLost)], NOW) else {
        panic!("other nodes are asked for")
    };
    assert_eq!(steps, [Shrink, ReplaceNode]);
}

/// Ten thousand restarts are kept as few entries: their sum is right, and none is forgotten before its time.
#[test]
fn a_long_history_is_small_and_loses_no_restart() {
    let policy = Policy { max_restarts: 10_000, window: 30 * 86_400_000, ..Policy::default() };
    let (mut history, mut times): (Vec<Spent>, Vec<Millis>) = (Vec::new(), Vec::new());
    for i in 0..10_000 {
        let now = NOW + i * LONGEST_DELAY;
        history = within_window(&policy, &history, now);
        history.push(once(now));
        bound(&mut history, |spent| spent.at, |later, earlier| later.count += earlier.count);
        times.push(now);
        assert!(history.len() <= KEPT);
        let true_count = times.iter().filter(|at| **at > now - policy.window).count();
        let kept: usize = history.iter().map(|spent| spent.count as usize).sum();
        assert!(kept >= true_count, "{kept} of {true_count} after {i}");
        assert!(kept <= true_count + true_count / 4 + 1, "{kept} for {true_count} after {i}");
        let tail: Vec<Millis> = history.iter().rev().take(8).map(|spent| spent.at).collect();
        assert!(times.iter().rev().zip(&tail).all(|(one, other)| one == other), "the last ones are exact");
    }
}

#[test]
fn what_is_remembered_of_misfits_is_bounded() {
    let mut misfits = Vec::new();
    for i in 0..100 {
        let pods: Vec<LostPod> = (0..100).map(|n| refused(&format!("n{}", n % 50), "OutOfcpu")).collect();
        remember(&mut misfits, &pods, NOW + i);
        assert!(misfits.len() <= MISFITS_KEPT);
    }
    remember(&mut misfits, &[lost(0, Fault::Application)], NOW + MISFIT_WINDOW + 100);
    assert_eq!(misfits, [], "nothing counts any more, and that was no misfit");
}

/// A program that fails at once: restarts come later and later, then on other nodes, then the budget is spent.
#[test]
fn a_crash_loop() {
    let policy = Policy { max_restarts: 8, ..Policy::default() };
    let (mut now, mut history, mut seen) = (NOW, Vec::new(), Vec::new());
    loop {
        let verdict = decide(&policy, &history, &[lost(0, Fault::Application)], now);
        match verdict {
            Verdict::Wait { until, .. } => {
                assert!(until > now);
                seen.push(format!("wait {}", (until - now) / 1000));
                now = until;
            }
            Verdict::GiveUp { reason, .. } => {
                seen.push(reason.into());
                break;
            }
            verdict => {
                seen.push(name(&verdict).into());
                history.push(once(now));
            }
        }
    }
    let expected = [
        "in place",
        "wait 10",
        "in place",
        "wait 20",
        "in place",
        "wait 40",
        "replan",
        "wait 80",
        "replan",
        "wait 160",
        "replan",
        "wait 300",
        "replan",
        "wait 300",
        "replan",
        "RestartBudgetExhausted",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_long_run_ends_a_succession() {
    let history: Vec<Spent> = (0..5).map(|i| once(NOW - QUIET - i * 1000)).collect();
    let verdict = decide(&Policy::default(), &history, &[lost(0, Fault::Application)], NOW);
    assert_eq!(name(&verdict), "in place");
}

#[test]
fn nothing_lost_is_nothing_to_do() {
    assert_eq!(decide(&Policy::default(), &[], &[], NOW), Verdict::Nothing);
}

proptest! {
    /// I7 in small: whatever the history's order, more restarts than the budget are never granted, and a delay is
    /// bounded and over when its time has come.
    #[test]
    fn budgets_and_delays_hold(
        ages in proptest::collection::vec(0i64..7_200_000, 0..12),
        faults in proptest::collection::vec(0usize..FAULTS.len(), 1..4),
        max_restarts in 0u32..10,
    ) {
        let policy = Policy { max_restarts, window: 3_600_000, ..Policy::default() };
        let history: Vec<Spent> = ages.iter().map(|age| once(NOW - age)).collect();
        let pods: Vec<LostPod> = faults.iter().enumerate().map(|(i, f)| lost(i as u32, FAULTS[*f])).collect();
        let spent = within_window(&policy, &history, NOW).len();
        let granted = |verdict: &Verdict| match verdict {
            Verdict::RestartInPlace { about, .. } | Verdict::Replan { about, .. } | Verdict::Requeue { about } => about.counts,
            _ => false,
        };
        let verdict = decide(&policy, &history, &pods, NOW);
        prop_assert!(!granted(&verdict) || spent < max_restarts as usize);
        if let Verdict::Wait { until, .. } = verdict {
            prop_assert!(until > NOW && until - NOW <= LONGEST_DELAY.max(FIRST_DELAY));
            prop_assert!(spent > 0);
            let later = decide(&policy, &history, &pods, until);
            prop_assert!(!matches!(later, Verdict::Wait { .. }), "{:?}", later);
        }
        if let Verdict::RestartInPlace { renew, .. } = &verdict {
            prop_assert_eq!(renew.len(), pods.len());
            prop_assert!(pods.iter().all(|pod| !pod.fault.moves()));
        }
        let mut reversed = history.clone();
        reversed.reverse();
        prop_assert_eq!(decide(&policy, &reversed, &pods, NOW), verdict);
    }
}
