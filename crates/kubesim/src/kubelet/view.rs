//! The part of a Pod that a kubelet acts on; whole Pods are not kept.
//!
//! ```text
//! Pod ──► PodView { requests, affinity, tolerations, containers, deletion, … } ──► admission, node
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, NodeSelectorTerm, Pod, PodSpec, ResourceRequirements, Toleration,
};

use super::quantity::{self, Amounts, QuantityError};

/// `spec.restartPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// Restart whatever the exit code.
    #[default]
    Always,
    /// Restart after a non-zero code.
    OnFailure,
    /// Never restart.
    Never,
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerView {
    /// Its name.
    pub name: String,
    /// Its image, repeated in the status.
    pub image: String,
    /// An init container with `restartPolicy: Always`.
    pub sidecar: bool,
}

/// What the API server says about a container that another life of this kubelet started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorRun {
    /// When it started, if it runs.
    pub running_since: Option<Timestamp>,
    /// Its exit code, if it has ended.
    pub exit_code: Option<i32>,
    /// Restarts so far.
    pub restarts: u32,
}

/// `metadata.deletionTimestamp` and its grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// By when the pod shall have ended.
    pub at: Timestamp,
    /// The grace period that led to `at`.
    pub grace: Duration,
}

/// A pod as a kubelet, or a scheduler, sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct PodView {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// `spec.schedulerName`.
    pub scheduler: String,
    /// What the pod counts for: the larger of its init phase and its running phase, and overhead.
    pub requests: Amounts,
    /// `spec.nodeSelector`.
    pub node_selector: BTreeMap<String, String>,
    /// The required node affinity; `None` where the pod has none.
    pub affinity: Option<Vec<NodeSelectorTerm>>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `spec.restartPolicy`.
    pub restart_policy: RestartPolicy,
    /// `spec.initContainers` that are not sidecars.
    pub init: Vec<ContainerView>,
    /// `spec.containers`, sidecars first.
    pub containers: Vec<ContainerView>,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Duration,
    /// `spec.activeDeadlineSeconds`.
    pub active_deadline: Option<Duration>,
    /// `spec.hostNetwork`.
    pub host_network: bool,
    /// Set once the pod is leaving.
    pub deletion: Option<Deletion>,
    /// `status.phase`; empty before the first write.
    pub phase: String,
    /// `status.startTime`.
    pub start_time: Option<Timestamp>,
    /// `status.podIP`.
    pub pod_ip: Option<String>,
    /// Whether `spec.schedulingGates` holds the pod back.
    pub gated: bool,
    /// Containers that the status says were started, by name.
    pub prior: BTreeMap<String, PriorRun>,
}

/// Kubernetes' default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

