//! What the chart's roles grant the operator's account, against what it asks for.
//!
//! ```text
//!   deploy/muster.yaml ─ rules ─▶ granted ─┐
//!   counters of kubesim, audit log ─▶ used ┴─▶ used ⊆ granted (every scenario), granted ⊆ used (the whole suite)
//! ```

use anyhow::{Context, Result, ensure};
use kubesim::api::RequestCount;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::world::OPERATOR_USER;

/// One verb on one resource: `patch muster.dev/gangs/status`, `create pods`.
pub type Right = String;

/// Granted and used by nothing that a test can see, each with the reason.
pub const UNUSED: [(&str, &str); 6] = [
    ("update muster.dev/gangs/finalizers", "asked for by an admission plugin, not by us"),
    ("update muster.dev/trainingjobs/finalizers", "asked for by an admission plugin, not by us"),
    ("get services", "asked only where somebody else's Service has the name"),
    ("get configmaps", "asked only where somebody else's ConfigMap has the name"),
    (
        "get muster.dev/gangs",
        "asked only where the name is taken, or a status is refused after a lost answer",
    ),
    ("get muster.dev/gangplans", "asked only where the name of a part is taken"),
];

fn right(verb: &str, group: &str, resource: &str) -> Right {
    if group.is_empty() { format!("{verb} {resource}") } else { format!("{verb} {group}/{resource}") }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

/// What the roles grant.
///
/// # Errors
/// When the manifests cannot be read.
pub fn granted() -> Result<BTreeSet<Right>> {
    let mut all = BTreeSet::new();
    for object in muster_playground::install::manifests()? {
        let kind = object.types.as_ref().map(|types| types.kind.as_str());
        let name = object.metadata.name.as_deref().unwrap_or_default();
        if !matches!((kind, name), (Some("ClusterRole"), "muster") | (Some("Role"), "muster-leader")) {
            continue;
        }
        let rules: Vec<Rule> =
            serde_json::from_value(object.data["rules"].clone()).context("the rules of a role")?;
        for rule in rules {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    all.extend(rule.verbs.iter().map(|verb| right(verb, group, resource)));
                }
            }
        }
    }
    ensure!(!all.is_empty(), "deploy/muster.yaml has no roles; run `make manifests`");
    Ok(all)
}

/// What the operator's account asked of the in-memory server.
pub fn used_in(counts: &RequestCount) -> BTreeSet<Right> {
    let ours = counts.keys().filter(|key| key.user == OPERATOR_USER);
    ours.map(|key| {
        let resource = match key.subresource.as_str() {
            "" => key.resource.clone(),
            sub => format!("{}/{sub}", key.resource),
        };
        right(&key.verb, &key.group, &resource)
    })
    .collect()
}

/// What an audit log tells.
#[derive(Debug, Default)]
pub struct Audit {
    /// What the operator's account asked for by a token of its own.
    pub used: BTreeSet<Right>,
    /// Namespaces of scenarios: how many ran.
    pub scenarios: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    verb: String,
    user: User,
    impersonated_user: Option<User>,
    #[serde(default)]
    object_ref: ObjectRef,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
}

/// Reads the audit log of a real server, one `audit.k8s.io/v1` Event a line.
///
/// # Errors
/// When it cannot be read.
pub fn audit(log: &Path) -> Result<Audit> {
    let file = std::fs::File::open(log).with_context(|| format!("cannot read {}", log.display()))?;
    let mut audit = Audit::default();
    for line in BufReader::new(file).lines() {
        // The last line may be half written.
        let Ok(line) = serde_json::from_str::<Line>(&line?) else { continue };
        let about = line.object_ref;
        if about.namespace.starts_with("scenario-") {
            audit.scenarios.insert(about.namespace);
        }
        if line.user.username == OPERATOR_USER
            && line.impersonated_user.is_none()
            && !about.resource.is_empty()
        {
            let resource = match about.subresource.as_str() {
                "" => about.resource,
                sub => format!("{}/{sub}", about.resource),
            };
            audit.used.insert(right(&line.verb, &about.api_group, &resource));
        }
    }
    Ok(audit)
}

/// Nothing is asked for that the roles do not grant.
///
/// # Errors
/// What is not granted.
pub fn check(used: &BTreeSet<Right>) -> Result<()> {
    let granted = granted()?;
    let missing: Vec<_> = used.difference(&granted).collect();
    ensure!(
        missing.is_empty(),
        "charts/muster/templates/rbac.yaml does not grant what the operator asks for: {missing:?}"
    );
    Ok(())
}

/// Nothing is granted that the whole suite does not ask for, but for what is `seldom` asked for and [`UNUSED`]; and the
/// latter is not asked for.
///
/// # Errors
/// What is granted for nothing, or excused for nothing.
pub fn check_all(used: &BTreeSet<Right>, seldom: &[&str]) -> Result<()> {
    check(used)?;
    let excused: BTreeSet<Right> = UNUSED.iter().map(|(right, _)| (*right).to_owned()).collect();
    let granted = granted()?;
    let idle: Vec<_> = granted
        .difference(used)
        .filter(|right| !excused.contains(*right) && !seldom.contains(&right.as_str()))
        .collect();
    ensure!(idle.is_empty(), "charts/muster/templates/rbac.yaml grants what nothing asks for: {idle:?}");
    let stale: Vec<_> =
        excused.iter().filter(|right| used.contains(*right) || !granted.contains(*right)).collect();
    ensure!(stale.is_empty(), "UNUSED excuses what is asked for, or not granted any more: {stale:?}");
    Ok(())
}
