//! Waiting: rows 19 to 21 (standalone), and 44.

use super::fixture::{MS, client, mutex, server, until_free, until_waiting};
use leasehold_testkit::{Proxy, Stopwatch};
use std::time::{Duration, Instant};

/// Less than a waiter's poll interval: only a message can be this fast.
const BY_MESSAGE: Duration = Duration::from_millis(700);

/// Row 19: a release at any moment around the waiter's first request wakes it by message.
#[tokio::test]
async fn row_19_no_wake_up_is_lost_between_the_request_and_the_notification() {
    let server = server();
    let (a, b) = (mutex(&client(&server.url()).await), mutex(&client(&server.url()).await));
    for n in 0..300_u32 {
        let guard = a.acquire().await.expect("acquired");
        // It also measures the pause, which is short: to start it takes longer than a step of the pause.
        let watch = Stopwatch::start();
        let waiter = tokio::spawn({
            let b = b.clone();
            async move { b.acquire().await.expect("acquired") }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(2) * n {
            tokio::task::yield_now().await;
        }
        guard.release().await.expect("released");
        let next = waiter.await.expect("no panic");
        watch.assert_below(BY_MESSAGE, "woken by a message");
        next.release().await.expect("released");
    }
}

/// Row 20: deleting a key by hand publishes nothing; the first waiter polls every second.
#[tokio::test]
async fn row_20_a_deleted_key_is_found_by_polling() {
    let server = server();
    let (a, b) = (mutex(&client(&server.url()).await), mutex(&client(&server.url()).await));
    let guard = a.acquire().await.expect("acquired");
    let waiter = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    until_waiting(&a, 1).await;
    let start = Stopwatch::start();
    server.cli(&["DEL", "m"]).expect("deleted");
    let next = waiter.await.expect("no panic");
    start.assert_below(1300 * MS, "found by the next poll");
    assert!(next.fencing_token() > guard.fencing_token());
    drop(guard);
    next.release().await.expect("released");
}

/// Row 20: the same for a key that expires after its holder has died.
#[tokio::test]
async fn row_20_an_expired_key_is_found_when_it_expires() {
    let server = server();
    let ours = mutex(&client(&server.url()).await);
    let start = Stopwatch::start();
    server.cli(&["SET", "m", "a stranger", "PX", "400"]).expect("set");
    let guard = ours.acquire().await.expect("acquired");
    assert!(start.elapsed() >= 380 * MS, "{:?}", start.elapsed());
    start.assert_below(800 * MS, "found when it expires");
    guard.release().await.expect("released");
}

/// Row 21: the connection of a waiter breaks again and again; the waiter resubscribes and polls.
#[tokio::test]
async fn row_21_a_waiter_survives_its_connection() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, b) = (mutex(&client(&server.url()).await), mutex(&client(&proxy.url()).await));
    for _ in 0..4 {
        let guard = a.acquire().await.expect("acquired");
        let waiter = tokio::spawn({
            let b = b.clone();
            async move { b.acquire().await.expect("acquired") }
        });
        until_waiting(&a, 1).await;
        // A connection that has lasted a second is replaced at once; one that breaks sooner, after a pause.
        tokio::time::sleep(1050 * MS).await;
        proxy.disconnect();
        let start = Stopwatch::start();
        guard.release().await.expect("released");
        let next = waiter.await.expect("no panic");
        start.assert_below(1300 * MS, "granted after the connection was replaced");
        next.release().await.expect("released");
    }
    until_free(&a, 100 * MS).await;
}

/// Row 21: the server restarts without its data under a holder and a waiter.
#[tokio::test]
async fn row_21_a_waiter_survives_a_restart_of_the_server() {
    let mut server = server();
    let (a, b) = (mutex(&client(&server.url()).await), mutex(&client(&server.url()).await));
    let guard = a.acquire().await.expect("acquired");
    let waiter = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    until_waiting(&a, 1).await;
    server.restart().expect("restarted");
    let start = Stopwatch::start();
    let next = waiter.await.expect("no panic");
    start.assert_below(3000 * MS, "acquired after the restart");
    assert!(next.fencing_token() > guard.fencing_token(), "row 31");
    drop(guard);
    next.release().await.expect("released");
}

