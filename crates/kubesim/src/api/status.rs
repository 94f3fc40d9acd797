//! API errors as `meta/v1.Status` bodies, worded as kube-apiserver words them.

use http::StatusCode;
use serde_json::{Map, Value, json};

/// An error answer: everything a `Status` body carries.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason (`NotFound`, `Conflict`, …); empty when the server gives none.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// `details` of the Status, if any.
    pub details: Option<Value>,
}

/// One finding about one field, as in `field.Error` of apimachinery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub field: String,
    /// `FieldValueRequired`, `FieldValueInvalid`, …
    pub reason: &'static str,
    pub message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self { field: field.into(), reason, message }
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueRequired", with_detail("Required value".into(), detail))
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let text = with_detail(format!("Invalid value: {}", shown(value)), detail);
        Self::new(field, "FieldValueInvalid", text)
    }

    /// A value of the wrong type; the server shows the type's name in place of the value.
    pub fn wrong_type(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        let text = with_detail(format!("Invalid value: {}", shown(value)), detail);
        Self::new(field, "FieldValueTypeInvalid", text)
    }

    pub fn not_supported(field: impl Into<String>, value: &Value, allowed: &[String]) -> Self {
        let list: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
        let detail = format!("supported values: {}", list.join(", "));
        let text = with_detail(format!("Unsupported value: {}", shown(value)), &detail);
        Self::new(field, "FieldValueNotSupported", text)
    }

    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", with_detail("Forbidden".into(), detail))
    }

    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {}", shown(value)))
    }

    pub fn too_long(field: impl Into<String>, max: u64) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {max} bytes"))
    }

    pub fn too_many(field: impl Into<String>, count: usize, max: u64) -> Self {
        Self::new(field, "FieldValueTooMany", format!("Too many: {count}: must have at most {max} items"))
    }

    /// Whether CEL rules are left out once this was found.
    pub fn blocks_rules(&self) -> bool {
        matches!(
            self.reason,
            "FieldValueRequired"
                | "FieldValueTypeInvalid"
                | "FieldValueNotSupported"
                | "FieldValueTooLong"
                | "FieldValueTooMany"
        )
    }

    /// An invalid value that is not shown: what CEL rules report.
    pub fn invalid_unshown(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {detail}"))
    }

    fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

fn with_detail(head: String, detail: &str) -> String {
    if detail.is_empty() { head } else { format!("{head}: {detail}") }
}

/// A value as `field.Error` prints it: strings quoted, the rest as JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => format!("{s:?}"),
        other => other.to_string(),
    }
}

/// `plural` or `plural.group`, as messages name a resource.
pub(crate) fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

impl ApiError {
    pub(crate) fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.to_owned(), message: message.into(), details: None }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let mut details = Map::new();
        for (key, text) in [("name", name), ("group", group), ("kind", kind)] {
            if !text.is_empty() {
                details.insert(key.into(), json!(text));
            }
        }
        self.details = Some(Value::Object(details));
        self
    }

    pub(crate) fn with_causes(mut self, causes: Vec<Value>) -> Self {
        let details = self.details.get_or_insert_with(|| json!({}));
        details["causes"] = Value::Array(causes);
        self
    }

    pub(crate) fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(group, resource));
        Self::new(404, "NotFound", message).about(group, resource, name)
    }

    pub(crate) fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(group, resource));
        Self::new(409, "AlreadyExists", message).about(group, resource, name)
    }

    pub(crate) fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(group, resource));
        Self::new(409, "Conflict", message).about(group, resource, name)
    }

    /// The conflict of an update made from an outdated resourceVersion.
    pub(crate) fn outdated(group: &str, resource: &str, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, resource, name, why)
    }

    pub(crate) fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let subject = qualified(group, resource);
        let message = if name.is_empty() {
            format!("{subject} is forbidden: {why}")
        } else {
            format!("{subject} {name:?} is forbidden: {why}")
        };
        Self::new(403, "Forbidden", message).about(group, resource, name)
    }

    pub(crate) fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(FieldError::text).collect();
        let list = if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} {name:?} is invalid: {list}", qualified(group, kind));
        let causes = errors
            .iter()
            .map(|e| json!({"reason": e.reason, "message": e.message, "field": e.field}))
            .collect();
        Self::new(422, "Invalid", message).about(group, kind, name).with_causes(causes)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The path names nothing that is served.
    pub(crate) fn no_route(path: &str) -> Self {
        let message = format!("the server could not find the requested resource (path {path:?})");
        let mut error = Self::new(404, "NotFound", message);
        error.details = Some(json!({}));
        error
    }

    pub(crate) fn method_not_allowed(verb: &str, path: &str) -> Self {
        let message =
            format!("the server does not allow this method on the requested resource ({verb} {path:?})");
        Self::new(405, "MethodNotAllowed", message)
    }

    pub(crate) fn unsupported_media_type(given: &str, accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format ({given:?}) - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 410: the resourceVersion is older than the history that is kept.
    pub(crate) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    /// The HTTP status of the answer.
    pub(crate) fn http_status(&self) -> StatusCode {
        StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The `meta/v1.Status` body.
    pub(crate) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        body
    }
}
