//! Backtracking for several roles: depth first over (block → domain), so that what fits is found where every order of
//! roles fails, and fewer domains are used where the orders use too many.
//!
//! ```text
//!   blocks, largest first ─▶ domains that hold one, fullest first ─▶ place ─▶ next block
//!                              ▲ equal ones tried once                └ none, or no better: roll back
//! ```
//!
//! The search ends after a number of states: then nothing is said about feasibility.

use std::collections::BTreeSet;

use crate::{
    forest::{self, Forest},
    problem::Problem,
    trial::Trial,
};

/// States looked at before the search gives up.
const MOST_STATES: u64 = 2_000;
/// Work before it gives up: states times parts looked at in each.
const MOST_WORK: u64 = 4_000_000;

/// A block to place: which role, its pods, and the depth at which it closes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Block {
    role: usize,
    pods: u64,
    depth: usize,
}

struct Search<'a> {
    trial: Trial<'a>,
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    top: usize,
    blocks: Vec<Block>,
    states: u64,
    most: u64,
    /// The values to beat.
    key: Option<Vec<u64>>,
    /// The pods of the best placement so far.
    found: Option<Vec<Vec<u32>>>,
}

/// Places so many units of every role inside a part, as well as the states allow. `order` says which roles go first
/// among equals; only placements better than `than` count. Returns the pods placed.
///
/// # Errors
/// The states looked at without finding a (better) placement.
pub fn best(
    problem: &Problem<'_>,
    forest: &Forest,
    top: usize,
    order: &[usize],
    units: &[u32],
    than: Option<Vec<u64>>,
) -> Result<Vec<Vec<u32>>, u64> {
    let mut blocks = Vec::new();
    for role in order {
        let spec = &problem.on.spec.roles[*role];
        // The outermost Required block inside the top; loose pods go last, all of a role at once.
        let outer =
            spec.segments.iter().rev().find(|seg| seg.required && seg.depth > forest.parts[top].depth);
        let pods = u64::from(units[*role]) * u64::from(spec.pods);
        match outer {
            Some(seg) => {
                let block = Block { role: *role, pods: u64::from(seg.pods), depth: seg.depth };
                blocks.extend(std::iter::repeat_n(block, (pods / block.pods) as usize));
            }
            None if pods > 0 => blocks.push(Block { role: *role, pods, depth: forest.parts[top].depth }),
            None => {}
        }
    }
    blocks.sort_by_key(|block| std::cmp::Reverse((block.depth, block.pods)));
    let most = MOST_STATES.min(MOST_WORK / (forest.parts.len() as u64).max(1));
    let trial = Trial::new(problem, forest);
    let mut search = Search { trial, problem, forest, top, blocks, states: 0, most, key: than, found: None };
    search.go(0, 0);
    search.found.ok_or(search.states)
}

impl Search<'_> {
    /// Places the blocks from `next` on. Of equal blocks the later ones go to the same or later parts.
    fn go(&mut self, next: usize, from: usize) {
        let key = self.trial.key();
        if self.key.as_ref().is_some_and(|best| key >= *best) {
            return;
        }
        let Some(block) = self.blocks.get(next).copied() else {
            self.key = Some(key);
            self.found = Some(self.trial.pods.clone());
            return;
        };
        let mut candidates = self.candidates(block, from);
        // Those in use first, then the fullest; of equal residuals one.
        candidates.sort_unstable_by_key(|(pods, part)| (!self.trial.is_used(*part), *pods, *part));
        let mut seen: BTreeSet<Vec<u64>> = BTreeSet::new();
        for (_, part) in candidates {
            if self.states >= self.most {
                return;
            }
            if !seen.insert(self.residual(part)) {
                continue;
            }
            self.states += 1;
            let checkpoint = self.trial.checkpoint();
            if self.put(block, part) {
                let same = self.blocks.get(next + 1) == Some(&block);
                self.go(next + 1, if same { part } else { 0 });
            }
            self.trial.rollback(checkpoint);
        }
    }

    /// Parts of the block's depth inside the top that hold it, with the blocks they hold.
    fn candidates(&self, block: Block, from: usize) -> Vec<(u64, usize)> {
        let sizes = self.sizes(block);
        let held = self.forest.floors(&sizes, |part| self.trial.fits(block.role, part));
        let inside = self.inside();
        (from..=self.top)
            .filter(|part| *part >= inside && self.forest.parts[*part].depth == block.depth)
            .map(|part| (held[part] * sizes[block.depth], part))
            .filter(|(pods, _)| *pods >= block.pods)
            .collect()
    }

    /// First part inside the top: in post-order they lie together before it.
    fn inside(&self) -> usize {
        let mut first = self.top;
        while let Some(child) = self.forest.parts[first].children.first() {
            first = *child;
        }
        first
    }

    fn sizes(&self, block: Block) -> Vec<u64> {
        let leaf = self.problem.cluster.tree.leaf_depth();
        let role = &self.problem.on.spec.roles[block.role];
        forest::sizes_where(role, leaf, |seg| seg.required && u64::from(seg.pods) <= block.pods)
    }

    fn put(&mut self, block: Block, part: usize) -> bool {
        let sizes = self.sizes(block);
        let held = self.forest.floors(&sizes, |part| self.trial.fits(block.role, part));
        let closed = sizes[self.forest.parts[part].depth];
        let wanted = block.pods / closed;
        if held[part] < wanted {
            return false;
        }
        self.trial.fill(block.role, part, wanted, &sizes, &held);
        true
    }

    /// What a part has left, role by role and child by child, as far as later blocks can tell.
    fn residual(&self, part: usize) -> Vec<u64> {
        let mut left = Vec::new();
        let mut stack = vec![part];
        while let Some(part) = stack.pop() {
            let of = &self.forest.parts[part];
            if of.children.is_empty() {
                left.extend((0..self.problem.on.spec.roles.len()).map(|role| self.trial.fits(role, part)));
            }
            left.push(u64::MAX - 2 * of.depth as u64 - u64::from(self.trial.is_used(part)));
            stack.extend(&of.children);
        }
        left
    }
}
