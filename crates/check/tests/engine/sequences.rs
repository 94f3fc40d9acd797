//! The engine through random histories: gangs, most of them with rules between roles and units, come and go, nodes fail
//! and return, units are lost, other pods come that keep some away. After every step the oracle judges each decision and
//! the whole, and at the end a fresh engine finds nothing that the old one missed.

use crate::random::{Cluster, GPU, Modes, NAMES, cluster, gang, ruled, small, topology};
use muster_check::{Snapshot, Use, check, check_placement, plan_uses};
use muster_engine::{Decision, Engine, Event, How};
use muster_model::{
    Gang, GangState, Node, ObjectKey, Plan, PodTerm, RecoveryStep, Requirement, Resources, UnitId,
    plan::{PlacedUnit, Placement},
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One step; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Gang(usize, Box<Gang>),
    Gone(usize),
    Ready(usize, bool),
    Cordon(usize, bool),
    Unlabel(usize),
    NodeGone(usize),
    NodeBack(usize),
    /// A foreign pod, perhaps with anti-affinity.
    Use(usize, usize, i64, Option<PodTerm>),
    UseGone(usize),
    /// Units of a gang are lost; whether their pods stay for a while.
    Lose(usize, usize, bool, Vec<RecoveryStep>),
    LatePodsGone,
}

/// Pods of one role or of all, of the gangs' namespace or another, are kept out of a domain of one level.
fn term(levels: usize) -> impl Strategy<Value = PodTerm> {
    let keys: Vec<String> = topology(levels).levels.iter().map(|level| level.keys[0].clone()).collect();
    let namespace = prop::option::weighted(0.4, prop::sample::select(vec!["test", "other"]));
    let role = prop::option::of(prop::sample::select(NAMES.to_vec()));
    (namespace, role, prop::sample::select(keys)).prop_map(|(namespace, role, topology_key)| PodTerm {
        namespaces: namespace.map(|name| vec![name.to_owned()]),
        requirements: role.iter().map(|name| Requirement::label_in("role", &[name])).collect(),
        topology_key,
    })
}

fn step(levels: usize) -> impl Strategy<Value = Step> {
    let plain = (1..=2_usize).prop_flat_map(move |roles| gang(levels, roles, Modes::Mixed));
    let with_rules =
        move || (1..=3_usize).prop_flat_map(move |roles| ruled(levels, roles, Modes::Mixed, true));
    let gang = prop_oneof![plain, with_rules(), small(with_rules())];
    let term = prop::option::weighted(0.3, term(levels));
    let n = 0..32_usize;
    prop_oneof![
        5 => (0..4_usize, gang).prop_map(|(at, gang)| Step::Gang(at, Box::new(gang))),
        2 => (0..4_usize).prop_map(Step::Gone),
        1 => (n.clone(), any::<bool>()).prop_map(|(at, to)| Step::Ready(at, to)),
        1 => (n.clone(), any::<bool>()).prop_map(|(at, to)| Step::Cordon(at, to)),
        1 => n.clone().prop_map(Step::Unlabel),
        1 => n.clone().prop_map(Step::NodeGone),
        1 => n.clone().prop_map(Step::NodeBack),
        2 => (0..4_usize, n.clone(), 1..=8_i64, term)
            .prop_map(|(id, at, gpus, term)| Step::Use(id, at, gpus, term)),
        1 => (0..4_usize).prop_map(Step::UseGone),
        4 => (0..4_usize, n, any::<bool>(), ladder())
            .prop_map(|(at, unit, late, steps)| Step::Lose(at, unit, late, steps)),
        1 => Just(Step::LatePodsGone),
    ]
}

/// Some steps of the recovery ladder in some order.
fn ladder() -> impl Strategy<Value = Vec<RecoveryStep>> {
    let all = Just(RecoveryStep::ALL.to_vec()).prop_shuffle();
    (all, 0..=RecoveryStep::ALL.len()).prop_map(|(all, most)| all[..most].to_vec())
}

