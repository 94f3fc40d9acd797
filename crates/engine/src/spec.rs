//! What a gang asks, checked and brought into the solver's terms.
//!
//! ```text
//!   Gang + Topology ──compile──▶ Spec (levels as depths, implied rules dropped) | Reason::Invalid
//! ```

use muster_model::{Gang, Mode, Reason, Role, Segment, topology::MAX_LEVELS};
use std::fmt;

use crate::{
    cluster::Amounts,
    rules::{self, RuleSpec},
    tree::Tree,
};

/// One component of what makes a plan better, compared from left to right. `Units`: more is better; all others: less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Units, summed over roles.
    Units,
    /// Blocks of a role's Preferred segment of this size that lie in more than one domain.
    Broken {
        /// Role name.
        role: String,
        /// Block size in pods.
        pods: u32,
    },
    /// Levels, the node's included, at which the gang uses more than one domain.
    Span,
    /// Domains of a level that hold at least one pod of the gang.
    Domains(String),
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units => f.write_str("units"),
            Self::Broken { role, pods } => write!(f, "broken:{role}:{pods}"),
            Self::Span => f.write_str("span"),
            Self::Domains(level) => write!(f, "domains:{level}"),
        }
    }
}

impl std::str::FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            ["units"] => Ok(Self::Units),
            ["span"] => Ok(Self::Span),
            ["domains", level] => Ok(Self::Domains(level.to_owned())),
            ["broken", role, pods] => pods
                .parse()
                .map(|pods| Self::Broken { role: role.to_owned(), pods })
                .map_err(|_| format!("{text:?}: the block size must be a number")),
            _ => {
                Err(format!("{text:?} is no objective: write units, span, broken:ROLE:SIZE or domains:LEVEL"))
            }
        }
    }
}

/// The engine's own order for a gang: most units; fewest broken blocks, smallest size first; the smallest subtree;
/// fewest domains from the inside out.
pub fn standard_order(tree: &Tree, gang: &Gang) -> Vec<Objective> {
    let mut broken: Vec<(u32, Objective)> = gang
        .roles
        .iter()
        .flat_map(|role| {
            role.segments
                .iter()
                .filter(|s| s.mode == Mode::Preferred && s.pods > 1)
                .map(|s| (s.pods, Objective::Broken { role: role.name.clone(), pods: s.pods }))
        })
        .collect();
    broken.sort_by_key(|(pods, _)| *pods);
    let mut order = vec![Objective::Units];
    order.extend(broken.into_iter().map(|(_, objective)| objective));
    order.push(Objective::Span);
    let names = tree.topology.names();
    order.extend(names.iter().rev().map(|name| Objective::Domains((*name).to_owned())));
    order
}

/// A segment by depth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seg {
    /// Block size in pods.
    pub pods: u32,
    /// Depth of its level.
    pub depth: usize,
    /// Whether it binds.
    pub required: bool,
}

/// A role in the solver's terms.
#[derive(Clone, Debug)]
pub struct RoleSpec {
    /// Name.
    pub name: String,
    /// Pods in a unit.
    pub pods: u32,
    /// Allowed numbers of units, ascending and not empty.
    pub counts: Vec<u32>,
    /// Rules that are not implied by others, by size and then innermost first.
    pub segments: Vec<Seg>,
    /// What a pod asks.
    pub request: Amounts,
    /// Spare pods' worth of nodes wanted.
    pub spares: u32,
}

impl RoleSpec {
    /// What a pod asks of a column.
    pub fn asks(&self, column: usize) -> i64 {
        self.request.iter().find(|(c, _)| *c == column).map_or(0, |(_, amount)| *amount)
    }

    /// Most units.
    pub fn max(&self) -> u32 {
        self.counts.last().copied().unwrap_or(0)
    }

    /// Fewest units.
    pub fn min(&self) -> u32 {
        self.counts.first().copied().unwrap_or(0)
    }

    /// The largest allowed number of units that is at most `limit`.
    pub fn allowed_at_most(&self, limit: u32) -> Option<u32> {
        self.counts.iter().rev().copied().find(|count| *count <= limit)
    }
}

