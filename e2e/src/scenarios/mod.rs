//! The scenarios. Each takes a world with its nodes, and fails with what it saw.

pub mod basics;
pub mod change;
pub mod crash;
pub mod examples;
pub mod failure;
pub mod fence;
pub mod lifecycle;
pub mod liveness;
pub mod nodes;

/// Scenarios and the nodes that each wants: `scenario!(name, module::function, nodes)` for every entry.
#[macro_export]
macro_rules! for_each_scenario {
    ($scenario:ident) => {
        $scenario!(
            nodes_that_become_ready_are_used,
            failure::nodes_that_become_ready_are_used,
            nodes::hgx(4)
        );
        $scenario!(
            application_failures_use_the_budget,
            failure::application_failures_use_the_budget,
            nodes::hgx(2)
        );
        $scenario!(
            examples_do_what_they_say,
            examples::examples_do_what_they_say,
            muster_playground::demo::nodes::all()
        );
        $scenario!(
            without_a_lease_only_gangs_are_fenced,
            fence::without_a_lease_only_gangs_are_fenced,
            nodes::hgx(1)
        );
        $scenario!(
            a_job_named_like_the_fence_disturbs_nobody,
            fence::a_job_named_like_the_fence_disturbs_nobody,
            nodes::hgx(8)
        );
        $scenario!(
            a_former_leader_is_refused_every_kind_of_write,
            fence::a_former_leader_is_refused_every_kind_of_write,
            nodes::hgx(2)
        );
        $scenario!(
            a_lease_that_was_deleted_goes_on_above,
            fence::a_lease_that_was_deleted_goes_on_above,
            nodes::hgx(1)
        );
        $scenario!(nobody_else_writes_plans, fence::nobody_else_writes_plans, nodes::hgx(1));
        $scenario!(the_operator_keeps_to_its_own, fence::the_operator_keeps_to_its_own, nodes::hgx(1));
        $scenario!(the_proof_finds_each_gap, fence::the_proof_finds_each_gap, nodes::hgx(1));
        $scenario!(
            statuses_of_the_cluster_are_written,
            fence::statuses_of_the_cluster_are_written,
            nodes::hgx(1)
        );
        $scenario!(budget_survives_a_restart, crash::budget_survives_a_restart, nodes::hgx(2));
        $scenario!(
            a_unit_keeps_its_template_until_it_starts_anew,
            lifecycle::a_unit_keeps_its_template_until_it_starts_anew,
            nodes::hgx(2)
        );
        $scenario!(deadline_and_time_to_live, lifecycle::deadline_and_time_to_live, nodes::hgx(2));
        $scenario!(
            frameworks_get_their_environment,
            lifecycle::frameworks_get_their_environment,
            nodes::hgx(4)
        );
        $scenario!(hostfiles_follow_restarts, lifecycle::hostfiles_follow_restarts, nodes::hgx(2));
        $scenario!(claims_wait_for_their_class, lifecycle::claims_wait_for_their_class, nodes::hgx(1));
        $scenario!(hgx_job_of_2048_gpus, basics::hgx_job_of_2048_gpus, nodes::hgx(256));
        $scenario!(nvl72_expert_groups, basics::nvl72_expert_groups, nodes::nvl72(32));
        $scenario!(impossible_job_says_why, basics::impossible_job_says_why, nodes::hgx(4));
        $scenario!(two_jobs_one_after_the_other, basics::two_jobs_one_after_the_other, nodes::hgx(8));
        $scenario!(waiting_writes_nothing, basics::waiting_writes_nothing, nodes::hgx(2));
        $scenario!(quota_for_a_part_leaves_no_pods, basics::quota_for_a_part_leaves_no_pods, nodes::hgx(8));
        $scenario!(node_dies_and_the_job_recovers, failure::node_dies_and_the_job_recovers, nodes::hgx(6));
        $scenario!(silent_and_refusing_kubelets, failure::silent_and_refusing_kubelets, nodes::hgx(6));
        $scenario!(
            rank0_never_resolves_to_the_old_pod,
            failure::rank0_never_resolves_to_the_old_pod,
            nodes::hgx(4)
        );
        $scenario!(result_survives_pod_gc, failure::result_survives_pod_gc, nodes::hgx(2));
        $scenario!(killed_at_twenty_points, crash::killed_at_twenty_points, nodes::hgx(8));
        $scenario!(
            a_leader_change_leaves_what_would_have_been,
            change::a_leader_change_leaves_what_would_have_been,
            nodes::hgx(4)
        );
        $scenario!(
            a_minute_without_kubelets_costs_nothing,
            failure::a_minute_without_kubelets_costs_nothing,
            nodes::hgx(8)
        );
        $scenario!(a_large_plan_lies_in_parts, crash::a_large_plan_lies_in_parts, nodes::hgx(4));
        $scenario!(lost_answers_lose_no_pod, crash::lost_answers_lose_no_pod, nodes::hgx(4));
        $scenario!(two_leaders_one_domain, crash::two_leaders_one_domain, nodes::hgx(4));
        $scenario!(
            priority_classes_reach_the_pods,
            lifecycle::priority_classes_reach_the_pods,
            nodes::hgx(1)
        );
        $scenario!(admission_decides_about_nodes, lifecycle::admission_decides_about_nodes, nodes::hgx(4));
        $scenario!(an_unreadable_job_stops_no_term, liveness::an_unreadable_job_stops_no_term, nodes::hgx(4));
        $scenario!(
            a_leader_that_cannot_see_steps_down,
            liveness::a_leader_that_cannot_see_steps_down,
            nodes::hgx(2)
        );
        $scenario!(
            a_loop_that_stands_still_is_replaced,
            liveness::a_loop_that_stands_still_is_replaced,
            nodes::hgx(2)
        );
        $scenario!(a_panic_gives_the_lease_back, liveness::a_panic_gives_the_lease_back, nodes::hgx(2));
        $scenario!(
            a_gap_in_the_watch_hides_no_deletion,
            liveness::a_gap_in_the_watch_hides_no_deletion,
            nodes::hgx(4)
        );
        $scenario!(a_wrong_clock_loses_nothing, liveness::a_wrong_clock_loses_nothing, nodes::hgx(4));
        $scenario!(suspend_and_resume, lifecycle::suspend_and_resume, nodes::hgx(2));
        $scenario!(deletion_leaves_nothing, lifecycle::deletion_leaves_nothing, nodes::hgx(20));
        $scenario!(
            pinned_pods_are_bound_by_the_scheduler,
            lifecycle::pinned_pods_are_bound_by_the_scheduler,
            nodes::hgx(6)
        );
    };
}
