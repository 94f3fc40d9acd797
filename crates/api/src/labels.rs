//! Names of labels, annotations and finalizers: each once, here.

/// Label: name of the gang that a pod, Service or ConfigMap belongs to. For selectors; what is ours is decided by
/// the controller's UID.
pub const GANG: &str = "muster.dev/gang";
/// Label: UID of the gang.
pub const GANG_UID: &str = "muster.dev/gang-uid";
/// Label: name of the TrainingJob.
pub const JOB: &str = "muster.dev/job";
/// Label: name of the InferenceService.
pub const SERVICE: &str = "muster.dev/service";
/// Label: role of a pod.
pub const ROLE: &str = "muster.dev/role";
/// Label: unit of a pod, from 0.
pub const UNIT: &str = "muster.dev/unit";
/// Label: incarnation of a pod's unit; part of what the Services of rank 0 and of leaders select.
pub const INCARNATION: &str = "muster.dev/incarnation";
/// Label: index of a pod in its unit, from 0.
pub const INDEX: &str = "muster.dev/index";
/// Label: revision of the template that a pod was made from.
pub const REVISION: &str = "muster.dev/revision";
/// Label: generation of the plan that made an object.
pub const GENERATION: &str = "muster.dev/generation";
/// Annotation: epoch of the leader that wrote an object; the admission policy compares it with the Lease.
pub const EPOCH: &str = "muster.dev/epoch";
/// Annotation of a Gang: what it was derived from beside its workload's specification.
pub const DERIVED: &str = "muster.dev/derived";
/// Annotation: step of the last complete checkpoint, written by whoever reports progress.
pub const CHECKPOINT_STEP: &str = "muster.dev/checkpoint-step";
/// Annotation: name of the container whose exit decides how the pod has ended, while others may still run.
pub const CONTAINER: &str = "muster.dev/container";
/// Beginning of every label and annotation that is ours: templates may not set them.
pub const OURS: &str = "muster.dev/";
/// Finalizer on pods whose exit decides the outcome: it goes when the result is in the gang's status.
pub const RESULT_FINALIZER: &str = "muster.dev/result";
/// Finalizer on Gangs: it goes when their pods are gone.
pub const PODS_FINALIZER: &str = "muster.dev/pods";
/// Label that the objects of this project carry, with [`MANAGED_BY_VALUE`].
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`].
pub const MANAGED_BY_VALUE: &str = "muster";