/// A gang in the solver's terms.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Roles in the gang's order.
    pub roles: Vec<RoleSpec>,
    /// The whole gang lies in one domain of this depth (0: anywhere).
    pub within: usize,
    /// What is better.
    pub order: Vec<Objective>,
    /// Required rules between roles and units.
    pub rules: RuleSpec,
}

/// A field, what is wrong with it, and what to do.
pub fn invalid(field: String, message: impl Into<String>, remedy: impl Into<String>) -> Reason {
    Reason::Invalid { field, message: message.into(), remedy: remedy.into() }
}

/// Depth of a level by name, or what is wrong with the name.
pub fn depth(tree: &Tree, field: &str, level: &str) -> Result<usize, Reason> {
    tree.topology.level(level).map(|position| position + 1).ok_or_else(|| {
        invalid(
            field.to_owned(),
            format!("the topology has no level {level:?}"),
            format!("name one of {}, or add the level to the Topology", tree.topology.names().join(", ")),
        )
    })
}

/// Checks a gang and compiles it, requests excepted (they depend on the accelerator class).
///
/// # Errors
/// [`Reason::Invalid`] with the field and the remedy.
pub fn compile(tree: &Tree, gang: &Gang, order: Option<&[Objective]>) -> Result<Spec, Reason> {
    if tree.topology.levels.len() >= MAX_LEVELS {
        return Err(invalid(
            "topology.levels".into(),
            format!("{} levels above the node", tree.topology.levels.len()),
            format!("list at most {}", MAX_LEVELS - 1),
        ));
    }
    if gang.roles.is_empty() {
        return Err(invalid("roles".into(), "a gang needs at least one role", "add a role"));
    }
    let mut within = match &gang.within {
        Some(within) => {
            let at = depth(tree, "within.level", &within.level)?;
            if within.mode == Mode::Required { at } else { 0 }
        }
        None => 0,
    };
    let mut roles = Vec::with_capacity(gang.roles.len());
    for (position, role) in gang.roles.iter().enumerate() {
        if gang.roles[..position].iter().any(|other| other.name == role.name) {
            return Err(invalid(
                format!("roles[{position}].name"),
                format!("{:?} is taken", role.name),
                "give every role its own name",
            ));
        }
        if role.devices > 0 && gang.classes.is_empty() {
            return Err(invalid(
                "classes".into(),
                format!("role {:?} asks for accelerators but no class is allowed", role.name),
                "list at least one accelerator class",
            ));
        }
        let path = format!("roles[{}]", role.name);
        roles.push(match whole_units(tree, gang, role) {
            None => compile_role(tree, &path, role)?,
            Some(segments) => compile_role(tree, &path, &Role { segments, ..role.clone() })?,
        });
    }
    let order = order.map_or_else(|| standard_order(tree, gang), <[Objective]>::to_vec);
    for objective in &order {
        if let Objective::Domains(level) = objective {
            depth(tree, "order", level)?;
        }
    }
    let mut rules = RuleSpec::default();
    if !gang.rules.is_empty() {
        rules = rules::compile(tree, gang, &mut roles)?;
        // What holds for all roles holds for the gang.
        let whole = rules.near.iter().filter(|near| near.roles.len() == roles.len()).map(|near| near.depth);
        within = whole.max().map_or(within, |depth| depth.max(within));
    }
    Ok(Spec { roles, within, order, rules })
}

