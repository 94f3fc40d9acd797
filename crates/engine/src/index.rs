//! How many pods of each shape fit, per node and per domain, kept up to date change by change.
//!
//! ```text
//!   node changed ─▶ cell per (node, shape): fits now, fits empty, refusal
//!                     └─ differs? ─▶ shape: pods per domain, up the tree
//!                                    └─▶ chain (shape + segments): blocks per domain, floors taken; leaf domains by blocks
//! ```
//!
//! A *shape* is what decides where one pod fits; gangs that ask the same share it. A *chain* adds nested segments: for
//! every domain the number of blocks that close there, so that "how many units fit in this domain" is a look-up.
//! Both are built when first asked for and cost O(depth) per change of a node from then on.

use muster_model::{
    AcceleratorClass, Node, NodeSelectorTerm, Role, TaintEffect, Toleration, reason::NodeRefusal,
};
use std::collections::BTreeMap;

use crate::{
    cluster::{Amounts, NodeState},
    repulsion::TermId,
    tree::{DomainId, Slot, Tree},
};

/// Shapes kept at once. Real clusters have a few; beyond this all are dropped and built anew as needed.
const MOST_SHAPES: usize = 64;
/// Chains kept at once.
const MOST_CHAINS: usize = 256;
/// Changes noted before everything is dropped rather than caught up with.
const LONGEST_LOG: usize = 1_000_000;
/// Leaf domains with more blocks than this share a bucket.
pub const LARGEST_BUCKET: usize = 1_023;

/// Index of a shape.
pub type ShapeId = usize;
/// Index of a chain.
pub type ChainId = usize;

/// What decides where a pod fits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShapeKey {
    /// What one pod asks.
    pub request: Amounts,
    /// Class of its accelerators; `None` without any.
    pub class: Option<AcceleratorClass>,
    /// Labels that a node must have.
    pub selector: Vec<(String, String)>,
    /// Required node affinity.
    pub affinity: Vec<NodeSelectorTerm>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Terms of other pods' anti-affinity that select these pods.
    pub repelled_by: Vec<TermId>,
}

impl ShapeKey {
    /// The shape of a role's pods on a class.
    pub fn new(
        role: &Role,
        class: Option<&AcceleratorClass>,
        request: Amounts,
        repelled_by: Vec<TermId>,
    ) -> Self {
        Self {
            request,
            class: class.filter(|_| role.devices > 0).cloned(),
            selector: role.node_selector.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            affinity: role.affinity.clone(),
            tolerations: role.tolerations.clone(),
            repelled_by,
        }
    }

    /// Why a node would take none of these pods even if it were empty and healthy, room apart.
    fn lasting_refusal(&self, facts: &Node) -> Option<NodeRefusal> {
        if self.class.as_ref().is_some_and(|class| !is_of_class(facts, class)) {
            return Some(NodeRefusal::OtherClass);
        }
        let repels = |taint: &muster_model::Taint| {
            taint.effect != TaintEffect::PreferNoSchedule
                && !self.tolerations.iter().any(|t| t.tolerates(taint))
        };
        if facts.taints.iter().any(repels) {
            return Some(NodeRefusal::Tainted);
        }
        let selected = self.selector.iter().all(|(key, value)| facts.labels.get(key) == Some(value));
        let wanted = self.affinity.is_empty()
            || self.affinity.iter().any(|term| term.matches(facts.name.as_str(), &facts.labels));
        (!selected || !wanted).then_some(NodeRefusal::Selector)
    }

    fn cell(&self, node: &NodeState) -> Cell {
        let Some(facts) = node.facts.as_ref().filter(|_| node.leaf.is_some()) else { return Cell::NONE };
        let lasting = self.lasting_refusal(facts);
        let empty = if lasting.is_none() { node.fits(&self.request, true) as u16 } else { 0 };
        let transient = if !facts.ready {
            Some(NodeRefusal::NotReady)
        } else if facts.cordoned {
            Some(NodeRefusal::Cordoned)
        } else {
            None
        };
        let repelled = || self.repelled_by.iter().any(|term| node.repelled.contains(term));
        let refusal = transient
            .or(lasting)
            .or((empty == 0).then_some(NodeRefusal::TooSmall))
            .or_else(|| repelled().then_some(NodeRefusal::Repelled));
        let mut cell = Cell { fit: 0, empty, refusal, blocked: refusal.is_some() };
        self.refresh(&mut cell, node);
        cell
    }

