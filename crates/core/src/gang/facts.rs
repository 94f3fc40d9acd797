//! Objects of the API in the terms of a gang's life.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{GangPhase, GangSpec, GangStatus, OutcomePolicy, RecoveryStep, plan_codec};
use muster_cluster::{PodFacts, PodOutcome, PodPhase};
use muster_lifecycle::gang::{Committed, Outcome, PodState, RoleTerms, Sight, Standing, Terms};
use muster_lifecycle::launch;
use muster_lifecycle::recovery::{PodEnd, Policy, Spent};
use muster_model::{self as model, Millis, Plan};
use std::collections::{BTreeMap, BTreeSet};

use crate::launch::framework;

/// A time stamp, in whole seconds as the server keeps it: what comes back equals what was written.
pub fn time(wall: Millis) -> Time {
    Time(jiff::Timestamp::from_second(wall.div_euclid(1_000)).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// What of a specification a gang's life depends on.
pub fn terms(spec: &GangSpec) -> Terms {
    let outcome = &spec.outcome;
    Terms {
        suspend: spec.suspend,
        outcome: match outcome.policy {
            OutcomePolicy::Never => Outcome::Never,
            OutcomePolicy::All => Outcome::All,
            // A word of a newer version: no new plan is made for it, and one in force ends as most do.
            OutcomePolicy::Pod | OutcomePolicy::Unknown(_) => {
                let first = spec.roles.first().map(|role| role.name.clone()).unwrap_or_default();
                let role = outcome.role.clone().unwrap_or(first);
                Outcome::Pod { role, unit: outcome.unit, index: outcome.index }
            }
        },
        policy: Policy {
            ladder: spec.recovery.ladder.iter().filter_map(|step| self::step(*step)).collect(),
            max_restarts: spec.recovery.max_restarts,
            window: spec.recovery.window.millis().unwrap_or(Millis::MAX),
        },
        whole: launch::restarts_as_a_whole(framework(spec.launch.framework)),
        roles: spec
            .roles
            .iter()
            .map(|role| RoleTerms {
                name: role.name.clone(),
                pods_per_unit: role.pods_per_unit,
                min: role.units.min,
                max: role.units.max,
                valid: role.units.valid.clone(),
                revision: role.revision.clone(),
                held: false,
            })
            .collect(),
    }
}

/// A step that only a newer version knows is passed over.
fn step(step: RecoveryStep) -> Option<model::RecoveryStep> {
    match step {
        RecoveryStep::RestartInPlace => Some(model::RecoveryStep::RestartInPlace),
        RecoveryStep::ReplaceNode => Some(model::RecoveryStep::ReplaceNode),
        RecoveryStep::Shrink => Some(model::RecoveryStep::Shrink),
        RecoveryStep::Requeue => Some(model::RecoveryStep::Requeue),
        RecoveryStep::Unknown(_) => None,
    }
}

/// The plan of a status, or why it cannot be read.
pub fn read_plan(status: &GangStatus, parts: &BTreeMap<String, String>) -> Result<Option<Plan>, String> {
    let plan = status.plan.as_ref().map(|plan| plan_codec::decode(plan, parts));
    plan.transpose().map_err(|error| error.to_string())
}

/// What a status stands for.
pub fn committed(status: &GangStatus, plan: Result<Option<Plan>, String>) -> Committed {
    let holds = !matches!(plan, Ok(None));
    let standing = match status.phase.unwrap_or_default() {
        phase if phase.is_final() => Standing::Ended,
        GangPhase::Running if holds => Standing::Running,
        _ if holds => Standing::Placed,
        _ => Standing::Free,
    };
    Committed {
        standing,
        plan,
        last_generation: status.last_generation,
        launched: status.launched,
        restarts: status
            .restarts
            .iter()
            .map(|restart| Spent { at: restart.time.0.as_millisecond(), count: restart.count })
            .collect(),
        done: status.done.as_deref().map(positions).unwrap_or_default(),
    }
}

/// Ranges of positions as text: `0-31,40`. `None` if there are none, or too many to be worth their room.
pub fn ranges(positions: impl Iterator<Item = usize>) -> Option<String> {
    const LONGEST: usize = 4_096;
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for at in positions {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == at => *last = at,
            _ => ranges.push((at, at)),
        }
    }
    let words = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    let text = ranges.iter().map(words).collect::<Vec<_>>().join(",");
    (!text.is_empty() && text.len() <= LONGEST).then_some(text)
}

/// The positions that [`ranges`] wrote. What cannot be read is left out.
fn positions(text: &str) -> BTreeSet<usize> {
    const MOST: usize = 1_000_000;
    let range = |text: &str| -> Option<(usize, usize)> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MOST).then_some((first, last))
    };
    text.split(',').filter_map(range).flat_map(|(first, last)| first..=last).collect()
}

/// What is seen of a pod.
pub fn sight(pod: &PodFacts) -> Sight<'_> {
    let end = pod.end.as_ref();
    let waits = pod.waiting.as_ref().map(|waiting| {
        let by = waiting.container.as_ref().map(|name| format!(" (container {name})")).unwrap_or_default();
        let words = if waiting.message.is_empty() { String::new() } else { format!(": {}", waiting.message) };
        format!("{}{by}{words}", waiting.reason)
    });
    Sight {
        uid: &pod.uid,
        name: &pod.key.name,
        node: pod.node.as_ref(),
        state: match (pod.outcome(), pod.phase) {
            (Some(PodOutcome::Succeeded), _) => PodState::Succeeded,
            (Some(PodOutcome::Failed), _) => PodState::Failed,
            (None, PodPhase::Running) => PodState::Running,
            (None, _) => PodState::Pending,
        },
        admitted: pod.admitted,
        ready: pod.ready,
        end: PodEnd {
            leaving: pod.leaving && pod.outcome().is_none(),
            // The program of a pod whose init container failed is at fault, although nothing else started.
            started: pod.started || end.is_some_and(|end| end.init && end.exit_code.is_some()),
            exit_code: end.and_then(|end| end.exit_code),
            container: end.and_then(|end| end.container.clone()).unwrap_or_default(),
            init: end.is_some_and(|end| end.init),
            reason: end.map(|end| end.reason.clone()).unwrap_or_default(),
            message: end.map(|end| end.message.clone()).unwrap_or_default(),
            disruption: pod.disruption.clone(),
        },
        waits: waits.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{positions, ranges};

    #[test]
    fn ranges_come_back_as_they_were() {
        for all in [vec![], vec![0], vec![0, 1, 2, 7], vec![3, 5, 6, 7, 9]] {
            let text = ranges(all.iter().copied());
            let back: Vec<usize> = text.as_deref().map(positions).unwrap_or_default().into_iter().collect();
            assert_eq!(back, all, "{text:?}");
        }
        assert_eq!(ranges([0, 1, 2, 7].into_iter()).as_deref(), Some("0-2,7"));
        assert!(positions("5-2,x,9999999999999,7-").is_empty());
    }
}
