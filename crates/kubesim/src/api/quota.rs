//! ResourceQuota: admission of creations, and `status.used`.
//!
//! Scopes are not modelled: a quota with scopes counts everything.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::json::{at, child_mut, list, object_mut, set, text};
use super::quantity::{self, Milli};
use super::resources::Resource;
use super::server::State;
use super::status::ApiError;
use super::store::Place;

/// Usage by quota resource name.
type Usage = BTreeMap<String, Milli>;

/// What a write adds to which quotas.
#[derive(Debug, Default)]
pub(crate) struct Charge(Vec<(Place, Usage)>);

const UNIT: Milli = 1_000;

/// What one object uses, under every name that a quota may limit.
fn usage(table: &str, object: &Value) -> Usage {
    let mut used = Usage::new();
    used.insert(format!("count/{table}"), UNIT);
    match table {
        "pods" => pod_usage(object, &mut used),
        "services" | "secrets" | "configmaps" | "persistentvolumeclaims" | "resourcequotas" => {
            used.insert(table.to_owned(), UNIT);
        }
        _ => {}
    }
    used
}

fn pod_usage(pod: &Value, used: &mut Usage) {
    if matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
        return;
    }
    used.insert("pods".into(), UNIT);
    for kind in ["requests", "limits"] {
        for (name, amount) in pod_resources(pod, kind) {
            // The bare names are synonyms of the requests.
            if kind == "requests" && matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                used.insert(name.clone(), amount);
            }
            used.insert(format!("{kind}.{name}"), amount);
        }
    }
}

/// A pod's requests or limits: the sum of its containers, or the largest init container, plus overhead.
fn pod_resources(pod: &Value, kind: &str) -> Usage {
    let of = |container: &Value| -> Usage {
        let map = at(container, &["resources", kind]).and_then(Value::as_object);
        map.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), quantity_of(v)?))).collect()
    };
    let mut total = Usage::new();
    for container in list(pod, &["spec", "containers"]) {
        for (name, amount) in of(container) {
            *total.entry(name).or_insert(0) += amount;
        }
    }
    for container in list(pod, &["spec", "initContainers"]) {
        let sidecar = text(container, &["restartPolicy"]) == "Always";
        for (name, amount) in of(container) {
            let entry = total.entry(name).or_insert(0);
            *entry = if sidecar { *entry + amount } else { (*entry).max(amount) };
        }
    }
    if let Some(overhead) = at(pod, &["spec", "overhead"]).and_then(Value::as_object) {
        for (name, v) in overhead {
            *total.entry(name.clone()).or_insert(0) += quantity_of(v).unwrap_or(0);
        }
    }
    total
}

fn quantity_of(value: &Value) -> Option<Milli> {
    match value {
        Value::String(s) => quantity::parse(s),
        Value::Number(n) => quantity::parse(&n.to_string()),
        _ => None,
    }
}

/// Names of containers without a request or limit that the quota insists on, by resource.
fn unspecified(pod: &Value, hard: &serde_json::Map<String, Value>) -> Vec<String> {
    let mut gaps = Vec::new();
    for name in hard.keys() {
        let (kind, resource) = match name.as_str() {
            "cpu" | "memory" => ("requests", name.as_str()),
            other => match other.split_once('.') {
                Some((kind @ ("requests" | "limits"), resource @ ("cpu" | "memory"))) => (kind, resource),
                _ => continue,
            },
        };
        let missing: Vec<&str> = list(pod, &["spec", "containers"])
            .iter()
            .chain(list(pod, &["spec", "initContainers"]))
            .filter(|c| at(c, &["resources", kind, resource]).is_none())
            .map(|c| text(c, &["name"]))
            .collect();
        if !missing.is_empty() {
            gaps.push(format!("{name} for: {}", missing.join(",")));
        }
    }
    gaps
}

fn show(usage: &[(String, Milli)], like: &serde_json::Map<String, Value>) -> String {
    let parts: Vec<String> = usage
        .iter()
        .map(|(name, amount)| {
            let style = like.get(name).and_then(Value::as_str).unwrap_or("");
            format!("{name}={}", quantity::format(*amount, style))
        })
        .collect();
    parts.join(",")
}

