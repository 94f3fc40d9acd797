//! Rules between the roles of a gang, and between its units.
//!
//! ```text
//!   ratios: how many units of one role for those of another ─┐
//!   near:   all units of some roles in one domain            ├─▶ engine (places by them), check (judges by them)
//!   spread: at most so many units of a role in a domain      ┘
//!           (of several gangs of a namespace, where they name one group)
//! ```

use serde::{Deserialize, Serialize};

use crate::Mode;

/// For every `per` units of role `of` there are `min` to `max` units of `role`:
/// `min · units(of) ≤ per · units(role) ≤ max · units(of)`. None of the one means none of the other (unless `min` is 0).
/// Ratios of a gang form no circle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ratio {
    /// The role that is counted, such as `decode`.
    pub role: String,
    /// The role that it is measured by, such as `prefill`.
    pub of: String,
    /// How many units of `of`, at least 1.
    #[serde(default = "one")]
    pub per: u32,
    /// Fewest units of `role` for them.
    pub min: u32,
    /// Most units of `role` for them; as `min` for an exact ratio.
    pub max: u32,
}

impl Ratio {
    /// Whether these numbers of units keep it.
    pub fn holds(&self, role: u32, of: u32) -> bool {
        let (role, of) = (u64::from(self.per) * u64::from(role), u64::from(of));
        (u64::from(self.min) * of..=u64::from(self.max) * of).contains(&role)
    }

    /// "2 to 3 decode for every 1 prefill".
    pub fn words(&self) -> String {
        let Self { role, of, per, min, max } = self;
        if min == max {
            format!("{min} {role} for every {per} {of}")
        } else {
            format!("{min} to {max} {role} for every {per} {of}")
        }
    }
}

/// All units of the named roles lie in one domain of `level`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Near {
    /// Role names, at least one.
    pub roles: Vec<String>,
    /// Name of the topology level.
    pub level: String,
    /// Required, or Preferred: the innermost domain, of this level or further out, that costs no unit.
    pub mode: Mode,
}

impl Near {
    /// "leader and worker in one Rack".
    pub fn words(&self) -> String {
        format!("{} in one {}", self.roles.join(" and "), self.level)
    }
}

/// Each unit of a role lies in one domain of `level`, and at most `units` of them in each domain. With a group, the units
/// of all gangs of the namespace that name it count together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Spread {
    /// Role name.
    pub role: String,
    /// Name of the topology level.
    pub level: String,
    /// Most units in one domain, at least 1.
    #[serde(default = "one")]
    pub units: u32,
    /// Required, or Preferred: as few in one domain as cost no unit.
    pub mode: Mode,
    /// Gangs of the namespace whose units count together. Their rules state the same level, units and mode; a gang names
    /// a group in one rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl Spread {
    /// "at most 1 server units in a Rack", "at most 1 server units of group web in a Rack".
    pub fn words(&self) -> String {
        let group = self.group.as_ref().map(|group| format!(" of group {group}")).unwrap_or_default();
        format!("at most {} {} units{group} in a {}", self.units, self.role, self.level)
    }

    /// Whether two rules may name one group.
    pub fn agrees(&self, other: &Self) -> bool {
        (&self.level, self.units, self.mode) == (&other.level, other.units, other.mode)
    }
}

fn one() -> u32 {
    1
}

/// All rules of a gang between roles and units. Of Preferred ones an earlier one weighs more, `near` before `spread`; all
/// weigh less than units and more than Preferred segments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    /// Numbers of units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<Ratio>,
    /// What lies together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<Near>,
    /// What lies apart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<Spread>,
}

impl Rules {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ratios.is_empty() && self.near.is_empty() && self.spread.is_empty()
    }
}
