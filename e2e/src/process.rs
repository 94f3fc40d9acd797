//! The binary `muster run` as a process that can be killed, its requests passing through this process.
//!
//! ```text
//!   muster run ──plain HTTP on 127.0.0.1──▶ gateway (hooks) ──operator's account──▶ API server
//! ```

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kube::Client;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::world::SYSTEM;

/// Largest request that is passed on, in bytes: etcd's own limit.
const LARGEST: usize = 1_572_864;

/// A running `muster run`.
pub struct Process {
    child: Child,
    gateway: JoinHandle<()>,
    kubeconfig: PathBuf,
}

impl Process {
    /// Starts it; what it sends goes through `client`.
    ///
    /// # Errors
    /// When the binary is not there, or cannot be started.
    pub async fn start(identity: &str, client: Client) -> Result<Self> {
        let program = program()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let routes = Router::new().fallback(pass).with_state(client);
        let gateway = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                eprintln!("the gateway of {address} failed: {error}");
            }
        });
        let kubeconfig = std::env::temp_dir().join(format!("muster-e2e-{}-{identity}", std::process::id()));
        std::fs::write(&kubeconfig, config(address)).context("the kubeconfig cannot be written")?;
        let child = Command::new(&program)
            .args(["run", "--log", "warn", "--listen", "127.0.0.1:0", "--namespace", SYSTEM])
            .args(["--identity", identity, "--kubeconfig"])
            .arg(&kubeconfig)
            .args(["--lease-duration", "6s", "--renew-deadline", "4s", "--retry-period", "500ms"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{}: cannot be started", program.display()))?;
        Ok(Self { child, gateway, kubeconfig })
    }

    /// SIGKILL; returns when the process is gone.
    ///
    /// # Errors
    /// When it had ended before: then it was not killed where the scenario wanted it.
    pub async fn kill(mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        self.child.kill().await?;
        self.gateway.abort();
        let _ = std::fs::remove_file(&self.kubeconfig);
        match ended {
            Some(status) => bail!("the operator had ended by itself: {status}"),
            None => Ok(()),
        }
    }
}

/// The binary `muster` of the same build: in the folder of this program, or (for a test) in the one above.
///
/// # Errors
/// When it is in neither.
pub fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().context("the path of this program is unknown")?;
    let candidates = here.ancestors().skip(1).take(2).map(|folder| folder.join("muster"));
    candidates.into_iter().find(|path| path.is_file()).with_context(|| {
        format!("no `muster` beside {}: run `cargo build -p muster-operator`", here.display())
    })
}

fn config(address: SocketAddr) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gateway",
        "clusters": [{ "name": "gateway", "cluster": { "server": format!("http://{address}") } }],
        "users": [{ "name": "gateway", "user": {} }],
        "contexts": [{ "name": "gateway", "context": { "cluster": "gateway", "user": "gateway" } }],
    })
    .to_string()
}

/// Passes a request on, and the answer back as it comes: a watch never ends.
async fn pass(State(client): State<Client>, request: Request) -> Response {
    match exchange(&client, request).await {
        Ok(answer) => answer,
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

async fn exchange(client: &Client, request: Request) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, LARGEST).await?;
    parts.uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    // These belong to the connection of the gateway; the length is that of the body, whatever was said.
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::AUTHORIZATION] {
        parts.headers.remove(name);
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    let request = http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    let (mut parts, body) = client.send(request).await?.into_parts();
    parts.headers.remove(header::TRANSFER_ENCODING);
    Ok(http::Response::from_parts(parts, Body::new(body)))
}
