//! Faults, the ladder, the budget and the delays.

use muster_lifecycle::recovery::{
    FIRST_DELAY, Fault, LONGEST_DELAY, LostPod, PodEnd, Policy, QUIET, Step, Verdict, classify, decide,
    within_window,
};
use muster_model::{Millis, UnitId};
use proptest::prelude::*;

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
    LostPod { unit: unit(index), fault, message: format!("pod {index} ended"), exit_code: Some(1) }
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
        Verdict::Wait { .. } => "wait",
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
    ];
    for (started, exit_code, reason, disruption, fault) in cases {
        let end = PodEnd {
            started,
            exit_code,
            reason: reason.into(),
            disruption: disruption.map(ToOwned::to_owned),
        };
        assert_eq!(classify(&end), fault, "{end:?}");
    }
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
    assert_eq!(about.message, "pod 2 ended; other nodes are looked for (restart 1 of 20 within 24h)");
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
                assert!(message.contains("spec.recovery.maxRestarts = 0"), "{message}");
            }
            other => assert_eq!(name(&other), "DoNotRequeue", "{fault:?}"),
        }
    }
}

#[test]
fn the_window_slides() {
    let policy = Policy { max_restarts: 2, window: 3_600_000, ..Policy::default() };
    let history = [NOW - 100, NOW - 3_600_000, NOW - 3_599_999];
    assert_eq!(within_window(&policy, &history, NOW), [NOW - 3_599_999, NOW - 100]);
    let node = [lost(0, Fault::NodeLost)];
    assert_eq!(name(&decide(&policy, &history, &node, NOW)), "RestartBudgetExhausted");
    assert_eq!(name(&decide(&policy, &history, &node, NOW + 1)), "replan");
}

/// A program that fails at once: restarts come later and later, then on other nodes, then the budget is spent.
#[test]
fn a_crash_loop() {
    let policy = Policy { max_restarts: 8, ..Policy::default() };
    let (mut now, mut history, mut seen) = (NOW, Vec::new(), Vec::new());
    loop {
        let verdict = decide(&policy, &history, &[lost(0, Fault::Application)], now);
        match verdict {
            Verdict::Wait { until } => {
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
                history.push(now);
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
    let history: Vec<Millis> = (0..5).map(|i| NOW - QUIET - i * 1000).collect();
    let verdict = decide(&Policy::default(), &history, &[lost(0, Fault::Application)], NOW);
    assert_eq!(name(&verdict), "in place");
}

#[test]
fn nothing_lost_is_nothing_to_do() {
    assert_eq!(decide(&Policy::default(), &[], &[], NOW), Verdict::Wait { until: Millis::MAX });
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
        let history: Vec<Millis> = ages.iter().map(|age| NOW - age).collect();
        let pods: Vec<LostPod> = faults.iter().enumerate().map(|(i, f)| lost(i as u32, FAULTS[*f])).collect();
        let spent = within_window(&policy, &history, NOW).len();
        let granted = |verdict: &Verdict| match verdict {
            Verdict::RestartInPlace { about, .. } | Verdict::Replan { about, .. } | Verdict::Requeue { about } => about.counts,
            _ => false,
        };
        let verdict = decide(&policy, &history, &pods, NOW);
        prop_assert!(!granted(&verdict) || spent < max_restarts as usize);
        if let Verdict::Wait { until } = verdict {
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
