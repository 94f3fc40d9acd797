//! The status of the Topology in force: what the nodes' labels make of its levels.
//!
//! ```text
//!   nodes or Topology changed ─▶ a pause ─▶ status from all nodes ─▶ differs? one write
//! ```

use muster_api::Topology as Object;
use muster_model::Millis;

use super::status::time;
use super::{Core, Wake};
use crate::effect::{Effect, Outcome};

/// Least time between two looks at all nodes: while a cluster registers they change all the time.
const PAUSE: Millis = 5_000;

/// The Topology object in force.
#[derive(Debug)]
pub(super) struct TopologyRt {
    object: Object,
    /// Whether a status is being written.
    writing: bool,
    /// When it is looked at next, if it is to be.
    due: Option<Millis>,
}

impl Core {
    /// The object appeared, changed, or is gone: then the built-in levels are in force, and have no status.
    pub(super) fn set_topology(&mut self, object: Option<Object>, now: Millis) {
        let levels = |object: &Object| object.spec.to_model();
        let before = self.topology.as_ref().map(|rt| levels(&rt.object)).unwrap_or_default();
        let after = object.as_ref().map(levels).unwrap_or_default();
        if before != after {
            self.cluster.set_topology(after);
        }
        let writing = self.topology.as_ref().is_some_and(|rt| rt.writing);
        self.topology = object.map(|object| TopologyRt { object, writing, due: None });
        self.look_at_topology(now);
    }

    /// Something that its status is made from changed.
    pub(super) fn look_at_topology(&mut self, now: Millis) {
        if let Some(rt) = self.topology.as_mut().filter(|rt| rt.due.is_none()) {
            rt.due = Some(now + PAUSE);
            self.wakes.insert((now + PAUSE, Wake::Topology));
        }
    }

    /// Writes its status, if that is not what it says.
    pub(super) fn report_topology(&mut self, now: Millis) {
        let devices = self.world.device_names();
        let Some(rt) = self.topology.as_mut() else { return };
        if rt.due.is_none_or(|due| due > now) {
            return;
        }
        rt.due = None;
        // What comes of the write under way looks again.
        if rt.writing {
            return;
        }
        let old = rt.object.status.clone().unwrap_or_default();
        let meta = &rt.object.metadata;
        let (levels, nodes) = (rt.object.spec.to_model(), self.cluster.nodes());
        let status =
            muster_cluster::topology::status(&levels, nodes, &devices, &old, meta.generation, &time(now));
        if rt.object.status.as_ref() == Some(&status) {
            return;
        }
        rt.writing = true;
        self.out.push(Effect::WriteTopology {
            name: super::name_of(meta),
            version: meta.resource_version.clone().unwrap_or_default(),
            status: Box::new(status),
        });
    }

    /// What came of it. The watch brings what was written.
    pub(super) fn topology_written(&mut self, outcome: &Outcome, now: Millis) {
        if let Some(rt) = self.topology.as_mut() {
            rt.writing = false;
        }
        match outcome {
            Outcome::Gone => {}
            Outcome::Refused(message) => tracing::warn!(%message, "the status of the Topology is refused"),
            _ => self.look_at_topology(now),
        }
    }
}
