//! The RwLock: readers share it, a writer is alone, and an upgradable reader may become the writer.

use super::sessions::lapses;
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
    let read = a.take_part(Read).await;
    let other = b.take_part(Read).await;
    c.taken(&c.ask_part(&c.claim(), Write)).await;
    let upgradable = c.take_part(Upgradable).await;
    let beside = b.take_part(Read).await;
    a.taken(&a.ask_part(&a.claim(), Upgradable)).await;
    let sharers = a.inspect().await.shared_holders;
    let modes: Vec<_> = sharers.iter().map(|holder| holder.mode).collect();
    assert_eq!(modes, [Read, Read, Upgradable, Read]);
    assert!(sharers.is_sorted_by_key(|holder| holder.fence));
    for (client, claim) in [(&a, read), (&b, other), (&c, upgradable), (&b, beside)] {
        a.taken(&a.ask_part(&a.claim(), Write)).await;
        assert_eq!(client.release(&claim).await.status, HoldStatus::Held);
    }
    a.take_part(Write).await;
    for mode in [Read, Upgradable, Write] {
        b.taken(&b.ask_part(&b.claim(), mode)).await;
    }
}

/// A reader does not overtake a waiting writer. Readers behind it are granted together.
pub async fn readers_overtake_no_waiting_writer(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let reading = a.take_part(Read).await;
    let (writing, nonce) = b.enqueue_part(Write).await;
    d.taken(&d.ask_part(&d.claim(), Read)).await;
    let later = [c.enqueue_part(Read).await, d.enqueue_part(Read).await];
    a.release(&reading).await;
    assert_eq!(b.message().await.nonce, nonce);
    for (client, (claim, _)) in [&c, &d].into_iter().zip(&later) {
        assert_eq!(client.fate(claim).await, HoldStatus::Queued);
        assert_eq!(fixture.grants_so_far(client).await, []);
    }
    b.release(&writing).await;
    for (client, (claim, nonce)) in [&c, &d].into_iter().zip(&later) {
        assert_eq!(client.message().await.nonce, *nonce);
        assert_eq!(client.fate(claim).await, HoldStatus::Held);
    }
}

/// An owner that reads already reads again past a waiting writer, which waits for that owner.
pub async fn an_owner_that_reads_overtakes_a_waiting_writer(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let outer = a.take_part(Read).await;
    let (writing, nonce) = b.enqueue_part(Write).await;
    c.taken(&c.ask_part(&c.claim(), Read)).await;
    let inner = a.again(&outer);
    let fence = a.granted(&a.ask_part(&inner, Read)).await.fence;
    assert_eq!(a.granted(&a.look_part(&inner, Read)).await.fence, fence, "resent it is the same");
    a.release(&outer).await;
    assert_eq!(b.fate(&writing).await, HoldStatus::Queued, "a reader is still there");
    a.release(&inner).await;
    assert_eq!(b.message().await.nonce, nonce);
}

/// Row 28: a reader cannot write, and only an upgradable reader can upgrade. Otherwise the request would never end;
/// it is refused at once, queued or not.
pub async fn an_upgrade_that_would_never_end_is_refused(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let read = a.take_part(Read).await;
    for (mode, refused) in [
        (Write, Refused::WouldDeadlock),
        (Upgradable, Refused::WouldDeadlock),
        (Upgrade, Refused::NothingToUpgrade),
    ] {
        let claim = a.again(&read);
        for ask in [a.ask_part(&claim, mode), a.look_part(&claim, mode)] {
            assert_eq!(a.refused(&ask).await, refused, "{mode:?}");
        }
    }
    assert_eq!(b.inspect().await.waiters, 0);
    a.release(&read).await;
    let upgradable = a.take_part(Upgradable).await;
    let first = a.again(&upgradable);
    a.granted(&a.ask_part(&first, Upgrade)).await;
    for mode in [Upgrade, Write] {
        let ask = a.ask_part(&a.again(&upgradable), mode);
        assert_eq!(a.refused(&ask).await, Refused::WouldDeadlock, "the owner already writes");
    }
    assert_eq!(b.refused(&b.look_part(&b.claim(), Upgrade)).await, Refused::NothingToUpgrade);
}

