//! The pod garbage collector.
//!
//! ```text
//! pods of vanished nodes, of nodes out of service, leaving ones never bound,
//! finished ones above the threshold ──► Failed + DisruptionTarget ──► forced deletion
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::mirror::{Key, Mirror, watch};
use super::pods;
use crate::clock::Clock;
use crate::kubelet::time;

/// Deletes pods that nobody else will.
#[derive(Debug, Clone)]
pub struct PodGc {
    /// Time between collections (20 s in the real one).
    pub period: Duration,
    /// How long a node must be missing (40 s in the real one).
    pub quarantine: Duration,
    /// `--terminated-pod-gc-threshold`: finished pods kept in the cluster.
    pub threshold: usize,
}

impl Default for PodGc {
    fn default() -> Self {
        Self { period: Duration::from_secs(20), quarantine: Duration::from_secs(40), threshold: 12_500 }
    }
}

struct PodSeen {
    uid: String,
    node: Option<String>,
    leaving: bool,
    finished: bool,
    created: Option<Timestamp>,
}

struct State {
    client: Client,
    clock: Arc<dyn Clock>,
    options: PodGc,
    /// Whether the node carries the out-of-service taint.
    nodes: Mirror<bool>,
    pods: Mirror<PodSeen>,
    /// Since when a node named by a pod has been missing.
    missing: BTreeMap<String, Timestamp>,
}

impl PodGc {
    /// Runs the collector until `token` is cancelled.
    pub fn start(self, client: Client, clock: Arc<dyn Clock>, token: CancellationToken) {
        let state = State {
            client,
            clock,
            options: self,
            nodes: Mirror::new(),
            pods: Mirror::new(),
            missing: BTreeMap::new(),
        };
        tokio::spawn(state.run(token));
    }
}

impl State {
    async fn run(mut self, token: CancellationToken) {
        let (mut nodes, mut pods) = (watch::<Node>(&self.client), watch::<Pod>(&self.client));
        let mut collect = tokio::time::interval(self.options.period);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                Some(event) = nodes.next() => {
                    self.nodes.apply(event, |node, _| Some(out_of_service(&node)));
                }
                Some(event) = pods.next() => {
                    self.pods.apply(event, |pod, _| Some(PodSeen::new(pod)));
                }
                _ = collect.tick() => if self.nodes.ready && self.pods.ready {
                    self.collect().await;
                },
            }
        }
    }

    async fn collect(&mut self) {
        let now = self.clock.now();
        self.note_missing(now);
        let quarantined = |node: &String| {
            self.missing.get(node).is_some_and(|since| {
                Duration::try_from(now.duration_since(*since)).is_ok_and(|d| d >= self.options.quarantine)
            })
        };
        let out = |node: &String| self.nodes.get(&(String::new(), node.clone())) == Some(&true);
        let mut finished = Vec::new();
        for (key, pod) in self.pods.iter() {
            match &pod.node {
                Some(node) if quarantined(node) => {
                    self.remove(key, pod, "PodGC: node no longer exists", now).await;
                }
                Some(node) if pod.leaving && out(node) => {
                    self.remove(key, pod, "PodGC: node is out of service", now).await;
                }
                None if pod.leaving => self.remove(key, pod, "PodGC: pod was never scheduled", now).await,
                _ if pod.finished => finished.push((pod.created, key, pod)),
                _ => {}
            }
        }
        finished.sort_unstable_by_key(|&(created, key, _)| (created, key));
        let surplus = finished.len().saturating_sub(self.options.threshold);
        for (_, key, pod) in finished.into_iter().take(surplus) {
            pods::delete(&self.client, key, &pod.uid, true).await;
        }
    }

    fn note_missing(&mut self, now: Timestamp) {
        let exists = |node: &String| self.nodes.get(&(String::new(), node.clone())).is_some();
        let absent: std::collections::BTreeSet<_> =
            self.pods.iter().filter_map(|(_, pod)| pod.node.clone()).filter(|node| !exists(node)).collect();
        self.missing.retain(|node, _| absent.contains(node));
        for node in absent {
            self.missing.entry(node).or_insert(now);
        }
    }

    /// A pod that has not ended is marked Failed first, as nobody else will.
    async fn remove(&self, key: &Key, pod: &PodSeen, message: &str, now: Timestamp) {
        if !pod.finished {
            let conditions = pods::disruption("DeletionByPodGC", message, &time(now));
            let status = json!({"phase": "Failed", "conditions": conditions});
            pods::patch_status(&self.client, key, &pod.uid, status).await;
        }
        pods::delete(&self.client, key, &pod.uid, true).await;
    }
}

impl PodSeen {
    fn new(pod: Pod) -> Self {
        let phase = pod.status.and_then(|s| s.phase).unwrap_or_default();
        Self {
            uid: pod.metadata.uid.unwrap_or_default(),
            node: pod.spec.and_then(|s| s.node_name).filter(|n| !n.is_empty()),
            leaving: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(phase.as_str(), "Succeeded" | "Failed"),
            created: pod.metadata.creation_timestamp.map(|t| t.0),
        }
    }
}

fn out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|t| t.key == "node.kubernetes.io/out-of-service")
}
