//! A cluster while slots move and primaries fail: rows 3, 21, 25, 34, 35 and 39.

use super::fixture::{MS, S, client, mutex, quick, until, until_waiting, within};
use leasehold::store::{Executed, Op, Outcome, Permissions, RedisConfig, RedisStore, ServerVersion, Store};
use leasehold::{Client, FencingToken, Guard, Mutex, Owner, Released};
use leasehold_core::{Inspect, Lock, LockName};
use leasehold_testkit::{Cluster, Stopwatch};
use std::time::{Duration, Instant};

/// The limit for a state that an idle machine reaches within moments.
const SOON: Duration = Duration::from_secs(5);

/// Three primaries.
fn primaries() -> Cluster {
    tokio::task::block_in_place(|| Cluster::start(3, 0)).expect("nodes that agree")
}

/// Three primaries, each with a replica.
pub(crate) fn with_replicas() -> Cluster {
    tokio::task::block_in_place(|| Cluster::start(3, 1)).expect("nodes that agree")
}

/// Reads a counter of a node's INFO: the value after `name` in that section.
fn counted(cluster: &Cluster, at: usize, section: &str, name: &str) -> u64 {
    let info = cluster.node(at).cli(&["INFO", section]).expect("a reply");
    let line = info.text().and_then(|text| text.lines().find_map(|line| line.strip_prefix(name)));
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    line.and_then(|rest| digits(rest).parse().ok()).unwrap_or(0)
}

/// How many script calls the node has rejected before they ran.
fn rejected(cluster: &Cluster, at: usize) -> u64 {
    let info = cluster.node(at).cli(&["INFO", "commandstats"]).expect("a reply");
    let text = info.text().unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let count = line.split("rejected_calls=").nth(1).and_then(|rest| rest.split(',').next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn calls(cluster: &Cluster, command: &str) -> u64 {
    let counts = (0..3).map(|at| cluster.node(at).command_counts().expect("counts"));
    counts.filter_map(|counts| counts.get(command).copied()).sum()
}

/// Waits for the lock as one more client.
fn waits(mutex: Mutex) -> tokio::task::JoinHandle<FencingToken> {
    tokio::spawn(async move {
        let guard = mutex.acquire().await.expect("acquired");
        let token = guard.fencing_token();
        guard.release().await.expect("released");
        token
    })
}

/// Row 35: the first call that meets a moved slot costs one redirect and about one request for the slot map; the
/// calls behind it cost none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_a_moved_slot_costs_few_redirects() {
    let cluster = primaries();
    let ours = mutex(&client(&cluster.url()).await);
    let (slot, old) = (cluster.slot("m").expect("a slot"), cluster.owner_of("m").expect("an owner"));
    ours.acquire().await.expect("acquired").release().await.expect("released");
    for round in 1..=4 {
        let (from, to) = if round % 2 == 1 { (old, (old + 1) % 3) } else { ((old + 1) % 3, old) };
        cluster.move_slot(slot, to).expect("moved");
        let (before, maps) = (rejected(&cluster, from), calls(&cluster, "cluster|slots"));
        for _ in 0..100 {
            ours.acquire().await.expect("acquired").release().await.expect("released");
        }
        // The client's and the keeper's connections each discover the move on their own; a heartbeat may be under
        // way.
        let (rejected, maps) = (rejected(&cluster, from) - before, calls(&cluster, "cluster|slots") - maps);
        println!("round {round}: {rejected} redirects and {maps} maps for 200 calls");
        assert!(rejected <= 4 && maps <= 8, "{rejected}, {maps}");
    }
}

/// Row 35: a holder keeps its lock while the slot moves, even when the lock's keys are split between two nodes for
/// longer than the lease, and can release it. A waiter acquires the lock once the slot has arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_a_half_moved_slot_keeps_its_locks() {
    let cluster = primaries();
    let ours = quick(&cluster.url(), 2 * S, 1500 * MS).await;
    let theirs = client(&cluster.url()).await;
    for (name, moved) in [("one", "one"), ("two", "leasehold:{two}:record:mutex:two")] {
        let slot = cluster.slot(name).expect("a slot");
        let from = cluster.owner(slot).expect("an owner");
        let to = (from + 1) % 3;
        let [held, theirs] = [&ours, &theirs].map(|client| client.mutex(name).expect("a good name"));
        let guard = held.acquire().await.expect("acquired");
        let waiter = waits(theirs);
        until_waiting(&held, 1).await;
        cluster.begin_move(slot, from, to).expect("begun");
        cluster.move_keys(&[moved], from, to).expect("moved");
        tokio::time::sleep(4 * S).await;
        guard.check().expect("it was extended all the time");
        let token = guard.fencing_token();
        let start = Stopwatch::start();
        guard.release().await.expect("released");
        println!("released in {:?} while `{moved}` was elsewhere", start.elapsed());
        start.assert_below(S, "each call finds the slot");
        assert!(cluster.node(from).cli(&["EXISTS", name]).expect("a reply").integer() != Some(1));
        assert!(!waiter.is_finished(), "no script can reach both keys");
        cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
        cluster.end_move(slot, from, to).expect("ended");
        let arrived = Instant::now();
        let next = within(SOON, waiter).await.expect("no panic");
        println!("acquired {:?} after the slot arrived", arrived.elapsed());
        assert!(next > token);
    }
}

