//! How good the heuristics are where the exact search may not run: several roles against the optimum. Seeded.

mod common;

use common::{gang_of, node_at, role_of};
use muster_engine::{Objective, solve, solve_within};
use muster_model::{Gang, Level, Mode, Node, Resources, Role, Segment, Topology};

struct Random(u64);

impl Random {
    /// SplitMix64, below a bound.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn instance(random: &mut Random) -> (Vec<Node>, Gang) {
    let racks = 2 + random.below(4);
    let mut nodes = Vec::new();
    for rack in 0..racks {
        for _ in 0..=random.below(9) {
            let labels = [("t/Block", format!("b{}", rack / 3)), ("t/Rack", format!("r{rack}"))];
            let name = format!("n{:03}", nodes.len());
            nodes.push(node_at(&name, labels, Resources::of([("gpu", 8), ("pods", 100)])));
        }
    }
    let roles = (0..2 + random.below(2)).map(|index| {
        let pods = 2 + random.below(5) as u32;
        let units = 1 + random.below(2) as u32;
        let rule = Segment { pods, level: "Rack".into(), mode: Mode::Required };
        let request = Resources::of([("gpu", 8)]);
        Role { segments: vec![rule], ..role_of(&format!("r{index}"), request, pods, units, units) }
    });
    (nodes, gang_of("g", roles.collect()))
}

/// Sums over feasible instances of what the order's values come to without and with exact search, and how many instances
/// were feasible and were missed.
fn compared(order: Option<&[Objective]>) -> (Vec<u64>, Vec<u64>, u32, u32) {
    let level = |name: &str| Level { name: name.into(), keys: vec![format!("t/{name}")] };
    let topology = Topology { levels: vec![level("Block"), level("Rack")] };
    let mut random = Random(11);
    let (mut feasible, mut missed, mut used, mut least) = (0, 0, Vec::new(), Vec::new());
    let add = |sums: &mut Vec<u64>, values: &[u64]| {
        sums.resize(values.len(), 0);
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    };
    for _ in 0..600 {
        let (nodes, gang) = instance(&mut random);
        let asked = [(gang, order.map(<[Objective]>::to_vec))];
        let exact = solve(&topology, &nodes, &asked).remove(0);
        let quick = solve_within(&topology, &nodes, &asked, 0).remove(0);
        let Ok(exact) = exact else {
            assert!(quick.is_err(), "the exact search missed it");
            continue;
        };
        feasible += 1;
        match quick {
            Err(_) => missed += 1,
            Ok(quick) => {
                add(&mut used, &quick.vector);
                add(&mut least, &exact.vector);
            }
        }
    }
    (used, least, feasible, missed)
}

#[test]
fn several_roles_without_exact_search_are_found_and_within_one_percent_of_the_optimum() {
    let racks: Vec<Objective> =
        ["units", "domains:Rack", "domains:Block"].iter().map(|o| o.parse().expect("an objective")).collect();
    // In an order of one's own, and in the engine's: units, span, nodes, racks, blocks.
    for order in [Some(racks.as_slice()), None] {
        let (used, least, feasible, missed) = compared(order);
        println!("{feasible} feasible, {missed} missed, {used:?} against {least:?}");
        assert!(feasible > 100, "the mix tests something");
        assert_eq!(missed, 0, "backtracking finds what fits");
        assert_eq!(used[0], least[0], "units");
        let close = |(used, least): (&u64, &u64)| used * 100 <= least * 101;
        assert!(used.iter().zip(&least).all(close), "{used:?} against {least:?}");
    }
}
