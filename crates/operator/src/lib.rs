//! The muster binary: run, crds, simulate.

pub mod simulate;
