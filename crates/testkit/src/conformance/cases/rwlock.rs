//! The RwLock: readers share it, a writer is alone, and an upgradable reader may become the writer.

use super::sessions::sessions_lapse;
use crate::conformance::client::{LONG, TestClient, granted};
use crate::conformance::fixture::Fixture;
use leasehold_core::{Acquire, Acquired, Ended, Evicted, HoldStatus, LockMode, Op, Refused, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use LockMode::{Read, Upgradable, Upgrade, Write};

/// Readers coexist; a writer is alone; one upgradable reader coexists with readers.
pub async fn readers_share_and_a_writer_is_alone(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let read = a.acquire_mode(Read).await;
    let other = b.acquire_mode(Read).await;
    c.taken(&c.mode_request(&c.claim(), Write)).await;
    let upgradable = c.acquire_mode(Upgradable).await;
    let beside = b.acquire_mode(Read).await;
    a.taken(&a.mode_request(&a.claim(), Upgradable)).await;
    let sharers = a.inspect().await.shared_holders;
    let modes: Vec<_> = sharers.iter().map(|holder| holder.mode).collect();
    assert_eq!(modes, [Read, Read, Upgradable, Read]);
    assert!(sharers.is_sorted_by_key(|holder| holder.fence));
    for (client, claim) in [(&a, read), (&b, other), (&c, upgradable), (&b, beside)] {
        a.taken(&a.mode_request(&a.claim(), Write)).await;
        assert_eq!(client.release(&claim).await.status, HoldStatus::Held);
    }
    a.acquire_mode(Write).await;
    for mode in [Read, Upgradable, Write] {
        b.taken(&b.mode_request(&b.claim(), mode)).await;
    }
}

/// A reader does not overtake a waiting writer. Readers behind it are granted together.
pub async fn readers_overtake_no_waiting_writer(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let reading = a.acquire_mode(Read).await;
    let (writing, nonce) = b.enqueue_mode(Write).await;
    d.taken(&d.mode_request(&d.claim(), Read)).await;
    let later = [c.enqueue_mode(Read).await, d.enqueue_mode(Read).await];
    a.release(&reading).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    for (client, (claim, _)) in [&c, &d].into_iter().zip(&later) {
        assert_eq!(client.status(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    b.release(&writing).await;
    for (client, (claim, nonce)) in [&c, &d].into_iter().zip(&later) {
        assert_eq!(client.next_grant().await.nonce, *nonce);
        assert_eq!(client.status(claim).await, HoldStatus::Held);
    }
}

/// An owner that reads already reads again past a waiting writer, which waits for that owner.
pub async fn an_owner_that_reads_overtakes_a_waiting_writer(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let outer = a.acquire_mode(Read).await;
    let (writing, nonce) = b.enqueue_mode(Write).await;
    c.taken(&c.mode_request(&c.claim(), Read)).await;
    let inner = a.same_owner_claim(&outer);
    let fence = a.granted(&a.mode_request(&inner, Read)).await.fence;
    assert_eq!(
        a.granted(&a.queued_mode_request(&inner, Read)).await.fence,
        fence,
        "a resent request is the same"
    );
    a.release(&outer).await;
    assert_eq!(b.status(&writing).await, HoldStatus::Queued, "a reader still holds the lock");
    a.release(&inner).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
}

/// Row 28: a reader cannot write, and only an upgradable reader can upgrade. Another such request could never be granted,
/// and is refused at once, queued or not.
pub async fn an_upgrade_that_would_never_end_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let read = a.acquire_mode(Read).await;
    for (mode, refused) in [
        (Write, Refused::WouldDeadlock),
        (Upgradable, Refused::WouldDeadlock),
        (Upgrade, Refused::NothingToUpgrade),
    ] {
        let claim = a.same_owner_claim(&read);
        for request in [a.mode_request(&claim, mode), a.queued_mode_request(&claim, mode)] {
            assert_eq!(a.refused(&request).await, refused, "{mode:?}");
        }
    }
    assert_eq!(b.inspect().await.waiters, 0);
    a.release(&read).await;
    let upgradable = a.acquire_mode(Upgradable).await;
    let first = a.same_owner_claim(&upgradable);
    a.granted(&a.mode_request(&first, Upgrade)).await;
    a.release(&upgradable).await;
    let late = a.same_owner_claim(&upgradable);
    for request in [a.mode_request(&late, Upgrade), a.queued_mode_request(&late, Upgrade)] {
        assert_eq!(a.refused(&request).await, Refused::NothingToUpgrade, "the read has been released");
    }
    assert_eq!(b.refused(&b.queued_mode_request(&b.claim(), Upgrade)).await, Refused::NothingToUpgrade);
}

/// An owner that writes gets each further mode at once, in any process and past all waiters, as a hold with a token of its
/// own. The waiters are admitted once the last of its holds has been released.
pub async fn an_owner_that_writes_overtakes_all_waiters(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let outer = a.claim();
    let mut newest = a.granted(&a.mode_request(&outer, Write)).await.fence;
    let (waiting, nonce) = b.enqueue_mode(Write).await;
    let mut held = vec![(&a, outer.clone())];
    for (client, mode) in [(&c, Write), (&a, Write), (&c, Upgradable), (&a, Upgrade), (&c, Read)] {
        let claim = client.same_owner_claim(&outer);
        let granted = client.granted(&client.mode_request(&claim, mode)).await;
        assert!(granted.fence > newest && granted.others_wait, "{mode:?}");
        newest = granted.fence;
        let resent = client.granted(&client.queued_mode_request(&claim, mode)).await;
        assert_eq!(resent.fence, newest, "a resent request is the same");
        held.push((client, claim));
    }
    let modes: Vec<_> = b.inspect().await.shared_holders.iter().map(|holder| holder.mode).collect();
    assert_eq!(modes, [Write, Write, Write, Upgradable, Upgrade, Read]);
    for (client, claim) in &held {
        assert_eq!(b.status(&waiting).await, HoldStatus::Queued);
        b.taken(&b.mode_request(&b.claim(), Read)).await;
        assert_eq!(client.release(claim).await.status, HoldStatus::Held);
    }
    assert_eq!(b.next_grant().await.nonce, nonce);
}

/// Row 23: the session of one write lapses. The other writes of its owner stay, and exclude the waiters.
pub async fn a_lapsed_write_ends_no_other_write_of_its_owner(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.acquire_mode(Write).await;
    let kept = b.same_owner_claim(&lost);
    b.granted(&b.mode_request(&kept, Write)).await;
    let (waiting, _) = c.enqueue_mode(Read).await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    let poll = c.queued_mode_request(&waiting, Read);
    c.taken(&Acquire { predecessor: Some(a.session), ..poll.clone() }).await;
    assert_eq!(a.status(&lost).await, HoldStatus::Ended(Ended::Evicted));
    assert_eq!((b.status(&kept).await, c.status(&waiting).await), (HoldStatus::Held, HoldStatus::Queued));
    b.release(&kept).await;
    assert_eq!(Some(c.next_grant().await.nonce), poll.queue.map(|queue| queue.nonce));
}

/// An upgrade waits for current readers, ahead of all other waiters, and keeps its read.
pub async fn an_upgrade_overtakes_all_waiters(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let upgradable = a.acquire_mode(Upgradable).await;
    let reading = b.acquire_mode(Read).await;
    let (writing, writes) = c.enqueue_mode(Write).await;
    let (behind, _) = d.enqueue_mode(Read).await;
    let upgrade = a.same_owner_claim(&upgradable);
    let poll = a.queued_mode_request(&upgrade, Upgrade);
    for _ in 0..2 {
        let taken = a.taken(&poll).await;
        assert_eq!(taken.position, Some(0), "a resent request is the same");
        assert_eq!(taken.holder.and_then(|holder| holder.label), Some(b.label()));
    }
    b.release(&reading).await;
    assert_eq!(Some(a.next_grant().await.nonce), poll.queue.map(|queue| queue.nonce));
    let modes: Vec<_> = d.inspect().await.shared_holders.iter().map(|holder| holder.mode).collect();
    assert_eq!(modes, [Upgradable, Upgrade]);
    a.release(&upgrade).await;
    assert_eq!((c.status(&writing).await, d.status(&behind).await), (HoldStatus::Queued, HoldStatus::Queued));
    a.release(&upgradable).await;
    assert_eq!(c.next_grant().await.nonce, writes);
    assert_eq!(fixture.grants_so_far(&d).await, []);
}

/// An attempt to upgrade goes ahead of waiters without queueing.
pub async fn a_try_to_upgrade_overtakes_waiters(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let upgradable = a.acquire_mode(Upgradable).await;
    let (writing, _) = b.enqueue_mode(Write).await;
    let upgrade = a.same_owner_claim(&upgradable);
    let granted = a.granted(&a.mode_request(&upgrade, Upgrade)).await;
    assert!(granted.others_wait);
    assert_eq!(b.status(&writing).await, HoldStatus::Queued);
}

/// A downgrade admits no other writer in between, and admits readers at once.
pub async fn a_downgrade_admits_no_writer(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let writing = a.acquire_mode(Write).await;
    let (reads, nonce) = b.enqueue_mode(Read).await;
    let (other, writes) = c.enqueue_mode(Write).await;
    let reading = a.same_owner_claim(&writing);
    for _ in 0..2 {
        a.granted(&a.mode_request(&reading, Read)).await;
    }
    assert_eq!(b.status(&reads).await, HoldStatus::Queued, "a writer still holds the lock");
    a.release(&writing).await;
    assert_eq!(b.next_grant().await.nonce, nonce);
    assert_eq!((a.status(&reading).await, c.status(&other).await), (HoldStatus::Held, HoldStatus::Queued));
    a.release(&reading).await;
    b.release(&reads).await;
    assert_eq!(c.next_grant().await.nonce, writes);
}

/// Row 26: a live reader does not extend another's hold, and a lapsed one does not end it.
pub async fn a_live_reader_does_not_extend_an_expired_one(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (brief, long) = (a.claim(), b.claim());
    a.granted(&Acquire { mode: Read, ..a.request(&brief, fixture.short_lease()) }).await;
    b.granted(&b.mode_request(&long, Read)).await;
    b.extend(&long, LONG * 2).await;
    let (writing, nonce) = c.enqueue_mode(Write).await;
    fixture.advance(fixture.short_lease() + Duration::from_millis(2)).await;
    fixture.wait_until("the short lease ends", async || c.inspect().await.shared_holders.len() == 1).await;
    assert_eq!((a.status(&brief).await, b.status(&long).await), (HoldStatus::Vanished, HoldStatus::Held));
    assert_eq!(c.status(&writing).await, HoldStatus::Queued);
    b.release(&long).await;
    assert_eq!(c.next_grant().await.nonce, nonce);
}

/// Rows 16 and 26: the late release of a read ends no write.
pub async fn a_late_release_of_a_read_ends_no_write(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let late = a.claim();
    a.granted(&Acquire { mode: Read, ..a.request(&late, fixture.short_lease()) }).await;
    fixture.wait_expired(fixture.short_lease(), &b).await;
    let writing = b.acquire_mode(Write).await;
    for _ in 0..2 {
        assert_ne!(a.release(&late).await.status, HoldStatus::Held);
        assert_eq!(b.status(&writing).await, HoldStatus::Held);
    }
    a.taken(&a.mode_request(&a.claim(), Read)).await;
}

/// Row 23: a waiting writer finds which readers have lapsed, and is granted once no other reads.
pub async fn a_lapsed_reader_blocks_no_writer(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.acquire_mode(Read).await;
    let reading = b.acquire_mode(Read).await;
    let (writing, nonce) = c.enqueue_mode(Write).await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    let taken =
        c.taken(&Acquire { predecessor: Some(a.session), ..c.queued_mode_request(&writing, Write) }).await;
    assert_eq!(
        taken.predecessor.map(|predecessor| predecessor.session),
        Some(b.session),
        "the lapsed session was evicted"
    );
    assert_eq!(a.status(&lost).await, HoldStatus::Ended(Ended::Evicted));
    b.release(&reading).await;
    assert_ne!(c.next_grant().await.nonce, nonce, "it answers the last poll");
    assert_eq!(c.status(&writing).await, HoldStatus::Held);
}

/// Row 23: a lapsed session that waited for an upgrade blocks no waiter, neither by its read nor by its queue entry.
pub async fn a_lapsed_upgrade_blocks_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !sessions_lapse(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short_lease()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let upgradable = a.claim();
    let fence = a.granted(&a.mode_request(&upgradable, Upgradable)).await.fence;
    let reading = b.acquire_mode(Read).await;
    a.enqueue_mode_as(&a.same_owner_claim(&upgradable), Upgrade).await;
    let (behind, nonce) = c.enqueue_mode(Read).await;
    fixture.wait_lapsed(fixture.short_lease(), &a).await;
    assert_eq!(b.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: true });
    assert_eq!(c.next_grant().await.nonce, nonce);
    assert_eq!((b.status(&reading).await, c.status(&behind).await), (HoldStatus::Held, HoldStatus::Held));
}

/// A claim without an owner is refused.
pub async fn a_reader_without_an_owner_is_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    let unowned = leasehold_core::Claim::new(a.claim().hold);
    for mode in [Read, Write] {
        let refused = a.execute(&Op::Acquire(a.mode_request(&unowned, mode))).await;
        assert_eq!(refused, Reply::Refused(Refused::NoOwner));
    }
}

/// No hold coexists with a writer under concurrent use.
pub async fn a_writer_is_always_alone(fixture: &Fixture) {
    let inside = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let workers = fixture.clients::<5>().await;
    let workers = workers.map(|client| tokio::spawn(acquire_and_release(client, inside.clone())));
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a task panicked: {error}"));
    }
}

async fn acquire_and_release(client: TestClient, inside: Arc<(AtomicU32, AtomicU32)>) {
    for round in 0..20 {
        let mode = if round % 3 == 0 { Write } else { Read };
        let claim = client.claim();
        let poll = client.queued_mode_request(&claim, mode);
        if let Acquired::Taken { .. } = client.acquire(&poll).await {
            client.next_grant().await;
            granted(client.acquire(&client.mode_request(&claim, mode)).await);
        }
        let (readers, writers) = &*inside;
        let own = if mode == Write { writers } else { readers };
        let like = own.fetch_add(1, Ordering::SeqCst);
        let other = if mode == Write { readers } else { writers }.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        own.fetch_sub(1, Ordering::SeqCst);
        assert!(other == 0 && (mode == Read || like == 0), "{mode:?} beside {other} and {like}");
        client.release(&claim).await;
    }
}
