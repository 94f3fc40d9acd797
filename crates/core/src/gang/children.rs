//! What a plan needs beside its pods: Services by which ranks are found, and a hostfile.
//!
//! ```text
//!   plan ──wanted──▶ Child + the mark by which it is known ──▶ seen so, or done and not seen since? then pods may come
//! ```
//!
//! A Service's selector follows the plan, so it is brought up to date; a hostfile is immutable and named by the plan's
//! generation: each pod mounts its own plan's, and no kubelet's cache matters.

use muster_api::plan_codec::Chunk;
use muster_api::{gang_plan, labels, names};
use muster_lifecycle::gang::Stage;
use muster_model::{ObjectKey, UnitId};
use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::rt::{ChildSeen, GangRt};
use crate::launch::Launcher;
use crate::manifest::owner;
use crate::shared::Shared;
use crate::want::{Child, Facet, Kind, Target, Want};

/// An object that the plan needs.
struct Wanted {
    kind: Kind,
    name: String,
    /// Tells one content from another.
    mark: String,
    /// All of the object but its metadata.
    content: Value,
    /// The part that follows the plan; `None` where it never changes.
    follows: Option<&'static str>,
}

/// Whether the Services and the hostfile of the plan are in place; asks for those that are not.
pub fn met(shared: &mut Shared, rt: &GangRt) -> bool {
    let mut met = true;
    for wanted in wanted(rt) {
        let key = ObjectKey::new(rt.key.namespace.clone(), wanted.name.clone());
        let target = Target { kind: wanted.kind, facet: Facet::Object, key: key.clone() };
        let seen = rt.children.get(&(wanted.kind, wanted.name.clone()));
        // A hostfile never changes: one of the name is the plan's.
        let current = |seen: &ChildSeen| wanted.follows.is_none() || seen.mark.as_ref() == Some(&wanted.mark);
        if seen.is_some_and(|seen| seen.owned && current(seen)) {
            continue;
        }
        let child = child(rt, &wanted, key, seen);
        let same = |done: &Want| matches!(done, Want::Apply(done) if done.body == child.body);
        if shared.desk.done(&target).is_some_and(same) {
            // The watch is late.
            continue;
        }
        met = false;
        shared.desk.want(Want::Apply(Box::new(child)));
    }
    met
}

fn child(rt: &GangRt, wanted: &Wanted, key: ObjectKey, seen: Option<&ChildSeen>) -> Child {
    let mut body = json!({
        "apiVersion": "v1",
        "kind": wanted.kind.name(),
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {
                labels::GANG: rt.key.name,
                labels::GANG_UID: rt.uid,
                labels::GENERATION: wanted.mark,
                labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
            },
            "ownerReferences": [owner(&rt.object)],
        },
    });
    if let (Some(body), Value::Object(content)) = (body.as_object_mut(), wanted.content.clone()) {
        body.extend(content);
    }
    let mark = format!("/metadata/labels/{}", labels::GENERATION.replace('/', "~1"));
    let mut patch = vec![json!({ "op": "add", "path": mark, "value": wanted.mark })];
    if let Some(pointer) = wanted.follows {
        let value = wanted.content.pointer(pointer).cloned().unwrap_or_default();
        patch.push(json!({ "op": "replace", "path": pointer, "value": value }));
    }
    Child {
        kind: wanted.kind,
        key,
        owner: rt.uid.clone(),
        base: seen.filter(|seen| seen.owned).map(|seen| seen.base.clone()),
        body,
        patch: Value::Array(patch),
    }
}

