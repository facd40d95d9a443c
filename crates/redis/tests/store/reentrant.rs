//! A ReentrantMutex on real servers: conflicting values, servers in trouble, and notifications from Redisson clients.
//! `tests/scripts` compares the results of its operations.

use leasehold_core::{
    Acquire, Acquired, Claim, Enqueue, Evict, Evicted, Extend, Extended, HoldId, HoldStatus, Holder, Inspect,
    Label, Liveness, LockMode, Nonce, OwnValue, OwnerHolds, Refused, Release, ReleaseAction, Released,
    SessionId,
};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_store::{Executed, FaultKind, Lock, Op, Outcome, Reply, Store, Subscription};
use leasehold_testkit::{RedisServer, Value};
use std::time::{Duration, Instant};

/// Long enough on a busy machine.
const LONG: Duration = Duration::from_secs(10);
const CHANNEL: &str = "redisson_lock__channel:{job}";

// The value at the key.

#[tokio::test]
async fn the_hash_is_redissons_with_one_field_of_ours() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let owner = "5b0f0b3e-5c3a-4f0e-9d0a-6a5d4c3b2a10:61";
    for n in 1..=2 {
        assert_eq!(entered(take(&store, n, owner).await).count, u64::from(n));
    }
    assert_eq!(server.cli(&["HGET", "job", owner]).unwrap().text(), Some("2"));
    assert_eq!(server.cli(&["HLEN", "job"]).unwrap().integer(), Some(2));
    assert!(ttl(&server) > 0);
    // A Redisson client with the same owner enters, too, and leaves last.
    server.cli(&["HINCRBY", "job", owner, "1"]).unwrap();
    assert_eq!(released(release(&store, 1, owner).await), (HoldStatus::Held, 2));
    assert_eq!(released(release(&store, 2, owner).await), (HoldStatus::Held, 1));
    let holder = taken(take(&store, 3, "another").await);
    assert!(holder.is_foreign());
    assert_eq!((holder.owner, holder.count), (OwnValue::new(owner).ok(), 1));
    server.cli(&["DEL", "job"]).unwrap();
    assert_eq!(entered(take(&store, 3, "another").await), OwnerHolds { count: 1, lease_ms: 20_000 });
}

#[tokio::test]
async fn what_is_no_such_lock_is_named_and_left_alone() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for (command, found) in [
        (&["SET", "job", "a token"][..], "string"),
        (&["LPUSH", "job", "x"], "list"),
        (&["HSET", "job", "one", "1", "two", "1"], "hash"),
        (&["HSET", "job", "visits", "0"], "hash"),
        (&["HSET", "job", "visits", "-1"], "hash"),
        (&["HSET", "job", "visits", "many"], "hash"),
        (&["HSET", "job", "visits", "1234567890123456"], "hash"),
        (&["HSET", "job", "leasehold", "1"], "hash"),
        (&["HSET", "job", "leasehold", "none", "theirs", "1"], "hash"),
        (&["HSET", "job", "leasehold", "1 2\ntheirs\nx", "others", "1"], "hash"),
        (&["HSET", "job", "leasehold", "1 2\ntheirs", "theirs", "1", "others", "1"], "hash"),
    ] {
        server.cli(&["DEL", "job"]).unwrap();
        server.cli(command).unwrap().ok().unwrap();
        let before = server.cli(&["DUMP", "job"]).unwrap();
        for op in [
            Op::Acquire(ask(1, "theirs", true)),
            Op::Inspect(Inspect { claim: None, details: true }),
            Op::Evict(Evict { session: session(1), actor: label() }),
        ] {
            let outcome = execute(&store, &op).await;
            let Outcome::Done(Reply::Refused(Refused::WrongKind { found: kind })) = outcome else {
                panic!("{command:?}: {outcome:?}")
            };
            assert_eq!(kind, found, "{command:?}");
        }
        assert_eq!(released(release(&store, 1, "theirs").await), (HoldStatus::Superseded, 0), "{command:?}");
        let extend = Op::Extend(Extend {
            claim: claim(1, "theirs"),
            lease_ms: 1_000,
            keep_record: true,
            reserve: None,
            fence: None,
        });
        assert!(matches!(execute(&store, &extend).await, Outcome::Done(Reply::Extend(Extended::NotHeld))));
        assert_eq!(server.cli(&["DUMP", "job"]).unwrap(), before, "{command:?}");
        assert_eq!(server.cli(&["KEYS", "*"]).unwrap().elements().len(), 1, "nothing was written");
    }
}

