//! The Semaphore: permits held concurrently, each hold with its own expiry.

use super::sessions::{keeps, lapses};
use crate::conformance::client::{LONG, TestClient, granted};
use crate::conformance::fixture::Fixture;
use leasehold_core::{
    Acquire, Acquired, Ended, Evicted, Extended, ForceReleased, HoldStatus, LockMode, ObservedHolder,
    Refused, Resized,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// So many of five permits.
fn of_five(count: u32) -> LockMode {
    LockMode::Permits { count, total: 5 }
}

/// So many of two permits.
fn of_two(count: u32) -> LockMode {
    LockMode::Permits { count, total: 2 }
}

/// Holds coexist while permits remain, each with its own token. All are reported.
pub async fn permits_add_up_to_their_number(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let three = a.claim();
    let first = a.granted(&a.ask_part(&three, of_five(3))).await;
    let two = b.claim();
    let second = b.granted(&b.ask_part(&two, of_five(2))).await;
    assert!(second.fence > first.fence, "{second:?} after {first:?}");
    let standing = c.taken(&c.ask_part(&c.claim(), of_five(1))).await;
    let holder = standing.holder.expect("they stand in the way");
    assert_eq!((holder.label, holder.fence), (Some(a.label()), Some(first.fence)), "the oldest");
    let seen = c.inspect().await;
    assert_eq!((seen.limit, seen.holder), (Some(5), seen.shared_holders.first().cloned()));
    let told: Vec<_> =
        seen.shared_holders.iter().map(|holder| (holder.label.clone(), holder.fence, holder.mode)).collect();
    let expected =
        [(Some(a.label()), Some(first.fence), of_five(3)), (Some(b.label()), Some(second.fence), of_five(2))];
    assert_eq!(told, expected);
    assert_eq!(b.release(&two).await.status, HoldStatus::Held);
    c.taken(&c.ask_part(&c.claim(), of_five(3))).await;
    c.take_part(of_five(2)).await;
    assert_eq!(a.fate(&three).await, HoldStatus::Held);
}

/// Rows 1 and 2: a resent acquire or release counts once.
pub async fn resent_permits_count_once(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let claim = a.claim();
    let first = a.granted(&a.ask_part(&claim, of_two(1))).await;
    for again in [a.ask_part(&claim, of_two(1)), a.look_part(&claim, of_two(1))] {
        assert_eq!(a.granted(&again).await.fence, first.fence);
    }
    let other = b.take_part(of_two(1)).await;
    for found in [HoldStatus::Held, HoldStatus::Ended(Ended::Released), HoldStatus::Ended(Ended::Released)] {
        assert_eq!(a.release(&claim).await.status, found);
    }
    b.taken(&b.ask_part(&b.claim(), of_two(2))).await;
    b.take_part(of_two(1)).await;
    assert_eq!(b.fate(&other).await, HoldStatus::Held);
}

/// No later request overtakes a waiter because it needs fewer permits, queued or not.
pub async fn a_smaller_request_overtakes_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let held = a.take_part(of_five(3)).await;
    let (much, nonce) = b.enqueue_part(of_five(4)).await;
    c.taken(&c.ask_part(&c.claim(), of_five(1))).await;
    let little = c.claim();
    let standing = c.taken(&c.look_part(&little, of_five(1))).await;
    assert_eq!(standing.position, Some(1));
    a.release(&held).await;
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!(b.fate(&much).await, HoldStatus::Held);
    c.message().await;
    assert_eq!(c.fate(&little).await, HoldStatus::Held, "there was room for both");
}