    /// What changes when only the node's use did.
    fn refresh(&self, cell: &mut Cell, node: &NodeState) {
        if !cell.blocked {
            cell.fit = node.fits(&self.request, false) as u16;
            cell.refusal = (cell.fit == 0).then_some(NodeRefusal::Busy);
        }
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

/// A node as one shape sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Pods that fit now.
    pub fit: u16,
    /// Pods that would fit, were it empty and healthy.
    pub empty: u16,
    /// Why none fits now.
    pub refusal: Option<NodeRefusal>,
    /// Whether none fits whatever leaves.
    blocked: bool,
}

impl Cell {
    const NONE: Self = Self { fit: 0, empty: 0, refusal: None, blocked: true };
}

/// A shape with its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    key: ShapeKey,
    /// Pods per domain, now and empty.
    count: Vec<u32>,
    empty: Vec<u32>,
    /// Nodes by refusal.
    tally: BTreeMap<NodeRefusal, u32>,
    /// The most pods that any node would hold empty (never lowered).
    largest: u16,
    /// How much of the index's log of changed nodes it has taken in.
    seen: usize,
    /// Counts increases of fits: whoever was refused before one may be asked again.
    version: u64,
    chains: Vec<ChainId>,
}

/// Segments as the index counts them: blocks of `chunk` pods close at the node, and at each depth `ratio` of what
/// comes up make one block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainKey {
    /// Which shape.
    pub shape: ShapeId,
    /// Pods of a block that closes at the node.
    pub chunk: u32,
    /// By depth, from the root to the leaf domains.
    pub ratios: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Chain {
    key: ChainKey,
    /// Blocks that come up to a domain, before its own ratio; now and empty.
    raw: Vec<u32>,
    empty: Vec<u32>,
    /// Leaf domains by blocks, as bit sets over domain ids.
    buckets: Vec<Vec<u64>>,
}

impl Chain {
    fn new(key: ChainKey) -> Self {
        Self { key, raw: Vec::new(), empty: Vec::new(), buckets: Vec::new() }
    }

    /// A node's fit changed: carries the difference up as far as it shows.
    fn change(&mut self, tree: &Tree, leaf: DomainId, before: u16, after: u16, empty: bool) {
        let chunk = self.key.chunk;
        let mut delta = i64::from(u32::from(after) / chunk) - i64::from(u32::from(before) / chunk);
        let mut at = leaf;
        let mut depth = tree.leaf_depth();
        while delta != 0 {
            let ratio = self.key.ratios[depth];
            let raw = at_mut(if empty { &mut self.empty } else { &mut self.raw }, at);
            let old = *raw / ratio;
            *raw = (i64::from(*raw) + delta) as u32;
            let new = *raw / ratio;
            delta = i64::from(new) - i64::from(old);
            if depth == tree.leaf_depth() && !empty && delta != 0 {
                self.move_bucket(at, old, new);
            }
            if depth == 0 {
                break;
            }
            at = tree.parent(at);
            depth -= 1;
        }
    }

    fn move_bucket(&mut self, domain: DomainId, old: u32, new: u32) {
        let (word, bit) = (domain / 64, 1_u64 << (domain % 64));
        if old > 0 {
            self.buckets[(old as usize).min(LARGEST_BUCKET)][word] &= !bit;
        }
        if new > 0 {
            let value = (new as usize).min(LARGEST_BUCKET);
            if self.buckets.len() <= value {
                self.buckets.resize(value + 1, Vec::new());
            }
            let bucket = &mut self.buckets[value];
            if bucket.len() <= word {
                bucket.resize(word + 1, 0);
            }
            bucket[word] |= bit;
        }
    }
}

fn at_mut<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

/// All shapes and chains.
#[derive(Clone, Debug, Default)]
pub struct Index {
    shapes: Vec<Shape>,
    by_shape: BTreeMap<ShapeKey, ShapeId>,
    chains: Vec<Chain>,
    by_chain: BTreeMap<ChainKey, ChainId>,
    /// Cells by node and then shape.
    cells: Vec<Cell>,
    stride: usize,
    /// Nodes whose use changed, in order. Each shape takes them in when it is next needed: shapes that nobody asks for
    /// cost nothing, and a node that changes often is looked at once.
    log: Vec<Slot>,
    /// Counts how often everything was dropped: ids from before are void.
    pub generation: u64,
    /// While true, increases of fits are trials and wake nobody.
    pub quiet: bool,
}

