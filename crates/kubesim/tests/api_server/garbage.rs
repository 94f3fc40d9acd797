//! Owner references and namespaces: nothing outlives what owns it.

use serde_json::{Value, json};

use crate::common::{Reply, send};
use crate::{CONFIGMAPS, PODS, config_map, pod, server};

fn owned_by(mut object: Value, owner: &Reply) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.text("/metadata/name"),
        "uid": owner.text("/metadata/uid"), "blockOwnerDeletion": true,
    }]);
    object
}

async fn exists(client: &kube::Client, path: &str) -> bool {
    send(client, "GET", path, &Value::Null).await.code == 200
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_last_owner() {
    let (_, client) = server();
    let root = send(&client, "POST", CONFIGMAPS, &config_map("root", &json!({}))).await.expect(201);
    let child = owned_by(config_map("child", &json!({})), &root);
    let child = send(&client, "POST", CONFIGMAPS, &child).await.expect(201);
    send(&client, "POST", PODS, &owned_by(pod("leaf", "n1"), &child)).await.expect(201);
    send(&client, "DELETE", &format!("{CONFIGMAPS}/root"), &Value::Null).await.expect(200);
    assert!(!exists(&client, &format!("{CONFIGMAPS}/child")).await);
    let leaf = send(&client, "GET", &format!("{PODS}/leaf"), &Value::Null).await.expect(200);
    assert!(!leaf.text("/metadata/deletionTimestamp").is_empty(), "a running pod is deleted gracefully");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_vanished_owner_is_collected() {
    let (_, client) = server();
    let root = send(&client, "POST", CONFIGMAPS, &config_map("root", &json!({}))).await.expect(201);
    send(&client, "DELETE", &format!("{CONFIGMAPS}/root"), &Value::Null).await.expect(200);
    send(&client, "POST", CONFIGMAPS, &owned_by(config_map("late", &json!({})), &root)).await.expect(201);
    assert!(!exists(&client, &format!("{CONFIGMAPS}/late")).await);
}

#[tokio::test(start_paused = true)]
async fn orphaning_keeps_the_dependents_and_foreground_waits_for_them() {
    let (_, client) = server();
    let root = send(&client, "POST", CONFIGMAPS, &config_map("root", &json!({}))).await.expect(201);
    send(&client, "POST", CONFIGMAPS, &owned_by(config_map("child", &json!({})), &root)).await.expect(201);
    send(&client, "DELETE", &format!("{CONFIGMAPS}/root?propagationPolicy=Orphan"), &Value::Null)
        .await
        .expect(200);
    let child = send(&client, "GET", &format!("{CONFIGMAPS}/child"), &Value::Null).await.expect(200);
    assert!(child.body["metadata"].get("ownerReferences").is_none());
    assert!(!exists(&client, &format!("{CONFIGMAPS}/root")).await);

    send(&client, "POST", PODS, &owned_by(pod("leaf", "n1"), &child)).await.expect(201);
    let options = json!({"propagationPolicy": "Foreground"});
    send(&client, "DELETE", &format!("{CONFIGMAPS}/child"), &options).await.expect(200);
    assert!(exists(&client, &format!("{CONFIGMAPS}/child")).await, "waits for its blocking pod");
    send(&client, "DELETE", &format!("{PODS}/leaf?gracePeriodSeconds=0"), &Value::Null).await.expect(200);
    assert!(!exists(&client, &format!("{CONFIGMAPS}/child")).await);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_once_its_content_has_gone() {
    let (_, client) = server();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    send(&client, "POST", "/api/v1/namespaces", &namespace).await.expect(201);
    send(&client, "POST", "/api/v1/namespaces/team/pods", &pod("a", "n1")).await.expect(201);
    send(&client, "POST", "/api/v1/namespaces/team/configmaps", &config_map("c", &json!({})))
        .await
        .expect(201);
    let leaving = send(&client, "DELETE", "/api/v1/namespaces/team", &Value::Null).await.expect(200);
    assert_eq!(leaving.text("/status/phase"), "Terminating");
    let refused = send(&client, "POST", "/api/v1/namespaces/team/pods", &pod("b", "")).await.expect(403);
    assert!(
        refused
            .message()
            .contains("unable to create new content in namespace team because it is being terminated")
    );
    assert_eq!(refused.text("/details/causes/0/reason"), "NamespaceTerminating");
    assert!(!exists(&client, "/api/v1/namespaces/team/configmaps/c").await);
    assert!(exists(&client, "/api/v1/namespaces/team").await, "its pod is still there");
    send(&client, "DELETE", "/api/v1/namespaces/team/pods/a?gracePeriodSeconds=0", &Value::Null)
        .await
        .expect(200);
    assert!(!exists(&client, "/api/v1/namespaces/team").await);
}
