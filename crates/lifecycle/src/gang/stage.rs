//! What a gang's stage knows. A stage owns its data: when the gang leaves the stage, it is gone.

use muster_model::{Millis, NodeName, Plan, Reason};
use std::collections::BTreeMap;

use super::cause::{Cause, Lost};
use super::slots::Slots;
use crate::recovery::About;

/// How a plan came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Nothing was in force.
    Fresh,
    /// New pods where the old ones were.
    InPlace,
    /// Lost units on other nodes, the others where they are.
    Replaced,
    /// Without the lost units.
    Shrunk,
    /// All of it on other nodes.
    Moved,
}

/// A plan that was decided on and waits to be committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The plan.
    pub plan: Plan,
    /// Why.
    pub cause: Cause,
    /// How it came about.
    pub how: How,
}

/// Where a gang stands.
#[derive(Debug)]
pub enum Stage {
    /// It has no plan.
    Waiting(Box<Waiting>),
    /// Its plan is in force.
    Holding(Box<Holding>),
    /// It has ended; its last pods may still be there.
    Ended(Slots),
    /// It is being deleted.
    Leaving(Slots),
}

/// A gang without a plan.
#[derive(Debug, Default)]
pub struct Waiting {
    /// Not placed before this time, and why.
    pub hold: Option<(Millis, Reason)>,
    /// The engine's last refusal.
    pub refusal: Option<Reason>,
    /// The engine's decision.
    pub decided: Option<Decided>,
}

/// A gang whose plan is in force.
#[derive(Debug)]
pub struct Holding {
    /// Its pods.
    pub slots: Slots,
    /// When the plan was put in force, or this leader began.
    pub since: Millis,
    /// Pods are created no sooner; grows while the server fails.
    pub pause: Pause,
    /// What the server said to the last creation that failed in passing.
    pub uncreated: String,
    /// Nodes on which a pod waits for room, and since when.
    pub blocked: BTreeMap<NodeName, Millis>,
    /// Why the plan cannot be carried out.
    pub broken: Option<Reason>,
    /// What is wrong with it.
    pub trouble: Trouble,
}

/// A growing pause between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// No attempt before.
    pub until: Millis,
    /// Attempts in a row that failed.
    pub failures: u32,
    /// When the first of them failed.
    pub since: Millis,
}

impl Pause {
    /// First pause; doubled up to [`Self::LONGEST`].
    pub const FIRST: Millis = 500;
    /// Longest pause.
    pub const LONGEST: Millis = 30_000;

    /// An attempt failed. Several that failed within one pause are one.
    pub fn fail(&mut self, now: Millis) {
        if now < self.until {
            return;
        }
        if self.failures == 0 {
            self.since = now;
        }
        let pause = Self::FIRST.saturating_mul(1 << self.failures.min(10)).min(Self::LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.until = now.saturating_add(pause);
    }

    /// An attempt succeeded.
    pub fn succeed(&mut self) {
        *self = Self::default();
    }
}

/// What is wrong with a plan in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Pods are lost; what is done about it is decided at this time.
    Waits {
        /// When.
        until: Millis,
        /// What is said meanwhile.
        about: About,
    },
    /// The engine is asked for other places.
    Asks {
        /// The loss.
        lost: Lost,
        /// That it has none.
        refusal: Option<Reason>,
    },
    /// Another plan was decided on.
    Decided(Box<Decided>),
}

impl Holding {
    /// A plan as it is put in force.
    pub fn new(slots: Slots, now: Millis) -> Self {
        Self {
            slots,
            since: now,
            pause: Pause::default(),
            uncreated: String::new(),
            blocked: BTreeMap::new(),
            broken: None,
            trouble: Trouble::None,
        }
    }

    /// Whether pods may be created: nothing is lost, broken or about to change.
    pub fn creates(&self) -> bool {
        self.trouble == Trouble::None && self.broken.is_none() && self.slots.tally().lost == 0
    }

    /// A pod finds no room on its node: an old one is still leaving. Returns since when that is so.
    pub fn block(&mut self, node: &NodeName, now: Millis) -> Millis {
        *self.blocked.entry(node.clone()).or_insert(now)
    }
}
