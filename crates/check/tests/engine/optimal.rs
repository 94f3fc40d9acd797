//! The engine's single decisions, against the exact solver and the oracle, over random trees and gangs.

use crate::exact::{Block, Instance, RoleSpec, Term, best};
use crate::random::{Cluster, GPU, Modes, instance};
use muster_check::{Use, check_placement};
use muster_engine::{Decision, Engine, Event, solve};
use muster_model::{Gang, Mode, Node, Reason, Resources, plan::Placement};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What other pods use of each node.
pub fn uses(cluster: &Cluster) -> BTreeMap<String, Use> {
    let busy = cluster.nodes.iter().zip(&cluster.free).filter(|(_, free)| **free < 8);
    busy.map(|(node, free)| {
        let requests = Resources::of([(GPU, 8 - free), ("pods", 1)]);
        (format!("on {}", node.name), Use { node: node.name.clone(), requests, repels: Vec::new() })
    })
    .collect()
}

/// The cluster with nothing but what is free, as `solve` takes it.
pub fn free(cluster: &Cluster) -> Vec<Node> {
    let free = |(node, free): (&Node, &i64)| {
        let mut node = node.clone();
        node.allocatable.set(GPU, *free);
        node
    };
    cluster.nodes.iter().zip(&cluster.free).map(free).collect()
}

/// What the engine decides for one gang in a fresh cluster.
pub fn decide(cluster: &Cluster, gang: &Gang) -> Result<Placement, Reason> {
    let mut engine = Engine::new();
    engine.apply(Event::Topology(cluster.topology.clone()));
    for node in &cluster.nodes {
        engine.apply(Event::Node(node.clone()));
    }
    for (id, used) in uses(cluster) {
        engine.apply(Event::Use { id, node: used.node, requests: used.requests });
    }
    engine.apply(Event::Gang(gang.clone()));
    match engine.decide(0, 10).as_slice() {
        [Decision::Place { placement, .. }] => Ok(placement.clone()),
        [Decision::Refuse { reason, .. }] => Err(reason.clone()),
        other => panic!("one decision expected: {other:?}"),
    }
}

/// The order that the design gives: units, broken blocks by size, span, domains from the inside out.
pub fn order(cluster: &Cluster, gang: &Gang) -> Vec<Term> {
    let mut broken: Vec<(u32, usize)> = Vec::new();
    for (role, spec) in gang.roles.iter().enumerate() {
        let preferred = spec.segments.iter().filter(|s| s.mode == Mode::Preferred && s.pods > 1);
        broken.extend(preferred.map(|segment| (segment.pods, role)));
    }
    broken.sort_by_key(|(pods, _)| *pods);
    let levels = cluster.topology.levels.len();
    let blocks = broken.into_iter().map(|(pods, role)| Term::Broken(role, pods));
    let domains = (0..=levels).rev().map(Term::Domains);
    [Term::Units].into_iter().chain(blocks).chain([Term::Span]).chain(domains).collect()
}

/// The same question for the exact solver.
fn question(cluster: &Cluster, gang: &Gang) -> Instance {
    let level = |name: &str| cluster.topology.level(name).expect("a level of the topology");
    Instance {
        levels: cluster.topology.levels.len(),
        nodes: cluster
            .nodes
            .iter()
            .zip(&cluster.free)
            .map(|(node, free)| {
                let taken = i64::from(*free < 8);
                (cluster.path(node.name.as_str()), Resources::of([(GPU, *free), ("pods", 16 - taken)]))
            })
            .collect(),
        roles: gang
            .roles
            .iter()
            .map(|role| RoleSpec {
                request: role.pod_requests(gang.classes.first()),
                pods: role.pods_per_unit,
                counts: (role.min..=role.max)
                    .filter(|n| role.valid.is_empty() || role.valid.contains(n))
                    .collect(),
                blocks: role
                    .segments
                    .iter()
                    .map(|segment| Block {
                        pods: segment.pods,
                        level: level(&segment.level),
                        required: segment.mode == Mode::Required,
                    })
                    .collect(),
            })
            .collect(),
        within: gang.within.as_ref().map(|within| level(&within.level)),
        order: order(cluster, gang),
    }
}

