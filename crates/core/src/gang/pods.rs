//! What is done to pods, given the committed status.

use muster_cluster::PodFacts;
use muster_lifecycle::gang::{SlotState, Stage};
use muster_model::{Millis, NodeName, ObjectKey, Reason, Resources, Slot, TaintEffect, Toleration};
use std::collections::VecDeque;
use std::sync::Arc;

use super::children;
use super::rt::{GangRt, RolePlan};
use crate::OUT_OF_SERVICE;
use crate::launch::Launcher;
use crate::manifest::{Blueprint, Stamp};
use crate::shared::Shared;
use crate::want::{Base, Want};
use muster_api::{Framework, labels, names};
use serde_json::json;

/// How long a pod may wait for room on its node before another node is looked for.
pub const ROOM_LIMIT: Millis = 600_000;
/// That pods wait to be made is told when it lasts: those before them mostly take a moment to end.
pub const TOLD_AFTER: Millis = 45_000;

/// Does what the committed status asks for.
pub fn act(shared: &mut Shared, rt: &mut GangRt) {
    note_uncreated(shared, rt);
    match rt.life.stage() {
        Stage::Ended(_) => after_end(shared, rt),
        // Whose pods they are cannot be told before the plan is read or given back.
        Stage::Waiting(_) if rt.life.committed().plan.is_err() => {}
        Stage::Waiting(_) | Stage::Leaving(_) => {
            sweep(shared, rt, |_, _| true);
            children::clear(shared, rt);
        }
        Stage::Holding(_) => {
            sweep(shared, rt, GangRt::stray);
            begin_to_create(shared, rt);
            let whole = rt.life.slots().is_some_and(|slots| slots.tally().missing == 0);
            if whole && rt.look_at_children {
                rt.look_at_children = false;
                children::keep(shared, rt);
            }
        }
    }
}

/// Pods that are planned and not created: what the server's quotas do not count yet.
fn note_uncreated(shared: &mut Shared, rt: &GangRt) {
    let Some(holding) = rt.life.holding() else {
        shared.never_created(&rt.key);
        return;
    };
    let tally = holding.slots.tally();
    if tally.missing + tally.asked == 0 {
        shared.all_created(&rt.key);
        return;
    }
    let Ok(basis) = rt.in_force() else { return };
    let mut sum = Resources::default();
    for role in basis.roles() {
        let missing = rt.life.slots().into_iter().flat_map(muster_lifecycle::gang::Slots::iter);
        let missing = missing.filter(|pod| {
            pod.slot.unit.role == role.name
                && matches!(pod.state, SlotState::Missing | SlotState::Asked { .. })
        });
        sum.add(&role.pod_requests(basis.classes().first()).times(missing.count() as i64));
    }
    shared.uncreated.insert(rt.key.clone(), sum);
}

/// Lines up the pods that are missing, once nothing stands against it.
fn begin_to_create(shared: &mut Shared, rt: &mut GangRt) {
    let now = shared.now.at;
    let Some(holding) = rt.life.holding() else { return };
    if !holding.creates() || holding.slots.tally().missing == 0 || shared.creating.contains_key(&rt.key) {
        return;
    }
    if holding.pause.until > now {
        let until = holding.pause.until;
        shared.wake_gang(&rt.key, until);
        return;
    }
    if !children::met(shared, rt) {
        return;
    }
    let Some(holding) = rt.life.holding() else { return };
    // One that waits for room is tried again when something of its node changes: of two thousand that wait, each pod that
    // leaves concerns one.
    let patient = |node: &NodeName| {
        let since = *holding.blocked.get(node)?;
        let told = Some(since + TOLD_AFTER).filter(|at| *at > now);
        (since + ROOM_LIMIT > now && shared.nodes.waits(&rt.key, node))
            .then(|| told.unwrap_or(since + ROOM_LIMIT))
    };
    let (mut next, mut ready) = (None::<Millis>, VecDeque::new());
    for planned in holding.slots.iter().filter(|planned| planned.state == SlotState::Missing) {
        match patient(&planned.node) {
            Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
            None => ready.push_back(planned.slot.clone()),
        }
    }
    if let Some(due) = next {
        shared.wake_gang(&rt.key, due);
    }
    if !ready.is_empty() {
        shared.creating.insert(rt.key.clone(), ready);
    }
}

