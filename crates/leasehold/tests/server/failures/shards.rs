//! Independent servers (shards): a failure of one affects its own locks only.

use super::fixture::{MS, S, until, within};
use leasehold::error::{AcquireError, ConnectError};
use leasehold::store::{Finding, FindingKind, RedisConfig, RedisStore};
use leasehold::{Client, LostReason, Mutex};
use leasehold_core::Lock;
use leasehold_testkit::RedisServer;
use std::time::Duration;

fn url(servers: &[RedisServer]) -> String {
    let addresses: Vec<_> = servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
    format!("redis+shard://{}", addresses.join(","))
}

fn boot() -> Vec<RedisServer> {
    (0..3).map(|_| RedisServer::start().expect("redis-server boots")).collect()
}

/// A lock name on each of the servers, in their order.
async fn names(servers: &[RedisServer]) -> Vec<String> {
    let configs = RedisConfig::shards_from_url(&url(servers)).expect("a good URL");
    let shards = RedisStore::connect_shards(configs).await.expect("they run");
    let name = |server: &RedisServer| {
        let port = format!(":{}", server.port());
        let mut names = (0..1000).map(|n| format!("m{n}"));
        let lies_there = |name: &String| {
            shards.shard_of(&Lock::mutex(name.parse().expect("a good name"))).ends_with(&port)
        };
        names.find(lies_there).expect("there is always another name")
    };
    servers.iter().map(name).collect()
}

fn mutex(client: &Client, name: &str) -> Mutex {
    client.mutex(name).expect("a good name")
}

/// A suspended server affects the locks that it stores, and no hold, waiter or request on the other servers. When it
/// resumes, its waiters acquire.
#[tokio::test]
async fn a_suspended_shard_affects_its_own_locks_only() {
    let servers = boot();
    let names = names(&servers).await;
    let builder =
        || Client::builder(url(&servers)).session_ttl(S).call_timeout(300 * MS).watchdog_lease(3 * S);
    let (ours, theirs) =
        (builder().connect().await.expect("they run"), builder().connect().await.expect("they run"));
    let mut held = Vec::new();
    for name in &names {
        held.push(mutex(&ours, name).acquire().await.expect("acquired"));
    }
    let waits = {
        let waiter = mutex(&theirs, &names[1]);
        tokio::spawn(async move { waiter.acquire().await })
    };
    until("a client waits", 5 * S, async || {
        mutex(&ours, &names[1]).inspect().await.expect("an answer").waiting == 1
    })
    .await;
    servers[0].stop().expect("stopped");
    let lost = within(10 * S, held[0].lost()).await;
    assert!(matches!(lost.reason, LostReason::SessionLapsed | LostReason::Expired), "{lost}");
    assert!(matches!(
        mutex(&theirs, &names[0]).acquire_timeout(S).await,
        Err(AcquireError::Store(_) | AcquireError::Unknown(_))
    ));
    // Several times the lifetime of a session without heartbeats.
    for _ in 0..20 {
        tokio::time::sleep(150 * MS).await;
        held[1].check().expect("held");
        held[2].check().expect("held");
        mutex(&theirs, &format!("{{{}}}/beside", names[2]))
            .acquire()
            .await
            .expect("acquired")
            .release()
            .await
            .expect("released");
    }
    held.remove(1).release().await.expect("released");
    within(5 * S, waits)
        .await
        .expect("the wait ends")
        .expect("the waiter is next")
        .release()
        .await
        .expect("released");
    servers[0].resume().expect("it goes on");
    let again = within(20 * S, async {
        loop {
            if let Ok(guard) = mutex(&theirs, &names[0]).acquire().await {
                return guard;
            }
        }
    })
    .await;
    again.release().await.expect("released");
}

/// A client that connects while a server is down can use the locks of the others; `diagnose` reports the server.
/// Connecting fails if no server replies, or if one rejects the credentials.
#[tokio::test]
async fn a_client_that_connects_while_a_shard_is_down_gets_the_locks_of_the_others() {
    let mut servers = boot();
    let (names, url) = (names(&servers).await, url(&servers));
    servers[0].kill().expect("killed");
    let builder = || Client::builder(&url).call_timeout(500 * MS);
    let client = builder().connect().await.expect("two servers run");
    for name in &names[1..] {
        mutex(&client, name).acquire().await.expect("acquired").release().await.expect("released");
    }
    let first = mutex(&client, &names[0]);
    assert!(first.acquire_timeout(Duration::from_secs(1)).await.is_err());
    let found = builder().diagnose().await.expect("two servers reply");
    let silent: Vec<_> = found
        .iter()
        .filter(|found| matches!(found.findings[..], [Finding { kind: FindingKind::Unreachable(_), .. }, ..]))
        .map(|found| found.node.clone())
        .collect();
    assert_eq!((found.len(), silent), (3, vec![format!("127.0.0.1:{}", servers[0].port())]));
    servers[0].restart().expect("it boots again");
    within(20 * S, async { while first.acquire().await.is_err() {} }).await;
    for server in &mut servers {
        server.kill().expect("killed");
    }
    assert!(matches!(builder().connect().await, Err(ConnectError::Store(fault)) if fault.is_transient()));
    let guarded = RedisServer::builder().password("secret").start().expect("redis-server boots");
    let open = RedisServer::start().expect("redis-server boots");
    let both = [guarded, open];
    let both = Client::builder(self::url(&both)).connect().await;
    assert!(matches!(both, Err(ConnectError::Store(fault)) if !fault.is_transient()));
}

/// Several locks are held together even if different servers store them.
#[tokio::test]
async fn a_multi_mutex_over_several_shards_is_held_as_one() {
    let servers = boot();
    let names = names(&servers).await;
    let (ours, theirs) = (Client::connect(&url(&servers)).await, Client::connect(&url(&servers)).await);
    let (ours, theirs) = (ours.expect("the servers run"), theirs.expect("the servers run"));
    let all = ours.multi_mutex(names.iter().map(String::as_str)).expect("good names");
    let taken = mutex(&theirs, &names[1]).acquire().await.expect("acquired");
    assert!(all.acquire_timeout(300 * MS).await.is_err());
    for at in [0, 2] {
        let guard = within(5 * S, mutex(&theirs, &names[at]).acquire()).await.expect("no hold is left");
        guard.release().await.expect("released");
    }
    taken.release().await.expect("released");
    let guard = within(5 * S, all.acquire()).await.expect("all are free");
    for name in &names {
        assert!(mutex(&theirs, name).try_acquire().await.expect("an answer").granted().is_none(), "{name}");
    }
    guard.release().await.expect("released");
}

/// A client has one id on all servers, and one line in the list of sessions, with its holds on all of them.
#[tokio::test]
async fn a_client_is_one_session_on_all_shards() {
    let servers = boot();
    let names = names(&servers).await;
    let client = Client::connect(&url(&servers)).await.expect("the servers run");
    assert!(client.sessions().await.expect("a list").is_empty(), "nothing has been used");
    let mut held = Vec::new();
    for name in &names {
        held.push(mutex(&client, name).acquire().await.expect("acquired"));
    }
    within(20 * S, async {
        loop {
            let sessions = client.sessions().await.expect("a list");
            assert!(sessions.len() <= 1, "{sessions:?}");
            if let [session] = &sessions[..] {
                assert_eq!(session.id, client.session_id());
                if session.locks.len() == names.len() {
                    return;
                }
            }
            tokio::time::sleep(100 * MS).await;
        }
    })
    .await;
    drop(held);
}
