//! The file: which rows it keeps, which formats it has, and that it needs no runtime.

use super::{
    HOUR_US, RecordingSink, TestHost, WALL_US, WITHIN, acquire, audit, begin, done, entry, granted, label,
    listed, lock, release, session,
};
use crate::SqliteStore;
use leasehold_core::{
    Ended, ForceRelease, ForceReleased, HeartbeatReply, ObservedHolder, Op, Partition, Reply, SessionOp,
};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[tokio::test]
async fn what_is_known_of_a_taken_lock_outlives_all_else_of_it() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor: label("the watch") });
    assert_eq!(done(&store, &lock("a"), free).await, Reply::ForceRelease(ForceReleased::Released));
    let expected = [(Ended::ForceReleased, "test 1".to_owned(), "the watch".to_owned())];
    for _ in 0..6 {
        host.advance(24 * HOUR_US);
        for n in 0..64 {
            granted(&store, &lock(&format!("b/{n}")), 2, 1).await;
        }
        assert_eq!(audit(&store, &lock("a")).await, expected);
    }
    drop(store);
    host.clock.store(7, Ordering::Relaxed);
    let store = host.open("boot-2", 0).await;
    assert_eq!(audit(&store, &lock("a")).await, expected, "a reboot does not forget it");
    let later = granted(&store, &lock("a"), 3, 1).await;
    assert!(later > fence, "nor does it forget the tokens: {later} after {fence}");
    done(&store, &lock("a"), release(3, 1)).await;
    host.advance(8 * 24 * HOUR_US);
    for n in 0..64 {
        granted(&store, &lock("c"), 4, n).await;
        done(&store, &lock("c"), release(4, n)).await;
    }
    assert_eq!(host.query::<i64>("SELECT count(*) FROM locks WHERE name = 'a'"), 0);
}

#[tokio::test]
async fn old_rows_are_swept_in_steps() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    for n in 0..300 {
        granted(&store, &lock(&format!("old/{n}")), 1, 1).await;
    }
    host.advance(2 * HOUR_US);
    for n in 0..256 {
        granted(&store, &lock(&format!("new/{n}")), 1, 1).await;
    }
    let count = "SELECT count(*) FROM locks WHERE name LIKE ";
    assert_eq!(host.query::<i64>(&format!("{count} 'old/%'")), 0);
    assert_eq!(host.query::<i64>(&format!("{count} 'new/%'")), 256);
}

#[tokio::test]
async fn another_format_is_refused_also_when_it_came_while_the_file_was_open() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let connection = rusqlite::Connection::open(host.path()).expect("a database");
    connection.execute("UPDATE meta SET format = 99", []).expect("one row");
    let outcome = store.execute(&lock("a"), &release(1, 1), WITHIN).await;
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("format 99"), "{fault}");
    let outcome = store.execute_session(Partition::ONLY, &SessionOp::List, WITHIN).await;
    assert!(
        matches!(&outcome, Outcome::Failed(Executed::No, fault) if fault.to_string().contains("format 99")),
        "{outcome:?}"
    );
    drop(store);
    let fault = SqliteStore::open(host.path()).await.expect_err("another format");
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
    assert!(fault.to_string().contains("format 99"), "{fault}");
    assert_eq!(host.query::<i64>("SELECT count(*) FROM locks"), 1, "nothing was lost");
}

#[tokio::test]
async fn a_file_without_the_column_of_activities_gets_it() {
    let host = TestHost::new();
    drop(host.open("boot-1", WALL_US).await);
    let connection = rusqlite::Connection::open(host.path()).expect("a database");
    connection.execute_batch("ALTER TABLE sessions DROP COLUMN activity").expect("as it was before");
    drop(connection);
    let store = host.open("boot-1", WALL_US).await;
    store
        .open_mailbox(Partition::ONLY, session(1), Arc::new(RecordingSink::default()), WITHIN)
        .await
        .expect("it opens");
    assert_eq!(begin(&store, 1).await, HeartbeatReply::Alive);
    assert_eq!(listed(&store).await, [entry(1, true, "metadata 1", &[])]);
    let columns = "SELECT count(*) FROM pragma_table_info('sessions') WHERE name = 'activity'";
    assert_eq!(host.query::<i64>(columns), 1);
}

#[test]
fn it_works_without_a_runtime() {
    let dir = tempfile::tempdir().expect("a directory");
    let path: &Path = &dir.path().join("locks.db");
    let outcome = block_on(async {
        let store = SqliteStore::open(path).await.expect("it opens");
        store.execute(&lock("a"), &Op::Acquire(acquire(1, 1, false)), WITHIN).await
    });
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
}

/// A minimal executor: parks the thread until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

/// Names that are used once leave no rows, and the file shrinks again.
#[tokio::test]
async fn names_that_are_used_once_leave_nothing() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    for n in 0..6_000_u32 {
        let name = lock(&format!("orders/{n}"));
        granted(&store, &name, 1, 1).await;
        done(&store, &name, release(1, 1)).await;
    }
    let full = host.query::<i64>("PRAGMA page_count");
    assert!(full > 512, "{full} pages are too few for a result");
    host.advance(6_000_000);
    // Each of the steps removes 128 rows, or 128 pages.
    for n in 0..128 {
        for _ in 0..32 {
            granted(&store, &lock("again"), 2, 1).await;
            done(&store, &lock("again"), release(2, 1)).await;
            host.advance(6_000_000);
        }
        if host.query::<i64>("SELECT count(*) FROM locks") <= 1 && n > 96 {
            break;
        }
    }
    assert!(host.query::<i64>("SELECT count(*) FROM locks") <= 1);
    let left = host.query::<i64>("PRAGMA page_count");
    assert!(left < full / 2, "{left} of {full} pages are left");
}

#[tokio::test]
async fn a_row_that_is_none_of_its_kind_is_an_error_that_shows_no_hold_and_hides_no_other_lock() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("good"), 1, 1).await;
    granted(&store, &lock("bad"), 2, 1).await;
    let honest: String = host.query("SELECT state FROM locks WHERE name = 'bad'");
    let token = honest.split('"').find(|word| word.len() == 39).expect("the id of the hold").to_owned();
    let rows = [
        honest.replace("\"mutex\"", "\"semaphore\""),
        honest.replace("\"mutex\"", &format!("\"{token}\"")),
        honest.replace("\"next_ticket\":0", "\"next_ticket\":9223372036854775807"),
        honest.replace("\"next_ticket\":0", &format!("\"next_ticket\":\"{token}\"")),
        honest.replace("\"tickets\":{}", "\"tickets\":{\"0\":\"AAAAAAAAAAAAAAAA\"}"),
    ];
    for row in rows {
        assert_ne!(row, honest);
        let connection = rusqlite::Connection::open(host.path()).expect("a database");
        connection.execute("UPDATE locks SET state = ?1 WHERE name = 'bad'", [&row]).expect("a row");
        let op = Op::Acquire(acquire(3, 1, false));
        let outcome = store.execute(&lock("bad"), &op, WITHIN).await;
        let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{row}: {outcome:?}") };
        let shown = format!("{fault} {fault:?}");
        assert!(shown.contains("cannot be read") && !shown.contains(&token), "{shown}");
        let others = listed(&store).await;
        assert!(others.iter().any(|entry| entry.held.contains(&lock("good"))), "{others:?}");
    }
}
