//! The stored format of this version, compared with a recorded file. A change here means that clients of this
//! version share the store with clients of the new one, and that existing data must still be understood.
//!
//! `LEASEHOLD_BLESS=1` rewrites the file, for new fields that older clients may ignore. Every other change needs a
//! new number in the records' `format`, and leaves this file as it is.

use crate::fixture::{LONG, claim, heartbeat, label, nonce};
use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, ForceRelease, HoldStatus, Inspect, Inspection, Kind, Liveness,
    LockMode, ObservedHolder, Release, ReleaseAction, Released,
};
use leasehold_redis::RedisStore;
use leasehold_store::{Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::{FrozenClock, RedisServer, Value};
use serde_json::{Map, Value as Json, json};

const FROZEN: &str = include_str!("format_1.json");
/// When all of it was written.
const NOW_US: i64 = 1_762_000_000_000_000;

fn frozen() -> (RedisServer, FrozenClock) {
    let clock = FrozenClock::new(NOW_US).unwrap();
    // Valkey's server takes its time from other sources, too.
    (RedisServer::builder().binary("redis-server").clock(&clock).start().unwrap(), clock)
}

async fn store(server: &RedisServer) -> RedisStore {
    RedisStore::connect(format!("{}?prefix=app:", server.url()).parse().unwrap()).await.unwrap()
}

fn lock(kind: Kind) -> Lock {
    let name = kind.as_str().parse().unwrap();
    Lock { kind, name }
}

/// The `n`th claim, with an owner for kinds that have owners.
fn owned(n: u8, kind: Kind) -> Claim {
    let value = kind.has_owners().then(|| leasehold_core::OwnValue::new(format!("owner:{n}")).unwrap());
    Claim { value, ..claim(n) }
}

async fn execute(store: &RedisStore, lock: &Lock, op: Op) -> Reply {
    match store.execute(lock, &op, LONG).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{lock}: {other:?}"),
    }
}

async fn ask(store: &RedisStore, kind: Kind, n: u8, mode: LockMode) -> Acquired {
    let queue = Some(Enqueue { nonce: nonce(n.into()), ttl_ms: 20_000 });
    let claim = owned(n, kind);
    let liveness = Liveness::Session { alive_ms: 60_000 };
    let (label, expire_foreign_ms, predecessor) = (label(), None, None);
    let ask =
        Acquire { claim, lease_ms: 20_000, label, queue, expire_foreign_ms, liveness, predecessor, mode };
    match execute(store, &lock(kind), Op::Acquire(ask)).await {
        Reply::Acquire(acquired) => acquired,
        other => panic!("{kind:?}: {other:?}"),
    }
}

async fn release(store: &RedisStore, kind: Kind, n: u8) -> HoldStatus {
    let op =
        Op::Release(Release { claim: owned(n, kind), action: ReleaseAction::Grant, next: None, history: 0 });
    match execute(store, &lock(kind), op).await {
        Reply::Release(Released { status, .. }) => status,
        other => panic!("{kind:?}: {other:?}"),
    }
}

async fn inspect(store: &RedisStore, kind: Kind) -> Inspection {
    let op = Op::Inspect(Inspect { claim: None, details: true });
    match execute(store, &lock(kind), op).await {
        Reply::Inspect(seen) => seen,
        other => panic!("{kind:?}: {other:?}"),
    }
}

/// Two requests for the same lock, the first of which is granted. A Latch and a Barrier wait for one more.
const PORTIONS: [(Kind, LockMode, LockMode); 7] = [
    (Kind::Mutex, LockMode::Exclusive, LockMode::Exclusive),
    (Kind::Reentrant, LockMode::Exclusive, LockMode::Exclusive),
    (Kind::Election, LockMode::Exclusive, LockMode::Exclusive),
    (Kind::Semaphore, LockMode::Permits { count: 2, total: 3 }, LockMode::Permits { count: 2, total: 3 }),
    (Kind::RwLock, LockMode::Read, LockMode::Write),
    (Kind::Latch, LockMode::CountDown { count: 1, total: 2 }, LockMode::LatchWait { total: 2 }),
    (Kind::Barrier, LockMode::BarrierWait { total: 3 }, LockMode::BarrierWait { total: 3 }),
];

