//! The desk: what is wanted of each object, and what is under way.
//!
//! ```text
//!   want(Want) ──▶ Record { wanted, flight, done } ──take──▶ Ticket ──writer──▶ Outcome ──land──▶ the same record
//!                   newest want wins    one at a time                            again: after a growing pause
//! ```
//!
//! An outcome belongs to the content that it was sent for: a retry of what was wanted before never overtakes what is
//! wanted now, and the answer to one is never taken for the answer to another. What was done is remembered until the
//! object is seen again, so that nothing is asked twice while the watch is late.

use muster_model::{Millis, Uid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::want::{Class, Kind, Target, Want};

/// First pause after a passing failure; doubled up to [`LONGEST_PAUSE`].
pub const FIRST_PAUSE: Millis = 200;
const LONGEST_PAUSE: Millis = 10_000;
/// So long it is believed that what was done is there although it was not seen: a watch is not later than that.
const DONE_KEPT: Millis = 30_000;
/// So many events wait for pods at most: beyond, they go out beside them.
const MOST_EVENTS: usize = 1_000;
/// So many events are kept at most: while the server is away the oldest are the least worth telling.
const MOST_EVENTS_KEPT: usize = 10_000;

/// How many requests of each class may be under way.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Plans, and plans after a loss, each.
    pub commit: usize,
    /// Creations.
    pub create: usize,
    /// Deletions.
    pub delete: usize,
    /// Statuses that only report.
    pub report: usize,
    /// Dry runs.
    pub probe: usize,
    /// Events.
    pub event: usize,
}

impl Default for Limits {
    /// 64 creations at once saturate an API server (measured); more only lengthens its queues.
    fn default() -> Self {
        Self { commit: 16, create: 64, delete: 64, report: 16, probe: 8, event: 2 }
    }
}

/// A request under way.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// Identity.
    pub id: u64,
    /// What to do.
    pub want: Arc<Want>,
}

/// What is known of a target.
#[derive(Debug, Default)]
struct Record {
    /// What is to be sent next.
    wanted: Option<Arc<Want>>,
    /// What is under way.
    flight: Option<(u64, Arc<Want>)>,
    /// What the server has done, and when, until the object is seen again.
    done: Option<(Arc<Want>, Millis)>,
    /// Failures in a row.
    attempts: u32,
    /// What failed last.
    failed: Option<Arc<Want>>,
    /// Nothing is sent before.
    due: Millis,
    /// The line that it stands in.
    queued: Option<Class>,
}

impl Record {
    fn idle(&self) -> bool {
        self.wanted.is_none() && self.flight.is_none() && self.done.is_none() && self.attempts == 0
    }
}

/// Whether another object is wanted, not merely the same made from another version.
fn other_content(failed: &Want, want: &Want) -> bool {
    matches!((failed, want), (Want::Apply(old), Want::Apply(new)) if (&old.body, &old.patch) != (&new.body, &new.patch))
}

/// The desk.
#[derive(Debug, Default)]
pub struct Desk {
    limits: Limits,
    next_id: u64,
    records: BTreeMap<Target, Record>,
    lines: BTreeMap<Class, VecDeque<Target>>,
    delayed: BTreeSet<(Millis, Target)>,
    flying: BTreeMap<Class, usize>,
    now: Millis,
}

impl Desk {
    /// An empty desk.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// This is wanted, and nothing that was wanted of the same target before. Asking again for what is under way or was
    /// done changes nothing. Returns whether it will be sent.
    pub fn want(&mut self, want: Want) -> bool {
        let target = want.target();
        let record = self.records.entry(target.clone()).or_default();
        if record.wanted.as_deref() == Some(&want) {
            return true;
        }
        let under_way = record.flight.as_ref().is_some_and(|(_, flying)| flying.includes(&want));
        let fresh = |(done, at): &(Arc<Want>, Millis)| done.includes(&want) && at + DONE_KEPT > self.now;
        if under_way || (record.flight.is_none() && record.done.as_ref().is_some_and(fresh)) {
            self.cancel(&target);
            return under_way;
        }
        if record.failed.as_deref().is_some_and(|failed| other_content(failed, &want)) {
            // It may well be what mends the failure.
            (record.failed, record.attempts, record.due) = (None, 0, 0);
        }
        record.wanted = Some(Arc::new(want));
        self.queue(target);
        if self.waiting(Class::Event) > MOST_EVENTS_KEPT
            && let Some(oldest) = self.lines.get_mut(&Class::Event).and_then(VecDeque::pop_front)
        {
            self.records.remove(&oldest);
        }
        true
    }

