//! The store against the model, and its guarantees on machines that tests can reboot.

use super::SqliteStore;
use super::machine::Machine;
use super::session_files::SessionFiles;
use leasehold_core::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Enqueue, Evict, Evicted, Extend, Extended, FencingToken,
    ForceRelease, ForceReleased, Heartbeat, HeartbeatReply, HoldId, HoldStatus, Inspect, Inspection, Label,
    Liveness, Lock, LockMode, Nonce, Notification, ObservedHolder, Op, Partition, Predecessor, Release,
    ReleaseAction, Reply, Reserve, SessionEntry, SessionId, SessionOp, SessionReply, TokenBlock,
};
use leasehold_store::{Executed, FaultKind, MemoryStore, NotificationSink, Outcome, SessionTracking, Store};
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(10);
const SECOND_US: u64 = 1_000_000;
const HOUR_US: u64 = 3600 * SECOND_US;
/// A day in 2025.
const WALL_US: u64 = 1_760_000_000 * SECOND_US;

struct TestMachine {
    boot: String,
    wall_us: u64,
    since_boot_us: Arc<AtomicU64>,
}

impl Machine for TestMachine {
    fn boot_id(&self) -> &str {
        &self.boot
    }

    fn since_boot_us(&self) -> u64 {
        self.since_boot_us.load(Ordering::Relaxed)
    }

    fn wall_us(&self) -> u64 {
        self.wall_us
    }
}

/// A directory, and the clock of its machine's current boot.
struct TestHost {
    dir: tempfile::TempDir,
    clock: Arc<AtomicU64>,
}

impl TestHost {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory"), clock: Arc::new(AtomicU64::new(SECOND_US)) }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }

    async fn open(&self, boot: &str, wall_us: u64) -> SqliteStore {
        let machine = TestMachine { boot: boot.into(), wall_us, since_boot_us: self.clock.clone() };
        SqliteStore::open_on(Box::new(machine), &self.path()).await.expect("it opens")
    }

    fn advance(&self, us: u64) {
        self.clock.fetch_add(us, Ordering::Relaxed);
    }

    fn sessions(&self) -> SessionFiles {
        let dir = File::open(self.dir.path().join("locks.db-sessions")).expect("the store made it");
        SessionFiles::new(OwnedFd::from(dir))
    }

    fn query<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        let connection = rusqlite::Connection::open(self.path()).expect("a database");
        connection.query_row(sql, [], |row| row.get(0)).expect("a value")
    }
}

fn lock(name: &str) -> Lock {
    Lock::mutex(name.parse().expect("a name"))
}

fn session(n: u8) -> SessionId {
    SessionId::from_random([n; 12])
}

fn claim(of: u8, hold: u8) -> Claim {
    Claim::new(HoldId::from_random(session(of), [hold; 16]))
}

