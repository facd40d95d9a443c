//! That others have a hold as well before it counts, where the store was told to ask for that.
//!
//! 1. The keeper keeps the hold meanwhile: it is extended as any other, and whoever is dropped here leaves it to be given
//!    back. Nobody of this process gets it before it is confirmed: see [`Parting::TO_STORE`](super::Parting::TO_STORE).
//! 2. A grant is written by whoever has released the lock, on another connection. So the store looks at the hold, and has
//!    that followed by a write of its own, on the connection on which it then asks the replicas.

use super::{Engine, Hold, Missed};
use leasehold_core::{Executed, Moment};
use std::pin::pin;

/// Waits until a hold is confirmed, for as long as a call may take, and until `limit` at most. Where it is not, whoever has
/// it gives it back.
///
/// Cancel safety: if the future is dropped, nobody knows whether it was confirmed.
pub(crate) async fn confirm(engine: &Engine, hold: &Hold, limit: Option<Moment>) -> Result<(), Missed> {
    if !engine.store.capabilities().confirmation {
        return Ok(());
    }
    let call = engine.timings.call;
    let within = limit.map_or(call, |limit| limit.since(engine.world.now()).min(call));
    let asked = pin!(async { engine.store.confirm(&hold.lock, &hold.claim, within).await });
    match engine.gate.pass(asked).await {
        None => Err(Missed::Closed),
        Some(Ok(())) => Ok(()),
        Some(Err(fault)) => Err(Missed::Fault { fault, executed: Executed::Unknown }),
    }
}
