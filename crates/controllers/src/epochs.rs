//! The epochs that objects bear, for a Lease that was deleted: the next one must be above all of them.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, ObjectList};
use kube::core::Object;
use kube::{Api, Client, ResourceExt};
use muster_api::{Gang, labels};
use serde::Deserialize;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// How many objects are asked for at a time.
const PAGE: u32 = 500;
/// Anyone can annotate a pod: beyond this no epoch is believed, so that nobody brings the count to its end.
const HIGHEST_CREDIBLE: i64 = 2_000_000_000;

/// Why the epochs are not known.
pub(crate) enum Error {
    /// The API server refused.
    Api(Box<kube::Error>),
    /// A page did not come in time.
    Silent,
}

/// Of a Gang, the epoch alone: one that cannot be read otherwise must not keep everybody from leading.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    epoch: serde_json::Value,
}

/// The highest epoch that any Gang or pod of a gang bears; 0 if none does. Each page may take `patience`.
pub(crate) async fn highest(client: &Client, patience: Duration) -> Result<i64, Error> {
    let resource = kube::core::ApiResource::erase::<Gang>(&());
    let gangs: Api<Object<serde_json::Value, Status>> = Api::all_with(client.clone(), &resource);
    let of_gangs = pages(patience, |params| {
        let gangs = gangs.clone();
        async move { gangs.list(&params).await }
    });
    let of_gangs = of_gangs.await?.into_iter().filter_map(|gang| gang.status?.epoch.as_i64()).max();
    let pods: Api<Pod> = Api::all(client.clone());
    let of_pods = pages(patience, |params| {
        let pods = pods.clone();
        async move { pods.list_metadata(&params.labels(labels::GANG)).await }
    });
    let of_pods = of_pods
        .await?
        .into_iter()
        .filter_map(|pod| pod.annotations().get(labels::EPOCH)?.parse::<i64>().ok())
        .filter(|epoch| *epoch <= HIGHEST_CREDIBLE)
        .max();
    Ok(of_gangs.max(of_pods).unwrap_or(0).max(0))
}

/// All objects, page by page.
async fn pages<T, F, Fut>(patience: Duration, page: F) -> Result<Vec<T>, Error>
where
    T: Clone,
    F: Fn(ListParams) -> Fut,
    Fut: Future<Output = Result<ObjectList<T>, kube::Error>>,
{
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let list = timeout(patience, page(params.clone())).await.map_err(|_| Error::Silent)?;
        let list = list.map_err(|error| Error::Api(Box::new(error)))?;
        all.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}
