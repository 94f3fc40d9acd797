//! One gang's record: the object, its life, and what was told about it.

use kube::api::ObjectMeta;
use muster_api::gang::RevisionUse;
use muster_api::{Gang as Object, GangPhase, GangStatus, RoleSpec, labels, names};
use muster_cluster::PodFacts;
use muster_lifecycle::gang::{Committed, Life, Tally, Terms};
use muster_lifecycle::launch::World;
use muster_model::{
    Gang, GangState, Millis, NodeName, ObjectKey, Plan, Reason, Resources, Slot, Toleration, Uid, UnitId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::basis::Basis;
use super::change::Writing;
use super::facts::{self, sight};
use super::revisions::{self, Revisions};
use crate::launch::Launcher;
use crate::manifest::Blueprint;
use crate::owner::Owner;
use crate::shared::Shared;
use crate::want::{Base, Facet, Kind, Target};

/// What the engine was told of a gang, without its plan and request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub(super) asks: Asks,
    pub(super) generation: u64,
    pub(super) lost: BTreeSet<UnitId>,
    pub(super) avoid: Vec<NodeName>,
    /// Counts what was asked of the engine for a new plan.
    pub(super) request: u64,
}

impl Told {
    /// Whether the engine looks for a place for it.
    pub fn waits(&self) -> bool {
        self.asks == Asks::Place
    }
}

/// What the engine is asked, as a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Nothing, and it holds nothing.
    Nothing,
    /// A placement.
    Place,
    /// Nothing: it holds its plan.
    Hold,
    /// Other places for what is lost.
    Replace,
}

/// Reason of a gang over which the operator failed.
pub const FAULT: &str = "OperatorFault";

/// That the operator failed over a gang, which rests until it is changed.
#[derive(Debug)]
pub struct Fault {
    /// The generation of the specification over which it failed.
    pub generation: Option<i64>,
    /// What is said of it.
    pub message: String,
}

/// A Service or ConfigMap of a gang as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildSeen {
    /// Its UID and version.
    pub base: Base,
    /// The mark that says which plan it is for.
    pub mark: Option<String>,
    /// The gang controls it.
    pub owned: bool,
}

impl ChildSeen {
    /// From its metadata, for a gang.
    pub fn of(meta: &ObjectMeta, gang: &Uid) -> Self {
        let mark = meta.labels.as_ref().and_then(|all| all.get(labels::GENERATION)).cloned();
        Self {
            base: Base {
                uid: crate::uid_of(meta),
                version: meta.resource_version.clone().unwrap_or_default(),
            },
            mark,
            owned: crate::controller_of(meta).is_some_and(|owner| owner.uid == gang.0),
        }
    }
}

/// What is the same for all pods of a role under one plan.
#[derive(Debug)]
pub struct RolePlan {
    /// The common part of their manifests.
    pub blueprint: Blueprint,
    /// What one of them requests.
    pub requests: Resources,
    /// What they tolerate.
    pub tolerations: Vec<Toleration>,
    /// How they are launched.
    pub launcher: Launcher,
    /// What the plan tells them all.
    pub world: World,
}

/// What belongs to one plan, and to nothing after it.
#[derive(Debug, Default)]
pub struct PlanWork {
    /// Its generation; 0 without a plan.
    pub generation: u64,
    /// What is the same for the pods of a role, by revision.
    pub roles: BTreeMap<String, BTreeMap<String, Arc<RolePlan>>>,
    /// The template that each unit's pods are made from.
    pub revisions: Revisions,
    /// What progress was computed from last.
    pub seen_progress: Option<(Tally, Option<i64>, Option<String>)>,
    /// The nodes under which the gang is indexed, and what its plan takes of each.
    pub nodes: BTreeMap<NodeName, Resources>,
}

