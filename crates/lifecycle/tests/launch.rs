//! The environment of pods, held to the rank function.

use muster_lifecycle::Framework;
use muster_lifecycle::launch::{
    Addresses, Launch, PodAt, World, environment, hostfile, names, node_rank, restarts_as_a_whole,
};
use muster_lifecycle::parallelism::{Derived, Parallelism, TrainingSpec, derive};
use muster_lifecycle::ranks::Layout;
use std::collections::{BTreeMap, BTreeSet};

const FRAMEWORKS: [Framework; 6] = [
    Framework::Torchrun,
    Framework::Megatron,
    Framework::DeepSpeed,
    Framework::TorchFT,
    Framework::Mpi,
    Framework::Plain,
];

fn job(framework: Framework, s: [u32; 6], gpus_per_pod: u32) -> (Launch, Derived) {
    let [tensor, pipeline, context, expert, expert_tensor, data] = s;
    let parallelism = Parallelism { tensor, pipeline, context, expert, expert_tensor, data };
    let derived = derive(&TrainingSpec { framework, parallelism, gpus_per_pod, ..TrainingSpec::default() })
        .unwrap_or_else(|errors| panic!("{errors:?}"));
    let launch = Launch {
        job: "llama".into(),
        framework,
        parallelism,
        replicas_per_unit: derived.replicas_per_unit,
        pods_per_unit: derived.pods_per_unit,
        pods_per_stage: derived.pods_per_stage,
        ranks_per_pod: derived.ranks_per_pod,
        port: 29_500,
    };
    (launch, derived)
}

fn addresses() -> Addresses {
    Addresses {
        rank0: "llama-rank0".into(),
        leader: "llama-1-1-0.hosts".into(),
        lighthouse: None,
        hostfile: "/etc/muster/hosts/hostfile".into(),
    }
}

fn world(units: u32) -> World {
    World { units, generation: 7, checkpoint_step: None }
}

fn env(launch: &Launch, units: u32, unit: u32, index: u32) -> BTreeMap<String, String> {
    let pod = PodAt { unit, incarnation: 5, index };
    let list = environment(launch, &world(units), pod, &addresses());
    let map: BTreeMap<String, String> = list.iter().cloned().collect();
    assert_eq!(map.len(), list.len(), "a name stands twice: {list:?}");
    map
}

fn number(env: &BTreeMap<String, String>, name: &str) -> u32 {
    env.get(name).and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} in {env:?}"))
}

/// Axes and GPUs a pod that exercise stages, shared pods and groups over pods.
const JOBS: [([u32; 6], u32); 7] = [
    ([8, 4, 1, 8, 1, 4], 8),
    ([2, 2, 1, 1, 2, 8], 8),
    ([4, 2, 3, 1, 4, 4], 8),
    ([16, 2, 1, 1, 16, 3], 8),
    ([1, 1, 1, 1, 1, 5], 0),
    ([2, 1, 2, 4, 2, 8], 4),
    ([2, 1, 1, 1, 2, 2], 8),
];

/// Every unit holds exactly its own replicas, whole, and every rank is in exactly one pod.
#[test]
fn pods_hold_the_ranks_of_their_units_replicas() {
    for framework in FRAMEWORKS {
        for (axes, per_pod) in JOBS {
            let (launch, derived) = job(framework, axes, per_pod);
            let layout = Layout::new(framework, launch.parallelism, launch.replicas_per_unit);
            let mut seen = BTreeSet::new();
            for unit in 0..derived.units {
                for index in 0..launch.pods_per_unit {
                    let start = number(&env(&launch, derived.units, unit, index), "MUSTER_RANK_START");
                    for rank in start..start + launch.ranks_per_pod {
                        let at = layout.at(u64::from(rank));
                        assert_eq!(
                            at.data / launch.replicas_per_unit,
                            unit,
                            "{framework:?} {axes:?} rank {rank}"
                        );
                        assert!(seen.insert(rank), "rank {rank} is in two pods");
                    }
                }
            }
            assert_eq!(seen.len() as u64, layout.ranks(), "{framework:?} {axes:?}");
        }
    }
}

