//! The part of the tree that matters to one gang, flat and in post-order, with how many pods fit.
//!
//! ```text
//!   Cluster + Spec + class ──build──▶ Forest (children before parents, the root last) ──▶ dp, greedy, layout
//! ```

use muster_model::{AcceleratorClass, Gang};

use crate::{
    cluster::Cluster,
    spec::{RoleSpec, Spec},
    tree::{DomainId, ROOT, Slot},
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
    /// Parts inside it.
    pub children: Vec<usize>,
    /// Pods of each role that fit, each role alone, rules ignored.
    pub fits: Vec<u64>,
    /// Whether nothing in it is used (of what the first role needs).
    pub untouched: bool,
}

/// The parts, children before parents; the last is the root. Empty if nothing fits anywhere.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    /// The parts.
    pub parts: Vec<Part>,
}

/// What a pod of each role may use.
pub struct Eligibility<'a> {
    /// The gang.
    pub gang: &'a Gang,
    /// The class in question.
    pub class: Option<&'a AcceleratorClass>,
    /// Judge as if the cluster were empty and healthy.
    pub empty: bool,
}

impl Forest {
    /// Builds the forest of everything inside `top`.
    pub fn build(cluster: &Cluster, spec: &Spec, eligible: &Eligibility<'_>, top: DomainId) -> Self {
        let mut forest = Self::default();
        forest.grow(cluster, spec, eligible, top);
        forest
    }

    /// Builds the forest of the whole cluster.
    pub fn whole(cluster: &Cluster, spec: &Spec, eligible: &Eligibility<'_>) -> Self {
        Self::build(cluster, spec, eligible, ROOT)
    }

    fn grow(
        &mut self,
        cluster: &Cluster,
        spec: &Spec,
        eligible: &Eligibility<'_>,
        id: DomainId,
    ) -> Option<usize> {
        let domain = cluster.tree.domain(id);
        let mut children = Vec::new();
        let mut untouched = true;
        for slot in &domain.nodes {
            let (fits, unused) = node_fits(cluster, spec, eligible, *slot);
            untouched &= unused;
            if fits.iter().any(|fit| *fit > 0) {
                children.push(self.push(Part {
                    depth: domain.depth + 1,
                    domain: id,
                    slot: Some(*slot),
                    children: Vec::new(),
                    fits,
                    untouched: unused,
                }));
            }
        }
        for child in domain.children.values() {
            if let Some(part) = self.grow(cluster, spec, eligible, *child) {
                untouched &= self.parts[part].untouched;
                children.push(part);
            }
        }
        if children.is_empty() {
            return None;
        }
        let fits = (0..spec.roles.len())
            .map(|role| children.iter().map(|child| self.parts[*child].fits[role]).sum())
            .collect();
        Some(self.push(Part { depth: domain.depth, domain: id, slot: None, children, fits, untouched }))
    }

    fn push(&mut self, part: Part) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Index of the root.
    pub fn root(&self) -> Option<usize> {
        self.parts.len().checked_sub(1)
    }

    /// Blocks of each part, floors taken at every rule from the inside out: per part, how many blocks of the
    /// outermost size closed so far. `fits` gives a node's pods. Preferred rules count when `strict`.
    pub fn floors(
        &self,
        role: &RoleSpec,
        leaf_depth: usize,
        strict: bool,
        fits: impl Fn(usize) -> u64,
    ) -> Vec<u64> {
        let sizes = block_sizes(role, leaf_depth, strict);
        let mut blocks = vec![0; self.parts.len()];
        for (index, part) in self.parts.iter().enumerate() {
            let inner: u64 = if part.slot.is_some() {
                fits(index)
            } else {
                part.children.iter().map(|child| blocks[*child]).sum()
            };
            blocks[index] = inner / ratio(&sizes, part.depth);
        }
        blocks
    }
}

/// Size of the blocks that are closed after each depth (index), from the root to the node; one more entry, 1, at the
/// end for what comes before the node.
pub fn block_sizes(role: &RoleSpec, leaf_depth: usize, strict: bool) -> Vec<u64> {
    let mut sizes = vec![1_u64; leaf_depth + 3];
    for depth in (0..=leaf_depth + 1).rev() {
        sizes[depth] = role
            .segments
            .iter()
            .filter(|seg| seg.depth >= depth && (strict || seg.required))
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

/// Pods of each role that fit a node, and whether nothing there is used of what the first role needs.
fn node_fits(cluster: &Cluster, spec: &Spec, eligible: &Eligibility<'_>, slot: Slot) -> (Vec<u64>, bool) {
    let none = || (vec![0; spec.roles.len()], false);
    let Some(node) = cluster.node(slot) else { return none() };
    let Some(facts) = node.facts.as_ref() else { return none() };
    let mut unused = true;
    let fits = spec
        .roles
        .iter()
        .zip(&eligible.gang.roles)
        .map(|(role, of)| {
            if Cluster::refusal(facts, of, eligible.class, &eligible.gang.avoid, eligible.empty).is_some() {
                return 0;
            }
            let fit = u64::from(node.fits(&role.request, eligible.empty));
            unused &= fit == u64::from(node.fits(&role.request, true));
            fit
        })
        .collect();
    (fits, unused)
}
