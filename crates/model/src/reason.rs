//! Every refusal is one of these. The condition, the event, the metric label and the CLI's answer come from here.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

use crate::{RecoveryStep, Resources};

/// Why a node takes no pod of a shape; the first that applies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeRefusal {
    /// Ready is not True.
    NotReady,
    /// Cordoned.
    Cordoned,
    /// Pods of this gang were lost or refused there lately.
    Avoided,
    /// The node's labels are not of the accelerator class.
    OtherClass,
    /// A taint is not tolerated.
    Tainted,
    /// The node selector or required affinity does not match.
    Selector,
    /// Even empty the node is too small for one pod.
    TooSmall,
    /// Anti-affinity of a pod that is there keeps these pods away.
    Repelled,
    /// It is large enough, but other pods use it.
    Busy,
}

impl NodeRefusal {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::NotReady,
        Self::Cordoned,
        Self::Avoided,
        Self::OtherClass,
        Self::Tainted,
        Self::Selector,
        Self::TooSmall,
        Self::Repelled,
        Self::Busy,
    ];

    /// Words for people: "3 cordoned".
    pub fn words(self) -> &'static str {
        match self {
            Self::NotReady => "not ready",
            Self::Cordoned => "cordoned",
            Self::Avoided => "avoided because its pods were lost or refused there lately",
            Self::OtherClass => "without an allowed accelerator",
            Self::Tainted => "tainted",
            Self::Selector => "excluded by node selector or affinity",
            Self::TooSmall => "too small",
            Self::Repelled => "kept away from by the anti-affinity of other pods",
            Self::Busy => "in use",
        }
    }

    /// What makes such nodes take the pods.
    fn remedy(self) -> &'static str {
        match self {
            Self::NotReady => "wait until nodes are ready",
            Self::Cordoned => "uncordon nodes",
            Self::Avoided => "wait until they are tried again",
            Self::OtherClass => "allow another accelerator class",
            Self::Tainted => "tolerate the nodes' taints in the pod template",
            Self::Selector => "widen the pod template's node selector or affinity",
            Self::TooSmall => "lower the pod's requests",
            Self::Repelled | Self::Busy => "wait until those pods leave",
        }
    }
}

/// A domain that comes near, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainMiss {
    /// Level of the domain.
    pub level: String,
    /// Its path from the outermost level, joined by `/`.
    pub domain: String,
    /// Pods of the wanted kind that fit there now.
    pub pods: u32,
    /// Pods that are wanted there.
    pub wanted: u32,
}

impl fmt::Display for DomainMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} has room for {} of {} pods", self.level, self.domain, self.pods, self.wanted)
    }
}

