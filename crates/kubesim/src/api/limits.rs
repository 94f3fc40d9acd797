//! LimitRange: the `max` of containers. Defaults, minima and ratios are left out.

use serde_json::Value;

use super::json::{at, list, text};
use super::quantity;
use super::server::State;
use super::status::ApiError;

impl State {
    /// Refuses a pod of which a container may use more than a LimitRange of its namespace allows.
    pub fn check_limits(&self, pod: &Value, name: &str) -> Result<(), ApiError> {
        let namespace = text(pod, &["metadata", "namespace"]);
        let ranges = self.store.table("limitranges").into_iter().flat_map(|table| table.scan(namespace));
        for (_, range) in ranges {
            for limit in list(range, &["spec", "limits"]) {
                if text(limit, &["type"]) == "Container" {
                    within(limit, pod, name)?;
                }
            }
        }
        Ok(())
    }
}

fn within(limit: &Value, pod: &Value, name: &str) -> Result<(), ApiError> {
    let most = at(limit, &["max"]).and_then(Value::as_object);
    for (resource, most) in most.into_iter().flatten() {
        for container in list(pod, &["spec", "containers"]) {
            // What has no limit is judged by its request: the real server would have set the limit from `default`.
            let asked = ["limits", "requests"]
                .iter()
                .find_map(|kind| at(container, &["resources", kind, resource]).and_then(Value::as_str));
            let over = asked.and_then(quantity::parse) > most.as_str().and_then(quantity::parse);
            if let (Some(asked), true) = (asked, over) {
                let most = most.as_str().unwrap_or_default();
                let why = format!("maximum {resource} usage per Container is {most}, but limit is {asked}");
                return Err(ApiError::forbidden("", "pods", name, &why));
            }
        }
    }
    Ok(())
}
