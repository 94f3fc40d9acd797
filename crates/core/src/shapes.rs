//! What the API server makes of the pods of a role, learned by a dry run.
//!
//! ```text
//!   role of a waiting gang ──shape──▶ Shapes: known? asked? ──else──▶ dry run ──▶ Learned ──▶ the gang's request
//! ```
//!
//! A shape is what admission can depend on: two jobs that differ in arguments or environment alone have one. What is
//! known is forgotten when it may have changed (a LimitRange, a RuntimeClass, a kubelet's refusal) and when it is old.

use muster_cluster::template::Learned;
use muster_model::{Millis, ObjectKey};
use std::collections::{BTreeMap, BTreeSet};

use crate::want::Claims;

/// Most pod shapes that are remembered.
const MOST_SHAPES: usize = 4_096;

/// One shape.
#[derive(Debug, Default)]
struct Shape {
    /// What came of the last dry run, how far volumes were known, and when.
    known: Option<(Box<Learned>, Claims, Millis)>,
    /// Gangs that wait for the dry run under way.
    asked: BTreeSet<ObjectKey>,
    /// Its namespace.
    namespace: String,
    /// When it was used last, in turns of use.
    used: u64,
}

/// All shapes.
#[derive(Debug, Default)]
pub struct Shapes {
    shapes: BTreeMap<String, Shape>,
    uses: u64,
}

impl Shapes {
    /// What is known of a shape.
    pub fn learned(&self, shape: &str) -> Option<Learned> {
        self.shapes.get(shape)?.known.as_ref().map(|(learned, ..)| Learned::clone(learned))
    }

    /// What admission does may have changed, in a namespace or (RuntimeClasses) everywhere.
    pub fn forget(&mut self, namespace: Option<&str>) {
        for shape in self.shapes.values_mut() {
            if namespace.is_none_or(|namespace| shape.namespace == namespace) {
                shape.known = None;
            }
        }
    }

    /// A kubelet refused a pod of this shape: it may be another by now.
    pub fn forget_shape(&mut self, shape: &str) {
        if let Some(shape) = self.shapes.get_mut(shape) {
            shape.known = None;
        }
    }

    /// A shape is used: how far volumes were known when it was learned, and when that was.
    pub fn used(&mut self, shape: &str, namespace: &str) -> Option<(Claims, Millis)> {
        self.uses += 1;
        if self.shapes.len() >= MOST_SHAPES && !self.shapes.contains_key(shape) {
            let idle = self.shapes.iter().filter(|(_, shape)| shape.asked.is_empty());
            if let Some(oldest) = idle.min_by_key(|(_, shape)| shape.used).map(|(name, _)| name.clone()) {
                self.shapes.remove(&oldest);
            }
        }
        let entry = self.shapes.entry(shape.to_owned()).or_default();
        entry.used = self.uses;
        namespace.clone_into(&mut entry.namespace);
        entry.known.as_ref().map(|(_, claims, at)| (*claims, *at))
    }

    /// A gang waits for the dry run of a shape that it uses.
    pub fn ask(&mut self, shape: &str, gang: &ObjectKey) {
        if let Some(shape) = self.shapes.get_mut(shape) {
            shape.asked.insert(gang.clone());
        }
    }

    /// A dry run has ended: the gangs that waited for it; `None` where its shape is used no more.
    pub fn answered(&mut self, shape: &str) -> Option<BTreeSet<ObjectKey>> {
        self.shapes.get_mut(shape).map(|shape| std::mem::take(&mut shape.asked))
    }

    /// What a dry run showed.
    pub fn learn(&mut self, shape: &str, learned: Learned, claims: Claims, now: Millis) {
        if let Some(shape) = self.shapes.get_mut(shape) {
            shape.known = Some((Box::new(learned), claims, now));
        }
    }
}
