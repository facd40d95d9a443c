//! Which requests for a shared lock are admitted, now, later or never. Kinds differ in nothing but this.
//!
//! 1. A request that can never be admitted is refused at once, so that it does not block the others.
//! 2. Only requests for which the queue itself would wait pass it: those of an owner that already holds the lock, and
//!    arrivals at a latch. An upgrade goes to the front, because all others wait for it.
//! 3. An owner that writes gets every further mode at once, as a hold of its own: no other owner has a hold then.

use super::lock::{LockState, Now};
use super::record::MAX_INSPECTED_ENTRIES;
use super::shared_holders::{SharedHold, SharedHolders};
use crate::{Acquire, Claim, LockMode, Refused};

/// Whether there is room for another hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Now,
    /// Once other holders have left.
    Later,
    /// Not as long as the request stays the same (1).
    Never,
}

/// Whether a hold excludes all other owners.
const fn writes(held: &SharedHold) -> bool {
    matches!(held.mode, LockMode::Write | LockMode::Upgrade)
}

impl LockState {
    /// Refuses a request that can never succeed (1).
    pub(super) fn check_request(&self, now: Now, request: &Acquire) -> Result<(), Refused> {
        let owns = |mode| self.holds_of_owner(&request.claim).any(|held| held.mode == mode);
        let is_empty = |count, total| count == 0 || total == 0;
        match request.mode {
            LockMode::Permits { count, total } => {
                let agrees = self.agrees(total);
                let limit = if agrees { self.limit(request.mode).unwrap_or(total) } else { total };
                if count > 0 && !agrees && !self.is_idle(now) {
                    let agreed = self.record.as_ref().and_then(|record| record.agreed);
                    let limit = self.limit(request.mode).unwrap_or_default();
                    return Err(Refused::Disagreement {
                        requested: total,
                        known: agreed.unwrap_or(limit),
                        limit,
                    });
                }
                if count == 0 || count > limit { Err(Refused::OutOfRange { count, limit }) } else { Ok(()) }
            }
            LockMode::CountDown { count, total } if is_empty(count, total) => {
                Err(Refused::OutOfRange { count, limit: total })
            }
            LockMode::LatchWait { total } if total == 0 => {
                Err(Refused::OutOfRange { count: total, limit: total })
            }
            LockMode::BarrierWait { total } if total == 0 || total as usize > MAX_INSPECTED_ENTRIES => {
                let limit = u32::try_from(MAX_INSPECTED_ENTRIES).unwrap_or(u32::MAX);
                Err(Refused::OutOfRange { count: total, limit })
            }
            LockMode::CountDown { total, .. }
            | LockMode::LatchWait { total }
            | LockMode::BarrierWait { total } => match self.record.as_ref().and_then(|record| record.limit) {
                Some(known) if known != total && !self.is_idle(now) => {
                    Err(Refused::Disagreement { requested: total, known, limit: known })
                }
                _ => Ok(()),
            },
            LockMode::Upgradable | LockMode::Write
                if !self.is_written_by(&request.claim)
                    && self.holds_of_owner(&request.claim).next().is_some() =>
            {
                Err(Refused::WouldDeadlock)
            }
            LockMode::Upgrade if !owns(LockMode::Upgradable) => Err(Refused::NothingToUpgrade),
            _ => Ok(()),
        }
    }

    /// Whether a request passes the queue (2).
    pub(super) fn skips_queue(&self, now: Now, request: &Acquire) -> bool {
        match request.mode {
            LockMode::CountDown { .. } => true,
            LockMode::Read | LockMode::Upgradable => self.holds_of_owner(&request.claim).next().is_some(),
            // It would be first in the queue, even if it does not queue.
            LockMode::Upgrade => self.admission(now, &request.claim, request.mode) == Admission::Now,
            // (3). A lock without holds can still have waiters.
            LockMode::Write => {
                self.is_written_by(&request.claim)
                    && self.admission(now, &request.claim, request.mode) == Admission::Now
            }
            _ => false,
        }
    }

