//! Many simulated kubelets behind one pod watch, one timer queue and bounded writes.
//!
//! ```text
//! watch pods, nodes ─┐
//! timers ────────────┼──► Fleet (one task) ──► NodeMachine per node ──► queue ──► ≤ max_writes requests
//! FleetHandle ───────┘         ▲                                                        │
//!                              └──────────────── done, gone or failed ◄─────────────────┘
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admission::Refusal;
use super::handle::{Command, FleetError, FleetHandle, Order};
use super::node::{Job, NodeMachine, Power};
use super::pod::after;
use super::script::Script;
use super::spec::{NodeCondition, NodeReport, NodeSpec};
use super::view::PodView;
use super::writes::{self, Written};
use crate::clock::Clock;

/// Decides how a pod behaves; the pod's annotations are then not read.
pub type ScriptHook = Arc<dyn Fn(&PodView) -> Script + Send + Sync>;

/// How a fleet runs.
#[derive(Clone)]
pub struct FleetOptions {
    /// How often each node renews its Lease; `None` writes no Leases (benchmarks;
    /// a node lifecycle controller then takes the nodes for dead).
    pub lease_interval: Option<Duration>,
    /// How often each node's status is written without a change; `None` never.
    pub status_interval: Option<Duration>,
    /// Pod writes in flight at most.
    pub max_writes: usize,
    /// Replaces the `kubesim.dev/` annotations.
    pub script: Option<ScriptHook>,
}

impl Default for FleetOptions {
    /// A kubelet's own intervals: a Lease every 10 s, a status every 5 min.
    fn default() -> Self {
        Self {
            lease_interval: Some(Duration::from_secs(10)),
            status_interval: Some(Duration::from_secs(300)),
            max_writes: 64,
            script: None,
        }
    }
}

/// A failed pod write is made again after this.
const RETRY: Duration = Duration::from_secs(1);
/// How long a heartbeat may take: a kubelet's own interval.
const BEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pod addresses count up from here; 10.0.0.0/10 is left to Services.
const FIRST_POD_IP: u32 = u32::from_be_bytes([10, 64, 0, 1]);
/// Node addresses count up from here.
const FIRST_NODE_IP: u32 = u32::from_be_bytes([172, 16, 0, 1]);
/// Orders waiting for the loop.
const ORDERS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Advance(String),
    Lease(String),
    Status(String),
    Retry { node: String, uid: String },
}

enum Finished {
    Pod { node: String, uid: String, job: Job, written: Written },
    Heartbeat { node: String, beat: Beat },
}

/// What a node says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Beat {
    Lease,
    Status,
}

struct Slot {
    machine: NodeMachine,
    report: NodeReport,
    /// The entry in the timer queue.
    due: Option<Timestamp>,
    /// Heartbeats under way.
    beating: BTreeSet<Beat>,
}

/// Simulated kubelets; see [`Fleet::start`].
pub struct Fleet {
    client: Client,
    clock: Arc<dyn Clock>,
    options: FleetOptions,
    nodes: BTreeMap<String, Slot>,
    /// Node and uid by namespace and name.
    pods: BTreeMap<(String, String), (String, String)>,
    /// The pods of a list that is not complete yet.
    listing: Vec<Pod>,
    timers: BTreeSet<(Timestamp, Timer)>,
    queue: VecDeque<(String, String)>,
    /// Uids in `queue` or being written.
    busy: BTreeSet<String>,
    writing: usize,
    /// Heartbeats go out at most so many at a time: each that waits for a slow server holds a connection.
    turns: Arc<Semaphore>,
    tasks: JoinSet<Finished>,
    next_pod_ip: u32,
    next_node_ip: u32,
}