    /// Nothing is wanted of a target any more. What is under way goes on.
    pub fn cancel(&mut self, target: &Target) {
        if let Some(record) = self.records.get_mut(target) {
            record.wanted = None;
            self.tidy(target);
        }
    }

    /// The object was seen again, or is gone: what was done to it before no longer stands for how it is.
    pub fn seen(&mut self, target: &Target) {
        if let Some(record) = self.records.get_mut(target) {
            record.done = None;
            self.tidy(target);
        }
    }

    /// What the server has done to a target that was not seen since.
    pub fn done(&self, target: &Target) -> Option<&Want> {
        let (done, at) = self.records.get(target)?.done.as_ref()?;
        (at + DONE_KEPT > self.now).then_some(&**done)
    }

    /// The object is gone or nobody cares for it any more: nothing of it is remembered. What is under way goes on.
    pub fn forget(&mut self, target: &Target) {
        if let Some(record) = self.records.get_mut(target) {
            (record.wanted, record.done, record.attempts, record.due) = (None, None, 0, 0);
            record.failed = None;
            self.tidy(target);
        }
    }

    /// Children of an owner that is gone are not wanted any more.
    pub fn cancel_owned(&mut self, kind: Kind, owner: &Uid) {
        let of_owner = |record: &Record| matches!(record.wanted.as_deref(), Some(Want::Apply(child)) if child.kind == kind && child.owner == *owner);
        let orphans: Vec<Target> = self
            .records
            .range(Target::first(kind)..)
            .take_while(|(target, _)| target.kind == kind)
            .filter(|(_, record)| of_owner(record))
            .map(|(target, _)| target.clone())
            .collect();
        for target in &orphans {
            self.forget(target);
        }
    }

    /// Whether a request about a target is under way.
    pub fn flies(&self, target: &Target) -> bool {
        self.records.get(target).is_some_and(|record| record.flight.is_some())
    }

    /// Whether something is wanted of a target or under way.
    pub fn busy(&self, target: &Target) -> bool {
        self.records.get(target).is_some_and(|record| record.wanted.is_some() || record.flight.is_some())
    }

    /// How many more creations may be given out now: pods are made on demand and never queue here.
    pub fn room_for_creates(&self) -> usize {
        self.limits.create.saturating_sub(self.flying(Class::Create) + self.waiting(Class::Create))
    }

    fn queue(&mut self, target: Target) {
        let Some(record) = self.records.get_mut(&target) else { return };
        let Some(want) = record.wanted.as_ref().filter(|_| record.flight.is_none()) else { return };
        let class = want.class();
        if record.due > 0 {
            self.delayed.insert((record.due, target));
        } else if record.queued != Some(class) {
            record.queued = Some(class);
            self.lines.entry(class).or_default().push_back(target);
        }
    }

    fn tidy(&mut self, target: &Target) {
        if self.records.get(target).is_some_and(Record::idle) {
            self.records.remove(target);
        }
    }

    fn flying(&self, class: Class) -> usize {
        self.flying.get(&class).copied().unwrap_or(0)
    }

    fn waiting(&self, class: Class) -> usize {
        self.lines.get(&class).map_or(0, VecDeque::len)
    }

    fn limit(&self, class: Class) -> usize {
        match class {
            Class::Commit | Class::Recovery => self.limits.commit,
            Class::Create => self.limits.create,
            Class::Delete => self.limits.delete,
            Class::Report => self.limits.report,
            Class::Probe => self.limits.probe,
            // The least urgent: they wait while pods are being created.
            Class::Event if self.creating() && self.waiting(class) < MOST_EVENTS => 0,
            Class::Event => self.limits.event,
        }
    }

    fn creating(&self) -> bool {
        self.flying(Class::Create) + self.waiting(Class::Create) > 0
    }