fn history() -> impl Strategy<Value = (Cluster, Vec<Step>)> {
    cluster(10).prop_flat_map(|cluster| {
        let steps = prop::collection::vec(step(cluster.topology.levels.len()), 1..25);
        (Just(cluster), steps)
    })
}

/// What is true, kept without the engine.
struct World {
    engine: Engine,
    cluster: Cluster,
    nodes: BTreeMap<usize, Node>,
    /// Nodes that are gone, as they went.
    gone: BTreeMap<usize, Node>,
    uses: BTreeMap<String, Use>,
    gangs: BTreeMap<ObjectKey, Gang>,
    uids: u32,
}

impl World {
    fn new(cluster: Cluster) -> Self {
        let mut engine = Engine::new();
        engine.apply(Event::Topology(cluster.topology.clone()));
        let nodes: BTreeMap<usize, Node> = cluster.nodes.iter().cloned().enumerate().collect();
        for node in nodes.values() {
            engine.apply(Event::Node(node.clone()));
        }
        let (gone, uses, gangs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { engine, cluster, nodes, gone, uses, gangs, uids: 0 }
    }

    fn key(at: usize) -> ObjectKey {
        ObjectKey::new("test", format!("gang-{at}"))
    }

    fn node(&mut self, at: usize, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&(at % self.cluster.nodes.len())) {
            change(node);
            self.engine.apply(Event::Node(node.clone()));
        }
    }

    /// A use by another pod, as large as the free part of its node allows: foreign pods are admitted by the kubelet.
    fn occupy(&mut self, id: String, at: usize, gpus: i64, repels: Vec<PodTerm>) {
        let Some(node) = self.nodes.get(&(at % self.cluster.nodes.len())).cloned() else { return };
        self.release(&id);
        let mut free = node.allocatable.clone();
        for used in self.all_uses(None).values().filter(|used| used.node == node.name) {
            free.subtract(&used.requests);
        }
        let gpus = gpus.min(free.get(GPU));
        if gpus > 0 && free.get("pods") > 0 {
            let requests = Resources::of([(GPU, gpus), ("pods", 1)]);
            self.put(id, Use { node: node.name, requests, repels });
        }
    }

    fn put(&mut self, id: String, used: Use) {
        tell(&mut self.engine, &id, &used);
        self.uses.insert(id, used);
    }

    fn release(&mut self, id: &str) {
        if let Some(used) = self.uses.remove(id) {
            self.engine.apply(Event::UseGone { id: id.to_owned() });
            self.engine.apply(Event::Repels { id: id.to_owned(), node: used.node, terms: Vec::new() });
        }
    }

