//! The CustomResourceDefinitions, as they are installed.
//!
//! ```text
//!   derived schema ──finish: no nulls──▶ all_crds ──to_yaml──▶ crds/<plural>.yaml, `muster crds`
//! ```

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use std::sync::LazyLock;

use crate::{AcceleratorClass, Gang, InferenceService, NodePartition, Queue, Topology, TrainingJob};

/// Built once: the schema of a pod template takes about a second to rewrite without optimisation.
static ALL: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    [
        TrainingJob::crd(),
        InferenceService::crd(),
        Queue::crd(),
        Topology::crd(),
        AcceleratorClass::crd(),
        Gang::crd(),
        NodePartition::crd(),
    ]
    .into_iter()
    .map(finish)
    .collect()
});

/// The definitions of all kinds, in the order in which people read about them.
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    ALL.clone()
}

/// A field that is not nullable and is written `null` counts as absent (the server prunes it); a nullable one would
/// be kept, and every rule would have to look for it.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            never_null(schema);
        }
    }
    crd
}

/// Takes `nullable` from a schema and all below it.
fn never_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(never_null);
    match schema.items.as_mut() {
        Some(JSONSchemaPropsOrArray::Schema(item)) => never_null(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(never_null),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = schema.additional_properties.as_mut() {
        never_null(values);
    }
}

/// Name of the file in `crds/`.
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}.yaml", crd.spec.names.plural)
}

/// The definition as it stands in `crds/`.
///
/// # Errors
/// When it cannot be written as YAML.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, serde_yaml_ng::Error> {
    let text = serde_yaml_ng::to_string(crd)?;
    Ok(format!("# Generated from the Rust types: cargo run -p muster-api --example crds\n{text}"))
}
