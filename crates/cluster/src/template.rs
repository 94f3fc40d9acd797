//! What of a pod template decides about nodes: what the engine enforces, what is refused, what is only noted.
//!
//! ```text
//!   PodSpec ─┬─convert──▶ Learned: requests, selectors, tolerations, ports, preferences ──▶ model::Role (enforced)
//!   dry run ─┘            (as admission leaves them, where that is known)
//!   PodSpec ───review───▶ refused: Reason::Invalid by field, with the remedy
//!                         notes: what never blocks and how far it is heeded
//! ```
//!
//! kube-scheduler would enforce all of it. Muster names the nodes itself, so what it cannot enforce it must refuse: else
//! a pod would run where its template forbids. Pods with claims are left to kube-scheduler on the planned node, which
//! enforces volumes and claims there (see the operator's *pinned* way of binding).

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration, TopologySpreadConstraint, Volume,
};
use muster_api::{RoleSpec, template::FORBIDDEN};
use muster_model::{
    self as model, AcceleratorClass, PodTraits, Reason, Resources, Role, resources, selector::NAME_FIELD,
};
use std::{collections::BTreeMap, fmt};

use crate::{
    convert,
    volumes::{self, Found, Reach, Source},
};

/// Something that never blocks, and what is made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Path of the field.
    pub field: String,
    /// What is made of it.
    pub message: &'static str,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What a template asks beyond what is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Review {
    /// What cannot be enforced or makes no sense, each a [`Reason::Invalid`].
    pub refused: Vec<Reason>,
    /// What never blocks.
    pub notes: Vec<Note>,
}

impl Review {
    fn refuse(&mut self, field: String, message: impl Into<String>, remedy: &str) {
        self.refused.push(Reason::Invalid { field, message: message.into(), remedy: remedy.to_owned() });
    }

    fn note(&mut self, field: String, message: &'static str) {
        self.notes.push(Note { field, message });
    }
}

/// What of the templates of a Gang's roles never blocks.
pub fn notes_of(roles: &[RoleSpec]) -> impl Iterator<Item = Note> + '_ {
    roles.iter().enumerate().flat_map(|(at, role)| {
        let path = format!("spec.roles[{at}].template.spec");
        role.template.spec.iter().flat_map(move |spec| review(&path, spec).notes)
    })
}

/// A sentence that says a specification is sound, followed by what of its templates never blocks.
pub fn sound(sentence: &str, notes: impl IntoIterator<Item = Note>) -> String {
    notes.into_iter().fold(sentence.to_owned(), |said, note| format!("{said}; {note}"))
}

