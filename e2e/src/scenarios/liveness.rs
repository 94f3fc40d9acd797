//! Leaders that see nothing, stand still or panic; objects that cannot be read; gaps in watches.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use kubesim::api::Fault;
use muster_api::{JobPhase, TrainingJob};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

use super::basics::live;
use crate::hook::{Hook, Rewording, When, hooked, reworded};
use crate::jobs::job;
use crate::world::{Running, SYSTEM};
use crate::{Backend, World, oracle};

const MINUTE: Duration = Duration::from_secs(60);
const JOBS: &str = "/apis/muster.dev/v1alpha1/trainingjobs";

/// One job that the types cannot read, whatever the schema let in: the next leader leads, others run, and the job runs as
/// soon as it can be read.
pub async fn an_unreadable_job_stops_no_term(world: &World) -> Result<()> {
    let wording =
        Rewording { path: JOBS, from: "30517", to: "3000000000", on: Arc::new(AtomicBool::new(true)) };
    let client = || reworded(world.operator.clone(), wording.clone());
    let mut first = world.start_with("first", client());
    first.leading().await?;
    let probe = json!({ "httpGet": { "port": 30517 } });
    let mut odd = job("odd", 8);
    odd.0["spec"]["template"]["spec"]["containers"][0]["livenessProbe"] = probe;
    world.submit(&odd).await?;
    // Seen by a watch first, then by the list of the next term.
    world.submit(&job("before", 8)).await?;
    world.phase("before", JobPhase::Running, 2 * MINUTE).await?;
    first.stop().await;
    let mut second = world.start_with("second", client());
    second.leading().await?;
    world.submit(&job("after", 8)).await?;
    world.phase("after", JobPhase::Running, 2 * MINUTE).await?;
    let unreadable = |running: &Running| {
        let views = running.pulse.views();
        views.iter().find(|view| view.kind == "trainingjobs").map(|view| view.unreadable)
    };
    ensure!(unreadable(&second) == Some(1), "unreadable jobs: {:?}", unreadable(&second));
    let said = world.job("odd").await?.status.unwrap_or_default();
    ensure!(said.reason.as_deref() == Some("Unreadable"), "it does not say so: {said:?}");
    ensure!(
        said.message.as_deref().is_some_and(|text| text.contains("livenessProbe.httpGet.port")),
        "{said:?}"
    );
    let gang = world.api::<muster_api::Gang>().get_opt("odd").await?;
    ensure!(gang.is_none(), "something was done with a job that cannot be read");
    wording.on.store(false, Ordering::SeqCst);
    let touch = Patch::Merge(json!({ "metadata": { "annotations": { "example.com/touched": "yes" } } }));
    world.api::<TrainingJob>().patch("odd", &PatchParams::default(), &touch).await?;
    world.phase("odd", JobPhase::Running, 2 * MINUTE).await?;
    ensure!(unreadable(&second) == Some(0), "unreadable jobs: {:?}", unreadable(&second));
    oracle::check(world).await?;
    second.stop().await;
    Ok(())
}

/// The Lease is there: who makes the first one looks at pods for their epochs before anything else.
async fn earlier_leader(world: &World) -> Result<()> {
    let mut earlier = world.start("earlier");
    earlier.leading().await?;
    earlier.stop().await;
    Ok(())
}

/// A leader whose list of pods is never answered gives the Lease to one that sees.
pub async fn a_leader_that_cannot_see_steps_down(world: &World) -> Result<()> {
    let deaf: Hook = Arc::new(|seen| {
        Box::pin(async move {
            if seen.method == Method::GET && seen.path == "/api/v1/pods" && seen.when == When::Before {
                std::future::pending::<()>().await;
            }
        })
    });
    earlier_leader(world).await?;
    let first = world.start_with("deaf", hooked(world.operator.clone(), deaf));
    holder(world, "deaf", MINUTE).await?;
    let second = world.start("hears");
    // 45 s without a page, an interval of the renewal, the end of writes under way, an attempt of the other.
    holder(world, "hears", Duration::from_secs(65)).await?;
    world.submit(&job("runs", 8)).await?;
    world.phase("runs", JobPhase::Running, 2 * MINUTE).await?;
    first.stop().await;
    second.stop().await;
    Ok(())
}

/// A leader whose loop does not turn: another leads within about a minute, and `/livez` has it restarted.
pub async fn a_loop_that_stands_still_is_replaced(world: &World) -> Result<()> {
    let (mut first, freeze) = world.start_frozen_later("stuck", Arc::new(|_| Box::pin(async {})));
    let epoch = first.leading().await?;
    let mut second = world.start("turns");
    freeze.send_replace(true);
    holder(world, "turns", Duration::from_secs(90)).await?;
    second.leading().await?;
    restarted(world, &first, 2 * MINUTE).await?;
    // It wakes up all the same: it has no term any more.
    freeze.send_replace(false);
    first.shown.wait_for(|shown| shown.epoch != Some(epoch)).await?;
    world.submit(&job("runs", 8)).await?;
    world.phase("runs", JobPhase::Running, 2 * MINUTE).await?;
    holder(world, "turns", Duration::ZERO).await?;
    first.stop().await;
    second.stop().await;
    Ok(())
}

