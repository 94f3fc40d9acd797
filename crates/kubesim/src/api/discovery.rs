//! Paths that name no resource: versions, groups, resource lists, health.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::request::Call;
use super::resources::Catalogue;

/// The document at a non-resource path, or `None` if the path names a resource or nothing.
pub(crate) fn answer(call: &Call, catalogue: &Catalogue) -> Option<Value> {
    if call.info.verb != "get" && call.info.verb != "list" {
        return None;
    }
    let segments: Vec<&str> = call.info.path.split('/').filter(|s| !s.is_empty()).collect();
    match segments.as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "37", "gitVersion": "v1.37.0-kubesim", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "in-memory",
        })),
        ["healthz" | "livez" | "readyz"] => Some(json!("ok")),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => Some(groups(catalogue)),
        ["api", version] => Some(resources(catalogue, "", version)),
        ["apis", group, version] => Some(resources(catalogue, group, version)),
        _ => None,
    }
}

fn groups(catalogue: &Catalogue) -> Value {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for r in catalogue.iter().filter(|r| !r.group.is_empty()) {
        let list = versions.entry(&r.group).or_default();
        if !list.contains(&r.version.as_str()) {
            list.push(&r.version);
        }
    }
    let groups: Vec<Value> = versions
        .iter()
        .map(|(group, versions)| {
            let entries: Vec<Value> = versions
                .iter()
                .map(|v| json!({"groupVersion": format!("{group}/{v}"), "version": v}))
                .collect();
            json!({"name": group, "preferredVersion": entries.first(), "versions": entries})
        })
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resources(catalogue: &Catalogue, group: &str, version: &str) -> Value {
    const VERBS: [&str; 8] =
        ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let mut entries = Vec::new();
    for r in catalogue.iter().filter(|r| r.group == group && r.version == version) {
        let entry = |name: String, verbs: &[&str]| json!({"name": name, "singularName": r.singular, "namespaced": r.namespaced, "kind": r.kind, "verbs": verbs});
        entries.push(entry(r.plural.clone(), &VERBS));
        if r.status {
            entries.push(entry(format!("{}/status", r.plural), &["get", "patch", "update"]));
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries})
}