impl State {
    /// Checks a write against the namespace's quotas; the charge is applied once it is stored.
    pub fn check_quota(
        &self,
        resource: &Resource,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<Charge, ApiError> {
        let namespace = text(new, &["metadata", "namespace"]);
        let mut charge = Charge::default();
        let quotas = self.store.table("resourcequotas");
        for (key, quota) in
            quotas.into_iter().flat_map(|t| t.scan(namespace)).filter(|_| !namespace.is_empty())
        {
            let Some(hard) = at(quota, &["spec", "hard"]).and_then(Value::as_object) else { continue };
            let mut delta = usage(&resource.table, new);
            if let Some(old) = old {
                for (name, amount) in usage(&resource.table, old) {
                    *delta.entry(name).or_insert(0) -= amount;
                }
            } else if resource.is_pod() {
                must_specify(new, hard, resource, &key.1)?;
            }
            delta.retain(|name, amount| hard.contains_key(name) && *amount != 0);
            if delta.is_empty() {
                continue;
            }
            check_hard(resource, new, quota, hard, &delta)?;
            charge.0.push((Place { table: "resourcequotas".into(), key: key.clone() }, delta));
        }
        Ok(charge)
    }

    /// Adds a write's usage to `status.used`.
    pub fn charge_quota(&mut self, charge: &Charge) {
        for (place, delta) in &charge.0 {
            let Some(quota) = self.store.get(&place.table, &place.key.0, &place.key.1) else { continue };
            let mut quota = (**quota).clone();
            for (name, amount) in delta {
                let now = at(&quota, &["status", "used", name]).and_then(quantity_of).unwrap_or(0);
                let style = text(&quota, &["spec", "hard", name]).to_owned();
                set(&mut quota, &["status", "used", name], quantity::format(now + amount, &style));
            }
            self.store.put(place, quota);
        }
    }

    /// Counts a namespace anew, as the quota controller does after deletions and finished pods.
    pub fn recount_quotas(&mut self, namespace: &str) {
        let quotas: Vec<(Place, Value)> = self
            .store
            .table("resourcequotas")
            .into_iter()
            .flat_map(|t| t.scan(namespace))
            .map(|(key, q)| (Place { table: "resourcequotas".into(), key: key.clone() }, (**q).clone()))
            .collect();
        for (place, quota) in quotas {
            let Some(hard) = at(&quota, &["spec", "hard"]).and_then(Value::as_object).cloned() else {
                continue;
            };
            let mut total = Usage::new();
            for (name, table) in self.store.tables() {
                for (_, object) in table.scan(namespace) {
                    for (resource, amount) in usage(name, object) {
                        *total.entry(resource).or_insert(0) += amount;
                    }
                }
            }
            let mut counted = quota.clone();
            let status = child_mut(&mut counted, "status");
            set(status, &["hard"], hard.clone());
            let used = object_mut(child_mut(status, "used"));
            used.clear();
            for (name, limit) in &hard {
                let amount = total.get(name).copied().unwrap_or(0);
                used.insert(name.clone(), json!(quantity::format(amount, limit.as_str().unwrap_or(""))));
            }
            if counted != quota {
                self.store.put(&place, counted);
            }
        }
    }

    /// Whether a namespace has quotas at all.
    pub fn has_quotas(&self, namespace: &str) -> bool {
        self.store.table("resourcequotas").is_some_and(|t| t.scan(namespace).next().is_some())
    }
}

fn must_specify(
    pod: &Value,
    hard: &serde_json::Map<String, Value>,
    resource: &Resource,
    quota: &str,
) -> Result<(), ApiError> {
    let gaps = unspecified(pod, hard);
    if gaps.is_empty() {
        return Ok(());
    }
    let why = format!("failed quota: {quota}: must specify {}", gaps.join("; "));
    Err(ApiError::forbidden(&resource.group, &resource.plural, text(pod, &["metadata", "name"]), &why))
}

fn check_hard(
    resource: &Resource,
    new: &Value,
    quota: &Value,
    hard: &serde_json::Map<String, Value>,
    delta: &Usage,
) -> Result<(), ApiError> {
    let (mut requested, mut used, mut limited) = (Vec::new(), Vec::new(), Vec::new());
    for (name, amount) in delta.iter().filter(|(_, amount)| **amount > 0) {
        let limit = hard.get(name).and_then(quantity_of).unwrap_or(0);
        let now = at(quota, &["status", "used", name]).and_then(quantity_of).unwrap_or(0);
        if now + amount > limit {
            requested.push((name.clone(), *amount));
            used.push((name.clone(), now));
            limited.push((name.clone(), limit));
        }
    }
    if requested.is_empty() {
        return Ok(());
    }
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        text(quota, &["metadata", "name"]),
        show(&requested, hard),
        show(&used, hard),
        show(&limited, hard)
    );
    let name = text(new, &["metadata", "name"]);
    Err(ApiError::forbidden(&resource.group, &resource.plural, name, &why))
}
