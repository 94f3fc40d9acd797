//! Which nodes are lost: a judgement over all of them.
//!
//! ```text
//!   observe(node, sign) ──▶ Ready ⇄ Doubted ──grace──▶ Lost ──▶ Judgement{lost, recovered}
//!                               │         ▲
//!                               ▼         └ not while too many are doubted at once
//!                     groups: cluster, domains ──▶ Brake ──▶ outage: all of them, one event
//! ```
//!
//! - `Ready=Unknown` has a short grace: the node controller has waited already. It is longer than the time over which the
//!   node controller notices kubelets that fell silent at one moment (a heartbeat of 10 s, looked at every 5 s), so that
//!   the brake has seen all of them before the first is lost.
//! - `Ready=False` has a long one: the kubelet says it itself, and a restart of the container runtime or of the network
//!   plugin takes seconds to minutes. Where containers are known to have ended, the short one is enough.
//! - A node that is deleted, made again under its name or out of service is lost at once; nothing holds that back.
//! - The brake: when more than a fifth of the nodes (and more than three), or all that are left, are not ready within a
//!   window, contact is likelier to be lost than nodes are. Nothing is lost for silence then. The same in a domain, unless
//!   all of it is one gang's: a gang may bring down its own nodes. The brake lets go when half of the suspicious number is
//!   left, and whoever is silent still gets a new grace.
//! - An outage: when nothing gets better for a while, a part of the cluster is really gone, and its nodes are lost as one
//!   event. But where more than half of the cluster is silent, and no single domain explains it, nobody is lost however
//!   long it lasts: there would be no room for what they run, and what they run may be well.
//!
//! An observation costs O(levels · log n); a judgement costs that for each verdict that is due. Time is any clock that only
//! goes forwards.

mod believed;
mod brake;
mod why;

use muster_model::{Millis, NodeName, Resources, Uid};
use std::collections::{BTreeMap, BTreeSet};

use believed::Believed;
pub use believed::{BELIEF, Belief, Refused, believe};
pub use brake::Brake;
use brake::{Group, Turn};
pub use why::{Doubt, Health, Sign, Why};

/// How patient the judgement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Grace of a silent node, and of one that is not ready and whose containers have ended.
    pub silent: Millis,
    /// Grace of a node whose kubelet says that it is not ready.
    pub not_ready: Millis,
    /// More than this share of the nodes is unusual, in per cent.
    pub percent: u32,
    /// But never so few nodes.
    pub least: usize,
    /// Nodes that were not ready within this time count together.
    pub window: Millis,
    /// When nothing gets better for so long, silence is an outage.
    pub outage: Millis,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            silent: 15_000,
            // The toleration that Kubernetes gives to pods for nodes that are not ready.
            not_ready: 300_000,
            percent: 20,
            least: 3,
            window: 300_000,
            outage: 300_000,
        }
    }
}

/// What is new.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Nodes that are lost since the last judgement. A node made again is told, though the new one may be Ready.
    pub lost: Vec<(NodeName, Why)>,
    /// Nodes that were lost and are Ready again.
    pub recovered: Vec<NodeName>,
    /// Nodes of which less was believed than their status says, and is no longer.
    pub trusted: Vec<NodeName>,
    /// What holds verdicts back now: the cluster's brake, or those of domains.
    pub brakes: Vec<Brake>,
    /// When to judge again, though nothing is observed.
    pub next: Option<Millis>,
}

/// The cluster (`None`), or a domain.
type Scope = Option<String>;

#[derive(Debug)]
struct Record {
    uid: Uid,
    domains: BTreeSet<String>,
    health: Health,
    /// A grace begins no earlier: a brake that held verdicts back let go.
    fresh: Millis,
    /// When its verdict is due; `None` while a brake holds it.
    due: Option<Millis>,
    believed: Believed,
}

impl Record {
    fn scopes(&self) -> impl Iterator<Item = Scope> {
        [None].into_iter().chain(self.domains.iter().cloned().map(Some))
    }

    /// When a doubt has outlasted its grace. However often a node turns from silent to not ready and back, the longer
    /// grace ends it.
    fn due(&self, config: &Config) -> Option<Millis> {
        let Health::Doubted { since, doubt, turned } = self.health else { return None };
        let grace = match doubt {
            Doubt::Silent | Doubt::Dead => config.silent,
            Doubt::NotReady => config.not_ready,
        };
        let longest = since.saturating_add(config.silent.max(config.not_ready));
        Some(turned.saturating_add(grace).min(longest).max(self.fresh.saturating_add(grace)))
    }
}

