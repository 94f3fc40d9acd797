//! One role at the speed of look-ups: the smallest domain from the index, then the fewest domains inside it by ranking,
//! with bounds that certify the result where they are met.
//!
//! ```text
//!   most units (floors) ─▶ leaf domain that just holds them? best fit, done
//!                       └▶ else the smallest outer domain: fewest leaf domains (largest first), fewest domains
//!                          between (ranking at a threshold, or a small table if blocks must close there)
//! ```

use std::cmp::Reverse;

use crate::{
    cost::potential,
    forest,
    index::LARGEST_BUCKET,
    nodes,
    problem::Problem,
    tree::{DomainId, Tree},
};

/// Leaf domains compared for a gang that fits one.
const MOST_LEAVES: usize = 512;
/// Outer domains compared in full.
const MOST_OUTER: usize = 32;
/// Steps of the table over middle domains. A step is about a nanosecond.
const TABLE_STEPS: u64 = 400_000;

/// Where the pods of one role go.
#[derive(Clone, Debug)]
pub struct Picked {
    /// Leaf domains in the order of the tree, with pods.
    pub leaves: Vec<(DomainId, u64)>,
    /// Pods of a block that shares a node.
    pub chunk: u64,
    /// Whether no placement is better by units, broken blocks, span and domains.
    pub proven: bool,
}

/// A role's counts in one chain.
struct Counts<'a> {
    problem: &'a Problem<'a>,
    tree: &'a Tree,
    chain: usize,
    sizes: Vec<u64>,
    leaf: usize,
    /// The outermost depth whose domains are the leaf domains under another name.
    outer_leaf: usize,
    /// Blocks that come up to a leaf domain per block that it is filled with.
    per_bin: u64,
    /// Pods of a block that must share a node.
    room_chunk: u64,
}

impl Counts<'_> {
    fn slots(&self, domain: DomainId, depth: usize) -> u64 {
        u64::from(self.problem.cluster.index.slots(self.chain, domain, depth))
    }

    /// Pods that fit a domain, in whole blocks of what must share a node.
    fn count(&self, domain: DomainId) -> u64 {
        let index = &self.problem.cluster.index;
        let ids = &self.problem.on.ids[0];
        let chunk = self.room_chunk;
        if chunk == 1 {
            return u64::from(index.count(ids.shape, domain, false));
        }
        let inside = self.tree.domain(domain);
        if inside.depth == self.leaf {
            return u64::from(index.raw(ids.loose, domain, false)) * chunk;
        }
        inside.children.iter().map(|child| self.count(*child)).sum()
    }

    /// Pods of the blocks that leaf domains are filled with.
    fn unit(&self) -> u64 {
        self.sizes[self.outer_leaf]
    }

    /// Pods of a block that shares a node.
    fn chunk(&self) -> u64 {
        self.sizes[self.leaf + 1]
    }

    /// Such blocks in a leaf domain.
    fn bin(&self, leaf: DomainId) -> u64 {
        let raw = u64::from(self.problem.cluster.index.raw(self.chain, leaf, false));
        if self.per_bin == 1 { raw } else { raw / self.per_bin }
    }

    /// Whether some leaf domain may hold more than its bucket says.
    fn capped(&self) -> bool {
        self.problem.cluster.index.largest_bucket(self.chain) >= LARGEST_BUCKET
    }

    /// No leaf domain holds more such blocks, unless they are capped.
    fn largest_bin(&self) -> u64 {
        let largest = self.problem.cluster.index.largest_bucket(self.chain) as u64;
        (largest * self.sizes[self.leaf] / self.unit()).max(1)
    }

    /// Whether every domain of a depth has exactly one inside it: then the inner says it all.
    fn repeats_inner(&self, depth: usize) -> bool {
        depth < self.leaf && self.tree.at_depth(depth).len() == self.tree.at_depth(depth + 1).len()
    }

    /// Calls `see` for every leaf domain inside one that holds anything, in the order of the tree.
    fn each_leaf(&self, domain: DomainId, depth: usize, see: &mut impl FnMut(DomainId, u64)) {
        if depth == self.leaf {
            let blocks = self.bin(domain);
            if blocks > 0 {
                see(domain, blocks);
            }
        } else if self.problem.cluster.index.raw(self.chain, domain, false) > 0 {
            for child in &self.tree.domain(domain).children {
                self.each_leaf(*child, depth + 1, see);
            }
        }
    }

    /// Domains inside one at a deeper depth, in the order of the tree.
    fn inside(&self, domain: DomainId, depth: usize, to: usize, all: &mut Vec<DomainId>) {
        if self.problem.cluster.index.raw(self.chain, domain, false) == 0 {
            return;
        }
        if depth == to {
            all.push(domain);
            return;
        }
        for child in &self.tree.domain(domain).children {
            self.inside(*child, depth + 1, to, all);
        }
    }
}

