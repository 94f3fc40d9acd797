//! What must be true once nothing disturbs any more.
//!
//! ```text
//!   jobs, gangs, pods, Services as they are ──▶ complaints: each is a Fault unless time cures it
//! ```

use muster_api::labels;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::apply::Stage;
use super::judge::{Fault, GPUS, Judge, hostile};
use super::seen::{GangSeen, REVISION, key, owner, text, uid};

/// What a job or a gang made by hand asks for.
struct Asks {
    gpus: u64,
    least: u64,
    most: u64,
    rack: bool,
    spares: u64,
    /// It ends by itself.
    ends: bool,
    suspended: bool,
}

/// The cluster as the complaints need it.
struct Scene {
    judge: Judge,
    racks: BTreeMap<String, String>,
    jobs: Vec<Arc<Value>>,
    gangs: Vec<Arc<Value>>,
    pods: Vec<Arc<Value>>,
}

/// The first thing that is wrong now.
pub fn complaint(stage: &Stage) -> Option<Fault> {
    if !stage.crew.led() {
        return fault("nobody leads", "no operator leads and knows the cluster".to_owned());
    }
    let server = &stage.sim.server;
    let racks = server
        .objects("", "nodes")
        .into_iter()
        .map(|node| (key(&node).1, text(&node["metadata"]["labels"]["fabric.topograph.run/tier-0"])));
    let scene = Scene {
        racks: racks.collect(),
        judge: stage.sim.judge().copy(),
        jobs: server.objects("muster.dev", "trainingjobs"),
        gangs: server.objects("muster.dev", "gangs"),
        pods: server.objects("", "pods"),
    };
    let of_jobs = scene.jobs.iter().find_map(|job| scene.job(job));
    of_jobs
        .or_else(|| scene.gangs.iter().find_map(|gang| scene.gang(gang)))
        .or_else(|| scene.pods())
        .or_else(|| services(stage, &scene))
}

#[allow(clippy::unnecessary_wraps, reason = "what every look returns")]
fn fault(kind: &'static str, what: String) -> Option<Fault> {
    Some(Fault { kind, what })
}

fn about(object: &Value) -> String {
    let (namespace, name) = key(object);
    let status = &object["status"];
    let words = [&status["phase"], &status["reason"], &status["message"]].map(text);
    format!("{} {namespace}/{name}: {}", text(&object["kind"]), words.join(" | "))
}

impl Scene {
    fn seen(&self, gang: &Value) -> Option<&GangSeen> {
        self.judge.gangs.get(&uid(gang))
    }

    fn job(&self, job: &Value) -> Option<Fault> {
        let said = about(job);
        if !job["metadata"]["deletionTimestamp"].is_null() {
            return fault("a deleted job does not go", said);
        }
        let phase = text(&job["status"]["phase"]);
        if phase.is_empty() {
            return fault("a job without a status", said);
        }
        let asks = Asks::of_job(job);
        let own = self.gangs.iter().find(|gang| owner(gang, "TrainingJob").as_deref() == Some(&uid(job)));
        let gang = own.and_then(|gang| self.seen(gang).map(|seen| (uid(gang), seen)));
        let (id, seen) = match &gang {
            Some((id, seen)) => (Some(id.as_str()), Some(*seen)),
            None => (None, None),
        };
        if let Some(found) =
            self.phase(&phase, &asks, id, seen, &said, text(&job["status"]["reason"]).is_empty())
        {
            return Some(found);
        }
        if phase == "Running" {
            return own.and_then(|gang| self.as_specified(job, gang, &said));
        }
        None
    }

