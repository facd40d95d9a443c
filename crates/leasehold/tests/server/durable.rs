//! Holds that count once they are on the disk: row 56. On a server whose WAITAOF waits for `appendfsync everysec`, which is
//! Redis 8 only.

use crate::failures::fixture::{MS, S, client, mutex, until, until_free};
use leasehold::error::AcquireError;
use leasehold::store::{FaultKind, TrialKind};
use leasehold::{Attempt, Client, LockGuard};
use leasehold_testkit::{Cluster, RedisServer, RedisServerBuilder};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

fn on_a_disk(appendfsync: &str) -> RedisServerBuilder {
    RedisServer::builder().on_a_disk(appendfsync)
}

/// A client whose holds count once they are synced.
async fn durable(url: &str) -> Client {
    let joint = if url.contains('?') { '&' } else { '?' };
    Client::connect(&format!("{url}{joint}durable=1")).await.expect("the server can be reached")
}

async fn is_free(client: &Client, name: &str) -> bool {
    let attempt = client.mutex(name).expect("a name").try_acquire().await.expect("an answer");
    matches!(attempt, Attempt::Granted(_))
}

/// The power fails just after an acquire has returned. One hold was waited for and is there after the restart; the other, of a
/// client without the setting, was written and not synced, and another client gets its lock.
#[tokio::test]
async fn row_56_a_durable_hold_survives_a_power_cut() {
    let mut server = on_a_disk("everysec").start().expect("it boots");
    let (careful, hasty) = (durable(&server.url()).await, client(&server.url()).await);
    let mut was_lost = false;
    for round in 0..5 {
        let (kept, lost) = (format!("kept/{round}"), format!("lost/{round}"));
        let held = careful.mutex(&*kept).expect("a name").lease(60 * S).acquire().await.expect("acquired");
        // A sync has just ended, and the next one is a second away, unless the test is held up.
        let forgotten = hasty.mutex(&*lost).expect("a name").lease(60 * S).acquire().await.expect("acquired");
        server.cut_power().expect("killed");
        server.restart().expect("it boots");
        let other = client(&server.url()).await;
        assert!(!is_free(&other, &kept).await, "the hold was synced");
        held.check().expect("nothing was lost");
        was_lost = is_free(&other, &lost).await;
        drop(forgotten);
        if was_lost {
            break;
        }
    }
    assert!(was_lost, "a power cut loses what is not synced");
}

/// The doctor tries the command on which such holds depend.
#[tokio::test]
async fn the_diagnosis_tries_waitaof_where_holds_are_to_be_durable() {
    let server = on_a_disk("always").start().expect("it boots");
    let disk = async |url: String| {
        let found = Client::builder(url).diagnose().await.expect("the server can be reached");
        found[0].trials.iter().find(|trial| trial.kind == TrialKind::Disk).map(ToString::to_string)
    };
    assert_eq!(disk(format!("{}?durable=1", server.url())).await.as_deref(), Some("disk: passed"));
    assert_eq!(disk(server.url()).await, None);
}

/// The same for renewals and heartbeats: after the restart the hold lasts at least as long as its holder relies on it.
#[tokio::test]
async fn row_56_a_renewal_counts_once_it_is_synced() {
    let mut server = on_a_disk("everysec").start().expect("it boots");
    let client = durable(&server.url()).await;
    let lock = mutex(&client).lease(20 * S);
    let guard = lock.acquire().await.expect("acquired");
    for _ in 0..3 {
        guard.extend().await.expect("extended");
        server.cut_power().expect("killed");
        let relied_on = guard.remaining();
        assert!(relied_on > 5 * S, "{relied_on:?}");
        let cut = std::time::Instant::now();
        server.restart().expect("it boots");
        let left = server.cli(&["PTTL", "m"]).expect("a reply").integer().expect("a number");
        let left = Duration::from_millis(u64::try_from(left).expect("the hold is there"));
        assert!(left + cut.elapsed() + MS >= relied_on, "{left:?} of {relied_on:?}");
        guard.check().expect("held");
    }
    guard.release().await.expect("released");
}

