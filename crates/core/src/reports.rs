//! The statuses of small objects that are counted from others: Topology, AcceleratorClass, Queue.
//!
//! ```text
//!   nodes, gangs or the object changed ─▶ a pause ─▶ counted anew ─▶ differs? one write
//! ```

use kube::Resource;
use kube::core::object::HasStatus;
use muster_api::accelerator_class::AcceleratorClassStatus;
use muster_api::condition::{self, Now};
use muster_api::queue::{ClassUse, QueueStatus};
use muster_api::topology::TOPOLOGY_NAME;
use muster_api::{AcceleratorClass, Queue, Topology, common::DEFAULT_QUEUE};
use muster_cluster::topology;
use muster_model::Millis;
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

use crate::desk::Ticket;
use crate::gang::{GangRt, time};
use crate::shared::Wake;
use crate::want::{Facet, Kind, Outcome, Target, Want};
use crate::{Core, key_of, name_of};

/// Condition of the Topology: so many nodes are silent at once that none of them counts as lost.
const VERDICTS_HELD: &str = "VerdictsHeld";
/// What a queue does today.
const QUEUE_READY: &str =
    "gangs may use it; its quotas, limits, weight, borrowing and namespaces bind nobody yet";
/// Least time between two counts: while a cluster registers or gangs come in series, they change all the time.
const PAUSE: Millis = 5_000;

/// The objects of one kind, by name.
#[derive(Debug)]
pub(super) struct Reports<K> {
    objects: BTreeMap<String, K>,
    /// When they are looked at next, if they are to be.
    due: Option<Millis>,
}

impl<K> Default for Reports<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), due: None }
    }
}

impl<K> Reports<K> {
    fn set(&mut self, name: &str, object: Option<K>) {
        match object {
            Some(object) => self.objects.insert(name.to_owned(), object),
            None => self.objects.remove(name),
        };
    }

    /// When to look, if nobody was to.
    fn look(&mut self, now: Millis) -> Option<Millis> {
        if self.objects.is_empty() || self.due.is_some() {
            return None;
        }
        self.due = Some(now + PAUSE);
        self.due
    }

    /// Counts those that are to be looked at now, and wants what differs. One that is being written is not looked at: its
    /// outcome looks again.
    fn report(
        &mut self,
        kind: Kind,
        now: Millis,
        busy: impl Fn(&Target) -> bool,
        mut count: impl FnMut(&K, &mut K::Status),
    ) -> Vec<Want>
    where
        K: Resource + HasStatus<Status: Clone + Default + PartialEq + Serialize>,
    {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.due = None;
        let mut wants = Vec::new();
        for object in self.objects.values() {
            let key = key_of(object.meta());
            if busy(&Target { kind, facet: Facet::Status, key: key.clone() }) {
                continue;
            }
            let mut status = object.status().cloned().unwrap_or_default();
            count(object, &mut status);
            if object.status() == Some(&status) {
                continue;
            }
            let version = object.meta().resource_version.clone().unwrap_or_default();
            wants.push(Want::Report { kind, key, version, status: Box::new(json!(status)) });
        }
        wants
    }
}

impl Core {
    /// The Topology appeared, changed, or is gone: then the built-in levels are in force, and have no status.
    pub(crate) fn set_topology(&mut self, object: Option<Topology>) {
        let levels = |object: &Topology| object.spec.to_model();
        let before = self.reports.topologies.objects.get(TOPOLOGY_NAME).map(levels).unwrap_or_default();
        let after = object.as_ref().map(levels).unwrap_or_default();
        if before != after {
            self.set_levels(after.clone());
            self.shared.cluster.set_topology(after);
        }
        self.reports.topologies.set(TOPOLOGY_NAME, object);
        self.count_again(Kind::Topology);
    }

    /// An AcceleratorClass appeared, changed, or is gone.
    pub(crate) fn set_class(&mut self, name: &str, object: Option<AcceleratorClass>) {
        self.reports.classes.set(name, object.clone());
        self.count_again(Kind::Class);
        if self.shared.world.set_class(name, object) {
            self.shared.nodes_changed = true;
            self.judge_all_again();
        }
    }

