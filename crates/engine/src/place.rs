//! Placing one gang: classes in order; look-ups where they are certain, exact search where its steps fit the budget,
//! else the best that the fast solvers find.
//!
//! ```text
//!   Gang ──prepare──▶ per class: fast (index) ─certified▶ done
//!                                 ├▶ narrow: a few domains of a large cluster
//!                                 └▶ forest ▶ dp (exact) | search ──▶ layout ▸ spares ──▶ Placement | Reason
//! ```

use muster_model::{
    Gang, NodeName, Reason, UnitId,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::Cluster,
    cost::Packing,
    dp::{Best, Search},
    explain, family, fast,
    forest::Forest,
    greedy::{self, Short},
    groups::Others,
    layout,
    narrow::{self, Narrow},
    nodes,
    problem::{self, OnClass, Prepared, Problem},
    ruled,
    rules::Standing,
    spares,
    spec::{Objective, RoleSpec},
    tree::{DomainId, ROOT, Slot},
    wishes,
};

/// Steps that the exact search may take for one gang and class. A step is a few nanoseconds.
pub const EXACT_STEPS: u64 = 500_000;
/// An exact search over several roles takes so many steps for each node at least.
const STEPS_A_NODE: u64 = 250;
/// Beyond this many leaf domains a placement found by look-ups is taken though nothing proves it the best: a search over
/// all of them would take longer than such a decision is worth.
const MOST_LEAVES: usize = 2_000;

/// What to place, and under which circumstances.
pub struct Request<'a> {
    /// The gang.
    pub gang: &'a Gang,
    /// What is better; `None` for the engine's own order.
    pub order: Option<&'a [Objective]>,
    /// Everything must lie inside this domain.
    pub top: DomainId,
    /// Domains that cost nothing more to use.
    pub paid: BTreeSet<DomainId>,
    /// Steps that the exact search may take.
    pub steps: u64,
    /// Units of the gang that stay where they are, beside which these are placed; rules bind both.
    pub stay: &'a [Standing],
    /// Units of other gangs that count in its rules.
    pub others: &'a Others,
}

impl<'a> Request<'a> {
    /// A gang placed from nothing, anywhere, in the engine's own order.
    pub fn fresh(gang: &'a Gang, others: &'a Others) -> Self {
        Self { gang, order: None, top: ROOT, paid: BTreeSet::new(), steps: EXACT_STEPS, stay: &[], others }
    }
}

/// A placement found, by slots. Nothing is named or held yet.
#[derive(Clone, Debug)]
pub struct Found {
    /// Position of the class among the gang's.
    pub class: Option<usize>,
    /// Per role the nodes of its units in rank order, one after the other.
    pub pods: Vec<Vec<Slot>>,
    /// Per role name the spare nodes.
    pub spares: BTreeMap<String, Vec<Slot>>,
    /// Whether no better placement exists (by the order, for this class).
    pub proven: bool,
}

impl Found {
    /// Names it.
    pub fn placement(&self, cluster: &Cluster, gang: &Gang) -> Placement {
        let names = |slots: &[Slot]| {
            let mut names = Vec::with_capacity(slots.len());
            names.extend(slots.iter().filter_map(|slot| cluster.node(*slot)).map(|node| node.name.clone()));
            names
        };
        // To copy a name is a locked increment, and these wait for one another. Plain loads do not: so the names, which lie
        // all over the memory of a large cluster, are brought near first.
        for slot in self.pods.iter().flatten() {
            let first = cluster.node(*slot).and_then(|node| node.name.as_str().as_bytes().first());
            std::hint::black_box(first);
        }
        let mut placement = Placement::default();
        for (role, pods) in gang.roles.iter().zip(&self.pods) {
            let class = self.class.filter(|_| role.devices > 0).map(|class| gang.classes[class].name.clone());
            let units = pods.chunks(role.pods_per_unit as usize).enumerate();
            placement.units.extend(units.map(|(index, slots)| PlacedUnit {
                id: UnitId { role: role.name.clone(), index: index as u32 },
                class: class.clone(),
                nodes: names(slots),
            }));
        }
        placement.spares = self.spares.iter().map(|(role, slots)| (role.clone(), names(slots))).collect();
        placement
    }
}

