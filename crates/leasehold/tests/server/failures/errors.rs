//! Errors and bad input: rows 41 and 42.

use super::fixture::{MS, client, mutex, quick, server};
use leasehold::error::{AcquireError, ConnectError, KeyError, LockError, ReleaseError};
use leasehold::store::FaultKind;
use leasehold::{Attempt, Client, LostReason};
use leasehold_testkit::{AfterDrop, RedisServer, Stopwatch, command};
use std::time::{Duration, Instant};

/// Row 41: taken, expired, unreachable, refused and unknown are distinct results.
#[tokio::test]
async fn row_41_every_reason_has_its_own_answer() {
    let mut server = server();
    let proxy = leasehold_testkit::Proxy::to_server(&server).expect("a proxy");
    let ours = quick(&proxy.url(), 300 * MS, Duration::from_secs(30)).await;
    let other = client(&server.url()).await;

    let guard = mutex(&other).acquire().await.expect("acquired");
    assert!(matches!(mutex(&ours).try_acquire().await, Ok(Attempt::Taken(_))));
    let timed_out = mutex(&ours).acquire_timeout(500 * MS).await;
    assert!(matches!(timed_out, Err(AcquireError::TimedOut { .. })), "{timed_out:?}");
    guard.release().await.expect("released");

    let expired = mutex(&ours).lease(500 * MS).acquire().await.expect("acquired");
    expired.lost().await;
    tokio::time::sleep(20 * MS).await;
    assert!(matches!(expired.release().await, Err(ReleaseError::Lost(LostReason::Expired))));

    let removed = mutex(&ours).acquire().await.expect("acquired");
    server.cli(&["DEL", "m"]).expect("deleted");
    assert!(matches!(removed.release().await, Err(ReleaseError::Lost(LostReason::Removed))));

    server.cli(&["HSET", "m", "field", "value"]).expect("set");
    let refused = mutex(&ours).try_acquire().await;
    let Err(AcquireError::Store(fault)) = &refused else { panic!("{refused:?}") };
    assert!(matches!(fault.kind, FaultKind::Refused(_)), "{fault:?}");
    let text = fault.to_string();
    assert!(text.contains("hash") && text.contains("Mutex"), "names both kinds: {text}");
    server.cli(&["DEL", "m"]).expect("deleted");

    proxy.drop_replies(usize::MAX, AfterDrop::Stall, command("EVALSHA"));
    let unknown = mutex(&ours).try_acquire().await;
    assert!(matches!(unknown, Err(AcquireError::Unknown(_))), "{unknown:?}");
    proxy.clear_faults();
    proxy.disconnect();

    server.kill().expect("killed");
    let gone = quick_error(&other).await;
    let Err(AcquireError::Store(fault)) = &gone else { panic!("{gone:?}") };
    assert_eq!(fault.kind, FaultKind::Unreachable);
    assert!(fault.node.contains(&server.port().to_string()), "the fault names the server: {fault}");
}

async fn quick_error(client: &Client) -> Result<Attempt, AcquireError> {
    let start = Instant::now();
    loop {
        let tried = mutex(client).try_acquire().await;
        // The first call after the server's death may still use the old connection.
        if !matches!(&tried, Err(AcquireError::Unknown(_))) || start.elapsed() > Duration::from_secs(10) {
            return tried;
        }
    }
}

/// Row 42: lock names built from user input stay names: literal, injective, in one slot.
#[tokio::test]
async fn row_42_any_name_is_literal_or_refused() {
    let server = server();
    let ours = client(&server.url()).await;
    let long = "x".repeat(512);
    let good = [
        "a b",
        "*",
        "?",
        "[a-z]",
        "\\",
        "'",
        "\"",
        "$1",
        "%s",
        "%d %f",
        "é日本🦀",
        "{a}b",
        "x{y}z",
        "a{",
        ";rm -rf",
        "KEYS[1]",
        "]]--",
        "..",
        "0",
        "-1",
        "nil",
        &long,
    ];
    let mut guards = Vec::new();
    for name in good {
        let mutex = ours.mutex(name).expect("a good name");
        let guard = mutex.try_acquire().await.expect("an answer").granted();
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} shares a key with another")));
        let there = server.cli(&["EXISTS", name]).expect("an answer").integer();
        assert_eq!(there, Some(1), "{name:?} is the key, literally");
    }
    for guard in guards {
        guard.check().expect("held");
        guard.release().await.expect("released");
    }
    for name in ["", "a\0b", "a\r\nDEL x", "tab\t", &"x".repeat(513)] {
        assert!(matches!(ours.mutex(name), Err(LockError::Name(_))), "{name:?}");
    }
    assert!(matches!(ours.mutex("a}b"), Err(LockError::Key(KeyError::Brace))));
    assert!(matches!(ours.mutex("leasehold:{a}:record:mutex:a"), Err(LockError::Key(KeyError::Reserved))));
}

/// Bad input: for each URL, setting and server the error states what is wrong, where, and how to correct it.
#[tokio::test]
async fn bad_input_is_reported_and_nothing_hangs() {
    let server = RedisServer::builder().password("sesame").start().expect("redis-server boots");
    let port = server.port();
    for url in [
        "",
        "m",
        "http://127.0.0.1/",
        "redis://",
        "redis://127.0.0.1:port/",
        "redis://127.0.0.1/db",
        "redis://127.0.0.1/?what=1",
        "sqlite:",
        "redis+unix://",
    ] {
        let error = Client::connect(url).await.expect_err(url);
        assert!(matches!(error, ConnectError::Url(_)), "{url}: {error:?}");
    }
    for (url, kind) in [
        (format!("redis://127.0.0.1:{port}/"), FaultKind::Unauthenticated),
        (format!("redis://:hunter2@127.0.0.1:{port}/"), FaultKind::Unauthenticated),
        (format!("redis://unknown:sesame@127.0.0.1:{port}/"), FaultKind::Unauthenticated),
        ("redis+unix:///nowhere/redis.sock".to_owned(), FaultKind::Unreachable),
    ] {
        let start = Stopwatch::start();
        let error = Client::builder(&url).call_timeout(500 * MS).connect().await.expect_err(&url);
        start.assert_below(1500 * MS, "reported without a long wait");
        let ConnectError::Store(fault) = &error else { panic!("{url}: {error:?}") };
        assert_eq!(fault.kind, kind, "{url}: {error}");
        for shown in [format!("{error}"), format!("{error:?}")] {
            assert!(!shown.contains("sesame") && !shown.contains("hunter2"), "shows a password: {shown}");
        }
    }
    let good =
        Client::connect(&format!("redis://:sesame@127.0.0.1:{port}/")).await.expect("the right password");
    assert!(!format!("{good:?}").contains("sesame"));
    for bad in [Duration::ZERO, Duration::MAX] {
        let setting = Client::builder("memory:").watchdog_lease(bad).connect().await;
        assert!(matches!(setting, Err(ConnectError::Setting(_))), "{setting:?}");
    }
    let setting = Client::builder("memory:").label("two\nlines").connect().await;
    assert!(matches!(setting, Err(ConnectError::Setting(_))), "{setting:?}");
}
