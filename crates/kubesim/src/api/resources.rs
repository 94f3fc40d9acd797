//! What is served: the built-in resources, and those that CustomResourceDefinitions add.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::schema::Schema;

/// One served resource in one version.
#[derive(Debug, Clone)]
pub(crate) struct Resource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    /// Whether `/status` is a separate subresource.
    pub status: bool,
    /// JSON paths of the scale subresource, if it is served.
    pub scale: Option<Scale>,
    /// Key of the table that stores it: `plural` or `plural.group`.
    pub table: Arc<str>,
    /// Set for custom resources.
    pub custom: Option<Arc<Schema>>,
    /// Whether `metadata.generation` is kept.
    pub generation: bool,
}

/// Paths of a scale subresource, as lists of field names.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    pub spec: Vec<String>,
    pub status: Vec<String>,
    pub selector: Option<Vec<String>>,
}

impl Resource {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub fn is_pod(&self) -> bool {
        self.is("", "pods")
    }

    /// PUT to a name that does not exist creates it (strategies that allow create on update).
    pub fn creates_on_update(&self) -> bool {
        matches!(
            (self.group.as_str(), self.plural.as_str()),
            ("coordination.k8s.io", "leases")
                | ("", "endpoints" | "events" | "services")
                | ("rbac.authorization.k8s.io", _)
        )
    }

    /// PUT must carry a resourceVersion (strategies without unconditional update).
    pub fn needs_resource_version(&self) -> bool {
        self.custom.is_some() || matches!(self.plural.as_str(), "leases" | "customresourcedefinitions")
    }

    /// DELETE answers with the object rather than with a Status.
    pub fn returns_deleted(&self) -> bool {
        self.group.is_empty()
            && matches!(
                self.plural.as_str(),
                "pods"
                    | "services"
                    | "serviceaccounts"
                    | "persistentvolumes"
                    | "persistentvolumeclaims"
                    | "resourcequotas"
                    | "endpoints"
            )
            || self.plural == "resourceclaims"
    }
}

/// `group, version, plural, singular, kind, namespaced, status subresource, generation`.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, bool, bool, bool);