/// One gang.
#[derive(Debug)]
pub struct GangRt {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Uid,
    /// What controls it.
    pub owner: Option<Owner>,
    /// The object as last seen.
    pub object: Object,
    /// Its resourceVersion, ours if we wrote last.
    pub version: String,
    /// Its status as committed on the server.
    pub status: GangStatus,
    /// What of its specification its life depends on.
    pub terms: Terms,
    /// Where it stands.
    pub life: Life,
    /// The gang as the engine would want it for a new plan, state aside; or why it cannot be placed at all.
    pub request: Result<Gang, Reason>,
    /// The same before it was fitted into the namespace's quotas.
    pub unfitted: Result<Gang, Reason>,
    /// Counts the changes of the request.
    pub(super) request_version: u64,
    /// What the request is made from has changed.
    pub request_stale: bool,
    /// The shapes of its roles' pods, as of the request.
    pub shapes: BTreeMap<String, String>,
    /// When its end was first seen, in this term.
    pub ended_at: Option<Millis>,
    /// What the plan in force was made from: it is judged by that, whatever became of the cluster's other objects since.
    pub basis: Option<Arc<Basis>>,
    /// What the engine was told last.
    pub told: Option<Told>,
    /// The status that is being written.
    pub writing: Option<Box<Writing>>,
    /// Not before this time is a status tried again.
    pub write_after: Millis,
    /// When a status that only reports was written last.
    pub reported: Millis,
    /// The reason that its status gave before the present one.
    pub reason_before: Option<String>,
    /// What belongs to the plan in force.
    pub work: PlanWork,
    /// Services and ConfigMaps of the gang as seen.
    pub children: BTreeMap<(Kind, String), ChildSeen>,
    /// They are to be compared with what the plan needs.
    pub look_at_children: bool,
    /// Last checkpoint step that was seen on a pod.
    pub checkpoint_step: Option<i64>,
    /// When its pods on a node reported progress last.
    pub progress: BTreeMap<NodeName, Millis>,
    /// Lost nodes on which its ranks report progress.
    pub spared: BTreeSet<NodeName>,
    /// That the operator failed over it.
    pub fault: Option<Fault>,
    /// Since when its plan waits for others to give up their places.
    pub waits_for_others: Option<Millis>,
    /// When it was first seen.
    pub seen_at: Millis,
    /// When its pods' start was looked at last.
    pub(super) looked: Millis,
    /// Any of its pods may have to be deleted or let go.
    pub(super) sweep: bool,
    /// These pods may: of two thousand that leave, each event concerns one.
    pub(super) suspects: BTreeSet<Uid>,
}

impl GangRt {
    /// A gang as first seen.
    pub fn new(object: Object, shared: &Shared) -> Self {
        let mut rt = Self {
            key: crate::key_of(&object.metadata),
            uid: crate::uid_of(&object.metadata),
            owner: Owner::of(&object),
            version: String::new(),
            status: GangStatus::default(),
            terms: facts::terms(&object.spec),
            life: Life::new(Committed::default(), shared.now.at),
            request: Err(Reason::NotFound { states: 0 }),
            unfitted: Err(Reason::NotFound { states: 0 }),
            request_version: 0,
            request_stale: true,
            shapes: BTreeMap::new(),
            ended_at: None,
            basis: None,
            told: None,
            writing: None,
            write_after: 0,
            reported: Millis::MIN / 2,
            reason_before: None,
            work: PlanWork::default(),
            children: BTreeMap::new(),
            look_at_children: true,
            checkpoint_step: None,
            progress: BTreeMap::new(),
            spared: BTreeSet::new(),
            fault: None,
            waits_for_others: None,
            seen_at: shared.now.at,
            looked: Millis::MIN / 2,
            sweep: true,
            suspects: BTreeSet::new(),
            object: object.clone(),
        };
        rt.see(object, shared);
        rt
    }

    /// Takes in the object, unless it is older than what we know.
    pub fn see(&mut self, object: Object, shared: &Shared) {
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        if older(&version, &self.version) {
            return;
        }
        self.version = version;
        // A deletion, a suspension: whatever changed, pods may have to go.
        self.sweep = true;
        let status = object.status.clone().unwrap_or_default();
        let edited = self.object.metadata.generation != object.metadata.generation;
        if edited {
            // The specification changed: what the engine knows of it is old.
            self.told = None;
            self.request_stale = true;
            self.terms = facts::terms(&object.spec);
            // What was decided was decided for another specification.
            self.life.drop_decision();
        }
        self.owner = Owner::of(&object);
        self.object = object;
        if edited {
            self.hold_revisions();
        }
        if status != self.status {
            let plan = if status.plan == self.status.plan {
                self.life.committed().plan.clone()
            } else {
                facts::read_plan(&status, &shared.parts)
            };
            self.commit(status, plan, shared);
        }
        if self.object.metadata.deletion_timestamp.is_some() {
            self.life.leave();
        }
    }

    /// Reads the plan again, now that all of its parts are known.
    pub fn read_plan_again(&mut self, shared: &Shared) {
        if self.life.committed().plan.is_err() {
            let plan = facts::read_plan(&self.status, &shared.parts);
            self.commit(self.status.clone(), plan, shared);
        }
    }

