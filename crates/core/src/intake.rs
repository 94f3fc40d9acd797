//! What the watches report, taken into the core's state; decisions come later, in [`Core::advance`].

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::ObjectMeta;
use muster_api::labels;
use muster_api::topology::TOPOLOGY_NAME;
use muster_api::{Gang as Object, GangPlan};
use muster_cluster::PodFacts;
use muster_model::{Millis, NodeName, ObjectKey, Uid};

use crate::change::{Change, Event};
use crate::gang::{self, GangRt};
use crate::want::{Facet, Kind, Target, Want};
use crate::{Core, key_of, name_of, plan_part, uid_of};

impl Core {
    /// Takes in what a watch reported.
    pub fn apply(&mut self, event: Event, now: Millis) {
        self.shared.at(now);
        match event {
            Event::Node(Change::Set(node)) => {
                self.shared.unreadable_nodes.remove(&NodeName::from(name_of(&node.0.metadata)));
                self.set_node(&node.0);
            }
            Event::Node(Change::Gone(key, _)) => {
                let name = NodeName::from(key.name);
                self.shared.unreadable_nodes.remove(&name);
                self.remove_node(&name);
            }
            Event::Node(Change::Unreadable { key, .. }) => {
                self.shared.unreadable_nodes.insert(NodeName::from(key.name));
            }
            Event::Pod(Change::Set(pod)) => self.set_pod(&pod.0),
            Event::Pod(Change::Gone(_, uid)) => self.remove_pod(&uid),
            Event::Gang(Change::Set(gang)) => {
                self.readable(Kind::Gang, &key_of(&gang.metadata));
                self.set_gang(gang);
            }
            Event::Gang(Change::Gone(key, uid)) => {
                self.readable(Kind::Gang, &key);
                self.remove_gang(&key, &uid);
            }
            Event::Job(Change::Set(job)) => {
                self.readable(Kind::Job, &key_of(&job.metadata));
                self.set_job(job);
            }
            Event::Job(Change::Gone(key, uid)) => {
                self.readable(Kind::Job, &key);
                self.remove_workload(Kind::Job, &key, &uid);
            }
            Event::Queue(Change::Set(queue)) => self.set_queue(&name_of(&queue.metadata), Some(queue)),
            Event::Queue(Change::Gone(key, _)) => self.set_queue(&key.name, None),
            Event::Topology(Change::Set(topology)) if name_of(&topology.metadata) == TOPOLOGY_NAME => {
                self.set_topology(Some(topology));
            }
            Event::Topology(Change::Gone(key, _)) if key.name == TOPOLOGY_NAME => self.set_topology(None),
            Event::Class(Change::Set(class)) => self.set_class(&name_of(&class.metadata), Some(class)),
            Event::Class(Change::Gone(key, _)) => self.set_class(&key.name, None),
            Event::Priority(Change::Set(class)) => {
                self.shared.world.set_priority(&name_of(&class.metadata), Some(&class));
                self.judge_all_again();
            }
            Event::Priority(Change::Gone(key, _)) => {
                self.shared.world.set_priority(&key.name, None);
                self.judge_all_again();
            }
            Event::Quota(change) => self.apply_quota(&change),
            Event::Service(Change::Set(object)) => self.set_child(Kind::Service, &object.metadata),
            Event::Service(Change::Gone(key, _)) => self.remove_child(Kind::Service, &key),
            Event::ConfigMap(Change::Set(object)) => self.set_child(Kind::ConfigMap, &object.metadata),
            Event::ConfigMap(Change::Gone(key, _)) => self.remove_child(Kind::ConfigMap, &key),
            Event::Part(Change::Set(part)) => self.set_part(&part),
            Event::Part(Change::Gone(key, _)) => self.remove_child(Kind::Part, &key),
            Event::Limits(Change::Set(object)) => {
                self.admission_changed(Some(&object.metadata.namespace.unwrap_or_default()));
            }
            Event::Limits(Change::Gone(key, _)) => self.admission_changed(Some(&key.namespace)),
            Event::Runtime(Change::Set(_) | Change::Gone(..)) => self.admission_changed(None),
            Event::Pod(Change::Relisted { version }) => self.pods_seen_up_to(&version),
            Event::Gang(Change::Unreadable { key, uid, version, error }) => {
                self.unreadable(Kind::Gang, &key, &uid, &version, &error);
            }
            Event::Job(Change::Unreadable { key, uid, version, error }) => {
                self.unreadable(Kind::Job, &key, &uid, &version, &error);
            }
            // What else cannot be read stays what it was; its watch has said so.
            Event::Node(_)
            | Event::Pod(_)
            | Event::Gang(_)
            | Event::Job(_)
            | Event::Queue(_)
            | Event::Topology(_)
            | Event::Class(_)
            | Event::Priority(_)
            | Event::Service(_)
            | Event::ConfigMap(_)
            | Event::Part(_)
            | Event::Limits(_)
            | Event::Runtime(_) => {}
        }
    }

