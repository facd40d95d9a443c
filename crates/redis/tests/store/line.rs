//! The line of the waiters at the nodes of a quorum: which one a release names, and that nothing depends on it.

use crate::fixture::{LONG, ask, claim, eventually, job, session};
use futures_util::StreamExt;
use leasehold_core::{Acquired, Claim, HoldId, HoldStatus, Release, ReleaseAction, Released, SessionId};
use leasehold_redis::{QuorumConfig, RedisStore};
use leasehold_store::{Op, Outcome, QuorumStore, Reply, Store, Subscription};
use leasehold_testkit::{Quorum, RedisServer};

const LINE: &str = "leasehold:{job}:line:mutex:job";
const CHANNEL: &str = "leasehold:{job}:release:job";

async fn connect(quorum: &Quorum) -> QuorumStore {
    let url = format!("{}?min_uptime=0s&node_timeout=10s", quorum.url());
    RedisStore::connect_quorum(QuorumConfig::from_url(&url).unwrap()).await.unwrap()
}

async fn acquire(store: &QuorumStore, claim: &Claim) -> Acquired {
    match store.execute(&job(), &Op::Acquire(ask(claim, None)), LONG).await {
        Outcome::Done(Reply::Acquire(acquired)) => acquired,
        other => panic!("{other:?}"),
    }
}

async fn granted(store: &QuorumStore, claim: &Claim) {
    let acquired = acquire(store, claim).await;
    assert!(matches!(acquired, Acquired::Granted { .. }), "{acquired:?}");
}

async fn release(store: &QuorumStore, claim: &Claim) -> Released {
    let release = Release { claim: claim.clone(), action: ReleaseAction::Grant, next: None, history: 0 };
    match store.execute(&job(), &Op::Release(release), LONG).await {
        Outcome::Done(Reply::Release(released)) => {
            store.flush().await;
            released
        }
        other => panic!("{other:?}"),
    }
}

async fn lost(store: &QuorumStore, claim: &Claim) {
    let acquired = acquire(store, claim).await;
    assert!(matches!(acquired, Acquired::Taken { .. }), "{acquired:?}");
}

/// Fails to acquire the lock, and waits for it from then on.
async fn wait(store: &QuorumStore, claim: &Claim) -> Subscription {
    lost(store, claim).await;
    store.subscribe(&job(), LONG).await.unwrap().unwrap()
}

/// A further hold of the same session.
fn another(n: u8, bits: u8) -> Claim {
    Claim::new(HoldId::from_random(session(n), [bits; 16]))
}

/// The sessions in the line at a node.
fn line(server: &RedisServer) -> Vec<SessionId> {
    let line = server.cli(&["GET", LINE]).unwrap();
    let entries = line.text().unwrap_or_default().lines().filter(|entry| !entry.is_empty());
    entries.map(|entry| entry.split(' ').next().unwrap().parse().unwrap()).collect()
}

async fn has_line(quorum: &Quorum, sessions: &[SessionId]) {
    eventually(|| quorum.iter().all(|server| line(server) == sessions)).await;
}

#[tokio::test]
async fn a_release_names_the_client_that_has_waited_longest() {
    let quorum = Quorum::start(3).unwrap();
    let [first, second, third] = [connect(&quorum).await, connect(&quorum).await, connect(&quorum).await];
    let node = redis::Client::open(quorum.iter().next().unwrap().url()).unwrap();
    let mut messages = node.get_async_pubsub().await.unwrap();
    messages.subscribe(CHANNEL).await.unwrap();
    let mut messages = messages.into_on_message();
    let mut message = async move || messages.next().await.unwrap().get_payload::<String>().unwrap();

    granted(&first, &claim(1)).await;
    assert_eq!(release(&first, &claim(1)).await.next_waiter, None);
    assert_eq!(message().await, "free");

    granted(&first, &claim(11)).await;
    let mut waits = wait(&second, &claim(2)).await;
    has_line(&quorum, &[session(2)]).await;
    let waits_too = wait(&third, &claim(3)).await;
    has_line(&quorum, &[session(2), session(3)]).await;
    for server in quorum.iter() {
        let ttl_ms = server.cli(&["PTTL", LINE]).unwrap().integer().unwrap();
        assert!((1..=2_000).contains(&ttl_ms), "{ttl_ms}");
    }

    let released = release(&first, &claim(11)).await;
    assert_eq!((released.status, released.next_waiter), (HoldStatus::Held, Some(session(2))));
    assert_eq!(message().await, format!("free {}", session(2)));
    // The client that was named attempts, and fails: it waits longer than the third, and joins before it again.
    waits.notified().await;
    granted(&first, &claim(12)).await;
    lost(&second, &another(2, 22)).await;
    has_line(&quorum, &[session(2), session(3)]).await;

    assert_eq!(release(&first, &claim(12)).await.next_waiter, Some(session(2)));
    drop((waits, waits_too));
    granted(&second, &another(2, 23)).await;
    assert_eq!(release(&second, &another(2, 23)).await.next_waiter, Some(session(3)));
    eventually(|| quorum.iter().all(|server| line(server).is_empty())).await;
}

