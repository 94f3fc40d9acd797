//! What is done after a loss: the pure judgement of the lifecycle crate, put in the core's terms.

use muster_api::Gang as Object;
use muster_lifecycle::launch;
use muster_lifecycle::recovery::{self, About, Case, LostPod, Policy, Spent};
use muster_model::{Millis, RecoveryStep as Step, UnitId};
use std::collections::{BTreeMap, BTreeSet};

use super::gang::{GangRt, Loss};
use crate::launch::framework;

/// What to do about lost pods.
pub enum Verdict {
    /// New pods on the same nodes.
    RestartInPlace(Loss),
    /// Other nodes for the lost units.
    Replan(Loss),
    /// Everything back, and wait for a whole placement.
    Requeue(Loss),
    /// The gang has failed.
    GiveUp {
        /// One CamelCase word.
        reason: String,
        /// A sentence.
        message: String,
        /// Exit code, where one decided.
        exit_code: Option<i32>,
    },
    /// Look again at this time.
    Wait(Millis),
}

/// Whether the loss of one pod restarts all of them.
pub fn restarts_as_a_whole(gang: &Object) -> bool {
    launch::restarts_as_a_whole(framework(gang.spec.launch.framework))
}

/// Judges the lost pods of a gang.
pub fn judge(rt: &GangRt, now: Millis) -> Verdict {
    let recovery = &rt.object.spec.recovery;
    let policy = Policy {
        ladder: recovery.ladder.clone(),
        max_restarts: recovery.max_restarts,
        window: recovery.window.millis().unwrap_or(Millis::MAX),
    };
    let restarts = rt.status.restarts.iter();
    let restarts: Vec<Spent> = restarts.map(|restart| Spent::once(restart.time.0.as_millisecond())).collect();
    let lost: Vec<LostPod> = rt
        .slots
        .lost()
        .map(|(planned, loss)| LostPod {
            unit: planned.slot.unit.clone(),
            node: planned.node.clone(),
            fault: loss.fault,
            refusal: String::new(),
            message: loss.message.clone(),
            exit_code: loss.exit_code,
        })
        .collect();
    let case = Case {
        lost: &lost,
        restarts: &restarts,
        misfits: &[],
        cannot: &BTreeMap::new(),
        pods: rt.slots.tally().all,
        others_run: false,
    };
    match recovery::decide(&policy, &case, now) {
        recovery::Verdict::Nothing => Verdict::Wait(Millis::MAX),
        recovery::Verdict::RestartInPlace { renew, about } => {
            Verdict::RestartInPlace(loss(renew, &about, &[Step::RestartInPlace]))
        }
        recovery::Verdict::Replan { lost, steps, about } => Verdict::Replan(loss(lost, &about, &steps)),
        recovery::Verdict::Requeue { about } => {
            Verdict::Requeue(loss(BTreeSet::new(), &about, &[Step::Requeue]))
        }
        recovery::Verdict::GiveUp { reason, message, exit_code } => {
            Verdict::GiveUp { reason: reason.to_owned(), message, exit_code }
        }
        recovery::Verdict::TakeBack { reason, .. } => Verdict::Requeue(Loss {
            units: BTreeSet::new(),
            cause: recovery::Fault::Misfit.cause().to_owned(),
            message: reason.to_string(),
            counts: false,
            steps: vec![Step::Requeue],
        }),
        recovery::Verdict::Wait { until, .. } => Verdict::Wait(until),
    }
}

fn loss(units: BTreeSet<UnitId>, about: &About, steps: &[Step]) -> Loss {
    Loss {
        units,
        cause: about.cause.to_owned(),
        message: about.message(),
        counts: about.counts,
        steps: steps.to_vec(),
    }
}
