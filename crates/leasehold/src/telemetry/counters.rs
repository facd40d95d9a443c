//! What a client counts, whether or not there is an observer.

use super::observer::{Handover, NotAcquiredReason, RequestOutcome};
use crate::lost_reason::LostReason;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that threads change without waiting for each other. Its order against other memory does not matter.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The figures of [`Stats`](crate::inspect::Stats), under the same names.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) held: Count,
    pub(crate) waiting: Count,
    pub(crate) acquired: Count,
    pub(crate) taken: Count,
    pub(crate) timed_out: Count,
    pub(crate) failed: Count,
    pub(crate) cancelled: Count,
    pub(crate) closed: Count,
    pub(crate) released: Count,
    pub(crate) handed_off_locally: Count,
    pub(crate) handed_off_remotely: Count,
    pub(crate) renewals: Count,
    pub(crate) failed_renewals: Count,
    pub(crate) sessions_lapsed: Count,
    pub(crate) requests_done: Count,
    pub(crate) requests_not_executed: Count,
    pub(crate) requests_unknown: Count,
    pub(crate) lost: LossCounters,
}

/// The same by reason.
#[derive(Debug, Default)]
pub(crate) struct LossCounters {
    pub(crate) expired: Count,
    pub(crate) taken_over: Count,
    pub(crate) removed: Count,
    pub(crate) store_lost_data: Count,
    pub(crate) evicted: Count,
    pub(crate) force_released: Count,
    pub(crate) session_lapsed: Count,
    pub(crate) released: Count,
    pub(crate) capped: Count,
    pub(crate) shut_down: Count,
}

impl Counters {
    pub(super) fn not_acquired(&self, reason: NotAcquiredReason) -> &Count {
        match reason {
            NotAcquiredReason::Taken => &self.taken,
            NotAcquiredReason::TimedOut => &self.timed_out,
            NotAcquiredReason::Failed => &self.failed,
            NotAcquiredReason::Cancelled => &self.cancelled,
            NotAcquiredReason::Closed => &self.closed,
        }
    }

    pub(super) fn handed_off(&self, from: Handover) -> &Count {
        match from {
            Handover::Local => &self.handed_off_locally,
            Handover::Remote => &self.handed_off_remotely,
        }
    }

    pub(super) fn requests(&self, outcome: RequestOutcome) -> &Count {
        match outcome {
            RequestOutcome::Done => &self.requests_done,
            RequestOutcome::NotExecuted => &self.requests_not_executed,
            RequestOutcome::Unknown => &self.requests_unknown,
        }
    }

    pub(super) fn lost(&self, reason: &LostReason) -> &Count {
        let lost = &self.lost;
        match reason {
            LostReason::Expired => &lost.expired,
            LostReason::TakenOver { .. } => &lost.taken_over,
            LostReason::Removed => &lost.removed,
            LostReason::StoreLostData => &lost.store_lost_data,
            LostReason::Evicted => &lost.evicted,
            LostReason::ForceReleased => &lost.force_released,
            LostReason::SessionLapsed => &lost.session_lapsed,
            LostReason::Released => &lost.released,
            LostReason::Capped => &lost.capped,
            LostReason::ShutDown => &lost.shut_down,
        }
    }
}
