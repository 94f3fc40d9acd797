//! What we keep of a pod: a few facts, taken at the edge.

use k8s_openapi::api::core::v1 as core;
use muster_api::labels;
use muster_model::{Millis, NodeName, ObjectKey, PodTerm, Resources, Uid, UnitId};
use std::collections::BTreeMap;

use crate::convert;

/// A pod's place in its gang: which unit, in which incarnation, and which of the unit's pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The unit.
    pub unit: UnitId,
    /// The unit's incarnation.
    pub incarnation: u64,
    /// The pod's index within the unit.
    pub index: u32,
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// Started.
    Running,
    /// All containers ended with 0.
    Succeeded,
    /// Ended otherwise, or refused by the kubelet.
    Failed,
}

/// How a pod ended, in raw terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodEnd {
    /// Exit code of the first container that failed, or of the last that ended; of an init container where the others
    /// never ran.
    pub exit_code: Option<i32>,
    /// Name of that container; empty if none ended.
    pub container: String,
    /// Whether it is an init container.
    pub init: bool,
    /// `status.reason`, or the container's (`OOMKilled`, `Evicted`, `OutOfcpu`, …).
    pub reason: String,
    /// `status.message`, or the container's termination message.
    pub message: String,
}

/// A pod's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Uid,
    /// The node it is bound to, or nominated for.
    pub node: Option<NodeName>,
    /// UID of the Gang that controls it.
    pub gang: Option<Uid>,
    /// Its place in that gang, from its labels.
    pub slot: Option<Slot>,
    /// What it uses on its node while not terminal (1 of `pods` included).
    pub requests: Resources,
    /// Its required anti-affinity: pods that it keeps away while not terminal.
    pub repels: Vec<PodTerm>,
    /// Phase.
    pub phase: PodPhase,
    /// It is being deleted.
    pub leaving: bool,
    /// The kubelet has taken it in (`status.startTime`).
    pub admitted: bool,
    /// A container has started at least once.
    pub started: bool,
    /// Ready condition.
    pub ready: bool,
    /// How it ended, when terminal.
    pub end: Option<PodEnd>,
    /// It has the `DisruptionTarget` condition: its reason.
    pub disruption: Option<String>,
    /// When it was created.
    pub created: Millis,
    /// The last checkpoint step that the job reported on it.
    pub checkpoint_step: Option<i64>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
}

impl PodFacts {
    /// Whether it is Succeeded or Failed: then it uses nothing of its node.
    pub fn terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether it carries the finalizer that keeps its result.
    pub fn held(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == labels::RESULT_FINALIZER)
    }

    /// The facts of a pod, and a sentence for each field that could not be read.
    pub fn of(pod: &core::Pod) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let meta = &pod.metadata;
        let key =
            ObjectKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let (no_status, no_spec) = (core::PodStatus::default(), core::PodSpec::default());
        let status = pod.status.as_ref().unwrap_or(&no_status);
        let spec = pod.spec.as_ref().unwrap_or(&no_spec);
        let requests = convert::pod_requests(spec, &allocated(status)).unwrap_or_else(|error| {
            warnings.push(format!("pod {key}: {error}; its requests count as nothing"));
            Resources::of([(muster_model::resources::PODS, 1)])
        });
        let gang = meta.owner_references.iter().flatten().find(|owner| {
            owner.controller == Some(true)
                && owner.kind == "Gang"
                && owner.api_version.starts_with(muster_api::common::GROUP)
        });
        let condition =
            |name: &str| status.conditions.iter().flatten().find(|c| c.type_ == name && c.status == "True");
        let phase = match status.phase.as_deref() {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            _ => PodPhase::Pending,
        };
        let facts = Self {
            uid: Uid(meta.uid.clone().unwrap_or_default()),
            node: spec.node_name.as_deref().or(status.nominated_node_name.as_deref()).map(NodeName::from),
            gang: gang.map(|owner| Uid(owner.uid.clone())),
            slot: gang.and_then(|_| slot(meta.labels.as_ref()?)),
            requests,
            repels: convert::repels(meta.namespace.as_deref().unwrap_or_default(), spec),
            phase,
            leaving: meta.deletion_timestamp.is_some(),
            admitted: status.start_time.is_some(),
            started: started(status),
            ready: condition("Ready").is_some(),
            end: matches!(phase, PodPhase::Succeeded | PodPhase::Failed).then(|| end(status)),
            disruption: condition("DisruptionTarget").map(|c| c.reason.clone().unwrap_or_default()),
            created: meta.creation_timestamp.as_ref().map_or(0, |t| t.0.as_millisecond()),
            checkpoint_step: meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(labels::CHECKPOINT_STEP))
                .and_then(|step| step.parse().ok()),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            key,
        };
        (facts, warnings)
    }
}

/// What the kubelet has allocated to each container (in-place resize).
fn allocated(status: &core::PodStatus) -> BTreeMap<String, Resources> {
    let containers = status.container_statuses.iter().flatten();
    containers
        .filter_map(|container| {
            let list = container.allocated_resources.as_ref()?;
            let texts = list.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str()));
            Some((container.name.clone(), Resources::parse(texts).ok()?))
        })
        .collect()
}

fn slot(labels_of: &BTreeMap<String, String>) -> Option<Slot> {
    Some(Slot {
        unit: UnitId {
            role: labels_of.get(labels::ROLE)?.clone(),
            index: labels_of.get(labels::UNIT)?.parse().ok()?,
        },
        incarnation: labels_of.get(labels::INCARNATION)?.parse().ok()?,
        index: labels_of.get(labels::INDEX)?.parse().ok()?,
    })
}

fn started(status: &core::PodStatus) -> bool {
    let containers = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    containers.into_iter().any(|container| {
        let ran = |state: Option<&core::ContainerState>| {
            state.is_some_and(|state| {
                state.running.is_some() || state.terminated.as_ref().is_some_and(|t| t.started_at.is_some())
            })
        };
        container.restart_count > 0 || ran(container.state.as_ref()) || ran(container.last_state.as_ref())
    })
}

fn end(status: &core::PodStatus) -> PodEnd {
    let ended = |list: &Option<Vec<core::ContainerStatus>>| {
        let all = list.iter().flatten();
        all.filter_map(|c| Some((c.name.clone(), c.state.as_ref()?.terminated.clone()?))).collect::<Vec<_>>()
    };
    let own = ended(&status.container_statuses);
    // Init containers explain a pod whose own containers never ran. Sidecars among them are ended with the pod.
    let init = own.is_empty();
    let ended = if init { ended(&status.init_container_statuses) } else { own };
    // The first that failed explains the pod; without one, the last that ended.
    let found = ended.iter().find(|(_, t)| t.exit_code != 0).or(ended.last().filter(|_| !init));
    let container = found.map(|(_, terminated)| terminated);
    let text = |own: &Option<String>, inner: Option<&Option<String>>| {
        own.clone().filter(|t| !t.is_empty()).or_else(|| inner.cloned().flatten()).unwrap_or_default()
    };
    PodEnd {
        exit_code: container.map(|t| t.exit_code),
        container: found.map(|(name, _)| name.clone()).unwrap_or_default(),
        init: init && found.is_some(),
        reason: text(&status.reason, container.map(|t| &t.reason)),
        message: text(&status.message, container.map(|t| &t.message)),
    }
}
