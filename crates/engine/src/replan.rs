//! New nodes for lost units, by the steps of the gang's recovery ladder in their order.
//!
//! ```text
//!   Plan + lost ──▶ survivors stay ──▶ ReplaceNode: Replaced (near the survivors)
//!              steps, one after another ├▶ Shrink: Shrunk (renumbered)
//!                                       └▶ Requeue: Moved (all anew), the last whatever follows ──▶ Reason
//! ```
//!
//! To be moved as a whole is `Requeue` without the wait: the gang gives everything back and is placed anew. Where that
//! finds nothing the caller may still requeue it, so no step after it is ever reached.

use muster_model::{
    Gang, GangState, Mode, NodeName, Plan, PlannedUnit, Reason, RecoveryStep, Role, UnitId,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    How,
    cluster::{Amounts, Cluster},
    groups::Others,
    place::{self, Found, Request},
    problem::Prepared,
    rules::{self, Standing},
    spec::{self, Objective},
    tree::{DomainId, ROOT, Slot},
};

/// What a gang holds: per kind of pod what one uses, and the nodes, one entry a pod.
pub type Holdings = Vec<(Amounts, Vec<Slot>)>;

/// What some units and spares of a gang hold.
pub fn holdings<'a>(
    cluster: &mut Cluster,
    gang: &Gang,
    units: impl IntoIterator<Item = &'a PlacedUnit>,
    spares: &BTreeMap<String, Vec<NodeName>>,
) -> Holdings {
    let mut class = None;
    let mut by_kind: BTreeMap<(&str, Option<&str>), Vec<Slot>> = BTreeMap::new();
    for unit in units {
        class = class.or(unit.class.as_deref());
        let kind = by_kind.entry((&unit.id.role, unit.class.as_deref())).or_default();
        kind.extend(unit.nodes.iter().map(|node| cluster.slot_or_new(node)));
    }
    for (role, nodes) in spares {
        let kind = by_kind.entry((role, class)).or_default();
        kind.extend(nodes.iter().map(|node| cluster.slot_or_new(node)));
    }
    let request = |role: &str, class: Option<&str>| {
        // A class that the gang no longer lists still uses some accelerator: the first class's resource.
        let class = gang.classes.iter().find(|c| Some(c.name.as_str()) == class).or(gang.classes.first());
        gang.roles.iter().find(|r| r.name == role).map(|r| r.pod_requests(class))
    };
    let held = by_kind.into_iter();
    held.filter_map(|((role, class), slots)| Some((cluster.amounts(&request(role, class)?), slots))).collect()
}

/// What a placement just found will hold.
pub fn held_by_found(gang: &Gang, prepared: &Prepared, found: &Found) -> Holdings {
    let on = prepared.classes.iter().find(|on| on.class == found.class);
    let requests = on.into_iter().flat_map(|on| &on.spec.roles).map(|role| &role.request);
    let pods = gang.roles.iter().zip(&found.pods).zip(requests);
    pods.map(|((role, pods), request)| {
        let spares = found.spares.get(&role.name).map_or(&[][..], Vec::as_slice);
        (request.clone(), [pods, spares].concat())
    })
    .collect()
}

/// Adds (`sign` 1) or takes away (−1) holdings.
pub fn charge(cluster: &mut Cluster, holdings: &Holdings, sign: i64) {
    for (requests, slots) in holdings {
        cluster.charge(slots, requests, sign);
    }
}

/// Takes away (`sign` −1) holdings for a trial, or puts them back (1): a node that is gone is not forgotten in between.
fn lend(cluster: &mut Cluster, holdings: &Holdings, sign: i64) {
    for (requests, slots) in holdings {
        cluster.lend(slots, requests, sign);
    }
}

/// What a gang in this state holds.
pub fn held_by(cluster: &mut Cluster, gang: &Gang) -> Holdings {
    match (&gang.state, held_units(gang)) {
        (GangState::Holding(plan) | GangState::Replan { plan, .. }, Some(units)) => {
            holdings(cluster, gang, units, &plan.spares)
        }
        _ => Vec::new(),
    }
}

