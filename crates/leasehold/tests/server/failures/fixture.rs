//! A separate server for each test, and its clients.

use leasehold::error::ConnectError;
use leasehold::store::FaultKind;
use leasehold::{Client, Mutex};
use leasehold_testkit::{RedisServer, Stopwatch};
use std::time::{Duration, Instant};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const S: Duration = Duration::from_secs(1);

pub(crate) fn server() -> RedisServer {
    RedisServer::start().expect("redis-server boots")
}

pub(crate) async fn client(url: &str) -> Client {
    Client::connect(url).await.expect("the server can be reached")
}

/// A client with short call timeouts, whose watchdog renews often.
pub(crate) async fn quick(url: &str, call: Duration, watchdog: Duration) -> Client {
    let connect = || Client::builder(url).call_timeout(call).watchdog_lease(watchdog).connect();
    // A busy machine may need longer for a connection than the calls of the test may take.
    for _ in 1..20 {
        match connect().await {
            Err(ConnectError::Store(fault)) if fault.kind == FaultKind::TimedOut => {}
            connected => return connected.expect("the server can be reached"),
        }
    }
    connect().await.expect("the server can be reached")
}

/// A client without a session: its leases alone limit its holds, and it sends nothing in the background.
pub(crate) async fn sessionless(url: &str) -> Client {
    Client::builder(url).without_session().connect().await.expect("the server can be reached")
}

pub(crate) fn mutex(client: &Client) -> Mutex {
    client.mutex("m").expect("a good name")
}

/// Acquires the lock once, extends it and releases it: the first call of each script loads it into the server.
pub(crate) async fn load_scripts(mutex: &Mutex) {
    let guard = mutex.acquire().await.expect("acquired");
    guard.extend().await.expect("extended");
    guard.release().await.expect("released");
}

/// Waits until the lock is free and has no waiters.
pub(crate) async fn until_free(mutex: &Mutex, within: Duration) {
    let start = Stopwatch::start();
    loop {
        let status = mutex.inspect().await;
        if status.as_ref().is_ok_and(|status| !status.held && status.waiting == 0) {
            return;
        }
        start.assert_below(within, &format!("not free: {status:?}"));
        tokio::time::sleep(5 * MS).await;
    }
}

/// Waits until that many sessions wait for the lock.
pub(crate) async fn until_waiting(mutex: &Mutex, sessions: u64) {
    let start = Instant::now();
    while mutex.inspect().await.expect("an answer").waiting != sessions {
        assert!(start.elapsed() < Duration::from_secs(5), "not {sessions} waiting");
        tokio::time::sleep(2 * MS).await;
    }
}

/// Returns the future's output; panics if it takes longer than `time`.
pub(crate) async fn within<T>(time: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future).await.unwrap_or_else(|_| panic!("it took longer than {time:?}"))
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, time: Duration, mut so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < time, "not within {time:?}: {what}");
        tokio::time::sleep(5 * MS).await;
    }
}
