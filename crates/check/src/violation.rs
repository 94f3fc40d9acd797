//! What the oracle can find, with every name that a person needs to understand it.

use muster_model::{NodeName, NodeRefusal, ObjectKey, UnitId};
use std::fmt;

/// The invariants that the oracle judges; the numbers are the design's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Nothing is promised twice.
    I1,
    /// Pods are those of plans.
    I2,
    /// Units are whole and in allowed number.
    I3,
    /// What must be together is together, on the right class.
    I4,
    /// At the time of placing, each node takes the pod. Not numbered in the design: it may end later.
    Constraint,
}

/// One pod's place in a plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// The gang.
    pub gang: ObjectKey,
    /// The unit.
    pub unit: UnitId,
    /// The pod's position in the unit.
    pub index: u32,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}[{}].{}", self.gang, self.unit.role, self.unit.index, self.index)
    }
}

/// Who was promised part of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claimant {
    /// A plan's entry.
    Entry(Slot),
    /// A spare that a plan holds.
    Spare {
        /// The gang.
        gang: ObjectKey,
        /// The role it stands by for.
        role: String,
    },
    /// One of our pods that is not the live form of an entry, by name.
    Pod(String),
    /// Another use, by its id.
    Use(String),
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(slot) => write!(f, "{slot}"),
            Self::Spare { gang, role } => write!(f, "spare of {gang} {role}"),
            Self::Pod(name) => write!(f, "pod {name}"),
            Self::Use(id) => write!(f, "use {id}"),
        }
    }
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Violation {
    /// I1: more of a resource is promised than the node has.
    Overcommitted {
        /// The node.
        node: NodeName,
        /// The resource.
        resource: String,
        /// What the node has.
        allocatable: i64,
        /// What is promised.
        promised: i64,
        /// To whom, those that want this resource.
        claimants: Vec<Claimant>,
    },
    /// I2: a live pod of a gang that does not exist.
    PodOfNoGang {
        /// The pod.
        pod: String,
        /// The UID it names as its gang's.
        gang: String,
    },
    /// I2: a live pod of a gang that has no plan in force.
    PodOfUnplacedGang {
        /// The pod.
        pod: String,
        /// The gang.
        gang: ObjectKey,
    },
    /// I2: a live pod of a unit, or of an index in a unit, that the plan does not have.
    PodOfNoSlot {
        /// The pod.
        pod: String,
        /// The place it claims.
        slot: Slot,
    },
    /// I2: a live pod of another incarnation than its unit's.
    PodOfOtherIncarnation {
        /// The pod.
        pod: String,
        /// Its place.
        slot: Slot,
        /// Its incarnation.
        incarnation: u64,
        /// The unit's incarnation.
        current: u64,
    },
    /// I2: a live pod on another node than planned.
    PodOnOtherNode {
        /// The pod.
        pod: String,
        /// Its place.
        slot: Slot,
        /// Where it is.
        node: NodeName,
        /// Where it should be.
        planned: NodeName,
    },
    /// I2: two live pods for one place.
    TwoPods {
        /// The place.
        slot: Slot,
        /// The two pods.
        pods: [String; 2],
    },
    /// I3: a role has a number of units that it does not allow, in a gang that has any.
    UnitCount {
        /// The gang.
        gang: ObjectKey,
        /// The role.
        role: String,
        /// How many units it has.
        units: u32,
        /// Fewest allowed.
        min: u32,
        /// Most allowed.
        max: u32,
        /// The allowed counts; empty for all from `min` to `max`.
        valid: Vec<u32>,
    },
    /// I3: the units of a role are not numbered 0, 1, 2, … in order.
    UnitNumbers {
        /// The gang.
        gang: ObjectKey,
        /// The role.
        role: String,
        /// The numbers it has.
        numbers: Vec<u32>,
    },
    /// I3: a unit with too many or too few pods.
    PodCount {
        /// The gang.
        gang: ObjectKey,
        /// The unit.
        unit: UnitId,
        /// Pods it has.
        pods: usize,
        /// Pods it needs.
        needed: u32,
    },
    /// I3: the plan has units or spares of a role that the gang has not.
    UnknownRole {
        /// The gang.
        gang: ObjectKey,
        /// The role.
        role: String,
    },
    /// I3: more spares than asked for.
    TooManySpares {
        /// The gang.
        gang: ObjectKey,
        /// The role.
        role: String,
        /// Spares held.
        spares: usize,
        /// Spares asked for.
        asked: u32,
    },
    /// I3: the plan names a node that does not exist. Only judged when it is made: nodes may vanish later.
    UnknownNode {
        /// Who was promised it.
        claimant: Claimant,
        /// The node.
        node: NodeName,
    },
    /// I4: a block of a Required segment lies in more than one domain.
    BlockBroken {
        /// The gang.
        gang: ObjectKey,
        /// The unit.
        unit: UnitId,
        /// Which block of the unit, from 0.
        block: u32,
        /// Pods in a block.
        pods: u32,
        /// The level whose domain must hold it.
        level: String,
        /// The domains it lies in, by path.
        domains: Vec<String>,
    },
    /// I4: the gang lies in more than one domain of its Required `within`.
    GangBroken {
        /// The gang.
        gang: ObjectKey,
        /// The level.
        level: String,
        /// The domains it lies in, by path.
        domains: Vec<String>,
    },
    /// I3: the numbers of units of two roles do not keep their ratio.
    RatioBroken {
        /// The gang.
        gang: ObjectKey,
        /// The ratio, for people.
        ratio: String,
        /// Units of the role counted.
        units: u32,
        /// Units of the role it is measured by.
        of: u32,
    },
    /// I4: roles that must lie in one domain lie in more than one.
    RolesApart {
        /// The gang.
        gang: ObjectKey,
        /// The roles.
        roles: Vec<String>,
        /// The level.
        level: String,
        /// The domains they lie in, by path.
        domains: Vec<String>,
    },
    /// I4: a unit of a role that is spread lies in more than one domain of the rule's level.
    UnitSplit {
        /// The gang.
        gang: ObjectKey,
        /// The unit.
        unit: UnitId,
        /// The level.
        level: String,
        /// The domains it lies in, by path.
        domains: Vec<String>,
    },
    /// I4: a domain holds more units of a role than its `spread` rule allows.
    TooManyTogether {
        /// The gang.
        gang: ObjectKey,
        /// The role.
        role: String,
        /// The level.
        level: String,
        /// The domain, by path.
        domain: String,
        /// Units that have a pod there.
        units: u32,
        /// Most allowed.
        most: u32,
    },
    /// I4: a domain holds more units of a group's gangs than their `spread` rules allow.
    TooManyOfGroup {
        /// Namespace of the gangs.
        namespace: String,
        /// The group.
        group: String,
        /// The level.
        level: String,
        /// The domain, by path.
        domain: String,
        /// Units that have a pod there.
        units: u32,
        /// Most allowed.
        most: u32,
    },
    /// I4: `spread` rules that name one group differ, or one gang names it twice.
    GroupDisagrees {
        /// The group.
        group: String,
        /// Two gangs whose rules differ, or twice the same.
        gangs: [ObjectKey; 2],
    },
    /// I4: a placed gang has a rule that cannot be judged: an unknown level or a block of no pods.
    RuleInvalid {
        /// The gang.
        gang: ObjectKey,
        /// The rule, as written.
        rule: String,
    },
    /// I4: a unit with accelerators names no class, or one that the gang does not allow.
    ClassNotAllowed {
        /// The gang.
        gang: ObjectKey,
        /// The unit.
        unit: UnitId,
        /// The class it names.
        class: Option<String>,
        /// The classes allowed.
        allowed: Vec<String>,
    },
    /// I4: a pod of a unit is on a node that is not of the unit's class.
    NodeOfOtherClass {
        /// The pod's place.
        slot: Slot,
        /// The node.
        node: NodeName,
        /// The unit's class.
        class: String,
    },
    /// A node did not take the pod when it was placed there.
    NodeRefuses {
        /// Who was promised it.
        claimant: Claimant,
        /// The node.
        node: NodeName,
        /// Why it does not take the pod.
        refusal: NodeRefusal,
    },
}

