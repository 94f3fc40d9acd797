//! Simulated kubelets on the in-memory server itself: no client, no watches, no heartbeats.
//!
//! ```text
//! journal of the server ──► written() ──► due items (with latency) ──► run() ──► ApiServer::act
//!                               node lifecycle, taint eviction and pod GC are items, too
//! ```
//!
//! What a [`Fleet`](super::Fleet) and the node controllers do over a client costs a decoding of each pod for each of
//! them; a search over thousands of runs wants one. Liveness is not told by Leases: a machine that was stopped counts
//! as silent. The driver owns time: it calls [`DirectFleet::run`] when [`DirectFleet::next_due`] has come.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use serde_json::{Value, json};

use super::admission::{Refusal, tolerates};
use super::node::{Intake, Job, NodeMachine, Power};
use super::pod::after;
use super::quantity::{self, QuantityError};
use super::script::Script;
use super::spec::{NodeCondition, NodeReport, NodeSpec, new_taint};
use super::status::{silent_node, time};
use super::view::PodView;
use crate::api::{ApiServer, Written};
use crate::clock::Clock;

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// The user that controllers write as.
const MANAGER: &str = "system:kube-controller-manager";
/// The user that kubelets write as.
const KUBELET: &str = "system:node";

/// Patience of the controllers around the kubelets, and how late kubelets look.
#[derive(Debug, Clone, Copy)]
pub struct DirectOptions {
    /// `--node-monitor-grace-period`: silence after which a node is Unknown.
    pub grace: Duration,
    /// From a change of readiness to the taints that say so.
    pub taint_after: Duration,
    /// How long pods tolerate that a node is not ready.
    pub evict_after: Duration,
    /// How long a node must be missing before its pods are collected.
    pub collect_after: Duration,
    /// A kubelet sees a change after a time between these, in milliseconds.
    pub latency: (u64, u64),
    /// Where the latencies come from.
    pub seed: u64,
}

impl Default for DirectOptions {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(40),
            taint_after: Duration::from_secs(2),
            evict_after: Duration::from_secs(300),
            collect_after: Duration::from_secs(60),
            latency: (2, 300),
            seed: 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    /// A kubelet looks at a pod.
    Observe(String, String),
    /// Something of a node's pods is due.
    Advance(String),
    /// A node has been silent for the whole grace period, if it still is.
    Silent(String),
    /// The taints of a node follow its readiness.
    Taint(String),
    /// Pods that do not tolerate a node's taints (any longer) go.
    Evict(String),
    /// Pods of a node that is missing go.
    Collect(String),
    /// A pod's write is made again.
    Retry(String, String),
}

struct Machine {
    kubelet: NodeMachine,
    report: NodeReport,
    silent_since: Option<Timestamp>,
    /// The readiness that the API shows: `True`, `False`, `Unknown`.
    ready: String,
    /// Since when it has been tainted for its readiness.
    tainted: Option<Timestamp>,
    due: Option<Timestamp>,
}

/// Kubelets, node lifecycle and pod GC in one.
pub struct DirectFleet {
    server: ApiServer,
    clock: Arc<dyn Clock>,
    options: DirectOptions,
    nodes: BTreeMap<String, Machine>,
    /// Node and uid by namespace and name.
    pods: BTreeMap<(String, String), (String, String)>,
    due: BTreeMap<(Timestamp, u64), Item>,
    waiting: BTreeSet<Item>,
    seq: u64,
    random: u64,
    next_ip: u32,
}

impl DirectFleet {
    /// No nodes yet. The server must keep its journal, and whoever takes it must show it to [`Self::written`].
    pub fn new(server: ApiServer, clock: Arc<dyn Clock>, options: DirectOptions) -> Self {
        Self {
            server,
            clock,
            random: options.seed,
            options,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            due: BTreeMap::new(),
            waiting: BTreeSet::new(),
            seq: 0,
            next_ip: 1,
        }
    }

    fn plan(&mut self, at: Timestamp, item: Item) {
        if self.waiting.insert(item.clone()) {
            self.seq += 1;
            self.due.insert((at, self.seq), item);
        }
    }

    fn latency(&mut self) -> Duration {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (least, most) = self.options.latency;
        Duration::from_millis(least + (self.random >> 33) % (most.saturating_sub(least) + 1))
    }