/// Places a gang. Nothing is held.
///
/// # Errors
/// Why it cannot be placed, for the class that comes nearest.
pub fn place(cluster: &mut Cluster, request: &Request<'_>) -> Result<Found, Reason> {
    let prepared = problem::prepare(cluster, request.gang, request.order)?;
    place_prepared(cluster, request, &prepared)
}

/// Places a gang that is prepared.
///
/// # Errors
/// As [`place`].
pub fn place_prepared(
    cluster: &mut Cluster,
    request: &Request<'_>,
    prepared: &Prepared,
) -> Result<Found, Reason> {
    let result = place_required(cluster, request, prepared);
    if request.gang.rules.is_empty() { result } else { ruled::finish(cluster, request, result) }
}

/// Places a gang that is prepared, by Required rules between roles and units only.
///
/// # Errors
/// As [`place`].
pub fn place_required(
    cluster: &mut Cluster,
    request: &Request<'_>,
    prepared: &Prepared,
) -> Result<Found, Reason> {
    let avoid = &request.gang.avoid;
    let mut nearest: Option<Reason> = None;
    for on in &prepared.classes {
        let shapes: BTreeSet<usize> = on.ids.iter().map(|ids| ids.shape).collect();
        for shape in &shapes {
            cluster.sync(*shape);
        }
        if !avoid.is_empty() {
            for shape in &shapes {
                cluster.hide(avoid, *shape, true);
            }
        }
        let result = place_class(cluster, request, on);
        if !avoid.is_empty() {
            for shape in &shapes {
                cluster.hide(avoid, *shape, false);
            }
        }
        match result {
            Ok(found) => return Ok(found),
            Err(reason) => {
                if nearest.as_ref().is_none_or(|known| explain::nearness(&reason) > explain::nearness(known))
                {
                    nearest = Some(reason);
                }
            }
        }
    }
    Err(nearest.unwrap_or(Reason::NotFound { states: 0 }))
}

fn place_class(cluster: &Cluster, request: &Request<'_>, on: &OnClass) -> Result<Found, Reason> {
    let rules = &on.spec.rules;
    let Some(limits) = rules.resolve(cluster, request.stay, request.others) else {
        return Err(ruled::together(request.gang));
    };
    let problem = Problem { cluster, gang: request.gang, on, top: request.top, limits: &limits };
    if problem.short_alone().is_some() {
        return Err(explain::reason(&problem, None));
    }
    if let Some(short) = problem.short_together() {
        return Err(explain::reason(&problem, Some(&short)));
    }
    let simple =
        on.spec.roles.len() == 1 && request.order.is_none() && request.paid.is_empty() && rules.is_empty();
    let quick = if simple { quick(&problem) } else { None };
    if let Some(picked) = quick.as_ref().filter(|picked| picked.proven) {
        return Ok(finish_picked(&problem, picked));
    }
    let large = cluster.tree.at_depth(cluster.tree.leaf_depth()).len() > MOST_LEAVES;
    if let Some(picked) = quick.as_ref().filter(|_| large) {
        return Ok(finish_picked(&problem, picked));
    }
    // A search over everything would not be exact, and takes as long as the cluster is large.
    if quick.is_none()
        && request.paid.is_empty()
        && cluster.nodes.len() as u64 > request.steps / STEPS_A_NODE
        && let Some(Narrow { on, forest, best }) = narrow::place(&problem, request.steps)
    {
        return Ok(finish(&Problem { on: &on, ..problem }, &forest, &best, false));
    }
    let forest = Forest::build(&problem);
    let packing = Packing::new(&cluster.tree, &forest, &on.spec);
    let search = Search::new(&problem, &forest, &packing, &request.paid);
    if search.steps(request.steps).is_some() {
        return match search.run() {
            Some(best) => Ok(finish(&problem, &forest, &best, true)),
            None if !rules.is_empty() => Err(ruled::together(request.gang)),
            None => Err(explain::reason(&problem, greedy::place(&problem, &forest).err().as_ref())),
        };
    }
    if let Some(picked) = quick {
        return Ok(finish_picked(&problem, &picked));
    }
    match without_exact(&problem, &forest) {
        Ok(best) => Ok(finish(&problem, &forest, &best, false)),
        Err(short) => Err(Reason::NotFound { states: short.tried }),
    }
}

