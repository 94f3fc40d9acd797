//! The processes of the operator of one storm.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

use super::process::Process;
use super::sim::Sim;

/// Processes at most: a leader and one that stands by.
const MOST: usize = 2;

/// All processes.
pub struct Crew {
    sim: Arc<Sim>,
    list: Mutex<Vec<Process>>,
    started: AtomicU32,
}

impl Crew {
    /// Nobody yet.
    pub fn new(sim: Arc<Sim>) -> Arc<Self> {
        Arc::new(Self { sim, list: Mutex::default(), started: AtomicU32::new(0) })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Process>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process, unless there are enough.
    pub fn start(&self) {
        let mut list = self.list();
        if list.len() < MOST {
            let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
            self.sim.note(|| format!("-- operator muster-{number} starts"));
            list.push(Process::start(&self.sim, number));
            self.sim.count("starts of the operator");
        }
    }

    /// The one that leads, else the first.
    fn leader(&self) -> Option<usize> {
        let list = self.list();
        list.iter().position(Process::leads).or((!list.is_empty()).then_some(0))
    }

    /// Whether somebody leads and knows the cluster.
    pub fn led(&self) -> bool {
        self.list().iter().any(Process::leads)
    }

    fn take(&self, name: &str) -> Option<Process> {
        let mut list = self.list();
        let at = list.iter().position(|process| process.gate.name == name)?;
        Some(list.remove(at))
    }

    /// Kills the leader after so many more requests, and starts another one after `down` milliseconds.
    pub async fn kill(self: &Arc<Self>, requests: u16, done: bool, down: u32) {
        let Some(at) = self.leader() else { return };
        let gate = self.list()[at].gate.clone();
        let crew = self.clone();
        let ends = async move {
            if let Some(process) = crew.take(&gate.name) {
                crew.sim.note(|| format!("-- operator {} is killed", gate.name));
                crew.sim.count("kills of the operator");
                process.kill().await;
            }
        };
        let crew = self.clone();
        if requests == 0 {
            ends.await;
            tokio::spawn(async move {
                sleep(Duration::from_millis(u64::from(down))).await;
                crew.start();
            });
            return;
        }
        let gate = self.list()[at].gate.clone();
        gate.trip_after(requests, done);
        tokio::spawn(async move {
            gate.tripped.notified().await;
            ends.await;
            sleep(Duration::from_millis(u64::from(down))).await;
            crew.start();
        });
    }

    /// Freezes the leader for so long; another one may start beside it.
    pub fn freeze(self: &Arc<Self>, lasts: u32, second: bool) {
        let Some(at) = self.leader() else { return };
        let gate = self.list()[at].gate.clone();
        gate.freeze(true);
        self.sim.count("freezes of the leader");
        self.sim.note(|| format!("-- operator {} is frozen", gate.name));
        if second {
            self.start();
        }
        let sim = self.sim.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(u64::from(lasts))).await;
            sim.note(|| format!("-- operator {} is thawed", gate.name));
            gate.freeze(false);
        });
    }

    /// Another process starts, then the leader stops in order.
    pub fn hand_over(self: &Arc<Self>) {
        let Some(at) = self.leader() else { return };
        let name = self.list()[at].gate.name.clone();
        self.start();
        let crew = self.clone();
        tokio::spawn(async move {
            if let Some(process) = crew.take(&name) {
                crew.sim.note(|| format!("-- operator {name} stops"));
                crew.sim.count("clean hand-overs");
                process.stop().await;
            }
            crew.start();
        });
    }

    /// What a process ended with that nobody stopped; it is replaced.
    pub async fn crashed(&self) -> Option<String> {
        let list = std::mem::take(&mut *self.list());
        let (mut alive, mut said) = (Vec::new(), None);
        for mut process in list {
            match process.ended().await {
                Some(text) => said = Some(text),
                None => alive.push(process),
            }
        }
        self.list().extend(alive);
        if said.is_some() {
            self.start();
        }
        said
    }

    /// Nobody is frozen or about to die, and somebody runs.
    pub fn calm(&self) {
        for process in self.list().iter() {
            process.gate.freeze(false);
            process.gate.spare();
        }
        self.start();
    }

    /// Ends all.
    pub async fn end(&self) {
        let list = std::mem::take(&mut *self.list());
        for process in list {
            process.kill().await;
        }
    }
}
