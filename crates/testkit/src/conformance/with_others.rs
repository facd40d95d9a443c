//! Operations that a store may send together with others.

use leasehold_core::{Claim, HoldId, Kind, Lock, Op, Release, ReleaseAction, SessionId};
use leasehold_store::{Outcome, Store};
use std::time::Duration;

/// Whether the Redis store sends an operation on a lock of this kind together with others that begin at the same time.
pub fn is_sent_with_others(kind: Kind, op: &Op) -> bool {
    kind == Kind::Mutex
        && match op {
            Op::Acquire(request) => request.claim.value.is_none() && request.predecessor.is_none(),
            Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 }) => {
                claim.value.is_none()
            }
            _ => false,
        }
}

/// Executes an operation while another is on its way, and together with a third: releases of a hold that never was, which
/// change nothing. Returns its outcome, and theirs.
pub async fn execute_with_others(
    store: &impl Store,
    lock: &Lock,
    op: &Op,
    within: Duration,
) -> (Outcome, [Outcome; 2]) {
    let hold = HoldId::from_random(SessionId::from_random([99; 12]), [99; 16]);
    let release = Op::Release(Release {
        claim: Claim::new(hold),
        action: ReleaseAction::Grant,
        next: None,
        history: 0,
    });
    let [before, beside] = ["before", "beside"].map(|name| Lock::mutex(name.parse().expect("a name")));
    let before = store.execute(&before, &release, within);
    let beside = store.execute(&beside, &release, within);
    let (before, outcome, beside) = tokio::join!(before, store.execute(lock, op, within), beside);
    (outcome, [before, beside])
}
