//! Lets the engine place the jobs, exactly as the operator would.
//!
//! ```text
//!   Scenario { ground, jobs } ──Cluster (engine)──▶ Answer: per job a Placement, or a Refusal with what would help
//! ```

use muster_cluster::Cluster;
use muster_core::World;
use muster_engine::{Decision, NodeView};
use muster_model::{
    AcceleratorClass, Gang, GangState, Millis, Node, NodeName, ObjectKey, Plan, Reason, Topology,
    plan::Placement,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::changes::{self, Advice, Fields};
use super::volumes::Volumes;

/// What the jobs are placed on.
#[derive(Debug, Default)]
pub struct Ground {
    /// Nodes, pods and the plans of gangs that are there.
    pub cluster: Cluster,
    /// What jobs are judged by.
    pub world: World,
    /// Levels of the tree; `None` for the built-in ones.
    pub topology: Option<Topology>,
    /// Gangs that wait in the cluster, beside the jobs.
    pub waiting: Vec<Gang>,
    /// Gangs of the cluster that hold a plan.
    pub held: BTreeSet<ObjectKey>,
    /// Later than the creation of every gang that is there.
    pub since: Millis,
    /// The queues that there are are known: others do not exist.
    pub queues_known: bool,
    /// The priority classes that there are are known.
    pub priorities_known: bool,
    /// Where volumes can be used.
    pub volumes: Volumes,
    /// What was found on the way and users should know.
    pub notes: Vec<String>,
}

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
    /// Where users write what could be changed.
    pub fields: Fields,
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
    /// Changes that suffice, each alone, cheapest first; each was tried.
    pub changes: Vec<Advice>,
}

impl Refusal {
    /// A refusal that no change of the cluster would lift.
    pub fn new(code: &str, message: String, remedy: &str) -> Self {
        Self {
            code: code.to_owned(),
            message,
            near: Vec::new(),
            remedy: remedy.to_owned(),
            changes: Vec::new(),
        }
    }
}

impl From<&Reason> for Refusal {
    fn from(reason: &Reason) -> Self {
        let near = match reason {
            Reason::InsufficientCapacity { nearest, .. } => {
                nearest.iter().skip(1).map(ToString::to_string).collect()
            }
            _ => Vec::new(),
        };
        Self { near, ..Self::new(reason.code(), reason.to_string(), &reason.remedy()) }
    }
}

/// What came of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The job.
    pub job: Job,
    /// Where its pods go, or why nowhere.
    pub placement: Result<Placement, Refusal>,
    /// Accelerators that it holds.
    pub devices: i64,
    /// Time of the decision.
    pub micros: u128,
}

impl Outcome {
    /// Accelerators of one pod of a role.
    pub fn devices_per_pod(&self, role: &str) -> i64 {
        let role = self.job.gang.as_ref().ok().and_then(|gang| gang.roles.iter().find(|r| r.name == role));
        role.map_or(0, |role| i64::from(role.devices))
    }
}

/// Everything that is simulated.
#[derive(Debug)]
pub struct Scenario {
    /// What the jobs are placed on.
    pub ground: Ground,
    /// The jobs, in the order of their files.
    pub jobs: Vec<Job>,
    /// The classes of which the cluster has nodes.
    pub classes: Vec<AcceleratorClass>,
}

/// What came of it all.
#[derive(Debug)]
pub struct Answer {
    /// Levels of the tree.
    pub topology: Topology,
    /// All nodes.
    pub nodes: BTreeMap<NodeName, Node>,
    /// Who holds what in the end.
    pub views: Vec<NodeView>,
    /// What came of each job, in the order given.
    pub outcomes: Vec<Outcome>,
    /// What users should know of the cluster.
    pub notes: Vec<String>,
}

/// The engine's answer for one gang, and how long it took in microseconds.
type Decided = (Result<Placement, Refusal>, u128);

