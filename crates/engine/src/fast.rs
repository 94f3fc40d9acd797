//! One role at the speed of look-ups: the smallest domain from the index, then the fewest domains inside it by ranking,
//! with bounds that certify the result where they are met.
//!
//! ```text
//!   most units (floors) ─▶ leaf domain that just holds them? best fit, done
//!                       └▶ else the smallest outer domain: fewest leaf domains (largest first), fewest domains
//!                          between (`rank`: ranking at a threshold, or a small table if blocks must close there)
//! ```

use std::borrow::Cow;

use crate::{
    chain::LARGEST_BUCKET,
    cost::potential,
    forest, nodes,
    problem::Problem,
    rank,
    tree::{DomainId, Tree},
    wishes::{self, Malus},
};

/// Leaf domains compared for a gang that fits one.
const MOST_LEAVES: usize = 512;
/// Outer domains compared in full.
const MOST_OUTER: usize = 32;
/// Outer domains that need equally few leaf domains, of which the tightest is taken.
const MOST_PLANS: usize = 8;

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
pub struct Counts<'a> {
    problem: &'a Problem<'a>,
    /// The tree.
    pub tree: &'a Tree,
    chain: usize,
    /// Sizes of the blocks closed after each depth.
    pub sizes: Vec<u64>,
    /// Depth of the leaf domains.
    pub leaf: usize,
    /// The outermost depth whose domains are the leaf domains under another name.
    outer_leaf: usize,
    /// Blocks that come up to a leaf domain per block that it is filled with.
    per_bin: u64,
    /// Pods of a block that must share a node.
    room_chunk: u64,
}

