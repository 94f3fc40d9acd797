//! What the API server refuses, as CEL rules: all of them, in one place, so that each can be tested.
//!
//! ```text
//!   table of a type ──#[schemars(extend(…))]──▶ x-kubernetes-validations ──▶ API server: "spec.elastic.minData: …"
//! ```
//!
//! A rule stands at the innermost type that sees every field it needs; a rule about an optional field stands at its
//! parent where it must also hold when the field is removed.

use kube::core::Rule;
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

/// Names of gangs and of what becomes one: Services, pods and their hosts are named after them.
pub fn gang_name() -> Rule {
    Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')").message(
        "metadata.name must begin with a letter, hold only lower-case letters, digits and dashes, and have at most 40 characters: pods and Services are named after it",
    )
}

/// A rule at the root of a kind, where its status can be seen.
pub fn root(check: &Check) -> Rule {
    Rule::new(check.rule).message(check.message).field_path(check.path)
}

/// Names that others refer to, and that become label values.
pub fn short_name() -> Rule {
    Rule::new("self.metadata.name.size() <= 63").message("metadata.name must have at most 63 characters")
}

/// The one Topology.
pub fn topology_name() -> Rule {
    Rule::new("self.metadata.name == 'default'")
        .message("metadata.name must be default: one Topology rules the cluster")
}

/// A queue is not a part of itself.
pub fn queue_parent() -> Rule {
    Rule::new("!has(self.spec.parent) || self.spec.parent != self.metadata.name")
        .message("spec.parent must be another queue")
        .field_path(".spec.parent")
}

/// `Parallelism`.
pub const PARALLELISM: &[Check] = &[
    check(
        "self.tensor * self.context * self.data % (self.expert * (has(self.expertTensor) ? self.expertTensor : self.tensor)) == 0",
        "expert * expertTensor must divide tensor * context * data, the ranks of one stage (expertTensor defaults to tensor)",
        ".expert",
    ),
    check(
        "self.tensor * self.pipeline * self.context * self.data <= 262144",
        "tensor * pipeline * context * data must not exceed 262144 ranks",
        ".data",
    ),
];

/// `Elastic`.
pub const ELASTIC: &[Check] = &[
    check(
        "!has(self.minData) || !has(self.maxData) || self.minData <= self.maxData",
        "elastic.minData must not exceed elastic.maxData",
        ".minData",
    ),
    check(
        "!has(self.validData) || self.validData.all(n, (!has(self.minData) || n >= self.minData) && (!has(self.maxData) || n <= self.maxData))",
        "elastic.validData must lie between elastic.minData and elastic.maxData",
        ".validData",
    ),
];

/// `TrainingJobSpec`, new or changed.
pub const TRAINING_JOB: &[Check] = &[
    check(
        "!has(self.elastic) || !has(self.elastic.minData) || self.elastic.minData <= self.parallelism.data",
        "elastic.minData must not exceed parallelism.data",
        ".elastic.minData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.maxData) || self.elastic.maxData >= self.parallelism.data",
        "elastic.maxData must not be below parallelism.data",
        ".elastic.maxData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.validData) || self.parallelism.data in self.elastic.validData",
        "elastic.validData must contain parallelism.data",
        ".elastic.validData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.maxData) || self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context * self.elastic.maxData <= 262144",
        "tensor * pipeline * context * elastic.maxData must not exceed 262144 ranks",
        ".elastic.maxData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.minData) || self.parallelism.tensor * self.parallelism.context * self.elastic.minData % (self.parallelism.expert * (has(self.parallelism.expertTensor) ? self.parallelism.expertTensor : self.parallelism.tensor)) == 0",
        "elastic.minData splits a unit: expert * expertTensor must divide tensor * context * minData",
        ".elastic.minData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.maxData) || self.parallelism.tensor * self.parallelism.context * self.elastic.maxData % (self.parallelism.expert * (has(self.parallelism.expertTensor) ? self.parallelism.expertTensor : self.parallelism.tensor)) == 0",
        "elastic.maxData splits a unit: expert * expertTensor must divide tensor * context * maxData",
        ".elastic.maxData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.validData) || self.elastic.validData.all(n, self.parallelism.tensor * self.parallelism.context * n % (self.parallelism.expert * (has(self.parallelism.expertTensor) ? self.parallelism.expertTensor : self.parallelism.tensor)) == 0)",
        "elastic.validData splits a unit: expert * expertTensor must divide tensor * context * each of them",
        ".elastic.validData",
    ),
    check(
        "!has(self.accelerator.perPod) || self.accelerator.perPod == 0 || self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context * self.parallelism.data % self.accelerator.perPod == 0",
        "accelerator.perPod must divide tensor * pipeline * context * data: every pod has as many ranks as accelerators",
        ".accelerator.perPod",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.minData) || !has(self.accelerator.perPod) || self.accelerator.perPod == 0 || self.parallelism.tensor * self.parallelism.context * self.elastic.minData % self.accelerator.perPod == 0",
        "elastic.minData splits a pod: accelerator.perPod must divide tensor * context * minData",
        ".elastic.minData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.maxData) || !has(self.accelerator.perPod) || self.accelerator.perPod == 0 || self.parallelism.tensor * self.parallelism.context * self.elastic.maxData % self.accelerator.perPod == 0",
        "elastic.maxData splits a pod: accelerator.perPod must divide tensor * context * maxData",
        ".elastic.maxData",
    ),
    check(
        "!has(self.elastic) || !has(self.elastic.validData) || !has(self.accelerator.perPod) || self.accelerator.perPod == 0 || self.elastic.validData.all(n, self.parallelism.tensor * self.parallelism.context * n % self.accelerator.perPod == 0)",
        "elastic.validData splits a pod: accelerator.perPod must divide tensor * context * each of them",
        ".elastic.validData",
    ),
    ACCELERATOR_CONTAINER,
    check(
        "oldSelf.suspend || self.queue == oldSelf.queue",
        "queue must not change while the job is not suspended: set spec.suspend: true first",
        ".queue",
    ),
    check(
        "oldSelf.suspend || self.framework == oldSelf.framework",
        "framework must not change while the job is not suspended: set spec.suspend: true first",
        ".framework",
    ),
    check(
        "oldSelf.suspend || self.accelerator == oldSelf.accelerator",
        "accelerator must not change while the job is not suspended: set spec.suspend: true first",
        ".accelerator",
    ),
    check(
        "oldSelf.suspend || (self.parallelism.tensor == oldSelf.parallelism.tensor && self.parallelism.pipeline == oldSelf.parallelism.pipeline && self.parallelism.context == oldSelf.parallelism.context && self.parallelism.expert == oldSelf.parallelism.expert && has(self.parallelism.expertTensor) == has(oldSelf.parallelism.expertTensor) && (!has(self.parallelism.expertTensor) || self.parallelism.expertTensor == oldSelf.parallelism.expertTensor))",
        "parallelism other than data must not change while the job is not suspended: set spec.suspend: true first",
        ".parallelism",
    ),
    check(
        "oldSelf.suspend || self.placement == oldSelf.placement",
        "placement must not change while the job is not suspended: set spec.suspend: true first",
        ".placement",
    ),
    check(
        "oldSelf.suspend || self.outcome == oldSelf.outcome",
        "outcome must not change while the job is not suspended: set spec.suspend: true first",
        ".outcome",
    ),
    check(
        "oldSelf.suspend || self.template == oldSelf.template",
        "template must not change while the job is not suspended: set spec.suspend: true first",
        ".template",
    ),
];

