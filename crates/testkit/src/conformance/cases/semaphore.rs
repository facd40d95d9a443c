//! The Semaphore: permits held concurrently, each hold with its own expiry.

use super::sessions::{sessions_lapse, tracks_sessions};
use crate::conformance::client::{LONG, TestClient, granted};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquire, Acquired, Ended, Evicted, Extended, ForceReleased, HoldStatus, LockMode, ObservedHolder, Op,
    Refused, Release, ReleaseAction, Reply, Resize, Resized,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// `count` of five permits.
fn of_five(count: u32) -> LockMode {
    LockMode::Permits { count, total: 5 }
}

/// `count` of two permits.
fn of_two(count: u32) -> LockMode {
    LockMode::Permits { count, total: 2 }
}

/// Holds coexist while permits remain, each with its own token. All are reported.
pub async fn permits_are_granted_up_to_their_number(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let three = a.claim();
    let first = a.granted(&a.mode_request(&three, of_five(3))).await;
    let two = b.claim();
    let second = b.granted(&b.mode_request(&two, of_five(2))).await;
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    let taken = c.taken(&c.mode_request(&c.claim(), of_five(1))).await;
    let holder = taken.holder.expect("the lock is held");
    assert_eq!((holder.label, holder.fence), (Some(a.label()), Some(first.fence)), "the first to end");
    let seen = c.inspect().await;
    assert_eq!((seen.limit, seen.holder), (Some(5), seen.shared_holders.first().cloned()));
    let reported: Vec<_> =
        seen.shared_holders.iter().map(|holder| (holder.label.clone(), holder.fence, holder.mode)).collect();
    let expected =
        [(Some(a.label()), Some(first.fence), of_five(3)), (Some(b.label()), Some(second.fence), of_five(2))];
    assert_eq!(reported, expected);
    assert_eq!(b.release(&two).await.status, HoldStatus::Held);
    c.taken(&c.mode_request(&c.claim(), of_five(3))).await;
    c.acquire_mode(of_five(2)).await;
    assert_eq!(a.status(&three).await, HoldStatus::Held);
}

/// Rows 1 and 2: a resent acquire or release counts once.
pub async fn resent_permits_count_once(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.claim();
    let first = a.granted(&a.mode_request(&claim, of_two(1))).await;
    for again in [a.mode_request(&claim, of_two(1)), a.queued_mode_request(&claim, of_two(1))] {
        assert_eq!(a.granted(&again).await.fence, first.fence);
    }
    let other = b.acquire_mode(of_two(1)).await;
    for found in [HoldStatus::Held, HoldStatus::Ended(Ended::Released), HoldStatus::Ended(Ended::Released)] {
        assert_eq!(a.release(&claim).await.status, found);
    }
    b.taken(&b.mode_request(&b.claim(), of_two(2))).await;
    b.acquire_mode(of_two(1)).await;
    assert_eq!(b.status(&other).await, HoldStatus::Held);
}

/// No later request overtakes a waiter because it needs fewer permits, queued or not.
pub async fn a_smaller_request_overtakes_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.acquire_mode(of_five(3)).await;
    let (much, nonce) = b.enqueue_mode(of_five(4)).await;
    c.taken(&c.mode_request(&c.claim(), of_five(1))).await;
    let little = c.claim();
    let taken = c.taken(&c.queued_mode_request(&little, of_five(1))).await;
    assert_eq!(taken.position, Some(1));
    a.release(&held).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&much).await, HoldStatus::Held);
    c.next_grant().await;
    assert_eq!(c.status(&little).await, HoldStatus::Held, "both fit");
}

