//! create, update and patch: one pipeline from the wanted object to the stored one.

use std::sync::Arc;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::json::{at, copy_field, drop_nulls, list, object_mut, remove, set, text};
use super::metadata::{self, stamp};
use super::patch::{self, BuiltInKeys, ListKeys};
use super::read::shape;
use super::request::Call;
use super::resources::Resource;
use super::server::{Answer, State};
use super::status::{ApiError, FieldError};
use super::store::Place;
use super::{defaults, pods};

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Longest base of a generated name: the rest of 63 is the suffix.
const GENERATED_BASE_MAX: usize = 58;

impl State {
    pub fn create(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        if !call.info.name.is_empty() {
            return self.create_subresource(call, resource);
        }
        let object = body_object(call, resource)?;
        let stored = self.create_object(call, resource, object)?;
        Ok(Answer::Json(201, shape(&stored, resource, call.form())))
    }

    /// Creates an object from its wanted form; also used by PUT and apply where they create.
    pub fn create_object(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        mut object: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let namespace = call.info.namespace.clone();
        check_namespace(&object, &namespace)?;
        if !text(&object, &["metadata", "resourceVersion"]).is_empty() {
            // The real server answers 500 without a reason.
            return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.name_object(&mut object);
        self.fill_new(&mut object, resource, &namespace);
        let name = text(&object, &["metadata", "name"]).to_owned();
        self.check_namespace_open(&namespace, resource, &name)?;
        defaults::on_create(&mut object, resource);
        if resource.is_pod() {
            self.admit_pod(&mut object, &name)?;
        }
        let mut findings = Vec::new();
        metadata::validate(resource, &object, &mut findings);
        validate_body(resource, &object, None, &mut findings);
        defaults::validate_built_in(resource, &object, &mut findings);
        if !findings.is_empty() {
            return Err(ApiError::invalid(&resource.group, &resource.kind, &name, &findings));
        }
        let attributes = Attributes::new(call, resource, Operation::Create, Some(&object), None);
        self.validate_admission(&attributes)?;
        let place = Place { table: resource.table.clone(), key: (namespace.clone(), name.clone()) };
        if self.store.get(&place.table, &namespace, &name).is_some() {
            return Err(ApiError::already_exists(&resource.group, &resource.plural, &name));
        }
        let charge = self.check_quota(resource, &object, None)?;
        if call.info.dry_run {
            return Ok(Arc::new(object));
        }
        self.charge_quota(&charge);
        let stored = self.store.put(&place, object);
        self.after_write(&place, &stored);
        Ok(stored)
    }

    fn name_object(&mut self, object: &mut Value) {
        let base = text(object, &["metadata", "generateName"]).to_owned();
        if text(object, &["metadata", "name"]).is_empty() && !base.is_empty() {
            let base: String = base.chars().take(GENERATED_BASE_MAX).collect();
            let name = format!("{base}{}", self.store.fresh_suffix());
            set(object, &["metadata", "name"], name);
        }
    }

    fn fill_new(&mut self, object: &mut Value, resource: &Resource, namespace: &str) {
        if resource.namespaced {
            set(object, &["metadata", "namespace"], namespace);
        } else {
            remove(object, &["metadata", "namespace"]);
        }
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "generation"] {
            remove(object, &["metadata", key]);
        }
        metadata::tidy(object);
        let uid = self.store.fresh_uid();
        set(object, &["metadata", "uid"], uid);
        set(object, &["metadata", "creationTimestamp"], stamp(self.now));
        if resource.generation {
            set(object, &["metadata", "generation"], 1);
        }
        if resource.status && !resource.is("", "nodes") {
            remove(object, &["status"]);
        }
    }

