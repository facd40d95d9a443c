//! Merges what the client counts into the statistics of the store.
//!
//! 1. A client that has counted something merges it once in [`MERGE_INTERVAL`], and when it is shut down. One that uses no locks
//!    sends nothing. A merge costs the server more than a heartbeat, so it is seldom.
//! 2. A merge that is executed twice counts twice. So one without an answer is not sent again: what it had may be lost, and is never
//!    counted twice.
//! 3. A store that refuses is not asked again: it keeps no statistics, or this user may not.

use super::Shared;
use crate::store::{Executed, Fault, FaultKind, Outcome, Phase};
use crate::telemetry::Operation;
use leasehold_core::{Moment, Partition, SessionOp, SessionReply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a client merges (1).
const MERGE_INTERVAL: Duration = Duration::from_secs(60);

/// Whether this client merges.
#[derive(Default)]
pub(super) struct Merging {
    /// Set once the store refuses (3).
    is_off: AtomicBool,
    /// Set while a request is in flight.
    is_sending: AtomicBool,
}

impl Shared {
    /// Has the keeper woken when there is something to merge.
    pub(super) fn watch_statistics(self: &Arc<Self>) {
        let (shared, Some(counted)) = (Arc::downgrade(self), self.telemetry().counted()) else { return };
        counted.on_first(move || {
            if let Some(shared) = shared.upgrade() {
                shared.wake.notify_one();
            }
        });
    }

    /// When the next merge is due.
    pub(super) fn merge_due(&self) -> Option<Moment> {
        let is_ready = |flag: &AtomicBool| !flag.load(Ordering::Relaxed);
        let counted = self.telemetry().counted()?;
        let may_send = is_ready(&self.merging.is_off) && is_ready(&self.merging.is_sending);
        counted.since().filter(|_| may_send).map(|since| since + MERGE_INTERVAL)
    }

    /// Whether a merge begins now. It counts as begun.
    pub(super) fn begins_merge(&self, now: Moment) -> bool {
        let is_due = self.merge_due().is_some_and(|due| due <= now);
        if is_due {
            self.merging.is_sending.store(true, Ordering::Relaxed);
        }
        is_due
    }
}

/// Sends what was counted.
pub(super) async fn merge_statistics(shared: Arc<Shared>) {
    merge_within(&shared, shared.timings.call).await;
    shared.merging.is_sending.store(false, Ordering::Relaxed);
    shared.wake.notify_one();
}

/// The same for a client that is shut down.
pub(super) async fn merge_last(shared: &Shared, within: Duration) {
    let is_busy = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
    if !within.is_zero() && !is_busy(&shared.merging.is_off) && !is_busy(&shared.merging.is_sending) {
        merge_within(shared, within).await;
    }
}

async fn merge_within(shared: &Shared, within: Duration) {
    let (Some(counted), now) = (shared.telemetry().counted(), shared.environment.now()) else { return };
    let merge = counted.take(now);
    if merge.classes.is_empty() {
        return;
    }
    let op = SessionOp::MergeStatistics(merge);
    let request = shared.telemetry().request();
    let outcome = shared.store.execute_session(Partition::ONLY, &op, within).await;
    request.answered(op.operation(), &outcome);
    match outcome {
        Outcome::Done(SessionReply::MergeStatistics) => {}
        Outcome::Done(_) => shared.stop_merging(None),
        Outcome::Failed(executed, fault) => {
            if let (Executed::No, SessionOp::MergeStatistics(merge)) = (executed, &op) {
                counted.give_back(merge, now);
            }
            if is_final(&fault) {
                shared.stop_merging(Some(&fault));
            } else {
                tracing::debug!(%fault, "the statistics were not merged");
            }
        }
    }
}

/// Whether the store will never take them (3): full memory, a password that was changed and statistics of another format pass.
const fn is_final(fault: &Fault) -> bool {
    match fault.kind {
        FaultKind::Forbidden | FaultKind::Unsupported(_) => true,
        FaultKind::Unusable(_) => matches!(fault.phase, Phase::Send),
        _ => false,
    }
}

impl Shared {
    /// The store refuses (3).
    fn stop_merging(&self, fault: Option<&Fault>) {
        let reason = fault.map(ToString::to_string).unwrap_or_default();
        tracing::debug!(reason, "this store does not take statistics");
        self.merging.is_off.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_does_not_end_the_merging() {
        let fault = |kind, phase| Fault::new(kind, phase, "a store");
        assert!(is_final(&fault(FaultKind::Forbidden, Phase::Reply)));
        assert!(is_final(&fault(FaultKind::Unusable("no such operation".into()), Phase::Send)));
        assert!(!is_final(&fault(FaultKind::Unusable("another format".into()), Phase::Reply)));
        assert!(!is_final(&fault(FaultKind::OutOfMemory, Phase::Reply)));
        assert!(!is_final(&fault(FaultKind::Failed("the disk is full".into()), Phase::Reply)));
    }
}
