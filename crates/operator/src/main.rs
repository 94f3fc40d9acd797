//! The `muster` binary: `run` the operator, print its `crds`, `simulate` a placement.

use clap::{Parser, Subcommand};
use muster_operator::{crds, ended, run, simulate};
use std::process::ExitCode;

/// Objects come and go by the million, most of them text: the C library's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Muster places groups of GPU pods as one.
#[derive(Parser)]
#[command(name = "muster", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator, in a cluster or from outside with a kubeconfig.
    Run(run::Args),
    /// Print the CustomResourceDefinitions as YAML, for `kubectl apply -f -`.
    Crds,
    /// Place jobs on a described cluster, or on a live one without writing to it, and show where they would go.
    Simulate(simulate::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Crds => crds::print(),
        Command::Simulate(args) => simulate::run(args),
    };
    ended("muster", done)
}
