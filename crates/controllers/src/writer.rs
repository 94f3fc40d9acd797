//! The only place that writes. Every write begins with a look at our leadership, is sent once, and ends within the
//! time that separates our renewal deadline from the Lease's expiry.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use muster_cluster::PodFacts;
use muster_cluster::seen::SeenPod;
use muster_cluster::template::Learned;
use muster_cluster::volumes::sources;
use muster_model::{ObjectKey, Uid};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use crate::answer::{Answer, judge, truncated};
use crate::clock::Clock;
use crate::leader::Term;
use crate::volumes;
use muster_core::effect::{Claims, Effect, Note, Outcome, Owned, OwnedKind, Probe};

/// Field manager of all our writes.
const MANAGER: &str = "fieldManager=muster";
const JSON: &str = "application/json";
/// Of an answer we read the metadata at most: the server need not send the rest back.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// How long a server may be behind in what it knows of the Lease.
const BEHIND: Duration = Duration::from_secs(1);

/// Performs effects under one term of leadership.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    term: Term,
    timeout: Duration,
    clock: Arc<dyn Clock>,
    identity: Arc<str>,
}

impl Writer {
    /// A writer for a term. `client` must not retry by itself; `timeout` bounds each write.
    pub fn new(client: Client, term: Term, timeout: Duration, clock: Arc<dyn Clock>, identity: &str) -> Self {
        Self { client, term, timeout, clock, identity: identity.into() }
    }

    /// Does it and says what came of it.
    pub async fn perform(&self, effect: &Effect) -> Outcome {
        match effect {
            Effect::CreatePod { pod, body, .. } => self.create_pod(pod, body).await,
            Effect::ProbePod { namespace, body, .. } => match self.probe(namespace, body).await {
                Ok(probe) => Outcome::Probed(Box::new(probe)),
                Err(outcome) => outcome,
            },
            Effect::DeletePod { pod, uid, force } => {
                self.delete(&pod_path(pod), uid, force.then_some(0)).await
            }
            Effect::ReleasePod { pod, uid, keep } => {
                let path = format!("{}?{MANAGER}", pod_path(pod));
                self.patch(&path, MERGE, &finalizers(uid, keep)).await
            }
            Effect::WriteGang { gang, version, status, chunks } => {
                for chunk in chunks {
                    let path = format!("{}?{MANAGER}", OwnedKind::ConfigMap.path(&gang.namespace));
                    match self.send(Method::POST, &path, JSON, to_bytes(chunk)).await {
                        // Named by content: one that exists is the same.
                        Ok(_) | Err(Outcome::Conflict) => {}
                        Err(outcome) => return outcome,
                    }
                }
                self.status(&object_path(OwnedKind::Gang, gang), version, json!(status)).await
            }
            Effect::Ensure { object, exists } => self.ensure(object, *exists).await,
            Effect::DeleteOwned { kind, key, uid } => self.delete(&object_path(*kind, key), uid, None).await,
            Effect::ReleaseGang { gang, uid, keep } => {
                let path = format!("{}?{MANAGER}", object_path(OwnedKind::Gang, gang));
                self.patch(&path, MERGE, &finalizers(uid, keep)).await
            }
            Effect::WriteJob { job, version, status } => {
                self.status(&object_path(OwnedKind::Job, job), version, json!(status)).await
            }
            Effect::Report { kind, name, version, status } => {
                self.status(&format!("{}/{name}", kind.path()), version, Value::clone(status)).await
            }
            Effect::Tell(note) => {
                let path = format!("/api/v1/namespaces/{}/events?{MANAGER}", note.about.namespace);
                self.reply(Method::POST, &path, JSON, to_bytes(&self.event(note))).await
            }
        }
    }

    async fn create_pod(&self, pod: &ObjectKey, body: &[u8]) -> Outcome {
        let path = format!("/api/v1/namespaces/{}/pods?{MANAGER}", pod.namespace);
        match self.send(Method::POST, &path, JSON, body.to_vec()).await {
            // The watch brings the pod; parsing it here as well would cost more than the rest of this function.
            Ok(_) => Outcome::Done { version: None, uid: None },
            Err(Outcome::Conflict) => match self.ask(Method::GET, &pod_path(pod), JSON, Vec::new()).await {
                Ok(answer) => {
                    facts(&answer).map_or_else(Outcome::Transient, |f| Outcome::Exists(Box::new(f)))
                }
                Err(Outcome::Gone) => Outcome::Transient("the pod of that name vanished meanwhile".into()),
                Err(outcome) => outcome,
            },
            // The collection always exists: what is not found is the namespace.
            Err(Outcome::Gone) => Outcome::Refused(format!("namespace {:?} does not exist", pod.namespace)),
            Err(outcome) => outcome,
        }
    }