/// Row 44: a client that can publish but cannot read the lock's record cannot make a waiter accept a grant
/// that the store did not make.
#[tokio::test]
async fn row_44_a_forged_message_gives_nothing() {
    let server = server();
    let holder = mutex(&client(&server.url()).await);
    let waiting = client(&server.url()).await;
    let guard = holder.acquire().await.expect("acquired");
    let waiter = tokio::spawn({
        let mutex = mutex(&waiting);
        async move { mutex.acquire().await.expect("acquired") }
    });
    until_waiting(&holder, 1).await;
    let mailbox = format!("leasehold:mailbox:{}", waiting.session_id());
    for n in 0..200 {
        let forged = match n % 4 {
            0 => format!("grant 00000000{n:016x} 9007199254740991"),
            1 => "grant".to_owned(),
            2 => "\0\r\n$-1".to_owned(),
            _ => "x".repeat(100_000),
        };
        let receivers = server.cli(&["PUBLISH", &mailbox, &forged]).expect("published").integer();
        assert_eq!(receivers, Some(1), "the waiter subscribes there");
    }
    tokio::time::sleep(50 * MS).await;
    assert!(!waiter.is_finished(), "it accepted a forged grant");
    guard.check().expect("held");
    guard.release().await.expect("released");
    waiter.await.expect("no panic").release().await.expect("released");
}

/// Behind a holder that runs other software and so grants nothing, the head of the queue polls at least four times a
/// second.
#[tokio::test]
async fn a_foreign_release_is_noticed_soon() {
    let server = server();
    let ours = mutex(&client(&server.url()).await);
    for _ in 0..3 {
        server.cli(&["SET", "m", "a stranger", "PX", "60000"]).expect("set");
        let waiter = tokio::spawn({
            let ours = ours.clone();
            async move { ours.acquire().await.expect("acquired") }
        });
        until_waiting(&ours, 1).await;
        server.cli(&["DEL", "m"]).expect("deleted");
        let start = Stopwatch::start();
        let guard = waiter.await.expect("no panic");
        start.assert_below(450 * MS, "the first waiter polls four times a second");
        guard.release().await.expect("released");
    }
}

/// With `share(k)`, every k-th release leaves the lock free, so that clients that only poll are served.
#[tokio::test]
async fn foreign_clients_do_not_starve_if_the_lock_is_shared() {
    let server = server();
    let mut ours = Vec::new();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for _ in 0..3 {
        let (mutex, stop) = (mutex(&client(&server.url()).await).yield_every(4), stop.clone());
        ours.push(tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let guard = mutex.acquire().await.expect("acquired");
                tokio::time::sleep(MS).await;
                guard.release().await.expect("released");
            }
        }));
    }
    let mut turns = 0;
    let start = Stopwatch::start();
    while turns < 5 {
        let set = server.cli(&["SET", "m", "a stranger", "NX", "PX", "1000"]).expect("an answer");
        if !set.is_nil() {
            turns += 1;
            server.cli(&["DEL", "m"]).expect("deleted");
        }
        start.assert_below(Duration::from_secs(15), &format!("{turns} turns only"));
        tokio::time::sleep(5 * MS).await;
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for task in ours {
        task.await.expect("no panic");
    }
}

