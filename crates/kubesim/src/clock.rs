//! Wall-clock time as an argument.
//!
//! ```text
//! tokio's (possibly paused) clock ──► TokioClock ──► timestamps in objects
//! ```
//!
//! Everything in this crate that writes a timestamp asks a [`Clock`], so that a simulation under
//! `tokio::time::pause` gives the same objects on every run.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A source of wall-clock time.
pub trait Clock: Send + Sync + 'static {
    /// The present moment, in UTC.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A clock that starts at a given moment and then follows `tokio::time`, paused or not.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    base: Timestamp,
    start: Instant,
}

impl TokioClock {
    /// A clock that reads `base` now.
    pub fn new(base: Timestamp) -> Self {
        Self { base, start: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        self.base.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
