//! What would let a job run that waits: the engine's changes, in the words of the job's own manifest.
//!
//! ```text
//!   Cluster::explain ──engine::Change (each tried)──▶ Advice: a sentence, and the same as JSON
//! ```

use muster_api::{PlacementRule, TrainingJobSpec};
use muster_cluster::Cluster;
use muster_engine::Change;
use muster_model::{AcceleratorClass, DomainMiss, Gang, Mode};
use serde_json::{Value, json};

use super::place::Job;

/// Where users write what the engine's changes speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fields {
    /// In a Gang: under the engine's own names.
    Gang,
    /// In a TrainingJob.
    Training {
        /// Data-parallel replicas in a unit.
        replicas_per_unit: u32,
        /// Axis and level of each Required rule of `spec.placement`.
        rules: Vec<(&'static str, String)>,
    },
}

impl Fields {
    /// Those of a TrainingJob.
    pub fn of(spec: &TrainingJobSpec, replicas_per_unit: u32) -> Self {
        let rules = &spec.placement;
        let all: [(&'static str, Option<&PlacementRule>); 5] = [
            ("tensor", Some(&rules.tensor)),
            ("expert", Some(&rules.expert)),
            ("context", rules.context.as_ref()),
            ("pipeline", Some(&rules.pipeline)),
            ("job", rules.job.as_ref()),
        ];
        let required = all.into_iter().filter_map(|(axis, rule)| {
            let rule = rule.filter(|rule| rule.mode == Mode::Required)?;
            Some((axis, rule.within.clone()))
        });
        Self::Training { replicas_per_unit, rules: required.collect() }
    }

    /// The classes that the job may use.
    fn classes(&self) -> &'static str {
        match self {
            Self::Gang => "spec.classes",
            Self::Training { .. } => "spec.accelerator.classes",
        }
    }

    /// The fields that hold a rule, given the engine's name of its field. A TrainingJob's rules of one level may make
    /// one rule of the gang, so all of them are named: each that is relaxed only makes it easier.
    fn rule(&self, gang: &Gang, field: &str) -> String {
        let (rule, end) = field.rsplit_once('.').unwrap_or((field, ""));
        let of_gang = format!("spec.{field}");
        let Self::Training { rules, .. } = self else { return of_gang };
        let end = if end == "level" { "within" } else { end };
        if rule == "within" {
            return format!("spec.placement.job.{end}");
        }
        let segments = gang
            .roles
            .iter()
            .flat_map(|role| role.segments.iter().enumerate().map(|(at, segment)| (&role.name, at, segment)));
        let level = segments
            .into_iter()
            .find(|(role, at, _)| format!("roles[{role}].segments[{at}]") == rule)
            .map(|(.., segment)| segment.level.as_str());
        let named: Vec<String> = rules
            .iter()
            .filter(|(axis, at)| *axis != "job" && Some(at.as_str()) == level)
            .map(|(axis, _)| format!("spec.placement.{axis}.{end}"))
            .collect();
        if named.is_empty() { of_gang } else { named.join(" and ") }
    }
}

/// A change that suffices, alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// A sentence without its full stop.
    pub sentence: String,
    /// Its kind and numbers.
    pub detail: Value,
}

/// The changes after which the job could be placed now, cheapest first: first what asks nothing of the job.
pub fn tried(cluster: &mut Cluster, gang: &Gang, job: &Job, classes: &[AcceleratorClass]) -> Vec<Advice> {
    let explanation = cluster.explain(gang, classes);
    let changes = explanation.map(|explanation| explanation.changes).unwrap_or_default();
    changes.iter().map(|change| advice(change, gang, &job.fields)).collect()
}

fn advice(change: &Change, gang: &Gang, fields: &Fields) -> Advice {
    let (sentence, detail) = match change {
        Change::InGroup { group, change } => {
            let Advice { sentence, mut detail } = advice(change, gang, fields);
            detail["group"] = json!(group);
            (format!("{sentence}, in all gangs of group {group}"), detail)
        }
        Change::Free { role, pods, domains } => freed(gang, role, *pods, domains),
        Change::Class { class } => {
            let field = fields.classes();
            (
                format!("allow another accelerator class: add {class} to {field}"),
                json!({ "kind": "Class", "class": class, "field": field }),
            )
        }
        Change::Fewer { role, min } => fewer(gang, fields, role, *min),
        Change::Widen { field, from, to } => {
            let field = fields.rule(gang, field);
            (
                format!("relax a level: set {field} to {to} instead of {from}"),
                json!({ "kind": "Widen", "field": field, "from": from, "to": to }),
            )
        }
        // Rules between roles and units stand in Gangs only, under these names.
        Change::Raise { field, from, to } => (
            format!("allow more units in a domain: set spec.{field} to {to} instead of {from}"),
            json!({ "kind": "Raise", "field": format!("spec.{field}"), "from": from, "to": to }),
        ),
        Change::LeaveOut { field } => (
            format!("leave out a rule: take away spec.{field}"),
            json!({ "kind": "LeaveOut", "field": format!("spec.{field}") }),
        ),
        Change::Prefer { field } => {
            let field = fields.rule(gang, field);
            (
                format!("make a rule a wish: set {field} to Preferred"),
                json!({ "kind": "Prefer", "field": field }),
            )
        }
    };
    Advice { sentence, detail }
}

fn freed(gang: &Gang, role: &str, pods: u32, domains: &[DomainMiss]) -> (String, Value) {
    let per_pod = gang.roles.iter().find(|r| r.name == role).map_or(0, |role| role.devices);
    let gpus = u64::from(per_pod) * u64::from(pods);
    let s = |count: u64| if count == 1 { "" } else { "s" };
    let what = if gpus > 0 {
        format!("free {gpus} GPU{} for {pods} more {role} pod{}", s(gpus), s(pods.into()))
    } else {
        format!("free room for {pods} more {role} pod{}", s(pods.into()))
    };
    let names: Vec<String> = domains
        .iter()
        .map(|miss| match miss.level.as_str() {
            "Cluster" => "the cluster, wherever they fit".to_owned(),
            level => format!("{level} {}", miss.domain),
        })
        .collect();
    let lacks = domains.iter().map(|miss| {
        json!({ "level": miss.level, "domain": miss.domain, "pods": miss.wanted.saturating_sub(miss.pods) })
    });
    let detail = json!({
        "kind": "Free", "role": role, "pods": pods, "gpus": gpus, "domains": lacks.collect::<Vec<_>>(),
    });
    (format!("{what} in {}", names.join(", ")), detail)
}

fn fewer(gang: &Gang, fields: &Fields, role: &str, min: u32) -> (String, Value) {
    let before = gang.roles.iter().find(|r| r.name == role).map_or(0, |role| role.min);
    match fields {
        Fields::Training { replicas_per_unit, .. } => {
            let data = min * replicas_per_unit;
            (
                format!(
                    "be content with fewer replicas: set spec.elastic.minData to {data} instead of {}",
                    before * replicas_per_unit
                ),
                json!({ "kind": "Fewer", "role": role, "units": min, "field": "spec.elastic.minData", "to": data }),
            )
        }
        Fields::Gang => {
            let field = format!("spec.roles[{role}].units.min");
            (
                format!("be content with fewer units: set {field} to {min} instead of {before}"),
                json!({ "kind": "Fewer", "role": role, "units": min, "field": field, "to": min }),
            )
        }
    }
}
