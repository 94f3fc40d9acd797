//! Leadership: a Lease whose `leaseTransitions` is the epoch, and the proof that old epochs are refused.
//!
//! ```text
//!   acquire ──▶ epoch n ──▶ prove the fence (`Elector::prove_fence`) ──▶ lead, renewing ──▶ lost
//! ```
//!
//! Every write to the Lease carries its resourceVersion, so of two candidates one gets a conflict. Expiry is judged
//! by watching the Lease stay unchanged for its duration on our own clock, never by comparing clocks. Each new term
//! has a new epoch, also when the same process gets the Lease again, and when somebody deleted the Lease in between: it
//! goes on above every epoch that was ever seen, after as long a wait as for a silent holder.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::Clock;
use crate::epochs;
use crate::lease::{LeaderError, LeaseConfig};
use crate::proof;

/// A term of leadership. Clones share it.
#[derive(Clone, Debug)]
pub struct Term {
    epoch: i64,
    config: Arc<LeaseConfig>,
    /// The Lease as we wrote it last.
    lease: Arc<Mutex<Lease>>,
    start: Instant,
    /// Milliseconds after `start` until which we may write.
    until: Arc<AtomicI64>,
}

impl Term {
    fn new(epoch: i64, config: &Arc<LeaseConfig>, lease: Lease, renewed: Instant) -> Self {
        let (config, lease) = (config.clone(), Arc::new(Mutex::new(lease)));
        let deadline = config.renew_deadline;
        let term = Self { epoch, config, lease, start: renewed, until: Arc::new(AtomicI64::new(0)) };
        term.extend(renewed, deadline);
        term
    }

    fn extend(&self, renewed: Instant, deadline: Duration) {
        let until = renewed.duration_since(self.start) + deadline;
        self.until.store(until.as_millis() as i64, Ordering::SeqCst);
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of this term.
    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    /// No write begins any more.
    fn end(&self) {
        self.until.store(i64::MIN, Ordering::SeqCst);
    }

    /// Whether [`Elector::keep`] is giving the Lease back, or has done so.
    pub fn given_up(&self) -> bool {
        self.until.load(Ordering::SeqCst) == i64::MIN
    }

    /// Whether a write may still begin.
    pub fn valid(&self) -> bool {
        (self.start.elapsed().as_millis() as i64) < self.until.load(Ordering::SeqCst)
    }

    /// Reads the Lease: whether it is somebody else's, of another term of ours, or gone.
    ///
    /// # Errors
    /// When the API server does not say.
    pub async fn over(&self, client: &Client) -> Result<bool, kube::Error> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), &self.config.namespace);
        Ok(!leases.get_opt(&self.config.name).await?.is_some_and(|lease| self.is_of(&lease)))
    }

    /// Whether this is the Lease of this term.
    fn is_of(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().is_some_and(|spec| {
            spec.holder_identity.as_deref() == Some(&self.config.identity)
                && spec.lease_transitions.map(i64::from) == Some(self.epoch)
        })
    }
}

/// Holds what is needed to become and stay leader.
pub struct Elector {
    config: Arc<LeaseConfig>,
    leases: Api<Lease>,
    client: Client,
    clock: Arc<dyn Clock>,
    past: Mutex<Past>,
}

/// What is known of earlier terms, for the case that the Lease is deleted.
#[derive(Debug, Default)]
struct Past {
    /// The highest epoch; 0 if none was ever seen.
    highest: i64,
    /// The longest duration of a Lease.
    duration: Duration,
    /// Since when there is none.
    absent: Option<Instant>,
}

