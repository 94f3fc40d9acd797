//! Tells many that something changed, in the order in which they began to listen.
//!
//! ```text
//! Signal::raise ──► version + 1 ──► wake Listener 1, 2, 3, …
//! ```
//!
//! tokio's `watch` wakes its receivers in a random order, on purpose; then no run would be the same twice.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
struct State {
    version: u64,
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

/// The side that raises.
#[derive(Debug, Default)]
pub(crate) struct Signal(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signal {
    /// Something changed.
    pub fn raise(&self) {
        let waiting = {
            let mut state = lock(&self.0);
            state.version += 1;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// Listens from now on.
    pub fn listen(&self) -> Listener {
        let mut state = lock(&self.0);
        state.next += 1;
        Listener { state: self.0.clone(), id: state.next, seen: state.version }
    }
}

/// The side that waits.
#[derive(Debug)]
pub(crate) struct Listener {
    state: Arc<Mutex<State>>,
    id: u64,
    seen: u64,
}

impl Listener {
    /// Whether something changed that was not yet taken note of.
    pub fn raised(&self) -> bool {
        lock(&self.state).version != self.seen
    }

    /// Takes note of all that changed.
    pub fn note(&mut self) {
        self.seen = lock(&self.state).version;
    }

    /// Takes note of nothing: the next wait ends at once.
    pub fn doubt(&mut self) {
        self.seen = self.seen.wrapping_sub(1);
    }

    /// Waits until something changed; takes no note of it.
    pub async fn wait(&self) {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.version != self.seen {
                return Poll::Ready(());
            }
            state.waiting.insert(self.id, context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        lock(&self.state).waiting.remove(&self.id);
    }
}
