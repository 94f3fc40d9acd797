//! The files of `examples/`, applied as users apply them.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use muster_api::topology::TOPOLOGY_NAME;
use muster_api::{JobPhase, Topology};
use muster_playground::demo::examples::{ADMIN, Example, IMPOSSIBLE, JOBS};
use serde_json::json;
use std::time::Duration;

use super::basics::reason;
use crate::{World, oracle};

const MINUTE: Duration = Duration::from_secs(60);

/// Every file is accepted, each job runs at the same time as the others, and the impossible one says why it does not.
pub async fn examples_do_what_they_say(world: &World) -> Result<()> {
    let mut made = Vec::new();
    let outcome = run(world, &mut made).await;
    // These belong to no namespace: other scenarios would see them.
    for example in made {
        example.delete(&world.admin).await?;
    }
    outcome
}

async fn run(world: &World, made: &mut Vec<&'static Example>) -> Result<()> {
    for example in ADMIN {
        let mut object = example.object()?;
        // The scenario has a namespace of its own instead of "research".
        if let Some(names) = object.data.pointer_mut("/spec/namespaces/names") {
            *names = json!([world.namespace]);
        }
        if example.create_as(&world.admin, object).await? {
            made.push(example);
        }
    }
    let operator = world.start("one");
    for example in JOBS.iter().chain([&IMPOSSIBLE]) {
        let mut object = example.object()?;
        object.metadata.namespace = Some(world.namespace.clone());
        ensure!(example.create_as(&world.admin, object).await?, "{}: there is one already", example.file);
    }
    for example in JOBS {
        let name = example.name()?;
        // One ends by itself and frees nothing that another needs: it may have run already.
        let ends = example.object()?.data["spec"]["template"]["metadata"]["annotations"].is_object();
        let phase = if ends { JobPhase::Succeeded } else { JobPhase::Running };
        let job = world.phase(&name, phase, 3 * MINUTE).await?;
        ensure!(job.status.unwrap_or_default().restarts == 0, "{}: it restarted", example.file);
    }
    let status = reason(world, &IMPOSSIBLE.name()?).await?.status.unwrap_or_default();
    ensure!(status.reason.as_deref() == Some("SegmentTooLarge"), "{status:?}");
    let of_it = |pod: &k8s_openapi::api::core::v1::Pod| pod.name_any().starts_with("too-deep");
    ensure!(!world.pods().await?.iter().any(of_it), "an impossible job has pods");
    oracle::check(world).await?;
    topology_says_what_labels_make_of_it(world).await?;
    operator.stop().await;
    Ok(())
}

/// The status of the Topology counts its domains, and names a node whose labels contradict those of its neighbours.
async fn topology_says_what_labels_make_of_it(world: &World) -> Result<()> {
    ready(world, "True", "agree").await?;
    let object: Api<Topology> = Api::all(world.admin.clone());
    let status = object.get(TOPOLOGY_NAME).await?.status.unwrap_or_default();
    ensure!(status.levels.as_deref() == Some("Zone > Block > Rack > NvlinkDomain"), "{:?}", status.levels);
    ensure!(status.nodes == 46, "{} nodes with accelerators instead of 46", status.nodes);
    // One of the 18 nodes of a rack says that the rack is in another block.
    let labels = json!({ "metadata": { "labels": { "fabric.topograph.run/tier-1": "block-2" } } });
    let nodes: Api<Node> = Api::all(world.admin.clone());
    nodes.patch("nvl-a-18", &PatchParams::default(), &Patch::Merge(&labels)).await?;
    ready(world, "False", "nvl-a-18").await
}

/// Waits until the Topology's condition Ready has this status and names this.
async fn ready(world: &World, wanted: &str, word: &str) -> Result<()> {
    let object: Api<Topology> = Api::all(world.admin.clone());
    world
        .eventually(&format!("the Topology Ready={wanted}"), MINUTE, || async {
            let status = object.get(TOPOLOGY_NAME).await?.status.unwrap_or_default();
            let condition = status.conditions.iter().find(|condition| condition.type_ == "Ready");
            let holds = condition.is_some_and(|c| c.status == wanted && c.message.contains(word));
            Ok(if holds { Ok(()) } else { Err(format!("{condition:?}")) })
        })
        .await
}