#[tokio::test]
async fn a_mutex_and_a_reentrant_mutex_of_one_name_exclude_each_other() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let mutex = Lock::mutex("job".parse().unwrap());
    let op = Op::Acquire(ask(1, "ours", false));
    entered(execute(&store, &op).await);
    let outcome = store.execute(&mutex, &op, LONG).await;
    assert!(
        matches!(&outcome, Outcome::Done(Reply::Refused(Refused::WrongKind { found })) if found == "hash"),
        "{outcome:?}"
    );
    assert_eq!(released(release(&store, 1, "ours").await), (HoldStatus::Held, 0));
    let outcome = store.execute(&mutex, &op, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Granted { owner_holds: None, .. }))));
    let outcome = execute(&store, &op).await;
    assert!(
        matches!(&outcome, Outcome::Done(Reply::Refused(Refused::WrongKind { found })) if found == "string"),
        "{outcome:?}"
    );
}

/// A Redisson client may choose any name.
#[tokio::test]
async fn an_owner_with_invalid_text_excludes_others_all_the_same() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let long = "x".repeat(300);
    for owner in [&b"\xff\xfe:1"[..], b"a\nb", "\u{85}".as_bytes(), long.as_bytes()] {
        server.cli(&["DEL", "job"]).unwrap();
        server.connect().unwrap().call(&[b"HSET", &b"job"[..], owner, b"3"]).unwrap().ok().unwrap();
        let holder = taken(take(&store, 1, "ours").await);
        assert_eq!((holder.is_foreign(), holder.owner, holder.count), (true, None, 3));
    }
}

#[tokio::test]
async fn an_owner_must_have_a_name_and_not_that_of_our_field() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let nameless = Claim { value: None, ..claim(1, "ours") };
    for claim in [nameless, claim(1, "leasehold")] {
        let ask = Acquire { claim: claim.clone(), ..ask(1, "ours", false) };
        let next = Some(ask.clone());
        for op in [
            Op::Acquire(ask),
            Op::Extend(Extend {
                claim: claim.clone(),
                lease_ms: 1,
                keep_record: false,
                reserve: None,
                fence: None,
            }),
            Op::Release(Release {
                claim: claim.clone(),
                action: ReleaseAction::Grant,
                next: None,
                history: 0,
            }),
            Op::Release(Release {
                claim: self::claim(1, "ours"),
                action: ReleaseAction::Grant,
                next,
                history: 0,
            }),
            Op::Inspect(Inspect { claim: Some(claim.clone()), details: false }),
        ] {
            let outcome = execute(&store, &op).await;
            assert!(
                matches!(outcome, Outcome::Done(Reply::Refused(Refused::NoOwner))),
                "{outcome:?}: {op:?}"
            );
        }
    }
    assert!(server.cli(&["KEYS", "*"]).unwrap().elements().is_empty());
}

// A server in trouble.

