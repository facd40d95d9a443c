//! A `MultiMutex` under the same failures: all are held or none, whatever is lost (rows 1 to 3, 10, 14, 17, 23, 28 and 29).

use crate::scene::{MS, S, client, quick, server, sessionless, until, within};
use leasehold::{AcquireError, Client, LostReason, MultiAttempt, MultiMutex};
use leasehold_testkit::{Proxy, RedisServer, Then, Worker, command};
use std::time::{Duration, Instant};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PATIENCE: Duration = Duration::from_secs(60);

fn all(client: &Client) -> MultiMutex {
    client.multi_mutex(NAMES).expect("good names")
}

/// How many of the locks are held.
fn held(server: &RedisServer) -> i64 {
    let exists: Vec<&str> = ["EXISTS"].into_iter().chain(NAMES).collect();
    server.cli(&exists).expect("an answer").integer().expect("a number")
}

async fn refused(locks: &MultiMutex) {
    let tried = locks.try_acquire().await.expect("an answer");
    assert!(matches!(tried, MultiAttempt::Taken { .. }), "{tried:?}");
}

async fn until_waiting(client: &Client, name: &str) {
    let mutex = client.mutex(name).expect("a good name");
    until("it waits", 5 * S, async || mutex.inspect().await.expect("an answer").waiting == 1).await;
}

/// Rows 1 and 2: the reply is lost with its connection. Whoever asks again finds his own holds, of all of them.
#[tokio::test]
async fn row_1_a_lost_reply_about_several_leaves_none_that_nobody_holds() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let other = all(&client(&server.url()).await);
    for _ in 0..3 {
        // A client whose connections have broken often waits before it makes the next.
        let ours = all(&client(&proxy.url()).await);
        proxy.swallow_replies(1, Then::Cut, command("EVALSHA"));
        let guard = within(5 * S, ours.acquire()).await.expect("acquired by asking again");
        assert_eq!(held(&server), 3);
        refused(&other).await;
        guard.check().expect("held");
        proxy.swallow_replies(1, Then::Cut, command("EVALSHA"));
        guard.release().await.expect("released by asking again");
        assert_eq!(held(&server), 0);
    }
}

/// Row 1: the reply never comes, and the call's own time runs out: all of them are undone.
#[tokio::test]
async fn row_1_several_without_an_answer_are_undone() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = all(&quick(&proxy.url(), 200 * MS, 30 * S).await);
    proxy.swallow_replies(usize::MAX, Then::Stall, command("EVALSHA"));
    let missed = ours.try_acquire().await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    assert_eq!(held(&server), 3, "it was executed, and nobody was told so");
    proxy.pass();
    proxy.cut();
    // Undone, or at the latest ended by their short first leases.
    until("none is held", 3_500 * MS, async || held(&server) == 0).await;
    within(5 * S, ours.acquire()).await.expect("acquired").release().await.expect("released");
}

/// Row 2: every script arrives twice.
#[tokio::test]
async fn row_2_several_sent_twice_are_taken_once() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (all(&client(&proxy.url()).await), client(&server.url()).await);
    proxy.double_requests(command("EVALSHA"));
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
        guard.release().await.expect("released, also where the second reply says it was already");
        within(5 * S, waiter).await.expect("no panic").expect("released");
    }
    assert_eq!(held(&server), 0);
}

/// Row 3: however many locks, they are taken by one request, which nobody repeats; each is released by one.
#[tokio::test]
async fn row_3_several_are_not_asked_for_again_behind_our_back() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    // A lease that needs no extend.
    let ours = all(&sessionless(&proxy.url()).await).lease(2_900 * MS);
    proxy.reset_counts();
    proxy.delay_replies(700 * MS);
    let guard = ours.acquire().await.expect("acquired");
    assert_eq!(proxy.count("EVALSHA"), 1);
    guard.release().await.expect("released");
    assert_eq!(proxy.count("EVALSHA"), 4);
}

/// Row 14: a task that hangs with several locks keeps none of them for longer than its cap says.
#[tokio::test]
async fn row_14_a_hung_task_keeps_none_of_several() {
    let server = server();
    let (ours, other) = (quick(&server.url(), 2 * S, 600 * MS).await, client(&server.url()).await);
    for capped in [all(&ours).max_hold(1_500 * MS), all(&ours).max_renewals(3)] {
        let guard = capped.acquire().await.expect("acquired");
        let start = Instant::now();
        let next = within(6 * S, all(&other).acquire()).await.expect("acquired");
        let waited = start.elapsed();
        assert!(waited > 700 * MS && waited < 3 * S, "{waited:?}");
        assert_eq!(within(S, guard.lost()).await.reason, LostReason::Capped);
        guard.release().await.expect_err("they are the next one's");
        next.check().expect("held");
        next.release().await.expect("released");
    }
}

