//! Lost replies, resends, cancellation: rows 1 to 6.

use super::fixture::{MS, S, client, load_scripts, mutex, quick, server, sessionless, until_free};
use leasehold::Attempt;
use leasehold::error::AcquireError;
use leasehold_testkit::{AfterDrop, Proxy, Stopwatch, any_command, command};
use std::time::Duration;

/// Row 1: the reply to an acquire is lost with its connection; the repeated request finds the same hold.
#[tokio::test]
async fn row_1_a_lost_reply_leaves_no_orphaned_lock() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    load_scripts(&other).await;
    for _ in 0..5 {
        proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
        let guard = ours.acquire().await.expect("acquired by a resend");
        assert!(matches!(other.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
        guard.check().expect("held");
        guard.release().await.expect("released");
        let guard = other.try_acquire().await.expect("an answer").granted().expect("free");
        guard.release().await.expect("released");
    }
    until_free(&other, 100 * MS).await;
}

/// Row 1: the reply never arrives, and the call times out.
#[tokio::test]
async fn row_1_a_reply_that_never_comes_is_undone() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&quick(&proxy.url(), 200 * MS, Duration::from_secs(30)).await);
    let other = mutex(&client(&server.url()).await);
    load_scripts(&other).await;
    proxy.drop_replies(usize::MAX, AfterDrop::Stall, command("EVALSHA"));
    let start = Stopwatch::start();
    let missed = ours.try_acquire().await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    start.assert_below(1000 * MS, "the call ends by its own timeout, and is undone");
    proxy.clear_faults();
    proxy.disconnect();
    // Undone, or at the latest ended by its short first lease.
    until_free(&other, 3500 * MS).await;
}

/// Row 2: every script arrives twice, with the effect of one.
#[tokio::test]
async fn row_2_sent_twice_equals_sent_once() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    proxy.duplicate_requests(command("EVALSHA"));
    let mut last = None;
    for _ in 0..10 {
        let guard = ours.acquire().await.expect("acquired");
        assert!(last < Some(guard.fencing_token()));
        last = Some(guard.fencing_token());
        guard.extend().await.expect("extended");
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { other.acquire().await.expect("acquired").release().await }
        });
        tokio::time::sleep(5 * MS).await;
        guard.release().await.expect("released, even if the second reply reports it as already released");
        waiter.await.expect("no panic").expect("released");
    }
    until_free(&other, 100 * MS).await;
}

/// Row 3: the Redis client library resends nothing on its own, even where its timeout is far shorter than ours.
#[tokio::test]
async fn row_3_the_redis_client_library_resends_nothing() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&client(&proxy.url()).await);
    load_scripts(&mutex(&sessionless(&server.url()).await)).await;
    proxy.delay_replies(900 * MS);
    proxy.reset_counts();
    let guard = ours.acquire().await.expect("acquired");
    assert_eq!(proxy.count("EVALSHA"), 1);
    proxy.delay_replies(Duration::ZERO);
    guard.release().await.expect("released");
    assert_eq!(proxy.count("EVALSHA"), 2);
}

/// Row 4: a future is dropped while its acquire is in flight, at times around its reply. (At every await:
/// `tests/api/cases/mutex.rs`.)
#[tokio::test]
async fn row_4_a_dropped_acquire_leaves_nothing() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    proxy.delay_requests(2 * MS);
    proxy.delay_replies(2 * MS);
    for n in 0..20_u32 {
        let _ = tokio::time::timeout(n * MS / 3, ours.acquire()).await;
        until_free(&other, 1000 * MS).await;
    }
}

/// Row 5: the keeper completes a release that is cut short.
#[tokio::test]
async fn row_5_a_release_cut_short_is_carried_on() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    for n in 0..10_u32 {
        let guard = ours.acquire().await.expect("acquired");
        proxy.delay_requests(4 * MS);
        let _ = tokio::time::timeout(n * MS, guard.release()).await;
        proxy.delay_requests(Duration::ZERO);
        until_free(&other, 1000 * MS).await;
    }
}

/// Row 49: a release that fails because the server is silent for longer than a call, and whose error is dropped, frees the
/// lock as soon as a dropped guard does.
#[tokio::test]
async fn row_49_a_release_without_an_answer_frees_the_lock_like_a_drop() {
    for is_dropped in [false, true] {
        let server = server();
        let ours = mutex(&quick(&server.url(), 500 * MS, 60 * S).await);
        let guard = ours.acquire().await.expect("acquired");
        guard.extend().await.expect("extended");
        server.stop().expect("stopped");
        if is_dropped {
            drop(guard);
            tokio::time::sleep(700 * MS).await;
        } else {
            guard.release().await.expect_err("the server is silent");
        }
        server.resume().expect("it goes on");
        // The lease of 60 s has just begun.
        until_free(&mutex(&client(&server.url()).await), 5 * S).await;
    }
}