/// A gang that has ended: its result is committed, so its pods need not be kept for it. Those that still run leave after
/// a while (at once when it failed); those that ended stay for their logs until the gang goes.
fn after_end(shared: &mut Shared, rt: &mut GangRt) {
    let seen = *rt.ended_at.get_or_insert(shared.now.at);
    let ended = rt.status.finished_at.as_ref().map(|time| shared.when(time.0.as_millisecond()));
    let patience = if rt.phase() == muster_api::GangPhase::Failed { 0 } else { shared.config.drain };
    // A wall clock that was set back must not keep the pods.
    let at = ended.unwrap_or(seen).min(seen) + patience;
    let over = at <= shared.now.at;
    if !over && shared.cluster.pods_of(&rt.uid).any(|pod| !pod.terminal()) {
        shared.wake_gang(&rt.key, at);
    }
    sweep(shared, rt, move |_, pod| over && !pod.terminal());
    let held: Vec<PodFacts> = shared.cluster.pods_of(&rt.uid).filter(|pod| pod.held()).cloned().collect();
    for pod in held.iter().filter(|pod| rt.owns(pod)) {
        release(shared, pod);
    }
}

/// Deletes the pods that are unwanted, and lets go of those that leave. Only pods that are the gang's own are touched.
fn sweep(shared: &mut Shared, rt: &mut GangRt, unwanted: impl Fn(&GangRt, &PodFacts) -> bool) {
    let (all, suspects) = (std::mem::take(&mut rt.sweep), std::mem::take(&mut rt.suspects));
    let mut ends = Vec::new();
    let pods: Vec<&PodFacts> = if all {
        shared.cluster.pods_of(&rt.uid).collect()
    } else {
        suspects.iter().filter_map(|suspect| shared.cluster.pod(suspect)).collect()
    };
    for pod in pods.into_iter().filter(|pod| rt.owns(pod) && unwanted(rt, pod)) {
        let force = pod.leaving && nobody_at(shared, pod);
        ends.push((pod.clone(), force));
    }
    for (pod, force) in ends {
        remove(shared, &pod, force);
    }
}

/// Whether no kubelet can be asked about a pod: its node is gone, or an administrator vouches that its containers are.
fn nobody_at(shared: &Shared, pod: &PodFacts) -> bool {
    pod.node.as_ref().is_some_and(|node| match shared.cluster.node(node) {
        None => !shared.unreadable_nodes.contains(node),
        Some(node) => node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE),
    })
}

/// Lets a pod end: it is deleted, unless it is already leaving and may go on so, and our finalizer is taken off.
fn remove(shared: &mut Shared, pod: &PodFacts, force: bool) {
    let delete = (!pod.leaving || force).then_some(force);
    let release = pod.finalizers.iter().position(|name| name == labels::RESULT_FINALIZER);
    if delete.is_some() || release.is_some() {
        shared.desk.want(Want::EndPod { pod: pod.key.clone(), uid: pod.uid.clone(), delete, release });
    }
}

/// A pod whose gang is gone: the garbage collector deletes it, and only we can let it go.
pub fn remove_orphan(shared: &mut Shared, pod: &PodFacts) {
    let exists = pod.gang.as_ref().is_some_and(|gang| shared.is_unreadable(gang));
    if pod.held() && !exists {
        remove(shared, pod, pod.leaving && nobody_at(shared, pod));
    }
}

/// Takes our finalizer off a pod.
fn release(shared: &mut Shared, pod: &PodFacts) {
    let release = pod.finalizers.iter().position(|name| name == labels::RESULT_FINALIZER);
    if release.is_some() {
        shared.desk.want(Want::EndPod { pod: pod.key.clone(), uid: pod.uid.clone(), delete: None, release });
    }
}

