//! The admission plugin RuntimeClass: what a class says about nodes and overhead goes into pods as they are created.
//!
//! ```text
//! pod.spec.runtimeClassName ─► RuntimeClass ─► nodeSelector, tolerations, overhead of the pod | Forbidden
//! ```

use serde_json::{Map, Value};

use super::json::{at, list, set, text};
use super::quantity;
use super::server::State;
use super::status::ApiError;

impl State {
    /// Merges the pod's class into it.
    ///
    /// # Errors
    /// Forbidden where the class does not exist or contradicts the pod.
    pub fn admit_runtime_class(&self, pod: &mut Value, name: &str) -> Result<(), ApiError> {
        let refuse = |why: &str| Err(ApiError::forbidden("", "pods", name, why));
        let class = match text(pod, &["spec", "runtimeClassName"]) {
            "" => None,
            given => match self.store.get("runtimeclasses.node.k8s.io", "", given) {
                None => return refuse(&format!("pod rejected: RuntimeClass {given:?} not found")),
                found => found,
            },
        };
        let fixed = class.and_then(|class| at(class, &["overhead", "podFixed"]));
        match (fixed, at(pod, &["spec", "overhead"])) {
            (None, Some(_)) => {
                return refuse(
                    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
                );
            }
            (Some(fixed), Some(given)) if !same_amounts(fixed, given) => {
                return refuse("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead");
            }
            (Some(fixed), _) => set(pod, &["spec", "overhead"], fixed.clone()),
            (None, None) => {}
        }
        let Some(scheduling) = class.and_then(|class| at(class, &["scheduling"])) else { return Ok(()) };
        let own = at(pod, &["spec", "nodeSelector"]).and_then(Value::as_object).cloned().unwrap_or_default();
        let of_class =
            at(scheduling, &["nodeSelector"]).and_then(Value::as_object).cloned().unwrap_or_default();
        let differs = |(key, value): &(&String, &Value)| own.get(*key).is_some_and(|own| own != *value);
        if let Some((key, value)) = of_class.iter().find(differs) {
            let (value, own) = (value.as_str().unwrap_or_default(), own[key].as_str().unwrap_or_default());
            return refuse(&format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {own}"
            ));
        }
        let merged: Map<String, Value> = own.into_iter().chain(of_class).collect();
        if !merged.is_empty() {
            set(pod, &["spec", "nodeSelector"], merged);
        }
        let tolerations = merge(list(pod, &["spec", "tolerations"]), list(scheduling, &["tolerations"]));
        if !tolerations.is_empty() {
            set(pod, &["spec", "tolerations"], tolerations);
        }
        Ok(())
    }
}

fn same_amounts(one: &Value, other: &Value) -> bool {
    let amounts = |list: &Value| -> Option<Vec<(String, Option<quantity::Milli>)>> {
        let all = list.as_object()?.iter();
        Some(all.map(|(name, amount)| (name.clone(), amount.as_str().and_then(quantity::parse))).collect())
    };
    amounts(one) == amounts(other)
}

/// Both lists without those that another tolerates more than; of equal ones the first stays.
fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    let mut merged: Vec<Value> = Vec::with_capacity(all.len());
    for (index, one) in all.iter().enumerate() {
        let before = merged.iter().any(|kept| covers(kept, one));
        let after = all[index + 1..].iter().any(|later| later != one && covers(later, one));
        if !before && !after {
            merged.push((*one).clone());
        }
    }
    merged
}

/// Whether a toleration tolerates all that another does.
fn covers(wide: &Value, narrow: &Value) -> bool {
    if wide == narrow {
        return true;
    }
    let differs = |key: &str| text(wide, &[key]) != text(narrow, &[key]);
    let (key, effect, operator) = (text(wide, &["key"]), text(wide, &["effect"]), text(wide, &["operator"]));
    if differs("key") && !(key.is_empty() && operator == "Exists") || differs("effect") && !effect.is_empty()
    {
        return false;
    }
    let seconds = |toleration: &Value| toleration.get("tolerationSeconds").and_then(Value::as_i64);
    let shorter = |limit: i64| seconds(narrow).is_none_or(|wanted| wanted > limit);
    if effect == "NoExecute" && seconds(wide).is_some_and(shorter) {
        return false;
    }
    match operator {
        "" | "Equal" => text(narrow, &["operator"]) == "Equal" && !differs("value"),
        "Exists" => true,
        _ => false,
    }
}
