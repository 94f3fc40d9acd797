//! Why a gang is not placed: the binding constraint and the nearest misses, as one [`Reason`].

use muster_model::{AcceleratorClass, DomainMiss, Gang, Reason, Resources, reason::NodeRefusal};
use std::collections::BTreeMap;

use crate::{
    cluster::Cluster,
    forest::{self, Eligibility, Forest},
    greedy::Short,
    spec::{RoleSpec, Spec},
};

/// How many near misses a reason names.
const NEAREST: usize = 3;

/// How near to being placed a reason is: of several classes, the best is reported.
pub fn nearness(reason: &Reason) -> (u8, u32) {
    match reason {
        Reason::NotFound { .. } => (3, 0),
        Reason::InsufficientCapacity { fits, .. } => (2, *fits),
        Reason::SegmentTooLarge { .. } => (1, 0),
        _ => (0, 0),
    }
}

/// Units of a role alone that fit inside the best allowed domain, and that domain.
fn units_alone(cluster: &Cluster, forest: &Forest, spec: &Spec, index: usize) -> (u32, Option<usize>) {
    let role = &spec.roles[index];
    let leaf = cluster.tree.leaf_depth();
    let sizes = forest::block_sizes(role, leaf, false);
    let blocks = forest.floors(role, leaf, false, |part| forest.parts[part].fits[index]);
    let units = |part: usize| {
        (blocks[part] * sizes[forest.parts[part].depth] / u64::from(role.pods)).min(u64::from(u32::MAX))
            as u32
    };
    let top = forest.root().map_or(0, |root| forest.parts[root].depth);
    (0..forest.parts.len())
        .filter(|part| forest.parts[*part].depth == spec.within.max(top))
        .map(|part| (units(part), Some(part)))
        .max_by_key(|(units, part)| (*units, std::cmp::Reverse(*part)))
        .unwrap_or((0, None))
}

/// The first role of which even alone fewer than the minimum fit.
pub fn short_alone(cluster: &Cluster, forest: &Forest, spec: &Spec) -> Option<(usize, u32)> {
    (0..spec.roles.len()).find_map(|role| {
        let (fits, _) = units_alone(cluster, forest, spec, role);
        (fits < spec.roles[role].min().max(u32::from(spec.roles.len() == 1))).then_some((role, fits))
    })
}

/// The reason. `proven` says whether infeasibility is certain.
pub fn reason(
    cluster: &Cluster,
    forest: &Forest,
    spec: &Spec,
    gang: &Gang,
    class: Option<&AcceleratorClass>,
    short: Option<&Short>,
    proven: bool,
) -> Reason {
    let alone = short_alone(cluster, forest, spec);
    let (role, fits) = match (alone, short) {
        (Some(found), _) => found,
        (None, Some(short)) if proven => (short.role, short.fits),
        (None, Some(short)) => return Reason::NotFound { states: short.tried },
        (None, None) => (0, 0),
    };
    let empty = Forest::whole(cluster, spec, &Eligibility { gang, class, empty: true });
    let nodes = refusals(cluster, spec, gang, class, role);
    let of = &spec.roles[role];
    if empty.parts.last().is_none_or(|root| root.fits[role] == 0) {
        let request: Resources = gang.roles[role].pod_requests(class);
        return Reason::NoNodeFits { role: of.name.clone(), request, nodes };
    }
    let (empty_units, _) = units_alone(cluster, &empty, spec, role);
    if empty_units < of.min()
        && let Some((pods, depth)) = too_large(cluster, &empty, spec, role)
    {
        let largest = misses(cluster, &empty, role, depth, pods).into_iter().next();
        let level = cluster.tree.level_name(depth).to_owned();
        return Reason::SegmentTooLarge { role: of.name.clone(), pods, level, largest };
    }
    let (level, nearest) = scattered(cluster, forest, spec, role);
    Reason::InsufficientCapacity {
        role: of.name.clone(),
        fits,
        min: of.min().max(1),
        empty: empty_units,
        level,
        nearest,
        nodes,
    }
}

