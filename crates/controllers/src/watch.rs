//! Watches as a stream of changes, from which a relist cannot hide a deletion, and which cannot hang.
//!
//! ```text
//!           ┌──────────────── 410 ─────────────────┐
//!           ▼                                      │
//!   ──▶ Listing ──last page──▶ Opening ──▶ Following ──90 s of silence──▶ Asking ──▶ the version went back: over
//!                                 ▲            │ ended, broken              │
//!                                 └────────────┴────────── still there ─────┘
//! ```
//!
//! Each request has a limit of its own, and every answer is a sign of life. A silent watch is not believed: the server
//! is asked for its version, so that a dead connection is noticed, and also a server whose data was restored from a
//! backup, which would say nothing until it had counted up to where we are.

use futures::stream::BoxStream;
use futures::{AsyncBufReadExt, Stream, StreamExt};
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use muster_core::Change;
use muster_model::{ObjectKey, Uid};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

use crate::decode::{self, Content, Identity, Page, Said, bounded};
use crate::pulse::Vital;

/// How long a page of a list may take. The server lets a request wait for at most 15 s before it works on it.
const LIST: Duration = Duration::from_secs(20);
/// How long a watch may take to be opened.
const OPEN: Duration = Duration::from_secs(15);
/// How long a watch may be silent: bookmarks come about once a minute.
const SILENCE: Duration = Duration::from_secs(90);
/// Objects in a page.
const PAGE: u32 = 500;
/// After how long the server ends a watch, in seconds: the client library refuses more than 295.
const WATCH: u32 = 290;
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(10));

/// The server's data is older than what was seen of it: nothing that is known holds any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "{kind}: the API server is at resourceVersion {now} after {seen} was seen: its data was restored from a backup"
)]
pub struct Rewound {
    kind: String,
    seen: u64,
    now: u64,
}

/// Which objects, and how much of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Select {
    /// Only those that match this label selector.
    pub labels: Option<&'static str>,
    /// Only their metadata.
    pub metadata: bool,
}

/// Follows all objects that `api` sees and `select` chooses. Errors are logged and tried again with growing delays; what vanished while
/// the watch was broken is reported as gone. An object made again under its old name is first reported gone. What
/// cannot be read is reported as such and concerns nothing else. The stream ends with an error when the server's data
/// went back in time.
pub fn changes<K>(
    api: Api<K>,
    select: Select,
    vital: Vital,
) -> impl Stream<Item = Result<Change<K>, Rewound>> + Send
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let path = api.resource_url().to_owned();
    let feed = Feed {
        client: api.into_client(),
        path,
        select,
        vital,
        known: Known::default(),
        out: VecDeque::new(),
        state: State::Listing { next: None },
        pause: PAUSES.0,
    };
    futures::stream::unfold(feed, |mut feed| async move { feed.next().await.map(|change| (change, feed)) })
}

impl Select {
    fn list(self) -> ListParams {
        let params = ListParams::default();
        self.labels.iter().fold(params, |params, labels| params.labels(labels))
    }
}

/// Where a feed stands.
enum State {
    /// Before a page of a list; `next` continues an earlier page.
    Listing { next: Option<String> },
    /// Before a watch is opened.
    Opening,
    /// A watch is open.
    Following { lines: BoxStream<'static, io::Result<String>>, since: Instant },
    /// A watch has said nothing.
    Asking,
    /// Nothing follows.
    Over,
}

struct Feed<K> {
    client: Client,
    path: String,
    select: Select,
    vital: Vital,
    known: Known,
    out: VecDeque<Change<K>>,
    state: State,
    /// How long to wait after the next failure.
    pause: Duration,
}

impl<K> Feed<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> Option<Result<Change<K>, Rewound>> {
        loop {
            if let Some(change) = self.out.pop_front() {
                return Some(Ok(change));
            }
            let step = match std::mem::replace(&mut self.state, State::Over) {
                State::Listing { next } => self.list(next).await,
                State::Opening => Ok(self.open().await),
                State::Following { lines, since } => Ok(self.follow(lines, since).await),
                State::Asking => self.ask().await,
                State::Over => return None,
            };
            match step {
                Ok(state) => self.state = state,
                Err(rewound) => return Some(Err(rewound)),
            }
        }
    }

