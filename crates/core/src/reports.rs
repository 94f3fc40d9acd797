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

use super::gang::GangRt;
use super::status::time;
use super::{Core, Wake};
use crate::effect::{Effect, Outcome, Reported};

/// Least time between two counts: while a cluster registers or gangs come in series, they change all the time.
const PAUSE: Millis = 5_000;

/// The objects of one kind, by name.
#[derive(Debug)]
pub(super) struct Reports<K> {
    objects: BTreeMap<String, K>,
    /// Whose status is being written.
    writing: BTreeSet<String>,
    /// When they are looked at next, if they are to be.
    due: Option<Millis>,
}

impl<K> Default for Reports<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), writing: BTreeSet::new(), due: None }
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

    /// Counts those that are to be looked at now, and writes what differs. One that is being written is not looked at: its
    /// outcome looks again.
    fn report(
        &mut self,
        kind: Reported,
        now: Millis,
        mut count: impl FnMut(&K, &mut K::Status),
    ) -> Vec<Effect>
    where
        K: Resource + HasStatus<Status: Clone + Default + PartialEq + Serialize>,
    {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.due = None;
        let mut effects = Vec::new();
        for (name, object) in &self.objects {
            if self.writing.contains(name) {
                continue;
            }
            let mut status = object.status().cloned().unwrap_or_default();
            count(object, &mut status);
            if object.status() == Some(&status) {
                continue;
            }
            self.writing.insert(name.clone());
            let version = object.meta().resource_version.clone().unwrap_or_default();
            effects.push(Effect::Report {
                kind,
                name: name.clone(),
                version,
                status: Box::new(json!(status)),
            });
        }
        effects
    }
}

impl Core {
    /// The Topology appeared, changed, or is gone: then the built-in levels are in force, and have no status.
    pub(super) fn set_topology(&mut self, object: Option<Topology>, now: Millis) {
        let levels = |object: &Topology| object.spec.to_model();
        let before = self.topologies.objects.get(TOPOLOGY_NAME).map(levels).unwrap_or_default();
        let after = object.as_ref().map(levels).unwrap_or_default();
        if before != after {
            self.cluster.set_topology(after);
        }
        self.topologies.set(TOPOLOGY_NAME, object);
        self.count_again(Reported::Topology, now);
    }

    /// An AcceleratorClass appeared, changed, or is gone.
    pub(super) fn set_class(&mut self, name: &str, object: Option<AcceleratorClass>, now: Millis) {
        self.reported_classes.set(name, object.clone());
        self.count_again(Reported::Class, now);
        if self.world.set_class(name, object) {
            self.nodes_changed = true;
            self.judge_all_again();
        }
    }

    /// A Queue appeared, changed, or is gone.
    pub(super) fn set_queue(&mut self, name: &str, object: Option<Queue>, now: Millis) {
        let changed = self.world.set_queue(name, object.as_ref());
        self.reported_queues.set(name, object);
        self.count_again(Reported::Queue, now);
        if changed {
            self.judge_all_again();
        }
    }

    /// Something that these statuses are counted from changed.
    pub(super) fn count_again(&mut self, kind: Reported, now: Millis) {
        let due = match kind {
            Reported::Topology => self.topologies.look(now),
            Reported::Class => self.reported_classes.look(now),
            Reported::Queue => self.reported_queues.look(now),
        };
        self.wakes.extend(due.map(|due| (due, Wake::Report(kind))));
    }

    /// Writes those statuses of a kind that say something else.
    pub(super) fn report(&mut self, kind: Reported, now: Millis) {
        let effects = match kind {
            Reported::Topology => {
                let (devices, cluster) = (self.world.device_names(), &self.cluster);
                self.topologies.report(kind, now, |object, status| {
                    let (levels, generation) = (object.spec.to_model(), object.metadata.generation);
                    *status =
                        topology::status(&levels, cluster.nodes(), &devices, status, generation, &time(now));
                })
            }
            Reported::Class => {
                let cluster = &self.cluster;
                self.reported_classes.report(kind, now, |object, status| {
                    count_class(status, object, cluster.nodes(), now);
                })
            }
            Reported::Queue => self.report_queues(now),
        };
        for effect in effects {
            self.out.push(effect);
        }
    }

    fn report_queues(&mut self, now: Millis) -> Vec<Effect> {
        // Each queue with those inside it, whose use is its own as well.
        let queues = self.reported_queues.objects.iter();
        let parents: BTreeMap<String, Option<String>> =
            queues.map(|(name, queue)| (name.clone(), queue.spec.parent.clone())).collect();
        let mut counted: BTreeMap<String, Use> = BTreeMap::new();
        for rt in self.gangs.values() {
            let own = Use::of(rt);
            for queue in lineage(&parents, &rt.object.spec.queue) {
                counted.entry(queue.to_owned()).or_default().add(&own);
            }
        }
        self.reported_queues.report(Reported::Queue, now, |object, status| {
            let own = counted.get(&super::name_of(&object.metadata));
            count_queue(status, object, own, &parents, now);
        })
    }

    /// What came of such a write. The watch brings what was written.
    pub(super) fn reported(&mut self, kind: Reported, name: &str, outcome: &Outcome, now: Millis) {
        match kind {
            Reported::Topology => self.topologies.writing.remove(name),
            Reported::Class => self.reported_classes.writing.remove(name),
            Reported::Queue => self.reported_queues.writing.remove(name),
        };
        match outcome {
            Outcome::Gone => {}
            Outcome::Refused(message) => tracing::warn!(?kind, %name, %message, "a status is refused"),
            _ => self.count_again(kind, now),
        }
    }
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
        if rt.is_final() || rt.leaving() {
            return own;
        }
        let Some(plan) = &rt.plan else {
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
    let name = super::name_of(&object.metadata);
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
        _ => Now::yes(condition::READY, "Ready", "gangs may use it"),
    };
    let generation = object.metadata.generation;
    status.conditions = condition::merge(&status.conditions, &[ready], generation, &time(now));
}
