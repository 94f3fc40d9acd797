//! The exact solver: dynamic programming over the tree, with one counter per role.
//!
//! ```text
//!   node: how many pods of each role ─▶ domain: children joined (min-plus), rules closed, charges added ─▶ … ─▶ top
//! ```
//!
//! A table holds the least cost for every vector of counters. The number of steps is known beforehand from the
//! tables' extents, so a search that would not end in time is not begun.
//!
//! A counter counts blocks of the last Required size closed. Preferred rules need no counters of their own: sizes divide
//! each other, so in every domain whole blocks of all sizes can be had at once, ⌊pods / size⌋ of each. Of T pods
//! T / size − Σ ⌊pods / size⌋ blocks are broken, which is Σ (pods mod size) / size: a charge that adds up over domains.

use std::collections::BTreeSet;

use crate::{
    cost::{Packing, potential},
    forest::{Forest, block_sizes},
    nodes,
    problem::Problem,
    rules,
    spec::{Objective, RoleSpec, Spec},
    tree::DomainId,
};

/// Cost of a vector that cannot be reached.
const NEVER: u128 = u128::MAX;

/// Least costs by vector of counters; the first counter varies fastest.
#[derive(Clone, Debug, Default)]
struct Table {
    extents: Vec<usize>,
    costs: Vec<u128>,
}

impl Table {
    fn of(extents: Vec<usize>) -> Self {
        let size = extents.iter().product();
        Self { extents, costs: vec![NEVER; size] }
    }

    fn index(&self, counters: &[u32]) -> usize {
        counters
            .iter()
            .zip(&self.extents)
            .rev()
            .fold(0, |at, (counter, extent)| at * extent + *counter as usize)
    }

    fn counters(&self, mut index: usize) -> Vec<u32> {
        self.extents
            .iter()
            .map(|extent| {
                let counter = index % extent;
                index /= extent;
                counter as u32
            })
            .collect()
    }

    fn reached(&self) -> impl Iterator<Item = (usize, u128)> + '_ {
        self.costs.iter().copied().enumerate().filter(|(_, cost)| *cost != NEVER)
    }
}

/// How a part's table came about, for walking back.
#[derive(Clone, Debug, Default)]
struct Trail {
    /// Per child: for each entry of the joined table, the entries before it and in the child.
    joins: Vec<Vec<(u32, u32)>>,
    /// For each entry of the closed table, the entry of the joined table.
    closed: Vec<u32>,
    /// For leaf parts solved at once: nothing to walk.
    table: Table,
}

/// The best plan found.
#[derive(Clone, Debug)]
pub struct Best {
    /// Units per role.
    pub units: Vec<u32>,
    /// Index of the part inside which all lies.
    pub top: usize,
    /// Pods per role on each part without children: nodes, or leaf domains whose nodes are chosen after.
    pub pods: Vec<Vec<u32>>,
}

/// A prepared search.
pub struct Search<'a> {
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    spec: &'a Spec,
    packing: &'a Packing,
    /// Domains already paid for (by units that stay where they are).
    paid: &'a BTreeSet<DomainId>,
    /// By role and depth, the last Required size closed.
    sizes: Vec<Vec<u32>>,
    leaf_depth: usize,
    /// The role by whose pods room is measured.
    gauge: usize,
    /// Whether there are rules between roles or units.
    ruled: bool,
}

impl<'a> Search<'a> {
    /// Prepares a search.
    pub fn new(
        problem: &'a Problem<'a>,
        forest: &'a Forest,
        packing: &'a Packing,
        paid: &'a BTreeSet<DomainId>,
    ) -> Self {
        let spec = &problem.on.spec;
        let leaf_depth = problem.cluster.tree.leaf_depth();
        let closed = |role: &RoleSpec| -> Vec<u32> {
            block_sizes(role, leaf_depth, false).into_iter().map(|size| size as u32).collect()
        };
        let sizes = spec.roles.iter().map(closed).collect();
        let gauge = forest
            .parts
            .last()
            .map_or(0, |root| (0..spec.roles.len()).min_by_key(|role| root.fits[*role]).unwrap_or(0));
        let ruled = !spec.rules.is_empty();
        Self { problem, forest, spec, packing, paid, sizes, leaf_depth, gauge, ruled }
    }