    /// A running job runs what its specification says.
    fn as_specified(&self, job: &Value, gang: &Value, said: &str) -> Option<Fault> {
        let wanted = text(&job["spec"]["template"]["metadata"]["annotations"][REVISION]);
        let id = uid(gang);
        let other = self.judge.pods.values().find(|pod| {
            pod.gang == id && pod.live() && !pod.impostor && !pod.leaving && pod.template != wanted
        });
        if let Some(pod) = other {
            return fault(
                "a job runs what it does not say",
                format!("{said}: pod {} is of template {:?}, not {wanted:?}", pod.key.1, pod.template),
            );
        }
        let (wants, has) =
            (text(&job["spec"]["priorityClassName"]), text(&gang["spec"]["priorityClassName"]));
        if wants != has {
            let what = format!("{said}: its gang has priority class {has:?}, not {wants:?}");
            return fault("a job's gang is not what the job says", what);
        }
        let rack = !job["spec"]["placement"]["job"].is_null();
        if rack == gang["spec"]["within"].is_null() {
            let what = format!("{said}: rack rule {rack}, its gang's is {}", gang["spec"]["within"]);
            return fault("a job's gang is not what the job says", what);
        }
        None
    }

    fn gang(&self, gang: &Value) -> Option<Fault> {
        let said = about(gang);
        if !gang["metadata"]["deletionTimestamp"].is_null() {
            return fault("a deleted gang does not go", said);
        }
        if let Some(found) = self.templates(gang, &said) {
            return Some(found);
        }
        if let Some(job) = owner(gang, "TrainingJob") {
            let there = self.jobs.iter().any(|object| uid(object) == job);
            return if there { None } else { fault("a gang outlives its job", said) };
        }
        let phase = text(&gang["status"]["phase"]);
        if phase.is_empty() {
            return fault("a gang without a status", said);
        }
        let asks = Asks::of_gang(gang);
        let silent = text(&gang["status"]["reason"]).is_empty();
        self.phase(&phase, &asks, Some(&uid(gang)), self.seen(gang), &said, silent)
    }

    /// A unit's pods are of the unit's template.
    fn templates(&self, gang: &Value, said: &str) -> Option<Fault> {
        let seen = self.seen(gang)?;
        let id = uid(gang);
        let pods = self.judge.pods.values().filter(|pod| pod.gang == id && pod.live() && !pod.impostor);
        for (pod, entry) in pods.filter_map(|pod| Some((pod, seen.plan.get(&pod.place)?))) {
            let roles = gang["spec"]["roles"].as_array().into_iter().flatten();
            let Some(role) = roles.into_iter().find(|role| role["name"] == pod.place.0.as_str()) else {
                continue;
            };
            let earlier = role["revisions"].as_array().into_iter().flatten();
            let named = earlier.into_iter().find(|kept| kept["name"] == entry.revision.as_str());
            let template = named.map_or(&role["template"], |kept| &kept["template"]);
            let wanted = text(&template["metadata"]["annotations"][REVISION]);
            if pod.wanted(seen) && (pod.revision != entry.revision || pod.template != wanted) {
                let (has, says) = (&pod.revision, &entry.revision);
                let what = format!(
                    "{said}: pod {} has revision {has:?} and template {:?}, its unit {says:?} and {wanted:?}",
                    pod.key.1, pod.template
                );
                return fault("a pod is not of its unit's template", what);
            }
        }
        None
    }