/// What a placement achieves in this order, counted from its nodes.
pub fn achieved(cluster: &Cluster, gang: &Gang, placement: &Placement, order: &[Term]) -> Vec<i64> {
    let prefixes = |nodes: &[muster_model::NodeName], level: usize| {
        let paths = nodes.iter().map(|node| cluster.path(node.as_str())[..=level].to_vec());
        paths.collect::<BTreeSet<_>>().len()
    };
    let all: Vec<_> = placement.units.iter().flat_map(|unit| unit.nodes.clone()).collect();
    let levels = cluster.levels();
    let position = |name: &str| levels.iter().position(|level| level == name).expect("a level");
    order
        .iter()
        .map(|term| match term {
            Term::Units => placement.units.len() as i64,
            Term::Span => (0..levels.len()).filter(|level| prefixes(&all, *level) > 1).count() as i64,
            Term::Domains(level) => prefixes(&all, *level) as i64,
            Term::Broken(role, pods) => {
                let role = &gang.roles[*role];
                let preferred = |s: &&muster_model::Segment| s.mode == Mode::Preferred && s.pods == *pods;
                let segment = role.segments.iter().find(preferred).expect("the segment");
                let units = placement.units.iter().filter(|unit| unit.id.role == role.name);
                let blocks = units.flat_map(|unit| unit.nodes.chunks(*pods as usize));
                blocks.filter(|block| prefixes(block, position(&segment.level)) > 1).count() as i64
            }
        })
        .collect()
}

/// Judges one decision. `optimal`: how many leading terms of the order must be the best possible.
fn judge(cluster: &Cluster, gang: &Gang, optimal: usize) -> Result<(), TestCaseError> {
    let question = question(cluster, gang);
    let best = best(&question);
    match decide(cluster, gang) {
        Ok(placement) => {
            let found = check_placement(&cluster.nodes, &cluster.topology, &uses(cluster), gang, &placement);
            prop_assert_eq!(&found, &Vec::new(), "{:?}", placement);
            let achieved = achieved(cluster, gang, &placement, &question.order);
            let best = best.expect("the oracle accepts a placement, so one exists");
            let terms = optimal.min(achieved.len());
            prop_assert_eq!(&achieved[..terms], &best[..terms], "{:?} for {:?}", placement, question.order);
        }
        // Only a search over several roles may give up.
        Err(Reason::NotFound { .. }) if gang.roles.len() > 1 => {}
        Err(reason) => prop_assert_eq!(best, None, "refused: {}", reason),
    }
    Ok(())
}

/// What the solver calls proven is the best; what it does not is no better than that, and valid.
fn judge_proof(cluster: &Cluster, gang: &Gang) -> Result<(), TestCaseError> {
    let question = question(cluster, gang);
    let best = best(&question);
    let free: Vec<Node> = cluster
        .nodes
        .iter()
        .zip(&question.nodes)
        .map(|(node, (_, free))| Node { allocatable: free.clone(), ..node.clone() })
        .collect();
    match solve(&cluster.topology, &free, &[(gang.clone(), None)]).remove(0) {
        Ok(solution) => {
            let placement = &solution.placement;
            let found = check_placement(&free, &cluster.topology, &BTreeMap::new(), gang, placement);
            prop_assert_eq!(&found, &Vec::new(), "{:?}", placement);
            let achieved = achieved(cluster, gang, placement, &question.order);
            if solution.proven {
                prop_assert_eq!(Some(achieved), best, "{:?} for {:?}", placement, question.order);
            }
        }
        Err(reason) => prop_assert_eq!(best, None, "refused: {}", reason),
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::config(10_000))]

    #[test]
    fn one_role_with_required_segments_is_solved_exactly((cluster, gang) in instance(14, 1, Modes::Required)) {
        judge(&cluster, &gang, usize::MAX)?;
    }

    #[test]
    fn one_role_with_preferred_segments_is_solved_exactly_and_a_proof_is_one((cluster, gang) in instance(14, 1, Modes::Mixed)) {
        judge(&cluster, &gang, usize::MAX)?;
        judge_proof(&cluster, &gang)?;
    }

    #[test]
    fn several_roles_are_placed_validly_and_never_called_infeasible_when_they_fit(
        (cluster, gang) in (1..=3_usize).prop_flat_map(|roles| instance(8, roles, Modes::Mixed))
    ) {
        judge(&cluster, &gang, 0)?;
    }
}
