//! Time as an argument: the machine's in production, virtual in simulation.
//!
//! ```text
//!   wall time: only in what is written into objects      (it may be wrong, and may be set)
//!   monotonic time: everything that waits, and its limits (it only goes forward)
//! ```

use jiff::Timestamp;
use muster_model::Millis;
use tokio::time::Instant;

/// Tells both times.
pub trait Clock: Send + Sync + 'static {
    /// The time of day.
    fn now(&self) -> Timestamp;

    /// The time since this clock began, in milliseconds. It never goes back and is not set.
    fn monotonic(&self) -> Millis;

    /// The time of day, in milliseconds since the Unix epoch.
    fn millis(&self) -> Millis {
        self.now().as_millisecond()
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Millis {
        self.start.elapsed().as_millis() as Millis
    }
}
