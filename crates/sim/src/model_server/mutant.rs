//! Deliberate defects of the server. A server has at most one.

use leasehold_core::model::{Content, LockState, SessionLookup, Value};
use leasehold_core::{
    Acquire, Acquired, Extended, FencingToken, HoldStatus, MultiAcquired, Notification, Op, Released, Reply,
    TokenBlock,
};

/// A deliberate defect of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMutant {
    /// A release ends the current hold without comparing.
    ReleasesAnyHold,
    /// A hold ends after half of the granted lease.
    EndsLeasesEarly,
    /// A hold never ends by itself.
    NeverEndsLeases,
    /// Fencing tokens begin again after a data loss.
    ForgetsTokens,
    /// Reserves fencing tokens far ahead of the clock, and grants smaller ones after that.
    ReservesAhead,
    /// Reports a hold as released, and keeps it.
    ReleasesNothing,
    /// Every client counts as the owner of a ReentrantMutex.
    AnyOwnerEnters,
    /// The release of any hold frees a ReentrantMutex.
    InnerReleaseFrees,
    /// Every hold of a ReentrantMutex has a token of its own.
    EntryHasOwnToken,
    /// Acquires some of several locks, and reports all.
    AcquiresSomeOfMany,
}

impl ServerMutant {
    /// The time that the server uses.
    pub(super) fn clock(self, now_us: u64, data_lost_us: u64) -> u64 {
        if self == Self::ForgetsTokens { now_us - data_lost_us } else { now_us }
    }

    /// Executes an operation with the defect.
    pub(super) fn apply(
        self,
        lock: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let last_holder = lock.record.as_ref().and_then(|record| record.last_holder.as_ref());
        let op = match (self, op, last_holder) {
            (Self::ReleasesAnyHold, Op::Release(release), Some(last_holder)) if lock.value.is_some() => {
                let mut release = release.clone();
                release.claim = last_holder.claim.clone();
                &Op::Release(release)
            }
            _ => op,
        };
        let before = lock.value_at(now_us).cloned();
        self.mutate_entries(lock, op);
        let mut result = lock.apply(now_us, op, alive);
        if self == Self::ReleasesNothing
            && let (Some(held), Reply::Release(Released { status: HoldStatus::Held, .. })) =
                (&before, &result.0)
        {
            lock.value = Some(held.clone());
            // No other waiter is granted the lock.
            result.1.clear();
        }
        if self == Self::ReservesAhead
            && let Reply::Extend(Extended::Reserved { block, .. }) = &mut result.0
            && let Some(first) = block.first()
        {
            *block = TokenBlock::new(FencingToken::new(first.as_u64() + 60_000_000), block.remaining());
        }
        self.mutate_expiry(lock, now_us, before.as_ref());
        result
    }

    /// Acquires several locks with the defect.
    pub(super) fn acquire_all(
        self,
        locks: &mut [(&mut LockState, &Acquire)],
        now_us: u64,
    ) -> Vec<MultiAcquired> {
        let before: Vec<_> = locks.iter_mut().map(|(lock, _)| lock.value_at(now_us).cloned()).collect();
        let mut replies = LockState::acquire_all(locks, now_us);
        let some = replies.iter().any(|reply| matches!(reply, MultiAcquired::Available));
        if self == Self::AcquiresSomeOfMany && some {
            let one_by_one = |(lock, acquire): &mut (&mut LockState, &Acquire)| {
                let reply = LockState::acquire_all(&mut [(&mut **lock, *acquire)], now_us).remove(0);
                let fence =
                    lock.record.as_ref().and_then(|record| record.last_fence).unwrap_or(FencingToken::new(1));
                let (remaining_ms, others_wait, owner_holds) = (acquire.lease_ms, false, None);
                match reply {
                    MultiAcquired::Blocked(_) => MultiAcquired::Acquired(Acquired::Granted {
                        fence,
                        remaining_ms,
                        others_wait,
                        owner_holds,
                    }),
                    other => other,
                }
            };
            replies = locks.iter_mut().map(one_by_one).collect();
        }
        for ((lock, _), before) in locks.iter_mut().zip(before) {
            self.mutate_expiry(lock, now_us, before.as_ref());
        }
        replies
    }

    fn mutate_entries(self, lock: &mut LockState, op: &Op) {
        let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut lock.value else { return };
        match (self, op) {
            (Self::AnyOwnerEnters, Op::Acquire(acquire)) => {
                entries.owner = acquire.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
            (Self::InnerReleaseFrees, Op::Release(release))
                if entries.find(&release.claim.hold).is_some() =>
            {
                entries.holds.retain(|entry| entry.hold == release.claim.hold);
                entries.count = 1;
            }
            (Self::EntryHasOwnToken, Op::Acquire(acquire)) if entries.find(&acquire.claim.hold).is_none() => {
                entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
            }
            _ => {}
        }
    }

    fn mutate_expiry(self, lock: &mut LockState, now_us: u64, before: Option<&Value>) {
        match (self, &mut lock.value) {
            (Self::EndsLeasesEarly, Some(value)) if before != Some(value) => {
                let now_ms = now_us / 1000;
                value.expires_ms = value.expires_ms.map(|at_ms| now_ms + at_ms.saturating_sub(now_ms) / 2);
            }
            (Self::NeverEndsLeases, Some(value)) => value.expires_ms = None,
            _ => {}
        }
    }
}
