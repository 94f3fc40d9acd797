//! A minimal default-scheduler: binds each pod to the first node that takes it.
//!
//! ```text
//! Pods without nodeName ──► node rules, taints, free resources ──► binding | PodScheduled=False
//! ```
//!
//! Left out: scores, priorities and preemption, spreading, pod affinity, volumes, resource claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::mirror::{Key, Mirror, watch};
use super::pods;
use crate::clock::Clock;
use crate::kubelet::admission::{self, NodeFacts, is_extended, node_matches, shortage};
use crate::kubelet::quantity::{self, Amounts};
use crate::kubelet::{PodView, is_code, time};

/// Binds pods that name this scheduler.
#[derive(Debug, Clone)]
pub struct Scheduler {
    /// The `spec.schedulerName` it serves.
    pub name: String,
    /// Changes within this time are looked at together.
    pub batch: Duration,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self { name: "default-scheduler".to_owned(), batch: Duration::from_millis(10) }
    }
}

struct State {
    client: Client,
    clock: Arc<dyn Clock>,
    options: Scheduler,
    /// Facts, and whether the node is cordoned.
    nodes: Mirror<(NodeFacts, bool)>,
    pods: Mirror<PodView>,
    /// Bound by us, not yet seen bound: uid and node.
    assumed: BTreeMap<Key, (String, String)>,
    /// Reported unschedulable, with the message.
    reported: BTreeMap<Key, String>,
}

impl Scheduler {
    /// Runs the scheduler until `token` is cancelled.
    pub fn start(self, client: Client, clock: Arc<dyn Clock>, token: CancellationToken) {
        let state = State {
            client,
            clock,
            options: self,
            nodes: Mirror::new(),
            pods: Mirror::new(),
            assumed: BTreeMap::new(),
            reported: BTreeMap::new(),
        };
        tokio::spawn(state.run(token));
    }
}

impl State {
    async fn run(mut self, token: CancellationToken) {
        let (mut nodes, mut pods) = (watch::<Node>(&self.client), watch::<Pod>(&self.client));
        let mut round_at = None;
        loop {
            let at = round_at.unwrap_or_else(tokio::time::Instant::now);
            let changed = tokio::select! {
                biased;
                () = token.cancelled() => return,
                Some(event) = nodes.next() => {
                    !self.nodes.apply(event, |node, _| facts(node)).is_empty() || self.nodes.ready
                }
                Some(event) = pods.next() => {
                    for (key, _) in self.pods.apply(event, |pod, _| PodView::new(pod).ok()) {
                        self.assumed.remove(&key);
                    }
                    true
                }
                () = tokio::time::sleep_until(at), if round_at.is_some() => {
                    round_at = None;
                    self.round().await;
                    false
                }
            };
            if changed && round_at.is_none() && self.nodes.ready && self.pods.ready {
                round_at = Some(tokio::time::Instant::now() + self.options.batch);
            }
        }
    }

    /// Looks at every pending pod once.
    async fn round(&mut self) {
        let waits = |key: &Key, pod: &PodView| {
            let ours = pod.node.is_none() && pod.scheduler == self.options.name && !pod.gated;
            ours && pod.deletion.is_none() && !pod.is_terminal() && !self.assumed.contains_key(key)
        };
        let pending: Vec<_> = self
            .pods
            .iter()
            .filter(|(key, pod)| waits(key, pod))
            .map(|(k, p)| (k.clone(), p.clone()))
            .collect();
        let keys: BTreeSet<_> = pending.iter().map(|(key, _)| key).collect();
        self.reported.retain(|key, _| keys.contains(key));
        if pending.is_empty() {
            return;
        }
        let mut used = self.used();
        for (key, pod) in pending {
            let fits = |(facts, cordoned): &(NodeFacts, bool)| {
                let none = Amounts::new();
                takes(&pod, facts, *cordoned, used.get(&facts.name).unwrap_or(&none))
            };
            let node = self.nodes.iter().find(|(_, node)| fits(node)).map(|(key, _)| key.1.clone());
            match node {
                Some(node) => {
                    count(&mut used, &node, &pod);
                    self.bind(key, &pod, node).await;
                }
                None => self.report(key, &pod).await,
            }
        }
    }

    /// What bound pods use, by node; leaving pods count until they are gone.
    fn used(&self) -> BTreeMap<String, Amounts> {
        let mut used = BTreeMap::new();
        for (key, pod) in self.pods.iter().filter(|(_, pod)| !pod.is_terminal()) {
            let assumed = self.assumed.get(key).filter(|(uid, _)| *uid == pod.uid).map(|(_, node)| node);
            if let Some(node) = pod.node.as_ref().or(assumed) {
                count(&mut used, node, pod);
            }
        }
        used
    }

    async fn bind(&mut self, key: Key, pod: &PodView, node: String) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.0);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": key.1, "namespace": key.0, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let params = PostParams::default();
        let answer: Result<serde_json::Value, _> =
            api.create_subresource("binding", &key.1, &params, &binding).await;
        match answer {
            Ok(_) => drop(self.assumed.insert(key, (pod.uid.clone(), node))),
            Err(error) if is_code(&error, 404) || is_code(&error, 409) => {}
            Err(error) => tracing::warn!(namespace = key.0, name = key.1, %error, "a binding failed"),
        }
    }

    async fn report(&mut self, key: Key, pod: &PodView) {
        let message = format!("0/{} nodes are available.", self.nodes.iter().count());
        if self.reported.get(&key) == Some(&message) {
            return;
        }
        let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": message, "lastTransitionTime": time(self.clock.now())}]});
        pods::patch_status(&self.client, &key, &pod.uid, status).await;
        self.reported.insert(key, message);
    }
}

fn facts(node: Node) -> Option<(NodeFacts, bool)> {
    let spec = node.spec.unwrap_or_default();
    let allocatable = node.status.and_then(|s| s.allocatable).unwrap_or_default();
    let facts = NodeFacts {
        name: node.metadata.name.unwrap_or_default(),
        labels: node.metadata.labels.unwrap_or_default(),
        taints: spec.taints.unwrap_or_default(),
        allocatable: quantity::parse_list(&allocatable).ok()?,
    };
    Some((facts, spec.unschedulable.unwrap_or(false)))
}

fn takes(pod: &PodView, node: &NodeFacts, cordoned: bool, used: &Amounts) -> bool {
    // Unlike a kubelet, a scheduler does not overlook a resource that the node lacks.
    let lacks = |(name, &amount): (&String, &i64)| {
        amount > 0 && is_extended(name) && !node.allocatable.contains_key(name)
    };
    !cordoned
        && node_matches(pod, node)
        && admission::untolerated(pod, node, &["NoSchedule", "NoExecute"]).is_none()
        && !pod.requests.iter().any(lacks)
        && shortage(pod, node, used).is_none()
}

fn count(used: &mut BTreeMap<String, Amounts>, node: &str, pod: &PodView) {
    let amounts = used.entry(node.to_owned()).or_default();
    quantity::add(amounts, &pod.requests);
    *amounts.entry("pods".to_owned()).or_default() += 1;
}
