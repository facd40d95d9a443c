//! Mutants of Elections and of `once_per`: see [`Mutant`].

use crate::mutants::Mutant;
use leasehold_core::model::{LockState, SessionLookup};
use leasehold_core::{
    Acquired, FencingToken, HoldStatus, Kind, Notification, Op, Release, ReleaseAction, Reply,
};

impl Mutant {
    /// Whether it affects only Elections.
    pub const fn is_of_elections(self) -> bool {
        matches!(
            self,
            Self::ElectionIgnoresLeader
                | Self::InspectReportsWrongToken
                | Self::ProclaimWithoutComparing
                | Self::LateProclaimUndoesAnother
                | Self::ObserverForgets
                | Self::InspectIsStale
        )
    }

    /// Whether it affects only `once_per`.
    pub const fn is_of_periods(self) -> bool {
        matches!(
            self,
            Self::PeriodEndsAtOnce
                | Self::PeriodIsTooLong
                | Self::LateFinishEndsNextPeriod
                | Self::PeriodHoldIsNotExtended
        )
    }

    /// Executes an operation on an Election or a lock of `once_per`.
    pub(crate) fn apply_to_elections(
        self,
        state: &mut LockState,
        now_us: u64,
        op: &Op,
        alive: SessionLookup<'_>,
    ) -> (Reply, Vec<Notification>) {
        match (self, op) {
            (Self::ElectionIgnoresLeader, Op::Acquire(request)) if state.kind == Kind::Election => {
                let mut other = state.clone();
                other.value = None;
                let done = other.apply(now_us, &Op::Acquire(request.clone()), alive);
                if matches!(done.0, Reply::Acquire(Acquired::Granted { .. })) {
                    *state = other;
                    return done;
                }
                state.apply(now_us, op, alive)
            }
            (Self::InspectReportsWrongToken, Op::Inspect(_)) => {
                let (mut reply, notifications) = state.apply(now_us, op, alive);
                if let Reply::Inspect(inspection) = &mut reply
                    && let Some(fence) = inspection.holder.as_mut().and_then(|holder| holder.fence.as_mut())
                {
                    *fence = FencingToken::new(fence.as_u64() + 1);
                }
                (reply, notifications)
            }
            (Self::ProclaimWithoutComparing | Self::LateProclaimUndoesAnother, Op::Proclaim(proclaim)) => {
                let mut proclaim = proclaim.clone();
                if let Some(record) = &state.record
                    && let Some(last_holder) = &record.last_holder
                {
                    proclaim.observed = last_holder.label.clone();
                    if self == Self::ProclaimWithoutComparing {
                        proclaim.claim = last_holder.claim.clone();
                        proclaim.fence = record.last_fence.unwrap_or(proclaim.fence);
                    }
                }
                state.apply(now_us, &Op::Proclaim(proclaim), alive)
            }
            (
                Self::PeriodEndsAtOnce,
                Op::Release(release @ Release { action: ReleaseAction::Cooldown { .. }, .. }),
            ) => state.apply(
                now_us,
                &Op::Release(Release { action: ReleaseAction::Grant, ..release.clone() }),
                alive,
            ),
            (
                Self::PeriodIsTooLong,
                Op::Release(Release { action: ReleaseAction::Cooldown { for_ms }, .. }),
            ) => {
                let done = state.apply(now_us, op, alive);
                let found =
                    matches!(&done.0, Reply::Release(released) if released.status == HoldStatus::Held);
                if let Some(value) = state.value.as_mut().filter(|_| found) {
                    value.expires_ms = Some(now_us / 1000 + for_ms);
                }
                done
            }
            (
                Self::LateFinishEndsNextPeriod,
                Op::Release(release @ Release { action: ReleaseAction::Cooldown { .. }, .. }),
            ) => {
                let last_holder = state.record.as_ref().and_then(|record| record.last_holder.as_ref());
                let next = last_holder
                    .map(|last_holder| last_holder.claim.clone())
                    .filter(|claim| *claim != release.claim);
                match next {
                    Some(claim) => {
                        state.apply(now_us, &Op::Release(Release { claim, ..release.clone() }), alive)
                    }
                    None => state.apply(now_us, op, alive),
                }
            }
            _ => state.apply(now_us, op, alive),
        }
    }
}
