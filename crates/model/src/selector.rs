//! Selectors of nodes and of pods, as kube-scheduler reads them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The one field of a node that a requirement may name.
pub const NAME_FIELD: &str = "metadata.name";

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Operator {
    /// The value is one of the listed.
    In,
    /// The value is none of the listed, or the key is absent.
    NotIn,
    /// The key is present.
    Exists,
    /// The key is absent.
    DoesNotExist,
    /// The value, an integer, is greater than the one listed.
    Gt,
    /// The value, an integer, is less than the one listed.
    Lt,
}

/// One requirement on a label, or on the field `metadata.name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requirement {
    /// Label key, or `metadata.name` for a field requirement.
    pub key: String,
    /// How to compare.
    pub operator: Operator,
    /// What to compare with.
    pub values: Vec<String>,
    /// True when `key` is a field of the node and not a label.
    #[serde(default)]
    pub field: bool,
}

impl Requirement {
    /// Label `key` is one of `values`.
    pub fn label_in(key: &str, values: &[&str]) -> Self {
        Self {
            key: key.to_owned(),
            operator: Operator::In,
            values: values.iter().map(|v| (*v).to_owned()).collect(),
            field: false,
        }
    }

    /// Whether the requirement holds for a value (absent when `None`).
    pub fn holds(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        let compare = |accept: fn(i64, i64) -> bool| {
            let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
            match (value.and_then(|v| v.parse::<i64>().ok()), bound) {
                (Some(value), Some(bound)) => accept(value, bound),
                _ => false,
            }
        };
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compare(|value, bound| value > bound),
            Operator::Lt => compare(|value, bound| value < bound),
        }
    }
}

/// All requirements must hold. An empty term matches nothing, as in Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeSelectorTerm {
    /// The requirements.
    pub requirements: Vec<Requirement>,
}

impl NodeSelectorTerm {
    /// Whether a node with this name and these labels satisfies the term.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        !self.requirements.is_empty()
            && self.requirements.iter().all(|requirement| {
                // Of fields a node has but its name.
                (!requirement.field || requirement.key == NAME_FIELD)
                    && requirement.holds(if requirement.field {
                        Some(name)
                    } else {
                        labels.get(&requirement.key).map(String::as_str)
                    })
            })
    }
}

/// A wish: nodes that satisfy the term are better, by `weight`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Preference {
    /// How much better, 1 to 100.
    pub weight: u32,
    /// What the node should satisfy.
    pub term: NodeSelectorTerm,
}

/// A required anti-affinity term of a pod that is there: no pod that it selects may come into the pod's domain, which
/// the value of a node label names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodTerm {
    /// Namespaces of the pods that it selects; `None` for all.
    pub namespaces: Option<Vec<String>>,
    /// What the labels of a pod must satisfy, all of them; empty selects every pod.
    pub requirements: Vec<Requirement>,
    /// The node label whose value names the domain.
    pub topology_key: String,
}

impl PodTerm {
    /// Whether it selects a pod of this namespace with these labels.
    pub fn selects(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespaces.as_ref().is_none_or(|all| all.iter().any(|one| one == namespace))
            && self.requirements.iter().all(|r| r.holds(labels.get(&r.key).map(String::as_str)))
    }
}
