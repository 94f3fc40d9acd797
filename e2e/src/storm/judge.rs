//! The invariants, judged at every write, with the one who made it.
//!
//! ```text
//!   write ──▶ Judge: plans, live pods, restarts, epochs ──▶ Fault { kind, what }
//! ```
//!
//! It counts accelerators only, which is what storms are short of. What the environment does (a foreign pod, a device
//! that fails) may break a promise that was kept; so promises are judged when they are made.

use kubesim::api::Written;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

use super::seen::{GangSeen, HOSTILE, PodSeen, text, uid};
use crate::world::SYSTEM;

/// Accelerators of every machine of a storm.
pub const GPUS: u64 = 8;
/// How long a gang may have some of its pods only.
const PARTIAL_BOUND: i64 = 20 * 60_000;
/// How long a pod may be there that no plan wants.
const STRAY_BOUND: i64 = 10 * 60_000;

/// A request of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Path, without the query.
    pub path: &'a str,
    /// It was done late: what it was decided on may have changed.
    pub late: bool,
}

/// Who made a write.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    /// Users, machines, controllers.
    World,
    /// An operator.
    Operator(Asked<'a>),
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which promise is broken, in a few words: faults of one kind shrink together.
    pub kind: &'static str,
    /// What was seen.
    pub what: String,
}

/// Watches over one storm.
#[derive(Debug, Default)]
pub struct Judge {
    /// Gangs by UID.
    pub gangs: BTreeMap<String, GangSeen>,
    /// Pods of gangs by UID.
    pub pods: BTreeMap<String, PodSeen>,
    /// Faults, in the order of their discovery; one of each kind.
    pub faults: Vec<Fault>,
    /// Whether a plan was written since somebody asked.
    pub plans_changed: bool,
    /// Writes of the operators, other than those of the Lease.
    pub writes: u64,
    /// Gangs that had a pod that failed or went away without the operator.
    pub struck: BTreeSet<String>,
    /// Gangs of which a pod of their own has succeeded.
    pub succeeded: BTreeSet<String>,
    /// Jobs by UID: final phase and restarts.
    jobs: BTreeMap<String, (String, i64)>,
    /// The epoch of the Lease.
    epoch: i64,
    partial: BTreeMap<String, i64>,
    strays: BTreeMap<String, i64>,
}

impl Judge {
    /// What it knows now.
    pub fn copy(&self) -> Self {
        Self {
            gangs: self.gangs.clone(),
            pods: self.pods.clone(),
            struck: self.struck.clone(),
            succeeded: self.succeeded.clone(),
            ..Self::default()
        }
    }

    /// Notes a fault.
    pub fn fail(&mut self, kind: &'static str, what: String) {
        if self.faults.iter().all(|fault| fault.kind != kind) {
            self.faults.push(Fault { kind, what });
        }
    }

    /// Takes in what was written.
    pub fn see(&mut self, writes: &[Written], cause: &Cause<'_>) {
        for write in writes {
            match write.table.as_ref() {
                "gangs.muster.dev" => self.gang(write, cause),
                "pods" => self.pod(write, cause),
                "trainingjobs.muster.dev" => self.job(write),
                "leases.coordination.k8s.io" if write.namespace == SYSTEM => {
                    let lease = write.new.as_deref().unwrap_or(&Value::Null);
                    self.epoch = lease["spec"]["leaseTransitions"].as_i64().unwrap_or(self.epoch);
                }
                _ => {}
            }
        }
    }

    fn gang(&mut self, write: &Written, cause: &Cause<'_>) {
        let Some(object) = &write.new else {
            if let Some(old) = &write.old {
                self.gangs.remove(&uid(old));
            }
            return;
        };
        let id = uid(object);
        let new = GangSeen::of(object);
        let old = self.gangs.insert(id.clone(), new.clone()).unwrap_or_default();
        let Cause::Operator(asked) = cause else { return };
        if !asked.path.ends_with("/status") {
            return;
        }
        let name = format!("gang {}/{}", new.key.0, new.key.1);
        if let Some(error) = &new.unreadable {
            self.fail("a plan that cannot be read", format!("{name}: {error}"));
        }
        if new.epoch != self.epoch {
            let what = format!("{name}: status of epoch {} while the Lease is at {}", new.epoch, self.epoch);
            self.fail("fence", what);
        }
        // The window is 24 h and no storm lasts so long: nothing may be forgotten.
        if !old.restarts.is_subset(&new.restarts) || new.total < old.total {
            let what = format!("{name}: restarts {:?} became {:?}", old.restarts, new.restarts);
            self.fail("I7 the restart budget was given back", what);
        }
        if new.plan != old.plan && !new.plan.is_empty() && new.holds() {
            self.plans_changed = true;
            self.promised(&id, &old, &new);
        }
    }

