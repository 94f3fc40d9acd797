//! One storm's cluster: the server, its machines, what is judged, and what is counted.
//!
//! ```text
//!   every write ──▶ journal ──settle──▶ Judge (at once, with who did it)
//!                                  └──▶ DirectFleet (kubelets look at it later) ──drive──▶ writes …
//! ```

use crate::world::OperatorClock;
use http::Method;
use jiff::Timestamp;
use kubesim::api::{ApiError, ApiServer};
use kubesim::clock::{Clock, TokioClock};
use kubesim::kubelet::{DirectFleet, DirectOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

use super::judge::{Cause, Judge};
use super::rng::fold;
use super::tamper::{Tamper, Tampering};
use super::trace::{PRIORITIES, Trace};
use super::weather::Weather;
use crate::world::SYSTEM;

const BASE: &str = "2026-01-01T00:00:00Z";
const JSON: &str = "application/json";
/// Merge patches.
pub const MERGE: &str = "application/merge-patch+json";
/// The user that acts in a storm.
const USER: &str = "admin";

/// How often each thing was done to the operator.
pub type Counts = BTreeMap<&'static str, u64>;

/// What was asked of the server, in order.
#[derive(Debug, Default)]
pub struct Log {
    /// Names everything that was asked and answered, and when.
    pub hash: u64,
    /// Requests of the operators.
    pub requests: u64,
    /// The same in words, where they are wanted.
    pub lines: Option<Vec<String>>,
}

/// One storm's cluster.
pub struct Sim {
    /// The server.
    pub server: ApiServer,
    /// Its time.
    pub clock: Arc<TokioClock>,
    /// Its machines.
    fleet: Mutex<DirectFleet>,
    /// Who watches over the invariants.
    judge: Mutex<Judge>,
    /// What breaks.
    weather: Mutex<Weather>,
    /// What was asked.
    log: Mutex<Log>,
    /// What was done to the operator.
    counts: Mutex<Counts>,
    /// What is done to it on purpose, so that the judge finds it.
    pub tampering: Option<Mutex<Tampering>>,
    /// By how many milliseconds the operators' wall clocks are off.
    pub skew: Arc<AtomicI64>,
    wake: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of a namespace.
pub fn space(at: u8) -> String {
    format!("storm-{at}")
}

/// A server on which Muster is installed: each storm begins with a copy of it.
fn installed() -> &'static ApiServer {
    static SERVER: OnceLock<ApiServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let base: Timestamp = BASE.parse().expect("a time");
            let server = ApiServer::new(Arc::new(TokioClock::new(base)));
            muster_playground::install::install(&server.client(USER)).await.expect("Muster installs");
            let create = |path: &str, object: Value| {
                server.act(USER, Method::POST, path, JSON, &object).expect("it can be created");
            };
            for at in 0..2 {
                create("/api/v1/namespaces", json!({"metadata": {"name": space(at)}}));
            }
            for (name, value) in PRIORITIES.into_iter().flatten() {
                let class = json!({"metadata": {"name": name}, "value": value});
                create("/apis/scheduling.k8s.io/v1/priorityclasses", class);
            }
            server
        })
    })
}

/// Makes what all storms share; must not run inside a runtime.
pub fn prepare() {
    installed();
}

impl Sim {
    /// The cluster of a trace. The runtime's time must be paused.
    pub fn new(trace: &Trace, tamper: Option<Tamper>, keep_log: bool) -> Arc<Self> {
        let base: Timestamp = BASE.parse().unwrap_or_default();
        let clock = Arc::new(TokioClock::new(base));
        let server = installed().fork(clock.clone());
        server.keep_journal();
        let options = DirectOptions { seed: trace.seed, ..DirectOptions::default() };
        let fleet = DirectFleet::new(server.clone(), clock.clone(), options);
        Arc::new(Self {
            server,
            clock,
            fleet: Mutex::new(fleet),
            judge: Mutex::new(Judge::default()),
            weather: Mutex::new(Weather::new(trace.seed)),
            log: Mutex::new(Log { lines: keep_log.then(Vec::new), ..Log::default() }),
            counts: Mutex::default(),
            tampering: tamper.map(|tamper| Mutex::new(Tampering::new(tamper))),
            skew: Arc::default(),
            wake: Notify::new(),
        })
    }

