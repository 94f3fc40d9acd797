//! Defaults of built-in kinds, and the objects that every cluster starts with.

use serde_json::{Value, json};

use super::json::{list, remove, set, set_default, text};
use super::metadata::stamp;
use super::pods;
use super::resources::Resource;
use super::server::State;
use super::status::FieldError;
use super::store::Place;

/// The objects of an empty cluster.
pub(crate) fn seed(state: &mut State) {
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        seed_one(state, "namespaces", object);
    }
    for (name, value) in [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
    {
        let object = json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name},
            "value": value, "preemptionPolicy": "PreemptLowerPriority",
        });
        seed_one(state, "priorityclasses.scheduling.k8s.io", object);
    }
}

fn seed_one(state: &mut State, table: &str, mut object: Value) {
    let Some(resource) = state.catalogue.of_table(table).cloned() else { return };
    let uid = state.store.fresh_uid();
    set(&mut object, &["metadata", "uid"], uid);
    set(&mut object, &["metadata", "creationTimestamp"], stamp(state.now));
    on_create(&mut object, &resource);
    let name = text(&object, &["metadata", "name"]).to_owned();
    state.store.put(&Place { table: table.into(), key: (String::new(), name) }, object);
}

/// Fills a new object.
pub(crate) fn on_create(object: &mut Value, resource: &Resource) {
    common(object, resource);
    match resource.table.as_ref() {
        "pods" => pods::initial_status(object),
        "namespaces" => {
            let name = text(object, &["metadata", "name"]).to_owned();
            set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
            set(object, &["spec", "finalizers"], json!(["kubernetes"]));
            set(object, &["status"], json!({"phase": "Active"}));
        }
        "persistentvolumeclaims" | "persistentvolumes" => {
            set(object, &["status"], json!({"phase": "Pending"}));
        }
        "services" => set(object, &["status"], json!({"loadBalancer": {}})),
        "nodes" => {
            for field in ["capacity", "allocatable"] {
                if object["status"][field].is_null() && !object["status"].is_null() {
                    remove(object, &["status", field]);
                }
            }
        }
        "resourcequotas" | "validatingadmissionpolicies.admissionregistration.k8s.io" => {
            set(object, &["status"], json!({}));
        }
        _ => {}
    }
}

/// Fills a changed object.
pub(crate) fn on_update(object: &mut Value, old: &Value, resource: &Resource) {
    common(object, resource);
    if resource.is_pod() {
        // The plugin acts on updates too.
        pods::add_tolerations(object);
        // Set by admission at creation; a client that sends the whole object may have left it out.
        for field in ["priority", "preemptionPolicy", "serviceAccountName", "serviceAccount"] {
            if object["spec"][field].is_null() && !old["spec"][field].is_null() {
                set(object, &["spec", field], old["spec"][field].clone());
            }
        }
    }
    if resource.is("", "services") {
        for field in ["clusterIP", "clusterIPs"] {
            if object["spec"][field].is_null() && !old["spec"][field].is_null() {
                set(object, &["spec", field], old["spec"][field].clone());
            }
        }
    }
}

fn common(object: &mut Value, resource: &Resource) {
    if let Some(schema) = &resource.custom {
        schema.prune(object);
        schema.apply_defaults(object);
        return;
    }
    match resource.table.as_ref() {
        "pods" => pods::defaults(object),
        "services" => service(object),
        "secrets" => {
            set_default(object, &["type"], "Opaque");
        }
        "nodes" => set_default(object, &["spec"], json!({})),
        "priorityclasses.scheduling.k8s.io" => {
            set_default(object, &["preemptionPolicy"], "PreemptLowerPriority");
        }
        "validatingadmissionpolicies.admissionregistration.k8s.io" => policy(object),
        "customresourcedefinitions.apiextensions.k8s.io" => crd(object),
        _ => {}
    }
}

fn service(object: &mut Value) {
    set_default(object, &["spec", "type"], "ClusterIP");
    set_default(object, &["spec", "sessionAffinity"], "None");
    set_default(object, &["spec", "internalTrafficPolicy"], "Cluster");
    if let Some(ports) = object["spec"].get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports {
            set_default(port, &["protocol"], "TCP");
            let number = port["port"].clone();
            set_default(port, &["targetPort"], number);
        }
    }
    if text(object, &["spec", "clusterIP"]) == "None" {
        set(object, &["spec", "clusterIPs"], json!(["None"]));
    }
}

fn policy(object: &mut Value) {
    set_default(object, &["spec", "failurePolicy"], "Fail");
    if object["spec"]["matchConstraints"].is_object() {
        for field in ["namespaceSelector", "objectSelector"] {
            set_default(object, &["spec", "matchConstraints", field], json!({}));
        }
        set_default(object, &["spec", "matchConstraints", "matchPolicy"], "Equivalent");
        if let Some(rules) =
            object["spec"]["matchConstraints"].get_mut("resourceRules").and_then(Value::as_array_mut)
        {
            for rule in rules {
                set_default(rule, &["scope"], "*");
            }
        }
    }
}

fn crd(object: &mut Value) {
    set_default(object, &["spec", "conversion"], json!({"strategy": "None"}));
    let kind = text(object, &["spec", "names", "kind"]).to_owned();
    set_default(object, &["spec", "names", "listKind"], format!("{kind}List"));
    set_default(object, &["spec", "names", "singular"], kind.to_lowercase());
}

/// Checks of built-in kinds that clients run into.
pub(crate) fn validate_built_in(resource: &Resource, object: &Value, findings: &mut Vec<FieldError>) {
    match resource.table.as_ref() {
        "pods" => pods::validate(object, findings),
        "leases.coordination.k8s.io" => {
            for field in ["leaseDurationSeconds", "leaseTransitions"] {
                let value = &object["spec"][field];
                let positive = field == "leaseDurationSeconds";
                if value.as_i64().is_some_and(|n| n < i64::from(positive)) {
                    let detail = if positive {
                        "must be greater than 0"
                    } else {
                        "must be greater than or equal to 0"
                    };
                    findings.push(FieldError::invalid(format!("spec.{field}"), value, detail));
                }
            }
        }
        "customresourcedefinitions.apiextensions.k8s.io" => {
            let wanted = format!(
                "{}.{}",
                text(object, &["spec", "names", "plural"]),
                text(object, &["spec", "group"])
            );
            if text(object, &["metadata", "name"]) != wanted {
                let detail = "must be spec.names.plural+\".\"+spec.group".to_owned();
                findings.push(FieldError::invalid("metadata.name", &object["metadata"]["name"], &detail));
            }
            if list(object, &["spec", "versions"]).is_empty() {
                findings.push(FieldError::required("spec.versions", ""));
            }
        }
        _ => {}
    }
}