impl Fleet {
    /// Registers the nodes (existing ones are taken over) and runs their kubelets until
    /// [`FleetHandle::stop`]. `clock` must follow the same time as tokio's.
    pub async fn start(
        client: Client,
        clock: Arc<dyn Clock>,
        options: FleetOptions,
        specs: Vec<NodeSpec>,
    ) -> Result<FleetHandle, FleetError> {
        let turns = options.max_writes.max(1);
        let mut fleet = Self {
            client: client.clone(),
            clock,
            options,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            listing: Vec::new(),
            timers: BTreeSet::new(),
            queue: VecDeque::new(),
            busy: BTreeSet::new(),
            writing: 0,
            turns: Arc::new(Semaphore::new(turns)),
            tasks: JoinSet::new(),
            next_pod_ip: FIRST_POD_IP,
            next_node_ip: FIRST_NODE_IP,
        };
        let count = specs.len().max(1) as u32;
        let mut names = Vec::with_capacity(specs.len());
        for (index, spec) in specs.into_iter().enumerate() {
            names.push(spec.name.clone());
            fleet.add(spec, f64::from(index as u32) / f64::from(count))?;
        }
        fleet.register(names).await?;
        let (commands, orders) = mpsc::channel(ORDERS);
        let token = CancellationToken::new();
        tokio::spawn(fleet.run(orders, token.clone()));
        Ok(FleetHandle { client, commands, token })
    }

    /// Adds a node; its heartbeats are offset by `phase` (0 to 1) of their interval.
    fn add(&mut self, spec: NodeSpec, phase: f64) -> Result<(), FleetError> {
        let now = self.clock.now();
        let name = spec.name.clone();
        let ip = Ipv4Addr::from(self.next_node_ip).to_string();
        self.next_node_ip += 1;
        let machine = NodeMachine::new(spec.facts()?, ip.clone());
        let report = NodeReport::new(spec, ip, now);
        self.nodes.insert(name.clone(), Slot { machine, report, due: None, beating: BTreeSet::new() });
        let beats = [
            (self.options.lease_interval, Timer::Lease(name.clone())),
            (self.options.status_interval, Timer::Status(name)),
        ];
        for (interval, timer) in beats {
            if let Some(interval) = interval.filter(|interval| !interval.is_zero()) {
                self.timers.insert((after(now, interval.mul_f64(phase)), timer));
            }
        }
        Ok(())
    }

    async fn register(&self, names: Vec<String>) -> Result<(), FleetError> {
        let now = self.clock.now();
        let registrations = names.iter().filter_map(|name| self.nodes.get(name)).map(|slot| {
            let (client, report, leases) = (self.client.clone(), &slot.report, self.options.lease_interval);
            async move {
                let name = &report.spec.name;
                writes::register(&client, name, &report.object()).await?;
                writes::node_status(&client, name, &report.status(now)).await?;
                if leases.is_some() {
                    writes::renew_lease(&client, name, &report.lease(now)).await?;
                }
                Ok::<_, kube::Error>(())
            }
        });
        let most = self.options.max_writes.max(1);
        Ok(futures::stream::iter(registrations).buffer_unordered(most).try_collect().await?)
    }

