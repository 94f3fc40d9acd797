//! What the watches report, taken into the core's state; decisions come later, in [`Core::advance`].

use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use muster_api::Gang as Object;
use muster_api::topology::TOPOLOGY_NAME;
use muster_cluster::{PodFacts, convert};
use muster_model::{Millis, NodeName, ObjectKey, Uid};
use std::collections::BTreeSet;

use super::gang::GangRt;
use super::{Core, Event, OUT_OF_SERVICE, Wake, name_of};
use crate::Change;
use crate::effect::Reported;

impl Core {
    /// Takes in what a watch reported.
    pub fn apply(&mut self, event: Event, now: Millis) {
        match event {
            Event::Node(Change::Set(node)) => self.set_node(&node.0, now),
            Event::Node(Change::Gone(key, _)) => self.remove_node(&NodeName::from(key.name), now),
            Event::Pod(Change::Set(pod)) => self.set_pod(&pod.0, now),
            Event::Pod(Change::Gone(_, uid)) => self.remove_pod(&uid),
            Event::Gang(change) => {
                self.count_again(Reported::Queue, now);
                match change {
                    Change::Set(gang) => self.set_gang(gang),
                    Change::Gone(key, uid) => self.remove_gang(&key, &uid),
                    Change::Unreadable { .. } | Change::Relisted { .. } | Change::Synced => {}
                }
            }
            Event::Job(Change::Set(job)) => self.set_job(job),
            Event::Job(Change::Gone(key, uid)) => self.remove_job(&key, &uid),
            Event::Queue(Change::Set(queue)) => {
                self.set_queue(&name_of(&queue.metadata), Some(queue), now);
            }
            Event::Queue(Change::Gone(key, _)) => self.set_queue(&key.name, None, now),
            Event::Topology(Change::Set(topology)) if name_of(&topology.metadata) == TOPOLOGY_NAME => {
                self.set_topology(Some(topology), now);
            }
            Event::Topology(Change::Gone(key, _)) if key.name == TOPOLOGY_NAME => {
                self.set_topology(None, now);
            }
            Event::Class(Change::Set(class)) => self.set_class(&name_of(&class.metadata), Some(class), now),
            Event::Class(Change::Gone(key, _)) => self.set_class(&key.name, None, now),
            Event::Priority(Change::Set(class)) => {
                self.world.set_priority(&name_of(&class.metadata), Some(&class));
                self.judge_all_again();
            }
            Event::Priority(Change::Gone(key, _)) => {
                self.world.set_priority(&key.name, None);
                self.judge_all_again();
            }
            Event::Quota(change) => self.apply_quota(change),
            // What cannot be read stays what it was; its watch has said so.
            Event::Node(_)
            | Event::Pod(_)
            | Event::Job(_)
            | Event::Queue(_)
            | Event::Topology(_)
            | Event::Class(_)
            | Event::Priority(_) => {}
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
            Change::Unreadable { .. } | Change::Relisted { .. } | Change::Synced => return,
        };
        if changed {
            let waiting =
                self.gangs.iter().filter(|(gang, rt)| gang.namespace == key.namespace && rt.plan.is_none());
            self.dirty_gangs.extend(waiting.map(|(key, _)| key.clone()));
        }
    }

    /// Something that every gang and job is judged by has changed.
    pub(super) fn judge_all_again(&mut self) {
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
        self.count_again(Reported::Topology, now);
        self.count_again(Reported::Class, now);
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

    fn remove_node(&mut self, name: &NodeName, now: Millis) {
        self.cluster.remove_node(name);
        self.count_again(Reported::Topology, now);
        self.count_again(Reported::Class, now);
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

    pub(super) fn lose_node(&mut self, name: &NodeName, why: &str) {
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
    pub(super) fn room_on(&mut self, node: &NodeName) {
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
    pub(super) fn after_commit(&mut self, key: &ObjectKey) {
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
    pub(super) fn job_of(&self, gang: &ObjectKey) -> Option<ObjectKey> {
        self.jobs.contains_key(gang).then(|| gang.clone())
    }
}
