//! Small clusters on which a plausible shortcut goes wrong, each named after the shortcut.
//!
//! A cluster is written as blocks of racks of whole free nodes: `&[&[4, 2], &[3]]` has two racks in the first block.

mod common;

use common::{gang_of, node_at, role_of};
use muster_engine::{EXACT_STEPS, Objective, solve, solve_within};
use muster_model::{Gang, Level, Mode, Node, Resources, Role, Segment, Topology, Within};

fn topology() -> Topology {
    let level = |name: &str| Level { name: name.into(), keys: vec![format!("t/{name}")] };
    Topology { levels: vec![level("Block"), level("Rack")] }
}

fn cluster(blocks: &[&[usize]]) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (b, racks) in blocks.iter().enumerate() {
        for (r, free) in racks.iter().enumerate() {
            for _ in 0..*free {
                nodes.push(node_of(nodes.len(), b, r, 8));
            }
        }
    }
    nodes
}

fn node_of(index: usize, block: usize, rack: usize, gpus: i64) -> Node {
    let labels = [("t/Block", format!("b{block}")), ("t/Rack", format!("r{rack}"))];
    node_at(&format!("n{index:03}"), labels, Resources::of([("gpu", gpus), ("pods", 100)]))
}

fn role(
    name: &str,
    gpus: i64,
    pods: u32,
    units: std::ops::RangeInclusive<u32>,
    segments: &[(u32, &str, Mode)],
) -> Role {
    Role {
        segments: segments
            .iter()
            .map(|(pods, level, mode)| Segment { pods: *pods, level: (*level).into(), mode: *mode })
            .collect(),
        ..role_of(name, Resources::of([("gpu", gpus)]), pods, *units.start(), *units.end())
    }
}

fn worker(pods: u32, units: std::ops::RangeInclusive<u32>, segments: &[(u32, &str, Mode)]) -> Role {
    role("w", 8, pods, units, segments)
}

/// Places gangs in a row and gives each one's values.
fn values(nodes: &[Node], gangs: Vec<Gang>, order: &[&str]) -> Vec<Option<Vec<u64>>> {
    let order: Vec<Objective> = order.iter().map(|o| o.parse().expect("an objective")).collect();
    let asked: Vec<_> = gangs.into_iter().map(|gang| (gang, Some(order.clone()))).collect();
    let answers = solve(&topology(), nodes, &asked);
    let placed: Vec<_> = asked
        .iter()
        .zip(&answers)
        .filter_map(|((gang, _), answer)| Some((gang, &answer.as_ref().ok()?.placement)))
        .collect();
    assert_eq!(common::errors(&topology(), nodes, &placed), Vec::<String>::new());
    asked
        .iter()
        .zip(&answers)
        .map(|((gang, _), answer)| {
            let placement = &answer.as_ref().ok()?.placement;
            Some(common::vector(&topology(), nodes, gang, &order, placement))
        })
        .collect()
}

fn one(nodes: &[Node], gang: Gang, order: &[&str]) -> Option<Vec<u64>> {
    values(nodes, vec![gang], order).remove(0)
}

fn gang(roles: Vec<Role>) -> Gang {
    gang_of("g", roles)
}

const INSIDE_OUT: &[&str] = &["units", "domains:Rack", "domains:Block"];
const R: Mode = Mode::Required;
const P: Mode = Mode::Preferred;

#[test]
fn room_in_sum_is_not_room_in_one_rack() {
    let nodes = cluster(&[&[2, 2, 2]]);
    assert_eq!(one(&nodes, gang(vec![worker(3, 1..=1, &[(3, "Rack", R)])]), INSIDE_OUT), None);
    assert_eq!(one(&nodes, gang(vec![worker(3, 1..=1, &[])]), INSIDE_OUT), Some(vec![1, 2, 1]));
}

#[test]
fn filling_in_tree_order_opens_too_many_racks() {
    let nodes = cluster(&[&[1, 1, 5, 4]]);
    assert_eq!(one(&nodes, gang(vec![worker(9, 1..=1, &[])]), INSIDE_OUT), Some(vec![1, 2, 1]));
}

