//! What the application lends: a connection, one that reconnects by itself, or a pool.

use crate::fixture::{
    LONG, Mailbox, SHORT, acquire, acquire_of, alive, claim, connections, eventually, execute_on, found,
    granted, heartbeat, in_time, job, listed, nonce, notified, refused, release, session, take, unknown,
};
use futures_util::future::BoxFuture;
use leasehold_core::{Claim, Extend, HeartbeatReply, HoldStatus, Partition, Release, ReleaseAction};
use leasehold_redis::redis::aio::{ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};
use leasehold_redis::redis::cluster::ClusterClient;
use leasehold_redis::redis::{AsyncConnectionConfig, Pipeline, RedisError, Value};
use leasehold_redis::{LentConnection, LentError, LentPool, RedisStore};
use leasehold_store::{Executed, Fault, FaultKind, Lock, Op, Outcome, Phase, SessionOp, Store};
use leasehold_testkit::{AfterDrop, Cluster, Proxy, RedisServer, command};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;

#[tokio::test]
async fn a_users_connection_carries_messages_that_the_user_forwards() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let (sender, pushes) = tokio::sync::broadcast::channel(16);
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let store = RedisStore::from_connection(connection, "app:", Some(pushes)).unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    assert_eq!(notified(&mut inbox).await.nonce(), Some(nonce(7)));
    assert_eq!(server.cli(&["GET", "app:job"]).unwrap().text(), Some(&*claim(2).token()));
    let outcome = store.fork().execute(&job(), &take(&claim(2), None), LONG).await;
    granted(outcome);
    assert_eq!(connections(&server), 1);
}

#[tokio::test]
async fn a_users_connection_without_messages_works_by_polling() {
    let mut server = RedisServer::start().unwrap();
    let connection = connection(&server.url()).await;
    assert!(RedisStore::from_connection(connection.clone(), "{", None).is_err());
    let store = RedisStore::from_connection(connection, "", None).unwrap();
    let (_, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(2), mailbox, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    granted(acquire(&store, &claim(2), Some(nonce(8))).await);
    assert_eq!(heartbeat(&store, 1, Some("{}"), vec![job()]).await, HeartbeatReply::Alive);
    assert_eq!(listed(&store).await[0].held, [job()]);
    server.kill().unwrap();
    // It stays broken, so the error says what to do, and is not tried again.
    for _ in 0..2 {
        let fault = unknown(acquire(&store, &claim(3), None).await);
        assert_eq!((&fault.kind, fault.is_transient()), (&FaultKind::LentConnectionLost, false));
        let text = fault.to_string();
        assert!(
            text.starts_with("reply from the lent connection: connection lost, and the application has to"),
            "{text}"
        );
        assert!(fault.source().is_some());
        server.restart().unwrap();
    }
}

/// A connection without a limit of its own: 500 ms are not enough on a busy machine.
async fn connection(url: &str) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// A connection that reconnects, with short pauses.
async fn manager(url: &str) -> ConnectionManager {
    let config = ConnectionManagerConfig::new().set_max_delay(Duration::from_millis(50));
    let config = config.set_response_timeout(None).set_connection_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client.get_connection_manager_with_config(config).await.unwrap()
}

/// Stores on everything that reconnects.
async fn reconnecting(url: &str) -> [(&'static str, RedisStore); 3] {
    [
        ("manager", RedisStore::from_connection(manager(url).await, "app:", None).unwrap()),
        ("deadpool", RedisStore::from_connection(deadpool(url), "app:", None).unwrap()),
        ("bb8", RedisStore::from_connection(bb8(url).await, "app:", None).unwrap()),
    ]
}

#[tokio::test]
async fn a_lent_connection_that_reconnects_is_used_again_after_the_server_restarted() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::from_connection(manager(&server.url()).await, "app:", None).unwrap();
    assert!(!store.capabilities().notifications);
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    server.kill().unwrap();
    let fault = unknown(store.execute(&job(), &take(&claim(2), None), SHORT).await);
    assert!(matches!(fault.kind, FaultKind::Disconnected | FaultKind::TimedOut), "{fault}");
    assert!(fault.is_transient());
    server.restart().unwrap();
    // The scripts are loaded anew.
    granted(once_reconnected(&store, &claim(2)).await);
    assert_eq!(found(release(&store, &claim(2)).await), HoldStatus::Held);
}

/// A connection of another kind, which loses the replies to some calls.
struct Lossy(MultiplexedConnection, Arc<AtomicBool>);

impl LentConnection for Lossy {
    fn call_all<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Vec<Value>, LentError>> {
        Box::pin(async {
            let replies = self.0.call_all(pipeline).await?;
            if self.1.load(Ordering::Relaxed) {
                return Err(RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe)).into());
            }
            Ok(replies)
        })
    }
}

