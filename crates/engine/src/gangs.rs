//! The gangs, what they hold, and which of them want a decision.
//!
//! ```text
//!   Event::Gang ──set──▶ holdings charged to nodes; waiting ones queued by priority, age, key ──decide──▶ Decision
//!                   └──▶ groups: units that count in the rules of other gangs ─────────────────────┘
//! ```

use muster_model::{Gang, GangState, Millis, ObjectKey, Reason, plan::Placement};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    Decision, How,
    alike::Alike,
    cluster::Cluster,
    groups::{self, Groups, Others},
    place::{self, Request},
    problem::Prepared,
    replan::{self, Holdings},
};

/// Order of decisions: highest priority, then longest waiting, then key.
type Rank = (Reverse<i32>, Millis, ObjectKey);

#[derive(Debug)]
struct Record {
    gang: Gang,
    held: Holdings,
    /// Its shapes, while they are valid.
    prepared: Option<Arc<Prepared>>,
    /// What the index had counted when it was last refused.
    refused_at: Option<Seen>,
}

/// A moment of the index, as far as some shapes are concerned: its generation, and the sum of their versions; and that of
/// the groups that the gang names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    generation: u64,
    versions: u64,
    groups: u64,
}

impl Record {
    /// The present moment. A gang without shapes of this generation is not valid, or was not looked at in it.
    fn now(&self, cluster: &Cluster, groups: &Groups) -> Seen {
        let generation = cluster.index.generation;
        let prepared = self.prepared.iter().filter(|prepared| prepared.generation == generation);
        let ids = prepared.flat_map(|prepared| &prepared.classes).flat_map(|on| &on.ids);
        let versions = ids.map(|ids| cluster.index.version(ids.shape)).sum();
        Seen { generation, versions, groups: groups.version(&self.gang) }
    }

    /// Whether it was refused and since then no node has made room for any of its shapes, nor a gang in its groups.
    fn is_hopeless(&self, cluster: &Cluster, groups: &Groups) -> bool {
        self.refused_at.is_some_and(|seen| seen == self.now(cluster, groups))
    }
}

/// All gangs.
#[derive(Debug, Default)]
pub struct Gangs {
    records: BTreeMap<ObjectKey, Record>,
    waiting: BTreeSet<Rank>,
    alike: Alike,
    groups: Groups,
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
            self.groups.forget(&old.gang, Some(&gang));
            // The same question again needs no new answer.
            if old.gang == gang {
                (refused_at, prepared) = (old.refused_at, old.prepared);
            }
        } else {
            replan::charge(cluster, &held, 1);
        }
        if groups::names_any(&gang) {
            self.groups.set(cluster, &gang, replan::held_units(&gang).as_deref());
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
            self.groups.forget(&old.gang, None);
            replan::charge(cluster, &old.held, -1);
        }
    }

    /// Units of other gangs that count in the rules of this one.
    ///
    /// # Errors
    /// [`Reason::Invalid`] if a gang that holds a plan states something else.
    pub fn others(&self, cluster: &Cluster, gang: &Gang) -> Result<Others, Reason> {
        self.groups.others(cluster, gang)
    }

    /// A node came, went or moved in the tree.
    pub fn nodes_moved(&mut self) {
        self.moved = true;
    }

    /// After nodes moved, gangs that keep some of their units are asked again, and those whose rules count units of others.
    fn reconsider(&mut self) {
        if !std::mem::take(&mut self.moved) {
            return;
        }
        for (.., key) in &self.waiting {
            if let Some(record) = self.records.get_mut(key)
                && (matches!(record.gang.state, GangState::Replan { .. }) || groups::names_any(&record.gang))
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
            .filter(|(.., key)| {
                self.records.get(key).is_some_and(|record| !record.is_hopeless(cluster, &self.groups))
            })
            .take(limit)
            .cloned()
            .collect();
        let mut decisions = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let Some(record) = self.records.get_mut(&rank.2) else { continue };
            let (key, uid) = (record.gang.key.clone(), record.gang.uid.clone());
            match answer(cluster, &mut self.alike, &self.groups, record) {
                Ok((placement, held, how)) => {
                    replan::charge(cluster, &held, 1);
                    replan::charge(cluster, &record.held, -1);
                    record.held = held;
                    self.groups.set(cluster, &record.gang, Some(&placement.units));
                    self.waiting.remove(&rank);
                    decisions.push(Decision::Place { key, uid, placement, how });
                }
                Err(reason) => {
                    record.refused_at = Some(record.now(cluster, &self.groups));
                    decisions.push(Decision::Refuse { key, uid, reason });
                }
            }
        }
        decisions
    }
}

fn answer(
    cluster: &mut Cluster,
    alike: &mut Alike,
    groups: &Groups,
    record: &mut Record,
) -> Result<(Placement, Holdings, How), Reason> {
    let gang = &record.gang;
    if record.prepared.as_ref().is_none_or(|p| p.generation != cluster.index.generation) {
        record.prepared = None;
        record.prepared = Some(alike.prepare(cluster, gang)?);
    }
    let others = groups.others(cluster, gang)?;
    if let GangState::Replan { plan, lost, steps } = &gang.state {
        let loss = replan::Loss { gang, plan, lost, others: &others };
        let (placement, how) = replan::replan(cluster, loss, steps)?;
        let held = replan::holdings(cluster, gang, &placement.units, &placement.spares);
        return Ok((placement, held, how));
    }
    let Some(prepared) = record.prepared.as_ref() else { return Err(Reason::NotFound { states: 0 }) };
    let found = place::place_prepared(cluster, &Request::fresh(gang, &others), prepared)?;
    let placement = found.placement(cluster, gang);
    Ok((placement, replan::held_by_found(gang, prepared, &found), How::Fresh))
}