    /// Says what went wrong, and waits.
    async fn fail(&mut self, what: &str, error: &str) {
        tracing::warn!(kind = self.vital.kind(), error, "{what}; trying again");
        self.vital.failed(&format!("{what}: {error}"));
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    fn heard(&mut self) {
        self.vital.heard();
        self.pause = PAUSES.0;
    }

    /// Takes in a page of a list.
    async fn list(&mut self, next: Option<String>) -> Result<State, Rewound> {
        if next.is_none() {
            self.vital.listing();
            self.known.begin();
        }
        let params = ListParams { continue_token: next.clone(), ..self.select.list().limit(PAGE) };
        let request = Request::new(&self.path);
        let request =
            if self.select.metadata { request.list_metadata(&params) } else { request.list(&params) };
        let answer = match request {
            Ok(request) => text(&self.client, request).await,
            Err(error) => Err(Failure::other(&error)),
        };
        let page: Page<K> =
            match answer.and_then(|text| decode::page(&text).map_err(|error| Failure::other(&error))) {
                Ok(page) => page,
                Err(failure) => {
                    self.fail("cannot list", &failure.message).await;
                    // A list that is too old to be continued begins again.
                    return Ok(State::Listing { next: next.filter(|_| failure.code != GONE) });
                }
            };
        self.heard();
        self.check(&page.version)?;
        for (identity, content) in page.items {
            self.known.listed(&identity);
            self.set(identity, content);
        }
        if page.next.is_some() {
            return Ok(State::Listing { next: page.next });
        }
        for (key, uid) in self.known.end(&page.version) {
            self.out.push_back(Change::Gone(key, uid));
        }
        self.vital.unreadable(self.known.unreadable.len());
        self.vital.listed();
        self.out.push_back(Change::Relisted { version: page.version });
        if !std::mem::replace(&mut self.known.synced, true) {
            self.out.push_back(Change::Synced);
        }
        Ok(State::Opening)
    }

    /// Opens a watch where the last one, or the list, ended.
    async fn open(&mut self) -> State {
        let label_selector = self.select.labels.map(str::to_owned);
        let params =
            WatchParams { timeout: Some(WATCH), bookmarks: true, label_selector, ..WatchParams::default() };
        let opened = async {
            let request = Request::new(&self.path);
            let request = if self.select.metadata {
                request.watch_metadata(&params, &self.known.at)
            } else {
                request.watch(&params, &self.known.at)
            };
            let request = request.map_err(|error| Failure::other(&error))?;
            let opening = timeout(OPEN, self.client.request_stream(request)).await;
            opening.map_err(|_| Failure::late(OPEN))?.map_err(Failure::from)
        };
        match opened.await {
            Ok(body) => {
                self.vital.heard();
                State::Following { lines: body.lines().boxed(), since: Instant::now() }
            }
            Err(failure) => {
                self.fail("cannot watch", &failure.message).await;
                if failure.code == GONE { State::Listing { next: None } } else { State::Opening }
            }
        }
    }

    /// Takes in a line of a watch.
    async fn follow(&mut self, mut lines: BoxStream<'static, io::Result<String>>, since: Instant) -> State {
        let line = match timeout(SILENCE, lines.next()).await {
            Ok(Some(Ok(line))) => line,
            Ok(Some(Err(error))) => {
                self.fail("the watch broke", &error.to_string()).await;
                return State::Opening;
            }
            // The server ends each watch some time. One that ends them all at once is not asked in a hot loop.
            Ok(None) if since.elapsed() >= PAUSES.0 => return State::Opening,
            Ok(None) => {
                self.fail("the watch broke", "it ended as soon as it was open").await;
                return State::Opening;
            }
            Err(_) => return State::Asking,
        };
        match decode::line::<K>(&line) {
            Ok(Said::Set(identity, content)) => {
                self.known.reached(identity.version.clone());
                self.set(identity, content);
                self.vital.unreadable(self.known.unreadable.len());
            }
            Ok(Said::Gone(identity)) => {
                self.known.reached(identity.version);
                self.known.forget(&identity.key);
                self.vital.unreadable(self.known.unreadable.len());
                self.out.push_back(Change::Gone(identity.key, identity.uid));
            }
            Ok(Said::Bookmark(version)) => self.known.reached(version),
            Ok(Said::Fault { code: GONE, message }) => {
                tracing::info!(
                    kind = self.vital.kind(),
                    message,
                    "the watch is too far behind: listing anew"
                );
                self.heard();
                return State::Listing { next: None };
            }
            Ok(Said::Fault { message, .. }) => {
                self.fail("the watch broke", &message).await;
                return State::Opening;
            }
            // The half of a line, when a connection ends: it comes again.
            Err(error) => {
                self.fail("the watch broke", &error).await;
                return State::Opening;
            }
        }
        self.heard();
        State::Following { lines, since }
    }

    /// Asks for the server's version with the least list that there is.
    async fn ask(&mut self) -> Result<State, Rewound> {
        let answer = match Request::new(&self.path).list_metadata(&ListParams::default().limit(1)) {
            Ok(request) => text(&self.client, request).await,
            Err(error) => Err(Failure::other(&error)),
        };
        match answer.and_then(|text| decode::version(&text).map_err(|error| Failure::other(&error))) {
            Ok(version) => {
                self.check(&version)?;
                self.heard();
                Ok(State::Opening)
            }
            Err(failure) => {
                self.fail("the watch is silent", &failure.message).await;
                Ok(State::Asking)
            }
        }
    }

    /// A list shows the newest state there is, so its version never goes back.
    fn check(&mut self, version: &str) -> Result<(), Rewound> {
        let now = number(version);
        if now.is_some_and(|now| now < self.known.seen) {
            return Err(Rewound {
                kind: self.vital.kind().to_owned(),
                seen: self.known.seen,
                now: now.unwrap_or_default(),
            });
        }
        self.known.saw(version);
        Ok(())
    }

    /// An object is there.
    fn set(&mut self, Identity { key, uid, version }: Identity, content: Content<K>) {
        if let Some(old) = self.known.uids.insert(key.clone(), uid.clone())
            && old != uid
        {
            self.out.push_back(Change::Gone(key.clone(), old));
        }
        self.out.push_back(match content {
            Content::Read(object) => {
                self.known.unreadable.remove(&key);
                Change::Set(object)
            }
            Content::Unread(error) => {
                if self.known.unreadable.insert(key.clone()) {
                    tracing::warn!(kind = self.vital.kind(), object = %key, error, "an object cannot be read");
                }
                Change::Unreadable { key, uid, version, error }
            }
        });
    }
}

/// What was seen of a kind.
#[derive(Default)]
struct Known {
    uids: BTreeMap<ObjectKey, Uid>,
    unreadable: BTreeSet<ObjectKey>,
    /// What the list under way has shown.
    listed: BTreeSet<ObjectKey>,
    /// Where a watch goes on.
    at: String,
    /// The highest version seen.
    seen: u64,
    synced: bool,
}

impl Known {
    fn begin(&mut self) {
        self.listed.clear();
    }

