//! `--case`: placement problems with known optima, in a form that any scheduler can read.
//!
//! ```text
//!   {"name", "levels", "shapes", "nodes", "gangs"} ──▶ engine::solve, each gang in its own order
//!                                                 ──▶ {"name", "plan", "vector", "micros", "reason"}
//! ```

use anyhow::anyhow;
use muster_engine::{Objective, Solution, solve};
use muster_model::{
    Gang, GangState, Level, Node, ObjectKey, PodTraits, Reason, Resources, Role, Segment, Topology, Within,
    resources, topology::NODE,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// One problem. Fields beyond these (expected values, a witness) are not read.
#[derive(Debug, Deserialize)]
pub struct Case {
    name: String,
    /// Outermost to innermost; the last is the node.
    levels: Vec<String>,
    shapes: BTreeMap<String, Resources>,
    nodes: Vec<CaseNode>,
    gangs: Vec<CaseGang>,
}

#[derive(Debug, Deserialize)]
struct CaseNode {
    name: String,
    /// Its domain at each level but the last.
    at: Vec<String>,
    free: Resources,
}

#[derive(Debug, Deserialize)]
struct CaseGang {
    name: String,
    roles: Vec<CaseRole>,
    #[serde(default)]
    within: Option<Within>,
    #[serde(default)]
    order: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct CaseRole {
    name: String,
    shape: String,
    pods: u32,
    min: u32,
    max: u32,
    #[serde(default)]
    segments: Vec<Segment>,
}

/// Role → units → nodes in rank order.
type Plan = BTreeMap<String, Vec<Vec<String>>>;

/// What came of a case; each map is by gang, and one not placed has `null` for a plan.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Name of the case.
    pub name: String,
    /// Where the pods go.
    pub plan: BTreeMap<String, Option<Plan>>,
    /// What the plan achieves, in the order's sequence.
    pub vector: BTreeMap<String, Option<Vec<u64>>>,
    /// Time of all decisions of the case.
    pub micros: u128,
    /// Why a gang is not placed.
    pub reason: BTreeMap<String, Option<String>>,
}

/// Reads a file of cases: one JSON object a line, or one object or list in all.
///
/// # Errors
/// The line and the field that is wrong.
pub fn parse(file: &str, text: &str) -> anyhow::Result<Vec<Case>> {
    let whole: Result<serde_json::Value, _> = serde_json::from_str(text);
    match whole {
        Ok(serde_json::Value::Array(cases)) => cases
            .iter()
            .enumerate()
            .map(|(at, case)| one(&format!("{file}, case {}", at + 1), &case.to_string()))
            .collect(),
        Ok(_) => Ok(vec![one(file, text)?]),
        Err(_) => text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(at, line)| one(&format!("{file}, line {}", at + 1), line))
            .collect(),
    }
}

fn one<T: DeserializeOwned>(place: &str, text: &str) -> anyhow::Result<T> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        anyhow!(
            "{place}: {}: {}; a case has name, levels, shapes, nodes and gangs",
            error.path(),
            error.inner()
        )
    })
}

impl Case {
    /// The level as the model calls it: the node's has a fixed name there.
    fn level(&self, name: &str) -> String {
        if self.levels.last().is_some_and(|last| last == name) { NODE.to_owned() } else { name.to_owned() }
    }

    fn topology(&self) -> Topology {
        let above = &self.levels[..self.levels.len().saturating_sub(1)];
        Topology {
            levels: above.iter().map(|name| Level { name: name.clone(), keys: vec![name.clone()] }).collect(),
        }
    }

    fn nodes(&self) -> Vec<Node> {
        let node = |node: &CaseNode| {
            let mut allocatable = node.free.clone();
            // Cases do not limit the number of pods.
            allocatable.set(resources::PODS, i64::from(muster_engine::MAX_PODS_PER_NODE));
            Node {
                name: node.name.as_str().into(),
                uid: node.name.as_str().into(),
                labels: self.levels.iter().cloned().zip(node.at.iter().cloned()).collect(),
                taints: Vec::new(),
                allocatable,
                ready: true,
                cordoned: false,
            }
        };
        self.nodes.iter().map(node).collect()
    }

