//! What nodes are sent. Whole quorums are tested in `tests/quorum`.

use super::*;
use leasehold_core::{Claim, HoldId};

#[test]
fn a_node_grants_nothing_and_notifies_waiters() {
    let claim = Claim::new(HoldId::from_random(SessionId::from_random([1; 12]), [2; 16]));
    for action in [ReleaseAction::Grant, ReleaseAction::Free] {
        let requested =
            at_a_node(&Op::Release(Release { claim: claim.clone(), action, next: None, history: 0 }));
        assert_eq!(
            requested,
            Op::Release(Release {
                claim: claim.clone(),
                action: ReleaseAction::FreeAndPublish,
                next: None,
                history: 0
            })
        );
    }
    let rest =
        Op::Release(Release { claim, action: ReleaseAction::Cooldown { for_ms: 7 }, next: None, history: 0 });
    assert_eq!(at_a_node(&rest), rest);
}
