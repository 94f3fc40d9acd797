//! The muster binary: run, crds, simulate; and the kubectl plugin.

pub mod client;
pub mod crds;
pub mod plugin;
pub mod run;
pub mod serve;
pub mod simulate;

use std::process::ExitCode;

/// How a binary ends: an error is one line on standard error, with what caused it.
pub fn ended(name: &str, done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
