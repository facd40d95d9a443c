//! Keys of held locks that are removed or overwritten, where the server reports changes (`?tracking=1`): row 36.
//!
//! The leases are long: without a report a loss would be noticed after 10 s.

use super::fixture::{MS, S, client, mutex, quick, server, until, until_waiting, within};
use leasehold::store::{Permissions, RedisConfig, ServerVersion};
use leasehold::{Client, LostReason};
use leasehold_testkit::{Cluster, RedisServer};
use std::time::{Duration, Instant};

/// The name of a test's lock.
const NAME: &str = "m";
/// Lets a key expire before the server does anything else.
const EXPIRE: &str = "redis.call('PEXPIRE', KEYS[1], 1) for _ = 1, 20000000 do end";
/// By then a report has arrived, also on a busy machine, and a renewal is not due yet.
const SOON: Duration = Duration::from_secs(3);

async fn tracking(server: &RedisServer) -> Client {
    client(&format!("{}?tracking=1", server.url())).await
}

fn run(server: &RedisServer, command: &[&str]) {
    server.cli(command).expect("a reply").ok().expect("executed");
}

/// How many keys the server reports changes of.
fn watched(server: &RedisServer) -> u64 {
    let stats = server.cli(&["INFO", "stats"]).expect("a reply");
    let line =
        stats.text().and_then(|text| text.lines().find_map(|line| line.strip_prefix("tracking_total_keys:")));
    line.expect("the server counts them").trim().parse().expect("a number")
}

async fn until_watched(server: &RedisServer, keys: u64) {
    until("watched", SOON, async || watched(server) == keys).await;
}

fn count(server: &RedisServer, command: &str) -> u64 {
    server.command_counts().expect("counts").get(command).copied().unwrap_or(0)
}

/// How often keys were read to be watched.
fn reads(server: &RedisServer) -> u64 {
    count(server, "client|caching")
}

/// Row 36: however the key of a held lock goes away, the holder learns of it at once, and why.
#[tokio::test]
async fn row_36_a_removed_lock_is_noticed_at_once() {
    let server = server();
    let client = tracking(&server).await;
    for (command, reason) in [
        (&["DEL", NAME][..], LostReason::Removed),
        (&["UNLINK", NAME], LostReason::Removed),
        (&["PEXPIRE", NAME, "0"], LostReason::Removed),
        // Over before the holder can extend it again.
        (&["EVAL", EXPIRE, "1", NAME], LostReason::Removed),
        (&["RENAME", NAME, "other"], LostReason::Removed),
        (&["SET", NAME, "a stranger", "PX", "100"], LostReason::TakenOver { by: None }),
        (&["FLUSHDB"], LostReason::StoreLostData),
        (&["FLUSHALL"], LostReason::StoreLostData),
    ] {
        let guard = within(SOON, mutex(&client).acquire()).await.expect("acquired");
        until_watched(&server, 1).await;
        let start = Instant::now();
        run(&server, command);
        let lost = within(SOON, guard.lost()).await;
        println!("{command:?}: noticed after {:?}", start.elapsed());
        assert_eq!(lost.reason, reason, "{command:?}");
        drop(guard);
        client.flush().await;
    }
}

/// A holder whose lease another client shortens renews it at once, if there is time for that.
#[tokio::test]
async fn a_shortened_lease_is_renewed_at_once() {
    let server = server();
    let guard = mutex(&tracking(&server).await).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    run(&server, &["PEXPIRE", NAME, "2000"]);
    let pttl = || server.cli(&["PTTL", NAME]).expect("a reply").integer().expect("a number");
    until("renewed", SOON, async || pttl() > 20_000).await;
    guard.release().await.expect("released");
}

/// Row 36: of kinds that are no plain strings, a flush is noticed.
#[tokio::test]
async fn row_36_a_flush_is_noticed_by_every_kind() {
    let server = server();
    let client = tracking(&server).await;
    let reentrant = client.reentrant_mutex("r").expect("a good name").acquire().await.expect("acquired");
    let permit = client.semaphore("s", 2).expect("a good name").acquire().await.expect("acquired");
    let guard = mutex(&client).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    run(&server, &["FLUSHALL"]);
    within(SOON, guard.lost()).await;
    within(SOON, reentrant.lost()).await;
    within(SOON, permit.lost()).await;
}

/// A short hold that is never renewed is watched soon, and a renewed one also after each renewal.
#[tokio::test]
async fn a_hold_is_watched_soon_and_after_each_renewal() {
    let server = server();
    let client = tracking(&server).await;
    let fixed = client.mutex("fixed").expect("a good name").lease(3 * S);
    let guard = fixed.acquire().await.expect("acquired");
    let start = Instant::now();
    until_watched(&server, 1).await;
    assert!(start.elapsed() < 2 * S, "{:?}", start.elapsed());
    run(&server, &["DEL", "fixed"]);
    within(SOON, guard.lost()).await;

    let quick = quick(&format!("{}?tracking=1", server.url()), 5 * S, 1500 * MS).await;
    let guard = mutex(&quick).acquire().await.expect("acquired");
    let before = reads(&server);
    until("renewed a few times", 20 * S, async || reads(&server) >= before + 4).await;
    until_watched(&server, 1).await;
    guard.check().expect("held");
    guard.release().await.expect("released");
}

