//! The leader of an Election replaces the text that observers see.

use crate::conformance::client::{LONG, TestClient};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Claim, FencingToken, HoldStatus, Label, Op, Proclaim, Proclaimed, Reply};

fn label(text: &str) -> Label {
    Label::new(text).unwrap_or_else(|error| panic!("{error}"))
}

async fn proclaim(
    by: &TestClient,
    claim: &Claim,
    fence: FencingToken,
    [observed, value]: [&str; 2],
) -> Proclaimed {
    let (observed, value) = (label(observed), label(value));
    let proclaim = Proclaim { claim: claim.clone(), fence, observed, value };
    match by.execute(&Op::Proclaim(proclaim)).await {
        Reply::Proclaim(proclaimed) => proclaimed,
        other => panic!("a proclaim was answered by {other:?}"),
    }
}

/// What others see of the leader: its text and its fencing token.
async fn seen(by: &TestClient) -> Option<(String, Option<FencingToken>)> {
    let holder = by.inspect().await.holder?;
    Some((holder.label?.to_string(), holder.fence))
}

/// The leader replaces its text, and nothing else. A repetition changes nothing more, and a late request undoes no later one.
pub async fn a_leader_proclaims_another_text(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (claim, fence) = a.acquire_with_token().await;
    let first = a.label().to_string();
    let (waiting, nonce) = b.enqueue().await;
    for _ in 0..2 {
        assert_eq!(proclaim(&a, &claim, fence, [&first, "ready"]).await, Proclaimed::Done);
        assert_eq!(seen(&b).await, Some(("ready".to_owned(), Some(fence))));
    }
    assert_eq!(proclaim(&a, &claim, fence, ["ready", ""]).await, Proclaimed::Done);
    assert_eq!(proclaim(&a, &claim, fence, ["", "draining: 1% é"]).await, Proclaimed::Done);
    let late = proclaim(&a, &claim, fence, [&first, "ready"]).await;
    assert_eq!(late, Proclaimed::Changed { value: label("draining: 1% é") });
    assert_eq!(seen(&b).await, Some(("draining: 1% é".to_owned(), Some(fence))));
    a.extend(&claim, LONG).await;
    let again = a.granted(&a.request(&claim, LONG)).await;
    assert_eq!(again.fence, fence, "a resent request finds the same hold");
    assert_eq!(a.release(&claim).await.status, HoldStatus::Held);
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(
        seen(&a).await.map(|(text, _)| text),
        Some(b.label().to_string()),
        "the next leader has its own"
    );
    assert_eq!(b.status(&waiting).await, HoldStatus::Held);
}

/// Neither a client that leads no more, nor one that never led, nor one with another token changes anything.
pub async fn only_the_leader_proclaims(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (old, fence) = a.acquire_with_token().await;
    a.release(&old).await;
    let first = a.label().to_string();
    assert_eq!(proclaim(&a, &old, fence, [&first, "late"]).await, Proclaimed::NotHeld);
    let (claim, newer) = b.acquire_with_token().await;
    let own = b.label().to_string();
    for (claim, fence) in [(&old, fence), (&old, newer), (&a.claim(), newer), (&claim, fence)] {
        assert_eq!(proclaim(&a, claim, fence, [&own, "late"]).await, Proclaimed::NotHeld);
    }
    assert_eq!(seen(&a).await, Some((own, Some(newer))));
}
