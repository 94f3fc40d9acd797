//! A trial placement with an undo log: what is taken of each node is data, and can be given back.
//!
//! ```text
//!   floors on what is left ─▶ fill: whole blocks, fewest children ─▶ pods per part ─┬▶ kept
//!                                                                     log ◀─────────┴▶ rolled back to a checkpoint
//! ```

use crate::{
    forest::{self, Forest},
    problem::Problem,
    spec::{Objective, RoleSpec, Seg, Spec},
};

/// A trial placement: what is taken of each node, so that it can be given back.
pub struct Trial<'a> {
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    spec: &'a Spec,
    /// Per role and part without children: pods placed.
    pub pods: Vec<Vec<u32>>,
    /// What was placed, in order: role, part, pods.
    log: Vec<(usize, usize, u32)>,
    /// The part around each part; the root is its own.
    parents: Vec<usize>,
    /// Pods inside each part.
    load: Vec<u32>,
    /// Parts with pods, by depth.
    used: Vec<u64>,
}

impl<'a> Trial<'a> {
    /// Nothing placed yet.
    pub fn new(problem: &'a Problem<'a>, forest: &'a Forest) -> Self {
        let spec = &problem.on.spec;
        let count = forest.parts.len();
        let mut parents: Vec<usize> = (0..count).collect();
        for (index, part) in forest.parts.iter().enumerate() {
            for child in &part.children {
                parents[*child] = index;
            }
        }
        let used = vec![0; problem.cluster.tree.leaf_depth() + 2];
        let (pods, load) = (vec![vec![0; count]; spec.roles.len()], vec![0; count]);
        Self { problem, forest, spec, pods, log: Vec::new(), parents, load, used }
    }

    /// Adds pods to a part without children, or takes them away.
    fn change(&mut self, role: usize, part: usize, pods: u32, add: bool) {
        let placed = &mut self.pods[role][part];
        *placed = if add { *placed + pods } else { *placed - pods };
        let mut at = part;
        loop {
            let load = &mut self.load[at];
            let before = *load > 0;
            *load = if add { *load + pods } else { *load - pods };
            let used = &mut self.used[self.forest.parts[at].depth];
            match (before, *load > 0) {
                (false, true) => *used += 1,
                (true, false) => *used -= 1,
                _ => {}
            }
            if self.parents[at] == at {
                return;
            }
            at = self.parents[at];
        }
    }

    /// The order's values so far, units and broken blocks left out: more pods never make them smaller.
    pub fn key(&self) -> Vec<u64> {
        let tree = &self.problem.cluster.tree;
        let value = |objective: &Objective| match objective {
            Objective::Units | Objective::Broken { .. } => 0,
            Objective::Span => self.used[1..].iter().filter(|used| **used > 1).count() as u64,
            Objective::Domains(level) => tree.topology.level(level).map_or(0, |level| self.used[level + 1]),
        };
        self.spec.order.iter().map(value).collect()
    }

    /// Whether any pod lies in a part.
    pub fn is_used(&self, part: usize) -> bool {
        self.load[part] > 0
    }

    /// A point to come back to.
    pub fn checkpoint(&self) -> usize {
        self.log.len()
    }

    /// Takes back everything placed since a checkpoint.
    pub fn rollback(&mut self, checkpoint: usize) {
        while self.log.len() > checkpoint {
            if let Some((role, part, pods)) = self.log.pop() {
                self.change(role, part, pods, false);
            }
        }
    }

    /// How many pods of a role still fit a node.
    pub fn fits(&self, role: usize, part: usize) -> u64 {
        let most = self.forest.parts[part].fits[role];
        let alone = self.pods.iter().all(|pods| pods[part] == 0);
        if alone || most == 0 {
            return most;
        }
        let slot = self.forest.parts[part].slot;
        let Some(node) = slot.and_then(|slot| self.problem.cluster.node(slot)) else {
            return most.saturating_sub(u64::from(self.pods[role][part]));
        };
        let used = |column: usize| -> i64 {
            let of = |(other, pods): (&RoleSpec, &Vec<u32>)| other.asks(column) * i64::from(pods[part]);
            self.spec.roles.iter().zip(&self.pods).map(of).sum()
        };
        let request = &self.spec.roles[role].request;
        let left = request
            .iter()
            .filter(|(_, amount)| *amount > 0)
            .map(|(column, amount)| (node.left(*column, false) - used(*column)).max(0) / amount)
            .min()
            .unwrap_or(0);
        most.min(left as u64)
    }

