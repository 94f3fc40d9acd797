//! Why a gang is not placed: the binding constraint and the nearest misses, as one [`Reason`].
//!
//! ```text
//!   index counts now and empty ─▶ short of what? ─▶ NoNodeFits | SegmentTooLarge | InsufficientCapacity
//! ```

use muster_model::{DomainMiss, Reason};

use crate::{forest, greedy::Short, problem::Problem, spec::RoleSpec, tree::DomainId};

/// How many near misses a reason names.
const NEAREST: usize = 3;

/// How near to being placed a reason is: of several classes, the best is reported.
pub fn nearness(reason: &Reason) -> (u8, u32) {
    match reason {
        Reason::NotFound { .. } => (3, 0),
        Reason::InsufficientCapacity { fits, .. } => (2, *fits),
        Reason::SegmentTooLarge { .. } => (1, 0),
        _ => (0, 0),
    }
}

/// The reason, where it is certain that the minimum does not fit: a role is short alone, or (`short`) beside others.
pub fn reason(problem: &Problem<'_>, short: Option<&Short>) -> Reason {
    let index = &problem.cluster.index;
    let (role, fits) =
        problem.short_alone().unwrap_or_else(|| short.map_or((0, 0), |short| (short.role, short.fits)));
    let of = &problem.on.spec.roles[role];
    let shape = problem.on.ids[role].shape;
    let nodes = index.tally(shape);
    let name = of.name.clone();
    if index.count(shape, problem.top, true) == 0 {
        let request = problem.gang.roles[role].pod_requests(problem.class());
        return Reason::NoNodeFits { role: name, request, nodes };
    }
    let empty = problem.units_alone(role, true);
    if empty < of.min()
        && let Some((pods, depth)) = too_large(problem, role)
    {
        let largest = misses(problem, role, depth, pods, true).into_iter().next();
        let level = problem.cluster.tree.level_name(depth).to_owned();
        return Reason::SegmentTooLarge { role: name, pods, level, largest };
    }
    let (level, nearest) = scattered(problem, role);
    Reason::InsufficientCapacity { role: name, fits, min: of.min().max(1), empty, level, nearest, nodes }
}

/// Blocks that must stay together: every Required segment, and the minimum of the role inside `within`.
fn blocks_of(problem: &Problem<'_>, role: &RoleSpec) -> Vec<(u32, usize)> {
    let mut all: Vec<(u32, usize)> =
        role.segments.iter().filter(|seg| seg.required).map(|seg| (seg.pods, seg.depth)).collect();
    if problem.on.spec.within > 0 {
        all.push((role.min().max(1) * role.pods, problem.on.spec.within));
    }
    all
}

/// Pods, and the domain or node that they belong to.
pub type Holders = Vec<(u64, DomainId, Option<usize>)>;

/// Domains of a depth, or nodes, with how many pods of a role they hold in blocks of what lies inside them.
pub fn holders(problem: &Problem<'_>, role: usize, depth: usize, empty: bool) -> Holders {
    let (tree, index) = (&problem.cluster.tree, &problem.cluster.index);
    let ids = &problem.on.ids[role];
    let leaf = tree.leaf_depth();
    if depth > leaf {
        let cells = problem.cluster.nodes().filter_map(|(slot, node, _)| {
            let cell = index.cell(ids.shape, slot);
            Some((u64::from(if empty { cell.empty } else { cell.fit }), node.leaf?, Some(slot)))
        });
        return cells.collect();
    }
    let inner = forest::block_sizes(&problem.on.spec.roles[role], leaf, false)[depth + 1];
    let raw = |domain: &DomainId| u64::from(index.raw(ids.loose, *domain, empty)) * inner;
    tree.at_depth(depth).iter().map(|domain| (raw(domain), *domain, None)).collect()
}

/// The first block that no domain of an empty cluster holds.
fn too_large(problem: &Problem<'_>, role: usize) -> Option<(u32, usize)> {
    blocks_of(problem, &problem.on.spec.roles[role]).into_iter().find(|(pods, depth)| {
        holders(problem, role, *depth, true).iter().all(|(held, ..)| *held < u64::from(*pods))
    })
}

/// The domains of a depth that lack least for one more block, with what they lack.
pub fn nearest(problem: &Problem<'_>, role: usize, depth: usize, pods: u32, most: usize) -> Holders {
    lacking(holders(problem, role, depth, false), pods, most)
}

fn lacking(mut all: Holders, pods: u32, most: usize) -> Holders {
    let wanted = u64::from(pods).max(1);
    for (held, ..) in &mut all {
        *held = wanted - *held % wanted;
    }
    if all.len() > most {
        all.select_nth_unstable(most);
        all.truncate(most);
    }
    all.sort_unstable();
    all
}

/// Names what domains lack.
pub fn name(problem: &Problem<'_>, depth: usize, pods: u32, lacking: &Holders) -> Vec<DomainMiss> {
    let tree = &problem.cluster.tree;
    let named = lacking.iter().map(|(lacks, domain, slot)| {
        let mut path = tree.path(*domain);
        if let Some(node) = slot.and_then(|slot| problem.cluster.node(slot)) {
            path = format!("{path}/{}", node.name);
        }
        let level = tree.level_name(depth).to_owned();
        DomainMiss { level, domain: path, pods: pods.saturating_sub(*lacks as u32), wanted: pods }
    });
    named.collect()
}

/// Domains of a depth by what they lack for one more block, nearest first.
fn misses(problem: &Problem<'_>, role: usize, depth: usize, pods: u32, empty: bool) -> Vec<DomainMiss> {
    let all = lacking(holders(problem, role, depth, empty), pods, NEAREST);
    name(problem, depth, pods, &all)
}

/// The level at which most pods are lost to blocks that must stay together, and the domains nearest to one more.
fn scattered(problem: &Problem<'_>, role: usize) -> (Option<String>, Vec<DomainMiss>) {
    let of = &problem.on.spec.roles[role];
    let within = problem.on.spec.within;
    let room = u64::from(problem.cluster.index.count(problem.on.ids[role].shape, problem.top, false));
    let wanted = u64::from(of.min().max(1)) * u64::from(of.pods);
    let blocks = blocks_of(problem, of);
    if room < wanted || blocks.is_empty() {
        let near = if within > 0 { misses(problem, role, within, wanted as u32, false) } else { Vec::new() };
        return (None, near);
    }
    let lost = |pods: u32, depth: usize| -> u64 {
        let held = holders(problem, role, depth, false);
        if depth == within && u64::from(pods) >= wanted {
            // All but the best domain are lost to `within`.
            let all: u64 = held.iter().map(|(held, ..)| held).sum();
            return all - held.iter().map(|(held, ..)| *held).max().unwrap_or(0);
        }
        held.iter().map(|(held, ..)| held % u64::from(pods)).sum()
    };
    let worst = blocks.into_iter().max_by_key(|(pods, depth)| lost(*pods, *depth));
    worst.map_or((None, Vec::new()), |(pods, depth)| {
        let level = problem.cluster.tree.level_name(depth).to_owned();
        (Some(level), misses(problem, role, depth, pods, false))
    })
}
