//! What is done to pods, given the committed status.

use muster_cluster::{PodFacts, Slot};
use muster_model::{Millis, NodeName, ObjectKey, TaintEffect, Toleration, Uid};
use std::collections::VecDeque;
use std::sync::Arc;

use super::gang::{GangRt, RolePlan};
use super::slots::SlotState;
use super::{Core, OUT_OF_SERVICE, Wake};
use crate::effect::{Effect, OwnedKind};
use crate::launch::Launcher;
use crate::manifest::{Blueprint, Stamp};
use muster_api::names;

/// How long a pod may wait for room on its node before another node is looked for.
const ROOM_LIMIT: Millis = 600_000;

impl Core {
    /// Does what the committed status asks for.
    pub(super) fn act(&mut self, key: &ObjectKey, now: Millis) {
        let Some(rt) = self.gangs.get(key) else { return };
        if rt.is_final() {
            self.after_end(key, now);
            return;
        }
        if !rt.in_force() {
            self.sweep(key, |_, _| true);
            return;
        }
        self.sweep(key, GangRt::stray);
        let Some(rt) = self.gangs.get(key) else { return };
        let deciding = rt.loss.is_some() || rt.proposal.is_some() || rt.failed_plan.is_some();
        if deciding || rt.slots.lost().next().is_some() || self.creating.contains_key(key) {
            return;
        }
        if rt.create_after > now {
            self.wakes.insert((rt.create_after, Wake::Gang(key.clone())));
            return;
        }
        if rt.slots.tally().missing == 0 || !self.needs_met(key) {
            return;
        }
        let Some(rt) = self.gangs.get(key) else { return };
        let missing: VecDeque<Slot> = rt
            .slots
            .iter()
            .filter(|planned| planned.state == SlotState::Missing)
            .map(|planned| planned.slot.clone())
            .collect();
        self.creating.insert(key.clone(), missing);
    }

    /// A gang that has ended: its result is committed, so its pods need not be kept for it. Those that still run
    /// leave after a while (at once when it failed); those that ended stay for their logs until the gang goes.
    fn after_end(&mut self, key: &ObjectKey, now: Millis) {
        let Some(rt) = self.gangs.get(key) else { return };
        let ended = rt.status.finished_at.as_ref().map_or(now, |time| time.0.as_millisecond());
        let patience = if rt.phase() == muster_api::GangPhase::Failed { 0 } else { self.config.drain };
        let over = ended + patience <= now;
        let uid = rt.uid();
        if !over && self.cluster.pods_of(&uid).any(|pod| !pod.terminal()) {
            self.wakes.insert((ended + patience, Wake::Gang(key.clone())));
        }
        self.sweep(key, move |_, pod| over && !pod.terminal());
        let held: Vec<PodFacts> = self.cluster.pods_of(&uid).filter(|pod| pod.held()).cloned().collect();
        for pod in held {
            self.release(key, &pod);
        }
    }

