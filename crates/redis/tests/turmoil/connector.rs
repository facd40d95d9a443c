//! The use of [`RedisConfig::connector`] as documented, with a server at the other end of a pipe.

use crate::environment::lock;
use crate::model_server::pipe;
use leasehold::Client;
use leasehold::error::ConnectError;
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_sim::{ModelServer, ServerObservation};
use leasehold_store::FaultKind;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};

const NOW_US: u64 = 1_762_000_000_000_000;

fn config(url: &str) -> RedisConfig {
    url.parse().expect("it is a URL")
}

#[tokio::test]
async fn a_connector_opens_both_connections_and_they_end_with_the_client() {
    let (open, asked_for) = (Arc::new(AtomicI64::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, note) = (Arc::clone(&open), Arc::clone(&asked_for));
    let observer = move |seen: ServerObservation<'_>| match seen {
        ServerObservation::Connected(_) => _ = count.fetch_add(1, Ordering::Relaxed),
        ServerObservation::Ended(_) => _ = count.fetch_sub(1, Ordering::Relaxed),
        _ => {}
    };
    let server = ModelServer::with(|| NOW_US, observer, None);
    let opener = server.clone();
    let config = config("redis://locks.internal:7000").connector(move |address| {
        lock(&note).push(address);
        pipe(opener.clone())
    });
    let store = RedisStore::connect(config).await.expect("the server answers");
    let client = Client::with_store(store).connect().await.expect("the server answers");
    drop(client.mutex("job").expect("it is a name").acquire().await.expect("it is free"));
    // The keeper releases it, over its own connection.
    client.flush().await;
    assert!(server.locks(NOW_US).iter().all(|(_, lock)| lock.holder.is_none()));
    assert_eq!(*lock(&asked_for), ["locks.internal:7000"; 2]);

    assert_eq!(open.load(Ordering::Relaxed), 2);
    drop(client);
    let ended = async {
        while open.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("both connections end");
}

#[tokio::test]
async fn a_connector_that_fails_is_a_server_that_cannot_be_reached() {
    let config = config("redis://localhost").connector(|_| async {
        Err::<DuplexStream, _>(io::Error::new(io::ErrorKind::NotFound, "no such tunnel"))
    });
    let fault = RedisStore::connect(config).await.expect_err("there is no stream");
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
}

#[tokio::test]
async fn a_connector_never_carries_what_should_be_encrypted() {
    let opened = Arc::new(AtomicU64::new(0));
    let opener = Arc::clone(&opened);
    let config = config("rediss://localhost").connector(move |_| {
        opener.fetch_add(1, Ordering::Relaxed);
        async { Ok(duplex(64).0) }
    });
    let error = Client::with_store(RedisStore::lazy(config)).connect().await.expect_err("it is refused");
    let ConnectError::Store(fault) = &error else { panic!("{error}") };
    assert!(matches!(fault.kind, FaultKind::Unusable(_)), "{fault}");
    assert!(error.to_string().contains("brings its own TLS"), "{error}");
    assert_eq!(opened.load(Ordering::Relaxed), 0);
}