    /// Blocks of a role that each part still takes, by its `spread` rules as well.
    fn floors(&self, role: usize, sizes: &[u64]) -> Vec<u64> {
        let fits = |part: usize| self.fits(role, part);
        let rules = self.spec.rules.spread.iter().enumerate().filter(|(_, spread)| spread.role == role);
        let rules: Vec<_> = rules.collect();
        if rules.is_empty() {
            return self.forest.floors(sizes, fits);
        }
        let per_unit = u64::from(self.spec.roles[role].pods);
        let mut inside: Vec<u64> = self.pods[role].iter().map(|pods| u64::from(*pods)).collect();
        for (at, part) in self.forest.parts.iter().enumerate() {
            inside[at] += part.children.iter().map(|child| inside[*child]).sum::<u64>();
        }
        self.forest.floors_within(sizes, fits, |at, blocks| {
            let part = &self.forest.parts[at];
            let here = rules.iter().filter(|(_, spread)| spread.depth == part.depth);
            here.fold(blocks, |blocks, (rule, spread)| {
                let room = self.problem.limits.room(*rule, spread, (part.domain, part.slot));
                let left = (u64::from(room) * per_unit).saturating_sub(inside[at]);
                blocks.min(left / sizes[part.depth])
            })
        })
    }

    /// Places up to `most` units of a role inside `top`. Returns how many.
    pub fn place(&mut self, role: usize, top: usize, most: u32) -> u32 {
        let spec = &self.spec.roles[role];
        let leaf = self.problem.cluster.tree.leaf_depth();
        let strict = self.fill_units(role, top, most, &forest::block_sizes(spec, leaf, true));
        if strict == most || spec.segments.iter().all(|seg| seg.required) {
            return strict;
        }
        // Units that cannot keep every Preferred block whole: as many whole blocks as there are, then loose pods.
        let loose = forest::block_sizes(spec, leaf, false);
        let blocks = self.floors(role, &loose);
        let room = blocks[top] * loose[self.forest.parts[top].depth] / u64::from(spec.pods);
        let more = room.min(u64::from(most - strict)) as u32;
        let mut pods = u64::from(more) * u64::from(spec.pods);
        if let Some(whole) = first_preferred(spec) {
            pods -= self.fill_blocks(role, top, pods, u64::from(whole.pods));
        }
        let blocks = self.floors(role, &loose);
        self.fill(role, top, pods / loose[self.forest.parts[top].depth], &loose, &blocks);
        strict + more
    }

    fn fill_units(&mut self, role: usize, top: usize, most: u32, sizes: &[u64]) -> u32 {
        let blocks = self.floors(role, sizes);
        let per_unit = u64::from(self.spec.roles[role].pods) / sizes[self.forest.parts[top].depth];
        let units = (blocks[top] / per_unit).min(u64::from(most)) as u32;
        self.fill(role, top, u64::from(units) * per_unit, sizes, &blocks);
        units
    }

    /// Places as many whole blocks of a Preferred size as `pods` and the room allow. Returns the pods placed.
    fn fill_blocks(&mut self, role: usize, top: usize, pods: u64, size: u64) -> u64 {
        let spec = &self.spec.roles[role];
        let leaf = self.problem.cluster.tree.leaf_depth();
        let sizes = forest::sizes_where(spec, leaf, |seg| u64::from(seg.pods) <= size);
        let closed = sizes[self.forest.parts[top].depth];
        let blocks = self.floors(role, &sizes);
        let count = blocks[top].min(pods / closed);
        self.fill(role, top, count, &sizes, &blocks);
        count * closed
    }

    /// Places `wanted` blocks of the size closed at the part's depth; `blocks` says how many each part holds.
    pub fn fill(&mut self, role: usize, part: usize, wanted: u64, sizes: &[u64], blocks: &[u64]) {
        if wanted == 0 {
            return;
        }
        let depth = self.forest.parts[part].depth;
        if self.forest.parts[part].children.is_empty() {
            let pods = (wanted * sizes[depth]) as u32;
            self.change(role, part, pods, true);
            self.log.push((role, part, pods));
            return;
        }
        let mut rest = wanted * forest::ratio(sizes, depth);
        let mut children: Vec<usize> =
            self.forest.parts[part].children.iter().copied().filter(|child| blocks[*child] > 0).collect();
        children
            .sort_by_key(|child| (blocks[*child], self.forest.parts[*child].fits[role], usize::MAX - *child));
        while rest > 0 {
            // The one that just holds the rest, rather one that is used anyway; else the largest.
            let enough = children.partition_point(|child| blocks[*child] < rest);
            let child = if enough < children.len() {
                let used = (enough..children.len()).find(|at| self.is_used(children[*at]));
                children.remove(used.unwrap_or(enough))
            } else {
                let Some(largest) = children.pop() else { return };
                largest
            };
            let give = rest.min(blocks[child]);
            self.fill(role, child, give, sizes, blocks);
            rest -= give;
        }
    }
}

/// The smallest Preferred rule, if no Required rule encloses it: then its whole blocks can be placed one by one.
fn first_preferred(role: &RoleSpec) -> Option<&Seg> {
    let first = role.segments.iter().find(|seg| !seg.required)?;
    role.segments.iter().all(|seg| !seg.required || seg.pods < first.pods).then_some(first)
}
