//! Effects that wait to be performed: three lanes with bounds, so that a large gang's creations never hold up a
//! status write, and growing delays for what failed in passing.

use muster_model::Millis;
use std::collections::{BTreeMap, VecDeque};

use crate::effect::Effect;

/// First delay after a passing failure; doubled up to [`LONGEST_DELAY`].
const FIRST_DELAY: Millis = 200;
const LONGEST_DELAY: Millis = 10_000;
/// So many events wait for pods at most: beyond, they go out beside them.
const MOST_EVENTS: usize = 1_000;

/// Which bound an effect counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Status writes, services, probes.
    Control,
    /// Pod creations.
    Create,
    /// Pod deletions and finalizers of pods.
    Delete,
    /// Events: the least urgent. They wait while pods are being created.
    Tell,
}

impl Lane {
    fn of(effect: &Effect) -> Self {
        match effect {
            Effect::CreatePod { .. } => Self::Create,
            Effect::DeletePod { .. } | Effect::ReleasePod { .. } => Self::Delete,
            Effect::Tell(_) => Self::Tell,
            _ => Self::Control,
        }
    }
}

/// How many requests of each lane may be under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Status writes, services, probes.
    pub control: usize,
    /// Pod creations.
    pub create: usize,
    /// Pod deletions.
    pub delete: usize,
}

impl Default for Limits {
    /// 64 creations at once saturate an API server (measured); more only lengthens its queues.
    fn default() -> Self {
        Self { control: 32, create: 64, delete: 64 }
    }
}

/// An effect under way.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Identity.
    pub id: u64,
    /// What to do.
    pub effect: Effect,
    attempts: u32,
}

/// The waiting effects.
#[derive(Debug, Default)]
pub struct Outbox {
    limits: Limits,
    next_id: u64,
    waiting: BTreeMap<Lane, VecDeque<Ticket>>,
    delayed: BTreeMap<(Millis, u64), Ticket>,
    flying: BTreeMap<Lane, usize>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Adds an effect.
    pub fn push(&mut self, effect: Effect) {
        self.next_id += 1;
        let ticket = Ticket { id: self.next_id, effect, attempts: 0 };
        self.waiting.entry(Lane::of(&ticket.effect)).or_default().push_back(ticket);
    }

    /// How many more creations may be given out now: they are made on demand and never queue here.
    pub fn room_for_creates(&self) -> usize {
        self.limits.create.saturating_sub(self.flying(Lane::Create) + self.waiting(Lane::Create))
    }

    fn flying(&self, lane: Lane) -> usize {
        self.flying.get(&lane).copied().unwrap_or(0)
    }

    fn limit(&self, lane: Lane) -> usize {
        match lane {
            Lane::Control => self.limits.control,
            Lane::Create => self.limits.create,
            Lane::Delete => self.limits.delete,
            Lane::Tell if self.creating() && self.waiting(lane) < MOST_EVENTS => 0,
            Lane::Tell => 2,
        }
    }

    fn creating(&self) -> bool {
        self.flying(Lane::Create) + self.waiting(Lane::Create) > 0
    }

    fn waiting(&self, lane: Lane) -> usize {
        self.waiting.get(&lane).map_or(0, VecDeque::len)
    }

    /// Takes what may begin now.
    pub fn take(&mut self, now: Millis) -> Vec<Ticket> {
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let ticket = entry.remove();
            self.waiting.entry(Lane::of(&ticket.effect)).or_default().push_back(ticket);
        }
        let mut out = Vec::new();
        for lane in [Lane::Control, Lane::Create, Lane::Delete, Lane::Tell] {
            let room = self.limit(lane).saturating_sub(self.flying(lane));
            if let Some(waiting) = self.waiting.get_mut(&lane) {
                let count = room.min(waiting.len());
                out.extend(waiting.drain(..count));
                *self.flying.entry(lane).or_default() += count;
            }
        }
        out
    }

    /// The request is over.
    pub fn landed(&mut self, ticket: &Ticket) {
        let flying = self.flying.entry(Lane::of(&ticket.effect)).or_default();
        *flying = flying.saturating_sub(1);
    }

    /// Tries it again after a growing delay. The request must have [`Self::landed`].
    pub fn again(&mut self, mut ticket: Ticket, now: Millis) {
        let delay = FIRST_DELAY.saturating_mul(1 << ticket.attempts.min(10)).min(LONGEST_DELAY);
        ticket.attempts += 1;
        self.delayed.insert((now + delay, ticket.id), ticket);
    }

    /// When the first delayed effect is due.
    pub fn next_due(&self) -> Option<Millis> {
        self.delayed.keys().next().map(|(at, _)| *at)
    }

    /// Whether nothing waits or is under way.
    pub fn idle(&self) -> bool {
        self.delayed.is_empty()
            && self.waiting.values().all(VecDeque::is_empty)
            && self.flying.values().all(|count| *count == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, MOST_EVENTS, Outbox};
    use crate::effect::{Effect, Note};
    use muster_model::{ObjectKey, Uid};

    fn event() -> Effect {
        Effect::Tell(Box::new(Note {
            kind: "Gang",
            about: ObjectKey::new("space", "gang"),
            uid: Uid("1".into()),
            warning: false,
            reason: "Placed".into(),
            message: "placed".into(),
        }))
    }

    fn pod() -> Effect {
        let key = |name: &str| ObjectKey::new("space", name);
        let unit = muster_model::UnitId { role: "worker".into(), index: 0 };
        let slot = muster_cluster::Slot { unit, incarnation: 0, index: 0 };
        Effect::CreatePod { gang: key("gang"), slot, pod: key("pod"), body: Vec::new() }
    }

    #[test]
    fn events_wait_for_pods_but_not_without_bound() {
        let mut out = Outbox::new(Limits::default());
        out.push(event());
        out.push(pod());
        let first = out.take(0);
        assert_eq!(first.len(), 1, "the pod alone");
        assert!(out.take(0).is_empty(), "its creation is under way");
        out.landed(&first[0]);
        assert_eq!(out.take(0).len(), 1, "now the event");
        let mut out = Outbox::new(Limits::default());
        out.push(pod());
        (0..MOST_EVENTS).for_each(|_| out.push(event()));
        assert_eq!(out.take(0).len(), 3, "the pod and two events");
    }
}