/// Units that a gang holds in this state; `None` if it holds no plan.
pub fn held_units(gang: &Gang) -> Option<Vec<&PlacedUnit>> {
    match &gang.state {
        GangState::Inactive | GangState::Waiting => None,
        GangState::Holding(plan) => Some(plan.units.iter().map(|unit| &unit.placed).collect()),
        GangState::Replan { plan, lost, .. } => {
            Some(survivors(plan, lost).map(|unit| &unit.placed).collect())
        }
    }
}

fn survivors<'a>(plan: &'a Plan, lost: &'a BTreeSet<UnitId>) -> impl Iterator<Item = &'a PlannedUnit> {
    plan.units.iter().filter(|unit| !lost.contains(&unit.placed.id))
}

/// What was lost of a plan.
#[derive(Clone, Copy)]
pub struct Loss<'a> {
    /// The gang.
    pub gang: &'a Gang,
    /// Its plan.
    pub plan: &'a Plan,
    /// Units that want other nodes.
    pub lost: &'a BTreeSet<UnitId>,
    /// Units of other gangs that count in its rules.
    pub others: &'a Others,
}

/// Finds new nodes for lost units by these steps, in order. What the gang holds must be charged, and is charged
/// unchanged on return.
///
/// # Errors
/// Why no step is possible: with `Requeue` among them the reason of a whole new placement;
/// [`Reason::LadderForbids`] where a step that is not listed would do; else the reason of `ReplaceNode`, or of `Shrink`.
pub fn replan(
    cluster: &mut Cluster,
    loss: Loss<'_>,
    steps: &[RecoveryStep],
) -> Result<(Placement, How), Reason> {
    spec::compile(&cluster.tree, loss.gang, None)?;
    // What is given up and taken back here are trials.
    cluster.quietly(|cluster| walk(cluster, loss, steps))
}

/// The steps that ask for a placement, in the order of the default ladder.
const PLACING: [RecoveryStep; 3] = [RecoveryStep::ReplaceNode, RecoveryStep::Shrink, RecoveryStep::Requeue];

fn walk(cluster: &mut Cluster, loss: Loss<'_>, steps: &[RecoveryStep]) -> Result<(Placement, How), Reason> {
    let mut last = None;
    for step in steps.iter().copied().filter(|step| PLACING.contains(step)) {
        match attempt(cluster, loss, step) {
            Ok(found) => return Ok(found),
            Err(reason) if step == RecoveryStep::Requeue => return Err(reason),
            // What nodes lack tells more than that the rest is too small.
            Err(reason) if step == RecoveryStep::Shrink => last = last.or(Some(reason)),
            Err(reason) => last = Some(reason),
        }
    }
    for step in PLACING.into_iter().filter(|step| !steps.contains(step)) {
        match attempt(cluster, loss, step) {
            Ok(_) => return Err(Reason::LadderForbids { step }),
            Err(reason) => last = last.or(Some(reason)),
        }
    }
    Err(last.unwrap_or(Reason::NotFound { states: 0 }))
}

fn attempt(cluster: &mut Cluster, loss: Loss<'_>, step: RecoveryStep) -> Result<(Placement, How), Reason> {
    let Loss { gang, plan, others, .. } = loss;
    match step {
        RecoveryStep::ReplaceNode => {
            // The gang's own spares are there for this: the replacement may use them, and new ones are chosen after.
            let spares = holdings(cluster, gang, [], &plan.spares);
            lend(cluster, &spares, -1);
            let replaced = replace(cluster, loss);
            lend(cluster, &spares, 1);
            replaced.map(|placement| (placement, How::Replaced))
        }
        RecoveryStep::Shrink => shrink(loss).map(|placement| (placement, How::Shrunk)),
        RecoveryStep::Requeue | RecoveryStep::RestartInPlace => {
            let held = held_by(cluster, gang);
            lend(cluster, &held, -1);
            let moved = place::place(cluster, &Request::fresh(gang, others));
            lend(cluster, &held, 1);
            moved.map(|found| (found.placement(cluster, gang), How::Moved))
        }
    }
}

