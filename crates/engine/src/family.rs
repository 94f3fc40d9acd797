//! Gangs with rules between roles or units, beyond the exact search's budget: unit counts from the largest down, each
//! placed role by role inside the domains that the rules leave.
//!
//! ```text
//!   ratios ─▶ vectors of units, ascending ──halving──▶ attempt: domains for what lies together (tightest first)
//!                                                        ▸ every order of roles ▸ trial (spread as caps) ─▶ best key
//! ```
//!
//! That fewer units never fit worse is nearly true and makes halving fit; then one set of roles gives up units where
//! another grows by more. "Not found" says nothing about feasibility.

use crate::{
    dp::Best,
    forest::Forest,
    greedy::{Bounds, Short, role_orders},
    problem::Problem,
    rules::{self, NearSpec},
    spec::{Objective, RoleSpec},
    trial::Trial,
};

/// Domains of one depth that are tried.
const MOST_TOPS: usize = 32;
/// Domains tried for one rule, the tightest and some of the largest.
const MOST_PLACES: usize = 16;
/// Choices of domains tried for all rules of one vector of units.
const MOST_CHOICES: usize = 64;
/// Numbers of units of one role from which vectors are made.
const MOST_COUNTS: usize = 512;
/// Parts looked at before the search gives up.
const MOST_WORK: u64 = 40_000_000;

/// Finds a placement that keeps all Required rules.
///
/// # Errors
/// How many trials found none.
pub fn place(problem: &Problem<'_>, forest: &Forest) -> Result<Best, Short> {
    let spec = &problem.on.spec;
    let mut search = Search::new(problem, forest);
    let part = |at: &usize| &forest.parts[*at];
    let mut tops: Vec<usize> =
        (0..forest.parts.len()).filter(|at| forest.parts[*at].depth >= spec.within).collect();
    let outermost = tops.iter().map(|at| part(at).depth).min().unwrap_or(0);
    let inner: Vec<usize> = tops.iter().copied().filter(|at| part(at).depth > outermost).collect();
    tops.retain(|at| part(at).depth == outermost);
    tops.sort_by_key(|at| std::cmp::Reverse(search.bounds.total(*at)));
    let mut best: Option<Best> = None;
    for top in tops.into_iter().take(MOST_TOPS) {
        let most = best.as_ref().map_or(0, |best| best.units.iter().map(|u| u64::from(*u)).sum());
        if search.bounds.total(top) <= most {
            break;
        }
        if let Some(found) = search.largest(top)
            && found.units.iter().map(|u| u64::from(*u)).sum::<u64>() > most
        {
            best = Some(found);
        }
    }
    let Some(best) = best else { return Err(Short { role: 0, fits: 0, tried: search.tried }) };
    if spec.order.contains(&Objective::Span) {
        // As many units in a smaller domain are better: the innermost, tightest first.
        let mut inner: Vec<usize> =
            inner.into_iter().filter(|at| search.may_hold(*at, &best.units)).collect();
        inner.sort_by_key(|at| (std::cmp::Reverse(part(at).depth), search.bounds.total(*at), *at));
        for top in inner.into_iter().take(MOST_TOPS) {
            if let Some(pods) = search.attempt(top, &best.units) {
                return Ok(Best { units: best.units, top, pods });
            }
        }
    }
    Ok(best)
}

/// Counts of roles that ratios tie together, ascending by their sum: role and units.
type Group = Vec<Vec<(usize, u32)>>;

