//! From pods per node to units and ranks: depth first, whole blocks together, loose pods of broken blocks last, so
//! that each domain is entered once.
//!
//! ```text
//!   (node, pods) per role ──▶ pieces per open size, joined at each rule as `blocks` says ──▶ units ▸ nodes in rank order
//! ```

use crate::{blocks, forest::Forest, spec::RoleSpec, tree::Slot};

/// Pods in order: the nodes they are on.
type Piece = Vec<Slot>;

/// The units of a role, each a list of nodes in rank order. `pods` gives the pods on each part that is a node.
pub fn units(
    forest: &Forest,
    role: &RoleSpec,
    leaf_depth: usize,
    top: usize,
    pods: impl Fn(usize) -> u32,
) -> Vec<Vec<Slot>> {
    let sizes = blocks::open_sizes(role, leaf_depth);
    let mut done: Vec<Vec<Vec<Piece>>> = vec![Vec::new(); forest.parts.len()];
    for (index, part) in forest.parts.iter().enumerate() {
        let mut open: Vec<Vec<Piece>> = vec![Vec::new(); sizes[part.depth + 1].len()];
        if let Some(slot) = part.slot {
            open[0] = (0..pods(index)).map(|_| vec![slot]).collect();
        }
        for child in &part.children {
            for (list, more) in open.iter_mut().zip(std::mem::take(&mut done[*child])) {
                list.extend(more);
            }
        }
        let mut open_sizes = sizes[part.depth + 1].clone();
        for seg in role.segments.iter().filter(|seg| seg.depth == part.depth) {
            let formed = join(&mut open, &open_sizes, seg.pods);
            if seg.required {
                open = vec![formed];
                open_sizes = vec![seg.pods];
            } else {
                open.push(formed);
                open_sizes.push(seg.pods);
            }
        }
        if index == top {
            return join(&mut open, &open_sizes, role.pods);
        }
        done[index] = open;
    }
    Vec::new()
}

/// Joins pieces to as many blocks of `size` as possible; what is left stays.
fn join(open: &mut [Vec<Piece>], sizes: &[u32], size: u32) -> Vec<Piece> {
    let counters: Vec<u32> = open.iter().map(|list| list.len() as u32).collect();
    let formed = blocks::form(&counters, sizes, size);
    // Whole pieces first, the largest first, each list in depth-first order.
    let mut pods = Vec::with_capacity(formed.blocks as usize * size as usize);
    for (list, taken) in open.iter_mut().zip(&formed.taken).rev() {
        pods.extend(list.drain(..*taken as usize).flatten());
    }
    pods.chunks(size as usize).map(<[Slot]>::to_vec).collect()
}
