//! One record a node: who is planned there, who waits for room there, what is believed of its capacity.
//!
//! A record dies with the node's UID: a machine that is registered again under its name begins anew.

use muster_cluster::PodFacts;
use muster_model::{Millis, Node, NodeName, ObjectKey, Resources, Uid, resources};
use std::collections::{BTreeMap, BTreeSet};

use crate::shared::{Shared, Wake};
use crate::want::Kind;
use crate::{Config, Core, OUT_OF_SERVICE};

/// What is known of a node beyond what its object says.
#[derive(Debug, Default)]
struct NodeRt {
    /// Its UID; `None` while only gangs name it.
    uid: Option<String>,
    /// Not Ready, since when.
    unready: Option<Millis>,
    /// Gangs whose plan names it.
    gangs: BTreeSet<ObjectKey>,
    /// Gangs with a pod that waits for room there.
    waiting: BTreeSet<ObjectKey>,
    /// Its kubelet has less than its status promises; believed until this time.
    believed: Option<Millis>,
}

impl NodeRt {
    fn idle(&self) -> bool {
        self.uid.is_none() && self.gangs.is_empty() && self.waiting.is_empty()
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Nodes {
    records: BTreeMap<NodeName, NodeRt>,
    grace: Millis,
    due: BTreeSet<(Millis, NodeName)>,
}

impl Nodes {
    /// None yet.
    pub fn new(config: &Config) -> Self {
        Self { records: BTreeMap::new(), grace: config.node_grace, due: BTreeSet::new() }
    }

    /// When a verdict is due.
    pub fn next(&self) -> Option<Millis> {
        self.due.first().map(|(at, _)| *at)
    }

    /// A gang's plan names other nodes now.
    pub fn index(&mut self, gang: &ObjectKey, before: &BTreeSet<NodeName>, after: &BTreeSet<NodeName>) {
        for node in before.difference(after) {
            self.change(node, |rt| {
                rt.gangs.remove(gang);
            });
        }
        for node in after.difference(before) {
            self.change(node, |rt| {
                rt.gangs.insert(gang.clone());
            });
        }
    }

    /// A gang's pod waits for room on a node.
    pub fn block(&mut self, gang: &ObjectKey, node: &NodeName) {
        self.change(node, |rt| {
            rt.waiting.insert(gang.clone());
        });
    }

    /// It waits no more.
    pub fn unblock(&mut self, gang: &ObjectKey, node: &NodeName) {
        self.change(node, |rt| {
            rt.waiting.remove(gang);
        });
    }

    fn change(&mut self, node: &NodeName, what: impl FnOnce(&mut NodeRt)) {
        let rt = self.records.entry(node.clone()).or_default();
        what(rt);
        if rt.idle() {
            self.records.remove(node);
        }
    }

    /// Gangs whose plan names a node.
    fn gangs_on(&self, node: &NodeName) -> BTreeSet<ObjectKey> {
        self.records.get(node).map(|rt| rt.gangs.clone()).unwrap_or_default()
    }

    /// Takes the gangs with a pod that waits for room on a node: those that find none wait anew.
    fn take_waiting(&mut self, node: &NodeName) -> BTreeSet<ObjectKey> {
        let mut waiting = BTreeSet::new();
        self.change(node, |rt| waiting = std::mem::take(&mut rt.waiting));
        waiting
    }
}

impl Shared {
    /// A pod left a node: others may wait for the room.
    pub(crate) fn room_on(&mut self, node: &NodeName) {
        let waiting = self.nodes.take_waiting(node);
        self.dirty_gangs.extend(waiting);
    }

    /// A kubelet refused a pod that was planned on a node with room for it by the node's own status: it has less of that
    /// resource than it says. That is believed until its status changes or a while has passed; a pod that asks for more
    /// than was planned tells nothing about its node.
    pub(crate) fn believe(&mut self, name: &NodeName, pod: &PodFacts, planned: &Resources) {
        let Some(end) = &pod.end else { return };
        let Some(resource) = end.reason.strip_prefix("OutOf") else { return };
        let resource = if resource.is_empty() { resources::PODS } else { resource };
        let Some(free) = self.cluster.free_now(name) else { return };
        let asked = pod.requests.get(resource);
        if asked <= 0 || asked > planned.get(resource) || free.get(resource) < asked {
            return;
        }
        let mut missing = Resources::default();
        missing.set(resource, free.get(resource));
        let until = self.now.at + self.config.patience.avoid;
        self.cluster.distrust(name, &missing);
        self.nodes.records.entry(name.clone()).or_default().believed = Some(until);
        self.wakes.insert((until, Wake::Node(name.clone())));
    }

    /// What was believed of a node is over, if its time is.
    pub(crate) fn look_at_belief(&mut self, name: &NodeName) {
        let now = self.now.at;
        let over =
            self.nodes.records.get(name).is_some_and(|rt| rt.believed.is_some_and(|until| until <= now));
        if over {
            self.end_belief(name);
        }
    }

    fn end_belief(&mut self, name: &NodeName) {
        if self.nodes.records.get_mut(name).is_some_and(|rt| rt.believed.take().is_some()) {
            self.cluster.trust(name);
        }
    }
}

impl Core {
    /// A node appeared or changed.
    pub(crate) fn set_node(&mut self, node: Node) {
        let shared = &mut self.shared;
        let name = node.name.clone();
        let before = shared.cluster.node(&name).cloned();
        let again = before.as_ref().is_some_and(|before| before.uid != node.uid);
        let changed = before.as_ref().is_some_and(|before| before.allocatable != node.allocatable);
        if again || changed {
            shared.end_belief(&name);
        }
        let (ready, uid) = (node.ready, node.uid.0.clone());
        let out_of_service = node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
        if !shared.cluster.set_node(node) {
            return;
        }
        shared.nodes_changed = true;
        let rt = shared.nodes.records.entry(name.clone()).or_default();
        rt.uid = Some(uid);
        if ready {
            rt.unready = None;
        } else if rt.unready.is_none() {
            rt.unready = Some(shared.now.at);
            shared.nodes.due.insert((shared.now.at + shared.nodes.grace, name.clone()));
        }
        self.count_again(Kind::Topology);
        self.count_again(Kind::Class);
        if again {
            self.lose_node(&name, "was deleted and made again");
        }
        if out_of_service {
            self.lose_node(&name, "is out of service");
        }
        self.touch_node(&name);
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, name: &NodeName, _uid: &Uid) {
        let shared = &mut self.shared;
        shared.end_belief(name);
        shared.cluster.remove_node(name);
        shared.nodes_changed = true;
        shared.nodes.change(name, |rt| {
            rt.uid = None;
            rt.unready = None;
        });
        self.count_again(Kind::Topology);
        self.count_again(Kind::Class);
        self.lose_node(name, "is gone");
        self.touch_node(name);
    }

    /// Looks again at the gangs that a node concerns.
    fn touch_node(&mut self, name: &NodeName) {
        let planned = self.shared.nodes.gangs_on(name);
        for key in planned.into_iter().chain(self.shared.nodes.take_waiting(name)) {
            if let Some(rt) = self.gangs.get_mut(&key) {
                rt.sweep_all();
            }
            self.shared.dirty_gangs.insert(key);
        }
    }

    fn lose_node(&mut self, name: &NodeName, why: &str) {
        for key in self.shared.nodes.gangs_on(name) {
            if self.gangs.get_mut(&key).is_some_and(|rt| rt.life.lose_node(name, why)) {
                self.shared.dirty_gangs.insert(key);
            }
        }
    }

    /// Verdicts that are due.
    pub(crate) fn judge_nodes(&mut self) {
        let now = self.shared.now.at;
        while let Some((at, _)) = self.shared.nodes.due.first()
            && *at <= now
            && let Some((_, name)) = self.shared.nodes.due.pop_first()
        {
            let since = self.shared.nodes.records.get(&name).and_then(|rt| rt.unready);
            if since.is_some_and(|since| since + self.shared.nodes.grace <= now) {
                self.lose_node(&name, "is not ready");
            }
        }
    }
}