struct Search<'a> {
    problem: &'a Problem<'a>,
    forest: &'a Forest,
    bounds: Bounds,
    /// Per part, the first part inside it: in post-order they lie together before it.
    first: Vec<usize>,
    /// Rules for what lies together, outermost first.
    near: Vec<(usize, &'a NearSpec)>,
    orders: Vec<Vec<usize>>,
    tried: u64,
    most: u64,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>, forest: &'a Forest) -> Self {
        let spec = &problem.on.spec;
        let mut first: Vec<usize> = (0..forest.parts.len()).collect();
        for (at, part) in forest.parts.iter().enumerate() {
            if let Some(child) = part.children.first() {
                first[at] = first[*child];
            }
        }
        let mut near: Vec<(usize, &NearSpec)> = spec.rules.near.iter().enumerate().collect();
        near.sort_by_key(|(_, near)| near.depth);
        let most = (MOST_WORK / forest.parts.len().max(1) as u64).max(16);
        let (bounds, orders) = (Bounds::new(problem, forest, spec), role_orders(spec));
        Self { problem, forest, bounds, first, near, orders, tried: 0, most }
    }

    fn may_hold(&self, part: usize, units: &[u32]) -> bool {
        units.iter().enumerate().all(|(role, units)| self.bounds.of(role, part) >= u64::from(*units))
    }

    /// The most units inside a part.
    fn largest(&mut self, top: usize) -> Option<Best> {
        let spec = &self.problem.on.spec;
        let mut roles: Vec<RoleSpec> = spec.roles.clone();
        for (at, role) in roles.iter_mut().enumerate() {
            let bound = self.bounds.of(at, top);
            role.counts.retain(|count| u64::from(*count) <= bound);
            if role.counts.is_empty() {
                return None;
            }
        }
        rules::agree(&spec.rules.ratios, &mut roles).ok()?;
        let groups = self.groups(&roles);
        let steps = groups.iter().map(Vec::len).max().unwrap_or(1).max(1) - 1;
        let at = |step: usize| -> Vec<usize> {
            groups.iter().map(|list| (list.len() - 1) * step / steps.max(1)).collect()
        };
        let (mut chosen, mut pods) = (at(0), None);
        if let Some(all) = self.attempt(top, &vector(&groups, &at(steps))) {
            (chosen, pods) = (at(steps), Some(all));
        } else if let Some(least) = self.attempt(top, &vector(&groups, &at(0))) {
            pods = Some(least);
            let (mut fits, mut fails) = (0, steps);
            while fails > fits + 1 {
                let half = fits.midpoint(fails);
                match self.attempt(top, &vector(&groups, &at(half))) {
                    Some(more) => (fits, chosen, pods) = (half, at(half), Some(more)),
                    None => fails = half,
                }
            }
        }
        let mut pods = pods?;
        self.grow(top, &groups, &mut chosen, &mut pods);
        while self.exchange(top, &groups, &mut chosen, &mut pods) {
            self.grow(top, &groups, &mut chosen, &mut pods);
        }
        let units = vector(&groups, &chosen);
        (units.iter().sum::<u32>() > 0).then_some(Best { units, top, pods })
    }

    /// What is not tied may go further alone.
    fn grow(&mut self, top: usize, groups: &[Group], chosen: &mut Vec<usize>, pods: &mut Vec<Vec<u32>>) {
        for (group, list) in groups.iter().enumerate() {
            let (mut fits, mut fails) = (chosen[group], list.len());
            while fails > fits + 1 {
                let half = fits.midpoint(fails);
                let mut more = chosen.clone();
                more[group] = half;
                match self.attempt(top, &vector(groups, &more)) {
                    Some(all) => (fits, *chosen, *pods) = (half, more, all),
                    None => fails = half,
                }
            }
        }
    }

    /// Takes from one set of roles what lets another grow by more. Whether that was possible.
    fn exchange(
        &mut self,
        top: usize,
        groups: &[Group],
        chosen: &mut Vec<usize>,
        pods: &mut Vec<Vec<u32>>,
    ) -> bool {
        let total = |units: &[(usize, u32)]| units.iter().map(|(_, units)| u64::from(*units)).sum::<u64>();
        for (down, list) in groups.iter().enumerate() {
            let steps = std::iter::successors(Some(1), |step| Some(step * 2));
            for step in steps.take_while(|step| *step <= chosen[down]) {
                let less = chosen[down] - step;
                let given = total(&list[chosen[down]]) - total(&list[less]);
                for (up, other) in groups.iter().enumerate().filter(|(up, _)| *up != down) {
                    let even = total(&other[chosen[up]]) + given;
                    let more = other.partition_point(|units| total(units) <= even);
                    if more == other.len() {
                        continue;
                    }
                    let mut next = chosen.clone();
                    (next[down], next[up]) = (less, more);
                    if let Some(all) = self.attempt(top, &vector(groups, &next)) {
                        (*chosen, *pods) = (next, all);
                        return true;
                    }
                }
            }
        }
        false
    }

    /// For each set of roles that ratios tie together the counts to try.
    fn groups(&self, roles: &[RoleSpec]) -> Vec<Group> {
        let mut left: Vec<usize> = (0..roles.len()).collect();
        let mut all = Vec::new();
        while let Some(root) = left.first().copied() {
            let counts = &roles[root].counts;
            let step = counts.len().div_ceil(MOST_COUNTS);
            let picked = counts.iter().rev().step_by(step).chain(counts.first());
            let mut list: Vec<Vec<(usize, u32)>> = picked
                .flat_map(|count| [true, false].map(|most| self.tied(roles, (root, *count), most)))
                .collect();
            list.sort_by_key(|units| units.iter().map(|(_, units)| u64::from(*units)).sum::<u64>());
            list.dedup();
            left.retain(|role| list[0].iter().all(|(other, _)| other != role));
            all.push(list);
        }
        all
    }

    /// A role's count with those of all roles tied to it: each the most, or the fewest, that go with those before.
    fn tied(&self, roles: &[RoleSpec], root: (usize, u32), most: bool) -> Vec<(usize, u32)> {
        let mut chosen = vec![root];
        let mut next = 0;
        while let Some((role, units)) = chosen.get(next).copied() {
            next += 1;
            for (other, rule) in rules::tied(&self.problem.on.spec.rules.ratios, role, None) {
                if chosen.iter().any(|(known, _)| *known == other) {
                    continue;
                }
                let holds = |count: &&u32| rules::goes(rule, role, units, **count);
                let mut fitting = roles[other].counts.iter().filter(holds);
                // Some count goes with it: `agree` left no others.
                let count = if most { fitting.next_back() } else { fitting.next() };
                chosen.extend(count.map(|count| (other, *count)));
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// Places exactly these units inside a part.
    fn attempt(&mut self, top: usize, units: &[u32]) -> Option<Vec<Vec<u32>>> {
        if !self.may_hold(top, units) || !rules::top_keeps(self.problem, &self.forest.parts[top], units) {
            return None;
        }
        let mut choices = Vec::new();
        self.choose(0, vec![top; units.len()], units, &mut choices);
        // A domain further inside than a cap does not see it.
        let alone = |role: usize| -> Vec<u32> {
            (0..units.len()).map(|other| if other == role { units[role] } else { 0 }).collect()
        };
        let keeps = |inside: &Vec<usize>| {
            (0..units.len())
                .all(|role| rules::top_keeps(self.problem, &self.forest.parts[inside[role]], &alone(role)))
        };
        choices.retain(keeps);
        for inside in choices {
            let mut best: Option<(Vec<u64>, Vec<Vec<u32>>)> = None;
            for order in &self.orders {
                if self.tried >= self.most {
                    return None;
                }
                self.tried += 1;
                let mut trial = Trial::new(self.problem, self.forest);
                if order.iter().all(|role| trial.place(*role, inside[*role], units[*role]) == units[*role]) {
                    let key = trial.key();
                    if best.as_ref().is_none_or(|(least, _)| key < *least) {
                        best = Some((key, trial.pods));
                    }
                }
            }
            if let Some((_, pods)) = best {
                return Some(pods);
            }
        }
        None
    }

    /// The parts in which roles may lie by the rules from `rule` on, given those before.
    fn choose(&self, rule: usize, inside: Vec<usize>, units: &[u32], choices: &mut Vec<Vec<usize>>) {
        let Some((index, near)) = self.near.get(rule).copied() else {
            choices.push(inside);
            return;
        };
        let parts = &self.forest.parts;
        let confined = self.problem.limits.confined(index);
        let roles: Vec<usize> = near.roles.iter().copied().filter(|role| units[*role] > 0).collect();
        if roles.iter().all(|role| parts[inside[*role]].depth >= near.depth)
            && roles.windows(2).all(|pair| inside[pair[0]] == inside[pair[1]])
        {
            // They lie together already; whether in the right domain was seen for the top, and is seen here.
            let at = roles.first().map(|role| &parts[inside[*role]]);
            if at.is_none_or(|at| at.depth > near.depth || confined.is_none_or(|c| c == (at.domain, at.slot)))
            {
                self.choose(rule + 1, inside, units, choices);
            }
            return;
        }
        let fits = |part: &usize| {
            let of = &parts[*part];
            of.depth == near.depth
                && confined.is_none_or(|at| at == (of.domain, of.slot))
                && roles.iter().all(|role| {
                    let around = inside[*role];
                    (self.first[around]..=around).contains(part)
                        && self.bounds.of(*role, *part) >= u64::from(units[*role])
                })
        };
        let mut places: Vec<usize> = (0..parts.len()).filter(fits).collect();
        places.sort_by_key(|part| (roles.iter().map(|role| parts[*part].fits[*role]).sum::<u64>(), *part));
        if places.len() > MOST_PLACES {
            let largest = places.split_off(places.len() - MOST_PLACES / 4);
            places.truncate(MOST_PLACES - largest.len());
            places.extend(largest);
        }
        for part in places {
            if choices.len() >= MOST_CHOICES {
                return;
            }
            let mut inside = inside.clone();
            for role in &roles {
                inside[*role] = part;
            }
            self.choose(rule + 1, inside, units, choices);
        }
    }
}

/// Units by role, one vector of each group chosen.
fn vector(groups: &[Group], chosen: &[usize]) -> Vec<u32> {
    let mut all: Vec<(usize, u32)> =
        groups.iter().zip(chosen).flat_map(|(list, at)| list[*at].iter().copied()).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, units)| units).collect()
}
