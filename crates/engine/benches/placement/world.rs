//! Clusters, gangs, and churn.

use muster_engine::{Decision, Engine, Event};
use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Node, ObjectKey, PodTraits, Resources, Role, Segment,
    Topology, Uid, plan::Placement,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{SEED, timing::timed};

pub const GPU: &str = "nvidia.com/gpu";

/// SplitMix64: reproducible, and enough for workloads.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A cluster's form: how many of each level's domains (the innermost: nodes) one of the level outside it holds.
pub struct Form {
    pub levels: &'static [&'static str],
    /// Nodes in a domain of each level.
    pub nodes: &'static [usize],
    pub devices: i64,
}

/// Racks of 18 in blocks of 18.
pub const RACKS: Form = Form { levels: &["Block", "Rack"], nodes: &[324, 18], devices: 8 };

impl Form {
    pub fn topology(&self) -> Topology {
        let level = |name: &&str| Level { name: (*name).into(), keys: vec![format!("bench/{name}")] };
        Topology { levels: self.levels.iter().map(level).collect() }
    }

    pub fn node(&self, index: usize) -> Node {
        let levels = self.levels.iter().zip(self.nodes);
        let labels = levels.map(|(name, nodes)| (format!("bench/{name}"), format!("d{:05}", index / nodes)));
        let room = Resources::of([(GPU, self.devices), ("cpu", 128_000), ("memory", 1 << 40), ("pods", 110)]);
        Node {
            name: format!("node-{index:06}").into(),
            uid: Uid::default(),
            labels: labels.collect(),
            taints: Vec::new(),
            allocatable: room,
            ready: true,
            cordoned: false,
        }
    }

    pub fn engine(&self, nodes: usize) -> Engine {
        let mut engine = Engine::new();
        engine.apply(Event::Topology(self.topology()));
        for index in 0..nodes {
            engine.apply(Event::Node(self.node(index)));
        }
        engine
    }
}

/// A foreign pod with so many GPUs on a node.
pub fn used(id: String, node: usize, devices: i64) -> Event {
    let requests = Resources::of([(GPU, devices), ("pods", 1)]);
    Event::Use { id, node: format!("node-{node:06}").into(), requests }
}

pub fn gang(name: String, pods: u32, devices: u32, segments: Vec<Segment>) -> Gang {
    Gang {
        key: ObjectKey::new("bench", name),
        uid: Uid::default(),
        queue: "main".into(),
        priority: 0,
        since: 0,
        classes: vec![AcceleratorClass {
            name: "any".into(),
            resource: GPU.into(),
            requirements: Vec::new(),
        }],
        roles: vec![Role {
            name: "worker".into(),
            requests: Resources::of([("cpu", 4_000), ("memory", 64 << 30)]),
            devices,
            node_selector: BTreeMap::new(),
            affinity: Vec::new(),
            tolerations: Vec::new(),
            traits: PodTraits::default(),
            pods_per_unit: pods,
            min: 1,
            max: 1,
            valid: Vec::new(),
            segments,
            spares: 0,
        }],
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }
}

pub fn required(pods: u32, level: &str) -> Segment {
    Segment { pods, level: level.into(), mode: Mode::Required }
}

/// Asks for one decision. Returns it with the time that `decide` took, in microseconds.
pub fn decide(engine: &mut Engine, gang: Gang) -> (Option<Placement>, f64) {
    engine.apply(Event::Gang(gang));
    let (mut decisions, time) = timed(|| engine.decide(0, 1));
    match decisions.pop() {
        Some(Decision::Place { placement, .. }) => (Some(placement), time),
        _ => (None, time),
    }
}

/// What a workload draws: a gang's pods, and the size of the blocks that must lie in one rack (0: none must).
#[derive(Clone, Copy)]
pub struct Ask {
    pub pods: u32,
    pub block: u32,
}

/// A cluster under churn: gangs come and go at random around a share of use.
pub struct Churn {
    pub engine: Engine,
    random: Random,
    running: Vec<(ObjectKey, u64)>,
    used: u64,
    /// Pods that fit it empty.
    capacity: u64,
    next: u64,
    /// Nodes that are not ready, the oldest first; each fiftieth departure the oldest comes back and another goes.
    down: VecDeque<usize>,
    /// Share of the wanted use that was reached, summed over refills, and how many there were.
    reached: (f64, u64),
}

impl Churn {
    pub fn new(engine: Engine, capacity: u64) -> Self {
        Self {
            engine,
            random: Random(SEED),
            running: Vec::new(),
            used: 0,
            capacity,
            next: 0,
            down: VecDeque::new(),
            reached: (0.0, 0),
        }
    }

    /// Takes so many of the nodes away: they keep their pods and get no others.
    pub fn with_down(mut self, form: &Form, nodes: usize, count: usize) -> Self {
        for _ in 0..count {
            self.lose(form, nodes);
        }
        self
    }

    fn lose(&mut self, form: &Form, nodes: usize) {
        let index = self.random.below(nodes as u64) as usize;
        if !self.down.contains(&index) {
            self.engine.apply(Event::Node(Node { ready: false, ..form.node(index) }));
            self.down.push_back(index);
        }
    }

    fn rotate(&mut self, form: &Form, nodes: usize) {
        if let Some(index) = self.down.pop_front() {
            self.engine.apply(Event::Node(form.node(index)));
            self.lose(form, nodes);
        }
    }

    /// The share of the wanted use that was reached on average.
    pub fn reached(&self) -> f64 {
        self.reached.0 / self.reached.1.max(1) as f64
    }

    /// Fills to a share of the capacity, then lets as many gangs go as stated and refills. `draw` draws a gang.
    pub fn run(
        &mut self,
        form: &Form,
        share: f64,
        departures: usize,
        devices: u32,
        draw: impl Fn(&mut Random) -> Ask,
        mut seen: impl FnMut(Ask, &Placement),
    ) {
        let target = (self.capacity as f64 * share) as u64;
        let mut gone = 0;
        loop {
            while self.used < target {
                let ask = draw(&mut self.random);
                self.next += 1;
                let block = (ask.block > 0).then(|| required(ask.block, "Rack"));
                let gang = gang(format!("g{}", self.next), ask.pods, devices, block.into_iter().collect());
                let key = gang.key.clone();
                let (placement, _) = decide(&mut self.engine, gang);
                let Some(placement) = placement else {
                    self.engine.apply(Event::GangGone(key));
                    break;
                };
                seen(ask, &placement);
                self.used += u64::from(ask.pods);
                self.running.push((key, u64::from(ask.pods)));
            }
            self.reached.0 += (self.used as f64 / target as f64).min(1.0);
            self.reached.1 += 1;
            if gone >= departures || self.running.is_empty() {
                return;
            }
            let leaves = self.random.below(self.running.len() as u64) as usize;
            let (key, pods) = self.running.swap_remove(leaves);
            self.engine.apply(Event::GangGone(key));
            self.used -= pods;
            gone += 1;
            if gone % 50 == 0 {
                self.rotate(form, self.capacity as usize);
            }
        }
    }
}

pub fn any_size(random: &mut Random) -> Ask {
    Ask { pods: 1 + random.below(128) as u32, block: 0 }
}

pub fn power_of_two(random: &mut Random) -> Ask {
    Ask { pods: 1 << random.below(8), block: 0 }
}
