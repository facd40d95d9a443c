//! The store on machines that tests can reboot, against the model and against its own promises.

use super::SqliteStore;
use super::life::Sessions;
use super::machine::Machine;
use crate::store::{FaultKind, MemoryStore, Outcome, Postbox, Store};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Enqueue, Extend, Fate, FencingToken, HoldId, Inspect, Label, Life, Lock,
    Nonce, Op, Pass, Release, Reply, SessionId, Wake,
};
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

/// A directory, and the clock of the boot that its machine is in.
struct World {
    dir: tempfile::TempDir,
    clock: Arc<AtomicU64>,
}

impl World {
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

    fn pass(&self, us: u64) {
        self.clock.fetch_add(us, Ordering::Relaxed);
    }

    fn sessions(&self) -> Sessions {
        let dir = File::open(self.dir.path().join("locks.db-sessions")).expect("the store made it");
        Sessions::new(OwnedFd::from(dir))
    }

    fn ask_file<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
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
        queue: queue.then_some(Enqueue { nonce, kept_ms: 3000 }),
        adopt_ms: None,
        life: Life::Session,
        ahead: None,
    }
}

fn release(of: u8, hold: u8) -> Op {
    Op::Release(Release { claim: claim(of, hold), pass: Pass::Grant, next: None })
}

async fn done(store: &dyn Store, lock: &Lock, op: Op) -> Reply {
    match store.execute(lock, &op, WITHIN).await {
        Outcome::Done(reply) => reply,
        other => panic!("{op:?}: {other:?}"),
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

#[tokio::test]
async fn a_reboot_ends_all_holds_and_tokens_grow_though_the_wall_clock_fell_back() {
    let world = World::new();
    let first = world.open("boot-1", WALL_US).await;
    let fence = granted(&first, &lock("a"), 1, 1).await;
    assert_eq!(fence.as_u64(), WALL_US, "tokens look like the wall clock's microseconds");
    assert!(matches!(
        ask(&first, &lock("a"), acquire(2, 1, true)).await,
        Acquired::Taken { position: Some(0), .. }
    ));
    drop(first);
    for (boot, wall_us) in [("boot-2", 0), ("boot-3", WALL_US / 2), ("boot-4", WALL_US + HOUR_US)] {
        world.clock.store(7, Ordering::Relaxed);
        let store = world.open(boot, wall_us).await;
        let Reply::Inspect(seen) =
            done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, in_full: false })).await
        else {
            panic!("not an inspection")
        };
        assert_eq!((seen.holder, seen.waiting), (None, 0), "{boot}");
    }
    let store = world.open("boot-4", 5).await;
    let asked = Op::Inspect(Inspect { claim: Some(claim(1, 1)), in_full: false });
    let Reply::Inspect(seen) = done(&store, &lock("a"), asked).await else { panic!("not an inspection") };
    assert_eq!(seen.fate, Some(Fate::Ended(Ended::Evicted)));
    let later = granted(&store, &lock("a"), 3, 1).await;
    assert_eq!(later.as_u64(), WALL_US + HOUR_US, "the wall clock is believed where it can be");
}

#[tokio::test]
async fn tokens_of_forgotten_locks_grow_over_a_reboot_too() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    world.pass(2 * HOUR_US);
    done(&store, &lock("a"), Op::Inspect(Inspect { claim: None, in_full: false })).await;
    assert_eq!(world.ask_file::<i64>("SELECT count(*) FROM locks"), 0, "nothing is left to remember");
    drop(store);
    let store = world.open("boot-2", 0).await;
    assert!(granted(&store, &lock("a"), 1, 2).await > fence);
}

#[tokio::test]
async fn a_store_that_has_gone_to_another_boot_is_refused() {
    let world = World::new();
    let ours = world.open("boot-1", WALL_US).await;
    granted(&ours, &lock("a"), 1, 1).await;
    let theirs = world.open("boot-2", WALL_US).await;
    granted(&theirs, &lock("a"), 2, 1).await;
    let outcome = ours.execute(&lock("a"), &Op::Acquire(acquire(1, 1, false)), WITHIN).await;
    let Outcome::Refused(fault) = outcome else { panic!("{outcome:?}") };
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
}

#[tokio::test]
async fn an_open_again_in_the_same_boot_keeps_all_as_it_was() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    let fence = granted(&store, &lock("a"), 1, 1).await;
    drop(store);
    world.pass(SECOND_US);
    let store = world.open("boot-1", 0).await;
    assert_eq!(granted(&store, &lock("a"), 1, 1).await, fence, "it holds it still");
    done(&store, &lock("a"), release(1, 1)).await;
    assert!(granted(&store, &lock("a"), 2, 1).await > fence);
}

