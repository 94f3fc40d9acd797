//! A gang with everything that is looked up once: its rules in the solver's terms and its shapes in the index.
//!
//! ```text
//!   Gang ──spec::compile──▶ Spec ──per class──▶ shapes and chains of the index ──▶ Prepared (kept until it is void)
//! ```

use muster_model::{AcceleratorClass, Gang, Reason};

use crate::{
    chain::ChainKey,
    cluster::Cluster,
    forest,
    greedy::Short,
    index::{ChainId, ShapeId, ShapeKey},
    rules::Limits,
    spec::{self, Objective, RoleSpec, Spec},
    tree::{DomainId, ROOT, Tree},
};

/// Where a role's counts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleIds {
    /// Pods that fit.
    pub shape: ShapeId,
    /// Blocks by Required rules.
    pub loose: ChainId,
    /// Blocks if Preferred rules bound as well.
    pub strict: ChainId,
}

/// A gang on one of its classes.
#[derive(Clone, Debug)]
pub struct OnClass {
    /// Position among the gang's classes; `None` for a gang without devices.
    pub class: Option<usize>,
    /// The rules, with what a pod asks on this class.
    pub spec: Spec,
    /// One entry per role.
    pub ids: Vec<RoleIds>,
}

/// A gang ready to be solved.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The index's generation: ids of another are void.
    pub generation: u64,
    /// One entry per class, in the gang's order.
    pub classes: Vec<OnClass>,
}

/// Checks a gang and looks its shapes up.
///
/// # Errors
/// [`Reason::Invalid`].
pub fn prepare(cluster: &mut Cluster, gang: &Gang, order: Option<&[Objective]>) -> Result<Prepared, Reason> {
    let spec = spec::compile(&cluster.tree, gang, order)?;
    let with_devices = gang.roles.iter().any(|role| role.devices > 0);
    let classes: Vec<Option<usize>> =
        if with_devices { (0..gang.classes.len()).map(Some).collect() } else { vec![None] };
    let on = |cluster: &mut Cluster, class: Option<usize>| {
        let mut spec = spec.clone();
        let accelerator = class.map(|class| &gang.classes[class]);
        let mut ids = Vec::with_capacity(gang.roles.len());
        for (role, of) in spec.roles.iter_mut().zip(&gang.roles) {
            role.request = cluster.amounts(&of.pod_requests(accelerator));
            let repelled_by = cluster.repelling(&gang.key.namespace, &of.traits.labels);
            let of_class = accelerator.map(|class| (cluster.column(&class.resource), class));
            let key = ShapeKey::new(of, of_class, role.request.clone(), repelled_by);
            let shape = cluster.shape(&key);
            let loose = cluster.chain(&chain_key(&cluster.tree, shape, role, false));
            let strict = cluster.chain(&chain_key(&cluster.tree, shape, role, true));
            ids.push(RoleIds { shape, loose, strict });
        }
        OnClass { class, spec, ids }
    };
    cluster.index.prune();
    let classes = classes.into_iter().map(|class| on(cluster, class)).collect();
    Ok(Prepared { generation: cluster.index.generation, classes })
}

fn chain_key(tree: &Tree, shape: ShapeId, role: &RoleSpec, strict: bool) -> ChainKey {
    let leaf = tree.leaf_depth();
    let sizes = forest::block_sizes(role, leaf, strict);
    let ratios = (0..=leaf).map(|depth| forest::ratio(&sizes, depth) as u32).collect();
    ChainKey { shape, chunk: sizes[leaf + 1] as u32, ratios }
}

/// A gang on a class, to be placed inside one domain.
#[derive(Clone, Copy)]
pub struct Problem<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The gang.
    pub gang: &'a Gang,
    /// Rules and counts.
    pub on: &'a OnClass,
    /// Everything lies inside this domain.
    pub top: DomainId,
    /// What units that stay where they are leave of the rules between roles and units.
    pub limits: &'a Limits,
}

