//! A client whose requests can be watched, held or cut: to stop an operator at a chosen point.
//!
//! ```text
//!   operator ──request──▶ hook (Before) ──▶ API server ──answer──▶ hook (After) ──▶ operator
//! ```

use axum::body::Bytes;
use futures::future::BoxFuture;
use futures::{AsyncBufReadExt, TryStreamExt};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;
use tower::{BoxError, service_fn};

/// When a hook looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The request has not been sent.
    Before,
    /// The server has done it, and the one who asked does not know yet.
    After,
}

/// What a hook sees of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When.
    pub when: When,
    /// Method.
    pub method: Method,
    /// Path, without the query.
    pub path: String,
}

impl Seen {
    /// Whether the request could change something.
    pub fn is_write(&self) -> bool {
        self.method != Method::GET
    }
}

/// Runs before and after each request, which goes on when it is done.
pub type Hook = Arc<dyn Fn(Seen) -> BoxFuture<'static, ()> + Send + Sync>;

/// The client, with `hook` around each of its requests.
pub fn hooked(client: Client, hook: Hook) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, hook) = (client.clone(), hook.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            hook(Seen { when: When::Before, method: method.clone(), path: path.clone() }).await;
            let answer = client.send(request).await;
            hook(Seen { when: When::After, method, path }).await;
            answer
        }
    });
    Client::new(service, namespace)
}

/// Rewords what is read at a path, in lists and watches alike, while it is switched on.
#[derive(Clone)]
pub struct Rewording {
    /// Path of the collection, without the query.
    pub path: &'static str,
    /// The text that is replaced.
    pub from: &'static str,
    /// What stands there instead.
    pub to: &'static str,
    /// Whether it is.
    pub on: Arc<AtomicBool>,
}

impl Rewording {
    fn apply(&self, text: &str) -> Bytes {
        let text =
            if self.on.load(Ordering::SeqCst) { text.replace(self.from, self.to) } else { text.to_owned() };
        Bytes::from(text)
    }
}

/// The client, whose answers are reworded.
pub fn reworded(client: Client, wording: Rewording) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, wording) = (client.clone(), wording.clone());
        async move {
            let concerned = request.method() == Method::GET && request.uri().path() == wording.path;
            let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let (parts, body) = client.send(request).await?.into_parts();
            let body: UnsyncBoxBody<Bytes, BoxError> = if !concerned {
                body.map_err(Into::into).boxed_unsync()
            } else if watch {
                // Whole lines, wherever the pieces that came are cut.
                let lines = body.into_data_stream().map_err(std::io::Error::other).into_async_read().lines();
                let frames = lines.map_ok(move |line| Frame::data(wording.apply(&(line + "\n"))));
                StreamBody::new(frames.map_err(Into::into)).boxed_unsync()
            } else {
                let whole = body.collect().await?.to_bytes();
                let whole = wording.apply(&String::from_utf8_lossy(&whole));
                Full::new(whole).map_err(|never| match never {}).boxed_unsync()
            };
            Ok::<_, kube::Error>(Response::from_parts(parts, body))
        }
    });
    Client::new(service, namespace)
}

/// A client that speaks for an account, with the token of a pod if one is given: an administrator impersonates both.
pub fn speaking_for(admin: Client, account: &str, pod: Option<&str>) -> Client {
    let namespace = admin.default_namespace().to_owned();
    let mut headers = vec![("impersonate-user", account.to_owned())];
    if let Some(pod) = pod {
        headers.push(("impersonate-extra-authentication.kubernetes.io%2fpod-name", pod.to_owned()));
    }
    let service = service_fn(move |mut request: Request<Body>| {
        let (admin, headers) = (admin.clone(), headers.clone());
        async move {
            for (name, value) in headers {
                request.headers_mut().insert(name, value.parse()?);
            }
            admin.send(request).await.map_err(tower::BoxError::from)
        }
    });
    Client::new(service, namespace)
}

/// Tells when the n-th write begins (or has been done), and holds it and all that follow for ever.
#[derive(Clone, Default)]
pub struct Tripwire {
    unarmed: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    tripped: Arc<Notify>,
}

impl Tripwire {
    /// As [`Self::at`], but writes count only once it is armed.
    pub fn armed_later(&self, nth: usize, when: When) -> Hook {
        self.unarmed.store(true, Ordering::SeqCst);
        self.at(nth, when)
    }

    /// From now on writes count.
    pub fn arm(&self) {
        self.unarmed.store(false, Ordering::SeqCst);
    }

    /// The hook that trips before or after the n-th write (from 0) other than those of the Lease.
    pub fn at(&self, nth: usize, when: When) -> Hook {
        let this = self.clone();
        Arc::new(move |seen: Seen| {
            let this = this.clone();
            Box::pin(async move {
                if !seen.is_write() || seen.path.contains("/leases") || this.unarmed.load(Ordering::SeqCst) {
                    return;
                }
                let trips = match seen.when {
                    w if w == when => this.count.fetch_add(1, Ordering::SeqCst) >= nth,
                    // Writes run beside each other: once it has tripped no other goes out, either.
                    _ => this.count.load(Ordering::SeqCst) > nth,
                };
                if trips {
                    this.tripped.notify_one();
                    std::future::pending::<()>().await;
                }
            })
        })
    }

    /// Waits until it trips.
    pub async fn tripped(&self) {
        self.tripped.notified().await;
    }
}

/// Holds the first request that `matches` and all that follow, until they are let go.
#[derive(Clone)]
pub struct Gate {
    matches: Arc<dyn Fn(&Seen) -> bool + Send + Sync>,
    held: Arc<Notify>,
    closed: Arc<AtomicBool>,
    open: tokio_util::sync::CancellationToken,
}

impl Gate {
    /// A gate for requests that match.
    pub fn new(matches: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Self {
        let (held, closed) = (Arc::default(), Arc::default());
        Self { matches: Arc::new(matches), held, closed, open: tokio_util::sync::CancellationToken::new() }
    }

    /// The hook.
    pub fn hook(&self) -> Hook {
        let this = self.clone();
        Arc::new(move |seen: Seen| {
            let this = this.clone();
            Box::pin(async move {
                // From the first match on everything is held: a process that is stopped sends nothing at all.
                let begins = seen.when == When::Before;
                if begins && !this.closed.load(Ordering::SeqCst) && (this.matches)(&seen) {
                    this.closed.store(true, Ordering::SeqCst);
                    this.held.notify_one();
                }
                if begins && this.closed.load(Ordering::SeqCst) {
                    this.open.cancelled().await;
                }
            })
        })
    }

    /// Waits until a request is held.
    pub async fn held(&self) {
        self.held.notified().await;
    }

    /// Lets held requests go.
    pub fn open(&self) {
        self.open.cancel();
    }
}
