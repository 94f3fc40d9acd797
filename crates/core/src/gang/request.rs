//! The gang as the engine wants it: for a new plan as the cluster's objects make it now, for the plan in force as it was
//! when that plan was made.

use muster_cluster::template::Learned;
use muster_lifecycle::gang::Ask;
use muster_model::{AcceleratorClass, Gang, GangState, Reason, Role, Rules, Within};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Asks, GangRt, Told};
use crate::shared::Shared;

/// A basis larger than this is not kept: what it stands for is made anew from the objects.
const LARGEST_BASIS: usize = 256 * 1024;

/// What a plan was made from: it goes into the status with the plan, so that the next leader judges the plan as this one
/// did, and a Queue or class that is gone takes nothing from a gang that holds a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Basis {
    #[serde(default)]
    priority: i32,
    classes: Vec<AcceleratorClass>,
    roles: Vec<Role>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<Within>,
    #[serde(default)]
    rules: Rules,
}

impl Basis {
    /// Of a request.
    pub fn of(request: &Gang) -> Self {
        Self {
            priority: request.priority,
            classes: request.classes.clone(),
            roles: request.roles.clone(),
            within: request.within.clone(),
            rules: request.rules.clone(),
        }
    }

    /// As it is written; `None` where it is too large.
    pub fn written(&self) -> Option<Value> {
        let value = serde_json::to_value(self).ok()?;
        (value.to_string().len() <= LARGEST_BASIS).then_some(value)
    }

    /// As it was written. What another version wrote and this one cannot read is none.
    pub fn read(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// Its roles.
    pub fn roles(&self) -> &[Role] {
        &self.roles
    }

    /// Its accelerator classes.
    pub fn classes(&self) -> &[AcceleratorClass] {
        &self.classes
    }
}

impl GangRt {
    /// The gang for the engine, on the basis of the plan in force.
    pub fn on_basis(&self, basis: &Basis) -> Gang {
        Gang {
            key: self.key.clone(),
            uid: self.uid.clone(),
            queue: self.object.spec.queue.clone(),
            priority: self.request.as_ref().map_or(basis.priority, |request| request.priority),
            since: self.since(),
            classes: basis.classes.clone(),
            roles: basis.roles.clone(),
            within: basis.within.clone(),
            rules: basis.rules.clone(),
            avoid: self.life.memory.avoid.keys().cloned().collect(),
            state: GangState::Inactive,
        }
    }

    /// The plan in force is judged by what is known of its pods now.
    pub fn rebase(&mut self, shared: &Shared) {
        if self.terms.roles.iter().any(|role| role.held) {
            // What is known now is known of another template.
            return;
        }
        refresh(shared, self);
        if let Ok(request) = &self.request {
            self.basis = Some(Arc::new(Basis::of(request)));
            self.told = None;
            self.work.roles.clear();
            self.work.seen_progress = None;
        }
    }

    /// What the plan in force is judged by: what it was made from or, where that was not kept, what would be asked now.
    pub fn in_force(&self) -> Result<Basis, Reason> {
        match &self.basis {
            Some(basis) => Ok(Basis::clone(basis)),
            None => self.request.as_ref().map(Basis::of).map_err(Clone::clone),
        }
    }
}

/// Makes the gang's request anew if what it is made from has changed.
pub fn refresh(shared: &Shared, rt: &mut GangRt) {
    if !rt.request_stale && rt.request.is_ok() {
        return;
    }
    let learned = |role: &str| -> Option<Learned> { shared.shapes.learned(&rt.shape_of(rt.role(role)?)) };
    let request = shared.world.request(&rt.object, &learned, rt.since());
    rt.unfitted.clone_from(&request);
    if request.is_err() || rt.request.is_err() || rt.life.waiting().is_none() {
        // Whoever waits has it fitted into the quotas first.
        rt.set_request(request);
    }
    rt.request_stale = false;
    let roles = rt.object.spec.roles.iter();
    rt.shapes = roles.map(|role| (role.name.clone(), rt.compute_shape(role))).collect();
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