    /// What is on the server now, and the plan that it holds.
    pub fn commit(&mut self, status: GangStatus, mut plan: Result<Option<Plan>, String>, shared: &Shared) {
        if let Ok(Some(plan)) = &mut plan {
            revisions::name(plan, &self.object.spec);
        }
        self.checkpoint_step = self.checkpoint_step.max(status.checkpoint_step);
        self.sweep = true;
        if self.status.basis != status.basis || (self.basis.is_none() && status.basis.is_some()) {
            self.basis = status.basis.as_ref().and_then(Basis::read).map(Arc::new);
        }
        self.life.commit(facts::committed(&status, plan), shared.now.at);
        if self.status.reason != status.reason {
            self.reason_before = self.status.reason.take();
        }
        self.status = status;
        let generation = self.life.plan().map_or(0, |plan| plan.generation);
        if self.work.generation != generation {
            let nodes = std::mem::take(&mut self.work.nodes);
            let revisions = self.life.plan().map(Revisions::of).unwrap_or_default();
            self.work = PlanWork { generation, revisions, nodes, ..PlanWork::default() };
            self.hold_revisions();
            self.progress.clear();
            self.spared.clear();
        }
        self.work.seen_progress = None;
    }

    /// Takes in a pod. Returns whether anything follows from it: of a pod that merely begins, only the last matters.
    pub fn see_pod(&mut self, pod: &PodFacts, now: Millis) -> bool {
        let slot = self.slot_of(pod);
        if slot.is_none() && !self.owns(pod) {
            return false;
        }
        let tally = |life: &Life| life.slots().map(muster_lifecycle::gang::Slots::tally).unwrap_or_default();
        let before = tally(&self.life);
        let waits = |life: &Life, slot: &Slot| -> String {
            let planned = life.slots().and_then(|slots| slots.get(slot));
            planned.map(|planned| planned.waits().to_owned()).unwrap_or_default()
        };
        let (planned, stuck) = match slot {
            Some(slot) => {
                let said = waits(&self.life, &slot);
                let planned = self.life.observe(&slot, &sight(pod), now);
                (planned, waits(&self.life, &slot) != said)
            }
            None => (false, false),
        };
        let step = if planned { self.checkpoint_step.max(pod.checkpoint_step) } else { self.checkpoint_step };
        let progressed = std::mem::replace(&mut self.checkpoint_step, step) != step;
        let after = tally(&self.life);
        let unwanted = !planned || pod.leaving || self.life.holding().is_none();
        if unwanted {
            self.suspects.insert(pod.uid.clone());
        }
        let begins = before != after
            && (after.running, after.done, after.lost) == (before.running, before.done, before.lost)
            && after.missing + after.asked > 0;
        unwanted || progressed || stuck || (before != after && !begins)
    }

    /// The place of a pod that this gang made: by its controller, namespace and name, never by labels.
    pub fn slot_of(&self, pod: &PodFacts) -> Option<Slot> {
        pod.planned_slot(&self.key, &self.uid, self.role_names())
    }

    /// The roles in the order by which pods are named: that of the plan in force, whatever became of the specification's.
    fn role_names(&self) -> Vec<&str> {
        match &self.basis {
            Some(basis) => basis.roles().iter().map(|role| role.name.as_str()).collect(),
            None => self.object.spec.roles.iter().map(|role| role.name.as_str()).collect(),
        }
    }

    /// Whether a pod is one that this gang made, for roles that it may not have any more.
    pub fn owns(&self, pod: &PodFacts) -> bool {
        let ours = || pod.gang.as_ref() == Some(&self.uid) && pod.key.namespace == self.key.namespace;
        self.slot_of(pod).is_some() || (ours() && names::is_pod(&self.key.name, &self.uid, &pod.key.name))
    }

    /// Takes in a Service or ConfigMap of its.
    pub fn see_child(&mut self, shared: &mut Shared, kind: Kind, meta: &ObjectMeta) {
        let key = crate::key_of(meta);
        shared.child_of.insert((kind, key.clone()), self.key.clone());
        self.children.insert((kind, key.name), ChildSeen::of(meta, &self.uid));
        self.look_at_children = true;
        shared.dirty_gangs.insert(self.key.clone());
    }

    /// What a plan takes of each of its nodes, judged by a basis.
    pub fn amounts(plan: &Plan, basis: &Basis) -> BTreeMap<NodeName, Resources> {
        let mut amounts: BTreeMap<NodeName, Resources> = BTreeMap::new();
        for unit in plan.units.iter().map(|unit| &unit.placed) {
            let class = basis.classes().iter().find(|class| Some(&class.name) == unit.class.as_ref());
            let role = basis.roles().iter().find(|role| role.name == unit.id.role);
            let pod = role.map(|role| role.pod_requests(class)).unwrap_or_default();
            for node in &unit.nodes {
                amounts.entry(node.clone()).or_default().add(&pod);
            }
        }
        amounts
    }

    /// What the plan in force takes for a pod.
    pub fn planned_requests(&self, pod: &PodFacts) -> Option<Resources> {
        let slot = self.slot_of(pod)?;
        let class = self.life.plan()?.unit(&slot.unit)?.placed.class.as_ref();
        let basis = self.in_force().ok()?;
        let role = basis.roles().iter().find(|role| role.name == slot.unit.role)?;
        Some(role.pod_requests(basis.classes().iter().find(|known| Some(&known.name) == class)))
    }

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

