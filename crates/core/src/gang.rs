//! What the core remembers of one gang: the object, what was committed, and where its pods stand.

use muster_api::plan_codec::{self, Chunk};
use muster_api::{Gang as Object, GangPhase, GangStatus, RoleSpec, labels, names};
use muster_cluster::{PodFacts, Slot};
use muster_engine::How;
use muster_lifecycle::launch::World;
use muster_model::{
    Gang, GangState, Millis, NodeName, ObjectKey, Plan, Reason, RecoveryStep as Step, Resources, Toleration,
    Uid, UnitId, plan::Placement,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::recover;
use super::slots::{Slots, Tally};
use super::status::Change;
use crate::effect::Effect;
use crate::launch::Launcher;
use crate::manifest::{self, Blueprint};

/// A plan that the engine made and that is not committed yet.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// The plan.
    pub plan: Plan,
    /// The loss that made it necessary; `None` for a first placement.
    pub loss: Option<Loss>,
    /// How it came about.
    pub how: How,
}

/// Why a plan in force has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Units that cannot go on where they are.
    pub units: BTreeSet<UnitId>,
    /// One CamelCase word.
    pub cause: String,
    /// What happened, in words.
    pub message: String,
    /// Whether it counts against the restart budget.
    pub counts: bool,
    /// Rungs of the ladder that may be taken.
    pub steps: Vec<Step>,
}

/// An object that a plan needs beside its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Plan generation for which it was asked.
    pub asked: u64,
    /// Plan generation for which it is in place.
    pub ready: u64,
    /// Whether it exists at all.
    pub exists: bool,
}

/// What stands for a gang that the engine was told of, without its plan and request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    state: std::mem::Discriminant<Wanted>,
    generation: u64,
    lost: BTreeSet<UnitId>,
    steps: Vec<Step>,
    avoid: Vec<NodeName>,
}

impl Told {
    /// Whether the engine looks for a place for it.
    pub fn waits(&self) -> bool {
        self.state == std::mem::discriminant(&Wanted::Waiting)
    }
}

/// What the engine should hold for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing.
    Inactive,
    /// A placement.
    Waiting,
    /// The plan in force.
    Holding,
    /// The plan in force, and other places for what is lost.
    Replan,
}

