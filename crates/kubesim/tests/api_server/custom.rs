//! Custom resources: serving, defaults, pruning, validation, status and scale.

use kube::Client;
use serde_json::{Value, json};

use crate::common::send;
use crate::server;

const WIDGETS: &str = "/apis/example.org/v1/namespaces/default/widgets";

pub fn crd() -> Value {
    let condition = json!({"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string"}, "status": {"type": "string"},
    }});
    let spec = json!({
        "type": "object", "required": ["size"],
        "x-kubernetes-validations": [
            {"rule": "self.size <= self.max", "message": "size must not exceed max"},
            {"rule": "self.kind == oldSelf.kind", "message": "kind is immutable", "fieldPath": ".kind"},
        ],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "max": {"type": "integer", "default": 8},
            "replicas": {"type": "integer", "default": 1},
            "kind": {"type": "string", "enum": ["Round", "Square"], "default": "Round"},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
            "port": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "nested": {"type": "object", "properties": {"deep": {"type": "boolean", "default": true}}},
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": spec,
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"},
                        "conditions": {"type": "array", "items": condition, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
                    }},
                }}},
            }],
        },
    })
}

pub fn widget(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

async fn install(client: &Client) {
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    send(client, "POST", crds, &crd()).await.expect(201);
    let stored = send(client, "GET", &format!("{crds}/widgets.example.org"), &Value::Null).await.expect(200);
    let conditions = stored.body["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
}

#[tokio::test(start_paused = true)]
async fn defaults_are_filled_and_unknown_fields_pruned() {
    let (_, client) = server();
    install(&client).await;
    let spec = json!({"size": 2, "unknown": 1, "free": {"any": [1]}, "nested": {"odd": 1}, "port": "http"});
    let created = send(&client, "POST", WIDGETS, &widget("a", &spec)).await.expect(201);
    assert_eq!(
        created.body["spec"],
        json!({
            "size": 2, "max": 8, "replicas": 1, "kind": "Round", "free": {"any": [1]}, "nested": {"deep": true}, "port": "http",
        })
    );
}

#[tokio::test(start_paused = true)]
async fn the_schema_and_its_rules_refuse_what_does_not_fit() {
    let (_, client) = server();
    install(&client).await;
    let cases = [
        (json!({}), "spec.size: Required value"),
        (
            json!({"size": "big"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": 1, "kind": "Odd"}),
            "spec.kind: Unsupported value: \"Odd\": supported values: \"Round\", \"Square\"",
        ),
        (
            json!({"size": 1, "name": "A"}),
            "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]+$'",
        ),
        (json!({"size": 1, "name": "abcdef"}), "spec.name: Too long: may not be more than 5 bytes"),
        (json!({"size": 9}), "spec: Invalid value: size must not exceed max"),
    ];
    for (spec, message) in cases {
        let reply = send(&client, "POST", WIDGETS, &widget("a", &spec)).await;
        assert_eq!(reply.code, 422, "{spec}: {:#}", reply.body);
        assert!(reply.message().contains(message), "{spec}: {}", reply.message());
        assert!(reply.message().starts_with("Widget.example.org \"a\" is invalid: "), "{}", reply.message());
    }
    send(&client, "POST", WIDGETS, &widget("a", &json!({"size": 1}))).await.expect(201);
    let patch = json!({"spec": {"kind": "Square"}});
    let refused = send(&client, "PATCH:merge", &format!("{WIDGETS}/a"), &patch).await.expect(422);
    assert!(refused.message().contains("spec.kind: Invalid value"), "{}", refused.message());
    assert!(refused.message().contains("kind is immutable"), "{}", refused.message());
}

#[tokio::test(start_paused = true)]
async fn status_and_spec_are_written_apart() {
    let (_, client) = server();
    install(&client).await;
    let mut object = widget("a", &json!({"size": 1}));
    object["status"] = json!({"replicas": 7});
    let created = send(&client, "POST", WIDGETS, &object).await.expect(201);
    assert!(created.body.get("status").is_none(), "status is dropped at creation");
    let both = json!({"spec": {"size": 3}, "status": {"replicas": 5}, "metadata": {"labels": {"x": "y"}}});
    let by_status = send(&client, "PATCH:merge", &format!("{WIDGETS}/a/status"), &both).await.expect(200);
    assert_eq!(
        (&by_status.body["spec"]["size"], &by_status.body["status"]["replicas"]),
        (&json!(1), &json!(5))
    );
    assert_eq!(by_status.body["metadata"]["generation"], 1);
    assert!(by_status.body["metadata"].get("labels").is_none());
    let more = json!({"spec": {"size": 3}, "status": {"replicas": 9}});
    let by_main = send(&client, "PATCH:merge", &format!("{WIDGETS}/a"), &more).await.expect(200);
    assert_eq!((&by_main.body["spec"]["size"], &by_main.body["status"]["replicas"]), (&json!(3), &json!(5)));
    assert_eq!(by_main.body["metadata"]["generation"], 2);
    let mut put = by_main.body.clone();
    put["metadata"]["resourceVersion"] = json!("1");
    send(&client, "PUT", &format!("{WIDGETS}/a/status"), &put).await.expect(409);
    put["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let refused = send(&client, "PUT", &format!("{WIDGETS}/a"), &put).await.expect(422);
    assert!(
        refused
            .message()
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"),
        "{}",
        refused.message()
    );
}

#[tokio::test(start_paused = true)]
async fn scale_reads_and_writes_its_paths() {
    let (_, client) = server();
    install(&client).await;
    send(&client, "POST", WIDGETS, &widget("a", &json!({"size": 1}))).await.expect(201);
    let path = format!("{WIDGETS}/a/scale");
    let scale = send(&client, "PATCH:merge", &path, &json!({"spec": {"replicas": 4}})).await.expect(200);
    assert_eq!(scale.body["spec"]["replicas"], 4);
    let object = send(&client, "GET", &format!("{WIDGETS}/a"), &Value::Null).await.expect(200);
    assert_eq!(object.body["spec"]["replicas"], 4);
}

#[tokio::test(start_paused = true)]
async fn apply_merges_conditions_by_the_schemas_keys() {
    let (_, client) = server();
    install(&client).await;
    send(&client, "POST", WIDGETS, &widget("a", &json!({"size": 1}))).await.expect(201);
    let condition = |kind: &str| {
        json!({
            "apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "a"},
            "status": {"conditions": [{"type": kind, "status": "True"}]},
        })
    };
    for (manager, kind) in [("one", "Ready"), ("two", "Valid"), ("one", "Ready")] {
        let path = format!("{WIDGETS}/a/status?fieldManager={manager}&force=true");
        send(&client, "PATCH:apply", &path, &condition(kind)).await.expect(200);
    }
    let object = send(&client, "GET", &format!("{WIDGETS}/a"), &Value::Null).await.expect(200);
    assert_eq!(object.body["status"]["conditions"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_removed_definition_takes_its_objects_with_it() {
    let (_, client) = server();
    install(&client).await;
    send(&client, "POST", WIDGETS, &widget("a", &json!({"size": 1}))).await.expect(201);
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.org";
    send(&client, "DELETE", path, &Value::Null).await.expect(200);
    send(&client, "GET", WIDGETS, &Value::Null).await.expect(404);
    install(&client).await;
    let list = send(&client, "GET", WIDGETS, &Value::Null).await.expect(200);
    assert!(list.body["items"].as_array().unwrap().is_empty());
}
