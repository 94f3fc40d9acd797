//! What the API server refuses, as CEL rules: all of them, in one place, so that each can be tested.
//!
//! ```text
//!   table of a type ──#[schemars(extend(…))]──▶ x-kubernetes-validations ──▶ API server: "spec.elastic.minData: …"
//! ```
//!
//! A rule stands at the innermost type that sees every field it needs; a rule about an optional field stands at its
//! parent where it must also hold when the field is removed.

use serde_json::{Value, json};

/// One rule: CEL, what the user is told, and the field at fault relative to the type (empty: the type itself).
pub struct Check {
    /// CEL expression that must be true.
    pub rule: &'static str,
    /// What is wrong and what to do.
    pub message: &'static str,
    /// Path of the field, such as `.elastic.minData`.
    pub path: &'static str,
}

const fn check(rule: &'static str, message: &'static str, path: &'static str) -> Check {
    Check { rule, message, path }
}

/// The schema extension of a table.
pub fn json(checks: &[Check]) -> Value {
    checks
        .iter()
        .map(|check| {
            let mut rule = json!({ "rule": check.rule, "message": check.message });
            if !check.path.is_empty() {
                rule["fieldPath"] = json!(check.path);
            }
            rule
        })
        .collect()
}

/// `Recovery`.
pub const RECOVERY: &[Check] = &[check(
    "self.ladder.all(step, self.ladder.exists_one(other, other == step))",
    "ladder must not name a step twice",
    ".ladder",
)];

/// `Sharing` of an inference service.
pub const SHARING: &[Check] = &[
    check(
        "(self.mode == 'Mig') == has(self.profile)",
        "sharing.profile must be given for mode Mig and for no other",
        ".profile",
    ),
    check(
        "self.mode == 'TimeSlice' || self.replicas == 1",
        "sharing.replicas above 1 need mode TimeSlice",
        ".replicas",
    ),
];

/// `Rollout` of an inference service.
pub const ROLLOUT: &[Check] = &[check(
    "self.maxSurge + self.maxUnavailable > 0",
    "rollout.maxSurge and rollout.maxUnavailable must not both be 0: nothing could ever change",
    ".maxSurge",
)];

/// `Autoscaling` of an inference service.
pub const AUTOSCALING: &[Check] = &[
    check(
        "self.minReplicas <= self.maxReplicas",
        "autoscaling.minReplicas must not exceed autoscaling.maxReplicas",
        ".minReplicas",
    ),
    check(
        "has(self.queuedRequests) || has(self.kvCachePercent) || has(self.timeToFirstToken) || has(self.timePerOutputToken)",
        "autoscaling needs a target: queuedRequests, kvCachePercent, timeToFirstToken or timePerOutputToken",
        "",
    ),
];

/// `ClassQuota` of a queue.
pub const CLASS_QUOTA: &[Check] =
    &[check("!has(self.limit) || self.nominal <= self.limit", "nominal must not exceed limit", ".nominal")];

/// `GpuPartition` of a node partition.
pub const GPU_PARTITION: &[Check] = &[
    check(
        "self.mode == 'Mig' ? has(self.instances) && size(self.instances) > 0 : !has(self.instances)",
        "instances must be given for mode Mig and for no other",
        ".instances",
    ),
    check(
        "self.mode == 'TimeSlice' || self.replicas == 1",
        "replicas above 1 need mode TimeSlice",
        ".replicas",
    ),
];

/// `UnitBounds` of a gang's role.
pub const UNIT_BOUNDS: &[Check] =
    &[check("self.min <= self.max", "units.min must not exceed units.max", ".min")];