/// Name of a field, and whether it is set.
type Field<T> = (&'static str, fn(&T) -> bool);

/// The fields of [`FORBIDDEN`] that a template sets.
const SET: &[Field<PodSpec>] = &[
    ("nodeName", |spec| spec.node_name.is_some()),
    ("schedulerName", |spec| spec.scheduler_name.is_some()),
    ("schedulingGates", |spec| spec.scheduling_gates.is_some()),
    ("schedulingGroup", |spec| spec.scheduling_group.is_some()),
    ("hostname", |spec| spec.hostname.is_some()),
    ("subdomain", |spec| spec.subdomain.is_some()),
    ("ephemeralContainers", |spec| spec.ephemeral_containers.is_some()),
    ("activeDeadlineSeconds", |spec| spec.active_deadline_seconds.is_some()),
    ("priority", |spec| spec.priority.is_some()),
    ("priorityClassName", |spec| spec.priority_class_name.is_some()),
];

/// Volumes of which kube-scheduler counts or separates pods by what the template itself names.
const DISKS: &[Field<Volume>] = &[
    ("awsElasticBlockStore", |volume| volume.aws_elastic_block_store.is_some()),
    ("gcePersistentDisk", |volume| volume.gce_persistent_disk.is_some()),
    ("azureDisk", |volume| volume.azure_disk.is_some()),
    ("cinder", |volume| volume.cinder.is_some()),
    ("vsphereVolume", |volume| volume.vsphere_volume.is_some()),
    ("portworxVolume", |volume| volume.portworx_volume.is_some()),
    ("iscsi", |volume| volume.iscsi.is_some()),
    ("rbd", |volume| volume.rbd.is_some()),
];

const USE_RULES: &str =
    "use placement rules of the job instead (spec.placement, or segments, within and rules of a Gang)";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Reviews a template. `path` is where the pod's specification stands, such as `spec.template.spec`.
pub fn review(path: &str, spec: &PodSpec) -> Review {
    let mut review = Review::default();
    for (field, is_set) in SET {
        if is_set(spec) {
            let why = FORBIDDEN.iter().find(|(name, _)| name == field).map_or("", |(_, why)| why);
            review.refuse(format!("{path}.{field}"), "must not be set", why);
        }
    }
    node_affinity(&mut review, path, spec);
    pod_affinity(&mut review, path, spec);
    for (at, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        spread(&mut review, format!("{path}.topologySpreadConstraints[{at}]"), constraint);
    }
    for (at, toleration) in spec.tolerations.iter().flatten().enumerate() {
        tolerated(&mut review, &format!("{path}.tolerations[{at}]"), toleration);
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        disks(&mut review, &format!("{path}.volumes[{at}]"), volume);
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        review.note(
            format!("{path}.resourceClaims"),
            "kube-scheduler allocates them on the planned node; a node where it cannot is avoided for a while",
        );
    }
    if spec.preemption_policy.is_some() {
        review.note(format!("{path}.preemptionPolicy"), "Muster preempts nothing yet");
    }
    review
}

/// What of a pod decides about its node: of a template, or of what the API server makes of one of its pods, which has
/// besides what admission adds (overhead, selector and tolerations of a RuntimeClass, what webhooks write), and where its
/// volumes are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    /// What it requests, host ports and 1 of `pods` included.
    pub requests: Resources,
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Required node affinity.
    pub affinity: Vec<model::NodeSelectorTerm>,
    /// Tolerations.
    pub tolerations: Vec<model::Toleration>,
    /// Preferred node affinity.
    pub preferred: Vec<model::Preference>,
    /// Where its volumes can be used.
    pub volumes: Reach,
    /// A claim that only one pod at a time may use.
    pub exclusive: Option<String>,
}

impl Learned {
    /// Takes in what is known of a volume.
    pub fn add(&mut self, source: &Source, found: Found) {
        self.volumes.extend(found.reach);
        if let (Source::Claim(name), true) = (source, found.exclusive) {
            self.exclusive = Some(name.clone());
        }
    }

    /// Takes them from a pod's specification, volumes aside.
    ///
    /// # Errors
    /// The field and why it cannot be read.
    pub fn of(spec: &PodSpec) -> Result<Self, String> {
        Ok(Self {
            requests: convert::pod_requests(spec, &BTreeMap::new())?,
            node_selector: convert::node_selector(spec),
            affinity: convert::affinity(spec),
            tolerations: convert::tolerations(spec),
            preferred: convert::preferences(spec),
            volumes: Reach::new(),
            exclusive: None,
        })
    }
}

