//! A training job's phase, its deadlines, and what becomes of edits.
//!
//! ```text
//!   (previous phase, Facts of gang and specification, now) ──step──▶ phase, effects, when to look again
//! ```

use muster_model::Millis;

/// What a job is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It waits for a placement.
    #[default]
    Pending,
    /// It is suspended and holds nothing.
    Suspended,
    /// It has a placement, and its pods are being made.
    Starting,
    /// Its pods run.
    Running,
    /// It lost something and comes back.
    Recovering,
    /// It has succeeded.
    Succeeded,
    /// It has failed.
    Failed,
}

impl Phase {
    /// Whether nothing more will happen.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// Where the job's gang stands in the commit protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangPhase {
    /// No plan.
    #[default]
    Pending,
    /// The plan is durable, its capacity must first be freed.
    Reserved,
    /// The capacity is free: pods appear.
    Placed,
    /// All pods run.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// It gave its capacity to another.
    Preempted,
    /// It gave its capacity back after a loss.
    Requeued,
}

/// What a job's phase follows from. Times are milliseconds since the epoch, limits are milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Phase of its gang; `None` while it has none.
    pub gang: Option<GangPhase>,
    /// `spec.suspend`.
    pub suspend: bool,
    /// Whether all its pods ever ran at once.
    pub ran_before: bool,
    /// Whether pods of it are still there.
    pub pods_left: bool,
    /// When all pods of its first plan ran.
    pub started_at: Option<Millis>,
    /// When it ended.
    pub finished_at: Option<Millis>,
    /// `spec.activeDeadline`.
    pub active_deadline: Option<Millis>,
    /// `spec.ttlAfterFinished`.
    pub ttl: Option<Millis>,
}

/// What is to be done besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Fail the job and stop its pods: it exceeded its deadline.
    FailDeadline {
        /// For how long it has been running, in milliseconds.
        ran: Millis,
    },
    /// Delete the job: its time after the end is over.
    Delete,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The phase now.
    pub phase: Phase,
    /// What is to be done.
    pub effects: Vec<Effect>,
    /// When to look again, if nothing happens before.
    pub wake: Option<Millis>,
}

/// The phase of a job and what is to be done. A final phase is never left.
pub fn step(previous: Phase, facts: &Facts, now: Millis) -> Step {
    let phase = if previous.is_final() { previous } else { phase_of(facts) };
    let mut next = Step { phase, ..Step::default() };
    if phase.is_final() {
        // Without a time of its end it has only just ended.
        let over = facts.ttl.map(|ttl| facts.finished_at.unwrap_or(now).saturating_add(ttl.max(0)));
        match over {
            Some(over) if over <= now && facts.finished_at.is_some() => next.effects.push(Effect::Delete),
            over => next.wake = over,
        }
        return next;
    }
    // The clock runs from the first start on. A suspended job holds nothing, so it is not failed for its age until it
    // resumes.
    let limit = facts.started_at.zip(facts.active_deadline).filter(|_| !facts.suspend);
    if let Some((started, limit)) = limit {
        let over = started.saturating_add(limit);
        if over <= now {
            next.phase = Phase::Failed;
            next.effects.push(Effect::FailDeadline { ran: now - started });
        } else {
            next.wake = Some(over);
        }
    }
    next
}

fn phase_of(facts: &Facts) -> Phase {
    let gang = facts.gang.unwrap_or_default();
    match gang {
        GangPhase::Succeeded => return Phase::Succeeded,
        GangPhase::Failed => return Phase::Failed,
        _ => {}
    }
    if facts.suspend {
        // Pods that leave still hold their accelerators: it is suspended once they are gone.
        return if facts.pods_left { running_or(Phase::Starting, facts) } else { Phase::Suspended };
    }
    match gang {
        GangPhase::Running => Phase::Running,
        GangPhase::Placed => running_or(Phase::Starting, facts),
        GangPhase::Requeued => Phase::Recovering,
        _ => Phase::Pending,
    }
}

/// What a job that is between two states of its pods does, if it never ran; one that ran comes back or leaves.
fn running_or(first: Phase, facts: &Facts) -> Phase {
    match (facts.ran_before, facts.suspend) {
        (false, _) => first,
        (true, false) => Phase::Recovering,
        (true, true) => Phase::Running,
    }
}

/// When a field of a live job may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditEffect {
    /// Always; used from the next decision on.
    Live,
    /// Only while the job is suspended.
    WhenSuspended,
    /// Never.
    Never,
}

/// Fields and when they may change; the longest prefix counts. Edits of `parallelism.data` and `elastic` make a new
/// plan: the size of the world is in the environment of every pod. Pods that exist keep their grace period when
/// `checkpoint` changes.
const EDITS: [(&str, EditEffect); 17] = [
    ("spec.suspend", EditEffect::Live),
    ("spec.parallelism.data", EditEffect::Live),
    ("spec.elastic", EditEffect::Live),
    ("spec.priorityClassName", EditEffect::Live),
    ("spec.recovery", EditEffect::Live),
    ("spec.ttlAfterFinished", EditEffect::Live),
    ("spec.activeDeadline", EditEffect::Live),
    ("spec.checkpoint", EditEffect::Live),
    ("spec.queue", EditEffect::WhenSuspended),
    ("spec.framework", EditEffect::WhenSuspended),
    ("spec.accelerator", EditEffect::WhenSuspended),
    ("spec.parallelism", EditEffect::WhenSuspended),
    ("spec.placement", EditEffect::WhenSuspended),
    ("spec.outcome", EditEffect::WhenSuspended),
    ("spec.template", EditEffect::WhenSuspended),
    // Another name is another job; everything derived from it carries the old one.
    ("metadata.name", EditEffect::Never),
    ("metadata.namespace", EditEffect::Never),
];

/// When a field may change; a field that the table does not know, only while the job is suspended.
pub fn edit_effect(field: &str) -> EditEffect {
    let covers = |prefix: &str| {
        field.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let rows = EDITS.iter().filter(|(prefix, _)| covers(prefix));
    rows.max_by_key(|(prefix, _)| prefix.len()).map_or(EditEffect::WhenSuspended, |(_, effect)| *effect)
}