#[test]
fn best_fit_per_piece_opens_too_many_racks() {
    // Pieces of one, best fit first, would fill 1, 1 and 2 before the 4.
    let nodes = cluster(&[&[1, 1, 2, 4]]);
    assert_eq!(one(&nodes, gang(vec![worker(4, 1..=1, &[])]), INSIDE_OUT), Some(vec![1, 1, 1]));
}

#[test]
fn the_rack_with_most_nodes_is_not_the_one_with_most_blocks() {
    // Seven nodes hold one block of four, two racks of four hold one each.
    let nodes = cluster(&[&[7], &[4, 4]]);
    let asked = gang(vec![worker(4, 2..=2, &[(4, "Rack", R)])]);
    assert_eq!(one(&nodes, asked, INSIDE_OUT), Some(vec![2, 2, 1]));
}

#[test]
fn floors_of_floors() {
    // Each block holds three pairs in racks, so one group of four pairs' worth of pods in neither.
    let nodes = cluster(&[&[3, 3, 3], &[3, 3, 3]]);
    let asked = gang(vec![worker(8, 1..=1, &[(2, "Rack", R), (8, "Block", R)])]);
    assert_eq!(one(&nodes, asked, INSIDE_OUT), None);
}

#[test]
fn the_cheapest_block_first_costs_a_block() {
    // Three pairs: the first block takes one pair in one rack, but then both others are needed.
    let nodes = cluster(&[&[2], &[2, 2, 2]]);
    let asked = gang(vec![worker(2, 3..=3, &[(2, "Block", R)])]);
    assert_eq!(one(&nodes, asked, INSIDE_OUT), Some(vec![3, 3, 1]));
}

#[test]
fn more_units_go_before_fewer_racks() {
    let nodes = cluster(&[&[4, 1, 1, 1, 1]]);
    assert_eq!(one(&nodes, gang(vec![worker(4, 1..=2, &[])]), INSIDE_OUT), Some(vec![2, 5, 1]));
}

#[test]
fn a_preferred_rule_never_costs_a_unit() {
    let nodes = cluster(&[&[3, 3, 2]]);
    let asked = gang(vec![worker(4, 1..=2, &[(4, "Rack", P)])]);
    let got = one(&nodes, asked, &["units", "broken:w:4", "domains:Rack"]);
    assert_eq!(got, Some(vec![2, 2, 3]));
}

#[test]
fn whole_blocks_go_before_fewest_racks() {
    // The five and the three hold all eight, but break a pair.
    let nodes = cluster(&[&[5, 3, 2, 2]]);
    let asked = gang(vec![worker(8, 1..=1, &[(2, "Rack", P)])]);
    let got = one(&nodes, asked, &["units", "broken:w:2", "domains:Rack"]);
    assert_eq!(got, Some(vec![1, 0, 3]));
}

#[test]
fn a_broken_block_still_obeys_the_required_rule_around_it() {
    let nodes = cluster(&[&[1, 1], &[1, 1]]);
    let asked = gang(vec![worker(2, 1..=2, &[(2, "Rack", P), (2, "Block", R)])]);
    let got = one(&nodes, asked, &["units", "broken:w:2", "domains:Block"]);
    assert_eq!(got, Some(vec![2, 2, 2]));
}

#[test]
fn the_smallest_subtree_may_use_more_racks() {
    let nodes = cluster(&[&[3], &[3], &[2, 2, 2]]);
    let span = &["units", "span", "domains:Rack", "domains:Block"];
    assert_eq!(one(&nodes, gang(vec![worker(6, 1..=1, &[])]), INSIDE_OUT), Some(vec![1, 2, 2]));
    assert_eq!(one(&nodes, gang(vec![worker(6, 1..=1, &[])]), span), Some(vec![1, 2, 3, 1]));
}

#[test]
fn within_one_block_the_fullest_block_need_not_be_the_one() {
    let nodes = cluster(&[&[3, 3, 3], &[4, 4]]);
    let asked = Gang {
        within: Some(Within { level: "Block".into(), mode: R }),
        ..gang(vec![worker(4, 2..=2, &[(4, "Rack", R)])])
    };
    assert_eq!(one(&nodes, asked, INSIDE_OUT), Some(vec![2, 2, 1]));
}

