//! The suite on a real control plane, one scenario after the other: they share its nodes.

use kubesim::kubelet::NodeSpec;
use muster_e2e::World;
use muster_e2e::scenarios::{basics, change, crash, examples, failure, fence, lifecycle, liveness, nodes};
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

/// One scenario at a time.
static CLUSTER: Mutex<()> = Mutex::new(());

/// Runs a scenario alone on the cluster.
fn alone<F, Fut>(nodes: Vec<NodeSpec>, run: F) -> anyhow::Result<()>
where
    F: FnOnce(Arc<World>) -> Fut,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let _alone = CLUSTER.lock().unwrap_or_else(PoisonError::into_inner);
    // What the operators of the scenario say, when MUSTER_LOG asks for it.
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("MUSTER_LOG") {
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let Some(world) = World::cluster(nodes).await? else { return Ok(()) };
        let world = Arc::new(world);
        let outcome = run(world.clone()).await;
        let ended = world.end().await;
        // What the scenario says comes first: the end may fail only because of it.
        outcome.and(ended)
    })
}

macro_rules! scenario {
    ($name:ident, $run:path, $nodes:expr) => {
        #[test]
        fn $name() -> anyhow::Result<()> {
            alone($nodes, |world| async move { $run(&world).await })
        }
    };
}

muster_e2e::for_each_scenario!(scenario);