    fn listed(&mut self, identity: &Identity) {
        self.listed.insert(identity.key.clone());
    }

    /// The list is complete: what it does not show is gone.
    fn end(&mut self, version: &str) -> Vec<(ObjectKey, Uid)> {
        version.clone_into(&mut self.at);
        let listed = std::mem::take(&mut self.listed);
        let gone = self.uids.iter().filter(|(key, _)| !listed.contains(*key));
        let gone: Vec<_> = gone.map(|(key, uid)| (key.clone(), uid.clone())).collect();
        for (key, _) in &gone {
            self.forget(key);
        }
        gone
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.uids.remove(key);
        self.unreadable.remove(key);
    }

    /// A watch has come as far as this version.
    fn reached(&mut self, version: String) {
        self.saw(&version);
        if !version.is_empty() {
            self.at = version;
        }
    }

    fn saw(&mut self, version: &str) {
        self.seen = self.seen.max(number(version).unwrap_or(0));
    }
}

/// Versions of one kind are numbers that grow.
fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

/// The status code of what is too old to be gone on with.
const GONE: u16 = 410;

/// A request that came to nothing.
struct Failure {
    /// Status code of the answer, 0 without one.
    code: u16,
    message: String,
}

impl Failure {
    fn other(error: &impl ToString) -> Self {
        Self { code: 0, message: bounded(&error.to_string()) }
    }

    fn late(limit: Duration) -> Self {
        Self::other(&format!("no answer within {limit:?}"))
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self { code: status.code, message: bounded(&status.message) },
            error => Self::other(&error),
        }
    }
}

/// The answer to a list.
async fn text(client: &Client, request: http::Request<Vec<u8>>) -> Result<String, Failure> {
    let answer = timeout(LIST, client.request_text(request)).await;
    answer.map_err(|_| Failure::late(LIST))?.map_err(Failure::from)
}
