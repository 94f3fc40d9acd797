//! A node's kubelet as a state machine: pods in, statuses and deletions out.
//!
//! ```text
//! observe / forget / set_power / … ──► NodeMachine::advance(now) ──► uids with something to write
//!                                      NodeMachine::next_job(uid) ──► Job::Status | Job::Delete
//!                                      NodeMachine::next_due()    ──► when to advance again
//! ```
//!
//! Time is an argument; the driver owns clocks, watches and writes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::admission::{self, NodeFacts, Refusal};
use super::pod::{PodRecord, Stage};
use super::quantity::{self, Amounts};
use super::script::Script;
use super::status;
use super::view::PodView;

/// 128 + SIGKILL: the container outlived its grace period, or its machine stopped.
pub const SIGKILL_EXIT: i32 = 137;

/// Whether the machine and its kubelet are alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Power {
    /// Both are.
    #[default]
    Up,
    /// The kubelet is silent; containers run on.
    Hung,
    /// The machine is gone, and its containers with it.
    Down,
}

/// What the kubelet does with new pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Intake {
    /// Admission as usual.
    #[default]
    Normal,
    /// New pods are never looked at: no startTime, no refusal.
    Silent,
    /// Every new pod is refused.
    Refusing(Refusal),
}

/// One write that a pod needs.
#[derive(Debug, Clone, PartialEq)]
pub enum Job {
    /// Patch `status` with this.
    Status(Value),
    /// Delete the object with grace 0.
    Delete,
}

/// One simulated kubelet.
#[derive(Debug)]
pub struct NodeMachine {
    facts: NodeFacts,
    host_ip: String,
    power: Power,
    intake: Intake,
    pods: BTreeMap<String, PodRecord>,
    /// Pods seen so far: the order of admission.
    seen: u64,
}

impl NodeMachine {
    /// A node without pods.
    pub fn new(facts: NodeFacts, host_ip: String) -> Self {
        Self {
            facts,
            host_ip,
            power: Power::default(),
            intake: Intake::default(),
            pods: BTreeMap::new(),
            seen: 0,
        }
    }

    /// What admission judges by.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// What admission judges by, to change it.
    pub fn facts_mut(&mut self) -> &mut NodeFacts {
        &mut self.facts
    }

    /// The address of the node.
    pub fn host_ip(&self) -> &str {
        &self.host_ip
    }

    /// Whether it is alive.
    pub fn power(&self) -> Power {
        self.power
    }

    /// What it does with new pods.
    pub fn set_intake(&mut self, intake: Intake) {
        self.intake = intake;
    }

    /// Kills, hangs or revives the node. A machine that was down comes back with its containers dead.
    pub fn set_power(&mut self, power: Power, now: Timestamp) {
        if self.power == Power::Down && power != Power::Down {
            for record in self.pods.values_mut() {
                record.lose_containers(now);
            }
        }
        self.power = power;
        if power == Power::Down {
            self.pods.retain(|_, record| !record.gone);
        }
    }

    /// The pod as the API has it now. `script` is asked for only when the pod is new.
    pub fn observe(
        &mut self,
        view: PodView,
        script: impl FnOnce(&PodView) -> Result<Script, Refusal>,
        now: Timestamp,
    ) {
        if let Some(record) = self.pods.get_mut(&view.uid) {
            record.view = view;
            return;
        }
        self.seen += 1;
        let (script, refusal) = match script(&view) {
            Ok(script) => (script, None),
            Err(refusal) => (Script::default(), Some(refusal)),
        };
        let mut record = PodRecord::new(view, script, self.seen, now);
        if let (Stage::New, Some(refusal)) = (&record.stage, refusal) {
            record.reject(refusal, now);
        }
        self.pods.insert(record.view.uid.clone(), record);
    }

    /// The pod's object is gone. Containers that still run are ended first; a dead machine forgets at once.
    pub fn forget(&mut self, uid: &str) {
        let Some(record) = self.pods.get_mut(uid) else { return };
        if record.counts() && self.power != Power::Down {
            record.gone = true;
        } else {
            self.pods.remove(uid);
        }
    }

