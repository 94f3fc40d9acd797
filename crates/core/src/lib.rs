//! The decisions of the operator, without a clock or a server.
//!
//! ```text
//!   watch events ─apply─▶ Core ─advance(now)─▶ Effects (outbox) ─writer─▶ Outcomes ─done─▶ Core …
//!                          │ cluster (engine) · world · gangs · jobs
//! ```
//!
//! One rule orders everything: what is done to pods follows from what is *committed* in a Gang's status. A decision
//! first becomes a status write; only when that has succeeded do pods appear or go. So a crash at any point leaves
//! either the old plan or the new one, and the next leader completes it.

mod act;
mod change;
mod config;
pub mod derive;
pub mod effect;
mod gang;
mod intake;
mod job;
pub mod launch;
pub mod manifest;
mod needs;
mod outbox;
mod outcome;
mod read;
mod recover;
mod reports;
mod settle;
mod slots;
mod status;
#[cfg(test)]
mod tests;
mod world;

pub use change::Change;
pub use config::{Config, Counters};
pub use outbox::{Limits, Ticket};
pub use read::{plan_part, read_gang};

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use muster_api::{AcceleratorClass, Gang as Object, Queue, Topology, TrainingJob};
use muster_cluster::Cluster;
use muster_cluster::seen::{SeenNode, SeenPod};
use muster_cluster::template::Learned;
use muster_engine::Decision;
use muster_model::{Millis, NodeName, ObjectKey, Plan, Uid};
use std::collections::{BTreeMap, BTreeSet};

use crate::effect::{Claims, Effect, Note, Reported};
use gang::{GangRt, Proposal};
use job::JobRt;
use outbox::Outbox;
use reports::Reports;
pub use world::World;

/// Something that a watch reported.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is moved once, from the watch into the core")]
pub enum Event {
    /// A Node.
    Node(Change<SeenNode>),
    /// A Pod.
    Pod(Change<SeenPod>),
    /// A Gang.
    Gang(Change<Object>),
    /// A TrainingJob.
    Job(Change<TrainingJob>),
    /// A Queue.
    Queue(Change<Queue>),
    /// A Topology.
    Topology(Change<Topology>),
    /// An AcceleratorClass.
    Class(Change<AcceleratorClass>),
    /// A PriorityClass.
    Priority(Change<PriorityClass>),
    /// A ResourceQuota.
    Quota(Change<ResourceQuota>),
}

impl Event {
    /// Whether it says that a watch has delivered what there was.
    pub fn synced(&self) -> bool {
        matches!(
            self,
            Self::Node(Change::Synced)
                | Self::Pod(Change::Synced)
                | Self::Gang(Change::Synced)
                | Self::Job(Change::Synced)
                | Self::Queue(Change::Synced)
                | Self::Topology(Change::Synced)
                | Self::Class(Change::Synced)
                | Self::Priority(Change::Synced)
                | Self::Quota(Change::Synced)
        )
    }
}

/// What the API server makes of a pod shape, learned by a dry run.
#[derive(Clone, Debug)]
enum Shape {
    /// Asked; these gangs wait.
    Asked(BTreeSet<ObjectKey>),
    /// What came of it, and when.
    Known(Box<Learned>, Claims, Millis),
}

