//! Spare nodes: held near the units they serve, so that a lost node is replaced inside its domain.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    problem::Problem,
    tree::{DomainId, Slot},
};

/// Spare pods' worth of nodes per role name: the nearest to the role's pods that the gang does not use. Fewer where
/// there are no more.
pub fn choose(problem: &Problem<'_>, used: &[Vec<Slot>]) -> BTreeMap<String, Vec<Slot>> {
    let mut taken: BTreeSet<Slot> = BTreeSet::new();
    let roles = &problem.on.spec.roles;
    if roles.iter().all(|role| role.spares == 0) {
        return BTreeMap::new();
    }
    taken.extend(used.iter().flatten());
    let mut all = BTreeMap::new();
    for (index, role) in roles.iter().enumerate().filter(|(_, role)| role.spares > 0) {
        // A spare may become one of the role's pods, and must lie where these must.
        let spec = &problem.on.spec;
        let near = spec.rules.near.iter().filter(|near| near.roles.contains(&index)).map(|near| near.depth);
        let depth = near.fold(spec.within, usize::max);
        let shape = problem.on.ids[index].shape;
        let mut search = Search { problem, shape, depth, taken: &mut taken, found: Vec::new() };
        search.outwards(&used[index], role.spares as usize);
        if !search.found.is_empty() {
            all.insert(role.name.clone(), search.found);
        }
    }
    all
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    shape: usize,
    /// No domain further out than this depth is looked at.
    depth: usize,
    taken: &'a mut BTreeSet<Slot>,
    found: Vec<Slot>,
}

impl Search<'_> {
    /// Looks in the domains around the pods, from the inside out.
    fn outwards(&mut self, pods: &[Slot], wanted: usize) {
        let leaf = |slot: &Slot| self.problem.cluster.node(*slot).and_then(|node| node.leaf);
        let mut ring: BTreeSet<DomainId> = pods.iter().filter_map(leaf).collect();
        let tree = &self.problem.cluster.tree;
        for depth in (self.depth..=tree.leaf_depth()).rev() {
            for domain in &ring {
                self.collect(*domain, wanted);
            }
            if self.found.len() >= wanted || depth == self.depth || ring.contains(&self.problem.top) {
                return;
            }
            ring = ring.into_iter().map(|domain| tree.parent(domain)).collect();
        }
    }

    fn collect(&mut self, domain: DomainId, wanted: usize) {
        let index = &self.problem.cluster.index;
        if self.found.len() >= wanted || index.count(self.shape, domain, false) == 0 {
            return;
        }
        let domain = self.problem.cluster.tree.domain(domain);
        for slot in &domain.nodes {
            let fit = usize::from(index.cell(self.shape, *slot).fit).min(wanted - self.found.len());
            if fit > 0 && self.taken.insert(*slot) {
                self.found.extend(std::iter::repeat_n(*slot, fit));
            }
        }
        for child in &domain.children {
            self.collect(*child, wanted);
        }
    }
}