    /// Whether a phase is true, and one that may last.
    fn phase(
        &self,
        phase: &str,
        asks: &Asks,
        id: Option<&str>,
        seen: Option<&GangSeen>,
        said: &str,
        silent: bool,
    ) -> Option<Fault> {
        let live = self
            .judge
            .pods
            .values()
            .filter(|pod| Some(pod.gang.as_str()) == id && pod.live() && !pod.impostor);
        let ended = matches!(phase, "Succeeded" | "Failed");
        if asks.suspended && !ended {
            return match (phase, live.count()) {
                ("Suspended" | "Pending" | "Requeued", 0) => None,
                (_, pods) => fault("a suspended job goes on", format!("{said}: {pods} pods")),
            };
        }
        match phase {
            "Running" => {
                let Some(seen) = seen else { return fault("Running without a gang", said.to_owned()) };
                let running =
                    live.filter(|pod| pod.phase == "Running" && !pod.leaving && pod.wanted(seen)).count();
                let planned = seen.plan.len();
                let done = id.is_some_and(|id| self.judge.succeeded.contains(id));
                if planned == 0 || running < planned && !done {
                    return fault(
                        "Running while pods are missing",
                        format!("{said}: {running} of {planned} pods"),
                    );
                }
                if (planned as u64) < asks.least || planned as u64 > asks.most {
                    let what = format!("{said}: {planned} pods, asked for {} to {}", asks.least, asks.most);
                    return fault("a job has another size than it says", what);
                }
                if asks.ends {
                    return fault("a job that should have ended runs on", said.to_owned());
                }
                None
            }
            "Pending" | "Requeued" | "Preempted" if silent => {
                fault("waits without a reason", said.to_owned())
            }
            "Pending" | "Requeued" | "Preempted" => {
                let free = self.free();
                let fits = asks.fits(&free, &self.racks);
                if fits {
                    fault("waits although there is room", format!("{said}; free: {free:?}"))
                } else {
                    None
                }
            }
            "Succeeded" | "Failed" => {
                let pods = live.count();
                if pods > 0 {
                    return fault("a job that has ended has pods", format!("{said}: {pods} pods"));
                }
                let known = |set: &BTreeSet<String>| id.is_none_or(|id| set.contains(id));
                if phase == "Failed" && !known(&self.judge.struck) {
                    return fault("a job failed although nothing of it did", said.to_owned());
                }
                if phase == "Succeeded" && !known(&self.judge.succeeded) {
                    return fault("a job succeeded although no pod of it did", said.to_owned());
                }
                None
            }
            _ => fault("a job comes to no rest", said.to_owned()),
        }
    }

    /// Free accelerators of each node.
    fn free(&self) -> BTreeMap<String, u64> {
        let mut free: BTreeMap<String, u64> = self.racks.keys().map(|node| (node.clone(), GPUS)).collect();
        let mut take = |node: &str, gpus: u64| {
            if let Some(left) = free.get_mut(node) {
                *left = left.saturating_sub(gpus);
            }
        };
        for gang in self.judge.gangs.values().filter(|gang| gang.holds()) {
            gang.plan.values().for_each(|entry| take(&entry.node, entry.gpus));
            gang.spares.iter().for_each(|(node, gpus)| take(node, *gpus));
        }
        for pod in self
            .pods
            .iter()
            .filter(|pod| !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
        {
            let ours = self.judge.pods.get(&uid(pod));
            let planned = ours.is_some_and(|pod| {
                self.judge.gangs.get(&pod.gang).is_some_and(|gang| gang.holds() && pod.wanted(gang))
            });
            if !planned {
                take(&text(&pod["spec"]["nodeName"]), super::seen::gpus(pod));
            }
        }
        free
    }

    fn pods(&self) -> Option<Fault> {
        let gangs: BTreeSet<String> = self.gangs.iter().map(|gang| uid(gang)).collect();
        for pod in self.pods.iter().filter(|pod| !hostile(pod)) {
            let Some(seen) = self.judge.pods.get(&uid(pod)) else { continue };
            let what = format!("pod {}/{} on {}: {}", seen.key.0, seen.key.1, seen.node, seen.phase);
            if seen.leaving {
                return fault("a deleted pod does not go", what);
            }
            if !gangs.contains(&seen.gang) {
                return fault("a pod outlives its gang", what);
            }
            let wanted =
                self.judge.gangs.get(&seen.gang).is_some_and(|gang| gang.holds() && seen.wanted(gang));
            if seen.live() && !wanted {
                return fault("a pod that no plan wants rests", what);
            }
        }
        None
    }
}

impl Asks {
    fn of_job(job: &Value) -> Self {
        let spec = &job["spec"];
        let gpus = spec["accelerator"]["perPod"].as_u64().unwrap_or(8).max(1);
        let data = spec["parallelism"]["data"].as_u64().unwrap_or(0);
        let bound = |name: &str| spec["elastic"][name].as_u64().unwrap_or(data) / gpus;
        Self {
            gpus,
            least: bound("minData"),
            most: bound("maxData").max(data / gpus),
            rack: !spec["placement"]["job"].is_null(),
            spares: spec["placement"]["spares"].as_u64().unwrap_or(0),
            ends: !spec["template"]["metadata"]["annotations"]["kubesim.dev/run-for"].is_null(),
            suspended: spec["suspend"] == true,
        }
    }