#[tokio::test]
async fn the_dead_are_buried_in_every_lock_though_their_file_goes_with_the_first() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    let life = world.sessions().begin(session(1)).expect("a fresh session");
    for name in ["a", "b"] {
        granted(&store, &lock(name), 1, 1).await;
        assert!(matches!(ask(&store, &lock(name), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    }
    drop(life);
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(world.sessions().find_dead(9), [], "its file is gone");
    granted(&store, &lock("b"), 2, 1).await;
    assert_eq!(world.ask_file::<i64>("SELECT count(*) FROM dead"), 1);
    world.pass(2 * HOUR_US);
    for n in 0..64_u8 {
        granted(&store, &lock("c"), 3, n).await;
        done(&store, &lock("c"), release(3, n)).await;
    }
    assert_eq!(world.ask_file::<i64>("SELECT count(*) FROM dead"), 0, "nothing of it can be left");
}

#[tokio::test]
async fn dead_waiters_are_skipped_and_their_leases_cost_nobody_time() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let lives: Vec<_> =
        (10..60).map(|n| world.sessions().begin(session(n)).expect("a fresh session")).collect();
    for n in 10..60 {
        ask(&store, &lock("a"), acquire(n, 1, true)).await;
    }
    ask(&store, &lock("a"), acquire(2, 1, true)).await;
    drop(lives);
    done(&store, &lock("a"), release(1, 1)).await;
    granted(&store, &lock("a"), 2, 1).await;
    assert_eq!(world.sessions().find_dead(99), [], "they left nothing behind");
}

#[tokio::test]
async fn nobody_is_dead_whose_file_is_missing() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    let life = world.sessions().begin(session(1)).expect("a fresh session");
    granted(&store, &lock("a"), 1, 1).await;
    world.sessions().remove(session(1));
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    drop(life);
    assert!(matches!(ask(&store, &lock("a"), acquire(2, 1, false)).await, Acquired::Taken { .. }));
    world.pass(4 * SECOND_US);
    granted(&store, &lock("a"), 2, 1).await;
}

#[tokio::test]
async fn old_rows_are_swept_in_steps() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    for n in 0..300 {
        granted(&store, &lock(&format!("old/{n}")), 1, 1).await;
    }
    world.pass(2 * HOUR_US);
    for n in 0..256 {
        granted(&store, &lock(&format!("new/{n}")), 1, 1).await;
    }
    let count = "SELECT count(*) FROM locks WHERE name LIKE ";
    assert_eq!(world.ask_file::<i64>(&format!("{count} 'old/%'")), 0);
    assert_eq!(world.ask_file::<i64>(&format!("{count} 'new/%'")), 256);
}

#[tokio::test]
async fn another_format_is_refused_also_when_it_came_while_the_file_was_open() {
    let world = World::new();
    let store = world.open("boot-1", WALL_US).await;
    granted(&store, &lock("a"), 1, 1).await;
    let connection = rusqlite::Connection::open(world.path()).expect("a database");
    connection.execute("UPDATE meta SET format = 99", []).expect("one row");
    let outcome = store.execute(&lock("a"), &release(1, 1), WITHIN).await;
    let Outcome::Refused(fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("format 99"), "{fault}");
    drop(store);
    let fault = SqliteStore::open(world.path()).await.expect_err("another format");
    assert!(matches!(fault.kind, FaultKind::Unsupported(_)), "{fault}");
    assert!(fault.to_string().contains("format 99"), "{fault}");
    assert_eq!(world.ask_file::<i64>("SELECT count(*) FROM locks"), 1, "nothing was lost");
}

#[derive(Default)]
struct Posts(Mutex<Vec<Wake>>);

impl Postbox for Posts {
    fn deliver(&self, wake: Wake) {
        self.0.lock().expect("nobody panicked").push(wake);
    }

    fn renewed(&self) {}
}

impl Posts {
    fn take(&self) -> Vec<Wake> {
        std::mem::take(&mut *self.0.lock().expect("nobody panicked"))
    }
}

/// One step of a random history.
#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Do(&'static str, Op),
}

fn any_acquire() -> impl Strategy<Value = Acquire> {
    (0..5_u8, 0..3_u8, any::<Option<u64>>(), 1..5000_u64, 1..5000_u64).prop_map(
        |(of, hold, nonce, lease_ms, kept_ms)| Acquire {
            lease_ms,
            queue: nonce.map(|nonce| Enqueue { nonce: Nonce::new(0, nonce), kept_ms }),
            ..acquire(of, hold, false)
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let claims = || (0..5_u8, 0..3_u8).prop_map(|(of, hold)| claim(of, hold));
    let extend = (claims(), 1..9000_u64, any::<bool>())
        .prop_map(|(claim, lease_ms, keep_record)| Op::Extend(Extend { claim, lease_ms, keep_record }));
    let release =
        (claims(), any::<bool>(), proptest::option::of(any_acquire())).prop_map(|(claim, grant, next)| {
            let pass = if grant { Pass::Grant } else { Pass::Free };
            Op::Release(Release { claim, pass, next })
        });
    let inspect =
        proptest::option::of(claims()).prop_map(|claim| Op::Inspect(Inspect { claim, in_full: false }));
    let op = prop_oneof![
        4 => any_acquire().prop_map(Op::Acquire),
        1 => extend,
        3 => release,
        1 => inspect,
    ];
    prop_oneof![
        1 => prop_oneof![Just(1), Just(999), Just(1000), 1..4 * SECOND_US, Just(HOUR_US)].prop_map(Step::Pass),
        4 => (prop_oneof![Just("a"), Just("b")], op).prop_map(|(name, op)| Step::Do(name, op)),
    ]
}

async fn agrees_with_the_model(steps: Vec<Step>) {
    let world = World::new();
    world.clock.store(WALL_US, Ordering::Relaxed);
    let store = world.open("boot-1", WALL_US).await;
    let clock = world.clock.clone();
    let model = MemoryStore::with_clock(move || clock.load(Ordering::Relaxed));
    let (ours, theirs) = (Arc::new(Posts::default()), Arc::new(Posts::default()));
    for n in 0..5 {
        store.open_mailbox(session(n), ours.clone(), WITHIN).await.expect("a fresh session");
        model.open_mailbox(session(n), theirs.clone(), WITHIN).await.expect("it never fails");
    }
    for step in steps {
        match step {
            Step::Pass(us) => world.pass(us),
            Step::Do(name, op) => {
                let expected = done(&model, &lock(name), op.clone()).await;
                assert_eq!(done(&store, &lock(name), op.clone()).await, expected, "{op:?}");
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

/// The least executor: parks the thread until it is woken.
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
