//! Random trees, shapes and gangs: against every assignment on tiny clusters, and look-ups against the exact search.
//! More cases with `PROPTEST_CASES`.

mod common;

use common::{gang_of, node_at, role_of};
use muster_engine::{Objective, Solution, solve, solve_within};
use muster_model::{
    Gang, Level, Mode, Node, Resources, Role, Segment, Topology, Within,
    plan::{PlacedUnit, Placement},
};
use proptest::prelude::*;

const LEVELS: [&str; 3] = ["Pod", "Block", "Rack"];

fn topology() -> Topology {
    let level = |name: &&str| Level { name: (*name).into(), keys: vec![format!("t/{name}")] };
    Topology { levels: LEVELS.iter().map(level).collect() }
}

/// A node in a domain of each level, with room for so many pods of one unit of `x`.
fn node(index: usize, at: [u8; 3], room: i64) -> Node {
    let path = |depth: usize| at[..=depth].iter().map(ToString::to_string).collect::<Vec<_>>().join(".");
    let labels = LEVELS.iter().enumerate().map(|(depth, level)| (format!("t/{level}"), path(depth)));
    node_at(&format!("n{index:03}"), labels, Resources::of([("x", room), ("pods", 100)]))
}

fn nodes(most: usize, spread: u8, room: i64) -> impl Strategy<Value = Vec<Node>> {
    prop::collection::vec(([0..spread, 0..spread, 0..spread], 0..=room), 1..=most)
        .prop_map(|all| all.into_iter().enumerate().map(|(i, (at, room))| node(i, at, room)).collect())
}

/// Nested segments: sizes that divide each other, levels growing, of either mode.
fn segments(sizes: Vec<u32>) -> impl Strategy<Value = Vec<Segment>> {
    let one = (0..sizes.len(), 0..4_usize, any::<bool>());
    prop::collection::vec(one, 0..=2).prop_map(move |picks| {
        let mut picks: Vec<(u32, usize, bool)> =
            picks.into_iter().map(|(s, l, r)| (sizes[s], l, r)).collect();
        picks.sort_unstable();
        // Two rules of one size have no names of their own in an order.
        picks.dedup_by_key(|pick| pick.0);
        let mut levels: Vec<usize> = picks.iter().map(|(_, level, _)| *level).collect();
        // Larger blocks at the same level or further out.
        levels.sort_unstable_by_key(|level| std::cmp::Reverse(*level));
        let name = |level: usize| LEVELS.get(level).copied().unwrap_or("Node").to_owned();
        picks
            .iter()
            .zip(levels)
            .map(|((pods, _, required), level)| Segment {
                pods: *pods,
                level: name(level),
                mode: if *required { Mode::Required } else { Mode::Preferred },
            })
            .collect()
    })
}

fn role(
    name: &'static str,
    sizes: &'static [(u32, &'static [u32])],
    most: u32,
    each: i64,
) -> impl Strategy<Value = Role> {
    (0..sizes.len(), 0..=1_u32, 1..=most, 1..=each).prop_flat_map(move |(size, min, max, each)| {
        let (pods, divisors) = sizes[size];
        segments(divisors.to_vec()).prop_map(move |segments| Role {
            segments,
            ..role_of(name, Resources::of([("x", each)]), pods, min.min(max), max)
        })
    })
}

fn within() -> impl Strategy<Value = Option<Within>> {
    prop::option::weighted(0.3, 0..3_usize)
        .prop_map(|level| level.map(|level| Within { level: LEVELS[level].into(), mode: Mode::Required }))
}

/// The engine's own order, spelled out.
fn standard(gang: &Gang) -> Vec<Objective> {
    let mut broken: Vec<(u32, Objective)> = Vec::new();
    for role in &gang.roles {
        for s in role.segments.iter().filter(|s| s.mode == Mode::Preferred && s.pods > 1) {
            broken.push((s.pods, Objective::Broken { role: role.name.clone(), pods: s.pods }));
        }
    }
    broken.sort_by_key(|(pods, _)| *pods);
    let mut order = vec![Objective::Units];
    order.extend(broken.into_iter().map(|(_, o)| o));
    order.push(Objective::Span);
    order.extend(["Node", "Rack", "Block", "Pod"].map(|level| Objective::Domains(level.into())));
    order
}

