//! A node as the engine sees it: converted once at the edge, never the whole Kubernetes object.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::{NodeName, Resources, Uid};

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaintEffect {
    /// Not placed there.
    NoSchedule,
    /// Placed there only if nothing better is found.
    PreferNoSchedule,
    /// Not placed there, and evicted.
    NoExecute,
}

/// A taint of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value; empty when absent.
    #[serde(default)]
    pub value: String,
    /// Effect.
    pub effect: TaintEffect,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Toleration {
    /// Key; `None` tolerates every key (with `exists`).
    pub key: Option<String>,
    /// True for operator `Exists`, false for `Equal`.
    pub exists: bool,
    /// Value for `Equal`.
    #[serde(default)]
    pub value: String,
    /// Effect; `None` tolerates every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Whether it tolerates the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && if self.exists { true } else { self.key.is_some() && self.value == taint.value }
    }
}

/// A node's facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Name.
    pub name: NodeName,
    /// UID: a node deleted and made again under its old name is another node.
    pub uid: Uid,
    /// Labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// What pods may use in all (`status.allocatable`); `pods` is the limit on their number.
    pub allocatable: Resources,
    /// Whether the kubelet reports Ready=True.
    pub ready: bool,
    /// Whether the node is cordoned (`spec.unschedulable`).
    #[serde(default)]
    pub cordoned: bool,
}