/// Each sync takes up to a second, and those that arrive meanwhile share the next one: no first lease runs out.
#[tokio::test]
async fn row_56_many_holds_share_a_sync() {
    let server = on_a_disk("everysec").start().expect("it boots");
    let client = durable(&server.url()).await;
    server.reset_counts().expect("reset");
    let mut tasks = JoinSet::new();
    for task in 0..40_u32 {
        let lock = client.mutex(format!("m/{task}")).expect("a name");
        tasks.spawn(async move {
            sleep(task * 25 * MS).await;
            lock.acquire().await.expect("acquired")
        });
    }
    let guards = tasks.join_all().await;
    let syncs = server.command_counts().expect("counts")["waitaof"];
    assert!(syncs < 40, "{syncs} requests for 40 acquires and their first renewals");
    let lost = futures_util::future::select_all(guards.iter().map(|guard| Box::pin(guard.lost())));
    // Longer than the first lease.
    assert!(timeout(3500 * MS, lost).await.is_err(), "all are held");
    for guard in guards {
        guard.release().await.expect("released");
    }
}

/// Every kind of lock, and several at once.
#[tokio::test]
async fn row_56_every_kind_of_lock_can_be_durable() {
    let server = on_a_disk("always").start().expect("it boots");
    let client = durable(&server.url()).await;
    let guards: Vec<Box<dyn LockGuard>> = vec![
        Box::new(client.mutex("mutex").expect("a name").acquire().await.expect("acquired")),
        Box::new(client.reentrant_mutex("reentrant").expect("a name").acquire().await.expect("acquired")),
        Box::new(client.rwlock("rwlock").expect("a name").read().await.expect("acquired")),
        Box::new(client.rwlock("written").expect("a name").write().await.expect("acquired")),
        Box::new(client.semaphore("permits", 2).expect("a name").acquire().await.expect("acquired")),
        Box::new(client.election("leader").expect("a name").campaign().await.expect("elected")),
    ];
    let both = client.multi_mutex(["a", "b"]).expect("names").acquire().await.expect("acquired");
    for guard in guards {
        guard.release().await.expect("released");
    }
    both.release().await.expect("released");
}

/// What cannot be waited for is refused, with what to do.
#[tokio::test]
async fn row_56_a_server_that_never_syncs_is_refused() {
    for (server, says) in
        [(RedisServer::builder().start(), "`appendonly yes`"), (on_a_disk("no").start(), "set `always`")]
    {
        let url = format!("{}?durable=1", server.as_ref().expect("it boots").url());
        let refused = Client::connect(&url).await.expect_err("refused");
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// A file that is not synced any more confirms nothing: the lock is free again.
#[tokio::test]
async fn row_56_a_hold_that_is_not_synced_is_undone() {
    let server = on_a_disk("always").start().expect("it boots");
    let url = format!("{}?durable=1", server.url());
    let careful = Client::builder(url).call_timeout(300 * MS).connect().await.expect("connected");
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]).expect("a reply").ok().expect("set");
    let plain = mutex(&client(&server.url()).await);
    match mutex(&careful).acquire().await {
        Err(AcquireError::Unconfirmed(fault)) => {
            assert_eq!(fault.kind, FaultKind::Unsynced);
            assert!(fault.to_string().contains("`appendfsync no`"), "{fault}");
        }
        other => panic!("{other:?}"),
    }
    until_free(&plain, S).await;
}

/// Each primary of a cluster is waited for. With `everysec` a node is refused.
#[tokio::test]
async fn row_56_holds_in_a_cluster_are_durable() {
    let mut cluster = Cluster::with(2, 0, &on_a_disk("always")).expect("it boots");
    let client = durable(&cluster.url()).await;
    let mut guards = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let lock = client.mutex(name).expect("a name").lease(60 * S);
        let guard = lock.acquire().await.expect("acquired");
        // The cluster needs longer to come back than a first lease.
        guard.extend().await.expect("extended");
        guards.push(guard);
    }
    cluster.node(0).cli(&["CONFIG", "SET", "appendfsync", "everysec"]).expect("a reply").ok().expect("set");
    cluster.node(1).cli(&["CONFIG", "SET", "appendfsync", "everysec"]).expect("a reply").ok().expect("set");
    let late = durable(&cluster.url()).await;
    let refused = mutex(&late).acquire().await.expect_err("refused").to_string();
    assert!(refused.contains("`appendfsync always`"), "{refused}");
    for node in cluster.nodes() {
        node.cut_power().expect("killed");
        node.restart().expect("it boots");
    }
    for guard in &guards {
        let exists = ["EXISTS", guard.name().as_str()];
        let mut there = None;
        // The nodes refuse commands until they have found each other again.
        until("a cluster that answers", 20 * S, async || {
            there = cluster.cli_at(guard.name().as_str(), &exists).expect("a reply").integer();
            there.is_some()
        })
        .await;
        assert_eq!(there, Some(1));
    }
}
