//! What came of the wants.

use muster_api::GangStatus;
use muster_model::{Millis, ObjectKey, Reason, Slot};

use crate::desk::Ticket;
use crate::gang::{self, GangRt, older};
use crate::shared::{Shared, Wake};
use crate::want::{Facet, Kind, Outcome, Target, Want};
use crate::{Core, reports};

/// Delay after a status that the server will not have.
const REFUSED_AGAIN: Millis = 10_000;
/// A gang whose pods the server will not have, or whose claim is not ready, is looked at again after so long.
const SHAPE_AGAIN: Millis = 10_000;
/// So long after an attempt without an answer a pod may still appear: the server's limit for a request, and a late watch.
const MAY_BE_DONE: Millis = 90_000;
/// Creations that fail in passing for so long break the plan: the part of the gang that exists would wait in vain.
const CREATE_LIMIT: Millis = 300_000;

impl Core {
    /// Takes in what came of a want. Returns false when another leader is at work: then the term is over.
    pub fn done(&mut self, ticket: &Ticket, outcome: Outcome, now: Millis) -> bool {
        self.shared.at(now);
        self.shared.desk.land(ticket);
        if matches!(outcome, Outcome::Fenced) {
            return false;
        }
        let want = ticket.want.clone();
        match &*want {
            Want::CreatePod { gang, slot, pod, .. } => self.created(gang, slot, pod, outcome),
            Want::WriteGang { gang, version, .. } => self.gang_written(ticket, gang, version, outcome),
            Want::ReadGang { gang } => self.gang_read(ticket, gang, outcome),
            Want::Probe { namespace, shape, .. } => self.probed(ticket, namespace, shape, outcome),
            Want::EndPod { uid, .. } => self.pod_ended(ticket, uid, outcome),
            Want::Guard { gang, .. } => self.guarded(ticket, gang, outcome),
            Want::Apply(child) if child.kind == Kind::Gang => {
                self.gang_applied(ticket, &child.owner, outcome);
            }
            Want::Apply(child) => self.child_applied(ticket, &child.owner, &child.key, outcome),
            Want::WriteJob { .. } => self.workload_written(ticket, &outcome),
            Want::Report { kind, .. } => reports::written(self, ticket, *kind, &outcome),
            Want::Remark { .. } => self.remarked(ticket, outcome),
            Want::Delete { key, .. } => self.deleted(ticket, key, outcome),
            Want::Tell(_) => self.told(ticket, outcome),
        }
        true
    }

