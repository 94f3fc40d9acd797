//! Random clusters and gangs, small enough to be solved exactly.

use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Near, Node, ObjectKey, PodTraits, Ratio, Resources, Role,
    Rules, Segment, Spread, Topology, Within,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const GPU: &str = "gpu";
/// Names of levels, outermost first; an instance has the last `1..=3` of them above the node.
const LEVELS: [&str; 3] = ["Pod", "Block", "Rack"];
/// Names of roles; a gang has the first `1..=3` of them. Its pods bear the name as the value of the label `role`.
pub const NAMES: [&str; 3] = ["worker", "decode", "server"];

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

/// The topology of so many levels above the node; a level's label key is its name in lower case.
pub fn topology(levels: usize) -> Topology {
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
                traits: PodTraits {
                    labels: BTreeMap::from([("role".to_owned(), name.to_owned())]),
                    preferred: Vec::new(),
                },
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
    let roles: Vec<_> = NAMES[..roles].iter().map(|name| role(name, levels, modes)).collect();
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
            rules: Rules::default(),
            avoid: BTreeSet::new(),
            state: GangState::Waiting,
        }
    })
}

fn mode(preferred: bool) -> impl Strategy<Value = Mode> {
    if preferred {
        prop_oneof![Just(Mode::Required), Just(Mode::Preferred)].boxed()
    } else {
        Just(Mode::Required).boxed()
    }
}

/// Rules of every kind for so many roles in a topology of so many levels (the node's comes last).
fn rules(levels: usize, roles: usize, preferred: bool) -> impl Strategy<Value = Rules> {
    let level = move || {
        let names: Vec<String> = topology(levels).names().into_iter().map(str::to_owned).collect();
        prop::sample::select(names)
    };
    let ratio = (any::<bool>(), 1..=2_u32, 0..=2_u32, 0..=1_u32);
    let ratios = prop::collection::vec(ratio, 0..roles.max(1)).prop_map(move |all| {
        let pairs = all.into_iter().enumerate();
        pairs
            .map(|(at, (swap, per, min, more))| {
                let (one, other) = if swap { (at, at + 1) } else { (at + 1, at) };
                Ratio { role: NAMES[one].into(), of: NAMES[other].into(), per, min, max: (min + more).max(1) }
            })
            .collect::<Vec<Ratio>>()
    });
    let near = (prop::sample::subsequence(NAMES[..roles].to_vec(), 1..=roles), level(), mode(preferred))
        .prop_map(|(roles, level, mode)| Near {
            roles: roles.into_iter().map(str::to_owned).collect(),
            level,
            mode,
        });
    let spread = (0..roles, level(), 1..=2_u32, mode(preferred)).prop_map(|(role, level, units, mode)| {
        Spread { role: NAMES[role].into(), level, units, mode, group: None }
    });
    (ratios, prop::collection::vec(near, 0..=2), prop::collection::vec(spread, 0..=2))
        .prop_map(|(ratios, near, spread)| Rules { ratios, near, spread })
}

/// A waiting gang of so many roles with rules between them and their units; `preferred`: some of them wishes.
pub fn ruled(levels: usize, roles: usize, modes: Modes, preferred: bool) -> impl Strategy<Value = Gang> {
    (gang(levels, roles, modes), rules(levels, roles, preferred))
        .prop_map(|(gang, rules)| Gang { rules, ..gang })
}

/// The gangs with few units of one or two pods each, without segments.
pub fn small(gang: impl Strategy<Value = Gang>) -> impl Strategy<Value = Gang> {
    let size = (1..=2_u32, 0..=1_u32, 1..=3_u32, prop::sample::select(vec![2_u32, 4, 8]));
    (gang, prop::collection::vec(size, NAMES.len())).prop_map(|(mut gang, sizes)| {
        for (role, (pods, min, max, devices)) in gang.roles.iter_mut().zip(sizes) {
            let max = if pods == 2 { max.min(2) } else { max };
            *role = Role {
                pods_per_unit: pods,
                min,
                max,
                devices,
                valid: Vec::new(),
                segments: Vec::new(),
                ..role.clone()
            };
        }
        gang
    })
}

/// A cluster with a gang for it.
pub fn instance(most: usize, roles: usize, modes: Modes) -> impl Strategy<Value = (Cluster, Gang)> {
    cluster(most).prop_flat_map(move |cluster| {
        let levels = cluster.topology.levels.len();
        (Just(cluster), gang(levels, roles, modes))
    })
}
