//! The oracle: validates any plan from first principles, sharing no code with the engine.
//!
//! ```text
//!   Snapshot { topology, nodes, uses, gangs with plans, pods } ──check──▶ Vec<Violation>     (tests, simulation,
//!   one decision { gang, Placement } over nodes and uses ──check_placement──▶ Vec<Violation>  before evictions)
//!   several gangs with their Placements ──check_groups──▶ Vec<Violation>
//! ```
//!
//! It is slow on purpose: it recomputes every domain from labels and every sum from its parts, and keeps nothing
//! between calls. An empty answer means that no invariant is broken:
//!
//! - I1: no device, core, byte or pod slot of a node is promised twice.
//! - I2: a pod exists only for a placed gang, on its planned node, in its unit's incarnation, once.
//! - I3: a gang has no unit or an allowed number of them, each complete; ratios between roles hold.
//! - I4: Required segments, a Required `within`, `near` and `spread` hold, over all gangs of a group where one is named; a unit
//!   lies on nodes of its accelerator class.
//!
//! I5 to I8 speak of queues, victims, restart budgets and time, which a snapshot of placements does not hold.
//!
//! **Domains.** A node's domain at a level is named by the first of the level's label keys that it carries, else by the
//! node itself; a level that no node of the cluster carries takes its names from the next one inside it. A domain's
//! identity is its whole path from the outermost level.

mod capacity;
mod domains;
mod groups;
mod placement;
mod pods;
mod repulsion;
mod rules;
mod violation;

use std::collections::{BTreeMap, BTreeSet};

use muster_model::{
    Gang, GangState, Node, NodeName, PodTerm, Resources, Topology, Uid, UnitId,
    plan::{Placement, Plan},
};

use domains::Domains;
pub use placement::check_constraints;
pub use violation::{Claimant, Invariant, Slot, Violation};

/// Something that uses a node and stands in no plan: a foreign pod, one of ours that is leaving or lost, or (for
/// [`check_placement`]) the plan entries of other gangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// Node it is on.
    pub node: NodeName,
    /// What it uses, 1 of `pods` included.
    pub requests: Resources,
    /// Its required anti-affinity: what may not come into its domains. Judged where a decision is, not in a snapshot,
    /// since the pod may have come after those that it keeps away.
    pub repels: Vec<PodTerm>,
}

/// One of our pods, as far as the invariants need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Its UID; a [`Use`] under the same id is the same thing and is not counted again.
    pub uid: String,
    /// Namespace and name, for messages.
    pub name: String,
    /// Node it is bound to; `None` before it is bound.
    pub node: Option<NodeName>,
    /// UID of the gang that owns it.
    pub gang: Uid,
    /// Unit it belongs to.
    pub unit: UnitId,
    /// The incarnation it was made in.
    pub incarnation: u64,
    /// Position in the unit, from 0.
    pub index: u32,
    /// Succeeded or Failed: it uses nothing any more.
    pub terminal: bool,
    /// It has a deletion time stamp.
    pub leaving: bool,
    /// max(spec, allocatedResources), 1 of `pods` included.
    pub requests: Resources,
}

/// Everything that the invariants speak of, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Levels of the tree.
    pub topology: Topology,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// Identity (a pod's UID) → use.
    pub uses: BTreeMap<String, Use>,
    /// All gangs, with their plans.
    pub gangs: Vec<Gang>,
    /// All pods of gangs, those that are leaving, finished or orphaned included.
    pub pods: Vec<PodView>,
}

/// The plan that a gang holds, if any.
fn plan_of(gang: &Gang) -> Option<&Plan> {
    match &gang.state {
        GangState::Holding(plan) | GangState::Replan { plan, .. } => Some(plan),
        GangState::Inactive | GangState::Waiting => None,
    }
}

/// Units of the plan that the gang gives up: their nodes are not held for it any more.
fn lost_of(gang: &Gang) -> Option<&BTreeSet<UnitId>> {
    match &gang.state {
        GangState::Replan { lost, .. } => Some(lost),
        _ => None,
    }
}

