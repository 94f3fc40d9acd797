//! The gangs, what they hold, and which of them want a decision.
//!
//! ```text
//!   Event::Gang ──set──▶ holdings charged to nodes; waiting ones queued by priority, age, key ──decide──▶ Decision
//! ```

use muster_model::{Gang, GangState, Millis, ObjectKey, Reason, plan::Placement};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    Decision, How,
    cluster::Cluster,
    place::{self, Request},
    replan::{self, Holdings},
};

/// Order of decisions: highest priority, then longest waiting, then key.
type Rank = (Reverse<i32>, Millis, ObjectKey);

#[derive(Debug)]
struct Record {
    gang: Gang,
    held: Holdings,
    /// The cluster's count of changes when it was last refused.
    refused_at: Option<u64>,
}

/// All gangs.
#[derive(Debug, Default)]
pub struct Gangs {
    records: BTreeMap<ObjectKey, Record>,
    waiting: BTreeSet<Rank>,
}

fn rank(gang: &Gang) -> Rank {
    (Reverse(gang.priority), gang.since, gang.key.clone())
}

impl Gangs {
    /// A gang appeared or changed. What it holds is what its state says, whatever was decided before.
    pub fn set(&mut self, cluster: &mut Cluster, gang: Gang) {
        let held = replan::held_by(&gang);
        let mut refused_at = None;
        if let Some(old) = self.records.remove(&gang.key) {
            self.waiting.remove(&rank(&old.gang));
            if old.held != held {
                replan::charge(cluster, &old.held, -1);
                replan::charge(cluster, &held, 1);
            }
            // The same question again needs no new answer.
            refused_at = old.refused_at.filter(|_| old.gang == gang);
        } else {
            replan::charge(cluster, &held, 1);
        }
        if matches!(gang.state, GangState::Waiting | GangState::Replan { .. }) {
            self.waiting.insert(rank(&gang));
        }
        self.records.insert(gang.key.clone(), Record { gang, held, refused_at });
    }

    /// A gang is gone, and with it what it held.
    pub fn remove(&mut self, cluster: &mut Cluster, key: &ObjectKey) {
        if let Some(old) = self.records.remove(key) {
            self.waiting.remove(&rank(&old.gang));
            replan::charge(cluster, &old.held, -1);
        }
    }

    /// All gangs with what they hold.
    pub fn holders(&self) -> impl Iterator<Item = (&ObjectKey, &Holdings)> {
        self.records.iter().map(|(key, record)| (key, &record.held))
    }

    /// Looks at up to `limit` gangs that wait and were not refused since anything changed.
    pub fn decide(&mut self, cluster: &mut Cluster, limit: usize) -> Vec<Decision> {
        let ranks: Vec<Rank> = self
            .waiting
            .iter()
            .filter(|(.., key)| {
                self.records.get(key).is_some_and(|record| record.refused_at != Some(cluster.freed))
            })
            .take(limit)
            .cloned()
            .collect();
        let mut decisions = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let Some(record) = self.records.get_mut(&rank.2) else { continue };
            let (key, uid) = (record.gang.key.clone(), record.gang.uid.clone());
            match answer(cluster, &record.gang) {
                Ok((placement, how)) => {
                    let held = replan::holdings(&record.gang, &placement.units, &placement.spares);
                    let freed = cluster.freed;
                    replan::charge(cluster, &record.held, -1);
                    replan::charge(cluster, &held, 1);
                    if record.held.is_empty() {
                        // Nothing was given up, so nobody else is helped.
                        cluster.freed = freed;
                    }
                    record.held = held;
                    self.waiting.remove(&rank);
                    decisions.push(Decision::Place { key, uid, placement, how });
                }
                Err(reason) => {
                    record.refused_at = Some(cluster.freed);
                    decisions.push(Decision::Refuse { key, uid, reason });
                }
            }
        }
        decisions
    }
}

fn answer(cluster: &mut Cluster, gang: &Gang) -> Result<(Placement, How), Reason> {
    match &gang.state {
        GangState::Replan { plan, lost } => replan::replan(cluster, gang, plan, lost),
        _ => place::place(cluster, &Request::fresh(gang)).map(|solution| (solution.placement, How::Fresh)),
    }
}
