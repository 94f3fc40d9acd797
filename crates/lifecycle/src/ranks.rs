//! Which rank is where in the grid of parallel axes: one table for all frameworks.
//!
//! ```text
//!   (framework, sizes) ──▶ Layout ──▶ rank ⇄ coordinates ──▶ replicas that share a pod or an expert group
//! ```
//!
//! Every caller goes through [`Layout`]; no formula of one framework's order stands anywhere else.

use crate::{launch::Framework, parallelism::Parallelism};

/// An axis of the grid of ranks. (Experts are laid over the ranks of a stage and add none.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Tensor parallelism.
    Tensor,
    /// Context parallelism.
    Context,
    /// Data-parallel replica.
    Data,
    /// Pipeline stage.
    Pipeline,
}

/// How a framework numbers its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOrder {
    /// The axes of one world, the fastest first.
    pub fastest_first: [Axis; 4],
    /// Each unit is a world of its own, numbered from 0; otherwise the whole job is one world.
    pub unit_worlds: bool,
}

/// Sources: Megatron-LM `parallel_state.RankGenerator` (`tp-cp-ep-dp-pp`), which torchtitan's device mesh
/// (`pp, dp, cp, tp`, slowest first) and DeepSpeed's `PipeModelDataParallelTopology` (`pipe, data, model`) agree with.
/// torchft runs one launcher for each replica group. MPI and plain programs get the same order by slots.
const ORDERS: [(Framework, RankOrder); 6] = [
    (Framework::Torchrun, RankOrder { fastest_first: GRID, unit_worlds: false }),
    (Framework::Megatron, RankOrder { fastest_first: GRID, unit_worlds: false }),
    (Framework::DeepSpeed, RankOrder { fastest_first: GRID, unit_worlds: false }),
    (Framework::TorchFT, RankOrder { fastest_first: GRID, unit_worlds: true }),
    (Framework::Mpi, RankOrder { fastest_first: GRID, unit_worlds: false }),
    (Framework::Plain, RankOrder { fastest_first: GRID, unit_worlds: false }),
];
const GRID: [Axis; 4] = [Axis::Tensor, Axis::Context, Axis::Data, Axis::Pipeline];

impl RankOrder {
    /// The order of a framework.
    pub fn of(framework: Framework) -> Self {
        let row = ORDERS.iter().find(|(name, _)| *name == framework);
        row.map_or(Self { fastest_first: GRID, unit_worlds: false }, |(_, order)| *order)
    }
}

/// A place in the grid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coordinates {
    /// Position in the tensor group.
    pub tensor: u32,
    /// Position in the context group.
    pub context: u32,
    /// Data-parallel replica, counted over the whole job.
    pub data: u32,
    /// Pipeline stage.
    pub pipeline: u32,
}

impl Coordinates {
    fn get(self, axis: Axis) -> u64 {
        u64::from(match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        })
    }

    fn set(&mut self, axis: Axis, value: u32) {
        *match axis {
            Axis::Tensor => &mut self.tensor,
            Axis::Context => &mut self.context,
            Axis::Data => &mut self.data,
            Axis::Pipeline => &mut self.pipeline,
        } = value;
    }
}

/// The rank function of a job at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    order: RankOrder,
    sizes: Parallelism,
    /// Replicas in one world.
    world_data: u32,
}

impl Layout {
    /// The layout of `sizes.data` replicas, `replicas_per_unit` of them in a unit. Sizes are at least 1.
    pub fn new(framework: Framework, sizes: Parallelism, replicas_per_unit: u32) -> Self {
        let order = RankOrder::of(framework);
        let world_data = if order.unit_worlds { replicas_per_unit } else { sizes.data };
        Self { order, sizes, world_data: world_data.max(1) }
    }

    fn size(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.sizes.tensor,
            Axis::Context => self.sizes.context,
            Axis::Data => self.world_data,
            Axis::Pipeline => self.sizes.pipeline,
        }
    }

    /// Ranks of one world.
    pub fn world_ranks(&self) -> u64 {
        self.sizes.replica_ranks() * u64::from(self.world_data)
    }

    /// Ranks of the whole job.
    pub fn ranks(&self) -> u64 {
        self.sizes.replica_ranks() * u64::from(self.sizes.data)
    }

    /// Number of a rank in the whole job: worlds one after the other, and within each the framework's order.
    pub fn rank(&self, at: Coordinates) -> u64 {
        let world = u64::from(at.data / self.world_data);
        let inside = Coordinates { data: at.data % self.world_data, ..at };
        let (mut rank, mut stride) = (0, 1);
        for axis in self.order.fastest_first {
            rank += inside.get(axis) * stride;
            stride *= u64::from(self.size(axis));
        }
        world * self.world_ranks() + rank
    }

    /// Where a rank is; the inverse of [`Self::rank`].
    pub fn at(&self, rank: u64) -> Coordinates {
        let world = (rank / self.world_ranks()) as u32;
        let mut rest = rank % self.world_ranks();
        let mut at = Coordinates::default();
        for axis in self.order.fastest_first {
            let size = u64::from(self.size(axis));
            at.set(axis, (rest % size) as u32);
            rest /= size;
        }
        at.data += world * self.world_data;
        at
    }

    /// Position of a rank among those of its stage, over all worlds: what expert groups are blocks of.
    pub fn in_stage(&self, at: Coordinates) -> u64 {
        let (mut index, mut stride) = (0, 1);
        for axis in self.order.fastest_first.into_iter().filter(|axis| *axis != Axis::Pipeline) {
            index += at.get(axis) * stride;
            stride *= u64::from(if axis == Axis::Data { self.sizes.data } else { self.size(axis) });
        }
        index
    }

    /// For each replica the first one of its class: replicas are of one class when ranks of theirs share a pod (a
    /// block of `ranks_per_pod` ranks) or an expert group, directly or through others. O(ranks).
    pub fn closure(&self, ranks_per_pod: u32) -> Vec<u32> {
        let mut classes = Classes((0..self.sizes.data).collect());
        let pods = self.ranks().div_ceil(u64::from(ranks_per_pod.max(1)));
        let mut pod_owner: Vec<Option<u32>> = vec![None; pods as usize];
        let group = self.sizes.expert_group_ranks();
        let groups = (self.ranks() / u64::from(self.sizes.pipeline)).div_ceil(group);
        let mut group_owner: Vec<Option<u32>> =
            vec![None; (groups * u64::from(self.sizes.pipeline)) as usize];
        for rank in 0..self.ranks() {
            let at = self.at(rank);
            let pod = (rank / u64::from(ranks_per_pod.max(1))) as usize;
            let expert = (u64::from(at.pipeline) * groups + self.in_stage(at) / group) as usize;
            for owner in [pod_owner.get_mut(pod), group_owner.get_mut(expert)].into_iter().flatten() {
                classes.join(*owner.get_or_insert(at.data), at.data);
            }
        }
        (0..self.sizes.data).map(|replica| classes.first(replica)).collect()
    }
}

/// Disjoint sets; each is named by its smallest member.
struct Classes(Vec<u32>);

impl Classes {
    fn first(&mut self, of: u32) -> u32 {
        let mut at = of as usize;
        while self.0[at] as usize != at {
            let up = self.0[at] as usize;
            self.0[at] = self.0[up];
            at = self.0[at] as usize;
        }
        at as u32
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.first(a), self.first(b));
        self.0[a.max(b) as usize] = a.min(b);
    }
}
