//! Nodes, what uses them, and where they are in the tree.
//!
//! ```text
//!   Node, Use, plan entries ──▶ per node: allocatable − used, by column ──▶ Fit (how many pods of a shape)
//! ```
//!
//! Resource names are interned to columns, so that a fit is a handful of integer divisions.

use muster_model::{Node, NodeName, PodTerm, Resources, TaintEffect, Topology};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    chain::ChainKey,
    index::{ChainId, Index, ShapeId, ShapeKey},
    repulsion::{Repulsion, TermId},
    table::{self, Places, Table},
    tree::{DomainId, Slot, Tree},
};

/// Amounts by column.
pub type Amounts = Vec<(usize, i64)>;

/// Columns that a node keeps beside everything else of it: as many resources as most clusters have.
const NEAR: usize = 7;

/// Amounts by column, 0 where nothing was set. Events come for nodes all over memory: the first columns are one line of
/// the cache, and no step further away.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Columns {
    near: [i64; NEAR],
    far: Option<Box<Far>>,
}

#[derive(Clone, Debug, Default)]
struct Far(Vec<i64>);

impl Columns {
    fn get(&self, column: usize) -> i64 {
        let far = || self.far.as_ref()?.0.get(column - NEAR);
        self.near.get(column).or_else(far).copied().unwrap_or(0)
    }
}

/// A node as the engine keeps it: one line of the cache for what it has, one for what is used, one for the rest.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// Name.
    pub name: NodeName,
    /// Its facts; `None` while only use of it is known. Apart, so that what changes often lies together.
    pub facts: Option<Box<Node>>,
    /// Its leaf domain, if its facts are known.
    pub leaf: Option<DomainId>,
    /// Terms of pods' anti-affinity that are in force on it, of those that some shape names.
    pub repelled: Box<[TermId]>,
    /// Allocatable, by column.
    allocatable: Columns,
    /// Used, by column.
    used: Columns,
    /// How many users it has (so that it can be forgotten).
    users: usize,
}

impl NodeState {
    /// What is left in a column, or in all of it were the node empty.
    pub fn left(&self, column: usize, empty: bool) -> i64 {
        let all = self.allocatable.get(column);
        if empty { all } else { all.saturating_sub(self.used.get(column)) }
    }

    /// How many times a request fits now, or were the node empty.
    pub fn fits(&self, request: &[(usize, i64)], empty: bool) -> u32 {
        let mut least = None;
        for (column, amount) in request.iter().filter(|(_, amount)| *amount > 0) {
            let left = self.left(*column, empty).max(0);
            // A division takes as long as a dozen multiplications, and only the scarcest resource needs one.
            if least.is_none_or(|times| amount.checked_mul(times).is_none_or(|all| left < all)) {
                least = Some((left / amount).min(i64::from(crate::MAX_PODS_PER_NODE)));
            }
        }
        least.map_or(0, |times| times as u32)
    }
}

/// The cluster's state.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// The topology tree.
    pub tree: Tree,
    columns: BTreeMap<String, usize>,
    /// Names by column.
    names: Vec<String>,
    /// Columns of which every node has some without listing it: the host ports that gangs ask for.
    implied: Vec<(usize, i64)>,
    pub(crate) nodes: Vec<Option<NodeState>>,
    vacant: Vec<Slot>,
    by_name: Places,
    uses: Table<String, (Slot, Resources)>,
    repulsion: Repulsion,
    /// Nodes with a taint that only asks to be avoided.
    pub soft_taints: usize,
    /// How many pods fit where.
    pub index: Index,
}

impl Cluster {
    /// A node by slot.
    pub fn node(&self, slot: Slot) -> Option<&NodeState> {
        self.nodes.get(slot)?.as_ref()
    }

    /// Slot of a node by name.
    pub fn slot(&self, name: &str) -> Option<Slot> {
        let is_it = |slot: usize| self.node(slot).is_some_and(|node| node.name.as_str() == name);
        self.by_name.find(table::hash(name), is_it)
    }

    /// All nodes whose facts are known, by slot.
    pub fn nodes(&self) -> impl Iterator<Item = (Slot, &NodeState, &Node)> {
        self.nodes.iter().enumerate().filter_map(|(slot, node)| {
            let node = node.as_ref()?;
            Some((slot, node, node.facts.as_deref()?))
        })
    }

    /// Column of a resource; a new one if it was never seen.
    pub fn column(&mut self, name: &str) -> usize {
        if let Some(column) = self.columns.get(name) {
            return *column;
        }
        let column = self.columns.len();
        self.columns.insert(name.to_owned(), column);
        self.names.push(name.to_owned());
        if let Some(amount) = Resources::implied(name) {
            self.imply(name, column, amount);
        }
        column
    }

    /// A gang asks for something that every node has: what others use of it counts from now on.
    fn imply(&mut self, name: &str, column: usize, amount: i64) {
        self.implied.push((column, amount));
        for node in self.nodes.iter_mut().flatten().filter(|node| node.facts.is_some()) {
            *cell(&mut node.allocatable, column) = amount;
        }
        for (slot, requests) in self.uses.values() {
            if let Some(node) = self.nodes[*slot].as_mut() {
                *cell(&mut node.used, column) += requests.get(name);
            }
        }
    }

