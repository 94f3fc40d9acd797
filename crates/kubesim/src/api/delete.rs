//! delete and delete-collection, with grace periods, finalizers, preconditions and propagation.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::admission::{Attributes, Operation};
use super::json::{at, list, remove, set, text};
use super::metadata::{bump_generation, stamp};
use super::read::{list_item, selection, shape};
use super::request::Call;
use super::resources::Resource;
use super::server::{Answer, State, success};
use super::status::ApiError;
use super::store::Place;
use super::write::finished_deleting;

/// Grace period of a pod that names none, in seconds (the API's default).
const DEFAULT_GRACE: i64 = 30;
/// Finalizers that stand for a propagation policy.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";

/// What becomes of an object that is deleted.
pub(crate) enum Deletion {
    /// Gone; its last state.
    Removed(Arc<Value>),
    /// Marked, waiting for a kubelet or for finalizers.
    Marked(Arc<Value>),
}

/// The options of a deletion, from the body or the query.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: String,
    pub resource_version: String,
    pub propagation: String,
}

impl DeleteOptions {
    pub fn read(call: &Call) -> Result<(Self, bool), ApiError> {
        let body = call.json()?.unwrap_or_default();
        Self::from_body(&body, call)
    }

    pub fn from_body(body: &Value, call: &Call) -> Result<(Self, bool), ApiError> {
        let query = call.info.param("gracePeriodSeconds");
        let grace = match at(body, &["gracePeriodSeconds"]).and_then(Value::as_i64) {
            Some(grace) => Some(grace),
            None if query.is_empty() => None,
            None => Some(query.parse().map_err(|_| {
                ApiError::bad_request(format!(
                    "gracePeriodSeconds: Invalid value {query:?}: must be a whole number"
                ))
            })?),
        };
        let propagation = match text(body, &["propagationPolicy"]) {
            "" => call.info.param("propagationPolicy"),
            policy => policy,
        };
        if !matches!(propagation, "" | "Background" | "Foreground" | "Orphan") {
            let why = format!(
                "propagationPolicy: Unsupported value: {propagation:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
            );
            return Err(ApiError::bad_request(why));
        }
        let dry_run = call.info.dry_run || list(body, &["dryRun"]).iter().any(|d| d == "All");
        let options = Self {
            grace,
            uid: text(body, &["preconditions", "uid"]).to_owned(),
            resource_version: text(body, &["preconditions", "resourceVersion"]).to_owned(),
            propagation: propagation.to_owned(),
        };
        Ok((options, dry_run))
    }

    fn check(&self, resource: &Resource, object: &Value) -> Result<(), ApiError> {
        let name = text(object, &["metadata", "name"]);
        let uid = text(object, &["metadata", "uid"]);
        if !self.uid.is_empty() && self.uid != uid {
            let why = format!(
                "the UID in the precondition ({}) does not match the UID in record ({uid}). The object might have been deleted and then recreated",
                self.uid
            );
            return Err(ApiError::conflict(&resource.group, &resource.kind, name, &why));
        }
        let revision = text(object, &["metadata", "resourceVersion"]);
        if !self.resource_version.is_empty() && self.resource_version != revision {
            let why = format!(
                "the ResourceVersion in the precondition ({}) does not match the ResourceVersion in record ({revision}). The object might have been modified",
                self.resource_version
            );
            return Err(ApiError::conflict(&resource.group, &resource.kind, name, &why));
        }
        Ok(())
    }
}

impl State {
    pub fn delete(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        if !call.info.subresource.is_empty() {
            return Err(ApiError::method_not_allowed(&call.info.verb, &call.info.path));
        }
        let place = Self::place(call, resource);
        let object = self.fetch(&place, resource)?;
        let (options, dry_run) = DeleteOptions::read(call)?;
        let mut call = call.clone();
        call.info.dry_run = dry_run;
        let deletion = self.delete_object(&call, resource, &object, &options)?;
        let body = match deletion {
            Deletion::Marked(object) => shape(&object, resource, call.form()),
            Deletion::Removed(object) if resource.returns_deleted() => shape(&object, resource, call.form()),
            Deletion::Removed(object) => success(removed_details(resource, &object)),
        };
        Ok(Answer::Json(200, body))
    }

