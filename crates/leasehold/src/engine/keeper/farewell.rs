//! What a shutdown has the keeper send before it ends.
//!
//! The numbers are those of [`shutdown`](super::super::shutdown).

use super::super::Hold;
use super::super::shutdown_gate::ShutdownGate;
use super::Shared;
use crate::store::{Outcome, Store};
use leasehold_core::contender::LONGEST_PLACE;
use leasehold_core::{Claim, FIRST_LEASE, Lock, Moment, Op, Release, ReleaseAction, Released, Reply};
use leasehold_store::jitter;
use std::sync::Arc;
use std::time::Duration;

/// What the keeper has to send before it ends.
pub(in crate::engine) struct ShutdownReport {
    /// Holds, by the numbers under which they are owed.
    pub(in crate::engine) holds: Vec<Debt>,
    /// The same of those whose release is on its way (5).
    pub(in crate::engine) leaving: Vec<Debt>,
    /// Those of the former about which the user may have sent something else that is on its way.
    pub(in crate::engine) behind: Vec<Arc<Hold>>,
    /// What was asked for, and may have been given.
    pub(in crate::engine) claims: Vec<(Lock, Claim)>,
    pub(in crate::engine) gate: Arc<ShutdownGate>,
    pub(in crate::engine) main: Arc<dyn Store>,
    /// When the keeper ends.
    pub(in crate::engine) by: Moment,
}

/// A hold that is to be released, and the number under which it is owed.
pub(in crate::engine) type Debt = (u64, Arc<Hold>);

/// Says farewell to the store: releases all holds in one batch, and undoes what was asked for (3).
pub(super) async fn part(shared: Arc<Shared>, farewell: ShutdownReport) {
    let ShutdownReport { holds, leaving, behind, claims, gate, main, by } = farewell;
    let shared = &shared;
    let after_the_user = async {
        gate.still().await;
        // A place may be kept for so long, and be given the lock at the end.
        let until = shared.environment.now() + LONGEST_PLACE + FIRST_LEASE;
        for (lock, claim) in claims {
            shared.post(lock, claim, until, Some(main.clone()));
        }
        let unanswered = release_behind(shared, &*main, leaving, &behind, by).await;
        release_all(shared, unanswered).await;
    };
    futures_util::future::join(after_the_user, release_all(shared, holds)).await;
}

/// Releases holds by the connection of the user's, so that what he sent has been executed when this is answered. Gives
/// those of the leaving ones that have had no answer (5); of the others the keeper's own connection learns it.
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
    // Half of what is left, so that there is time for the other way.
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

/// Releases holds in one batch, and in a further one those of which nothing is known, until the keeper ends.
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
                // What is owed when the keeper ends was not given back.
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
    Op::Release(Release { claim: hold.claim.clone(), pass: ReleaseAction::Grant, next: None })
}

/// A hold is not owed any more. Whose release was cut off learns from this what became of it (5).
fn settle(shared: &Shared, (id, hold): &Debt, released: Released) {
    shared.note(hold, released);
    shared.settle(*id, true);
}
