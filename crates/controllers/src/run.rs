//! The operator's life: stand for leadership, prove the fence, lead until leadership is lost, stand again.
//!
//! ```text
//!   Elector ──term──▶ lead: watches ─▶ Core ─▶ Writer ─▶ API server
//!                          one future: dropping it stops everything at an await point (the renewal too)
//! ```

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client};
use muster_api::labels;
use muster_core::effect::Outcome;
use muster_core::{Config, Core, Counters, Event, Ticket, plan_part};
use muster_model::Millis;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::leader::{Elector, LeaseConfig, Term};
use crate::watch::changes;
use crate::writer::Writer;

/// What a process of the operator shows of itself.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The epoch that it leads in; `None` while it does not lead.
    pub epoch: Option<i64>,
    /// All watches have delivered what there was.
    pub synced: bool,
    /// Why it does not lead although it has the Lease.
    pub trouble: Option<String>,
    /// Counters of this term.
    pub counters: Counters,
    /// Gangs by phase.
    pub phases: BTreeMap<String, usize>,
}

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Leadership.
    pub lease: LeaseConfig,
    /// Patience and bounds.
    pub config: Config,
}

/// The operator.
pub struct Operator {
    client: Client,
    options: Options,
    clock: Arc<dyn Clock>,
    shown: watch::Sender<Snapshot>,
}

/// How many inputs are taken in before the core advances.
const BATCH: usize = 2_000;
/// How often the snapshot is renewed.
const SHOW_EVERY: Millis = 1_000;

impl Operator {
    /// An operator. `client` must not retry by itself (`Config::default_retry = false`): the core decides what is
    /// tried again.
    pub fn new(client: Client, options: Options, clock: Arc<dyn Clock>) -> Self {
        Self { client, options, clock, shown: watch::Sender::new(Snapshot::default()) }
    }

    /// Follows what the operator shows of itself.
    pub fn snapshots(&self) -> watch::Receiver<Snapshot> {
        self.shown.subscribe()
    }

    /// Runs until `stop`; then gives the Lease back.
    pub async fn run(&self, stop: CancellationToken) {
        let elector =
            Arc::new(Elector::new(self.client.clone(), self.options.lease.clone(), self.clock.clone()));
        loop {
            // In a fixed order, here and below: a run in virtual time is the same every time.
            let term = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                term = elector.acquire() => term,
            };
            tracing::info!(epoch = term.epoch(), "took the Lease");
            // A task of its own: however busy the core is, the Lease is renewed in time. It ends with this future.
            let mut keeping = JoinSet::new();
            let (keeper, kept) = (elector.clone(), term.clone());
            keeping.spawn(async move { keeper.keep(&kept).await });
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    elector.release(&term).await;
                    tracing::info!("gave the Lease back");
                    return;
                }
                Some(ended) = keeping.join_next() => match ended {
                    Ok(error) => tracing::warn!(%error, "leadership lost"),
                    Err(error) => tracing::error!(%error, "the renewal of the Lease ended"),
                },
                () = self.lead(&elector, &term) => tracing::warn!("another leader is at work; standing again"),
            }
            self.shown.send_replace(Snapshot::default());
            tokio::time::sleep(self.options.lease.retry).await;
        }
    }

    /// Leads for one term. Returns when the API server says that the term is over.
    async fn lead(&self, elector: &Elector, term: &Term) {
        while let Err(error) = elector.prove_fence(term).await {
            tracing::warn!(%error, "not leading yet");
            self.shown.send_modify(|shown| shown.trouble = Some(error.to_string()));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tracing::info!(epoch = term.epoch(), "leading: writes of earlier epochs are refused");
        self.shown.send_modify(|shown| {
            shown.epoch = Some(term.epoch());
            shown.trouble = None;
        });
        let mut core = Core::new(self.options.config.clone(), term.epoch());
        core.load_chunks(self.chunks().await);
        let mut events = self.watch();
        let mut unsynced = KINDS;
        let writer = Writer::new(
            self.client.clone(),
            term.clone(),
            self.options.lease.write_timeout(),
            self.clock.clone(),
            &self.options.lease.identity,
        );
        // Nothing is decided before everything that exists is known.
        while unsynced > 0 {
            let Some(event) = events.next().await else { return };
            unsynced -= usize::from(event.synced());
            core.apply(event, self.clock.millis());
        }
        core.start();
        self.shown.send_modify(|shown| shown.synced = true);
        // Tasks of their own, so that they go on while the core thinks; they end with this future.
        let mut flying = JoinSet::new();
        let mut shown_at = 0;
        loop {
            let now = self.clock.millis();
            core.advance(now);
            for ticket in core.take(now) {
                let writer = writer.clone();
                flying.spawn(async move {
                    let outcome = writer.perform(&ticket.effect).await;
                    (ticket, outcome)
                });
            }
            if now >= shown_at + SHOW_EVERY {
                shown_at = now;
                self.shown.send_modify(|shown| {
                    shown.counters = core.counters().clone();
                    shown.phases = core.phases();
                });
            }
            let pause = core.next_wake().map(|at| Duration::from_millis((at - now).max(0) as u64));
            // Between two looks at least a moment: what arrives together is judged together.
            let pause = pause.map(|pause| pause.max(Duration::from_millis(1)));
            tokio::select! {
                biased;
                Some(landed) = flying.join_next() => {
                    if !self.land(&mut core, landed) {
                        return;
                    }
                }
                Some(event) = events.next() => core.apply(event, self.clock.millis()),
                () = sleep(pause) => {}
            }
            for _ in 0..BATCH {
                let now = self.clock.millis();
                if let Some(landed) = flying.try_join_next() {
                    if !self.land(&mut core, landed) {
                        return;
                    }
                } else if let Some(Some(event)) = events.next().now_or_never() {
                    core.apply(event, now);
                } else {
                    break;
                }
            }
        }
    }

    /// Tells the core what came of an effect. False when the term is over.
    fn land(&self, core: &mut Core, landed: Result<(Ticket, Outcome), JoinError>) -> bool {
        match landed {
            Ok((ticket, outcome)) => core.done(ticket, outcome, self.clock.millis()),
            Err(error) => {
                // What it was about is not known any more: a new term begins by looking at everything.
                tracing::error!(%error, "a write ended without an outcome; standing again");
                false
            }
        }
    }

    /// All parts of large plans.
    async fn chunks(&self) -> BTreeMap<String, String> {
        let maps: Api<ConfigMap> = Api::all(self.client.clone());
        let params = ListParams::default().labels(labels::PLAN_CHUNK);
        let patience = self.options.lease.renew_deadline;
        loop {
            let error = match tokio::time::timeout(patience, maps.list(&params)).await {
                Ok(Ok(list)) => {
                    return list.items.into_iter().filter_map(plan_part).collect();
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {patience:?}"),
            };
            tracing::warn!(error, "cannot list the parts of large plans; trying again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Watches of every kind that matters.
    fn watch(&self) -> SelectAll<BoxStream<'static, Event>> {
        let client = &self.client;
        let config = watcher::Config::default;
        let mut all: SelectAll<BoxStream<'static, Event>> = SelectAll::new();
        all.push(changes(Api::all(client.clone()), config()).map(Event::Node).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Pod).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Gang).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Job).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Queue).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Topology).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Class).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Priority).boxed());
        all.push(changes(Api::all(client.clone()), config()).map(Event::Quota).boxed());
        all
    }
}

/// How many kinds are watched.
const KINDS: usize = 9;

/// Sleeps, or waits for ever.
async fn sleep(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
