//! From a gang and its plan to the JSON of each pod.
//!
//! ```text
//!   RoleSpec.template + class ──Blueprint::new (once per plan)──▶ common part ──stamp (each pod)──▶ body
//! ```

use k8s_openapi::api::core::v1::PodSpec;
use muster_api::{Gang, RoleSpec, labels};
use muster_cluster::{
    Slot,
    template::{self, devices},
};
use muster_lifecycle::launch;
use muster_model::{AcceleratorClass, NodeName, ObjectKey};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

use crate::launch::{HOSTFILE_DIR, framework};

/// How a pod comes to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMode {
    /// `spec.nodeName` at creation: one write.
    Direct,
    /// Node affinity on the node's name; kube-scheduler allocates claims and volumes and binds.
    Pinned,
}

/// The way of binding that a pod needs: kube-scheduler must see what it alone allocates.
pub fn bind_mode(spec: &PodSpec) -> BindMode {
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let volumes = spec.volumes.iter().flatten();
    // A claim's StorageClass may bind when the first consumer appears, which only kube-scheduler arranges.
    let bound_late = volumes
        .into_iter()
        .any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    if claims || bound_late { BindMode::Pinned } else { BindMode::Direct }
}

/// What is the same for all pods of a role under one plan.
#[derive(Clone, Debug)]
pub struct Blueprint {
    base: Value,
    mode: BindMode,
}

/// What distinguishes one pod.
#[derive(Clone, Debug)]
pub struct Stamp<'a> {
    /// Namespace and name.
    pub pod: &'a ObjectKey,
    /// Its place in the gang.
    pub slot: &'a Slot,
    /// Generation of the plan.
    pub generation: u64,
    /// Its node. `None` in a dry run.
    pub node: Option<&'a NodeName>,
    /// Epoch of our term.
    pub epoch: i64,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// Whether its exit decides the outcome.
    pub decides: bool,
    /// Headless Service under which it has a host name.
    pub subdomain: Option<&'a str>,
    /// ConfigMap with the hostfile, mounted into every container.
    pub hostfile: Option<&'a str>,
}

impl Blueprint {
    /// The common part of the pods of a role, with accelerators of `class`.
    ///
    /// # Errors
    /// The field of the template that does not fit, in words.
    pub fn new(gang: &Gang, role: &RoleSpec, class: Option<&AcceleratorClass>) -> Result<Self, String> {
        let typed = role.template.pod_spec().map_err(|error| error.to_string())?;
        let mode = bind_mode(&typed);
        // As it stands: what this version does not know of a pod, the API server may.
        let mut spec = role.template.raw_spec();
        spec["restartPolicy"] = json!("Never");
        if let (None, Some(grace)) =
            (typed.termination_grace_period_seconds, role.termination_grace_period_seconds)
        {
            spec["terminationGracePeriodSeconds"] = json!(grace);
        }
        if let Some(policy) = template::dns_policy(&typed) {
            spec["dnsPolicy"] = json!(policy);
        }
        let at = devices::container(&typed, role.container.as_deref());
        let decides = at.and_then(|at| typed.containers.get(at)).map(|container| container.name.clone());
        if typed.host_network == Some(true)
            && let Some(at) =
                at.filter(|_| gang.spec.roles.first().map(|role| &role.name) == Some(&role.name))
        {
            let ports = launch::ports(framework(gang.spec.launch.framework), gang.spec.launch.port);
            listen(&mut spec["containers"][at], &ports);
        }
        if let Some(class) = &gang.spec.priority_class_name {
            spec["priorityClassName"] = json!(class);
        }
        if let Some(class) = class.filter(|_| role.devices > 0) {
            give_devices(&mut spec, role, class)?;
        }
        let theirs = |texts: BTreeMap<String, String>| -> Map<String, Value> {
            let theirs = texts.into_iter().filter(|(key, _)| !key.starts_with(labels::OURS));
            theirs.map(|(key, value)| (key, json!(value))).collect()
        };
        let mut all = theirs(role.template.labels());
        let mut annotations = theirs(role.template.annotations());
        if let Some(name) = decides {
            annotations.insert(labels::CONTAINER.into(), json!(name));
        }
        let name = gang.metadata.name.clone().unwrap_or_default();
        let uid = gang.metadata.uid.clone().unwrap_or_default();
        let inherited = gang.metadata.labels.iter().flatten();
        for key in [labels::JOB, labels::SERVICE] {
            if let Some((_, value)) = inherited.clone().find(|(k, _)| *k == key) {
                all.insert(key.into(), json!(value));
            }
        }
        for (key, value) in [
            (labels::GANG, name.as_str()),
            (labels::GANG_UID, uid.as_str()),
            (labels::ROLE, role.name.as_str()),
            (labels::REVISION, role.revision.as_str()),
            (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        ] {
            all.insert(key.into(), json!(value));
        }
        let base = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": all,
                "annotations": annotations,
                "ownerReferences": [owner(gang)],
            },
            "spec": spec,
        });
        Ok(Self { base, mode })
    }

    /// How these pods come to their nodes.
    pub fn mode(&self) -> BindMode {
        self.mode
    }

    /// The JSON of one pod.
    pub fn stamp(&self, stamp: &Stamp<'_>) -> Vec<u8> {
        let mut pod = self.base.clone();
        let meta = &mut pod["metadata"];
        meta["name"] = json!(stamp.pod.name);
        meta["namespace"] = json!(stamp.pod.namespace);
        meta["labels"][labels::UNIT] = json!(stamp.slot.unit.index.to_string());
        meta["labels"][labels::INCARNATION] = json!(stamp.slot.incarnation.to_string());
        meta["labels"][labels::INDEX] = json!(stamp.slot.index.to_string());
        meta["labels"][labels::GENERATION] = json!(stamp.generation.to_string());
        meta["annotations"][labels::EPOCH] = json!(stamp.epoch.to_string());
        if stamp.decides {
            meta["finalizers"] = json!([labels::RESULT_FINALIZER]);
        }
        let spec = &mut pod["spec"];
        if let Some(subdomain) = stamp.subdomain {
            spec["hostname"] = json!(stamp.pod.name);
            spec["subdomain"] = json!(subdomain);
        }
        if let Some(config_map) = stamp.hostfile {
            mount_hostfile(spec, config_map);
        }
        add_env(spec, &stamp.env);
        match (stamp.node, self.mode) {
            (Some(node), BindMode::Direct) => spec["nodeName"] = json!(node.as_str()),
            (Some(node), BindMode::Pinned) => pin(spec, node),
            (None, _) => {}
        }
        pod.to_string().into_bytes()
    }
}

