//! Kubelets on the server itself: what they do with pods and nodes, and that two servers made of one do not meet.

use http::Method;
use jiff::Timestamp;
use kubesim::api::ApiServer;
use kubesim::clock::TokioClock;
use kubesim::kubelet::node::Power;
use kubesim::kubelet::{DirectFleet, DirectOptions, NodeSpec};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const PODS: &str = "/api/v1/namespaces/default/pods";

struct World {
    server: ApiServer,
    fleet: DirectFleet,
}

impl World {
    fn new() -> Self {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let clock = Arc::new(TokioClock::new(base));
        let server = ApiServer::new(clock.clone());
        server.keep_journal();
        let mut fleet = DirectFleet::new(server.clone(), clock, DirectOptions::default());
        fleet.add(NodeSpec::hgx_h100("node-0")).expect("its quantities are right");
        Self { server, fleet }
    }

    /// Passes time, second by second.
    async fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let writes = self.server.take_journal();
            self.fleet.written(&writes);
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.fleet.run();
        }
    }

    fn create(&self, name: &str, gpus: u32) {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "node-0", "containers": [{
            "name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }]}});
        self.server.act("user", Method::POST, PODS, "application/json", &pod).expect("it is created");
    }

    fn phase(&self, name: &str) -> Option<String> {
        let pod = self.server.object("", "pods", "default", name)?;
        Some(pod["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    fn ready(&self) -> Value {
        let node = self.server.object("", "nodes", "", "node-0").expect("the node");
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|c| c["type"] == "Ready").map(|c| c["status"].clone()).unwrap_or_default()
    }
}

#[tokio::test(start_paused = true)]
async fn pods_start_are_refused_and_go() {
    let mut world = World::new();
    world.create("first", 8);
    world.pass(2).await;
    world.create("second", 1);
    world.pass(2).await;
    assert_eq!(world.phase("first").as_deref(), Some("Running"));
    assert_eq!(world.phase("second").as_deref(), Some("Failed"), "its node is full");
    let path = format!("{PODS}/first");
    world.server.act("user", Method::DELETE, &path, "application/json", &Value::Null).expect("it is deleted");
    world.pass(5).await;
    assert_eq!(world.phase("first"), None);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_turns_unknown_and_its_pods_are_evicted() {
    let mut world = World::new();
    world.create("p", 1);
    world.pass(2).await;
    world.fleet.set_power("node-0", Power::Hung);
    world.pass(45).await;
    assert_eq!(world.ready(), "Unknown");
    world.pass(310).await;
    let leaving = |world: &World| {
        world
            .server
            .object("", "pods", "default", "p")
            .is_some_and(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    };
    assert!(leaving(&world), "nobody confirms that it is gone");
    world.fleet.set_power("node-0", Power::Up);
    world.pass(40).await;
    assert_eq!((world.ready(), world.phase("p")), (json!("True"), None));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanishes_returns_as_another_and_its_pods_do_not_run_on() {
    let mut world = World::new();
    world.create("p", 1);
    world.pass(2).await;
    let uid = |world: &World| {
        world.server.object("", "nodes", "", "node-0").map(|node| node["metadata"]["uid"].clone())
    };
    let before = uid(&world);
    world.fleet.remove("node-0");
    world.pass(10).await;
    assert_eq!(
        (uid(&world), world.phase("p").as_deref()),
        (None, Some("Running")),
        "nobody says that it is dead"
    );
    world.fleet.add(NodeSpec::hgx_h100("node-0")).expect("its quantities are right");
    world.pass(5).await;
    assert_ne!(uid(&world), before);
    let pod = world.server.object("", "pods", "default", "p").expect("it is still there");
    assert_eq!(
        pod["status"]["containerStatuses"][0]["restartCount"], 1,
        "its containers were dead: {:#}",
        pod["status"]
    );
    world.fleet.remove("node-0");
    world.pass(70).await;
    assert_eq!(world.phase("p"), None, "the pods of a node that is missing are collected");
}

#[tokio::test(start_paused = true)]
async fn a_fork_has_the_objects_and_goes_its_own_way() {
    let mut world = World::new();
    world.create("before", 1);
    world.pass(2).await;
    let clock = Arc::new(TokioClock::new("2026-01-01T00:00:00Z".parse().expect("a time")));
    let fork = world.server.fork(clock);
    world.create("after", 1);
    let names = |server: &ApiServer| -> Vec<Value> {
        server.objects("", "pods").iter().map(|pod| pod["metadata"]["name"].clone()).collect()
    };
    assert_eq!(names(&fork), ["before"]);
    assert_eq!(names(&world.server), ["after", "before"]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_range_refuses_what_is_too_large() {
    let world = World::new();
    let range =
        json!({"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}}]}});
    let path = "/api/v1/namespaces/default/limitranges";
    world.server.act("user", Method::POST, path, "application/json", &range).expect("it is created");
    let pod = |cpu: &str| {
        json!({"metadata": {"name": format!("p{cpu}")}, "spec": {"containers": [{
            "name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}})
    };
    let create = |pod: &Value| world.server.act("user", Method::POST, PODS, "application/json", pod);
    assert!(create(&pod("1")).is_ok());
    let refused = create(&pod("2")).expect_err("more than the maximum");
    assert_eq!((refused.code, refused.message.contains("maximum cpu usage per Container is 1")), (403, true));
}
