//! Objects: create, read, update, patch, delete.

use serde_json::{Value, json};

use crate::common::send;
use crate::{CONFIGMAPS, PODS, config_map, pod, server};

#[tokio::test(start_paused = true)]
async fn a_created_object_carries_the_servers_metadata() {
    let (_, client) = server();
    let created = send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
    assert_eq!(created.text("/metadata/creationTimestamp"), "2026-01-01T00:00:00Z");
    assert_eq!(created.body["metadata"]["generation"], 1);
    assert!(!created.text("/metadata/uid").is_empty());
    assert_eq!(created.text("/status/phase"), "Pending");
    assert_eq!(created.text("/status/qosClass"), "BestEffort");
    assert_eq!(created.text("/spec/restartPolicy"), "Always");
    assert_eq!(created.body["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(created.body["spec"]["priority"], 0);
    assert_eq!(created.body["spec"]["tolerations"].as_array().unwrap().len(), 2);
    let read = send(&client, "GET", &format!("{PODS}/a"), &Value::Null).await.expect(200);
    assert_eq!(read.body, created.body);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_worded_as_the_server_words_them() {
    let (_, client) = server();
    send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
    let no_containers = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b"}, "spec": {}});
    let cases = [
        ("GET", format!("{PODS}/x"), Value::Null, 404, "NotFound", "pods \"x\" not found"),
        ("POST", PODS.into(), pod("a", ""), 409, "AlreadyExists", "pods \"a\" already exists"),
        (
            "POST",
            "/api/v1/namespaces/nowhere/pods".into(),
            pod("a", ""),
            404,
            "NotFound",
            "namespaces \"nowhere\" not found",
        ),
        (
            "POST",
            PODS.into(),
            no_containers,
            422,
            "Invalid",
            "Pod \"b\" is invalid: spec.containers: Required value",
        ),
        (
            "POST",
            PODS.into(),
            pod("A", ""),
            422,
            "Invalid",
            "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
        ),
        (
            "POST",
            PODS.into(),
            json!({"kind": "Node", "apiVersion": "v1"}),
            400,
            "BadRequest",
            "cannot be handled as a Pod",
        ),
        (
            "GET",
            "/apis/example.org/v1/things".into(),
            Value::Null,
            404,
            "NotFound",
            "could not find the requested resource",
        ),
        (
            "DELETE",
            format!("{PODS}/a/status"),
            Value::Null,
            405,
            "MethodNotAllowed",
            "does not allow this method",
        ),
        ("PATCH:text/plain", format!("{PODS}/a"), json!({}), 415, "UnsupportedMediaType", "text/plain"),
        ("PUT", format!("{PODS}/a"), pod("b", ""), 400, "BadRequest", "does not match the name on the URL"),
    ];
    for (method, path, body, code, reason, message) in cases {
        let reply = send(&client, method, &path, &body).await;
        assert_eq!(reply.code, code, "{method} {path}: {:#}", reply.body);
        assert_eq!(reply.text("/reason"), reason, "{method} {path}");
        assert!(reply.message().contains(message), "{method} {path}: {}", reply.message());
        assert_eq!(reply.body["code"], code);
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_from_an_old_version_conflicts_and_an_unchanged_one_writes_nothing() {
    let (server, client) = server();
    let first = send(&client, "POST", CONFIGMAPS, &config_map("c", &json!({"k": "1"}))).await.expect(201);
    let mut second = first.body.clone();
    second["data"]["k"] = json!("2");
    let path = format!("{CONFIGMAPS}/c");
    let stored = send(&client, "PUT", &path, &second).await.expect(200);
    let conflict = send(&client, "PUT", &path, &second).await.expect(409);
    assert_eq!(
        conflict.message(),
        "Operation cannot be fulfilled on configmaps \"c\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let before = server.revision();
    let same = send(&client, "PUT", &path, &stored.body).await.expect(200);
    assert_eq!(same.body, stored.body);
    assert_eq!(server.revision(), before, "an update that changes nothing must not write");
    send(&client, "PATCH:merge", &path, &json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "3"}}))
        .await
        .expect(409);
}

#[tokio::test(start_paused = true)]
async fn patches_merge_as_their_kind_says() {
    let (_, client) = server();
    send(&client, "POST", PODS, &pod("a", "n1")).await.expect(201);
    let path = format!("{PODS}/a/status");
    let ready = |status: &str| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    send(
        &client,
        "PATCH:strategic",
        &path,
        &json!({"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}),
    )
    .await
    .expect(200);
    let merged = send(&client, "PATCH:strategic", &path, &ready("False")).await.expect(200);
    assert_eq!(merged.body["status"]["conditions"].as_array().unwrap().len(), 2);
    let merged = send(&client, "PATCH:strategic", &path, &ready("True")).await.expect(200);
    assert_eq!(merged.body["status"]["conditions"][0]["status"], "True");
    let gone = json!({"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}});
    let left = send(&client, "PATCH:strategic", &path, &gone).await.expect(200);
    assert_eq!(left.body["status"]["conditions"].as_array().unwrap().len(), 1);
    let replaced = send(&client, "PATCH:merge", &path, &ready("True")).await.expect(200);
    assert_eq!(replaced.body["status"]["conditions"].as_array().unwrap().len(), 1);
    let operations = json!([
        {"op": "test", "path": "/metadata/labels/app", "value": "a"},
        {"op": "add", "path": "/metadata/labels/x~1y", "value": "z"},
    ]);
    let labelled = send(&client, "PATCH:json", &format!("{PODS}/a"), &operations).await.expect(200);
    assert_eq!(labelled.body["metadata"]["labels"]["x/y"], "z");
    let failing = json!([{"op": "test", "path": "/metadata/labels/app", "value": "b"}]);
    let refused = send(&client, "PATCH:json", &format!("{PODS}/a"), &failing).await.expect(422);
    assert_eq!(refused.message(), "the server rejected our request due to an error in our request");
}

#[tokio::test(start_paused = true)]
async fn apply_creates_merges_and_drops_what_its_manager_dropped() {
    let (_, client) = server();
    let path = format!("{CONFIGMAPS}/c?fieldManager=me&force=true");
    let other = format!("{CONFIGMAPS}/c?fieldManager=you&force=true");
    send(&client, "PATCH:apply", &path, &config_map("c", &json!({"a": "1", "b": "1"}))).await.expect(201);
    send(&client, "PATCH:apply", &other, &config_map("c", &json!({"c": "1"}))).await.expect(200);
    let applied = send(&client, "PATCH:apply", &path, &config_map("c", &json!({"a": "2"}))).await.expect(200);
    assert_eq!(applied.body["data"], json!({"a": "2", "c": "1"}));
    send(&client, "PATCH:apply", &format!("{CONFIGMAPS}/c"), &config_map("c", &json!({}))).await.expect(422);
}

#[tokio::test(start_paused = true)]
async fn the_pod_spec_is_immutable_but_for_its_image() {
    let (_, client) = server();
    send(&client, "POST", PODS, &pod("a", "n1")).await.expect(201);
    let path = format!("{PODS}/a");
    let image = json!({"spec": {"containers": [{"name": "main", "image": "example/image:2"}]}});
    let changed = send(&client, "PATCH:strategic", &path, &image).await.expect(200);
    assert_eq!(changed.body["metadata"]["generation"], 2);
    let refused = send(&client, "PATCH:merge", &path, &json!({"spec": {"nodeName": "n2"}})).await.expect(422);
    assert!(
        refused.message().contains("spec: Forbidden: pod updates may not change fields"),
        "{}",
        refused.message()
    );
    let status =
        send(&client, "PATCH:merge", &path, &json!({"status": {"phase": "Failed"}})).await.expect(200);
    assert_eq!(status.text("/status/phase"), "Pending", "the main resource must not write status");
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_pod_waits_for_its_kubelet_and_an_unscheduled_one_goes_at_once() {
    let (_, client) = server();
    send(&client, "POST", PODS, &pod("free", "")).await.expect(201);
    send(&client, "DELETE", &format!("{PODS}/free"), &Value::Null).await.expect(200);
    send(&client, "GET", &format!("{PODS}/free"), &Value::Null).await.expect(404);

    send(&client, "POST", PODS, &pod("bound", "n1")).await.expect(201);
    let path = format!("{PODS}/bound");
    let marked = send(&client, "DELETE", &path, &Value::Null).await.expect(200);
    assert_eq!(marked.text("/metadata/deletionTimestamp"), "2026-01-01T00:00:30Z");
    assert_eq!(marked.body["metadata"]["deletionGracePeriodSeconds"], 30);
    let longer = send(&client, "DELETE", &path, &json!({"gracePeriodSeconds": 60})).await.expect(200);
    assert_eq!(longer.text("/metadata/deletionTimestamp"), "2026-01-01T00:00:30Z");
    let uid = marked.text("/metadata/uid");
    let wrong = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    let refused = send(&client, "DELETE", &path, &wrong).await.expect(409);
    assert!(
        refused.message().contains("the UID in the precondition (other) does not match the UID in record"),
        "{}",
        refused.message()
    );
    let right = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    send(&client, "DELETE", &path, &right).await.expect(200);
    send(&client, "GET", &path, &Value::Null).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_and_cannot_be_added_while_it_goes() {
    let (_, client) = server();
    let mut object = config_map("c", &json!({}));
    object["metadata"]["finalizers"] = json!(["example.org/hold"]);
    send(&client, "POST", CONFIGMAPS, &object).await.expect(201);
    let path = format!("{CONFIGMAPS}/c");
    let held = send(&client, "DELETE", &path, &Value::Null).await.expect(200);
    assert!(!held.text("/metadata/deletionTimestamp").is_empty());
    let more = json!({"metadata": {"finalizers": ["example.org/hold", "example.org/more"]}});
    let refused = send(&client, "PATCH:merge", &path, &more).await.expect(422);
    assert!(refused.message().contains("no new finalizers can be added"), "{}", refused.message());
    send(&client, "PATCH:merge", &path, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    send(&client, "GET", &path, &Value::Null).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn selectors_and_pages_cut_a_list() {
    let (_, client) = server();
    for (name, node, tier) in [("a", "n1", "x"), ("b", "n2", "x"), ("c", "n1", "y"), ("d", "", "z")] {
        let mut object = pod(name, node);
        object["metadata"]["labels"]["tier"] = json!(tier);
        send(&client, "POST", PODS, &object).await.expect(201);
    }
    let cases = [
        ("labelSelector=tier%3Dx", "a b"),
        ("labelSelector=tier+in+(x,y)", "a b c"),
        ("labelSelector=tier+notin+(x,y)", "d"),
        ("labelSelector=tier,!none", "a b c d"),
        ("labelSelector=tier!%3Dx,app%3Da", "c d"),
        ("fieldSelector=spec.nodeName%3Dn1", "a c"),
        ("fieldSelector=spec.nodeName%3D", "d"),
        ("fieldSelector=status.phase%3DPending,metadata.name!%3Da", "b c d"),
        ("limit=2", "a b"),
    ];
    for (query, expected) in cases {
        let list = send(&client, "GET", &format!("{PODS}?{query}"), &Value::Null).await.expect(200);
        assert_eq!(names(&list.body), expected, "{query}");
    }
    let page = send(&client, "GET", &format!("{PODS}?limit=3"), &Value::Null).await.expect(200);
    assert_eq!(page.body["metadata"]["remainingItemCount"], 1);
    let token = page.text("/metadata/continue").replace('/', "%2F");
    let rest =
        send(&client, "GET", &format!("{PODS}?limit=3&continue={token}"), &Value::Null).await.expect(200);
    assert_eq!(names(&rest.body), "d");
    send(&client, "GET", &format!("{PODS}?fieldSelector=spec.color%3Dred"), &Value::Null).await.expect(400);
    let gone =
        send(&client, "DELETE", &format!("{PODS}?labelSelector=tier%3Dz"), &Value::Null).await.expect(200);
    assert_eq!(names(&gone.body), "d");
}

fn names(list: &Value) -> String {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|i| i["metadata"]["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[tokio::test(start_paused = true)]
async fn binding_and_eviction_act_on_the_pod() {
    let (_, client) = server();
    send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    send(&client, "POST", &format!("{PODS}/a/binding"), &binding).await.expect(201);
    let twice = send(&client, "POST", &format!("{PODS}/a/binding"), &binding).await.expect(409);
    assert!(twice.message().contains("pod a is already assigned to node \"n1\""), "{}", twice.message());
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    send(&client, "POST", &format!("{PODS}/a/eviction"), &eviction).await.expect(201);
    let leaving = send(&client, "GET", &format!("{PODS}/a"), &Value::Null).await.expect(200);
    assert!(!leaving.text("/metadata/deletionTimestamp").is_empty());
    let conditions = leaving.body["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "EvictionByEvictionAPI")
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_but_changes_nothing() {
    let (server, client) = server();
    let before = server.revision();
    let shown = send(&client, "POST", &format!("{PODS}?dryRun=All"), &pod("a", "")).await.expect(201);
    assert_eq!(shown.text("/spec/schedulerName"), "default-scheduler");
    assert_eq!(server.revision(), before);
    send(&client, "GET", &format!("{PODS}/a"), &Value::Null).await.expect(404);
}

#[tokio::test(start_paused = true)]
async fn generated_names_differ() {
    let (_, client) = server();
    let mut object = config_map("", &json!({}));
    object["metadata"] = json!({"generateName": "c-"});
    let one = send(&client, "POST", CONFIGMAPS, &object).await.expect(201);
    let two = send(&client, "POST", CONFIGMAPS, &object).await.expect(201);
    assert!(one.text("/metadata/name").starts_with("c-"));
    assert_ne!(one.text("/metadata/name"), two.text("/metadata/name"));
}

#[tokio::test(start_paused = true)]
async fn a_priority_class_sets_the_pods_priority() {
    let (_, client) = server();
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000,
    });
    send(&client, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", &class).await.expect(201);
    let mut object = pod("a", "");
    object["spec"]["priorityClassName"] = json!("high");
    let created = send(&client, "POST", PODS, &object).await.expect(201);
    assert_eq!(created.body["spec"]["priority"], 1000);
    object["spec"]["priorityClassName"] = json!("none");
    object["metadata"]["name"] = json!("b");
    let refused = send(&client, "POST", PODS, &object).await.expect(403);
    assert!(refused.message().contains("no PriorityClass with name none was found"), "{}", refused.message());
}