/// A role as the engine knows it. `path` is where it stands, such as `spec.roles[0]`. `learned` is what one of its pods
/// is once admission has had its say, where that is known.
///
/// # Errors
/// [`Reason::Invalid`]: the first of what [`review`] refuses, or a quantity that cannot be read.
pub fn role(
    path: &str,
    role: &RoleSpec,
    learned: Option<Learned>,
    classes: &[AcceleratorClass],
) -> Result<Role, Reason> {
    let spec = role.template.spec.clone().unwrap_or_default();
    if let Some(refused) = review(&format!("{path}.template.spec"), &spec).refused.into_iter().next() {
        return Err(refused);
    }
    let stated = Learned::of(&spec).map_err(|error| Reason::Invalid {
        field: format!("{path}.template.{error}"),
        message: "cannot be read".into(),
        remedy: "write a quantity such as 500m, 8 or 64Gi".into(),
    })?;
    let learned = learned.unwrap_or(stated);
    let fewest = u64::from(role.units.min.max(1)) * u64::from(role.pods_per_unit);
    if let Some(claim) = learned.exclusive.filter(|_| fewest > 1) {
        return Err(Reason::Invalid {
            field: format!("{path}.template.spec.volumes"),
            message: format!(
                "PersistentVolumeClaim {claim:?} is ReadWriteOncePod, and the role has {fewest} pods at least"
            ),
            remedy: "use a claim with access mode ReadWriteMany, or an ephemeral volume".into(),
        });
    }
    let Learned { mut requests, node_selector, affinity, tolerations, preferred, volumes, .. } = learned;
    requests.0.remove(resources::PODS);
    for class in classes {
        requests.0.remove(&class.resource);
    }
    let mut where_to = volumes;
    where_to.extend((!affinity.is_empty()).then_some(affinity));
    let affinity = volumes::all_of(&where_to).map_err(|terms| Reason::Invalid {
        field: format!("{path}.template.spec.volumes"),
        message: format!("the places of its volumes and its node affinity multiply to {terms} terms"),
        remedy: "use volumes with simpler node affinity".into(),
    })?;
    let labels = role.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
    Ok(Role {
        name: role.name.clone(),
        requests,
        devices: role.devices,
        node_selector,
        affinity,
        tolerations,
        traits: PodTraits { labels: labels.unwrap_or_default(), preferred },
        pods_per_unit: role.pods_per_unit,
        min: role.units.min,
        max: role.units.max,
        valid: role.units.valid.clone(),
        segments: role.segments.clone(),
        spares: role.spares,
    })
}

fn node_affinity(review: &mut Review, path: &str, spec: &PodSpec) {
    let Some(affinity) = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref()) else { return };
    let path = format!("{path}.affinity.nodeAffinity");
    if let Some(required) = &affinity.required_during_scheduling_ignored_during_execution {
        let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
        if required.node_selector_terms.is_empty() {
            review.refuse(
                path.clone(),
                "no term, so no node matches",
                "list a term, or leave the affinity out",
            );
        }
        for (at, term) in required.node_selector_terms.iter().enumerate() {
            selector_term(review, &format!("{path}[{at}]"), term);
        }
    }
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    for (at, wish) in preferred.enumerate() {
        let field = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{at}]");
        selector_term(review, &format!("{field}.preference"), &wish.preference);
        review.note(field, "decides between nodes and domains that are equally compact");
    }
}

fn selector_term(review: &mut Review, path: &str, term: &NodeSelectorTerm) {
    let mut wrong = |field: String, problem: Option<&'static str>| {
        if let Some(problem) = problem {
            review.refuse(field, problem, "mend the requirement; the API server would refuse the pods");
        }
    };
    for (at, requirement) in term.match_expressions.iter().flatten().enumerate() {
        wrong(format!("{path}.matchExpressions[{at}]"), of_label(requirement));
    }
    for (at, requirement) in term.match_fields.iter().flatten().enumerate() {
        wrong(format!("{path}.matchFields[{at}]"), of_field(requirement));
    }
}

/// What is wrong with a requirement on a label.
fn of_label(requirement: &NodeSelectorRequirement) -> Option<&'static str> {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" => values.is_empty().then_some("In and NotIn need values"),
        "Exists" | "DoesNotExist" => (!values.is_empty()).then_some("Exists and DoesNotExist take no values"),
        "Gt" | "Lt" => {
            let number = |value: &String| value.parse::<i64>().is_ok();
            (values.len() != 1 || !values.iter().all(number)).then_some("Gt and Lt take one integer")
        }
        _ => Some("the operator is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
    }
}