    /// Milliseconds since the storm began.
    pub fn millis(&self) -> i64 {
        let base: Timestamp = BASE.parse().unwrap_or_default();
        self.clock.now().as_millisecond() - base.as_millisecond()
    }

    /// The judge.
    pub fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// What breaks.
    pub fn weather(&self) -> MutexGuard<'_, Weather> {
        lock(&self.weather)
    }

    /// The log.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// What was counted.
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// One more of these.
    pub fn count(&self, what: &'static str) {
        *self.counts().entry(what).or_insert(0) += 1;
    }

    /// Notes a line in the log.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let at = self.millis();
        let mut log = self.log();
        if let Some(lines) = &mut log.lines {
            let line = format!("{:>10.3}s {}", at as f64 / 1_000.0, line());
            lines.push(line);
        }
    }

    /// Notes a request and its answer.
    pub fn note_request(&self, who: &str, method: &Method, path: &str, body: &[u8], code: u16) {
        let at = self.millis();
        let mut log = self.log();
        log.requests += 1;
        let mut hash = fold(log.hash, &at.to_le_bytes());
        for part in [who.as_bytes(), method.as_str().as_bytes(), path.as_bytes(), body, &code.to_le_bytes()] {
            hash = fold(hash, part);
        }
        log.hash = hash;
        if let Some(lines) = &mut log.lines
            && !path.contains("/leases/")
        {
            let body = String::from_utf8_lossy(body);
            let body: String = body.chars().take(1_500).collect();
            lines.push(format!("{:>10.3}s {who} {method} {path} -> {code} {body}", at as f64 / 1_000.0));
        }
    }

    /// Shows what was written to those whom it concerns.
    pub fn settle(&self, cause: &Cause<'_>) {
        let writes = self.server.take_journal();
        if writes.is_empty() {
            return;
        }
        self.judge().see(&writes, cause);
        lock(&self.fleet).written(&writes);
        self.wake.notify_one();
    }

    /// A user does something.
    ///
    /// # Errors
    /// What the server refuses.
    pub fn act(&self, method: &Method, path: &str, body: &Value) -> Result<Value, ApiError> {
        let content = if *method == Method::PATCH { MERGE } else { JSON };
        let answer = self.server.act(USER, method.clone(), path, content, body);
        let code = answer.as_ref().map_or_else(|error| error.code, |_| 200);
        self.note_request("user", method, path, body.to_string().as_bytes(), code);
        self.settle(&Cause::World);
        answer
    }

    /// Does something to the machines.
    pub fn machines<T>(&self, act: impl FnOnce(&mut DirectFleet) -> T) -> T {
        let done = act(&mut lock(&self.fleet));
        self.settle(&Cause::World);
        self.wake.notify_one();
        done
    }

    /// Runs the machines for as long as the storm lasts.
    pub async fn drive(self: Arc<Self>) {
        loop {
            lock(&self.fleet).run();
            self.settle(&Cause::World);
            let due = lock(&self.fleet).next_due();
            let pause = due.map(|at| {
                let pause = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
                pause.max(Duration::from_millis(1))
            });
            // In this order, so that a run is the same every time.
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// The clock of an operator: its time of day may be set.
    pub fn operator_clock(self: &Arc<Self>) -> OperatorClock {
        OperatorClock::new(self.clock.clone(), self.skew.clone())
    }

    /// An object of ours, now.
    pub fn ours(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.server.object("muster.dev", plural, namespace, name)
    }
}

/// The path of the operators' Lease.
pub fn lease_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/muster")
}
