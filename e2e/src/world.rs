//! A cluster for one scenario: an API server, simulated nodes, a namespace, and operators to start and stop.

use anyhow::{Context, Result, bail};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolume, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use kubesim::api::ApiServer;
use kubesim::clock::{Clock as SimClock, SystemClock, TokioClock};
use kubesim::kubelet::{Fleet, FleetHandle, FleetOptions, NodeSpec};
use kubesim::node_controllers::{EndpointSlices, NodeLifecycle, PodGc, Scheduler};
use muster_api::{Gang, TrainingJob};
use muster_controllers::{Clock, LeaseConfig, Operator, Options, Pulse, Snapshot};
use muster_core::Config;
use muster_model::Millis;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::hook::{Hook, hooked, speaking_for};
use crate::jobs::Job;
use crate::process::Process;
use crate::rights;

/// The account of the operator, as the chart installs it.
pub const OPERATOR_USER: &str = "system:serviceaccount:muster-system:muster";
/// Namespace of the operator.
pub const SYSTEM: &str = "muster-system";
/// Environment variable: kubeconfig of an administrator of the cluster under test.
pub const ADMIN_ENV: &str = "MUSTER_TEST_KUBECONFIG";
/// Environment variable: kubeconfig of the operator's account there.
pub const OPERATOR_ENV: &str = "MUSTER_TEST_OPERATOR_KUBECONFIG";

/// Which API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In memory, virtual time.
    Memory,
    /// A real control plane.
    Cluster,
}

/// A cluster for one scenario.
pub struct World {
    /// Which backend.
    pub backend: Backend,
    /// A client that may do everything.
    pub admin: Client,
    /// The simulated nodes.
    pub fleet: FleetHandle,
    /// The scenario's namespace.
    pub namespace: String,
    /// Time of day.
    pub clock: Arc<dyn SimClock>,
    /// By how many milliseconds the operators' time of day is ahead of the server's.
    pub ahead: Arc<AtomicI64>,
    /// The in-memory server, for its counters and faults.
    pub server: Option<ApiServer>,
    /// A client of the operator's account.
    pub operator: Client,
    stop: CancellationToken,
}

/// A running operator.
pub struct Running {
    task: JoinHandle<()>,
    stop: CancellationToken,
    /// What it shows of itself.
    pub shown: watch::Receiver<Snapshot>,
    /// Its signs of life.
    pub pulse: Pulse,
}

impl Running {
    /// Drops it at the await point where it is: nothing more of it happens.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// Stops it in order; it gives the Lease back.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }

    /// Waits until it leads and knows the cluster.
    pub async fn leading(&mut self) -> Result<i64> {
        let shown = tokio::time::timeout(
            Duration::from_secs(120),
            self.shown.wait_for(|shown| shown.epoch.is_some() && shown.synced),
        );
        let shown = shown.await.context("the operator did not lead in time")??;
        Ok(shown.epoch.unwrap_or_default())
    }
}

/// The clock of an operator: its time of day may be wrong.
pub struct OperatorClock {
    wall: Arc<dyn SimClock>,
    ahead: Arc<AtomicI64>,
    start: Instant,
}

impl OperatorClock {
    /// A clock that begins now; its time of day is `wall` and so many milliseconds.
    pub fn new(wall: Arc<dyn SimClock>, ahead: Arc<AtomicI64>) -> Self {
        Self { wall, ahead, start: Instant::now() }
    }
}

impl Clock for OperatorClock {
    fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::SeqCst));
        self.wall.now().saturating_add(ahead).unwrap_or(Timestamp::MAX)
    }

    fn monotonic(&self) -> Millis {
        self.start.elapsed().as_millis() as Millis
    }
}

/// An operator that will be killed.
pub enum Victim {
    /// A task of this process.
    Task(Running),
    /// A process of its own.
    Process(Process),
}

impl Victim {
    /// Kills it: nothing more of it happens.
    pub async fn kill(self) -> Result<()> {
        match self {
            Self::Task(task) => task.kill().await,
            Self::Process(process) => process.kill().await?,
        }
        Ok(())
    }
}

/// Runs a future, unless it is frozen: then it is not polled, as a stopped process would not run.
pub(crate) struct Freezable {
    inner: BoxFuture<'static, ()>,
    frozen: watch::Receiver<bool>,
}

impl Freezable {
    /// Frozen while `frozen` is true.
    pub(crate) fn new(inner: BoxFuture<'static, ()>, frozen: watch::Receiver<bool>) -> Self {
        Self { inner, frozen }
    }

