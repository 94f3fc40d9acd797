//! Read access for maps and tools: who holds what, node by node.

use muster_model::{DomainKey, Gang, NodeName, ObjectKey, Reason, Resources, plan::Placement};
use std::collections::BTreeMap;

use crate::{
    Engine,
    place::{self, Request},
};

/// A gang on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Which gang.
    pub gang: ObjectKey,
    /// Pods of its plan there, spares included.
    pub pods: u32,
    /// What they hold in all.
    pub requests: Resources,
}

/// A node as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// Name.
    pub name: NodeName,
    /// Its domain's name at each level of the topology, outermost first; the node's own level is not listed.
    pub path: Vec<DomainKey>,
    /// Ready and not cordoned.
    pub usable: bool,
    /// What pods may use in all.
    pub allocatable: Resources,
    /// What is left; negative where a node is overcommitted.
    pub free: Resources,
    /// Gangs that hold capacity there, by key.
    pub gangs: Vec<Occupant>,
}

impl Engine {
    /// All known nodes in the order of the topology tree, domains by name.
    pub fn occupancy(&self) -> Vec<NodeView> {
        let mut by_node: BTreeMap<&NodeName, BTreeMap<&ObjectKey, Occupant>> = BTreeMap::new();
        for (key, held) in self.gangs.holders() {
            for (amounts, slots) in held {
                let requests = self.cluster.resources(amounts);
                for node in slots.iter().filter_map(|slot| self.cluster.node(*slot)) {
                    let occupants = by_node.entry(&node.name).or_default();
                    let occupant = occupants.entry(key).or_insert_with(|| Occupant {
                        gang: key.clone(),
                        pods: 0,
                        requests: Resources::default(),
                    });
                    occupant.pods += 1;
                    occupant.requests.add(&requests);
                }
            }
        }
        let mut views: Vec<NodeView> = self
            .cluster
            .nodes()
            .map(|(_, node, facts)| {
                let tree = &self.cluster.tree;
                let mut path: Vec<DomainKey> = node
                    .leaf
                    .iter()
                    .flat_map(|leaf| tree.ancestors(*leaf))
                    .filter_map(|domain| tree.domain(domain).key.clone())
                    .collect();
                path.reverse();
                let mut free = facts.allocatable.clone();
                for (name, amount) in &mut free.0 {
                    *amount = self.cluster.left(node, name);
                }
                NodeView {
                    name: node.name.clone(),
                    path,
                    usable: facts.ready && !facts.cordoned,
                    allocatable: facts.allocatable.clone(),
                    free,
                    gangs: by_node.remove(&node.name).unwrap_or_default().into_values().collect(),
                }
            })
            .collect();
        views.sort_by(|a, b| (&a.path, &a.name).cmp(&(&b.path, &b.name)));
        views
    }

    /// Where a gang would go now. Nothing is held, and its state is ignored.
    ///
    /// # Errors
    /// Why it cannot be placed.
    pub fn what_if(&mut self, gang: &Gang) -> Result<Placement, Reason> {
        let others = self.gangs.others(&self.cluster, gang)?;
        let found = place::place(&mut self.cluster, &Request::fresh(gang, &others))?;
        Ok(found.placement(&self.cluster, gang))
    }

    /// Bytes that the index of fits holds, roughly.
    pub fn index_bytes(&self) -> usize {
        self.cluster.index.bytes()
    }

    /// Names of the topology's levels, outermost first, the node's included.
    pub fn levels(&self) -> Vec<String> {
        self.cluster.tree.topology.names().into_iter().map(str::to_owned).collect()
    }
}
