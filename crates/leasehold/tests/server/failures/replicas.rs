//! Acquires that wait for the acknowledgement of a replica: row 30.

use super::fixture::{MS, S, client, mutex, quick, server, until, until_free, within};
use leasehold::core::{
    Acquire, Acquired, Claim, Extend, Extended, HoldId, Kind, Label, Liveness, Lock, LockMode, Op, OwnValue,
    Release, ReleaseAction, Reply, SessionId,
};
use leasehold::error::AcquireError;
use leasehold::store::{FaultKind, Outcome, RedisStore, Store};
use leasehold::{Attempt, Client};
use leasehold_testkit::{Proxy, RedisServer, Sentinels, Stopwatch};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A server and a replica that has finished its initial synchronization.
async fn pair() -> (RedisServer, RedisServer) {
    let primary = server();
    let at = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder().config("replicaof", at).start().expect("redis-server boots");
    // Otherwise the initial synchronization starts with a delay of seconds.
    primary.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]).expect("a reply").ok().expect("set");
    // The primary counts a replica for `WAIT` before it has loaded the snapshot, while it has no data yet.
    until("a replica that has copied all", 20 * S, async || {
        let info = replica.cli(&["INFO", "replication"]).expect("a reply");
        info.text().is_some_and(|text| text.contains("master_link_status:up"))
    })
    .await;
    let mut connection = primary.connect().expect("a connection");
    connection.call(&["SET", "first", "", "PX", "1"]).expect("a reply");
    assert_eq!(connection.call(&["WAIT", "1", "4000"]).expect("a reply").integer(), Some(1));
    (primary, replica)
}

/// A client whose acquires wait for one replica.
async fn careful(server: &RedisServer, call: Duration) -> Client {
    let url = format!("{}?replicas=1", server.url());
    Client::builder(url).call_timeout(call).connect().await.expect("the server can be reached")
}

fn unconfirmed<T: std::fmt::Debug>(result: &Result<T, AcquireError>) {
    let Err(AcquireError::Unconfirmed(fault)) = result else { panic!("{result:?}") };
    assert_eq!(fault.kind, FaultKind::Unconfirmed { required: 1, confirmed: 0 }, "{fault}");
}

/// Row 30: when an acquire returns, the replica has the hold. While the replica is suspended no client acquires the
/// lock, and the unconfirmed hold is undone.
#[tokio::test]
async fn row_30_an_acquire_counts_once_a_replica_has_it() {
    let (primary, replica) = pair().await;
    let (ours, plain) = (careful(&primary, 5 * S).await, mutex(&client(&primary.url()).await));
    let (lock, hasty) = (mutex(&ours), mutex(&careful(&primary, 500 * MS).await));
    for _ in 0..20 {
        let guard = lock.acquire().await.expect("acquired");
        // The replica has acknowledged the hold, so there is no need to poll.
        let there = replica.cli(&["GET", "m"]).expect("a reply");
        assert_eq!(there.text().map(|token| &token[..16]), Some(&*ours.session_id().to_string()));
        guard.release().await.expect("released");
    }
    replica.stop().expect("stopped");
    unconfirmed(&hasty.acquire().await);
    until_free(&plain, S).await;
    unconfirmed(&hasty.try_acquire().await);
    until_free(&plain, S).await;
    replica.resume().expect("it goes on");
    within(10 * S, async { while lock.acquire().await.is_err() {} }).await;
}

/// Row 30: every kind of lock, and several at once.
#[tokio::test]
async fn row_30_no_kind_of_lock_is_acquired_without_the_replica() {
    let (primary, replica) = pair().await;
    let ours = careful(&primary, S).await;
    let reentrant = ours.reentrant_mutex("r").expect("a name").owned_by(&ours.new_owner());
    let permits = ours.semaphore("s", 3).expect("a name");
    let shared = ours.rwlock("w").expect("a name");
    let both = ours.multi_mutex(["a", "b"]).expect("names");
    let detached = ours.mutex("d").expect("a name").lease(10 * S);
    reentrant.acquire().await.expect("acquired").release().await.expect("released");
    permits.acquire_many(2).await.expect("acquired").release().await.expect("released");
    shared.read().await.expect("acquired").release().await.expect("released");
    both.acquire().await.expect("acquired").release().await.expect("released");
    let hold = detached.acquire_detached().await.expect("acquired");
    hold.release(&ours).await.expect("released");
    replica.stop().expect("stopped");
    unconfirmed(&reentrant.acquire().await);
    unconfirmed(&permits.acquire_many(2).await);
    unconfirmed(&shared.read().await);
    unconfirmed(&both.acquire().await);
    unconfirmed(&detached.acquire_detached().await);
    replica.resume().expect("it goes on");
    // No unconfirmed hold is left.
    within(10 * S, async { while shared.write().await.is_err() {} }).await;
    within(10 * S, async { while both.acquire().await.is_err() {} }).await;
    within(10 * S, async { while permits.acquire_many(3).await.is_err() {} }).await;
}

