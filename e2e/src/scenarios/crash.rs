//! The operator dies, or is stopped and comes back too late.

use anyhow::{Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use muster_api::JobPhase;
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::basics::{live, ranks_are_a_permutation};
use crate::hook::{Gate, Hook, Tripwire, When};
use crate::jobs::{EXIT_CODE, RUN_FOR, job};
use crate::world::count;
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);

/// Killed at twenty different points of a placement, before each of its first ten writes and between each one's effect
/// and its answer: the next operator completes the gang, and it is right.
pub async fn killed_at_twenty_points(world: &World) -> Result<()> {
    for point in 0..20 {
        // The first writes are the probe, the gang, the plan, the Service; then the pods.
        let (write, when) = (point / 2, if point % 2 == 0 { When::Before } else { When::After });
        let name = format!("point{point}");
        let wire = Tripwire::default();
        let first = world.start_victim(&format!("first-{point}"), wire.at(write, when)).await?;
        world.submit(&job(&name, 64)).await?;
        let tripped = tokio::time::timeout(2 * MINUTE, wire.tripped()).await;
        ensure!(tripped.is_ok(), "the operator never came to write {write}");
        first.kill().await?;
        let second = world.start(&format!("second-{point}"));
        world.phase(&name, JobPhase::Running, 3 * MINUTE).await?;
        let pods = live(world).await?;
        ensure!(pods.len() == 8, "killed {when:?} write {write}: {} pods instead of 8", pods.len());
        ranks_are_a_permutation(&pods, 8)?;
        oracle::check(world).await?;
        let status = world.job(&name).await?.status.unwrap_or_default();
        let events = world.events(&name).await?;
        ensure!(
            status.restarts == 0,
            "killed {when:?} write {write}: {} restarts: {events:?}",
            status.restarts
        );
        delete(world, &name).await?;
        second.stop().await;
    }
    Ok(())
}

/// Two leaders plan the last free domain; the old one was stopped between its decision and its write. One plan
/// results, and no pod of the old leader.
pub async fn two_leaders_one_domain(world: &World) -> Result<()> {
    // The old leader decides for "early" and is stopped as its plan is about to be written.
    let gate = Gate::new(|seen| seen.is_write() && seen.path.ends_with("/gangs/early/status"));
    let (mut old, freeze) = world.start_frozen_later("old", gate.hook());
    let old_epoch = old.leading().await?;
    world.submit(&job("early", 32)).await?;
    let held = tokio::time::timeout(2 * MINUTE, gate.held()).await;
    ensure!(held.is_ok(), "the old leader never came to write its plan");
    freeze.send_replace(true);
    // The new leader must decide for "late" first: "early" goes away from its sight by being suspended.
    let suspend = json!({ "spec": { "suspend": true } });
    world.patch_job("early", &suspend).await?;
    let mut new = world.start("new");
    let new_epoch = new.leading().await?;
    ensure!(new_epoch > old_epoch, "the epoch did not grow: {old_epoch}, {new_epoch}");
    world.submit(&job("late", 32)).await?;
    world.phase("late", JobPhase::Running, 3 * MINUTE).await?;
    // The old leader wakes up in the middle of its write.
    gate.open();
    freeze.send_replace(false);
    world
        .eventually("the old leader steps down", 2 * MINUTE, || async {
            let shown = old.shown.borrow().epoch;
            Ok(if shown == Some(old_epoch) { Err(format!("it still shows epoch {shown:?}")) } else { Ok(()) })
        })
        .await?;
    let gang = world.gang("early").await?.status.unwrap_or_default();
    ensure!(gang.plan.is_none(), "the old leader's plan was written: {:?}", gang.plan);
    for pod in world.pods().await? {
        let epoch = pod.annotations().get(muster_api::labels::EPOCH).cloned();
        ensure!(epoch == Some(new_epoch.to_string()), "{} bears epoch {epoch:?}", pod.name_any());
    }
    ensure!(world.pods().await?.len() == 4, "{} pods", world.pods().await?.len());
    oracle::check(world).await?;
    old.kill().await;
    new.stop().await;
    Ok(())
}