impl Violation {
    /// The invariant that is broken.
    pub fn invariant(&self) -> Invariant {
        match self {
            Self::Overcommitted { .. } => Invariant::I1,
            Self::PodOfNoGang { .. }
            | Self::PodOfUnplacedGang { .. }
            | Self::PodOfNoSlot { .. }
            | Self::PodOfOtherIncarnation { .. }
            | Self::PodOnOtherNode { .. }
            | Self::TwoPods { .. } => Invariant::I2,
            Self::UnitCount { .. }
            | Self::UnitNumbers { .. }
            | Self::PodCount { .. }
            | Self::UnknownRole { .. }
            | Self::RatioBroken { .. }
            | Self::TooManySpares { .. }
            | Self::UnknownNode { .. } => Invariant::I3,
            Self::BlockBroken { .. }
            | Self::GangBroken { .. }
            | Self::RolesApart { .. }
            | Self::UnitSplit { .. }
            | Self::TooManyTogether { .. }
            | Self::TooManyOfGroup { .. }
            | Self::GroupDisagrees { .. }
            | Self::RuleInvalid { .. }
            | Self::ClassNotAllowed { .. }
            | Self::NodeOfOtherClass { .. } => Invariant::I4,
            Self::NodeRefuses { .. } => Invariant::Constraint,
        }
    }
}

