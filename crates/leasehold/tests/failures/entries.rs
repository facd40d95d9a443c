//! A ReentrantMutex under the same failures: what is counted, and whose it is (rows 1 to 3, 10, 14, 16, 17, 23 and 28).

use crate::scene::{MS, S, client, quick, server, sessionless, until, within};
use leasehold::{AcquireError, Attempt, Client, LostReason, Owner, ReentrantMutex, ReleaseError, Released};
use leasehold_testkit::{Proxy, RedisServer, Then, Worker, command};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const FREE: Released = Released::Free;
const ONCE_MORE: Released = Released::StillHeld { count: 1 };

fn lock(client: &Client, owner: &Owner) -> ReentrantMutex {
    client.reentrant_mutex("m").expect("a good name").owned_by(owner)
}

/// How often somebody has the lock, as any client of Redisson's reads it.
fn counted(server: &RedisServer, owner: &Owner) -> i64 {
    server.cli(&["HGET", "m", owner.as_str()]).expect("an answer").integer().unwrap_or(0)
}

async fn until_counted(server: &RedisServer, owner: &Owner, times: i64, time: Duration) {
    until(&format!("{times} entries"), time, async || counted(server, owner) == times).await;
}

async fn refused(lock: &ReentrantMutex) {
    let tried = lock.try_acquire().await.expect("an answer");
    assert!(matches!(tried, Attempt::Taken(_)), "{tried:?}");
}

/// Rows 1 and 2: the reply to an entry, to a re-entry or to a release is lost with its connection. What is sent again
/// counts once.
#[tokio::test]
async fn row_2_a_lost_reply_leaves_no_count_that_nobody_has() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let other = client(&server.url()).await;
    let other = lock(&other, &other.owner());
    let lose = || proxy.swallow_replies(1, Then::Cut, command("EVALSHA"));
    for _ in 0..3 {
        // A client whose connections have broken often waits before it makes the next.
        let a = client(&proxy.url()).await;
        let owner = a.owner();
        let ours = lock(&a, &owner);
        lose();
        let outer = within(5 * S, ours.acquire()).await.expect("acquired by asking again");
        assert_eq!((outer.count(), counted(&server, &owner)), (1, 1));
        lose();
        let inner = within(5 * S, ours.acquire()).await.expect("entered by asking again");
        assert_eq!((inner.count(), counted(&server, &owner)), (2, 2));
        refused(&other).await;
        lose();
        assert_eq!(inner.release().await.expect("released by asking again"), ONCE_MORE);
        assert_eq!(counted(&server, &owner), 1);
        outer.check().expect("held");
        lose();
        assert_eq!(outer.release().await.expect("released by asking again"), FREE);
        assert_eq!(server.cli(&["EXISTS", "m"]).expect("an answer").integer(), Some(0));
    }
}

/// Rows 1 and 2: the reply to a re-entry never comes, and its caller gives up. What it may have counted is undone, under
/// the very eyes of the entry that stays.
#[tokio::test]
async fn row_2_a_re_entry_without_an_answer_is_undone() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, other) = (quick(&proxy.url(), 300 * MS, 30 * S).await, client(&server.url()).await);
    let owner = a.owner();
    // Entered by another process, so that no connection of the one that fails is needed to keep it.
    let travelled = Owner::from_header(owner.to_header()).expect("our own header");
    let outer = lock(&other, &travelled).acquire().await.expect("acquired");
    let ours = lock(&a, &owner);
    proxy.swallow_replies(usize::MAX, Then::Stall, command("EVALSHA"));
    let missed = ours.try_acquire().await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    assert_eq!(counted(&server, &owner), 2, "it was executed, and nobody was told so");
    proxy.pass();
    proxy.cut();
    // Undone, or left out of the count when its short first lease has ended.
    let seen = lock(&other, &travelled);
    until("one entry", 3_500 * MS, async || seen.hold_count().await.expect("an answer") == 1).await;
    outer.check().expect("held");
    assert_eq!(outer.release().await.expect("released"), FREE);
    assert_eq!(server.cli(&["EXISTS", "m"]).expect("an answer").integer(), Some(0));
}

/// Row 2: every script arrives twice. Redisson's own first counted two for one entry then.
#[tokio::test]
async fn row_2_entries_sent_twice_count_once() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, other) = (client(&proxy.url()).await, client(&server.url()).await);
    let (owner, other) = (a.owner(), lock(&other, &other.owner()));
    let ours = lock(&a, &owner);
    proxy.double_requests(command("EVALSHA"));
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
        assert_eq!(inner.release().await.expect("released"), FREE);
        assert_eq!(waiter.await.expect("no panic").expect("released"), FREE);
    }
}

