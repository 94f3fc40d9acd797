//! `kubectl muster`: what kubectl finds as `kubectl-muster` on PATH.
//!
//! ```text
//!   kubectl muster simulate -f FILE ──Cli──▶ simulate::Args (the same as of muster simulate --cluster) ──▶ simulate
//! ```

use clap::{Parser, Subcommand};
use std::path::PathBuf;

use crate::client::Access;
use crate::simulate::{self, Look};

/// Muster's answers for the cluster that kubectl talks to.
#[derive(Parser, Debug)]
#[command(name = "kubectl-muster", bin_name = "kubectl muster", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Show where jobs would go on the cluster as it is now, or why they would wait. Nothing is written to it.
    Simulate(Simulate),
}

/// Arguments of `kubectl muster simulate`, named as kubectl names them.
#[derive(clap::Args, Debug)]
struct Simulate {
    /// Jobs to place: TrainingJob or Gang manifests; `-` reads standard input
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
    /// Namespace of manifests that name none. Default: the context's
    #[arg(short, long)]
    namespace: Option<String>,
    /// Kubeconfig file. Default: KUBECONFIG, else the file in the home folder
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Default: its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    #[command(flatten)]
    look: Look,
}

impl Cli {
    /// The same question in the words of `muster simulate`.
    pub fn simulated(self) -> simulate::Args {
        let Command::Simulate(asked) = self.command;
        let access = Access { kubeconfig: asked.kubeconfig, context: asked.context };
        simulate::Args::on_cluster(access, asked.namespace, asked.filename, asked.look)
    }
}

/// Runs the plugin.
///
/// # Errors
/// As [`simulate::run`].
pub fn run(cli: Cli) -> anyhow::Result<()> {
    simulate::run(cli.simulated())
}

#[cfg(test)]
mod tests {
    use super::{Cli, simulate};
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct Muster {
        #[command(flatten)]
        args: simulate::Args,
    }

    #[test]
    fn arguments_are_those_of_muster_simulate_on_a_cluster() {
        Cli::command().debug_assert();
        for (plugin, muster) in [
            (&["-f", "a.yaml"][..], &["--job", "a.yaml"][..]),
            (
                &[
                    "--filename",
                    "a.yaml",
                    "-f",
                    "-",
                    "--context",
                    "c",
                    "--kubeconfig",
                    "k",
                    "--namespace",
                    "n",
                ],
                &["--job", "a.yaml", "--job", "-", "--context", "c", "--kubeconfig", "k", "-n", "n"],
            ),
            (
                &["-f", "a.yaml", "-o", "svg", "--width", "60", "--color", "never"],
                &["--job", "a.yaml", "--output", "svg", "--width", "60", "--color", "never"],
            ),
        ] {
            let cli =
                Cli::try_parse_from(["kubectl-muster", "simulate"].iter().chain(plugin)).expect("arguments");
            let same =
                Muster::try_parse_from(["muster", "--cluster"].iter().chain(muster)).expect("arguments");
            assert_eq!(format!("{:?}", cli.simulated()), format!("{:?}", same.args));
        }
    }

    #[test]
    fn what_is_missing_or_unknown_is_named() {
        for (arguments, part) in [
            (&[][..], "Usage: kubectl muster"),
            (&["simulate"], "--filename <FILE>"),
            (&["simulate", "-f", "a", "-o", "yaml"], "[possible values: text, json, svg]"),
            (&["simulate", "-f", "a", "--generate", "x"], "--generate"),
            (&["explain"], "explain"),
        ] {
            let parsed = Cli::try_parse_from(["kubectl-muster"].iter().chain(arguments));
            let said = parsed.expect_err("a mistake").to_string();
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
}
