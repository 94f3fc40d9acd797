//! What the pods of a gang are told: the lifecycle crate's tables, fed from the gang and its plan.

use muster_api::{Framework as ApiFramework, Gang as Object, RoleSpec, names};
use muster_cluster::Slot;
use muster_lifecycle::launch::{self, Addresses, Framework, Launch, Names, PodAt, World};
use muster_lifecycle::parallelism::Parallelism;
use muster_model::{ObjectKey, Plan, Uid, UnitId};

/// Where the hostfile is mounted.
pub const HOSTFILE_DIR: &str = "/etc/muster/hosts";

/// A framework in the lifecycle crate's terms.
pub fn framework(framework: ApiFramework) -> Framework {
    match framework {
        ApiFramework::Torchrun => Framework::Torchrun,
        ApiFramework::Megatron => Framework::Megatron,
        ApiFramework::DeepSpeed => Framework::DeepSpeed,
        ApiFramework::TorchFT => Framework::TorchFT,
        ApiFramework::Mpi => Framework::Mpi,
        // A plan of a newer version: its pods are left as they are, new ones are refused (see `World::request`).
        ApiFramework::Plain | ApiFramework::Unknown(_) => Framework::Plain,
    }
}

/// The axes of parallelism in the lifecycle crate's terms.
pub fn parallelism(axes: &muster_api::Parallelism) -> Parallelism {
    Parallelism {
        tensor: axes.tensor,
        pipeline: axes.pipeline,
        context: axes.context,
        expert: axes.expert,
        expert_tensor: axes.expert_tensor(),
        data: axes.data,
    }
}

/// How a gang's pods are launched.
#[derive(Debug)]
pub struct Launcher {
    launch: Launch,
    /// Names that the framework needs.
    pub names: Names,
    key: ObjectKey,
    uid: Uid,
    role: String,
}

impl Launcher {
    /// The launcher of a role of a gang; each role counts its own ranks.
    pub fn of(object: &Object, role: Option<&RoleSpec>) -> Self {
        let spec = &object.spec.launch;
        let framework = framework(spec.framework);
        let meta = &object.metadata;
        let key =
            ObjectKey::new(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        Self {
            launch: Launch {
                job: key.name.clone(),
                framework,
                parallelism: parallelism(&spec.parallelism),
                replicas_per_unit: spec.replicas_per_unit,
                pods_per_unit: role.map_or(1, |role| role.pods_per_unit),
                pods_per_stage: spec.pods_per_stage,
                ranks_per_pod: role.map_or(1, |role| role.devices.max(1)),
                port: spec.port,
            },
            names: launch::names(framework),
            uid: Uid(meta.uid.clone().unwrap_or_default()),
            role: role.map(|role| role.name.clone()).unwrap_or_default(),
            key,
        }
    }

    /// What a plan tells all pods of a role.
    pub fn world(plan: &Plan, role: &str, checkpoint_step: Option<i64>) -> World {
        World { units: plan.count(role), generation: plan.generation, checkpoint_step }
    }

    /// The environment of a pod under a plan.
    pub fn environment(
        &self,
        world: &World,
        slot: &Slot,
        host: impl Fn(&Slot) -> String,
    ) -> Vec<(String, String)> {
        let at = PodAt { unit: slot.unit.index, incarnation: slot.incarnation, index: slot.index };
        let hosts = names::hosts_service(&self.key.name, &self.uid);
        let leader = Slot { index: 0, ..slot.clone() };
        let addresses = Addresses {
            rank0: format!("{}.{}.svc", names::rank0_service(&self.key.name, &self.uid), self.key.namespace),
            leader: format!("{}.{hosts}.{}.svc", host(&leader), self.key.namespace),
            lighthouse: None,
            hostfile: if self.names.hostfile { format!("{HOSTFILE_DIR}/hostfile") } else { String::new() },
        };
        launch::environment(&self.launch, world, at, &addresses)
    }

    /// The hostfile under a plan: one line a pod, in node-rank order.
    pub fn hostfile(&self, plan: &Plan, host: impl Fn(&Slot) -> String) -> String {
        let hosts = names::hosts_service(&self.key.name, &self.uid);
        launch::hostfile(&self.launch, plan.count(&self.role), |unit, index| {
            let unit = UnitId { role: self.role.clone(), index: unit };
            let incarnation = plan.unit(&unit).map_or(0, |unit| unit.incarnation);
            format!("{}.{hosts}.{}.svc", host(&Slot { unit, incarnation, index }), self.key.namespace)
        })
    }
}
