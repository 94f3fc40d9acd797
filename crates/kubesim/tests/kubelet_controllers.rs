//! Node lifecycle, endpoints, pod collection and scheduling around simulated kubelets.

mod kubelet_common;

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::PostParams;
use kubelet_common::{Cluster, pass, pod, until};
use kubesim::kubelet::NodeSpec;
use kubesim::node_controllers::resolver::resolve;
use kubesim::node_controllers::{EndpointSlices, NodeLifecycle, PodGc, Scheduler};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

async fn two_nodes() -> Cluster {
    Cluster::start(vec![NodeSpec::hgx_h100("n1"), NodeSpec::hgx_h100("n2")]).await
}

async fn ready(cluster: &Cluster, node: &str) -> String {
    let status = cluster.nodes().get(node).await.expect("the node").status.unwrap_or_default();
    let ready = status.conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    ready.map(|c| c.status).unwrap_or_default()
}

async fn taints(cluster: &Cluster, node: &str) -> Vec<String> {
    let spec = cluster.nodes().get(node).await.expect("the node").spec.unwrap_or_default();
    spec.taints.into_iter().flatten().map(|t| format!("{}:{}", t.key, t.effect)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_marked_tainted_and_emptied_and_put_back() {
    let cluster = two_nodes().await;
    NodeLifecycle::default().start(cluster.client.clone(), cluster.clock.clone(), CancellationToken::new());
    let mut brief = pod("brief", "n1", 1, &[]);
    brief["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists",
        "effect": "NoExecute", "tolerationSeconds": 60}]);
    cluster.create(brief).await;
    cluster.create(pod("stays", "n1", 1, &[])).await;
    cluster.reaches("brief", "Running").await;
    cluster.reaches("stays", "Running").await;
    pass(120).await;
    assert_eq!(ready(&cluster, "n1").await, "True", "leases keep it");

    let killed = cluster.clock.now();
    cluster.fleet.kill("n1").await.expect("killed");
    until("n1 is Unknown", || async { ready(&cluster, "n1").await == "Unknown" }).await;
    let silent = cluster.clock.now().duration_since(killed).as_secs();
    assert!((30..=46).contains(&silent), "grace of 40 s after the last lease, not {silent}");
    until("both taints", || async {
        taints(&cluster, "n1").await
            == ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]
    })
    .await;
    let not_ready =
        cluster.status("stays").await.conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    assert_eq!(not_ready.expect("Ready").status, "False");
    until("the brief pod is evicted", || async {
        cluster.pods().get("brief").await.is_ok_and(|p| p.metadata.deletion_timestamp.is_some())
    })
    .await;
    let stays = cluster.pods().get("stays").await.expect("still there");
    assert!(stays.metadata.deletion_timestamp.is_none(), "it tolerates the taint for good");
    assert_eq!(ready(&cluster, "n2").await, "True");

    cluster.fleet.revive("n1").await.expect("revived");
    until("n1 is put back", || async {
        ready(&cluster, "n1").await == "True" && taints(&cluster, "n1").await.is_empty()
    })
    .await;
    cluster.gone("brief").await;
}

async fn service(cluster: &Cluster, name: &str, publish_not_ready: bool) {
    let service: Service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"app": "t"}, "publishNotReadyAddresses": publish_not_ready,
                 "ports": [{"name": "c10d", "port": 29500}]},
    }))
    .expect("a service");
    let api: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    api.create(&PostParams::default(), &service).await.expect("created");
}

fn named(name: &str, node: &str, annotations: &[(&str, &str)]) -> Value {
    let mut pod = pod(name, node, 1, annotations);
    pod["spec"]["hostname"] = json!(name);
    pod["spec"]["subdomain"] = json!("ranks");
    pod
}

