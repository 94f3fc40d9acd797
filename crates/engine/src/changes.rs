//! What would let a gang run that does not: each change is tried before it is named.
//!
//! ```text
//!   refused gang ─┬▶ free room where least is missing ─┐
//!                 ├▶ another accelerator class          │
//!                 ├▶ fewer units                       ├─ placed? ─▶ named, cheapest first
//!                 └▶ a rule further out, or Preferred  ┘
//! ```

use muster_model::{
    AcceleratorClass, DomainMiss, Gang, Mode, Reason, Role, Rules, Segment, Spread, reason::NodeRefusal,
};
use std::fmt;

use crate::{
    Engine,
    cluster::Cluster,
    explain,
    groups::Others,
    place::{self, Request},
    problem::{self, Problem},
    ruled, rules,
    tree::{DomainId, ROOT, Slot},
};

/// A change after which the gang can be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Free room for so many pods of the role in these domains: what each lacks is `wanted − pods`.
    Free {
        /// Role.
        role: String,
        /// Pods' worth of room to free, over all the domains.
        pods: u32,
        /// Where.
        domains: Vec<DomainMiss>,
    },
    /// Allow another accelerator class.
    Class {
        /// Its name.
        class: String,
    },
    /// Be content with fewer units.
    Fewer {
        /// Role.
        role: String,
        /// A minimum with which it runs now.
        min: u32,
    },
    /// Let a rule bind at a level further out.
    Widen {
        /// The rule, such as `roles[worker].segments[0].level`.
        field: String,
        /// The level that it names.
        from: String,
        /// The nearest level further out with which the gang runs now.
        to: String,
    },
    /// Allow more units in a domain.
    Raise {
        /// The rule, such as `rules.spread[0].units`.
        field: String,
        /// The number it has.
        from: u32,
        /// The least number with which the gang runs now.
        to: u32,
    },
    /// Do without a ratio or a group.
    LeaveOut {
        /// The rule, such as `rules.ratios[0]` or `rules.spread[0].group`.
        field: String,
    },
    /// Change a rule, not in this gang alone but in all of a group, whose rules must agree.
    InGroup {
        /// The group.
        group: String,
        /// What to change.
        change: Box<Change>,
    },
    /// Make a Required rule Preferred.
    Prefer {
        /// The rule, such as `within.mode`.
        field: String,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free { role, pods, domains } => {
                let names: Vec<&str> = domains.iter().map(|miss| miss.domain.as_str()).collect();
                write!(f, "free room for {pods} more {role} pods in {}", names.join(", "))
            }
            Self::Class { class } => write!(f, "allow accelerator class {class}"),
            Self::Fewer { role, min } => write!(f, "lower the minimum of {role} to {min} units"),
            Self::Widen { field, from, to } => write!(f, "set {field} to {to} instead of {from}"),
            Self::Raise { field, from, to } => write!(f, "raise {field} from {from} to {to}"),
            Self::LeaveOut { field } => write!(f, "leave out {field}"),
            Self::InGroup { group, change } => write!(f, "{change}, in all gangs of group {group}"),
            Self::Prefer { field } => write!(f, "set {field} to Preferred"),
        }
    }
}

/// Why a gang cannot be placed, and what would let it run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Why.
    pub reason: Reason,
    /// Changes that suffice, each alone: first what asks nothing of the gang, then what asks least.
    pub changes: Vec<Change>,
}

impl Engine {
    /// Explains why a gang cannot be placed now; `None` if it can. Nothing is held, and its state is ignored. Slower
    /// than a decision: every change is tried.
    pub fn explain(&mut self, gang: &Gang) -> Option<Explanation> {
        self.explain_among(gang, &[])
    }

    /// As [`Self::explain`]; `classes` are those that the cluster knows, of which the gang may be advised to allow
    /// one more.
    pub fn explain_among(&mut self, gang: &Gang, classes: &[AcceleratorClass]) -> Option<Explanation> {
        let others = match self.gangs.others(&self.cluster, gang) {
            Ok(others) => others,
            Err(reason) => return Some(Explanation { reason, changes: Vec::new() }),
        };
        let reason = place::place(&mut self.cluster, &Request::fresh(gang, &others)).err()?;
        let mut changes = Vec::new();
        if let Reason::InsufficientCapacity { role, .. } = &reason {
            changes.extend(freed(&mut self.cluster, &others, gang, role));
        }
        if !matches!(reason, Reason::Invalid { .. }) {
            changes.extend(other_class(&mut self.cluster, &others, gang, classes));
            changes.extend(fewer(&mut self.cluster, &others, gang));
            changes.extend(relaxed(&mut self.cluster, &others, gang));
            changes.extend(loosened(&mut self.cluster, &others, gang));
        }
        Some(Explanation { reason, changes })
    }
}

fn runs(cluster: &mut Cluster, others: &Others, gang: &Gang) -> bool {
    place::place(cluster, &Request::fresh(gang, others)).is_ok()
}

