//! Waiting until a part can be used, by asking it.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

use super::Error;
use crate::logs;

/// How long between two questions: short beside a start of seconds.
const PAUSE: Duration = Duration::from_millis(50);
/// How long one answer may take; kube's own retries would go on for minutes.
const ANSWER: Duration = Duration::from_secs(2);

/// A question to a part; the error says why it is not ready.
pub(super) trait Check: AsyncFnMut() -> Result<(), kube::Error> {}
impl<F: AsyncFnMut() -> Result<(), kube::Error>> Check for F {}

/// Which part must be ready by when.
pub(super) struct Deadline {
    pub(super) part: &'static str,
    pub(super) limit: Duration,
    pub(super) log: PathBuf,
}

impl Deadline {
    /// Repeats `check` until it succeeds or time is up.
    pub(super) async fn wait(self, mut check: impl Check) -> Result<(), Error> {
        let end = Instant::now() + self.limit;
        loop {
            let last = match timeout(ANSWER, check()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(e)) => e.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() >= end {
                let tail = logs::tail(&self.log);
                return Err(Error::NotReady {
                    part: self.part,
                    waited: self.limit,
                    last,
                    log: self.log,
                    tail,
                });
            }
            sleep(PAUSE).await;
        }
    }
}

/// Whether the health endpoint `path` says yes.
pub(super) fn endpoint(client: &Client, path: &'static str) -> impl Check {
    let client = client.clone();
    async move || {
        let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        client.request_text(request).await.map(|_| ())
    }
}

/// Whether pods can be created in the default namespace: admission wants its ServiceAccount.
pub(super) fn default_service_account(client: &Client) -> impl Check {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    async move || accounts.get("default").await.map(|_| ())
}

/// Whether a `--controllers` list includes the one that makes the namespaces' ServiceAccounts.
pub(super) fn makes_service_accounts(controllers: &str) -> bool {
    // Its name and the older one that is still understood.
    let names = ["serviceaccount-controller", "serviceaccount"];
    let listed = |word: &str| controllers.split(',').any(|c| c.trim() == word);
    !names.iter().any(|n| listed(&format!("-{n}"))) && (listed("*") || names.iter().any(|n| listed(n)))
}

#[cfg(test)]
mod tests {
    use super::makes_service_accounts;

    #[test]
    fn controllers_are_listed_as_kubernetes_lists_them() {
        assert!(makes_service_accounts("*"));
        assert!(makes_service_accounts("*,-node-lifecycle-controller"));
        assert!(makes_service_accounts("serviceaccount-controller,namespace"));
        assert!(!makes_service_accounts("*,-serviceaccount"));
        assert!(!makes_service_accounts("namespace-controller"));
    }
}
