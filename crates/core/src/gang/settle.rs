//! One gang, one step: what should its status be; if it is that, what is to be done.

use muster_api::labels;
use muster_lifecycle::gang::{Facts, Move, Next, Stage, Trouble};
use muster_model::{
    Millis, NodeName, ObjectKey, Plan, Reason, RecoveryStep, Resources, Role, Slot, UnitId, resources,
};
use serde_json::json;
use std::collections::BTreeMap;

use super::basis::Basis;
use super::change::{Change, Speaks, Writing};
use super::request::{inform_engine, refresh};
use super::rt::{GangRt, Told};
use super::{pods, probe};
use crate::shared::Shared;
use crate::want::{Base, Facet, Kind, Target, Want};

/// How often at most the start of a gang's pods is looked at.
const LOOK_EVERY: Millis = 1_000;
/// First delay after a plan that could not be carried out; doubled up to [`LONGEST_HOLD`].
const FIRST_HOLD: Millis = 10_000;
const LONGEST_HOLD: Millis = 600_000;
/// How often it is looked whether a gang's pods are still being created.
const CREATING_PAUSE: Millis = 500;
/// So long a plan waits for the commit of another that gives up a place of it.
const OTHERS_LIMIT: Millis = 10_000;
/// How old what is known of pods may be when the engine finds no node that they fit.
const SHAPE_KEPT: Millis = 300_000;

/// Looks at a gang and does what follows.
pub fn settle(shared: &mut Shared, rt: &mut GangRt) {
    if rt.writing.is_none() {
        arrived(shared, rt);
    }
    shared.look_at_spared(rt);
    look(shared, rt);
    if rt.life.leaving() {
        inform_engine(shared, rt, false);
        pods::clear_out(shared, rt);
        return;
    }
    if rt.life.waiting().is_some() || rt.request_stale {
        refresh(shared, rt);
    }
    let may_wait = may_wait(shared, rt);
    if let Some(change) = change(shared, rt) {
        write(shared, rt, change);
    }
    if rt.writing.as_ref().is_some_and(|writing| writing.change.urgent) {
        return;
    }
    inform_engine(shared, rt, may_wait);
    pods::act(shared, rt);
}

/// Time: pods that did not start, holds that are over.
fn look(shared: &mut Shared, rt: &mut GangRt) {
    let now = shared.now.at;
    let due = rt.looked + LOOK_EVERY;
    let starting = rt.life.slots().is_some_and(|slots| slots.tally().starting > 0);
    let next = if due > now && starting {
        Some(due)
    } else {
        rt.looked = now;
        rt.life.look(&shared.config.patience, now)
    };
    if let Some(at) = next {
        shared.wake_gang(&rt.key, at);
    }
}

/// Whether nothing beyond the gang itself keeps it from being placed: quotas, what admission makes of its pods, our
/// finalizer. Asks for what is missing.
fn may_wait(shared: &mut Shared, rt: &mut GangRt) -> bool {
    if rt.life.waiting().is_none() {
        return false;
    }
    let beside = shared.uncreated_beside(&rt.key);
    let Ok(mut request) = rt.unfitted.clone() else { return false };
    let quota = shared.world.fit_into_quotas(&mut request, &beside);
    rt.set_request(Ok(request));
    let Some(waiting) = rt.life.waiting_mut() else { return false };
    if waiting.decided.is_some() {
        return true;
    }
    if quota.is_some() || matches!(waiting.refusal, Some(Reason::QuotaExceeded { .. })) {
        waiting.refusal = quota;
    }
    let over_quota = matches!(waiting.refusal, Some(Reason::QuotaExceeded { .. }));
    let misfits = matches!(waiting.refusal, Some(Reason::NoNodeFits { .. } | Reason::PodRefused { .. }));
    if rt.terms.suspend || waiting.hold.is_some() || over_quota {
        return false;
    }
    let begins = !rt.told.as_ref().is_some_and(Told::waits);
    let oldest = if misfits { shared.now.at - SHAPE_KEPT } else { Millis::MIN };
    if misfits {
        shared.wake_gang(&rt.key, shared.now.at + SHAPE_KEPT);
    }
    probe::known(shared, rt, begins, oldest) && guarded(shared, rt)
}

