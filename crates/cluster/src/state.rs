//! The cluster's state: nodes, pods and plans, and what they come to for the engine.
//!
//! A pod that is the live form of a plan entry (our gang's by its controller's UID, in its namespace, under its planned
//! name, on its planned node, not leaving) is counted through the plan. Every other non-terminal pod is *use*: foreign
//! pods, those that only say that they are ours, and our own that are leaving, late or orphaned. So nothing is counted
//! twice and nothing is forgotten.

use muster_engine::{Decision, Engine, Event, Explanation};
use muster_model::{
    AcceleratorClass, Gang, GangState, Millis, Node, NodeName, ObjectKey, Plan, Resources, Slot, Topology,
    Uid, UnitId,
};
use std::collections::{BTreeMap, BTreeSet};

use crate::PodFacts;

#[derive(Debug, Default)]
struct NodeEntry {
    /// `None` while only pods of the node are known.
    node: Option<Node>,
    /// What non-terminal pods use, ours included.
    used: Resources,
}

/// What of a gang's plan is needed to recognise its pods.
#[derive(Debug)]
struct PlanIndex {
    key: ObjectKey,
    roles: Vec<String>,
    units: BTreeMap<UnitId, (u64, Vec<NodeName>)>,
    /// What one pod of a role is planned with.
    requests: BTreeMap<UnitId, Resources>,
}

impl PlanIndex {
    fn of(gang: &Gang, plan: &Plan) -> Self {
        let mut index = Self {
            key: gang.key.clone(),
            roles: gang.roles.iter().map(|role| role.name.clone()).collect(),
            units: BTreeMap::new(),
            requests: BTreeMap::new(),
        };
        for unit in &plan.units {
            let class = unit.placed.class.as_ref();
            let class = gang.classes.iter().find(|c| Some(&c.name) == class);
            if let Some(role) = gang.roles.iter().find(|role| role.name == unit.placed.id.role) {
                index.requests.insert(unit.placed.id.clone(), role.pod_requests(class));
            }
            index.units.insert(unit.placed.id.clone(), (unit.incarnation, unit.placed.nodes.clone()));
        }
        index
    }

    /// What a pod that names this gang (`uid`) as its controller is planned with, if it is the live form of an entry: in
    /// the gang's namespace, under a planned name, on its planned node.
    fn planned(&self, uid: &Uid, pod: &PodFacts, node: &NodeName) -> Option<&Resources> {
        let slot = pod.planned_slot(&self.key, uid, self.roles.iter().map(String::as_str))?;
        self.requests_of(&slot, node)
    }

    /// What an entry is planned with, if the plan has it on this node.
    fn requests_of(&self, slot: &Slot, node: &NodeName) -> Option<&Resources> {
        let (incarnation, nodes) = self.units.get(&slot.unit)?;
        let live = *incarnation == slot.incarnation && nodes.get(slot.index as usize) == Some(node);
        self.requests.get(&slot.unit).filter(|_| live)
    }
}

/// The state.
#[derive(Debug, Default)]
pub struct Cluster {
    engine: Engine,
    nodes: BTreeMap<NodeName, NodeEntry>,
    pods: BTreeMap<Uid, PodFacts>,
    of_gang: BTreeMap<Uid, BTreeSet<Uid>>,
    plans: BTreeMap<Uid, PlanIndex>,
    /// What the engine was told of each pod.
    told: BTreeMap<Uid, (NodeName, Resources)>,
    /// The same by node.
    beyond: BTreeMap<NodeName, BTreeSet<Uid>>,
    /// Pods of which the engine was told that they keep others away.
    repelling: BTreeSet<Uid>,
    /// Pods whose creation was asked for and that were not seen yet.
    expected: BTreeMap<ObjectKey, Expected>,
}

/// A pod whose creation was asked for.
#[derive(Debug)]
struct Expected {
    gang: Uid,
    slot: Slot,
    node: NodeName,
    requests: Resources,
}

impl Cluster {
    /// An empty cluster with the default topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine, to read.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Sets the topology's levels.
    pub fn set_topology(&mut self, topology: Topology) {
        self.engine.apply(Event::Topology(topology));
    }

    /// Takes in a node. Returns whether anything that matters changed (heartbeats do not).
    pub fn set_node(&mut self, node: Node) -> bool {
        let entry = self.nodes.entry(node.name.clone()).or_default();
        if entry.node.as_ref() == Some(&node) {
            return false;
        }
        entry.node = Some(node.clone());
        self.engine.apply(Event::Node(node));
        true
    }

