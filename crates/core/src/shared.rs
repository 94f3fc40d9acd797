//! What all gangs and workloads use: the cluster, the world, the desk, the calendar.

use kube::api::ObjectMeta;
use muster_cluster::Cluster;
use muster_lifecycle::Now;
use muster_lifecycle::gang::Pause;
use muster_model::{Millis, NodeName, ObjectKey, Resources, Slot, Uid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::desk::Desk;
use crate::nodes::Nodes;
use crate::owner::Owner;
use crate::shapes::Shapes;
use crate::want::{Kind, Note, Want};
use crate::{Config, Counters, World};

/// Something to look at again at a given time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wake {
    /// A gang.
    Gang(ObjectKey),
    /// A workload.
    Workload(Uid),
    /// The statuses of a kind that are counted from others.
    Report(Kind),
    /// Nothing in particular: one more turn.
    Turn,
}

/// What is to be looked at, and when: each subject once, at the earliest time. Whoever is looked at says anew when to look
/// again, so later times are not kept; kept, they would breed.
#[derive(Debug, Default)]
pub struct Calendar {
    by_time: BTreeSet<(Millis, Wake)>,
    times: BTreeMap<Wake, Millis>,
}

impl Calendar {
    /// Looks at a subject at a time, or earlier if that was to be.
    pub fn insert(&mut self, at: Millis, wake: Wake) {
        match self.times.get(&wake).copied() {
            Some(earlier) if earlier <= at => return,
            Some(later) => {
                self.by_time.remove(&(later, wake.clone()));
            }
            None => {}
        }
        self.times.insert(wake.clone(), at);
        self.by_time.insert((at, wake));
    }

    /// The next time.
    pub fn next(&self) -> Option<Millis> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes what is due.
    pub fn due(&mut self, now: Millis) -> Option<Wake> {
        let (at, _) = self.by_time.first()?;
        if *at > now {
            return None;
        }
        let (_, wake) = self.by_time.pop_first()?;
        self.times.remove(&wake);
        Some(wake)
    }
}

/// What all gangs and workloads use.
pub struct Shared {
    /// Patience and bounds.
    pub config: Config,
    /// Epoch of the term.
    pub epoch: i64,
    /// The time of this turn.
    pub now: Now,
    /// Wall time less monotonic time.
    pub wall_offset: Millis,
    /// All that existed when the term began is known.
    pub started: bool,
    /// Nodes, pods and plans, and the engine over them.
    pub cluster: Cluster,
    /// Classes, queues, priorities, quotas.
    pub world: World,
    /// One record a node.
    pub nodes: Nodes,
    /// Plans on their way that replace another: what they take of each node anew. Until it is known whether the server has
    /// them, both may be in force.
    pub on_their_way: BTreeMap<ObjectKey, BTreeMap<NodeName, Resources>>,
    /// Pods that may have been created for plans that are over, and until when their room is kept.
    pub doubtful: VecDeque<(Millis, ObjectKey)>,
    /// What admission makes of pods.
    pub shapes: Shapes,
    /// Parts of large plans, by name.
    pub parts: BTreeMap<String, String>,
    /// What is wanted of the API server.
    pub desk: Desk,
    /// The calendar.
    pub wakes: Calendar,
    /// Gangs to look at in this turn.
    pub dirty_gangs: BTreeSet<ObjectKey>,
    /// Workloads to look at in this turn.
    pub dirty_workloads: BTreeSet<Uid>,
    /// Gangs with pods to create now, and those pods' places.
    pub creating: BTreeMap<ObjectKey, VecDeque<Slot>>,
    /// Gang whose creation was served last: creations go round.
    pub served: Option<ObjectKey>,
    /// Gangs by UID.
    pub by_uid: BTreeMap<Uid, ObjectKey>,
    /// Gangs by the UID of what controls them.
    pub children: BTreeMap<Uid, BTreeSet<ObjectKey>>,
    /// Workloads by kind and name.
    pub workloads: BTreeMap<(Kind, ObjectKey), Uid>,
    /// How often a workload's gang was made lately.
    pub makes: BTreeMap<Uid, Pause>,
    /// Services and ConfigMaps of gangs that were not seen yet, by the gang's UID.
    pub strays: BTreeMap<Uid, BTreeMap<(Kind, ObjectKey), ObjectMeta>>,
    /// The gang of each Service and ConfigMap.
    pub child_of: BTreeMap<(Kind, ObjectKey), ObjectKey>,
    /// Nodes that the types cannot read: they are there all the same.
    pub unreadable_nodes: BTreeSet<NodeName>,
    /// Gangs and jobs that the types cannot read: their UID, and why.
    pub unreadable: BTreeMap<(Kind, ObjectKey), (Uid, String)>,
    /// What pods of a plan request that are not created yet: the server's quotas do not count them.
    pub uncreated: BTreeMap<ObjectKey, Resources>,
    /// Namespaces in which pods that were planned will not be created: their quotas leave more.
    pub quota_moved: BTreeSet<String>,
    /// Whether nodes changed since the world looked at them.
    pub nodes_changed: bool,
    /// Counters for metrics.
    pub counters: Counters,
    warned: BTreeSet<String>,
    notes: u64,
}