/// Row 3: entering, entering again and releasing are one request each, also where the client library would have given up
/// long before.
#[tokio::test]
async fn row_3_no_entry_is_resent_behind_our_back() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = sessionless(&proxy.url()).await;
    // A lease that is reached without an extend.
    let ours = lock(&ours, &ours.owner()).lease(2_900 * MS);
    proxy.reset_counts();
    proxy.delay_replies(700 * MS);
    let outer = ours.acquire().await.expect("acquired");
    assert_eq!(proxy.count("EVALSHA"), 1);
    let inner = ours.acquire().await.expect("entered");
    assert_eq!(proxy.count("EVALSHA"), 2);
    inner.release().await.expect("released");
    outer.release().await.expect("released");
    // What is extended meanwhile is no resend: a release says whether the lock is to be granted to the next.
    let releases = proxy.requests().iter().filter(|words| words.iter().any(|word| word == b"grant")).count();
    assert_eq!(releases, 2);
}

/// Row 14: a task that hangs inside, entered twice, keeps the lock no longer than its caps say.
#[tokio::test]
async fn row_14_a_hung_owner_does_not_keep_the_lock() {
    let server = server();
    let (a, other) = (quick(&server.url(), 2 * S, 600 * MS).await, client(&server.url()).await);
    let (ours, other) = (lock(&a, &a.owner()), lock(&other, &other.owner()));
    let outer = ours.clone().max_hold(1_500 * MS).acquire().await.expect("acquired");
    let inner = ours.clone().max_renewals(2).acquire().await.expect("entered");
    let start = Instant::now();
    let next = within(6 * S, other.acquire()).await.expect("acquired");
    let waited = start.elapsed();
    assert!(waited > 700 * MS && waited < 3 * S, "{waited:?}");
    for guard in [outer, inner] {
        let lost = within(S, guard.lost()).await;
        assert_eq!(lost.reason, LostReason::Capped);
        let released = guard.release().await;
        assert!(matches!(released, Err(ReleaseError::Lost(LostReason::Capped))), "{released:?}");
    }
    next.check().expect("held");
    next.release().await.expect("released");
}

/// Row 16: an entry that was lost is no reason to get in again, and ends nothing of the same owner's next stay.
#[tokio::test]
async fn row_16_who_lost_the_lock_does_not_enter_again() {
    let server = server();
    let (a, b) = (sessionless(&server.url()).await, sessionless(&server.url()).await);
    let (ours, other) = (lock(&a, &a.owner()), lock(&b, &b.owner()));
    let stale = ours.clone().lease(300 * MS).acquire().await.expect("acquired");
    let theirs = within(3 * S, other.clone().lease(60 * S).acquire()).await.expect("the lease has ended");
    stale.check().expect_err("it is over");
    refused(&ours).await;
    let missed = ours.acquire_timeout(100 * MS).await;
    assert!(matches!(missed, Err(AcquireError::TimedOut { .. })), "{missed:?}");
    assert_eq!(theirs.release().await.expect("released"), FREE);

    let anew = ours.acquire().await.expect("acquired");
    assert_eq!(anew.count(), 1, "the lost one does not count");
    assert!(anew.fencing_token() > stale.fencing_token(), "another stay");
    let late = stale.release().await;
    assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    anew.extend().await.expect("held");
    assert_eq!(counted(&server, anew.owner()), 1);

    // So it is where the key was removed under two entries.
    let second = ours.acquire().await.expect("entered");
    server.cli(&["DEL", "m"]).expect("an answer");
    let third = ours.acquire().await.expect("acquired");
    assert_eq!((third.count(), counted(&server, third.owner())), (1, 1));
    for stale in [anew, second] {
        let late = stale.release().await;
        assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    }
    assert_eq!(counted(&server, third.owner()), 1, "they end nothing of the new stay");
    third.extend().await.expect("held");
    assert_eq!(third.release().await.expect("released"), FREE);
}

/// Row 17: tasks share a handle. Each has its own entry, whoever else of the same owner goes, in whatever way.
#[tokio::test]
async fn row_17_tasks_of_one_handle_have_their_own_entries() {
    let server = server();
    let (a, b) = (sessionless(&server.url()).await, client(&server.url()).await);
    let (owner, other) = (a.owner(), lock(&b, &b.owner()));
    let handle = std::sync::Arc::new(lock(&a, &owner));
    let enter = async |lease| {
        let handle = std::sync::Arc::clone(&handle);
        let task = tokio::spawn(async move { (*handle).clone().lease(lease).acquire().await });
        task.await.expect("no panic").expect("entered")
    };
    // The brief one is first, since the longest lease rules for whoever enters after it was asked for.
    let (brief, kept, dropped) = (enter(2 * S).await, enter(60 * S).await, enter(60 * S).await);
    assert_eq!(counted(&server, &owner), 3);
    drop(dropped);
    until_counted(&server, &owner, 2, S).await;
    brief.lost().await;
    // It stops believing a little before the store does.
    until("it is over", S, async || handle.hold_count().await.expect("an answer") == 1).await;
    let late = brief.release().await;
    assert!(matches!(late, Err(ReleaseError::Lost(_))), "{late:?}");
    kept.extend().await.expect("nobody else's end is its own");
    refused(&other).await;
    assert_eq!(handle.hold_count().await.expect("an answer"), 1);
    assert_eq!(kept.release().await.expect("released"), FREE);

    // Without an owner each task has one of its own, and they exclude each other.
    let handle = a.reentrant_mutex("m").expect("a good name");
    let first = handle.acquire().await.expect("acquired");
    refused(&handle).await;
    first.release().await.expect("released");
}