/// Places as many units as fit, in the engine's own order. With `strict`, Preferred rules bind, and nothing is found
/// if that costs units.
pub fn place(problem: &Problem<'_>, strict: bool) -> Option<Picked> {
    let role = &problem.on.spec.roles[0];
    let tree = &problem.cluster.tree;
    let leaf = tree.leaf_depth();
    if problem.on.spec.within > leaf {
        return None;
    }
    let units = role.allowed_at_most(problem.units_alone(0, false)).filter(|units| *units > 0)?;
    let chain = if strict { problem.on.ids[0].strict } else { problem.on.ids[0].loose };
    let sizes = forest::block_sizes(role, leaf, strict);
    let mut counts = Counts {
        problem,
        tree,
        chain,
        sizes,
        leaf,
        outer_leaf: leaf,
        per_bin: 1,
        room_chunk: nodes::chunk(problem),
    };
    while counts.outer_leaf > 1 && counts.repeats_inner(counts.outer_leaf - 1) {
        counts.outer_leaf -= 1;
    }
    counts.per_bin = counts.unit() / counts.sizes[leaf + 1];
    let pods = u64::from(units) * u64::from(role.pods);
    for depth in (problem.on.spec.within..=leaf).rev() {
        if counts.repeats_inner(depth) {
            continue;
        }
        let need = pods / counts.sizes[depth];
        let found =
            if depth == leaf { pick_leaf(&counts, need, pods) } else { pick_outer(&counts, depth, need) };
        match found {
            Outcome::Found(mut leaves, proven) => {
                if leaves.len() > 1 {
                    leaves.sort_by_cached_key(|(leaf, _)| path(tree, *leaf));
                }
                return Some(Picked { leaves, chunk: counts.chunk(), proven });
            }
            Outcome::Elsewhere => {}
        }
    }
    None
}

enum Outcome {
    /// Leaf domains with pods, and whether nothing is better.
    Found(Vec<(DomainId, u64)>, bool),
    /// No domain of this depth holds it.
    Elsewhere,
}

/// Ids from the outermost domain to this one: sorting by it walks the tree depth first.
fn path(tree: &Tree, leaf: DomainId) -> Vec<DomainId> {
    let mut path: Vec<DomainId> = tree.ancestors(leaf).collect();
    path.reverse();
    path
}

/// How well a leaf domain suits, less is better: several nodes needed, spares missing, nodes, untouched, blocks lost,
/// room left.
type Suits = (u64, u64, u64, bool, u64, u64);

/// The leaf domain that suits best: spares fit, few nodes, no empty domain opened, large blocks kept, little left.
fn pick_leaf(counts: &Counts<'_>, need: u64, pods: u64) -> Outcome {
    let index = &counts.problem.cluster.index;
    let spec = &counts.problem.on.spec;
    let shape = counts.problem.on.ids[0].shape;
    let single = nodes::one_block_each(counts.problem, counts.chunk());
    let spares = u64::from(spec.roles[0].spares);
    let mut best: Option<(Suits, DomainId)> = None;
    let mut seen = 0;
    'all: for blocks in (need as usize).min(LARGEST_BUCKET)..=index.largest_bucket(counts.chain) {
        for domain in index.bucket(counts.chain, blocks) {
            if counts.slots(domain, counts.leaf) < need {
                continue;
            }
            let count = counts.count(domain);
            let used = if single { 0 } else { nodes::fewest(counts.problem, domain, pods, counts.chunk()) };
            let left = count - pods;
            let lost = potential(count) - potential(left);
            let untouched = index.count(shape, domain, false) == index.count(shape, domain, true);
            let key = (u64::from(used > 1), spares.saturating_sub(left), used, untouched, lost, left);
            let better = best.as_ref().is_none_or(|(least, other)| {
                key < *least || (key == *least && outer_room(counts, domain) < outer_room(counts, *other))
            });
            if better {
                best = Some((key, domain));
            }
            seen += 1;
            if seen >= MOST_LEAVES {
                break 'all;
            }
        }
    }
    best.map_or(Outcome::Elsewhere, |(_, domain)| Outcome::Found(vec![(domain, pods)], seen < MOST_LEAVES))
}

