//! One pod on one node: containers that start, exit, restart and are killed.
//!
//! ```text
//! New ──admitted──► Active ──every container ended──► Ended ──► (deleted, if it was leaving)
//!  └───refused────► Rejected
//! ```
//!
//! Time is an argument; nothing here reads a clock or writes to a server.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::admission::Refusal;
use super::node::SIGKILL_EXIT;
use super::script::Script;
use super::view::{ContainerView, PodView, RestartPolicy};

/// The kubelet's back-off between restarts: the first is at once, then doubling from 10 s to 5 min.
const BACKOFF_FIRST_SECONDS: u64 = 10;
const BACKOFF_MOST_SECONDS: u64 = 300;

/// Where a pod stands on its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Seen, not decided on.
    New,
    /// Admitted: it holds its resources until its containers have ended.
    Active,
    /// Refused at admission.
    Rejected(Refusal),
    /// Every container has ended for good.
    Ended,
}

/// One finished run of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit {
    pub started: Timestamp,
    pub at: Timestamp,
    pub code: i32,
}

/// What a container does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunState {
    Waiting { until: Timestamp },
    Running { since: Timestamp, ready_at: Timestamp, ready: bool },
    Exited(Exit),
}

/// A container and its history.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub view: ContainerView,
    pub state: RunState,
    pub restarts: u32,
    pub last: Option<Exit>,
    /// When this run ends by itself or by a test's hand, and with which code.
    planned: Option<(Timestamp, i32)>,
}

/// A pod on a node.
#[derive(Debug, Clone)]
pub(crate) struct PodRecord {
    pub view: PodView,
    pub script: Script,
    pub stage: Stage,
    /// The order in which the kubelet saw its pods.
    pub seq: u64,
    pub ip: Option<String>,
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
    pub runs: Vec<Run>,
    /// When the signals sent so far will have ended every container, and with which code.
    kill: Option<(Timestamp, i32)>,
    /// The grace period behind `kill`; a later deletion can only shorten it.
    kill_grace: Duration,
    /// `activeDeadlineSeconds` ran out.
    pub overdue: bool,
    /// A test ended the pod: no restarts.
    finished: bool,
    /// The object is gone from the API, by force or by PodGC.
    pub gone: bool,
    /// The status differs from what was last written.
    pub dirty: bool,
    /// The final DELETE was sent.
    pub delete_sent: bool,
}

/// `at + by`, saturating.
pub(crate) fn after(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by).ok().and_then(|by| at.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
}

impl PodRecord {
    /// A pod seen for the first time; what an earlier life of the kubelet reported is taken over.
    pub fn new(view: PodView, script: Script, seq: u64, now: Timestamp) -> Self {
        let mut record = Self {
            stage: Stage::New,
            seq,
            ip: view.pod_ip.clone(),
            started: view.start_time,
            ended: None,
            runs: Vec::new(),
            kill: None,
            kill_grace: Duration::MAX,
            overdue: false,
            finished: false,
            gone: false,
            dirty: false,
            delete_sent: false,
            view,
            script,
        };
        if record.view.is_terminal() {
            record.stage = Stage::Ended;
        } else if record.started.is_some() {
            record.adopt(now);
        }
        record
    }

    fn adopt(&mut self, now: Timestamp) {
        self.stage = Stage::Active;
        for view in self.view.containers.clone() {
            let prior = self.view.prior.get(&view.name);
            let restarts = prior.map_or(0, |p| p.restarts);
            let mut run =
                Run { view, state: RunState::Waiting { until: now }, restarts, last: None, planned: None };
            match prior {
                Some(p) if p.running_since.is_some() => {
                    run.start(p.running_since.unwrap_or(now), &self.script);
                }
                Some(p) => {
                    if let Some(code) = p.exit_code {
                        run.state = RunState::Exited(Exit { started: now, at: now, code });
                    }
                }
                None => {}
            }
            self.runs.push(run);
        }
    }

