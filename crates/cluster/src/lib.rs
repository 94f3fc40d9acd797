//! From watch events to engine state, synchronously.
