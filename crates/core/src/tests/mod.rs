//! The core against a server in a table: which answers may be lost, late or wrong, and what must never follow.
//!
//! The table keeps gangs, jobs and small objects as the server would, shows each change by a watch event, and answers at
//! once unless a test holds an answer back.

mod answers;
mod ends;
mod gangs;
mod jobs;
mod nodes;
mod revisions;
mod rooms;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use muster_api::{Gang as Object, GangStatus, TrainingJob, TrainingJobStatus};
use muster_cluster::seen::{SeenNode, SeenPod};
use muster_cluster::template::Learned;
use muster_lifecycle::gang::Patience;
use muster_model::{Millis, NodeSelectorTerm, ObjectKey, Reason, Requirement, Uid};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use crate::want::{Child, Claims, Kind, Outcome, Probe, Want};
use crate::{Change, Config, Core, Event, Partial, Ticket};

/// What admission does to a pod.
type Admission = fn(&mut PodSpec);

/// A core, the objects as the server has them, and the time.
struct Table {
    core: Core,
    gangs: BTreeMap<String, Value>,
    jobs: BTreeMap<String, Value>,
    /// Services and ConfigMaps.
    children: BTreeMap<(Kind, String), Value>,
    /// Pods that were created and not deleted, by name.
    pods: BTreeMap<String, Vec<u8>>,
    version: u64,
    now: Millis,
    /// What was asked and not answered yet.
    asked: Vec<Ticket>,
    /// Something happened since the core advanced last.
    woken: bool,
    /// What the server knows of claims, beside a pod's own fields.
    claims: Probe,
    /// Objects without a namespace, by kind and name.
    others: BTreeMap<(Kind, String), Value>,
    /// What admission does to pods.
    admission: Option<Admission>,
}

impl Table {
    /// Nodes with room for one pod each.
    fn new(nodes: usize) -> Self {
        // There are no kubelets: no pod ever starts.
        let patience = Patience { admit: Millis::MAX / 4, start: Millis::MAX / 4, ..Patience::default() };
        Self::with(Config { patience, ..Config::default() }, nodes)
    }

    /// As [`Self::new`], with other patience.
    fn with(config: Config, nodes: usize) -> Self {
        let mut table = Self {
            core: Core::new(config, 1),
            gangs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            children: BTreeMap::new(),
            pods: BTreeMap::new(),
            version: 1,
            now: 0,
            asked: Vec::new(),
            woken: true,
            claims: Probe::default(),
            others: BTreeMap::new(),
            admission: None,
        };
        for at in 0..nodes {
            table.tell(Event::Node(Change::Set(node(at, true))));
        }
        table.core.start();
        table
    }

    /// Another leader begins, from what the server has.
    fn next_leader(&mut self) {
        let epoch = self.version as i64;
        self.core = Core::new(Config::default(), epoch);
        self.asked.clear();
        let nodes: Vec<SeenNode> = (0..8).map(|at| node(at, true)).collect();
        for node in nodes.into_iter().take(self.nodes()) {
            self.tell(Event::Node(Change::Set(node)));
        }
        for name in self.jobs.keys().cloned().collect::<Vec<_>>() {
            self.show_job(&name);
        }
        for name in self.gangs.keys().cloned().collect::<Vec<_>>() {
            self.show(&name);
        }
        self.core.start();
        self.woken = true;
    }

    fn nodes(&self) -> usize {
        self.core.cluster().nodes().count().max(2)
    }

    /// A gang of pods that fill a node each.
    fn submit(&mut self, name: &str, pods: u32) {
        self.submit_with(name, pods, &json!({}));
    }

