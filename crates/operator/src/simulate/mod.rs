//! `muster simulate`: places jobs on a described cluster, without touching one.
//!
//! ```text
//!   --nodes, --generate ──▶ nodes ─┐
//!   --job ──▶ jobs ────────────────┴─▶ place (the operator's own engine) ──▶ report | svg
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
//! # Jobs
//!
//! `--job FILE` takes TrainingJob and Gang manifests, and beside them Topology, AcceleratorClass, Queue and
//! PriorityClass manifests that they need. Queues and priority classes need not be given; where none is, any name is
//! taken to exist.

mod case;
mod jobs;
mod nodes;
mod place;
mod report;
mod svg;
mod yaml;

use anyhow::bail;
use std::{io::IsTerminal, io::Write, path::PathBuf};

use jobs::Manifests;
use nodes::{Generate, Inventory};
use place::Scenario;

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

/// Arguments of `muster simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Nodes: Kubernetes manifests (and pods that use them), or a list of entries such as
    /// `- {count: 18, name: "rack-a-%02d", gpus: 4, product: NVIDIA-GB200, labels: {…}}`; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    nodes: Vec<PathBuf>,
    /// Generated nodes: racks of equal nodes, such as `racks=2,nodes=18,gpus=4,class=gb200,blocks=1`
    #[arg(long, value_name = "racks=N,nodes=N,gpus=N")]
    generate: Option<Generate>,
    /// Jobs to place: TrainingJob or Gang manifests, with the Topology, AcceleratorClass, Queue and PriorityClass
    /// manifests that they need
    #[arg(long, value_name = "FILE")]
    job: Vec<PathBuf>,
    /// Placement problems with known optima, one JSON object a line, instead of nodes and jobs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nodes", "generate", "job"])]
    case: Vec<PathBuf>,
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

/// Runs `muster simulate` and prints the answer.
///
/// # Errors
/// When a file cannot be read or contradicts itself: with its name, the document and the field.
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
    let scenario = scenario(args)?;
    let outcomes = scenario.run();
    let color = match args.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => terminal && std::env::var_os("NO_COLOR").is_none(),
    };
    Ok(match args.output {
        Output::Text => report::text(&scenario, &outcomes, usize::from(args.width), color),
        Output::Json => format!("{:#}\n", report::json(&scenario, &outcomes)),
        Output::Svg => {
            let refused =
                outcomes.iter().filter_map(|outcome| Some((outcome, outcome.placement.as_ref().err()?)));
            let notes: Vec<String> = refused
                .map(|(outcome, refusal)| format!("{} is not placed: {}", outcome.key, refusal.message))
                .collect();
            svg::draw(&report::map(&scenario, &outcomes), &report::summary(&scenario, &outcomes), &notes)
        }
    })
}

/// Reads everything that is simulated.
fn scenario(args: &Args) -> anyhow::Result<Scenario> {
    let mut inventory = Inventory::default();
    for path in &args.nodes {
        for document in yaml::documents(&path.display().to_string(), &yaml::text(path)?)? {
            inventory.take(&document)?;
        }
    }
    if let Some(generate) = &args.generate {
        generate.add_to(&mut inventory)?;
    }
    if inventory.nodes.is_empty() {
        bail!("there are no nodes to place on; give --nodes FILE or --generate racks=2,nodes=18,gpus=4");
    }
    let mut manifests = Manifests::default();
    for path in &args.job {
        for document in yaml::documents(&path.display().to_string(), &yaml::text(path)?)? {
            manifests.take(&document)?;
        }
    }
    let topology = manifests.topology.clone().unwrap_or_default();
    let jobs = manifests.jobs(inventory.nodes.values());
    let Inventory { nodes, uses, repels } = inventory;
    Ok(Scenario { topology, nodes, uses, repels, jobs })
}

/// Answers all cases of all files.
fn cases(args: &Args) -> anyhow::Result<String> {
    let mut text = String::new();
    for path in &args.case {
        for case in case::parse(&path.display().to_string(), &yaml::text(path)?)? {
            let answer = case.answer()?;
            match args.output {
                Output::Json => text.push_str(&serde_json::to_string(&answer)?),
                Output::Text => text.push_str(&answer.line()),
                Output::Svg => bail!("cases have no picture; use -o json or -o text with --case"),
            }
            text.push('\n');
        }
    }
    Ok(text)
}
