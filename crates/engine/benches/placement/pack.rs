//! How well gangs are packed into racks of 18 under churn.

use std::collections::BTreeSet;

use crate::world::{Churn, Form, RACKS, Random, any_size, power_of_two};

pub fn nvl72pack() {
    const NODES: usize = 278 * 18;
    // One block: racks alone count. Blocks of 18 racks: the smallest subtree goes first, and is paid for in racks.
    const ONE: Form = Form { levels: &["Block", "Rack"], nodes: &[NODES, 18], devices: 8 };
    type Draw = fn(&mut Random) -> u32;
    let mixes: [(&str, Draw); 2] = [("powers of two", power_of_two), ("any size 1-128", any_size)];
    for (mix, size) in mixes {
        for (share, limit) in [(0.9, 1.002), (0.95, 1.01)] {
            for (form, blocks) in [(ONE, "one block"), (RACKS, "blocks of 18 racks")] {
                let mut churn = Churn::new(form.engine(NODES), NODES as u64);
                let (mut used, mut least, mut whole, mut all) = (0_u64, 0_u64, 0_u64, 0_u64);
                churn.run(share, 20_000, 8, size, |pods, placement| {
                    let rack =
                        |name: &str| name.trim_start_matches("node-").parse::<usize>().unwrap_or(0) / 18;
                    let nodes = placement.units.iter().flat_map(|unit| &unit.nodes);
                    let racks: BTreeSet<usize> = nodes.map(|node| rack(node.as_str())).collect();
                    used += racks.len() as u64;
                    least += u64::from(pods.div_ceil(18));
                    whole += u64::from(racks.len() == 1);
                    all += u64::from(pods <= 18);
                });
                println!(
                    "nvl72pack {mix} at {share}, {blocks}: racks used / least {:.4} (limit {limit}); {:.1} % of gangs of up to 18 in one rack",
                    used as f64 / least as f64,
                    100.0 * whole as f64 / all as f64
                );
            }
        }
    }
}
