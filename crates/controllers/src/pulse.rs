//! Signs of life of one process: when its loop turned last, and when something was last heard of each kind it watches.
//!
//! ```text
//!   loop ──turn──▶        ┌─▶ the Lease is renewed only while all are alive
//!   watches ──heard──▶ Pulse ─▶ /livez: what restarts the process
//!                         └─▶ /readyz, /metrics: which kind is missing, how old each view is
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long the loop may not turn before the Lease is given back. A turn takes a batch of events and a batch of
/// decisions: seconds in the largest clusters.
const TURN: Duration = Duration::from_secs(60);
/// How long nothing may come of a list: two attempts at a page.
const LISTING: Duration = Duration::from_secs(45);
/// How long nothing may be heard of a watch: its silence is noticed after 90 s, and then it is opened anew for a minute.
const WATCHING: Duration = Duration::from_secs(150);
/// How long a list may take as a whole, however its pages come.
const LIST: Duration = Duration::from_secs(600);
/// When a loop that does not turn will not turn again: only a restart helps.
const STUCK: Duration = Duration::from_secs(120);
/// How long a process that was not alive may go on without leading again before it is restarted.
const AILING: Duration = Duration::from_secs(300);
/// How long it must lead to be well again.
const WELL: Duration = Duration::from_secs(60);

/// Signs of life. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Mutex<Signs>>);

#[derive(Debug, Default)]
struct Signs {
    /// When the loop turned last; `None` while it does not lead.
    turned: Option<Instant>,
    /// Since when it leads with everything known.
    leading: Option<Instant>,
    kinds: BTreeMap<String, Kind>,
    /// Since when it has not been well, and why.
    ailing: Option<(Instant, String)>,
}

#[derive(Debug)]
struct Kind {
    heard: Instant,
    /// Since when a list has been under way.
    listing: Option<Instant>,
    synced: bool,
    unreadable: usize,
    trouble: Option<String>,
}

/// A watched kind, to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Plural name of the kind.
    pub kind: String,
    /// How long ago something was heard of it: an event, a bookmark, a page of a list, an opened watch.
    pub age: Duration,
    /// How long it has been listed without an end; `None` while it is watched.
    pub listing: Option<Duration>,
    /// All that existed has been reported in this term.
    pub synced: bool,
    /// How many of its objects cannot be read.
    pub unreadable: usize,
    /// What went wrong last, until something is heard.
    pub trouble: Option<String>,
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(listing) = self.listing {
            write!(f, ", listed for {}s", listing.as_secs())?;
        }
        write!(f, ", nothing heard for {}s", self.age.as_secs())?;
        self.trouble.iter().try_for_each(|trouble| write!(f, " ({trouble})"))
    }
}

impl Pulse {
    fn signs(&self) -> MutexGuard<'_, Signs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A term begins.
    pub fn begin(&self) {
        let mut signs = self.signs();
        signs.kinds.clear();
        signs.leading = None;
        signs.turned = Some(Instant::now());
    }

    /// The loop turns.
    pub fn turn(&self) {
        let now = Instant::now();
        let mut signs = self.signs();
        signs.turned = Some(now);
        if signs.ailing.is_some() && signs.leading.is_some_and(|since| now - since >= WELL) {
            signs.ailing = None;
        }
    }

    /// From now on it leads with everything known.
    pub fn leads(&self) {
        self.signs().leading = Some(Instant::now());
    }

    /// The term is over. `why`: the process was not alive, or not well.
    pub fn end(&self, why: Option<String>) {
        let mut signs = self.signs();
        signs.kinds.clear();
        (signs.turned, signs.leading) = (None, None);
        if let Some(why) = why {
            let since = signs.ailing.take().map_or_else(Instant::now, |(since, _)| since);
            signs.ailing = Some((since, why));
        }
    }

    /// A kind is watched from now on; what is heard of it is told to the handle.
    pub fn watch(&self, kind: &str) -> Vital {
        let now = Instant::now();
        let fresh = Kind { heard: now, listing: Some(now), synced: false, unreadable: 0, trouble: None };
        self.signs().kinds.insert(kind.to_owned(), fresh);
        Vital { pulse: self.clone(), kind: kind.to_owned() }
    }

    /// Whether the Lease may be renewed.
    ///
    /// # Errors
    /// What shows no life, in words for the log.
    pub fn alive(&self) -> Result<(), String> {
        if let Some(age) = self.signs().turned.map(|at| at.elapsed()).filter(|age| *age > TURN) {
            return Err(format!("the loop has not turned for {}s", age.as_secs()));
        }
        let dead = |view: &View| {
            let limit = if view.listing.is_some() { LISTING } else { WATCHING };
            view.age > limit || view.listing.is_some_and(|since| since > LIST)
        };
        match self.views().iter().find(|view| dead(view)) {
            Some(view) => Err(format!("the cluster cannot be seen: {view}")),
            None => Ok(()),
        }
    }