    /// I1 when a plan is committed: what others were promised and what they have not left is not in it.
    /// Where it was promised as much before, it only stays: its new pods wait until old ones have left.
    fn promised(&mut self, id: &str, before: &GangSeen, gang: &GangSeen) {
        let held = |node: &str| {
            let entries = before.plan.values().filter(|entry| entry.node == node).map(|entry| entry.gpus);
            let spares = before.spares.iter().filter(|(at, _)| *at == node).map(|(_, gpus)| *gpus);
            entries.sum::<u64>() + spares.sum::<u64>()
        };
        let mut used: BTreeMap<&str, Vec<(u64, String)>> = BTreeMap::new();
        for entry in gang.plan.values() {
            let own = (entry.gpus, "this plan".to_owned());
            used.entry(&entry.node).or_default().push(own);
        }
        for (node, gpus) in &gang.spares {
            used.entry(node).or_default().push((*gpus, "its spares".to_owned()));
        }
        used.retain(|node, users| users.iter().map(|(gpus, _)| gpus).sum::<u64>() > held(node));
        let nodes: BTreeSet<String> = used.keys().map(|node| (*node).to_owned()).collect();
        // The outcome of a gang of which the deciding pod has succeeded is known, if not yet written.
        let others = self
            .gangs
            .iter()
            .filter(|(other, seen)| *other != id && seen.holds() && !self.succeeded.contains(*other));
        // What its plan has there, and what its pods use there.
        let mut theirs: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
        for (other, seen) in others {
            let entries = seen.plan.values().map(|entry| (&entry.node, entry.gpus));
            for (node, gpus) in entries.chain(seen.spares.iter().map(|(node, gpus)| (node, *gpus))) {
                theirs.entry((other, node)).or_default().0 += gpus;
            }
        }
        for pod in self.pods.values().filter(|pod| pod.live() && pod.gang != id && !pod.impostor && !pod.late)
        {
            theirs.entry((&pod.gang, &pod.node)).or_default().1 += pod.gpus;
        }
        for ((other, node), (planned, there)) in theirs {
            if nodes.contains(node) {
                // New pods come when old ones have left: they share their places.
                let what = format!("gang {other}: {planned} planned, {there} used");
                used.entry(node).or_default().push((planned.max(there), what));
            }
        }
        let over = used.into_iter().find(|(_, users)| users.iter().map(|(gpus, _)| gpus).sum::<u64>() > GPUS);
        if let Some((node, users)) = over {
            let what = format!("gang {}/{} on {node}: {users:?}", gang.key.0, gang.key.1);
            self.fail("I1 a device is in two plans", what);
        }
    }

    fn pod(&mut self, write: &Written, cause: &Cause<'_>) {
        let old = write.old.as_ref().and_then(|old| self.pods.remove(&uid(old)));
        let Some(object) = &write.new else {
            if let Some(old) = &old {
                self.went(old, cause);
            }
            return;
        };
        let Some(mut pod) = PodSeen::of(object) else { return };
        let id = uid(object);
        if let Cause::Operator(asked) = cause
            && write.old.is_none()
        {
            pod.late = asked.late;
            self.created(&pod);
        }
        if let Some(old) = &old {
            pod.late = old.late;
            if pod.leaving && !old.leaving {
                self.went(&pod, cause);
            }
        }
        if !pod.impostor {
            match pod.phase.as_str() {
                "Failed" => drop(self.struck.insert(pod.gang.clone())),
                "Succeeded" => drop(self.succeeded.insert(pod.gang.clone())),
                _ => {}
            }
        }
        self.pods.insert(id, pod);
    }

    fn went(&mut self, pod: &PodSeen, cause: &Cause<'_>) {
        if matches!(cause, Cause::World) && !pod.impostor {
            self.struck.insert(pod.gang.clone());
        }
    }

