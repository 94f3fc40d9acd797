//! Where the nodes come from: manifests, a short form, or a generator.
//!
//! ```text
//!   Node, Pod manifests ─┐
//!   short form ──────────┼──▶ Inventory: a muster_cluster::Cluster
//!   --generate ──────────┘
//! ```

use anyhow::{anyhow, bail};
use k8s_openapi::api::core::v1 as core;
use muster_api::{accelerator_class::PRODUCT_LABEL, catalogue};
use muster_cluster::{Cluster, PodFacts, convert};
use muster_model::{Node, Resources, Taint, Uid, quantity, resources};
use serde::Deserialize;
use std::{collections::BTreeMap, str::FromStr};

use super::yaml::Document;

/// More nodes than any cluster of Kubernetes has; a larger number is a typing mistake.
const MOST_NODES: u32 = 200_000;
/// Labels of generated nodes: those that NVIDIA's tools write.
const BLOCK_LABEL: &str = "network.topology.nvidia.com/spine";
const RACK_LABEL: &str = "network.topology.nvidia.com/leaf";
const CLIQUE_LABEL: &str = "nvidia.com/gpu.clique";

/// The nodes, and what pods use of them already.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Nodes, and pods on them.
    pub cluster: Cluster,
}

impl Inventory {
    fn add(&mut self, node: Node, place: &str) -> anyhow::Result<()> {
        if self.cluster.node(&node.name).is_some() {
            bail!("{place}: there are two nodes named {}; rename or remove one", node.name);
        }
        self.cluster.set_node(node);
        Ok(())
    }

    /// Takes in one document: a Node, a Pod or a list in the short form.
    ///
    /// # Errors
    /// The place and field that is wrong.
    pub fn take(&mut self, document: &Document) -> anyhow::Result<()> {
        match document.kind() {
            Some("Node") => self.take_node(document),
            Some("Pod") => self.take_pod(document),
            Some(_) => Err(document.error(
                "kind",
                "this describes no nodes",
                "give Node or Pod manifests here, and jobs with --job",
            )),
            None => {
                let entries = document.elements().ok_or_else(|| {
                    document.error("kind", "it is missing", "give Node manifests, or a list of entries such as - {count: 18, name: \"rack-a-%02d\", gpus: 4}")
                })?;
                entries.iter().try_for_each(|entry| self.take_short(entry))
            }
        }
    }

    fn take_node(&mut self, document: &Document) -> anyhow::Result<()> {
        let object: core::Node = document.typed()?;
        if object.metadata.name.is_none() {
            return Err(document.error("metadata.name", "it is missing", "name the node"));
        }
        let status = object.status.as_ref();
        if status.is_none_or(|status| status.allocatable.is_none() && status.capacity.is_none()) {
            return Err(document.error(
                "status.allocatable",
                "it is missing",
                "say what pods may use, such as {cpu: 64, memory: 512Gi, nvidia.com/gpu: 8}",
            ));
        }
        // A manifest written by hand has no conditions; such a node is meant to be ready.
        let unreported = status.is_none_or(|status| status.conditions.as_ref().is_none_or(Vec::is_empty));
        let (mut node, warnings) = convert::node(&object);
        node.ready |= unreported;
        match warnings.first() {
            Some(warning) => {
                Err(document.error("status.allocatable", warning, "write a quantity such as 500m, 8 or 64Gi"))
            }
            None => self.add(node, &document.place()),
        }
    }

    fn take_pod(&mut self, document: &Document) -> anyhow::Result<()> {
        let mut object: core::Pod = document.typed()?;
        object.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        let (mut pod, warnings) = PodFacts::of(&object);
        if pod.uid.0.is_empty() {
            // A manifest written by hand has no UID.
            pod.uid = Uid(if pod.key.name.is_empty() { document.place() } else { pod.key.to_string() });
        }
        if let Some(warning) = warnings.first().filter(|_| pod.node.is_some() && !pod.terminal()) {
            return Err(document.error("spec", warning, "write a quantity such as 500m, 8 or 64Gi"));
        }
        self.cluster.set_pod(pod);
        Ok(())
    }

