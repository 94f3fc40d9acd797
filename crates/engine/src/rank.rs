//! Which leaf domains of an outer one, from histograms: how many of them hold how many blocks.
//!
//! ```text
//!   histograms of middle domains ─┬▶ fewest: largest first, middle domains ranked at a threshold ─┐
//!                                 └▶ table: blocks must close in the middle domains               ├▶ tightest ▶ leaves
//! ```
//!
//! Only the leaf domains of the middle domains that are chosen are looked at one by one.

use std::{borrow::Cow, cmp::Reverse, collections::BinaryHeap};

use crate::{
    fast::{Counts, Filled, Leaves},
    nodes,
    tree::DomainId,
};

/// Steps of the table over middle domains. A step is about a nanosecond.
const TABLE_STEPS: u64 = 400_000;
/// Cost of what cannot be reached; twice it does not overflow.
const NEVER: u64 = u64::MAX / 2;

/// Puts blocks on the fewest leaf domains inside some domains of a depth, and of those rather on small ones. The domains
/// are given in the order of the tree.
pub fn tightest(counts: &Counts<'_>, domains: &[DomainId], depth: usize, blocks: u64) -> Leaves {
    let mut leaves: Leaves = Vec::new();
    for domain in domains {
        counts.each_leaf(*domain, depth, &mut |leaf, blocks| leaves.push((leaf, blocks)));
    }
    let mut chosen = nodes::tightest(&by_size(&leaves), blocks);
    chosen.retain(|(_, blocks)| *blocks > 0);
    chosen.sort_unstable();
    chosen.into_iter().map(|(at, blocks)| (leaves[at].0, blocks)).collect()
}

