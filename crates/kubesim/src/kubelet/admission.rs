//! Whether a node takes a pod: a kubelet's admission, and the node rules a scheduler shares with it.
//!
//! ```text
//! PodView + NodeFacts + amounts in use ──► admit ──► Ok, or Refusal { reason, message }
//! ```
//!
//! Reasons and messages follow kubernetes/pkg/kubelet/lifecycle and pkg/kubelet/cm/devicemanager,
//! version 1.37.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

use super::quantity::Amounts;
use super::view::PodView;

/// What a node says about itself, as far as placing a pod depends on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `status.allocatable`.
    pub allocatable: Amounts,
}

/// Why a pod was not admitted; becomes `status.reason` and `status.message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For example `OutOfcpu`.
    pub reason: String,
    /// The kubelet's words.
    pub message: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, detail: &str) -> Self {
        Self { reason: reason.into(), message: format!("Pod was rejected: {detail}") }
    }
}

/// A kubelet's admission of `pod` beside pods that use `used`.
///
/// # Errors
/// The refusal that ends the pod.
pub fn admit(pod: &PodView, node: &NodeFacts, used: &Amounts) -> Result<(), Refusal> {
    devices(pod, node)?;
    if let Some(short) = shortage(pod, node, used) {
        return Err(Refusal::new(format!("OutOf{}", short.resource), &short.to_string()));
    }
    if !node_matches(pod, node) {
        let detail = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return Err(Refusal::new("NodeAffinity", detail));
    }
    // A kubelet leaves NoSchedule to the scheduler.
    if untolerated(pod, node, &["NoExecute"]).is_some() {
        let detail = "Predicate TaintToleration failed: node(s) had untolerated taint(s)";
        return Err(Refusal::new("TaintToleration", detail));
    }
    Ok(())
}

/// The device manager's refusal: fewer healthy devices than one pod asks for. Devices in use by
/// other pods show up as `OutOf<resource>` instead.
fn devices(pod: &PodView, node: &NodeFacts) -> Result<(), Refusal> {
    for (resource, &wanted) in pod.requests.iter().filter(|(name, _)| is_extended(name)) {
        // A resource nobody registered on the node is unknown to its device manager: the pod starts without it.
        let Some(&have) = node.allocatable.get(resource) else { continue };
        if wanted > have {
            let detail = format!(
                "Allocate failed due to requested number of devices unavailable for {resource}. \
                 Requested: {wanted}, Available: {have}, which is unexpected"
            );
            return Err(Refusal::new("UnexpectedAdmissionError", &detail));
        }
    }
    Ok(())
}

/// A resource served by device plugins: a name with a domain that is not Kubernetes' own.
pub fn is_extended(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, _)| {
        domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io") && !domain.starts_with("requests.")
    })
}

/// The resource that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// Its name.
    pub resource: String,
    /// What the pod asks for.
    pub requested: i64,
    /// What is in use.
    pub used: i64,
    /// The node's allocatable.
    pub capacity: i64,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { resource, requested, used, capacity } = self;
        write!(
            f,
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
        )
    }
}

/// The order in which Kubernetes looks; everything else follows by name.
const FIRST: [&str; 4] = ["pods", "cpu", "memory", "ephemeral-storage"];

/// The first resource of which `node` has too little for `pod`; a node without an extended
/// resource is no shortage for its kubelet (see [`admit`]), but is one for a scheduler.
pub fn shortage(pod: &PodView, node: &NodeFacts, used: &Amounts) -> Option<Shortage> {
    let others = pod.requests.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    FIRST.into_iter().chain(others).find_map(|resource| {
        let requested = if resource == "pods" { 1 } else { pod.requests.get(resource).copied().unwrap_or(0) };
        let capacity = match node.allocatable.get(resource) {
            Some(&capacity) => capacity,
            None if is_extended(resource) => return None,
            None => 0,
        };
        let used = used.get(resource).copied().unwrap_or(0);
        (requested > 0 && requested > capacity - used).then(|| Shortage {
            resource: resource.to_owned(),
            requested,
            used,
            capacity,
        })
    })
}

/// Node selector and required node affinity.
pub fn node_matches(pod: &PodView, node: &NodeFacts) -> bool {
    pod.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
        && pod.affinity.as_ref().is_none_or(|terms| terms.iter().any(|term| term_matches(term, node)))
}

/// A term without any requirement matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &NodeFacts) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|r| requirement_holds(r, node.labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && requirement_holds(r, Some(&node.name)))
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|v| values.iter().any(|x| x == v));
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|v| v.parse().ok());
        let own = value.and_then(|v| v.parse().ok());
        own.zip(bound).is_some_and(|(own, bound)| holds(own, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|own, bound| own > bound),
        "Lt" => compare(|own, bound| own < bound),
        _ => false,
    }
}

/// The first taint with one of `effects` that the pod does not tolerate.
pub fn untolerated<'a>(pod: &PodView, node: &'a NodeFacts, effects: &[&str]) -> Option<&'a Taint> {
    node.taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| !pod.tolerations.iter().any(|t| tolerates(t, taint)))
}

