//! What follows a loss.
//!
//! ```text
//!   PodEnd ──classify──▶ Fault ─┐
//!   restarts (from status) ─────┼──decide──▶ Verdict ──▶ RestartInPlace, Replan, Requeue, GiveUp or Wait
//!   Policy, now ────────────────┘
//! ```
//!
//! The history of restarts is an argument and comes from a durable status, so a restart of the operator resets no
//! budget. When one fault causes others (a node dies, then every other rank fails in its collectives), the whole loss
//! is judged by the fault that can be the cause of the rest.
//!
//! The ladder is walked from the fault upwards: a fault of the program restarts in place; after [`IN_A_ROW`] restarts
//! in quick succession, or where the place itself is the fault, the engine is asked for other nodes, within the rungs
//! that the ladder has.

use muster_model::{Millis, UnitId, duration};
use std::collections::BTreeSet;

/// Delay before the second restart in quick succession; doubled for each one more, up to [`LONGEST_DELAY`].
pub const FIRST_DELAY: Millis = 10_000;
/// Longest delay before a restart (the kubelet's own cap).
pub const LONGEST_DELAY: Millis = 300_000;
/// A run of so long ends a succession of restarts.
pub const QUIET: Millis = 1_800_000;
/// After so many restarts in quick succession the place is suspected too.
pub const IN_A_ROW: usize = 3;
/// Exit code with which NVIDIA's Resiliency Extension says: do not requeue.
pub const DO_NOT_REQUEUE: i32 = 93;

/// How a pod ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodEnd {
    /// Whether any of its containers had started.
    pub started: bool,
    /// Exit code of the container that failed.
    pub exit_code: Option<i32>,
    /// Reason of the pod or of the container, such as `OOMKilled`; empty if there is none.
    pub reason: String,
    /// Reason of the condition `DisruptionTarget`, if it is true.
    pub disruption: Option<String>,
}

/// Kinds of fault. The order is that of causes: of several at once the smallest can be the cause of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The program asked not to be started again.
    DoNotRequeue,
    /// The node is gone, silent or shutting down.
    NodeLost,
    /// A device of the node is unhealthy.
    DeviceUnhealthy,
    /// A foreign pod of higher priority took its place.
    Preempted,
    /// It was evicted: a drain, or pressure on the node.
    Evicted,
    /// No container ever started.
    Misfit,
    /// Somebody deleted it.
    PodDeleted,
    /// It used more memory than its limit.
    OutOfMemory,
    /// The program failed.
    Application,
}

/// What a fault means.
struct Meaning {
    fault: Fault,
    cause: &'static str,
    /// Counts against the restart budget.
    counts: bool,
    /// The unit cannot go on where it is.
    moves: bool,
    /// New pods should avoid the node for a while.
    blames_node: bool,
}

const fn meaning(fault: Fault, cause: &'static str, counts: bool, moves: bool, blames_node: bool) -> Meaning {
    Meaning { fault, cause, counts, moves, blames_node }
}

const MEANINGS: [Meaning; 9] = [
    //                                                  counts moves  blames
    meaning(Fault::DoNotRequeue, "DoNotRequeue", true, false, false),
    meaning(Fault::NodeLost, "NodeLost", true, true, true),
    meaning(Fault::DeviceUnhealthy, "DeviceUnhealthy", true, true, true),
    meaning(Fault::Preempted, "Preempted", false, true, false),
    meaning(Fault::Evicted, "Evicted", true, true, true),
    meaning(Fault::Misfit, "Misfit", false, true, true),
    meaning(Fault::PodDeleted, "PodDeleted", true, false, false),
    meaning(Fault::OutOfMemory, "OutOfMemory", true, false, false),
    meaning(Fault::Application, "ApplicationFailed", true, false, false),
];

impl Fault {
    fn meaning(self) -> &'static Meaning {
        // Every fault has a row (a test holds it); the last is the most general.
        MEANINGS.iter().find(|row| row.fault == self).unwrap_or(&MEANINGS[MEANINGS.len() - 1])
    }

    /// One CamelCase word.
    pub fn cause(self) -> &'static str {
        self.meaning().cause
    }

    /// Whether it counts against the restart budget.
    pub fn counts(self) -> bool {
        self.meaning().counts
    }

    /// Whether the unit cannot go on where it is.
    pub fn moves(self) -> bool {
        self.meaning().moves
    }

    /// Whether new pods should avoid the node for a while.
    pub fn blames_node(self) -> bool {
        self.meaning().blames_node
    }
}

