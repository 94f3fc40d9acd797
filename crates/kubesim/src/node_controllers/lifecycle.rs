//! The node lifecycle controller and taint-based eviction.
//!
//! ```text
//! Leases, Nodes ──► last beat ──(grace over)──► Ready=Unknown, pods Ready=False
//! Ready ──► taints not-ready / unreachable ──(tolerationSeconds over)──► pods deleted
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::mirror::{Key, Mirror, watch};
use super::pods;
use crate::clock::Clock;
use crate::kubelet::admission::tolerates;
use crate::kubelet::{LEASE_NAMESPACE, PodView, edit_taints, silent_node, time};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// Marks silent nodes and evicts their pods. All nodes are treated alike: the rate limits and
/// zone rules of the real controller are left out.
#[derive(Debug, Clone)]
pub struct NodeLifecycle {
    /// `--node-monitor-grace-period`: silence after which a node is Unknown.
    pub grace: Duration,
    /// `--node-monitor-period`: time between looks.
    pub period: Duration,
    /// Whether pods are evicted when their tolerations of NoExecute taints run out.
    pub evict: bool,
}

impl Default for NodeLifecycle {
    fn default() -> Self {
        Self { grace: Duration::from_secs(40), period: Duration::from_secs(5), evict: true }
    }
}

struct NodeSeen {
    uid: String,
    /// `True`, `False` or `Unknown`.
    ready: String,
    heartbeat: Option<Timestamp>,
    taints: Vec<Taint>,
    /// Since when each NoExecute taint (key and value) has been seen.
    no_execute: BTreeMap<(String, Option<String>), Timestamp>,
    beat: Timestamp,
}

struct State {
    client: Client,
    clock: Arc<dyn Clock>,
    options: NodeLifecycle,
    nodes: Mirror<NodeSeen>,
    leases: Mirror<(Option<Timestamp>, Timestamp)>,
    pods: Mirror<PodView>,
}

impl NodeLifecycle {
    /// Runs the controller until `token` is cancelled.
    pub fn start(self, client: Client, clock: Arc<dyn Clock>, token: CancellationToken) {
        let state = State {
            client,
            clock,
            options: self,
            nodes: Mirror::new(),
            leases: Mirror::new(),
            pods: Mirror::new(),
        };
        tokio::spawn(state.run(token));
    }
}

