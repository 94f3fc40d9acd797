//! The running programs of one cluster: each is watched, and none outlives us.
//!
//! ```text
//! spawn ──> watcher task ──┬─ the program ends by itself ──> failed (the first one counts)
//!                          └─ stop ──> SIGKILL, reaped
//! ```
//!
//! Three things end a program: `stop`, the drop of its handle, and the end of file on its stdin, whose
//! other side is held here. The last works even if this process is killed.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Error;
use crate::binaries::Program;
use crate::logs;

/// A part of the cluster that ended although nobody stopped it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{part} ended by itself ({status}); the end of {log}:\n{tail}", log = log.display())]
pub struct PartFailure {
    /// The program's name.
    pub part: &'static str,
    /// How it ended.
    pub status: String,
    /// Its whole log.
    pub log: PathBuf,
    /// The log's last lines.
    pub tail: String,
}

/// The programs that were started.
pub(super) struct Parts {
    stop: CancellationToken,
    failed: watch::Sender<Option<PartFailure>>,
    watchers: Vec<JoinHandle<()>>,
    pids: Vec<(&'static str, u32)>,
}

impl Parts {
    pub(super) fn new() -> Self {
        Self {
            stop: CancellationToken::new(),
            failed: watch::Sender::new(None),
            watchers: Vec::new(),
            pids: Vec::new(),
        }
    }

    /// Starts `program` from `binary`, with everything it prints in `log`.
    pub(super) fn spawn(
        &mut self,
        program: Program,
        binary: &Path,
        flags: &[String],
        log: PathBuf,
    ) -> Result<(), Error> {
        let output = File::create(&log).map_err(Error::io("create", &log))?;
        let errors = output.try_clone().map_err(Error::io("write", &log))?;
        let child = Command::new(binary)
            .args(flags)
            // Ends the program at the end of file on its stdin: see internal/parent of the Go module.
            .env("MUSTER_EXIT_WITH_PARENT", "1")
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors)
            // Out of the terminal's group: Ctrl-C is for us, and we end the parts in our own time.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start", binary))?;
        if let Some(pid) = child.id() {
            self.pids.push((program.name(), pid));
        }
        let (stop, failed) = (self.stop.clone(), self.failed.clone());
        self.watchers.push(tokio::spawn(watch_part(program, child, log, stop, failed)));
        Ok(())
    }

    /// Name and process id of every part.
    pub(super) fn pids(&self) -> &[(&'static str, u32)] {
        &self.pids
    }

    /// Whether a part has ended by itself.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }

    /// Waits for the first part that ends by itself; for ever if none does.
    pub(super) fn failed(&self) -> impl Future<Output = PartFailure> + Send + use<> {
        let mut failed = self.failed.subscribe();
        async move {
            let first = failed.wait_for(Option::is_some).await.ok().and_then(|f| f.clone());
            match first {
                Some(failure) => failure,
                // The cluster was stopped.
                None => std::future::pending().await,
            }
        }
    }

    /// Ends every part and waits until each is gone.
    pub(super) async fn stop(&mut self) {
        self.stop.cancel();
        for watcher in self.watchers.drain(..) {
            // A watcher only fails if the runtime ends, and the drop of its child kills it then.
            let _ = watcher.await;
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn watch_part(
    program: Program,
    mut child: Child,
    log: PathBuf,
    stop: CancellationToken,
    failed: watch::Sender<Option<PartFailure>>,
) {
    // Taken out, for `wait` would close it and with it end the program.
    let _stdin = child.stdin.take();
    let ended = tokio::select! {
        // A part that falls because another was stopped first is no failure.
        biased;
        () = stop.cancelled() => {
            // An error means that it is gone already.
            let _ = child.kill().await;
            return;
        }
        ended = child.wait() => ended,
    };
    let status = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
    let failure = PartFailure { part: program.name(), status, tail: logs::tail(&log), log };
    failed.send_if_modified(|first| {
        let is_first = first.is_none();
        if is_first {
            *first = Some(failure);
        }
        is_first
    });
}
