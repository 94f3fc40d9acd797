//! Kubernetes objects to model types. Bad input in one object never stops others: it is returned as a warning.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use muster_model::{
    Node, NodeName, NodeSelectorTerm, Operator, PodTerm, Preference, Requirement, Resources, Taint,
    TaintEffect, Toleration, TolerationOperator, Uid, resources,
};
use std::collections::BTreeMap;

use crate::features;

/// A node's facts, and a sentence for each field that could not be read (that resource counts as zero).
pub fn node(object: &core::Node) -> (Node, Vec<String>) {
    let mut warnings = Vec::new();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let status = object.status.as_ref();
    let spec = object.spec.as_ref();
    let allocatable = status.and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
    let mut amounts = Resources::default();
    for (resource, quantity) in allocatable.into_iter().flatten() {
        match amount(resource, quantity) {
            Ok(amount) => amounts.set(resource, amount),
            Err(error) => {
                warnings.push(format!("node {name}: status.allocatable[{resource}]: {error}; counted as 0"));
            }
        }
    }
    if !amounts.0.contains_key(resources::PODS) {
        // Kubelets always report it; a hand-written node may not. 110 is the kubelet's default.
        amounts.set(resources::PODS, 110);
    }
    let taints = spec.and_then(|s| s.taints.as_ref()).into_iter().flatten();
    let mut labels = object.metadata.labels.clone().unwrap_or_default();
    labels.extend(status.into_iter().flat_map(features::declared));
    let node = Node {
        name: NodeName::from(name),
        uid: Uid(object.metadata.uid.clone().unwrap_or_default()),
        labels,
        taints: taints.filter_map(taint).collect(),
        allocatable: amounts,
        ready: status
            .and_then(|s| s.conditions.as_ref())
            .is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True")),
        cordoned: spec.and_then(|s| s.unschedulable).unwrap_or(false),
    };
    (node, warnings)
}

fn amount(resource: &str, quantity: &Quantity) -> Result<i64, String> {
    let parse = if resource == resources::CPU {
        muster_model::quantity::parse_milli
    } else {
        muster_model::quantity::parse_units
    };
    let bounded = |error: String| crate::text::bounded(&error, crate::text::MESSAGE);
    let amount = parse(&quantity.0).map_err(|error| bounded(error.to_string()))?;
    if amount < 0 { Err(bounded(format!("{:?} is negative", quantity.0))) } else { Ok(amount) }
}

fn effect(text: &str) -> Option<TaintEffect> {
    match text {
        "NoSchedule" => Some(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Some(TaintEffect::PreferNoSchedule),
        "NoExecute" => Some(TaintEffect::NoExecute),
        _ => None,
    }
}

/// A taint with an effect that we do not know does nothing, as in Kubernetes.
fn taint(taint: &core::Taint) -> Option<Taint> {
    Some(Taint {
        key: taint.key.clone(),
        value: taint.value.clone().unwrap_or_default(),
        effect: effect(&taint.effect)?,
    })
}

/// The tolerations of a pod. One whose operator or effect does not exist tolerates nothing, as in Kubernetes.
pub fn tolerations(spec: &core::PodSpec) -> Vec<Toleration> {
    spec.tolerations.iter().flatten().filter_map(toleration).collect()
}

fn toleration(t: &core::Toleration) -> Option<Toleration> {
    let effect = match t.effect.as_deref() {
        None | Some("") => None,
        Some(text) => Some(effect(text)?),
    };
    let operator = match t.operator.as_deref() {
        None | Some("" | "Equal") => TolerationOperator::Equal,
        Some("Exists") => TolerationOperator::Exists,
        Some("Lt") => TolerationOperator::Lt,
        Some("Gt") => TolerationOperator::Gt,
        Some(_) => return None,
    };
    let key = t.key.clone().filter(|key| !key.is_empty());
    Some(Toleration { key, operator, value: t.value.clone().unwrap_or_default(), effect })
}

/// The labels that a pod's node must have: those of its selector, and those for features that the node must declare.
pub fn node_selector(spec: &core::PodSpec) -> BTreeMap<String, String> {
    let stated = spec.node_selector.clone().unwrap_or_default();
    stated.into_iter().chain(features::needed(spec)).collect()
}

/// The required node affinity of a pod.
pub fn affinity(spec: &core::PodSpec) -> Vec<NodeSelectorTerm> {
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|selector| selector.node_selector_terms.as_slice());
    terms.unwrap_or_default().iter().map(term).collect()
}

/// The preferred node affinity of a pod. Terms without a positive weight or without a requirement say nothing.
pub fn preferences(spec: &core::PodSpec) -> Vec<Preference> {
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref());
    let all = terms
        .unwrap_or_default()
        .iter()
        .map(|wish| Preference { weight: wish.weight.max(0).unsigned_abs(), term: term(&wish.preference) });
    all.filter(|wish| wish.weight > 0 && !wish.term.requirements.is_empty()).collect()
}

/// A term of a node selector.
pub fn term(term: &core::NodeSelectorTerm) -> NodeSelectorTerm {
    let labels = term.match_expressions.iter().flatten().map(|r| requirement(r, false));
    let fields = term.match_fields.iter().flatten().map(|r| requirement(r, true));
    NodeSelectorTerm { requirements: labels.chain(fields).collect() }
}