/// All nodes.
#[derive(Debug, Default)]
pub struct Nodes {
    config: Config,
    records: BTreeMap<NodeName, Record>,
    groups: BTreeMap<Scope, Group>,
    /// Groups in which something has changed.
    dirty: BTreeSet<Scope>,
    /// Groups with a brake.
    engaged: BTreeSet<Scope>,
    /// Verdicts by the time that they are due.
    due: BTreeSet<(Millis, NodeName)>,
    /// Brakes by the time that they become outages.
    outages: BTreeSet<(Millis, Scope)>,
    /// Beliefs by the time that they end.
    beliefs: BTreeSet<(Millis, NodeName)>,
    lost: Vec<(NodeName, Why)>,
    recovered: Vec<NodeName>,
    trusted: Vec<NodeName>,
}

impl Nodes {
    /// No nodes yet.
    pub fn new(config: Config) -> Self {
        Self { config, ..Self::default() }
    }

    /// A node appeared or changed. `domains` are names of all domains that it lies in, each unique in the cluster.
    pub fn observe(
        &mut self,
        name: &NodeName,
        uid: &Uid,
        domains: &BTreeSet<String>,
        sign: Sign,
        now: Millis,
    ) {
        if self.records.get(name).is_some_and(|record| record.uid != *uid) {
            self.take_out(name);
            self.lost.push((name.clone(), Why::MadeAnew));
        }
        let moved = self.records.get(name).is_none_or(|record| record.domains != *domains);
        if moved {
            let before = self.take_out(name);
            let (health, fresh, believed) = before.map_or_else(
                || (Health::Ready, Millis::MIN, Believed::default()),
                |old| (old.health, old.fresh, old.believed),
            );
            let record = Record {
                uid: uid.clone(),
                domains: domains.clone(),
                health: Health::Ready,
                fresh,
                due: None,
                believed,
            };
            for scope in record.scopes() {
                self.groups.entry(scope.clone()).or_default().nodes.insert(name.clone());
                self.dirty.insert(scope);
            }
            let until = record.believed.until();
            self.beliefs.extend(until.map(|until| (until, name.clone())));
            self.records.insert(name.clone(), record);
            self.set_health(name, health);
        }
        self.turn(name, sign, now);
    }

    /// A node is gone.
    pub fn remove(&mut self, name: &NodeName) {
        if self.take_out(name).is_some() {
            self.lost.push((name.clone(), Why::Deleted));
        }
    }

    /// A node's health; `None` if there is no such node.
    pub fn health(&self, name: &NodeName) -> Option<&Health> {
        self.records.get(name).map(|record| &record.health)
    }

    /// Why a node is lost to a gang, if it is: also one that does not exist. `progress`: the gang's ranks on it have
    /// reported progress since it was last heard of, so they run, whatever the kubelet fails to say.
    pub fn lost_to(&self, name: &NodeName, progress: bool) -> Option<Why> {
        match self.health(name) {
            None => Some(Why::Deleted),
            Some(Health::Lost { why, .. }) => (why.certain() || !progress).then(|| why.clone()),
            Some(Health::Ready | Health::Doubted { .. }) => None,
        }
    }

    /// What is wrong with a node, for people; `None` if it is Ready.
    pub fn words(&self, name: &NodeName, now: Millis) -> Option<String> {
        let Some(record) = self.records.get(name) else {
            return Some(format!("node {name} {}", Why::Deleted.words()));
        };
        match &record.health {
            Health::Ready => None,
            Health::Lost { why, .. } => Some(format!("node {name} {}", why.words())),
            Health::Doubted { since, doubt, turned } => {
                let what = doubt.words(now.saturating_sub(doubt.began(*since, *turned)));
                let many =
                    if self.held(record) { ", as many are now: it does not count as lost" } else { "" };
                Some(format!("node {name} {what}{many}"))
            }
        }
    }

    /// Judges what is due. `one_gangs` tells whether a set of nodes, all those of a domain, is one gang's own.
    pub fn judge(&mut self, now: Millis, one_gangs: &dyn Fn(&BTreeSet<NodeName>) -> bool) -> Judgement {
        self.end_beliefs(now);
        self.reckon(now, one_gangs);
        self.begin_outages(now);
        while let Some((at, name)) = self.due.first().cloned().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, name.clone()));
            self.verdict(&name, now);
        }
        // The lost ones may have been what held a brake.
        self.reckon(now, one_gangs);
        let next = [
            self.due.first().map(|(at, _)| *at),
            self.outages.first().map(|(at, _)| *at),
            self.beliefs.first().map(|(at, _)| *at),
        ];
        Judgement {
            lost: std::mem::take(&mut self.lost),
            recovered: std::mem::take(&mut self.recovered),
            trusted: std::mem::take(&mut self.trusted),
            brakes: self.brakes(),
            next: next.into_iter().flatten().min(),
        }
    }

    /// A node has less of a resource than its status says ([`Belief::Less`]): for [`BELIEF`], until that amount of its
    /// status changes, or until it is made again.
    pub fn distrust(
        &mut self,
        name: &NodeName,
        resource: &str,
        most: i64,
        allocatable: &Resources,
        now: Millis,
    ) {
        let Some(record) = self.records.get_mut(name) else { return };
        let before = record.believed.until();
        record.believed.learn(resource, most, allocatable, now.saturating_add(BELIEF));
        let until = record.believed.until();
        self.move_belief(name, before, until);
    }

    /// What a node's status promises now: what was believed against other amounts is forgotten.
    pub fn promises(&mut self, name: &NodeName, allocatable: &Resources, now: Millis) {
        self.forget_beliefs(name, now, Some(allocatable));
    }

    /// The most that a node can have of each resource of which it has less than its status says.
    pub fn believed(&self, name: &NodeName) -> impl Iterator<Item = (&str, i64)> {
        self.records.get(name).into_iter().flat_map(|record| record.believed.iter())
    }
}

