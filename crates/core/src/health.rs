//! What nodes show of themselves, and whom their loss concerns.
//!
//! ```text
//!   Node ──sign, domains──▶ lifecycle::nodes ──judge──▶ lost ──▶ its gangs, but for those whose ranks report progress
//!   our refused pod ──believe──▶ less than its status says ──▶ counted as use by nobody, until it ends
//! ```

use k8s_openapi::api::core::v1::Node as Object;
use muster_cluster::{PodFacts, convert};
use muster_lifecycle::nodes::{self as judged, Belief, Health, Refused, Sign};
use muster_model::{Millis, NodeName, ObjectKey, Resources, Topology, Uid};
use std::collections::{BTreeMap, BTreeSet};

use crate::gang::GangRt;
use crate::shared::Shared;
use crate::want::Kind;
use crate::{Core, OUT_OF_SERVICE};

/// So long after a report of progress from a silent node its ranks are taken to run.
const PROGRESS_KEPT: Millis = 600_000;
/// How often a gang on a lost node whose ranks report progress is looked at again.
const LOOK_AGAIN: Millis = 10_000;

impl Shared {
    /// A pod left a node: others may wait for the room.
    pub(crate) fn room_on(&mut self, node: &NodeName) {
        let waiting = self.nodes.take_waiting(node);
        self.dirty_gangs.extend(waiting);
    }

    /// The first node of a plan of which committed plans of other gangs still promise too much, or their pods use too much:
    /// they give it up by a status that is on its way, or have just been told to leave, and until then the place is theirs.
    pub(crate) fn still_promised(
        &self,
        (gang, uid): (&ObjectKey, &Uid),
        plan: &BTreeMap<NodeName, Resources>,
    ) -> Option<NodeName> {
        let short = |(node, amount): &(&NodeName, &Resources)| {
            let mut beside = self.nodes.promised_beside(gang, node);
            beside.add(&self.cluster.used_beyond(node, uid));
            let others = self.on_their_way.iter().filter(|(other, _)| *other != gang);
            for amount in others.filter_map(|(_, plan)| plan.get(*node)) {
                beside.add(amount);
            }
            let own = self.nodes.promised_to(gang, node);
            let more = amount.0.iter().any(|(resource, amount)| *amount > own.get(resource));
            if beside.0.is_empty() || !more {
                // Alone there, or it only stays.
                return false;
            }
            let mut all = beside;
            all.add(amount);
            self.cluster.node(node).is_some_and(|node| node.allocatable.shortage(&all).is_some())
        };
        plan.iter().find(short).map(|(node, _)| node.clone())
    }

    /// A kubelet refused a pod of ours. Where it had room by its node's own status, it has less than it says.
    pub(crate) fn believe(&mut self, name: &NodeName, pod: &PodFacts, planned: &Resources) {
        let now = self.now.at;
        let (Some(end), Some(node)) = (&pod.end, self.cluster.node(name)) else { return };
        let mut admitted = node.allocatable.clone();
        admitted.subtract(&self.cluster.free_now(name).unwrap_or_default());
        let refused = Refused {
            word: &end.reason,
            planned,
            asked: &pod.requests,
            admitted: &admitted,
            allocatable: &node.allocatable,
        };
        if let Belief::Less { resource, most } = judged::believe(&refused) {
            self.nodes.judged.distrust(name, &resource, most, &node.allocatable, now);
            self.nodes.dirty = true;
            self.count_belief(name);
        }
    }

    /// Counts what a node has less than it says as used.
    fn count_belief(&mut self, name: &NodeName) {
        let Some(node) = self.cluster.node(name) else { return };
        let mut missing = Resources::default();
        for (resource, most) in self.nodes.judged.believed(name) {
            missing.set(resource, node.allocatable.get(resource).saturating_sub(most).max(0));
        }
        if missing.0.is_empty() { self.cluster.trust(name) } else { self.cluster.distrust(name, &missing) }
    }

    /// Nodes that are lost but for the progress that the gang's ranks there report: asked again.
    pub(crate) fn look_at_spared(&mut self, rt: &mut GangRt) {
        for node in std::mem::take(&mut rt.spared) {
            self.lose_to(rt, &node);
        }
    }

    /// A node is lost, unless the gang knows better.
    fn lose_to(&mut self, rt: &mut GangRt, node: &NodeName) {
        let now = self.now.at;
        let progress = match self.nodes.judged.health(node) {
            Some(Health::Lost { since, .. }) => {
                rt.progress.get(node).is_some_and(|at| at >= since && now - at < PROGRESS_KEPT)
            }
            _ => false,
        };
        if let Some(why) = self.nodes.judged.lost_to(node, progress) {
            if rt.life.lose_node(node, &why.words()) {
                self.dirty_gangs.insert(rt.key.clone());
            }
        } else if progress {
            rt.spared.insert(node.clone());
            self.wake_gang(&rt.key, now + LOOK_AGAIN);
        }
    }
}

