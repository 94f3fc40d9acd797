//! The gang as the engine wants it: for a new plan as the cluster's objects make it now, for the plan in force as it was
//! when that plan was made.

use muster_cluster::template::Learned;
use muster_lifecycle::gang::Ask;
use muster_model::{Gang, GangState};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::basis::Basis;
use super::probe;
use super::rt::{Asks, GangRt, Told};
use crate::shared::Shared;

/// Makes the gang's request anew if what it is made from has changed.
pub fn refresh(shared: &Shared, rt: &mut GangRt) {
    if !rt.request_stale && rt.request.is_ok() {
        return;
    }
    // What is asked for decides the shape (its class), and what is known of the shape what is asked for: the first time,
    // and when the specification has changed, that takes two rounds.
    for _ in 0..2 {
        let learned = |role: &str| -> Option<Learned> { shared.shapes.learned(&rt.shape_of(rt.role(role)?)) };
        rt.unfitted = shared.world.request(&rt.object, &learned, rt.since());
        let roles = rt.object.spec.roles.iter();
        let shapes = roles.map(|role| (role.name.clone(), rt.compute_shape(role))).collect();
        let before = std::mem::replace(&mut rt.shapes, shapes);
        if rt.shapes == before {
            break;
        }
    }
    if rt.unfitted.is_err() || rt.request.is_err() || rt.life.waiting().is_none() {
        // Whoever waits has it fitted into the quotas first.
        rt.set_request(rt.unfitted.clone());
    }
    rt.request_stale = false;
}

/// Tells the engine what the gang holds and wants, if that changed.
pub fn inform_engine(shared: &mut Shared, rt: &mut GangRt, may_wait: bool) {
    let (asks, generation, lost, state) = match rt.life.asks(&rt.terms, may_wait) {
        Ask::AsBefore => return,
        Ask::Nothing => (Asks::Nothing, 0, BTreeSet::new(), GangState::Inactive),
        Ask::Place => (Asks::Place, 0, BTreeSet::new(), GangState::Waiting),
        Ask::Hold(plan) => (Asks::Hold, plan.generation, BTreeSet::new(), GangState::Holding(plan.clone())),
        Ask::Replace(plan, lost) => {
            let state =
                GangState::Replan { plan: plan.clone(), lost: lost.units.clone(), steps: lost.steps.clone() };
            (Asks::Replace, plan.generation, lost.units.clone(), state)
        }
    };
    let avoid = rt.life.memory.avoid.keys().cloned().collect();
    let request = if asks == Asks::Place { rt.request_version } else { 0 };
    let telling = Told { asks, generation, lost, avoid, request };
    if rt.told.as_ref() == Some(&telling) {
        return;
    }
    let gang = match asks {
        Asks::Hold | Asks::Replace => rt.in_force().map(|basis| rt.on_basis(&basis)),
        Asks::Nothing | Asks::Place => rt.request.clone(),
    };
    match gang {
        Ok(gang) => {
            let avoid = rt.life.memory.avoid.keys().cloned().collect();
            shared.cluster.set_gang(Gang { state, avoid, ..gang });
            rt.told = Some(telling);
        }
        Err(reason) => {
            if rt.told.take().is_some() || asks == Asks::Replace {
                shared.cluster.remove_gang(&rt.key, &rt.uid);
            }
            if asks == Asks::Replace && rt.life.refused(reason) {
                // The engine cannot be asked for it: as if it had found nothing, and for this reason.
                shared.dirty_gangs.insert(rt.key.clone());
            }
        }
    }
}

/// The plan in force is judged by what is known of its pods now.
pub fn rebase(shared: &mut Shared, rt: &mut GangRt) {
    if rt.terms.roles.iter().any(|role| role.held) {
        // What is known now is known of another template.
        return;
    }
    refresh(shared, rt);
    if !probe::all_known(shared, rt) {
        // Of another template since, or of one role of several: what admission adds would be forgotten.
        return;
    }
    if let Ok(request) = &rt.request {
        let mut basis = Basis::of(request);
        if let Some(before) = &rt.basis {
            // Pods are named by their order.
            basis.roles.sort_by_key(|role| before.roles.iter().position(|old| old.name == role.name));
        }
        rt.basis = Some(Arc::new(basis));
        rt.told = None;
        rt.work.roles.clear();
        rt.work.seen_progress = None;
    }
}