fn acquire(of: u8, hold: u8, queue: bool) -> Acquire {
    let nonce = Nonce::new(u32::from(of), u64::from(hold));
    Acquire {
        claim: claim(of, hold),
        lease_ms: 3000,
        label: Label::new(format!("test {of}")).expect("a label"),
        queue: queue.then_some(Enqueue { nonce, ttl_ms: 3000 }),
        adopt_ms: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

fn release(of: u8, hold: u8) -> Op {
    Op::Release(Release { claim: claim(of, hold), action: ReleaseAction::Grant, next: None })
}

async fn done(store: &dyn Store, lock: &Lock, op: Op) -> Reply {
    match store.execute(lock, &op, WITHIN).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
    }
}

async fn ask(store: &dyn Store, lock: &Lock, ask: Acquire) -> Acquired {
    match done(store, lock, Op::Acquire(ask)).await {
        Reply::Acquire(acquired) => acquired,
        other => panic!("{other:?}"),
    }
}

async fn granted(store: &dyn Store, lock: &Lock, of: u8, hold: u8) -> FencingToken {
    match ask(store, lock, acquire(of, hold, false)).await {
        Acquired::Granted { fence, .. } => fence,
        other => panic!("not granted: {other:?}"),
    }
}

fn label(text: &str) -> Label {
    Label::new(text).expect("a label")
}

fn evict(dead: u8) -> Op {
    Op::Evict(Evict { session: session(dead), actor: label("the watch") })
}

async fn inspect(store: &dyn Store, lock: &Lock) -> Inspection {
    match done(store, lock, Op::Inspect(Inspect { claim: None, details: true })).await {
        Reply::Inspect(inspection) => inspection,
        other => panic!("{other:?}"),
    }
}

/// The holds that were taken, latest first: how, from which client, and by which one.
async fn audit(store: &dyn Store, lock: &Lock) -> Vec<(Ended, String, String)> {
    let summary = |entry: AuditEntry| {
        let whose = entry.holder.map_or_else(String::new, |label| label.to_string());
        (entry.ended, whose, entry.actor.to_string())
    };
    inspect(store, lock).await.audit.into_iter().map(summary).collect()
}

async fn execute_session(store: &dyn Store, op: SessionOp) -> SessionReply {
    match store.execute_session(Partition::ONLY, &op, WITHIN).await {
        Outcome::Done(reply) => reply,
        other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
    }
}

async fn begin(store: &dyn Store, of: u8) -> HeartbeatReply {
    let begin = Some(format!("metadata {of}"));
    let heartbeat =
        Heartbeat { session: session(of), alive_ms: 10_000, begin, acquired: vec![], released: vec![] };
    match execute_session(store, SessionOp::Heartbeat(heartbeat)).await {
        SessionReply::Heartbeat(reply) => reply,
        other => panic!("{other:?}"),
    }
}

async fn listed(store: &dyn Store) -> Vec<SessionEntry> {
    match execute_session(store, SessionOp::List).await {
        SessionReply::List(mut list) => {
            list.sort_by_key(|entry| entry.session);
            list
        }
        other => panic!("{other:?}"),
    }
}

fn entry(of: u8, alive: bool, metadata: &str, held: &[&str]) -> SessionEntry {
    let held = held.iter().map(|name| lock(name)).collect();
    SessionEntry {
        session: session(of),
        alive_ms: alive.then_some(u64::MAX),
        metadata: metadata.into(),
        held,
    }
}

#[tokio::test]
async fn what_is_taken_from_the_dead_is_recorded_with_its_finder() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    for (finder, op) in [
        ("test 2", Op::Acquire(acquire(2, 1, false))),
        ("the watch", evict(1)),
        ("test 4", release(4, 1)),
        ("an inspection", Op::Inspect(Inspect { claim: None, details: false })),
    ] {
        let lock = lock(finder);
        // A session is used once.
        let of = 10 + u8::try_from(finder.len()).expect("a short text");
        let file = host.sessions().create(session(of)).expect("a fresh session");
        let fence = granted(&store, &lock, of, 1).await;
        ask(&store, &lock, acquire(4, 1, true)).await;
        drop(file);
        let op = if let Op::Evict(_) = op { evict(of) } else { op };
        let reply = done(&store, &lock, op).await;
        if let Reply::Evict(evicted) = reply {
            assert_eq!(
                evicted,
                Evicted::Removed { fence: Some(fence), was_queued: false },
                "the reply reports what was taken"
            );
        }
        let expected = (Ended::Evicted, format!("test {of}"), finder.to_owned());
        assert_eq!(audit(&store, &lock).await, [expected]);
        let claim = Some(claim(of, 1));
        let asked = done(&store, &lock, Op::Inspect(Inspect { claim, details: false })).await;
        assert!(
            matches!(asked, Reply::Inspect(seen) if seen.hold_status == Some(HoldStatus::Ended(Ended::Evicted)))
        );
    }
}

#[tokio::test]
async fn an_evict_takes_from_the_dead_alone_and_grants_to_the_living() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let files = [1, 2, 3].map(|n| host.sessions().create(session(n)).expect("a fresh session"));
    granted(&store, &lock("a"), 1, 1).await;
    for n in [2, 3] {
        ask(&store, &lock("a"), acquire(n, 1, true)).await;
    }
    for n in [1, 2, 3, 9] {
        assert_eq!(
            done(&store, &lock("a"), evict(n)).await,
            Reply::Evict(Evicted::Alive),
            "also a session without a file"
        );
    }
    let [holder, first, _live] = files;
    drop((holder, first));
    assert!(matches!(
        done(&store, &lock("a"), evict(1)).await,
        Reply::Evict(Evicted::Removed { fence: Some(_), .. })
    ));
    granted(&store, &lock("a"), 3, 1).await;
    assert_eq!(
        done(&store, &lock("a"), evict(2)).await,
        Reply::Evict(Evicted::Removed { fence: None, was_queued: false })
    );
}

