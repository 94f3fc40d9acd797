//! Rules between roles and units in the solver's terms, and what units that stay where they are leave of them.
//!
//! ```text
//!   Gang.rules ──compile──▶ RuleSpec (Required ones, by role and depth) ──resolve(units that stay, others')──▶ Limits
//!                               └─ ratios ─▶ counts of each role that can occur
//! ```

use muster_model::{Gang, Mode, Reason, Spread};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::Cluster,
    forest::Part,
    groups::Others,
    problem::Problem,
    spec::{self, RoleSpec, depth, invalid},
    tree::{DomainId, Slot, Tree},
};

/// A ratio by position of its roles.
#[derive(Clone, Debug)]
pub struct RatioSpec {
    /// The role counted.
    pub role: usize,
    /// The role it is measured by.
    pub of: usize,
    /// The rule.
    pub ratio: muster_model::Ratio,
}

/// Roles of which all units lie in one domain of a depth.
#[derive(Clone, Debug)]
pub struct NearSpec {
    /// Positions, ascending.
    pub roles: Vec<usize>,
    /// Depth of the level.
    pub depth: usize,
}

/// At most so many units of a role in a domain of a depth, each in one.
#[derive(Clone, Debug)]
pub struct SpreadSpec {
    /// Position of the role.
    pub role: usize,
    /// Depth of the level.
    pub depth: usize,
    /// Most units.
    pub units: u32,
    /// Other gangs whose units count as well.
    pub group: Option<String>,
}

/// The Required rules of a gang.
#[derive(Clone, Debug, Default)]
pub struct RuleSpec {
    /// Ratios; they form no circle.
    pub ratios: Vec<RatioSpec>,
    /// What lies together.
    pub near: Vec<NearSpec>,
    /// What lies apart.
    pub spread: Vec<SpreadSpec>,
}

/// A domain, or a node with its leaf domain.
pub type Place = (DomainId, Option<Slot>);

/// A unit that stays: position of its role, and the nodes of its pods.
pub type Standing = (usize, Vec<Slot>);

/// What units that are there leave of the rules. Both lists are in the order of the rules, or empty.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// By `near` rule, where its roles must lie.
    confine: Vec<Option<Place>>,
    /// By `spread` rule, units that are there.
    taken: Vec<BTreeMap<Place, u32>>,
}

/// Nothing stays.
pub static FREE: Limits = Limits { confine: Vec::new(), taken: Vec::new() };

impl RuleSpec {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ratios.is_empty() && self.near.is_empty() && self.spread.is_empty()
    }

    /// Whether numbers of units, one a role, keep all ratios.
    pub fn ratios_hold(&self, units: &[u32]) -> bool {
        self.ratios.iter().all(|rule| rule.ratio.holds(units[rule.role], units[rule.of]))
    }

    /// What units that stay and those of other gangs leave; `None` if those that stay break a rule, or where they are is
    /// not known.
    pub fn resolve(&self, cluster: &Cluster, stay: &[Standing], others: &Others) -> Option<Limits> {
        if stay.is_empty() && others.is_empty() || self.near.is_empty() && self.spread.is_empty() {
            return Some(Limits::default());
        }
        let mut limits = Limits::default();
        for near in &self.near {
            let nodes =
                stay.iter().filter(|(role, _)| near.roles.contains(role)).flat_map(|(_, nodes)| nodes);
            let mut at: Option<Place> = None;
            for slot in nodes {
                let place = place_of_node(cluster, *slot, near.depth)?;
                if at.is_some_and(|at| at != place) {
                    return None;
                }
                at = Some(place);
            }
            limits.confine.push(at);
        }
        for spread in &self.spread {
            let shared = spread.group.as_ref().and_then(|group| others.get(group));
            let mut taken = shared.cloned().unwrap_or_default();
            for (_, nodes) in stay.iter().filter(|(role, _)| *role == spread.role) {
                for place in places(cluster, nodes, spread.depth) {
                    *taken.entry(place?).or_default() += 1;
                }
            }
            limits.taken.push(taken);
        }
        Some(limits)
    }
}

impl Limits {
    /// Where the roles of a `near` rule must lie because some of their units are there.
    pub fn confined(&self, rule: usize) -> Option<Place> {
        self.confine.get(rule).copied().flatten()
    }

