//! Sessions, and the eviction of holders whose session has ended.

use crate::fixture::{
    LONG, Mailbox, Received, acquire, alive, ask, claim, connect, execute, execute_session, found, granted,
    heartbeat, inspect, job, label, listed, nonce, receive, release, session,
};
use leasehold_core::{
    Acquire, Acquired, Ended, Evict, Evicted, Fingerprint, ForceRelease, ForceReleased, Heartbeat,
    HeartbeatReply, HoldStatus, ObservedHolder, Partition, SessionId,
};
use leasehold_store::{
    Executed, FaultKind, Lock, Notification, Op, Outcome, Reply, SessionOp, SessionReply, SessionTracking,
    Store,
};
use leasehold_testkit::RedisServer;
use std::time::Duration;

#[tokio::test]
async fn a_session_begins_sends_heartbeats_is_listed_and_ends() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(store.capabilities().sessions, SessionTracking::ByHeartbeat);
    assert_eq!(listed(&store).await, []);
    assert_eq!(heartbeat(&store, 1, None, vec![]).await, HeartbeatReply::Lapsed);
    for n in [2, 1] {
        assert_eq!(heartbeat(&store, n, Some("{\"host\": \"web-1\"}"), vec![]).await, HeartbeatReply::Alive);
    }
    // More than fit into one command of a script, and a store that has lost its scripts.
    let held: Vec<_> = (0..2_500).map(|n| Lock::mutex(format!("job: {n}").parse().unwrap())).collect();
    server.cli(&["SCRIPT", "FLUSH"]).unwrap().ok().unwrap();
    assert_eq!(heartbeat(&store, 1, None, held.clone()).await, HeartbeatReply::Alive);
    let entries = listed(&store).await;
    assert_eq!(entries.iter().map(|entry| entry.session).collect::<Vec<_>>(), [session(1), session(2)]);
    let alive = entries[0].alive_ms.unwrap();
    assert!((50_000..=60_000).contains(&alive), "{alive}");
    assert_eq!(entries[0].metadata, "{\"host\": \"web-1\"}");
    assert_eq!((entries[0].held.len(), entries[1].held.len()), (2_500, 0));
    assert!(held.iter().all(|lock| entries[0].held.contains(lock)));
    // A member of the index without a record, and one with data of another type in its place, are not listed.
    server.cli(&["ZADD", "leasehold:{sessions}", "1", "what", "2", &session(7).to_string()]).unwrap();
    assert_eq!(execute_session(&store, &SessionOp::End(session(1))).await, SessionReply::End);
    let entries = listed(&store).await;
    assert_eq!(entries.iter().map(|entry| entry.session).collect::<Vec<_>>(), [session(2)]);
    assert_eq!(heartbeat(&store, 1, None, vec![]).await, HeartbeatReply::Lapsed);
    // The index lasts for one lifetime longer than the record.
    let record = format!("leasehold:{{sessions}}:{}", session(2));
    for (key, ms) in [(record.as_str(), 125_000), ("leasehold:{sessions}", 185_000)] {
        let ttl = server.cli(&["PTTL", key]).unwrap().integer().unwrap();
        assert!((ms - 25_000..=ms).contains(&ttl), "{key}: {ttl}");
    }
}

#[tokio::test]
async fn full_memory_makes_no_session_lapse() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(heartbeat(&store, 1, Some("{}"), vec![]).await, HeartbeatReply::Alive);
    granted(acquire(&store, &claim(2), None).await);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap().ok().unwrap();
    let begin = Heartbeat { begin: Some("{}".to_owned()), ..alive(3) };
    let outcome = store.execute_session(Partition::ONLY, &SessionOp::Heartbeat(begin), LONG).await;
    assert!(
        matches!(&outcome, Outcome::Failed(Executed::No, fault) if fault.kind == FaultKind::OutOfMemory),
        "{outcome:?}"
    );
    let ends = |key: &str| server.cli(&["PTTL", key]).unwrap().integer().unwrap();
    let record = format!("leasehold:{{sessions}}:{}", session(1));
    server.cli(&["PEXPIRE", &record, "60000"]).unwrap().ok().unwrap();
    assert_eq!(heartbeat(&store, 1, None, vec![job()]).await, HeartbeatReply::Alive);
    assert!(ends(&record) > 100_000);
    assert_eq!(listed(&store).await[0].held, [job()]);
    // Such data does not keep a dead holder's lock held either.
    tokio::time::sleep(Duration::from_millis(2)).await;
    let evict = Op::Evict(Evict { session: session(2), actor: label() });
    let outcome = execute(&store, &evict, LONG).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::Evict(Evicted::Removed { fence: Some(_), .. }))),
        "{outcome:?}"
    );
    assert_eq!(ends("job"), -2);
}

