//! The engine against the oracle and an exact solver.
//!
//! ```text
//!   random ──clusters, gangs──▶ engine ──placement──▶ oracle (valid?)      optimal, sequences
//!                          └──▶ exact ───best vector─▶ equal?              optimal
//!   random ──rules between roles──▶ engine ──placement──▶ oracle, and every placement of tiny clusters   ruled
//!   random ──several gangs that share groups──▶ engine ──▶ oracle over all, every placement of tiny clusters   groups
//!   random ──ratios between elastic roles──▶ engine ──units──▶ every vector of units that fits              ratios
//!   stored cases ──▶ exact ──▶ the optima that others computed             solver
//! ```

mod exact;
mod groups;
mod optimal;
mod random;
mod ratios;
mod ruled;
mod sequences;
mod solver;

use proptest::test_runner::Config;

/// How many cases a property gets; `PROPTEST_CASES` replaces it.
fn config(cases: u32) -> Config {
    let default = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { Config { cases, ..default } }
}

/// Sources of properties that judge the engine by the oracle, by exact solvers or by every placement.
const JUDGED: &[(&str, &str)] = &[
    ("optimal", include_str!("optimal.rs")),
    ("ratios", include_str!("ratios.rs")),
    ("ruled", include_str!("ruled.rs")),
    ("sequences", include_str!("sequences.rs")),
    ("engine's own", include_str!("../../../engine/tests/properties.rs")),
];

/// The number that follows a marker, underscores left out.
fn number_after(source: &str, marker: &str) -> Option<u64> {
    let rest = &source[source.find(marker)? + marker.len()..];
    let digits: String = rest.chars().filter(|c| *c != '_').take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// `CONTRIBUTING.md` states what the suite runs by default: read off the sources, so that nobody lowers it unawares.
#[test]
fn a_hundred_thousand_cases_are_judged_by_default() {
    let cases = |(name, source): &(&str, &str)| {
        let each =
            number_after(source, "crate::config(").or_else(|| number_after(source, "const CASES: u32 = "));
        let properties = source[source.find("proptest! {").expect(name)..].matches("#[test]").count() as u64;
        each.expect(name) * properties
    };
    let all: Vec<(&str, u64)> = JUDGED.iter().map(|judged| (judged.0, cases(judged))).collect();
    assert!(all.iter().map(|(_, cases)| cases).sum::<u64>() >= 100_000, "{all:?}");
}