/// Reasons of the condition `DisruptionTarget` (Kubernetes, "Pod disruption conditions").
const DISRUPTIONS: [(&str, Fault); 6] = [
    ("PreemptionByScheduler", Fault::Preempted),
    ("DeletionByTaintManager", Fault::NodeLost),
    ("DeletionByPodGC", Fault::NodeLost),
    ("DeletionByDeviceTaintManager", Fault::DeviceUnhealthy),
    ("EvictionByEvictionAPI", Fault::Evicted),
    ("TerminationByKubelet", Fault::Evicted),
];

/// Reasons of pods and containers that started (kubelet, node lifecycle controller).
const REASONS: [(&str, Fault); 9] = [
    ("OOMKilled", Fault::OutOfMemory),
    ("Evicted", Fault::Evicted),
    ("Preempting", Fault::Evicted),
    ("NodeLost", Fault::NodeLost),
    ("NodeShutdown", Fault::NodeLost),
    ("Shutdown", Fault::NodeLost),
    // A graceful shutdown of the node, and a kubelet that came back and knows nothing of the container.
    ("Terminated", Fault::NodeLost),
    ("ContainerStatusUnknown", Fault::NodeLost),
    ("UnexpectedAdmissionError", Fault::Misfit),
];

/// What kind of fault ended a pod. The first that applies: the program's own word; no container started, whatever the
/// reason (the kubelet's list of refusals is open); a disruption from outside; a reason; an exit code. Without any of
/// them nobody saw it end: its node was lost.
pub fn classify(end: &PodEnd) -> Fault {
    if end.exit_code == Some(DO_NOT_REQUEUE) {
        return Fault::DoNotRequeue;
    }
    let known = |table: &[(&str, Fault)], reason: &str| {
        table.iter().find(|(name, _)| *name == reason).map(|(_, fault)| *fault)
    };
    if !end.started {
        return Fault::Misfit;
    }
    if let Some(disruption) = &end.disruption {
        return known(&DISRUPTIONS, disruption).unwrap_or(Fault::Evicted);
    }
    let by_code = if end.exit_code.is_some() { Fault::Application } else { Fault::NodeLost };
    known(&REASONS, &end.reason).unwrap_or(by_code)
}

/// What kind of fault makes a pod leave that has not ended: why it is disrupted, if somebody says; else somebody deleted it.
pub fn classify_leaving(end: &PodEnd) -> Fault {
    match &end.disruption {
        Some(disruption) => {
            let known = DISRUPTIONS.iter().find(|(name, _)| name == disruption);
            known.map_or(Fault::Evicted, |(_, fault)| *fault)
        }
        None if end.started => Fault::PodDeleted,
        None => Fault::Misfit,
    }
}

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The same nodes, new pods.
    RestartInPlace,
    /// Other nodes for the lost units.
    ReplaceNode,
    /// The next smaller valid size on what is left.
    Shrink,
    /// Everything back, and wait for a whole placement.
    Requeue,
}

/// What is done after a loss, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rungs in order. Empty: the first loss that counts fails the job.
    pub ladder: Vec<Step>,
    /// Restarts within `window` after which the next loss fails the job.
    pub max_restarts: u32,
    /// The sliding window in which restarts are counted, in milliseconds.
    pub window: Millis,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            ladder: vec![Step::RestartInPlace, Step::ReplaceNode, Step::Shrink, Step::Requeue],
            max_restarts: 20,
            window: 86_400_000,
        }
    }
}

/// A pod that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPod {
    /// Its unit.
    pub unit: UnitId,
    /// Why.
    pub fault: Fault,
    /// What happened, in words.
    pub message: String,
    /// Exit code, where a container ended.
    pub exit_code: Option<i32>,
}

/// What a loss is called in statuses, events and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// One CamelCase word.
    pub cause: &'static str,
    /// What happened and what is done, for people.
    pub message: String,
    /// Whether it counts against the restart budget.
    pub counts: bool,
}

/// What to do about a loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
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
        /// The rungs that the new plan may take: some of `ReplaceNode`, `Shrink`, `Requeue`.
        steps: Vec<Step>,
        /// What it is called.
        about: About,
    },
    /// Give everything back and wait for a whole placement.
    Requeue {
        /// What it is called.
        about: About,
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
    /// Not yet: ask again at this time. (Without any lost pod: never.)
    Wait {
        /// When.
        until: Millis,
    },
}

/// Restarts that still count at `now`, ascending: what the status has to keep.
pub fn within_window(policy: &Policy, history: &[Millis], now: Millis) -> Vec<Millis> {
    let mut kept: Vec<Millis> =
        history.iter().copied().filter(|at| *at > now.saturating_sub(policy.window)).collect();
    kept.sort_unstable();
    kept
}

