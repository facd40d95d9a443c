//! Acquires several exclusive locks in one step: all of them, or none.

use super::lock::{LockState, Now};
use super::session::all_alive;
use crate::{Acquire, Acquired, MultiAcquired, Op, Refused, Reply};

impl LockState {
    /// Acquires all of several locks, or none of them. It neither queues nor passes a waiter: a free lock for which other
    /// clients wait cannot be acquired.
    pub fn acquire_all(locks: &mut [(&mut Self, &Acquire)], now_us: u64) -> Vec<MultiAcquired> {
        let now = Now { us: now_us, ms: now_us / 1000 };
        let probe = |(state, request): &mut (&mut Self, &Acquire)| {
            state.expire(now);
            // Expired holds stay in the value unless the operation writes.
            let mut seen = state.clone();
            seen.drop_expired_holds(now);
            seen.probe(now, request)
        };
        let results: Vec<_> = locks.iter_mut().map(probe).collect();
        if results.iter().any(|result| matches!(result, MultiAcquired::Blocked(_))) {
            return results;
        }
        let acquire = |(state, request): &mut (&mut Self, &Acquire)| {
            let (reply, _) = state.apply(
                now_us,
                &Op::Acquire(Acquire { queue: None, predecessor: None, ..(*request).clone() }),
                &all_alive,
            );
            match reply {
                Reply::Acquire(acquired) => MultiAcquired::Acquired(acquired),
                Reply::Refused(refused) => MultiAcquired::Blocked(Err(refused)),
                _ => MultiAcquired::Available,
            }
        };
        locks.iter_mut().map(acquire).collect()
    }

    /// Whether a lock could be acquired.
    fn probe(&self, now: Now, request: &Acquire) -> MultiAcquired {
        if self.kind.is_shared() || !request.mode.applies_to(self.kind) {
            // Shared locks cannot be acquired together with others.
            return MultiAcquired::Blocked(Err(Refused::Unsupported));
        }
        if let Err(refused) = self.refuse_other_types() {
            return MultiAcquired::Blocked(Err(refused));
        }
        if let Some(ended) = self.ended(&request.claim.hold) {
            return MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(ended)));
        }
        if self.is_held_by(&request.claim) {
            return MultiAcquired::Held;
        }
        let has_waiters = || self.record.as_ref().is_some_and(|record| record.may_have_live_entry(now.ms));
        if self.owner_holds_of(&request.claim).is_some() || (self.value.is_none() && !has_waiters()) {
            return MultiAcquired::Available;
        }
        let predecessor = self.predecessor(request, None);
        let (holder, other_holders) = (self.holder(now), Vec::new());
        MultiAcquired::Blocked(Ok(Acquired::Taken { holder, position: None, predecessor, other_holders }))
    }
}
