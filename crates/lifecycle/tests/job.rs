//! Phases, deadlines and edits of a job.

use muster_lifecycle::job::{EditEffect, Effect, Facts, GangPhase, Phase, edit_effect, step};
use proptest::prelude::*;

const GANG: [Option<GangPhase>; 9] = [
    None,
    Some(GangPhase::Pending),
    Some(GangPhase::Reserved),
    Some(GangPhase::Placed),
    Some(GangPhase::Running),
    Some(GangPhase::Succeeded),
    Some(GangPhase::Failed),
    Some(GangPhase::Preempted),
    Some(GangPhase::Requeued),
];

#[test]
fn phases() {
    // gang, suspend, ran before, pods left → phase
    let cases = [
        (None, false, false, false, Phase::Pending),
        (Some(GangPhase::Reserved), false, false, false, Phase::Pending),
        (Some(GangPhase::Placed), false, false, true, Phase::Starting),
        (Some(GangPhase::Placed), false, true, true, Phase::Recovering),
        (Some(GangPhase::Running), false, true, true, Phase::Running),
        (Some(GangPhase::Requeued), false, true, false, Phase::Recovering),
        (Some(GangPhase::Preempted), false, true, false, Phase::Pending),
        (Some(GangPhase::Pending), true, true, true, Phase::Running),
        (Some(GangPhase::Pending), true, true, false, Phase::Suspended),
        (None, true, false, false, Phase::Suspended),
        (Some(GangPhase::Succeeded), true, true, false, Phase::Succeeded),
        (Some(GangPhase::Failed), false, false, false, Phase::Failed),
    ];
    for (gang, suspend, ran_before, pods_left, phase) in cases {
        let facts = Facts { gang, suspend, ran_before, pods_left, ..Facts::default() };
        assert_eq!(step(Phase::Pending, &facts, 0).phase, phase, "{facts:?}");
    }
}

#[test]
fn a_deadline_fails_a_job_that_runs_too_long() {
    let facts = Facts {
        gang: Some(GangPhase::Running),
        started_at: Some(1000),
        active_deadline: Some(500),
        ..Facts::default()
    };
    let before = step(Phase::Running, &facts, 1499);
    assert_eq!((before.phase, before.effects.len(), before.wake), (Phase::Running, 0, Some(1500)));
    let after = step(Phase::Running, &facts, 1500);
    assert_eq!((after.phase, after.effects), (Phase::Failed, vec![Effect::FailDeadline { ran: 500 }]));
    let suspended = step(Phase::Running, &Facts { suspend: true, ..facts }, 9999);
    assert_eq!((suspended.phase, suspended.wake), (Phase::Suspended, None));
}

#[test]
fn a_finished_job_goes_when_its_time_is_over() {
    let facts = Facts { finished_at: Some(1000), ttl: Some(500), ..Facts::default() };
    let before = step(Phase::Succeeded, &facts, 1499);
    assert_eq!((before.effects.len(), before.wake), (0, Some(1500)));
    assert_eq!(step(Phase::Succeeded, &facts, 1500).effects, [Effect::Delete]);
    let kept = step(Phase::Failed, &Facts { ttl: None, ..facts }, 1_000_000);
    assert_eq!((kept.effects.len(), kept.wake), (0, None));
    // It has just ended: nothing is deleted before the end is on record.
    let ends = Facts { gang: Some(GangPhase::Succeeded), ttl: Some(0), ..Facts::default() };
    assert!(step(Phase::Running, &ends, 1000).effects.is_empty());
}

#[test]
fn edits() {
    let cases = [
        ("spec.suspend", EditEffect::Live),
        ("spec.parallelism.data", EditEffect::Live),
        ("spec.parallelism.tensor", EditEffect::WhenSuspended),
        ("spec.parallelism.dataset", EditEffect::WhenSuspended),
        ("spec.elastic.validData[2]", EditEffect::Live),
        ("spec.checkpoint.progress.path", EditEffect::Live),
        ("spec.template.spec.containers[0].image", EditEffect::WhenSuspended),
        ("spec.somethingNew", EditEffect::WhenSuspended),
        ("metadata.name", EditEffect::Never),
    ];
    for (field, effect) in cases {
        assert_eq!(edit_effect(field), effect, "{field}");
    }
}

proptest! {
    #[test]
    fn an_end_is_an_end(gang in 0..GANG.len(), suspend: bool, pods_left: bool, now in 0i64..10_000) {
        let facts = Facts { gang: GANG[gang], suspend, pods_left, ran_before: true, ..Facts::default() };
        for end in [Phase::Succeeded, Phase::Failed] {
            prop_assert_eq!(step(end, &facts, now).phase, end);
        }
    }

    /// To look again before `wake` changes nothing.
    #[test]
    fn nothing_happens_before_the_wake(
        gang in 0..GANG.len(),
        suspend: bool,
        started in proptest::option::of(0i64..1000),
        finished in proptest::option::of(0i64..1000),
        limits in (0i64..1000, 0i64..1000),
        final_phase: bool,
    ) {
        let facts = Facts {
            gang: GANG[gang], suspend, started_at: started, finished_at: finished,
            active_deadline: Some(limits.0), ttl: Some(limits.1), ..Facts::default()
        };
        let previous = if final_phase { Phase::Succeeded } else { Phase::Pending };
        let now = 500;
        let next = step(previous, &facts, now);
        if let Some(wake) = next.wake.filter(|wake| *wake > now + 1 && facts.finished_at.is_some()) {
            prop_assert_eq!(step(previous, &facts, wake - 1), next);
        }
    }
}
