//! Server errors: the server cannot execute a command, or does not permit it.

use crate::fixture::{
    LONG, Mailbox, Received, acquire, acquire_of, ask, claim, connect, connections, execute, execute_session,
    found, granted, heartbeat, inspect, job, label, listed, nonce, receive, refused, release, session, take,
    unknown,
};
use leasehold_core::{
    Acquire, Acquired, Claim, ClassStatistics, Evict, Evicted, Extend, Extended, ForceRelease, ForceReleased,
    HeartbeatReply, HoldStatus, Inspect, MergeStatistics, MultiAcquired, ObservedHolder, OwnValue, Partition,
    Refused, Release, ReleaseAction, Reserve, TokenBlock,
};
use leasehold_redis::{Permissions, RedisConfig, RedisStore, ServerVersion};
use leasehold_store::{
    FaultKind, Lock, Notification, Op, Outcome, Reply, SessionOp, SessionReply, Store, TlsFault,
};
use leasehold_testkit::RedisServer;
use std::time::Duration;

#[tokio::test]
async fn something_else_at_the_key_is_named() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["LPUSH", "job", "x"]).unwrap();
    let outcome = acquire(&store, &claim(1), None).await;
    let Outcome::Done(Reply::Refused(Refused::WrongKind { found })) = outcome else { panic!("{outcome:?}") };
    assert_eq!(found, "list");
    assert_eq!(server.cli(&["KEYS", "*"]).unwrap().elements().len(), 1, "nothing was written");
}

/// Failure row 37.
#[tokio::test]
async fn with_full_memory_no_client_acquires_but_the_holder_extends_and_releases() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let waiting = acquire(&store, &claim(2), Some(nonce(7))).await;
    assert!(matches!(waiting, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{waiting:?}");
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    assert_eq!(refused(acquire_of(&store, "other", &claim(3)).await).kind, FaultKind::OutOfMemory);
    assert_eq!(refused(acquire(&store, &claim(3), Some(nonce(8))).await).kind, FaultKind::OutOfMemory);
    let extend = Op::Extend(Extend {
        claim: claim(1),
        lease_ms: 60_000,
        keep_record: true,
        reserve: None,
        fence: None,
    });
    let extended = execute(&store, &extend, LONG).await;
    assert!(matches!(extended, Outcome::Done(Reply::Extend(Extended::Extended))), "{extended:?}");
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(2).token()), "and hands over");
    assert_eq!(found(release(&store, &claim(2)).await), HoldStatus::Held);
    assert_eq!(refused(acquire(&store, &claim(3), None).await).kind, FaultKind::OutOfMemory);
    assert!(server.cli(&["GET", "job"]).unwrap().is_nil());
}

/// Failure row 37. With full memory the first write of a script fails if it may use more memory: then no tokens are
/// reserved, but the hold is extended as requested.
#[tokio::test]
async fn with_full_memory_a_hold_is_extended_and_nothing_may_be_reserved_for_it() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let taken = acquire(&store, &claim(1), None).await;
    let Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) = taken else { panic!("{taken:?}") };
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    assert_eq!(reserve(&store, &claim(1), 1).await, Extended::Extended);
    // The extension comes first, and after it nothing is refused.
    let extended = reserve(&store, &claim(1), 60_000).await;
    let Extended::Reserved { block, .. } = extended else { panic!("{extended:?}") };
    assert!(block.first() > Some(fence));
    assert!(server.cli(&["PTTL", "job"]).unwrap().integer() > Some(50_000));
    assert_eq!(reserve(&store, &claim(1), 1).await, Extended::Extended);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap().ok().unwrap();
    assert!(matches!(reserve(&store, &claim(1), 1).await, Extended::Reserved { .. }));
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
}

/// Reserves a block of tokens, and requests to be notified of other waiters.
async fn reserve(store: &RedisStore, claim: &Claim, lease_ms: u64) -> Extended {
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true });
    let extend = Extend { claim: claim.clone(), lease_ms, keep_record: false, reserve, fence: None };
    match execute(store, &Op::Extend(extend), LONG).await {
        Outcome::Done(Reply::Extend(extended)) => extended,
        other => panic!("{other:?}"),
    }
}

/// A record of an unknown format is not written to: nothing is reserved there, and the hold is extended all the
/// same.
#[tokio::test]
async fn nothing_is_reserved_in_a_record_of_another_format() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let record = "leasehold:{job}:record:mutex:job";
    for spoilt in [&["HSET", record, "format", "2"][..], &["DEL", record], &["LPUSH", record, "x"]] {
        server.cli(&["DEL", "job", record]).unwrap().ok().unwrap();
        granted(acquire(&store, &claim(1), None).await);
        server.cli(&["DEL", record]).unwrap().ok().unwrap();
        server.cli(spoilt).unwrap().ok().unwrap();
        let dump = server.cli(&["DUMP", record]).unwrap();
        assert_eq!(reserve(&store, &claim(1), 60_000).await, Extended::Extended);
        assert!(server.cli(&["PTTL", "job"]).unwrap().integer() > Some(50_000));
        assert_eq!(server.cli(&["DUMP", record]).unwrap(), dump);
    }
}

