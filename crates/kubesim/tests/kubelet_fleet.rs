//! Simulated kubelets against the in-memory API, in virtual time.

mod kubelet_common;

use kubelet_common::{Cluster, pass, pod, until};
use kubesim::kubelet::NodeSpec;
use serde_json::json;

async fn one_node() -> Cluster {
    Cluster::start(vec![NodeSpec::hgx_h100("n1")]).await
}

#[tokio::test(start_paused = true)]
async fn nodes_register_ready_with_devices_and_renew_their_leases() {
    let cluster = one_node().await;
    let node = cluster.nodes().get("n1").await.expect("registered");
    assert_eq!(node.metadata.labels.expect("labels")["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3");
    let status = node.status.expect("a status");
    assert_eq!(status.allocatable.expect("allocatable")["nvidia.com/gpu"].0, "8");
    let ready =
        status.conditions.expect("conditions").into_iter().find(|c| c.type_ == "Ready").expect("Ready");
    assert_eq!(ready.status, "True");
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(cluster.client.clone(), kubesim::kubelet::LEASE_NAMESPACE);
    let renewed = || async { leases.get("n1").await.expect("a lease").spec.and_then(|s| s.renew_time) };
    let first = renewed().await;
    until("the lease is renewed", || async { renewed().await > first }).await;
    cluster.fleet.kill("n1").await.expect("killed");
    let last = renewed().await;
    pass(60).await;
    assert_eq!(renewed().await, last, "a dead node renews nothing");
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_to_its_scripted_end_with_two_writes() {
    let cluster = one_node().await;
    cluster.create(pod("a", "n1", 8, &[("run-for", "30s")])).await;
    let status = cluster.reaches("a", "Running").await;
    assert!(status.start_time.is_some() && status.pod_ip.is_some());
    let ready =
        status.conditions.expect("conditions").into_iter().find(|c| c.type_ == "Ready").expect("Ready");
    assert_eq!(ready.status, "True");
    let status = cluster.reaches("a", "Succeeded").await;
    let ended = status.container_statuses.expect("containers")[0].state.clone().and_then(|s| s.terminated);
    let ended = ended.expect("terminated");
    let (from, to) = (ended.started_at.expect("start").0, ended.finished_at.expect("end").0);
    assert_eq!(to.duration_since(from).as_secs(), 30);

    cluster.create(pod("b", "n1", 1, &[("run-for", "1s"), ("exit-code", "3")])).await;
    let status = cluster.reaches("b", "Failed").await;
    let code = status.container_statuses.expect("containers")[0].state.clone().and_then(|s| s.terminated);
    assert_eq!(code.expect("terminated").exit_code, 3);
}

#[tokio::test(start_paused = true)]
async fn a_leaving_pod_holds_its_devices_until_its_containers_have_ended() {
    let cluster = one_node().await;
    cluster.create(pod("old", "n1", 8, &[("ignore-sigterm", "true")])).await;
    cluster.reaches("old", "Running").await;
    cluster.delete("old").await;
    cluster.create(pod("early", "n1", 8, &[])).await;
    let status = cluster.reaches("early", "Failed").await;
    assert_eq!(status.reason.as_deref(), Some("OutOfnvidia.com/gpu"));
    assert!(status.container_statuses.is_none(), "no container started");
    let before = cluster.clock.now();
    cluster.gone("old").await;
    let took = cluster.clock.now().duration_since(before).as_secs();
    assert!((28..=31).contains(&took), "the whole grace period of 30 s, not {took}");
    cluster.create(pod("late", "n1", 8, &[])).await;
    cluster.reaches("late", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_lets_the_terminal_status_be_read() {
    let cluster = one_node().await;
    let mut held = pod("held", "n1", 1, &[("exit-on-term", "0")]);
    held["metadata"]["finalizers"] = json!(["example.com/result"]);
    cluster.create(held).await;
    cluster.reaches("held", "Running").await;
    cluster.delete("held").await;
    cluster.reaches("held", "Succeeded").await;
    pass(120).await;
    assert!(cluster.exists("held").await, "the finalizer holds it");
    let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    cluster.pods().patch("held", &kube::api::PatchParams::default(), &patch).await.expect("released");
    cluster.gone("held").await;
}

#[tokio::test(start_paused = true)]
async fn nodes_refuse_or_ignore_pods_as_told_and_lose_devices() {
    let cluster = one_node().await;
    cluster.fleet.refuse_pods("n1", "TopologyAffinityError").await.expect("told");
    cluster.create(pod("refused", "n1", 1, &[])).await;
    assert_eq!(cluster.reaches("refused", "Failed").await.reason.as_deref(), Some("TopologyAffinityError"));

    cluster.fleet.silent("n1").await.expect("told");
    cluster.create(pod("ignored", "n1", 1, &[])).await;
    pass(300).await;
    let status = cluster.status("ignored").await;
    assert!(status.start_time.is_none(), "a silent kubelet does not even set startTime");
    cluster.fleet.revive("n1").await.expect("revived");
    cluster.reaches("ignored", "Running").await;

    cluster.fleet.set_allocatable("n1", "nvidia.com/gpu", "7").await.expect("told");
    let node = cluster.nodes().get("n1").await.expect("the node");
    assert_eq!(node.status.and_then(|s| s.allocatable).expect("allocatable")["nvidia.com/gpu"].0, "7");
    cluster.create(pod("whole", "n1", 8, &[])).await;
    assert_eq!(cluster.reaches("whole", "Failed").await.reason.as_deref(), Some("UnexpectedAdmissionError"));
    cluster.create(pod("typo", "n1", 0, &[("run-fro", "1s")])).await;
    assert_eq!(cluster.reaches("typo", "Failed").await.reason.as_deref(), Some("InvalidScript"));
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_reports_nothing_and_finds_its_containers_dead_when_it_is_back() {
    let cluster = one_node().await;
    cluster.create(pod("lost", "n1", 1, &[("run-for", "60s")])).await;
    cluster.create(pod("leaving", "n1", 1, &[])).await;
    let mut again = pod("again", "n1", 1, &[]);
    again["spec"]["restartPolicy"] = json!("Always");
    cluster.create(again).await;
    for name in ["lost", "leaving", "again"] {
        cluster.reaches(name, "Running").await;
    }
    cluster.fleet.kill("n1").await.expect("killed");
    cluster.delete("leaving").await;
    pass(600).await;
    assert_eq!(cluster.phase("lost").await, "Running", "nobody reports the end");
    assert!(cluster.exists("leaving").await, "nobody confirms the deletion");
    cluster.fleet.revive("n1").await.expect("revived");
    cluster.reaches("lost", "Failed").await;
    cluster.gone("leaving").await;
    until("the container runs again", || async {
        cluster.status("again").await.container_statuses.is_some_and(|c| c[0].restart_count == 1)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hung_kubelet_lets_containers_run_on_and_reports_late() {
    let cluster = one_node().await;
    cluster.create(pod("a", "n1", 1, &[("run-for", "60s")])).await;
    cluster.reaches("a", "Running").await;
    cluster.fleet.hang("n1").await.expect("hung");
    pass(300).await;
    assert_eq!(cluster.phase("a").await, "Running");
    cluster.fleet.revive("n1").await.expect("revived");
    let status = cluster.reaches("a", "Succeeded").await;
    let ended = status.container_statuses.expect("containers")[0].state.clone().and_then(|s| s.terminated);
    let ended = ended.expect("terminated");
    let ran = ended.finished_at.expect("end").0.duration_since(ended.started_at.expect("start").0);
    assert_eq!(ran.as_secs(), 60, "it ended while the kubelet hung");
}

#[tokio::test(start_paused = true)]
async fn containers_restart_in_place_and_can_be_ended_by_hand() {
    let cluster = one_node().await;
    let mut failing = pod("f", "n1", 1, &[("fail-once-at", "5s")]);
    failing["spec"]["restartPolicy"] = json!("OnFailure");
    cluster.create(failing).await;
    until("one restart", || async {
        cluster.status("f").await.container_statuses.is_some_and(|c| c[0].restart_count == 1)
    })
    .await;
    assert_eq!(cluster.phase("f").await, "Running");
    cluster.fleet.crash_container("default", "f", 9).await.expect("crashed");
    until("a back-off of 10 s before the second restart", || async {
        let status = cluster.status("f").await;
        status.container_statuses.is_some_and(|c| {
            c[0].state
                .as_ref()
                .and_then(|s| s.waiting.as_ref())
                .is_some_and(|w| w.reason.as_deref() == Some("CrashLoopBackOff"))
        })
    })
    .await;
    until("two restarts", || async {
        cluster.status("f").await.container_statuses.is_some_and(|c| c[0].restart_count == 2)
    })
    .await;
    until("it runs", || async { cluster.fleet.finish_pod("default", "f", 0).await.is_ok() }).await;
    cluster.reaches("f", "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn the_active_deadline_ends_a_pod() {
    let cluster = one_node().await;
    let mut late = pod("late", "n1", 1, &[]);
    late["spec"]["activeDeadlineSeconds"] = json!(20);
    cluster.create(late).await;
    cluster.reaches("late", "Running").await;
    assert_eq!(cluster.reaches("late", "Failed").await.reason.as_deref(), Some("DeadlineExceeded"));
}
