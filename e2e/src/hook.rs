//! A client whose requests can be watched, held or cut: to stop an operator at a chosen point.

use futures::future::BoxFuture;
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;
use tower::service_fn;

/// What a hook sees of a request.
#[derive(Clone, Debug)]
pub struct Seen {
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

/// Runs before each request; the request is sent when it is done.
pub type Hook = Arc<dyn Fn(Seen) -> BoxFuture<'static, ()> + Send + Sync>;

/// The client, with `hook` before each of its requests.
pub fn hooked(client: Client, hook: Hook) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, hook) = (client.clone(), hook.clone());
        async move {
            hook(Seen { method: request.method().clone(), path: request.uri().path().to_owned() }).await;
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

/// Tells when the n-th write begins, and holds it and all that follow for ever.
#[derive(Clone, Default)]
pub struct Tripwire {
    count: Arc<AtomicUsize>,
    tripped: Arc<Notify>,
}

impl Tripwire {
    /// The hook that trips at the n-th write (from 0) other than those of the Lease.
    pub fn at(&self, nth: usize) -> Hook {
        let this = self.clone();
        Arc::new(move |seen: Seen| {
            let this = this.clone();
            Box::pin(async move {
                if seen.is_write()
                    && !seen.path.contains("/leases")
                    && this.count.fetch_add(1, Ordering::SeqCst) >= nth
                {
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
                if !this.closed.load(Ordering::SeqCst) && (this.matches)(&seen) {
                    this.closed.store(true, Ordering::SeqCst);
                    this.held.notify_one();
                }
                if this.closed.load(Ordering::SeqCst) {
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
