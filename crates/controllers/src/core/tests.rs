//! The core against a server in a table: which answers may be lost, late or wrong, and what must never follow.

use k8s_openapi::api::core::v1::{Pod, PodSpec, Toleration};
use muster_api::{Gang as Object, GangStatus, TrainingJob};
use muster_cluster::seen::{SeenNode, SeenPod};
use muster_cluster::template;
use muster_model::{Millis, ObjectKey, Uid};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::{Config, Core, Event, Ticket};
use crate::effect::{Effect, Outcome};
use crate::watch::Change;

/// A change that admission makes to a pod.
type Admission = fn(&mut PodSpec);

/// A core, the gangs as the server has them, and the time.
struct Table {
    core: Core,
    gangs: BTreeMap<String, Value>,
    version: u64,
    now: Millis,
    /// What was asked and not answered yet.
    asked: Vec<Ticket>,
    /// Something happened since the core advanced last.
    woken: bool,
    /// What admission does to pods.
    admission: Option<Admission>,
}

impl Table {
    /// Nodes with room for one pod each.
    fn new(nodes: usize) -> Self {
        // There are no kubelets: no pod ever starts.
        let mut core = Core::new(Config { start_limit: Millis::MAX / 2, ..Config::default() }, 1);
        for at in 0..nodes {
            core.apply(Event::Node(Change::Set(node(at, true))), 0);
        }
        core.start();
        Self {
            core,
            gangs: BTreeMap::new(),
            version: 1,
            now: 0,
            asked: Vec::new(),
            woken: true,
            admission: None,
        }
    }

