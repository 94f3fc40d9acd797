//! The index after any sequence of changes equals the index built from scratch.

use muster_model::{Node, NodeName, Resources, Uid};
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
            };
            let shape = cluster.shape(&key);
            let mut ratios = vec![1; cluster.tree.leaf_depth() + 1];
            ratios[3] = ratio;
            ratios[4] = 2;
            (shape, cluster.chain(&ChainKey { shape, chunk: ratio, ratios }))
        })
        .collect()
}

/// Everything the index says, by name: per domain path pods and blocks now and empty, refusals, and bucket members.
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

proptest! {
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
}
