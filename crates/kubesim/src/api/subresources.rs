//! Subresources that act: binding, eviction, scale.

use std::sync::Arc;

use serde_json::{Value, json};

use super::delete::{DeleteOptions, Deletion};
use super::json::{at, list, set, text};
use super::metadata::{bump_generation, stamp};
use super::request::Call;
use super::resources::Resource;
use super::server::{Answer, State, success};
use super::status::ApiError;

impl State {
    /// POST to a subresource.
    pub fn create_subresource(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        match call.info.subresource.as_str() {
            "binding" if resource.is_pod() => self.bind(call, resource),
            "eviction" if resource.is_pod() => self.evict(call, resource),
            "" => Err(ApiError::method_not_allowed("create", &call.info.path)),
            _ => Err(ApiError::no_route(&call.info.path)),
        }
    }

    fn bind(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        let body = call.json()?.unwrap_or_default();
        let name = call.info.name.as_str();
        let node = text(&body, &["target", "name"]);
        if node.is_empty() {
            let field = super::status::FieldError::required("target.name", "");
            return Err(ApiError::invalid("", "Binding", name, &[field]));
        }
        let place = Self::place(call, resource);
        let pod = self.fetch(&place, resource)?;
        let conflict = |why: String| ApiError::conflict("", "pods/binding", name, &why);
        let uid = text(&body, &["metadata", "uid"]);
        if !uid.is_empty() && uid != text(&pod, &["metadata", "uid"]) {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                text(&pod, &["metadata", "uid"])
            );
            return Err(conflict(why));
        }
        if !text(&pod, &["metadata", "deletionTimestamp"]).is_empty() {
            return Err(conflict(format!("pod {name} is being deleted, cannot be assigned to a host")));
        }
        let bound = text(&pod, &["spec", "nodeName"]);
        if !bound.is_empty() {
            return Err(conflict(format!("pod {name} is already assigned to node {bound:?}")));
        }
        if !list(&pod, &["spec", "schedulingGates"]).is_empty() {
            return Err(conflict(format!("pod {name} has non-empty .spec.schedulingGates")));
        }
        if !call.info.dry_run {
            let mut pod = (*pod).clone();
            set(&mut pod, &["spec", "nodeName"], node);
            set_condition(&mut pod, self.now, &json!({"type": "PodScheduled", "status": "True"}));
            bump_generation(&mut pod);
            let stored = self.store.put(&place, pod);
            self.after_write(&place, &stored);
        }
        let mut answer = success(Value::Null);
        answer["code"] = json!(201);
        Ok(Answer::Json(201, answer))
    }

    /// Deletes a pod through the eviction API. Disruption budgets are not modelled.
    fn evict(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        let body = call.json()?.unwrap_or_default();
        let given = text(&body, &["metadata", "name"]);
        if given != call.info.name {
            let why = format!("name in URL does not match name in Eviction object: {given:?}");
            return Err(ApiError::bad_request(why));
        }
        let place = Self::place(call, resource);
        let mut pod = self.fetch(&place, resource)?;
        let (options, dry_run) =
            DeleteOptions::from_body(body.get("deleteOptions").unwrap_or(&Value::Null), call)?;
        let mut inner = call.clone();
        inner.info.dry_run = dry_run;
        inner.info.subresource.clear();
        let running = !text(&pod, &["spec", "nodeName"]).is_empty()
            && !matches!(text(&pod, &["status", "phase"]), "Succeeded" | "Failed");
        if running && !dry_run && options.uid_fits(&pod) {
            let mut marked = (*pod).clone();
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            });
            set_condition(&mut marked, self.now, &condition);
            pod = self.store.put(&place, marked);
        }
        match self.delete_object(&inner, resource, &pod, &options)? {
            Deletion::Removed(_) | Deletion::Marked(_) => {}
        }
        let mut answer = success(Value::Null);
        answer["code"] = json!(201);
        Ok(Answer::Json(201, answer))
    }

    /// PUT or PATCH of the scale subresource.
    pub fn write_scale(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        change: impl FnOnce(&mut Value) -> Result<(), ApiError>,
    ) -> Result<Answer, ApiError> {
        let place = Self::place(call, resource);
        let old = self.fetch(&place, resource)?;
        let no_route = || ApiError::no_route(&call.info.path);
        let mut scale = scale_of(&old, resource).ok_or_else(no_route)?;
        let paths = resource.scale.clone().ok_or_else(no_route)?;
        change(&mut scale)?;
        let revision = text(&scale, &["metadata", "resourceVersion"]);
        if !revision.is_empty() && revision != text(&old, &["metadata", "resourceVersion"]) {
            return Err(ApiError::outdated(&resource.group, &resource.plural, &call.info.name));
        }
        let replicas = at(&scale, &["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
        let mut new = (*old).clone();
        let path: Vec<&str> = paths.spec.iter().map(String::as_str).collect();
        set(&mut new, &path, replicas);
        let stored = self.replace_object(call, resource, &old, new)?;
        let scale = scale_of(&stored, resource).ok_or_else(no_route)?;
        Ok(Answer::Json(200, scale))
    }
}

/// The `autoscaling/v1` Scale of an object, if its resource has one.
pub(crate) fn scale_of(object: &Value, resource: &Resource) -> Option<Value> {
    let paths = resource.scale.as_ref()?;
    let read = |path: &[String]| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        at(object, &path).cloned()
    };
    let mut metadata = json!({});
    for key in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = at(object, &["metadata", key]) {
            metadata[key] = value.clone();
        }
    }
    let mut status = json!({"replicas": read(&paths.status).and_then(|v| v.as_i64()).unwrap_or(0)});
    if let Some(selector) = paths.selector.as_deref().and_then(read) {
        status["selector"] = selector;
    }
    let replicas = read(&paths.spec).and_then(|v| v.as_i64()).unwrap_or(0);
    Some(json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": replicas}, "status": status,
    }))
}

/// Sets a status condition by its type, moving its transition time.
fn set_condition(object: &mut Value, now: jiff::Timestamp, condition: &Value) {
    let mut conditions = list(object, &["status", "conditions"]).to_vec();
    conditions.retain(|c| c["type"] != condition["type"]);
    let mut condition = condition.clone();
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = json!(stamp(now));
    conditions.push(condition);
    set(object, &["status", "conditions"], conditions);
}