    /// A Queue appeared, changed, or is gone.
    pub(crate) fn set_queue(&mut self, name: &str, object: Option<Queue>) {
        let changed = self.shared.world.set_queue(name, object.as_ref());
        self.reports.queues.set(name, object);
        self.count_again(Kind::Queue);
        if changed {
            self.judge_all_again();
        }
    }

    /// Something that these statuses are counted from changed.
    pub(crate) fn count_again(&mut self, kind: Kind) {
        let now = self.shared.now.at;
        let due = match kind {
            Kind::Topology => self.reports.topologies.look(now),
            Kind::Class => self.reports.classes.look(now),
            Kind::Queue => self.reports.queues.look(now),
            _ => None,
        };
        if let Some(due) = due {
            self.shared.wakes.insert(due, Wake::Report(kind));
        }
    }

    /// Writes those statuses of a kind that say something else.
    pub(crate) fn report(&mut self, kind: Kind) {
        let Self { shared, gangs, reports, .. } = self;
        let (at, wall) = (shared.now.at, shared.now.wall);
        let busy = |target: &Target| shared.desk.busy(target);
        let wants = match kind {
            Kind::Topology => {
                let devices = shared.world.device_names();
                let brakes = shared.nodes.brakes(at);
                reports.topologies.report(kind, at, busy, |object, status| {
                    let (levels, generation) = (object.spec.to_model(), object.metadata.generation);
                    let nodes = shared.cluster.nodes();
                    *status = topology::status(&levels, nodes, &devices, status, generation, &time(wall));
                    let held = match brakes.first() {
                        Some(words) => Now::yes(VERDICTS_HELD, "ManyNodesSilent", words.clone()),
                        None => Now::no(VERDICTS_HELD, "FewNodesSilent", "nodes are judged one by one"),
                    };
                    // Only once it has been so: most clusters never see it.
                    let known = condition::find(&status.conditions, VERDICTS_HELD).is_some();
                    if known || !brakes.is_empty() {
                        status.conditions =
                            condition::merge(&status.conditions, &[held], generation, &time(wall));
                    }
                })
            }
            Kind::Class => reports.classes.report(kind, at, busy, |object, status| {
                count_class(status, object, shared.cluster.nodes(), wall);
            }),
            Kind::Queue => {
                // Each queue with those inside it, whose use is its own as well.
                let queues = reports.queues.objects.iter();
                let parents: BTreeMap<String, Option<String>> =
                    queues.map(|(name, queue)| (name.clone(), queue.spec.parent.clone())).collect();
                let mut counted: BTreeMap<String, Use> = BTreeMap::new();
                for rt in gangs.values() {
                    let own = Use::of(rt);
                    for queue in lineage(&parents, &rt.object.spec.queue) {
                        counted.entry(queue.to_owned()).or_default().add(&own);
                    }
                }
                reports.queues.report(kind, at, busy, |object, status| {
                    let own = counted.get(&name_of(&object.metadata));
                    count_queue(status, object, own, &parents, wall);
                })
            }
            _ => Vec::new(),
        };
        for want in wants {
            shared.desk.want(want);
        }
    }
}

/// What came of such a write. The watch brings what was written.
pub fn written(core: &mut Core, ticket: &Ticket, kind: Kind, outcome: &Outcome) {
    let now = core.shared.now.at;
    match outcome {
        Outcome::Done { .. } => core.shared.desk.succeed(ticket, false),
        Outcome::Gone => core.shared.desk.forget(&ticket.want.target()),
        Outcome::Refused(message) => {
            tracing::warn!(?kind, %message, "a status is refused");
            core.shared.desk.forget(&ticket.want.target());
            return;
        }
        _ => {
            core.shared.desk.pause(ticket, now);
        }
    }
    core.count_again(kind);
}

