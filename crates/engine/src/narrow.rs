//! Gangs that look-ups do not place, in large clusters: counts name the few domains that may hold all of such a gang, and
//! only these are searched.
//!
//! ```text
//!   counts of each role alone ─▶ innermost domains where every role's most units fit, tightest first ─▶ searched one by one
//!                             └▶ none: the outermost domains with most room, together ─▶ searched
//!                                                   └▶ nothing with every unit and every block whole: None
//! ```
//!
//! What is found has the most units that are allowed and no broken block, in an innermost domain as far as any was tried.
//! What is not found may still exist: then the whole cluster is searched.

use std::collections::BTreeSet;

use crate::{
    cost::Packing,
    dp::{Best, Search},
    forest::{self, Forest},
    place,
    problem::{OnClass, Problem},
    spec::{Objective, RoleSpec},
    tree::{DomainId, ROOT},
};

/// Domains of a depth that are searched.
const MOST_TRIES: usize = 4;
/// How much more room than is needed the outermost domains have that are searched together.
const AMPLE: u64 = 2;

/// What was found.
pub struct Narrow {
    /// The gang with its Preferred rules as Required ones: they are kept.
    pub on: OnClass,
    /// The parts that were searched.
    pub forest: Forest,
    /// Where the pods go.
    pub best: Best,
}

/// Places every unit that the gang can use, all blocks whole, if few domains suffice. `steps` bounds the exact search.
pub fn place(problem: &Problem<'_>, steps: u64) -> Option<Narrow> {
    let spec = &problem.on.spec;
    if !spec.order.contains(&Objective::Span) || spec.within > problem.cluster.tree.leaf_depth() {
        return None;
    }
    let on = strict(problem.on);
    let narrow = Problem { on: &on, ..*problem };
    let found = inside_one(&narrow, steps).or_else(|| inside_several(&narrow));
    found.map(|(forest, best)| Narrow { on, forest, best })
}

/// Preferred rules as Required ones.
fn strict(on: &OnClass) -> OnClass {
    let mut on = on.clone();
    for (role, ids) in on.spec.roles.iter_mut().zip(&mut on.ids) {
        role.segments.iter_mut().for_each(|seg| seg.required = true);
        ids.loose = ids.strict;
    }
    on
}

/// Pods of each role alone, in whole blocks, that fit a domain.
struct Alone<'a> {
    problem: &'a Problem<'a>,
    /// Block sizes by role and depth.
    sizes: Vec<Vec<u64>>,
    /// Pods of each role's most units.
    wanted: Vec<u64>,
}

impl<'a> Alone<'a> {
    fn new(problem: &'a Problem<'a>) -> Self {
        let leaf = problem.cluster.tree.leaf_depth();
        let roles = &problem.on.spec.roles;
        let most = |role: &RoleSpec| u64::from(role.max()) * u64::from(role.pods);
        Self {
            problem,
            sizes: roles.iter().map(|role| forest::block_sizes(role, leaf, true)).collect(),
            wanted: roles.iter().map(most).collect(),
        }
    }

    fn pods(&self, role: usize, domain: DomainId, depth: usize) -> u64 {
        let raw = self.problem.cluster.index.raw(self.problem.on.ids[role].loose, domain, false);
        let sizes = &self.sizes[role];
        u64::from(raw) / forest::ratio(sizes, depth) * sizes[depth]
    }

    /// Whether every role alone fits with its most units.
    fn fits(&self, domain: DomainId, depth: usize) -> bool {
        (0..self.wanted.len()).all(|role| self.pods(role, domain, depth) >= self.wanted[role])
    }

    /// Room of all roles together.
    fn room(&self, domain: DomainId) -> u64 {
        let index = &self.problem.cluster.index;
        self.problem.on.ids.iter().map(|ids| u64::from(index.count(ids.shape, domain, false))).sum()
    }

    /// Whether so many units are all that the gang can use.
    fn is_all(&self, units: &[u32]) -> bool {
        let roles = &self.problem.on.spec.roles;
        units.iter().zip(roles).all(|(units, role)| *units == role.max())
    }
}

/// From the inside out, the tightest domains that may hold it all.
fn inside_one(problem: &Problem<'_>, steps: u64) -> Option<(Forest, Best)> {
    let tree = &problem.cluster.tree;
    let alone = Alone::new(problem);
    let outermost = problem.on.spec.within.max(tree.domain(problem.top).depth + 1);
    for depth in (outermost..=tree.leaf_depth()).rev() {
        let fitting = tree.at_depth(depth).iter().copied().filter(|id| alone.fits(*id, depth));
        let fitting = fitting.filter(|id| problem.is_inside(*id));
        let mut candidates: Vec<(u64, DomainId)> = fitting.map(|id| (alone.room(id), id)).collect();
        if candidates.len() > MOST_TRIES {
            candidates.select_nth_unstable(MOST_TRIES);
            candidates.truncate(MOST_TRIES);
        }
        candidates.sort_unstable();
        let found = candidates.into_iter().filter_map(|(_, top)| search(&Problem { top, ..*problem }, steps));
        let all = found.filter(|(_, best)| alone.is_all(&best.units));
        let found = all.min_by_key(|(forest, best)| leaves(forest, best));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Leaf domains with pods.
fn leaves(forest: &Forest, best: &Best) -> usize {
    let used = (0..forest.parts.len()).filter(|part| best.pods.iter().any(|pods| pods[*part] > 0));
    used.map(|part| forest.parts[part].domain).collect::<BTreeSet<_>>().len()
}

/// The best inside the problem's top.
fn search(problem: &Problem<'_>, steps: u64) -> Option<(Forest, Best)> {
    let forest = Forest::build(problem);
    if forest.parts.is_empty() {
        return None;
    }
    let packing = Packing::new(&problem.cluster.tree, &forest, &problem.on.spec);
    let paid = BTreeSet::new();
    let exact = Search::new(problem, &forest, &packing, &paid);
    let best =
        if exact.steps(steps).is_some() { exact.run() } else { place::without_exact(problem, &forest).ok() };
    best.map(|best| (forest, best))
}

/// The outermost domains with most room, as many as give ample room to every role.
fn inside_several(problem: &Problem<'_>) -> Option<(Forest, Best)> {
    let tree = &problem.cluster.tree;
    if problem.on.spec.within > 0 || problem.top != ROOT || tree.leaf_depth() == 0 {
        return None;
    }
    let alone = Alone::new(problem);
    let mut domains: Vec<(u64, DomainId)> =
        tree.at_depth(1).iter().map(|id| (alone.room(*id), *id)).collect();
    domains.sort_unstable_by_key(|(room, id)| (std::cmp::Reverse(*room), *id));
    let mut missing: Vec<u64> = alone.wanted.iter().map(|pods| pods * AMPLE).collect();
    let mut kept = BTreeSet::new();
    for (_, domain) in &domains {
        if missing.iter().all(|pods| *pods == 0) {
            break;
        }
        for (role, pods) in missing.iter_mut().enumerate() {
            *pods = pods.saturating_sub(alone.pods(role, *domain, 1));
        }
        kept.insert(*domain);
    }
    if kept.len() == domains.len() {
        // That is the whole cluster.
        return None;
    }
    let forest = Forest::build_of(problem, &kept);
    let best = place::without_exact(problem, &forest).ok()?;
    alone.is_all(&best.units).then_some((forest, best))
}