fn key(order: &[Objective], vector: &[u64]) -> Vec<i64> {
    order
        .iter()
        .zip(vector)
        .map(|(o, v)| if *o == Objective::Units { -(*v as i64) } else { *v as i64 })
        .collect()
}

/// The best values over every assignment of every allowed number of units.
fn by_trying_all(nodes: &[Node], gang: &Gang, order: &[Objective]) -> Option<Vec<u64>> {
    let mut best: Option<Vec<u64>> = None;
    let counts: Vec<Vec<u32>> = gang.roles.iter().map(|r| (r.min..=r.max).collect()).collect();
    let mut units = vec![0; counts.len()];
    loop {
        let chosen: Vec<u32> = counts.iter().zip(&units).map(|(c, i): (&Vec<u32>, &usize)| c[*i]).collect();
        let pods: u32 = gang.roles.iter().zip(&chosen).map(|(r, u)| r.pods_per_unit * u).sum();
        if pods > 0 {
            for code in 0..nodes.len().pow(pods) {
                let placement = decode(nodes, gang, &chosen, code);
                if common::errors(&topology(), nodes, &[(gang, &placement)]).is_empty() {
                    let vector = common::vector(&topology(), nodes, gang, order, &placement);
                    if best.as_ref().is_none_or(|b| key(order, &vector) < key(order, b)) {
                        best = Some(vector);
                    }
                }
            }
        }
        let Some(next) = (0..units.len()).find(|i| units[*i] + 1 < counts[*i].len()) else { return best };
        units[next] += 1;
        units[..next].iter_mut().for_each(|unit| *unit = 0);
    }
}

fn decode(nodes: &[Node], gang: &Gang, units: &[u32], mut code: usize) -> Placement {
    let mut placement = Placement::default();
    for (role, units) in gang.roles.iter().zip(units) {
        for index in 0..*units {
            let mut next = || {
                let name = nodes[code % nodes.len()].name.clone();
                code /= nodes.len();
                name
            };
            let on = (0..role.pods_per_unit).map(|_| next()).collect();
            let id = muster_model::UnitId { role: role.name.clone(), index };
            placement.units.push(PlacedUnit { id, class: None, nodes: on });
        }
    }
    placement
}

fn solved(nodes: &[Node], gang: &Gang, order: Option<Vec<Objective>>) -> Option<Solution> {
    solve(&topology(), nodes, &[(gang.clone(), order)]).remove(0).ok()
}

fn check_valid(nodes: &[Node], gang: &Gang, order: &[Objective], solution: &Solution) {
    let errors = common::errors(&topology(), nodes, &[(gang, &solution.placement)]);
    assert!(errors.is_empty(), "{errors:?}");
    let vector = common::vector(&topology(), nodes, gang, order, &solution.placement);
    assert_eq!(solution.vector, vector, "the stated values hold");
}

