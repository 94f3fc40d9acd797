//! Nodes, what uses them, and where they are in the tree.
//!
//! ```text
//!   Node, Use, plan entries ──▶ per node: allocatable − used, by column ──▶ Fit (how many pods of a shape)
//! ```
//!
//! Resource names are interned to columns, so that a fit is a handful of integer divisions.

use muster_model::{
    AcceleratorClass, Node, NodeName, Resources, Role, TaintEffect, Topology, reason::NodeRefusal,
};
use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{DomainId, Slot, Tree};

/// Amounts by column.
pub type Amounts = Vec<(usize, i64)>;

/// A node as the engine keeps it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Name.
    pub name: NodeName,
    /// Its facts; `None` while only use of it is known.
    pub facts: Option<Node>,
    /// Its leaf domain, if its facts are known.
    pub leaf: Option<DomainId>,
    /// Allocatable, by column.
    allocatable: Vec<i64>,
    /// Used, by column.
    used: Vec<i64>,
    /// How many users it has (so that it can be forgotten).
    users: usize,
}

impl NodeState {
    /// What is left in a column, or in all of it were the node empty.
    pub fn left(&self, column: usize, empty: bool) -> i64 {
        let all = self.allocatable.get(column).copied().unwrap_or(0);
        if empty { all } else { all.saturating_sub(self.used.get(column).copied().unwrap_or(0)) }
    }

    /// How many times a request fits now, or were the node empty.
    pub fn fits(&self, request: &[(usize, i64)], empty: bool) -> u32 {
        let times = request
            .iter()
            .filter(|(_, amount)| *amount > 0)
            .map(|(column, amount)| self.left(*column, empty).max(0) / amount)
            .min()
            .unwrap_or(0);
        u32::try_from(times).unwrap_or(u32::MAX).min(crate::MAX_PODS_PER_NODE)
    }
}

/// The cluster's state.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The topology tree.
    pub tree: Tree,
    columns: BTreeMap<String, usize>,
    nodes: Vec<Option<NodeState>>,
    vacant: Vec<Slot>,
    by_name: BTreeMap<NodeName, Slot>,
    uses: BTreeMap<String, (NodeName, Resources)>,
    /// Counts changes that may have made room.
    pub freed: u64,
}

impl Cluster {
    /// A node by slot.
    pub fn node(&self, slot: Slot) -> Option<&NodeState> {
        self.nodes.get(slot)?.as_ref()
    }

