//! How a pod ended, and what keeps one from starting.
//!
//! ```text
//!   init containers, containers, the pod ──▶ the one that explains the end: PodEnd
//!   state.waiting, PodScheduled=False ──▶ Waiting
//! ```

use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::labels;

use super::{PodEnd, PodPhase, Waiting};
use crate::text::{self, MESSAGE, REASON};

/// Waiting reasons of every pod on its way.
const USUAL: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// How a pod ended. The container that the pod's annotation names decides, also while others run on; an init container
/// that failed explains why it never ran.
pub(super) fn end(phase: PodPhase, meta: &ObjectMeta, spec: &PodSpec, status: &PodStatus) -> Option<PodEnd> {
    let named = meta.annotations.as_ref().and_then(|all| all.get(labels::CONTAINER));
    let deciding = status.container_statuses.iter().flatten().find(|own| Some(&own.name) == named);
    let deciding = deciding.and_then(|own| Some((own, terminated(own)?)));
    let disrupted = |condition: &k8s_openapi::api::core::v1::PodCondition| {
        condition.type_ == "DisruptionTarget" && condition.status == "True"
    };
    let by_itself = meta.deletion_timestamp.is_none()
        && status.reason.as_deref().unwrap_or_default().is_empty()
        && !status.conditions.iter().flatten().any(disrupted);
    match phase {
        PodPhase::Pending => None,
        PodPhase::Running => {
            let (own, ended) = deciding.filter(|(own, _)| by_itself && !restarts(&own.name, spec))?;
            Some(PodEnd { decides: true, ..of(own, ended, status) })
        }
        PodPhase::Succeeded | PodPhase::Failed => {
            if let Some((own, ended)) = failed_init(spec, status) {
                return Some(PodEnd { init: true, ..of(own, ended, status) });
            }
            if let Some((own, ended)) = deciding {
                return Some(PodEnd { decides: by_itself, ..of(own, ended, status) });
            }
            let all = status.container_statuses.iter().flatten();
            let ended: Vec<_> = all.filter_map(|own| Some((own, terminated(own)?))).collect();
            // The first that failed explains the pod; without one, the last that ended.
            let one = ended.iter().find(|(_, ended)| ended.exit_code != 0).or(ended.last());
            Some(one.map_or_else(
                || PodEnd {
                    reason: text::bounded(status.reason.as_deref().unwrap_or_default(), REASON),
                    message: text::bounded(status.message.as_deref().unwrap_or_default(), MESSAGE),
                    ..PodEnd::default()
                },
                |(own, ended)| of(own, ended, status),
            ))
        }
    }
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// The end of one container. What the pod says of itself comes first: it knows of evictions.
fn of(own: &ContainerStatus, ended: &ContainerStateTerminated, status: &PodStatus) -> PodEnd {
    let text = |of_pod: &Option<String>, inner: &Option<String>, most: usize| {
        let of_pod = of_pod.as_deref().filter(|text| !text.is_empty());
        text::bounded(of_pod.or(inner.as_deref()).unwrap_or_default(), most)
    };
    PodEnd {
        exit_code: Some(ended.exit_code),
        container: Some(own.name.clone()),
        reason: text(&status.reason, &ended.reason, REASON),
        message: text(&status.message, &ended.message, MESSAGE),
        ..PodEnd::default()
    }
}

/// The init container that failed, where no other container was ever started because of it. Sidecars are none: they run
/// beside the others.
fn failed_init<'a>(
    spec: &PodSpec,
    status: &'a PodStatus,
) -> Option<(&'a ContainerStatus, &'a ContainerStateTerminated)> {
    let ran = |own: &ContainerStatus| {
        own.state.as_ref().is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    };
    if status.container_statuses.iter().flatten().any(ran) {
        return None;
    }
    let sidecar = |name: &str| {
        let mut all = spec.init_containers.iter().flatten();
        all.any(|container| container.name == name && container.restart_policy.as_deref() == Some("Always"))
    };
    let failed = status.init_container_statuses.iter().flatten().filter(|own| !sidecar(&own.name));
    failed.filter_map(|own| Some((own, terminated(own)?))).find(|(_, ended)| ended.exit_code != 0)
}

/// Whether a container may start again although the pod's restartPolicy is Never.
fn restarts(name: &str, spec: &PodSpec) -> bool {
    let own = |container: &&Container| container.name == name;
    spec.containers.iter().find(own).is_some_and(|container| {
        container.restart_policy.as_deref().is_some_and(|policy| policy != "Never")
            || container.restart_policy_rules.as_ref().is_some_and(|rules| !rules.is_empty())
    })
}

/// What keeps a pod from starting: the first container with an unusual reason, in the order in which they start; else
/// that it has no node; else what the pod says of itself.
pub(super) fn waiting(phase: PodPhase, status: &PodStatus) -> Option<Waiting> {
    if matches!(phase, PodPhase::Succeeded | PodPhase::Failed) {
        return None;
    }
    let say = |container: Option<&str>, reason: Option<&str>, message: Option<&str>| Waiting {
        container: container.map(str::to_owned),
        reason: text::bounded(reason.unwrap_or_default(), REASON),
        message: text::bounded(message.unwrap_or_default(), MESSAGE),
    };
    let inits = status.init_container_statuses.iter().flatten();
    for own in inits.chain(status.container_statuses.iter().flatten()) {
        let Some(waits) = own.state.as_ref().and_then(|state| state.waiting.as_ref()) else { continue };
        if !USUAL.contains(&waits.reason.as_deref().unwrap_or_default()) {
            return Some(say(Some(&own.name), waits.reason.as_deref(), waits.message.as_deref()));
        }
    }
    let mut conditions = status.conditions.iter().flatten();
    if let Some(unbound) = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False") {
        return Some(say(None, unbound.reason.as_deref(), unbound.message.as_deref()));
    }
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
    reason.map(|reason| say(None, Some(reason), status.message.as_deref()))
}
