//! What follows a loss.
//!
//! ```text
//!   PodEnd ──classify──▶ Fault ─┐
//!   restarts (from status) ─────┤
//!   misfits, places ────────────┼──decide──▶ Verdict ──▶ RestartInPlace, Replan, Requeue, TakeBack, GiveUp or Wait
//!   Policy, now ────────────────┘
//! ```
//!
//! The history of restarts is an argument and comes from a durable status, so a restart of the operator resets no
//! budget. When one fault causes others (a node dies, then every other rank fails in its collectives), the whole loss
//! is judged by the fault that can be the cause of the rest.
//!
//! The ladder is walked from the fault upwards: a fault of the program restarts in place, where the places can still
//! hold their pods; after [`IN_A_ROW`] restarts in quick succession, or where the place itself is the fault, the engine
//! is asked for other nodes, within the rungs that the ladder has and in its order.
//!
//! A pod that never ran costs no restart, and another node is looked for. That, too, is delayed more and more, and when
//! several nodes have refused it for the same reason it is the pod's fault: no further node is tried.

mod fault;
mod history;

use muster_model::{Millis, NodeName, Reason, RecoveryStep, UnitId, duration};
use std::collections::{BTreeMap, BTreeSet};

pub use fault::{DO_NOT_REQUEUE, Fault, PodEnd, classify};
pub use history::{
    FIRST_DELAY, KEPT, LONGEST_DELAY, MISFIT_WINDOW, MISFITS_KEPT, Misfit, QUIET, REFUSALS, Spent, bound,
    remember, within_window,
};

/// After so many restarts in quick succession the place is suspected too.
pub const IN_A_ROW: usize = 3;

/// What is done after a loss, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rungs in order. Empty: the first loss that counts fails the job.
    pub ladder: Vec<RecoveryStep>,
    /// Restarts within `window` after which the next loss fails the job.
    pub max_restarts: u32,
    /// The sliding window in which restarts are counted, in milliseconds.
    pub window: Millis,
}

impl Default for Policy {
    fn default() -> Self {
        Self { ladder: RecoveryStep::ALL.to_vec(), max_restarts: 20, window: 86_400_000 }
    }
}

/// A pod that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPod {
    /// Its unit.
    pub unit: UnitId,
    /// The node that it was on, or was meant for.
    pub node: NodeName,
    /// Why.
    pub fault: Fault,
    /// The word with which a kubelet refused it ([`PodEnd::refusal`]); empty where none did.
    pub refusal: String,
    /// What happened, in words.
    pub message: String,
    /// Exit code, where a container ended.
    pub exit_code: Option<i32>,
}

/// All that a loss is judged by, beside the policy and the time.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The pods that cannot go on.
    pub lost: &'a [LostPod],
    /// Restarts that counted, from the status.
    pub restarts: &'a [Spent],
    /// Misfits since all pods of a plan had started last ([`remember`]).
    pub misfits: &'a [Misfit],
    /// Of the units that a restart in place would give new pods: those whose node can no longer hold them by its
    /// allocatable amounts, each with a sentence ("node n1 has 7 of 8 nvidia.com/gpu").
    pub cannot: &'a BTreeMap<UnitId, String>,
    /// Pods of the whole gang.
    pub pods: usize,
    /// Whether units that are not lost run.
    pub others_run: bool,
}

/// What a loss is called in statuses, events and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// One CamelCase word.
    pub cause: &'static str,
    /// What happened, for people.
    pub what: String,
    /// What is done about it.
    pub then: &'static str,
    /// What that costs: "restart 4 of 20 within 24h".
    pub budget: String,
    /// Whether it counts against the restart budget.
    pub counts: bool,
}

impl About {
    /// What happened, what is done and what it costs.
    pub fn message(&self) -> String {
        format!("{}; {} ({})", self.what, self.then, self.budget)
    }

    /// The same for what is done at a time of the day that the caller writes, such as `23:21:23`.
    pub fn message_at(&self, clock: &str) -> String {
        format!("{}; {} at {clock} ({})", self.what, self.then, self.budget)
    }
}

