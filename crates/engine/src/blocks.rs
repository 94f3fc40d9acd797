//! How pods close into blocks as the tree is walked from the inside out, for the layout.
//!
//! A role's state at a depth is a stack of counters: loose base blocks (the last Required size closed), then whole
//! blocks of each Preferred size still open. A Preferred rule forms as many blocks as the counters hold; a Required
//! rule takes them all and must come out even. Whole pieces are used first, the largest before the smaller, so that of
//! every Preferred size as many blocks stay whole as the pods allow: ⌊pods / size⌋ in each domain of its level.

use crate::spec::RoleSpec;

/// Sizes of the open counters after each depth (index); the last entry is before the node: `[1]`.
pub fn open_sizes(role: &RoleSpec, leaf_depth: usize) -> Vec<Vec<u32>> {
    let mut all = vec![vec![1]; leaf_depth + 3];
    for depth in (0..=leaf_depth + 1).rev() {
        let mut sizes = all[depth + 1].clone();
        for seg in role.segments.iter().filter(|seg| seg.depth == depth) {
            if seg.required {
                sizes = vec![seg.pods];
            } else {
                sizes.push(seg.pods);
            }
        }
        all[depth] = sizes;
    }
    all
}

/// Blocks of `size` formed from counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Formed {
    /// How many.
    pub blocks: u32,
    /// What each counter gave, largest first being used first.
    pub taken: Vec<u32>,
}

/// Forms as many blocks of `size` as possible. Sizes divide each other.
pub fn form(counters: &[u32], sizes: &[u32], size: u32) -> Formed {
    let total: u64 = counters.iter().zip(sizes).map(|(c, s)| u64::from(*c) * u64::from(*s)).sum();
    let blocks = total / u64::from(size);
    let mut need = blocks * u64::from(size);
    let mut taken = vec![0; counters.len()];
    for i in (0..counters.len()).rev() {
        let of = u64::from(sizes[i]);
        let give = u64::from(counters[i]).min(need / of);
        taken[i] = give as u32;
        need -= give * of;
    }
    Formed { blocks: blocks as u32, taken }
}
