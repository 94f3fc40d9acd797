//! The parts of an order that add up over disjoint subtrees, packed into one integer so that a smaller integer is a
//! better plan.

use crate::{
    forest::Forest,
    spec::{Objective, Spec},
    tree::Tree,
};

/// What may be charged, with its place in the packed cost.
#[derive(Clone, Debug)]
pub struct Packing {
    /// For each objective of the order that adds up: shift and width, and by how much its charges are divided.
    fields: Vec<Option<((u32, u32), u64)>>,
    /// Charge for using a domain, by depth.
    pub domain: Vec<u128>,
    /// Charge per pod that is in no whole block: role, size, charge. As many as a block has are one broken block.
    loose: Vec<(usize, u32, u128)>,
    /// Charge for using a leaf domain that nothing else uses.
    pub opened: u128,
    /// Charge per unit of [`potential`] lost in a leaf domain.
    pub lost: u128,
    /// Charge per pod's worth of room left in a used domain, by depth.
    pub left: Vec<u128>,
}

/// Block sizes that later gangs are likely to ask for.
const BLOCKS: [u64; 5] = [1, 2, 4, 8, 16];

/// Worth of `free` pods' room in one domain: the pods that blocks of each usual size could use. A gang of 2 leaves more
/// behind in a domain of 6 (a block of 4) than in one of 5 or 4.
pub fn potential(free: u64) -> u64 {
    BLOCKS.iter().map(|size| free / size * size).sum()
}

fn bits(most: u64) -> u32 {
    64 - most.leading_zeros()
}

impl Packing {
    /// Assigns fields: the order's first, then tightness: empty leaf domains opened, then blocks that no longer fit
    /// there, then room left in used domains, from the inside out. What would not fit 127 bits is left out, least important first.
    pub fn new(tree: &Tree, forest: &Forest, spec: &Spec) -> Self {
        let depths = tree.leaf_depth() + 2;
        let pods: u64 = spec.roles.iter().map(|r| u64::from(r.max()) * u64::from(r.pods)).sum();
        let mut domains_at = vec![0_u64; depths];
        for part in &forest.parts {
            domains_at[part.depth] += 1;
        }
        if forest.leaves_only {
            // Nodes are there all the same: as many as pods at most.
            domains_at[depths - 1] = pods;
        }
        let room: u64 = forest.parts.last().map_or(0, |root| root.fits.iter().copied().max().unwrap_or(0));
        let mut top = 127;
        let mut take = |most: u64| {
            let width = bits(most);
            (top >= width).then(|| {
                top -= width;
                (top, width)
            })
        };
        let mut packing = Self {
            fields: Vec::with_capacity(spec.order.len()),
            domain: vec![0; depths],
            loose: Vec::new(),
            opened: 0,
            lost: 0,
            left: vec![0; depths],
        };
        for objective in &spec.order {
            let field = match objective {
                Objective::Units | Objective::Span => None,
                Objective::Broken { role, pods: size } => {
                    spec.roles.iter().position(|r| r.name == *role).and_then(|index| {
                        let role = &spec.roles[index];
                        let field = take(u64::from(role.max()) * u64::from(role.pods))?;
                        packing.loose.push((index, *size, 1 << field.0));
                        Some((field, u64::from(*size).max(1)))
                    })
                }
                Objective::Domains(level) => tree.topology.level(level).and_then(|position| {
                    let field = take(pods.min(domains_at[position + 1]))?;
                    packing.domain[position + 1] = 1 << field.0;
                    Some((field, 1))
                }),
            };
            packing.fields.push(field);
        }
        let leaf = tree.leaf_depth();
        packing.opened = take(domains_at[leaf]).map_or(0, |field| 1 << field.0);
        packing.lost = take(room * BLOCKS.len() as u64).map_or(0, |field| 1 << field.0);
        for depth in (1..=leaf).rev() {
            packing.left[depth] = take(room).map_or(0, |field| 1 << field.0);
        }
        packing
    }

    /// The charge of an objective (by its position in the order) within a packed cost.
    pub fn value(&self, position: usize, cost: u128) -> u64 {
        let value = |((shift, width), divisor): ((u32, u32), u64)| {
            ((cost >> shift) as u64 & ((1_u64 << width) - 1)) / divisor
        };
        self.fields[position].map_or(0, value)
    }

    /// The charge for pods of a role that are in no whole block of a size.
    pub fn loose(&self, role: usize, size: u32, pods: u32) -> u128 {
        let of = self.loose.iter().find(|(r, s, _)| (*r, *s) == (role, size));
        of.map_or(0, |(_, _, charge)| charge * u128::from(pods))
    }
}