/// The unit-local index counts stage by stage, so that segments are contiguous.
#[test]
fn unit_local_order_is_that_of_the_unit_alone() {
    for framework in FRAMEWORKS {
        for (axes, per_pod) in JOBS {
            let (launch, derived) = job(framework, axes, per_pod);
            let whole = Layout::new(framework, launch.parallelism, launch.replicas_per_unit);
            let alone = Parallelism { data: launch.replicas_per_unit, ..launch.parallelism };
            let alone = Layout::new(framework, alone, launch.replicas_per_unit);
            for (unit, index) in
                (0..derived.units).flat_map(|u| (0..launch.pods_per_unit).map(move |i| (u, i)))
            {
                let start = node_rank(&launch, derived.units, unit, index) * launch.ranks_per_pod;
                let mut at = whole.at(u64::from(start));
                at.data -= unit * launch.replicas_per_unit;
                assert_eq!(alone.rank(at), u64::from(index * launch.ranks_per_pod), "{framework:?} {axes:?}");
            }
        }
    }
}

#[test]
fn ranks_are_renumbered_when_the_job_shrinks() {
    let (launch, _) = job(Framework::Megatron, [8, 4, 1, 1, 8, 4], 8);
    // Stage 2 of unit 1: after two whole stages.
    assert_eq!(node_rank(&launch, 4, 1, 2), 9);
    assert_eq!(node_rank(&launch, 3, 1, 2), 7);
    let env = env(&launch, 3, 1, 2);
    assert_eq!((number(&env, "WORLD_SIZE"), number(&env, "DP_SIZE"), number(&env, "RANK")), (96, 3, 56));
}

