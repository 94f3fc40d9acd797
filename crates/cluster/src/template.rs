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
    NodeSelectorRequirement, NodeSelectorTerm, PodSpec, PodTemplateSpec, Toleration,
    TopologySpreadConstraint, Volume,
};
use muster_api::{RoleSpec, labels, template::FORBIDDEN};
use muster_model::{
    self as model, AcceleratorClass, Mode, PodTraits, Reason, Resources, Role, Within, resources,
    selector::NAME_FIELD, topology::NODE,
};
use std::{collections::BTreeMap, fmt};

pub mod devices;

use crate::{
    convert, text,
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
        let path = format!("spec.roles[{at}].template");
        role.template.parse().map(|template| review_template(&path, &template).notes).unwrap_or_default()
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

/// Reviews a template. `path` is where it stands, such as `spec.template`.
pub fn review_template(path: &str, template: &PodTemplateSpec) -> Review {
    let mut review = review(&format!("{path}.spec"), &template.spec.clone().unwrap_or_default());
    let meta = template.metadata.iter();
    let ours = meta.flat_map(|meta| [("labels", &meta.labels), ("annotations", &meta.annotations)]);
    for (list, texts) in ours {
        for key in texts.iter().flatten().map(|(key, _)| key).filter(|key| key.starts_with(labels::OURS)) {
            review.refuse(
                format!("{path}.metadata.{list}[{}]", text::bounded(key, text::REASON)),
                "must not be set",
                "leave it out: Muster writes what begins with muster.dev/ itself",
            );
        }
    }
    review
}

/// Reviews the specification of a template's pods. `path` is where it stands, such as `spec.template.spec`.
pub fn review(path: &str, spec: &PodSpec) -> Review {
    let mut review = Review::default();
    if spec.containers.is_empty() {
        review.refuse(format!("{path}.containers"), "is empty", "name the container that runs the program");
    }
    if spec.restart_policy.as_deref().is_some_and(|policy| policy != "Never") {
        let remedy = "leave it out: Muster restarts the whole unit, see spec.recovery";
        review.refuse(format!("{path}.restartPolicy"), "must be Never", remedy);
    }
    if let Err(error) = convert::pod_requests(spec, &BTreeMap::new()) {
        let (field, message) = error.split_once(": ").unwrap_or(("spec", &error));
        let field = field.strip_prefix("spec").unwrap_or(field);
        review.refuse(
            format!("{path}{field}"),
            message,
            "write a quantity that is not negative, such as 500m, 8 or 64Gi",
        );
    }
    network(&mut review, path, spec);
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
    /// A claim that the pods of only one node at a time may use.
    pub one_node: Option<String>,
}

impl Learned {
    /// Takes in what is known of a volume.
    pub fn add(&mut self, source: &Source, found: Found) {
        self.volumes.extend(found.reach);
        if let (Source::Claim(name), true) = (source, found.exclusive) {
            self.exclusive = Some(name.clone());
        }
        if let (Source::Claim(name), true) = (source, found.one_node) {
            self.one_node = Some(name.clone());
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
            one_node: None,
        })
    }
}

/// What a role is judged by besides its own template.
#[derive(Clone, Copy, Debug, Default)]
pub struct Around<'a> {
    /// The classes that the gang may use.
    pub classes: &'a [AcceleratorClass],
    /// Ports on which the gang's pods are told to listen.
    pub ports: &'a [u16],
    /// The rule for the whole gang.
    pub within: Option<&'a Within>,
}

