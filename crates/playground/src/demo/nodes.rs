//! The simulated machines of the demo.
//!
//! ```text
//!   zone-a ┬ block-1 ┬ rack-a: nvl-a-01 … nvl-a-18   4 × GB200 each, one NVLink domain
//!          │         └ rack-b: nvl-b-01 … nvl-b-18   as above
//!          └ block-2 ┬ rack-c: hgx-1 … hgx-4         8 × H100 each, a node is an NVLink domain
//!                    ├ rack-d: hgx-5 … hgx-8
//!                    └ rack-e: a100-1, a100-2        8 × A100 each
//! ```

use kubesim::kubelet::NodeSpec;

/// What the demo says of them.
pub const WORDS: &str =
    "two GB200 NVL72 racks (36 nodes × 4 GPUs), eight HGX H100 and two DGX A100 nodes (× 8 GPUs)";
/// The taint by which GPU pools are commonly kept for GPU pods.
const TAINT: &str = "nvidia.com/gpu";
/// Compute trays of an NVL72 rack (NVIDIA GB200 NVL72: 18 trays, 72 GPUs).
const TRAYS: usize = 18;

/// All of them.
pub fn all() -> Vec<NodeSpec> {
    let racks = ["a", "b"].into_iter().flat_map(|rack| (1..=TRAYS).map(move |tray| nvl72(rack, tray)));
    let hgx = (1..=8).map(|at| {
        let rack = if at <= 4 { "rack-c" } else { "rack-d" };
        in_rack(NodeSpec::hgx_h100(format!("hgx-{at}")), "block-2", rack)
    });
    let dgx = (1..=2).map(|at| in_rack(NodeSpec::a100(format!("a100-{at}")), "block-2", "rack-e"));
    racks.chain(hgx).chain(dgx).collect()
}

fn nvl72(rack: &str, tray: usize) -> NodeSpec {
    // A real clique is a UUID and a number; this one is short so that a line of the map names it.
    let node = NodeSpec::gb200_nvl72(format!("nvl-{rack}-{tray:02}"), &format!("nvl-{rack}.1"));
    in_rack(node, "block-1", &format!("rack-{rack}"))
}

fn in_rack(node: NodeSpec, block: &str, rack: &str) -> NodeSpec {
    node.zone("region-1", "zone-a")
        .label("fabric.topograph.run/tier-1", block)
        .label("fabric.topograph.run/tier-0", rack)
        .taint(TAINT, "present", "NoSchedule")
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn there_are_46_nodes_with_224_gpus_in_two_nvlink_racks() {
        let nodes = all();
        let gpus: u32 =
            nodes.iter().filter_map(|node| node.capacity["nvidia.com/gpu"].parse::<u32>().ok()).sum();
        assert_eq!((nodes.len(), gpus), (46, 2 * 72 + 8 * 8 + 2 * 8));
        for clique in ["nvl-a.1", "nvl-b.1"] {
            let of = |node: &&kubesim::kubelet::NodeSpec| {
                node.labels.get("nvidia.com/gpu.clique").map(String::as_str) == Some(clique)
            };
            assert_eq!(nodes.iter().filter(of).count(), 18);
        }
    }
}
