//! What operators see and do, on every store: sessions, their holds, and locks that are taken by force or from dead
//! sessions.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use leasehold::core::{
    Acquire, Acquired, Claim, Heartbeat, HeartbeatReply, HoldId, Kind, Label, Liveness, Lock, LockMode, Op,
    Partition, Reply, SessionId, SessionMetadata, SessionOp, SessionReply,
};
use leasehold::store::{
    MemoryStore, Notification, NotificationSink, Outcome, RedisConfig, RedisStore, SqliteStore, Store,
};
use leasehold::{Client, Ended, ForceReleaseError, LostReason, ObservedHolder};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A store for one case.
struct Stand {
    url: String,
    server: Option<leasehold_testkit::RedisServer>,
    _dir: Option<tempfile::TempDir>,
}

impl Stand {
    fn memory() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let url = format!("memory:hands-{}", NEXT.fetch_add(1, Relaxed));
        Self { url, server: None, _dir: None }
    }

    fn sqlite() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let url = format!("sqlite:{}", dir.path().join("locks.db").display());
        Self { url, server: None, _dir: Some(dir) }
    }

    fn redis() -> Self {
        let server = leasehold_testkit::RedisServer::start().expect("redis-server boots");
        Self { url: server.url(), server: Some(server), _dir: None }
    }

    async fn client(&self, label: &str) -> Client {
        let client = Client::builder(&self.url).label(label).session_label("zone", "eu-1").connect().await;
        client.expect("the store of a case can be reached")
    }

    /// A client for an operator: it has no session at the store.
    async fn operator(&self, label: &str) -> Client {
        let client = Client::builder(&self.url).label(label).without_session().connect().await;
        client.expect("the store of a case can be reached")
    }

    async fn store(&self) -> Arc<dyn Store> {
        match self.url.split_once(':').expect("a scheme") {
            ("memory", name) => Arc::new(MemoryStore::named(name)),
            ("sqlite", path) => Arc::new(SqliteStore::open(path).await.expect("it opens")),
            _ => {
                let config = RedisConfig::from_url(&self.url).expect("a good URL");
                Arc::new(RedisStore::connect(config).await.expect("it connects"))
            }
        }
    }

    /// A session that holds a lock for a minute and soon counts as dead: it has reported the lock, and sends no more
    /// heartbeats.
    async fn dying(&self, name: &str) -> SessionId {
        let lock = Lock::mutex(name.parse().expect("a good name"));
        self.dying_with(lock, &[LockMode::Exclusive]).await
    }

    /// The same with shared holds of a lock.
    async fn dying_with(&self, lock: Lock, modes: &[LockMode]) -> SessionId {
        let store = self.store().await;
        let session = SessionId::from_random(rand::random());
        store.open_mailbox(Partition::ONLY, session, Arc::new(Deaf), S).await.expect("it opens");
        let about = SessionMetadata {
            label: Label::new("the dead").expect("a label"),
            host: "far".into(),
            pid: 4711,
            program: "gone".into(),
            version: "0".into(),
            started_ms: 1_762_000_000_123,
            labels: [].into(),
        };
        let begin = Some(about.to_json());
        let beat =
            Heartbeat { session, alive_ms: 300, begin, acquired: vec![lock.clone()], released: vec![] };
        let begun = store.execute_session(Partition::ONLY, &SessionOp::Heartbeat(beat), S).await;
        assert!(matches!(begun, Outcome::Done(SessionReply::Heartbeat(HeartbeatReply::Alive))), "{begun:?}");
        for mode in modes {
            let ask = Acquire {
                claim: Claim::new(HoldId::from_random(session, rand::random())),
                lease_ms: 60_000,
                label: about.label.clone(),
                queue: None,
                adopt_ms: None,
                liveness: Liveness::Session { alive_ms: 10_000 },
                predecessor: None,
                mode: *mode,
            };
            let granted = store.execute(&lock, &Op::Acquire(ask), S).await;
            assert!(
                matches!(granted, Outcome::Done(Reply::Acquire(Acquired::Granted { .. }))),
                "{granted:?}"
            );
        }
        session
    }
}

struct Deaf;

impl NotificationSink for Deaf {
    fn deliver(&self, _: Notification) {}
    fn resubscribed(&self) {}
}

macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        on_every_store! { @store memory $($case)* }
        on_every_store! { @store sqlite $($case)* }
        on_every_store! { @store redis $($case)* }
    };
    (@store $store:ident $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&super::Stand::$store()).await;
            })*
        }
    };
}

on_every_store! {
    people_find_who_holds_what,
    a_lock_is_freed_by_force_and_the_next_has_it,
    only_the_holder_that_was_seen_loses_the_lock,
    a_client_that_the_store_does_not_know_is_not_listed,
}

/// With SQLite a session is dead once its process has ended; the tests of the program kill one.
#[tokio::test]
async fn a_monitor_frees_what_the_dead_held_in_memory() {
    a_monitor_frees_what_the_dead_held(&Stand::memory()).await;
}

#[tokio::test]
async fn a_monitor_frees_what_the_dead_held_on_a_server() {
    a_monitor_frees_what_the_dead_held(&Stand::redis()).await;
}

#[tokio::test]
async fn operators_find_all_holders_of_a_shared_lock_in_memory() {
    people_find_all_who_share_a_lock(&Stand::memory()).await;
}

#[tokio::test]
async fn operators_find_all_holders_of_a_shared_lock_in_a_file() {
    people_find_all_who_share_a_lock(&Stand::sqlite()).await;
}

async fn people_find_all_who_share_a_lock(place: &Stand) {
    let (one, other) = (place.client("billing").await, place.client("shipping").await);
    let operator = place.operator("ops").await;
    let reading = [
        one.rwlock("index").unwrap().read().await.unwrap(),
        other.rwlock("index").unwrap().read().await.unwrap(),
    ];
    let permits = one.semaphore("uploads", 3).unwrap().acquire_many(2).await.unwrap();
    let arriving = other.latch("loaded", 2).unwrap();
    arriving.arrive().await.unwrap();
    let found = timeout(10 * S, async {
        loop {
            let mut locks = operator.locks().await.expect("the store answers");
            // An arrival has no session; only where each hold is visible is it listed.
            locks.retain(|lock| lock.name.as_str() != "loaded");
            if locks.len() == 2 && locks[0].status.sharers.len() == 2 {
                return locks;
            }
            sleep(20 * MS).await;
        }
    });
    let found = found.await.expect("both are reported");
    let [index, uploads] = found.as_slice() else { panic!("two: {found:?}") };
    assert_eq!((index.name.as_str(), index.kind), ("index", Kind::RwLock));
    for ((sharer, guard), client) in index.status.sharers.iter().zip(&reading).zip([&one, &other]) {
        assert_eq!((sharer.mode, sharer.fence), (LockMode::Read, Some(guard.fencing_token())));
        assert_eq!((sharer.owner.as_ref(), sharer.session), (Some(guard.owner()), Some(client.session())));
        let about = index.shared_holder_session(sharer).and_then(|session| session.about.as_ref());
        assert_eq!(about.expect("it is known").pid, std::process::id());
    }
    assert_eq!((uploads.name.as_str(), uploads.kind), ("uploads", Kind::Semaphore));
    assert_eq!((uploads.status.taken(), uploads.status.limit), (2, Some(3)));

    // One of them can be ended alone.
    let index = operator.rwlock("index").unwrap();
    let details = index.inspect_full().await.unwrap();
    let second = &details.status.sharers[1];
    assert_eq!(details.shared_holder_session(second).map(|session| session.session), Some(other.session()));
    index.force_release(second.seen().expect("it is held")).await.unwrap();
    let lost = timeout(2 * S, reading[1].lost()).await.expect("a notification reports it");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    reading[0].extend().await.expect("it is still held");
    let latch = operator.latch("loaded", 2).unwrap();
    let arrival = latch.inspect_full().await.unwrap().status.sharers[0].seen().expect("it is there");
    latch.force_release(arrival).await.unwrap();
    assert_eq!(arriving.arrived().await.unwrap(), 0);
    permits.release().await.unwrap();
}

