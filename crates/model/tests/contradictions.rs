//! Labels that put one domain into several places, and labels that only look so.

use muster_model::{Level, Node, Resources, Topology, Uid, contradiction::contradictions};

fn topology() -> Topology {
    let level = |name: &str, keys: &[&str]| Level {
        name: name.into(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    };
    Topology {
        levels: vec![level("Hall", &["hall"]), level("Block", &["spine"]), level("Rack", &["leaf", "rack"])],
    }
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    Node {
        name: name.into(),
        uid: Uid::from(name),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        taints: Vec::new(),
        allocatable: Resources::default(),
        ready: true,
        cordoned: false,
    }
}

fn words(nodes: &[Node]) -> Vec<String> {
    contradictions(&topology(), nodes).iter().map(ToString::to_string).collect()
}

#[test]
fn one_leaf_under_two_spines_is_named_with_nodes_keys_and_both_values() {
    let mut nodes: Vec<Node> =
        (0..5).map(|i| node(&format!("n{i}"), &[("spine", "s0"), ("leaf", "l0")])).collect();
    nodes.push(node("n5", &[("spine", "s1"), ("leaf", "l0")]));
    nodes.push(node("n6", &[("spine", "s1"), ("leaf", "l1")]));
    let found = contradictions(&topology(), &nodes);
    assert_eq!(
        words(&nodes),
        ["the nodes with leaf=l0 are one Rack but disagree about their Block: \
          spine=s0 on n0, n1, n2 and 2 more; spine=s1 on n5; they count as 2 Racks"]
    );
    assert_eq!((found[0].sides[0].count, found[0].about.as_str()), (5, "Block"));
    nodes[5] = node("n5", &[("spine", "s0"), ("leaf", "l0")]);
    assert_eq!(words(&nodes), Vec::<String>::new());
}

#[test]
fn a_node_without_the_outer_label_leaves_its_rack() {
    let nodes = [node("a", &[("spine", "s0"), ("leaf", "l0")]), node("b", &[("leaf", "l0")])];
    let found = contradictions(&topology(), &nodes);
    assert_eq!(found.len(), 1);
    assert!(found[0].to_string().contains("no label on b; spine=s0 on a"), "{}", found[0]);
}

#[test]
fn a_level_that_nobody_carries_is_passed_over() {
    let nodes = [node("a", &[("hall", "h0"), ("leaf", "l0")]), node("b", &[("hall", "h1"), ("leaf", "l0")])];
    assert_eq!(contradictions(&topology(), &nodes)[0].about, "Hall");
}

#[test]
fn names_that_every_block_uses_anew_are_meant_so() {
    let of = |blocks: &[&str], racks: &[&str]| -> Vec<Node> {
        let pairs = blocks.iter().flat_map(|block| racks.iter().map(move |rack| (block, rack)));
        pairs
            .map(|(block, rack)| node(&format!("{block}{rack}"), &[("spine", block), ("leaf", rack)]))
            .collect()
    };
    assert_eq!(words(&of(&["s0", "s1"], &["r0", "r1", "r2"])), Vec::<String>::new());
    // One name of many is a mistake.
    let mut nodes = of(&["s0"], &["r0", "r1", "r2"]);
    nodes.extend(of(&["s1"], &["r2", "r3", "r4"]));
    assert_eq!(words(&nodes).len(), 1);
    // And so is a node that lacks the label, even where names recur.
    let mut nodes = of(&["s0", "s1"], &["r0", "r1"]);
    nodes.extend([node("x", &[("leaf", "r9")]), node("y", &[("spine", "s0"), ("leaf", "r9")])]);
    assert_eq!(words(&nodes).len(), 1);
}

#[test]
fn nodes_alike_by_a_later_key_of_which_only_some_carry_the_first() {
    let split = [node("a", &[("leaf", "l0"), ("rack", "r0")]), node("b", &[("rack", "r0")])];
    let found = contradictions(&topology(), &split);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].key.as_str(), found[0].about.as_str()), ("rack", "Rack"));
    let alike = [
        node("a", &[("leaf", "l0"), ("rack", "r0")]),
        node("b", &[("leaf", "l0"), ("rack", "r0")]),
        node("c", &[("rack", "r1")]),
    ];
    assert_eq!(words(&alike), Vec::<String>::new());
}
