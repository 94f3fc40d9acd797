//! What a node can really hold, learned from a pod that its kubelet refused for want of a resource.

use muster_model::{Millis, Resources};
use std::collections::BTreeMap;

/// So long a refusal is believed against the node's own status.
pub const BELIEF: Millis = 600_000;

/// A planned pod that a kubelet refused, at the moment when it became Failed. Pods of others prove nothing: whoever may
/// create pods could say anything about any node.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// The kubelet's word, such as `OutOfcpu` or `OutOfnvidia.com/gpu`.
    pub word: &'a str,
    /// What the pod was planned with.
    pub planned: &'a Resources,
    /// What the pod that was refused asks, by its own specification.
    pub asked: &'a Resources,
    /// What pods use that the kubelet has admitted and that have not ended.
    pub admitted: &'a Resources,
    /// What the node's status promises to pods in all.
    pub allocatable: &'a Resources,
}

/// What follows from a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Belief {
    /// Nothing about what the node can hold: its status explains the refusal, or it is about something else.
    Nothing,
    /// Nothing about the node: the pod asked for more than it was planned with, so what admission makes of such pods has
    /// to be learned again.
    AskedMore {
        /// Of which resource.
        resource: String,
        /// What it asked.
        asked: i64,
        /// What was planned.
        planned: i64,
    },
    /// The node has less than its status says.
    Less {
        /// Of which resource.
        resource: String,
        /// The most that it can have: one less than would have been enough.
        most: i64,
    },
}

/// What a refusal says of its node.
pub fn believe(refused: &Refused<'_>) -> Belief {
    let Some(resource) = refused.word.strip_prefix("OutOf") else { return Belief::Nothing };
    let (asked, planned) = (refused.asked.get(resource), refused.planned.get(resource));
    if asked > planned {
        return Belief::AskedMore { resource: resource.to_owned(), asked, planned };
    }
    let enough = refused.admitted.get(resource).max(0).saturating_add(asked);
    if asked <= 0 || enough > refused.allocatable.allocatable(resource) {
        return Belief::Nothing;
    }
    Belief::Less { resource: resource.to_owned(), most: enough - 1 }
}

/// One resource of which a node has less than it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Less {
    most: i64,
    /// What its status said then: when that changes, the kubelet has looked again.
    promised: i64,
    until: Millis,
}

/// What is believed of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Believed(BTreeMap<String, Less>);

impl Believed {
    pub fn learn(&mut self, resource: &str, most: i64, allocatable: &Resources, until: Millis) {
        let promised = allocatable.allocatable(resource);
        let less = self.0.entry(resource.to_owned()).or_insert(Less { most, promised, until });
        *less = Less { most: less.most.min(most), promised, until };
    }

    /// Forgets what is over, and what was said of other amounts. Returns whether anything was forgotten.
    pub fn forget(&mut self, now: Millis, allocatable: Option<&Resources>) -> bool {
        let before = self.0.len();
        self.0.retain(|resource, less| {
            less.until > now && allocatable.is_none_or(|now| now.allocatable(resource) == less.promised)
        });
        self.0.len() < before
    }

    pub fn until(&self) -> Option<Millis> {
        self.0.values().map(|less| less.until).min()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(resource, less)| (resource.as_str(), less.most))
    }
}
