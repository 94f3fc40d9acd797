//! From an HTTP request to a [`RequestInfo`]: what is asked of which resource.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, header, request::Parts};
use serde_json::Value;

use super::resources::{Catalogue, Resource};
use super::status::ApiError;

/// What a request asks for, as fault hooks and statistics see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Name of the user whose client sent it, or whom it impersonates.
    pub user: String,
    /// What else is known of the user, as a token tells of its pod: `userInfo.extra` of admission.
    pub extra: BTreeMap<String, Vec<String>>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group and for non-resource paths.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural name of the resource; empty for non-resource paths.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object name, or empty.
    pub name: String,
    /// Whether `dryRun=All` was given.
    pub dry_run: bool,
    /// The path as sent.
    pub path: String,
    /// Query parameters, decoded.
    pub query: BTreeMap<String, String>,
}

impl RequestInfo {
    /// A query parameter; empty if absent.
    pub fn param(&self, key: &str) -> &str {
        self.query.get(key).map_or("", String::as_str)
    }

    /// Whether a boolean query parameter is true.
    pub fn flag(&self, key: &str) -> bool {
        matches!(self.param(key), "true" | "1")
    }

    /// `resource` or `resource/subresource`.
    pub fn full_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// A request with everything its handler needs.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub info: RequestInfo,
    pub content_type: String,
    pub accept: String,
    pub body: Bytes,
}

/// The forms in which an answer can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
}

impl Call {
    pub fn new(user: &str, parts: &Parts, body: Bytes) -> Self {
        let text = |name| {
            let value = parts.headers.get(name).and_then(|v| v.to_str().ok());
            value.unwrap_or("").to_owned()
        };
        let query = parse_query(parts.uri.query().unwrap_or(""));
        let impersonated = text(header::HeaderName::from_static("impersonate-user"));
        let mut info = RequestInfo {
            user: if impersonated.is_empty() { user.to_owned() } else { impersonated },
            extra: extra(parts),
            path: parts.uri.path().to_owned(),
            dry_run: query.get("dryRun").is_some_and(|d| d == "All"),
            query,
            ..RequestInfo::default()
        };
        split_path(&mut info);
        let verb = verb_of(&parts.method, &info);
        verb.clone_into(&mut info.verb);
        Self {
            info,
            content_type: text(header::CONTENT_TYPE).split(';').next().unwrap_or("").trim().to_owned(),
            accept: text(header::ACCEPT),
            body,
        }
    }

    /// The resource asked for, or the error that names what is not served.
    pub fn resource(&self, catalogue: &Catalogue) -> Result<Arc<Resource>, ApiError> {
        let i = &self.info;
        let resource =
            catalogue.find(&i.group, &i.version, &i.resource).ok_or_else(|| ApiError::no_route(&i.path))?;
        // A cluster-wide list of a namespaced resource is fine; one object without namespace is not.
        let misplaced = if resource.namespaced {
            i.namespace.is_empty() && (!i.name.is_empty() || i.verb == "create")
        } else {
            !i.namespace.is_empty() && !resource.is("", "namespaces")
        };
        if misplaced {
            return Err(ApiError::no_route(&i.path));
        }
        Ok(resource.clone())
    }

    pub fn form(&self) -> Form {
        if self.accept.contains("as=PartialObjectMetadata") { Form::Metadata } else { Form::Full }
    }

    /// The body as JSON; an empty body is `None`.
    pub fn json(&self) -> Result<Option<Value>, ApiError> {
        if self.body.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&self.body).map(Some).map_err(|e| {
            ApiError::bad_request(format!(
                "the object provided is unrecognized: couldn't get version/kind; json parse error: {e}"
            ))
        })
    }
}

/// What `Impersonate-Extra-<key>` headers say; keys are percent-encoded. Everybody may impersonate here.
fn extra(parts: &Parts) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &parts.headers {
        if let (Some(key), Ok(value)) = (name.as_str().strip_prefix("impersonate-extra-"), value.to_str()) {
            all.entry(decode(key, false)).or_default().push(value.to_owned());
        }
    }
    all
}

fn verb_of(method: &Method, info: &RequestInfo) -> &'static str {
    let one = !info.name.is_empty();
    match *method {
        Method::GET if info.flag("watch") => "watch",
        Method::GET if one || info.resource.is_empty() => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if one => "delete",
        Method::DELETE => "deletecollection",
        _ => "unknown",
    }
}

/// Fills group, version, namespace, resource, name and subresource from the path.
fn split_path(info: &mut RequestInfo) {
    let segments: Vec<String> =
        info.path.split('/').filter(|s| !s.is_empty()).map(|s| decode(s, false)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let rest: &[&str] = match segments.as_slice() {
        ["api", version, rest @ ..] => {
            (*version).clone_into(&mut info.version);
            rest
        }
        ["apis", group, version, rest @ ..] => {
            (*group).clone_into(&mut info.group);
            (*version).clone_into(&mut info.version);
            rest
        }
        _ => return,
    };
    let parts = match rest {
        ["namespaces", name, sub] if matches!(*sub, "status" | "finalize") => {
            (*name).clone_into(&mut info.namespace);
            ["namespaces", name, sub].to_vec()
        }
        ["namespaces", name] => {
            (*name).clone_into(&mut info.namespace);
            rest.to_vec()
        }
        ["namespaces", namespace, more @ ..] if !more.is_empty() => {
            (*namespace).clone_into(&mut info.namespace);
            more.to_vec()
        }
        _ => rest.to_vec(),
    };
    if let Some(resource) = parts.first() {
        (*resource).clone_into(&mut info.resource);
    }
    if let Some(name) = parts.get(1) {
        (*name).clone_into(&mut info.name);
    }
    info.subresource = parts.get(2..).unwrap_or(&[]).join("/");
    if info.resource == "namespaces" {
        info.namespace.clear();
    }
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key, true), decode(value, true))
        })
        .collect()
}

/// Percent-decoding; `plus` turns `+` into a space as in queries.
fn decode(source: &str, plus: bool) -> String {
    let bytes = source.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = source.get(i + 1..i + 3).and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[i], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 2;
            }
            (b'+', _) if plus => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}
