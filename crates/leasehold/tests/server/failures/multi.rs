//! A `MultiMutex` under the same failures: it holds all its locks or none (rows 1 to 3, 10, 14, 17, 23, 28 and 29).

use super::fixture::{MS, S, client, quick, server, sessionless, until, within};
use leasehold::error::AcquireError;
use leasehold::{Client, LostReason, MultiAttempt, MultiMutex};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, Worker, command};
use std::time::{Duration, Instant};

const NAMES: [&str; 3] = ["a", "b", "c"];
const LIMIT: Duration = Duration::from_secs(60);

fn all(client: &Client) -> MultiMutex {
    client.multi_mutex(NAMES).expect("good names")
}

/// How many of the locks are held.
fn held(server: &RedisServer) -> i64 {
    let exists: Vec<&str> = ["EXISTS"].into_iter().chain(NAMES).collect();
    server.cli(&exists).expect("an answer").integer().expect("a number")
}

/// Acquires and releases the locks: the first call of each script loads it into the server.
async fn load_scripts(server: &RedisServer) {
    let guard = all(&sessionless(&server.url()).await).acquire().await.expect("acquired");
    guard.release().await.expect("released");
}

async fn refused(locks: &MultiMutex) {
    let tried = locks.try_acquire().await.expect("an answer");
    assert!(matches!(tried, MultiAttempt::Taken { .. }), "{tried:?}");
}

async fn until_waiting(client: &Client, name: &str) {
    let mutex = client.mutex(name).expect("a good name");
    until("it waits", 5 * S, async || mutex.inspect().await.expect("an answer").waiting == 1).await;
}

/// Rows 1 and 2: the reply is lost with its connection. The repeated request finds the caller's own holds of all the
/// locks.
#[tokio::test]
async fn row_1_a_lost_reply_to_a_multi_acquire_leaves_no_orphaned_lock() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let other = all(&client(&server.url()).await);
    load_scripts(&server).await;
    for _ in 0..3 {
        // A client whose connections have broken often pauses before it opens the next.
        let ours = all(&client(&proxy.url()).await);
        proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
        let guard = within(5 * S, ours.acquire()).await.expect("acquired by a resend");
        assert_eq!(held(&server), 3);
        refused(&other).await;
        guard.check().expect("held");
        proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
        guard.release().await.expect("released by a resend");
        assert_eq!(held(&server), 0);
    }
}

/// Row 1: the reply never arrives, and the call times out: all holds are undone.
#[tokio::test]
async fn row_1_a_multi_acquire_without_a_reply_is_undone() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = all(&quick(&proxy.url(), 200 * MS, 30 * S).await);
    load_scripts(&server).await;
    proxy.drop_replies(usize::MAX, AfterDrop::Stall, command("EVALSHA"));
    let missed = ours.try_acquire().await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    assert_eq!(held(&server), 3, "it was executed, without a reply");
    proxy.clear_faults();
    proxy.disconnect();
    // Undone, or at the latest ended by their short first leases.
    until("none is held", 3_500 * MS, async || held(&server) == 0).await;
    within(5 * S, ours.acquire()).await.expect("acquired").release().await.expect("released");
}

/// Row 2: every script arrives twice.
#[tokio::test]
async fn row_2_a_multi_acquire_sent_twice_counts_once() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (all(&client(&proxy.url()).await), client(&server.url()).await);
    proxy.duplicate_requests(command("EVALSHA"));
    let mut last = Vec::new();
    for _ in 0..5 {
        let guard = ours.acquire().await.expect("acquired");
        let tokens: Vec<_> = NAMES.iter().filter_map(|name| guard.fencing_token(name)).collect();
        assert!(tokens.len() == 3 && last.iter().zip(&tokens).all(|(last, next)| last < next));
        last = tokens;
        guard.extend().await.expect("extended");
        let waiter = tokio::spawn({
            let other = all(&other);
            async move { other.acquire().await.expect("acquired").release().await }
        });
        until_waiting(&other, "a").await;
        guard.release().await.expect("released, even if the second reply reports it as already released");
        within(5 * S, waiter).await.expect("no panic").expect("released");
    }
    assert_eq!(held(&server), 0);
}

/// Row 3: one request acquires all the locks, however many, and is not repeated. Of their releases, which begin together,
/// one goes alone, and one request has the others.
#[tokio::test]
async fn row_3_no_multi_acquire_is_resent() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    // A lease that needs no extension.
    let ours = all(&sessionless(&proxy.url()).await).lease(2_900 * MS);
    load_scripts(&server).await;
    proxy.reset_counts();
    proxy.delay_replies(700 * MS);
    let guard = ours.acquire().await.expect("acquired");
    assert_eq!(proxy.count("EVALSHA"), 1);
    guard.release().await.expect("released");
    assert_eq!(proxy.count("EVALSHA"), 3);
}

/// Row 14: a task that hangs with several locks keeps none of them for longer than its cap.
#[tokio::test]
async fn row_14_a_hung_task_keeps_no_lock_of_a_multi_mutex() {
    let server = server();
    let (ours, other) = (quick(&server.url(), 2 * S, 2 * S).await, client(&server.url()).await);
    let (by_time, by_renewals) = (all(&ours).max_hold(1_500 * MS), all(&ours).max_renewals(3));
    for (capped, longest) in [(by_time, 3 * S), (by_renewals, 6 * S)] {
        let guard = capped.acquire().await.expect("acquired");
        let start = Instant::now();
        let next = within(8 * S, all(&other).acquire()).await.expect("acquired");
        let waited = start.elapsed();
        assert!(waited > 700 * MS && waited < longest, "{waited:?}");
        assert_eq!(within(S, guard.lost()).await.reason, LostReason::Capped);
        guard.release().await.expect_err("the next client holds the locks");
        next.check().expect("held");
        next.release().await.expect("released");
    }
}

