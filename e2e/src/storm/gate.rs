//! The only way from an operator to the server: what breaks, breaks here.
//!
//! ```text
//!   operator ──▶ gate: frozen? dead? tampered with? fate? ──▶ ApiServer ──▶ judge ──▶ fate of the answer ──▶ operator
//! ```

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use kube::Client;
use kube::client::Body;
use kubesim::api::{AnswerBody, BoxError};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

use super::judge::{Asked, Cause};
use super::seen::owner;
use super::sim::Sim;
use super::tamper::Verdict;
use super::trace::Break;
use crate::world::OPERATOR_USER;

/// Requests of one storm beyond which something runs wild.
const MOST_REQUESTS: u64 = 60_000;

/// The gate of one process.
pub struct Gate {
    /// The process.
    pub name: String,
    sim: Arc<Sim>,
    dead: AtomicBool,
    /// While true nothing passes in either direction.
    pub frozen: watch::Sender<bool>,
    thawed: Notify,
    /// After so many requests the process dies; the last one is done first if true.
    trip: Mutex<Option<(u16, bool)>>,
    /// Tells that it tripped.
    pub tripped: Notify,
}

type Answer = Response<AnswerBody>;

impl Gate {
    /// An open gate.
    pub fn new(sim: Arc<Sim>, name: String) -> Arc<Self> {
        Arc::new(Self {
            name,
            sim,
            dead: AtomicBool::new(false),
            frozen: watch::Sender::new(false),
            thawed: Notify::new(),
            trip: Mutex::default(),
            tripped: Notify::new(),
        })
    }

    /// A client through this gate.
    pub fn client(self: &Arc<Self>) -> Client {
        let gate = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let gate = gate.clone();
            async move { gate.pass(request).await }
        });
        Client::new(service, "default")
    }

    /// Freezes the process, or thaws it.
    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
        if !frozen {
            self.thawed.notify_waiters();
        }
    }

    /// Nothing passes any more.
    pub fn close(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    /// Dies after so many more requests.
    pub fn trip_after(&self, requests: u16, done: bool) {
        *self.trip.lock().unwrap_or_else(PoisonError::into_inner) = Some((requests, done));
    }

    /// It does not die, after all.
    pub fn spare(&self) {
        *self.trip.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits while the process is frozen; for ever once it is dead.
    async fn hold(&self) {
        // Not by the channel: it wakes many in a random order.
        loop {
            let thawed = self.thawed.notified();
            if !*self.frozen.borrow() {
                break;
            }
            thawed.await;
        }
        if self.dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Whether this request is the last one; and whether it is done.
    fn trips(&self) -> Option<bool> {
        let mut trip = self.trip.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, done) = (*trip)?;
        if left > 1 {
            *trip = Some((left - 1, done));
            return None;
        }
        *trip = None;
        Some(done)
    }

    async fn die(&self) {
        self.close();
        self.tripped.notify_one();
        std::future::pending::<()>().await;
    }

    async fn pass(self: Arc<Self>, request: Request<Body>) -> Result<Answer, BoxError> {
        self.hold().await;
        let (parts, body) = request.into_parts();
        let mut asked = One { parts, body: body.collect_bytes().await? };
        let renews = asked.parts.uri.path().contains("/leases/");
        if self.sim.log().requests > MOST_REQUESTS {
            self.sim
                .judge()
                .fail("runs wild", format!("more than {MOST_REQUESTS} requests; now {}", asked.line()));
            self.close();
        }
        let trips = if renews { None } else { self.trips() };
        if trips == Some(false) {
            self.die().await;
        }
        let kind = asked.stream();
        let fate = self.sim.weather().fate(self.sim.millis(), &asked.parts.method, kind.is_some());
        if let Some(how) = fate.how {
            self.sim.count(name_of(how));
        }
        let planned = self.planned(&asked);
        tokio::time::sleep(Duration::from_millis(fate.latency)).await;
        let answer = match fate.how {
            Some(Break::TooMany) => return self.refuse(&asked, 429, "TooManyRequests"),
            Some(Break::Internal) => return self.refuse(&asked, 500, "InternalError"),
            Some(Break::Unavailable) => return self.refuse(&asked, 503, "ServiceUnavailable"),
            Some(Break::Conflict) => return self.refuse(&asked, 409, "Conflict"),
            Some(Break::Unreachable) => return Err(broken()),
            Some(Break::Late) => {
                let gate = self.clone();
                let late = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(fate.delay)).await;
                    gate.perform(&mut asked, true).await
                });
                late.await??
            }
            _ => {
                // What it was decided on changed while it was on its way: as late as if it had waited.
                let late = planned != self.planned(&asked);
                self.perform(&mut asked, late).await?
            }
        };
        if trips == Some(true) {
            self.die().await;
        }
        match fate.how {
            Some(Break::Lost) => return Err(broken()),
            Some(Break::Silent) => std::future::pending::<()>().await,
            Some(Break::Slow) => tokio::time::sleep(Duration::from_millis(fate.delay)).await,
            _ => {}
        }
        self.hold().await;
        Ok(match kind {
            Some(kind) => self.lagging(answer, kind),
            None => answer,
        })
    }

    /// The generation of the plan in force for which a pod is created.
    fn planned(&self, asked: &One) -> Option<u64> {
        if asked.parts.method != Method::POST || !asked.parts.uri.path().ends_with("/pods") {
            return None;
        }
        let pod: Value = serde_json::from_slice(&asked.body).unwrap_or_default();
        let gang = owner(&pod, "Gang")?;
        let judge = self.sim.judge();
        judge.gangs.get(&gang).filter(|gang| gang.holds()).map(|gang| gang.generation)
    }

    /// The server does it, whatever becomes of the answer.
    async fn perform(&self, asked: &mut One, late: bool) -> Result<Answer, BoxError> {
        let method = asked.parts.method.clone();
        let path = asked.parts.uri.path().to_owned();
        let dry = asked.parts.uri.query().is_some_and(|query| query.contains("dryRun"));
        if let Some(tampering) = &self.sim.tampering
            && !dry
            && method != Method::GET
        {
            let mut tampering = tampering.lock().unwrap_or_else(PoisonError::into_inner);
            match tampering.look(&self.sim, &method, &path, &asked.body) {
                Verdict::Pass => {}
                Verdict::Instead(body) => asked.body = body,
                Verdict::Swallow(code, answer) => {
                    self.sim.settle(&Cause::Operator(Asked { path: &path, late }));
                    return respond(code, &answer);
                }
            }
        }
        let answer = self.sim.server.serve(OPERATOR_USER, asked.request()?).await?;
        let code = answer.status().as_u16();
        self.sim.note_request(&self.name, &method, &asked.parts.uri.to_string(), &asked.body, code);
        let asked = Asked { path: &path, late };
        if method != Method::GET && !dry && !path.contains("/leases/") && code < 300 {
            self.sim.judge().writes += 1;
        }
        self.sim.settle(&Cause::Operator(asked));
        Ok(answer)
    }

    fn refuse(&self, asked: &One, code: u16, reason: &str) -> Result<Answer, BoxError> {
        self.sim.note_request(
            &self.name,
            &asked.parts.method,
            &asked.parts.uri.to_string(),
            &asked.body,
            code,
        );
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("{reason} (a fault of the storm)"), "reason": reason, "code": code,
        });
        respond(code, &status)
    }

    /// A watch whose lines come later, in their order.
    fn lagging(self: &Arc<Self>, answer: Answer, kind: String) -> Answer {
        let gate = self.clone();
        let (parts, body) = answer.into_parts();
        let lines = body.into_data_stream().then(move |line| {
            let lag = gate.sim.weather().lag_of(gate.sim.millis(), &kind);
            async move {
                if lag > 0 {
                    tokio::time::sleep(Duration::from_millis(lag)).await;
                }
                line.map(Frame::data)
            }
        });
        Response::from_parts(parts, StreamBody::new(lines.boxed()))
    }
}

