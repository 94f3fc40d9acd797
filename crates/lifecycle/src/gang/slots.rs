//! The pods of one plan, slot by slot.
//!
//! ```text
//!   Plan ──▶ one slot a pod: Missing ─ask─▶ Asked ─seen─▶ Starting ──▶ Running ──▶ Done
//!                               └──────────────┴────────────┴─────────────┴──────▶ Lost(why)
//! ```
//!
//! A slot that is lost stays lost: a pod once seen is never made again in the same incarnation. The one exception is a
//! pod that was given up with its node and then reports that it had ended well.

use muster_model::{Millis, NodeName, Plan, Slot, Uid, UnitId, duration};
use std::collections::BTreeMap;

use super::sight::{Loss, Says, Sight};
use crate::recovery::Fault;

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Never asked for, never seen.
    Missing,
    /// Its creation was asked for; it was not seen yet.
    Asked {
        /// The resourceVersion with which the server says that it made it, once it says so.
        made: Option<u64>,
    },
    /// Seen; no container has started.
    Starting {
        /// When it was first seen.
        since: Millis,
        /// The kubelet has taken it in.
        admitted: bool,
        /// Why it does not start; empty if nobody says.
        waits: String,
        /// Since when that is an error of what it asks for.
        failing: Option<Millis>,
    },
    /// Its containers run.
    Running {
        /// It is Ready.
        ready: bool,
    },
    /// It ended well.
    Done,
    /// It cannot go on.
    Lost(Loss),
}

/// One pod of a plan.
#[derive(Clone, Debug)]
pub struct PlannedPod {
    /// Its place.
    pub slot: Slot,
    /// Its node.
    pub node: NodeName,
    /// Where it stands.
    pub state: SlotState,
    /// The pod that was seen.
    pub uid: Option<Uid>,
}

impl PlannedPod {
    /// Why it does not start, where somebody says; else empty.
    pub fn waits(&self) -> &str {
        if let SlotState::Starting { waits, .. } = &self.state { waits } else { "" }
    }
}

/// All pods of a plan.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    pods: Vec<PlannedPod>,
    /// Kept in step with every change of state: a gang may have ten thousand pods, and each is an event.
    tally: Tally,
    /// Unit → position of its first pod, number of its pods, incarnation.
    units: BTreeMap<UnitId, (usize, usize, u64)>,
}

/// How many pods stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Never asked for.
    pub missing: usize,
    /// Asked for, not seen.
    pub asked: usize,
    /// Seen, not started.
    pub starting: usize,
    /// Running.
    pub running: usize,
    /// Ended well.
    pub done: usize,
    /// Lost.
    pub lost: usize,
    /// All of them.
    pub all: usize,
}

impl Tally {
    fn of(&mut self, state: &SlotState) -> &mut usize {
        match state {
            SlotState::Missing => &mut self.missing,
            SlotState::Asked { .. } => &mut self.asked,
            SlotState::Starting { .. } => &mut self.starting,
            SlotState::Running { .. } => &mut self.running,
            SlotState::Done => &mut self.done,
            SlotState::Lost(_) => &mut self.lost,
        }
    }

    /// Pods of which a container has started or has ended well.
    pub fn up(&self) -> usize {
        self.running + self.done
    }
}

impl Slots {
    /// The slots of a plan. Those of units that keep their incarnation keep their state.
    pub fn of(plan: &Plan, before: &Self) -> Self {
        let mut slots = Self::default();
        for unit in &plan.units {
            let id = &unit.placed.id;
            let kept = before.units.get(id).filter(|(_, _, incarnation)| *incarnation == unit.incarnation);
            slots.units.insert(id.clone(), (slots.pods.len(), unit.placed.nodes.len(), unit.incarnation));
            for (index, node) in unit.placed.nodes.iter().enumerate() {
                let old = kept
                    .and_then(|(first, count, _)| before.pods.get(first + index).filter(|_| index < *count));
                let pod = old.cloned().unwrap_or_else(|| PlannedPod {
                    slot: Slot { unit: id.clone(), incarnation: unit.incarnation, index: index as u32 },
                    node: node.clone(),
                    state: SlotState::Missing,
                    uid: None,
                });
                *slots.tally.of(&pod.state) += 1;
                slots.tally.all += 1;
                slots.pods.push(pod);
            }
        }
        slots
    }

    /// All pods, in the order of the plan.
    pub fn iter(&self) -> impl Iterator<Item = &PlannedPod> {
        self.pods.iter()
    }

    fn position(&self, slot: &Slot) -> Option<usize> {
        let (first, count, incarnation) = self.units.get(&slot.unit)?;
        (*incarnation == slot.incarnation && (slot.index as usize) < *count)
            .then(|| first + slot.index as usize)
    }

