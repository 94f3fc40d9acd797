//! Node objects without kubelets.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Makes `count` Ready nodes with `gpus` H100 each and room for that many pods of [`crate::case::template`].
pub async fn create(admin: &Client, count: usize, gpus: u32) -> Result<()> {
    let nodes: Api<Node> = Api::all(admin.clone());
    futures::stream::iter(0..count)
        .map(|index| one(&nodes, index, gpus))
        .buffer_unordered(crate::CONCURRENCY)
        .try_collect::<Vec<()>>()
        .await
        .map(|_| ())
}

async fn one(nodes: &Api<Node>, index: usize, gpus: u32) -> Result<()> {
    let name = format!("node-{index:04}");
    let node: Node = serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" },
        },
    }))?;
    nodes.create(&PostParams::default(), &node).await.with_context(|| format!("node {name}"))?;
    let room = json!({ "cpu": "256", "memory": "4Ti", "pods": "110", "nvidia.com/gpu": gpus.to_string() });
    let status = json!({ "status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "an object without a kubelet",
        }],
    }});
    nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}