/// Whether our finalizer is on it, so that its pods are not orphaned when it is deleted; asks for it.
fn guarded(shared: &mut Shared, rt: &GangRt) -> bool {
    if rt.guard().is_some() {
        return true;
    }
    let none = rt.object.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
    let (path, value) = if none {
        ("/metadata/finalizers", json!([labels::PODS_FINALIZER]))
    } else {
        ("/metadata/finalizers/-", json!(labels::PODS_FINALIZER))
    };
    shared.desk.want(Want::Guard {
        gang: rt.key.clone(),
        base: Base { uid: rt.uid.clone(), version: rt.version.clone() },
        patch: json!([{ "op": "add", "path": path, "value": value }]),
        off: false,
    });
    false
}

/// The status that the gang should have, if it is not the committed one.
fn change(shared: &mut Shared, rt: &mut GangRt) -> Option<Change> {
    let now = shared.now;
    if let Some(writing) = &rt.writing
        && (writing.unsure.is_some() || writing.change.urgent || shared.desk.flies(&rt.target(Facet::Status)))
    {
        return None;
    }
    if rt.write_after > now.at {
        shared.wake_gang(&rt.key, rt.write_after);
        return None;
    }
    let unsound = rt.request.as_ref().err().cloned();
    let cluster = &shared.cluster;
    let basis = rt.in_force().ok();
    let cannot = |slot: &Slot, node: &NodeName| -> Option<String> {
        let node = cluster.node(node)?;
        let basis = basis.as_ref()?;
        let role = basis.roles().iter().find(|role| role.name == slot.unit.role)?;
        let class = basis.classes().iter().find(|class| node.allocatable.get(&class.resource) > 0);
        let class = class.or(basis.classes().first());
        let mut left = node.allocatable.clone();
        left.subtract(&shared.nodes.promised_beside(&rt.key, &node.name));
        let (resource, there, needed) = left.shortage(&role.pod_requests(class))?;
        let (there, needed) = (resources::words(&resource, there), resources::words(&resource, needed));
        Some(format!("node {} has {there} left to give, and a pod needs {needed}", node.name))
    };
    let spec = &rt.object.spec.roles;
    let reshaped = basis.as_ref().is_some_and(|basis| {
        let same = |role: &Role| spec.iter().any(|now| now.name == role.name && now.devices == role.devices);
        !basis.roles().iter().all(same)
    });
    let facts = Facts { unsound: unsound.as_ref(), cannot: &cannot, reshaped };
    match rt.life.next(&rt.terms, &facts, &shared.config.patience, now) {
        Next::Commit(what) => {
            if let Move::Put(decided) = &what
                && waits_for_others(shared, rt, &decided.plan)
            {
                return None;
            }
            rt.commits(what, now)
        }
        Next::Refused(reason) => match rt.refused(&reason, now) {
            Speaks::Now(change) => Some(*change),
            Speaks::Later(at) => {
                shared.wake_gang(&rt.key, at);
                None
            }
            Speaks::Not => None,
        },
        Next::Report => {
            if let Some(Trouble::Waits { until, .. }) = rt.life.holding().map(|holding| &holding.trouble) {
                let until = *until;
                shared.wake_gang(&rt.key, until);
            }
            report(shared, rt)
        }
        Next::Rest => None,
    }
}

/// Whether a plan must wait until another gang's plan, which gives up a place of it, is committed: were it written first
/// and the other never, one place would be promised twice. A decision that waits in vain is made anew.
fn waits_for_others(shared: &mut Shared, rt: &mut GangRt, plan: &Plan) -> bool {
    let now = shared.now.at;
    let basis = match rt.life.holding() {
        Some(_) => rt.in_force(),
        None => rt.request.as_ref().map(Basis::of).map_err(Clone::clone),
    };
    let amounts = basis.map(|basis| GangRt::amounts(plan, &basis)).unwrap_or_default();
    let Some(node) = shared.still_promised((&rt.key, &rt.uid), &amounts) else {
        rt.waits_for_others = None;
        return false;
    };
    let since = *rt.waits_for_others.get_or_insert(now);
    if since + OTHERS_LIMIT > now {
        shared.nodes.block(&rt.key, &node);
        shared.wake_gang(&rt.key, since + OTHERS_LIMIT);
        return true;
    }
    // They may wait for each other. One that can wait without a plan gives its own back, which ends every circle.
    rt.waits_for_others = None;
    if rt.life.holding().is_some() && !rt.terms.policy.ladder.contains(&RecoveryStep::Requeue) {
        return false;
    }
    rt.life.give_way(Reason::NotFound { states: 0 });
    rt.told = None;
    shared.dirty_gangs.insert(rt.key.clone());
    true
}