/// An upgrade waits for current readers, ahead of all other waiters, and keeps its read.
pub async fn an_upgrade_goes_before_all_waiters(fixture: &Fixture) {
    let [a, b, c, d] = fixture.clients().await;
    let upgradable = a.take_part(Upgradable).await;
    let reading = b.take_part(Read).await;
    let (writing, writes) = c.enqueue_part(Write).await;
    let (behind, _) = d.enqueue_part(Read).await;
    let upgrade = a.again(&upgradable);
    let look = a.look_part(&upgrade, Upgrade);
    for _ in 0..2 {
        let standing = a.taken(&look).await;
        assert_eq!(standing.position, Some(0), "resent it is the same");
        assert_eq!(standing.holder.and_then(|holder| holder.label), Some(b.label()));
    }
    b.release(&reading).await;
    assert_eq!(Some(a.message().await.nonce), look.queue.map(|queue| queue.nonce));
    let modes: Vec<_> = d.inspect().await.shared_holders.iter().map(|holder| holder.mode).collect();
    assert_eq!(modes, [Upgradable, Upgrade]);
    a.release(&upgrade).await;
    assert_eq!((c.fate(&writing).await, d.fate(&behind).await), (HoldStatus::Queued, HoldStatus::Queued));
    a.release(&upgradable).await;
    assert_eq!(c.message().await.nonce, writes);
    assert_eq!(fixture.grants_so_far(&d).await, []);
}

/// An attempt to upgrade goes ahead of waiters without queueing.
pub async fn a_try_to_upgrade_overtakes_waiters(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let upgradable = a.take_part(Upgradable).await;
    let (writing, _) = b.enqueue_part(Write).await;
    let upgrade = a.again(&upgradable);
    let granted = a.granted(&a.ask_part(&upgrade, Upgrade)).await;
    assert!(granted.others_wait);
    assert_eq!(b.fate(&writing).await, HoldStatus::Queued);
}

/// A downgrade admits no other writer in between, and admits readers at once.
pub async fn a_downgrade_lets_no_writer_in_between(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let writing = a.take_part(Write).await;
    let (reads, nonce) = b.enqueue_part(Read).await;
    let (other, writes) = c.enqueue_part(Write).await;
    let reading = a.again(&writing);
    for _ in 0..2 {
        a.granted(&a.ask_part(&reading, Read)).await;
    }
    assert_eq!(b.fate(&reads).await, HoldStatus::Queued, "a writer is still there");
    a.release(&writing).await;
    assert_eq!(b.message().await.nonce, nonce);
    assert_eq!((a.fate(&reading).await, c.fate(&other).await), (HoldStatus::Held, HoldStatus::Queued));
    a.release(&reading).await;
    b.release(&reads).await;
    assert_eq!(c.message().await.nonce, writes);
}

/// Row 26: a live reader does not extend another's hold, and a lapsed one does not end it.
pub async fn a_live_reader_keeps_no_dead_one_alive(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    let (brief, long) = (a.claim(), b.claim());
    a.granted(&Acquire { mode: Read, ..a.ask(&brief, fixture.short()) }).await;
    b.granted(&b.ask_part(&long, Read)).await;
    b.extend(&long, LONG * 2).await;
    let (writing, nonce) = c.enqueue_part(Write).await;
    fixture.pass(fixture.short() + Duration::from_millis(2)).await;
    fixture.until("the brief one is over", async || c.inspect().await.shared_holders.len() == 1).await;
    assert_eq!((a.fate(&brief).await, b.fate(&long).await), (HoldStatus::Vanished, HoldStatus::Held));
    assert_eq!(c.fate(&writing).await, HoldStatus::Queued);
    b.release(&long).await;
    assert_eq!(c.message().await.nonce, nonce);
}