    /// Units that a place may take of a `spread` rule.
    pub fn room(&self, rule: usize, spread: &SpreadSpec, place: Place) -> u32 {
        let taken = self.taken.get(rule).and_then(|taken| taken.get(&place)).copied().unwrap_or(0);
        spread.units.saturating_sub(taken)
    }
}

/// The domain of a depth (a node for the nodes' depth) around a part, or the part itself; `None` if it lies further out.
fn place_around(tree: &Tree, part: &Part, depth: usize) -> Option<Place> {
    if part.depth == depth {
        return Some((part.domain, part.slot));
    }
    tree.ancestors(part.domain).find(|id| tree.domain(*id).depth == depth).map(|id| (id, None))
}

/// Whether any of these roles has some.
pub fn has_any(counters: &[u32], roles: &[usize]) -> bool {
    roles.iter().any(|role| counters[*role] > 0)
}

/// Whether a gang of so many units that lies in one part keeps the rules of the domains around it.
pub fn top_keeps(problem: &Problem<'_>, part: &Part, units: &[u32]) -> bool {
    let (rules, limits) = (&problem.on.spec.rules, problem.limits);
    let around = |depth: usize| place_around(&problem.cluster.tree, part, depth);
    let near = rules.near.iter().enumerate().filter(|(_, near)| near.depth <= part.depth);
    let mut spread = rules.spread.iter().enumerate().filter(|(_, s)| s.depth <= part.depth);
    near.filter_map(|(rule, near)| Some((near, limits.confined(rule)?)))
        .all(|(near, at)| around(near.depth) == Some(at) || !has_any(units, &near.roles))
        && spread.all(|(rule, s)| {
            around(s.depth).is_some_and(|place| units[s.role] <= limits.room(rule, s, place))
        })
}

/// The domains of a depth (nodes for the nodes' depth) in which a unit lies; `None` stands for nodes that lie nowhere.
pub fn places(cluster: &Cluster, nodes: &[Slot], depth: usize) -> BTreeSet<Option<Place>> {
    nodes.iter().map(|slot| place_of_node(cluster, *slot, depth)).collect()
}

fn place_of_node(cluster: &Cluster, slot: Slot, depth: usize) -> Option<Place> {
    let leaf = cluster.node(slot)?.leaf?;
    if depth > cluster.tree.leaf_depth() {
        return Some((leaf, Some(slot)));
    }
    cluster.tree.ancestors(leaf).find(|id| cluster.tree.domain(*id).depth == depth).map(|id| (id, None))
}

fn position(gang: &Gang, field: &str, name: &str) -> Result<usize, Reason> {
    gang.roles.iter().position(|role| role.name == name).ok_or_else(|| {
        let names: Vec<&str> = gang.roles.iter().map(|role| role.name.as_str()).collect();
        invalid(
            field.to_owned(),
            format!("the gang has no role {name:?}"),
            format!("name one of {}", names.join(", ")),
        )
    })
}

/// Checks all rules and keeps the Required ones. Ratios leave of each role's counts those that can occur.
///
/// # Errors
/// [`Reason::Invalid`] with the field and the remedy.
pub fn compile(tree: &Tree, gang: &Gang, roles: &mut [RoleSpec]) -> Result<RuleSpec, Reason> {
    let mut spec = RuleSpec::default();
    for (at, near) in gang.rules.near.iter().enumerate() {
        let path = format!("rules.near[{at}]");
        let depth = depth(tree, &format!("{path}.level"), &near.level)?;
        if near.roles.is_empty() {
            return Err(invalid(format!("{path}.roles"), "no role is named", "name at least one role"));
        }
        let named = near.roles.iter().map(|name| position(gang, &format!("{path}.roles"), name));
        let mut named = named.collect::<Result<Vec<usize>, Reason>>()?;
        named.sort_unstable();
        named.dedup();
        if near.mode == Mode::Required {
            spec.near.push(NearSpec { roles: named, depth });
        }
    }
    for (at, spread) in gang.rules.spread.iter().enumerate() {
        let path = format!("rules.spread[{at}]");
        let role = position(gang, &format!("{path}.role"), &spread.role)?;
        let depth = depth(tree, &format!("{path}.level"), &spread.level)?;
        if spread.units == 0 {
            return Err(invalid(
                format!("{path}.units"),
                "no domain may hold a unit",
                "allow at least 1 unit in a domain",
            ));
        }
        named_once(&gang.rules.spread[..at], spread, &path)?;
        if spread.mode == Mode::Required {
            let group = spread.group.clone();
            spec.spread.push(SpreadSpec { role, depth, units: spread.units, group });
        }
    }
    spec.ratios = ratios(gang)?;
    agree(&spec.ratios, roles)?;
    Ok(spec)
}

