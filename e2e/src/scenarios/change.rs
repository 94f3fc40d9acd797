//! Another leader takes over in the midst of something, and what results is what the first would have left.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use muster_api::{JobPhase, TrainingJob, labels};
use serde_json::json;
use std::time::Duration;

use super::basics::{live, phase_of};
use super::crash::delete;
use crate::hook::{Tripwire, When};
use crate::jobs::job;
use crate::world::Backend;
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);
/// The one job.
const NAME: &str = "goes-on";

/// What happens to a job while its leader is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Creation,
    Recovery,
    Suspension,
    Resize,
    Deletion,
}

/// What is left in the end: the job's words and its pods (unit, incarnation, phase).
type Left = (String, Vec<(String, String, String)>);

/// A leader that is killed before or after any write of a creation, a recovery, a suspension, a resize or a deletion
/// leaves to the next what that makes the same of.
pub async fn a_leader_change_leaves_what_would_have_been(world: &World) -> Result<()> {
    for step in [Step::Creation, Step::Recovery, Step::Suspension, Step::Resize, Step::Deletion] {
        let expected = undisturbed(world, step).await.with_context(|| format!("{step:?}, undisturbed"))?;
        for point in 0.. {
            let when = if point % 2 == 0 { When::Before } else { When::After };
            let met = killed(world, step, point / 2, when, &expected).await;
            let met = met.with_context(|| format!("{step:?}, killed {when:?} write {}", point / 2))?;
            ensure!(met || point > 0, "{step:?}: the leader wrote nothing");
            // Where time is real, one point of each kind: the others differ in nothing that the server does.
            if !met || (world.backend == Backend::Cluster && point == 1) {
                break;
            }
        }
    }
    Ok(())
}

/// What one leader leaves.
async fn undisturbed(world: &World, step: Step) -> Result<Left> {
    let operator = world.start("undisturbed");
    if step != Step::Creation {
        begin(world).await?;
    }
    take(world, step).await?;
    settled(world, step).await?;
    let left = left(world).await?;
    end(world).await?;
    operator.stop().await;
    Ok(left)
}

/// What two leave, of whom the first is killed at a write. Returns false where there are fewer writes.
async fn killed(world: &World, step: Step, write: usize, when: When, expected: &Left) -> Result<bool> {
    let wire = Tripwire::default();
    let first = world.start_victim(&format!("first-{write}-{when:?}"), wire.armed_later(write, when)).await?;
    if step != Step::Creation {
        begin(world).await?;
    }
    wire.arm();
    take(world, step).await?;
    let met = tokio::select! {
        () = wire.tripped() => true,
        done = settled(world, step) => { done?; false }
    };
    first.kill().await?;
    let second = world.start(&format!("second-{write}-{when:?}"));
    world
        .eventually("the same is left", 3 * MINUTE, || async {
            let found = left(world).await?;
            Ok(if found == *expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) })
        })
        .await?;
    oracle::check(world).await?;
    end(world).await?;
    second.stop().await;
    Ok(met)
}

/// The job runs.
async fn begin(world: &World) -> Result<()> {
    world.submit(&job(NAME, 32)).await?;
    world.phase(NAME, JobPhase::Running, 3 * MINUTE).await?;
    Ok(())
}

/// Does what the step is about.
async fn take(world: &World, step: Step) -> Result<()> {
    match step {
        Step::Creation => {
            world.submit(&job(NAME, 32)).await?;
        }
        Step::Recovery => {
            let pods = live(world).await?;
            let pod = pods.first().context("a pod")?;
            world.fleet.crash_container(&world.namespace, &pod.name_any(), 1).await?;
        }
        Step::Suspension => {
            world.patch_job(NAME, &json!({ "spec": { "suspend": true } })).await?;
        }
        Step::Resize => {
            world.patch_job(NAME, &json!({ "spec": { "parallelism": { "data": 16 } } })).await?;
        }
        Step::Deletion => {
            world.api::<TrainingJob>().delete(NAME, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}

/// Waits until an undisturbed step is done.
async fn settled(world: &World, step: Step) -> Result<()> {
    let (phase, generation, pods) = match step {
        Step::Creation => ("Running", Some(1), 4),
        Step::Recovery => ("Running", Some(2), 4),
        Step::Suspension => ("Suspended", None, 0),
        Step::Resize => ("Running", Some(2), 2),
        Step::Deletion => ("", None, 0),
    };
    world
        .eventually("the step is done", 3 * MINUTE, || async {
            let there = world.api::<TrainingJob>().get_opt(NAME).await?;
            let status = there.as_ref().and_then(|job| job.status.clone()).unwrap_or_default();
            let at = status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
            let found = (at.as_str(), status.generation, world.pods().await?.len());
            let done = found == (phase, generation, pods) && (step != Step::Deletion || there.is_none());
            Ok(if done { Ok(()) } else { Err(format!("{found:?}: {:?}", status.message)) })
        })
        .await
}

/// The job's words and its pods.
async fn left(world: &World) -> Result<Left> {
    let job = world.api::<TrainingJob>().get_opt(NAME).await?;
    let words = job.and_then(|job| job.status).map_or("nothing".to_owned(), |status| {
        format!(
            "{:?} {:?} {:?} generation {:?} restarts {} gpus {} {:?}",
            status.phase,
            status.reason,
            status.message,
            status.generation,
            status.restarts,
            status.gpus,
            status.units
        )
    });
    let label = |pod: &Pod, name: &str| pod.labels().get(name).cloned().unwrap_or_default();
    let seen =
        |pod: &Pod| (label(pod, labels::UNIT), label(pod, labels::INCARNATION), phase_of(pod).to_owned());
    let mut pods: Vec<_> = world.pods().await?.iter().map(seen).collect();
    pods.sort();
    Ok((words, pods))
}

/// Nothing is left.
async fn end(world: &World) -> Result<()> {
    if world.api::<TrainingJob>().get_opt(NAME).await?.is_some() {
        delete(world, NAME).await?;
    }
    ensure!(world.pods().await?.is_empty(), "pods are left");
    Ok(())
}