/// Row 28, as far as there are locks that it can happen to: nobody who has the lock waits for himself, whoever stands in
/// the queue between him and his re-entry, here or in another process.
#[tokio::test]
async fn row_28_who_enters_again_does_not_wait_for_himself() {
    let server = server();
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let owner = a.owner();
    let ours = lock(&a, &owner);
    let outer = ours.acquire().await.expect("acquired");
    let waiting = [&a, &b].map(|client| {
        let lock = lock(client, &client.owner());
        tokio::spawn(async move { lock.acquire().await.expect("acquired").release().await })
    });
    // A process has one place; of the one that has the lock, the others stand in line there.
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

    // A Mutex is not entered again: who asks twice waits for as long as he said, and is told whose it is.
    let mutex = a.mutex("plain").expect("a good name");
    let held = mutex.acquire().await.expect("acquired");
    let missed = within(2 * S, mutex.acquire_timeout(100 * MS)).await.expect_err("he has it himself");
    assert!(matches!(missed, AcquireError::TimedOut { .. }), "{missed:?}");
    held.check().expect("held");
    held.release().await.expect("released");
}

fn start(server: &RedisServer, session: Duration) -> Worker {
    Worker::of_test("entries::a_worker_that_enters_twice", "entries")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_SESSION_MS", session.as_millis().to_string())
        .start()
        .expect("a worker")
}

/// Row 23: a process is killed that has entered twice. Its entries go with its session, and no count of them stays; those
/// of the same owner in a process that lives are left.
#[tokio::test]
async fn row_23_the_entries_of_the_dead_go_and_those_of_the_living_stay() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut dead = start(&server, session);
    let owner = Owner::new(dead.expect("held by ", PATIENCE).expect("it has entered")).expect("an owner");
    let next = client(&server.url()).await;
    let (ours, other) = (lock(&live, &owner).lease(60 * S), lock(&next, &next.owner()));
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
    assert_eq!(kept.release().await.expect("released"), FREE);
    within(5 * S, waiter).await.expect("no panic").release().await.expect("released");

    // And where nobody else has it, the next has it then.
    let mut dead = start(&server, session);
    dead.expect("held by ", PATIENCE).expect("it has entered");
    let waiter = tokio::spawn(async move { other.acquire().await.expect("acquired") });
    until("it waits", 5 * S, async || ours.inspect().await.expect("an answer").waiting == 1).await;
    dead.kill().expect("killed");
    let next = within(session + S, waiter).await.expect("no panic");
    assert_eq!(next.release().await.expect("released"), FREE);
}

/// Row 10: a process that stood still for longer than its session has lost all its entries, knows it before it asks
/// anybody, and takes nothing from whoever has the lock then.
#[tokio::test]
async fn row_10_who_stood_still_has_lost_all_entries() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held by ", PATIENCE).expect("it has entered");
    let other = lock(&live, &live.owner());
    holder.stop().expect("stopped");
    let next = within(session + 2 * S, other.acquire()).await.expect("acquired");
    holder.tell("check").expect("told");
    holder.cont().expect("it goes on");
    assert_eq!(holder.expect("believes in ", PATIENCE).expect("it says so"), "0");
    holder.tell("release").expect("told");
    assert_eq!(holder.expect("released ", PATIENCE).expect("it says so"), "0");
    next.extend().await.expect("held");
    assert_eq!((next.count(), counted(&server, next.owner())), (1, 1));
    assert_eq!(next.release().await.expect("released"), FREE);
}

/// Not a test by itself: a process that enters twice, and says of how much of it it believes or knows.
#[test]
fn a_worker_that_enters_twice() {
    if Worker::role().as_deref() != Some("entries") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let session = Duration::from_millis(env("LEASEHOLD_TEST_SESSION_MS").parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(env("LEASEHOLD_TEST_URL")).session(session).connect().await;
        let client = client.expect("connected");
        // An owner of this process: what travelled lives by its lease alone.
        let lock = lock(&client, &client.owner());
        let mut guards = Vec::new();
        for _ in 0..2 {
            guards.push(lock.acquire().await.expect("acquired"));
        }
        Worker::say(&format!("held by {}", guards[0].owner().as_str()));
        while let Some(told) = Worker::told() {
            if told == "check" {
                let valid = guards.iter().filter(|guard| guard.check().is_ok()).count();
                Worker::say(&format!("believes in {valid}"));
            } else {
                let mut released = 0;
                for guard in guards.drain(..) {
                    released += usize::from(guard.release().await.is_ok());
                }
                Worker::say(&format!("released {released}"));
            }
        }
    });
}