    /// What a node has left of a resource.
    pub fn left(&self, node: &NodeState, resource: &str) -> i64 {
        self.columns.get(resource).map_or(0, |column| node.left(*column, false))
    }

    /// Amounts by column.
    pub fn amounts(&mut self, resources: &Resources) -> Amounts {
        resources.0.iter().map(|(name, amount)| (self.column(name), *amount)).collect()
    }

    /// The same by name.
    pub fn resources(&self, amounts: &Amounts) -> Resources {
        Resources(amounts.iter().map(|(column, amount)| (self.names[*column].clone(), *amount)).collect())
    }

    /// Amounts by column of what is in no plan. Host ports that no gang asks for are left out: there may be many.
    fn foreign_amounts(&mut self, resources: &Resources) -> Amounts {
        let column = |(name, amount): (&String, &i64)| {
            let known = self.columns.contains_key(name) || Resources::implied(name).is_none();
            known.then(|| (self.column(name), *amount))
        };
        resources.0.iter().filter_map(column).collect()
    }

    /// Slot of a node, known or not yet.
    pub fn slot_or_new(&mut self, name: &NodeName) -> Slot {
        if let Some(slot) = self.slot(name.as_str()) {
            return slot;
        }
        let state = NodeState {
            name: name.clone(),
            facts: None,
            leaf: None,
            repelled: Box::default(),
            allocatable: Columns::default(),
            used: Columns::default(),
            users: 0,
        };
        let slot = if let Some(slot) = self.vacant.pop() {
            self.nodes[slot] = Some(state);
            slot
        } else {
            self.nodes.push(Some(state));
            self.nodes.len() - 1
        };
        self.by_name.add(table::hash(name.as_str()), slot);
        slot
    }