impl Index {
    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self { generation: self.generation + 1, quiet: self.quiet, ..Self::default() };
    }

    /// Drops everything if it has grown beyond its bounds. Ids handed out before are void then.
    pub fn prune(&mut self) {
        if self.shapes.len() > MOST_SHAPES || self.chains.len() > MOST_CHAINS {
            self.clear();
        }
    }

    /// The shape with this key, built if need be.
    pub fn shape(&mut self, tree: &Tree, nodes: &[Option<NodeState>], key: &ShapeKey) -> ShapeId {
        if let Some(id) = self.by_shape.get(key).copied() {
            self.sync(tree, nodes, id);
            return id;
        }
        let id = self.shapes.len();
        self.widen(id + 1, nodes.len());
        self.by_shape.insert(key.clone(), id);
        let (count, empty) = (vec![0; tree.extent()], vec![0; tree.extent()]);
        let tally = BTreeMap::new();
        self.shapes.push(Shape {
            key: key.clone(),
            count,
            empty,
            tally,
            largest: 0,
            seen: self.log.len(),
            version: 0,
            chains: Vec::new(),
        });
        for (slot, node) in nodes.iter().enumerate() {
            if let Some(node) = node {
                let cell = self.shapes[id].key.cell(node);
                self.put(tree, slot, id, node.leaf, cell);
            }
        }
        id
    }

    /// Makes room for more shapes or nodes.
    fn widen(&mut self, shapes: usize, nodes: usize) {
        if shapes > self.stride {
            let stride = shapes.next_power_of_two().max(8);
            let mut cells = vec![Cell::NONE; nodes * stride];
            for (slot, row) in self.cells.chunks(self.stride.max(1)).enumerate() {
                cells[slot * stride..slot * stride + row.len()].copy_from_slice(row);
            }
            (self.cells, self.stride) = (cells, stride);
        }
        if self.cells.len() < nodes * self.stride {
            self.cells.resize(nodes * self.stride, Cell::NONE);
        }
    }

    /// The chain with this key, built if need be.
    pub fn chain(&mut self, tree: &Tree, nodes: &[Option<NodeState>], key: &ChainKey) -> ChainId {
        if let Some(id) = self.by_chain.get(key) {
            return *id;
        }
        let id = self.chains.len();
        let mut chain = Chain::new(key.clone());
        for (slot, node) in nodes.iter().enumerate() {
            if let Some(leaf) = node.as_ref().and_then(|node| node.leaf) {
                let cell = self.cells[slot * self.stride + key.shape];
                chain.change(tree, leaf, 0, cell.fit, false);
                chain.change(tree, leaf, 0, cell.empty, true);
            }
        }
        self.shapes[key.shape].chains.push(id);
        self.chains.push(chain);
        self.by_chain.insert(key.clone(), id);
        id
    }

    /// Replaces a cell and carries the difference up the tree.
    fn put(&mut self, tree: &Tree, slot: Slot, id: ShapeId, leaf: Option<DomainId>, new: Cell) {
        let cell = &mut self.cells[slot * self.stride + id];
        let old = std::mem::replace(cell, new);
        if old == new {
            return;
        }
        let shape = &mut self.shapes[id];
        if old.refusal != new.refusal {
            if let Some(count) = old.refusal.and_then(|refusal| shape.tally.get_mut(&refusal)) {
                *count -= 1;
            }
            if let Some(refusal) = new.refusal {
                *shape.tally.entry(refusal).or_insert(0) += 1;
            }
        }
        let Some(leaf) = leaf else { return };
        shape.largest = shape.largest.max(new.empty);
        if new.fit > old.fit && !self.quiet {
            shape.version += 1;
        }
        for (before, after, empty) in [(old.fit, new.fit, false), (old.empty, new.empty, true)] {
            if before == after {
                continue;
            }
            let delta = i64::from(after) - i64::from(before);
            let counts = if empty { &mut shape.empty } else { &mut shape.count };
            for domain in tree.ancestors(leaf) {
                let count = at_mut(counts, domain);
                *count = (i64::from(*count) + delta) as u32;
            }
            for chain in &shape.chains {
                self.chains[*chain].change(tree, leaf, before, after, empty);
            }
        }
    }

    /// A node's facts changed, or it entered the tree.
    pub fn admit(&mut self, tree: &Tree, slot: Slot, node: &NodeState) {
        self.widen(self.shapes.len(), slot + 1);
        for id in 0..self.shapes.len() {
            let cell = self.shapes[id].key.cell(node);
            self.put(tree, slot, id, node.leaf, cell);
        }
    }

    /// A node is about to leave its place in the tree.
    pub fn withdraw(&mut self, tree: &Tree, slot: Slot, leaf: DomainId) {
        self.widen(self.shapes.len(), slot + 1);
        for id in 0..self.shapes.len() {
            self.put(tree, slot, id, Some(leaf), Cell::NONE);
        }
    }

    /// Only a node's use changed: noted, and taken in by each shape when it is next needed.
    pub fn note(&mut self, slot: Slot) {
        if !self.shapes.is_empty() {
            self.log.push(slot);
        }
        if self.log.len() > LONGEST_LOG {
            self.clear();
        }
    }

    /// Brings a shape up to date.
    pub fn sync(&mut self, tree: &Tree, nodes: &[Option<NodeState>], id: ShapeId) {
        let from = self.shapes[id].seen;
        for at in from..self.log.len() {
            let slot = self.log[at];
            let Some(node) = nodes.get(slot).and_then(Option::as_ref).filter(|node| node.leaf.is_some())
            else {
                continue;
            };
            self.widen(self.shapes.len(), slot + 1);
            let mut cell = self.cells[slot * self.stride + id];
            self.shapes[id].key.refresh(&mut cell, node);
            self.put(tree, slot, id, node.leaf, cell);
        }
        self.shapes[id].seen = self.log.len();
    }

    /// Brings every shape up to date and empties the log.
    pub fn sync_all(&mut self, tree: &Tree, nodes: &[Option<NodeState>]) {
        for id in 0..self.shapes.len() {
            self.sync(tree, nodes, id);
        }
        self.log.clear();
        for shape in &mut self.shapes {
            shape.seen = 0;
        }
    }

    /// Hides a node from a shape until [`Self::admit`].
    pub fn hide(&mut self, tree: &Tree, slot: Slot, id: ShapeId, leaf: DomainId) {
        let mut cell = self.cells[slot * self.stride + id];
        cell.fit = 0;
        if !matches!(cell.refusal, Some(NodeRefusal::NotReady | NodeRefusal::Cordoned)) {
            cell.refusal = Some(NodeRefusal::Avoided);
        }
        self.put(tree, slot, id, Some(leaf), cell);
    }

    /// A node as a shape sees it.
    pub fn cell(&self, shape: ShapeId, slot: Slot) -> Cell {
        self.cells.get(slot * self.stride + shape).copied().unwrap_or(Cell::NONE)
    }

    /// Pods of a shape that fit a domain, rules ignored; now or empty.
    pub fn count(&self, shape: ShapeId, domain: DomainId, empty: bool) -> u32 {
        let shape = &self.shapes[shape];
        let counts = if empty { &shape.empty } else { &shape.count };
        counts.get(domain).copied().unwrap_or(0)
    }

    /// The most pods of a shape that any node would hold empty, or more.
    pub fn largest(&self, shape: ShapeId) -> u16 {
        self.shapes[shape].largest
    }

    /// Counts increases of a shape's fits.
    pub fn version(&self, shape: ShapeId) -> u64 {
        self.shapes[shape].version
    }

    /// Nodes by why none of a shape's pods fits.
    pub fn tally(&self, shape: ShapeId) -> BTreeMap<NodeRefusal, u32> {
        self.shapes[shape].tally.iter().filter(|(_, count)| **count > 0).map(|(r, c)| (*r, *c)).collect()
    }

    /// Blocks that come up to a domain, before its own rules.
    pub fn raw(&self, chain: ChainId, domain: DomainId, empty: bool) -> u32 {
        let chain = &self.chains[chain];
        let raw = if empty { &chain.empty } else { &chain.raw };
        raw.get(domain).copied().unwrap_or(0)
    }

    /// Blocks that close at a domain.
    pub fn slots(&self, chain: ChainId, domain: DomainId, depth: usize) -> u32 {
        self.raw(chain, domain, false) / self.chains[chain].key.ratios[depth]
    }

    /// The most blocks that a leaf domain holds (capped), and an upper bound only.
    pub fn largest_bucket(&self, chain: ChainId) -> usize {
        self.chains[chain].buckets.len().saturating_sub(1)
    }

    /// Leaf domains of which this many blocks fit, by id.
    pub fn bucket(&self, chain: ChainId, blocks: usize) -> impl Iterator<Item = DomainId> + '_ {
        let words = self.chains[chain].buckets.get(blocks).map_or(&[][..], Vec::as_slice);
        words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    at * 64 + bit
                })
            })
        })
    }

    /// Bytes held, roughly, for the benchmark's figure.
    pub fn bytes(&self) -> usize {
        let shapes: usize = self.shapes.iter().map(|s| 4 * (s.count.capacity() + s.empty.capacity())).sum();
        let chains: usize = self
            .chains
            .iter()
            .map(|c| {
                4 * (c.raw.capacity() + c.empty.capacity())
                    + c.buckets.iter().map(|b| 8 * b.capacity()).sum::<usize>()
            })
            .sum();
        shapes + chains + self.cells.capacity() * size_of::<Cell>()
    }
}