    fn lose(&mut self, at: usize, unit: usize, late: bool, steps: Vec<RecoveryStep>) {
        let nodes: Vec<Node> = self.nodes.values().cloned().collect();
        let Some(gang) = self.gangs.get_mut(&Self::key(at)) else { return };
        let GangState::Holding(plan) = &gang.state else { return };
        let Some(lost) = plan.units.get(unit % plan.units.len()).cloned() else { return };
        gang.state = GangState::Replan { plan: plan.clone(), lost: [lost.placed.id.clone()].into(), steps };
        let gang = gang.clone();
        if late {
            let only = Placement { units: vec![lost.placed], spares: BTreeMap::new() };
            for (id, used) in plan_uses(&nodes, &gang, &only) {
                self.put(format!("late {id}"), used);
            }
        }
        self.engine.apply(Event::Gang(gang));
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Gang(at, mut gang) => {
                self.uids += 1;
                (gang.key, gang.uid) = (Self::key(at), format!("uid-{}", self.uids).as_str().into());
                gang.since = i64::from(self.uids);
                self.engine.apply(Event::Gang((*gang).clone()));
                self.gangs.insert(gang.key.clone(), *gang);
            }
            Step::Gone(at) => {
                if self.gangs.remove(&Self::key(at)).is_some() {
                    self.engine.apply(Event::GangGone(Self::key(at)));
                }
            }
            Step::Ready(at, to) => self.node(at, |node| node.ready = to),
            Step::Cordon(at, to) => self.node(at, |node| node.cordoned = to),
            // The innermost label goes: only then do no two nodes come together that were apart.
            Step::Unlabel(at) => {
                let at = at % self.cluster.nodes.len();
                let held = self.all_uses(None);
                let used = |node: &Node| held.values().any(|used| used.node == node.name);
                let key = self.cluster.topology.levels.last().map(|level| level.keys[0].clone());
                if let (Some(key), false) = (key, self.nodes.get(&at).is_none_or(used)) {
                    self.node(at, |node| drop(node.labels.remove(&key)));
                }
            }
            Step::NodeGone(at) => {
                let at = at % self.cluster.nodes.len();
                if let Some(node) = self.nodes.remove(&at) {
                    self.engine.apply(Event::NodeGone(node.name.clone()));
                    self.gone.insert(at, node);
                }
            }
            Step::NodeBack(at) => {
                let at = at % self.cluster.nodes.len();
                if let Some(gone) = self.gone.remove(&at) {
                    // Where something lies on it, it returns to its old place: what was apart comes together otherwise.
                    let held = self.all_uses(None).values().any(|used| used.node == gone.name);
                    self.nodes.insert(at, if held { gone } else { self.cluster.nodes[at].clone() });
                }
                self.node(at, |_| ());
            }
            Step::Use(id, at, gpus, term) => {
                self.occupy(format!("foreign-{id}"), at, gpus, term.into_iter().collect());
            }
            Step::UseGone(id) => self.release(&format!("foreign-{id}")),
            Step::Lose(at, unit, late, steps) => self.lose(at, unit, late, steps),
            Step::LatePodsGone => {
                let late: Vec<String> =
                    self.uses.keys().filter(|id| id.starts_with("late")).cloned().collect();
                for id in late {
                    self.release(&id);
                }
            }
        }
    }

    /// All uses, plan entries of all gangs but one included (those of lost units hold nothing).
    fn all_uses(&self, but: Option<&ObjectKey>) -> BTreeMap<String, Use> {
        let nodes: Vec<Node> = self.nodes.values().cloned().collect();
        let mut all = self.uses.clone();
        for gang in self.gangs.values().filter(|gang| Some(&gang.key) != but) {
            let none = BTreeSet::new();
            let (plan, lost) = match &gang.state {
                GangState::Holding(plan) => (plan, &none),
                GangState::Replan { plan, lost, .. } => (plan, lost),
                _ => continue,
            };
            let held = plan.units.iter().map(|unit| &unit.placed).filter(|unit| !lost.contains(&unit.id));
            let held = Placement { units: held.cloned().collect(), spares: plan.spares.clone() };
            all.extend(plan_uses(&nodes, gang, &held));
        }
        all
    }

    /// Takes decisions until the engine has none that change anything.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for round in 0.. {
            prop_assert!(round < 50, "the engine does not come to rest");
            let decisions = self.engine.decide(round, 3);
            if decisions.is_empty() {
                return Ok(());
            }
            for decision in decisions {
                if let Decision::Place { key, uid, placement, how } = decision {
                    let gang = self.gangs.get(&key).cloned();
                    let gang = gang.filter(|gang| gang.uid == uid);
                    prop_assert!(gang.is_some(), "placed {key}, which does not exist");
                    self.place(gang.expect("just asserted"), placement, how)?;
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, mut gang: Gang, placement: Placement, how: How) -> Result<(), TestCaseError> {
        let nodes: Vec<Node> = self.nodes.values().cloned().collect();
        let uses = self.all_uses(Some(&gang.key));
        let found = check_placement(&nodes, &self.cluster.topology, &uses, &gang, &placement);
        prop_assert_eq!(&found, &Vec::new(), "{:?} of {:?}: {:?}", how, gang, placement);
        prop_assert!(!placement.units.is_empty(), "an empty placement of {:?}", gang);
        let (previous, lost) = match gang.state {
            GangState::Waiting => (None, BTreeSet::new()),
            GangState::Replan { plan, lost, steps } => {
                let step = how.step();
                prop_assert!(step.is_some_and(|step| steps.contains(&step)), "{:?} by {:?}", how, steps);
                (Some(plan), lost)
            }
            other => return Err(TestCaseError::fail(format!("placed a gang that asks nothing: {other:?}"))),
        };
        kept(previous.as_ref(), &lost, &placement, how)?;
        let generation = previous.as_ref().map_or(0, |plan| plan.generation) + 1;
        let plan = Plan::next(previous.as_ref(), generation, placement, &lost, false);
        gang.state = GangState::Holding(plan);
        self.engine.apply(Event::Gang(gang.clone()));
        self.gangs.insert(gang.key.clone(), gang);
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            topology: self.cluster.topology.clone(),
            nodes: self.nodes.values().cloned().collect(),
            uses: self.uses.clone(),
            gangs: self.gangs.values().cloned().collect(),
            pods: Vec::new(),
        }
    }

    /// A fresh engine with the same state must not find a place for a gang that the old one left waiting.
    fn nothing_missed(&self) -> Result<(), TestCaseError> {
        let mut fresh = Engine::new();
        fresh.apply(Event::Topology(self.cluster.topology.clone()));
        for (id, used) in &self.uses {
            tell(&mut fresh, id, used);
        }
        for gang in self.gangs.values() {
            fresh.apply(Event::Gang(gang.clone()));
        }
        for node in self.nodes.values() {
            fresh.apply(Event::Node(node.clone()));
        }
        for decision in fresh.decide(1_000, 100) {
            prop_assert!(
                matches!(decision, Decision::Refuse { .. }),
                "a fresh engine places what the old one left waiting: {:?}",
                decision
            );
        }
        Ok(())
    }
}

