//! The suite on the in-memory API, in virtual time.

use muster_e2e::World;
use muster_e2e::scenarios::{basics, change, crash, examples, failure, fence, lifecycle, liveness, nodes};

macro_rules! scenario {
    ($name:ident, $run:path, $nodes:expr) => {
        #[tokio::test(start_paused = true)]
        async fn $name() -> anyhow::Result<()> {
            let world = World::memory($nodes).await?;
            $run(&world).await?;
            world.end().await
        }
    };
}

muster_e2e::for_each_scenario!(scenario);
