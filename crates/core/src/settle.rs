//! One gang, one step: what should its status be; if it is that, what is to be done.

use muster_api::GangPhase;
use muster_model::{Gang, Millis, ObjectKey, Plan, Reason, RecoveryStep as Step};

use super::gang::{GangRt, Writing};
use super::recover::{self, Verdict};
use super::status::{Change, RETELL};
use super::{Core, Wake};
use crate::effect::Effect;

/// How often at most the start limit of a gang's pods is looked at.
const LOOK_EVERY: Millis = 1_000;

impl Core {
    /// Looks at a gang and does what follows.
    pub(super) fn settle(&mut self, key: &ObjectKey, now: Millis) {
        if !self.gangs.contains_key(key) {
            return;
        }
        self.look(key, now);
        if self.gangs.get(key).is_some_and(GangRt::leaving) {
            self.inform_engine(key, true);
            self.clear_out(key);
            return;
        }
        let blocked = self.blocked(key, now);
        if let Some(change) = self.change(key, now) {
            let urgent = change.urgent;
            self.write(key, change);
            if urgent {
                return;
            }
        }
        if self
            .gangs
            .get(key)
            .is_some_and(|rt| rt.writing.as_ref().is_some_and(|writing| writing.change.urgent))
        {
            return;
        }
        self.inform_engine(key, blocked);
        self.act(key, now);
    }

