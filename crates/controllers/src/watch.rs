//! Watches as a stream of changes, from which a relist cannot hide a deletion.

use futures::{Stream, StreamExt};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use muster_core::Change;
use muster_model::{ObjectKey, Uid};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::Debug;

/// Follows all objects that `api` sees. Errors are logged and tried again with growing delays; what vanished while
/// the watch was broken is reported as gone. An object made again under its old name is first reported gone.
pub fn changes<K>(api: Api<K>, config: watcher::Config) -> impl Stream<Item = Change<K>> + Send
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known: BTreeMap<ObjectKey, Uid> = BTreeMap::new();
    let mut relisted: BTreeMap<ObjectKey, Uid> = BTreeMap::new();
    let mut synced = false;
    watcher(api, config).default_backoff().flat_map(move |event| {
        let mut out = Vec::new();
        match event {
            Ok(watcher::Event::Init) => relisted.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                let (key, uid) = identity(&object);
                replace(&mut out, &mut known, key.clone(), &uid);
                relisted.insert(key, uid);
                out.push(Change::Set(object));
            }
            Ok(watcher::Event::InitDone) => {
                for (key, uid) in std::mem::take(&mut known) {
                    if !relisted.contains_key(&key) {
                        out.push(Change::Gone(key, uid));
                    }
                }
                known = std::mem::take(&mut relisted);
                if !std::mem::replace(&mut synced, true) {
                    out.push(Change::Synced);
                }
            }
            Ok(watcher::Event::Apply(object)) => {
                let (key, uid) = identity(&object);
                replace(&mut out, &mut known, key, &uid);
                out.push(Change::Set(object));
            }
            Ok(watcher::Event::Delete(object)) => {
                let (key, uid) = identity(&object);
                known.remove(&key);
                out.push(Change::Gone(key, uid));
            }
            Err(error) => tracing::warn!(kind = %K::kind(&()), %error, "watch broken; trying again"),
        }
        futures::stream::iter(out)
    })
}

fn identity<K: Resource>(object: &K) -> (ObjectKey, Uid) {
    let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
    (key, Uid(object.uid().unwrap_or_default()))
}

fn replace<K>(out: &mut Vec<Change<K>>, known: &mut BTreeMap<ObjectKey, Uid>, key: ObjectKey, uid: &Uid) {
    if let Some(old) = known.insert(key.clone(), uid.clone())
        && old != *uid
    {
        out.push(Change::Gone(key, old));
    }
}
