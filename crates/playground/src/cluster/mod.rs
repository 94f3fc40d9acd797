//! A real Kubernetes control plane on this machine, for as long as its handle lives.
//!
//! ```text
//! Options ─> files and ports ─> etcd + API server ─/readyz─> controller manager, scheduler ─> LocalCluster
//!                                  └── a part that ends by itself ──> failed()
//! ```
//!
//! Everything listens on 127.0.0.1 with TLS and certificates made for this run, authorization is RBAC,
//! and anonymous requests are refused. There are no nodes: `kubesim` simulates them, or real kubelets
//! join with [`LocalCluster::user_kubeconfig`].

mod access;
mod flags;
mod parts;
mod pki;
mod ready;
mod work_dir;

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

pub use access::Access;
pub use parts::PartFailure;

use crate::binaries::{Binaries, Program};
use access::{Credential, Server};
use flags::{Audit, Ports};
use parts::Parts;
use pki::Pki;
use work_dir::{DataDir, WorkDir};

/// How long a ServiceAccount's token is good for. No demo or benchmark runs longer than a day.
const TOKEN_SECONDS: i64 = 24 * 3600;
/// How often a start is tried with other ports. A free port can be taken before its program binds it.
const PORT_ATTEMPTS: usize = 3;
/// What a Go program says about a port that is not free.
const PORT_TAKEN: &str = "address already in use";

