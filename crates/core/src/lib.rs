//! The decisions of the operator, without a clock or a server: facts in, wants out.
//!
//! ```text
//!   watch events ─apply─▶ facts: cluster (engine) · world · nodes · workloads · gangs
//!                           │ advance(now): workloads want gangs · gangs live (lifecycle::gang) · the engine decides
//!                           ▼
//!                         desk: one want for each object ─take─▶ tickets ─writer─▶ outcomes ─done─▶ the same facts
//! ```
//!
//! One rule orders everything: what is done to pods follows from what is *committed* in a Gang's status. A decision
//! first becomes a status write; only when that has succeeded do pods appear or go. So a crash at any point leaves
//! either the old plan or the new one, and the next leader completes it.
//!
//! A gang or workload is handed to the functions that judge it, beside [`Shared`]: what all of them use.

mod change;
mod config;
pub mod derive;
mod desk;
mod gang;
mod health;
mod intake;
pub mod launch;
pub mod manifest;
mod nodes;
mod outcome;
mod owner;
mod read;
mod reports;
mod shapes;
mod shared;
#[cfg(test)]
mod tests;
pub mod want;
mod workload;
mod world;

pub use change::{Change, Event, Partial};
pub use config::{Config, Counters};
pub use desk::{Limits, Ticket};
pub use muster_lifecycle::Now;
pub use read::{plan_part, read_gang};
pub use world::World;

use muster_api::{AcceleratorClass, GangPhase, Queue, Topology};
use muster_cluster::Cluster;
use muster_engine::{Decision, How as Found};
use muster_lifecycle::gang::How;
use muster_model::{Millis, NodeName, ObjectKey, Plan, Uid};
use std::collections::{BTreeMap, BTreeSet};

use gang::GangRt;
use reports::Reports;
use shared::{Shared, Wake};
use workload::Workload;

/// The core.
pub struct Core {
    shared: Shared,
    gangs: BTreeMap<ObjectKey, GangRt>,
    workloads: BTreeMap<Uid, Box<dyn Workload>>,
    reports: AllReports,
}

/// The small objects whose statuses are counted from others.
#[derive(Debug, Default)]
struct AllReports {
    topologies: Reports<Topology>,
    classes: Reports<AcceleratorClass>,
    queues: Reports<Queue>,
}

impl Core {
    /// A core for a term of leadership.
    pub fn new(config: Config, epoch: i64) -> Self {
        Self {
            shared: Shared::new(config, epoch),
            gangs: BTreeMap::new(),
            workloads: BTreeMap::new(),
            reports: AllReports::default(),
        }
    }

    /// All that exists has been taken in: from now on a pod that is missing is missing.
    pub fn start(&mut self) {
        self.shared.started = true;
        for rt in self.gangs.values_mut() {
            rt.read_plan_again(&self.shared);
            rt.life.start();
            self.shared.dirty_gangs.insert(rt.key.clone());
        }
        self.release_orphans();
    }

    /// How far wall time is ahead of the monotonic time that all calls are given: milliseconds to add.
    pub fn set_wall_offset(&mut self, wall_minus_monotonic: Millis) {
        /// By less than this two clocks seem to move that are read one after the other. Followed, it would write a status
        /// anew that says a time of the day at the turn of a second.
        const TREMBLE: u64 = 100;
        if self.shared.wall_offset.abs_diff(wall_minus_monotonic) >= TREMBLE {
            self.shared.wall_offset = wall_minus_monotonic;
        }
    }

    /// Counters for metrics.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Of how many groups of nodes none counts as lost for its silence now.
    pub fn brakes(&self) -> usize {
        self.shared.nodes.braked()
    }

    /// The cluster's state, to read.
    pub fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    /// Gangs by phase, for metrics. Words that only a newer version knows are one: labels must be few.
    pub fn phases(&self) -> BTreeMap<String, usize> {
        let mut phases = BTreeMap::new();
        for rt in self.gangs.values() {
            let phase = match rt.phase() {
                GangPhase::Unknown(_) => "Unknown".to_owned(),
                known => format!("{known:?}"),
            };
            *phases.entry(phase).or_default() += 1;
        }
        phases
    }

    /// Goes as far as it can without the server's answers.
    pub fn advance(&mut self, now: Millis) {
        self.shared.at(now);
        while let Some(wake) = self.shared.wakes.due(now) {
            self.wake(wake);
        }
        while self.shared.doubtful.front().is_some_and(|(until, _)| *until <= now) {
            let Some((_, pod)) = self.shared.doubtful.pop_front() else { break };
            if let Some(node) = self.shared.cluster.not_expected(&pod) {
                self.shared.room_on(&node);
            }
        }
        self.judge_nodes();
        if std::mem::take(&mut self.shared.nodes_changed)
            && self.shared.world.look_at_nodes(&self.shared.cluster)
        {
            self.judge_all_again();
        }
        self.settle_workloads();
        self.settle_gangs();
        self.decide();
        self.settle_gangs();
        self.settle_workloads();
        self.create_pods();
    }

    fn settle_gangs(&mut self) {
        for namespace in std::mem::take(&mut self.shared.quota_moved) {
            self.touch_waiting(Some(&namespace));
        }
        for key in std::mem::take(&mut self.shared.dirty_gangs) {
            let unreadable = self.shared.unreadable.contains_key(&(want::Kind::Gang, key.clone()));
            if let Some(rt) = self.gangs.get_mut(&key).filter(|_| !unreadable) {
                settle_guarded(&mut self.shared, rt);
            }
        }
    }

