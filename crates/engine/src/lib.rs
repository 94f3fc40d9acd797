//! The placement engine: a pure function from a state to placements and reasons.
//!
//! ```text
//!   Event ──apply──▶ Cluster (tree ▸ nodes ▸ use) ──▶ index (pods and blocks that fit, per domain)
//!                     gangs (holdings, waiting)                     │
//!                        └──decide──▶ place | replan ──▶ problem ──▶│ fast: look-ups, certified by bounds
//!                                                                   │ dp: exact, if its steps fit the budget
//!                                                                   │ greedy, search: several roles beyond it
//!                                       Decision::{Place, Refuse} ◀─┴─ layout ▸ spares | explain
//! ```
//!
//! - [`Engine`] is what the operator drives: [`Engine::apply`] events, [`Engine::decide`] for gangs that wait;
//!   [`Engine::what_if`] and [`Engine::explain`] answer without holding anything; [`Engine::occupancy`] shows who
//!   holds what.
//! - [`solve`] places gangs one after the other on given nodes, in an order of [`Objective`]s of one's own: for judging
//!   the solver against known optima, for what-if questions and for tests. [`Solution::bound`] states the gap of what is
//!   not proven.
//!
//! What is better: most units; fewest broken blocks of Preferred segments, smallest size first; the smallest subtree;
//! room for spares beside the gang; fewest domains from the inside out; then tightness: no empty domain opened, blocks of
//! usual sizes kept, little left over.

mod alike;
mod blocks;
mod bound;
mod chain;
mod changes;
mod cluster;
mod cost;
mod dp;
mod explain;
mod family;
mod fast;
mod forest;
mod gangs;
mod greedy;
mod groups;
mod index;
#[cfg(test)]
mod index_tests;
mod layout;
mod narrow;
mod nodes;
mod occupancy;
mod place;
mod problem;
mod rank;
mod replan;
mod repulsion;
mod ruled;
mod rules;
mod search;
mod solve;
mod spares;
mod spec;
mod table;
mod tree;
mod trial;
mod wishes;

use muster_model::{
    Gang, Millis, Node, NodeName, ObjectKey, PodTerm, Reason, RecoveryStep, Resources, Topology, Uid,
    plan::Placement,
};

pub use changes::{Change, Explanation};
pub use occupancy::{NodeView, Occupant};
pub use place::EXACT_STEPS;
pub use solve::{Solution, evaluate, solve, solve_within};
pub use spec::Objective;

/// No node is taken to hold more pods of a gang than this (the kubelet's own default limit is 110).
pub const MAX_PODS_PER_NODE: u32 = 1_024;
/// A role may ask for at most this many pods.
pub const MAX_PODS_PER_ROLE: u64 = 200_000;

/// What changed. Events are idempotent: the same event twice is the same as once.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is moved once, into the engine")]
pub enum Event {
    /// The levels of the tree.
    Topology(Topology),
    /// A node appeared or changed.
    Node(Node),
    /// A node is gone.
    NodeGone(NodeName),
    /// Something that is in no gang's plan uses a node: a foreign pod, or one of ours that is leaving or lost.
    /// `requests` includes 1 of `pods`.
    Use {
        /// Identity of the user (a pod's UID).
        id: String,
        /// Node it is on (the node need not be known yet).
        node: NodeName,
        /// What it uses.
        requests: Resources,
    },
    /// That use ended.
    UseGone {
        /// Identity as given in `Use`.
        id: String,
    },
    /// A pod that is in no gang's plan keeps pods away by required anti-affinity; no terms end it.
    Repels {
        /// Identity of the pod.
        id: String,
        /// Node it is on (the node need not be known yet).
        node: NodeName,
        /// Its terms.
        terms: Vec<PodTerm>,
    },
    /// A gang appeared or changed (its plan included).
    Gang(Gang),
    /// A gang is gone.
    GangGone(ObjectKey),
}

/// How a placement came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// From nothing.
    Fresh,
    /// Lost units went to other nodes; all others stay where they are.
    Replaced,
    /// Lost units were dropped, and more where the rest is no valid count; those that go on stay where they are.
    Shrunk,
    /// The whole gang goes elsewhere.
    Moved,
}

impl How {
    /// The step of the recovery ladder that it is; `None` for a first placement.
    pub fn step(self) -> Option<RecoveryStep> {
        match self {
            Self::Fresh => None,
            Self::Replaced => Some(RecoveryStep::ReplaceNode),
            Self::Shrunk => Some(RecoveryStep::Shrink),
            Self::Moved => Some(RecoveryStep::Requeue),
        }
    }
}

/// What the engine decided for one gang.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Place it so. The engine holds the capacity from now on, until a `Gang` event of the same key says otherwise.
    Place {
        /// Which gang.
        key: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// Where.
        placement: Placement,
        /// How.
        how: How,
    },
    /// It cannot be placed now.
    Refuse {
        /// Which gang.
        key: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// Why, with the nearest miss.
        reason: Reason,
    },
}

/// The engine.
#[derive(Debug, Default)]
pub struct Engine {
    cluster: cluster::Cluster,
    gangs: gangs::Gangs,
}

impl Engine {
    /// An empty cluster with the default topology.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a change. O(depth of the tree) for nodes and use.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Topology(topology) => self.cluster.set_topology(topology),
            Event::Node(node) => {
                if self.cluster.set_node(&node) {
                    self.gangs.nodes_moved();
                }
            }
            Event::NodeGone(name) => {
                self.cluster.remove_node(&name);
                self.gangs.nodes_moved();
            }
            Event::Use { id, node, requests } => self.cluster.set_use(id, &node, requests),
            Event::UseGone { id } => self.cluster.end_use(&id),
            Event::Repels { id, node, terms } => self.cluster.set_repels(id, node, terms),
            Event::Gang(gang) => self.gangs.set(&mut self.cluster, gang),
            Event::GangGone(key) => self.gangs.remove(&mut self.cluster, &key),
        }
    }

    /// Decides for gangs that wait or want replacement, in order of priority, age and key, at most `limit` of them
    /// in this call. A gang is looked at again only when something changed that could help it.
    pub fn decide(&mut self, now: Millis, limit: usize) -> Vec<Decision> {
        // Waiting time decides nothing yet: the argument is there for reservations and shares.
        let _ = now;
        self.gangs.decide(&mut self.cluster, limit)
    }
}