    /// Slot of a node by name.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        self.by_name.get(name).copied()
    }

    /// All nodes whose facts are known, by slot.
    pub fn nodes(&self) -> impl Iterator<Item = (Slot, &NodeState, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(slot, node)| {
            let node = node.as_ref()?;
            Some((slot, node, node.facts.as_ref()?))
        })
    }

    /// Column of a resource; a new one if it was never seen.
    pub fn column(&mut self, name: &str) -> usize {
        if let Some(column) = self.columns.get(name) {
            return *column;
        }
        let column = self.columns.len();
        self.columns.insert(name.to_owned(), column);
        column
    }

    /// What a node has left of a resource.
    pub fn left(&self, node: &NodeState, resource: &str) -> i64 {
        self.columns.get(resource).map_or(0, |column| node.left(*column, false))
    }

    /// Amounts by column.
    pub fn amounts(&mut self, resources: &Resources) -> Amounts {
        resources.0.iter().map(|(name, amount)| (self.column(name), *amount)).collect()
    }

    fn slot_or_new(&mut self, name: &NodeName) -> Slot {
        if let Some(slot) = self.by_name.get(name) {
            return *slot;
        }
        let state = NodeState {
            name: name.clone(),
            facts: None,
            leaf: None,
            allocatable: Vec::new(),
            used: Vec::new(),
            users: 0,
        };
        let slot = if let Some(slot) = self.vacant.pop() {
            self.nodes[slot] = Some(state);
            slot
        } else {
            self.nodes.push(Some(state));
            self.nodes.len() - 1
        };
        self.by_name.insert(name.clone(), slot);
        slot
    }

    fn forget_if_unused(&mut self, slot: Slot) {
        if let Some(node) = self.nodes[slot].as_ref()
            && node.facts.is_none()
            && node.users == 0
        {
            self.by_name.remove(&node.name);
            self.nodes[slot] = None;
            self.vacant.push(slot);
        }
    }

    /// Another set of levels: every node is placed anew.
    pub fn set_topology(&mut self, topology: Topology) {
        if self.tree.topology == topology {
            return;
        }
        self.tree = Tree::new(topology);
        for slot in 0..self.nodes.len() {
            let Some(node) = self.nodes[slot].as_mut() else { continue };
            node.leaf = None;
            if let Some(facts) = &node.facts {
                self.tree.count_labels(&facts.labels, true);
            }
        }
        self.replace_all();
        self.freed += 1;
    }

    /// Puts every node where its labels say.
    fn replace_all(&mut self) {
        for slot in 0..self.nodes.len() {
            let Some(node) = self.nodes[slot].as_mut() else { continue };
            if let Some(leaf) = node.leaf.take() {
                self.tree.remove(slot, leaf);
            }
        }
        for slot in 0..self.nodes.len() {
            let Some(node) = self.nodes[slot].as_mut() else { continue };
            if let Some(facts) = &node.facts {
                node.leaf = Some(self.tree.insert(slot, &facts.name, &facts.labels));
            }
        }
    }

    /// A node appeared or changed.
    pub fn set_node(&mut self, facts: &Node) {
        let slot = self.slot_or_new(&facts.name);
        let allocatable = self.amounts(&facts.allocatable);
        let Some(node) = self.nodes[slot].as_mut() else { return };
        if node.facts.as_ref() == Some(facts) {
            return;
        }
        let old = node.facts.replace(facts.clone());
        node.allocatable.iter_mut().for_each(|amount| *amount = 0);
        for (column, amount) in allocatable {
            *cell(&mut node.allocatable, column) = amount;
        }
        self.freed += 1;
        if old.as_ref().is_some_and(|old| old.labels == facts.labels) {
            return;
        }
        if let Some(leaf) = node.leaf.take() {
            self.tree.remove(slot, leaf);
        }
        let mut rebuild = old.is_some_and(|old| self.tree.count_labels(&old.labels, false));
        rebuild |= self.tree.count_labels(&facts.labels, true);
        if rebuild {
            self.replace_all();
        } else if let Some(node) = self.nodes[slot].as_mut() {
            node.leaf = Some(self.tree.insert(slot, &facts.name, &facts.labels));
        }
    }

    /// A node is gone; what uses it is remembered.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Some(slot) = self.slot(name.as_str()) else { return };
        let Some(node) = self.nodes[slot].as_mut() else { return };
        if let Some(leaf) = node.leaf.take() {
            self.tree.remove(slot, leaf);
        }
        node.allocatable.clear();
        if let Some(old) = node.facts.take()
            && self.tree.count_labels(&old.labels, false)
        {
            self.replace_all();
        }
        self.forget_if_unused(slot);
    }

    /// Adds (`sign` 1) or takes away (−1) use of a node.
    pub fn charge(&mut self, name: &NodeName, requests: &Resources, sign: i64) {
        let amounts = self.amounts(requests);
        let slot = self.slot_or_new(name);
        if let Some(node) = self.nodes[slot].as_mut() {
            for (column, amount) in amounts {
                let used = cell(&mut node.used, column);
                *used = used.saturating_add(amount.saturating_mul(sign));
            }
            node.users = if sign > 0 { node.users + 1 } else { node.users.saturating_sub(1) };
        }
        if sign < 0 {
            self.freed += 1;
            self.forget_if_unused(slot);
        }
    }

    /// Foreign use began or changed.
    pub fn set_use(&mut self, id: String, node: NodeName, requests: Resources) {
        if self.uses.get(&id).is_some_and(|(n, r)| *n == node && *r == requests) {
            return;
        }
        self.end_use(&id);
        self.charge(&node, &requests, 1);
        self.uses.insert(id, (node, requests));
    }

    /// Foreign use ended.
    pub fn end_use(&mut self, id: &str) {
        if let Some((node, requests)) = self.uses.remove(id) {
            self.charge(&node, &requests, -1);
        }
    }

    /// Why a node takes no pods of a role for reasons other than room; `None` if it does. With `lasting`, only the
    /// reasons that an empty, healthy cluster would still have.
    pub fn refusal(
        facts: &Node,
        role: &Role,
        class: Option<&AcceleratorClass>,
        avoid: &BTreeSet<NodeName>,
        lasting: bool,
    ) -> Option<NodeRefusal> {
        if !lasting && !facts.ready {
            return Some(NodeRefusal::NotReady);
        }
        if !lasting && facts.cordoned {
            return Some(NodeRefusal::Cordoned);
        }
        if !lasting && avoid.contains(&facts.name) {
            return Some(NodeRefusal::Avoided);
        }
        if role.devices > 0 && !class.is_some_and(|class| is_of_class(facts, class)) {
            return Some(NodeRefusal::OtherClass);
        }
        let repelled = |taint: &&muster_model::Taint| {
            taint.effect != TaintEffect::PreferNoSchedule
                && !role.tolerations.iter().any(|t| t.tolerates(taint))
        };
        if facts.taints.iter().any(|taint| repelled(&taint)) {
            return Some(NodeRefusal::Tainted);
        }
        let selected = role.node_selector.iter().all(|(key, value)| facts.labels.get(key) == Some(value));
        let wanted = role.affinity.is_empty()
            || role.affinity.iter().any(|term| term.matches(facts.name.as_str(), &facts.labels));
        (!selected || !wanted).then_some(NodeRefusal::Selector)
    }
}

/// Whether a node has cards of a class.
fn is_of_class(facts: &Node, class: &AcceleratorClass) -> bool {
    facts.allocatable.get(&class.resource) > 0
        && class.requirements.iter().all(|requirement| {
            requirement.holds(if requirement.field {
                (requirement.key == "metadata.name").then_some(facts.name.as_str())
            } else {
                facts.labels.get(&requirement.key).map(String::as_str)
            })
        })
}

fn cell(amounts: &mut Vec<i64>, column: usize) -> &mut i64 {
    if amounts.len() <= column {
        amounts.resize(column + 1, 0);
    }
    &mut amounts[column]
}