/// A release with waiters in the same process is one request, which serves the next of them, too; no other client
/// sends anything for a hand-off.
#[tokio::test]
async fn a_hand_off_is_one_request() {
    let server = server();
    let proxy = Proxy::to_server(&server).expect("a proxy");
    let (a, b) = (mutex(&client(&proxy.url()).await), mutex(&client(&proxy.url()).await));
    for mutex in [&a, &b] {
        // One hand-off first, so that the keepers connect that reserve tokens for it.
        let guard = mutex.acquire().await.expect("acquired");
        let (next, released) = tokio::join!(mutex.acquire(), guard.release());
        released.expect("released");
        next.expect("acquired").release().await.expect("released");
    }
    // The first rounds load the scripts.
    let mut rounds = 0;
    while rounds == 0 || proxy.count("SCRIPT") > 0 {
        rounds += 1;
        assert!(rounds <= 5, "scripts are loaded again and again");
        let guard = a.acquire().await.expect("acquired");
        let mut tasks = Vec::new();
        for mutex in [&b, &b, &a] {
            let mutex = mutex.clone();
            tasks.push(tokio::spawn(async move { mutex.acquire().await.expect("acquired").release().await }));
        }
        until_waiting(&a, 1).await;
        proxy.reset_counts();
        guard.release().await.expect("released");
        for task in tasks {
            task.await.expect("no panic").expect("released");
        }
    }
    // One release per process and turn, a token for one of the two tasks, and no more than a poll or two that came
    // due.
    let requests = proxy.count("EVALSHA");
    assert!((4..=6).contains(&requests), "{requests} requests");
    assert_eq!(proxy.total(), requests);
}

/// A grant whose message is lost (here because publishing is forbidden) is found by polling.
#[tokio::test]
async fn a_grant_without_its_message_is_found_by_polling() {
    let server = server();
    let (a, b) = (mutex(&client(&server.url()).await), mutex(&client(&server.url()).await));
    server.cli(&["ACL", "SETUSER", "default", "-publish"]).expect("an answer").ok().expect("set");
    let guard = a.acquire().await.expect("acquired");
    let waiter = tokio::spawn(async move { b.acquire().await.expect("acquired") });
    until_waiting(&a, 1).await;
    let start = Stopwatch::start();
    guard.release().await.expect("released, all the same");
    let next = waiter.await.expect("no panic");
    start.assert_below(1300 * MS, "found by the next poll");
    next.check().expect("held beyond its first lease");
    next.release().await.expect("released");
}

/// A client subscribes to one channel, however many locks it waits for.
#[tokio::test]
async fn one_mailbox_serves_all_locks() {
    let server = server();
    let (a, b) = (client(&server.url()).await, client(&server.url()).await);
    let names: Vec<String> = (0..200).map(|n| format!("lock {n}")).collect();
    let mut guards = Vec::new();
    let mut waiters = Vec::new();
    for name in &names {
        guards.push(a.mutex(name).expect("a good name").acquire().await.expect("acquired"));
        let mutex = b.mutex(name).expect("a good name");
        waiters.push(tokio::spawn(async move { mutex.acquire().await.expect("acquired").release().await }));
    }
    until_waiting(&a.mutex(&names[199]).expect("a good name"), 1).await;
    let channels = server.cli(&["PUBSUB", "CHANNELS"]).expect("an answer");
    assert_eq!(channels.elements().len(), 2, "one channel per client");
    for guard in guards {
        guard.release().await.expect("released");
    }
    for waiter in waiters {
        waiter.await.expect("no panic").expect("released");
    }
}

/// A waiter does not acquire a lock that an older client left without an expiry, unless it is configured to set one.
#[tokio::test]
async fn a_lock_without_an_expiry_gets_one_on_request() {
    let server = server();
    server.cli(&["SET", "m", "a stranger"]).expect("set");
    let ours = mutex(&client(&server.url()).await);
    let missed = ours.acquire_timeout(900 * MS).await.expect_err("no client releases it");
    assert!(missed.to_string().contains("without an expiry"), "{missed}");
    assert_eq!(
        server.cli(&["PTTL", "m"]).expect("an answer").integer(),
        Some(-1),
        "the client was not configured to set an expiry"
    );
    let guard = ours
        .clone()
        .expire_foreign(300 * MS)
        .acquire_timeout(Duration::from_secs(5))
        .await
        .expect("acquired");
    guard.release().await.expect("released");
}
