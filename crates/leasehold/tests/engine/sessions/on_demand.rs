//! Sessions of a store with two partitions: they begin when they are needed, and end after their last use.

use super::fixture::{Connection, Fixture, MS, Machine, S};
use leasehold::error::ExtendError;
use leasehold::store::{Lock, MemoryStore, Outcome, SessionOp, Shards, Store};
use leasehold::{Client, LostReason};
use leasehold_core::{FIRST_LEASE, Partition};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A client of two partitions, and its connection to each.
async fn client_of_two(fixtures: [&Fixture; 2]) -> (Client, [Connection; 2]) {
    slow_client_of_two(fixtures, Duration::ZERO).await
}

/// The same with slow replies to heartbeats.
async fn slow_client_of_two(fixtures: [&Fixture; 2], slow: Duration) -> (Client, [Connection; 2]) {
    let connections = fixtures.map(|fixture| fixture.connection(slow));
    let shard = |n: usize| (n.to_string(), Arc::new(connections[n].clone()) as Arc<dyn Store>);
    let environment = Machine {
        started: fixtures[0].started,
        suspended_ms: Arc::default(),
        drawn: AtomicU64::new(fixtures[0].seed.fetch_add(1, SeqCst) << 48),
    };
    let client = Client::with_store(Shards::new([0, 1].map(shard)).unwrap())
        .environment(environment)
        .connect()
        .await
        .unwrap();
    (client, connections)
}

/// A name in each of them.
fn names() -> [String; 2] {
    let shard = |n: usize| (n.to_string(), Arc::new(MemoryStore::new()) as Arc<dyn Store>);
    let shards = Shards::new([0, 1].map(shard)).unwrap();
    [0, 1].map(|n| {
        let lies_there =
            |name: &String| shards.shard_of(&Lock::mutex(name.parse().unwrap())) == n.to_string();
        (0..100).map(|n| format!("m{n}")).find(lies_there).unwrap()
    })
}

/// A session begins when it is needed, ends when nothing has referred to it for half a minute, and begins again; it
/// does not end while a lock is held there or waited for.
#[tokio::test(start_paused = true)]
async fn sessions_begin_and_end_with_their_use() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (other, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [here, there] = names().map(|name| client.mutex(name).unwrap());
    let held = here.acquire().await.unwrap();
    assert!(fixtures[0].sessions().await.is_empty(), "a first lease needs none");
    sleep(2 * S).await;
    let [begun] = &fixtures[0].sessions().await[..] else { panic!("one session") };
    assert_eq!(begun.session, client.session_id());
    assert_eq!(begun.held.len(), 1, "it begins with what it holds");
    assert!(fixtures[1].sessions().await.is_empty(), "none is needed there");

    for _ in 0..2 {
        let guard = there.acquire().await.unwrap();
        sleep(2 * S).await;
        guard.release().await.unwrap();
        sleep(25 * S).await;
        assert_eq!(fixtures[1].sessions().await[0].session, client.session_id(), "it may be needed again");
        sleep(20 * S).await;
        assert!(fixtures[1].sessions().await.is_empty(), "nothing refers to it");
        held.check().expect("the lock in the other partition is unaffected");
    }

    // A waiter has no hold, and needs its session all the same.
    let taken = other.mutex(there.name().as_str()).unwrap().acquire().await.unwrap();
    let waits = tokio::spawn({
        let there = there.clone();
        async move { there.acquire().await }
    });
    sleep(120 * S).await;
    let sessions = fixtures[1].sessions().await;
    assert!(sessions.iter().any(|entry| entry.session == client.session_id() && entry.alive_ms.is_some()));
    taken.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    sleep(120 * S).await;
    guard.check().expect("a hold keeps its session");
    held.check().expect("so does this");
    guard.release().await.unwrap();
    held.release().await.unwrap();
    client.shutdown(S).await.unwrap();
    other.shutdown(S).await.unwrap();
    for fixture in &fixtures {
        assert!(fixture.sessions().await.is_empty(), "they have ended in order");
    }
}

/// Partitions are independent: the session of one lapses, and another begins there when it is needed and possible.
#[tokio::test(start_paused = true)]
async fn a_partition_that_is_cut_off_does_not_affect_the_others() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [here, there] = names().map(|name| client.mutex(name).unwrap());
    let (held, lost) = (here.acquire().await.unwrap(), there.acquire().await.unwrap());
    sleep(15 * S).await;
    connections[1].is_cut.store(true, SeqCst);
    let lost = lost.lost().await;
    assert_eq!(lost.reason, LostReason::SessionLapsed);
    assert!(there.acquire_timeout(S).await.is_err());
    // No task keeps retrying for a partition that is not needed.
    sleep(60 * S).await;
    let tried = connections[1].begins.load(SeqCst);
    sleep(600 * S).await;
    assert_eq!(connections[1].begins.load(SeqCst), tried);
    held.check().expect("it is elsewhere");
    connections[1].is_cut.store(false, SeqCst);
    let again = there.acquire().await.unwrap();
    sleep(60 * S).await;
    again.check().expect("it is alive again");
    let entries = fixtures[1].sessions().await;
    let alive: Vec<_> = entries.iter().filter(|entry| entry.alive_ms.is_some()).collect();
    assert_eq!(alive.len(), 1);
    assert_ne!(alive[0].session, client.session_id(), "a session that lapsed is never revived");
    held.check().expect("it is elsewhere");
}