/// Two rules of one group would each have to count what the other one holds.
fn named_once(before: &[Spread], spread: &Spread, path: &str) -> Result<(), Reason> {
    let Some(group) = &spread.group else { return Ok(()) };
    match before.iter().position(|other| other.group.as_ref() == Some(group)) {
        None => Ok(()),
        Some(first) => Err(invalid(
            format!("{path}.group"),
            format!("rules.spread[{first}] names the group {group:?} already"),
            "give each rule of a gang a group of its own",
        )),
    }
}

fn ratios(gang: &Gang) -> Result<Vec<RatioSpec>, Reason> {
    let mut all = Vec::with_capacity(gang.rules.ratios.len());
    // The group of roles that ratios tie together, by role.
    let mut tied: Vec<usize> = (0..gang.roles.len()).collect();
    for (at, ratio) in gang.rules.ratios.iter().enumerate() {
        let path = format!("rules.ratios[{at}]");
        let role = position(gang, &format!("{path}.role"), &ratio.role)?;
        let of = position(gang, &format!("{path}.of"), &ratio.of)?;
        if ratio.per == 0 {
            return Err(invalid(format!("{path}.per"), "a ratio to nothing", "set it to at least 1"));
        }
        if ratio.min > ratio.max || ratio.max == 0 {
            return Err(invalid(
                format!("{path}.max"),
                format!("min {} and max {} allow no unit", ratio.min, ratio.max),
                "raise max to at least min and 1",
            ));
        }
        let (one, other) = (tied[role], tied[of]);
        if one == other {
            return Err(invalid(
                path,
                format!("{} and {} are tied by a ratio already, or are one role", ratio.role, ratio.of),
                "leave out a ratio, so that they form no circle",
            ));
        }
        tied.iter_mut().filter(|group| **group == one).for_each(|group| *group = other);
        all.push(RatioSpec { role, of, ratio: ratio.clone() });
    }
    Ok(all)
}

/// Takes from each role's counts those that no count of a role tied to it goes with. As ratios form no circle, every
/// count that stays is part of a whole vector of counts.
///
/// # Errors
/// [`Reason::Invalid`] if none stays.
pub fn agree(ratios: &[RatioSpec], roles: &mut [RoleSpec]) -> Result<(), Reason> {
    let before: u64 = roles.iter().map(|role| u64::from(role.max())).sum();
    loop {
        let mut changed = false;
        for (at, rule) in ratios.iter().enumerate() {
            let counted = supported(&roles[rule.role].counts, &roles[rule.of].counts, |units, others| {
                let measure = |of: u32| {
                    (u64::from(rule.ratio.max) * u64::from(of), u64::from(rule.ratio.min) * u64::from(of))
                };
                let scaled = u64::from(rule.ratio.per) * u64::from(units);
                // The least `of` whose upper bound reaches, if its lower bound does not exceed.
                let from = others.partition_point(|of| measure(*of).0 < scaled);
                others.get(from).is_some_and(|of| measure(*of).1 <= scaled)
            });
            let measured = supported(&roles[rule.of].counts, &roles[rule.role].counts, |of, others| {
                let least = u64::from(rule.ratio.min) * u64::from(of);
                let from =
                    others.partition_point(|units| u64::from(rule.ratio.per) * u64::from(*units) < least);
                others.get(from).is_some_and(|units| rule.ratio.holds(*units, of))
            });
            if counted.is_empty() || measured.is_empty() {
                return Err(disagree(at, rule, roles));
            }
            changed |=
                counted.len() < roles[rule.role].counts.len() || measured.len() < roles[rule.of].counts.len();
            roles[rule.role].counts = counted;
            roles[rule.of].counts = measured;
        }
        if !changed {
            break;
        }
    }
    let after: u64 = roles.iter().map(|role| u64::from(role.max())).sum();
    match ratios.first() {
        Some(rule) if before > 0 && after == 0 => Err(disagree(0, rule, roles)),
        _ => Ok(()),
    }
}