#[tokio::test]
async fn a_lost_reply_of_a_lent_connection_is_unknown_and_ends_nothing() {
    let server = RedisServer::start().unwrap();
    let conn = connection(&server.url()).await;
    let loses = Arc::new(AtomicBool::new(false));
    let store = RedisStore::from_connection(Lossy(conn, Arc::clone(&loses)), "app:", None).unwrap();
    many_at_once(&server, &store, 10).await;
    loses.store(true, Ordering::Relaxed);
    let names: Vec<_> = (1..=16).map(|n| format!("lost/{n}")).collect();
    let lost = names.iter().map(|name| execute_on(&store, name, take(&claim(3), None), LONG));
    for outcome in futures_util::future::join_all(lost).await {
        assert_eq!(unknown(outcome).kind, FaultKind::Disconnected);
    }
    assert_eq!(server.cli(&["EXISTS", "app:lost/1", "app:lost/16"]).unwrap().integer(), Some(2));
    // Operations share calls as before.
    loses.store(false, Ordering::Relaxed);
    server.reset_counts().unwrap();
    many_at_once(&server, &store, 40).await;
    let calls = server.command_counts().unwrap()["evalsha"];
    assert!(calls < 16, "{calls} calls for 32 operations");
}

/// Many locks at once, whose operations also share calls.
async fn many_at_once(server: &RedisServer, store: &RedisStore, first: u8) {
    let names: Vec<_> = (first..first + 16).map(|n| (n, format!("job/{n}"))).collect();
    // The pools' connections have a limit of 500 ms.
    let within_limit = async |name: &str, op: Op| loop {
        match execute_on(store, name, op.clone(), LONG).await {
            Outcome::Failed(_, fault) if fault.kind == FaultKind::TimedOut => {}
            outcome => return outcome,
        }
    };
    let taken = names.iter().map(|(n, name)| within_limit(name, take(&claim(*n), None)));
    futures_util::future::join_all(taken).await.into_iter().for_each(granted);
    let give_up =
        |n| Op::Release(Release { claim: claim(n), action: ReleaseAction::Grant, next: None, history: 0 });
    let released = names.iter().map(|(n, name)| within_limit(name, give_up(*n)));
    for outcome in futures_util::future::join_all(released).await {
        // Nothing is lost. A release that is sent again finds that it was executed.
        found(outcome);
    }
    assert!(connections(server) <= 2, "{}", connections(server));
}

fn deadpool(url: &str) -> impl LentConnection + use<> {
    let config = deadpool_redis::Config::from_url(url);
    let pool = config.builder().unwrap().max_size(2).runtime(deadpool_redis::Runtime::Tokio1).build();
    let pool = pool.unwrap();
    LentPool::new(move || {
        let pool = pool.clone();
        async move { pool.get().await }
    })
}

async fn bb8(url: &str) -> impl LentConnection + use<> {
    let manager = bb8_redis::RedisConnectionManager::new(url).unwrap();
    let pool = bb8_redis::bb8::Pool::builder().max_size(2).build(manager).await.unwrap();
    LentPool::new(move || {
        let pool = pool.clone();
        async move { pool.get_owned().await }
    })
}

#[tokio::test]
async fn a_pool_of_deadpool_carries_many_locks() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::from_connection(deadpool(&server.url()), "app:", None).unwrap();
    many_at_once(&server, &store, 10).await;
    server.kill().unwrap();
    let Outcome::Failed(_, fault) = acquire(&store, &claim(1), None).await else { panic!("no server") };
    assert!(fault.is_transient(), "{fault}");
    server.restart().unwrap();
    granted(acquire(&store, &claim(2), None).await);
}

#[tokio::test]
async fn a_pool_of_bb8_carries_many_locks() {
    let mut server = RedisServer::start().unwrap();
    let store = RedisStore::from_connection(bb8(&server.url()).await, "app:", None).unwrap();
    many_at_once(&server, &store, 10).await;
    server.kill().unwrap();
    let outcome = store.execute(&job(), &take(&claim(1), None), SHORT).await;
    let Outcome::Failed(_, fault) = outcome else { panic!("no server") };
    assert!(fault.is_transient(), "{fault}");
    server.restart().unwrap();
    granted(acquire(&store, &claim(2), None).await);
}

