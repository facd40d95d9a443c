//! Fencing tokens reserved for local hand-off, and notifications of waiters to the holder.

use super::sessions::{keeps, lapses, take};
use crate::conformance::client::{LONG, TestClient, millis};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquired, Claim, Evicted, Extend, Extended, FencingToken, ForceReleased, HoldStatus, ObservedHolder, Op,
    Refused, ReleaseAction, Reply, Reserve, TokenBlock,
};
use std::time::Duration;

/// A block, without notifications.
const QUIETLY: Reserve = Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: false };
/// A block, with notifications.
const TELLING: Reserve = Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true };
const TICK: Duration = Duration::from_millis(1);

/// The greatest token of a block that is reserved for a hold.
async fn reserved(client: &TestClient, claim: &Claim) -> FencingToken {
    let (block, _) = client.reserve(claim, QUIETLY).await;
    block.last().copied().expect("a block has one token at least")
}

/// Takes the free lock by a greater token than that.
async fn take_after(client: &TestClient, reserved: FencingToken, what: &str) -> Claim {
    let (claim, fence) = take(client).await;
    assert!(fence > reserved, "after {what}: {fence:?} after {reserved:?}");
    claim
}

/// The notifications of waiters that a session has received, which has no grants.
async fn notes_so_far(fixture: &Fixture, to: &TestClient) -> Vec<FencingToken> {
    assert_eq!(fixture.grants_so_far(to).await, []);
    to.inbox.take_wanted()
}

/// Tries in vain.
async fn try_in_vain(client: &TestClient) {
    client.taken(&client.ask(&client.claim(), LONG)).await;
}

/// Each token of a block is greater than the hold's, and than those of earlier blocks. A block has at most the
/// requested number. The hold keeps its token.
pub async fn blocks_of_tokens_follow_one_another(fixture: &Fixture) {
    let a = fixture.client().await;
    let (held, fence) = take(&a).await;
    let mut tokens = vec![fence];
    for asked in [TokenBlock::MAX_LEN, TokenBlock::MAX_LEN, 1, 3, u32::MAX, 0, TokenBlock::MAX_LEN] {
        let (block, _) = a.reserve(&held, Reserve { tokens: asked, notify_wanted: false }).await;
        let most = usize::try_from(asked.clamp(1, TokenBlock::MAX_LEN)).unwrap_or(0);
        assert!((1..=most).contains(&block.len()), "{} of {asked}", block.len());
        tokens.extend(block);
    }
    let falls = tokens.windows(2).find(|pair| pair[0] >= pair[1]);
    assert_eq!(falls, None, "each is greater than the one before");
    let again = a.granted(&a.ask(&held, LONG)).await;
    assert_eq!((again.fence, a.fate(&held).await), (fence, HoldStatus::Held));
}

/// A block is complete once the clock has passed the tokens before it.
pub async fn a_block_is_whole_when_its_time_has_come(fixture: &Fixture) {
    let a = fixture.client().await;
    let (held, _) = take(&a).await;
    for asked in [TokenBlock::MAX_LEN, 5, u32::MAX] {
        fixture.pass(TICK).await;
        let (block, _) = a.reserve(&held, Reserve { tokens: asked, notify_wanted: false }).await;
        assert_eq!(block.len(), usize::try_from(asked.min(TokenBlock::MAX_LEN)).unwrap_or(0));
    }
}