/// One request, as it can be sent again.
struct One {
    parts: http::request::Parts,
    body: Bytes,
}

impl One {
    fn request(&self) -> Result<Request<Body>, BoxError> {
        let mut request = Request::builder().method(self.parts.method.clone()).uri(self.parts.uri.clone());
        for (name, value) in &self.parts.headers {
            request = request.header(name, value);
        }
        Ok(request.body(Body::from(self.body.to_vec()))?)
    }

    /// The kind, of a watch.
    fn stream(&self) -> Option<String> {
        let query = self.parts.uri.query().unwrap_or_default();
        let watch = self.parts.method == Method::GET && query.contains("watch=");
        watch.then(|| self.parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned())
    }

    fn line(&self) -> String {
        format!("{} {}", self.parts.method, self.parts.uri)
    }
}

fn broken() -> BoxError {
    Box::new(std::io::Error::new(
        std::io::ErrorKind::ConnectionReset,
        "connection reset (a fault of the storm)",
    ))
}

fn respond(code: u16, body: &Value) -> Result<Answer, BoxError> {
    let bytes = Bytes::from(body.to_string());
    let stream = futures::stream::iter([Ok(Frame::data(bytes))]).boxed();
    let answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    Ok(answer.body(StreamBody::new(stream))?)
}

fn name_of(how: Break) -> &'static str {
    match how {
        Break::TooMany => "answers 429",
        Break::Internal => "answers 500",
        Break::Unavailable => "answers 503",
        Break::Conflict => "answers 409",
        Break::Lost => "answers lost",
        Break::Silent => "requests done and never answered",
        Break::Unreachable => "connections broken before anything was done",
        Break::Late => "writes done late, past others",
        Break::Slow => "answers late",
    }
}
