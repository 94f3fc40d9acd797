//! What pods wish of nodes without needing it: preferred node affinity, and taints that ask to be avoided.
//!
//! ```text
//!   nodes, domains that are equally compact ──malus──▶ the one that lacks least
//! ```
//!
//! Wishes weigh less than units, rules and compactness, and more than how well a gang fills gaps.

use muster_model::{Taint, TaintEffect};
use std::collections::BTreeMap;

use crate::{
    nodes,
    problem::Problem,
    tree::{DomainId, Slot},
};

/// What speaks against nodes: the weight of preferred node affinity that they lack, then the taints that they would rather
/// not have tolerated.
pub type Malus = (u64, u64);

/// Whether nodes that are equally good otherwise may differ in what a role wishes for.
pub fn has_any(problem: &Problem<'_>, role: usize) -> bool {
    problem.cluster.soft_taints > 0 || !problem.gang.roles[role].traits.preferred.is_empty()
}

/// What speaks against a node for one pod of a role.
pub fn malus(problem: &Problem<'_>, role: usize, slot: Slot) -> Malus {
    let Some(facts) = problem.cluster.node(slot).and_then(|node| node.facts.as_ref()) else { return (0, 0) };
    let role = &problem.gang.roles[role];
    let lacks =
        role.traits.preferred.iter().filter(|wish| !wish.term.matches(facts.name.as_str(), &facts.labels));
    let repels = |taint: &&Taint| {
        taint.effect == TaintEffect::PreferNoSchedule && !role.tolerations.iter().any(|t| t.tolerates(taint))
    };
    let taints = facts.taints.iter().filter(repels).count();
    (lacks.map(|wish| u64::from(wish.weight)).sum(), taints as u64)
}

/// What speaks against pods of the first role in leaf domains, each with so many of them.
pub fn malus_of(problem: &Problem<'_>, leaves: &[(DomainId, u64)], chunk: u64) -> Malus {
    if !has_any(problem, 0) {
        return (0, 0);
    }
    let mut pods = Vec::new();
    for (leaf, count) in leaves {
        nodes::list(problem, *leaf, *count, chunk, &mut pods);
    }
    let add = |sum: Malus, slot: &Slot| {
        let (weight, taints) = malus(problem, 0, *slot);
        (sum.0 + weight, sum.1 + taints)
    };
    pods.iter().fold((0, 0), add)
}

/// Moves what lies on a node of several roles' placement to another one of the same leaf domain that is as good for all
/// of them and lacks less. `pods` are nodes by role, one entry a pod.
pub fn improve(problem: &Problem<'_>, pods: &mut [Vec<Slot>]) {
    let roles = pods.len();
    if !(0..roles).any(|role| has_any(problem, role)) || !problem.on.spec.rules.is_empty() {
        return;
    }
    // Pods by node and role.
    let mut load: BTreeMap<Slot, Vec<u64>> = BTreeMap::new();
    for (role, slots) in pods.iter().enumerate() {
        for slot in slots {
            load.entry(*slot).or_insert_with(|| vec![0; roles])[role] += 1;
        }
    }
    let mut moved: BTreeMap<Slot, Slot> = BTreeMap::new();
    for slot in load.keys().copied().collect::<Vec<_>>() {
        let here = load[&slot].clone();
        let against = |slot: Slot| {
            let of = |role: usize| {
                let (weight, taints) = malus(problem, role, slot);
                (here[role] * weight, here[role] * taints)
            };
            (0..roles).map(of).fold((0, 0), |sum: Malus, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let Some(leaf) = problem.cluster.node(slot).and_then(|node| node.leaf) else { continue };
        let others = problem.cluster.tree.domain(leaf).nodes.iter().copied();
        let equal =
            others.filter(|other| !load.contains_key(other) && is_as_good(problem, &here, slot, *other));
        let best = equal.map(|other| (against(other), other)).min();
        if let Some((_, other)) = best.filter(|(less, _)| *less < against(slot)) {
            moved.insert(slot, other);
            load.remove(&slot);
            load.insert(other, here);
        }
    }
    for at in pods.iter_mut().flatten() {
        *at = moved.get(at).copied().unwrap_or(*at);
    }
}

/// Whether another node holds what lies on one, and is no better or worse for pods of these roles.
fn is_as_good(problem: &Problem<'_>, here: &[u64], slot: Slot, other: Slot) -> bool {
    let index = &problem.cluster.index;
    let same = |role: usize| {
        let shape = problem.on.ids[role].shape;
        index.fit(shape, slot) == index.fit(shape, other)
    };
    let Some(node) = problem.cluster.node(other) else { return false };
    let roles = || (0..here.len()).filter(|role| here[*role] > 0);
    let of = |role: usize, column: usize| {
        problem.on.spec.roles[role].asks(column).saturating_mul(here[role] as i64)
    };
    let takes = |column: usize| -> i64 { roles().map(|role| of(role, column)).sum() };
    let columns = roles().flat_map(|role| &problem.on.spec.roles[role].request).map(|(column, _)| *column);
    roles().all(same) && columns.into_iter().all(|column| node.left(column, false) >= takes(column))
}
