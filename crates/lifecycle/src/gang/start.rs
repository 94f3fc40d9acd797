//! The start of a plan's pods: how long one waits for it.

use muster_model::{Millis, Reason, duration};

use super::stage::Holding;

/// How patient one is with pods; milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until a kubelet (or, pinned, kube-scheduler) has taken a pod in, from when it was first seen.
    pub admit: Millis,
    /// Until a pod whose kubelet names an error of the specification gives its node back.
    pub errors: Millis,
    /// Until all pods of a plan have started, from when it was put in force.
    pub start: Millis,
    /// How long a node that refused or lost a pod is not used for the gang again.
    pub avoid: Millis,
}

impl Default for Patience {
    fn default() -> Self {
        Self { admit: 60_000, errors: 120_000, start: 900_000, avoid: 600_000 }
    }
}

/// Pods that do not start: not taken in, an error of the specification, or nothing for too long.
pub fn look_at_start(holding: &mut Holding, patience: &Patience, now: Millis) -> Option<Millis> {
    let mut next: Vec<Millis> = holding.slots.expire(now, patience.admit).into_iter().collect();
    let tally = holding.slots.tally();
    if tally.up() + tally.lost == tally.all {
        return next.into_iter().min();
    }
    let stuck = holding.slots.first_failing().map(|(planned, since, waits)| {
        let message = format!("its pod on node {} does not start: {waits}", planned.node);
        (since.saturating_add(patience.errors), message)
    });
    if let Some((due, message)) = stuck {
        if due <= now {
            holding.broken.get_or_insert(Reason::NotStarting { message });
        }
        next.push(due);
    }
    let due = holding.since.saturating_add(patience.start);
    if due <= now {
        holding.slots.give_up_starting(patience.start);
        let never = tally.missing + tally.asked;
        if never > 0 {
            let limit = duration::format(patience.start);
            let message = format!("{never} of {} pods could not be created within {limit}", tally.all);
            holding.broken.get_or_insert(Reason::NotStarting { message });
        }
    }
    next.push(due);
    next.into_iter().filter(|due| *due > now).min()
}
