//! The clusters of the scenarios.

use kubesim::kubelet::NodeSpec;

/// HGX H100 nodes, 16 to a block, 4 to a rack.
pub fn hgx(count: usize) -> Vec<NodeSpec> {
    (0..count)
        .map(|at| {
            NodeSpec::hgx_h100(format!("hgx-{at:03}"))
                .zone("region-1", "zone-a")
                .label("fabric.topograph.run/tier-1", &format!("block-{}", at / 16))
                .label("fabric.topograph.run/tier-0", &format!("rack-{}", at / 4))
        })
        .collect()
}

/// NVL72 racks of 18 nodes with 4 GPUs each, 8 racks to a block.
pub fn nvl72(racks: usize) -> Vec<NodeSpec> {
    (0..racks * 18)
        .map(|at| {
            let rack = at / 18;
            NodeSpec::gb200_nvl72(format!("nvl-{rack:02}-{:02}", at % 18), &format!("cluster-1.{rack}"))
                .zone("region-1", "zone-a")
                .label("fabric.topograph.run/tier-1", &format!("block-{}", rack / 8))
                .label("fabric.topograph.run/tier-0", &format!("rack-{rack}"))
        })
        .collect()
}
