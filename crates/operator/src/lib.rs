//! The muster binary: run, crds, simulate.
