//! Templates by revision: which one a unit's pods are made from, and whether another would fit its place.

use muster_api::gang::RevisionUse;
use muster_api::{GangSpec, PodTemplate};
use muster_model::{Plan, UnitId};
use serde_json::Value;
use std::collections::BTreeMap;

use super::GangRt;

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
        let mut template = serde_json::to_value(template).unwrap_or_default();
        for list in ["containers", "initContainers"] {
            let containers = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.retain(|field, _| !PLACELESS.contains(&field.as_str()));
            }
        }
        template
    };
    one == other || placing(one) == placing(other)
}

impl GangRt {
    /// Notes for which roles units keep their template although there is a newer one.
    pub(super) fn hold_revisions(&mut self) {
        let used = self.life.plan().map(in_use).unwrap_or_default();
        for (terms, role) in self.terms.roles.iter_mut().zip(&self.object.spec.roles) {
            let mut used = used.iter().filter(|used| used.role == role.name);
            terms.held = used.any(|used| {
                let theirs = role.template_of(&used.name);
                theirs.is_some_and(|theirs| !fit_alike(theirs, &role.template))
            });
        }
    }

    /// Whether a specification has the templates of the plan's units under the names that they have now.
    pub fn keeps_templates(&self, spec: &GangSpec) -> bool {
        let used = self.life.plan().map(in_use).unwrap_or_default();
        self.object.spec.roles.iter().zip(&spec.roles).all(|(old, new)| {
            let used = used.iter().filter(|used| used.role == old.name).map(|used| used.name.as_str());
            used.chain([new.revision.as_str()]).all(|name| {
                let before = old.template_of(name);
                before.is_none_or(|before| new.template_of(name) == Some(before))
            })
        })
    }

    /// What is to be said of units of a plan that run from an earlier template.
    pub(super) fn earlier_notes(&self, plan: &Plan) -> Vec<String> {
        let earlier = in_use(plan).into_iter().filter_map(|used| {
            let role = self.terms.roles.iter().find(|role| role.name == used.role)?;
            (!used.name.is_empty() && used.name != role.revision).then_some((used, role))
        });
        earlier
            .map(|(used, role)| {
                let what = if role.held {
                    "asks for another place, so set spec.suspend: true, then false, to have it"
                } else {
                    "is used when their pods start anew"
                };
                format!(
                    "units of role {} that run from template {:?}: {}; template {:?} {what}",
                    role.name, used.name, used.units, role.revision
                )
            })
            .collect()
    }
}
