//! The last step down: which nodes of a leaf domain hold the pods that were given to it.

use muster_model::{Taint, TaintEffect};

use crate::{
    forest,
    problem::Problem,
    tree::{DomainId, Slot},
};

/// Whether every node holds at most one block of `chunk` pods that share a node, so that nodes need no choosing.
pub fn one_block_each(problem: &Problem<'_>, chunk: u64) -> bool {
    u64::from(problem.cluster.index.largest(problem.on.ids[0].shape)) < 2 * chunk
}

/// Pods of a block of the first role that must share a node.
pub fn chunk(problem: &Problem<'_>) -> u64 {
    forest::chunk(&problem.on.spec.roles[0], problem.cluster.tree.leaf_depth())
}

/// Room for pods of the first role on a leaf domain's nodes, in whole blocks of `chunk`; most first.
pub fn by_room(problem: &Problem<'_>, leaf: DomainId, chunk: u64) -> Vec<(u64, Slot)> {
    let shape = problem.on.ids[0].shape;
    let nodes = &problem.cluster.tree.domain(leaf).nodes;
    let rooms = nodes
        .iter()
        .map(|slot| (u64::from(problem.cluster.index.cell(shape, *slot).fit) / chunk * chunk, *slot));
    let mut rooms: Vec<(u64, Slot)> = rooms.filter(|(room, _)| *room > 0).collect();
    if has_wishes(problem) {
        rooms.sort_by_cached_key(|(room, slot)| (std::cmp::Reverse(*room), malus(problem, *slot), *slot));
    } else {
        rooms.sort_by_key(|(room, slot)| (std::cmp::Reverse(*room), *slot));
    }
    rooms
}

/// Whether nodes that are equally good otherwise may differ in what the first role wishes for.
fn has_wishes(problem: &Problem<'_>) -> bool {
    problem.cluster.soft_taints > 0 || !problem.gang.roles[0].traits.preferred.is_empty()
}

/// What speaks against a node for pods of the first role without forbidding it: the weight of preferred node affinity
/// that it lacks, then the taints that it would rather not have tolerated.
fn malus(problem: &Problem<'_>, slot: Slot) -> (u64, usize) {
    let Some(facts) = problem.cluster.node(slot).and_then(|node| node.facts.as_ref()) else { return (0, 0) };
    let role = &problem.gang.roles[0];
    let lacks =
        role.traits.preferred.iter().filter(|wish| !wish.term.matches(facts.name.as_str(), &facts.labels));
    let repels = |taint: &&Taint| {
        taint.effect == TaintEffect::PreferNoSchedule && !role.tolerations.iter().any(|t| t.tolerates(taint))
    };
    (lacks.map(|wish| u64::from(wish.weight)).sum(), facts.taints.iter().filter(repels).count())
}

/// Puts pods of the first role on nodes of a leaf domain: the fewest nodes, and of those rather the fuller ones.
pub fn choose(problem: &Problem<'_>, leaf: DomainId, pods: u64, chunk: u64) -> Vec<(Slot, u32)> {
    if one_block_each(problem, chunk) {
        let index = &problem.cluster.index;
        let shape = problem.on.ids[0].shape;
        let holds = |slot: &&Slot| u64::from(index.cell(shape, **slot).fit) >= chunk;
        let nodes = problem.cluster.tree.domain(leaf).nodes.iter().filter(holds);
        let blocks = (pods / chunk) as usize;
        if !has_wishes(problem) {
            return nodes.take(blocks).map(|slot| (*slot, chunk as u32)).collect();
        }
        let mut best: Vec<Slot> = nodes.copied().collect();
        best.sort_by_cached_key(|slot| (malus(problem, *slot), *slot));
        best.truncate(blocks);
        best.sort_unstable();
        return best.into_iter().map(|slot| (slot, chunk as u32)).collect();
    }
    let mut chosen: Vec<(Slot, u32)> = tightest(&by_room(problem, leaf, chunk), pods)
        .into_iter()
        .map(|(slot, pods)| (slot, pods as u32))
        .collect();
    chosen.sort_unstable();
    chosen
}

/// The fewest bins, and among those rather small ones, that hold `wanted`. `bins` are sorted, largest first.
/// Returns how much goes to each.
pub fn tightest(bins: &[(u64, usize)], wanted: u64) -> Vec<(usize, u64)> {
    let mut count = 0;
    let mut held = 0;
    while held < wanted && count < bins.len() {
        held += bins[count].0;
        count += 1;
    }
    // The largest `count` hold it; each gives way to the smallest bin that the slack allows.
    let mut slack = held.saturating_sub(wanted);
    let mut taken: Vec<usize> = (0..count).collect();
    let mut unused = count;
    for choice in taken.iter_mut().rev() {
        let enough = bins[*choice].0.saturating_sub(slack);
        let smallest = bins.partition_point(|(size, _)| *size >= enough);
        if smallest <= unused {
            break;
        }
        let size = bins[smallest - 1].0;
        if size == bins[*choice].0 {
            break;
        }
        // Of equal bins the first.
        let first = bins.partition_point(|(other, _)| *other > size).max(unused);
        slack -= bins[*choice].0 - size;
        *choice = first;
        unused = first + 1;
    }
    let mut rest = wanted;
    taken.sort_unstable();
    taken
        .into_iter()
        .map(|i| {
            let give = bins[i].0.min(rest);
            rest -= give;
            (bins[i].1, give)
        })
        .collect()
}

/// The fewest nodes of a leaf domain that hold this many pods of the first role.
pub fn fewest(problem: &Problem<'_>, leaf: DomainId, pods: u64, chunk: u64) -> u64 {
    let mut held = 0;
    by_room(problem, leaf, chunk)
        .iter()
        .take_while(|(room, _)| {
            let more = held < pods;
            held += room;
            more
        })
        .count() as u64
}
