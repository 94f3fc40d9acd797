//! The live objects, judged by the oracle that shares no code with the engine.

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::ResourceExt;
use kube::api::ListParams;
use muster_api::plan_codec;
use muster_api::topology::TOPOLOGY_NAME;
use muster_api::{AcceleratorClass, Gang, GangPhase, GangPlan, Queue, Topology};
use muster_check::{PodView, Snapshot, Use};
use muster_cluster::{Cluster, PodFacts, convert};
use muster_core::{World as Known, plan_part};
use muster_model::GangState;
use std::collections::BTreeMap;

use crate::World;

/// The whole cluster as the oracle wants it.
pub async fn snapshot(world: &World) -> Result<Snapshot> {
    let everything = ListParams::default();
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let mut cluster = Cluster::new();
    let given = Api::<Topology>::all(world.admin.clone()).get_opt(TOPOLOGY_NAME).await?;
    let topology = given.map_or_else(Default::default, |object| object.spec.to_model());
    let mut snapshot = Snapshot { topology, ..Snapshot::default() };
    for object in nodes.list(&everything).await? {
        let (node, _) = convert::node(&object);
        cluster.set_node(node.clone());
        snapshot.nodes.push(node);
    }
    let mut known = Known::default();
    for class in Api::<AcceleratorClass>::all(world.admin.clone()).list(&everything).await? {
        known.set_class(&class.name_any(), Some(class.clone()));
    }
    for queue in Api::<Queue>::all(world.admin.clone()).list(&everything).await? {
        known.set_queue(&queue.name_any(), Some(&queue));
    }
    known.look_at_nodes(&cluster);
    let chunks: BTreeMap<String, String> = Api::<GangPlan>::all(world.admin.clone())
        .list(&everything)
        .await?
        .items
        .into_iter()
        .filter_map(plan_part)
        .collect();
    for object in Api::<Gang>::all(world.admin.clone()).list(&everything).await? {
        let status = object.status.clone().unwrap_or_default();
        let phase = status.phase.unwrap_or_default();
        let holds = matches!(phase, GangPhase::Placed | GangPhase::Running | GangPhase::Reserved);
        let mut gang = match known.request(&object, &|_| None, 0) {
            Ok(gang) => gang,
            Err(reason) if holds => bail!("{} holds a plan and is not valid: {reason}", object.name_any()),
            Err(_) => continue,
        };
        gang.state = match status.plan.filter(|_| holds) {
            Some(plan) => GangState::Holding(plan_codec::decode(&plan, &chunks)?),
            None => GangState::Inactive,
        };
        snapshot.gangs.push(gang);
    }
    for object in Api::<Pod>::all(world.admin.clone()).list(&everything).await? {
        let (pod, _) = PodFacts::of(&object);
        match (&pod.gang, &pod.slot) {
            (Some(gang), Some(slot)) => snapshot.pods.push(PodView {
                uid: pod.uid.0.clone(),
                name: pod.key.to_string(),
                node: pod.node.clone(),
                gang: gang.clone(),
                unit: slot.unit.clone(),
                incarnation: slot.incarnation,
                index: slot.index,
                terminal: pod.terminal(),
                leaving: pod.leaving,
                requests: pod.requests.clone(),
            }),
            _ => {
                if let (Some(node), false) = (pod.node.clone(), pod.terminal()) {
                    let (requests, repels) = (pod.requests.clone(), pod.repels.clone());
                    snapshot.uses.insert(pod.uid.0.clone(), Use { node, requests, repels });
                }
            }
        }
    }
    Ok(snapshot)
}

/// Fails when an invariant is broken.
pub async fn check(world: &World) -> Result<Snapshot> {
    let snapshot = snapshot(world).await?;
    let violations = muster_check::check(&snapshot);
    if let Some(first) = violations.first() {
        bail!("{} invariants are broken; the first: {first}", violations.len());
    }
    Ok(snapshot)
}
