//! Signs of a node, what they make of its health, and the words for it.

use muster_model::{Millis, duration};

/// What a node shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// `Ready=True`.
    Ready,
    /// `Ready=Unknown`, or no such condition: the node controller has not heard of the kubelet for a while.
    Unknown,
    /// `Ready=False`: the kubelet itself says so.
    NotReady {
        /// Whether it is known that the containers on it have ended.
        dead: bool,
    },
    /// The taint `node.kubernetes.io/out-of-service`: an administrator promises that its containers are gone.
    OutOfService,
}

/// Why a node is doubted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Nobody hears of its kubelet.
    Silent,
    /// Its kubelet says that it is not ready.
    NotReady,
    /// And the containers on it have ended.
    Dead,
}

impl Doubt {
    /// The doubt that a sign raises; `None` for a node that is well, or lost without any doubt.
    pub(super) fn of(sign: Sign) -> Option<Self> {
        match sign {
            Sign::Unknown => Some(Self::Silent),
            Sign::NotReady { dead: false } => Some(Self::NotReady),
            Sign::NotReady { dead: true } => Some(Self::Dead),
            Sign::Ready | Sign::OutOfService => None,
        }
    }

    /// Since when it has lasted, of a node that has not been ready `since` and shows this since it `turned`.
    pub(super) fn began(self, since: Millis, turned: Millis) -> Millis {
        if self == Self::Silent { turned } else { since }
    }

    /// "has been silent for 20s (Ready=Unknown)".
    pub fn words(self, lasted: Millis) -> String {
        let lasted = duration::format(lasted / 1_000 * 1_000);
        match self {
            Self::Silent => format!("has been silent for {lasted} (Ready=Unknown)"),
            Self::NotReady => format!("has not been ready for {lasted} (Ready=False)"),
            Self::Dead => {
                format!("has not been ready for {lasted} (Ready=False) and its containers have ended")
            }
        }
    }
}

/// Why a node counts as lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The Node object is gone.
    Deleted,
    /// Another Node of its name is there: what ran on the old one does not.
    MadeAnew,
    /// It has the taint `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// Its doubt outlasted its grace.
    Doubted {
        /// What was doubted.
        doubt: Doubt,
        /// For how long.
        lasted: Millis,
    },
    /// Many nodes at once became silent, and stayed so: an outage, one event for all of them.
    Outage {
        /// The domain that is out; `None` for nodes from all over the cluster.
        domain: Option<String>,
        /// How many of its nodes are silent.
        silent: usize,
        /// Out of how many.
        of: usize,
        /// For how long.
        lasted: Millis,
    },
}

impl Why {
    /// Whether the node is lost for certain. Otherwise a gang may know better: one whose ranks report progress there is
    /// not lost.
    pub fn certain(&self) -> bool {
        matches!(self, Self::Deleted | Self::MadeAnew | Self::OutOfService)
    }

    /// What is said after "node n1": "is gone".
    pub fn words(&self) -> String {
        match self {
            Self::Deleted => "is gone".to_owned(),
            Self::MadeAnew => "was deleted and made again".to_owned(),
            Self::OutOfService => "is out of service".to_owned(),
            Self::Doubted { doubt, lasted } => doubt.words(*lasted),
            Self::Outage { domain, silent, of, lasted } => {
                let lasted = duration::format(lasted / 1_000 * 1_000);
                let place = domain.as_ref().map_or_else(String::new, |domain| format!(" of {domain}"));
                format!("is one of {silent} silent nodes out of {of}{place}, since {lasted}")
            }
        }
    }
}

/// A node's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Ready,
    /// It may be lost.
    Doubted {
        /// Since when it has not been ready.
        since: Millis,
        /// Why it is doubted now.
        doubt: Doubt,
        /// Since when for this reason.
        turned: Millis,
    },
    /// It is lost until it is Ready again.
    Lost {
        /// Since when it had not been ready.
        since: Millis,
        /// Why.
        why: Why,
    },
}

impl Health {
    /// What it becomes with a sign; `None` if nothing changes. Only Ready ends a loss.
    pub(super) fn after(&self, sign: Sign, now: Millis) -> Option<Self> {
        let since = match self {
            Self::Ready => now,
            Self::Doubted { since, .. } | Self::Lost { since, .. } => *since,
        };
        if sign == Sign::Ready {
            return (*self != Self::Ready).then_some(Self::Ready);
        }
        let Some(doubt) = Doubt::of(sign) else {
            let known = matches!(self, Self::Lost { why: Why::OutOfService, .. });
            return (!known).then_some(Self::Lost { since, why: Why::OutOfService });
        };
        match self {
            Self::Lost { .. } => None,
            Self::Doubted { doubt: known, .. } if *known == doubt => None,
            Self::Ready | Self::Doubted { .. } => Some(Self::Doubted { since, doubt, turned: now }),
        }
    }
}