/// The container that gets the accelerators exists.
const ACCELERATOR_CONTAINER: Check = check(
    "!has(self.accelerator.container) || self.template.spec.containers.exists(c, c.name == self.accelerator.container)",
    "accelerator.container must be the name of a container of the template",
    ".accelerator.container",
);

/// `InferenceServiceSpec`.
pub const INFERENCE_SERVICE: &[Check] = &[
    ACCELERATOR_CONTAINER,
    check(
        "!has(self.autoscaling) || (self.replicas >= self.autoscaling.minReplicas && self.replicas <= self.autoscaling.maxReplicas)",
        "replicas must lie between autoscaling.minReplicas and autoscaling.maxReplicas",
        ".replicas",
    ),
    check(
        "self.sharing.mode == 'Whole' || self.parallelism.tensor * self.parallelism.pipeline * self.parallelism.context * self.parallelism.data == 1",
        "sharing.mode must be Whole where parallelism has more than one rank: a process uses one partition of a card",
        ".sharing.mode",
    ),
    check(
        "self.tier != 'P0' || self.sharing.mode != 'TimeSlice'",
        "sharing.mode TimeSlice isolates neither memory nor latency, which tier P0 promises",
        ".sharing.mode",
    ),
];

/// `TopologySpec`.
pub const TOPOLOGY: &[Check] = &[
    check(
        "self.levels.all(a, self.levels.exists_one(b, b.name == a.name))",
        "levels must have different names",
        ".levels",
    ),
    check(
        "!self.levels.exists(level, level.name == 'Node')",
        "levels must not list Node: it is always the last",
        ".levels",
    ),
];

/// `GangSpec`.
pub const GANG: &[Check] = &[
    check(
        "!has(self.outcome.role) || self.roles.exists(role, role.name == self.outcome.role)",
        "outcome.role must be the name of a role",
        ".outcome.role",
    ),
    // A fieldPath cannot name an entry of a list: the message says which of its fields is at fault.
    check(
        "!has(self.rules) || !has(self.rules.ratios) || self.rules.ratios.all(ratio, self.roles.exists(role, role.name == ratio.role))",
        "rules.ratios: each role must be the name of a role",
        ".rules.ratios",
    ),
    check(
        "!has(self.rules) || !has(self.rules.ratios) || self.rules.ratios.all(ratio, self.roles.exists(role, role.name == ratio.of))",
        "rules.ratios: each of must be the name of a role",
        ".rules.ratios",
    ),
    check(
        "!has(self.rules) || !has(self.rules.near) || self.rules.near.all(near, near.roles.all(name, self.roles.exists(role, role.name == name)))",
        "rules.near: all roles must be names of roles",
        ".rules.near",
    ),
    check(
        "!has(self.rules) || !has(self.rules.spread) || self.rules.spread.all(spread, self.roles.exists(role, role.name == spread.role))",
        "rules.spread: each role must be the name of a role",
        ".rules.spread",
    ),
];

