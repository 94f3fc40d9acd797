//! How pods close into blocks as the tree is walked from the inside out: one rule for the solver and the layout.
//!
//! A role's state at a depth is a stack of counters: loose base blocks (the last Required size closed), then whole
//! blocks of each Preferred size still open. A Preferred rule forms as many blocks as the counters hold; a Required
//! rule takes them all and must come out even. A Preferred block formed from smaller pieces elsewhere is broken.

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
    /// For each open Preferred size: blocks of it that were made of smaller pieces, so are broken.
    pub broken: Vec<(u32, u32)>,
}

/// Forms as many blocks of `size` as possible. Sizes divide each other.
pub fn form(counters: &[u32], sizes: &[u32], size: u32) -> Formed {
    let total: u64 = counters.iter().zip(sizes).map(|(c, s)| u64::from(*c) * u64::from(*s)).sum();
    let blocks = total / u64::from(size);
    let mut need = blocks * u64::from(size);
    let mut taken = vec![0; counters.len()];
    let mut broken = Vec::new();
    for i in (0..counters.len()).rev() {
        let of = u64::from(sizes[i]);
        let give = u64::from(counters[i]).min(need / of);
        taken[i] = give as u32;
        need -= give * of;
        if i > 0 && need > 0 {
            broken.push((sizes[i], (need / of) as u32));
        }
    }
    Formed { blocks: blocks as u32, taken, broken }
}

/// Applies a depth's rules to counters. `None` if a Required rule does not come out even. `charge` hears of broken
/// blocks: (block size, how many).
pub fn close(
    role: &RoleSpec,
    depth: usize,
    mut counters: Vec<u32>,
    mut sizes: Vec<u32>,
    charge: &mut impl FnMut(u32, u32),
) -> Option<Vec<u32>> {
    for seg in role.segments.iter().filter(|seg| seg.depth == depth) {
        let formed = form(&counters, &sizes, seg.pods);
        for (size, count) in &formed.broken {
            charge(*size, *count);
        }
        for (counter, taken) in counters.iter_mut().zip(&formed.taken) {
            *counter -= taken;
        }
        if seg.required {
            if counters.iter().any(|counter| *counter > 0) {
                return None;
            }
            counters = vec![formed.blocks];
            sizes = vec![seg.pods];
        } else {
            counters.push(formed.blocks);
            sizes.push(seg.pods);
        }
    }
    Some(counters)
}

/// Units made of all that is left at the top; `None` if it does not come out even.
pub fn units(
    role: &RoleSpec,
    counters: &[u32],
    sizes: &[u32],
    charge: &mut impl FnMut(u32, u32),
) -> Option<u32> {
    let formed = form(counters, sizes, role.pods);
    for (size, count) in &formed.broken {
        charge(*size, *count);
    }
    (formed.taken == counters).then_some(formed.blocks)
}
