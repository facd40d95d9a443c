//! Extending holds in batches, and handling the results.

use super::{Shared, State, TrackingId};
use crate::engine::Hold;
use crate::engine::keeper::renewal_batcher::BATCH;
use crate::engine::loss::report_loss;
use crate::store::Outcome;
use futures_util::future::join_all;
use leasehold_core::{Extend, Extended, Moment, Op, Reply, whole_millis};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// An extend in a batch.
pub(super) struct Sent {
    pub(super) id: TrackingId,
    pub(super) hold: Arc<Hold>,
    pub(super) lease: Duration,
    pub(super) keep_record: bool,
}

/// Extends that are sent together.
pub(super) struct Batch {
    sent: Vec<Sent>,
    /// Cancelled when none of them is in flight any more.
    token: CancellationToken,
    /// Kept while any of them is in flight.
    in_flight: DropGuard,
}

/// A hold that the store reports as gone.
pub(super) struct Gone {
    id: TrackingId,
    hold: Arc<Hold>,
    /// Whether that was before its lease ended.
    in_time: bool,
    /// Kept while a request about it is in flight.
    in_flight: DropGuard,
}

impl Batch {
    /// Adds an extend to the last batch, or to a new one if that is full. Returns a token that is cancelled when the
    /// batch is not in flight any more.
    pub(super) fn add(batches: &mut Vec<Self>, sent: Sent) -> CancellationToken {
        if let Some(batch) = batches.last_mut().filter(|batch| batch.sent.len() < BATCH) {
            batch.sent.push(sent);
            return batch.token.clone();
        }
        let token = CancellationToken::new();
        let in_flight = token.clone().drop_guard();
        batches.push(Self { sent: vec![sent], token: token.clone(), in_flight });
        token
    }
}

/// Sends one batch of extends and handles its results.
pub(super) async fn extend(shared: Arc<Shared>, batch: Batch) {
    let Batch { sent, in_flight, token: _ } = batch;
    let sent_at = shared.environment.now();
    let soonest = sent.iter().map(|sent| sent.hold.valid_until()).min().unwrap_or(sent_at);
    // Half of the shortest remaining time, so that there is time for another attempt.
    let within = shared.timings.call.min(soonest.since(sent_at) / 2).max(Duration::from_millis(1));
    let op = |sent: &Sent| {
        let claim = sent.hold.claim.clone();
        let (lease_ms, keep_record) = (whole_millis(sent.hold.store_lease(sent.lease)), sent.keep_record);
        (
            sent.hold.lock.clone(),
            Op::Extend(Extend { claim, lease_ms, keep_record, reserve: None, fence: None }),
        )
    };
    let ops: Vec<_> = sent.iter().map(op).collect();
    let request = shared.telemetry().request();
    let outcomes = shared.store.execute_all(&ops, within).await;
    let slack = slack_of(&sent, shared.environment.now());
    let gone = shared.handle_outcomes(&sent, &outcomes, sent_at);
    drop(in_flight);
    request.all_answered(&ops, &outcomes);
    report(&sent, &outcomes, slack);
    if gone.is_empty() {
        return;
    }
    // The rest of the batch may be due again before the reasons for these losses are known.
    shared.wake.notify_one();
    let shared = &shared;
    join_all(gone.into_iter().map(|gone| gone.report(shared))).await;
}

/// How much is left of each hold before the results are handled.
fn slack_of(sent: &[Sent], now: Moment) -> Vec<Duration> {
    sent.iter().map(|sent| sent.hold.valid_until().since(now)).collect()
}

/// Reports the results to observers.
fn report(sent: &[Sent], outcomes: &[Outcome], slack: Vec<Duration>) {
    for ((sent, outcome), slack) in sent.iter().zip(outcomes).zip(slack) {
        match outcome {
            // Whatever the store says, a hold that had ended has not been extended (3).
            _ if slack.is_zero() => {}
            Outcome::Done(Reply::Extend(Extended::Extended | Extended::Voted(_))) => {
                sent.hold.report_renewed(slack);
            }
            Outcome::Done(Reply::Extend(Extended::NotHeld)) => {}
            Outcome::Done(_) | Outcome::Failed(..) => sent.hold.report_renewal_failed(slack),
        }
    }
}

impl State {
    /// Handles the result of one extend. Returns the hold if it is gone.
    fn handle_outcome(
        &mut self,
        sent: &Sent,
        outcome: &Outcome,
        sent_at: Moment,
        now: Moment,
        random: &mut dyn FnMut() -> u64,
    ) -> Option<Gone> {
        let tracked = self.tracked.get_mut(&sent.id).filter(|tracked| !tracked.lost)?;
        match outcome {
            // The hold has ended at its deadline, and a reply does not change that (3).
            Outcome::Done(Reply::Extend(Extended::Extended | Extended::Voted(_)))
                if now >= tracked.hold.valid_until() =>
            {
                tracked.schedule.handle_fault(now, random);
            }
            Outcome::Done(Reply::Extend(extended @ (Extended::Extended | Extended::Voted(_)))) => {
                tracked.hold.handle_votes(*extended);
                tracked.schedule.handle_extended(sent_at, sent.lease, sent.keep_record);
                tracked.update_hold();
            }
            Outcome::Done(Reply::Extend(Extended::NotHeld)) => {
                return self.handle_gone(sent.id, now);
            }
            Outcome::Done(_) | Outcome::Failed(..) => {
                if let Outcome::Failed(_, fault) = outcome {
                    tracing::debug!(lock = %sent.hold.lock, %fault, "not extended yet");
                }
                tracked.schedule.handle_fault(now, random);
            }
        }
        self.reschedule(sent.id);
        None
    }
}

impl State {
    /// The store reports a hold as gone; the hold may have been handed off since the request was sent (9).
    pub(super) fn handle_gone(&mut self, id: TrackingId, now: Moment) -> Option<Gone> {
        let tracked = self.tracked.get_mut(&id)?;
        let (hold, in_time) = (tracked.hold.clone(), now < tracked.hold.valid_until());
        hold.invalidate();
        // The rest of the batch does not wait for the reason.
        let in_flight = tracked.in_flight.insert(CancellationToken::new()).clone().drop_guard();
        self.stop_extending(id);
        self.hints.was_right();
        self.extend_soon(hold.store_fence, now);
        Some(Gone { id, hold, in_time, in_flight })
    }
}

impl Gone {
    /// Signals the loss, with its reason.
    pub(super) async fn report(self, shared: &Shared) {
        let Shared { store, environment, timings, .. } = shared;
        report_loss(&**store, &**environment, shared.telemetry(), *timings, &self.hold, self.in_time).await;
        if self.hold.is_idle() {
            // No guard will forget it.
            let now = shared.environment.now();
            shared.state().forget(self.id, now);
        }
        drop(self.in_flight);
    }
}

impl Shared {
    /// Handles the results of a batch. Returns the holds that are gone.
    fn handle_outcomes(&self, batch: &[Sent], outcomes: &[Outcome], sent_at: Moment) -> Vec<Gone> {
        let mut random = || self.environment.random();
        let mut state = self.state();
        // After the wait for the mutex, which can take as long as the process is stopped.
        let now = self.environment.now();
        let outcomes = batch.iter().zip(outcomes);
        outcomes
            .filter_map(|(sent, outcome)| state.handle_outcome(sent, outcome, sent_at, now, &mut random))
            .collect()
    }
}
