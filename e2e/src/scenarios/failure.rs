//! Losses: nodes, pods, kubelets, and what is never lost by them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use kubesim::node_controllers::resolver;
use muster_api::{GangPhase, JobPhase, labels, names};
use muster_model::Uid;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

use super::basics::{env, live};
use crate::jobs::{EXIT_CODE, RUN_FOR, job};
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);

/// A node dies: the job goes on from its checkpoint, in a new generation, on another node.
pub async fn node_dies_and_the_job_recovers(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("trains", 32)).await?;
    world.phase("trains", JobPhase::Running, 2 * MINUTE).await?;
    let pods = live(world).await?;
    ensure!(pods.len() == 4, "{} pods run instead of 4", pods.len());
    // The job reports a checkpoint, as a trainer or its sidecar would.
    let rank0 =
        pods.iter().find(|pod| env(pod, "MUSTER_NODE_RANK").as_deref() == Some("0")).context("rank 0")?;
    let report = json!({ "metadata": { "annotations": { labels::CHECKPOINT_STEP: "1200" } } });
    world.api::<Pod>().patch(&rank0.name_any(), &PatchParams::default(), &Patch::Merge(report)).await?;
    world
        .eventually("the checkpoint in the job's status", MINUTE, || async {
            let checkpoint = world.job("trains").await?.status.unwrap_or_default().checkpoint;
            Ok(if checkpoint.as_ref().is_some_and(|c| c.step == 1200) {
                Ok(())
            } else {
                Err(format!("{checkpoint:?}"))
            })
        })
        .await?;
    let victim =
        pods.iter().find(|pod| pod.name_any() != rank0.name_any()).and_then(node_of).context("a node")?;
    world.fleet.kill(&victim).await?;
    let after = world
        .eventually("a whole new generation", 5 * MINUTE, || async {
            let status = world.job("trains").await?.status.unwrap_or_default();
            let back = status.phase == Some(JobPhase::Running) && status.generation == Some(2);
            Ok(if back {
                Ok(status)
            } else {
                Err(format!("{:?} generation {:?}: {:?}", status.phase, status.generation, status.message))
            })
        })
        .await?;
    ensure!(after.restarts == 1, "{} restarts were counted instead of 1", after.restarts);
    let now: Vec<Pod> = live(world).await?;
    let new: Vec<&Pod> =
        now.iter().filter(|pod| env(pod, "MUSTER_GENERATION").as_deref() == Some("2")).collect();
    ensure!(new.len() == 4, "{} pods of generation 2", new.len());
    for pod in new {
        ensure!(node_of(pod).as_ref() != Some(&victim), "{} is on the dead node", pod.name_any());
        ensure!(
            env(pod, "MUSTER_CHECKPOINT_STEP").as_deref() == Some("1200"),
            "it does not know the checkpoint"
        );
    }
    oracle::check(world).await?;
    // The old pod is still there, unreachable; with the node's deletion it goes for good.
    world.fleet.delete_node(&victim).await?;
    only_generation(world, "2", 4).await?;
    operator.stop().await;
    Ok(())
}

/// Exits with an error restart the job until the budget is spent; exit code 93 fails it at once.
pub async fn application_failures_use_the_budget(world: &World) -> Result<()> {
    let operator = world.start("one");
    let fails = job("fails", 8)
        .pods(RUN_FOR, "1s")
        .pods(EXIT_CODE, "7")
        .with("recovery", json!({ "ladder": ["RestartInPlace"], "maxRestarts": 1, "window": "24h" }));
    world.submit(&fails).await?;
    let failed = world.phase("fails", JobPhase::Failed, 10 * MINUTE).await?.status.unwrap_or_default();
    ensure!(failed.restarts == 1, "{} restarts instead of 1: {:?}", failed.restarts, failed.message);
    let message = failed.message.unwrap_or_default();
    ensure!(message.contains('7'), "the exit code is not named: {message}");
    world.submit(&job("never", 8).pods(RUN_FOR, "1s").pods(EXIT_CODE, "93")).await?;
    let failed = world.phase("never", JobPhase::Failed, 5 * MINUTE).await?.status.unwrap_or_default();
    ensure!(failed.restarts == 0, "a job that says do-not-requeue was restarted: {:?}", failed.message);
    operator.stop().await;
    Ok(())
}

