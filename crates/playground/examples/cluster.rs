//! Starts a local cluster and keeps it until stdin closes or Ctrl-C.
//!
//! ```text
//! cargo run -p muster-playground --example cluster
//! ```
//!
//! Standard output has the administrator's kubeconfig, kubectl and the work folder, one path a line;
//! everything else goes to standard error. Exits with an error if a part of the cluster ends.

use muster_playground::binaries;
use muster_playground::cluster::{LocalCluster, Options};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let programs = binaries::ensure(|line| eprintln!("{line}")).await?;
    let cluster = LocalCluster::start(&programs, Options::default()).await?;
    println!("{}", cluster.admin_kubeconfig().path.display());
    println!("{}", cluster.kubectl_path().display());
    println!("{}", cluster.work_dir().display());

    let failed = cluster.failed();
    let outcome = tokio::select! {
        failure = failed => Err(failure.into()),
        result = tokio::signal::ctrl_c() => result.map_err(Into::into),
        () = stdin_end() => Ok(()),
    };
    cluster.stop().await;
    outcome
}

/// Waits for the end of standard input.
async fn stdin_end() {
    let end = CancellationToken::new();
    let reached = end.clone();
    // A thread of its own: tokio's would hold up our exit until somebody presses Enter.
    std::thread::spawn(move || {
        // An error means as well that nothing more will come.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        reached.cancel();
    });
    end.cancelled().await;
}
