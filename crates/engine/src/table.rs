//! A table by name: found by hash in one or two steps. It is never gone through, so it has no order.
//!
//! ```text
//!   key ──hash──▶ places (open addressing: hash and entry) ──▶ entries (key, value; vacant ones are used again)
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

/// A map from keys to values.
#[derive(Clone, Debug)]
pub struct Table<K, V> {
    /// Part of a key's hash and the index of its entry. The number of places is a power of two, at least half of them
    /// free; a key stands at the first free place from the one its hash names.
    places: Vec<(u32, u32)>,
    entries: Vec<Option<(K, V)>>,
    vacant: Vec<u32>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { places: Vec::new(), entries: Vec::new(), vacant: Vec::new() }
    }
}

/// The same in every run: the hasher has fixed keys.
fn hash<Q: Hash + ?Sized>(key: &Q) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() as u32
}

impl<K: Hash + Eq, V> Table<K, V> {
    /// The value of a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key, hash(key))?;
        self.entries[self.places[place].1 as usize].as_ref().map(|(_, value)| value)
    }

    /// Sets the value of a key. Returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let hash = hash(&key);
        if let Some(place) = self.find(&key, hash) {
            let entry = self.entries[self.places[place].1 as usize].as_mut();
            return entry.map(|(_, old)| std::mem::replace(old, value));
        }
        if 2 * (self.entries.len() - self.vacant.len() + 1) > self.places.len() {
            self.spread();
        }
        let entry = if let Some(entry) = self.vacant.pop() {
            self.entries[entry as usize] = Some((key, value));
            entry
        } else {
            self.entries.push(Some((key, value)));
            self.entries.len() as u32 - 1
        };
        self.put(hash, entry);
        None
    }

    /// Takes a key out. Returns its value.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let mut free = self.find(key, hash(key))?;
        let entry = self.places[free].1;
        // Later keys of the same run move up, unless that would put them before the place that their hash names.
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
        self.vacant.push(entry);
        self.entries[entry as usize].take().map(|(_, value)| value)
    }

    fn find<Q: Hash + Eq + ?Sized>(&self, key: &Q, hash: u32) -> Option<usize>
    where
        K: Borrow<Q>,
    {
        let mask = self.places.len().checked_sub(1)?;
        let mut place = hash as usize & mask;
        loop {
            let (of, entry) = self.places[place];
            if entry == FREE {
                return None;
            }
            let known = || self.entries[entry as usize].as_ref().is_some_and(|(k, _)| k.borrow() == key);
            if of == hash && known() {
                return Some(place);
            }
            place = (place + 1) & mask;
        }
    }

    fn put(&mut self, hash: u32, entry: u32) {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        while self.places[place].1 != FREE {
            place = (place + 1) & mask;
        }
        self.places[place] = (hash, entry);
    }

    /// Doubles the places.
    fn spread(&mut self) {
        let more = vec![(0, FREE); (2 * self.places.len()).max(16)];
        for (hash, entry) in std::mem::replace(&mut self.places, more) {
            if entry != FREE {
                self.put(hash, entry);
            }
        }
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
