//! Object storage: tables of JSON objects, one revision counter, and a bounded history per table.
//!
//! ```text
//! put / remove ──► table ──► Event(rev, old, new) ──► history ──► watchers (woken, then read it)
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};

use super::json::{list, set, text};
use super::signal::Signal;

/// Namespace (empty for cluster scope) and name.
pub(crate) type Key = (String, String);

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
}

impl Change {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One entry of a table's history.
#[derive(Debug)]
pub(crate) struct Event {
    pub revision: u64,
    pub namespace: String,
    pub change: Change,
    /// The object after the change; for a deletion, its last state at the deletion's revision.
    pub object: Arc<Value>,
    /// The object before the change.
    pub previous: Option<Arc<Value>>,
    /// The line most watchers get, encoded once.
    line: OnceLock<Bytes>,
}

impl Event {
    /// The unfiltered watch line.
    pub fn line(&self) -> Bytes {
        self.line.get_or_init(|| encode_line(self.change.as_str(), &self.object)).clone()
    }
}

/// A watch event as a line of JSON.
pub(crate) fn encode_line(kind: &str, object: &Value) -> Bytes {
    let mut line = json!({"type": kind, "object": object}).to_string();
    line.push('\n');
    Bytes::from(line)
}

/// All objects of one group's resource.
#[derive(Debug)]
pub(crate) struct Table {
    pub objects: BTreeMap<Key, Arc<Value>>,
    pub history: VecDeque<Arc<Event>>,
    /// Events up to this revision are no longer kept.
    pub compacted: u64,
    /// Revision of the newest event.
    pub newest: u64,
    /// Raised with every event.
    pub events: Signal,
}

impl Table {
    fn new() -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 0,
            newest: 0,
            events: Signal::default(),
        }
    }

    /// Objects of one namespace, or of all.
    pub fn scan<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
        let from = (namespace.to_owned(), String::new());
        self.objects.range(from..).take_while(move |((ns, _), _)| namespace.is_empty() || ns == namespace)
    }

    /// Index into the history of the first event after `revision`.
    pub fn position_after(&self, revision: u64) -> usize {
        self.history.partition_point(|e| e.revision <= revision)
    }
}

/// Where an object is stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub table: Arc<str>,
    pub key: Key,
}

/// The whole storage.
#[derive(Debug)]
pub(crate) struct Store {
    tables: BTreeMap<Arc<str>, Table>,
    /// Revision of the newest write.
    pub revision: u64,
    /// Events kept per table.
    pub history_limit: usize,
    by_uid: BTreeMap<String, Place>,
    /// Dependents by the UID of their owner.
    dependents: BTreeMap<String, BTreeSet<Place>>,
    next_uid: u64,
    /// Writes that nobody has taken yet; `None` until somebody asks for them.
    journal: Option<Vec<Written>>,
}

/// One write, as an onlooker in the same process sees it.
#[derive(Debug, Clone)]
pub struct Written {
    /// `plural` or `plural.group`.
    pub table: Arc<str>,
    /// Namespace; empty for cluster scope.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object before; `None` when it was created.
    pub old: Option<Arc<Value>>,
    /// The object after; `None` when it is gone.
    pub new: Option<Arc<Value>>,
}

impl Store {
    pub fn new(history_limit: usize) -> Self {
        Self {
            tables: BTreeMap::new(),
            revision: 1,
            history_limit,
            by_uid: BTreeMap::new(),
            dependents: BTreeMap::new(),
            next_uid: 0,
            journal: None,
        }
    }

    /// The same objects without history; nobody watches the copy yet.
    pub fn fork(&self) -> Self {
        let revision = self.revision;
        let copy = |table: &Table| Table {
            objects: table.objects.clone(),
            history: VecDeque::new(),
            compacted: revision,
            newest: revision,
            events: Signal::default(),
        };
        Self {
            tables: self.tables.iter().map(|(name, table)| (name.clone(), copy(table))).collect(),
            revision,
            history_limit: self.history_limit,
            by_uid: self.by_uid.clone(),
            dependents: self.dependents.clone(),
            next_uid: self.next_uid,
            journal: None,
        }
    }

    /// Keeps writes from now on, until they are taken.
    pub fn keep_journal(&mut self) {
        self.journal.get_or_insert_default();
    }