/// Failure row 37.
#[tokio::test]
async fn with_full_memory_no_new_owner_acquires_but_owners_extend_and_release() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    for n in 1..=3 {
        entered(take(&store, n, "ours").await);
    }
    let waiting = execute(&store, &Op::Acquire(ask(5, "theirs", true))).await;
    assert!(!taken(waiting).is_foreign());
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    for n in [6, 7] {
        let Outcome::Failed(Executed::No, fault) = execute(&store, &Op::Acquire(ask(n, "x", true))).await
        else {
            panic!("a queue entry needs memory")
        };
        assert_eq!(fault.kind, FaultKind::OutOfMemory);
    }
    let free = Lock::reentrant("free".parse().unwrap());
    let outcome = store.execute(&free, &Op::Acquire(ask(1, "ours", false)), LONG).await;
    assert!(matches!(outcome, Outcome::Failed(Executed::No, fault) if fault.kind == FaultKind::OutOfMemory));
    // A request that only extends a hold is a write as well, and so is one without a visible change in Redis.
    for lease_ms in [60_000, 60_001, 10] {
        for n in 1..=3 {
            let extend =
                Extend { claim: claim(n, "ours"), lease_ms, keep_record: true, reserve: None, fence: None };
            let outcome = execute(&store, &Op::Extend(extend)).await;
            assert!(matches!(outcome, Outcome::Done(Reply::Extend(Extended::Extended))), "{outcome:?}");
        }
    }
    assert_eq!(released(release(&store, 1, "ours").await), (HoldStatus::Held, 2));
    let outcome = execute(&store, &Op::Evict(Evict { session: session(2), actor: label() })).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::Evict(Evicted::Removed { fence: Some(_), .. }))),
        "{outcome:?}"
    );
    assert_eq!(server.cli(&["HGET", "job", "ours"]).unwrap().text(), Some("1"));
    assert_eq!(released(release(&store, 3, "ours").await), (HoldStatus::Held, 0));
    assert_eq!(server.cli(&["HGET", "job", "theirs"]).unwrap().text(), Some("1"), "and hands over");
    assert_eq!(released(release(&store, 5, "theirs").await), (HoldStatus::Held, 0));
    assert!(server.cli(&["HGETALL", "job"]).unwrap().elements().is_empty());
}

#[tokio::test]
async fn a_user_that_may_not_publish_releases_all_the_same() {
    let server = RedisServer::start().unwrap();
    server
        .cli(&["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all", "-publish"])
        .unwrap()
        .ok()
        .unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("mute").password("x");
    let store = RedisStore::connect(config).await.unwrap();
    entered(take(&store, 1, "ours").await);
    assert_eq!(released(release(&store, 1, "ours").await), (HoldStatus::Held, 0));
    entered(take(&store, 2, "theirs").await);
    taken(execute(&store, &Op::Acquire(ask(3, "ours", true))).await);
    assert_eq!(released(release(&store, 2, "theirs").await), (HoldStatus::Held, 0));
    entered(execute(&store, &Op::Acquire(ask(3, "ours", true))).await);
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let ops = [
        Op::Acquire(ask(1, "ours", true)),
        Op::Extend(Extend {
            claim: claim(1, "ours"),
            lease_ms: 30_000,
            keep_record: false,
            reserve: None,
            fence: None,
        }),
        Op::Inspect(Inspect { claim: Some(claim(1, "ours")), details: true }),
        Op::Release(Release {
            claim: claim(1, "ours"),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        }),
        Op::Evict(Evict { session: session(1), actor: label() }),
    ];
    for op in &ops {
        server.cli(&["SCRIPT", "FLUSH"]).unwrap();
        assert!(matches!(execute(&store, op).await, Outcome::Done(_)), "{op:?}");
    }
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    let ops: Vec<_> = ops.into_iter().map(|op| (job(), op)).collect();
    let outcomes = store.execute_all(&ops, LONG).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Done(_))), "{outcomes:?}");
}

// Notifications from Redisson clients.

#[tokio::test]
async fn a_subscriber_receives_each_release_once() {
    let server = RedisServer::start().unwrap();
    let (store, ours) = (connect(&server).await, connect(&server).await);
    let mut listening = listen(&store).await;
    receives(&mut listening).await; // a message may have been published before
    is_silent(&mut listening).await;
    assert_eq!(server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap().integer(), Some(1));
    receives(&mut listening).await;
    entered(take(&ours, 1, "ours").await);
    assert_eq!(released(release(&ours, 1, "ours").await), (HoldStatus::Held, 0));
    receives(&mut listening).await;
    // Other locks do not matter here.
    server.cli(&["PUBLISH", "redisson_lock__channel:{other}", "0"]).unwrap();
    is_silent(&mut listening).await;
    // Several messages without a waiter in between count as one.
    for _ in 0..3 {
        server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap();
    }
    let mut last = listen(&store).await;
    receives(&mut last).await;
    receives(&mut listening).await;
    is_silent(&mut listening).await;
}

