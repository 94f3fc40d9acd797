//! What is in the cluster now, as a map and as rows of ranks.
//!
//! ```text
//!   Nodes, Gangs (their plans), Pods ──read──▶ Seen ──map──▶ cluster::map::MapInput
//!                                                  └─ranks──▶ rank → pod → node → domain
//! ```

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use muster_api::accelerator_class::NVIDIA_GPU;
use muster_api::{Gang, Topology, labels, plan_codec};
use muster_cluster::convert;
use muster_cluster::map::{Claim, MapInput, MapJob};
use std::collections::{BTreeMap, BTreeSet};

use super::examples;

/// The level whose domains the ranks are shown in.
const DOMAIN: &str = "NvlinkDomain";

/// The objects that the demo looks at.
pub struct Seen {
    /// Nodes with GPUs.
    pub nodes: Vec<Node>,
    /// Gangs, the examples first and in their order.
    pub gangs: Vec<Gang>,
    /// All pods.
    pub pods: Vec<Pod>,
}

/// A pod of a job and its ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankRow {
    /// First rank.
    pub first: u32,
    /// Last rank.
    pub last: u32,
    /// Unit of the pod.
    pub unit: u32,
    /// Name of the pod.
    pub pod: String,
    /// Its node.
    pub node: String,
    /// The node's NVLink domain: the node itself where no label names one.
    pub domain: String,
    /// The node's rack, if it has one.
    pub rack: String,
}

impl Seen {
    /// Reads the cluster.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn read(client: &Client) -> Result<Self> {
        let all = ListParams::default();
        let (nodes, gangs, pods): (Api<Node>, Api<Gang>, Api<Pod>) =
            (Api::all(client.clone()), Api::all(client.clone()), Api::all(client.clone()));
        let (nodes, gangs, pods) = tokio::try_join!(nodes.list(&all), gangs.list(&all), pods.list(&all))
            .context("the cluster cannot be read")?;
        let mut seen = Self { nodes: nodes.items, gangs: gangs.items, pods: pods.items };
        seen.nodes.retain(|node| convert::node(node).0.allocatable.get(NVIDIA_GPU) > 0);
        let order: Vec<String> = examples::JOBS.iter().filter_map(|example| example.name().ok()).collect();
        let position =
            |gang: &Gang| order.iter().position(|name| *name == gang.name_any()).unwrap_or(order.len());
        seen.gangs.sort_by_key(|gang| (position(gang), gang.namespace(), gang.name_any()));
        Ok(seen)
    }

    /// Who holds which GPU: jobs by their plans, others by their pods.
    ///
    /// # Errors
    /// When a plan cannot be read.
    pub fn map(&self, topology: &Topology) -> Result<MapInput> {
        let devices = BTreeSet::from([NVIDIA_GPU.to_owned()]);
        let nodes: Vec<_> = self.nodes.iter().map(|node| convert::node(node).0).collect();
        let mut claims = Vec::new();
        let mut jobs = Vec::new();
        for (at, gang) in self.gangs.iter().enumerate() {
            let mine = planned(gang)?;
            let gpus: i64 = mine.iter().map(|(_, count)| count).sum();
            let on: BTreeSet<&str> = mine.iter().map(|(node, _)| node.as_str()).collect();
            jobs.push(MapJob {
                name: shown(gang),
                note: format!("{} on {}", counted(gpus, "GPU"), counted(on.len() as i64, "node")),
            });
            for (name, count) in &mine {
                if let Some(node) = nodes.iter().find(|node| node.name.as_str() == name) {
                    claims.push(Claim { node: node.name.clone(), devices: *count, job: Some(at) });
                }
            }
        }
        for pod in self.pods.iter().filter(|pod| !of_gang(pod) && !ended(pod)) {
            let on = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            if let Some(node) = nodes.iter().find(|node| Some(node.name.as_str()) == on) {
                claims.push(Claim { node: node.name.clone(), devices: gpus_of(pod), job: None });
            }
        }
        Ok(MapInput::new(&topology.spec.to_model(), &nodes, &devices, &claims, jobs))
    }

    /// The pods of a job with their ranks, by rank. Pods that are leaving are left out.
    pub fn ranks(&self, job: &str, topology: &Topology) -> Vec<RankRow> {
        let levels = topology.spec.to_model();
        let at = |node: &str, level: &str| {
            let labels = &self.nodes.iter().find(|one| one.name_any() == node)?.metadata.labels;
            levels.label(levels.level(level)?, labels.as_ref()?).map(str::to_owned)
        };
        let row = |pod: &Pod| {
            let node = pod.spec.as_ref()?.node_name.clone()?;
            let first = number(pod, "MUSTER_RANK_START")?;
            Some(RankRow {
                first,
                last: first + number(pod, "MUSTER_RANKS_PER_POD")?.max(1) - 1,
                unit: pod.labels().get(labels::UNIT)?.parse().ok()?,
                pod: pod.name_any(),
                domain: at(&node, DOMAIN).unwrap_or_else(|| node.clone()),
                rack: at(&node, "Rack").unwrap_or_default(),
                node,
            })
        };
        let mut rows: Vec<RankRow> = self
            .pods
            .iter()
            .filter(|pod| pod.labels().get(labels::JOB).is_some_and(|name| name == job))
            .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !ended(pod))
            .filter_map(row)
            .collect();
        rows.sort();
        rows
    }

    /// Domains of each unit of a job.
    pub fn domains(rows: &[RankRow]) -> BTreeMap<u32, BTreeSet<&str>> {
        let mut domains: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
        for row in rows {
            domains.entry(row.unit).or_default().insert(&row.domain);
        }
        domains
    }
}

