//! Leadership: a Lease whose `leaseTransitions` is the epoch, and the proof that old epochs are refused.
//!
//! ```text
//!   acquire ──▶ epoch n ──▶ prove the fence (a dry run with epoch n-1 must be refused) ──▶ lead, renewing ──▶ lost
//! ```
//!
//! Every write to the Lease carries its resourceVersion, so of two candidates one gets a conflict. Expiry is judged
//! by watching the Lease stay unchanged for its duration on our own clock, never by comparing clocks. Each new term
//! has a new epoch, also when the same process gets the Lease again.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use muster_api::{Gang, labels};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::Clock;

/// Name of the ValidatingAdmissionPolicy that fences old leaders; its denials carry this name.
pub const FENCE_POLICY: &str = "muster-fence";

/// How leadership is held.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Namespace of the Lease: the operator's own.
    pub namespace: String,
    /// Name of the Lease: the parameter of the fence policy.
    pub name: String,
    /// Who we are: the pod's name, or host and process.
    pub identity: String,
    /// How long others wait for a silent holder.
    pub duration: Duration,
    /// How long we go on without a successful renewal. Shorter than `duration` by more than a write may take.
    pub renew_deadline: Duration,
    /// Pause between attempts.
    pub retry: Duration,
}

impl LeaseConfig {
    /// The usual timing of Kubernetes components: 15 s, 10 s and 2 s.
    pub fn new(namespace: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: "muster".into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }

    /// How long one write may take, so that it has ended before anyone else can lead.
    pub fn write_timeout(&self) -> Duration {
        self.duration.saturating_sub(self.renew_deadline).mul_f64(0.8)
    }
}

/// A term of leadership. Clones share it.
#[derive(Clone, Debug)]
pub struct Term {
    epoch: i64,
    /// The Lease as we wrote it last.
    lease: Arc<Mutex<Lease>>,
    start: Instant,
    /// Milliseconds after `start` until which we may write.
    until: Arc<AtomicI64>,
}

impl Term {
    fn new(epoch: i64, lease: Lease, renewed: Instant, deadline: Duration) -> Self {
        let lease = Arc::new(Mutex::new(lease));
        let term = Self { epoch, lease, start: renewed, until: Arc::new(AtomicI64::new(0)) };
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
}

/// Why leadership could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The API server refused or did not answer.
    #[error("Lease {namespace}/{name}: {source}")]
    Api {
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
        /// What went wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// The fence does not hold.
    #[error(
        "a pod with the epoch of an earlier leader was not refused ({0}): install ValidatingAdmissionPolicy \
         \"muster-fence\" and its binding (they are in the chart and in deploy/); until then nothing is placed"
    )]
    NotFenced(String),
    /// The server took too long.
    #[error("the API server did not answer within {0:?} whether it refuses pods of earlier leaders")]
    Silent(Duration),
    /// Another holder was faster.
    #[error("another process took the Lease")]
    Lost,
    /// We ourselves do nothing any more.
    #[error("the Lease was given back: {0}")]
    NotAlive(String),
}

/// Holds what is needed to become and stay leader.
pub struct Elector {
    config: LeaseConfig,
    leases: Api<Lease>,
    client: Client,
    clock: Arc<dyn Clock>,
}

impl Elector {
    /// An elector for the Lease of `config`.
    pub fn new(client: Client, config: LeaseConfig, clock: Arc<dyn Clock>) -> Self {
        Self { leases: Api::namespaced(client.clone(), &config.namespace), client, config, clock }
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
            match timeout(self.config.renew_deadline, self.try_acquire(&mut seen)).await {
                Ok(Ok(Some(term))) => return term,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot take the Lease yet"),
                Err(_) => tracing::warn!("the API server did not answer about the Lease in time"),
            }
            sleep(self.config.retry).await;
        }
    }

    async fn try_acquire(
        &self,
        seen: &mut Option<(Option<String>, Instant)>,
    ) -> Result<Option<Term>, LeaderError> {
        let asked = Instant::now();
        let Some(mut lease) = self.leases.get_opt(&self.config.name).await.map_err(|e| self.error(e))? else {
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
        if !free && unchanged_since.elapsed() < duration {
            return Ok(None);
        }
        let epoch = i64::from(spec.lease_transitions.unwrap_or(0)) + 1;
        *spec = self.spec(epoch);
        let renewed = Instant::now();
        match self.leases.replace(&self.config.name, &PostParams::default(), &lease).await {
            Ok(lease) => Ok(Some(Term::new(epoch, lease, renewed, self.config.renew_deadline))),
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    /// A Lease that somebody deleted goes on above the highest epoch that any Gang bears.
    async fn create(&self, renewed: Instant) -> Result<Option<Term>, LeaderError> {
        let gangs: Api<Gang> = Api::all(self.client.clone());
        let gangs = gangs.list(&ListParams::default()).await.map_err(|e| self.error(e))?;
        let highest =
            gangs.items.iter().filter_map(|gang| Some(gang.status.as_ref()?.epoch)).max().unwrap_or(0);
        let epoch = highest.max(0) + 1;
        let lease = Lease {
            metadata: ObjectMeta { name: Some(self.config.name.clone()), ..ObjectMeta::default() },
            spec: Some(self.spec(epoch)),
        };
        match self.leases.create(&PostParams::default(), &lease).await {
            Ok(lease) => Ok(Some(Term::new(epoch, lease, renewed, self.config.renew_deadline))),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
            Err(error) => Err(self.error(error)),
        }
    }

    fn spec(&self, epoch: i64) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: Some(self.config.duration.as_secs().max(1) as i32),
            lease_transitions: Some(epoch as i32),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }
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
        let ours = lease.spec.as_ref().is_some_and(|spec| {
            spec.holder_identity.as_deref() == Some(&self.config.identity)
                && spec.lease_transitions.map(i64::from) == Some(term.epoch)
        });
        if !ours {
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

    /// Proves that a pod of an earlier epoch is refused, and that one of ours is not refused by the fence.
    ///
    /// # Errors
    /// When the fence does not hold, or the API server does not answer in time.
    pub async fn prove_fence(&self, term: &Term) -> Result<(), LeaderError> {
        let patience = self.config.renew_deadline;
        timeout(patience, self.try_fence(term)).await.unwrap_or(Err(LeaderError::Silent(patience)))
    }

    async fn try_fence(&self, term: &Term) -> Result<(), LeaderError> {
        match self.probe(term.epoch - 1).await {
            Ok(()) => return Err(LeaderError::NotFenced(format!("epoch {}", term.epoch - 1))),
            Err(kube::Error::Api(status)) if status.message.contains(FENCE_POLICY) => {}
            Err(error) => return Err(self.error(error)),
        }
        match self.probe(term.epoch).await {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) if !status.message.contains(FENCE_POLICY) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }

    /// A dry-run creation of the least pod there can be, which also passes the "restricted" Pod Security level.
    async fn probe(&self, epoch: i64) -> Result<(), kube::Error> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "muster-fence-probe",
                // The fence looks at pods of gangs only.
                "labels": { labels::GANG: "muster-fence-probe" },
                "annotations": { labels::EPOCH: epoch.to_string() },
            },
            "spec": {
                "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": "probe",
                    "image": "probe",
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "resources": {
                        "requests": { "cpu": "1m", "memory": "1Mi" },
                        "limits": { "cpu": "1m", "memory": "1Mi" },
                    },
                }],
            },
        }))
        .map_err(kube::Error::SerdeError)?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.config.namespace);
        let params = PostParams { dry_run: true, field_manager: None };
        pods.create(&params, &pod).await.map(|_| ())
    }
}
