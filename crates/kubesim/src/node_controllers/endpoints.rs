//! The EndpointSlice controller: one slice for each Service with a selector.
//!
//! ```text
//! Services, Pods ──► pods by label ──► endpoints with ready / serving / terminating ──► EndpointSlice
//! ```
//!
//! Left out: several slices for one Service, IPv6, zones and hints.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::mirror::{Key, Mirror, watch};
use super::resolver::SERVICE_LABEL;
use crate::kubelet::is_code;

/// Writes EndpointSlices.
#[derive(Debug, Clone)]
pub struct EndpointSlices {
    /// Changes within this time are written as one (the real one: `--endpointslice-updates-batch-period`).
    pub batch: Duration,
    /// Slices written at once.
    pub concurrency: usize,
}

impl Default for EndpointSlices {
    fn default() -> Self {
        Self { batch: Duration::from_millis(100), concurrency: 16 }
    }
}

#[derive(Clone, PartialEq)]
struct ServiceSeen {
    uid: String,
    selector: BTreeMap<String, String>,
    headless: bool,
    publish_not_ready: bool,
    ports: Vec<ServicePort>,
}

#[derive(Clone, PartialEq)]
struct PodSeen {
    uid: String,
    labels: BTreeMap<String, String>,
    ip: Option<String>,
    node: Option<String>,
    /// Hostname and subdomain, where both are set.
    host: Option<(String, String)>,
    ready: bool,
    leaving: bool,
    finished: bool,
    /// Named container ports.
    ports: BTreeMap<String, i32>,
}

/// Namespace, label key, label value.
type Label = (String, String, String);

struct State {
    client: Client,
    options: EndpointSlices,
    services: Mirror<ServiceSeen>,
    pods: Mirror<PodSeen>,
    /// Services by the first pair of their selector: a pod looks up its own labels.
    by_selector: BTreeMap<Label, BTreeSet<String>>,
    pods_by_label: BTreeMap<Label, BTreeSet<String>>,
    dirty: BTreeSet<Key>,
    /// The endpoints last written, so that an unchanged slice is not written again.
    written: BTreeMap<Key, Value>,
}

impl EndpointSlices {
    /// Runs the controller until `token` is cancelled.
    pub fn start(self, client: Client, token: CancellationToken) {
        let state = State {
            client,
            options: self,
            services: Mirror::new(),
            pods: Mirror::new(),
            by_selector: BTreeMap::new(),
            pods_by_label: BTreeMap::new(),
            dirty: BTreeSet::new(),
            written: BTreeMap::new(),
        };
        tokio::spawn(state.run(token));
    }
}

impl State {
    async fn run(mut self, token: CancellationToken) {
        let (mut services, mut pods) = (watch::<Service>(&self.client), watch::<Pod>(&self.client));
        let mut flush_at = None;
        loop {
            let ready = self.services.ready && self.pods.ready;
            if ready && flush_at.is_none() && !self.dirty.is_empty() {
                flush_at = Some(tokio::time::Instant::now() + self.options.batch);
            }
            let at = flush_at.unwrap_or_else(tokio::time::Instant::now);
            tokio::select! {
                biased;
                () = token.cancelled() => return,
                Some(event) = services.next() => {
                    let touched = self.services.apply(event, |s, _| ServiceSeen::new(s));
                    for (key, old) in touched { self.service_changed(key, old.as_ref()); }
                }
                Some(event) = pods.next() => {
                    let touched = self.pods.apply(event, |p, _| Some(PodSeen::new(p)));
                    for (key, old) in touched { self.pod_changed(&key, old.as_ref()); }
                }
                () = tokio::time::sleep_until(at), if flush_at.is_some() => {
                    flush_at = None;
                    self.flush().await;
                }
            }
        }
    }

    fn service_changed(&mut self, key: Key, old: Option<&ServiceSeen>) {
        let new = self.services.get(&key);
        if new == old {
            return;
        }
        for (service, add) in [(old, false), (new, true)] {
            let pair = service.and_then(|s| s.selector.first_key_value());
            let Some((name, value)) = pair else { continue };
            let entry = self.by_selector.entry((key.0.clone(), name.clone(), value.clone())).or_default();
            if add {
                entry.insert(key.1.clone())
            } else {
                entry.remove(&key.1)
            };
        }
        self.written.remove(&key);
        self.dirty.insert(key);
    }

    fn pod_changed(&mut self, key: &Key, old: Option<&PodSeen>) {
        let new = self.pods.get(key);
        if new == old {
            return;
        }
        for (pod, add) in [(old, false), (new, true)] {
            for (name, value) in pod.iter().flat_map(|p| &p.labels) {
                let label = (key.0.clone(), name.clone(), value.clone());
                let services = self.by_selector.get(&label).into_iter().flatten();
                self.dirty.extend(services.map(|service| (key.0.clone(), service.clone())));
                let entry = self.pods_by_label.entry(label.clone()).or_default();
                if add {
                    entry.insert(key.1.clone())
                } else {
                    entry.remove(&key.1)
                };
                if entry.is_empty() {
                    self.pods_by_label.remove(&label);
                }
            }
        }
    }