/// Row 31: a later hold has a greater token than any reserved one, however the hold has ended.
pub async fn tokens_grow_over_what_is_reserved(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.take(LONG).await;
    let last = reserved(&a, &held).await;
    a.release(&held).await;

    let held = take_after(&a, last, "a release").await;
    let (queued, _) = b.enqueue().await;
    let last = reserved(&a, &held).await;
    a.release(&held).await;
    assert!(b.message().await.fence > last, "a grant from the queue");
    let last = reserved(&b, &queued).await;
    let next = b.ask(&b.claim(), LONG);
    let Some(Ok(Acquired::Granted { fence, .. })) =
        b.release_and(&queued, ReleaseAction::Grant, Some(next.clone())).await.next
    else {
        panic!("no other client waits")
    };
    assert!(fence > last, "a release that acquires");
    b.release(&next.claim).await;

    let brief = a.claim();
    a.granted(&a.ask(&brief, fixture.short())).await;
    let last = reserved(&a, &brief).await;
    fixture.outlast(fixture.short(), &b).await;
    let held = take_after(&b, last, "the end of its lease").await;
    let last = reserved(&b, &held).await;
    if let Some(deleted) = fixture.subject.delete_key(&fixture.lock) {
        deleted.await;
        take_after(&a, last, "a deletion").await;
    }
}

