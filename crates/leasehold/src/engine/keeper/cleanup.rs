//! Cleanups: releases that no task waits for.
//!
//! What a shutdown releases is recorded here as well, so that it can report what was left undone.

use super::outstanding::Outstanding;
use super::{Shared, State, TrackingId};
use crate::engine::{Hold, call};
use crate::store::{Outcome, Store};
use crate::telemetry::Operation;
use leasehold_core::{Claim, FIRST_LEASE, Lock, Moment, Op, Release, ReleaseAction, drift};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a process that ends waits for replies on the connections of its tasks.
const IN_ORDER_AT_EXIT: Duration = Duration::from_millis(100);

/// The latest end of what lasts until then by this clock, seen at `now`: the store's clock may be slower.
pub(in crate::engine) fn latest_end(until: Moment, now: Moment) -> Moment {
    until + drift(until.since(now).max(FIRST_LEASE))
}

/// A release in the background.
pub(super) struct Cleanup {
    id: u64,
    lock: Lock,
    claim: Claim,
    until: Moment,
    /// How many holds the history of the lock keeps, if it was held.
    history: u16,
    /// The connection of the operation to be undone, if that may still be in flight.
    undone_on: Option<Arc<dyn Store>>,
    /// Set if it is for a hold that still has its guard (5).
    guarded: Option<GuardLink>,
}

/// State for a hold that still has its guard.
struct GuardLink {
    /// Cancelled to stop sending.
    stop: CancellationToken,
    /// What was in flight about the hold before.
    earlier: Option<CancellationToken>,
    /// Kept while anything is in flight about the hold.
    in_flight: DropGuard,
}

impl State {
    /// Records that something is being released.
    pub(super) fn add_outstanding(&mut self, lock: Lock, until: Moment) -> u64 {
        let id = self.fresh_id();
        self.outstanding.insert(id, Outstanding { lock, until });
        id
    }

    /// Prepares the release of a hold that still has its guard (5). The hold must be marked lost before it is sent.
    pub(super) fn give_up(&mut self, id: TrackingId, now: Moment) -> Option<(Arc<Hold>, Cleanup)> {
        let hold = self.stop_extending(id)?;
        self.ended_holds.add(&hold, now);
        let tracked = self.tracked.get_mut(&id)?;
        let (stop, in_flight) = (CancellationToken::new(), CancellationToken::new());
        tracked.background_release = Some(stop.clone());
        let earlier = tracked.in_flight.replace(in_flight.clone());
        let (lock, claim, until) = (hold.lock.clone(), hold.claim.clone(), hold.may_last_until());
        let guarded = Some(GuardLink { stop, earlier, in_flight: in_flight.drop_guard() });
        let (id, history) = (self.add_outstanding(lock.clone(), until), hold.history());
        Some((hold, Cleanup { id, lock, claim, until, history, undone_on: None, guarded }))
    }
}

/// Runs a cleanup until it is done or stopped.
pub(super) async fn run_cleanup(shared: Arc<Shared>, mut cleanup: Cleanup) {
    let guarded = cleanup.guarded.take();
    let mut returned = true;
    let run = async { returned = release(&shared, &cleanup).await };
    match guarded {
        None => run.await,
        Some(GuardLink { stop, earlier, in_flight }) => {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = run => {}
            }
            if let Some(earlier) = earlier {
                earlier.cancelled().await;
            }
            drop(in_flight);
        }
    }
    shared.finish_cleanup(cleanup.id, returned);
}

/// Releases a hold, with retries, until it is known to be gone. Returns whether it is.
async fn release(shared: &Shared, cleanup: &Cleanup) -> bool {
    let op = Op::Release(Release {
        claim: cleanup.claim.clone(),
        action: ReleaseAction::Grant,
        next: None,
        history: cleanup.history,
    });
    let each = shared.timings.call;
    let send = || {
        let within = cleanup.until.since(shared.environment.now()).max(each);
        call(&*shared.store, &*shared.environment, shared.telemetry(), &cleanup.lock, &op, within, each)
    };
    // This release may overtake the operation that it undoes. A second one on the same connection as that operation
    // cannot; sending it twice is safe.
    let in_order = async {
        let Some(main) = &cleanup.undone_on else { return true };
        let request = shared.telemetry().request();
        tokio::select! {
            biased;
            outcome = main.execute(&cleanup.lock, &op, each) => {
                request.answered(op.operation(), &outcome);
                matches!(outcome, Outcome::Done(_))
            }
            () = connections_have_ended(shared) => false,
        }
    };
    let (mut released, is_in_order) = futures_util::future::join(send(), in_order).await;
    if !is_in_order {
        // By now the operation to be undone has arrived, or never will.
        released = send().await;
    }
    if let Err(failed) = released {
        tracing::warn!(lock = %cleanup.lock, fault = %failed.fault, "cannot release the hold; it ends with its lease");
        return false;
    }
    true
}

/// Waits until the process ends, and nothing more is sent over the connections of its tasks: their runtime may still be
/// there, and not run any more.
async fn connections_have_ended(shared: &Shared) {
    shared.process_ends.cancelled().await;
    shared.environment.sleep_until(shared.environment.now() + IN_ORDER_AT_EXIT).await;
}

impl Shared {
    /// Releases something that the store may keep. Does nothing once the keeper has ended: a shutdown has taken over.
    pub(in crate::engine) fn post(
        &self,
        lock: Lock,
        claim: Claim,
        until: Moment,
        history: u16,
        undone_on: Option<Arc<dyn Store>>,
    ) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        let id = state.add_outstanding(lock.clone(), until);
        state.cleanups.push(Cleanup { id, lock, claim, until, history, undone_on, guarded: None });
        drop(state);
        self.wake.notify_one();
    }

    /// Something was released, or cannot be.
    pub(in crate::engine) fn finish_cleanup(&self, id: u64, returned: bool) {
        let mut state = self.state();
        let outstanding = state.outstanding.remove(id);
        if !returned && state.shut_down {
            state.unreleased.extend(outstanding);
        }
        let all_done = state.outstanding.is_empty();
        drop(state);
        if all_done {
            self.cleanups_done.notify_waiters();
        }
    }
}