    /// Takes what may begin now.
    pub fn take(&mut self, now: Millis) -> Vec<Ticket> {
        self.now = now;
        while let Some((due, _)) = self.delayed.first()
            && *due <= now
            && let Some((_, target)) = self.delayed.pop_first()
        {
            if let Some(record) = self.records.get_mut(&target).filter(|record| record.due <= now) {
                record.due = 0;
            }
            self.queue(target);
        }
        let mut out = Vec::new();
        for class in Class::ALL {
            while self.flying(class) < self.limit(class)
                && let Some(target) = self.lines.get_mut(&class).and_then(VecDeque::pop_front)
            {
                out.extend(self.send(&target, class));
            }
        }
        out
    }

    fn send(&mut self, target: &Target, class: Class) -> Option<Ticket> {
        let record = self.records.get_mut(target)?;
        if record.queued != Some(class) {
            // It was wanted differently since and stands in another line.
            return None;
        }
        record.queued = None;
        if record.flight.is_some() || record.due > 0 {
            return None;
        }
        let Some(want) = record.wanted.take() else {
            self.tidy(target);
            return None;
        };
        self.next_id += 1;
        record.flight = Some((self.next_id, want.clone()));
        *self.flying.entry(class).or_default() += 1;
        Some(Ticket { id: self.next_id, want })
    }

    /// The request is over. What was wanted meanwhile goes next.
    pub fn land(&mut self, ticket: &Ticket) {
        let target = ticket.want.target();
        let flying = self.flying.entry(ticket.want.class()).or_default();
        *flying = flying.saturating_sub(1);
        if let Some(record) = self.records.get_mut(&target)
            && record.flight.as_ref().is_some_and(|(id, _)| *id == ticket.id)
        {
            record.flight = None;
            self.queue(target.clone());
            self.tidy(&target);
        }
    }

    /// It was done. `remember`: until the object is seen again the same is not asked again. The request must have landed.
    pub fn succeed(&mut self, ticket: &Ticket, remember: bool) {
        let target = ticket.want.target();
        if remember {
            self.records.entry(target.clone()).or_default().done = Some((ticket.want.clone(), self.now));
        }
        if let Some(record) = self.records.get_mut(&target) {
            (record.attempts, record.failed) = (0, None);
            self.tidy(&target);
        }
    }

    /// It failed and is wanted still, unless something newer is: sent again after a growing pause. The request must have
    /// landed. Returns when.
    pub fn again(&mut self, ticket: &Ticket, now: Millis) -> Millis {
        self.again_after(ticket, now, FIRST_PAUSE, LONGEST_PAUSE)
    }

    /// As [`Self::again`], with other pauses.
    pub fn again_after(&mut self, ticket: &Ticket, now: Millis, first: Millis, longest: Millis) -> Millis {
        let due = self.pause_for(ticket, now, first, longest);
        let target = ticket.want.target();
        if let Some(record) = self.records.get_mut(&target)
            && record.wanted.is_none()
        {
            record.wanted = Some(ticket.want.clone());
        }
        self.queue(target);
        due
    }

    /// It failed and the core decides what is wanted now: nothing is sent for this target before a growing pause is over.
    /// The request must have landed. Returns when.
    pub fn pause(&mut self, ticket: &Ticket, now: Millis) -> Millis {
        self.pause_for(ticket, now, FIRST_PAUSE, LONGEST_PAUSE)
    }

    fn pause_for(&mut self, ticket: &Ticket, now: Millis, first: Millis, longest: Millis) -> Millis {
        let target = ticket.want.target();
        let record = self.records.entry(target.clone()).or_default();
        let pause = first.saturating_mul(1 << record.attempts.min(10)).min(longest);
        record.attempts = record.attempts.saturating_add(1);
        record.failed = Some(ticket.want.clone());
        record.due = now.saturating_add(pause).max(1);
        record.queued = None;
        let due = record.due;
        self.delayed.insert((due, target));
        due
    }

    /// When the first delayed request is due.
    pub fn next_due(&self) -> Option<Millis> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Whether nothing waits or is under way.
    pub fn idle(&self) -> bool {
        self.records.values().all(|record| record.wanted.is_none() && record.flight.is_none())
    }
}
