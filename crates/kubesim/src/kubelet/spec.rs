//! What a simulated machine is: names, labels, capacity; and the objects a kubelet makes of it.
//!
//! ```text
//! NodeSpec (hgx_h100, a100, gb200_nvl72, …) ──► Node object, node status, Lease
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::admission::NodeFacts;
use super::quantity::{self, Amounts, QuantityError};
use super::status::time;

/// One machine. Quantities are Kubernetes quantities (`"192"`, `"2Ti"`).
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// The node's name; also its hostname label.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Taints the node registers with.
    pub taints: Vec<Taint>,
    /// `status.capacity`, and `status.allocatable` until changed.
    pub capacity: BTreeMap<String, String>,
}

/// The kubelet version that simulated nodes report.
const KUBELET_VERSION: &str = "v1.37.2";

impl NodeSpec {
    /// A plain machine: `cpus` CPUs, `memory`, 110 pods (the kubelet's default), no devices.
    pub fn new(name: impl Into<String>, cpus: u32, memory: &str) -> Self {
        let name = name.into();
        let labels = [
            ("kubernetes.io/hostname", name.as_str()),
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/os", "linux"),
        ];
        let capacity = [
            ("cpu", cpus.to_string()),
            ("memory", memory.to_owned()),
            ("pods", "110".to_owned()),
            ("ephemeral-storage", "1Ti".to_owned()),
        ];
        Self {
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            annotations: BTreeMap::new(),
            taints: Vec::new(),
            capacity: capacity.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
            name,
        }
    }

    /// An HGX H100: 8 GPUs in one chassis, 192 CPUs, 2 TiB.
    pub fn hgx_h100(name: impl Into<String>) -> Self {
        Self::new(name, 192, "2Ti").gpus(8, "NVIDIA-H100-80GB-HBM3", 81_559, "hopper", "hgx-h100")
    }

    /// A DGX A100 with 8 GPUs of 80 GB, 128 CPUs, 1 TiB.
    pub fn a100(name: impl Into<String>) -> Self {
        Self::new(name, 128, "1Ti").gpus(8, "NVIDIA-A100-SXM4-80GB", 81_920, "ampere", "dgx-a100")
    }

    /// A compute tray of a GB200 NVL72 rack: 4 GPUs, 144 Arm CPUs; `clique` is
    /// `<ClusterUUID>.<CliqueID>` of its rack's NVLink domain.
    pub fn gb200_nvl72(name: impl Into<String>, clique: &str) -> Self {
        Self::new(name, 144, "960Gi")
            .gpus(4, "NVIDIA-GB200", 189_471, "blackwell", "gb200-nvl72")
            .label("kubernetes.io/arch", "arm64")
            .label("nvidia.com/gpu.clique", clique)
    }

    fn gpus(self, count: u32, product: &str, mebibytes: u32, family: &str, instance: &str) -> Self {
        self.resource("nvidia.com/gpu", &count.to_string())
            .label("nvidia.com/gpu.present", "true")
            .label("nvidia.com/gpu.product", product)
            .label("nvidia.com/gpu.count", &count.to_string())
            .label("nvidia.com/gpu.memory", &mebibytes.to_string())
            .label("nvidia.com/gpu.family", family)
            .label("nvidia.com/mig.capable", "true")
            .label("nvidia.com/mig.strategy", "mixed")
            .label("node.kubernetes.io/instance-type", instance)
    }

    /// Adds or replaces a label, for example of the topology.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets zone and region labels.
    #[must_use]
    pub fn zone(self, region: &str, zone: &str) -> Self {
        self.label("topology.kubernetes.io/region", region).label("topology.kubernetes.io/zone", zone)
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a taint.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.push(new_taint(key, value, effect));
        self
    }

    /// Sets the capacity of a resource.
    #[must_use]
    pub fn resource(mut self, name: &str, quantity: &str) -> Self {
        self.capacity.insert(name.to_owned(), quantity.to_owned());
        self
    }

