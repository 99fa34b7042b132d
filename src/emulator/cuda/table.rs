//! Handles, which are looked up and never followed: a destroyed or invented one is an error here,
//! not a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use super::{read, write};

/// Where handles begin. Contexts have the numbers just below, see `context`.
const FIRST: u64 = 0x6d65_7400_0000;

/// A handle that no object of any kind has had.
pub(super) fn new_handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(FIRST);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// The handle of the primary context of `device`, which outlives the context: a thread where it is
/// current finds the next one under it.
pub(super) fn context_handle(device: i32) -> u64 {
    FIRST - 16 * (device as u64 + 1)
}

/// Whose primary context `handle` would be.
pub(super) fn context_device(handle: u64) -> Option<i32> {
    let below = FIRST.checked_sub(handle)?;
    let number = (below / 16).checked_sub(1)?;
    (below % 16 == 0 && number < 64).then_some(number as i32)
}

/// The live objects of one kind.
pub(super) struct Table<T>(RwLock<BTreeMap<u64, Arc<T>>>);

impl<T> Table<T> {
    pub(super) const fn new() -> Self {
        Self(RwLock::new(BTreeMap::new()))
    }

    pub(super) fn insert(&self, handle: u64, object: Arc<T>) {
        write(&self.0).insert(handle, object);
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        read(&self.0).get(&handle).cloned()
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        write(&self.0).remove(&handle)
    }

    /// Takes out what `wanted` says; the objects are dropped after the table is free again.
    pub(super) fn remove_all(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut table = write(&self.0);
        let found: Vec<u64> = table
            .iter()
            .filter(|(_, object)| wanted(object))
            .map(|(handle, _)| *handle)
            .collect();
        found
            .iter()
            .filter_map(|handle| table.remove(handle))
            .collect()
    }
}
