//! What the map looks like.

use super::*;
use muster_model::{Level, Resources};

fn topology() -> Topology {
    let level = |name: &str| Level { name: name.into(), keys: vec![name.to_lowercase()] };
    Topology { levels: vec![level("Block"), level("Rack")] }
}

fn node(name: &str, block: &str, rack: &str) -> Node {
    Node {
        name: name.into(),
        uid: name.into(),
        labels: [("block", block), ("rack", rack)]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        taints: Vec::new(),
        allocatable: Resources::of([("gpu", 4)]),
        ready: true,
        cordoned: false,
    }
}

fn claim(node: &str, devices: i64, job: Option<usize>) -> Claim {
    Claim { node: node.into(), devices, job }
}

fn jobs(names: &[&str]) -> Vec<MapJob> {
    names.iter().map(|name| MapJob { name: (*name).to_owned(), note: "1 unit".to_owned() }).collect()
}

fn gpu() -> BTreeSet<String> {
    ["gpu".to_owned()].into()
}

/// Two blocks; the first of two racks with two nodes each.
fn two_blocks() -> MapInput {
    let mut nodes = vec![
        node("n10", "x", "a"),
        node("n9", "x", "a"),
        node("n1", "x", "b"),
        node("n2", "x", "b"),
        node("n3", "y", "a"),
        node("n4", "y", "a"),
    ];
    nodes[3].ready = false;
    nodes[4].cordoned = true;
    let claims =
        [claim("n9", 4, Some(0)), claim("n10", 1, Some(1)), claim("n10", 2, Some(0)), claim("n3", 1, None)];
    MapInput::new(&topology(), &nodes, &gpu(), &claims, jobs(&["a/llama", "a/chat"]))
}

#[test]
fn a_line_is_a_rack_and_a_cell_a_device() {
    let expected = "\
x
  b  .... xxxx
  a  AAAA AAB.
y
  a  #--- ....

A  a/llama  1 unit
B  a/chat  1 unit
. free   # used by others   - cordoned   x not ready
";
    assert_eq!(render(&two_blocks(), 80, false), expected);
}

#[test]
fn a_narrow_terminal_gets_a_cell_a_node() {
    let expected = "\
x
  b  .x
  a  A+
y
  a  #.

A  a/llama  1
B  a/chat  1
. free   # used by others   - cordoned   x not ready   a sign is a node: lower case partly used, + shared by several
";
    assert_eq!(render(&two_blocks(), 13, false), expected);
}

#[test]
fn colour_changes_no_sign_and_no_line() {
    let (plain, painted) = (render(&two_blocks(), 80, false), render(&two_blocks(), 80, true));
    assert!(!plain.contains('\x1b') && painted.contains('\x1b'));
    let mut stripped = String::new();
    for part in painted.split('\x1b') {
        stripped.push_str(
            part.strip_prefix('[').and_then(|rest| rest.split_once('m')).map_or(part, |(_, rest)| rest),
        );
    }
    assert_eq!(stripped, plain);
}

#[test]
fn long_lines_are_continued_below_their_start() {
    let nodes: Vec<Node> = (0..40).map(|at| node(&format!("n{at}"), "", "r")).collect();
    let map = MapInput::new(&topology(), &nodes, &gpu(), &[claim("n0", 4, Some(0))], jobs(&["a/b"]));
    let text = render(&map, 24, false);
    let lines: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(lines, ["r  A........ .........", "   ......... .........", "   ...."]);
    assert!(lines.iter().all(|line| line.len() <= 24));
}

#[test]
fn lines_that_repeat_are_folded() {
    let nodes: Vec<Node> =
        (0..20).map(|at| node(&format!("n{at:02}"), "", &format!("r{}", at / 2))).collect();
    let map = MapInput::new(&topology(), &nodes, &gpu(), &[claim("n00", 4, Some(0))], jobs(&["a/b"]));
    let text = render(&map, 80, false);
    let lines: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(lines, ["r0  AAAA ....", "r1  .... ....", "… 8 more like it, to r9"]);
}

#[test]
fn nodes_without_labels_or_devices_are_shown_too() {
    let mut nodes = vec![node("a", "", ""), node("b", "", "")];
    nodes[1].allocatable = Resources::default();
    let claims = [claim("b", 0, Some(0)), claim("a", 0, Some(0))];
    let map = MapInput::new(&topology(), &nodes, &gpu(), &claims, jobs(&["a/b"]));
    assert_eq!(render(&map, 80, false).lines().next(), Some("all nodes  .... A"));
    // An empty cluster has an empty map.
    assert_eq!(render(&MapInput::default(), 80, false), "\n\n");
}

#[test]
fn jobs_beyond_the_letters_share_a_sign() {
    assert_eq!((letter(0), letter(25), letter(26), letter(35)), ('A', 'Z', '0', '9'));
    assert_eq!((letter(36), letter(1_000)), ('@', '@'));
}
