//! A plan names a node for every pod. It is data: the executor makes no choices.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::NodeName;

/// One unit of one role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnitId {
    /// Role name.
    pub role: String,
    /// Position among the role's units, from 0.
    pub index: u32,
}

/// A pod's place in its gang: which unit, in which incarnation, and which of the unit's pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Slot {
    /// The unit.
    pub unit: UnitId,
    /// The unit's incarnation.
    pub incarnation: u64,
    /// The pod's index within the unit.
    pub index: u32,
}

/// Where the engine wants a unit's pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedUnit {
    /// Which unit.
    pub id: UnitId,
    /// Name of the accelerator class used; `None` without accelerators.
    pub class: Option<String>,
    /// The node of each pod, in unit-local order.
    pub nodes: Vec<NodeName>,
}

/// A whole placement: what the engine decides. [`Plan::next`] makes it a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// All units, by role in the gang's order and by index.
    pub units: Vec<PlacedUnit>,
    /// Role name → nodes held as spares (one pod's worth each).
    pub spares: BTreeMap<String, Vec<NodeName>>,
}

/// A unit of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedUnit {
    /// Where its pods go.
    pub placed: PlacedUnit,
    /// The generation in which its pods got their present environment; part of their names.
    pub incarnation: u64,
    /// Name of the role's template revision that its pods are made from; empty for the role's only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
}

/// A plan in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Counts plans of this gang, from 1.
    pub generation: u64,
    /// Units in order.
    pub units: Vec<PlannedUnit>,
    /// Role name → spare nodes.
    pub spares: BTreeMap<String, Vec<NodeName>>,
}

impl Plan {
    /// The plan that follows `previous` (none for the first): its generation is `generation`. A unit keeps its
    /// incarnation when its nodes and class stay the same, the number of units of every role stays the same (so the
    /// environment of its pods stays true) and it is not in `renew`; otherwise it gets the new generation as its
    /// incarnation. `renew_all` renews every unit (frameworks that restart as a whole). Every unit keeps its revision, and
    /// one that is new gets that of its role's others, until [`Self::revise`].
    pub fn next(
        previous: Option<&Self>,
        generation: u64,
        placement: Placement,
        renew: &BTreeSet<UnitId>,
        renew_all: bool,
    ) -> Self {
        let old: BTreeMap<&UnitId, &PlannedUnit> =
            previous.iter().flat_map(|plan| &plan.units).map(|unit| (&unit.placed.id, unit)).collect();
        let same_size = previous.is_some_and(|plan| {
            plan.units.len() == placement.units.len()
                && placement.units.iter().all(|unit| old.contains_key(&unit.id))
        });
        let units = placement
            .units
            .into_iter()
            .map(|placed| {
                let before = old.get(&placed.id);
                let kept = before
                    .filter(|unit| {
                        !renew_all && same_size && !renew.contains(&placed.id) && unit.placed == placed
                    })
                    .map(|unit| unit.incarnation);
                let units = || previous.into_iter().flat_map(|plan| &plan.units);
                let like =
                    before.copied().or_else(|| units().find(|unit| unit.placed.id.role == placed.id.role));
                let revision = like.map(|unit| unit.revision.clone()).unwrap_or_default();
                PlannedUnit { placed, incarnation: kept.unwrap_or(generation), revision }
            })
            .collect();
        Self { generation, units, spares: placement.spares }
    }

    /// Gives the units that start anew under this plan the revision that `newest` says for their role, where it says one.
    pub fn revise<'a>(&mut self, newest: impl Fn(&str) -> Option<&'a str>) {
        for unit in self.units.iter_mut().filter(|unit| unit.incarnation == self.generation) {
            if let Some(revision) = newest(&unit.placed.id.role) {
                revision.clone_into(&mut unit.revision);
            }
        }
    }

    /// The unit with this id.
    pub fn unit(&self, id: &UnitId) -> Option<&PlannedUnit> {
        self.units.iter().find(|unit| unit.placed.id == *id)
    }

    /// How many units a role has.
    pub fn count(&self, role: &str) -> u32 {
        self.units.iter().filter(|unit| unit.placed.id.role == role).count() as u32
    }

    /// How many pods the plan names.
    pub fn pods(&self) -> usize {
        self.units.iter().map(|unit| unit.placed.nodes.len()).sum()
    }
}