/// Whether `toleration` covers `taint`, whatever its `tolerationSeconds`.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty = |field: &Option<String>| field.as_deref().is_none_or(str::is_empty);
    let key_matches = empty(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let effect_matches = empty(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let value_matches = match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => {
            !empty(&toleration.key)
                && toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
        }
    };
    key_matches && effect_matches && value_matches
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> PodView {
        let mut pod = json!({"metadata": {"name": "p"}});
        pod["spec"] = spec;
        PodView::new(serde_json::from_value(pod).expect("a pod")).expect("valid quantities")
    }

    fn node() -> NodeFacts {
        NodeFacts {
            name: "n1".into(),
            labels: BTreeMap::from([("zone".into(), "a".into()), ("rack".into(), "7".into())]),
            taints: Vec::new(),
            allocatable: [
                ("cpu", 8000),
                ("memory", 1 << 30),
                ("pods", 2),
                ("nvidia.com/gpu", 4),
                ("other.io/x", 0),
            ]
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .collect(),
        }
    }

    fn asks(resource: &str, amount: &str) -> PodView {
        pod(json!({"containers": [{"name": "c", "resources": {"requests": {resource: amount}}}]}))
    }

    #[test]
    fn refusals_name_the_resource_as_a_kubelet_does() {
        let used = |resource: &str, n| Amounts::from([(resource.to_owned(), n)]);
        let cases = [
            (asks("cpu", "4"), used("cpu", 5000), Some("OutOfcpu")),
            (asks("cpu", "3"), used("cpu", 5000), None),
            (asks("memory", "2Gi"), Amounts::new(), Some("OutOfmemory")),
            (asks("cpu", "1"), used("pods", 2), Some("OutOfpods")),
            (asks("nvidia.com/gpu", "2"), used("nvidia.com/gpu", 3), Some("OutOfnvidia.com/gpu")),
            (asks("nvidia.com/gpu", "8"), Amounts::new(), Some("UnexpectedAdmissionError")),
            (asks("other.io/x", "1"), Amounts::new(), Some("UnexpectedAdmissionError")),
            (asks("unknown.io/x", "1"), Amounts::new(), None),
        ];
        for (pod, used, expected) in cases {
            let reason = admit(&pod, &node(), &used).err().map(|r| r.reason);
            assert_eq!(reason.as_deref(), expected, "{:?}", pod.requests);
        }
        let refusal = admit(&asks("cpu", "4"), &node(), &used("cpu", 5000)).expect_err("no room");
        assert_eq!(
            refusal.message,
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 5000, capacity: 8000"
        );
    }

    fn affinity(terms: &Value) -> PodView {
        pod(json!({"containers": [], "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
    }

    #[test]
    fn affinity_terms_are_alternatives_of_requirements() {
        let field = |name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        let label = |key: &str, op: &str, values: Value| json!([{"matchExpressions": [{"key": key, "operator": op, "values": values}]}]);
        for (terms, expected) in [
            (field("n1"), true),
            (field("n2"), false),
            (label("zone", "In", json!(["a", "b"])), true),
            (label("zone", "NotIn", json!(["a"])), false),
            (label("none", "NotIn", json!(["a"])), true),
            (label("none", "Exists", json!([])), false),
            (label("none", "DoesNotExist", json!([])), true),
            (label("rack", "Gt", json!(["6"])), true),
            (label("rack", "Lt", json!(["7"])), false),
            (json!([{}]), false),
            (json!([{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]), true),
        ] {
            assert_eq!(node_matches(&affinity(&terms), &node()), expected, "{terms}");
        }
        let selector = pod(json!({"containers": [], "nodeSelector": {"zone": "b"}}));
        assert_eq!(
            admit(&selector, &node(), &Amounts::new()).expect_err("wrong zone").reason,
            "NodeAffinity"
        );
    }

    #[test]
    fn a_kubelet_minds_only_no_execute() {
        let tainted = |effect: &str| NodeFacts {
            taints: vec![Taint {
                key: "k".into(),
                effect: effect.into(),
                value: Some("v".into()),
                time_added: None,
            }],
            ..node()
        };
        let bare = pod(json!({"containers": []}));
        let tolerant = |t: Value| pod(json!({"containers": [], "tolerations": [t]}));
        for (pod, effect, expected) in [
            (&bare, "NoSchedule", true),
            (&bare, "NoExecute", false),
            (&tolerant(json!({"operator": "Exists"})), "NoExecute", true),
            (&tolerant(json!({"key": "k", "value": "v"})), "NoExecute", true),
            (&tolerant(json!({"key": "k", "value": "w"})), "NoExecute", false),
            (
                &tolerant(json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"})),
                "NoExecute",
                false,
            ),
        ] {
            let admitted = admit(pod, &tainted(effect), &Amounts::new()).is_ok();
            assert_eq!(admitted, expected, "{effect} {:?}", pod.tolerations);
        }
    }
}
