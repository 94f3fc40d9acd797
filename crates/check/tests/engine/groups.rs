//! `spread` rules that gangs share, through random histories of tiny clusters: every placement is judged by the oracle
//! beside all others, and no gang is refused, or gets fewer units, than every placement tried by hand shows possible.

use crate::optimal::uses;
use crate::random::{Cluster, Modes, cluster, gang};
use crate::ruled::placements;
use muster_check::{Use, Violation, check_groups, check_placement, plan_uses};
use muster_engine::{Decision, Engine, Event, How};
use muster_model::{
    Gang, GangState, Mode, Node, NodeName, ObjectKey, Plan, RecoveryStep, Role, Rules, Spread, UnitId,
    plan::{PlacedUnit, Placement},
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const GANGS: usize = 4;
const GROUPS: [&str; 2] = ["web", "api"];

/// One step; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Gang(usize, Box<Gang>),
    Gone(usize),
    /// A gang stays where it is, but its rules name no group any more.
    Leave(usize),
    /// A unit of a gang is lost.
    Lose(usize, usize),
    Ready(usize, bool),
    NodeGone(usize),
    NodeBack(usize),
}

/// A gang of one or two roles, of which each may be in one of the groups; seldom with another number than the others.
fn member(levels: usize, groups: Vec<Spread>) -> impl Strategy<Value = Gang> {
    let roles = prop_oneof![3 => Just(1_usize), 1 => Just(2)];
    let size = (1..=2_u32, 0..=1_u32, 1..=3_u32, prop::sample::select(vec![2_u32, 4, 8]));
    let named = prop::option::weighted(0.8, (0..GROUPS.len(), prop::bool::weighted(0.1)));
    let drawn = roles.prop_flat_map(move |roles| gang(levels, roles, Modes::Required));
    (drawn, prop::collection::vec((size, named), 2)).prop_map(move |(mut gang, drawn)| {
        let mut rules = Rules::default();
        for (role, ((pods, min, max, devices), named)) in gang.roles.iter_mut().zip(drawn) {
            let max = if pods == 2 { max.min(2) } else { max };
            let (valid, segments) = (Vec::new(), Vec::new());
            *role = Role { pods_per_unit: pods, min, max, devices, valid, segments, ..role.clone() };
            if let Some((group, other)) = named {
                let rule = groups[group].clone();
                let units = rule.units + u32::from(other);
                rules.spread.push(Spread { role: role.name.clone(), units, ..rule });
            }
        }
        Gang { rules, ..gang }
    })
}

fn step(levels: usize, groups: Vec<Spread>) -> impl Strategy<Value = Step> {
    let n = 0..32_usize;
    prop_oneof![
        6 => (0..GANGS, member(levels, groups)).prop_map(|(at, gang)| Step::Gang(at, Box::new(gang))),
        2 => (0..GANGS).prop_map(Step::Gone),
        1 => (0..GANGS).prop_map(Step::Leave),
        3 => (0..GANGS, n.clone()).prop_map(|(at, unit)| Step::Lose(at, unit)),
        1 => (n.clone(), any::<bool>()).prop_map(|(at, to)| Step::Ready(at, to)),
        1 => n.clone().prop_map(Step::NodeGone),
        1 => n.prop_map(Step::NodeBack),
    ]
}

/// Steps, each with whether the decisions that follow it reach the engine as plans at once, or before the next that do.
type History = Vec<(Step, bool)>;

fn history() -> impl Strategy<Value = (Cluster, History)> {
    let rule = (any::<prop::sample::Index>(), 1..=2_u32, prop::bool::weighted(0.25));
    (cluster(4), prop::collection::vec(rule, GROUPS.len())).prop_flat_map(|(cluster, rules)| {
        let levels = cluster.levels();
        let rule = |(group, (level, units, wish)): (&&str, (prop::sample::Index, u32, bool))| Spread {
            role: String::new(),
            level: level.get(&levels).clone(),
            units,
            mode: if wish { Mode::Preferred } else { Mode::Required },
            group: Some((*group).to_owned()),
        };
        let groups: Vec<Spread> = GROUPS.iter().zip(rules).map(rule).collect();
        let steps =
            prop::collection::vec((step(cluster.topology.levels.len(), groups), any::<bool>()), 1..10);
        (Just(cluster), steps)
    })
}

/// The last gang is in a namespace of its own.
fn key(at: usize) -> ObjectKey {
    ObjectKey::new(if at == GANGS - 1 { "other" } else { "test" }, format!("gang-{at}"))
}