/// What can go wrong with a local cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or program could not be used.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// No port could be had on 127.0.0.1.
    #[error("cannot find a free port on 127.0.0.1: {0}")]
    Port(#[source] io::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A part ended while the cluster was starting.
    #[error(transparent)]
    Part(#[from] PartFailure),
    /// A part did not become ready in time.
    #[error("{part} is not ready after {} s ({last}); the end of {log}:\n{tail}", waited.as_secs(), log = log.display())]
    NotReady {
        /// The program's name.
        part: &'static str,
        /// How long it was given.
        waited: Duration,
        /// What it answered last.
        last: String,
        /// Its whole log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// A kubeconfig could not be written or understood.
    #[error("cannot make a kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// A request failed.
    #[error("the API server refused a request: {0}")]
    Kube(#[from] kube::Error),
    /// The server gave no token.
    #[error("no token for the ServiceAccount {namespace}/{name}: {reason}")]
    Token {
        /// The ServiceAccount's namespace.
        namespace: String,
        /// The ServiceAccount's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

impl Error {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    fn is_port_taken(&self) -> bool {
        match self {
            Self::Part(failure) => failure.tail.contains(PORT_TAKEN),
            _ => false,
        }
    }
}

/// How a local cluster is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where certificates, kubeconfigs and logs go. `None` (the default): a folder among the temporary
    /// files, which is removed at the end unless a part failed.
    pub work_dir: Option<PathBuf>,
    /// Whether kube-scheduler runs (default: it does).
    pub scheduler: bool,
    /// Whether the API server logs who did what, one line a request (default: it does).
    pub audit: bool,
    /// kube-controller-manager's `--controllers`, by default `*`. Benchmarks without node failures
    /// leave out what reacts to them: `*,-node-lifecycle-controller`.
    pub controllers: String,
    /// How often the controller manager looks at the nodes' leases; `None`: its default, 5 s.
    pub node_monitor_period: Option<Duration>,
    /// After how long a silent node counts as failed; `None`: its default, 50 s. Must be longer than
    /// the period.
    pub node_monitor_grace_period: Option<Duration>,
    /// More flags for kube-apiserver, `--name=value`; they win over ours.
    pub apiserver_flags: Vec<String>,
    /// More flags for kube-controller-manager.
    pub controller_manager_flags: Vec<String>,
    /// More flags for kube-scheduler.
    pub scheduler_flags: Vec<String>,
    /// How long each part may take until it is ready; the default suits a busy machine with two cores.
    pub start_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            work_dir: None,
            scheduler: true,
            audit: true,
            controllers: "*".to_owned(),
            node_monitor_period: None,
            node_monitor_grace_period: None,
            apiserver_flags: Vec::new(),
            controller_manager_flags: Vec::new(),
            scheduler_flags: Vec::new(),
            start_timeout: Duration::from_secs(120),
        }
    }
}

/// A running control plane. Its programs end with [`Self::stop`], when it is dropped, and when this
/// process ends in any way.
pub struct LocalCluster {
    // In the order in which they must be dropped: programs before their files.
    parts: Parts,
    data: DataDir,
    work: WorkDir,
    pki: Pki,
    server: Server,
    admin: Access,
    audit: bool,
    kubectl: PathBuf,
}

impl LocalCluster {
    /// Starts a cluster of `binaries` and waits until it is ready for use: the API server answers, and
    /// the default namespace has its ServiceAccount, so that pods can be created.
    pub async fn start(binaries: &Binaries, options: Options) -> Result<Self, Error> {
        let mut attempt = 1;
        loop {
            match Self::start_once(binaries, &options).await {
                Err(e) if e.is_port_taken() && attempt < PORT_ATTEMPTS => {
                    tracing::warn!(attempt, error = %e, "a port was taken in between; trying others");
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn start_once(binaries: &Binaries, options: &Options) -> Result<Self, Error> {
        let work = WorkDir::create(options.work_dir.as_deref())?;
        let data = DataDir::create(&work, flags::ETCD_QUOTA)?;
        let pki = Pki::create(&work)?;
        let ports = free_ports()?;
        let server = Server { url: flags::url(ports.apiserver), authority: pki.cluster.pem() };
        let identity = pki.cluster.client("muster-admin", Some("system:masters"))?;
        let admin = server.access(&work, "admin", "default", &Credential::Certificate(&identity))?;
        let kubectl = binaries.path(Program::Kubectl);
        let parts = Parts::new();
        let mut cluster = Self { parts, data, work, pki, server, admin, audit: options.audit, kubectl };
        let launched = cluster.launch(binaries, options, ports).await;
        if launched.is_err() {
            cluster.parts.stop().await;
        }
        launched.map(|()| cluster)
    }

    /// Starts the programs, each once what it needs is there.
    async fn launch(&mut self, binaries: &Binaries, options: &Options, ports: Ports) -> Result<(), Error> {
        let spawn = |parts: &mut Parts, program: Program, flags: Vec<String>| {
            parts.spawn(program, &binaries.path(program), &flags, self.work.log(program))
        };
        spawn(&mut self.parts, Program::Etcd, flags::etcd(&self.pki, ports, &self.data.etcd()))?;
        let (policy, log) =
            (self.work.write("audit-policy.yaml", flags::AUDIT_POLICY)?, self.work.audit_log());
        let audit = options.audit.then_some(Audit { policy: &policy, log: &log });
        // At once with etcd: it tries again until its store answers.
        spawn(&mut self.parts, Program::ApiServer, flags::apiserver(&self.pki, ports, options, audit))?;
        let admin = self.admin.client().await?;
        self.ready(Program::ApiServer, options, ready::endpoint(&admin, "/readyz")).await?;

        // These give up after 10 s without an API server, so they come after it.
        let access = self.user_kubeconfig("system:kube-controller-manager", None)?;
        let flags = flags::controller_manager(&self.pki, ports, options, &access);
        spawn(&mut self.parts, Program::ControllerManager, flags)?;
        if options.scheduler {
            let access = self.user_kubeconfig("system:kube-scheduler", None)?;
            let flags = flags::scheduler(&self.pki, ports, options, &access);
            spawn(&mut self.parts, Program::Scheduler, flags)?;
        }
        let controllers = async {
            let health = self.probe(ports.controller_manager).await?;
            self.ready(Program::ControllerManager, options, ready::endpoint(&health, "/healthz")).await?;
            if ready::makes_service_accounts(&options.controllers) {
                let check = ready::default_service_account(&admin);
                self.ready(Program::ControllerManager, options, check).await?;
            }
            Ok(())
        };
        let scheduler = async {
            if options.scheduler {
                let health = self.probe(ports.scheduler).await?;
                self.ready(Program::Scheduler, options, ready::endpoint(&health, "/readyz")).await?;
            }
            Ok(())
        };
        futures::try_join!(controllers, scheduler).map(|_| ())
    }

    /// Waits for `check` of `program`, for a failure of any part, or for the deadline.
    async fn ready(
        &self,
        program: Program,
        options: &Options,
        check: impl ready::Check,
    ) -> Result<(), Error> {
        let deadline = ready::Deadline {
            part: program.name(),
            limit: options.start_timeout,
            log: self.work.log(program),
        };
        tokio::select! {
            failure = self.parts.failed() => Err(failure.into()),
            result = deadline.wait(check) => result,
        }
    }

    /// A client for the health endpoint on `port`.
    async fn probe(&self, port: u16) -> Result<Client, Error> {
        let mut config = self.admin.config().await?;
        let invalid = |e: http::uri::InvalidUri| kube::Error::HttpError(e.into());
        config.cluster_url = flags::url(port).parse().map_err(invalid)?;
        Ok(Client::try_from(config)?)
    }

    /// How the administrator (group `system:masters`) reaches the cluster.
    pub fn admin_kubeconfig(&self) -> &Access {
        &self.admin
    }

    /// A client as the administrator. API priority and fairness exempts it, so measure with another.
    pub async fn admin_client(&self) -> Result<Client, Error> {
        self.admin.client().await
    }

    /// How the ServiceAccount `name` of `namespace`, which must exist, reaches the cluster, for a day:
    /// with the rights that its role bindings give and no others.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<Access, Error> {
        let error = |reason: String| Error::Token { namespace: namespace.into(), name: name.into(), reason };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin_client().await?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..Default::default() };
        let request = TokenRequest { spec: Some(spec), ..Default::default() };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .map_err(|e| error(e.to_string()))?;
        let token = answer.status.and_then(|s| s.token).ok_or_else(|| error("the answer has none".into()))?;
        self.server.access(&self.work, &format!("{namespace}.{name}"), namespace, &Credential::Token(&token))
    }

    /// How `user`, of at most one group, reaches the cluster by a client certificate; a kubelet is
    /// `system:node:<name>` of the group `system:nodes`.
    pub fn user_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<Access, Error> {
        let identity = self.pki.cluster.client(user, group)?;
        self.server.access(&self.work, user, "default", &Credential::Certificate(&identity))
    }

    /// The cluster's certificate authority, a PEM file: what a kubelet checks its callers against.
    pub fn ca_path(&self) -> &Path {
        &self.pki.cluster.certificate
    }

    /// The audit log, one JSON `audit.k8s.io/v1` Event a line; `None` if it was not asked for.
    pub fn audit_log_path(&self) -> Option<PathBuf> {
        self.audit.then(|| self.work.audit_log())
    }

    /// kubectl, of the cluster's version.
    pub fn kubectl_path(&self) -> &Path {
        &self.kubectl
    }

    /// The folder of certificates, kubeconfigs and logs.
    pub fn work_dir(&self) -> &Path {
        self.work.path()
    }

    /// Name and process id of every part.
    pub fn pids(&self) -> &[(&'static str, u32)] {
        self.parts.pids()
    }

    /// Waits for the first part that ends although nobody stopped it; for ever if none does.
    pub fn failed(&self) -> impl Future<Output = PartFailure> + Send + use<> {
        self.parts.failed()
    }

    /// Ends every program and waits until each is gone.
    pub async fn stop(mut self) {
        self.parts.stop().await;
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        // What explains a fault stays, and its path is in the error.
        if !self.parts.has_failed() && !std::thread::panicking() {
            self.work.remove_if_temporary();
        }
    }
}

/// Ports that nobody uses now: all held at once, so that they differ.
fn free_ports() -> Result<Ports, Error> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [bind(), bind(), bind(), bind(), bind()];
    let mut ports = [0; 5];
    for (port, listener) in ports.iter_mut().zip(held) {
        *port = listener.and_then(|l| l.local_addr()).map_err(Error::Port)?.port();
    }
    let [etcd, etcd_peer, apiserver, controller_manager, scheduler] = ports;
    Ok(Ports { etcd, etcd_peer, apiserver, controller_manager, scheduler })
}