    /// What admission judges by at first.
    pub(crate) fn facts(&self) -> Result<NodeFacts, QuantityError> {
        Ok(NodeFacts {
            name: self.name.clone(),
            labels: self.labels.clone(),
            taints: self.taints.clone(),
            allocatable: amounts(&self.capacity)?,
        })
    }
}

pub(crate) fn amounts(list: &BTreeMap<String, String>) -> Result<Amounts, QuantityError> {
    list.iter().map(|(name, text)| Ok((name.clone(), quantity::parse(name, text)?))).collect()
}

pub(crate) fn new_taint(key: &str, value: &str, effect: &str) -> Taint {
    let value = (!value.is_empty()).then(|| value.to_owned());
    Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None }
}

/// A condition of the node beside or instead of the usual ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeCondition {
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Timestamp,
}

/// What a kubelet reports of its node.
#[derive(Debug, Clone)]
pub(crate) struct NodeReport {
    pub spec: NodeSpec,
    pub ip: String,
    pub allocatable: BTreeMap<String, String>,
    pub conditions: BTreeMap<String, NodeCondition>,
}

/// Type, status, reason and message of a healthy node's conditions.
const HEALTHY: [(&str, &str, &str, &str); 4] = [
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
];

impl NodeReport {
    pub fn new(spec: NodeSpec, ip: String, now: Timestamp) -> Self {
        let healthy = |&(kind, status, reason, message): &(&str, &str, &str, &str)| {
            let (status, reason, message) = (status.to_owned(), reason.to_owned(), message.to_owned());
            (kind.to_owned(), NodeCondition { status, reason, message, since: now })
        };
        Self {
            allocatable: spec.capacity.clone(),
            conditions: HEALTHY.iter().map(healthy).collect(),
            spec,
            ip,
        }
    }

    /// Sets a condition; its transition time moves only when its status does.
    pub fn set_condition(&mut self, kind: &str, mut condition: NodeCondition) {
        if let Some(old) = self.conditions.get(kind).filter(|old| old.status == condition.status) {
            condition.since = old.since;
        }
        self.conditions.insert(kind.to_owned(), condition);
    }

    /// The Node object to create.
    pub fn object(&self) -> Value {
        let spec = &self.spec;
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": spec.name, "labels": spec.labels, "annotations": spec.annotations},
            "spec": {"taints": spec.taints},
        })
    }

    /// The body of a strategic merge patch of nodes/status.
    pub fn status(&self, now: Timestamp) -> Value {
        let conditions: Vec<_> = self
            .conditions
            .iter()
            .map(|(kind, c)| {
                json!({"type": kind, "status": c.status, "reason": c.reason, "message": c.message,
                       "lastHeartbeatTime": time(now), "lastTransitionTime": time(c.since)})
            })
            .collect();
        let arch = self.spec.labels.get("kubernetes.io/arch").map_or("amd64", String::as_str);
        json!({"status": {
            "capacity": self.spec.capacity,
            "allocatable": self.allocatable,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": self.ip}, {"type": "Hostname", "address": self.spec.name}],
            "nodeInfo": {
                "architecture": arch, "operatingSystem": "linux", "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "", "containerRuntimeVersion": "kubesim://1", "osImage": "kubesim",
                "kernelVersion": "6.8.0", "machineID": self.spec.name, "systemUUID": self.spec.name,
                "bootID": self.spec.name,
            },
        }})
    }

    /// The node's Lease, as created.
    pub fn lease(&self, now: Timestamp) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.spec.name, "namespace": LEASE_NAMESPACE},
            "spec": {"holderIdentity": self.spec.name, "leaseDurationSeconds": LEASE_SECONDS,
                     "renewTime": micro_time(now)},
        })
    }
}

/// Where kubelets' Leases live.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The kubelet's `nodeLeaseDurationSeconds` default.
const LEASE_SECONDS: u32 = 40;

/// A timestamp as Kubernetes' MicroTime writes it.
pub(crate) fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