/// The lock works with a key of another type in place of the line, and without memory for it.
#[tokio::test]
async fn a_line_that_cannot_be_kept_is_done_without() {
    let quorum = Quorum::start(3).unwrap();
    let [first, second] = [connect(&quorum).await, connect(&quorum).await];
    for (at, spoil) in [&["LPUSH", LINE, "x"][..], &["CONFIG", "SET", "maxmemory", "1"]].iter().enumerate() {
        let n = u8::try_from(at * 10).unwrap();
        granted(&first, &claim(n + 1)).await;
        for server in quorum.iter() {
            server.cli(spoil).unwrap();
        }
        let mut waits = wait(&second, &claim(n + 2)).await;
        let released = release(&first, &claim(n + 1)).await;
        assert_eq!((released.status, released.next_waiter), (HoldStatus::Held, None));
        tokio::time::timeout(LONG, waits.notified()).await.expect("the release is published all the same");
        drop(waits);
        second.flush().await;
        for server in quorum.iter() {
            server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
            server.cli(&["DEL", LINE]).unwrap();
        }
    }
}

/// Sets the line at each node to the first entries of these sessions, in the form of the script, without an expiry.
fn set_line(quorum: &Quorum, sessions: &[SessionId]) {
    let entry = |session| format!("{session} {:013}\n", 1);
    let line = sessions.iter().map(entry).collect::<Vec<_>>().concat();
    for server in quorum.iter() {
        server.cli(&["SET", LINE, &line]).unwrap();
    }
}

/// How often each node was asked to add a session to the line, at least.
fn attempts(quorum: &Quorum) -> u64 {
    let of_lines = |server: &RedisServer| server.command_counts().unwrap().get("get").copied().unwrap_or(0);
    quorum.iter().map(of_lines).min().unwrap()
}

#[tokio::test]
async fn a_line_has_a_bounded_length() {
    const MOST: usize = 128;
    let quorum = Quorum::start(3).unwrap();
    let [first, second, third] = [connect(&quorum).await, connect(&quorum).await, connect(&quorum).await];
    let others: Vec<_> = (0..u8::try_from(MOST).unwrap()).map(|n| session(100 + n)).collect();
    granted(&first, &claim(1)).await;

    // The last place, also after a pause in which the node has dropped the line.
    let waits = wait(&second, &claim(2)).await;
    let before_it = &others[1..];
    eventually(|| {
        if quorum.iter().any(|server| line(server).len() < before_it.len()) {
            set_line(&quorum, before_it);
        }
        quorum.iter().all(|server| line(server).len() == MOST && line(server).last() == Some(&session(2)))
    })
    .await;
    drop(waits);

    // None is left: the line is not even prolonged.
    set_line(&quorum, &others);
    let _waits = wait(&third, &claim(3)).await;
    let before = attempts(&quorum);
    eventually(|| attempts(&quorum) >= before + 2).await;
    assert!(quorum.iter().all(|server| line(server) == others), "it has tried to join twice by now");
    for server in quorum.iter() {
        assert_eq!(server.cli(&["PTTL", LINE]).unwrap().integer(), Some(-1));
    }
    assert_eq!(release(&first, &claim(1)).await.next_waiter, Some(others[0]));
}