    /// I2 and I1 when an operator creates a pod.
    fn created(&mut self, pod: &PodSeen) {
        let name = format!("pod {}/{} on {}", pod.key.0, pod.key.1, pod.node);
        if pod.epoch != self.epoch {
            self.fail("fence", format!("{name} of epoch {} while the Lease is at {}", pod.epoch, self.epoch));
        }
        if pod.late {
            return;
        }
        // Whoever deletes a gang may be faster than a creation that is on its way.
        let unplanned = self
            .gangs
            .get(&pod.gang)
            .filter(|gang| !(gang.leaving || gang.holds() && pod.wanted(gang)))
            .map(|gang| format!("planned is {:?} ({})", gang.plan.get(&pod.place), gang.phase));
        if let Some(planned) = unplanned {
            let what = format!("{name}, incarnation {}: {planned}", pod.incarnation);
            self.fail("I2 a pod that no plan wants", what);
        }
        let others = self
            .pods
            .values()
            .filter(|other| other.node == pod.node && other.live() && !other.impostor && !other.late);
        let used: u64 = others.clone().map(|other| other.gpus).sum();
        if used + pod.gpus > GPUS {
            let others: Vec<_> = others.map(|other| format!("{} ({})", other.key.1, other.gpus)).collect();
            self.fail("I1 two pods on a device", format!("{name} ({}) beside {others:?}", pod.gpus));
        }
    }

    fn job(&mut self, write: &Written) {
        let Some(object) = &write.new else { return };
        let status = &object["status"];
        let (phase, restarts) = (text(&status["phase"]), status["restarts"].as_i64().unwrap_or(0));
        let id = uid(object);
        let before = self.jobs.insert(id, (phase.clone(), restarts));
        let Some((old, before)) = before else { return };
        let name = format!("job {}/{}", write.namespace, write.name);
        if matches!(old.as_str(), "Succeeded" | "Failed") && phase != old {
            self.fail("a job that had ended goes on", format!("{name}: {old}, then {phase}"));
        }
        if restarts < before {
            self.fail("I7 a job forgets restarts", format!("{name}: {before} restarts, then {restarts}"));
        }
    }

    /// What must not last: I3 and strays.
    pub fn look(&mut self, now: i64) {
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        let mut strays = BTreeSet::new();
        for (id, pod) in self.pods.iter().filter(|(_, pod)| pod.live() && !pod.impostor) {
            match self.gangs.get(&pod.gang) {
                Some(gang) if gang.holds() && pod.wanted(gang) => *live.entry(&pod.gang).or_default() += 1,
                _ if pod.leaving => {}
                _ => drop(strays.insert(id.clone())),
            }
        }
        let partial: BTreeSet<String> = self
            .gangs
            .iter()
            .filter(|(id, gang)| {
                let live = live.get(id.as_str()).copied().unwrap_or(0);
                gang.holds() && live > 0 && live < gang.plan.len() && !self.succeeded.contains(*id)
            })
            .map(|(id, _)| id.clone())
            .collect();
        keep(&mut self.partial, &partial, now);
        keep(&mut self.strays, &strays, now);
        let older = |since: &BTreeMap<String, i64>, bound: i64| {
            since.iter().find(|(_, at)| now - **at > bound).map(|(id, _)| id.clone())
        };
        if let Some(id) = older(&self.partial, PARTIAL_BOUND) {
            let gang = self.gangs.get(&id).map(|gang| format!("{:?} {}", gang.key, gang.phase));
            self.fail("I3 a gang of which only a part is there", format!("{id} {gang:?}"));
        }
        if let Some(id) = older(&self.strays, STRAY_BOUND) {
            let pod = self.pods.get(&id).map(|pod| format!("{:?} on {}", pod.key, pod.node));
            self.fail("I2 a pod that no plan wants stays", format!("{id} {pod:?}"));
        }
    }
}

/// Since when each of these has been so.
fn keep(since: &mut BTreeMap<String, i64>, now_so: &BTreeSet<String>, now: i64) {
    since.retain(|id, _| now_so.contains(id));
    for id in now_so {
        since.entry(id.clone()).or_insert(now);
    }
}

/// Whether an object was made by the storm to do harm.
pub fn hostile(object: &Value) -> bool {
    !object["metadata"]["annotations"][HOSTILE].is_null()
}
