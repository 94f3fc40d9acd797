//! The API server under test, spoken to in plain requests: manifests that are wrong must reach it as they are.

use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for the server to serve the kinds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Group of copies of our kinds, where no admission policy keeps us from what only the operator writes.
pub const COPY: &str = "copy.muster.dev";
/// The copy of the kind Gang.
pub const GANG_COPY: &str = "copy.muster.dev/Gang";
/// The copy of the kind GangPlan.
pub const PLAN_COPY: &str = "copy.muster.dev/GangPlan";

/// The kinds are installed once, whichever test comes first.
static INSTALLED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();

pub struct Server {
    client: Client,
}

impl Server {
    /// The server that the environment names, with our kinds installed; `None`, said aloud, without one.
    pub async fn connect() -> Option<Self> {
        let Ok(path) = std::env::var("MUSTER_TEST_KUBECONFIG") else {
            eprintln!(
                "SKIPPED: MUSTER_TEST_KUBECONFIG is not set; `make test` starts an API server and sets it"
            );
            return None;
        };
        let kubeconfig = Kubeconfig::read_from(path).expect("the kubeconfig is readable");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let server = Self { client: Client::try_from(config).unwrap() };
        INSTALLED.get_or_init(|| server.install()).await;
        Some(server)
    }

    async fn install(&self) {
        for crd in muster_api::all_crds() {
            self.establish(&crd).await;
        }
        for kind in super::cases::manifests::KINDS {
            self.served(kind.0).await;
        }
    }

    async fn establish(&self, crd: &CustomResourceDefinition) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = crd.name_any();
        let manager = PatchParams::apply("muster-api-tests").force();
        api.patch(&name, &manager, &Patch::Apply(crd)).await.unwrap();
        let established = await_condition(api.clone(), &name, is_crd_established());
        tokio::time::timeout(PATIENCE, established).await.expect("established in time").unwrap();
    }

    /// Established comes a moment before the path is served.
    async fn served(&self, kind: &str) {
        let served = async {
            while self.send("GET", &path(kind, ""), "", None).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, served).await.expect("the kind is served in time");
    }

    /// Installs a kind once more under [`COPY`].
    pub async fn install_copy(&self, copy: &str) {
        let same = |crd: &CustomResourceDefinition| copied(copy) == Some(&crd.spec.names.kind);
        let mut crd = muster_api::all_crds().into_iter().find(same).expect("the kind");
        COPY.clone_into(&mut crd.spec.group);
        crd.metadata.name = Some(format!("{}.{COPY}", crd.spec.names.plural));
        crd.spec.names.categories = None;
        crd.spec.names.short_names = None;
        self.establish(&crd).await;
        self.served(copy).await;
    }

    /// Takes it away again, with its objects.
    pub async fn remove_copy(&self, copy: &str) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let kind = copied(copy).expect("a copy").to_lowercase();
        api.delete(&format!("{kind}s.{COPY}"), &DeleteParams::default()).await.unwrap();
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        query: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Value, String> {
        let mut request = Request::builder().method(method).uri(format!("{path}?{query}"));
        let mut bytes = Vec::new();
        if let Some((kind, body)) = body {
            request = request.header(CONTENT_TYPE, kind);
            bytes = body;
        }
        let request = request.body(bytes).map_err(|error| error.to_string())?;
        self.client.request::<Value>(request).await.map_err(|error| match error {
            kube::Error::Api(status) => status.message.clone(),
            other => other.to_string(),
        })
    }

    /// Creates an object as kubectl does: unknown fields are refused.
    pub async fn create(&self, kind: &str, object: &Value, dry_run: bool) -> Result<Value, String> {
        let body = serde_json::to_vec(object).map_err(|error| error.to_string())?;
        self.send("POST", &path(kind, ""), &query(dry_run), Some(("application/json", body))).await
    }

    /// Merges a change into an object.
    pub async fn edit(&self, kind: &str, name: &str, change: &str, dry_run: bool) -> Result<Value, String> {
        let body = ("application/merge-patch+json", change.as_bytes().to_vec());
        self.send("PATCH", &path(kind, name), &query(dry_run), Some(body)).await
    }

    /// Sets the scale, for good.
    pub async fn scale(&self, kind: &str, name: &str, replicas: u32) -> Result<Value, String> {
        let change = json!({ "spec": { "replicas": replicas } }).to_string();
        self.edit(kind, &format!("{name}/scale"), &change, false).await
    }

    pub async fn delete(&self, kind: &str, name: &str) -> Result<Value, String> {
        self.send("DELETE", &path(kind, name), "", None).await
    }
}

/// The kind of a copy.
fn copied(copy: &str) -> Option<&str> {
    copy.strip_prefix(COPY)?.strip_prefix('/')
}

fn query(dry_run: bool) -> String {
    format!("fieldValidation=Strict{}", if dry_run { "&dryRun=All" } else { "" })
}

fn path(kind: &str, name: &str) -> String {
    if let Some(kind) = copied(kind) {
        return path(kind, name).replace("muster.dev", COPY);
    }
    let (_, plural, namespaced) =
        super::cases::manifests::KINDS.iter().find(|row| row.0 == kind).copied().expect("a kind of ours");
    let scope = if namespaced { "namespaces/default/" } else { "" };
    let name = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("/apis/muster.dev/v1alpha1/{scope}{plural}{name}")
}
