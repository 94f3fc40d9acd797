//! What no placement can beat: bounds from the counts alone, so that a plan which nothing proves the best states how
//! far from the best it may be.
//!
//! ```text
//!   pods of each role + pods that fit per domain ─▶ largest first ─▶ fewest domains per level, smallest span, most units
//! ```

use crate::{problem::Problem, spec::Objective};

/// For each objective of an order a value that no placement with these units per role beats (for units: that no
/// placement beats).
pub fn bounds(problem: &Problem<'_>, order: &[Objective], units: &[u32]) -> Vec<u64> {
    let tree = &problem.cluster.tree;
    let nodes_depth = tree.leaf_depth() + 1;
    order
        .iter()
        .map(|objective| match objective {
            Objective::Units => most_units(problem),
            Objective::Broken { .. } => 0,
            Objective::Span => {
                (1..=nodes_depth).filter(|depth| fewest_domains(problem, *depth, units) > 1).count() as u64
            }
            Objective::Domains(level) => {
                tree.topology.level(level).map_or(0, |level| fewest_domains(problem, level + 1, units))
            }
        })
        .collect()
}

fn most_units(problem: &Problem<'_>) -> u64 {
    let roles = problem.on.spec.roles.iter().enumerate();
    roles
        .map(|(index, role)| u64::from(role.allowed_at_most(problem.units_alone(index, false)).unwrap_or(0)))
        .sum()
}

/// The fewest domains of a depth that hold the pods of the role that needs most, rules and other roles ignored.
fn fewest_domains(problem: &Problem<'_>, depth: usize, units: &[u32]) -> u64 {
    let tree = &problem.cluster.tree;
    let index = &problem.cluster.index;
    let one = |(role, units): (usize, &u32)| {
        let shape = problem.on.ids[role].shape;
        let mut rooms: Vec<u64> = if depth > tree.leaf_depth() {
            problem.cluster.nodes().map(|(slot, ..)| u64::from(index.cell(shape, slot).fit)).collect()
        } else {
            tree.at_depth(depth).iter().map(|domain| u64::from(index.count(shape, *domain, false))).collect()
        };
        rooms.sort_unstable_by_key(|room| std::cmp::Reverse(*room));
        let mut rest = u64::from(*units) * u64::from(problem.on.spec.roles[role].pods);
        let used = rooms.iter().take_while(|room| {
            let more = rest > 0;
            rest = rest.saturating_sub(**room);
            more
        });
        used.count() as u64
    };
    units.iter().enumerate().map(one).max().unwrap_or(0)
}