    fn gang(&self, gang: &CaseGang) -> anyhow::Result<(Gang, Option<Vec<Objective>>)> {
        let roles = gang.roles.iter().enumerate().map(|(at, role)| {
            let requests = self.shapes.get(&role.shape).ok_or_else(|| {
                anyhow!(
                    "case {}, gang {}: roles[{at}].shape: {:?} is not in shapes; add it there",
                    self.name,
                    gang.name,
                    role.shape
                )
            })?;
            Ok(Role {
                name: role.name.clone(),
                requests: requests.clone(),
                devices: 0,
                node_selector: BTreeMap::new(),
                affinity: Vec::new(),
                tolerations: Vec::new(),
                traits: PodTraits::default(),
                pods_per_unit: role.pods,
                min: role.min,
                max: role.max,
                valid: Vec::new(),
                segments: role
                    .segments
                    .iter()
                    .map(|segment| Segment { level: self.level(&segment.level), ..segment.clone() })
                    .collect(),
                spares: 0,
            })
        });
        let order = gang.order.as_ref().map(|order| order.iter().map(|key| self.objective(key)).collect());
        let order: Option<anyhow::Result<Vec<Objective>>> = order;
        let model = Gang {
            key: ObjectKey::new("case", gang.name.clone()),
            uid: gang.name.as_str().into(),
            queue: String::new(),
            priority: 0,
            since: 0,
            classes: Vec::new(),
            roles: roles.collect::<anyhow::Result<_>>()?,
            within: gang
                .within
                .as_ref()
                .map(|within| Within { level: self.level(&within.level), mode: within.mode }),
            rules: muster_model::Rules::default(),
            avoid: BTreeSet::new(),
            state: GangState::Waiting,
        };
        Ok((model, order.transpose()?))
    }

    fn objective(&self, key: &str) -> anyhow::Result<Objective> {
        let objective: Objective =
            key.parse().map_err(|error| anyhow!("case {}: order: {error}", self.name))?;
        Ok(match objective {
            Objective::Domains(level) => Objective::Domains(self.level(&level)),
            other => other,
        })
    }

    /// Lets the engine place all gangs of the case.
    ///
    /// # Errors
    /// When the case contradicts itself.
    pub fn answer(&self) -> anyhow::Result<Answer> {
        let gangs: Vec<_> = self.gangs.iter().map(|gang| self.gang(gang)).collect::<anyhow::Result<_>>()?;
        let (topology, nodes) = (self.topology(), self.nodes());
        let start = Instant::now();
        let solutions = solve(&topology, &nodes, &gangs);
        let micros = start.elapsed().as_micros();
        let mut answer = Answer {
            name: self.name.clone(),
            plan: BTreeMap::new(),
            vector: BTreeMap::new(),
            micros,
            reason: BTreeMap::new(),
        };
        for (gang, solution) in self.gangs.iter().zip(solutions) {
            answer.take(gang, solution);
        }
        Ok(answer)
    }
}

impl Answer {
    fn take(&mut self, gang: &CaseGang, solution: Result<Solution, Reason>) {
        let (plan, vector, reason) = match solution {
            Ok(solution) => {
                let mut plan: Plan = gang.roles.iter().map(|role| (role.name.clone(), Vec::new())).collect();
                for unit in solution.placement.units {
                    let nodes = unit.nodes.iter().map(ToString::to_string).collect();
                    plan.entry(unit.id.role).or_default().push(nodes);
                }
                (Some(plan), Some(solution.vector), None)
            }
            Err(reason) => (None, None, Some(reason.to_string())),
        };
        self.plan.insert(gang.name.clone(), plan);
        self.vector.insert(gang.name.clone(), vector);
        self.reason.insert(gang.name.clone(), reason);
    }

    /// The answer in a line for people.
    pub fn line(&self) -> String {
        let gangs: Vec<String> = self
            .vector
            .iter()
            .map(|(gang, vector)| match (vector, self.reason.get(gang).and_then(Option::as_ref)) {
                (Some(vector), _) => format!("{gang} {vector:?}"),
                (None, Some(reason)) => format!("{gang} not placed: {reason}"),
                (None, None) => format!("{gang} not placed"),
            })
            .collect();
        format!("{}: {} ({} µs)", self.name, gangs.join("; "), self.micros)
    }
}
