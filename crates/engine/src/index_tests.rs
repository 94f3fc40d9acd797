//! The index after any sequence of changes equals the index built from scratch.

use muster_model::{Node, NodeName, PodTerm, Requirement, Resources, Uid};
use proptest::prelude::*;
use std::collections::BTreeMap;

use crate::{Engine, Event, chain::ChainKey, cluster::Cluster, index::ShapeKey, tree::DomainId};

#[derive(Clone, Debug)]
enum Change {
    Node { node: usize, rack: u8, block: Option<u8>, room: i64, ready: bool, tainted: bool },
    Gone(usize),
    Use { id: u8, node: usize, amount: i64 },
    UseGone(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let node = 0..8_usize;
    prop_oneof![
        (node.clone(), 0..3_u8, prop::option::of(0..2_u8), 0..9_i64, any::<bool>(), any::<bool>()).prop_map(
            |(node, rack, block, room, ready, tainted)| Change::Node {
                node,
                rack,
                block,
                room,
                ready,
                tainted
            }
        ),
        node.clone().prop_map(Change::Gone),
        (0..6_u8, node, 0..5_i64).prop_map(|(id, node, amount)| Change::Use { id, node, amount }),
        (0..6_u8).prop_map(Change::UseGone),
    ]
}

fn name(node: usize) -> NodeName {
    format!("n{node}").into()
}

fn event(change: &Change) -> Event {
    match *change {
        Change::Node { node, rack, block, room, ready, tainted } => {
            let mut labels =
                BTreeMap::from([("network.topology.nvidia.com/leaf".to_owned(), format!("r{rack}"))]);
            if let Some(block) = block {
                labels.insert("network.topology.nvidia.com/spine".to_owned(), format!("b{block}"));
            }
            let taint = muster_model::Taint {
                key: "k".into(),
                value: String::new(),
                effect: muster_model::TaintEffect::NoSchedule,
            };
            Event::Node(Node {
                name: name(node),
                uid: Uid::default(),
                labels,
                taints: if tainted { vec![taint] } else { Vec::new() },
                allocatable: Resources::of([("cpu", room), ("pods", 10)]),
                ready,
                cordoned: false,
            })
        }
        Change::Gone(node) => Event::NodeGone(name(node)),
        Change::Use { id, node, amount } => Event::Use {
            id: id.to_string(),
            node: name(node),
            requests: Resources::of([("cpu", amount), ("pods", 1)]),
        },
        Change::UseGone(id) => Event::UseGone { id: id.to_string() },
    }
}

/// Two shapes with a chain each, looked up in a cluster.
fn look_up(cluster: &mut Cluster) -> Vec<(usize, usize)> {
    [(1, 1), (2, 2)]
        .into_iter()
        .map(|(amount, ratio)| {
            let request = cluster.amounts(&Resources::of([("cpu", amount), ("pods", 1)]));
            let key = ShapeKey {
                request,
                class: None,
                selector: Vec::new(),
                affinity: Vec::new(),
                tolerations: Vec::new(),
                repelled_by: Vec::new(),
            };
            let shape = cluster.shape(&key);
            let mut ratios = vec![1; cluster.tree.leaf_depth() + 1];
            ratios[3] = ratio;
            ratios[4] = 2;
            (shape, cluster.chain(&ChainKey { shape, chunk: ratio, ratios }))
        })
        .collect()
}

/// Leaf domains inside an outer one by blocks, counted one by one; none of them holds more than 200.
fn counted(cluster: &Cluster, chain: usize, domain: DomainId) -> Vec<u32> {
    let (tree, index) = (&cluster.tree, &cluster.index);
    let inside = |leaf: &DomainId| tree.ancestors(*leaf).any(|outer| outer == domain);
    let of = |blocks: usize| index.bucket(chain, blocks).filter(inside).count() as u32;
    [0].into_iter().chain((1..200).map(of)).collect()
}

/// Everything the index says, by name: per domain path pods and blocks now and empty, refusals, and bucket members.
/// Histograms are what the buckets say.
fn dump(cluster: &mut Cluster) -> BTreeMap<String, Vec<u64>> {
    let ids = look_up(cluster);
    let (tree, index) = (&cluster.tree, &cluster.index);
    let mut all = BTreeMap::new();
    for (i, (shape, chain)) in ids.into_iter().enumerate() {
        for depth in 0..=tree.leaf_depth() {
            for domain in tree.at_depth(depth) {
                let mut values: Vec<u64> = [false, true]
                    .into_iter()
                    .flat_map(|empty| [index.count(shape, *domain, empty), index.raw(chain, *domain, empty)])
                    .map(u64::from)
                    .collect();
                if depth == tree.leaf_depth() {
                    let holds = |blocks: &usize| index.bucket(chain, *blocks).any(|d: DomainId| d == *domain);
                    values.extend((0..200_usize).filter(holds).map(|blocks| blocks as u64));
                } else {
                    let mut histogram = index.histogram(chain, *domain).to_vec();
                    histogram.resize(200, 0);
                    assert_eq!(histogram, counted(cluster, chain, *domain));
                }
                all.insert(format!("{i} {depth} {}", tree.path(*domain)), values);
            }
        }
        for (refusal, count) in index.tally(shape) {
            all.insert(format!("{i} {refusal:?}"), vec![u64::from(count)]);
        }
    }
    all
}

/// How many cases; `PROPTEST_CASES` replaces it.
const CASES: u32 = 10_000;

fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        default
    } else {
        ProptestConfig { cases: CASES, ..default }
    }
}

