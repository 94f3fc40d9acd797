//! `bench`: how fast the operator places gangs on a real API server, as a share of what that server can create.
//!
//! ```text
//!   own control plane, 1,000 node objects
//!     for each case:  C: blind create loop ─▶ operator (release binary) ─▶ apply ─▶ last pod ─▶ delete ─▶ nothing
//!                         /proc CPU time ─────────────┴─ audit log ─▶ writes, times ─┴─▶ table
//! ```
//!
//! The control plane runs without its node lifecycle controller: the nodes are objects without kubelets, and the
//! renewals that keep 1,000 of them Ready would be a sixth of all writes. C and the operator meet the same server.
//! Arguments choose cases, such as `gang:20x500 job:1x10000`; none means all. `--profile=FOLDER` keeps CPU profiles of the API
//! server, of C and of each case; the sampling costs both some percent.

mod audit;
mod calibrate;
mod case;
mod cpu;
mod nodes;
mod operator;
mod profile;
mod report;

use anyhow::{Context, Result};
use case::Case;
use muster_playground::cluster::Options;
use muster_playground::session::{Kind, Session};
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Nodes of the cluster.
const NODES: usize = 1_000;
/// Accelerators of a node.
const GPUS: u32 = 16;
/// Requests under way, in the calibrating loop and in the operator.
const CONCURRENCY: usize = 64;

/// What every part of the benchmark needs.
struct Bench {
    session: Session,
    /// A client of the operator's account, built as the operator builds its own.
    account: kube::Client,
    audit: PathBuf,
    /// Where profiles go, if they are wanted.
    profiles: Option<PathBuf>,
}

impl Bench {
    async fn open(profiles: Option<PathBuf>) -> Result<Self> {
        let options = Options {
            controllers: "*,-node-lifecycle-controller".into(),
            // It taints new nodes as not ready until the controller that we leave out has looked at them.
            apiserver_flags: vec![
                "--disable-admission-plugins=TaintNodesByCondition".into(),
                format!("--profiling={}", profiles.is_some()),
            ],
            ..Options::default()
        };
        let session = Session::open(Kind::Local, options, |line| eprintln!("bench: {line}")).await?;
        let audit = session.local.as_ref().and_then(muster_playground::cluster::LocalCluster::audit_log_path);
        let audit = audit.context("the local cluster writes no audit log")?;
        let account = muster_e2e::world::client(&session.operator).await?;
        Ok(Self { session, account, audit, profiles })
    }

    /// Begins a profile, if they are wanted.
    fn profile(&self, name: &str) -> Option<JoinHandle<Result<()>>> {
        self.profiles.as_deref().map(|folder| profile::begin(self.admin(), folder, name))
    }

    fn admin(&self) -> kube::Client {
        self.session.client.clone()
    }

    /// Process ids of the control plane's parts, by program.
    fn parts(&self) -> &[(&'static str, u32)] {
        self.session.local.as_ref().map_or(&[], |local| local.pids())
    }

    /// Waits until the control plane has digested what was done to it: its parts together use little of a core.
    async fn quiet(&self) {
        const LONGEST: Duration = Duration::from_secs(60);
        let until = tokio::time::Instant::now() + LONGEST;
        while tokio::time::Instant::now() < until {
            let before: f64 = self.parts().iter().map(|(_, pid)| cpu::seconds(*pid)).sum();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after: f64 = self.parts().iter().map(|(_, pid)| cpu::seconds(*pid)).sum();
            if after - before < 0.15 {
                return;
            }
        }
        eprintln!("bench: the control plane did not become quiet within {LONGEST:?}; going on");
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let (options, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|name| name.starts_with("--"));
    let mut profiles = None;
    for option in options {
        let folder = option.strip_prefix("--profile=").map(PathBuf::from);
        let folder = folder.with_context(|| format!("{option}: the only option is --profile=FOLDER"))?;
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        profiles = Some(folder);
    }
    let cases = Case::parse_all(names.into_iter())?;
    let bench = Bench::open(profiles).await?;
    let done = run(&bench, &cases).await;
    bench.session.close().await;
    done
}

async fn run(bench: &Bench, cases: &[Case]) -> Result<()> {
    eprintln!("bench: making {NODES} nodes of {GPUS} GPUs");
    nodes::create(&bench.admin(), NODES, GPUS).await?;
    // Its Lease must exist before the fence lets the calibrating loop pass.
    operator::Operator::start(&bench.session.operator).await?.stop().await?;
    let mut rows = Vec::new();
    for case in cases {
        bench.quiet().await;
        let calibration = calibrate::run(bench, case).await.context("calibrating")?;
        eprintln!("bench: C = {:.0} pods/s before {case}", calibration.rate());
        bench.quiet().await;
        let row = case::run(bench, case, calibration).await.with_context(|| format!("case {case}"))?;
        report::row(&row);
        rows.push(row);
    }
    report::table(&rows, &bench.admin().apiserver_version().await?.git_version);
    Ok(())
}