    /// Whether the process should go on: what `/livez` says.
    ///
    /// # Errors
    /// Why it should be restarted.
    pub fn live(&self) -> Result<(), String> {
        let signs = self.signs();
        if let Some(age) = signs.turned.map(|at| at.elapsed()).filter(|age| *age > STUCK) {
            return Err(format!("the loop has not turned for {}s", age.as_secs()));
        }
        match &signs.ailing {
            Some((since, why)) if since.elapsed() > AILING => {
                Err(format!("stepped down {}s ago and has not led since: {why}", since.elapsed().as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// What is watched, by name.
    pub fn views(&self) -> Vec<View> {
        let view = |(name, kind): (&String, &Kind)| View {
            kind: name.clone(),
            age: kind.heard.elapsed(),
            listing: kind.listing.map(|since| since.elapsed()),
            synced: kind.synced,
            unreadable: kind.unreadable,
            trouble: kind.trouble.clone(),
        };
        self.signs().kinds.iter().map(view).collect()
    }
}

/// The signs of life of one watched kind.
#[derive(Debug)]
pub struct Vital {
    pulse: Pulse,
    kind: String,
}

impl Vital {
    /// Plural name of the kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    fn with(&self, change: impl FnOnce(&mut Kind)) {
        if let Some(kind) = self.pulse.signs().kinds.get_mut(&self.kind) {
            change(kind);
        }
    }

    /// Something came from the server.
    pub fn heard(&self) {
        self.with(|kind| {
            kind.heard = Instant::now();
            kind.trouble = None;
        });
    }

    /// A list is under way.
    pub fn listing(&self) {
        self.with(|kind| kind.listing = kind.listing.or_else(|| Some(Instant::now())));
    }

    /// The list has come to its end.
    pub fn listed(&self) {
        self.with(|kind| {
            kind.listing = None;
            kind.synced = true;
        });
    }

    /// Something went wrong.
    pub fn failed(&self, trouble: &str) {
        self.with(|kind| kind.trouble = Some(trouble.to_owned()));
    }

    /// How many objects cannot be read.
    pub fn unreadable(&self, count: usize) {
        self.with(|kind| kind.unreadable = count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stands_still_gives_up_the_lease_and_then_the_process() {
        let pulse = Pulse::default();
        pulse.begin();
        advance(TURN).await;
        assert_eq!(pulse.alive(), Ok(()));
        advance(SECOND).await;
        assert!(pulse.alive().expect_err("not alive").contains("has not turned for 61s"));
        assert_eq!(pulse.live(), Ok(()));
        advance(STUCK).await;
        assert!(pulse.live().is_err());
        pulse.turn();
        assert_eq!((pulse.alive(), pulse.live()), (Ok(()), Ok(())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_kind_is_named_with_its_trouble() {
        let pulse = Pulse::default();
        pulse.begin();
        let (pods, nodes) = (pulse.watch("pods"), pulse.watch("nodes"));
        nodes.listed();
        pods.failed("no answer within 20s");
        advance(LISTING + SECOND).await;
        pulse.turn();
        let why = pulse.alive().expect_err("pods are not listed");
        assert!(why.contains("pods, listed for 46s") && why.contains("no answer within 20s"), "{why}");
        pods.heard();
        pods.listed();
        assert_eq!(pulse.alive(), Ok(()));
        advance(WATCHING).await;
        pods.heard();
        pulse.turn();
        assert!(pulse.alive().expect_err("nodes are silent").contains("nodes, nothing heard for 196s"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_whose_pages_come_and_never_end_is_dead() {
        let pulse = Pulse::default();
        pulse.begin();
        let pods = pulse.watch("pods");
        for _ in 0..31 {
            advance(20 * SECOND).await;
            pods.heard();
            pulse.turn();
        }
        assert!(pulse.alive().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_does_not_come_back_is_restarted() {
        let pulse = Pulse::default();
        pulse.begin();
        pulse.end(Some("a panic".into()));
        advance(AILING).await;
        // Another try that ends the same way does not count as a recovery.
        pulse.begin();
        pulse.leads();
        pulse.end(Some("a panic".into()));
        assert_eq!(pulse.live(), Ok(()));
        advance(SECOND).await;
        assert!(pulse.live().expect_err("ailing").contains("a panic"));
        pulse.begin();
        pulse.leads();
        advance(WELL).await;
        pulse.turn();
        assert_eq!(pulse.live(), Ok(()));
        pulse.end(None);
        advance(2 * AILING).await;
        assert_eq!(pulse.live(), Ok(()));
    }
}