/// Once none of the lock's keys is left at the old node, the two nodes redirect to each other. A waiter without a
/// deadline waits until the slot has arrived, even for longer than the call timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_an_acquire_in_a_moving_slot_waits_longer_than_a_call() {
    let cluster = primaries();
    let lock = mutex(&quick(&cluster.url(), 300 * MS, 1500 * MS).await);
    lock.acquire().await.expect("acquired").release().await.expect("released");
    let (slot, from) = (cluster.slot("m").expect("a slot"), cluster.owner_of("m").expect("an owner"));
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to).expect("begun");
    cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
    let mut waiter = tokio::spawn(async move { lock.acquire().await.map(|guard| guard.fencing_token()) });
    // Many calls end meanwhile, with one reply or the other.
    let early = tokio::time::timeout(6 * S, &mut waiter).await;
    assert!(early.is_err(), "the slot has not arrived: {early:?}");
    cluster.end_move(slot, from, to).expect("ended");
    within(SOON, waiter).await.expect("no panic").expect("acquired");
}

/// The same for the other exclusive kinds: their holds depend on the lock's key alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_every_kind_is_released_while_its_slot_moves() {
    let cluster = primaries();
    let ours = quick(&cluster.url(), 2 * S, 1500 * MS).await;
    let moving = |name: &str, kind: &str| {
        let slot = cluster.slot(name).expect("a slot");
        let from = cluster.owner(slot).expect("an owner");
        cluster.begin_move(slot, from, (from + 1) % 3).expect("begun");
        let record = format!("leasehold:{{{name}}}:record:{kind}:{name}");
        cluster.move_keys(&[record], from, (from + 1) % 3).expect("moved");
        (slot, from)
    };
    let arrives = |(slot, from): (u16, usize)| {
        cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, (from + 1) % 3).expect("moved");
        cluster.end_move(slot, from, (from + 1) % 3).expect("ended");
    };
    let owner = Owner::new("a returning owner").expect("a short text");
    let entered = ours.reentrant_mutex("entered").expect("a good name").owned_by(&owner);
    let (first, second) =
        (entered.acquire().await.expect("acquired"), entered.acquire().await.expect("again"));
    let moved = moving("entered", "reentrant");
    tokio::time::sleep(3 * S).await;
    first.check().expect("extended");
    assert_eq!(second.release().await.expect("released"), Released::StillHeld { count: 1 });
    assert_eq!(first.release().await.expect("released"), Released::NoLongerHeld);
    arrives(moved);
    assert!(!entered.inspect().await.expect("an answer").held);

    let permits = ours.semaphore("permits", 2).expect("a good name");
    let (one, other) = (permits.acquire().await.expect("one"), permits.acquire().await.expect("another"));
    let moved = moving("permits", "semaphore");
    tokio::time::sleep(3 * S).await;
    one.check().expect("extended");
    one.release().await.expect("released");
    arrives(moved);
    let status = permits.inspect().await.expect("an answer");
    assert_eq!(status.shared_holders.len(), 1, "{status:?}");
    other.release().await.expect("released");

    let library = ours.rwlock("library").expect("a good name");
    let written = library.write().await.expect("acquired");
    let moved = moving("library", "rwlock");
    tokio::time::sleep(3 * S).await;
    written.check().expect("extended");
    written.release().await.expect("released");
    arrives(moved);
    library.read().await.expect("acquired").release().await.expect("released");
}