const BUILT_IN: &[Row] = &[
    ("", "v1", "pods", "pod", "Pod", true, true, true),
    ("", "v1", "nodes", "node", "Node", false, true, false),
    ("", "v1", "services", "service", "Service", true, true, false),
    ("", "v1", "configmaps", "configmap", "ConfigMap", true, false, false),
    ("", "v1", "secrets", "secret", "Secret", true, false, false),
    ("", "v1", "events", "event", "Event", true, false, false),
    ("", "v1", "namespaces", "namespace", "Namespace", false, true, false),
    ("", "v1", "serviceaccounts", "serviceaccount", "ServiceAccount", true, false, false),
    ("", "v1", "resourcequotas", "resourcequota", "ResourceQuota", true, true, false),
    ("", "v1", "limitranges", "limitrange", "LimitRange", true, false, false),
    ("", "v1", "persistentvolumeclaims", "persistentvolumeclaim", "PersistentVolumeClaim", true, true, false),
    ("", "v1", "persistentvolumes", "persistentvolume", "PersistentVolume", false, true, false),
    ("", "v1", "endpoints", "endpoints", "Endpoints", true, false, false),
    ("", "v1", "podtemplates", "podtemplate", "PodTemplate", true, false, true),
    ("apps", "v1", "deployments", "deployment", "Deployment", true, true, true),
    ("apps", "v1", "replicasets", "replicaset", "ReplicaSet", true, true, true),
    ("apps", "v1", "statefulsets", "statefulset", "StatefulSet", true, true, true),
    ("apps", "v1", "daemonsets", "daemonset", "DaemonSet", true, true, true),
    ("apps", "v1", "controllerrevisions", "controllerrevision", "ControllerRevision", true, false, false),
    ("batch", "v1", "jobs", "job", "Job", true, true, true),
    ("batch", "v1", "cronjobs", "cronjob", "CronJob", true, true, true),
    ("coordination.k8s.io", "v1", "leases", "lease", "Lease", true, false, false),
    ("events.k8s.io", "v1", "events", "event", "Event", true, false, false),
    ("discovery.k8s.io", "v1", "endpointslices", "endpointslice", "EndpointSlice", true, false, true),
    ("scheduling.k8s.io", "v1", "priorityclasses", "priorityclass", "PriorityClass", false, false, true),
    ("policy", "v1", "poddisruptionbudgets", "poddisruptionbudget", "PodDisruptionBudget", true, true, true),
    ("storage.k8s.io", "v1", "storageclasses", "storageclass", "StorageClass", false, false, false),
    ("storage.k8s.io", "v1", "csinodes", "csinode", "CSINode", false, false, false),
    ("resource.k8s.io", "v1", "resourceclaims", "resourceclaim", "ResourceClaim", true, true, false),
    (
        "resource.k8s.io",
        "v1",
        "resourceclaimtemplates",
        "resourceclaimtemplate",
        "ResourceClaimTemplate",
        true,
        false,
        false,
    ),
    ("resource.k8s.io", "v1", "resourceslices", "resourceslice", "ResourceSlice", false, false, true),
    ("resource.k8s.io", "v1", "deviceclasses", "deviceclass", "DeviceClass", false, false, true),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "flowschema", "FlowSchema", false, true, false),
    ("node.k8s.io", "v1", "runtimeclasses", "runtimeclass", "RuntimeClass", false, false, false),
    ("networking.k8s.io", "v1", "networkpolicies", "networkpolicy", "NetworkPolicy", true, false, true),
    ("rbac.authorization.k8s.io", "v1", "roles", "role", "Role", true, false, false),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "rolebinding", "RoleBinding", true, false, false),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "clusterrole", "ClusterRole", false, false, false),
    (
        "rbac.authorization.k8s.io",
        "v1",
        "clusterrolebindings",
        "clusterrolebinding",
        "ClusterRoleBinding",
        false,
        false,
        false,
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "customresourcedefinition",
        "CustomResourceDefinition",
        false,
        true,
        true,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "validatingadmissionpolicy",
        "ValidatingAdmissionPolicy",
        false,
        true,
        true,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybinding",
        "ValidatingAdmissionPolicyBinding",
        false,
        false,
        true,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        "ValidatingWebhookConfiguration",
        false,
        false,
        true,
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfiguration",
        "MutatingWebhookConfiguration",
        false,
        false,
        true,
    ),
];

/// Table of everything served, by (group, version, plural).
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    served: BTreeMap<(String, String, String), Arc<Resource>>,
}

/// The name of the table that stores a group's resource.
pub(crate) fn table_name(group: &str, plural: &str) -> Arc<str> {
    Arc::from(super::status::qualified(group, plural))
}

impl Catalogue {
    pub fn built_in() -> Self {
        let mut catalogue = Self { served: BTreeMap::new() };
        for &(group, version, plural, singular, kind, namespaced, status, generation) in BUILT_IN {
            let scale = (group == "apps" && status && plural != "daemonsets").then(|| Scale {
                spec: vec!["spec".into(), "replicas".into()],
                status: vec!["status".into(), "replicas".into()],
                selector: None,
            });
            catalogue.add(Resource {
                group: group.into(),
                version: version.into(),
                plural: plural.into(),
                singular: singular.into(),
                kind: kind.into(),
                namespaced,
                status,
                scale,
                table: table_name(group, plural),
                custom: None,
                generation,
            });
        }
        catalogue
    }

    pub fn add(&mut self, resource: Resource) {
        let key = (resource.group.clone(), resource.version.clone(), resource.plural.clone());
        self.served.insert(key, Arc::new(resource));
    }

    /// Stops serving every version of a group's resource.
    pub fn remove(&mut self, group: &str, plural: &str) {
        self.served.retain(|(g, _, p), _| g != group || p != plural);
    }

    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.served.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The resource of an object's `apiVersion` and `kind`.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.served.values().find(|r| r.kind == kind && r.api_version() == api_version)
    }

    /// Any served version of what a table stores.
    pub fn of_table(&self, table: &str) -> Option<&Arc<Resource>> {
        self.served.values().find(|r| &*r.table == table)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.served.values()
    }
}
