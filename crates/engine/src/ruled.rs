//! What rules between roles and units add around a placement: Preferred ones kept as well as they cost no unit, and,
//! where nothing was found, the rule that binds.
//!
//! ```text
//!   Required rules ──place_required─┬▶ found ──▶ each Preferred rule as a Required one, from its level outwards
//!                                   │              (spread: with ever more units) ──as many units?──▶ kept
//!                                   └▶ not ──▶ again without each rule ──found?──▶ Reason::RuleUnmet
//! ```

use muster_model::{Gang, Mode, Near, Reason, Rules, Spread};

use crate::{
    cluster::Cluster,
    place::{self, Found, Request},
    problem,
};

/// The reason that names all rules.
pub fn together(gang: &Gang) -> Reason {
    let rules = &gang.rules;
    let near = rules.near.iter().filter(|near| near.mode == Mode::Required).map(Near::words);
    let spread = rules.spread.iter().filter(|spread| spread.mode == Mode::Required).map(Spread::words);
    let words: Vec<String> =
        rules.ratios.iter().map(muster_model::Ratio::words).chain(near).chain(spread).collect();
    Reason::RuleUnmet { field: "rules".into(), rule: words.join("; ") }
}

/// Keeps Preferred rules, or names the rule for which nothing was found.
///
/// # Errors
/// The reason given, or that of the rule which binds.
pub fn finish(
    cluster: &mut Cluster,
    request: &Request<'_>,
    result: Result<Found, Reason>,
) -> Result<Found, Reason> {
    match result {
        Ok(found) => Ok(keep_wishes(cluster, request, found)),
        Err(reason @ (Reason::Invalid { .. } | Reason::NotFound { .. })) => Err(reason),
        Err(reason) => Err(binding(cluster, request, reason)),
    }
}

fn with_rules(gang: &Gang, change: impl FnOnce(&mut Rules)) -> Gang {
    let mut other = gang.clone();
    change(&mut other.rules);
    other
}

/// Places a variant of the request's gang under the same circumstances.
fn try_gang(cluster: &mut Cluster, request: &Request<'_>, gang: &Gang) -> Result<Found, Reason> {
    let prepared = problem::prepare(cluster, gang, request.order)?;
    let request = Request { gang, paid: request.paid.clone(), ..*request };
    place::place_required(cluster, &request, &prepared)
}

/// The first Required rule without which the gang is placed; else all together, if it is placed without them; else the
/// reason that stands without them.
fn binding(cluster: &mut Cluster, request: &Request<'_>, reason: Reason) -> Reason {
    let gang = request.gang;
    let rules = &gang.rules;
    let mut without: Vec<(String, String, Gang)> = Vec::new();
    for (at, near) in rules.near.iter().enumerate().filter(|(_, near)| near.mode == Mode::Required) {
        let other = with_rules(gang, |rules| drop(rules.near.remove(at)));
        without.push((format!("rules.near[{at}]"), near.words(), other));
    }
    for (at, spread) in rules.spread.iter().enumerate().filter(|(_, s)| s.mode == Mode::Required) {
        let other = with_rules(gang, |rules| drop(rules.spread.remove(at)));
        without.push((format!("rules.spread[{at}]"), spread.words(), other));
    }
    for (at, ratio) in rules.ratios.iter().enumerate() {
        let other = with_rules(gang, |rules| drop(rules.ratios.remove(at)));
        without.push((format!("rules.ratios[{at}]"), ratio.words(), other));
    }
    for (field, rule, other) in without {
        if try_gang(cluster, request, &other).is_ok() {
            return Reason::RuleUnmet { field, rule };
        }
    }
    match try_gang(cluster, request, &with_rules(gang, |rules| *rules = Rules::default())) {
        Ok(_) => together(gang),
        Err(bare) if matches!(reason, Reason::RuleUnmet { .. }) => bare,
        Err(_) => reason,
    }
}

fn units(gang: &Gang, found: &Found) -> u32 {
    let of = gang.roles.iter().zip(&found.pods);
    of.map(|(role, pods)| pods.len() as u32 / role.pods_per_unit.max(1)).sum()
}