impl Shared {
    /// For a term.
    pub fn new(config: Config, epoch: i64) -> Self {
        Self {
            desk: Desk::new(config.limits),
            nodes: Nodes::new(config.nodes),
            config,
            epoch,
            now: Now::default(),
            wall_offset: 0,
            started: false,
            cluster: Cluster::new(),
            world: World::default(),
            on_their_way: BTreeMap::new(),
            doubtful: VecDeque::new(),
            shapes: Shapes::default(),
            parts: BTreeMap::new(),
            wakes: Calendar::default(),
            dirty_gangs: BTreeSet::new(),
            dirty_workloads: BTreeSet::new(),
            creating: BTreeMap::new(),
            served: None,
            by_uid: BTreeMap::new(),
            children: BTreeMap::new(),
            workloads: BTreeMap::new(),
            makes: BTreeMap::new(),
            strays: BTreeMap::new(),
            child_of: BTreeMap::new(),
            unreadable_nodes: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            uncreated: BTreeMap::new(),
            quota_moved: BTreeSet::new(),
            nodes_changed: true,
            counters: Counters::default(),
            warned: BTreeSet::new(),
            notes: 0,
        }
    }

    /// A turn begins at this monotonic time.
    pub fn at(&mut self, now: Millis) {
        self.now = Now { at: now, wall: now.saturating_add(self.wall_offset) };
    }

    /// The monotonic time at which the wall clock will say `wall`, if it does not jump.
    pub fn when(&self, wall: Millis) -> Millis {
        wall.saturating_sub(self.wall_offset)
    }

    /// Looks at a gang again at a time.
    pub fn wake_gang(&mut self, key: &ObjectKey, at: Millis) {
        self.wakes.insert(at, Wake::Gang(key.clone()));
    }

    /// Looks at a workload again at a time.
    pub fn wake_workload(&mut self, uid: &Uid, at: Millis) {
        self.wakes.insert(at, Wake::Workload(uid.clone()));
    }

    /// A gang has another owner now.
    pub fn index_owner(&mut self, gang: &ObjectKey, before: Option<&Owner>, after: Option<&Owner>) {
        if before == after {
            return;
        }
        if let Some(owner) = before
            && let Some(children) = self.children.get_mut(&owner.uid)
        {
            children.remove(gang);
            if children.is_empty() {
                self.children.remove(&owner.uid);
            }
        }
        if let Some(owner) = after {
            self.children.entry(owner.uid.clone()).or_default().insert(gang.clone());
        }
    }

    /// Whether a gang of this UID exists that cannot be read.
    pub fn is_unreadable(&self, gang: &Uid) -> bool {
        self.unreadable.iter().any(|((kind, _), (uid, _))| *kind == Kind::Gang && uid == gang)
    }

    /// Says something once in the log.
    pub fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings {
            if self.warned.len() < 10_000 && self.warned.insert(warning.clone()) {
                tracing::warn!("{warning}");
            }
        }
    }

    /// An event about an object.
    pub fn tell(
        &mut self,
        kind: Kind,
        about: &ObjectKey,
        uid: &Uid,
        reason: &str,
        message: &str,
        warning: bool,
    ) {
        self.notes += 1;
        self.desk.want(Want::Tell(Box::new(Note {
            kind,
            about: about.clone(),
            uid: uid.clone(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            warning,
            number: self.notes,
        })));
    }

    /// What a gang has planned is created, and the server's quotas count it.
    pub fn all_created(&mut self, gang: &ObjectKey) {
        self.uncreated.remove(gang);
    }

    /// What a gang has planned and not created will not be: its quotas leave room that no event tells of.
    pub fn never_created(&mut self, gang: &ObjectKey) {
        if self.uncreated.remove(gang).is_some() && self.world.has_quotas(&gang.namespace) {
            self.quota_moved.insert(gang.namespace.clone());
        }
    }

    /// What is planned in a namespace and not created yet, a gang's own aside.
    pub fn uncreated_beside(&self, gang: &ObjectKey) -> Resources {
        let first = ObjectKey::new(gang.namespace.clone(), String::new());
        let mut sum = Resources::default();
        for (key, amount) in self.uncreated.range(first..) {
            if key.namespace != gang.namespace {
                break;
            }
            if key != gang {
                sum.add(amount);
            }
        }
        sum
    }
}
