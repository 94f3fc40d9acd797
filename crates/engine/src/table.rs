//! A table by name: found by hash in one or two steps. Nothing may depend on its order.
//!
//! ```text
//!   key ──hash──▶ Places (open addressing: hash and index) ──▶ entries of a Table, or what the owner keeps itself
//! ```
//!
//! Node names and pods' UIDs come with every event. In a tree of 130,000 of them each costs some thirty steps to
//! other places of memory.

use std::{
    borrow::Borrow,
    hash::{DefaultHasher, Hash, Hasher},
};

/// An unused place.
const FREE: u32 = u32::MAX;

/// The same in every run: the hasher has fixed keys.
pub fn hash<Q: Hash + ?Sized>(key: &Q) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as u32
}

/// Indices of things that are kept elsewhere, found by the hash of their key.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// A hash and an index. The number of places is a power of two, at least half of them free; an index stands at the
    /// first free place from the one that its hash names.
    places: Vec<(u32, u32)>,
    taken: usize,
}

impl Places {
    /// The index with this hash for which `is_it` holds.
    pub fn find(&self, hash: u32, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        self.place(hash, is_it).map(|place| self.places[place].1 as usize)
    }

    /// Adds an index that is not there.
    pub fn add(&mut self, hash: u32, index: usize) {
        if 2 * (self.taken + 1) > self.places.len() {
            let more = vec![(0, FREE); (2 * self.places.len()).max(16)];
            for (hash, index) in std::mem::replace(&mut self.places, more) {
                if index != FREE {
                    self.put(hash, index);
                }
            }
        }
        self.taken += 1;
        self.put(hash, index as u32);
    }

    /// Takes out the index with this hash for which `is_it` holds.
    pub fn remove(&mut self, hash: u32, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mut free = self.place(hash, is_it)?;
        let index = self.places[free].1;
        // Later ones of the same run move up, unless that would put them before the place that their hash names.
        let mask = self.places.len() - 1;
        let mut next = (free + 1) & mask;
        while self.places[next].1 != FREE {
            let home = self.places[next].0 as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(free) & mask) {
                self.places[free] = self.places[next];
                free = next;
            }
            next = (next + 1) & mask;
        }
        self.places[free].1 = FREE;
        self.taken -= 1;
        Some(index as usize)
    }

    fn place(&self, hash: u32, is_it: impl Fn(usize) -> bool) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = hash as usize & mask;
        loop {
            let (of, index) = self.places[place];
            if index == FREE {
                return None;
            }
            if of == hash && is_it(index as usize) {
                return Some(place);
            }
            place = (place + 1) & mask;
        }
    }

    fn put(&mut self, hash: u32, index: u32) {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        while self.places[place].1 != FREE {
            place = (place + 1) & mask;
        }
        self.places[place] = (hash, index);
    }
}

/// A map from keys to values.
#[derive(Clone, Debug)]
pub struct Table<K, V> {
    places: Places,
    entries: Vec<Option<(K, V)>>,
    vacant: Vec<usize>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { places: Places::default(), entries: Vec::new(), vacant: Vec::new() }
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// The value of a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let entry = self.places.find(hash(key), |entry| self.is(entry, key))?;
        self.entries[entry].as_ref().map(|(_, value)| value)
    }

    /// All values, in an order that means nothing.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().flatten().map(|(_, value)| value)
    }

    /// Sets the value of a key. Returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = hash(&key);
        if let Some(entry) = self.places.find(hash, |entry| self.is(entry, &key)) {
            return self.entries[entry].as_mut().map(|(_, old)| std::mem::replace(old, value));
        }
        let entry = if let Some(entry) = self.vacant.pop() {
            self.entries[entry] = Some((key, value));
            entry
        } else {
            self.entries.push(Some((key, value)));
            self.entries.len() - 1
        };
        self.places.add(hash, entry);
        None
    }

    /// Takes a key out. Returns its value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let entries = &self.entries;
        let is_it = |entry: usize| entries[entry].as_ref().is_some_and(|(known, _)| known.borrow() == key);
        let entry = self.places.remove(hash(key), is_it)?;
        self.vacant.push(entry);
        self.entries[entry].take().map(|(_, value)| value)
    }

    fn is<Q: Eq + ?Sized>(&self, entry: usize, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries[entry].as_ref().is_some_and(|(known, _)| known.borrow() == key)
    }
}

#[cfg(test)]
mod tests {
    use super::Table;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn as_a_tree_would_have_it(steps in prop::collection::vec((0..40_u32, any::<bool>()), 0..400)) {
            let (mut table, mut tree) = (Table::default(), BTreeMap::new());
            for (at, (key, insert)) in steps.into_iter().enumerate() {
                let key = format!("k{key}");
                if insert {
                    prop_assert_eq!(table.insert(key.clone(), at), tree.insert(key, at));
                } else {
                    prop_assert_eq!(table.remove(key.as_str()), tree.remove(&key));
                }
                for key in 0..40 {
                    let key = format!("k{key}");
                    prop_assert_eq!(table.get(&key), tree.get(&key));
                }
            }
        }
    }
}
