//! Amounts of named resources, in integers.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::quantity::{self, QuantityError};

/// `cpu`, counted in thousandths of a core.
pub const CPU: &str = "cpu";
/// `memory`, in bytes.
pub const MEMORY: &str = "memory";
/// `pods`: how many pods a node takes; each pod uses one.
pub const PODS: &str = "pods";

/// Resource name → amount. `cpu` in millicores, `memory` and `ephemeral-storage` in bytes, all others in units.
/// A resource that is absent is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Resources(pub BTreeMap<String, i64>);

impl Resources {
    /// Amounts from pairs; for tests and generated clusters.
    pub fn of<'a>(pairs: impl IntoIterator<Item = (&'a str, i64)>) -> Self {
        Self(pairs.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect())
    }

    /// Reads a Kubernetes resource list (name → quantity text).
    ///
    /// # Errors
    /// The first quantity that does not parse, with its resource's name.
    pub fn parse<'a>(
        list: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, (String, QuantityError)> {
        let mut all = Self::default();
        for (name, text) in list {
            let amount = if name == CPU { quantity::parse_milli(text) } else { quantity::parse_units(text) };
            all.0.insert(name.to_owned(), amount.map_err(|error| (name.to_owned(), error))?);
        }
        Ok(all)
    }

    /// The amount of one resource; zero when absent.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Sets one resource.
    pub fn set(&mut self, name: &str, amount: i64) {
        self.0.insert(name.to_owned(), amount);
    }

    /// Adds `other`, saturating.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let entry = self.0.entry(name.clone()).or_default();
            *entry = entry.saturating_add(*amount);
        }
    }

    /// Takes `other` away, saturating; amounts may become negative (an overcommitted node).
    pub fn subtract(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let entry = self.0.entry(name.clone()).or_default();
            *entry = entry.saturating_sub(*amount);
        }
    }

    /// The larger amount of each resource: what a pod needs where init containers run before the others.
    pub fn maximum(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let entry = self.0.entry(name.clone()).or_insert(*amount);
            *entry = (*entry).max(*amount);
        }
    }

    /// Multiplied by `count`, saturating.
    #[must_use]
    pub fn times(&self, count: i64) -> Self {
        Self(self.0.iter().map(|(name, amount)| (name.clone(), amount.saturating_mul(count))).collect())
    }

    /// How many times `request` fits in these amounts; `i64::MAX` for an empty request.
    pub fn fits(&self, request: &Self) -> i64 {
        request
            .0
            .iter()
            .filter(|(_, amount)| **amount > 0)
            .map(|(name, amount)| self.get(name).max(0) / amount)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// The first resource of `request` that does not fit, with what is there and what is asked.
    pub fn shortage(&self, request: &Self) -> Option<(String, i64, i64)> {
        request
            .0
            .iter()
            .find(|(name, amount)| **amount > 0 && self.get(name) < **amount)
            .map(|(name, amount)| (name.clone(), self.get(name), *amount))
    }
}
