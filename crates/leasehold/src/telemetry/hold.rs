//! One hold of a guard, from its acquisition to its end.

use super::observer::{HowReleased, Lost, Released, RenewalFailed, Renewed};
use super::{Class, TARGET, Telemetry, millis, record};
use crate::lost_reason::LostReason;
use leasehold_core::{FencingToken, Lock, Moment};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::Span;

/// The part of a hold that is reported. Its end is reported once, and only if its beginning was.
#[derive(Default)]
pub(crate) struct HoldTrace(Mutex<HoldState>);

/// Nothing is called with the mutex around it held.
#[derive(Default)]
enum HoldState {
    /// Not reported yet.
    #[default]
    New,
    /// Reported as acquired.
    Held(HeldTrace),
    /// Reported as released or lost.
    Ended,
}

/// What is known of a hold while it lasts.
pub(super) struct HeldTrace {
    pub(super) telemetry: Arc<Telemetry>,
    /// Set if an observer, the statistics or a span need it.
    pub(super) class: Option<Class>,
    /// Set if anything needs the time.
    pub(super) since: Option<Moment>,
    /// Set once it was logged that it takes long.
    pub(super) is_known_slow: bool,
    pub(super) span: Span,
}

impl HoldTrace {
    fn state(&self) -> MutexGuard<'_, HoldState> {
        // No code panics while it holds this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was reported as acquired.
    pub(super) fn begin(&self, held: HeldTrace) {
        *self.state() = HoldState::Held(held);
    }

    /// It has ended. Returns what is known of it, once.
    fn end(&self) -> Option<HeldTrace> {
        let mut state = self.state();
        let HoldState::Held(_) = &*state else { return None };
        match std::mem::replace(&mut *state, HoldState::Ended) {
            HoldState::Held(held) => Some(held),
            HoldState::New | HoldState::Ended => None,
        }
    }

    /// A guard was released or dropped.
    pub(crate) fn released(&self, lock: &Lock, fence: FencingToken, how: HowReleased) {
        let Some(trace) = self.end() else { return };
        trace.telemetry.counters.released.add();
        let held = trace.end(lock, fence, how.as_str());
        trace.count(lock, held, false);
        trace.telemetry.notify_of(lock, trace.class.as_ref(), |observer, lock| {
            observer.released(&Released { lock, fence, held, how });
        });
    }

    /// It was lost.
    pub(crate) fn lost(&self, lock: &Lock, fence: FencingToken, reason: &LostReason) {
        let Some(trace) = self.end() else { return };
        trace.telemetry.counters.lost(reason).add();
        if *reason != LostReason::ShutDown {
            record(&trace.span, "error.type", reason.as_str());
            record(&trace.span, "otel.status_code", "ERROR");
        }
        let held = trace.end(lock, fence, reason.as_str());
        trace.count(lock, held, !matches!(reason, LostReason::ShutDown | LostReason::Released));
        trace.telemetry.notify_of(lock, trace.class.as_ref(), |observer, lock| {
            observer.lost(&Lost { lock, fence, held, reason });
        });
    }

    /// It was extended when `slack` of it was left.
    pub(crate) fn renewed(&self, lock: &Lock, fence: FencingToken, slack: Duration) {
        let Some((telemetry, class)) = self.going_on(lock, fence) else { return };
        telemetry.counters.renewals.add();
        telemetry.notify_of(lock, class.as_ref(), |observer, lock| {
            observer.renewed(&Renewed { lock, fence, slack });
        });
    }

    /// A request to extend it has failed, and so much of it is left.
    pub(crate) fn renewal_failed(&self, lock: &Lock, fence: FencingToken, remaining: Duration) {
        let Some((telemetry, class)) = self.going_on(lock, fence) else { return };
        telemetry.counters.failed_renewals.add();
        telemetry.notify_of(lock, class.as_ref(), |observer, lock| {
            observer.renewal_failed(&RenewalFailed { lock, fence, remaining });
        });
    }

    /// What an event in between needs, and the time for a warning.
    fn going_on(&self, lock: &Lock, fence: FencingToken) -> Option<(Arc<Telemetry>, Option<Class>)> {
        let mut state = self.state();
        let HoldState::Held(held) = &mut *state else { return None };
        let going_on = (held.telemetry.clone(), held.class.clone());
        let slow_for = held.slow_for();
        held.is_known_slow |= slow_for.is_some();
        let slow = slow_for.map(|held_for| (held_for, held.span.clone()));
        drop(state);
        if let Some((held, span)) = slow {
            warn(lock, fence, held, &span);
        }
        Some(going_on)
    }
}

impl HeldTrace {
    /// Records the end. Returns how long it lasted, if anything needs that.
    fn end(&self, lock: &Lock, fence: FencingToken, ended: &'static str) -> Duration {
        self.telemetry.counters.held.subtract();
        if let Some(held) = self.slow_for() {
            warn(lock, fence, held, &self.span);
        }
        let held = self.elapsed();
        record(&self.span, "lock.held_ms", millis(held));
        record(&self.span, "lock.ended", ended);
        held
    }

    /// Counts it for the statistics.
    fn count(&self, lock: &Lock, held: Duration, is_lost: bool) {
        if let (Some(counted), Some(class), Some(since)) = (self.telemetry.counted(), &self.class, self.since)
        {
            counted.hold(lock.kind, class, held, is_lost, since + held);
        }
    }

    /// How long it lasts, if that is too long and was not logged.
    fn slow_for(&self) -> Option<Duration> {
        let limit = self.telemetry.settings.slow_hold.filter(|_| !self.is_known_slow)?;
        Some(self.elapsed()).filter(|held| *held >= limit)
    }

    fn elapsed(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| self.telemetry.now().since(since))
    }
}

fn warn(lock: &Lock, fence: FencingToken, held: Duration, span: &Span) {
    let (kind, held_ms) = (lock.kind.as_str(), millis(held));
    span.in_scope(|| {
        tracing::warn!(target: TARGET, lock = %lock.name, kind, %fence, held_ms, "a lock is held for long");
    });
}
