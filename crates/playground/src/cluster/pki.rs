//! The certificates of one cluster, made afresh at each start.
//!
//! ```text
//! cluster CA ──> API server, controller manager, scheduler (servers); every user (clients)
//! etcd CA ──────> etcd (server), API server (client)
//! front-proxy CA > API server (client of aggregated API servers)
//! ```
//!
//! etcd has an authority of its own, as kubeadm does: whoever holds any client certificate of the
//! cluster's would else read the store past all authorization.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::{Error, work_dir::WorkDir};

/// Certificates end after this long; no local cluster lives longer.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// They begin this long before now, against clocks that differ between a host and its containers.
const BACKDATE: Duration = Duration::from_secs(3600);
/// The names that servers are reached by. 10.96.0.1 is the first Service address, the API server's.
const SERVER_NAMES: [&str; 7] = [
    "localhost",
    "127.0.0.1",
    super::flags::API_SERVICE_ADDRESS,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The API server's name towards aggregated API servers.
pub(super) const FRONT_PROXY: &str = "front-proxy-client";

/// A certificate and its private key, both PEM.
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The two files of an [`Identity`].
pub(super) struct IdentityFiles {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// A certificate authority whose key never leaves this process, unless it is written on purpose.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Its certificate's file.
    pub(super) certificate: PathBuf,
}

impl Authority {
    fn new(work: &WorkDir, name: &str) -> Result<Self, Error> {
        let mut params = params(name, None, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let certificate = work.write(&format!("pki/{name}.crt"), &issuer.pem())?;
        Ok(Self { issuer, certificate })
    }

    /// The authority's certificate, PEM.
    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity, Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity { certificate, key: key.serialize_pem() })
    }

    /// A certificate by which `user`, a member of `group`, is known to the servers that trust us.
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut params = params(user, group, &[])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn server(&self, name: &str) -> Result<Identity, Error> {
        let mut params = params(name, None, &SERVER_NAMES)?;
        // Both: etcd presents its server certificate to its peers as well.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }
}

/// Every file that the programs' flags name.
pub(super) struct Pki {
    pub(super) cluster: Authority,
    /// The cluster CA's key on disk: the controller manager signs with it.
    pub(super) cluster_key: PathBuf,
    pub(super) etcd: Authority,
    pub(super) etcd_server: IdentityFiles,
    pub(super) etcd_client: IdentityFiles,
    pub(super) apiserver: IdentityFiles,
    /// Whoever holds a certificate of this one may say on whose behalf a request is.
    pub(super) front_proxy: Authority,
    pub(super) front_proxy_client: IdentityFiles,
    /// How the API server shows itself to kubelets.
    pub(super) kubelet_client: IdentityFiles,
    pub(super) controller_manager: IdentityFiles,
    pub(super) scheduler: IdentityFiles,
    /// Signs the tokens of ServiceAccounts.
    pub(super) service_account_key: PathBuf,
    /// Verifies them.
    pub(super) service_account_public_key: PathBuf,
}

impl Pki {
    pub(super) fn create(work: &WorkDir) -> Result<Self, Error> {
        let cluster = Authority::new(work, "ca")?;
        let etcd = Authority::new(work, "etcd-ca")?;
        let front_proxy = Authority::new(work, "front-proxy-ca")?;
        let tokens = KeyPair::generate()?;
        let files = |name: &str, identity: &Identity| -> Result<IdentityFiles, Error> {
            Ok(IdentityFiles {
                certificate: work.write(&format!("pki/{name}.crt"), &identity.certificate)?,
                key: work.write(&format!("pki/{name}.key"), &identity.key)?,
            })
        };
        Ok(Self {
            cluster_key: work.write("pki/ca.key", &cluster.issuer.key().serialize_pem())?,
            etcd_server: files("etcd", &etcd.server("etcd")?)?,
            etcd_client: files("etcd-client", &etcd.client("kube-apiserver", None)?)?,
            apiserver: files("apiserver", &cluster.server("kube-apiserver")?)?,
            front_proxy_client: files("front-proxy-client", &front_proxy.client(FRONT_PROXY, None)?)?,
            kubelet_client: files(
                "kubelet-client",
                &cluster.client("kube-apiserver-kubelet-client", Some("system:masters"))?,
            )?,
            controller_manager: files("controller-manager", &cluster.server("kube-controller-manager")?)?,
            scheduler: files("scheduler", &cluster.server("kube-scheduler")?)?,
            service_account_key: work.write("pki/service-account.key", &tokens.serialize_pem())?,
            service_account_public_key: work.write("pki/service-account.pub", &tokens.public_key_pem())?,
            cluster,
            etcd,
            front_proxy,
        })
    }
}

fn params(name: &str, group: Option<&str>, names: &[&str]) -> Result<CertificateParams, Error> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    // One at most: rcgen keeps one value of each kind in a name.
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + VALIDITY).into();
    Ok(params)
}
