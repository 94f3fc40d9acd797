//! Steps, done.

use http::Method;
use kubesim::kubelet::NodeSpec;
use kubesim::kubelet::node::{Intake, Power};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

use super::crew::Crew;
use super::manifest::{self, name, path};
use super::seen::{REVISION, key, owner, text};
use super::sim::{Sim, lease_path, space};
use super::trace::{Blow, Edit, PRIORITIES, Step, Target, Trace};

/// The cluster of a storm, as steps act on it.
pub struct Stage {
    /// The cluster.
    pub sim: Arc<Sim>,
    /// The operators.
    pub crew: Arc<Crew>,
    rack: u8,
    nodes: u8,
    /// What steps made and must take away again.
    hostile: Mutex<BTreeSet<String>>,
    /// Services and ConfigMaps that were deleted by hand: plural, namespace, name, UID of their gang.
    pub dropped: Mutex<Vec<[String; 4]>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The namespace of foreign pods.
const ELSEWHERE: &str = "default";

fn node(at: u8) -> String {
    format!("node-{at}")
}

/// After so many milliseconds.
fn later(lasts: u32, act: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        sleep(Duration::from_millis(u64::from(lasts))).await;
        act();
    });
}

impl Stage {
    /// A cluster whose machines run, without an operator.
    pub fn new(trace: &Trace, sim: Arc<Sim>) -> Arc<Self> {
        let stage = Arc::new(Self {
            crew: Crew::new(sim.clone()),
            sim,
            rack: trace.rack.max(1),
            nodes: trace.nodes,
            hostile: Mutex::default(),
            dropped: Mutex::default(),
        });
        for at in 0..trace.nodes {
            stage.add_node(at);
        }
        stage
    }

    fn add_node(&self, at: u8) {
        let spec = NodeSpec::hgx_h100(node(at))
            .label("fabric.topograph.run/tier-1", "block-0")
            .label("fabric.topograph.run/tier-0", &format!("rack-{}", at / self.rack));
        // The quantities are our own.
        let _added = self.sim.machines(|fleet| fleet.add(spec));
    }

    /// Does a step.
    pub async fn apply(self: &Arc<Self>, step: &Step) {
        self.sim.note(|| format!("== {}", serde_json::to_string(step).unwrap_or_default()));
        let sim = &self.sim;
        let until = |lasts: u32| sim.millis() + i64::from(lasts);
        match *step {
            Step::Submit(target, shape) => self.post("trainingjobs", target, &manifest::job(target, &shape)),
            Step::MakeGang(target, shape) => {
                let target = super::make::hand(target);
                self.post("gangs", target, &manifest::gang(target, &shape));
            }
            Step::Edit(target, edit) => self.edit_job(target, edit),
            Step::Delete(target) => self.delete("trainingjobs", target),
            Step::Replace(target, shape) => self.replace(target, manifest::job(target, &shape)),
            Step::EditGang(target, edit) => self.edit_gang(target, edit),
            Step::DeleteGang(target) => self.delete("gangs", target),
            Step::DeleteOwned(at) => self.delete_owned(at),
            Step::DeletePod(at, force) => self.delete_pod(at, force),
            Step::Exit(at, code) => self.exit(at, code),
            Step::Finish(target) => self.finish(target),
            Step::Api { how, permille, lasts } => sim.weather().strike(how, permille, until(lasts)),
            Step::Lag(millis, lasts) => {
                sim.count("spells of lagging watches");
                sim.weather().lag(millis, until(lasts));
            }
            Step::BreakWatches(forget) => self.break_watches(forget),
            Step::Gap(lasts) => self.gap(lasts),
            Step::Kill { requests, done, down } => self.crew.kill(requests, done, down).await,
            Step::Freeze(lasts, second) => self.crew.freeze(lasts, second),
            Step::HandOver => self.crew.hand_over(),
            Step::Step(seconds) => {
                sim.count(if seconds < 0 { "clock steps back" } else { "clock steps forward" });
                sim.skew.fetch_add(i64::from(seconds) * 1_000, Ordering::SeqCst);
            }
            Step::Strike(at, blow, lasts) => self.strike(at, blow, lasts),
            Step::Quota(at, pods, lasts) => {
                let quota =
                    json!({"metadata": {"name": "storm"}, "spec": {"hard": {"pods": pods.to_string()}}});
                self.restrict("resourcequotas", at, &quota, lasts);
            }
            Step::Limit(at, lasts) => {
                let limits = json!([{"type": "Container", "max": {"cpu": "1"}}]);
                let range = json!({"metadata": {"name": "storm"}, "spec": {"limits": limits}});
                self.restrict("limitranges", at, &range, lasts);
            }
            Step::Foreign(at, gpus, lasts) => {
                let at = node(at % self.nodes.max(1));
                self.intrude(|name| Some(manifest::foreign(name, &at, gpus)), lasts);
                sim.count("foreign pods that take accelerators");
            }
            Step::Impostor(target, at, ends, lasts) => self.impostor(target, at, ends, lasts),
            Step::DropLease => {
                sim.count("deletions of the Lease");
                // Refused where there is none.
                let _gone = sim.act(&Method::DELETE, &lease_path(), &Value::Null);
            }
            Step::Wait(lasts) => sleep(Duration::from_millis(u64::from(lasts))).await,
        }
    }

