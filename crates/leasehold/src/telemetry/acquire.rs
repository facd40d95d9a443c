//! One acquire, from the call to its result. Dropped before, it was cancelled.

use super::hold::{HeldTrace, HoldTrace};
use super::observer::{Acquired, HandedOff, Handover, NotAcquired, NotAcquiredReason, Waiting};
use super::statistics::AcquireCount;
use super::{Class, TARGET, Telemetry, millis, record};
use crate::lost_reason::LostReason;
use leasehold_core::machine::contender::WaitStatus;
use leasehold_core::{FencingToken, Lock, Moment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::Span;
use tracing::field::Empty;

/// An acquire that is going on.
pub(crate) struct AcquireTrace<'a> {
    telemetry: &'a Arc<Telemetry>,
    lock: &'a Lock,
    /// Set if an observer, the statistics or a span need it.
    class: Option<Class>,
    began: Moment,
    /// Set once it has found the lock taken.
    was_taken: AtomicBool,
    /// Set once it was logged that it takes long.
    is_known_slow: AtomicBool,
    /// Set once its end was reported.
    is_over: bool,
    span: Span,
}

/// An acquired hold.
#[derive(Clone, Copy)]
pub(crate) struct AcquiredTrace<'a> {
    pub(crate) trace: &'a HoldTrace,
    pub(crate) fence: FencingToken,
    /// Whether it was handed off inside the process.
    pub(crate) is_local: bool,
}

impl Telemetry {
    /// An acquire of a lock has begun. The class is that of its handle, and is made from the name if it is needed and not
    /// known.
    pub(crate) fn acquiring<'a>(
        self: &'a Arc<Self>,
        lock: &'a Lock,
        class: &OnceLock<Class>,
        began: Moment,
    ) -> AcquireTrace<'a> {
        let span = tracing::debug_span!(
            target: TARGET,
            "lock.acquire",
            lock.name = %lock.name,
            lock.kind = lock.kind.as_str(),
            lock.class = Empty,
            lock.ahead = Empty,
            lock.waited_ms = Empty,
            lock.outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        );
        let needs_class = self.needs_class() || !span.is_disabled();
        let class =
            needs_class.then(|| class.get_or_init(|| self.classes.of_name(lock.name.as_str())).clone());
        if let Some(class) = &class {
            record(&span, "lock.class", class.as_str());
        }
        AcquireTrace {
            telemetry: self,
            lock,
            class,
            began,
            was_taken: AtomicBool::new(false),
            is_known_slow: AtomicBool::new(false),
            is_over: false,
            span,
        }
    }
}