/// A status that is being written: under way until it is known to be on the server, or that it never will be.
#[derive(Debug)]
pub struct Writing {
    /// The object's version that it was made from. The server takes it only while the object has that version.
    pub version: String,
    /// What is written.
    pub change: Change,
    /// It puts another plan in force.
    pub places: bool,
    /// An attempt got no answer: the server may have done it.
    pub unsure: bool,
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

/// One gang.
#[derive(Debug)]
pub struct GangRt {
    /// The object as last seen.
    pub object: Object,
    /// Its resourceVersion, ours if we wrote last.
    pub version: String,
    /// Its status as committed on the server.
    pub status: GangStatus,
    /// The committed plan.
    pub plan: Option<Plan>,
    /// Where the plan's pods stand.
    pub slots: Slots,
    /// The gang as the engine wants it, state aside; or why it cannot be placed at all.
    pub request: Result<Gang, Reason>,
    /// What the engine was told last.
    pub told: Option<Told>,
    /// The status that is being written.
    pub writing: Option<Box<Writing>>,
    /// Not before this time is a status tried again.
    pub write_after: Millis,
    /// A decision that waits to be committed.
    pub proposal: Option<Proposal>,
    /// The engine's last refusal.
    pub refusal: Option<Reason>,
    /// Why the plan in force has to change; the engine looks for another.
    pub loss: Option<Loss>,
    /// Nodes that refused its pods, and until when they are not used.
    pub avoid: BTreeMap<NodeName, Millis>,
    /// Not placed before this time, and why.
    pub hold: Option<(Millis, Reason)>,
    /// How often a plan failed in a row.
    pub failures: u32,
    /// What is the same for the pods of a role, for the plan in force.
    pub roles: BTreeMap<String, Arc<RolePlan>>,
    /// Any of its pods may have to be deleted or let go.
    pub sweep: bool,
    /// These pods may: of two thousand that leave, each event concerns one.
    pub suspects: BTreeSet<Uid>,
    /// When the start limit was looked at last.
    pub looked: Millis,
    /// What progress was computed from last.
    pub seen_progress: Option<(Tally, Option<i64>)>,
    /// Services and ConfigMaps of the plan, by name.
    pub needed: BTreeMap<String, Needed>,
    /// Pods whose deletion was asked for, and whether by force.
    pub deleting: BTreeMap<Uid, bool>,
    /// Pods whose finalizer was asked away.
    pub releasing: BTreeSet<Uid>,
    /// Nodes on which a pod waits for room.
    pub blocked: BTreeSet<NodeName>,
    /// Its deletion was asked for.
    pub removing: bool,
    /// The gang's own finalizer was asked away.
    pub released: bool,
    /// When progress was written last.
    pub progressed: Millis,
    /// Last checkpoint step that was seen on a pod.
    pub checkpoint_step: Option<i64>,
    /// The nodes under which the gang is indexed.
    pub indexed: BTreeSet<NodeName>,
    /// Why a plan could not be carried out, to be written.
    pub failed_plan: Option<Reason>,
    /// The committed plan cannot be read.
    pub unreadable: Option<String>,
    /// What `request` is made from has changed.
    pub request_stale: bool,
    /// Not before this time are pods created again.
    pub create_after: Millis,
    /// Since when a pod waits for room on its node.
    pub blocked_since: Option<Millis>,
}

impl GangRt {
    /// A gang as first seen.
    pub fn new(object: Object, chunks: &BTreeMap<String, String>) -> Self {
        let mut rt = Self {
            version: String::new(),
            status: GangStatus::default(),
            plan: None,
            slots: Slots::default(),
            request: Err(Reason::NotFound { states: 0 }),
            told: None,
            writing: None,
            write_after: 0,
            proposal: None,
            refusal: None,
            loss: None,
            avoid: BTreeMap::new(),
            hold: None,
            failures: 0,
            roles: BTreeMap::new(),
            sweep: true,
            suspects: BTreeSet::new(),
            looked: 0,
            seen_progress: None,
            needed: BTreeMap::new(),
            deleting: BTreeMap::new(),
            releasing: BTreeSet::new(),
            blocked: BTreeSet::new(),
            removing: false,
            released: false,
            progressed: 0,
            checkpoint_step: None,
            indexed: BTreeSet::new(),
            failed_plan: None,
            unreadable: None,
            request_stale: true,
            create_after: 0,
            blocked_since: None,
            object: object.clone(),
        };
        rt.see(object, chunks);
        rt
    }

    /// Takes in the object, unless it is older than what we know.
    pub fn see(&mut self, object: Object, chunks: &BTreeMap<String, String>) {
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        if older(&version, &self.version) {
            return;
        }
        self.version = version;
        // A deletion, a suspension: whatever changed, pods may have to go.
        self.sweep = true;
        let status = object.status.clone().unwrap_or_default();
        if self.object.metadata.generation != object.metadata.generation {
            // The specification changed: what the engine knows of it is old.
            self.told = None;
        }
        self.object = object;
        if status.plan == self.status.plan {
            self.status = status;
            return;
        }
        let plan = status.plan.as_ref().map(|plan| plan_codec::decode(plan, chunks));
        self.unreadable = plan.as_ref().and_then(|plan| plan.as_ref().err()).map(ToString::to_string);
        self.commit(status, plan.and_then(Result::ok));
    }

    /// What is on the server now, and the plan that it holds.
    pub fn commit(&mut self, status: GangStatus, plan: Option<Plan>) {
        if self.status.plan != status.plan || self.plan != plan {
            self.slots = plan.as_ref().map_or_else(Slots::default, |plan| Slots::of(plan, &self.slots));
            self.plan = plan;
            self.roles.clear();
            self.blocked.clear();
            self.loss = None;
            // It was made from the plan that was in force until now.
            self.drop_decision();
        }
        self.checkpoint_step = self.checkpoint_step.max(status.checkpoint_step);
        self.sweep = true;
        self.seen_progress = None;
        self.status = status;
    }

    /// At the start of a term: a pod that is missing although all were created is lost.
    pub fn start(&mut self) {
        if self.status.launched {
            self.slots.lose_missing();
        }
    }

