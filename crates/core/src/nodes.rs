//! One record a node: who is planned there, who waits for room there; its health and what is believed of its capacity
//! are judged over all nodes by `lifecycle::nodes`, and `health` does what follows.

use muster_lifecycle::nodes::{self as judged, Brake, Sign};
use muster_model::{DomainKey, Millis, NodeName, ObjectKey, Resources, Topology, Uid};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a node beyond what its object says.
#[derive(Debug, Default)]
pub struct NodeRt {
    /// What its object showed last; `None` while only gangs name it.
    pub sign: Option<(Uid, Sign)>,
    /// Gangs whose committed plan names it, and what that promises them of it.
    pub gangs: BTreeMap<ObjectKey, Resources>,
    /// Gangs with a pod that waits for room there.
    pub waiting: BTreeSet<ObjectKey>,
}

impl NodeRt {
    fn idle(&self) -> bool {
        self.sign.is_none() && self.gangs.is_empty() && self.waiting.is_empty()
    }
}

/// All nodes.
#[derive(Debug)]
pub struct Nodes {
    pub records: BTreeMap<NodeName, NodeRt>,
    pub judged: judged::Nodes,
    pub levels: Topology,
    /// Something was observed since the last judgement.
    pub dirty: bool,
    pub next: Option<Millis>,
    pub brakes: Vec<Brake>,
}

impl Nodes {
    /// None yet.
    pub fn new(config: judged::Config) -> Self {
        Self {
            records: BTreeMap::new(),
            judged: judged::Nodes::new(config),
            levels: Topology::default(),
            dirty: false,
            next: None,
            brakes: Vec::new(),
        }
    }

    /// When a verdict is due.
    pub fn next(&self) -> Option<Millis> {
        self.next
    }

    /// How many brakes keep silent nodes from counting as lost.
    pub fn braked(&self) -> usize {
        self.brakes.len()
    }

    /// What keeps silent nodes from counting as lost, in words.
    pub fn brakes(&self, now: Millis) -> Vec<String> {
        self.brakes.iter().map(|brake| brake.words(now)).collect()
    }

    /// A gang's committed plan names other nodes now, or other amounts.
    pub fn index(
        &mut self,
        gang: &ObjectKey,
        before: &BTreeMap<NodeName, Resources>,
        after: &BTreeMap<NodeName, Resources>,
    ) {
        for node in before.keys().filter(|node| !after.contains_key(*node)) {
            self.change(node, |rt| {
                rt.gangs.remove(gang);
            });
        }
        for (node, amount) in after.iter().filter(|(node, amount)| before.get(*node) != Some(amount)) {
            self.change(node, |rt| {
                rt.gangs.insert(gang.clone(), amount.clone());
            });
        }
    }

    /// What a gang's committed plan promises it of a node.
    pub fn promised_to(&self, gang: &ObjectKey, node: &NodeName) -> Resources {
        self.records.get(node).and_then(|rt| rt.gangs.get(gang)).cloned().unwrap_or_default()
    }

    /// What committed plans of other gangs promise of a node.
    pub fn promised_beside(&self, gang: &ObjectKey, node: &NodeName) -> Resources {
        let mut sum = Resources::default();
        let others = self.records.get(node).into_iter().flat_map(|rt| &rt.gangs);
        for (_, amount) in others.filter(|(other, _)| *other != gang) {
            sum.add(amount);
        }
        sum
    }

    /// A gang's pod waits for room on a node.
    pub fn block(&mut self, gang: &ObjectKey, node: &NodeName) {
        self.change(node, |rt| {
            rt.waiting.insert(gang.clone());
        });
    }

    /// Whether a gang's pod waits for room on a node of which nothing has changed since.
    pub fn waits(&self, gang: &ObjectKey, node: &NodeName) -> bool {
        self.records.get(node).is_some_and(|rt| rt.waiting.contains(gang))
    }

    /// It waits no more.
    pub fn unblock(&mut self, gang: &ObjectKey, node: &NodeName) {
        self.change(node, |rt| {
            rt.waiting.remove(gang);
        });
    }

    pub fn change(&mut self, node: &NodeName, what: impl FnOnce(&mut NodeRt)) {
        let rt = self.records.entry(node.clone()).or_default();
        what(rt);
        if rt.idle() {
            self.records.remove(node);
        }
    }

    /// Gangs whose plan names a node.
    pub fn gangs_on(&self, node: &NodeName) -> BTreeSet<ObjectKey> {
        self.records.get(node).map(|rt| rt.gangs.keys().cloned().collect()).unwrap_or_default()
    }

    /// Takes the gangs with a pod that waits for room on a node: those that find none wait anew.
    pub fn take_waiting(&mut self, node: &NodeName) -> BTreeSet<ObjectKey> {
        let mut waiting = BTreeSet::new();
        self.change(node, |rt| waiting = std::mem::take(&mut rt.waiting));
        waiting
    }

    /// The names of the domains that a node lies in by its labels: each the path to it, so that it is unique.
    pub fn domains(&self, name: &NodeName, labels: &BTreeMap<String, String>) -> BTreeSet<String> {
        let present = vec![true; self.levels.levels.len()];
        let mut path = String::new();
        let keys = self.levels.path(name, labels, &present);
        let named = self.levels.levels.iter().zip(keys).filter_map(|(level, key)| match key {
            DomainKey::Label(value) => {
                path = if path.is_empty() { value } else { format!("{path}/{value}") };
                Some(format!("{} {path}", level.name))
            }
            DomainKey::Own(_) => None,
        });
        named.collect()
    }
}
