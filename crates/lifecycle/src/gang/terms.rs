//! What of a gang's specification its life depends on.

use muster_model::{Plan, Slot};

use crate::recovery::Policy;

/// Whose end decides the outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// One pod's.
    Pod {
        /// Its role.
        role: String,
        /// Its unit.
        unit: u32,
        /// Its index in the unit.
        index: u32,
    },
    /// Every pod must end well.
    All,
    /// Nobody's: a pod that ends is a loss.
    #[default]
    Never,
}

/// What a role allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleTerms {
    /// Name.
    pub name: String,
    /// Pods in a unit.
    pub pods_per_unit: u32,
    /// Fewest units.
    pub min: u32,
    /// Most units.
    pub max: u32,
    /// The counts between them that are valid; empty: all.
    pub valid: Vec<u32>,
    /// Revision of its template.
    pub revision: String,
    /// Its template asks for other places than the plan in force has: until a new placement, units that start anew keep
    /// theirs.
    pub held: bool,
}

/// What of a gang's specification its life depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// It is to hold nothing.
    pub suspend: bool,
    /// Whose end decides.
    pub outcome: Outcome,
    /// What is done after a loss.
    pub policy: Policy,
    /// The loss of one pod restarts all of them.
    pub whole: bool,
    /// Its roles.
    pub roles: Vec<RoleTerms>,
}

impl Terms {
    /// Whether a pod's end decides the outcome.
    pub fn decides(&self, slot: &Slot) -> bool {
        match &self.outcome {
            Outcome::Never => false,
            Outcome::All => true,
            Outcome::Pod { role, unit, index } => {
                slot.unit.role == *role && slot.unit.index == *unit && slot.index == *index
            }
        }
    }

    /// The revision that a role's units get when they start anew; `None` where they keep theirs.
    pub fn newest(&self, role: &str, first: bool) -> Option<&str> {
        let role = self.roles.iter().find(|known| known.name == role)?;
        (first || !role.held).then_some(role.revision.as_str())
    }

    /// Whether the sizes of a plan are still allowed.
    pub fn allow(&self, plan: &Plan) -> bool {
        self.roles.iter().all(|role| {
            let count = plan.count(&role.name);
            let units = plan.units.iter().filter(|unit| unit.placed.id.role == role.name);
            let whole = units.into_iter().all(|unit| unit.placed.nodes.len() == role.pods_per_unit as usize);
            whole
                && (role.min..=role.max).contains(&count)
                && (role.valid.is_empty() || role.valid.contains(&count))
        }) && plan.units.iter().all(|unit| self.roles.iter().any(|role| role.name == unit.placed.id.role))
    }
}