    /// The plan that a placement comes to, after the one in force.
    pub fn next_plan(&self, placement: Placement) -> Plan {
        let generation =
            self.status.last_generation.max(self.plan.as_ref().map_or(0, |plan| plan.generation)) + 1;
        let renew = self.loss.as_ref().map(|loss| loss.units.clone()).unwrap_or_default();
        let whole = recover::restarts_as_a_whole(&self.object);
        Plan::next(self.plan.as_ref(), generation, placement, &renew, whole)
    }

    /// The plan in force with every unit renewed where it is.
    pub fn same_places(&self) -> Option<Plan> {
        let plan = self.plan.as_ref()?;
        let units = plan.units.iter().map(|unit| unit.placed.clone()).collect();
        Some(self.next_plan(Placement { units, spares: plan.spares.clone() }))
    }

    /// Takes in a pod. Returns whether anything follows from it: of a pod that merely begins, only the last matters.
    pub fn see_pod(&mut self, pod: &PodFacts) -> bool {
        let before = self.slots.tally();
        let planned = self.slots.observe(pod);
        let step = self.checkpoint_step.max(pod.checkpoint_step);
        let progressed = std::mem::replace(&mut self.checkpoint_step, step) != step;
        let after = self.slots.tally();
        let unwanted = !planned || pod.leaving || self.plan.is_none() || self.leaving() || self.is_final();
        if unwanted {
            self.suspects.insert(pod.uid.clone());
        }
        let begins = before != after
            && (after.running, after.done, after.lost) == (before.running, before.done, before.lost)
            && after.missing + after.asked > 0;
        unwanted || progressed || (before != after && !begins)
    }

    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        let meta = &self.object.metadata;
        ObjectKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
    }

    /// UID.
    pub fn uid(&self) -> Uid {
        Uid(self.object.metadata.uid.clone().unwrap_or_default())
    }