/// The first other class on which the gang runs now.
fn other_class(
    cluster: &mut Cluster,
    others: &Others,
    gang: &Gang,
    classes: &[AcceleratorClass],
) -> Option<Change> {
    if gang.roles.iter().all(|role| role.devices == 0) {
        return None;
    }
    let mut unlisted = classes.iter().filter(|class| gang.classes.iter().all(|own| own.name != class.name));
    let on = |class: &AcceleratorClass| Gang { classes: vec![class.clone()], ..gang.clone() };
    let class = unlisted.find(|class| runs(cluster, others, &on(class)))?;
    Some(Change::Class { class: class.name.clone() })
}

/// The least room to free, of all classes: in the domains that lack least for the blocks still missing.
fn freed(cluster: &mut Cluster, others: &Others, gang: &Gang, role: &str) -> Option<Change> {
    let index = gang.roles.iter().position(|r| r.name == role)?;
    let prepared = problem::prepare(cluster, gang, None).ok()?;
    let all = prepared.classes.iter().filter_map(|on| freed_on(cluster, others, gang, index, on));
    all.min_by_key(|(pods, _)| *pods).map(|(_, change)| change)
}

/// The least room to free on one class, and how many pods' worth it is.
fn freed_on(
    cluster: &mut Cluster,
    others: &Others,
    gang: &Gang,
    index: usize,
    on: &problem::OnClass,
) -> Option<(u32, Change)> {
    let of = &on.spec.roles[index];
    // Of the Required rules the innermost decides where room must be freed; without one, anywhere will do.
    let seg = of.segments.iter().find(|seg| seg.required);
    let (size, depth) = match seg {
        Some(seg) => (seg.pods, seg.depth),
        None if on.spec.within > 0 => (of.min().max(1) * of.pods, on.spec.within),
        None => (of.min().max(1) * of.pods, 0),
    };
    let problem = Problem { cluster, gang, on, top: ROOT, limits: &rules::FREE };
    let there: u64 =
        explain::holders(&problem, index, depth, false).iter().map(|(held, ..)| held / u64::from(size)).sum();
    let wanted = u64::from(of.min().max(1)) * u64::from(of.pods) / u64::from(size);
    let missing = wanted.saturating_sub(there).max(1) as usize;
    let near = explain::nearest(&problem, index, depth, size, missing);
    let shape = on.ids[index].shape;
    let mut lent: Vec<Slot> = Vec::new();
    for (lacks, domain, slot) in &near {
        let mut rest = *lacks;
        let nodes = slot.map_or_else(|| nodes_inside(cluster, *domain), |slot| vec![slot]);
        for slot in nodes {
            let cell = cluster.index.cell(shape, slot);
            if matches!(cell.refusal, None | Some(NodeRefusal::Busy)) {
                let more = u64::from(cell.empty - cell.fit).min(rest);
                lent.extend(std::iter::repeat_n(slot, more as usize));
                rest -= more;
            }
        }
        if rest > 0 {
            return None;
        }
    }
    let domains = explain::name(&problem_of(cluster, gang, on), depth, size, &near);
    let request = on.spec.roles[index].request.clone();
    let enough = cluster.quietly(|cluster| {
        cluster.lend(&lent, &request, -1);
        let enough = runs(cluster, others, gang);
        cluster.lend(&lent, &request, 1);
        enough
    });
    let pods = lent.len() as u32;
    enough.then(|| (pods, Change::Free { role: gang.roles[index].name.clone(), pods, domains }))
}

fn problem_of<'a>(cluster: &'a Cluster, gang: &'a Gang, on: &'a problem::OnClass) -> Problem<'a> {
    Problem { cluster, gang, on, top: ROOT, limits: &rules::FREE }
}

fn nodes_inside(cluster: &Cluster, domain: DomainId) -> Vec<Slot> {
    let mut nodes = Vec::new();
    let mut stack = vec![domain];
    while let Some(domain) = stack.pop() {
        let domain = cluster.tree.domain(domain);
        nodes.extend(&domain.nodes);
        stack.extend(domain.children.iter().rev());
    }
    nodes
}

/// The largest smaller minimum of one role with which the gang runs.
fn fewer(cluster: &mut Cluster, others: &Others, gang: &Gang) -> Vec<Change> {
    let mut all = Vec::new();
    for (index, role) in gang.roles.iter().enumerate() {
        let with = |min: u32| {
            let mut fewer = gang.clone();
            let valid = role.valid.iter().copied().filter(|count| *count >= min).collect();
            fewer.roles[index] = Role { min, valid, ..role.clone() };
            fewer
        };
        // Fewer units never fit worse, so the boundary is found by halving.
        let (mut fits, mut fails) = (0, role.min);
        while fails - fits > 1 {
            let half = fits.midpoint(fails);
            if runs(cluster, others, &with(half)) { fits = half } else { fails = half }
        }
        if fits > 0 {
            all.push(Change::Fewer { role: role.name.clone(), min: fits });
        }
    }
    all
}

