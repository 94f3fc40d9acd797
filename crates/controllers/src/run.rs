//! The operator's life: stand for leadership, prove the fence, lead until leadership is lost, stand again.
//!
//! ```text
//!   Elector ──term──▶ lead: watches ─▶ Core ─▶ Writer ─▶ API server
//!                          one future: dropping it stops everything at an await point (the renewal too)
//! ```

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt, TryStreamExt};
use kube::{Api, Client, Resource};
use muster_api::labels;
use muster_core::want::Outcome;
use muster_core::{Change, Config, Core, Counters, Event, Ticket};
use muster_model::Millis;
use serde::de::DeserializeOwned;
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::leader::{Elector, Term};
use crate::lease::{LeaderError, LeaseConfig};
use crate::pulse::Pulse;
use crate::watch::{Rewound, Select, changes};
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
    /// Of how many groups of nodes none counts as lost for its silence now.
    pub brakes: usize,
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
    pulse: Pulse,
}

/// How many inputs are taken in before the core advances.
const BATCH: usize = 2_000;
/// How often the snapshot is renewed.
const SHOW_EVERY: Millis = 1_000;
/// Longest time between two turns of the loop.
const TURN: Millis = 10_000;

impl Operator {
    /// An operator. `client` must not retry by itself (`Config::default_retry = false`): the core decides what is
    /// tried again.
    pub fn new(client: Client, options: Options, clock: Arc<dyn Clock>) -> Self {
        let shown = watch::Sender::new(Snapshot::default());
        Self { client, options, clock, shown, pulse: Pulse::default() }
    }

    /// Follows what the operator shows of itself.
    pub fn snapshots(&self) -> watch::Receiver<Snapshot> {
        self.shown.subscribe()
    }

    /// Signs of life of this process.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
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
            self.pulse.begin();
            let ended = self.serve(&elector, &term, &stop).await;
            let pause = match ended {
                End::Stopped => {
                    elector.release(&term).await;
                    tracing::info!("gave the Lease back");
                    return;
                }
                End::Over(why) => {
                    tracing::warn!("{why}; standing again");
                    self.pulse.end(None);
                    self.options.lease.retry
                }
                End::Unwell(why) => {
                    if !term.given_up() {
                        elector.release(&term).await;
                    }
                    tracing::error!("stepped down: {why}");
                    self.pulse.end(Some(why));
                    // Another process gets the Lease, if there is one.
                    self.options.lease.duration
                }
            };
            self.shown.send_replace(Snapshot::default());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Serves one term, the Lease being renewed beside it.
    async fn serve(&self, elector: &Arc<Elector>, term: &Term, stop: &CancellationToken) -> End {
        // A task of its own: however busy the core is, the Lease is renewed in time. It ends with this future.
        let mut keeping = JoinSet::new();
        let (keeper, kept, pulse) = (elector.clone(), term.clone(), self.pulse.clone());
        keeping.spawn(async move { keeper.keep(&kept, || pulse.alive()).await });
        let kept = |ended| match ended {
            Some(Ok(LeaderError::NotAlive(why))) => End::Unwell(why),
            Some(Ok(error)) => End::Over(format!("leadership lost: {error}")),
            Some(Err(error)) => End::Over(format!("the renewal of the Lease ended: {error}")),
            None => End::Over("the renewal of the Lease ended".into()),
        };
        // What a panic leaves behind ends with the term: the next one begins by looking at everything.
        let leading = AssertUnwindSafe(self.lead(elector, term)).catch_unwind();
        let over = tokio::select! {
            biased;
            () = stop.cancelled() => return End::Stopped,
            ended = keeping.join_next() => return kept(ended),
            led = leading => match led {
                Ok(why) => End::Over(why),
                Err(panic) => return End::Unwell(format!("the core panicked: {}", words(panic.as_ref()))),
            },
        };
        // Its writes may have been refused because the Lease is just being given back.
        if term.given_up() { kept(keeping.join_next().await) } else { over }
    }

