//! Levels of the topology tree and the labels that name their domains.

use serde::{Deserialize, Serialize};

/// The level whose domains share NVLink (a clique of a multi-node NVLink rack, else one node).
pub const NVLINK_DOMAIN: &str = "NvlinkDomain";
/// The innermost level: each node is its own domain. It is always there and has no label.
pub const NODE: &str = "Node";
/// At most this many levels, the node's included.
pub const MAX_LEVELS: usize = 16;

/// One level.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Level {
    /// Name that placement rules use, such as `Rack`.
    pub name: String,
    /// Label keys that name a node's domain; the first that the node carries counts.
    pub keys: Vec<String>,
}

/// Levels, outermost first. The node itself is the implied last level and is not listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Topology {
    /// The levels above the node.
    pub levels: Vec<Level>,
}

/// The default levels: label keys in order of precedence.
/// Sources: the label documentation of Kubernetes, NVIDIA's GPU operator and Topograph, AWS, GCP, OCI and Nebius.
const DEFAULT: &[(&str, &[&str])] = &[
    ("Region", &["topology.kubernetes.io/region"]),
    ("Zone", &["topology.kubernetes.io/zone"]),
    (
        "Block",
        &[
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
            "topology.k8s.aws/network-node-layer-2",
            "cloud.google.com/gce-topology-block",
            "oci.oraclecloud.com/host.network_block_id",
            "topology.nebius.com/tier-1",
        ],
    ),
    (
        "Rack",
        &[
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "topology.k8s.aws/network-node-layer-3",
            "cloud.google.com/gce-topology-subblock",
            "oci.oraclecloud.com/host.rack_id",
            "topology.nebius.com/tier-0",
        ],
    ),
    (
        NVLINK_DOMAIN,
        &[
            "nvidia.com/gpu.clique",
            "accelerator.topograph.run/domain",
            "network.topology.nvidia.com/accelerator",
            "topology.k8s.aws/ultraserver-id",
        ],
    ),
];

impl Default for Topology {
    fn default() -> Self {
        Self {
            levels: DEFAULT
                .iter()
                .map(|(name, keys)| Level {
                    name: (*name).to_owned(),
                    keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                })
                .collect(),
        }
    }
}

impl Topology {
    /// Position of a level by name, outermost 0; the node's level comes last.
    pub fn level(&self, name: &str) -> Option<usize> {
        if name == NODE {
            return Some(self.levels.len());
        }
        self.levels.iter().position(|level| level.name == name)
    }

    /// Names of all levels, outermost first, the node's included.
    pub fn names(&self) -> Vec<&str> {
        self.levels.iter().map(|level| level.name.as_str()).chain([NODE]).collect()
    }
}
