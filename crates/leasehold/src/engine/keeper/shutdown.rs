//! Ending the keeper, and what a shutdown takes over from it (6).

use super::renewal_batcher::RenewalBatcher;
use super::shutdown_report::ShutdownReport;
use super::{Keeper, Outstanding, Shared, TrackedHold, latest_end};
use crate::engine::hold::Hold;
use crate::engine::{LostReason, NEVER};
use leasehold_core::{Moment, Released};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A hold that a shutdown takes over.
pub(in crate::engine) struct TakenHold {
    pub(in crate::engine) hold: Arc<Hold>,
    /// Set if its release is in flight, or had no answer.
    pub(in crate::engine) releasing: bool,
    /// Set if the user may have a request about it in flight.
    pub(in crate::engine) sent_by_user: bool,
    /// Set if the keeper is releasing it already (5).
    pub(in crate::engine) in_background: bool,
}

impl Keeper {
    /// Ends the keeper once its cleanups are done.
    pub(in crate::engine) fn close(&self) {
        self.shared.state().closing.get_or_insert(NEVER);
        self.shared.closed.cancel();
        self.shared.wake.notify_one();
    }

    /// Hands all holds over to a shutdown (6): from now on none is extended, and none accepted.
    pub(in crate::engine) fn begin_shutdown(&self) -> Vec<TakenHold> {
        let mut state = self.shared.state();
        state.shut_down = true;
        (state.batcher, state.idle_checks) = (RenewalBatcher::new(), BTreeSet::new());
        let take = |tracked: &mut TrackedHold| {
            tracked.lost = true;
            (tracked.slot, tracked.idle_check_at) = (None, None);
            TakenHold {
                hold: tracked.hold.clone(),
                releasing: tracked.releasing,
                sent_by_user: tracked.releasing || tracked.extended_by_user,
                in_background: tracked.background_release.is_some(),
            }
        };
        let mut taken: Vec<_> = state.tracked.values_mut().map(take).collect();
        // A release that has just failed may still be tracked.
        let tracked: BTreeSet<_> = taken.iter().map(|taken| taken.hold.claim.hold).collect();
        let unanswered = std::mem::take(&mut state.unanswered).into_values();
        let now = self.shared.environment.now();
        let is_left = |hold: &Arc<Hold>| {
            !tracked.contains(&hold.claim.hold) && now < latest_end(hold.may_last_until(), now)
        };
        let unanswered = unanswered.filter(is_left);
        taken.extend(unanswered.map(|hold| TakenHold {
            hold,
            releasing: true,
            sent_by_user: true,
            in_background: false,
        }));
        taken
    }

    /// Records that a shutdown is releasing a hold.
    pub(in crate::engine) fn add_outstanding(&self, hold: &Arc<Hold>) -> u64 {
        self.shared.state().add_outstanding(hold.lock.clone(), hold.may_last_until())
    }

    /// Makes the keeper send this and end by `by` at the latest.
    pub(in crate::engine) fn finish_shutdown(&self, shutdown_report: ShutdownReport, by: Moment) {
        let mut state = self.shared.state();
        state.shutdown_report = Some(shutdown_report);
        state.closing = Some(by);
        drop(state);
        self.shared.closed.cancel();
        self.shared.wake.notify_one();
    }

    /// Ends a shutdown at `by`, if that is before its present deadline.
    pub(in crate::engine) fn end_by(&self, by: Moment) {
        let mut state = self.shared.state();
        state.end_by = state.end_by.min(by);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Waits until the keeper has ended.
    pub(in crate::engine) async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// A token that is cancelled when the keeper has ended. It does not keep the keeper alive.
    pub(crate) fn end(&self) -> CancellationToken {
        self.shared.ended.clone()
    }

    /// Waits until the keeper has ended. Returns the store's reply about a hold whose release was cut off, or why
    /// that hold is lost.
    pub(in crate::engine) async fn release_result(&self, hold: &Hold) -> Result<Released, LostReason> {
        self.ended().await;
        if let Some(reason) = hold.loss() {
            return Err(reason);
        }
        self.shared.state().release_results.remove(&hold.claim.hold).ok_or(LostReason::ShutDown)
    }

    /// Waits until the keeper has ended. Returns when that was, and what a shutdown could not release.
    pub(in crate::engine) async fn unreleased(&self) -> (Moment, Vec<Outstanding>) {
        self.ended().await;
        let state = self.shared.state();
        (state.ended.unwrap_or(Moment::ZERO), state.unreleased.clone())
    }
}

impl Shared {
    /// Records the reply to a shutdown's release. Only a release that was cut off reads it: one with a reply of its
    /// own does not need it.
    pub(super) fn record_result(&self, hold: &Hold, released: Released) {
        self.state().release_results.insert(hold.claim.hold, released);
    }
}
