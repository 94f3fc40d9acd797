//! How a cluster is reached: for `muster run`, and for `muster simulate --cluster`.
//!
//! ```text
//!   --kubeconfig, --context, KUBECONFIG, the pod's service account ──Access──▶ kube::Config
//! ```

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::path::PathBuf;

/// Where the credentials are.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Kubeconfig file. `None`: `KUBECONFIG`, else the file in the home folder, else the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. `None`: its current one.
    pub context: Option<String>,
}

impl Access {
    /// The configuration of a client, and with it the context's namespace.
    ///
    /// # Errors
    /// When there are no credentials, or none of that name: with the flag and what to do.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let named = |what: &str| match &self.context {
            Some(context) => format!(
                "--context {context}: {what} cannot be used with it; `kubectl config get-contexts` lists those that there are"
            ),
            None => format!("{what} cannot be used; choose one of its contexts with --context"),
        };
        match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).with_context(|| {
                    format!("--kubeconfig {}: cannot be read; give the path of a kubeconfig", path.display())
                })?;
                kube::Config::from_custom_kubeconfig(file, &options)
                    .await
                    .with_context(|| named(&format!("--kubeconfig {}", path.display())))
            }
            None if self.context.is_some() => {
                kube::Config::from_kubeconfig(&options).await.with_context(|| named("the kubeconfig"))
            }
            None => kube::Config::infer().await.context(
                "no cluster found: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account",
            ),
        }
    }
}
