//! The engine against the oracle and an exact solver.
//!
//! ```text
//!   random ──clusters, gangs──▶ engine ──placement──▶ oracle (valid?)      optimal, sequences
//!                          └──▶ exact ───best vector─▶ equal?              optimal
//!   stored cases ──▶ exact ──▶ the optima that others computed             solver
//! ```

mod exact;
mod optimal;
mod random;
mod sequences;
mod solver;