#[tokio::test]
async fn a_predecessor_is_alive_by_its_file_or_loses_its_queue_entry() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let file = host.sessions().create(session(2)).expect("a fresh session");
    ask(&store, &lock("a"), acquire(2, 1, true)).await;
    let look = Acquire { predecessor: Some(session(2)), ..acquire(3, 1, true) };
    let Acquired::Taken { predecessor, .. } = ask(&store, &lock("a"), look.clone()).await else {
        panic!("taken")
    };
    assert_eq!(predecessor, Some(Predecessor { session: session(2), alive_ms: Some(u64::MAX) }));
    drop(file);
    let Acquired::Taken { predecessor, position, .. } = ask(&store, &lock("a"), look).await else {
        panic!("taken")
    };
    assert_eq!((predecessor, position), (Some(Predecessor { session: session(1), alive_ms: None }), Some(0)));
}

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
async fn a_reboot_is_written_down_with_its_time() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("held"), 1, 1).await;
    granted(&store, &lock("expired"), 2, 1).await;
    done(
        &store,
        &lock("held"),
        Op::Extend(Extend { claim: claim(1, 1), lease_ms: 7_200_000, keep_record: true, reserve: None }),
    )
    .await;
    drop(store);
    let store = host.open("boot-2", WALL_US + HOUR_US / 2).await;
    let audit_of_held = inspect(&store, &lock("held")).await.audit;
    assert_eq!(audit_of_held.len(), 1);
    assert_eq!(audit_of_held[0].at_ms, (WALL_US + HOUR_US / 2) / 1000);
    assert_eq!(audit_of_held[0].actor, label("a new boot"));
    assert_eq!(audit(&store, &lock("expired")).await, [], "it had expired and was not taken");
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
    while closed.state(session(9)) != super::session_files::SessionState::Absent {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.query::<i64>(rows), 0, "the last handle was dropped");
}

#[tokio::test]
async fn a_reboot_ends_all_holds_and_tokens_grow_though_the_wall_clock_fell_back() {
    let host = TestHost::new();
    let first = host.open("boot-1", WALL_US).await;
    let fence = granted(&first, &lock("a"), 1, 1).await;
    assert_eq!(fence.as_u64(), WALL_US, "tokens look like the wall clock's microseconds");
    assert!(matches!(
        ask(&first, &lock("a"), acquire(2, 1, true)).await,
        Acquired::Taken { position: Some(0), .. }
    ));
    drop(first);
    for (boot, wall_us) in [("boot-2", 0), ("boot-3", WALL_US / 2), ("boot-4", WALL_US + HOUR_US)] {
        host.clock.store(7, Ordering::Relaxed);
        let store = host.open(boot, wall_us).await;
        let Reply::Inspect(seen) =
            done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, details: false })).await
        else {
            panic!("not an inspection")
        };
        assert_eq!((seen.holder, seen.waiters), (None, 0), "{boot}");
    }
    let store = host.open("boot-4", 5).await;
    let asked = Op::Inspect(Inspect { claim: Some(claim(1, 1)), details: false });
    let Reply::Inspect(seen) = done(&store, &lock("a"), asked).await else { panic!("not an inspection") };
    assert_eq!(seen.hold_status, Some(HoldStatus::Ended(Ended::Evicted)));
    let later = granted(&store, &lock("a"), 3, 1).await;
    assert_eq!(later.as_u64(), WALL_US + HOUR_US, "the wall clock is believed where it can be");
}

/// Tokens reserved for a hold may be hours later than the one that it was granted.
#[tokio::test]
async fn a_new_boot_is_later_than_what_was_reserved_before() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    let extend =
        |lease_ms, reserve| Op::Extend(Extend { claim: claim(1, 1), lease_ms, keep_record: true, reserve });
    done(&store, &lock("a"), extend(7_200_000, None)).await;
    host.advance(HOUR_US);
    let reply = done(
        &store,
        &lock("a"),
        extend(1, Some(Reserve { tokens: TokenBlock::MAX_LEN, notify_wanted: false })),
    )
    .await;
    let Reply::Extend(Extended::Reserved { mut block, .. }) = reply else { panic!("{reply:?}") };
    let last = std::iter::from_fn(|| block.pop_first()).last().expect("a block has one token at least");
    assert!(last.as_u64() >= fence.as_u64() + HOUR_US);
    drop(store);
    host.clock.store(7, Ordering::Relaxed);
    let store = host.open("boot-2", 0).await;
    let audit = inspect(&store, &lock("a")).await.audit;
    assert!(audit[0].at_ms >= last.as_u64() / 1000, "{audit:?}");
    assert!(granted(&store, &lock("a"), 2, 1).await > last);
}