/// Row 30: a grant is confirmed although the client that released the lock, and so wrote the grant, does not wait
/// for replicas itself.
#[tokio::test]
async fn row_30_a_grant_counts_once_a_replica_has_it() {
    let (primary, replica) = pair().await;
    let (ours, theirs) = (mutex(&careful(&primary, S).await), mutex(&client(&primary.url()).await));
    let guard = theirs.acquire().await.expect("acquired");
    let waits = tokio::spawn({
        let ours = ours.clone();
        async move { ours.acquire().await }
    });
    super::fixture::until_waiting(&theirs, 1).await;
    replica.stop().expect("stopped");
    guard.release().await.expect("released");
    unconfirmed(&within(3 * S, waits).await.expect("no panic"));
    until_free(&theirs, S).await;
    replica.resume().expect("it goes on");
    within(10 * S, async { while ours.acquire().await.is_err() {} }).await;
}

/// Row 30: a waiter that gives up before its hold is confirmed hands it to no other waiter of its process.
#[tokio::test]
async fn row_30_what_is_not_confirmed_is_not_handed_off() {
    let (primary, replica) = pair().await;
    let ours = mutex(&careful(&primary, 20 * S).await);
    let plain = mutex(&client(&primary.url()).await);
    replica.stop().expect("stopped");
    let acquire = |ours: &leasehold::Mutex| {
        let ours = ours.clone();
        tokio::spawn(async move { ours.acquire().await })
    };
    let first = acquire(&ours);
    until("held", 5 * S, async || plain.inspect().await.is_ok_and(|status| status.held)).await;
    let second = acquire(&ours);
    tokio::time::sleep(100 * MS).await;
    first.abort();
    let held_by = async || plain.inspect().await.ok().and_then(|status| status.fence);
    let before = held_by().await;
    until("the next waiter requests it", 5 * S, async || held_by().await != before).await;
    tokio::time::sleep(200 * MS).await;
    assert!(!second.is_finished(), "it has no replica's word");
    replica.resume().expect("it goes on");
    within(10 * S, second).await.expect("no panic").expect("acquired").release().await.expect("released");
}

/// Row 51: a renewal counts once a replica has it. While the replica is suspended the hold ends with its lease, and if the
/// replica is back before that, the hold goes on.
#[tokio::test]
async fn row_51_a_renewal_counts_once_a_replica_has_it() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1", primary.url());
    let hold = async |name: &str, watchdog: Duration| {
        let client = quick(&url, 500 * MS, watchdog).await;
        client.mutex(name).expect("a good name").acquire().await.expect("acquired")
    };
    let (kept, lost) = (hold("kept", 30 * S).await, hold("lost", 4 * S).await);
    until("the first lease was extended", 10 * S, async || kept.remaining() > 5 * S).await;
    // Whatever the holder relies on, the replica has it; over two leases, so that renewals alone keep it.
    let mut connection = replica.connect().expect("a connection");
    let begun = std::time::Instant::now();
    while begun.elapsed() < 8 * S {
        for (guard, name) in [(&kept, "kept"), (&lost, "lost")] {
            let (remaining, asked) = (guard.remaining(), std::time::Instant::now());
            let ttl = connection.call(&["PTTL", name]).expect("a reply").integer().expect("a number");
            let ttl = Duration::from_millis(ttl.try_into().unwrap_or(0));
            assert!(ttl + asked.elapsed() >= remaining, "{name}: {ttl:?} at the replica, {remaining:?} here");
        }
        tokio::time::sleep(20 * MS).await;
    }
    lost.check().expect("it was renewed");
    replica.stop().expect("stopped");
    let error = kept.extend().await.expect_err("no replica has it");
    let leasehold::error::ExtendError::Store(fault) = &error else { panic!("{error:?}") };
    assert_eq!(fault.kind, FaultKind::Unconfirmed { required: 1, confirmed: 0 }, "{fault}");
    let loss = within(10 * S, lost.lost()).await;
    assert_eq!(loss.reason, leasehold::LostReason::Expired);
    kept.check().expect("its last confirmed lease lasts");
    replica.resume().expect("it goes on");
    within(20 * S, async { while kept.extend().await.is_err() {} }).await;
    let ttl = replica.cli(&["PTTL", "kept"]).expect("a reply").integer().expect("a number");
    assert!(ttl > 25_000, "{ttl}");
}