/// Writes everything that is stored: for each kind a held lock with a waiter; a lock evicted from its holder; an
/// ended one; three sessions.
async fn write(store: &RedisStore) {
    for n in 1..=3 {
        let held = if n == 1 { vec![lock(Kind::Mutex)] } else { Vec::new() };
        heartbeat(store, n, Some(r#"{"label":"test"}"#), held).await;
    }
    for (kind, first, second) in PORTIONS {
        if kind.is_plain_string() || kind == Kind::Reentrant {
            let Acquired::Granted { fence, .. } = ask(store, kind, 4, LockMode::Exclusive).await else {
                panic!("{kind:?}")
            };
            let by_force =
                Op::ForceRelease(ForceRelease { actor: label(), observed: ObservedHolder::Hold(fence) });
            assert!(matches!(execute(store, &lock(kind), by_force).await, Reply::ForceRelease(_)));
            assert!(matches!(ask(store, kind, 5, LockMode::Exclusive).await, Acquired::Granted { .. }));
            assert_eq!(release(store, kind, 5).await, HoldStatus::Held);
        }
        ask(store, kind, 1, first).await;
        ask(store, kind, 2, second).await;
    }
}

/// All keys of a server, with their contents.
fn dump(server: &RedisServer) -> Json {
    let text = |value: &Value| value.text().unwrap().to_owned();
    let call = |command: &[&str]| server.cli(command).unwrap().ok().unwrap();
    let mut keys: Vec<_> = call(&["KEYS", "*"]).elements().iter().map(text).collect();
    keys.sort();
    let record = |key: &String| {
        let kind = text(&call(&["TYPE", key]));
        let content = match &*kind {
            "string" => json!(text(&call(&["GET", key]))),
            "hash" => pairs(&call(&["HGETALL", key])),
            "zset" => pairs(&call(&["ZRANGE", key, "0", "-1", "WITHSCORES"])),
            other => panic!("{key} is a {other}"),
        };
        json!({ "key": key, "type": kind, "ttl_ms": call(&["PTTL", key]).integer(), "content": content })
    };
    Json::Array(keys.iter().map(record).collect())
}

fn pairs(reply: &Value) -> Json {
    let pair = |pair: &[Value]| (pair[0].text().unwrap().to_owned(), json!(pair[1].text().unwrap()));
    Json::Object(reply.elements().chunks(2).map(pair).collect::<Map<_, _>>())
}

/// Loads the keys of another server.
fn load(server: &RedisServer, keys: &Json) {
    let text = |json: &Json| json.as_str().unwrap().to_owned();
    for record in keys.as_array().unwrap() {
        let (key, kind) = (text(&record["key"]), text(&record["type"]));
        let content = &record["content"];
        let mut command = vec![
            if kind == "string" {
                "SET"
            } else if kind == "hash" {
                "HSET"
            } else {
                "ZADD"
            }
            .to_owned(),
        ];
        command.push(key.clone());
        match content.as_object() {
            None => command.push(text(content)),
            Some(fields) if kind == "zset" => {
                command.extend(fields.iter().flat_map(|(of, at)| [text(at), of.clone()]));
            }
            Some(fields) => command.extend(fields.iter().flat_map(|(of, is)| [of.clone(), text(is)])),
        }
        server.cli(&command).unwrap().ok().unwrap();
        server.cli(&["PEXPIRE", &key, &record["ttl_ms"].to_string()]).unwrap().ok().unwrap();
    }
}

#[tokio::test]
async fn the_written_format_is_the_recorded_one() {
    let (server, _clock) = frozen();
    write(&store(&server).await).await;
    let written = serde_json::to_string_pretty(&dump(&server)).unwrap() + "\n";
    if std::env::var_os("LEASEHOLD_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/format_1.json");
        std::fs::write(path, &written).unwrap();
        return;
    }
    for (number, (was, is)) in FROZEN.lines().zip(written.lines()).enumerate() {
        assert_eq!(was, is, "line {} of format_1.json: see the head of this test", number + 1);
    }
    assert_eq!(FROZEN.lines().count(), written.lines().count());
}

/// A new client continues with the recorded data.
#[tokio::test]
async fn the_recorded_format_is_understood() {
    let (server, _clock) = frozen();
    load(&server, &serde_json::from_str(FROZEN).unwrap());
    assert_eq!(dump(&server), serde_json::from_str::<Json>(FROZEN).unwrap(), "it was loaded as it was");
    let store = store(&server).await;
    for (kind, _, second) in PORTIONS {
        let seen = inspect(&store, kind).await;
        assert_eq!(seen.waiters, if kind == Kind::Barrier { 2 } else { 1 }, "{kind:?}: {seen:?}");
        if kind.is_plain_string() || kind == Kind::Reentrant {
            assert_eq!(seen.audit.len(), 1, "{kind:?}: {seen:?}");
            let fate = |n| Op::Inspect(Inspect { claim: Some(owned(n, kind)), details: false });
            for (n, ended) in
                [(4, leasehold_core::Ended::ForceReleased), (5, leasehold_core::Ended::Released)]
            {
                let Reply::Inspect(seen) = execute(&store, &lock(kind), fate(n)).await else {
                    panic!("{kind:?}")
                };
                assert_eq!(seen.hold_status, Some(HoldStatus::Ended(ended)), "{kind:?}");
            }
        }
        if kind == Kind::Latch || kind == Kind::Barrier {
            assert_eq!(seen.limit, second.total(), "{kind:?}: {seen:?}");
            continue;
        }
        let holder = seen.holder.unwrap();
        assert_eq!(
            (holder.session, holder.label),
            (Some(claim(1).hold.session()), Some(label())),
            "{kind:?}"
        );
        assert_eq!(release(&store, kind, 1).await, HoldStatus::Held, "{kind:?}");
        let next = inspect(&store, kind).await.holder.unwrap();
        assert_eq!(next.session, Some(claim(2).hold.session()), "{kind:?}");
        assert!(next.fence > holder.fence, "{kind:?}");
        assert_eq!(release(&store, kind, 2).await, HoldStatus::Held, "{kind:?}");
    }
}