    fn take_short(&mut self, entry: &Document) -> anyhow::Result<()> {
        let short: Short = entry.typed()?;
        if short.count > MOST_NODES {
            return Err(entry.error(
                "count",
                format!("{} nodes are too many", short.count),
                "a cluster has at most 200000",
            ));
        }
        let pattern = Pattern::parse(&short.name);
        if short.count > 1 && pattern.is_none() {
            return Err(entry.error(
                "name",
                format!("{:?} would name all {} nodes alike", short.name, short.count),
                "put %d or %02d where the number goes",
            ));
        }
        let allocatable = short.allocatable(entry)?;
        for at in short.first..short.first.saturating_add(short.count) {
            let name = pattern.as_ref().map_or_else(|| short.name.clone(), |pattern| pattern.name(at));
            let mut labels = short.labels.clone();
            if let Some(product) = &short.product {
                labels.insert(PRODUCT_LABEL.to_owned(), product.clone());
            }
            let node = Node {
                name: name.into(),
                uid: muster_model::Uid::default(),
                labels,
                taints: short.taints.clone(),
                allocatable: allocatable.clone(),
                ready: short.ready,
                cordoned: short.cordoned,
            };
            self.add(node, &entry.place())?;
        }
        Ok(())
    }
}

/// Equal nodes in one line.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Short {
    #[serde(default = "one")]
    count: u32,
    /// Number of the first node.
    #[serde(default)]
    first: u32,
    /// With `%d` or `%02d` for the number.
    name: String,
    #[serde(default)]
    gpus: u32,
    #[serde(default = "nvidia_gpu")]
    resource: String,
    #[serde(default)]
    product: Option<String>,
    #[serde(default = "cpu")]
    cpu: serde_yaml_ng::Value,
    #[serde(default = "memory")]
    memory: serde_yaml_ng::Value,
    #[serde(default = "pods")]
    pods: u32,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<Taint>,
    #[serde(default = "yes")]
    ready: bool,
    #[serde(default)]
    cordoned: bool,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn nvidia_gpu() -> String {
    muster_api::accelerator_class::NVIDIA_GPU.to_owned()
}

/// Roughly what a node with eight cards has.
fn cpu() -> serde_yaml_ng::Value {
    192.into()
}

fn memory() -> serde_yaml_ng::Value {
    "2Ti".into()
}

/// The kubelet's default.
fn pods() -> u32 {
    110
}

impl Short {
    fn allocatable(&self, entry: &Document) -> anyhow::Result<Resources> {
        let text = |value: &serde_yaml_ng::Value| match value {
            serde_yaml_ng::Value::String(text) => text.clone(),
            other => serde_yaml_ng::to_string(other).unwrap_or_default().trim().to_owned(),
        };
        let bad = |field: &'static str| {
            move |error| entry.error(field, error, "write a quantity such as 500m, 8 or 64Gi")
        };
        let mut all = Resources::of([(resources::PODS, i64::from(self.pods))]);
        all.set(resources::CPU, quantity::parse_milli(&text(&self.cpu)).map_err(bad("cpu"))?);
        all.set(resources::MEMORY, quantity::parse_units(&text(&self.memory)).map_err(bad("memory"))?);
        if self.gpus > 0 {
            all.set(&self.resource, i64::from(self.gpus));
        }
        Ok(all)
    }
}

/// A name with a place for a number: `%d`, or `%02d` for at least two digits.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    before: String,
    digits: usize,
    after: String,
}

impl Pattern {
    fn parse(name: &str) -> Option<Self> {
        let (before, rest) = name.split_once('%')?;
        let (format, after) = rest.split_once('d')?;
        let digits =
            if format.is_empty() { 1 } else { format.strip_prefix('0')?.parse().ok().filter(|n| *n < 20)? };
        Some(Self { before: before.to_owned(), digits, after: after.to_owned() })
    }

