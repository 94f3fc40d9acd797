//! Schemas of types that are not ours, made fit for a CustomResourceDefinition.
//!
//! ```text
//!   muster_model types, k8s-openapi types ──(schema_with)──▶ structural schema ──(finish)──▶ CRD
//! ```

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muster_model::RecoveryStep;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

/// Longest name of a topology level, a role, a class or a queue: that of a DNS label.
pub const MAX_NAME: u32 = 63;

/// A group of gangs: a DNS label.
const GROUP: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Conditions: a list keyed by type, so that several writers own one condition each.
pub fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let mut item = generator.subschema_for::<Condition>();
    strip(item.ensure_object().values_mut(), &["description", "nullable"]);
    json_schema!({
        "type": "array",
        "items": item,
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}

/// What `muster_model::quantity` reads, without a sign: no amount of a resource is negative.
pub const QUANTITY: &str = r"^([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[mkMGTPE]|[eE][+-]?[0-9]+)?$";

/// A quantity: a number or a text. The pattern holds for texts.
pub fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "pattern": QUANTITY, "maxLength": 32 })
}

/// Whether a placement rule binds.
pub fn mode(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["Required", "Preferred"] })
}

/// The rungs of a recovery ladder.
pub fn ladder(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 4,
        "items": {
            "type": "string",
            "enum": RecoveryStep::ALL.map(RecoveryStep::name),
            "description": "A rung of the recovery ladder.",
        },
    })
}

/// A placement rule for blocks of a unit.
pub fn segments(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["pods", "level", "mode"],
            "properties": {
                "pods": {
                    "type": "integer", "format": "int32", "minimum": 1, "maximum": 262_144,
                    "description": "Size of a block, in pods. It divides podsPerUnit.",
                },
                "level": { "type": "string", "minLength": 1, "maxLength": MAX_NAME,
                    "description": "Topology level: each block lies in one of its domains." },
                "mode": mode(generator),
            },
        },
    })
}

/// A placement rule for a whole gang.
pub fn within(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "required": ["level", "mode"],
        "properties": {
            "level": { "type": "string", "minLength": 1, "maxLength": MAX_NAME,
                "description": "Topology level: the whole gang lies in one of its domains." },
            "mode": mode(generator),
        },
    })
}

/// Rules between the roles and the units of a gang.
pub fn rules(generator: &mut SchemaGenerator) -> Schema {
    let role = json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_NAME });
    let level = |description: &str| json_schema!({ "type": "string", "minLength": 1, "maxLength": MAX_NAME, "description": description });
    let number = |minimum: u32, description: &str| json_schema!({ "type": "integer", "format": "int32", "minimum": minimum, "maximum": 262_144, "description": description });
    let one = |minimum: u32, description: &str| {
        let mut schema = number(minimum, description);
        schema.ensure_object().insert("default".into(), 1.into());
        schema
    };
    let list = |description: &str, item: Value| json_schema!({ "type": "array", "maxItems": 8, "x-kubernetes-list-type": "atomic", "description": description, "items": item });
    json_schema!({
        "type": "object",
        "x-kubernetes-validations": crate::rules::json(crate::rules::RULES),
        "properties": {
            "ratios": list(
                "How many units of a role there are for those of another, such as prefill to decode. A smaller placement keeps them.",
                serde_json::json!({
                    "type": "object",
                    "required": ["role", "of", "min", "max"],
                    "x-kubernetes-validations": crate::rules::json(crate::rules::RATIO),
                    "properties": {
                        "role": role,
                        "of": role,
                        "per": one(1, "For every so many units of the role `of`."),
                        "min": number(0, "Fewest units of the role for them."),
                        "max": number(1, "Most units of the role for them; equal to min for an exact ratio."),
                    },
                }),
            ),
            "near": list(
                "Roles of which all units lie in one domain of a level. Preferred: else of the next level further out.",
                serde_json::json!({
                    "type": "object",
                    "required": ["roles", "level", "mode"],
                    "properties": {
                        "roles": { "type": "array", "minItems": 1, "maxItems": 8, "items": role },
                        "level": level("Topology level."),
                        "mode": mode(generator),
                    },
                }),
            ),
            "spread": list(
                "Roles of which each unit lies in one domain of a level, and at most so many in each. Preferred: as few as cost no unit.",
                serde_json::json!({
                    "type": "object",
                    "required": ["role", "level", "mode"],
                    "properties": {
                        "role": role,
                        "level": level("Topology level."),
                        "units": one(1, "Most units of the role in one domain; of a group, most of all its gangs together."),
                        "mode": mode(generator),
                        "group": { "type": "string", "maxLength": MAX_NAME, "pattern": GROUP,
                            "description": "Units of all gangs of the namespace whose rules name this group count together. These rules state the same level, units and mode." },
                    },
                }),
            ),
        },
    })
}

/// The levels of a topology, outermost first.
pub fn levels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        // The node's own level is the sixteenth.
        "maxItems": muster_model::topology::MAX_LEVELS - 1,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["name", "keys"],
            "properties": {
                "name": { "type": "string", "maxLength": MAX_NAME, "pattern": "^[A-Za-z][A-Za-z0-9-]*$",
                    "description": "Name that placement rules use, such as Rack." },
                "keys": {
                    "type": "array", "minItems": 1, "maxItems": 16,
                    "description": "Label keys that name a node's domain; the first that the node carries counts.",
                    "items": { "type": "string", "minLength": 1, "maxLength": 317 },
                },
            },
        },
    })
}

/// Removes `keys` from every schema below, but never a property that happens to have such a name.
pub(crate) fn strip<'a>(values: impl Iterator<Item = &'a mut Value>, keys: &[&str]) {
    for value in values {
        strip_schema(value, keys, false);
    }
}

/// `properties` is true where the keys of `value` are names of properties and not words of JSON schema.
pub(crate) fn strip_schema(value: &mut Value, keys: &[&str], properties: bool) {
    match value {
        Value::Object(map) => {
            if !properties {
                map.retain(|key, _| !keys.contains(&key.as_str()));
            }
            for (key, child) in map.iter_mut() {
                // Defaults and enums are data.
                if properties || !matches!(key.as_str(), "default" | "enum" | "x-kubernetes-validations") {
                    strip_schema(child, keys, !properties && key == "properties");
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| strip_schema(item, keys, false)),
        _ => {}
    }
}