    /// A machine starts and registers its node: a new Node object, unless there is one. Containers that an earlier
    /// machine of the name ran are found dead.
    ///
    /// # Errors
    /// When a quantity of the specification is none.
    pub fn add(&mut self, spec: NodeSpec) -> Result<(), QuantityError> {
        let now = self.clock.now();
        let name = spec.name.clone();
        let ip = Ipv4Addr::from(0xac10_0000 + self.next_ip).to_string();
        self.next_ip += 1;
        let mut kubelet = NodeMachine::new(spec.facts()?, ip.clone());
        kubelet.set_power(Power::Down, now);
        let report = NodeReport::new(spec, ip, now);
        // The server may refuse because the Node is still there: the kubelet takes it over.
        let _taken_over = self.server.act(KUBELET, Method::POST, "/api/v1/nodes", JSON, &report.object());
        let machine =
            Machine { kubelet, report, silent_since: None, ready: "True".into(), tainted: None, due: None };
        self.nodes.insert(name.clone(), machine);
        self.post_status(&name);
        for pod in self.server.objects("", "pods") {
            if pod["spec"]["nodeName"] == json!(name) {
                let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
                self.look(&text("namespace"), &text("name"));
            }
        }
        self.set_power(&name, Power::Up);
        Ok(())
    }

    /// The names of the machines.
    pub fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// The machine is gone for good, with its Node.
    pub fn remove(&mut self, node: &str) {
        self.nodes.remove(node);
        self.pods.retain(|_, (on, _)| on != node);
        self.write(MANAGER, Method::DELETE, &format!("/api/v1/nodes/{node}"), JSON, &Value::Null);
        let at = after(self.clock.now(), self.options.collect_after);
        self.plan(at, Item::Collect(node.to_owned()));
    }

