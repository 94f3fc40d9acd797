//! The placement engine: a pure function from a state to a plan and a report.