/// Changes of one node, and what they mean for its groups.
impl Nodes {
    fn turn(&mut self, name: &NodeName, sign: Sign, now: Millis) {
        let Some(record) = self.records.get(name) else { return };
        let Some(health) = record.health.after(sign, now) else { return };
        let was_doubted = matches!(record.health, Health::Doubted { .. });
        let was_lost = matches!(record.health, Health::Lost { .. });
        match &health {
            Health::Ready if was_lost => self.recovered.push(name.clone()),
            Health::Ready if was_doubted => {
                for scope in record.scopes() {
                    if let Some(group) = self.groups.get_mut(&scope) {
                        group.returned = true;
                    }
                }
            }
            Health::Lost { why, .. } => self.lost.push((name.clone(), why.clone())),
            Health::Ready | Health::Doubted { .. } => {}
        }
        self.set_health(name, health);
    }

    /// Sets a node's health, and keeps groups and timers in step.
    fn set_health(&mut self, name: &NodeName, health: Health) {
        let Some(record) = self.records.get_mut(name) else { return };
        let before = std::mem::replace(&mut record.health, health);
        if matches!(record.health, Health::Ready) {
            record.fresh = Millis::MIN;
        }
        for scope in record.scopes() {
            let Some(group) = self.groups.get_mut(&scope) else { continue };
            match &before {
                Health::Doubted { .. } => {
                    group.doubted.remove(name);
                }
                Health::Lost { since, .. } => {
                    group.lost -= 1;
                    group.fallen.remove(&(*since, name.clone()));
                }
                Health::Ready => {}
            }
            match &record.health {
                Health::Doubted { .. } => {
                    group.doubted.insert(name.clone());
                }
                Health::Lost { since, why } => {
                    group.lost += 1;
                    if matches!(why, Why::Doubted { .. }) {
                        group.fallen.insert((*since, name.clone()));
                    }
                }
                Health::Ready => {}
            }
            self.dirty.insert(scope);
        }
        self.schedule(name);
    }

    /// Puts a node's verdict on the list, or takes it off.
    fn schedule(&mut self, name: &NodeName) {
        let Some(record) = self.records.get_mut(name) else { return };
        if let Some(at) = record.due.take() {
            self.due.remove(&(at, name.clone()));
        }
        record.due = record.due(&self.config);
        self.due.extend(record.due.map(|at| (at, name.clone())));
    }

    /// Takes a node out of everything.
    fn take_out(&mut self, name: &NodeName) -> Option<Record> {
        let record = self.records.remove(name)?;
        if let Some(at) = record.due {
            self.due.remove(&(at, name.clone()));
        }
        if let Some(until) = record.believed.until() {
            self.beliefs.remove(&(until, name.clone()));
        }
        for scope in record.scopes() {
            let Some(group) = self.groups.get_mut(&scope) else { continue };
            group.nodes.remove(name);
            group.doubted.remove(name);
            if let Health::Lost { since, .. } = &record.health {
                group.lost -= 1;
                group.fallen.remove(&(*since, name.clone()));
            }
            self.dirty.insert(scope);
        }
        Some(record)
    }

    /// A verdict is due. A brake may hold it: then it is due again when that lets go.
    fn verdict(&mut self, name: &NodeName, now: Millis) {
        let Some(record) = self.records.get_mut(name) else { return };
        record.due = None;
        let Some(record) = self.records.get(name).filter(|record| !self.held(record)) else { return };
        let Health::Doubted { since, doubt, turned } = record.health else { return };
        let outage = record.scopes().find_map(|scope| {
            let brake = self.groups.get(&scope)?.brake.as_ref().filter(|_| doubt != Doubt::Dead)?;
            let (silent, of) = brake.out?;
            Some(Why::Outage { domain: scope, silent, of, lasted: now.saturating_sub(since) })
        });
        let why =
            outage.unwrap_or(Why::Doubted { doubt, lasted: now.saturating_sub(doubt.began(since, turned)) });
        self.lost.push((name.clone(), why.clone()));
        self.set_health(name, Health::Lost { since, why });
    }
}

