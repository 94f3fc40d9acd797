//! Domains, recomputed from labels alone.

use muster_model::{Level, Node, Topology};

use crate::Nodes;

/// The levels, and which of them some node of the cluster carries.
pub(crate) struct Domains<'a> {
    levels: Vec<(&'a Level, bool)>,
}

/// The value that names a node's domain at a level: the first of the level's keys that it carries.
fn value<'a>(level: &Level, node: &'a Node) -> Option<&'a str> {
    level.keys.iter().find_map(|key| node.labels.get(key)).map(String::as_str)
}

impl<'a> Domains<'a> {
    /// Of all nodes of a cluster.
    pub fn new(topology: &'a Topology, nodes: &Nodes) -> Self {
        let carried = |level: &&Level| nodes.values().any(|node| value(level, node).is_some());
        Self { levels: topology.levels.iter().map(|level| (level, carried(&level))).collect() }
    }

    /// What names a node's domain at a level: `=value` of the label, or `@name` of a node that is its own domain. A
    /// level that nobody carries takes the name of the next one inside it that somebody does.
    fn key(&self, node: &Node, level: usize) -> String {
        self.levels[level..]
            .iter()
            .find(|(_, carried)| *carried)
            .and_then(|(level, _)| value(level, node))
            .map_or_else(|| format!("@{}", node.name), |value| format!("={value}"))
    }

    /// The domain of a node at a level (its position, outermost 0; the node's comes last), as a path that is equal
    /// for two nodes exactly when they share the domain.
    pub fn of(&self, node: &Node, level: usize) -> Vec<String> {
        let outer = (0..self.levels.len().min(level + 1)).map(|level| self.key(node, level));
        if level < self.levels.len() {
            outer.collect()
        } else {
            outer.chain([format!("@{}", node.name)]).collect()
        }
    }
}

/// A domain's path for people: its names, outermost first, joined by `/`. Levels that only repeat the next one
/// inside them are left out.
pub(crate) fn words(path: &[String]) -> String {
    let mut names: Vec<&str> = path.iter().map(|key| &key[1..]).collect();
    names.dedup();
    names.join("/")
}
