//! The four patch kinds, as functions from (object, patch) to object.
//!
//! Server-side apply is a structural merge with list-map keys; instead of managed fields it keeps,
//! per field manager, what was applied last, so that a field the manager drops is removed.

use serde_json::{Map, Value};

use super::json::object_mut;

/// How lists merge: the key fields of a list, by the list's path of field names.
pub(crate) trait ListKeys {
    /// Key fields of the list at `path`, empty for a set of scalars, `None` for an atomic list.
    fn keys(&self, path: &[String]) -> Option<Vec<String>>;
}

/// RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    let map = object_mut(target);
    for (key, value) in fields {
        if value.is_null() {
            map.remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// RFC 6902. The error names the operation and the path.
pub(crate) fn json_patch(target: &mut Value, operations: &Value) -> Result<(), String> {
    let operations = operations.as_array().ok_or("a JSON patch must be a list of operations")?;
    for operation in operations {
        apply_operation(target, operation)?;
    }
    Ok(())
}

fn apply_operation(target: &mut Value, operation: &Value) -> Result<(), String> {
    let op = operation.get("op").and_then(Value::as_str).unwrap_or("");
    let path = pointer(operation, "path")?;
    let given =
        || operation.get("value").cloned().ok_or_else(|| format!("{op} operation of {path:?} lacks a value"));
    match op {
        "add" => insert_at(target, &path, given()?),
        "remove" => remove_at(target, &path).map(|_| ()),
        "replace" => {
            let missing =
                || format!("replace operation does not apply: doc is missing key: {path}: missing value");
            *target.pointer_mut(&path).ok_or_else(missing)? = given()?;
            Ok(())
        }
        "move" => {
            let value = remove_at(target, &pointer(operation, "from")?)?;
            insert_at(target, &path, value)
        }
        "copy" => {
            let from = pointer(operation, "from")?;
            let value = target.pointer(&from).cloned().ok_or_else(|| missing_path(&from))?;
            insert_at(target, &path, value)
        }
        "test" => {
            if target.pointer(&path) == Some(&given()?) {
                Ok(())
            } else {
                Err(format!("testing value {path} failed: test failed"))
            }
        }
        other => Err(format!("unexpected kind of operation: {other:?}")),
    }
}

fn pointer(operation: &Value, field: &str) -> Result<String, String> {
    match operation.get(field).and_then(Value::as_str) {
        Some(p) if p.is_empty() || p.starts_with('/') => Ok(p.to_owned()),
        _ => Err(format!("operation needs {field:?}, a JSON pointer that starts with '/'")),
    }
}

fn missing_path(path: &str) -> String {
    format!("doc is missing path: {path}: missing value")
}

fn split_pointer(path: &str) -> Option<(&str, String)> {
    let (parent, last) = path.rsplit_once('/')?;
    Some((parent, last.replace("~1", "/").replace("~0", "~")))
}

fn insert_at(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let Some((parent, last)) = split_pointer(path) else {
        *target = value;
        return Ok(());
    };
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.insert(last, value);
            Ok(())
        }
        Some(Value::Array(items)) => {
            let index =
                if last == "-" { items.len() } else { last.parse().map_err(|_| missing_path(path))? };
            if index > items.len() {
                return Err(format!("add operation does not apply: index {index} is out of bounds: {path}"));
            }
            items.insert(index, value);
            Ok(())
        }
        _ => Err(format!("add operation does not apply: {}", missing_path(path))),
    }
}

fn remove_at(target: &mut Value, path: &str) -> Result<Value, String> {
    let missing = || format!("remove operation does not apply: {}", missing_path(path));
    let (parent, last) = split_pointer(path).ok_or_else(missing)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => map.remove(&last).ok_or_else(missing),
        Some(Value::Array(items)) => match last.parse::<usize>() {
            Ok(i) if i < items.len() => Ok(items.remove(i)),
            _ => Err(missing()),
        },
        _ => Err(missing()),
    }
}

/// Strategic merge patch: as `merge`, but lists with keys merge item by item, and the
/// `$patch`, `$deleteFromPrimitiveList` and `$retainKeys` directives are obeyed.
pub(crate) fn strategic(target: &mut Value, patch: &Value, keys: &dyn ListKeys) {
    strategic_at(target, patch, keys, &mut Vec::new());
}

fn strategic_at(target: &mut Value, patch: &Value, keys: &dyn ListKeys, path: &mut Vec<String>) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if fields.get("$patch").and_then(Value::as_str) == Some("replace") {
        let mut replacement = fields.clone();
        replacement.remove("$patch");
        *target = Value::Object(replacement);
        return;
    }
    let map = object_mut(target);
    if let Some(retained) = fields.get("$retainKeys").and_then(Value::as_array) {
        map.retain(|key, _| retained.iter().any(|r| r.as_str() == Some(key)));
    }
    for (key, value) in fields {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(items), Some(gone)) =
                (map.get_mut(field).and_then(Value::as_array_mut), value.as_array())
            {
                items.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with('$') {
            // `$setElementOrder/…` only orders what `kubectl edit` shows.
        } else if value.is_null() {
            map.remove(key);
        } else {
            path.push(key.clone());
            strategic_field(map, key, value, keys, path);
            path.pop();
        }
    }
}