/// The brakes.
impl Nodes {
    /// Whether a brake holds a node's verdict. Ended containers are more than silence.
    fn held(&self, record: &Record) -> bool {
        !matches!(record.health, Health::Doubted { doubt: Doubt::Dead, .. })
            && record.scopes().any(|scope| self.groups.get(&scope).is_some_and(Group::holds))
    }

    /// Whether more than half of the cluster is silent, and that is not one whole domain while all others are well.
    fn mostly(&self) -> bool {
        let Some(cluster) = self.groups.get(&None) else { return false };
        let silent = cluster.doubted.len();
        if silent * 2 <= cluster.living() {
            return false;
        }
        let domains = cluster.doubted.first().and_then(|name| self.records.get(name));
        let explains = |scope: Scope| {
            let group = self.groups.get(&scope).filter(|_| scope.is_some());
            group.is_some_and(|group| group.doubted.len() == silent && group.living() == silent)
        };
        silent == cluster.living() || !domains.is_some_and(|record| record.scopes().any(explains))
    }

    /// Brings the brakes of groups up to date in which something has changed.
    fn reckon(&mut self, now: Millis, one_gangs: &dyn Fn(&BTreeSet<NodeName>) -> bool) {
        let mostly = self.mostly();
        let total = self.records.len();
        for scope in std::mem::take(&mut self.dirty) {
            let Some(group) = self.groups.get_mut(&scope) else { continue };
            let before = group.alarm(&self.config);
            let whole = scope.is_none();
            let broad = |nodes: &BTreeSet<NodeName>| nodes.len() < total && !one_gangs(nodes);
            let turn = group.reckon(&self.config, now, whole, broad, whole && mostly);
            let (after, empty) = (group.alarm(&self.config), group.nodes.is_empty());
            if let Some(at) = before {
                self.outages.remove(&(at, scope.clone()));
            }
            self.outages.extend(after.map(|at| (at, scope.clone())));
            match turn {
                Turn::None => {}
                Turn::Engaged => {
                    self.engaged.insert(scope.clone());
                }
                Turn::Released => {
                    self.engaged.remove(&scope);
                    for name in group.doubted.clone() {
                        if let Some(record) = self.records.get_mut(&name) {
                            record.fresh = now;
                        }
                        self.schedule(&name);
                    }
                }
            }
            if empty {
                self.groups.remove(&scope);
            }
        }
    }

    /// What was held by brakes whose time has come is due again.
    fn begin_outages(&mut self, now: Millis) {
        while let Some((at, scope)) = self.outages.first().cloned().filter(|(at, _)| *at <= now) {
            self.outages.remove(&(at, scope.clone()));
            let Some(group) = self.groups.get_mut(&scope) else { continue };
            group.begin_outage();
            for name in group.doubted.clone() {
                self.schedule(&name);
            }
        }
    }

    fn brakes(&self) -> Vec<Brake> {
        let of = |scope: &Scope| {
            let group = self.groups.get(scope).filter(|group| group.holds())?;
            Some(Brake {
                domain: scope.clone(),
                silent: group.doubted.len(),
                of: group.living(),
                since: group.brake.as_ref()?.since,
                until: group.outage_at(&self.config),
            })
        };
        // The cluster's says it for all domains.
        of(&None).map_or_else(|| self.engaged.iter().filter_map(of).collect(), |brake| vec![brake])
    }
}

/// What is believed of nodes.
impl Nodes {
    fn end_beliefs(&mut self, now: Millis) {
        while let Some((at, name)) = self.beliefs.first().cloned().filter(|(at, _)| *at <= now) {
            self.beliefs.remove(&(at, name.clone()));
            self.forget_beliefs(&name, now, None);
        }
    }

    fn forget_beliefs(&mut self, name: &NodeName, now: Millis, allocatable: Option<&Resources>) {
        let Some(record) = self.records.get_mut(name) else { return };
        let before = record.believed.until();
        if record.believed.forget(now, allocatable) {
            self.trusted.push(name.clone());
        }
        let until = record.believed.until();
        self.move_belief(name, before, until);
    }

    fn move_belief(&mut self, name: &NodeName, before: Option<Millis>, until: Option<Millis>) {
        if let Some(at) = before {
            self.beliefs.remove(&(at, name.clone()));
        }
        self.beliefs.extend(until.map(|at| (at, name.clone())));
    }
}
