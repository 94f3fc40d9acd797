//! The environment that tells a pod its ranks.
//!
//! ```text
//!   (Launch, World, PodAt, Addresses) ──▶ node rank, first rank ──▶ MUSTER_* and the framework's own variables
//! ```
//!
//! # Meaning of the variables
//! - `NODE_RANK`, `NNODES`, `NPROC_PER_NODE`, `WORLD_SIZE` and `RANK` speak of one *world*: the whole job, or with
//!   TorchFT the replica group, which is the unit. `MUSTER_*` always speaks of the whole job.
//! - `WORLD_SIZE` counts ranks, never pods. `RANK` is the first rank of the pod. With one rank a pod that is the rank
//!   of its process, and `LOCAL_RANK` (0) is set as well. With several, a launcher in the image starts the processes
//!   and each has rank `RANK` + its local rank; torchrun and mpirun set both variables for their children anyway.
//! - `TP_SIZE`, `PP_SIZE`, `CP_SIZE`, `EP_SIZE`, `ETP_SIZE`, `DP_SIZE` are the axes of the world; `DP_SIZE` is that of
//!   the plan in force, not that of the specification.
//! - `PET_RDZV_BACKEND` is `static`: torchrun's `c10d` backend numbers nodes by the order of their host names, which
//!   is not the order in which they were placed. `PET_MAX_RESTARTS` is 0, since restarts inside the launcher would
//!   escape the job's restart budget. A template that sets either keeps its own.
//! - The hostfile has `host slots=N` lines, which DeepSpeed and Open MPI (4 and 5) read; MPICH and Intel MPI do not.

use crate::parallelism::Parallelism;

/// Which environment the pods get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Framework {
    /// torchrun: `PET_*`.
    #[default]
    Torchrun,
    /// Megatron-LM and NeMo: launched by torchrun, with parallel sizes.
    Megatron,
    /// DeepSpeed: torchrun's environment and a hostfile.
    DeepSpeed,
    /// torchft: each unit is a replica group with a torchrun of its own.
    TorchFT,
    /// MPI: a hostfile; rank 0 runs mpirun.
    Mpi,
    /// Only `MUSTER_*`.
    Plain,
}

/// Seconds for which torchrun waits for the other nodes: images are pulled at different speeds.
const RENDEZVOUS_TIMEOUT: u32 = 900;
/// Port of torchft's lighthouse (its own default).
const LIGHTHOUSE_PORT: u16 = 29_510;

/// What all pods of a gang have in common, whatever the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Name of the job.
    pub job: String,
    /// Which environment.
    pub framework: Framework,
    /// Sizes of the axes; `data` is not used.
    pub parallelism: Parallelism,
    /// Replicas in a unit.
    pub replicas_per_unit: u32,
    /// Pods in a unit.
    pub pods_per_unit: u32,
    /// Pods of a unit with consecutive ranks.
    pub pods_per_stage: u32,
    /// Ranks in a pod.
    pub ranks_per_pod: u32,
    /// Port on which rank 0 listens.
    pub port: u16,
}

/// The plan in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Units.
    pub units: u32,
    /// Generation of the plan.
    pub generation: u64,
    /// Step of the last complete checkpoint, where known.
    pub checkpoint_step: Option<i64>,
}

/// A pod's place in the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodAt {
    /// Unit.
    pub unit: u32,
    /// The unit's incarnation.
    pub incarnation: u64,
    /// Index in the unit, stage by stage.
    pub index: u32,
}

/// Where pods find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Host name of the job's rank 0.
    pub rank0: String,
    /// Host name of the first pod of this pod's own unit. Only TorchFT uses it.
    pub leader: String,
    /// URL of torchft's lighthouse. Default: port 29510 of rank 0, where the image is expected to run one.
    pub lighthouse: Option<String>,
    /// Path of the hostfile in the pod. Only DeepSpeed and MPI use it.
    pub hostfile: String,
}

/// What a framework needs beside environment variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// A Service that finds rank 0.
    pub rank0_service: bool,
    /// A host name for every pod.
    pub every_rank: bool,
    /// A hostfile.
    pub hostfile: bool,
}

/// How frameworks differ.
struct Traits {
    names: Names,
    /// torchrun's variables and those of `torch.distributed`.
    torchrun: bool,
    /// Sizes of the axes.
    sizes: bool,
    whole: bool,
}