/// What is wrong with a requirement on a field.
fn of_field(requirement: &NodeSelectorRequirement) -> Option<&'static str> {
    if requirement.key != NAME_FIELD {
        Some("the only field of a node that can be matched is metadata.name")
    } else if !matches!(requirement.operator.as_str(), "In" | "NotIn") {
        Some("fields can be matched by In and NotIn only")
    } else if requirement.values.as_ref().is_none_or(|values| values.len() != 1) {
        Some("a field is matched with exactly one value")
    } else {
        None
    }
}

fn pod_affinity(review: &mut Review, path: &str, spec: &PodSpec) {
    let Some(affinity) = spec.affinity.as_ref() else { return };
    let near = affinity.pod_affinity.as_ref();
    let far = affinity.pod_anti_affinity.as_ref();
    let required = [
        (
            "podAffinity",
            near.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
            USE_RULES,
        ),
        (
            "podAntiAffinity",
            far.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()),
            "leave it out: to have a node alone, ask for all of its accelerators, or give the pods a hostPort",
        ),
    ];
    for (kind, terms, remedy) in required {
        if terms.is_some_and(|terms| !terms.is_empty()) {
            review.refuse(
                format!("{path}.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"),
                "not supported: Muster places the gang as a whole and does not look at single pods beside it",
                remedy,
            );
        }
    }
    let preferred = [
        ("podAffinity", near.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())),
        (
            "podAntiAffinity",
            far.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()),
        ),
    ];
    for (kind, terms) in preferred {
        if terms.is_some_and(|terms| !terms.is_empty()) {
            review.note(
                format!("{path}.affinity.{kind}.preferredDuringSchedulingIgnoredDuringExecution"),
                "not considered: placement rules of the job say what lies together",
            );
        }
    }
}

fn spread(review: &mut Review, field: String, constraint: &TopologySpreadConstraint) {
    if constraint.when_unsatisfiable == "ScheduleAnyway" {
        review.note(field, "not considered: a gang is packed; rules.spread of a Gang keeps its units apart");
    } else {
        review.refuse(
            field,
            "not supported: a gang is packed",
            "leave it out and use rules.spread of a Gang, or set whenUnsatisfiable to ScheduleAnyway",
        );
    }
}

fn tolerated(review: &mut Review, field: &str, toleration: &Toleration) {
    let value = toleration.value.as_deref().unwrap_or_default();
    let keyless = toleration.key.as_deref().unwrap_or_default().is_empty();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let remedy = "mend the toleration; the API server would refuse the pods";
    match operator {
        "" | "Equal" | "Lt" | "Gt" if keyless => {
            review.refuse(format!("{field}.key"), "only Exists tolerates every key", remedy);
        }
        "Lt" | "Gt" if value.parse::<i64>().is_err() => {
            review.refuse(format!("{field}.value"), "Lt and Gt compare integers", remedy);
        }
        "" | "Equal" | "Exists" | "Lt" | "Gt" => {}
        other => review.refuse(
            format!("{field}.operator"),
            format!("{other:?} is none of Equal, Exists, Lt, Gt"),
            remedy,
        ),
    }
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        review.refuse(
            format!("{field}.effect"),
            format!("{effect:?} is none of NoSchedule, PreferNoSchedule, NoExecute"),
            remedy,
        );
    }
    if toleration.key.as_deref() == Some(UNSCHEDULABLE) {
        review.note(field.to_owned(), "a cordoned node takes no new pods of a job, tolerated or not");
    }
}

fn disks(review: &mut Review, path: &str, volume: &Volume) {
    for (name, is_set) in DISKS {
        if is_set(volume) {
            review.refuse(
                format!("{path}.{name}"),
                "not supported: how many of these disks a node takes, and who shares one, is not counted",
                "use a PersistentVolumeClaim",
            );
        }
    }
    if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
        let kind = if volume.ephemeral.is_some() { "ephemeral" } else { "persistentVolumeClaim" };
        review.note(
            format!("{path}.{kind}"),
            "where the volume can be used is kept to (node affinity, zone, allowed topologies of its class); attach limits are judged by kube-scheduler on the planned node, and a node that it refuses is avoided for a while",
        );
    }
}
