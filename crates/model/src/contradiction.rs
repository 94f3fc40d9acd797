//! Topology labels that contradict each other.
//!
//! ```text
//!   Topology + labels of nodes ──contradictions──▶ Contradiction: a domain that its nodes put into several places
//! ```
//!
//! A domain's identity is its whole path, so nodes that disagree about the outside of a domain split it: a rack whose
//! nodes name two spines counts as two racks. Placing goes on with that; here it is said aloud.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{Level, Node, NodeName, Topology};

/// Nodes that a side names.
const MOST_NAMES: usize = 3;

/// Nodes of a domain that agree with each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The label key that says so; `None` where they carry no label of the level.
    pub key: Option<String>,
    /// Its value; `None` where they carry no label of the level.
    pub value: Option<String>,
    /// The first of these nodes, by name.
    pub nodes: Vec<NodeName>,
    /// How many they are.
    pub count: u32,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, &self.value) {
            (Some(key), Some(value)) => write!(f, "{key}={value} on ")?,
            _ => write!(f, "no label on ")?,
        }
        let names: Vec<&str> = self.nodes.iter().map(NodeName::as_str).collect();
        write!(f, "{}", names.join(", "))?;
        let more = (self.count as usize).saturating_sub(names.len());
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

/// A domain that its nodes put into several places, by which it counts as several domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// Level of the domain.
    pub level: String,
    /// The label key that makes its nodes one domain.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The level about which they disagree: the next one outside that some node carries, or `level` itself where only
    /// some of the nodes carry a key that counts before `key`.
    pub about: String,
    /// What they say, at least two.
    pub sides: Vec<Side>,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides: Vec<String> = self.sides.iter().map(ToString::to_string).collect();
        write!(
            f,
            "the nodes with {}={} are one {} but disagree about their {}: {}; they count as {} {}s",
            self.key,
            self.value,
            self.level,
            self.about,
            sides.join("; "),
            self.sides.len(),
            self.level
        )
    }
}

/// Key and value of the first of a level's keys that a node carries.
fn label<'a>(level: &'a Level, node: &'a Node) -> Option<(&'a str, &'a str)> {
    level.keys.iter().find_map(|key| Some((key.as_str(), node.labels.get(key)?.as_str())))
}

/// Nodes by what they say.
type Sides<'a> = BTreeMap<Option<(&'a str, &'a str)>, Vec<&'a NodeName>>;
/// Sides by the domain's key and value.
type Domains<'a> = BTreeMap<(&'a str, &'a str), Sides<'a>>;

fn named(domains: Domains<'_>, level: &Level, about: &Level) -> Vec<Contradiction> {
    let side = |(label, mut nodes): (Option<(&str, &str)>, Vec<&NodeName>)| {
        nodes.sort_unstable();
        Side {
            key: label.map(|(key, _)| key.to_owned()),
            value: label.map(|(_, value)| value.to_owned()),
            count: nodes.len() as u32,
            nodes: nodes.into_iter().take(MOST_NAMES).cloned().collect(),
        }
    };
    let split = domains.into_iter().filter(|(_, sides)| sides.len() > 1);
    split
        .map(|((key, value), sides)| Contradiction {
            level: level.name.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            about: about.name.clone(),
            sides: sides.into_iter().map(side).collect(),
        })
        .collect()
}

/// All contradictions among the labels of nodes, outermost level first.
///
/// A name that is used anew in every outer domain (`rack-1` of each block) is no contradiction. Which of the two it is
/// cannot be seen from one name: where several names of a level recur, and at least half of all, they are taken to be
/// meant so.
pub fn contradictions<'a>(
    topology: &'a Topology,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> Vec<Contradiction> {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    let carried: Vec<&Level> = topology
        .levels
        .iter()
        .filter(|level| nodes.iter().any(|node| label(level, node).is_some()))
        .collect();
    let mut found = Vec::new();
    for (at, level) in carried.iter().enumerate() {
        found.extend(mixed_keys(level, &nodes));
        let Some(outer) = at.checked_sub(1).map(|outer| carried[outer]) else { continue };
        let mut domains = Domains::new();
        for node in &nodes {
            if let Some(domain) = label(level, node) {
                domains.entry(domain).or_default().entry(label(outer, node)).or_default().push(&node.name);
            }
        }
        // Nodes without the outer label share no name by intent.
        let recurs = |sides: &Sides<'_>| sides.keys().filter(|side| side.is_some()).count() > 1;
        let recurring = domains.values().filter(|sides| recurs(sides)).count();
        if recurring > 1 && 2 * recurring >= domains.len() {
            domains.retain(|_, sides| !recurs(sides));
        }
        found.extend(named(domains, level, outer));
    }
    found
}

/// Domains by a later key of a level of whose nodes only some carry an earlier key, which counts for those.
fn mixed_keys(level: &Level, nodes: &[&Node]) -> Vec<Contradiction> {
    let mut found = Vec::new();
    for (at, key) in level.keys.iter().enumerate().skip(1) {
        let mut domains: BTreeMap<(&str, &str), Sides<'_>> = BTreeMap::new();
        for node in nodes {
            if let Some(value) = node.labels.get(key) {
                let counts = label(level, node);
                domains.entry((key, value)).or_default().entry(counts).or_default().push(&node.name);
            }
        }
        let earlier: BTreeSet<&str> = level.keys[..at].iter().map(String::as_str).collect();
        domains.retain(|_, sides| {
            let counted: Vec<bool> = sides.keys().flatten().map(|(key, _)| earlier.contains(key)).collect();
            counted.contains(&true) && counted.contains(&false)
        });
        found.extend(named(domains, level, level));
    }
    found
}