    /// Whether the owner of a claim has a write, upgraded or not (3).
    fn is_written_by(&self, claim: &Claim) -> bool {
        self.holds_of_owner(claim).any(writes)
    }

    /// Whether there is room for a mode.
    pub(super) fn admission(&self, now: Now, claim: &Claim, mode: LockMode) -> Admission {
        let holds = || self.shared_holders().into_iter().flat_map(|shared| &shared.holds);
        let taken = || self.shared_holders().map_or(0, SharedHolders::count);
        let are_own = || holds().all(|held| held.owner == claim.value);
        let has_room = match mode {
            LockMode::Permits { count, .. } => {
                let limit = self.limit(mode).unwrap_or_default();
                if count > limit {
                    return Admission::Never;
                }
                taken() + u64::from(count) <= u64::from(limit)
            }
            LockMode::Read => !holds().any(writes),
            LockMode::Upgradable => !holds().any(|held| writes(held) || held.mode == LockMode::Upgradable),
            LockMode::Write => holds().next().is_none() || self.is_written_by(claim) && are_own(),
            LockMode::Upgrade => {
                if !self.holds_of_owner(claim).any(|held| held.mode == LockMode::Upgradable) {
                    return Admission::Never;
                }
                are_own()
            }
            // Expired arrivals that still count do not open it.
            LockMode::LatchWait { .. } => {
                taken() >= u64::from(self.limit(mode).unwrap_or_default()) && !self.has_expired_holds(now)
            }
            LockMode::CountDown { .. } => true,
            // Barrier parties are admitted together, and shared locks have no exclusive mode.
            LockMode::BarrierWait { .. } | LockMode::Exclusive => false,
        };
        if has_room { Admission::Now } else { Admission::Later }
    }

    /// The total number of permits, arrivals or parties: the one that the store knows, or else the one in this request.
    /// The clients of a latch or a barrier agree on the number.
    pub(super) fn limit(&self, mode: LockMode) -> Option<u32> {
        let known = self.record.as_ref().and_then(|record| record.limit);
        match mode {
            LockMode::Permits { total, .. } => known.or(Some(total)),
            _ => mode.total(),
        }
    }

    /// Whether a number of permits is the one that the store knows, or the one for which the clients ask.
    fn agrees(&self, total: u32) -> bool {
        let Some(record) = &self.record else { return true };
        record.limit.is_none_or(|limit| limit == total)
            || record.agreed.is_some_and(|agreed| agreed == total || agreed == 0)
    }

    /// Makes a Semaphore that no client uses take the number of the first client.
    pub(super) fn adopt_number(&mut self, mode: LockMode) {
        if let LockMode::Permits { total, .. } = mode
            && !self.agrees(total)
            && let Some(record) = &mut self.record
        {
            (record.limit, record.agreed) = (None, None);
        }
    }

    /// The number for which the clients ask, once one has asked for that of this mode; `None` if it is the number that the
    /// store knows.
    pub(super) fn agreed(&self, mode: LockMode) -> Option<u32> {
        let LockMode::Permits { total, .. } = mode else { return None };
        let agreed = self.record.as_ref()?.agreed?;
        Some(if agreed == 0 { total } else { agreed }).filter(|agreed| self.limit(mode) != Some(*agreed))
    }

    /// Whether no client holds the lock or waits for it.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        self.shared_holders().is_none()
            && self.record.as_ref().is_none_or(|record| !record.may_have_live_entry(now.ms))
    }

    /// The holds of the owner of a claim.
    pub(super) fn holds_of_owner<'a>(&'a self, claim: &'a Claim) -> impl Iterator<Item = &'a SharedHold> {
        let owner = claim.value.as_ref().filter(|_| self.kind.has_owners());
        self.shared_holders().into_iter().flat_map(move |shared| shared.of_owner(owner))
    }
}
