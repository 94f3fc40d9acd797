//! What came of the effects.

use muster_api::GangStatus;
use muster_cluster::{PodFacts, Slot};
use muster_model::{Millis, NodeName, ObjectKey, Reason};

use super::gang::Writing;
use super::outbox::Ticket;
use super::status::Change;
use super::{Core, Shape, Wake};
use crate::effect::{Effect, Outcome};

/// First delay after a plan that the API server refused a pod of; doubled up to [`LONGEST_HOLD`].
const FIRST_HOLD: Millis = 10_000;
const LONGEST_HOLD: Millis = 600_000;
/// Delay after a status write that failed in passing.
const WRITE_AGAIN: Millis = 500;

impl Core {
    /// Takes in what came of an effect. Returns false when another leader is at work: then the term is over.
    pub fn done(&mut self, ticket: Ticket, outcome: Outcome, now: Millis) -> bool {
        self.out.landed(&ticket);
        if matches!(outcome, Outcome::Fenced) {
            return false;
        }
        match &ticket.effect {
            Effect::CreatePod { gang, slot, pod, .. } => {
                let (gang, slot, pod) = (gang.clone(), slot.clone(), pod.clone());
                self.created(&gang, &slot, &pod, outcome, now);
            }
            Effect::WriteGang { gang, version, .. } => {
                let (gang, version) = (gang.clone(), version.clone());
                self.gang_written(&gang, &version, outcome, ticket, now);
            }
            Effect::WriteJob { job, .. } => {
                let job = job.clone();
                self.job_written(&job, outcome, now);
            }
            Effect::Report { kind, name, .. } => {
                let (kind, name) = (*kind, name.clone());
                self.reported(kind, &name, &outcome, now);
            }
            Effect::ProbePod { gang, shape, .. } => {
                let (gang, shape) = (gang.clone(), *shape);
                self.probed(&gang, shape, outcome, now);
            }
            Effect::Ensure { object, .. } => {
                let (waiter, name, kind) = (object.waiter.clone(), object.key.name.clone(), object.kind);
                self.ensured(&waiter, &name, kind, outcome, ticket, now);
            }
            Effect::DeletePod { uid, .. } | Effect::ReleasePod { uid, .. } => match outcome {
                Outcome::Transient(_) => self.out.again(ticket, now),
                // The watch tells that it is gone; if the pod is still there it is asked again.
                Outcome::Conflict | Outcome::Refused(_) => {
                    if let Outcome::Refused(message) = outcome {
                        tracing::warn!(%message, "a pod cannot be deleted or released");
                    }
                    let uid = uid.clone();
                    self.forget_deletion(&uid, now);
                }
                _ => {}
            },
            Effect::ReleaseGang { gang, .. } => {
                if !matches!(outcome, Outcome::Done { .. } | Outcome::Gone) {
                    let gang = gang.clone();
                    if let Some(rt) = self.gangs.get_mut(&gang) {
                        rt.released = false;
                        self.wakes.insert((now + WRITE_AGAIN, Wake::Gang(gang)));
                    }
                }
            }
            Effect::DeleteOwned { key, .. } => match outcome {
                Outcome::Transient(_) => self.out.again(ticket, now),
                Outcome::Refused(message) => {
                    tracing::warn!(object = %key, %message, "it cannot be deleted; trying again");
                    self.out.again(ticket, now);
                }
                _ => {}
            },
            Effect::Tell(_) => match outcome {
                Outcome::Transient(_) => self.out.again(ticket, now),
                Outcome::Refused(message) => tracing::warn!(%message, "an event is refused"),
                _ => {}
            },
        }
        true
    }