    /// The kubelet takes the pod.
    pub fn admit(&mut self, now: Timestamp) {
        self.stage = Stage::Active;
        self.started = Some(now);
        self.dirty = true;
        let until = after(now, self.script.start_delay);
        self.runs = self
            .view
            .containers
            .iter()
            .map(|view| Run {
                view: view.clone(),
                state: RunState::Waiting { until },
                restarts: 0,
                last: None,
                planned: None,
            })
            .collect();
    }

    /// The kubelet refuses the pod.
    pub fn reject(&mut self, refusal: Refusal, now: Timestamp) {
        self.stage = Stage::Rejected(refusal);
        // A kubelet reports when it saw a pod that it refused.
        self.started = Some(now);
        self.dirty = true;
    }

    /// A pod deleted before it was admitted ends without having started.
    pub fn end_unstarted(&mut self, now: Timestamp) {
        self.stage = Stage::Ended;
        self.ended = Some(now);
        self.dirty = true;
    }

    /// Whether its resources are in use.
    pub fn counts(&self) -> bool {
        self.stage == Stage::Active
    }

    /// Whether it has ended, in whatever way.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Ended | Stage::Rejected(_))
    }

    /// Whether something waits to be written.
    pub fn wants_write(&self) -> bool {
        !self.gone && (self.dirty || self.wants_delete())
    }

    /// Whether the object is to be removed: it was deleted and has ended.
    pub fn wants_delete(&self) -> bool {
        self.is_over() && self.view.deletion.is_some() && !self.delete_sent
    }

    /// Moves the pod to `now`. Without a living kubelet containers still exit, and nothing else happens.
    pub fn advance(&mut self, now: Timestamp, kubelet_lives: bool) {
        if self.stage != Stage::Active {
            return;
        }
        if kubelet_lives {
            self.signal(now);
        }
        for index in 0..self.runs.len() {
            while self.advance_run(index, now, kubelet_lives) {
                self.dirty = true;
            }
        }
        if kubelet_lives && self.runs.iter().filter(|r| !r.view.sidecar).all(|r| self.is_final(r)) {
            self.end(now);
        }
    }

    /// Sends SIGTERM when the pod is leaving or its deadline has passed.
    fn signal(&mut self, now: Timestamp) {
        let grace = match (self.view.deletion, self.gone) {
            (_, true) => Some(self.view.grace),
            (Some(deletion), _) => Some(deletion.grace),
            _ if self.deadline().is_some_and(|at| at <= now) => {
                self.overdue = true;
                Some(self.view.grace)
            }
            _ => None,
        };
        if let Some(grace) = grace.filter(|&grace| grace < self.kill_grace) {
            let (delay, code) = self.script.end_on_term(grace);
            let at = after(now, delay);
            if self.kill.is_none_or(|(earlier, _)| at < earlier) {
                self.kill = Some((at, code));
            }
            self.kill_grace = grace;
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let (start, limit) = self.started.zip(self.view.active_deadline)?;
        self.kill.is_none().then(|| after(start, limit))
    }

    /// One transition of one container; whether there was one.
    fn advance_run(&mut self, index: usize, now: Timestamp, kubelet_lives: bool) -> bool {
        let (kill, restarts) = (self.kill, self.restarts_at(&self.runs[index]));
        let run = &mut self.runs[index];
        match run.state {
            RunState::Waiting { until } if kubelet_lives && until <= now && kill.is_none() => {
                run.start(until, &self.script);
                true
            }
            RunState::Running { since, ready_at, ready } => match earlier(run.planned, kill) {
                Some((at, code)) if at <= now => {
                    run.state = RunState::Exited(Exit { started: since, at, code });
                    true
                }
                _ if !ready && ready_at <= now && kubelet_lives => {
                    run.state = RunState::Running { since, ready_at, ready: true };
                    true
                }
                _ => false,
            },
            RunState::Exited(exit) if kubelet_lives && restarts.is_some() => {
                run.last = Some(exit);
                run.restarts += 1;
                run.planned = None;
                run.state = RunState::Waiting { until: restarts.unwrap_or(now) };
                true
            }
            _ => false,
        }
    }

    /// When an exited container starts again; `None` when it does not.
    fn restarts_at(&self, run: &Run) -> Option<Timestamp> {
        let RunState::Exited(exit) = run.state else { return None };
        let again = match self.view.restart_policy {
            _ if run.view.sidecar => true,
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.code != 0,
            RestartPolicy::Never => false,
        };
        let wait = match run.restarts {
            0 => 0,
            n => BACKOFF_FIRST_SECONDS.saturating_mul(1 << (n - 1).min(10)).min(BACKOFF_MOST_SECONDS),
        };
        (again && !self.finished && self.kill.is_none()).then(|| after(exit.at, Duration::from_secs(wait)))
    }

    fn is_final(&self, run: &Run) -> bool {
        match run.state {
            RunState::Exited(_) => self.restarts_at(run).is_none(),
            RunState::Waiting { .. } => self.kill.is_some() || self.finished,
            RunState::Running { .. } => false,
        }
    }

    /// Every main container has ended: the sidecars follow at once.
    fn end(&mut self, now: Timestamp) {
        let last_exit = self.runs.iter().filter_map(Run::exit).map(|e| e.at).max();
        for run in &mut self.runs {
            if let RunState::Running { since, .. } = run.state {
                run.state = RunState::Exited(Exit { started: since, at: now, code: 0 });
            }
        }
        self.stage = Stage::Ended;
        self.ended = Some(last_exit.unwrap_or(now));
        self.dirty = true;
    }

    /// The machine stopped under the containers: they are found dead when it is back.
    pub fn lose_containers(&mut self, now: Timestamp) {
        for run in &mut self.runs {
            if let RunState::Running { since, .. } = run.state {
                run.state = RunState::Exited(Exit { started: since, at: now, code: SIGKILL_EXIT });
                self.dirty = true;
            }
        }
    }

    /// Ends running containers with `code` at `now`: all of them and for good, or only the first.
    pub fn exit(&mut self, code: i32, for_good: bool, now: Timestamp) -> bool {
        let running = |r: &&mut Run| !r.view.sidecar && matches!(r.state, RunState::Running { .. });
        let most = if for_good { usize::MAX } else { 1 };
        let mut found = false;
        for run in self.runs.iter_mut().filter(running).take(most) {
            run.planned = Some((now, code));
            found = true;
        }
        self.finished |= found && for_good;
        found
    }

    /// When something happens next without further input.
    pub fn next_due(&self, kubelet_lives: bool) -> Option<Timestamp> {
        if self.stage != Stage::Active {
            return None;
        }
        let runs = self.runs.iter().filter_map(|run| match run.state {
            RunState::Waiting { until } => (kubelet_lives && self.kill.is_none()).then_some(until),
            RunState::Running { ready_at, ready, .. } => {
                let exit = earlier(run.planned, self.kill).map(|(at, _)| at);
                let readiness = (kubelet_lives && !ready).then_some(ready_at);
                [exit, readiness].into_iter().flatten().min()
            }
            RunState::Exited(_) => None,
        });
        runs.chain(self.deadline().filter(|_| kubelet_lives)).min()
    }
}

impl Run {
    fn start(&mut self, since: Timestamp, script: &Script) {
        let ready_at = after(since, script.ready_delay);
        self.state = RunState::Running { since, ready_at, ready: script.ready_delay.is_zero() };
        self.planned = if self.view.sidecar {
            None
        } else {
            script.end_of_run(self.restarts).map(|(run, code)| (after(since, run), code))
        };
    }

    /// How its current run ended, if it has.
    pub fn exit(&self) -> Option<Exit> {
        match self.state {
            RunState::Exited(exit) => Some(exit),
            _ => None,
        }
    }

    /// Whether a container of this name ever ran.
    pub fn has_started(&self) -> bool {
        self.last.is_some() || self.restarts > 0 || !matches!(self.state, RunState::Waiting { .. })
    }
}

fn earlier(a: Option<(Timestamp, i32)>, b: Option<(Timestamp, i32)>) -> Option<(Timestamp, i32)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
        (a, b) => a.or(b),
    }
}