/// Why a gang is not placed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The specification contradicts itself or names something that does not exist.
    Invalid {
        /// Path of the field, such as `spec.parallelism.tensor`.
        field: String,
        /// What is wrong.
        message: String,
        /// What to change.
        remedy: String,
    },
    /// The queue does not exist.
    QueueUnknown {
        /// Its name.
        queue: String,
    },
    /// No node of the cluster would take one pod, were it empty.
    NoNodeFits {
        /// Role whose pod fits nowhere.
        role: String,
        /// What one pod asks.
        request: Resources,
        /// How many nodes refuse for which reason.
        nodes: BTreeMap<NodeRefusal, u32>,
    },
    /// Even in an empty cluster no domain is large enough for a block that must stay together.
    SegmentTooLarge {
        /// Role.
        role: String,
        /// Block size in pods.
        pods: u32,
        /// Level whose domain it must lie in.
        level: String,
        /// The largest domain, and how many pods it could take empty.
        largest: Option<DomainMiss>,
    },
    /// It would fit an empty cluster, but fewer units fit than the minimum now.
    InsufficientCapacity {
        /// Role that falls short.
        role: String,
        /// Units that fit now.
        fits: u32,
        /// Units needed.
        min: u32,
        /// Units that the cluster would hold, were it empty.
        empty: u32,
        /// Level at which most is lost to blocks that must stay together; `None` when there is simply too little.
        level: Option<String>,
        /// The domains nearest to holding one more block.
        nearest: Vec<DomainMiss>,
        /// How many nodes refuse for which reason.
        nodes: BTreeMap<NodeRefusal, u32>,
    },
    /// It would be placed but for a rule between its roles or units (or for all of these together).
    RuleUnmet {
        /// Path of the rule, such as `rules.near[0]`; `rules` for all together.
        field: String,
        /// What it asks, for people.
        rule: String,
    },
    /// A search gave up within its budget. It does not mean that no placement exists.
    NotFound {
        /// States looked at.
        states: u64,
    },
    /// What was lost could be made good now, but not by a step that the recovery ladder lists.
    LadderForbids {
        /// The first step of the default ladder that would do and is not listed.
        step: RecoveryStep,
    },
    /// After a loss fewer units are left than the gang may go on with.
    TooFewLeft {
        /// Role that falls short; for ratios between roles the first.
        role: String,
        /// Units of it that are left.
        left: u32,
        /// Fewest units of it.
        min: u32,
    },
    /// Kubelets of several nodes refused pods of the gang for the same reason: other nodes would too.
    KubeletsRefuse {
        /// How many nodes.
        nodes: u32,
        /// What was said last.
        message: String,
    },
    /// The API server refused a pod of the plan: quota, limits, Pod Security or a webhook.
    PodRefused {
        /// What the server said.
        message: String,
    },
    /// Its pods were made and did not start: their kubelets say what is missing, or nobody says anything.
    NotStarting {
        /// Which pod, and what was said.
        message: String,
    },
    /// A volume claim of its pods cannot be used yet.
    ClaimNotReady {
        /// Name of the PersistentVolumeClaim.
        claim: String,
        /// What is wrong with it.
        message: String,
    },
    /// The namespace's quota has no room for the gang's minimum.
    QuotaExceeded {
        /// Name of the ResourceQuota.
        quota: String,
        /// Resource that is short.
        resource: String,
        /// What is left.
        left: i64,
        /// What the minimum needs.
        needed: i64,
    },
}

impl Reason {
    /// A stable CamelCase word for conditions, events and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "Invalid",
            Self::QueueUnknown { .. } => "QueueUnknown",
            Self::NoNodeFits { .. } => "NoNodeFits",
            Self::SegmentTooLarge { .. } => "SegmentTooLarge",
            Self::InsufficientCapacity { .. } => "InsufficientCapacity",
            Self::RuleUnmet { .. } => "RuleUnmet",
            Self::NotFound { .. } => "NotFound",
            Self::LadderForbids { .. } => "LadderForbids",
            Self::TooFewLeft { .. } => "TooFewLeft",
            Self::KubeletsRefuse { .. } => "KubeletsRefuse",
            Self::PodRefused { .. } => "PodRefused",
            Self::NotStarting { .. } => "NotStarting",
            Self::ClaimNotReady { .. } => "ClaimNotReady",
            Self::QuotaExceeded { .. } => "QuotaExceeded",
        }
    }

    /// What it is, and what to do about it.
    pub fn sentence(&self) -> String {
        format!("{self}; {}", self.remedy())
    }

    /// What the user can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Invalid { remedy, .. } => remedy.clone(),
            Self::QueueUnknown { queue } => format!("create Queue {queue:?} or name another in spec.queue"),
            Self::NoNodeFits { nodes, .. } => {
                let mut remedies: Vec<&str> = nodes.keys().map(|refusal| refusal.remedy()).collect();
                remedies.push("add nodes that fit");
                remedies.dedup();
                remedies.join(", or ")
            }
            Self::SegmentTooLarge { level, .. } => {
                format!(
                    "make the block smaller, or allow a level outside {level}, or make the rule Preferred"
                )
            }
            Self::InsufficientCapacity { level: Some(level), .. } => format!(
                "it runs when a {level} has room; a Preferred rule at {level} or a smaller minimum would run sooner"
            ),
            Self::InsufficientCapacity { .. } => {
                "it runs when capacity is freed; a smaller minimum would run sooner".into()
            }
            Self::RuleUnmet { field, .. } => {
                format!("it runs when capacity is freed; with a wider {field} it would run sooner")
            }
            Self::NotFound { .. } => "free capacity or simplify the gang's rules".into(),
            Self::LadderForbids { step } => format!("add {} to spec.recovery.ladder", step.name()),
            Self::TooFewLeft { .. } => {
                "a smaller minimum would let it go on, Requeue in spec.recovery.ladder would let it wait for nodes".into()
            }
            Self::KubeletsRefuse { .. } => {
                "mend what the message names (do its pods ask for more than its template says, or have the nodes less than \
                 their status says?); it is tried again with growing delays"
                    .into()
            }
            Self::PodRefused { .. } | Self::NotStarting { .. } => {
                "mend what the message names; it is tried again with growing delays".into()
            }
            Self::ClaimNotReady { .. } => {
                "create the claim and let it be bound; it is looked at again every few seconds".into()
            }
            Self::QuotaExceeded { quota, resource, .. } => {
                format!("raise {resource} in ResourceQuota {quota:?} or lower the minimum")
            }
        }
    }
}