/// Rows 30 and 35: replicas confirm a hold while its slot moves, whether the lock's keys are still at the old node
/// or already at the new one. Covers a hold granted by a release and shared holds, for each type of key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_35_a_hold_is_confirmed_while_its_slot_moves() {
    let cluster = with_replicas();
    let careful = Client::builder(format!("{}?replicas=1", cluster.url())).call_timeout(3 * S);
    let ours = careful.connect().await.expect("the cluster can be reached");
    let theirs = client(&cluster.url()).await;
    let owner = Owner::new("a returning owner").expect("a short text");
    for (tag, moved) in [("here", false), ("there", true)] {
        let slot = cluster.slot(tag).expect("a slot");
        let from = cluster.owner(slot).expect("an owner");
        let to = (from + 1) % 3;
        let [mutex, again, permits, library] = ["m", "a", "p", "l"].map(|name| format!("{{{tag}}}{name}"));
        let [held, waited] = [&theirs, &ours].map(|client| client.mutex(&mutex).expect("a good name"));
        let [taken, wanted] =
            [&theirs, &ours].map(|client| client.semaphore(&permits, 2).expect("a good name"));
        let [read, reads] = [&theirs, &ours].map(|client| client.rwlock(&library).expect("a good name"));
        let [inside, entered] = [&theirs, &ours]
            .map(|client| client.reentrant_mutex(&again).expect("a good name").owned_by(&owner));
        let first = inside.acquire().await.expect("acquired");
        let reader = read.read().await.expect("acquired");
        let (_one, other) = (taken.acquire().await.expect("one"), taken.acquire().await.expect("another"));
        let guard = held.acquire().await.expect("acquired");
        let waiter = tokio::spawn(async move { waited.acquire().await });
        until_waiting(&held, 1).await;
        let wants = tokio::spawn(async move { wanted.acquire().await });
        until("a client waits for a permit", SOON, async || {
            taken.inspect().await.is_ok_and(|status| status.waiting == 1)
        })
        .await;
        cluster.begin_move(slot, from, to).expect("begun");
        if moved {
            cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
        }
        let start = Stopwatch::start();
        other.release().await.expect("released");
        let permit = within(SOON, wants).await.expect("no panic").expect("confirmed");
        let beside = within(SOON, reads.read()).await.expect("confirmed");
        let second = within(SOON, entered.acquire()).await.expect("confirmed");
        if moved {
            // At the old node no script can rewrite a key that it has deleted, so nothing is granted there.
            guard.release().await.expect("released");
            within(SOON, waiter)
                .await
                .expect("no panic")
                .expect("confirmed")
                .release()
                .await
                .expect("released");
        }
        println!("confirmed `{tag}` in {:?}", start.elapsed());
        start.assert_below(2 * S, "each call finds the slot");
        permit.release().await.expect("released");
        beside.release().await.expect("released");
        second.release().await.expect("released");
        first.release().await.expect("released");
        reader.release().await.expect("released");
    }
}

/// Row 21: a waiter is notified of its grant even when the slot has moved since it began to wait; polling, once a
/// second, would be too slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_waiter_is_woken_where_its_slot_has_moved_to() {
    let cluster = primaries();
    let (ours, theirs) = (mutex(&client(&cluster.url()).await), mutex(&client(&cluster.url()).await));
    let (slot, old) = (cluster.slot("m").expect("a slot"), cluster.owner_of("m").expect("an owner"));
    let mut took = Duration::ZERO;
    for round in 1..=6 {
        let guard = ours.acquire().await.expect("acquired");
        let waiter = waits(theirs.clone());
        until_waiting(&ours, 1).await;
        cluster.move_slot(slot, (old + round) % 3).expect("moved");
        // Until the waiter has subscribed at the new owner.
        until("the waiter has subscribed at the new owner", SOON, async || {
            let channels =
                cluster.node((old + round) % 3).cli(&["PUBSUB", "SHARDCHANNELS"]).expect("a reply");
            !channels.elements().is_empty()
        })
        .await;
        let start = Instant::now();
        guard.release().await.expect("released");
        within(SOON, waiter).await.expect("no panic");
        took += start.elapsed();
    }
    println!("six grants after a move took {took:?}");
    assert!(took < 1500 * MS, "{took:?}");
}