impl State {
    async fn run(mut self, token: CancellationToken) {
        let (mut nodes, mut leases, mut pods) =
            (watch::<Node>(&self.client), watch::<Lease>(&self.client), watch::<Pod>(&self.client));
        let mut look = tokio::time::interval(self.options.period);
        loop {
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                Some(event) = nodes.next() => {
                    let now = self.clock.now();
                    self.nodes.apply(event, |node, old| Some(NodeSeen::new(node, old, now)));
                }
                Some(event) = leases.next() => {
                    let now = self.clock.now();
                    self.leases.apply(event, |lease, old| seen_lease(&lease, old, now));
                }
                Some(event) = pods.next() => {
                    self.pods.apply(event, |pod, _| PodView::new(pod).ok().filter(|p| p.node.is_some()));
                }
                _ = look.tick() => if self.nodes.ready && self.leases.ready && self.pods.ready {
                    self.look().await;
                },
            }
        }
    }

    async fn look(&self) {
        let now = self.clock.now();
        let mut by_node: BTreeMap<&str, Vec<(&Key, &PodView)>> = BTreeMap::new();
        for (key, pod) in self.pods.iter() {
            by_node.entry(pod.node.as_deref().unwrap_or_default()).or_default().push((key, pod));
        }
        for ((_, name), node) in self.nodes.iter() {
            let pods = by_node.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
            let lease = self.leases.get(&(LEASE_NAMESPACE.to_owned(), name.clone()));
            let beat = lease.map_or(node.beat, |&(_, seen)| seen.max(node.beat));
            let silent = older(now, beat, self.options.grace);
            if silent && node.ready != "Unknown" {
                self.mark_unknown(name, pods, now).await;
            } else {
                self.taint(name, node, now).await;
            }
            if self.options.evict {
                self.evict(node, pods, now).await;
            }
        }
    }

    async fn mark_unknown(&self, name: &str, pods: &[(&Key, &PodView)], now: Timestamp) {
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Strategic(json!({"status": {"conditions": silent_node(now)}}));
        if let Err(error) = api.patch_status(name, &PatchParams::default(), &patch).await {
            tracing::warn!(node = name, %error, "a silent node could not be marked; it is tried again");
            return;
        }
        for (key, pod) in pods.iter().filter(|(_, pod)| !pod.is_terminal()) {
            let ready = json!({"conditions": [
                {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": time(now)}]});
            pods::patch_status(&self.client, key, &pod.uid, ready).await;
        }
    }

    async fn taint(&self, name: &str, node: &NodeSeen, now: Timestamp) {
        let wanted = match node.ready.as_str() {
            "True" => None,
            "Unknown" => Some(UNREACHABLE),
            _ => Some(NOT_READY),
        };
        let ours = |taint: &Taint| [NOT_READY, UNREACHABLE].contains(&taint.key.as_str());
        let has =
            |effect: &str| node.taints.iter().any(|t| Some(t.key.as_str()) == wanted && t.effect == effect);
        let right = match wanted {
            None => !node.taints.iter().any(ours),
            Some(key) => {
                has("NoSchedule") && has("NoExecute") && node.taints.iter().all(|t| !ours(t) || t.key == key)
            }
        };
        if right {
            return;
        }
        let edit = |taints: &mut Vec<Taint>| {
            taints.retain(|t| !ours(t));
            for effect in ["NoSchedule", "NoExecute"] {
                taints.extend(wanted.map(|key| Taint {
                    key: key.to_owned(),
                    effect: effect.to_owned(),
                    value: None,
                    time_added: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
                }));
            }
        };
        if let Err(error) = edit_taints(&self.client, name, edit).await {
            tracing::warn!(node = name, %error, "taints could not be written; it is tried again");
        }
    }

    async fn evict(&self, node: &NodeSeen, pods: &[(&Key, &PodView)], now: Timestamp) {
        if node.no_execute.is_empty() {
            return;
        }
        for (key, pod) in pods.iter().filter(|(_, pod)| pod.deletion.is_none() && !pod.is_terminal()) {
            if node.outstayed(pod, now) {
                let message = "Taint manager: deleting due to NoExecute taint";
                let conditions = pods::disruption("DeletionByTaintManager", message, &time(now));
                pods::patch_status(&self.client, key, &pod.uid, json!({"conditions": conditions})).await;
                pods::delete(&self.client, key, &pod.uid, false).await;
            }
        }
    }
}

impl NodeSeen {
    fn new(node: Node, old: Option<&Self>, now: Timestamp) -> Self {
        let uid = node.metadata.uid.unwrap_or_default();
        let old = old.filter(|old| old.uid == uid);
        let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|c| c.type_ == "Ready");
        let heartbeat = condition.as_ref().and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0);
        let beat = old.filter(|old| old.heartbeat == heartbeat).map_or(now, |old| old.beat);
        let taints = node.spec.and_then(|s| s.taints).unwrap_or_default();
        let no_execute = taints
            .iter()
            .filter(|t| t.effect == "NoExecute")
            .map(|t| {
                let key = (t.key.clone(), t.value.clone());
                let since = old.and_then(|old| old.no_execute.get(&key)).copied();
                (key, since.unwrap_or(now))
            })
            .collect();
        let ready = condition.map_or_else(|| "False".to_owned(), |c| c.status);
        Self { uid, ready, heartbeat, taints, no_execute, beat }
    }

    /// Whether the pod's tolerations of some NoExecute taint have run out: none tolerates it, or
    /// the shortest `tolerationSeconds` is over.
    fn outstayed(&self, pod: &PodView, now: Timestamp) -> bool {
        self.taints.iter().filter(|t| t.effect == "NoExecute").any(|taint| {
            let since =
                self.no_execute.get(&(taint.key.clone(), taint.value.clone())).copied().unwrap_or(now);
            let tolerations: Vec<_> = pod.tolerations.iter().filter(|t| tolerates(t, taint)).collect();
            let shortest = tolerations.iter().filter_map(|t| t.toleration_seconds).min();
            match shortest {
                _ if tolerations.is_empty() => true,
                None => false,
                Some(seconds) => older(now, since, Duration::from_secs(u64::try_from(seconds).unwrap_or(0))),
            }
        })
    }
}

/// The renew time, and when this controller first saw it: clocks of other machines are not compared.
fn seen_lease(
    lease: &Lease,
    old: Option<&(Option<Timestamp>, Timestamp)>,
    now: Timestamp,
) -> Option<(Option<Timestamp>, Timestamp)> {
    if lease.metadata.namespace.as_deref() != Some(LEASE_NAMESPACE) {
        return None;
    }
    let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
    Some(old.filter(|(before, _)| *before == renewed).copied().unwrap_or((renewed, now)))
}

/// Whether `at` is at least `age` before `now`.
fn older(now: Timestamp, at: Timestamp, age: Duration) -> bool {
    Duration::try_from(now.duration_since(at)).is_ok_and(|passed| passed >= age)
}