    /// Runs it to its end.
    pub(crate) async fn run(mut self) {
        loop {
            let frozen = *self.frozen.borrow();
            if frozen {
                if self.frozen.wait_for(|frozen| !frozen).await.is_err() {
                    return;
                }
                continue;
            }
            let freezes = async {
                if self.frozen.wait_for(|frozen| *frozen).await.is_err() {
                    // Nobody can freeze it any more.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = freezes => {}
                () = &mut self.inner => return,
            }
        }
    }
}

impl World {
    /// An in-memory cluster with these nodes. The runtime's time must be paused.
    pub async fn memory(nodes: Vec<NodeSpec>) -> Result<Self> {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse()?;
        let clock: Arc<dyn SimClock> = Arc::new(TokioClock::new(base));
        let server = ApiServer::new(clock.clone());
        let admin = server.client("admin");
        install(&admin).await?;
        let stop = CancellationToken::new();
        let manager = server.client("system:kube-controller-manager");
        NodeLifecycle::default().start(manager.clone(), clock.clone(), stop.clone());
        PodGc::default().start(manager.clone(), clock.clone(), stop.clone());
        EndpointSlices::default().start(manager, stop.clone());
        Scheduler::default().start(server.client("system:kube-scheduler"), clock.clone(), stop.clone());
        let operator = server.client(OPERATOR_USER);
        Self::build(Backend::Memory, admin, operator, clock, Some(server), nodes, stop).await
    }

    /// A real cluster, given by environment variables; `None` (said loudly) where there is none.
    pub async fn cluster(nodes: Vec<NodeSpec>) -> Result<Option<Self>> {
        let (Some(admin), Some(operator)) = (std::env::var_os(ADMIN_ENV), std::env::var_os(OPERATOR_ENV))
        else {
            eprintln!("SKIPPED: no cluster; set {ADMIN_ENV} and {OPERATOR_ENV}, or run `make test`");
            return Ok(None);
        };
        let admin = client(admin.as_ref()).await?;
        let operator = client(operator.as_ref()).await?;
        let clock: Arc<dyn SimClock> = Arc::new(SystemClock);
        clean(&admin).await?;
        let stop = CancellationToken::new();
        Self::build(Backend::Cluster, admin, operator, clock, None, nodes, stop).await.map(Some)
    }

    async fn build(
        backend: Backend,
        admin: Client,
        operator: Client,
        clock: Arc<dyn SimClock>,
        server: Option<ApiServer>,
        nodes: Vec<NodeSpec>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let fleet = Fleet::start(admin.clone(), clock.clone(), heartbeats(nodes.len()), nodes).await?;
        let namespaces: Api<Namespace> = Api::all(admin.clone());
        let namespace: Namespace =
            serde_json::from_value(serde_json::json!({ "metadata": { "generateName": "scenario-" } }))?;
        let namespace = namespaces.create(&PostParams::default(), &namespace).await?.name_any();
        let ahead = Arc::default();
        Ok(Self { backend, admin, fleet, namespace, clock, ahead, server, operator, stop })
    }

    /// How the operator of a scenario runs: with shorter terms on a real cluster, where time is real.
    pub fn options(&self, identity: &str) -> Options {
        let mut lease = LeaseConfig::new(SYSTEM, identity);
        let mut config = Config::default();
        if self.backend == Backend::Cluster {
            lease.duration = Duration::from_secs(10);
            lease.renew_deadline = Duration::from_secs(6);
            lease.retry = Duration::from_millis(500);
            config.nodes.silent = 1_000;
            config.drain = 2_000;
        }
        Options { lease, config }
    }

    /// Starts an operator.
    pub fn start(&self, identity: &str) -> Running {
        self.start_tuned(identity, |_| {})
    }

    /// Starts an operator whose patience differs.
    pub fn start_tuned(&self, identity: &str, tune: impl FnOnce(&mut Config)) -> Running {
        let mut options = self.options(identity);
        tune(&mut options.config);
        self.start_freezable(options, self.operator.clone()).0
    }

    /// Starts an operator that uses this client.
    pub fn start_with(&self, identity: &str, client: Client) -> Running {
        self.start_freezable(self.options(identity), client).0
    }

    /// Starts an operator whose requests pass a hook, and that can be killed: in memory it is dropped where it awaits;
    /// on a real cluster it is the binary `muster`, a process that gets SIGKILL.
    pub async fn start_victim(&self, identity: &str, hook: Hook) -> Result<Victim> {
        let client = hooked(self.operator.clone(), hook);
        match self.backend {
            Backend::Memory => Ok(Victim::Task(self.start_freezable(self.options(identity), client).0)),
            Backend::Cluster => Ok(Victim::Process(Process::start(identity, client).await?)),
        }
    }

