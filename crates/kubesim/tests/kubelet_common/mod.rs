//! A small cluster in memory, in virtual time.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use kubesim::api::ApiServer;
use kubesim::clock::{Clock, TokioClock};
use kubesim::kubelet::{Fleet, FleetHandle, FleetOptions, NodeSpec};
use serde_json::{Value, json};

pub struct Cluster {
    pub server: ApiServer,
    pub clock: Arc<dyn Clock>,
    pub client: Client,
    pub fleet: FleetHandle,
}

impl Cluster {
    pub async fn start(specs: Vec<NodeSpec>) -> Self {
        Self::with(FleetOptions::default(), specs).await
    }

    pub async fn with(options: FleetOptions, specs: Vec<NodeSpec>) -> Self {
        let base: Timestamp = "2030-01-01T00:00:00Z".parse().expect("a timestamp");
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::new(base));
        let server = ApiServer::new(clock.clone());
        let client = server.client("admin");
        let fleet =
            Fleet::start(server.client("kubelets"), clock.clone(), options, specs).await.expect("a fleet");
        Self { server, clock, client, fleet }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub async fn create(&self, pod: Value) -> Pod {
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods().create(&PostParams::default(), &pod).await.expect("created")
    }

    pub async fn status(&self, name: &str) -> PodStatus {
        self.pods().get_opt(name).await.expect("an answer").and_then(|p| p.status).unwrap_or_default()
    }

    pub async fn phase(&self, name: &str) -> String {
        self.status(name).await.phase.unwrap_or_default()
    }

    pub async fn reaches(&self, name: &str, phase: &str) -> PodStatus {
        until(&format!("{name} is {phase}"), || async { self.phase(name).await == phase }).await;
        self.status(name).await
    }

    pub async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.expect("deleted");
    }

    pub async fn exists(&self, name: &str) -> bool {
        self.pods().get_opt(name).await.expect("an answer").is_some()
    }

    pub async fn gone(&self, name: &str) {
        until(&format!("{name} is gone"), || async { !self.exists(name).await }).await;
    }

    pub async fn count(&self, selector: &str) -> usize {
        self.pods().list(&ListParams::default().labels(selector)).await.expect("a list").items.len()
    }
}

/// A pod bound to `node` that asks for `gpus` and never restarts.
pub fn pod(name: &str, node: &str, gpus: u32, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(k, v)| (format!("kubesim.dev/{k}"), json!(v))).collect();
    let gpus = gpus.to_string();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations, "labels": {"app": "t"}},
        "spec": {
            "nodeName": node, "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "example/main", "resources":
                {"requests": {"nvidia.com/gpu": gpus}, "limits": {"nvidia.com/gpu": gpus}}}],
        },
    })
}

/// Waits in virtual time until `holds`; fails after a virtual hour.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..36_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not within a virtual hour: {what}");
}

/// Lets virtual time pass while everything due in it happens.
pub async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
