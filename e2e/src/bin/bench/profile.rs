//! CPU profiles of the API server, of the blind loop and of the case, to be laid side by side:
//! `go tool pprof -top FOLDER/gang:500x20.case.pprof`.

use anyhow::{Context, Result};
use futures::AsyncReadExt;
use http::Request;
use std::path::{Path, PathBuf};
use tokio::task::JoinHandle;

/// How long a profile is; less than a case of 10,000 pods takes.
const SECONDS: u32 = 10;

/// Begins a profile of the next [`SECONDS`].
pub fn begin(client: kube::Client, folder: &Path, name: &str) -> JoinHandle<Result<()>> {
    let file = folder.join(format!("{name}.pprof"));
    tokio::spawn(async move { take(client, file).await })
}

async fn take(client: kube::Client, file: PathBuf) -> Result<()> {
    let request = Request::get(format!("/debug/pprof/profile?seconds={SECONDS}")).body(Vec::new())?;
    let mut answer = Box::pin(client.request_stream(request).await.context("asking for a profile")?);
    let mut profile = Vec::new();
    answer.read_to_end(&mut profile).await?;
    tokio::fs::write(&file, profile).await.with_context(|| format!("writing {}", file.display()))
}