#[test]
fn a_pair_that_must_share_a_node_needs_more_than_gpus_in_sum() {
    let nodes: Vec<Node> =
        [3, 3, 1, 1].iter().enumerate().map(|(i, gpus)| node_of(i, 0, i / 2, *gpus)).collect();
    let asked = gang(vec![role("w", 1, 2, 1..=4, &[(2, "Node", R)])]);
    assert_eq!(one(&nodes, asked, &["units", "domains:Node"]), Some(vec![2, 2]));
}

#[test]
fn roles_as_given_leave_no_room_for_the_larger() {
    let nodes: Vec<Node> = [8, 4].iter().enumerate().map(|(i, gpus)| node_of(i, 0, 0, *gpus)).collect();
    let asked = gang(vec![role("small", 4, 1, 1..=1, &[]), role("large", 8, 1, 1..=1, &[])]);
    assert_eq!(one(&nodes, asked, &["units"]), Some(vec![2]));
}

#[test]
fn the_first_sibling_that_fits_is_taken_back() {
    // The three fit either rack, the four only the second.
    let nodes = cluster(&[&[3, 4]]);
    for order in [[3, 4], [4, 3]] {
        let roles = order.map(|pods| role(&format!("r{pods}"), 8, pods, 1..=1, &[(pods, "Rack", R)]));
        assert_eq!(one(&nodes, gang(roles.to_vec()), INSIDE_OUT), Some(vec![2, 2, 1]));
    }
}

#[test]
fn largest_role_first_fails_where_an_exact_split_exists() {
    // 4+3+3 and 3+3+3. Descending best fit puts the four into the rack of nine, where two threes no longer fit well.
    let nodes = cluster(&[&[10, 9]]);
    let asked = gang(vec![
        role("four", 8, 4, 1..=1, &[(4, "Rack", R)]),
        role("three", 8, 3, 5..=5, &[(3, "Rack", R)]),
    ]);
    assert_eq!(one(&nodes, asked, INSIDE_OUT), Some(vec![6, 2, 1]));
}

#[test]
fn sums_that_fit_prove_nothing_feasible() {
    let nodes = cluster(&[&[7, 7]]);
    let asked = gang(vec![
        role("five", 8, 5, 2..=2, &[(5, "Rack", R)]),
        role("four", 8, 4, 1..=1, &[(4, "Rack", R)]),
    ]);
    assert_eq!(one(&nodes, asked, INSIDE_OUT), None);
}

#[test]
fn a_small_gang_leaves_the_large_rack_whole() {
    let nodes = cluster(&[&[6, 3]]);
    let got = values(
        &nodes,
        vec![
            gang_of("small", vec![worker(3, 1..=1, &[])]),
            gang_of("large", vec![worker(6, 1..=1, &[(6, "Rack", R)])]),
        ],
        INSIDE_OUT,
    );
    assert_eq!(got, [Some(vec![1, 1, 1]), Some(vec![1, 1, 1])]);
}

#[test]
fn an_exact_pair_of_racks_spares_the_largest() {
    let nodes = cluster(&[&[8, 4, 4]]);
    let got = values(
        &nodes,
        vec![
            gang_of("pair", vec![worker(8, 1..=1, &[(4, "Rack", R)])]),
            gang_of("next", vec![worker(8, 1..=1, &[(8, "Rack", R)])]),
        ],
        INSIDE_OUT,
    );
    assert_eq!(got[0], Some(vec![1, 1, 1]), "one rack is fewer, even if it is the largest");
    assert_eq!(got[1], None);
    let nodes = cluster(&[&[7, 4, 4]]);
    let got = values(
        &nodes,
        vec![
            gang_of("pair", vec![worker(8, 1..=1, &[])]),
            gang_of("next", vec![worker(7, 1..=1, &[(7, "Rack", R)])]),
        ],
        INSIDE_OUT,
    );
    assert_eq!(got, [Some(vec![1, 2, 1]), Some(vec![1, 1, 1])], "4 + 4, not 7 + 1");
}

