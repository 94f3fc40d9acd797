//! `spread` rules that gangs of a namespace share: who names a group, and where the units are that count in it.
//!
//! ```text
//!   gangs (set, decided) ──set──▶ namespace ▸ group ▸ gang: what it states and holds
//!                                    │ version: grows when a gang stops holding something ──▶ who is asked again
//!                                    └─others(gang)──▶ Others (units by place), or Reason::Invalid: they disagree
//! ```

use muster_model::{Gang, Mode, ObjectKey, Reason, Spread, plan::PlacedUnit};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, btree_map::Entry},
};

use crate::{
    cluster::Cluster,
    rules::{self, Place},
    spec::invalid,
    tree::Slot,
};

/// Units of other gangs: group → place → how many lie there.
pub type Others = BTreeMap<String, BTreeMap<Place, u32>>;

/// What a gang that holds a plan states and where its units are.
#[derive(Clone, Debug)]
struct Held {
    rule: Spread,
    /// Nodes of each unit.
    units: Vec<Vec<Slot>>,
}

impl Held {
    /// Whether something was held or stated that is not any more.
    fn makes_room(&self, now: Option<&Self>) -> bool {
        let Some(now) = now.filter(|now| now.rule.agrees(&self.rule)) else { return true };
        let mut left: BTreeMap<&[Slot], usize> = BTreeMap::new();
        for unit in &now.units {
            *left.entry(unit).or_default() += 1;
        }
        !self.units.iter().all(|unit| {
            let left = left.get_mut(unit.as_slice()).filter(|left| **left > 0);
            left.map(|left| *left -= 1).is_some()
        })
    }
}

#[derive(Clone, Debug, Default)]
struct Group {
    /// All gangs that name it; `None` for those that hold no plan. A group lives as long as one names it, so that a
    /// version which a gang that waits has seen does not come again.
    gangs: BTreeMap<ObjectKey, Option<Held>>,
    version: u64,
}

/// All groups, by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct Groups(BTreeMap<String, BTreeMap<String, Group>>);

/// The groups that a gang names, with the rule that does.
fn named(gang: &Gang) -> impl Iterator<Item = (usize, &Spread, &str)> {
    let all = gang.rules.spread.iter().enumerate();
    all.filter_map(|(at, rule)| Some((at, rule, rule.group.as_deref()?)))
}

/// Whether a gang names any group.
pub fn names_any(gang: &Gang) -> bool {
    named(gang).next().is_some()
}

impl Groups {
    /// A gang was `old` and is `now`, or gone: it leaves the groups that it names no more. For the others see [`Self::set`].
    pub fn forget(&mut self, old: &Gang, now: Option<&Gang>) {
        for (.., name) in named(old) {
            if now.is_none_or(|now| named(now).all(|(.., other)| other != name)) {
                self.leave(&old.key, name);
            }
        }
    }

    fn leave(&mut self, key: &ObjectKey, name: &str) {
        let Some(groups) = self.0.get_mut(&key.namespace) else { return };
        let Some(group) = groups.get_mut(name) else { return };
        if let Some(Some(_)) = group.gangs.remove(key) {
            group.version += 1;
        }
        if group.gangs.is_empty() {
            groups.remove(name);
        }
        if groups.is_empty() {
            self.0.remove(&key.namespace);
        }
    }

    /// What a gang states, and the units of its plan, if it holds one: nodes must be known by name.
    pub fn set<U: Borrow<PlacedUnit>>(&mut self, cluster: &Cluster, gang: &Gang, held: Option<&[U]>) {
        for (_, rule, name) in named(gang) {
            // A role that the gang does not have holds nothing.
            let known = gang.roles.iter().any(|role| role.name == rule.role);
            let held = held.map(|units| {
                let of_role = units.iter().map(Borrow::borrow).filter(|u| known && u.id.role == rule.role);
                let slots = |unit: &PlacedUnit| {
                    unit.nodes.iter().filter_map(|name| cluster.slot(name.as_str())).collect()
                };
                Held { rule: rule.clone(), units: of_role.map(slots).collect() }
            });
            let groups = self.0.entry(gang.key.namespace.clone()).or_default();
            let group = groups.entry(name.to_owned()).or_default();
            match group.gangs.entry(gang.key.clone()) {
                Entry::Vacant(entry) => drop(entry.insert(held)),
                Entry::Occupied(mut entry) => {
                    let old = entry.insert(held);
                    let makes_room = old.is_some_and(|old| old.makes_room(entry.get().as_ref()));
                    group.version += u64::from(makes_room);
                }
            }
        }
    }

    fn group(&self, gang: &Gang, name: &str) -> Option<&Group> {
        self.0.get(&gang.key.namespace)?.get(name)
    }

    /// Grows whenever a gang that shares a group with this one stops holding something or states something else.
    pub fn version(&self, gang: &Gang) -> u64 {
        named(gang).filter_map(|(.., name)| self.group(gang, name)).map(|group| group.version).sum()
    }

    /// Where units of other gangs lie that count in the rules of this one. Nodes that are gone lie nowhere.
    ///
    /// # Errors
    /// [`Reason::Invalid`] if a gang that holds a plan states something else of a group.
    pub fn others(&self, cluster: &Cluster, gang: &Gang) -> Result<Others, Reason> {
        let mut others = Others::new();
        for (at, rule, name) in named(gang) {
            let Some(group) = self.group(gang, name) else { continue };
            // A level that does not exist is said of the rule itself.
            let Some(level) = cluster.tree.topology.level(&rule.level) else { continue };
            let taken = others.entry(name.to_owned()).or_default();
            for (key, held) in &group.gangs {
                let Some(held) = held.as_ref().filter(|_| *key != gang.key) else { continue };
                if !held.rule.agrees(rule) {
                    return Err(disagree(at, rule, key, &held.rule));
                }
                for unit in &held.units {
                    for place in rules::places(cluster, unit, level + 1).into_iter().flatten() {
                        *taken.entry(place).or_default() += 1;
                    }
                }
            }
        }
        Ok(others)
    }
}

fn disagree(at: usize, rule: &Spread, other: &ObjectKey, states: &Spread) -> Reason {
    let mode = |rule: &Spread| if rule.mode == Mode::Required { "Required" } else { "Preferred" };
    let words = |rule: &Spread| format!("{} ({})", rule.words(), mode(rule));
    invalid(
        format!("rules.spread[{at}]"),
        format!("it states {}, but gang {other}, which is placed, {}", words(rule), words(states)),
        "state the same level, units and mode, or use another group name",
    )
}