    /// The pod of a slot, if the plan has it in this incarnation.
    pub fn get(&self, slot: &Slot) -> Option<&PlannedPod> {
        self.pods.get(self.position(slot)?)
    }

    /// The creation of a pod that was missing is asked for.
    pub fn ask(&mut self, slot: &Slot) {
        self.step(slot, |state| matches!(state, SlotState::Missing), SlotState::Asked { made: None });
    }

    /// The server says that it made the pod that was asked for, with this resourceVersion.
    pub fn made(&mut self, slot: &Slot, version: Option<u64>) {
        self.step(slot, |state| matches!(state, SlotState::Asked { .. }), SlotState::Asked { made: version });
    }

    /// Its creation failed, or nobody knows. A pod that was seen meanwhile is there, whatever the answer said: an
    /// answer may be lost after the server did its work. Returns whether it is missing now.
    pub fn not_created(&mut self, slot: &Slot) -> bool {
        self.step(slot, |state| matches!(state, SlotState::Asked { .. }), SlotState::Missing)
    }

    /// A pod that is missing cannot be created where the plan wants it.
    pub fn misfit(&mut self, slot: &Slot, message: String) {
        let lost = SlotState::Lost(Loss::judged(Fault::Misfit, message));
        self.step(slot, |state| matches!(state, SlotState::Missing), lost);
    }

