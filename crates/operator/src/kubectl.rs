//! The `kubectl-muster` binary: on PATH, it is `kubectl muster`.

use clap::Parser;
use muster_operator::{ended, plugin};
use std::process::ExitCode;

fn main() -> ExitCode {
    ended("kubectl muster", plugin::run(plugin::Cli::parse()))
}
