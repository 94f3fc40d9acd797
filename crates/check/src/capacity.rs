//! I1: what is promised of every node, summed from its parts.

use muster_model::{
    AcceleratorClass, Gang, Node, NodeName, Resources,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Claimant, Nodes, Snapshot, Use, Violation, lost_of,
    placement::{class_of, is_of_class, role, slots},
    placement_of, plan_of,
    pods::{self, Place},
};

/// What one claimant takes of one node.
pub(crate) type Entry = (NodeName, Resources, Claimant);

/// What a placement takes, one entry a pod and one a spare. Roles that the gang does not have take nothing (they
/// are reported elsewhere).
pub(crate) fn entries(nodes: &Nodes, gang: &Gang, placement: &Placement) -> Vec<Entry> {
    let mut all = Vec::with_capacity(placement.units.len());
    for unit in &placement.units {
        let Some(role) = role(gang, &unit.id.role) else { continue };
        let requests = role.pod_requests(class_of(gang, unit));
        all.extend(
            slots(gang, unit).map(|(slot, node)| (node.clone(), requests.clone(), Claimant::Entry(slot))),
        );
    }
    for (name, spares) in &placement.spares {
        let Some(role) = role(gang, name) else { continue };
        let units: Vec<&PlacedUnit> = placement.units.iter().filter(|unit| unit.id.role == *name).collect();
        for spare in spares {
            let class = nodes.get(spare.as_str()).and_then(|node| spare_class(gang, &units, node));
            let claimant = Claimant::Spare { gang: gang.key.clone(), role: name.clone() };
            all.push((spare.clone(), role.pod_requests(class), claimant));
        }
    }
    all
}

/// The class whose resource a spare holds: one that the role's units use, else any allowed one that the node is of.
fn spare_class<'a>(gang: &'a Gang, units: &[&PlacedUnit], node: &Node) -> Option<&'a AcceleratorClass> {
    units
        .iter()
        .filter_map(|unit| class_of(gang, unit))
        .chain(&gang.classes)
        .find(|class| is_of_class(node, class))
}

/// Everything promised on each node: plan entries, every pod of ours that still uses devices and is not its entry's
/// own, and every other use. A pod that its entry accounts for raises the entry to its own requests where these are
/// larger (a sidecar that admission added).
///
/// A pod that is leaving but is still of its unit's present incarnation is its entry's own: the same incarnation
/// never gets a second pod, so the device is not promised to anyone else before the plan changes. Entries of lost
/// units hold nothing; their pods count as long as they are there.
pub(crate) fn overcommitted(snapshot: &Snapshot, nodes: &Nodes) -> Vec<Violation> {
    let places = pods::places(&snapshot.gangs);
    let mut raised: BTreeMap<Place, Resources> = BTreeMap::new();
    let mut all: Vec<Entry> = Vec::new();
    for pod in snapshot.pods.iter().filter(|pod| !pod.terminal) {
        let place = Place::of(pod);
        let of_entry =
            places.get(&place).is_some_and(|planned| !planned.lost && pods::is_form_of(pod, planned));
        if of_entry && !raised.contains_key(&place) {
            raised.insert(place, pod.requests.clone());
        } else if let Some(node) = &pod.node {
            all.push((node.clone(), pod.requests.clone(), Claimant::Pod(pod.name.clone())));
        }
    }
    for gang in &snapshot.gangs {
        let Some(plan) = plan_of(gang) else { continue };
        for (node, mut requests, claimant) in entries(nodes, gang, &placement_of(plan)) {
            if let Claimant::Entry(slot) = &claimant {
                if lost_of(gang).is_some_and(|lost| lost.contains(&slot.unit)) {
                    continue;
                }
                let place = Place { gang: &gang.uid, unit: &slot.unit, index: slot.index };
                if let Some(pod) = raised.get(&place) {
                    requests.maximum(pod);
                }
            }
            all.push((node, requests, claimant));
        }
    }
    let ours: BTreeSet<&str> = snapshot.pods.iter().map(|pod| pod.uid.as_str()).collect();
    all.extend(other_uses(snapshot.uses.iter().filter(|(id, _)| !ours.contains(id.as_str()))));
    exceeding(nodes, &all)
}

/// I1 for one placement next to all other uses.
pub(crate) fn next_to(
    uses: &BTreeMap<String, Use>,
    nodes: &Nodes,
    gang: &Gang,
    placement: &Placement,
) -> Vec<Violation> {
    let mut all = entries(nodes, gang, placement);
    all.extend(other_uses(uses));
    exceeding(nodes, &all)
}

fn other_uses<'a>(uses: impl IntoIterator<Item = (&'a String, &'a Use)>) -> impl Iterator<Item = Entry> {
    uses.into_iter().map(|(id, used)| (used.node.clone(), used.requests.clone(), Claimant::Use(id.clone())))
}

/// The resources of nodes of which more is promised than there is. A node that only uses other than ours fill
/// beyond its size is none of our doing and is left out; so are nodes that do not exist (any more).
fn exceeding(nodes: &Nodes, all: &[Entry]) -> Vec<Violation> {
    let mut by_node: BTreeMap<&NodeName, Vec<&Entry>> = BTreeMap::new();
    for entry in all {
        by_node.entry(&entry.0).or_default().push(entry);
    }
    let mut found = Vec::new();
    for (name, entries) in by_node {
        let Some(node) = nodes.get(name.as_str()) else { continue };
        let mut promised = Resources::default();
        for (_, requests, _) in &entries {
            promised.add(requests);
        }
        for (resource, amount) in &promised.0 {
            let wanting = || entries.iter().filter(|(_, requests, _)| requests.get(resource) > 0);
            let allocatable = node.allocatable.allocatable(resource);
            if *amount > allocatable
                && wanting().any(|(_, _, claimant)| !matches!(claimant, Claimant::Use(_)))
            {
                found.push(Violation::Overcommitted {
                    node: name.clone(),
                    resource: resource.clone(),
                    allocatable,
                    promised: *amount,
                    claimants: wanting().map(|(_, _, claimant)| claimant.clone()).collect(),
                });
            }
        }
    }
    found
}