/// How far the pods have come, if it is time to say so. How far ten thousand pods have come is not worked out for each of
/// them. That all are created is written with the first that runs, or when the others should: until then one that is
/// missing is simply made again.
fn report(shared: &mut Shared, rt: &mut GangRt) -> Option<Change> {
    let now = shared.now;
    let trouble = rt.trouble_words(now);
    let begins = rt.begins_to_run();
    if !rt.progress_unseen(trouble.as_deref()) {
        return None;
    }
    let every = if trouble.is_none() && rt.only_begins() {
        shared.config.patience.admit
    } else {
        shared.config.progress_every
    };
    let due = rt.reported.saturating_add(every);
    if !begins && (due > now.at || shared.creating.contains_key(&rt.key)) {
        shared.wake_gang(&rt.key, due.max(now.at + CREATING_PAUSE));
        return None;
    }
    let change = rt.progress(trouble, now);
    if begins {
        probe::look_for_volumes(shared, rt);
    }
    change
}

/// The operator failed over the gang and leaves it alone; its status says so, once what was being written has landed.
pub fn say_fault(shared: &mut Shared, rt: &mut GangRt) {
    if rt.writing.is_some() || rt.is_final() {
        return;
    }
    if rt.life.waiting().is_some() {
        // It writes no plan: a place that the engine has for it, or would find, is for others.
        shared.cluster.remove_gang(&rt.key, &rt.uid);
        rt.life.drop_decision();
        rt.told = None;
    }
    if rt.write_after > shared.now.at {
        shared.wake_gang(&rt.key, rt.write_after);
    } else if let Some(change) = rt.faulty() {
        write(shared, rt, change);
    }
}

fn write(shared: &mut Shared, rt: &mut GangRt, mut change: Change) {
    change.status.epoch = shared.epoch;
    if change.status == rt.status {
        // Nothing that the server does not know: a status is never written for its own sake.
        return;
    }
    let (want, parts) = rt.status_want(&mut change, shared.config.inline_plan);
    for part in &parts {
        // One of the same content that was to go stays; one that is going must be gone first.
        let end = Target {
            kind: Kind::Part,
            facet: Facet::End,
            key: ObjectKey::new(rt.key.namespace.clone(), part.name.clone()),
        };
        shared.desk.cancel(&end);
        if shared.desk.flies(&end) {
            let again = shared.now.at + CREATING_PAUSE;
            shared.wake_gang(&rt.key, again);
            return;
        }
    }
    shared.parts.extend(parts.into_iter().map(|part| (part.name, part.text)));
    if change.urgent {
        shared.creating.remove(&rt.key);
    }
    let generation = |plan: &Result<Option<Plan>, String>| match plan {
        Ok(Some(plan)) => Some(plan.generation),
        _ => None,
    };
    let places = matches!(change.plan, Ok(Some(_)))
        && generation(&change.plan) != generation(&rt.life.committed().plan);
    if places && rt.life.holding().is_some() {
        on_its_way(shared, rt, &change);
    }
    let version = rt.version.clone();
    rt.writing = Some(Box::new(Writing { version, change, places, unsure: None, refused: String::new() }));
    shared.desk.want(want);
}

/// A plan that replaces another is on its way: until its end is known, the old pods may be no plan's any more, and what it
/// takes anew is promised as well.
fn on_its_way(shared: &mut Shared, rt: &GangRt, change: &Change) {
    let (Ok(Some(plan)), Some(before), Ok(basis)) = (&change.plan, rt.life.plan(), rt.in_force()) else {
        return;
    };
    let old: BTreeMap<&UnitId, u64> =
        before.units.iter().map(|unit| (&unit.placed.id, unit.incarnation)).collect();
    let anew = plan.units.iter().filter(|unit| old.get(&unit.placed.id) != Some(&unit.incarnation));
    let anew = Plan { units: anew.cloned().collect(), ..Plan::default() };
    shared.on_their_way.insert(rt.key.clone(), GangRt::amounts(&anew, &basis));
}

