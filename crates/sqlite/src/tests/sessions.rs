//! The list of sessions, and what a session and a detached hold leave behind.

use super::{
    HOUR_US, RecordingSink, SECOND_US, TestHost, WALL_US, WITHIN, acquire, ask, audit, begin, done, entry,
    evict, execute_session, granted, inspect, label, listed, lock, release, session,
};
use crate::store::SqliteStore;
use leasehold_core::model::StatisticsTable;
use leasehold_core::{
    Acquire, Acquired, ClassStatistics, Evicted, HeartbeatReply, Inspect, Liveness, MergeStatistics, Op,
    Partition, Reply, SessionOp, SessionReply, StatisticsList,
};
use leasehold_store::{SessionTracking, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[tokio::test]
async fn a_detached_hold_outlives_its_process() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let file = host.sessions().create(session(1)).expect("a fresh session");
    ask(&store, &lock("a"), Acquire { liveness: Liveness::Lease, ..acquire(1, 1, false) }).await;
    drop(file);
    let look = Acquire { predecessor: Some(session(1)), ..acquire(2, 1, true) };
    let Acquired::Taken { predecessor, holder, .. } = ask(&store, &lock("a"), look).await else {
        panic!("taken")
    };
    assert_eq!((predecessor, holder.and_then(|holder| holder.session)), (None, None));
    assert_eq!(
        done(&store, &lock("a"), evict(1)).await,
        Reply::Evict(Evicted::Removed { fence: None, was_queued: false })
    );
    assert_eq!(
        inspect(&store, &lock("a")).await.holder.and_then(|holder| holder.label),
        Some(label("test 1"))
    );
    assert_eq!(listed(&store).await, [entry(1, false, "", &["a"]), entry(2, false, "", &[])]);
    host.advance(4 * SECOND_US);
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(audit(&store, &lock("a")).await, []);
}

#[tokio::test]
async fn the_list_contains_sessions_that_live_or_have_something() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    assert_eq!(store.capabilities().sessions, SessionTracking::ByStore);
    assert_eq!(begin(&store, 1).await, HeartbeatReply::Lapsed, "it has no file yet");
    assert_eq!(listed(&store).await, []);
    let sink = Arc::new(RecordingSink::default());
    for n in [1, 2] {
        store.open_mailbox(Partition::ONLY, session(n), sink.clone(), WITHIN).await.expect("a fresh session");
        assert_eq!(begin(&store, n).await, HeartbeatReply::Alive);
    }
    let theirs = host.sessions().create(session(3)).expect("a fresh session");
    assert_eq!(begin(&store, 3).await, HeartbeatReply::Alive, "another process");
    for name in ["b", "a"] {
        granted(&store, &lock(name), 1, 1).await;
    }
    granted(&store, &lock("c"), 3, 1).await;
    ask(&store, &lock("a"), acquire(4, 1, true)).await;
    let mine = entry(1, true, "metadata 1", &["a", "b"]);
    let waits = entry(4, false, "", &[]);
    let expected = [
        mine.clone(),
        entry(2, true, "metadata 2", &[]),
        entry(3, true, "metadata 3", &["c"]),
        waits.clone(),
    ];
    assert_eq!(listed(&store).await, expected);
    drop(theirs);
    let expected = [
        mine.clone(),
        entry(2, true, "metadata 2", &[]),
        entry(3, false, "metadata 3", &["c"]),
        waits.clone(),
    ];
    assert_eq!(listed(&store).await, expected);
    granted(&store, &lock("c"), 2, 1).await;
    let expected = [mine.clone(), entry(2, true, "metadata 2", &["c"]), waits.clone()];
    assert_eq!(listed(&store).await, expected, "the dead session holds nothing any more");
    done(&store, &lock("c"), release(2, 1)).await;
    assert_eq!(execute_session(&store, SessionOp::End(session(2))).await, SessionReply::End);
    assert_eq!(listed(&store).await, [mine, waits]);
}