/// Room in the domains around a leaf, from the inside out: of equal leaves, the one in the fullest surroundings.
fn outer_room(counts: &Counts<'_>, leaf: DomainId) -> Vec<u64> {
    counts.tree.ancestors(leaf).skip(1).map(|domain| counts.count(domain)).collect()
}

/// The outer domain that needs the fewest leaf domains, of those the fullest.
fn pick_outer(counts: &Counts<'_>, depth: usize, need: u64) -> Outcome {
    let spares = u64::from(counts.problem.on.spec.roles[0].spares);
    let pods = need * counts.sizes[depth];
    let mut candidates: Vec<(u64, DomainId)> = counts
        .tree
        .at_depth(depth)
        .iter()
        .filter(|domain| counts.slots(**domain, depth) >= need)
        .map(|domain| (counts.count(*domain), *domain))
        .collect();
    if candidates.is_empty() {
        return Outcome::Elsewhere;
    }
    // Where spares fit too comes first; then the fullest.
    candidates.sort_by_key(|(count, domain)| (spares.saturating_sub(count - pods), *count, *domain));
    let least_missing = spares.saturating_sub(candidates[0].0 - pods);
    candidates.retain(|(count, _)| spares.saturating_sub(count - pods) == least_missing);
    let blocks = pods / counts.unit();
    // No plan has fewer leaf domains than this.
    let floor = if counts.capped() { 1 } else { blocks.div_ceil(counts.largest_bin()) };
    let mut best: Option<(Vec<u64>, Leaves)> = None;
    let all = candidates.len();
    let mut all_proven = all <= MOST_OUTER;
    for (_, domain) in candidates.into_iter().take(MOST_OUTER) {
        let plan = fill(counts, domain, depth, need);
        let key = plan.domains(counts, depth);
        let reached = plan.leaves.len() as u64 == floor && key[1..].iter().all(|used| *used == 1);
        all_proven &= plan.proven;
        if best.as_ref().is_none_or(|(least, ..)| key < *least) {
            best = Some((key, plan.leaves));
        }
        if reached {
            all_proven = true;
            break;
        }
    }
    let Some((_, leaves)) = best else { return Outcome::Elsewhere };
    let proven = all_proven && nodes::one_block_each(counts.problem, counts.chunk());
    Outcome::Found(leaves.into_iter().map(|(leaf, blocks)| (leaf, blocks * counts.unit())).collect(), proven)
}

/// Leaf domains with blocks.
type Leaves = Vec<(DomainId, u64)>;

/// A way to fill one outer domain.
struct Filled {
    leaves: Leaves,
    /// Whether the number of leaf domains and of the domains between is the least.
    proven: bool,
}

impl Filled {
    /// Leaf domains used, then domains of the depths outside, inner first.
    fn domains(&self, counts: &Counts<'_>, top: usize) -> Vec<u64> {
        let mut all = vec![self.leaves.len() as u64];
        let mut level: Vec<DomainId> = self.leaves.iter().map(|(leaf, _)| *leaf).collect();
        for _ in (top + 1..counts.leaf).rev() {
            for domain in &mut level {
                *domain = counts.tree.parent(*domain);
            }
            level.sort_unstable();
            level.dedup();
            all.push(level.len() as u64);
        }
        all
    }
}

/// Fills a domain with `need` blocks of its own size.
fn fill(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64) -> Filled {
    // Depths between this one and the leaves at which domains really differ from those inside them.
    let between: Vec<usize> = (depth + 1..counts.outer_leaf).filter(|d| !counts.repeats_inner(*d)).collect();
    let ruled = (depth + 1..counts.outer_leaf).any(|d| forest::ratio(&counts.sizes, d) > 1);
    let blocks = need * counts.sizes[depth] / counts.unit();
    match between[..] {
        [] => {
            let bins = leaf_bins(counts, domain, depth);
            let leaves = nodes::tightest(&bins, blocks);
            Filled { leaves, proven: true }
        }
        // Numbers of blocks beyond the last bucket are not told apart, so they cannot be ranked.
        [.., middle] if !ruled && !counts.capped() => {
            rank(counts, domain, depth, middle, blocks, between.len() == 1)
        }
        [mut middle] => {
            // Under its outermost name, so that all its rules count.
            while middle > depth + 1 && counts.repeats_inner(middle - 1) {
                middle -= 1;
            }
            table(counts, domain, depth, middle, need).unwrap_or_else(|| poured(counts, domain, depth, need))
        }
        _ => poured(counts, domain, depth, need),
    }
}