/// The best that is found in a forest without exact search.
///
/// # Errors
/// What fell short in the best try.
pub fn without_exact(problem: &Problem<'_>, forest: &Forest) -> Result<Best, Short> {
    let plain = problem.on.spec.rules.is_empty();
    if plain { greedy::place(problem, forest) } else { family::place(problem, forest) }
}

/// Look-ups: all Preferred rules kept if that costs no unit.
fn quick(problem: &Problem<'_>) -> Option<fast::Picked> {
    let role = &problem.on.spec.roles[0];
    let soft = role.segments.iter().any(|seg| !seg.required);
    fast::place(problem, soft)
}

fn finish_picked(problem: &Problem<'_>, picked: &fast::Picked) -> Found {
    let mut pods = Vec::with_capacity(picked.leaves.iter().map(|(_, pods)| *pods as usize).sum());
    for (leaf, count) in &picked.leaves {
        nodes::list(problem, *leaf, *count, picked.chunk, &mut pods);
    }
    let pods = vec![pods];
    let spares = spares::choose(problem, &pods);
    Found { class: problem.on.class, pods, spares, proven: picked.proven }
}

fn finish(problem: &Problem<'_>, forest: &Forest, best: &Best, proven: bool) -> Found {
    let leaf = problem.cluster.tree.leaf_depth();
    let layout = |(index, role): (usize, &RoleSpec)| {
        let on_part = |part: usize| {
            let pods = best.pods[index][part];
            match forest.parts[part].slot {
                _ if pods == 0 => Vec::new(),
                Some(slot) => vec![(slot, pods)],
                None => {
                    nodes::choose(problem, forest.parts[part].domain, u64::from(pods), nodes::chunk(problem))
                }
            }
        };
        layout::units(forest, role, leaf, best.top, on_part).concat()
    };
    let mut pods: Vec<Vec<Slot>> = problem.on.spec.roles.iter().enumerate().map(layout).collect();
    if !forest.leaves_only {
        wishes::improve(problem, &mut pods);
    }
    let spares = spares::choose(problem, &pods);
    Found { class: problem.on.class, pods, spares, proven }
}

/// The order's values of a placement, from the placement alone.
pub fn evaluate(cluster: &Cluster, gang: &Gang, order: &[Objective], placement: &Placement) -> Vec<u64> {
    let depths = cluster.tree.leaf_depth() + 1;
    // The domain of a node at a depth; at the nodes' depth, the node itself.
    let domain = |name: &NodeName, depth: usize| {
        let slot = cluster.slot(name.as_str())?;
        if depth >= depths {
            return Some(slot);
        }
        let leaf = cluster.node(slot)?.leaf?;
        cluster.tree.ancestors(leaf).find(|d| cluster.tree.domain(*d).depth == depth)
    };
    let used = |depth: usize| -> u64 {
        let nodes = placement.units.iter().flat_map(|unit| &unit.nodes);
        nodes.filter_map(|node| domain(node, depth)).collect::<BTreeSet<_>>().len() as u64
    };
    let broken = |role: &str, pods: u32| -> u64 {
        let of = gang.roles.iter().find(|r| r.name == role);
        let rule = of.and_then(|r| {
            r.segments.iter().find(|s| s.pods == pods && s.mode == muster_model::Mode::Preferred)
        });
        let Some(depth) = rule.and_then(|s| cluster.tree.topology.level(&s.level)).map(|level| level + 1)
        else {
            return 0;
        };
        let units = placement.units.iter().filter(|unit| unit.id.role == role);
        let blocks = units.flat_map(|unit| unit.nodes.chunks(pods as usize));
        let split = |block: &&[NodeName]| {
            block.iter().map(|node| domain(node, depth)).collect::<BTreeSet<_>>().len() > 1
        };
        blocks.filter(split).count() as u64
    };
    order
        .iter()
        .map(|objective| match objective {
            Objective::Units => placement.units.len() as u64,
            Objective::Broken { role, pods } => broken(role, *pods),
            Objective::Span => (1..=depths).filter(|depth| used(*depth) > 1).count() as u64,
            Objective::Domains(level) => {
                cluster.tree.topology.level(level).map_or(0, |level| used(level + 1))
            }
        })
        .collect()
}