/// The objects that the plan needs.
fn wanted(rt: &GangRt) -> Vec<Wanted> {
    let Some(plan) = rt.life.plan() else { return Vec::new() };
    let launch = Launcher::of(&rt.object, rt.object.spec.roles.first());
    let mut all = Vec::new();
    // The Service of rank 0 selects the current incarnation: the name never changes and never leads to an old pod.
    let first = rt.object.spec.roles.first().map(|role| UnitId { role: role.name.clone(), index: 0 });
    if let Some(first) = first.filter(|_| launch.names.rank0_service)
        && let Some(unit) = plan.unit(&first)
    {
        let selector = json!({
            labels::GANG_UID: rt.uid,
            labels::ROLE: first.role,
            labels::UNIT: "0",
            labels::INDEX: "0",
            labels::INCARNATION: unit.incarnation.to_string(),
        });
        let ports = json!([{ "name": "rendezvous", "port": rt.object.spec.launch.port, "protocol": "TCP" }]);
        all.push(Wanted {
            kind: Kind::Service,
            name: names::rank0_service(&rt.key.name, &rt.uid),
            mark: unit.incarnation.to_string(),
            content: json!({ "spec": {
                "clusterIP": "None",
                // Ranks meet before any of them is ready.
                "publishNotReadyAddresses": true,
                "selector": selector,
                "ports": ports,
            }}),
            follows: Some("/spec/selector"),
        });
    }
    if launch.names.every_rank {
        all.push(Wanted {
            kind: Kind::Service,
            name: names::hosts_service(&rt.key.name, &rt.uid),
            mark: "1".into(),
            content: json!({ "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": { labels::GANG_UID: rt.uid },
            }}),
            follows: None,
        });
    }
    if launch.names.hostfile {
        let hostfile = launch.hostfile(plan, |slot| rt.pod_name(slot));
        all.push(Wanted {
            kind: Kind::ConfigMap,
            name: names::hostfile(&rt.key.name, &rt.uid, plan.generation),
            mark: plan.generation.to_string(),
            content: json!({ "immutable": true, "data": { "hostfile": hostfile } }),
            follows: None,
        });
    }
    all
}

/// Services that were changed or deleted by others are made right while the gang runs; what belongs to plans that are over
/// is deleted.
pub fn keep(shared: &mut Shared, rt: &GangRt) {
    met(shared, rt);
    keep_parts(shared, rt);
    clear(shared, rt);
}

/// Parts of the plan in force that somebody deleted are made again: without them the next leader could not read it.
fn keep_parts(shared: &mut Shared, rt: &GangRt) {
    if rt.writing.is_some() {
        return;
    }
    for part in rt.status.plan.iter().flat_map(|plan| &plan.chunks) {
        if rt.children.contains_key(&(Kind::Part, part.name.clone())) {
            continue;
        }
        let Some(text) = shared.parts.get(&part.name) else { continue };
        let chunk = Chunk { name: part.name.clone(), text: text.clone() };
        shared.desk.want(Want::Apply(Box::new(Child {
            kind: Kind::Part,
            key: ObjectKey::new(rt.key.namespace.clone(), chunk.name.clone()),
            owner: rt.uid.clone(),
            base: None,
            body: gang_plan::object(&rt.object, &chunk),
            patch: Value::Array(Vec::new()),
        })));
    }
}

/// Deletes hostfiles that no pod of the plan in force mounts, and parts of plans that the status does not name.
pub fn clear(shared: &mut Shared, rt: &GangRt) {
    if rt.children.is_empty() || rt.writing.is_some() {
        return;
    }
    let mut needed: BTreeSet<String> = match rt.life.stage() {
        Stage::Waiting(_) => BTreeSet::new(),
        _ => wanted(rt).into_iter().map(|wanted| wanted.name).collect(),
    };
    let parts = rt.status.plan.iter().flat_map(|plan| &plan.chunks);
    needed.extend(parts.map(|part| part.name.clone()));
    let over = rt.children.iter().filter(|((kind, name), seen)| {
        let ours = *kind == Kind::Part || (*kind == Kind::ConfigMap && seen.mark.is_some());
        ours && seen.owned && !needed.contains(name)
    });
    for ((kind, name), seen) in over {
        let key = ObjectKey::new(rt.key.namespace.clone(), name.clone());
        shared.desk.want(Want::Delete { kind: *kind, key, uid: seen.base.uid.clone() });
    }
}