#[tokio::test]
async fn a_mutex_has_no_subscription() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let listening = store.subscribe(&Lock::mutex("job".parse().unwrap()), LONG).await.unwrap();
    assert!(listening.is_none());
    let unusable = store.subscribe(&Lock::reentrant("b}".parse().unwrap()), LONG).await.unwrap_err();
    assert!(matches!(unusable.kind, FaultKind::Unusable(_)), "{unusable}");
}

#[tokio::test]
async fn any_number_of_waiters_share_one_subscription() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(listen(&store).await);
    }
    for listening in &mut all {
        receives(listening).await;
    }
    assert_eq!(subscriptions(&server), 1);
    assert_eq!(
        server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap().integer(),
        Some(1),
        "one connection receives it"
    );
    for listening in &mut all {
        receives(listening).await;
    }
    all.truncate(1);
    is_silent_but_subscribed(&server, &mut all[0]).await;
    all.clear();
    eventually(|| subscriptions(&server) == 0).await;
    // The end of one subscription does not overtake the start of the next.
    let mut last = listen(&store).await;
    for _ in 0..50 {
        drop(last);
        last = listen(&store).await;
    }
    receives(&mut last).await;
    // A call of the store is sent after the unsubscribes that were in flight.
    execute(&store, &Op::Inspect(Inspect { claim: None, details: false })).await;
    assert_eq!(subscriptions(&server), 1);
    server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap();
    receives(&mut last).await;
}

#[tokio::test]
async fn a_new_connection_resubscribes_and_reports_it() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let mut listening = listen(&store).await;
    receives(&mut listening).await;
    for _ in 0..2 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap().ok().unwrap();
        receives(&mut listening).await; // a message may have been published meanwhile
        server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap();
        receives(&mut listening).await;
    }
    // No subscription outlives its last subscriber.
    drop(listening);
    eventually(|| subscriptions(&server) == 0).await;
}

#[tokio::test]
async fn a_dropped_future_unsubscribes() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let job = job();
    server.stop().unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(50), store.subscribe(&job, LONG)).await;
    assert!(dropped.is_err());
    server.resume().unwrap();
    execute(&store, &Op::Inspect(Inspect { claim: None, details: false })).await;
    eventually(|| subscriptions(&server) == 0).await;
}

#[tokio::test]
async fn a_user_that_may_not_subscribe_is_refused_and_works_on() {
    let server = RedisServer::start().unwrap();
    let rules = ["ACL", "SETUSER", "subscriber", "on", ">x", "~*", "resetchannels", "&leasehold:*", "+@all"];
    server.cli(&rules).unwrap().ok().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("subscriber").password("x");
    let store = RedisStore::connect(config).await.unwrap();
    let fault = store.subscribe(&job(), LONG).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Forbidden, "{fault}");
    entered(take(&store, 1, "ours").await);
    // A user that loses the permission while subscribed still reconnects.
    server.cli(&["ACL", "SETUSER", "subscriber", "allchannels"]).unwrap().ok().unwrap();
    let mut listening = listen(&store).await;
    receives(&mut listening).await;
    server.cli(&["ACL", "SETUSER", "subscriber", "resetchannels", "&leasehold:*"]).unwrap().ok().unwrap();
    receives(&mut listening).await;
    assert_eq!(released(release(&store, 1, "ours").await), (HoldStatus::Held, 0));
}

