//! `muster run`: the operator as a process.
//!
//! ```text
//!   flags ──▶ client, Options ──▶ Operator::run ──▶ until SIGTERM or Ctrl-C
//!                                   └─ snapshots ──▶ /livez /readyz /metrics
//! ```

use anyhow::{Context, bail};
use clap::{Args as ClapArgs, ValueEnum};
use muster_controllers::{LeaseConfig, Operator, Options, SystemClock};
use muster_core::{Config, Limits};
use muster_model::{Millis, duration};
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::client::Access;
use crate::serve;

/// Flags of `muster run`.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Kubeconfig file. Default: the usual places, else the pod's own service account.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one.
    #[arg(long)]
    context: Option<String>,
    /// Namespace of the Lease: the one that the operator is installed in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "muster-system")]
    namespace: String,
    /// Name in the Lease. Default: the pod's name, else host name and process.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Address of /livez, /readyz and /metrics. Port 0 takes a free one and says which.
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// How logs look.
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    log_format: LogFormat,
    /// What is logged: error, warn, info, debug, trace, or targets such as muster_controllers=debug.
    #[arg(long, env = "MUSTER_LOG", default_value = "info")]
    log: String,
    /// How long others wait for a silent leader.
    #[arg(long, default_value = "15s", value_parser = millis)]
    lease_duration: Millis,
    /// How long the leader goes on without having renewed. At least 2s less than --lease-duration.
    #[arg(long, default_value = "10s", value_parser = millis)]
    renew_deadline: Millis,
    /// Pause between two attempts to take or renew the Lease.
    #[arg(long, default_value = "2s", value_parser = millis)]
    retry_period: Millis,
    /// How long a pod may wait for its kubelet before other nodes are taken.
    #[arg(long, default_value = "1m", value_parser = millis)]
    start_limit: Millis,
    /// How long all pods of a plan may take to start before their nodes are given back.
    #[arg(long, default_value = "15m", value_parser = millis)]
    start_deadline: Millis,
    /// How long a pod whose kubelet names an error (image, Secret, ConfigMap, volume) may keep its node.
    #[arg(long, default_value = "2m", value_parser = millis)]
    error_deadline: Millis,
    /// How long a node may be silent (Ready=Unknown) before its pods count as lost.
    #[arg(long, default_value = "15s", value_parser = millis)]
    node_grace: Millis,
    /// How long a node may say that it is not ready (Ready=False) before its pods count as lost.
    #[arg(long, default_value = "5m", value_parser = millis)]
    not_ready_grace: Millis,
    /// How many pods are created at the same time.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
}

/// How logs look.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

fn millis(text: &str) -> Result<Millis, String> {
    duration::parse(text).map_err(|error| error.to_string())
}

fn span(millis: Millis) -> Duration {
    Duration::from_millis(millis.max(0) as u64)
}

impl Args {
    fn options(&self) -> anyhow::Result<Options> {
        if self.renew_deadline + 2_000 > self.lease_duration {
            bail!(
                "--renew-deadline {} must be at least 2s less than --lease-duration {}: a write that began before the \
                 deadline must have ended before another can lead",
                duration::format(self.renew_deadline),
                duration::format(self.lease_duration)
            );
        }
        if self.retry_period <= 0 || self.retry_period >= self.renew_deadline {
            bail!("--retry-period must be more than 0 and less than --renew-deadline");
        }
        let host =
            || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "muster".into());
        let identity =
            self.identity.clone().unwrap_or_else(|| format!("{}-{}", host().trim(), std::process::id()));
        let mut lease = LeaseConfig::new(self.namespace.clone(), identity);
        lease.duration = span(self.lease_duration);
        lease.renew_deadline = span(self.renew_deadline);
        lease.retry = span(self.retry_period);
        let mut config = Config::default();
        config.nodes.silent = self.node_grace;
        config.nodes.not_ready = self.not_ready_grace;
        config.patience.admit = self.start_limit;
        config.patience.start = self.start_deadline;
        config.patience.errors = self.error_deadline;
        config.limits = Limits { create: usize::from(self.concurrency), ..config.limits };
        Ok(Options { lease, config })
    }

    async fn client(&self) -> anyhow::Result<kube::Client> {
        let access = Access { kubeconfig: self.kubeconfig.clone(), context: self.context.clone() };
        let mut config = access.config().await?;
        // The core decides what is tried again, and each write must end in time.
        config.default_retry = false;
        // Writes, lists and watches have shorter limits of their own, in the controllers; these are for the rest, and
        // for connections. A watch hears at least a bookmark a minute.
        config.connect_timeout = Some(Duration::from_secs(10));
        config.write_timeout = Some(Duration::from_secs(30));
        config.read_timeout = Some(Duration::from_secs(120));
        // The time that a connection lay idle in the pool is not the server's.
        config.reset_reader_on_write = true;
        kube::Client::try_from(config).context("cannot build a client")
    }

    fn log(&self) -> anyhow::Result<()> {
        let filter = EnvFilter::try_new(&self.log).with_context(|| format!("--log {:?}", self.log))?;
        let logs = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(std::io::stderr().is_terminal())
            .with_writer(std::io::stderr);
        match self.log_format {
            LogFormat::Human => logs.init(),
            LogFormat::Json => logs.json().flatten_event(true).init(),
        }
        Ok(())
    }
}

/// Runs until it is told to stop.
///
/// # Errors
/// When flags contradict each other, no cluster is found or the address cannot be listened on.
pub fn run(args: &Args) -> anyhow::Result<()> {
    args.log()?;
    let options = args.options()?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let client = args.client().await?;
        let stop = CancellationToken::new();
        tokio::spawn(stop_on_signal(stop.clone()));
        let operator = Operator::new(client, options, Arc::new(SystemClock::default()));
        let listener = tokio::net::TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("--listen {}: cannot be listened on; choose another port", args.listen))?;
        tracing::info!(address = %listener.local_addr()?, version = env!("CARGO_PKG_VERSION"), "muster starts");
        let served = tokio::spawn(serve::serve(
            listener,
            operator.snapshots(),
            operator.pulse(),
            stop.clone(),
        ));
        operator.run(stop).await;
        served.await.context("the HTTP server panicked")?.context("the HTTP server failed")
    })
}

async fn stop_on_signal(stop: CancellationToken) {
    let interrupted = tokio::signal::ctrl_c();
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut terminated) => {
            tokio::select! {
                _ = interrupted => {}
                _ = terminated.recv() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot listen for SIGTERM; Ctrl-C still works");
            let _ = interrupted.await;
        }
    }
    tracing::info!("stopping");
    stop.cancel();
}