    /// Since when it waits, for the order of decisions: its creation.
    pub fn since(&self) -> Millis {
        self.object.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_millisecond())
    }

    /// Whether it is being deleted.
    pub fn leaving(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether it has ended.
    pub fn is_final(&self) -> bool {
        self.phase().is_final()
    }

    /// Its committed phase.
    pub fn phase(&self) -> GangPhase {
        self.status.phase.unwrap_or_default()
    }

    /// Whether a pod is the one whose exit decides.
    pub fn decides(&self, role: &str, unit: u32, index: u32) -> bool {
        use muster_api::OutcomePolicy;
        let outcome = &self.object.spec.outcome;
        match outcome.policy {
            OutcomePolicy::Never => false,
            OutcomePolicy::All => true,
            OutcomePolicy::Pod => {
                let first = self.object.spec.roles.first().map(|role| role.name.as_str());
                outcome.role.as_deref().or(first) == Some(role)
                    && outcome.unit == unit
                    && outcome.index == index
            }
        }
    }

    /// Whether the plan's unit counts are still allowed by the specification.
    pub fn plan_fits_spec(&self, plan: &Plan) -> bool {
        self.object.spec.roles.iter().all(|role| {
            let count = plan.count(&role.name);
            let pods = plan
                .units
                .iter()
                .filter(|unit| unit.placed.id.role == role.name)
                .all(|unit| unit.placed.nodes.len() == role.pods_per_unit as usize);
            pods && (role.units.min..=role.units.max).contains(&count)
                && (role.units.valid.is_empty() || role.units.valid.contains(&count))
        })
    }

    /// What the engine should hold for this gang now. `None`: leave what it has (a decision is under way).
    pub fn wanted(&self, blocked: bool) -> Option<Wanted> {
        if self.proposal.is_some() {
            return None;
        }
        let inactive = self.leaving() || self.is_final() || (self.plan.is_none() && self.object.spec.suspend);
        Some(match (&self.plan, &self.loss) {
            _ if inactive => Wanted::Inactive,
            (Some(_), Some(_)) => Wanted::Replan,
            (Some(_), None) => Wanted::Holding,
            (None, _) if blocked || self.hold.is_some() => Wanted::Inactive,
            (None, _) => Wanted::Waiting,
        })
    }

    /// What stands for telling the engine `wanted` now.
    pub fn telling(&self, wanted: Wanted) -> Told {
        Told {
            state: std::mem::discriminant(&wanted),
            generation: self.plan.as_ref().map_or(0, |plan| plan.generation),
            lost: self.loss.as_ref().map(|loss| loss.units.clone()).unwrap_or_default(),
            steps: self.loss.as_ref().map(|loss| loss.steps.clone()).unwrap_or_default(),
            avoid: self.avoid.keys().cloned().collect(),
        }
    }

    /// The gang's state in the engine's terms.
    pub fn state(&self, wanted: Wanted) -> GangState {
        match (wanted, &self.plan) {
            (Wanted::Waiting, _) => GangState::Waiting,
            (Wanted::Holding, Some(plan)) => GangState::Holding(plan.clone()),
            (Wanted::Replan, Some(plan)) => GangState::Replan {
                plan: plan.clone(),
                lost: self.loss.as_ref().map(|loss| loss.units.clone()).unwrap_or_default(),
                steps: self.loss.as_ref().map(|loss| loss.steps.clone()).unwrap_or_default(),
            },
            _ => GangState::Inactive,
        }
    }

    /// Whether a pod belongs to no slot of the plan in force (or to a gang that has none).
    pub fn stray(&self, pod: &PodFacts) -> bool {
        let planned = pod.slot.as_ref().and_then(|slot| self.slots.get(slot));
        self.plan.is_none() || planned.is_none_or(|planned| planned.uid.as_ref() != Some(&pod.uid))
    }

    /// Forgets a decision that could not be committed; the engine is asked again.
    pub fn drop_decision(&mut self) {
        self.proposal = None;
        self.told = None;
    }

    /// The name of a pod.
    pub fn pod_name(&self, slot: &Slot) -> String {
        let roles: Vec<&str> = self.object.spec.roles.iter().map(|role| role.name.as_str()).collect();
        let letter = names::role_letter(&roles, &slot.unit.role);
        names::pod(&self.key().name, &self.uid(), letter, slot.unit.index, slot.incarnation, slot.index)
    }

    /// A number that stands for what the API server is asked about a role's pods.
    pub fn shape_of(&self, role: &RoleSpec) -> u64 {
        let class = self.request.as_ref().ok().and_then(|request| request.classes.first());
        let text = serde_json::json!([
            self.object.metadata.namespace,
            role.template,
            role.devices,
            role.container,
            class.map(|class| &class.resource),
        ]);
        // FNV-1a: only to tell shapes apart in memory.
        text.to_string()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// The write of a status, with the parts of a plan that is too large for it.
    pub fn status_effect(&self, key: &ObjectKey, status: &mut GangStatus) -> (Effect, Vec<Chunk>) {
        let mut chunks = Vec::new();
        if let Some(plan) = &status.plan
            && let Ok((plan, parts)) = plan_codec::split(plan, plan_codec::MAX_INLINE, &key.name, &self.uid())
        {
            status.plan = Some(plan);
            chunks = parts;
        }
        let objects = chunks
            .iter()
            .map(|chunk| {
                serde_json::json!({
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": chunk.name,
                        "namespace": key.namespace,
                        "labels": {
                            labels::PLAN_CHUNK: self.uid(),
                            labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
                        },
                        "ownerReferences": [manifest::owner(&self.object)],
                    },
                    "immutable": true,
                    "data": { plan_codec::CHUNK_KEY: chunk.text },
                })
            })
            .collect();
        let effect = Effect::WriteGang {
            gang: key.clone(),
            version: self.version.clone(),
            status: Box::new(status.clone()),
            chunks: objects,
        };
        (effect, chunks)
    }

    /// How the pods are launched.
    pub fn launcher(&self) -> Launcher {
        Launcher::of(&self.object)
    }

    /// Finalizers other than ours.
    pub fn other_finalizers(&self) -> Vec<String> {
        let all = self.object.metadata.finalizers.iter().flatten();
        all.filter(|finalizer| *finalizer != labels::PODS_FINALIZER).cloned().collect()
    }

    /// Whether our finalizer is on it.
    pub fn guarded(&self) -> bool {
        self.object.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == labels::PODS_FINALIZER)
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
