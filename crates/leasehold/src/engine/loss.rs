//! Why a hold was lost, as far as the store says so.

use super::{Hold, LostReason, Timings, call};
use crate::store::Store;
use crate::telemetry::Telemetry;
use leasehold_core::{Claim, Ended, HoldStatus, Holder, Inspect, Lock, Op, Reply};
use leasehold_store::Environment;
use std::time::Duration;

/// Signals the loss of a hold, with its reason if the store reports it within a bounded time. `in_time` is set if the
/// lease had not ended by the holder's own clock.
///
/// Cancel safety: if the future is dropped, the loss is signaled at once, as expired.
pub(crate) async fn report_loss(
    store: &dyn Store,
    environment: &dyn Environment,
    telemetry: &Telemetry,
    timings: Timings,
    hold: &Hold,
    in_time: bool,
) {
    let unreported = UnreportedLoss(hold);
    tokio::select! {
        biased;
        // Another task has ended it, for example its release: no need to query the store again.
        () = hold.signal().cancelled() => {}
        reason = query_loss_reason(store, environment, telemetry, timings, (&hold.lock, &hold.claim), in_time) => {
            unreported.0.lose(reason);
        }
    }
}

/// Signals the loss at the latest when dropped.
struct UnreportedLoss<'a>(&'a Hold);

impl Drop for UnreportedLoss<'_> {
    fn drop(&mut self) {
        // Has no effect if the loss was reported before.
        self.0.lose(LostReason::Expired);
    }
}

/// Queries the store for why a hold is gone.
pub(super) async fn query_loss_reason(
    store: &dyn Store,
    environment: &dyn Environment,
    telemetry: &Telemetry,
    timings: Timings,
    (lock, claim): (&Lock, &Claim),
    in_time: bool,
) -> LostReason {
    let inspect = Op::Inspect(Inspect { claim: Some(claim.clone()), details: false });
    let within = timings.call.min(Duration::from_secs(1));
    match call(store, environment, telemetry, lock, &inspect, within, within).await {
        Ok(Reply::Inspect(seen)) => {
            seen.hold_status.map_or(LostReason::Expired, |status| reason(status, seen.holder, in_time))
        }
        _ => LostReason::Expired,
    }
}

/// Maps the state of a hold to the reason of its loss. A key that is missing before its lease ended was removed.
pub(super) fn reason(status: HoldStatus, holder: Option<Holder>, in_time: bool) -> LostReason {
    match status {
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