/// What to do about a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is lost.
    Nothing,
    /// New pods for these units on the same nodes (for all units where the framework restarts as a whole).
    RestartInPlace {
        /// The lost units.
        renew: BTreeSet<UnitId>,
        /// What it is called.
        about: About,
    },
    /// Other nodes for these units. Units that were lost only in consequence are not among them: they restart with
    /// the whole, or the next judgement is about them.
    Replan {
        /// The units that cannot go on where they are.
        lost: BTreeSet<UnitId>,
        /// The rungs that the new plan may take, in order: some of `ReplaceNode`, `Shrink`, `Requeue`.
        steps: Vec<RecoveryStep>,
        /// What it is called.
        about: About,
    },
    /// Give everything back and wait for a whole placement.
    Requeue {
        /// What it is called.
        about: About,
    },
    /// Give everything back: node after node refuses the pods. No restart is counted.
    TakeBack {
        /// Why, with the kubelet's own words.
        reason: Reason,
        /// No placement before this time.
        until: Millis,
    },
    /// The job has failed.
    GiveUp {
        /// One CamelCase word.
        reason: &'static str,
        /// What happened and what can be done, for people.
        message: String,
        /// Exit code, where one decided.
        exit_code: Option<i32>,
    },
    /// Not yet: ask again at this time.
    Wait {
        /// When.
        until: Millis,
        /// What is said meanwhile ([`About::message_at`]).
        about: About,
    },
}

/// What to do about lost pods.
pub fn decide(policy: &Policy, case: &Case<'_>, now: Millis) -> Verdict {
    let Some(first) = case.lost.iter().min_by_key(|pod| pod.fault) else { return Verdict::Nothing };
    if first.fault == Fault::DoNotRequeue {
        let message = format!("{}: the program asked not to be started again", first.message);
        return give_up("DoNotRequeue", message, first);
    }
    let spent = within_window(policy, case.restarts, now);
    let count = history::count(&spent);
    if first.fault.counts() {
        if policy.ladder.is_empty() {
            let message = format!("{}; spec.recovery.ladder is empty, so a loss ends the job", first.message);
            return give_up(first.fault.cause(), message, first);
        }
        if count >= policy.max_restarts as usize {
            return give_up("RestartBudgetExhausted", exhausted(policy, count, first), first);
        }
    }
    let mut judged = Judged { policy, first, fault: first.fault, what: first.message.clone(), spent: count };
    let mut moving = units(case.lost, |pod| pod.fault.moves());
    if first.fault == Fault::Misfit {
        return misfit(&judged, case, moving, now);
    }
    if moving.is_empty()
        && let Some(why) = case.cannot.values().next()
    {
        // The place has lost what the pod needs: that comes before what the program made of it.
        judged.fault = Fault::DeviceUnhealthy;
        judged.what = format!("{}; {why}", first.message);
    }
    moving.extend(case.cannot.keys().cloned());
    if !moving.is_empty() {
        return elsewhere(&judged, moving);
    }
    let row = history::in_a_row(&spent, now);
    let until = spent.last().map_or(now, |last| last.at.saturating_add(history::delay(row)));
    if until > now {
        return Verdict::Wait { until, about: judged.about("starts again") };
    }
    let all = units(case.lost, |_| true);
    let stay = policy.ladder.contains(&RecoveryStep::RestartInPlace);
    let only = policy.ladder.iter().all(|step| *step == RecoveryStep::RestartInPlace);
    if stay && (only || row < IN_A_ROW) {
        let about = judged.about("its pods start again on the same nodes");
        return Verdict::RestartInPlace { renew: all, about };
    }
    elsewhere(&judged, all)
}

/// A loss that has a fault.
struct Judged<'a> {
    policy: &'a Policy,
    /// The pod whose fault can be the cause of the rest.
    first: &'a LostPod,
    fault: Fault,
    /// What happened, for people.
    what: String,
    /// Restarts that count already.
    spent: usize,
}

