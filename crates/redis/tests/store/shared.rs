//! Locks with several holders, whose keys others have changed.

use crate::fixture::{LONG, claim, connect, label};
use leasehold_core::{
    Acquire, Acquired, Claim, Extend, Extended, HoldStatus, Inspect, Kind, Liveness, LockMode, OwnValue,
    Release, ReleaseAction,
};
use leasehold_redis::RedisStore;
use leasehold_store::{Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::{RedisServer, Value};

const INDEX: &str = "leasehold:{job}:ends:rwlock:job";

fn reader(n: u8) -> Claim {
    Claim { value: OwnValue::new(format!("owner {n}")).ok(), ..claim(n) }
}

async fn execute(store: &RedisStore, op: Op) -> Reply {
    let lock = Lock { kind: Kind::RwLock, name: "job".parse().unwrap() };
    match store.execute(&lock, &op, LONG).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
    }
}

async fn acquire(store: &RedisStore, n: u8, mode: LockMode, lease_ms: u64) -> Reply {
    let (claim, label, liveness) = (reader(n), label(), Liveness::Lease);
    let request = Acquire {
        claim,
        lease_ms,
        label,
        queue: None,
        expire_foreign_ms: None,
        liveness,
        predecessor: None,
        mode,
    };
    execute(store, Op::Acquire(request)).await
}

async fn reads(store: &RedisStore, n: u8, lease_ms: u64) {
    let reply = acquire(store, n, LockMode::Read, lease_ms).await;
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
}

async fn release(store: &RedisStore, n: u8) -> HoldStatus {
    let release = Release { claim: reader(n), action: ReleaseAction::Grant, next: None, history: 0 };
    match execute(store, Op::Release(release)).await {
        Reply::Release(released) => released.status,
        other => panic!("{other:?}"),
    }
}

async fn extends(store: &RedisStore, n: u8) -> bool {
    let extend =
        Extend { claim: reader(n), lease_ms: 60_000, keep_record: false, reserve: None, fence: None };
    matches!(execute(store, Op::Extend(extend)).await, Reply::Extend(Extended::Extended))
}

async fn holders(store: &RedisStore) -> usize {
    match execute(store, Op::Inspect(Inspect { claim: None, details: false })).await {
        Reply::Inspect(inspection) => inspection.shared_holders.len(),
        other => panic!("{other:?}"),
    }
}

fn number(server: &RedisServer, command: &[&str]) -> i64 {
    server.cli(command).unwrap().integer().unwrap()
}

/// A hash that a client of another kind has added a field to is no such lock any more: nothing in it is ended.
#[tokio::test]
async fn a_foreign_field_ends_no_hold() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    // So many that the fields have no order.
    for n in 1..=200 {
        reads(&store, n, 60_000).await;
    }
    assert_eq!(server.cli(&["HSET", "job", "foreign", "x"]).unwrap(), Value::Integer(1));
    let fields = number(&server, &["HLEN", "job"]);
    for n in 1..=20 {
        assert_eq!(release(&store, n).await, HoldStatus::Superseded);
    }
    assert!(matches!(acquire(&store, 201, LockMode::Write, 60_000).await, Reply::Refused(_)));
    assert_eq!(number(&server, &["HLEN", "job"]), fields);
    assert_eq!(server.cli(&["HDEL", "job", "foreign"]).unwrap(), Value::Integer(1));
    assert_eq!(holders(&store).await, 200);
    assert_eq!(release(&store, 1).await, HoldStatus::Held);
    assert!(extends(&store, 2).await);
    assert_eq!(holders(&store).await, 199);
}

/// The index follows from the holds: without it, or with something else at its key, it is written anew, and then lasts as long
/// as the lock's key.
#[tokio::test]
async fn a_lost_index_is_written_anew() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for (round, spoil) in
        [&["DEL", INDEX][..], &["SET", INDEX, "x"], &["ZADD", INDEX, "1", "nothing"]].iter().enumerate()
    {
        // Each hold is used once.
        let first = u8::try_from(round).unwrap() * 10;
        for (n, lease_ms) in [(1, 3_600_000), (2, 60_000), (3, 60_000)] {
            reads(&store, first + n, lease_ms).await;
        }
        // The key lasts for an hour from now on.
        assert_eq!(release(&store, first + 1).await, HoldStatus::Held);
        server.cli(spoil).unwrap().ok().unwrap();
        assert!(extends(&store, first + 2).await, "after {spoil:?}");
        reads(&store, first + 4, 30_000).await;
        assert_eq!(number(&server, &["ZCARD", INDEX]), 3, "after {spoil:?}");
        let [index_ms, lock_ms] = [INDEX, "job"].map(|key| number(&server, &["PTTL", key]));
        assert!(lock_ms > 3_000_000 && index_ms > lock_ms - 10_000, "{index_ms}, {lock_ms}, after {spoil:?}");
        let writes = acquire(&store, first + 5, LockMode::Write, 30_000).await;
        assert!(matches!(writes, Reply::Acquire(Acquired::Taken { .. })), "{writes:?}");
        for n in first + 2..=first + 4 {
            assert_eq!(release(&store, n).await, HoldStatus::Held);
        }
        assert_eq!(server.cli(&["EXISTS", "job", INDEX]).unwrap(), Value::Integer(0), "after {spoil:?}");
    }
}
