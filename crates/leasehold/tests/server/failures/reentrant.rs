//! A ReentrantMutex under the same failures: its hold counts and their owners (rows 1 to 3, 10, 14, 16, 17, 23 and
//! 28).

use super::fixture::{MS, S, client, quick, server, sessionless, until, within};
use leasehold::error::{AcquireError, ReleaseError};
use leasehold::{Attempt, Client, LostReason, Owner, ReentrantMutex, Released};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, Worker, command};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const NO_LONGER_HELD: Released = Released::NoLongerHeld;
const ONCE_MORE: Released = Released::StillHeld { count: 1 };

fn lock(client: &Client, owner: &Owner) -> ReentrantMutex {
    client.reentrant_mutex("m").expect("a good name").owned_by(owner)
}

/// The owner's hold count, as any Redisson client reads it.
fn counted(server: &RedisServer, owner: &Owner) -> i64 {
    server.cli(&["HGET", "m", owner.as_str()]).expect("an answer").integer().unwrap_or(0)
}

async fn until_counted(server: &RedisServer, owner: &Owner, times: i64, time: Duration) {
    until(&format!("{times} entries"), time, async || counted(server, owner) == times).await;
}

/// Acquires the lock twice, and releases it: the first call of each script loads it into the server.
async fn load_scripts(server: &RedisServer) {
    let client = sessionless(&server.url()).await;
    let lock = lock(&client, &client.new_owner());
    let (outer, inner) = (lock.acquire().await.expect("acquired"), lock.acquire().await.expect("entered"));
    assert_eq!(inner.release().await.expect("released"), ONCE_MORE);
    assert_eq!(outer.release().await.expect("released"), NO_LONGER_HELD);
}

async fn refused(lock: &ReentrantMutex) {
    let tried = lock.try_acquire().await.expect("an answer");
    assert!(matches!(tried, Attempt::Taken(_)), "{tried:?}");
}

/// Rows 1 and 2: the reply to an entry, a re-entry or a release is lost with its connection. The repeated request
/// counts once.
#[tokio::test]
async fn row_2_a_lost_reply_leaves_no_orphaned_reentrant_hold() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let other = client(&server.url()).await;
    let other = lock(&other, &other.new_owner());
    load_scripts(&server).await;
    let lose = || proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
    for _ in 0..3 {
        // A client whose connections have broken often pauses before it opens the next.
        let a = client(&proxy.url()).await;
        let owner = a.new_owner();
        let ours = lock(&a, &owner);
        lose();
        let outer = within(5 * S, ours.acquire()).await.expect("acquired by a resend");
        assert_eq!((outer.count(), counted(&server, &owner)), (1, 1));
        lose();
        let inner = within(5 * S, ours.acquire()).await.expect("entered by a resend");
        assert_eq!((inner.count(), counted(&server, &owner)), (2, 2));
        refused(&other).await;
        lose();
        assert_eq!(inner.release().await.expect("released by a resend"), ONCE_MORE);
        assert_eq!(counted(&server, &owner), 1);
        outer.check().expect("held");
        lose();
        assert_eq!(outer.release().await.expect("released by a resend"), NO_LONGER_HELD);
        assert_eq!(server.cli(&["EXISTS", "m"]).expect("an answer").integer(), Some(0));
    }
}

/// Rows 1 and 2: the reply to a re-entry never arrives, and its caller gives up. The possible count is undone, while
/// the owner's other entry stays.
#[tokio::test]
async fn row_2_a_re_entry_without_an_answer_is_undone() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, other) = (quick(&proxy.url(), 300 * MS, 30 * S).await, client(&server.url()).await);
    let owner = a.new_owner();
    // Acquired by another process, so that keeping the entry needs no connection of the failing client.
    let travelled = Owner::from_header(owner.to_header()).expect("our own header");
    let outer = lock(&other, &travelled).acquire().await.expect("acquired");
    let ours = lock(&a, &owner);
    proxy.drop_replies(usize::MAX, AfterDrop::Stall, command("EVALSHA"));
    let missed = ours.try_acquire().await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    assert_eq!(counted(&server, &owner), 2, "it was executed, without a reply");
    proxy.clear_faults();
    proxy.disconnect();
    // Undone, or left out of the count when its short first lease has ended.
    let seen = lock(&other, &travelled);
    until("one entry", 3_500 * MS, async || seen.hold_count().await.expect("an answer") == 1).await;
    outer.check().expect("held");
    assert_eq!(outer.release().await.expect("released"), NO_LONGER_HELD);
    assert_eq!(server.cli(&["EXISTS", "m"]).expect("an answer").integer(), Some(0));
}

