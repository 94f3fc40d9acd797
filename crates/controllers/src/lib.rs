//! Reconcilers and the executor: the only writers.