    /// What the plan in force is judged by: what it was made from or, where that was not kept, what would be asked now.
    pub fn in_force(&self) -> Result<Basis, Reason> {
        match &self.basis {
            Some(basis) => Ok(Basis::clone(basis)),
            None => self.request.as_ref().map(Basis::of).map_err(Clone::clone),
        }
    }

    /// Notes for which roles units keep their template although there is a newer one.
    fn hold_revisions(&mut self) {
        let used = self.revisions_in_use();
        for (terms, role) in self.terms.roles.iter_mut().zip(&self.object.spec.roles) {
            terms.held = !revisions::fits(role, &used);
        }
    }

    /// The templates of the plan in force.
    pub fn revisions_in_use(&self) -> Vec<RevisionUse> {
        self.life.plan().map(revisions::in_use).unwrap_or_default()
    }

    /// What is asked of the engine for a new plan.
    pub fn set_request(&mut self, request: Result<Gang, Reason>) {
        if self.request != request {
            self.request = request;
            self.request_version += 1;
        }
    }

    /// Whether its plan, in force or being written, has a part of this name.
    pub fn names_part(&self, name: &str) -> bool {
        let written = self.writing.as_ref().map(|writing| &writing.change.status);
        let plans =
            [Some(&self.status), written].into_iter().flatten().filter_map(|status| status.plan.as_ref());
        plans.flat_map(|plan| &plan.chunks).any(|part| part.name == name)
    }

    /// All of its pods are looked at again.
    pub fn sweep_all(&mut self) {
        self.sweep = true;
    }

    /// Since when it waits, for the order of decisions: its creation, in wall time.
    pub fn since(&self) -> Millis {
        self.object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond())
    }

    /// Its committed phase.
    pub fn phase(&self) -> GangPhase {
        self.status.phase.unwrap_or_default()
    }

    /// Whether its plan in force was made because it had lost something.
    pub fn after_loss(&self) -> bool {
        let plan = self.status.plan.as_ref().map(|plan| plan.generation);
        let made_by_loss = self.status.restarts.last().is_some_and(|last| Some(last.generation) == plan);
        made_by_loss || self.status.reason.as_deref() == Some("Recovering")
    }

    /// Whether it has ended.
    pub fn is_final(&self) -> bool {
        self.phase().is_final()
    }

    /// Whether a pod belongs to no slot of the plan in force (or to a gang that has none).
    pub fn stray(&self, pod: &PodFacts) -> bool {
        let slot = self.slot_of(pod);
        let planned = slot.as_ref().and_then(|slot| self.life.slots()?.get(slot));
        planned.is_none_or(|planned| planned.uid.as_ref() != Some(&pod.uid))
    }

    /// The name of a pod.
    pub fn pod_name(&self, slot: &Slot) -> String {
        let letter = names::role_letter(&self.role_names(), &slot.unit.role);
        names::pod(&self.key.name, &self.uid, letter, slot.unit.index, slot.incarnation, slot.index)
    }

    /// The workload that controls it is to look at it.
    pub fn touch_owner(&self, shared: &mut Shared) {
        if let Some(owner) = &self.owner {
            shared.dirty_workloads.insert(owner.uid.clone());
        }
    }

    /// Tells about it: on its workload, where users look, else on the gang itself.
    pub fn tell(&self, shared: &mut Shared, reason: &str, message: &str, warning: bool) {
        match &self.owner {
            Some(owner) if owner.kind == Kind::Job => {
                let message = crate::derive::in_words_of_job(Some(reason), message);
                shared.tell(owner.kind, &owner.key, &owner.uid, reason, &message, warning);
            }
            Some(owner) => shared.tell(owner.kind, &owner.key, &owner.uid, reason, message, warning),
            None => shared.tell(Kind::Gang, &self.key, &self.uid, reason, message, warning),
        }
    }

    /// A role of its specification.
    pub fn role(&self, name: &str) -> Option<&RoleSpec> {
        self.object.spec.roles.iter().find(|role| role.name == name)
    }

    /// Position of our finalizer.
    pub fn guard(&self) -> Option<usize> {
        self.object.metadata.finalizers.iter().flatten().position(|name| name == labels::PODS_FINALIZER)
    }

    /// A part of it on the desk.
    pub fn target(&self, facet: Facet) -> Target {
        Target { kind: Kind::Gang, facet, key: self.key.clone() }
    }
}

/// Whether a resourceVersion is older than another. They are numbers that grow (guaranteed since Kubernetes 1.35);
/// what is no number is never older.
pub fn older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}