/// No domain can come to hold more units of a `spread` rule than this: those to be placed beside those that are there.
pub fn most_in_a_domain(request: &Request<'_>, spread: &Spread) -> u32 {
    let Some(role) = request.gang.roles.iter().position(|role| role.name == spread.role) else { return 0 };
    let stay = request.stay.iter().filter(|(standing, _)| *standing == role).count() as u32;
    let taken = spread.group.as_ref().and_then(|group| request.others.get(group));
    let others = taken.and_then(|taken| taken.values().max()).copied().unwrap_or(0);
    request.gang.roles[role].max.saturating_add(stay).saturating_add(others)
}

/// Search for the best way to keep Preferred rules.
struct Wishes<'a, 'b> {
    cluster: &'a mut Cluster,
    request: &'a Request<'b>,
    /// The gang on the class found, with the rules kept so far as Required ones.
    gang: Gang,
    class: Option<usize>,
    best: Found,
    units: u32,
}

impl Wishes<'_, '_> {
    /// Whether the gang with these rules loses no unit; then they are kept.
    fn keep(&mut self, change: impl FnOnce(&mut Rules)) -> bool {
        let gang = with_rules(&self.gang, change);
        match try_gang(self.cluster, self.request, &gang) {
            Ok(found) if units(&gang, &found) >= self.units => {
                self.units = units(&gang, &found);
                self.best = Found { class: self.class, proven: found.proven && self.best.proven, ..found };
                self.gang = gang;
                true
            }
            Ok(found) => {
                self.best.proven &= found.proven;
                false
            }
            Err(reason) => {
                self.best.proven &= !matches!(reason, Reason::NotFound { .. });
                false
            }
        }
    }

    fn near(&mut self, near: &Near) {
        let names: Vec<String> = self.cluster.tree.topology.names().into_iter().map(str::to_owned).collect();
        let Some(inner) = names.iter().position(|name| *name == near.level) else { return };
        for level in names[..=inner].iter().rev() {
            let rule = Near { level: level.clone(), mode: Mode::Required, ..near.clone() };
            if self.keep(|rules| rules.near.push(rule)) {
                return;
            }
        }
    }

    fn spread(&mut self, spread: &Spread) {
        let with = |units: u32| Spread { units, mode: Mode::Required, ..spread.clone() };
        if self.keep(|rules| rules.spread.push(with(spread.units))) {
            return;
        }
        let max = most_in_a_domain(self.request, spread);
        // More units in a domain never fit worse, so the boundary is found by halving.
        let (mut fails, mut fits) = (spread.units, max.saturating_add(1));
        while fits > fails + 1 {
            let half = fails.midpoint(fits);
            let before = self.gang.rules.spread.len();
            if self.keep(|rules| rules.spread.push(with(half))) {
                // Kept rules are replaced by the next, stricter one.
                self.gang.rules.spread.truncate(before);
                fits = half;
            } else {
                fails = half;
            }
        }
        if fits <= max {
            self.gang.rules.spread.push(with(fits));
        }
    }
}

/// Keeps each Preferred rule as well as it costs no unit, an earlier one before a later.
fn keep_wishes(cluster: &mut Cluster, request: &Request<'_>, found: Found) -> Found {
    let rules = &request.gang.rules;
    let near: Vec<&Near> = rules.near.iter().filter(|near| near.mode == Mode::Preferred).collect();
    let spread: Vec<&Spread> = rules.spread.iter().filter(|s| s.mode == Mode::Preferred).collect();
    if near.is_empty() && spread.is_empty() {
        return found;
    }
    // Without its wishes: one that is kept as a Required rule would name its group twice.
    let mut gang = with_rules(request.gang, |rules| {
        rules.near.retain(|near| near.mode == Mode::Required);
        rules.spread.retain(|spread| spread.mode == Mode::Required);
    });
    // No other class for a wish: the classes are the user's order.
    if let Some(class) = found.class {
        gang.classes = vec![gang.classes[class].clone()];
    }
    let (class, units) = (found.class, units(&gang, &found));
    let mut wishes = Wishes { cluster, request, gang, class, best: found, units };
    for near in near {
        wishes.near(near);
    }
    for spread in spread {
        wishes.spread(spread);
    }
    wishes.best
}