/// The request to end a session may arrive late if its reply was lost: the next session has another id, so the request
/// does not end it.
#[tokio::test(start_paused = true)]
async fn a_session_whose_end_is_not_known_is_not_revived() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [_, there] = names().map(|name| client.mutex(name).unwrap());
    let first = there.acquire().await.unwrap();
    sleep(2 * S).await;
    first.release().await.unwrap();
    connections[1].loses_ends.store(true, SeqCst);
    sleep(45 * S).await;
    let guard = there.acquire().await.unwrap();
    sleep(2 * S).await;
    let late = SessionOp::End(client.session_id());
    assert!(matches!(fixtures[1].store.execute_session(Partition::ONLY, &late, S).await, Outcome::Done(_)));
    sleep(30 * S).await;
    guard.check().expect("its session is another one");
}

/// Locks that are held only briefly cost no session, however many partitions they are in.
#[tokio::test(start_paused = true)]
async fn brief_holds_begin_no_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    for _ in 0..10 {
        for name in names() {
            let guard = client.mutex(name.as_str()).unwrap().acquire().await.unwrap();
            sleep(500 * MS).await;
            guard.release().await.unwrap();
            let read = client.rwlock(format!("{name}/r")).unwrap().read().await.unwrap();
            sleep(500 * MS).await;
            read.release().await.unwrap();
        }
    }
    for (fixture, connection) in fixtures.iter().zip(&connections) {
        assert!(fixture.sessions().await.is_empty());
        assert_eq!((connection.begins.load(SeqCst), connection.heartbeats.load(SeqCst)), (0, 0));
    }
}

/// A reader excludes no other reader, and asks for its whole lease at once; but not before its session has begun, since
/// the store frees what an unknown session holds.
#[tokio::test(start_paused = true)]
async fn no_hold_outlives_a_session_that_has_not_begun() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let lock = client.rwlock(names()[0].as_str()).unwrap();
    let read = lock.read().await.unwrap();
    assert!(read.remaining() <= FIRST_LEASE, "{:?}", read.remaining());
    connections[0].is_cut.store(true, SeqCst);
    let since = Instant::now();
    let lost = read.lost().await;
    assert!(since.elapsed() <= FIRST_LEASE, "{lost}");
    // Nothing keeps retrying for a partition that is not needed.
    sleep(10 * S).await;
    let tried = connections[0].begins.load(SeqCst);
    assert!(tried > 0, "it was needed");
    sleep(600 * S).await;
    assert_eq!(connections[0].begins.load(SeqCst), tried);
}

/// A waiter that finds a lock taken begins its session, and the release grants the lock to it.
#[tokio::test(start_paused = true)]
async fn a_waiter_begins_its_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, _) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (other, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let [name, _] = names();
    let guard = client.mutex(name.as_str()).unwrap().acquire().await.unwrap();
    assert!(other.mutex(name.as_str()).unwrap().try_acquire().await.unwrap().granted().is_none());
    assert_eq!(connections[0].begins.load(SeqCst), 0, "a single attempt does not wait");
    let mutex = other.mutex(name.as_str()).unwrap();
    let waits = tokio::spawn(async move { (mutex.acquire().await, Instant::now()) });
    sleep(500 * MS).await;
    assert_eq!(connections[0].begins.load(SeqCst), 1);
    assert_eq!(client.mutex(name.as_str()).unwrap().inspect().await.unwrap().waiting, 1);
    let released = Instant::now();
    guard.release().await.unwrap();
    let (next, at) = waits.await.unwrap();
    assert!(at - released < 10 * MS, "{:?}", at - released);
    sleep(60 * S).await;
    next.unwrap().check().expect("it is kept");
}

/// The reply to the begin of a session is lost: it begins again with the same id, before the holds expire.
#[tokio::test(start_paused = true)]
async fn a_session_begins_though_the_first_reply_is_lost() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let (mutex, first_id) = (client.mutex(names()[0].as_str()).unwrap(), client.session_id());
    connections[0].lost_begins.store(2, SeqCst);
    let guard = mutex.acquire().await.unwrap();
    sleep(60 * S).await;
    guard.check().expect("it is kept");
    assert_eq!(connections[0].begins.load(SeqCst), 3);
    guard.release().await.unwrap();

    // The request whose reply was lost may arrive late, and must not begin the session that has ended.
    sleep(45 * S).await;
    assert!(fixtures[0].sessions().await.is_empty(), "nothing refers to it");
    let guard = mutex.acquire().await.unwrap();
    sleep(2 * S).await;
    let [begun] = &fixtures[0].sessions().await[..] else { panic!("one session") };
    assert_ne!(begun.session, first_id);
    guard.check().expect("it is kept");
}

