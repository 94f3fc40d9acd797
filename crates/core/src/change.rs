//! What the watches report, as data.

use k8s_openapi::api::core::v1::{ConfigMap, LimitRange, ResourceQuota, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::core::PartialObjectMeta;
use muster_api::{AcceleratorClass, Gang, GangPlan, Queue, Topology, TrainingJob};
use muster_cluster::seen::{SeenNode, SeenPod};
use muster_model::{ObjectKey, Uid};

/// What happened to an object of a kind.
#[derive(Debug)]
pub enum Change<K> {
    /// It is there, new or changed.
    Set(K),
    /// It is gone.
    Gone(ObjectKey, Uid),
    /// It is there, new or changed, and cannot be read: of a newer version than this program, or with a value that
    /// the types have no room for. What was known of it is what is known. Becomes `Set` or `Gone` later.
    Unreadable {
        /// Namespace and name.
        key: ObjectKey,
        /// UID.
        uid: Uid,
        /// resourceVersion.
        version: String,
        /// The path of the field where that is known, and what is wrong with it. At most 300 bytes of one line.
        error: String,
    },
    /// A list has ended: everything that existed at this resourceVersion has been `Set` or is unreadable, and what was
    /// known and is not there has been reported gone. Comes with the first list and with each later one.
    Relisted {
        /// resourceVersion of the list.
        version: String,
    },
    /// All that existed when the watch began has been reported. Sent once.
    Synced,
}

/// An object of which only the metadata matters.
pub type Partial<K> = PartialObjectMeta<K>;

/// Something that a watch reported.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an event is moved once, from the watch into the core")]
pub enum Event {
    /// A Node.
    Node(Change<SeenNode>),
    /// A Pod.
    Pod(Change<SeenPod>),
    /// A Gang.
    Gang(Change<Gang>),
    /// A TrainingJob.
    Job(Change<TrainingJob>),
    /// A Queue.
    Queue(Change<Queue>),
    /// A Topology.
    Topology(Change<Topology>),
    /// An AcceleratorClass.
    Class(Change<AcceleratorClass>),
    /// A PriorityClass.
    Priority(Change<PriorityClass>),
    /// A ResourceQuota.
    Quota(Change<ResourceQuota>),
    /// A Service of ours.
    Service(Change<Partial<Service>>),
    /// A ConfigMap of ours.
    ConfigMap(Change<Partial<ConfigMap>>),
    /// A part of a large plan.
    Part(Change<GangPlan>),
    /// A LimitRange: admission may make something else of pods of its namespace.
    Limits(Change<Partial<LimitRange>>),
    /// A RuntimeClass: admission may make something else of pods that name it.
    Runtime(Change<Partial<RuntimeClass>>),
}

impl Event {
    /// Whether it says that a watch has delivered what there was.
    pub fn synced(&self) -> bool {
        matches!(
            self,
            Self::Node(Change::Synced)
                | Self::Pod(Change::Synced)
                | Self::Gang(Change::Synced)
                | Self::Job(Change::Synced)
                | Self::Queue(Change::Synced)
                | Self::Topology(Change::Synced)
                | Self::Class(Change::Synced)
                | Self::Priority(Change::Synced)
                | Self::Quota(Change::Synced)
                | Self::Service(Change::Synced)
                | Self::ConfigMap(Change::Synced)
                | Self::Part(Change::Synced)
                | Self::Limits(Change::Synced)
                | Self::Runtime(Change::Synced)
        )
    }
}