/// What a gang holds.
fn held(gang: &Gang) -> Option<Placement> {
    let none = BTreeSet::new();
    let (plan, lost) = match &gang.state {
        GangState::Holding(plan) => (plan, &none),
        GangState::Replan { plan, lost, .. } => (plan, lost),
        GangState::Waiting | GangState::Inactive => return None,
    };
    let units = plan.units.iter().map(|unit| &unit.placed).filter(|unit| !lost.contains(&unit.id));
    Some(Placement { units: units.cloned().collect(), spares: plan.spares.clone() })
}

/// What is true, kept without the engine.
struct World {
    engine: Engine,
    cluster: Cluster,
    nodes: BTreeMap<usize, Node>,
    gangs: BTreeMap<ObjectKey, Gang>,
    /// Placed gangs of whose plans the engine has not heard.
    unwritten: BTreeSet<ObjectKey>,
    uids: u32,
}

impl World {
    fn new(cluster: Cluster) -> Self {
        let nodes: BTreeMap<usize, Node> = cluster.nodes.iter().cloned().enumerate().collect();
        let mut world = Self {
            engine: Engine::new(),
            cluster,
            nodes,
            gangs: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            uids: 0,
        };
        world.engine = world.fresh();
        world
    }

    /// An engine that knows all there is.
    fn fresh(&self) -> Engine {
        let mut engine = Engine::new();
        engine.apply(Event::Topology(self.cluster.topology.clone()));
        for (id, used) in uses(&self.cluster) {
            engine.apply(Event::Use { id, node: used.node, requests: used.requests });
        }
        for gang in self.gangs.values() {
            engine.apply(Event::Gang(gang.clone()));
        }
        for node in self.nodes.values() {
            engine.apply(Event::Node(node.clone()));
        }
        engine
    }

    fn take(&mut self, step: Step) {
        let count = self.cluster.nodes.len();
        match step {
            Step::Gang(at, gang) => {
                self.uids += 1;
                let uid = format!("uid-{}", self.uids).as_str().into();
                self.set(Gang { key: key(at), uid, since: i64::from(self.uids), ..*gang });
            }
            Step::Gone(at) => {
                self.unwritten.remove(&key(at));
                self.gangs.remove(&key(at));
                self.engine.apply(Event::GangGone(key(at)));
            }
            Step::Leave(at) => {
                let Some(mut gang) = self.gangs.get(&key(at)).cloned() else { return };
                gang.rules.spread.iter_mut().for_each(|rule| rule.group = None);
                self.set(gang);
            }
            Step::Lose(at, unit) => {
                let Some(gang) = self.gangs.get(&key(at)).cloned() else { return };
                let GangState::Holding(plan) = gang.state else { return };
                let lost = [plan.units[unit % plan.units.len()].placed.id.clone()].into();
                self.set(Gang {
                    state: GangState::Replan { plan, lost, steps: RecoveryStep::ALL.to_vec() },
                    ..gang
                });
            }
            Step::Ready(at, ready) => {
                if let Some(node) = self.nodes.get_mut(&(at % count)) {
                    node.ready = ready;
                    self.engine.apply(Event::Node(node.clone()));
                }
            }
            Step::NodeGone(at) => {
                if let Some(node) = self.nodes.remove(&(at % count)) {
                    self.engine.apply(Event::NodeGone(node.name));
                }
            }
            Step::NodeBack(at) => {
                let at = at % count;
                let node = self.nodes.entry(at).or_insert_with(|| self.cluster.nodes[at].clone());
                self.engine.apply(Event::Node(node.clone()));
            }
        }
    }

    fn set(&mut self, gang: Gang) {
        self.unwritten.remove(&gang.key);
        self.engine.apply(Event::Gang(gang.clone()));
        self.gangs.insert(gang.key.clone(), gang);
    }

    fn write(&mut self) {
        for key in std::mem::take(&mut self.unwritten) {
            self.engine.apply(Event::Gang(self.gangs[&key].clone()));
        }
    }