#[test]
fn torchrun_gets_its_variables() {
    let (launch, _) = job(Framework::Torchrun, [8, 1, 2, 1, 8, 2], 8);
    let env = env(&launch, 2, 1, 1);
    let expected = [
        ("MUSTER_JOB", "llama"),
        ("MUSTER_GENERATION", "7"),
        ("MUSTER_UNIT", "1"),
        ("MUSTER_INCARNATION", "5"),
        ("MUSTER_POD_INDEX", "1"),
        ("MUSTER_NODE_RANK", "3"),
        ("MUSTER_NODES", "4"),
        ("MUSTER_WORLD_SIZE", "32"),
        ("MUSTER_RANK_START", "24"),
        ("MASTER_ADDR", "llama-rank0"),
        ("MASTER_PORT", "29500"),
        ("WORLD_SIZE", "32"),
        ("RANK", "24"),
        ("NODE_RANK", "3"),
        ("NNODES", "4"),
        ("NPROC_PER_NODE", "8"),
        ("PET_NNODES", "4"),
        ("PET_NPROC_PER_NODE", "8"),
        ("PET_NODE_RANK", "3"),
        ("PET_RDZV_BACKEND", "static"),
        ("PET_RDZV_ENDPOINT", "llama-rank0:29500"),
        ("PET_RDZV_ID", "llama-7"),
        ("PET_RDZV_CONF", "timeout=900"),
        ("PET_MASTER_ADDR", "llama-rank0"),
        ("PET_MASTER_PORT", "29500"),
        ("PET_MAX_RESTARTS", "0"),
        ("TP_SIZE", "8"),
        ("CP_SIZE", "2"),
        ("PP_SIZE", "1"),
        ("DP_SIZE", "2"),
    ];
    for (name, value) in expected {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(!env.contains_key("LOCAL_RANK") && !env.contains_key("MUSTER_CHECKPOINT_STEP"));
}

#[test]
fn a_pod_of_one_rank_is_that_rank() {
    let (launch, _) = job(Framework::Torchrun, [1, 1, 1, 1, 1, 5], 0);
    let env = env(&launch, 5, 3, 0);
    assert_eq!((number(&env, "RANK"), number(&env, "LOCAL_RANK"), number(&env, "WORLD_SIZE")), (3, 0, 5));
}

#[test]
fn a_replica_group_of_torchft_is_a_world_of_its_own() {
    let (launch, derived) = job(Framework::TorchFT, [8, 2, 1, 1, 8, 3], 8);
    let vars = env(&launch, derived.units, 1, 1);
    assert_eq!((number(&vars, "REPLICA_GROUP_ID"), number(&vars, "NUM_REPLICA_GROUPS")), (1, 3));
    assert_eq!((number(&vars, "WORLD_SIZE"), number(&vars, "RANK"), number(&vars, "PET_NNODES")), (16, 8, 2));
    assert_eq!((number(&vars, "MUSTER_WORLD_SIZE"), number(&vars, "MUSTER_RANK_START")), (48, 24));
    assert_eq!(vars["MASTER_ADDR"], "llama-1-1-0.hosts");
    assert_eq!(vars["PET_RDZV_ID"], "llama-1-5");
    assert_eq!(vars["TORCHFT_LIGHTHOUSE"], "http://llama-rank0:29510");
    let own = Addresses { lighthouse: Some("http://lighthouse:1".into()), ..addresses() };
    let list = environment(&launch, &world(3), PodAt::default(), &own);
    assert!(list.contains(&("TORCHFT_LIGHTHOUSE".into(), "http://lighthouse:1".into())));
}

#[test]
fn plain_pods_get_nothing_but_musters_own() {
    let (launch, _) = job(Framework::Plain, [8, 1, 1, 1, 8, 2], 8);
    let at = World { checkpoint_step: Some(1200), ..world(2) };
    let list = environment(&launch, &at, PodAt::default(), &addresses());
    assert!(list.iter().all(|(name, _)| name.starts_with("MUSTER_")), "{list:?}");
    assert!(list.contains(&("MUSTER_CHECKPOINT_STEP".into(), "1200".into())));
}

#[test]
fn hostfiles_are_in_rank_order() {
    let (launch, derived) = job(Framework::Mpi, [8, 2, 1, 1, 8, 2], 8);
    let text = hostfile(&launch, derived.units, |unit, index| format!("u{unit}-{index}"));
    assert_eq!(text, "u0-0 slots=8\nu1-0 slots=8\nu0-1 slots=8\nu1-1 slots=8\n");
    let env = env(&launch, 2, 0, 0);
    assert_eq!(env["OMPI_MCA_orte_default_hostfile"], "/etc/muster/hosts/hostfile");
    assert!(!env.contains_key("RANK"), "mpirun knows the ranks");
}

#[test]
fn what_frameworks_need() {
    for framework in FRAMEWORKS {
        let names = names(framework);
        let vars = env(&job(framework, [8, 1, 1, 1, 8, 2], 8).0, 2, 1, 0);
        let told = |text: &str| vars.values().any(|value| value.contains(text));
        assert_eq!(names.rank0_service, told("llama-rank0"), "{framework:?}");
        assert_eq!(names.hostfile, told("/etc/muster/hosts/hostfile"), "{framework:?}");
        // Hosts in a hostfile, and leaders of units, are found by name.
        assert_eq!(names.every_rank, names.hostfile || told("llama-1-1-0.hosts"), "{framework:?}");
        let alone = matches!(framework, Framework::TorchFT | Framework::Plain);
        assert_eq!(restarts_as_a_whole(framework), !alone, "{framework:?}");
    }
}

/// With the host's network these are ports of the node, and two gangs cannot both have them there.
#[test]
fn every_port_that_pods_are_told_is_known() {
    for (framework, ports) in [
        (Framework::Plain, vec![]),
        (Framework::Torchrun, vec![29_400]),
        (Framework::Megatron, vec![29_400]),
        (Framework::DeepSpeed, vec![29_400]),
        (Framework::Mpi, vec![29_400]),
        (Framework::TorchFT, vec![29_400, 29_510]),
    ] {
        assert_eq!(muster_lifecycle::launch::ports(framework, 29_400), ports, "{framework:?}");
        let launch =
            Launch { framework, port: 29_400, pods_per_unit: 1, pods_per_stage: 1, ..Launch::default() };
        let told = environment(
            &launch,
            &World { units: 1, ..World::default() },
            PodAt::default(),
            &Addresses::default(),
        );
        let told: Vec<&str> = told.iter().map(|(_, value)| value.as_str()).collect();
        for port in [29_400, 29_510] {
            let text = port.to_string();
            let is_told = told.iter().any(|value| *value == text || value.ends_with(&format!(":{text}")));
            assert_eq!(is_told, ports.contains(&port), "{framework:?} {port}: {told:?}");
        }
    }
}
