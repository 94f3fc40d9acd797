//! What the demo plays on: the cluster, the operator, the simulated nodes.
//!
//! ```text
//!   open ──▶ Session, Operator, Fleet ──scene()──▶ Scene (handles to look and act with)
//!   watched(play) ──▶ done | interrupted | a part ended by itself
//!   close ──▶ what was made in a cluster that stays is removed, what was started is stopped
//! ```

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use kubesim::clock::SystemClock;
use kubesim::kubelet::{Fleet, FleetHandle, FleetOptions};
use muster_api::{Topology, TrainingJob};
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

use super::examples::{self, Example};
use super::operator::{self, Operator};
use super::{nodes, report, until_interrupted};
use crate::session::{self, Kind, Session};

/// Namespace of the examples' jobs.
pub const RESEARCH: &str = "research";
/// What simulated kubelets say of their operating system.
const SIMULATED: &str = "kubesim";
/// Pause between two looks at something that is waited for.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the simulated nodes may take to be Ready.
const READY: Duration = Duration::from_secs(60);
/// How long jobs may take to leave a cluster that stays.
const LEAVING: Duration = Duration::from_secs(60);

/// Everything that runs.
pub struct Stage {
    session: Session,
    operator: Operator,
    scene: Scene,
    /// What was made in the cluster, to be removed from one that stays.
    made: Made,
}

/// What the demo looks and acts with.
#[derive(Clone)]
pub struct Scene {
    /// An administrator's client.
    pub client: Client,
    /// The simulated nodes.
    pub fleet: FleetHandle,
    /// The levels of the cluster.
    pub topology: Topology,
    /// An administrator's kubeconfig.
    pub admin: PathBuf,
    /// kubectl: the cluster's own, or the one on the PATH.
    pub kubectl: PathBuf,
    /// The operator's log.
    pub log: PathBuf,
}

/// What was made in the cluster.
#[derive(Default)]
struct Made {
    namespace: bool,
    objects: Vec<&'static Example>,
}

impl Stage {
    /// Opens the cluster, starts the operator and the nodes, and makes what an admin makes once.
    ///
    /// # Errors
    /// When any of them cannot be had.
    pub async fn open(kind: Kind, mut say: impl FnMut(&str) + Send) -> Result<Self> {
        // Before minutes are spent on the cluster's programs.
        let binary = operator::binary()?;
        let session = Session::open(kind, session::quick(Duration::from_secs(8)), &mut say).await?;
        let client = session.client.clone();
        if session.local.is_none() {
            refuse_real_nodes(&client).await?;
        }
        let log = match &session.local {
            Some(local) => local.work_dir().join("logs/muster.log"),
            None => session.operator.with_file_name("muster.log"),
        };
        say("starting the operator, as its own process and account");
        let operator = Operator::start(&binary, &session.operator, log.clone())?;
        say(&format!("starting {}, all simulated", nodes::WORDS));
        // The node controller of a local cluster waits for 8 s: a real kubelet's 10 s would be too slow for it.
        let options =
            FleetOptions { lease_interval: Some(Duration::from_secs(2)), ..FleetOptions::default() };
        let fleet = Fleet::start(client.clone(), Arc::new(SystemClock), options, nodes::all())
            .await
            .context("the simulated nodes cannot be started")?;
        let mut made = Made { namespace: make_namespace(&client).await?, ..Made::default() };
        for example in examples::ADMIN {
            if example.create(&client).await? {
                made.objects.push(example);
            }
        }
        let topology = Api::<Topology>::all(client.clone())
            .get(muster_api::topology::TOPOLOGY_NAME)
            .await
            .context("the cluster's topology cannot be read")?;
        let kubectl =
            session.local.as_ref().map_or_else(|| "kubectl".into(), |local| local.kubectl_path().to_owned());
        let admin = session.admin.clone();
        let scene = Scene { client, fleet, topology, admin, kubectl, log };
        scene.wait_for_nodes().await?;
        Ok(Self { session, operator, scene, made })
    }

    /// Handles to look and act with.
    pub fn scene(&self) -> Scene {
        self.scene.clone()
    }

    /// Lets `play` go on until it is done, the user interrupts it (`None`), or a part ends by itself.
    ///
    /// # Errors
    /// Those of `play`, and a part that ended.
    pub async fn watched<T>(&mut self, play: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        let local = self.session.local.as_ref();
        let failed = async {
            match local {
                Some(local) => local.failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            done = until_interrupted(play) => done.transpose(),
            failure = failed => Err(failure.into()),
            status = self.operator.ended() => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(anyhow!("the operator ended by itself ({status})"))
            }
        }
    }

