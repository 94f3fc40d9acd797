//! A live cluster as the ground: lists only, nothing is ever written.
//!
//! ```text
//!   API server ──lists, page by page──▶ World (classes, queues, priorities, quotas) · Nodes · Gangs · Pods
//!                                         └─ core::read_gang, convert, PodFacts: as `muster run` ──▶ Ground
//! ```

use anyhow::bail;
use k8s_openapi::api::{core::v1::ResourceQuota, scheduling::v1::PriorityClass};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use muster_api::{AcceleratorClass, Gang as Object, GangPlan, Queue, Topology, topology::TOPOLOGY_NAME};
use muster_cluster::{
    PodFacts, convert,
    seen::{SeenNode, SeenPod},
};
use muster_core::{plan_part, read_gang};
use muster_model::{Gang, GangState, ObjectKey};
use serde::de::DeserializeOwned;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use super::place::Ground;

/// Objects of one answer: what the API server reads from etcd at once, and what client-go asks for.
const PAGE: u32 = 500;
/// HTTP: there is no such kind.
const NOT_FOUND: u16 = 404;
/// HTTP: the pages' common moment is forgotten.
const GONE: u16 = 410;
pub const FORBIDDEN: u16 = 403;
const UNAUTHORIZED: u16 = 401;
/// Sentences of one kind that are passed on; the others are counted.
const MOST_WARNINGS: usize = 5;

/// Reads everything that a placement depends on.
///
/// # Errors
/// When the server does not answer or refuses a list: with the kind and what to do.
pub async fn read(client: &Client) -> anyhow::Result<Ground> {
    let mut ground = Ground::default();
    world(client, &mut ground).await?;
    nodes(client, &mut ground).await?;
    gangs(client, &mut ground).await?;
    let api = Api::<SeenPod>::all(client.clone());
    let pods = all(&api, ListParams::default(), |pod| PodFacts::of(&pod.0)).await;
    let mut warnings = Vec::new();
    for (facts, of_pod) in pods.map_err(refused::<SeenPod>)? {
        warnings.extend(of_pod);
        ground.cluster.set_pod(facts);
    }
    pass_on(&mut ground.notes, warnings);
    Ok(ground)
}

/// What jobs are judged by.
async fn world(client: &Client, ground: &mut Ground) -> anyhow::Result<()> {
    for topology in installed::<Topology>(client, &mut ground.notes).await?.unwrap_or_default() {
        if topology.name_any() == TOPOLOGY_NAME {
            let levels = topology.spec.to_model();
            ground.cluster.set_topology(levels.clone());
            ground.topology = Some(levels);
        }
    }
    for class in installed::<AcceleratorClass>(client, &mut ground.notes).await?.unwrap_or_default() {
        ground.world.set_class(&class.name_any(), Some(class));
    }
    if let Some(queues) = installed::<Queue>(client, &mut ground.notes).await? {
        ground.queues_known = true;
        for queue in queues {
            ground.world.set_queue(&queue.name_any(), Some(&queue));
        }
    }
    ground.priorities_known = true;
    for class in installed::<PriorityClass>(client, &mut ground.notes).await?.unwrap_or_default() {
        ground.world.set_priority(&class.name_any(), Some(&class));
    }
    match list::<ResourceQuota>(client).await {
        Ok(quotas) => {
            for quota in quotas {
                let key = ObjectKey::new(quota.namespace().unwrap_or_default(), quota.name_any());
                ground.world.set_quota(&key, Some(&quota));
            }
        }
        // Many users may not see those of other namespaces; all the rest of the answer stands without.
        Err(kube::Error::Api(status)) if status.code == FORBIDDEN => {
            ground
                .notes
                .push("resourcequotas cannot be listed with these credentials: quotas are not heeded".into());
        }
        Err(error) => return Err(refused::<ResourceQuota>(error)),
    }
    Ok(())
}

async fn nodes(client: &Client, ground: &mut Ground) -> anyhow::Result<()> {
    let api = Api::<SeenNode>::all(client.clone());
    let nodes = all(&api, ListParams::default(), |node| convert::node(&node.0)).await;
    let mut warnings = Vec::new();
    for (node, of_node) in nodes.map_err(refused::<SeenNode>)? {
        warnings.extend(of_node);
        ground.cluster.set_node(node);
    }
    if ground.cluster.nodes().next().is_none() {
        bail!("it has no nodes to place on; choose another with --context or --kubeconfig");
    }
    ground.world.look_at_nodes(&ground.cluster);
    pass_on(&mut ground.notes, warnings);
    Ok(())
}

