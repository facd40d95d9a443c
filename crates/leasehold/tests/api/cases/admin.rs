//! What operators see and do, on every store: sessions, their holds, and locks that are taken by force or from dead
//! sessions.

use crate::cases::store::TestStore;
use leasehold::core::{
    Acquire, Acquired, Claim, Heartbeat, HeartbeatReply, HoldId, Kind, Label, Liveness, Lock, LockMode, Op,
    Partition, Reply, SessionId, SessionMetadata, SessionOp, SessionReply,
};
use leasehold::error::ForceReleaseError;
use leasehold::inspect::{Ended, ObservedHolder};
use leasehold::store::{
    MemoryStore, Notification, NotificationSink, Outcome, RedisConfig, RedisStore, SqliteStore, Store,
};
use leasehold::{Client, LostReason};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

on_every_store! {
    asynchronous:
    operators_find_the_holder_of_each_lock,
    a_forced_release_grants_to_the_next_waiter,
    only_the_holder_that_was_seen_loses_the_lock,
    held_by_this_client_is_the_answer_for_every_kind,
    a_history_lists_the_last_holds_that_were_released,
    every_kind_has_a_history_if_it_is_wanted,
    a_client_without_a_session_is_not_listed,
    what_clients_have_counted_is_in_the_store_when_they_end;
    memory: a_monitor_frees_the_locks_of_a_dead_session, operators_find_all_holders_of_a_shared_lock;
    sqlite: operators_find_all_holders_of_a_shared_lock;
    // With SQLite a session is dead once its process has ended; the tests of the program kill one.
    redis: a_monitor_frees_the_locks_of_a_dead_session;
}

/// A client with a label on its session.
pub(crate) async fn labelled(store: &TestStore, label: &str) -> Client {
    let client = store.builder().label(label).session_label("zone", "eu-1").connect().await;
    client.expect("the store of a case can be reached")
}

async fn open(store: &TestStore) -> Arc<dyn Store> {
    match store.url().split_once(':').expect("a scheme") {
        ("memory", name) => Arc::new(MemoryStore::named(name)),
        ("sqlite", path) => Arc::new(SqliteStore::open(path).await.expect("it opens")),
        _ => {
            let config = RedisConfig::from_url(store.url()).expect("a good URL");
            Arc::new(RedisStore::connect(config).await.expect("it connects"))
        }
    }
}

/// A session that holds a lock for a minute and soon counts as dead: it has reported the lock, and sends no more
/// heartbeats.
async fn dying(store: &TestStore, name: &str) -> SessionId {
    let lock = Lock::mutex(name.parse().expect("a good name"));
    dying_with(store, lock, &[LockMode::Exclusive]).await
}

/// The same with shared holds of a lock.
pub(crate) async fn dying_with(store: &TestStore, lock: Lock, modes: &[LockMode]) -> SessionId {
    let store = open(store).await;
    let session = SessionId::from_random(rand::random());
    store.open_mailbox(Partition::ONLY, session, Arc::new(IgnoredMailbox), S).await.expect("it opens");
    let about = SessionMetadata {
        label: Label::new("a dead session").expect("a label"),
        host: "far".into(),
        pid: 4711,
        program: "gone".into(),
        version: "0".into(),
        started_ms: 1_762_000_000_123,
        labels: [].into(),
    };
    let begin = Some(about.to_json());
    let beat = Heartbeat {
        session,
        alive_ms: 300,
        begin,
        acquired: vec![lock.clone()],
        released: vec![],
        renew_listing: true,
        activity: None,
    };
    let begun = store.execute_session(Partition::ONLY, &SessionOp::Heartbeat(beat), S).await;
    assert!(matches!(begun, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))), "{begun:?}");
    for portion in modes {
        let request = Acquire {
            claim: Claim::new(HoldId::from_random(session, rand::random())),
            lease_ms: 60_000,
            label: about.label.clone(),
            queue: None,
            expire_foreign_ms: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            predecessor: None,
            mode: *portion,
        };
        let granted = store.execute(&lock, &Op::Acquire(request), S).await;
        assert!(matches!(granted, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))), "{granted:?}");
    }
    session
}

struct IgnoredMailbox;

impl NotificationSink for IgnoredMailbox {
    fn deliver(&self, _: Notification) {}
    fn resubscribed(&self) {}
}