/// Once, the first release removed the other holds from the list, and from the monitor's view.
#[tokio::test]
async fn a_session_that_releases_one_of_several_holds_is_still_listed() {
    let place = Stand::memory();
    let (client, operator) = (place.client("billing").await, place.operator("ops").await);
    let uploads = client.semaphore("uploads", 3).unwrap();
    let (one, other) = (uploads.acquire().await.unwrap(), uploads.acquire().await.unwrap());
    let listed = async |name: &str| {
        let locks = operator.locks().await.unwrap();
        locks.iter().any(|lock| lock.name.as_str() == name)
    };
    let soon_listed = async |name: &str| {
        timeout(10 * S, async {
            while !listed(name).await {
                sleep(5 * MS).await;
            }
        })
        .await
        .expect("it is reported");
    };
    one.extend().await.unwrap();
    other.extend().await.unwrap();
    soon_listed("uploads").await;
    one.release().await.unwrap();
    // A lock that is acquired later is reported by that heartbeat, or by a later one.
    let later = client.mutex("later").unwrap().acquire().await.unwrap();
    later.extend().await.unwrap();
    soon_listed("later").await;
    assert!(listed("uploads").await);
    let sessions = operator.sessions().await.unwrap();
    assert!(sessions[0].locks.iter().any(|lock| lock.name.as_str() == "uploads"), "{sessions:?}");
    other.release().await.unwrap();
}

/// On a server, scripts do the same; with SQLite a session is dead once its process has ended.
#[tokio::test]
async fn a_monitor_frees_all_that_the_dead_shared() {
    let place = Stand::memory();
    let (live, operator) = (place.client("alive").await, place.operator("ops").await);
    let kept = live.semaphore("uploads", 4).unwrap().acquire().await.unwrap();
    let two = LockMode::Permits { count: 1, total: 4 };
    let session = place.dying_with(Lock::semaphore("uploads".parse().unwrap()), &[two, two]).await;
    let semaphore = operator.semaphore("uploads", 4).unwrap();
    let mut monitor = operator.monitor();
    let mut evicted = Vec::new();
    timeout(10 * S, async {
        while semaphore.inspect().await.unwrap().taken() > 1 {
            let round = monitor.round().await;
            assert!(round.trouble.is_none(), "{round:?}");
            evicted.extend(round.evicted);
            sleep(20 * MS).await;
        }
    })
    .await
    .expect("long before the lease ends");
    let [eviction] = evicted.as_slice() else { panic!("one: {evicted:?}") };
    assert_eq!((eviction.name.as_str(), eviction.session), ("uploads", session));
    let audit = semaphore.inspect_full().await.unwrap().audit;
    assert!(audit.len() == 2 && audit.iter().all(|entry| entry.ended == Ended::Evicted), "{audit:?}");
    kept.release().await.expect("its session lives");
}

async fn people_find_who_holds_what(place: &Stand) {
    let (holder, operator) = (place.client("billing").await, place.operator("ops").await);
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
    assert_eq!(long.status.session, Some(holder.session()));
    assert!(long.status.remaining.is_some() && long.status.since.is_some(), "{long:?}");
    let about = long.behind.as_ref().and_then(|session| session.about.as_ref()).expect("it is known");
    assert_eq!((about.pid, about.labels["zone"].as_str()), (std::process::id(), "eu-1"));

    // The list does not trust the report: it reads the lock.
    gone.release().await.unwrap();
    let locks = operator.locks().await.unwrap();
    assert_eq!(locks.iter().map(|lock| lock.name.as_str()).collect::<Vec<_>>(), ["long"]);

    let sessions = operator.sessions().await.unwrap();
    let session = sessions.iter().find(|s| s.session == holder.session()).expect("it is there");
    assert!(session.alive_for.is_some() && session.since().is_some(), "{session:?}");
    assert!(session.locks.iter().any(|lock| lock.name.as_str() == "long"), "{session:?}");
    let details = operator.mutex("long").unwrap().inspect_full().await.unwrap();
    assert_eq!(details.behind.as_ref().map(|s| s.session), Some(holder.session()));
    assert_eq!(details.seen, Some(ObservedHolder::Hold(guard.fencing_token())));
    guard.release().await.unwrap();
}

