//! Random clusters and gangs, small enough to be solved exactly.

use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Node, ObjectKey, PodTraits, Resources, Role, Segment,
    Topology, Within,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const GPU: &str = "gpu";
/// Names of levels, outermost first; an instance has the last `1..=3` of them above the node.
const LEVELS: [&str; 3] = ["Pod", "Block", "Rack"];

/// A cluster: a tree, and of each node how many of its 8 GPUs are free.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub topology: Topology,
    pub nodes: Vec<Node>,
    pub free: Vec<i64>,
}

impl Cluster {
    /// Names of the levels, the node's included.
    pub fn levels(&self) -> Vec<String> {
        self.topology.names().into_iter().map(str::to_owned).collect()
    }

    /// The names of a node's domains, the node's included.
    pub fn path(&self, node: &str) -> Vec<String> {
        let node = self.nodes.iter().find(|n| n.name.as_str() == node).expect("a node of the cluster");
        let labels = self.topology.levels.iter().map(|level| node.labels[&level.keys[0]].clone());
        labels.chain([node.name.to_string()]).collect()
    }
}

fn topology(levels: usize) -> Topology {
    let level = |name: &&str| Level { name: (*name).to_owned(), keys: vec![name.to_lowercase()] };
    Topology { levels: LEVELS[LEVELS.len() - levels..].iter().map(level).collect() }
}

/// Up to `most` nodes in a tree of one to three levels.
pub fn cluster(most: usize) -> impl Strategy<Value = Cluster> {
    (1..=3_usize)
        .prop_flat_map(move |levels| {
            let node = (prop::collection::vec(0..3_u8, levels), prop_oneof![4 => Just(8), 1 => 0..=8_i64]);
            (Just(levels), prop::collection::vec(node, 1..=most))
        })
        .prop_map(|(levels, drawn)| {
            let topology = topology(levels);
            let nodes = drawn.iter().enumerate().map(|(at, (path, _))| node(&topology, at, path)).collect();
            Cluster { topology, nodes, free: drawn.into_iter().map(|(_, free)| free).collect() }
        })
}

/// Node `at`, with a label for each level.
pub fn node(topology: &Topology, at: usize, path: &[u8]) -> Node {
    let labels = topology.levels.iter().zip(path);
    Node {
        name: format!("n{at:02}").into(),
        uid: format!("uid-{at}").as_str().into(),
        labels: labels
            .map(|(level, name)| (level.keys[0].clone(), format!("{}{name}", level.keys[0])))
            .collect(),
        taints: Vec::new(),
        allocatable: Resources::of([(GPU, 8), ("pods", 16)]),
        ready: true,
        cordoned: false,
    }
}

/// A divisor chain for a unit: `(pods per unit, block sizes ascending)`.
fn sizes() -> impl Strategy<Value = (u32, Vec<u32>)> {
    prop::sample::select(vec![
        (1, vec![]),
        (2, vec![]),
        (3, vec![3]),
        (4, vec![2]),
        (4, vec![2, 4]),
        (4, vec![4]),
        (6, vec![2]),
        (6, vec![3, 6]),
        (6, vec![2, 6]),
        (8, vec![2, 4]),
        (8, vec![4, 8]),
        (8, vec![2, 4, 8]),
        (8, vec![2, 2, 4]),
        (4, vec![2, 2]),
    ])
}

/// How rules are drawn.
#[derive(Clone, Copy, Debug)]
pub enum Modes {
    Required,
    Mixed,
}

fn role(name: &'static str, levels: usize, modes: Modes) -> impl Strategy<Value = Role> {
    let mode = match modes {
        Modes::Required => Just(Mode::Required).boxed(),
        Modes::Mixed => prop_oneof![Just(Mode::Required), Just(Mode::Preferred)].boxed(),
    };
    let rules = prop::collection::vec((0..=levels, mode), 3);
    let devices = prop_oneof![Just(8_u32), Just(4), Just(2), Just(1)];
    (sizes(), rules, devices, 0..3_u32, 0..3_u32, prop::bool::weighted(0.2)).prop_map(
        move |((pods, sizes), mut rules, devices, min, more, even)| {
            // Levels grow outwards with the sizes; of two rules of one size the outer is Required.
            rules.sort_by_key(|(level, _)| std::cmp::Reverse(*level));
            let names = topology(levels);
            let names = names.names();
            let mut segments: Vec<Segment> = Vec::new();
            for (pods, (level, mode)) in sizes.into_iter().zip(rules) {
                let segment = Segment { pods, level: names[level].to_owned(), mode };
                if let Some(last) = segments.last_mut().filter(|last| last.pods == pods) {
                    if last.level == segment.level {
                        continue;
                    }
                    last.mode = Mode::Preferred;
                    segments.push(Segment { mode: Mode::Required, ..segment });
                } else {
                    segments.push(segment);
                }
            }
            let min = min.max(1);
            let valid =
                if even { (min..=min + more).filter(|n| n % 2 == min % 2).collect() } else { Vec::new() };
            Role {
                name: name.to_owned(),
                requests: Resources::default(),
                devices,
                node_selector: BTreeMap::new(),
                affinity: Vec::new(),
                tolerations: Vec::new(),
                traits: PodTraits::default(),
                pods_per_unit: pods,
                min,
                max: min + more,
                valid,
                segments,
                spares: 0,
            }
        },
    )
}

/// A waiting gang with this many roles.
pub fn gang(levels: usize, roles: usize, modes: Modes) -> impl Strategy<Value = Gang> {
    let names = ["worker", "decode", "server"];
    let roles: Vec<_> = names[..roles].iter().map(|name| role(name, levels, modes)).collect();
    (roles, prop::option::weighted(0.25, 0..levels), 0..3_i32).prop_map(move |(roles, within, priority)| {
        Gang {
            key: ObjectKey::new("test", "gang"),
            uid: "gang".into(),
            queue: "default".into(),
            priority,
            since: 0,
            classes: vec![AcceleratorClass {
                name: "card".into(),
                resource: GPU.into(),
                requirements: Vec::new(),
            }],
            roles,
            within: within.map(|level| Within {
                level: topology(levels).levels[level].name.clone(),
                mode: Mode::Required,
            }),
            rules: muster_model::Rules::default(),
            avoid: BTreeSet::new(),
            state: GangState::Waiting,
        }
    })
}

/// A cluster with a gang for it.
pub fn instance(most: usize, roles: usize, modes: Modes) -> impl Strategy<Value = (Cluster, Gang)> {
    cluster(most).prop_flat_map(move |cluster| {
        let levels = cluster.topology.levels.len();
        (Just(cluster), gang(levels, roles, modes))
    })
}
