//! Requests to the store.

use super::Telemetry;
use super::observer::{RequestOutcome, Requested};
use crate::store::Outcome;
use leasehold_core::{Executed, Moment, Op, SessionOp};
use std::time::Duration;

/// Requests that are in flight.
pub(crate) struct RequestTrace<'a> {
    telemetry: &'a Telemetry,
    /// Set if there is an observer.
    began: Option<Moment>,
}

/// What a request is called in events.
pub(crate) trait Operation {
    fn operation(&self) -> &'static str;
}

impl Operation for Op {
    fn operation(&self) -> &'static str {
        match self {
            Self::Acquire(_) => "acquire",
            Self::Extend(_) => "extend",
            Self::Release(_) => "release",
            Self::Evict(_) => "evict",
            Self::ForceRelease(_) => "force_release",
            Self::Inspect(_) => "inspect",
            Self::Resize(_) => "resize",
            Self::RaiseFence(_) => "raise_fence",
            Self::Proclaim(_) => "proclaim",
            _ => "other",
        }
    }
}

impl Operation for SessionOp {
    fn operation(&self) -> &'static str {
        match self {
            Self::Heartbeat(_) => "heartbeat",
            Self::End(_) => "end_session",
            Self::List | Self::Find(_) => "list_sessions",
            Self::MergeStatistics(_) => "merge_statistics",
            Self::ListStatistics => "list_statistics",
            _ => "other",
        }
    }
}

impl Telemetry {
    /// Requests are about to be sent.
    pub(crate) fn request(&self) -> RequestTrace<'_> {
        RequestTrace { telemetry: self, began: self.is_observed().then(|| self.now()) }
    }
}

impl RequestTrace<'_> {
    /// A request was answered, or was not. Not called for one whose future was dropped.
    pub(crate) fn answered<T>(&self, operation: &'static str, outcome: &Outcome<T>) {
        self.report(operation, outcome, self.took());
    }

    /// The same, and returns the outcome: a future that keeps none in a variable is smaller.
    pub(crate) fn pass<T>(&self, operation: &'static str, outcome: Outcome<T>) -> Outcome<T> {
        self.answered(operation, &outcome);
        outcome
    }

    /// The same for requests that were sent together.
    pub(crate) fn all_answered<K, O: Operation, T>(&self, sent: &[(K, O)], outcomes: &[Outcome<T>]) {
        let took = self.took();
        for ((_, op), outcome) in sent.iter().zip(outcomes) {
            self.report(op.operation(), outcome, took);
        }
    }

    fn report<T>(&self, operation: &'static str, outcome: &Outcome<T>, took: Duration) {
        let outcome = match outcome {
            Outcome::Done(_) => RequestOutcome::Done,
            Outcome::Failed(Executed::No, _) => RequestOutcome::NotExecuted,
            Outcome::Failed(Executed::Unknown, _) => RequestOutcome::Unknown,
        };
        self.telemetry.counters.requests(outcome).add();
        self.telemetry.notify(|observer| observer.requested(&Requested { operation, outcome, took }));
    }

    fn took(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| self.telemetry.now().since(began))
    }
}