#[tokio::test]
async fn a_pool_without_a_free_connection_has_sent_nothing() {
    let lent = LentPool::new(|| async {
        Err::<Box<MultiplexedConnection>, _>(io::Error::other("all connections are in use"))
    });
    let store = RedisStore::from_connection(lent, "", None).unwrap();
    let fault = refused(acquire(&store, &claim(1), None).await);
    assert_eq!((&fault.kind, fault.phase), (&FaultKind::Unreachable, Phase::Connect));
    assert!(fault.is_transient());
    assert_eq!(fault.source().unwrap().to_string(), "all connections are in use");
    // Those that share a call as well.
    let names = ["a", "b", "c"].map(|name| async {
        let outcome = acquire_of(&store, name, &claim(1)).await;
        refused(outcome)
    });
    futures_util::future::join_all(names).await;
}

/// A call that timed out leaves its connection usable: the pool lends it to the next one.
#[tokio::test]
async fn a_late_reply_on_a_pooled_connection_goes_to_no_other_call() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::from_connection(deadpool(&server.url()), "", None).unwrap();
    granted(once_reconnected(&store, &claim(1)).await);
    server.stop().unwrap();
    let late = store.execute(&Lock::mutex("late".parse().unwrap()), &take(&claim(2), None), SHORT).await;
    assert_eq!(unknown(late).kind, FaultKind::TimedOut);
    server.resume().unwrap();
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    granted(once_reconnected(&store, &claim(3)).await);
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(3).token()));
}

/// A connection that a pool makes for the keeper lives as long as the application's runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_run_in_the_runtime_in_which_the_connection_was_lent() {
    let server = RedisServer::start().unwrap();
    let conn = connection(&server.url()).await;
    let used = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&used);
    let lent = LentPool::new(move || {
        seen.lock().unwrap().push(Handle::current().id());
        let conn = conn.clone();
        async move { Ok::<_, io::Error>(Box::new(conn)) }
    });
    let store = RedisStore::from_connection(lent, "", None).unwrap();
    let client = leasehold::Client::with_store(store).connect().await.unwrap();
    let guard = client.mutex("job").unwrap().acquire().await.unwrap();
    // The first lease is of 3 s at most, so the keeper has extended it.
    let remaining = || server.cli(&["PTTL", "job"]).unwrap().integer().unwrap();
    eventually(|| remaining() > 5_000).await;
    guard.release().await.unwrap();
    client.shutdown(LONG).await.unwrap();
    let here = Handle::current().id();
    assert!(used.lock().unwrap().iter().all(|runtime| *runtime == here));
}

/// The server executes a call, and the connection breaks before the reply: by another connection the same operation is
/// found done.
#[tokio::test]
async fn a_connection_that_is_made_anew_between_call_and_reply_leaves_the_outcome_unknown() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::to_server(&server).unwrap();
    let url = format!("{}1?protocol=resp3", proxy.url());
    for (n, (name, store)) in (1..).zip(reconnecting(&url).await) {
        // Loads the script.
        granted(once_reconnected(&store, &claim(n + 20)).await);
        assert_eq!(found(release(&store, &claim(n + 20)).await), HoldStatus::Held);
        proxy.reset_counts();
        proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
        let fault = unknown(acquire(&store, &claim(n), None).await);
        assert_eq!((&fault.kind, fault.is_transient()), (&FaultKind::Disconnected, true), "{name}: {fault}");
        assert_eq!(proxy.count("EVALSHA"), 1, "{name}");
        let held = |key| {
            let mut conn = server.connect().unwrap();
            conn.call(&["SELECT", "1"]).unwrap();
            conn.call(&["GET", key]).unwrap().text().map(str::to_owned)
        };
        assert_eq!(held("app:job").as_deref(), Some(&*claim(n).token()), "{name}");
        // It is the same acquisition, and still in the database of the URL.
        granted(once_reconnected(&store, &claim(n)).await);
        proxy.drop_replies(1, AfterDrop::Disconnect, command("EVALSHA"));
        unknown(release(&store, &claim(n)).await);
        assert_eq!(held("app:job"), None, "{name}");
        granted(once_reconnected(&store, &claim(n + 10)).await);
        assert_eq!(found(release(&store, &claim(n + 10)).await), HoldStatus::Held);
    }
}

