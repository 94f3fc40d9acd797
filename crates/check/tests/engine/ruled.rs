//! Rules between roles and units: the engine against the oracle, and against every placement of tiny clusters.

use crate::optimal::{achieved, decide, free, order, uses};
use crate::random::{Cluster, Modes, cluster, ruled, small};
use muster_check::{Violation, check_placement};
use muster_engine::{Decision, Engine, Event, solve_within};
use muster_model::{
    Gang, GangState, Mode, Node, NodeName, Plan, Reason, RecoveryStep, Role, UnitId,
    plan::{PlacedUnit, Placement},
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A cluster and a gang with rules for it.
fn instance(most: usize, preferred: bool) -> impl Strategy<Value = (Cluster, Gang)> {
    (cluster(most), 1..=3_usize).prop_flat_map(move |(cluster, roles)| {
        let levels = cluster.topology.levels.len();
        (Just(cluster), ruled(levels, roles, Modes::Required, preferred))
    })
}

/// As [`instance`], so small that every placement can be tried.
fn tiny(preferred: bool) -> impl Strategy<Value = (Cluster, Gang)> {
    (cluster(4), 1..=2_usize).prop_flat_map(move |(cluster, roles)| {
        let levels = cluster.topology.levels.len();
        (Just(cluster), small(ruled(levels, roles, Modes::Required, preferred)))
    })
}

fn valid(cluster: &Cluster, gang: &Gang, placement: &Placement) -> Vec<Violation> {
    check_placement(&cluster.nodes, &cluster.topology, &uses(cluster), gang, placement)
}

/// Every choice of nodes for so many units of a role, the order of units and of pods in a unit aside.
fn choices(cluster: &Cluster, role: &Role, units: u32) -> Vec<Vec<Vec<NodeName>>> {
    let names: Vec<NodeName> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
    let one: Vec<Vec<NodeName>> = match role.pods_per_unit {
        1 => names.iter().map(|name| vec![name.clone()]).collect(),
        _ => (0..names.len())
            .flat_map(|a| (a..names.len()).map(move |b| (a, b)))
            .map(|(a, b)| vec![names[a].clone(), names[b].clone()])
            .collect(),
    };
    let mut all: Vec<(usize, Vec<Vec<NodeName>>)> = vec![(0, Vec::new())];
    for _ in 0..units {
        let more = all.iter().flat_map(|(from, chosen)| {
            (*from..one.len()).map(|at| (at, [chosen.clone(), vec![one[at].clone()]].concat()))
        });
        all = more.collect();
    }
    all.into_iter().map(|(_, chosen)| chosen).collect()
}

/// Every placement with so many units of each role.
pub fn placements(cluster: &Cluster, gang: &Gang, units: &[u32]) -> Vec<Placement> {
    let mut all = vec![Placement::default()];
    for (role, units) in gang.roles.iter().zip(units) {
        let choices = choices(cluster, role, *units);
        let with = |placement: &Placement, chosen: &Vec<Vec<NodeName>>| {
            let mut placement = placement.clone();
            placement.units.extend(chosen.iter().enumerate().map(|(index, nodes)| PlacedUnit {
                id: UnitId { role: role.name.clone(), index: index as u32 },
                class: Some("card".into()),
                nodes: nodes.clone(),
            }));
            placement
        };
        all = all
            .iter()
            .flat_map(|placement| choices.iter().map(move |chosen| with(placement, chosen)))
            .collect();
    }
    all
}

/// How far a placement is from what Preferred rules wish, one number a rule: less is better.
fn wishes(cluster: &Cluster, gang: &Gang, placement: &Placement) -> Vec<i64> {
    let levels = cluster.levels();
    let position = |name: &str| levels.iter().position(|level| level == name).expect("a level");
    let at = |node: &NodeName, level: usize| cluster.path(node.as_str())[..=level].to_vec();
    let near = gang.rules.near.iter().filter(|rule| rule.mode == Mode::Preferred).map(|rule| {
        let inner = position(&rule.level);
        let nodes =
            placement.units.iter().filter(|unit| rule.roles.contains(&unit.id.role)).flat_map(|u| &u.nodes);
        let nodes: Vec<&NodeName> = nodes.collect();
        let one =
            |level: &usize| nodes.iter().map(|node| at(node, *level)).collect::<BTreeSet<_>>().len() <= 1;
        (0..=inner).rev().find(one).map_or(inner + 1, |level| inner - level) as i64
    });
    let spread = gang.rules.spread.iter().filter(|rule| rule.mode == Mode::Preferred).map(|rule| {
        let mut held: BTreeMap<Vec<String>, i64> = BTreeMap::new();
        for unit in placement.units.iter().filter(|unit| unit.id.role == rule.role) {
            let domains: BTreeSet<Vec<String>> =
                unit.nodes.iter().map(|node| at(node, position(&rule.level))).collect();
            if domains.len() > 1 {
                return i64::MAX;
            }
            for domain in domains {
                *held.entry(domain).or_default() += 1;
            }
        }
        (held.into_values().max().unwrap_or(0) - i64::from(rule.units)).max(0)
    });
    near.chain(spread).collect()
}

/// Most units, then wishes, then the engine's own order: less is better.
fn key(cluster: &Cluster, gang: &Gang, placement: &Placement) -> Vec<i64> {
    let mut key = vec![-(placement.units.len() as i64)];
    key.extend(wishes(cluster, gang, placement));
    // The order's first value is the units.
    key.extend(&achieved(cluster, gang, placement, &order(cluster, gang))[1..]);
    key
}

/// The best over every placement; `None` if none is valid.
fn by_trying_all(cluster: &Cluster, gang: &Gang) -> Option<Vec<i64>> {
    let mut vectors: Vec<Vec<u32>> = vec![Vec::new()];
    for role in &gang.roles {
        let with = |vector: &Vec<u32>, units| [vector.clone(), vec![units]].concat();
        vectors =
            vectors.iter().flat_map(|v| (role.min..=role.max).map(move |units| with(v, units))).collect();
    }
    vectors.sort_by_key(|vector| std::cmp::Reverse(vector.iter().sum::<u32>()));
    let mut best: Option<Vec<i64>> = None;
    for vector in vectors {
        let total = vector.iter().sum::<u32>();
        if total == 0 || best.as_ref().is_some_and(|best| -best[0] > i64::from(total)) {
            return best;
        }
        for placement in placements(cluster, gang, &vector) {
            if valid(cluster, gang, &placement).is_empty() {
                let key = key(cluster, gang, &placement);
                best = Some(best.map_or_else(|| key.clone(), |best| best.min(key.clone())));
            }
        }
    }
    best
}

/// A placed gang that loses some of its units, in a cluster where their nodes are not to be had.
fn replanned(
    cluster: &Cluster,
    gang: &Gang,
    placement: Placement,
    lost: &[usize],
) -> Option<(Gang, Decision)> {
    let ids: Vec<UnitId> = placement.units.iter().map(|unit| unit.id.clone()).collect();
    let lost: BTreeSet<UnitId> = lost.iter().map(|at| ids[at % ids.len()].clone()).collect();
    let left = placement.units.iter().find(|unit| lost.contains(&unit.id))?.nodes[0].clone();
    let mut engine = Engine::new();
    engine.apply(Event::Topology(cluster.topology.clone()));
    for node in &cluster.nodes {
        engine.apply(Event::Node(Node { ready: node.ready && node.name != left, ..node.clone() }));
    }
    for (id, used) in uses(cluster) {
        engine.apply(Event::Use { id, node: used.node, requests: used.requests });
    }
    let plan = Plan::next(None, 1, placement, &BTreeSet::new(), false);
    let gang =
        Gang { state: GangState::Replan { plan, lost, steps: RecoveryStep::ALL.to_vec() }, ..gang.clone() };
    engine.apply(Event::Gang(gang.clone()));
    Some((gang, engine.decide(0, 1).remove(0)))
}

proptest! {
    #![proptest_config(crate::config(5_000))]

    #[test]
    fn a_tiny_gang_with_rules_is_placed_as_well_as_any_placement_is((cluster, gang) in tiny(true)) {
        let best = by_trying_all(&cluster, &gang);
        match decide(&cluster, &gang) {
            Ok(placement) => {
                prop_assert_eq!(valid(&cluster, &gang, &placement), Vec::new(), "{:?}", placement);
                prop_assert_eq!(Some(key(&cluster, &gang, &placement)), best, "{:?}", placement);
            }
            Err(reason) => prop_assert_eq!(best, None, "refused: {}", reason),
        }
    }

    #[test]
    fn a_larger_gang_with_rules_is_valid_and_stays_so_when_units_are_lost(
        (cluster, gang) in instance(12, true),
        lost in prop::collection::vec(0..16_usize, 1..3),
    ) {
        let Ok(placement) = decide(&cluster, &gang) else { return Ok(()) };
        prop_assert_eq!(valid(&cluster, &gang, &placement), Vec::new(), "{:?}", placement);
        let Some((gang, decision)) = replanned(&cluster, &gang, placement, &lost) else { return Ok(()) };
        if let Decision::Place { placement, .. } = decision {
            prop_assert_eq!(valid(&cluster, &gang, &placement), Vec::new(), "{:?}", placement);
        }
    }

    #[test]
    fn without_exact_search_rules_hold_and_not_found_is_not_called_infeasible((cluster, gang) in instance(10, false)) {
        let nodes = free(&cluster);
        let ask = |steps| solve_within(&cluster.topology, &nodes, &[(gang.clone(), None)], steps).remove(0);
        let (quick, exact) = (ask(0), ask(50_000_000));
        match (quick, exact) {
            (Ok(quick), exact) => {
                let found = check_placement(&nodes, &cluster.topology, &BTreeMap::new(), &gang, &quick.placement);
                prop_assert_eq!(found, Vec::new(), "{:?}", quick.placement);
                let exact = exact.expect("the oracle accepts a placement, so one exists");
                prop_assert!(quick.placement.units.len() <= exact.placement.units.len() || !exact.proven);
            }
            (Err(reason), Ok(_)) => prop_assert!(matches!(reason, Reason::NotFound { .. }), "{}", reason),
            (Err(_), Err(_)) => {}
        }
    }
}