    /// As [`Self::submit`], with other fields of its specification.
    fn submit_with(&mut self, name: &str, pods: u32, spec: &Value) {
        self.version += 1;
        let mut gang = json!({
            "metadata": {
                "name": name, "namespace": "space", "uid": format!("uid-{name}"), "generation": 1,
                "resourceVersion": self.version.to_string(), "finalizers": ["muster.dev/pods"],
            },
            "spec": {
                "roles": [{
                    "name": "worker",
                    "template": { "spec": { "containers": [{
                        "name": "trainer", "resources": { "requests": { "cpu": "4" } },
                    }] } },
                    "units": { "min": pods, "max": pods },
                }],
                "launch": { "framework": "Plain", "parallelism": { "data": pods } },
            },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            gang["spec"][field] = value.clone();
        }
        self.gangs.insert(name.to_owned(), gang);
        self.show(name);
    }

    /// A job of pods that fill a node each, without accelerators.
    fn submit_job(&mut self, name: &str, uid: &str, data: u32) {
        self.submit_job_with(name, uid, data, &json!({}));
    }

    /// As [`Self::submit_job`], with other fields of its specification.
    fn submit_job_with(&mut self, name: &str, uid: &str, data: u32, spec: &Value) {
        let mut job = json!({
            "metadata": { "name": name, "namespace": "space", "uid": uid, "generation": 1 },
            "spec": {
                "framework": "Plain", "parallelism": { "data": data }, "accelerator": { "perPod": 0 },
                "template": { "spec": { "containers": [{
                    "name": "trainer", "resources": { "requests": { "cpu": "4" } },
                }] } },
            },
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            job["spec"][field] = value.clone();
        }
        self.jobs.insert(name.to_owned(), job);
        self.show_job(name);
    }

    /// Somebody changes a job's specification.
    fn edit_job(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        let job = self.jobs.get_mut(name).unwrap();
        change(&mut job["spec"]);
        let generation = job["metadata"]["generation"].as_i64().unwrap() + 1;
        job["metadata"]["generation"] = json!(generation);
        self.show_job(name);
    }

    /// Somebody changes a gang.
    fn edit_gang(&mut self, name: &str, change: impl FnOnce(&mut Value)) {
        self.version += 1;
        let gang = self.gangs.get_mut(name).unwrap();
        let before = gang["spec"].clone();
        change(gang);
        gang["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if gang["spec"] != before {
            let generation = gang["metadata"]["generation"].as_i64().unwrap() + 1;
            gang["metadata"]["generation"] = json!(generation);
        }
        self.show(name);
    }

    /// The watch brings a gang as it is.
    fn show(&mut self, name: &str) {
        let gang: Object = serde_json::from_value(self.gangs[name].clone()).unwrap();
        self.tell(Event::Gang(Change::Set(gang)));
    }

    /// The watch brings a job in another version.
    fn show_job(&mut self, name: &str) {
        self.version += 1;
        let job = self.jobs.get_mut(name).unwrap();
        job["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let job: TrainingJob = serde_json::from_value(job.clone()).unwrap();
        self.tell(Event::Job(Change::Set(job)));
    }

    /// A gang is gone.
    fn gone(&mut self, name: &str) {
        let gang = self.gangs.remove(name).unwrap();
        let uid = Uid(gang["metadata"]["uid"].as_str().unwrap().to_owned());
        self.tell(Event::Gang(Change::Gone(ObjectKey::new("space", name), uid)));
    }

    /// A job is gone.
    fn job_gone(&mut self, name: &str) {
        let job = self.jobs.remove(name).unwrap();
        let uid = Uid(job["metadata"]["uid"].as_str().unwrap().to_owned());
        self.tell(Event::Job(Change::Gone(ObjectKey::new("space", name), uid)));
    }

    fn tell(&mut self, event: Event) {
        self.core.apply(event, self.now);
        self.woken = true;
    }

    /// Time passes. As the operator's loop does, the core advances when something happened or is due.
    fn pass(&mut self, time: Millis) {
        self.now += time;
        if !std::mem::take(&mut self.woken) && self.core.next_wake().is_none_or(|due| due > self.now) {
            return;
        }
        self.core.advance(self.now);
        let asked = self.core.take(self.now);
        self.asked.extend(asked.into_iter().filter(|ticket| !matches!(*ticket.want, Want::Tell(_))));
    }

    /// Lets it go on until it asks for something that `matches`, answering all else as a quick server would.
    fn until(&mut self, matches: impl Fn(&Want) -> bool) -> Ticket {
        for _ in 0..1_000 {
            self.pass(10);
            if let Some(at) = self.asked.iter().position(|ticket| matches(&ticket.want)) {
                return self.asked.remove(at);
            }
            for ticket in std::mem::take(&mut self.asked) {
                let outcome = self.perform(&ticket.want);
                self.answer(&ticket, outcome);
            }
        }
        panic!("it never asked for that");
    }

    /// Goes on for a while with a quick server; returns what was asked.
    fn settle(&mut self, time: Millis) -> Vec<Want> {
        self.settle_but(time, |_| None)
    }

    /// As [`Self::settle`], with other answers to some wants.
    fn settle_but(&mut self, time: Millis, answers: impl Fn(&Want) -> Option<Outcome>) -> Vec<Want> {
        let until = self.now + time;
        let mut seen = Vec::new();
        while self.now < until {
            self.pass(10);
            for ticket in std::mem::take(&mut self.asked) {
                seen.push(Want::clone(&ticket.want));
                let outcome = answers(&ticket.want).unwrap_or_else(|| self.perform(&ticket.want));
                self.answer(&ticket, outcome);
            }
        }
        seen
    }

    fn answer(&mut self, ticket: &Ticket, outcome: Outcome) {
        assert!(self.core.done(ticket, outcome, self.now), "it steps down");
        self.woken = true;
    }

    /// What the server does with it; the watch shows it at once.
    fn perform(&mut self, want: &Want) -> Outcome {
        match want {
            Want::Probe { body, .. } => Outcome::Probed(Box::new(self.probe(body))),
            Want::WriteGang { gang, version, status, .. } => {
                let outcome = self.write(&gang.name, version, status);
                if self.gangs.contains_key(&gang.name) {
                    self.show(&gang.name);
                }
                outcome
            }
            Want::WriteJob { job, version, status } => self.write_job(&job.name, version, status),
            Want::Apply(child) => self.apply_child(child),
            Want::Guard { gang, base, patch, .. } => {
                let Some(object) = self.gangs.get_mut(&gang.name) else { return Outcome::Gone };
                if object["metadata"]["resourceVersion"] != json!(base.version) {
                    return Outcome::Conflict;
                }
                apply_patch(object, patch);
                let leaves = object["metadata"].get("deletionTimestamp").is_some();
                if leaves && object["metadata"]["finalizers"] == json!([]) {
                    self.gone(&gang.name);
                } else {
                    self.edit_gang(&gang.name, |_| {});
                }
                Outcome::Done { version: None, uid: None }
            }
            Want::Delete { kind: Kind::Gang, key, uid } => {
                let Some(gang) = self.gangs.get(&key.name) else { return Outcome::Gone };
                if gang["metadata"]["uid"] != json!(uid) {
                    return Outcome::Gone;
                }
                let guarded = gang["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
                if guarded {
                    self.edit_gang(&key.name, |gang| {
                        gang["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                    });
                } else {
                    self.gone(&key.name);
                }
                Outcome::Done { version: None, uid: None }
            }
            Want::CreatePod { pod, body, .. } => {
                self.pods.insert(pod.name.clone(), body.clone());
                self.tell(Event::Pod(Change::Set(pod_of(body, &pod.name))));
                Outcome::Done { version: None, uid: None }
            }
            Want::EndPod { pod, uid, .. } => {
                self.pods.remove(&pod.name);
                self.tell(Event::Pod(Change::Gone(pod.clone(), uid.clone())));
                Outcome::Done { version: None, uid: None }
            }
            Want::Report { kind, key, version, status } => {
                let name = &key.name;
                let object = self.others.get_mut(&(*kind, name.clone())).unwrap();
                assert_eq!(object["metadata"]["resourceVersion"], json!(version));
                object["status"] = Value::clone(status);
                self.show_other(*kind, name);
                Outcome::Done { version: None, uid: None }
            }
            _ => Outcome::Done { version: None, uid: None },
        }
    }

    fn apply_child(&mut self, child: &Child) -> Outcome {
        let name = child.key.name.clone();
        if child.kind != Kind::Gang {
            let there = self.children.get(&(child.kind, name.clone()));
            let mut object = match (&child.base, there) {
                (None, None) => child.body.clone(),
                (Some(base), Some(there)) if there["metadata"]["resourceVersion"] == json!(base.version) => {
                    let mut there = there.clone();
                    apply_patch(&mut there, &child.patch);
                    there
                }
                (Some(_), None) => return Outcome::Gone,
                _ => return Outcome::Conflict,
            };
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
            self.children.insert((child.kind, name.clone()), object);
            self.show_child(child.kind, &name);
            return Outcome::Done { version: None, uid: None };
        }
        match (&child.base, self.gangs.get_mut(&name)) {
            (None, Some(_)) => Outcome::Foreign("belongs to somebody".into()),
            (Some(_), None) => Outcome::Gone,
            (Some(base), Some(gang)) => {
                if gang["metadata"]["resourceVersion"] != json!(base.version) {
                    return Outcome::Conflict;
                }
                let mut changed = gang.clone();
                apply_patch(&mut changed, &child.patch);
                self.edit_gang(&name, |gang| *gang = changed);
                Outcome::Done { version: None, uid: None }
            }
            (None, None) => {
                let mut gang = child.body.clone();
                self.version += 1;
                gang["metadata"]["uid"] = json!(format!("uid-{name}-{}", self.version));
                gang["metadata"]["generation"] = json!(1);
                gang["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.gangs.insert(name.clone(), gang);
                self.show(&name);
                Outcome::Done { version: None, uid: None }
            }
        }
    }

    fn show_child(&mut self, kind: Kind, name: &str) {
        let object = self.children[&(kind, name.to_owned())].clone();
        self.tell(match kind {
            Kind::Service => Event::Service(Change::Set(partial(&object))),
            _ => Event::ConfigMap(Change::Set(partial(&object))),
        });
    }

    /// The watch brings an object without a namespace as it is, in another version.
    fn show_other(&mut self, kind: Kind, name: &str) {
        self.version += 1;
        let object = self.others.get_mut(&(kind, name.to_owned())).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = object.clone();
        self.tell(match kind {
            Kind::Queue => Event::Queue(Change::Set(serde_json::from_value(object).unwrap())),
            Kind::Class => Event::Class(Change::Set(serde_json::from_value(object).unwrap())),
            _ => Event::Topology(Change::Set(serde_json::from_value(object).unwrap())),
        });
    }

    fn apply(&mut self, kind: Kind, name: &str, spec: &Value) {
        let object = json!({ "metadata": { "name": name, "generation": 1 }, "spec": spec });
        self.others.insert((kind, name.to_owned()), object);
        self.show_other(kind, name);
    }

    /// The status of such an object.
    fn status(&self, kind: Kind, name: &str) -> &Value {
        &self.others[&(kind, name.to_owned())]["status"]
    }

    /// What a dry run and a look at the claims say.
    fn probe(&self, body: &[u8]) -> Probe {
        let pod: Pod = serde_json::from_slice(body).unwrap();
        let mut spec = pod.spec.unwrap_or_default();
        if let Some(admit) = self.admission {
            admit(&mut spec);
        }
        let learned = Learned::of(&spec).unwrap();
        let volumes = self.claims.learned.volumes.clone();
        Probe { learned: Learned { volumes, ..learned }, ..self.claims.clone() }
    }

    /// Compares and swaps; the watch is late.
    fn write(&mut self, name: &str, version: &str, status: &GangStatus) -> Outcome {
        let Some(gang) = self.gangs.get_mut(name) else { return Outcome::Gone };
        if gang["metadata"]["resourceVersion"] != json!(version) {
            return Outcome::Conflict;
        }
        self.version += 1;
        gang["metadata"]["resourceVersion"] = json!(self.version.to_string());
        gang["status"] = json!(status);
        Outcome::Done { version: Some(self.version.to_string()), uid: None }
    }

    fn write_job(&mut self, name: &str, version: &str, status: &TrainingJobStatus) -> Outcome {
        let Some(job) = self.jobs.get_mut(name) else { return Outcome::Gone };
        if job["metadata"]["resourceVersion"] != json!(version) {
            return Outcome::Conflict;
        }
        job["status"] = json!(status);
        self.show_job(name);
        Outcome::Done { version: None, uid: None }
    }

    /// The nodes of the plan that the server has for a gang.
    fn plan(&self, name: &str) -> Option<String> {
        let runs = self.gangs[name]["status"]["plan"]["runs"].as_array()?;
        Some(runs.iter().map(|run| run["nodes"].as_str().unwrap_or_default()).collect::<Vec<_>>().join(","))
    }

    /// All pods that exist run.
    fn run_all(&mut self) {
        for (name, body) in self.pods.clone() {
            self.tell(Event::Pod(Change::Set(running(&body, &name))));
        }
    }

    /// A pod ends with an exit code.
    fn end(&mut self, name: &str, code: i32) {
        let body = self.pods[name].clone();
        self.tell(Event::Pod(Change::Set(ended(&body, name, code))));
    }

    /// The first pod that exists.
    fn first_pod(&self) -> String {
        self.pods.keys().next().unwrap().clone()
    }
}

/// Operations of a JSON patch, as far as the core uses them.
fn apply_patch(object: &mut Value, patch: &Value) {
    for step in patch.as_array().unwrap() {
        let path = step["path"].as_str().unwrap();
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/");
        let parent = object.pointer_mut(parent).unwrap();
        match (step["op"].as_str().unwrap(), parent) {
            ("test", parent) => {
                let found = parent.get(&last).or_else(|| parent.get(last.parse::<usize>().ok()?));
                assert_eq!(found, step.get("value"));
            }
            ("remove", Value::Array(all)) => drop(all.remove(last.parse().unwrap())),
            ("remove", Value::Object(all)) => drop(all.remove(&last)),
            (_, Value::Array(all)) => all.push(step["value"].clone()),
            (_, Value::Object(all)) => drop(all.insert(last, step["value"].clone())),
            other => panic!("{other:?}"),
        }
    }
}

fn partial<K: kube::Resource<DynamicType = ()>>(object: &Value) -> Partial<K> {
    let meta = object["metadata"].clone();
    Partial {
        metadata: serde_json::from_value(meta).unwrap(),
        types: None,
        _phantom: std::marker::PhantomData,
    }
}

fn node(at: usize, ready: bool) -> SeenNode {
    let name = format!("node-{at}");
    let taints = if ready {
        json!([])
    } else {
        json!([{ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }])
    };
    serde_json::from_value(json!({
        "metadata": { "name": name, "uid": name },
        "spec": { "taints": taints },
        "status": {
            "allocatable": { "cpu": "4", "memory": "16Gi", "pods": "10" },
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "Unknown" } }],
        },
    }))
    .unwrap()
}

/// A node of a class, with other extended resources beside its accelerators.
fn gpu_node(at: usize, product: &str, gpus: u32, nics: u32) -> SeenNode {
    let mut node = node(at, true);
    node.0.metadata.labels = Some([("nvidia.com/gpu.product".to_owned(), product.to_owned())].into());
    let room = node.0.status.as_mut().unwrap().allocatable.as_mut().unwrap();
    room.insert("nvidia.com/gpu".into(), Quantity(gpus.to_string()));
    if nics > 0 {
        room.insert("vpc.amazonaws.com/efa".into(), Quantity(nics.to_string()));
    }
    node
}

fn pod_of(body: &[u8], uid: &str) -> SeenPod {
    let mut pod: SeenPod = serde_json::from_slice(body).unwrap();
    pod.0.metadata.uid = Some(uid.to_owned());
    pod
}

fn with_status(body: &[u8], uid: &str, status: Value) -> SeenPod {
    let mut pod = pod_of(body, uid);
    pod.0.status = serde_json::from_value(status).unwrap();
    pod
}

/// The pod of a creation, once its container runs.
fn running(body: &[u8], uid: &str) -> SeenPod {
    with_status(
        body,
        uid,
        json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{
                "name": "trainer", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-01-01T00:00:01Z" } },
            }],
        }),
    )
}

/// The pod of a creation, once its container has ended.
fn ended(body: &[u8], uid: &str, code: i32) -> SeenPod {
    with_status(
        body,
        uid,
        json!({
            "phase": if code == 0 { "Succeeded" } else { "Failed" }, "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{
                "name": "trainer", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": {
                    "exitCode": code, "startedAt": "2026-01-01T00:00:01Z", "reason": "Error",
                } },
            }],
        }),
    )
}

