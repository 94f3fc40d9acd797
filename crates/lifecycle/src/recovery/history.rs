//! What was before: restarts that counted, and pods that nodes refused; how long to wait after them, and what to keep.
//!
//! ```text
//!   Spent (durable, in a status) ──window──▶ budget, delay before the next restart
//!   Misfit (this term)           ──MISFIT_WINDOW──▶ delay before the next node; refused everywhere?
//! ```

use muster_model::{Millis, NodeName};
use std::collections::BTreeSet;

use super::{LostPod, Policy};

/// Delay before the second restart in quick succession; doubled for each one more, up to [`LONGEST_DELAY`].
pub const FIRST_DELAY: Millis = 10_000;
/// Longest delay before a restart (the kubelet's own cap).
pub const LONGEST_DELAY: Millis = 300_000;
/// A run of so long ends a succession of restarts.
pub const QUIET: Millis = 1_800_000;
/// So long a misfit counts. It has nothing to do with the restart budget: no misfit is the program's fault.
pub const MISFIT_WINDOW: Millis = 3_600_000;
/// Nodes that refuse for one reason before it is taken to be the pod's, not theirs; more for large gangs.
pub const REFUSALS: usize = 4;
/// Most entries of each history. Older restarts are counted together; see [`bound`].
pub const KEPT: usize = 32;
/// Most misfits that are remembered: more nodes than have to refuse a pod before no further one is tried.
pub const MISFITS_KEPT: usize = 2 * KEPT;
/// The last restarts are kept one by one: delays grow with them.
const EXACT: usize = 8;

/// Restarts that counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spent {
    /// When the last of them was.
    pub at: Millis,
    /// How many: more than one where older ones are counted together.
    pub count: u32,
}

impl Spent {
    /// One restart.
    pub fn once(at: Millis) -> Self {
        Self { at, count: 1 }
    }
}

/// A pod that a node did not take, and that was answered by looking for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// When it was answered.
    pub at: Millis,
    /// Which node.
    pub node: NodeName,
    /// How its kubelet called it; empty if no kubelet refused the pod.
    pub refusal: String,
}

/// Restarts that still count at `now`, ascending: what the status has to keep.
pub fn within_window(policy: &Policy, history: &[Spent], now: Millis) -> Vec<Spent> {
    let mut kept: Vec<Spent> =
        history.iter().copied().filter(|spent| spent.at > now.saturating_sub(policy.window)).collect();
    kept.sort_unstable();
    kept
}

/// Keeps a history small: at most [`KEPT`] entries, ascending by time. Of all but the last few the two that lie
/// closest are counted as one at the later time, again and again; `join` puts the earlier into the later. So nothing
/// is forgotten early: a restart counts for as long as it should, or longer by the gap that was closed.
pub fn bound<T>(history: &mut Vec<T>, at: impl Fn(&T) -> Millis, join: impl Fn(&mut T, T)) {
    while history.len() > KEPT {
        let gap = |first: &usize| at(&history[first + 1]).saturating_sub(at(&history[*first]));
        let Some(first) = (0..history.len() - EXACT - 1).min_by_key(gap) else { return };
        let earlier = history.remove(first);
        join(&mut history[first], earlier);
    }
}

/// Takes the misfits of a loss into a history, when it is answered. Only what still counts is kept, and no more than the
/// latest [`MISFITS_KEPT`]; all of it is to be forgotten when all pods of a plan have started.
pub fn remember(history: &mut Vec<Misfit>, lost: &[LostPod], now: Millis) {
    let fresh = lost.iter().filter(|pod| pod.fault == super::Fault::Misfit);
    history.extend(fresh.map(|pod| Misfit { at: now, node: pod.node.clone(), refusal: pod.refusal.clone() }));
    history.retain(|misfit| misfit.at > now.saturating_sub(MISFIT_WINDOW));
    // The last of each node and word tells as much as all of them.
    let mut seen = BTreeSet::new();
    let mut kept: Vec<Misfit> = Vec::new();
    for misfit in history.drain(..).rev() {
        if kept.len() < MISFITS_KEPT && seen.insert((misfit.at, misfit.node.clone(), misfit.refusal.clone()))
        {
            kept.push(misfit);
        }
    }
    kept.reverse();
    *history = kept;
}

/// How many restarts these are.
pub(super) fn count(spent: &[Spent]) -> usize {
    spent.iter().map(|spent| spent.count as usize).sum()
}

/// How many of the last restarts followed each other, and `now`, without a quiet time between them.
pub(super) fn in_a_row(spent: &[Spent], now: Millis) -> usize {
    let mut next = now;
    let quick = spent.iter().rev().take_while(|spent| {
        let gap = next.saturating_sub(spent.at);
        next = spent.at;
        gap < QUIET
    });
    quick.map(|spent| spent.count as usize).sum()
}

/// Delay after the last of so many in quick succession.
pub(super) fn delay(row: usize) -> Millis {
    match row {
        0 => 0,
        n => FIRST_DELAY.saturating_mul(1 << (n - 1).min(20)).min(LONGEST_DELAY),
    }
}

/// The times at which misfits were answered lately.
pub(super) fn answered(misfits: &[Misfit], now: Millis) -> BTreeSet<Millis> {
    let times = misfits.iter().map(|misfit| misfit.at);
    times.filter(|at| *at > now.saturating_sub(MISFIT_WINDOW)).collect()
}

/// When the next node may be tried: the more misfits were answered lately, the later.
pub(super) fn next_try(misfits: &[Misfit], now: Millis) -> Millis {
    let times = answered(misfits, now);
    times.last().map_or(now, |last| last.saturating_add(delay(times.len())))
}

/// On how many nodes kubelets refused pods of a gang for one reason, lately and now, where these are too many to be
/// the nodes' fault.
pub(super) fn refused_by(misfits: &[Misfit], lost: &[LostPod], pods: usize, now: Millis) -> Option<usize> {
    let before = misfits.iter().filter(|misfit| misfit.at > now.saturating_sub(MISFIT_WINDOW));
    let before: Vec<(&str, &NodeName)> = before.map(|one| (one.refusal.as_str(), &one.node)).collect();
    let present = lost.iter().filter(|pod| pod.fault == super::Fault::Misfit);
    let present: Vec<(&str, &NodeName)> = present.map(|pod| (pod.refusal.as_str(), &pod.node)).collect();
    let words: BTreeSet<&str> =
        present.iter().map(|(word, _)| *word).filter(|word| !word.is_empty()).collect();
    let nodes = |word: &str| {
        let of = before.iter().chain(&present).filter(|(other, _)| *other == word);
        of.map(|(_, node)| *node).collect::<BTreeSet<_>>().len()
    };
    let most = words.into_iter().map(nodes).max()?;
    (most >= (pods / 10).clamp(REFUSALS, KEPT)).then_some(most)
}
