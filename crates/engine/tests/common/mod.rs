//! Cases in the format of the case collection, and a judge that knows the rules and nothing of the engine.
#![allow(dead_code, reason = "each test binary uses its part of this module")]

use muster_engine::{Engine, Event, Objective};
use muster_model::{
    AcceleratorClass, Gang, GangState, Level, Mode, Node, NodeName, ObjectKey, PodTraits, Resources, Role,
    Segment, Topology, Uid, Within, plan::Placement,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// An engine that knows these nodes.
pub fn engine_of(nodes: impl IntoIterator<Item = Node>) -> Engine {
    let mut engine = Engine::new();
    for node in nodes {
        engine.apply(Event::Node(node));
    }
    engine
}

/// A case brought into the engine's terms.
pub struct Case {
    pub name: String,
    pub topology: Topology,
    pub nodes: Vec<Node>,
    pub gangs: Vec<(Gang, Option<Vec<Objective>>)>,
    /// Per gang the best values, or `None` if it is infeasible.
    pub best: Vec<Option<Vec<u64>>>,
    /// The best values look ahead: an upper bound only.
    pub bound: bool,
}

/// The engine calls the innermost level `Node`.
fn level(name: &str, innermost: &str) -> String {
    if name == innermost { "Node".into() } else { name.to_owned() }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn number(value: &Value) -> u32 {
    value.as_u64().expect("a number") as u32
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn mode(value: &Value) -> Mode {
    if text(value) == "Required" { Mode::Required } else { Mode::Preferred }
}

impl Case {
    pub fn parse(case: &Value) -> Self {
        let levels: Vec<&str> = list(&case["levels"]).iter().map(text).collect();
        let (innermost, outer) = levels.split_last().expect("levels");
        let topology = Topology {
            levels: outer
                .iter()
                .map(|name| Level { name: (*name).to_owned(), keys: vec![format!("case/{name}")] })
                .collect(),
        };
        let nodes = list(&case["nodes"]).iter().map(|node| Self::node(node, outer)).collect();
        let gangs = list(&case["gangs"])
            .iter()
            .map(|gang| {
                let order = list(&gang["order"])
                    .iter()
                    .map(|o| {
                        let o = text(o);
                        match o.strip_prefix("domains:") {
                            Some(name) => Objective::Domains(level(name, innermost)),
                            None => o.parse().expect("an objective"),
                        }
                    })
                    .collect();
                (Self::gang(gang, &case["shapes"], innermost), Some(order))
            })
            .collect();
        let best = list(&case["expected"])
            .iter()
            .map(|e| {
                (e["feasible"] == true)
                    .then(|| list(&e["best"]).iter().map(|v| u64::from(number(v))).collect())
            })
            .collect();
        let bound = case["bound"] == true;
        Self { name: text(&case["name"]).to_owned(), topology, nodes, gangs, best, bound }
    }

    fn node(node: &Value, outer: &[&str]) -> Node {
        let mut allocatable = Resources::of([("pods", 1_000)]);
        for (name, amount) in node["free"].as_object().expect("free") {
            allocatable.set(name, i64::from(number(amount)));
        }
        let at = list(&node["at"]).iter().map(text);
        node_at(text(&node["name"]), outer.iter().zip(at).map(|(l, d)| (format!("case/{l}"), d)), allocatable)
    }

    fn gang(gang: &Value, shapes: &Value, innermost: &str) -> Gang {
        let role = |role: &Value| {
            let shape = shapes[text(&role["shape"])].as_object().expect("a shape");
            Role {
                segments: list(&role["segments"])
                    .iter()
                    .map(|s| Segment {
                        pods: number(&s["pods"]),
                        level: level(text(&s["level"]), innermost),
                        mode: mode(&s["mode"]),
                    })
                    .collect(),
                ..role_of(
                    text(&role["name"]),
                    Resources(shape.iter().map(|(n, a)| (n.clone(), i64::from(number(a)))).collect()),
                    number(&role["pods"]),
                    number(&role["min"]),
                    number(&role["max"]),
                )
            }
        };
        let within = gang.get("within").filter(|w| !w.is_null());
        Gang {
            within: within
                .map(|w| Within { level: level(text(&w["level"]), innermost), mode: mode(&w["mode"]) }),
            ..gang_of(text(&gang["name"]), list(&gang["roles"]).iter().map(role).collect())
        }
    }
}

/// A ready node with these labels.
pub fn node_at<K: Into<String>>(
    name: &str,
    labels: impl IntoIterator<Item = (K, impl Into<String>)>,
    allocatable: Resources,
) -> Node {
    Node {
        name: name.into(),
        uid: Uid::from(name),
        labels: labels.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        taints: Vec::new(),
        allocatable,
        ready: true,
        cordoned: false,
    }
}

/// A role without rules or accelerators.
pub fn role_of(name: &str, requests: Resources, pods_per_unit: u32, min: u32, max: u32) -> Role {
    Role {
        name: name.into(),
        requests,
        devices: 0,
        node_selector: BTreeMap::new(),
        affinity: Vec::new(),
        tolerations: Vec::new(),
        traits: PodTraits::default(),
        pods_per_unit,
        min,
        max,
        valid: Vec::new(),
        segments: Vec::new(),
        spares: 0,
    }
}

/// A waiting gang without rules.
pub fn gang_of(name: &str, roles: Vec<Role>) -> Gang {
    Gang {
        key: ObjectKey::new("default", name),
        uid: Uid::from(name),
        queue: "main".into(),
        priority: 0,
        since: 0,
        classes: Vec::new(),
        roles,
        within: None,
        rules: muster_model::Rules::default(),
        avoid: BTreeSet::new(),
        state: GangState::Waiting,
    }
}

/// A class recognised by a `gpu` label.
pub fn class_of(name: &str) -> AcceleratorClass {
    AcceleratorClass {
        name: name.into(),
        resource: "nvidia.com/gpu".into(),
        requirements: vec![muster_model::Requirement::label_in("gpu", &[name])],
    }
}

/// Everything that is wrong with placements of gangs on empty nodes, from the rules alone.
pub fn errors(topology: &Topology, nodes: &[Node], placed: &[(&Gang, &Placement)]) -> Vec<String> {
    let mut errors = Vec::new();
    let by_name: BTreeMap<&NodeName, &Node> = nodes.iter().map(|node| (&node.name, node)).collect();
    let mut used: BTreeMap<&NodeName, Resources> = BTreeMap::new();
    for (gang, placement) in placed {
        for role in &gang.roles {
            let units: Vec<_> = placement.units.iter().filter(|u| u.id.role == role.name).collect();
            let count = units.len() as u32;
            if role.allowed_at_most(count) != Some(count) {
                errors.push(format!("{}: {count} units of {}", gang.key, role.name));
            }
            for (index, unit) in units.iter().enumerate() {
                if unit.id.index as usize != index || unit.nodes.len() != role.pods_per_unit as usize {
                    errors.push(format!("{}: unit {:?} with {} pods", gang.key, unit.id, unit.nodes.len()));
                }
                let class = gang.classes.iter().find(|c| Some(&c.name) == unit.class.as_ref());
                for node in &unit.nodes {
                    used.entry(node).or_default().add(&role.pod_requests(class));
                }
                for segment in role.segments.iter().filter(|s| s.mode == Mode::Required) {
                    for block in unit.nodes.chunks(segment.pods as usize) {
                        if domains(topology, &by_name, block, &segment.level).len() > 1 {
                            errors.push(format!(
                                "{}: {:?} is split over {}s",
                                gang.key, unit.id, segment.level
                            ));
                        }
                    }
                }
            }
        }
        let all: Vec<NodeName> = placement.units.iter().flat_map(|u| u.nodes.iter().cloned()).collect();
        if let Some(within) = gang.within.as_ref().filter(|w| w.mode == Mode::Required)
            && domains(topology, &by_name, &all, &within.level).len() > 1
        {
            errors.push(format!("{}: not within one {}", gang.key, within.level));
        }
    }
    for (name, used) in used {
        match by_name.get(name) {
            None => errors.push(format!("unknown node {name}")),
            Some(node) => {
                if let Some(short) = node.allocatable.shortage(&used) {
                    errors.push(format!("{name} is over: {short:?}"));
                }
            }
        }
    }
    errors
}

/// The domains (paths of labels) of some nodes at a level.
fn domains(
    topology: &Topology,
    nodes: &BTreeMap<&NodeName, &Node>,
    names: &[NodeName],
    level: &str,
) -> BTreeSet<Vec<String>> {
    let depth = topology.level(level).expect("a level");
    names
        .iter()
        .filter_map(|name| nodes.get(name))
        .map(|node| {
            let own =
                |key: &String| node.labels.get(key).cloned().unwrap_or_else(|| format!("own {}", node.name));
            let mut path: Vec<String> =
                topology.levels.iter().take(depth + 1).map(|l| own(&l.keys[0])).collect();
            if depth == topology.levels.len() {
                path = vec![node.name.to_string()];
            }
            path
        })
        .collect()
}

/// The values of an order, from the rules alone.
pub fn vector(
    topology: &Topology,
    nodes: &[Node],
    gang: &Gang,
    order: &[Objective],
    placement: &Placement,
) -> Vec<u64> {
    let by_name: BTreeMap<&NodeName, &Node> = nodes.iter().map(|node| (&node.name, node)).collect();
    let all: Vec<NodeName> = placement.units.iter().flat_map(|u| u.nodes.iter().cloned()).collect();
    let used = |level: &str| domains(topology, &by_name, &all, level).len() as u64;
    order
        .iter()
        .map(|objective| match objective {
            Objective::Units => placement.units.len() as u64,
            Objective::Span => topology.names().iter().filter(|level| used(level) > 1).count() as u64,
            Objective::Domains(level) => used(level),
            Objective::Broken { role, pods } => {
                let of = gang.roles.iter().find(|r| r.name == *role).expect("a role");
                let rule = of.segments.iter().find(|s| s.pods == *pods && s.mode == Mode::Preferred);
                let level = &rule.expect("a rule").level;
                placement
                    .units
                    .iter()
                    .filter(|u| u.id.role == *role)
                    .flat_map(|u| u.nodes.chunks(*pods as usize))
                    .filter(|block| domains(topology, &by_name, block, level).len() > 1)
                    .count() as u64
            }
        })
        .collect()
}
