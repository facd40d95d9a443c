//! An observer that records through the `metrics` facade.
//!
//! Each metric of a kind and class is registered when it is needed first, and the handle is kept: an event neither allocates nor looks
//! anything up by name.

use super::class::MAX_CLASSES;
use super::observer::{
    Acquired, HandedOff, Handover, Lost, NotAcquired, NotAcquiredReason, ObservedLock, Observer, Released,
    RenewalFailed, Renewed, RequestOutcome, Requested, SessionRenewed, Stalled, Waiting,
};
use crate::lost_reason::LostReason;
use leasehold_core::Kind;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

const WAIT: &str = "leasehold_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const ACQUIRES: &str = "leasehold_acquires_total";
const LOSSES: &str = "leasehold_losses_total";
const HANDOVERS: &str = "leasehold_handovers_total";
const SLACK: &str = "leasehold_renewal_slack_seconds";
const FAILED_RENEWALS: &str = "leasehold_failed_renewals_total";
const MARGIN: &str = "leasehold_session_margin_seconds";
const LAPSES: &str = "leasehold_session_lapses_total";
const STALL: &str = "leasehold_stall_seconds";
const REQUESTS: &str = "leasehold_requests_total";
const REQUEST: &str = "leasehold_request_seconds";

/// Records the events of one client.
pub(crate) struct MetricsObserver {
    /// By class, then by kind.
    locks: Box<[OnceLock<Box<ClassMetrics>>]>,
    session_margin: Histogram,
    session_lapses: Counter,
    stall: Histogram,
    requests: RwLock<HashMap<&'static str, Arc<RequestMetrics>>>,
}

/// The metrics of one class.
#[derive(Default)]
struct ClassMetrics([OnceLock<Box<LockMetrics>>; Kind::ALL.len()]);

/// The metrics of one class and kind.
struct LockMetrics {
    labels: Labels,
    wait: Histogram,
    hold: Histogram,
    held: Gauge,
    waiting: Gauge,
    acquired: Counter,
    slack: OnceLock<Histogram>,
    failed_renewals: OnceLock<Counter>,
    not_acquired: [OnceLock<Counter>; 5],
    handovers: [OnceLock<Counter>; 2],
    losses: [OnceLock<Counter>; 10],
}

/// The labels of a metric about locks.
struct Labels {
    kind: &'static str,
    class: String,
}

/// The metrics of one operation.
struct RequestMetrics {
    took: Histogram,
    outcomes: [OnceLock<Counter>; 3],
}

impl MetricsObserver {
    pub(crate) fn new() -> Self {
        describe();
        Self {
            locks: (0..=MAX_CLASSES).map(|_| OnceLock::new()).collect(),
            session_margin: histogram!(MARGIN),
            session_lapses: counter!(LAPSES),
            stall: histogram!(STALL),
            requests: RwLock::default(),
        }
    }

    /// The metrics of an operation. The recorder, which is the user's code, is not called while the lock on them is held.
    fn request(&self, operation: &'static str) -> Arc<RequestMetrics> {
        let known = self.requests.read().unwrap_or_else(PoisonError::into_inner).get(operation).cloned();
        known.unwrap_or_else(|| {
            let new = Arc::new(RequestMetrics {
                took: histogram!(REQUEST, "operation" => operation),
                outcomes: Default::default(),
            });
            let mut requests = self.requests.write().unwrap_or_else(PoisonError::into_inner);
            requests.entry(operation).or_insert(new).clone()
        })
    }

    /// Records something about a lock.
    fn lock(&self, lock: &ObservedLock<'_>, record: impl FnOnce(&LockMetrics)) {
        let Some(class) = self.locks.get(lock.class_index) else { return };
        let kinds = class.get_or_init(Box::default);
        if let Some(number) = Kind::ALL.iter().position(|kind| *kind == lock.kind) {
            let metrics = &kinds.0[number];
            record(metrics.get_or_init(|| Box::new(LockMetrics::new(lock))));
        }
    }
}

impl LockMetrics {
    fn new(lock: &ObservedLock<'_>) -> Self {
        let labels = Labels { kind: lock.kind.as_str(), class: lock.class.to_owned() };
        Self {
            wait: labels.histogram(WAIT),
            hold: labels.histogram(HOLD),
            held: labels.gauge(HELD),
            waiting: labels.gauge(WAITING),
            acquired: labels.counter(ACQUIRES, "outcome", "acquired"),
            slack: OnceLock::new(),
            failed_renewals: OnceLock::new(),
            not_acquired: Default::default(),
            handovers: Default::default(),
            losses: Default::default(),
            labels,
        }
    }
}

impl Labels {
    fn histogram(&self, name: &'static str) -> Histogram {
        histogram!(name, "kind" => self.kind, "class" => self.class.clone())
    }

    fn gauge(&self, name: &'static str) -> Gauge {
        gauge!(name, "kind" => self.kind, "class" => self.class.clone())
    }

    fn counter(&self, name: &'static str, label: &'static str, value: &'static str) -> Counter {
        counter!(name, "kind" => self.kind, "class" => self.class.clone(), label => value)
    }
}

impl Observer for MetricsObserver {
    fn waiting(&self, event: &Waiting<'_>) {
        self.lock(&event.lock, |metrics| metrics.waiting.increment(1.0));
    }

    fn acquired(&self, event: &Acquired<'_>) {
        self.lock(&event.lock, |metrics| {
            metrics.acquired.increment(1);
            metrics.wait.record(event.waited);
            if event.was_taken {
                metrics.waiting.decrement(1.0);
            }
            if !event.detached {
                metrics.held.increment(1.0);
            }
        });
    }