/// What a request without a reply may have begun lapses. Later holds must not live with it.
#[tokio::test(start_paused = true)]
async fn a_session_that_lapsed_before_it_was_known_to_begin_has_another_id() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let mutex = client.mutex(names()[0].as_str()).unwrap();
    connections[0].lost_begins.store(u64::MAX, SeqCst);
    let guard = mutex.acquire().await.unwrap();
    let since = Instant::now();
    let lost = guard.lost().await;
    assert!(since.elapsed() <= FIRST_LEASE, "{lost}");
    connections[0].lost_begins.store(0, SeqCst);
    for _ in 0..30 {
        let guard = mutex.acquire().await.unwrap();
        let monitor = client.monitor().run_once().await;
        assert!(monitor.evicted.is_empty(), "{monitor:?}");
        guard.release().await.expect("no other client ended it");
        sleep(S).await;
    }
    let guard = mutex.acquire().await.unwrap();
    sleep(60 * S).await;
    guard.check().expect("it is kept");
}

/// A session that is shorter than a first lease would end before it: it begins first.
#[tokio::test(start_paused = true)]
async fn a_short_session_begins_before_anything_is_acquired() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let connections = [0, 1].map(|n: usize| fixtures[n].connection(Duration::ZERO));
    let shard = |n: usize| (n.to_string(), Arc::new(connections[n].clone()) as Arc<dyn Store>);
    let environment = Machine {
        started: fixtures[0].started,
        suspended_ms: Arc::default(),
        drawn: AtomicU64::new(1 << 48),
    };
    let store = Shards::new([0, 1].map(shard)).unwrap();
    let client =
        Client::with_store(store).environment(environment).session_ttl(2 * S).connect().await.unwrap();
    let guard = client.mutex(names()[0].as_str()).unwrap().acquire().await.unwrap();
    assert_eq!(connections[0].begins.load(SeqCst), 1);
    sleep(60 * S).await;
    guard.check().expect("it is kept");
}

/// A hold that changes hands within the process before its session has begun is reported once, and its end, too.
#[tokio::test(start_paused = true)]
async fn a_hold_handed_off_before_its_session_begins_is_reported_once() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, _) = slow_client_of_two([&fixtures[0], &fixtures[1]], 900 * MS).await;
    let mutex = client.mutex(names()[0].as_str()).unwrap();
    let tasks = (0..20).map(|_| {
        let mutex = mutex.clone();
        tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            sleep(100 * MS).await;
            guard.release().await.unwrap();
        })
    });
    futures_util::future::join_all(tasks).await.into_iter().for_each(|task| task.expect("no panic"));
    sleep(5 * S).await;
    let [session] = &fixtures[0].sessions().await[..] else { panic!("one session") };
    assert!(session.held.is_empty(), "{session:?}");
}

/// A session begins for an extend by the user as well, before anything else needs it.
#[tokio::test(start_paused = true)]
async fn an_extend_by_the_user_begins_the_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let mutex = client.mutex(names()[0].as_str()).unwrap().lease(2 * S);
    let guard = mutex.acquire().await.unwrap();
    assert_eq!(connections[0].begins.load(SeqCst), 0);
    guard.extend_to(60 * S).await.unwrap();
    assert_eq!(connections[0].begins.load(SeqCst), 1);
    sleep(50 * S).await;
    guard.check().expect("it is kept, since its session lives");
    let other = client_of_two([&fixtures[0], &fixtures[1]]).await.0;
    assert!(other.mutex(guard.name().as_str()).unwrap().try_acquire().await.unwrap().granted().is_none());
    connections[0].is_cut.store(true, SeqCst);
    assert_eq!(guard.lost().await.reason, LostReason::SessionLapsed);
}

/// Without a session, an extend by the user fails in its time, and the hold ends with its first lease.
#[tokio::test(start_paused = true)]
async fn an_extend_by_the_user_fails_without_a_session() {
    let fixtures = [Fixture::new(), Fixture::new()];
    let (client, connections) = client_of_two([&fixtures[0], &fixtures[1]]).await;
    let guard = client.mutex(names()[0].as_str()).unwrap().lease(2 * S).acquire().await.unwrap();
    connections[0].is_cut.store(true, SeqCst);
    let since = Instant::now();
    assert!(matches!(guard.extend_to(60 * S).await, Err(ExtendError::Store(_) | ExtendError::Lost(_))));
    assert!(since.elapsed() <= FIRST_LEASE, "{:?}", since.elapsed());
    guard.lost().await;
    assert!(since.elapsed() <= FIRST_LEASE, "{:?}", since.elapsed());
}