fn traits(framework: Framework) -> Traits {
    let row = |rank0_service, every_rank, hostfile, torchrun, sizes, whole| Traits {
        names: Names { rank0_service, every_rank, hostfile },
        torchrun,
        sizes,
        whole,
    };
    match framework {
        //                            rank0  every  hostfile torchrun sizes whole
        Framework::Torchrun | Framework::Megatron => row(true, false, false, true, true, true),
        Framework::DeepSpeed => row(true, true, true, true, true, true),
        Framework::TorchFT => row(true, true, false, true, true, false),
        Framework::Mpi => row(true, true, true, false, true, true),
        Framework::Plain => row(false, false, false, false, false, false),
    }
}

/// What a framework needs beside environment variables.
pub fn names(framework: Framework) -> Names {
    traits(framework).names
}

/// Whether the loss of one unit renews the pods of all.
///
/// True for torchrun, Megatron, DeepSpeed and MPI: their collectives hang or fail with any rank, a static rendezvous
/// admits nobody later, and a rank of an old world corrupts the new one. (torchrun's elastic rendezvous would let
/// survivors wait for the newcomer, but restarts all their processes just the same, and dies with the pod of rank 0.)
/// False for TorchFT, whose quorum drops and admits replica groups step by step, and for Plain, of whose pods nothing
/// is known that would tie them together.
pub fn restarts_as_a_whole(framework: Framework) -> bool {
    traits(framework).whole
}

/// The ports on which some pod of a gang is told to listen: that of rank 0 (with TorchFT of each unit's first pod), and
/// with TorchFT that of the lighthouse. With the host's network they are ports of the node.
pub fn ports(framework: Framework, port: u16) -> Vec<u16> {
    let traits = traits(framework);
    let own = (traits.sizes || traits.torchrun).then_some(port);
    let lighthouse = (framework == Framework::TorchFT && port != LIGHTHOUSE_PORT).then_some(LIGHTHOUSE_PORT);
    own.into_iter().chain(lighthouse).collect()
}

/// Position of a pod among all pods in rank order. Unit `u` of `U`, with index p·m + k and m pods a stage, is at
/// p·(m·U) + u·m + k: stage by stage, and within a stage unit by unit.
pub fn node_rank(launch: &Launch, units: u32, unit: u32, index: u32) -> u32 {
    let m = launch.pods_per_stage.max(1);
    (index / m) * m * units + unit * m + index % m
}

/// The environment of a pod, in a fixed order, each name once.
pub fn environment(launch: &Launch, world: &World, pod: PodAt, at: &Addresses) -> Vec<(String, String)> {
    let traits = traits(launch.framework);
    let mut env = Env(Vec::with_capacity(48));
    muster(&mut env, launch, world, pod);
    let place = Place::of(launch, world, pod, at);
    if traits.sizes {
        env.all(&sizes(launch, &place));
        distributed(&mut env, launch, &place);
    }
    if traits.torchrun {
        torchrun(&mut env, launch, &place);
    }
    if traits.names.hostfile {
        env.add("MUSTER_HOSTFILE", &at.hostfile);
    }
    match launch.framework {
        Framework::TorchFT => {
            let lighthouse =
                at.lighthouse.clone().unwrap_or_else(|| format!("http://{}:{LIGHTHOUSE_PORT}", at.rank0));
            env.add("TORCHFT_LIGHTHOUSE", &lighthouse);
            env.add("REPLICA_GROUP_ID", &pod.unit);
            env.add("NUM_REPLICA_GROUPS", &world.units);
        }
        Framework::Mpi => {
            // Open MPI 4 (ORTE) and 5 (PRRTE). Host names are compared as they stand in the file.
            env.add("OMPI_MCA_orte_default_hostfile", &at.hostfile);
            env.add("PRTE_MCA_prte_default_hostfile", &at.hostfile);
            env.add("OMPI_MCA_orte_keep_fqdn_hostnames", &"true");
            env.add("PRTE_MCA_prte_keep_fqdn_hostnames", &"true");
        }
        _ => {}
    }
    env.0
}

/// The hostfile: a line a pod, in the order of ranks. `host` names the pod of a unit and an index in it.
pub fn hostfile(launch: &Launch, units: u32, host: impl Fn(u32, u32) -> String) -> String {
    let mut pods: Vec<(u32, u32, u32)> = (0..units)
        .flat_map(|unit| (0..launch.pods_per_unit).map(move |index| (unit, index)))
        .map(|(unit, index)| (node_rank(launch, units, unit, index), unit, index))
        .collect();
    pods.sort_unstable();
    let line = |(_, unit, index)| format!("{} slots={}\n", host(unit, index), launch.ranks_per_pod);
    pods.into_iter().map(line).collect()
}

struct Env(Vec<(String, String)>);