/// Row 17: tasks share a handle. Each has its own holds, and what comes late of one touches none of the other's.
#[tokio::test]
async fn row_17_tasks_of_one_handle_have_their_own_holds_of_several() {
    let server = server();
    let handle = std::sync::Arc::new(all(&sessionless(&server.url()).await));
    let stale = MultiMutex::clone(&handle).lease(300 * MS).acquire().await.expect("acquired");
    refused(&handle).await;
    let second = tokio::spawn({
        let handle = std::sync::Arc::clone(&handle);
        async move { handle.acquire().await.expect("acquired") }
    });
    let second = within(5 * S, second).await.expect("no panic");
    stale.check().expect_err("they are over");
    stale.extend().await.expect_err("they are over");
    let late = stale.release().await.expect_err("they are over");
    assert_eq!(late.failed.len(), 3, "{late}");
    second.extend().await.expect("each is held");
    for name in NAMES {
        assert!(second.fencing_token(name).is_some());
    }
    assert_eq!(held(&server), 3);
    second.release().await.expect("released");
    assert_eq!(held(&server), 0);
}

/// Row 28, as far as there are locks that it can happen to: a name that is given twice is one lock, and who holds one of
/// several by itself is told, in the time that he gave, that he is in his own way.
#[tokio::test]
async fn row_28_nobody_waits_for_a_lock_that_he_named_twice() {
    let server = server();
    let ours = client(&server.url()).await;
    let twice = ours.multi_mutex(["b", "a", "b", "a"]).expect("good names");
    let guard = within(S, twice.acquire()).await.expect("acquired");
    assert_eq!(guard.fencing_tokens().count(), 2);
    guard.release().await.expect("released");

    let single = ours.mutex("b").expect("a good name").acquire().await.expect("acquired");
    let missed = within(2 * S, all(&ours).acquire_timeout(200 * MS)).await.expect_err("he has one himself");
    let AcquireError::TimedOut { lock, .. } = &missed else { panic!("{missed:?}") };
    assert_eq!(lock.as_str(), "b");
    single.check().expect("held");
    assert_eq!(held(&server), 1, "the others are not kept by one who gave up");
    single.release().await.expect("released");
}

fn start(server: &RedisServer, session: Duration) -> Worker {
    Worker::of_test("together::a_worker_that_holds_several", "together")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_SESSION_MS", session.as_millis().to_string())
        .start()
        .expect("a worker")
}

/// Rows 23 and 29: who holds several is killed, and so is who waits for them with one in hand, perhaps. Whoever wants all
/// of them has them when their sessions end.
#[tokio::test]
async fn row_29_the_dead_keep_nobody_from_his_set() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held", PATIENCE).expect("it holds them");
    let mut waiter = start(&server, session);
    until_waiting(&live, "a").await;
    // The first lock becomes the waiter's: it holds it, and asks for the others.
    let next = tokio::spawn({
        let all = all(&live);
        async move { all.acquire().await.expect("acquired") }
    });
    tokio::time::sleep(session / 2).await;
    holder.kill().expect("killed");
    let killed = Instant::now();
    waiter.expect("held", PATIENCE).expect("they are its, once the first is dead");
    // Each lock of the dead is found by itself, by a look or two.
    let each = 2 * S * u32::try_from(NAMES.len()).expect("three");
    println!("had by the next {:?} after the kill, with a session of {session:?}", killed.elapsed());
    assert!(killed.elapsed() < session + each, "{:?}", killed.elapsed());
    assert!(!next.is_finished());
    waiter.kill().expect("killed");
    let guard = within(session + each, next).await.expect("no panic");
    guard.check().expect("held");
    guard.release().await.expect("released");
    assert_eq!(held(&server), 0);
}

/// Row 10: who stood still with several locks for longer than his session has lost them all, knows it before he asks
/// anybody, and takes none from who has them then.
#[tokio::test]
async fn row_10_who_stood_still_has_lost_several() {
    let server = server();
    let session = 2 * S;
    let live = client(&server.url()).await;
    let mut holder = start(&server, session);
    holder.expect("held", PATIENCE).expect("it holds them");
    holder.stop().expect("stopped");
    let guard = within(session + 2 * S, all(&live).acquire()).await.expect("acquired");
    holder.tell("check").expect("told");
    holder.cont().expect("it goes on");
    assert_eq!(holder.expect("check ", PATIENCE).expect("it says so"), "lost");
    holder.tell("release").expect("told");
    assert_eq!(holder.expect("released ", PATIENCE).expect("it says so"), "0 of 3");
    guard.extend().await.expect("each is held");
    assert_eq!(held(&server), 3);
    guard.release().await.expect("released");
}

/// Not a test by itself: a process that holds several, or waits for them.
#[test]
fn a_worker_that_holds_several() {
    if Worker::role().as_deref() != Some("together") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let session = Duration::from_millis(env("LEASEHOLD_TEST_SESSION_MS").parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(env("LEASEHOLD_TEST_URL")).session(session).connect().await;
        let guard = all(&client.expect("connected")).acquire().await.expect("acquired");
        Worker::say("held");
        let _ = Worker::told();
        Worker::say(if guard.check().is_ok() { "check held" } else { "check lost" });
        let _ = Worker::told();
        let kept = guard.release().await.err().map_or(0, |error| error.failed.len());
        Worker::say(&format!("released {} of 3", 3 - kept));
        let _ = Worker::told();
    });
}
