//! Quotas, RuntimeClasses and ValidatingAdmissionPolicies, above all the fence whose parameter is a Lease.

use kube::Client;
use serde_json::{Value, json};

use crate::common::send;
use crate::{CONFIGMAPS, PODS, config_map, pod, server};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

async fn install(client: &Client, spec: &Value, reference: Option<Value>) {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "fence"}, "spec": spec,
    });
    send(client, "POST", POLICIES, &policy).await.expect(201);
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "fence"}, "spec": {"policyName": "fence", "validationActions": ["Deny"]},
    });
    if let Some(reference) = reference {
        binding["spec"]["paramRef"] = reference;
    }
    send(client, "POST", BINDINGS, &binding).await.expect(201);
}

fn on_pods(operations: &[&str]) -> Value {
    json!({"resourceRules": [{
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations,
    }]})
}

async fn fence(client: &Client) {
    let spec = json!({
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
        "matchConstraints": on_pods(&["CREATE"]),
        "matchConditions": [{"name": "leader", "expression": "request.userInfo.username == 'leader'"}],
        "variables": [{"name": "epoch", "expression": "object.metadata.?annotations[?'example.org/epoch'].orValue('-1')"}],
        "validations": [{
            "expression": "has(params.spec.leaseTransitions) && int(variables.epoch) == params.spec.leaseTransitions",
            "messageExpression": "'epoch ' + variables.epoch + ' is not current'", "reason": "Forbidden",
        }],
    });
    let reference = json!({"name": "lease", "namespace": "kube-system", "parameterNotFoundAction": "Deny"});
    install(client, &spec, Some(reference)).await;
}

fn of_epoch(name: &str, epoch: u32) -> Value {
    let mut object = pod(name, "n1");
    object["metadata"]["annotations"] = json!({"example.org/epoch": epoch.to_string()});
    object
}

fn lease(transitions: u32) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease"}, "spec": {"leaseTransitions": transitions}})
}