fn supported(counts: &[u32], others: &[u32], goes_with: impl Fn(u32, &[u32]) -> bool) -> Vec<u32> {
    counts.iter().copied().filter(|count| goes_with(*count, others)).collect()
}

fn disagree(at: usize, rule: &RatioSpec, roles: &[RoleSpec]) -> Reason {
    let bounds = |role: usize| format!("{} to {} {}", roles[role].min(), roles[role].max(), roles[role].name);
    invalid(
        format!("rules.ratios[{at}]"),
        format!("{} cannot be had of {} and {}", rule.ratio.words(), bounds(rule.role), bounds(rule.of)),
        "widen the ratio, or the units' min, max or valid of one of the roles",
    )
}

/// The most units, summed over roles, that keep the ratios and are at most `limits` (one a role); `None` if none are.
pub fn most_units(gang: &Gang, limits: &[u32]) -> Option<Vec<u32>> {
    let ratios = ratios(gang).ok()?;
    let mut roles: Vec<Vec<u32>> = Vec::with_capacity(gang.roles.len());
    for (role, limit) in gang.roles.iter().zip(limits) {
        roles.push(spec::counts(role).into_iter().filter(|count| count <= limit).collect());
    }
    // Ratios form no circle: from each role outwards, the best sum by count of the role.
    let mut chosen = vec![None; roles.len()];
    for root in 0..roles.len() {
        if chosen[root].is_some() {
            continue;
        }
        let best = best_sums(&ratios, &roles, root, None);
        let (_, count) =
            roles[root].iter().zip(best).filter_map(|(count, sum)| Some((sum?, *count))).max()?;
        walk(&ratios, &roles, root, None, count, &mut chosen);
    }
    let units: Vec<u32> = chosen.into_iter().flatten().collect();
    (units.iter().any(|units| *units > 0)).then_some(units)
}

/// Roles tied to one, but for `from`, with their ratio.
pub fn tied<'a>(
    ratios: &'a [RatioSpec],
    role: usize,
    from: Option<usize>,
) -> impl Iterator<Item = (usize, &'a RatioSpec)> {
    let other = move |rule: &'a RatioSpec| {
        let other = if rule.role == role { rule.of } else { rule.role };
        ((rule.role == role || rule.of == role) && Some(other) != from).then_some((other, rule))
    };
    ratios.iter().filter_map(other)
}

/// Whether a count of one of the ratio's roles goes with one of the other.
pub fn goes(rule: &RatioSpec, role: usize, count: u32, other: u32) -> bool {
    if rule.role == role { rule.ratio.holds(count, other) } else { rule.ratio.holds(other, count) }
}

/// For each count of a role the most units of it and of all roles behind it; `None` where a role has no count.
fn best_sums(ratios: &[RatioSpec], roles: &[Vec<u32>], role: usize, from: Option<usize>) -> Vec<Option<u64>> {
    let mut sums: Vec<Option<u64>> = roles[role].iter().map(|count| Some(u64::from(*count))).collect();
    for (other, rule) in tied(ratios, role, from) {
        let behind = best_sums(ratios, roles, other, Some(role));
        for (count, sum) in roles[role].iter().zip(&mut sums) {
            let fitting =
                roles[other].iter().zip(&behind).filter(|(theirs, _)| goes(rule, role, *count, **theirs));
            let most = fitting.filter_map(|(_, sum)| *sum).max();
            *sum = sum.zip(most).map(|(sum, most)| sum + most);
        }
    }
    sums
}

/// Chooses the counts that [`best_sums`] found.
fn walk(
    ratios: &[RatioSpec],
    roles: &[Vec<u32>],
    role: usize,
    from: Option<usize>,
    count: u32,
    chosen: &mut [Option<u32>],
) {
    chosen[role] = Some(count);
    for (other, rule) in tied(ratios, role, from) {
        let behind = best_sums(ratios, roles, other, Some(role));
        let fitting = roles[other].iter().zip(behind).filter(|(theirs, _)| goes(rule, role, count, **theirs));
        if let Some((_, best)) = fitting.filter_map(|(theirs, sum)| Some((sum?, *theirs))).max() {
            walk(ratios, roles, other, Some(role), best, chosen);
        }
    }
}