/// A Gang with a plan in force, changed: fields of which a change would leave pods of two kinds.
/// Sizes may change, which makes a new plan; the operator itself changes sizes, rank, recovery and `suspend`. At the root,
/// where the status can be seen.
pub const GANG_LIVE: &[Check] = &[
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.queue == oldSelf.spec.queue",
        "queue must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.queue",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || (has(self.spec.classes) == has(oldSelf.spec.classes) && (!has(self.spec.classes) || self.spec.classes == oldSelf.spec.classes))",
        "classes must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.classes",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.roles.map(role, role.name) == oldSelf.spec.roles.map(role, role.name)",
        "roles must not come, go, or change their names or order while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.roles",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.roles.all(role, oldSelf.spec.roles.all(old, old.name != role.name || (old.revision == role.revision ? old.template == role.template : has(oldSelf.status.revisions))))",
        "the template of a role must not change while the gang holds a plan: name the new one in revision and keep the old one in revisions, or set spec.suspend: true and wait until it holds none",
        ".spec.roles",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || !has(oldSelf.status.revisions) || oldSelf.status.revisions.all(used, self.spec.roles.exists(role, role.name == used.role && (role.revision == used.name || (has(role.revisions) && role.revisions.exists(kept, kept.name == used.name)))))",
        "revisions must keep the templates that units run with: status.revisions says which",
        ".spec.roles",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.roles.all(role, oldSelf.spec.roles.all(old, old.name != role.name || (has(old.container) == has(role.container) && (!has(old.container) || old.container == role.container))))",
        "the container of a role must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.roles",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || (has(self.spec.within) == has(oldSelf.spec.within) && (!has(self.spec.within) || self.spec.within == oldSelf.spec.within))",
        "within must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.within",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || (has(self.spec.rules) == has(oldSelf.spec.rules) && (!has(self.spec.rules) || self.spec.rules == oldSelf.spec.rules))",
        "rules must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.rules",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || (self.spec.launch.framework == oldSelf.spec.launch.framework && self.spec.launch.port == oldSelf.spec.launch.port)",
        "launch.framework and launch.port must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.launch",
    ),
    check(
        "!has(oldSelf.status) || !has(oldSelf.status.plan) || self.spec.outcome == oldSelf.spec.outcome",
        "outcome must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        ".spec.outcome",
    ),
];

/// `GangPlanSpec`.
pub const GANG_PLAN: &[Check] =
    &[check("self == oldSelf", "a part of a plan never changes: another plan has other parts", "")];

/// `rules` of a gang.
pub const RULES: &[Check] = &[check(
    "!has(self.spread) || self.spread.all(a, !has(a.group) || self.spread.exists_one(b, has(b.group) && b.group == a.group))",
    "a gang must name a group in one spread rule only",
    ".spread",
)];

/// A ratio between two roles of a gang. That ratios form no circle, the operator says.
pub const RATIO: &[Check] = &[
    check("self.min <= self.max", "min must not exceed max", ".min"),
    check("self.role != self.of", "a ratio must be between two roles: of must not be role", ".of"),
];

/// `RoleSpec` of a gang.
pub const ROLE: &[Check] = &[
    check(
        "!has(self.segments) || self.segments.all(s, self.podsPerUnit % s.pods == 0)",
        "the pods of each segment must divide podsPerUnit",
        ".segments",
    ),
    check(
        "!has(self.segments) || self.segments.all(a, self.segments.all(b, a.pods > b.pods || b.pods % a.pods == 0))",
        "the pods of each segment must divide those of each larger one",
        ".segments",
    ),
    check(
        "self.units.max * self.podsPerUnit <= 262144",
        "units.max * podsPerUnit must not exceed 262144 pods",
        ".units.max",
    ),
    check(
        "!has(self.revisions) || self.revisions.all(kept, kept.name != self.revision)",
        "revisions must not hold the name of the present template, which is in revision",
        ".revisions",
    ),
    check(
        "!has(self.revisions) || self.revisions.all(kept, kept.name != oldSelf.revision || dyn(kept.template) == dyn(oldSelf.template))",
        "revisions must keep the template of the revision before as it was",
        ".revisions",
    ),
    check(
        "!has(oldSelf.revisions) || oldSelf.revisions.all(kept, kept.name != self.revision || dyn(kept.template) == dyn(self.template))",
        "revision must not be the name of an earlier template, unless template is that one",
        ".revision",
    ),
];

/// `Revision` of a role.
pub const REVISION: &[Check] = &[check(
    "self.template == oldSelf.template",
    "an earlier template never changes: give it another name",
    ".template",
)];

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
pub const UNIT_BOUNDS: &[Check] = &[
    check("self.min <= self.max", "units.min must not exceed units.max", ".min"),
    check(
        "!has(self.valid) || self.valid.all(n, n >= self.min && n <= self.max)",
        "units.valid must lie between units.min and units.max",
        ".valid",
    ),
];