#[tokio::test(start_paused = true)]
async fn names_resolve_as_in_a_cluster_even_to_a_leaving_pod_on_a_dead_node() {
    let cluster = two_nodes().await;
    EndpointSlices::default().start(cluster.client.clone(), CancellationToken::new());
    service(&cluster, "ranks", true).await;
    service(&cluster, "strict", false).await;
    cluster.create(named("r0", "n1", &[])).await;
    cluster.create(named("r1", "n2", &[("ready-delay", "60s")])).await;
    let answers = |name: &'static str| {
        let client = cluster.client.clone();
        async move { resolve(&client, "default", name).await.expect("an answer").len() }
    };
    until("both are published", || async { answers("ranks").await == 2 }).await;
    assert_eq!(answers("ranks").await, 2);
    until("only the ready one", || async { answers("strict").await == 1 }).await;
    assert_eq!(answers("r0.ranks").await, 1);
    assert_eq!(answers("r9.ranks").await, 0);
    until("the second is ready as well", || async { answers("strict").await == 2 }).await;

    cluster.fleet.kill("n1").await.expect("killed");
    cluster.delete("r0").await;
    until("a leaving pod is not ready", || async { answers("strict").await == 1 }).await;
    pass(600).await;
    assert_eq!(answers("r0.ranks").await, 1, "the dead pod's name goes on resolving");
    let slices: Api<EndpointSlice> = Api::namespaced(cluster.client.clone(), "default");
    let slice = slices.get("strict-kubesim").await.expect("a slice");
    let dead = slice
        .endpoints
        .iter()
        .flatten()
        .find(|e| e.conditions.as_ref().and_then(|c| c.terminating) == Some(true));
    let conditions = dead.and_then(|e| e.conditions.clone()).expect("the leaving endpoint is listed");
    assert_eq!((conditions.ready, conditions.serving), (Some(false), Some(true)));
    cluster.pods().delete("r0", &kube::api::DeleteParams::default().grace_period(0)).await.expect("forced");
    until("gone from DNS", || async { answers("r0.ranks").await == 0 }).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_vanished_nodes_and_old_finished_ones_are_collected() {
    let cluster = two_nodes().await;
    let gc = PodGc { threshold: 2, ..PodGc::default() };
    gc.start(cluster.client.clone(), cluster.clock.clone(), CancellationToken::new());
    cluster.create(pod("orphan", "n1", 1, &[])).await;
    cluster.reaches("orphan", "Running").await;
    cluster.fleet.delete_node("n1").await.expect("deleted");
    cluster.gone("orphan").await;
    for name in ["f1", "f2", "f3"] {
        cluster.create(pod(name, "n2", 1, &[("run-for", "1s")])).await;
        cluster.reaches(name, "Succeeded").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    cluster.gone("f1").await;
    assert_eq!(cluster.count("app=t").await, 2);
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_binds_where_rules_and_resources_allow() {
    let cluster = two_nodes().await;
    Scheduler::default().start(cluster.client.clone(), cluster.clock.clone(), CancellationToken::new());
    let unbound = |name: &str, gpus: u32| {
        let mut pod = pod(name, "", gpus, &[]);
        pod["spec"].as_object_mut().expect("a spec").remove("nodeName");
        pod
    };
    let node_of = |name: &'static str| {
        let pods = cluster.pods();
        async move { pods.get(name).await.expect("the pod").spec.and_then(|s| s.node_name) }
    };
    let mut pinned = unbound("pinned", 8);
    pinned["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}}});
    cluster.create(pinned).await;
    cluster.reaches("pinned", "Running").await;
    assert_eq!(node_of("pinned").await.as_deref(), Some("n2"));
    cluster.create(unbound("a", 5)).await;
    cluster.reaches("a", "Running").await;
    assert_eq!(node_of("a").await.as_deref(), Some("n1"));
    cluster.create(unbound("b", 5)).await;
    until("b is reported", || async {
        let conditions = cluster.status("b").await.conditions.unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable"))
    })
    .await;
    cluster.delete("a").await;
    cluster.reaches("b", "Running").await;
}