#[tokio::test]
async fn tokens_of_forgotten_locks_grow_over_a_reboot_too() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    host.advance(2 * HOUR_US);
    done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, details: false })).await;
    assert_eq!(host.query::<i64>("SELECT count(*) FROM locks"), 0, "nothing is left to remember");
    drop(store);
    let store = host.open("boot-2", 0).await;
    assert!(granted(&store, &lock("a"), 1, 2).await > fence);
}

#[tokio::test]
async fn tokens_grow_over_a_reboot_if_only_the_audit_remains() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(fence), actor: label("the watch") });
    done(&store, &lock("a"), free).await;
    host.advance(2 * HOUR_US);
    let later = granted(&store, &lock("a"), 2, 1).await;
    let free =
        Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(later), actor: label("the watch") });
    done(&store, &lock("a"), free).await;
    host.advance(2 * HOUR_US);
    assert_eq!(inspect(&store, &lock("a")).await.audit.len(), 2);
    drop(store);
    host.clock.store(7, Ordering::Relaxed);
    let store = host.open("boot-2", 0).await;
    assert!(granted(&store, &lock("a"), 3, 2).await > later);
}

#[tokio::test]
async fn a_store_that_has_gone_to_another_boot_is_refused() {
    let host = TestHost::new();
    let ours = host.open("boot-1", WALL_US).await;
    granted(&ours, &lock("a"), 1, 1).await;
    let theirs = host.open("boot-2", WALL_US).await;
    granted(&theirs, &lock("a"), 2, 1).await;
    let outcome = ours.execute(&lock("a"), &Op::Acquire(acquire(1, 1, false)), WITHIN).await;
    let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
}

#[tokio::test]
async fn an_open_again_in_the_same_boot_keeps_all_as_it_was() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    drop(store);
    host.advance(SECOND_US);
    let store = host.open("boot-1", 0).await;
    assert_eq!(granted(&store, &lock("a"), 1, 1).await, fence, "it holds it still");
    done(&store, &lock("a"), release(1, 1)).await;
    assert!(granted(&store, &lock("a"), 2, 1).await > fence);
}

