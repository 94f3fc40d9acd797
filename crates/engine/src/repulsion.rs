//! Required anti-affinity of pods that are there: which terms select a gang's pods, and on which nodes they are in force.
//!
//! ```text
//!   pod on a node, with terms ──set──▶ terms, counted ──selecting(labels)──▶ part of a shape
//!                                         └─ node labels ──in_force──▶ terms per node ──▶ cell: Repelled
//! ```
//!
//! Few pods have such terms and fewer terms select pods of gangs: only those that a shape names are kept per node.

use muster_model::{Node, NodeName, PodTerm};
use std::collections::{BTreeMap, BTreeSet};

/// Index of a term; never used again once its last pod is gone.
pub type TermId = u32;

/// The pods that keep others away.
#[derive(Clone, Debug, Default)]
pub struct Repulsion {
    /// Terms, with how many pods have them.
    terms: BTreeMap<PodTerm, (TermId, usize)>,
    next: TermId,
    pods: BTreeMap<String, (NodeName, Vec<PodTerm>)>,
    /// Terms that some shape was built with.
    watched: BTreeSet<TermId>,
    /// Whether what is known per node may be out of date.
    stale: bool,
}

impl Repulsion {
    /// A pod's terms; none ends it. Returns whether a term came that was not known.
    pub fn set(&mut self, id: String, node: NodeName, terms: Vec<PodTerm>) -> bool {
        let old = self.pods.remove(&id);
        if old.as_ref().is_some_and(|old| old.0 == node && old.1 == terms) {
            self.pods.extend(old.map(|old| (id, old)));
            return false;
        }
        let mut new = false;
        for term in &terms {
            let entry = self.terms.entry(term.clone()).or_insert_with(|| {
                new = true;
                self.next += 1;
                (self.next, 0)
            });
            entry.1 += 1;
        }
        for term in old.into_iter().flat_map(|(_, terms)| terms) {
            if let Some(entry) = self.terms.get_mut(&term) {
                entry.1 -= 1;
                if entry.1 == 0 {
                    self.terms.remove(&term);
                }
            }
        }
        if !terms.is_empty() {
            self.pods.insert(id, (node, terms));
        }
        self.stale = true;
        new
    }

    /// The terms that select a pod of this namespace with these labels; they are watched from now on.
    pub fn selecting(&mut self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<TermId> {
        let selects =
            |(term, (id, _)): (&PodTerm, &(TermId, usize))| term.selects(namespace, labels).then_some(*id);
        let mut ids: Vec<TermId> = self.terms.iter().filter_map(selects).collect();
        ids.sort_unstable();
        for id in &ids {
            self.stale |= self.watched.insert(*id);
        }
        ids
    }

    /// Nodes or their labels changed.
    pub fn nodes_changed(&mut self) {
        self.stale |= !self.watched.is_empty();
    }

    /// Whether nodes must be looked at again. Says so once.
    pub fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale) && !self.watched.is_empty()
    }

    /// The domains in which a watched term is in force: term, node label, value. `node` gives facts by name.
    pub fn domains<'a>(
        &'a self,
        node: impl Fn(&NodeName) -> Option<&'a Node>,
    ) -> BTreeSet<(TermId, &'a str, &'a str)> {
        let mut all = BTreeSet::new();
        for (name, terms) in self.pods.values() {
            let Some(facts) = node(name) else { continue };
            for term in terms {
                let Some((id, _)) = self.terms.get(term).filter(|(id, _)| self.watched.contains(id)) else {
                    continue;
                };
                if let Some(value) = facts.labels.get(&term.topology_key) {
                    all.insert((*id, term.topology_key.as_str(), value.as_str()));
                }
            }
        }
        all
    }
}
