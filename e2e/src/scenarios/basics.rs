//! Placement, refusal, order and quota.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use muster_api::{GangPhase, JobPhase, TrainingJob, labels};
use muster_model::{Level, NodeName, Topology, topology::NVLINK_DOMAIN};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::jobs::job;
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);

/// 2,048 GPUs: every TP group in one NVLink domain, placed and finished.
pub async fn hgx_job_of_2048_gpus(world: &World) -> Result<()> {
    let operator = world.start("one");
    let wanted = job("large", 64)
        .with("framework", "Megatron")
        .with("parallelism.tensor", 8)
        .with("parallelism.pipeline", 4)
        .running_for("20s");
    world.submit(&wanted).await?;
    world.phase("large", JobPhase::Running, 3 * MINUTE).await?;
    let pods = live(world).await?;
    ensure!(pods.len() == 256, "{} pods run instead of 256", pods.len());
    oracle::check(world).await?;
    each_block_in_one(world, 1, NVLINK_DOMAIN).await?;
    ranks_are_a_permutation(&pods, 256)?;
    let done = world.phase("large", JobPhase::Succeeded, 3 * MINUTE).await?;
    ensure!(done.status.unwrap_or_default().restarts == 0, "it restarted");
    operator.stop().await;
    Ok(())
}

/// 2,048 GPUs on NVL72 racks: every expert group of 16 ranks in one rack.
pub async fn nvl72_expert_groups(world: &World) -> Result<()> {
    let operator = world.start("one");
    let wanted = job("experts", 64)
        .with("framework", "Megatron")
        .with("parallelism.tensor", 8)
        .with("parallelism.pipeline", 4)
        .with("parallelism.expert", 16)
        .with("parallelism.expertTensor", 1)
        .with("placement.expert", json!({ "within": NVLINK_DOMAIN, "mode": "Required" }))
        .running_for("20s");
    world.submit(&wanted).await?;
    world.phase("experts", JobPhase::Running, 3 * MINUTE).await?;
    let pods = live(world).await?;
    ensure!(pods.len() == 512, "{} pods run instead of 512", pods.len());
    oracle::check(world).await?;
    // 16 ranks are four pods of four.
    each_block_in_one(world, 4, NVLINK_DOMAIN).await?;
    ranks_are_a_permutation(&pods, 512)?;
    world.phase("experts", JobPhase::Succeeded, 3 * MINUTE).await?;
    operator.stop().await;
    Ok(())
}

/// A job that can never run says why, and has no pods.
pub async fn impossible_job_says_why(world: &World) -> Result<()> {
    let operator = world.start("one");
    // 8 nodes are wanted and 4 exist.
    world.submit(&job("toolarge", 64)).await?;
    // Nodes that have just come are tainted for a moment: then fewer fit, and what is said follows.
    says(world, "toolarge", "InsufficientCapacity", &["4 of at least 8"]).await?;
    ensure!(world.pods().await?.is_empty(), "an impossible job has pods");
    // Eight stages, a node each, in one rack of four nodes: never, and the largest rack is named.
    let rack = json!({ "within": "Rack", "mode": "Required" });
    let stages = job("stages", 1).with("parallelism.tensor", 8).with("parallelism.pipeline", 8);
    world.submit(&stages.with("placement.pipeline", rack)).await?;
    says(world, "stages", "SegmentTooLarge", &["rack-0", "takes 4"]).await?;
    // 16 ranks of tensor parallelism do not fit an NVLink domain of 8: invalid for every allowed class.
    world.submit(&job("tootensor", 1).with("parallelism.tensor", 16)).await?;
    let invalid = reason(world, "tootensor").await?;
    let status = invalid.status.unwrap_or_default();
    let message = status.message.unwrap_or_default();
    ensure!(message.contains("spec.parallelism.tensor"), "the field is not named: {message}");
    ensure!(message.contains("NVLink domain"), "the cause is not named: {message}");
    for (name, path, value, word) in [
        ("noqueue", "queue", json!("nowhere"), "spec.queue"),
        ("noclass", "accelerator", json!({ "classes": ["h1000"] }), "spec.accelerator.classes[0]"),
        ("nopriority", "priorityClassName", json!("urgent"), "spec.priorityClassName"),
    ] {
        world.submit(&job(name, 1).with(path, value)).await?;
        let status = reason(world, name).await?.status.unwrap_or_default();
        let valid = status.conditions.iter().find(|c| c.type_ == "Valid");
        ensure!(valid.is_some_and(|c| c.status == "False"), "{name}: Valid is {valid:?}");
        let message = status.message.unwrap_or_default();
        ensure!(message.contains(word), "{name}: the field is not named: {message}");
    }
    ensure!(world.pods().await?.is_empty(), "an invalid job has pods");
    operator.stop().await;
    Ok(())
}

