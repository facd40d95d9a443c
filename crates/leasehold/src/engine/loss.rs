//! Why a hold was lost, as far as the store says so.

use super::{Hold, LostReason, Timings, call};
use crate::store::Store;
use leasehold_core::{Claim, Ended, HoldStatus, Holder, Inspect, Lock, Op, Reply};
use leasehold_store::Environment;
use std::time::Duration;

/// Tells everybody that a hold is lost, and why as far as the store says so in a bounded time. `in_time` says that by
/// the holder's own clock its lease had not ended.
///
/// Cancel safety: if the future is dropped, they are told at once.
pub(crate) async fn announce(
    store: &dyn Store,
    environment: &dyn Environment,
    timings: Timings,
    hold: &Hold,
    in_time: bool,
) {
    let untold = Untold(hold);
    tokio::select! {
        biased;
        // Somebody else knows it: its release, say, after which nothing is asked of it.
        () = hold.signal().cancelled() => {}
        reason = explain(store, environment, timings, &hold.lock, &hold.claim, in_time) => untold.0.lose(reason),
    }
}

/// A loss that is told at the latest when this is dropped.
struct Untold<'a>(&'a Hold);

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        // Nothing new where it was told already.
        self.0.lose(LostReason::Expired);
    }
}

/// Learns from the store why a hold is not there any more.
pub(super) async fn explain(
    store: &dyn Store,
    environment: &dyn Environment,
    timings: Timings,
    lock: &Lock,
    claim: &Claim,
    in_time: bool,
) -> LostReason {
    let inspect = Op::Inspect(Inspect { claim: Some(claim.clone()), in_full: false });
    let within = timings.call.min(Duration::from_secs(1));
    match call(store, environment, lock, &inspect, within, within).await {
        Ok(Reply::Inspect(seen)) => {
            seen.fate.map_or(LostReason::Expired, |fate| reason(fate, seen.holder, in_time))
        }
        _ => LostReason::Expired,
    }
}

/// What the fate of a hold means to its holder: a key that is missing before its time was removed.
pub(super) fn reason(fate: HoldStatus, holder: Option<Holder>, in_time: bool) -> LostReason {
    match fate {
        HoldStatus::Superseded => LostReason::TakenOver { by: holder.and_then(|holder| holder.label) },
        HoldStatus::Vanished if in_time => LostReason::Removed,
        HoldStatus::Forgotten if in_time => LostReason::StoreLostData,
        HoldStatus::Ended(Ended::Released) => LostReason::Released,
        HoldStatus::Ended(Ended::ForceReleased) => LostReason::ForceReleased,
        HoldStatus::Ended(_) => LostReason::Evicted,
        HoldStatus::Vanished | HoldStatus::Forgotten | HoldStatus::Queued | HoldStatus::Held => {
            LostReason::Expired
        }
    }
}