/// The server creates pods and its answers are lost: nobody makes them again or waits for the room that they take
/// themselves.
pub async fn lost_answers_lose_no_pod(world: &World) -> Result<()> {
    /// Counts when the operator gives up waiting.
    struct GivenUp(Arc<AtomicUsize>);
    impl Drop for GivenUp {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (asked, given_up) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = given_up.clone();
    let hook: Hook = Arc::new(move |seen| {
        let (asked, given_up) = (asked.clone(), counted.clone());
        Box::pin(async move {
            let creation = seen.method == Method::POST && seen.path.ends_with("/pods");
            // The proof of the fence (0, then 1 and 2), the question about the pods' shape (3, then 4), two pods of four.
            let loses = |nth| matches!(nth, 0 | 3 | 5 | 6);
            if creation && seen.when == When::After && loses(asked.fetch_add(1, Ordering::SeqCst)) {
                let _given_up = GivenUp(given_up);
                std::future::pending::<()>().await;
            }
        })
    });
    let (operator, _freeze) = world.start_frozen_later("one", hook);
    // Each pod fills its node: a second one of the name would find no room.
    world.submit(&job("trains", 32)).await?;
    world.phase("trains", JobPhase::Running, 2 * MINUTE).await?;
    world
        .eventually("the operator gives up on the answers", MINUTE, || async {
            let count = given_up.load(Ordering::SeqCst);
            Ok(if count == 4 { Ok(()) } else { Err(format!("it gave up on {count} of 4")) })
        })
        .await?;
    // It still takes them for running: the end of all four ends the job.
    for pod in live(world).await? {
        world.fleet.finish_pod(&world.namespace, &pod.name_any(), 0).await?;
    }
    let status = world.phase("trains", JobPhase::Succeeded, 2 * MINUTE).await?.status.unwrap_or_default();
    ensure!(status.restarts == 0 && status.generation == Some(1), "it was placed more than once: {status:?}");
    operator.stop().await;
    Ok(())
}

/// The restart budget is kept in the status: an operator that starts anew does not forgive.
pub async fn budget_survives_a_restart(world: &World) -> Result<()> {
    let first = world.start("first");
    let fails = job("fails", 8)
        .pods(RUN_FOR, "1s")
        .pods(EXIT_CODE, "1")
        .with("recovery", json!({ "ladder": ["RestartInPlace"], "maxRestarts": 2, "window": "24h" }));
    world.submit(&fails).await?;
    world
        .eventually("the first restart", 5 * MINUTE, || async {
            let status = world.job("fails").await?.status.unwrap_or_default();
            Ok(if status.restarts >= 1 { Ok(()) } else { Err(format!("{:?}", status.message)) })
        })
        .await?;
    first.kill().await;
    let second = world.start("second");
    let failed = world.phase("fails", JobPhase::Failed, 10 * MINUTE).await?.status.unwrap_or_default();
    ensure!(failed.restarts == 2, "{} restarts over both operators instead of 2", failed.restarts);
    second.stop().await;
    Ok(())
}

/// Deletes a job and waits until nothing of it is left.
pub async fn delete(world: &World, name: &str) -> Result<()> {
    world.api::<muster_api::TrainingJob>().delete(name, &kube::api::DeleteParams::default()).await?;
    // How long it takes on a quiet machine is a figure of `make bench`.
    world
        .eventually(&format!("nothing is left of {name}"), 3 * MINUTE, || async {
            let gang = world.api::<muster_api::Gang>().get_opt(name).await?.is_some();
            let pods = count(&world.api::<Pod>()).await?;
            Ok(if !gang && pods == 0 { Ok(()) } else { Err(format!("gang: {gang}, {pods} pods")) })
        })
        .await
}

/// A plan that is too large for a status lies in parts of its own; the next leader reads it there, and those of earlier
/// plans go.
pub async fn a_large_plan_lies_in_parts(world: &World) -> Result<()> {
    let parts = world.api::<muster_api::GangPlan>();
    let small = |config: &mut muster_core::Config| config.inline_plan = 100;
    let first = world.start_tuned("first", small);
    world.submit(&job("large", 32)).await?;
    world.phase("large", JobPhase::Running, 2 * MINUTE).await?;
    let before = parts.list(&kube::api::ListParams::default()).await?.items;
    ensure!(!before.is_empty(), "the plan lies in the status");
    first.kill().await;
    let second = world.start_tuned("second", small);
    let pod = live(world).await?.first().map(ResourceExt::name_any).unwrap_or_default();
    world.fleet.finish_pod(&world.namespace, &pod, 1).await?;
    world
        .eventually("it restarts", 3 * MINUTE, || async {
            let status = world.job("large").await?.status.unwrap_or_default();
            let again = status.restarts == 1 && status.phase == Some(JobPhase::Running);
            Ok(if again { Ok(()) } else { Err(format!("{status:?}")) })
        })
        .await?;
    oracle::check(world).await?;
    world
        .eventually("parts of the first plan go", 2 * MINUTE, || async {
            let now = parts.list(&kube::api::ListParams::default()).await?.items;
            let now: BTreeSet<String> = now.iter().map(ResourceExt::name_any).collect();
            let plan = world.gang("large").await?.status.unwrap_or_default().plan.unwrap_or_default();
            let named: BTreeSet<String> = plan.chunks.into_iter().map(|part| part.name).collect();
            Ok(if now == named && !named.is_empty() { Ok(()) } else { Err(format!("{now:?} of {named:?}")) })
        })
        .await?;
    delete(world, "large").await?;
    second.stop().await;
    Ok(())
}