    /// A user's request. That it may be refused is part of a storm.
    fn user(&self, what: &'static str, method: &Method, path: &str, body: &Value) {
        if self.sim.act(method, path, body).is_ok() {
            self.sim.count(what);
        }
    }

    fn post(&self, plural: &str, target: Target, body: &Value) {
        let what = if plural == "gangs" { "gangs made by hand" } else { "jobs created" };
        self.user(what, &Method::POST, &path(plural, target), body);
    }

    fn delete(&self, plural: &str, target: Target) {
        let what = if plural == "gangs" { "gangs deleted by hand" } else { "jobs deleted" };
        let path = format!("{}/{}", path(plural, target), name(target));
        self.user(what, &Method::DELETE, &path, &Value::Null);
    }

    fn replace(self: &Arc<Self>, target: Target, job: Value) {
        self.delete("trainingjobs", target);
        let stage = self.clone();
        tokio::spawn(async move {
            // The name is taken until the operator lets the old one go.
            for _ in 0..12_000 {
                if stage.sim.ours("trainingjobs", &space(target.space), &name(target)).is_none() {
                    stage.user(
                        "jobs made again under their name",
                        &Method::POST,
                        &path("trainingjobs", target),
                        &job,
                    );
                    return;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
    }

    fn edit_job(&self, target: Target, edit: Edit) {
        let name = name(target);
        let Some(live) = self.sim.ours("trainingjobs", &space(target.space), &name) else { return };
        let per_pod = live["spec"]["accelerator"]["perPod"].as_u64().unwrap_or(8);
        let patch = match edit {
            Edit::Suspend(on) => json!({"spec": {"suspend": on}}),
            Edit::Resize(pods) => json!({"spec": {"parallelism": {"data": u64::from(pods) * per_pod}}}),
            Edit::Priority(at) => {
                let class = PRIORITIES[usize::from(at) % PRIORITIES.len()].map(|(class, _)| class);
                json!({"spec": {"priorityClassName": class}})
            }
            Edit::Template(at) => {
                json!({"spec": {"template": {"metadata": {"annotations": {REVISION: format!("r{at}")}}}}})
            }
            Edit::Rack(on) => json!({"spec": {"placement": {"job": manifest::rack(on)}}}),
            Edit::Label(at) => json!({"metadata": {"labels": {"storm/label": at.to_string()}}}),
        };
        let path = format!("{}/{name}", path("trainingjobs", target));
        self.user("edits of jobs", &Method::PATCH, &path, &patch);
    }

    fn edit_gang(&self, target: Target, edit: Edit) {
        let name = name(target);
        let Some(live) = self.sim.ours("gangs", &space(target.space), &name) else { return };
        let mut roles = live["spec"]["roles"].clone();
        let patch = match edit {
            Edit::Suspend(on) => json!({"spec": {"suspend": on}}),
            Edit::Resize(pods) => {
                roles[0]["units"] = json!({"min": pods, "max": pods});
                json!({"spec": {"roles": roles}})
            }
            Edit::Priority(at) => {
                let class = PRIORITIES[usize::from(at) % PRIORITIES.len()].map(|(class, _)| class);
                json!({"spec": {"priorityClassName": class}})
            }
            Edit::Template(at) => {
                if !revise(&mut roles[0], &live["status"], &format!("hand-{at}")) {
                    return;
                }
                json!({"spec": {"roles": roles}})
            }
            Edit::Rack(on) => {
                let within = if on { json!({"level": "Rack", "mode": "Required"}) } else { Value::Null };
                json!({"spec": {"within": within}})
            }
            Edit::Label(at) => json!({"metadata": {"labels": {"storm/label": at.to_string()}}}),
        };
        let path = format!("{}/{name}", path("gangs", target));
        self.user("edits of gangs by hand", &Method::PATCH, &path, &patch);
    }

    fn delete_owned(&self, at: u8) {
        let mut found = Vec::new();
        for plural in ["configmaps", "services"] {
            let ours = self.sim.server.objects("", plural).into_iter();
            found.extend(ours.filter_map(|object| Some((plural, key(&object), owner(&object, "Gang")?))));
        }
        if found.is_empty() {
            return;
        }
        let (plural, (namespace, name), gang) = found.swap_remove(usize::from(at) % found.len());
        let path = format!("/api/v1/namespaces/{namespace}/{plural}/{name}");
        self.user("Services and ConfigMaps deleted by hand", &Method::DELETE, &path, &Value::Null);
        lock(&self.dropped).push([plural.to_owned(), namespace, name, gang]);
    }

    /// Namespace and name of the n-th live pod of a gang.
    fn pod(&self, at: u8) -> Option<(String, String)> {
        let judge = self.sim.judge();
        let mut live: Vec<_> = judge
            .pods
            .values()
            .filter(|pod| pod.live() && !pod.impostor)
            .map(|pod| pod.key.clone())
            .collect();
        live.sort_unstable();
        (!live.is_empty()).then(|| live[usize::from(at) % live.len()].clone())
    }

    fn delete_pod(&self, at: u8, force: bool) {
        let Some((namespace, name)) = self.pod(at) else { return };
        let options = if force { json!({"gracePeriodSeconds": 0}) } else { Value::Null };
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.user("pods deleted by hand", &Method::DELETE, &path, &options);
    }

    fn exit(&self, at: u8, code: u8) {
        let Some((namespace, name)) = self.pod(at) else { return };
        if self.sim.machines(|fleet| fleet.exit(&namespace, &name, i32::from(code), true)) {
            self.sim.count(if code == 0 { "pods that finish" } else { "pods that fail" });
        }
    }

    fn finish(&self, target: Target) {
        let Some(gang) = self.sim.ours("gangs", &space(target.space), &name(target)) else { return };
        let id = text(&gang["metadata"]["uid"]);
        let pods: Vec<_> = {
            let judge = self.sim.judge();
            judge
                .pods
                .values()
                .filter(|pod| pod.gang == id && pod.live())
                .map(|pod| pod.key.clone())
                .collect()
        };
        for (namespace, name) in pods {
            self.sim.machines(|fleet| fleet.exit(&namespace, &name, 0, true));
        }
        self.sim.count("gangs that finish");
    }

    fn break_watches(&self, forget: bool) {
        self.sim.count(if forget { "watches that must list again (410)" } else { "watches that break" });
        self.sim.server.break_watches();
        if forget {
            self.sim.server.compact();
        }
    }

    fn gap(self: &Arc<Self>, lasts: u32) {
        self.sim.count("gaps in all watches");
        self.sim.weather().gap(self.sim.millis() + i64::from(lasts));
        self.sim.server.break_watches();
        let stage = self.clone();
        later(lasts.saturating_sub(1), move || stage.sim.server.compact());
    }

    fn strike(self: &Arc<Self>, at: u8, blow: Blow, lasts: u32) {
        let at = at % self.nodes.max(1);
        let name = node(at);
        self.sim.machines(|fleet| match blow {
            Blow::Hang => fleet.set_power(&name, Power::Hung),
            Blow::Off => fleet.set_power(&name, Power::Down),
            Blow::NotReady => fleet.set_ready(&name, false),
            Blow::Refuse(reason) => fleet.refuse(&name, reason.reason()),
            Blow::Deaf => fleet.set_intake(&name, Intake::Silent),
            Blow::Cordon => fleet.cordon(&name, true),
            Blow::Taint => fleet.taint(&name, "storm/soft", "NoSchedule", true),
            Blow::TaintHard => fleet.taint(&name, "storm/hard", "NoExecute", true),
            // The quantity is our own.
            Blow::Gpus(gpus) => drop(fleet.set_allocatable(&name, "nvidia.com/gpu", &gpus.to_string())),
            Blow::Vanish => fleet.remove(&name),
        });
        self.sim.count(match blow {
            Blow::Hang => "kubelets that hang",
            Blow::Off => "machines that go off and come back",
            Blow::NotReady => "kubelets that say they are not ready",
            Blow::Refuse(_) => "kubelets that refuse",
            Blow::Deaf => "kubelets that never look at new pods",
            Blow::Cordon => "cordons",
            Blow::Taint => "taints NoSchedule",
            Blow::TaintHard => "taints NoExecute",
            Blow::Gpus(_) => "nodes that lose accelerators",
            Blow::Vanish => "nodes that vanish and return under their name",
        });
        let stage = self.clone();
        later(lasts, move || stage.mend(at, blow));
    }

    fn mend(&self, at: u8, blow: Blow) {
        let name = node(at);
        if matches!(blow, Blow::Vanish) {
            if !self.sim.machines(|fleet| fleet.names().contains(&name)) {
                self.add_node(at);
            }
            return;
        }
        self.sim.machines(|fleet| match blow {
            Blow::Hang | Blow::Off => fleet.set_power(&name, Power::Up),
            Blow::NotReady => fleet.set_ready(&name, true),
            Blow::Refuse(_) | Blow::Deaf => fleet.set_intake(&name, Intake::Normal),
            Blow::Cordon => fleet.cordon(&name, false),
            Blow::Taint => fleet.taint(&name, "storm/soft", "", false),
            Blow::TaintHard => fleet.taint(&name, "storm/hard", "", false),
            Blow::Gpus(_) => drop(fleet.set_allocatable(&name, "nvidia.com/gpu", "8")),
            Blow::Vanish => {}
        });
    }

    fn restrict(self: &Arc<Self>, plural: &'static str, at: u8, object: &Value, lasts: u32) {
        let what = if plural == "limitranges" { "LimitRanges" } else { "ResourceQuotas" };
        let path = format!("/api/v1/namespaces/{}/{plural}", space(at));
        self.user(what, &Method::POST, &path, object);
        let stage = self.clone();
        // Another step may have taken it away already.
        later(lasts, move || drop(stage.sim.act(&Method::DELETE, &format!("{path}/storm"), &Value::Null)));
    }

    /// A pod in a namespace of others, for so long.
    fn intrude(self: &Arc<Self>, make: impl FnOnce(&str) -> Option<Value>, lasts: u32) -> Option<String> {
        let name = format!("other-{}", lock(&self.hostile).len());
        let pod = make(&name)?;
        lock(&self.hostile).insert(name.clone());
        let path = format!("/api/v1/namespaces/{ELSEWHERE}/pods");
        // Where it is refused nothing is there to be taken away.
        let _refused = self.sim.act(&Method::POST, &path, &pod);
        let (stage, path) = (self.clone(), format!("{path}/{name}"));
        let gone = json!({"gracePeriodSeconds": 0});
        later(lasts, move || drop(stage.sim.act(&Method::DELETE, &path, &gone)));
        Some(name)
    }

    fn impostor(self: &Arc<Self>, target: Target, at: u8, ends: bool, lasts: u32) {
        let Some(gang) = self.sim.ours("gangs", &space(target.space), &name(target)) else { return };
        let at = node(at % self.nodes.max(1));
        let Some(name) = self.intrude(|name| Some(manifest::impostor(name, &at, &gang)), lasts) else {
            return;
        };
        self.sim.count("pods that claim to be a gang's");
        if ends {
            let path = format!("/api/v1/namespaces/{ELSEWHERE}/pods/{name}/status");
            // The garbage collector may have been faster.
            let _gone = self.sim.act(&Method::PATCH, &path, &json!({"status": {"phase": "Succeeded"}}));
        }
    }

    /// All that was done to the cluster is taken back; what was done to jobs stays.
    pub fn calm(&self) {
        self.sim.note(|| "== calm".to_owned());
        self.sim.weather().calm();
        self.crew.calm();
        for at in 0..self.nodes {
            for blow in [Blow::Vanish, Blow::Hang, Blow::NotReady, Blow::Deaf, Blow::Cordon, Blow::Gpus(8)] {
                self.mend(at, blow);
            }
            self.mend(at, Blow::Taint);
            self.mend(at, Blow::TaintHard);
        }
        for at in 0..2 {
            for plural in ["resourcequotas", "limitranges"] {
                let path = format!("/api/v1/namespaces/{}/{plural}/storm", space(at));
                // Most storms have none.
                let _none = self.sim.act(&Method::DELETE, &path, &Value::Null);
            }
        }
        for name in std::mem::take(&mut *lock(&self.hostile)) {
            let path = format!("/api/v1/namespaces/{ELSEWHERE}/pods/{name}");
            // Its time may be over already.
            let _gone = self.sim.act(&Method::DELETE, &path, &json!({"gracePeriodSeconds": 0}));
        }
    }
}

/// Gives a role another template, as the API server allows it: under another name where the gang holds a plan, with those
/// kept that units run with. Returns false where it has that template.
fn revise(role: &mut Value, status: &Value, name: &str) -> bool {
    let mut template = role["template"].clone();
    template["metadata"]["annotations"][REVISION] = json!(name);
    let before = text(&role["revision"]);
    if before == name || role["template"] == template {
        return false;
    }
    if status["plan"].is_null() {
        role["template"] = template;
        return true;
    }
    let used = |name: &str| {
        let used = status["revisions"].as_array().into_iter().flatten();
        used.into_iter().any(|used| used["role"] == role["name"] && used["name"] == name)
    };
    let mut kept: Vec<Value> = role["revisions"].as_array().cloned().unwrap_or_default();
    kept.push(json!({ "name": before, "template": role["template"] }));
    if let Some(known) = kept.iter().find(|kept| kept["name"] == name) {
        template = known["template"].clone();
    }
    kept.retain(|kept| kept["name"] != name && used(&text(&kept["name"])));
    role["template"] = template;
    role["revision"] = json!(name);
    role["revisions"] = Value::Array(kept);
    true
}