/// A label requirement of Kubernetes. An operator that does not exist matches nothing (the API server refuses it).
pub fn requirement(r: &core::NodeSelectorRequirement, field: bool) -> Requirement {
    let (operator, values) = match r.operator.as_str() {
        "NotIn" => (Operator::NotIn, r.values.clone()),
        "Exists" => (Operator::Exists, None),
        "DoesNotExist" => (Operator::DoesNotExist, None),
        "Gt" => (Operator::Gt, r.values.clone()),
        "Lt" => (Operator::Lt, r.values.clone()),
        "In" => (Operator::In, r.values.clone()),
        _ => (Operator::In, None),
    };
    Requirement { key: r.key.clone(), operator, values: values.unwrap_or_default(), field }
}

/// The required anti-affinity of a pod in a namespace: the pods that it keeps out of its domain. A selector of
/// namespaces by their labels is taken to select every namespace, since namespaces are not watched: some pods are kept
/// away that need not be, none comes where it may not.
pub fn repels(namespace: &str, spec: &core::PodSpec) -> Vec<PodTerm> {
    let terms = spec
        .affinity
        .as_ref()
        .and_then(|a| a.pod_anti_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref());
    let of = |term: &core::PodAffinityTerm| {
        let listed = term.namespaces.clone().unwrap_or_default();
        let namespaces = match (&term.namespace_selector, listed.is_empty()) {
            (Some(_), _) => None,
            (None, true) => Some(vec![namespace.to_owned()]),
            (None, false) => Some(listed),
        };
        // Without a selector a term selects no pod at all.
        let requirements = label_requirements(term.label_selector.as_ref()?);
        Some(PodTerm { namespaces, requirements, topology_key: term.topology_key.clone() })
    };
    terms.unwrap_or_default().iter().filter_map(of).collect()
}

fn label_requirements(selector: &LabelSelector) -> Vec<Requirement> {
    let equal = selector.match_labels.iter().flatten();
    let equal = equal.map(|(key, value)| Requirement::label_in(key, &[value]));
    let others = selector.match_expressions.iter().flatten().map(|r| {
        let (operator, values) = match r.operator.as_str() {
            "NotIn" => (Operator::NotIn, r.values.clone()),
            "Exists" => (Operator::Exists, None),
            "DoesNotExist" => (Operator::DoesNotExist, None),
            _ => (Operator::In, r.values.clone()),
        };
        Requirement { key: r.key.clone(), operator, values: values.unwrap_or_default(), field: false }
    });
    equal.chain(others).collect()
}

/// The host ports of a pod, counted like resources: those of containers and of sidecars. With the host's network
/// every port of a container is one of the host, as the API server writes into pods.
fn host_ports(spec: &core::PodSpec) -> Resources {
    let shares_network = spec.host_network == Some(true);
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut all = Resources::default();
    for port in spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten()) {
        let number = match port.host_port.unwrap_or(0) {
            0 if shares_network => port.container_port,
            given => given,
        };
        if number > 0 {
            let protocol = port.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP");
            let address = port.host_ip.as_deref().unwrap_or_default();
            for (name, amount) in resources::host_port(protocol, number, address) {
                all.maximum(&Resources::of([(name.as_str(), amount)]));
            }
        }
    }
    all
}

/// What a pod requests, as kube-scheduler and the kubelet count it: the larger of the sum over containers (with
/// sidecars) and the peak during initialisation, plus overhead; pod-level requests replace what they name.
/// `allocated` gives what the kubelet has allocated to a container already, which counts where it is more.
/// One of `pods` is included, and so are host ports.
///
/// # Errors
/// The field and why it cannot be read.
pub fn pod_requests(
    spec: &core::PodSpec,
    allocated: &BTreeMap<String, Resources>,
) -> Result<Resources, String> {
    let mut steady = Resources::default();
    for container in &spec.containers {
        let mut own = container_requests(container, "containers")?;
        if let Some(more) = allocated.get(&container.name) {
            own.maximum(more);
        }
        steady.add(&own);
    }
    // Init containers run one after the other; those that restart (sidecars) stay beside all that follow.
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let own = container_requests(container, "initContainers")?;
        let mut during = sidecars.clone();
        during.add(&own);
        peak.maximum(&during);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&own);
        }
    }
    steady.add(&sidecars);
    steady.maximum(&peak);
    if let Some(pod_level) = &spec.resources {
        for (name, quantity) in requested(pod_level.requests.as_ref(), pod_level.limits.as_ref()) {
            let value = amount(name, quantity).map_err(|e| format!("spec.resources[{name}]: {e}"))?;
            steady.set(name, value);
        }
    }
    for (name, quantity) in spec.overhead.iter().flatten() {
        let value = amount(name, quantity).map_err(|e| format!("spec.overhead[{name}]: {e}"))?;
        steady.add(&Resources::of([(name.as_str(), value)]));
    }
    steady.add(&host_ports(spec));
    steady.set(resources::PODS, 1);
    Ok(steady)
}

/// Requests, and limits where no request is given (Kubernetes defaults the one from the other).
fn requested<'a>(
    requests: Option<&'a BTreeMap<String, Quantity>>,
    limits: Option<&'a BTreeMap<String, Quantity>>,
) -> impl Iterator<Item = (&'a String, &'a Quantity)> {
    let given = move |name: &String| requests.is_some_and(|all| all.contains_key(name));
    requests.into_iter().flatten().chain(limits.into_iter().flatten().filter(move |(name, _)| !given(name)))
}

fn container_requests(container: &core::Container, list: &str) -> Result<Resources, String> {
    let mut all = Resources::default();
    if let Some(given) = &container.resources {
        for (name, quantity) in requested(given.requests.as_ref(), given.limits.as_ref()) {
            let value = amount(name, quantity)
                .map_err(|e| format!("spec.{list}[{}].resources[{name}]: {e}", container.name))?;
            all.set(name, value);
        }
    }
    Ok(all)
}
