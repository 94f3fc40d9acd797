//! Who may use the cluster and how: kubeconfigs in memory and on disk.

use std::path::PathBuf;

use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::pki::Identity;
use super::{Error, work_dir::WorkDir};

/// How one user reaches the cluster.
#[derive(Debug, Clone)]
pub struct Access {
    /// The file, for programs that want one; only its owner can read it.
    pub path: PathBuf,
    /// Its content.
    pub kubeconfig: Kubeconfig,
}

impl Access {
    /// The settings of a client as this user, to be changed (timeouts, say) before one is made.
    pub async fn config(&self) -> Result<Config, Error> {
        Ok(Config::from_custom_kubeconfig(self.kubeconfig.clone(), &KubeConfigOptions::default()).await?)
    }

    /// A client as this user.
    pub async fn client(&self) -> Result<Client, Error> {
        Ok(Client::try_from(self.config().await?)?)
    }
}

/// By what a user proves who they are.
pub(super) enum Credential<'a> {
    Certificate(&'a Identity),
    Token(&'a str),
}

/// One API server as its clients know it.
pub(super) struct Server {
    /// `https://127.0.0.1:<port>`.
    pub(super) url: String,
    /// Its authority's certificate, PEM.
    pub(super) authority: String,
}

impl Server {
    /// Writes the kubeconfig `name` with `credential`, for the namespace `namespace`.
    pub(super) fn access(
        &self,
        work: &WorkDir,
        name: &str,
        namespace: &str,
        credential: &Credential<'_>,
    ) -> Result<Access, Error> {
        // JSON, which every reader of YAML takes.
        let text = format!("{:#}", self.kubeconfig(name, namespace, credential));
        Ok(Access {
            path: work.write(&format!("kubeconfig/{name}.yaml"), &text)?,
            kubeconfig: Kubeconfig::from_yaml(&text)?,
        })
    }

    fn kubeconfig(&self, name: &str, namespace: &str, credential: &Credential<'_>) -> Value {
        // ByteString writes base64, as the file format wants it.
        let data = |pem: &str| ByteString(pem.as_bytes().to_vec());
        let user = match credential {
            Credential::Certificate(identity) => json!({
                "client-certificate-data": data(&identity.certificate),
                "client-key-data": data(&identity.key),
            }),
            Credential::Token(token) => json!({ "token": token }),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "muster",
                "cluster": { "server": self.url, "certificate-authority-data": data(&self.authority) },
            }],
            "users": [{ "name": name, "user": user }],
            "contexts": [{
                "name": "muster",
                "context": { "cluster": "muster", "user": name, "namespace": namespace },
            }],
            "current-context": "muster",
        })
    }
}