    /// What came of a gang's status. A write without an answer may have been done: until that is known nothing else is
    /// decided for the gang, and a plan in it keeps its place, or others would be given the same nodes.
    fn gang_written(&mut self, ticket: &Ticket, key: &ObjectKey, version: &str, outcome: Outcome) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        let Some(rt) = self.gangs.get_mut(key) else {
            shared.desk.forget(&ticket.want.target());
            return;
        };
        let Some(mut writing) = rt.writing.take_if(|writing| writing.version == version) else { return };
        // Made from a version that is no longer there, it cannot be done any more; if it was, the watch shows it.
        let overtaken = rt.version != writing.version;
        let shown = overtaken && same(&rt.status, &writing.change.status);
        match outcome {
            Outcome::Done { version, .. } => {
                shared.desk.succeed(ticket, false);
                if let Some(version) = version
                    && !older(&version, &rt.version)
                {
                    rt.version = version;
                }
                rt.commit(writing.change.status.clone(), writing.change.plan.clone(), shared);
                gang::committed(shared, rt, *writing);
            }
            _ if shown => {
                shared.desk.succeed(ticket, false);
                gang::committed(shared, rt, *writing);
            }
            _ if overtaken => rt.drop_decision(),
            Outcome::Refused(message) if writing.unsure.is_none() => rt.refuse(&message, now),
            Outcome::Gone => {
                // The watch tells that it is gone.
                rt.drop_decision();
                rt.write_after = now + REFUSED_AGAIN;
            }
            Outcome::Refused(message) => {
                // It is refused now and may have been taken before: the object tells.
                tracing::warn!(gang = %key, %message, "a gang's status without an answer is refused now; looking");
                writing.refused = message;
                rt.writing = Some(writing);
                shared.desk.want(Want::ReadGang { gang: key.clone() });
                return;
            }
            outcome => {
                if let Outcome::Transient(message) = outcome {
                    tracing::warn!(gang = %key, %message, "the gang's status could not be written; trying again");
                }
                // The same again: it is taken, or refused because the object has changed, which the watch will show.
                writing.unsure = Some(now);
                rt.writing = Some(writing);
                shared.desk.again(ticket, now);
                return;
            }
        }
        shared.dirty_gangs.insert(key.clone());
        rt.touch_owner(shared);
    }

    /// How a gang is whose status was refused after an attempt without an answer.
    fn gang_read(&mut self, ticket: &Ticket, key: &ObjectKey, outcome: Outcome) {
        let now = self.shared.now.at;
        match outcome {
            Outcome::Gang(object)
                if self.gangs.get(key).is_some_and(|rt| rt.uid == crate::uid_of(&object.metadata)) =>
            {
                let version = object.metadata.resource_version.clone().unwrap_or_default();
                self.set_gang(*object);
                let Some(rt) = self.gangs.get_mut(key) else { return };
                if rt.writing.as_ref().is_some_and(|writing| writing.may_come(&version, now)) {
                    // Its places are kept: given to others, they would be promised twice.
                    self.shared.desk.again(ticket, now);
                    return;
                }
                self.shared.desk.succeed(ticket, false);
                if let Some(writing) = rt.writing.take() {
                    if version == writing.version {
                        // It was never done, and will not be.
                        rt.refuse(&writing.refused, now);
                    } else if same(&rt.status, &writing.change.status) {
                        gang::committed(&mut self.shared, rt, *writing);
                    } else {
                        rt.drop_decision();
                    }
                }
                self.shared.dirty_gangs.insert(key.clone());
            }
            // Or another of the name is there.
            Outcome::Gone | Outcome::Gang(_) => {
                self.shared.desk.forget(&ticket.want.target());
                if let Some(rt) = self.gangs.get_mut(key) {
                    rt.writing = None;
                    rt.drop_decision();
                }
            }
            _ => {
                self.shared.desk.again(ticket, now);
            }
        }
    }

    fn created(&mut self, gang: &ObjectKey, slot: &Slot, pod: &ObjectKey, outcome: Outcome) {
        let shared = &mut self.shared;
        let rt = self.gangs.get_mut(gang);
        if let Outcome::Done { version, .. } = outcome {
            // The watch brings the pod; only if it never does, the version tells that it is gone.
            shared.counters.pods_created += 1;
            if let Some(holding) = rt.and_then(|rt| rt.life.holding_mut()) {
                holding.pause.succeed();
            }
            if let Some(slots) = self.gangs.get_mut(gang).and_then(|rt| rt.life.slots_mut()) {
                slots.made(slot, version.and_then(|version| version.parse().ok()));
            }
            return;
        }
        if matches!(outcome, Outcome::Transient(_) | Outcome::Exists(_)) {
            // It may be there: its room is its own until it is asked for again, or must have been seen.
            let at = shared.now.at + MAY_BE_DONE;
            shared.doubtful.push_back((at, pod.clone()));
            shared.wakes.insert(at, Wake::Turn);
        } else if let Some(node) = shared.cluster.not_expected(pod) {
            // A pod that was counted on does not come: others may wait for its room.
            shared.room_on(&node);
        }
        let Some(rt) = rt else { return };
        shared.dirty_gangs.insert(gang.clone());
        let missing = rt.life.slots_mut().is_some_and(|slots| slots.not_created(slot));
        if missing {
            not_created(shared, rt, slot, pod, outcome);
        }
    }

    fn pod_ended(&mut self, ticket: &Ticket, uid: &muster_model::Uid, outcome: Outcome) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        match outcome {
            // The watch tells what became of it.
            Outcome::Done { .. } | Outcome::Gone => shared.desk.succeed(ticket, true),
            Outcome::Transient(_) => {
                shared.desk.again(ticket, now);
            }
            outcome => {
                if let Outcome::Refused(message) = outcome {
                    tracing::warn!(%message, "a pod cannot be deleted or released; trying again");
                }
                let at = shared.desk.pause(ticket, now);
                let pod = shared.cluster.pod(uid);
                let key = pod.and_then(|pod| shared.by_uid.get(pod.gang.as_ref()?)).cloned();
                match key {
                    Some(key) => shared.wake_gang(&key, at),
                    // Nobody looks at an orphan again.
                    None if pod.is_some() => {
                        shared.desk.again(ticket, now);
                    }
                    None => shared.desk.forget(&ticket.want.target()),
                }
            }
        }
    }

    /// Our finalizer was put on a gang, or taken off.
    fn guarded(&mut self, ticket: &Ticket, gang: &ObjectKey, outcome: Outcome) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        match outcome {
            Outcome::Done { .. } | Outcome::Gone => shared.desk.succeed(ticket, true),
            outcome => {
                if let Outcome::Refused(message) = outcome {
                    tracing::warn!(%gang, %message, "the gang's finalizer cannot be changed; trying again");
                }
                let at = shared.desk.pause(ticket, now);
                shared.wake_gang(gang, at);
            }
        }
    }

    /// What came of a Service or hostfile.
    fn child_applied(
        &mut self,
        ticket: &Ticket,
        owner: &muster_model::Uid,
        child: &ObjectKey,
        outcome: Outcome,
    ) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        let Some(key) = shared.by_uid.get(owner).cloned() else {
            shared.desk.forget(&ticket.want.target());
            return;
        };
        let Some(rt) = self.gangs.get_mut(&key) else { return };
        match outcome {
            Outcome::Done { .. } => shared.desk.succeed(ticket, true),
            Outcome::Refused(message) => {
                shared.desk.pause(ticket, now);
                let kind = ticket.want.target().kind.name();
                let message = format!("the API server refused {kind} {}: {message}", child.name);
                rt.life.broken(Reason::PodRefused { message });
            }
            Outcome::Foreign(whose) => {
                shared.desk.pause(ticket, now);
                let message = format!("{} exists and {whose}; rename or delete it", child.name);
                rt.life.broken(Reason::PodRefused { message });
            }
            // It changed or went under our hands: the watch shows how it is.
            _ => {
                let at = shared.desk.pause(ticket, now);
                shared.wake_gang(&key, at);
            }
        }
        rt.look_at_children = true;
        shared.dirty_gangs.insert(key);
    }

    fn deleted(&mut self, ticket: &Ticket, key: &ObjectKey, outcome: Outcome) {
        let shared = &mut self.shared;
        match outcome {
            Outcome::Done { .. } | Outcome::Gone => shared.desk.succeed(ticket, true),
            // Another of the name is there: the one that was to go is gone.
            Outcome::Conflict => shared.desk.forget(&ticket.want.target()),
            outcome => {
                if let Outcome::Refused(message) = outcome {
                    tracing::warn!(object = %key, %message, "it cannot be deleted; trying again");
                }
                shared.desk.again(ticket, shared.now.at);
            }
        }
    }

    /// That an object cannot be read was said on it, or not: then its event says so.
    fn remarked(&mut self, ticket: &Ticket, outcome: Outcome) {
        let shared = &mut self.shared;
        match outcome {
            Outcome::Transient(_) => {
                shared.desk.again(ticket, shared.now.at);
            }
            outcome => {
                if let Outcome::Refused(message) = outcome {
                    tracing::warn!(%message, "the status of an unreadable object cannot be written");
                }
                shared.desk.forget(&ticket.want.target());
            }
        }
    }

    fn told(&mut self, ticket: &Ticket, outcome: Outcome) {
        let shared = &mut self.shared;
        match outcome {
            Outcome::Transient(_) => {
                shared.desk.again(ticket, shared.now.at);
                return;
            }
            Outcome::Refused(message) => tracing::warn!(%message, "an event is refused"),
            _ => {}
        }
        shared.desk.forget(&ticket.want.target());
    }

    /// What came of a dry run: for all who waited for it.
    pub(crate) fn probed(&mut self, ticket: &Ticket, namespace: &str, shape: &str, outcome: Outcome) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        let Some(waiting) = shared.shapes.answered(shape) else { return };
        let trouble = match outcome {
            Outcome::Probed(probe) if probe.problem.is_none() => {
                shared.shapes.learn(shape, probe.learned, probe.claims, now);
                None
            }
            Outcome::Probed(probe) => probe.problem.map(|reason| (reason, false)),
            Outcome::Refused(message) => {
                let message = format!("the API server refuses its pods: {message}");
                Some((Reason::PodRefused { message }, true))
            }
            Outcome::Gone => {
                let message = format!("namespace {namespace:?} does not exist");
                Some((Reason::PodRefused { message }, false))
            }
            _ => {
                let at = shared.desk.pause(ticket, now);
                for key in &waiting {
                    shared.wake_gang(key, at);
                }
                return;
            }
        };
        let target = Target {
            kind: Kind::Pod,
            facet: Facet::Probe,
            key: ObjectKey::new(namespace.to_owned(), shape.to_owned()),
        };
        shared.desk.forget(&target);
        for key in waiting {
            let Some(rt) = self.gangs.get_mut(&key) else { continue };
            rt.request_stale = true;
            if trouble.is_none() && rt.life.holding().is_some() {
                // Its volumes were bound for it: from now on that is part of what its plan stands on.
                gang::rebase(shared, rt);
            }
            match &trouble {
                Some((reason, true)) => gang::fail(rt, now, reason.clone()),
                Some((reason, false)) => rt.life.hold(now + SHAPE_AGAIN, reason.clone()),
                None => {}
            }
            shared.dirty_gangs.insert(key);
        }
    }
}

