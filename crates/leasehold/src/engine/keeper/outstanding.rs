//! What is being released, by number and by lock.

use leasehold_core::{Lock, Moment};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Something that is being released.
#[derive(Clone)]
pub(in crate::engine) struct Outstanding {
    pub(in crate::engine) lock: Lock,
    /// Until when the store may keep it.
    pub(in crate::engine) until: Moment,
}

/// All that is being released.
#[derive(Default)]
pub(super) struct AllOutstanding {
    by_id: BTreeMap<u64, Tracked>,
    by_lock: HashMap<Lock, BTreeSet<u64>>,
}

/// A release, and the signal of its end.
struct Tracked {
    outstanding: Outstanding,
    done: CancellationToken,
    /// Cancels `done`, however the release ends.
    _ends: DropGuard,
}

impl AllOutstanding {
    pub(super) fn insert(&mut self, id: u64, outstanding: Outstanding) {
        self.by_lock.entry(outstanding.lock.clone()).or_default().insert(id);
        let done = CancellationToken::new();
        let ends = done.clone().drop_guard();
        self.by_id.insert(id, Tracked { outstanding, done, _ends: ends });
    }

    /// Removes what was released, or cannot be.
    pub(super) fn remove(&mut self, id: u64) -> Option<Outstanding> {
        let Tracked { outstanding, .. } = self.by_id.remove(&id)?;
        if let Entry::Occupied(mut ids) = self.by_lock.entry(outstanding.lock.clone()) {
            ids.get_mut().remove(&id);
            if ids.get().is_empty() {
                ids.remove();
            }
        }
        Some(outstanding)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// A signal for each release of this lock, which fires at its end.
    pub(super) fn of(&self, lock: &Lock) -> Vec<CancellationToken> {
        let ids = self.by_lock.get(lock).into_iter().flatten();
        ids.filter_map(|id| self.by_id.get(id)).map(|tracked| tracked.done.clone()).collect()
    }

    /// Removes everything.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Outstanding> + use<> {
        let Self { by_id, by_lock: _ } = std::mem::take(self);
        by_id.into_values().map(|Tracked { outstanding, .. }| outstanding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_a_signal_for_each_of_its_releases() {
        let lock = |name: &str| Lock::mutex(name.parse().expect("a good name"));
        let outstanding = |name| Outstanding { lock: lock(name), until: Moment::ZERO };
        let mut all = AllOutstanding::default();
        all.insert(1, outstanding("a"));
        all.insert(2, outstanding("b"));
        all.insert(3, outstanding("a"));
        let signals = all.of(&lock("a"));
        assert_eq!((signals.len(), all.of(&lock("c")).len()), (2, 0));
        assert!(all.remove(1).is_some() && all.remove(1).is_none());
        assert_eq!(signals.iter().filter(|signal| signal.is_cancelled()).count(), 1);
        assert_eq!(all.take_all().count(), 2);
        assert!(signals.iter().all(CancellationToken::is_cancelled) && all.is_empty());
        assert!(all.of(&lock("b")).is_empty() && all.by_lock.is_empty());
    }
}