#[tokio::test]
async fn the_dead_are_buried_in_every_lock_though_their_file_goes_with_the_first() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let file = host.sessions().create(session(1)).expect("a fresh session");
    for name in ["a", "b"] {
        granted(&store, &lock(name), 1, 1).await;
        assert!(matches!(ask(&store, &lock(name), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    }
    drop(file);
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(host.sessions().find_dead(9), [], "its file is gone");
    granted(&store, &lock("b"), 2, 1).await;
    assert_eq!(host.query::<i64>("SELECT count(*) FROM dead"), 1);
    host.advance(2 * HOUR_US);
    for n in 0..64_u8 {
        granted(&store, &lock("c"), 3, n).await;
        done(&store, &lock("c"), release(3, n)).await;
    }
    assert_eq!(host.query::<i64>("SELECT count(*) FROM dead"), 0, "no row can contain it any more");
}

#[tokio::test]
async fn dead_waiters_are_skipped_and_their_leases_cost_no_time() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let files: Vec<_> =
        (10..60).map(|n| host.sessions().create(session(n)).expect("a fresh session")).collect();
    for n in 10..60 {
        ask(&store, &lock("a"), acquire(n, 1, true)).await;
    }
    ask(&store, &lock("a"), acquire(2, 1, true)).await;
    drop(files);
    done(&store, &lock("a"), release(1, 1)).await;
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(host.sessions().find_dead(99), [], "they left nothing behind");
}

#[tokio::test]
async fn a_session_whose_file_is_missing_is_not_dead() {
    let host = TestHost::new();
    let store = host.open("boot-1", WALL_US).await;
    let file = host.sessions().create(session(1)).expect("a fresh session");
    granted(&store, &lock("a"), 1, 1).await;
    host.sessions().remove(session(1));
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    drop(file);
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    host.advance(4 * SECOND_US);
    granted(&store, &lock("a"), 2, 1).await;
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

#[derive(Default)]
struct RecordingSink(Mutex<Vec<Notification>>);

impl NotificationSink for RecordingSink {
    fn deliver(&self, notification: Notification) {
        self.0.lock().expect("no thread panicked").push(notification);
    }

    fn resubscribed(&self) {}
}

impl RecordingSink {
    fn take(&self) -> Vec<Notification> {
        std::mem::take(&mut *self.0.lock().expect("no thread panicked"))
    }
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    AdvanceClock(u64),
    Do(&'static str, Box<Op>),
    /// An operator releases a lock by force, as seen by an inspection.
    Free(&'static str),
}

fn any_acquire() -> impl Strategy<Value = Acquire> {
    (0..5_u8, 0..3_u8, any::<Option<u64>>(), 1..5000_u64, 1..5000_u64).prop_map(
        |(of, hold, nonce, lease_ms, ttl_ms)| Acquire {
            lease_ms,
            queue: nonce.map(|nonce| Enqueue { nonce: Nonce::new(0, nonce), ttl_ms }),
            ..acquire(of, hold, false)
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let claims = || (0..5_u8, 0..3_u8).prop_map(|(of, hold)| claim(of, hold));
    let reserve = proptest::option::of((0..=TokenBlock::MAX_LEN, any::<bool>()))
        .prop_map(|reserve| reserve.map(|(tokens, notify_wanted)| Reserve { tokens, notify_wanted }));
    let extend = (claims(), 1..9000_u64, any::<bool>(), reserve).prop_map(
        |(claim, lease_ms, keep_record, reserve)| {
            Op::Extend(Extend { claim, lease_ms, keep_record, reserve })
        },
    );
    let release =
        (claims(), any::<bool>(), proptest::option::of(any_acquire())).prop_map(|(claim, grant, next)| {
            let action = if grant { ReleaseAction::Grant } else { ReleaseAction::Free };
            Op::Release(Release { claim, action, next })
        });
    let inspect = (proptest::option::of(claims()), any::<bool>())
        .prop_map(|(claim, details)| Op::Inspect(Inspect { claim, details }));
    let op = prop_oneof![
        1 => (0..5_u8).prop_map(evict),
        1 => any::<u64>().prop_map(|fence| {
            Op::ForceRelease(ForceRelease { observed: ObservedHolder::Hold(FencingToken::new(fence)), actor: label("a guess") })
        }),
        4 => any_acquire().prop_map(Op::Acquire),
        1 => extend,
        3 => release,
        1 => inspect,
    ];
    prop_oneof![
        3 => prop_oneof![Just(1), Just(999), Just(1000), 1..4 * SECOND_US, Just(HOUR_US)].prop_map(Step::AdvanceClock),
        12 => (prop_oneof![Just("a"), Just("b")], op).prop_map(|(name, op)| Step::Do(name, Box::new(op))),
        1 => prop_oneof![Just("a"), Just("b")].prop_map(Step::Free),
    ]
}

async fn agrees_with_the_model(steps: Vec<Step>) {
    let host = TestHost::new();
    host.clock.store(WALL_US, Ordering::Relaxed);
    let store = host.open("boot-1", WALL_US).await;
    let clock = host.clock.clone();
    let model = MemoryStore::with_clock(move || clock.load(Ordering::Relaxed));
    let (ours, theirs) = (Arc::new(RecordingSink::default()), Arc::new(RecordingSink::default()));
    for n in 0..5 {
        store.open_mailbox(Partition::ONLY, session(n), ours.clone(), WITHIN).await.expect("a fresh session");
        model
            .open_mailbox(Partition::ONLY, session(n), theirs.clone(), WITHIN)
            .await
            .expect("it never fails");
        // The model needs heartbeats to keep sessions alive; here their files do.
        let begin = Some(String::new());
        let alive_ms = u64::MAX / 4;
        let heartbeat =
            Heartbeat { session: session(n), alive_ms, begin, acquired: vec![], released: vec![] };
        execute_session(&model, SessionOp::Heartbeat(heartbeat)).await;
    }
    for step in steps {
        let step = match step {
            Step::Free(name) => {
                let holder = inspect(&model, &lock(name)).await.holder;
                let observed = ObservedHolder::Hold(
                    holder.and_then(|holder| holder.fence).unwrap_or(FencingToken::new(0)),
                );
                Step::Do(
                    name,
                    Box::new(Op::ForceRelease(ForceRelease { observed, actor: label("a person") })),
                )
            }
            other => other,
        };
        match step {
            Step::Free(_) => unreachable!("it has become an operation"),
            Step::AdvanceClock(us) => host.advance(us),
            Step::Do(name, op) => {
                let expected = done(&model, &lock(name), (*op).clone()).await;
                assert_eq!(done(&store, &lock(name), (*op).clone()).await, expected, "{op:?}");
                assert_eq!(ours.take(), theirs.take(), "{op:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_the_models(steps in proptest::collection::vec(any_step(), 1..160)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(agrees_with_the_model(steps));
    }
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