/// One release grants to as many waiters as fit, in order. Only those are notified.
pub async fn a_release_grants_to_as_many_as_fit(fixture: &Fixture) {
    let [a, b, c, d, last] = fixture.clients().await;
    let held = a.acquire_mode(of_five(5)).await;
    let mut fences = BTreeSet::new();
    let mut waiting = Vec::new();
    for (client, count) in [(&b, 2), (&c, 2), (&d, 2), (&last, 1)] {
        waiting.push((client, client.enqueue_mode(of_five(count)).await));
    }
    a.release(&held).await;
    for (client, (claim, nonce)) in &waiting[..2] {
        let message = client.next_grant().await;
        assert_eq!(message.nonce, *nonce);
        assert!(fences.last().is_none_or(|last| *last < message.fence), "the grants are in order");
        fences.insert(message.fence);
        assert_eq!(client.status(claim).await, HoldStatus::Held);
        assert_eq!(client.granted(&client.mode_request(claim, of_five(2))).await.fence, message.fence);
    }
    for (client, (claim, _)) in &waiting[2..] {
        assert_eq!(client.status(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    let (first, (claim, _)) = &waiting[0];
    first.release(claim).await;
    for (client, (_, nonce)) in &waiting[2..] {
        assert_eq!(client.next_grant().await.nonce, *nonce, "three permits are free, so both fit");
    }
}

/// Waiters of one process have separate queue entries, and are granted together.
pub async fn each_hold_of_a_process_has_a_queue_entry(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_mode(of_two(2)).await;
    let (first, one) = b.enqueue_mode(of_two(1)).await;
    let (second, two) = b.enqueue_mode(of_two(1)).await;
    assert_eq!(a.inspect().await.waiters, 2);
    a.release(&held).await;
    assert_eq!([b.next_grant().await.nonce, b.next_grant().await.nonce], [one, two]);
    for claim in [first, second] {
        assert_eq!(b.status(&claim).await, HoldStatus::Held);
    }
}

/// Rows 26 and 27: each hold ends with its own lease, and affects no other.
pub async fn each_shared_hold_expires_on_its_own(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (brief, long) = (a.claim(), b.claim());
    a.granted(&Acquire { mode: of_two(1), ..a.request(&brief, fixture.short_lease()) }).await;
    b.granted(&b.mode_request(&long, of_two(1))).await;
    fixture.advance(fixture.short_lease() + std::time::Duration::from_millis(2)).await;
    fixture.wait_until("the short lease ends", async || c.inspect().await.shared_holders.len() == 1).await;
    assert_eq!(a.status(&brief).await, HoldStatus::Vanished);
    assert_eq!(a.extend(&brief, LONG).await, Extended::NotHeld);
    c.acquire_mode(of_two(1)).await;
    assert_eq!(b.status(&long).await, HoldStatus::Held);
}

/// Rows 16 and 27: a release after the expiry adds no permit.
pub async fn a_release_after_the_expiry_adds_no_permit(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let late = a.claim();
    a.granted(&Acquire { mode: of_two(2), ..a.request(&late, fixture.short_lease()) }).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    let one = b.acquire_mode(of_two(1)).await;
    let other = c.acquire_mode(of_two(1)).await;
    for _ in 0..2 {
        assert_ne!(a.release(&late).await.status, HoldStatus::Held);
        c.taken(&c.mode_request(&c.claim(), of_two(1))).await;
    }
    assert_eq!((b.status(&one).await, c.status(&other).await), (HoldStatus::Held, HoldStatus::Held));
}

/// Rows 23 and 27: permits of a lapsed session are granted to the waiter that checks it, whatever the lease.
pub async fn permits_of_a_lapsed_session_are_granted(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.acquire_mode(of_two(1)).await;
    let kept = b.acquire_mode(of_two(1)).await;
    let (claim, _) = c.enqueue_mode(of_two(1)).await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    let poll = Acquire { predecessor: Some(a.session), ..c.queued_mode_request(&claim, of_two(1)) };
    c.granted(&poll).await;
    assert_eq!(a.status(&lost).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(b.status(&kept).await, HoldStatus::Held, "live sessions keep their permits");
    assert_eq!(a.acquire(&a.mode_request(&lost, of_two(1))).await, Acquired::AlreadyEnded(Ended::Evicted));
}

/// Row 23: a client that wants no permit also evicts lapsed holders, and their permits are granted to waiters.
pub async fn a_lapsed_holder_is_evicted_by_any_client(fixture: &Fixture) {
    let [a, b, c, observer] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.claim();
    let fence = a.granted(&a.mode_request(&lost, of_two(1))).await.fence;
    a.acquire_mode(of_two(1)).await;
    let (claim, nonce) = b.enqueue_mode(of_two(2)).await;
    let (later, _) = c.enqueue_mode(of_two(1)).await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    assert_eq!(observer.evict(b.session).await, Evicted::Alive);
    assert_eq!(observer.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!((b.status(&claim).await, c.status(&later).await), (HoldStatus::Held, HoldStatus::Queued));
    assert_eq!(observer.inspect_full().await.audit.len(), 2, "each of its holds is audited");
}

/// Row 23: the first waiter watches all holders and learns whether each is alive; a later one watches its
/// predecessor.
pub async fn the_first_waiter_watches_all_holders(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b, &c, &d] {
        client.begin(LONG).await;
    }
    a.acquire_mode(of_two(1)).await;
    b.acquire_mode(of_two(1)).await;
    let (claim, behind) = (c.claim(), d.claim());
    let taken = c.taken(&c.queued_mode_request(&claim, of_two(1))).await;
    assert_eq!(taken.predecessor.map(|predecessor| predecessor.session), Some(a.session));
    assert_eq!(taken.other_holders, [b.session]);
    for (asked, other) in [(&b, &a), (&a, &b)] {
        let poll = Acquire { predecessor: Some(asked.session), ..c.queued_mode_request(&claim, of_two(1)) };
        let taken = c.taken(&poll).await;
        let predecessor = taken.predecessor.expect("both hold permits");
        assert_eq!(
            (predecessor.session, taken.other_holders.as_slice()),
            (asked.session, [other.session].as_slice())
        );
        assert!(predecessor.alive_ms.is_some(), "it is alive");
    }
    let taken = d.taken(&d.queued_mode_request(&behind, of_two(1))).await;
    assert_eq!(taken.predecessor.map(|predecessor| predecessor.session), Some(c.session));
    assert_eq!(taken.other_holders, []);
}

/// More permits than exist, and zero permits, are refused at once.
pub async fn an_impossible_number_of_permits_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    a.acquire_mode(of_five(5)).await;
    for (mode, count, limit) in [(of_five(6), 6, 5), (of_five(0), 0, 5)] {
        for request in [b.mode_request(&b.claim(), mode), b.queued_mode_request(&b.claim(), mode)] {
            assert_eq!(b.refused(&request).await, Refused::OutOfRange { count, limit });
        }
    }
    assert_eq!(a.inspect().await.waiters, 0);
}

/// The first acquire sets the number of permits. A later one with another number is refused, until no client uses them.
pub async fn the_first_acquire_sets_the_number_of_permits(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_mode(of_two(1)).await;
    for request in [b.mode_request(&b.claim(), of_five(2)), b.queued_mode_request(&b.claim(), of_five(2))] {
        assert_eq!(b.refused(&request).await, Refused::Disagreement { requested: 5, known: 2, limit: 2 });
    }
    let (waiting, _) = b.enqueue_mode(of_two(2)).await;
    a.release(&held).await;
    b.next_grant().await;
    assert_eq!(a.inspect().await.limit, Some(2));
    b.release(&waiting).await;
    let held = b.acquire_mode(of_five(3)).await;
    assert_eq!(a.inspect().await.limit, Some(5));
    let refused = a.refused(&a.mode_request(&a.claim(), of_two(1))).await;
    assert_eq!(refused, Refused::Disagreement { requested: 2, known: 5, limit: 5 });
    b.release(&held).await;
}

/// A resize sets another number than that for which the clients ask, before the first of them or later. They go on asking for
/// their own number, unless the new one is said to be theirs.
pub async fn a_resize_leaves_the_number_for_which_clients_ask(fixture: &Fixture) {
    let [a, b, operator] = fixture.clients().await;
    let of_six = LockMode::Permits { count: 1, total: 6 };
    assert_eq!(operator.resize(None, 2).await, Resized::Done);
    let numbers = async || {
        let inspection = operator.inspect().await;
        (inspection.limit, inspection.agreed)
    };
    assert_eq!(numbers().await, (Some(2), Some(0)));
    let one = a.acquire_mode(of_five(1)).await;
    assert_eq!(numbers().await, (Some(2), Some(5)));
    let two = b.acquire_mode(of_five(1)).await;
    let refused = b.refused(&b.mode_request(&b.claim(), of_six)).await;
    assert_eq!(refused, Refused::Disagreement { requested: 6, known: 5, limit: 2 });
    assert_eq!(operator.resize(Some(2), 3).await, Resized::Done);
    let three = b.acquire_mode(LockMode::Permits { count: 1, total: 3 }).await;
    let agreed = Resize { observed: Some(3), limit: 6, agreed: true };
    let done = operator.execute(&Op::Resize(agreed)).await;
    assert_eq!(done, Reply::Resize(Resized::Done));
    assert_eq!(numbers().await, (Some(6), None));
    let refused = b.refused(&b.mode_request(&b.claim(), of_five(1))).await;
    assert_eq!(refused, Refused::Disagreement { requested: 5, known: 6, limit: 6 });
    let four = b.acquire_mode(of_six).await;
    for (client, claim) in [(&a, one), (&b, two), (&b, three), (&b, four)] {
        client.release(&claim).await;
    }
}

/// A hold gives back some of its permits, which go to the waiters. It goes on with the others, and its token. Sent again, or late,
/// that changes nothing more.
pub async fn a_hold_gives_back_some_of_its_permits(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.acquire_mode(of_five(5)).await;
    let fence = a.inspect().await.shared_holders[0].fence;
    let (waiting, _) = b.enqueue_mode(of_five(3)).await;
    let keep = async |count| a.release_and(&held, ReleaseAction::KeepPermits { count }, None).await.status;
    assert_eq!(keep(3).await, HoldStatus::Held);
    assert_eq!(a.inspect().await.waiters, 1, "two are not enough");
    assert_eq!(keep(2).await, HoldStatus::Held);
    b.next_grant().await;
    for late in [3, 2, 5] {
        assert_eq!(keep(late).await, HoldStatus::Held);
    }
    let counts = async || {
        let holders = a.inspect().await.shared_holders;
        holders.iter().map(|holder| (holder.fence, holder.mode.count())).collect::<Vec<_>>()
    };
    let now = counts().await;
    assert_eq!((now.len(), now[0], now[1].1), (2, (fence, 2), 3));
    b.release(&waiting).await;
    let other = b.acquire_mode(of_five(3)).await;
    b.release(&other).await;
    assert_eq!(a.release(&held).await.status, HoldStatus::Held);
    assert_eq!(keep(1).await, HoldStatus::Ended(Ended::Released));
    let all = b.acquire_mode(of_five(5)).await;
    let (claim, action) = (all.clone(), ReleaseAction::KeepPermits { count: 0 });
    let none = Op::Release(Release { claim, action, next: None, history: 0 });
    assert_eq!(b.execute(&none).await, Reply::Refused(Refused::Unsupported), "that is a release");
    assert_eq!(counts().await[0].1, 5);
    b.release(&all).await;
}

/// A resize that states the current number succeeds. More permits are granted to waiters; fewer evict no holder.
/// Otherwise it changes nothing.
pub async fn a_resize_grants_to_waiters_and_evicts_no_holder(fixture: &Fixture) {
    let [a, b, c, operator] = fixture.clients().await;
    assert_eq!(operator.resize(Some(3), 4).await, Resized::Changed { limit: None });
    assert_eq!(operator.resize(None, 2).await, Resized::Done);
    assert_eq!(operator.inspect().await.limit, Some(2));
    // The number in an acquire no longer counts.
    let held = a.acquire_mode(of_five(2)).await;
    let (claim, nonce) = b.enqueue_mode(of_five(2)).await;
    let (last, _) = c.enqueue_mode(of_five(1)).await;
    assert_eq!(operator.resize(Some(5), 9).await, Resized::Changed { limit: Some(2) });
    assert_eq!(fixture.grants_so_far(&b).await, []);
    for _ in 0..2 {
        assert_eq!(operator.resize(Some(2), 4).await, Resized::Done, "a repeated resize changes nothing");
    }
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!((b.status(&claim).await, c.status(&last).await), (HoldStatus::Held, HoldStatus::Queued));
    assert_eq!(operator.resize(Some(4), 1).await, Resized::Done);
    assert_eq!((a.status(&held).await, b.status(&claim).await), (HoldStatus::Held, HoldStatus::Held));
    a.release(&held).await;
    assert_eq!(fixture.grants_so_far(&c).await, [], "two permits are held, and the limit is one");
    b.release(&claim).await;
    c.next_grant().await;
    assert_eq!(c.status(&last).await, HoldStatus::Held);
}

/// A waiter for more permits than still exist does not block others, and is refused at its next poll.
pub async fn a_waiter_beyond_a_lowered_limit_blocks_no_other(fixture: &Fixture) {
    let [a, b, c, operator] = fixture.clients().await;
    let held = a.acquire_mode(of_five(3)).await;
    let (claim, _) = b.enqueue_mode(of_five(4)).await;
    let (next, nonce) = c.enqueue_mode(of_five(1)).await;
    assert_eq!(operator.resize(Some(5), 3).await, Resized::Done);
    assert_eq!(operator.inspect().await.waiters, 1, "the first request can never be granted");
    assert_eq!(
        b.refused(&b.queued_mode_request(&claim, of_five(4))).await,
        Refused::OutOfRange { count: 4, limit: 3 }
    );
    a.release(&held).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!((b.status(&claim).await, c.status(&next).await), (HoldStatus::Vanished, HoldStatus::Held));
    assert_eq!(operator.inspect().await.waiters, 0);
}

/// A forced release ends one hold by its token. Only its holder is notified, and a waiter is granted.
pub async fn a_forced_release_ends_one_of_several(fixture: &Fixture) {
    let [a, b, c, operator] = fixture.clients().await;
    if !tracks_sessions(&a) {
        return;
    }
    for client in [&a, &b, &c] {
        client.begin(LONG).await;
    }
    let kept = a.acquire_mode(of_two(1)).await;
    let lost = b.claim();
    let fence = b.granted(&b.mode_request(&lost, of_two(1))).await.fence;
    let (claim, nonce) = c.enqueue_mode(of_two(1)).await;
    assert_eq!(operator.force_release(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(b.next_force_release().await, fence);
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!(b.status(&lost).await, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!((a.status(&kept).await, c.status(&claim).await), (HoldStatus::Held, HoldStatus::Held));
    assert!(
        matches!(
            operator.force_release(ObservedHolder::Hold(fence)).await,
            ForceReleased::Changed { holder: Some(_) }
        ),
        "once"
    );
    assert_eq!(operator.inspect().await.shared_holders.len(), 2);
}

/// The permits held never exceed their number under concurrent use.
pub async fn held_permits_never_exceed_their_number(fixture: &Fixture) {
    let inside = Arc::new(AtomicU32::new(0));
    let workers =
        fixture.clients::<6>().await.map(|client| tokio::spawn(acquire_and_release(client, inside.clone())));
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a task panicked: {error}"));
    }
    let seen = fixture.client().await.inspect().await;
    assert_eq!((seen.shared_holders.len(), seen.waiters), (0, 0));
}

async fn acquire_and_release(client: TestClient, inside: Arc<AtomicU32>) {
    for round in 0..15 {
        let (count, claim) = (round % 3 + 1, client.claim());
        let poll = client.queued_mode_request(&claim, of_five(count));
        if let Acquired::Taken { .. } = client.acquire(&poll).await {
            let message = client.next_grant().await;
            assert_eq!(Some(message.nonce), poll.queue.map(|queue| queue.nonce));
            granted(client.acquire(&client.mode_request(&claim, of_five(count))).await);
        }
        let others = inside.fetch_add(count, Ordering::SeqCst);
        assert!(others + count <= 5, "{} permits of five", others + count);
        tokio::task::yield_now().await;
        inside.fetch_sub(count, Ordering::SeqCst);
        assert_eq!(client.release(&claim).await.status, HoldStatus::Held);
    }
}