    fn name(&self, number: u32) -> String {
        format!("{}{number:0width$}{}", self.before, self.after, width = self.digits)
    }
}

/// A generated cluster: racks of equal nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generate {
    racks: u32,
    nodes: u32,
    gpus: u32,
    blocks: u32,
    class: String,
}

impl FromStr for Generate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        const FORM: &str = "write racks=2,nodes=18,gpus=4, and class=gb200 or blocks=2 if you like";
        let mut all = Self { racks: 0, nodes: 0, gpus: 0, blocks: 1, class: "h100".to_owned() };
        for part in text.split(',') {
            let (key, value) =
                part.split_once('=').ok_or_else(|| anyhow!("{part:?} has no value; {FORM}"))?;
            if key == "class" {
                value.clone_into(&mut all.class);
                continue;
            }
            let number = value.parse().ok().filter(|number| (1..=MOST_NODES).contains(number));
            let number = number.ok_or_else(|| {
                anyhow!("{key} must be a number from 1 to {MOST_NODES}, not {value:?}; {FORM}")
            })?;
            match key {
                "racks" => all.racks = number,
                "nodes" => all.nodes = number,
                "gpus" => all.gpus = number,
                "blocks" => all.blocks = number,
                _ => bail!("{key:?} is unknown; {FORM}"),
            }
        }
        for (key, number) in [("racks", all.racks), ("nodes", all.nodes), ("gpus", all.gpus)] {
            if number == 0 {
                bail!("{key} is missing; {FORM}");
            }
        }
        if all.racks.saturating_mul(all.nodes) > MOST_NODES {
            bail!("racks · nodes is more than {MOST_NODES}; a cluster has fewer nodes");
        }
        if catalogue::get(&all.class).is_none() {
            let names: Vec<&str> = catalogue::all().into_iter().map(|(name, _)| name).collect();
            bail!("class {:?} is not in the catalogue; use one of {}", all.class, names.join(", "));
        }
        Ok(all)
    }
}

impl Generate {
    /// Adds its nodes: `rack-01-00`, `rack-01-01`, … Racks are spread evenly over the blocks; where the class has
    /// NVLink domains of several nodes, a rack is cut into domains of at most so many.
    ///
    /// # Errors
    /// When a node of that name is there already.
    pub fn add_to(&self, inventory: &mut Inventory) -> anyhow::Result<()> {
        let class = catalogue::get(&self.class);
        let product = class
            .as_ref()
            .and_then(|class| class.products.first())
            .map(|name| name.trim_end_matches('*').to_owned());
        let nvlink_nodes = class.map_or(1, |class| class.nvlink_nodes);
        let mut allocatable = Resources::of([
            (resources::CPU, 192_000),
            (resources::MEMORY, 2 << 40),
            (resources::PODS, i64::from(pods())),
        ]);
        allocatable.set(&nvidia_gpu(), i64::from(self.gpus));
        for (rack, at) in (0..self.racks).flat_map(|rack| (0..self.nodes).map(move |at| (rack, at))) {
            let name = format!("rack-{:02}", rack + 1);
            let block = u64::from(rack) * u64::from(self.blocks) / u64::from(self.racks) + 1;
            let mut labels = BTreeMap::from([
                (BLOCK_LABEL.to_owned(), format!("block-{block}")),
                (RACK_LABEL.to_owned(), name.clone()),
            ]);
            if nvlink_nodes > 1 {
                let clique = if self.nodes > nvlink_nodes {
                    format!("{name}.{}", at / nvlink_nodes)
                } else {
                    name.clone()
                };
                labels.insert(CLIQUE_LABEL.to_owned(), clique);
            }
            if let Some(product) = &product {
                labels.insert(PRODUCT_LABEL.to_owned(), product.clone());
            }
            let node = Node {
                name: format!("{name}-{at:02}").into(),
                uid: muster_model::Uid::default(),
                labels,
                taints: Vec::new(),
                allocatable: allocatable.clone(),
                ready: true,
                cordoned: false,
            };
            inventory.add(node, "--generate")?;
        }
        Ok(())
    }
}