    /// Starts an operator whose requests pass a hook and that can be frozen as a whole.
    pub fn start_frozen_later(&self, identity: &str, hook: Hook) -> (Running, watch::Sender<bool>) {
        self.start_freezable(self.options(identity), hooked(self.operator.clone(), hook))
    }

    /// A client of the operator's account with the token of a pod.
    pub fn pod_client(&self, pod: &str) -> Client {
        speaking_for(self.admin.clone(), OPERATOR_USER, Some(pod))
    }

    /// A client of the operator's account outside a pod, for what a scenario tries and the operator would not: an audit
    /// log tells the two apart.
    pub fn account_client(&self) -> Client {
        speaking_for(self.admin.clone(), OPERATOR_USER, None)
    }

    /// Starts an operator in a pod of this name, that can be frozen as a whole.
    pub fn start_in_pod(&self, pod: &str) -> (Running, watch::Sender<bool>) {
        self.start_freezable(self.options(pod), self.pod_client(pod))
    }

    /// Starts an operator with these options and this client, that can be frozen as a whole.
    pub fn start_freezable(&self, options: Options, client: Client) -> (Running, watch::Sender<bool>) {
        let (wall, ahead) = (self.clock.clone(), self.ahead.clone());
        let clock: Arc<dyn Clock> = Arc::new(OperatorClock::new(wall, ahead));
        let operator = Arc::new(Operator::new(client, options, clock));
        let (shown, pulse) = (operator.snapshots(), operator.pulse());
        let stop = CancellationToken::new();
        let token = stop.clone();
        let (freeze, frozen) = watch::channel(false);
        let inner = Box::pin(async move { operator.run(token).await });
        let task = tokio::spawn(Freezable::new(inner, frozen).run());
        (Running { task, stop, shown, pulse }, freeze)
    }

    /// Objects of a kind in the scenario's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Creates a job.
    pub async fn submit(&self, job: &Job) -> Result<TrainingJob> {
        let object: TrainingJob = serde_json::from_value(job.0.clone()).context("the scenario's job")?;
        Ok(self.api().create(&PostParams::default(), &object).await?)
    }

