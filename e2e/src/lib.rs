//! The end-to-end suite over its backends.
