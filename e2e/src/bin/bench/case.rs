//! One case: so many gangs of so many pods, from apply to the last pod, and to nothing again.

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use muster_api::labels;
use muster_playground::session;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

use crate::Bench;
use crate::audit::{self, Request};
use crate::calibrate::Calibration;
use crate::cpu::{Machine, Used};
use crate::operator::Operator;

/// Where everything is created.
pub const NAMESPACE: &str = "default";
/// The accelerator class of the nodes.
pub const CLASS: &str = "h100";
/// How long one case may take in each direction.
const PATIENCE: Duration = Duration::from_secs(300);

/// What is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gang objects: what the placement reads.
    Gang,
    /// TrainingJobs, from which the operator makes the gangs.
    Job,
}

/// So many gangs of so many pods.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is applied.
    pub kind: Kind,
    /// How many.
    pub gangs: u32,
    /// Pods of each.
    pub pods: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.kind == Kind::Gang { "gang" } else { "job" };
        write!(f, "{kind}:{}x{}", self.gangs, self.pods)
    }
}

impl Case {
    /// Cases from arguments; all of gang10k's when there are none.
    pub fn parse_all(arguments: impl Iterator<Item = String>) -> Result<Vec<Self>> {
        let given = arguments.map(|text| Self::parse(&text)).collect::<Result<Vec<_>>>()?;
        if !given.is_empty() {
            return Ok(given);
        }
        let sizes = [(20, 500), (500, 20), (1, 10_000)];
        let of = |kind| sizes.map(|(gangs, pods)| Self { kind, gangs, pods });
        Ok([of(Kind::Gang), of(Kind::Job)].concat())
    }

    fn parse(text: &str) -> Result<Self> {
        let problem = || format!("case {text:?}: write gang:20x500 or job:20x500 (20 gangs of 500 pods)");
        let (kind, size) = text.split_once(':').with_context(problem)?;
        let (gangs, pods) = size.split_once('x').with_context(problem)?;
        let kind = match kind {
            "gang" => Kind::Gang,
            "job" => Kind::Job,
            _ => bail!(problem()),
        };
        let case = Self {
            kind,
            gangs: gangs.parse().with_context(problem)?,
            pods: pods.parse().with_context(problem)?,
        };
        let room = crate::NODES * crate::GPUS as usize;
        ensure!((1..=room).contains(&case.total()), "case {text:?}: 1 to {room} pods fit the cluster");
        Ok(case)
    }

    /// Pods of all gangs.
    pub fn total(&self) -> usize {
        self.gangs as usize * self.pods as usize
    }

    fn resource(&self) -> ApiResource {
        let kind = if self.kind == Kind::Gang { "Gang" } else { "TrainingJob" };
        ApiResource::from_gvk(&GroupVersionKind::gvk("muster.dev", "v1alpha1", kind))
    }

    fn object(&self, index: u32) -> Result<DynamicObject> {
        let name = format!("bench-{index:03}");
        let object = match self.kind {
            Kind::Gang => gang(&name, self.pods),
            Kind::Job => job(&name, self.pods),
        };
        Ok(serde_json::from_value(object)?)
    }
}

/// The pods: one GPU each. A grace period of 0, because there are no kubelets to confirm that a pod has ended.
pub fn template() -> Value {
    json!({ "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "trainer",
            "image": "example/trainer",
            "resources": { "requests": { "cpu": "4", "memory": "16Gi" } },
        }],
    }})
}

/// A gang of `pods` units of one pod.
pub fn gang(name: &str, pods: u32) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Gang",
        "metadata": { "name": name, "namespace": NAMESPACE, "finalizers": [labels::PODS_FINALIZER] },
        "spec": {
            "classes": [CLASS],
            "roles": [{
                "name": "worker",
                "template": template(),
                "devices": 1,
                "podsPerUnit": 1,
                "units": { "min": pods, "max": pods },
            }],
            // Pods that need not find each other, as those of the rivals: no Service. The jobs below have one.
            "launch": { "framework": "Plain", "parallelism": { "data": pods } },
        },
    })
}

fn job(name: &str, pods: u32) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "framework": "Torchrun",
            "accelerator": { "classes": [CLASS], "perPod": 1 },
            "parallelism": { "data": pods },
            "template": template(),
        },
    })
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which.
    pub case: Case,
    /// The loop just before.
    pub c: Calibration,
    /// First object applied → last pod created, by the API server's clock.
    pub time: f64,
    /// Until the first plan was committed.
    pub first_plan: f64,
    /// Until the last one was.
    pub last_plan: f64,
    /// Until the first pod was created.
    pub first_pod: f64,
    /// Writes of the operator's account in that time, Leases left out.
    pub writes: BTreeMap<String, usize>,
    /// How long their answers took: median and 99th percentile, in milliseconds.
    pub latencies: BTreeMap<String, (f64, f64)>,
    /// The same writes until everything was gone.
    pub life: BTreeMap<String, usize>,
    /// Its writes to its Lease, whole life.
    pub leases: usize,
    /// CPU seconds of the operator until the last pod.
    pub operator: f64,
    /// CPU seconds of the control plane's parts until the last pod.
    pub parts: Used,
    /// CPU seconds of the whole machine in that time, whoever used them.
    pub machine: f64,
    /// First object deleted → last pod gone.
    pub deletion: f64,
}