/// Row 21: a grant made at the new node of a slot that has not fully arrived is delivered too, although no client
/// can have subscribed there yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_21_a_grant_at_the_new_node_of_a_slot_is_received() {
    let cluster = primaries();
    let (ours, theirs) = (mutex(&client(&cluster.url()).await), mutex(&client(&cluster.url()).await));
    let slot = cluster.slot("m").expect("a slot");
    let mut took = Duration::ZERO;
    for _ in 0..6 {
        let from = cluster.owner(slot).expect("an owner");
        let to = (from + 1) % 3;
        let guard = ours.acquire().await.expect("acquired");
        let waiter = waits(theirs.clone());
        until_waiting(&ours, 1).await;
        cluster.begin_move(slot, from, to).expect("begun");
        cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
        let start = Instant::now();
        guard.release().await.expect("released");
        within(SOON, waiter).await.expect("no panic");
        took += start.elapsed();
        cluster.end_move(slot, from, to).expect("ended");
        until("the waiter has subscribed at the new owner", SOON, async || {
            let channels = cluster.node(to).cli(&["PUBSUB", "SHARDCHANNELS"]).expect("a reply");
            !channels.elements().is_empty()
        })
        .await;
    }
    println!("six grants on the way took {took:?}");
    assert!(took < 1500 * MS, "{took:?}");
}

/// Row 25: a hand-off is published at one node, not at all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_25_a_grant_is_published_at_one_node() {
    let cluster = primaries();
    let (ours, theirs) = (mutex(&client(&cluster.url()).await), mutex(&client(&cluster.url()).await));
    for _ in 0..20 {
        let guard = ours.acquire().await.expect("acquired");
        let waiter = waits(theirs.clone());
        until_waiting(&ours, 1).await;
        guard.release().await.expect("released");
        within(SOON, waiter).await.expect("no panic");
    }
    assert_eq!((calls(&cluster, "spublish"), calls(&cluster, "publish")), (20, 0));
}

/// Row 3: a request without a reply is not sent again, and one with a reply is sent once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_3_a_cluster_gets_nothing_twice() {
    let cluster = primaries();
    let store = RedisStore::connect(cluster.url().parse().expect("a good URL")).await.expect("reached");
    let lock = Lock::mutex(LockName::new("m").expect("a good name"));
    let look = Op::Inspect(Inspect { claim: None, details: false });
    let at = cluster.owner_of("m").expect("an owner");
    let executed = || counted(&cluster, at, "commandstats", "cmdstat_evalsha:calls=");
    let first = store.execute(&lock, &look, S).await;
    assert!(matches!(first, Outcome::Done(_)), "{first:?}");
    let before = executed();
    for _ in 0..50 {
        let outcome = store.execute(&lock, &look, S).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }
    assert_eq!(executed() - before, 50);
    cluster.node(at).stop().expect("stopped");
    let outcome = store.execute(&lock, &look, 200 * MS).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::Unknown, _)), "{outcome:?}");
    cluster.node(at).resume().expect("it goes on");
    tokio::time::sleep(2 * S).await;
    assert!(executed() - before <= 51, "{}", executed() - before);
}

/// Rows 34 and 30: the primary of a lock is killed. Service resumes soon after the promotion, and tokens have grown;
/// the locks of other primaries are kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_34_a_killed_primary_of_a_cluster_is_followed() {
    let mut cluster = with_replicas();
    let name = |at: usize| {
        let here = |name: &String| cluster.owner_of(name).ok() == Some(at);
        (0..1000).map(|number| format!("lock-{number}")).find(here).expect("every node has some")
    };
    let (doomed, spared) = (name(0), name(1));
    let slot = cluster.slot(&doomed).expect("a slot");
    let [ours, theirs] = [quick(&cluster.url(), 5 * S, 6 * S).await, client(&cluster.url()).await];
    let kept = ours.mutex(&*spared).expect("a good name").acquire().await.expect("acquired");
    let lost = ours.mutex(&*doomed).expect("a good name").acquire().await.expect("acquired");
    let waiter = waits(theirs.mutex(&*doomed).expect("a good name"));
    until_waiting(&theirs.mutex(&*doomed).expect("a good name"), 1).await;
    // Until it has been extended: its first lease is shorter than a failover may take.
    tokio::time::sleep(2500 * MS).await;
    let (token, killed) = (lost.fencing_token(), Instant::now());
    cluster.nodes()[0].kill().expect("killed");
    tokio::task::block_in_place(|| cluster.wait_promoted(slot, 0)).expect("promoted");
    let promoted = Instant::now();
    // The hold was replicated, so it survives the failover.
    lost.check().expect("it lasts longer than the fail-over took");
    within(SOON, lost.release()).await.expect("released");
    let next = within(SOON + 3 * S, waiter).await.expect("no panic");
    println!(
        "promoted {:?} after the primary was killed; released and granted {:?} after that",
        promoted - killed,
        promoted.elapsed()
    );
    assert!(next > token);
    kept.check().expect("others are kept");
    kept.release().await.expect("released");
}