/// Row 49: or it is released at once by another attempt.
#[tokio::test]
async fn row_49_a_release_without_an_answer_can_be_tried_again() {
    let server = server();
    let ours = mutex(&quick(&server.url(), 500 * MS, 60 * S).await);
    let guard = ours.acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    server.stop().expect("stopped");
    let mut error = guard.release().await.expect_err("the server is silent");
    server.resume().expect("it goes on");
    // A busy machine may need longer than a call.
    for _ in 0..20 {
        let unreleased = error.into_unreleased().expect("it is not released");
        match unreleased.release().await {
            Ok(()) => {
                assert!(!ours.inspect().await.expect("a reply").held);
                return;
            }
            Err(again) => error = again,
        }
    }
    panic!("not released: {error}");
}

/// Row 6: the same if the caller is cancelled before or during its release.
#[tokio::test]
async fn row_6_a_cancelled_caller_releases_the_lock() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    for n in 0..10_u32 {
        let guard = ours.acquire().await.expect("acquired");
        proxy.delay_requests(4 * MS);
        let parent = tokio::spawn(async move {
            let request = async move {
                tokio::time::sleep(3 * MS).await;
                guard.release().await
            };
            request.await
        });
        tokio::time::sleep(n * MS).await;
        parent.abort();
        proxy.delay_requests(Duration::ZERO);
        until_free(&other, 1000 * MS).await;
    }
}

/// An acquire that arrives after its undo leaves a hold without an owner: its short first lease ends it.
#[tokio::test]
async fn an_acquire_that_arrives_after_its_undo_ends_by_its_first_lease() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&quick(&proxy.url(), 300 * MS, Duration::from_secs(30)).await);
    let other = mutex(&client(&server.url()).await);
    load_scripts(&other).await;
    proxy.pause_requests(1, command("EVALSHA"));
    let missed = ours.acquire_timeout(150 * MS).await;
    assert!(matches!(missed, Err(AcquireError::Unknown(_))), "{missed:?}");
    proxy.until_paused(1, Duration::from_secs(1)).await.expect("the proxy holds one request back");
    proxy.disconnect_clients();
    let again = ours.acquire().await.expect("acquired over a new connection");
    again.release().await.expect("released");
    let late = proxy.resume_requests();
    assert_eq!(late.count(), 1);
    late.answered(Duration::from_secs(1)).await.expect("the delayed request ran after the newer one");
    let start = Stopwatch::start();
    let guard = other.acquire_timeout(Duration::from_secs(5)).await.expect("acquired");
    start.assert_below(3500 * MS, "free when the first lease has ended");
    guard.release().await.expect("released");
    until_free(&other, 100 * MS).await;
}

/// A connection breaks, and the next ones break during their handshake: the call succeeds within its deadline.
#[tokio::test]
async fn a_connection_that_breaks_while_it_greets_is_replaced() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&client(&proxy.url()).await);
    for n in 1..4 {
        proxy.disconnect();
        proxy.drop_replies(n, AfterDrop::Disconnect, any_command());
        let guard = ours.acquire().await.expect("acquired");
        guard.release().await.expect("released");
    }
}

/// A hold counts as ended once its release was first sent: the next local waiter gets a hold of its own, even if the
/// reply to the release is lost.
#[tokio::test]
async fn a_hold_whose_release_was_sent_is_never_handed_off() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (mutex(&client(&proxy.url()).await), mutex(&client(&server.url()).await));
    for then in [AfterDrop::Disconnect, AfterDrop::Stall] {
        let guard = ours.acquire().await.expect("acquired");
        let first = guard.fencing_token();
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { ours.acquire().await.expect("acquired") }
        });
        tokio::time::sleep(5 * MS).await;
        proxy.drop_replies(1, then, command("EVALSHA"));
        // Released, as the repeated request finds; or unknown, if no time was left.
        let _ = guard.release().await;
        proxy.clear_faults();
        let next = waiter.await.expect("no panic");
        assert!(next.fencing_token() > first);
        assert!(matches!(other.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
        next.check().expect("held");
        next.release().await.expect("released");
        until_free(&other, 4000 * MS).await;
    }
}