/// Row 2: every script arrives twice, and one entry counts once. Redisson's own first count was two.
#[tokio::test]
async fn row_2_reentrant_acquires_sent_twice_count_once() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, other) = (client(&proxy.url()).await, client(&server.url()).await);
    let (owner, other) = (a.new_owner(), lock(&other, &other.new_owner()));
    let ours = lock(&a, &owner);
    proxy.duplicate_requests(command("EVALSHA"));
    for _ in 0..10 {
        let outer = ours.acquire().await.expect("acquired");
        let inner = ours.acquire().await.expect("entered");
        assert_eq!((outer.count(), inner.count(), counted(&server, &owner)), (1, 2, 2));
        inner.extend().await.expect("extended");
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { other.acquire().await.expect("acquired").release().await }
        });
        until("it waits", 5 * S, async || other.inspect().await.expect("an answer").waiting == 1).await;
        assert_eq!(outer.release().await.expect("released"), ONCE_MORE);
        assert_eq!(counted(&server, &owner), 1);
        inner.check().expect("held");
        assert_eq!(inner.release().await.expect("released"), NO_LONGER_HELD);
        assert_eq!(waiter.await.expect("no panic").expect("released"), NO_LONGER_HELD);
    }
}

/// Row 3: acquire, re-enter and release are one request each, even where the Redis client library would have retried
/// long before.
#[tokio::test]
async fn row_3_no_reentrant_acquire_is_resent() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = sessionless(&proxy.url()).await;
    // A lease that the test reaches without an extension.
    let ours = lock(&ours, &ours.new_owner()).lease(2_900 * MS);
    load_scripts(&server).await;
    proxy.reset_counts();
    proxy.delay_replies(700 * MS);
    let outer = ours.acquire().await.expect("acquired");
    assert_eq!(proxy.count("EVALSHA"), 1);
    let inner = ours.acquire().await.expect("entered");
    assert_eq!(proxy.count("EVALSHA"), 2);
    inner.release().await.expect("released");
    outer.release().await.expect("released");
    // Extensions in between are no resends: a release states whether the lock is to be granted to the next.
    let releases = proxy.requests().iter().filter(|words| words.iter().any(|word| word == b"grant")).count();
    assert_eq!(releases, 2);
}

/// Row 14: an owner that has entered twice and whose task hangs keeps the lock no longer than its caps allow.
#[tokio::test]
async fn row_14_a_hung_owner_does_not_keep_the_lock() {
    let server = server();
    let (a, other) = (quick(&server.url(), 2 * S, 2 * S).await, client(&server.url()).await);
    let (ours, other) = (lock(&a, &a.new_owner()), lock(&other, &other.new_owner()));
    let outer = ours.clone().max_hold(1_500 * MS).acquire().await.expect("acquired");
    let inner = ours.clone().max_renewals(2).acquire().await.expect("entered");
    let start = Instant::now();
    let next = within(8 * S, other.acquire()).await.expect("acquired");
    let waited = start.elapsed();
    assert!(waited > 2 * S && waited < 6 * S, "{waited:?}");
    for guard in [outer, inner] {
        let lost = within(S, guard.lost()).await;
        assert_eq!(lost.reason, LostReason::Capped);
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    }
    next.check().expect("held");
    next.release().await.expect("released");
}