    /// Leads for one term. Returns when the term is over: why.
    async fn lead(&self, elector: &Elector, term: &Term) -> String {
        while let Err(error) = elector.prove_fence(term).await {
            // Nobody else could do better: the Lease is kept, and it is said what is missing.
            self.pulse.turn();
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
        core.set_wall_offset(self.wall_offset());
        self.pulse.turn();
        let mut events = self.watch();
        let writer = Writer::new(
            self.client.clone(),
            term.clone(),
            self.options.lease.write_timeout(),
            self.clock.clone(),
            &self.options.lease.identity,
        );
        if let Err(why) = self.read_all(&mut core, &mut events).await {
            return why;
        }
        core.start();
        self.pulse.leads();
        self.shown.send_modify(|shown| shown.synced = true);
        // Tasks of their own, so that they go on while the core thinks; they end with this future.
        let mut flying = Flying::new();
        let mut shown_at = 0;
        loop {
            self.pulse.turn();
            let now = self.clock.monotonic();
            core.set_wall_offset(self.wall_offset());
            core.advance(now);
            for ticket in core.take(now) {
                let writer = writer.clone();
                flying.spawn(async move {
                    let outcome = writer.perform(&ticket.want).await;
                    (ticket, outcome)
                });
            }
            if now >= shown_at + SHOW_EVERY {
                shown_at = now;
                self.shown.send_modify(|shown| {
                    shown.counters = core.counters().clone();
                    shown.phases = core.phases();
                    shown.brakes = core.brakes();
                });
            }
            // Between two looks at least a moment: what arrives together is judged together. And not too long: each turn
            // is a sign of life.
            let due = core.next_wake().map_or(TURN, |at| (at - now).clamp(1, TURN));
            let pause = Duration::from_millis(due as u64);
            tokio::select! {
                biased;
                Some(landed) = flying.join_next() => {
                    if let Err(why) = self.land(&mut core, landed) {
                        return why;
                    }
                }
                next = events.next() => match heard(next) {
                    Ok(event) => core.apply(event, self.clock.monotonic()),
                    Err(why) => return why,
                },
                () = tokio::time::sleep(pause) => {}
            }
            if let Err(why) = self.take_in(&mut core, &mut events, &mut flying) {
                return why;
            }
        }
    }

    /// Nothing is decided before everything that exists is known. An error says why the term is over.
    async fn read_all(&self, core: &mut Core, events: &mut Events) -> Result<(), String> {
        let mut unsynced = KINDS;
        while unsynced > 0 {
            let event = heard(events.next().await)?;
            self.pulse.turn();
            unsynced -= usize::from(event.synced());
            core.apply(event, self.clock.monotonic());
        }
        Ok(())
    }

    /// Takes in what is there already. An error says why the term is over.
    fn take_in(&self, core: &mut Core, events: &mut Events, flying: &mut Flying) -> Result<(), String> {
        for _ in 0..BATCH {
            let now = self.clock.monotonic();
            if let Some(landed) = flying.try_join_next() {
                self.land(core, landed)?;
            } else if let Some(next) = events.next().now_or_never() {
                core.apply(heard(next)?, now);
            } else {
                break;
            }
        }
        Ok(())
    }

    /// The time of day less the monotonic time: it changes when the clock is set.
    fn wall_offset(&self) -> Millis {
        self.clock.millis() - self.clock.monotonic()
    }

    /// Tells the core what came of an effect. An error says why the term is over.
    fn land(&self, core: &mut Core, landed: Result<(Ticket, Outcome), JoinError>) -> Result<(), String> {
        // What a write was about is not known any more: a new term begins by looking at everything.
        let (ticket, outcome) =
            landed.map_err(|error| format!("a write ended without an outcome: {error}"))?;
        if core.done(&ticket, outcome, self.clock.monotonic()) {
            Ok(())
        } else {
            Err("another leader is at work".into())
        }
    }

    /// Watches of every kind that matters.
    fn watch(&self) -> Events {
        let mut all = Events::new();
        let whole = Select::default();
        self.follow(&mut all, whole, Event::Node);
        self.follow(&mut all, whole, Event::Pod);
        self.follow(&mut all, whole, Event::Gang);
        self.follow(&mut all, whole, Event::Job);
        self.follow(&mut all, whole, Event::Queue);
        self.follow(&mut all, whole, Event::Topology);
        self.follow(&mut all, whole, Event::Class);
        self.follow(&mut all, whole, Event::Priority);
        self.follow(&mut all, whole, Event::Quota);
        self.follow(&mut all, whole, Event::Part);
        let meta = Select { metadata: true, ..whole };
        self.follow(&mut all, meta, Event::Limits);
        self.follow(&mut all, meta, Event::Runtime);
        let ours = Select { labels: Some(labels::GANG_UID), ..meta };
        self.follow(&mut all, ours, Event::Service);
        self.follow(&mut all, ours, Event::ConfigMap);
        all
    }

    fn follow<K>(&self, all: &mut Events, select: Select, event: fn(Change<K>) -> Event)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    {
        let vital = self.pulse.watch(&K::plural(&()));
        all.push(changes(Api::<K>::all(self.client.clone()), select, vital).map_ok(event).boxed());
    }
}

/// Writes under way.
type Flying = JoinSet<(Ticket, Outcome)>;
/// What the watches report.
type Events = SelectAll<BoxStream<'static, Result<Event, Rewound>>>;

/// How many kinds are watched.
const KINDS: usize = 14;

/// How a term ended.
enum End {
    /// The process is to stop.
    Stopped,
    /// It is over; we may stand again at once.
    Over(String),
    /// This process was not alive or not well: another should lead.
    Unwell(String),
}

/// What the watches say, or why the term is over.
fn heard(next: Option<Result<Event, Rewound>>) -> Result<Event, String> {
    match next {
        Some(heard) => heard.map_err(|rewound| rewound.to_string()),
        None => Err("the watches ended".into()),
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it left no message")
}
