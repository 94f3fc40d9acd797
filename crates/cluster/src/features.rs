//! Features that pods need and nodes declare (KEP-5328), as node labels: kube-scheduler's plugin NodeDeclaredFeatures
//! keeps pods off nodes whose kubelet does not declare what they need, and such a kubelet refuses them.
//!
//! ```text
//!   node.status.declaredFeatures ──▶ labels of model::Node ─┐
//!   pod specification ──needed──▶ node selector ────────────┴─▶ engine
//! ```

use k8s_openapi::api::core::v1::{Container, NodeStatus, PodSpec};

/// Begins the key of such a label. No label of a real node begins so: the part before the slash is no DNS name.
const DECLARED: &str = "status.declaredFeatures/";

/// Name of a feature, and whether a pod needs it.
type Feature = (&'static str, fn(&PodSpec) -> bool);

/// The features of Kubernetes 1.37 that pods are scheduled by (`nodedeclaredfeatures` of `k8s.io/component-helpers`,
/// those whose `InferForScheduling` can be true). All others concern changes of running pods.
const FEATURES: &[Feature] = &[
    ("RestartAllContainersOnContainerExits", |spec| {
        let restarts_all = |container: &Container| {
            container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
        };
        containers(spec).any(restarts_all)
    }),
    ("UserNamespacesHostNetworkSupport", |spec| {
        spec.host_network == Some(true) && spec.host_users == Some(false)
    }),
    ("VolumeBindMountOptions", |spec| {
        let mounts = containers(spec).flat_map(|container| container.volume_mounts.iter().flatten());
        mounts.filter_map(|mount| mount.bind_mount_options.as_ref()).any(|options| !options.is_empty())
    }),
];

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

fn label(feature: &str) -> (String, String) {
    (format!("{DECLARED}{feature}"), String::new())
}

/// The labels of a node for what it declares, as far as pods are scheduled by it.
pub(crate) fn declared(status: &NodeStatus) -> impl Iterator<Item = (String, String)> + '_ {
    let declares =
        |feature: &&Feature| status.declared_features.iter().flatten().any(|name| name == feature.0);
    FEATURES.iter().filter(declares).map(|(name, _)| label(name))
}

/// The labels that a pod's node must have for what the pod needs.
pub(crate) fn needed(spec: &PodSpec) -> impl Iterator<Item = (String, String)> + '_ {
    FEATURES.iter().filter(|(_, needs)| needs(spec)).map(|(name, _)| label(name))
}
