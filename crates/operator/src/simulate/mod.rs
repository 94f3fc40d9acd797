//! `muster simulate`: places jobs on a described cluster, or on what is left of a live one, without writing to one.
//!
//! ```text
//!   --nodes, --generate ──▶ nodes ─┐
//!   --cluster ──▶ live (lists) ────┼─▶ Ground ─┐
//!   --job, --trace ──▶ jobs ───────┴───────────┴─▶ place (the operator's own engine) ──▶ Answer ──▶ report | svg
//!   --case ──▶ case ──▶ answers, one JSON object a line
//! ```
//!
//! # Nodes
//!
//! `--nodes FILE` takes what `kubectl get nodes,pods -A -o yaml` prints, or a list in short form:
//!
//! ```yaml
//! - {count: 18, name: "rack-a-%02d", gpus: 4, product: NVIDIA-GB200, labels: {nvidia.com/gpu.clique: a}}
//! - {name: spare, gpus: 8, cpu: 96, memory: 1Ti, taints: [{key: gpu, effect: NoSchedule}], ready: false}
//! ```
//!
//! `--generate racks=2,nodes=18,gpus=4,class=gb200` makes racks of equal nodes instead; both can be given.
//!
//! `--cluster` reads the cluster of the kubeconfig instead: nodes, pods, gangs with their plans, and what jobs are
//! judged by. It lists and never writes.
//!
//! # Jobs
//!
//! `--job FILE` takes TrainingJob and Gang manifests, and beside them Topology, AcceleratorClass, Queue and
//! PriorityClass manifests that they need; on a live cluster these replace its own of the same name. Without
//! `--cluster` queues and priority classes need not be given; where none is, any name is taken to exist.
//!
//! `--trace FILE` takes gangs of equal pods as CSV with the header `name,pods,gpus_per_pod[,class][,count]`.

mod case;
mod changes;
mod jobs;
mod live;
mod nodes;
mod place;
mod report;
mod svg;
mod trace;
mod volumes;
mod yaml;

use anyhow::{Context, bail};
use clap::ArgGroup;
use kube::Client;
use std::{io::IsTerminal, io::Write, path::PathBuf};

use crate::client::Access;
use jobs::Manifests;
use nodes::{Generate, Inventory};
use place::{Ground, Scenario};

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// A map for the terminal, and why jobs wait.
    Text,
    /// JSON; for cases one object a line.
    Json,
    /// A picture of the map.
    Svg,
}

/// When colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Colour {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How the answer looks.
#[derive(Clone, Debug, clap::Args)]
pub struct Look {
    /// What is printed
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Columns of the map
    #[arg(long, value_name = "COLUMNS", env = "COLUMNS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(20..))]
    width: u16,
    /// Colours on the map
    #[arg(long, value_enum, default_value_t = Colour::Auto)]
    color: Colour,
}

/// Arguments of `muster simulate`.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("described").args(["nodes", "generate", "case"]).multiple(true)))]
#[command(group(ArgGroup::new("asked").args(["job", "trace"]).multiple(true)))]
pub struct Args {
    /// Nodes: Kubernetes manifests (and pods that use them), or a list of entries such as
    /// `- {count: 18, name: "rack-a-%02d", gpus: 4, product: NVIDIA-GB200, labels: {…}}`; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// Generated nodes: racks of equal nodes, such as `racks=2,nodes=18,gpus=4,class=gb200,blocks=1`
    #[arg(long, value_name = "racks=N,nodes=N,gpus=N")]
    generate: Option<Generate>,
    /// The nodes of a live cluster and what its pods and gangs leave of them. It is read, never written to
    #[arg(long, conflicts_with = "described")]
    cluster: bool,
    /// Kubeconfig file of the cluster. Default: KUBECONFIG, else the file in the home folder
    #[arg(long, value_name = "FILE", requires = "cluster")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one
    #[arg(long, value_name = "NAME", requires = "cluster")]
    context: Option<String>,
    /// Namespace of manifests that name none. Default: the context's, without --cluster `default`
    #[arg(short, long)]
    namespace: Option<String>,
    /// Jobs to place: TrainingJob or Gang manifests, with the Topology, AcceleratorClass, Queue and PriorityClass
    /// manifests that they need
    #[arg(long, value_name = "FILE")]
    job: Vec<PathBuf>,
    /// Gangs to place, one a line of CSV, after the header `name,pods,gpus_per_pod[,class][,count]`
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Placement problems with known optima, one JSON object a line, instead of nodes and jobs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "generate", "asked"])]
    case: Vec<PathBuf>,
    #[command(flatten)]
    look: Look,
}

