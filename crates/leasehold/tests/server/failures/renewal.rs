//! Renewal: rows 7 to 11 and 13.

use super::fixture::{MS, client, load_scripts, mutex, quick, server};
use leasehold::error::ReleaseError;
use leasehold::{Attempt, Client, LostReason};
use leasehold_testkit::{AfterDrop, Proxy, RedisServer, Worker, command};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(2);

fn pttl(server: &RedisServer) -> i64 {
    server.cli(&["PTTL", "m"]).expect("an answer").integer().expect("a number")
}

/// Row 7: after a release the watchdog never extends the key's expiry, whichever client holds the lock then.
#[tokio::test]
async fn row_7_the_watchdog_ends_with_the_release() {
    let server = server();
    let ours = mutex(&quick(&server.url(), LONG, 60 * MS).await);
    for n in 0..20_u32 {
        let guard = ours.acquire().await.expect("acquired");
        tokio::time::sleep(15 * MS + n * Duration::from_micros(500)).await;
        // On a busy machine so short a lease may be over already; what matters is what happens next.
        let _ = guard.release().await;
        server.cli(&["SET", "m", "a stranger", "PX", "40"]).expect("an answer");
        let mut last = pttl(&server);
        while last > 0 {
            let next = pttl(&server);
            assert!(next <= last, "raised from {last} to {next}");
            last = next;
        }
    }
}

/// Row 8: connections break, and the watchdog renews over new ones for three leases and more.
#[tokio::test]
async fn row_8_the_watchdog_survives_a_reconnect() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&quick(&proxy.url(), LONG, 1200 * MS).await);
    let other = mutex(&client(&server.url()).await);
    let guard = ours.acquire().await.expect("acquired");
    let start = Instant::now();
    let mut cuts = 0;
    while start.elapsed() < 4 * 1200 * MS {
        if start.elapsed() > cuts * 1100 * MS {
            proxy.disconnect();
            cuts += 1;
        }
        assert!(matches!(other.try_acquire().await.expect("an answer"), Attempt::Taken(_)));
        guard.check().expect("held");
        tokio::time::sleep(10 * MS).await;
    }
    guard.release().await.expect("released");
}

/// Row 9: one renewal without a reply does not end the hold.
#[tokio::test]
async fn row_9_a_failed_renewal_is_tried_again() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let ours = mutex(&quick(&proxy.url(), LONG, 4000 * MS).await);
    let guard = ours.acquire().await.expect("acquired");
    guard.extend().await.expect("the first call loads the script");
    for then in [AfterDrop::Stall, AfterDrop::Disconnect] {
        proxy.drop_requests(1, then, command("EVALSHA"));
        let start = Instant::now();
        while start.elapsed() < 6000 * MS {
            guard.check().expect("held");
            tokio::time::sleep(10 * MS).await;
        }
    }
    guard.release().await.expect("released");
}

/// Row 10: a process suspended past its lease detects the loss by its clock alone, before anything else.
#[tokio::test]
async fn row_10_a_stopped_holder_detects_its_loss() {
    let server = server();
    let mut worker = Worker::of_test("failures::renewal::a_worker_that_holds", "holder")
        .env("LEASEHOLD_TEST_URL", server.url())
        .start()
        .expect("a worker");
    worker.expect("held", Duration::from_secs(10)).expect("the worker holds the lock");
    worker.stop().expect("stopped");
    let other = mutex(&client(&server.url()).await);
    let next = other.acquire_timeout(Duration::from_secs(5)).await.expect("the lease has ended");
    // The worker cannot reach the server: it has to detect the loss without it.
    server.stop().expect("stopped");
    worker.send("check").expect("the worker receives the command");
    worker.resume().expect("continued");
    worker.expect("lost", Duration::from_secs(5)).expect("check() failed");
    server.resume().expect("continued");
    next.check().expect("held");
    next.release().await.expect("released");
}

