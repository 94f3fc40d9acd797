//! What the API server makes of the pods of a role, learned by a dry run.
//!
//! ```text
//!   role of a waiting gang ──shape──▶ Shapes: known? asked? ──else──▶ dry run ──▶ Learned ──▶ the gang's request
//! ```
//!
//! A shape is what admission can depend on: two jobs that differ in arguments or environment alone have one. What is
//! known is forgotten when it may have changed (a LimitRange, a RuntimeClass, a kubelet's refusal) and when it is old.

use muster_api::RoleSpec;
use muster_cluster::template::Learned;
use muster_model::{Millis, ObjectKey, Reason, Slot, UnitId};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

use crate::gang::GangRt;
use crate::manifest::{Blueprint, Stamp};
use crate::shared::Shared;
use crate::want::{Claims, Facet, Kind, Outcome, Target, Want};

/// How long it is believed where volumes are.
const CLAIMS_KEPT: Millis = 30_000;
/// Most pod shapes that are remembered.
const MOST_SHAPES: usize = 4_096;
/// A gang whose pods the server will not have, or whose claim is not ready, is looked at again after so long.
const LOOK_AGAIN: Millis = 10_000;

/// One shape.
#[derive(Debug, Default)]
struct Shape {
    /// What came of the last dry run, how far volumes were known, and when.
    known: Option<(Box<Learned>, Claims, Millis)>,
    /// Gangs that wait for the dry run under way.
    asked: BTreeSet<ObjectKey>,
    /// Its namespace.
    namespace: String,
    /// When it was used last, in turns of use.
    used: u64,
}

/// All shapes.
#[derive(Debug, Default)]
pub struct Shapes {
    shapes: BTreeMap<String, Shape>,
    uses: u64,
}

impl Shapes {
    /// What is known of a shape.
    pub fn learned(&self, shape: &str) -> Option<Learned> {
        self.shapes.get(shape)?.known.as_ref().map(|(learned, ..)| Learned::clone(learned))
    }

    /// What admission does may have changed, in a namespace or (RuntimeClasses) everywhere.
    pub fn forget(&mut self, namespace: Option<&str>) {
        for shape in self.shapes.values_mut() {
            if namespace.is_none_or(|namespace| shape.namespace == namespace) {
                shape.known = None;
            }
        }
    }

    /// A kubelet refused a pod of this shape: it may be another by now.
    pub fn forget_shape(&mut self, shape: &str) {
        if let Some(shape) = self.shapes.get_mut(shape) {
            shape.known = None;
        }
    }

    fn touch(&mut self, shape: &str, namespace: &str) -> &mut Shape {
        self.uses += 1;
        if self.shapes.len() >= MOST_SHAPES && !self.shapes.contains_key(shape) {
            let idle = self.shapes.iter().filter(|(_, shape)| shape.asked.is_empty());
            if let Some(oldest) = idle.min_by_key(|(_, shape)| shape.used).map(|(name, _)| name.clone()) {
                self.shapes.remove(&oldest);
            }
        }
        let entry = self.shapes.entry(shape.to_owned()).or_default();
        entry.used = self.uses;
        namespace.clone_into(&mut entry.namespace);
        entry
    }
}

impl GangRt {
    /// What stands for what the API server is asked about a role's pods.
    pub fn shape_of(&self, role: &RoleSpec) -> String {
        self.shapes.get(&role.name).cloned().unwrap_or_else(|| self.compute_shape(role))
    }

    /// As [`Self::shape_of`], from the template.
    pub fn compute_shape(&self, role: &RoleSpec) -> String {
        let class = self.request.as_ref().ok().and_then(|request| request.classes.first());
        let mut template = serde_json::to_value(&role.template).unwrap_or_default();
        for list in ["containers", "initContainers"] {
            let containers = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                for field in ["args", "command", "env", "workingDir"] {
                    container.remove(field);
                }
            }
        }
        let text = serde_json::json!([
            self.key.namespace,
            template,
            role.devices,
            role.container,
            class.map(|class| &class.resource),
            self.object.spec.priority_class_name,
        ]);
        let digest = Sha256::digest(text.to_string().as_bytes());
        let half = digest.iter().take(16).fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte));
        format!("{half:032x}")
    }
}

