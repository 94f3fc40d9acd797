//! get and list, and the forms in which objects are answered.

use std::sync::Arc;

use serde_json::{Value, json};

use super::json::{at, set};
use super::request::{Call, Form};
use super::resources::Resource;
use super::selector::{FieldSelector, LabelSelector, Selection};
use super::server::{Answer, State};
use super::status::ApiError;
use super::store::{Key, Place};

/// The selectors of a request.
pub(crate) fn selection(call: &Call, resource: &Resource) -> Result<Selection, ApiError> {
    let extra = resource.custom.as_ref().map(|_| Vec::new()).unwrap_or_default();
    let mut fields = call.info.param("fieldSelector").to_owned();
    // `GET …/pods/x?watch=true` is a watch of one name.
    if call.info.verb == "watch" && !call.info.name.is_empty() {
        let separator = if fields.is_empty() { "" } else { "," };
        fields = format!("{fields}{separator}metadata.name={}", call.info.name);
    }
    Ok(Selection {
        labels: LabelSelector::parse(call.info.param("labelSelector"))?,
        fields: FieldSelector::parse(&fields, &resource.table, &extra)?,
    })
}

/// An object as the request's version and form want it.
pub(crate) fn shape(object: &Value, resource: &Resource, form: Form) -> Value {
    if form == Form::Metadata {
        return json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata").cloned().unwrap_or_default(),
        });
    }
    let mut shaped = object.clone();
    set(&mut shaped, &["apiVersion"], resource.api_version());
    set(&mut shaped, &["kind"], resource.kind.clone());
    shaped
}

/// An object as an item of a list: built-in kinds leave out what the list's kind says.
pub(crate) fn list_item(object: &Value, resource: &Resource, form: Form) -> Value {
    let mut item = shape(object, resource, form);
    if form == Form::Full && resource.custom.is_none() {
        super::json::remove(&mut item, &["apiVersion"]);
        super::json::remove(&mut item, &["kind"]);
    }
    item
}

/// Whether a stored object can be answered as it is.
pub(crate) fn is_native(object: &Value, resource: &Resource, form: Form) -> bool {
    form == Form::Full && at(object, &["apiVersion"]).and_then(Value::as_str) == Some(&resource.api_version())
}

impl State {
    /// The place that a request names.
    pub fn place(call: &Call, resource: &Resource) -> Place {
        Place { table: resource.table.clone(), key: (call.info.namespace.clone(), call.info.name.clone()) }
    }

    /// The object at a place, or 404.
    pub fn fetch(&self, place: &Place, resource: &Resource) -> Result<Arc<Value>, ApiError> {
        let (namespace, name) = &place.key;
        self.store
            .get(&place.table, namespace, name)
            .cloned()
            .ok_or_else(|| ApiError::not_found(&resource.group, &resource.plural, name))
    }

    pub fn get(&self, call: &Call, resource: &Resource) -> Result<Answer, ApiError> {
        let object = self.fetch(&Self::place(call, resource), resource)?;
        let body = match call.info.subresource.as_str() {
            "" => shape(&object, resource, call.form()),
            "status" if resource.status => shape(&object, resource, call.form()),
            "scale" => super::subresources::scale_of(&object, resource)
                .ok_or_else(|| ApiError::no_route(&call.info.path))?,
            _ => return Err(ApiError::no_route(&call.info.path)),
        };
        Ok(Answer::Json(200, body))
    }

    pub fn list(&mut self, call: &Call, resource: &Resource) -> Result<Answer, ApiError> {
        let selection = selection(call, resource)?;
        let limit: usize = match call.info.param("limit") {
            "" => 0,
            text => text.parse().map_err(|_| {
                ApiError::bad_request(format!("limit: Invalid value {text:?}: must be a whole number"))
            })?,
        };
        let mut revision = self.store.revision;
        let mut after: Option<Key> = None;
        if let Some((from, key)) = parse_continue(call.info.param("continue"))? {
            let oldest = self.store.table_mut(&resource.table).compacted;
            if from < oldest {
                let message = "The provided continue parameter is too old to display a consistent list result. \
                               You must start a new list without the continue parameter.";
                return Err(ApiError::new(410, "Expired", message));
            }
            revision = from;
            after = Some(key);
        }
        self.check_exact(call, resource)?;
        let form = call.form();
        let (mut items, mut last, mut more) = (Vec::new(), None, 0_usize);
        if let Some(table) = self.store.table(&resource.table) {
            for (key, object) in table.scan(&call.info.namespace) {
                if after.as_ref().is_some_and(|a| key <= a) || !selection.matches(object) {
                    continue;
                }
                if limit > 0 && items.len() == limit {
                    more += 1;
                    continue;
                }
                items.push(list_item(object, resource, form));
                last = Some(key.clone());
            }
        }
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if let (true, Some((namespace, name))) = (more > 0, last) {
            metadata["continue"] = json!(format!("{revision}/{namespace}/{name}"));
            if selection.is_empty() {
                metadata["remainingItemCount"] = json!(more);
            }
        }
        let (kind, version) = match form {
            Form::Full => (format!("{}List", resource.kind), resource.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        Ok(Answer::Json(
            200,
            json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}),
        ))
    }

    /// `resourceVersionMatch=Exact` is served for the present only.
    fn check_exact(&self, call: &Call, resource: &Resource) -> Result<(), ApiError> {
        let asked = call.info.param("resourceVersion");
        if asked.is_empty() || asked == "0" {
            return Ok(());
        }
        let revision: u64 = asked.parse().map_err(|_| bad_revision(asked))?;
        if revision > self.store.revision {
            let message = format!("Too large resource version: {revision}, current: {}", self.store.revision);
            return Err(ApiError::new(504, "Timeout", message));
        }
        let newest = self.store.table(&resource.table).map_or(0, |t| t.newest);
        if call.info.param("resourceVersionMatch") == "Exact" && revision < newest {
            return Err(ApiError::expired(revision, newest));
        }
        Ok(())
    }
}

/// The error for a resourceVersion that is no number.
pub(crate) fn bad_revision(asked: &str) -> ApiError {
    ApiError::bad_request(format!("resourceVersion: Invalid value: {asked:?}: must be a whole number"))
}

fn parse_continue(token: &str) -> Result<Option<(u64, Key)>, ApiError> {
    if token.is_empty() {
        return Ok(None);
    }
    let mut parts = token.splitn(3, '/');
    let parsed = (|| {
        let revision = parts.next()?.parse().ok()?;
        Some((revision, (parts.next()?.to_owned(), parts.next()?.to_owned())))
    })();
    parsed.map(Some).ok_or_else(|| ApiError::bad_request(format!("continue key is not valid: {token:?}")))
}
