//! Placing one gang: classes in order, exact search where its steps fit the budget, else the fast solver.
//!
//! ```text
//!   Gang ──compile──▶ Spec ──per class──▶ Forest ──▶ dp (exact) | greedy ──▶ layout ──▶ Placement | Reason
//! ```

use muster_model::{
    AcceleratorClass, Gang, NodeName, Reason, UnitId,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    cluster::Cluster,
    cost::Packing,
    dp::{Best, Search},
    explain,
    forest::{Eligibility, Forest},
    greedy, layout,
    spec::{self, Objective, Spec},
    tree::{DomainId, ROOT},
};

/// Steps that the exact search may take for one gang and class. A step is a few nanoseconds.
pub const EXACT_STEPS: u64 = 1_000_000;

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
}

impl<'a> Request<'a> {
    /// A gang placed from nothing, anywhere, in the engine's own order.
    pub fn fresh(gang: &'a Gang) -> Self {
        Self { gang, order: None, top: ROOT, paid: BTreeSet::new(), steps: EXACT_STEPS }
    }
}

/// A placement with how it was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Where every pod goes.
    pub placement: Placement,
    /// The order's values.
    pub vector: Vec<u64>,
    /// Whether no better placement exists (by the order, for this class).
    pub proven: bool,
}

/// Places a gang. Nothing is held.
///
/// # Errors
/// Why it cannot be placed, for the class that comes nearest.
pub fn place(cluster: &mut Cluster, request: &Request<'_>) -> Result<Solution, Reason> {
    let gang = request.gang;
    let mut spec = spec::compile(&cluster.tree, gang, request.order)?;
    let with_devices = gang.roles.iter().any(|role| role.devices > 0);
    let classes: Vec<Option<&AcceleratorClass>> =
        if with_devices { gang.classes.iter().map(Some).collect() } else { vec![None] };
    let mut nearest: Option<Reason> = None;
    for class in classes {
        for (role, of) in spec.roles.iter_mut().zip(&gang.roles) {
            role.request = cluster.amounts(&of.pod_requests(class));
        }
        match place_class(cluster, request, &spec, class) {
            Ok(solution) => return Ok(solution),
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

fn place_class(
    cluster: &Cluster,
    request: &Request<'_>,
    spec: &Spec,
    class: Option<&AcceleratorClass>,
) -> Result<Solution, Reason> {
    let eligible = Eligibility { gang: request.gang, class, empty: false };
    let forest = Forest::build(cluster, spec, &eligible, request.top);
    let explain = |short: Option<&greedy::Short>, proven: bool| {
        explain::reason(cluster, &forest, spec, request.gang, class, short, proven)
    };
    if forest.parts.is_empty() || explain::short_alone(cluster, &forest, spec).is_some() {
        return Err(explain(None, true));
    }
    let packing = Packing::new(&cluster.tree, &forest, spec);
    let search = Search::new(cluster, &forest, spec, &packing, &request.paid);
    let (best, proven) = match search.steps(request.steps) {
        Some(_) => {
            let found = search.run();
            (found.ok_or_else(|| explain(greedy::place(cluster, &forest, spec).err().as_ref(), true))?, true)
        }
        None => (greedy::place(cluster, &forest, spec).map_err(|short| explain(Some(&short), false))?, false),
    };
    Ok(finish(cluster, &forest, spec, &best, request, class, proven))
}

/// Lays out ranks, adds spares and evaluates the order.
fn finish(
    cluster: &Cluster,
    forest: &Forest,
    spec: &Spec,
    best: &Best,
    request: &Request<'_>,
    class: Option<&AcceleratorClass>,
    proven: bool,
) -> Solution {
    let name = |slot: &usize| cluster.node(*slot).map(|node| node.name.clone());
    let mut placement = Placement::default();
    for (index, role) in spec.roles.iter().enumerate() {
        let units =
            layout::units(forest, role, cluster.tree.leaf_depth(), best.top, |part| best.pods[index][part]);
        let class = class.filter(|_| request.gang.roles[index].devices > 0).map(|class| class.name.clone());
        placement.units.extend(units.iter().enumerate().map(|(unit, slots)| PlacedUnit {
            id: UnitId { role: role.name.clone(), index: unit as u32 },
            class: class.clone(),
            nodes: slots.iter().filter_map(name).collect(),
        }));
    }
    placement.spares = spares(cluster, forest, spec, best);
    let vector = evaluate(cluster, request.gang, &spec.order, &placement);
    Solution { placement, vector, proven }
}

/// Nodes held in reserve: the nearest to the role's pods that the gang does not use.
fn spares(cluster: &Cluster, forest: &Forest, spec: &Spec, best: &Best) -> BTreeMap<String, Vec<NodeName>> {
    let used = |part: usize| best.pods.iter().any(|pods| pods[part] > 0);
    let mut held = vec![false; forest.parts.len()];
    let mut all = BTreeMap::new();
    for (index, role) in spec.roles.iter().enumerate().filter(|(_, role)| role.spares > 0) {
        let homes: BTreeSet<DomainId> = (0..forest.parts.len())
            .filter(|part| best.pods[index][*part] > 0)
            .flat_map(|part| cluster.tree.ancestors(forest.parts[part].domain))
            .collect();
        // Distance: how many domains outwards until one that the role uses.
        let distance = |part: usize| {
            cluster.tree.ancestors(forest.parts[part].domain).take_while(|d| !homes.contains(d)).count()
        };
        let mut nodes: Vec<(usize, usize)> = (0..forest.parts.len())
            .filter(|part| forest.parts[*part].slot.is_some() && !used(*part) && !held[*part])
            .filter(|part| forest.parts[*part].fits[index] > 0)
            .map(|part| (distance(part), part))
            .collect();
        nodes.sort_unstable();
        let mut names = Vec::new();
        for (_, part) in nodes {
            let fit = forest.parts[part].fits[index].min(u64::from(role.spares) - names.len() as u64);
            let Some(node) = forest.parts[part].slot.and_then(|slot| cluster.node(slot)) else { continue };
            held[part] |= fit > 0;
            names.extend((0..fit).map(|_| node.name.clone()));
        }
        if !names.is_empty() {
            all.insert(role.name.clone(), names);
        }
    }
    all
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