    /// Stops or starts a machine or its kubelet.
    pub fn set_power(&mut self, node: &str, power: Power) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        slot.kubelet.set_power(power, now);
        if power == Power::Up {
            slot.silent_since = None;
            self.post_status(node);
            self.plan(after(now, self.options.taint_after), Item::Taint(node.to_owned()));
        } else {
            slot.silent_since.get_or_insert(now);
            self.plan(after(now, self.options.grace), Item::Silent(node.to_owned()));
        }
        self.advance(node);
    }

    /// What the kubelet does with new pods.
    pub fn set_intake(&mut self, node: &str, intake: Intake) {
        if let Some(slot) = self.nodes.get_mut(node) {
            slot.kubelet.set_intake(intake);
            self.advance(node);
        }
    }

    /// Refuses every new pod with this reason.
    pub fn refuse(&mut self, node: &str, reason: &str) {
        let refusal = Refusal { reason: reason.to_owned(), message: format!("Pod was rejected: {reason}") };
        self.set_intake(node, Intake::Refusing(refusal));
    }

    /// The kubelet itself says whether it is ready.
    pub fn set_ready(&mut self, node: &str, ready: bool) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        let (status, reason) = if ready { ("True", "KubeletReady") } else { ("False", "KubeletNotReady") };
        let [status, reason] = [status, reason].map(str::to_owned);
        slot.report
            .set_condition("Ready", NodeCondition { status, message: reason.clone(), reason, since: now });
        self.post_status(node);
        self.plan(after(now, self.options.taint_after), Item::Taint(node.to_owned()));
    }

    /// Sets `status.allocatable` of a resource; running pods are not told.
    ///
    /// # Errors
    /// When the quantity is none.
    pub fn set_allocatable(&mut self, node: &str, resource: &str, amount: &str) -> Result<(), QuantityError> {
        let parsed = quantity::parse(resource, amount)?;
        if let Some(slot) = self.nodes.get_mut(node) {
            slot.kubelet.facts_mut().allocatable.insert(resource.to_owned(), parsed);
            slot.report.allocatable.insert(resource.to_owned(), amount.to_owned());
            self.post_status(node);
        }
        Ok(())
    }

    /// Sets or clears `spec.unschedulable`.
    pub fn cordon(&mut self, node: &str, on: bool) {
        let patch = json!({"spec": {"unschedulable": if on { json!(true) } else { Value::Null }}});
        self.write(MANAGER, Method::PATCH, &format!("/api/v1/nodes/{node}"), MERGE, &patch);
    }

    /// Adds or removes a taint without value; pods that do not tolerate `NoExecute` go at once.
    pub fn taint(&mut self, node: &str, key: &str, effect: &str, on: bool) {
        self.edit_taints(node, |taints| {
            taints.retain(|t| t.key != key);
            if on {
                taints.push(new_taint(key, "", effect));
            }
        });
        if on && effect == "NoExecute" {
            self.evict_intolerant(node);
        }
    }

    /// Ends the containers of a running pod: all for good, or the first. False where none runs.
    pub fn exit(&mut self, namespace: &str, name: &str, code: i32, for_good: bool) -> bool {
        let now = self.clock.now();
        let found = self.pods.get(&(namespace.to_owned(), name.to_owned())).cloned();
        let Some((node, uid)) = found else { return false };
        let ended =
            self.nodes.get_mut(&node).is_some_and(|slot| slot.kubelet.exit(&uid, code, for_good, now));
        self.advance(&node);
        ended
    }

    /// Takes in what was written to the server.
    pub fn written(&mut self, writes: &[Written]) {
        let now = self.clock.now();
        for write in writes {
            match write.table.as_ref() {
                "pods" if concerns_kubelet(write) => {
                    let at = after(now, self.latency());
                    self.plan(at, Item::Observe(write.namespace.clone(), write.name.clone()));
                }
                "nodes" => self.node_written(write),
                _ => {}
            }
        }
    }

    fn node_written(&mut self, write: &Written) {
        let (Some(slot), Some(node)) = (self.nodes.get_mut(&write.name), &write.new) else { return };
        let facts = slot.kubelet.facts_mut();
        facts.taints = taints(node);
        if let Ok(labels) = serde_json::from_value(node["metadata"]["labels"].clone()) {
            facts.labels = labels;
        }
    }

    /// When something is due.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Does everything that is due.
    pub fn run(&mut self) {
        let now = self.clock.now();
        while self.next_due().is_some_and(|at| at <= now) {
            let Some((_, item)) = self.due.pop_first() else { return };
            self.waiting.remove(&item);
            match item {
                Item::Observe(namespace, name) => self.look(&namespace, &name),
                Item::Advance(node) => {
                    if let Some(slot) = self.nodes.get_mut(&node) {
                        slot.due = None;
                    }
                    self.advance(&node);
                }
                Item::Silent(node) => self.silent(&node),
                Item::Taint(node) => self.taint_readiness(&node),
                Item::Evict(node) => self.evict(&node),
                Item::Collect(node) => self.collect(&node),
                Item::Retry(node, uid) => self.write_pod(&node, &uid),
            }
        }
    }

    /// The kubelet looks at a pod as it is now.
    fn look(&mut self, namespace: &str, name: &str) {
        let now = self.clock.now();
        let key = (namespace.to_owned(), name.to_owned());
        let live = self.server.object("", "pods", namespace, name);
        let view = live.and_then(|live| serde_json::from_value::<Pod>((*live).clone()).ok());
        let view = view.and_then(|pod| PodView::new(pod).ok());
        let old = self.pods.get(&key).cloned();
        if let Some((node, uid)) = old.filter(|(_, uid)| view.as_ref().is_none_or(|view| view.uid != *uid)) {
            self.pods.remove(&key);
            if let Some(slot) = self.nodes.get_mut(&node) {
                slot.kubelet.forget(&uid);
            }
            self.advance(&node);
        }
        let Some((view, node)) = view.and_then(|view| view.node.clone().map(|node| (view, node))) else {
            return;
        };
        let Some(slot) = self.nodes.get_mut(&node) else {
            let at = after(now, self.options.collect_after);
            self.plan(at, Item::Collect(node));
            return;
        };
        self.pods.insert(key, (node.clone(), view.uid.clone()));
        let script = |view: &PodView| {
            Script::from_annotations(&view.annotations)
                .map_err(|error| Refusal { reason: "InvalidScript".to_owned(), message: error.to_string() })
        };
        slot.kubelet.observe(view, script, now);
        if slot.tainted.is_some() {
            self.plan(after(now, self.options.evict_after), Item::Evict(node.clone()));
        }
        self.advance(&node);
    }

    /// Moves a node to the present, writes what its pods have to say and sets its timer.
    fn advance(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        let dirty = slot.kubelet.advance(now);
        let due = slot.kubelet.next_due();
        if let Some(at) = due.filter(|at| slot.due.is_none_or(|old| *at < old)) {
            slot.due = Some(at);
            self.seq += 1;
            self.due.insert((at, self.seq), Item::Advance(node.to_owned()));
        }
        for uid in dirty {
            self.write_pod(node, &uid);
        }
    }

    fn write_pod(&mut self, node: &str, uid: &str) {
        loop {
            let next_ip = &mut self.next_ip;
            let Some(slot) = self.nodes.get_mut(node) else { return };
            let job = slot.kubelet.next_job(uid, || {
                *next_ip += 1;
                Ipv4Addr::from(0x0a40_0000 + *next_ip).to_string()
            });
            let (Some(job), Some((namespace, name))) = (job, slot.kubelet.name_of(uid)) else { return };
            let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
            let written = match &job {
                Job::Status(status) => {
                    let patch = json!({"metadata": {"uid": uid}, "status": status});
                    self.server.act(KUBELET, Method::PATCH, &format!("{path}/status"), STRATEGIC, &patch)
                }
                Job::Delete => {
                    let options = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
                    self.server.act(KUBELET, Method::DELETE, &path, JSON, &options)
                }
            };
            // Gone, or another pod has the name: the journal ends that. Anything else is tried again.
            if let Err(error) = written
                && !matches!(error.code, 404 | 409)
            {
                if let Some(slot) = self.nodes.get_mut(node) {
                    slot.kubelet.job_failed(uid, &job);
                }
                let at = after(self.clock.now(), Duration::from_secs(1));
                self.plan(at, Item::Retry(node.to_owned(), uid.to_owned()));
                return;
            }
        }
    }

    fn post_status(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node).filter(|slot| slot.silent_since.is_none()) else { return };
        let status = slot.report.status(now);
        slot.ready = slot.report.conditions.get("Ready").map(|c| c.status.clone()).unwrap_or_default();
        self.write(KUBELET, Method::PATCH, &format!("/api/v1/nodes/{node}/status"), STRATEGIC, &status);
    }

    fn silent(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        let Some(since) = slot.silent_since else { return };
        let due = after(since, self.options.grace);
        if due > now {
            self.plan(due, Item::Silent(node.to_owned()));
            return;
        }
        "Unknown".clone_into(&mut slot.ready);
        let patch = json!({"status": {"conditions": silent_node(now)}});
        self.write(MANAGER, Method::PATCH, &format!("/api/v1/nodes/{node}/status"), STRATEGIC, &patch);
        for (namespace, name, uid) in self.pods_on(node) {
            let ready = json!([{"type": "Ready", "status": "False", "reason": "NodeNotReady",
                                "lastTransitionTime": time(now)}]);
            self.patch_pod_status(&namespace, &name, &uid, &json!({"conditions": ready}));
        }
        self.taint_readiness(node);
    }

    fn taint_readiness(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(slot) = self.nodes.get_mut(node) else { return };
        let wanted = match slot.ready.as_str() {
            "True" => None,
            "Unknown" => Some(UNREACHABLE),
            _ => Some(NOT_READY),
        };
        slot.tainted = wanted.map(|_| slot.tainted.unwrap_or(now));
        self.edit_taints(node, |taints| {
            taints.retain(|t| ![NOT_READY, UNREACHABLE].contains(&t.key.as_str()));
            let both = ["NoSchedule", "NoExecute"];
            taints.extend(wanted.into_iter().flat_map(|key| both.map(|effect| new_taint(key, "", effect))));
        });
        if wanted.is_some() {
            self.plan(after(now, self.options.evict_after), Item::Evict(node.to_owned()));
        }
    }

    fn edit_taints(&mut self, node: &str, edit: impl FnOnce(&mut Vec<Taint>)) {
        let Some(live) = self.server.object("", "nodes", "", node) else { return };
        let before = taints(&live);
        let mut wanted = before.clone();
        edit(&mut wanted);
        if wanted != before {
            let patch = json!({"spec": {"taints": wanted}});
            self.write(MANAGER, Method::PATCH, &format!("/api/v1/nodes/{node}"), MERGE, &patch);
        }
    }

    /// The pods of a node that has been tainted for longer than they tolerate it go.
    fn evict(&mut self, node: &str) {
        let now = self.clock.now();
        let Some(since) = self.nodes.get(node).and_then(|slot| slot.tainted) else { return };
        let due = after(since, self.options.evict_after);
        if due > now {
            self.plan(due, Item::Evict(node.to_owned()));
            return;
        }
        for (namespace, name, uid) in self.pods_on(node) {
            self.evict_pod(&namespace, &name, &uid);
        }
    }

    fn evict_intolerant(&mut self, node: &str) {
        let Some(live) = self.server.object("", "nodes", "", node) else { return };
        let taints: Vec<Taint> = taints(&live).into_iter().filter(|t| t.effect == "NoExecute").collect();
        for (namespace, name, uid) in self.pods_on(node) {
            let Some(pod) = self.server.object("", "pods", &namespace, &name) else { continue };
            let tolerations: Vec<k8s_openapi::api::core::v1::Toleration> =
                serde_json::from_value(pod["spec"]["tolerations"].clone()).unwrap_or_default();
            if taints.iter().any(|taint| !tolerations.iter().any(|t| tolerates(t, taint))) {
                self.evict_pod(&namespace, &name, &uid);
            }
        }
    }

    fn evict_pod(&mut self, namespace: &str, name: &str, uid: &str) {
        let conditions = disruption("DeletionByTaintManager", self.clock.now());
        self.patch_pod_status(namespace, name, uid, &json!({"conditions": conditions}));
        self.delete_pod(namespace, name, uid, None);
    }

    fn collect(&mut self, node: &str) {
        if self.nodes.contains_key(node) || self.server.object("", "nodes", "", node).is_some() {
            return;
        }
        for pod in self.server.objects("", "pods") {
            if pod["spec"]["nodeName"] != json!(node) {
                continue;
            }
            let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
            let (namespace, name, uid) = (text("namespace"), text("name"), text("uid"));
            if !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
                let conditions = disruption("DeletionByPodGC", self.clock.now());
                let status = json!({"phase": "Failed", "conditions": conditions});
                self.patch_pod_status(&namespace, &name, &uid, &status);
            }
            self.delete_pod(&namespace, &name, &uid, Some(0));
        }
    }

    /// Namespace, name and UID of the pods of a node that have not ended and do not leave.
    fn pods_on(&self, node: &str) -> Vec<(String, String, String)> {
        let on = self.server.objects("", "pods").into_iter().filter(|pod| {
            pod["spec"]["nodeName"] == json!(node)
                && pod["metadata"]["deletionTimestamp"].is_null()
                && !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        });
        let text = |pod: &Value, key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        on.map(|pod| (text(&pod, "namespace"), text(&pod, "name"), text(&pod, "uid"))).collect()
    }

    fn patch_pod_status(&self, namespace: &str, name: &str, uid: &str, status: &Value) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        self.write(MANAGER, Method::PATCH, &path, STRATEGIC, &patch);
    }

    fn delete_pod(&self, namespace: &str, name: &str, uid: &str, grace: Option<u32>) {
        let mut options = json!({"preconditions": {"uid": uid}});
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = json!(grace);
        }
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.write(MANAGER, Method::DELETE, &path, JSON, &options);
    }

    /// A write whose refusal means that the object is gone or another one.
    fn write(&self, user: &str, method: Method, path: &str, content: &str, body: &Value) {
        if let Err(error) = self.server.act(user, method, path, content, body) {
            tracing::debug!(path, error = error.message, "a write of a simulated controller was refused");
        }
    }
}

/// Whether a kubelet has to look: the pod is new, gone, another one, bound, leaving, or was ended by somebody else.
fn concerns_kubelet(write: &Written) -> bool {
    let (Some(old), Some(new)) = (&write.old, &write.new) else { return true };
    let differs = |path: &str| old.pointer(path) != new.pointer(path);
    differs("/metadata/uid")
        || differs("/metadata/deletionTimestamp")
        || differs("/metadata/deletionGracePeriodSeconds")
        || differs("/spec/nodeName")
}

fn taints(node: &Value) -> Vec<Taint> {
    serde_json::from_value(node["spec"]["taints"].clone()).unwrap_or_default()
}

fn disruption(reason: &str, now: Timestamp) -> Value {
    json!([{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": reason,
            "lastTransitionTime": time(now)}])
}
