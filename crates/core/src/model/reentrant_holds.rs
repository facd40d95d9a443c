//! The value at the key of a [`ReentrantMutex`](crate::Kind::Reentrant): its owner, the hold count, and each
//! hold of the owner.
//!
//! 1. Owner and count are Redisson's, visible to all clients. The holds are Leasehold's alone, so the count
//!    can exceed their number: a Redisson client may have the same owner.
//! 2. Each hold counts until its own end, and no longer: a client that dies between two acquires leaves no
//!    count behind for ever.
//! 3. No hold is shortened or lengthened by another: a hold without extends may be an orphan, such as an
//!    acquire whose caller gave up, or one of a dead process. The reply to a further acquire reports the
//!    longest requested lease, so that the new hold lasts as long (R10).

use super::record::RecordedHolder;
use crate::{Claim, FencingToken, HoldId, Label, Liveness, OwnValue};
use serde::{Deserialize, Serialize};

/// The holds of one owner.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReentrantHolds {
    /// The owner: the claim's own value, or else the token of the hold.
    pub owner: OwnValue,
    /// How many holds the owner has, including those of clients of other libraries (1).
    pub count: u64,
    /// The fencing token of all of them; `None` while none of them is Leasehold's.
    pub fence: Option<FencingToken>,
    /// The longest requested lease, in milliseconds.
    pub lease_ms: u64,
    /// Leasehold's holds, oldest first.
    pub holds: Vec<ReentrantHold>,
}

/// One hold.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReentrantHold {
    /// The hold.
    pub hold: HoldId,
    /// Until when it counts, in milliseconds of the store's clock.
    pub until_ms: u64,
    /// When it was acquired, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends it before its time.
    pub liveness: Liveness,
    /// A description of the holder, for people to read.
    pub label: Label,
}

impl ReentrantHolds {
    /// The value after the free lock is granted.
    pub(super) fn new(holder: RecordedHolder, owner: OwnValue, fence: FencingToken, lease_ms: u64) -> Self {
        let holds = vec![ReentrantHold::new(holder, lease_ms)];
        Self { owner, count: 1, fence: Some(fence), lease_ms, holds }
    }

    /// The entry of a hold.
    pub fn find(&self, hold: &HoldId) -> Option<&ReentrantHold> {
        self.holds.iter().find(|held| held.hold == *hold)
    }

    /// Leasehold's holds, oldest first.
    pub(super) fn recorded_holders(&self) -> impl Iterator<Item = RecordedHolder> {
        self.holds.iter().map(|held| {
            let ReentrantHold { hold, since_ms, liveness, label, .. } = held.clone();
            RecordedHolder {
                claim: Claim { hold, value: Some(self.owner.clone()) },
                since_ms,
                liveness,
                label,
            }
        })
    }

    /// Adds a hold of the same owner (3).
    pub(super) fn add(&mut self, holder: RecordedHolder, fence: FencingToken, lease_ms: u64) {
        self.fence = Some(fence);
        self.lease_ms = self.lease_ms.max(lease_ms);
        self.holds.push(ReentrantHold::new(holder, lease_ms));
        self.count += 1;
    }

    /// Extends a hold. Returns whether it exists.
    pub(super) fn extend(&mut self, hold: &HoldId, now_ms: u64, lease_ms: u64) -> bool {
        let Some(held) = self.holds.iter_mut().find(|held| held.hold == *hold) else { return false };
        held.until_ms = held.until_ms.max(now_ms + lease_ms);
        self.lease_ms = self.lease_ms.max(lease_ms);
        true
    }

    /// When the last of Leasehold's holds ends, in milliseconds of the store's clock.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.holds.iter().map(|held| held.until_ms).max()
    }

    /// Whether the count includes only Leasehold's holds (1).
    pub(super) fn is_ours_alone(&self) -> bool {
        self.count == self.holds.len() as u64
    }

    /// Keeps the holds for which `keep` is true.
    pub(super) fn retain(&mut self, keep: impl Fn(&ReentrantHold) -> bool) {
        let before = self.holds.len() as u64;
        self.holds.retain(keep);
        self.count = self.count.saturating_sub(before - self.holds.len() as u64);
        if self.holds.is_empty() {
            (self.fence, self.lease_ms) = (None, 0);
        }
    }
}

impl ReentrantHold {
    fn new(holder: RecordedHolder, lease_ms: u64) -> Self {
        let RecordedHolder { claim, since_ms, liveness, label } = holder;
        Self { hold: claim.hold, until_ms: since_ms + lease_ms, since_ms, liveness, label }
    }
}
