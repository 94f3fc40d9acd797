//! What the core wants done, and what came of it. Effects are data; only [`crate::writer`] talks to the API server.

use muster_api::topology::TopologyStatus;
use muster_api::{GangStatus, TrainingJobStatus};
use muster_cluster::{PodFacts, Slot, template};
use muster_model::{ObjectKey, Uid};

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
    /// Write the status of a Topology, if it still has this resourceVersion.
    WriteTopology {
        /// Its name; it has no namespace.
        name: String,
        /// The version that the status was made from.
        version: String,
        /// The whole status.
        status: Box<TopologyStatus>,
    },
    /// Say what happened in an Event object.
    Tell(Box<Note>),
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
    /// A dry run passed; what the pod would have become.
    Probed(Box<template::Facts>),
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
