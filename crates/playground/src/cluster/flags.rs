//! The command lines of the programs, from one layout of files and ports.

use std::path::Path;

use super::pki::{FRONT_PROXY, IdentityFiles, Pki};
use super::{Access, Options};

/// The first address of the Service range: the API server's own Service gets it.
pub(super) const API_SERVICE_ADDRESS: &str = "10.96.0.1";
/// kubeadm's default, and wide enough for a Service per leader of thousands of gangs.
const SERVICE_RANGE: &str = "10.96.0.0/16";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Bytes that etcd may hold: the most that etcd suggests. Benchmarks write gigabytes of revisions in
/// the 5 minutes between two compactions.
pub(super) const ETCD_QUOTA: u64 = 8 << 30;

/// What is logged of each request: who did which verb on what, once it is done.
pub(super) const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Metadata
";

/// The ports of one cluster, all on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) etcd_peer: u16,
    pub(super) apiserver: u16,
    pub(super) controller_manager: u16,
    pub(super) scheduler: u16,
}

/// The address of a port here.
pub(super) fn url(port: u16) -> String {
    format!("https://127.0.0.1:{port}")
}

/// A command line under construction.
struct Flags(Vec<String>);

impl Flags {
    fn set(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.0.push(format!("--{name}={value}"));
        self
    }

    fn file(self, name: &str, path: &Path) -> Self {
        self.set(name, path.display())
    }

    /// A pair of files under the two names the program gives them.
    fn pair(self, certificate: &str, key: &str, files: &IdentityFiles) -> Self {
        self.file(certificate, &files.certificate).file(key, &files.key)
    }

    /// What the caller adds comes last: for a flag that is given twice the last one counts.
    fn and(mut self, extra: &[String]) -> Vec<String> {
        self.0.extend_from_slice(extra);
        self.0
    }
}

pub(super) fn etcd(pki: &Pki, ports: Ports, data: &Path) -> Vec<String> {
    let (client, peer) = (url(ports.etcd), url(ports.etcd_peer));
    Flags(Vec::new())
        .set("name", "muster")
        .file("data-dir", data)
        .set("listen-client-urls", &client)
        .set("advertise-client-urls", &client)
        .set("listen-peer-urls", &peer)
        .set("initial-advertise-peer-urls", &peer)
        .set("initial-cluster", format!("muster={peer}"))
        .pair("cert-file", "key-file", &pki.etcd_server)
        .file("trusted-ca-file", &pki.etcd.certificate)
        .set("client-cert-auth", true)
        .pair("peer-cert-file", "peer-key-file", &pki.etcd_server)
        .file("peer-trusted-ca-file", &pki.etcd.certificate)
        .set("peer-client-cert-auth", true)
        // The data die with the cluster, so nothing is gained by waiting for a disk.
        .set("unsafe-no-fsync", true)
        .set("quota-backend-bytes", ETCD_QUOTA)
        .set("log-level", "warn")
        .and(&[])
}

pub(super) fn apiserver(pki: &Pki, ports: Ports, options: &Options, audit: Option<Audit<'_>>) -> Vec<String> {
    let mut flags = Flags(Vec::new())
        .set("bind-address", "127.0.0.1")
        .set("secure-port", ports.apiserver)
        .pair("tls-cert-file", "tls-private-key-file", &pki.apiserver)
        .file("client-ca-file", &pki.cluster.certificate)
        .set("anonymous-auth", false)
        .set("authorization-mode", "RBAC")
        .set("etcd-servers", url(ports.etcd))
        .file("etcd-cafile", &pki.etcd.certificate)
        .pair("etcd-certfile", "etcd-keyfile", &pki.etcd_client)
        .pair("kubelet-client-certificate", "kubelet-client-key", &pki.kubelet_client)
        // Aggregated API servers (metrics adapters, say); without, its clients log errors at each start.
        .file("requestheader-client-ca-file", &pki.front_proxy.certificate)
        .set("requestheader-allowed-names", FRONT_PROXY)
        .set("requestheader-username-headers", "X-Remote-User")
        .set("requestheader-group-headers", "X-Remote-Group")
        .set("requestheader-extra-headers-prefix", "X-Remote-Extra-")
        .pair("proxy-client-cert-file", "proxy-client-key-file", &pki.front_proxy_client)
        .set("kubelet-preferred-address-types", "InternalIP")
        .set("service-account-issuer", ISSUER)
        .file("service-account-key-file", &pki.service_account_public_key)
        .file("service-account-signing-key-file", &pki.service_account_key)
        .set("service-cluster-ip-range", SERVICE_RANGE)
        // Named, for it would look for a route on a machine that may have none; and told to no pod, for
        // it refuses to advertise a loopback address.
        .set("advertise-address", "127.0.0.1")
        .set("endpoint-reconciler-type", "none")
        // Real kubelets run GPU drivers' and network plugins' pods as every cluster does.
        .set("allow-privileged", true)
        .set("profiling", false);
    if let Some(audit) = audit {
        // In the request's way (the default mode, blocking) and never rotated: a count of the lines is
        // exact as soon as the answer is here. One line costs microseconds.
        flags = flags
            .file("audit-policy-file", audit.policy)
            .file("audit-log-path", audit.log)
            .set("audit-log-maxsize", 0);
    }
    flags.and(&options.apiserver_flags)
}

/// The files of the audit log.
#[derive(Clone, Copy)]
pub(super) struct Audit<'a> {
    pub(super) policy: &'a Path,
    pub(super) log: &'a Path,
}

pub(super) fn controller_manager(pki: &Pki, ports: Ports, options: &Options, access: &Access) -> Vec<String> {
    let mut flags = serving(&pki.controller_manager, ports.controller_manager, access)
        .file("service-account-private-key-file", &pki.service_account_key)
        .file("root-ca-file", &pki.cluster.certificate)
        .file("cluster-signing-cert-file", &pki.cluster.certificate)
        .file("cluster-signing-key-file", &pki.cluster_key)
        .set("use-service-account-credentials", true)
        // The default of 20 requests a second, which whoever runs large clusters raises, too: hundreds of nodes that
        // register at once would keep their not-ready taints for half a minute.
        .set("kube-api-qps", 1_000)
        .set("kube-api-burst", 1_000)
        .set("controllers", &options.controllers);
    let times = [
        ("node-monitor-period", options.node_monitor_period),
        ("node-monitor-grace-period", options.node_monitor_grace_period),
    ];
    for (name, time) in times {
        if let Some(time) = time {
            flags = flags.set(name, format!("{}ms", time.as_millis()));
        }
    }
    flags.and(&options.controller_manager_flags)
}

pub(super) fn scheduler(pki: &Pki, ports: Ports, options: &Options, access: &Access) -> Vec<String> {
    serving(&pki.scheduler, ports.scheduler, access).and(&options.scheduler_flags)
}

/// What the clients of the API server that serve their health have in common.
fn serving(files: &IdentityFiles, port: u16, access: &Access) -> Flags {
    Flags(Vec::new())
        .set("bind-address", "127.0.0.1")
        .set("secure-port", port)
        .pair("tls-cert-file", "tls-private-key-file", files)
        .file("kubeconfig", &access.path)
        .file("authentication-kubeconfig", &access.path)
        .file("authorization-kubeconfig", &access.path)
        .set("leader-elect", false)
        .set("profiling", false)
}