#[tokio::test(start_paused = true)]
async fn the_old_epoch_is_refused_from_the_first_request_after_the_lease_changed() {
    let (server, client) = server();
    let leader = server.client("leader");
    fence(&client).await;
    let refused = send(&leader, "POST", PODS, &of_epoch("a", 3)).await.expect(422);
    assert_eq!(
        refused.message(),
        "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'fence' with binding 'fence' denied request: \
         failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
    send(&client, "POST", LEASES, &lease(3)).await.expect(201);
    send(&leader, "POST", PODS, &of_epoch("a", 3)).await.expect(201);
    send(&client, "PATCH:merge", &format!("{LEASES}/lease"), &json!({"spec": {"leaseTransitions": 4}}))
        .await
        .expect(200);
    for path in [PODS.to_owned(), format!("{PODS}?dryRun=All")] {
        let refused = send(&leader, "POST", &path, &of_epoch("b", 3)).await.expect(403);
        assert_eq!(
            refused.message(),
            "pods \"b\" is forbidden: ValidatingAdmissionPolicy 'fence' with binding 'fence' denied request: epoch 3 is not current"
        );
        assert_eq!(refused.text("/reason"), "Forbidden");
    }
    send(&leader, "POST", PODS, &of_epoch("b", 4)).await.expect(201);
    send(&leader, "POST", PODS, &pod("none", "n1")).await.expect(403);
    send(&client, "POST", PODS, &pod("others", "n1")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn denials_are_worded_as_the_servers() {
    let (_, client) = server();
    let spec = json!({
        "matchConstraints": on_pods(&["CREATE", "UPDATE", "DELETE"]),
        "validations": [
            {"expression": "request.operation != 'DELETE' || oldObject.metadata.name != 'kept'", "message": "kept stays"},
            {"expression": "request.operation == 'DELETE' || object.metadata.labels['app'].startsWith('a')"},
            {"expression": "request.operation == 'DELETE' || object.metadata.annotations['x'] != ''"},
        ],
    });
    send(&client, "POST", PODS, &pod("kept", "")).await.expect(201);
    install(&client, &spec, None).await;
    let refused = send(&client, "DELETE", &format!("{PODS}/kept"), &Value::Null).await.expect(422);
    assert_eq!(
        refused.message(),
        "pods \"kept\" is forbidden: ValidatingAdmissionPolicy 'fence' with binding 'fence' denied request: kept stays"
    );
    assert_eq!(refused.text("/reason"), "Invalid");
    let mut object = pod("b", "");
    object["metadata"]["labels"]["app"] = json!("b");
    let refused = send(&client, "POST", PODS, &object).await.expect(422);
    assert!(refused.message().ends_with("denied request: failed expression: request.operation == 'DELETE' || object.metadata.labels['app'].startsWith('a')"), "{}", refused.message());
    let refused = send(&client, "POST", PODS, &pod("c", "")).await.expect(422);
    assert!(refused.message().contains("resulted in error: no such key"), "{}", refused.message());
    send(&client, "POST", CONFIGMAPS, &config_map("c", &json!({}))).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_changed_policy_takes_effect_at_once() {
    let (_, client) = server();
    let spec = json!({"matchConstraints": on_pods(&["CREATE"]), "validations": [{"expression": "false"}]});
    install(&client, &spec, None).await;
    send(&client, "POST", PODS, &pod("a", "")).await.expect(422);
    let open = json!({"spec": {"validations": [{"expression": "true"}]}});
    send(&client, "PATCH:merge", &format!("{POLICIES}/fence"), &open).await.expect(200);
    send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
    send(&client, "DELETE", &format!("{BINDINGS}/fence"), &Value::Null).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn rules_that_are_applied_again_stay_as_they_are() {
    let (_, client) = server();
    let rules =
        json!([{"expression": "true", "message": "first"}, {"expression": "true", "message": "second"}]);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "fence"}, "spec": {"matchConstraints": on_pods(&["CREATE"]), "validations": rules},
    });
    let path = format!("{POLICIES}/fence?fieldManager=test");
    send(&client, "PATCH:apply", &path, &policy).await.expect(201);
    let again = send(&client, "PATCH:apply", &path, &policy).await.expect(200);
    assert_eq!(again.body["spec"]["validations"], rules);
}

#[tokio::test(start_paused = true)]
async fn what_is_empty_is_left_out_of_a_request() {
    let (_, client) = server();
    let named = "has(request.subResource) || has(request.userInfo.extra)";
    let spec = json!({
        "matchConstraints": on_pods(&["CREATE"]), "validations": [{"expression": format!("!({named})")}],
    });
    install(&client, &spec, None).await;
    send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
}

/// Whom a client speaks for, with what a token tells of its pod, is what policies and counters see.
#[tokio::test(start_paused = true)]
async fn a_client_may_speak_for_an_account_in_a_pod() {
    let (server, client) = server();
    let account = "system:serviceaccount:ns:account";
    let spec = json!({
        "matchConstraints": on_pods(&["CREATE"]),
        "validations": [{"expression": format!(
            "request.userInfo.username != '{account}' || (request.userInfo.extra['example.org/pod'] == ['a', 'b'] \
             && 'system:serviceaccounts:ns' in request.userInfo.groups)"
        )}],
    });
    install(&client, &spec, None).await;
    let speak = async |extra: &[&str]| {
        let mut request = http::Request::post(PODS)
            .header("content-type", "application/json")
            .header("Impersonate-User", account);
        for value in extra {
            request = request.header("Impersonate-Extra-example.org%2Fpod", *value);
        }
        let body = kube::client::Body::from(pod("a", "").to_string().into_bytes());
        client.send(request.body(body).unwrap()).await.unwrap().status().as_u16()
    };
    assert_eq!(speak(&["a"]).await, 422);
    assert_eq!(speak(&["a", "b"]).await, 201);
    assert!(
        server.stats().keys().any(|key| key.user == account && key.resource == "pods" && key.code == 201)
    );
}

#[tokio::test(start_paused = true)]
async fn a_quota_refuses_beyond_its_limit_and_counts_what_is_left() {
    let (_, client) = server();
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"pods": "2", "requests.example.org/gpu": "8"}},
    });
    send(&client, "POST", quotas, &quota).await.expect(201);
    let gpus = |name: &str, n: &str| {
        let mut object = pod(name, "n1");
        object["spec"]["containers"][0]["resources"] = json!({"limits": {"example.org/gpu": n}});
        object
    };
    send(&client, "POST", PODS, &gpus("a", "6")).await.expect(201);
    let refused = send(&client, "POST", PODS, &gpus("b", "4")).await.expect(403);
    assert_eq!(
        refused.message(),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.example.org/gpu=4, used: requests.example.org/gpu=6, limited: requests.example.org/gpu=8"
    );
    send(&client, "POST", PODS, &gpus("b", "2")).await.expect(201);
    let refused = send(&client, "POST", PODS, &pod("c", "")).await.expect(403);
    assert!(
        refused.message().ends_with("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"),
        "{}",
        refused.message()
    );
    send(&client, "PATCH:merge", &format!("{PODS}/a/status"), &json!({"status": {"phase": "Succeeded"}}))
        .await
        .expect(200);
    let counted = send(&client, "GET", &format!("{quotas}/q"), &Value::Null).await.expect(200);
    assert_eq!(counted.body["status"]["used"], json!({"pods": "1", "requests.example.org/gpu": "2"}));
    send(&client, "POST", PODS, &pod("c", "")).await.expect(201);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_is_merged_into_the_pods_that_name_it() {
    let (_, client) = server();
    let class = json!({
        "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {
            "nodeSelector": {"sandbox": "kata"},
            "tolerations": [
                {"key": "sandbox", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "narrow", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
            ],
        },
    });
    send(&client, "POST", "/apis/node.k8s.io/v1/runtimeclasses", &class).await.expect(201);
    let dry = format!("{PODS}?dryRun=All");
    let named = |class: &str, more: Value| {
        let mut object = pod("a", "");
        object["spec"].as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        object["spec"]["runtimeClassName"] = json!(class);
        object
    };
    let own = json!({
        "nodeSelector": {"zone": "z"}, "tolerations": [{"key": "narrow", "operator": "Exists"}],
    });
    let made = send(&client, "POST", &dry, &named("kata", own)).await.expect(201);
    assert_eq!(made.body["spec"]["nodeSelector"], json!({"zone": "z", "sandbox": "kata"}));
    assert_eq!(made.body["spec"]["overhead"], json!({"cpu": "250m"}));
    let keys: Vec<&str> = made.body["spec"]["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|toleration| toleration["key"].as_str().unwrap())
        .collect();
    // Its own tolerates more than the class's second.
    let ready = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
    assert_eq!(keys, ["narrow", ready[0], ready[1], "sandbox"]);
    for (object, why) in [
        (named("none", json!({})), "pod rejected: RuntimeClass \"none\" not found"),
        (
            named("kata", json!({"nodeSelector": {"sandbox": "gvisor"}})),
            "conflict: runtimeClass.scheduling.nodeSelector[sandbox] = kata; pod.spec.nodeSelector[sandbox] = gvisor",
        ),
        (
            named("kata", json!({"overhead": {"cpu": "1"}})),
            "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
        ),
        (
            {
                let mut object = pod("a", "");
                object["spec"]["overhead"] = json!({"cpu": "1"});
                object
            },
            "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
        ),
    ] {
        let refused = send(&client, "POST", &dry, &object).await.expect(403);
        assert_eq!(refused.message(), format!("pods \"a\" is forbidden: {why}"));
    }
    send(&client, "POST", &dry, &named("kata", json!({"overhead": {"cpu": "0.25"}}))).await.expect(201);
}
