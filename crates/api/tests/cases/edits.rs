//! Changes of a live job.

/// A change of a job that is refused while it is live, and accepted while it is suspended.
pub struct Edit {
    pub field: &'static str,
    pub says: &'static str,
    pub change: &'static str,
}

const fn edit(field: &'static str, says: &'static str, change: &'static str) -> Edit {
    Edit { field, says, change }
}

pub const EDITS: &[Edit] = &[
    edit(
        "spec.queue",
        "queue must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"queue":"other"}}"#,
    ),
    edit(
        "spec.framework",
        "framework must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"framework":"Mpi"}}"#,
    ),
    edit(
        "spec.accelerator",
        "accelerator must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"accelerator":{"classes":["b200"]}}}"#,
    ),
    edit(
        "spec.accelerator",
        "accelerator must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"accelerator":{"classes":null}}}"#,
    ),
    edit(
        "spec.parallelism",
        "parallelism other than data must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"parallelism":{"tensor":4,"expertTensor":4}}}"#,
    ),
    edit(
        "spec.parallelism",
        "parallelism other than data must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"parallelism":{"expertTensor":null}}}"#,
    ),
    edit(
        "spec.placement",
        "placement must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"placement":{"spares":1}}}"#,
    ),
    edit(
        "spec.outcome",
        "outcome must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"outcome":"AllRanks"}}"#,
    ),
    edit(
        "spec.template",
        "template must not change while the job is not suspended: set spec.suspend: true first",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}}"#,
    ),
];

/// Changes that a live job takes.
pub fn allowed_edits() -> [&'static str; 8] {
    [
        r#"{"spec":{"parallelism":{"data":3}}}"#,
        r#"{"spec":{"elastic":{"maxData":16}}}"#,
        r#"{"spec":{"suspend":true}}"#,
        r#"{"spec":{"priorityClassName":"low"}}"#,
        r#"{"spec":{"recovery":{"maxRestarts":1}}}"#,
        r#"{"spec":{"ttlAfterFinished":"1h"}}"#,
        r#"{"spec":{"activeDeadline":"1h"}}"#,
        r#"{"spec":{"checkpoint":{"grace":"2m"}}}"#,
    ]
}