    fn watch_pods(&self) -> BoxStream<'static, watcher::Result<Event<Pod>>> {
        watcher::watcher(Api::all(self.client.clone()), watcher::Config::default()).default_backoff().boxed()
    }

    async fn run(mut self, mut orders: mpsc::Receiver<Command>, token: CancellationToken) {
        let mut pods = self.watch_pods();
        let nodes = watcher::watcher(Api::<Node>::all(self.client.clone()), watcher::Config::default());
        let mut nodes: Pin<Box<_>> = Box::pin(nodes.default_backoff());
        loop {
            self.write();
            let wait = self.timers.first().map(|(due, _)| {
                Duration::try_from(due.duration_since(self.clock.now())).unwrap_or(Duration::ZERO)
            });
            tokio::select! {
                // In this order, so that a run in virtual time is the same every time.
                biased;
                () = token.cancelled() => return,
                Some(command) = orders.recv() => {
                    let added = matches!(command.order, Order::Add(_));
                    let answer = self.obey(command.order);
                    // The caller may have given up waiting.
                    drop(command.reply.send(answer));
                    if added {
                        // Pods may have been bound to the node before it was ours.
                        pods = self.watch_pods();
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or(Duration::ZERO)), if wait.is_some() => self.fire(),
                Some(event) = pods.next() => match event {
                    Ok(event) => self.pod_event(event),
                    Err(error) => tracing::warn!(%error, "the pod watch of the simulated kubelets broke; it is resumed"),
                },
                Some(event) = nodes.next() => match event {
                    Ok(Event::Apply(node) | Event::InitApply(node)) => self.node_event(node),
                    Ok(_) => {}
                    Err(error) => tracing::warn!(%error, "the node watch of the simulated kubelets broke; it is resumed"),
                },
                Some(finished) = self.tasks.join_next() => match finished {
                    Ok(finished) => self.finished(finished),
                    Err(error) => tracing::error!(%error, "a write of the simulated kubelets panicked"),
                },
            }
        }
    }

    fn pod_event(&mut self, event: Event<Pod>) {
        match event {
            Event::Apply(pod) => self.observe(pod),
            Event::Delete(pod) => {
                let namespace = pod.metadata.namespace.unwrap_or_default();
                self.forget(&(namespace, pod.metadata.name.unwrap_or_default()));
            }
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => self.listing.push(pod),
            Event::InitDone => self.listed(),
        }
    }

    /// A whole list has arrived: pods not in it are gone, and addresses in use are known.
    fn listed(&mut self) {
        let pods = std::mem::take(&mut self.listing);
        let live: BTreeSet<_> = pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        let gone: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, (_, uid))| !live.contains(uid.as_str()))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.forget(&name);
        }
        let addresses = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok());
        let last = addresses.map(|ip: Ipv4Addr| u32::from(ip)).filter(|ip| ip >> 24 == 10).max();
        self.next_pod_ip = self.next_pod_ip.max(last.map_or(0, |ip| ip + 1));
        for pod in pods {
            self.observe(pod);
        }
    }

    fn observe(&mut self, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let Some(node) = node.filter(|node| self.nodes.contains_key(node)) else { return };
        let view = match PodView::new(pod) {
            Ok(view) => view,
            Err(error) => {
                tracing::warn!(%error, "a pod was left alone: its resources cannot be read");
                return;
            }
        };
        let key = (view.namespace.clone(), view.name.clone());
        if self.pods.get(&key).is_some_and(|(_, uid)| *uid != view.uid) {
            self.forget(&key);
        }
        self.pods.insert(key, (node.clone(), view.uid.clone()));
        let (now, hook) = (self.clock.now(), self.options.script.clone());
        if let Some(slot) = self.nodes.get_mut(&node) {
            slot.machine.observe(view, |view| script(hook.as_ref(), view), now);
        }
        self.advance(&node);
    }

    fn forget(&mut self, key: &(String, String)) {
        if let Some((node, uid)) = self.pods.remove(key) {
            if let Some(slot) = self.nodes.get_mut(&node) {
                slot.machine.forget(&uid);
            }
            self.advance(&node);
        }
    }

    fn node_event(&mut self, node: Node) {
        let name = node.metadata.name.unwrap_or_default();
        if let Some(slot) = self.nodes.get_mut(&name) {
            let facts = slot.machine.facts_mut();
            facts.labels = node.metadata.labels.unwrap_or_default();
            facts.taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        }
    }

    /// Moves a node to the present, queues what it has to write and sets its timer.
    fn advance(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        for uid in slot.machine.advance(now) {
            if self.busy.insert(uid.clone()) {
                self.queue.push_back((node.to_owned(), uid));
            }
        }
        let due = slot.machine.next_due();
        if due != slot.due {
            if let Some(old) = slot.due {
                self.timers.remove(&(old, Timer::Advance(node.to_owned())));
            }
            if let Some(new) = due {
                self.timers.insert((new, Timer::Advance(node.to_owned())));
            }
            slot.due = due;
        }
    }

    fn fire(&mut self) {
        let now = self.clock.now();
        while self.timers.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, timer)) = self.timers.pop_first() else { return };
            match timer {
                Timer::Advance(node) => {
                    if let Some(slot) = self.nodes.get_mut(&node) {
                        slot.due = None;
                    }
                    self.advance(&node);
                }
                Timer::Lease(node) => self.beat_again(node, Beat::Lease, now),
                Timer::Status(node) => self.beat_again(node, Beat::Status, now),
                Timer::Retry { node, uid } => self.requeue(node, uid),
            }
        }
    }

    /// A heartbeat that is due, and the timer of the next.
    fn beat_again(&mut self, node: String, beat: Beat, now: Timestamp) {
        if !self.nodes.contains_key(&node) {
            return;
        }
        self.heartbeat(&node, beat, now);
        let (interval, timer) = match beat {
            Beat::Lease => (self.options.lease_interval, Timer::Lease(node)),
            Beat::Status => (self.options.status_interval, Timer::Status(node)),
        };
        if let Some(interval) = interval.filter(|interval| !interval.is_zero()) {
            self.timers.insert((after(now, interval), timer));
        }
    }

    /// Renews the Lease or writes the status, unless the last time is still under way: a kubelet, too, waits for its
    /// answer, and a slow server is not helped by more requests.
    fn heartbeat(&mut self, node: &str, beat: Beat, now: Timestamp) {
        let Some(slot) = self.nodes.get_mut(node) else { return };
        if slot.machine.power() != Power::Up || !slot.beating.insert(beat) {
            return;
        }
        let body = match beat {
            Beat::Lease => slot.report.lease(now),
            Beat::Status => slot.report.status(now),
        };
        let (client, name, turns) = (self.client.clone(), node.to_owned(), self.turns.clone());
        self.tasks.spawn(async move {
            let _turn = turns.acquire().await;
            let sent = async {
                match beat {
                    Beat::Lease => writes::renew_lease(&client, &name, &body).await,
                    Beat::Status => writes::node_status(&client, &name, &body).await,
                }
            };
            match tokio::time::timeout(BEAT_TIMEOUT, sent).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(node = name, %error, "a heartbeat failed; the next one is on time");
                }
                Err(_) => tracing::debug!(node = name, "a heartbeat was not answered in time"),
            }
            Finished::Heartbeat { node: name, beat }
        });
    }

    /// Starts queued writes while fewer than `max_writes` are in flight.
    fn write(&mut self) {
        while self.writing < self.options.max_writes.max(1) {
            let Some((node, uid)) = self.queue.pop_front() else { return };
            let next_ip = &mut self.next_pod_ip;
            let job = self.nodes.get_mut(&node).and_then(|slot| {
                let job = slot.machine.next_job(&uid, || {
                    *next_ip += 1;
                    Ipv4Addr::from(*next_ip - 1).to_string()
                })?;
                let (namespace, name) = slot.machine.name_of(&uid)?;
                Some((job, namespace, name))
            });
            let Some((job, namespace, name)) = job else {
                self.busy.remove(&uid);
                continue;
            };
            self.writing += 1;
            let client = self.client.clone();
            self.tasks.spawn(async move {
                let written = writes::pod(&client, &namespace, &name, &uid, &job).await;
                Finished::Pod { node, uid, job, written }
            });
        }
    }

    fn finished(&mut self, finished: Finished) {
        let (node, uid, job, written) = match finished {
            Finished::Pod { node, uid, job, written } => (node, uid, job, written),
            Finished::Heartbeat { node, beat } => {
                if let Some(slot) = self.nodes.get_mut(&node) {
                    slot.beating.remove(&beat);
                }
                return;
            }
        };
        self.writing -= 1;
        if written == Written::Failed {
            if let Some(slot) = self.nodes.get_mut(&node) {
                slot.machine.job_failed(&uid, &job);
            }
            // It stays busy until the retry, so that no event brings it forward.
            let due = after(self.clock.now(), RETRY);
            self.timers.insert((due, Timer::Retry { node, uid }));
        } else {
            self.requeue(node, uid);
        }
    }

    /// A pod's write is over: the next one, if it needs another.
    fn requeue(&mut self, node: String, uid: String) {
        self.queue.push_back((node, uid));
    }

    fn slot(&mut self, node: &str) -> Result<&mut Slot, FleetError> {
        self.nodes.get_mut(node).ok_or_else(|| FleetError::NoNode(node.to_owned()))
    }

    /// Does what a handle asks; answers with what the handle has to write.
    fn obey(&mut self, order: Order) -> Result<Option<Value>, FleetError> {
        let now = self.clock.now();
        match order {
            Order::Add(spec) => {
                let name = spec.name.clone();
                self.add(*spec, 0.0)?;
                let report = &self.slot(&name)?.report;
                return Ok(Some(json!({"node": report.object(), "status": report.status(now)})));
            }
            Order::Remove(node) => {
                self.slot(&node)?;
                self.nodes.remove(&node);
                self.pods.retain(|_, (on, _)| *on != node);
                self.timers.retain(|(_, timer)| timer.node() != node);
            }
            Order::Power(node, power) => {
                let slot = self.slot(&node)?;
                slot.machine.set_power(power, now);
                let status = (power == Power::Up).then(|| slot.report.status(now));
                self.advance(&node);
                if power == Power::Up && self.options.lease_interval.is_some() {
                    self.timers.retain(|(_, timer)| *timer != Timer::Lease(node.clone()));
                    self.beat_again(node, Beat::Lease, now);
                }
                return Ok(status);
            }
            Order::Intake(node, intake) => {
                self.slot(&node)?.machine.set_intake(intake);
                self.advance(&node);
            }
            Order::Condition { node, kind, status, reason, message } => {
                let slot = self.slot(&node)?;
                slot.report.set_condition(&kind, NodeCondition { status, reason, message, since: now });
                return Ok(slot.status_if_up(now));
            }
            Order::Allocatable { node, resource, quantity } => {
                let slot = self.slot(&node)?;
                let amount = super::quantity::parse(&resource, &quantity)?;
                slot.machine.facts_mut().allocatable.insert(resource.clone(), amount);
                slot.report.allocatable.insert(resource, quantity);
                return Ok(slot.status_if_up(now));
            }
            Order::Exit { namespace, name, code, for_good } => {
                let full = format!("{namespace}/{name}");
                let found = self.pods.get(&(namespace, name)).cloned();
                let (node, uid) = found.ok_or_else(|| FleetError::NoPod(full.clone()))?;
                if !self.slot(&node)?.machine.exit(&uid, code, for_good, now) {
                    return Err(FleetError::NoPod(full));
                }
                self.advance(&node);
            }
        }
        Ok(None)
    }
}

impl Slot {
    fn status_if_up(&self, now: Timestamp) -> Option<Value> {
        (self.machine.power() == Power::Up).then(|| self.report.status(now))
    }
}

impl Timer {
    fn node(&self) -> &str {
        match self {
            Self::Advance(node) | Self::Lease(node) | Self::Status(node) | Self::Retry { node, .. } => node,
        }
    }
}

/// The hook's script, or the annotations'; what cannot be read refuses the pod.
fn script(hook: Option<&ScriptHook>, view: &PodView) -> Result<Script, Refusal> {
    match hook {
        Some(hook) => Ok(hook(view)),
        None => Script::from_annotations(&view.annotations)
            .map_err(|error| Refusal { reason: "InvalidScript".to_owned(), message: error.to_string() }),
    }
}