    /// A gang or job that the types cannot read says so, and is left as it is: its pods count where they are, and nothing of
    /// it is touched until it can be read.
    fn unreadable(&mut self, kind: Kind, key: &ObjectKey, uid: &Uid, version: &str, error: &str) {
        let shared = &mut self.shared;
        let known = shared.unreadable.insert((kind, key.clone()), (uid.clone(), error.to_owned()));
        if known.is_some_and(|(_, said)| said == error) {
            return;
        }
        let message = format!("this version of the operator cannot read it ({error}); it is left as it is");
        shared.tell(kind, key, uid, "Unreadable", &message, true);
        let (key, version) = (key.clone(), version.to_owned());
        self.touch_namesakes(&key);
        self.shared.desk.want(Want::Remark { kind, key, version, epoch: self.shared.epoch, message });
    }

    /// It can be read, or is gone.
    fn readable(&mut self, kind: Kind, key: &ObjectKey) {
        if self.shared.unreadable.remove(&(kind, key.clone())).is_some() {
            self.touch_namesakes(key);
        }
    }

    /// All pods that exist with this resourceVersion were seen: one whose creation was answered before and that was not
    /// is gone.
    fn pods_seen_up_to(&mut self, version: &str) {
        let Ok(version) = version.parse() else { return };
        for rt in self.gangs.values_mut() {
            let Some(slots) = rt.life.slots_mut().filter(|slots| slots.tally().asked > 0) else { continue };
            for slot in slots.seen_up_to(version) {
                let pod = ObjectKey::new(rt.key.namespace.clone(), rt.pod_name(&slot));
                if let Some(node) = self.shared.cluster.not_expected(&pod) {
                    self.shared.room_on(&node);
                }
                self.shared.dirty_gangs.insert(rt.key.clone());
            }
        }
    }

    fn apply_quota(&mut self, change: &Change<ResourceQuota>) {
        let (key, quota) = match change {
            Change::Set(quota) => (key_of(&quota.metadata), Some(quota)),
            Change::Gone(key, _) => (key.clone(), None),
            _ => return,
        };
        if self.shared.world.set_quota(&key, quota) {
            self.touch_waiting(Some(&key.namespace));
        }
    }

    /// What admission makes of pods may have changed: those that wait are asked about anew.
    fn admission_changed(&mut self, namespace: Option<&str>) {
        self.shared.shapes.forget(namespace);
        for rt in self.gangs.values_mut().filter(|rt| rt.life.waiting().is_some()) {
            if namespace.is_none_or(|namespace| rt.key.namespace == namespace) {
                rt.told = None;
            }
        }
        self.touch_waiting(namespace);
    }

    pub(crate) fn touch_waiting(&mut self, namespace: Option<&str>) {
        let waiting = self.gangs.values_mut().filter(|rt| {
            rt.life.waiting().is_some() && namespace.is_none_or(|namespace| rt.key.namespace == namespace)
        });
        for rt in waiting {
            rt.request_stale = true;
            self.shared.dirty_gangs.insert(rt.key.clone());
        }
    }

    /// Something that every gang and workload is judged by has changed.
    pub(crate) fn judge_all_again(&mut self) {
        for rt in self.gangs.values_mut() {
            rt.request_stale = true;
            if rt.life.waiting().is_some() {
                rt.told = None;
            }
        }
        self.shared.dirty_gangs.extend(self.gangs.keys().cloned());
        self.shared.dirty_workloads.extend(self.workloads.keys().cloned());
    }