impl PodView {
    /// Reads a pod; fails on a quantity that the API server would have refused.
    pub fn new(pod: Pod) -> Result<Self, QuantityError> {
        let (meta, spec, status) =
            (pod.metadata, pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let seconds = |s: i64| Duration::from_secs(u64::try_from(s).unwrap_or(0));
        let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        let deletion = meta.deletion_timestamp.map(|at| Deletion {
            at: at.0,
            grace: seconds(meta.deletion_grace_period_seconds.unwrap_or(grace)),
        });
        let requests = requests(&spec)?;
        let mut init = containers(spec.init_containers.as_deref().unwrap_or_default());
        let mut running: Vec<_> = init.extract_if(.., |c| c.sidecar).collect();
        running.extend(containers(&spec.containers));
        let statuses = status.init_container_statuses.into_iter().chain(status.container_statuses);
        Ok(Self {
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            node: spec.node_name.filter(|n| !n.is_empty()),
            scheduler: spec.scheduler_name.unwrap_or_default(),
            requests,
            node_selector: spec.node_selector.unwrap_or_default(),
            affinity: spec
                .affinity
                .and_then(|a| a.node_affinity)
                .and_then(|a| a.required_during_scheduling_ignored_during_execution)
                .map(|required| required.node_selector_terms),
            tolerations: spec.tolerations.unwrap_or_default(),
            restart_policy: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            init,
            containers: running,
            grace: seconds(grace),
            active_deadline: spec.active_deadline_seconds.map(seconds),
            host_network: spec.host_network.unwrap_or(false),
            deletion,
            phase: status.phase.unwrap_or_default(),
            start_time: status.start_time.map(|t| t.0),
            pod_ip: status.pod_ip,
            gated: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
            prior: statuses.flatten().filter_map(prior_run).collect(),
        })
    }

    /// Whether the status says the pod has ended.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }
}

fn containers(list: &[Container]) -> Vec<ContainerView> {
    list.iter()
        .map(|c| ContainerView {
            name: c.name.clone(),
            image: c.image.clone().unwrap_or_default(),
            sidecar: is_sidecar(c),
        })
        .collect()
}

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn prior_run(status: ContainerStatus) -> Option<(String, PriorRun)> {
    let state = status.state?;
    let running_since = state.running.map(|r| r.started_at.map_or(Timestamp::UNIX_EPOCH, |t| t.0));
    let exit_code = state.terminated.map(|t| t.exit_code);
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let started = running_since.is_some() || exit_code.is_some() || restarts > 0;
    started.then_some((status.name, PriorRun { running_since, exit_code, restarts }))
}

/// The requests a kubelet and the scheduler count: max(containers + sidecars, each init container +
/// the sidecars started before it) + overhead (KEP-753).
fn requests(spec: &PodSpec) -> Result<Amounts, QuantityError> {
    let mut sidecars = Amounts::new();
    let mut init_peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut own = container_requests(container.resources.as_ref())?;
        if is_sidecar(container) {
            quantity::add(&mut sidecars, &own);
            quantity::raise(&mut init_peak, &sidecars);
        } else {
            quantity::add(&mut own, &sidecars);
            quantity::raise(&mut init_peak, &own);
        }
    }
    let mut total = sidecars;
    for container in &spec.containers {
        quantity::add(&mut total, &container_requests(container.resources.as_ref())?);
    }
    quantity::raise(&mut total, &init_peak);
    // Pod-level resources stand instead of the containers' sum (KEP-2837).
    total.extend(container_requests(spec.resources.as_ref())?);
    if let Some(overhead) = &spec.overhead {
        quantity::add(&mut total, &quantity::parse_list(overhead)?);
    }
    Ok(total)
}

/// A limit without a request is the request, as the API server defaults it.
fn container_requests(resources: Option<&ResourceRequirements>) -> Result<Amounts, QuantityError> {
    let mut amounts = Amounts::new();
    if let Some(limits) = resources.and_then(|r| r.limits.as_ref()) {
        amounts = quantity::parse_list(limits)?;
    }
    if let Some(requests) = resources.and_then(|r| r.requests.as_ref()) {
        amounts.extend(quantity::parse_list(requests)?);
    }
    Ok(amounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn view(spec: serde_json::Value) -> PodView {
        let mut pod = json!({"metadata": {"name": "p"}});
        pod["spec"] = spec;
        PodView::new(serde_json::from_value(pod).expect("a pod")).expect("valid quantities")
    }

    #[test]
    fn init_sidecars_and_overhead_count_as_a_scheduler_counts_them() {
        let container = |name: &str, cpu: &str, gpus: &str, sidecar: bool| {
            let mut c =
                json!({"name": name, "resources": {"requests": {"cpu": cpu, "nvidia.com/gpu": gpus}}});
            if sidecar {
                c["restartPolicy"] = json!("Always");
            }
            c
        };
        let pod = view(json!({
            "initContainers": [container("early", "6", "0", false), container("mesh", "1", "0", true),
                               container("late", "6", "2", false)],
            "containers": [container("a", "2", "1", false), container("b", "3", "0", false)],
            "overhead": {"cpu": "250m"},
        }));
        // The late init container runs beside the sidecar: 6 + 1, more than 2 + 3 + 1.
        assert_eq!(pod.requests["cpu"], 7250);
        assert_eq!(pod.requests["nvidia.com/gpu"], 2);
        assert_eq!(pod.containers.len(), 3);
        assert_eq!(pod.init.len(), 2);
    }

    #[test]
    fn a_limit_alone_is_a_request() {
        let pod =
            view(json!({"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}));
        assert_eq!(pod.requests["nvidia.com/gpu"], 4);
    }
}
