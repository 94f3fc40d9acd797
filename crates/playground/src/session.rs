//! A cluster with Muster installed, and the ways into it.
//!
//! ```text
//!   --cluster local       LocalCluster::start ─┐
//!   --cluster kind        e2e/kind made it     ├─▶ install ─▶ token of the operator's account ─▶ Session
//!   --cluster kubeconfig  the current context ─┘
//! ```

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::cluster::{LocalCluster, Options};
use crate::{binaries, install};

/// Namespace and account of the operator, as the chart installs them.
pub const NAMESPACE: &str = "muster-system";
/// The account.
pub const ACCOUNT: &str = "muster";

/// Where the playground runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Built and started here, from Go modules.
    Local,
    /// A kind cluster named muster, made if it is absent.
    Kind,
    /// The current context of the kubeconfig.
    Kubeconfig,
}

/// A cluster with Muster installed.
pub struct Session {
    /// The local cluster, if it is one.
    pub local: Option<LocalCluster>,
    /// An administrator's kubeconfig.
    pub admin: PathBuf,
    /// The operator's kubeconfig: its own account, not an administrator's.
    pub operator: PathBuf,
    /// An administrator's client.
    pub client: Client,
}

impl Session {
    /// Opens a cluster and installs Muster. `say` gets lines about what takes long.
    ///
    /// # Errors
    /// When no cluster can be started or reached, or Muster cannot be installed.
    pub async fn open(kind: Kind, options: Options, mut say: impl FnMut(&str) + Send) -> Result<Self> {
        match kind {
            Kind::Local => {
                let programs = binaries::ensure(&mut say).await?;
                say("starting a Kubernetes control plane");
                let cluster = LocalCluster::start(&programs, options).await?;
                let client = cluster.admin_client().await?;
                say("installing Muster: CustomResourceDefinitions, account, roles, fence");
                install::install(&client).await?;
                let operator = cluster.service_account_kubeconfig(NAMESPACE, ACCOUNT).await?.path;
                let admin = cluster.admin_kubeconfig().path.clone();
                Ok(Self { local: Some(cluster), admin, operator, client })
            }
            Kind::Kind => {
                make_kind(&mut say)?;
                Self::current(Some("kind-muster"), say).await
            }
            Kind::Kubeconfig => Self::current(None, say).await,
        }
    }

    /// A context of the user's own kubeconfig.
    async fn current(context: Option<&str>, mut say: impl FnMut(&str)) -> Result<Self> {
        let file = Kubeconfig::read().context(
            "no kubeconfig can be read; set KUBECONFIG, or leave --cluster out for a local cluster",
        )?;
        let options =
            KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(file.clone(), &options)
            .await
            .context("the kubeconfig's context cannot be used")?;
        let client = Client::try_from(config)?;
        say("installing Muster: CustomResourceDefinitions, account, roles, fence");
        install::install(&client).await?;
        let folder = std::env::temp_dir().join(format!("muster-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let token = token(&client).await?;
        let (admin, operator) = (folder.join("admin.yaml"), folder.join("operator.yaml"));
        let current = context.map(str::to_owned).or_else(|| file.current_context.clone());
        let admin_file = Kubeconfig { current_context: current, ..file };
        let mut operator_file = admin_file.clone();
        for user in &mut operator_file.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
        }
        write(&admin, &admin_file)?;
        write(&operator, &operator_file)?;
        Ok(Self { local: None, admin, operator, client })
    }

    /// Ends what was started.
    pub async fn close(self) {
        if let Some(cluster) = self.local {
            cluster.stop().await;
        }
    }
}

/// A day's token of the operator's account.
async fn token(client: &Client) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = TokenRequestSpec { expiration_seconds: Some(86_400), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let answer = accounts
        .create_token_request(ACCOUNT, &PostParams::default(), &request)
        .await
        .context("no token for the operator's account")?;
    answer.status.and_then(|status| status.token).context("the API server answered without a token")
}

fn write(path: &Path, file: &Kubeconfig) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let text = serde_yaml_ng::to_string(file).context("the kubeconfig cannot be written as YAML")?;
    let mut options = std::fs::OpenOptions::new();
    // It holds a token: only its owner may read it.
    let mut out = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    std::io::Write::write_all(&mut out, text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the kind cluster if it is absent.
fn make_kind(say: &mut impl FnMut(&str)) -> Result<()> {
    let listed = Command::new("kind").args(["get", "clusters"]).output().context(
        "kind is not installed: see https://kind.sigs.k8s.io, or leave CLUSTER out for a local cluster (needs Go)",
    )?;
    if String::from_utf8_lossy(&listed.stdout).lines().any(|name| name == "muster") {
        return Ok(());
    }
    say("making a kind cluster named muster");
    let made =
        Command::new("kind").args(["create", "cluster", "--name", "muster", "--wait", "120s"]).status()?;
    if !made.success() {
        bail!("kind could not make a cluster; its own messages above say why");
    }
    Ok(())
}

/// Settings of a local cluster for tests and the demo: a node that falls silent is noticed after `grace`, not after
/// most of a minute.
pub fn quick(grace: Duration) -> Options {
    Options {
        node_monitor_period: Some(Duration::from_secs(1)),
        node_monitor_grace_period: Some(grace),
        ..Options::default()
    }
}
