//! Deliberate defects of the server. A server has at most one.

use leasehold_core::model::{Content, LockState, SessionLookup, Value};
use leasehold_core::{
    Acquire, Acquired, Extended, FencingToken, HoldStatus, MultiAcquired, Notification, Op, Released, Reply,
    TokenBlock,
};

/// A deliberate defect of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// A release ends whatever hold it finds, without comparing it.
    ReleasesAnyHold,
    /// A hold ends after half the lease that its holder received.
    EndsLeasesEarly,
    /// A hold never ends by itself.
    NeverEndsLeases,
    /// Fencing tokens begin again where the data was lost.
    ForgetsTokens,
    /// Reserves fencing tokens that are far ahead of the clock, and gives smaller ones after that.
    ReservesAhead,
    /// Reports a hold released, and keeps it.
    ForgetsReleases,
    /// Takes every client for the owner of a ReentrantMutex.
    MixesOwners,
    /// The release of any hold frees a ReentrantMutex.
    InnerReleaseFrees,
    /// Gives every hold of a ReentrantMutex a token of its own.
    EntryHasItsToken,
    /// Acquires some of several locks, and reports all.
    TakesSome,
}

impl Flaw {
    /// The time that the server uses.
    pub(super) fn clock(self, now_us: u64, lost_us: u64) -> u64 {
        if self == Self::ForgetsTokens { now_us - lost_us } else { now_us }
    }

    /// Executes an operation, wrongly.
    pub(super) fn apply(
        self,
        lock: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        let tenant = lock.record.as_ref().and_then(|record| record.last_holder.as_ref());
        let op = match (self, op, tenant) {
            (Self::ReleasesAnyHold, Op::Release(release), Some(tenant)) if lock.value.is_some() => {
                let mut release = release.clone();
                release.claim = tenant.claim.clone();
                &Op::Release(release)
            }
            _ => op,
        };
        let before = lock.value_at(now_us).cloned();
        self.spoil_entries(lock, op);
        let mut result = lock.apply(now_us, op, alive);
        if self == Self::ForgetsReleases
            && let (Some(stood), Reply::Release(Released { status: HoldStatus::Held, .. })) =
                (&before, &result.0)
        {
            lock.value = Some(stood.clone());
            // Grants it to no other waiter.
            result.1.clear();
        }
        if self == Self::ReservesAhead
            && let Reply::Extend(Extended::Reserved { block, .. }) = &mut result.0
            && let Some(first) = block.first()
        {
            *block = TokenBlock::new(FencingToken::new(first.as_u64() + 60_000_000), block.remaining());
        }
        self.spoil_ends(lock, now_us, before.as_ref());
        result
    }

    /// Takes all of several locks, or none, wrongly.
    pub(super) fn take_all(
        self,
        locks: &mut [(&mut LockState, &Acquire)],
        now_us: u64,
    ) -> Vec<MultiAcquired> {
        let before: Vec<_> = locks.iter_mut().map(|(lock, _)| lock.value_at(now_us).cloned()).collect();
        let mut shares = LockState::acquire_all(locks, now_us);
        let some = shares.iter().any(|share| matches!(share, MultiAcquired::Available));
        if self == Self::TakesSome && some {
            let alone = |(lock, ask): &mut (&mut LockState, &Acquire)| {
                let share = LockState::acquire_all(&mut [(&mut **lock, *ask)], now_us).remove(0);
                let fence =
                    lock.record.as_ref().and_then(|record| record.last_fence).unwrap_or(FencingToken::new(1));
                let (remaining_ms, others_wait, owner_holds) = (ask.lease_ms, false, None);
                match share {
                    MultiAcquired::Blocked(_) => MultiAcquired::Acquired(Acquired::Granted {
                        fence,
                        remaining_ms,
                        others_wait,
                        owner_holds,
                    }),
                    had => had,
                }
            };
            shares = locks.iter_mut().map(alone).collect();
        }
        for ((lock, _), before) in locks.iter_mut().zip(before) {
            self.spoil_ends(lock, now_us, before.as_ref());
        }
        shares
    }

    fn spoil_entries(self, lock: &mut LockState, op: &Op) {
        let Some(Value { content: Content::ReentrantHolds(entries), .. }) = &mut lock.value else { return };
        match (self, op) {
            (Self::MixesOwners, Op::Acquire(ask)) => {
                entries.owner = ask.claim.value.clone().unwrap_or_else(|| entries.owner.clone());
            }
            (Self::InnerReleaseFrees, Op::Release(release))
                if entries.find(&release.claim.hold).is_some() =>
            {
                entries.holds.retain(|entry| entry.hold == release.claim.hold);
                entries.count = 1;
            }
            (Self::EntryHasItsToken, Op::Acquire(ask)) if entries.find(&ask.claim.hold).is_none() => {
                entries.fence = entries.fence.map(|fence| FencingToken::new(fence.as_u64() + 1));
            }
            _ => {}
        }
    }

    fn spoil_ends(self, lock: &mut LockState, now_us: u64, before: Option<&Value>) {
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