/// Row 51: with confirmed heartbeats the sessions of many slots live on, also of one that moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_51_sessions_in_many_slots_are_confirmed() {
    let cluster = with_replicas();
    let url = format!("{}?replicas=1", cluster.url());
    let ours = Client::builder(url).session_ttl(3 * S).call_timeout(2 * S).connect().await;
    let ours = ours.expect("the cluster can be reached");
    let mut guards = Vec::new();
    for n in 0..40 {
        let mutex = ours.mutex(format!("{{{n}}}")).expect("a good name");
        guards.push(mutex.acquire().await.expect("acquired"));
    }
    // Each slot has a session by then.
    tokio::time::sleep(3 * S).await;
    let slot = cluster.slot("{7}").expect("a slot");
    let from = cluster.owner(slot).expect("an owner");
    let to = (from + 1) % 3;
    cluster.begin_move(slot, from, to).expect("begun");
    tokio::time::sleep(S).await;
    cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
    tokio::time::sleep(S).await;
    cluster.end_move(slot, from, to).expect("ended");
    tokio::time::sleep(7 * S).await;
    for guard in guards {
        guard.check().unwrap_or_else(|loss| panic!("{}: {loss}", guard.name()));
        guard.release().await.expect("released");
    }
}

/// Row 45: the printed list of ACL rules suffices in a cluster, too: no node refuses the user anything while locks
/// are awaited and handed off, leaders observed, sessions listed, replicas waited for, and a slot moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_45_a_cluster_refuses_nothing_to_a_user_with_the_list() {
    let cluster = with_replicas();
    let url = format!("{}?replicas=1&prefix=app:", cluster.url());
    let config: RedisConfig = url.parse().expect("a good URL");
    let version = ServerVersion::query(&config).await.expect("a version");
    let rules = Permissions::of(&config).expect("a good prefix").on(version).rules();
    let command = ["ACL", "SETUSER", "locks", "reset", "on", ">password"].into_iter();
    let command: Vec<_> = command.chain(rules.iter().map(String::as_str)).collect();
    for at in 0..6 {
        cluster.node(at).cli(&command).expect("a reply").ok().expect("the node takes the list");
    }
    let url = url.replace("://", "://locks:password@");
    let (ours, theirs) = (client(&url).await, client(&url).await);
    let scheduler = ours.election("scheduler").expect("a good name");
    let leads = scheduler.campaign().await.expect("elected");
    let mut leaders = theirs.election("scheduler").expect("a good name").observe();
    assert!(within(SOON, leaders.next()).await.expect("an answer").is_some());
    let slot = cluster.slot("app:m").expect("a slot");
    for round in 0..2 {
        let guard = mutex(&ours).acquire().await.expect("acquired");
        let waiter = waits(mutex(&theirs));
        until_waiting(&mutex(&ours), 1).await;
        if round == 1 {
            let from = cluster.owner(slot).expect("an owner");
            let to = (from + 1) % 3;
            cluster.begin_move(slot, from, to).expect("begun");
            cluster.move_keys(&["app:m"], from, to).expect("moved");
            tokio::time::sleep(S).await;
            cluster.move_keys(&cluster.keys(slot, from).expect("keys"), from, to).expect("moved");
            cluster.end_move(slot, from, to).expect("ended");
        }
        guard.release().await.expect("released");
        within(SOON, waiter).await.expect("no panic");
    }
    let entered = ours.reentrant_mutex("account").expect("a good name");
    entered.acquire().await.expect("acquired").release().await.expect("released");
    assert_eq!(ours.sessions().await.expect("a list").len(), 2);
    ours.multi_mutex(["{a}1", "{a}2"])
        .expect("good names")
        .acquire()
        .await
        .expect("both")
        .release()
        .await
        .expect("released");
    leads.resign().await.expect("resigned");
    for client in [ours, theirs] {
        client.shutdown(SOON).await.expect("in order");
    }
    for at in 0..6 {
        let refused = cluster.node(at).cli(&["ACL", "LOG"]).expect("a reply");
        assert!(refused.elements().is_empty(), "{refused:?}");
    }
}

