//! Fencing tokens reserved for local hand-off, and notifications of waiters to the holder.

use super::sessions::{sessions_lapse, tracks_sessions};
use crate::conformance::client::{LONG, TestClient, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquired, Claim, Evicted, Extend, Extended, FencingToken, ForceReleased, HoldStatus, ObservedHolder, Op,
    Refused, ReleaseAction, Reply, Reserve, TokenBlock,
};
use std::time::Duration;

/// A block, without notifications.
const WITHOUT_NOTIFICATIONS: Reserve = Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: false };
/// A block, with notifications.
const WITH_NOTIFICATIONS: Reserve = Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true };
const TICK: Duration = Duration::from_millis(1);

/// The greatest token of a block that is reserved for a hold.
async fn reserved(client: &TestClient, claim: &Claim) -> FencingToken {
    let (block, _) = client.reserve(claim, WITHOUT_NOTIFICATIONS).await;
    block.last().copied().expect("a block has one token at least")
}

/// Acquires the free lock with a greater token than that.
async fn acquire_after(client: &TestClient, reserved: FencingToken, what: &str) -> Claim {
    let (claim, fence) = client.acquire_with_token().await;
    assert!(fence > reserved, "after {what}: {fence:?} after {reserved:?}");
    claim
}

/// The notifications of waiters that a session has received, which has no grants.
async fn waiter_notifications(fixture: &Fixture, to: &TestClient) -> Vec<FencingToken> {
    assert_eq!(fixture.grants_so_far(to).await, []);
    to.inbox.take_wanted()
}

/// Tries to acquire the taken lock.
async fn try_taken(client: &TestClient) {
    client.taken(&client.request(&client.claim(), LONG)).await;
}

/// Each token of a block is greater than the hold's, and than those of earlier blocks. A block has at most the
/// requested number. The hold keeps its token.
pub async fn blocks_of_tokens_follow_one_another(fixture: &Fixture) {
    let a = fixture.client().await;
    let (held, fence) = a.acquire_with_token().await;
    let mut tokens = vec![fence];
    for asked in [TokenBlock::MAX_LEN, TokenBlock::MAX_LEN, 1, 3, u32::MAX, 0, TokenBlock::MAX_LEN] {
        let (block, _) = a.reserve(&held, Reserve { tokens: asked, notify_wanted: false }).await;
        let most = usize::try_from(asked.clamp(1, TokenBlock::MAX_LEN)).unwrap_or(0);
        assert!((1..=most).contains(&block.len()), "{} of {asked}", block.len());
        tokens.extend(block);
    }
    let falls = tokens.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(falls, None, "each is greater than the one before");
    let again = a.granted(&a.request(&held, LONG)).await;
    assert_eq!((again.fence, a.status(&held).await), (fence, HoldStatus::Held));
}

/// A block is complete once the clock has passed the tokens before it.
pub async fn a_block_is_complete_once_the_clock_allows(fixture: &Fixture) {
    let a = fixture.client().await;
    let (held, _) = a.acquire_with_token().await;
    for asked in [TokenBlock::MAX_LEN, 5, u32::MAX] {
        fixture.advance(TICK).await;
        let (block, _) = a.reserve(&held, Reserve { tokens: asked, notify_wanted: false }).await;
        assert_eq!(block.len(), usize::try_from(asked.min(TokenBlock::MAX_LEN)).unwrap_or(0));
    }
}

/// Row 31: a later hold has a greater token than any reserved one, however the hold has ended.
pub async fn tokens_grow_past_reserved_ones(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    let last = reserved(&a, &held).await;
    a.release(&held).await;

    let held = acquire_after(&a, last, "a release").await;
    let (queued, _) = b.enqueue().await;
    let last = reserved(&a, &held).await;
    a.release(&held).await;
    assert!(b.next_grant().await.fence > last, "a grant from the queue");
    let last = reserved(&b, &queued).await;
    let next = b.request(&b.claim(), LONG);
    let Some(Ok(Acquired::Granted { fence, .. })) =
        b.release_and(&queued, ReleaseAction::Grant, Some(next.clone())).await.next
    else {
        panic!("the lock is free")
    };
    assert!(fence > last, "a release that acquires");
    b.release(&next.claim).await;

    let brief = a.claim();
    a.granted(&a.request(&brief, fixture.short_lease())).await;
    let last = reserved(&a, &brief).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    let held = acquire_after(&b, last, "the end of its lease").await;
    let last = reserved(&b, &held).await;
    if let Some(deleted) = fixture.subject.delete_key(&fixture.lock) {
        deleted.await;
        acquire_after(&a, last, "a deletion").await;
    }
}