/// Runs one case on an empty cluster.
pub async fn run(bench: &Bench, case: &Case, c: Calibration) -> Result<Row> {
    let operator = Operator::start(&bench.session.operator).await?;
    bench.quiet().await;
    let api: Api<DynamicObject> = Api::namespaced_with(bench.admin(), NAMESPACE, &case.resource());
    let objects = (0..case.gangs).map(|index| case.object(index)).collect::<Result<Vec<_>>>()?;
    let from = audit::length(&bench.audit)?;
    let mut pids = bench.parts().to_vec();
    pids.push(("muster", operator.pid));
    let profile = bench.profile(&format!("{case}.case"));
    let (before, machine) = (Used::now(&pids), Machine::now());
    futures::stream::iter(&objects)
        .map(|object| {
            let api = api.clone();
            async move { api.create(&PostParams::default(), object).await.map(|_| ()) }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await
        .context("applying")?;
    let pods: Api<Pod> = Api::namespaced(bench.admin(), NAMESPACE);
    until(&pods, case.total()).await?;
    let (used, machine) = (Used::now(&pids).since(&before), Machine::now().since(machine));
    if let Some(profile) = profile {
        profile.await??;
    }
    bench.quiet().await;
    fits(&pods).await?;

    for object in &objects {
        api.delete(object.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await?;
    }
    until(&pods, 0).await?;
    let gangs: Api<muster_api::Gang> = Api::namespaced(bench.admin(), NAMESPACE);
    until(&gangs, 0).await?;
    bench.quiet().await;
    operator.stop().await?;
    let requests = audit::read(&bench.audit, from)?;
    account(*case, c, &requests, &used, machine)
}

/// Fails when a node got more pods than it has accelerators: what is fast and wrong has no figure.
async fn fits(pods: &Api<Pod>) -> Result<()> {
    let mut on: BTreeMap<String, u32> = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await?.items {
        let node = pod.spec.and_then(|spec| spec.node_name).context("a pod without a node")?;
        *on.entry(node).or_default() += 1;
    }
    match on.iter().find(|(_, count)| **count > crate::GPUS) {
        Some((node, count)) => bail!("{count} pods on {node}, which has {} accelerators", crate::GPUS),
        None => Ok(()),
    }
}

/// Waits until there are so many objects.
async fn until<K>(api: &Api<K>, count: usize) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let end = Instant::now() + PATIENCE;
    loop {
        let now = muster_e2e::world::count(api).await?;
        if now == count {
            return Ok(());
        }
        if Instant::now() > end {
            bail!("{now} objects instead of {count} after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// From the requests of a case to its figures.
fn account(case: Case, c: Calibration, requests: &[Request], used: &Used, machine: f64) -> Result<Row> {
    let user = format!("system:serviceaccount:{}:{}", session::NAMESPACE, session::ACCOUNT);
    let ours = || requests.iter().filter(|request| request.by(&user));
    let applied = if case.kind == Kind::Gang { "gangs" } else { "trainingjobs" };
    let others = || requests.iter().filter(|request| !request.by(&user));
    let begun =
        others().filter(|r| r.is("create", applied)).map(|r| r.begun).min().context("nothing applied")?;
    let created = || ours().filter(|r| r.is("create", "pods") && r.granted() && r.writes());
    ensure!(
        created().count() == case.total(),
        "{} pods created instead of {}",
        created().count(),
        case.total()
    );
    let last_pod = created().map(|r| r.ended).max().context("no pod")?;
    let after = |time: Timestamp| time.duration_since(begun).as_secs_f64();
    let plans = || {
        // The first write of each gang's status commits its plan; what comes later reports progress.
        let written = ours().filter(|r| r.is("patch", "gangs/status") && r.granted() && r.ended <= last_pod);
        written.map(|r| r.ended)
    };
    let mut plans: Vec<Timestamp> = plans().collect();
    plans.sort_unstable();
    plans.truncate(case.gangs as usize);
    let writes = || ours().filter(|r| r.writes() && !r.what().starts_with("leases"));
    let deleted =
        others().filter(|r| r.is("delete", applied)).map(|r| r.begun).min().context("nothing deleted")?;
    let gone = ours().filter(|r| r.is("delete", "pods")).map(|r| r.ended).max().context("no pod deleted")?;
    Ok(Row {
        case,
        time: after(last_pod),
        first_plan: plans.first().map_or(0.0, |at| after(*at)),
        last_plan: plans.last().map_or(0.0, |at| after(*at)),
        first_pod: created().map(|r| r.ended).min().map_or(0.0, after),
        writes: audit::count(writes().filter(|r| r.begun <= last_pod)),
        latencies: audit::latencies(writes().filter(|r| r.begun <= last_pod)),
        life: audit::count(writes()),
        leases: ours().filter(|r| r.writes() && r.what().starts_with("leases")).count(),
        operator: used.of("muster"),
        parts: used.clone(),
        machine,
        deletion: gone.duration_since(deleted).as_secs_f64(),
        c,
    })
}
