//! The server object: clients, faults, statistics, and the way of a request through it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use http::{Method, Request, Response, header};
use http_body::Frame;
use http_body_util::StreamBody;
use kube::client::Body;
use serde_json::{Value, json};

use super::controllers::Work;
use super::defaults;
use super::discovery;
use super::policy::Policies;
use super::request::{Call, RequestInfo};
use super::resources::Catalogue;
use super::signal::Signal;
use super::status::ApiError;
use super::store::{Store, Written};
use super::watch::stream as watch_stream;
use crate::clock::Clock;

/// Why there is no answer.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer: an object, or the lines of a watch.
pub type AnswerBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>>;
/// Decides, before each request, whether and how it breaks.
pub type FaultHook = Box<dyn Fn(&RequestInfo) -> Option<Fault> + Send + Sync>;

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Options {
    /// Watch events kept per resource; a watch from before them gets 410.
    pub history: usize,
    /// Time between bookmarks on a watch that asked for them (a real server: about a minute).
    pub bookmark_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { history: 20_000, bookmark_interval: Duration::from_secs(60) }
    }
}

/// What a fault hook does to one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Answer with this error; the request has no effect.
    Fail {
        /// HTTP status code.
        code: u16,
        /// Reason of the Status, e.g. `TooManyRequests`.
        reason: String,
        /// Message of the Status.
        message: String,
    },
    /// Handle the request after this long.
    Delay(Duration),
    /// Handle the request, then break the connection instead of answering.
    DropResponse,
    /// Break the connection before the request has any effect.
    Unreachable,
    /// End every watch, then handle the request.
    BreakWatches,
}

/// What requests are counted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// User of the client.
    pub user: String,
    /// Verb, as in [`RequestInfo::verb`].
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// HTTP status code answered; 0 if the connection was broken before the request took effect.
    pub code: u16,
}

impl RequestKey {
    /// Whether the request could change something.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }
}

/// Requests answered since the start or since the last reset, by [`RequestKey`].
pub type RequestCount = BTreeMap<RequestKey, u64>;

/// Everything behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub store: Store,
    pub catalogue: Catalogue,
    pub policies: Policies,
    /// What each field manager applied last, by (uid, manager, subresource).
    pub applied: BTreeMap<(String, String, String), Value>,
    pub counts: RequestCount,
    /// What finished writes still call for; empty between requests.
    pub work: VecDeque<Work>,
    pub now: jiff::Timestamp,
}

pub(crate) struct Inner {
    state: Mutex<State>,
    fault: Mutex<Option<Arc<FaultHook>>>,
    pub clock: Arc<dyn Clock>,
    pub options: Options,
    /// Changes whenever all watches must end.
    pub breaks: Signal,
}

/// An in-memory Kubernetes API server; clones share it.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

/// What a handler answers.
pub(crate) enum Answer {
    Json(u16, Value),
    /// A watch from this table, to be streamed.
    Watch(Box<super::watch::Watch>),
}