/// The way from all kubelets to the server is lost for a minute, and one node says for twenty seconds that it is not
/// ready: no pod is touched.
pub async fn a_minute_without_kubelets_costs_nothing(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("stays", 64)).await?;
    world.phase("stays", JobPhase::Running, 2 * MINUTE).await?;
    let uids = |pods: Vec<Pod>| pods.iter().filter_map(ResourceExt::uid).collect::<BTreeSet<String>>();
    let before = uids(live(world).await?);
    let nodes: Vec<String> = (0..8).map(|at| format!("hgx-{at:03}")).collect();
    for node in &nodes {
        world.fleet.hang(node).await?;
    }
    ready(world, &nodes, "Unknown").await?;
    unchanged(world, MINUTE, &before).await?;
    for node in &nodes {
        world.fleet.revive(node).await?;
    }
    ready(world, &nodes, "True").await?;
    world.fleet.set_condition(&nodes[0], "Ready", "False", "KubeletNotReady", "no network").await?;
    ready(world, &nodes[..1], "False").await?;
    unchanged(world, MINUTE / 3, &before).await?;
    world.fleet.set_condition(&nodes[0], "Ready", "True", "KubeletReady", "").await?;
    ready(world, &nodes, "True").await?;
    unchanged(world, MINUTE / 12, &before).await?;
    let status = world.job("stays").await?.status.unwrap_or_default();
    ensure!(status.restarts == 0 && status.phase == Some(JobPhase::Running), "{status:?}");
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// Waits until the condition `Ready` of nodes has a status.
async fn ready(world: &World, names: &[String], wanted: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(world.admin.clone());
    world
        .eventually(&format!("nodes are Ready={wanted}"), 3 * MINUTE, || async {
            let mut others = Vec::new();
            for name in names {
                let status = nodes.get(name).await?.status.unwrap_or_default();
                let ready = status.conditions.into_iter().flatten().find(|one| one.type_ == "Ready");
                others.extend(ready.map(|one| one.status).filter(|status| status != wanted));
            }
            Ok(if others.is_empty() { Ok(()) } else { Err(format!("{others:?}")) })
        })
        .await
}

