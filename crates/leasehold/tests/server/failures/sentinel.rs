//! Failover of a primary that Sentinels monitor: rows 30, 31 and 34.

use super::fixture::{MS, S, client, mutex, quick, until_waiting, within};
use leasehold::error::ConnectError;
use leasehold::store::FaultKind;
use leasehold::{Client, FencingToken};
use leasehold_testkit::Sentinels;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How soon after a promotion service has to resume; a fraction of a second on an idle machine.
const SOON: Duration = Duration::from_secs(5);

/// One primary, one synchronized replica, and three Sentinels that know one another.
fn formed() -> Sentinels {
    let sentinels = Sentinels::start(1).expect("the servers boot");
    sentinels.wait_formed().expect("the Sentinels discover one another");
    sentinels
}

/// Rows 30 and 31: the primary is killed while 16 clients wait. Service resumes soon after the promotion, and tokens
/// have grown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_30_a_killed_primary_is_followed() {
    let mut sentinels = formed();
    let sections: Arc<Mutex<Vec<(Instant, FencingToken)>>> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        // A release that gave up before there is a new primary would leave the lock to its lease.
        let ours = mutex(&quick(&sentinels.url(), 20 * S, 30 * S).await);
        let sections = sections.clone();
        tasks.spawn(async move {
            loop {
                let Ok(guard) = ours.acquire().await else { continue };
                sections.lock().expect("no panic").push((Instant::now(), guard.fencing_token()));
                let _ = guard.release().await;
            }
        });
    }
    within(10 * S, async {
        while sections.lock().expect("no panic").len() < 100 {
            tokio::time::sleep(10 * MS).await;
        }
    })
    .await;
    let (at, killed) = (sentinels.primary_index().expect("a primary"), Instant::now());
    sentinels.servers()[at].kill().expect("killed");
    tokio::task::block_in_place(|| sentinels.wait_promoted(at)).expect("promoted");
    let promoted = Instant::now();
    tokio::task::block_in_place(|| sentinels.wait_reported(at)).expect("the Sentinels report it");
    let announced = Instant::now();
    let after = |instant| {
        let sections = sections.lock().expect("no panic");
        sections.iter().find(|(at, _)| *at > instant).copied()
    };
    let served = within(SOON, async {
        loop {
            if let Some((served, _)) = after(promoted) {
                return served;
            }
            tokio::time::sleep(MS).await;
        }
    })
    .await;
    println!(
        "promoted {:?} after the primary was killed; reported {:?} after that, and acquired {:?} after that",
        promoted - killed,
        announced - promoted,
        served - promoted
    );
    tokio::time::sleep(S).await;
    tasks.shutdown().await;
    let sections = sections.lock().expect("no panic");
    let (before, since): (Vec<_>, Vec<_>) = sections.iter().partition(|(at, _)| *at < killed);
    let greatest = before.iter().map(|(_, token)| *token).max();
    // A reply of the old primary may have been in flight.
    let since = since.iter().filter(|(at, _)| *at > promoted);
    assert!(since.clone().count() > 16, "{} since then", since.count());
    assert!(since.clone().all(|(_, token)| Some(*token) > greatest));
}

/// Row 49: of two locks held when the primary dies, one is released, which fails before there is another primary, and its error
/// dropped. The guard of the other is dropped. The next holders get both soon after the promotion, and at about the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_49_a_failed_release_and_a_drop_free_their_locks_alike() {
    let mut sentinels = formed();
    let ours = quick(&sentinels.url(), 500 * MS, 60 * S).await;
    let theirs = client(&sentinels.url()).await;
    let name = |client: &Client, name: &str| client.mutex(name).expect("a good name");
    let (mut guards, mut waits) = (Vec::new(), Vec::new());
    for lock in ["released", "dropped"] {
        let guard = name(&ours, lock).acquire().await.expect("acquired");
        guard.extend().await.expect("extended");
        guards.push(guard);
        let theirs = name(&theirs, lock);
        waits.push(tokio::spawn(async move {
            let guard = theirs.acquire().await.expect("acquired");
            (Instant::now(), guard)
        }));
        until_waiting(&name(&ours, lock), 1).await;
    }
    let at = sentinels.primary_index().expect("a primary");
    let mut primary = sentinels.servers()[at].connect().expect("a connection");
    primary.call(&["SET", "last", "", "PX", "1"]).expect("a reply");
    assert_eq!(primary.call(&["WAIT", "1", "4000"]).expect("a reply").integer(), Some(1));
    sentinels.servers()[at].kill().expect("killed");
    let (released, dropped) = (guards.remove(0), guards.remove(0));
    drop(dropped);
    released.release().await.expect_err("the primary is gone");
    tokio::task::block_in_place(|| sentinels.wait_promoted(at)).expect("promoted");
    let promoted = Instant::now();
    // Their leases of 60 s have just begun.
    let mut freed = Vec::new();
    for wait in waits {
        let (at, guard) = within(20 * S, wait).await.expect("no panic");
        freed.push(at.saturating_duration_since(promoted));
        guard.release().await.expect("released");
    }
    let [released, dropped] = freed[..] else { unreachable!() };
    println!(
        "after the promotion: released {released:?}, dropped {dropped:?}, {:?} apart",
        released.abs_diff(dropped)
    );
}

