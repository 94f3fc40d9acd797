//! Structural schemas of custom resources: defaults, pruning, validation.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cel::Program;
use regex::Regex;
use serde_json::{Map, Value, json};

use super::cel_eval;
use super::patch::ListKeys;
use super::status::FieldError;

/// One node of a structural schema, read once from `openAPIV3Schema`.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    kind: String,
    properties: BTreeMap<String, Schema>,
    additional: Option<Box<Schema>>,
    items: Option<Box<Schema>>,
    required: Vec<String>,
    default: Option<Value>,
    nullable: bool,
    preserve_unknown: bool,
    int_or_string: bool,
    embedded: bool,
    list_type: String,
    list_keys: Vec<String>,
    source: Value,
    rules: Vec<Rule>,
    pattern: OnceLock<Option<Regex>>,
}

/// One of `x-kubernetes-validations`.
#[derive(Debug)]
struct Rule {
    source: Value,
    program: Option<Arc<Program>>,
    /// Mentions `oldSelf`: evaluated on updates only.
    transition: bool,
    /// Mentions neither `spec` nor `status`.
    only_metadata: bool,
}

impl Schema {
    /// Reads a schema, or the free-form one if there is none.
    pub fn read(source: &Value) -> Self {
        let flag = |key: &str| source.get(key).and_then(Value::as_bool).unwrap_or(false);
        let strings = |key: &str| -> Vec<String> {
            let values = source.get(key).and_then(Value::as_array).into_iter().flatten();
            values.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let string = |key: &str| source.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let properties = source.get("properties").and_then(Value::as_object).into_iter().flatten();
        let additional = match source.get("additionalProperties") {
            Some(Value::Bool(true)) => Some(Box::new(Self { preserve_unknown: true, ..Self::default() })),
            Some(schema @ Value::Object(_)) => Some(Box::new(Self::read(schema))),
            _ => None,
        };
        let mut own = source.clone();
        for nested in ["properties", "additionalProperties", "items"] {
            if let Some(map) = own.as_object_mut() {
                map.remove(nested);
            }
        }
        Self {
            kind: string("type"),
            properties: properties.map(|(k, v)| (k.clone(), Self::read(v))).collect(),
            additional,
            items: source.get("items").map(|s| Box::new(Self::read(s))),
            required: strings("required"),
            default: source.get("default").cloned(),
            nullable: flag("nullable"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list_type: string("x-kubernetes-list-type"),
            list_keys: strings("x-kubernetes-list-map-keys"),
            rules: source
                .get("x-kubernetes-validations")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(Rule::read)
                .collect(),
            pattern: OnceLock::new(),
            source: own,
        }
    }

    /// The root schema of a custom resource: `apiVersion`, `kind` and `metadata` are always known.
    pub fn root(source: &Value) -> Self {
        let mut schema = Self::read(source);
        schema.embedded = true;
        schema
    }

    fn child(&self, key: &str) -> Option<&Self> {
        self.properties.get(key).or(self.additional.as_deref())
    }

    /// Fills absent fields from `default`, and drops nulls that a default replaces.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (key, child) in &self.properties {
                    let absent = map.get(key).is_none_or(|v| v.is_null() && !child.nullable);
                    if let (true, Some(default)) = (absent, &child.default) {
                        map.insert(key.clone(), default.clone());
                    }
                }
                for (key, v) in map.iter_mut() {
                    if let Some(child) = self.child(key) {
                        child.apply_defaults(v);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for item in items {
                        schema.apply_defaults(item);
                    }
                }
            }
            _ => {}
        }
    }

    /// Removes fields that the schema does not name.
    pub fn prune(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                let known = |key: &str| {
                    self.preserve_unknown
                        || self.child(key).is_some()
                        || (self.embedded && matches!(key, "apiVersion" | "kind" | "metadata"))
                };
                map.retain(|key, _| known(key));
                for (key, v) in map.iter_mut() {
                    if self.embedded && key == "metadata" {
                        continue;
                    }
                    if let Some(child) = self.child(key) {
                        child.prune(v);
                    }
                }
            }
            Value::Array(items) => {
                if let Some(schema) = &self.items {
                    for item in items {
                        schema.prune(item);
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks a value; findings are worded as the server words them. What is as it was is not looked at again, as the
    /// real server forgives what an older schema let in.
    pub fn validate(&self, value: &Value, old: Option<&Value>, path: &str, findings: &mut Vec<FieldError>) {
        if (value.is_null() && self.nullable) || old == Some(value) {
            return;
        }
        if let Some(actual) = self.type_mismatch(value) {
            let field = if path.is_empty() { "<nil>" } else { path };
            let detail =
                format!("{path} in body must be of type {}: {}", self.expected_type(), json!(actual));
            findings.push(FieldError::wrong_type(field, &json!(actual), &detail));
            return;
        }
        self.check_enum(value, path, findings);
        match value {
            Value::Object(map) => self.check_object(map, old, path, findings),
            Value::Array(items) => self.check_array(items, path, findings),
            Value::String(s) => self.check_string(s, path, findings),
            Value::Number(_) => self.check_number(value, path, findings),
            _ => {}
        }
    }

    fn expected_type(&self) -> &str {
        if self.int_or_string { "integer,string" } else { &self.kind }
    }

    /// The value's type, if it is not the schema's.
    fn type_mismatch(&self, value: &Value) -> Option<&'static str> {
        let actual = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let fits = match self.kind.as_str() {
            _ if self.int_or_string => matches!(actual, "integer" | "string"),
            "" => true,
            "number" => matches!(actual, "number" | "integer"),
            kind => kind == actual,
        };
        (!fits).then_some(actual)
    }

    fn check_enum(&self, value: &Value, path: &str, findings: &mut Vec<FieldError>) {
        if let Some(allowed) = self.source.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let names: Vec<String> =
                allowed.iter().map(|a| a.as_str().map_or_else(|| a.to_string(), str::to_owned)).collect();
            findings.push(FieldError::not_supported(path, value, &names));
        }
    }

    fn check_object(
        &self,
        map: &Map<String, Value>,
        old: Option<&Value>,
        path: &str,
        findings: &mut Vec<FieldError>,
    ) {
        for key in &self.required {
            if !map.contains_key(key) {
                findings.push(FieldError::required(join(path, key), ""));
            }
        }
        if let Some(max) = self.limit("maxProperties")
            && map.len() as u64 > max
        {
            findings.push(FieldError::too_many(path, map.len(), max));
        }
        for (key, v) in map {
            if path.is_empty() && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            let before = old.and_then(|old| old.get(key));
            if let Some(child) = self.properties.get(key) {
                child.validate(v, before, &join(path, key), findings);
            } else if let Some(child) = &self.additional {
                child.validate(v, before, &format!("{path}.{key}"), findings);
            }
        }
    }

    fn check_array(&self, items: &[Value], path: &str, findings: &mut Vec<FieldError>) {
        if let Some(max) = self.limit("maxItems")
            && items.len() as u64 > max
        {
            findings.push(FieldError::too_many(path, items.len(), max));
        }
        if let Some(min) = self.limit("minItems")
            && (items.len() as u64) < min
        {
            let detail = format!("{path} in body should have at least {min} items");
            findings.push(FieldError::invalid(path, &json!(items.len()), &detail));
        }
        let mut seen: Vec<Value> = Vec::new();
        for (i, item) in items.iter().enumerate() {
            let here = format!("{path}[{i}]");
            let key = match self.list_type.as_str() {
                "map" => Some(self.list_keys.iter().map(|k| (k.clone(), item[k].clone())).collect()),
                "set" => Some(item.clone()),
                _ => None,
            };
            if let Some(key) = key {
                if seen.contains(&key) {
                    findings.push(FieldError::duplicate(&here, &key));
                }
                seen.push(key);
            }
            if let Some(schema) = &self.items {
                schema.validate(item, None, &here, findings);
            }
        }
    }

    fn check_string(&self, s: &str, path: &str, findings: &mut Vec<FieldError>) {
        let length = s.chars().count() as u64;
        if let Some(max) = self.limit("maxLength")
            && length > max
        {
            findings.push(FieldError::too_long(path, max));
        }
        if let Some(min) = self.limit("minLength")
            && length < min
        {
            let detail = format!("{path} in body should be at least {min} chars long");
            findings.push(FieldError::invalid(path, &json!(s), &detail));
        }
        if let Some(pattern) = self.source.get("pattern").and_then(Value::as_str) {
            // An unusable pattern matches everything.
            let compiled = self.pattern.get_or_init(|| Regex::new(pattern).ok());
            if compiled.as_ref().is_some_and(|pattern| !pattern.is_match(s)) {
                let detail = format!("{path} in body should match '{pattern}'");
                findings.push(FieldError::invalid(path, &json!(s), &detail));
            }
        }
    }

    fn check_number(&self, value: &Value, path: &str, findings: &mut Vec<FieldError>) {
        let Some(n) = value.as_f64() else { return };
        let bound = |key: &str| self.source.get(key).and_then(Value::as_f64);
        let exclusive = |key: &str| self.source.get(key).and_then(Value::as_bool).unwrap_or(false);
        let mut report = |text: &str, bound: f64| {
            let detail = format!("{path} in body should be {text} {bound}");
            findings.push(FieldError::invalid(path, value, &detail));
        };
        if let Some(min) = bound("minimum") {
            if exclusive("exclusiveMinimum") && n <= min {
                report("greater than", min);
            } else if n < min {
                report("greater than or equal to", min);
            }
        }
        if let Some(max) = bound("maximum") {
            if exclusive("exclusiveMaximum") && n >= max {
                report("less than", max);
            } else if n > max {
                report("less than or equal to", max);
            }
        }
    }

    fn limit(&self, key: &str) -> Option<u64> {
        self.source.get(key).and_then(Value::as_u64)
    }

    /// Evaluates `x-kubernetes-validations`; rules on `oldSelf` only where an old value is known.
    pub fn check_rules(
        &self,
        value: &Value,
        old: Option<&Value>,
        path: &str,
        findings: &mut Vec<FieldError>,
    ) {
        if value.is_null() || old == Some(value) {
            return;
        }
        let scope = cel_eval::RuleScope::new(value, old);
        for rule in &self.rules {
            // At the root a rule that speaks of nothing but the name has nothing to say of an update.
            let settled = path.is_empty() && old.is_some() && rule.only_metadata;
            if !settled {
                rule.check(value, old, &scope, path, findings);
            }
        }
        match value {
            Value::Object(map) => {
                for (key, v) in map {
                    if let Some(child) = self.child(key) {
                        child.check_rules(v, old.and_then(|o| o.get(key)), &join(path, key), findings);
                    }
                }
            }
            Value::Array(items) => {
                let Some(schema) = &self.items else { return };
                for (i, item) in items.iter().enumerate() {
                    let before = old.and_then(|o| self.counterpart(o, item));
                    schema.check_rules(item, before, &format!("{path}[{i}]"), findings);
                }
            }
            _ => {}
        }
    }

    /// Whether this schema or one inside it has CEL rules.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
            || self.properties.values().any(Self::has_rules)
            || self.additional.as_deref().is_some_and(Self::has_rules)
            || self.items.as_deref().is_some_and(Self::has_rules)
    }

    /// The old item with the same map keys; only map lists correlate.
    fn counterpart<'a>(&self, old: &'a Value, item: &Value) -> Option<&'a Value> {
        if self.list_type != "map" {
            return None;
        }
        old.as_array()?.iter().find(|o| self.list_keys.iter().all(|k| o.get(k) == item.get(k)))
    }
}

