//! Label and field selectors of list, watch and delete-collection requests.

use serde_json::Value;

use super::json::{at, text};
use super::status::ApiError;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
    Greater(String, i64),
    Less(String, i64),
}

/// A parsed label selector; the empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

impl LabelSelector {
    /// Parses the query form: `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
    pub fn parse(source: &str) -> Result<Self, ApiError> {
        split_top(source)
            .into_iter()
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(parse_requirement)
            .collect::<Option<Vec<_>>>()
            .map(Self)
            .ok_or_else(|| {
                ApiError::bad_request(format!("unable to parse requirement: labelSelector {source:?}"))
            })
    }

    /// Reads the structured form (`matchLabels`, `matchExpressions`) of objects.
    pub fn from_object(selector: &Value) -> Self {
        let mut all = Vec::new();
        if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in labels {
                all.push(Requirement::In(key.clone(), vec![value.as_str().unwrap_or("").to_owned()]));
            }
        }
        for e in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let key = text(e, &["key"]).to_owned();
            let values = e
                .get("values")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            all.push(match text(e, &["operator"]) {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "DoesNotExist" => Requirement::Missing(key),
                _ => Requirement::Exists(key),
            });
        }
        Self(all)
    }

    pub fn matches(&self, object: &Value) -> bool {
        let labels = at(object, &["metadata", "labels"]);
        self.0.iter().all(|r| r.holds(labels))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Requirement {
    fn holds(&self, labels: Option<&Value>) -> bool {
        let value = |key: &String| labels.and_then(|l| l.get(key)).and_then(Value::as_str);
        let number = |key: &String| value(key).and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::In(key, set) => value(key).is_some_and(|v| set.iter().any(|s| s == v)),
            Self::NotIn(key, set) => value(key).is_none_or(|v| set.iter().all(|s| s != v)),
            Self::Exists(key) => value(key).is_some(),
            Self::Missing(key) => value(key).is_none(),
            Self::Greater(key, bound) => number(key).is_some_and(|v| v > *bound),
            Self::Less(key, bound) => number(key).is_some_and(|v| v < *bound),
        }
    }
}

/// Splits at commas outside parentheses.
fn split_top(source: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_i32, 0);
    for (i, c) in source.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&source[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&source[start..]);
    parts
}

fn parse_requirement(part: &str) -> Option<Requirement> {
    if let Some(key) = part.strip_prefix('!') {
        return label_key(key).map(Requirement::Missing);
    }
    if let Some((head, set)) = part.split_once('(') {
        let values = set.trim().strip_suffix(')')?.split(',').map(|v| v.trim().to_owned()).collect();
        let mut words = head.split_whitespace();
        let key = label_key(words.next()?)?;
        return match (words.next()?, words.next()) {
            ("in", None) => Some(Requirement::In(key, values)),
            ("notin", None) => Some(Requirement::NotIn(key, values)),
            _ => None,
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Some(Requirement::NotIn(label_key(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Some(Requirement::In(label_key(key)?, vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once('>') {
        return Some(Requirement::Greater(label_key(key)?, value.trim().parse().ok()?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return Some(Requirement::Less(label_key(key)?, value.trim().parse().ok()?));
    }
    label_key(part).map(Requirement::Exists)
}

fn label_key(key: &str) -> Option<String> {
    let key = key.trim();
    let ok = !key.is_empty()
        && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
    ok.then(|| key.to_owned())
}

/// A parsed field selector: conjunction of (path, equal, value).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<(String, bool, String)>);

/// The selectable fields beyond name and namespace, by table.
fn selectable(table: &str, field: &str) -> bool {
    match field {
        "metadata.name" | "metadata.namespace" => true,
        "spec.nodeName"
        | "spec.restartPolicy"
        | "spec.schedulerName"
        | "spec.serviceAccountName"
        | "status.podIP"
        | "status.nominatedNodeName" => table == "pods",
        "status.phase" => matches!(table, "pods" | "namespaces"),
        "spec.unschedulable" => table == "nodes",
        "type" => matches!(table, "secrets" | "events"),
        "reason" | "source" | "reportingComponent" => table.starts_with("events"),
        "status.successful" => table == "jobs.batch",
        _ => {
            table.starts_with("events")
                && (field.starts_with("involvedObject.") || field.starts_with("regarding."))
        }
    }
}

impl FieldSelector {
    pub fn parse(source: &str, table: &str, extra: &[String]) -> Result<Self, ApiError> {
        let mut terms = Vec::new();
        for part in source.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (field, equal, value) = if let Some((f, v)) = part.split_once("!=") {
                (f, false, v)
            } else if let Some((f, v)) = part.split_once("==").or_else(|| part.split_once('=')) {
                (f, true, v)
            } else {
                let message = format!("invalid selector: '{source}'; can't understand '{part}'");
                return Err(ApiError::bad_request(message));
            };
            let field = field.trim();
            if !selectable(table, field) && !extra.iter().any(|e| e == field) {
                return Err(ApiError::bad_request(format!("field label not supported: {field}")));
            }
            terms.push((field.to_owned(), equal, value.trim().to_owned()));
        }
        Ok(Self(terms))
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|(field, equal, wanted)| {
            let path: Vec<&str> = field.split('.').collect();
            let found = match at(object, &path) {
                Some(Value::String(s)) => s.clone(),
                Some(Value::Null) | None => default_of(field).to_owned(),
                Some(other) => other.to_string(),
            };
            (found == *wanted) == *equal
        })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn default_of(field: &str) -> &'static str {
    if field == "spec.unschedulable" { "false" } else { "" }
}

/// Both selectors of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}
