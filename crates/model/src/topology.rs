//! Levels of the topology tree and the labels that name their domains.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

use crate::NodeName;

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

/// What names a node's domain at one level, under the domain of the level outside it. A domain's identity is the
/// whole path of keys from the outermost level.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DomainKey {
    /// The value of the level's label.
    Label(String),
    /// The node has no label for the level: a domain of its own.
    Own(NodeName),
}

impl fmt::Display for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(value) => f.write_str(value),
            Self::Own(node) => write!(f, "{node}"),
        }
    }
}

impl Topology {
    /// The label value that names a node's domain at a level (its position in `levels`); the first key counts.
    pub fn label<'a>(&self, level: usize, labels: &'a BTreeMap<String, String>) -> Option<&'a str> {
        self.levels.get(level)?.keys.iter().find_map(|key| labels.get(key)).map(String::as_str)
    }

    /// The keys of a node's domains, outermost first, one per level in `levels`.
    ///
    /// A node without a level's label gets a domain of its own there. A level that no node of the cluster carries
    /// (`present` is false) is as fine as the next level inside it that somebody carries, else as the nodes: racks
    /// stay racks where nobody labels regions.
    pub fn path(
        &self,
        name: &NodeName,
        labels: &BTreeMap<String, String>,
        present: &[bool],
    ) -> Vec<DomainKey> {
        let own = || DomainKey::Own(name.clone());
        let mut inner = own();
        let mut keys: Vec<DomainKey> = (0..self.levels.len())
            .rev()
            .map(|level| {
                if present.get(level).copied().unwrap_or(false) {
                    inner = self
                        .label(level, labels)
                        .map_or_else(own, |value| DomainKey::Label(value.to_owned()));
                }
                inner.clone()
            })
            .collect();
        keys.reverse();
        keys
    }
}
