//! What a watch reports, as data.

use muster_model::{ObjectKey, Uid};

/// What happened to an object of a kind.
#[derive(Debug)]
pub enum Change<K> {
    /// It is there, new or changed.
    Set(K),
    /// It is gone.
    Gone(ObjectKey, Uid),
    /// All that existed when the watch began has been reported. Sent once.
    Synced,
}
