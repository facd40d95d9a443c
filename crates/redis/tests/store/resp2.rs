//! RESP2: two connections, for calls and for messages, that act as one.

use crate::fixture::{
    LONG, Mailbox, Received, SHORT, acquire, claim, eventually, execute, found, granted, in_time, nonce,
    notified, receive, refused, release, session, take,
};
use leasehold::Client;
use leasehold_core::{HoldStatus, Partition};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{FaultKind, Store};
use leasehold_testkit::{Proxy, RedisServer, Sentinels, command};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig::from_url(&server.url()).unwrap().resp2()
}

/// The number of this client's connections at the server: for calls, and for messages.
fn connections(server: &RedisServer) -> (usize, usize) {
    let clients = server.cli(&["CLIENT", "LIST"]).unwrap();
    let clients = clients.text().unwrap().lines().filter(|client| !client.contains("cmd=client|list"));
    let (messages, calls): (Vec<_>, Vec<_>) = clients.partition(|client| !client.contains(" name=leasehold"));
    (calls.len(), messages.len())
}

/// Checks that a mailbox is open: a published grant arrives.
async fn is_open(server: &RedisServer, inbox: &mut UnboundedReceiver<Received>, n: u64) {
    let channel = format!("leasehold:mailbox:{}", session(1));
    let receivers = server.cli(&["PUBLISH", &channel, &format!("grant {} 1", nonce(n))]).unwrap();
    assert_ne!(receivers.integer(), Some(0));
    assert_eq!(notified(inbox).await.nonce(), Some(nonce(n)));
}

#[tokio::test]
async fn resp2_has_calls_and_messages_on_a_connection_each() {
    let server = RedisServer::start().unwrap();
    let (holder, waiter) = (
        RedisStore::connect(config(&server)).await.unwrap(),
        RedisStore::connect(format!("{}?protocol=resp2", server.url()).parse().unwrap()).await.unwrap(),
    );
    assert_eq!(connections(&server), (2, 2));
    assert_eq!(server.command_counts().unwrap().get("hello"), None);
    let (mut inbox, mailbox) = Mailbox::open();
    waiter.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&holder, &claim(1), None).await);
    acquire(&waiter, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&holder, &claim(1)).await), HoldStatus::Held);
    assert_eq!(notified(&mut inbox).await.nonce(), Some(nonce(7)));
    waiter.close_mailbox(Partition::ONLY, session(2));
    eventually(|| server.cli(&["PUBSUB", "CHANNELS"]).unwrap().elements().is_empty()).await;
    drop((holder, waiter));
    eventually(|| connections(&server) == (0, 0)).await;
}

/// Failure row 21: whichever of the two connections breaks.
#[tokio::test]
async fn resp2_replaces_both_connections_and_reports_it() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::connect(config(&server)).await.unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    for (n, ends) in [(0, "pubsub"), (1, "normal"), (2, "pubsub"), (3, "all")] {
        if ends == "all" {
            server.restart().unwrap();
        } else {
            server.cli(&["CLIENT", "KILL", "TYPE", ends, "SKIPME", "yes"]).unwrap().ok().unwrap();
        }
        let received = receive(&mut inbox).await;
        assert!(matches!(received, Some(Received::Resubscribed)), "{received:?}");
        is_open(&server, &mut inbox, n).await;
        let mine = claim(u8::try_from(n).unwrap());
        granted(acquire(&store, &mine, None).await);
        release(&store, &mine).await;
        eventually(|| connections(&server) == (1, 1)).await;
    }
}

/// An idle subscription connection is pinged.
#[tokio::test]
async fn resp2_detects_that_messages_stopped() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let config = RedisConfig::from_url(&proxy.url()).unwrap().resp2();
    let store = RedisStore::connect(config).await.unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    let before = proxy.accepted();
    proxy.pause_requests(1, command("PING"));
    let received = receive(&mut inbox).await;
    assert!(matches!(received, Some(Received::Resubscribed)), "{received:?}");
    assert_eq!(proxy.accepted(), before + 2);
    is_open(&server, &mut inbox, 5).await;
}