    fn set_pod(&mut self, object: &Pod) {
        let (pod, warnings) = PodFacts::of(object);
        let shared = &mut self.shared;
        shared.warn(warnings);
        self.pod_moved(&pod);
        let shared = &mut self.shared;
        shared.desk.seen(&Target { kind: Kind::Pod, facet: Facet::End, key: pod.key.clone() });
        let before = shared.cluster.pod(&pod.uid);
        let ends = pod.terminal() && before.is_some_and(|before| !before.terminal());
        let progressed = before.is_some_and(|before| before.checkpoint_step < pod.checkpoint_step);
        // It ended, or uses less than was counted for it.
        let less = pod.terminal() || before.is_none_or(|before| before.requests != pod.requests);
        let freed = pod.node.clone().filter(|_| less);
        let key = pod.gang.as_ref().and_then(|uid| shared.by_uid.get(uid)).cloned();
        if let Some(rt) = key.and_then(|key| self.gangs.get_mut(&key)) {
            if rt.see_pod(&pod, shared.now.at) {
                shared.dirty_gangs.insert(rt.key.clone());
            }
            if let Some(node) = pod.node.clone().filter(|_| progressed && rt.owns(&pod)) {
                rt.progress.insert(node, shared.now.at);
            }
            let refused = ends && !pod.started && rt.owns(&pod) && !rt.stray(&pod);
            let planned = refused.then(|| rt.planned_requests(&pod)).flatten();
            let role = rt.slot_of(&pod).and_then(|slot| rt.role(&slot.unit.role));
            let shape = role.filter(|_| refused).map(|role| rt.shape_of(role));
            shared.cluster.set_pod(pod.clone());
            if let Some((node, planned)) = pod.node.as_ref().zip(planned) {
                shared.believe(node, &pod, &planned);
            }
            if let Some(shape) = shape {
                shared.shapes.forget_shape(&shape);
            }
        } else {
            let orphan = shared.started && pod.gang.is_some();
            shared.cluster.set_pod(pod.clone());
            if orphan {
                gang::remove_orphan(shared, &pod);
            }
        }
        if let Some(node) = freed {
            self.shared.room_on(&node);
        }
    }

    /// A pod whose owner was changed by hand stands for its place no more: that place has lost it.
    fn pod_moved(&mut self, pod: &PodFacts) {
        let Some(before) = self.shared.cluster.pod(&pod.uid).filter(|before| before.gang != pod.gang) else {
            return;
        };
        let key = before.gang.as_ref().and_then(|uid| self.shared.by_uid.get(uid)).cloned();
        if let Some(rt) = key.and_then(|key| self.gangs.get_mut(&key))
            && let Some(slot) = rt.slot_of(before)
        {
            rt.life.vanished(&slot, &pod.uid, &pod.key.name);
            self.shared.dirty_gangs.insert(rt.key.clone());
        }
    }

    fn remove_pod(&mut self, uid: &Uid) {
        let shared = &mut self.shared;
        let Some(pod) = shared.cluster.remove_pod(uid) else { return };
        shared.desk.forget(&Target { kind: Kind::Pod, facet: Facet::End, key: pod.key.clone() });
        let key = pod.gang.as_ref().and_then(|uid| shared.by_uid.get(uid)).cloned();
        if let Some(rt) = key.and_then(|key| self.gangs.get_mut(&key)) {
            if let Some(slot) = rt.slot_of(&pod) {
                rt.life.vanished(&slot, uid, &pod.key.name);
            }
            shared.dirty_gangs.insert(rt.key.clone());
        }
        if let Some(node) = &pod.node {
            shared.room_on(node);
        }
    }

