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

/// How a toleration compares its value with a taint's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TolerationOperator {
    /// Equal texts.
    #[default]
    Equal,
    /// Every value.
    Exists,
    /// The taint's value, an integer, is less than the toleration's.
    Lt,
    /// The taint's value, an integer, is greater than the toleration's.
    Gt,
}

/// A toleration of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Toleration {
    /// Key; `None` tolerates every key (with `Exists`).
    pub key: Option<String>,
    /// How the values compare.
    #[serde(default)]
    pub operator: TolerationOperator,
    /// Value to compare with.
    #[serde(default)]
    pub value: String,
    /// Effect; `None` tolerates every effect.
    pub effect: Option<TaintEffect>,
}

impl Toleration {
    /// Whether it tolerates the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let compare = |accept: fn(i64, i64) -> bool| match (decimal(&taint.value), decimal(&self.value)) {
            (Some(taint), Some(bound)) => accept(taint, bound),
            _ => false,
        };
        let keyed = self.key.is_some();
        self.effect.is_none_or(|effect| effect == taint.effect)
            && self.key.as_ref().is_none_or(|key| *key == taint.key)
            && match self.operator {
                TolerationOperator::Exists => true,
                TolerationOperator::Equal => keyed && self.value == taint.value,
                TolerationOperator::Lt => keyed && compare(|taint, bound| taint < bound),
                TolerationOperator::Gt => keyed && compare(|taint, bound| taint > bound),
            }
    }
}

/// A decimal integer as Kubernetes writes it: no plus sign and no leading zeros.
fn decimal(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
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