/// What always works: the child that just holds the rest, else the largest, and so on down.
fn poured(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64) -> Filled {
    let mut leaves = Vec::new();
    pour(counts, domain, depth, need, &mut leaves);
    Filled { leaves, proven: false }
}

fn pour(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64, leaves: &mut Leaves) {
    if depth == counts.leaf {
        leaves.push((domain, need * counts.sizes[depth] / counts.unit()));
        return;
    }
    let mut rest = need * forest::ratio(&counts.sizes, depth);
    let children = counts.tree.domain(domain).children.iter();
    let mut bins: Bins = children
        .map(|child| (counts.slots(*child, depth + 1), *child))
        .filter(|(slots, _)| *slots > 0)
        .collect();
    bins.sort_unstable();
    while rest > 0 {
        let enough = bins.partition_point(|(slots, _)| *slots < rest);
        let (slots, child) = if enough < bins.len() {
            bins.remove(enough)
        } else {
            let Some(largest) = bins.pop() else { return };
            largest
        };
        let give = rest.min(slots);
        pour(counts, child, depth + 1, give, leaves);
        rest -= give;
    }
}

/// Blocks with the leaf domain that holds them.
type Bins = Vec<(u64, DomainId)>;

/// Leaf domains inside a domain with their blocks, most first.
fn leaf_bins(counts: &Counts<'_>, domain: DomainId, depth: usize) -> Bins {
    let mut bins = Vec::new();
    counts.each_leaf(domain, depth, &mut |leaf, blocks| bins.push((blocks, leaf)));
    bins.sort_unstable_by_key(|(slots, leaf)| (Reverse(*slots), *leaf));
    bins
}

/// The fewest leaves, in few middle domains. For any threshold θ, the k leaves of a plan in b middle domains hold at
/// most kθ plus the b best sums of (slots − θ)⁺: the least b that reaches the blocks bounds from below, and the
/// ranking itself is the plan.
fn rank(
    counts: &Counts<'_>,
    domain: DomainId,
    depth: usize,
    middle: usize,
    blocks: u64,
    only: bool,
) -> Filled {
    let mut ids = Vec::new();
    counts.inside(domain, depth, middle, &mut ids);
    // One row per middle domain, a column per number of blocks.
    let width = counts.largest_bin() as usize + 1;
    let mut table = vec![0_u32; width * ids.len()];
    for (id, row) in ids.iter().zip(table.chunks_mut(width)) {
        histogram(counts, *id, middle, row);
    }
    let middles: Vec<&[u32]> = table.chunks(width).collect();
    let mut all = vec![0; width];
    for middle in &middles {
        add(&mut all, middle);
    }
    let (fewest, smallest) = largest_first(&all, blocks);
    let mut bound = 1;
    let mut best: Option<Vec<usize>> = None;
    for threshold in [smallest.saturating_sub(1), smallest] {
        let worth = |middle: &&[u32]| -> u64 {
            let above = middle.iter().enumerate().skip(threshold as usize + 1);
            above.map(|(slots, count)| (slots as u64 - threshold) * u64::from(*count)).sum()
        };
        let mut ranked: Vec<(Reverse<u64>, usize)> =
            middles.iter().enumerate().map(|(i, middle)| (Reverse(worth(middle)), i)).collect();
        ranked.sort_unstable();
        let mut sum = fewest * threshold;
        let reaches = |(Reverse(worth), _): &(Reverse<u64>, usize)| {
            sum += worth;
            sum >= blocks
        };
        let least = ranked.iter().position(reaches).map_or(ranked.len(), |at| at + 1);
        bound = bound.max(least);
        let chosen = first_that_hold(&middles, &ranked, least, fewest, blocks);
        if best.as_ref().is_none_or(|known| chosen.len() < known.len()) {
            best = Some(chosen);
        }
    }
    let chosen = best.unwrap_or_default();
    let mut bins: Bins = chosen.iter().flat_map(|i| leaf_bins(counts, ids[*i], middle)).collect();
    bins.sort_unstable_by_key(|(slots, leaf)| (Reverse(*slots), *leaf));
    let leaves = nodes::tightest(&bins, blocks);
    let proven = only && leaves.len() as u64 == fewest && chosen.len() == bound;
    Filled { leaves, proven }
}