    /// Deletes the pods that are unwanted, and lets go of those that leave.
    pub(super) fn sweep(&mut self, key: &ObjectKey, unwanted: impl Fn(&GangRt, &PodFacts) -> bool) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let (all, suspects) = (std::mem::take(&mut rt.sweep), std::mem::take(&mut rt.suspects));
        let Some(rt) = self.gangs.get(key) else { return };
        let (uid, mut effects) = (rt.uid(), Vec::new());
        let pods: Vec<&PodFacts> = if all {
            self.cluster.pods_of(&uid).collect()
        } else {
            let known = suspects.iter().filter_map(|suspect| self.cluster.pod(suspect));
            known.filter(|pod| pod.gang.as_ref() == Some(&uid)).collect()
        };
        for pod in pods {
            let force = self.nobody_at(pod) && pod.leaving;
            let asked = rt.deleting.get(&pod.uid);
            let ask = if pod.leaving { force && asked != Some(&true) } else { asked.is_none() };
            let release = pod.held() && !rt.releasing.contains(&pod.uid);
            if (ask || release) && unwanted(rt, pod) {
                effects.push((pod.clone(), ask, force));
            }
        }
        for (pod, ask, force) in effects {
            if ask {
                self.delete(key, &pod, force);
            }
            if pod.held() {
                self.release(key, &pod);
            }
        }
    }

    /// Whether no kubelet can be asked about a pod: its node is gone, or an administrator vouches that its
    /// containers are.
    fn nobody_at(&self, pod: &PodFacts) -> bool {
        pod.node.as_ref().is_some_and(|node| match self.cluster.node(node) {
            None => true,
            Some(node) => node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE),
        })
    }

    fn delete(&mut self, key: &ObjectKey, pod: &PodFacts, force: bool) {
        if let Some(rt) = self.gangs.get_mut(key) {
            rt.deleting.insert(pod.uid.clone(), force);
            self.out.push(Effect::DeletePod { pod: pod.key.clone(), uid: pod.uid.clone(), force });
        }
    }

    fn release(&mut self, key: &ObjectKey, pod: &PodFacts) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        if rt.releasing.insert(pod.uid.clone()) {
            let keep = pod
                .finalizers
                .iter()
                .filter(|f| *f != muster_api::labels::RESULT_FINALIZER)
                .cloned()
                .collect();
            self.out.push(Effect::ReleasePod { pod: pod.key.clone(), uid: pod.uid.clone(), keep });
        }
    }

    /// Gives out creations, one gang after the other, as far as there is room for requests.
    pub(super) fn create_pods(&mut self, now: Millis) {
        let mut room = self.out.room_for_creates();
        while room > 0 && !self.creating.is_empty() {
            let after = self.served.take();
            let next = match &after {
                Some(after) => {
                    self.creating.range((std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded)).next()
                }
                None => None,
            };
            let Some(key) = next.or_else(|| self.creating.iter().next()).map(|(key, _)| key.clone()) else {
                break;
            };
            self.served = Some(key.clone());
            let slot = self.creating.get_mut(&key).and_then(VecDeque::pop_front);
            let Some(slot) = slot else {
                self.creating.remove(&key);
                self.dirty_gangs.insert(key);
                continue;
            };
            if self.create(&key, &slot, now) {
                room -= 1;
            }
        }
    }

    /// Creates one pod, if its node is still what it was when the plan was made.
    fn create(&mut self, key: &ObjectKey, slot: &Slot, now: Millis) -> bool {
        let Some(rt) = self.gangs.get(key) else { return false };
        let Some(planned) = rt.slots.get(slot).filter(|planned| planned.state == SlotState::Missing) else {
            return false;
        };
        let node = planned.node.clone();
        let role = match self.role_plan(key, slot) {
            Ok(role) => role,
            Err(message) => {
                if let Some(rt) = self.gangs.get_mut(key) {
                    rt.failed_plan = Some(muster_model::Reason::PodRefused { message });
                }
                self.dirty_gangs.insert(key.clone());
                return false;
            }
        };
        if let Some(why) = self.unusable(&node, &role.tolerations) {
            self.misfit(key, slot, format!("node {node} {why} before its pod was created"));
            return false;
        }
        let fits = self.cluster.free_now(&node).is_some_and(|free| free.fits(&role.requests) > 0);
        if !fits {
            self.wait_for_room(key, slot, &node, now);
            return false;
        }
        let Some((pod, body)) = self.body(key, slot, &node, &role) else { return false };
        self.cluster.expect(pod.clone(), node, role.requests.clone());
        if let Some(rt) = self.gangs.get_mut(key) {
            rt.slots.ask(slot);
        }
        self.out.push(Effect::CreatePod { gang: key.clone(), slot: slot.clone(), pod, body });
        true
    }

    /// What is the same for all pods of a slot's role: made once per plan.
    fn role_plan(&mut self, key: &ObjectKey, slot: &Slot) -> Result<Arc<RolePlan>, String> {
        let rt = self.gangs.get_mut(key).ok_or("the gang is gone")?;
        if let Some(role) = rt.roles.get(&slot.unit.role) {
            return Ok(role.clone());
        }
        let spec =
            rt.object.spec.roles.iter().find(|role| role.name == slot.unit.role).ok_or("no such role")?;
        let request = rt.request.as_ref().map_err(ToString::to_string)?;
        let role = request.roles.iter().find(|role| role.name == slot.unit.role).ok_or("no such role")?;
        let plan = rt.plan.as_ref().ok_or("the gang has no plan")?;
        let class = plan.unit(&slot.unit).and_then(|unit| unit.placed.class.as_ref());
        let class = request.classes.iter().find(|c| Some(&c.name) == class);
        let role = Arc::new(RolePlan {
            blueprint: Blueprint::new(&rt.object, spec, class)?,
            requests: role.pod_requests(class),
            tolerations: role.tolerations.clone(),
            launcher: rt.launcher(),
            world: Launcher::world(plan, &slot.unit.role, rt.checkpoint_step),
        });
        rt.roles.insert(slot.unit.role.clone(), role.clone());
        Ok(role)
    }

    /// Why a node takes no new pod, whatever its room.
    fn unusable(&self, name: &NodeName, tolerations: &[Toleration]) -> Option<&'static str> {
        let Some(node) = self.cluster.node(name) else { return Some("is gone") };
        let tainted = node.taints.iter().any(|taint| {
            taint.effect != TaintEffect::PreferNoSchedule && !tolerations.iter().any(|t| t.tolerates(taint))
        });
        if !node.ready {
            Some("became not ready")
        } else if node.cordoned {
            Some("was cordoned")
        } else if tainted {
            Some("got a taint that is not tolerated")
        } else {
            None
        }
    }

    fn misfit(&mut self, key: &ObjectKey, slot: &Slot, message: String) {
        if let Some(rt) = self.gangs.get_mut(key) {
            rt.slots.misfit(slot, message);
        }
        self.creating.remove(key);
        self.dirty_gangs.insert(key.clone());
    }

    /// The node's device is not free yet: an old pod is still leaving. A kubelet would refuse the new one.
    fn wait_for_room(&mut self, key: &ObjectKey, slot: &Slot, node: &NodeName, now: Millis) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        if rt.blocked.insert(node.clone()) {
            rt.blocked_since.get_or_insert(now);
            self.waiting_for_room.entry(node.clone()).or_default().insert(key.clone());
        }
        let limit = rt.blocked_since.map_or(now, |since| since) + ROOM_LIMIT;
        if limit <= now {
            rt.blocked_since = None;
            self.misfit(
                key,
                slot,
                format!("node {node} was not free within {}", muster_model::duration::format(ROOM_LIMIT)),
            );
        } else {
            self.wakes.insert((limit, Wake::Gang(key.clone())));
        }
    }

    /// Name and JSON of a pod.
    fn body(
        &self,
        key: &ObjectKey,
        slot: &Slot,
        node: &NodeName,
        role: &RolePlan,
    ) -> Option<(ObjectKey, Vec<u8>)> {
        let rt = self.gangs.get(key)?;
        let pod = ObjectKey::new(key.namespace.clone(), rt.pod_name(slot));
        let uid = rt.uid();
        let launcher = &role.launcher;
        let subdomain = launcher.names.every_rank.then(|| names::hosts_service(&key.name, &uid));
        let hostfile = launcher.names.hostfile.then(|| names::hostfile(&key.name, &uid));
        let stamp = Stamp {
            pod: &pod,
            slot,
            generation: role.world.generation,
            node: Some(node),
            epoch: self.epoch,
            env: launcher.environment(&role.world, slot, |slot| rt.pod_name(slot)),
            decides: rt.decides(&slot.unit.role, slot.unit.index, slot.index),
            subdomain: subdomain.as_deref(),
            hostfile: hostfile.as_deref(),
        };
        let body = role.blueprint.stamp(&stamp);
        Some((pod, body))
    }

    /// What the gang made beside its pods and is not needed by the plan in force.
    pub(super) fn delete_owned(&mut self, kind: OwnedKind, key: ObjectKey, uid: Uid) {
        self.out.push(Effect::DeleteOwned { kind, key, uid });
    }
}
