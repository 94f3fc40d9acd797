//! Node selectors and node affinity, as kube-scheduler reads them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
                requirement.holds(if requirement.field {
                    (requirement.key == "metadata.name").then_some(name)
                } else {
                    labels.get(&requirement.key).map(String::as_str)
                })
            })
    }
}