/// Blocks and positions, most blocks first and else as they come.
fn by_size(leaves: &[(DomainId, u64)]) -> Vec<(u64, usize)> {
    let largest = leaves.iter().map(|(_, blocks)| *blocks).max().unwrap_or(0) as usize;
    if largest > 4 * leaves.len() {
        let mut bins: Vec<(u64, usize)> = leaves.iter().enumerate().map(|(at, (_, b))| (*b, at)).collect();
        bins.sort_unstable_by_key(|(blocks, at)| (Reverse(*blocks), *at));
        return bins;
    }
    // By counting: there are few numbers of blocks.
    let mut starts = vec![0; largest + 2];
    for (_, blocks) in leaves {
        starts[largest - *blocks as usize + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut bins = vec![(0, 0); leaves.len()];
    for (at, (_, blocks)) in leaves.iter().enumerate() {
        let start = &mut starts[largest - *blocks as usize];
        bins[*start] = (*blocks, at);
        *start += 1;
    }
    bins
}

/// The fewest leaves, in few middle domains. For any threshold θ, the k leaves of a plan in b middle domains hold at
/// most kθ plus the b best sums of (slots − θ)⁺: the least b that reaches the blocks bounds from below, and the
/// ranking itself is the plan. `only`: no other depth between matters.
pub fn fewest(
    counts: &Counts<'_>,
    domain: DomainId,
    depth: usize,
    middle: usize,
    blocks: u64,
    only: bool,
) -> Filled {
    let mut ids = Vec::new();
    counts.inside(domain, depth, middle, &mut ids);
    let middles: Vec<Cow<'_, [u32]>> = ids.iter().map(|id| counts.histogram(*id)).collect();
    let (fewest, smallest) = largest_first(&counts.histogram(domain), blocks);
    let mut bound = 1;
    let mut best: Option<Vec<usize>> = None;
    for threshold in [smallest.saturating_sub(1), smallest] {
        let (least, chosen) = ranked(&middles, threshold, fewest, blocks);
        bound = bound.max(least);
        if best.as_ref().is_none_or(|known| chosen.len() < known.len()) {
            best = Some(chosen);
        }
        if best.as_ref().is_some_and(|known| known.len() == bound) {
            break;
        }
    }
    let mut chosen = best.unwrap_or_default();
    chosen.sort_unstable();
    let used = chosen.len();
    let chosen: Vec<DomainId> = chosen.into_iter().map(|at| ids[at]).collect();
    let leaves = tightest(counts, &chosen, middle, blocks);
    let proven = only && leaves.len() as u64 == fewest && used == bound;
    Filled { leaves, proven }
}

/// Middle domains by what they hold above a threshold, most first: the least number that any plan needs, and the first
/// ones whose leaves hold the blocks in `fewest` leaves.
fn ranked(middles: &[Cow<'_, [u32]>], threshold: u64, fewest: u64, blocks: u64) -> (usize, Vec<usize>) {
    let worth = |middle: &[u32]| -> u64 {
        let above = middle.iter().skip(threshold as usize + 1).zip(1_u64..);
        above.map(|(count, more)| more * u64::from(*count)).sum()
    };
    let mut heap: BinaryHeap<(u64, Reverse<usize>)> =
        middles.iter().enumerate().map(|(at, middle)| (worth(middle), Reverse(at))).collect();
    let mut sum = fewest.saturating_mul(threshold);
    let mut all: Vec<u32> = Vec::new();
    let mut chosen = Vec::new();
    let mut least = None;
    while let Some((worth, Reverse(at))) = heap.pop() {
        sum = sum.saturating_add(worth);
        chosen.push(at);
        if all.len() < middles[at].len() {
            all.resize(middles[at].len(), 0);
        }
        for (total, count) in all.iter_mut().zip(middles[at].iter()) {
            *total += count;
        }
        if sum >= blocks {
            least.get_or_insert(chosen.len());
            if largest_first(&all, blocks).0 <= fewest {
                break;
            }
        }
    }
    (least.unwrap_or(middles.len()), chosen)
}

/// How many leaves hold the blocks, largest first, and the smallest of those; more than there are if they do not.
pub fn largest_first(histogram: &[u32], blocks: u64) -> (u64, u64) {
    let (mut rest, mut used) = (blocks, 0);
    for (slots, count) in histogram.iter().enumerate().skip(1).rev().filter(|(_, count)| **count > 0) {
        let (slots, count) = (slots as u64, u64::from(*count));
        if slots * count >= rest {
            return (used + rest.div_ceil(slots), slots);
        }
        used += count;
        rest -= slots * count;
    }
    (u64::MAX, 0)
}

/// A middle domain that blocks may close in: which, and what 0, 1, … of them cost there.
struct Middle {
    id: DomainId,
    costs: Vec<u64>,
}

/// Blocks that must close in middle domains: a table over them, each filled largest first, is exact.
pub fn table(
    counts: &Counts<'_>,
    domain: DomainId,
    depth: usize,
    middle: usize,
    need: u64,
) -> Option<Filled> {
    let mut ids = Vec::new();
    counts.inside(domain, depth, middle, &mut ids);
    let want = (need * counts.sizes[depth] / counts.sizes[middle]) as usize;
    let inner = counts.sizes[middle] / counts.unit();
    let mut middles: Vec<Middle> = Vec::with_capacity(ids.len());
    for id in ids {
        let slots = counts.slots(id, middle).min(want as u64) as usize;
        if slots > 0 {
            middles.push(Middle { id, costs: costs(&counts.histogram(id), slots, inner) });
        }
    }
    keep_cheap(&mut middles, want);
    let steps: u64 = middles.iter().map(|middle| ((middle.costs.len() - 1) * want) as u64).sum();
    if steps > TABLE_STEPS {
        return None;
    }
    let shares = split(&middles, want)?;
    let mut leaves = Vec::new();
    for (middle_domain, share) in middles.iter().zip(shares).filter(|(_, share)| *share > 0) {
        leaves.extend(tightest(counts, &[middle_domain.id], middle, share as u64 * inner));
    }
    Some(Filled { leaves, proven: true })
}

/// What 0 to `slots` times `inner` blocks cost in a middle domain: leaves used, one middle domain, and blocks left over,
/// packed in that order.
fn costs(histogram: &[u32], slots: usize, inner: u64) -> Vec<u64> {
    let mut all = Vec::with_capacity(slots + 1);
    all.push(0);
    let mut sizes = histogram.iter().enumerate().skip(1).rev();
    let (mut size, mut there) = (1, 0);
    let (mut held, mut used) = (0, 0);
    for wanted in (1..=slots as u64).map(|share| share * inner) {
        while held < wanted {
            while there == 0 {
                let Some((next, count)) = sizes.next() else { return all };
                (size, there) = (next as u64, u64::from(*count));
            }
            let more = (wanted - held).div_ceil(size).min(there);
            held += more * size;
            used += more;
            there -= more;
        }
        all.push((used << 40) | (1 << 20) | (held - wanted).min(1_000));
    }
    all
}

/// Keeps, for each share, the `want` middle domains where it is cheapest. A plan uses at most `want` of them, so one that
/// uses another can use one of these in its place.
fn keep_cheap(middles: &mut Vec<Middle>, want: usize) {
    let most = middles.iter().map(|middle| middle.costs.len()).max().unwrap_or(0);
    let mut kept = vec![false; middles.len()];
    for share in 1..most {
        let cost = |at: usize| middles[at].costs.get(share).map(|cost| (*cost, at));
        let mut by_cost: Vec<(u64, usize)> = (0..middles.len()).filter_map(cost).collect();
        if by_cost.len() > want {
            by_cost.select_nth_unstable(want);
            by_cost.truncate(want);
        }
        for (_, at) in by_cost {
            kept[at] = true;
        }
    }
    let mut kept = kept.into_iter();
    middles.retain(|_| kept.next().unwrap_or(false));
}

/// The cheapest way to split `want` blocks: how many go to each middle domain.
fn split(middles: &[Middle], want: usize) -> Option<Vec<usize>> {
    let mut least = vec![NEVER; want + 1];
    least[0] = 0;
    let mut choices: Vec<Vec<u16>> = Vec::with_capacity(middles.len());
    let mut reach = 0;
    for middle in middles {
        let mut choice = vec![0_u16; want + 1];
        reach = (reach + middle.costs.len() - 1).min(want);
        for total in (1..=reach).rev() {
            for (share, cost) in middle.costs.iter().enumerate().take(total + 1).skip(1) {
                let sum = least[total - share] + cost;
                if sum < least[total] {
                    least[total] = sum;
                    choice[total] = share as u16;
                }
            }
        }
        choices.push(choice);
    }
    if least[want] >= NEVER {
        return None;
    }
    let mut shares = vec![0; middles.len()];
    let mut rest = want;
    for (share, choice) in shares.iter_mut().zip(&choices).rev() {
        *share = usize::from(choice[rest]);
        rest -= *share;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::{Middle, by_size, costs, keep_cheap, largest_first, split};
    use proptest::prelude::*;
    use std::cmp::Reverse;

    /// Leaf domains' blocks, most first, and how many there are of each number.
    fn bins(mut blocks: Vec<u64>) -> (Vec<u64>, Vec<u32>) {
        blocks.retain(|blocks| *blocks > 0);
        blocks.sort_unstable_by_key(|blocks| Reverse(*blocks));
        let mut histogram = vec![0; blocks.first().map_or(1, |most| *most as usize + 1)];
        for of in &blocks {
            histogram[*of as usize] += 1;
        }
        (blocks, histogram)
    }

    /// Leaves taken one by one, and what they hold.
    fn one_by_one(bins: &[u64], wanted: u64) -> Option<(u64, u64)> {
        let mut held = 0;
        let used = bins.iter().take_while(|blocks| {
            let more = held < wanted;
            held += if more { **blocks } else { 0 };
            more
        });
        let used = used.count() as u64;
        (held >= wanted).then_some((used, held))
    }

    proptest! {
        #[test]
        fn histograms_say_what_leaves_do(
            blocks in prop::collection::vec(0..20_u64, 0..40),
            inner in 1..5_u64,
            wanted in 1..200_u64,
        ) {
            let all: u64 = blocks.iter().sum();
            let (bins, histogram) = bins(blocks);
            let expected = one_by_one(&bins, wanted).map_or(u64::MAX, |(used, _)| used);
            prop_assert_eq!(largest_first(&histogram, wanted).0, expected);
            let slots = (all / inner) as usize;
            let expected: Vec<u64> = (0..=slots as u64)
                .map(|share| {
                    let (used, held) = one_by_one(&bins, share * inner).expect("it holds so many");
                    (used << 40) | (u64::from(share > 0) << 20) | (held - share * inner).min(1_000)
                })
                .collect();
            prop_assert_eq!(costs(&histogram, slots, inner), expected);
        }

        #[test]
        fn sorting_by_counting_keeps_what_is_equal_in_place(blocks in prop::collection::vec(1..9_u64, 0..60)) {
            let leaves: Vec<(usize, u64)> = blocks.iter().enumerate().map(|(id, blocks)| (id, *blocks)).collect();
            let mut sorted: Vec<(u64, usize)> = blocks.iter().enumerate().map(|(at, b)| (*b, at)).collect();
            sorted.sort_by_key(|(blocks, _)| Reverse(*blocks));
            prop_assert_eq!(by_size(&leaves), sorted);
        }

        #[test]
        fn the_cheap_middle_domains_are_enough(
            all in prop::collection::vec(prop::collection::vec(1..30_u64, 1..5), 1..30),
            want in 1..8_usize,
        ) {
            let middles = || all.iter().enumerate().map(|(id, costs)| {
                Middle { id, costs: [0].into_iter().chain(costs.iter().copied()).collect() }
            });
            let cost = |middles: &[Middle]| {
                let shares = split(middles, want)?;
                assert_eq!(shares.iter().sum::<usize>(), want, "all blocks are given");
                Some(middles.iter().zip(shares).map(|(middle, share)| middle.costs[share]).sum::<u64>())
            };
            let all: Vec<Middle> = middles().collect();
            let mut few: Vec<Middle> = middles().collect();
            keep_cheap(&mut few, want);
            prop_assert_eq!(cost(&few), cost(&all));
        }
    }
}
