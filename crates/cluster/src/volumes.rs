//! Where a pod's volumes let it run.
//!
//! ```text
//!   PodSpec ──claims──▶ names ──(looked up)──▶ claim, its volume or class ──find──▶ Found: terms | Reason::ClaimNotReady
//! ```
//!
//! kube-scheduler refuses a node that a volume cannot be used on. A gang that is planned there would be refused node by
//! node, so the plan keeps to what is known beforehand: the node affinity and the zone of volumes that are bound, and
//! the topologies that a class allows for those that are not. What depends on other pods (attach limits) stays
//! with kube-scheduler.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PodSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use muster_model::{NodeSelectorTerm, Operator, Reason, Requirement};

use crate::convert;

/// A volume's class is one whose volumes are bound when a pod that uses them is placed.
const BOUND_LATE: &str = "WaitForFirstConsumer";
/// Access mode of a volume that one pod has alone.
const ONE_POD: &str = "ReadWriteOncePod";
/// Separates the zones of a volume that lies in several.
const ZONES: &str = "__";
/// Labels of volumes that name where they lie, the old names beside today's; nodes have today's.
const PLACES: [(&str, &str); 4] = [
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
];

/// Where pods may run: of each entry one term must match.
pub type Reach = Vec<Vec<NodeSelectorTerm>>;

/// What is known of a volume's source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Where it can be used.
    pub reach: Reach,
    /// Whether that is final: it is bound.
    pub bound: bool,
    /// Only one pod at a time may use it.
    pub exclusive: bool,
    /// Only pods of one node at a time may use it: it is attached to a node, and no access mode admits several.
    pub one_node: bool,
}

/// What stands behind a volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A PersistentVolumeClaim of the pod's namespace, by name.
    Claim(String),
    /// A claim made with each pod, of a class. Without one the cluster's default counts.
    Class(String),
}

/// The sources of a pod's volumes that may bind it to a place.
pub fn sources(spec: &PodSpec) -> Vec<Source> {
    let of = |volume: &k8s_openapi::api::core::v1::Volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(Source::Claim(claim.claim_name.clone()));
        }
        let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        template.spec.storage_class_name.clone().filter(|class| !class.is_empty()).map(Source::Class)
    };
    spec.volumes.iter().flatten().filter_map(of).collect()
}

/// A claim, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// The object; `None` where there is none of that name.
    pub object: Option<PersistentVolumeClaim>,
    /// The volume that it names.
    pub volume: Option<PersistentVolume>,
    /// Its class, if it names no volume.
    pub class: Option<StorageClass>,
}

/// The volume that a claim names.
pub fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// The class of a claim.
pub fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.storage_class_name.as_deref().filter(|name| !name.is_empty())
}

/// What a claim lets its pods do.
///
/// # Errors
/// [`Reason::ClaimNotReady`]: no pod that uses it can start yet.
pub fn find(name: &str, claim: &Claim) -> Result<Found, Reason> {
    let not_ready = |message: String| Reason::ClaimNotReady { claim: name.to_owned(), message };
    let Some(object) = &claim.object else { return Err(not_ready("it does not exist".into())) };
    if object.metadata.deletion_timestamp.is_some() {
        return Err(not_ready("it is being deleted".into()));
    }
    let modes = object.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let exclusive = modes.into_iter().any(|mode| mode == ONE_POD);
    if let Some(volume) = volume_of(object) {
        let Some(bound) = &claim.volume else {
            return Err(not_ready(format!("its volume {volume:?} does not exist")));
        };
        return Ok(Found { reach: of_volume(bound), bound: true, exclusive, one_node: attaches_once(bound) });
    }
    match (class_of(object), &claim.class) {
        (Some(class), None) => Err(not_ready(format!("its StorageClass {class:?} does not exist"))),
        (Some(_), Some(class)) if class.volume_binding_mode.as_deref() == Some(BOUND_LATE) => {
            let one_node = once(object.spec.as_ref().and_then(|spec| spec.access_modes.as_ref()));
            Ok(Found { reach: of_class(class), bound: false, exclusive, one_node })
        }
        _ => Err(not_ready("it is not bound to a volume yet".into())),
    }
}