/// Failure row 34.
#[tokio::test]
async fn a_connection_to_a_replica_is_replaced_and_works_after_the_promotion() {
    let primary = RedisServer::start().unwrap();
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let port = primary.port().to_string();
    server.cli(&["REPLICAOF", "127.0.0.1", &port]).unwrap().ok().unwrap();
    let fault = refused(acquire_of(&store, "other", &claim(2)).await);
    assert!(matches!(fault.kind, FaultKind::ReadOnly | FaultKind::Busy), "{fault}");
    server.cli(&["REPLICAOF", "NO", "ONE"]).unwrap().ok().unwrap();
    granted(acquire_of(&store, "other", &claim(2)).await);
    assert_eq!(connections(&server), 1, "the old connection is closed");
}

#[tokio::test]
async fn missing_permissions_are_reported() {
    let server = RedisServer::start().unwrap();
    let config = || RedisConfig::from_url(&server.url()).unwrap();
    let rules = ["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all"];
    server.cli(&rules).unwrap().ok().unwrap();
    server.cli(&["ACL", "SETUSER", "mute", "-evalsha"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    assert_eq!(refused(acquire(&store, &claim(1), None).await).kind, FaultKind::Forbidden);
    server.cli(&["ACL", "SETUSER", "mute", "+evalsha", "-set"]).unwrap().ok().unwrap();
    let fault = unknown(acquire(&store, &claim(1), None).await);
    assert_eq!(fault.kind, FaultKind::Forbidden, "stopped half-way: {fault}");
    // A user without permission to publish can still hand over, and one without permission for INFO can connect.
    server.cli(&["ACL", "SETUSER", "mute", "+set", "-publish", "-info", "-client"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    // A request to be notified succeeds, too, although the notification cannot be published.
    assert!(matches!(reserve(&store, &claim(1), 1).await, Extended::Reserved { .. }));
    let waiting = acquire(&store, &claim(2), Some(nonce(1))).await;
    assert!(matches!(waiting, Outcome::Done(Reply::Acquire(Acquired::Taken { position: Some(0), .. }))));
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Held);
    granted(acquire(&store, &claim(2), Some(nonce(2))).await);
    server.cli(&["ACL", "SETUSER", "mute", "resetchannels"]).unwrap().ok().unwrap();
    let store = RedisStore::connect(config().username("mute").password("x")).await.unwrap();
    let (_, mailbox) = Mailbox::open();
    let fault = store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Forbidden, "{fault}");
}

/// A request in the same step as a release that could not be written is not reported as granted.
#[tokio::test]
async fn a_grant_that_was_not_written_is_not_reported() {
    let server = RedisServer::start().unwrap();
    server.cli(&["ACL", "SETUSER", "mute", "on", ">x", "~*", "&*", "+@all"]).unwrap().ok().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().username("mute").password("x");
    let store = RedisStore::connect(config).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    server.cli(&["ACL", "SETUSER", "mute", "-set"]).unwrap().ok().unwrap();
    let Op::Acquire(next) = take(&claim(3), Some(nonce(1))) else { panic!("another operation") };
    let op =
        Op::Release(Release { claim: claim(1), action: ReleaseAction::Grant, next: Some(next), history: 0 });
    let fault = unknown(execute(&store, &op, LONG).await);
    assert_eq!(fault.kind, FaultKind::Forbidden, "{fault}");
    assert!(server.cli(&["GET", "job"]).unwrap().is_nil(), "but the release is done");
}

#[tokio::test]
async fn a_refused_connection_reports_the_reason() {
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&format!("{}99", server.url())).unwrap();
    let fault = RedisStore::connect(config).await.unwrap_err();
    let is_named = |text: &str| text.contains("no database of that number");
    assert!(matches!(&fault.kind, FaultKind::Unusable(text) if is_named(text)), "{fault}");
    let mut connection = server.connect().unwrap();
    connection.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap().ok().unwrap();
    let fault = RedisStore::connect(server.url().parse().unwrap()).await.unwrap_err();
    // The server's first error may be lost when it closes the connection.
    assert!(matches!(fault.kind, FaultKind::Busy | FaultKind::Tls(TlsFault::ConnectionClosed)), "{fault}");
}

#[tokio::test]
async fn no_fault_and_no_log_of_the_server_shows_a_token() {
    let server = RedisServer::builder().config("rename-command", "EVALSHA \"\"").start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().skip_trials();
    let store = RedisStore::connect(config).await.unwrap();
    let mut claim = claim(1);
    claim.value = OwnValue::new("hunter2").ok();
    let fault = refused(acquire(&store, &claim, None).await);
    assert!(fault.to_string().contains("unknown command"), "{fault}");
    let secret = claim.hold.token();
    assert!(!format!("{fault} {fault:?}").contains("hunter2"));
    assert!(!format!("{fault} {fault:?}").contains(&secret[20..]));
}

/// The list in docs/reference/redis-layout.md equals the library's, and permits every operation.
#[tokio::test]
async fn the_permissions_that_the_docs_name_suffice() {
    const DOCS: &str = include_str!("../../../../docs/reference/redis-layout.md");
    let (_, list) = DOCS.split_once("```text\nACL SETUSER ").unwrap();
    let (list, _) = list.split_once("```").unwrap();
    let server = RedisServer::start().unwrap();
    let config = RedisConfig::from_url(&server.url()).unwrap().prefix("app:").unwrap();
    let permissions = Permissions::of(&config).unwrap();
    let line = permissions.acl("locks").unwrap();
    let named: Vec<_> = ["ACL", "SETUSER"].into_iter().chain(list.split_whitespace()).collect();
    assert_eq!(named.join(" "), line, "docs/reference/redis-layout.md names another list");
    // This server may be an older one.
    let line = permissions.on(ServerVersion::query(&config).await.unwrap()).acl("locks").unwrap();
    let command: Vec<_> =
        line.split(' ').map(|word| if word.starts_with('#') { ">password" } else { word }).collect();
    server.cli(&command).unwrap().ok().unwrap();
    let config = config.username("locks").password("password");
    let store = RedisStore::connect(config).await.unwrap();
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    for n in [1, 2] {
        assert_eq!(heartbeat(&store, n, Some("{}"), vec![]).await, HeartbeatReply::Alive);
    }
    assert_eq!(heartbeat(&store, 1, None, vec![job()]).await, HeartbeatReply::Alive);
    assert_eq!(listed(&store).await.len(), 2);
    let lock = Lock::mutex("jobs:1".parse().unwrap());
    let done = async |op: Op| match store.execute(&lock, &op, LONG).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
    };
    let reply = done(take(&claim(1), Some(nonce(1)))).await;
    let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
    let together = [(Lock::mutex("jobs:3".parse().unwrap()), ask(&claim(4), None))];
    let results = store.acquire_all(&together, LONG).await;
    assert!(
        matches!(results, Some(Outcome::Done(results)) if matches!(results[..], [MultiAcquired::Acquired(_)]))
    );
    for keep_record in [false, true] {
        let extend = Extend { claim: claim(1), lease_ms: 40_000, keep_record, reserve: None, fence: None };
        assert_eq!(done(Op::Extend(extend)).await, Reply::Extend(Extended::Extended));
    }
    let reserve = Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: true });
    let extend = Extend { claim: claim(1), lease_ms: 40_000, keep_record: true, reserve, fence: None };
    let reply = done(Op::Extend(extend)).await;
    assert!(matches!(reply, Reply::Extend(Extended::Reserved { .. })), "{reply:?}");
    done(take(&claim(2), Some(nonce(2)))).await;
    assert!(matches!(receive(&mut inbox).await, Some(Received::Notification(Notification::Wanted { .. }))));
    let free = ForceRelease { observed: ObservedHolder::Hold(fence), actor: label() };
    assert_eq!(done(Op::ForceRelease(free)).await, Reply::ForceRelease(ForceReleased::Released));
    assert!(matches!(
        receive(&mut inbox).await,
        Some(Received::Notification(Notification::ForceReleased { .. }))
    ));
    let counted = ClassStatistics { losses: 1, ..ClassStatistics::default() };
    let merge = MergeStatistics { classes: vec![("jobs:*".into(), 0, counted)] };
    let merged = execute_session(&store, &SessionOp::MergeStatistics(merge)).await;
    assert_eq!(merged, SessionReply::MergeStatistics);
    let listed = execute_session(&store, &SessionOp::ListStatistics).await;
    assert!(matches!(listed, SessionReply::Statistics(list) if list.classes.len() == 1));
    assert_eq!(execute_session(&store, &SessionOp::End(session(2))).await, SessionReply::End);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let look = Acquire { predecessor: Some(session(2)), ..ask(&claim(3), Some(nonce(3))) };
    let reply = done(Op::Acquire(look)).await;
    assert!(matches!(reply, Reply::Acquire(Acquired::Granted { .. })), "{reply:?}");
    tokio::time::sleep(Duration::from_millis(2)).await;
    let reply = done(Op::Evict(Evict { session: session(3), actor: label() })).await;
    assert!(matches!(reply, Reply::Evict(Evicted::Removed { fence: Some(_), .. })), "{reply:?}");
    let reply = done(Op::Inspect(Inspect { claim: None, details: true })).await;
    assert!(matches!(reply, Reply::Inspect(seen) if seen.audit.len() == 3));
    a_reentrant_mutex_is_permitted(&store).await;
}