impl Judged<'_> {
    fn about(&self, then: &'static str) -> About {
        let counts = self.fault.counts();
        let budget = if counts {
            let Policy { max_restarts, window, .. } = self.policy;
            format!("restart {} of {max_restarts} within {}", self.spent + 1, duration::format(*window))
        } else {
            "no restart is counted".to_owned()
        };
        About { cause: self.fault.cause(), what: self.what.clone(), then, budget, counts }
    }
}

/// The rungs above a restart in place.
fn elsewhere(judged: &Judged<'_>, lost: BTreeSet<UnitId>) -> Verdict {
    let rungs = judged.policy.ladder.iter().copied();
    let mut steps: Vec<RecoveryStep> = rungs.filter(|step| *step != RecoveryStep::RestartInPlace).collect();
    if steps.is_empty() && !judged.fault.counts() {
        // No fault of the job: no ladder was written for it.
        steps = vec![RecoveryStep::ReplaceNode, RecoveryStep::Requeue];
    }
    let then = match steps.first() {
        None => {
            let message = format!(
                "{}; it cannot go on where it is, and spec.recovery.ladder allows nothing else: add ReplaceNode, \
                 Shrink or Requeue",
                judged.what
            );
            return give_up("NoStepLeft", message, judged.first);
        }
        Some(RecoveryStep::Requeue) => {
            return Verdict::Requeue { about: judged.about("the job goes back to its queue") };
        }
        Some(RecoveryStep::Shrink) => "it goes on in a smaller size",
        Some(_) => "other nodes are looked for",
    };
    Verdict::Replan { lost, about: judged.about(then), steps }
}

/// Pods that never ran. Another node is right, whatever the ladder says: nothing was lost, and no size was given up.
/// But not one after the other as fast as kubelets refuse.
fn misfit(judged: &Judged<'_>, case: &Case<'_>, lost: BTreeSet<UnitId>, now: Millis) -> Verdict {
    use RecoveryStep::{ReplaceNode, Requeue, Shrink};
    let ladder = &judged.policy.ladder;
    if let Some(nodes) = history::refused_by(case.misfits, case.lost, case.pods, now) {
        if case.others_run && ladder.contains(&Shrink) {
            // What runs need not end for a pod that nobody takes.
            let about = judged.about("several nodes refused it, so no other is tried");
            return Verdict::Replan { lost, steps: vec![Shrink, Requeue], about };
        }
        let reason = Reason::KubeletsRefuse { nodes: nodes as u32, message: judged.what.clone() };
        let tried = history::answered(case.misfits, now).len();
        return Verdict::TakeBack { reason, until: now.saturating_add(history::delay(tried + 1)) };
    }
    let until = history::next_try(case.misfits, now);
    if until > now {
        return Verdict::Wait { until, about: judged.about("other nodes are looked for") };
    }
    let others = ladder.iter().copied().filter(|step| matches!(step, Shrink | Requeue));
    let mut steps: Vec<RecoveryStep> = [ReplaceNode].into_iter().chain(others).collect();
    if !steps.contains(&Requeue) {
        steps.push(Requeue);
    }
    Verdict::Replan { lost, steps, about: judged.about("other nodes are looked for") }
}

fn units(lost: &[LostPod], which: impl Fn(&LostPod) -> bool) -> BTreeSet<UnitId> {
    lost.iter().filter(|pod| which(pod)).map(|pod| pod.unit.clone()).collect()
}

fn give_up(reason: &'static str, message: String, first: &LostPod) -> Verdict {
    Verdict::GiveUp { reason, message, exit_code: first.exit_code }
}

fn exhausted(policy: &Policy, spent: usize, first: &LostPod) -> String {
    let what = &first.message;
    if policy.max_restarts == 0 {
        return format!(
            "{what}; spec.recovery.maxRestarts is 0, so the first loss ends the job: raise it to restart"
        );
    }
    let restarts = if spent == 1 { "restart" } else { "restarts" };
    let are = if spent == 1 { "is" } else { "are" };
    format!(
        "{what}; {spent} {restarts} within {} {are} spent (spec.recovery.maxRestarts = {}): mend the cause, or raise it",
        duration::format(policy.window),
        policy.max_restarts
    )
}
