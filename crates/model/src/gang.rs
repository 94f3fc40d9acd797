//! A gang as the engine sees it: units of identical pods, nested segments, and nothing of tensor or expert parallelism.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Millis, NodeName, NodeSelectorTerm, ObjectKey, Plan, Preference, RecoveryStep, Requirement, Resources,
    Rules, Toleration, Uid, UnitId,
};

/// Whether a placement rule binds or is only wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// A plan that breaks it is refused.
    Required,
    /// Plans that break fewer blocks are better.
    Preferred,
}

/// Each contiguous block of `pods` pods of a unit, in unit-local order, lies in one domain of `level`.
/// Sizes divide each other and the unit; levels do not shrink as sizes grow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Segment {
    /// Block size in pods.
    pub pods: u32,
    /// Name of the topology level.
    pub level: String,
    /// Required or Preferred.
    pub mode: Mode,
}

/// The whole gang, all roles, in one domain of `level`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Within {
    /// Name of the topology level.
    pub level: String,
    /// Required or Preferred.
    pub mode: Mode,
}

/// A kind of accelerator card, as far as placing needs it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AcceleratorClass {
    /// Name, such as `h100`.
    pub name: String,
    /// Extended resource that nodes advertise, such as `nvidia.com/gpu`.
    pub resource: String,
    /// What a node's labels must satisfy to be of this class; all of them. Empty: every node with the resource.
    pub requirements: Vec<Requirement>,
}

/// What of a pod matters rarely to where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodTraits {
    /// Labels of the pods, by which anti-affinity of pods that are there may keep them away.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Preferred node affinity. It never blocks.
    #[serde(default)]
    pub preferred: Vec<Preference>,
}

/// One pod shape and how many of it make a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Name, such as `worker`; unique in the gang.
    pub name: String,
    /// What one pod requests, accelerators excluded.
    pub requests: Resources,
    /// Accelerators of one pod; the resource's name comes from the class. 0 for a pod without any.
    pub devices: u32,
    /// Labels that a node must have.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity: one of the terms must match; empty means no constraint.
    #[serde(default)]
    pub affinity: Vec<NodeSelectorTerm>,
    /// Tolerations.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// Labels and preferences.
    #[serde(default)]
    pub traits: PodTraits,
    /// Pods in a unit.
    pub pods_per_unit: u32,
    /// Fewest units with which the gang runs.
    pub min: u32,
    /// Most units it can use.
    pub max: u32,
    /// The unit counts between `min` and `max` that are allowed; empty allows all.
    #[serde(default)]
    pub valid: Vec<u32>,
    /// Placement rules, sizes ascending.
    #[serde(default)]
    pub segments: Vec<Segment>,
    /// Spare pods' worth of nodes to hold near the units. Fewer are held where they would cost units.
    #[serde(default)]
    pub spares: u32,
}

impl Role {
    /// The largest allowed number of units that is at most `limit`; `None` if that is below `min`.
    pub fn allowed_at_most(&self, limit: u32) -> Option<u32> {
        let limit = limit.min(self.max);
        let best = if self.valid.is_empty() {
            Some(limit)
        } else {
            self.valid.iter().copied().filter(|n| *n <= limit).max()
        };
        best.filter(|n| *n >= self.min)
    }

    /// What one pod requests when its accelerators are of `class`; each pod also uses one of the node's pod slots.
    pub fn pod_requests(&self, class: Option<&AcceleratorClass>) -> Resources {
        let mut all = self.requests.clone();
        all.set(crate::resources::PODS, 1);
        if let (Some(class), true) = (class, self.devices > 0) {
            all.set(&class.resource, i64::from(self.devices));
        }
        all
    }
}

/// What the gang asks of the engine now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangState {
    /// Suspended, finished or leaving: it holds no planned capacity and asks for none.
    Inactive,
    /// It holds nothing and wants a placement.
    Waiting,
    /// It holds the nodes of its plan.
    Holding(Plan),
    /// It holds the nodes of its plan but for the lost units, which want other nodes.
    Replan {
        /// The plan in force.
        plan: Plan,
        /// The units that cannot go on where they are.
        lost: BTreeSet<UnitId>,
        /// What the new plan may be, tried in this order: `ReplaceNode`, `Shrink`, and `Requeue`, by which the whole gang
        /// is placed anew and after which nothing is tried. `RestartInPlace` needs no other place and is passed over.
        steps: Vec<RecoveryStep>,
    },
}

/// A gang: the engine's only unit of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gang {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID: another gang of the same name is another gang.
    pub uid: Uid,
    /// Queue it is charged to.
    pub queue: String,
    /// Priority; higher goes first.
    pub priority: i32,
    /// When it began to wait: among equal priorities the earlier goes first.
    pub since: Millis,
    /// Accelerator classes it may use, best first. Empty for a gang without accelerators. Never mixed inside a unit.
    pub classes: Vec<AcceleratorClass>,
    /// Its roles, at least one.
    pub roles: Vec<Role>,
    /// A rule for the whole gang.
    #[serde(default)]
    pub within: Option<Within>,
    /// Rules between roles and between units.
    #[serde(default)]
    pub rules: Rules,
    /// Nodes not to use for new pods (they refused pods of this gang lately).
    #[serde(default)]
    pub avoid: BTreeSet<NodeName>,
    /// What it asks now.
    pub state: GangState,
}