async fn a_reentrant_mutex_is_permitted(store: &RedisStore) {
    let lock = Lock::reentrant("jobs:2".parse().unwrap());
    let owned = |n: u8| Claim { value: OwnValue::new("ours").ok(), ..claim(n) };
    let release = |n: u8| {
        Op::Release(Release { claim: owned(n), action: ReleaseAction::Grant, next: None, history: 0 })
    };
    let mut listening = store.subscribe(&lock, LONG).await.unwrap().unwrap();
    listening.notified().await;
    let take = |n: u8| Op::Acquire(Acquire { claim: owned(n), ..ask(&claim(n), Some(nonce(4))) });
    let extend = Op::Extend(Extend {
        claim: owned(1),
        lease_ms: 40_000,
        keep_record: true,
        reserve: None,
        fence: None,
    });
    let inspect = Op::Inspect(Inspect { claim: Some(owned(1)), details: true });
    for op in [take(1), take(2), extend, inspect, release(1), release(2)] {
        let outcome = store.execute(&lock, &op, LONG).await;
        assert!(matches!(outcome, Outcome::Done(_)), "{op:?}: {outcome:?}");
    }
    tokio::time::timeout(LONG, listening.notified()).await.expect("it may publish");
}

/// An unwritable audit does not prevent an eviction: it only serves people who investigate.
#[tokio::test]
async fn an_audit_that_cannot_be_written_keeps_no_lock() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    server.cli(&["LPUSH", "leasehold:{job}:audit:mutex:job", "x"]).unwrap().ok().unwrap();
    tokio::time::sleep(Duration::from_millis(2)).await;
    let evict = Op::Evict(Evict { session: session(1), actor: label() });
    let outcome = execute(&store, &evict, LONG).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::Evict(Evicted::Removed { fence: Some(_), .. }))),
        "{outcome:?}"
    );
    assert_eq!(inspect(&store).await.audit.len(), 1);
}

