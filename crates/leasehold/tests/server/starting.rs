//! A client whose server is down when it starts, and a client whose server goes away.

use leasehold::{Client, Error};
use leasehold_testkit::{Proxy, RedisServer};
use std::time::Duration;
use tokio::time::timeout;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// Longer than anything takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);

/// A server behind a proxy that refuses connections.
fn unreachable() -> (RedisServer, Proxy) {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    proxy.refuse_connections(true);
    (server, proxy)
}

#[tokio::test]
async fn a_lazy_client_starts_before_its_server() {
    let (_server, proxy) = unreachable();
    let client = Client::builder(proxy.url()).call_timeout(300 * MS).connect_lazy().await.unwrap();
    let mutex = client.mutex("m").unwrap();
    let error = Error::from(client.health().await.unwrap_err());
    assert!(error.is_transient() && error.fault().is_some(), "{error}");
    let error = Error::from(mutex.try_acquire().await.unwrap_err());
    assert!(error.is_transient() && !error.is_contended(), "{error}");
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.acquire_timeout(LIMIT).await }
    });
    proxy.refuse_connections(false);
    let guard = timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
    // This needs the session, which begins once the server is there.
    guard.extend_to(60 * S).await.unwrap();
    client.health().await.unwrap();
    let sessions = client.sessions().await.unwrap();
    assert!(sessions.iter().any(|session| session.id == client.session_id()), "{sessions:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lazy_client_reports_a_wrong_password_with_each_call() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let builder = Client::builder(server.url()).password("hunter2").call_timeout(300 * MS);
    assert!(!builder.clone().connect().await.unwrap_err().is_transient());
    let client = builder.connect_lazy().await.unwrap();
    let error = Error::from(client.mutex("m").unwrap().try_acquire().await.unwrap_err());
    assert!(!error.is_transient() && error.fault().is_some(), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_client_waits_for_its_server() {
    let (_server, proxy) = unreachable();
    let builder = Client::builder(proxy.url()).call_timeout(300 * MS);
    let missed = builder.clone().connect_within(100 * MS).await;
    assert!(missed.unwrap_err().is_transient());
    let refused = proxy.accepted();
    let connecting = tokio::spawn(builder.connect_within(LIMIT));
    let waits = async {
        while proxy.accepted() == refused {
            tokio::time::sleep(MS).await;
        }
    };
    timeout(LIMIT, waits).await.unwrap();
    proxy.refuse_connections(false);
    let client = timeout(LIMIT, connecting).await.unwrap().unwrap().unwrap();
    client.mutex("m").unwrap().acquire().await.unwrap().release().await.unwrap();
    // What no waiting can mend is reported at once.
    let missed = timeout(LIMIT / 2, Client::builder("memcached://h").connect_within(LIMIT)).await.unwrap();
    assert!(!missed.unwrap_err().is_transient());
}

#[tokio::test]
async fn a_lapsed_session_cancels_the_signal_of_its_client() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let client = Client::builder(proxy.url()).session_ttl(S).call_timeout(300 * MS).connect().await.unwrap();
    let guard = client.mutex("m").unwrap().acquire().await.unwrap();
    let lapsed = client.session_lost_signal();
    proxy.refuse_connections(true);
    proxy.disconnect();
    timeout(LIMIT, lapsed.cancelled()).await.unwrap();
    guard.check().unwrap_err();
    // The next session has a token of its own.
    assert!(!client.session_lost_signal().is_cancelled());
    proxy.refuse_connections(false);
    drop(guard);
    client.mutex("m").unwrap().acquire_timeout(LIMIT).await.unwrap().release().await.unwrap();
}
