//! Nodes, and what a plan in force stands on when other objects change or go.

use super::*;

/// A queue or class that is gone takes nothing from a gang that holds a plan: it recovers as it would have.
#[test]
fn a_gang_whose_queue_or_class_is_gone_recovers() {
    let mut table = Table::new(0);
    for at in 0..2 {
        table.tell(Event::Node(Change::Set(gpu_node(at, "card", 8, 0))));
    }
    let class = json!({
        "resource": "nvidia.com/gpu", "productLabel": "nvidia.com/gpu.product", "products": ["card"],
    });
    table.apply(Kind::Class, "big", &class);
    table.apply(Kind::Queue, "team", &json!({}));
    let role = json!([{
        "name": "worker", "devices": 8, "units": { "min": 1, "max": 1 },
        "template": { "spec": { "containers": [{ "name": "trainer" }] } },
    }]);
    table.submit_with("gang", 1, &json!({ "queue": "team", "classes": ["big"], "roles": role }));
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    assert_eq!(table.plan("gang").as_deref(), Some("node-0"));
    table.others.clear();
    table.tell(Event::Queue(Change::Gone(ObjectKey::new("", "team"), Uid("team".into()))));
    table.tell(Event::Class(Change::Gone(ObjectKey::new("", "big"), Uid("big".into()))));
    table.settle(2_000);
    table.tell(Event::Node(Change::Gone(ObjectKey::new("", "node-0"), Uid("node-0".into()))));
    table.settle(10_000);
    assert_eq!(table.plan("gang").as_deref(), Some("node-1"), "{}", table.gangs["gang"]["status"]);
}

/// The next leader judges a plan by what it was made from: tolerations that admission adds to the pods still hold.
#[test]
fn the_next_leader_judges_a_plan_as_this_one_did() {
    let mut table = Table::new(0);
    let tainted = |at: usize| {
        let mut node = node(at, true);
        let taint = json!([{ "key": "sandbox", "value": "kata", "effect": "NoSchedule" }]);
        node.0.spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
        node
    };
    table.admission = Some(|spec: &mut PodSpec| {
        let toleration = Toleration {
            key: Some("sandbox".into()),
            operator: Some("Exists".into()),
            ..Toleration::default()
        };
        spec.tolerations.get_or_insert_default().push(toleration);
    });
    for at in 0..2 {
        table.tell(Event::Node(Change::Set(tainted(at))));
    }
    table.submit("gang", 2);
    // It dies in the midst of creation.
    table.until(is_creation);
    table.core = Core::new(Config::default(), 2);
    table.asked.clear();
    for at in 0..2 {
        table.tell(Event::Node(Change::Set(tainted(at))));
    }
    table.show("gang");
    table.core.start();
    let asked = table.settle(10_000);
    assert_eq!(count(&asked, is_creation), 2, "{asked:?}");
    assert_eq!(table.gangs["gang"]["status"]["lastGeneration"], 1, "{}", table.gangs["gang"]["status"]);
}

/// A program that fails on a node which lost a device since goes elsewhere at once: it could not start there again.
#[test]
fn a_restart_in_place_needs_a_node_that_can_hold_it() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    let mut less = node(0, true);
    let room = less.0.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    room.insert("cpu".into(), Quantity("3".into()));
    table.tell(Event::Node(Change::Set(less)));
    let pod = table.first_pod();
    table.end(&pod, 1);
    table.settle(20_000);
    assert_eq!(table.plan("gang").as_deref(), Some("node-1"), "{}", table.gangs["gang"]["status"]);
}

/// An elastic gang under a quota that has no room for its most asks for what there is.
#[test]
fn an_elastic_gang_asks_for_what_its_quota_leaves() {
    let mut table = Table::new(8);
    let quota = json!({
        "metadata": { "name": "pods", "namespace": "space" },
        "spec": { "hard": { "pods": "4" } }, "status": { "used": { "pods": "0" } },
    });
    table.tell(Event::Quota(Change::Set(serde_json::from_value(quota).unwrap())));
    let role = json!([{
        "name": "worker",
        "template": { "spec": { "containers": [{
            "name": "trainer", "resources": { "requests": { "cpu": "4" } },
        }] } },
        "units": { "min": 2, "max": 8 },
    }]);
    table.submit_with("elastic", 2, &json!({ "roles": role }));
    // What is planned and not counted by the server yet is not given out twice.
    let late = |want: &Want| is_creation(want).then(|| Outcome::Transient("too many requests".into()));
    table.settle_but(5_000, late);
    table.submit("other", 1);
    table.settle_but(10_000, late);
    assert_eq!(table.gangs["other"]["status"]["reason"], "QuotaExceeded");
    let asked = table.settle(40_000);
    assert_eq!(count(&asked, is_creation), 4, "{}", table.gangs["elastic"]["status"]);
}

/// A node that was made anew under its name while nobody led: its kubelet knows nothing of the old pods and says so, and
/// the gang goes on with one restart, on another node.
#[test]
fn a_node_made_anew_while_nobody_led_is_a_lost_node() {
    let mut table = Table::new(2);
    table.submit("gang", 1);
    table.settle(2_000);
    table.run_all();
    table.settle(5_000);
    assert_eq!(table.plan("gang").as_deref(), Some("node-0"));
    let (name, body) = table.pods.first_key_value().map(|(name, body)| (name.clone(), body.clone())).unwrap();
    table.core = Core::new(Config::default(), 2);
    table.asked.clear();
    let mut anew = node(0, true);
    anew.0.metadata.uid = Some("another-machine".into());
    table.tell(Event::Node(Change::Set(anew)));
    table.tell(Event::Node(Change::Set(node(1, true))));
    table.show("gang");
    table.tell(Event::Pod(Change::Set(running(&body, &name))));
    table.core.start();
    table.settle(2_000);
    let mut unknown = ended(&body, &name, 137);
    let status = unknown.0.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    // As a kubelet counts that finds nothing of a container that ran.
    status[0].restart_count = 1;
    let state = status[0].state.as_mut().and_then(|state| state.terminated.as_mut()).unwrap();
    (state.reason, state.started_at) = (Some("ContainerStatusUnknown".into()), None);
    table.tell(Event::Pod(Change::Set(unknown)));
    table.settle(10_000);
    let status = &table.gangs["gang"]["status"];
    assert_eq!(table.plan("gang").as_deref(), Some("node-1"), "{status}");
    assert_eq!(status["restartsTotal"], 1, "{status}");
}
