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
mod gang;
mod job;
mod needs;
mod outbox;
mod outcome;
mod recover;
mod settle;
mod slots;
mod status;
mod world;

pub use outbox::{Limits, Ticket};

use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use muster_api::{AcceleratorClass, Gang as Object, Queue, Topology, TrainingJob, topology::TOPOLOGY_NAME};
use muster_cluster::{Cluster, PodFacts, convert};
use muster_engine::{Decision, How};
use muster_lifecycle::recovery::Step;
use muster_model::{Millis, NodeName, ObjectKey, Plan, Reason, Resources, Uid};
use std::collections::{BTreeMap, BTreeSet};

use crate::effect::{Effect, Note};
use crate::watch::Change;
use gang::{GangRt, Proposal};
use job::JobRt;
use outbox::Outbox;
pub use world::World;

/// How patient the operator is.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a pod may wait for its kubelet (or, pinned, for kube-scheduler) before other nodes are taken.
    pub start_limit: Millis,
    /// How long a node may be not Ready before what runs there counts as lost.
    pub node_grace: Millis,
    /// How long a node that refused a pod is not used for that gang again.
    pub avoid_for: Millis,
    /// How long the other pods of a gang may go on after its outcome is decided.
    pub drain: Millis,
    /// Least time between two status writes that only report progress.
    pub progress_every: Millis,
    /// Bounds on requests under way.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            start_limit: 60_000,
            // The node controller has already waited 40 to 50 s before Ready turns Unknown; this only skips blips.
            node_grace: 5_000,
            avoid_for: 600_000,
            drain: 30_000,
            progress_every: 2_000,
            limits: Limits::default(),
        }
    }
}

/// Something that a watch reported.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is moved once, from the watch into the core")]
pub enum Event {
    /// A Node.
    Node(Change<Node>),
    /// A Pod.
    Pod(Change<Pod>),
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

/// What the API server makes of a pod shape, learned by a dry run.
#[derive(Clone, Debug)]
enum Shape {
    /// Asked; these gangs wait.
    Asked(BTreeSet<ObjectKey>),
    /// What one pod requests once admission has had its say.
    Known(Resources),
}

/// Counters for metrics; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Plans committed.
    pub placed: u64,
    /// Refusals by reason code, counted when the reason of a gang changes.
    pub refused: BTreeMap<&'static str, u64>,
    /// Pods created.
    pub pods_created: u64,
    /// Restarts by cause.
    pub restarts: BTreeMap<String, u64>,
    /// Plans that the API server refused a pod of.
    pub plans_failed: u64,
    /// Microseconds are not counted here: the core has no clock. Decisions asked of the engine.
    pub decisions: u64,
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
    counters: Counters,
    warned: BTreeSet<String>,
}

