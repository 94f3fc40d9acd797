//! Faults and statistics: what tests of controllers lean on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use kube::client::Body;
use kubesim::api::Fault;
use serde_json::{Value, json};

use crate::common::send;
use crate::{CONFIGMAPS, config_map, server};

#[tokio::test(start_paused = true)]
async fn faults_break_requests_in_their_own_ways() {
    let (server, client) = server();
    let fail = |_: &kubesim::api::RequestInfo| {
        Some(Fault::Fail { code: 503, reason: "ServiceUnavailable".into(), message: "down".into() })
    };
    server.set_fault(Box::new(fail));
    let refused = send(&client, "GET", CONFIGMAPS, &Value::Null).await.expect(503);
    assert_eq!(refused.message(), "down");

    server.set_fault(Box::new(|_| Some(Fault::Delay(Duration::from_secs(7)))));
    let start = tokio::time::Instant::now();
    send(&client, "GET", CONFIGMAPS, &Value::Null).await.expect(200);
    assert_eq!(start.elapsed(), Duration::from_secs(7));

    let once = AtomicBool::new(true);
    server.set_fault(Box::new(move |info| {
        (info.verb == "create" && once.swap(false, Ordering::SeqCst)).then_some(Fault::DropResponse)
    }));
    let body = serde_json::to_vec(&config_map("c", &json!({}))).unwrap();
    let lost = client.send(Request::post(CONFIGMAPS).body(Body::from(body)).unwrap()).await;
    assert!(lost.is_err());
    send(&client, "GET", &format!("{CONFIGMAPS}/c"), &Value::Null).await.expect(200);

    server.set_fault(Box::new(|_| Some(Fault::Unreachable)));
    let path = format!("{CONFIGMAPS}/c");
    assert!(client.send(Request::delete(&path).body(Body::empty()).unwrap()).await.is_err());
    server.clear_fault();
    send(&client, "GET", &path, &Value::Null).await.expect(200);
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_user_verb_resource_and_code() {
    let (server, client) = server();
    let other = server.client("other");
    send(&client, "GET", &format!("{CONFIGMAPS}/none"), &Value::Null).await.expect(404);
    send(&client, "GET", CONFIGMAPS, &Value::Null).await.expect(200);
    send(&other, "POST", CONFIGMAPS, &config_map("c", &json!({}))).await.expect(201);
    let counts = server.stats();
    let brief: Vec<String> =
        counts.iter().map(|(k, n)| format!("{} {} {} {} {n}", k.user, k.verb, k.resource, k.code)).collect();
    assert_eq!(
        brief,
        ["other create configmaps 201 1", "tester get configmaps 404 1", "tester list configmaps 200 1"]
    );
    assert_eq!(counts.keys().filter(|k| k.is_write() && k.user == "tester").count(), 0);
    server.reset_stats();
    assert!(server.stats().is_empty());
}
