//! Templates by revision: which one a unit's pods are made from, and whether another would fit its place.

use muster_api::gang::RevisionUse;
use muster_api::{GangSpec, PodTemplate, RoleSpec};
use muster_model::{Plan, UnitId};
use serde_json::Value;
use std::collections::BTreeMap;

/// The revision of each unit of a plan. The units of a role mostly have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revisions {
    common: BTreeMap<String, String>,
    others: BTreeMap<UnitId, String>,
}

impl Revisions {
    /// Those of a plan.
    pub fn of(plan: &Plan) -> Self {
        let mut all = Self::default();
        for unit in &plan.units {
            let id = &unit.placed.id;
            match all.common.get(&id.role) {
                None => {
                    all.common.insert(id.role.clone(), unit.revision.clone());
                }
                Some(common) if *common == unit.revision => {}
                Some(_) => {
                    all.others.insert(id.clone(), unit.revision.clone());
                }
            }
        }
        all
    }

    /// That of a unit; empty for the role's only one.
    pub fn of_unit(&self, unit: &UnitId) -> &str {
        self.others.get(unit).or_else(|| self.common.get(&unit.role)).map_or("", String::as_str)
    }
}

/// How many units of a plan run from which template.
pub fn in_use(plan: &Plan) -> Vec<RevisionUse> {
    let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for unit in &plan.units {
        *counts.entry((&unit.placed.id.role, &unit.revision)).or_default() += 1;
    }
    let counts = counts.into_iter();
    counts
        .map(|((role, name), units)| RevisionUse { role: role.to_owned(), name: name.to_owned(), units })
        .collect()
}

/// Gives units the present template whose own the specification does not have: a version without revisions made that plan,
/// from what was there. A status that named a template which is nowhere would have every later write refused.
pub fn name(plan: &mut Plan, spec: &GangSpec) {
    for unit in &mut plan.units {
        let role = spec.roles.iter().find(|role| role.name == unit.placed.id.role);
        if let Some(role) = role.filter(|role| role.template_of(&unit.revision).is_none()) {
            unit.revision.clone_from(&role.revision);
        }
    }
}

/// Fields of a container that have no say in where its pod fits.
const PLACELESS: [&str; 10] = [
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "workingDir",
];

/// Whether the pods of two templates fit the same places, as far as the templates say.
fn fit_alike(one: &PodTemplate, other: &PodTemplate) -> bool {
    let placing = |template: &PodTemplate| {
        let mut template = template.without(&PLACELESS);
        // Labels stay: by them others' anti-affinity keeps pods away.
        if let Some(meta) = template.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("annotations");
        }
        template
    };
    one == other || placing(one) == placing(other)
}

/// Whether the present template of a role fits the places that a plan has for its units.
pub fn fits(role: &RoleSpec, used: &[RevisionUse]) -> bool {
    let mut used = used.iter().filter(|used| used.role == role.name);
    used.all(|used| role.template_of(&used.name).is_none_or(|theirs| fit_alike(theirs, &role.template)))
}

/// Whether a specification has the templates that a plan uses under the names that they have now.
pub fn are_kept(used: &[RevisionUse], before: &GangSpec, after: &GangSpec) -> bool {
    before.roles.iter().zip(&after.roles).all(|(before, after)| {
        let used = used.iter().filter(|used| used.role == before.name).map(|used| used.name.as_str());
        used.chain([after.revision.as_str()]).all(|name| {
            let template = before.template_of(name);
            template.is_none_or(|template| after.template_of(name) == Some(template))
        })
    })
}
