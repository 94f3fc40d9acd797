//! Changes of a live job, and of a gang that holds a plan.

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

/// A gang whose edits are tried.
pub const GANG: &str = r#"{"spec":{"classes":["h100"],"roles":[{"name":"worker","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#;

/// What the leader writes when it places the gang.
pub const PLACED: &str = r#"{"status":{"phase":"Placed","plan":{"generation":1,"pods":1,"runs":[{"role":"worker","units":"0","incarnation":1,"nodes":"a"}]},"revisions":[{"role":"worker","name":"1","units":1}]}}"#;

/// What the leader writes when the gang gives its plan back.
pub const FREED: &str = r#"{"status":{"phase":"Pending","plan":null,"revisions":null}}"#;

/// Changes of a gang that are refused while it holds a plan, and accepted while it holds none.
pub const GANG_EDITS: &[Edit] = &[
    edit(
        "spec.queue",
        "queue must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"queue":"other"}}"#,
    ),
    edit(
        "spec.classes",
        "classes must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"classes":null}}"#,
    ),
    edit(
        "spec.roles",
        "roles must not come, go, or change their names or order while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"roles":[{"name":"other","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    edit(
        "spec.roles",
        "the template of a role must not change while the gang holds a plan: name the new one in revision and keep the old one in revisions, or set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#,
    ),
    edit(
        "spec.roles",
        "revisions must keep the templates that units run with: status.revisions says which",
        r#"{"spec":{"roles":[{"name":"worker","revision":"2","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#,
    ),
    edit(
        "spec.roles",
        "the container of a role must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"roles":[{"name":"worker","container":"main","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    edit(
        "spec.within",
        "within must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"within":{"level":"Rack","mode":"Required"}}}"#,
    ),
    edit(
        "spec.rules",
        "rules must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"rules":{"spread":[{"role":"worker","level":"Rack","mode":"Required"}]}}}"#,
    ),
    edit(
        "spec.launch",
        "launch.framework and launch.port must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"launch":{"framework":"Torchrun"}}}"#,
    ),
    edit(
        "spec.outcome",
        "outcome must not change while the gang holds a plan: set spec.suspend: true and wait until it holds none",
        r#"{"spec":{"outcome":{"policy":"All"}}}"#,
    ),
];

/// Changes that a gang with a plan takes: sizes, rank, recovery.
pub const GANG_ALLOWED: &[&str] = &[
    r#"{"spec":{"roles":[{"name":"worker","devices":4,"podsPerUnit":2,"units":{"min":1,"max":4},"spares":1,"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    r#"{"spec":{"roles":[{"name":"worker","terminationGracePeriodSeconds":90,"units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    r#"{"spec":{"priorityClassName":"high","recovery":{"maxRestarts":1}}}"#,
    r#"{"spec":{"launch":{"replicasPerUnit":2,"parallelism":{"data":4}}}}"#,
    r#"{"spec":{"suspend":true}}"#,
    REVISED,
];

/// Another template, with the one before kept.
pub const REVISED: &str = r#"{"spec":{"roles":[{"name":"worker","revision":"2","revisions":[{"name":"1","template":{"spec":{"containers":[{"name":"main"}]}}}],"units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#;

/// Changes of revisions that are refused, with or without a plan, after [`REVISED`] too.
pub const REVISIONS: &[Edit] = &[
    edit(
        "spec.roles[0].revisions",
        "revisions must not hold the name of the present template, which is in revision",
        r#"{"spec":{"roles":[{"name":"worker","revision":"2","revisions":[{"name":"2","template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}],"units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#,
    ),
    edit(
        "spec.roles[0].revisions",
        "revisions must keep the template of the revision before as it was",
        r#"{"spec":{"roles":[{"name":"worker","revision":"3","revisions":[{"name":"2","template":{"spec":{"containers":[{"name":"main"}]}}}],"units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    edit(
        "spec.roles[0].revision",
        "revision must not be the name of an earlier template, unless template is that one",
        r#"{"spec":{"roles":[{"name":"worker","revision":"1","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#,
    ),
    edit(
        "spec.roles[0].revisions",
        "an earlier template never changes: give it another name",
        r#"{"spec":{"roles":[{"name":"worker","revision":"2","revisions":[{"name":"1","template":{"spec":{"containers":[{"name":"main","image":"example/third"}]}}}],"units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main","image":"example/other"}]}}}]}}"#,
    ),
];

/// Words of the refusal of a change of a GangPlan.
pub const PLAN_CHANGED: &str = "a part of a plan never changes: another plan has other parts";

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
