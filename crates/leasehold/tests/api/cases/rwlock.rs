//! Readers and writers.

use crate::cases::store::TestStore;
use crate::until::{until_at_rest, until_waiting};
use leasehold::error::{AcquireError, Refused};
use leasehold::inspect::LockMode;
use leasehold::{Attempt, Client, LostReason, Owner, RwLock};
use leasehold_testkit::{Stopwatch, cancel_at_every_await};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

on_every_store! {
    asynchronous:
    readers_share_and_a_writer_is_alone,
    neither_side_starves,
    readers_that_waited_go_in_together,
    an_owner_reads_again_past_a_waiting_writer,
    an_owner_writes_again_past_a_waiting_writer,
    the_loss_of_one_write_leaves_the_others_of_its_owner,
    a_writer_upgrades_and_downgrades_beneath_its_write,
    what_would_wait_for_itself_fails_at_once,
    an_upgrade_waits_for_the_readers_and_goes_before_the_queue,
    an_upgrade_that_gives_up_reads_as_before,
    one_upgradable_reader_at_a_time,
    a_downgrade_admits_readers_and_no_writer,
    a_live_reader_does_not_keep_a_dead_one,
    reads_and_writes_have_leases_of_their_own,
    the_status_lists_all_shared_holders,
    an_operator_frees_one_side,
    tokens_grow_with_every_hold,
    reading_cancelled_at_every_await,
    writing_cancelled_at_every_await,
    upgrading_cancelled_at_every_await,
    downgrading_cancelled_at_every_await,
}

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn rwlock(client: &Client) -> RwLock {
    client.rwlock("rw").expect("a good name")
}

async fn an_operator_frees_one_side(store: &TestStore) {
    let (a, b) = (rwlock(&store.client("a").await), rwlock(&store.client("b").await));
    let operator = rwlock(&store.client("operator").await);
    let (read, upgradable) = (a.read().await.expect("reads"), b.upgradable_read().await.expect("reads"));
    assert!(!operator.force_release_writer().await.expect("done"), "there is none");
    read.check().expect("it reads");
    assert_eq!(operator.force_release_readers().await.expect("done"), 2);
    assert_eq!(read.lost().await.reason, LostReason::ForceReleased);
    assert_eq!(upgradable.lost().await.reason, LostReason::ForceReleased);
    let write = a.write().await.expect("writes");
    assert_eq!(operator.force_release_readers().await.expect("done"), 0);
    write.check().expect("it writes");
    assert!(operator.force_release_writer().await.expect("done"));
    assert_eq!(write.lost().await.reason, LostReason::ForceReleased);
    b.read().await.expect("it is free").release().await.expect("released");
}