    /// Changes a job by merge patch.
    pub async fn patch_job(&self, name: &str, patch: &Value) -> Result<TrainingJob> {
        Ok(self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// A volume for a claim of the scenario's namespace, usable on some nodes only.
    pub async fn volume(&self, name: &str, claim: &str, nodes: &[String]) -> Result<()> {
        let volume: PersistentVolume = serde_json::from_value(serde_json::json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": { "storage": "1Gi" },
                "persistentVolumeReclaimPolicy": "Delete",
                "hostPath": { "path": "/simulated" },
                "claimRef": { "namespace": self.namespace, "name": claim },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "kubernetes.io/hostname", "operator": "In", "values": nodes },
                ] }] } },
            },
        }))?;
        Api::<PersistentVolume>::all(self.admin.clone()).create(&PostParams::default(), &volume).await?;
        Ok(())
    }

    /// Creates any object from JSON.
    pub async fn create<K>(&self, object: Value) -> Result<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + DeserializeOwned
            + serde::Serialize
            + Clone
            + Debug,
    {
        let object: K = serde_json::from_value(object)?;
        Ok(self.api().create(&PostParams::default(), &object).await?)
    }

    /// A job.
    pub async fn job(&self, name: &str) -> Result<TrainingJob> {
        Ok(self.api().get(name).await?)
    }

    /// A gang.
    pub async fn gang(&self, name: &str) -> Result<Gang> {
        Ok(self.api().get(name).await?)
    }

    /// All pods of the namespace.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self.api::<Pod>().list(&ListParams::default()).await?.items)
    }

    /// Reasons and messages of the events about an object, for messages of failures.
    pub async fn events(&self, about: &str) -> Result<Vec<(String, String)>> {
        let events = self.api::<Event>().list(&ListParams::default()).await?.items;
        Ok(events
            .into_iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(about))
            .map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default()))
            .collect())
    }

    /// Waits until `look` finds something. `patience` is virtual or real, as the backend's time.
    ///
    /// # Errors
    /// What was seen last, when patience ends.
    pub async fn eventually<T, F, Fut>(&self, what: &str, patience: Duration, mut look: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<Result<T, String>>>,
    {
        let until = Instant::now() + patience;
        loop {
            let seen = match look().await? {
                Ok(found) => return Ok(found),
                Err(seen) => seen,
            };
            if Instant::now() >= until {
                bail!("{what}: not within {patience:?}; last seen: {seen}");
            }
            // Virtual time passes at once; looking more often would only cost more.
            let pause = if self.backend == Backend::Memory { 1_000 } else { 200 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Waits until a job is in a phase, and fails at once when it has ended in another.
    pub async fn phase(
        &self,
        name: &str,
        phase: muster_api::JobPhase,
        patience: Duration,
    ) -> Result<TrainingJob> {
        let api = self.api::<TrainingJob>();
        let what = format!("job {name} {phase:?}");
        self.eventually(&what, patience, || async {
            let job = api.get(name).await?;
            let status = job.status.clone().unwrap_or_default();
            let now = status.phase.unwrap_or_default();
            if now == phase {
                return Ok(Ok(job));
            }
            if now.is_final() {
                bail!("job {name} is {now:?}: {:?}", status.message);
            }
            Ok(Err(format!("{now:?} {:?} {:?}", status.reason, status.message)))
        })
        .await
    }

    /// Ends the scenario: on a real cluster, what it made is removed.
    pub async fn end(&self) -> Result<()> {
        self.fleet.stop();
        self.stop.cancel();
        if let Some(server) = &self.server {
            rights::check(&rights::used_in(&server.stats()))?;
        }
        if self.backend == Backend::Cluster {
            clean(&self.admin).await?;
        }
        Ok(())
    }
}

/// How often nodes report: a few often, so that a dead one is noticed soon; hundreds more seldom, since they share
/// the machine with the server.
fn heartbeats(nodes: usize) -> FleetOptions {
    let few = nodes <= 64;
    FleetOptions {
        lease_interval: Some(Duration::from_secs(if few { 2 } else { 6 })),
        // kube-controller-manager looks at a node's taints when its object changes, and does not try again when the
        // write fails: a node whose status never changes would keep its not-ready taint for five minutes.
        status_interval: Some(Duration::from_secs(if few { 10 } else { 60 })),
        ..FleetOptions::default()
    }
}

/// A client that does not retry by itself, as the operator's own.
///
/// # Errors
/// When the kubeconfig cannot be read or makes no client.
pub async fn client(kubeconfig: &std::path::Path) -> Result<Client> {
    let file = kube::config::Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// How many objects there are, by the server's own count: whole lists of thousands, again and again, would be most of its
/// work.
///
/// # Errors
/// When the server does not answer.
pub async fn count<K>(api: &Api<K>) -> Result<usize>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let page = api.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(page.items.len() + page.metadata.remaining_item_count.unwrap_or(0) as usize)
}

/// Installs what the chart installs, without the Deployment.
async fn install(admin: &Client) -> Result<()> {
    muster_playground::install::install(admin).await.map_err(Into::into)
}

/// Removes jobs, gangs, pods and nodes that an earlier scenario left, whatever holds them, and waits until pods and
/// nodes are gone: what is left of one scenario would take the room of the next.
async fn clean(admin: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let nodes: Api<Node> = Api::all(admin.clone());
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let ours = namespaces.list(&ListParams::default()).await?;
        let mut left = 0;
        for namespace in ours.items.iter().filter(|n| n.name_any().starts_with("scenario-")) {
            let name = namespace.name_any();
            left += clear(admin, &name).await?;
            if namespace.metadata.deletion_timestamp.is_none() {
                namespaces.delete(&name, &DeleteParams::default()).await?;
            }
        }
        nodes.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        left += nodes.list_metadata(&ListParams::default()).await?.items.len();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            bail!("{left} pods and nodes of an earlier scenario do not go");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Deletes the jobs, gangs and pods of a namespace; returns how many pods are still there.
async fn clear(admin: &Client, namespace: &str) -> Result<usize> {
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let all = ListParams::default();
    Api::<TrainingJob>::namespaced(admin.clone(), namespace).delete_collection(&now, &all).await?;
    let gangs: Api<Gang> = Api::namespaced(admin.clone(), namespace);
    gangs.delete_collection(&now, &all).await?;
    let_go(&gangs).await?;
    let pods: Api<Pod> = Api::namespaced(admin.clone(), namespace);
    pods.delete_collection(&now, &all).await?;
    let_go(&pods).await
}

/// Takes the finalizers of all objects away; returns how many objects there are.
async fn let_go<K>(api: &Api<K>) -> Result<usize>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
{
    let patch = Patch::Merge(serde_json::json!({ "metadata": { "finalizers": null } }));
    let objects = api.list_metadata(&ListParams::default()).await?.items;
    for object in objects.iter().filter(|object| !object.finalizers().is_empty()) {
        match api.patch_metadata(&object.name_any(), &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    Ok(objects.len())
}