async fn operators_find_all_holders_of_a_shared_lock(store: &TestStore) {
    let (one, other) = (labelled(store, "billing").await, labelled(store, "shipping").await);
    let operator = store.client_of_leases("ops").await;
    let reading = [
        one.rwlock("index").unwrap().read().await.unwrap(),
        other.rwlock("index").unwrap().read().await.unwrap(),
    ];
    let permits = one.semaphore("uploads", 3).unwrap().acquire_many(2).await.unwrap();
    let arriving = other.latch("loaded", 2).unwrap();
    arriving.arrive().await.unwrap();
    let found = timeout(10 * S, async {
        loop {
            let mut locks = operator.locks().await.expect("the store answers").items;
            // An arrival has no session; only where each hold is visible is it listed.
            locks.retain(|lock| lock.name.as_str() != "loaded");
            if locks.len() == 2 && locks[0].status.shared_holders.len() == 2 {
                return locks;
            }
            sleep(20 * MS).await;
        }
    });
    let found = found.await.expect("both are reported");
    let [index, uploads] = found.as_slice() else { panic!("two: {found:?}") };
    assert_eq!((index.name.as_str(), index.kind), ("index", Kind::RwLock));
    for ((sharer, guard), client) in index.status.shared_holders.iter().zip(&reading).zip([&one, &other]) {
        assert_eq!((sharer.mode, sharer.fence), (LockMode::Read, Some(guard.fencing_token())));
        assert_eq!((sharer.owner.as_ref(), sharer.session), (Some(guard.owner()), Some(client.session_id())));
        let about = index.shared_holder_session(sharer).and_then(|session| session.metadata.as_ref());
        assert_eq!(about.expect("it is known").pid, std::process::id());
    }
    assert_eq!((uploads.name.as_str(), uploads.kind), ("uploads", Kind::Semaphore));
    assert_eq!((uploads.status.taken(), uploads.status.limit), (2, Some(3)));

    // One of them can be ended alone.
    let index = operator.rwlock("index").unwrap();
    let details = index.inspect_full().await.unwrap();
    let second = &details.status.shared_holders[1];
    assert_eq!(details.shared_holder_session(second).map(|session| session.id), Some(other.session_id()));
    index.force_release(second.observed().expect("it is held")).await.unwrap();
    let lost = timeout(2 * S, reading[1].lost()).await.expect("a notification reports it");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    reading[0].extend().await.expect("it is still held");
    let latch = operator.latch("loaded", 2).unwrap();
    let arrival =
        latch.inspect_full().await.unwrap().status.shared_holders[0].observed().expect("it is there");
    latch.force_release(arrival).await.unwrap();
    assert_eq!(arriving.arrived().await.unwrap(), 0);
    permits.release().await.unwrap();
}

async fn operators_find_the_holder_of_each_lock(store: &TestStore) {
    let (holder, operator) = (labelled(store, "billing").await, store.client_of_leases("ops").await);
    let guard = holder.mutex("long").unwrap().acquire().await.unwrap();
    let gone = holder.mutex("gone").unwrap().acquire().await.unwrap();
    let found = timeout(10 * S, async {
        loop {
            let locks = operator.locks().await.expect("the store answers");
            if locks.len() == 2 {
                return locks;
            }
            sleep(20 * MS).await;
        }
    });
    let found = found.await.expect("both are reported");
    let names: Vec<_> = found.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["gone", "long"], "by name");
    let long = &found[1];
    assert_eq!(long.status.holder.as_deref(), Some("billing"));
    assert_eq!(long.status.fence, Some(guard.fencing_token()));
    assert_eq!(long.status.session, Some(holder.session_id()));
    assert!(long.status.remaining.is_some() && long.status.since.is_some(), "{long:?}");
    let about =
        long.holder_session.as_ref().and_then(|session| session.metadata.as_ref()).expect("it is known");
    assert_eq!((about.pid, about.labels["zone"].as_str()), (std::process::id(), "eu-1"));

    // The list does not trust the report: it reads the lock.
    gone.release().await.unwrap();
    let locks = operator.locks().await.unwrap();
    assert_eq!(locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["long"]);

    let sessions = operator.sessions().await.unwrap();
    let session = sessions.iter().find(|s| s.id == holder.session_id()).expect("it is there");
    assert!(session.alive_for.is_some() && session.since().is_some(), "{session:?}");
    assert!(session.locks.iter().any(|lock| lock.name.as_str() == "long"), "{session:?}");
    let details = operator.mutex("long").unwrap().inspect_full().await.unwrap();
    assert_eq!(details.holder_session.as_ref().map(|s| s.id), Some(holder.session_id()));
    assert_eq!(details.observed, Some(ObservedHolder::Hold(guard.fencing_token())));
    guard.release().await.unwrap();
}

