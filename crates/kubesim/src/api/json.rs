//! Small helpers for reading and writing `serde_json::Value`.

use serde_json::{Map, Value};

/// The value at a path of field names.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |v, key| v.get(key))
}

/// The string at a path; empty if absent or no string.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}

/// The array at a path; empty if absent.
pub(crate) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The object behind a value, replacing anything else by an empty one.
pub(crate) fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// The object at a field, created if absent.
pub(crate) fn child_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    object_mut(value).entry(key).or_insert_with(|| Value::Object(Map::new()))
}

/// Sets the value at a path, creating objects on the way.
pub(crate) fn set(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    let mut place = value;
    for key in path {
        place = object_mut(place).entry(*key).or_insert(Value::Null);
    }
    *place = new.into();
}

/// Sets the value at a path only if nothing (or null) is there.
pub(crate) fn set_default(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    if at(value, path).is_none_or(Value::is_null) {
        set(value, path, new);
    }
}

/// Removes the field at a path.
pub(crate) fn remove(value: &mut Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut place = value;
    for key in parents {
        match place.get_mut(*key) {
            Some(next) => place = next,
            None => return,
        }
    }
    if let Some(map) = place.as_object_mut() {
        map.remove(*last);
    }
}

/// Copies one top-level field of `from` (or its absence) into `to`.
pub(crate) fn copy_field(from: &Value, to: &mut Value, key: &str) {
    match from.get(key) {
        Some(v) => {
            object_mut(to).insert(key.to_owned(), v.clone());
        }
        None => {
            object_mut(to).remove(key);
        }
    }
}

/// Drops null fields of objects, at every depth (as Go's decoding of JSON does).
pub(crate) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