    /// Forgets a node.
    pub fn remove_node(&mut self, name: &NodeName) {
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.node = None;
        }
        self.engine.apply(Event::NodeGone(name.clone()));
    }

    /// A node's facts.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.get(name)?.node.as_ref()
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter_map(|entry| entry.node.as_ref())
    }

    /// What is really free on a node at this moment: allocatable less all non-terminal pods there, those that are
    /// being created included. A device is free again only when its old pod is gone or terminal.
    pub fn free_now(&self, name: &NodeName) -> Option<Resources> {
        let entry = self.nodes.get(name)?;
        Some(entry.node.as_ref()?.allocatable.left(&entry.used))
    }

    /// Whether a node has what a pod asks for, whoever uses it now: one that lost a device never holds it again.
    pub fn could_hold(&self, name: &NodeName, requests: &Resources) -> bool {
        self.node(name).is_some_and(|node| node.allocatable.shortage(requests).is_none())
    }

    /// Counts a pod that is about to be created, until it is seen or [`Self::not_expected`].
    pub fn expect(&mut self, key: ObjectKey, gang: Uid, slot: Slot, node: NodeName, requests: Resources) {
        self.nodes.entry(node.clone()).or_default().used.add(&requests);
        if let Some(before) = self.expected.insert(key, Expected { gang, slot, node, requests }) {
            self.nodes.entry(before.node).or_default().used.subtract(&before.requests);
        }
    }

    /// The pod was not created after all. Returns the node whose room it held.
    pub fn not_expected(&mut self, key: &ObjectKey) -> Option<NodeName> {
        let Expected { node, requests, .. } = self.expected.remove(key)?;
        self.nodes.entry(node.clone()).or_default().used.subtract(&requests);
        Some(node)
    }

    /// Takes in a pod. Returns what was known of it before: it may have had another controller.
    pub fn set_pod(&mut self, pod: PodFacts) -> Option<PodFacts> {
        self.not_expected(&pod.key);
        if self.pods.get(&pod.uid) == Some(&pod) {
            return Some(pod);
        }
        let before = self.forget(&pod.uid.clone());
        if let (Some(node), false) = (&pod.node, pod.terminal()) {
            self.nodes.entry(node.clone()).or_default().used.add(&pod.requests);
        }
        if let Some(gang) = &pod.gang {
            self.of_gang.entry(gang.clone()).or_default().insert(pod.uid.clone());
        }
        let uid = pod.uid.clone();
        self.pods.insert(uid.clone(), pod);
        self.tell(&uid);
        self.tell_repels(&uid);
        before
    }

    /// Forgets a pod.
    pub fn remove_pod(&mut self, uid: &Uid) -> Option<PodFacts> {
        let pod = self.forget(uid);
        self.tell(uid);
        self.tell_repels(uid);
        pod
    }

    fn forget(&mut self, uid: &Uid) -> Option<PodFacts> {
        let pod = self.pods.remove(uid)?;
        if let (Some(node), false) = (&pod.node, pod.terminal()) {
            self.nodes.entry(node.clone()).or_default().used.subtract(&pod.requests);
        }
        if let Some(gang) = &pod.gang
            && let Some(all) = self.of_gang.get_mut(gang)
        {
            all.remove(uid);
            if all.is_empty() {
                self.of_gang.remove(gang);
            }
        }
        Some(pod)
    }

    /// A pod by UID.
    pub fn pod(&self, uid: &Uid) -> Option<&PodFacts> {
        self.pods.get(uid)
    }

    /// All pods that name a gang as their controller, in whatever namespace, under whatever name: not all of them need be
    /// its own, see [`PodFacts::planned_slot`].
    pub fn pods_of(&self, gang: &Uid) -> impl Iterator<Item = &PodFacts> {
        self.of_gang.get(gang).into_iter().flatten().filter_map(|uid| self.pods.get(uid))
    }

    /// Pods whose controller is a Gang that `known` does not know. Their Gang is gone (or never was): nobody else takes
    /// their finalizer away. To be asked only when all Gangs have been read.
    pub fn orphans<'a>(&'a self, known: impl Fn(&Uid) -> bool + 'a) -> impl Iterator<Item = &'a PodFacts> {
        let unknown = self.of_gang.iter().filter(move |(gang, _)| !known(gang));
        unknown.flat_map(|(_, pods)| pods).filter_map(|uid| self.pods.get(uid))
    }

    /// Takes in a gang: the engine learns it, and its pods are judged by its plan.
    pub fn set_gang(&mut self, gang: Gang) {
        let uid = gang.uid.clone();
        match &gang.state {
            GangState::Holding(plan) => {
                self.plans.insert(uid.clone(), PlanIndex::of(&gang, plan));
            }
            GangState::Replan { plan, lost, .. } => {
                let mut index = PlanIndex::of(&gang, plan);
                index.units.retain(|unit, _| !lost.contains(unit));
                self.plans.insert(uid.clone(), index);
            }
            GangState::Inactive | GangState::Waiting => {
                self.plans.remove(&uid);
            }
        }
        self.engine.apply(Event::Gang(gang));
        self.tell_all(&uid);
    }

    /// Forgets a gang; pods of it that are still there become use.
    pub fn remove_gang(&mut self, key: &ObjectKey, uid: &Uid) {
        self.plans.remove(uid);
        self.engine.apply(Event::GangGone(key.clone()));
        self.tell_all(uid);
    }

    /// Lets the engine decide.
    pub fn decide(&mut self, now: Millis, limit: usize) -> Vec<Decision> {
        self.engine.decide(now, limit)
    }

    /// Why a gang cannot be placed now and what would let it run; `None` if it can be placed. Nothing is held.
    /// `classes` are those of which one more may be advised. Slower than a decision: every change is tried.
    pub fn explain(&mut self, gang: &Gang, classes: &[AcceleratorClass]) -> Option<Explanation> {
        self.engine.explain_among(gang, classes)
    }

    /// Counts `requests` on a node as used although no pod is known there, until [`Self::trust`]: the node's kubelet
    /// says that it has less than its status promises.
    pub fn distrust(&mut self, node: &NodeName, requests: &Resources) {
        self.engine.apply(Event::Use {
            id: format!("distrust/{node}"),
            node: node.clone(),
            requests: requests.clone(),
        });
    }

    /// What pods on a node use beyond the plans of their gangs, those of one gang aside; pods too that were asked for by a
    /// plan that is over, and are on their way.
    pub fn used_beyond(&self, node: &NodeName, aside: &Uid) -> Resources {
        let mut sum = Resources::default();
        let others = self.beyond.get(node).into_iter().flatten();
        let others =
            others.filter(|uid| self.pods.get(uid).is_none_or(|pod| pod.gang.as_ref() != Some(aside)));
        for (_, requests) in others.filter_map(|uid| self.told.get(uid)) {
            sum.add(requests);
        }
        let coming = self.expected.values().filter(|pod| pod.node == *node && pod.gang != *aside);
        for pod in coming {
            let planned = self.plans.get(&pod.gang).and_then(|plan| plan.requests_of(&pod.slot, node));
            if planned.is_none() {
                sum.add(&pod.requests);
            }
        }
        sum
    }

    /// Ends [`Self::distrust`].
    pub fn trust(&mut self, node: &NodeName) {
        self.engine.apply(Event::UseGone { id: format!("distrust/{node}") });
    }

    fn tell_all(&mut self, gang: &Uid) {
        for uid in self.of_gang.get(gang).cloned().unwrap_or_default() {
            self.tell(&uid);
        }
    }

    /// Tells the engine what a pod uses beyond its gang's plan, if that changed.
    fn tell(&mut self, uid: &Uid) {
        let now = self.pods.get(uid).and_then(|pod| self.beyond_plan(pod));
        if self.told.get(uid) == now.as_ref() {
            return;
        }
        let id = uid.0.clone();
        if let Some((node, _)) = self.told.get(uid)
            && let Some(there) = self.beyond.get_mut(node)
        {
            there.remove(uid);
            if there.is_empty() {
                self.beyond.remove(node);
            }
        }
        if let Some((node, requests)) = now {
            self.beyond.entry(node.clone()).or_default().insert(uid.clone());
            self.told.insert(uid.clone(), (node.clone(), requests.clone()));
            self.engine.apply(Event::Use { id, node, requests });
        } else {
            self.told.remove(uid);
            self.engine.apply(Event::UseGone { id });
        }
    }

    /// Tells the engine which pods a pod keeps away, if that changed. Pods of gangs keep none away: their templates are
    /// refused.
    fn tell_repels(&mut self, uid: &Uid) {
        let live = self.pods.get(uid).filter(|pod| pod.gang.is_none() && !pod.terminal());
        let now = live.and_then(|pod| Some((pod.node.clone()?, pod.repels.clone())));
        let now = now.filter(|(_, terms)| !terms.is_empty());
        if now.is_none() && !self.repelling.remove(uid) {
            return;
        }
        let (node, terms) = now.unwrap_or_else(|| (NodeName::from(""), Vec::new()));
        if !terms.is_empty() {
            self.repelling.insert(uid.clone());
        }
        self.engine.apply(Event::Repels { id: uid.0.clone(), node, terms });
    }

    fn beyond_plan(&self, pod: &PodFacts) -> Option<(NodeName, Resources)> {
        let node = pod.node.clone().filter(|_| !pod.terminal())?;
        let planned = pod
            .gang
            .as_ref()
            .filter(|_| !pod.leaving)
            .and_then(|gang| self.plans.get(gang)?.planned(gang, pod, &node));
        let mut rest = pod.requests.clone();
        if let Some(planned) = planned {
            // Admission may have added sidecars or overhead: what is beyond the plan counts as well.
            rest.subtract(planned);
            rest.0.retain(|_, amount| *amount > 0);
            if rest.0.is_empty() {
                return None;
            }
        }
        Some((node, rest))
    }
}