    /// Adds to an error what explains it: the jobs, their events, the end of the operator's log.
    ///
    /// # Errors
    /// The error, explained.
    pub async fn explained<T>(&self, played: Result<T>) -> Result<T> {
        match played {
            Ok(done) => Ok(done),
            Err(error) => {
                let facts = report::facts(&self.scene.client).await;
                let kept = self.operator.keep_log();
                let log = kept.unwrap_or_else(|| self.scene.log.clone());
                let tail = self.operator.tail();
                Err(anyhow!(
                    "{error:#}\n\n{facts}\nthe end of the operator's log, {}:\n{tail}",
                    log.display()
                ))
            }
        }
    }

    /// Ends everything that was started. From a cluster that stays, what was made there is removed.
    ///
    /// # Errors
    /// When something could not be removed.
    pub async fn close(self) -> Result<()> {
        let removed = match &self.session.local {
            Some(_) => Ok(()),
            // Interrupted again: the user has waited long enough.
            None => until_interrupted(self.remove()).await.unwrap_or_else(|| {
                Err(anyhow!(
                    "interrupted; namespace {RESEARCH} and the simulated nodes may be left in the cluster"
                ))
            }),
        };
        self.scene.fleet.stop();
        self.operator.stop().await;
        if self.session.local.is_none()
            && let Some(folder) = self.session.operator.parent()
        {
            // It holds a token; a file that cannot be removed is readable by its owner only.
            let _ = std::fs::remove_dir_all(folder);
        }
        self.session.close().await;
        removed
    }

    /// Removes jobs, queue, namespace and nodes.
    async fn remove(&self) -> Result<()> {
        let client = &self.scene.client;
        for example in
            examples::JOBS.iter().chain([&examples::IMPOSSIBLE]).chain(self.made.objects.iter().copied())
        {
            example.delete(client).await?;
        }
        let jobs: Api<TrainingJob> = Api::namespaced(client.clone(), RESEARCH);
        self.scene
            .wait("the jobs to leave the cluster", LEAVING, async || {
                let left = jobs.list(&ListParams::default()).await?.items.len();
                Ok(if left == 0 { Ok(()) } else { Err(format!("{left} left")) })
            })
            .await?;
        if self.made.namespace {
            Api::<Namespace>::all(client.clone()).delete(RESEARCH, &DeleteParams::default()).await?;
        }
        for node in nodes::all() {
            self.scene.fleet.delete_node(&node.name).await?;
        }
        Ok(())
    }
}

impl Scene {
    /// Waits until `look` finds something (`Ok`); an `Err` says what it sees instead.
    ///
    /// # Errors
    /// When it is not found in time, with what was seen last; and when looking fails.
    pub async fn wait<T>(
        &self,
        what: &str,
        patience: Duration,
        mut look: impl AsyncFnMut() -> Result<Result<T, String>>,
    ) -> Result<T> {
        let until = Instant::now() + patience;
        loop {
            let seen = match look().await? {
                Ok(found) => return Ok(found),
                Err(seen) => seen,
            };
            if Instant::now() >= until {
                bail!("waited {} s for {what}; last seen: {seen}", patience.as_secs());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until all simulated nodes take pods: jobs that come before would get what is there by then.
    async fn wait_for_nodes(&self) -> Result<()> {
        let names: BTreeSet<String> = nodes::all().into_iter().map(|node| node.name).collect();
        let api: Api<Node> = Api::all(self.client.clone());
        self.wait("the simulated nodes to be Ready", READY, async || {
            let there = api.list(&ListParams::default()).await?;
            let ready = there
                .items
                .iter()
                .filter(|node| names.contains(&node.name_any()) && takes_pods(node))
                .count();
            Ok(if ready == names.len() { Ok(()) } else { Err(format!("{ready} of {}", names.len())) })
        })
        .await
    }

    /// The examples' jobs.
    pub fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), RESEARCH)
    }
}

/// Whether a node is Ready and the node controller has taken its taint of new nodes away.
fn takes_pods(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    is_ready(node) && taints.into_iter().all(|taint| !taint.key.starts_with("node.kubernetes.io/"))
}

/// Whether a node is Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Makes the examples' namespace. Returns whether it was not there.
async fn make_namespace(client: &Client) -> Result<bool> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(RESEARCH.to_owned());
    match Api::all(client.clone()).create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error).with_context(|| format!("namespace {RESEARCH}")),
    }
}

/// A simulated kubelet takes over a node of its name: not one that a real kubelet runs.
async fn refuse_real_nodes(client: &Client) -> Result<()> {
    let names: Vec<String> = nodes::all().into_iter().map(|node| node.name).collect();
    let there = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await
        .context("nodes cannot be listed")?;
    let image = |node: &Node| {
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        info.map(|info| info.os_image.clone()).unwrap_or_default()
    };
    match there.items.iter().find(|node| names.contains(&node.name_any()) && image(node) != SIMULATED) {
        Some(node) => bail!(
            "the cluster has a node {} that is not simulated: the demo would take it over; use another cluster",
            node.name_any()
        ),
        None => Ok(()),
    }
}
