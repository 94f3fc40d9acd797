//! A status that a gang should have, and its way to the server.

use muster_api::GangStatus;
use muster_model::{Millis, Plan, Reason};

use crate::want::Class;

/// So long a server may be at work on a request whose client has given up: its `--request-timeout`.
const SERVER_LIMIT: Millis = 60_000;

/// A status to be written.
#[derive(Debug)]
pub struct Change {
    /// The whole status.
    pub status: GangStatus,
    /// The plan that it holds.
    pub plan: Result<Option<Plan>, String>,
    /// Nothing may be done to pods before it is committed. Otherwise it only reports.
    pub urgent: bool,
    /// Whose turn its request is.
    pub class: Class,
    /// What to tell the user when it is committed: reason, sentence, warning.
    pub note: Option<(String, String, bool)>,
    /// The plan that it takes back could not be carried out, why, and before which time it is not placed again.
    pub failed: Option<(Reason, Option<Millis>)>,
}

/// Whether something is to be said.
pub enum Speaks {
    /// This.
    Now(Box<Change>),
    /// Not before a time.
    Later(Millis),
    /// Nothing new.
    Not,
}

/// A status that is being written: under way until it is known to be on the server, or that it never will be.
#[derive(Debug)]
pub struct Writing {
    /// The object's version that it was made from. The server takes it only while the object has that version.
    pub version: String,
    /// What is written.
    pub change: Change,
    /// It puts another plan in force.
    pub places: bool,
    /// When an attempt got no answer last: the server may have done it, or be about to.
    pub unsure: Option<Millis>,
    /// Why the server refuses it, after an attempt without an answer.
    pub refused: String,
}

impl Writing {
    /// Whether an attempt without an answer may be done yet, though the object has this version still.
    pub fn may_come(&self, version: &str, now: Millis) -> bool {
        version == self.version && self.unsure.is_some_and(|at| at.saturating_add(SERVER_LIMIT) > now)
    }
}
