//! Processes of the operator: started, killed at any await, frozen, stopped in order.

use muster_controllers::{Clock, LeaseConfig, Operator, Options, Snapshot};
use muster_core::Config;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::sim::Sim;
use crate::world::{Freezable, SYSTEM};

/// A process of the operator.
pub struct Process {
    /// Its gate.
    pub gate: Arc<Gate>,
    task: JoinHandle<()>,
    stop: CancellationToken,
    /// What it shows.
    pub shown: watch::Receiver<Snapshot>,
}

impl Process {
    /// Starts one; `number` makes its identity.
    pub fn start(sim: &Arc<Sim>, number: u32) -> Self {
        let name = format!("muster-{number}");
        let gate = Gate::new(sim.clone(), name.clone());
        let clock: Arc<dyn Clock> = Arc::new(sim.operator_clock());
        let options = Options { lease: LeaseConfig::new(SYSTEM, name), config: Config::default() };
        let operator = Arc::new(Operator::new(gate.client(), options, clock));
        let shown = operator.snapshots();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let inner = Box::pin(async move { operator.run(token).await });
        let frozen = gate.frozen.subscribe();
        let task = tokio::spawn(Freezable::new(inner, frozen).run());
        Self { gate, task, stop, shown }
    }

    /// It leads and knows the cluster.
    pub fn leads(&self) -> bool {
        let shown = self.shown.borrow();
        shown.epoch.is_some() && shown.synced && !*self.gate.frozen.borrow()
    }

    /// Drops it at the await point where it is.
    pub async fn kill(self) {
        self.gate.close();
        self.task.abort();
        // Cancelled: that is what was asked.
        let _cancelled = self.task.await;
    }

    /// Whether it has ended by itself, which it never may; a panic in words.
    pub async fn ended(&mut self) -> Option<String> {
        if !self.task.is_finished() {
            return None;
        }
        match (&mut self.task).await {
            Err(error) if error.is_panic() => Some(panic_text(error)),
            _ => Some("it returned".to_owned()),
        }
    }

    /// Stops it in order; where it does not within a minute, it is killed.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if tokio::time::timeout(Duration::from_secs(60), &mut self.task).await.is_err() {
            self.kill().await;
        }
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    let payload = error.into_panic();
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
}
