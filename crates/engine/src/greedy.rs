//! The fast solver: floors tell what fits, then the largest domains are filled first and the last one fitted best.
//!
//! ```text
//!   floors bottom up ─▶ smallest domain that holds the units ─▶ fill: fewest children, blocks kept whole
//! ```
//!
//! For one role it finds the most units always (floors are exact); the number of domains it uses may be above the
//! least. Several roles are placed one after the other, in several orders.

use crate::{
    dp::Best,
    forest::{self, Forest},
    problem::Problem,
    spec::{Objective, RoleSpec, Spec},
};

/// How many domains are tried for a gang of several roles.
const MOST_TRIES: usize = 64;

/// What fell short when nothing was found.
#[derive(Clone, Debug)]
pub struct Short {
    /// Role.
    pub role: usize,
    /// Its units that fit beside the roles placed before it.
    pub fits: u32,
    /// Domains and orders tried.
    pub tried: u64,
}

/// A trial placement: what is taken of each node, so that it can be given back.
struct Trial<'a> {
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    spec: &'a Spec,
    /// Per role and part without children: pods placed.
    pods: Vec<Vec<u32>>,
}

impl Trial<'_> {
    /// How many pods of a role still fit a node.
    fn fits(&self, role: usize, part: usize) -> u64 {
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
            let of = |(other, pods): (&RoleSpec, &Vec<u32>)| {
                let amount = other.request.iter().find(|(c, _)| *c == column).map_or(0, |(_, a)| *a);
                amount * i64::from(pods[part])
            };
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

    /// Places up to `most` units of a role inside `top`. Returns how many.
    fn place(&mut self, role: usize, top: usize, most: u32) -> u32 {
        let strict = self.fill_units(role, top, most, true);
        // Units that cannot keep every Preferred block whole: whole blocks as far as the floors go, then loose pods.
        strict + self.fill_units(role, top, most - strict, false)
    }

    fn fill_units(&mut self, role: usize, top: usize, most: u32, strict: bool) -> u32 {
        let spec = &self.spec.roles[role];
        if most == 0 || (!strict && spec.segments.iter().all(|seg| seg.required)) {
            return 0;
        }
        let leaf = self.problem.cluster.tree.leaf_depth();
        let sizes = forest::block_sizes(spec, leaf, strict);
        let blocks = self.forest.floors(spec, leaf, strict, |part| self.fits(role, part));
        let depth = self.forest.parts[top].depth;
        let per_unit = u64::from(spec.pods) / sizes[depth];
        let units = (blocks[top] / per_unit).min(u64::from(most)) as u32;
        self.fill(role, top, u64::from(units) * per_unit, &sizes, &blocks);
        units
    }

    /// Places `wanted` blocks of the size closed at the part's depth; `blocks` says how many each part holds.
    fn fill(&mut self, role: usize, part: usize, wanted: u64, sizes: &[u64], blocks: &[u64]) {
        if wanted == 0 {
            return;
        }
        let depth = self.forest.parts[part].depth;
        if self.forest.parts[part].children.is_empty() {
            self.pods[role][part] += (wanted * sizes[depth]) as u32;
            return;
        }
        let mut rest = wanted * forest::ratio(sizes, depth);
        let mut children: Vec<usize> =
            self.forest.parts[part].children.iter().copied().filter(|child| blocks[*child] > 0).collect();
        children
            .sort_by_key(|child| (blocks[*child], self.forest.parts[*child].fits[role], usize::MAX - *child));
        while rest > 0 {
            let enough = children.partition_point(|child| blocks[*child] < rest);
            let child = if enough < children.len() {
                children.remove(enough)
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

/// Finds a placement, or says what fell short.
///
/// # Errors
/// The role that fell short in the best try.
pub fn place(problem: &Problem<'_>, forest: &Forest) -> Result<Best, Short> {
    let spec = &problem.on.spec;
    let mut short = Short { role: 0, fits: 0, tried: 0 };
    let mut most: Option<(Vec<u32>, Best)> = None;
    // From the outside in: the outermost domains give the most units, an inner one is better if it holds as many.
    let mut order: Vec<usize> =
        (0..forest.parts.len()).filter(|i| forest.parts[*i].depth >= spec.within).collect();
    if !spec.order.contains(&Objective::Span) {
        order.retain(|i| forest.parts[*i].depth == spec.within);
    }
    let bounds = Bounds::new(problem, forest, spec);
    let outermost = order.iter().map(|i| forest.parts[*i].depth).min().unwrap_or(0);
    order.sort_by_key(|i| {
        let part = &forest.parts[*i];
        let total = bounds.total(*i);
        // Outermost: the one that may hold most first. Further inside: the one that barely holds as many.
        let total = if part.depth == outermost { u64::MAX - total } else { total };
        (part.depth, total, part.fits.iter().sum::<u64>(), *i)
    });
    let mut tried_at = vec![0_usize; problem.cluster.tree.leaf_depth() + 2];
    for top in order {
        let depth = forest.parts[top].depth;
        let wanted = most.as_ref().map(|(units, _)| units.iter().sum::<u32>());
        let better_possible = wanted.is_none_or(|wanted| {
            let total = bounds.total(top);
            let deeper = most.as_ref().is_some_and(|(_, best)| forest.parts[best.top].depth < depth);
            total > u64::from(wanted) || (deeper && total >= u64::from(wanted))
        });
        if !better_possible || (depth > outermost && wanted.is_none()) || tried_at[depth] >= MOST_TRIES {
            continue;
        }
        tried_at[depth] += 1;
        match attempt(problem, forest, top, &bounds) {
            Ok(best) => {
                let better = wanted.is_none_or(|wanted| best.units.iter().sum::<u32>() >= wanted);
                if better {
                    most = Some((best.units.clone(), best));
                }
            }
            Err(failed) => {
                let tried = short.tried + 1;
                if failed.fits >= short.fits {
                    short = failed;
                }
                short.tried = tried;
            }
        }
    }
    most.map(|(_, best)| best).ok_or(short)
}

/// Most units of each role alone, by part.
struct Bounds(Vec<Vec<u64>>);

impl Bounds {
    fn new(problem: &Problem<'_>, forest: &Forest, spec: &Spec) -> Self {
        let leaf = problem.cluster.tree.leaf_depth();
        let of = |(index, role): (usize, &RoleSpec)| {
            let sizes = forest::block_sizes(role, leaf, false);
            let mut units = forest.floors(role, leaf, false, |part| forest.parts[part].fits[index]);
            for (count, part) in units.iter_mut().zip(&forest.parts) {
                let fit = *count * sizes[part.depth] / u64::from(role.pods);
                *count = role.allowed_at_most(u32::try_from(fit).unwrap_or(u32::MAX)).map_or(0, u64::from);
            }
            units
        };
        Self(spec.roles.iter().enumerate().map(of).collect())
    }

    fn total(&self, part: usize) -> u64 {
        self.0.iter().map(|units| units[part]).sum()
    }
}

/// Tries the orders of roles inside one part.
fn attempt(problem: &Problem<'_>, forest: &Forest, top: usize, bounds: &Bounds) -> Result<Best, Short> {
    let spec = &problem.on.spec;
    let mut best: Option<Best> = None;
    let mut short = Short { role: 0, fits: 0, tried: 1 };
    for order in role_orders(spec) {
        let mut trial =
            Trial { problem, forest, spec, pods: vec![vec![0; forest.parts.len()]; spec.roles.len()] };
        let mut units = vec![0; spec.roles.len()];
        let mut failed = None;
        // First the minimum of every role, then as many more as fit.
        for role in &order {
            let count = trial.place(*role, top, spec.roles[*role].min());
            if count < spec.roles[*role].min() {
                failed = Some(Short { role: *role, fits: count, tried: 1 });
                break;
            }
            units[*role] = count;
        }
        if let Some(failed) = failed {
            short = failed;
            continue;
        }
        for role in &order {
            grow(&mut trial, *role, top, &mut units[*role], bounds.0[*role][top]);
        }
        let total: u32 = units.iter().sum();
        if total > 0 && best.as_ref().is_none_or(|best| best.units.iter().sum::<u32>() < total) {
            best = Some(Best { units, top, pods: trial.pods });
        }
    }
    best.ok_or(short)
}

/// Adds units of a role up to the largest allowed count that fits.
fn grow(trial: &mut Trial<'_>, role: usize, top: usize, units: &mut u32, bound: u64) {
    let spec = &trial.spec.roles[role];
    let Some(mut goal) = spec.allowed_at_most(u32::try_from(bound).unwrap_or(u32::MAX)) else { return };
    if goal <= *units {
        return;
    }
    // Undone as data: the pods before the growth.
    let before = trial.pods[role].clone();
    // One role alone is placed anew as a whole, which keeps it in fewer domains than two helpings would.
    let alone = trial.spec.roles.len() == 1;
    loop {
        if alone {
            trial.pods[role].iter_mut().for_each(|pods| *pods = 0);
        }
        let base = if alone { 0 } else { *units };
        let got = base + trial.place(role, top, goal - base);
        if got == goal {
            *units = got;
            return;
        }
        trial.pods[role].clone_from(&before);
        match trial.spec.roles[role].allowed_at_most(got.min(goal - 1)) {
            Some(next) if next > *units => goal = next,
            _ => return,
        }
    }
}

/// Orders in which roles are tried: every order of up to three, else the largest requests first and as given.
fn role_orders(spec: &Spec) -> Vec<Vec<usize>> {
    let size = |role: &usize| {
        let role = &spec.roles[*role];
        let block = role.segments.iter().filter(|seg| seg.required).map(|seg| seg.pods).max().unwrap_or(1);
        let request: i64 = role.request.iter().map(|(_, amount)| *amount).max().unwrap_or(0);
        std::cmp::Reverse((block, request))
    };
    let mut first: Vec<usize> = (0..spec.roles.len()).collect();
    first.sort_by_key(size);
    match first[..] {
        [a, b] => vec![vec![a, b], vec![b, a]],
        [a, b, c] => {
            vec![vec![a, b, c], vec![a, c, b], vec![b, a, c], vec![b, c, a], vec![c, a, b], vec![c, b, a]]
        }
        _ => {
            let given: Vec<usize> = (0..spec.roles.len()).collect();
            if first == given { vec![first] } else { vec![first, given] }
        }
    }
}