    /// What admission makes of a pod, and what is known of the volumes that it then has.
    async fn probe(&self, namespace: &str, body: &[u8]) -> Result<Probe, Outcome> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&{MANAGER}");
        let answer = self.ask(Method::POST, &path, JSON, body.to_vec()).await?;
        let pod: Pod = serde_json::from_slice(&answer).map_err(|e| Outcome::Transient(e.to_string()))?;
        let spec = pod.spec.unwrap_or_default();
        let learned = Learned::of(&spec).map_err(Outcome::Refused)?;
        let mut probe = Probe { learned, ..Probe::default() };
        for source in sources(&spec) {
            let look_up = volumes::look_up(&self.client, namespace, &source);
            let found = tokio::time::timeout(self.timeout, look_up).await;
            let found = found
                .map_err(|_| Outcome::Transient(format!("no answer within {:?}", self.timeout)))?
                .map_err(|error| match error {
                    kube::Error::Api(status) if status.code == StatusCode::FORBIDDEN => {
                        Outcome::Refused(status.message)
                    }
                    error => Outcome::Transient(error.to_string()),
                })?;
            match found {
                Ok(found) => {
                    let unbound = !found.bound || probe.claims == Claims::Unbound;
                    probe.learned.add(&source, found);
                    probe.claims = if unbound { Claims::Unbound } else { Claims::Bound };
                }
                Err(problem) => {
                    probe.problem = Some(problem);
                    break;
                }
            }
        }
        Ok(probe)
    }

    async fn ensure(&self, object: &Owned, exists: bool) -> Outcome {
        let collection = object.kind.path(&object.key.namespace);
        if !exists {
            let path = format!("{collection}?{MANAGER}");
            match self.reply(Method::POST, &path, JSON, to_bytes(&object.body)).await {
                Outcome::Conflict => {}
                outcome => return outcome,
            }
        }
        self.patch(&format!("{collection}/{}?{MANAGER}", object.key.name), MERGE, &object.body).await
    }

    /// Replaces a status as a whole, if the object still has this version: one atomic compare-and-swap.
    async fn status(&self, object: &str, version: &str, status: Value) -> Outcome {
        let path = format!("{object}/status?{MANAGER}");
        let patch = json!([
            { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
            { "op": "add", "path": "/status", "value": status },
        ]);
        self.patch(&path, JSON_PATCH, &patch).await
    }

    async fn patch(&self, path: &str, content: &str, patch: &Value) -> Outcome {
        self.reply(Method::PATCH, path, content, to_bytes(patch)).await
    }

    async fn delete(&self, path: &str, uid: &Uid, grace: Option<i64>) -> Outcome {
        let mut options = json!({ "preconditions": { "uid": uid }, "propagationPolicy": "Background" });
        if let Some(seconds) = grace {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        match self.reply(Method::DELETE, path, JSON, to_bytes(&options)).await {
            // Another object has the name: the one that we meant is gone.
            Outcome::Conflict => Outcome::Gone,
            outcome => outcome,
        }
    }

    async fn reply(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Outcome {
        #[derive(serde::Deserialize, Default)]
        #[serde(rename_all = "camelCase")]
        struct Meta {
            resource_version: Option<String>,
            uid: Option<Uid>,
        }
        #[derive(serde::Deserialize, Default)]
        struct Answer {
            #[serde(default)]
            metadata: Meta,
        }
        match self.send(method, path, content, body).await {
            Ok(bytes) => {
                let answer: Answer = serde_json::from_slice(&bytes).unwrap_or_default();
                Outcome::Done { version: answer.metadata.resource_version, uid: answer.metadata.uid }
            }
            Err(outcome) => outcome,
        }
    }

    /// Sends one request whose answer is of no interest beyond its metadata.
    async fn send(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Result<Bytes, Outcome> {
        self.exchange(method, path, (content, METADATA), body).await
    }

    /// Sends one request and takes the whole object that it is answered with.
    async fn ask(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Result<Bytes, Outcome> {
        self.exchange(method, path, (content, JSON), body).await
    }

    /// One request, of a type and asking for another; the body of a good answer, or what a bad one means. It is sent once,
    /// unless the fence denied it although the Lease is ours: a server that had not heard of it yet gets a second.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        types: (&str, &str),
        body: Vec<u8>,
    ) -> Result<Bytes, Outcome> {
        for last in [false, true] {
            let denial = match self.once(&method, path, types, &body).await? {
                Ok(bytes) => return Ok(bytes),
                Err(Answer::Gone) => return Err(Outcome::Gone),
                Err(Answer::Taken | Answer::Conflict) => return Err(Outcome::Conflict),
                Err(Answer::Transient(message)) => return Err(Outcome::Transient(message)),
                Err(Answer::Refused(message)) => return Err(Outcome::Refused(message)),
                Err(Answer::Denied(denial)) => denial.message,
            };
            // Only the Lease says that a term is over.
            match tokio::time::timeout(self.timeout, self.term.over(&self.client)).await {
                Ok(Ok(true)) => return Err(Outcome::Fenced),
                Ok(Ok(false)) if last => return Err(Outcome::Refused(denial)),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    return Err(Outcome::Transient(format!(
                        "{denial}; and the Lease cannot be read: {error}"
                    )));
                }
                Err(_) => return Err(Outcome::Transient(format!("{denial}; and the Lease cannot be read"))),
            }
            tracing::warn!(denial, "denied by the fence although the Lease is ours; trying once more");
            tokio::time::sleep(BEHIND).await;
        }
        Err(Outcome::Transient(format!("{path}: not sent")))
    }

    async fn once(
        &self,
        method: &Method,
        path: &str,
        (content, accept): (&str, &str),
        body: &[u8],
    ) -> Result<Result<Bytes, Answer>, Outcome> {
        if !self.term.valid() {
            return Err(Outcome::Fenced);
        }
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content)
            .header(http::header::ACCEPT, accept)
            .body(Body::from(body.to_vec()))
            .map_err(|error| Outcome::Refused(format!("{path}: {error}")))?;
        let exchange = async {
            let answer = self.client.send(request).await.map_err(|e| Outcome::Transient(e.to_string()))?;
            let status = answer.status();
            let bytes = answer.into_body().collect().await.map_err(|e| Outcome::Transient(e.to_string()))?;
            Ok((status, bytes.to_bytes()))
        };
        let (status, bytes) = tokio::time::timeout(self.timeout, exchange)
            .await
            .map_err(|_| Outcome::Transient(format!("no answer within {:?}", self.timeout)))??;
        Ok(if status.is_success() { Ok(bytes) } else { Err(judge(status, &bytes)) })
    }

    fn event(&self, note: &Note) -> Value {
        let now = self.clock.now();
        let core = ["Pod", "Service", "Node"].contains(&note.kind);
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{}.", note.about.name), "namespace": note.about.namespace },
            "involvedObject": {
                "apiVersion": if core { "v1" } else { "muster.dev/v1alpha1" },
                "kind": note.kind,
                "namespace": note.about.namespace,
                "name": note.about.name,
                "uid": note.uid,
            },
            "reason": note.reason,
            "message": truncated(&note.message, 1024),
            "type": if note.warning { "Warning" } else { "Normal" },
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            "count": 1,
            "source": { "component": "muster" },
            "reportingComponent": "muster.dev/operator",
            "reportingInstance": truncated(&self.identity, 128),
        })
    }
}

fn pod_path(pod: &ObjectKey) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

fn object_path(kind: OwnedKind, key: &ObjectKey) -> String {
    format!("{}/{}", kind.path(&key.namespace), key.name)
}

fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// A merge patch that leaves these finalizers; the UID makes it fail for another object of the name.
fn finalizers(uid: &Uid, keep: &[String]) -> Value {
    let keep = if keep.is_empty() { Value::Null } else { json!(keep) };
    json!({ "metadata": { "uid": uid, "finalizers": keep } })
}

fn facts(bytes: &[u8]) -> Result<PodFacts, String> {
    serde_json::from_slice::<SeenPod>(bytes)
        .map(|pod| PodFacts::of(&pod.0).0)
        .map_err(|error| error.to_string())
}