impl Env {
    fn add(&mut self, name: &str, value: &impl ToString) {
        self.0.push((name.to_owned(), value.to_string()));
    }

    fn all(&mut self, pairs: &[(&str, u32)]) {
        for (name, value) in pairs {
            self.add(name, value);
        }
    }
}

/// A pod's place in its world.
struct Place<'a> {
    nodes: u32,
    node_rank: u32,
    data: u32,
    master: &'a str,
    rendezvous: String,
}

impl<'a> Place<'a> {
    fn of(launch: &Launch, world: &World, pod: PodAt, at: &'a Addresses) -> Self {
        if launch.framework == Framework::TorchFT {
            return Self {
                nodes: launch.pods_per_unit,
                node_rank: pod.index,
                data: launch.replicas_per_unit,
                master: &at.leader,
                rendezvous: format!("{}-{}-{}", launch.job, pod.unit, pod.incarnation),
            };
        }
        Self {
            nodes: world.units * launch.pods_per_unit,
            node_rank: node_rank(launch, world.units, pod.unit, pod.index),
            data: world.units * launch.replicas_per_unit,
            master: &at.rank0,
            rendezvous: format!("{}-{}", launch.job, world.generation),
        }
    }
}

/// Muster's own variables, the same for every framework.
fn muster(env: &mut Env, launch: &Launch, world: &World, pod: PodAt) {
    let node = node_rank(launch, world.units, pod.unit, pod.index);
    let nodes = world.units * launch.pods_per_unit;
    env.add("MUSTER_JOB", &launch.job);
    env.add("MUSTER_GENERATION", &world.generation);
    env.add("MUSTER_INCARNATION", &pod.incarnation);
    env.all(&[
        ("MUSTER_UNIT", pod.unit),
        ("MUSTER_UNITS", world.units),
        ("MUSTER_POD_INDEX", pod.index),
        ("MUSTER_NODE_RANK", node),
        ("MUSTER_NODES", nodes),
        ("MUSTER_RANKS_PER_POD", launch.ranks_per_pod),
        ("MUSTER_WORLD_SIZE", nodes * launch.ranks_per_pod),
        ("MUSTER_RANK_START", node * launch.ranks_per_pod),
    ]);
    if let Some(step) = world.checkpoint_step {
        env.add("MUSTER_CHECKPOINT_STEP", &step);
    }
}

fn sizes(launch: &Launch, place: &Place<'_>) -> [(&'static str, u32); 6] {
    let sizes = &launch.parallelism;
    [
        ("TP_SIZE", sizes.tensor),
        ("PP_SIZE", sizes.pipeline),
        ("CP_SIZE", sizes.context),
        ("EP_SIZE", sizes.expert),
        ("ETP_SIZE", sizes.expert_tensor),
        ("DP_SIZE", place.data),
    ]
}

/// What `torch.distributed` reads with `env://`. mpirun's children overwrite none of it, so under MPI only the address
/// of rank 0 is given: a rank that all of a pod's processes share would be wrong.
fn distributed(env: &mut Env, launch: &Launch, place: &Place<'_>) {
    env.add("MASTER_ADDR", &place.master);
    env.add("MASTER_PORT", &launch.port);
    if launch.framework == Framework::Mpi {
        return;
    }
    env.all(&[
        ("WORLD_SIZE", place.nodes * launch.ranks_per_pod),
        ("RANK", place.node_rank * launch.ranks_per_pod),
        ("NNODES", place.nodes),
        ("NODE_RANK", place.node_rank),
        ("NPROC_PER_NODE", launch.ranks_per_pod),
    ]);
    if launch.ranks_per_pod == 1 {
        env.add("LOCAL_RANK", &0);
    }
}

/// What torchrun reads instead of arguments.
fn torchrun(env: &mut Env, launch: &Launch, place: &Place<'_>) {
    env.all(&[
        ("PET_NNODES", place.nodes),
        ("PET_NPROC_PER_NODE", launch.ranks_per_pod),
        ("PET_NODE_RANK", place.node_rank),
    ]);
    env.add("PET_RDZV_BACKEND", &"static");
    env.add("PET_RDZV_ENDPOINT", &format!("{}:{}", place.master, launch.port));
    env.add("PET_RDZV_ID", &place.rendezvous);
    env.add("PET_RDZV_CONF", &format!("timeout={RENDEZVOUS_TIMEOUT}"));
    env.add("PET_MASTER_ADDR", &place.master);
    env.add("PET_MASTER_PORT", &launch.port);
    env.add("PET_MAX_RESTARTS", &0);
}