/// Row 31, after a forced release.
pub async fn tokens_grow_past_the_reservation_of_an_evicted_holder(fixture: &Fixture) {
    let [a, b, dead] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b] {
        client.begin(LONG).await;
    }
    let (held, fence) = a.acquire_with_token().await;
    let last = reserved(&a, &held).await;
    assert_eq!(
        b.force_release(ObservedHolder::Hold(fence)).await,
        ForceReleased::Released,
        "the store knows it by its first token"
    );
    assert_eq!(a.next_force_release().await, fence);
    assert_eq!(a.extend_and(&held, LONG, Some(WITHOUT_NOTIFICATIONS)).await, Extended::NotHeld);
    let held = acquire_after(&b, last, "force").await;
    b.release(&held).await;
    if !sessions_lapse(&a) {
        return;
    }
    dead.begin(fixture.short_lease()).await;
    let (held, fence) = dead.acquire_with_token().await;
    let last = reserved(&dead, &held).await;
    fixture.wait_lapsed(fixture.short_lease(), &dead).await;
    assert_eq!(b.evict(dead.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    acquire_after(&b, last, "an eviction").await;
}

/// Row 7: a hold that was released, has expired or never existed, and a waiter, reserve nothing, and no other client
/// is notified for them.
pub async fn only_the_holder_reserves_tokens(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let expired = a.claim();
    a.granted(&a.request(&expired, fixture.short_lease())).await;
    fixture.wait_expired(fixture.short_lease(), &a).await;
    let released = a.acquire_new(LONG).await;
    a.release(&released).await;
    let held = b.acquire_new(LONG).await;
    let (queued, _) = a.enqueue().await;
    for wrong in [&a.claim(), &expired, &released, &queued] {
        assert_eq!(a.extend_and(wrong, LONG * 5, Some(WITH_NOTIFICATIONS)).await, Extended::NotHeld);
    }
    assert!(b.remaining_ms().await <= millis(LONG));
    try_taken(&a).await;
    assert_eq!(waiter_notifications(fixture, &b).await, []);
    assert_eq!(b.status(&held).await, HoldStatus::Held);
}

/// A reservation extends the hold, and never shortens it.
pub async fn an_extend_that_reserves_never_shortens(fixture: &Fixture) {
    let a = fixture.client().await;
    let held = a.acquire_new(LONG).await;
    let raised = a.extend_and(&held, LONG * 3, Some(WITHOUT_NOTIFICATIONS)).await;
    // Without a queue, no waiter of the same process exists either: it is a plain extend.
    let reserved = matches!(raised, Extended::Reserved { .. }) || !a.store.capabilities().queue;
    assert!(reserved && raised != Extended::NotHeld, "{raised:?}");
    assert!(a.remaining_ms().await > millis(LONG * 3) - 60_000);
    a.reserve(&held, WITHOUT_NOTIFICATIONS).await;
    assert!(a.remaining_ms().await > millis(LONG * 3) - 120_000);
}

/// With a custom value, the record identifies the hold.
pub async fn an_equal_value_reserves_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (own, equal) = (a.claim_with_value("own"), b.claim_with_value("own"));
    let fence = a.granted(&a.request(&own, LONG)).await.fence;
    let (block, _) = a.reserve(&own, WITH_NOTIFICATIONS).await;
    assert!(block[0] > fence);
    assert_eq!(b.extend_and(&equal, LONG, Some(WITHOUT_NOTIFICATIONS)).await, Extended::NotHeld);
    b.taken(&b.request(&equal, LONG)).await;
    assert_eq!(a.next_wanted().await, fence);
}