/// The owner reference of what a gang makes.
pub fn owner(gang: &Gang) -> Value {
    json!({
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "Gang",
        "name": gang.metadata.name,
        "uid": gang.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Gives the accelerators to the container that the role names, the first by default. A template may state the same
/// amount itself, but not another.
fn give_devices(spec: &mut Value, role: &RoleSpec, class: &AcceleratorClass) -> Result<(), String> {
    let containers = spec["containers"].as_array_mut().ok_or("template.spec.containers: is empty")?;
    let at = match &role.container {
        None => 0,
        Some(name) => containers.iter().position(|c| c["name"] == json!(name)).ok_or_else(|| {
            format!("accelerator.container: template.spec.containers has none named {name:?}; name one that exists")
        })?,
    };
    let container = containers.get_mut(at).ok_or("template.spec.containers: is empty")?;
    let wanted = role.devices.to_string();
    for list in ["requests", "limits"] {
        let given = container["resources"][list].get(&class.resource).cloned();
        let same = |given: &Value| *given == json!(wanted) || *given == json!(role.devices);
        if let Some(given) = given.filter(|given| !same(given)) {
            return Err(format!(
                "template.spec.containers[{at}].resources.{list}[{}]: is {given}, but each pod gets {wanted}; leave it \
                 out, or set accelerator.perPod to the same",
                class.resource
            ));
        }
        if !container["resources"].is_object() {
            container["resources"] = json!({});
        }
        if !container["resources"][list].is_object() {
            container["resources"][list] = json!({});
        }
        container["resources"][list][&class.resource] = json!(wanted);
    }
    Ok(())
}

/// States the ports on which a container of the node's network listens, so that kubelets and kube-scheduler count them.
fn listen(container: &mut Value, ports: &[u16]) {
    if !container["ports"].is_array() {
        container["ports"] = json!([]);
    }
    if let Some(stated) = container["ports"].as_array_mut() {
        for port in ports {
            let tcp = |one: &Value| one["protocol"].as_str().is_none_or(|protocol| protocol == "TCP");
            if !stated.iter().any(|one| one["containerPort"] == json!(port) && tcp(one)) {
                stated.push(json!({ "containerPort": port, "hostPort": port, "protocol": "TCP" }));
            }
        }
    }
}

/// Adds variables to every container, except those that the container sets itself.
fn add_env(spec: &mut Value, env: &[(String, String)]) {
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let own = container.get("env").and_then(Value::as_array).cloned().unwrap_or_default();
            let taken = |name: &str| own.iter().any(|variable| variable["name"] == json!(name));
            let mut all: Vec<Value> = env
                .iter()
                .filter(|(name, _)| !taken(name))
                .map(|(name, value)| json!({ "name": name, "value": value }))
                .collect();
            // Ours first, so that the container's own may refer to them.
            all.extend(own.iter().cloned());
            container["env"] = Value::Array(all);
        }
    }
}

fn mount_hostfile(spec: &mut Value, config_map: &str) {
    const VOLUME: &str = "muster-hosts";
    if !spec["volumes"].is_array() {
        spec["volumes"] = json!([]);
    }
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.push(json!({ "name": VOLUME, "configMap": { "name": config_map } }));
    }
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if !container["volumeMounts"].is_array() {
                container["volumeMounts"] = json!([]);
            }
            if let Some(mounts) = container["volumeMounts"].as_array_mut() {
                mounts.push(json!({ "name": VOLUME, "mountPath": HOSTFILE_DIR, "readOnly": true }));
            }
        }
    }
}

/// Adds the requirement `metadata.name = node` to the required node affinity, as DaemonSets do: to each of its
/// terms, since one of them must match.
fn pin(spec: &mut Value, node: &NodeName) {
    let requirement = json!({ "key": "metadata.name", "operator": "In", "values": [node.as_str()] });
    let path = "requiredDuringSchedulingIgnoredDuringExecution";
    for pointer in ["/affinity", "/affinity/nodeAffinity"] {
        let (parent, key) = pointer.rsplit_once('/').unwrap_or(("", "affinity"));
        if let Some(parent) = spec.pointer_mut(parent)
            && !parent[key].is_object()
        {
            parent[key] = json!({});
        }
    }
    let required = &mut spec["affinity"]["nodeAffinity"][path];
    let given = required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
    let given = if given.is_empty() { vec![json!({})] } else { given };
    let terms = given.into_iter().map(|mut term| {
        let mut fields = term["matchFields"].as_array().cloned().unwrap_or_default();
        fields.push(requirement.clone());
        term["matchFields"] = Value::Array(fields);
        term
    });
    let terms: Vec<Value> = terms.collect();
    *required = json!({ "nodeSelectorTerms": terms });
}