/// Row 31, after a forced release.
pub async fn tokens_grow_over_the_reservation_of_an_evicted_holder(fixture: &Fixture) {
    let [a, b, dead] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    for client in [&a, &b] {
        client.begin(LONG).await;
    }
    let (held, fence) = take(&a).await;
    let last = reserved(&a, &held).await;
    assert_eq!(
        b.free(ObservedHolder::Hold(fence)).await,
        ForceReleased::Released,
        "it is known by the token that it was given"
    );
    assert_eq!(a.freed().await, fence);
    assert_eq!(a.extend_and(&held, LONG, Some(QUIETLY)).await, Extended::NotHeld);
    let held = take_after(&b, last, "force").await;
    b.release(&held).await;
    if !lapses(&a) {
        return;
    }
    dead.begin(fixture.short()).await;
    let (held, fence) = take(&dead).await;
    let last = reserved(&dead, &held).await;
    fixture.outlive(fixture.short(), &dead).await;
    assert_eq!(b.evict(dead.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    take_after(&b, last, "an eviction").await;
}

/// Row 7: a hold that was released, has expired or never existed, and a waiter, reserve nothing, and no other client
/// is notified for them.
pub async fn nothing_is_reserved_but_for_the_holder(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let expired = a.claim();
    a.granted(&a.ask(&expired, fixture.short())).await;
    fixture.outlast(fixture.short(), &a).await;
    let released = a.take(LONG).await;
    a.release(&released).await;
    let held = b.take(LONG).await;
    let (queued, _) = a.enqueue().await;
    for wrong in [&a.claim(), &expired, &released, &queued] {
        assert_eq!(a.extend_and(wrong, LONG * 5, Some(TELLING)).await, Extended::NotHeld);
    }
    assert!(b.remaining_ms().await <= millis(LONG));
    try_in_vain(&a).await;
    assert_eq!(notes_so_far(fixture, &b).await, []);
    assert_eq!(b.fate(&held).await, HoldStatus::Held);
}

/// It is an extend: it lengthens the hold, and never shortens it.
pub async fn an_extend_that_reserves_only_raises(fixture: &Fixture) {
    let a = fixture.client().await;
    let held = a.take(LONG).await;
    let raised = a.extend_and(&held, LONG * 3, Some(QUIETLY)).await;
    // Without a queue, no waiter of the same process exists either: it is a plain extend.
    let reserved = matches!(raised, Extended::Reserved { .. }) || !a.store.capabilities().queue;
    assert!(reserved && raised != Extended::NotHeld, "{raised:?}");
    assert!(a.remaining_ms().await > millis(LONG * 3) - 60_000);
    a.reserve(&held, QUIETLY).await;
    assert!(a.remaining_ms().await > millis(LONG * 3) - 120_000);
}

/// With a custom value, the record identifies the hold.
pub async fn an_equal_value_reserves_nothing(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (own, equal) = (a.claim_with("own"), b.claim_with("own"));
    let fence = a.granted(&a.ask(&own, LONG)).await.fence;
    let (block, _) = a.reserve(&own, TELLING).await;
    assert!(block[0] > fence);
    assert_eq!(b.extend_and(&equal, LONG, Some(QUIETLY)).await, Extended::NotHeld);
    b.taken(&b.ask(&equal, LONG)).await;
    assert_eq!(a.wanted().await, fence);
}

/// A reservation reports whether others are in the queue.
pub async fn a_reservation_reports_whether_others_wait(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.take(LONG).await;
    try_in_vain(&b).await;
    assert!(!a.reserve(&held, QUIETLY).await.1, "who tries does not wait");
    let (waiting, _) = b.enqueue().await;
    assert!(a.reserve(&held, QUIETLY).await.1);
    b.release(&waiting).await;
    assert!(!a.reserve(&held, QUIETLY).await.1, "it has left the queue");
}

/// A holder with notifications is notified of each request of another session, queued or not, with its own token; and
/// of none of its own.
pub async fn a_holder_is_notified_of_other_requests(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let (held, fence) = take(&a).await;
    try_in_vain(&b).await;
    a.reserve(&held, QUIETLY).await;
    try_in_vain(&b).await;
    assert_eq!(notes_so_far(fixture, &a).await, [], "it requested no notifications");
    a.reserve(&held, TELLING).await;
    a.enqueue().await;
    try_in_vain(&a).await;
    assert_eq!(notes_so_far(fixture, &a).await, [], "the request was its own");
    try_in_vain(&b).await;
    let (waiting, _) = b.enqueue().await;
    b.enqueue_as(&waiting, LONG).await;
    // Notifications last as long as the hold.
    a.reserve(&held, QUIETLY).await;
    let next = b.ask(&b.claim(), LONG);
    b.release_and(&waiting, ReleaseAction::Grant, Some(next)).await;
    for _ in 0..4 {
        assert_eq!(a.wanted().await, fence);
    }
    assert_eq!(notes_so_far(fixture, &a).await, []);
    assert_eq!(notes_so_far(fixture, &b).await, []);
}

/// A hold without notifications causes none, whether of the same session or of another.
pub async fn a_holder_is_notified_for_one_hold(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.take(LONG).await;
    a.reserve(&held, TELLING).await;
    a.release(&held).await;
    let again = a.take(LONG).await;
    try_in_vain(&c).await;
    a.reserve(&again, QUIETLY).await;
    try_in_vain(&c).await;
    assert_eq!(notes_so_far(fixture, &a).await, []);
    a.reserve(&again, TELLING).await;
    a.release(&again).await;
    b.take(LONG).await;
    try_in_vain(&c).await;
    for client in [&a, &b] {
        assert_eq!(notes_so_far(fixture, client).await, []);
    }
}

/// The same for a hold that has expired, or was replaced by a foreign one.
pub async fn a_lost_hold_is_not_notified(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let brief = a.claim();
    a.granted(&a.ask(&brief, fixture.short())).await;
    a.reserve(&brief, TELLING).await;
    fixture.outlast(fixture.short(), &b).await;
    let held = b.take(LONG).await;
    try_in_vain(&c).await;
    b.release(&held).await;
    let held = a.take(LONG).await;
    a.reserve(&held, TELLING).await;
    if let Some(put) = fixture.subject.put_foreign(&fixture.lock, "their-token", None) {
        put.await;
        try_in_vain(&c).await;
    }
    for client in [&a, &b] {
        assert_eq!(notes_so_far(fixture, client).await, []);
    }
}

/// A Mutex alone is handed on. Of the other kinds nothing is reserved, and nothing is lengthened either.
pub async fn a_lock_of_this_kind_has_no_tokens_to_reserve(fixture: &Fixture) {
    let a = fixture.client().await;
    let claim = a.take(LONG).await;
    for keep_record in [false, true] {
        let (claim, lease_ms, reserve) = (claim.clone(), millis(LONG * 5), Some(TELLING));
        let op = Op::Extend(Extend { claim, lease_ms, keep_record, reserve });
        assert_eq!(a.execute(&op).await, Reply::Refused(Refused::Unsupported));
    }
    assert!(a.remaining_ms().await <= millis(LONG));
}