/// The core.
pub struct Core {
    config: Config,
    epoch: i64,
    cluster: Cluster,
    world: World,
    gangs: BTreeMap<ObjectKey, GangRt>,
    by_uid: BTreeMap<Uid, ObjectKey>,
    jobs: BTreeMap<ObjectKey, JobRt>,
    out: Outbox,
    dirty_gangs: BTreeSet<ObjectKey>,
    dirty_jobs: BTreeSet<ObjectKey>,
    /// Gangs with pods to create now, and those pods' positions.
    creating: BTreeMap<ObjectKey, std::collections::VecDeque<muster_cluster::Slot>>,
    /// Gang whose creation was served last: creations go round.
    served: Option<ObjectKey>,
    wakes: BTreeSet<(Millis, Wake)>,
    /// Nodes that are not Ready, since when.
    unready: BTreeMap<NodeName, Millis>,
    /// Node → gangs whose plan names it.
    gangs_on: BTreeMap<NodeName, BTreeSet<ObjectKey>>,
    /// Node → gangs with a pod that waits for room there.
    waiting_for_room: BTreeMap<NodeName, BTreeSet<ObjectKey>>,
    /// Nodes whose kubelet has less than its status promises, and until when they are not trusted.
    distrusted: BTreeMap<NodeName, Millis>,
    shapes: BTreeMap<u64, Shape>,
    /// Parts of large plans, by ConfigMap name.
    chunks: BTreeMap<String, String>,
    nodes_changed: bool,
    topologies: Reports<Topology>,
    reported_classes: Reports<AcceleratorClass>,
    reported_queues: Reports<Queue>,
    counters: Counters,
    warned: BTreeSet<String>,
}

/// Something to look at again at a given time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Gang(ObjectKey),
    Job(ObjectKey),
    Node(NodeName),
    Report(Reported),
}

impl Core {
    /// A core for a term of leadership.
    pub fn new(config: Config, epoch: i64) -> Self {
        Self {
            out: Outbox::new(config.limits),
            config,
            epoch,
            cluster: Cluster::new(),
            world: World::default(),
            gangs: BTreeMap::new(),
            by_uid: BTreeMap::new(),
            jobs: BTreeMap::new(),
            dirty_gangs: BTreeSet::new(),
            dirty_jobs: BTreeSet::new(),
            creating: BTreeMap::new(),
            served: None,
            wakes: BTreeSet::new(),
            unready: BTreeMap::new(),
            gangs_on: BTreeMap::new(),
            waiting_for_room: BTreeMap::new(),
            distrusted: BTreeMap::new(),
            shapes: BTreeMap::new(),
            chunks: BTreeMap::new(),
            nodes_changed: true,
            topologies: Reports::default(),
            reported_classes: Reports::default(),
            reported_queues: Reports::default(),
            counters: Counters::default(),
            warned: BTreeSet::new(),
        }
    }

    /// All that exists has been taken in: from now on a pod that is missing is missing.
    pub fn start(&mut self) {
        for rt in self.gangs.values_mut() {
            rt.start();
        }
    }

    /// Parts of large plans, read before the first event.
    pub fn load_chunks(&mut self, chunks: BTreeMap<String, String>) {
        self.chunks = chunks;
    }

    /// Counters for metrics.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The cluster's state, to read.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Gangs by phase, for metrics.
    pub fn phases(&self) -> BTreeMap<String, usize> {
        let mut phases = BTreeMap::new();
        for rt in self.gangs.values() {
            *phases.entry(format!("{:?}", rt.phase())).or_default() += 1;
        }
        phases
    }

    /// Goes as far as it can without the server's answers.
    pub fn advance(&mut self, now: Millis) {
        while let Some((at, _)) = self.wakes.first() {
            if *at > now {
                break;
            }
            if let Some((_, wake)) = self.wakes.pop_first() {
                self.wake(wake, now);
            }
        }
        if std::mem::take(&mut self.nodes_changed) && self.world.look_at_nodes(&self.cluster) {
            self.judge_all_again();
        }
        for key in std::mem::take(&mut self.dirty_jobs) {
            self.settle_job(&key, now);
        }
        self.settle_dirty(now);
        self.decide(now);
        self.settle_dirty(now);
        for key in std::mem::take(&mut self.dirty_jobs) {
            self.settle_job(&key, now);
        }
        self.create_pods(now);
    }

    fn settle_dirty(&mut self, now: Millis) {
        for key in std::mem::take(&mut self.dirty_gangs) {
            self.settle(&key, now);
        }
    }