    /// All pods that exist with at most this resourceVersion have been seen: one that was made before and was not seen has
    /// come and gone. Returns the places of those.
    pub fn seen_up_to(&mut self, version: u64) -> Vec<Slot> {
        let mut gone = Vec::new();
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            if matches!(planned.state, SlotState::Asked { made: Some(made) } if made <= version) {
                let message = format!("a pod on node {} vanished while nobody looked", planned.node);
                gone.push(planned.slot.clone());
                self.put(at, SlotState::Lost(Loss::judged(Fault::PodDeleted, message)));
            }
        }
        gone
    }

    fn step(&mut self, slot: &Slot, from: impl Fn(&SlotState) -> bool, to: SlotState) -> bool {
        let at = self.position(slot).filter(|at| from(&self.pods[*at].state));
        if let Some(at) = at {
            self.put(at, to);
        }
        at.is_some()
    }

    fn put(&mut self, at: usize, state: SlotState) {
        *self.tally.of(&self.pods[at].state) -= 1;
        *self.tally.of(&state) += 1;
        self.pods[at].state = state;
    }

    /// Takes in what was seen of a pod. Returns whether the pod is one of the plan's.
    pub fn observe(&mut self, slot: &Slot, sight: &Sight<'_>, now: Millis) -> bool {
        let Some(at) = self.position(slot) else { return false };
        let planned = &mut self.pods[at];
        if planned.uid.as_ref().is_some_and(|uid| uid != sight.uid) {
            // Someone made another pod of the name after the first was gone: the first is lost, this one is stray.
            return false;
        }
        planned.uid = Some(sight.uid.clone());
        let says = sight.says(&planned.node);
        let state = match (&planned.state, says) {
            // It was given up with its node, and had ended well before.
            (SlotState::Lost(loss), Says::Done) if !loss.reported => SlotState::Done,
            (SlotState::Done | SlotState::Lost(_), _) => return true,
            (SlotState::Starting { since, failing, .. }, Says::Starting { admitted, waits }) => {
                let failing = is_error(&waits).then(|| failing.unwrap_or(now));
                SlotState::Starting { since: *since, admitted, waits, failing }
            }
            (_, Says::Starting { admitted, waits }) => {
                let failing = is_error(&waits).then_some(now);
                SlotState::Starting { since: now, admitted, waits, failing }
            }
            (_, Says::Running { ready }) => SlotState::Running { ready },
            (_, Says::Done) => SlotState::Done,
            (_, Says::Lost(loss)) => SlotState::Lost(loss),
        };
        if state != planned.state {
            self.put(at, state);
        }
        true
    }

    /// A pod vanished. One that had ended well stays done.
    pub fn vanished(&mut self, slot: &Slot, uid: &Uid, name: &str) {
        let Some(at) = self.position(slot) else { return };
        let planned = &self.pods[at];
        if planned.uid.as_ref() == Some(uid) && !matches!(planned.state, SlotState::Lost(_) | SlotState::Done)
        {
            let started = matches!(planned.state, SlotState::Running { .. });
            let fault = if started { Fault::PodDeleted } else { Fault::Misfit };
            let message = format!("pod {name} vanished from node {}", planned.node);
            self.put(at, SlotState::Lost(Loss { reported: true, ..Loss::judged(fault, message) }));
        }
    }

    /// Marks every pod on a node that has not ended as lost. Returns whether there was one.
    pub fn lose_node(&mut self, node: &NodeName, why: &str) -> bool {
        let before = self.tally.lost;
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            if planned.node != *node {
                continue;
            }
            let fault = match planned.state {
                SlotState::Lost(_) | SlotState::Done => continue,
                SlotState::Running { .. } => Fault::NodeLost,
                // Nothing of it has run: another node will do, at no cost.
                _ => Fault::Misfit,
            };
            self.put(at, SlotState::Lost(Loss::judged(fault, format!("node {node} {why}"))));
        }
        self.tally.lost > before
    }

    /// Marks every pod that was never seen as lost: all of the plan's were created once. Those that are known to have
    /// ended well, by their position in the plan, are done.
    pub fn lose_missing(&mut self, done: impl Fn(usize) -> bool) {
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            if planned.state != SlotState::Missing {
                continue;
            }
            if done(at) {
                self.put(at, SlotState::Done);
                continue;
            }
            let message = format!("a pod on node {} vanished while nobody looked", planned.node);
            self.put(at, SlotState::Lost(Loss::judged(Fault::PodDeleted, message)));
        }
    }

    /// Marks a pod that its kubelet did not take in within `limit` as lost, and returns when the next one would be.
    pub fn expire(&mut self, now: Millis, limit: Millis) -> Option<Millis> {
        let mut next: Option<Millis> = None;
        if self.tally.starting == 0 {
            return None;
        }
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            let SlotState::Starting { since, admitted: false, waits, .. } = &planned.state else { continue };
            let due = since.saturating_add(limit);
            if due > now {
                next = Some(next.map_or(due, |next| next.min(due)));
                continue;
            }
            let patience = duration::format(limit);
            let why = if waits.is_empty() { String::new() } else { format!(": {waits}") };
            let message = format!("node {} did not take its pod in within {patience}{why}", planned.node);
            self.put(at, SlotState::Lost(Loss::judged(Fault::Misfit, message)));
        }
        next
    }

    /// Gives up the pods that have not started: their nodes took them in, and nothing came of it.
    pub fn give_up_starting(&mut self, limit: Millis) {
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            let SlotState::Starting { waits, .. } = &planned.state else { continue };
            let why = if waits.is_empty() { String::new() } else { format!(": {waits}") };
            let patience = duration::format(limit);
            let message = format!("its pod on node {} did not start within {patience}{why}", planned.node);
            self.put(at, SlotState::Lost(Loss::judged(Fault::Misfit, message)));
        }
    }

    /// The first pod that says why it does not start.
    pub fn first_waiting(&self) -> Option<(&PlannedPod, &str)> {
        let pods = if self.tally.starting == 0 { &[] } else { self.pods.as_slice() };
        pods.iter().map(|planned| (planned, planned.waits())).find(|(_, waits)| !waits.is_empty())
    }

    /// The pod whose kubelet has named an error for the longest, since when, and the error.
    pub fn first_failing(&self) -> Option<(&PlannedPod, Millis, &str)> {
        let pods = if self.tally.starting == 0 { &[] } else { self.pods.as_slice() };
        let failing = pods.iter().filter_map(|planned| match &planned.state {
            SlotState::Starting { failing: Some(since), waits, .. } => {
                Some((planned, *since, waits.as_str()))
            }
            _ => None,
        });
        failing.min_by_key(|(_, since, _)| *since)
    }

    /// How many pods stand where.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Units all of whose pods run (or have ended well).
    pub fn ready_units(&self) -> u32 {
        let up = |planned: &PlannedPod| matches!(planned.state, SlotState::Running { .. } | SlotState::Done);
        self.units
            .values()
            .filter(|(first, count, _)| self.pods[*first..first + count].iter().all(up))
            .count() as u32
    }

    /// The lost pods.
    pub fn lost(&self) -> impl Iterator<Item = (&PlannedPod, &Loss)> {
        let pods = if self.tally.lost == 0 { &[] } else { self.pods.as_slice() };
        pods.iter().filter_map(|planned| match &planned.state {
            SlotState::Lost(loss) => Some((planned, loss)),
            _ => None,
        })
    }

    /// Positions, in the order of the plan, of the pods that ended well.
    pub fn done(&self) -> impl Iterator<Item = usize> {
        let pods = if self.tally.done == 0 { &[] } else { self.pods.as_slice() };
        pods.iter().enumerate().filter(|(_, planned)| planned.state == SlotState::Done).map(|(at, _)| at)
    }
}

/// Reasons by which a kubelet says that what the pod asks for is not there or is wrong, wherever it runs.
const ERRORS: [&str; 10] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "FailedMount",
    "PreCreateHookError",
];

fn is_error(waits: &str) -> bool {
    ERRORS.iter().any(|error| waits.starts_with(error))
}