    fn settle_workloads(&mut self) {
        for uid in std::mem::take(&mut self.shared.dirty_workloads) {
            if let Some(workload) = self.workloads.get_mut(&uid) {
                workload::settle(&mut self.shared, &self.gangs, workload.as_mut());
            }
        }
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Gang(key) => {
                if let Some(rt) = self.gangs.get_mut(&key) {
                    rt.sweep_all();
                }
                self.shared.dirty_gangs.insert(key);
            }
            Wake::Workload(uid) => {
                self.shared.dirty_workloads.insert(uid);
            }
            Wake::Report(kind) => self.report(kind),
            Wake::Turn => {}
        }
    }

    /// Asks the engine, and keeps its decisions as proposals.
    fn decide(&mut self) {
        /// At most so many decisions before their writes are sent: deciding and writing overlap, and an answer waits no
        /// longer than they take.
        const BATCH: usize = 32;
        let now = self.shared.now.at;
        let decisions = self.shared.cluster.decide(now, BATCH);
        self.shared.counters.decisions += decisions.len() as u64;
        if decisions.len() == BATCH {
            // More may wait: come back at once.
            self.shared.wakes.insert(now, Wake::Turn);
        }
        for decision in decisions {
            let (Decision::Place { key, uid, .. } | Decision::Refuse { key, uid, .. }) = &decision;
            let Some(rt) = self.gangs.get_mut(key).filter(|rt| rt.uid == *uid) else { continue };
            self.shared.dirty_gangs.insert(key.clone());
            let taken = match decision {
                Decision::Place { placement, how, .. } => rt.life.decided(&rt.terms, placement, how_of(how)),
                Decision::Refuse { reason, .. } => rt.life.refused(reason),
            };
            if !taken {
                // It was asked for something that is not wanted any more: told anew, it forgets that.
                rt.told = None;
            }
        }
    }

    /// Takes what may begin now.
    pub fn take(&mut self, now: Millis) -> Vec<Ticket> {
        self.shared.desk.take(now)
    }

    /// When something is due although nothing happens.
    pub fn next_wake(&self) -> Option<Millis> {
        let shared = &self.shared;
        if !shared.dirty_gangs.is_empty() || !shared.dirty_workloads.is_empty() {
            return Some(shared.now.at);
        }
        [shared.wakes.next(), shared.desk.next_due(), shared.nodes.next()].into_iter().flatten().min()
    }

    /// Whether there is nothing to do until something happens.
    pub fn idle(&self) -> bool {
        let shared = &self.shared;
        shared.desk.idle()
            && shared.dirty_gangs.is_empty()
            && shared.dirty_workloads.is_empty()
            && shared.creating.is_empty()
    }
}

/// Looks at a gang. One that trips us over ends its own turn, and rests until somebody changes it: the others go on.
fn settle_guarded(shared: &mut Shared, rt: &mut GangRt) {
    let generation = rt.object.metadata.generation;
    let rests = rt.fault.as_ref().is_some_and(|fault| fault.generation == generation);
    let look = if rests { gang::say_fault } else { gang::settle };
    let turn = std::panic::AssertUnwindSafe(|| look(shared, rt));
    if let Err(cause) = std::panic::catch_unwind(turn)
        && !rests
    {
        let words = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let words = words.or_else(|| cause.downcast_ref::<String>().cloned()).unwrap_or_default();
        tracing::error!(gang = %rt.key, %words, "a fault of the operator; the gang rests until it is changed");
        let message = format!(
            "the operator failed over this gang ({words}) and leaves it as it is; change its specification (suspending it \
             will do), and please report this"
        );
        shared.counters.tripped += 1;
        rt.tell(shared, gang::FAULT, &message, true);
        rt.fault = Some(gang::Fault { generation, message });
        shared.dirty_gangs.insert(rt.key.clone());
    }
}

/// How the engine came to a placement, in the terms of a gang's life.
fn how_of(found: Found) -> How {
    match found {
        Found::Fresh => How::Fresh,
        Found::Replaced => How::Replaced,
        Found::Shrunk => How::Shrunk,
        Found::Moved => How::Moved,
    }
}

/// The taint by which an administrator promises that a node's containers are gone.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn name_of(meta: &kube::api::ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

fn key_of(meta: &kube::api::ObjectMeta) -> ObjectKey {
    ObjectKey::new(meta.namespace.clone().unwrap_or_default(), name_of(meta))
}

fn uid_of(meta: &kube::api::ObjectMeta) -> Uid {
    Uid(meta.uid.clone().unwrap_or_default())
}

/// The object that controls another, by its owner references.
fn controller_of(
    meta: &kube::api::ObjectMeta,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Sums of a plan for people: "256 pods on 256 nodes".
fn plan_words(plan: &Plan) -> String {
    let nodes: BTreeSet<&NodeName> = plan.units.iter().flat_map(|unit| &unit.placed.nodes).collect();
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!(
        "{} in {} on {}",
        count(plan.pods(), "pod"),
        count(plan.units.len(), "unit"),
        count(nodes.len(), "node")
    )
}

/// Accelerators that a plan holds.
fn plan_devices(plan: &Plan, gang: &muster_api::Gang) -> u32 {
    let per_pod = |role: &str| gang.spec.roles.iter().find(|r| r.name == role).map_or(0, |r| r.devices);
    plan.units.iter().map(|unit| unit.placed.nodes.len() as u32 * per_pod(&unit.placed.id.role)).sum()
}
