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

use crate::{
    AcceleratorClass, Gang, GangPlan, InferenceService, NodePartition, Queue, Topology, TrainingJob,
};

/// Built once: the schema of a pod template takes about a second to rewrite without optimisation.
static ALL: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(|| {
    [
        TrainingJob::crd(),
        InferenceService::crd(),
        Queue::crd(),
        Topology::crd(),
        AcceleratorClass::crd(),
        Gang::crd(),
        GangPlan::crd(),
        NodePartition::crd(),
    ]
    .into_iter()
    .map(finish)
    .collect()
});

/// A time stamp of RFC 3339 in a year that every reader knows; that the day exists, the format says.
const TIME: &str = r"^[12][0-9]{3}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// The definitions of all kinds, in the order in which people read about them.
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    ALL.clone()
}

/// What the schema admits the types read, and nobody has to look for nulls.
fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            tighten(schema);
        }
    }
    crd
}

/// A field that is not nullable and is written `null` counts as absent (the server prunes it); a nullable one would
/// be kept, and every rule would have to look for it. The server's own reading of `date-time` takes texts that are no time
/// stamps.
fn tighten(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    one_of_words(schema);
    if schema.format.as_deref() == Some("date-time") {
        schema.pattern = Some(TIME.to_owned());
    }
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(tighten);
    match schema.items.as_mut() {
        Some(JSONSchemaPropsOrArray::Schema(item)) => tighten(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(tighten),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = schema.additional_properties.as_mut() {
        tighten(values);
    }
}

/// Makes one list of words out of alternatives of one word each.
fn one_of_words(schema: &mut JSONSchemaProps) {
    let words = |one: &JSONSchemaProps| one.enum_.clone().filter(|_| one.type_.as_deref() == Some("string"));
    let all: Option<Vec<_>> = schema.any_of.iter().flatten().map(words).collect();
    if let Some(all) = all.filter(|all| !all.is_empty()) {
        schema.any_of = None;
        schema.type_ = Some("string".into());
        schema.enum_ = Some(all.concat());
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
