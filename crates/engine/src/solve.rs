//! Placing gangs on given nodes without an engine around it.

use muster_model::{Gang, Node, Reason, Topology, plan::Placement};

use crate::{
    Objective,
    cluster::Cluster,
    place::{self, EXACT_STEPS, Request},
    replan, spec,
};

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
    let mut cluster = cluster(topology, nodes);
    gangs
        .iter()
        .map(|(gang, order)| {
            let request =
                Request { order: order.as_deref(), steps: 40 * EXACT_STEPS, ..Request::fresh(gang) };
            let found = place::place(&mut cluster, &request)?;
            let placement = found.placement(&cluster, gang);
            let order = order.clone().unwrap_or_else(|| spec::standard_order(&cluster.tree, gang));
            let vector = place::evaluate(&cluster, gang, &order, &placement);
            replan::charge(&mut cluster, &replan::held_by_found(gang, &found), 1);
            Ok(Solution { placement, vector, proven: found.proven })
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
