//! Placing gangs on given nodes without an engine around it.

use muster_model::{Gang, Node, Reason, Topology, plan::Placement};

use crate::{
    EXACT_STEPS, Objective, Solution,
    cluster::Cluster,
    place::{self, Request},
    replan,
};

fn cluster(topology: &Topology, nodes: &[Node]) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.set_topology(topology.clone());
    for node in nodes {
        cluster.set_node(node);
    }
    cluster
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
    let mut cluster = cluster(topology, nodes);
    gangs
        .iter()
        .map(|(gang, order)| {
            let request =
                Request { order: order.as_deref(), steps: 20 * EXACT_STEPS, ..Request::fresh(gang) };
            let solution = place::place(&mut cluster, &request)?;
            let held = replan::holdings(gang, &solution.placement.units, &solution.placement.spares);
            replan::charge(&mut cluster, &held, 1);
            Ok(solution)
        })
        .collect()
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