/// Whether the API server was asked about every role's pods, no longer ago than `oldest`; asks if not, or if volumes may
/// lie elsewhere by now. `begins`: the gang begins to wait.
pub fn known(shared: &mut Shared, rt: &mut GangRt, begins: bool, oldest: Millis) -> bool {
    let now = shared.now.at;
    ask_where(shared, rt, |known| match known {
        None => true,
        Some((claims, at)) => {
            at <= oldest || (begins && claims != Claims::None && at.saturating_add(CLAIMS_KEPT) <= now)
        }
    })
}

/// The gang runs: volumes that were bound for it are where its lost units must go.
pub fn look_for_volumes(shared: &mut Shared, rt: &mut GangRt) {
    ask_where(shared, rt, |known| matches!(known, Some((Claims::Unbound, _))));
}

/// Asks the API server about the pods of those roles whose shape is `wanted`. Returns whether there is none.
fn ask_where(
    shared: &mut Shared,
    rt: &mut GangRt,
    wanted: impl Fn(Option<(Claims, Millis)>) -> bool,
) -> bool {
    let mut all_known = true;
    for at in 0..rt.object.spec.roles.len() {
        let role = &rt.object.spec.roles[at];
        let name = rt.shape_of(role);
        let shape = shared.shapes.touch(&name, &rt.key.namespace);
        if !wanted(shape.known.as_ref().map(|(_, claims, at)| (*claims, *at))) {
            continue;
        }
        all_known = false;
        shape.asked.insert(rt.key.clone());
        match probe_body(shared, rt, role) {
            Ok(body) => {
                let namespace = rt.key.namespace.clone();
                shared.desk.want(Want::Probe { namespace, shape: name, body });
            }
            Err(message) => {
                rt.request = Err(Reason::Invalid {
                    field: format!("spec.roles[{at}]"),
                    message,
                    remedy: "mend the template".into(),
                });
                shared.wake_gang(&rt.key, shared.now.at);
                return false;
            }
        }
    }
    all_known
}

/// A pod of a role as it would be created, on no node.
fn probe_body(shared: &Shared, rt: &GangRt, role: &RoleSpec) -> Result<Vec<u8>, String> {
    let class = rt.request.as_ref().ok().and_then(|request| request.classes.first());
    let slot = Slot { unit: UnitId { role: role.name.clone(), index: 0 }, incarnation: 0, index: 0 };
    let pod = ObjectKey::new(rt.key.namespace.clone(), rt.pod_name(&slot));
    let stamp = Stamp {
        pod: &pod,
        slot: &slot,
        generation: 0,
        node: None,
        epoch: shared.epoch,
        env: Vec::new(),
        decides: false,
        subdomain: None,
        hostfile: None,
    };
    Ok(Blueprint::new(&rt.object, role, class)?.stamp(&stamp))
}

impl crate::Core {
    /// What came of a dry run: for all who waited for it.
    pub(crate) fn probed(&mut self, ticket: &crate::Ticket, namespace: &str, shape: &str, outcome: Outcome) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        let Some(entry) = shared.shapes.shapes.get_mut(shape) else { return };
        let waiting = std::mem::take(&mut entry.asked);
        let trouble = match outcome {
            Outcome::Probed(probe) if probe.problem.is_none() => {
                entry.known = Some((Box::new(probe.learned), probe.claims, now));
                None
            }
            Outcome::Probed(probe) => probe.problem.map(|reason| (reason, false)),
            Outcome::Refused(message) => {
                let message = format!("the API server refuses its pods: {message}");
                Some((Reason::PodRefused { message }, true))
            }
            Outcome::Gone => {
                let message = format!("namespace {namespace:?} does not exist");
                Some((Reason::PodRefused { message }, false))
            }
            _ => {
                let at = shared.desk.pause(ticket, now);
                for key in &waiting {
                    shared.wake_gang(key, at);
                }
                return;
            }
        };
        let target = Target {
            kind: Kind::Pod,
            facet: Facet::Probe,
            key: ObjectKey::new(namespace.to_owned(), shape.to_owned()),
        };
        shared.desk.forget(&target);
        for key in waiting {
            let Some(rt) = self.gangs.get_mut(&key) else { continue };
            rt.request_stale = true;
            if trouble.is_none() && rt.life.holding().is_some() {
                // Its volumes were bound for it: from now on that is part of what its plan stands on.
                rt.rebase(shared);
            }
            match &trouble {
                Some((reason, true)) => crate::gang::fail(rt, now, reason.clone()),
                Some((reason, false)) => rt.life.hold(now + LOOK_AGAIN, reason.clone()),
                None => {}
            }
            shared.dirty_gangs.insert(key);
        }
    }
}
