//! Looks up where the volumes of a pod can be used.
//!
//! ```text
//!   Source ──GET claim──▶ its volume or class ──muster_cluster::volumes::find──▶ Found | Reason
//! ```

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client};
use muster_cluster::volumes::{self, Claim, Found, Source};
use muster_model::Reason;

/// What a volume of this source lets pods of a namespace do, or why none can start yet.
///
/// # Errors
/// When the API server does not answer, or refuses.
pub async fn look_up(
    client: &Client,
    namespace: &str,
    source: &Source,
) -> kube::Result<Result<Found, Reason>> {
    let classes = || Api::<StorageClass>::all(client.clone());
    let name = match source {
        Source::Class(name) => {
            let class = classes().get_opt(name).await?;
            let reach = class.as_ref().map(volumes::of_class).unwrap_or_default();
            return Ok(Ok(Found { reach, ..Found::default() }));
        }
        Source::Claim(name) => name,
    };
    let object = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace).get_opt(name).await?;
    let mut claim = Claim::default();
    if let Some(object) = &object {
        if let Some(volume) = volumes::volume_of(object) {
            claim.volume = Api::<PersistentVolume>::all(client.clone()).get_opt(volume).await?;
        } else if let Some(class) = volumes::class_of(object) {
            claim.class = classes().get_opt(class).await?;
        }
    }
    claim.object = object;
    Ok(volumes::find(name, &claim))
}