/// Two jobs that need every node run one after the other, never interleaved.
pub async fn two_jobs_one_after_the_other(world: &World) -> Result<()> {
    let operator = world.start("one");
    for name in ["first", "second"] {
        world.submit(&job(name, 64).running_for("5s")).await?;
    }
    let both = || async {
        let (mut names, mut done, mut seen) = (BTreeSet::new(), 0, Vec::new());
        for name in ["first", "second"] {
            let status = world.job(name).await?.status.unwrap_or_default();
            done += usize::from(status.phase == Some(JobPhase::Succeeded));
            seen.push(format!("{name} {:?}: {:?}", status.phase, status.message));
        }
        for pod in world.pods().await? {
            let active = !["Succeeded", "Failed"].contains(&phase_of(&pod));
            if active && pod.metadata.deletion_timestamp.is_none() {
                names.insert(pod.labels().get(labels::JOB).cloned().unwrap_or_default());
            }
        }
        ensure!(names.len() <= 1, "pods of {names:?} exist at the same time");
        Ok(if done == 2 {
            Ok(())
        } else {
            Err(format!("{done} of 2 are done, {names:?} has pods; {seen:?}"))
        })
    };
    world.eventually("both jobs done", 5 * MINUTE, both).await?;
    operator.stop().await;
    Ok(())
}

/// While nothing changes, a gang that waits costs no write at all.
pub async fn waiting_writes_nothing(world: &World) -> Result<()> {
    let mut operator = world.start("one");
    operator.leading().await?;
    world.submit(&job("waits", 64)).await?;
    reason(world, "waits").await?;
    let Some(server) = &world.server else {
        // On a real server the versions of the objects tell.
        let before = versions(world).await?;
        let begun = tokio::time::Instant::now();
        world
            .eventually("ten quiet seconds", MINUTE, || async {
                let now = versions(world).await?;
                ensure!(now == before, "a waiting gang was written: {before:?}, then {now:?}");
                Ok(if begun.elapsed() > Duration::from_secs(10) {
                    Ok(())
                } else {
                    Err("quiet so far".into())
                })
            })
            .await?;
        operator.stop().await;
        return Ok(());
    };
    // Whatever is still under way settles; then an hour of virtual time must bring nothing but the Lease.
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.reset_stats();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let writes: Vec<_> = server
        .stats()
        .into_iter()
        .filter(|(key, _)| {
            key.user == crate::world::OPERATOR_USER && key.is_write() && key.resource != "leases"
        })
        .collect();
    ensure!(writes.is_empty(), "a waiting gang costs writes: {writes:?}");
    operator.stop().await;
    Ok(())
}