/// Rows 16 and 26: the late release of a read ends no write.
pub async fn a_late_release_of_a_read_ends_no_write(fixture: &Fixture) {
    let [a, b] = fixture.clients().await;
    let late = a.claim();
    a.granted(&Acquire { mode: Read, ..a.ask(&late, fixture.short()) }).await;
    fixture.outlast(fixture.short(), &b).await;
    let writing = b.take_part(Write).await;
    for _ in 0..2 {
        assert_ne!(a.release(&late).await.status, HoldStatus::Held);
        assert_eq!(b.fate(&writing).await, HoldStatus::Held);
    }
    a.taken(&a.ask_part(&a.claim(), Read)).await;
}

/// Row 23: a waiting writer finds which readers have lapsed, and is granted once no other reads.
pub async fn a_dead_reader_keeps_no_writer_waiting(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let lost = a.take_part(Read).await;
    let reading = b.take_part(Read).await;
    let (writing, nonce) = c.enqueue_part(Write).await;
    fixture.outlive(fixture.short(), &a).await;
    let standing = c.taken(&Acquire { predecessor: Some(a.session), ..c.look_part(&writing, Write) }).await;
    assert_eq!(standing.predecessor.map(|ahead| ahead.session), Some(b.session), "the dead one is gone");
    assert_eq!(a.fate(&lost).await, HoldStatus::Ended(Ended::Evicted));
    b.release(&reading).await;
    assert_ne!(c.message().await.nonce, nonce, "it answers the last look");
    assert_eq!(c.fate(&writing).await, HoldStatus::Held);
}

/// Row 23: a lapsed session that waited for an upgrade blocks no waiter, neither by its read nor by its queue entry.
pub async fn a_dead_upgrade_blocks_no_waiter(fixture: &Fixture) {
    let [a, b, c] = fixture.clients().await;
    if !lapses(&a) {
        return;
    }
    for (client, alive) in [(&a, fixture.short()), (&b, LONG), (&c, LONG)] {
        client.begin(alive).await;
    }
    let upgradable = a.claim();
    let fence = a.granted(&a.ask_part(&upgradable, Upgradable)).await.fence;
    let reading = b.take_part(Read).await;
    a.enqueue_part_as(&a.again(&upgradable), Upgrade).await;
    let (behind, nonce) = c.enqueue_part(Read).await;
    fixture.outlive(fixture.short(), &a).await;
    assert_eq!(b.evict(a.session).await, Evicted::Removed { fence: Some(fence), was_queued: true });
    assert_eq!(c.message().await.nonce, nonce);
    assert_eq!((b.fate(&reading).await, c.fate(&behind).await), (HoldStatus::Held, HoldStatus::Held));
}

/// A claim without an owner is refused.
pub async fn a_reader_without_an_owner_is_refused(fixture: &Fixture) {
    let a = fixture.client().await;
    let unowned = leasehold_core::Claim::new(a.claim().hold);
    for mode in [Read, Write] {
        let refused = a.execute(&Op::Acquire(a.ask_part(&unowned, mode))).await;
        assert_eq!(refused, Reply::Refused(Refused::NoOwner));
    }
}

/// No hold coexists with a writer under concurrent use.
pub async fn a_writer_is_always_alone(fixture: &Fixture) {
    let inside = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
    let workers = fixture.clients::<5>().await;
    let workers = workers.map(|client| tokio::spawn(come_and_go(client, inside.clone())));
    for worker in workers {
        worker.await.unwrap_or_else(|error| panic!("a worker ended badly: {error}"));
    }
}

async fn come_and_go(client: TestClient, inside: Arc<(AtomicU32, AtomicU32)>) {
    for round in 0..20 {
        let mode = if round % 3 == 0 { Write } else { Read };
        let claim = client.claim();
        let look = client.look_part(&claim, mode);
        if let Acquired::Taken { .. } = client.acquire(&look).await {
            client.message().await;
            granted(client.acquire(&client.ask_part(&claim, mode)).await);
        }
        let (readers, writers) = &*inside;
        let mine = if mode == Write { writers } else { readers };
        let like = mine.fetch_add(1, Ordering::SeqCst);
        let other = if mode == Write { readers } else { writers }.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        mine.fetch_sub(1, Ordering::SeqCst);
        assert!(other == 0 && (mode == Read || like == 0), "{mode:?} beside {other} and {like}");
        client.release(&claim).await;
    }
}