/// A leaving gang: its pods go, then its finalizer.
pub fn clear_out(shared: &mut Shared, rt: &mut GangRt) {
    shared.creating.remove(&rt.key);
    shared.never_created(&rt.key);
    sweep(shared, rt, |_, _| true);
    let awaited = rt.life.slots().is_some_and(|slots| slots.tally().asked > 0);
    let own = shared.cluster.pods_of(&rt.uid).any(|pod| rt.owns(pod));
    let Some(position) = rt.guard() else { return };
    if awaited || own {
        return;
    }
    let path = format!("/metadata/finalizers/{position}");
    shared.desk.want(Want::Guard {
        gang: rt.key.clone(),
        base: Base { uid: rt.uid.clone(), version: rt.version.clone() },
        patch: json!([
            { "op": "test", "path": path, "value": labels::PODS_FINALIZER },
            { "op": "remove", "path": path },
        ]),
        off: true,
    });
}

impl crate::Core {
    /// Gives out creations, one gang after the other, as far as there is room for requests.
    pub(crate) fn create_pods(&mut self) {
        use std::ops::Bound::{Excluded, Unbounded};
        let shared = &mut self.shared;
        let mut room = shared.desk.room_for_creates();
        while room > 0 && !shared.creating.is_empty() {
            let after = shared.served.take();
            let next = after.and_then(|after| shared.creating.range((Excluded(after), Unbounded)).next());
            let next = next.or_else(|| shared.creating.iter().next());
            let Some(key) = next.map(|(key, _)| key.clone()) else { break };
            shared.served = Some(key.clone());
            let slot = shared.creating.get_mut(&key).and_then(VecDeque::pop_front);
            let rt = self.gangs.get_mut(&key);
            let (Some(slot), Some(rt)) = (slot, rt) else {
                shared.creating.remove(&key);
                shared.dirty_gangs.insert(key);
                continue;
            };
            if create(shared, rt, &slot) {
                room -= 1;
            }
        }
    }
}

/// Creates one pod, if its node is still what it was when the plan was made.
fn create(shared: &mut Shared, rt: &mut GangRt, slot: &Slot) -> bool {
    let Some(holding) = rt.life.holding().filter(|holding| holding.creates()) else { return false };
    let Some(planned) = holding.slots.get(slot).filter(|planned| planned.state == SlotState::Missing) else {
        return false;
    };
    let node = planned.node.clone();
    let role = match role_plan(rt, slot) {
        Ok(role) => role,
        Err(message) => {
            rt.life.broken(Reason::PodRefused { message });
            shared.dirty_gangs.insert(rt.key.clone());
            return false;
        }
    };
    if let Some(why) = unusable(shared, &node, &role.tolerations) {
        misfit(shared, rt, slot, format!("node {node} {why} before its pod was created"));
        return false;
    }
    // An attempt without an answer may have made it: it is the same pod.
    let pod = ObjectKey::new(rt.key.namespace.clone(), rt.pod_name(slot));
    let doubt = shared.cluster.not_expected(&pod).is_some();
    let fits = shared.cluster.free_now(&node).is_some_and(|free| free.fits(&role.requests) > 0);
    if !fits {
        if doubt {
            shared.cluster.expect(pod, rt.uid.clone(), slot.clone(), node.clone(), role.requests.clone());
        }
        wait_for_room(shared, rt, slot, &node);
        return false;
    }
    if doubt {
        shared.doubtful.retain(|(_, other)| *other != pod);
    }
    let body = body(shared, rt, slot, &pod, &node, &role);
    shared.cluster.expect(pod.clone(), rt.uid.clone(), slot.clone(), node.clone(), role.requests.clone());
    if let Some(holding) = rt.life.holding_mut() {
        holding.slots.ask(slot);
        if holding.blocked.remove(&node).is_some() {
            shared.nodes.unblock(&rt.key, &node);
        }
    }
    shared.desk.want(Want::CreatePod { gang: rt.key.clone(), slot: slot.clone(), pod, body });
    true
}