    /// Whether a part is a leaf domain whose nodes are not looked at one by one.
    fn is_whole_leaf(&self, index: usize) -> bool {
        self.forest.leaves_only && self.forest.parts[index].depth == self.leaf_depth
    }

    /// Largest useful counters before the rules of a depth, plus one.
    fn caps(&self, depth: usize) -> Vec<usize> {
        let cap = |(role, sizes): (&RoleSpec, &Vec<u32>)| {
            let pods = u64::from(role.max()) * u64::from(role.pods);
            (pods / u64::from(sizes[depth])) as usize + 1
        };
        self.spec.roles.iter().zip(&self.sizes).map(cap).collect()
    }

    /// Steps that the search would take, or `None` above `budget`.
    pub fn steps(&self, budget: u64) -> Option<u64> {
        let mut extents: Vec<Vec<usize>> = vec![Vec::new(); self.forest.parts.len()];
        let mut steps = 0_u64;
        for (index, part) in self.forest.parts.iter().enumerate() {
            let mut joined = vec![1; self.sizes.len()];
            if part.slot.is_some() {
                joined = self.node_extents(index);
            } else if self.is_whole_leaf(index) {
                joined = vec![self.leaf_extent(index)];
                steps += joined[0] as u64;
            } else {
                let caps = self.caps(part.depth + 1);
                for child in &part.children {
                    let pairs = joined.iter().chain(&extents[*child]);
                    steps = steps.saturating_add(pairs.fold(1_u64, |all, e| all.saturating_mul(*e as u64)));
                    joined = joined_extents(&joined, &extents[*child], &caps);
                }
            }
            let size = joined.iter().fold(1_u64, |all, extent| all.saturating_mul(*extent as u64));
            steps = steps.saturating_add(size);
            if steps > budget {
                return None;
            }
            extents[index] = self.closed_extents(part.depth, &joined);
        }
        Some(steps)
    }

    fn node_extents(&self, index: usize) -> Vec<usize> {
        let caps = self.caps(self.leaf_depth + 2);
        let fits = &self.forest.parts[index].fits;
        fits.iter().zip(caps).map(|(fit, cap)| (*fit as usize + 1).min(cap)).collect()
    }

    fn leaf_extent(&self, index: usize) -> usize {
        let size = u64::from(self.sizes[0][self.leaf_depth + 1]);
        let blocks = self.forest.parts[index].fits[0] / size;
        (blocks as usize + 1).min(self.caps(self.leaf_depth + 1)[0])
    }

    /// Extents after a depth's rules.
    fn closed_extents(&self, depth: usize, joined: &[usize]) -> Vec<usize> {
        let closed = |(extent, sizes): (&usize, &Vec<u32>)| {
            (extent - 1) * sizes[depth + 1] as usize / sizes[depth] as usize + 1
        };
        joined.iter().zip(&self.sizes).map(closed).collect()
    }

    /// Runs it. `None` if no allowed vector of units can be placed: then none exists.
    pub fn run(&self) -> Option<Best> {
        let mut trails: Vec<Trail> = Vec::with_capacity(self.forest.parts.len());
        let mut best: Option<(Vec<i128>, usize, usize)> = None;
        for index in 0..self.forest.parts.len() {
            let trail = self.solve_part(index, &trails);
            if self.is_candidate(index) {
                for (entry, cost) in trail.table.reached() {
                    if let Some(key) = self.judge(index, &trail.table, entry, cost)
                        && best.as_ref().is_none_or(|(least, ..)| key < *least)
                    {
                        best = Some((key, index, entry));
                    }
                }
            }
            trails.push(trail);
        }
        let (_, top, entry) = best?;
        let mut pods = vec![vec![0; self.forest.parts.len()]; self.spec.roles.len()];
        self.walk(top, entry, &trails, &mut pods);
        let units = self.units(top, &trails[top].table, entry)?;
        Some(Best { units, top, pods })
    }

    fn is_candidate(&self, index: usize) -> bool {
        let depth = self.forest.parts[index].depth;
        if self.spec.order.contains(&Objective::Span) {
            depth >= self.spec.within
        } else {
            depth == self.spec.within || index + 1 == self.forest.parts.len() && depth > self.spec.within
        }
    }

