//! The table: for each rule a change to a valid manifest that breaks it, and one beside it that does not.

use muster_api::{AcceleratorClass, Gang, InferenceService, NodePartition, Queue, Topology, TrainingJob};
use serde_json::{Value, json};

/// Kind, plural, whether it is namespaced.
pub const KINDS: &[(&str, &str, bool)] = &[
    ("TrainingJob", "trainingjobs", true),
    ("InferenceService", "inferenceservices", true),
    ("Queue", "queues", false),
    ("Topology", "topologies", false),
    ("AcceleratorClass", "acceleratorclasses", false),
    ("Gang", "gangs", true),
    ("NodePartition", "nodepartitions", false),
];

pub struct Case {
    pub kind: &'static str,
    /// Field that the answer must name.
    pub field: &'static str,
    /// Words of the answer; for a CEL rule its whole message.
    pub says: &'static str,
    /// Merge patch over [`base`] that is refused.
    pub refused: &'static str,
    /// Merge patch over [`base`] that is accepted.
    pub accepted: &'static str,
}

const fn case(
    kind: &'static str,
    field: &'static str,
    says: &'static str,
    refused: &'static str,
    accepted: &'static str,
) -> Case {
    Case { kind, field, says, refused, accepted }
}

const JOB: &str = "TrainingJob";
const SERVICE: &str = "InferenceService";
const GANG: &str = "Gang";

const NAME: &str = "metadata.name must begin with a letter, hold only lower-case letters, digits and dashes, and have at most 40 characters: pods and Services are named after it";
const DURATION: &str = "is not a duration: write numbers with units h, m, s or ms, such as 90s or 1h30m";