/// Row 39: while a primary is down, its clients request the slot map and try to connect with pauses between
/// attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_39_a_primary_that_is_down_gets_no_reconnect_storm() {
    const CLIENTS: u64 = 50;
    let mut cluster = primaries();
    let at = cluster.owner_of("m").expect("an owner");
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = Client::builder(cluster.url()).call_timeout(2 * S).connect().await.expect("reached");
        let held = client.mutex(format!("{{m}}{number}")).expect("a good name");
        held.acquire().await.expect("acquired").release().await.expect("released");
        clients.push(client);
    }
    let others: Vec<_> = (0..3).filter(|other| *other != at).collect();
    let slot_requests = |cluster: &Cluster| -> u64 {
        others.iter().map(|at| counted(cluster, *at, "commandstats", "cmdstat_cluster|slots:calls=")).sum()
    };
    let before = slot_requests(&cluster);
    cluster.nodes()[at].kill().expect("killed");
    let calls = clients.iter().enumerate().map(|(number, client)| {
        let mutex = client.mutex(format!("{{m}}{number}")).expect("a good name");
        async move { mutex.try_acquire().await }
    });
    let start = Instant::now();
    let failed = futures_util::future::join_all(calls).await;
    assert!(failed.iter().all(Result::is_err));
    let seconds = start.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    let rate = (slot_requests(&cluster) - before) as f64 / seconds / CLIENTS as f64;
    cluster.nodes()[at].restart().expect("it boots");
    let connected = || counted(&cluster, at, "stats", "total_connections_received:");
    until("the cluster has recovered", 20 * S, async || {
        let mutex = clients[0].mutex("{m}0").expect("a good name");
        mutex.try_acquire().await.is_ok()
    })
    .await;
    tokio::time::sleep(3 * S).await;
    println!("each sent {rate:.1} requests a second; {} connections after the restart", connected());
    // Two stores with a connection for calls and one for subscriptions each; the test's own; and the nodes'.
    assert!(rate < 8.0, "{rate}");
    assert!(connected() < CLIENTS * 8, "{}", connected());
}

/// Row 39: while a cluster reports that it is down, one call at a time probes it on behalf of all, whether they use
/// one slot or many; then all holds are extended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_39_a_cluster_that_is_down_gets_few_requests() {
    const HOLDS: u64 = 200;
    const LEASE: Duration = Duration::from_secs(9);
    let cluster = primaries();
    let unused = cluster.slot("nothing is here").expect("a slot");
    let owner = cluster.owner(unused).expect("an owner");
    let slot = unused.to_string();
    let ours = quick(&cluster.url(), 2 * S, LEASE).await;
    let mut guards = Vec::new();
    for number in 0..HOLDS {
        for name in [format!("{number}"), format!("{{m}}{number}")] {
            let held = ours.mutex(name).expect("a good name");
            guards.push(held.acquire().await.expect("acquired"));
        }
    }
    let shortest = || guards.iter().map(Guard::remaining).min().unwrap_or_default();
    until("all have their whole lease", SOON, async || shortest() > LEASE / 2).await;
    // Its owner first, and again until all know it: a message of the owner that is still on its way gives it the slot back.
    let delete = || {
        for at in [owner].into_iter().chain(0..3) {
            cluster.node(at).cli(&["CLUSTER", "DELSLOTS", &slot]).expect("a reply");
        }
    };
    let is = |state: &str| (0..3).all(|at| cluster_state(&cluster, at) == state);
    let is_down = async || {
        delete();
        is("fail")
    };
    until("the cluster is down", SOON, is_down).await;
    let refused = || (0..3).map(|at| rejected(&cluster, at)).sum::<u64>();
    let (before, start) = (refused(), Instant::now());
    // Every hold is due for renewal in that time.
    tokio::time::sleep(LEASE / 3).await;
    let (refused, seconds) = (refused() - before, start.elapsed().as_secs_f64());
    cluster.node(owner).cli(&["CLUSTER", "ADDSLOTS", &slot]).expect("a reply");
    until("the cluster is well", SOON, async || is("ok")).await;
    until("all are extended", SOON, async || shortest() > LEASE / 2).await;
    println!("{refused} calls were refused in {seconds:.1} s, of {} holds", guards.len());
    // 6000 if every hold sent its own request.
    assert!(refused < 1500, "{refused}");
    for guard in guards {
        guard.release().await.expect("released");
    }
}

fn cluster_state(cluster: &Cluster, at: usize) -> String {
    let info = cluster.node(at).cli(&["CLUSTER", "INFO"]).expect("a reply");
    let state =
        info.text().and_then(|text| text.lines().find_map(|line| line.strip_prefix("cluster_state:")));
    state.unwrap_or_default().trim().to_owned()
}
