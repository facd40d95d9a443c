//! From an acquired hold to its guard: which lease it has, how it is renewed, and that the keeper knows it before anything is
//! awaited.

use super::{AcquireOptions, AcquiredGuard, HoldDuration, LockHandle, current_actor};
use crate::engine::{AcquireFailure, AcquiredHold, Hold, LockEntry, ReleasePolicy, TrackingId};
use crate::guard::Guard;
use crate::guard::existing_leases::ExistingLeases;
use leasehold_core::machine::renewal::{HoldLimits, RenewalPlan, RenewalSchedule};
use leasehold_core::{LeaseError, Moment, delay_margin};
use std::sync::Arc;
use std::time::Duration;

/// How the keeper renews a hold.
struct RenewalTerms {
    plan: RenewalPlan,
    limits: HoldLimits,
    /// How long it lasts without a renewal.
    lease: Duration,
    /// Fails if the hold should already have ended.
    valid: Result<(), LeaseError>,
}

impl LockHandle {
    /// Passes an acquired hold to the keeper, with no await before that.
    pub(crate) fn track(
        &self,
        options: &AcquireOptions,
        acquired: AcquiredHold<'_>,
        duration: HoldDuration,
        entry: &Arc<LockEntry>,
    ) -> Result<Result<AcquiredGuard, AcquireFailure>, LeaseError> {
        let (hold, grant) = (acquired.hold.clone(), &acquired.grant);
        let now = self.engine.environment.now();
        hold.set_actor(current_actor());
        let existing = self.existing(options, &acquired, now);
        let count = grant.owner_holds.map_or(1, |holds| holds.count);
        let RenewalTerms { plan, limits, lease, valid } = self.renewal_terms(duration, existing, now);
        hold.set_lease(lease);
        let schedule = RenewalSchedule::with_limits(plan, limits, grant.valid_until, now);
        let schedule = if hold.session.has_begun() { schedule } else { schedule.defer_first_extend(now) };
        // The queue entry may have been made by a task that wanted the lock for longer.
        hold.limit_validity(schedule.valid_until());
        let Some(tracking) = self.engine.keeper.track(hold.clone(), schedule) else {
            // A shutdown has begun, and no keeper tracks the hold. The lock entry may be gone already.
            self.engine.keeper.release(&hold);
            return Ok(Err(AcquireFailure::Closed));
        };
        drop(acquired);
        let guard = self.guard(hold, tracking, entry).with_existing_leases(existing);
        // Until it is confirmed, the hold is not handed to another task of this process, even if the tasks
        // that await the confirmation are dropped.
        let guard = if self.engine.store.capabilities().confirmation {
            guard.release_policy(ReleasePolicy::TO_STORE)
        } else {
            guard
        };
        valid.map(|()| Ok(AcquiredGuard { guard, count }))
    }

    /// Waits until replicas confirm an acquired hold, if the store was configured to require that. A hold
    /// handed off within the process was confirmed before.
    pub(crate) async fn confirmed(
        &self,
        acquired: AcquiredGuard,
        limit: Option<Moment>,
    ) -> Result<AcquiredGuard, AcquireFailure> {
        if !self.engine.store.capabilities().confirmation {
            return Ok(acquired);
        }
        let AcquiredGuard { guard, count } = acquired;
        guard.confirmed(limit).await?;
        Ok(AcquiredGuard { guard: guard.release_policy(self.release_policy), count })
    }

    /// Takes over a hold that was handed off within the process; `None` if it was lost meanwhile.
    pub(super) fn take_over(
        &self,
        acquired: AcquiredHold<'_>,
        tracking: TrackingId,
        duration: HoldDuration,
        entry: &Arc<LockEntry>,
    ) -> Result<Option<Guard>, LeaseError> {
        let (hold, now) = (acquired.hold.clone(), self.engine.environment.now());
        let RenewalTerms { plan, limits, lease, valid } =
            self.renewal_terms(duration, ExistingLeases::default(), now);
        hold.set_lease(lease);
        hold.set_actor(current_actor());
        if !self.engine.keeper.hand_off(tracking, &hold, (plan, limits), now) {
            entry.remove_hold(&hold);
            return Ok(None);
        }
        drop(acquired);
        let guard = self.guard(hold, tracking, entry);
        valid.map(|()| Some(guard))
    }

    /// From now on keeps a hold that another handle has acquired by the settings of this one, as if it were acquired now.
    pub(crate) fn keep(&self, guard: Guard) -> Result<Guard, LeaseError> {
        let now = self.now();
        let duration = self.duration()?;
        let RenewalTerms { plan, limits, lease, valid } =
            self.renewal_terms(duration, ExistingLeases::default(), now);
        let guard = guard.replan(self.lease, lease, (plan, limits), now);
        valid.map(|()| guard)
    }

    fn guard(&self, hold: Arc<Hold>, tracking: TrackingId, entry: &Arc<LockEntry>) -> Guard {
        Guard::new(self.engine.clone(), entry.clone(), hold, tracking, self.lease, self.release_policy)
    }

    /// How to renew a hold acquired now.
    fn renewal_terms(&self, duration: HoldDuration, existing: ExistingLeases, now: Moment) -> RenewalTerms {
        let HoldDuration { lease, max_hold } = duration;
        // The remaining lease, if it is to last until a given instant, which may have passed meanwhile.
        let left = self.lease.map(|lease| lease.remaining(self.engine.environment.system_time())).transpose();
        // The sum of leases may exceed the store's limit, though each lease alone was checked.
        let longest = self.engine.store.capabilities().max_lease;
        let kept = |left: Duration| existing.with(left) + delay_margin(self.lock_delay);
        let too_long = |left: Duration| longest.filter(|max| kept(left) > *max);
        let left = left.and_then(|left| match left.and_then(|left| Some((left, too_long(left)?))) {
            Some((left, max)) => Err(LeaseError::TooLongForStore { lease: kept(left), max }),
            None => Ok(left),
        });
        let (plan, lease) = match &left {
            Ok(None) => (RenewalPlan::Renew { lease }, lease),
            Ok(Some(left)) => {
                let lease = existing.with(*left);
                (RenewalPlan::Until { end: now + lease }, lease)
            }
            Err(_) => (RenewalPlan::Until { end: now }, Duration::ZERO),
        };
        let end = max_hold.map(|max_hold| now + max_hold);
        let limits = HoldLimits { end, max_renewals: self.max_renewals };
        RenewalTerms { plan, limits, lease, valid: left.map(drop) }
    }

    /// Existing leases of this owner that the new hold must account for.
    fn existing(&self, options: &AcquireOptions, acquired: &AcquiredHold<'_>, now: Moment) -> ExistingLeases {
        let Some(holds) = acquired.grant.owner_holds.filter(|holds| holds.count > 1) else {
            return ExistingLeases::default();
        };
        // Holds of this process may not have been extended to their full leases yet.
        let here = self.entry.longest_lease(acquired.hold.fence, now);
        let at_store = Duration::from_millis(holds.lease_ms);
        ExistingLeases {
            longest: here.max(at_store.saturating_sub(delay_margin(self.lock_delay))),
            sum_leases: options.sum_leases,
        }
    }
}
