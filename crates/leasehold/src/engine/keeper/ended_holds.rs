//! Holds that have ended, as long as a store that comes back with older data may still have them.
//!
//! A replica that is promoted, or a server that restarts with a snapshot, does not know of the last releases. It takes
//! their holds for held, by a live session, until their leases end. Releasing them again costs one command each, since a
//! release names its hold by an id that no other acquisition has.
//!
//! 1. What would end within a first lease anyway is not remembered: a lock that is held only briefly costs nothing here.
//! 2. There are never more than [`MAX_ENDED`]. The oldest are forgotten first, and then end with their leases.

use crate::engine::Hold;
use leasehold_core::{Claim, FIRST_LEASE, Lock, Moment, Op, Partition, Release, ReleaseAction};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// For how long an ended hold is remembered: far longer than a replica lags that is fit to be promoted.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The largest number of ended holds that are remembered: some 2 MB.
const MAX_ENDED: usize = 10_000;

/// The holds that have ended within the last minute, in the order in which they ended.
#[derive(Default)]
pub(super) struct EndedHolds(VecDeque<EndedHold>);

struct EndedHold {
    partition: Partition,
    lock: Lock,
    claim: Claim,
    ended_at: Moment,
    /// Until when a store may keep it.
    until: Moment,
}

impl EndedHolds {
    /// Remembers a hold that has ended.
    pub(super) fn add(&mut self, hold: &Hold, now: Moment) {
        let until = hold.may_last_until();
        // A dropped guard is released and forgotten.
        let is_known = self.0.back().is_some_and(|last| last.claim.hold == hold.claim.hold);
        if until <= now + FIRST_LEASE || is_known {
            return;
        }
        self.forget_old(now);
        if self.0.len() >= MAX_ENDED {
            self.0.pop_front();
        }
        let (partition, lock, claim) = (hold.session.partition, hold.lock.clone(), hold.claim.clone());
        self.0.push_back(EndedHold { partition, lock, claim, ended_at: now, until });
    }

    /// The releases of those that a store of these partitions may still have.
    pub(super) fn releases(&mut self, partitions: &BTreeSet<Partition>, now: Moment) -> Vec<(Lock, Op)> {
        self.forget_old(now);
        let ended = self.0.iter().filter(|ended| ended.until > now && partitions.contains(&ended.partition));
        ended.map(EndedHold::release).collect()
    }

    fn forget_old(&mut self, now: Moment) {
        while self.0.pop_front_if(|ended| ended.ended_at + REMEMBERED_FOR <= now).is_some() {}
    }
}

impl EndedHold {
    fn release(&self) -> (Lock, Op) {
        let (claim, action) = (self.claim.clone(), ReleaseAction::Grant);
        (self.lock.clone(), Op::Release(Release { claim, action, next: None }))
    }
}
