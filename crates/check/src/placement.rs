//! I3, I4, classes and node constraints of one gang's placement.

use muster_model::{
    AcceleratorClass, Gang, GangState, Mode, Node, NodeName, NodeRefusal, Role, TaintEffect, Topology,
    UnitId,
    plan::{PlacedUnit, Placement},
};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Claimant, Nodes, Slot, Use, Violation,
    domains::{Domains, words},
    repulsion,
};

/// The role of this name.
pub(crate) fn role<'a>(gang: &'a Gang, name: &str) -> Option<&'a Role> {
    gang.roles.iter().find(|role| role.name == name)
}

/// The class that a unit names, if the gang allows it.
pub(crate) fn class_of<'a>(gang: &'a Gang, unit: &PlacedUnit) -> Option<&'a AcceleratorClass> {
    let name = unit.class.as_ref()?;
    gang.classes.iter().find(|class| class.name == *name)
}

/// The places of a unit with their nodes.
pub(crate) fn slots<'a>(
    gang: &'a Gang,
    unit: &'a PlacedUnit,
) -> impl Iterator<Item = (Slot, &'a NodeName)> + 'a {
    unit.nodes.iter().enumerate().map(|(index, node)| {
        (Slot { gang: gang.key.clone(), unit: unit.id.clone(), index: index as u32 }, node)
    })
}

/// Whether a node is of a class: its labels say so and it has the resource.
pub(crate) fn is_of_class(node: &Node, class: &AcceleratorClass) -> bool {
    node.allocatable.get(&class.resource) > 0
        && class.requirements.iter().all(|requirement| {
            let value = if requirement.field {
                (requirement.key == "metadata.name").then_some(node.name.as_str())
            } else {
                node.labels.get(&requirement.key).map(String::as_str)
            };
            requirement.holds(value)
        })
}

/// I3: unit counts, numbers, pods per unit, roles, spares.
pub(crate) fn counts(gang: &Gang, placement: &Placement) -> Vec<Violation> {
    let mut found = Vec::new();
    let named = placement.units.iter().map(|unit| &unit.id.role).chain(placement.spares.keys());
    let unknown: BTreeSet<&String> = named.filter(|name| role(gang, name).is_none()).collect();
    found.extend(
        unknown.into_iter().map(|role| Violation::UnknownRole { gang: gang.key.clone(), role: role.clone() }),
    );
    for role in &gang.roles {
        let numbers: Vec<u32> = placement
            .units
            .iter()
            .filter(|unit| unit.id.role == role.name)
            .map(|unit| unit.id.index)
            .collect();
        let units = numbers.len() as u32;
        let allowed = if units == 0 {
            role.min == 0 || placement.units.is_empty()
        } else {
            (role.min..=role.max).contains(&units) && (role.valid.is_empty() || role.valid.contains(&units))
        };
        if !allowed {
            found.push(Violation::UnitCount {
                gang: gang.key.clone(),
                role: role.name.clone(),
                units,
                min: role.min,
                max: role.max,
                valid: role.valid.clone(),
            });
        }
        if numbers.iter().zip(0..).any(|(number, expected)| *number != expected) {
            found.push(Violation::UnitNumbers { gang: gang.key.clone(), role: role.name.clone(), numbers });
        }
        let spares = placement.spares.get(&role.name).map_or(0, Vec::len);
        if spares > role.spares as usize {
            found.push(Violation::TooManySpares {
                gang: gang.key.clone(),
                role: role.name.clone(),
                spares,
                asked: role.spares,
            });
        }
    }
    for unit in &placement.units {
        let Some(role) = role(gang, &unit.id.role) else { continue };
        if unit.nodes.len() != role.pods_per_unit as usize {
            found.push(Violation::PodCount {
                gang: gang.key.clone(),
                unit: unit.id.clone(),
                pods: unit.nodes.len(),
                needed: role.pods_per_unit,
            });
        }
    }
    found
}

/// Everyone who was promised a node, with the node: entries, then spares.
pub(crate) fn promises(gang: &Gang, placement: &Placement) -> Vec<(Claimant, NodeName)> {
    let entries = placement
        .units
        .iter()
        .flat_map(|unit| slots(gang, unit))
        .map(|(slot, node)| (Claimant::Entry(slot), node.clone()));
    let spares = placement.spares.iter().flat_map(|(role, nodes)| {
        nodes
            .iter()
            .map(|node| (Claimant::Spare { gang: gang.key.clone(), role: role.clone() }, node.clone()))
    });
    entries.chain(spares).collect()
}

/// The domains at a level that some nodes lie in. Nodes that do not exist (any more) lie nowhere.
pub(crate) fn domains_of<'a>(
    domains: &Domains,
    nodes: &Nodes,
    level: usize,
    names: impl IntoIterator<Item = &'a NodeName>,
) -> BTreeSet<Vec<String>> {
    names
        .into_iter()
        .filter_map(|name| nodes.get(name.as_str()))
        .map(|node| domains.of(node, level))
        .collect()
}

