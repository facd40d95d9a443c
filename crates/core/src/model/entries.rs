//! What stands at the key of a [`ReentrantMutex`](crate::Kind::Reentrant): whose it is, how often, and each of his holds.
//!
//! 1. Owner and count are Redisson's, for all clients to see. The holds are ours alone, so the count can be greater than
//!    they are many: a client of Redisson's with the same owner.
//! 2. Each hold counts until its own end, and no longer: who died between two acquires leaves no count behind for ever.
//! 3. No hold is shortened or lengthened by another: one that nobody extends may be a ghost, an acquire that nobody waits
//!    for any more, or that of a process that has died. The longest lease that was asked for is told to whoever enters
//!    again, who has his own hold last as long (R10).

use super::record::Tenant;
use crate::{Claim, FencingToken, HoldId, Label, Life, OwnValue};
use serde::{Deserialize, Serialize};

/// The entries of one owner.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entries {
    /// Whose they are: the claim's own value, or where it has none the token of the hold.
    pub owner: OwnValue,
    /// How often he has the lock, for clients of other libraries too (1).
    pub count: u64,
    /// The fencing token of all of them; `None` while none of them is ours.
    pub fence: Option<FencingToken>,
    /// The longest lease that was asked for, in milliseconds.
    pub lease_ms: u64,
    /// Those that are ours, the oldest first.
    pub holds: Vec<Entry>,
}

/// One entry.
///
/// [`LockState`](super::LockState) has it, and shows what it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The hold.
    pub hold: HoldId,
    /// Until when it counts, in milliseconds of the store's clock.
    pub until_ms: u64,
    /// Since when, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends it before its time.
    pub life: Life,
    /// Who it is, for others to read.
    pub label: Label,
}

impl Entries {
    /// What one has who was given the free lock.
    pub(super) fn of(tenant: Tenant, owner: OwnValue, fence: FencingToken, lease_ms: u64) -> Self {
        let holds = vec![Entry::of(tenant, lease_ms)];
        Self { owner, count: 1, fence: Some(fence), lease_ms, holds }
    }

    /// The entry of a hold.
    pub fn entry(&self, hold: &HoldId) -> Option<&Entry> {
        self.holds.iter().find(|entry| entry.hold == *hold)
    }

    /// Ours, as those who have the lock: the oldest first.
    pub(super) fn lessees(&self) -> impl Iterator<Item = Tenant> {
        self.holds.iter().map(|entry| {
            let Entry { hold, since_ms, life, label, .. } = entry.clone();
            Tenant { claim: Claim { hold, value: Some(self.owner.clone()) }, since_ms, life, label }
        })
    }

    /// Enters again (3).
    pub(super) fn enter(&mut self, tenant: Tenant, fence: FencingToken, lease_ms: u64) {
        self.fence = Some(fence);
        self.lease_ms = self.lease_ms.max(lease_ms);
        self.holds.push(Entry::of(tenant, lease_ms));
        self.count += 1;
    }

    /// Lengthens one. Says whether it is there.
    pub(super) fn extend(&mut self, hold: &HoldId, now_ms: u64, lease_ms: u64) -> bool {
        let Some(entry) = self.holds.iter_mut().find(|entry| entry.hold == *hold) else { return false };
        entry.until_ms = entry.until_ms.max(now_ms + lease_ms);
        self.lease_ms = self.lease_ms.max(lease_ms);
        true
    }

    /// When the last of ours ends, in milliseconds of the store's clock.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.holds.iter().map(|entry| entry.until_ms).max()
    }

    /// Whether nobody has a part of the count but us (1).
    pub(super) fn is_ours_alone(&self) -> bool {
        self.count == self.holds.len() as u64
    }

    /// Keeps those of ours that are to stay.
    pub(super) fn retain(&mut self, stays: impl Fn(&Entry) -> bool) {
        let before = self.holds.len() as u64;
        self.holds.retain(stays);
        self.count = self.count.saturating_sub(before - self.holds.len() as u64);
        if self.holds.is_empty() {
            (self.fence, self.lease_ms) = (None, 0);
        }
    }
}

impl Entry {
    fn of(tenant: Tenant, lease_ms: u64) -> Self {
        let Tenant { claim, since_ms, life, label } = tenant;
        Self { hold: claim.hold, until_ms: since_ms + lease_ms, since_ms, life, label }
    }
}