    /// 404 if the namespace does not exist, 403 if it is terminating.
    fn check_namespace_open(&self, namespace: &str, resource: &Resource, name: &str) -> Result<(), ApiError> {
        if !resource.namespaced {
            return Ok(());
        }
        let Some(found) = self.store.get("namespaces", "", namespace) else {
            return Err(ApiError::not_found("", "namespaces", namespace));
        };
        if text(found, &["metadata", "deletionTimestamp"]).is_empty() {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let cause = json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        Err(ApiError::forbidden(&resource.group, &resource.plural, name, &why).with_causes(vec![cause]))
    }

    pub fn update(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        if call.info.subresource == "scale" {
            let body = call.json()?.unwrap_or_default();
            return self.write_scale(call, resource, |scale| {
                *scale = body;
                Ok(())
            });
        }
        check_subresource(call, resource)?;
        let object = body_object(call, resource)?;
        check_namespace(&object, &call.info.namespace)?;
        let named = text(&object, &["metadata", "name"]);
        if named != call.info.name {
            let why = if named.is_empty() {
                "the name of the object must be set: metadata.name is empty".to_owned()
            } else {
                format!(
                    "the name of the object ({named}) does not match the name on the URL ({})",
                    call.info.name
                )
            };
            return Err(ApiError::bad_request(why));
        }
        let place = Self::place(call, resource);
        if self.store.get(&place.table, &place.key.0, &place.key.1).is_none()
            && resource.creates_on_update()
            && call.info.subresource.is_empty()
        {
            let stored = self.create_object(call, resource, object)?;
            return Ok(Answer::Json(201, shape(&stored, resource, call.form())));
        }
        let old = self.fetch(&place, resource)?;
        metadata::check_identity(resource, &old, &object, true)?;
        self.replace(call, resource, &old, object)
    }

    pub fn patch(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        let accepted: &[&str] = if resource.custom.is_some() {
            &[JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        } else {
            &[JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
        };
        if !accepted.contains(&call.content_type.as_str()) {
            return Err(ApiError::unsupported_media_type(&call.content_type, accepted));
        }
        let body = call.json()?.ok_or_else(|| ApiError::bad_request("a patch needs a body"))?;
        if call.info.subresource == "scale" {
            let (name, kind) = (call.info.name.clone(), call.content_type.clone());
            return self
                .write_scale(call, resource, |scale| apply_patch(scale, &body, &kind, &name, &BuiltInKeys));
        }
        check_subresource(call, resource)?;
        let place = Self::place(call, resource);
        if call.content_type == APPLY_PATCH {
            return self.server_side_apply(call, resource, &place, body);
        }
        let old = self.fetch(&place, resource)?;
        let mut new = (*old).clone();
        let keys: &dyn ListKeys = resource.custom.as_deref().map_or(&BuiltInKeys, |s| s);
        apply_patch(&mut new, &body, &call.content_type, &call.info.name, keys)?;
        let named = text(&new, &["metadata", "name"]);
        if named != call.info.name {
            let why = format!(
                "the name of the object ({named}) does not match the name on the URL ({})",
                call.info.name
            );
            return Err(ApiError::bad_request(why));
        }
        metadata::check_identity(resource, &old, &new, false)?;
        self.replace(call, resource, &old, new)
    }

    fn server_side_apply(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        place: &Place,
        mut body: Value,
    ) -> Result<Answer, ApiError> {
        let manager = call.info.param("fieldManager").to_owned();
        if manager.is_empty() {
            let field = FieldError::required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[field]));
        }
        check_kind(&body, resource)?;
        let config = {
            let mut config = body.clone();
            for key in ["apiVersion", "kind"] {
                remove(&mut config, &[key]);
            }
            for key in ["name", "namespace", "resourceVersion", "uid"] {
                remove(&mut config, &["metadata", key]);
            }
            config
        };
        let remember = |state: &mut Self, stored: &Value| {
            if !call.info.dry_run {
                let uid = text(stored, &["metadata", "uid"]).to_owned();
                state.applied.insert((uid, manager.clone(), call.info.subresource.clone()), config.clone());
            }
        };
        let (namespace, name) = &place.key;
        let Some(old) = self.store.get(&place.table, namespace, name).cloned() else {
            if !call.info.subresource.is_empty() {
                return Err(ApiError::not_found(&resource.group, &resource.plural, name));
            }
            set(&mut body, &["metadata", "name"], name.clone());
            drop_nulls(&mut body);
            let stored = self.create_object(call, resource, body)?;
            remember(self, &stored);
            return Ok(Answer::Json(201, shape(&stored, resource, call.form())));
        };
        metadata::check_identity(resource, &old, &body, false)?;
        let mut new = (*old).clone();
        let key =
            (text(&old, &["metadata", "uid"]).to_owned(), manager.clone(), call.info.subresource.clone());
        let keys: &dyn ListKeys = resource.custom.as_deref().map_or(&BuiltInKeys, |s| s);
        patch::apply(&mut new, &config, self.applied.get(&key), keys);
        let answer = self.replace(call, resource, &old, new)?;
        remember(self, &old);
        Ok(answer)
    }

    /// Replaces an object, or the part of it that the subresource covers.
    pub fn replace(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        old: &Arc<Value>,
        new: Value,
    ) -> Result<Answer, ApiError> {
        let stored = self.replace_object(call, resource, old, new)?;
        Ok(Answer::Json(200, shape(&stored, resource, call.form())))
    }

    pub fn replace_object(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        old: &Arc<Value>,
        mut new: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let name = call.info.name.as_str();
        prepare_update(call, resource, old, &mut new);
        let mut findings = Vec::new();
        metadata::validate_update(old, &new, &mut findings);
        metadata::validate(resource, &new, &mut findings);
        validate_body(resource, &new, Some(old), &mut findings);
        if resource.is_pod() && call.info.subresource.is_empty() {
            pods::validate_update(old, &new, &mut findings);
        }
        defaults::validate_built_in(resource, &new, &mut findings);
        if !findings.is_empty() {
            return Err(ApiError::invalid(&resource.group, &resource.kind, name, &findings));
        }
        if resource.generation && spec_changed(old, &new) {
            metadata::bump_generation(&mut new);
        }
        let attributes = Attributes::new(call, resource, Operation::Update, Some(&new), Some(old));
        self.validate_admission(&attributes)?;
        let charge = self.check_quota(resource, &new, Some(old))?;
        if new == **old {
            return Ok(old.clone());
        }
        if call.info.dry_run {
            return Ok(Arc::new(new));
        }
        self.charge_quota(&charge);
        let place = Self::place(call, resource);
        let stored = self.store.put(&place, new);
        self.after_write(&place, &stored);
        if finished_deleting(&stored) && !resource.is("", "namespaces") {
            self.remove_object(&place);
        }
        Ok(stored)
    }
}

/// Whether a deleted object has nothing left to wait for.
pub(crate) fn finished_deleting(object: &Value) -> bool {
    let grace = at(object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(0);
    !text(object, &["metadata", "deletionTimestamp"]).is_empty()
        && list(object, &["metadata", "finalizers"]).is_empty()
        && grace == 0
}

fn spec_changed(old: &Value, new: &Value) -> bool {
    let keys =
        |v: &Value| -> Vec<String> { v.as_object().map(|m| m.keys().cloned().collect()).unwrap_or_default() };
    keys(old)
        .into_iter()
        .chain(keys(new))
        .filter(|k| !matches!(k.as_str(), "metadata" | "status" | "apiVersion" | "kind"))
        .any(|k| old.get(&k) != new.get(&k))
}

/// Restores what the request must not change, then defaults and prunes.
fn prepare_update(call: &Call, resource: &Resource, old: &Value, new: &mut Value) {
    let status = call.info.subresource == "status";
    if status {
        let wanted = new.clone();
        if resource.custom.is_some() {
            old.clone_into(new);
            copy_field(&wanted, new, "status");
        } else {
            let keys: Vec<String> = object_mut(new)
                .keys()
                .chain(old.as_object().into_iter().flat_map(|m| m.keys()))
                .cloned()
                .collect();
            for key in keys.iter().filter(|k| !matches!(k.as_str(), "metadata" | "status")) {
                copy_field(old, new, key);
            }
        }
    } else if resource.status {
        copy_field(old, new, "status");
    }
    for key in ["apiVersion", "kind"] {
        copy_field(old, new, key);
    }
    metadata::keep_system_fields(old, new);
    defaults::on_update(new, old, resource);
}

/// Schema checks of custom resources.
fn validate_body(resource: &Resource, new: &Value, old: Option<&Value>, findings: &mut Vec<FieldError>) {
    if let Some(schema) = &resource.custom {
        schema.validate(new, old, "", findings);
        if !findings.iter().any(FieldError::blocks_rules) {
            schema.check_rules(new, old, "", findings);
        } else if schema.has_rules() {
            let detail = "some validation rules were not checked because the object was invalid; \
                          correct the existing errors to complete validation";
            findings.push(FieldError::invalid("<nil>", &Value::Null, detail));
        }
    }
}

fn check_subresource(call: &Call, resource: &Resource) -> Result<(), ApiError> {
    match call.info.subresource.as_str() {
        "" => Ok(()),
        "status" if resource.status => Ok(()),
        "ephemeralcontainers" | "resize" if resource.is_pod() => {
            Err(ApiError::method_not_allowed(&call.info.verb, &call.info.path))
        }
        "finalize" if resource.is("", "namespaces") => Ok(()),
        _ => Err(ApiError::no_route(&call.info.path)),
    }
}

fn apply_patch(
    target: &mut Value,
    body: &Value,
    content_type: &str,
    name: &str,
    keys: &dyn ListKeys,
) -> Result<(), ApiError> {
    match content_type {
        JSON_PATCH => patch::json_patch(target, body).map_err(|why| {
            // The real server keeps the cause to itself too.
            tracing::debug!(name, why, "JSON patch refused");
            let message = "the server rejected our request due to an error in our request";
            let mut error = ApiError::new(422, "Invalid", message);
            error.details = Some(json!({}));
            error
        })?,
        MERGE_PATCH => patch::merge(target, body),
        _ => patch::strategic(target, body, keys),
    }
    Ok(())
}

/// The body as an object of the resource's kind.
pub(crate) fn body_object(call: &Call, resource: &Resource) -> Result<Value, ApiError> {
    if !matches!(call.content_type.as_str(), "" | "application/json" | "application/yaml") {
        return Err(ApiError::unsupported_media_type(&call.content_type, &["application/json"]));
    }
    let mut object = call
        .json()?
        .filter(Value::is_object)
        .ok_or_else(|| ApiError::bad_request("the request needs an object as its body"))?;
    check_kind(&object, resource)?;
    set(&mut object, &["apiVersion"], resource.api_version());
    set(&mut object, &["kind"], resource.kind.clone());
    if resource.custom.is_none() {
        drop_nulls(&mut object);
    }
    Ok(object)
}

/// kube leaves out `apiVersion` and `kind` of typed objects; what is there must fit.
fn check_kind(object: &Value, resource: &Resource) -> Result<(), ApiError> {
    let (version, kind) = (text(object, &["apiVersion"]), text(object, &["kind"]));
    let fits = (version.is_empty() || version == resource.api_version())
        && (kind.is_empty() || kind == resource.kind);
    if fits {
        return Ok(());
    }
    if resource.custom.is_some() {
        let name = text(object, &["metadata", "name"]);
        let field = if kind == resource.kind || kind.is_empty() {
            let detail = format!("must be {}", resource.api_version());
            FieldError::invalid("apiVersion", &json!(version), &detail)
        } else {
            FieldError::invalid("kind", &json!(kind), &format!("must be {}", resource.kind))
        };
        return Err(ApiError::invalid(&resource.group, kind, name, &[field]));
    }
    let message = format!(
        "{kind} in version {version:?} cannot be handled as a {}: no kind {kind:?} is registered for version \
             {version:?} at this path",
        resource.kind
    );
    Err(ApiError::bad_request(message))
}

fn check_namespace(object: &Value, namespace: &str) -> Result<(), ApiError> {
    let given = text(object, &["metadata", "namespace"]);
    if given.is_empty() || given == namespace || namespace.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    ))
}