    /// Takes decisions until the engine has none, and judges each by what was true when it was taken.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for round in 0.. {
            prop_assert!(round < 50, "the engine does not come to rest");
            let decisions = self.engine.decide(round, 3);
            if decisions.is_empty() {
                return Ok(());
            }
            for decision in decisions {
                match decision {
                    Decision::Place { key, placement, how, .. } => self.place(&key, placement, how)?,
                    Decision::Refuse { key, reason, .. } => {
                        let judge = Judge::new(self, &self.gangs[&key]);
                        prop_assert_eq!(judge.best(), None, "refused: {}", reason);
                        prop_assert_eq!(judge.replaced(&self.gangs[&key]), None, "refused: {}", reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn place(&mut self, key: &ObjectKey, placement: Placement, how: How) -> Result<(), TestCaseError> {
        let gang = self.gangs[key].clone();
        let judge = Judge::new(self, &gang);
        let found = judge.violations(&gang, &placement, held(&gang).as_ref());
        prop_assert_eq!(found, Vec::new(), "{:?}: {:?}", how, placement);
        if matches!(how, How::Fresh | How::Moved) {
            prop_assert_eq!(Some(judge.key(&placement)), judge.best(), "{:?}: {:?}", how, placement);
        }
        if how != How::Replaced {
            prop_assert_eq!(judge.replaced(&gang), None, "{:?}: {:?}", how, placement);
        }
        let (previous, lost) = match &gang.state {
            GangState::Replan { plan, lost, .. } => (Some(plan), lost.clone()),
            _ => (None, BTreeSet::<UnitId>::new()),
        };
        let generation = previous.map_or(0, |plan| plan.generation) + 1;
        let plan = Plan::next(previous, generation, placement, &lost, false);
        self.gangs.insert(key.clone(), Gang { state: GangState::Holding(plan), ..gang });
        self.unwritten.insert(key.clone());
        Ok(())
    }

    /// An engine with the same state must not find a place for a gang that was left waiting.
    fn nothing_missed(&self) -> Result<(), TestCaseError> {
        for decision in self.fresh().decide(1_000, 100) {
            prop_assert!(matches!(decision, Decision::Refuse { .. }), "it was left waiting: {:?}", decision);
        }
        Ok(())
    }
}

/// What a gang is placed beside.
struct Judge {
    cluster: Cluster,
    nodes: Vec<Node>,
    uses: BTreeMap<String, Use>,
    gang: Gang,
    others: Vec<(Gang, Placement)>,
}

impl Judge {
    fn new(world: &World, gang: &Gang) -> Self {
        let nodes: Vec<Node> = world.nodes.values().cloned().collect();
        let others = world.gangs.values().filter(|other| other.key != gang.key);
        let others: Vec<(Gang, Placement)> =
            others.filter_map(|other| Some((other.clone(), held(other)?))).collect();
        let mut uses = uses(&world.cluster);
        for (other, placement) in &others {
            uses.extend(plan_uses(&nodes, other, placement));
        }
        let gang = Gang { state: GangState::Waiting, ..gang.clone() };
        Self { cluster: world.cluster.clone(), nodes, uses, gang, others }
    }

    /// A placement that gives lost units other nodes and leaves all others where they are.
    fn replaced(&self, gang: &Gang) -> Option<Placement> {
        let GangState::Replan { plan, .. } = &gang.state else { return None };
        let stay = held(gang)?;
        let there = |node: &NodeName| self.nodes.iter().any(|other| other.name == *node);
        // What lies on nodes that are gone cannot be judged by where it is.
        if !stay.units.iter().flat_map(|unit| &unit.nodes).all(there) {
            return None;
        }
        let nodes = |unit: &PlacedUnit| {
            let mut nodes = unit.nodes.clone();
            nodes.sort();
            (unit.id.role.clone(), nodes)
        };
        let counts: Vec<u32> = gang.roles.iter().map(|role| plan.count(&role.name)).collect();
        placements(&self.cluster, gang, &counts).into_iter().find_map(|mut placement| {
            // The survivors under their own names, the rest under those that are lost.
            let mut rest = placement.units.clone();
            for unit in &stay.units {
                rest.remove(rest.iter().position(|other| nodes(other) == nodes(unit))?);
            }
            placement.units = plan.units.iter().map(|unit| unit.placed.clone()).collect();
            for unit in placement.units.iter_mut().filter(|unit| !stay.units.contains(unit)) {
                let new = rest.remove(rest.iter().position(|other| other.id.role == unit.id.role)?);
                unit.nodes = new.nodes;
            }
            self.violations(gang, &placement, Some(&stay)).is_empty().then_some(placement)
        })
    }

    fn in_groups(&self, placement: Option<&Placement>) -> Vec<Violation> {
        let own = placement.map(|placement| (&self.gang, placement));
        let all: Vec<_> = self.others.iter().map(|(gang, placement)| (gang, placement)).chain(own).collect();
        check_groups(&self.nodes, &self.cluster.topology, &all)
    }

    /// What a placement breaks, in a state of the gang. Nodes that come back may bring too many units into a domain:
    /// then no more may come beside those that were there, the gang's own that it held before included.
    fn violations(&self, gang: &Gang, placement: &Placement, before: Option<&Placement>) -> Vec<Violation> {
        let mut found = check_placement(&self.nodes, &self.cluster.topology, &self.uses, gang, placement);
        let before = self.in_groups(before);
        let no_more = |now: &Violation| {
            match now {
            Violation::TooManyOfGroup { namespace, group, domain, units, .. } => before.iter().any(|before| {
                matches!(before, Violation::TooManyOfGroup { namespace: n, group: g, domain: d, units: u, .. }
                    if (n, g, d) == (namespace, group, domain) && u >= units)
            }),
            _ => before.contains(now),
        }
        };
        found.extend(self.in_groups(Some(placement)).into_iter().filter(|now| !no_more(now)));
        found
    }

    /// For each Preferred rule, by how much its number is exceeded where the gang has units: less is better.
    fn wishes(&self, placement: &Placement) -> Vec<i64> {
        let levels = self.cluster.levels();
        let gone = |node: &NodeName| self.nodes.iter().all(|other| other.name != *node);
        let domains = |nodes: &[NodeName], rule: &Spread| -> BTreeSet<Vec<String>> {
            let level = levels.iter().position(|level| *level == rule.level).expect("a level");
            let there = nodes.iter().filter(|node| !gone(node));
            there.map(|node| self.cluster.path(node.as_str())[..=level].to_vec()).collect()
        };
        let wished = self.gang.rules.spread.iter().filter(|rule| rule.mode == Mode::Preferred);
        let exceeded = wished.map(|rule| {
            let own = placement.units.iter().filter(|unit| unit.id.role == rule.role);
            let own: Vec<BTreeSet<Vec<String>>> = own.map(|unit| domains(&unit.nodes, rule)).collect();
            if own.iter().any(|domains| domains.len() > 1) {
                return i64::MAX;
            }
            let mut all: Vec<BTreeSet<Vec<String>>> = own.clone();
            for (other, placement) in &self.others {
                let same =
                    |r: &&Spread| r.group == rule.group && other.key.namespace == self.gang.key.namespace;
                for theirs in other.rules.spread.iter().filter(same) {
                    let units = placement.units.iter().filter(|unit| unit.id.role == theirs.role);
                    all.extend(units.map(|unit| domains(&unit.nodes, rule)));
                }
            }
            let held = |domain: &Vec<String>| all.iter().filter(|unit| unit.contains(domain)).count() as i64;
            let most = own.iter().flatten().map(held).max().unwrap_or(0);
            (most - i64::from(rule.units)).max(0)
        });
        exceeded.collect()
    }

    /// Most units, then wishes: less is better.
    fn key(&self, placement: &Placement) -> Vec<i64> {
        let units = -(placement.units.len() as i64);
        std::iter::once(units).chain(self.wishes(placement)).collect()
    }

    /// The best over every placement; `None` if none is valid.
    fn best(&self) -> Option<Vec<i64>> {
        let mut vectors: Vec<Vec<u32>> = vec![Vec::new()];
        for role in &self.gang.roles {
            let with = |vector: &Vec<u32>, units| [vector.clone(), vec![units]].concat();
            vectors =
                vectors.iter().flat_map(|v| (role.min..=role.max).map(move |units| with(v, units))).collect();
        }
        let all = vectors.iter().filter(|vector| vector.iter().sum::<u32>() > 0);
        all.flat_map(|vector| placements(&self.cluster, &self.gang, vector))
            .filter(|placement| self.violations(&self.gang, placement, None).is_empty())
            .map(|placement| self.key(&placement))
            .min()
    }
}

proptest! {
    #![proptest_config(crate::config(150))]

    #[test]
    fn gangs_that_share_groups_are_placed_as_well_as_any_placement_beside_the_others_is((cluster, steps) in history()) {
        let mut world = World::new(cluster);
        for (step, write) in steps {
            world.take(step);
            if write {
                world.write();
            }
            world.settle()?;
            world.nothing_missed()?;
        }
    }
}