/// How many leaf domains of each number of blocks lie inside a domain, into `all`.
fn histogram(counts: &Counts<'_>, domain: DomainId, depth: usize, all: &mut [u32]) {
    let last = all.len() - 1;
    counts.each_leaf(domain, depth, &mut |_, blocks| all[(blocks as usize).min(last)] += 1);
}

fn add(all: &mut [u32], more: &[u32]) {
    for (sum, count) in all.iter_mut().zip(more) {
        *sum += count;
    }
}

/// The first middle domains of a ranking, at least `least`, whose leaves hold the blocks in `fewest` leaves.
fn first_that_hold(
    middles: &[&[u32]],
    ranked: &[(Reverse<u64>, usize)],
    least: usize,
    fewest: u64,
    blocks: u64,
) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::with_capacity(least);
    let mut all = vec![0; middles.first().map_or(1, |middle| middle.len())];
    for (_, i) in ranked {
        taken.push(*i);
        add(&mut all, middles[*i]);
        if taken.len() >= least && largest_first(&all, blocks).0 <= fewest {
            break;
        }
    }
    taken
}

/// How many leaves hold the blocks, largest first, and the smallest of those; more than there are if they do not.
fn largest_first(histogram: &[u32], blocks: u64) -> (u64, u64) {
    let (mut rest, mut used) = (blocks, 0);
    for (slots, count) in histogram.iter().enumerate().skip(1).rev() {
        let slots = slots as u64;
        let needed = rest.div_ceil(slots);
        if needed <= u64::from(*count) {
            return (used + needed, slots);
        }
        used += u64::from(*count);
        rest -= slots * u64::from(*count);
    }
    (u64::MAX, 0)
}

/// Cost of what cannot be reached; twice it does not overflow.
const NEVER: u64 = u64::MAX / 2;

/// Blocks that must close in middle domains: a table over them, each filled largest first, is exact.
fn table(counts: &Counts<'_>, domain: DomainId, depth: usize, middle: usize, need: u64) -> Option<Filled> {
    let mut ids = Vec::new();
    counts.inside(domain, depth, middle, &mut ids);
    let want = (need * counts.sizes[depth] / counts.sizes[middle]) as usize;
    let inner = counts.sizes[middle] / counts.unit();
    let middles: Vec<(Bins, usize)> = ids
        .into_iter()
        .map(|id| (counts.slots(id, middle).min(want as u64) as usize, id))
        .filter(|(slots, _)| *slots > 0)
        .map(|(slots, id)| (leaf_bins(counts, id, middle), slots))
        .collect();
    let steps: u64 = middles.iter().map(|(_, slots)| (*slots * want) as u64).sum();
    if steps > TABLE_STEPS {
        return None;
    }
    let mut costs = vec![NEVER; want + 1];
    costs[0] = 0;
    let mut choices: Vec<Vec<u16>> = Vec::with_capacity(middles.len());
    let mut reach = 0;
    for (bins, slots) in &middles {
        let own: Vec<u64> = (0..=*slots).map(|t| middle_cost(bins, t as u64 * inner)).collect();
        let mut choice = vec![0_u16; want + 1];
        reach = (reach + slots).min(want);
        for total in (1..=reach).rev() {
            let mut least = costs[total];
            for (t, cost) in own.iter().enumerate().take(total + 1).skip(1) {
                let sum = costs[total - t] + cost;
                if sum < least {
                    least = sum;
                    choice[total] = t as u16;
                }
            }
            costs[total] = least;
        }
        choices.push(choice);
    }
    if costs[want] >= NEVER {
        return None;
    }
    let mut leaves = Vec::new();
    let mut rest = want;
    for ((bins, _), choice) in middles.iter().zip(&choices).rev() {
        let t = usize::from(choice[rest]);
        leaves.extend(nodes::tightest(bins, t as u64 * inner).into_iter().filter(|(_, blocks)| *blocks > 0));
        rest -= t;
    }
    Some(Filled { leaves, proven: true })
}

/// Leaves used, one middle domain, and blocks left over, packed in that order.
fn middle_cost(bins: &[(u64, DomainId)], blocks: u64) -> u64 {
    if blocks == 0 {
        return 0;
    }
    let (mut held, mut used) = (0, 0);
    for (slots, _) in bins {
        held += slots;
        used += 1;
        if held >= blocks {
            break;
        }
    }
    (used << 40) | (1 << 20) | (held - blocks).min(1_000)
}
