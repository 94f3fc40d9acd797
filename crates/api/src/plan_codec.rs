//! A plan in a status: compact, readable, exact.
//!
//! ```text
//!   model::Plan ──encode──▶ PlanStatus ──split (large plans)──▶ PlanStatus with references + chunk texts
//!   model::Plan ◀──decode── PlanStatus ◀──join, hashes checked──┘
//! ```
//!
//! Units that follow each other and have the same role, incarnation, revision, class and number of pods share a [`PlanRun`];
//! their nodes are one list, unit after unit, in the notation of [`nodes`].

pub mod nodes;

use muster_model::{NodeName, Plan, PlannedUnit, UnitId, plan::PlacedUnit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

use crate::{common::first_revision, names};

/// Largest plan that is kept in the status itself, in bytes. An object of etcd holds 1.5 MiB, and a watch delivers
/// every one whole.
pub const MAX_INLINE: usize = 512 << 10;
/// Largest text of a chunk, in bytes. A GangPlan of that size is kept far below etcd's 1.5 MiB.
pub const MAX_CHUNK: usize = 768 << 10;
/// Most pods that a text may stand for: repeats and ranges are short, what they mean is not.
const MAX_PODS: usize = crate::common::MAX_RANKS as usize;

/// A plan in force: one value, written as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct PlanStatus {
    /// Counts plans of this gang, from 1.
    #[schemars(with = "i64", range(min = 0))]
    pub generation: u64,
    /// Pods that the plan names.
    #[schemars(with = "i32", range(min = 0))]
    pub pods: u32,
    /// The units, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<PlanRun>,
    /// Nodes held to replace one that fails.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<SpareRun>,
    /// Where `runs` and `spares` are when they are too large for this object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub chunks: Vec<ChunkRef>,
}

/// Units that follow each other and are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlanRun {
    /// Their role.
    pub role: String,
    /// Their indices, such as `3` or `0-127`.
    pub units: String,
    /// The generation in which their pods got their present environment.
    #[schemars(with = "i64", range(min = 0))]
    pub incarnation: u64,
    /// Revision of the role's template that their pods are made from.
    #[serde(default = "first_revision", skip_serializing_if = "is_first")]
    pub revision: String,
    /// Accelerator class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Node of each pod, unit after unit, such as `hgx-[001-004],rack7-node[1-2]*4`.
    pub nodes: String,
}

fn is_first(revision: &String) -> bool {
    *revision == first_revision()
}

/// Nodes held for one role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpareRun {
    /// The role.
    pub role: String,
    /// The nodes.
    pub nodes: String,
}

/// Reference to a GangPlan with a part of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChunkRef {
    /// Name of the GangPlan, in the gang's namespace.
    pub name: String,
    /// UID of the GangPlan: one made anew under that name is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// SHA-256 of its text, hexadecimal.
    pub sha256: String,
}

/// A part of a large plan, to be written as a GangPlan before the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Name of the GangPlan. It contains a hash of the text, so that writing it again is harmless.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Why a plan in a status cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A list of nodes is not in the notation.
    #[error("plan: {item:?} in a list of nodes {problem}")]
    Nodes {
        /// The item.
        item: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A range of units is not `a` or `a-b`.
    #[error("plan: units {0:?} is not an index or a range of indices")]
    Units(String),
    /// The nodes of a run cannot be shared out evenly.
    #[error("plan: {nodes} nodes for units {units} of role {role:?} are not the same number for each")]
    Uneven {
        /// Role.
        role: String,
        /// Range.
        units: String,
        /// Number of nodes.
        nodes: usize,
    },
    /// The plan names more pods than any gang has.
    #[error("plan: more than {MAX_PODS} pods")]
    TooLarge,
    /// The number of pods is not what the plan says.
    #[error("plan: {found} pods where it says {said}")]
    Count {
        /// Pods found.
        found: usize,
        /// Pods that the plan claims.
        said: u32,
    },
    /// A chunk is missing.
    #[error("plan: chunk {0:?} is missing")]
    ChunkMissing(String),
    /// A chunk is not what was written.
    #[error("plan: chunk {0:?} does not have the hash that the status gives")]
    ChunkChanged(String),
    /// The chunks together are no plan.
    #[error("plan: the chunks do not hold a plan: {0}")]
    ChunkText(String),
}

/// The plan as it stands in a status.
pub fn encode(plan: &Plan) -> PlanStatus {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < plan.units.len() {
        let first = &plan.units[at];
        let length = 1 + plan.units[at + 1..]
            .iter()
            .zip(1..)
            .take_while(|(unit, ahead)| continues(first, unit, *ahead))
            .count();
        let units = &plan.units[at..at + length];
        let start = first.placed.id.index;
        runs.push(PlanRun {
            role: first.placed.id.role.clone(),
            units: if length == 1 {
                start.to_string()
            } else {
                format!("{start}-{}", u64::from(start) + length as u64 - 1)
            },
            incarnation: first.incarnation,
            revision: first.revision.clone(),
            class: first.placed.class.clone(),
            nodes: nodes::encode(units.iter().flat_map(|unit| &unit.placed.nodes).map(NodeName::as_str)),
        });
        at += length;
    }
    let spares = plan
        .spares
        .iter()
        .map(|(role, held)| SpareRun {
            role: role.clone(),
            nodes: nodes::encode(held.iter().map(NodeName::as_str)),
        })
        .collect();
    PlanStatus { generation: plan.generation, pods: plan.pods() as u32, runs, spares, chunks: Vec::new() }
}