/// Things separated by commas.
fn list<T: fmt::Display>(things: &[T]) -> String {
    things.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.invariant() {
            Invariant::Constraint => {}
            invariant => write!(f, "{invariant:?}: ")?,
        }
        match self {
            Self::Overcommitted { node, resource, allocatable, promised, claimants } => write!(
                f,
                "node {node} has {allocatable} of {resource}, but {promised} are promised: {}",
                list(claimants)
            ),
            Self::PodOfNoGang { pod, gang } => {
                write!(f, "pod {pod} is not leaving, but its gang (UID {gang}) does not exist")
            }
            Self::PodOfUnplacedGang { pod, gang } => {
                write!(f, "pod {pod} is not leaving, but its gang {gang} is not placed")
            }
            Self::PodOfNoSlot { pod, slot } => write!(f, "pod {pod} is {slot}, which the plan does not have"),
            Self::PodOfOtherIncarnation { pod, slot, incarnation, current } => write!(
                f,
                "pod {pod} ({slot}) is not leaving, but is of incarnation {incarnation}, the unit's is {current}"
            ),
            Self::PodOnOtherNode { pod, slot, node, planned } => {
                write!(f, "pod {pod} ({slot}) is on node {node}, its plan says {planned}")
            }
            Self::TwoPods { slot, pods: [one, other] } => {
                write!(f, "{slot} has two live pods, {one} and {other}")
            }
            Self::UnitCount { gang, role, units, min, max, valid } => {
                write!(f, "{gang} has {units} {role} units, allowed are {min} to {max}")?;
                if valid.is_empty() { Ok(()) } else { write!(f, " out of {}", list(valid)) }
            }
            Self::UnitNumbers { gang, role, numbers } => write!(
                f,
                "{gang} numbers its {role} units {}, they must run from 0 without gaps",
                list(numbers)
            ),
            Self::PodCount { gang, unit, pods, needed } => {
                write!(f, "{gang} {}[{}] has {pods} pods, it needs {needed}", unit.role, unit.index)
            }
            Self::UnknownRole { gang, role } => write!(f, "{gang} has no role {role:?}, its plan does"),
            Self::TooManySpares { gang, role, spares, asked } => {
                write!(f, "{gang} holds {spares} spares for {role}, it asked for {asked}")
            }
            Self::UnknownNode { claimant, node } => {
                write!(f, "{claimant} is planned on node {node}, which does not exist")
            }
            _ => self.fmt_togetherness(f),
        }
    }
}

impl Violation {
    /// The second half of [`fmt::Display`]: I4 and constraints.
    fn fmt_togetherness(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BlockBroken { gang, unit, block, pods, level, domains } => write!(
                f,
                "block {block} (of {pods} pods) of {gang} {}[{}] must lie in one {level}, it lies in {}",
                unit.role,
                unit.index,
                list(domains)
            ),
            Self::GangBroken { gang, level, domains } => {
                write!(f, "{gang} must lie in one {level}, it lies in {}", list(domains))
            }
            Self::RatioBroken { gang, ratio, units, of } => {
                write!(f, "{gang} must have {ratio}, it has {units} for {of}")
            }
            Self::RolesApart { gang, roles, level, domains } => {
                write!(f, "{} of {gang} must lie in one {level}, they lie in {}", list(roles), list(domains))
            }
            Self::UnitSplit { gang, unit, level, domains } => write!(
                f,
                "{gang} {}[{}] must lie in one {level}, it lies in {}",
                unit.role,
                unit.index,
                list(domains)
            ),
            Self::TooManyTogether { gang, role, level, domain, units, most } => {
                write!(f, "{level} {domain} holds {units} {role} units of {gang}, allowed are {most}")
            }
            Self::TooManyOfGroup { namespace, group, level, domain, units, most } => {
                write!(
                    f,
                    "{level} {domain} holds {units} units of group {namespace}/{group}, allowed are {most}"
                )
            }
            Self::GroupDisagrees { group, gangs: [one, other] } => {
                write!(f, "spread rules of {one} and {other} name group {group} and differ")
            }
            Self::RuleInvalid { gang, rule } => {
                write!(f, "{gang} is placed, but its rule {rule} is not valid")
            }
            Self::ClassNotAllowed { gang, unit, class, allowed } => write!(
                f,
                "{gang} {}[{}] is placed on class {}, allowed: {}",
                unit.role,
                unit.index,
                class.as_deref().unwrap_or("(none)"),
                list(allowed)
            ),
            Self::NodeOfOtherClass { slot, node, class } => {
                write!(f, "{slot} is on node {node}, which is not of the unit's class {class}")
            }
            Self::NodeRefuses { claimant, node, refusal } => {
                write!(f, "{claimant} is planned on node {node}, which is {}", refusal.words())
            }
            _ => Ok(()),
        }
    }
}
