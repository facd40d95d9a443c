//! The store's guarantees on machines that tests can reboot, and the store against the model.

mod eviction;
mod file;
mod model;
mod reboot;
mod sessions;

use crate::SqliteStore;
use crate::machine::Machine;
use crate::session_files::SessionFiles;
use leasehold_core::{
    Acquire, Acquired, AuditEntry, Claim, Ended, Enqueue, Evict, FencingToken, Heartbeat, HeartbeatReply,
    HoldId, Inspect, Inspection, Label, Liveness, Lock, LockMode, Nonce, Notification, Op, Partition,
    Release, ReleaseAction, Reply, SessionEntry, SessionId, SessionOp, SessionReply,
};
use leasehold_store::{NotificationSink, Outcome, Store};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
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
        expire_foreign_ms: None,
        liveness: Liveness::Session { alive_ms: 10_000 },
        predecessor: None,
        mode: LockMode::Exclusive,
    }
}

fn release(of: u8, hold: u8) -> Op {
    Op::Release(Release { claim: claim(of, hold), action: ReleaseAction::Grant, next: None, history: 0 })
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
    let heartbeat = Heartbeat {
        session: session(of),
        alive_ms: 10_000,
        begin,
        acquired: vec![],
        released: vec![],
        renew_listing: true,
        activity: None,
    };
    match execute_session(store, SessionOp::Heartbeat(heartbeat)).await {
        SessionReply::Heartbeat(reply) => reply,
        other => panic!("{other:?}"),
    }
}

async fn listed(store: &dyn Store) -> Vec<SessionEntry> {
    match execute_session(store, SessionOp::List).await {
        SessionReply::List(mut list) => {
            list.entries.sort_by_key(|entry| entry.session);
            list.entries
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
        activity: String::new(),
    }
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