#[tokio::test]
async fn what_is_no_session_of_ours_is_left_alone() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let record = format!("leasehold:{{sessions}}:{}", session(1));
    let begin = SessionOp::Heartbeat(Heartbeat { begin: Some("{}".to_owned()), ..alive(1) });
    let look = Op::Acquire(Acquire { predecessor: Some(session(1)), ..ask(&claim(2), Some(nonce(1))) });
    for spoil in [&["SET", &record, "x"][..], &["HSET", &record, "format", "2"]] {
        server.cli(&["DEL", &record]).unwrap().ok().unwrap();
        server.cli(spoil).unwrap().ok().unwrap();
        let fault = match store.execute_session(Partition::ONLY, &begin, LONG).await {
            Outcome::Failed(Executed::No, fault) => fault,
            other => panic!("{other:?}"),
        };
        assert!(matches!(fault.kind, FaultKind::Unusable(_)), "{fault}");
        // A session whose record cannot be read does not count as dead.
        let outcome = execute(&store, &look, LONG).await;
        assert!(matches!(outcome, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{outcome:?}");
        let outcome = execute(&store, &Op::Evict(Evict { session: session(1), actor: label() }), LONG).await;
        assert!(!matches!(outcome, Outcome::Done(Reply::Evict(_))), "{outcome:?}");
    }
    assert_eq!(server.cli(&["GET", "job"]).unwrap().text(), Some(&*claim(1).token()));
    // A damaged index leaves a session alive, but unlisted.
    server.cli(&["DEL", &record]).unwrap().ok().unwrap();
    server.cli(&["SET", "leasehold:{sessions}", "x"]).unwrap().ok().unwrap();
    assert_eq!(execute_session(&store, &begin).await, SessionReply::Heartbeat(HeartbeatReply::Alive));
    assert_eq!(heartbeat(&store, 1, None, vec![]).await, HeartbeatReply::Alive);
    assert_eq!(execute_session(&store, &SessionOp::End(session(1))).await, SessionReply::End);
}

/// However many sessions there are, and whatever else the index contains.
#[tokio::test]
async fn all_sessions_are_listed_but_what_is_none() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(heartbeat(&store, 1, Some("{}"), vec![job()]).await, HeartbeatReply::Alive);
    let index = "leasehold:{sessions}";
    let mut connection = server.connect().unwrap();
    for n in 0..600_u32 {
        let mut bytes = [9; 12];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        let id = SessionId::from_random(bytes).to_string();
        let record = format!("{index}:{id}");
        connection.call(&["ZADD", index, "1762000000000", &id]).unwrap().ok().unwrap();
        match n % 3 {
            0 => drop(connection.call(&["SET", &record, "x"]).unwrap().ok().unwrap()),
            1 => {
                drop(connection.call(&["HSET", &record, "format", "1", "until", "1"]).unwrap().ok().unwrap());
            }
            _ => {}
        }
    }
    let listed = listed(&store).await;
    assert_eq!(listed.len(), 201);
    let ours =
        listed.iter().find(|entry| entry.session == session(1)).expect("the test's own session is listed");
    assert_eq!((ours.held.clone(), ours.alive_ms.is_some()), (vec![job()], true));
}

#[tokio::test]
async fn a_forced_release_notifies_the_holder() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    let (mut inbox, mailbox) = Mailbox::open();
    store.open_mailbox(Partition::ONLY, session(1), mailbox, LONG).await.unwrap();
    granted(acquire(&store, &claim(1), None).await);
    acquire(&store, &claim(2), Some(nonce(7))).await;
    let seen = inspect(&store).await;
    let holder = seen.holder.unwrap();
    assert_eq!((holder.session, seen.foreign_fingerprint), (Some(session(1)), None));
    let fence = holder.fence.unwrap();
    let free = Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor: label() });
    let outcome = execute(&store, &free, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))), "{outcome:?}");
    let notification = receive(&mut inbox).await;
    assert!(
        matches!(notification, Some(Received::Notification(Notification::ForceReleased { fence: ended, .. })) if ended == fence),
        "{notification:?}"
    );
    assert_eq!(found(release(&store, &claim(1)).await), HoldStatus::Ended(Ended::ForceReleased));
    // By now the lock belongs to another holder, which keeps it.
    let outcome = execute(&store, &free, LONG).await;
    let Outcome::Done(Reply::ForceRelease(ForceReleased::Changed { holder: Some(holder) })) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(holder.session, Some(session(2)));
    let audit = inspect(&store).await.audit;
    assert_eq!((audit.len(), audit[0].fence, audit[0].holder.clone()), (1, Some(fence), Some(label())));
    assert_eq!(found(release(&store, &claim(2)).await), HoldStatus::Held);
}

#[tokio::test]
async fn a_foreign_lock_is_freed_as_it_was_seen() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    server.cli(&["SET", "job", "theirs"]).unwrap().ok().unwrap();
    let seen = inspect(&store).await.foreign_fingerprint;
    assert_eq!(seen, Some(Fingerprint::of("theirs")));
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Foreign(seen.unwrap()), actor: label() });
    server.cli(&["SET", "job", "another's"]).unwrap().ok().unwrap();
    let outcome = execute(&store, &free, LONG).await;
    assert!(
        matches!(outcome, Outcome::Done(Reply::ForceRelease(ForceReleased::Changed { holder: Some(_) }))),
        "{outcome:?}"
    );
    server.cli(&["SET", "job", "theirs"]).unwrap().ok().unwrap();
    let outcome = execute(&store, &free, LONG).await;
    assert!(matches!(outcome, Outcome::Done(Reply::ForceRelease(ForceReleased::Released))), "{outcome:?}");
    let audit = inspect(&store).await.audit;
    assert_eq!((audit[0].fence, audit[0].holder.clone()), (None, None));
}