impl<'a> Problem<'a> {
    /// The class.
    pub fn class(&self) -> Option<&'a AcceleratorClass> {
        self.on.class.map(|class| &self.gang.classes[class])
    }

    /// Domains of which one must hold the whole gang: the top, or those of the level of `within` inside it.
    pub fn tops(&self) -> Vec<DomainId> {
        let tree = &self.cluster.tree;
        let within = self.on.spec.within.min(tree.leaf_depth());
        if tree.domain(self.top).depth >= within {
            return vec![self.top];
        }
        tree.at_depth(within).iter().copied().filter(|id| self.is_inside(*id)).collect()
    }

    /// Whether a domain lies inside the top.
    pub fn is_inside(&self, id: DomainId) -> bool {
        self.top == ROOT || self.cluster.tree.ancestors(id).any(|outer| outer == self.top)
    }

    /// Units of a role alone that fit the best allowed domain, by Required rules; now or empty.
    pub fn units_alone(&self, role: usize, empty: bool) -> u32 {
        let of = &self.on.spec.roles[role];
        let tops = self.tops();
        let depth = tops.first().map_or(0, |top| self.cluster.tree.domain(*top).depth);
        let sizes = forest::block_sizes(of, self.cluster.tree.leaf_depth(), false);
        let raw = |top: &DomainId| self.cluster.index.raw(self.on.ids[role].loose, *top, empty);
        // Floors keep the order of what they are taken of: the domain that most comes up to is the best.
        let most = u64::from(tops.iter().map(raw).max().unwrap_or(0));
        let pods = most / forest::ratio(&sizes, depth) * sizes[depth];
        u32::try_from(pods / u64::from(of.pods)).unwrap_or(u32::MAX)
    }

    /// The first role of which even alone fewer than the minimum (at least one, if it is the only role) fit.
    pub fn short_alone(&self) -> Option<(usize, u32)> {
        let roles = &self.on.spec.roles;
        (0..roles.len()).find_map(|role| {
            let fits = self.units_alone(role, false);
            (fits < roles[role].min().max(u32::from(roles.len() == 1))).then_some((role, fits))
        })
    }

    /// Whether each pod of a role takes the room of at least one pod of another (or of itself): it goes to the same nodes
    /// and asks for no less.
    fn takes(&self, role: usize, other: usize) -> bool {
        let (index, ids, roles) = (&self.cluster.index, &self.on.ids, &self.on.spec.roles);
        // Counts that are capped would say too little.
        index.largest(ids[other].shape) < crate::MAX_PODS_PER_NODE as u16
            && index.same_nodes(ids[role].shape, ids[other].shape)
            && roles[other].request.iter().all(|(column, amount)| roles[role].asks(*column) >= *amount)
    }

    /// Roles of which each fits alone, and together they certainly do not: the one whose room is too small for its minimum
    /// beside those of others that need the same room, where least is missing.
    pub fn short_together(&self) -> Option<Short> {
        let roles = &self.on.spec.roles;
        let all = || 0..roles.len();
        if roles.len() < 2 {
            return None;
        }
        let wanted: Vec<u64> =
            roles.iter().map(|role| u64::from(role.min()) * u64::from(role.pods)).collect();
        // By role: pods wanted of all roles that need its room.
        let together =
            |role: usize| all().filter(|other| self.takes(*other, role)).map(|other| wanted[other]).sum();
        let together: Vec<u64> = all().map(together).collect();
        let mut least: Option<(u64, Short)> = None;
        for top in self.tops() {
            let missing = |role: usize| {
                let room = u64::from(self.cluster.index.count(self.on.ids[role].shape, top, false));
                let missing = together[role].saturating_sub(room);
                (missing > 0).then(|| {
                    let left = room.saturating_sub(together[role] - wanted[role]);
                    (missing, Short { role, fits: (left / u64::from(roles[role].pods)) as u32, tried: 0 })
                })
            };
            let (missing, short) = all().filter_map(missing).max_by_key(|(missing, _)| *missing)?;
            if least.as_ref().is_none_or(|(known, _)| missing < *known) {
                least = Some((missing, short));
            }
        }
        least.map(|(_, short)| short)
    }
}
