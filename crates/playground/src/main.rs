//! The playground: a cluster with Muster and simulated GPU nodes, to look at, to demonstrate and to test on.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use muster_playground::demo;
use muster_playground::session::{self, Kind, Session};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A Kubernetes cluster with Muster and simulated GPU nodes.
#[derive(Parser)]
#[command(name = "playground", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows in a minute what Muster does: placement, a failure and a recovery, a refusal with its reason.
    Demo(demo::Args),
    /// Leaves the demo's cluster running for you, and says how to reach it.
    Up(demo::Args),
    /// Runs a command (the tests) with a cluster that Muster is installed in, and ends the cluster afterwards.
    Test {
        /// Where.
        #[arg(long, value_enum, default_value_t = Kind::Local)]
        cluster: Kind,
        /// The command.
        #[arg(trailing_var_arg = true, required = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("playground: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match Cli::parse().command {
            Command::Demo(args) => demo::demo(args).await.map(|()| ExitCode::SUCCESS),
            Command::Up(args) => demo::up(args).await.map(|()| ExitCode::SUCCESS),
            Command::Test { cluster, command } => test(cluster, &command).await,
        }
    });
    done.unwrap_or_else(|error| {
        eprintln!("playground: {error:#}");
        ExitCode::FAILURE
    })
}

/// Runs a command with a cluster; its exit code is ours.
async fn test(kind: Kind, command: &[String]) -> Result<ExitCode> {
    let begun = Instant::now();
    // Hundreds of simulated nodes share two cores with the server: their heartbeats may be seconds late.
    let options = session::quick(Duration::from_secs(20));
    let session = Session::open(kind, options, |line| eprintln!("playground: {line}")).await?;
    eprintln!("playground: ready after {:.0} s", begun.elapsed().as_secs_f32());
    let (program, arguments) = command.split_first().context("no command given")?;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .env("KUBECONFIG", &session.admin)
        .env("MUSTER_TEST_KUBECONFIG", &session.admin)
        .env("MUSTER_TEST_OPERATOR_KUBECONFIG", &session.operator)
        .env("KUBESIM_DIFFERENTIAL_KUBECONFIG", &session.admin)
        .envs(
            session.local.iter().filter_map(|local| Some(("MUSTER_TEST_AUDIT_LOG", local.audit_log_path()?))),
        )
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{program}: cannot be started"))?;
    let failed = async {
        match &session.local {
            Some(local) => local.failed().await,
            None => std::future::pending().await,
        }
    };
    let status = tokio::select! {
        status = child.wait() => status?,
        failure = failed => return Err(failure.into()),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            return Ok(ExitCode::FAILURE);
        }
    };
    session.close().await;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
