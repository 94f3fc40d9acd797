//! How leadership is held, and why it could not be had.

use std::time::Duration;

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
        "the fence has a gap: {0}; install ValidatingAdmissionPolicy \"muster-fence\" with its bindings (they are in the \
         chart and in deploy/); until then nothing is placed"
    )]
    NotFenced(String),
    /// The fence refuses us.
    #[error(
        "the fence refuses our own writes: {0}; in a pod, --identity must be the pod's name (as it is by default)"
    )]
    ShutOut(String),
    /// Whether the fence holds cannot be said.
    #[error("whether the fence holds is not known: {0}")]
    Unproven(String),
    /// The server took too long.
    #[error("the API server did not answer within {0:?}")]
    Silent(Duration),
    /// No further epoch can be written.
    #[error("the Lease cannot count beyond {0} terms")]
    Counted(i64),
    /// Another holder was faster.
    #[error("another process took the Lease")]
    Lost,
    /// We ourselves do nothing any more.
    #[error("the Lease was given back: {0}")]
    NotAlive(String),
}

impl LeaderError {
    /// Whether the API server answered with such a Status.
    pub(crate) fn has(&self, kind: impl Fn(&kube::core::Status) -> bool) -> bool {
        matches!(self, Self::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if kind(status)))
    }
}
