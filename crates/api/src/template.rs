//! The schema of a pod template: the whole of Kubernetes', so that the API server catches typing errors and
//! `kubectl explain` works, without its descriptions, which would make every CRD larger than `kubectl apply` allows.
//!
//! ```text
//!   k8s-openapi's PodTemplateSpec ──▶ strip descriptions ──▶ bound lists ──▶ rules for the fields that are ours
//! ```

use k8s_openapi::api::core::v1::PodSpec;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// Fields of a pod that a template may not set, and why.
pub const FORBIDDEN: &[(&str, &str)] = &[
    ("nodeName", "Muster plans the nodes; use nodeSelector or affinity to restrict them"),
    ("schedulerName", "Muster is the scheduler of these pods"),
    (
        "schedulingGates",
        "Muster creates a pod only when its node is planned; use spec.suspend to hold the job back",
    ),
    ("schedulingGroup", "Muster places the pods as a gang itself"),
    ("hostname", "Muster names the pods' hosts"),
    ("subdomain", "Muster names the pods' hosts"),
    ("ephemeralContainers", "they can only be added to a running pod, with kubectl debug"),
    ("activeDeadlineSeconds", "a pod that ends alone is a lost rank; use spec.activeDeadline of the job"),
    ("priority", "it comes from the PriorityClass; use spec.priorityClassName of the job"),
    ("priorityClassName", "use spec.priorityClassName of the job, so that the queue ranks it as well"),
];

/// Most containers, init containers and volumes of a template. Bounds keep the cost of CEL rules known.
const BOUNDS: &[(&str, u32)] = &[
    ("containers", 16),
    ("initContainers", 16),
    ("volumes", 128),
    ("tolerations", 64),
    ("imagePullSecrets", 16),
    ("hostAliases", 64),
    ("resourceClaims", 32),
    ("topologySpreadConstraints", 16),
    ("readinessGates", 16),
];

/// A port's name (IANA service name), or a number as a text.
const PORT_NAME: &str = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$";
/// The value of a label.
const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// Schema of a `PodTemplateSpec`.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    let mut spec = generator.subschema_for::<PodSpec>().to_value();
    crate::schema::strip_schema(&mut spec, &["description", "nullable"], false);
    bound(&mut spec, "");
    if let Some(properties) = spec.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, most) in BOUNDS {
            if let Some(list) = properties.get_mut(*name) {
                list["maxItems"] = json!(most);
            }
        }
        if let Some(policy) = properties.get_mut("restartPolicy") {
            policy["default"] = json!("Never");
            policy["maxLength"] = json!(16);
        }
        if let Some(containers) = properties.get_mut("containers") {
            containers["minItems"] = json!(1);
            containers["items"]["properties"]["name"]["maxLength"] = json!(63);
        }
    }
    spec["x-kubernetes-validations"] = rules();
    json_schema!({
        "type": "object",
        "description": "Pods as in a Deployment. nodeName, schedulerName, hostname and the like are Muster's; restartPolicy is Never.",
        "required": ["spec"],
        "properties": {
            "metadata": {
                "type": "object",
                "description": "Labels and annotations of the pods; their names are Muster's.",
                "properties": {
                    "labels": labels(),
                    "annotations": { "type": "object", "additionalProperties": { "type": "string" } },
                },
            },
            "spec": spec,
        },
    })
}

/// Labels of pods: what is no label the API server would refuse only in each pod.
fn labels() -> Value {
    json!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 63, "pattern": LABEL_VALUE },
    })
}

/// Bounds what is a number or a text wherever it stands below `schema`, which belongs to the property `name`, and
/// leaves the metadata of claims what Kubernetes takes there.
fn bound(schema: &mut Value, name: &str) {
    let Value::Object(map) = schema else { return };
    if map.contains_key("x-kubernetes-int-or-string") {
        // Everything is a quantity, but for ports.
        let (pattern, length, most) =
            if name == "port" { (PORT_NAME, 15, 65_535) } else { (crate::schema::QUANTITY, 32, i64::MAX) };
        map.insert("pattern".into(), json!(pattern));
        map.insert("maxLength".into(), json!(length));
        map.insert("minimum".into(), json!(0));
        if most < i64::MAX {
            map.insert("maximum".into(), json!(most));
        }
    }
    if name == "volumeClaimTemplate"
        && let Some(metadata) = map.get_mut("properties").and_then(|all| all.get_mut("metadata"))
    {
        let texts = json!({ "type": "object", "additionalProperties": { "type": "string" } });
        *metadata = json!({ "type": "object", "properties": { "labels": texts, "annotations": texts } });
    }
    if matches!(name, "claimName" | "storageClassName") {
        map.insert("maxLength".into(), json!(253));
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            bound(property, name);
        }
    }
    for below in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(below) {
            bound(child, name);
        }
    }
}

/// The rules for fields that are ours.
fn rules() -> Value {
    let mut rules: Vec<Value> = FORBIDDEN
        .iter()
        .map(|(field, why)| {
            json!({
                "rule": format!("!has(self.{field})"),
                "message": format!("{field} must not be set: {why}"),
                "fieldPath": format!(".{field}"),
                "reason": "FieldValueForbidden",
            })
        })
        .collect();
    rules.push(json!({
        "rule": "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "message": "restartPolicy must be Never: Muster restarts the whole unit, see spec.recovery",
        "fieldPath": ".restartPolicy",
    }));
    json!(rules)
}