async fn a_forced_release_grants_to_the_next_waiter(store: &TestStore) {
    let (holder, waiter) = (labelled(store, "billing").await, labelled(store, "next").await);
    let operator = store.client_of_leases("the night shift").await;
    let guard = holder.mutex("a").unwrap().lease(600 * S).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = waiter.mutex("a").unwrap();
        async move { mutex.acquire_timeout(20 * S).await }
    });
    let mutex = operator.mutex("a").unwrap();
    while mutex.inspect().await.unwrap().waiting == 0 {
        sleep(5 * MS).await;
    }
    // The extend to the full lease is over, so that it cannot be what detects the loss.
    while guard.remaining() < 5 * S && mutex.inspect().await.unwrap().remaining < Some(60 * S) {
        sleep(5 * MS).await;
    }
    let seen = mutex.inspect_full().await.unwrap().observed.expect("it is held");
    mutex.force_release(seen).await.expect("it is still held as it was seen");
    let lost =
        timeout(2 * S, guard.lost()).await.expect("a notification reports it, long before the lease ends");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    let next = waiting.await.unwrap().expect("it was handed off");
    assert!(next.fencing_token() > guard.fencing_token());

    let audit = mutex.inspect_full().await.unwrap().audit;
    let [entry] = audit.as_slice() else { panic!("one entry: {audit:?}") };
    assert_eq!((entry.ended, entry.fence), (Ended::ForceReleased, Some(guard.fencing_token())));
    assert_eq!(entry.holder.as_ref().map(Label::as_str), Some("billing"));
    assert_eq!(entry.actor.as_str(), "the night shift");
    next.release().await.unwrap();
}

async fn what_clients_have_counted_is_in_the_store_when_they_end(store: &TestStore) {
    let (one, other) = (labelled(store, "billing").await, labelled(store, "export").await);
    for (client, name) in [(&one, "a/1"), (&one, "a/2"), (&other, "a/3"), (&other, "b")] {
        let guard = client.mutex(name).unwrap().acquire().await.unwrap();
        sleep(20 * MS).await;
        guard.release().await.unwrap();
    }
    let given = one.mutex("of a class").unwrap().class("a/*").acquire().await.unwrap();
    given.release().await.unwrap();
    for client in [one, other] {
        client.shutdown(20 * S).await.unwrap();
    }
    let reader = store.builder().without_session().connect().await.unwrap();
    let found = reader.lock_statistics().await.unwrap();
    assert!(found.skipped.is_empty(), "{found:?}");
    let [a, b] = &found[..] else { panic!("{found:?}") };
    assert_eq!((a.class.as_str(), b.class.as_str()), ("a/*", "b"));
    assert_eq!((a.holds.count(), a.waits.count(), b.holds.count(), b.losses), (4, 4, 1, 0), "{found:?}");
    assert!(b.longest_hold >= 20 * MS && b.from < b.to, "{b:?}");
}

async fn a_history_lists_the_last_holds_that_were_released(store: &TestStore) {
    let (ours, theirs) = (labelled(store, "billing").await, labelled(store, "export").await);
    let (plain, kept) = (theirs.mutex("a").unwrap(), ours.mutex("a").unwrap().history(3));
    plain.acquire().await.unwrap().release().await.unwrap();
    let history = async || plain.inspect_full().await.unwrap().history;
    assert_eq!(history().await, [], "neither of them wants it yet");
    let mut fences = Vec::new();
    for n in 0..5 {
        let guard = kept.acquire().await.unwrap();
        fences.push(Some(guard.fencing_token()));
        sleep(5 * MS).await;
        if n == 3 {
            drop(guard);
            ours.flush().await;
        } else {
            guard.release().await.unwrap();
        }
    }
    // What does not want a history leaves it as it is, and so does what ends by force.
    plain.acquire().await.unwrap().release().await.unwrap();
    let guard = kept.acquire().await.unwrap();
    let seen = plain.inspect_full().await.unwrap().observed.expect("held");
    plain.force_release(seen).await.unwrap();
    drop(guard);
    ours.flush().await;
    let listed = history().await;
    let newest: Vec<_> = listed.iter().map(|entry| entry.fence).collect();
    assert_eq!(newest, fences.iter().rev().take(3).copied().collect::<Vec<_>>());
    for entry in &listed {
        assert_eq!(entry.label.as_str(), "billing");
        assert!(entry.to_ms - entry.from_ms >= 4, "{entry:?}");
    }
    assert!(listed.windows(2).all(|pair| pair[0].from_ms >= pair[1].to_ms), "{listed:?}");
    ours.mutex("a").unwrap().history(1).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(history().await.len(), 1, "the last release says how many are kept");
}

