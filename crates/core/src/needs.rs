//! What a plan needs beside its pods (Services, a hostfile), and what must be known before there is a plan (what the
//! API server makes of the pods).

use muster_api::{RoleSpec, labels, names};
use muster_cluster::Slot;
use muster_cluster::template::Learned;
use muster_model::{Millis, ObjectKey, UnitId};
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::gang::{Needed, Told};
use super::outbox::Ticket;
use super::{Core, Shape, Wake};
use crate::effect::{Claims, Effect, Outcome, Owned, OwnedKind};
use crate::manifest::{Blueprint, Stamp, owner};

/// How long it is believed where volumes are.
const CLAIMS_KEPT: Millis = 30_000;
/// Most pod shapes that are remembered.
const MOST_SHAPES: usize = 4096;

impl Core {
    /// Whether the Services and ConfigMaps of the plan are in place; asks for those that are not.
    pub(super) fn needs_met(&mut self, key: &ObjectKey) -> bool {
        let wanted = self.wanted_objects(key);
        let Some(rt) = self.gangs.get_mut(key) else { return false };
        let mut met = true;
        for (version, object) in wanted {
            let needed = rt.needed.entry(object.key.name.clone()).or_default();
            if needed.ready == version {
                continue;
            }
            met = false;
            if needed.asked != version {
                needed.asked = version;
                let exists = needed.exists;
                self.out.push(Effect::Ensure { object, exists });
            }
        }
        met
    }

