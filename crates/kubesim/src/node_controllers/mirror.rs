//! What a controller keeps of the objects it watches.
//!
//! ```text
//! watcher events ──► Mirror::apply(event, convert) ──► keys that changed, each with its old value
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use futures::stream::{BoxStream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

/// Namespace (empty for cluster scope) and name.
pub(super) type Key = (String, String);

/// A stream of watch events.
pub(super) type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Watches every object of a kind, in all namespaces.
pub(super) fn watch<K>(client: &Client) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher::watcher(Api::<K>::all(client.clone()), watcher::Config::default()).default_backoff().boxed()
}

/// The part of each object that a controller needs.
pub(super) struct Mirror<V> {
    live: BTreeMap<Key, V>,
    listed: BTreeSet<Key>,
    /// Whether a whole list has arrived.
    pub ready: bool,
}

impl<V> Mirror<V> {
    pub fn new() -> Self {
        Self { live: BTreeMap::new(), listed: BTreeSet::new(), ready: false }
    }

    pub fn get(&self, key: &Key) -> Option<&V> {
        self.live.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &V)> {
        self.live.iter()
    }

    /// Takes one event; returns the keys it touched and what was there before.
    pub fn apply<K>(
        &mut self,
        event: watcher::Result<Event<K>>,
        convert: impl FnOnce(K, Option<&V>) -> Option<V>,
    ) -> Vec<(Key, Option<V>)>
    where
        K: Resource<DynamicType = ()>,
    {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Ok(Event::Apply(object)) => self.put(key(&object), object, convert),
            Ok(Event::InitApply(object)) => {
                self.listed.insert(key(&object));
                self.put(key(&object), object, convert)
            }
            Ok(Event::Delete(object)) => {
                let key = key(&object);
                let old = self.live.remove(&key);
                vec![(key, old)]
            }
            Ok(Event::Init) => {
                self.listed.clear();
                Vec::new()
            }
            Ok(Event::InitDone) => {
                self.ready = true;
                let gone: Vec<_> =
                    self.live.keys().filter(|key| !self.listed.contains(key)).cloned().collect();
                self.listed.clear();
                gone.into_iter().map(|key| (key.clone(), self.live.remove(&key))).collect()
            }
            Err(error) => {
                tracing::warn!(%error, kind = %K::kind(&()), "a watch broke; it is resumed");
                Vec::new()
            }
        }
    }

    fn put<K>(
        &mut self,
        key: Key,
        object: K,
        convert: impl FnOnce(K, Option<&V>) -> Option<V>,
    ) -> Vec<(Key, Option<V>)> {
        let new = convert(object, self.live.get(&key));
        let old = match new {
            Some(new) => self.live.insert(key.clone(), new),
            None => self.live.remove(&key),
        };
        vec![(key, old)]
    }
}
