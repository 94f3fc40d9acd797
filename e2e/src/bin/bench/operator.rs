//! The operator as it is shipped: the release binary, a process of its own.

use anyhow::{Context, Result, bail};
use muster_playground::session;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// A running operator.
pub struct Operator {
    child: Child,
    /// Its process id.
    pub pid: u32,
}

impl Operator {
    /// Starts it under the operator's account and waits until it leads and knows the cluster.
    pub async fn start(kubeconfig: &Path) -> Result<Self> {
        let program = muster_e2e::process::program()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let child = Command::new(&program)
            .args(["run", "--log", "warn", "--identity", "bench", "--namespace", session::NAMESPACE])
            // There are no kubelets: no pod ever starts.
            .args(["--start-limit", "24h"])
            .args(["--concurrency", &crate::CONCURRENCY.to_string()])
            .args(["--listen", &listen.to_string()])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: cannot be started", program.display()))?;
        let pid = child.id().context("the operator ended at once")?;
        let mut operator = Self { child, pid };
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = operator.child.try_wait()? {
                bail!("the operator ended: {status}");
            }
            let answer = ask(listen).await.unwrap_or_default();
            if answer.contains("leading") {
                return Ok(operator);
            }
            if Instant::now() > until {
                bail!("the operator does not lead after two minutes; it says {answer:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it.
    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("the operator cannot be ended")
    }
}

async fn ask(address: SocketAddr) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\nHost: bench\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
