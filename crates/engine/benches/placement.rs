//! Figures of the engine beside limits measured in the same run: `cargo bench -p muster-engine -- [scenario]`.
//!
//! ```text
//!   decide130k   decisions and node events on 129,996 nodes in 7,222 racks of 18, three states
//!   restart      130,000 nodes and 100,000 pods from nothing to the first decision
//!   tas5k        5,000 nodes in 50 racks, gangs of 4 and of 1,000
//!   gang10k      10,000 pods on 1,250 nodes, as gangs of 10,000, 500, 20 and 1: decisions only
//!   nvl72pack    278 racks of 18 under churn: racks used against the least possible
//! ```

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use muster_engine::{Decision, Engine, Event};
use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Node, ObjectKey, PodTraits, Resources, Role, Segment,
    Topology, Uid, Within, plan::Placement,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    hint::black_box,
    time::{Duration, Instant},
};

const SEED: u64 = 11;
const GPU: &str = "nvidia.com/gpu";

/// SplitMix64: reproducible, and enough for workloads.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let run = |name: &str| wanted.is_empty() || wanted.iter().any(|w| w == name);
    println!("seed {SEED}; times in microseconds unless stated");
    calibrate();
    if run("decide130k") {
        decide130k();
    }
    if run("restart") {
        restart();
    }
    if run("tas5k") {
        tas5k();
    }
    if run("gang10k") {
        gang10k();
    }
    if run("nvl72pack") {
        nvl72pack();
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The limits: what merely looking at every node costs on this machine, now.
fn calibrate() {
    let bytes: Vec<u8> = (0..129_996_u32).map(|i| (i % 9) as u8).collect();
    let records: Vec<[u64; 8]> = (0..129_996).map(|i| [i; 8]).collect();
    let least = |work: &dyn Fn() -> u64| {
        let time = |_| {
            let start = Instant::now();
            black_box(work());
            micros(start.elapsed())
        };
        (0..50).map(time).fold(f64::MAX, f64::min)
    };
    let pass = least(&|| bytes.iter().map(|b| u64::from(*b)).sum());
    let wide = least(&|| records.iter().map(|r| r[3]).sum());
    println!("limit: one pass over 129,996 byte counters {pass:.1}, over 64-byte records {wide:.1}");
}

/// P50, P99 and the largest.
fn print(name: &str, mut times: Vec<f64>, more: &str) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name:44} n {:6}  P50 {:8.2}  P99 {:8.2}  max {:8.2}  {more}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn topology() -> Topology {
    let level = |name: &str| Level { name: name.into(), keys: vec![format!("bench/{name}")] };
    Topology { levels: vec![level("Block"), level("Rack")] }
}

/// Racks of `per_rack` nodes of 8 GPUs, `racks_per_block` racks a block.
fn node(index: usize, per_rack: usize, racks_per_block: usize) -> Node {
    let rack = index / per_rack;
    let labels =
        [("bench/Rack", format!("r{rack:05}")), ("bench/Block", format!("b{:04}", rack / racks_per_block))];
    Node {
        name: format!("node-{index:06}").into(),
        uid: Uid::default(),
        labels: labels.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        taints: Vec::new(),
        allocatable: Resources::of([(GPU, 8), ("cpu", 128_000), ("memory", 1 << 40), ("pods", 110)]),
        ready: true,
        cordoned: false,
    }
}

fn engine(nodes: usize, per_rack: usize, racks_per_block: usize) -> Engine {
    let mut engine = Engine::new();
    engine.apply(Event::Topology(topology()));
    for index in 0..nodes {
        engine.apply(Event::Node(node(index, per_rack, racks_per_block)));
    }
    engine
}

fn class() -> AcceleratorClass {
    AcceleratorClass { name: "any".into(), resource: GPU.into(), requirements: Vec::new() }
}

fn gang(name: String, pods: u32, devices: u32, segments: Vec<Segment>) -> Gang {
    Gang {
        key: ObjectKey::new("bench", name),
        uid: Uid::default(),
        queue: "main".into(),
        priority: 0,
        since: 0,
        classes: vec![class()],
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
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }
}

fn required(pods: u32, level: &str) -> Segment {
    Segment { pods, level: level.into(), mode: Mode::Required }
}

/// Asks for one decision. Returns it with the time that `decide` took.
fn decide(engine: &mut Engine, gang: Gang) -> (Option<Placement>, f64) {
    engine.apply(Event::Gang(gang));
    let start = Instant::now();
    let decision = engine.decide(0, 1).pop();
    let time = micros(start.elapsed());
    match decision {
        Some(Decision::Place { placement, .. }) => (Some(placement), time),
        _ => (None, time),
    }
}

/// A cluster under churn: gangs come and go at random around a share of use.
struct Churn {
    engine: Engine,
    random: Random,
    running: Vec<(ObjectKey, u64)>,
    used: u64,
    capacity: u64,
    next: u64,
}

impl Churn {
    fn new(engine: Engine, capacity: u64) -> Self {
        Self { engine, random: Random(SEED), running: Vec::new(), used: 0, capacity, next: 0 }
    }