#[tokio::test]
async fn a_session_that_ends_leaves_no_row_behind() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let rows = "SELECT count(*) FROM sessions";
    let sink = Arc::new(RecordingSink::default());
    for n in 1..=4 {
        store.open_mailbox(Partition::ONLY, session(n), sink.clone(), WITHIN).await.expect("a fresh session");
        begin(&store, n).await;
    }
    // In order; with its file cleaned up by hand; and killed.
    store.close_mailbox(Partition::ONLY, session(1));
    assert_eq!(begin(&store, 1).await, HeartbeatReply::Lapsed, "a session does not come back");
    assert_eq!(host.query::<i64>(rows), 3);
    let cleaned = host.sessions().create(session(5)).expect("a fresh session");
    let killed = host.sessions().create(session(6)).expect("a fresh session");
    for n in [5, 6] {
        begin(&store, n).await;
    }
    host.sessions().remove(session(5));
    drop((cleaned, killed));
    granted(&store, &lock("a"), 7, 1).await;
    for n in 0..1100_u32 {
        done(&store, &lock("b"), Op::Inspect(Inspect { claim: None, details: n % 2 == 0 })).await;
    }
    assert_eq!(host.query::<i64>("SELECT count(*) FROM sessions WHERE metadata = 'metadata 5'"), 0);
    assert_eq!(host.query::<i64>("SELECT count(*) FROM dead"), 1);
    host.advance(2 * HOUR_US);
    for n in 0..64 {
        granted(&store, &lock("b"), 8, n).await;
        done(&store, &lock("b"), release(8, n)).await;
    }
    assert_eq!(host.query::<i64>(rows), 3, "the dead session's row was removed with its record");
    drop(store);
    let store = host.open("boot-2", WALL_US).await;
    assert_eq!(host.query::<i64>(rows), 0, "no session outlives a boot");
    store.open_mailbox(Partition::ONLY, session(9), sink, WITHIN).await.expect("a fresh session");
    begin(&store, 9).await;
    let closed = host.sessions();
    drop(store);
    while closed.state(session(9)) != crate::session_files::SessionState::Absent {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.query::<i64>(rows), 0, "the last handle was dropped");
}

#[tokio::test]
async fn statistics_are_those_of_the_model_and_outlive_a_boot() {
    let host = TestHost::new();
    let (one, other) = (host.open("boot-1", WALL_US).await, host.open("boot-1", WALL_US).await);
    let mut model = StatisticsTable::default();
    let merge = |class: &str, losses| {
        let counted = ClassStatistics { losses, longest_wait_us: losses, ..ClassStatistics::default() };
        MergeStatistics { classes: vec![(class.to_owned(), 7, counted)] }
    };
    assert_eq!(
        execute_session(&one, SessionOp::ListStatistics).await,
        SessionReply::Statistics(StatisticsList::default())
    );
    for (store, class, losses) in [(&one, "jobs", 3), (&other, "jobs", 4), (&other, "orders/*", 1)] {
        let merge = merge(class, losses);
        let now_ms = host.clock.load(Ordering::Relaxed) / 1000;
        model.merge(now_ms, &merge);
        assert_eq!(
            execute_session(store, SessionOp::MergeStatistics(merge)).await,
            SessionReply::MergeStatistics
        );
        host.advance(SECOND_US);
    }
    let listed = async |store: &SqliteStore| match execute_session(store, SessionOp::ListStatistics).await {
        SessionReply::Statistics(list) => list.classes,
        other => panic!("{other:?}"),
    };
    let expected: Vec<_> = model.classes.clone().into_iter().collect();
    let found = listed(&one).await;
    let losses = |classes: &[(String, ClassStatistics)]| -> Vec<_> {
        classes.iter().map(|(class, kept)| (class.clone(), kept.losses, kept.to_ms - kept.from_ms)).collect()
    };
    assert_eq!(losses(&found), losses(&expected));
    drop((one, other));
    let store = host.open("boot-2", WALL_US).await;
    assert_eq!(listed(&store).await, found);
    host.advance(7 * 24 * HOUR_US + 60 * SECOND_US);
    assert_eq!(listed(&store).await, [], "after seven days they begin anew");
}

#[tokio::test]
async fn a_file_without_statistics_gets_them() {
    let host = TestHost::new();
    drop(host.open("boot-1", WALL_US).await);
    let connection = rusqlite::Connection::open(host.path()).expect("a database");
    connection.execute_batch("DROP TABLE statistics").expect("it is there");
    drop(connection);
    let store = host.open("boot-1", WALL_US).await;
    let counted = ClassStatistics { losses: 1, ..ClassStatistics::default() };
    let merge = MergeStatistics { classes: vec![("jobs".into(), 0, counted)] };
    let merged = execute_session(&store, SessionOp::MergeStatistics(merge)).await;
    assert_eq!(merged, SessionReply::MergeStatistics);
    let connection = rusqlite::Connection::open(host.path()).expect("a database");
    connection.execute_batch("UPDATE statistics SET state = 'x'").expect("it is there");
    let SessionReply::Statistics(list) = execute_session(&store, SessionOp::ListStatistics).await else {
        panic!("another reply")
    };
    assert_eq!((list.classes.len(), list.skipped.count), (0, 1));
}
