//! What the core is told once, and what it counts.

use muster_model::Millis;
use std::collections::BTreeMap;

use crate::Limits;
use muster_lifecycle::gang::Patience;
use muster_lifecycle::nodes;

/// How patient the operator is.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long pods may take to start.
    pub patience: Patience,
    /// How long nodes may be silent or not ready before what runs there counts as lost.
    pub nodes: nodes::Config,
    /// How long the other pods of a gang may go on after its outcome is decided.
    pub drain: Millis,
    /// Least time between two status writes that only report progress.
    pub progress_every: Millis,
    /// A plan of more bytes goes into parts of its own.
    pub inline_plan: usize,
    /// Bounds on requests under way.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            patience: Patience::default(),
            nodes: nodes::Config::default(),
            drain: 30_000,
            progress_every: 2_000,
            inline_plan: muster_api::plan_codec::MAX_INLINE,
            limits: Limits::default(),
        }
    }
}

/// Counters for metrics; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Plans committed.
    pub placed: u64,
    /// Refusals by reason code, counted when the reason of a gang changes.
    pub refused: BTreeMap<&'static str, u64>,
    /// Pods created.
    pub pods_created: u64,
    /// Restarts by cause.
    pub restarts: BTreeMap<String, u64>,
    /// Plans that could not be carried out: a pod refused or not started.
    pub plans_failed: u64,
    /// Gangs over which the operator failed: faults of ours.
    pub tripped: u64,
    /// Microseconds are not counted here: the core has no clock. Decisions asked of the engine.
    pub decisions: u64,
}
