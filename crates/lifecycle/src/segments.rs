//! Placement rules as nested segments of a unit.
//!
//! ```text
//!   tensor, context, expert, unit (in ranks) ──▶ whole pods ──▶ ascending sizes that divide ──▶ Vec<Segment>
//! ```
//!
//! - A block whose ranks always share a pod needs no rule. A block of one pod is together anyway.
//! - A block that is not a whole number of pods is *grown* to the smallest that is (and whose blocks still begin where
//!   its own do), and one that the next smaller size does not divide is grown to the least common multiple of the two.
//!   Growing is stricter, never laxer. It cannot exceed the unit, which is a common multiple of all blocks and pods.
//! - Blocks of equal size at one level are one rule, Required if either is. A Required block implies all smaller ones
//!   at its level.

use muster_model::{Mode, Segment};

use crate::parallelism::{Parallelism, Rules, lcm};

/// The segments of a unit of `unit_ranks` ranks in pods of `ranks_per_pod`.
pub(crate) fn of_unit(
    sizes: &Parallelism,
    rules: &Rules,
    unit_ranks: u64,
    ranks_per_pod: u32,
) -> Vec<Segment> {
    let pod = u64::from(ranks_per_pod);
    let experts = (sizes.expert > 1).then_some(sizes.expert_group_ranks());
    let blocks = [
        (Some(u64::from(sizes.tensor)), &rules.tensor),
        (Some(sizes.block_ranks()), &rules.context),
        (experts, &rules.expert),
        (Some(unit_ranks), &rules.pipeline),
    ];
    let mut all: Vec<Segment> = blocks
        .into_iter()
        .filter_map(|(ranks, rule)| ranks.zip(rule.as_ref()))
        // A block that divides the pod lies in one pod.
        .filter(|(ranks, _)| pod % ranks != 0)
        .map(|(ranks, rule)| Segment {
            pods: (lcm(ranks, pod) / pod) as u32,
            level: rule.level.clone(),
            mode: rule.mode,
        })
        .filter(|segment| segment.pods > 1)
        .collect();
    all.sort_by_key(|segment| segment.pods);
    let mut size = 1;
    for segment in &mut all {
        size = lcm(size, u64::from(segment.pods));
        segment.pods = size as u32;
    }
    merge(all)
}

/// One rule for each size and level, without those that a larger one implies.
fn merge(all: Vec<Segment>) -> Vec<Segment> {
    let mut merged: Vec<Segment> = Vec::with_capacity(all.len());
    for segment in all {
        let same = merged.iter_mut().find(|other| other.pods == segment.pods && other.level == segment.level);
        match same {
            // `Required` is the smaller of the two modes.
            Some(other) => other.mode = other.mode.min(segment.mode),
            None => merged.push(segment),
        }
    }
    let implied = |segment: &Segment| {
        merged.iter().any(|other| {
            other.mode == Mode::Required && other.level == segment.level && other.pods > segment.pods
        })
    };
    merged.iter().filter(|segment| !implied(segment)).cloned().collect()
}
