//! What a shutdown has the keeper send before it ends.
//!
//! The numbers are those of [`shutdown`](crate::engine::shutdown).

use super::Shared;
use crate::engine::Hold;
use crate::engine::shutdown_gate::ShutdownGate;
use crate::store::{Outcome, Store};
use leasehold_core::machine::contender::MAX_QUEUE_ENTRY_TTL;
use leasehold_core::{Claim, FIRST_LEASE, Lock, Moment, Op, Release, ReleaseAction, Released, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// What the keeper must send before it ends.
pub(in crate::engine) struct ShutdownReport {
    /// Holds, with the numbers under which they are owed.
    pub(in crate::engine) holds: Vec<Debt>,
    /// The same for holds whose release is in flight (5).
    pub(in crate::engine) leaving: Vec<Debt>,
    /// Holds among `holds` about which the user may have another request in flight.
    pub(in crate::engine) behind: Vec<Arc<Hold>>,
    /// Requests that may have been granted.
    pub(in crate::engine) claims: Vec<(Lock, Claim)>,
    pub(in crate::engine) gate: Arc<ShutdownGate>,
    pub(in crate::engine) main: Arc<dyn Store>,
    /// When the keeper ends.
    pub(in crate::engine) by: Moment,
}

/// A hold to be released, and the number under which it is owed.
pub(in crate::engine) type Debt = (u64, Arc<Hold>);

/// Ends the client at the store: releases all holds in one batch and undoes pending requests (3).
pub(super) async fn part(shared: Arc<Shared>, farewell: ShutdownReport) {
    let ShutdownReport { holds, leaving, behind, claims, gate, main, by } = farewell;
    let shared = &shared;
    let after_the_user = async {
        gate.still().await;
        // A queue entry may live this long and be granted the lock at its end.
        let until = shared.environment.now() + MAX_QUEUE_ENTRY_TTL + FIRST_LEASE;
        for (lock, claim) in claims {
            shared.post(lock, claim, until, Some(main.clone()));
        }
        let unanswered = release_behind(shared, &*main, leaving, &behind, by).await;
        release_all(shared, unanswered).await;
    };
    futures_util::future::join(after_the_user, release_all(shared, holds)).await;
}

/// Releases holds on the user's connection, so that every earlier request on it has been executed when this is
/// answered. Returns the leaving holds that had no reply (5). Results of the others come by the keeper's connection.
async fn release_behind(
    shared: &Shared,
    main: &dyn Store,
    leaving: Vec<Debt>,
    behind: &[Arc<Hold>],
    by: Moment,
) -> Vec<Debt> {
    let all = leaving.iter().map(|(_, hold)| hold).chain(behind);
    let ops: Vec<_> = all.map(|hold| (hold.lock.clone(), release(hold))).collect();
    if ops.is_empty() {
        return Vec::new();
    }
    // Half of the remaining time, to leave some for the other connection.
    let left = by.since(shared.environment.now());
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let outcomes = main.execute_all(&ops, within).await;
    let mut unanswered = Vec::new();
    for (debt, outcome) in leaving.into_iter().zip(outcomes) {
        match outcome {
            Outcome::Done(Reply::Release(released)) => settle(shared, &debt, released),
            _ => unanswered.push(debt),
        }
    }
    unanswered
}

/// Releases holds in one batch, and retries those with a transient fault until the keeper ends.
async fn release_all(shared: &Shared, mut holds: Vec<Debt>) {
    let mut pause = Duration::from_millis(10);
    while !holds.is_empty() {
        let ops: Vec<_> = holds.iter().map(|(_, hold)| (hold.lock.clone(), release(hold))).collect();
        let outcomes = shared.store.execute_all(&ops, shared.timings.call).await;
        let mut again = Vec::new();
        for (debt, outcome) in holds.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done(Reply::Release(released)) => settle(shared, &debt, released),
                Outcome::Failed(_, fault) if fault.is_transient() => again.push(debt),
                // Still owed when the keeper ends, and so reported as unreturned.
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
    Op::Release(Release { claim: hold.claim.clone(), action: ReleaseAction::Grant, next: None })
}

/// A hold is not owed any more. A release that was cut off learns its result from this (5).
fn settle(shared: &Shared, (id, hold): &Debt, released: Released) {
    shared.note(hold, released);
    shared.settle(*id, true);
}