pub const CASES: &[Case] = &[
    // Names.
    case(
        JOB,
        "metadata.name",
        NAME,
        r#"{"metadata":{"name":"a2345678901234567890123456789012345678901"}}"#,
        r#"{"metadata":{"name":"a234567890123456789012345678901234567890"}}"#,
    ),
    case(JOB, "metadata.name", NAME, r#"{"metadata":{"name":"7b"}}"#, r#"{"metadata":{"name":"b7"}}"#),
    case(SERVICE, "metadata.name", NAME, r#"{"metadata":{"name":"a.b"}}"#, r#"{"metadata":{"name":"a-b"}}"#),
    case(GANG, "metadata.name", NAME, r#"{"metadata":{"name":"a.b"}}"#, r#"{"metadata":{"name":"a"}}"#),
    // Parallelism.
    case(
        JOB,
        "spec.parallelism.tensor",
        "should be greater than or equal to 1",
        r#"{"spec":{"parallelism":{"tensor":0}}}"#,
        r#"{"spec":{"parallelism":{"tensor":1}}}"#,
    ),
    case(
        JOB,
        "spec.parallelism.pipeline",
        "should be less than or equal to 4096",
        r#"{"spec":{"parallelism":{"pipeline":4097}}}"#,
        r#"{"spec":{"parallelism":{"pipeline":4096}}}"#,
    ),
    case(
        JOB,
        "spec.parallelism.data",
        "tensor * pipeline * context * data must not exceed 262144 ranks",
        r#"{"spec":{"parallelism":{"tensor":4096,"data":65}}}"#,
        r#"{"spec":{"parallelism":{"tensor":4096,"data":64}}}"#,
    ),
    case(
        JOB,
        "spec.parallelism.expert",
        "expert * expertTensor must divide tensor * context * data, the ranks of one stage (expertTensor defaults to tensor)",
        r#"{"spec":{"parallelism":{"tensor":8,"expert":8,"data":4}}}"#,
        r#"{"spec":{"parallelism":{"tensor":8,"expert":8,"expertTensor":1,"data":4}}}"#,
    ),
    // Elastic bounds.
    case(
        JOB,
        "spec.elastic.minData",
        "elastic.minData must not exceed elastic.maxData",
        r#"{"spec":{"elastic":{"minData":5,"maxData":3}}}"#,
        r#"{"spec":{"elastic":{"minData":1,"maxData":3}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.minData",
        "elastic.minData must not exceed parallelism.data",
        r#"{"spec":{"parallelism":{"data":2},"elastic":{"minData":3}}}"#,
        r#"{"spec":{"parallelism":{"data":3},"elastic":{"minData":3}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.maxData",
        "elastic.maxData must not be below parallelism.data",
        r#"{"spec":{"parallelism":{"data":4},"elastic":{"maxData":3}}}"#,
        r#"{"spec":{"parallelism":{"data":3},"elastic":{"maxData":3}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.maxData",
        "tensor * pipeline * context * elastic.maxData must not exceed 262144 ranks",
        r#"{"spec":{"parallelism":{"tensor":4096},"elastic":{"maxData":65}}}"#,
        r#"{"spec":{"parallelism":{"tensor":4096},"elastic":{"maxData":64}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.validData",
        "elastic.validData must contain parallelism.data",
        r#"{"spec":{"parallelism":{"data":3},"elastic":{"validData":[2,4]}}}"#,
        r#"{"spec":{"parallelism":{"data":4},"elastic":{"validData":[2,4]}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.validData",
        "elastic.validData must lie between elastic.minData and elastic.maxData",
        r#"{"spec":{"elastic":{"maxData":4,"validData":[1,8]}}}"#,
        r#"{"spec":{"elastic":{"maxData":8,"validData":[1,8]}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.minData",
        "elastic.minData splits a unit: expert * expertTensor must divide tensor * context * minData",
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"minData":2}}}"#,
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"minData":4}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.maxData",
        "elastic.maxData splits a unit: expert * expertTensor must divide tensor * context * maxData",
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"maxData":10}}}"#,
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"maxData":12}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.validData",
        "elastic.validData splits a unit: expert * expertTensor must divide tensor * context * each of them",
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"validData":[6,8]}}}"#,
        r#"{"spec":{"parallelism":{"expert":4,"data":8},"elastic":{"validData":[4,8]}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.minData",
        "elastic.minData splits a pod: accelerator.perPod must divide tensor * context * minData",
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":8},"elastic":{"minData":3}}}"#,
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":8},"elastic":{"minData":4}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.maxData",
        "elastic.maxData splits a pod: accelerator.perPod must divide tensor * context * maxData",
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":8},"elastic":{"maxData":9}}}"#,
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":8},"elastic":{"maxData":12}}}"#,
    ),
    case(
        JOB,
        "spec.elastic.validData",
        "elastic.validData splits a pod: accelerator.perPod must divide tensor * context * each of them",
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":8},"elastic":{"validData":[6,8]}}}"#,
        r#"{"spec":{"accelerator":{"perPod":0},"parallelism":{"tensor":2,"data":8},"elastic":{"validData":[6,8]}}}"#,
    ),
    case(
        JOB,
        "spec.accelerator.perPod",
        "accelerator.perPod must divide tensor * pipeline * context * data: every pod has as many ranks as accelerators",
        r#"{"spec":{"accelerator":{"perPod":8},"parallelism":{"tensor":2,"data":6}}}"#,
        r#"{"spec":{"accelerator":{"perPod":4},"parallelism":{"tensor":2,"data":6}}}"#,
    ),
    case(
        JOB,
        "spec.accelerator.container",
        "accelerator.container must be the name of a container of the template",
        r#"{"spec":{"accelerator":{"container":"trainr"}}}"#,
        r#"{"spec":{"accelerator":{"container":"main"}}}"#,
    ),
    // Enumerations, durations, quantities.
    case(
        JOB,
        "spec.framework",
        "supported values",
        r#"{"spec":{"framework":"PyTorch"}}"#,
        r#"{"spec":{"framework":"TorchFT"}}"#,
    ),
    case(
        JOB,
        "spec.placement.tensor.mode",
        "supported values",
        r#"{"spec":{"placement":{"tensor":{"within":"Rack","mode":"required"}}}}"#,
        r#"{"spec":{"placement":{"tensor":{"within":"Rack"}}}}"#,
    ),
    case(
        JOB,
        "spec.recovery.ladder",
        "ladder must not name a step twice",
        r#"{"spec":{"recovery":{"ladder":["Requeue","Shrink","Requeue"]}}}"#,
        r#"{"spec":{"recovery":{"ladder":[]}}}"#,
    ),
    case(
        JOB,
        "spec.checkpoint.interval",
        DURATION,
        r#"{"spec":{"checkpoint":{"interval":"10"}}}"#,
        r#"{"spec":{"checkpoint":{"interval":"10m"}}}"#,
    ),
    case(
        JOB,
        "spec.ttlAfterFinished",
        DURATION,
        r#"{"spec":{"ttlAfterFinished":"1d"}}"#,
        r#"{"spec":{"ttlAfterFinished":"24h"}}"#,
    ),
    case(
        JOB,
        "spec.activeDeadline",
        DURATION,
        r#"{"spec":{"activeDeadline":"1.5h"}}"#,
        r#"{"spec":{"activeDeadline":"1h30m500ms"}}"#,
    ),
    case(
        JOB,
        "spec.recovery.window",
        DURATION,
        r#"{"spec":{"recovery":{"window":""}}}"#,
        r#"{"spec":{"recovery":{"window":"0s"}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.containers[0].resources.limits.cpu",
        "should match",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"4 cores"}}}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"500m","memory":"64Gi","nvidia.com/gpu":8}}}]}}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.overhead.memory",
        "should match",
        r#"{"spec":{"template":{"spec":{"overhead":{"memory":"-1Gi"}}}}}"#,
        r#"{"spec":{"template":{"spec":{"overhead":{"memory":"1e9"}}}}}"#,
    ),
    // The template.
    case(
        JOB,
        "spec.template.spec.containers[0].imagePullPolcy",
        "unknown field",
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","imagePullPolcy":"Never"}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main","imagePullPolicy":"Never"}]}}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.containers",
        "should have at least 1 items",
        r#"{"spec":{"template":{"spec":{"containers":[]}}}}"#,
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"main"}]}}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.nodeName",
        "nodeName must not be set: Muster plans the nodes; use nodeSelector or affinity to restrict them",
        r#"{"spec":{"template":{"spec":{"nodeName":"n"}}}}"#,
        r#"{"spec":{"template":{"spec":{"nodeSelector":{"a":"b"}}}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.schedulerName",
        "schedulerName must not be set: Muster is the scheduler of these pods",
        r#"{"spec":{"template":{"spec":{"schedulerName":"s"}}}}"#,
        r#"{}"#,
    ),
    case(
        JOB,
        "spec.template.spec.schedulingGates",
        "schedulingGates must not be set: Muster creates a pod only when its node is planned; use spec.suspend to hold the job back",
        r#"{"spec":{"template":{"spec":{"schedulingGates":[{"name":"g"}]}}}}"#,
        r#"{"spec":{"suspend":true}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.schedulingGroup",
        "schedulingGroup must not be set: Muster places the pods as a gang itself",
        r#"{"spec":{"template":{"spec":{"schedulingGroup":{"podGroupName":"g"}}}}}"#,
        r#"{}"#,
    ),
    case(
        JOB,
        "spec.template.spec.hostname",
        "hostname must not be set: Muster names the pods' hosts",
        r#"{"spec":{"template":{"spec":{"hostname":"h"}}}}"#,
        r#"{"spec":{"template":{"spec":{"hostNetwork":true}}}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].template.spec.subdomain",
        "subdomain must not be set: Muster names the pods' hosts",
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":1},"template":{"spec":{"subdomain":"h","containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.ephemeralContainers",
        "ephemeralContainers must not be set: they can only be added to a running pod, with kubectl debug",
        r#"{"spec":{"template":{"spec":{"ephemeralContainers":[{"name":"e"}]}}}}"#,
        r#"{"spec":{"template":{"spec":{"initContainers":[{"name":"e"}]}}}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.activeDeadlineSeconds",
        "activeDeadlineSeconds must not be set: a pod that ends alone is a lost rank; use spec.activeDeadline of the job",
        r#"{"spec":{"template":{"spec":{"activeDeadlineSeconds":5}}}}"#,
        r#"{"spec":{"activeDeadline":"5s"}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.priority",
        "priority must not be set: it comes from the PriorityClass; use spec.priorityClassName of the job",
        r#"{"spec":{"template":{"spec":{"priority":5}}}}"#,
        r#"{"spec":{"priorityClassName":"high"}}"#,
    ),
    case(
        SERVICE,
        "spec.template.spec.priorityClassName",
        "priorityClassName must not be set: use spec.priorityClassName of the job, so that the queue ranks it as well",
        r#"{"spec":{"template":{"spec":{"priorityClassName":"high"}}}}"#,
        r#"{"spec":{"priorityClassName":"high"}}"#,
    ),
    case(
        JOB,
        "spec.template.spec.restartPolicy",
        "restartPolicy must be Never: Muster restarts the whole unit, see spec.recovery",
        r#"{"spec":{"template":{"spec":{"restartPolicy":"OnFailure"}}}}"#,
        r#"{"spec":{"template":{"spec":{"restartPolicy":"Never"}}}}"#,
    ),
    // InferenceService.
    case(
        SERVICE,
        "spec.accelerator.container",
        "accelerator.container must be the name of a container of the template",
        r#"{"spec":{"accelerator":{"container":"engine"}}}"#,
        r#"{"spec":{"accelerator":{"container":"main"}}}"#,
    ),
    case(
        SERVICE,
        "spec.replicas",
        "replicas must lie between autoscaling.minReplicas and autoscaling.maxReplicas",
        r#"{"spec":{"replicas":5,"autoscaling":{"maxReplicas":4,"queuedRequests":10}}}"#,
        r#"{"spec":{"replicas":4,"autoscaling":{"maxReplicas":4,"queuedRequests":10}}}"#,
    ),
    case(
        SERVICE,
        "spec.autoscaling.minReplicas",
        "autoscaling.minReplicas must not exceed autoscaling.maxReplicas",
        r#"{"spec":{"autoscaling":{"minReplicas":2,"maxReplicas":1,"kvCachePercent":80}}}"#,
        r#"{"spec":{"autoscaling":{"minReplicas":1,"maxReplicas":1,"kvCachePercent":80}}}"#,
    ),
    case(
        SERVICE,
        "spec.autoscaling",
        "autoscaling needs a target: queuedRequests, kvCachePercent, timeToFirstToken or timePerOutputToken",
        r#"{"spec":{"autoscaling":{"maxReplicas":1}}}"#,
        r#"{"spec":{"autoscaling":{"maxReplicas":1,"timeToFirstToken":"300ms"}}}"#,
    ),
    case(
        SERVICE,
        "spec.sharing.profile",
        "sharing.profile must be given for mode Mig and for no other",
        r#"{"spec":{"sharing":{"mode":"Mig"}}}"#,
        r#"{"spec":{"sharing":{"mode":"Mig","profile":"1g.10gb"}}}"#,
    ),
    case(
        SERVICE,
        "spec.sharing.replicas",
        "sharing.replicas above 1 need mode TimeSlice",
        r#"{"spec":{"sharing":{"replicas":2}}}"#,
        r#"{"spec":{"sharing":{"mode":"TimeSlice","replicas":2}}}"#,
    ),
    case(
        SERVICE,
        "spec.sharing.mode",
        "sharing.mode must be Whole where parallelism has more than one rank: a process uses one partition of a card",
        r#"{"spec":{"parallelism":{"tensor":2},"sharing":{"mode":"TimeSlice"}}}"#,
        r#"{"spec":{"parallelism":{"tensor":2}}}"#,
    ),
    case(
        SERVICE,
        "spec.sharing.mode",
        "sharing.mode TimeSlice isolates neither memory nor latency, which tier P0 promises",
        r#"{"spec":{"tier":"P0","sharing":{"mode":"TimeSlice"}}}"#,
        r#"{"spec":{"tier":"P2","sharing":{"mode":"TimeSlice"}}}"#,
    ),
    case(
        SERVICE,
        "spec.rollout.maxSurge",
        "rollout.maxSurge and rollout.maxUnavailable must not both be 0: nothing could ever change",
        r#"{"spec":{"rollout":{"maxSurge":0,"maxUnavailable":0}}}"#,
        r#"{"spec":{"rollout":{"maxSurge":0}}}"#,
    ),
    // Gang.
    case(
        GANG,
        "spec.outcome.role",
        "outcome.role must be the name of a role",
        r#"{"spec":{"outcome":{"role":"leader"}}}"#,
        r#"{"spec":{"outcome":{"role":"worker"}}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].segments",
        "the pods of each segment must divide podsPerUnit",
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":6,"segments":[{"pods":4,"level":"Rack","mode":"Required"}],"units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":8,"segments":[{"pods":4,"level":"Rack","mode":"Required"}],"units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].segments",
        "the pods of each segment must divide those of each larger one",
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":6,"segments":[{"pods":2,"level":"Rack","mode":"Required"},{"pods":3,"level":"Block","mode":"Required"}],"units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":6,"segments":[{"pods":2,"level":"Rack","mode":"Required"},{"pods":6,"level":"Block","mode":"Required"}],"units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].units.max",
        "units.max * podsPerUnit must not exceed 262144 pods",
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":8,"units":{"min":1,"max":32769},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","podsPerUnit":8,"units":{"min":1,"max":32768},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].container",
        "container must be the name of a container of the template",
        r#"{"spec":{"roles":[{"name":"worker","container":"gpu","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","container":"main","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].units.min",
        "units.min must not exceed units.max",
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":2,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":2},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[0].units.valid",
        "units.valid must lie between units.min and units.max",
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":4,"valid":[2,8]},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":4,"valid":[2,4]},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    case(
        GANG,
        "spec.roles[1]",
        "Duplicate value",
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}},{"name":"worker","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
        r#"{"spec":{"roles":[{"name":"worker","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}},{"name":"leader","units":{"min":1,"max":1},"template":{"spec":{"containers":[{"name":"main"}]}}}]}}"#,
    ),
    // The rest.
    case(
        "Queue",
        "spec.parent",
        "spec.parent must be another queue",
        r#"{"spec":{"parent":"base"}}"#,
        r#"{"spec":{"parent":"root"}}"#,
    ),
    case(
        "Queue",
        "metadata.name",
        "metadata.name must have at most 63 characters",
        r#"{"metadata":{"name":"a234567890123456789012345678901234567890123456789012345678901234"}}"#,
        r#"{"metadata":{"name":"a23456789012345678901234567890123456789012345678901234567890123"}}"#,
    ),
    case(
        "AcceleratorClass",
        "metadata.name",
        "metadata.name must have at most 63 characters",
        r#"{"metadata":{"name":"a234567890123456789012345678901234567890123456789012345678901234"}}"#,
        r#"{}"#,
    ),
    case(
        "AcceleratorClass",
        "spec.memory",
        "should match",
        r#"{"spec":{"memory":"80GB"}}"#,
        r#"{"spec":{"memory":"80Gi"}}"#,
    ),
    case(
        "AcceleratorClass",
        "spec.pricePerHour",
        "should match",
        r#"{"spec":{"pricePerHour":"$2"}}"#,
        r#"{"spec":{"pricePerHour":"2.49"}}"#,
    ),
    case(
        "Queue",
        "spec.quotas[0].nominal",
        "nominal must not exceed limit",
        r#"{"spec":{"quotas":[{"class":"h100","nominal":9,"limit":8}]}}"#,
        r#"{"spec":{"quotas":[{"class":"h100","nominal":8,"limit":8}]}}"#,
    ),
    case(
        "Queue",
        "spec.quotas[1]",
        "Duplicate value",
        r#"{"spec":{"quotas":[{"class":"h100","nominal":9},{"class":"h100","nominal":8}]}}"#,
        r#"{"spec":{"quotas":[{"class":"h100","nominal":9},{"class":"h200","nominal":8}]}}"#,
    ),
    case(
        "Topology",
        "metadata.name",
        "metadata.name must be default: one Topology rules the cluster",
        r#"{"metadata":{"name":"other"}}"#,
        r#"{"metadata":{"name":"default"}}"#,
    ),
    case(
        "Topology",
        "spec.levels",
        "levels must have different names",
        r#"{"spec":{"levels":[{"name":"Rack","keys":["a"]},{"name":"Rack","keys":["b"]}]}}"#,
        r#"{"spec":{"levels":[{"name":"Block","keys":["a"]},{"name":"Rack","keys":["b"]}]}}"#,
    ),
    case(
        "Topology",
        "spec.levels",
        "levels must not list Node: it is always the last",
        r#"{"spec":{"levels":[{"name":"Rack","keys":["a"]},{"name":"Node","keys":["b"]}]}}"#,
        r#"{"spec":{"levels":[{"name":"Rack","keys":["a"]}]}}"#,
    ),
    case(
        "NodePartition",
        "spec.gpus[0].instances",
        "instances must be given for mode Mig and for no other",
        r#"{"spec":{"gpus":[{"index":0,"mode":"Mig"}]}}"#,
        r#"{"spec":{"gpus":[{"index":0,"mode":"Mig","instances":[{"profile":"1g.10gb","start":6}]}]}}"#,
    ),
    case(
        "NodePartition",
        "spec.gpus[0].replicas",
        "replicas above 1 need mode TimeSlice",
        r#"{"spec":{"gpus":[{"index":0,"replicas":2}]}}"#,
        r#"{"spec":{"gpus":[{"index":0,"mode":"TimeSlice","replicas":2}]}}"#,
    ),
];

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