/// A gang that asks for the lost units only, on the class that the plan uses.
fn lost_part(gang: &Gang, plan: &Plan, lost: &BTreeSet<UnitId>) -> Gang {
    let mut part = gang.clone();
    for role in &mut part.roles {
        let units =
            plan.units.iter().filter(|u| u.placed.id.role == role.name && lost.contains(&u.placed.id));
        let count = units.count() as u32;
        (role.min, role.max, role.valid) = (count, count, Vec::new());
    }
    // The counts are those of the plan, which keeps them.
    part.rules.ratios.clear();
    let used = plan.units.iter().find_map(|unit| unit.placed.class.as_ref());
    if part.classes.iter().any(|class| Some(&class.name) == used) {
        part.classes.retain(|class| Some(&class.name) == used);
    }
    part
}

/// Other nodes for the lost units beside those that stay.
///
/// # Errors
/// Why there are none, in the widest domain that was tried.
fn replace(cluster: &mut Cluster, loss: Loss<'_>) -> Result<Placement, Reason> {
    let Loss { gang, plan, lost, others } = loss;
    let part = lost_part(gang, plan, lost);
    let stay: Vec<&PlannedUnit> = survivors(plan, lost).collect();
    let leaf = |name: &NodeName| cluster.node(cluster.slot(name.as_str())?)?.leaf;
    let homes: Vec<DomainId> = stay.iter().flat_map(|unit| &unit.placed.nodes).filter_map(leaf).collect();
    let paid: BTreeSet<DomainId> = homes.iter().flat_map(|home| cluster.tree.ancestors(*home)).collect();
    let stand = |unit: &&PlannedUnit| {
        let role = gang.roles.iter().position(|role| role.name == unit.placed.id.role)?;
        Some((role, unit.placed.nodes.iter().filter_map(|name| cluster.slot(name.as_str())).collect()))
    };
    let standing: Vec<Standing> = stay.iter().filter_map(stand).collect();
    // From the smallest domain that holds the survivors outwards, so that the gang stays as compact as it can.
    let tops: Vec<DomainId> = match homes.first() {
        None => vec![ROOT],
        Some(home) => cluster
            .tree
            .ancestors(*home)
            .filter(|top| homes.iter().all(|other| cluster.tree.ancestors(*other).any(|d| d == *top)))
            .collect(),
    };
    let spec = spec::compile(&cluster.tree, &part, None)?;
    let kept: usize = stay.iter().map(|unit| unit.placed.nodes.len()).sum();
    if (spec.within > 0 || !gang.rules.is_empty()) && homes.len() < kept {
        // Where a node that is gone lay is not known, so nothing can be said to lie together with it.
        return Err(Reason::RuleUnmet {
            field: if gang.rules.is_empty() { "within" } else { "rules" }.to_owned(),
            rule: "a node of a unit that stays is gone, so nobody knows what lies beside it".to_owned(),
        });
    }
    let within = if homes.is_empty() { 0 } else { spec.within };
    // Beside survivors the span is that of the domain tried, not that of the new pods alone.
    let order: Vec<Objective> = spec
        .order
        .into_iter()
        .filter(|objective| homes.is_empty() || *objective != Objective::Span)
        .collect();
    let apart = gang.rules.spread.iter().any(|spread| spread.mode == Mode::Preferred);
    // What is wished apart is not sought close by first.
    let allowed = tops.iter().take_while(|top| cluster.tree.domain(**top).depth >= within).count();
    let tops = if apart { &tops[allowed.saturating_sub(1)..allowed] } else { &tops[..] };
    let mut refusal = None;
    for top in tops.iter().copied() {
        if cluster.tree.domain(top).depth < within {
            break;
        }
        let request = Request {
            gang: &part,
            order: Some(&order),
            top,
            paid: paid.clone(),
            steps: place::EXACT_STEPS,
            stay: &standing,
            others,
        };
        match place::place(cluster, &request) {
            Ok(found) => return Ok(merge(gang, plan, lost, found.placement(cluster, &part))),
            Err(reason) => refusal = Some(reason),
        }
    }
    Err(refusal.unwrap_or_else(|| not_together(gang)))
}