/// What the nodes make of a class.
fn count_class<'a>(
    status: &mut AcceleratorClassStatus,
    object: &AcceleratorClass,
    nodes: impl Iterator<Item = &'a muster_model::Node>,
    now: Millis,
) {
    let spec = &object.spec;
    let (mut count, mut gpus, mut products) = (0_u32, 0_i64, BTreeSet::new());
    for node in nodes {
        let Some(product) = node.labels.get(&spec.product_label).filter(|product| spec.matches(product))
        else {
            continue;
        };
        count += 1;
        gpus += node.allocatable.get(&spec.resource).max(0);
        products.insert(product.clone());
    }
    status.observed_generation = object.metadata.generation;
    (status.nodes, status.gpus) = (count, u32::try_from(gpus).unwrap_or(u32::MAX));
    status.products = products.into_iter().collect();
    let ready = if count > 0 {
        Now::yes(condition::READY, "Present", "nodes of the class are there")
    } else {
        let message = format!(
            "no node's label {} names one of its products; add such nodes, or correct spec.products",
            spec.product_label
        );
        Now::no(condition::READY, "NoNodes", message)
    };
    let generation = object.metadata.generation;
    status.conditions = condition::merge(&status.conditions, &[ready], generation, &time(now));
}

/// What gangs use of a queue.
#[derive(Clone, Debug, Default)]
struct Use {
    pending: u32,
    running: u32,
    /// Accelerators by class.
    classes: BTreeMap<String, u32>,
}

impl Use {
    fn of(rt: &GangRt) -> Self {
        let mut own = Self::default();
        if rt.is_final() || rt.life.leaving() {
            return own;
        }
        let Some(plan) = rt.life.plan() else {
            own.pending = u32::from(!rt.object.spec.suspend);
            return own;
        };
        own.running = 1;
        for unit in plan.units.iter().map(|unit| &unit.placed) {
            let role = rt.object.spec.roles.iter().find(|role| role.name == unit.id.role);
            let devices = role.map_or(0, |role| role.devices) * unit.nodes.len() as u32;
            if let Some(class) = unit.class.as_ref().filter(|_| devices > 0) {
                *own.classes.entry(class.clone()).or_default() += devices;
            }
        }
        own
    }

    fn add(&mut self, other: &Self) {
        self.pending += other.pending;
        self.running += other.running;
        for (class, used) in &other.classes {
            *self.classes.entry(class.clone()).or_default() += used;
        }
    }
}

/// A queue and those around it, each once although their parents may form a circle.
fn lineage<'a>(parents: &'a BTreeMap<String, Option<String>>, queue: &'a str) -> Vec<&'a str> {
    let mut all = vec![queue];
    while let Some(Some(parent)) = all.last().and_then(|last| parents.get(*last))
        && !all.contains(&parent.as_str())
    {
        all.push(parent);
    }
    all
}

fn count_queue(
    status: &mut QueueStatus,
    object: &Queue,
    counted: Option<&Use>,
    parents: &BTreeMap<String, Option<String>>,
    now: Millis,
) {
    let none = Use::default();
    let own = counted.unwrap_or(&none);
    status.observed_generation = object.metadata.generation;
    (status.pending, status.running) = (own.pending, own.running);
    status.gpus = own.classes.values().sum();
    let quotas = &object.spec.quotas;
    let of_class = |(class, used): (&String, &u32)| {
        let nominal = quotas.iter().find(|quota| quota.class == *class).map_or(0, |quota| quota.nominal);
        // Without any quota nothing is borrowed.
        let borrowed = if quotas.is_empty() { 0 } else { used.saturating_sub(nominal) };
        ClassUse { class: class.clone(), used: *used, borrowed }
    };
    status.classes = own.classes.iter().map(of_class).collect();
    let name = name_of(&object.metadata);
    let ready = match &object.spec.parent {
        Some(parent) if !parents.contains_key(parent) && parent != DEFAULT_QUEUE => Now::no(
            condition::READY,
            "ParentUnknown",
            format!("spec.parent: Queue {parent:?} does not exist; create it, or name another"),
        ),
        Some(parent) if lineage(parents, parent).contains(&name.as_str()) => Now::no(
            condition::READY,
            "ParentsInACircle",
            format!("spec.parent: {parent:?} lies inside this queue; name one that does not"),
        ),
        _ => Now::yes(condition::READY, "Ready", QUEUE_READY),
    };
    let generation = object.metadata.generation;
    status.conditions = condition::merge(&status.conditions, &[ready], generation, &time(now));
}