    /// Fills to a share of the capacity, then lets as many gangs go as stated and refills. `size` draws a gang's pods.
    fn run(
        &mut self,
        share: f64,
        departures: usize,
        devices: u32,
        size: impl Fn(&mut Random) -> u32,
        mut seen: impl FnMut(u32, &Placement),
    ) {
        let target = (self.capacity as f64 * share) as u64;
        let mut gone = 0;
        loop {
            while self.used < target {
                let pods = size(&mut self.random);
                self.next += 1;
                let gang = gang(format!("g{}", self.next), pods, devices, Vec::new());
                let key = gang.key.clone();
                let (placement, _) = decide(&mut self.engine, gang);
                let Some(placement) = placement else {
                    self.engine.apply(Event::GangGone(key));
                    break;
                };
                seen(pods, &placement);
                self.used += u64::from(pods);
                self.running.push((key, u64::from(pods)));
            }
            if gone >= departures || self.running.is_empty() {
                return;
            }
            let leaves = self.random.below(self.running.len() as u64) as usize;
            let (key, pods) = self.running.swap_remove(leaves);
            self.engine.apply(Event::GangGone(key));
            self.used -= pods;
            gone += 1;
        }
    }
}

fn any_size(random: &mut Random) -> u32 {
    1 + random.below(128) as u32
}

fn power_of_two(random: &mut Random) -> u32 {
    1 << random.below(8)
}

/// Gangs of every kind and size on a state that stays as it is.
fn decisions(engine: &mut Engine, name: &str, devices: u32, random: &mut Random) {
    let (mut times, mut searches) = (Vec::new(), Vec::new());
    let mut placed = 0;
    for round in 0..2_000_u64 {
        let size = 1 + random.below(1_024) as u32;
        let (pods, segments, within) = match round % 5 {
            0 => (size, Vec::new(), None),
            1 => (size.next_multiple_of(4), vec![required(4, "Rack")], None),
            2 => (size.next_multiple_of(16), vec![required(16, "Rack")], None),
            3 => (size.next_multiple_of(64), vec![required(4, "Rack"), required(64, "Block")], None),
            _ => (size, Vec::new(), Some(Within { level: "Block".into(), mode: Mode::Required })),
        };
        let gang = Gang { within, ..gang("probe".into(), pods, devices, segments) };
        let key = gang.key.clone();
        engine.decide(0, 0);
        let start = Instant::now();
        let _ = black_box(engine.what_if(&gang));
        searches.push(micros(start.elapsed()));
        let (placement, time) = decide(engine, gang);
        engine.apply(Event::GangGone(key));
        placed += u32::from(placement.is_some());
        times.push(time);
    }
    print(name, times, &format!("{placed} placed"));
    print("  search and naming alone", searches, "");
}

/// Foreign use coming and going on random nodes: what one node event costs, and what it costs with every shape's
/// counts brought up to date at once (they are when next asked for).
fn events(engine: &mut Engine, name: &str, nodes: u64, random: &mut Random) {
    let (mut times, mut caught_up) = (Vec::new(), Vec::new());
    for round in 0..40_000 {
        let node = format!("node-{:06}", random.below(nodes));
        let requests = Resources::of([(GPU, 1), ("pods", 1)]);
        let id = format!("e{}", round / 2);
        let event = if round % 2 == 0 {
            Event::Use { id, node: node.into(), requests }
        } else {
            Event::UseGone { id }
        };
        let start = Instant::now();
        engine.apply(event);
        times.push(micros(start.elapsed()));
        black_box(engine.decide(0, 0));
        caught_up.push(micros(start.elapsed()));
    }
    print(name, times, "");
    print("  with all shapes caught up", caught_up, "");
}

fn decide130k() {
    const NODES: usize = 129_996;
    let mut random = Random(SEED);
    for share in [0.8, 0.95] {
        let mut churn = Churn::new(engine(NODES, 18, 18), NODES as u64);
        let start = Instant::now();
        churn.run(share, 5_000, 8, any_size, |_, _| {});
        println!("churned to {share} by 5,000 departures in {:.1} s", start.elapsed().as_secs_f64());
        decisions(&mut churn.engine, &format!("decide130k churned {share}"), 8, &mut random);
        if share < 0.9 {
            events(&mut churn.engine, "node event, few shapes", NODES as u64, &mut random);
            let bytes = churn.engine.index_bytes() as f64 / NODES as f64;
            println!("index: {bytes:.0} bytes a node");
            for cpu in 0..32_u32 {
                let mut extra = gang("shape".into(), 1, 1 + cpu % 8, Vec::new());
                extra.roles[0].requests.set("cpu", i64::from(1_000 + cpu));
                let key = extra.key.clone();
                decide(&mut churn.engine, extra);
                churn.engine.apply(Event::GangGone(key));
            }
            events(&mut churn.engine, "node event, 32 more shapes", NODES as u64, &mut random);
            let bytes = churn.engine.index_bytes() as f64 / NODES as f64;
            println!("index: {bytes:.0} bytes a node");
        }
    }
    let mut scattered = engine(NODES, 18, 18);
    for index in 0..NODES {
        if random.below(10) < 8 {
            let requests = Resources::of([(GPU, 8), ("pods", 1)]);
            let node = format!("node-{index:06}").into();
            scattered.apply(Event::Use { id: index.to_string(), node, requests });
        }
    }
    decisions(&mut scattered, "decide130k scattered 0.8", 8, &mut random);
    let mut ones = engine(NODES, 18, 18);
    for index in 0..NODES {
        let used = i64::from(random.below(100) < 98) * (4 + random.below(5) as i64);
        let requests = Resources::of([(GPU, used), ("pods", 1)]);
        ones.apply(Event::Use { id: index.to_string(), node: format!("node-{index:06}").into(), requests });
    }
    decisions(&mut ones, "decide130k 1-GPU pods, scattered", 1, &mut random);
    // More domains than nodes: 6,000 nodes in racks of one.
    let mut many = engine(6_000, 1, 2);
    decisions(&mut many, "6,000 nodes in 9,000 domains, empty", 8, &mut random);
}

