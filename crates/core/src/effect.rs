//! What the core wants done, and what came of it. Effects are data; only the writer of the controllers crate talks to the API server.

use muster_api::{GangStatus, TrainingJobStatus};
use muster_cluster::template::Learned;
use muster_cluster::{PodFacts, Slot};
use muster_model::{ObjectKey, Reason, Uid};

/// One request to the API server.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Create a pod of a gang.
    CreatePod {
        /// The gang.
        gang: ObjectKey,
        /// Which pod.
        slot: Slot,
        /// Namespace and name of the pod.
        pod: ObjectKey,
        /// The whole object as JSON.
        body: Vec<u8>,
    },
    /// Ask the API server what it would make of a pod, creating nothing.
    ProbePod {
        /// The gang that waits for the answer.
        gang: ObjectKey,
        /// Key of the answer in the core's memory.
        shape: u64,
        /// Namespace of the pod.
        namespace: String,
        /// The whole object as JSON.
        body: Vec<u8>,
    },
    /// Delete a pod, if it still has this UID.
    DeletePod {
        /// Which.
        pod: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// At once, without waiting for a kubelet: only where the node is gone.
        force: bool,
    },
    /// Take our finalizer off a pod, if it still has this UID.
    ReleasePod {
        /// Which.
        pod: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// The finalizers that stay.
        keep: Vec<String>,
    },
    /// Write a gang's status, if it still has this resourceVersion.
    WriteGang {
        /// Which.
        gang: ObjectKey,
        /// The version that the status was made from.
        version: String,
        /// The whole status.
        status: Box<GangStatus>,
        /// Objects that carry parts of a large plan; written first.
        chunks: Vec<serde_json::Value>,
    },
    /// Create or change an object of ours (Gang, Service, ConfigMap) by merge patch; created when absent.
    Ensure {
        /// What.
        object: Owned,
        /// Whether it is known to exist.
        exists: bool,
    },
    /// Delete an object of ours, if it still has this UID.
    DeleteOwned {
        /// Which kind.
        kind: OwnedKind,
        /// Which.
        key: ObjectKey,
        /// Its UID.
        uid: Uid,
    },
    /// Take our finalizer off a gang.
    ReleaseGang {
        /// Which.
        gang: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// The finalizers that stay.
        keep: Vec<String>,
    },
    /// Write a job's status, if it still has this resourceVersion.
    WriteJob {
        /// Which.
        job: ObjectKey,
        /// The version that the status was made from.
        version: String,
        /// The whole status.
        status: Box<TrainingJobStatus>,
    },
    /// Write the status of an object of the cluster, if it still has this resourceVersion.
    Report {
        /// Which kind.
        kind: Reported,
        /// Its name; it has no namespace.
        name: String,
        /// The version that the status was made from.
        version: String,
        /// The whole status.
        status: Box<serde_json::Value>,
    },
    /// Say what happened in an Event object.
    Tell(Box<Note>),
}

/// The kinds of objects whose status is counted from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reported {
    /// Topology.
    Topology,
    /// AcceleratorClass.
    Class,
    /// Queue.
    Queue,
}

impl Reported {
    /// Path of the collection.
    pub fn path(self) -> &'static str {
        match self {
            Self::Topology => "/apis/muster.dev/v1alpha1/topologies",
            Self::Class => "/apis/muster.dev/v1alpha1/acceleratorclasses",
            Self::Queue => "/apis/muster.dev/v1alpha1/queues",
        }
    }
}

/// The kinds of objects that we create beside pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnedKind {
    /// Gang.
    Gang,
    /// TrainingJob (only deleted, after its time to live).
    Job,
    /// Service.
    Service,
    /// ConfigMap.
    ConfigMap,
}

impl OwnedKind {
    /// Path of the collection in a namespace.
    pub fn path(self, namespace: &str) -> String {
        match self {
            Self::Gang => format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/gangs"),
            Self::Job => format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/trainingjobs"),
            Self::Service => format!("/api/v1/namespaces/{namespace}/services"),
            Self::ConfigMap => format!("/api/v1/namespaces/{namespace}/configmaps"),
        }
    }
}

/// An object of ours.
#[derive(Clone, Debug)]
pub struct Owned {
    /// Kind.
    pub kind: OwnedKind,
    /// Namespace and name.
    pub key: ObjectKey,
    /// The gang or job that waits for it.
    pub waiter: ObjectKey,
    /// The whole object as JSON.
    pub body: serde_json::Value,
}

/// An event: a sentence about an object.
#[derive(Clone, Debug)]
pub struct Note {
    /// Kind of the object.
    pub kind: &'static str,
    /// Namespace and name of the object.
    pub about: ObjectKey,
    /// UID of the object.
    pub uid: Uid,
    /// CamelCase reason.
    pub reason: String,
    /// The sentence.
    pub message: String,
    /// Whether it is a warning.
    pub warning: bool,
}

/// What a pod of a role would be.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// What it asks of nodes.
    pub learned: Learned,
    /// How far its volumes are known.
    pub claims: Claims,
    /// A claim that keeps it from starting.
    pub problem: Option<Reason>,
}

/// Whether what was found of a pod's volumes may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Claims {
    /// It has none behind which a claim stands.
    #[default]
    None,
    /// All are bound.
    Bound,
    /// Some are bound when pods that use them are placed.
    Unbound,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Done. The object's new resourceVersion and UID where there is one.
    Done {
        /// resourceVersion.
        version: Option<String>,
        /// UID.
        uid: Option<Uid>,
    },
    /// A pod of that name exists.
    Exists(Box<PodFacts>),
    /// A dry run passed; what the pod would have become, and where its volumes are.
    Probed(Box<Probe>),
    /// The object is not there, or it is another one of the same name.
    Gone,
    /// It has changed meanwhile.
    Conflict,
    /// The API server will not have it, however often it is tried: quota, limits, Pod Security, a webhook, validation.
    Refused(String),
    /// It may work later: no answer, too many requests, a server error. Whether it was done is not known.
    Transient(String),
    /// The epoch is not the current one: another leader is at work.
    Fenced,
}
