//! Domains, recomputed from labels alone.

use muster_model::{Level, Node, Topology};

/// The value that names a node's domain at a level: the first of the level's keys that it carries.
fn value<'a>(level: &Level, node: &'a Node) -> Option<&'a str> {
    level.keys.iter().find_map(|key| node.labels.get(key)).map(String::as_str)
}

/// The domain of a node at a level (its position, outermost 0), as a path that is equal for two nodes exactly when
/// they share the domain. An empty name stands for "without a value" outside the level.
pub(crate) fn domain(topology: &Topology, node: &Node, level: usize) -> Vec<String> {
    let own = || vec!["node".to_owned(), node.name.to_string()];
    let Some(innermost) = topology.levels.get(level) else { return own() };
    if value(innermost, node).is_none() {
        return own();
    }
    let path = topology.levels[..=level].iter();
    // A marker before the names, so that no label value can be taken for a node's own domain.
    std::iter::once("path".to_owned())
        .chain(path.map(|outer| value(outer, node).map_or_else(String::new, |name| format!("={name}"))))
        .collect()
}

/// A domain's path for people: its names, outermost first, joined by `/`.
pub(crate) fn words(path: &[String]) -> String {
    let names: Vec<&str> =
        path[1..].iter().filter(|name| !name.is_empty()).map(|name| name.trim_start_matches('=')).collect();
    names.join("/")
}