/// An acquire for a minute, whose hold ends by its lease alone.
fn acquire_op(claim: &Claim, mode: LockMode) -> Op {
    Op::Acquire(Acquire {
        claim: claim.clone(),
        lease_ms: 60_000,
        label: Label::new("test").expect("a label"),
        queue: None,
        expire_foreign_ms: None,
        liveness: Liveness::Lease,
        predecessor: None,
        mode,
    })
}

/// Row 51: a heartbeat counts once a replica has it. While the replica is suspended the session ends, and its hold with it,
/// although the primary has its heartbeats; if the replica is back before that, both go on.
#[tokio::test]
async fn row_51_a_heartbeat_counts_once_a_replica_has_it() {
    let (primary, replica) = pair().await;
    let url = format!("{}?replicas=1", primary.url());
    let ours = Client::builder(url).call_timeout(500 * MS).session_ttl(6 * S).connect().await;
    let ours = ours.expect("the server can be reached");
    let guard = mutex(&ours).acquire().await.expect("acquired");
    until("the first lease was extended", 10 * S, async || guard.remaining() > 3200 * MS).await;
    let record = format!("leasehold:{{sessions}}:{}", ours.session_id());
    let mut connection = replica.connect().expect("a connection");
    // Whatever the holder relies on, the replica has it: its lease of 30 s is longer than the session.
    let mut replica_has_it = || {
        let (remaining, asked) = (guard.remaining(), std::time::Instant::now());
        let time = connection.call(&["TIME"]).expect("a reply");
        let now: Vec<u64> = time
            .elements()
            .iter()
            .map(|part| part.text().expect("a text").parse().expect("a number"))
            .collect();
        let now_ms = now[0] * 1000 + now[1] / 1000;
        let alive_until = connection.call(&["HGET", &record, "until"]).expect("a reply");
        let alive_until: u64 = alive_until.text().expect("a record").parse().expect("a number");
        let alive = Duration::from_millis(alive_until.saturating_sub(now_ms));
        assert!(alive + asked.elapsed() + MS >= remaining, "{alive:?} at the replica, {remaining:?} here");
    };
    let begun = std::time::Instant::now();
    while begun.elapsed() < 8 * S {
        replica_has_it();
        tokio::time::sleep(20 * MS).await;
    }
    replica.stop().expect("stopped");
    tokio::time::sleep(2 * S).await;
    replica.resume().expect("it goes on");
    until("a heartbeat is confirmed", 10 * S, async || guard.remaining() > 5 * S).await;
    replica_has_it();
    replica.stop().expect("stopped");
    let loss = within(10 * S, guard.lost()).await;
    assert_eq!(loss.reason, leasehold::LostReason::SessionLapsed);
    let answers = primary.cli(&["EXISTS", &record]).expect("a reply").integer();
    assert_eq!(answers, Some(1), "the primary has its heartbeats");
}