    /// Units per role if an entry makes whole, allowed units.
    fn units(&self, index: usize, table: &Table, entry: usize) -> Option<Vec<u32>> {
        let depth = self.forest.parts[index].depth;
        let counters = table.counters(entry);
        let mut all = Vec::with_capacity(self.spec.roles.len());
        for ((role, sizes), counter) in self.spec.roles.iter().zip(&self.sizes).zip(counters) {
            let pods = counter * sizes[depth];
            let count = pods / role.pods;
            if pods % role.pods != 0 || role.counts.binary_search(&count).is_err() {
                return None;
            }
            all.push(count);
        }
        (all.iter().sum::<u32>() > 0 && self.spec.rules.ratios_hold(&all)).then_some(all)
    }

    fn value(&self, position: usize, top: usize, units: &[u32], cost: u128) -> u64 {
        match &self.spec.order[position] {
            Objective::Units => units.iter().map(|u| u64::from(*u)).sum(),
            Objective::Span if self.on_one_node(top, units) => 0,
            Objective::Span => (self.leaf_depth + 1 - self.forest.parts[top].depth) as u64,
            _ => self.packing.value(position, cost),
        }
    }

    /// Whether a leaf domain whose nodes are not looked at holds it all on one node.
    fn on_one_node(&self, top: usize, units: &[u32]) -> bool {
        self.is_whole_leaf(top)
            && nodes::by_room(self.problem, self.forest.parts[top].domain, nodes::chunk(self.problem))
                .first()
                .is_some_and(|(room, _)| *room >= u64::from(units[0]) * u64::from(self.spec.roles[0].pods))
    }

    /// The key by which entries are compared: the order's values (units negated), spares that would not fit beside
    /// it right after the span, then the packed cost with its tightness.
    fn judge(&self, index: usize, table: &Table, entry: usize, cost: u128) -> Option<Vec<i128>> {
        let units = self.units(index, table, entry)?;
        if self.ruled && !rules::top_keeps(self.problem, &self.forest.parts[index], &units) {
            return None;
        }
        let missing = self.missing_spares(index, &units);
        let mut key = Vec::with_capacity(self.spec.order.len() + 2);
        for (position, objective) in self.spec.order.iter().enumerate() {
            let value = i128::from(self.value(position, index, &units, cost));
            key.push(if *objective == Objective::Units { -value } else { value });
            if *objective == Objective::Span {
                key.push(missing);
            }
        }
        key.push(cost as i128);
        Some(key)
    }

    fn missing_spares(&self, index: usize, units: &[u32]) -> i128 {
        let part = &self.forest.parts[index];
        let roles = self.spec.roles.iter().zip(units).zip(&part.fits);
        roles
            .map(|((role, units), fits)| {
                let free = i128::from(*fits) - i128::from(*units) * i128::from(role.pods);
                (i128::from(role.spares) - free).max(0)
            })
            .sum()
    }

    fn solve_part(&self, index: usize, trails: &[Trail]) -> Trail {
        let part = &self.forest.parts[index];
        let mut trail = Trail::default();
        let joined = if part.slot.is_some() {
            self.node_table(index)
        } else if self.is_whole_leaf(index) {
            self.leaf_table(index)
        } else {
            let caps = self.caps(part.depth + 1);
            let mut joined = Table::of(vec![1; caps.len()]);
            joined.costs[0] = 0;
            // Roles that lie in one domain further inside: two children must not both have some.
            let near = self.spec.rules.near.iter().filter(|near| near.depth > part.depth);
            let apart: Vec<&[usize]> = near.map(|near| near.roles.as_slice()).collect();
            for child in &part.children {
                let (next, join) = join(&joined, &trails[*child].table, &caps, &apart);
                trail.joins.push(join);
                joined = next;
            }
            joined
        };
        self.close(index, &joined, &mut trail);
        trail
    }

    /// All vectors of pods that a node holds.
    fn node_table(&self, index: usize) -> Table {
        let mut table = Table::of(self.node_extents(index));
        let Some(node) = self.forest.parts[index].slot.and_then(|slot| self.problem.cluster.node(slot))
        else {
            return table;
        };
        for entry in 0..table.costs.len() {
            let counters = table.counters(entry);
            let mut needed: Vec<(usize, i64)> = Vec::new();
            for (role, count) in self.spec.roles.iter().zip(&counters) {
                for (column, amount) in &role.request {
                    match needed.iter_mut().find(|(c, _)| c == column) {
                        Some((_, sum)) => *sum += amount * i64::from(*count),
                        None => needed.push((*column, amount * i64::from(*count))),
                    }
                }
            }
            if needed.iter().all(|(column, amount)| *amount <= 0 || node.left(*column, false) >= *amount) {
                table.costs[entry] = 0;
            }
        }
        table
    }

