//! Backtracking for several roles: depth first over (block → domain), so that what fits is found where every order of
//! roles fails.
//!
//! ```text
//!   blocks, largest first ─▶ domains that hold one, fullest first ─▶ place ─▶ next block
//!                              ▲ equal ones tried once                └ none: roll back
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

struct Search<'a, 'b> {
    trial: &'a mut Trial<'b>,
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    top: usize,
    blocks: Vec<Block>,
    states: u64,
    most: u64,
}

/// Places the minimum of every role inside a part. `order` says which roles go first among equals.
///
/// # Errors
/// The states looked at without finding a placement.
pub fn minimum(
    trial: &mut Trial<'_>,
    problem: &Problem<'_>,
    forest: &Forest,
    top: usize,
    order: &[usize],
) -> Result<(), u64> {
    let mut blocks = Vec::new();
    for role in order {
        let spec = &problem.on.spec.roles[*role];
        // The outermost Required block inside the top; loose pods go last, all of a role at once.
        let outer =
            spec.segments.iter().rev().find(|seg| seg.required && seg.depth > forest.parts[top].depth);
        let pods = u64::from(spec.min()) * u64::from(spec.pods);
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
    let mut search = Search { trial, problem, forest, top, blocks, states: 0, most };
    if search.go(0, 0) { Ok(()) } else { Err(search.states) }
}

impl Search<'_, '_> {
    /// Places the blocks from `next` on. Of equal blocks the later ones go to the same or later parts.
    fn go(&mut self, next: usize, from: usize) -> bool {
        let Some(block) = self.blocks.get(next).copied() else { return true };
        let mut candidates = self.candidates(block, from);
        // The fullest first; of equal residuals one.
        candidates.sort_unstable();
        let mut failed: BTreeSet<Vec<u64>> = BTreeSet::new();
        for (_, part) in candidates {
            if self.states >= self.most {
                return false;
            }
            let residual = self.residual(part);
            if !failed.insert(residual) {
                continue;
            }
            self.states += 1;
            let checkpoint = self.trial.checkpoint();
            if self.put(block, part) {
                let same = self.blocks.get(next + 1) == Some(&block);
                if self.go(next + 1, if same { part } else { 0 }) {
                    return true;
                }
            }
            self.trial.rollback(checkpoint);
        }
        false
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
            left.push(u64::MAX - of.depth as u64);
            stack.extend(&of.children);
        }
        left
    }
}
