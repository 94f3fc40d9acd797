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
    problem::{self, Prepared},
    replan::{self, Holdings},
};

/// Order of decisions: highest priority, then longest waiting, then key.
type Rank = (Reverse<i32>, Millis, ObjectKey);

#[derive(Debug)]
struct Record {
    gang: Gang,
    held: Holdings,
    /// Its shapes, while they are valid.
    prepared: Option<Prepared>,
    /// What the index had counted when it was last refused.
    refused_at: Option<Seen>,
}

/// A moment of the index, as far as some shapes are concerned: its generation, and the sum of their versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    generation: u64,
    versions: u64,
}

impl Record {
    /// The present moment; `None` if the gang's shapes must be looked up anew. A gang without shapes was found invalid,
    /// which only another topology changes, and with it the generation.
    fn now(&self, cluster: &Cluster) -> Option<Seen> {
        let generation = cluster.index.generation;
        let Some(prepared) = &self.prepared else { return Some(Seen { generation, versions: 0 }) };
        if prepared.generation != generation {
            return None;
        }
        let ids = prepared.classes.iter().flat_map(|on| &on.ids);
        let versions = ids.map(|ids| cluster.index.version(ids.shape)).sum();
        Some(Seen { generation, versions })
    }

    /// Whether it was refused and no node has made room for any of its shapes since.
    fn is_hopeless(&self, cluster: &Cluster) -> bool {
        self.refused_at.is_some() && self.refused_at == self.now(cluster)
    }
}

/// All gangs.
#[derive(Debug, Default)]
pub struct Gangs {
    records: BTreeMap<ObjectKey, Record>,
    waiting: BTreeSet<Rank>,
    /// Nodes came, went or moved: what gangs keep may lie elsewhere in the tree, though no room was made.
    moved: bool,
}

fn rank(gang: &Gang) -> Rank {
    (Reverse(gang.priority), gang.since, gang.key.clone())
}

impl Gangs {
    /// A gang appeared or changed. What it holds is what its state says, whatever was decided before.
    pub fn set(&mut self, cluster: &mut Cluster, gang: Gang) {
        let held = replan::held_by(cluster, &gang);
        let (mut refused_at, mut prepared) = (None, None);
        if let Some(old) = self.records.remove(&gang.key) {
            self.waiting.remove(&rank(&old.gang));
            if old.held != held {
                // The new first: a node known only by what uses it is not forgotten in between.
                replan::charge(cluster, &held, 1);
                replan::charge(cluster, &old.held, -1);
            }
            // The same question again needs no new answer.
            if old.gang == gang {
                (refused_at, prepared) = (old.refused_at, old.prepared);
            }
        } else {
            replan::charge(cluster, &held, 1);
        }
        if matches!(gang.state, GangState::Waiting | GangState::Replan { .. }) {
            self.waiting.insert(rank(&gang));
        }
        self.records.insert(gang.key.clone(), Record { gang, held, prepared, refused_at });
    }

    /// A gang is gone, and with it what it held.
    pub fn remove(&mut self, cluster: &mut Cluster, key: &ObjectKey) {
        if let Some(old) = self.records.remove(key) {
            self.waiting.remove(&rank(&old.gang));
            replan::charge(cluster, &old.held, -1);
        }
    }

    /// A node came, went or moved in the tree.
    pub fn nodes_moved(&mut self) {
        self.moved = true;
    }

    /// After nodes moved, gangs that keep some of their units are asked again.
    fn reconsider(&mut self) {
        if !std::mem::take(&mut self.moved) {
            return;
        }
        for (.., key) in &self.waiting {
            if let Some(record) = self.records.get_mut(key)
                && matches!(record.gang.state, GangState::Replan { .. })
            {
                record.refused_at = None;
            }
        }
    }

    /// All gangs with what they hold.
    pub fn holders(&self) -> impl Iterator<Item = (&ObjectKey, &Holdings)> {
        self.records.iter().map(|(key, record)| (key, &record.held))
    }

    /// Looks at up to `limit` gangs that wait and were not refused since anything changed that could help them.
    pub fn decide(&mut self, cluster: &mut Cluster, limit: usize) -> Vec<Decision> {
        cluster.settle();
        cluster.sync_all();
        self.reconsider();
        let ranks: Vec<Rank> = self
            .waiting
            .iter()
            .filter(|(.., key)| self.records.get(key).is_some_and(|record| !record.is_hopeless(cluster)))
            .take(limit)
            .cloned()
            .collect();
        let mut decisions = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let Some(record) = self.records.get_mut(&rank.2) else { continue };
            let (key, uid) = (record.gang.key.clone(), record.gang.uid.clone());
            match answer(cluster, record) {
                Ok((placement, held, how)) => {
                    replan::charge(cluster, &held, 1);
                    replan::charge(cluster, &record.held, -1);
                    record.held = held;
                    self.waiting.remove(&rank);
                    decisions.push(Decision::Place { key, uid, placement, how });
                }
                Err(reason) => {
                    record.refused_at = record.now(cluster);
                    decisions.push(Decision::Refuse { key, uid, reason });
                }
            }
        }
        decisions
    }
}

fn answer(cluster: &mut Cluster, record: &mut Record) -> Result<(Placement, Holdings, How), Reason> {
    let gang = &record.gang;
    if record.prepared.as_ref().is_none_or(|p| p.generation != cluster.index.generation) {
        record.prepared = None;
        record.prepared = Some(problem::prepare(cluster, gang, None)?);
    }
    if let GangState::Replan { plan, lost } = &gang.state {
        let (placement, how) = replan::replan(cluster, gang, plan, lost)?;
        let held = replan::holdings(cluster, gang, &placement.units, &placement.spares);
        return Ok((placement, held, how));
    }
    let Some(prepared) = record.prepared.as_ref() else { return Err(Reason::NotFound { states: 0 }) };
    let found = place::place_prepared(cluster, &Request::fresh(gang), prepared)?;
    let placement = found.placement(cluster, gang);
    Ok((placement, replan::held_by_found(gang, &found), How::Fresh))
}