    /// A gang of pods that fill a node each.
    fn submit(&mut self, name: &str, pods: u32) {
        self.version += 1;
        let gang = json!({
            "metadata": {
                "name": name, "namespace": "space", "uid": format!("uid-{name}"), "generation": 1,
                "resourceVersion": self.version.to_string(),
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
        self.gangs.insert(name.to_owned(), gang);
        self.show(name);
    }

    /// The watch brings a gang as it is.
    fn show(&mut self, name: &str) {
        let gang: Object = serde_json::from_value(self.gangs[name].clone()).unwrap();
        self.tell(Event::Gang(Change::Set(gang)));
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
        self.asked.extend(asked.into_iter().filter(|ticket| !matches!(ticket.effect, Effect::Tell(_))));
    }

    /// Lets it go on until it asks for something that `matches`, answering all else as a quick server would.
    fn until(&mut self, matches: impl Fn(&Effect) -> bool) -> Ticket {
        for _ in 0..1_000 {
            self.pass(10);
            if let Some(at) = self.asked.iter().position(|ticket| matches(&ticket.effect)) {
                return self.asked.remove(at);
            }
            for ticket in std::mem::take(&mut self.asked) {
                let outcome = self.perform(&ticket.effect);
                self.answer(ticket, outcome);
            }
        }
        panic!("it never asked for that");
    }

    /// Goes on for a while with a quick server; returns what was asked.
    fn settle(&mut self, time: Millis) -> Vec<Effect> {
        let until = self.now + time;
        let mut seen = Vec::new();
        while self.now < until {
            self.pass(10);
            for ticket in std::mem::take(&mut self.asked) {
                seen.push(ticket.effect.clone());
                let outcome = self.perform(&ticket.effect);
                self.answer(ticket, outcome);
            }
        }
        seen
    }

    fn answer(&mut self, ticket: Ticket, outcome: Outcome) {
        assert!(self.core.done(ticket, outcome, self.now), "it steps down");
        self.woken = true;
    }

    /// What the server does with it; the watch shows it at once.
    fn perform(&mut self, effect: &Effect) -> Outcome {
        match effect {
            Effect::ProbePod { body, .. } => self.probe(body),
            Effect::WriteGang { gang, version, status, .. } => {
                let outcome = self.write(&gang.name, version, status);
                self.show(&gang.name);
                outcome
            }
            Effect::CreatePod { pod, body, .. } => {
                self.tell(Event::Pod(Change::Set(pod_of(body, &pod.name))));
                Outcome::Done { version: None, uid: None }
            }
            _ => Outcome::Done { version: None, uid: None },
        }
    }

    /// What the server makes of a pod in a dry run.
    fn probe(&self, body: &[u8]) -> Outcome {
        let mut pod: Pod = serde_json::from_slice(body).unwrap();
        let spec = pod.spec.get_or_insert_default();
        if let Some(admit) = self.admission {
            admit(spec);
        }
        Outcome::Probed(Box::new(template::Facts::of(spec).unwrap()))
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

    /// The nodes of the plan that the server has for a gang.
    fn plan(&self, name: &str) -> Option<String> {
        let runs = self.gangs[name]["status"]["plan"]["runs"].as_array()?;
        Some(runs.iter().map(|run| run["nodes"].as_str().unwrap_or_default()).collect::<Vec<_>>().join(","))
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
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    }))
    .unwrap()
}

fn pod_of(body: &[u8], uid: &str) -> SeenPod {
    let mut pod: SeenPod = serde_json::from_slice(body).unwrap();
    pod.0.metadata.uid = Some(uid.to_owned());
    pod
}

fn is_plan(effect: &Effect, name: &str) -> bool {
    matches!(effect, Effect::WriteGang { gang, status, .. } if gang.name == name && status.plan.is_some())
}

fn is_creation(effect: &Effect) -> bool {
    matches!(effect, Effect::CreatePod { .. })
}

/// Whatever becomes of the answer to a plan's write, and however late the watch is: its nodes are nobody else's.
#[test]
fn a_plan_without_an_answer_keeps_its_place() {
    for written in [true, false] {
        for answer in [Outcome::Transient("no answer".into()), Outcome::Conflict] {
            let mut table = Table::new(2);
            table.submit("last-by-name", 1);
            let ticket = table.until(|effect| is_plan(effect, "last-by-name"));
            let Effect::WriteGang { version, status, .. } = &ticket.effect else { unreachable!() };
            if written {
                table.write("last-by-name", version, status);
            }
            table.answer(ticket, answer.clone());
            // Another one comes before the watch does. Asked again, the engine would serve it first.
            table.submit("first-by-name", 1);
            table.settle(60_000);
            let (last, first) = (table.plan("last-by-name"), table.plan("first-by-name"));
            assert!(last.is_some() && first.is_some(), "{last:?} and {first:?}: both have room");
            assert_ne!(last, first, "written: {written}, {answer:?}: one node for two gangs");
            let gang = &table.gangs["last-by-name"]["status"];
            assert_eq!(gang["lastGeneration"], 1, "written: {written}, {answer:?}: it was placed twice");
        }
    }
}

/// What a RuntimeClass adds to the pods on admission decides about their nodes: its selector and its tolerations.
#[test]
fn what_admission_adds_about_nodes_is_heeded() {
    let sandboxed = |at: usize| {
        let mut node = node(at, true);
        node.0.metadata.labels = Some([("sandbox".to_owned(), "kata".to_owned())].into());
        let taint = json!([{ "key": "sandbox", "value": "kata", "effect": "NoSchedule" }]);
        node.0.spec.get_or_insert_default().taints = serde_json::from_value(taint).unwrap();
        node
    };
    let select = |spec: &mut PodSpec| {
        spec.node_selector.get_or_insert_default().insert("sandbox".into(), "kata".into());
    };
    let both = |spec: &mut PodSpec| {
        spec.node_selector.get_or_insert_default().insert("sandbox".into(), "kata".into());
        let toleration = Toleration {
            key: Some("sandbox".into()),
            operator: Some("Exists".into()),
            ..Toleration::default()
        };
        spec.tolerations.get_or_insert_default().push(toleration);
    };
    let admissions: [(Option<Admission>, Option<&str>); 3] =
        [(None, Some("node-0")), (Some(select), None), (Some(both), Some("node-1"))];
    for (admission, planned) in admissions {
        let mut table = Table::new(1);
        table.admission = admission;
        table.tell(Event::Node(Change::Set(sandboxed(1))));
        table.submit("gang", 1);
        table.settle(10_000);
        assert_eq!(table.plan("gang").as_deref(), planned);
    }
}

/// A place found while an older sentence about the gang is being written is not forgotten.
#[test]
fn a_decision_outlives_the_write_of_a_refusal() {
    let mut table = Table::new(0);
    table.tell(Event::Node(Change::Set(node(0, false))));
    table.submit("gang", 1);
    let refusal = table.until(|effect| matches!(effect, Effect::WriteGang { .. }));
    // The node gets ready while the refusal is on its way.
    table.tell(Event::Node(Change::Set(node(0, true))));
    table.pass(10);
    let outcome = table.perform(&refusal.effect);
    table.answer(refusal, outcome);
    table.settle(60_000);
    assert!(table.plan("gang").is_some(), "{}", table.gangs["gang"]["status"]);
}

/// A pod that was seen stays seen, although the answer to its creation is lost.
#[test]
fn a_lost_answer_does_not_unmake_a_pod() {
    for answer in [Outcome::Transient("no answer".into()), Outcome::Conflict, Outcome::Refused("no".into())] {
        let mut table = Table::new(1);
        table.submit("gang", 1);
        let creation = table.until(is_creation);
        table.perform(&creation.effect);
        table.answer(creation, answer);
        let again = table.settle(60_000).into_iter().filter(is_creation).count();
        assert_eq!(again, 0, "the pod is there");
        let status = &table.gangs["gang"]["status"];
        assert_eq!(status["phase"], "Placed", "{status}");
    }
}

/// The room of a pod that did not come after all is given to the one who waits for it.
#[test]
fn room_that_is_given_up_is_told() {
    let mut table = Table::new(1);
    table.submit("old", 1);
    let late = table.until(is_creation);
    // The old gang goes while its pod's creation is on its way; the engine gives the node to the new one.
    let Effect::CreatePod { gang, .. } = &late.effect else { unreachable!() };
    let uid = Uid("uid-old".into());
    table.tell(Event::Gang(Change::Gone(gang.clone(), uid)));
    table.gangs.remove("old");
    table.submit("new", 1);
    let waited = table.settle(5_000).into_iter().filter(is_creation).count();
    assert_eq!(waited, 0, "the old pod may still come");
    table.answer(late, Outcome::Refused("the gang is gone".into()));
    let created = table.settle(1_000).into_iter().filter(is_creation).count();
    assert_eq!(created, 1, "the room is free");
}

/// A job past its deadline ends; whoever leads then takes its gang away, whether or not it wrote the end itself.
#[test]
fn the_gang_of_an_ended_job_is_taken_away() {
    let mut table = Table::new(1);
    table.submit("job", 1);
    let owner =
        json!([{ "apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": "job" }]);
    table.gangs.get_mut("job").unwrap()["metadata"]["ownerReferences"] = owner;
    table.show("job");
    let ended: TrainingJob = serde_json::from_value(json!({
        "metadata": { "name": "job", "namespace": "space", "uid": "job", "resourceVersion": "9" },
        "spec": { "framework": "Plain", "parallelism": { "data": 1 }, "template": { "spec": { "containers": [] } } },
        "status": { "phase": "Failed", "reason": "DeadlineExceeded" },
    }))
    .unwrap();
    table.tell(Event::Job(Change::Set(ended)));
    let gone = ObjectKey::new("space", "job");
    let asked = table.settle(1_000);
    let deletions =
        asked.iter().filter(|e| matches!(e, Effect::DeleteOwned { key, .. } if *key == gone)).count();
    assert_eq!(deletions, 1, "{asked:?}");
}

/// Pods that exist are no news: the plan is the one write until one runs. That all were created is in the next.
#[test]
fn that_all_pods_exist_costs_no_write_of_its_own() {
    let mut table = Table::new(2);
    table.submit("gang", 2);
    let asked = table.settle(60_000);
    let writes = |asked: &[Effect]| asked.iter().filter(|e| matches!(e, Effect::WriteGang { .. })).count();
    assert_eq!(writes(&asked), 1, "{asked:?}");
    let created = asked.iter().find_map(|effect| match effect {
        Effect::CreatePod { pod, body, .. } => Some((pod.clone(), body.clone())),
        _ => None,
    });
    let (pod, body) = created.unwrap();
    let mut running = pod_of(&body, &pod.name);
    running.0.status = serde_json::from_value(json!({
        "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{
            "name": "trainer", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": { "running": { "startedAt": "2026-01-01T00:00:01Z" } },
        }],
    }))
    .unwrap();
    table.tell(Event::Pod(Change::Set(running)));
    assert_eq!(writes(&table.settle(60_000)), 1, "one pod of two runs");
    let status = &table.gangs["gang"]["status"];
    assert_eq!((&status["launched"], &status["units"]["ready"]), (&json!(true), &json!(1)), "{status}");
}
