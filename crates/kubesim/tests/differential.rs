//! The in-memory server against a real one: the same requests, the same answers.
//!
//! ```text
//! requests.json ─► in-memory server ─► answers ─┐
//!              └─► real kube-apiserver ─► answers ┴─► differences
//! ```
//!
//! The real one is named by `KUBESIM_DIFFERENTIAL_KUBECONFIG` (`make test` starts it); without it the
//! test says so and passes.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Reply, send};
use http::Request;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use kubesim::api::ApiServer;
use kubesim::clock::SystemClock;
use serde::Deserialize;
use serde_json::{Value, json};

/// One request, and how its answers are compared.
#[derive(Deserialize)]
struct Step {
    name: String,
    /// Method (with the patch kind, or `WATCH`) and path.
    send: String,
    #[serde(default)]
    body: Value,
    /// `full` (default), `code`, `status` (code and reason), `prefix` (those and the message's first 60 characters).
    #[serde(default)]
    compare: String,
    /// JSON pointers of the body that may differ.
    #[serde(default)]
    ignore: Vec<String>,
    /// Repeat until this code comes: the real server's caches lag.
    until: Option<u16>,
    /// Repeat until the body has this pointer.
    has: Option<String>,
    /// `real`: only waited for there.
    #[serde(default)]
    only: String,
}

/// One server with what its objects were named.
struct Side {
    client: Client,
    replies: BTreeMap<String, Reply>,
    namespace: String,
}

/// How long the real server's caches may lag.
const PATIENCE: Duration = Duration::from_secs(60);

impl Side {
    fn new(client: Client, namespace: &str) -> Self {
        Self { client, replies: BTreeMap::new(), namespace: namespace.to_owned() }
    }

    /// Fills in the namespace and what earlier answers said.
    fn fill(&self, source: &str) -> String {
        let group = format!("{}.example.org", self.namespace);
        let mut text = source.replace("GROUP", &group).replace("NS", &self.namespace);
        while let Some(start) = text.find("${") {
            let end = start + text[start..].find('}').expect("a reference ends");
            let (step, pointer) = text[start + 2..end].split_once(':').expect("a reference has a pointer");
            let value = self.replies[step].text(pointer).to_owned();
            text.replace_range(start..=end, &value);
        }
        text
    }

    async fn run(&mut self, step: &Step) -> Reply {
        let (method, path) = step.send.split_once(' ').expect("method and path");
        let path = self.fill(path);
        let body: Value = serde_json::from_str(&self.fill(&step.body.to_string())).unwrap();
        let start = Instant::now();
        loop {
            let reply = if method == "WATCH" {
                watch(&self.client, &path).await
            } else {
                send(&self.client, method, &path, &body).await
            };
            let waiting = step.until.is_some_and(|code| code != reply.code)
                || step.has.as_ref().is_some_and(|p| reply.body.pointer(p).is_none());
            if !waiting || start.elapsed() > PATIENCE {
                self.replies.insert(step.name.clone(), reply.clone());
                return reply;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn watch(client: &Client, path: &str) -> Reply {
    let response = client.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let lines = String::from_utf8(bytes.to_vec()).unwrap();
    let body = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()).collect();
    Reply { code, body: Value::Array(body) }
}

/// Removes what must differ between two servers.
fn normalise(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in [
                "uid",
                "resourceVersion",
                "creationTimestamp",
                "deletionTimestamp",
                "managedFields",
                "selfLink",
                "lastTransitionTime",
                "lastProbeTime",
                "lastUpdateTime",
            ] {
                map.remove(key);
            }
            map.values_mut().for_each(normalise);
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        Value::String(s) => *s = without_uids(s),
        _ => {}
    }
}

/// Replaces UUIDs and storage keys, which are each server's own.
fn without_uids(text: &str) -> String {
    let is_uid = |w: &str| {
        w.len() == 36
            && w.char_indices()
                .all(|(i, c)| if matches!(i, 8 | 13 | 18 | 23) { c == '-' } else { c.is_ascii_hexdigit() })
    };
    let parts = text.split_inclusive(|c: char| !(c.is_ascii_hexdigit() || c == '-'));
    parts
        .map(|part| {
            let word = part.trim_end_matches(|c: char| !(c.is_ascii_hexdigit() || c == '-'));
            if is_uid(word) { part.replace(word, "<uid>") } else { part.to_owned() }
        })
        .collect()
}

/// The fields of an answer that are compared, by pointer.
fn view(reply: &Reply, step: &Step) -> BTreeMap<String, Value> {
    let mut view = BTreeMap::from([("code".to_owned(), json!(reply.code))]);
    let failed = reply.code >= 400;
    if failed && step.compare != "code" {
        view.insert("reason".to_owned(), json!(reply.text("/reason")));
    }
    match step.compare.as_str() {
        "code" | "status" => {}
        "prefix" => {
            let start: String = reply.message().chars().take(60).collect();
            view.insert("message".to_owned(), json!(start));
        }
        _ => {
            let mut body = reply.body.clone();
            for pointer in &step.ignore {
                if let Some(place) = body.pointer_mut(pointer) {
                    *place = Value::Null;
                }
            }
            normalise(&mut body);
            flatten("", &body, &mut view);
        }
    }
    view
}

/// Leaves by pointer; nulls and empty containers count as absent.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Null => {}
        Value::Object(map) => map.iter().for_each(|(k, v)| flatten(&format!("{path}/{k}"), v, into)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| flatten(&format!("{path}/{i}"), v, into));
        }
        leaf => {
            into.insert(path.to_owned(), leaf.clone());
        }
    }
}

fn differences(step: &Step, ours: &Reply, theirs: &Reply) -> Vec<String> {
    let (ours, theirs) = (view(ours, step), view(theirs, step));
    let mut keys: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .filter(|key| ours.get(*key) != theirs.get(*key))
        .map(|key| {
            let show = |v: Option<&Value>| v.map_or("absent".to_owned(), Value::to_string);
            format!(
                "{}: {key}\n    ours:   {}\n    theirs: {}",
                step.name,
                show(ours.get(key)),
                show(theirs.get(key))
            )
        })
        .collect()
}

async fn real_client(path: &str) -> Client {
    let kubeconfig = Kubeconfig::read_from(path).expect("KUBESIM_DIFFERENTIAL_KUBECONFIG names a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn the_in_memory_server_answers_as_a_real_one() {
    let Ok(path) = std::env::var("KUBESIM_DIFFERENTIAL_KUBECONFIG") else {
        eprintln!(
            "SKIPPED: KUBESIM_DIFFERENTIAL_KUBECONFIG is not set, nothing was compared with a real API server"
        );
        return;
    };
    let steps: Vec<Step> = serde_json::from_str(include_str!("differential/requests.json")).unwrap();
    let namespace = format!("kubesim-{}", std::process::id());
    let server = ApiServer::new(Arc::new(SystemClock));
    let mut ours = Side::new(server.client("kubernetes-admin"), &namespace);
    let mut theirs = Side::new(real_client(&path).await, &namespace);
    let mut found = Vec::new();
    for step in &steps {
        let real = theirs.run(step).await;
        if step.only == "real" {
            continue;
        }
        let simulated = ours.run(step).await;
        found.extend(differences(step, &simulated, &real));
    }
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}
