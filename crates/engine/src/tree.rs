//! The topology tree: domains by the path of their labels, built and changed node by node.
//!
//! ```text
//!   node labels ──Topology::path──▶ keys ──intern──▶ root ▸ level 1 ▸ … ▸ leaf domain ∋ nodes
//! ```
//!
//! Depths: the root (the cluster) is 0, the level at position i of the topology is i + 1, nodes come after the last.

use muster_model::{DomainKey, NodeName, Topology};
use std::collections::BTreeMap;

/// Index of a domain in the tree's arena.
pub type DomainId = usize;
/// Index of a node in the cluster.
pub type Slot = usize;
/// The cluster as a whole.
pub const ROOT: DomainId = 0;

/// One domain.
#[derive(Clone, Debug)]
pub struct Domain {
    /// 0 for the root.
    pub depth: usize,
    /// Its name under the parent; `None` for the root.
    pub key: Option<DomainKey>,
    /// The domains inside it, by key.
    pub children: Vec<DomainId>,
    /// Its nodes, ascending, if it is of the innermost level.
    pub nodes: Vec<Slot>,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The levels.
    pub topology: Topology,
    domains: Vec<Domain>,
    /// Parents by domain, apart from the rest: every change walks along them.
    parents: Vec<DomainId>,
    /// Domains by depth.
    at_depth: Vec<Vec<DomainId>>,
    /// Position of each domain among those of its depth.
    position: Vec<usize>,
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
        let root = Domain { depth: 0, key: None, children: Vec::new(), nodes: Vec::new() };
        let mut at_depth = vec![Vec::new(); topology.levels.len() + 1];
        at_depth[0].push(ROOT);
        Self {
            topology,
            domains: vec![root],
            parents: vec![ROOT],
            at_depth,
            position: vec![0],
            vacant: Vec::new(),
            carried,
        }
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

    /// One more than the largest id in use: the size of a table by domain.
    pub fn extent(&self) -> usize {
        self.domains.len()
    }

    /// The domain outside one; the root is its own.
    pub fn parent(&self, id: DomainId) -> DomainId {
        self.parents[id]
    }

    /// Domains of a depth, in no particular order.
    pub fn at_depth(&self, depth: usize) -> &[DomainId] {
        &self.at_depth[depth]
    }

    /// Path of a domain from the outermost level, joined by `/`; `cluster` for the root. A level around it that no node
    /// carries is left out: it is called as the next one inside.
    pub fn path(&self, id: DomainId) -> String {
        let told = |d: DomainId| d == id || self.carried.get(self.domains[d].depth - 1) != Some(&0);
        let mut parts: Vec<String> = self
            .ancestors(id)
            .filter_map(|d| Some((d, self.domains[d].key.as_ref()?)))
            .filter(|(d, _)| told(*d))
            .map(|(_, key)| key.to_string())
            .collect();
        parts.reverse();
        if parts.is_empty() { "cluster".into() } else { parts.join("/") }
    }

    /// The domain itself and those around it, up to and with the root.
    pub fn ancestors(&self, id: DomainId) -> impl Iterator<Item = DomainId> + '_ {
        let mut next = Some(id);
        std::iter::from_fn(move || {
            let current = next?;
            next = (current != ROOT).then(|| self.parents[current]);
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
            at = match self.child(at, &key) {
                Ok(position) => self.domains[at].children[position],
                Err(position) => self.grow(at, position, key),
            };
        }
        let nodes = &mut self.domains[at].nodes;
        if let Err(position) = nodes.binary_search(&slot) {
            nodes.insert(position, slot);
        }
        at
    }

    /// Position of a child by key, or where it belongs.
    fn child(&self, parent: DomainId, key: &DomainKey) -> Result<usize, usize> {
        self.domains[parent]
            .children
            .binary_search_by(|child| self.domains[*child].key.as_ref().cmp(&Some(key)))
    }

    fn grow(&mut self, parent: DomainId, position: usize, key: DomainKey) -> DomainId {
        let depth = self.domains[parent].depth + 1;
        let domain = Domain { depth, key: Some(key), children: Vec::new(), nodes: Vec::new() };
        let id = if let Some(id) = self.vacant.pop() {
            self.domains[id] = domain;
            self.parents[id] = parent;
            id
        } else {
            self.domains.push(domain);
            self.parents.push(parent);
            self.position.push(0);
            self.domains.len() - 1
        };
        self.domains[parent].children.insert(position, id);
        self.position[id] = self.at_depth[depth].len();
        self.at_depth[depth].push(id);
        id
    }

    /// Takes a node out of its leaf domain; domains left empty vanish.
    pub fn remove(&mut self, slot: Slot, leaf: DomainId) {
        if let Ok(position) = self.domains[leaf].nodes.binary_search(&slot) {
            self.domains[leaf].nodes.remove(position);
        }
        let mut at = leaf;
        while at != ROOT && self.domains[at].nodes.is_empty() && self.domains[at].children.is_empty() {
            let parent = self.parents[at];
            if let Some(key) = self.domains[at].key.clone()
                && let Ok(position) = self.child(parent, &key)
            {
                self.domains[parent].children.remove(position);
            }
            let peers = &mut self.at_depth[self.domains[at].depth];
            peers.swap_remove(self.position[at]);
            if let Some(moved) = peers.get(self.position[at]) {
                self.position[*moved] = self.position[at];
            }
            self.vacant.push(at);
            at = parent;
        }
    }
}