/// What was on its way is on the server, or will never be: others may have waited for it.
fn arrived(shared: &mut Shared, rt: &GangRt) {
    for node in shared.on_their_way.remove(&rt.key).into_iter().flat_map(BTreeMap::into_keys) {
        shared.room_on(&node);
    }
}

/// What follows from a status that is on the server now.
pub fn committed(shared: &mut Shared, rt: &mut GangRt, writing: Writing) {
    let Change { status, note, failed, .. } = writing.change;
    let now = shared.now.at;
    rt.reported = now;
    let refusal = rt.life.waiting().and_then(|waiting| waiting.refusal.as_ref());
    let refused = refusal.or(rt.request.as_ref().err()).map(Reason::code);
    if let Some(code) = refused.filter(|code| note.is_some() && status.reason.as_deref() == Some(*code)) {
        *shared.counters.refused.entry(code).or_default() += 1;
    }
    if writing.places {
        shared.counters.placed += 1;
    }
    if let Some((reason, until)) = failed {
        match until {
            Some(until) => rt.life.hold(until, reason),
            None => fail(rt, now, reason),
        }
        shared.counters.plans_failed += 1;
    } else if rt.phase() == muster_api::GangPhase::Running {
        rt.life.memory.failures = 0;
    }
    if let Some(restart) = status.restarts.last().filter(|_| writing.places)
        && status.plan.as_ref().is_some_and(|plan| plan.generation == restart.generation)
    {
        *shared.counters.restarts.entry(restart.cause.clone()).or_default() += 1;
    }
    if let Some((reason, message, warning)) = note {
        rt.tell(shared, &reason, &message, warning);
    }
    index_nodes(shared, rt);
}

/// The gang is not placed for a while, longer with each failure in a row.
pub fn fail(rt: &mut GangRt, now: Millis, reason: Reason) {
    let failures = rt.life.memory.failures;
    rt.life.memory.failures = failures.saturating_add(1);
    let pause = FIRST_HOLD.saturating_mul(1 << failures.min(10)).min(LONGEST_HOLD);
    rt.life.hold(now.saturating_add(pause), reason);
}

/// Keeps the index from nodes to gangs in step with a gang's committed plan.
pub fn index_nodes(shared: &mut Shared, rt: &mut GangRt) {
    let planned = match (rt.life.stage(), rt.life.plan()) {
        (Stage::Holding(_), Some(plan)) => {
            rt.in_force().map(|basis| GangRt::amounts(plan, &basis)).unwrap_or_default()
        }
        (Stage::Ended(slots) | Stage::Leaving(slots), _) => {
            slots.iter().map(|pod| (pod.node.clone(), Resources::default())).collect()
        }
        _ => BTreeMap::new(),
    };
    let before = std::mem::replace(&mut rt.work.nodes, planned);
    if before == rt.work.nodes {
        return;
    }
    shared.nodes.index(&rt.key, &before, &rt.work.nodes);
    // At once, whoever is looked at next: pods that this plan does not have use their nodes beyond any.
    inform_engine(shared, rt, false);
    for node in before.keys() {
        // Others may wait for what it gave up.
        shared.room_on(node);
    }
}

/// The gang is gone: nobody counts on it.
pub fn forget(shared: &mut Shared, rt: &mut GangRt) {
    arrived(shared, rt);
    let nodes = std::mem::take(&mut rt.work.nodes);
    shared.nodes.index(&rt.key, &nodes, &BTreeMap::new());
    for node in rt.life.holding().into_iter().flat_map(|holding| holding.blocked.keys()) {
        shared.nodes.unblock(&rt.key, node);
    }
    for (kind, name) in rt.children.keys() {
        let key = ObjectKey::new(rt.key.namespace.clone(), name.clone());
        shared.child_of.remove(&(*kind, key));
    }
    for part in rt.status.plan.iter().flat_map(|plan| &plan.chunks) {
        shared.parts.remove(&part.name);
    }
    for facet in [Facet::Object, Facet::Status, Facet::End, Facet::Read] {
        shared.desk.forget(&rt.target(facet));
    }
}

/// Deletes a gang.
pub fn delete(shared: &mut Shared, rt: &GangRt) {
    if !rt.life.leaving() {
        shared.desk.want(Want::Delete { kind: Kind::Gang, key: rt.key.clone(), uid: rt.uid.clone() });
    }
}
