//! The custom resources of muster.dev, their labels and conditions.