/// A hold that is released while its extend is being confirmed delays neither its release nor the other holds of the batch.
#[tokio::test]
async fn a_release_that_crosses_with_a_confirmation_delays_nothing() {
    const LIMIT: Duration = Duration::from_secs(20);
    let (primary, _replica) = pair().await;
    let proxy = Proxy::to_server(&primary).expect("a proxy");
    let connect = async |url: String| {
        RedisStore::connect(url.parse().expect("a good URL")).await.expect("the server can be reached")
    };
    let (careful, plain) =
        (connect(format!("{}?replicas=1", proxy.url())).await, connect(primary.url()).await);
    let (mut locks, mut extends) = (Vec::new(), Vec::new());
    for n in [1, 2] {
        let lock = Lock::mutex(format!("job {n}").parse().expect("a good name"));
        let claim = Claim::new(HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]));
        let acquire = acquire_op(&claim, LockMode::Exclusive);
        let acquired = plain.execute(&lock, &acquire, LIMIT).await;
        assert!(matches!(acquired, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{acquired:?}");
        let extend =
            Extend { claim: claim.clone(), lease_ms: 90_000, keep_record: false, reserve: None, fence: None };
        extends.push((lock.clone(), Op::Extend(extend)));
        locks.push((lock, claim));
    }
    let extended = |outcome: &Outcome| matches!(outcome, Outcome::Done(Reply::Extend(Extended::Extended)));
    assert!(careful.execute_all(&extends, LIMIT).await.iter().all(extended), "both are confirmed");

    // The second script of the batch is the re-read on the other connection.
    let scripts = AtomicUsize::new(0);
    proxy.pause_requests(1, move |words| {
        words[0].eq_ignore_ascii_case(b"EVALSHA") && scripts.fetch_add(1, Ordering::Relaxed) == 1
    });
    let again = tokio::spawn(async move { careful.execute_all(&extends, LIMIT).await });
    until("the confirmation is under way", 10 * S, async || proxy.paused_requests() > 0).await;
    let (lock, claim) = locks[0].clone();
    let release = Op::Release(Release { claim, action: ReleaseAction::Grant, next: None, history: 0 });
    assert!(matches!(plain.execute(&lock, &release, LIMIT).await, Outcome::Done(_)));
    let start = Stopwatch::start();
    let _resumed = proxy.resume_requests();
    let outcomes = again.await.expect("no panic");
    start.assert_below(LIMIT / 2, "the batch waited for the time of its call");
    assert!(!extended(&outcomes[0]) && extended(&outcomes[1]), "{outcomes:?}");
}

/// Row 51: a client connects while no replica answers. It acquires nothing until one does, and its session begins then.
#[tokio::test]
async fn row_51_a_client_connects_while_no_replica_answers() {
    let (primary, replica) = pair().await;
    replica.stop().expect("stopped");
    let ours = careful(&primary, 500 * MS).await;
    unconfirmed(&mutex(&ours).try_acquire().await);
    replica.resume().expect("it goes on");
    let guard = within(20 * S, async {
        loop {
            if let Ok(guard) = mutex(&ours).acquire().await {
                return guard;
            }
        }
    })
    .await;
    until("the session has begun", 20 * S, async || guard.remaining() > 5 * S).await;
    let theirs = mutex(&client(&primary.url()).await);
    let waits = tokio::spawn(async move { theirs.acquire().await });
    super::fixture::until_waiting(&mutex(&ours), 1).await;
    guard.release().await.expect("released");
    let theirs = within(10 * S, waits).await.expect("no panic").expect("acquired");
    // It is waited for, and told of its grant.
    let again = {
        let ours = mutex(&ours);
        tokio::spawn(async move { ours.acquire().await })
    };
    super::fixture::until_waiting(&mutex(&client(&primary.url()).await), 1).await;
    theirs.release().await.expect("released");
    within(10 * S, again).await.expect("no panic").expect("acquired").release().await.expect("released");
}

/// Row 51: a promoted replica may have the place in the queue and not its grant, and grant the same hold anew. The earlier grant
/// is not confirmed by that, whatever the kind of lock.
#[tokio::test]
async fn row_51_a_hold_that_was_granted_anew_is_not_confirmed() {
    let (primary, _replica) = pair().await;
    let url = format!("{}?replicas=1", primary.url());
    let store =
        RedisStore::connect(url.parse().expect("a good URL")).await.expect("the server can be reached");
    let owner = OwnValue::new("an owner").expect("a short text");
    let kinds: [(Kind, LockMode, Option<OwnValue>); 4] = [
        (Kind::Mutex, LockMode::Exclusive, None),
        (Kind::Mutex, LockMode::Exclusive, Some(owner.clone())),
        (Kind::Reentrant, LockMode::Exclusive, Some(owner.clone())),
        (Kind::RwLock, LockMode::Read, Some(owner)),
    ];
    for (n, (kind, mode, value)) in (1..).zip(kinds) {
        let lock = Lock { kind, ..Lock::mutex(format!("job {n}").parse().expect("a good name")) };
        let hold = HoldId::from_random(SessionId::from_random([n; 12]), [n; 16]);
        let claim = Claim { hold, value };
        let acquire = acquire_op(&claim, mode);
        let acquire = async || match store.execute(&lock, &acquire, 20 * S).await {
            Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) => fence,
            other => panic!("{other:?}"),
        };
        let lost = acquire().await;
        store.confirm(&lock, &claim, lost, 20 * S).await.expect("the replica has it");
        primary.cli(&["FLUSHALL"]).expect("a reply").ok().expect("flushed");
        store.confirm(&lock, &claim, lost, 300 * MS).await.expect_err("it is gone");
        let anew = acquire().await;
        assert!(anew > lost);
        store.confirm(&lock, &claim, lost, 300 * MS).await.expect_err("that was another grant");
        store.confirm(&lock, &claim, anew, 20 * S).await.expect("the replica has this one");
    }
}