impl ApiServer {
    /// A server with the objects that every cluster has (system namespaces and priority classes).
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_options(clock, Options::default())
    }

    /// As [`ApiServer::new`], with settings.
    pub fn with_options(clock: Arc<dyn Clock>, options: Options) -> Self {
        let mut state = State {
            store: Store::new(options.history.max(1)),
            catalogue: Catalogue::built_in(),
            policies: Policies::default(),
            applied: BTreeMap::new(),
            counts: RequestCount::new(),
            work: VecDeque::new(),
            now: clock.now(),
        };
        defaults::seed(&mut state);
        let inner = Inner {
            state: Mutex::new(state),
            fault: Mutex::new(None),
            clock,
            options,
            breaks: Signal::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A server of its own with the same objects, for the same time of day as `clock` tells. No history comes along, nor
    /// watches, faults and counts. Cheaper by far than installing the same objects again.
    #[must_use]
    pub fn fork(&self, clock: Arc<dyn Clock>) -> Self {
        let state = self.lock();
        let copy = State {
            store: state.store.fork(),
            catalogue: state.catalogue.clone(),
            policies: state.policies.clone(),
            applied: state.applied.clone(),
            counts: RequestCount::new(),
            work: VecDeque::new(),
            now: clock.now(),
        };
        let inner = Inner {
            state: Mutex::new(copy),
            fault: Mutex::new(None),
            clock,
            options: self.inner.options.clone(),
            breaks: Signal::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Keeps every write from now on for [`Self::take_journal`].
    pub fn keep_journal(&self) {
        self.lock().store.keep_journal();
    }

    /// The writes since they were last taken, oldest first; none without [`Self::keep_journal`].
    pub fn take_journal(&self) -> Vec<Written> {
        self.lock().store.take_journal()
    }

    /// All objects of a resource at this moment, by namespace and name.
    pub fn objects(&self, group: &str, plural: &str) -> Vec<Arc<Value>> {
        let table = super::resources::table_name(group, plural);
        self.lock().store.table(&table).map(|t| t.objects.values().cloned().collect()).unwrap_or_default()
    }

    /// One object at this moment; `namespace` is empty for cluster scope.
    pub fn object(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let table = super::resources::table_name(group, plural);
        self.lock().store.get(&table, namespace, name).cloned()
    }

    /// Does a request at once, without a client and past the faults: for simulated machines and for tests that need
    /// thousands of them. `path` may have a query; `content` is the type of the body.
    ///
    /// # Errors
    /// What the server refuses; 400 for a watch, which needs a client.
    pub fn act(
        &self,
        user: &str,
        method: Method,
        path: &str,
        content: &str,
        body: &Value,
    ) -> Result<Value, ApiError> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content);
        let request = request.body(()).map_err(|e| ApiError::bad_request(format!("{path}: {e}")))?;
        let call = Call::new(user, &request.into_parts().0, bytes);
        match self.handle(&call)? {
            Answer::Json(_, value) => Ok(value),
            Answer::Watch(_) => Err(ApiError::bad_request(format!("{path}: a watch needs a client"))),
        }
    }

    /// A client whose requests are accounted to `user`, and whose `request.userInfo.username` it is. A request may
    /// impersonate another user by the headers `Impersonate-User` and `Impersonate-Extra-<key>`.
    ///
    /// Needs a tokio runtime, as every `kube::Client` does.
    pub fn client(&self, user: &str) -> kube::Client {
        let (server, user) = (self.clone(), user.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, user) = (server.clone(), user.clone());
            async move { server.serve(&user, request).await }
        });
        kube::Client::new(service, "default")
    }

    /// Requests answered so far.
    pub fn stats(&self) -> RequestCount {
        self.lock().counts.clone()
    }

    /// Starts counting anew.
    pub fn reset_stats(&self) {
        self.lock().counts.clear();
    }

    /// Sets the hook that may break requests; it runs before each of them.
    pub fn set_fault(&self, hook: FaultHook) {
        *self.fault_slot() = Some(Arc::new(hook));
    }

    /// Removes the fault hook.
    pub fn clear_fault(&self) {
        *self.fault_slot() = None;
    }

    /// Ends every watch; clients reconnect from where they were.
    pub fn break_watches(&self) {
        self.inner.breaks.raise();
    }

    /// Forgets the history, as etcd's compaction does: a watch from before now gets 410.
    pub fn compact(&self) {
        self.lock().store.compact();
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> u64 {
        self.lock().store.revision
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while handling one request leaves whole objects behind: going on is sound.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault_slot(&self) -> MutexGuard<'_, Option<Arc<FaultHook>>> {
        self.inner.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request of `user`: what [`Self::client`] does, for those who put something between.
    ///
    /// # Errors
    /// When a fault breaks the connection.
    pub async fn serve(&self, user: &str, request: Request<Body>) -> Result<Response<AnswerBody>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let call = Call::new(user, &parts, body);
        let hook = self.fault_slot().clone();
        let fault = hook.and_then(|hook| hook(&call.info));
        let mut drop_response = false;
        match fault {
            Some(Fault::Fail { code, reason, message }) => {
                let error = ApiError::new(code, &reason, message);
                self.count(&call.info, error.code);
                return respond(error.http_status().as_u16(), &error.body());
            }
            Some(Fault::Unreachable) => {
                self.count(&call.info, 0);
                return Err(broken("connection refused (injected fault)"));
            }
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::DropResponse) => drop_response = true,
            Some(Fault::BreakWatches) => self.break_watches(),
            None => {}
        }
        let answer = self.handle(&call);
        let code = match &answer {
            Ok(Answer::Json(code, _)) => *code,
            Ok(Answer::Watch(_)) => 200,
            Err(error) => error.code,
        };
        self.count(&call.info, code);
        if drop_response {
            return Err(broken("connection reset before the answer (injected fault)"));
        }
        match answer {
            Ok(Answer::Json(code, value)) => respond(code, &value),
            Ok(Answer::Watch(watch)) => {
                let stream = watch_stream(self.clone(), *watch);
                build(200, stream.map(|line| Ok(Frame::data(line))).boxed())
            }
            Err(error) => respond(error.http_status().as_u16(), &error.body()),
        }
    }

    fn count(&self, info: &RequestInfo, code: u16) {
        let key = RequestKey {
            user: info.user.clone(),
            verb: info.verb.clone(),
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            code,
        };
        *self.lock().counts.entry(key).or_insert(0) += 1;
    }

    fn handle(&self, call: &Call) -> Result<Answer, ApiError> {
        let mut state = self.lock();
        state.now = self.inner.clock.now();
        if let Some(document) = discovery::answer(call, &state.catalogue) {
            return Ok(Answer::Json(200, document));
        }
        let resource = call.resource(&state.catalogue)?;
        let answer = match call.info.verb.as_str() {
            "get" => state.get(call, &resource),
            "list" => state.list(call, &resource),
            "watch" => state.watch(call, &resource, self.inner.options.bookmark_interval),
            "create" => state.create(call, &resource),
            "update" => state.update(call, &resource),
            "patch" => state.patch(call, &resource),
            "delete" => state.delete(call, &resource),
            "deletecollection" => state.delete_collection(call, &resource),
            verb => Err(ApiError::method_not_allowed(verb, &call.info.path)),
        };
        state.run_controllers();
        answer
    }
}

fn broken(why: &str) -> BoxError {
    Box::new(std::io::Error::new(std::io::ErrorKind::ConnectionReset, why.to_owned()))
}

fn respond(code: u16, body: &Value) -> Result<Response<AnswerBody>, BoxError> {
    let bytes = Bytes::from(serde_json::to_vec(body)?);
    build(code, futures::stream::iter([Ok(Frame::data(bytes))]).boxed())
}

fn build(
    code: u16,
    stream: BoxStream<'static, Result<Frame<Bytes>, BoxError>>,
) -> Result<Response<AnswerBody>, BoxError> {
    let response = Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(StreamBody::new(stream))?;
    Ok(response)
}

/// `metav1.Status` of a success that has no object to return.
pub(crate) fn success(details: Value) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if !details.is_null() {
        status["details"] = details;
    }
    status
}
