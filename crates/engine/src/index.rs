//! How many pods of each shape fit, per node and per domain, kept up to date change by change.
//!
//! ```text
//!   node changed ─▶ cell per (node, shape): fits now, fits empty, refusal
//!                     └─ differs? ─▶ shape: pods per domain, up the tree
//!                                    └─▶ chain (shape + segments): blocks per domain, floors taken;
//!                                        leaf domains by blocks, and how many of each inside every outer domain
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
    chain::{Chain, ChainKey, at_mut, more_blocks},
    cluster::{Amounts, NodeState},
    repulsion::TermId,
    tree::{DomainId, Slot, Tree},
};

/// Shapes kept at once. Real clusters have a few; beyond this all are dropped and built anew as needed.
const MOST_SHAPES: usize = 64;
/// Places in a row of cells at first.
const FEW_SHAPES: usize = 4;
/// Chains kept at once.
const MOST_CHAINS: usize = 256;
/// Changes noted before everything is dropped rather than caught up with.
const LONGEST_LOG: usize = 1_000_000;
/// Index of a shape.
pub type ShapeId = usize;
/// Index of a chain.
pub type ChainId = usize;

/// What decides where a pod fits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShapeKey {
    /// What one pod asks.
    pub request: Amounts,
    /// Class of its accelerators, with the column of their resource; `None` without any.
    pub class: Option<(usize, AcceleratorClass)>,
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
        class: Option<(usize, &AcceleratorClass)>,
        request: Amounts,
        repelled_by: Vec<TermId>,
    ) -> Self {
        Self {
            request,
            class: class.filter(|_| role.devices > 0).map(|(column, class)| (column, class.clone())),
            selector: role.node_selector.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            affinity: role.affinity.clone(),
            tolerations: role.tolerations.clone(),
            repelled_by,
        }
    }

    /// Why a node would take none of these pods even if it were empty and healthy, room apart.
    fn lasting_refusal(&self, node: &NodeState, facts: &Node) -> Option<NodeRefusal> {
        if let Some((column, class)) = &self.class
            && (node.left(*column, true) <= 0 || !is_of_class(facts, class))
        {
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
        let Some(facts) = node.facts.as_deref().filter(|_| node.leaf.is_some()) else { return Cell::NONE };
        let lasting = self.lasting_refusal(node, facts);
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
        let fit = if refusal.is_none() { node.fits(&self.request, false) as u16 } else { 0 };
        Cell { fit, empty, refusal: refusal.or((fit == 0).then_some(NodeRefusal::Busy)) }
    }
}

