//! The last step down: which nodes of a leaf domain hold the pods that were given to it.

use crate::{
    chain::at_mut,
    forest,
    problem::Problem,
    rank,
    tree::{DomainId, Slot},
    wishes,
};

/// Nodes that hold fewer blocks than this are counted without asking for memory.
const FEW_ROOMS: usize = 64;

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
    let rooms =
        nodes.iter().map(|slot| (u64::from(problem.cluster.index.fit(shape, *slot)) / chunk * chunk, *slot));
    let mut rooms: Vec<(u64, Slot)> = rooms.filter(|(room, _)| *room > 0).collect();
    if wishes::has_any(problem, 0) {
        rooms.sort_by_cached_key(|(room, slot)| {
            (std::cmp::Reverse(*room), wishes::malus(problem, 0, *slot), *slot)
        });
    } else {
        rooms.sort_by_key(|(room, slot)| (std::cmp::Reverse(*room), *slot));
    }
    rooms
}

/// Puts pods of the first role on nodes of a leaf domain: the fewest nodes, and of those rather the fuller ones.
pub fn choose(problem: &Problem<'_>, leaf: DomainId, pods: u64, chunk: u64) -> Vec<(Slot, u32)> {
    let mut chosen: Vec<(Slot, u32)> = tightest(&by_room(problem, leaf, chunk), pods)
        .into_iter()
        .map(|(slot, pods)| (slot, pods as u32))
        .collect();
    chosen.sort_unstable();
    chosen
}

/// As [`choose`], one entry a pod.
pub fn list(problem: &Problem<'_>, leaf: DomainId, pods: u64, chunk: u64, all: &mut Vec<Slot>) {
    if !one_block_each(problem, chunk) {
        for (slot, on_node) in choose(problem, leaf, pods, chunk) {
            all.extend(std::iter::repeat_n(slot, on_node as usize));
        }
        return;
    }
    let index = &problem.cluster.index;
    let shape = problem.on.ids[0].shape;
    let holds = |slot: &&Slot| u64::from(index.fit(shape, **slot)) >= chunk;
    let nodes = problem.cluster.tree.domain(leaf).nodes.iter().filter(holds);
    let blocks = (pods / chunk) as usize;
    if wishes::has_any(problem, 0) {
        let mut best: Vec<Slot> = nodes.copied().collect();
        best.sort_by_cached_key(|slot| (wishes::malus(problem, 0, *slot), *slot));
        best.truncate(blocks);
        best.sort_unstable();
        all.extend(best.into_iter().flat_map(|slot| std::iter::repeat_n(slot, chunk as usize)));
        return;
    }
    for slot in nodes.take(blocks) {
        all.extend(std::iter::repeat_n(*slot, chunk as usize));
    }
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
    let index = &problem.cluster.index;
    let shape = problem.on.ids[0].shape;
    // Nodes by room: there are few rooms, and counting is faster than sorting.
    let mut few = [0_u32; FEW_ROOMS];
    let mut many = Vec::new();
    for slot in &problem.cluster.tree.domain(leaf).nodes {
        let room = (u64::from(index.fit(shape, *slot)) / chunk) as usize;
        if let Some(count) = few.get_mut(room) {
            *count += 1;
        } else {
            *at_mut(&mut many, room) += 1;
        }
    }
    let wanted = pods.div_ceil(chunk);
    if many.is_empty() {
        return rank::largest_first(&few, wanted).0;
    }
    many[..FEW_ROOMS].copy_from_slice(&few);
    rank::largest_first(&many, wanted).0
}
