//! From pods per node to units and ranks: depth first, whole blocks together, loose pods of broken blocks last, so
//! that each domain is entered once.
//!
//! ```text
//!   (node, pods) per role ──▶ pieces per open size, joined at each rule as `blocks` says ──▶ units ▸ nodes in rank order
//! ```

use crate::{blocks, forest::Forest, spec::RoleSpec, tree::Slot};

/// Pods in order: the nodes they are on.
type Piece = Vec<Slot>;

/// The units of a role, each a list of nodes in rank order. `nodes` gives the pods on each node of a part without
/// children.
pub fn units(
    forest: &Forest,
    role: &RoleSpec,
    leaf_depth: usize,
    top: usize,
    nodes: impl Fn(usize) -> Vec<(Slot, u32)>,
) -> Vec<Vec<Slot>> {
    let sizes = blocks::open_sizes(role, leaf_depth);
    let mut done: Vec<Vec<Vec<Piece>>> = vec![Vec::new(); forest.parts.len()];
    for (index, part) in forest.parts.iter().enumerate() {
        let mut open: Vec<Vec<Piece>> = vec![Vec::new(); sizes[(part.depth + 1).min(leaf_depth + 1)].len()];
        if part.children.is_empty() {
            for (slot, pods) in nodes(index) {
                let mut on_node = vec![(0..pods).map(|_| vec![slot]).collect()];
                close(role, leaf_depth + 1, &mut on_node, vec![1]);
                gather(&mut open, on_node);
            }
        }
        for child in &part.children {
            gather(&mut open, std::mem::take(&mut done[*child]));
        }
        if part.depth <= leaf_depth {
            close(role, part.depth, &mut open, sizes[part.depth + 1].clone());
        }
        if index == top {
            return join(&mut open, &sizes[part.depth], role.pods);
        }
        done[index] = open;
    }
    Vec::new()
}

fn gather(open: &mut [Vec<Piece>], more: Vec<Vec<Piece>>) {
    for (list, more) in open.iter_mut().zip(more) {
        list.extend(more);
    }
}

/// Applies a depth's rules.
fn close(role: &RoleSpec, depth: usize, open: &mut Vec<Vec<Piece>>, mut sizes: Vec<u32>) {
    for seg in role.segments.iter().filter(|seg| seg.depth == depth) {
        let formed = join(open, &sizes, seg.pods);
        if seg.required {
            *open = vec![formed];
            sizes = vec![seg.pods];
        } else {
            open.push(formed);
            sizes.push(seg.pods);
        }
    }
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
