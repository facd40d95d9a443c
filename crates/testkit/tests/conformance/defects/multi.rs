//! Defects of an acquire of several locks.

use crate::mutant::StoreMutant;
use leasehold_core::model::{LockState, all_alive};
use leasehold_core::{Acquire, HoldStatus, Inspect, Op, Reply};

/// Defects of an acquire of several locks.
pub(crate) fn mutate_multi_reply(mutant: StoreMutant, state: &mut LockState, now_us: u64, request: &Acquire) {
    let inspect = Op::Inspect(Inspect { claim: Some(request.claim.clone()), details: false });
    let reply = state.clone().apply(now_us, &inspect, &all_alive).0;
    let held = matches!(reply, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Held));
    match mutant {
        StoreMutant::AcquiresAll if !held => state.value = None,
        StoreMutant::ReacquiresOnResend if held => state.value = None,
        _ => {}
    }
}