    /// The writes since they were last taken.
    pub fn take_journal(&mut self) -> Vec<Written> {
        self.journal.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The table of that name, created if absent.
    pub fn table_mut(&mut self, name: &Arc<str>) -> &mut Table {
        self.tables.entry(name.clone()).or_insert_with(Table::new)
    }

    pub fn table(&self, name: &str) -> Option<&Table> {
        self.tables.get(name)
    }

    pub fn tables(&self) -> impl Iterator<Item = (&Arc<str>, &Table)> {
        self.tables.iter()
    }

    pub fn get(&self, table: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.tables.get(table)?.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    pub fn place_of_uid(&self, uid: &str) -> Option<&Place> {
        self.by_uid.get(uid)
    }

    pub fn dependents_of(&self, uid: &str) -> Vec<Place> {
        self.dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// A fresh UID: unique and, unlike a real server's, the same on every run.
    pub fn fresh_uid(&mut self) -> String {
        self.next_uid += 1;
        // Spread over the first digits too, since callers may shorten a UID to its head.
        let mixed = mix(self.next_uid);
        format!("{:08x}-{:04x}-4000-8000-{:012x}", mixed >> 32, (mixed >> 16) & 0xffff, self.next_uid)
    }

    /// Five characters for `generateName`, from the alphabet the real server uses.
    pub fn fresh_suffix(&mut self) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        self.next_uid += 1;
        let mut bits = mix(self.next_uid);
        (0..5)
            .map(|_| {
                let i = (bits % ALPHABET.len() as u64) as usize;
                bits /= ALPHABET.len() as u64;
                char::from(ALPHABET[i])
            })
            .collect()
    }

    /// Stores an object under a new revision and returns it as stored.
    pub fn put(&mut self, place: &Place, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        set(&mut object, &["metadata", "resourceVersion"], self.revision.to_string());
        let object = Arc::new(object);
        let previous = self.table_mut(&place.table).objects.insert(place.key.clone(), object.clone());
        if let Some(old) = &previous {
            self.unindex(place, old);
        }
        self.index(place, &object);
        let change = if previous.is_some() { Change::Modified } else { Change::Added };
        self.record(place, change, object.clone(), previous);
        object
    }

    /// Removes an object and returns its last state.
    pub fn remove(&mut self, place: &Place) -> Option<Arc<Value>> {
        let old = self.table_mut(&place.table).objects.remove(&place.key)?;
        self.unindex(place, &old);
        self.revision += 1;
        let mut last = (*old).clone();
        set(&mut last, &["metadata", "resourceVersion"], self.revision.to_string());
        let last = Arc::new(last);
        self.record(place, Change::Deleted, last.clone(), Some(old));
        Some(last)
    }

    fn index(&mut self, place: &Place, object: &Value) {
        self.by_uid.insert(text(object, &["metadata", "uid"]).to_owned(), place.clone());
        for owner in list(object, &["metadata", "ownerReferences"]) {
            let uid = text(owner, &["uid"]).to_owned();
            self.dependents.entry(uid).or_default().insert(place.clone());
        }
    }

    fn unindex(&mut self, place: &Place, object: &Value) {
        self.by_uid.remove(text(object, &["metadata", "uid"]));
        for owner in list(object, &["metadata", "ownerReferences"]) {
            let uid = text(owner, &["uid"]);
            if let Some(set) = self.dependents.get_mut(uid) {
                set.remove(place);
                if set.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
    }

    fn record(&mut self, place: &Place, change: Change, object: Arc<Value>, previous: Option<Arc<Value>>) {
        if let Some(journal) = &mut self.journal {
            journal.push(Written {
                table: place.table.clone(),
                namespace: place.key.0.clone(),
                name: place.key.1.clone(),
                old: previous.clone(),
                new: (change != Change::Deleted).then(|| object.clone()),
            });
        }
        let (revision, limit) = (self.revision, self.history_limit);
        let table = self.table_mut(&place.table);
        table.history.push_back(Arc::new(Event {
            revision,
            namespace: place.key.0.clone(),
            change,
            object,
            previous,
            line: OnceLock::new(),
        }));
        while table.history.len() > limit {
            if let Some(gone) = table.history.pop_front() {
                table.compacted = gone.revision;
            }
        }
        table.newest = revision;
        table.events.raise();
    }

    /// Forgets all history, as etcd's compaction does: older watches get 410.
    pub fn compact(&mut self) {
        let revision = self.revision;
        for table in self.tables.values_mut() {
            table.history.clear();
            table.compacted = revision;
        }
    }
}

/// SplitMix64's finaliser: a bijection, so distinct counters give distinct results.
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
