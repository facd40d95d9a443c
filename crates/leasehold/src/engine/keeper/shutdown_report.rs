//! What a shutdown has the keeper send before it ends.
//!
//! The numbers are those of [`shutdown`](crate::engine::shutdown).

use super::Shared;
use crate::engine::Hold;
use crate::engine::shutdown_gate::ShutdownGate;
use crate::store::{Outcome, Store};
use leasehold_core::{Claim, Lock, Moment, Op, Release, ReleaseAction, Released, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// What the keeper must send before it ends.
pub(in crate::engine) struct ShutdownReport {
    /// Holds to be released, with their cleanup numbers.
    pub(in crate::engine) holds: Vec<OutstandingHold>,
    /// The same for holds whose release is in flight (5).
    pub(in crate::engine) releasing: Vec<OutstandingHold>,
    /// Holds among `holds` about which the user may have another request in flight.
    pub(in crate::engine) sent_by_user: Vec<Arc<Hold>>,
    /// Requests that may have been granted, and for how long the store may keep each.
    pub(in crate::engine) claims: Vec<(Lock, Claim, Duration)>,
    pub(in crate::engine) gate: Arc<ShutdownGate>,
    pub(in crate::engine) main: Arc<dyn Store>,
    /// When the keeper ends.
    pub(in crate::engine) by: Moment,
}

/// A hold to be released, and its cleanup number.
pub(in crate::engine) type OutstandingHold = (u64, Arc<Hold>);

/// Ends the client at the store: releases all holds in one batch and undoes pending requests (3).
pub(super) async fn send(shared: Arc<Shared>, shutdown_report: ShutdownReport) {
    let ShutdownReport { holds, releasing, sent_by_user, claims, gate, main, by } = shutdown_report;
    let shared = &shared;
    let after_the_user = async {
        gate.drained().await;
        // The last request may still be in flight.
        let from = shared.environment.now() + shared.timings.call;
        for (lock, claim, within) in claims {
            shared.post(lock, claim, from + within, 0, Some(main.clone()));
        }
        let unanswered = release_after_user(shared, &*main, releasing, &sent_by_user, by).await;
        release_all(shared, unanswered).await;
    };
    futures_util::future::join(after_the_user, release_all(shared, holds)).await;
}

/// Releases holds on the user's connection, so that every earlier request on it has been executed when this is
/// answered. Returns the holds in `releasing` that had no reply (5). Results of the others come by the keeper's connection.
async fn release_after_user(
    shared: &Shared,
    main: &dyn Store,
    releasing: Vec<OutstandingHold>,
    sent_by_user: &[Arc<Hold>],
    by: Moment,
) -> Vec<OutstandingHold> {
    let all = releasing.iter().map(|(_, hold)| hold).chain(sent_by_user);
    let ops: Vec<_> = all.map(|hold| (hold.lock.clone(), release(hold))).collect();
    if ops.is_empty() {
        return Vec::new();
    }
    // Half of the remaining time, to leave some for the other connection.
    let left = by.since(shared.environment.now());
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let request = shared.telemetry().request();
    let outcomes = main.execute_all(&ops, within).await;
    request.all_answered(&ops, &outcomes);
    let mut unanswered = Vec::new();
    for (pending, outcome) in releasing.into_iter().zip(outcomes) {
        match outcome {
            Outcome::Done(Reply::Release(released)) => record_released(shared, &pending, released),
            _ => unanswered.push(pending),
        }
    }
    unanswered
}

/// Releases holds in one batch, and retries those with a transient fault until the keeper ends.
async fn release_all(shared: &Shared, mut holds: Vec<OutstandingHold>) {
    let mut pause = Duration::from_millis(10);
    while !holds.is_empty() {
        let ops: Vec<_> = holds.iter().map(|(_, hold)| (hold.lock.clone(), release(hold))).collect();
        let request = shared.telemetry().request();
        let outcomes = shared.store.execute_all(&ops, shared.timings.call).await;
        request.all_answered(&ops, &outcomes);
        let mut again = Vec::new();
        for (pending, outcome) in holds.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done(Reply::Release(released)) => record_released(shared, &pending, released),
                Outcome::Failed(_, fault) if fault.is_transient() => again.push(pending),
                // Still outstanding when the keeper ends, and so reported as unreleased.
                _ => {}
            }
        }
        holds = again;
        if !holds.is_empty() {
            let at = shared.environment.now() + pause / 2 + jitter(&*shared.environment, pause / 2);
            shared.environment.sleep_until(at).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

fn release(hold: &Hold) -> Op {
    let (claim, action) = (hold.claim.clone(), ReleaseAction::Grant);
    Op::Release(Release { claim, action, next: None, history: hold.history() })
}

/// A hold is released. A release that was cut off reads its result from this (5).
fn record_released(shared: &Shared, (id, hold): &OutstandingHold, released: Released) {
    shared.record_result(hold, released);
    shared.finish_cleanup(*id, true);
}
