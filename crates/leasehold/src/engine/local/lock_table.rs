//! The lock table: the entry of each lock that this client uses, found by lock and by slot.
//!
//! It receives the client's notifications: those of a grant go to the entry whose slot is half of the nonce, those about
//! a hold to the keeper.

use super::lock_entry::{ClosedEntry, LockEntry};
use crate::engine::hold::TrackingId;
use crate::engine::keeper::KeeperHandle;
use crate::engine::session::SessionEvents;
use leasehold_core::machine::contender::AcquireTerms;
use leasehold_core::{Lock, Notification, Partition, SessionId};
use leasehold_store::Environment;
use leasehold_store::sync::{Mutex, MutexGuard, OnceLock};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, PoisonError, Weak};

/// All lock entries of a client. Passes the grants that arrive to the entries, and notices about holds to the keeper.
pub(in crate::engine) struct LockTable {
    environment: Arc<dyn Environment>,
    table: Mutex<Table>,
    /// Set once the keeper runs. Before that there is no hold that a message could concern.
    keeper: OnceLock<KeeperHandle>,
}

#[derive(Default)]
struct Table {
    by_lock: HashMap<Lock, u32>,
    /// Each with the partition of its lock.
    slots: Vec<(Partition, Weak<LockEntry>)>,
    free: Vec<u32>,
    /// Entries of other sessions that are closed together with the client's own.
    detached: Vec<Weak<LockEntry>>,
    /// Set once the client is shut down: new entries are closed from the start.
    closed: bool,
}

impl LockTable {
    pub(in crate::engine) fn new(environment: Arc<dyn Environment>) -> Self {
        Self { environment, table: Mutex::default(), keeper: OnceLock::new() }
    }

    /// Sets the keeper, once: the engine calls this when the keeper runs.
    pub(in crate::engine) fn set_keeper(&self, keeper: KeeperHandle) {
        let _ = self.keeper.set(keeper);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::engine) fn entry(
        self: &Arc<Self>,
        lock: &Lock,
        partition: Partition,
        session: SessionId,
    ) -> Arc<LockEntry> {
        let mut table = self.table();
        if let Some(slot) = table.by_lock.get(lock)
            && let Some(entry) = table.slots.get(*slot as usize).and_then(|(_, entry)| entry.upgrade())
        {
            return entry;
        }
        let (slot, entry) = self.new_entry(&mut table, lock, partition, session);
        table.by_lock.insert(lock.clone(), slot);
        entry
    }

    pub(in crate::engine) fn own_entry(
        self: &Arc<Self>,
        lock: &Lock,
        partition: Partition,
        session: SessionId,
    ) -> Arc<LockEntry> {
        self.new_entry(&mut self.table(), lock, partition, session).1
    }

    fn new_entry(
        self: &Arc<Self>,
        table: &mut Table,
        lock: &Lock,
        partition: Partition,
        session: SessionId,
    ) -> (u32, Arc<LockEntry>) {
        let slot = table.free.pop().unwrap_or_else(|| {
            table.slots.push((partition, Weak::new()));
            u32::try_from(table.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let (all, left) = (Arc::downgrade(self), lock.clone());
        let entry = Arc::new(LockEntry::new(lock.clone(), partition, session, slot, move |idle| {
            if let Some(all) = all.upgrade() {
                all.remove(&left, slot);
                if let (Some(idle), Some(keeper)) = (idle, all.keeper.get()) {
                    keeper.release_idle(idle);
                }
            }
        }));
        if table.closed {
            // A new entry is empty, so nothing needs to be released.
            entry.close();
        }
        if let Some(known) = table.slots.get_mut(slot as usize) {
            *known = (partition, Arc::downgrade(&entry));
        }
        (slot, entry)
    }

    /// Joins the queues of several locks in one step, so that two such callers have the same order in all of them.
    pub(in crate::engine) fn join_all(
        &self,
        entries: &[&Arc<LockEntry>],
        terms: &Arc<AcquireTerms>,
    ) -> Vec<u64> {
        let _table = self.table();
        entries.iter().map(|entry| entry.join(terms.clone())).collect()
    }

    fn remove(&self, lock: &Lock, slot: u32) {
        let mut table = self.table();
        if let Entry::Occupied(entry) = table.by_lock.entry(lock.clone())
            && *entry.get() == slot
        {
            entry.remove();
        }
        table.free.push(slot);
    }

    /// Registers an entry of another session, to be closed with these.
    pub(in crate::engine) fn add_detached(&self, entry: &Arc<LockEntry>) {
        let mut table = self.table();
        table.detached.retain(|entry| entry.strong_count() > 0);
        table.detached.push(Arc::downgrade(entry));
        if table.closed {
            // A new entry is empty, so nothing needs to be released.
            entry.close();
        }
    }

    /// Closes all present and future entries.
    pub(in crate::engine) fn close(&self) -> Vec<(Arc<LockEntry>, ClosedEntry)> {
        let mut table = self.table();
        table.closed = true;
        let own = table.slots.iter().map(|(_, entry)| entry);
        let entries: Vec<_> = own.chain(&table.detached).filter_map(Weak::upgrade).collect();
        // An entry that is dropped removes itself from the table, which takes this mutex.
        drop(table);
        entries
            .into_iter()
            .map(|entry| {
                let closed = entry.close();
                (entry, closed)
            })
            .collect()
    }

    /// Takes all holds that are kept in the process for later acquisitions.
    pub(in crate::engine) fn remove_idle(&self) -> Vec<TrackingId> {
        let entries: Vec<_> = self.table().slots.iter().filter_map(|(_, entry)| entry.upgrade()).collect();
        entries.iter().filter_map(|entry| entry.remove_idle()).collect()
    }

    fn by_slot(&self, slot: u32) -> Option<Arc<LockEntry>> {
        self.table().slots.get(slot as usize).and_then(|(_, entry)| entry.upgrade())
    }
}

impl SessionEvents for LockTable {
    fn deliver(&self, notification: Notification) {
        match notification {
            Notification::Grant { nonce, fence, .. } => {
                if let Some(entry) = self.by_slot(nonce.index()) {
                    entry.handle_grant(nonce, fence, self.environment.now());
                }
            }
            Notification::ForceReleased { fence, .. } => {
                if let Some(keeper) = self.keeper.get() {
                    keeper.force_released(fence);
                }
            }
            Notification::Wanted { fence, .. } => {
                if let Some(keeper) = self.keeper.get() {
                    keeper.wanted(fence);
                }
            }
            _ => {}
        }
    }

    fn missed_messages(&self, partition: Partition) {
        let entries: Vec<_> = {
            let table = self.table();
            let of_it = table.slots.iter().filter(|(of, _)| *of == partition);
            of_it.filter_map(|(_, entry)| entry.upgrade()).collect()
        };
        for entry in entries {
            entry.handle_missed_messages(self.environment.now());
        }
    }

    fn reconnected(&self, partition: Partition) {
        if let Some(keeper) = self.keeper.get() {
            keeper.reconnected(partition);
        }
    }
}
