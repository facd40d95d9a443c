//! Replica confirmation of a hold, for a store that is configured to require it.
//!
//! 1. The keeper tracks the hold meanwhile and extends it like any other; if the caller is dropped, the hold is
//!    released. It is not handed off inside the process before it is confirmed: see
//!    [`ReleasePolicy::TO_STORE`](crate::engine::ReleasePolicy::TO_STORE).
//! 2. A grant is written by the client that released the lock, on another connection. So the store re-reads the hold
//!    and adds a write of its own on the connection on which it then sends WAIT.
//! 3. The re-read compares the fencing token as well. A replica that is promoted may know the queue entry and not its grant,
//!    and grant the same hold once more: with another token, and another end than this client assumes.

use crate::engine::{AcquireFailure, Engine, Hold};
use leasehold_core::{Executed, Moment};
use std::pin::pin;

/// Waits until a hold is confirmed: for at most one call's time, and at most until `limit`. On failure the caller
/// must release the hold.
///
/// Cancel safety: if the future is dropped, it is unknown whether the hold was confirmed.
pub(crate) async fn confirm(
    engine: &Engine,
    hold: &Hold,
    limit: Option<Moment>,
) -> Result<(), AcquireFailure> {
    if !engine.store.capabilities().confirmation {
        return Ok(());
    }
    let call = engine.timings.call;
    let within = limit.map_or(call, |limit| limit.since(engine.environment.now()).min(call));
    let confirming =
        pin!(async { engine.store.confirm(&hold.lock, &hold.claim, hold.store_fence, within).await });
    match engine.gate.run(confirming).await {
        None => Err(AcquireFailure::Closed),
        Some(Ok(())) => Ok(()),
        Some(Err(fault)) => Err(AcquireFailure::Fault { fault, executed: Executed::Unknown }),
    }
}
