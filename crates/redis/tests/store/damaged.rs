//! Data that no client of this library has written: it is left out of listings, and counted.

use super::fixture::{
    LONG, acquire, alive, claim, connect, execute, granted, heartbeat, inspect, job, nonce, session,
};
use leasehold_core::{
    Acquired, ClassStatistics, Heartbeat, Inspect, KeySpace, Label, MergeStatistics, Partition, SessionId,
    SessionList, StatisticsList,
};
use leasehold_redis::RedisStore;
use leasehold_store::{Executed, Op, Outcome, Reply, SessionOp, SessionReply, Store};
use leasehold_testkit::{Cluster, RedisServer};

const INDEX: &str = "leasehold:{sessions}";
const FAR: &str = "9999999999999";

fn call(server: &RedisServer, command: &[&[u8]]) {
    server.cli(command).unwrap().ok().unwrap();
}

async fn sent(store: &RedisStore, partition: Partition, op: SessionOp) -> SessionList {
    match store.execute_session(partition, &op, LONG).await {
        Outcome::Done(SessionReply::List(list)) => list,
        other => panic!("{other:?}"),
    }
}

fn sessions_of(list: &SessionList) -> Vec<SessionId> {
    list.entries.iter().map(|entry| entry.session).collect()
}

/// Checks that the first session is listed and found, and that so many entries are left out, the first for this reason.
async fn check(store: &RedisStore, left_out: u64, reason: &str) {
    let list = sent(store, Partition::ONLY, SessionOp::List).await;
    let [entry] = &list.entries[..] else { panic!("{list:?}") };
    assert_eq!((entry.session, entry.metadata.as_str(), &entry.held[..]), (session(1), "{}", &[job()][..]));
    assert_eq!(list.skipped.count, left_out, "{list:?}");
    assert!(list.skipped.first.as_deref().unwrap_or_default().contains(reason), "{list:?}");
    // A session that is looked up by its name needs no index.
    let found = sent(store, Partition::ONLY, SessionOp::Find(vec![session(1), session(9)])).await;
    assert_eq!((sessions_of(&found), found.skipped.count), (vec![session(1)], 0));
}

#[tokio::test]
async fn members_of_the_index_that_are_no_sessions_are_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    heartbeat(&store, 1, Some("{}"), vec![job()]).await;
    check(&store, 0, "").await;
    call(&server, &[b"ZADD", INDEX.as_bytes(), FAR.as_bytes(), b"\xff\xfe"]);
    check(&store, 1, "the index of the sessions has a member that is no session").await;
    let large = vec![b'x'; 100_000];
    for member in [&b""[..], b"sixteen bytes \xc3\xa4", &large, b"0123456789abcdef0"] {
        call(&server, &[b"ZADD", INDEX.as_bytes(), FAR.as_bytes(), member]);
    }
    check(&store, 5, "no session").await;
}

#[tokio::test]
async fn records_that_cannot_be_read_are_counted() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    heartbeat(&store, 1, Some("{}"), vec![job()]).await;
    let record = format!("{INDEX}:{}", session(2));
    let record = record.as_bytes();
    call(&server, &[b"ZADD", INDEX.as_bytes(), FAR.as_bytes(), session(2).to_string().as_bytes()]);
    check(&store, 0, "").await;
    let damages: [(&[&[u8]], &str); 4] = [
        (&[b"SET", record, b"x"], "its record is not a hash"),
        (&[b"HSET", record, b"format", b"2"], "its record has another format"),
        (&[b"HSET", record, b"format", b"1"], "its record has no end"),
        (&[b"HSET", record, b"format", b"1", b"until", b"\xff"], "its record has no end"),
    ];
    for (damage, reason) in damages {
        call(&server, &[b"DEL", record]);
        call(&server, damage);
        check(&store, 1, reason).await;
    }
}

#[tokio::test]
async fn a_record_with_damaged_fields_is_read_without_them() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    heartbeat(&store, 1, Some("{}"), vec![job()]).await;
    let record = format!("{INDEX}:{}", session(1));
    let large = vec![b'x'; 30_000_000];
    let damages: [(&[u8], &[u8]); 7] = [
        (b"metadata", b"\xff\xfe"),
        (b"activity", b"\xff\xfe"),
        (b"activity", &large),
        (b"l:mutex:\xff", b"1"),
        (b"a later version", b"1"),
        (b"metadata", &large),
        (&large, b"1"),
    ];
    for (done, (field, value)) in damages.into_iter().enumerate() {
        call(&server, &[b"HSET", record.as_bytes(), field, value]);
        let list = sent(&store, Partition::ONLY, SessionOp::List).await;
        let [entry] = &list.entries[..] else { panic!("{list:?}") };
        assert_eq!((entry.alive_ms.is_some(), &entry.held[..]), (true, &[job()][..]), "{done}");
        assert_eq!(entry.activity, "", "{done}");
        assert!(list.skipped.count > 0 && entry.metadata.is_empty(), "{done}: {:?}", list.skipped);
    }
}