/// Allowed numbers of units, ascending.
pub fn counts(role: &Role) -> Vec<u32> {
    let mut counts: Vec<u32> = if role.valid.is_empty() {
        (role.min..=role.max).collect()
    } else {
        role.valid.iter().copied().filter(|n| (role.min..=role.max).contains(n)).collect()
    };
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// A role's segments with those that its Required `spread` rules imply: each unit in one domain. `None` without such.
fn whole_units(tree: &Tree, gang: &Gang, role: &Role) -> Option<Vec<Segment>> {
    let spread = gang.rules.spread.iter().filter(|s| s.role == role.name && s.mode == Mode::Required);
    let implied: Vec<Segment> = spread
        // A level that does not exist is said of the rule itself.
        .filter(|s| tree.topology.level(&s.level).is_some())
        .map(|s| Segment { pods: role.pods_per_unit, level: s.level.clone(), mode: Mode::Required })
        .collect();
    (!implied.is_empty()).then(|| [role.segments.clone(), implied].concat())
}

fn compile_role(tree: &Tree, path: &str, role: &Role) -> Result<RoleSpec, Reason> {
    if role.pods_per_unit == 0 {
        return Err(invalid(format!("{path}.podsPerUnit"), "a unit needs a pod", "set it to at least 1"));
    }
    if role.min > role.max {
        return Err(invalid(
            format!("{path}.min"),
            format!("min {} is above max {}", role.min, role.max),
            "lower min or raise max",
        ));
    }
    if u64::from(role.pods_per_unit) * u64::from(role.max) > crate::MAX_PODS_PER_ROLE {
        return Err(invalid(
            format!("{path}.max"),
            format!("{} units of {} pods", role.max, role.pods_per_unit),
            format!("ask for at most {} pods in a role", crate::MAX_PODS_PER_ROLE),
        ));
    }
    let counts = counts(role);
    if counts.is_empty() {
        return Err(invalid(
            format!("{path}.valid"),
            format!("no valid count lies between {} and {}", role.min, role.max),
            "list a count within min..max",
        ));
    }
    Ok(RoleSpec {
        name: role.name.clone(),
        pods: role.pods_per_unit,
        counts,
        segments: segments(tree, path, role)?,
        request: Vec::new(),
        spares: role.spares,
    })
}

fn segments(tree: &Tree, path: &str, role: &Role) -> Result<Vec<Seg>, Reason> {
    let mut all = Vec::with_capacity(role.segments.len());
    for (i, segment) in role.segments.iter().enumerate() {
        let field = format!("{path}.segments[{i}]");
        let at = depth(tree, &format!("{field}.level"), &segment.level)?;
        if segment.pods == 0 || !role.pods_per_unit.is_multiple_of(segment.pods) {
            return Err(invalid(
                format!("{field}.pods"),
                format!("blocks of {} do not divide a unit of {} pods", segment.pods, role.pods_per_unit),
                "use a block size that divides the unit",
            ));
        }
        all.push(Seg { pods: segment.pods, depth: at, required: segment.mode == Mode::Required });
    }
    // By size; of two rules of one size the inner first.
    all.sort_by_key(|seg| (seg.pods, std::cmp::Reverse(seg.depth)));
    if let Some(pair) = all.windows(2).find(|pair| pair[1].pods % pair[0].pods != 0) {
        return Err(invalid(
            format!("{path}.segments"),
            format!("blocks of {} do not divide blocks of {}", pair[0].pods, pair[1].pods),
            "use block sizes that divide each other",
        ));
    }
    // A block of one pod is always together. What a larger (or equal) Required block at the same level or further
    // inside already ensures needs no rule of its own.
    let implied = |seg: &Seg| {
        seg.pods == 1
            || all.iter().any(|other| {
                other.required
                    && other.pods >= seg.pods
                    && other.depth >= seg.depth
                    && (other.pods, other.depth, other.required) != (seg.pods, seg.depth, seg.required)
            })
    };
    let mut kept: Vec<Seg> = all.iter().filter(|seg| !implied(seg)).cloned().collect();
    kept.dedup();
    if let Some(pair) = kept.windows(2).find(|pair| pair[1].depth > pair[0].depth) {
        return Err(invalid(
            format!("{path}.segments"),
            format!(
                "blocks of {} pods are preferred further inside ({}) than the smaller blocks of {} ({})",
                pair[1].pods,
                tree.level_name(pair[1].depth),
                pair[0].pods,
                tree.level_name(pair[0].depth)
            ),
            "let levels grow with block sizes",
        ));
    }
    Ok(kept)
}