    pub fn delete_collection(&mut self, call: &Call, resource: &Arc<Resource>) -> Result<Answer, ApiError> {
        let selection = selection(call, resource)?;
        let (options, dry_run) = DeleteOptions::read(call)?;
        let victims: Vec<Arc<Value>> = self
            .store
            .table(&resource.table)
            .into_iter()
            .flat_map(|t| t.scan(&call.info.namespace))
            .filter(|(_, o)| selection.matches(o))
            .map(|(_, o)| o.clone())
            .collect();
        let mut items = Vec::new();
        for object in victims {
            let mut one = call.clone();
            one.info.dry_run = dry_run;
            text(&object, &["metadata", "name"]).clone_into(&mut one.info.name);
            text(&object, &["metadata", "namespace"]).clone_into(&mut one.info.namespace);
            self.delete_object(&one, resource, &object, &options)?;
            items.push(list_item(&object, resource, call.form()));
        }
        let metadata = json!({"resourceVersion": self.store.revision.to_string()});
        let body = json!({
            "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(),
            "metadata": metadata, "items": items,
        });
        Ok(Answer::Json(200, body))
    }

    /// Deletes one object on behalf of a request.
    pub fn delete_object(
        &mut self,
        call: &Call,
        resource: &Arc<Resource>,
        object: &Arc<Value>,
        options: &DeleteOptions,
    ) -> Result<Deletion, ApiError> {
        let name = text(object, &["metadata", "name"]);
        let protected = matches!(name, "default" | "kube-system" | "kube-public");
        if resource.is("", "namespaces") && protected {
            return Err(ApiError::forbidden("", "namespaces", name, "this namespace may not be deleted"));
        }
        options.check(resource, object)?;
        let attributes = Attributes::new(call, resource, Operation::Delete, None, Some(object));
        self.validate_admission(&attributes)?;
        let place = Place {
            table: resource.table.clone(),
            key: (text(object, &["metadata", "namespace"]).to_owned(), name.to_owned()),
        };
        if call.info.dry_run {
            return Ok(Deletion::Removed(object.clone()));
        }
        Ok(self.delete_now(&place, resource, object, options))
    }

    /// Marks or removes an object, without admission.
    pub fn delete_now(
        &mut self,
        place: &Place,
        resource: &Resource,
        object: &Arc<Value>,
        options: &DeleteOptions,
    ) -> Deletion {
        let grace = if resource.is_pod() { pod_grace(object, options.grace) } else { 0 };
        let mut marked = (**object).clone();
        add_propagation(&mut marked, &options.propagation);
        let current = at(object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
        let deleting = !text(object, &["metadata", "deletionTimestamp"]).is_empty();
        // A second deletion can only shorten the grace period.
        if !deleting || current.is_some_and(|c| grace < c) {
            let end = self.now + Duration::from_secs(grace.max(0).unsigned_abs());
            set(&mut marked, &["metadata", "deletionTimestamp"], stamp(end));
            set(&mut marked, &["metadata", "deletionGracePeriodSeconds"], grace);
            bump_generation(&mut marked);
        }
        if resource.is("", "namespaces") {
            set(&mut marked, &["status", "phase"], "Terminating");
            remove(&mut marked, &["metadata", "deletionGracePeriodSeconds"]);
        } else if finished_deleting(&marked) {
            let last = self.remove_object(place).unwrap_or_else(|| object.clone());
            return Deletion::Removed(last);
        }
        if marked == **object {
            return Deletion::Marked(object.clone());
        }
        let stored = self.store.put(place, marked);
        self.after_write(place, &stored);
        Deletion::Marked(stored)
    }
}

/// The grace period of a pod: none if nothing can be running.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let finished = matches!(text(pod, &["status", "phase"]), "Succeeded" | "Failed");
    if text(pod, &["spec", "nodeName"]).is_empty() || finished {
        return 0;
    }
    let own = at(pod, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
    asked.or(own).unwrap_or(DEFAULT_GRACE).max(0)
}

fn add_propagation(object: &mut Value, policy: &str) {
    let finalizer = match policy {
        "Foreground" => FOREGROUND,
        "Orphan" => ORPHAN,
        _ => return,
    };
    let mut finalizers = list(object, &["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|f| f == finalizer) {
        finalizers.push(json!(finalizer));
    }
    set(object, &["metadata", "finalizers"], finalizers);
}

impl DeleteOptions {
    /// Whether the UID precondition, if any, is met.
    pub fn uid_fits(&self, object: &Value) -> bool {
        self.uid.is_empty() || self.uid == text(object, &["metadata", "uid"])
    }
}

fn removed_details(resource: &Resource, object: &Value) -> Value {
    let mut details = json!({
        "name": text(object, &["metadata", "name"]),
        "kind": resource.plural, "uid": text(object, &["metadata", "uid"]),
    });
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    details
}
