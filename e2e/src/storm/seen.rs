//! What the judge keeps of objects: read from JSON, so that it does not share the operator's types.

use muster_api::labels;
use muster_api::plan_codec::{self, PlanStatus};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The accelerators that storms use.
const GPU: &str = "nvidia.com/gpu";

/// A pod's place: role, unit, index.
pub type Place = (String, u32, u32);

/// Where a plan wants a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: String,
    /// The incarnation of its unit.
    pub incarnation: u64,
    /// Accelerators.
    pub gpus: u64,
    /// Revision of its unit's template.
    pub revision: String,
}

/// A gang.
#[derive(Clone, Debug, Default)]
pub struct GangSeen {
    /// Namespace and name.
    pub key: (String, String),
    /// It leaves.
    pub leaving: bool,
    /// `status.phase`.
    pub phase: String,
    /// The plan in force, pod by pod.
    pub plan: BTreeMap<Place, Entry>,
    /// Accelerators held as spares, by node.
    pub spares: BTreeMap<String, u64>,
    /// `status.plan.generation`.
    pub generation: u64,
    /// `status.restarts`, each as text.
    pub restarts: BTreeSet<String>,
    /// `status.restartsTotal`.
    pub total: i64,
    /// `status.epoch`.
    pub epoch: i64,
    /// The plan could not be read.
    pub unreadable: Option<String>,
}

impl GangSeen {
    /// Reads a gang; plans of storms are never so large that they are kept elsewhere.
    pub fn of(gang: &Value) -> Self {
        let status = &gang["status"];
        let mut seen = Self {
            key: key(gang),
            leaving: !gang["metadata"]["deletionTimestamp"].is_null(),
            phase: text(&status["phase"]),
            generation: status["plan"]["generation"].as_u64().unwrap_or(0),
            restarts: status["restarts"].as_array().into_iter().flatten().map(Value::to_string).collect(),
            total: status["restartsTotal"].as_i64().unwrap_or(0),
            epoch: status["epoch"].as_i64().unwrap_or(0),
            ..Self::default()
        };
        let roles = gang["spec"]["roles"].as_array().into_iter().flatten();
        let gpus: BTreeMap<String, u64> =
            roles.map(|role| (text(&role["name"]), role["devices"].as_u64().unwrap_or(0))).collect();
        if status["plan"].is_null() {
            return seen;
        }
        let plan = serde_json::from_value::<PlanStatus>(status["plan"].clone()).map_err(|e| e.to_string());
        match plan.and_then(|plan| plan_codec::decode(&plan, &BTreeMap::new()).map_err(|e| e.to_string())) {
            Ok(plan) => {
                for unit in plan.units {
                    let role = unit.placed.id.role.clone();
                    for (index, node) in (0..).zip(&unit.placed.nodes) {
                        let gpus = gpus.get(&role).copied().unwrap_or(0);
                        let entry = Entry {
                            node: node.as_str().to_owned(),
                            incarnation: unit.incarnation,
                            gpus,
                            revision: unit.revision.clone(),
                        };
                        seen.plan.insert((role.clone(), unit.placed.id.index, index), entry);
                    }
                }
                for (role, nodes) in plan.spares {
                    for node in nodes {
                        let held = gpus.get(&role).copied().unwrap_or(0);
                        *seen.spares.entry(node.as_str().to_owned()).or_default() += held;
                    }
                }
            }
            Err(error) => seen.unreadable = Some(error),
        }
        seen
    }

    /// Whether its plan is in force.
    pub fn holds(&self) -> bool {
        !self.leaving && matches!(self.phase.as_str(), "Placed" | "Running")
    }
}

/// A pod of a gang.
#[derive(Clone, Debug, Default)]
pub struct PodSeen {
    /// Namespace and name.
    pub key: (String, String),
    /// UID of the gang that controls it.
    pub gang: String,
    /// Its place in it.
    pub place: Place,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its node.
    pub node: String,
    /// Accelerators.
    pub gpus: u64,
    /// `status.phase`.
    pub phase: String,
    /// It leaves.
    pub leaving: bool,
    /// `muster.dev/epoch`.
    pub epoch: i64,
    /// It was made by the storm and claims to be a gang's.
    pub impostor: bool,
    /// Its creation was done late.
    pub late: bool,
    /// What its template says that it is.
    pub template: String,
    /// The revision that it was made from.
    pub revision: String,
}

impl PodSeen {
    /// Reads a pod; `None` where no gang controls it.
    pub fn of(pod: &Value) -> Option<Self> {
        let gang = owner(pod, "Gang")?;
        let label = |name: &str| text(&pod["metadata"]["labels"][name]);
        let number = |name: &str| label(name).parse().unwrap_or(0);
        let note = |name: &str| text(&pod["metadata"]["annotations"][name]);
        Some(Self {
            key: key(pod),
            gang,
            place: (label(labels::ROLE), number(labels::UNIT), number(labels::INDEX)),
            incarnation: label(labels::INCARNATION).parse().unwrap_or(0),
            node: text(&pod["spec"]["nodeName"]),
            gpus: gpus(pod),
            phase: text(&pod["status"]["phase"]),
            leaving: !pod["metadata"]["deletionTimestamp"].is_null(),
            epoch: note(labels::EPOCH).parse().unwrap_or(0),
            impostor: !pod["metadata"]["annotations"][HOSTILE].is_null(),
            late: false,
            template: note(REVISION),
            revision: label(labels::REVISION),
        })
    }

    /// It uses something of its node.
    pub fn live(&self) -> bool {
        !matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the plan of this gang wants it as it is.
    pub fn wanted(&self, gang: &GangSeen) -> bool {
        self.key.0 == gang.key.0
            && gang
                .plan
                .get(&self.place)
                .is_some_and(|entry| entry.node == self.node && entry.incarnation == self.incarnation)
    }
}

/// Annotation of objects that the storm made to do harm.
pub const HOSTILE: &str = "storm/hostile";
/// Annotation of templates: which.
pub const REVISION: &str = "storm/revision";

/// Accelerators that a pod asks for.
pub fn gpus(pod: &Value) -> u64 {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    containers
        .map(|container| {
            let resources = &container["resources"];
            let amount = |kind: &str| resources[kind][GPU].as_str().and_then(|text| text.parse::<u64>().ok());
            amount("requests").or_else(|| amount("limits")).unwrap_or(0)
        })
        .sum()
}

/// Namespace and name.
pub fn key(object: &Value) -> (String, String) {
    (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
}

/// The UID.
pub fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

/// The UID of the controller of a kind.
pub fn owner(object: &Value, kind: &str) -> Option<String> {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners
        .filter(|owner| owner["kind"] == kind && owner["controller"] == true)
        .map(|o| text(&o["uid"]))
        .next()
}

/// A text, empty where there is none.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
