//! Installs Muster into a cluster: its CustomResourceDefinitions, and of `deploy/` what is not the operator itself
//! (account, roles, the fence). The operator then runs outside, under the account that the chart gives it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, TypeMeta};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use std::time::Duration;

/// What the chart renders, as committed.
const MANIFESTS: &str = include_str!("../../../deploy/muster.yaml");
/// Kinds that run the operator: here it runs as a process of its own.
const LEFT_OUT: &[&str] = &["Deployment", "Service", "PodDisruptionBudget", "CustomResourceDefinition"];

/// Why Muster could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A manifest is not what it should be.
    #[error("deploy/muster.yaml: {0}; run `make manifests`")]
    Manifest(String),
    /// The API server refused something.
    #[error("installing {what}: {source}")]
    Api {
        /// What was being installed.
        what: String,
        /// The refusal.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not serve a kind in time.
    #[error("{0} is not served after half a minute; look at the API server's log")]
    NotServed(String),
}

/// All objects of `deploy/muster.yaml`.
///
/// # Errors
/// When it is not what it should be.
pub fn manifests() -> Result<Vec<DynamicObject>, Error> {
    let documents = serde_yaml_ng::Deserializer::from_str(MANIFESTS);
    let objects = documents.map(Option::<DynamicObject>::deserialize);
    let objects: Result<Vec<_>, _> = objects.collect();
    Ok(objects.map_err(|error| Error::Manifest(error.to_string()))?.into_iter().flatten().collect())
}

/// Installs, or brings up to date.
///
/// # Errors
/// When the API server refuses something or does not serve a kind in time.
pub async fn install(admin: &Client) -> Result<(), Error> {
    let api = |what: &str, source| Error::Api { what: what.to_owned(), source: Box::new(source) };
    let params = PatchParams::apply("muster-playground").force();
    let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for crd in muster_api::all_crds() {
        let name = crd.name_any();
        crds.patch(&name, &params, &Patch::Apply(&crd)).await.map_err(|error| api(&name, error))?;
    }
    for object in manifests()? {
        let types: TypeMeta =
            object.types.clone().ok_or_else(|| Error::Manifest("a document has no kind".into()))?;
        if LEFT_OUT.contains(&types.kind.as_str()) {
            continue;
        }
        let gvk = GroupVersionKind::try_from(&types).map_err(|e| Error::Manifest(e.to_string()))?;
        let resource = ApiResource::from_gvk(&gvk);
        let target: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(admin.clone(), &namespace, &resource),
            None => Api::all_with(admin.clone(), &resource),
        };
        let name = object.name_any();
        target
            .patch(&name, &params, &Patch::Apply(&object))
            .await
            .map_err(|error| api(&format!("{} {name}", types.kind), error))?;
    }
    for crd in muster_api::all_crds() {
        let name = crd.name_any();
        let served = await_condition(crds.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(30), served)
            .await
            .map_err(|_| Error::NotServed(name.clone()))?
            .map_err(|_| Error::NotServed(name.clone()))?;
    }
    Ok(())
}
