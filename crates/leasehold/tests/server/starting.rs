//! A client whose server is down when it starts, and a client whose server goes away.

use leasehold::error::ConnectError;
use leasehold::store::{Credentials, MemoryStore};
use leasehold::{Client, ClientBuilder, Error};
use leasehold_testkit::{Proxy, RedisServer};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
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

#[tokio::test]
async fn a_provider_of_credentials_is_refused_where_it_cannot_be_asked() {
    let with_provider = |builder: ClientBuilder| {
        builder.credentials(|| async { Ok::<_, Infallible>(Credentials::new("hunter2")) })
    };
    let store = MemoryStore::named("a store of its own");
    for (builder, expected) in [
        (Client::builder("memory:"), "`memory:` takes no provider of credentials"),
        (Client::builder("redis://127.0.0.1:1").password("hunter2"), "leave out one of them"),
        (Client::builder("redis://:hunter2@127.0.0.1:1"), "leave out one of them"),
        (Client::builder("redlock://:hunter2@a,b,c"), "leave out one of them"),
        (Client::with_store(store), "a store has a connection of its own"),
    ] {
        let builder = with_provider(builder);
        assert!(!format!("{builder:?}").contains("hunter2"));
        for result in [builder.clone().connect().await, builder.connect_lazy().await] {
            let error = result.unwrap_err();
            assert!(matches!(error, ConnectError::Setting(_)), "{error:?}");
            assert!(
                error.to_string().contains(expected) && !error.to_string().contains("hunter2"),
                "{error}"
            );
        }
    }
}

/// Neither the shutdown nor the end of the runtime waits for it.
#[test]
fn a_provider_that_does_not_answer_delays_no_shutdown() {
    let server = RedisServer::start().unwrap();
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let provider = move || {
        let hangs = is_hanging.load(Ordering::SeqCst);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(Credentials::new("any"))
        }
    };
    server.cli(&["ACL", "SETUSER", "locks", "on", ">any", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let builder = Client::builder(server.url()).username("locks").credentials(provider);
        let client = builder.credentials_timeout(10 * LIMIT).session_ttl(2 * S).connect().await.unwrap();
        let guard = client.mutex("m").unwrap().acquire().await.unwrap();
        hangs.store(true, Ordering::SeqCst);
        server.cli(&["CLIENT", "KILL", "USER", "locks"]).unwrap();
        // Its session ends without heartbeats.
        timeout(LIMIT, guard.lost()).await.unwrap();
        assert!(client.mutex("n").unwrap().try_acquire().await.is_err());
        let _ = client.shutdown(S / 2).await;
    });
    drop(runtime);
    assert!(start.elapsed() < 2 * LIMIT, "{:?}", start.elapsed());
}
