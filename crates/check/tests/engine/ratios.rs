//! How many units: roles tied by ratios grow to the most that fit, shrink to the most that are left, and never lose by
//! more nodes. Judged by counting over every vector of units.
//!
//! ```text
//!   free GPUs ──slots of each pod size──▶ does a vector fit?      (pod sizes are powers of two: counting is exact)
//!   survivors ──at most so many a role──▶ does it keep the ratios? ──▶ most units ══ the engine's
//! ```

use crate::{
    optimal::{decide, free, uses},
    random::{Cluster, Modes, cluster, node, ruled},
};
use muster_check::check_placement;
use muster_engine::{Decision, EXACT_STEPS, Engine, Event, How, solve_within};
use muster_model::{Gang, GangState, Node, Plan, Reason, RecoveryStep, Role, Rules, UnitId, plan::Placement};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Units of each role, in the gang's order.
fn units(gang: &Gang, placement: &Placement) -> Vec<u32> {
    let of = |role: &Role| placement.units.iter().filter(|unit| unit.id.role == role.name).count() as u32;
    gang.roles.iter().map(of).collect()
}

/// The most units over every vector of allowed counts that keeps the ratios and is accepted; `None` if none but nothing.
fn most(gang: &Gang, accepted: impl Fn(&[u32]) -> bool) -> Option<u32> {
    let mut vectors: Vec<Vec<u32>> = vec![Vec::new()];
    for role in &gang.roles {
        let allowed = |count: &u32| role.valid.is_empty() || role.valid.contains(count);
        let counts: Vec<u32> = (role.min..=role.max).filter(allowed).collect();
        let with = |vector: &Vec<u32>, count: u32| [vector.clone(), vec![count]].concat();
        vectors = vectors.iter().flat_map(|v| counts.iter().map(move |count| with(v, *count))).collect();
    }
    let at = |name: &str| gang.roles.iter().position(|role| role.name == name).expect("a role of the gang");
    let keeps = |vector: &Vec<u32>| {
        gang.rules.ratios.iter().all(|ratio| {
            let (units, of) = (vector[at(&ratio.role)], vector[at(&ratio.of)]);
            units * ratio.per >= of * ratio.min && units * ratio.per <= of * ratio.max
        })
    };
    let sums = vectors.iter().filter(|v| keeps(v) && accepted(v)).map(|v| v.iter().sum::<u32>());
    sums.max().filter(|most| *most > 0)
}

/// Whether units of roles without any rule for their places fit: a pod of 8 takes as many slots of 8 from any node, and
/// as many of each smaller size, so large pods first never err.
fn fits(cluster: &Cluster, gang: &Gang, vector: &[u32]) -> bool {
    [1_u32, 2, 4, 8].iter().all(|size| {
        let slots: i64 = cluster.free.iter().map(|free| free / i64::from(*size)).sum();
        let wanted = gang.roles.iter().zip(vector).filter(|(role, _)| role.devices >= *size);
        let wanted =
            wanted.map(|(role, units)| units * role.pods_per_unit * (role.devices / size)).sum::<u32>();
        i64::from(wanted) <= slots
    })
}

/// A gang of elastic roles with ratios between them, and no rule for places.
fn elastic() -> impl Strategy<Value = (Cluster, Gang)> {
    let sizes = (1..=3_u32, 0..=2_u32, 0..=7_u32, prop::bool::weighted(0.2));
    let gang = (1..=3_usize).prop_flat_map(|roles| ruled(1, roles, Modes::Required, false));
    (cluster(10), gang, prop::collection::vec(sizes, 3)).prop_map(|(cluster, mut gang, sizes)| {
        for (role, (pods, min, more, even)) in gang.roles.iter_mut().zip(sizes) {
            (role.pods_per_unit, role.min, role.max) = (pods, min, (min + more).max(1));
            let every_other = (role.min..=role.max).filter(|count| (count - min) % 2 == 0);
            role.valid = if even { every_other.collect() } else { Vec::new() };
            role.segments.clear();
        }
        gang.within = None;
        gang.rules = Rules { ratios: gang.rules.ratios, ..Rules::default() };
        (cluster, gang)
    })
}

/// What becomes of a placed gang that has lost units, where no node takes a pod any more.
fn shrunk(cluster: &Cluster, gang: &Gang) -> Decision {
    let mut engine = Engine::new();
    engine.apply(Event::Topology(cluster.topology.clone()));
    for node in &cluster.nodes {
        engine.apply(Event::Node(Node { cordoned: true, ..node.clone() }));
    }
    for (id, used) in uses(cluster) {
        engine.apply(Event::Use { id, node: used.node, requests: used.requests });
    }
    engine.apply(Event::Gang(gang.clone()));
    engine.decide(0, 1).remove(0)
}