/// Something to look at again at a given time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Gang(ObjectKey),
    Job(ObjectKey),
    Node(NodeName),
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

    /// Takes in what a watch reported.
    pub fn apply(&mut self, event: Event, now: Millis) {
        match event {
            Event::Node(Change::Set(node)) => self.set_node(&node, now),
            Event::Node(Change::Gone(key, _)) => self.remove_node(&NodeName::from(key.name)),
            Event::Pod(Change::Set(pod)) => self.set_pod(&pod, now),
            Event::Pod(Change::Gone(_, uid)) => self.remove_pod(&uid),
            Event::Gang(Change::Set(gang)) => self.set_gang(gang),
            Event::Gang(Change::Gone(key, uid)) => self.remove_gang(&key, &uid),
            Event::Job(Change::Set(job)) => self.set_job(job),
            Event::Job(Change::Gone(key, uid)) => self.remove_job(&key, &uid),
            Event::Queue(Change::Set(queue)) => {
                self.world.set_queue(&name_of(&queue.metadata), Some(&queue));
                self.judge_all_again();
            }
            Event::Queue(Change::Gone(key, _)) => {
                self.world.set_queue(&key.name, None);
                self.judge_all_again();
            }
            Event::Topology(Change::Set(topology)) if name_of(&topology.metadata) == TOPOLOGY_NAME => {
                self.cluster.set_topology(topology.spec.to_model());
            }
            Event::Topology(Change::Gone(key, _)) if key.name == TOPOLOGY_NAME => {
                self.cluster.set_topology(muster_model::Topology::default());
            }
            Event::Class(Change::Set(class)) => {
                let name = name_of(&class.metadata);
                self.world.set_class(&name, Some(class));
                self.nodes_changed = true;
                self.judge_all_again();
            }
            Event::Class(Change::Gone(key, _)) => {
                self.world.set_class(&key.name, None);
                self.nodes_changed = true;
                self.judge_all_again();
            }
            Event::Priority(Change::Set(class)) => {
                self.world.set_priority(&name_of(&class.metadata), Some(&class));
                self.judge_all_again();
            }
            Event::Priority(Change::Gone(key, _)) => {
                self.world.set_priority(&key.name, None);
                self.judge_all_again();
            }
            Event::Quota(change) => self.apply_quota(change),
            Event::Topology(_)
            | Event::Node(Change::Synced)
            | Event::Pod(Change::Synced)
            | Event::Gang(Change::Synced)
            | Event::Job(Change::Synced)
            | Event::Queue(Change::Synced)
            | Event::Class(Change::Synced)
            | Event::Priority(Change::Synced) => {}
        }
    }

    fn apply_quota(&mut self, change: Change<ResourceQuota>) {
        let (key, changed) = match change {
            Change::Set(quota) => {
                let key = ObjectKey::new(
                    quota.metadata.namespace.clone().unwrap_or_default(),
                    name_of(&quota.metadata),
                );
                let changed = self.world.set_quota(&key, Some(&quota));
                (key, changed)
            }
            Change::Gone(key, _) => {
                let changed = self.world.set_quota(&key, None);
                (key, changed)
            }
            Change::Synced => return,
        };
        if changed {
            let waiting =
                self.gangs.iter().filter(|(gang, rt)| gang.namespace == key.namespace && rt.plan.is_none());
            self.dirty_gangs.extend(waiting.map(|(key, _)| key.clone()));
        }
    }

    /// Something that every gang and job is judged by has changed.
    fn judge_all_again(&mut self) {
        for rt in self.gangs.values_mut() {
            rt.told = None;
        }
        self.dirty_gangs.extend(self.gangs.keys().cloned());
        self.dirty_jobs.extend(self.jobs.keys().cloned());
    }

    fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if self.warned.len() < 10_000 && self.warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
    }

    fn set_node(&mut self, object: &Node, now: Millis) {
        let (node, warnings) = convert::node(object);
        self.warn(warnings);
        let name = node.name.clone();
        let before = self.cluster.node(&name).cloned();
        let ready = node.ready;
        let out_of_service = node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
        if before.as_ref().is_some_and(|before| before.allocatable != node.allocatable)
            && self.distrusted.remove(&name).is_some()
        {
            self.cluster.trust(&name);
        }
        let again = before.as_ref().is_some_and(|before| before.uid != node.uid);
        if !self.cluster.set_node(node) {
            return;
        }
        self.nodes_changed = true;
        if ready {
            self.unready.remove(&name);
        } else if !self.unready.contains_key(&name) {
            self.unready.insert(name.clone(), now);
            self.wakes.insert((now + self.config.node_grace, Wake::Node(name.clone())));
        }
        if again {
            self.lose_node(&name, "was deleted and made again");
        }
        if out_of_service {
            self.lose_node(&name, "is out of service");
        }
        self.touch_node(&name);
    }

    fn remove_node(&mut self, name: &NodeName) {
        self.cluster.remove_node(name);
        self.nodes_changed = true;
        self.unready.remove(name);
        self.distrusted.remove(name);
        self.lose_node(name, "is gone");
        self.touch_node(name);
    }

    /// Looks again at the gangs that a node concerns.
    fn touch_node(&mut self, name: &NodeName) {
        for map in [&self.gangs_on, &self.waiting_for_room] {
            for key in map.get(name).into_iter().flatten() {
                if let Some(rt) = self.gangs.get_mut(key) {
                    rt.sweep = true;
                }
                self.dirty_gangs.insert(key.clone());
            }
        }
    }

    fn lose_node(&mut self, name: &NodeName, why: &str) {
        for key in self.gangs_on.get(name).cloned().unwrap_or_default() {
            if let Some(rt) = self.gangs.get_mut(&key) {
                rt.slots.lose_node(name, why);
                self.dirty_gangs.insert(key);
            }
        }
    }

    fn set_pod(&mut self, object: &Pod, now: Millis) {
        let (pod, warnings) = PodFacts::of(object);
        self.warn(warnings);
        let freed = pod.terminal().then(|| pod.node.clone()).flatten();
        if let Some(key) = pod.gang.as_ref().and_then(|uid| self.by_uid.get(uid)).cloned()
            && let Some(rt) = self.gangs.get_mut(&key)
            && rt.see_pod(&pod)
        {
            self.dirty_gangs.insert(key);
        }
        let short = pod.end.as_ref().is_some_and(|end| end.reason.starts_with("OutOf"));
        if let Some(node) =
            pod.node.clone().filter(|_| short && !pod.started && self.cluster.pod(&pod.uid).is_some())
        {
            self.distrust(&node, &pod, now);
        }
        self.cluster.set_pod(pod);
        if let Some(node) = freed {
            self.room_on(&node);
        }
    }

    fn remove_pod(&mut self, uid: &Uid) {
        let Some(pod) = self.cluster.remove_pod(uid) else { return };
        if let Some(key) = pod.gang.as_ref().and_then(|uid| self.by_uid.get(uid)).cloned() {
            if let Some(rt) = self.gangs.get_mut(&key) {
                rt.slots.vanished(&pod);
                rt.deleting.remove(uid);
                rt.releasing.remove(uid);
            }
            self.dirty_gangs.insert(key);
        }
        if let Some(node) = &pod.node {
            self.room_on(node);
        }
    }

    /// A pod left a node: others may wait for the room.
    fn room_on(&mut self, node: &NodeName) {
        self.dirty_gangs.extend(self.waiting_for_room.get(node).into_iter().flatten().cloned());
    }

    fn set_gang(&mut self, object: Object) {
        let key =
            ObjectKey::new(object.metadata.namespace.clone().unwrap_or_default(), name_of(&object.metadata));
        let uid = Uid(object.metadata.uid.clone().unwrap_or_default());
        if let Some(rt) = self.gangs.get_mut(&key) {
            rt.see(object, &self.chunks);
            self.after_commit(&key);
        } else {
            self.by_uid.insert(uid.clone(), key.clone());
            let mut rt = GangRt::new(object, &self.chunks);
            // Its pods may have been seen before it.
            for pod in self.cluster.pods_of(&uid) {
                rt.slots.observe(pod);
                rt.checkpoint_step = rt.checkpoint_step.max(pod.checkpoint_step);
            }
            self.gangs.insert(key.clone(), rt);
            self.after_commit(&key);
        }
        if let Some(job) = self.job_of(&key) {
            self.dirty_jobs.insert(job);
        }
        self.dirty_gangs.insert(key);
    }

    /// Keeps the index from nodes to gangs in step with a gang's committed plan.
    fn after_commit(&mut self, key: &ObjectKey) {
        let Some(rt) = self.gangs.get_mut(key) else { return };
        let planned: BTreeSet<NodeName> = rt.slots.iter().map(|planned| planned.node.clone()).collect();
        let before = std::mem::replace(&mut rt.indexed, planned.clone());
        for node in before.difference(&planned) {
            if let Some(gangs) = self.gangs_on.get_mut(node) {
                gangs.remove(key);
            }
        }
        for node in planned.difference(&before) {
            self.gangs_on.entry(node.clone()).or_default().insert(key.clone());
        }
    }

    fn remove_gang(&mut self, key: &ObjectKey, uid: &Uid) {
        self.cluster.remove_gang(key, uid);
        self.by_uid.remove(uid);
        self.creating.remove(key);
        if let Some(rt) = self.gangs.get(key).filter(|rt| rt.uid() == *uid) {
            for (map, nodes) in [(&mut self.gangs_on, &rt.indexed), (&mut self.waiting_for_room, &rt.blocked)]
            {
                for node in nodes {
                    if let Some(gangs) = map.get_mut(node) {
                        gangs.remove(key);
                    }
                }
            }
            self.gangs.remove(key);
        }
        self.dirty_jobs.extend(self.jobs.contains_key(key).then(|| key.clone()));
    }

    /// The job that a gang belongs to: the one of its name.
    fn job_of(&self, gang: &ObjectKey) -> Option<ObjectKey> {
        self.jobs.contains_key(gang).then(|| gang.clone())
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
        /// At most so many decisions before their writes are sent: deciding and writing overlap.
        const BATCH: usize = 256;
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
                    if let Some(loss) = &rt.loss
                        && !loss.steps.contains(&rung(how))
                    {
                        // The ladder does not allow what the engine found: as if it had found nothing.
                        rt.refusal = Some(Reason::NotFound { states: 1 });
                        rt.told = None;
                        self.dirty_gangs.insert(key);
                        continue;
                    }
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

/// The rung of the recovery ladder that a placement stands for.
fn rung(how: How) -> Step {
    match how {
        How::Replaced => Step::ReplaceNode,
        How::Shrunk => Step::Shrink,
        How::Moved | How::Fresh => Step::Requeue,
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
