//! Fencing tokens.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Claim, FencingToken};

/// Row 31: the tokens of a lock strictly grow, over releases, expiries and grants, also if the same hold acquires the
/// lock again. All replies agree on the token.
pub async fn fencing_tokens_grow(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let claim = a.acquire_new(LONG).await;
        tokens.push(known_to_all(&a, &claim).await);
        a.release(&claim).await;
    }
    let claim = a.acquire_new(fixture.short_lease()).await;
    tokens.push(known_to_all(&a, &claim).await);
    fixture.wait_expired(fixture.short_lease(), &a).await;
    let again = a.granted(&a.request(&claim, LONG)).await;
    tokens.push(again.fence);
    let (next, _) = b.enqueue().await;
    a.release(&claim).await;
    tokens.push(b.next_grant().await.fence);
    assert_eq!(Some(&known_to_all(&b, &next).await), tokens.last());
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    assert!(tokens.iter().all(|token| *token < FencingToken::MAX), "{tokens:?}");
}

/// Tokens continue after the lock's key was deleted.
pub async fn fencing_tokens_grow_over_a_deleted_key(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.acquire_new(LONG).await;
    let first = known_to_all(&a, &claim).await;
    let Some(deleted) = fixture.subject.delete_key(&fixture.lock) else {
        return super::super::fixture::report_unsupported("key to delete");
    };
    deleted.await;
    let second = a.granted(&a.request(&a.claim(), LONG)).await.fence;
    assert!(second > first, "{second:?} after {first:?}");
}

/// The token of a hold, as a poll and an inspection report it.
async fn known_to_all(client: &TestClient, claim: &Claim) -> FencingToken {
    let granted = client.granted(&client.request(claim, LONG)).await;
    let holder = client.inspect().await.holder.expect("it is held");
    assert_eq!(holder.fence, Some(granted.fence));
    granted.fence
}