#[test]
fn equal_racks_are_told_apart_by_what_surrounds_them() {
    // Two nodes: from the block that is already broken, so that the other still holds six.
    let nodes = cluster(&[&[3, 3], &[3]]);
    let got = values(
        &nodes,
        vec![
            gang_of("small", vec![worker(2, 1..=1, &[])]),
            Gang {
                within: Some(Within { level: "Block".into(), mode: R }),
                ..gang_of("large", vec![worker(6, 1..=1, &[])])
            },
        ],
        INSIDE_OUT,
    );
    assert_eq!(got, [Some(vec![1, 1, 1]), Some(vec![1, 2, 1])]);
}

#[test]
fn what_remains_should_still_hold_a_block() {
    let nodes = cluster(&[&[6, 5, 4]]);
    let got = values(
        &nodes,
        vec![
            gang_of("small", vec![worker(2, 1..=1, &[])]),
            gang_of("large", vec![worker(4, 3..=3, &[(4, "Rack", R)])]),
        ],
        INSIDE_OUT,
    );
    assert_eq!(got, [Some(vec![1, 1, 1]), Some(vec![3, 3, 1])]);
}

#[test]
fn equal_names_under_different_parents_are_different_domains() {
    // Rack r0 exists in both blocks.
    let nodes = cluster(&[&[1], &[1]]);
    assert_eq!(one(&nodes, gang(vec![worker(2, 1..=1, &[(2, "Rack", R)])]), INSIDE_OUT), None);
}

#[test]
fn a_node_without_the_label_shares_a_rack_with_nobody() {
    let mut nodes = cluster(&[&[3]]);
    for node in &mut nodes[1..] {
        node.labels.remove("t/Rack");
    }
    assert_eq!(one(&nodes, gang(vec![worker(2, 1..=1, &[(2, "Rack", R)])]), &["units"]), None);
    assert_eq!(
        one(&nodes, gang(vec![worker(3, 1..=1, &[(3, "Block", R)])]), INSIDE_OUT),
        Some(vec![1, 3, 1])
    );
}

#[test]
fn the_scarcest_resource_binds() {
    let nodes: Vec<Node> = (0..2)
        .map(|i| {
            node_at(&format!("n{i}"), [("t/Rack", "r")], Resources::of([("gpu", 8), ("cpu", 5), ("pods", 9)]))
        })
        .collect();
    let hungry = Role { requests: Resources::of([("gpu", 1), ("cpu", 2)]), ..role("w", 1, 1, 1..=16, &[]) };
    assert_eq!(one(&nodes, gang(vec![hungry]), &["units"]), Some(vec![4]));
}

#[test]
fn three_preferred_sizes_at_once_are_decided_exactly() {
    // Four nodes hold exactly four pairs of pairs; with the fifth a block of four breaks.
    let level = |name: &str| Level { name: name.into(), keys: vec![format!("t/{name}")] };
    let topology = Topology { levels: ["Pod", "Block", "Rack"].map(level).to_vec() };
    let at =
        [(8, "1", "2", "0"), (8, "0", "1", "1"), (8, "2", "2", "1"), (5, "1", "0", "2"), (8, "1", "1", "1")];
    let node = |(i, (gpus, pod, block, rack)): (usize, &(i64, &str, &str, &str))| {
        let labels = [("t/Pod", *pod), ("t/Block", *block), ("t/Rack", *rack)];
        node_at(&format!("n{i}"), labels, Resources::of([("gpu", *gpus), ("pods", 16)]))
    };
    let nodes: Vec<Node> = at.iter().enumerate().map(node).collect();
    let asked = gang(vec![role("w", 2, 8, 1..=2, &[(2, "Node", P), (4, "Rack", P), (8, "Block", P)])]);
    let solution = solve_within(&topology, &nodes, &[(asked.clone(), None)], EXACT_STEPS).remove(0);
    let solution = solution.expect("it fits");
    let order =
        ["units", "broken:w:2", "broken:w:4", "domains:Node"].map(|o| o.parse().expect("an objective"));
    assert_eq!(common::vector(&topology, &nodes, &asked, &order, &solution.placement), [2, 0, 0, 4]);
    assert!(solution.proven);
}
