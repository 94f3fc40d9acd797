//! The topology tree: domains by the path of their labels, built and changed node by node.
//!
//! ```text
//!   node labels ──Topology::path──▶ keys ──intern──▶ root ▸ level 1 ▸ … ▸ leaf domain ∋ nodes
//! ```
//!
//! Depths: the root (the cluster) is 0, the level at position i of the topology is i + 1, nodes come after the last.

use muster_model::{DomainKey, NodeName, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Index of a domain in the tree's arena.
pub type DomainId = usize;
/// Index of a node in the cluster.
pub type Slot = usize;
/// The cluster as a whole.
pub const ROOT: DomainId = 0;

/// One domain.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The domain outside it; the root is its own.
    pub parent: DomainId,
    /// 0 for the root.
    pub depth: usize,
    /// Its name under the parent; `None` for the root.
    pub key: Option<DomainKey>,
    /// The domains inside it.
    pub children: BTreeMap<DomainKey, DomainId>,
    /// Its nodes, if it is of the innermost level.
    pub nodes: BTreeSet<Slot>,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The levels.
    pub topology: Topology,
    domains: Vec<Domain>,
    vacant: Vec<DomainId>,
    /// How many nodes carry a label of each level.
    carried: Vec<usize>,
}

impl Default for Tree {
    fn default() -> Self {
        Self::new(Topology::default())
    }
}

impl Tree {
    /// A tree without nodes.
    pub fn new(topology: Topology) -> Self {
        let carried = vec![0; topology.levels.len()];
        let root =
            Domain { parent: ROOT, depth: 0, key: None, children: BTreeMap::new(), nodes: BTreeSet::new() };
        Self { topology, domains: vec![root], vacant: Vec::new(), carried }
    }

    /// Depth of the innermost domains above the nodes.
    pub fn leaf_depth(&self) -> usize {
        self.topology.levels.len()
    }

    /// Name of the level at a depth; the root has none.
    pub fn level_name(&self, depth: usize) -> &str {
        match depth.checked_sub(1) {
            None => "Cluster",
            Some(level) => self.topology.names().get(level).copied().unwrap_or(muster_model::topology::NODE),
        }
    }

    /// A domain.
    pub fn domain(&self, id: DomainId) -> &Domain {
        &self.domains[id]
    }

    /// Path of a domain from the outermost level, joined by `/`; `cluster` for the root.
    pub fn path(&self, id: DomainId) -> String {
        let mut parts: Vec<String> = self
            .ancestors(id)
            .filter_map(|d| self.domains[d].key.as_ref().map(ToString::to_string))
            .collect();
        parts.reverse();
        if parts.is_empty() { "cluster".into() } else { parts.join("/") }
    }

    /// The domain itself and those around it, up to and with the root.
    pub fn ancestors(&self, id: DomainId) -> impl Iterator<Item = DomainId> + '_ {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let current = next?;
            next = (current != ROOT).then(|| self.domains[current].parent);
            Some(current)
        })
    }

    /// Counts a node's labels in (`true`) or out. Returns whether a level began or ceased to be carried by any node,
    /// after which every path must be computed anew.
    pub fn count_labels(&mut self, labels: &BTreeMap<String, String>, add: bool) -> bool {
        let mut changed = false;
        for level in 0..self.carried.len() {
            if self.topology.label(level, labels).is_some() {
                let count = &mut self.carried[level];
                let before = *count > 0;
                *count = if add { *count + 1 } else { count.saturating_sub(1) };
                changed |= before != (*count > 0);
            }
        }
        changed
    }

    /// Puts a node into the tree. Returns its leaf domain.
    pub fn insert(&mut self, slot: Slot, name: &NodeName, labels: &BTreeMap<String, String>) -> DomainId {
        let present: Vec<bool> = self.carried.iter().map(|count| *count > 0).collect();
        let mut at = ROOT;
        for key in self.topology.path(name, labels, &present) {
            at = match self.domains[at].children.get(&key) {
                Some(child) => *child,
                None => self.grow(at, key),
            };
        }
        self.domains[at].nodes.insert(slot);
        at
    }

    fn grow(&mut self, parent: DomainId, key: DomainKey) -> DomainId {
        let domain = Domain {
            parent,
            depth: self.domains[parent].depth + 1,
            key: Some(key.clone()),
            children: BTreeMap::new(),
            nodes: BTreeSet::new(),
        };
        let id = if let Some(id) = self.vacant.pop() {
            self.domains[id] = domain;
            id
        } else {
            self.domains.push(domain);
            self.domains.len() - 1
        };
        self.domains[parent].children.insert(key, id);
        id
    }

    /// Takes a node out of its leaf domain; domains left empty vanish.
    pub fn remove(&mut self, slot: Slot, leaf: DomainId) {
        self.domains[leaf].nodes.remove(&slot);
        let mut at = leaf;
        while at != ROOT && self.domains[at].nodes.is_empty() && self.domains[at].children.is_empty() {
            let parent = self.domains[at].parent;
            if let Some(key) = self.domains[at].key.take() {
                self.domains[parent].children.remove(&key);
            }
            self.vacant.push(at);
            at = parent;
        }
    }
}