async fn readers_share_and_a_writer_is_alone(store: &TestStore) {
    let (readers, writing, both) =
        (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for n in 0..3 {
        let client = store.client(&format!("client {n}")).await;
        for task in 0..4 {
            let lock = rwlock(&client);
            let (readers, writing, both) = (readers.clone(), writing.clone(), both.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..12 {
                    if (task + round) % 4 == 0 {
                        let guard = lock.write().await.expect("acquired");
                        assert!(!writing.swap(true, Ordering::SeqCst), "two writers");
                        assert_eq!(readers.load(Ordering::SeqCst), 0, "a writer beside readers");
                        tokio::time::sleep(MS).await;
                        assert_eq!(readers.load(Ordering::SeqCst), 0, "a reader beside a writer");
                        writing.store(false, Ordering::SeqCst);
                        guard.release().await.expect("released");
                    } else {
                        let guard = lock.read().await.expect("acquired");
                        let beside = readers.fetch_add(1, Ordering::SeqCst);
                        both.fetch_max(beside + 1, Ordering::SeqCst);
                        assert!(!writing.load(Ordering::SeqCst), "a reader beside a writer");
                        tokio::time::sleep(MS).await;
                        readers.fetch_sub(1, Ordering::SeqCst);
                        guard.release().await.expect("released");
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panicked");
    }
    assert!(both.load(Ordering::SeqCst) > 1, "readers share");
    until_at_rest(&rwlock(&store.client("after").await)).await;
}

/// Readers that return again and again do not starve writers, nor writers readers.
async fn neither_side_starves(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let done = Arc::new(AtomicBool::new(false));
    let mut crowd = Vec::new();
    for n in 0..6 {
        let (lock, done) = (rwlock(if n % 2 == 0 { &a } else { &b }), done.clone());
        crowd.push(tokio::spawn(async move {
            while !done.load(Ordering::SeqCst) {
                if n < 4 {
                    let guard = lock.read().await.expect("acquired");
                    tokio::time::sleep(3 * MS).await;
                    guard.release().await.expect("released");
                } else {
                    let guard = lock.write().await.expect("acquired");
                    tokio::time::sleep(MS).await;
                    guard.release().await.expect("released");
                }
            }
        }));
    }
    let own = store.client("own").await;
    let lock = rwlock(&own);
    for _ in 0..5 {
        lock.write_timeout(10 * S).await.expect("readers let it in").release().await.expect("released");
        lock.read_timeout(10 * S).await.expect("writers let it in").release().await.expect("released");
    }
    done.store(true, Ordering::SeqCst);
    for task in crowd {
        task.await.expect("no task panicked");
    }
    until_at_rest(&lock).await;
}

async fn readers_that_waited_go_in_together(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (first, lock) = (rwlock(&a), rwlock(&b));
    let writing = first.write().await.expect("acquired");
    let together = Arc::new(tokio::sync::Barrier::new(5));
    let tasks: Vec<_> = (0..5)
        .map(|n| {
            let (lock, together) = (if n % 2 == 0 { first.clone() } else { lock.clone() }, together.clone());
            tokio::spawn(async move {
                let guard = lock.read().await.expect("acquired");
                together.wait().await;
                guard.release().await.expect("released");
            })
        })
        .collect();
    until_waiting(&lock, 5).await;
    // A later waiter waits until they are done, and no longer.
    let last = tokio::spawn({
        let lock = lock.clone();
        async move { lock.write().await.expect("acquired") }
    });
    until_waiting(&lock, 6).await;
    let start = Stopwatch::start();
    writing.release().await.expect("released");
    for task in tasks {
        task.await.expect("no panic");
    }
    last.await.expect("no panic").release().await.expect("released");
    start.assert_below(900 * MS, "woken by messages, not by polling");
    until_at_rest(&lock).await;
}

async fn an_owner_reads_again_past_a_waiting_writer(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let owner = a.new_owner();
    let lock = rwlock(&a).owned_by(&owner);
    let outer = lock.read().await.expect("acquired");
    let waiting = tokio::spawn({
        let lock = rwlock(&b);
        async move { lock.write().await.expect("acquired") }
    });
    until_waiting(&lock, 1).await;
    assert!(
        matches!(rwlock(&c).try_read().await.expect("an answer"), Attempt::Taken(_)),
        "another owner does not bypass the queue"
    );
    // The same in another process.
    let elsewhere =
        rwlock(&c).owned_by(&Owner::from_header(owner.to_header()).expect("an owner's own header"));
    let inner = elsewhere.read_timeout(5 * S).await.expect("or it would wait for itself");
    outer.release().await.expect("released");
    assert!(!waiting.is_finished(), "one of its reads is still held");
    inner.check().expect("held");
    inner.release().await.expect("released");
    waiting.await.expect("no panic").release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn an_owner_writes_again_past_a_waiting_writer(store: &TestStore) {
    let (a, b, c) = (store.client("a").await, store.client("b").await, store.client("c").await);
    let owner = a.new_owner();
    let lock = rwlock(&a).owned_by(&owner);
    let outer = lock.write().await.expect("acquired");
    let waiting = tokio::spawn({
        let lock = rwlock(&b);
        async move { lock.write().await.expect("acquired") }
    });
    until_waiting(&lock, 1).await;
    // In another process, and in the same.
    let elsewhere =
        rwlock(&c).owned_by(&Owner::from_header(owner.to_header()).expect("an owner's own header"));
    let middle = elsewhere.write_timeout(5 * S).await.expect("or it would wait for itself");
    let inner = lock.try_write().await.expect("an answer").granted().expect("it writes");
    assert!(outer.fencing_token() < middle.fencing_token());
    assert!(middle.fencing_token() < inner.fencing_token());
    assert!(matches!(rwlock(&c).try_read().await.expect("an answer"), Attempt::Taken(_)), "another owner");
    outer.release().await.expect("released");
    inner.release().await.expect("released");
    assert!(matches!(rwlock(&c).try_write().await.expect("an answer"), Attempt::Taken(_)));
    assert!(!waiting.is_finished(), "one of its writes is still held");
    middle.check().expect("held");
    middle.release().await.expect("released");
    waiting.await.expect("no panic").release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn the_loss_of_one_write_leaves_the_others_of_its_owner(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let lock = rwlock(&a).owned_by(&a.new_owner());
    let brief = lock.clone().lease(300 * MS).write().await.expect("acquired");
    let kept = lock.write().await.expect("acquired");
    assert_eq!(brief.lost().await.reason, LostReason::Expired);
    kept.check().expect("a hold of its own");
    assert!(matches!(rwlock(&b).try_read().await.expect("an answer"), Attempt::Taken(_)));
    let again = lock.write_timeout(5 * S).await.expect("it still writes");
    // An operator ends all writes.
    assert!(rwlock(&b).force_release_writer().await.expect("done"));
    assert_eq!(kept.lost().await.reason, LostReason::ForceReleased);
    assert_eq!(again.lost().await.reason, LostReason::ForceReleased);
    rwlock(&b).write_timeout(5 * S).await.expect("it is free").release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn a_writer_upgrades_and_downgrades_beneath_its_write(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let lock = rwlock(&a).owned_by(&a.new_owner());
    let outer = lock.write().await.expect("acquired");
    let upgradable = lock.upgradable_read().await.expect("it writes");
    let inner = upgradable.upgrade_timeout(5 * S).await.expect("it writes");
    let reading = inner.downgrade().await.expect("downgraded");
    assert!(matches!(rwlock(&b).try_read().await.expect("an answer"), Attempt::Taken(_)), "it still writes");
    let reading = {
        let last = outer.downgrade().await.expect("downgraded");
        reading.release().await.expect("released");
        last
    };
    rwlock(&b).read_timeout(5 * S).await.expect("it reads now").release().await.expect("released");
    assert!(lock.write().await.is_err(), "it reads, and another client may, too");
    reading.release().await.expect("released");
    until_at_rest(&lock).await;
}

/// Failure row 28.
async fn what_would_wait_for_itself_fails_at_once(store: &TestStore) {
    let a = store.client("a").await;
    let lock = rwlock(&a).owned_by(&a.new_owner());
    let impossible = |error: &AcquireError| {
        matches!(error, AcquireError::Impossible(Refused::WouldDeadlock | Refused::NothingToUpgrade))
    };
    let reading = lock.read().await.expect("acquired");
    assert!(lock.write().await.is_err_and(|error| impossible(&error)), "to write while it reads");
    assert!(lock.upgradable_read().await.is_err_and(|error| impossible(&error)), "half of an upgrade");
    reading.release().await.expect("released");
    let writing = lock.write().await.expect("acquired");
    let beside = lock.read().await.expect("the writer may read");
    beside.release().await.expect("released");
    writing.release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn an_upgrade_waits_for_the_readers_and_goes_before_the_queue(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let upgradable = lock.upgradable_read().await.expect("acquired");
    let reading = other.read().await.expect("beside the upgradable one");
    let queued = tokio::spawn({
        let other = other.clone();
        async move { other.write().await.expect("acquired") }
    });
    until_waiting(&other, 1).await;
    let read_token = upgradable.fencing_token();
    let upgrading = tokio::spawn(upgradable.upgrade());
    until_waiting(&other, 2).await;
    assert!(
        matches!(other.try_read().await.expect("an answer"), Attempt::Taken(_)),
        "no new reader is admitted"
    );
    reading.check().expect("held");
    reading.release().await.expect("released");
    let writing = upgrading.await.expect("no panic").expect("upgraded");
    assert!(writing.fencing_token() > read_token);
    assert!(!queued.is_finished(), "an upgrade goes first");
    writing.release().await.expect("released");
    queued.await.expect("no panic").release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn an_upgrade_that_gives_up_reads_as_before(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let upgradable = lock.upgradable_read().await.expect("acquired");
    let reading = other.read().await.expect("acquired");
    let not = upgradable.upgrade_timeout(400 * MS).await.expect_err("there is another reader");
    assert!(matches!(not.error, AcquireError::TimedOut { .. }), "{not}");
    not.guard.check().expect("held as before");
    until_waiting(&lock, 0).await;
    // The abandoned upgrade blocks no reader.
    let beside = other.read_timeout(5 * S).await.expect("acquired");
    beside.release().await.expect("released");
    reading.release().await.expect("released");
    let writing = not.guard.upgrade().await.expect("there is no other reader");
    writing.release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn one_upgradable_reader_at_a_time(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let upgradable = lock.upgradable_read().await.expect("acquired");
    assert!(matches!(other.try_upgradable_read().await.expect("an answer"), Attempt::Taken(_)));
    assert!(matches!(other.try_write().await.expect("an answer"), Attempt::Taken(_)));
    let reading = other.try_read().await.expect("an answer").granted().expect("readers may");
    reading.release().await.expect("released");
    upgradable.release().await.expect("released");
    let next = other.try_upgradable_read().await.expect("an answer").granted().expect("free");
    next.release().await.expect("released");
}

async fn a_downgrade_admits_readers_and_no_writer(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let writing = lock.write().await.expect("acquired");
    let reader = tokio::spawn({
        let other = other.clone();
        async move { other.read().await.expect("acquired") }
    });
    until_waiting(&lock, 1).await;
    let writer = tokio::spawn({
        let other = other.clone();
        async move { other.write().await.expect("acquired") }
    });
    until_waiting(&lock, 2).await;
    let reading = writing.downgrade().await.expect("downgraded");
    let beside = tokio::time::timeout(5 * S, reader).await.expect("woken").expect("no panic");
    reading.check().expect("held");
    assert!(!writer.is_finished(), "two read");
    beside.release().await.expect("released");
    reading.release().await.expect("released");
    writer.await.expect("no panic").release().await.expect("released");
    until_at_rest(&lock).await;
}

/// Failure row 26.
async fn a_live_reader_does_not_keep_a_dead_one(store: &TestStore) {
    let (dying, live) = (store.client_of_leases("dying").await, store.client_with("live", 2000 * MS).await);
    let dead = rwlock(&dying).lease(500 * MS).read().await.expect("acquired");
    let lock = rwlock(&live);
    let kept = lock.read().await.expect("acquired");
    std::mem::forget(dead);
    tokio::time::sleep(3000 * MS).await;
    kept.check().expect("renewed");
    let status = lock.inspect().await.expect("an answer");
    assert_eq!(status.shared_holders.len(), 1, "{status:?}");
    kept.release().await.expect("released");
    rwlock(&dying)
        .try_write()
        .await
        .expect("an answer")
        .granted()
        .expect("there is no reader")
        .release()
        .await
        .expect("released");
}

async fn reads_and_writes_have_leases_of_their_own(store: &TestStore) {
    let client = store.client_of_leases("a").await;
    let lock = rwlock(&client).read_lease(300 * MS).write_lease(60 * S);
    let reading = lock.read().await.expect("acquired");
    reading.lost().await;
    let writing = lock.write_timeout(5 * S).await.expect("the read has ended");
    tokio::time::sleep(400 * MS).await;
    writing.check().expect("its own lease is longer");
    writing.release().await.expect("released");
}

async fn the_status_lists_all_shared_holders(store: &TestStore) {
    let (a, b) = (store.client("reader a").await, store.client("reader b").await);
    let owner = Owner::new("trace-4711").expect("a text");
    let first = rwlock(&a).owned_by(&owner).read().await.expect("acquired");
    let second = rwlock(&b).upgradable_read().await.expect("acquired");
    let status = rwlock(&b).inspect().await.expect("an answer");
    let holders: Vec<_> = status
        .shared_holders
        .iter()
        .map(|sharer| (sharer.label.clone().expect("a label"), sharer.mode, sharer.fence.expect("a token")))
        .collect();
    assert_eq!(
        holders,
        [
            ("reader a".to_owned(), LockMode::Read, first.fencing_token()),
            ("reader b".to_owned(), LockMode::Upgradable, second.fencing_token()),
        ]
    );
    assert_eq!(status.shared_holders[0].owner.as_ref(), Some(&owner));
    let missed = rwlock(&a).write_timeout(400 * MS).await.expect_err("two have it");
    assert!(missed.to_string().contains("held by reader "), "{missed}");
    first.release().await.expect("released");
    second.release().await.expect("released");
}

async fn tokens_grow_with_every_hold(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (a, b) = (rwlock(&a), rwlock(&b));
    let mut last = None;
    for _ in 0..5 {
        let (one, two) = (a.read().await.expect("acquired"), b.read().await.expect("acquired"));
        assert!(last < Some(one.fencing_token()) && one.fencing_token() < two.fencing_token());
        last = Some(two.fencing_token());
        one.release().await.expect("released");
        two.release().await.expect("released");
        let writing = a.write().await.expect("acquired");
        assert!(last < Some(writing.fencing_token()));
        last = Some(writing.fencing_token());
        writing.release().await.expect("released");
    }
}

async fn reading_cancelled_at_every_await(store: &TestStore) {
    let client = store.client("a").await;
    let lock = rwlock(&client);
    cancel_at_every_await(
        || async { lock.read().await.expect("acquired").release().await.expect("released") },
        async |_| until_at_rest(&lock).await,
    )
    .await;
}

async fn writing_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let reading = other.read().await.expect("acquired");
    cancel_at_every_await(
        || async {
            let waited = lock.write_timeout(600 * MS).await;
            assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
        },
        async |_| {
            // The abandoned request blocks no reader.
            let beside = other.read_timeout(5 * S).await.expect("acquired");
            beside.release().await.expect("released");
        },
    )
    .await;
    reading.release().await.expect("released");
    until_at_rest(&lock).await;
}

async fn upgrading_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    cancel_at_every_await(
        || {
            Box::pin(async {
                let upgradable = lock.upgradable_read().await.expect("acquired");
                let writing = upgradable.upgrade().await.expect("upgraded");
                writing.release().await.expect("released");
            })
        },
        async |_| until_at_rest(&other).await,
    )
    .await;
}

async fn downgrading_cancelled_at_every_await(store: &TestStore) {
    let (a, b) = (store.client("a").await, store.client("b").await);
    let (lock, other) = (rwlock(&a), rwlock(&b));
    let cancelled = cancel_at_every_await(
        || async {
            let writing = lock.write().await.expect("acquired");
            let reading = writing.downgrade().await.expect("downgraded");
            reading.release().await.expect("released");
        },
        async |_| until_at_rest(&other).await,
    );
    Box::pin(cancelled).await;
}