    pub(crate) fn set_gang(&mut self, object: Object) {
        let key = key_of(&object.metadata);
        let uid = uid_of(&object.metadata);
        self.count_again(Kind::Queue);
        if self.gangs.get(&key).is_some_and(|rt| rt.uid != uid) {
            let old = self.gangs.get(&key).map(|rt| rt.uid.clone()).unwrap_or_default();
            self.remove_gang(&key, &old);
        }
        let shared = &mut self.shared;
        for facet in [Facet::Object, Facet::End] {
            shared.desk.seen(&Target { kind: Kind::Gang, facet, key: key.clone() });
        }
        if let Some(rt) = self.gangs.get_mut(&key) {
            let before = rt.owner.clone();
            rt.see(object, shared);
            shared.index_owner(&key, before.as_ref(), rt.owner.as_ref());
            gang::index_nodes(shared, rt);
            rt.touch_owner(shared);
        } else {
            shared.by_uid.insert(uid.clone(), key.clone());
            let mut rt = GangRt::new(object, shared);
            // Its pods may have been seen before it.
            let pods: Vec<PodFacts> = shared.cluster.pods_of(&uid).cloned().collect();
            for pod in &pods {
                rt.see_pod(pod, shared.now.at);
            }
            shared.index_owner(&key, None, rt.owner.as_ref());
            for ((kind, _), meta) in shared.strays.remove(&uid).unwrap_or_default() {
                if meta.namespace.as_ref() == Some(&key.namespace) {
                    rt.see_child(shared, kind, &meta);
                }
            }
            gang::index_nodes(shared, &mut rt);
            rt.touch_owner(shared);
            self.gangs.insert(key.clone(), rt);
        }
        self.shared.dirty_gangs.insert(key.clone());
        self.touch_namesakes(&key);
    }

    fn remove_gang(&mut self, key: &ObjectKey, uid: &Uid) {
        let shared = &mut self.shared;
        shared.cluster.remove_gang(key, uid);
        shared.by_uid.remove(uid);
        if self.gangs.get(key).is_some_and(|rt| rt.uid == *uid)
            && let Some(mut rt) = self.gangs.remove(key)
        {
            shared.creating.remove(key);
            shared.never_created(key);
            gang::forget(shared, &mut rt);
            shared.index_owner(key, rt.owner.as_ref(), None);
            rt.touch_owner(shared);
        }
        // What is left of it has nobody else to let it go.
        let orphans: Vec<PodFacts> = self.shared.cluster.pods_of(uid).cloned().collect();
        for pod in &orphans {
            gang::remove_orphan(&mut self.shared, pod);
        }
        self.count_again(Kind::Queue);
        self.touch_namesakes(key);
    }

    /// Lets go of pods whose gang is gone.
    pub(crate) fn release_orphans(&mut self) {
        let shared = &mut self.shared;
        let known = |gang: &Uid| shared.by_uid.contains_key(gang) || shared.is_unreadable(gang);
        let orphans: Vec<PodFacts> = shared.cluster.orphans(known).cloned().collect();
        for pod in &orphans {
            gang::remove_orphan(shared, pod);
        }
    }

    fn set_child(&mut self, kind: Kind, meta: &ObjectMeta) {
        let Some(uid) = meta.labels.as_ref().and_then(|all| all.get(labels::GANG_UID)) else { return };
        let (key, uid) = (key_of(meta), Uid(uid.clone()));
        let shared = &mut self.shared;
        for facet in [Facet::Object, Facet::End] {
            shared.desk.seen(&Target { kind, facet, key: key.clone() });
        }
        let gang = shared.by_uid.get(&uid).filter(|gang| gang.namespace == key.namespace).cloned();
        match gang.and_then(|gang| self.gangs.get_mut(&gang)) {
            Some(rt) => rt.see_child(shared, kind, meta),
            // Its gang may be seen later in the first sync.
            None => {
                shared.strays.entry(uid).or_default().insert((kind, key), meta.clone());
            }
        }
    }

    /// A part of a large plan: the status that names it may come before it or after.
    fn set_part(&mut self, part: &GangPlan) {
        if let Some((name, text)) = plan_part(part.clone()) {
            self.shared.parts.insert(name, text);
        }
        self.set_child(Kind::Part, &part.metadata);
    }

    fn remove_child(&mut self, kind: Kind, key: &ObjectKey) {
        let shared = &mut self.shared;
        for facet in [Facet::Object, Facet::End] {
            shared.desk.forget(&Target { kind, facet, key: key.clone() });
        }
        let name = (kind, key.clone());
        shared.strays.retain(|_, children| {
            children.remove(&name);
            !children.is_empty()
        });
        let gang = shared.child_of.remove(&name);
        let rt = gang.and_then(|gang| self.gangs.get_mut(&gang));
        // The text of a part that the plan in force needs stays: the part is made again.
        if kind == Kind::Part && !rt.as_ref().is_some_and(|rt| rt.names_part(&key.name)) {
            shared.parts.remove(&key.name);
        }
        if let Some(rt) = rt {
            rt.children.remove(&(kind, key.name.clone()));
            rt.look_at_children = true;
            shared.dirty_gangs.insert(rt.key.clone());
        }
    }
}