/// Acquires. The first calls may still meet the old connection, and the pools' connections have a limit of 500 ms.
async fn once_reconnected(store: &RedisStore, claim: &Claim) -> Outcome {
    let mut outcome = acquire(store, claim, None).await;
    for _ in 0..500 {
        let Outcome::Failed(_, fault) = &outcome else { break };
        assert!(fault.is_transient(), "{fault}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcome = acquire(store, claim, None).await;
    }
    outcome
}

/// The pool gives no connection in the time of a call, so nothing is sent: neither now nor later.
#[tokio::test]
async fn what_waits_for_a_pool_that_ran_dry_is_not_sent_after_its_time() {
    let server = RedisServer::start().unwrap();
    let config = deadpool_redis::Config::from_url(server.url());
    let pool =
        config.builder().unwrap().max_size(1).runtime(deadpool_redis::Runtime::Tokio1).build().unwrap();
    let lends = pool.clone();
    let lent = LentPool::new(move || {
        let pool = lends.clone();
        async move { pool.get().await }
    });
    let store = RedisStore::from_connection(lent, "", None).unwrap();
    let in_use = pool.get().await.unwrap();
    let names: Vec<_> = (0..8).map(|n| format!("dry/{n}")).collect();
    let dry = names.iter().map(|name| execute_on(&store, name, take(&claim(1), None), SHORT));
    for outcome in in_time(futures_util::future::join_all(dry)).await {
        assert_eq!(unknown(outcome).kind, FaultKind::TimedOut);
    }
    drop(in_use);
    granted(acquire(&store, &claim(2), None).await);
    assert_eq!(found(release(&store, &claim(2)).await), HoldStatus::Held);
    let left = server.cli(&["KEYS", "dry/*"]).unwrap();
    assert_eq!(left.elements().len(), 0, "{left:?}");
    // A closed pool has sent nothing, either.
    pool.close();
    let fault = refused(acquire(&store, &claim(3), None).await);
    assert_eq!(fault.kind, FaultKind::Unreachable);
}

/// Its replies say only that a command was queued.
#[tokio::test]
async fn a_connection_that_is_lent_inside_a_transaction_leaves_the_outcome_unknown() {
    let server = RedisServer::start().unwrap();
    let conn = connection(&server.url()).await;
    let mut own = conn.clone();
    let store = RedisStore::from_connection(conn, "", None).unwrap();
    granted(acquire(&store, &claim(1), None).await);
    assert_eq!(heartbeat(&store, 1, Some("{}"), vec![]).await, HeartbeatReply::Alive);
    redis::cmd("MULTI").exec_async(&mut own).await.unwrap();
    unknown(acquire(&store, &claim(1), None).await);
    unknown(release(&store, &claim(1)).await);
    let second = claim(2);
    let many = ["a", "b", "c", "d"].map(|name| acquire_of(&store, name, &second));
    futures_util::future::join_all(many).await.into_iter().for_each(|outcome| drop(unknown(outcome)));
    for op in [SessionOp::Heartbeat(alive(1)), SessionOp::End(session(1)), SessionOp::List] {
        let outcome = store.execute_session(Partition::ONLY, &op, LONG).await;
        assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{op:?}: {outcome:?}");
    }
    let extend = Extend { claim: claim(1), lease_ms: 30_000, keep_record: false, reserve: None, fence: None };
    for outcome in
        store.execute_all(&[(job(), Op::Extend(extend.clone())), (job(), Op::Extend(extend))], LONG).await
    {
        unknown(outcome);
    }
    redis::cmd("DISCARD").exec_async(&mut own).await.unwrap();
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
}

/// The password changed, and what is lent has the old one.
#[tokio::test]
async fn a_login_that_is_rejected_when_a_lent_connection_is_made_anew_is_reported_as_such() {
    for protocol in ["resp2", "resp3"] {
        let server = RedisServer::start().unwrap();
        server.cli(&["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"]).unwrap();
        let url = format!("redis://app:old@127.0.0.1:{}/?protocol={protocol}", server.port());
        let conn = manager(&url).await;
        let lent: [(_, RedisStore); 2] = [
            ("manager", RedisStore::from_connection(conn, "app:", None).unwrap()),
            ("deadpool", RedisStore::from_connection(deadpool(&url), "app:", None).unwrap()),
        ];
        for (_, store) in &lent {
            granted(once_reconnected(store, &claim(1)).await);
        }
        server.cli(&["ACL", "SETUSER", "app", "resetpass", ">new"]).unwrap();
        server.cli(&["CLIENT", "KILL", "USER", "app"]).unwrap();
        for (name, store) in &lent {
            let mut last = None;
            for _ in 0..500 {
                let Outcome::Failed(_, fault) = acquire(store, &claim(1), None).await else {
                    panic!("{name}")
                };
                if last.replace(fault).is_some_and(|fault| fault.kind == FaultKind::Unauthenticated) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let fault = last.unwrap();
            assert_eq!(fault.kind, FaultKind::Unauthenticated, "{name}, {protocol}: {fault}");
            assert!(
                !fault.to_string().contains("old") && !format!("{fault:?}").contains(":old@"),
                "{fault:?}"
            );
        }
        server.cli(&["ACL", "SETUSER", "app", ">old"]).unwrap();
        granted(acquire(&lent[1].1, &claim(1), None).await);
    }
}

/// Its calls fail, and none of them waits for a runtime that does nothing more.
#[test]
fn calls_fail_when_the_runtime_in_which_the_connection_was_lent_has_ended() {
    let server = RedisServer::start().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (ended, here) = (runtime(), runtime());
    let store =
        ended.block_on(async { RedisStore::from_connection(deadpool(&server.url()), "", None).unwrap() });
    here.block_on(async { granted(acquire(&store, &claim(1), None).await) });
    drop(ended);
    let fault = here.block_on(async { unknown(acquire(&store, &claim(2), None).await) });
    assert_eq!(fault.kind, FaultKind::Disconnected);
}

/// The client leaves nothing behind on a connection that goes on being used.
#[tokio::test]
async fn a_lent_connection_is_as_before_when_its_client_has_ended() {
    let server = RedisServer::start().unwrap();
    let redis = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let (sender, _) = tokio::sync::broadcast::channel(16);
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_push_sender(sender.clone());
    let mut own = redis.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    own.subscribe("own").await.unwrap();
    let channels = || server.cli(&["PUBSUB", "CHANNELS"]).unwrap().elements().len();
    for is_shut_down in [true, false] {
        let store = RedisStore::from_connection(own.clone(), "", Some(sender.subscribe())).unwrap();
        let client = leasehold::Client::with_store(store).connect().await.unwrap();
        let guard = client.mutex("job").unwrap().acquire().await.unwrap();
        eventually(|| channels() == 2).await;
        guard.release().await.unwrap();
        if is_shut_down {
            client.shutdown(LONG).await.unwrap();
        } else {
            drop(client);
        }
        eventually(|| channels() == 1).await;
        let pong: String = redis::cmd("PING").query_async(&mut own).await.unwrap();
        assert_eq!(pong, "PONG");
    }
    assert_eq!(connections(&server), 1);
}

#[tokio::test]
async fn a_lent_connection_to_a_cluster_is_refused() {
    let cluster = Cluster::start(3, 0).unwrap();
    let urls: Vec<_> = (0..3).map(|node| cluster.node(node).url()).collect();
    let conn = ClusterClient::new(urls).unwrap().get_async_connection().await.unwrap();
    let lent = LentPool::new(move || {
        let conn = conn.clone();
        async move { Ok::<_, io::Error>(Box::new(conn)) }
    });
    let client = redis::Client::open(cluster.node(0).url()).unwrap();
    let single = client.get_multiplexed_async_connection().await.unwrap();
    for store in [
        RedisStore::from_connection(lent, "", None).unwrap(),
        RedisStore::from_connection(single, "", None).unwrap(),
    ] {
        for name in ["a", "b", "c", "d"] {
            refuses_a_cluster(&refused(acquire_of(&store, name, &claim(1)).await));
        }
        let client = leasehold::Client::with_store(store).connect_lazy().await.unwrap();
        let errors: [leasehold::Error; 7] = [
            client.mutex("e").unwrap().try_acquire().await.unwrap_err().into(),
            client.reentrant_mutex("e").unwrap().try_acquire().await.unwrap_err().into(),
            client.semaphore("e", 2).unwrap().try_acquire().await.unwrap_err().into(),
            client.rwlock("e").unwrap().try_read().await.unwrap_err().into(),
            client.rwlock("e").unwrap().try_write().await.unwrap_err().into(),
            client.latch("e", 2).unwrap().arrive().await.unwrap_err().into(),
            client.multi_mutex(["{e}1", "{e}2"]).unwrap().try_acquire().await.unwrap_err().into(),
        ];
        for error in errors {
            assert!(error.to_string().contains("redis+cluster://"), "{error}");
        }
    }
}

#[track_caller]
fn refuses_a_cluster(fault: &Fault) {
    assert!(
        matches!(&fault.kind, FaultKind::Unsupported(text) if text.contains("redis+cluster://")),
        "{fault}"
    );
}
