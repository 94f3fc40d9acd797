//! The brake: while an unusual share of nodes is silent at once, none is lost for its silence.

use muster_model::{Millis, NodeName, duration};
use std::collections::BTreeSet;

use super::Config;

/// What holds verdicts back, for a condition and a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brake {
    /// The domain; `None` for the whole cluster.
    pub domain: Option<String>,
    /// Nodes that are not ready and not lost.
    pub silent: usize,
    /// Out of so many that are not lost.
    pub of: usize,
    /// Since when it holds.
    pub since: Millis,
    /// When it counts as an outage, and the silent nodes as lost, if none comes back; `None`: not before most of the
    /// cluster is heard of again.
    pub until: Option<Millis>,
}

impl Brake {
    /// What is going on and what follows, for people.
    pub fn words(&self, now: Millis) -> String {
        let seconds = |millis: Millis| duration::format(millis.max(0) / 1_000 * 1_000);
        let Self { silent, of, .. } = self;
        let place = self.domain.as_ref().map_or_else(String::new, |domain| format!(" of {domain}"));
        let since = seconds(now.saturating_sub(self.since));
        let then = match self.until {
            Some(until) => {
                format!("if none comes back they count as lost in {}", seconds(until.saturating_sub(now)))
            }
            None => "taint nodes that are really gone with node.kubernetes.io/out-of-service, or delete them"
                .to_owned(),
        };
        format!(
            "{silent} of {of} nodes{place} are not ready, too many at once to be failures of nodes; for {since} none \
             counts as lost for it: {then}"
        )
    }
}

/// A brake that holds.
#[derive(Clone, Debug)]
pub(super) struct Engaged {
    /// Since when.
    pub since: Millis,
    /// Since when nothing has got better.
    clock: Millis,
    /// Most nodes that were silent at once.
    peak: usize,
    /// Fewest nodes that were silent after that.
    lowest: usize,
    /// Most of the cluster is silent.
    mostly: bool,
    /// It is taken for an outage: so many nodes were silent then, out of so many.
    pub out: Option<(usize, usize)>,
}

impl Engaged {
    /// Something has changed for the better, or for all: the time until an outage begins anew.
    fn again(&mut self, now: Millis) {
        (self.clock, self.out) = (now, None);
    }
}

/// The nodes of the cluster, or of one domain.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// All of them.
    pub nodes: BTreeSet<NodeName>,
    /// Those that are doubted.
    pub doubted: BTreeSet<NodeName>,
    /// How many are lost.
    pub lost: usize,
    /// Those that were lost for their silence on their own, by when it began; within the window.
    pub fallen: BTreeSet<(Millis, NodeName)>,
    /// One that was doubted is Ready again since the last reckoning.
    pub returned: bool,
    /// The brake, while it holds.
    pub brake: Option<Engaged>,
}

/// What a reckoning found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// As before.
    None,
    /// The brake holds from now on.
    Engaged,
    /// It holds no more.
    Released,
}

impl Group {
    /// Nodes that are not lost.
    pub fn living(&self) -> usize {
        self.nodes.len() - self.lost
    }

    /// So many nodes may become silent within the window without suspicion.
    fn limit(&self, config: &Config) -> usize {
        let all = self.living() + self.fallen.len();
        config.least.max(all.saturating_mul(config.percent as usize) / 100)
    }

    /// Brings the brake up to date. `whole`: it is the cluster. `broad` tells whether a domain may have a brake of its
    /// own, and `mostly` whether most of the cluster is silent.
    pub fn reckon(
        &mut self,
        config: &Config,
        now: Millis,
        whole: bool,
        broad: impl FnOnce(&BTreeSet<NodeName>) -> bool,
        mostly: bool,
    ) -> Turn {
        let old = now.saturating_sub(config.window);
        while self.fallen.first().is_some_and(|(since, _)| *since < old) {
            self.fallen.pop_first();
        }
        let (limit, living, silent) = (self.limit(config), self.living(), self.doubted.len());
        let recent = silent + self.fallen.len();
        let all = whole && silent == living;
        let returned = std::mem::take(&mut self.returned);
        let Some(brake) = &mut self.brake else {
            let unusual = recent > limit && (whole || broad(&self.nodes));
            if silent == 0 || !(all || unusual) {
                return Turn::None;
            }
            self.brake =
                Some(Engaged { since: now, clock: now, peak: silent, lowest: silent, mostly, out: None });
            return Turn::Engaged;
        };
        if silent > brake.peak {
            (brake.peak, brake.lowest) = (silent, silent);
        } else if silent < brake.lowest {
            brake.lowest = silent;
            if returned {
                // Contact is coming back: whoever is still silent gets the time to.
                brake.again(now);
            }
        }
        if brake.mostly != mostly {
            brake.mostly = mostly;
            brake.again(now);
        }
        // Half the limit, so that a node more or less does not turn it on and off; where the limit is out of reach only
        // all nodes at once had turned it on.
        let calm = recent * 2 <= limit || whole && living <= limit;
        if silent == 0 || calm && !all {
            self.brake = None;
            return Turn::Released;
        }
        Turn::None
    }

    /// When the brake takes the silence for an outage; `None` while it does not hold, or never by time.
    pub fn outage_at(&self, config: &Config) -> Option<Millis> {
        let brake = self.brake.as_ref().filter(|brake| !brake.mostly)?;
        Some(brake.clock.saturating_add(config.outage))
    }

    /// The brake's time is over. What it held is lost.
    pub fn begin_outage(&mut self) {
        let now = (self.doubted.len(), self.living());
        if let Some(brake) = &mut self.brake {
            brake.out = Some(now);
        }
    }

    /// When an outage begins that has not begun.
    pub fn alarm(&self, config: &Config) -> Option<Millis> {
        self.outage_at(config).filter(|_| self.brake.as_ref().is_some_and(|brake| brake.out.is_none()))
    }

    /// Whether the brake holds verdicts back.
    pub fn holds(&self) -> bool {
        self.brake.as_ref().is_some_and(|brake| brake.out.is_none())
    }
}