/// Whether access modes keep a volume to one node. Without any nothing is known, and nothing kept.
fn once(modes: Option<&Vec<String>>) -> bool {
    modes.is_some_and(|modes| {
        !modes.is_empty() && modes.iter().all(|mode| matches!(mode.as_str(), "ReadWriteOnce" | ONE_POD))
    })
}

/// Whether Kubernetes attaches a volume to one node only, as its attach controller judges: by the volume's own access
/// modes, and only where there is something to attach. Of a CSI driver it is assumed that there is: one without attachment
/// serves many nodes and can say ReadWriteMany.
fn attaches_once(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| {
        let shared = spec.nfs.is_some()
            || spec.cephfs.is_some()
            || spec.glusterfs.is_some()
            || spec.azure_file.is_some()
            || spec.quobyte.is_some();
        let of_node = spec.host_path.is_some() || spec.local.is_some();
        !shared && !of_node && once(spec.access_modes.as_ref())
    })
}

/// Where a volume can be used.
pub fn of_volume(volume: &PersistentVolume) -> Reach {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let mut reach: Reach = Vec::new();
    if let Some(selector) = required {
        let terms = selector.node_selector_terms.iter().map(convert::term);
        // No term matches nothing, as an empty one does.
        let nothing = selector.node_selector_terms.is_empty().then(NodeSelectorTerm::default);
        reach.push(terms.chain(nothing).collect());
    }
    for (label, key) in PLACES {
        let value = volume.metadata.labels.as_ref().and_then(|labels| labels.get(label));
        let Some(value) = value else { continue };
        let values: Vec<&str> = value.split(ZONES).collect();
        // kube-scheduler does not ask nodes that say nothing of where they are.
        let silent = |key: &str| Requirement {
            key: key.to_owned(),
            operator: Operator::DoesNotExist,
            values: Vec::new(),
            field: false,
        };
        reach.push(vec![
            NodeSelectorTerm { requirements: vec![Requirement::label_in(key, &values)] },
            NodeSelectorTerm { requirements: vec![silent(PLACES[0].1), silent(PLACES[1].1)] },
        ]);
    }
    reach
}

/// Where a class makes volumes.
pub fn of_class(class: &StorageClass) -> Reach {
    let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
    let terms = topologies.iter().map(|topology| {
        let labels = topology.match_label_expressions.iter().flatten();
        let requirements = labels.map(|label| {
            let values: Vec<&str> = label.values.iter().map(String::as_str).collect();
            Requirement::label_in(&label.key, &values)
        });
        NodeSelectorTerm { requirements: requirements.collect() }
    });
    // A topology without expressions is everywhere.
    let terms: Vec<NodeSelectorTerm> = terms.filter(|term| !term.requirements.is_empty()).collect();
    if terms.is_empty() { Vec::new() } else { vec![terms] }
}

/// Most terms that alternatives may multiply to.
const MOST_TERMS: usize = 256;

/// One list of terms, of which one must match, for several lists of each of which one must.
///
/// # Errors
/// How many terms that would take, if they are too many.
pub fn all_of(reach: &[Vec<NodeSelectorTerm>]) -> Result<Vec<NodeSelectorTerm>, usize> {
    let mut all: Option<Vec<NodeSelectorTerm>> = None;
    for (at, terms) in reach.iter().enumerate() {
        if reach[..at].contains(terms) {
            continue;
        }
        let Some(before) = all else {
            all = Some(terms.clone());
            continue;
        };
        let count = before.len() * terms.len();
        if count > MOST_TERMS {
            return Err(count);
        }
        let both = |one: &NodeSelectorTerm, other: &NodeSelectorTerm| {
            // An empty term matches nothing, also beside another.
            if one.requirements.is_empty() || other.requirements.is_empty() {
                return NodeSelectorTerm::default();
            }
            NodeSelectorTerm { requirements: [&one.requirements[..], &other.requirements[..]].concat() }
        };
        all = Some(before.iter().flat_map(|one| terms.iter().map(move |other| both(one, other))).collect());
    }
    Ok(all.unwrap_or_default())
}
