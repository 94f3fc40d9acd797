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

/// The objects that the invariants speak of, as they were at one moment.
#[derive(Default)]
pub struct Objects {
    /// The cluster's Topology, if it was given.
    pub topology: Option<Topology>,
    /// All of them.
    pub nodes: Vec<Node>,
    /// All of them.
    pub classes: Vec<AcceleratorClass>,
    /// All of them.
    pub queues: Vec<Queue>,
    /// Those that hold parts of large plans.
    pub parts: Vec<GangPlan>,
    /// All of them.
    pub gangs: Vec<Gang>,
    /// All of them.
    pub pods: Vec<Pod>,
}

/// Asks for them; the lists follow each other, so what moves meanwhile may be seen twice.
async fn ask(world: &World) -> Result<Objects> {
    async fn all<K>(api: Api<K>, params: &ListParams) -> Result<Vec<K>>
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        Ok(api.list(params).await?.items)
    }
    let (client, everything) = (|| world.admin.clone(), ListParams::default());
    Ok(Objects {
        topology: Api::all(client()).get_opt(TOPOLOGY_NAME).await?,
        nodes: all(Api::all(client()), &everything).await?,
        classes: all(Api::all(client()), &everything).await?,
        queues: all(Api::all(client()), &everything).await?,
        parts: all(Api::all(client()), &everything).await?,
        gangs: all(Api::all(client()), &everything).await?,
        pods: all(Api::all(client()), &everything).await?,
    })
}

/// The whole cluster as the oracle wants it.
pub async fn snapshot(world: &World) -> Result<Snapshot> {
    snapshot_of(ask(world).await?)
}

/// These objects as the oracle wants them.
///
/// # Errors
/// When a plan cannot be read, or a gang that holds one is not valid.
pub fn snapshot_of(objects: Objects) -> Result<Snapshot> {
    let mut cluster = Cluster::new();
    let topology = objects.topology.map_or_else(Default::default, |object| object.spec.to_model());
    let mut snapshot = Snapshot { topology, ..Snapshot::default() };
    for object in &objects.nodes {
        let (node, _) = convert::node(object);
        cluster.set_node(node.clone());
        snapshot.nodes.push(node);
    }
    let mut known = Known::default();
    for class in objects.classes {
        known.set_class(&class.name_any(), Some(class.clone()));
    }
    for queue in &objects.queues {
        known.set_queue(&queue.name_any(), Some(queue));
    }
    known.look_at_nodes(&cluster);
    let chunks: BTreeMap<String, String> = objects.parts.into_iter().filter_map(plan_part).collect();
    for object in objects.gangs {
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
    for object in &objects.pods {
        add_pod(&mut snapshot, &PodFacts::of(object).0);
    }
    Ok(snapshot)
}

fn add_pod(snapshot: &mut Snapshot, pod: &PodFacts) {
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

/// Fails when an invariant is broken.
pub async fn check(world: &World) -> Result<Snapshot> {
    let snapshot = snapshot(world).await?;
    let violations = muster_check::check(&snapshot);
    if let Some(first) = violations.first() {
        bail!("{} invariants are broken; the first: {first}", violations.len());
    }
    Ok(snapshot)
}
