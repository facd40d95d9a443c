//! Holds that have ended, as long as a store that comes back with older data may still have them.
//!
//! A replica that is promoted, or a server that restarts with a snapshot, does not know of the last releases. It takes
//! their holds for held, by a live session, until their leases end. Releasing them again costs one command each, since a
//! release names its hold by an id that no other acquisition has.
//!
//! 1. What would end within a first lease anyway is not remembered: a lock that is held only briefly costs nothing here.
//! 2. There are never more than [`MAX_ENDED`]. The oldest are forgotten first, and then end with their leases.
//! 3. What is left to expire at the store is not remembered: a release would end it before its margin.
//! 4. What ends after a reconnect is released at that store, and not again, though the comparison may be later.

use crate::engine::Hold;
use leasehold_core::{Claim, FIRST_LEASE, Lock, Moment, Op, Partition, Release, ReleaseAction};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// For how long an ended hold is remembered: far longer than a replica lags that is fit to be promoted.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// The largest number of ended holds that are remembered: some 2 MB.
const MAX_ENDED: usize = 10_000;

/// The holds that have ended within the last minute, in the order in which they ended.
#[derive(Default)]
pub(super) struct EndedHolds {
    holds: VecDeque<EndedHold>,
    /// How many have ended in all.
    ended: u64,
}

struct EndedHold {
    /// How many had ended before.
    number: u64,
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
        if !hold.may_release(now) {
            return;
        }
        let until = hold.may_last_until();
        // A dropped guard is released and forgotten.
        let is_known = self.holds.back().is_some_and(|last| last.claim.hold == hold.claim.hold);
        if until <= now + FIRST_LEASE || is_known {
            return;
        }
        self.forget_old(now);
        if self.holds.len() >= MAX_ENDED {
            self.holds.pop_front();
        }
        let (partition, lock, claim) = (hold.session.partition, hold.lock.clone(), hold.claim.clone());
        self.holds.push_back(EndedHold { number: self.ended, partition, lock, claim, ended_at: now, until });
        self.ended += 1;
    }

    /// How many have ended until now.
    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }

    /// The releases of those that a store of these partitions may still have, each with how many had ended when it was
    /// reconnected (4).
    pub(super) fn releases(
        &mut self,
        reconnected: &BTreeMap<Partition, u64>,
        now: Moment,
    ) -> Vec<(Lock, Op)> {
        self.forget_old(now);
        let is_before =
            |ended: &EndedHold| reconnected.get(&ended.partition).is_some_and(|at| ended.number < *at);
        let ended = self.holds.iter().filter(|ended| ended.until > now && is_before(ended));
        ended.map(EndedHold::release).collect()
    }

    fn forget_old(&mut self, now: Moment) {
        while self.holds.front().is_some_and(|ended| ended.ended_at + REMEMBERED_FOR <= now) {
            self.holds.pop_front();
        }
    }
}

impl EndedHold {
    fn release(&self) -> (Lock, Op) {
        let (claim, action) = (self.claim.clone(), ReleaseAction::Grant);
        (self.lock.clone(), Op::Release(Release { claim, action, next: None, history: 0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::NEVER;
    use super::*;
    use crate::engine::Session;
    use leasehold_core::{FencingToken, HoldId, Liveness, SessionId};
    use std::sync::{Arc, Weak};

    fn hold(number: u8) -> Hold {
        let session = SessionId::from_random([1; 12]);
        let claim = Claim { hold: HoldId::from_random(session, [number; 16]), value: None };
        let lock = Lock::mutex("job".parse().expect("a good name"));
        let session = Arc::new(Session::new(Partition::ONLY, session, Liveness::Lease, NEVER));
        Hold::new(lock, claim, FencingToken::new(1), NEVER, session, Weak::<crate::engine::LockEntry>::new())
    }

    #[test]
    fn a_hold_that_ends_after_a_reconnect_is_not_released_again() {
        let (now, before, after) = (Moment::from_micros(1_000_000), hold(1), hold(2));
        let mut ended = EndedHolds::default();
        ended.add(&before, now);
        let reconnected = BTreeMap::from([(Partition::ONLY, ended.ended())]);
        ended.add(&after, now);
        let released = |ended: &mut EndedHolds, reconnected: &_, now| {
            let claims = ended.releases(reconnected, now).into_iter().map(|(_, op)| match op {
                Op::Release(release) => release.claim,
                other => panic!("{other:?}"),
            });
            claims.collect::<Vec<_>>()
        };
        assert_eq!(released(&mut ended, &reconnected, now), std::slice::from_ref(&before.claim));
        let reconnected = BTreeMap::from([(Partition::ONLY, ended.ended())]);
        assert_eq!(released(&mut ended, &reconnected, now), [before.claim, after.claim]);
        assert!(released(&mut ended, &reconnected, now + REMEMBERED_FOR).is_empty());
        assert_eq!(released(&mut ended, &BTreeMap::new(), now), []);
    }

    /// It expires when its margin is over, and a release would end it before.
    #[test]
    fn a_hold_that_is_left_to_expire_is_not_released_after_a_reconnect() {
        let (now, margin) = (Moment::from_micros(1_000_000), Duration::from_secs(10));
        let [late, in_time] = [1, 2].map(|number| hold(number).with_margin(margin));
        late.invalidate();
        let mut ended = EndedHolds::default();
        ended.add(&late, now);
        ended.add(&in_time, now);
        // What was decided at first counts: it is released, however late that is repeated.
        in_time.invalidate();
        ended.add(&in_time, now);
        assert_eq!((late.may_release(now), in_time.may_release(now), ended.ended()), (false, true, 1));
    }
}