    /// What came of a gang's status. A write without an answer may have been done: until that is known nothing else is
    /// decided for the gang, and a plan in it keeps its place, or others would be given the same nodes.
    fn gang_written(
        &mut self,
        key: &ObjectKey,
        version: &str,
        outcome: Outcome,
        ticket: Ticket,
        now: Millis,
    ) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let Some(mut writing) = rt.writing.take_if(|writing| writing.version == version) else { return };
        // Made from a version that is no longer there, it cannot be done any more; if it was, the watch shows it.
        let overtaken = rt.version != writing.version;
        let shown = overtaken && same(&rt.status, &writing.change.status);
        match outcome {
            Outcome::Done { version, .. } => {
                if let Some(version) = version
                    && !super::gang::older(&version, &rt.version)
                {
                    rt.version = version;
                }
                rt.commit(writing.change.status.clone(), writing.change.plan.clone());
                self.committed(key, *writing, now);
            }
            _ if shown => self.committed(key, *writing, now),
            _ if overtaken => rt.drop_decision(),
            Outcome::Refused(message) if !writing.unsure => {
                tracing::error!(gang = %key, %message, "the API server refuses the gang's status");
                rt.drop_decision();
                rt.write_after = now + FIRST_HOLD;
            }
            outcome => {
                if let Outcome::Transient(message) | Outcome::Refused(message) = outcome {
                    tracing::warn!(gang = %key, %message, "the gang's status could not be written; trying again");
                }
                // The same again: it is taken, or refused because the object has changed, which the watch will show.
                writing.unsure = true;
                rt.writing = Some(writing);
                self.out.again(ticket, now);
                return;
            }
        }
        self.dirty_gangs.insert(key.clone());
        if let Some(job) = self.job_of(key) {
            self.dirty_jobs.insert(job);
        }
    }

    /// What follows from a status that is on the server now.
    fn committed(&mut self, key: &ObjectKey, writing: Writing, now: Millis) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let Change { status, note, failed, .. } = writing.change;
        let placed = writing.places;
        rt.progressed = now;
        let refused = rt.refusal.as_ref().or(rt.request.as_ref().err()).map(Reason::code);
        if let Some(code) = refused.filter(|code| status.reason.as_deref() == Some(*code)) {
            *self.counters.refused.entry(code).or_default() += 1;
        }
        if placed {
            self.counters.placed += 1;
        }
        if let Some(reason) = failed {
            rt.failed_plan = None;
            rt.failures += 1;
            rt.hold = Some((now + hold(rt.failures), reason));
            self.counters.plans_failed += 1;
        } else if rt.phase() == muster_api::GangPhase::Running {
            rt.failures = 0;
        }
        if let Some(restart) = status.restarts.last().filter(|_| placed)
            && status.plan.as_ref().is_some_and(|plan| plan.generation == restart.generation)
        {
            *self.counters.restarts.entry(restart.cause.clone()).or_default() += 1;
        }
        if let Some((reason, message, warning)) = note {
            self.tell_gang(key, &reason, message, warning);
        }
        self.after_commit(key);
    }

    /// A pod that was counted on does not come: others may wait for its room.
    fn not_made(&mut self, pod: &ObjectKey) {
        if let Some(node) = self.cluster.not_expected(pod) {
            self.room_on(&node);
        }
    }

    fn created(&mut self, gang: &ObjectKey, slot: &Slot, pod: &ObjectKey, outcome: Outcome, now: Millis) {
        if let Outcome::Done { .. } = outcome {
            // The watch brings the pod; nothing follows from the answer alone.
            self.counters.pods_created += 1;
            return;
        }
        self.not_made(pod);
        let Some(rt) = self.gangs.get_mut(gang) else { return };
        self.dirty_gangs.insert(gang.clone());
        if !rt.slots.not_created(slot) {
            return;
        }
        match outcome {
            Outcome::Exists(facts) => {
                let facts = *facts;
                let ours = facts.gang.as_ref() == Some(&rt.uid()) && facts.slot.as_ref() == Some(slot);
                if ours {
                    rt.slots.observe(&facts);
                    self.cluster.set_pod(facts);
                } else {
                    rt.failed_plan = Some(Reason::PodRefused {
                        message: format!("a pod named {pod} that is not this gang's exists already"),
                    });
                }
            }
            Outcome::Refused(message) => {
                rt.failed_plan = Some(Reason::PodRefused { message });
                self.creating.remove(gang);
            }
            outcome => {
                if let Outcome::Transient(message) = outcome {
                    tracing::debug!(%pod, %message, "a pod could not be created; trying again");
                }
                rt.create_after = now + WRITE_AGAIN;
                self.wakes.insert((rt.create_after, Wake::Gang(gang.clone())));
            }
        }
    }

    fn probed(&mut self, gang: &ObjectKey, shape: u64, outcome: Outcome, now: Millis) {
        let waiting = match self.shapes.remove(&shape) {
            Some(Shape::Asked(waiting)) => waiting,
            other => {
                if let Some(known) = other {
                    self.shapes.insert(shape, known);
                }
                [gang.clone()].into()
            }
        };
        match outcome {
            Outcome::Probed(probe) => match probe.problem {
                None => {
                    self.shapes.insert(shape, Shape::Known(Box::new(probe.learned), probe.claims, now));
                }
                Some(reason) => {
                    for key in &waiting {
                        if let Some(rt) = self.gangs.get_mut(key).filter(|rt| rt.plan.is_none()) {
                            rt.hold = Some((now + FIRST_HOLD, reason.clone()));
                        }
                    }
                }
            },
            Outcome::Refused(message) => {
                for key in &waiting {
                    if let Some(rt) = self.gangs.get_mut(key) {
                        rt.failures += 1;
                        let reason = Reason::PodRefused { message: message.clone() };
                        rt.hold = Some((now + hold(rt.failures), reason));
                    }
                }
            }
            Outcome::Gone => {
                let message = format!("namespace {:?} does not exist", gang.namespace);
                for key in &waiting {
                    if let Some(rt) = self.gangs.get_mut(key) {
                        rt.hold = Some((now + FIRST_HOLD, Reason::PodRefused { message: message.clone() }));
                    }
                }
            }
            _ => {
                for key in &waiting {
                    self.wakes.insert((now + WRITE_AGAIN, Wake::Gang(key.clone())));
                }
                return;
            }
        }
        for key in &waiting {
            if let Some(rt) = self.gangs.get_mut(key) {
                rt.request_stale = true;
            }
        }
        self.dirty_gangs.extend(waiting);
    }

    fn forget_deletion(&mut self, uid: &muster_model::Uid, now: Millis) {
        let Some(key) =
            self.cluster.pod(uid).and_then(|pod| pod.gang.as_ref()).and_then(|gang| self.by_uid.get(gang))
        else {
            return;
        };
        if let Some(rt) = self.gangs.get_mut(key) {
            rt.deleting.remove(uid);
            rt.releasing.remove(uid);
            self.wakes.insert((now + FIRST_HOLD, Wake::Gang(key.clone())));
        }
    }

    /// A kubelet refused a pod for lack of what its node's status promises: it is believed until the status changes.
    pub(super) fn distrust(&mut self, node: &NodeName, pod: &PodFacts, now: Millis) {
        let until = now + self.config.avoid_for;
        self.cluster.distrust(node, &pod.requests);
        self.distrusted.insert(node.clone(), until);
        self.wakes.insert((until, Wake::Node(node.clone())));
    }
}

/// How long a gang waits after so many failures in a row.
fn hold(failures: u32) -> Millis {
    FIRST_HOLD.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(LONGEST_HOLD)
}

/// Whether a status on the server is the one that was written. What the server adds or leaves out of the rest does
/// not matter: two statuses with the same plan and the same reason for it mean the same.
fn same(there: &GangStatus, written: &GangStatus) -> bool {
    there.plan == written.plan
        && there.phase == written.phase
        && there.reason == written.reason
        && there.message == written.message
        && there.epoch == written.epoch
}
