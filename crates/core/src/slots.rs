//! The pods of one plan, slot by slot.
//!
//! ```text
//!   Plan ──▶ one slot a pod: Missing ─asked─▶ Asked ─seen─▶ Starting ──▶ Running ──▶ Done
//!                               └────────────────────────────┴─────────────┴──────▶ Lost(why)
//! ```
//!
//! A slot that is lost stays lost: a pod once seen is never made again in the same incarnation.

use muster_cluster::{PodFacts, PodPhase, Slot};
use muster_lifecycle::recovery::{self, Fault};
use muster_model::{Millis, NodeName, Plan, Uid, UnitId};
use std::collections::BTreeMap;

/// Where a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Never asked for, never seen.
    Missing,
    /// Its creation was asked for; it was not seen yet.
    Asked,
    /// Seen; no container has started.
    Starting {
        /// When it was created.
        since: Millis,
        /// The kubelet has taken it in.
        admitted: bool,
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

/// Why a pod cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What kind of fault.
    pub fault: Fault,
    /// What happened, in words.
    pub message: String,
    /// Exit code, where a container has ended.
    pub exit_code: Option<i32>,
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
            SlotState::Asked => &mut self.asked,
            SlotState::Starting { .. } => &mut self.starting,
            SlotState::Running { .. } => &mut self.running,
            SlotState::Done => &mut self.done,
            SlotState::Lost(_) => &mut self.lost,
        }
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
        self.step(slot, &SlotState::Missing, SlotState::Asked);
    }

    /// Its creation failed, or nobody knows. A pod that was seen meanwhile is there, whatever the answer said: an
    /// answer may be lost after the server did its work. Returns whether it is missing now.
    pub fn not_created(&mut self, slot: &Slot) -> bool {
        self.step(slot, &SlotState::Asked, SlotState::Missing)
    }

    /// A pod that is missing cannot be created where the plan wants it.
    pub fn misfit(&mut self, slot: &Slot, message: String) {
        let loss = Loss { fault: Fault::Misfit, message, exit_code: None };
        self.step(slot, &SlotState::Missing, SlotState::Lost(loss));
    }

    fn step(&mut self, slot: &Slot, from: &SlotState, to: SlotState) -> bool {
        let at = self.position(slot).filter(|at| self.pods[*at].state == *from);
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
    pub fn observe(&mut self, pod: &PodFacts) -> bool {
        let Some(at) = pod.slot.as_ref().and_then(|slot| self.position(slot)) else { return false };
        let planned = &mut self.pods[at];
        if planned.uid.as_ref().is_some_and(|uid| *uid != pod.uid) {
            // Someone made another pod of the name after the first was gone: the first is lost, this one is stray.
            return false;
        }
        planned.uid = Some(pod.uid.clone());
        if !matches!(planned.state, SlotState::Lost(_) | SlotState::Done) {
            let state = state_of(pod, &planned.node);
            self.put(at, state);
        }
        true
    }

    /// A pod vanished. One that had ended well stays done.
    pub fn vanished(&mut self, pod: &PodFacts) {
        let Some(at) = pod.slot.as_ref().and_then(|slot| self.position(slot)) else { return };
        let planned = &self.pods[at];
        if planned.uid.as_ref() == Some(&pod.uid)
            && !matches!(planned.state, SlotState::Lost(_) | SlotState::Done)
        {
            let started = matches!(planned.state, SlotState::Running { .. });
            let loss = Loss {
                fault: if started { Fault::PodDeleted } else { Fault::Misfit },
                message: format!("pod {} vanished from node {}", pod.key.name, planned.node),
                exit_code: None,
            };
            self.put(at, SlotState::Lost(loss));
        }
    }

    /// Marks every pod on a node that has not ended as lost.
    pub fn lose_node(&mut self, node: &NodeName, why: &str) {
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
            let loss = Loss { fault, message: format!("node {node} {why}"), exit_code: None };
            self.put(at, SlotState::Lost(loss));
        }
    }

    /// Marks every pod that was never seen as lost: all of the plan's were created once.
    pub fn lose_missing(&mut self) {
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            if planned.state == SlotState::Missing {
                let message = format!("a pod on node {} vanished while nobody looked", planned.node);
                self.put(at, SlotState::Lost(Loss { fault: Fault::PodDeleted, message, exit_code: None }));
            }
        }
    }

    /// Marks a pod that did not start within `limit` as lost, and returns when the next one would be.
    pub fn expire(&mut self, now: Millis, limit: Millis) -> Option<Millis> {
        let mut next: Option<Millis> = None;
        if self.tally.starting == 0 {
            return None;
        }
        for at in 0..self.pods.len() {
            let planned = &self.pods[at];
            let SlotState::Starting { since, admitted: false } = planned.state else { continue };
            if since + limit > now {
                next = Some(next.map_or(since + limit, |due| due.min(since + limit)));
                continue;
            }
            let patience = muster_model::duration::format(limit);
            let message = format!("node {} did not take its pod in within {patience}", planned.node);
            self.put(at, SlotState::Lost(Loss { fault: Fault::Misfit, message, exit_code: None }));
        }
        next
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
}

/// Why a pod that has failed, or is being deleted, cannot go on.
fn loss_of(pod: &PodFacts, planned: &NodeName) -> Loss {
    let seen = pod.end.clone().unwrap_or_default();
    let end = recovery::PodEnd {
        leaving: pod.leaving && !pod.terminal(),
        started: pod.started,
        exit_code: seen.exit_code,
        container: seen.container,
        init: seen.init,
        reason: seen.reason,
        message: seen.message,
        disruption: pod.disruption.clone(),
    };
    Loss {
        fault: recovery::classify(&end),
        message: end.sentence(&pod.key.name, planned),
        exit_code: end.exit_code,
    }
}

/// What a pod's facts say of its slot.
fn state_of(pod: &PodFacts, planned: &NodeName) -> SlotState {
    let lost = |fault: Fault, message: String| SlotState::Lost(Loss { fault, message, exit_code: None });
    match pod.phase {
        PodPhase::Succeeded => return SlotState::Done,
        PodPhase::Failed => {
            return SlotState::Lost(loss_of(pod, planned));
        }
        PodPhase::Pending | PodPhase::Running => {}
    }
    if pod.node.as_ref().is_some_and(|node| node != planned) {
        return lost(Fault::Misfit, format!("pod {} was bound to a node that is not planned", pod.key.name));
    }
    if pod.leaving {
        return SlotState::Lost(loss_of(pod, planned));
    }
    if pod.phase == PodPhase::Running && pod.started {
        SlotState::Running { ready: pod.ready }
    } else {
        SlotState::Starting { since: pod.created, admitted: pod.admitted }
    }
}