/// Whether `unit`, `ahead` places after `first`, belongs to the same run.
fn continues(first: &PlannedUnit, unit: &PlannedUnit, ahead: u32) -> bool {
    unit.placed.id.role == first.placed.id.role
        && Some(unit.placed.id.index) == first.placed.id.index.checked_add(ahead)
        && unit.incarnation == first.incarnation
        && unit.revision == first.revision
        && unit.placed.class == first.placed.class
        && unit.placed.nodes.len() == first.placed.nodes.len()
}

/// The plan of a status. `chunks` maps the names of GangPlans to their texts; it is only looked at for large plans.
///
/// # Errors
/// When the status or a chunk is not what [`encode`] and [`split`] made.
pub fn decode(status: &PlanStatus, chunks: &BTreeMap<String, String>) -> Result<Plan, PlanError> {
    let joined;
    let status = if status.chunks.is_empty() {
        status
    } else {
        joined = join(status, chunks)?;
        &joined
    };
    let mut plan = Plan { generation: status.generation, ..Plan::default() };
    let mut pods = 0;
    for run in &status.runs {
        decode_run(run, MAX_PODS - pods, &mut plan.units)?;
        pods = plan.pods();
    }
    for spare in &status.spares {
        let held = nodes::decode(&spare.nodes, MAX_PODS)?;
        plan.spares.insert(spare.role.clone(), held.into_iter().map(NodeName::from).collect());
    }
    if pods != status.pods as usize {
        return Err(PlanError::Count { found: pods, said: status.pods });
    }
    Ok(plan)
}

/// Appends the units of one run.
fn decode_run(run: &PlanRun, limit: usize, units: &mut Vec<PlannedUnit>) -> Result<(), PlanError> {
    let (first, last) = range(&run.units)?;
    let count = (last - first) as usize + 1;
    if count > MAX_PODS {
        return Err(PlanError::TooLarge);
    }
    let names = nodes::decode(&run.nodes, limit)?;
    if names.len() % count != 0 {
        return Err(PlanError::Uneven {
            role: run.role.clone(),
            units: run.units.clone(),
            nodes: names.len(),
        });
    }
    let each = names.len() / count;
    let mut names = names.into_iter().map(NodeName::from);
    units.extend((first..=last).map(|index| PlannedUnit {
        placed: PlacedUnit {
            id: UnitId { role: run.role.clone(), index },
            class: run.class.clone(),
            nodes: names.by_ref().take(each).collect(),
        },
        incarnation: run.incarnation,
        revision: run.revision.clone(),
    }));
    Ok(())
}

/// First and last index of `3` or `0-127`.
fn range(text: &str) -> Result<(u32, u32), PlanError> {
    let fail = || PlanError::Units(text.to_owned());
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let bounds: (u32, u32) = (first.parse().map_err(|_| fail())?, last.parse().map_err(|_| fail())?);
    if bounds.0 > bounds.1 { Err(fail()) } else { Ok(bounds) }
}

/// What goes to the chunks, as one text.
#[derive(Serialize, Deserialize)]
struct Parts {
    runs: Vec<PlanRun>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spares: Vec<SpareRun>,
}

/// Bytes of a plan as JSON, the object around it left out.
pub fn size(status: &PlanStatus) -> usize {
    serde_json::to_string(status).map_or(usize::MAX, |text| text.len())
}

/// Moves a plan of more than `limit` bytes into chunks of at most `limit` bytes each; a smaller one stays as it is.
/// The chunks are to be written first, their UIDs put into `chunks` of the status returned, and then the status.
///
/// # Errors
/// Never for a status that [`encode`] made: only if it could not be written as JSON.
pub fn split(
    status: &PlanStatus,
    limit: usize,
    gang: &str,
    uid: &muster_model::Uid,
) -> Result<(PlanStatus, Vec<Chunk>), PlanError> {
    if !status.chunks.is_empty() || size(status) <= limit {
        return Ok((status.clone(), Vec::new()));
    }
    let parts = Parts { runs: status.runs.clone(), spares: status.spares.clone() };
    let text = serde_json::to_string(&parts).map_err(|error| PlanError::ChunkText(error.to_string()))?;
    let mut chunks = Vec::new();
    let mut references = Vec::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let mut end = rest.len().min(limit.max(4));
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (part, after) = rest.split_at(end);
        rest = after;
        let sha256 = hash(part);
        let name = names::plan_chunk(gang, uid, &sha256);
        chunks.push(Chunk { name: name.clone(), text: part.to_owned() });
        references.push(ChunkRef { name, uid: None, sha256 });
    }
    let status = PlanStatus { runs: Vec::new(), spares: Vec::new(), chunks: references, ..status.clone() };
    Ok((status, chunks))
}

/// The plan with its chunks put back.
///
/// # Errors
/// When a chunk is missing or is not what was written.
pub fn join(status: &PlanStatus, chunks: &BTreeMap<String, String>) -> Result<PlanStatus, PlanError> {
    if status.chunks.is_empty() {
        return Ok(status.clone());
    }
    let mut text = String::new();
    for reference in &status.chunks {
        let part =
            chunks.get(&reference.name).ok_or_else(|| PlanError::ChunkMissing(reference.name.clone()))?;
        if hash(part) != reference.sha256 {
            return Err(PlanError::ChunkChanged(reference.name.clone()));
        }
        text.push_str(part);
    }
    let parts: Parts =
        serde_json::from_str(&text).map_err(|error| PlanError::ChunkText(error.to_string()))?;
    Ok(PlanStatus { runs: parts.runs, spares: parts.spares, chunks: Vec::new(), ..status.clone() })
}

/// Whether a part's name says what its text is: only such a part is anything to us, whoever made it.
pub fn is_named_after(name: &str, text: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, short)| short.len() == 16 && hash(text).starts_with(short))
}

/// SHA-256, hexadecimal.
fn hash(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
