//! Pure state machines, rank layouts and launch environments.