/// A connection that is made again watches the holds again, by itself: here only the keeper's was cut.
#[tokio::test]
async fn holds_are_watched_again_after_a_reconnect() {
    let server = server();
    let client = tracking(&server).await;
    let guard = mutex(&client).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    let clients = server.cli(&["CLIENT", "LIST"]).expect("a reply");
    let keeper = clients.text().unwrap_or_default().lines().find(|line| line.contains("cmd=mget"));
    let id = keeper
        .and_then(|line| line.split_once("id=")?.1.split(' ').next())
        .expect("the keeper has read the key");
    let before = reads(&server);
    run(&server, &["CLIENT", "KILL", "ID", id]);
    until("watched again", SOON, async || reads(&server) > before + 1).await;
    guard.check().expect("held");
    run(&server, &["DEL", NAME]);
    assert_eq!(within(SOON, guard.lost()).await.reason, LostReason::Removed);
}

/// Waiters of a lock do not write its key: however many arrive, the holder is not disturbed.
#[tokio::test]
async fn waiters_cause_no_hints() {
    let server = server();
    let holder = tracking(&server).await;
    let guard = mutex(&holder).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    let (before, mut waiting) = (reads(&server), Vec::new());
    for _ in 0..20 {
        let client = client(&server.url()).await;
        waiting.push(tokio::spawn(async move {
            mutex(&client).acquire().await.expect("acquired").release().await.expect("released");
        }));
    }
    until_waiting(&mutex(&holder), 20).await;
    assert_eq!(reads(&server), before);
    guard.release().await.expect("released");
    for waiting in waiting {
        within(10 * S, waiting).await.expect("it does not panic");
    }
}

/// Hints that are wrong cost a few requests a second, however many there are, and no hold.
#[tokio::test]
async fn a_storm_of_wrong_hints_is_no_storm_of_requests() {
    let server = server();
    let client = tracking(&server).await;
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(client.mutex(format!("m/{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    until_watched(&server, 20).await;
    let (before, start, mut written) = (reads(&server), Instant::now(), 0);
    let mut connection = server.connect().expect("a connection");
    while start.elapsed() < 2 * S {
        for n in 0..20 {
            connection.call(&["PEXPIRE", &format!("m/{n}"), "60000"]).expect("a reply").ok().expect("set");
            written += 1;
        }
        // Whatever database it is, the server forgets all keys.
        connection.call(&["SELECT", "1"]).expect("a reply").ok().expect("selected");
        connection.call(&["FLUSHDB"]).expect("a reply").ok().expect("flushed");
        connection.call(&["SELECT", "0"]).expect("a reply").ok().expect("selected");
        tokio::time::sleep(MS).await;
    }
    let took = start.elapsed();
    let read = reads(&server) - before;
    println!("{written} writes and as many flushes in {took:?}: {read} reads");
    assert!(read > 0, "no hint arrived");
    // Four a second of each hold, of which several share a read as a rule.
    assert!(u128::from(read) <= 20 * (took.as_millis() / 250 + 2), "{read} reads in {took:?}");
    for guard in guards {
        guard.check().expect("held");
        guard.release().await.expect("released");
    }
}

/// Own requests are no reason for a loss, and what ended is not asked about.
#[tokio::test]
async fn own_requests_end_no_hold() {
    let server = server();
    let client = tracking(&server).await;
    let holders = (0..8).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..8 {
                let guard = mutex(&client).acquire().await.expect("acquired");
                guard.extend().await.expect("extended");
                tokio::time::sleep(60 * MS).await;
                guard.extend().await.expect("extended");
                tokio::time::sleep(60 * MS).await;
                guard.check().expect("held");
                guard.release().await.expect("released");
            }
        })
    });
    for holder in holders.collect::<Vec<_>>() {
        within(30 * S, holder).await.expect("it does not panic");
    }
    client.flush().await;
    let before = reads(&server);
    tokio::time::sleep(500 * MS).await;
    assert_eq!(reads(&server), before, "nothing is held");
}

/// Without the right to have changes reported, all is as without the setting.
#[tokio::test]
async fn without_the_right_a_renewal_notices() {
    let server = server();
    run(&server, &["ACL", "SETUSER", "u", "reset", "on", ">p", "~*", "&*", "+@all", "-client|tracking"]);
    let url = server.url().replacen("://", "://u:p@", 1);
    let client = quick(&format!("{url}?tracking=1"), 5 * S, 1500 * MS).await;
    let guard = mutex(&client).acquire().await.expect("acquired");
    tokio::time::sleep(700 * MS).await;
    assert_eq!(watched(&server), 0);
    guard.check().expect("held");
    run(&server, &["DEL", NAME]);
    assert_eq!(within(SOON, guard.lost()).await.reason, LostReason::Removed);
}

