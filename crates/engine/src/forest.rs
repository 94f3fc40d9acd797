//! The part of the tree that matters to one gang, flat and in post-order, with how many pods fit.
//!
//! ```text
//!   index counts ──build──▶ Forest (children before parents, the root last) ──▶ dp, greedy, layout
//! ```
//!
//! A gang of one role needs no nodes: its forest ends at leaf domains. Several roles share nodes, so theirs goes on to
//! the nodes.

use std::collections::BTreeSet;

use crate::{
    problem::Problem,
    spec::{RoleSpec, Seg},
    tree::{DomainId, Slot},
};

/// A domain or a node.
#[derive(Clone, Debug)]
pub struct Part {
    /// Depth in the tree; nodes are one deeper than leaf domains.
    pub depth: usize,
    /// The domain; for a node its leaf domain.
    pub domain: DomainId,
    /// The node, if it is one.
    pub slot: Option<Slot>,
    /// Parts inside it; none for a node, nor for a leaf domain whose nodes are not looked at.
    pub children: Vec<usize>,
    /// Pods of each role that fit, each role alone, in whole blocks of what must share a node; other rules ignored.
    pub fits: Vec<u64>,
    /// Whether nothing in it is used (of what the first role needs).
    pub untouched: bool,
}

/// The parts, children before parents; the last is the root. Empty if nothing fits anywhere.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    /// The parts.
    pub parts: Vec<Part>,
    /// Whether it ends at leaf domains.
    pub leaves_only: bool,
}

impl Forest {
    /// Builds the forest of everything inside the problem's top.
    pub fn build(problem: &Problem<'_>) -> Self {
        let mut forest = Self::empty(problem);
        forest.grow(problem, problem.top, |_| true);
        forest
    }

    /// As [`Self::build`], of some of the outermost domains only.
    pub fn build_of(problem: &Problem<'_>, outermost: &BTreeSet<DomainId>) -> Self {
        let mut forest = Self::empty(problem);
        forest.grow(problem, problem.top, |child| outermost.contains(&child));
        forest
    }

    fn empty(problem: &Problem<'_>) -> Self {
        let leaf = problem.cluster.tree.leaf_depth();
        let spec = &problem.on.spec;
        let plain = |role: &RoleSpec| role.segments.iter().all(|seg| seg.required || seg.depth <= leaf);
        let by_leaf = spec.rules.near.iter().all(|near| near.depth <= leaf)
            && spec.rules.spread.iter().all(|spread| spread.depth <= leaf);
        let leaves_only = spec.roles.len() == 1 && spec.within <= leaf && by_leaf && plain(&spec.roles[0]);
        Self { parts: Vec::new(), leaves_only }
    }

    /// Adds a domain with those of the domains right inside it that are `wanted`, and everything in these.
    fn grow(
        &mut self,
        problem: &Problem<'_>,
        id: DomainId,
        wanted: impl Fn(DomainId) -> bool,
    ) -> Option<usize> {
        let index = &problem.cluster.index;
        let shapes = || problem.on.ids.iter().map(|ids| ids.shape);
        if shapes().all(|shape| index.count(shape, id, false) == 0) {
            return None;
        }
        let domain = problem.cluster.tree.domain(id);
        let mut children = Vec::new();
        let fits: Vec<u64> = if domain.depth == problem.cluster.tree.leaf_depth() && self.leaves_only {
            let chunk = chunk(&problem.on.spec.roles[0], domain.depth);
            vec![u64::from(index.raw(problem.on.ids[0].loose, id, false)) * chunk]
        } else {
            children.extend(domain.nodes.iter().filter_map(|slot| self.grow_node(problem, id, *slot)));
            let inner = domain.children.iter().copied().filter(|child| wanted(*child));
            children.extend(inner.filter_map(|child| self.grow_all(problem, child)));
            let sum = |role| children.iter().map(|child| self.parts[*child].fits[role]).sum();
            (0..problem.on.ids.len()).map(sum).collect()
        };
        if fits.iter().all(|fit| *fit == 0) {
            return None;
        }
        let first = problem.on.ids[0].shape;
        let untouched = index.count(first, id, false) == index.count(first, id, true);
        Some(self.push(Part { depth: domain.depth, domain: id, slot: None, children, fits, untouched }))
    }

    fn grow_all(&mut self, problem: &Problem<'_>, id: DomainId) -> Option<usize> {
        self.grow(problem, id, |_| true)
    }

    fn grow_node(&mut self, problem: &Problem<'_>, leaf: DomainId, slot: Slot) -> Option<usize> {
        let index = &problem.cluster.index;
        let depth = problem.cluster.tree.leaf_depth() + 1;
        let fits: Vec<u64> =
            problem.on.ids.iter().map(|ids| u64::from(index.cell(ids.shape, slot).fit)).collect();
        if fits.iter().all(|fit| *fit == 0) {
            return None;
        }
        let cell = index.cell(problem.on.ids[0].shape, slot);
        let untouched = cell.fit == cell.empty;
        Some(self.push(Part { depth, domain: leaf, slot: Some(slot), children: Vec::new(), fits, untouched }))
    }

    fn push(&mut self, part: Part) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Blocks of each part, floors taken at every rule from the inside out: per part, how many blocks of the
    /// outermost size closed so far. `sizes` are block sizes by depth, `fits` gives the pods of a part without
    /// children.
    pub fn floors(&self, sizes: &[u64], fits: impl Fn(usize) -> u64) -> Vec<u64> {
        self.floors_within(sizes, fits, |_, blocks| blocks)
    }

    /// As [`Self::floors`], where a part takes no more blocks than `cap` leaves of those that fit.
    pub fn floors_within(
        &self,
        sizes: &[u64],
        fits: impl Fn(usize) -> u64,
        cap: impl Fn(usize, u64) -> u64,
    ) -> Vec<u64> {
        let mut blocks = vec![0; self.parts.len()];
        for (index, part) in self.parts.iter().enumerate() {
            let inner: u64 = if part.children.is_empty() {
                fits(index) / sizes[part.depth + 1]
            } else {
                part.children.iter().map(|child| blocks[*child]).sum()
            };
            blocks[index] = cap(index, inner / ratio(sizes, part.depth));
        }
        blocks
    }
}

/// Pods of a block that must share a node.
pub fn chunk(role: &RoleSpec, leaf_depth: usize) -> u64 {
    block_sizes(role, leaf_depth, false)[leaf_depth + 1]
}

/// Size of the blocks that are closed after each depth (index), from the root to the node; one more entry, 1, at the
/// end for what comes before the node. Preferred rules count when `strict`.
pub fn block_sizes(role: &RoleSpec, leaf_depth: usize, strict: bool) -> Vec<u64> {
    sizes_where(role, leaf_depth, |seg| strict || seg.required)
}

/// As [`block_sizes`], for the rules that `counts` accepts.
pub fn sizes_where(role: &RoleSpec, leaf_depth: usize, counts: impl Fn(&Seg) -> bool) -> Vec<u64> {
    let mut sizes = vec![1_u64; leaf_depth + 3];
    for depth in (0..=leaf_depth + 1).rev() {
        sizes[depth] = role
            .segments
            .iter()
            .filter(|seg| seg.depth >= depth && counts(seg))
            .map(|seg| u64::from(seg.pods))
            .max()
            .unwrap_or(1);
    }
    sizes
}

/// How many of the blocks that come up to a depth make one that leaves it.
pub fn ratio(sizes: &[u64], depth: usize) -> u64 {
    sizes[depth] / sizes[depth + 1]
}
