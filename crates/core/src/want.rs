//! What the core wants of the API server, and what came of it. Wants are data; only the writer of the controllers crate
//! talks to the API server.
//!
//! ```text
//!   Want ──target──▶ which part of which object: one request at a time each, the newest want wins (crate::desk)
//!        └─class───▶ whose turn it is among all that waits
//! ```

use muster_api::{GangStatus, TrainingJobStatus};
use muster_cluster::PodFacts;
use muster_cluster::template::Learned;
use muster_model::{ObjectKey, Reason, Slot, Uid};
use serde_json::Value;

/// The kinds of objects that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Gang.
    Gang,
    /// TrainingJob.
    Job,
    /// Pod.
    Pod,
    /// Service.
    Service,
    /// ConfigMap.
    ConfigMap,
    /// GangPlan: a part of a large plan.
    Part,
    /// Topology.
    Topology,
    /// AcceleratorClass.
    Class,
    /// Queue.
    Queue,
    /// Event.
    Event,
}

impl Kind {
    /// Path of the collection; `namespace` is empty for kinds without one.
    pub fn path(self, namespace: &str) -> String {
        match self {
            Self::Gang => format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/gangs"),
            Self::Job => format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/trainingjobs"),
            Self::Part => format!("/apis/muster.dev/v1alpha1/namespaces/{namespace}/gangplans"),
            Self::Pod => format!("/api/v1/namespaces/{namespace}/pods"),
            Self::Service => format!("/api/v1/namespaces/{namespace}/services"),
            Self::ConfigMap => format!("/api/v1/namespaces/{namespace}/configmaps"),
            Self::Event => format!("/api/v1/namespaces/{namespace}/events"),
            Self::Topology => "/apis/muster.dev/v1alpha1/topologies".into(),
            Self::Class => "/apis/muster.dev/v1alpha1/acceleratorclasses".into(),
            Self::Queue => "/apis/muster.dev/v1alpha1/queues".into(),
        }
    }

    /// Its name in messages and object references.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gang => "Gang",
            Self::Job => "TrainingJob",
            Self::Part => "GangPlan",
            Self::Pod => "Pod",
            Self::Service => "Service",
            Self::ConfigMap => "ConfigMap",
            Self::Event => "Event",
            Self::Topology => "Topology",
            Self::Class => "AcceleratorClass",
            Self::Queue => "Queue",
        }
    }
}

/// Which part of an object a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Facet {
    /// The object itself: that it exists, its specification.
    Object,
    /// Its status.
    Status,
    /// Its end: deletion, our finalizer.
    End,
    /// What the server would make of it: a dry run.
    Probe,
    /// How it is now: a read.
    Read,
}

/// What a request is about: there is one at a time for each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Kind of the object.
    pub kind: Kind,
    /// Which part.
    pub facet: Facet,
    /// Namespace and name; for a dry run namespace and key of the shape.
    pub key: ObjectKey,
}

impl Target {
    /// Before all targets of a kind.
    pub fn first(kind: Kind) -> Self {
        Self { kind, facet: Facet::Object, key: ObjectKey::new(String::new(), String::new()) }
    }
}

/// Whose turn it is: each class has its own bound, so that a storm of one never holds up another; where they compete,
/// the first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Plans, and what gives capacity back.
    Commit,
    /// Plans after a loss.
    Recovery,
    /// What a plan in force needs: Services, hostfiles, pods; Gangs of workloads.
    Create,
    /// Deletions, finalizers.
    Delete,
    /// Statuses that only report.
    Report,
    /// Dry runs and reads.
    Probe,
    /// Events.
    Event,
}

impl Class {
    /// The class that a gang's status belongs to: whether something waits for it, and whether that is after a loss.
    pub fn of_status(urgent: bool, recovers: bool) -> Self {
        match (urgent, recovers) {
            (false, _) => Self::Report,
            (true, true) => Self::Recovery,
            (true, false) => Self::Commit,
        }
    }

    /// All, in order.
    pub const ALL: [Self; 7] =
        [Self::Commit, Self::Recovery, Self::Create, Self::Delete, Self::Report, Self::Probe, Self::Event];
}

/// The object as it was observed: the request holds only for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// UID.
    pub uid: Uid,
    /// resourceVersion.
    pub version: String,
}