    fn not_acquired(&self, event: &NotAcquired<'_>) {
        let (number, outcome) = (number_of_reason(event.outcome), event.outcome.as_str());
        self.lock(&event.lock, |metrics| {
            let counter = || metrics.labels.counter(ACQUIRES, "outcome", outcome);
            metrics.not_acquired[number].get_or_init(counter).increment(1);
            if event.was_taken {
                metrics.waiting.decrement(1.0);
                metrics.wait.record(event.waited);
            }
        });
    }

    fn handed_off(&self, event: &HandedOff<'_>) {
        let number = match event.from {
            Handover::Local => 0,
            Handover::Remote => 1,
        };
        self.lock(&event.lock, |metrics| {
            let counter = || metrics.labels.counter(HANDOVERS, "from", event.from.as_str());
            metrics.handovers[number].get_or_init(counter).increment(1);
        });
    }

    fn renewed(&self, event: &Renewed<'_>) {
        self.lock(&event.lock, |metrics| {
            metrics.slack.get_or_init(|| metrics.labels.histogram(SLACK)).record(event.slack);
        });
    }

    fn renewal_failed(&self, event: &RenewalFailed<'_>) {
        self.lock(&event.lock, |metrics| {
            let labels = &metrics.labels;
            let counter =
                || counter!(FAILED_RENEWALS, "kind" => labels.kind, "class" => labels.class.clone());
            metrics.failed_renewals.get_or_init(counter).increment(1);
        });
    }

    fn released(&self, event: &Released<'_>) {
        self.lock(&event.lock, |metrics| metrics.end(event.held));
    }

    fn lost(&self, event: &Lost<'_>) {
        let (number, reason) = (number_of_loss(event.reason), event.reason.as_str());
        self.lock(&event.lock, |metrics| {
            metrics.end(event.held);
            let counter = || metrics.labels.counter(LOSSES, "reason", reason);
            metrics.losses[number].get_or_init(counter).increment(1);
        });
    }

    fn stalled(&self, event: &Stalled) {
        self.stall.record(event.late);
    }

    fn requested(&self, event: &Requested) {
        self.request(event.operation).record(event);
    }

    fn session_renewed(&self, event: &SessionRenewed) {
        self.session_margin.record(event.margin);
    }

    fn session_lapsed(&self) {
        self.session_lapses.increment(1);
    }
}

impl LockMetrics {
    /// A hold has ended.
    fn end(&self, held: Duration) {
        self.held.decrement(1.0);
        self.hold.record(held);
    }
}

impl RequestMetrics {
    fn record(&self, event: &Requested) {
        let number = match event.outcome {
            RequestOutcome::Done => 0,
            RequestOutcome::NotExecuted => 1,
            RequestOutcome::Unknown => 2,
        };
        let (operation, outcome) = (event.operation, event.outcome.as_str());
        let counter = || counter!(REQUESTS, "operation" => operation, "outcome" => outcome);
        self.outcomes[number].get_or_init(counter).increment(1);
        self.took.record(event.took);
    }
}

/// Registers what the metrics mean, and their units.
fn describe() {
    describe_histogram!(
        WAIT,
        Unit::Seconds,
        "Time from the call to the acquisition, or until a wait was given up"
    );
    describe_histogram!(HOLD, Unit::Seconds, "Time for which a guard held the lock");
    describe_gauge!(HELD, Unit::Count, "Locks held by guards");
    describe_gauge!(WAITING, Unit::Count, "Acquires that wait for a lock that is taken");
    describe_counter!(ACQUIRES, Unit::Count, "Acquires by outcome");
    describe_counter!(LOSSES, Unit::Count, "Holds lost, by reason");
    describe_counter!(
        HANDOVERS,
        Unit::Count,
        "Locks handed off: local, without the store, or remote, by the store"
    );
    describe_histogram!(SLACK, Unit::Seconds, "Time that was left of a hold when it was extended");
    describe_counter!(FAILED_RENEWALS, Unit::Count, "Requests to extend a hold that failed");
    describe_histogram!(
        MARGIN,
        Unit::Seconds,
        "Time that was left of the session when a heartbeat was answered"
    );
    describe_counter!(LAPSES, Unit::Count, "Sessions that have lapsed");
    describe_histogram!(STALL, Unit::Seconds, "How late the keeper ran, from half a second on");
    describe_counter!(REQUESTS, Unit::Count, "Requests to the store, by operation and outcome");
    describe_histogram!(REQUEST, Unit::Seconds, "Time from a request to its answer or time limit");
}

const fn number_of_reason(reason: NotAcquiredReason) -> usize {
    match reason {
        NotAcquiredReason::Taken => 0,
        NotAcquiredReason::TimedOut => 1,
        NotAcquiredReason::Failed => 2,
        NotAcquiredReason::Cancelled => 3,
        NotAcquiredReason::Closed => 4,
    }
}

const fn number_of_loss(reason: &LostReason) -> usize {
    match reason {
        LostReason::Expired => 0,
        LostReason::TakenOver { .. } => 1,
        LostReason::Removed => 2,
        LostReason::StoreLostData => 3,
        LostReason::Evicted => 4,
        LostReason::ForceReleased => 5,
        LostReason::SessionLapsed => 6,
        LostReason::Released => 7,
        LostReason::Capped => 8,
        LostReason::ShutDown => 9,
    }
}
