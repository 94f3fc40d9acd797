//! The suite on a real control plane, one scenario after the other: they share its nodes.

use muster_e2e::World;
use muster_e2e::scenarios::{basics, crash, failure, lifecycle, nodes};
use std::sync::{Mutex, PoisonError};

/// One scenario at a time.
static CLUSTER: Mutex<()> = Mutex::new(());

macro_rules! scenario {
    ($name:ident, $run:path, $nodes:expr) => {
        #[test]
        fn $name() -> anyhow::Result<()> {
            let _alone = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
            // What the operators of the scenario say, when MUSTER_LOG asks for it.
            if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("MUSTER_LOG") {
                let _ =
                    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
            }
            tokio::runtime::Runtime::new()?.block_on(async {
                let Some(world) = World::cluster($nodes).await? else { return Ok(()) };
                let outcome = $run(&world).await;
                world.end().await?;
                outcome
            })
        }
    };
}

muster_e2e::for_each_scenario!(scenario);