/// An object that belongs to another: a Gang to its workload, a Service to its gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Kind.
    pub kind: Kind,
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID of the object that controls it.
    pub owner: Uid,
    /// How it was observed; `None`: it is not there.
    pub base: Option<Base>,
    /// The whole object, to create it.
    pub body: Value,
    /// Operations of a JSON patch, to bring it up to date.
    pub patch: Value,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
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
    /// Let a pod end, if it still has this UID.
    EndPod {
        /// Which.
        pod: ObjectKey,
        /// Its UID.
        uid: Uid,
        /// Delete it; `Some(true)`: at once, without waiting for a kubelet, only where the node is gone.
        delete: Option<bool>,
        /// Position of our finalizer, to take it off.
        release: Option<usize>,
    },
    /// Ask the API server what it would make of a pod, creating nothing.
    Probe {
        /// Namespace of the pod.
        namespace: String,
        /// Key of the answer in the core's memory.
        shape: String,
        /// The whole object as JSON.
        body: Vec<u8>,
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
        parts: Vec<Value>,
        /// What hangs on it.
        class: Class,
    },
    /// Read a gang: whether a status that is refused had been written after all.
    ReadGang {
        /// Which.
        gang: ObjectKey,
    },
    /// Create an object of ours, or bring it up to date.
    Apply(Box<Child>),
    /// Delete an object of ours, if it still has this UID.
    Delete {
        /// Its kind.
        kind: Kind,
        /// Which.
        key: ObjectKey,
        /// Its UID.
        uid: Uid,
    },
    /// Put our finalizer on a gang, or take it off.
    Guard {
        /// Which.
        gang: ObjectKey,
        /// How it was observed.
        base: Base,
        /// Operations of a JSON patch.
        patch: Value,
        /// It is taken off.
        off: bool,
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
    /// Write the status of an object whose type could not be read or that is counted from others, if it still has this
    /// resourceVersion.
    Report {
        /// Its kind.
        kind: Kind,
        /// Which.
        key: ObjectKey,
        /// The version that the status was made from.
        version: String,
        /// The whole status.
        status: Box<Value>,
    },
    /// Say on an object that cannot be read that this is so, leaving the rest of its status, if it still has this
    /// resourceVersion.
    Remark {
        /// Its kind.
        kind: Kind,
        /// Which.
        key: ObjectKey,
        /// The version that was found unreadable.
        version: String,
        /// Epoch of the term.
        epoch: i64,
        /// The sentence.
        message: String,
    },
    /// Say what happened in an Event object.
    Tell(Box<Note>),
}

impl Want {
    /// What it is about.
    pub fn target(&self) -> Target {
        let of = |kind, facet, key: &ObjectKey| Target { kind, facet, key: key.clone() };
        match self {
            Self::CreatePod { pod, .. } => of(Kind::Pod, Facet::Object, pod),
            Self::EndPod { pod, .. } => of(Kind::Pod, Facet::End, pod),
            Self::Probe { namespace, shape, .. } => {
                of(Kind::Pod, Facet::Probe, &ObjectKey::new(namespace.clone(), shape.clone()))
            }
            Self::WriteGang { gang, .. } => of(Kind::Gang, Facet::Status, gang),
            Self::ReadGang { gang } => of(Kind::Gang, Facet::Read, gang),
            Self::Apply(child) => of(child.kind, Facet::Object, &child.key),
            Self::Delete { kind, key, .. } => of(*kind, Facet::End, key),
            Self::Guard { gang, .. } => of(Kind::Gang, Facet::End, gang),
            Self::WriteJob { job, .. } => of(Kind::Job, Facet::Status, job),
            Self::Report { kind, key, .. } | Self::Remark { kind, key, .. } => of(*kind, Facet::Status, key),
            Self::Tell(note) => of(
                Kind::Event,
                Facet::Object,
                &ObjectKey::new(note.about.namespace.clone(), format!("{}/{}", note.about.name, note.number)),
            ),
        }
    }

    /// Whether what is asked of an object is asked by this as well. A pod is deleted and then let go: that it leaves and
    /// still has our finalizer is seen in between.
    pub fn includes(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::EndPod { pod, uid, delete, release },
                Self::EndPod { pod: its, uid: others, delete: None, release: again },
            ) if delete.is_some() => (pod, uid) == (its, others) && (again.is_none() || again == release),
            _ => self == other,
        }
    }

    /// Whose turn it is.
    pub fn class(&self) -> Class {
        match self {
            Self::WriteGang { class, .. } => *class,
            Self::CreatePod { .. } | Self::Apply(_) | Self::Guard { off: false, .. } => Class::Create,
            Self::EndPod { .. } | Self::Delete { .. } | Self::Guard { .. } => Class::Delete,
            Self::WriteJob { .. } | Self::Report { .. } | Self::Remark { .. } => Class::Report,
            Self::Probe { .. } | Self::ReadGang { .. } => Class::Probe,
            Self::Tell(_) => Class::Event,
        }
    }
}

/// An event: a sentence about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Note {
    /// Kind of the object.
    pub kind: Kind,
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
    /// Counts the notes of a term: each is an object of its own.
    pub number: u64,
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
    /// An object of that name exists and belongs to somebody else: whose it is, in words.
    Foreign(String),
    /// A dry run passed; what the pod would have become, and where its volumes are.
    Probed(Box<Probe>),
    /// The gang as it is.
    Gang(Box<muster_api::Gang>),
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
