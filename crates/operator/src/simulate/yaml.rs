//! Reading manifests: every error names the file, the document, the field and what to do.
//!
//! ```text
//!   file ──documents──▶ Document { kind, name, value } ──typed──▶ Kubernetes or Muster object
//! ```

use anyhow::{Context, anyhow, bail};
use serde::de::{Deserialize, DeserializeOwned};
use serde_yaml_ng::Value;
use std::{collections::BTreeSet, io::Read, path::Path};

/// One object of a file; lists are taken apart.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it stands, for messages: `jobs.yaml, document 2`.
    place: String,
    value: Value,
}

/// The text of a file; `-` is standard input.
///
/// # Errors
/// When it cannot be read.
pub fn text(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read as text")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The objects of a YAML or JSON text; empty documents are skipped.
///
/// # Errors
/// When it is not YAML.
pub fn documents(file: &str, text: &str) -> anyhow::Result<Vec<Document>> {
    let mut all = Vec::new();
    // Editors on Windows write a byte-order mark, and kubectl takes it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (at, document) in serde_yaml_ng::Deserializer::from_str(text).enumerate() {
        let place = format!("{file}, document {}", at + 1);
        let value = Value::deserialize(document).map_err(|error| {
            anyhow!("{place} is not YAML: {error}; mend it there, or check the indentation")
        })?;
        if !value.is_null() {
            Document { place, value }.expand(&mut all);
        }
    }
    Ok(all)
}

impl Document {
    /// Appends this object, or the items of this Kubernetes list.
    fn expand(self, all: &mut Vec<Self>) {
        let is_list = self.kind().is_some_and(|kind| kind.ends_with("List"));
        match self.value.get("items").and_then(Value::as_sequence) {
            Some(items) if is_list => {
                for (at, value) in items.iter().enumerate() {
                    let place = format!("{}, item {}", self.place, at + 1);
                    Self { place, value: value.clone() }.expand(all);
                }
            }
            _ => all.push(self),
        }
    }

    /// `kind`, if it has one.
    pub fn kind(&self) -> Option<&str> {
        self.value.get("kind")?.as_str()
    }

    /// The elements of a document that is a plain list.
    pub fn elements(&self) -> Option<Vec<Self>> {
        let elements = self.value.as_sequence()?.iter().enumerate();
        Some(
            elements
                .map(|(at, value)| Self {
                    place: format!("{}, entry {}", self.place, at + 1),
                    value: value.clone(),
                })
                .collect(),
        )
    }

    /// File, document, kind and name, for messages.
    pub fn place(&self) -> String {
        let name = self.value.get("metadata").and_then(|meta| meta.get("name")).and_then(Value::as_str);
        match (self.kind(), name) {
            (Some(kind), Some(name)) => format!("{} ({kind} {name})", self.place),
            (Some(kind), None) => format!("{} ({kind})", self.place),
            _ => self.place.clone(),
        }
    }

    /// An error about a field of this object.
    pub fn error(&self, field: &str, message: impl std::fmt::Display, remedy: &str) -> anyhow::Error {
        anyhow!("{}: {field}: {message}; {remedy}", self.place())
    }

    /// The object in its own type. Fields that the type does not have are errors: they are typing mistakes.
    ///
    /// # Errors
    /// The field that is wrong, and how.
    pub fn typed<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let mut unknown = BTreeSet::new();
        let mut track = serde_path_to_error::Track::new();
        let value = quantities_as_text(self.value.clone());
        let deserializer = serde_path_to_error::Deserializer::new(value, &mut track);
        let typed = serde_ignored::deserialize(deserializer, |path| {
            unknown.insert(path.to_string().replace(".?", ""));
        });
        let typed = match typed {
            Ok(typed) => typed,
            Err(error) => {
                let path = track.path().to_string();
                let field = if path == "." { "the object".to_owned() } else { path };
                return Err(self.error(
                    &field,
                    error,
                    "give the field the form that `kubectl explain` shows",
                ));
            }
        };
        // What a server adds and clients do not know is no mistake of the user's; a custom resource's type takes its
        // apiVersion and kind for granted.
        unknown.retain(|field| {
            field != "apiVersion"
                && field != "kind"
                && !field.starts_with("status")
                && !field.starts_with("metadata.managedFields")
        });
        if let Some(field) = unknown.first() {
            bail!(self.error(field, "there is no such field", "correct its name or remove it"));
        }
        Ok(typed)
    }
}

/// Names of maps from resources to quantities.
const QUANTITY_MAPS: &[&str] = &["requests", "limits", "allocatable", "capacity", "overhead"];

/// Kubernetes takes a bare number for a quantity (`nvidia.com/gpu: 8`), its Rust types only text.
fn quantities_as_text(mut value: Value) -> Value {
    match &mut value {
        Value::Mapping(map) => {
            for (key, inner) in map.iter_mut() {
                let is_map = key.as_str().is_some_and(|key| QUANTITY_MAPS.contains(&key));
                if let (true, Value::Mapping(amounts)) = (is_map, &mut *inner) {
                    for (_, amount) in amounts.iter_mut() {
                        if let Value::Number(number) = amount {
                            *amount = Value::String(number.to_string());
                        }
                    }
                } else {
                    *inner = quantities_as_text(std::mem::take(inner));
                }
            }
        }
        Value::Sequence(items) => {
            for item in items {
                *item = quantities_as_text(std::mem::take(item));
            }
        }
        _ => {}
    }
    value
}
