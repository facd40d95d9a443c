//! What happens to the locks of a client, as events for an [`Observer`], spans for `tracing`, and figures.
//!
//! - An [`Observer`] receives events: [`ClientBuilder::observer`](crate::ClientBuilder::observer).
//! - [`Client::stats`](crate::Client::stats) returns figures, without an observer.
//! - With the feature `metrics`, a client reports to the facade of that name: see
//!   [`ClientBuilder::metrics`](crate::ClientBuilder#method.metrics).
//! - The spans `lock.acquire` and `lock.hold`, of level DEBUG and target `leasehold::lock`, cover the wait for a lock and the time
//!   that a guard holds it. Their fields begin with `lock.`; an error has `error.type` and `otel.status_code` as well.
//! - What the clients of a store count by class is merged there: [`Client::lock_statistics`](crate::Client::lock_statistics).
//! - [`slow_wait`](crate::ClientBuilder::slow_wait) and [`slow_hold`](crate::ClientBuilder::slow_hold) log a warning.
//!
//! `docs/how-to/observe.md` in the repository lists all metrics and fields.

// The engine and the handles of locks report here, a line for each event. This module imports nothing of them.
//
// 1. An observer is called while no mutex of the client is held, and a span is closed likewise: both run user code.
// 2. Without an observer, a subscriber and limits, an acquire and its release change some atomics, and read the clock only if they
//    are counted for the statistics.

mod acquire;
mod class;
mod counters;
mod hold;
#[cfg(feature = "metrics")]
mod metrics;
mod observer;
mod request;
mod statistics;

pub(crate) use acquire::{AcquireTrace, AcquiredTrace};
pub(crate) use class::Class;
pub use class::LockClasses;
pub(crate) use counters::Counters;
pub(crate) use hold::HoldTrace;
#[cfg(feature = "metrics")]
pub(crate) use metrics::MetricsObserver;
pub use observer::{
    Acquired, HandedOff, Handover, HowReleased, Lost, NotAcquired, NotAcquiredReason, ObservedLock, Observer,
    Released, RenewalFailed, Renewed, RequestOutcome, Requested, SessionRenewed, Stalled, Waiting,
};
pub(crate) use request::Operation;
pub(crate) use statistics::Counted;

use class::{Classes, collapse, shorten};
use leasehold_core::{Lock, Moment};
use leasehold_store::Environment;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::{Span, Value};

/// The target of spans and of warnings about slow locks.
const TARGET: &str = "leasehold::lock";
/// A keeper that runs later by less has not stalled.
const MIN_STALL: Duration = Duration::from_millis(500);

/// What the user has set.
#[derive(Clone, Default)]
pub(crate) struct TelemetrySettings {
    pub(crate) observers: Vec<Arc<dyn Observer>>,
    /// The longest wait without a warning, if there is a limit.
    pub(crate) slow_wait: Option<Duration>,
    /// The longest hold without a warning, if there is a limit.
    pub(crate) slow_hold: Option<Duration>,
    /// Whether what the client does is counted for the statistics of the store.
    pub(crate) statistics: bool,
}

/// Receives what the parts of a client report.
pub(crate) struct Telemetry {
    settings: TelemetrySettings,
    environment: Arc<dyn Environment>,
    classes: Classes,
    pub(crate) counters: Counters,
    /// Set if the client counts for the statistics of the store.
    counted: Option<Counted>,
}

/// Returns the class of the locks of this name, unless they are given [one](crate::Mutex::class): with `*` in place of numbers,
/// hexadecimal runs, UUIDs and other ids.
///
/// ```
/// assert_eq!(leasehold::telemetry::class_of("orders/42"), "orders/*");
/// assert_eq!(leasehold::telemetry::class_of("nightly"), "nightly");
/// ```
pub fn class_of(name: &str) -> String {
    shorten(&collapse(name)).to_owned()
}

impl Telemetry {
    pub(crate) fn new(settings: TelemetrySettings, environment: Arc<dyn Environment>) -> Self {
        let counted = settings.statistics.then(Counted::new);
        Self { settings, environment, classes: Classes::default(), counters: Counters::default(), counted }
    }

    /// What is counted for the statistics of the store, if anything.
    pub(crate) const fn counted(&self) -> Option<&Counted> {
        self.counted.as_ref()
    }

    /// The class of this name.
    pub(crate) fn class(&self, name: &str) -> Class {
        self.classes.named(name)
    }

    /// Makes the class of a lock from its name, if it is needed and none is given.
    pub(crate) fn name_class(&self, lock: &Lock, class: &OnceLock<Class>) {
        if self.needs_class() {
            class.get_or_init(|| self.classes.of_name(lock.name.as_str()));
        }
    }

    /// The keeper runs now, and wanted to at `planned`.
    pub(crate) fn woke(&self, planned: Moment, now: Moment) {
        let late = now.since(planned);
        if late >= MIN_STALL {
            tracing::debug!(?late, "the keeper ran late");
            self.notify(|observer| observer.stalled(&Stalled { late }));
        }
    }

    /// A heartbeat has extended a session that would still have lasted for `margin`.
    pub(crate) fn session_renewed(&self, margin: Duration) {
        self.notify(|observer| observer.session_renewed(&SessionRenewed { margin }));
    }

    /// A session has lapsed.
    pub(crate) fn session_lapsed(&self) {
        self.counters.sessions_lapsed.add();
        self.notify(Observer::session_lapsed);
    }

    /// Whether there is an observer.
    fn is_observed(&self) -> bool {
        !self.settings.observers.is_empty()
    }

    /// Whether an observer or the statistics need the class of each lock.
    fn needs_class(&self) -> bool {
        self.is_observed() || self.counted.is_some()
    }

    /// Whether anything needs the time.
    fn is_timed(&self) -> bool {
        let TelemetrySettings { observers, slow_wait, slow_hold, statistics } = &self.settings;
        !observers.is_empty() || slow_wait.is_some() || slow_hold.is_some() || *statistics
    }

    fn now(&self) -> Moment {
        self.environment.now()
    }

    /// Calls all observers. The caller holds no mutex (1).
    fn notify(&self, event: impl Fn(&dyn Observer)) {
        for observer in &self.settings.observers {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| event(&**observer))) {
                tracing::error!("an observer has panicked: it misses an event");
                // Its drop could panic as well.
                std::mem::forget(payload);
            }
        }
    }

    /// Calls all observers with an event about a lock, if its class is known.
    fn notify_of(&self, lock: &Lock, class: Option<&Class>, event: impl Fn(&dyn Observer, ObservedLock<'_>)) {
        let Some(class) = class else { return };
        let lock = ObservedLock {
            name: &lock.name,
            kind: lock.kind,
            class: class.as_str(),
            class_index: class.index(),
        };
        self.notify(|observer| event(observer, lock));
    }
}

impl fmt::Debug for TelemetrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("TelemetrySettings");
        text.field("observers", &self.observers.len()).field("slow_wait", &self.slow_wait);
        text.field("slow_hold", &self.slow_hold).field("statistics", &self.statistics).finish()
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Whole milliseconds, for a field of a span.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Records a field of a span, if a subscriber wants it: without one, tracing would still look the field up by name.
fn record(span: &Span, field: &str, value: impl Value) {
    if !span.is_disabled() {
        span.record(field, value);
    }
}