async fn a_lock_is_freed_by_force_and_the_next_has_it(place: &Stand) {
    let (holder, waiter) = (place.client("billing").await, place.client("next").await);
    let operator = place.operator("the night shift").await;
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
    let seen = mutex.inspect_full().await.unwrap().seen.expect("it is held");
    mutex.force_release(seen).await.expect("it is still held as it was seen");
    let lost =
        timeout(2 * S, guard.lost()).await.expect("a notification reports it, long before the lease ends");
    assert_eq!(lost.reason, LostReason::ForceReleased);
    let next = waiting.await.unwrap().expect("it was handed on");
    assert!(next.fencing_token() > guard.fencing_token());

    let audit = mutex.inspect_full().await.unwrap().audit;
    let [entry] = audit.as_slice() else { panic!("one entry: {audit:?}") };
    assert_eq!((entry.ended, entry.fence), (Ended::ForceReleased, Some(guard.fencing_token())));
    assert_eq!(entry.holder.as_ref().map(Label::as_str), Some("billing"));
    assert_eq!(entry.actor.as_str(), "the night shift");
    next.release().await.unwrap();
}

async fn only_the_holder_that_was_seen_loses_the_lock(place: &Stand) {
    let holder = place.client("billing").await;
    let (operator, other) = (place.operator("ops").await, place.operator("another").await);
    let first = holder.mutex("a").unwrap().acquire().await.unwrap();
    let mutex = operator.mutex("a").unwrap();
    let seen = mutex.inspect_full().await.unwrap().seen.expect("it is held");
    first.release().await.unwrap();
    let error = mutex.force_release(seen).await.expect_err("it is free");
    assert!(matches!(&error, ForceReleaseError::Changed { now } if now.holder.is_none()), "{error:?}");
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

async fn a_monitor_frees_what_the_dead_held(place: &Stand) {
    let (live, operator) = (place.client("alive").await, place.operator("ops").await);
    let kept = live.mutex("kept").unwrap().acquire().await.unwrap();
    let session = place.dying("left").await;
    let mutex = operator.mutex("left").unwrap();
    let mut monitor = operator.monitor();
    let mut told = 0;
    let freed = timeout(10 * S, async {
        loop {
            let round = monitor.round().await;
            assert!(round.trouble.is_none(), "{round:?}");
            for evicted in round.evicted {
                assert_eq!((evicted.name.as_str(), evicted.session), ("left", session));
                assert_eq!(evicted.whose.as_ref().map(Label::as_str), Some("the dead"));
                told += 1;
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
    assert_eq!(told, 1);
    let round = monitor.round().await;
    assert!(round.evicted.is_empty() && round.left == 0, "{round:?}");
    kept.release().await.expect("its session lives");
}

async fn a_client_that_the_store_does_not_know_is_not_listed(place: &Stand) {
    let operator = place.operator("ops").await;
    let held = operator.mutex("a").unwrap().acquire().await.unwrap();
    if place.url.starts_with("sqlite:") {
        // With SQLite each hold is visible, but its session is unknown.
        let sessions = operator.sessions().await.unwrap();
        assert!(sessions.iter().all(|session| session.about.is_none()), "{sessions:?}");
        let locks = operator.locks().await.unwrap();
        assert!(locks.len() == 1 && locks[0].behind.is_none(), "{locks:?}");
    } else {
        assert_eq!(operator.sessions().await.unwrap(), []);
        assert_eq!(operator.locks().await.unwrap(), []);
    }
    let details = operator.mutex("a").unwrap().inspect_full().await.unwrap();
    assert!(details.status.held && details.status.session.is_none() && details.behind.is_none());
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_strangers_lock_is_freed_by_what_was_seen_of_it() {
    let place = Stand::redis();
    let server = place.server.as_ref().expect("it is there");
    let mutex = place.operator("ops").await.mutex("a").unwrap();
    server.cli(&["SET", "a", "first"]).expect("it answers");
    let seen = mutex.inspect_full().await.unwrap().seen.expect("it is held");
    assert!(matches!(seen, ObservedHolder::Foreign(_)), "{seen:?}");
    server.cli(&["SET", "a", "second"]).expect("it answers");
    let error = mutex.force_release(seen).await.expect_err("another client holds it");
    assert!(error.to_string().contains("a client of another library"), "{error}");
    let seen = mutex.inspect_full().await.unwrap().seen.expect("it is held");
    mutex.force_release(seen).await.expect("it is still held as it was seen");
    let details = mutex.inspect_full().await.unwrap();
    assert!(!details.status.held && details.audit.len() == 1 && details.seen.is_none(), "{details:?}");
}