/// One release grants to as many waiters as fit, in order. Only those are notified.
pub async fn a_release_lets_in_as_many_as_fit(fixture: &Fixture) {
    let [a, b, c, d, last] = fixture.clients().await;
    let held = a.take_part(of_five(5)).await;
    let mut fences = BTreeSet::new();
    let mut waiting = Vec::new();
    for (client, count) in [(&b, 2), (&c, 2), (&d, 2), (&last, 1)] {
        waiting.push((client, client.enqueue_part(of_five(count)).await));
    }
    a.release(&held).await;
    for (client, (claim, nonce)) in &waiting[..2] {
        let message = client.message().await;
        assert_eq!(message.nonce, *nonce);
        assert!(fences.last().is_none_or(|last| *last < message.fence), "in their order");
        fences.insert(message.fence);
        assert_eq!(client.fate(claim).await, HoldStatus::Held);
        assert_eq!(client.granted(&client.ask_part(claim, of_five(2))).await.fence, message.fence);
    }
    for (client, (claim, _)) in &waiting[2..] {
        assert_eq!(client.fate(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    let (first, (claim, _)) = &waiting[0];
    first.release(claim).await;
    for (client, (_, nonce)) in &waiting[2..] {
        assert_eq!(client.message().await.nonce, *nonce, "both, since there are three now");
    }
}

/// Waiters of one process have separate queue entries, and are granted together.
pub async fn each_hold_of_a_process_has_its_place(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let held = a.take_part(of_two(2)).await;
    let (first, one) = b.enqueue_part(of_two(1)).await;
    let (second, two) = b.enqueue_part(of_two(1)).await;
    assert_eq!(a.inspect().await.waiters, 2);
    a.release(&held).await;
    assert_eq!([b.message().await.nonce, b.message().await.nonce], [one, two]);
    for claim in [first, second] {
        assert_eq!(b.fate(&claim).await, HoldStatus::Held);
    }
}

/// Rows 26 and 27: a hold ends with its own lease; others neither end with it nor keep it.
pub async fn each_part_ends_by_itself(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (brief, long) = (a.claim(), b.claim());
    a.granted(&Acquire { mode: of_two(1), ..a.ask(&brief, fixture.short()) }).await;
    b.granted(&b.ask_part(&long, of_two(1))).await;
    fixture.pass(fixture.short() + std::time::Duration::from_millis(2)).await;
    fixture.until("the brief one is over", async || c.inspect().await.shared_holders.len() == 1).await;
    assert_eq!(a.fate(&brief).await, HoldStatus::Vanished);
    assert_eq!(a.extend(&brief, LONG).await, Extended::NotHeld);
    c.take_part(of_two(1)).await;
    assert_eq!(b.fate(&long).await, HoldStatus::Held);
}

/// Rows 16 and 27: a release after the expiry adds no permit.
pub async fn a_release_after_the_expiry_adds_no_permit(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let late = a.claim();
    a.granted(&Acquire { mode: of_two(2), ..a.ask(&late, fixture.short()) }).await;
    fixture.outlast(fixture.short(), &b).await;
    let one = b.take_part(of_two(1)).await;
    let other = c.take_part(of_two(1)).await;
    for _ in 0..2 {
        assert_ne!(a.release(&late).await.status, HoldStatus::Held);
        c.taken(&c.ask_part(&c.claim(), of_two(1))).await;
    }
    assert_eq!((b.fate(&one).await, c.fate(&other).await), (HoldStatus::Held, HoldStatus::Held));
}

/// Rows 23 and 27: permits of a lapsed session are granted to the waiter that checks it, whatever the lease.
pub async fn permits_of_the_dead_come_back(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.take_part(of_two(1)).await;
    let kept = b.take_part(of_two(1)).await;
    let (claim, _) = c.enqueue_part(of_two(1)).await;
    fixture.outlive(fixture.short(), &a).await;
    let look = Acquire { predecessor: Some(a.session), ..c.look_part(&claim, of_two(1)) };
    c.granted(&look).await;
    assert_eq!(a.fate(&lost).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!(b.fate(&kept).await, HoldStatus::Held, "the living keep theirs");
    assert_eq!(a.acquire(&a.ask_part(&lost, of_two(1))).await, Acquired::AlreadyEnded(Ended::Evicted));
}

/// Row 23: a client that wants no permit also evicts lapsed holders, and their permits are granted to waiters.
pub async fn a_dead_sharer_is_evicted_by_any_client(fixture: &Fixture) {
    let [a, b, c, watch] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.claim();
    let fence = a.granted(&a.ask_part(&lost, of_two(1))).await.fence;
    a.take_part(of_two(1)).await;
    let (claim, nonce) = b.enqueue_part(of_two(2)).await;
    let (later, _) = c.enqueue_part(of_two(1)).await;
    fixture.outlive(fixture.short(), &a).await;
    assert_eq!(watch.evict(b.session).await, Evicted::Alive);
    assert_eq!(watch.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: false });
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!((b.fate(&claim).await, c.fate(&later).await), (HoldStatus::Held, HoldStatus::Queued));
    assert_eq!(watch.inspect_full().await.audit.len(), 2, "each of its holds is written down");
}

/// Row 23: the first waiter watches all holders and learns whether each is alive; a later one watches its
/// predecessor.
pub async fn the_first_waiter_watches_all_holders(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    for client in [&a, &b, &c, &d] {
        client.begin(LONG).await;
    }
    a.take_part(of_two(1)).await;
    b.take_part(of_two(1)).await;
    let (claim, behind) = (c.claim(), d.claim());
    let standing = c.taken(&c.look_part(&claim, of_two(1))).await;
    assert_eq!(standing.predecessor.map(|ahead| ahead.session), Some(a.session));
    assert_eq!(standing.other_holders, [b.session]);
    for (asked, other) in [(&b, &a), (&a, &b)] {
        let look = Acquire { predecessor: Some(asked.session), ..c.look_part(&claim, of_two(1)) };
        let standing = c.taken(&look).await;
        let ahead = standing.predecessor.expect("both stand in the way");
        assert_eq!(
            (ahead.session, standing.other_holders.as_slice()),
            (asked.session, [other.session].as_slice())
        );
        assert!(ahead.alive_ms.is_some(), "it lives");
    }
    let standing = d.taken(&d.look_part(&behind, of_two(1))).await;
    assert_eq!(standing.predecessor.map(|ahead| ahead.session), Some(c.session));
    assert_eq!(standing.other_holders, []);
}

/// More permits than exist, and zero permits, are refused at once.
pub async fn an_impossible_number_of_permits_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    a.take_part(of_five(5)).await;
    for (mode, count, limit) in [
        (of_five(6), 6, 5),
        (of_five(0), 0, 5),
        // How many there are the store knows by now.
        (LockMode::Permits { count: 6, total: 9 }, 6, 5),
    ] {
        for ask in [b.ask_part(&b.claim(), mode), b.look_part(&b.claim(), mode)] {
            assert_eq!(b.refused(&ask).await, Refused::OutOfRange { count, limit });
        }
    }
    assert_eq!(a.inspect().await.waiters, 0);
}

/// The first acquire sets the number of permits. A later one with another number does not change it.
pub async fn the_first_acquire_sets_the_number_of_permits(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    a.take_part(of_two(1)).await;
    b.taken(&b.ask_part(&b.claim(), of_five(2))).await;
    let (_, _) = b.enqueue_part(LockMode::Permits { count: 2, total: 2 }).await;
    assert_eq!(a.inspect().await.limit, Some(2));
}

/// A resize that has seen the current number succeeds: more permits are granted to waiters, fewer take none away.
/// Otherwise it changes nothing.
pub async fn a_resize_grants_to_waiters_and_evicts_no_holder(fixture: &Fixture) {
    let [a, b, c, person] = fixture.clients().await;
    assert_eq!(person.resize(Some(3), 4).await, Resized::Changed { limit: None });
    assert_eq!(person.resize(None, 2).await, Resized::Done);
    assert_eq!(person.inspect().await.limit, Some(2));
    // The number in an acquire no longer counts.
    let held = a.take_part(of_five(2)).await;
    let (claim, nonce) = b.enqueue_part(of_five(2)).await;
    let (last, _) = c.enqueue_part(of_five(1)).await;
    assert_eq!(person.resize(Some(5), 9).await, Resized::Changed { limit: Some(2) });
    assert_eq!(fixture.grants_so_far(&b).await, []);
    for _ in 0..2 {
        assert_eq!(person.resize(Some(2), 4).await, Resized::Done, "a second time it changes nothing");
    }
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!((b.fate(&claim).await, c.fate(&last).await), (HoldStatus::Held, HoldStatus::Queued));
    assert_eq!(person.resize(Some(4), 1).await, Resized::Done);
    assert_eq!((a.fate(&held).await, b.fate(&claim).await), (HoldStatus::Held, HoldStatus::Held));
    a.release(&held).await;
    assert_eq!(fixture.grants_so_far(&c).await, [], "two of one are held still");
    b.release(&claim).await;
    c.message().await;
    assert_eq!(c.fate(&last).await, HoldStatus::Held);
}

/// A waiter for more permits than still exist does not block others, and is refused at its next poll.
pub async fn a_waiter_beyond_a_lowered_limit_blocks_no_other(fixture: &Fixture) {
    let [a, b, c, person] = fixture.clients().await;
    let held = a.take_part(of_five(3)).await;
    let (claim, _) = b.enqueue_part(of_five(4)).await;
    let (next, nonce) = c.enqueue_part(of_five(1)).await;
    assert_eq!(person.resize(Some(5), 3).await, Resized::Done);
    assert_eq!(person.inspect().await.waiters, 1, "who came first can never come in");
    assert_eq!(b.refused(&b.look_part(&claim, of_five(4))).await, Refused::OutOfRange { count: 4, limit: 3 });
    a.release(&held).await;
    assert_eq!(c.message().await.nonce, nonce);
    assert_eq!((b.fate(&claim).await, c.fate(&next).await), (HoldStatus::Vanished, HoldStatus::Held));
    assert_eq!(person.inspect().await.waiters, 0);
}

/// A forced release ends one hold by its token. Only its holder is notified, and a waiter is granted.
pub async fn a_forced_release_ends_one_of_several(fixture: &Fixture) {
    let [a, b, c, person] = fixture.clients().await;
    if !keeps(&a) {
        return;
    }
    for client in [&a, &b, &c] {
        client.begin(LONG).await;
    }
    let kept = a.take_part(of_two(1)).await;
    let lost = b.claim();
    let fence = b.granted(&b.ask_part(&lost, of_two(1))).await.fence;
    let (claim, nonce) = c.enqueue_part(of_two(1)).await;
    assert_eq!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Released);
    assert_eq!(b.freed().await, fence);
    assert_eq!(c.message().await.nonce, nonce);
    assert_eq!(b.fate(&lost).await, HoldStatus::Ended(Ended::ForceReleased));
    assert_eq!((a.fate(&kept).await, c.fate(&claim).await), (HoldStatus::Held, HoldStatus::Held));
    assert!(
        matches!(person.free(ObservedHolder::Hold(fence)).await, ForceReleased::Changed { holder: Some(_) }),
        "once"
    );
    assert_eq!(person.inspect().await.shared_holders.len(), 2);
}

/// The permits held never exceed their number under concurrent use.
pub async fn never_are_more_permits_held_than_there_are(fixture: &Fixture) {
    let inside = Arc::new(AtomicU32::new(0));
    let workers = fixture.clients::<6>().await.map(|client| tokio::spawn(take_turns(client, inside.clone())));
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a worker ended badly: {error}"));
    }
    let seen = fixture.client().await.inspect().await;
    assert_eq!((seen.shared_holders.len(), seen.waiters), (0, 0));
}

async fn take_turns(client: TestClient, inside: Arc<AtomicU32>) {
    for round in 0..15 {
        let (count, claim) = (round % 3 + 1, client.claim());
        let look = client.look_part(&claim, of_five(count));
        if let Acquired::Taken { .. } = client.acquire(&look).await {
            let message = client.message().await;
            assert_eq!(Some(message.nonce), look.queue.map(|queue| queue.nonce));
            granted(client.acquire(&client.ask_part(&claim, of_five(count))).await);
        }
        let others = inside.fetch_add(count, Ordering::SeqCst);
        assert!(others + count <= 5, "{} permits of five", others + count);
        tokio::task::yield_now().await;
        inside.fetch_sub(count, Ordering::SeqCst);
        assert_eq!(client.release(&claim).await.status, HoldStatus::Held);
    }
}