/// Not a test by itself: the process of row 10.
#[test]
fn a_worker_that_holds() {
    if Worker::role().as_deref() != Some("holder") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let url = std::env::var("LEASEHOLD_TEST_URL").expect("set by the test");
        let guard = mutex(&quick(&url, LONG, 500 * MS).await).acquire().await.expect("acquired");
        Worker::report("held");
        // Blocks the runtime: the keeper has its own thread, and no timer of this runtime can run.
        let _ = Worker::receive();
        Worker::report(if guard.check().is_err() { "lost" } else { "held still" });
        // The server is stopped; a release is the subject of the next test.
        std::process::exit(0);
    });
}

/// Row 11: a server that goes down during renewals ends the leases, and causes no panic.
#[tokio::test]
async fn row_11_no_server_no_panic() {
    let mut server = server();
    let ours = quick(&server.url(), 200 * MS, 500 * MS).await;
    let guard = mutex(&ours).acquire().await.expect("acquired");
    server.kill().expect("killed");
    let lost = tokio::time::timeout(2000 * MS, guard.lost()).await.expect("the loss is reported in time");
    assert_eq!(lost.reason, LostReason::Expired);
    let released = guard.release().await;
    assert!(
        matches!(released, Err(ReleaseError::Store { .. } | ReleaseError::Unknown { .. })),
        "{released:?}"
    );
    server.restart().expect("restarted");
    let guard = mutex(&ours).acquire().await.expect("the same client goes on");
    guard.release().await.expect("released");
}

/// Row 13: the client's deadline is never later than the server's expiry, however late replies are and however the
/// lock was acquired.
#[tokio::test]
async fn row_13_validity_counts_from_the_request() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (ours, other) = (client(&proxy.url()).await, mutex(&client(&server.url()).await));
    for (n, lease) in [40, 300, 2_000, 10_000, 3_600_000].into_iter().enumerate() {
        let ours = mutex(&ours).lease(Duration::from_millis(lease));
        proxy.delay_replies(Duration::from_millis(if lease > 100 { 60 } else { 5 }));
        for granted in [false, true] {
            let guard = if granted {
                let held = other.acquire().await.expect("acquired");
                let (guard, ()) = tokio::join!(ours.acquire(), async {
                    tokio::time::sleep(Duration::from_millis(80 + n as u64)).await;
                    held.release().await.expect("released");
                });
                guard
            } else {
                ours.acquire().await
            };
            let guard = guard.expect("acquired");
            for _ in 0..20 {
                let (before, left) = (Instant::now(), guard.remaining());
                let at_server = u64::try_from(pttl(&server)).unwrap_or(0);
                let bound = Duration::from_millis(at_server + 1) + before.elapsed();
                assert!(left <= bound, "lease {lease}: {left:?} here, {at_server} ms there");
                tokio::time::sleep(2 * MS).await;
            }
            let _ = guard.release().await;
        }
    }
}

/// An explicit lease costs one extension after the short first lease, and none if it is no longer than that.
#[tokio::test]
async fn a_given_lease_costs_one_extend_at_most() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    // Heartbeats would be counted, too.
    let ours = Client::builder(proxy.url()).without_session().connect().await.expect("it connects");
    load_scripts(&mutex(&ours)).await;
    for (lease, requests) in [(Duration::from_secs(60), 3), (Duration::from_millis(2500), 2)] {
        proxy.reset_counts();
        let guard = mutex(&ours).lease(lease).acquire().await.expect("acquired");
        let start = Instant::now();
        while guard.remaining() < lease * 9 / 10 && start.elapsed() < LONG {
            tokio::time::sleep(5 * MS).await;
        }
        tokio::time::sleep(1200 * MS).await;
        assert!(guard.remaining() + 1200 * MS < lease, "the lease is not renewed");
        guard.release().await.expect("released");
        assert_eq!(proxy.count("EVALSHA"), requests, "{lease:?}");
    }
}