    /// The objects that the plan needs, each with a number that changes when its content does.
    fn wanted_objects(&self, key: &ObjectKey) -> Vec<(u64, Owned)> {
        let Some((rt, plan)) = self.gangs.get(key).and_then(|rt| Some((rt, rt.plan.as_ref()?))) else {
            return Vec::new();
        };
        let launch = rt.launcher();
        let uid = rt.uid();
        let mut wanted = Vec::new();
        let meta = |name: &str| {
            json!({
                "name": name,
                "namespace": key.namespace,
                "labels": {
                    labels::GANG: key.name,
                    labels::GANG_UID: uid,
                    labels::MANAGED_BY: labels::MANAGED_BY_VALUE,
                },
                "ownerReferences": [owner(&rt.object)],
            })
        };
        let mut add = |version: u64, kind: OwnedKind, name: String, api: &str, rest: Value| {
            let kind_name = if kind == OwnedKind::Service { "Service" } else { "ConfigMap" };
            let mut body = json!({ "apiVersion": api, "kind": kind_name, "metadata": meta(&name) });
            if let (Some(body), Value::Object(rest)) = (body.as_object_mut(), rest) {
                body.extend(rest);
            }
            let object =
                Owned { kind, key: ObjectKey::new(key.namespace.clone(), name), waiter: key.clone(), body };
            wanted.push((version, object));
        };
        // The Service of rank 0 selects the current incarnation: the name never changes and never leads to an old pod.
        let first = rt.object.spec.roles.first().map(|role| UnitId { role: role.name.clone(), index: 0 });
        if let Some(first) = first.filter(|_| launch.names.rank0_service)
            && let Some(unit) = plan.unit(&first)
        {
            let selector = json!({
                labels::GANG_UID: uid,
                labels::ROLE: first.role,
                labels::UNIT: "0",
                labels::INDEX: "0",
                labels::INCARNATION: unit.incarnation.to_string(),
            });
            let port = rt.object.spec.launch.port;
            let spec = json!({ "spec": {
                "clusterIP": "None",
                // Ranks meet before any of them is ready.
                "publishNotReadyAddresses": true,
                "selector": selector,
                "ports": [{ "name": "rendezvous", "port": port, "protocol": "TCP" }],
            }});
            add(unit.incarnation, OwnedKind::Service, names::rank0_service(&key.name, &uid), "v1", spec);
        }
        if launch.names.every_rank {
            let spec = json!({ "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": { labels::GANG_UID: uid },
            }});
            add(1, OwnedKind::Service, names::hosts_service(&key.name, &uid), "v1", spec);
        }
        if launch.names.hostfile {
            let data = json!({ "data": { "hostfile": launch.hostfile(plan, |slot| rt.pod_name(slot)) } });
            add(plan.generation, OwnedKind::ConfigMap, names::hostfile(&key.name, &uid), "v1", data);
        }
        wanted
    }

    pub(super) fn ensured(
        &mut self,
        waiter: &ObjectKey,
        name: &str,
        kind: OwnedKind,
        outcome: Outcome,
        ticket: Ticket,
        now: Millis,
    ) {
        if kind == OwnedKind::Gang {
            self.gang_ensured(waiter, outcome, ticket, now);
            return;
        }
        let Some(rt) = self.gangs.get_mut(waiter) else { return };
        let needed = rt.needed.entry(name.to_owned()).or_default();
        match outcome {
            Outcome::Done { .. } => {
                needed.ready = needed.asked;
                needed.exists = true;
            }
            Outcome::Refused(message) => {
                *needed = Needed::default();
                rt.failed_plan =
                    Some(muster_model::Reason::PodRefused { message: format!("{name}: {message}") });
            }
            // It was deleted under our hands: made anew.
            Outcome::Gone => *needed = Needed::default(),
            _ => {
                self.out.again(ticket, now);
                return;
            }
        }
        self.dirty_gangs.insert(waiter.clone());
    }

    /// Whether the API server was asked about every role's pods; asks if not, or if volumes may lie elsewhere by now.
    pub(super) fn shapes_known(&mut self, key: &ObjectKey, now: Millis) -> bool {
        let Some(rt) = self.gangs.get(key) else { return false };
        // One that waits in the engine was asked about when it began to.
        let begins = !rt.told.as_ref().is_some_and(Told::waits);
        self.ask_where(key, now, |shape| match shape {
            None | Some(Shape::Asked(_)) => true,
            Some(Shape::Known(_, claims, at)) => {
                begins && *claims != Claims::None && at.saturating_add(CLAIMS_KEPT) <= now
            }
        })
    }

    /// The gang runs: volumes that were bound for it are where its lost units must go.
    pub(super) fn look_for_volumes(&mut self, key: &ObjectKey, now: Millis) {
        self.ask_where(key, now, |shape| matches!(shape, Some(Shape::Known(_, Claims::Unbound, _))));
    }

    /// Asks the API server about the pods of those roles whose shape is `wanted`. Returns whether there is none.
    fn ask_where(&mut self, key: &ObjectKey, now: Millis, wanted: impl Fn(Option<&Shape>) -> bool) -> bool {
        let Some(rt) = self.gangs.get(key) else { return false };
        let probes: Vec<(u64, Result<Vec<u8>, String>)> = rt
            .object
            .spec
            .roles
            .iter()
            .filter(|role| wanted(self.shapes.get(&rt.shape_of(role))))
            .map(|role| (rt.shape_of(role), self.probe_body(key, role)))
            .collect();
        if probes.is_empty() {
            return true;
        }
        if self.shapes.len() > MOST_SHAPES {
            self.shapes.retain(|_, shape| matches!(shape, Shape::Asked(_)));
        }
        for (shape, body) in probes {
            match (body, self.shapes.get_mut(&shape)) {
                (_, Some(Shape::Asked(waiting))) => {
                    waiting.insert(key.clone());
                }
                (Ok(body), _) => {
                    self.shapes.insert(shape, Shape::Asked([key.clone()].into()));
                    let namespace = key.namespace.clone();
                    self.out.push(Effect::ProbePod { gang: key.clone(), shape, namespace, body });
                }
                (Err(message), _) => {
                    if let Some(rt) = self.gangs.get_mut(key) {
                        rt.request = Err(muster_model::Reason::Invalid {
                            field: "spec".into(),
                            message,
                            remedy: "mend the template".into(),
                        });
                        self.wakes.insert((now, Wake::Gang(key.clone())));
                    }
                    return false;
                }
            }
        }
        false
    }

    /// A pod of a role as it would be created, on no node.
    fn probe_body(&self, key: &ObjectKey, role: &RoleSpec) -> Result<Vec<u8>, String> {
        let rt = self.gangs.get(key).ok_or("the gang is gone")?;
        let class = rt.request.as_ref().ok().and_then(|request| request.classes.first());
        let slot = Slot { unit: UnitId { role: role.name.clone(), index: 0 }, incarnation: 0, index: 0 };
        let pod = ObjectKey::new(key.namespace.clone(), rt.pod_name(&slot));
        let stamp = Stamp {
            pod: &pod,
            slot: &slot,
            generation: 0,
            node: None,
            epoch: self.epoch,
            env: Vec::new(),
            decides: false,
            subdomain: None,
            hostfile: None,
        };
        Ok(Blueprint::new(&rt.object, role, class)?.stamp(&stamp))
    }

    /// Makes the gang's request anew if what it is made from has changed.
    pub(super) fn refresh_request(&mut self, key: &ObjectKey, _now: Millis) {
        let Some(rt) = self.gangs.get(key) else { return };
        if !rt.request_stale && rt.told.is_some() {
            return;
        }
        let shapes: BTreeMap<&str, u64> =
            rt.object.spec.roles.iter().map(|role| (role.name.as_str(), rt.shape_of(role))).collect();
        let learned = |role: &str| -> Option<Learned> {
            match self.shapes.get(shapes.get(role)?) {
                Some(Shape::Known(learned, ..)) => Some(Learned::clone(learned)),
                _ => None,
            }
        };
        let request = self.world.request(&rt.object, &learned, rt.since());
        if let Some(rt) = self.gangs.get_mut(key) {
            rt.request = request;
            rt.request_stale = false;
        }
    }
}