/// The remaining lease of the lock `m`, as one of two servers knows it. Negative if it does not know the lock.
fn remaining_ms(sentinels: &mut Sentinels, server: usize) -> i64 {
    let reply = sentinels.servers()[server].cli(&["PTTL", "m"]).expect("it answers");
    reply.integer().expect("a number")
}

/// Row 34: a planned failover demotes the primary although nothing has failed. The holder keeps its lock, and a
/// waiter acquires it afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_34_a_planned_fail_over_keeps_the_locks() {
    let mut sentinels = formed();
    // A lease that a slow fail-over does not outlast.
    let ours = mutex(&quick(&sentinels.url(), 2 * S, 15 * S).await);
    let theirs = mutex(&client(&sentinels.url()).await);
    let guard = ours.acquire().await.expect("acquired");
    let old = sentinels.primary_index().expect("the Sentinels know the primary");
    let waits = tokio::spawn(async move { theirs.acquire().await });
    // The first lease ends soon: the replica has to know of the first extend.
    within(SOON, async {
        while remaining_ms(&mut sentinels, 1 - old) <= 3000 {
            tokio::time::sleep(20 * MS).await;
        }
    })
    .await;
    sentinels.fail_over().expect("the Sentinels start the failover");
    let new = tokio::task::block_in_place(|| sentinels.wait_promoted(old)).expect("promoted");
    assert_ne!(old, new);
    // It is renewed at the new primary.
    within(30 * S, async {
        let mut last_ms = i64::MAX;
        loop {
            let ms = remaining_ms(&mut sentinels, new);
            if ms > last_ms {
                return;
            }
            last_ms = ms;
            tokio::time::sleep(20 * MS).await;
        }
    })
    .await;
    guard.check().expect("it is held");
    assert!(!waits.is_finished());
    guard.release().await.expect("released");
    let theirs = within(SOON, waits).await.expect("no panic").expect("acquired");
    theirs.release().await.expect("released");
}

/// Configuration errors are reported: a name that no Sentinel knows, a user that they do not know, and Sentinels
/// that cannot be reached.
#[tokio::test]
async fn row_41_errors_of_sentinels_are_reported() {
    let mut sentinels = Sentinels::start(0).expect("the servers boot");
    let unknown = sentinels.url().replace("/main", "/other");
    let connect_error = async |url: &str| match Client::builder(url).call_timeout(2 * S).connect().await {
        Err(ConnectError::Store(fault)) => fault,
        other => panic!("{other:?}"),
    };
    let fault = connect_error(&unknown).await;
    assert!(matches!(&fault.kind, FaultKind::Unusable(text) if text.contains("`other`")), "{fault}");
    let fault = connect_error(&format!("{}?sentinel_user=unknown", sentinels.url())).await;
    assert_eq!(fault.kind, FaultKind::Unauthenticated, "{fault}");
    assert!(fault.to_string().contains("the Sentinel 127.0.0.1:"), "{fault}");
    for sentinel in sentinels.sentinels() {
        sentinel.kill().expect("killed");
    }
    let fault = connect_error(&sentinels.url()).await;
    assert_eq!(fault.kind, FaultKind::Unreachable, "{fault}");
}

/// One Sentinel suffices, and the client verifies with `ROLE` that the server it names is a primary.
#[tokio::test]
async fn row_34_what_sentinels_name_has_to_be_a_primary() {
    let mut sentinels = Sentinels::start(0).expect("the servers boot");
    for sentinel in &mut sentinels.sentinels()[..2] {
        sentinel.kill().expect("killed");
    }
    client(&sentinels.url()).await;
    let other = super::fixture::server();
    let replica = ["REPLICAOF", "127.0.0.1", &other.port().to_string()].map(str::to_owned);
    sentinels.servers()[0].cli(&replica).expect("a reply").ok().expect("it follows");
    let refused = Client::connect(&sentinels.url()).await;
    assert!(
        matches!(&refused, Err(ConnectError::Store(fault)) if fault.kind == FaultKind::ReadOnly),
        "{refused:?}"
    );
}

/// Row 39: Sentinels that name different servers, none of them with the later configuration, do not make clients
/// switch back and forth.
#[tokio::test]
async fn row_39_sentinels_that_disagree_cause_no_reconnect_loop() {
    let mut sentinels = Sentinels::start(0).expect("the servers boot");
    let (url, other) = (sentinels.url(), super::fixture::server());
    let [stray, .., sane] = sentinels.sentinels() else { panic!("there are three") };
    let monitor =
        ["SENTINEL", "MONITOR", "main", "127.0.0.1", &other.port().to_string(), "2"].map(str::to_owned);
    stray.cli(&["SENTINEL", "REMOVE", "main"]).expect("a reply").ok().expect("removed");
    stray.cli(&monitor).expect("a reply").ok().expect("monitored");
    let ours = mutex(&client(&url).await);
    let connected = || {
        let info = sane.cli(&["INFO", "stats"]).expect("a reply");
        let line = info
            .text()
            .and_then(|text| text.lines().find_map(|line| line.strip_prefix("total_connections_received:")));
        line.and_then(|count| count.trim().parse::<u64>().ok()).expect("a count")
    };
    let before = connected();
    let start = Instant::now();
    while start.elapsed() < 3 * S {
        ours.acquire().await.expect("acquired").release().await.expect("released");
        tokio::time::sleep(10 * MS).await;
    }
    // Sentinels connect to one another now and then, too.
    let after = connected();
    assert!(after - before < 50, "{before}, and {after} in 3 s");
}