/// Row 54: a turn of a period that its replica does not know of is taken again after the promotion. With a confirmation each
/// turn is taken once: what the replica lacks is no turn.
#[tokio::test]
async fn row_54_a_confirmed_turn_is_taken_once() {
    let turn = |client: &Client, name: &str| client.once_per(name, 60 * S).expect("a good name");
    let is_taken = async |client: &Client, name: &str| match turn(client, name).try_start().await {
        Ok(Attempt::Granted(_)) => false,
        Ok(Attempt::Taken(_)) => true,
        other => panic!("{other:?}"),
    };
    let (primary, replica) = pair().await;
    let (ours, plain) = (careful(&primary, 500 * MS).await, client(&primary.url()).await);
    let Ok(Attempt::Granted(confirmed)) = turn(&ours, "confirmed").try_start().await else {
        panic!("the turn is free")
    };
    // The replica knows nothing from here on.
    replica.cli(&["REPLICAOF", "NO", "ONE"]).expect("a reply").ok().expect("promoted");
    confirmed.finish().await.expect("finished");
    unconfirmed(&turn(&ours, "late").try_start().await);
    assert!(!is_taken(&plain, "plain").await);
    let promoted = client(&replica.url()).await;
    assert!(is_taken(&promoted, "confirmed").await, "the replica had confirmed it");
    assert!(!is_taken(&promoted, "late").await, "it is taken once, here");
    assert!(!is_taken(&promoted, "plain").await, "as documented, it is taken twice");
}

/// Row 51: kinds of lock and holds whose extends do not share a call.
#[tokio::test]
async fn row_51_no_kind_of_lock_is_extended_without_the_replica() {
    let (primary, replica) = pair().await;
    let ours = quick(&format!("{}?replicas=1", primary.url()), S, 30 * S).await;
    let reentrant = ours.reentrant_mutex("r").expect("a name").owned_by(&ours.new_owner());
    let (permits, shared) = (ours.semaphore("s", 3).expect("a name"), ours.rwlock("w").expect("a name"));
    let both = ours.multi_mutex(["a", "b"]).expect("names");
    let detached = ours.mutex("d").expect("a name").lease(30 * S);
    let reentrant = reentrant.acquire().await.expect("acquired");
    let permits = permits.acquire_many(2).await.expect("acquired");
    let reader = shared.read().await.expect("acquired");
    let both = both.acquire().await.expect("acquired");
    let mut detached = detached.acquire_detached().await.expect("acquired");
    let mut extend_all = async || {
        [
            reentrant.extend().await.is_ok(),
            permits.extend().await.is_ok(),
            reader.extend().await.is_ok(),
            both.extend().await.is_ok(),
            detached.extend(&ours, 30 * S).await.is_ok(),
        ]
    };
    assert_eq!(extend_all().await, [true; 5]);
    replica.stop().expect("stopped");
    assert_eq!(extend_all().await, [false; 5]);
    replica.resume().expect("it goes on");
    within(20 * S, async { while extend_all().await != [true; 5] {} }).await;
}

/// Row 30: a client that waits for replicas survives a failover like any other: it repeats its request at the new
/// primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_30_a_waiter_for_replicas_survives_a_fail_over() {
    // The second server follows the new primary at once; the old one only when the Sentinels reconfigure it.
    let sentinels = Sentinels::start(2).expect("the servers boot");
    sentinels.wait_formed().expect("the Sentinels discover one another");
    let url = format!("{}?replicas=1", sentinels.url());
    let ours = mutex(&quick(&url, 30 * S, 30 * S).await);
    let old = sentinels.primary_index().expect("the Sentinels know the primary");
    let mut since_promoted = 0;
    let mut promoted = None;
    for round in 0.. {
        // A hold that was not replicated is lost in the failover; the release then reports it.
        let _ = within(40 * S, ours.acquire()).await.expect("acquired").release().await;
        if round == 20 {
            sentinels.fail_over().expect("the Sentinels start the failover");
            let sentinels = &sentinels;
            promoted = Some(tokio::task::block_in_place(|| sentinels.wait_promoted(old)).expect("promoted"));
        }
        since_promoted += usize::from(promoted.is_some());
        if since_promoted == 50 {
            break;
        }
    }
    assert_ne!(promoted, Some(old));
}
