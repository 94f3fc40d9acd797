//! Workloads: what users write, each with one or several gangs.
//!
//! ```text
//!   TrainingJob ─▶ Workload ──children──▶ gangs that should be ─▶ compared with those seen ─▶ desk
//!                      ▲──────reflect────── gangs as they are ─▶ its status ─▶ desk
//! ```
//!
//! A gang belongs to the workload whose UID controls it, whatever its name; one that is somebody else's is never touched.

mod training;

use muster_api::labels;
use muster_api::{Gang, GangSpec, RoleSpec};
use muster_model::{Millis, ObjectKey, Uid};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::derive::Problem;
use crate::desk::Ticket;
use crate::gang::{self, GangRt};
use crate::shared::Shared;
use crate::want::{Base, Child, Facet, Kind, Outcome, Target, Want};
use crate::{Core, World};

pub use training::Training;

/// A gang that a workload should have.
#[derive(Clone, Debug, PartialEq)]
pub struct GangWant {
    /// Its name.
    pub name: String,
    /// Its specification.
    pub spec: GangSpec,
    /// What it was derived from: kept on the gang, so that the next leader derives the same.
    pub derived: String,
}

/// What stands in the way of a workload's gang, beside its own specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacle {
    /// One CamelCase word.
    pub reason: &'static str,
    /// What it is, and what to do.
    pub message: String,
}

/// Something that users write and that has gangs.
pub trait Workload: Debug + Send {
    /// Its kind.
    fn kind(&self) -> Kind;
    /// Namespace and name.
    fn key(&self) -> &ObjectKey;
    /// UID.
    fn uid(&self) -> &Uid;
    /// Whether it is being deleted.
    fn leaving(&self) -> bool;
    /// Whether its gangs are to stay when it goes (`--cascade=orphan`).
    fn orphans(&self) -> bool;
    /// Whether nothing more will happen to it.
    fn is_final(&self) -> bool;
    /// The gangs that it should have, given those it has, and what is wrong with its specification, given the other
    /// objects.
    fn children(&self, world: &World, have: &[&GangRt]) -> (Vec<GangWant>, Vec<Problem>);
    /// Why a gang that it should have cannot be made; `None` when it can.
    fn obstruct(&mut self, obstacle: Option<Obstacle>);
    /// Why a gang that it should have cannot be made.
    fn obstacle(&self) -> Option<&Obstacle>;
    /// Brings its status up to date.
    fn reflect(&mut self, shared: &mut Shared, have: &[&GangRt], problems: &[Problem]);
    /// When it has ended: what is left to do.
    fn after_end(&mut self, shared: &mut Shared, have: &[&GangRt]);
    /// Its status was written, or not. Returns when to look at it again.
    fn written(&mut self, outcome: &Outcome, now: Millis) -> Option<Millis>;
    /// Takes in the object as it is now.
    fn see(&mut self, object: Object);
}

/// An object that is a workload.
#[derive(Debug)]
pub enum Object {
    /// A TrainingJob.
    Training(Box<muster_api::TrainingJob>),
}

/// Looks at a workload and does what follows.
pub fn settle(shared: &mut Shared, gangs: &BTreeMap<ObjectKey, GangRt>, workload: &mut dyn Workload) {
    let have = gangs_of(shared, gangs, workload);
    if workload.leaving() {
        if workload.orphans() {
            return;
        }
        // Waiting for the garbage collector would take longer.
        for gang in have {
            gang::delete(shared, gang);
        }
        return;
    }
    if workload.is_final() {
        workload.after_end(shared, &have);
        return;
    }
    let (wanted, problems) = workload.children(&shared.world, &have);
    want_gangs(shared, gangs, workload, &have, wanted);
    workload.reflect(shared, &have, &problems);
}

/// The gangs of a workload: those of its namespace that its UID controls. One of another namespace names a stranger's UID.
fn gangs_of<'a>(
    shared: &Shared,
    gangs: &'a BTreeMap<ObjectKey, GangRt>,
    workload: &dyn Workload,
) -> Vec<&'a GangRt> {
    let all = shared.children.get(workload.uid()).into_iter().flatten();
    all.filter(|key| key.namespace == workload.key().namespace).filter_map(|key| gangs.get(key)).collect()
}

