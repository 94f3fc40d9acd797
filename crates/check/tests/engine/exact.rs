//! An exact solver for small instances, for tests only.
//!
//! Pods of one role are alike, so a plan is, up to the order of ranks, a number of pods of each role on each node.
//! Whether such numbers can be ordered into blocks, and how many blocks are then whole, follows from the numbers in
//! each domain alone: a Required segment of s pods needs a multiple of s in every domain of its level, and of a
//! Preferred one ⌊count/s⌋ blocks are whole in each. All costs but the span add up over disjoint domains, so the best
//! numbers follow from a table per domain, counts → least cost, merged child by child. The span is the depth of the
//! domain that holds the whole gang, and every domain is tried.

use muster_model::Resources;
use std::collections::BTreeMap;

/// What is best, compared from left to right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Units over all roles, more is better (counted negatively).
    Units,
    /// Broken blocks of the Preferred segments of this size of a role (its position).
    Broken(usize, u32),
    /// Levels at which more than one domain is used.
    Span,
    /// Domains used at a level.
    Domains(usize),
}

/// A nested block.
#[derive(Clone, Debug)]
pub struct Block {
    pub pods: u32,
    /// Position of the level, outermost 0; the node's is the number of levels.
    pub level: usize,
    pub required: bool,
}

#[derive(Clone, Debug)]
pub struct RoleSpec {
    pub request: Resources,
    pub pods: u32,
    /// The numbers of units allowed.
    pub counts: Vec<u32>,
    pub blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
pub struct Instance {
    /// Levels above the node.
    pub levels: usize,
    /// Path (one name a level) and what is free.
    pub nodes: Vec<(Vec<String>, Resources)>,
    pub roles: Vec<RoleSpec>,
    /// The whole gang in one domain of this level.
    pub within: Option<usize>,
    pub order: Vec<Term>,
}

/// Pods of each role → least cost, a value a term.
type Table = BTreeMap<Vec<u32>, Vec<i64>>;

/// The best vector, in the order's sequence (units positive), or `None` if no placement exists.
pub fn best(instance: &Instance) -> Option<Vec<i64>> {
    let all: Vec<usize> = (0..instance.nodes.len()).collect();
    let mut candidates = Vec::new();
    table(instance, 0, &all, &mut candidates);
    candidates.into_iter().min().map(|mut cost| {
        for (value, term) in cost.iter_mut().zip(&instance.order) {
            if *term == Term::Units {
                *value = -*value;
            }
        }
        cost
    })
}

/// The table of the domain at `depth` (0: everything; 1: a domain of level 0; …) with these nodes; the final costs of
/// gangs that lie in it or in a domain within it go to `candidates`.
fn table(instance: &Instance, depth: usize, members: &[usize], candidates: &mut Vec<Vec<i64>>) -> Table {
    let mut merged = Table::new();
    if depth == instance.levels + 1 {
        let none = vec![0; instance.roles.len()];
        fill(instance, &instance.nodes[members[0]].1, &none, 0, &mut merged);
    } else {
        merged.insert(vec![0; instance.roles.len()], vec![0; instance.order.len()]);
        for child in children(instance, depth, members) {
            merged = merge(instance, &merged, &table(instance, depth + 1, &child, candidates));
        }
    }
    if let Some(level) = depth.checked_sub(1) {
        merged = close(instance, level, merged);
    }
    if instance.within.is_none_or(|level| depth > level) {
        let mut whole = merged.clone();
        for level in (0..depth.saturating_sub(1)).rev() {
            whole = close(instance, level, whole);
        }
        candidates.extend(whole.iter().filter_map(|(counts, cost)| finish(instance, depth, counts, cost)));
    }
    merged
}

/// The members of each child domain.
fn children(instance: &Instance, depth: usize, members: &[usize]) -> Vec<Vec<usize>> {
    if depth == instance.levels {
        return members.iter().map(|node| vec![*node]).collect();
    }
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for node in members {
        by_name.entry(&instance.nodes[*node].0[depth]).or_default().push(*node);
    }
    by_name.into_values().collect()
}

/// All numbers of pods, from `role` on, that fit a node.
fn fill(instance: &Instance, free: &Resources, counts: &[u32], role: usize, into: &mut Table) {
    let Some(spec) = instance.roles.get(role) else {
        into.insert(counts.to_vec(), vec![0; instance.order.len()]);
        return;
    };
    let (mut counts, mut free) = (counts.to_vec(), free.clone());
    loop {
        fill(instance, &free, &counts, role + 1, into);
        if counts[role] == most(spec) || free.shortage(&spec.request).is_some() {
            return;
        }
        counts[role] += 1;
        free.subtract(&spec.request);
    }
}

/// Pods of the largest allowed number of units.
fn most(spec: &RoleSpec) -> u32 {
    spec.counts.iter().max().map_or(0, |units| units * spec.pods)
}

fn merge(instance: &Instance, one: &Table, other: &Table) -> Table {
    let mut all = Table::new();
    for (counts, cost) in one {
        for (more, cost_more) in other {
            let sum: Vec<u32> = counts.iter().zip(more).map(|(a, b)| a + b).collect();
            if sum.iter().zip(&instance.roles).any(|(count, spec)| *count > most(spec)) {
                continue;
            }
            let total: Vec<i64> = cost.iter().zip(cost_more).map(|(a, b)| a + b).collect();
            let entry = all.entry(sum).or_insert_with(|| total.clone());
            if total < *entry {
                *entry = total;
            }
        }
    }
    all
}

/// Applies a level's rules and costs to the table of one of its domains.
fn close(instance: &Instance, level: usize, table: Table) -> Table {
    let rules = || {
        instance.roles.iter().enumerate().flat_map(|(role, spec)| {
            spec.blocks.iter().filter(|block| block.level == level).map(move |block| (role, block))
        })
    };
    table
        .into_iter()
        .filter(|(counts, _)| {
            rules().filter(|(_, block)| block.required).all(|(role, block)| counts[role] % block.pods == 0)
        })
        .map(|(counts, mut cost)| {
            for (value, term) in cost.iter_mut().zip(&instance.order) {
                *value += match term {
                    Term::Domains(counted) => i64::from(*counted == level && counts.iter().any(|c| *c > 0)),
                    Term::Broken(of, pods) => -rules()
                        .filter(|(role, block)| role == of && !block.required && block.pods == *pods)
                        .map(|(role, block)| i64::from(counts[role] / block.pods))
                        .sum::<i64>(),
                    Term::Units | Term::Span => 0,
                };
            }
            (counts, cost)
        })
        .collect()
}

/// The cost of a gang with these counts inside a domain at `depth`; `None` if they are not allowed numbers of units.
fn finish(instance: &Instance, depth: usize, counts: &[u32], cost: &[i64]) -> Option<Vec<i64>> {
    let units = counts
        .iter()
        .zip(&instance.roles)
        .map(|(count, spec)| {
            (count % spec.pods == 0 && spec.counts.contains(&(count / spec.pods)))
                .then_some(count / spec.pods)
        })
        .collect::<Option<Vec<u32>>>()?;
    let terms = instance.order.iter().zip(cost);
    Some(
        terms
            .map(|(term, value)| match term {
                Term::Units => -i64::from(units.iter().sum::<u32>()),
                Term::Broken(role, pods) => i64::from(counts[*role] / pods) + value,
                Term::Span => (instance.levels + 1 - depth) as i64,
                Term::Domains(_) => *value,
            })
            .collect(),
    )
}