#[tokio::test]
async fn an_index_of_another_type_hides_no_session_that_is_looked_up() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    heartbeat(&store, 1, Some("{}"), vec![job()]).await;
    call(&server, &[b"SET", INDEX.as_bytes(), b"x"]);
    let list = sent(&store, Partition::ONLY, SessionOp::List).await;
    let reason = Some("the index of the sessions is a string, and no sorted set".to_owned());
    assert_eq!((list.entries, list.skipped.count, list.skipped.first), (vec![], 1, reason));
    let found = sent(&store, Partition::ONLY, SessionOp::Find(vec![session(1)])).await;
    assert_eq!(found.entries.len(), 1);
}

#[tokio::test]
async fn a_lock_whose_label_and_audit_are_damaged_is_described() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    let record = b"leasehold:{job}:record:mutex:job";
    call(&server, &[b"APPEND", record, b"\xff\x1b[2J"]);
    let audit = b"1\tevicted\t\t0\t\tops\n\xff\xff\n2";
    call(&server, &[b"SET", b"leasehold:{job}:audit:mutex:job", audit]);
    let described = async || {
        let op = Op::Inspect(Inspect { claim: None, details: true });
        match execute(&store, &op, LONG).await {
            Outcome::Done(Reply::Inspect(seen)) => seen,
            other => panic!("{other:?}"),
        }
    };
    let seen = described().await;
    let holder = seen.holder.expect("it is held");
    assert_eq!(holder.label.as_ref().map(Label::as_str), Some("test\u{fffd}\u{fffd}[2J"));
    assert!(holder.fence.is_some());
    assert_eq!(seen.audit.len(), 1);
    call(&server, &[b"APPEND", record, &vec![b'x'; 30_000_000]]);
    let holder = described().await.holder.expect("it is held");
    assert_eq!(holder.label.map(|label| label.as_str().len()), Some(Label::MAX_LEN));
}

#[tokio::test]
async fn a_queue_with_damaged_entries_and_links_is_listed_around_them() {
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    granted(acquire(&store, &claim(1), None).await);
    for n in 2..=5 {
        heartbeat(&store, n, Some("{}"), vec![]).await;
        let queued = acquire(&store, &claim(n), Some(nonce(n.into()))).await;
        assert!(matches!(queued, Outcome::Done(Reply::Acquire(Acquired::Taken { .. }))), "{queued:?}");
    }
    let listed = async || {
        let seen = inspect(&store).await;
        let sessions: Vec<_> = seen.queue.iter().map(|waiter| waiter.session).collect();
        (sessions, seen.skipped.count)
    };
    assert_eq!(listed().await, ([2, 3, 4, 5].map(session).to_vec(), 0));
    let record = b"leasehold:{job}:record:mutex:job";
    let field = |kind: &str, n| format!("{kind}:{}", session(n)).into_bytes();
    call(&server, &[b"HSET", record, &field("w", 3), b"no entry"]);
    assert_eq!(listed().await, ([2, 4, 5].map(session).to_vec(), 1));
    // In a circle, and to nowhere.
    for next in [field("n", 2)[2..].to_vec(), b"\xff".to_vec(), Vec::new()] {
        call(&server, &[b"HSET", record, &field("n", 4), &next]);
        assert_eq!(listed().await, ([2, 4].map(session).to_vec(), 2));
    }
}

#[tokio::test]
async fn a_cluster_lists_around_what_is_damaged() {
    let cluster = Cluster::start(3, 0).unwrap();
    let store = RedisStore::connect(cluster.url().parse().unwrap()).await.unwrap();
    let partition = store.partition(&job());
    let begin =
        SessionOp::Heartbeat(Heartbeat { begin: Some("{}".to_owned()), acquired: vec![job()], ..alive(1) });
    let outcome = store.execute_session(partition, &begin, LONG).await;
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    let keys = KeySpace::default();
    let index = keys.session_index_in(partition.as_u16());
    let damage = |command: &[&[u8]]| cluster.cli_at(&index, command).unwrap().ok().unwrap();
    damage(&[b"ZADD", index.as_bytes(), FAR.as_bytes(), b"\xff\xfe"]);
    damage(&[b"ZADD", index.as_bytes(), FAR.as_bytes(), session(2).to_string().as_bytes()]);
    let record = keys.session_in(partition.as_u16(), session(2));
    cluster.cli_at(&record, &["SET", &record, "x"]).unwrap().ok().unwrap();
    let list = sent(&store, Partition::ONLY, SessionOp::List).await;
    assert_eq!((list.entries.len(), list.skipped.count), (1, 2), "{list:?}");
    let found = sent(&store, partition, SessionOp::Find(vec![session(1)])).await;
    assert_eq!((sessions_of(&found), found.skipped.count), (vec![session(1)], 0));
}