/// Tells an engine of a pod that is in no plan, with what it keeps away.
fn tell(engine: &mut Engine, id: &str, used: &Use) {
    let (id, node, requests) = (id.to_owned(), used.node.clone(), used.requests.clone());
    engine.apply(Event::Use { id: id.clone(), node: node.clone(), requests });
    engine.apply(Event::Repels { id, node, terms: used.repels.clone() });
}

/// What each way of placing promises about the units that were not lost.
fn kept(
    previous: Option<&Plan>,
    lost: &BTreeSet<UnitId>,
    placement: &Placement,
    how: How,
) -> Result<(), TestCaseError> {
    let staying: Vec<&PlacedUnit> = previous
        .iter()
        .flat_map(|plan| &plan.units)
        .map(|unit| &unit.placed)
        .filter(|unit| !lost.contains(&unit.id))
        .collect();
    match how {
        How::Fresh => prop_assert!(previous.is_none()),
        How::Replaced => {
            prop_assert_eq!(previous.map(|plan| plan.units.len()), Some(placement.units.len()));
            for unit in staying {
                prop_assert!(placement.units.contains(unit), "{:?} was moved in {:?}", unit, placement);
            }
        }
        How::Shrunk => {
            let before = |unit: &PlacedUnit| {
                staying.iter().any(|old| old.id.role == unit.id.role && old.nodes == unit.nodes)
            };
            prop_assert!(placement.units.iter().all(before), "{placement:?} has units that were not there");
        }
        How::Moved => prop_assert!(previous.is_some()),
    }
    Ok(())
}

proptest! {
    #![proptest_config(crate::config(5_000))]

    #[test]
    fn histories_keep_every_invariant((cluster, steps) in history()) {
        let mut world = World::new(cluster);
        for step in steps {
            let taken = format!("{step:?}");
            world.take(step);
            prop_assert_eq!(check(&world.snapshot()), Vec::new(), "before a decision, after {}", taken);
            world.settle()?;
            prop_assert_eq!(check(&world.snapshot()), Vec::new(), "after {}", taken);
        }
        world.nothing_missed()?;
    }
}