async fn every_kind_has_a_history_if_it_is_wanted(store: &TestStore) {
    let client = store.builder().label("billing").history(200).connect().await.unwrap();
    let election = client.election("e").unwrap();
    election.campaign().await.unwrap().resign().await.unwrap();
    let reentrant = client.reentrant_mutex("r").unwrap();
    reentrant.acquire().await.unwrap().release().await.unwrap();
    let semaphore = client.semaphore("s", 2).unwrap();
    let permits = [semaphore.acquire().await.unwrap(), semaphore.acquire().await.unwrap()];
    for permit in permits {
        permit.release().await.unwrap();
    }
    let lock = client.rwlock("w").unwrap();
    lock.read().await.unwrap().release().await.unwrap();
    lock.write().await.unwrap().release().await.unwrap();
    let counted = [
        election.inspect_full().await.unwrap().history.len(),
        reentrant.inspect_full().await.unwrap().history.len(),
        semaphore.inspect_full().await.unwrap().history.len(),
        lock.inspect_full().await.unwrap().history.len(),
    ];
    assert_eq!(counted, [1, 1, 2, 2]);
    // Of several locks, and of a lock for which this handle wants none.
    client.multi_mutex(["m"]).unwrap().acquire().await.unwrap().release().await.unwrap();
    assert_eq!(client.mutex("m").unwrap().inspect_full().await.unwrap().history.len(), 1);
    client.mutex("n").unwrap().history(0).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(client.mutex("n").unwrap().inspect_full().await.unwrap().history, []);
}

async fn only_the_holder_that_was_seen_loses_the_lock(store: &TestStore) {
    let holder = labelled(store, "billing").await;
    let (operator, other) = (store.client_of_leases("ops").await, store.client_of_leases("another").await);
    let first = holder.mutex("a").unwrap().acquire().await.unwrap();
    let mutex = operator.mutex("a").unwrap();
    let seen = mutex.inspect_full().await.unwrap().observed.expect("it is held");
    first.release().await.unwrap();
    let error = mutex.force_release(seen).await.expect_err("it is free");
    assert!(
        matches!(&error, ForceReleaseError::Changed { contention: now } if now.holder.is_none()),
        "{error:?}"
    );
    let second = holder.mutex("a").unwrap().acquire().await.unwrap();
    let error = mutex.force_release(seen).await.expect_err("it is another hold by now");
    assert!(error.to_string().contains("held by billing"), "{error}");
    second.extend().await.expect("it is still held");

    let seen = ObservedHolder::Hold(second.fencing_token());
    mutex.force_release(seen).await.unwrap();
    mutex.force_release(seen).await.expect("a second request has the same result");
    let error = other.mutex("a").unwrap().force_release(seen).await.expect_err("another client did it");
    assert!(matches!(error, ForceReleaseError::Changed { .. }), "{error:?}");
    assert_eq!(second.lost().await.reason, LostReason::ForceReleased);
}

async fn a_monitor_frees_the_locks_of_a_dead_session(store: &TestStore) {
    let (live, operator) = (labelled(store, "alive").await, store.client_of_leases("ops").await);
    let kept = live.mutex("kept").unwrap().acquire().await.unwrap();
    let session = dying(store, "left").await;
    let mutex = operator.mutex("left").unwrap();
    let mut monitor = operator.monitor();
    let mut evictions = 0;
    let freed = timeout(10 * S, async {
        loop {
            let round = monitor.run_once().await;
            assert!(round.fault.is_none(), "{round:?}");
            for evicted in round.evicted {
                assert_eq!((evicted.name.as_str(), evicted.session), ("left", session));
                assert_eq!(evicted.label.as_ref().map(Label::as_str), Some("a dead session"));
                evictions += 1;
            }
            if !mutex.inspect().await.unwrap().held {
                return;
            }
            sleep(20 * MS).await;
        }
    });
    freed.await.expect("long before the lease ends");
    let audit = mutex.inspect_full().await.unwrap().audit;
    assert!(audit.len() == 1 && audit[0].ended == Ended::Evicted, "{audit:?}");
    assert_eq!(evictions, 1);
    let round = monitor.run_once().await;
    assert!(round.evicted.is_empty() && round.remaining == 0, "{round:?}");
    kept.release().await.expect("its session lives");
}