/// A reservation reports whether others are in the queue.
pub async fn a_reservation_reports_whether_others_wait(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    try_taken(&b).await;
    assert!(!a.reserve(&held, WITHOUT_NOTIFICATIONS).await.1, "a try does not wait");
    let (waiting, _) = b.enqueue().await;
    assert!(a.reserve(&held, WITHOUT_NOTIFICATIONS).await.1);
    b.release(&waiting).await;
    assert!(!a.reserve(&held, WITHOUT_NOTIFICATIONS).await.1, "it has left the queue");
}

/// A holder with notifications is notified of each request of another session, queued or not, with its own token; and
/// of none of its own.
pub async fn a_holder_is_notified_of_other_requests(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, fence) = a.acquire_with_token().await;
    try_taken(&b).await;
    a.reserve(&held, WITHOUT_NOTIFICATIONS).await;
    try_taken(&b).await;
    assert_eq!(waiter_notifications(fixture, &a).await, [], "it requested no notifications");
    a.reserve(&held, WITH_NOTIFICATIONS).await;
    a.enqueue().await;
    try_taken(&a).await;
    assert_eq!(waiter_notifications(fixture, &a).await, [], "it was the holder's own request");
    try_taken(&b).await;
    let (waiting, _) = b.enqueue().await;
    b.enqueue_as(&waiting, LONG).await;
    // Notifications last as long as the hold.
    a.reserve(&held, WITHOUT_NOTIFICATIONS).await;
    let next = b.request(&b.claim(), LONG);
    b.release_and(&waiting, ReleaseAction::Grant, Some(next)).await;
    for _ in 0..4 {
        assert_eq!(a.next_wanted().await, fence);
    }
    assert_eq!(waiter_notifications(fixture, &a).await, []);
    assert_eq!(waiter_notifications(fixture, &b).await, []);
}

/// A hold without notifications causes none, whether of the same session or of another.
pub async fn a_holder_is_notified_for_one_hold(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_new(LONG).await;
    a.reserve(&held, WITH_NOTIFICATIONS).await;
    a.release(&held).await;
    let again = a.acquire_new(LONG).await;
    try_taken(&c).await;
    a.reserve(&again, WITHOUT_NOTIFICATIONS).await;
    try_taken(&c).await;
    assert_eq!(waiter_notifications(fixture, &a).await, []);
    a.reserve(&again, WITH_NOTIFICATIONS).await;
    a.release(&again).await;
    let held = b.acquire_new(LONG).await;
    try_taken(&c).await;
    for client in [&a, &b] {
        assert_eq!(waiter_notifications(fixture, client).await, []);
    }
    // A waiter receives the lock without the notifications of the hold before.
    let (_waiting, nonce) = c.enqueue().await;
    b.reserve(&held, WITH_NOTIFICATIONS).await;
    b.release(&held).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
    try_taken(&a).await;
    for client in [&b, &c] {
        assert_eq!(waiter_notifications(fixture, client).await, []);
    }
}

/// The same for a hold that has expired, or was replaced by a foreign one.
pub async fn a_lost_hold_is_not_notified(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let brief = a.claim();
    a.granted(&a.request(&brief, fixture.short_lease())).await;
    a.reserve(&brief, WITH_NOTIFICATIONS).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    let held = b.acquire_new(LONG).await;
    try_taken(&c).await;
    b.release(&held).await;
    let held = a.acquire_new(LONG).await;
    a.reserve(&held, WITH_NOTIFICATIONS).await;
    if let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) {
        put.await;
        try_taken(&c).await;
    }
    for client in [&a, &b] {
        assert_eq!(waiter_notifications(fixture, client).await, []);
    }
}

/// Only a Mutex is handed off. For other kinds, a reservation is refused, and does not extend the hold.
pub async fn this_kind_of_lock_reserves_no_tokens(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.acquire_new(LONG).await;
    for keep_record in [false, true] {
        let (claim, lease_ms, reserve) = (claim.clone(), millis(LONG * 5), Some(WITH_NOTIFICATIONS));
        let op = Op::Extend(Extend { claim, lease_ms, keep_record, reserve, fence: None });
        assert_eq!(a.execute(&op).await, Reply::Refused(Refused::Unsupported));
    }
    assert!(a.remaining_ms().await <= millis(LONG));
}