/// The minimal rights are enough.
#[tokio::test]
async fn the_minimal_rights_include_tracking() {
    let server = server();
    let config: RedisConfig = format!("{}?tracking=1", server.url()).parse().expect("a good URL");
    let mut user = vec!["ACL".to_owned(), "SETUSER".to_owned(), "u".to_owned(), "reset".to_owned()];
    user.extend(["on".to_owned(), ">p".to_owned()]);
    user.extend(Permissions::of(&config).expect("a good prefix").on(ServerVersion::redis(7, 0)).rules());
    run(&server, &user.iter().map(String::as_str).collect::<Vec<_>>());
    let client = client(&format!("{}?tracking=1", server.url().replacen("://", "://u:p@", 1))).await;
    let guard = mutex(&client).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    run(&server, &["DEL", NAME]);
    within(SOON, guard.lost()).await;
}

/// The expiry that is written again for a replica's acknowledgement is no hint.
#[tokio::test]
async fn confirmations_cause_no_hints() {
    let server = server();
    let at = format!("127.0.0.1 {}", server.port());
    let replica = RedisServer::builder().config("replicaof", at).start().expect("redis-server boots");
    run(&server, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    until("a replica that has copied all", 20 * S, async || {
        let info = replica.cli(&["INFO", "replication"]).expect("a reply");
        info.text().is_some_and(|text| text.contains("master_link_status:up"))
    })
    .await;
    let client = client(&format!("{}?tracking=1&replicas=1", server.url())).await;
    let guard = mutex(&client).acquire().await.expect("acquired");
    until_watched(&server, 1).await;
    tokio::time::sleep(500 * MS).await;
    let before = reads(&server);
    tokio::time::sleep(2 * S).await;
    assert!(reads(&server) <= before + 1, "{} reads", reads(&server) - before);
    run(&server, &["DEL", NAME]);
    within(SOON, guard.lost()).await;
}

/// A waiter for a client of another library does not poll, and learns at once that the key is gone.
#[tokio::test]
async fn a_strangers_release_is_noticed_without_polling() {
    let server = server();
    let client = tracking(&server).await;
    run(&server, &["SET", NAME, "a stranger", "PX", "60000"]);
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move { mutex(&client).acquire().await.map(|guard| (Instant::now(), guard)) })
    };
    until_watched(&server, 1).await;
    let before = count(&server, "evalsha");
    let start = Instant::now();
    tokio::time::sleep(2 * S).await;
    let polls = count(&server, "evalsha") - before;
    println!("{polls} scripts in {:?}", start.elapsed());
    assert!(u128::from(polls) <= start.elapsed().as_millis() / 500 + 3, "{polls} scripts");

    // Another stranger that takes it over is waited for in the same way.
    run(&server, &["SET", NAME, "another", "PX", "60000"]);
    until_watched(&server, 1).await;
    let start = Instant::now();
    run(&server, &["DEL", NAME]);
    let (acquired, guard) = within(SOON, waiting).await.expect("it does not panic").expect("acquired");
    println!("acquired {:?} after the release", acquired - start);
    guard.release().await.expect("released");
}

/// In a cluster each node reports its own keys, and a hold goes on being watched when its slot has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_36_a_removed_lock_is_noticed_in_a_cluster() {
    let cluster = tokio::task::block_in_place(|| Cluster::start(3, 0)).expect("nodes that agree");
    let client = client(&format!("{}?tracking=1", cluster.url())).await;
    let moves = client.mutex("moves").expect("a good name").acquire().await.expect("acquired");
    let all = || (0..3).map(|at| watched(cluster.node(at))).sum::<u64>();
    let mut guards = Vec::new();
    for n in 0..12 {
        guards.push(client.mutex(format!("m/{n}")).expect("a good name").acquire().await.expect("acquired"));
    }
    until("watched", 10 * S, async || all() == 13).await;
    for (n, guard) in guards.iter().enumerate() {
        cluster.cli_at(&format!("m/{n}"), &["DEL", &format!("m/{n}")]).expect("a reply");
        assert_eq!(within(SOON, guard.lost()).await.reason, LostReason::Removed);
    }
    let (slot, old) = (cluster.slot("moves").expect("a slot"), cluster.owner_of("moves").expect("an owner"));
    tokio::task::block_in_place(|| cluster.move_slot(slot, (old + 1) % 3)).expect("moved");
    until("watched", 15 * S, async || watched(cluster.node((old + 1) % 3)) >= 1).await;
    moves.check().expect("held");
    cluster.cli_at("moves", &["DEL", "moves"]).expect("a reply");
    assert_eq!(within(SOON, moves.lost()).await.reason, LostReason::Removed);
}
