//! I4 over several gangs: `spread` rules of a namespace that name one group.
//!
//! ```text
//!   gangs with placements ──by namespace and group──▶ do their rules agree? ──▶ units of all of them in each domain
//! ```

use muster_model::{Gang, Mode, Spread, Topology, plan::Placement};
use std::collections::BTreeMap;

use crate::{
    Nodes, Violation,
    domains::{Domains, words},
    placement::domains_of,
};

/// A gang with its placement and the rule that names the group.
type Member<'a> = (&'a Gang, &'a Placement, &'a Spread);

/// Groups of which rules differ, and domains that hold too many units of one. Nodes that do not exist lie nowhere.
pub(crate) fn violations(
    topology: &Topology,
    tree: &Domains,
    nodes: &Nodes,
    placed: &[(&Gang, &Placement)],
) -> Vec<Violation> {
    let mut groups: BTreeMap<(&str, &str), Vec<Member<'_>>> = BTreeMap::new();
    for (gang, placement) in placed {
        for rule in &gang.rules.spread {
            if let Some(group) = &rule.group {
                let members = groups.entry((gang.key.namespace.as_str(), group)).or_default();
                members.push((gang, placement, rule));
            }
        }
    }
    let mut found = Vec::new();
    for ((namespace, group), members) in groups {
        let Some(((first, _, rule), rest)) = members.split_first() else { continue };
        let differs = |(gang, _, other): &&Member<'_>| {
            let same = other.level == rule.level && other.units == rule.units && other.mode == rule.mode;
            !same || members.iter().filter(|member| member.0.key == gang.key).count() > 1
        };
        if let Some((other, ..)) = rest.iter().find(differs) {
            let gangs = [first.key.clone(), other.key.clone()];
            found.push(Violation::GroupDisagrees { group: group.to_owned(), gangs });
        } else if rule.mode == Mode::Required
            && let Some(level) = topology.level(&rule.level)
        {
            let over =
                held(tree, nodes, level, &members).into_iter().filter(|(_, units)| *units > rule.units);
            found.extend(over.map(|(domain, units)| Violation::TooManyOfGroup {
                namespace: namespace.to_owned(),
                group: group.to_owned(),
                level: rule.level.clone(),
                domain: words(&domain),
                units,
                most: rule.units,
            }));
        }
    }
    found
}

/// How many units of all members have a pod in each domain.
fn held(tree: &Domains, nodes: &Nodes, level: usize, members: &[Member<'_>]) -> BTreeMap<Vec<String>, u32> {
    let mut held: BTreeMap<Vec<String>, u32> = BTreeMap::new();
    for (_, placement, rule) in members {
        for unit in placement.units.iter().filter(|unit| unit.id.role == rule.role) {
            for domain in domains_of(tree, nodes, level, &unit.nodes) {
                *held.entry(domain).or_default() += 1;
            }
        }
    }
    held
}