#[tokio::test]
async fn a_users_connection_subscribes_if_its_messages_are_forwarded() {
    let server = RedisServer::start().unwrap();
    let client = redis::Client::open(format!("{}?protocol=resp3", server.url())).unwrap();
    let (sender, pushes) = tokio::sync::broadcast::channel(16);
    let config = redis::AsyncConnectionConfig::new().set_push_sender(sender);
    let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
    let store = RedisStore::from_connection(connection, "", Some(pushes)).unwrap();
    let mut listening = listen(&store).await;
    receives(&mut listening).await;
    server.cli(&["PUBLISH", CHANNEL, "0"]).unwrap();
    receives(&mut listening).await;
    drop(listening);
    eventually(|| subscriptions(&server) == 0).await;

    let connection =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let store = RedisStore::from_connection(connection, "", None).unwrap();
    assert!(store.subscribe(&job(), LONG).await.unwrap().is_none());
}

// Helpers.

async fn connect(server: &RedisServer) -> RedisStore {
    RedisStore::connect(server.url().parse().unwrap()).await.unwrap()
}

async fn listen(store: &RedisStore) -> Subscription {
    store.subscribe(&job(), LONG).await.unwrap().expect("it receives messages")
}

async fn receives(listening: &mut Subscription) {
    tokio::time::timeout(LONG, listening.notified()).await.expect("no message arrived");
}

/// Every message that was published before this call has arrived by now, or never will.
async fn is_silent(listening: &mut Subscription) {
    let received = tokio::time::timeout(Duration::from_millis(50), listening.notified()).await;
    assert!(received.is_err(), "a message arrived");
}

async fn is_silent_but_subscribed(server: &RedisServer, listening: &mut Subscription) {
    is_silent(listening).await;
    assert_eq!(subscriptions(server), 1, "one subscription remains");
}

fn subscriptions(server: &RedisServer) -> i64 {
    match server.cli(&["PUBSUB", "NUMSUB", CHANNEL]).unwrap().elements() {
        [_, Value::Integer(number)] => *number,
        other => panic!("{other:?}"),
    }
}

async fn eventually(mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "the condition does not hold in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn job() -> Lock {
    Lock::reentrant("job".parse().unwrap())
}

fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

fn claim(n: u8, owner: &str) -> Claim {
    let hold = HoldId::from_random(session(n), [n; 16]);
    Claim { hold, value: Some(OwnValue::new(owner).unwrap()) }
}

fn label() -> Label {
    Label::new("test").unwrap()
}

fn ask(n: u8, owner: &str, queues: bool) -> Acquire {
    let queue = queues.then_some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 20_000 });
    Acquire {
        claim: claim(n, owner),
        lease_ms: 20_000,
        label: label(),
        queue,
        expire_foreign_ms: None,
        // The store does not know the session, and must still evict it.
        liveness: Liveness::Session { alive_ms: 0 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

async fn execute(store: &RedisStore, op: &Op) -> Outcome {
    store.execute(&job(), op, LONG).await
}

async fn take(store: &RedisStore, n: u8, owner: &str) -> Outcome {
    execute(store, &Op::Acquire(ask(n, owner, false))).await
}

async fn release(store: &RedisStore, n: u8, owner: &str) -> Outcome {
    execute(
        store,
        &Op::Release(Release {
            claim: claim(n, owner),
            action: ReleaseAction::Grant,
            next: None,
            history: 0,
        }),
    )
    .await
}

fn ttl(server: &RedisServer) -> i64 {
    server.cli(&["PTTL", "job"]).unwrap().integer().unwrap()
}

#[track_caller]
fn entered(outcome: Outcome) -> OwnerHolds {
    match outcome {
        Outcome::Done(Reply::Acquire(Acquired::Granted { owner_holds: Some(entered), .. })) => entered,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn taken(outcome: Outcome) -> Holder {
    match outcome {
        Outcome::Done(Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })) => holder,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn released(outcome: Outcome) -> (HoldStatus, u64) {
    match outcome {
        Outcome::Done(Reply::Release(Released { status, remaining_holds, .. })) => (status, remaining_holds),
        other => panic!("{other:?}"),
    }
}
