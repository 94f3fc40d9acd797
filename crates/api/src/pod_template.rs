//! The pod template of a Gang: raw JSON, read on demand.
//!
//! ```text
//!   TrainingJob.template (typed, checked by its schema) ──▶ PodTemplate (raw) ──▶ pods, as they stand
//!                                                              └─parse─▶ PodTemplateSpec, or the field at fault
//! ```
//!
//! A whole pod schema costs the API server milliseconds at every write of a Gang, and a template that does not fit the
//! types would make the Gang unreadable. So the API server keeps what it does not know, the reader says what is wrong,
//! and the dry run of a pod has the last word.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::{borrow::Cow, collections::BTreeMap};

/// Longest path and longest message about a template, in characters.
const MAX_MESSAGE: usize = 256;

/// A pod template as it stands in the object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(Map<String, Value>);

/// Why a template cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct TemplateError {
    /// The field, such as `template.spec.containers[0].ports[0].containerPort`.
    pub path: String,
    /// What is wrong with it.
    pub message: String,
}

impl PodTemplate {
    /// The template as the types know it.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn parse(&self) -> Result<PodTemplateSpec, TemplateError> {
        read("template", &self.0)
    }

    /// The pods' specification as the types know it; empty where the template has none.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn pod_spec(&self) -> Result<PodSpec, TemplateError> {
        match self.0.get("spec") {
            None | Some(Value::Null) => Ok(PodSpec::default()),
            Some(spec) => read("template.spec", spec),
        }
    }

    /// The pods' specification as it stands; an empty object where the template has none.
    pub fn raw_spec(&self) -> Value {
        self.0
            .get("spec")
            .filter(|spec| spec.is_object())
            .cloned()
            .unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// The template as it stands, without some fields of its containers.
    pub fn without(&self, fields: &[&str]) -> Value {
        let mut template = Value::Object(self.0.clone());
        for list in ["containers", "initContainers"] {
            let containers = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.retain(|field, _| !fields.contains(&field.as_str()));
            }
        }
        template
    }

    /// The labels of the pods. Entries that are no texts are left out; [`Self::parse`] names them.
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.texts("labels")
    }

    /// The annotations of the pods. Entries that are no texts are left out; [`Self::parse`] names them.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.texts("annotations")
    }

    fn texts(&self, field: &str) -> BTreeMap<String, String> {
        let entries = self.0.get("metadata").and_then(|meta| meta.get(field)?.as_object());
        let entries = entries.into_iter().flatten();
        entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    }
}

impl Default for PodTemplate {
    fn default() -> Self {
        Self::from(&PodTemplateSpec::default())
    }
}

impl From<&PodTemplateSpec> for PodTemplate {
    fn from(template: &PodTemplateSpec) -> Self {
        // A struct of texts, numbers and lists always becomes an object.
        match serde_json::to_value(template) {
            Ok(Value::Object(map)) => Self(map),
            _ => Self(Map::new()),
        }
    }
}

fn read<'a, T, D>(at: &str, value: D) -> Result<T, TemplateError>
where
    T: Deserialize<'a>,
    D: Deserializer<'a, Error = serde_json::Error>,
{
    // Both may quote the object, which may hold anything.
    let bounded = |text: String| text.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
    serde_path_to_error::deserialize(value).map_err(|error| TemplateError {
        path: match error.path().to_string() {
            path if path == "." => at.to_owned(),
            path => bounded(format!("{at}.{path}")),
        },
        message: bounded(error.into_inner().to_string()),
    })
}

impl JsonSchema for PodTemplate {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PodTemplate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // Atomic: whoever applies it owns it as a whole, and the server keeps no list of its fields.
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "x-kubernetes-map-type": "atomic",
        })
    }
}
