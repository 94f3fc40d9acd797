//! Reconcilers and the executor: the only writers.
//!
//! ```text
//!   API server ──watch──▶ Core (pure decisions: jobs, gangs, pods) ──Effects──▶ Writer ──▶ API server
//!                           ▲ engine, lifecycle                        ▲ leader: term, epoch, fence
//! ```

pub mod clock;
pub mod core;
pub mod derive;
pub mod effect;
pub mod launch;
pub mod leader;
pub mod manifest;
pub mod run;
pub mod volumes;
pub mod watch;
pub mod writer;

pub use clock::{Clock, SystemClock};
pub use core::Config;
pub use leader::LeaseConfig;
pub use run::{Operator, Options, Snapshot};
