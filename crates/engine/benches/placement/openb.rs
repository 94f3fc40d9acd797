//! Fragmentation on the openb trace of 2023 (`cluster-trace-gpu-v2023` of github.com/alibaba/clusterdata), whose files
//! do not ship with this repository: `OPENB` names the directory with `openb_node_list_gpu_node.csv` and
//! `openb_pod_list_default.csv`.
//!
//! Pods are drawn at random, with replacement, until they ask for 130 % of the cluster's GPUs. Each is decided when it
//! comes; what does not fit is turned away. Pods that share a GPU are left out: the engine gives whole devices.

use muster_engine::{Engine, Event};
use muster_model::{Gang, Node, Resources, Topology, Uid};
use std::{collections::BTreeMap, path::Path};

use crate::world::{GPU, Random, decide, gang};

const SEEDS: std::ops::Range<u64> = 42..52;

/// Rows of a file without its header, as columns.
fn rows(path: &Path) -> std::io::Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(path)?;
    Ok(text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect())
}

fn number(row: &[String], column: usize) -> i64 {
    row.get(column).and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub fn frag() {
    let Ok(directory) = std::env::var("OPENB") else {
        println!("openb-frag: skipped, OPENB names no directory with the trace");
        return;
    };
    let file = |name: &str| rows(&Path::new(&directory).join(name));
    let (nodes, pods) = match (file("openb_node_list_gpu_node.csv"), file("openb_pod_list_default.csv")) {
        (Ok(nodes), Ok(pods)) => (nodes, pods),
        (Err(error), _) | (_, Err(error)) => {
            println!("openb-frag: skipped, cannot read the trace in {directory}: {error}");
            return;
        }
    };
    let nodes: Vec<Node> = nodes.iter().map(|row| node(row)).collect();
    // cpu_milli, memory_mib, num_gpu
    let pods: Vec<[i64; 3]> = pods
        .iter()
        .filter(|row| number(row, 3) > 1 || (number(row, 3) == 1 && number(row, 4) == 1_000))
        .map(|row| [1, 2, 3].map(|column| number(row, column)))
        .collect();
    let capacity: i64 = nodes.iter().map(|node| node.allocatable.get(GPU)).sum();
    let bound = bound(&nodes, &pods);
    let mut shares: Vec<[f64; 2]> = Vec::new();
    for seed in SEEDS {
        shares.push(arrivals(&nodes, &pods, capacity, seed));
    }
    let mean = |at: usize| 100.0 * shares.iter().map(|s| s[at]).sum::<f64>() / shares.len() as f64;
    let least = shares.iter().map(|s| s[1]).fold(f64::MAX, f64::min);
    println!(
        "openb-frag, {} nodes, {} kinds of pods with whole GPUs, seeds {SEEDS:?}: GPUs allocated {:.2} % when 100 % have come, {:.2} % (least {:.2} %) when 130 % have (target > 96; no plan exceeds {:.2} %)",
        nodes.len(),
        pods.len(),
        mean(0),
        mean(1),
        100.0 * least,
        100.0 * bound
    );
}

fn node(row: &[String]) -> Node {
    let room =
        [(GPU, number(row, 3)), ("cpu", number(row, 1)), ("memory", number(row, 2) << 20), ("pods", 110)];
    Node {
        name: row[0].as_str().into(),
        uid: Uid::default(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        allocatable: Resources::of(room),
        ready: true,
        cordoned: false,
    }
}

/// The share of GPUs that the pods with least CPU per GPU could use, were each node's resources divisible.
fn bound(nodes: &[Node], pods: &[[i64; 3]]) -> f64 {
    let least = pods.iter().map(|[cpu, _, gpus]| *cpu as f64 / *gpus as f64).fold(f64::MAX, f64::min);
    let usable = |node: &Node| {
        let gpus = node.allocatable.get(GPU) as f64;
        gpus.min(node.allocatable.get("cpu") as f64 / least.max(1.0))
    };
    let all: i64 = nodes.iter().map(|node| node.allocatable.get(GPU)).sum();
    nodes.iter().map(usable).sum::<f64>() / all as f64
}

/// Shares of all GPUs that are allocated when 100 % and when 130 % have come.
fn arrivals(nodes: &[Node], pods: &[[i64; 3]], capacity: i64, seed: u64) -> [f64; 2] {
    let mut engine = Engine::new();
    engine.apply(Event::Topology(Topology { levels: Vec::new() }));
    for node in nodes {
        engine.apply(Event::Node(node.clone()));
    }
    let mut random = Random(seed);
    let (mut came, mut allocated, mut at_full) = (0, 0, None);
    while came * 10 < capacity * 13 {
        let [cpu, memory, gpus] = pods[random.below(pods.len() as u64) as usize];
        let mut one: Gang = gang(format!("pod{came}"), 1, gpus as u32, Vec::new());
        one.roles[0].requests = Resources::of([("cpu", cpu), ("memory", memory << 20)]);
        let key = one.key.clone();
        match decide(&mut engine, one).0 {
            Some(_) => allocated += gpus,
            None => engine.apply(Event::GangGone(key)),
        }
        came += gpus;
        if came >= capacity {
            at_full.get_or_insert(allocated);
        }
    }
    [at_full.unwrap_or(allocated), allocated].map(|gpus| gpus as f64 / capacity as f64)
}