impl Counts<'_> {
    /// Blocks of its own size that a domain holds.
    pub fn slots(&self, domain: DomainId, depth: usize) -> u64 {
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
    pub fn unit(&self) -> u64 {
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

    /// How many leaf domains inside an outer one hold each number of blocks. Not to be had if they are capped.
    pub fn histogram(&self, domain: DomainId) -> Cow<'_, [u32]> {
        let slots = self.problem.cluster.index.histogram(self.chain, domain);
        let fold = (self.unit() / self.sizes[self.leaf]) as usize;
        if fold == 1 {
            return Cow::Borrowed(slots);
        }
        let mut bins = vec![0; slots.len().div_ceil(fold)];
        for (blocks, count) in slots.iter().enumerate().skip(fold) {
            bins[blocks / fold] += count;
        }
        Cow::Owned(bins)
    }

    /// Whether some leaf domain may hold more than its bucket says.
    fn capped(&self) -> bool {
        self.problem.cluster.index.largest_bucket(self.chain) >= LARGEST_BUCKET
    }

    /// No leaf domain holds more such blocks, unless they are capped.
    pub fn largest_bin(&self) -> u64 {
        let largest = self.problem.cluster.index.largest_bucket(self.chain) as u64;
        (largest * self.sizes[self.leaf] / self.unit()).max(1)
    }

    /// Whether every domain of a depth has exactly one inside it: then the inner says it all.
    fn repeats_inner(&self, depth: usize) -> bool {
        depth < self.leaf && self.tree.at_depth(depth).len() == self.tree.at_depth(depth + 1).len()
    }

    /// Calls `see` for every leaf domain inside one that holds anything, in the order of the tree.
    pub fn each_leaf(&self, domain: DomainId, depth: usize, see: &mut impl FnMut(DomainId, u64)) {
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
    pub fn inside(&self, domain: DomainId, depth: usize, to: usize, all: &mut Vec<DomainId>) {
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
            Outcome::Found(leaves, proven) => {
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

/// How well a leaf domain suits, less is better: several nodes needed, spares missing, nodes, wishes unmet, untouched,
/// blocks lost, room left.
type Suits = (u64, u64, u64, Malus, bool, u64, u64);

/// The leaf domain that suits best: spares fit, few nodes, no empty domain opened, large blocks kept, little left.
fn pick_leaf(counts: &Counts<'_>, need: u64, pods: u64) -> Outcome {
    let index = &counts.problem.cluster.index;
    let spec = &counts.problem.on.spec;
    let shape = counts.problem.on.ids[0].shape;
    let single = nodes::one_block_each(counts.problem, counts.chunk());
    // No domain needs fewer nodes.
    let fewest = if single { 0 } else { pods.div_ceil(u64::from(index.largest(shape)).max(1)) };
    let spares = u64::from(spec.roles[0].spares);
    let suits = |used: u64, malus: Malus, untouched: bool, count: u64| -> Suits {
        let left = count - pods;
        let lost = potential(count) - potential(left);
        (u64::from(used > 1), spares.saturating_sub(left), used, malus, untouched, lost, left)
    };
    // Without rules inside the leaf domain a bucket says how many pods fit each of its domains.
    let plain = counts.sizes[counts.leaf] == 1;
    let mut best: Option<(Suits, DomainId)> = None;
    let mut seen = 0;
    'all: for blocks in (need as usize).min(LARGEST_BUCKET)..=index.largest_bucket(counts.chain) {
        let told = plain && blocks < LARGEST_BUCKET;
        if told
            && best.as_ref().is_some_and(|(least, _)| suits(fewest, (0, 0), false, blocks as u64) > *least)
        {
            continue;
        }
        for domain in index.bucket(counts.chain, blocks) {
            if counts.slots(domain, counts.leaf) < need {
                continue;
            }
            seen += 1;
            if seen > MOST_LEAVES {
                break 'all;
            }
            let count = counts.count(domain);
            let untouched = index.count(shape, domain, false) == index.count(shape, domain, true);
            let at_best = suits(fewest, (0, 0), untouched, count);
            let no_better = |(least, other): &(Suits, DomainId)| {
                at_best > *least || (at_best == *least && !is_in_fuller(counts, domain, *other))
            };
            if best.as_ref().is_some_and(no_better) {
                continue;
            }
            let used = if single { 0 } else { nodes::fewest(counts.problem, domain, pods, counts.chunk()) };
            let malus = wishes::malus_of(counts.problem, &[(domain, pods)], counts.chunk());
            let key = suits(used, malus, untouched, count);
            let better = best.as_ref().is_none_or(|(least, other)| {
                key < *least || (key == *least && is_in_fuller(counts, domain, *other))
            });
            if better {
                best = Some((key, domain));
            }
        }
    }
    best.map_or(Outcome::Elsewhere, |(_, domain)| Outcome::Found(vec![(domain, pods)], seen <= MOST_LEAVES))
}

/// Whether a leaf lies in fuller surroundings than another, compared from the inside out.
fn is_in_fuller(counts: &Counts<'_>, leaf: DomainId, other: DomainId) -> bool {
    let pairs = counts.tree.ancestors(leaf).zip(counts.tree.ancestors(other)).skip(1);
    let differ = pairs
        .take_while(|(one, two)| one != two)
        .map(|(one, two)| (counts.count(one), counts.count(two)))
        .find(|(one, two)| one != two);
    differ.is_some_and(|(one, two)| one < two)
}

/// The outer domain that needs the fewest leaf domains, of those the fullest.
fn pick_outer(counts: &Counts<'_>, depth: usize, need: u64) -> Outcome {
    let spares = u64::from(counts.problem.on.spec.roles[0].spares);
    let pods = need * counts.sizes[depth];
    // Where spares fit too comes first; then the fullest.
    let mut candidates: Vec<(u64, u64, DomainId)> = counts
        .tree
        .at_depth(depth)
        .iter()
        .filter(|domain| counts.slots(**domain, depth) >= need)
        .map(|domain| {
            let count = counts.count(*domain);
            (spares.saturating_sub(count - pods), count, *domain)
        })
        .collect();
    let Some(least_missing) = candidates.iter().map(|(missing, ..)| *missing).min() else {
        return Outcome::Elsewhere;
    };
    candidates.retain(|(missing, ..)| *missing == least_missing);
    let mut all_proven = candidates.len() <= MOST_OUTER;
    if !all_proven {
        candidates.select_nth_unstable(MOST_OUTER);
        candidates.truncate(MOST_OUTER);
    }
    candidates.sort_unstable();
    let blocks = pods / counts.unit();
    // No plan has fewer leaf domains than this.
    let floor = if counts.capped() { 1 } else { blocks.div_ceil(counts.largest_bin()) };
    let one_block_each = nodes::one_block_each(counts.problem, counts.chunk());
    let found = |leaves: Leaves, proven: bool| {
        // Where a leaf domain is one node there is nothing to choose in it, either.
        let chosen =
            one_block_each || leaves.iter().all(|(leaf, _)| counts.tree.domain(*leaf).nodes.len() == 1);
        let leaves = leaves.into_iter().map(|(leaf, blocks)| (leaf, blocks * counts.unit())).collect();
        Outcome::Found(leaves, proven && chosen)
    };
    if !counts.capped() && between(counts, depth).is_empty() {
        // Nothing lies between: histograms tell how many leaf domains each would need.
        let needs = |domain| rank::largest_first(&counts.histogram(domain), blocks).0;
        let needed: Vec<u64> = candidates.iter().map(|(.., domain)| needs(*domain)).collect();
        let Some(least) = needed.iter().min() else { return Outcome::Elsewhere };
        let few = candidates.iter().zip(&needed).filter(|(_, leaves)| *leaves == least);
        let plans = few.take(MOST_PLANS).map(|((.., domain), _)| fill(counts, *domain, depth, need).leaves);
        let wanted = |leaves: &Leaves| {
            let pods: Leaves = leaves.iter().map(|(leaf, blocks)| (*leaf, blocks * counts.unit())).collect();
            wishes::malus_of(counts.problem, &pods, counts.chunk())
        };
        let best = plans.min_by_key(|leaves| (wanted(leaves), tightness(counts, leaves))).unwrap_or_default();
        return found(best, all_proven || *least == floor);
    }
    let mut best: Option<(Vec<u64>, Leaves)> = None;
    for (.., domain) in candidates {
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
    best.map_or(Outcome::Elsewhere, |(_, leaves)| found(leaves, all_proven))
}

/// How little a plan leaves to later gangs: empty leaf domains opened, then blocks of usual sizes lost.
fn tightness(counts: &Counts<'_>, leaves: &Leaves) -> (u64, u64) {
    let index = &counts.problem.cluster.index;
    let shape = counts.problem.on.ids[0].shape;
    let (mut opened, mut lost) = (0, 0);
    for (leaf, blocks) in leaves {
        let count = counts.count(*leaf);
        opened += u64::from(index.count(shape, *leaf, false) == index.count(shape, *leaf, true));
        lost += potential(count) - potential(count - blocks * counts.unit());
    }
    (opened, lost)
}

/// Leaf domains with blocks, in the order of the tree.
pub type Leaves = Vec<(DomainId, u64)>;

/// A way to fill one outer domain.
pub struct Filled {
    /// Leaf domains with blocks.
    pub leaves: Leaves,
    /// Whether the number of leaf domains and of the domains between is the least.
    pub proven: bool,
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

/// Depths between one and the leaves at which domains really differ from those inside them.
fn between(counts: &Counts<'_>, depth: usize) -> Vec<usize> {
    (depth + 1..counts.outer_leaf).filter(|d| !counts.repeats_inner(*d)).collect()
}

/// Fills a domain with `need` blocks of its own size.
fn fill(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64) -> Filled {
    let between = between(counts, depth);
    let ruled = (depth + 1..counts.outer_leaf).any(|d| forest::ratio(&counts.sizes, d) > 1);
    let blocks = need * counts.sizes[depth] / counts.unit();
    match between[..] {
        [] => Filled { leaves: rank::tightest(counts, &[domain], depth, blocks), proven: true },
        // Numbers of blocks beyond the last bucket are not told apart, so they cannot be ranked.
        _ if counts.capped() => poured(counts, domain, depth, need),
        [.., middle] if !ruled => rank::fewest(counts, domain, depth, middle, blocks, between.len() == 1),
        [mut middle] => {
            // Under its outermost name, so that all its rules count.
            while middle > depth + 1 && counts.repeats_inner(middle - 1) {
                middle -= 1;
            }
            rank::table(counts, domain, depth, middle, need)
                .unwrap_or_else(|| poured(counts, domain, depth, need))
        }
        _ => poured(counts, domain, depth, need),
    }
}

/// What always works: the child that just holds the rest, else the largest, and so on down.
fn poured(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64) -> Filled {
    let mut leaves = Vec::new();
    pour(counts, domain, depth, need, &mut leaves);
    leaves.sort_by_cached_key(|(leaf, _)| path(counts.tree, *leaf));
    Filled { leaves, proven: false }
}

fn pour(counts: &Counts<'_>, domain: DomainId, depth: usize, need: u64, leaves: &mut Leaves) {
    if depth == counts.leaf {
        leaves.push((domain, need * counts.sizes[depth] / counts.unit()));
        return;
    }
    let mut rest = need * forest::ratio(&counts.sizes, depth);
    let children = counts.tree.domain(domain).children.iter();
    let mut bins: Vec<(u64, DomainId)> = children
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