/// Arriving messages are no sign of life of a call connection without replies.
#[tokio::test]
async fn resp2_gives_up_calls_that_are_not_answered_while_messages_come() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let config = RedisConfig::from_url(&proxy.url()).unwrap().resp2();
    let store = RedisStore::connect(config).await.unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    proxy.pause_requests(1, command("EVALSHA"));
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let chatter = async {
        let channel = format!("leasehold:mailbox:{}", session(1));
        let mut published = 0;
        while stopped.try_recv().is_err() {
            published += 1;
            server.cli(&["PUBLISH", &channel, &format!("grant {} 1", nonce(published))]).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let calls = async {
        let outcome = in_time(execute(&store, &take(&claim(1), None), SHORT)).await;
        assert!(
            matches!(outcome, leasehold_store::Outcome::Failed(leasehold_store::Executed::Unknown, _)),
            "{outcome:?}"
        );
        granted(acquire(&store, &claim(1), None).await);
        stop.send(()).unwrap();
    };
    tokio::join!(chatter, calls);
    while !matches!(receive(&mut inbox).await, Some(Received::Resubscribed)) {}
}

#[tokio::test]
async fn resp2_works_however_the_server_is_reached() {
    let server = RedisServer::builder().unix_socket().password("right").start().unwrap();
    let socket = server.unix_url().unwrap().parse::<RedisConfig>().unwrap();
    let port = server.port();
    let tunnel = RedisConfig::from_url("redis://elsewhere.example").unwrap();
    let tunnel = tunnel.connector(move |_| TcpStream::connect(("127.0.0.1", port)));
    for (n, config) in (1..).zip([config(&server), socket.resp2(), tunnel.resp2()]) {
        let fault = RedisStore::connect(config.clone().password("hunter2")).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
        let store = RedisStore::connect(config.password("right")).await.unwrap();
        let (mut inbox, mailbox) = Mailbox::open();
        store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
        is_open(&server, &mut inbox, 1).await;
        granted(acquire(&store, &claim(n), None).await);
        assert_eq!(found(release(&store, &claim(n)).await), HoldStatus::Held);
    }
}

/// The same for Sentinels: calls and subscriptions use two connections.
#[tokio::test]
async fn resp2_follows_a_primary_that_moves() {
    let mut sentinels = Sentinels::start(1).unwrap();
    sentinels.wait_formed().unwrap();
    let url = format!("{}?protocol=resp2", sentinels.url());
    let client = Client::connect(&url).await.unwrap();
    let mutex = client.mutex("job").unwrap();
    let before = mutex.acquire().await.unwrap();
    let fence = before.fencing_token();
    before.release().await.unwrap();
    // Every subscription that broke is open again.
    let receivers = |sentinel: &RedisServer| {
        let clients = sentinel.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
        clients.text().unwrap().lines().filter(|client| client.contains(" sub=2 ")).count()
    };
    let watched = &sentinels.sentinels()[0];
    eventually(|| receivers(watched) > 0).await;
    watched.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap().ok().unwrap();
    eventually(|| receivers(watched) > 0).await;
    let old = sentinels.primary_index().unwrap();
    sentinels.fail_over().unwrap();
    sentinels.wait_promoted(old).unwrap();
    let guard = mutex.acquire_timeout(LONG).await.unwrap();
    assert!(guard.fencing_token() > fence);
    guard.release().await.unwrap();
}

/// A server without RESP3 is reported, with the setting that helps.
#[tokio::test]
async fn resp2_is_suggested_for_a_server_without_resp3() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let proxy = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut chunk = vec![0; 65536];
        assert!(client.read(&mut chunk).unwrap() > 0);
        client.write_all(b"-NOPROTO unsupported protocol version\r\n+OK\r\n+OK\r\n").unwrap();
        while client.read(&mut chunk).is_ok_and(|read| read > 0) {}
    });
    let fault = RedisStore::connect(url.parse().unwrap()).await.unwrap_err();
    assert!(fault.to_string().contains("`?protocol=resp2`"), "{fault}");
    proxy.join().unwrap();
    let server = RedisServer::builder().config("rename-command", "HELLO \"\"").start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap();
    let fault = RedisStore::connect(config.clone()).await.unwrap_err();
    assert!(matches!(&fault.kind, FaultKind::Unsupported(_)), "{fault}");
    assert!(fault.to_string().contains("`?protocol=resp2`"), "{fault}");
    let fault = refused(acquire(&RedisStore::lazy(config.clone()), &claim(1), None).await);
    assert!(matches!(&fault.kind, FaultKind::Unsupported(_)), "{fault}");
    granted(acquire(&RedisStore::connect(config.resp2()).await.unwrap(), &claim(1), None).await);
}