impl Args {
    /// Those of `muster simulate --cluster --job FILE`.
    pub fn on_cluster(access: Access, namespace: Option<String>, job: Vec<PathBuf>, look: Look) -> Self {
        Self {
            nodes: Vec::new(),
            generate: None,
            cluster: true,
            kubeconfig: access.kubeconfig,
            context: access.context,
            namespace,
            job,
            trace: Vec::new(),
            case: Vec::new(),
            look,
        }
    }
}

/// Runs `muster simulate` and prints the answer.
///
/// # Errors
/// When a file cannot be read or contradicts itself: with its name, the document and the field. When a cluster cannot
/// be read: with what is missing.
#[allow(
    clippy::needless_pass_by_value,
    reason = "the binary hands its arguments over, as to every subcommand"
)]
pub fn run(args: Args) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let answer = answer(&args, terminal)?;
    let mut out = std::io::stdout().lock();
    match out.write_all(answer.as_bytes()).and_then(|()| out.flush()) {
        // The reader has seen enough (`muster simulate … | head`).
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// What `muster simulate` prints. `terminal` says whether it goes to one.
///
/// # Errors
/// As [`run`].
pub fn answer(args: &Args, terminal: bool) -> anyhow::Result<String> {
    if !args.case.is_empty() {
        return cases(args);
    }
    if !args.cluster {
        let namespace = args.namespace.as_deref().unwrap_or("default");
        let mut ground = described(args)?;
        let manifests = manifests(args, &mut ground, namespace)?;
        return Ok(shown(args, manifests.scenario(ground), terminal));
    }
    let access = Access { kubeconfig: args.kubeconfig.clone(), context: args.context.clone() };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let config = access.config().await?;
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("the kubeconfig's credentials cannot be used")?;
        answer_on(args, &client, terminal).await.with_context(|| format!("cluster {server}"))
    })
}

/// What `muster simulate --cluster` prints for the cluster of `client`.
///
/// # Errors
/// As [`run`].
pub async fn answer_on(args: &Args, client: &Client, terminal: bool) -> anyhow::Result<String> {
    let mut ground = live::read(client).await?;
    let namespace = args.namespace.as_deref().unwrap_or(client.default_namespace());
    let mut manifests = manifests(args, &mut ground, namespace)?;
    manifests.look_up_volumes(client, &mut ground.notes).await?;
    Ok(shown(args, manifests.scenario(ground), terminal))
}

fn shown(args: &Args, scenario: Scenario, terminal: bool) -> String {
    let answer = scenario.run();
    let color = match args.look.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => terminal && std::env::var_os("NO_COLOR").is_none(),
    };
    match args.look.output {
        Output::Text => report::text(&answer, usize::from(args.look.width), color),
        Output::Json => format!("{:#}\n", report::json(&answer)),
        Output::Svg => svg::draw(&report::map(&answer), &report::summary(&answer), &report::remarks(&answer)),
    }
}

/// The cluster that `--nodes` and `--generate` describe.
fn described(args: &Args) -> anyhow::Result<Ground> {
    let mut inventory = Inventory::default();
    for path in &args.nodes {
        for document in yaml::documents(&path.display().to_string(), &yaml::text(path)?)? {
            inventory.take(&document)?;
        }
    }
    if let Some(generate) = &args.generate {
        generate.add_to(&mut inventory)?;
    }
    if inventory.cluster.nodes().next().is_none() {
        bail!(
            "there are no nodes to place on; give --nodes FILE, --generate racks=2,nodes=18,gpus=4, or --cluster"
        );
    }
    Ok(Ground { cluster: inventory.cluster, ..Ground::default() })
}

/// Reads the jobs.
fn manifests(args: &Args, ground: &mut Ground, namespace: &str) -> anyhow::Result<Manifests> {
    let mut manifests = Manifests::new(ground, namespace);
    for path in &args.job {
        for document in yaml::documents(&path.display().to_string(), &yaml::text(path)?)? {
            manifests.take(&document)?;
        }
    }
    for path in &args.trace {
        manifests.take_trace(&path.display().to_string(), &yaml::text(path)?)?;
    }
    Ok(manifests)
}

/// Answers all cases of all files.
fn cases(args: &Args) -> anyhow::Result<String> {
    let mut text = String::new();
    for path in &args.case {
        for case in case::parse(&path.display().to_string(), &yaml::text(path)?)? {
            let answer = case.answer()?;
            match args.look.output {
                Output::Json => text.push_str(&serde_json::to_string(&answer)?),
                Output::Text => text.push_str(&answer.line()),
                Output::Svg => bail!("cases have no picture; use -o json or -o text with --case"),
            }
            text.push('\n');
        }
    }
    Ok(text)
}