/// What stays lies in several domains of the level in which all of the gang must lie.
fn not_together(gang: &Gang) -> Reason {
    let rule =
        gang.within.as_ref().map_or_else(String::new, |within| format!("all of it in one {}", within.level));
    Reason::RuleUnmet { field: "within".to_owned(), rule }
}

/// The survivors with the replacements under the lost units' names.
fn merge(gang: &Gang, plan: &Plan, lost: &BTreeSet<UnitId>, found: Placement) -> Placement {
    let mut fresh: BTreeMap<String, Vec<PlacedUnit>> = BTreeMap::new();
    for unit in found.units.into_iter().rev() {
        fresh.entry(unit.id.role.clone()).or_default().push(unit);
    }
    let mut units = Vec::with_capacity(plan.units.len());
    for role in &gang.roles {
        let mut old: Vec<&PlacedUnit> =
            plan.units.iter().map(|unit| &unit.placed).filter(|unit| unit.id.role == role.name).collect();
        old.sort_by_key(|unit| unit.id.index);
        for unit in old {
            if !lost.contains(&unit.id) {
                units.push(unit.clone());
            } else if let Some(new) = fresh.get_mut(&role.name).and_then(Vec::pop) {
                units.push(PlacedUnit { id: unit.id.clone(), ..new });
            }
        }
    }
    Placement { units, spares: found.spares }
}

/// How many survivors of each role go on: the most that are a valid size, and with ratios the most that keep these.
///
/// # Errors
/// Which role has too few left.
fn kept_counts(loss: Loss<'_>) -> Result<Vec<u32>, Reason> {
    let Loss { gang, plan, lost, .. } = loss;
    let count = |role: &Role| {
        let stay = survivors(plan, lost).filter(|unit| unit.placed.id.role == role.name);
        stay.count() as u32
    };
    let counts: Vec<u32> = gang.roles.iter().map(count).collect();
    let few = |role: &Role, left: u32| Reason::TooFewLeft {
        role: role.name.clone(),
        left,
        min: role.valid.iter().copied().filter(|units| *units >= role.min).min().unwrap_or(role.min),
    };
    let sizes = gang.roles.iter().zip(&counts);
    let most: Vec<u32> = sizes
        .map(|(role, left)| role.allowed_at_most(*left).ok_or_else(|| few(role, *left)))
        .collect::<Result<_, _>>()?;
    if gang.rules.ratios.is_empty() {
        return Ok(most);
    }
    rules::most_units(gang, &counts).ok_or_else(|| {
        let rules: Vec<String> = gang.rules.ratios.iter().map(muster_model::Ratio::words).collect();
        Reason::RuleUnmet { field: "rules.ratios".to_owned(), rule: rules.join("; ") }
    })
}

/// The survivors alone, renumbered, in the largest valid size of every role that they are enough for.
fn shrink(loss: Loss<'_>) -> Result<Placement, Reason> {
    let Loss { gang, plan, lost, .. } = loss;
    let mut units = Vec::new();
    let most = kept_counts(loss)?;
    for (role, most) in gang.roles.iter().zip(most) {
        let mut stay: Vec<PlacedUnit> = survivors(plan, lost)
            .filter(|unit| unit.placed.id.role == role.name)
            .map(|unit| unit.placed.clone())
            .collect();
        stay.sort_by_key(|unit| unit.id.index);
        stay.truncate(most as usize);
        for (index, unit) in stay.iter_mut().enumerate() {
            unit.id.index = index as u32;
        }
        units.extend(stay);
    }
    if units.is_empty() {
        let role = gang.roles.first().map_or_else(String::new, |role| role.name.clone());
        return Err(Reason::TooFewLeft { role, left: 0, min: 1 });
    }
    Ok(Placement { units, spares: plan.spares.clone() })
}
