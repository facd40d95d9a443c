//! Errands: what is given back without anybody who waits for it.
//!
//! What a shutdown owes is entered here as well, so that whoever asks learns what was left undone.

use super::super::{Hold, call};
use super::{KeepId, Shared, State};
use crate::store::{Outcome, Store};
use leasehold_core::{Claim, Lock, Moment, Op, Pass, Release};
use std::sync::Arc;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Something that is being given back.
#[derive(Clone)]
pub(in crate::engine) struct Owed {
    pub(in crate::engine) lock: Lock,
    /// Until when the store may have it.
    pub(in crate::engine) until: Moment,
}

/// A release that somebody else began.
pub(super) struct Errand {
    id: u64,
    lock: Lock,
    claim: Claim,
    until: Moment,
    /// Set where the operation that is undone may still be on its way: the connection that it went by.
    behind: Option<Arc<dyn Store>>,
    /// Set if it is about a hold whose guard is there still (5).
    guarded: Option<Guarded>,
}

/// What ties an errand to a hold whose guard is there still.
struct Guarded {
    /// Cancelled when nothing more is to be sent.
    stop: CancellationToken,
    /// What was in flight about the hold before.
    earlier: Option<CancellationToken>,
    /// Kept for as long as anything is in flight about the hold.
    in_flight: DropGuard,
}

impl State {
    /// Enters that something is being given back.
    pub(super) fn owe(&mut self, lock: Lock, until: Moment) -> u64 {
        let id = self.fresh_id();
        self.open.insert(id, Owed { lock, until });
        id
    }

    /// Has a hold given back whose guard is there still (5). It has to be lost before that is sent.
    pub(super) fn give_up(&mut self, id: KeepId) -> Option<(Arc<Hold>, Errand)> {
        let hold = self.lose(id)?;
        let kept = self.kept.get_mut(&id)?;
        let (stop, in_flight) = (CancellationToken::new(), CancellationToken::new());
        kept.giving_back = Some(stop.clone());
        let earlier = kept.in_flight.replace(in_flight.clone());
        let (lock, claim, until) = (hold.lock.clone(), hold.claim.clone(), hold.may_last_until());
        let guarded = Some(Guarded { stop, earlier, in_flight: in_flight.drop_guard() });
        let id = self.owe(lock.clone(), until);
        Some((hold, Errand { id, lock, claim, until, behind: None, guarded }))
    }
}

/// Runs an errand, for as long as it is wanted.
pub(super) async fn run_errand(shared: Arc<Shared>, mut errand: Errand) {
    let guarded = errand.guarded.take();
    let mut returned = true;
    let run = async { returned = give_back(&shared, &errand).await };
    match guarded {
        None => run.await,
        Some(Guarded { stop, earlier, in_flight }) => {
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
    shared.settle(errand.id, returned);
}

/// Releases a hold, again and again until it is known to be gone; says whether it is.
async fn give_back(shared: &Shared, errand: &Errand) -> bool {
    let op = Op::Release(Release { claim: errand.claim.clone(), pass: Pass::Grant, next: None });
    let each = shared.timings.call;
    let within = errand.until.since(shared.world.now()).max(each);
    let ours = || call(&*shared.store, &*shared.world, &errand.lock, &op, within, each);
    // Ours may overtake what it undoes. A second one behind it, by the same connection, cannot; sending it
    // twice equals sending it once.
    let behind = async {
        match &errand.behind {
            Some(main) => matches!(main.execute(&errand.lock, &op, each).await, Outcome::Done(_)),
            None => true,
        }
    };
    let (mut released, is_behind) = futures_util::future::join(ours(), behind).await;
    if !is_behind {
        // By now what is to be undone has arrived, or never will.
        released = ours().await;
    }
    if let Err(failed) = released {
        tracing::warn!(lock = %errand.lock, fault = %failed.fault, "not given back: it ends with its lease");
        return false;
    }
    true
}

impl Shared {
    /// Has something released that may be at the store. Whoever comes when the keeper has ended has no news: a shutdown
    /// has taken it over.
    pub(in crate::engine) fn post(
        &self,
        lock: Lock,
        claim: Claim,
        until: Moment,
        behind: Option<Arc<dyn Store>>,
    ) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        let id = state.owe(lock.clone(), until);
        state.errands.push(Errand { id, lock, claim, until, behind, guarded: None });
        drop(state);
        self.bell.notify_one();
    }

    /// Something was given back, or cannot be.
    pub(in crate::engine) fn settle(&self, id: u64, returned: bool) {
        let mut state = self.state();
        let owed = state.open.remove(&id);
        if !returned && state.handed_over {
            state.unreturned.extend(owed);
        }
        let idle = state.open.is_empty();
        drop(state);
        if idle {
            self.idle.notify_waiters();
        }
    }
}
