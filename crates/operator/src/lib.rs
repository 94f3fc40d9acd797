//! The muster binary: run, crds, simulate.

pub mod crds;
pub mod run;
pub mod serve;
pub mod simulate;