fn restart() {
    const NODES: usize = 130_000;
    let nodes: Vec<Node> = (0..NODES).map(|index| node(index, 18, 18)).collect();
    let start = Instant::now();
    let mut engine = Engine::new();
    engine.apply(Event::Topology(topology()));
    for node in nodes {
        engine.apply(Event::Node(node));
    }
    for pod in 0..100_000_usize {
        let requests = Resources::of([(GPU, 8), ("pods", 1)]);
        let node = format!("node-{pod:06}").into();
        engine.apply(Event::Use { id: format!("pod-{pod}"), node, requests });
    }
    let (placement, first) = decide(&mut engine, gang("first".into(), 64, 8, Vec::new()));
    println!(
        "restart: 130,000 nodes, 100,000 pods to the first decision {:.0} ms (decision {:.1} ms, placed {})",
        start.elapsed().as_secs_f64() * 1e3,
        first / 1e3,
        placement.is_some()
    );
}

fn tas5k() {
    for (count, pods) in [(2_250_u32, 4_u32), (9, 1_000)] {
        let mut engine = engine(5_000, 100, 10);
        for index in 0..count {
            let devices = 4;
            let within = (pods < 100).then(|| Within { level: "Rack".into(), mode: Mode::Required });
            engine
                .apply(Event::Gang(Gang { within, ..gang(format!("g{index}"), pods, devices, Vec::new()) }));
        }
        let start = Instant::now();
        let placed = engine
            .decide(0, usize::MAX)
            .iter()
            .filter(|decision| matches!(decision, Decision::Place { .. }))
            .count();
        let time = start.elapsed().as_secs_f64();
        println!(
            "tas5k {count} gangs of {pods}: {placed} placed in {:.1} ms, {:.0} gangs/s, {:.0} pods/s in memory",
            time * 1e3,
            f64::from(count) / time,
            f64::from(count * pods) / time
        );
    }
}

/// 10,000 pods of one GPU on 10,000 GPUs, as few large gangs or many small ones: time to decide for all of them.
fn gang10k() {
    for (count, pods) in [(1_u32, 10_000_u32), (20, 500), (500, 20), (10_000, 1)] {
        let mut engine = engine(1_250, 25, 10);
        for index in 0..count {
            engine.apply(Event::Gang(gang(format!("g{index}"), pods, 1, Vec::new())));
        }
        let start = Instant::now();
        let decisions = engine.decide(0, usize::MAX);
        let time = micros(start.elapsed());
        let placed = decisions.iter().filter(|decision| matches!(decision, Decision::Place { .. })).count();
        println!(
            "gang10k {count} x {pods}: {placed} placed in {time:.0}, {:.1} a gang",
            time / f64::from(count)
        );
    }
}

fn nvl72pack() {
    const RACKS: usize = 278;
    type Draw = fn(&mut Random) -> u32;
    let mixes: [(&str, Draw); 2] = [("powers of two", power_of_two), ("any size 1-128", any_size)];
    for (mix, size) in mixes {
        // One block: racks alone count. Blocks of 18 racks: the smallest subtree goes first, and is paid for in racks.
        for (share, racks) in [(0.9, RACKS), (0.95, RACKS), (0.95, 18)] {
            let mut churn = Churn::new(engine(RACKS * 18, 18, racks), (RACKS * 18) as u64);
            let (mut used, mut least, mut whole, mut all) = (0_u64, 0_u64, 0_u64, 0_u64);
            churn.run(share, 20_000, 8, size, |pods, placement| {
                let rack = |name: &str| name.trim_start_matches("node-").parse::<usize>().unwrap_or(0) / 18;
                let racks: BTreeSet<usize> =
                    placement.units.iter().flat_map(|u| &u.nodes).map(|n| rack(n.as_str())).collect();
                used += racks.len() as u64;
                least += u64::from(pods.div_ceil(18));
                whole += u64::from(racks.len() == 1);
                all += u64::from(pods <= 18);
            });
            println!(
                "nvl72pack {mix} at {share}, {racks} racks a block: racks used / least {:.4}; {:.1} % of gangs of up to 18 in one rack",
                used as f64 / least as f64,
                100.0 * whole as f64 / all as f64
            );
        }
    }
}
