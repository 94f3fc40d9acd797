//! The engine against the oracle and an exact solver.
//!
//! ```text
//!   random ──clusters, gangs──▶ engine ──placement──▶ oracle (valid?)      optimal, sequences
//!                          └──▶ exact ───best vector─▶ equal?              optimal
//!   random ──rules between roles──▶ engine ──placement──▶ oracle, and every placement of tiny clusters   ruled
//!   random ──several gangs that share groups──▶ engine ──▶ oracle over all, every placement of tiny clusters   groups
//!   stored cases ──▶ exact ──▶ the optima that others computed             solver
//! ```

mod exact;
mod groups;
mod optimal;
mod random;
mod ruled;
mod sequences;
mod solver;

use proptest::test_runner::Config;

/// How many cases a property gets; `PROPTEST_CASES` replaces it.
fn config(cases: u32) -> Config {
    let default = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { Config { cases, ..default } }
}
