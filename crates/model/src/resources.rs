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

/// Beginning of the names under which host ports are counted like resources; see [`host_port`].
const HOST_PORT: &str = "hostPort/";
/// How often a port of a protocol is there on each node: once for each address, or for all addresses at once.
/// Far more than the addresses of a node, and small enough that sums stay exact.
const ADDRESSES: i64 = 1 << 20;
/// The addresses that stand for all of a node.
const ALL_ADDRESSES: &[&str] = &["", "0.0.0.0"];

/// A host port as resources: a pod that binds all addresses takes all of `hostPort/TCP/8080`, one that binds a
/// single address takes one of it, and the only `hostPort/TCP/8080/ADDRESS`. So two pods conflict on a node exactly
/// where kube-scheduler says that they do. Every node has these without listing them; see [`Resources::implied`].
pub fn host_port(protocol: &str, port: i32, address: &str) -> Vec<(String, i64)> {
    let name = format!("{HOST_PORT}{protocol}/{port}");
    if ALL_ADDRESSES.contains(&address) {
        vec![(name, ADDRESSES)]
    } else {
        vec![(format!("{name}/{address}"), 1), (name, 1)]
    }
}

/// `TCP 8080` of a host port's name.
fn port_of(name: &str) -> Option<String> {
    let mut parts = name.strip_prefix(HOST_PORT)?.splitn(3, '/');
    let (protocol, port) = (parts.next()?, parts.next()?);
    Some(match parts.next() {
        None => format!("host port {port}/{protocol}"),
        Some(address) => format!("host port {port}/{protocol} of {address}"),
    })
}

/// A resource's amount for people: `cpu 4000m`, `memory 16Mi`, `nvidia.com/gpu 8`, `host port 8080/TCP`.
pub fn words(name: &str, amount: i64) -> String {
    match name {
        CPU => format!("cpu {amount}m"),
        MEMORY => format!("memory {}Mi", (amount + (1 << 20) - 1) >> 20),
        _ => port_of(name).unwrap_or_else(|| format!("{name} {amount}")),
    }
}

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

    /// What every node has of a resource although its status does not list it: host ports. `None` for all others.
    pub fn implied(name: &str) -> Option<i64> {
        let rest = name.strip_prefix(HOST_PORT)?;
        Some(if rest.matches('/').count() == 1 { ADDRESSES } else { 1 })
    }

    /// What a node has of a resource, when these are its allocatable amounts.
    pub fn allocatable(&self, name: &str) -> i64 {
        self.0.get(name).copied().or_else(|| Self::implied(name)).unwrap_or(0)
    }

    /// What is left of these allocatable amounts when `used` is taken away.
    #[must_use]
    pub fn left(&self, used: &Self) -> Self {
        let mut left = self.clone();
        for name in used.0.keys().filter(|name| !self.0.contains_key(*name)) {
            if let Some(amount) = Self::implied(name) {
                left.set(name, amount);
            }
        }
        left.subtract(used);
        left
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

    /// How many times `request` fits in these amounts (of a node); `i64::MAX` for an empty request.
    pub fn fits(&self, request: &Self) -> i64 {
        request
            .0
            .iter()
            .filter(|(_, amount)| **amount > 0)
            .map(|(name, amount)| self.allocatable(name).max(0) / amount)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// The first resource of `request` that does not fit, with what is there and what is asked.
    pub fn shortage(&self, request: &Self) -> Option<(String, i64, i64)> {
        request
            .0
            .iter()
            .find(|(name, amount)| **amount > 0 && self.allocatable(name) < **amount)
            .map(|(name, amount)| (name.clone(), self.allocatable(name), *amount))
    }
}
