//! The only place that writes. Every write begins with a look at our leadership, is sent once, and ends within the
//! time that separates our renewal deadline from the Lease's expiry.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::Body;
use kube::core::PartialObjectMeta;
use muster_api::labels;
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
use muster_core::want::{Base, Child, Claims, Kind, Note, Outcome, Probe, Want};

/// Field manager of all our writes.
const MANAGER: &str = "fieldManager=muster";
const JSON: &str = "application/json";
/// Of an answer we read the metadata at most: the server need not send the rest back.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// How long a server may be behind in what it knows of the Lease.
const BEHIND: Duration = Duration::from_secs(1);

/// Performs wants under one term of leadership.
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
    pub async fn perform(&self, want: &Want) -> Outcome {
        match want {
            Want::CreatePod { pod, body, .. } => self.create_pod(pod, body).await,
            Want::EndPod { pod, uid, delete, release } => self.end_pod(pod, uid, *delete, *release).await,
            Want::Probe { namespace, body, .. } => match self.probe(namespace, body).await {
                Ok(probe) => Outcome::Probed(Box::new(probe)),
                Err(outcome) => outcome,
            },
            Want::WriteGang { gang, version, status, parts, .. } => {
                for part in parts {
                    if let Err(outcome) = self.part(part).await {
                        return outcome;
                    }
                }
                self.status(&path(Kind::Gang, gang), version, json!(status)).await
            }
            Want::ReadGang { gang } => {
                match self.ask(Method::GET, &path(Kind::Gang, gang), JSON, Vec::new()).await {
                    Ok(answer) => match serde_json::from_slice(&answer) {
                        Ok(gang) => Outcome::Gang(Box::new(gang)),
                        Err(error) => Outcome::Transient(error.to_string()),
                    },
                    Err(outcome) => outcome,
                }
            }
            Want::Apply(child) => self.apply(child).await,
            Want::Delete { kind, key, uid } => self.delete(&path(*kind, key), uid, None).await,
            Want::Guard { gang, base, patch, .. } => {
                self.json_patch(&path(Kind::Gang, gang), base, patch).await
            }
            Want::WriteJob { job, version, status } => {
                self.status(&path(Kind::Job, job), version, json!(status)).await
            }
            Want::Report { kind, key, version, status } => {
                self.status(&path(*kind, key), version, Value::clone(status)).await
            }
            Want::Remark { kind, key, version, epoch, message } => {
                // A merge patch: the object's other fields are none of our business, since we cannot read them.
                let status = json!({ "reason": "Unreadable", "message": message });
                let mut patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
                if *kind == Kind::Gang {
                    patch["status"]["epoch"] = json!(epoch);
                }
                let object = format!("{}/status?{MANAGER}", path(*kind, key));
                self.reply(Method::PATCH, &object, MERGE, to_bytes(&patch)).await
            }
            Want::Tell(note) => {
                let path = format!("{}?{MANAGER}", Kind::Event.path(&note.about.namespace));
                self.reply(Method::POST, &path, JSON, to_bytes(&self.event(note))).await
            }
        }
    }

    async fn create_pod(&self, pod: &ObjectKey, body: &[u8]) -> Outcome {
        let collection = format!("{}?{MANAGER}", Kind::Pod.path(&pod.namespace));
        match self.send(Method::POST, &collection, JSON, body.to_vec()).await {
            Ok(answer) => done(&answer),
            Err(Outcome::Conflict) => match self
                .ask(Method::GET, &path(Kind::Pod, pod), JSON, Vec::new())
                .await
            {
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
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict&{MANAGER}");
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

    /// Deletes a pod and takes our finalizer off it. The deletion goes first: a pod that is let go but not deleted would
    /// be nobody's.
    async fn end_pod(
        &self,
        pod: &ObjectKey,
        uid: &Uid,
        delete: Option<bool>,
        release: Option<usize>,
    ) -> Outcome {
        let object = path(Kind::Pod, pod);
        if let Some(force) = delete {
            let outcome = self.delete(&object, uid, force.then_some(0)).await;
            if release.is_none() || !matches!(outcome, Outcome::Done { .. }) {
                return outcome;
            }
        }
        let Some(position) = release else { return Outcome::Done { version: None, uid: None } };
        let finalizer = format!("/metadata/finalizers/{position}");
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": uid },
            { "op": "test", "path": finalizer, "value": labels::RESULT_FINALIZER },
            { "op": "remove", "path": finalizer },
        ]);
        match self.patch(&format!("{object}?{MANAGER}"), &patch).await {
            // Another pod, or other finalizers than those that were seen.
            Outcome::Refused(_) => Outcome::Conflict,
            outcome => outcome,
        }
    }

    /// Creates a part of a large plan. It is named by its content: one that exists is the same, if it exists.
    async fn part(&self, part: &Value) -> Result<(), Outcome> {
        let text = |field: &str| part["metadata"][field].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        let kind = Kind::Part;
        let collection = format!("{}?{MANAGER}", kind.path(&key.namespace));
        match self.send(Method::POST, &collection, JSON, to_bytes(part)).await {
            Ok(_) => Ok(()),
            // A conflict may also be one over a quota, and then the part is not there.
            Err(Outcome::Conflict) => {
                let there = self.ask(Method::GET, &path(kind, &key), JSON, Vec::new()).await;
                let there: Value = match there {
                    Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
                    Err(Outcome::Gone) => {
                        return Err(Outcome::Transient(format!("{} could not be created yet", key.name)));
                    }
                    Err(outcome) => return Err(outcome),
                };
                if there.get("spec") == part.get("spec") {
                    Ok(())
                } else {
                    Err(Outcome::Refused(format!("{} exists with another content; delete it", key.name)))
                }
            }
            Err(outcome) => Err(outcome),
        }
    }

    /// Creates a child, or brings it up to date from how it was observed. One of the name that is somebody else's is
    /// never adopted.
    async fn apply(&self, child: &Child) -> Outcome {
        if let Some(base) = &child.base {
            return self.json_patch(&path(child.kind, &child.key), base, &child.patch).await;
        }
        let collection = format!("{}?{MANAGER}", child.kind.path(&child.key.namespace));
        match self.reply(Method::POST, &collection, JSON, to_bytes(&child.body)).await {
            Outcome::Conflict => {}
            // The collection always exists: what is not found is the namespace.
            Outcome::Gone => {
                return Outcome::Refused(format!("namespace {:?} does not exist", child.key.namespace));
            }
            outcome => return outcome,
        }
        let there = self.send(Method::GET, &path(child.kind, &child.key), JSON, Vec::new()).await;
        let there: PartialObjectMeta = match there {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(object) => object,
                Err(error) => return Outcome::Transient(error.to_string()),
            },
            Err(Outcome::Gone) => return Outcome::Transient("it could not be created yet".into()),
            Err(outcome) => return outcome,
        };
        let mut owners = there.metadata.owner_references.unwrap_or_default().into_iter();
        match owners.find(|owner| owner.controller == Some(true)) {
            // Ours: the watch shows how it is.
            Some(owner) if owner.uid == child.owner.0 => Outcome::Conflict,
            Some(owner) => Outcome::Foreign(format!("belongs to {} {:?}", owner.kind, owner.name)),
            None => Outcome::Foreign("belongs to nobody".into()),
        }
    }

    /// A JSON patch of an object as it was observed.
    async fn json_patch(&self, object: &str, base: &Base, patch: &Value) -> Outcome {
        let mut all = vec![
            json!({ "op": "test", "path": "/metadata/uid", "value": base.uid }),
            json!({ "op": "replace", "path": "/metadata/resourceVersion", "value": base.version }),
        ];
        all.extend(patch.as_array().into_iter().flatten().cloned());
        self.patch(&format!("{object}?{MANAGER}"), &Value::Array(all)).await
    }

    /// Replaces a status as a whole, if the object still has this version: one atomic compare-and-swap.
    async fn status(&self, object: &str, version: &str, status: Value) -> Outcome {
        let patch = json!([
            { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
            { "op": "add", "path": "/status", "value": status },
        ]);
        self.patch(&format!("{object}/status?{MANAGER}"), &patch).await
    }

    async fn patch(&self, path: &str, patch: &Value) -> Outcome {
        self.reply(Method::PATCH, path, JSON_PATCH, to_bytes(patch)).await
    }

    async fn delete(&self, path: &str, uid: &Uid, grace: Option<i64>) -> Outcome {
        let mut options = json!({ "preconditions": { "uid": uid }, "propagationPolicy": "Background" });
        if let Some(seconds) = grace {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        self.reply(Method::DELETE, path, JSON, to_bytes(&options)).await
    }

    async fn reply(&self, method: Method, path: &str, content: &str, body: Vec<u8>) -> Outcome {
        match self.send(method, path, content, body).await {
            Ok(bytes) => done(&bytes),
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
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{}.", note.about.name), "namespace": note.about.namespace },
            "involvedObject": {
                "apiVersion": "muster.dev/v1alpha1",
                "kind": note.kind.name(),
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

fn path(kind: Kind, key: &ObjectKey) -> String {
    format!("{}/{}", kind.path(&key.namespace), key.name)
}

/// What an answer with an object's metadata says.
fn done(answer: &[u8]) -> Outcome {
    let object: Option<PartialObjectMeta> = serde_json::from_slice(answer).ok();
    let meta = object.map(|object| object.metadata).unwrap_or_default();
    Outcome::Done { version: meta.resource_version, uid: meta.uid.map(Uid) }
}

fn to_bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn facts(bytes: &[u8]) -> Result<PodFacts, String> {
    serde_json::from_slice::<SeenPod>(bytes)
        .map(|pod| PodFacts::of(&pod.0).0)
        .map_err(|error| error.to_string())
}
