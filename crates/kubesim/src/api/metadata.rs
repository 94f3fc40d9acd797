//! `ObjectMeta`: what the server fills in, keeps, and refuses.

use serde_json::{Value, json};

use super::json::{at, child_mut, copy_field, list, object_mut, remove, set, text};
use super::resources::Resource;
use super::status::{ApiError, FieldError};

/// Longest label value and longest part of a label key, as apimachinery has them.
const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;

const SUBDOMAIN_HINT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
'-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_HINT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS1035_HINT: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const VALUE_HINT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn is_label(s: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    s.bytes().all(inner) && edge(s.bytes().next()) && edge(s.bytes().last())
}

fn is_label_value(s: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let edge = |b: Option<u8>| b.is_none_or(|b| b.is_ascii_alphanumeric());
    s.bytes().all(inner) && edge(s.bytes().next()) && edge(s.bytes().last())
}

/// Checks a name by the rule of its resource.
fn check_name(resource: &Resource, name: &str, findings: &mut Vec<FieldError>) {
    let (ok, hint, max) = match (resource.group.as_str(), resource.plural.as_str()) {
        ("rbac.authorization.k8s.io", _) => {
            (!name.contains('/') && !name.contains('%'), "may not contain '/' or '%'", usize::MAX)
        }
        ("", "namespaces") if name.contains('.') => (false, "must not contain dots", LABEL_MAX),
        ("", "namespaces") => (is_label(name), LABEL_HINT, LABEL_MAX),
        ("", "services") => {
            let letter = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
            (is_label(name) && letter, DNS1035_HINT, LABEL_MAX)
        }
        _ => (name.split('.').all(is_label), SUBDOMAIN_HINT, SUBDOMAIN_MAX),
    };
    if name.len() > max {
        let detail = format!("must be no more than {max} characters");
        findings.push(FieldError::invalid("metadata.name", &json!(name), &detail));
    }
    if !ok {
        findings.push(FieldError::invalid("metadata.name", &json!(name), hint));
    }
}

/// Checks the metadata of a new or changed object.
pub(crate) fn validate(resource: &Resource, object: &Value, findings: &mut Vec<FieldError>) {
    let name = text(object, &["metadata", "name"]);
    if name.is_empty() {
        findings.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        check_name(resource, name, findings);
    }
    if let Some(labels) = at(object, &["metadata", "labels"]).and_then(Value::as_object) {
        for value in labels.values().filter_map(Value::as_str) {
            if value.len() > LABEL_MAX {
                let detail = format!("must be no more than {LABEL_MAX} bytes");
                findings.push(FieldError::invalid("metadata.labels", &json!(value), &detail));
            } else if !is_label_value(value) {
                findings.push(FieldError::invalid("metadata.labels", &json!(value), VALUE_HINT));
            }
        }
    }
    for (i, owner) in list(object, &["metadata", "ownerReferences"]).iter().enumerate() {
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(owner, &[field]).is_empty() {
                let path = format!("metadata.ownerReferences[{i}].{field}");
                let detail =
                    if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
                findings.push(FieldError::invalid(path, &json!(""), detail));
            }
        }
    }
}

/// Refuses changes of finalizers that deletion forbids.
pub(crate) fn validate_update(old: &Value, new: &Value, findings: &mut Vec<FieldError>) {
    if text(old, &["metadata", "deletionTimestamp"]).is_empty() {
        return;
    }
    let before = list(old, &["metadata", "finalizers"]);
    let added: Vec<String> = list(new, &["metadata", "finalizers"])
        .iter()
        .filter(|f| !before.contains(f))
        .map(Value::to_string)
        .collect();
    if !added.is_empty() {
        let detail = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.join(", ")
        );
        findings.push(FieldError::forbidden("metadata.finalizers", &detail));
    }
}

/// Takes the system's fields from the stored object, whatever the client sent.
pub(crate) fn keep_system_fields(old: &Value, new: &mut Value) {
    let Some(before) = old.get("metadata") else { return };
    let metadata = child_mut(new, "metadata");
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
        "selfLink",
    ] {
        copy_field(before, metadata, key);
    }
    tidy(new);
}

/// Drops what the server never keeps: managed fields, empty maps and lists of metadata.
pub(crate) fn tidy(object: &mut Value) {
    remove(object, &["metadata", "managedFields"]);
    remove(object, &["metadata", "selfLink"]);
    let metadata = object_mut(child_mut(object, "metadata"));
    metadata.retain(|_, v| {
        let empty =
            v.as_object().is_some_and(serde_json::Map::is_empty) || v.as_array().is_some_and(Vec::is_empty);
        !(v.is_null() || empty || v.as_str() == Some(""))
    });
}

/// Checks the identity of an update against the stored object: name, UID and resourceVersion.
pub(crate) fn check_identity(
    resource: &Resource,
    old: &Value,
    new: &Value,
    put: bool,
) -> Result<(), ApiError> {
    let name = text(old, &["metadata", "name"]);
    let uid = text(new, &["metadata", "uid"]);
    let actual = text(old, &["metadata", "uid"]);
    if !uid.is_empty() && uid != actual {
        let namespace = text(old, &["metadata", "namespace"]);
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: /registry/{}/{}{name}, ResourceVersion: 0, \
             AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}",
            resource.table, prefix
        );
        return Err(ApiError::conflict(&resource.group, &resource.plural, name, &why));
    }
    let revision = text(new, &["metadata", "resourceVersion"]);
    if revision.is_empty() || revision == "0" {
        if put && resource.needs_resource_version() {
            let field =
                FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
            return Err(ApiError::invalid(&resource.group, &resource.plural, name, &[field]));
        }
        return Ok(());
    }
    if revision != text(old, &["metadata", "resourceVersion"]) {
        return Err(ApiError::outdated(&resource.group, &resource.plural, name));
    }
    Ok(())
}

/// Bumps the generation.
pub(crate) fn bump_generation(object: &mut Value) {
    let generation = at(object, &["metadata", "generation"]).and_then(Value::as_i64);
    if let Some(generation) = generation {
        set(object, &["metadata", "generation"], generation + 1);
    }
}

/// A timestamp as `metav1.Time` prints it.
pub(crate) fn stamp(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
