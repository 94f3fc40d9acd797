//! I3 and I4: rules between roles and between units of one gang.

use muster_model::{Gang, Mode, Near, Spread, Topology, plan::Placement};
use std::collections::BTreeMap;

use crate::{
    Nodes, Violation,
    domains::{Domains, words},
    placement::{domains_of, paths, role},
};

/// Ratios, counted unit by unit. A gang without any unit keeps them all.
pub(crate) fn ratios(gang: &Gang, placement: &Placement) -> Vec<Violation> {
    let count = |name: &str| placement.units.iter().filter(|unit| unit.id.role == name).count() as u32;
    let mut found = Vec::new();
    for ratio in &gang.rules.ratios {
        if role(gang, &ratio.role).is_none() || role(gang, &ratio.of).is_none() || ratio.per == 0 {
            found.push(Violation::RuleInvalid { gang: gang.key.clone(), rule: ratio.words() });
            continue;
        }
        let (units, of) = (count(&ratio.role), count(&ratio.of));
        // min/per ≤ units/of ≤ max/per, without division.
        let [units_wide, of_wide] = [units, of].map(u128::from);
        let scaled = units_wide * u128::from(ratio.per);
        if scaled < of_wide * u128::from(ratio.min) || scaled > of_wide * u128::from(ratio.max) {
            found.push(Violation::RatioBroken { gang: gang.key.clone(), ratio: ratio.words(), units, of });
        }
    }
    found
}

/// Required `near` and `spread` rules. Nodes that do not exist (any more) lie nowhere.
pub(crate) fn places(
    topology: &Topology,
    tree: &Domains,
    nodes: &Nodes,
    gang: &Gang,
    placement: &Placement,
) -> Vec<Violation> {
    let mut found = Vec::new();
    for rule in gang.rules.near.iter().filter(|rule| rule.mode == Mode::Required) {
        let known = !rule.roles.is_empty() && rule.roles.iter().all(|name| role(gang, name).is_some());
        match topology.level(&rule.level) {
            Some(level) if known => found.extend(apart(tree, nodes, gang, placement, rule, level)),
            _ => found.push(Violation::RuleInvalid { gang: gang.key.clone(), rule: rule.words() }),
        }
    }
    for rule in gang.rules.spread.iter().filter(|rule| rule.mode == Mode::Required) {
        match topology.level(&rule.level) {
            Some(level) if role(gang, &rule.role).is_some() => {
                found.extend(crowded(tree, nodes, gang, placement, rule, level));
            }
            _ => found.push(Violation::RuleInvalid { gang: gang.key.clone(), rule: rule.words() }),
        }
    }
    found
}

/// Roles in more than one domain, spares included: they may become ranks.
fn apart(
    tree: &Domains,
    nodes: &Nodes,
    gang: &Gang,
    placement: &Placement,
    rule: &Near,
    level: usize,
) -> Option<Violation> {
    let units = placement.units.iter().filter(|unit| rule.roles.contains(&unit.id.role));
    let spares = placement.spares.iter().filter(|(role, _)| rule.roles.contains(role));
    let names = units.flat_map(|unit| &unit.nodes).chain(spares.flat_map(|(_, nodes)| nodes));
    let domains = domains_of(tree, nodes, level, names);
    (domains.len() > 1).then(|| Violation::RolesApart {
        gang: gang.key.clone(),
        roles: rule.roles.clone(),
        level: rule.level.clone(),
        domains: paths(&domains),
    })
}

/// Units in more than one domain, and domains with too many units.
fn crowded(
    tree: &Domains,
    nodes: &Nodes,
    gang: &Gang,
    placement: &Placement,
    rule: &Spread,
    level: usize,
) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut held: BTreeMap<Vec<String>, u32> = BTreeMap::new();
    for unit in placement.units.iter().filter(|unit| unit.id.role == rule.role) {
        let domains = domains_of(tree, nodes, level, &unit.nodes);
        if domains.len() > 1 {
            found.push(Violation::UnitSplit {
                gang: gang.key.clone(),
                unit: unit.id.clone(),
                level: rule.level.clone(),
                domains: paths(&domains),
            });
        }
        for domain in domains {
            *held.entry(domain).or_default() += 1;
        }
    }
    let over = held.into_iter().filter(|(_, units)| *units > rule.units);
    found.extend(over.map(|(domain, units)| Violation::TooManyTogether {
        gang: gang.key.clone(),
        role: rule.role.clone(),
        level: rule.level.clone(),
        domain: words(&domain),
        units,
        most: rule.units,
    }));
    found
}