impl Core {
    /// A node appeared or changed.
    pub(crate) fn set_node(&mut self, object: &Object) {
        let shared = &mut self.shared;
        let (node, warnings) = convert::node(object);
        shared.warn(warnings);
        let name = node.name.clone();
        let sign = sign_of(object, node.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE));
        let shown = Some((node.uid.clone(), sign));
        if shared.cluster.node(&name) == Some(&node)
            && shared.nodes.records.get(&name).is_some_and(|rt| rt.sign == shown)
        {
            return;
        }
        let (uid, allocatable) = (node.uid.clone(), node.allocatable.clone());
        let domains = shared.nodes.domains(&name, &node.labels);
        shared.nodes.judged.observe(&name, &uid, &domains, sign, shared.now.at);
        shared.nodes.judged.promises(&name, &allocatable, shared.now.at);
        shared.nodes.records.entry(name.clone()).or_default().sign = shown;
        shared.nodes.dirty = true;
        if shared.cluster.set_node(node) {
            shared.nodes_changed = true;
            shared.count_belief(&name);
            self.count_again(Kind::Topology);
            self.count_again(Kind::Class);
        }
        self.touch_node(&name);
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, name: &NodeName) {
        let shared = &mut self.shared;
        shared.cluster.trust(name);
        shared.cluster.remove_node(name);
        shared.nodes_changed = true;
        shared.nodes.judged.remove(name);
        shared.nodes.change(name, |rt| rt.sign = None);
        shared.nodes.dirty = true;
        self.count_again(Kind::Topology);
        self.count_again(Kind::Class);
        self.touch_node(name);
    }

    /// The levels changed: nodes lie in other domains.
    pub(crate) fn set_levels(&mut self, levels: Topology) {
        let shared = &mut self.shared;
        shared.nodes.levels = levels;
        for node in shared.cluster.nodes() {
            let Some((uid, sign)) = shared.nodes.records.get(&node.name).and_then(|rt| rt.sign.clone())
            else {
                continue;
            };
            let domains = shared.nodes.domains(&node.name, &node.labels);
            shared.nodes.judged.observe(&node.name, &uid, &domains, sign, shared.now.at);
        }
        shared.nodes.dirty = true;
    }

    /// Looks again at the gangs that a node concerns.
    fn touch_node(&mut self, name: &NodeName) {
        let planned = self.shared.nodes.gangs_on(name);
        for key in planned.into_iter().chain(self.shared.nodes.take_waiting(name)) {
            if let Some(rt) = self.gangs.get_mut(&key) {
                rt.sweep_all();
            }
            self.shared.dirty_gangs.insert(key);
        }
    }

    /// Verdicts over all nodes, when something was observed or is due.
    pub(crate) fn judge_nodes(&mut self) {
        let shared = &mut self.shared;
        let now = shared.now.at;
        if !shared.started || (!shared.nodes.dirty && shared.nodes.next.is_none_or(|at| at > now)) {
            return;
        }
        shared.nodes.dirty = false;
        let records = &shared.nodes.records;
        let one_gangs = |nodes: &BTreeSet<NodeName>| {
            let own = |node: &NodeName| {
                let mut gangs = records.get(node).into_iter().flat_map(|rt| rt.gangs.keys());
                gangs.next().filter(|_| gangs.next().is_none())
            };
            let mut on = nodes.iter().map(own);
            let Some(Some(first)) = on.next() else { return false };
            on.all(|gang| gang == Some(first))
        };
        let judgement = shared.nodes.judged.judge(now, &one_gangs);
        shared.nodes.next = judgement.next;
        let before = std::mem::replace(&mut shared.nodes.brakes, judgement.brakes);
        if before.len() != shared.nodes.brakes.len() {
            for words in shared.nodes.brakes(now) {
                tracing::warn!("{words}");
            }
            self.count_again(Kind::Topology);
        }
        for name in judgement.trusted {
            self.shared.count_belief(&name);
        }
        for (name, why) in judgement.lost {
            for key in self.shared.nodes.gangs_on(&name) {
                let Some(rt) = self.gangs.get_mut(&key) else { continue };
                if why.certain() {
                    if rt.life.lose_node(&name, &why.words()) {
                        self.shared.dirty_gangs.insert(key);
                    }
                } else {
                    self.shared.lose_to(rt, &name);
                }
            }
        }
    }
}

/// What a node shows of itself.
fn sign_of(node: &Object, out_of_service: bool) -> Sign {
    if out_of_service {
        return Sign::OutOfService;
    }
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    match conditions.into_iter().find(|condition| condition.type_ == "Ready").map(|c| c.status.as_str()) {
        Some("True") => Sign::Ready,
        Some("False") => Sign::NotReady { dead: false },
        _ => Sign::Unknown,
    }
}