    async fn flush(&mut self) {
        let mut slices = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            let slice = self.services.get(&key).map(|service| self.slice(&key, service));
            if slice.is_none() || self.written.get(&key) != slice.as_ref() {
                slices.push((key, slice));
            }
        }
        let most = self.options.concurrency.max(1);
        let writes = slices.into_iter().map(|(key, slice)| {
            let client = self.client.clone();
            async move {
                let answer = write(&client, &key, slice.as_ref()).await;
                Ok::<_, std::convert::Infallible>((key, slice, answer))
            }
        });
        let done: Vec<_> = match futures::stream::iter(writes).buffer_unordered(most).try_collect().await {
            Ok(done) => done,
            Err(never) => match never {},
        };
        for (key, slice, answer) in done {
            match (answer, slice) {
                (Ok(()), Some(slice)) => drop(self.written.insert(key, slice)),
                (Ok(()), None) => drop(self.written.remove(&key)),
                (Err(error), _) => {
                    tracing::warn!(namespace = key.0, service = key.1, %error, "an EndpointSlice write failed; it is tried again");
                    self.dirty.insert(key);
                }
            }
        }
    }

    fn slice(&self, key: &Key, service: &ServiceSeen) -> Value {
        // Start from the rarest pair of the selector.
        let empty = BTreeSet::new();
        let sets = service.selector.iter().map(|(name, value)| {
            self.pods_by_label.get(&(key.0.clone(), name.clone(), value.clone())).unwrap_or(&empty)
        });
        let candidates = sets.min_by_key(|set| set.len()).into_iter().flatten();
        let pods: Vec<_> = candidates
            .filter_map(|name| Some((name, self.pods.get(&(key.0.clone(), name.clone()))?)))
            .filter(|(_, pod)| service.selector.iter().all(|(k, v)| pod.labels.get(k) == Some(v)))
            .filter(|(_, pod)| !pod.finished && pod.ip.is_some())
            .collect();
        let ports: Vec<_> =
            service.ports.iter().filter_map(|p| slice_port(p, pods.first().map(|(_, pod)| *pod))).collect();
        let endpoints: Vec<_> = pods.iter().map(|(name, pod)| pod.endpoint(key, name, service)).collect();
        let mut labels = json!({SERVICE_LABEL: key.1, "endpointslice.kubernetes.io/managed-by": "kubesim"});
        if service.headless {
            labels["service.kubernetes.io/headless"] = json!("");
        }
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": slice_name(&key.1), "namespace": key.0, "labels": labels, "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": key.1, "uid": service.uid,
                "controller": true, "blockOwnerDeletion": true}]},
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
        })
    }
}

fn slice_name(service: &str) -> String {
    format!("{service}-kubesim")
}

/// Creates, replaces or (`None`) deletes a Service's slice.
async fn write(client: &Client, key: &Key, slice: Option<&Value>) -> Result<(), kube::Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &key.0);
    let name = slice_name(&key.1);
    let Some(slice) = slice else {
        return match api.delete(&name, &DeleteParams::default()).await {
            Err(error) if !is_code(&error, 404) => Err(error),
            _ => Ok(()),
        };
    };
    // Lists of a merge patch replace those of the object.
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(slice)).await {
        Err(error) if is_code(&error, 404) => {
            let object = serde_json::from_value(slice.clone()).map_err(kube::Error::SerdeError)?;
            api.create(&PostParams::default(), &object).await.map(|_| ())
        }
        answer => answer.map(|_| ()),
    }
}

/// A port of the slice; a named target is looked up in the first pod, as all share a template.
fn slice_port(port: &ServicePort, pod: Option<&PodSeen>) -> Option<Value> {
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => *pod?.ports.get(name)?,
    };
    Some(json!({"name": port.name.as_deref().unwrap_or(""), "port": number,
                "protocol": port.protocol.as_deref().unwrap_or("TCP")}))
}

impl ServiceSeen {
    /// Services without a selector have no slice of ours.
    fn new(service: Service) -> Option<Self> {
        let spec = service.spec?;
        Some(Self {
            uid: service.metadata.uid.unwrap_or_default(),
            selector: spec.selector.filter(|s| !s.is_empty())?,
            headless: spec.cluster_ip.as_deref() == Some("None"),
            publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
            ports: spec.ports.unwrap_or_default(),
        })
    }
}

impl PodSeen {
    fn new(pod: Pod) -> Self {
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        let ports = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        Self {
            uid: pod.metadata.uid.unwrap_or_default(),
            labels: pod.metadata.labels.unwrap_or_default(),
            ip: status.pod_ip.filter(|ip| !ip.is_empty()),
            ports: ports.filter_map(|p| Some((p.name.clone()?, p.container_port))).collect(),
            node: spec.node_name,
            host: spec.hostname.zip(spec.subdomain),
            ready,
            leaving: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
        }
    }

    /// As the real controller: a leaving pod is never ready, unless unready ones are published.
    fn endpoint(&self, key: &Key, name: &str, service: &ServiceSeen) -> Value {
        let ready = service.publish_not_ready || (self.ready && !self.leaving);
        let mut endpoint = json!({
            "addresses": [self.ip],
            "conditions": {"ready": ready, "serving": self.ready, "terminating": self.leaving},
            "targetRef": {"kind": "Pod", "namespace": key.0, "name": name, "uid": self.uid},
        });
        if let Some(node) = &self.node {
            endpoint["nodeName"] = json!(node);
        }
        if let Some((hostname, _)) = self.host.as_ref().filter(|(_, subdomain)| *subdomain == key.1) {
            endpoint["hostname"] = json!(hostname);
        }
        endpoint
    }
}
