//! Watches: a cursor into a table's history, woken by writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use serde_json::json;
use tokio::time::Instant;

use super::read::{bad_revision, is_native, selection, shape};
use super::request::{Call, Form};
use super::resources::Resource;
use super::selector::Selection;
use super::server::{Answer, ApiServer, State};
use super::signal::Listener;
use super::status::ApiError;
use super::store::{Change, Event, encode_line};

/// Events read from the history at a time, so that a slow watch holds the lock briefly.
const BATCH: usize = 500;
/// How long a watch lasts that names no timeout (a real server: 30 to 60 minutes).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1_800);

/// One watch request.
#[derive(Debug)]
pub(crate) struct Watch {
    resource: Arc<Resource>,
    namespace: String,
    selection: Selection,
    form: Form,
    /// Everything up to this revision was sent.
    cursor: u64,
    bookmarks: Option<Duration>,
    next_bookmark: Instant,
    deadline: Instant,
    ready: VecDeque<Bytes>,
    events: Listener,
    ended: bool,
}

impl State {
    /// Starts a watch; the initial events are taken now, under the lock.
    pub fn watch(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        bookmark_interval: Duration,
    ) -> Result<Answer, ApiError> {
        let selection = selection(call, resource)?;
        let timeout = match call.info.param("timeoutSeconds") {
            "" => DEFAULT_TIMEOUT,
            text => Duration::from_secs(text.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "timeoutSeconds: Invalid value {text:?}: must be a whole number"
                ))
            })?),
        };
        let asked = call.info.param("resourceVersion");
        let initial = call.info.flag("sendInitialEvents") || asked.is_empty() || asked == "0";
        let suppressed = call.info.param("sendInitialEvents") == "false";
        let from: u64 = if asked.is_empty() { 0 } else { asked.parse().map_err(|_| bad_revision(asked))? };
        let bookmarks = call.info.flag("allowWatchBookmarks");
        let revision = self.store.revision;
        let table = self.store.table_mut(&resource.table);
        let mut watch = Watch {
            resource: resource.clone(),
            namespace: call.info.namespace.clone(),
            selection,
            form: call.form(),
            cursor: if initial || suppressed && from == 0 { revision } else { from },
            bookmarks: bookmarks.then_some(bookmark_interval),
            next_bookmark: Instant::now() + bookmark_interval,
            deadline: Instant::now() + timeout,
            ready: VecDeque::new(),
            events: table.events.listen(),
            ended: false,
        };
        if initial && !suppressed {
            for (_, object) in table.scan(&call.info.namespace) {
                if watch.selection.matches(object) {
                    let shaped = shape(object, resource, watch.form);
                    watch.ready.push_back(encode_line("ADDED", &shaped));
                }
            }
            if call.info.flag("sendInitialEvents") && bookmarks {
                watch.ready.push_back(watch.bookmark(true));
            }
        } else if from < table.compacted && !suppressed {
            // The real server answers 200 and reports this on the stream.
            watch.fail(&ApiError::expired(from, table.compacted));
        }
        Ok(Answer::Watch(Box::new(watch)))
    }
}

impl Watch {
    fn bookmark(&self, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.cursor.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, version) = match self.form {
            Form::Full => (self.resource.kind.clone(), self.resource.api_version()),
            Form::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        encode_line("BOOKMARK", &json!({"kind": kind, "apiVersion": version, "metadata": metadata}))
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(encode_line("ERROR", &error.body()));
        self.ended = true;
    }

    /// Takes what happened since the cursor.
    fn read(&mut self, state: &mut State) {
        let revision = state.store.revision;
        let table = state.store.table_mut(&self.resource.table);
        // Mark as seen before reading, so that a later write wakes the watch again.
        self.events.note();
        if self.cursor < table.compacted {
            let compacted = table.compacted;
            self.fail(&ApiError::expired(self.cursor, compacted));
            return;
        }
        let start = table.position_after(self.cursor);
        let batch: Vec<Arc<Event>> = table.history.range(start..).take(BATCH).cloned().collect();
        let complete = batch.len() < BATCH;
        for event in &batch {
            self.cursor = event.revision;
            if let Some(line) = self.line_of(event) {
                self.ready.push_back(line);
            }
        }
        if complete {
            // Nothing else concerns this table: bookmarks may name the newest revision of all.
            self.cursor = self.cursor.max(revision);
        } else {
            self.events.doubt();
        }
    }

    /// The event as this watch sees it: entering the selection is ADDED, leaving it DELETED.
    fn line_of(&self, event: &Event) -> Option<Bytes> {
        if !self.namespace.is_empty() && self.namespace != event.namespace {
            return None;
        }
        let was = event.previous.as_ref().is_some_and(|p| self.selection.matches(p));
        let is = event.change != Change::Deleted && self.selection.matches(&event.object);
        let seen = match (was, is) {
            (false, false) => return None,
            (false, true) => Change::Added,
            (true, true) => Change::Modified,
            (true, false) => Change::Deleted,
        };
        if seen == event.change && is_native(&event.object, &self.resource, self.form) {
            return Some(event.line());
        }
        Some(encode_line(seen.as_str(), &shape(&event.object, &self.resource, self.form)))
    }
}

/// The lines of a watch, until its timeout, a break or an error.
pub(crate) fn stream(server: ApiServer, watch: Watch) -> impl Stream<Item = Bytes> + Send {
    let breaks = server.inner.breaks.listen();
    futures::stream::unfold((server, watch, breaks), |(server, mut watch, breaks)| async move {
        loop {
            if let Some(line) = watch.ready.pop_front() {
                return Some((line, (server, watch, breaks)));
            }
            if watch.ended || breaks.raised() {
                return None;
            }
            watch.read(&mut server.lock());
            if watch.ready.is_empty() && !watch.ended {
                wait(&mut watch, &breaks).await;
            }
        }
    })
}

/// Waits for a write, a bookmark's turn, a break or the end of the watch.
async fn wait(watch: &mut Watch, breaks: &Listener) {
    let turn = watch.next_bookmark;
    tokio::select! {
        biased;
        () = breaks.wait() => watch.ended = true,
        () = watch.events.wait() => {}
        () = tokio::time::sleep_until(watch.deadline) => {
            if watch.bookmarks.is_some() {
                let line = watch.bookmark(false);
                watch.ready.push_back(line);
            }
            watch.ended = true;
        }
        () = tokio::time::sleep_until(turn), if watch.bookmarks.is_some() => {
            let line = watch.bookmark(false);
            watch.ready.push_back(line);
            watch.next_bookmark = Instant::now() + watch.bookmarks.unwrap_or(DEFAULT_TIMEOUT);
        }
    }
}