/// Rules between roles and units that bind too tightly.
fn loosened(cluster: &mut Cluster, others: &Others, gang: &Gang) -> Vec<Change> {
    let mut all = Vec::new();
    let with = |change: &dyn Fn(&mut Rules)| {
        let mut other = gang.clone();
        change(&mut other.rules);
        other
    };
    for (at, near) in gang.rules.near.iter().enumerate().filter(|(_, near)| near.mode == Mode::Required) {
        let field = format!("rules.near[{at}]");
        all.extend(outwards(cluster, others, &field, &near.level, &|level| {
            with(&|rules| rules.near[at].level.clone_from(&level))
        }));
        if runs(cluster, others, &with(&|rules| drop(rules.near.remove(at)))) {
            all.push(Change::Prefer { field: format!("{field}.mode") });
        }
    }
    for (at, spread) in gang.rules.spread.iter().enumerate().filter(|(_, s)| s.mode == Mode::Required) {
        all.extend(less_apart(cluster, others, gang, at, spread));
    }
    for at in 0..gang.rules.ratios.len() {
        if runs(cluster, others, &with(&|rules| drop(rules.ratios.remove(at)))) {
            all.push(Change::LeaveOut { field: format!("rules.ratios[{at}]") });
        }
    }
    all
}

/// What helps where a `spread` rule binds.
fn less_apart(
    cluster: &mut Cluster,
    others: &Others,
    gang: &Gang,
    at: usize,
    spread: &Spread,
) -> Vec<Change> {
    let with = |change: &dyn Fn(&mut Vec<Spread>)| {
        let mut other = gang.clone();
        change(&mut other.rules.spread);
        other
    };
    let everywhere = |change: Change| match spread.group.clone() {
        Some(group) => Change::InGroup { group, change: Box::new(change) },
        None => change,
    };
    let mut all = Vec::new();
    let field = format!("rules.spread[{at}]");
    if spread.group.is_some() && runs(cluster, others, &with(&|rules| rules[at].group = None)) {
        all.push(Change::LeaveOut { field: format!("{field}.group") });
    }
    let max = ruled::most_in_a_domain(&Request::fresh(gang, others), spread);
    let (mut fails, mut fits) = (spread.units, max.saturating_add(1));
    while fits > fails + 1 {
        let half = fails.midpoint(fits);
        let runs = runs(cluster, others, &with(&|rules| rules[at].units = half));
        if runs { fits = half } else { fails = half }
    }
    if fits <= max {
        let units = Change::Raise { field: format!("{field}.units"), from: spread.units, to: fits };
        all.push(everywhere(units));
    }
    if runs(cluster, others, &with(&|rules| drop(rules.remove(at)))) {
        all.push(everywhere(Change::Prefer { field: format!("{field}.mode") }));
    }
    all
}

/// Required rules that bind too far inside.
fn relaxed(cluster: &mut Cluster, others: &Others, gang: &Gang) -> Vec<Change> {
    let mut all = Vec::new();
    for (index, role) in gang.roles.iter().enumerate() {
        for (at, segment) in role.segments.iter().enumerate().filter(|(_, s)| s.mode == Mode::Required) {
            let field = format!("roles[{}].segments[{at}]", role.name);
            let with = |segment: Segment| {
                let mut relaxed = gang.clone();
                relaxed.roles[index].segments[at] = segment;
                relaxed
            };
            all.extend(outwards(cluster, others, &field, &segment.level, &|level| {
                with(Segment { level, ..segment.clone() })
            }));
            if runs(cluster, others, &with(Segment { mode: Mode::Preferred, ..segment.clone() })) {
                all.push(Change::Prefer { field: format!("{field}.mode") });
            }
        }
    }
    if let Some(within) = gang.within.as_ref().filter(|within| within.mode == Mode::Required) {
        let with = |within| Gang { within, ..gang.clone() };
        all.extend(outwards(cluster, others, "within", &within.level, &|level| {
            with(Some(muster_model::Within { level, ..within.clone() }))
        }));
        if runs(cluster, others, &with(None)) {
            all.push(Change::Prefer { field: "within.mode".into() });
        }
    }
    all
}

/// The nearest level further out with which the gang runs.
fn outwards(
    cluster: &mut Cluster,
    others: &Others,
    field: &str,
    from: &str,
    with: &dyn Fn(String) -> Gang,
) -> Option<Change> {
    let names: Vec<String> = cluster.tree.topology.names().into_iter().map(str::to_owned).collect();
    let position = names.iter().position(|name| name == from)?;
    let to = names[..position].iter().rev().find(|name| runs(cluster, others, &with((*name).clone())))?;
    Some(Change::Widen { field: format!("{field}.level"), from: from.to_owned(), to: to.clone() })
}