/// A ResourceQuota that admits only a part of a gang leaves no pods, and the reason is said.
pub async fn quota_for_a_part_leaves_no_pods(world: &World) -> Result<()> {
    let operator = world.start("one");
    let quota = |name: &str, hard: serde_json::Value| json!({ "metadata": { "name": name }, "spec": { "hard": hard } });
    world.create::<ResourceQuota>(quota("few", json!({ "count/pods": "3" }))).await?;
    world.submit(&job("part", 64)).await?;
    let status = reason(world, "part").await?.status.unwrap_or_default();
    let message = status.message.unwrap_or_default();
    ensure!(message.contains("few"), "the quota is not named: {message}");
    ensure!(world.pods().await?.is_empty(), "pods of a refused gang are there");
    // Quotas with scopes are not foreseen: the API server refuses in the midst, and what was created goes.
    let scoped = json!({
        "metadata": { "name": "limits" },
        "spec": { "hard": { "pods": "3" }, "scopes": ["NotTerminating"] },
    });
    world.create::<ResourceQuota>(scoped).await?;
    world.api::<ResourceQuota>().delete("few", &kube::api::DeleteParams::default()).await?;
    world
        .eventually("the refusal of the API server", 2 * MINUTE, || async {
            let status = world.job("part").await?.status.unwrap_or_default();
            let pods = world.pods().await?.len();
            let refused = status.reason.as_deref() == Some("PodRefused");
            Ok(if refused && pods == 0 { Ok(()) } else { Err(format!("{:?}, {pods} pods", status.message)) })
        })
        .await?;
    world.api::<ResourceQuota>().delete("limits", &kube::api::DeleteParams::default()).await?;
    world.phase("part", JobPhase::Running, 5 * MINUTE).await?;
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// Waits until a job has a reason for not running.
pub async fn reason(world: &World, name: &str) -> Result<TrainingJob> {
    world
        .eventually(&format!("a reason for {name}"), MINUTE, || async {
            let job = world.job(name).await?;
            let status = job.status.clone().unwrap_or_default();
            let waits = status.phase == Some(JobPhase::Pending) && status.reason.is_some();
            Ok(if waits { Ok(job) } else { Err(format!("{:?} {:?}", status.phase, status.reason)) })
        })
        .await
}

/// Waits until a job gives this reason, in these words.
async fn says(world: &World, name: &str, reason: &str, words: &[&str]) -> Result<()> {
    world
        .eventually(&format!("{name} says {reason}"), 2 * MINUTE, || async {
            let status = world.job(name).await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            let told = words.iter().all(|word| message.contains(word));
            let told = told && status.reason.as_deref() == Some(reason);
            Ok(if told { Ok(()) } else { Err(format!("{:?}: {message}", status.reason)) })
        })
        .await
}

/// Pods that are not being deleted.
pub async fn live(world: &World) -> Result<Vec<Pod>> {
    let pods = world.pods().await?;
    Ok(pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
}

/// `status.phase`.
pub fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The value of a variable of a pod's first container.
pub fn env(pod: &Pod, name: &str) -> Option<String> {
    let container = pod.spec.as_ref()?.containers.first()?;
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.clone()
}

/// Versions of all jobs and gangs.
async fn versions(world: &World) -> Result<BTreeMap<String, Option<String>>> {
    let jobs = world.api::<TrainingJob>().list(&kube::api::ListParams::default()).await?;
    let gangs = world.api::<muster_api::Gang>().list(&kube::api::ListParams::default()).await?;
    Ok(jobs
        .iter()
        .map(|job| (format!("job {}", job.name_any()), job.resource_version()))
        .chain(gangs.iter().map(|gang| (format!("gang {}", gang.name_any()), gang.resource_version())))
        .collect())
}

/// The node ranks of the pods are 0, 1, 2 … each once.
pub fn ranks_are_a_permutation(pods: &[Pod], count: usize) -> Result<()> {
    let ranks: BTreeSet<usize> = pods
        .iter()
        .map(|pod| {
            env(pod, "MUSTER_NODE_RANK").context("MUSTER_NODE_RANK is missing")?.parse().context("its value")
        })
        .collect::<Result<_>>()?;
    ensure!(ranks.len() == count && ranks.iter().copied().eq(0..count), "node ranks are {ranks:?}");
    Ok(())
}

/// Recomputed from the pods alone: each block of `block` pods of a unit lies in one domain of the level.
async fn each_block_in_one(world: &World, block: u32, level: &str) -> Result<()> {
    let snapshot = oracle::snapshot(world).await?;
    let keys = Topology::default();
    let level: &Level = keys.levels.iter().find(|l| l.name == level).context("the level")?;
    let nodes: BTreeMap<&NodeName, String> = snapshot
        .nodes
        .iter()
        .map(|node| {
            let named = level.keys.iter().find_map(|key| node.labels.get(key)).cloned();
            (&node.name, named.unwrap_or_else(|| node.name.to_string()))
        })
        .collect();
    let mut domains: BTreeMap<(u32, u32), BTreeSet<&String>> = BTreeMap::new();
    for pod in &snapshot.pods {
        let node = pod.node.as_ref().context("a pod has no node")?;
        domains.entry((pod.unit.index, pod.index / block)).or_default().insert(&nodes[node]);
    }
    let split: Vec<_> = domains.iter().filter(|(_, domains)| domains.len() > 1).collect();
    ensure!(split.is_empty(), "blocks over several domains: {split:?}");
    Ok(())
}

/// The committed phase of a gang.
pub async fn gang_phase(world: &World, name: &str) -> Result<GangPhase> {
    Ok(world.gang(name).await?.status.unwrap_or_default().phase.unwrap_or_default())
}