    fn wake(&mut self, wake: Wake, now: Millis) {
        match wake {
            Wake::Gang(key) => {
                if let Some(rt) = self.gangs.get_mut(&key) {
                    rt.sweep = true;
                }
                self.dirty_gangs.insert(key);
            }
            Wake::Job(key) => {
                self.dirty_jobs.insert(key);
            }
            Wake::Report(kind) => self.report(kind, now),
            Wake::Node(name) => {
                if self.unready.get(&name).is_some_and(|since| since + self.config.node_grace <= now) {
                    self.lose_node(&name, "is not ready");
                }
                if self.distrusted.get(&name).is_some_and(|until| *until <= now) {
                    self.distrusted.remove(&name);
                    self.cluster.trust(&name);
                }
            }
        }
    }

    /// Asks the engine, and keeps its decisions as proposals.
    fn decide(&mut self, now: Millis) {
        /// At most so many decisions before their writes are sent: deciding and writing overlap, and an answer waits no
        /// longer than they take.
        const BATCH: usize = 32;
        let decisions = self.cluster.decide(now, BATCH);
        self.counters.decisions += decisions.len() as u64;
        if decisions.len() == BATCH {
            // More may wait: come back at once.
            self.wakes.insert((now, Wake::Node(NodeName::from(""))));
        }
        for decision in decisions {
            match decision {
                Decision::Place { key, uid, placement, how } => {
                    let Some(rt) = self.gangs.get_mut(&key).filter(|rt| rt.uid() == uid) else { continue };
                    let plan = rt.next_plan(placement);
                    rt.proposal = Some(Proposal { plan, loss: rt.loss.clone(), how });
                    rt.refusal = None;
                    self.dirty_gangs.insert(key);
                }
                Decision::Refuse { key, uid, reason } => {
                    let Some(rt) = self.gangs.get_mut(&key).filter(|rt| rt.uid() == uid) else { continue };
                    rt.refusal = Some(reason);
                    self.dirty_gangs.insert(key);
                }
            }
        }
    }

    /// Takes what may begin now.
    pub fn take(&mut self, now: Millis) -> Vec<Ticket> {
        self.out.take(now)
    }

    /// When something is due although nothing happens.
    pub fn next_wake(&self) -> Option<Millis> {
        let wake = self.wakes.first().map(|(at, _)| *at);
        [wake, self.out.next_due()].into_iter().flatten().min()
    }

    /// Whether there is nothing to do until something happens.
    pub fn idle(&self) -> bool {
        self.out.idle()
            && self.dirty_gangs.is_empty()
            && self.dirty_jobs.is_empty()
            && self.creating.is_empty()
    }

    fn tell(
        &mut self,
        kind: &'static str,
        about: &ObjectKey,
        uid: Uid,
        reason: &str,
        message: String,
        warning: bool,
    ) {
        self.out.push(Effect::Tell(Box::new(Note {
            kind,
            about: about.clone(),
            uid,
            reason: reason.to_owned(),
            message,
            warning,
        })));
    }

    /// Tells about a gang: on its job, where users look, else on the gang itself.
    fn tell_gang(&mut self, key: &ObjectKey, reason: &str, message: String, warning: bool) {
        if let Some(job) = self.jobs.get(key) {
            let uid = job.uid();
            self.tell("TrainingJob", key, uid, reason, message, warning);
        } else if let Some(rt) = self.gangs.get(key) {
            let uid = rt.uid();
            self.tell("Gang", key, uid, reason, message, warning);
        }
    }
}

/// The taint by which an administrator promises that a node's containers are gone.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

fn name_of(meta: &kube::api::ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
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
fn plan_devices(plan: &Plan, gang: &Object) -> u32 {
    let per_pod = |role: &str| gang.spec.roles.iter().find(|r| r.name == role).map_or(0, |r| r.devices);
    plan.units.iter().map(|unit| unit.placed.nodes.len() as u32 * per_pod(&unit.placed.id.role)).sum()
}
