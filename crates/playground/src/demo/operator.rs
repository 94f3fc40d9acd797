//! The operator as a process of its own, under its own account.
//!
//! ```text
//!   muster run --kubeconfig (ServiceAccount) ──stderr──▶ log file ──tail──▶ errors
//! ```

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};

use crate::logs;
use crate::session::NAMESPACE;

/// How long it may take to hand its Lease back.
const PATIENCE: Duration = Duration::from_secs(5);

/// The running operator.
pub struct Operator {
    child: Child,
    /// Where it logs.
    pub log: PathBuf,
}

/// The operator's binary: it lies beside this one.
///
/// # Errors
/// When it does not.
pub fn binary() -> Result<PathBuf> {
    let binary = std::env::current_exe()
        .context("the path of this program cannot be told")?
        .with_file_name(format!("muster{}", std::env::consts::EXE_SUFFIX));
    if !binary.is_file() {
        bail!("{} is not there; build it with: cargo build --workspace --bins", binary.display());
    }
    Ok(binary)
}

impl Operator {
    /// Starts the operator.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(binary: &Path, kubeconfig: &Path, log: PathBuf) -> Result<Self> {
        let output = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let child = Command::new(binary)
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--namespace", NAMESPACE, "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(output.try_clone().with_context(|| format!("cannot write {}", log.display()))?)
            .stderr(output)
            // Out of the terminal's group: Ctrl-C is for us, and we end it in our own time.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be started", binary.display()))?;
        Ok(Self { child, log })
    }

    /// Waits until it ends by itself, which it never should.
    pub async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// The end of its log.
    pub fn tail(&self) -> String {
        logs::tail(&self.log)
    }

    /// Copies its log to a place that outlives the cluster. Returns the place.
    pub fn keep_log(&self) -> Option<PathBuf> {
        let kept = std::env::temp_dir().join(format!("muster-{}.log", std::process::id()));
        std::fs::copy(&self.log, &kept).ok()?;
        Some(kept)
    }

    /// Ends it: in order, so that the Lease is handed back, or else at once.
    pub async fn stop(mut self) {
        let asked = match self.child.id() {
            // The standard library cannot send SIGTERM.
            Some(pid) => Command::new("kill").arg(pid.to_string()).status().await.is_ok_and(|s| s.success()),
            None => false,
        };
        if !asked || tokio::time::timeout(PATIENCE, self.child.wait()).await.is_err() {
            // An error means that it is gone already.
            let _ = self.child.kill().await;
        }
    }
}
