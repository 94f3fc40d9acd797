//! What the API server is asked about a gang's pods before it is placed.

use muster_api::RoleSpec;
use muster_model::{Millis, ObjectKey, Reason, Slot, UnitId};
use sha2::{Digest, Sha256};

use super::rt::GangRt;
use crate::manifest::{Blueprint, Stamp};
use crate::shared::Shared;
use crate::want::{Claims, Want};

/// How long it is believed where volumes are.
const CLAIMS_KEPT: Millis = 30_000;

impl GangRt {
    /// What stands for what the API server is asked about a role's pods.
    pub fn shape_of(&self, role: &RoleSpec) -> String {
        self.shapes.get(&role.name).cloned().unwrap_or_else(|| self.compute_shape(role))
    }

    /// As [`Self::shape_of`], from the template.
    pub fn compute_shape(&self, role: &RoleSpec) -> String {
        let class = self.unfitted.as_ref().ok().and_then(|request| request.classes.first());
        let text = serde_json::json!([
            self.key.namespace,
            role.template.without(&["args", "command", "env", "workingDir"]),
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

/// Whether the API server was asked about every role's pods; asks if not.
pub fn all_known(shared: &mut Shared, rt: &mut GangRt) -> bool {
    ask_where(shared, rt, |known| known.is_none())
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
        if !wanted(shared.shapes.used(&name, &rt.key.namespace)) {
            continue;
        }
        all_known = false;
        shared.shapes.ask(&name, &rt.key);
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
