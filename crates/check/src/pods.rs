//! I2: every live pod is the one pod of a place in a plan in force.

use muster_model::{Gang, NodeName, Uid, UnitId};
use std::collections::BTreeMap;

use crate::{PodView, Slot, Snapshot, Violation, lost_of, plan_of};

/// A place by identity: gangs by UID, since a name can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place<'a> {
    pub gang: &'a Uid,
    pub unit: &'a UnitId,
    pub index: u32,
}

impl<'a> Place<'a> {
    /// The place that a pod claims.
    pub fn of(pod: &'a PodView) -> Self {
        Self { gang: &pod.gang, unit: &pod.unit, index: pod.index }
    }
}

/// What a plan says of a place.
#[derive(Debug)]
pub(crate) struct Planned<'a> {
    pub node: &'a NodeName,
    pub incarnation: u64,
    /// The unit is lost: the plan does not hold the node any more.
    pub lost: bool,
}

/// All places of all plans in force.
pub(crate) fn places(gangs: &[Gang]) -> BTreeMap<Place<'_>, Planned<'_>> {
    let mut all = BTreeMap::new();
    for gang in gangs {
        for unit in plan_of(gang).iter().flat_map(|plan| &plan.units) {
            let lost = lost_of(gang).is_some_and(|lost| lost.contains(&unit.placed.id));
            for (index, node) in unit.placed.nodes.iter().enumerate() {
                let place = Place { gang: &gang.uid, unit: &unit.placed.id, index: index as u32 };
                all.insert(place, Planned { node, incarnation: unit.incarnation, lost });
            }
        }
    }
    all
}

/// Whether a pod is the one that the plan means: same incarnation, same node (or not bound yet).
pub(crate) fn is_form_of(pod: &PodView, planned: &Planned) -> bool {
    pod.incarnation == planned.incarnation && pod.node.as_ref().is_none_or(|node| node == planned.node)
}

/// Live pods (neither finished nor leaving) that no plan means, and places with two of them.
pub(crate) fn misplaced(snapshot: &Snapshot) -> Vec<Violation> {
    let places = places(&snapshot.gangs);
    let gangs: BTreeMap<&Uid, &Gang> = snapshot.gangs.iter().map(|gang| (&gang.uid, gang)).collect();
    let mut seen: BTreeMap<Place, &PodView> = BTreeMap::new();
    let mut found = Vec::new();
    for pod in snapshot.pods.iter().filter(|pod| !pod.terminal && !pod.leaving) {
        let name = pod.name.clone();
        let Some(gang) = gangs.get(&pod.gang) else {
            found.push(Violation::PodOfNoGang { pod: name, gang: pod.gang.to_string() });
            continue;
        };
        let slot = Slot { gang: gang.key.clone(), unit: pod.unit.clone(), index: pod.index };
        let Some(planned) = places.get(&Place::of(pod)) else {
            found.push(if plan_of(gang).is_none() {
                Violation::PodOfUnplacedGang { pod: name, gang: gang.key.clone() }
            } else {
                Violation::PodOfNoSlot { pod: name, slot }
            });
            continue;
        };
        if pod.incarnation != planned.incarnation {
            found.push(Violation::PodOfOtherIncarnation {
                pod: name,
                slot,
                incarnation: pod.incarnation,
                current: planned.incarnation,
            });
            continue;
        }
        if let Some(node) = pod.node.as_ref().filter(|node| *node != planned.node) {
            found.push(Violation::PodOnOtherNode {
                pod: name.clone(),
                slot: slot.clone(),
                node: node.clone(),
                planned: planned.node.clone(),
            });
        }
        if let Some(other) = seen.insert(Place::of(pod), pod) {
            found.push(Violation::TwoPods { slot, pods: [other.name.clone(), name] });
        }
    }
    found
}