    /// Least cost of t blocks on a leaf domain's nodes: the fewest nodes, those with most room first.
    fn leaf_table(&self, index: usize) -> Table {
        let mut table = Table::of(vec![self.leaf_extent(index)]);
        let charge = self.packing.domain[self.leaf_depth + 1];
        let size = u64::from(self.sizes[0][self.leaf_depth + 1]);
        let rooms = if charge == 0 || nodes::one_block_each(self.problem, nodes::chunk(self.problem)) {
            Vec::new()
        } else {
            nodes::by_room(self.problem, self.forest.parts[index].domain, nodes::chunk(self.problem))
        };
        let (mut used, mut held) = (0_u128, 0);
        for entry in 0..table.costs.len() {
            while held < entry as u64 * size {
                held += rooms.get(used as usize).map_or(size, |(room, _)| *room);
                used += 1;
            }
            table.costs[entry] = used * charge;
        }
        table
    }

    /// Applies a depth's rules and charges to a joined table.
    fn close(&self, index: usize, joined: &Table, trail: &mut Trail) {
        let part = &self.forest.parts[index];
        let mut table = Table::of(self.closed_extents(part.depth, &joined.extents));
        trail.closed = vec![0; table.costs.len()];
        let ruled =
            self.spec.roles.iter().any(|role| role.segments.iter().any(|seg| seg.depth == part.depth));
        for (entry, cost) in joined.reached() {
            let mut cost = cost + self.charge(index, joined, entry);
            let target = if ruled {
                let Some((counters, loose)) = self.close_counters(part.depth, &joined.counters(entry)) else {
                    continue;
                };
                cost += loose;
                table.index(&counters)
            } else {
                entry
            };
            if self.ruled && !self.part_keeps_rules(index, &table.counters(target)) {
                continue;
            }
            if cost < table.costs[target] {
                table.costs[target] = cost;
                trail.closed[target] = entry as u32;
            }
        }
        trail.table = table;
    }

    /// Counters after a depth's rules, with the charge for Preferred blocks that are not whole. `None` if a Required
    /// rule does not come out even.
    fn close_counters(&self, depth: usize, counters: &[u32]) -> Option<(Vec<u32>, u128)> {
        let mut charge = 0;
        let mut after = Vec::with_capacity(counters.len());
        for (i, counter) in counters.iter().enumerate() {
            let pods = counter * self.sizes[i][depth + 1];
            for seg in self.spec.roles[i].segments.iter().filter(|seg| seg.depth == depth && !seg.required) {
                charge += self.packing.loose(i, seg.pods, pods % seg.pods);
            }
            if !pods.is_multiple_of(self.sizes[i][depth]) {
                return None;
            }
            after.push(pods / self.sizes[i][depth]);
        }
        Some((after, charge))
    }

    /// Whether the counters of a part, its depth's rules applied, keep what must lie there or apart.
    fn part_keeps_rules(&self, index: usize, counters: &[u32]) -> bool {
        let part = &self.forest.parts[index];
        let place = (part.domain, part.slot);
        let limits = self.problem.limits;
        let near = self.spec.rules.near.iter().enumerate().filter(|(_, near)| near.depth == part.depth);
        let mut spread = self.spec.rules.spread.iter().enumerate().filter(|(_, s)| s.depth == part.depth);
        near.filter_map(|(rule, near)| Some((near, limits.confined(rule)?)))
            .all(|(near, at)| at == place || !rules::has_any(counters, &near.roles))
            && spread.all(|(rule, s)| {
                // Units are whole here: their rule is one of this depth, or of one further inside.
                let pods = counters[s.role] * self.sizes[s.role][part.depth];
                pods / self.spec.roles[s.role].pods <= limits.room(rule, s, place)
            })
    }

