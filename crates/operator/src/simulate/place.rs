//! Lets the engine place the jobs, exactly as the operator would.
//!
//! ```text
//!   Scenario { topology, inventory, jobs } ──Engine──▶ Outcome per job: Placement | Refusal
//! ```

use muster_engine::{Decision, Engine, Event};
use muster_model::{
    Gang, GangState, Node, NodeName, ObjectKey, Plan, PodTerm, Reason, Resources, Topology, plan::Placement,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

/// A job to place, or why it cannot even be tried.
#[derive(Clone, Debug)]
pub struct Job {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `TrainingJob` or `Gang`.
    pub kind: &'static str,
    /// What it asks, or what is wrong with it.
    pub gang: Result<Gang, Refusal>,
    /// What of its pods' template never blocks, and how far it is heeded.
    pub notes: Vec<String>,
}

/// Why a job is not placed, and what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// One CamelCase word.
    pub code: String,
    /// A sentence.
    pub message: String,
    /// Domains that came near, beyond the one in the message.
    pub near: Vec<String>,
    /// What to do.
    pub remedy: String,
}

impl From<&Reason> for Refusal {
    fn from(reason: &Reason) -> Self {
        let near = match reason {
            Reason::InsufficientCapacity { nearest, .. } => {
                nearest.iter().skip(1).map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        };
        Self { code: reason.code().to_owned(), message: reason.to_string(), near, remedy: reason.remedy() }
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Namespace and name.
    pub key: ObjectKey,
    /// `TrainingJob` or `Gang`.
    pub kind: &'static str,
    /// Where its pods go, or why nowhere.
    pub placement: Result<Placement, Refusal>,
    /// What of its pods' template never blocks, and how far it is heeded.
    pub notes: Vec<String>,
    /// Accelerators that it holds.
    pub devices: i64,
    /// Time of the decision.
    pub micros: u128,
}

/// Everything that is simulated.
#[derive(Debug, Default)]
pub struct Scenario {
    /// Levels of the tree.
    pub topology: Topology,
    /// All nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// What is used already.
    pub uses: BTreeMap<String, (NodeName, Resources)>,
    /// Whom pods that are there keep away.
    pub repels: BTreeMap<String, (NodeName, Vec<PodTerm>)>,
    /// The jobs, in the order of their files.
    pub jobs: Vec<Job>,
}

impl Scenario {
    /// Places the jobs by priority, then in the order given. The answers keep the order given.
    pub fn run(&self) -> Vec<Outcome> {
        let mut engine = Engine::new();
        engine.apply(Event::Topology(self.topology.clone()));
        for node in self.nodes.values() {
            engine.apply(Event::Node(node.clone()));
        }
        for (id, (node, requests)) in &self.uses {
            engine.apply(Event::Use { id: id.clone(), node: node.clone(), requests: requests.clone() });
        }
        for (id, (node, terms)) in &self.repels {
            engine.apply(Event::Repels { id: id.clone(), node: node.clone(), terms: terms.clone() });
        }
        let mut gangs: BTreeMap<&ObjectKey, &Gang> = BTreeMap::new();
        for job in &self.jobs {
            if let Ok(gang) = &job.gang {
                engine.apply(Event::Gang(gang.clone()));
                gangs.insert(&job.key, gang);
            }
        }
        let mut decided = BTreeMap::new();
        // Nothing is ever freed here: a job that is refused once more cannot do better, so this comes to an end.
        for _ in 0..2 * gangs.len() {
            let start = Instant::now();
            let decisions = engine.decide(0, 1);
            let micros = start.elapsed().as_micros();
            let Some(decision) = decisions.into_iter().next() else { break };
            let (key, answer) = match decision {
                Decision::Place { key, placement, .. } => {
                    if let Some(gang) = gangs.get(&key) {
                        let plan = Plan::next(None, 1, placement.clone(), &BTreeSet::new(), false);
                        engine
                            .apply(Event::Gang(Gang { state: GangState::Holding(plan), ..(*gang).clone() }));
                    }
                    (key, Ok(placement))
                }
                Decision::Refuse { key, reason, .. } => (key, Err(Refusal::from(&reason))),
            };
            // A job that is refused again after another was placed keeps its last reason.
            decided.insert(key, (answer, micros));
        }
        self.jobs.iter().map(|job| outcome(job, decided.remove(&job.key))).collect()
    }
}

/// A job's outcome; one that the engine has no answer for is suspended or finished.
fn outcome(job: &Job, decided: Option<(Result<Placement, Refusal>, u128)>) -> Outcome {
    let (placement, micros) = match (&job.gang, decided) {
        (Err(refusal), _) => (Err(refusal.clone()), 0),
        (Ok(_), Some((answer, micros))) => (answer, micros),
        (Ok(_), None) => (Err(suspended()), 0),
    };
    let devices = match (&job.gang, &placement) {
        (Ok(gang), Ok(placement)) => placement
            .units
            .iter()
            .map(|unit| devices_per_pod(gang, &unit.id.role) * unit.nodes.len() as i64)
            .chain(
                placement.spares.iter().map(|(role, nodes)| devices_per_pod(gang, role) * nodes.len() as i64),
            )
            .sum(),
        _ => 0,
    };
    Outcome { key: job.key.clone(), kind: job.kind, placement, notes: job.notes.clone(), devices, micros }
}

/// Accelerators of one pod of a role.
pub fn devices_per_pod(gang: &Gang, role: &str) -> i64 {
    gang.roles.iter().find(|r| r.name == role).map_or(0, |role| i64::from(role.devices))
}

fn suspended() -> Refusal {
    Refusal {
        code: "Suspended".to_owned(),
        message: "it is suspended and asks for nothing".to_owned(),
        near: Vec::new(),
        remedy: "set spec.suspend to false".to_owned(),
    }
}