/// Failure row 56. With `appendfsync everysec` only Redis 8 answers WAITAOF once it has synced. With `always` all that have the
/// command do, which they can show by CONFIG GET alone.
#[tokio::test]
async fn row_56_an_answer_before_the_sync_is_not_trusted() {
    let server = RedisServer::builder().on_a_disk("everysec").start().unwrap();
    let config: RedisConfig = format!("{}?durable=1", server.url()).parse().unwrap();
    let info = server.cli(&["INFO", "server"]).unwrap();
    let info = info.text().unwrap();
    let waits = info.contains("redis_version:8") && !info.contains("valkey_version");
    let confirm = async |n: u8| {
        let store = match RedisStore::connect(config.clone()).await.map_err(|fault| fault.kind) {
            Ok(store) => store,
            // The command is tried when the client connects.
            Err(FaultKind::Unsafe(findings)) => return Err(findings[0].to_string()),
            Err(other) => panic!("{other:?}"),
        };
        let name = format!("job/{n}");
        let outcome = acquire_of(&store, &name, &claim(n)).await;
        let Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) = outcome else {
            panic!("{outcome:?}")
        };
        let lock = Lock::mutex(name.parse().unwrap());
        match store.confirm(&lock, &claim(n), fence, LONG).await.map_err(|fault| fault.kind) {
            Ok(()) => Ok(()),
            Err(FaultKind::Unsupported(what)) => Err(what),
            Err(other) => panic!("{other:?}"),
        }
    };
    let has_waitaof = server.cli(&["COMMAND", "INFO", "WAITAOF"]).unwrap().elements()[0].elements().len() > 1;
    let everysec = confirm(1).await;
    match (has_waitaof, waits) {
        (false, _) => assert!(everysec.unwrap_err().contains("WAITAOF tells whether a write is on disk")),
        (true, false) => assert!(everysec.unwrap_err().contains("set `always`")),
        (true, true) => assert_eq!(everysec, Ok(())),
    }
    server.cli(&["CONFIG", "SET", "appendfsync", "always"]).unwrap().ok().unwrap();
    assert_eq!(confirm(2).await.is_ok(), has_waitaof);
    server.cli(&["ACL", "SETUSER", "default", "-config|get"]).unwrap().ok().unwrap();
    match confirm(3).await {
        Ok(()) => assert!(waits),
        Err(what) if has_waitaof => assert!(!waits && what.contains("`+config|get`"), "{what}"),
        Err(what) => assert!(what.contains("WAITAOF"), "{what}"),
    }
}