async fn statistics(store: &RedisStore) -> StatisticsList {
    match store.execute_session(Partition::ONLY, &SessionOp::ListStatistics, LONG).await {
        Outcome::Done(SessionReply::Statistics(list)) => list,
        other => panic!("{other:?}"),
    }
}

async fn merge(store: &RedisStore, class: &str) -> Result<(), String> {
    let counted = ClassStatistics { losses: 1, ..ClassStatistics::default() };
    let merge = MergeStatistics { classes: vec![(class.to_owned(), 0, counted)] };
    match store.execute_session(Partition::ONLY, &SessionOp::MergeStatistics(merge), LONG).await {
        Outcome::Done(SessionReply::MergeStatistics) => Ok(()),
        Outcome::Failed(Executed::No, fault) => Err(fault.to_string()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn statistics_that_cannot_be_read_are_counted_and_begin_anew() {
    const KEY: &[u8] = b"leasehold:{statistics}";
    let server = RedisServer::start().unwrap();
    let store = connect(&server).await;
    assert_eq!(statistics(&store).await, StatisticsList::default());
    merge(&store, "jobs").await.unwrap();
    let large = vec![b'1'; 100_000];
    for (field, value) in [
        (&b"c:text"[..], &b"no time"[..]),
        (b"c:\xff", b"1 2 h3=4"),
        (b"x", b"1"),
        (b"c:large", &large),
        (&large, b"1 2"),
    ] {
        call(&server, &[b"HSET", KEY, field, value]);
    }
    let list = statistics(&store).await;
    assert_eq!((list.classes.len(), list.skipped.count), (1, 5), "{list:?}");
    merge(&store, "text").await.unwrap();
    let list = statistics(&store).await;
    assert_eq!((list.classes.len(), list.skipped.count), (2, 4), "{list:?}");
    for n in 0..300 {
        call(&server, &[b"HSET", KEY, format!("x{n}").as_bytes(), b"1"]);
    }
    let list = statistics(&store).await;
    assert_eq!((list.classes.len(), list.skipped.count), (0, 1), "{list:?}");
    for (damage, reason) in [
        (&[b"HSET", KEY, b"format", b"2"][..], "the statistics have another format"),
        (&[b"HSET", KEY, b"x", b"1"], "the statistics have another format"),
        (&[b"SET", KEY, b"x"], "the key of the statistics is no hash"),
    ] {
        call(&server, &[b"DEL", KEY]);
        call(&server, damage);
        let list = statistics(&store).await;
        assert_eq!((list.classes.len(), list.skipped.first.as_deref()), (0, Some(reason)));
        let refused = merge(&store, "jobs").await.expect_err("it is not ours");
        assert!(refused.contains("the statistics: "), "{refused}");
        assert_eq!(statistics(&store).await.skipped.first.as_deref(), Some(reason), "it was not overwritten");
    }
    call(&server, &[b"DEL", KEY]);
    merge(&store, "jobs").await.unwrap();
    assert_eq!(statistics(&store).await.classes.len(), 1);
    // It ends, also if something else has removed its expiry.
    call(&server, &[b"PERSIST", KEY]);
    merge(&store, "jobs").await.unwrap();
    assert!(server.cli(&["PTTL", "leasehold:{statistics}"]).unwrap().integer().unwrap() > 0);
}

#[tokio::test]
async fn a_cluster_keeps_statistics_in_one_slot() {
    let cluster = Cluster::start(3, 0).unwrap();
    let [one, other] = [cluster.url(), cluster.url()].map(|url| url.parse().unwrap());
    let (one, other) = (RedisStore::connect(one).await.unwrap(), RedisStore::connect(other).await.unwrap());
    merge(&one, "jobs").await.unwrap();
    merge(&other, "jobs").await.unwrap();
    let list = statistics(&one).await;
    let [(class, kept)] = &list.classes[..] else { panic!("{list:?}") };
    assert_eq!((class.as_str(), kept.losses), ("jobs", 2));
}