/// The job whose edits are tried.
pub fn job() -> Value {
    manifest(
        JOB,
        r#"{"spec":{"accelerator":{"classes":["h100"]},"parallelism":{"tensor":8,"expertTensor":8,"data":2},"elastic":{"minData":1,"maxData":8}}}"#,
    )
}

/// The smallest valid manifest of a kind.
pub fn base(kind: &str) -> Value {
    let pods = json!({ "spec": { "containers": [{ "name": "main", "image": "example/main" }] } });
    let spec = match kind {
        "TrainingJob" | "InferenceService" => json!({ "template": pods }),
        "Gang" => {
            json!({ "roles": [{ "name": "worker", "units": { "min": 1, "max": 1 }, "template": pods }] })
        }
        "Topology" => json!({ "levels": [{ "name": "Rack", "keys": ["example.com/rack"] }] }),
        "NodePartition" => json!({ "gpus": [{ "index": 0 }] }),
        _ => json!({}),
    };
    let name = if kind == "Topology" { "default" } else { "base" };
    json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": kind,
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// [`base`] with a merge patch.
pub fn manifest(kind: &str, patch: &str) -> Value {
    let mut object = base(kind);
    merge(&mut object, &serde_json::from_str(patch).expect("the patch is JSON"));
    object
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().expect("an object").remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}

/// A manifest read into the Rust type and written again: with the defaults of the types.
pub fn through_types(kind: &str, object: &Value) -> Value {
    fn round<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value) -> Value {
        let typed: T = serde_json::from_value(object.clone()).expect("a manifest of the kind");
        serde_json::to_value(typed).expect("it can be written")
    }
    match kind {
        "TrainingJob" => round::<TrainingJob>(object),
        "InferenceService" => round::<InferenceService>(object),
        "Queue" => round::<Queue>(object),
        "Topology" => round::<Topology>(object),
        "AcceleratorClass" => round::<AcceleratorClass>(object),
        "Gang" => round::<Gang>(object),
        "NodePartition" => round::<NodePartition>(object),
        other => panic!("{other} is no kind of ours"),
    }
}

/// Takes pod templates away.
pub fn without_templates(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("template");
            map.values_mut().for_each(without_templates);
        }
        Value::Array(items) => items.iter_mut().for_each(without_templates),
        _ => {}
    }
}