async fn a_client_without_a_session_is_not_listed(store: &TestStore) {
    let operator = store.client_of_leases("ops").await;
    let held = operator.mutex("a").unwrap().acquire().await.unwrap();
    if store.url().starts_with("sqlite:") {
        // With SQLite each hold is visible, but its session is unknown.
        let sessions = operator.sessions().await.unwrap();
        assert!(sessions.iter().all(|session| session.metadata.is_none()), "{sessions:?}");
        let locks = operator.locks().await.unwrap();
        assert!(locks.len() == 1 && locks[0].holder_session.is_none(), "{locks:?}");
    } else {
        assert!(operator.sessions().await.unwrap().is_empty());
        assert!(operator.locks().await.unwrap().is_empty());
    }
    let details = operator.mutex("a").unwrap().inspect_full().await.unwrap();
    assert!(details.status.held && details.status.session.is_none() && details.holder_session.is_none());
    held.release().await.unwrap();
}

async fn held_by_this_client_is_the_answer_for_every_kind(store: &TestStore) {
    // One label, and no session: neither tells the two apart.
    let connect =
        async || store.builder().label("worker").without_session().connect().await.expect("connected");
    let (here, elsewhere) = (connect().await, connect().await);
    macro_rules! check {
        ($make:expr, $lock:ident => $acquire:expr) => {
            let make: fn(&Client) -> _ = $make;
            let ($lock, other) = (make(&here), make(&elsewhere));
            let mine = async || $lock.inspect().await.expect("an answer").held_by_this_client;
            assert!(!mine().await, "{}", stringify!($acquire));
            let guard = $acquire.await.expect("acquired");
            assert!(mine().await, "{}", stringify!($acquire));
            assert!(
                !other.inspect().await.expect("an answer").held_by_this_client,
                "{}",
                stringify!($acquire)
            );
            guard.check().expect("held");
            drop(guard);
            here.flush().await;
            assert!(!mine().await, "{}", stringify!($acquire));
        };
    }
    check!(|client| client.mutex("mutex").expect("a name"), lock => lock.acquire());
    check!(|client| client.reentrant_mutex("reentrant").expect("a name"), lock => lock.acquire());
    check!(|client| client.election("election").expect("a name"), lock => lock.campaign());
    check!(|client| client.semaphore("semaphore", 3).expect("a name"), lock => lock.acquire());
    check!(|client| client.rwlock("read").expect("a name"), lock => lock.read());
    check!(|client| client.rwlock("write").expect("a name"), lock => lock.write());
    let keyed = here.keyed_semaphore("keyed", 3, 1).expect("good numbers");
    check!(|client| client.keyed_semaphore("keyed", 3, 1).expect("good numbers").all().clone(), _lock => keyed.acquire("x"));
    check!(|client| client.keyed_semaphore("keyed", 3, 1).expect("good numbers").of_key("x"), _lock => keyed.acquire("x"));
    let both = here.multi_mutex(["one", "two"]).expect("names");
    check!(|client| client.mutex("two").expect("a name"), _lock => both.acquire());
    let both = here.multi_reentrant_mutex(["three", "four"]).expect("names");
    check!(|client| client.reentrant_mutex("three").expect("a name"), _lock => both.acquire());
    // No client holds what belongs to no session and ends with its time, or is only counted.
    let hour = Duration::from_secs(3600);
    let period = here.once_per("period", hour).expect("a name");
    let run = period.try_start().await.expect("an answer").granted().expect("none runs");
    assert!(!period.inspect().await.expect("an answer").held_by_this_client, "see the guard");
    run.check().expect("its time is not over");
    run.fail().await.expect("given up");
    let latch = here.latch("latch", 2).expect("a name");
    latch.arrive().await.expect("counted");
    assert!(!latch.inspect().await.expect("an answer").held_by_this_client);
    let barrier = here.barrier("barrier", 2).expect("a name");
    assert!(!barrier.inspect().await.expect("an answer").held_by_this_client);
}
