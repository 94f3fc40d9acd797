//! Wall time, as an argument: the machine's in production, virtual in simulation.

use jiff::Timestamp;
use muster_model::Millis;

/// Tells the time of day. Any function that returns a timestamp is a clock.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Now, in milliseconds since the Unix epoch.
    fn millis(&self) -> Millis {
        self.now().as_millisecond()
    }
}

impl<F: Fn() -> Timestamp + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Timestamp {
        self()
    }
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
