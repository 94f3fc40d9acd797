//! C: how many of the same pods a loop creates that decides nothing, watches nothing and waits for nothing.
//!
//! The pods are made by the operator's own code and sent by its client under its account, so that admission, fence
//! and priority are the same. Their JSON is ready before the clock starts: C is the API server's limit, not ours.

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use muster_api::{Gang, catalogue};
use muster_cluster::Slot;
use muster_controllers::writer::METADATA;
use muster_core::launch::Launcher;
use muster_core::manifest::{Blueprint, Stamp};
use muster_model::plan::{PlacedUnit, PlannedUnit};
use muster_model::{NodeName, ObjectKey, Plan, UnitId};
use muster_playground::session;
use std::time::{Duration, Instant};

use crate::case::{self, CLASS, Case, Kind, NAMESPACE};
use crate::cpu::{self, Used};
use crate::{Bench, CONCURRENCY, NODES};

/// What the loop reached.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Pods created.
    pub pods: usize,
    /// First request to last answer.
    pub time: Duration,
    /// CPU seconds of the loop's own process.
    pub own: f64,
    /// CPU seconds of the control plane's parts.
    pub parts: Used,
    /// Bytes of one pod's JSON.
    pub bytes: usize,
}

impl Calibration {
    /// Pods a second: C.
    pub fn rate(&self) -> f64 {
        self.pods as f64 / self.time.as_secs_f64()
    }
}

/// Creates as many pods as the case has, and removes them again.
pub async fn run(bench: &Bench, case: &Case) -> Result<Calibration> {
    let gangs: Api<Gang> = Api::namespaced(bench.admin(), NAMESPACE);
    // Suspended: it owns the pods, or the garbage collector would remove them, and nobody places it.
    let mut gang: Gang = serde_json::from_value(case::gang("calibration", case.pods))?;
    gang.spec.suspend = true;
    if case.kind == Kind::Job {
        // The jobs' pods bear the environment of torchrun.
        gang.spec.launch.framework = muster_api::Framework::Torchrun;
    }
    gang.metadata.finalizers = None;
    let gang = gangs.create(&PostParams::default(), &gang).await.context("the gang of the loop")?;
    let pods = bodies(&gang, case.total(), epoch(bench).await?)?;
    let bytes = pods.first().map_or(0, |(_, body)| body.len());
    let names: Vec<String> = pods.iter().map(|(name, _)| name.clone()).collect();

    let profile = bench.profile(&format!("{case}.C"));
    let (own, parts, begun) = (cpu::seconds(std::process::id()), Used::now(bench.parts()), Instant::now());
    futures::stream::iter(pods)
        .map(|(_, body)| create(&bench.account, body))
        .buffer_unordered(CONCURRENCY)
        .try_collect::<Vec<()>>()
        .await?;
    let time = begun.elapsed();
    let calibration = Calibration {
        pods: names.len(),
        time,
        own: cpu::seconds(std::process::id()) - own,
        parts: Used::now(bench.parts()).since(&parts),
        bytes,
    };

    if let Some(profile) = profile {
        profile.await??;
    }
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(bench.admin(), NAMESPACE);
    let now = DeleteParams::default().grace_period(0);
    futures::stream::iter(names)
        .map(|name| {
            let (pods, now) = (pods.clone(), now.clone());
            async move { pods.delete(&name, &now).await.map(|_| ()) }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<Vec<()>>()
        .await
        .context("removing the loop's pods")?;
    gangs.delete("calibration", &DeleteParams::default()).await?;
    Ok(calibration)
}

/// The epoch that the fence asks for.
async fn epoch(bench: &Bench) -> Result<i64> {
    let leases: Api<Lease> = Api::namespaced(bench.admin(), session::NAMESPACE);
    let lease = leases.get("muster").await.context("the operator's Lease; has it led once?")?;
    Ok(i64::from(lease.spec.and_then(|spec| spec.lease_transitions).context("the Lease has no epoch")?))
}

/// Name and JSON of each pod.
fn bodies(gang: &Gang, count: usize, epoch: i64) -> Result<Vec<(String, Vec<u8>)>> {
    let role = gang.spec.roles.first().context("the gang has no role")?;
    let class = catalogue::all().into_iter().find(|(name, _)| *name == CLASS).context("no such class")?;
    let class = class.1.to_model(CLASS, std::iter::once("NVIDIA-H100-80GB-HBM3"));
    let blueprint = Blueprint::new(gang, role, Some(&class)).map_err(anyhow::Error::msg)?;
    let launcher = Launcher::of(gang, gang.spec.roles.first());
    let mut pods = Vec::with_capacity(count);
    for index in 0..count {
        let unit = UnitId { role: role.name.clone(), index: index as u32 };
        let slot = Slot { unit: unit.clone(), incarnation: 1, index: 0 };
        let node = NodeName::from(format!("node-{:04}", index % NODES));
        let placed = PlacedUnit { id: unit, class: Some(CLASS.into()), nodes: vec![node.clone()] };
        let plan = Plan {
            generation: 1,
            units: vec![PlannedUnit { placed, incarnation: 1, revision: String::new() }],
            ..Plan::default()
        };
        let key = ObjectKey::new(NAMESPACE, format!("calibration-{index:05}"));
        let stamp = Stamp {
            pod: &key,
            slot: &slot,
            generation: 1,
            node: Some(&node),
            epoch,
            env: launcher
                .environment(&Launcher::world(&plan, &slot.unit.role, None), &slot, |_| key.name.clone()),
            decides: false,
            subdomain: None,
            hostfile: None,
        };
        pods.push((key.name.clone(), blueprint.stamp(&stamp)));
    }
    ensure!(!pods.is_empty(), "a case without pods");
    Ok(pods)
}

async fn create(account: &kube::Client, body: Vec<u8>) -> Result<()> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("/api/v1/namespaces/{NAMESPACE}/pods?fieldManager=muster"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::ACCEPT, METADATA)
        .body(body)?;
    account.request_text(request).await.context("a pod of the loop")?;
    Ok(())
}
