//! What a watch reports, as data.

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