/// Judges what is found with so many steps of exact search against the most units. What is not proven to be the best may
/// fall short, in few cases of a hundred without any exact search, and is never taken for impossible.
fn judge(cluster: &Cluster, gang: &Gang, steps: u64, most: Option<u32>) -> Result<(), TestCaseError> {
    let nodes = free(cluster);
    match solve_within(&cluster.topology, &nodes, &[(gang.clone(), None)], steps).remove(0) {
        Ok(solution) => {
            let placement = &solution.placement;
            let found = check_placement(&nodes, &cluster.topology, &BTreeMap::new(), gang, placement);
            prop_assert_eq!(found, Vec::new(), "{:?}", placement);
            let placed = Some(placement.units.len() as u32);
            let units = units(gang, placement);
            prop_assert!(placed == most || !solution.proven && placed < most, "{:?} of {:?}", units, most);
        }
        // Only a search over several roles may give up.
        Err(Reason::NotFound { .. }) if gang.roles.len() > 1 => {}
        Err(reason) => prop_assert_eq!(most, None, "refused: {}", reason),
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::config(10_000))]

    #[test]
    fn elastic_roles_get_the_most_units_that_fit_and_keep_their_ratios((cluster, gang) in elastic()) {
        let most = most(&gang, |vector| fits(&cluster, &gang, vector));
        for steps in [EXACT_STEPS, 0] {
            judge(&cluster, &gang, steps, most)?;
        }
    }

    #[test]
    fn survivors_go_on_with_the_most_units_that_keep_their_ratios(
        (cluster, gang) in elastic(),
        lost in prop::collection::vec(0..32_usize, 1..6),
    ) {
        let Ok(placement) = decide(&cluster, &gang) else { return Ok(()) };
        let ids: Vec<UnitId> = placement.units.iter().map(|unit| unit.id.clone()).collect();
        let lost: BTreeSet<UnitId> = lost.iter().map(|at| ids[at % ids.len()].clone()).collect();
        let mut left = placement.clone();
        left.units.retain(|unit| !lost.contains(&unit.id));
        let left = units(&gang, &left);
        let accepted = |v: &[u32]| v.iter().zip(&left).all(|(units, left)| units <= left);
        let most = most(&gang, accepted);
        let state = GangState::Replan { plan: Plan::next(None, 1, placement, &BTreeSet::new(), false), lost, steps: RecoveryStep::ALL.to_vec() };
        let gang = Gang { state, ..gang };
        match shrunk(&cluster, &gang) {
            Decision::Place { placement, how, .. } => {
                prop_assert_eq!(how, How::Shrunk);
                let found = check_placement(&cluster.nodes, &cluster.topology, &uses(&cluster), &gang, &placement);
                // Survivors stay where they are, on cordoned nodes too.
                prop_assert_eq!(found, Vec::new(), "{:?}", placement);
                prop_assert_eq!(Some(placement.units.len() as u32), most, "{:?} of {:?}", units(&gang, &placement), left);
            }
            Decision::Refuse { reason, .. } => prop_assert_eq!(most, None, "refused: {}", reason),
        }
    }

    #[test]
    fn more_nodes_never_give_fewer_units(
        (cluster, gang) in cluster(8).prop_flat_map(|cluster| {
            let levels = cluster.topology.levels.len();
            (Just(cluster), (1..=3_usize).prop_flat_map(move |roles| ruled(levels, roles, Modes::Mixed, true)))
        }),
        more in prop::collection::vec((prop::collection::vec(0..4_u8, 3), 0..=8_i64), 1..4),
    ) {
        let mut larger = cluster.clone();
        for (path, free) in more {
            larger.nodes.push(node(&cluster.topology, larger.nodes.len(), &path));
            larger.free.push(free);
        }
        match (decide(&cluster, &gang), decide(&larger, &gang)) {
            (Ok(before), Ok(after)) => {
                prop_assert!(after.units.len() >= before.units.len(), "{:?} became {:?}", before, after);
            }
            // Only a search over several roles may give up.
            (Ok(_), Err(Reason::NotFound { .. })) if gang.roles.len() > 1 => {}
            (Ok(before), Err(reason)) => prop_assert!(false, "{before:?} became: {reason}"),
            (Err(_), _) => {}
        }
    }
}