/// The pod of a creation that its kubelet refuses.
fn refused(body: &[u8], uid: &str, reason: &str) -> SeenPod {
    with_status(body, uid, json!({ "phase": "Failed", "reason": reason, "message": "no room" }))
}

/// The pod of a creation that is being deleted and still runs.
fn leaving(body: &[u8], uid: &str) -> SeenPod {
    let mut pod = running(body, uid);
    pod.0.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    pod
}

fn is_plan(want: &Want, name: &str) -> bool {
    matches!(want, Want::WriteGang { gang, status, .. } if gang.name == name && status.plan.is_some())
}

fn is_creation(want: &Want) -> bool {
    matches!(want, Want::CreatePod { .. })
}

fn count(asked: &[Want], which: impl Fn(&Want) -> bool) -> usize {
    asked.iter().filter(|want| which(want)).count()
}

/// The taint that [`tolerate`] lets pods bear.
fn taint(node: &mut SeenNode) {
    let taint = json!([{ "key": "sandbox", "value": "kata", "effect": "NoSchedule" }]);
    node.0.spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
}

/// Admission that adds a toleration.
fn tolerate(spec: &mut PodSpec) {
    let toleration =
        Toleration { key: Some("sandbox".into()), operator: Some("Exists".into()), ..Toleration::default() };
    spec.tolerations.get_or_insert_default().push(toleration);
}