/// What is the same for all pods of a slot's role and revision: made once per plan, from what the plan was made from.
fn role_plan(rt: &mut GangRt, slot: &Slot) -> Result<Arc<RolePlan>, String> {
    let revision = rt.work.revisions.of_unit(&slot.unit);
    if let Some(role) = rt.work.roles.get(&slot.unit.role).and_then(|role| role.get(revision)) {
        return Ok(role.clone());
    }
    let revision = revision.to_owned();
    if let Framework::Unknown(word) = rt.object.spec.launch.framework {
        return Err(format!("spec.launch.framework: {word:?} is not known to this version of Muster"));
    }
    let spec = rt.role(&slot.unit.role).ok_or("the specification has no such role")?;
    let spec = &spec.at(&revision).ok_or_else(|| {
        format!("spec.roles[{}].revisions: has no template {revision:?}, with which the unit runs", spec.name)
    })?;
    let basis = rt.in_force().map_err(|reason| reason.to_string())?;
    let role = basis.roles().iter().find(|role| role.name == slot.unit.role);
    let role = role.ok_or("the plan was made for other roles")?;
    let plan = rt.life.plan().ok_or("the gang has no plan")?;
    let class = plan.unit(&slot.unit).and_then(|unit| unit.placed.class.as_ref());
    let class = basis.classes().iter().find(|c| Some(&c.name) == class);
    let role = Arc::new(RolePlan {
        blueprint: Blueprint::new(&rt.object, spec, class)?,
        requests: role.pod_requests(class),
        tolerations: role.tolerations.clone(),
        launcher: Launcher::of(&rt.object, Some(spec)),
        world: Launcher::world(plan, &slot.unit.role, rt.checkpoint_step),
    });
    rt.work.roles.entry(slot.unit.role.clone()).or_default().insert(revision, role.clone());
    Ok(role)
}

/// Why a node takes no new pod, whatever its room.
fn unusable(shared: &Shared, name: &NodeName, tolerations: &[Toleration]) -> Option<&'static str> {
    let Some(node) = shared.cluster.node(name) else { return Some("is gone") };
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

fn misfit(shared: &mut Shared, rt: &mut GangRt, slot: &Slot, message: String) {
    if let Some(holding) = rt.life.holding_mut() {
        holding.slots.misfit(slot, message);
    }
    shared.creating.remove(&rt.key);
    shared.dirty_gangs.insert(rt.key.clone());
}

/// The node's device is not free yet: an old pod is still leaving. A kubelet would refuse the new one.
fn wait_for_room(shared: &mut Shared, rt: &mut GangRt, slot: &Slot, node: &NodeName) {
    let now = shared.now.at;
    let Some(holding) = rt.life.holding_mut() else { return };
    let due = holding.block(node, now) + ROOM_LIMIT;
    shared.nodes.block(&rt.key, node);
    if due <= now {
        let limit = muster_model::duration::format(ROOM_LIMIT);
        misfit(shared, rt, slot, format!("node {node} was not free within {limit}"));
    } else {
        shared.wake_gang(&rt.key, due);
    }
}

/// The JSON of a pod.
fn body(
    shared: &Shared,
    rt: &GangRt,
    slot: &Slot,
    pod: &ObjectKey,
    node: &NodeName,
    role: &RolePlan,
) -> Vec<u8> {
    let launcher = &role.launcher;
    let subdomain = launcher.names.every_rank.then(|| names::hosts_service(&rt.key.name, &rt.uid));
    let hostfile =
        launcher.names.hostfile.then(|| names::hostfile(&rt.key.name, &rt.uid, role.world.generation));
    let stamp = Stamp {
        pod,
        slot,
        generation: role.world.generation,
        node: Some(node),
        epoch: shared.epoch,
        env: launcher.environment(&role.world, slot, |slot| rt.pod_name(slot)),
        decides: rt.terms.decides(slot),
        subdomain: subdomain.as_deref(),
        hostfile: hostfile.as_deref(),
    };
    role.blueprint.stamp(&stamp)
}