    /// Time and nodes: pods that did not start in time, nodes that are not ready, holds that are over.
    fn look(&mut self, key: &ObjectKey, now: Millis) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let mut next = None;
        if rt.looked + LOOK_EVERY <= now {
            rt.looked = now;
            next = rt.slots.expire(now, self.config.start_limit);
        } else if rt.slots.tally().starting > 0 {
            next = Some(rt.looked + LOOK_EVERY);
        }
        if rt.hold.as_ref().is_some_and(|(until, _)| *until <= now) {
            rt.hold = None;
        }
        rt.avoid.retain(|_, until| *until > now);
        for at in rt.hold.iter().map(|(until, _)| *until).chain(rt.avoid.values().copied()) {
            next = Some(next.map_or(at, |next: Millis| next.min(at)));
        }
        if let Some(at) = next {
            self.wakes.insert((at, Wake::Gang(key.clone())));
        }
    }

    /// The status that the gang should have, if it is not the committed one.
    fn change(&mut self, key: &ObjectKey, now: Millis) -> Option<Change> {
        let (progress_every, start_limit) = (self.config.progress_every, self.config.start_limit);
        let avoid_until = now + self.config.avoid_for;
        let rt = self.gangs.get_mut(key)?;
        if rt.writing.is_some() || rt.is_final() {
            return None;
        }
        if rt.write_after > now {
            let at = rt.write_after;
            self.wakes.insert((at, Wake::Gang(key.clone())));
            return None;
        }
        if let Some(error) = rt.unreadable.clone() {
            // Nothing can be said of its pods; what it held is free again once they are gone.
            return Some(rt.requeued("PlanUnreadable", &error, None, now));
        }
        if let Some(change) = rt.outcome(now) {
            return Some(change);
        }
        if rt.object.spec.suspend {
            rt.proposal = None;
            return rt.suspended(now);
        }
        if let Some(reason) = rt.failed_plan.clone() {
            return Some(rt.plan_failed(&reason, now));
        }
        if let Some(plan) = &rt.plan
            && !rt.plan_fits_spec(plan)
        {
            let message = "the specification changed; it is placed anew in its new size";
            return Some(rt.requeued("SpecChanged", message, None, now));
        }
        if let Some(proposal) = rt.proposal.clone() {
            return Some(rt.placed(&proposal, now));
        }
        if rt.plan.is_some() && rt.loss.is_none() && rt.slots.lost().next().is_some() {
            for (planned, loss) in rt.slots.lost() {
                if loss.fault.blames_node() {
                    rt.avoid.insert(planned.node.clone(), avoid_until);
                }
            }
            let verdict = recover::judge(rt, now);
            if let Verdict::Wait(at) = verdict {
                self.wakes.insert((at, Wake::Gang(key.clone())));
                return None;
            }
            return rt.after_loss(verdict, now);
        }
        if rt.plan.is_some() && rt.loss.is_some() {
            // The engine was asked for other nodes. If it has none, everything is given back: units that wait for
            // the missing ones would hold their accelerators in vain.
            let reason = rt.refusal.take()?;
            let loss = rt.loss.clone()?;
            let message = format!("{}; no other nodes now ({reason})", loss.message);
            if !loss.steps.contains(&Step::Requeue) {
                return Some(rt.finished(GangPhase::Failed, "NoRecovery", &message, None, now));
            }
            return Some(rt.requeued("Requeued", &message, Some(&loss), now));
        }
        if rt.plan.is_none() {
            let reason = rt
                .request
                .as_ref()
                .err()
                .or(rt.hold.as_ref().map(|(_, reason)| reason))
                .or(rt.refusal.as_ref());
            let reason = reason.cloned()?;
            let change = rt.refused(&reason, now);
            if change.is_none() && !rt.says(&reason) {
                let at = rt.progressed + RETELL;
                self.wakes.insert((at.max(now + 1), Wake::Gang(key.clone())));
            }
            return change;
        }
        // How far ten thousand pods have come is not worked out for each of them. That all are created is written with
        // the first that runs, or when the others should: until then one that is missing is simply made again.
        let every = if rt.only_begins() { start_limit } else { progress_every };
        let due = rt.progressed.saturating_add(every);
        if rt.progress_unseen() && !rt.begins_to_run() && (due > now || self.creating.contains_key(key)) {
            self.wakes.insert((due.max(now + 1), Wake::Gang(key.clone())));
            return None;
        }
        let begins = rt.begins_to_run();
        let change = rt.progress(now);
        if begins {
            self.look_for_volumes(key, now);
        }
        change
    }

    fn write(&mut self, key: &ObjectKey, mut change: Change) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        change.status.epoch = self.epoch;
        let (effect, chunks) = rt.status_effect(key, &mut change.status);
        self.chunks.extend(chunks.into_iter().map(|chunk| (chunk.name, chunk.text)));
        if change.urgent {
            self.creating.remove(key);
        }
        let generation = |plan: &Option<Plan>| plan.as_ref().map(|plan| plan.generation);
        let places = change.plan.is_some() && generation(&change.plan) != generation(&rt.plan);
        rt.writing = Some(Box::new(Writing { version: rt.version.clone(), change, places, unsure: false }));
        self.out.push(effect);
    }

    /// Tells the engine what the gang holds and wants, if that changed.
    fn inform_engine(&mut self, key: &ObjectKey, blocked: bool) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let Some(wanted) = rt.wanted(blocked) else { return };
        let Ok(request) = &rt.request else {
            if rt.told.take().is_some() {
                let uid = rt.uid();
                self.cluster.remove_gang(key, &uid);
            }
            return;
        };
        let telling = rt.telling(wanted);
        if rt.told.as_ref() != Some(&telling) {
            let avoid = rt.avoid.keys().cloned().collect();
            let gang = Gang { state: rt.state(wanted), avoid, ..request.clone() };
            rt.told = Some(telling);
            self.cluster.set_gang(gang);
        }
    }

    /// Whether a gang without a plan may not be placed for reasons that the engine does not know. Refreshes its
    /// request, and asks the API server about its pods if that was never done.
    fn blocked(&mut self, key: &ObjectKey, now: Millis) -> bool {
        self.refresh_request(key, now);
        let Some(rt) = self.gangs.get_mut(key) else { return true };
        if rt.plan.is_some() || rt.is_final() || rt.proposal.is_some() {
            return false;
        }
        let Ok(request) = &rt.request else { return true };
        if rt.object.spec.suspend || rt.hold.is_some() {
            return true;
        }
        let quota = self.world.quota_refusal(request);
        if quota.is_some() || matches!(rt.refusal, Some(Reason::QuotaExceeded { .. })) {
            rt.refusal = quota;
        }
        rt.refusal.as_ref().is_some_and(|reason| matches!(reason, Reason::QuotaExceeded { .. }))
            || !self.shapes_known(key, now)
    }

    /// A leaving gang: its pods go, then its finalizer.
    fn clear_out(&mut self, key: &ObjectKey) {
        self.creating.remove(key);
        self.sweep(key, |_, _| true);
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let uid = rt.uid();
        let awaited = rt.slots.tally().asked > 0;
        if awaited || rt.released || !rt.guarded() || self.cluster.pods_of(&uid).next().is_some() {
            return;
        }
        rt.released = true;
        let keep = rt.other_finalizers();
        self.out.push(Effect::ReleaseGang { gang: key.clone(), uid, keep });
    }
}

impl GangRt {
    /// Whether the gang's pods may still change: neither ended nor without a plan.
    pub(super) fn in_force(&self) -> bool {
        self.plan.is_some()
            && matches!(self.phase(), GangPhase::Placed | GangPhase::Running | GangPhase::Reserved)
    }
}