impl Elector {
    /// An elector for the Lease of `config`.
    pub fn new(client: Client, config: LeaseConfig, clock: Arc<dyn Clock>) -> Self {
        let leases = Api::namespaced(client.clone(), &config.namespace);
        Self { leases, client, config: Arc::new(config), clock, past: Mutex::default() }
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer, but not for ever.
    async fn answer<T>(&self, asked: impl Future<Output = Result<T, kube::Error>>) -> Result<T, LeaderError> {
        let patience = self.config.renew_deadline;
        timeout(patience, asked)
            .await
            .map_err(|_| LeaderError::Silent(patience))?
            .map_err(|error| self.error(error))
    }

    fn error(&self, source: kube::Error) -> LeaderError {
        LeaderError::Api {
            namespace: self.config.namespace.clone(),
            name: self.config.name.clone(),
            source: Box::new(source),
        }
    }

    /// Waits until the Lease is ours. Trouble with the API server is logged and tried again.
    pub async fn acquire(&self) -> Term {
        // The Lease as last seen, and since when it has looked so.
        let mut seen: Option<(Option<String>, Instant)> = None;
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(Some(term)) => return term,
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot take the Lease yet"),
            }
            sleep(self.config.retry).await;
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(Option<String>, Instant)>,
    ) -> Result<Option<Term>, LeaderError> {
        let asked = Instant::now();
        let Some(mut lease) = self.answer(self.leases.get_opt(&self.config.name)).await? else {
            return self.create(asked).await;
        };
        let version = lease.metadata.resource_version.clone();
        let spec = lease.spec.get_or_insert_default();
        let free = spec.holder_identity.as_deref().unwrap_or_default().is_empty()
            || spec.holder_identity.as_deref() == Some(&self.config.identity);
        let unchanged_since = match seen {
            Some((last, since)) if *last == version => *since,
            _ => {
                *seen = Some((version, asked));
                asked
            }
        };
        let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(15).max(1) as u64);
        let last = i64::from(spec.lease_transitions.unwrap_or(0));
        let epoch = self.remember(last, duration) + 1;
        if !free && unchanged_since.elapsed() < duration {
            return Ok(None);
        }
        *spec = self.spec(epoch)?;
        let renewed = Instant::now();
        match self.answer(self.leases.replace(&self.config.name, &PostParams::default(), &lease)).await {
            Ok(lease) => Ok(Some(self.begin(epoch, lease, renewed))),
            Err(error) if error.has(kube::core::Status::is_conflict) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn begin(&self, epoch: i64, lease: Lease, renewed: Instant) -> Term {
        self.remember(epoch, self.config.duration);
        Term::new(epoch, &self.config, lease, renewed)
    }

    /// A Lease was there. Returns the highest epoch so far.
    fn remember(&self, epoch: i64, duration: Duration) -> i64 {
        let mut past = self.past();
        past.absent = None;
        past.highest = past.highest.max(epoch);
        past.duration = past.duration.max(duration);
        past.highest
    }

    /// Makes the Lease anew. Somebody may have deleted it: then its last holder, who may not have noticed, is waited for
    /// as if it had fallen silent, and no epoch is used twice.
    async fn create(&self, asked: Instant) -> Result<Option<Term>, LeaderError> {
        if self.waits_for_the_last_holder(asked) {
            return Ok(None);
        }
        let written = epochs::highest(&self.client, self.config.renew_deadline).await;
        let written = written.map_err(|error| match error {
            epochs::Error::Api(error) => self.error(*error),
            epochs::Error::Silent => LeaderError::Silent(self.config.renew_deadline),
        })?;
        {
            let mut past = self.past();
            past.highest = past.highest.max(written);
        }
        // It is known only now that there was a leader.
        if self.waits_for_the_last_holder(asked) {
            return Ok(None);
        }
        let epoch = self.past().highest + 1;
        let lease = Lease {
            metadata: ObjectMeta { name: Some(self.config.name.clone()), ..ObjectMeta::default() },
            spec: Some(self.spec(epoch)?),
        };
        let renewed = Instant::now();
        match self.answer(self.leases.create(&PostParams::default(), &lease)).await {
            Ok(lease) => Ok(Some(self.begin(epoch, lease, renewed))),
            Err(error) if error.has(kube::core::Status::is_already_exists) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn waits_for_the_last_holder(&self, asked: Instant) -> bool {
        let mut past = self.past();
        let since = *past.absent.get_or_insert(asked);
        past.highest > 0 && since.elapsed() < past.duration.max(self.config.duration)
    }

    fn spec(&self, epoch: i64) -> Result<LeaseSpec, LeaderError> {
        let now = MicroTime(self.clock.now());
        Ok(LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: Some(whole_seconds(self.config.duration)),
            lease_transitions: Some(i32::try_from(epoch).map_err(|_| LeaderError::Counted(epoch - 1))?),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        })
    }

    /// Renews until leadership is lost; never returns otherwise. A process that is not `alive` gives the Lease back:
    /// from here, because the one who leads may hear of nothing any more.
    pub async fn keep(&self, term: &Term, alive: impl Fn() -> Result<(), String>) -> LeaderError {
        loop {
            sleep(self.config.retry).await;
            if let Err(why) = alive() {
                term.end();
                // What was begun has ended by then.
                sleep(self.config.write_timeout()).await;
                self.release(term).await;
                return LeaderError::NotAlive(why);
            }
            let begun = Instant::now();
            match timeout(self.config.write_timeout(), self.renew(term)).await {
                Ok(Ok(())) => term.extend(begun, self.config.renew_deadline),
                Ok(Err(LeaderError::Lost)) => return LeaderError::Lost,
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the Lease"),
                Err(_) => tracing::warn!("the Lease was not renewed in time"),
            }
            if !term.valid() {
                return LeaderError::Lost;
            }
        }
    }

    /// One write, from the Lease as we wrote it last; it is read again only when somebody else wrote it.
    async fn renew(&self, term: &Term) -> Result<(), LeaderError> {
        let mut lease = term.lease().clone();
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(self.clock.now()));
        match self.leases.replace(&self.config.name, &PostParams::default(), &lease).await {
            Ok(written) => {
                *term.lease() = written;
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(LeaderError::Lost),
            Err(kube::Error::Api(status)) if status.is_conflict() => self.look_again(term).await,
            Err(error) => Err(self.error(error)),
        }
    }

    /// Somebody wrote the Lease, perhaps we ourselves in a request whose answer was lost.
    async fn look_again(&self, term: &Term) -> Result<(), LeaderError> {
        let lease = self.leases.get(&self.config.name).await.map_err(|error| self.error(error))?;
        if !term.is_of(&lease) {
            return Err(LeaderError::Lost);
        }
        *term.lease() = lease;
        Ok(())
    }

    /// Lets others lead at once. The epoch stays, so the next leader's is higher.
    pub async fn release(&self, term: &Term) {
        let attempt = async {
            loop {
                let mut lease = self.leases.get(&self.config.name).await?;
                let spec = lease.spec.get_or_insert_default();
                if spec.lease_transitions.map(i64::from) != Some(term.epoch) {
                    return Ok(());
                }
                spec.holder_identity = Some(String::new());
                match self.leases.replace(&self.config.name, &PostParams::default(), &lease).await {
                    // A renewal of ours that was under way came in between.
                    Err(kube::Error::Api(status)) if status.is_conflict() => {}
                    other => return other.map(drop),
                }
            }
        };
        if let Ok(Err(error)) = timeout(self.config.write_timeout(), attempt).await {
            tracing::warn!(%error, "cannot release the Lease; others wait for it to expire");
        }
    }

    /// Proves that the fence holds in all its parts, and that it lets us write: see [`proof`].
    ///
    /// # Errors
    /// When the fence does not hold, or the API server does not answer in time.
    pub async fn prove_fence(&self, term: &Term) -> Result<(), LeaderError> {
        let patience = self.config.renew_deadline;
        timeout(patience, proof::prove(&self.client, &self.config, term.epoch))
            .await
            .unwrap_or(Err(LeaderError::Silent(patience)))
    }
}

/// What a Lease says of a duration, rounded up: others must not wait for less than we rely on.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1_000).max(1)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_wait_for_at_least_the_duration_of_the_lease() {
        for (millis, seconds) in
            [(0, 1), (1, 1), (1_000, 1), (12_000, 12), (12_001, 13), (12_900, 13), (u64::MAX, i32::MAX)]
        {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
    }
}
