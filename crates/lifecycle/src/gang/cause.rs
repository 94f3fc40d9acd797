//! Why a plan changes: one notion that carries the words, the budget rule and who restarts.

use muster_model::{RecoveryStep, Uid, UnitId};
use std::collections::BTreeSet;

use crate::recovery::About;

/// Why a gang gets another plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It had none.
    First,
    /// Pods or nodes were lost.
    Lost(Lost),
    /// It takes capacity that became free.
    Grow,
    /// It gives units to another gang.
    Give {
        /// UID of the gang that gets them.
        to: Uid,
    },
    /// Units move to make room or to be nearer to each other.
    Move,
    /// Units get a newer template.
    Rollout {
        /// The template's revision.
        revision: String,
    },
    /// The specification asks for another size.
    Resize,
}

/// A loss that was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Units that cannot go on where they are (or at all, where everything restarts).
    pub units: BTreeSet<UnitId>,
    /// What it is called, what happened, whether it counts.
    pub about: About,
    /// Recovery steps that may be taken, in order.
    pub steps: Vec<RecoveryStep>,
}

/// Which pods start anew under the next plan, beside those whose node or world size changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renews {
    /// None: what stays goes on.
    Nothing,
    /// Those of these units.
    Units(BTreeSet<UnitId>),
}

impl Cause {
    /// The status's reason, in one CamelCase word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::First => "Placed",
            Self::Lost(_) => "Recovering",
            Self::Grow => "Growing",
            Self::Give { .. } => "Shrinking",
            Self::Move => "Moving",
            Self::Rollout { .. } => "RollingOut",
            Self::Resize => "Resizing",
        }
    }

    /// What happened, in words; `None` where there is nothing to say beyond the placement itself.
    pub fn message(&self) -> Option<String> {
        Some(match self {
            Self::First => return None,
            Self::Lost(lost) => lost.about.message(),
            Self::Grow => "capacity became free".into(),
            Self::Give { .. } => "it gives units to another gang".into(),
            Self::Move => "units move".into(),
            Self::Rollout { revision } => format!("units get template {revision}"),
            Self::Resize => "the specification asks for another size".into(),
        })
    }

    /// What is counted against the restart budget; `None` where the job is not to blame: everything that Muster itself
    /// decides, and losses that the table of faults does not count.
    pub fn counts_as(&self) -> Option<&'static str> {
        match self {
            Self::Lost(lost) if lost.about.counts => Some(lost.about.cause),
            _ => None,
        }
    }

    /// Which units start anew although they could stay.
    pub fn renews(&self) -> Renews {
        match self {
            Self::Lost(lost) => Renews::Units(lost.units.clone()),
            _ => Renews::Nothing,
        }
    }

    /// Whether users are warned rather than told.
    pub fn warns(&self) -> bool {
        matches!(self, Self::Lost(_))
    }
}
