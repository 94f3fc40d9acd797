//! What a cluster's DNS answers, read from EndpointSlices as CoreDNS reads them.
//!
//! ```text
//! "service" | "hostname.service" ──► EndpointSlices of the Service ──► addresses of ready endpoints
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};

/// The label that ties an EndpointSlice to its Service.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The addresses that `name` resolves to in `namespace`, sorted; none where DNS would answer
/// NXDOMAIN or an empty answer. `name` is a Service or `hostname.service`; a trailing
/// `.<namespace>.svc…` is not read. A Service with a cluster IP resolves to that.
pub async fn resolve(client: &Client, namespace: &str, name: &str) -> Result<Vec<IpAddr>, kube::Error> {
    let (hostname, service) = match name.split_once('.') {
        Some((hostname, service)) => (Some(hostname), service),
        None => (None, name),
    };
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let Some(found) = services.get_opt(service).await? else { return Ok(Vec::new()) };
    let cluster_ip = found.spec.and_then(|s| s.cluster_ip).and_then(|ip| ip.parse().ok());
    if let (Some(ip), None) = (cluster_ip, hostname) {
        return Ok(vec![ip]);
    }
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
    let of_service = ListParams::default().labels(&format!("{SERVICE_LABEL}={service}"));
    let mut addresses = BTreeSet::new();
    for slice in slices.list(&of_service).await? {
        for endpoint in slice.endpoints.into_iter().flatten() {
            // An unknown readiness counts as ready, as the API says.
            let ready = endpoint.conditions.and_then(|c| c.ready).unwrap_or(true);
            if ready && hostname.is_none_or(|hostname| endpoint.hostname.as_deref() == Some(hostname)) {
                addresses.extend(endpoint.addresses.iter().filter_map(|a| a.parse::<IpAddr>().ok()));
            }
        }
    }
    Ok(addresses.into_iter().collect())
}