/// Blocks that must stay together: every Required segment, and the minimum of the role inside `within`.
fn blocks_of(spec: &Spec, role: &RoleSpec) -> Vec<(u32, usize)> {
    let mut all: Vec<(u32, usize)> =
        role.segments.iter().filter(|seg| seg.required).map(|seg| (seg.pods, seg.depth)).collect();
    if spec.within > 0 {
        all.push((role.min().max(1) * role.pods, spec.within));
    }
    all
}

/// The first block that no domain of an empty cluster holds.
fn too_large(cluster: &Cluster, empty: &Forest, spec: &Spec, role: usize) -> Option<(u32, usize)> {
    let _ = cluster;
    blocks_of(spec, &spec.roles[role]).into_iter().find(|(pods, depth)| {
        empty.parts.iter().filter(|part| part.depth == *depth).all(|part| part.fits[role] < u64::from(*pods))
    })
}

/// Domains of a depth by what they lack for one more block, nearest first.
fn misses(cluster: &Cluster, forest: &Forest, role: usize, depth: usize, pods: u32) -> Vec<DomainMiss> {
    let wanted = u64::from(pods).max(1);
    let mut all: Vec<(u64, usize)> = forest
        .parts
        .iter()
        .enumerate()
        .filter(|(_, part)| part.depth == depth)
        .map(|(index, part)| (wanted - part.fits[role] % wanted, index))
        .collect();
    all.sort_unstable();
    all.truncate(NEAREST);
    all.into_iter()
        .map(|(lacks, index)| {
            let part = &forest.parts[index];
            let mut domain = cluster.tree.path(part.domain);
            if let Some(node) = part.slot.and_then(|slot| cluster.node(slot)) {
                domain = format!("{domain}/{}", node.name);
            }
            DomainMiss {
                level: cluster.tree.level_name(depth).to_owned(),
                domain,
                pods: (wanted - lacks) as u32,
                wanted: pods,
            }
        })
        .collect()
}

/// The level at which most pods are lost to blocks that must stay together, and the domains nearest to one more.
fn scattered(
    cluster: &Cluster,
    forest: &Forest,
    spec: &Spec,
    role: usize,
) -> (Option<String>, Vec<DomainMiss>) {
    let of = &spec.roles[role];
    let Some(root) = forest.parts.last() else { return (None, Vec::new()) };
    let wanted = u64::from(of.min().max(1)) * u64::from(of.pods);
    let blocks = blocks_of(spec, of);
    if root.fits[role] < wanted || blocks.is_empty() {
        let depth = if spec.within > root.depth { spec.within } else { root.depth };
        let nearest =
            if spec.within > 0 { misses(cluster, forest, role, depth, wanted as u32) } else { Vec::new() };
        return (None, nearest);
    }
    let lost = |pods: u32, depth: usize| -> u64 {
        let at = forest.parts.iter().filter(|part| part.depth == depth);
        if depth == spec.within && u64::from(pods) >= wanted {
            // All but the best domain are lost to `within`.
            let most = at.map(|part| part.fits[role]).max().unwrap_or(0);
            return root.fits[role] - most;
        }
        at.map(|part| part.fits[role] % u64::from(pods)).sum()
    };
    let worst = blocks.into_iter().max_by_key(|(pods, depth)| lost(*pods, *depth));
    worst.map_or((None, Vec::new()), |(pods, depth)| {
        let level = cluster.tree.level_name(depth).to_owned();
        (Some(level), misses(cluster, forest, role, depth, pods))
    })
}

/// How many nodes refuse one pod of a role for which reason.
fn refusals(
    cluster: &Cluster,
    spec: &Spec,
    gang: &Gang,
    class: Option<&AcceleratorClass>,
    role: usize,
) -> BTreeMap<NodeRefusal, u32> {
    let mut all = BTreeMap::new();
    let request = &spec.roles[role].request;
    for (_, node, facts) in cluster.nodes() {
        let refusal = Cluster::refusal(facts, &gang.roles[role], class, &gang.avoid, false).or_else(|| {
            if node.fits(request, true) == 0 {
                Some(NodeRefusal::TooSmall)
            } else {
                (node.fits(request, false) == 0).then_some(NodeRefusal::Busy)
            }
        });
        if let Some(refusal) = refusal {
            *all.entry(refusal).or_insert(0) += 1;
        }
    }
    all
}