/// The gangs: those with a plan hold its nodes, others wait.
async fn gangs(client: &Client, ground: &mut Ground) -> anyhow::Result<()> {
    let objects = installed::<Object>(client, &mut ground.notes).await?.unwrap_or_default();
    let chunks = chunks(client, &objects).await?;
    let mut warnings = Vec::new();
    for object in objects {
        let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
        // Where volumes are decides where a gang goes, not where it is.
        let waits = object.status.as_ref().is_none_or(|status| status.plan.is_none());
        let roles = if waits { &object.spec.roles[..] } else { &[] };
        // What cannot be read is said with its field by whoever reads the template.
        for spec in roles.iter().filter_map(|role| role.template.pod_spec().ok()) {
            ground.volumes.look_up(client, &key.namespace, &spec, &mut ground.notes).await?;
        }
        let learned = ground.volumes.learned(&key.namespace, roles);
        let gang = learned.and_then(|learned| {
            read_gang(&ground.world, object, &chunks, &|role| learned.get(role).cloned())
        });
        match gang {
            Ok(Some(gang)) => take_gang(ground, gang),
            Ok(None) => {}
            Err(reason) => {
                warnings.push(format!("Gang {key}: {reason}; its pods are counted where they are"));
            }
        }
    }
    pass_on(&mut ground.notes, warnings);
    Ok(())
}

fn take_gang(ground: &mut Ground, gang: Gang) {
    ground.since = ground.since.max(gang.since + 1);
    if gang.state == GangState::Waiting {
        ground.waiting.push(gang);
    } else {
        ground.held.insert(gang.key.clone());
        ground.cluster.set_gang(gang);
    }
}

/// Parts of large plans, by name, of the namespaces that have such.
async fn chunks(client: &Client, gangs: &[Object]) -> anyhow::Result<BTreeMap<String, String>> {
    let large = |gang: &&Object| {
        gang.status
            .as_ref()
            .and_then(|status| status.plan.as_ref())
            .is_some_and(|plan| !plan.chunks.is_empty())
    };
    let namespaces: BTreeSet<String> =
        gangs.iter().filter(large).filter_map(ResourceExt::namespace).collect();
    let mut chunks = BTreeMap::new();
    for namespace in namespaces {
        let api = Api::<GangPlan>::namespaced(client.clone(), &namespace);
        let parts = all(&api, ListParams::default(), plan_part).await;
        chunks.extend(parts.map_err(refused::<GangPlan>)?.into_iter().flatten());
    }
    Ok(chunks)
}

/// All objects of a kind, or `None` and a note where the cluster does not know the kind.
async fn installed<K>(client: &Client, notes: &mut Vec<String>) -> anyhow::Result<Option<Vec<K>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match list::<K>(client).await {
        Ok(objects) => Ok(Some(objects)),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
            notes.push(format!(
                "the cluster does not know the kind {}: its CustomResourceDefinition is not installed, and it counts as \
                 having none",
                K::kind(&())
            ));
            Ok(None)
        }
        Err(error) => Err(refused::<K>(error)),
    }
}

async fn list<K>(client: &Client) -> Result<Vec<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    all(&Api::<K>::all(client.clone()), ListParams::default(), |object| object).await
}

/// All objects of a list, page by page, each taken down to what is needed.
async fn all<K, T>(api: &Api<K>, params: ListParams, take: impl Fn(K) -> T) -> Result<Vec<T>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = params.clone().limit(PAGE);
    let mut taken = Vec::new();
    loop {
        let list = match api.list(&page).await {
            // The pages took longer than the server remembers: once more, in one piece.
            Err(kube::Error::Api(status)) if status.code == GONE && page.continue_token.is_some() => {
                page = params.clone();
                taken.clear();
                continue;
            }
            list => list?,
        };
        taken.extend(list.items.into_iter().map(&take));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(taken),
        }
    }
}

/// Why a list failed, and what to do.
fn refused<K: Resource<DynamicType = ()>>(error: kube::Error) -> anyhow::Error {
    let plural = K::plural(&());
    let code = match &error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    };
    let advice = match code {
        UNAUTHORIZED => {
            "the credentials are not accepted; log in again, or choose others with --context or --kubeconfig"
                .to_owned()
        }
        FORBIDDEN => format!(
            "ask for a ClusterRole with `list` on {plural}{}, or choose other credentials with --context or --kubeconfig",
            match K::group(&()) {
                group if group.is_empty() => String::new(),
                group => format!(".{group}"),
            }
        ),
        _ => "check that --kubeconfig and --context name a cluster that answers".to_owned(),
    };
    anyhow::Error::new(error).context(format!("{plural} cannot be listed ({advice})"))
}

/// Adds the first of many sentences to the notes, and counts the others.
fn pass_on(notes: &mut Vec<String>, warnings: Vec<String>) {
    let more = warnings.len().saturating_sub(MOST_WARNINGS);
    notes.extend(warnings.into_iter().take(MOST_WARNINGS));
    if more > 0 {
        notes.push(format!("and {more} more of this sort"));
    }
}