/// A role as the engine knows it. `path` is where it stands, such as `spec.roles[0]`. `learned` is what one of its pods
/// is once admission has had its say, where that is known.
///
/// # Errors
/// [`Reason::Invalid`]: a template that cannot be read, the first of what [`review_template`] refuses, accelerators that do
/// not add up (see [`devices::total`]), or a claim that not all of the pods can use.
pub fn role(
    path: &str,
    role: &RoleSpec,
    learned: Option<Learned>,
    around: &Around<'_>,
) -> Result<Role, Reason> {
    let invalid = |field: String, message: String, remedy: &str| Reason::Invalid {
        field,
        message,
        remedy: remedy.to_owned(),
    };
    let template = role.template.parse().map_err(|error| {
        invalid(format!("{path}.{}", error.path), error.message, "mend the field; see kubectl explain pod")
    })?;
    if let Some(refused) = review_template(&format!("{path}.template"), &template).refused.into_iter().next()
    {
        return Err(refused);
    }
    let spec = template.spec.clone().unwrap_or_default();
    let stated = Learned::of(&spec).map_err(|error| {
        invalid(format!("{path}.template.{error}"), "cannot be read".into(), "write a quantity such as 500m")
    })?;
    let learned = learned.unwrap_or(stated);
    claims(&format!("{path}.template.spec.volumes"), role, &learned, around)?;
    let devices = devices(path, role, &spec, &learned, around)?;
    let Learned { mut requests, node_selector, affinity, tolerations, preferred, volumes, .. } = learned;
    requests.0.remove(resources::PODS);
    for class in around.classes {
        requests.0.remove(&class.resource);
    }
    requests.maximum(&handed_out(&spec, around.ports));
    let mut where_to = volumes;
    where_to.extend((!affinity.is_empty()).then_some(affinity));
    let affinity = volumes::all_of(&where_to).map_err(|terms| {
        invalid(
            format!("{path}.template.spec.volumes"),
            format!("the places of its volumes and its node affinity multiply to {terms} terms"),
            "use volumes with simpler node affinity",
        )
    })?;
    let labels = template.metadata.and_then(|meta| meta.labels);
    Ok(Role {
        name: role.name.clone(),
        requests,
        devices,
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

/// Accelerators of one pod, those that admission adds included.
fn devices(
    path: &str,
    role: &RoleSpec,
    spec: &PodSpec,
    learned: &Learned,
    around: &Around<'_>,
) -> Result<u32, Reason> {
    let fields = devices::Fields {
        spec: &format!("{path}.template.spec"),
        devices: &format!("{path}.devices"),
        container: &format!("{path}.container"),
        classes: "spec.classes",
    };
    let names = around.classes.iter().map(|class| class.resource.as_str()).collect();
    let stated = devices::total(&fields, spec, role.container.as_deref(), role.devices, &names)?;
    let admitted = names.iter().map(|name| learned.requests.get(name)).max().unwrap_or(0);
    Ok(stated.max(u32::try_from(admitted).unwrap_or(u32::MAX)))
}

/// Claims that not all pods of a role can use.
fn claims(field: &str, role: &RoleSpec, learned: &Learned, around: &Around<'_>) -> Result<(), Reason> {
    let pods = |units: u32| u64::from(units.max(1)) * u64::from(role.pods_per_unit);
    let refuse = |message: String, remedy: &str| {
        Err(Reason::Invalid { field: field.to_owned(), message, remedy: remedy.to_owned() })
    };
    let (fewest, most) = (pods(role.units.min), pods(role.units.max));
    if let Some(claim) = learned.exclusive.as_ref().filter(|_| fewest > 1) {
        return refuse(
            format!(
                "PersistentVolumeClaim {claim:?} is ReadWriteOncePod, and the role has {fewest} pods at least"
            ),
            "use a claim with access mode ReadWriteMany, or an ephemeral volume",
        );
    }
    if let Some(claim) = learned.one_node.as_ref().filter(|_| most > 1 && !on_one_node(role, around.within)) {
        return refuse(
            format!(
                "PersistentVolumeClaim {claim:?} is ReadWriteOnce, so only pods of one node can use it, and the role \
                 has up to {most} pods that may lie on several"
            ),
            "use a claim with access mode ReadWriteMany, or an ephemeral volume; or keep the whole gang on one node \
             (level Node, mode Required)",
        );
    }
    Ok(())
}

/// Whether all pods of a role must lie on one node.
fn on_one_node(role: &RoleSpec, within: Option<&Within>) -> bool {
    let whole = |rule: &Within| rule.level == NODE && rule.mode == Mode::Required;
    let of_unit = role.segments.iter().any(|segment| {
        segment.level == NODE && segment.mode == Mode::Required && segment.pods == role.pods_per_unit
    });
    within.is_some_and(whole) || (role.units.max <= 1 && of_unit)
}

/// A claim that pods of only one node can use, where pods of several roles use it and may lie on several: the position of
/// the second role, and the claim.
pub fn shared_claim(
    learned: impl IntoIterator<Item = Option<Learned>>,
    within: Option<&Within>,
) -> Option<(usize, String)> {
    if within.is_some_and(|rule| rule.level == NODE && rule.mode == Mode::Required) {
        return None;
    }
    let mut seen = std::collections::BTreeSet::new();
    let claims = learned.into_iter().enumerate().filter_map(|(at, one)| Some((at, one?.one_node?)));
    claims.into_iter().find(|(_, claim)| !seen.insert(claim.clone()))
}

/// The ports on which pods are told to listen, as ports of their node where they share its network. Which of the pods
/// listens, the engine cannot tell: each counts.
pub fn handed_out(spec: &PodSpec, ports: &[u16]) -> Resources {
    let mut all = Resources::default();
    for port in ports.iter().filter(|_| spec.host_network == Some(true)) {
        for (name, amount) in resources::host_port("TCP", i32::from(*port), "") {
            all.maximum(&Resources::of([(name.as_str(), amount)]));
        }
    }
    all
}

/// The DNS policy that a pod gets: with its node's network, `ClusterFirst` (the default) would be the node's resolver,
/// which knows no Service; who wants that writes `Default`. `None`: as the template says.
pub fn dns_policy(spec: &PodSpec) -> Option<&'static str> {
    let cluster_first = matches!(spec.dns_policy.as_deref(), None | Some("" | "ClusterFirst"));
    (spec.host_network == Some(true) && cluster_first).then_some("ClusterFirstWithHostNet")
}

fn network(review: &mut Review, path: &str, spec: &PodSpec) {
    if spec.host_network != Some(true) {
        return;
    }
    let message = if dns_policy(spec).is_some() {
        "ports that the pods are told (MASTER_PORT) are ports of the node, taken once; dnsPolicy becomes ClusterFirstWithHostNet, so that names of Services are found"
    } else {
        "ports that the pods are told (MASTER_PORT) are ports of the node, taken once"
    };
    review.note(format!("{path}.hostNetwork"), message);
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
