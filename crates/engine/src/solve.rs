//! Placing gangs on given nodes without an engine around it.

use muster_model::{Gang, Node, Reason, Topology, plan::Placement};

use crate::{
    Objective, bound,
    cluster::Cluster,
    groups::Groups,
    place::{self, EXACT_STEPS, Request},
    problem::{self, Problem},
    replan, rules, spec,
    tree::ROOT,
};

/// Steps of the exact search where nobody waits for a decision.
const STEPS: u64 = 40 * EXACT_STEPS;

fn cluster(topology: &Topology, nodes: &[Node]) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.set_topology(topology.clone());
    for node in nodes {
        cluster.set_node(node);
    }
    cluster
}

/// A placement with how it was judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Where every pod goes.
    pub placement: Placement,
    /// The order's values.
    pub vector: Vec<u64>,
    /// For each objective a value that no placement with as many units beats (for units: none beats). Where it equals
    /// `vector`, that is the best; what lies between is the gap.
    pub bound: Vec<u64>,
    /// Whether no better placement exists (by the order, for this class).
    pub proven: bool,
}

/// Places gangs one after the other on nodes of which nothing else is used: each gets the best that those before it
/// left. Each comes with its order of objectives (`None`: the engine's own). A gang's state is ignored: it is placed
/// from nothing. The result has one entry per gang.
///
/// `Solution::vector` is in the order's sequence; `Solution::proven` tells whether the search was exact.
pub fn solve(
    topology: &Topology,
    nodes: &[Node],
    gangs: &[(Gang, Option<Vec<Objective>>)],
) -> Vec<Result<Solution, Reason>> {
    solve_within(topology, nodes, gangs, STEPS)
}

/// As [`solve`], with a budget for the exact search of each gang and class, in steps of a few nanoseconds: 0 leaves
/// all to look-ups and heuristics.
pub fn solve_within(
    topology: &Topology,
    nodes: &[Node],
    gangs: &[(Gang, Option<Vec<Objective>>)],
    steps: u64,
) -> Vec<Result<Solution, Reason>> {
    let (mut cluster, mut groups) = (cluster(topology, nodes), Groups::default());
    gangs.iter().map(|(gang, order)| next(&mut cluster, &mut groups, gang, order.as_deref(), steps)).collect()
}

/// Places a gang and holds what it takes.
fn next(
    cluster: &mut Cluster,
    groups: &mut Groups,
    gang: &Gang,
    order: Option<&[Objective]>,
    steps: u64,
) -> Result<Solution, Reason> {
    let prepared = problem::prepare(cluster, gang, order)?;
    let others = groups.others(cluster, gang)?;
    let request = Request { order, steps, ..Request::fresh(gang, &others) };
    let found = place::place_prepared(cluster, &request, &prepared)?;
    let placement = found.placement(cluster, gang);
    let order = order.map_or_else(|| spec::standard_order(&cluster.tree, gang), <[Objective]>::to_vec);
    let vector = place::evaluate(cluster, gang, &order, &placement);
    let units = gang.roles.iter().zip(&found.pods).map(|(role, pods)| pods.len() as u32 / role.pods_per_unit);
    let units: Vec<u32> = units.collect();
    let on = prepared.classes.iter().find(|on| on.class == found.class);
    let bound = match on {
        Some(on) if !found.proven => {
            let problem = Problem { cluster, gang, on, top: ROOT, limits: &rules::FREE };
            bound::bounds(&problem, &order, &units)
        }
        _ => vector.clone(),
    };
    replan::charge(cluster, &replan::held_by_found(gang, &prepared, &found), 1);
    groups.set(cluster, gang, Some(&placement.units));
    Ok(Solution { placement, vector, bound, proven: found.proven })
}

/// The values of an order for a placement, computed from the placement alone.
pub fn evaluate(
    topology: &Topology,
    nodes: &[Node],
    gang: &Gang,
    order: &[Objective],
    placement: &Placement,
) -> Vec<u64> {
    place::evaluate(&cluster(topology, nodes), gang, order, placement)
}
