//! How well gangs are packed into racks of 18 under churn.

use std::collections::BTreeSet;

use crate::world::{Ask, Churn, Form, RACKS, Random, any_size, power_of_two};

const NODES: usize = 278 * 18;
/// One block: racks alone count. Blocks of 18 racks: the smallest subtree goes first, and is paid for in racks.
const ONE: Form = Form { levels: &["Block", "Rack"], nodes: &[NODES, 18], devices: 8 };
const DEPARTURES: usize = 20_000;

/// Sizes up to 128 in blocks of 16, of 4, or in none, each kind a third of the gangs.
fn segments(random: &mut Random) -> Ask {
    let pods = 1 + random.below(128) as u32;
    let block = [16, 4, 0][random.below(3) as usize];
    Ask { pods: pods.next_multiple_of(block.max(1)), block }
}

/// Multiples of 16 in blocks of 16 are 92 % of the nodes asked for: four gangs in seven, of 16 to 128 nodes; the others
/// have 1 to 15.
fn sixteens(random: &mut Random) -> Ask {
    if random.below(7) < 4 {
        Ask { pods: 16 * (1 + random.below(8) as u32), block: 16 }
    } else {
        Ask { pods: 1 + random.below(15) as u32, block: 0 }
    }
}

/// Racks that a gang needs at least.
fn least_racks(ask: Ask) -> u64 {
    // Blocks of 16 do not share a rack of 18; blocks of 4 leave two of its nodes.
    let block = ask.block.max(1);
    let in_rack = 18 / block * block;
    u64::from(ask.pods.div_ceil(in_rack))
}

/// Draws a gang of a mix.
type Draw = fn(&mut Random) -> Ask;

struct Case {
    mix: &'static str,
    draw: Draw,
    form: &'static Form,
    blocks: &'static str,
    /// Nodes of a hundred that are down.
    down: usize,
}

pub fn nvl72pack() {
    let plain: [(&str, Draw); 2] = [("powers of two", power_of_two), ("any size 1-128", any_size)];
    for (mix, draw) in plain {
        for (share, limit) in [(0.9, 1.002), (0.95, 1.01)] {
            for (form, blocks) in [(&ONE, "one block"), (&RACKS, "blocks of 18 racks")] {
                run(&Case { mix, draw, form, blocks, down: 0 }, share, Some(limit));
            }
        }
    }
    let blocks: [(&str, Draw); 2] = [("segments 16, 4, 1", segments), ("16-heavy", sixteens)];
    for (mix, draw) in blocks {
        for down in [0, 1, 3] {
            for share in [0.9, 0.95] {
                run(&Case { mix, draw, form: &ONE, blocks: "one block", down }, share, None);
            }
        }
    }
}

fn run(case: &Case, share: f64, limit: Option<f64>) {
    let churn = Churn::new(case.form.engine(NODES), NODES as u64);
    let mut churn = churn.with_down(case.form, NODES, NODES * case.down / 100);
    let (mut used, mut least, mut whole, mut all) = (0_u64, 0_u64, 0_u64, 0_u64);
    churn.run(case.form, share, DEPARTURES, 8, case.draw, |ask, placement| {
        let rack = |name: &str| name.trim_start_matches("node-").parse::<usize>().unwrap_or(0) / 18;
        let nodes = placement.units.iter().flat_map(|unit| &unit.nodes);
        let racks: BTreeSet<usize> = nodes.map(|node| rack(node.as_str())).collect();
        used += racks.len() as u64;
        least += least_racks(ask);
        whole += u64::from(racks.len() == 1);
        all += u64::from(least_racks(ask) == 1);
    });
    let limit = limit.map_or_else(String::new, |limit| format!(" (limit {limit})"));
    println!(
        "nvl72pack {} at {share}, {}, {} % of nodes down: racks used / least {:.4}{limit}; {:.1} % of gangs that fit a rack in one; {:.2} % of the nodes that a topology-blind scheduler would use",
        case.mix,
        case.blocks,
        case.down,
        used as f64 / least as f64,
        100.0 * whole as f64 / all as f64,
        100.0 * churn.reached()
    );
}