/// For so long the pods are those that they were. The time is what the scenario is about: nothing tells that nothing will
/// happen.
async fn unchanged(world: &World, time: Duration, before: &BTreeSet<String>) -> Result<()> {
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < time {
        let now: BTreeSet<String> = live(world).await?.iter().filter_map(ResourceExt::uid).collect();
        ensure!(now == *before, "after {:?} the pods are others: {now:?}, not {before:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// A kubelet that takes no pod in, and one that refuses: other nodes are taken and no restart is counted.
pub async fn silent_and_refusing_kubelets(world: &World) -> Result<()> {
    world.fleet.silent("hgx-000").await?;
    world.fleet.refuse_pods("hgx-001", "UnexpectedAdmissionError").await?;
    let operator = world.start_tuned("one", |config| config.patience.admit = 10_000);
    world.submit(&job("finds", 32)).await?;
    let status = world.phase("finds", JobPhase::Running, 10 * MINUTE).await?.status.unwrap_or_default();
    ensure!(status.restarts == 0, "a misfit was counted as a restart");
    let nodes: BTreeSet<String> = live(world).await?.iter().filter_map(node_of).collect();
    let expected: BTreeSet<String> = (2..6).map(|at| format!("hgx-{at:03}")).collect();
    ensure!(nodes == expected, "it runs on {nodes:?}");
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// Rank 0's node becomes unreachable: its name leads to the new pod and never again to the old one.
pub async fn rank0_never_resolves_to_the_old_pod(world: &World) -> Result<()> {
    let operator = world.start("one");
    world.submit(&job("meets", 16)).await?;
    world.phase("meets", JobPhase::Running, 2 * MINUTE).await?;
    let uid = Uid(world.gang("meets").await?.uid().unwrap_or_default());
    let service = names::rank0_service("meets", &uid);
    let address = |pod: &Pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let rank0 = |pods: &[Pod]| {
        pods.iter()
            .find(|pod| env(pod, "MUSTER_NODE_RANK").as_deref() == Some("0"))
            .cloned()
            .context("rank 0")
    };
    let old = rank0(&live(world).await?)?;
    let old_ip = address(&old).context("rank 0's address")?;
    let resolve = || async {
        let found = resolver::resolve(&world.admin, &world.namespace, &service).await?;
        anyhow::Ok(found.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    world
        .eventually("the name", MINUTE, || async {
            let found = resolve().await?;
            Ok(if found == [old_ip.clone()] { Ok(()) } else { Err(format!("{found:?}, not {old_ip}")) })
        })
        .await?;
    world.fleet.hang(&node_of(&old).context("rank 0's node")?).await?;
    let new_ip = world
        .eventually("a new rank 0", 5 * MINUTE, || async {
            let pods: Vec<Pod> =
                live(world).await?.into_iter().filter(|pod| pod.uid() != old.uid()).collect();
            let new = pods.iter().find(|pod| env(pod, "MUSTER_NODE_RANK").as_deref() == Some("0"));
            Ok(new.and_then(address).ok_or_else(|| format!("{} pods", pods.len())))
        })
        .await?;
    world
        .eventually("the name leads to the new rank 0", MINUTE, || async {
            let found = resolve().await?;
            Ok(if found == [new_ip.clone()] { Ok(()) } else { Err(format!("{found:?}, not {new_ip}")) })
        })
        .await?;
    // The old pod is still listed by the API, terminating or not, and its address must not come back.
    let still = world.api::<Pod>().get_opt(&old.name_any()).await?;
    ensure!(still.is_some(), "the old pod should still be there: its node is unreachable");
    let found = resolve().await?;
    ensure!(!found.contains(&old_ip), "the name leads to the old pod again");
    operator.stop().await;
    Ok(())
}

/// The pods of a finished job vanish while the operator is down: it still learns that the job succeeded.
pub async fn result_survives_pod_gc(world: &World) -> Result<()> {
    let mut operator = world.start("one");
    operator.leading().await?;
    world.submit(&job("ends", 16).running_for("5s")).await?;
    world.phase("ends", JobPhase::Running, 2 * MINUTE).await?;
    operator.kill().await;
    world
        .eventually("the pods end", 2 * MINUTE, || async {
            let pods = world.pods().await?;
            let ended = pods.iter().filter(|pod| super::basics::phase_of(pod) == "Succeeded").count();
            Ok(if ended == pods.len() { Ok(()) } else { Err(format!("{ended} of {}", pods.len())) })
        })
        .await?;
    // What PodGC does above its threshold.
    for pod in world.pods().await? {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        world.api::<Pod>().delete(&pod.name_any(), &now).await?;
    }
    let operator = world.start("two");
    let status = world.phase("ends", JobPhase::Succeeded, 2 * MINUTE).await?.status.unwrap_or_default();
    ensure!(status.restarts == 0, "it was restarted");
    world
        .eventually("the held pod goes", MINUTE, || async {
            let pods = world.pods().await?.len();
            Ok(if pods == 0 { Ok(()) } else { Err(format!("{pods} pods")) })
        })
        .await?;
    operator.stop().await;
    Ok(())
}

/// Waits until the only pods are `count` of a generation.
async fn only_generation(world: &World, generation: &str, count: usize) -> Result<()> {
    world
        .eventually("only pods of the new generation", 3 * MINUTE, || async {
            let pods = world.pods().await?;
            let of: Vec<_> = pods.iter().filter_map(|pod| env(pod, "MUSTER_GENERATION")).collect();
            let done = of.len() == count && of.iter().all(|g| g == generation);
            Ok(if done { Ok(()) } else { Err(format!("generations {of:?}")) })
        })
        .await
}

/// `spec.nodeName`.
pub fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// Whether a node exists.
pub async fn node_exists(world: &World, name: &str) -> Result<bool> {
    Ok(Api::<Node>::all(world.admin.clone()).get_opt(name).await?.is_some())
}

/// The phase that a gang waits in after a loss.
pub fn waits(phase: GangPhase) -> bool {
    matches!(phase, GangPhase::Pending | GangPhase::Requeued)
}

/// Nodes that join with a taint and lose it later: a job that waits for them is placed at once.
pub async fn nodes_that_become_ready_are_used(world: &World) -> Result<()> {
    for at in 1..4 {
        world.fleet.taint(&format!("hgx-{at:03}"), "example.com/joining", "", "NoSchedule").await?;
    }
    let operator = world.start("one");
    world.submit(&job("patient", 32)).await?;
    super::basics::reason(world, "patient").await?;
    for at in 1..4 {
        world.fleet.untaint(&format!("hgx-{at:03}"), "example.com/joining").await?;
    }
    world.phase("patient", JobPhase::Running, MINUTE).await?;
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}