/// "3 cordoned, 12 in use".
fn tally(nodes: &BTreeMap<NodeRefusal, u32>) -> String {
    let parts: Vec<String> =
        nodes.iter().map(|(refusal, count)| format!("{count} {}", refusal.words())).collect();
    if parts.is_empty() { "no nodes".into() } else { parts.join(", ") }
}

/// "cpu 4000m, nvidia.com/gpu 8": a request for people.
fn amounts(request: &Resources) -> String {
    let parts: Vec<String> = request
        .0
        .iter()
        .filter(|(name, amount)| **amount > 0 && *name != crate::resources::PODS)
        .map(|(name, amount)| crate::resources::words(name, *amount))
        .collect();
    if parts.is_empty() { "nothing".into() } else { parts.join(", ") }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { field, message, .. } => write!(f, "{field}: {message}"),
            Self::QueueUnknown { queue } => write!(f, "queue {queue:?} does not exist"),
            Self::NoNodeFits { role, request, nodes } => {
                write!(f, "no node can take a {role} pod ({}): {}", amounts(request), tally(nodes))
            }
            Self::SegmentTooLarge { role, pods, level, largest } => {
                write!(
                    f,
                    "blocks of {pods} {role} pods must lie in one {level}, and none is large enough even when empty"
                )?;
                largest
                    .as_ref()
                    .map_or(Ok(()), |miss| write!(f, "; the largest, {}, takes {}", miss.domain, miss.pods))
            }
            Self::InsufficientCapacity { role, fits, min, empty, level, nearest, nodes } => {
                write!(f, "{fits} of at least {min} {role} units fit now ({empty} in an empty cluster)")?;
                if let Some(level) = level {
                    write!(f, "; room is too scattered over {level}s")?;
                }
                if let Some(miss) = nearest.first() {
                    write!(f, "; nearest: {miss}")?;
                }
                if nodes.is_empty() { Ok(()) } else { write!(f, "; nodes: {}", tally(nodes)) }
            }
            Self::RuleUnmet { field, rule } => {
                write!(f, "there is room, but none that keeps {field} ({rule})")
            }
            Self::NotFound { states } => write!(f, "no placement found in {states} states of the search"),
            Self::LadderForbids { step } => {
                let would = match step {
                    RecoveryStep::RestartInPlace => "its pods could start again where they were",
                    RecoveryStep::ReplaceNode => "nodes are free for the lost units",
                    RecoveryStep::Shrink => "it could go on in a smaller size",
                    RecoveryStep::Requeue => "there is room for the whole gang elsewhere",
                };
                write!(f, "{would}, but spec.recovery.ladder lists no {}", step.name())
            }
            Self::TooFewLeft { role, left, min } => {
                let units = if *left == 1 { "unit is" } else { "units are" };
                write!(f, "{left} {role} {units} left, and it runs with no fewer than {min}")
            }
            Self::KubeletsRefuse { nodes, message } => write!(f, "{nodes} nodes refused its pods: {message}"),
            Self::PodRefused { message } | Self::NotStarting { message } => write!(f, "{message}"),
            Self::ClaimNotReady { claim, message } => {
                write!(f, "PersistentVolumeClaim {claim:?}: {message}")
            }
            Self::QuotaExceeded { quota, resource, left, needed } => write!(
                f,
                "ResourceQuota {quota:?} has {left} of {resource} left, the gang's minimum needs {needed}"
            ),
        }
    }
}