/// Row 16: a lost entry does not let its owner re-enter, and ends nothing of the same owner's next hold.
#[tokio::test]
async fn row_16_an_owner_that_lost_the_lock_does_not_re_enter() {
    let server = server();
    let (a, b) = (sessionless(&server.url()).await, sessionless(&server.url()).await);
    let (ours, other) = (lock(&a, &a.new_owner()), lock(&b, &b.new_owner()));
    let stale = ours.clone().lease(300 * MS).acquire().await.expect("acquired");
    let theirs = within(3 * S, other.clone().lease(60 * S).acquire()).await.expect("the lease has ended");
    stale.check().expect_err("it is over");
    refused(&ours).await;
    let missed = ours.acquire_timeout(400 * MS).await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    // The keeper removes the queue entry of that attempt in the background. Until then a release grants the lock to the
    // entry, and the owner's next acquire counts as its second.
    a.flush().await;
    assert_eq!(theirs.release().await.expect("released"), NO_LONGER_HELD);

    let anew = ours.acquire().await.expect("acquired");
    assert_eq!(anew.count(), 1, "the lost entry does not count");
    assert!(anew.fencing_token() > stale.fencing_token(), "another stay");
    let late = stale.release().await;
    assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    anew.extend().await.expect("held");
    assert_eq!(counted(&server, anew.owner()), 1);

    // The same after the key was removed under two entries.
    let second = ours.acquire().await.expect("entered");
    server.cli(&["DEL", "m"]).expect("an answer");
    let third = ours.acquire().await.expect("acquired");
    assert_eq!((third.count(), counted(&server, third.owner())), (1, 1));
    for stale in [anew, second] {
        let late = stale.release().await;
        assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    }
    assert_eq!(counted(&server, third.owner()), 1, "the lost entries end nothing of the new hold");
    third.extend().await.expect("held");
    assert_eq!(third.release().await.expect("released"), NO_LONGER_HELD);
}

/// Row 17: tasks share a handle. Each has its own entry, which ends independently of the owner's other entries.
#[tokio::test]
async fn row_17_tasks_that_share_a_reentrant_mutex_have_their_own_holds() {
    let server = server();
    let (a, b) = (sessionless(&server.url()).await, client(&server.url()).await);
    let (owner, other) = (a.new_owner(), lock(&b, &b.new_owner()));
    let handle = std::sync::Arc::new(lock(&a, &owner));
    let enter = async |lease| {
        let handle = std::sync::Arc::clone(&handle);
        let task = tokio::spawn(async move { (*handle).clone().lease(lease).acquire().await });
        task.await.expect("no panic").expect("entered")
    };
    // The brief entry is first, since a longer lease already held covers every later entry.
    let (brief, kept, dropped) = (enter(2 * S).await, enter(60 * S).await, enter(60 * S).await);
    assert_eq!(counted(&server, &owner), 3);
    drop(dropped);
    until_counted(&server, &owner, 2, S).await;
    brief.lost().await;
    // The client stops relying on it a little before the store expires it.
    until("it is over", S, async || handle.hold_count().await.expect("an answer") == 1).await;
    let late = brief.release().await;
    assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    kept.extend().await.expect("the ends of other entries do not affect it");
    refused(&other).await;
    assert_eq!(handle.hold_count().await.expect("an answer"), 1);
    assert_eq!(kept.release().await.expect("released"), NO_LONGER_HELD);

    // Without an explicit owner each task has its own, and they exclude each other.
    let handle = a.reentrant_mutex("m").expect("a good name");
    let first = handle.acquire().await.expect("acquired");
    refused(&handle).await;
    first.release().await.expect("released");
}

/// Row 28: an owner that holds the lock never deadlocks on its own re-entry, whatever waits in the queue in between,
/// in this or in another process.
#[tokio::test]
async fn row_28_a_re_entry_does_not_wait_for_itself() {
    let server = server();
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let owner = a.new_owner();
    let ours = lock(&a, &owner);
    let outer = ours.acquire().await.expect("acquired");
    let waiting = [&a, &b].map(|client| {
        let lock = lock(client, &client.new_owner());
        tokio::spawn(async move { lock.acquire().await.expect("acquired").release().await })
    });
    // A process has one entry in the store's queue; its other waiters wait in the process's own queue.
    until("they wait", 5 * S, async || ours.inspect().await.expect("an answer").waiting == 1).await;
    let travelled = Owner::from_header(owner.to_header()).expect("our own header");
    for (again, count) in [(&ours, 2), (&lock(&b, &travelled), 2)] {
        let inner = within(S, again.acquire()).await.expect("entered past all that wait");
        assert_eq!(inner.count(), count);
        inner.release().await.expect("released");
    }
    assert!(waiting.iter().all(|task| !task.is_finished()));
    outer.release().await.expect("released");
    for task in waiting {
        within(5 * S, task).await.expect("no panic").expect("released");
    }

    // A Mutex is not reentrant: a second acquire by the same task waits until its deadline, and the error names the
    // holder.
    let mutex = a.mutex("plain").expect("a good name");
    let held = mutex.acquire().await.expect("acquired");
    let missed =
        within(2 * S, mutex.acquire_timeout(100 * MS)).await.expect_err("the caller itself holds it");
    assert!(matches!(missed, AcquireError::TimedOut { .. }), "{missed:?}");
    held.check().expect("held");
    held.release().await.expect("released");
}

