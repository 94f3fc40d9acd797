//! Conditions: one pure function merges them.
//!
//! ```text
//!   old conditions + what is true now + the time ──merge──▶ new conditions; equal to the old when nothing changed
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition type: the specification makes sense, given the other objects of the cluster.
pub const VALID: &str = "Valid";
/// Condition type: a plan is in force.
pub const PLACED: &str = "Placed";
/// Condition type: all pods of the plan run.
pub const RUNNING: &str = "Running";
/// Condition type: it has succeeded or failed.
pub const FINISHED: &str = "Finished";
/// Condition type: an object is ready to be used.
pub const READY: &str = "Ready";

/// What is true of one condition now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Now {
    /// Condition type.
    pub type_: String,
    /// `Some(true)` is True, `Some(false)` is False, `None` is Unknown.
    pub status: Option<bool>,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl Now {
    /// True, with a reason.
    pub fn yes(type_: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { type_: type_.into(), status: Some(true), reason: reason.into(), message: message.into() }
    }

    /// False, with a reason.
    pub fn no(type_: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { status: Some(false), ..Self::yes(type_, reason, message) }
    }

    /// Unknown, with a reason.
    pub fn unknown(type_: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { status: None, ..Self::yes(type_, reason, message) }
    }
}

/// The text of a condition's status.
fn status_text(status: Option<bool>) -> &'static str {
    match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    }
}

/// Puts `changes` into `conditions` and keeps the others. `lastTransitionTime` moves to `now` only when the status
/// changes; when nothing changes, the result equals `conditions`, so that nothing need be written.
/// `generation` is the `metadata.generation` that the changes were judged from.
#[must_use]
pub fn merge(
    conditions: &[Condition],
    changes: &[Now],
    generation: Option<i64>,
    now: &Time,
) -> Vec<Condition> {
    let mut merged = conditions.to_vec();
    for (at, change) in changes.iter().enumerate() {
        // The last word on a type is the one that holds; an earlier one would make it look as if it had just changed.
        if changes[at + 1..].iter().any(|later| later.type_ == change.type_) {
            continue;
        }
        let status = status_text(change.status);
        let old = merged.iter().position(|condition| condition.type_ == change.type_);
        let since = old
            .map(|at| &merged[at])
            .filter(|condition| condition.status == status)
            .map_or_else(|| now.clone(), |condition| condition.last_transition_time.clone());
        let condition = Condition {
            type_: change.type_.clone(),
            status: status.to_owned(),
            reason: change.reason.clone(),
            message: change.message.clone(),
            observed_generation: generation,
            last_transition_time: since,
        };
        match old {
            Some(at) => merged[at] = condition,
            None => merged.push(condition),
        }
    }
    merged
}

/// The condition of a type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of a type is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}
