//! Blocks by domain, for one shape and its nested segments.
//!
//! ```text
//!   blocks came or went in a leaf domain ─▶ up the tree, floors taken at each depth, as far as the difference shows
//!                                       └─▶ leaf domains by blocks, and how many of each inside every outer domain
//! ```

use crate::{
    index::ShapeId,
    tree::{DomainId, Tree},
};

/// Leaf domains with more blocks than this share a bucket.
pub const LARGEST_BUCKET: usize = 1_023;

/// Segments as the index counts them: blocks of `chunk` pods close at the node, and at each depth `ratio` of what
/// comes up make one block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainKey {
    /// Which shape.
    pub shape: ShapeId,
    /// Pods of a block that closes at the node.
    pub chunk: u32,
    /// By depth, from the root to the leaf domains.
    pub ratios: Vec<u32>,
}

/// How many blocks of a chain fit where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// What it counts.
    pub key: ChainKey,
    /// Blocks that come up to a domain, before its own ratio.
    pub raw: Vec<u32>,
    /// The same, empty.
    pub empty: Vec<u32>,
    /// Leaf domains by blocks, as bit sets over domain ids.
    pub buckets: Vec<Vec<u64>>,
    /// By outer domain: how many leaf domains inside it have each number of blocks (0 is not counted).
    pub histograms: Vec<Vec<u32>>,
}

/// How many more blocks of `chunk` pods fit a node after a change.
pub fn more_blocks(chunk: u32, before: u16, after: u16) -> i64 {
    i64::from(u32::from(after) / chunk) - i64::from(u32::from(before) / chunk)
}

impl Chain {
    /// No blocks anywhere.
    pub fn new(key: ChainKey) -> Self {
        Self { key, raw: Vec::new(), empty: Vec::new(), buckets: Vec::new(), histograms: Vec::new() }
    }

    /// Blocks came (or went) in a leaf domain's nodes: carries the difference up as far as it shows.
    pub fn change(&mut self, tree: &Tree, leaf: DomainId, mut delta: i64, empty: bool) {
        let mut at = leaf;
        let mut depth = tree.leaf_depth();
        while delta != 0 {
            let ratio = self.key.ratios[depth];
            let raw = at_mut(if empty { &mut self.empty } else { &mut self.raw }, at);
            let old = *raw / ratio;
            *raw = (i64::from(*raw) + delta) as u32;
            let new = *raw / ratio;
            delta = i64::from(new) - i64::from(old);
            if depth == tree.leaf_depth() && !empty && delta != 0 {
                self.move_bucket(tree, at, old as usize, new as usize);
            }
            if depth == 0 {
                break;
            }
            at = tree.parent(at);
            depth -= 1;
        }
    }

    /// A leaf domain has another number of blocks.
    fn move_bucket(&mut self, tree: &Tree, leaf: DomainId, old: usize, new: usize) {
        let (old, new) = (old.min(LARGEST_BUCKET), new.min(LARGEST_BUCKET));
        if old == new {
            return;
        }
        let (word, bit) = (leaf / 64, 1_u64 << (leaf % 64));
        if old > 0 {
            self.buckets[old][word] &= !bit;
        }
        if new > 0 {
            *at_mut(at_mut(&mut self.buckets, new), word) |= bit;
        }
        for outer in tree.ancestors(leaf).skip(1) {
            let histogram = at_mut(&mut self.histograms, outer);
            if old > 0 {
                histogram[old] -= 1;
            }
            if new > 0 {
                *at_mut(histogram, new) += 1;
            }
        }
    }
}

/// An entry of a list that grows as need be.
pub fn at_mut<T: Default + Clone>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}
