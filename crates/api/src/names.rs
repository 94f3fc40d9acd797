//! Names of the objects that are derived from a gang.
//!
//! ```text
//!   gang name (≤ 40) + short UID + role, unit, incarnation, index ──▶ pods, Services, ConfigMaps (≤ 63: DNS labels)
//! ```

use muster_model::Uid;

/// Longest name of a TrainingJob, InferenceService or Gang. A pod's name adds at most 23 characters: four dashes, the
/// short UID (6), the role's letter (1), and 12 digits: 7 for unit and index together (no gang has more than
/// 262,144 pods) and 5 for the incarnation.
pub const MAX_NAME: usize = 40;
/// Longest derived name: a DNS label.
pub const MAX_DERIVED: usize = 63;

/// The letter that tells the roles of a gang apart in names: none with one role, the initial where all initials
/// differ, else a letter by position.
pub fn role_letter(roles: &[&str], role: &str) -> Option<char> {
    let position = roles.iter().position(|name| *name == role)?;
    if roles.len() < 2 {
        return None;
    }
    let initials: Vec<Option<char>> = roles.iter().map(|name| name.chars().next()).collect();
    let distinct = initials.iter().enumerate().all(|(at, initial)| !initials[..at].contains(initial));
    if distinct { initials[position] } else { char::from_u32('a' as u32 + position as u32) }
}

/// Beginning of every derived name: another gang of the same name has another.
pub fn prefix(gang: &str, uid: &Uid) -> String {
    format!("{gang}-{}", uid.short())
}

/// Name of a pod. `letter` comes from [`role_letter`].
pub fn pod(gang: &str, uid: &Uid, letter: Option<char>, unit: u32, incarnation: u64, index: u32) -> String {
    let letter = letter.map(String::from).unwrap_or_default();
    format!("{}-{letter}{unit}-{incarnation}-{index}", prefix(gang, uid))
}

/// What a pod's name says of its place in a gang: role, unit, incarnation, index. The opposite of [`pod`]: labels can be
/// changed by hand, a name cannot. `None` for a name that [`pod`] never gives.
pub fn place<'a>(gang: &str, uid: &Uid, roles: &[&'a str], name: &str) -> Option<(&'a str, u32, u64, u32)> {
    let rest = name.strip_prefix(&prefix(gang, uid))?.strip_prefix('-')?;
    let mut parts = rest.split('-');
    let (unit, incarnation, index) =
        (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let role = roles.iter().find(|role| match role_letter(roles, role) {
        Some(letter) => unit.starts_with(letter),
        None => true,
    })?;
    let letter = role_letter(roles, role);
    let unit = letter.map_or(unit, |letter| &unit[letter.len_utf8()..]).parse().ok()?;
    (pod(gang, uid, letter, unit, incarnation, index) == name).then_some((*role, unit, incarnation, index))
}

/// Whether a name is one that [`pod`] gives to a pod of some role: a gang may have had other roles.
pub fn is_pod(gang: &str, uid: &Uid, name: &str) -> bool {
    let of_role = || {
        let rest = name.strip_prefix(&prefix(gang, uid))?.strip_prefix('-')?;
        let letter = rest.chars().next().filter(|first| !first.is_ascii_digit());
        let mut parts = rest.get(letter.map_or(0, char::len_utf8)..)?.split('-');
        let (unit, incarnation, index) =
            (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(pod(gang, uid, letter, unit, incarnation, index) == name)
    };
    of_role().unwrap_or(false)
}

/// Name of the Service that finds rank 0.
pub fn rank0_service(gang: &str, uid: &Uid) -> String {
    format!("{}-rank0", prefix(gang, uid))
}

/// Name of the Service that finds the leader (index 0) of a unit.
pub fn leader_service(gang: &str, uid: &Uid, letter: Option<char>, unit: u32) -> String {
    let letter = letter.map(String::from).unwrap_or_default();
    format!("{}-{letter}{unit}-leader", prefix(gang, uid))
}

/// Name of the headless Service under which every pod has a host name (MPI, DeepSpeed).
pub fn hosts_service(gang: &str, uid: &Uid) -> String {
    format!("{}-hosts", prefix(gang, uid))
}

/// Name of the ConfigMap with the hostfile of a plan: another plan has another.
pub fn hostfile(gang: &str, uid: &Uid, generation: u64) -> String {
    format!("{}-hosts-{generation}", prefix(gang, uid))
}

/// Name of a GangPlan: a part of a large plan. `hash` is that of its text: another plan has other names.
pub fn plan_chunk(gang: &str, uid: &Uid, hash: &str) -> String {
    let short = hash.get(..16).unwrap_or(hash);
    format!("{}-plan-{short}", prefix(gang, uid))
}