impl Scenario {
    /// Places the jobs, and the gangs that wait beside them, by priority and age: jobs are as old as their order.
    pub fn run(self) -> Answer {
        let Self { ground, jobs, classes } = self;
        let Ground { mut cluster, topology, waiting, mut notes, .. } = ground;
        let topology = topology.unwrap_or_default();
        cluster.set_topology(topology.clone());
        let asked: BTreeMap<ObjectKey, Gang> = jobs
            .iter()
            .filter_map(|job| job.gang.as_ref().ok())
            .chain(&waiting)
            .map(|gang| (gang.key.clone(), gang.clone()))
            .collect();
        let mut decided = decide(&mut cluster, &asked);
        for gang in &waiting {
            if let Some((Ok(placement), _)) = decided.remove(&gang.key) {
                let pods: usize = placement.units.iter().map(|unit| unit.nodes.len()).sum();
                notes.push(format!(
                    "Gang {} of the cluster waits, too, and could be placed: its {pods} pods are counted as placed",
                    gang.key
                ));
            }
        }
        let outcomes = jobs
            .into_iter()
            .map(|job| {
                let answer = decided.remove(&job.key);
                let mut outcome = outcome(job, answer);
                if let (Ok(gang), Err(refusal)) = (&outcome.job.gang, &mut outcome.placement)
                    && gang.state == GangState::Waiting
                {
                    refusal.changes = changes::tried(&mut cluster, gang, &outcome.job, &classes);
                }
                outcome
            })
            .collect();
        let nodes = cluster.nodes().map(|node| (node.name.clone(), node.clone())).collect();
        Answer { topology, nodes, views: cluster.engine().occupancy(), outcomes, notes }
    }
}

/// The engine's last word on each gang; what is placed holds its nodes.
fn decide(cluster: &mut Cluster, asked: &BTreeMap<ObjectKey, Gang>) -> BTreeMap<ObjectKey, Decided> {
    for gang in asked.values() {
        cluster.set_gang(gang.clone());
    }
    let mut decided = BTreeMap::new();
    // Nothing is ever freed here: a job that is refused once more cannot do better, so this comes to an end.
    for _ in 0..2 * asked.len() {
        let start = Instant::now();
        let decisions = cluster.decide(0, 1);
        let micros = start.elapsed().as_micros();
        let Some(decision) = decisions.into_iter().next() else { break };
        let (key, answer) = match decision {
            Decision::Place { key, placement, .. } => {
                if let Some(gang) = asked.get(&key) {
                    let plan = Plan::next(None, 1, placement.clone(), &BTreeSet::new(), false);
                    cluster.set_gang(Gang { state: GangState::Holding(plan), ..gang.clone() });
                }
                (key, Ok(placement))
            }
            Decision::Refuse { key, reason, .. } => (key, Err(Refusal::from(&reason))),
        };
        // A job that is refused again after another was placed keeps its last reason.
        decided.insert(key, (answer, micros));
    }
    decided
}

/// A job's outcome; one that the engine has no answer for is suspended or finished.
fn outcome(job: Job, decided: Option<Decided>) -> Outcome {
    let (placement, micros) = match (&job.gang, decided) {
        (Err(refusal), _) => (Err(refusal.clone()), 0),
        (Ok(_), Some((answer, micros))) => (answer, micros),
        (Ok(_), None) => (Err(suspended()), 0),
    };
    let mut outcome = Outcome { job, placement, devices: 0, micros };
    if let Ok(placement) = &outcome.placement {
        let units = placement
            .units
            .iter()
            .map(|unit| outcome.devices_per_pod(&unit.id.role) * unit.nodes.len() as i64);
        let spares =
            placement.spares.iter().map(|(role, nodes)| outcome.devices_per_pod(role) * nodes.len() as i64);
        outcome.devices = units.chain(spares).sum();
    }
    outcome
}

fn suspended() -> Refusal {
    Refusal::new("Suspended", "it is suspended and asks for nothing".to_owned(), "set spec.suspend to false")
}