/// How many cases each property gets; `PROPTEST_CASES` replaces it. That they add up to more than 100,000 with those that
/// `muster-check` judges, a test there holds.
const CASES: u32 = 10_000;

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        default
    } else {
        ProptestConfig { cases: CASES, ..default }
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn one_role_is_optimal_on_tiny_clusters(
        nodes in nodes(4, 2, 3),
        role in role("w", &[(1, &[1]), (2, &[1, 2]), (4, &[2, 4])], 2, 2),
        within in within(),
    ) {
        let mut gang = Gang { within, ..gang_of("g", vec![role]) };
        if gang.roles[0].pods_per_unit == 4 {
            gang.roles[0].max = 1;
            gang.roles[0].min = gang.roles[0].min.min(1);
        }
        let order = standard(&gang);
        let best = by_trying_all(&nodes, &gang, &order);
        for asked in [None, Some(order.clone())] {
            let solution = solved(&nodes, &gang, asked);
            prop_assert_eq!(solution.as_ref().map(|s| s.vector.clone()), best.clone());
            if let Some(solution) = solution {
                check_valid(&nodes, &gang, &order, &solution);
                prop_assert!(solution.proven);
            }
        }
    }

    #[test]
    fn two_roles_are_optimal_on_tiny_clusters(
        nodes in nodes(3, 2, 3),
        first in role("a", &[(1, &[1]), (2, &[1, 2])], 1, 2),
        second in role("b", &[(1, &[1]), (2, &[1, 2])], 2, 2),
        within in within(),
    ) {
        let gang = Gang { within, ..gang_of("g", vec![first, second]) };
        let order = standard(&gang);
        let best = by_trying_all(&nodes, &gang, &order);
        let solution = solved(&nodes, &gang, None);
        prop_assert_eq!(solution.as_ref().map(|s| s.vector.clone()), best);
        if let Some(solution) = solution {
            check_valid(&nodes, &gang, &order, &solution);
        }
    }

    #[test]
    fn look_ups_agree_with_the_exact_search(
        nodes in nodes(40, 3, 4),
        role in role("w", &[(1, &[1]), (4, &[2, 4]), (8, &[2, 4, 8]), (12, &[2, 4, 12]), (6, &[3, 6])], 4, 2),
        within in within(),
        spares in 0..3_u32,
    ) {
        let gang = Gang { within, ..gang_of("g", vec![Role { spares, ..role }]) };
        let order = standard(&gang);
        let exact = solved(&nodes, &gang, Some(order.clone()));
        let quick = solved(&nodes, &gang, None);
        if let Some(solution) = &quick {
            check_valid(&nodes, &gang, &order, solution);
        }
        prop_assert_eq!(quick.map(|s| s.vector), exact.map(|s| s.vector));
    }

    #[test]
    fn without_exact_search_one_role_is_valid_has_most_units_and_states_bounds_that_hold(
        nodes in nodes(30, 3, 4),
        role in role("w", &[(1, &[1]), (4, &[2, 4]), (8, &[2, 4, 8]), (12, &[2, 4, 12]), (6, &[3, 6])], 4, 2),
        within in within(),
    ) {
        let gang = Gang { within, ..gang_of("g", vec![role]) };
        let order = standard(&gang);
        let exact = solved(&nodes, &gang, Some(order.clone()));
        for asked in [None, Some(order.clone())] {
            let quick = solve_within(&topology(), &nodes, &[(gang.clone(), asked)], 0).remove(0).ok();
            prop_assert_eq!(quick.is_some(), exact.is_some());
            let (Some(quick), Some(exact)) = (quick, &exact) else { continue };
            check_valid(&nodes, &gang, &order, &quick);
            prop_assert_eq!(quick.vector[0], exact.vector[0]);
            prop_assert!(key(&order, &quick.vector) >= key(&order, &exact.vector));
            for ((objective, bound), best) in order.iter().zip(&quick.bound).zip(&exact.vector) {
                let holds = if *objective == Objective::Units { bound >= best } else { bound <= best };
                // A value further right may only be small because one further left was not.
                prop_assert!(holds || quick.proven, "{objective}: bound {bound}, best {best}");
            }
            if quick.proven {
                prop_assert_eq!(&quick.vector, &exact.vector);
            }
        }
    }

    #[test]
    fn without_exact_search_two_roles_are_valid(
        nodes in nodes(20, 2, 4),
        first in role("a", &[(1, &[1]), (3, &[3]), (4, &[2, 4])], 3, 2),
        second in role("b", &[(1, &[1]), (2, &[2])], 4, 3),
        within in within(),
    ) {
        let gang = Gang { within, ..gang_of("g", vec![first, second]) };
        let order = standard(&gang);
        let exact = solved(&nodes, &gang, Some(order.clone()));
        // Without any budget, and with one that suffices for a few domains only.
        for steps in [0, 1_500] {
            let quick = solve_within(&topology(), &nodes, &[(gang.clone(), None)], steps).remove(0);
            match (&quick, &exact) {
                (Ok(quick), Some(exact)) => {
                    check_valid(&nodes, &gang, &order, quick);
                    prop_assert!(key(&order, &quick.vector) >= key(&order, &exact.vector));
                }
                (Ok(_), None) => prop_assert!(false, "the exact search missed it"),
                // Not found is never called infeasible.
                (Err(reason), Some(_)) => prop_assert_eq!(reason.code(), "NotFound"),
                (Err(_), None) => {}
            }
        }
    }
}