/// A panic in the loop ends the term, not the process, and another leads.
pub async fn a_panic_gives_the_lease_back(world: &World) -> Result<()> {
    let panicked = Arc::new(Notify::new());
    let tell = panicked.clone();
    let panics: Hook = Arc::new(move |seen| {
        let tell = tell.clone();
        Box::pin(async move {
            if seen.path == "/api/v1/pods" {
                tell.notify_one();
                panic!("a panic made by this scenario");
            }
        })
    });
    earlier_leader(world).await?;
    let first = world.start_with("panics", hooked(world.operator.clone(), panics));
    tokio::time::timeout(MINUTE, panicked.notified()).await.context("it never came to list pods")?;
    let second = world.start("calm");
    holder(world, "calm", Duration::from_secs(30)).await?;
    world.submit(&job("runs", 8)).await?;
    world.phase("runs", JobPhase::Running, 2 * MINUTE).await?;
    ensure!(first.pulse.live().is_ok(), "it is to be restarted at once: {:?}", first.pulse.live());
    restarted(world, &first, 6 * MINUTE).await?;
    first.stop().await;
    second.stop().await;
    Ok(())
}

/// 410 in the midst of a term: a pod that vanished in the gap is missed, and made again.
pub async fn a_gap_in_the_watch_hides_no_deletion(world: &World) -> Result<()> {
    let Some(server) = &world.server else {
        eprintln!("SKIPPED: only the in-memory server forgets its history on demand");
        return Ok(());
    };
    let deaf = Arc::new(AtomicBool::new(false));
    let until = deaf.clone();
    let hook: Hook = Arc::new(move |seen| {
        let until = until.clone();
        Box::pin(async move {
            let concerned = seen.method == Method::GET && seen.path == "/api/v1/pods";
            while concerned && seen.when == When::Before && until.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
    });
    let mut operator = world.start_with("one", hooked(world.operator.clone(), hook));
    let epoch = operator.leading().await?;
    world.submit(&job("trains", 16)).await?;
    world.phase("trains", JobPhase::Running, 2 * MINUTE).await?;
    let before = live(world).await?;
    let lost = before.first().context("a pod")?.clone();
    deaf.store(true, Ordering::SeqCst);
    server.break_watches();
    world.api::<Pod>().delete(&lost.name_any(), &DeleteParams::default().grace_period(0)).await?;
    server.compact();
    deaf.store(false, Ordering::SeqCst);
    world
        .eventually("the lost pod is made again", 3 * MINUTE, || async {
            let pods = live(world).await?;
            let again = pods.len() == 2 && pods.iter().all(|pod| pod.uid() != lost.uid());
            let restarts = world.job("trains").await?.status.unwrap_or_default().restarts;
            Ok(if again && restarts == 1 {
                Ok(())
            } else {
                Err(format!("{} pods, {restarts} restarts", pods.len()))
            })
        })
        .await?;
    ensure!(operator.shown.borrow().epoch == Some(epoch), "the term ended");
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// The operator's time of day is two minutes ahead of the server's, is set back by an hour, and forward again: no pod is
/// taken for late, nothing that waits is forgotten.
pub async fn a_wrong_clock_loses_nothing(world: &World) -> Result<()> {
    let hour = 3_600_000;
    if let Some(server) = &world.server {
        // Kubelets take a moment, as real ones do: a pod is seen before it is taken in.
        server.set_fault(Box::new(|info| {
            let taken_in = info.resource == "pods" && info.subresource == "status";
            taken_in.then_some(Fault::Delay(Duration::from_secs(2)))
        }));
    }
    world.ahead.store(120_000, Ordering::SeqCst);
    let operator = world.start("one");
    world.submit(&job("early", 16)).await?;
    let undisturbed = |job: TrainingJob| {
        let status = job.status.unwrap_or_default();
        ensure!(status.restarts == 0 && status.generation == Some(1), "it was placed again: {status:?}");
        Ok(())
    };
    undisturbed(world.phase("early", JobPhase::Running, MINUTE).await?)?;
    world.ahead.store(-hour, Ordering::SeqCst);
    // Its pods end with an error: the restart waits for its delay and comes.
    world.submit(&job("falls", 8)).await?;
    world.phase("falls", JobPhase::Running, MINUTE).await?;
    let pods = live(world).await?;
    let fell = pods.iter().find(|pod| pod.name_any().starts_with("falls")).context("a pod of falls")?;
    world.fleet.finish_pod(&world.namespace, &fell.name_any(), 1).await?;
    world
        .eventually("it runs again", 5 * MINUTE, || async {
            let status = world.job("falls").await?.status.unwrap_or_default();
            let again = status.restarts == 1 && status.phase == Some(JobPhase::Running);
            Ok(if again { Ok(()) } else { Err(format!("{:?} {:?}", status.phase, status.message)) })
        })
        .await?;
    world.ahead.store(hour, Ordering::SeqCst);
    world.submit(&job("late", 8)).await?;
    undisturbed(world.phase("late", JobPhase::Running, MINUTE).await?)?;
    undisturbed(world.job("early").await?)?;
    oracle::check(world).await?;
    operator.stop().await;
    Ok(())
}

/// Waits until `/livez` would have it restarted; minutes, so only where time is virtual.
async fn restarted(world: &World, running: &Running, patience: Duration) -> Result<()> {
    if world.backend != Backend::Memory {
        return Ok(());
    }
    world
        .eventually("it is to be restarted", patience, || async {
            Ok(running.pulse.live().map_or_else(|_| Ok(()), |()| Err("it counts as live".to_owned())))
        })
        .await
}

/// Waits until the Lease has this holder.
async fn holder(world: &World, identity: &str, patience: Duration) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), SYSTEM);
    world
        .eventually(&format!("{identity} holds the Lease"), patience, || async {
            let holder = leases.get_opt("muster").await?.and_then(|l| l.spec).and_then(|s| s.holder_identity);
            Ok(if holder.as_deref() == Some(identity) { Ok(()) } else { Err(format!("{holder:?}")) })
        })
        .await
}