proptest! {
    #![proptest_config(config())]
    /// As many as the scarcest resource allows, each divided.
    #[test]
    fn fits_are_least_quotients(
        rooms in prop::collection::vec((0..50_i64, 0..60_i64, 0..5_i64), 1..12),
    ) {
        let mut cluster = Cluster::default();
        let names: Vec<String> = (0..rooms.len()).map(|at| format!("r{at}")).collect();
        let of = |amount: fn(&(i64, i64, i64)) -> i64| {
            Resources::of(names.iter().map(String::as_str).zip(rooms.iter().map(amount)))
        };
        let Event::Node(mut node) = event(&Change::Node {
            node: 0, rack: 0, block: None, room: 0, ready: true, tainted: false,
        }) else { return Ok(()) };
        node.allocatable = of(|(all, ..)| *all);
        cluster.set_node(&node);
        cluster.set_use("u".into(), &node.name, of(|(_, used, _)| *used));
        let request = cluster.amounts(&of(|(.., asked)| *asked));
        let quotients = |empty: bool| {
            let times = rooms.iter().filter(|(.., asked)| *asked > 0).map(|(all, used, asked)| {
                (all - if empty { 0 } else { *used }).max(0) / asked
            });
            times.min().unwrap_or(0) as u32
        };
        let slot = cluster.slot("n0").expect("it is there");
        let state = cluster.node(slot).expect("it is there");
        prop_assert_eq!(state.fits(&request, false), quotients(false));
        prop_assert_eq!(state.fits(&request, true), quotients(true));
    }

    #[test]
    fn incremental_equals_rebuilt(changes in prop::collection::vec(change(), 1..60)) {
        let mut engine = Engine::new();
        look_up(&mut engine.cluster);
        for (turn, change) in changes.iter().enumerate() {
            engine.apply(event(change));
            // Ask now and then, so that the index is alive while things change.
            if turn % 3 == 0 {
                look_up(&mut engine.cluster);
            }
        }
        let incremental = dump(&mut engine.cluster);
        engine.cluster.index.clear();
        let rebuilt = dump(&mut engine.cluster);
        prop_assert_eq!(incremental, rebuilt);
    }

    #[test]
    fn anti_affinity_is_in_force_where_its_pods_are(
        watched_early in any::<bool>(),
        changes in prop::collection::vec(repelling_change(), 1..40),
    ) {
        let mut cluster = Cluster::default();
        let labels = BTreeMap::from([("app".to_owned(), "train".to_owned())]);
        if watched_early {
            cluster.repelling("ns", &labels);
        }
        let mut nodes: BTreeMap<usize, Option<u8>> = BTreeMap::new();
        let mut pods: BTreeMap<u8, (usize, bool)> = BTreeMap::new();
        for change in changes {
            match change {
                Repelling::Node { node, rack } => {
                    nodes.insert(node, rack);
                    let rack = rack.map(|rack| (KEY.to_owned(), rack.to_string()));
                    let labels = rack.into_iter().collect();
                    cluster.set_node(&Node { labels, ..bare(node) });
                }
                Repelling::Gone(node) => {
                    nodes.remove(&node);
                    cluster.remove_node(&name(node));
                }
                Repelling::Pod { id, node, selects } => {
                    pods.insert(id, (node, selects));
                    cluster.set_repels(id.to_string(), name(node), vec![term(selects)]);
                }
                Repelling::PodGone(id) => {
                    pods.remove(&id);
                    cluster.set_repels(id.to_string(), name(0), Vec::new());
                }
            }
            let ids = cluster.repelling("ns", &labels);
            for (node, rack) in &nodes {
                let expected = rack.is_some()
                    && pods.values().any(|(at, selects)| *selects && nodes.get(at).is_some_and(|r| r == rack));
                let slot = cluster.slot(name(*node).as_str()).expect("a node");
                let state = cluster.node(slot).expect("a node");
                prop_assert_eq!(state.repelled.iter().any(|id| ids.contains(id)), expected, "node {}", node);
            }
        }
    }
}

/// The label whose value names the domain of a term.
const KEY: &str = "rack";

#[derive(Clone, Debug)]
enum Repelling {
    Node { node: usize, rack: Option<u8> },
    Gone(usize),
    Pod { id: u8, node: usize, selects: bool },
    PodGone(u8),
}

fn repelling_change() -> impl Strategy<Value = Repelling> {
    let node = 0..5_usize;
    prop_oneof![
        (node.clone(), prop::option::of(0..2_u8)).prop_map(|(node, rack)| Repelling::Node { node, rack }),
        node.clone().prop_map(Repelling::Gone),
        (0..4_u8, node, any::<bool>()).prop_map(|(id, node, selects)| Repelling::Pod { id, node, selects }),
        (0..4_u8).prop_map(Repelling::PodGone),
    ]
}

fn term(selects: bool) -> PodTerm {
    let app = if selects { "train" } else { "other" };
    PodTerm {
        namespaces: None,
        requirements: vec![Requirement::label_in("app", &[app])],
        topology_key: KEY.to_owned(),
    }
}

fn bare(node: usize) -> Node {
    Node {
        name: name(node),
        uid: Uid::default(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        allocatable: Resources::default(),
        ready: true,
        cordoned: false,
    }
}