/// A pod does not come: what that means for its gang.
fn not_created(shared: &mut Shared, rt: &mut GangRt, slot: &Slot, pod: &ObjectKey, outcome: Outcome) {
    let now = shared.now.at;
    match outcome {
        // Our own is shown by the watch: taken from an answer, it could be older than what the watch has told already.
        Outcome::Exists(facts) if rt.slot_of(&facts).as_ref() != Some(slot) => {
            let message = format!("a pod named {} that is not this gang's exists already", pod.name);
            rt.life.broken(Reason::PodRefused { message });
        }
        Outcome::Refused(message) => {
            let message = format!("the API server refused pod {}: {message}", pod.name);
            rt.life.broken(Reason::PodRefused { message });
            shared.creating.remove(&rt.key);
        }
        outcome => {
            let message = match outcome {
                Outcome::Transient(message) => message,
                Outcome::Exists(_) => "it exists already".to_owned(),
                Outcome::Gone => "its namespace is gone or ending".to_owned(),
                _ => "the API server gave no usable answer".to_owned(),
            };
            tracing::debug!(pod = %pod, %message, "a pod could not be created; trying again");
            let Some(holding) = rt.life.holding_mut() else { return };
            holding.pause.fail(now);
            holding.uncreated.clone_from(&message);
            let (until, since) = (holding.pause.until, holding.pause.since);
            shared.creating.remove(&rt.key);
            shared.wake_gang(&rt.key, until);
            if since + CREATE_LIMIT <= now {
                let limit = muster_model::duration::format(CREATE_LIMIT);
                let message = format!("no pod could be created for {limit}: {message}");
                rt.life.broken(Reason::NotStarting { message });
            }
        }
    }
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

impl GangRt {
    /// The server will not have its status. A plan that it refuses is told as the reason why the gang waits; all else is
    /// tried again after a while.
    fn refuse(&mut self, message: &str, now: Millis) {
        tracing::error!(gang = %self.key, %message, "the API server refuses the gang's status");
        let plan = self.life.waiting().is_some_and(|waiting| waiting.decided.is_some());
        self.drop_decision();
        if plan {
            let message = format!("the API server refuses the gang's status: {message}");
            gang::fail(self, now, Reason::PodRefused { message });
        } else {
            self.write_after = now + REFUSED_AGAIN;
        }
    }

    /// Forgets a decision that could not be committed; the engine is asked again.
    fn drop_decision(&mut self) {
        self.life.drop_decision();
        self.told = None;
    }
}