/// The paths of domains, for people.
pub(crate) fn paths(domains: &BTreeSet<Vec<String>>) -> Vec<String> {
    domains.iter().map(|path| words(path)).collect()
}

/// I4: every block of every Required segment, and a Required `within` (spares included: they may become ranks).
pub(crate) fn togetherness(
    topology: &Topology,
    tree: &Domains,
    nodes: &Nodes,
    gang: &Gang,
    placement: &Placement,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for role in &gang.roles {
        for segment in role.segments.iter().filter(|segment| segment.mode == Mode::Required) {
            let (Some(level), true) = (topology.level(&segment.level), segment.pods > 0) else {
                let rule = format!("{} pods of {} in one {}", segment.pods, role.name, segment.level);
                found.push(Violation::RuleInvalid { gang: gang.key.clone(), rule });
                continue;
            };
            for unit in placement.units.iter().filter(|unit| unit.id.role == role.name) {
                for (block, names) in unit.nodes.chunks(segment.pods as usize).enumerate() {
                    let domains = domains_of(tree, nodes, level, names);
                    if domains.len() > 1 {
                        found.push(Violation::BlockBroken {
                            gang: gang.key.clone(),
                            unit: unit.id.clone(),
                            block: block as u32,
                            pods: segment.pods,
                            level: segment.level.clone(),
                            domains: paths(&domains),
                        });
                    }
                }
            }
        }
    }
    if let Some(within) = gang.within.as_ref().filter(|within| within.mode == Mode::Required) {
        let names = placement.units.iter().flat_map(|unit| &unit.nodes);
        let names = names.chain(placement.spares.values().flatten());
        match topology.level(&within.level) {
            None => found.push(Violation::RuleInvalid {
                gang: gang.key.clone(),
                rule: format!("within {}", within.level),
            }),
            Some(level) => {
                let domains = domains_of(tree, nodes, level, names);
                if domains.len() > 1 {
                    found.push(Violation::GangBroken {
                        gang: gang.key.clone(),
                        level: within.level.clone(),
                        domains: paths(&domains),
                    });
                }
            }
        }
    }
    found
}

/// Every unit with accelerators has one class, allowed, and lies on nodes of it.
pub(crate) fn classes(nodes: &Nodes, gang: &Gang, placement: &Placement) -> Vec<Violation> {
    let mut found = Vec::new();
    for unit in &placement.units {
        if role(gang, &unit.id.role).is_none_or(|role| role.devices == 0) {
            continue;
        }
        let Some(class) = class_of(gang, unit) else {
            found.push(Violation::ClassNotAllowed {
                gang: gang.key.clone(),
                unit: unit.id.clone(),
                class: unit.class.clone(),
                allowed: gang.classes.iter().map(|class| class.name.clone()).collect(),
            });
            continue;
        };
        for (slot, name) in slots(gang, unit) {
            if nodes.get(name.as_str()).is_some_and(|node| !is_of_class(node, class)) {
                found.push(Violation::NodeOfOtherClass {
                    slot,
                    node: name.clone(),
                    class: class.name.clone(),
                });
            }
        }
    }
    found
}