    /// Namespace and name of a pod.
    pub fn name_of(&self, uid: &str) -> Option<(String, String)> {
        self.pods.get(uid).map(|record| (record.view.namespace.clone(), record.view.name.clone()))
    }

    /// What admitted pods use, those leaving included.
    pub fn used(&self) -> Amounts {
        let mut used = Amounts::new();
        for record in self.pods.values().filter(|record| record.counts()) {
            quantity::add(&mut used, &record.view.requests);
            *used.entry("pods".to_owned()).or_default() += 1;
        }
        used
    }

    /// Moves every pod to `now` and returns the uids with something to write.
    pub fn advance(&mut self, now: Timestamp) -> Vec<String> {
        if self.power == Power::Down {
            return Vec::new();
        }
        let lives = self.power == Power::Up;
        for record in self.pods.values_mut() {
            record.advance(now, lives);
        }
        if !lives {
            return Vec::new();
        }
        self.pods.retain(|_, record| !(record.gone && record.is_over()));
        self.decide_new(now);
        self.pods.iter().filter(|(_, record)| record.wants_write()).map(|(uid, _)| uid.clone()).collect()
    }

    /// Admits or refuses the pods not decided on, in the order in which they were seen.
    fn decide_new(&mut self, now: Timestamp) {
        let mut new: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, record)| record.stage == Stage::New)
            .map(|(uid, record)| (record.seq, uid.clone()))
            .collect();
        new.sort_unstable();
        for (_, uid) in new {
            let used = self.used();
            let Some(record) = self.pods.get_mut(&uid) else { continue };
            match (&self.intake, record.view.deletion) {
                (_, Some(_)) => record.end_unstarted(now),
                (Intake::Silent, None) => {}
                (Intake::Refusing(refusal), None) => record.reject(refusal.clone(), now),
                (Intake::Normal, None) => match admission::admit(&record.view, &self.facts, &used) {
                    Ok(()) => {
                        record.admit(now);
                        record.advance(now, true);
                    }
                    Err(refusal) => record.reject(refusal, now),
                },
            }
        }
    }

    /// When to advance again without further input.
    pub fn next_due(&self) -> Option<Timestamp> {
        let lives = match self.power {
            Power::Down => return None,
            Power::Hung => false,
            Power::Up => true,
        };
        self.pods.values().filter_map(|record| record.next_due(lives)).min()
    }

    /// Takes the next write for a pod; `ip` is called when the pod needs an address.
    pub fn next_job(&mut self, uid: &str, ip: impl FnOnce() -> String) -> Option<Job> {
        let record = self.pods.get_mut(uid).filter(|_| self.power == Power::Up)?;
        if record.gone {
            return None;
        }
        if record.dirty {
            record.dirty = false;
            if record.ip.is_none() && record.runs.iter().any(super::pod::Run::has_started) {
                record.ip = Some(if record.view.host_network { self.host_ip.clone() } else { ip() });
            }
            return Some(Job::Status(status::render(record, &self.host_ip)));
        }
        if record.wants_delete() {
            record.delete_sent = true;
            return Some(Job::Delete);
        }
        None
    }

    /// The write did not arrive and must be made again.
    pub fn job_failed(&mut self, uid: &str, job: &Job) {
        if let Some(record) = self.pods.get_mut(uid) {
            match job {
                Job::Status(_) => record.dirty = true,
                Job::Delete => record.delete_sent = false,
            }
        }
    }

    /// Ends a pod's running containers with `code`: all for good (`for_good`), or the first, which
    /// its restart policy may start again. False when none runs.
    pub fn exit(&mut self, uid: &str, code: i32, for_good: bool, now: Timestamp) -> bool {
        self.pods.get_mut(uid).is_some_and(|record| record.exit(code, for_good, now))
    }
}
