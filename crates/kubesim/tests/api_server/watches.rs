//! Watches: starts, bookmarks, selections, history, and kube's own watcher on top.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, PostParams};
use kube::client::Body;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use kubesim::api::Options;
use serde_json::{Value, json};

use crate::common::send;
use crate::{CONFIGMAPS, PODS, config_map, pod, server, server_with};

/// The lines of a watch that has a timeout, as "TYPE name".
async fn lines(client: &Client, path: &str) -> Vec<Value> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn brief(lines: &[Value]) -> Vec<String> {
    let name = |l: &Value| l["object"]["metadata"]["name"].as_str().unwrap_or("").to_owned();
    lines
        .iter()
        .map(|l| format!("{} {}", l["type"].as_str().unwrap(), name(l)).trim_end().to_owned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_starts_with_what_is_there_or_after_a_version() {
    let (server, client) = server();
    send(&client, "POST", CONFIGMAPS, &config_map("a", &json!({}))).await.expect(201);
    let from = server.revision();
    send(&client, "POST", CONFIGMAPS, &config_map("b", &json!({}))).await.expect(201);
    send(&client, "DELETE", &format!("{CONFIGMAPS}/a"), &Value::Null).await.expect(200);
    let all = lines(&client, &format!("{CONFIGMAPS}?watch=true&timeoutSeconds=1")).await;
    assert_eq!(brief(&all), ["ADDED b"]);
    let since =
        lines(&client, &format!("{CONFIGMAPS}?watch=true&timeoutSeconds=1&resourceVersion={from}")).await;
    assert_eq!(brief(&since), ["ADDED b", "DELETED a"]);
    let deleted_at: u64 =
        since[1]["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert_eq!(deleted_at, server.revision(), "a deletion has a version of its own");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_each_minute_with_the_newest_version_of_all() {
    let (server, client) = server();
    send(&client, "POST", PODS, &pod("other-resource", "")).await.expect(201);
    let path = format!("{CONFIGMAPS}?watch=true&timeoutSeconds=130&allowWatchBookmarks=true");
    let marks = lines(&client, &path).await;
    assert_eq!(brief(&marks), ["BOOKMARK", "BOOKMARK", "BOOKMARK"], "two minutes and the end");
    assert_eq!(marks[0]["object"]["metadata"]["resourceVersion"], server.revision().to_string());
    let path = format!(
        "{PODS}?watch=true&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    );
    let list = lines(&client, &path).await;
    assert_eq!(brief(&list)[..2], ["ADDED other-resource", "BOOKMARK"]);
    assert_eq!(list[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test(start_paused = true)]
async fn objects_that_enter_or_leave_a_selection_are_added_or_deleted() {
    let (server, client) = server();
    let from = server.revision();
    send(&client, "POST", PODS, &pod("a", "")).await.expect(201);
    let label = |v: Value| json!({"metadata": {"labels": {"tier": v}}});
    send(&client, "PATCH:merge", &format!("{PODS}/a"), &label(json!("x"))).await.expect(200);
    send(&client, "PATCH:merge", &format!("{PODS}/a"), &json!({"metadata": {"annotations": {"n": "1"}}}))
        .await
        .expect(200);
    send(&client, "PATCH:merge", &format!("{PODS}/a"), &label(Value::Null)).await.expect(200);
    let path = format!("{PODS}?watch=true&timeoutSeconds=1&resourceVersion={from}&labelSelector=tier%3Dx");
    assert_eq!(brief(&lines(&client, &path).await), ["ADDED a", "MODIFIED a", "DELETED a"]);
    let path =
        format!("{PODS}?watch=true&timeoutSeconds=1&resourceVersion={from}&fieldSelector=spec.nodeName%3Dn1");
    assert!(lines(&client, &path).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_version_older_than_the_history_is_gone() {
    let (server, client) = server_with(Options { history: 2, ..Options::default() });
    let from = server.revision();
    for name in ["a", "b", "c"] {
        send(&client, "POST", CONFIGMAPS, &config_map(name, &json!({}))).await.expect(201);
    }
    let path = format!("{CONFIGMAPS}?watch=true&timeoutSeconds=1&resourceVersion={from}");
    let gone = lines(&client, &path).await;
    assert_eq!(brief(&gone), ["ERROR"]);
    assert_eq!(gone[0]["object"]["code"], 410);
    assert_eq!(gone[0]["object"]["reason"], "Expired");
}

#[tokio::test(start_paused = true)]
async fn kubes_watcher_survives_broken_watches_and_compaction() {
    let (server, client) = server();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let make = |name: &str| serde_json::from_value::<ConfigMap>(config_map(name, &json!({}))).unwrap();
    api.create(&PostParams::default(), &make("a")).await.unwrap();
    let mut events = watcher(api.clone(), watcher::Config::default()).default_backoff_applied();
    let mut seen = Vec::new();
    for step in ["b", "c", "d"] {
        match step {
            "c" => server.break_watches(),
            "d" => {
                server.compact();
                server.break_watches();
            }
            _ => {}
        }
        api.create(&PostParams::default(), &make(step)).await.unwrap();
        loop {
            let event = events.next().await.unwrap();
            let name = match event {
                Ok(watcher::Event::Apply(o) | watcher::Event::InitApply(o)) => o.name_any(),
                _ => continue,
            };
            seen.push(name.clone());
            if name == step {
                break;
            }
        }
    }
    assert_eq!(seen.last().map(String::as_str), Some("d"));
}

trait Backoff: Sized {
    /// Retries after errors as controllers do.
    fn default_backoff_applied(
        self,
    ) -> futures::stream::BoxStream<'static, watcher::Result<watcher::Event<ConfigMap>>>;
}

impl<S> Backoff for S
where
    S: futures::Stream<Item = watcher::Result<watcher::Event<ConfigMap>>> + Send + 'static,
{
    fn default_backoff_applied(
        self,
    ) -> futures::stream::BoxStream<'static, watcher::Result<watcher::Event<ConfigMap>>> {
        use kube::runtime::WatchStreamExt;
        self.default_backoff().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_live_watch_sees_writes_as_they_happen() {
    let (_, client) = server();
    let api: Api<Pod> = Api::namespaced(client.clone(), "default");
    let mut events = api.watch(&kube::api::WatchParams::default(), "0").await.unwrap().boxed();
    send(&client, "POST", PODS, &pod("a", "n1")).await.expect(201);
    let first = tokio::time::timeout(Duration::from_secs(5), events.try_next()).await.unwrap().unwrap();
    assert!(matches!(first, Some(kube::api::WatchEvent::Added(p)) if p.name_any() == "a"));
}