/// Why a node does not take a pod of a role now, capacity and class apart; `None` when it does.
fn refusal(node: &Node, role: &Role, avoid: &BTreeSet<NodeName>) -> Option<NodeRefusal> {
    let tolerated = |taint| role.tolerations.iter().any(|toleration| toleration.tolerates(taint));
    let selected = role.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let affine = role.affinity.is_empty()
        || role.affinity.iter().any(|term| term.matches(node.name.as_str(), &node.labels));
    if !node.ready {
        Some(NodeRefusal::NotReady)
    } else if node.cordoned {
        Some(NodeRefusal::Cordoned)
    } else if avoid.contains(&node.name) {
        Some(NodeRefusal::Avoided)
    } else if node.taints.iter().any(|t| t.effect != TaintEffect::PreferNoSchedule && !tolerated(t)) {
        Some(NodeRefusal::Tainted)
    } else if !selected || !affine {
        Some(NodeRefusal::Selector)
    } else {
        None
    }
}

/// Node constraints of a placement at the moment it is made: ready, not cordoned, not avoided, taints tolerated,
/// selector and affinity; and that the node exists. Other pods are not known here: [`crate::check_placement`] judges their
/// anti-affinity too. Units that the gang already holds where they are, and has not lost,
/// are left alone, and spares are judged like pods of their role.
pub fn check_constraints(nodes: &[Node], gang: &Gang, placement: &Placement) -> Vec<Violation> {
    constraints(&crate::by_name(nodes), &BTreeMap::new(), gang, placement)
}

/// [`check_constraints`] over nodes by name, beside other pods.
pub(crate) fn constraints(
    nodes: &Nodes,
    uses: &BTreeMap<String, Use>,
    gang: &Gang,
    placement: &Placement,
) -> Vec<Violation> {
    let none = BTreeSet::new();
    let (plan, lost) = match &gang.state {
        GangState::Holding(plan) => (Some(plan), &none),
        GangState::Replan { plan, lost, .. } => (Some(plan), lost),
        GangState::Inactive | GangState::Waiting => (None, &none),
    };
    // Compared by nodes, not by index: dropping a lost unit numbers those that stay anew.
    let held: BTreeSet<(&str, &[NodeName])> = plan
        .iter()
        .flat_map(|plan| &plan.units)
        .filter(|unit| !lost.contains(&unit.placed.id))
        .map(|unit| (unit.placed.id.role.as_str(), unit.placed.nodes.as_slice()))
        .collect();
    let staying: BTreeSet<&UnitId> = placement
        .units
        .iter()
        .filter(|unit| held.contains(&(unit.id.role.as_str(), unit.nodes.as_slice())))
        .map(|unit| &unit.id)
        .collect();
    let spare_stays = |role: &String, node: &NodeName| {
        plan.is_some_and(|plan| plan.spares.get(role).is_some_and(|nodes| nodes.contains(node)))
    };
    let mut found = Vec::new();
    for (claimant, name) in promises(gang, placement) {
        let (role_name, settled) = match &claimant {
            Claimant::Entry(slot) => (&slot.unit.role, staying.contains(&slot.unit)),
            Claimant::Spare { role, .. } => (role, spare_stays(role, &name)),
            Claimant::Pod(_) | Claimant::Use(_) => continue,
        };
        let (Some(role), false) = (role(gang, role_name), settled) else { continue };
        let Some(node) = nodes.get(name.as_str()) else {
            found.push(Violation::UnknownNode { claimant, node: name });
            continue;
        };
        let kept_away = || repulsion::kept_away(uses, nodes, &gang.key.namespace, role, node);
        let refusal = refusal(node, role, &gang.avoid);
        if let Some(refusal) = refusal.or_else(|| kept_away().then_some(NodeRefusal::Repelled)) {
            found.push(Violation::NodeRefuses { claimant, node: name, refusal });
        }
    }
    found
}