fn strategic_field(
    map: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    keys: &dyn ListKeys,
    path: &mut Vec<String>,
) {
    let Value::Array(items) = value else {
        if value.get("$patch").and_then(Value::as_str) == Some("delete") {
            map.remove(key);
        } else {
            strategic_at(map.entry(key).or_insert(Value::Null), value, keys, path);
        }
        return;
    };
    let Some(merge_keys) = keys.keys(path) else {
        map.insert(key.to_owned(), value.clone());
        return;
    };
    let place = map.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    if !place.is_array() {
        *place = Value::Array(Vec::new());
    }
    let Some(live) = place.as_array_mut() else { return };
    if items.iter().any(|i| {
        i.get("$patch").and_then(Value::as_str) == Some("replace")
            && merge_keys.iter().all(|k| i.get(k).is_none())
    }) {
        *live = items.iter().filter(|i| i.get("$patch").is_none()).cloned().collect();
        return;
    }
    // As in the real server, new items come first, in the patch's order.
    let mut fresh = 0;
    for item in items {
        let found = position(live, item, &merge_keys);
        match (item.get("$patch").and_then(Value::as_str), found) {
            (Some("delete"), Some(i)) => {
                live.remove(i);
            }
            (Some("delete"), None) => {}
            (_, Some(i)) => {
                if item.is_object() {
                    strategic_at(&mut live[i], item, keys, path);
                }
            }
            (_, None) => {
                live.insert(fresh.min(live.len()), item.clone());
                fresh += 1;
            }
        }
    }
}

/// Index of the item with the same keys (or the same scalar).
fn position(items: &[Value], item: &Value, keys: &[String]) -> Option<usize> {
    if keys.is_empty() {
        return items.iter().position(|i| i == item);
    }
    items.iter().position(|i| keys.iter().all(|k| i.get(k) == item.get(k)))
}

/// Server-side apply: merges `applied` into the object, then removes what `last` (the same
/// manager's previous configuration) held and `applied` no longer does.
pub(crate) fn apply(target: &mut Value, applied: &Value, last: Option<&Value>, keys: &dyn ListKeys) {
    let mut path = Vec::new();
    if let Some(last) = last {
        remove_dropped(target, last, applied, keys, &mut path);
    }
    apply_at(target, applied, keys, &mut path);
}

fn apply_at(target: &mut Value, applied: &Value, keys: &dyn ListKeys, path: &mut Vec<String>) {
    match applied {
        Value::Object(fields) => {
            let map = object_mut(target);
            for (key, value) in fields {
                path.push(key.clone());
                apply_at(map.entry(key.clone()).or_insert(Value::Null), value, keys, path);
                path.pop();
            }
        }
        Value::Array(items) => {
            let (Some(merge_keys), Some(live)) = (keys.keys(path), target.as_array_mut()) else {
                *target = applied.clone();
                return;
            };
            for item in items {
                match position(live, item, &merge_keys) {
                    Some(i) => apply_at(&mut live[i], item, keys, path),
                    None => live.push(item.clone()),
                }
            }
        }
        scalar => *target = scalar.clone(),
    }
}

fn remove_dropped(
    target: &mut Value,
    last: &Value,
    applied: &Value,
    keys: &dyn ListKeys,
    path: &mut Vec<String>,
) {
    match (target, last) {
        (Value::Object(live), Value::Object(before)) => {
            for (key, old) in before {
                path.push(key.clone());
                match (applied.get(key), live.get_mut(key)) {
                    (Some(new), Some(place)) => remove_dropped(place, old, new, keys, path),
                    (None, Some(place)) => {
                        remove_dropped(place, old, &empty_like(old), keys, path);
                        if is_leaf(place, keys, path) || is_empty(place) {
                            live.remove(key);
                        }
                    }
                    (_, None) => {}
                }
                path.pop();
            }
        }
        (Value::Array(live), Value::Array(before)) => {
            let Some(merge_keys) = keys.keys(path) else { return };
            let empty = Vec::new();
            let now = applied.as_array().unwrap_or(&empty);
            for old in before {
                let Some(i) = position(live, old, &merge_keys) else { continue };
                match position(now, old, &merge_keys) {
                    Some(j) => remove_dropped(&mut live[i], old, &now[j], keys, path),
                    None => {
                        live.remove(i);
                    }
                }
            }
        }
        _ => {}
    }
}

fn empty_like(value: &Value) -> Value {
    match value {
        Value::Array(_) => Value::Array(Vec::new()),
        _ => Value::Object(Map::new()),
    }
}

fn is_leaf(value: &Value, keys: &dyn ListKeys, path: &[String]) -> bool {
    match value {
        Value::Object(_) => false,
        Value::Array(_) => keys.keys(path).is_none(),
        _ => true,
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Merge keys of the built-in types, by the list's field name and, where that is not enough, its
/// parent (`patchMergeKey` in the API's Go types).
pub(crate) struct BuiltInKeys;

impl ListKeys for BuiltInKeys {
    fn keys(&self, path: &[String]) -> Option<Vec<String>> {
        let (last, parents) = path.split_last()?;
        let parent = parents.last().map_or("", String::as_str);
        let key: &[&str] = match (last.as_str(), parent) {
            ("finalizers", "metadata" | "spec") => &[],
            ("conditions", _) | ("addresses", "status") => &["type"],
            ("ownerReferences", _) => &["uid"],
            ("ports", "containers" | "initContainers") => &["containerPort"],
            ("ports", "spec") => &["port"],
            ("volumeMounts", _) => &["mountPath"],
            ("volumeDevices", _) => &["devicePath"],
            ("hostAliases" | "podIPs", _) => &["ip"],
            ("topologySpreadConstraints", _) => &["topologyKey"],
            (
                "containers"
                | "initContainers"
                | "ephemeralContainers"
                | "env"
                | "volumes"
                | "imagePullSecrets"
                | "schedulingGates"
                | "resourceClaims"
                | "secrets"
                | "resourceClaimStatuses"
                | "matchConditions"
                | "variables",
                _,
            ) => &["name"],
            _ => return None,
        };
        Some(key.iter().map(|&k| k.to_owned()).collect())
    }
}