    /// What using a part as an entry does costs: the domain itself, and how tightly it is filled.
    fn charge(&self, index: usize, joined: &Table, entry: usize) -> u128 {
        let part = &self.forest.parts[index];
        if entry == 0 || part.depth == 0 {
            return 0;
        }
        let paid = part.slot.is_none() && self.paid.contains(&part.domain);
        let mut cost = if paid { 0 } else { self.packing.domain[part.depth] };
        if part.depth == self.leaf_depth && part.untouched && !paid {
            cost += self.packing.opened;
        }
        let gauged = self.packing.left[part.depth] > 0 || part.depth == self.leaf_depth;
        if gauged && part.slot.is_none() {
            let counters = joined.counters(entry);
            let used = u64::from(counters[self.gauge]) * u64::from(self.sizes[self.gauge][part.depth + 1]);
            let left = part.fits[self.gauge].saturating_sub(used);
            cost += self.packing.left[part.depth] * u128::from(left);
            if part.depth == self.leaf_depth {
                let lost = potential(part.fits[self.gauge]) - potential(left);
                cost += self.packing.lost * u128::from(lost);
            }
        }
        cost
    }

    /// Walks back from an entry of a part's table to the pods on its nodes.
    fn walk(&self, index: usize, entry: usize, trails: &[Trail], pods: &mut [Vec<u32>]) {
        let part = &self.forest.parts[index];
        let trail = &trails[index];
        let mut joined = trail.closed[entry] as usize;
        if part.slot.is_some() {
            let counters = Table { extents: self.node_extents(index), costs: Vec::new() }.counters(joined);
            for (role, count) in counters.into_iter().enumerate() {
                pods[role][index] = count;
            }
        } else if self.is_whole_leaf(index) {
            joined *= self.sizes[0][self.leaf_depth + 1] as usize;
            pods[0][index] = joined as u32;
        } else {
            for (child, join) in part.children.iter().zip(&trail.joins).rev() {
                let (before, inside) = join[joined];
                self.walk(*child, inside as usize, trails, pods);
                joined = before as usize;
            }
        }
    }
}

fn joined_extents(a: &[usize], b: &[usize], caps: &[usize]) -> Vec<usize> {
    a.iter().zip(b).zip(caps).map(|((a, b), cap)| (a + b - 1).min(*cap)).collect()
}

/// Min-plus convolution of two tables, counters capped. Of equal costs the one that fills earlier children: ranks start
/// where the tree does.
fn join(a: &Table, b: &Table, caps: &[usize], apart: &[&[usize]]) -> (Table, Vec<(u32, u32)>) {
    let mut table = Table::of(joined_extents(&a.extents, &b.extents, caps));
    let mut from = vec![(0, 0); table.costs.len()];
    if caps.len() == 1 {
        join_one(a, b, &mut table.costs, &mut from);
        return (table, from);
    }
    let right: Vec<(Vec<u32>, usize, u128)> =
        b.reached().map(|(entry, cost)| (b.counters(entry), entry, cost)).collect();
    let fits = |left: &[u32], right: &[u32], extents: &[usize]| {
        left.iter().zip(right).zip(extents).all(|((l, r), extent)| ((l + r) as usize) < *extent)
    };
    for (left, cost) in a.reached() {
        let counters = a.counters(left);
        // Indices are linear in the counters, so that they add up.
        let base = table.index(&counters);
        for (other, entry, more) in &right {
            if !fits(&counters, other, &table.extents)
                || apart.iter().any(|roles| rules::has_any(&counters, roles) && rules::has_any(other, roles))
            {
                continue;
            }
            let target = base + table.index(other);
            let sum = cost + more;
            if sum <= table.costs[target] {
                table.costs[target] = sum;
                from[target] = (left as u32, *entry as u32);
            }
        }
    }
    (table, from)
}

/// As [`join`], for one role.
fn join_one(a: &Table, b: &Table, costs: &mut [u128], from: &mut [(u32, u32)]) {
    let right: Vec<(usize, u128)> = b.reached().collect();
    for (left, cost) in a.reached() {
        for (entry, more) in &right {
            let sum = cost + more;
            let target = left + entry;
            if target >= costs.len() {
                break;
            }
            if sum <= costs[target] {
                costs[target] = sum;
                from[target] = (left as u32, *entry as u32);
            }
        }
    }
}