/// Whether a node's labels are those of a class.
fn is_of_class(facts: &Node, class: &AcceleratorClass) -> bool {
    class.requirements.iter().all(|requirement| {
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
}

impl Cell {
    const NONE: Self = Self { fit: 0, empty: 0, refusal: None };
}

/// Beside a fit of 0: none fits whatever leaves. Fits are at most [`crate::MAX_PODS_PER_NODE`].
const BLOCKED: u16 = 1 << 15;

/// What of a cell does not depend on the node's use, in two bytes: there is one for each node and shape. The low bits are
/// the pods that would fit empty; above them stands 1 + the refusal's place among all, or 0. Busy is not noted.
#[derive(Clone, Copy, Debug)]
struct Facts(u16);

/// Bits that a number of pods on a node takes.
const FIT_BITS: u32 = 11;
const _: () =
    assert!(crate::MAX_PODS_PER_NODE < 1 << FIT_BITS && NodeRefusal::ALL.len() < 1 << (16 - FIT_BITS));

impl Facts {
    const NONE: Self = Self(0);

    fn of(cell: Cell) -> Self {
        let noted = cell.refusal.filter(|refusal| *refusal != NodeRefusal::Busy);
        Self(cell.empty | noted.map_or(0, |refusal| (refusal as u16 + 1) << FIT_BITS))
    }

    fn empty(self) -> u16 {
        self.0 & ((1 << FIT_BITS) - 1)
    }

    fn refusal(self) -> Option<NodeRefusal> {
        let place = usize::from(self.0 >> FIT_BITS).checked_sub(1)?;
        NodeRefusal::ALL.get(place).copied()
    }
}

/// A shape with its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    key: ShapeKey,
    /// Pods per domain, now and empty.
    count: Vec<u32>,
    empty: Vec<u32>,
    /// Nodes by refusal, in the order of [`NodeRefusal::ALL`].
    tally: [u32; NodeRefusal::ALL.len()],
    /// The most pods that any node would hold empty (never lowered).
    largest: u16,
    /// How much of the index's log of changed nodes it has taken in.
    seen: usize,
    /// Counts increases of fits: whoever was refused before one may be asked again.
    version: u64,
    chains: Vec<ChainId>,
}

impl Shape {
    /// More (or fewer) pods fit a leaf domain, now or empty.
    fn count_pods(&mut self, tree: &Tree, leaf: DomainId, delta: i64, empty: bool) {
        let counts = if empty { &mut self.empty } else { &mut self.count };
        for domain in tree.ancestors(leaf) {
            let count = at_mut(counts, domain);
            *count = (i64::from(*count) + delta) as u32;
        }
    }

    /// Counts a node's refusal in (`true`) or out.
    fn count_refusal(&mut self, refusal: Option<NodeRefusal>, add: bool) {
        let Some(refusal) = refusal else { return };
        let count = &mut self.tally[refusal as usize];
        *count = if add { *count + 1 } else { *count - 1 };
    }
}

/// Slots that stand together and lie in one leaf domain.
fn runs<'a>(nodes: &'a [Option<NodeState>], log: &'a [Slot]) -> impl Iterator<Item = &'a [Slot]> {
    let leaf = |slot: &Slot| nodes.get(*slot).and_then(Option::as_ref).and_then(|node| node.leaf);
    log.chunk_by(move |one, other| leaf(one) == leaf(other))
}

/// All shapes and chains.
#[derive(Clone, Debug, Default)]
pub struct Index {
    shapes: Vec<Shape>,
    by_shape: BTreeMap<ShapeKey, ShapeId>,
    chains: Vec<Chain>,
    by_chain: BTreeMap<ChainKey, ChainId>,
    /// By node and then shape: how many pods fit now, or [`BLOCKED`].
    fits: Vec<u16>,
    /// The rest of the cells, in the same places.
    facts: Vec<Facts>,
    stride: usize,
    /// Nodes whose use changed, in order. Each shape takes them in when it is next needed: shapes that nobody asks for
    /// cost nothing, and a node that changes often is looked at once.
    log: Vec<Slot>,
    /// How much of the log some shape has taken in.
    taken: usize,
    /// Scratch: for each chain of a shape, blocks that came.
    more: Vec<i64>,
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
        self.taken = self.log.len();
        self.by_shape.insert(key.clone(), id);
        let mut shape = Shape {
            key: key.clone(),
            count: vec![0; tree.extent()],
            empty: vec![0; tree.extent()],
            tally: [0; NodeRefusal::ALL.len()],
            largest: 0,
            seen: self.log.len(),
            version: 0,
            chains: Vec::new(),
        };
        // Node by node into its leaf domain, then each leaf domain up the tree once.
        let mut pods = vec![(0, 0); tree.extent()];
        for (slot, node) in nodes.iter().enumerate() {
            let Some((node, leaf)) = node.as_ref().and_then(|node| Some((node, node.leaf?))) else {
                continue;
            };
            let cell = shape.key.cell(node);
            self.store(slot, id, cell);
            shape.count_refusal(cell.refusal, true);
            shape.largest = shape.largest.max(cell.empty);
            pods[leaf].0 += i64::from(cell.fit);
            pods[leaf].1 += i64::from(cell.empty);
        }
        for leaf in tree.at_depth(tree.leaf_depth()) {
            shape.count_pods(tree, *leaf, pods[*leaf].0, false);
            shape.count_pods(tree, *leaf, pods[*leaf].1, true);
        }
        self.shapes.push(shape);
        id
    }

    fn store(&mut self, slot: Slot, id: ShapeId, cell: Cell) {
        let at = slot * self.stride + id;
        let blocked = cell.fit == 0 && cell.refusal != Some(NodeRefusal::Busy);
        self.fits[at] = if blocked { BLOCKED } else { cell.fit };
        self.facts[at] = Facts::of(cell);
    }

    /// Makes room for more shapes or nodes.
    fn widen(&mut self, shapes: usize, nodes: usize) {
        if shapes > self.stride {
            // Each step copies all rows, and each place of a row is there for every node.
            let stride =
                if shapes <= FEW_SHAPES { FEW_SHAPES } else { shapes.next_multiple_of(2 * FEW_SHAPES) };
            let mut fits = vec![BLOCKED; nodes * stride];
            let mut facts = vec![Facts::NONE; nodes * stride];
            for (slot, row) in self.fits.chunks(self.stride.max(1)).enumerate() {
                fits[slot * stride..slot * stride + row.len()].copy_from_slice(row);
            }
            for (slot, row) in self.facts.chunks(self.stride.max(1)).enumerate() {
                facts[slot * stride..slot * stride + row.len()].copy_from_slice(row);
            }
            (self.fits, self.facts, self.stride) = (fits, facts, stride);
        }
        if self.fits.len() < nodes * self.stride {
            self.fits.resize(nodes * self.stride, BLOCKED);
            self.facts.resize(nodes * self.stride, Facts::NONE);
        }
    }

    /// The chain with this key, built if need be.
    pub fn chain(&mut self, tree: &Tree, nodes: &[Option<NodeState>], key: &ChainKey) -> ChainId {
        if let Some(id) = self.by_chain.get(key) {
            return *id;
        }
        let id = self.chains.len();
        let mut chain = Chain::new(key.clone());
        let mut blocks = vec![(0, 0); tree.extent()];
        for (slot, node) in nodes.iter().enumerate() {
            if let Some(leaf) = node.as_ref().and_then(|node| node.leaf) {
                let cell = self.cell(key.shape, slot);
                blocks[leaf].0 += more_blocks(key.chunk, 0, cell.fit);
                blocks[leaf].1 += more_blocks(key.chunk, 0, cell.empty);
            }
        }
        for leaf in tree.at_depth(tree.leaf_depth()) {
            chain.change(tree, *leaf, blocks[*leaf].0, false);
            chain.change(tree, *leaf, blocks[*leaf].1, true);
        }
        self.shapes[key.shape].chains.push(id);
        self.chains.push(chain);
        self.by_chain.insert(key.clone(), id);
        id
    }

    /// Replaces a cell and carries the difference up the tree.
    fn put(&mut self, tree: &Tree, slot: Slot, id: ShapeId, leaf: Option<DomainId>, new: Cell) {
        let old = self.cell(id, slot);
        if old == new {
            return;
        }
        self.store(slot, id, new);
        let shape = &mut self.shapes[id];
        if old.refusal != new.refusal {
            shape.count_refusal(old.refusal, false);
            shape.count_refusal(new.refusal, true);
        }
        let Some(leaf) = leaf else { return };
        shape.largest = shape.largest.max(new.empty);
        self.carry(tree, id, leaf, (old.fit, new.fit), false);
        self.carry(tree, id, leaf, (old.empty, new.empty), true);
    }

    /// Carries another number of pods that fit a node up the tree, now or empty.
    fn carry(&mut self, tree: &Tree, id: ShapeId, leaf: DomainId, (before, after): (u16, u16), empty: bool) {
        if before == after {
            return;
        }
        let shape = &mut self.shapes[id];
        if after > before && !empty && !self.quiet {
            shape.version += 1;
        }
        shape.count_pods(tree, leaf, i64::from(after) - i64::from(before), empty);
        for chain in &shape.chains {
            let chain = &mut self.chains[*chain];
            chain.change(tree, leaf, more_blocks(chain.key.chunk, before, after), empty);
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
        let again = self.taken < self.log.len() && self.log.last() == Some(&slot);
        if !self.shapes.is_empty() && !again {
            self.log.push(slot);
        }
        if self.log.len() > LONGEST_LOG {
            self.clear();
        }
    }

    /// Brings a shape up to date.
    pub fn sync(&mut self, tree: &Tree, nodes: &[Option<NodeState>], id: ShapeId) {
        let log = std::mem::take(&mut self.log);
        for slots in runs(nodes, &log[self.shapes[id].seen..]) {
            self.refresh(tree, nodes, slots, id);
        }
        self.log = log;
        self.shapes[id].seen = self.log.len();
        self.taken = self.log.len();
    }

    /// Brings every shape up to date and empties the log.
    pub fn sync_all(&mut self, tree: &Tree, nodes: &[Option<NodeState>]) {
        let mut log = std::mem::take(&mut self.log);
        let first = self.shapes.iter().map(|shape| shape.seen).min().unwrap_or(log.len());
        // What is known of a node stays near while all shapes look at it. To look again at what one has seen does no harm.
        for slots in runs(nodes, &log[first..]) {
            for id in 0..self.shapes.len() {
                self.refresh(tree, nodes, slots, id);
            }
        }
        log.clear();
        (self.log, self.taken) = (log, 0);
        for shape in &mut self.shapes {
            shape.seen = 0;
        }
    }

    /// Takes in that the use of some nodes of one leaf domain changed. What they add up to is carried up the tree once.
    fn refresh(&mut self, tree: &Tree, nodes: &[Option<NodeState>], slots: &[Slot], id: ShapeId) {
        let shape = &mut self.shapes[id];
        let (mut leaf, mut pods, mut rose) = (None, 0, false);
        self.more.clear();
        self.more.resize(shape.chains.len(), 0);
        for slot in slots {
            let Some(node) = nodes.get(*slot).and_then(Option::as_ref) else { continue };
            // A node that is in no domain is blocked or has no cell.
            let Some(fit) = self.fits.get_mut(slot * self.stride + id).filter(|fit| **fit != BLOCKED) else {
                continue;
            };
            let (old, new) = (*fit, node.fits(&shape.key.request, false) as u16);
            if old == new {
                continue;
            }
            *fit = new;
            if old == 0 || new == 0 {
                shape.count_refusal(Some(NodeRefusal::Busy), new == 0);
            }
            leaf = node.leaf;
            rose |= new > old;
            pods += i64::from(new) - i64::from(old);
            for (more, chain) in self.more.iter_mut().zip(&shape.chains) {
                *more += more_blocks(self.chains[*chain].key.chunk, old, new);
            }
        }
        let Some(leaf) = leaf else { return };
        shape.version += u64::from(rose && !self.quiet);
        if pods != 0 {
            shape.count_pods(tree, leaf, pods, false);
        }
        for (more, chain) in self.more.iter().zip(&shape.chains) {
            self.chains[*chain].change(tree, leaf, *more, false);
        }
    }

    /// Hides a node from a shape until [`Self::admit`].
    pub fn hide(&mut self, tree: &Tree, slot: Slot, id: ShapeId, leaf: DomainId) {
        let mut cell = self.cell(id, slot);
        cell.fit = 0;
        if !matches!(cell.refusal, Some(NodeRefusal::NotReady | NodeRefusal::Cordoned)) {
            cell.refusal = Some(NodeRefusal::Avoided);
        }
        self.put(tree, slot, id, Some(leaf), cell);
    }

    /// A node as a shape sees it.
    pub fn cell(&self, shape: ShapeId, slot: Slot) -> Cell {
        let at = slot * self.stride + shape;
        let (Some(fit), Some(facts)) = (self.fits.get(at), self.facts.get(at)) else { return Cell::NONE };
        let (fit, busy) = if *fit == BLOCKED { (0, None) } else { (*fit, Some(NodeRefusal::Busy)) };
        Cell { fit, empty: facts.empty(), refusal: facts.refusal().or(busy.filter(|_| fit == 0)) }
    }

    /// Pods of a shape that fit a node now.
    pub fn fit(&self, shape: ShapeId, slot: Slot) -> u16 {
        self.fits.get(slot * self.stride + shape).map_or(0, |fit| fit & !BLOCKED)
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

    /// Whether two shapes differ in nothing but what a pod asks: the same nodes are theirs, room apart.
    pub fn same_nodes(&self, one: ShapeId, other: ShapeId) -> bool {
        // Field by field, so that a new one is not forgotten.
        let ShapeKey { request: _, class, selector, affinity, tolerations, repelled_by } =
            &self.shapes[one].key;
        let key = &self.shapes[other].key;
        one == other
            || *class == key.class
                && *selector == key.selector
                && *affinity == key.affinity
                && *tolerations == key.tolerations
                && *repelled_by == key.repelled_by
    }

    /// Counts increases of a shape's fits.
    pub fn version(&self, shape: ShapeId) -> u64 {
        self.shapes[shape].version
    }

    /// Nodes by why none of a shape's pods fits.
    pub fn tally(&self, shape: ShapeId) -> BTreeMap<NodeRefusal, u32> {
        let all = NodeRefusal::ALL.into_iter().zip(self.shapes[shape].tally);
        all.filter(|(_, count)| *count > 0).collect()
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

    /// How many leaf domains inside an outer one have each number of blocks: by blocks, capped at [`LARGEST_BUCKET`].
    /// Those that have none are not counted.
    pub fn histogram(&self, chain: ChainId, domain: DomainId) -> &[u32] {
        self.chains[chain].histograms.get(domain).map_or(&[], Vec::as_slice)
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
                    + c.histograms.iter().map(|h| size_of_val(h) + 4 * h.capacity()).sum::<usize>()
            })
            .sum();
        let cells = self.fits.capacity() * size_of::<u16>() + self.facts.capacity() * size_of::<Facts>();
        shapes + chains + cells
    }
}
