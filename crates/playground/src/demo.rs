//! The demo.

use anyhow::Result;
use clap::Args as ClapArgs;

use crate::session::Kind;

/// Flags of the demo.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Where the demo runs.
    #[arg(long, value_enum, default_value_t = Kind::Local)]
    cluster: Kind,
}

/// Runs the demo.
///
/// # Errors
/// When the cluster cannot be had, or a step of the demo does not happen.
pub async fn demo(args: Args) -> Result<()> {
    let _ = args;
    Ok(())
}

/// Leaves the demo's cluster running.
///
/// # Errors
/// When the cluster cannot be had.
pub async fn up(args: Args) -> Result<()> {
    let _ = args;
    Ok(())
}