/// Asks for the gangs that are not as they should be.
fn want_gangs(
    shared: &mut Shared,
    gangs: &BTreeMap<ObjectKey, GangRt>,
    workload: &mut dyn Workload,
    have: &[&GangRt],
    wanted: Vec<GangWant>,
) {
    let mut obstacle = None;
    for want in wanted {
        let key = ObjectKey::new(workload.key().namespace.clone(), want.name.clone());
        let target = Target { kind: Kind::Gang, facet: Facet::Object, key: key.clone() };
        let seen = gangs.get(&key);
        let own = have.iter().find(|gang| gang.key == key).copied();
        if let Some((_, error)) = shared.unreadable.get(&(Kind::Gang, key.clone())) {
            let message =
                format!("this version of the operator cannot read its Gang ({error}); it is left as it is");
            obstacle = Some(Obstacle { reason: "GangUnreadable", message });
            shared.desk.cancel(&target);
            continue;
        }
        if let Some(theirs) = seen.filter(|_| own.is_none()) {
            shared.desk.cancel(&target);
            obstacle = Some(in_the_way(shared, theirs));
            continue;
        }
        if own.is_some_and(|gang| gang.life.leaving()) {
            shared.desk.cancel(&target);
            obstacle = own.map(|gang| in_the_way(shared, gang));
            continue;
        }
        if own.is_some_and(|gang| gang.object.spec == want.spec && derived_of(&gang.object) == want.derived) {
            // As it should be: an older want that is still to be sent must not undo that.
            shared.desk.cancel(&target);
            continue;
        }
        if let Some(at) = paced(shared, workload.uid(), own, &target) {
            shared.wake_workload(workload.uid(), at);
            continue;
        }
        if own.is_some_and(|gang| gang.object.spec.suspend && waits_for_plan(gang, &want.spec)) {
            // It gives its plan back; then it is looked at again.
            shared.desk.cancel(&target);
            continue;
        }
        let child = child(workload, key, own, &want);
        shared.desk.want(Want::Apply(Box::new(child)));
        // While the server refuses it, its sentence stands.
        obstacle = obstacle.or_else(|| workload.obstacle().cloned().filter(|known| known.reason == REFUSED));
    }
    workload.obstruct(obstacle);
}

/// So long a gang must have been there for the next to be made at once.
const LASTING: Millis = 60_000;

/// When a gang may be made again that was made before and went at once: the garbage collector takes those of a workload
/// whose end we have not heard of yet.
fn paced(shared: &mut Shared, workload: &Uid, own: Option<&GangRt>, target: &Target) -> Option<Millis> {
    let now = shared.now.at;
    if let Some(gang) = own {
        if gang.seen_at + LASTING <= now {
            shared.makes.remove(workload);
        }
        return None;
    }
    if shared.desk.busy(target) {
        return None;
    }
    let pause = shared.makes.entry(workload.clone()).or_default();
    if pause.until > now {
        return Some(pause.until);
    }
    pause.fail(now);
    None
}

/// Reason of a gang that the API server will not have.
pub const REFUSED: &str = "GangRefused";

/// A gang of the wanted name that is not the workload's, or not any more.
fn in_the_way(shared: &Shared, gang: &GangRt) -> Obstacle {
    if !gang.life.leaving() {
        let whose = match &gang.object.metadata.owner_references {
            Some(owners) if !owners.is_empty() => {
                format!("belongs to {} {:?}", owners[0].kind, owners[0].name)
            }
            _ => "belongs to nobody".to_owned(),
        };
        return taken(&gang.key, &whose);
    }
    let mut pods = shared.cluster.pods_of(&gang.uid);
    let message = match pods.next() {
        Some(pod) => {
            let more = pods.count();
            let node = pod.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
            let others = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!(
                "waits until the pods of an earlier Gang of this name are gone: pod {}{node}{others} is Terminating; if \
                 the node is dead, delete the Node or taint it node.kubernetes.io/out-of-service",
                pod.key.name
            )
        }
        None => "waits until an earlier Gang of this name is gone".to_owned(),
    };
    Obstacle { reason: "EarlierGangLeaving", message }
}

/// A gang of the wanted name exists, and whose it is.
fn taken(gang: &ObjectKey, whose: &str) -> Obstacle {
    let name = &gang.name;
    let message =
        format!("a Gang named {name:?} exists and {whose}; delete it, or give this object another name");
    Obstacle { reason: "NameTaken", message }
}

fn derived_of(gang: &Gang) -> String {
    let annotations = gang.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(labels::DERIVED)).cloned().unwrap_or_default()
}

fn child(workload: &dyn Workload, key: ObjectKey, own: Option<&GangRt>, want: &GangWant) -> Child {
    let owner = workload.key();
    let body = json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Gang",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": { labels::JOB: owner.name, labels::MANAGED_BY: labels::MANAGED_BY_VALUE },
            "annotations": { labels::DERIVED: want.derived },
            "finalizers": [labels::PODS_FINALIZER],
            "ownerReferences": [{
                "apiVersion": "muster.dev/v1alpha1",
                "kind": workload.kind().name(),
                "name": owner.name,
                "uid": workload.uid(),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": want.spec,
    });
    let annotated = own.is_some_and(|gang| gang.object.metadata.annotations.is_some());
    let note = if annotated {
        let path = format!("/metadata/annotations/{}", labels::DERIVED.replace('/', "~1"));
        json!({ "op": "add", "path": path, "value": want.derived })
    } else {
        json!({ "op": "add", "path": "/metadata/annotations", "value": { labels::DERIVED: want.derived } })
    };
    let patch = match own {
        Some(gang) if waits_for_plan(gang, &want.spec) => {
            json!([{ "op": "add", "path": "/spec/suspend", "value": true }])
        }
        _ => json!([note, { "op": "replace", "path": "/spec", "value": want.spec }]),
    };
    Child {
        kind: Kind::Gang,
        key,
        owner: workload.uid().clone(),
        base: own.map(|gang| Base { uid: gang.uid.clone(), version: gang.version.clone() }),
        body,
        patch,
    }
}