/// What to do about lost pods. `history` are the restarts that counted, from the status.
pub fn decide(policy: &Policy, history: &[Millis], lost: &[LostPod], now: Millis) -> Verdict {
    let Some(first) = lost.iter().min_by_key(|pod| pod.fault) else {
        return Verdict::Wait { until: Millis::MAX };
    };
    if first.fault == Fault::DoNotRequeue {
        return give_up(
            "DoNotRequeue",
            format!("{}: the program asked not to be started again", first.message),
            first,
        );
    }
    let spent = within_window(policy, history, now);
    if first.fault.counts() {
        if policy.ladder.is_empty() {
            let message = format!("{}; spec.recovery.ladder is empty, so a loss ends the job", first.message);
            return give_up(first.fault.cause(), message, first);
        }
        if spent.len() >= policy.max_restarts as usize {
            return give_up("RestartBudgetExhausted", exhausted(policy, &spent, first), first);
        }
    }
    let moving = units(lost, |pod| pod.fault.moves());
    if !moving.is_empty() {
        return elsewhere(policy, moving, first, spent.len());
    }
    let row = in_a_row(&spent, now);
    let until = spent.last().map_or(now, |last| last.saturating_add(delay(row)));
    if until > now {
        return Verdict::Wait { until };
    }
    let all = units(lost, |_| true);
    let stay = policy.ladder.contains(&Step::RestartInPlace);
    let only = policy.ladder.iter().all(|step| *step == Step::RestartInPlace);
    if stay && (only || row < IN_A_ROW) {
        let about = about(policy, first, "its pods start again on the same nodes", spent.len());
        return Verdict::RestartInPlace { renew: all, about };
    }
    elsewhere(policy, all, first, spent.len())
}

/// The rungs above a restart in place.
fn elsewhere(policy: &Policy, lost: BTreeSet<UnitId>, first: &LostPod, spent: usize) -> Verdict {
    let mut steps: Vec<Step> =
        policy.ladder.iter().copied().filter(|step| *step != Step::RestartInPlace).collect();
    if steps.is_empty() && !first.fault.counts() {
        // No fault of the job: no ladder was written for it.
        steps = vec![Step::ReplaceNode, Step::Requeue];
    }
    match steps.as_slice() {
        [] => give_up(
            "NoStepLeft",
            format!(
                "{}; it cannot go on where it is, and spec.recovery.ladder allows nothing else: add ReplaceNode, Shrink \
                 or Requeue",
                first.message
            ),
            first,
        ),
        [Step::Requeue, ..] => {
            Verdict::Requeue { about: about(policy, first, "the job goes back to its queue", spent) }
        }
        _ => {
            let then = if steps.contains(&Step::ReplaceNode) {
                "other nodes are looked for"
            } else {
                "it goes on in a smaller size"
            };
            Verdict::Replan { lost, about: about(policy, first, then, spent), steps }
        }
    }
}

fn units(lost: &[LostPod], which: impl Fn(&LostPod) -> bool) -> BTreeSet<UnitId> {
    lost.iter().filter(|pod| which(pod)).map(|pod| pod.unit.clone()).collect()
}

fn give_up(reason: &'static str, message: String, first: &LostPod) -> Verdict {
    Verdict::GiveUp { reason, message, exit_code: first.exit_code }
}

fn about(policy: &Policy, first: &LostPod, then: &str, spent: usize) -> About {
    let counts = first.fault.counts();
    let budget = if counts {
        format!("restart {} of {} within {}", spent + 1, policy.max_restarts, duration::format(policy.window))
    } else {
        "no restart is counted".to_owned()
    };
    About { cause: first.fault.cause(), message: format!("{}; {then} ({budget})", first.message), counts }
}

fn exhausted(policy: &Policy, spent: &[Millis], first: &LostPod) -> String {
    format!(
        "{}; {} restarts within {} are spent (spec.recovery.maxRestarts = {}): mend the cause, or raise it",
        first.message,
        spent.len(),
        duration::format(policy.window),
        policy.max_restarts
    )
}

/// How many of the last restarts followed each other, and `now`, without a quiet time between them.
fn in_a_row(spent: &[Millis], now: Millis) -> usize {
    let mut next = now;
    let quick = spent.iter().rev().take_while(|at| {
        let gap = next - **at;
        next = **at;
        gap < QUIET
    });
    quick.count()
}

/// Delay after the last restart, after so many in quick succession.
fn delay(row: usize) -> Millis {
    match row {
        0 => 0,
        n => FIRST_DELAY.saturating_mul(1 << (n - 1).min(20)).min(LONGEST_DELAY),
    }
}
