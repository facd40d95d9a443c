//! The value at the key of a shared lock: each hold with its own mode, expiry and fencing token.
//!
//! 1. Each hold has its own end: a live holder does not keep a dead one's hold. Expired holds are dropped by operations that
//!    change the lock, those that ended first, a bounded number by each; until then they count.
//! 2. The holds are in the order of their fencing tokens, which is the order in which they were granted.

use super::record::RecordedHolder;
use crate::{Claim, FencingToken, HoldId, Holder, Label, Liveness, LockMode, OwnValue};
use serde::{Deserialize, Serialize};

/// How many holds, those that end first, one operation inspects: to find the expired ones, those of a dead session, and those
/// that block a waiter.
pub(super) const MAX_INSPECTED_HOLDS: usize = 64;

/// The holds of a shared lock.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedHolders {
    /// The holds, oldest first (2).
    pub holds: Vec<SharedHold>,
    /// The greatest fencing token that it has issued.
    #[serde(default)]
    pub newest: Option<FencingToken>,
}

/// One hold of a shared lock.
///
/// Part of [`LockState`](super::LockState); see there for an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedHold {
    /// The hold.
    pub hold: HoldId,
    /// Its owner, for an RwLock.
    pub owner: Option<OwnValue>,
    /// Its mode.
    pub mode: LockMode,
    /// Its fencing token.
    pub fence: FencingToken,
    /// Until when it counts, in milliseconds of the store's clock.
    pub until_ms: u64,
    /// When it was acquired, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// What ends it before its time.
    pub liveness: Liveness,
    /// A description of the holder, for people to read.
    pub label: Label,
}

impl SharedHolders {
    /// The entry of a hold.
    pub fn find(&self, hold: &HoldId) -> Option<&SharedHold> {
        self.holds.iter().find(|held| held.hold == *hold)
    }

    /// How many permits or arrivals are taken.
    pub fn count(&self) -> u64 {
        self.holds.iter().map(|held| u64::from(held.mode.count())).sum()
    }

    /// The holds of an owner.
    pub(super) fn of_owner<'a>(
        &'a self,
        owner: Option<&'a OwnValue>,
    ) -> impl Iterator<Item = &'a SharedHold> {
        self.holds.iter().filter(move |held| owner.is_some() && held.owner.as_ref() == owner)
    }

    /// The holds as recorded holders.
    pub(super) fn recorded_holders(&self) -> impl Iterator<Item = RecordedHolder> {
        self.holds.iter().map(|held| {
            let SharedHold { hold, owner, since_ms, liveness, label, .. } = held.clone();
            RecordedHolder { claim: Claim { hold, value: owner }, since_ms, liveness, label }
        })
    }

    /// Adds a hold (2). A hold has one entry: an older one that was over exists again if the clock has gone
    /// back.
    pub(super) fn add(&mut self, held: SharedHold) {
        self.holds.retain(|other| other.hold != held.hold);
        self.newest = self.newest.max(Some(held.fence));
        let place = self.holds.partition_point(|other| {
            other.fence < held.fence || other.fence == held.fence && other.hold.token() < held.hold.token()
        });
        self.holds.insert(place, held);
    }

    /// The holds that end first, `count` at most. An operation inspects no others, so that its cost does not grow with
    /// the number of holders. Holds of dead clients are among them soon, since they are not extended.
    pub(super) fn first_to_end(&self, count: usize) -> Vec<&SharedHold> {
        let mut first: Vec<_> = self.holds.iter().collect();
        if first.len() > count {
            // The order of an index, which knows no ages.
            first.select_nth_unstable_by(count, |a, b| {
                a.until_ms.cmp(&b.until_ms).then_with(|| a.hold.token().cmp(&b.hold.token()))
            });
            first.truncate(count);
            first.sort_unstable_by_key(|held| (held.fence, held.hold.token()));
        }
        // Of those that end in the same millisecond, the oldest first (2).
        first.sort_by_key(|held| held.until_ms);
        first
    }

    /// Extends a hold, if it exists.
    pub(super) fn extend(&mut self, hold: &HoldId, until_ms: u64) {
        if let Some(held) = self.holds.iter_mut().find(|held| held.hold == *hold) {
            held.until_ms = held.until_ms.max(until_ms);
        }
    }

    /// Leaves a hold no more than so many permits. Returns until when it counts, if that changes it.
    pub(super) fn keep_permits(&mut self, hold: &HoldId, kept: u32) -> Option<u64> {
        let held = self.holds.iter_mut().find(|held| held.hold == *hold)?;
        let LockMode::Permits { count, total } = held.mode else { return None };
        held.mode = LockMode::Permits { count: count.min(kept), total };
        (count > kept).then_some(held.until_ms)
    }

    /// When the last of them ends, in milliseconds of the store's clock.
    pub(super) fn until_ms(&self) -> Option<u64> {
        self.holds.iter().map(|held| held.until_ms).max()
    }
}

impl SharedHold {
    /// What others may know of it.
    pub(super) fn holder(&self, now_ms: u64) -> Holder {
        Holder {
            label: Some(self.label.clone()),
            owner: self.owner.clone(),
            count: 1,
            remaining_ms: Some(self.until_ms.saturating_sub(now_ms)),
            fence: Some(self.fence),
            since_ms: Some(self.since_ms),
            session: self.liveness.ends_with_session().then(|| self.hold.session()),
            mode: self.mode,
            in_cooldown: false,
        }
    }
}