/// Whether a specification changes what the plan in force stands on: first the gang gives that back.
fn waits_for_plan(gang: &GangRt, spec: &GangSpec) -> bool {
    gang.status.plan.is_some() && !alive(gang, spec)
}

/// Whether a specification differs only in what may change while a plan is in force.
fn alive(gang: &GangRt, spec: &GangSpec) -> bool {
    let old = &gang.object.spec;
    let role = |role: &RoleSpec| (role.name.clone(), role.container.clone());
    let roles = |spec: &GangSpec| spec.roles.iter().map(role).collect::<Vec<_>>();
    (&old.queue, &old.classes, &old.within, &old.rules, &old.outcome)
        == (&spec.queue, &spec.classes, &spec.within, &spec.rules, &spec.outcome)
        && (old.launch.framework, old.launch.port) == (spec.launch.framework, spec.launch.port)
        && roles(old) == roles(spec)
        && gang::are_kept(&gang.revisions_in_use(), old, spec)
}

impl Core {
    pub(crate) fn set_job(&mut self, object: muster_api::TrainingJob) {
        let (key, uid) = (crate::key_of(&object.metadata), crate::uid_of(&object.metadata));
        let shared = &mut self.shared;
        shared.desk.seen(&Target { kind: Kind::Job, facet: Facet::End, key: key.clone() });
        if let Some(workload) = self.workloads.get_mut(&uid) {
            workload.see(Object::Training(Box::new(object)));
        } else {
            let old = shared.workloads.insert((Kind::Job, key), uid.clone());
            if let Some(old) = old.filter(|old| *old != uid) {
                self.workloads.remove(&old);
                shared.dirty_workloads.remove(&old);
            }
            self.workloads.insert(uid.clone(), Box::new(Training::new(object)));
        }
        self.shared.dirty_workloads.insert(uid);
    }

    pub(crate) fn remove_workload(&mut self, kind: Kind, key: &ObjectKey, uid: &Uid) {
        let shared = &mut self.shared;
        let workload = self.workloads.remove(uid);
        shared.makes.remove(uid);
        let name = (kind, key.clone());
        if shared.workloads.get(&name) == Some(uid) {
            shared.workloads.remove(&name);
        }
        for facet in [Facet::Status, Facet::End] {
            shared.desk.forget(&Target { kind, facet, key: key.clone() });
        }
        if let Some(workload) = workload.filter(|workload| !workload.orphans()) {
            for gang in gangs_of(shared, &self.gangs, &*workload) {
                gang::delete(shared, gang);
            }
        }
        // What was still to be made for it is made for nobody.
        shared.desk.cancel_owned(Kind::Gang, uid);
    }

    /// Workloads that want a gang of this name look again.
    pub(crate) fn touch_namesakes(&mut self, gang: &ObjectKey) {
        let namesake = self.shared.workloads.get(&(Kind::Job, gang.clone())).cloned();
        self.shared.dirty_workloads.extend(namesake);
    }

    /// What came of a gang that a workload should have.
    pub(crate) fn gang_applied(&mut self, ticket: &Ticket, owner: &Uid, outcome: Outcome) {
        let shared = &mut self.shared;
        let Some(workload) = self.workloads.get_mut(owner) else {
            shared.desk.forget(&ticket.want.target());
            return;
        };
        let now = shared.now.at;
        match outcome {
            Outcome::Done { .. } => {
                shared.desk.succeed(ticket, true);
                workload.obstruct(None);
            }
            Outcome::Refused(message) => {
                tracing::warn!(workload = %workload.key(), %message, "its Gang is refused");
                let again = "it is tried again with growing delays";
                let message = format!("the API server refuses its Gang: {message}; mend that, {again}");
                workload.obstruct(Some(Obstacle { reason: REFUSED, message }));
                shared.desk.again_after(ticket, now, 5_000, 300_000);
            }
            Outcome::Foreign(whose) => {
                workload.obstruct(Some(taken(&ticket.want.target().key, &whose)));
                let at = shared.desk.pause(ticket, now);
                shared.wake_workload(owner, at);
            }
            // It changed or went meanwhile; the watch shows how it is.
            _ => {
                let at = shared.desk.pause(ticket, now);
                shared.wake_workload(owner, at);
            }
        }
        shared.dirty_workloads.insert(owner.clone());
    }

    /// What came of a workload's status.
    pub(crate) fn workload_written(&mut self, ticket: &Ticket, outcome: &Outcome) {
        let shared = &mut self.shared;
        let Target { kind, key, .. } = ticket.want.target();
        let workload = shared.workloads.get(&(kind, key)).and_then(|uid| self.workloads.get_mut(uid));
        let Some(workload) = workload else {
            shared.desk.forget(&ticket.want.target());
            return;
        };
        let uid = workload.uid().clone();
        match workload.written(outcome, shared.now.at) {
            None => shared.desk.succeed(ticket, false),
            Some(at) => {
                let at = at.max(shared.desk.pause(ticket, shared.now.at));
                shared.wake_workload(&uid, at);
            }
        }
        shared.dirty_workloads.insert(uid);
    }
}