impl AcquireTrace<'_> {
    /// The lock is taken, and the acquire waits for it. Only the first call counts.
    pub(crate) fn waiting(&self, status: impl FnOnce() -> WaitStatus) {
        if self.was_taken.swap(true, Ordering::Relaxed) {
            return;
        }
        self.telemetry.counters.waiting.add();
        let is_reported = self.telemetry.is_observed() || !self.span.is_disabled();
        let Some(class) = self.class.as_ref().filter(|_| is_reported) else { return };
        let (status, since) = (status(), self.elapsed());
        let (ahead, holder) = (status.position, holder_of(&status));
        if let Some(ahead) = ahead {
            record(&self.span, "lock.ahead", ahead);
        }
        self.telemetry.notify_of(self.lock, Some(class), |observer, lock| {
            observer.waiting(&Waiting { lock, since, ahead, holder });
        });
    }

    /// Logs a warning when the acquire has taken longer than allowed. Never completes.
    ///
    /// Cancel safety: another call goes on.
    pub(crate) async fn warn_when_slow(&self, status: impl Fn() -> WaitStatus) {
        if let Some(limit) = self.telemetry.settings.slow_wait
            && !self.is_known_slow.load(Ordering::Relaxed)
        {
            self.telemetry.environment.sleep_until(self.began + limit).await;
            self.warn(&status());
        }
        std::future::pending::<()>().await;
    }

    fn warn(&self, status: &WaitStatus) {
        if self.is_known_slow.swap(true, Ordering::Relaxed) {
            return;
        }
        let (waited_ms, holder, ahead) = (millis(self.elapsed()), holder_of(status), status.position);
        let (lock, kind) = (&self.lock.name, self.lock.kind.as_str());
        self.span.in_scope(|| {
            tracing::warn!(target: TARGET, %lock, kind, waited_ms, holder, ahead, "the wait for a lock is slow");
        });
    }

    /// The lock was acquired, and a guard holds it. `lost` tells whether the hold was lost already: then its loss has not been
    /// reported.
    pub(crate) fn acquired(mut self, hold: AcquiredTrace<'_>, lost: impl FnOnce() -> Option<LostReason>) {
        let AcquiredTrace { trace, fence, is_local } = hold;
        let was_taken = *self.was_taken.get_mut();
        let from = match (is_local, was_taken) {
            (true, _) => Some(Handover::Local),
            (false, true) => Some(Handover::Remote),
            (false, false) => None,
        };
        let (telemetry, lock) = (self.telemetry, self.lock);
        telemetry.counters.held.add();
        let span = tracing::debug_span!(
            target: TARGET,
            "lock.hold",
            lock.name = %lock.name,
            lock.kind = lock.kind.as_str(),
            lock.class = self.class.as_ref().map(Class::as_str),
            lock.fencing_token = fence.as_u64(),
            lock.held_ms = Empty,
            lock.ended = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        );
        span.follows_from(&self.span);
        let since = (telemetry.is_timed() || !span.is_disabled()).then(|| telemetry.now());
        self.report_acquired(fence, false);
        if let Some(from) = from {
            telemetry.counters.handed_off(from).add();
            telemetry.notify_of(lock, self.class.as_ref(), |observer, lock| {
                observer.handed_off(&HandedOff { lock, fence, from });
            });
        }
        // After the events above, so that the end comes last.
        trace.begin(HeldTrace {
            telemetry: telemetry.clone(),
            class: self.class.take(),
            since,
            is_known_slow: false,
            span,
        });
        if let Some(reason) = lost() {
            trace.lost(lock, fence, &reason);
        }
    }

    /// The lock was acquired as a detached hold.
    pub(crate) fn acquired_detached(mut self, fence: FencingToken) {
        self.report_acquired(fence, true);
    }

    fn report_acquired(&mut self, fence: FencingToken, detached: bool) {
        self.telemetry.counters.acquired.add();
        let waited = self.end("acquired");
        let was_taken = *self.was_taken.get_mut();
        // Of detached holds the ends are not known, so their waits would be of other holds.
        if !detached {
            self.count(AcquireCount::Waited { taken: was_taken }, waited);
        }
        self.telemetry.notify_of(self.lock, self.class.as_ref(), |observer, lock| {
            observer.acquired(&Acquired { lock, waited, was_taken, fence, detached });
        });
    }

    /// The acquire has ended without the lock.
    pub(crate) fn not_acquired(mut self, outcome: NotAcquiredReason) {
        self.report_not_acquired(outcome);
    }

    fn report_not_acquired(&mut self, outcome: NotAcquiredReason) {
        self.telemetry.counters.not_acquired(outcome).add();
        if outcome.is_error() {
            record(&self.span, "error.type", outcome.as_str());
            record(&self.span, "otel.status_code", "ERROR");
        }
        let waited = self.end(outcome.as_str());
        let was_taken = *self.was_taken.get_mut();
        match outcome {
            NotAcquiredReason::TimedOut => self.count(AcquireCount::Waited { taken: true }, waited),
            NotAcquiredReason::Taken => self.count(AcquireCount::Refused, waited),
            NotAcquiredReason::Failed | NotAcquiredReason::Cancelled | NotAcquiredReason::Closed => {}
        }
        self.telemetry.notify_of(self.lock, self.class.as_ref(), |observer, lock| {
            observer.not_acquired(&NotAcquired { lock, waited, was_taken, outcome });
        });
    }

    /// Counts it for the statistics.
    fn count(&self, count: AcquireCount, waited: Duration) {
        if let (Some(counted), Some(class)) = (self.telemetry.counted(), &self.class) {
            counted.acquire(self.lock.kind, class, count, waited, self.began + waited);
        }
    }

    /// Records the end. Returns how long it took, if anything needs that.
    fn end(&mut self, outcome: &'static str) -> Duration {
        self.is_over = true;
        if *self.was_taken.get_mut() {
            self.telemetry.counters.waiting.subtract();
        }
        if !self.telemetry.is_timed() && self.span.is_disabled() {
            return Duration::ZERO;
        }
        let waited = self.elapsed();
        record(&self.span, "lock.waited_ms", millis(waited));
        record(&self.span, "lock.outcome", outcome);
        // Otherwise a single attempt was slow, and did not wait.
        let waits = *self.was_taken.get_mut();
        if waits && self.telemetry.settings.slow_wait.is_some_and(|limit| waited >= limit) {
            self.warn(&WaitStatus::default());
        }
        waited
    }

    fn elapsed(&self) -> Duration {
        self.telemetry.now().since(self.began)
    }
}

impl Drop for AcquireTrace<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.report_not_acquired(NotAcquiredReason::Cancelled);
        }
    }
}

fn holder_of(status: &WaitStatus) -> Option<&str> {
    status.holder.as_ref()?.label.as_ref().map(leasehold_core::Label::as_str)
}
