//! What we keep of a pod: a few facts, taken at the edge.

use k8s_openapi::api::core::v1 as core;
use muster_api::{labels, names};
use muster_model::{Millis, NodeName, ObjectKey, PodTerm, Resources, Slot, Uid, UnitId};
use std::collections::BTreeMap;

use crate::{convert, text};

mod ends;

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
    /// Exit code of `container`.
    pub exit_code: Option<i32>,
    /// Name of the container that explains the end: the init container that failed, the one that decides, the first
    /// that failed, or the last that ended.
    pub container: Option<String>,
    /// It is an init container: the program itself never ran.
    pub init: bool,
    /// It is the container that decides, and the program ended by itself: nobody evicted, deleted or killed the pod.
    pub decides: bool,
    /// `status.reason`, or the container's (`OOMKilled`, `Evicted`, `OutOfcpu`, …); bounded.
    pub reason: String,
    /// `status.message`, or the container's termination message; bounded.
    pub message: String,
}

/// How a pod has ended, whatever its phase says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// The program ended with 0.
    Succeeded,
    /// It ended otherwise, or was refused or killed.
    Failed,
}

/// What keeps a pod from starting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The container that waits; `None`: the pod as a whole.
    pub container: Option<String>,
    /// One word, such as `ErrImagePull`, `CreateContainerConfigError` or `Unschedulable`; bounded.
    pub reason: String,
    /// What the kubelet or kube-scheduler says; bounded.
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
    /// Its place in that gang as its labels say; [`Self::planned_slot`] is what counts.
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
    /// How it ended: when terminal, and when the container that decides has ended while others run on.
    pub end: Option<PodEnd>,
    /// What keeps it or a container of it from starting, beyond the usual steps. How long it has done so, the API does
    /// not say.
    pub waiting: Option<Waiting>,
    /// It has the `DisruptionTarget` condition: its reason; bounded.
    pub disruption: Option<String>,
    /// When it was created.
    pub created: Millis,
    /// The last checkpoint step that the job reported on it, 0 to [`MAX_STEP`].
    pub checkpoint_step: Option<i64>,
    /// Its finalizers.
    pub finalizers: Vec<String>,
}

/// Highest checkpoint step that is believed: more than any training has, and far from where sums overflow.
pub const MAX_STEP: i64 = 1_000_000_000_000;

impl PodFacts {
    /// Its place in a gang with these roles, if it is one of the gang's own: by its controller's UID, its namespace and its
    /// name. Labels prove nothing (anybody may change them), and anybody may name a controller: what names a gang and is
    /// not its own is somebody else's pod. Whether the plan has that place, and on which node, is another question.
    pub fn planned_slot<'a>(
        &self,
        gang: &ObjectKey,
        uid: &Uid,
        roles: impl IntoIterator<Item = &'a str>,
    ) -> Option<Slot> {
        if self.gang.as_ref() != Some(uid) || self.key.namespace != gang.namespace {
            return None;
        }
        let roles: Vec<&str> = roles.into_iter().collect();
        let (role, unit, incarnation, index) = names::place(&gang.name, uid, &roles, &self.key.name)?;
        Some(Slot { unit: UnitId { role: role.to_owned(), index: unit }, incarnation, index })
    }

    /// How it has ended; `None` while it goes on. The container that decides may have ended in a pod that runs on, which
    /// uses its node until it is deleted; and it may have ended well in a pod that failed.
    pub fn outcome(&self) -> Option<PodOutcome> {
        let well = |end: &PodEnd| end.decides && end.exit_code == Some(0);
        match (self.phase, &self.end) {
            (PodPhase::Succeeded, _) => Some(PodOutcome::Succeeded),
            (_, Some(end)) if well(end) => Some(PodOutcome::Succeeded),
            (PodPhase::Failed, _) | (_, Some(_)) => Some(PodOutcome::Failed),
            (PodPhase::Pending | PodPhase::Running, None) => None,
        }
    }

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
            end: ends::end(phase, meta, spec, status),
            waiting: ends::waiting(phase, status),
            disruption: condition("DisruptionTarget")
                .map(|c| text::bounded(c.reason.as_deref().unwrap_or_default(), text::REASON)),
            created: meta.creation_timestamp.as_ref().map_or(0, |t| t.0.as_millisecond()),
            checkpoint_step: meta
                .annotations
                .as_ref()
                .and_then(|all| all.get(labels::CHECKPOINT_STEP))
                .and_then(|step| step.parse().ok())
                .filter(|step| (0..=MAX_STEP).contains(step)),
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
