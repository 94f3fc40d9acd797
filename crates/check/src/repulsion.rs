//! Required anti-affinity of pods that are there: may a pod of ours come to a node?
//!
//! ```text
//!   term of a pod on a node ──value of its label there──▶ every node with that value ──selects our pod?──▶ refused
//! ```

use muster_model::{Node, PodTerm, Role};
use std::collections::BTreeMap;

use crate::{Nodes, Use};

/// Whether a term selects the pods of a role in a namespace: by namespace, and by all requirements on labels.
fn selects(term: &PodTerm, namespace: &str, role: &Role) -> bool {
    let in_namespace = match &term.namespaces {
        None => true,
        Some(listed) => listed.iter().any(|name| name == namespace),
    };
    let value = |key: &String| role.traits.labels.get(key).map(String::as_str);
    in_namespace && !term.requirements.iter().any(|wanted| !wanted.holds(value(&wanted.key)))
}

/// Whether some pod that is there keeps pods of this role away from a node. A term says nothing where either node lacks
/// its label, or where the pod's own node is not known.
pub(crate) fn kept_away(
    uses: &BTreeMap<String, Use>,
    nodes: &Nodes,
    namespace: &str,
    role: &Role,
    node: &Node,
) -> bool {
    uses.values().any(|there| {
        let Some(theirs) = nodes.get(there.node.as_str()) else { return false };
        there.repels.iter().any(|term| {
            let domain = theirs.labels.get(&term.topology_key);
            domain.is_some()
                && domain == node.labels.get(&term.topology_key)
                && selects(term, namespace, role)
        })
    })
}
