//! The operator's roles grant what it asks for, and nothing else.
//!
//! After the suite on a real control plane (cargo runs the programs of a package by name), so that the audit log is that
//! of the whole suite.

use kubesim::api::Fault;
use muster_api::JobPhase;
use muster_e2e::jobs::job;
use muster_e2e::scenarios::{basics, crash, failure, fence, lifecycle};
use muster_e2e::{World, rights};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a scenario in memory and returns what was asked for.
macro_rules! asked {
    ($used:ident, $run:path, $nodes:expr) => {
        let world = World::memory($nodes).await?;
        $run(&world).await?;
        world.end().await?;
        let server = world.server.as_ref().expect("it is in memory");
        $used.extend(rights::used_in(&server.stats()));
    };
}

#[tokio::test(start_paused = true)]
async fn the_roles_grant_what_is_asked_for_and_nothing_else() -> anyhow::Result<()> {
    use muster_e2e::scenarios::nodes::hgx;
    let mut used = BTreeSet::new();
    asked!(used, lifecycle::frameworks_get_their_environment, hgx(4));
    asked!(used, lifecycle::deadline_and_time_to_live, hgx(2));
    asked!(used, lifecycle::pinned_pods_are_bound_by_the_scheduler, hgx(6));
    asked!(used, failure::rank0_never_resolves_to_the_old_pod, hgx(4));
    asked!(used, failure::result_survives_pod_gc, hgx(2));
    asked!(used, crash::lost_answers_lose_no_pod, hgx(4));
    asked!(used, crash::a_large_plan_lies_in_parts, hgx(4));
    asked!(used, basics::quota_for_a_part_leaves_no_pods, hgx(8));
    asked!(used, fence::a_lease_that_was_deleted_goes_on_above, hgx(1));
    asked!(used, fence::statuses_of_the_cluster_are_written, hgx(1));
    asked!(used, lifecycle::hostfiles_follow_restarts, hgx(2));
    asked!(used, a_name_is_taken, hgx(1));
    asked!(used, lifecycle::claims_wait_for_their_class, hgx(1));
    rights::check_all(&used, &[])
}

/// The name of a pod is taken: whose it is must be asked.
async fn a_name_is_taken(world: &World) -> anyhow::Result<()> {
    let server = world.server.as_ref().expect("it is in memory");
    let taken = AtomicBool::new(false);
    server.set_fault(Box::new(move |asked| {
        let pod = asked.verb == "create" && asked.resource == "pods" && !asked.dry_run;
        (pod && !taken.swap(true, Ordering::SeqCst)).then(|| Fault::Fail {
            code: 409,
            reason: "AlreadyExists".into(),
            message: "it already exists".into(),
        })
    }));
    let operator = world.start("one");
    world.submit(&job("taken", 8)).await?;
    world.phase("taken", JobPhase::Running, Duration::from_secs(120)).await?;
    operator.stop().await;
    server.clear_fault();
    Ok(())
}

/// What only faults bring about that a real server cannot be told to have.
const IN_MEMORY_ONLY: [&str; 1] = ["get pods"];

/// The whole suite, as the API server saw it. Needs the audit log that `make test` gives.
#[test]
fn the_audit_log_holds_no_other_verbs_than_the_roles() -> anyhow::Result<()> {
    let Some(log) = std::env::var_os("MUSTER_TEST_AUDIT_LOG") else {
        eprintln!("SKIPPED: no audit log; run `make test`");
        return Ok(());
    };
    let audit = rights::audit(Path::new(&log))?;
    rights::check(&audit.used)?;
    let mut scenarios = 0;
    macro_rules! count {
        ($name:ident, $run:path, $nodes:expr) => {
            scenarios += 1;
        };
    }
    muster_e2e::for_each_scenario!(count);
    if audit.scenarios.len() < scenarios {
        eprintln!(
            "SKIPPED: {} of {scenarios} scenarios ran: what is never asked for is not known",
            audit.scenarios.len()
        );
        return Ok(());
    }
    rights::check_all(&audit.used, &IN_MEMORY_ONLY)
}
