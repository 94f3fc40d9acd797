//! How much a fleet costs: run by hand with `cargo test --release -p kubesim --test kubelet_load -- --ignored --nocapture`.

mod kubelet_common;

use std::time::Instant;

use futures::StreamExt;
use kube::api::PostParams;
use kubelet_common::{Cluster, pod, until};
use kubesim::kubelet::NodeSpec;

const NODES: u32 = 1_000;
const PODS: u32 = 10_000;

#[tokio::test(start_paused = true)]
#[ignore = "prints a figure instead of judging one"]
async fn a_thousand_nodes_run_ten_thousand_pods() {
    let begin = Instant::now();
    let lap = |what: &str| println!("{:>8.2} s  {what}", begin.elapsed().as_secs_f64());
    let specs =
        (0..NODES).map(|n| NodeSpec::hgx_h100(format!("n{n:04}")).resource("nvidia.com/gpu", "16")).collect();
    let cluster = Cluster::start(specs).await;
    lap("nodes registered");
    let pods = cluster.pods();
    let creates = (0..PODS).map(|p| {
        let pod = pod(&format!("p{p:05}"), &format!("n{:04}", p % NODES), 1, &[("run-for", "10m")]);
        let (pods, pod) = (pods.clone(), serde_json::from_value(pod).expect("a pod"));
        async move { pods.create(&PostParams::default(), &pod).await.expect("created") }
    });
    futures::stream::iter(creates).buffer_unordered(64).collect::<Vec<_>>().await;
    lap("pods created");
    let last = format!("p{:05}", PODS - 1);
    cluster.reaches(&last, "Running").await;
    lap("last pod runs");
    until("every pod has ended", || async { cluster.phase(&last).await == "Succeeded" }).await;
    lap("last pod has ended, ten virtual minutes of leases later");
    let all = pods.list(&kube::api::ListParams::default()).await.expect("a list");
    let ended =
        all.iter().filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Succeeded"));
    assert_eq!(ended.count(), PODS as usize);
    lap("all pods listed");
}