fn start(server: &RedisServer, session: Duration) -> Worker {
    Worker::of_test("failures::reentrant::a_worker_that_enters_twice", "entries")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_SESSION_MS", session.as_millis().to_string())
        .start()
        .expect("a worker")
}

/// Row 23: a process that has entered twice is killed. Its entries end with its session and leave no count; entries
/// of the same owner in a live process stay.
#[tokio::test]
async fn row_23_reentrant_holds_of_dead_sessions_end_and_others_stay() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut dead = start(&server, session);
    let owner = Owner::new(dead.expect("held by ", LIMIT).expect("it has entered")).expect("an owner");
    let next = client(&server.url()).await;
    let (ours, other) = (lock(&live, &owner).lease(60 * S), lock(&next, &next.new_owner()));
    let kept = ours.acquire().await.expect("entered");
    assert_eq!((kept.count(), counted(&server, &owner)), (3, 3));
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { other.acquire().await.expect("acquired") }
    });
    until("it waits", 5 * S, async || ours.inspect().await.expect("an answer").waiting == 1).await;
    dead.kill().expect("killed");
    until_counted(&server, &owner, 1, session + S).await;
    kept.extend().await.expect("it lives");
    assert!(!waiter.is_finished(), "it is the owner's yet");
    assert_eq!(kept.release().await.expect("released"), NO_LONGER_HELD);
    within(5 * S, waiter).await.expect("no panic").release().await.expect("released");

    // Where no other process holds it, the next client acquires it then.
    let mut dead = start(&server, session);
    dead.expect("held by ", LIMIT).expect("it has entered");
    let waiter = tokio::spawn(async move { other.acquire().await.expect("acquired") });
    until("it waits", 5 * S, async || ours.inspect().await.expect("an answer").waiting == 1).await;
    dead.kill().expect("killed");
    let next = within(session + S, waiter).await.expect("no panic");
    assert_eq!(next.release().await.expect("released"), NO_LONGER_HELD);
}

/// Row 10: a process that was suspended for longer than its session has lost all its entries, detects it before it
/// sends a request, and does not affect the current holder.
#[tokio::test]
async fn row_10_a_suspended_owner_has_lost_all_reentrant_holds() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held by ", LIMIT).expect("it has entered");
    let other = lock(&live, &live.new_owner());
    holder.stop().expect("stopped");
    let next = within(session + 2 * S, other.acquire()).await.expect("acquired");
    holder.send("check").expect("the worker receives the command");
    holder.resume().expect("it goes on");
    assert_eq!(holder.expect("valid holds: ", LIMIT).expect("a count of entries"), "0");
    holder.send("release").expect("the worker receives the command");
    assert_eq!(holder.expect("released ", LIMIT).expect("a count of entries"), "0");
    next.extend().await.expect("held");
    assert_eq!((next.count(), counted(&server, next.owner())), (1, 1));
    assert_eq!(next.release().await.expect("released"), NO_LONGER_HELD);
}

/// Not a test by itself: a process that enters twice and reports how many entries it relies on or knows of.
#[test]
fn a_worker_that_enters_twice() {
    if Worker::role().as_deref() != Some("entries") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let session = Duration::from_millis(env("LEASEHOLD_TEST_SESSION_MS").parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(env("LEASEHOLD_TEST_URL")).session_ttl(session).connect().await;
        let client = client.expect("connected");
        // An owner of this process: an owner received from elsewhere lives by its lease alone.
        let lock = lock(&client, &client.new_owner());
        let mut guards = Vec::new();
        for _ in 0..2 {
            guards.push(lock.acquire().await.expect("acquired"));
        }
        Worker::report(&format!("held by {}", guards[0].owner().as_str()));
        while let Some(command) = Worker::receive() {
            if command == "check" {
                let valid = guards.iter().filter(|guard| guard.check().is_ok()).count();
                Worker::report(&format!("valid holds: {valid}"));
            } else {
                let mut released = 0;
                for guard in guards.drain(..) {
                    released += usize::from(guard.release().await.is_ok());
                }
                Worker::report(&format!("released {released}"));
            }
        }
    });
}
