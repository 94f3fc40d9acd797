//! The demo: a cluster of simulated GPU nodes on which Muster runs the examples, loses a node and refuses a job.
//!
//! ```text
//!   Session (cluster, Muster installed) ─┐
//!   nodes::all ──▶ simulated kubelets ───┼─▶ Stage ──▶ story: apply, map, ranks, failure, refusal ──▶ text
//!   `muster run`, as its own account ────┘                └─ every step waits for what it tells, or fails
//! ```

mod commands;
pub mod examples;
pub mod nodes;
mod operator;
mod paint;
mod report;
mod see;
mod stage;
mod story;

use anyhow::{Result, bail};
use clap::Args as ClapArgs;
use std::future::Future;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};

use crate::session::Kind;
use paint::Paint;
use stage::Stage;

/// Flags of the demo.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Where the demo runs.
    #[arg(long, value_enum, default_value_t = Kind::Local)]
    cluster: Kind,
}

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot be had, or a step of the demo does not happen.
pub async fn demo(args: Args) -> Result<()> {
    // On the heap: it holds a whole cluster.
    Box::pin(shown(args)).await
}

async fn shown(args: Args) -> Result<()> {
    let begun = Instant::now();
    let mut paint = Paint::of_stdout();
    let Some(mut stage) = opened(&args, &mut paint).await? else {
        bail!("interrupted");
    };
    let scene = stage.scene();
    let told = Box::pin(stage.watched(story::tell(&scene, &mut paint))).await;
    let told = stage.explained(told).await;
    let closed = stage.close().await;
    if told?.is_none() {
        bail!("interrupted");
    }
    closed?;
    story::farewell(&mut paint, args.cluster, begun.elapsed());
    Ok(())
}

/// Leaves the demo's cluster running until Ctrl-C.
///
/// # Errors
/// When the cluster cannot be had, or the examples do not come to run.
pub async fn up(args: Args) -> Result<()> {
    Box::pin(kept_up(args)).await
}

async fn kept_up(args: Args) -> Result<()> {
    let mut paint = Paint::of_stdout();
    let Some(mut stage) = opened(&args, &mut paint).await? else {
        return Ok(());
    };
    let scene = stage.scene();
    let stayed = Box::pin(stage.watched(async {
        story::set_up(&scene, &mut paint).await?;
        commands::invite(&scene, &mut paint);
        commands::serve(&scene, &mut paint).await
    }))
    .await;
    let stayed = stage.explained(stayed).await;
    paint.line("");
    paint.note("ending what was started");
    let closed = stage.close().await;
    stayed?;
    closed
}

/// The stage, or `None` when the user would not wait for it.
async fn opened(args: &Args, paint: &mut Paint) -> Result<Option<Stage>> {
    paint.title("Muster: gangs of GPU pods, placed as one");
    let kind = args.cluster;
    tokio::select! {
        opened = Stage::open(kind, |line| paint.note(line)) => opened.map(Some),
        () = interrupted() => Ok(None),
    }
}

/// Waits for Ctrl-C, SIGTERM or the end of the terminal.
async fn interrupted() {
    let Ok((mut terminated, mut hung_up)) =
        signal(SignalKind::terminate()).and_then(|one| Ok((one, signal(SignalKind::hangup())?)))
    else {
        // Without handlers these signals end the process, and with it the programs that watch its end.
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
        _ = hung_up.recv() => {}
    }
}

/// Runs a future until it is done (`Some`) or interrupted (`None`).
async fn until_interrupted<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = future => Some(done),
        () = interrupted() => None,
    }
}
