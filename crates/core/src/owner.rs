//! What controls a gang.

use muster_api::Gang;
use muster_model::{ObjectKey, Uid};

use crate::want::Kind;

/// The object that controls a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: Kind,
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: Uid,
}

impl Owner {
    /// From the gang's owner references; `None` where no workload of ours controls it.
    pub fn of(object: &Gang) -> Option<Self> {
        let owner = crate::controller_of(&object.metadata)?;
        let kind = (owner.kind == Kind::Job.name() && owner.api_version.starts_with("muster.dev/"))
            .then_some(Kind::Job)?;
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        Some(Self { kind, key: ObjectKey::new(namespace, owner.name.clone()), uid: Uid(owner.uid.clone()) })
    }
}
