//! Raw requests over a `kube::Client`, so that tests see status codes and bodies as they are.

use http::Request;
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// An answer: status code and body.
#[derive(Debug, Clone)]
pub struct Reply {
    pub code: u16,
    pub body: Value,
}

impl Reply {
    /// The string at a JSON pointer; empty if absent.
    pub fn text(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or("")
    }

    pub fn message(&self) -> &str {
        self.text("/message")
    }

    #[allow(dead_code, reason = "shared by test binaries of which not all use it")]
    /// Panics, showing the body, unless the code is as expected.
    #[track_caller]
    pub fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "{:#}", self.body);
        self
    }
}

/// Sends one request; patches name their kind as `PATCH:merge`, `PATCH:json`, `PATCH:strategic`, `PATCH:apply`.
pub async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Reply {
    let (verb, kind) = method.split_once(':').unwrap_or((method, ""));
    let content_type = match kind {
        "" => "application/json",
        "json" => "application/json-patch+json",
        "merge" => "application/merge-patch+json",
        "strategic" => "application/strategic-merge-patch+json",
        "apply" => "application/apply-patch+yaml",
        other => other,
    };
    let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    let request = Request::builder()
        .method(verb)
        .uri(path)
        .header("content-type", content_type)
        .header("accept", "application/json")
        .body(Body::from(bytes))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Reply { code, body }
}