/// "1 GPU", "3 GPUs".
pub fn counted(count: i64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

/// Name of a gang as the map shows it: without the demo's own namespace.
fn shown(gang: &Gang) -> String {
    match gang.namespace() {
        Some(namespace) if namespace != super::stage::RESEARCH => format!("{namespace}/{}", gang.name_any()),
        _ => gang.name_any(),
    }
}

/// Nodes that a gang's plan holds, and how many GPUs on each; a node occurs once a pod.
fn planned(gang: &Gang) -> Result<Vec<(String, i64)>> {
    let Some(status) = &gang.status else { return Ok(Vec::new()) };
    let Some(plan) = status.plan.as_ref().filter(|_| !status.phase.unwrap_or_default().is_final()) else {
        return Ok(Vec::new());
    };
    if !plan.chunks.is_empty() {
        // Thousands of nodes, in ConfigMaps: no gang on the demo's nodes is that large.
        return Ok(Vec::new());
    }
    let plan = plan_codec::decode(plan, &BTreeMap::new())
        .with_context(|| format!("the plan of gang {} cannot be read", gang.name_any()))?;
    let devices = |role: &str| {
        gang.spec.roles.iter().find(|one| one.name == role).map_or(0, |role| i64::from(role.devices))
    };
    let units = plan.units.iter().flat_map(|unit| {
        let count = devices(&unit.placed.id.role);
        unit.placed.nodes.iter().map(move |node| (node.to_string(), count))
    });
    let spares = plan
        .spares
        .iter()
        .flat_map(|(role, nodes)| nodes.iter().map(move |node| (node.to_string(), devices(role))));
    Ok(units.chain(spares).collect())
}

/// Whether a pod belongs to a gang, and so is counted through its plan.
fn of_gang(pod: &Pod) -> bool {
    let gang = |owner: &OwnerReference| owner.kind == "Gang" && owner.controller == Some(true);
    pod.owner_references().iter().any(gang)
}

/// Whether a pod has ended.
fn ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// GPUs that a pod asks for.
fn gpus_of(pod: &Pod) -> i64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked =
        containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref()?.get(NVIDIA_GPU));
    asked.filter_map(|quantity| quantity.0.parse::<i64>().ok()).sum()
}

/// A number of a pod's environment.
fn number(pod: &Pod, name: &str) -> Option<u32> {
    let containers = &pod.spec.as_ref()?.containers;
    let mut set = containers.iter().flat_map(|container| container.env.iter().flatten());
    set.find(|one| one.name == name)?.value.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn seen() -> Seen {
        let node = |name: &str, clique: Option<&str>| -> Node {
            serde_json::from_value(json!({
                "metadata": { "name": name, "labels": clique.map(|c| json!({ "nvidia.com/gpu.clique": c })) },
                "status": { "allocatable": { "nvidia.com/gpu": "4" },
                            "conditions": [{ "type": "Ready", "status": "True" }] },
            }))
            .expect("a node")
        };
        let pod = |name: &str, node: &str, start: &str, leaving: bool| -> Pod {
            let mut pod = json!({
                "metadata": { "name": name, "labels": { "muster.dev/job": "moe", "muster.dev/unit": "0" } },
                "spec": { "nodeName": node, "containers": [{ "name": "trainer", "env": [
                    { "name": "MUSTER_RANK_START", "value": start }, { "name": "MUSTER_RANKS_PER_POD", "value": "4" },
                ] }] },
            });
            if leaving {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            serde_json::from_value(pod).expect("a pod")
        };
        Seen {
            nodes: vec![node("n1", Some("c.1")), node("n2", Some("c.1")), node("n3", None)],
            gangs: Vec::new(),
            pods: vec![pod("b", "n3", "4", false), pod("a", "n1", "0", false), pod("old", "n2", "4", true)],
        }
    }

    #[test]
    fn ranks_come_in_order_with_their_domains_and_without_leaving_pods() {
        let topology = examples::topology().expect("a topology");
        let seen = seen();
        let rows = seen.ranks("moe", &topology);
        let short: Vec<_> = rows.iter().map(|row| (row.first, row.last, &*row.pod, &*row.domain)).collect();
        assert_eq!(short, [(0, 3, "a", "c.1"), (4, 7, "b", "n3")]);
        assert_eq!(Seen::domains(&rows)[&0].len(), 2);
        assert!(seen.ranks("other", &topology).is_empty());
    }

    #[test]
    fn the_map_shows_plans_and_foreign_pods() {
        let mut seen = seen();
        seen.pods = vec![
            serde_json::from_value(json!({
                "metadata": { "name": "foreign" },
                "spec": { "nodeName": "n2", "containers": [
                    { "name": "c", "resources": { "limits": { "nvidia.com/gpu": "1" } } }] },
            }))
            .expect("a pod"),
        ];
        seen.gangs = vec![
            serde_json::from_value(json!({
                "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
                "metadata": { "name": "moe", "namespace": "research" },
                "spec": { "roles": [{ "name": "worker", "devices": 4, "units": { "min": 1, "max": 1 },
                                      "template": { "spec": { "containers": [] } } }] },
                "status": { "phase": "Running", "plan": { "generation": 1, "pods": 1, "runs": [
                    { "role": "worker", "units": "0", "incarnation": 1, "nodes": "n1" }] } },
            }))
            .expect("a gang"),
        ];
        let map = seen.map(&examples::topology().expect("a topology")).expect("a map");
        let text = muster_cluster::map::render(&map, 60, false);
        assert!(text.contains("AAAA #..."), "{text}");
        assert!(text.contains("A  moe  4 GPUs on 1 node"), "{text}");
    }
}