    fn of_gang(gang: &Value) -> Self {
        let (spec, role) = (&gang["spec"], &gang["spec"]["roles"][0]);
        Self {
            gpus: role["devices"].as_u64().unwrap_or(0).max(1),
            least: role["units"]["min"].as_u64().unwrap_or(0),
            most: role["units"]["max"].as_u64().unwrap_or(0),
            rack: !spec["within"].is_null(),
            spares: role["spares"].as_u64().unwrap_or(0),
            ends: !role["template"]["metadata"]["annotations"]["kubesim.dev/run-for"].is_null(),
            suspended: spec["suspend"] == true,
        }
    }

    /// Whether it fits beside all that is there. Each pod lies on one node, so that counts decide.
    fn fits(&self, free: &BTreeMap<String, u64>, racks: &BTreeMap<String, String>) -> bool {
        let mut slots: BTreeMap<&str, u64> = BTreeMap::new();
        for (node, free) in free {
            let rack = if self.rack { racks.get(node).map_or("", String::as_str) } else { "" };
            *slots.entry(rack).or_default() += free / self.gpus;
        }
        self.least > 0 && slots.values().any(|slots| *slots >= self.least + self.spares)
    }
}

/// Services lead to a pod of their gang, and what was deleted by hand is there again.
fn services(stage: &Stage, scene: &Scene) -> Option<Fault> {
    let running = |gang: &str| scene.judge.gangs.get(gang).is_some_and(|gang| gang.phase == "Running");
    let managed =
        |object: &Value| object["metadata"]["labels"][labels::MANAGED_BY] == labels::MANAGED_BY_VALUE;
    for plural in ["services", "configmaps"] {
        for object in stage.sim.server.objects("", plural).iter().filter(|object| managed(object)) {
            let what = || format!("{plural} {:?}", key(object));
            let Some(gang) = owner(object, "Gang") else { continue };
            if !scene.judge.gangs.contains_key(&gang) {
                return fault("a Service or ConfigMap outlives its gang", what());
            }
            let Some(selector) = object["spec"]["selector"].as_object() else { continue };
            let (namespace, _) = key(object);
            let chosen = scene.pods.iter().any(|pod| {
                pod["metadata"]["namespace"] == namespace.as_str()
                    && selector.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)
            });
            if running(&gang) && !chosen {
                return fault("a Service leads to no pod of a gang that runs", what());
            }
        }
    }
    let dropped = stage.dropped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for [plural, namespace, name, gang] in dropped.iter() {
        // Hostfiles may be named by generation: one that is not needed any more need not come back.
        if plural == "services"
            && running(gang)
            && stage.sim.server.object("", plural, namespace, name).is_none()
        {
            let what = format!("{plural} {namespace}/{name}");
            return fault("a Service deleted by hand is not made again", what);
        }
    }
    None
}

/// What is left once every job and gang was deleted.
pub fn leftovers(stage: &Stage) -> Option<Fault> {
    let server = &stage.sim.server;
    let managed =
        |object: &Value| object["metadata"]["labels"][labels::MANAGED_BY] == labels::MANAGED_BY_VALUE;
    for (group, plural) in [
        ("muster.dev", "trainingjobs"),
        ("muster.dev", "gangs"),
        ("", "pods"),
        ("", "services"),
        ("", "configmaps"),
    ] {
        let left = server.objects(group, plural).into_iter().find(|object| {
            !hostile(object)
                && key(object).0.starts_with("storm-")
                && (group == "muster.dev" || plural == "pods" || managed(object))
        });
        if let Some(left) = left {
            let meta = &left["metadata"];
            let what = format!(
                "{plural} {:?}, finalizers {}, {}",
                key(&left),
                meta["finalizers"],
                left["status"]["phase"]
            );
            return fault("something is left of what was deleted", what);
        }
    }
    None
}