/// A plan without generation and incarnations, as [`check_placement`] judges it.
fn placement_of(plan: &Plan) -> Placement {
    Placement {
        units: plan.units.iter().map(|unit| unit.placed.clone()).collect(),
        spares: plan.spares.clone(),
    }
}

/// All violations of I1 to I4 in a snapshot; none when all is well.
///
/// Nodes of a plan that are gone are no violation: replacing them takes time. Units that a gang has lost are not judged
/// by where they were: their nodes may have changed, and are given up. Node constraints (selectors, taints,
/// cordons, anti-affinity) are not judged here, since they may change under a running pod; see [`check_constraints`].
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let nodes = by_name(&snapshot.nodes);
    let tree = Domains::new(&snapshot.topology, &nodes);
    let mut found = capacity::overcommitted(snapshot, &nodes);
    found.extend(pods::misplaced(snapshot));
    let mut placed: Vec<(&Gang, Placement)> = Vec::new();
    for gang in &snapshot.gangs {
        if let Some(plan) = plan_of(gang) {
            let mut placement = placement_of(plan);
            found.extend(placement::counts(gang, &placement));
            found.extend(rules::ratios(gang, &placement));
            if let Some(lost) = lost_of(gang) {
                placement.units.retain(|unit| !lost.contains(&unit.id));
            }
            found.extend(placement::togetherness(&snapshot.topology, &tree, &nodes, gang, &placement));
            found.extend(rules::places(&snapshot.topology, &tree, &nodes, gang, &placement));
            found.extend(placement::classes(&nodes, gang, &placement));
            placed.push((gang, placement));
        }
    }
    let placed: Vec<(&Gang, &Placement)> =
        placed.iter().map(|(gang, placement)| (*gang, placement)).collect();
    found.extend(groups::violations(&snapshot.topology, &tree, &nodes, &placed));
    found
}

/// All violations of one decision: counts, segments, classes, capacity next to `uses` (which must hold the plan
/// entries of all other gangs, but not this gang's own; see [`plan_uses`]), and the constraints of nodes, anti-affinity of
/// other pods among them, for every unit that is not where it was before.
pub fn check_placement(
    nodes: &[Node],
    topology: &Topology,
    uses: &BTreeMap<String, Use>,
    gang: &Gang,
    placement: &Placement,
) -> Vec<Violation> {
    let nodes = by_name(nodes);
    let tree = Domains::new(topology, &nodes);
    let mut found = placement::counts(gang, placement);
    found.extend(rules::ratios(gang, placement));
    found.extend(placement::togetherness(topology, &tree, &nodes, gang, placement));
    found.extend(rules::places(topology, &tree, &nodes, gang, placement));
    found.extend(placement::classes(&nodes, gang, placement));
    found.extend(capacity::next_to(uses, &nodes, gang, placement));
    found.extend(placement::constraints(&nodes, uses, gang, placement));
    found
}

/// Violations of `spread` rules over all gangs that share a group, given where each is: what [`check_placement`], which sees
/// one gang, cannot judge.
pub fn check_groups(nodes: &[Node], topology: &Topology, placed: &[(&Gang, &Placement)]) -> Vec<Violation> {
    let nodes = by_name(nodes);
    groups::violations(topology, &Domains::new(topology, &nodes), &nodes, placed)
}

/// What a placement of a gang uses, one [`Use`] a pod or spare, under ids that no pod has: for the `uses` of
/// [`check_placement`] of another gang.
pub fn plan_uses(nodes: &[Node], gang: &Gang, placement: &Placement) -> BTreeMap<String, Use> {
    let nodes = by_name(nodes);
    capacity::entries(&nodes, gang, placement)
        .into_iter()
        .enumerate()
        .map(|(at, (node, requests, claimant))| {
            (format!("{}#{at} {claimant}", gang.uid), Use { node, requests, repels: Vec::new() })
        })
        .collect()
}

/// Nodes by name.
type Nodes<'a> = BTreeMap<&'a str, &'a Node>;

fn by_name(nodes: &[Node]) -> Nodes<'_> {
    nodes.iter().map(|node| (node.name.as_str(), node)).collect()
}
