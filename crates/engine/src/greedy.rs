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
    search,
    spec::{Objective, RoleSpec, Spec},
    trial::Trial,
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
pub struct Bounds(Vec<Vec<u64>>);

impl Bounds {
    /// Floors of every role, Required rules of one role alone.
    pub fn new(problem: &Problem<'_>, forest: &Forest, spec: &Spec) -> Self {
        let leaf = problem.cluster.tree.leaf_depth();
        let of = |(index, role): (usize, &RoleSpec)| {
            let sizes = forest::block_sizes(role, leaf, false);
            let mut units = forest.floors(&sizes, |part| forest.parts[part].fits[index]);
            for (count, part) in units.iter_mut().zip(&forest.parts) {
                let fit = *count * sizes[part.depth] / u64::from(role.pods);
                *count = role.allowed_at_most(u32::try_from(fit).unwrap_or(u32::MAX)).map_or(0, u64::from);
            }
            units
        };
        Self(spec.roles.iter().enumerate().map(of).collect())
    }

    /// A role's, in a part.
    pub fn of(&self, role: usize, part: usize) -> u64 {
        self.0[role][part]
    }

    /// All roles' together, in a part.
    pub fn total(&self, part: usize) -> u64 {
        self.0.iter().map(|units| units[part]).sum()
    }
}

/// Tries the orders of roles inside one part, then a search with backtracking.
fn attempt(problem: &Problem<'_>, forest: &Forest, top: usize, bounds: &Bounds) -> Result<Best, Short> {
    let spec = &problem.on.spec;
    let mut best: Option<(Best, Vec<u64>)> = None;
    let mut short = Short { role: 0, fits: 0, tried: 1 };
    let orders = role_orders(spec);
    for order in &orders {
        let mut trial = Trial::new(problem, forest);
        // First the minimum of every role, then as many more as fit.
        let failed = order.iter().find_map(|role| {
            let min = spec.roles[*role].min();
            let fits = trial.place(*role, top, min);
            (fits < min).then_some(Short { role: *role, fits, tried: 1 })
        });
        match failed {
            Some(failed) => short = failed,
            None => keep_better(&mut best, grown(trial, spec, order, top, bounds)),
        }
    }
    let Some((mut best, key)) = best else {
        if spec.roles.len() > 1 {
            let min: Vec<u32> = spec.roles.iter().map(RoleSpec::min).collect();
            match search::best(problem, forest, top, &orders[0], &min, None) {
                Ok(pods) => return Ok(Best { units: min, top, pods }),
                Err(states) => short.tried += states,
            }
        }
        return Err(short);
    };
    if spec.roles.len() > 1
        && let Ok(pods) = search::best(problem, forest, top, &orders[0], &best.units, Some(key))
    {
        best.pods = pods;
    }
    if best.units.iter().sum::<u32>() == 0 { Err(short) } else { Ok(best) }
}

/// A trial that holds every role's minimum, with as many more units as fit, and its values.
fn grown(
    mut trial: Trial<'_>,
    spec: &Spec,
    order: &[usize],
    top: usize,
    bounds: &Bounds,
) -> (Best, Vec<u64>) {
    let mut units: Vec<u32> = spec.roles.iter().map(RoleSpec::min).collect();
    for role in order {
        grow(&mut trial, spec, *role, top, &mut units[*role], bounds.0[*role][top]);
    }
    let key = trial.key();
    (Best { units, top, pods: trial.pods }, key)
}

/// Keeps what has more units, or as many and better values.
fn keep_better(best: &mut Option<(Best, Vec<u64>)>, (new, key): (Best, Vec<u64>)) {
    let total = |best: &Best| best.units.iter().sum::<u32>();
    let better = best.as_ref().is_none_or(|(old, old_key)| {
        total(&new) > total(old) || (total(&new) == total(old) && key < *old_key)
    });
    if better {
        *best = Some((new, key));
    }
}

/// Adds units of a role up to the largest allowed count that fits.
fn grow(trial: &mut Trial<'_>, spec: &Spec, role: usize, top: usize, units: &mut u32, bound: u64) {
    let of = &spec.roles[role];
    let Some(mut goal) = of.allowed_at_most(u32::try_from(bound).unwrap_or(u32::MAX)) else { return };
    // One role alone is placed anew as a whole, which keeps it in fewer domains than two helpings would.
    let alone = spec.roles.len() == 1;
    let mut kept = *units;
    if alone {
        trial.rollback(0);
        kept = 0;
    }
    while goal > *units || (alone && goal > 0) {
        let checkpoint = trial.checkpoint();
        let got = kept + trial.place(role, top, goal - kept);
        if got == goal {
            *units = got;
            return;
        }
        trial.rollback(checkpoint);
        match of.allowed_at_most(got.min(goal - 1)) {
            Some(next) => goal = next,
            None => return,
        }
    }
}

/// Orders in which roles are tried: every order of up to three, else the largest requests first and as given.
pub fn role_orders(spec: &Spec) -> Vec<Vec<usize>> {
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