    fn forget_if_unused(&mut self, slot: Slot) {
        if let Some(node) = self.nodes[slot].as_ref()
            && node.facts.is_none()
            && node.users == 0
        {
            self.by_name.remove(table::hash(node.name.as_str()), |other| other == slot);
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
    }

    /// Puts every node where its labels say, and forgets all counts.
    fn replace_all(&mut self) {
        self.index.clear();
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

    /// A node appeared or changed. Returns whether it is new or its labels changed: then it may have moved in the tree.
    pub fn set_node(&mut self, facts: &Node) -> bool {
        let slot = self.slot_or_new(&facts.name);
        let allocatable = self.amounts(&facts.allocatable);
        let Some(node) = self.nodes[slot].as_mut() else { return false };
        if node.facts.as_deref() == Some(facts) {
            return false;
        }
        let old = node.facts.replace(Box::new(facts.clone()));
        self.soft_taints = self.soft_taints + usize::from(is_soft(facts))
            - old.as_deref().map_or(0, |old| usize::from(is_soft(old)));
        node.allocatable = Columns::default();
        for (column, amount) in self.implied.iter().copied().chain(allocatable) {
            *cell(&mut node.allocatable, column) = amount;
        }
        let moved = old.as_ref().is_none_or(|old| old.labels != facts.labels);
        if moved {
            self.repulsion.nodes_changed();
            self.relabel(slot, old.as_deref(), facts);
        }
        if let Some(node) = self.nodes[slot].as_ref() {
            self.index.admit(&self.tree, slot, node);
        }
        moved
    }

    /// Moves a node to where its labels say.
    fn relabel(&mut self, slot: Slot, old: Option<&Node>, facts: &Node) {
        let Some(node) = self.nodes[slot].as_mut() else { return };
        if let Some(leaf) = node.leaf.take() {
            self.index.withdraw(&self.tree, slot, leaf);
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
            self.index.withdraw(&self.tree, slot, leaf);
            self.tree.remove(slot, leaf);
        }
        node.allocatable = Columns::default();
        node.repelled = Box::default();
        self.repulsion.nodes_changed();
        let old = node.facts.take();
        self.soft_taints -= old.as_deref().map_or(0, |old| usize::from(is_soft(old)));
        if let Some(old) = old
            && self.tree.count_labels(&old.labels, false)
        {
            self.replace_all();
        }
        self.forget_if_unused(slot);
    }

    /// Adds (`sign` 1) or takes away (−1) use of nodes, the same on each.
    pub fn charge(&mut self, slots: &[Slot], amounts: &Amounts, sign: i64) {
        // Several pods of one node stand together.
        for pods in slots.chunk_by(|slot, next| slot == next) {
            let (slot, count) = (pods[0], pods.len());
            let Some(node) = self.nodes[slot].as_mut() else { continue };
            let times = sign.saturating_mul(count as i64);
            for (column, amount) in amounts {
                let used = cell(&mut node.used, *column);
                *used = used.saturating_add(amount.saturating_mul(times));
            }
            node.users = if sign > 0 { node.users + count } else { node.users.saturating_sub(count) };
            self.index.note(slot);
            if sign < 0 {
                self.forget_if_unused(slot);
            }
        }
    }

    /// Takes away (`sign` −1) some use for a trial, or puts it back (1).
    pub fn lend(&mut self, slots: &[Slot], amounts: &Amounts, sign: i64) {
        for slot in slots {
            let Some(node) = self.nodes[*slot].as_mut() else { continue };
            for (column, amount) in amounts {
                let used = cell(&mut node.used, *column);
                *used = used.saturating_add(amount.saturating_mul(sign));
            }
            self.index.note(*slot);
        }
    }

    /// Foreign use began or changed.
    pub fn set_use(&mut self, id: String, node: &NodeName, requests: Resources) {
        let slot = self.slot_or_new(node);
        if self.uses.get(&id).is_some_and(|(s, r)| *s == slot && *r == requests) {
            return;
        }
        // The new use first: the node's slot is not forgotten in between.
        let amounts = self.foreign_amounts(&requests);
        self.charge(&[slot], &amounts, 1);
        self.end_use(&id);
        self.uses.insert(id, (slot, requests));
    }

    /// Foreign use ended.
    pub fn end_use(&mut self, id: &str) {
        if let Some((slot, requests)) = self.uses.remove(id) {
            let amounts = self.foreign_amounts(&requests);
            self.charge(&[slot], &amounts, -1);
        }
    }

    /// A pod that is in no plan keeps others away by these terms; none ends it.
    pub fn set_repels(&mut self, id: String, node: NodeName, terms: Vec<PodTerm>) {
        if self.repulsion.set(id, node, terms) {
            // A term that was not known may select pods of any gang: their shapes are told anew.
            self.index.clear();
        }
    }

    /// The terms that keep a pod with these labels away, to be part of its shape.
    pub fn repelling(&mut self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<TermId> {
        let ids = self.repulsion.selecting(namespace, labels);
        self.settle();
        ids
    }

    /// Brings up to date which terms are in force on which node.
    pub fn settle(&mut self) {
        if !self.repulsion.take_stale() {
            return;
        }
        let facts = |name: &NodeName| {
            let slot = self.slot(name.as_str())?;
            self.nodes[slot].as_ref()?.facts.as_deref()
        };
        let domains = self.repulsion.domains(facts);
        let mut changed: Vec<(Slot, Vec<TermId>)> = Vec::new();
        for (slot, node, facts) in self.nodes() {
            let holds = |(_, key, value): &&(TermId, &str, &str)| {
                facts.labels.get(*key).is_some_and(|label| label == value)
            };
            let repelled: Vec<TermId> = domains.iter().filter(holds).map(|(id, ..)| *id).collect();
            if *repelled != *node.repelled {
                changed.push((slot, repelled));
            }
        }
        for (slot, repelled) in changed {
            if let Some(node) = self.nodes[slot].as_mut() {
                node.repelled = repelled.into();
                self.index.admit(&self.tree, slot, node);
            }
        }
    }

    /// The shape with this key.
    pub fn shape(&mut self, key: &ShapeKey) -> ShapeId {
        self.index.shape(&self.tree, &self.nodes, key)
    }

    /// The chain with this key.
    pub fn chain(&mut self, key: &ChainKey) -> ChainId {
        self.index.chain(&self.tree, &self.nodes, key)
    }

    /// Brings a shape's counts up to date.
    pub fn sync(&mut self, shape: ShapeId) {
        self.index.sync(&self.tree, &self.nodes, shape);
    }

    /// Brings all counts up to date.
    pub fn sync_all(&mut self) {
        self.index.sync_all(&self.tree, &self.nodes);
    }

    /// Runs `work` in a way that room made in it wakes nobody: it is taken back before the end.
    pub fn quietly<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        self.sync_all();
        let quiet = std::mem::replace(&mut self.index.quiet, true);
        let result = work(self);
        self.sync_all();
        self.index.quiet = quiet;
        result
    }

    /// Hides nodes from a shape (`true`) or shows them again. Nobody is woken by it.
    pub fn hide(&mut self, nodes: &BTreeSet<NodeName>, shape: ShapeId, hidden: bool) {
        let quiet = std::mem::replace(&mut self.index.quiet, true);
        for slot in nodes.iter().filter_map(|name| self.slot(name.as_str())).collect::<Vec<_>>() {
            let Some(node) = self.nodes[slot].as_ref() else { continue };
            match node.leaf {
                Some(leaf) if hidden => self.index.hide(&self.tree, slot, shape, leaf),
                _ => self.index.admit(&self.tree, slot, node),
            }
        }
        self.index.quiet = quiet;
    }
}

/// Whether a taint of the node asks pods to stay away without forbidding it.
fn is_soft(facts: &Node) -> bool {
    facts.taints.iter().any(|taint| taint.effect == TaintEffect::PreferNoSchedule)
}

fn cell(amounts: &mut Columns, column: usize) -> &mut i64 {
    if column < NEAR {
        return &mut amounts.near[column];
    }
    let far = &mut amounts.far.get_or_insert_default().0;
    if far.len() <= column - NEAR {
        far.resize(column - NEAR + 1, 0);
    }
    &mut far[column - NEAR]
}
