//! Pods and nodes as the watches read them: most of an object's JSON (managed fields, environment, images) means
//! nothing to us and is skipped while it is parsed. A cluster of 100,000 GPUs sends it by the gigabyte.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use muster_api::common::GROUP;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// A pod with the fields that [`crate::PodFacts::of`] reads, and no others.
#[derive(Clone, Debug, Default)]
pub struct SeenPod(pub core::Pod);

/// A node with the fields that [`crate::convert::node`] reads, and no others.
#[derive(Clone, Debug, Default)]
pub struct SeenNode(pub core::Node);

macro_rules! seen {
    ($seen:ty, $object:ty, $read:ty) => {
        impl Resource for $seen {
            type DynamicType = ();
            type Scope = <$object as Resource>::Scope;

            fn kind(dt: &()) -> Cow<'_, str> {
                <$object as Resource>::kind(dt)
            }
            fn group(dt: &()) -> Cow<'_, str> {
                <$object as Resource>::group(dt)
            }
            fn version(dt: &()) -> Cow<'_, str> {
                <$object as Resource>::version(dt)
            }
            fn plural(dt: &()) -> Cow<'_, str> {
                <$object as Resource>::plural(dt)
            }
            fn meta(&self) -> &ObjectMeta {
                &self.0.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.0.metadata
            }
        }

        impl<'de> Deserialize<'de> for $seen {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <$read>::deserialize(from).map(|read| Self(read.into()))
            }
        }
    };
}

seen!(SeenPod, core::Pod, Pod);
seen!(SeenNode, core::Node, Node);

/// Metadata; of a pod's labels and annotations only ours.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta<L: Default> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<L>,
    annotations: Option<Ours>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
}

impl<L: Default + Into<BTreeMap<String, String>>> From<Meta<L>> for ObjectMeta {
    fn from(read: Meta<L>) -> Self {
        Self {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels.map(Into::into),
            annotations: read.annotations.map(Into::into),
            owner_references: read.owner_references,
            finalizers: read.finalizers,
            ..Self::default()
        }
    }
}

/// The entries of a map whose keys are of our group.
#[derive(Default)]
struct Ours(BTreeMap<String, String>);

impl From<Ours> for BTreeMap<String, String> {
    fn from(ours: Ours) -> Self {
        ours.0
    }
}

impl<'de> Deserialize<'de> for Ours {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Ours;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ours, A::Error> {
                let mut ours = Ours::default();
                while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                    if key.starts_with(GROUP) {
                        ours.0.insert(key.into_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(ours)
            }
        }
        from.deserialize_map(Entries)
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Pod {
    metadata: Meta<Ours>,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    host_network: Option<bool>,
    containers: Vec<Container>,
    init_containers: Option<Vec<Container>>,
    resources: Option<core::ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    affinity: Option<core::Affinity>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    resources: Option<core::ResourceRequirements>,
    ports: Option<Vec<core::ContainerPort>>,
    restart_policy: Option<String>,
    restart_policy_rules: Option<Vec<core::ContainerRestartRule>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    nominated_node_name: Option<String>,
    start_time: Option<Time>,
    conditions: Option<Vec<core::PodCondition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    restart_count: i32,
    state: Option<core::ContainerState>,
    last_state: Option<core::ContainerState>,
    allocated_resources: Option<BTreeMap<String, Quantity>>,
}

impl From<Pod> for core::Pod {
    fn from(read: Pod) -> Self {
        Self {
            metadata: read.metadata.into(),
            spec: read.spec.map(Into::into),
            status: read.status.map(Into::into),
        }
    }
}

impl From<PodSpec> for core::PodSpec {
    fn from(read: PodSpec) -> Self {
        let all = |containers: Vec<Container>| containers.into_iter().map(Into::into).collect();
        Self {
            node_name: read.node_name,
            host_network: read.host_network,
            containers: all(read.containers),
            init_containers: read.init_containers.map(all),
            resources: read.resources,
            overhead: read.overhead,
            affinity: read.affinity,
            ..Self::default()
        }
    }
}

impl From<Container> for core::Container {
    fn from(read: Container) -> Self {
        Self {
            name: read.name,
            resources: read.resources,
            ports: read.ports,
            restart_policy: read.restart_policy,
            restart_policy_rules: read.restart_policy_rules,
            ..Self::default()
        }
    }
}

impl From<PodStatus> for core::PodStatus {
    fn from(read: PodStatus) -> Self {
        let all = |statuses: Vec<ContainerStatus>| statuses.into_iter().map(Into::into).collect();
        Self {
            phase: read.phase,
            reason: read.reason,
            message: read.message,
            nominated_node_name: read.nominated_node_name,
            start_time: read.start_time,
            conditions: read.conditions,
            container_statuses: read.container_statuses.map(all),
            init_container_statuses: read.init_container_statuses.map(all),
            ..Self::default()
        }
    }
}

impl From<ContainerStatus> for core::ContainerStatus {
    fn from(read: ContainerStatus) -> Self {
        Self {
            name: read.name,
            restart_count: read.restart_count,
            state: read.state,
            last_state: read.last_state,
            allocated_resources: read.allocated_resources,
            ..Self::default()
        }
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Node {
    metadata: Meta<BTreeMap<String, String>>,
    spec: Option<NodeSpec>,
    status: Option<NodeStatus>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Option<Vec<core::Taint>>,
    unschedulable: Option<bool>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    allocatable: Option<BTreeMap<String, Quantity>>,
    capacity: Option<BTreeMap<String, Quantity>>,
    conditions: Option<Vec<core::NodeCondition>>,
    declared_features: Option<Vec<String>>,
}

impl From<Node> for core::Node {
    fn from(read: Node) -> Self {
        Self {
            metadata: read.metadata.into(),
            spec: read.spec.map(|spec| core::NodeSpec {
                taints: spec.taints,
                unschedulable: spec.unschedulable,
                ..core::NodeSpec::default()
            }),
            status: read.status.map(|status| core::NodeStatus {
                allocatable: status.allocatable,
                capacity: status.capacity,
                conditions: status.conditions,
                declared_features: status.declared_features,
                ..core::NodeStatus::default()
            }),
        }
    }
}