/// Row 17: tasks share a handle. Each has its own holds, and a late call of one task does not affect those of
/// another.
#[tokio::test]
async fn row_17_tasks_that_share_a_multi_mutex_have_their_own_holds() {
    let server = server();
    let handle = std::sync::Arc::new(all(&sessionless(&server.url()).await));
    let stale = MultiMutex::clone(&handle).lease(300 * MS).acquire().await.expect("acquired");
    refused(&handle).await;
    let second = tokio::spawn({
        let handle = std::sync::Arc::clone(&handle);
        async move { handle.acquire().await.expect("acquired") }
    });
    let second = within(5 * S, second).await.expect("no panic");
    stale.check().expect_err("the holds have ended");
    stale.extend().await.expect_err("the holds have ended");
    let late = stale.release().await.expect_err("the holds have ended");
    assert_eq!(late.failed.len(), 3, "{late}");
    second.extend().await.expect("each is held");
    for name in NAMES {
        assert!(second.fencing_token(name).is_some());
    }
    assert_eq!(held(&server), 3);
    second.release().await.expect("released");
    assert_eq!(held(&server), 0);
}

/// Row 28: a name given twice is one lock. A caller that already holds one of the locks times out at its deadline,
/// with an error that names itself as the holder.
#[tokio::test]
async fn row_28_a_lock_named_twice_does_not_wait_for_itself() {
    let server = server();
    let ours = client(&server.url()).await;
    let twice = ours.multi_mutex(["b", "a", "b", "a"]).expect("good names");
    let guard = within(S, twice.acquire()).await.expect("acquired");
    assert_eq!(guard.fencing_tokens().count(), 2);
    guard.release().await.expect("released");

    let single = ours.mutex("b").expect("a good name").acquire().await.expect("acquired");
    let missed = within(2 * S, all(&ours).acquire_timeout(200 * MS))
        .await
        .expect_err("the caller itself holds one of them");
    let AcquireError::TimedOut { lock, .. } = &missed else { panic!("{missed:?}") };
    assert_eq!(lock.as_str(), "b");
    single.check().expect("held");
    assert_eq!(held(&server), 1, "the waiter that gave up keeps none of the others");
    single.release().await.expect("released");
}

fn start(server: &RedisServer, session: Duration) -> Worker {
    Worker::of_test("failures::multi::a_worker_that_holds_a_multi_mutex", "together")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_SESSION_MS", session.as_millis().to_string())
        .start()
        .expect("a worker")
}

/// Rows 23 and 29: a process that holds several locks is killed, and so is one that waits for them and may already
/// hold some. The next client acquires all of them once their sessions end.
#[tokio::test]
async fn row_29_dead_processes_block_no_multi_mutex() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held", LIMIT).expect("the worker holds them");
    let mut waiter = start(&server, session);
    until_waiting(&live, "a").await;
    // The first lock passes to the waiter, which then waits for the others.
    let next = tokio::spawn({
        let all = all(&live);
        async move { all.acquire().await.expect("acquired") }
    });
    tokio::time::sleep(session / 2).await;
    holder.kill().expect("killed");
    let killed = Instant::now();
    waiter.expect("held", LIMIT).expect("the waiter acquires them once the holder is dead");
    // Each lock of a dead client is found separately, after a poll or two.
    let each = 2 * S * u32::try_from(NAMES.len()).expect("three");
    println!("the next client acquired {:?} after the kill, with a session of {session:?}", killed.elapsed());
    assert!(killed.elapsed() < session + each, "{:?}", killed.elapsed());
    assert!(!next.is_finished());
    waiter.kill().expect("killed");
    let guard = within(session + each, next).await.expect("no panic");
    guard.check().expect("held");
    guard.release().await.expect("released");
    assert_eq!(held(&server), 0);
}

/// Row 10: a process that was suspended with several locks for longer than its session has lost them all, detects it
/// before it sends a request, and does not affect their current holder.
#[tokio::test]
async fn row_10_a_suspended_holder_has_lost_all_locks_of_a_multi_mutex() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held", LIMIT).expect("the worker holds them");
    holder.stop().expect("stopped");
    let guard = within(session + 2 * S, all(&live).acquire()).await.expect("acquired");
    holder.send("check").expect("the worker receives the command");
    holder.resume().expect("it goes on");
    assert_eq!(holder.expect("check ", LIMIT).expect("a result"), "lost");
    holder.send("release").expect("the worker receives the command");
    assert_eq!(holder.expect("released ", LIMIT).expect("a count"), "0 of 3");
    guard.extend().await.expect("each is held");
    assert_eq!(held(&server), 3);
    guard.release().await.expect("released");
}

/// Not a test by itself: a process that holds several locks, or waits for them.
#[test]
fn a_worker_that_holds_a_multi_mutex() {
    if Worker::role().as_deref() != Some("together") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let session = Duration::from_millis(env("LEASEHOLD_TEST_SESSION_MS").parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(env("LEASEHOLD_TEST_URL")).session_ttl(session).connect().await;
        let guard = all(&client.expect("connected")).acquire().await.expect("acquired");
        Worker::report("held");
        let _ = Worker::receive();
        Worker::report(if guard.check().is_ok() { "check held" } else { "check lost" });
        let _ = Worker::receive();
        let kept = guard.release().await.err().map_or(0, |error| error.failed.len());
        Worker::report(&format!("released {} of 3", 3 - kept));
        let _ = Worker::receive();
    });
}
