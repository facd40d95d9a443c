//! Connecting, and refused connections.

use crate::fixture::{LONG, SHORT, acquire, claim, execute, granted, in_time, refused, take};
use leasehold_redis::{RedisConfig, RedisStore, UrlError};
use leasehold_store::FaultKind;
use leasehold_testkit::RedisServer;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

#[tokio::test]
async fn an_invalid_url_is_reported_with_the_reason() {
    for (url, error) in [
        ("localhost", UrlError::Scheme),
        ("http://localhost", UrlError::Scheme),
        ("redis://", UrlError::Host),
        ("redis://localhost:hunter2", UrlError::Port),
        ("redis://localhost/one", UrlError::Database),
        ("redis://localhost?hunter2=hunter2", UrlError::Setting),
        ("redis+unix://redis.sock", UrlError::SocketPath),
    ] {
        let found = url.parse::<RedisConfig>().unwrap_err();
        assert_eq!(found, error, "{url}");
        assert!(!found.to_string().contains("hunter2"), "{found}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_at_once_and_not_shown() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let config = || RedisConfig::from_url(&server.url()).unwrap();
    for config in [config(), config().password("hunter2"), config().username("unknown").password("right")] {
        let fault = RedisStore::connect(config.clone()).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
        assert!(!format!("{fault} {fault:?} {config:?}").contains("hunter2"));
        // A call does not wait for an error that is permanent.
        let started = Instant::now();
        let fault = refused(acquire(&RedisStore::lazy(config), &claim(1), None).await);
        assert_eq!(fault.kind, FaultKind::Unauthenticated);
        assert!(started.elapsed() < LONG / 2);
    }
    let store = RedisStore::connect(config().password("right")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
}

/// Failure row 46.
#[tokio::test]
async fn a_failed_login_never_continues_as_the_default_user() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap();
    for config in [config.clone().username("unknown"), config.clone().username("unknown").password("x")] {
        let fault = RedisStore::connect(config).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
    }
    server.cli(&["ACL", "SETUSER", "open", "on", "nopass", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config.username("open")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert!(server.cli(&["CLIENT", "LIST"]).unwrap().text().unwrap().contains("user=open"));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable_within_the_time() {
    let mut server = RedisServer::start().unwrap();
    let url = server.url();
    server.kill().unwrap();
    let fault = RedisStore::connect(url.parse().unwrap()).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
    assert_eq!(*fault.node, url[8..url.len() - 1]);
    let store = RedisStore::lazy(url.parse().unwrap());
    let fault = refused(in_time(execute(&store, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
    let missing = RedisStore::lazy("redis+unix:///nowhere/redis.sock".parse().unwrap());
    let fault = refused(in_time(execute(&missing, &take(&claim(1), None), SHORT)).await);
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_what_is_needed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut chunk = vec![0; 65536];
        assert!(client.read(&mut chunk).unwrap() > 0);
        client.write_all(b"%1\r\n+server\r\n+redis\r\n+OK\r\n+OK\r\n").unwrap();
        assert!(client.read(&mut chunk).unwrap() > 0);
        client.write_all(b"+OK\r\n$22\r\nredis_version:6.0.16\r\n\r\n").unwrap();
        // One reply for each other section of INFO, and for each script that is loaded.
        client.write_all(&b"+OK\r\n".repeat(18)).unwrap();
        while client.read(&mut chunk).is_ok_and(|read| read > 0) {}
    });
    let fault = RedisStore::connect(url.parse().unwrap()).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unsupported(_)), "{fault}");
    assert!(fault.to_string().contains("6.0.16") && fault.to_string().contains("6.2"), "{fault}");
    server.join().unwrap();
}

#[tokio::test]
async fn a_unix_socket_a_database_and_a_prefix() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    let url = format!("{}?db=3&prefix=app:", server.unix_url().unwrap());
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    let mut connection = server.connect().unwrap();
    assert!(connection.call(&["GET", "app:job"]).unwrap().is_nil());
    connection.call(&["SELECT", "3"]).unwrap();
    let token = connection.call(&["GET", "app:job"]).unwrap();
    assert_eq!(token.text(), Some(&*claim(1).token()));
    let record = connection.call(&["GET", "leasehold:{app:job}:record:mutex:app:job"]).unwrap();
    assert!(record.is_nil());
    let record = connection.call(&["GET", "app:leasehold:{app:job}:record:mutex:app:job"]).unwrap();
    assert!(record.text().is_some_and(|record| record.starts_with("1\n")), "{record:?}");
}

/// A connection needs a runtime with IO and timers: the store reports that they are missing, and nothing hangs.
#[test]
fn a_runtime_without_io_or_timers_is_reported() {
    let server = RedisServer::start().unwrap();
    for (io, timers) in [(false, false), (true, false), (false, true)] {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        if io {
            builder.enable_io();
        }
        if timers {
            builder.enable_time();
        }
        let config = RedisConfig::from_url(&server.url()).unwrap();
        let fault = builder.build().unwrap().block_on(RedisStore::connect(config)).unwrap_err();
        assert!(fault.to_string().contains("enable_all"), "{fault}");
    }
}