impl Rule {
    fn read(source: &Value) -> Self {
        let text = source.get("rule").and_then(Value::as_str).unwrap_or("");
        Self {
            program: cel_eval::compile(text).ok(),
            transition: text.contains("oldSelf"),
            only_metadata: text.contains("self.metadata.name")
                && !["self.spec", "self.status", "oldSelf"].iter().any(|other| text.contains(other)),
            source: source.clone(),
        }
    }

    fn check(
        &self,
        value: &Value,
        old: Option<&Value>,
        scope: &cel_eval::RuleScope<'_>,
        path: &str,
        findings: &mut Vec<FieldError>,
    ) {
        let optional_old = self.source.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false);
        if self.transition && old.is_none() && !optional_old {
            return;
        }
        let Some(program) = &self.program else { return };
        let text = self.source.get("rule").and_then(Value::as_str).unwrap_or("");
        let verdict = cel_eval::check_rule(program, scope, optional_old);
        let field = match self.source.get("fieldPath").and_then(Value::as_str) {
            Some(suffix) => format!("{path}{suffix}"),
            None => path.to_owned(),
        };
        let field =
            if field.is_empty() { "<nil>".to_owned() } else { field.trim_start_matches('.').to_owned() };
        let detail = match verdict {
            Ok(true) => return,
            Ok(false) => self.message(value, old).unwrap_or_else(|| format!("failed rule: {text}")),
            Err(why) => format!("rule evaluation error: {why}: {text}"),
        };
        let kind = match value {
            Value::Object(_) => json!("object"),
            Value::Array(_) => json!("array"),
            other => other.clone(),
        };
        findings.push(match self.source.get("reason").and_then(Value::as_str) {
            Some("FieldValueForbidden") => FieldError::forbidden(field, &detail),
            Some("FieldValueRequired") => FieldError::required(field, &detail),
            Some("FieldValueDuplicate") => FieldError::duplicate(field, &kind),
            _ => FieldError::invalid_unshown(field, &detail),
        });
    }

    fn message(&self, value: &Value, old: Option<&Value>) -> Option<String> {
        if let Some(expression) = self.source.get("messageExpression").and_then(Value::as_str)
            && let Ok(program) = cel_eval::compile(expression)
            && let Some(text) = cel_eval::rule_text(&program, value, old)
        {
            return Some(text);
        }
        self.source.get("message").and_then(Value::as_str).map(str::to_owned)
    }
}

impl ListKeys for Schema {
    fn keys(&self, path: &[String]) -> Option<Vec<String>> {
        if path.first().is_some_and(|p| p == "metadata") {
            return super::patch::BuiltInKeys.keys(path);
        }
        let mut node = self;
        for step in path {
            // A path names fields only, so a list on the way means its items.
            while let Some(items) = &node.items {
                node = items;
            }
            node = node.child(step)?;
        }
        match node.list_type.as_str() {
            "map" => Some(node.list_keys.clone()),
            "set" => Some(Vec::new()),
            _ => None,
        }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
