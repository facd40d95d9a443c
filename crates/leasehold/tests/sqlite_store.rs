//! The SQLite store between real processes, and what it refuses.
//!
//! The test binary runs itself again as a worker, which does what it reads from its standard input and
//! answers with lines that begin with `@`.

#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests")]

use leasehold::store::{Fault, FaultKind, Outcome, Postbox, SqliteStore, Store, Wake};
use leasehold::{FencingToken, Label, SessionId};
use leasehold_core::{
    Acquire, Acquired, Beat, Beaten, Claim, Ended, Enqueue, Evict, Evicted, Free, Freed, HoldId, Inspect,
    Inspection, Life, Lock, Nonce, Op, Pass, Release, Reply, Seen, SessionEntry, SessionOp, SessionReply,
};
use rustix::process::{Pid, Signal, WaitOptions};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(10);
/// How long a waiter sleeps between two looks, as the engine does: longer further back.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_STEP: Duration = Duration::from_millis(250);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// How long a place is kept: longer than any of those.
const KEPT_MS: u64 = 21_000;
const LEASE_MS: u64 = 60_000;
/// Where a worker finds the path of its store; set in workers only.
const WORKER: &str = "LEASEHOLD_TEST_WORKER";

// ---- one session, as the engine would be ----

struct Party {
    store: SqliteStore,
    session: SessionId,
    wakes: mpsc::Receiver<Wake>,
}

struct Post(mpsc::Sender<Wake>);

impl Postbox for Post {
    fn deliver(&self, wake: Wake) {
        // A party that is gone does not read its messages.
        let _ = self.0.send(wake);
    }

    fn renewed(&self) {}
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn open(path: &Path) -> Result<SqliteStore, Fault> {
    block_on(SqliteStore::open(path))
}

fn lock() -> Lock {
    Lock::mutex("the lock".parse().unwrap())
}

impl Party {
    fn join(path: &Path) -> Self {
        Self::of(open(path).unwrap())
    }

    fn of(store: SqliteStore) -> Self {
        let session = SessionId::from_random(rand::random());
        let (post, wakes) = mpsc::channel();
        block_on(store.open_mailbox(session, Arc::new(Post(post)), WITHIN)).unwrap();
        Self { store, session, wakes }
    }

    fn claim(&self) -> Claim {
        Claim::new(HoldId::from_random(self.session, rand::random()))
    }

    fn execute(&self, op: &Op) -> Reply {
        match block_on(self.store.execute(&lock(), op, WITHIN)) {
            Outcome::Done(reply) => reply,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    fn acquired(&self, claim: &Claim, queue: bool) -> Acquired {
        match self.execute(&Op::Acquire(ask(claim, queue))) {
            Reply::Acquire(acquired) => acquired,
            other => panic!("{other:?}"),
        }
    }

    fn try_acquire(&self) -> Option<(Claim, FencingToken)> {
        let claim = self.claim();
        match self.acquired(&claim, false) {
            Acquired::Granted { fence, .. } => Some((claim, fence)),
            _ => None,
        }
    }

    /// Waits for as long as it takes.
    fn acquire(&self) -> (Claim, FencingToken) {
        let claim = self.claim();
        let first = self.acquired(&claim, true);
        self.await_grant(claim, first)
    }

    fn await_grant(&self, claim: Claim, mut last: Acquired) -> (Claim, FencingToken) {
        loop {
            let before = match last {
                Acquired::Granted { fence, .. } => return (claim, fence),
                Acquired::Taken { position, .. } => u32::try_from(position.unwrap()).unwrap(),
                Acquired::Spent(how) => panic!("{how:?}"),
            };
            match self.wakes.recv_timeout((LOOK_EVERY + LOOK_STEP * before).min(LOOK_AT_LEAST_EVERY)) {
                Ok(wake) => return (claim, wake.fence()),
                Err(_) => last = self.acquired(&claim, true),
            }
        }
    }

    fn release(&self, claim: Claim) {
        self.execute(&Op::Release(Release { claim, pass: Pass::Grant, next: None }));
    }

    /// Releases, and queues again in the same step.
    fn pass_on(&self, claim: Claim) -> (Claim, Acquired) {
        let again = self.claim();
        let next = Some(ask(&again, true));
        match self.execute(&Op::Release(Release { claim, pass: Pass::Grant, next })) {
            Reply::Release(released) => (again, released.next.unwrap().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    fn waiting(&self) -> u64 {
        self.inspect().waiting
    }

    fn inspect(&self) -> Inspection {
        match self.execute(&Op::Inspect(Inspect { claim: None, in_full: true })) {
            Reply::Inspect(inspection) => inspection,
            other => panic!("{other:?}"),
        }
    }

    /// Takes a hold that does not live with its process.
    fn acquire_detached(&self) -> FencingToken {
        let detached = Acquire { life: Life::Lease, ..ask(&self.claim(), false) };
        match self.execute(&Op::Acquire(detached)) {
            Reply::Acquire(Acquired::Granted { fence, .. }) => fence,
            other => panic!("{other:?}"),
        }
    }

    fn attend(&self, op: &SessionOp) -> SessionReply {
        match block_on(self.store.attend(op, WITHIN)) {
            Outcome::Done(reply) => reply,
            other => panic!("{op:?}: {other:?}"),
        }
    }

    fn begin(&self, about: &str) {
        let (session, begin) = (self.session, Some(about.to_owned()));
        let beat = Beat { session, alive_ms: 1, begin, held: vec![], left: vec![] };
        assert_eq!(self.attend(&SessionOp::Beat(beat)), SessionReply::Beat(Beaten::Alive));
    }

    fn list(&self) -> Vec<SessionEntry> {
        match self.attend(&SessionOp::List) {
            SessionReply::List(list) => list,
            other => panic!("{other:?}"),
        }
    }
}

fn ask(claim: &Claim, queue: bool) -> Acquire {
    Acquire {
        claim: claim.clone(),
        lease_ms: LEASE_MS,
        label: Label::new("party").unwrap(),
        queue: queue.then(|| Enqueue { nonce: Nonce::new(0, rand::random()), kept_ms: KEPT_MS }),
        adopt_ms: None,
        life: Life::Session { alive_ms: 10_000 },
        ahead: None,
    }
}

// ---- workers ----

struct Worker {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(path: &Path) -> Self {
        Self::run(path, Command::new(std::env::current_exe().unwrap()))
    }

    fn run(path: &Path, mut command: Command) -> Self {
        let mut child = command
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env(WORKER, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, commands, answers };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let line = self.answers.next().expect("the worker is there").unwrap();
            // libtest writes its own words before the first of ours.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap();
    }

    fn go_on(&self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn worker() {
    let Some(path) = std::env::var_os(WORKER).map(PathBuf::from) else { return };
    let party = Party::join(&path);
    let (mut held, mut writing) = (None, None);
    answer("ready");
    for command in std::io::stdin().lines() {
        match command.unwrap().as_str() {
            "acquire" => {
                let (claim, fence) = party.acquire();
                held = Some(claim);
                answer(&fence.to_string());
            }
            "queue" => {
                let claim = party.claim();
                assert!(matches!(party.acquired(&claim, true), Acquired::Taken { .. }));
                answer("queued");
                // It never looks again: only a message can wake it.
                let wake = party.wakes.recv().unwrap();
                answer(&format!("woken {}", wake.fence()));
                held = Some(claim);
            }
            "detach" => answer(&party.acquire_detached().to_string()),
            "begin" => {
                party.begin("about a worker");
                answer(&party.session.to_string());
            }
            "await force" => {
                answer("waiting");
                match party.wakes.recv().unwrap() {
                    Wake::Freed { fence, .. } => answer(&format!("freed {fence}")),
                    other => panic!("{other:?}"),
                }
            }
            "release" => {
                party.release(held.take().unwrap());
                answer("released");
            }
            "write" => {
                let connection = rusqlite::Connection::open(&path).unwrap();
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                writing = Some(connection);
                answer("writing");
            }
            "count" => {
                count(&party, &path.with_extension("count"), 100);
                answer("counted");
            }
            "sign" => sign(&party, &path.with_extension("signed")),
            "relay" => relay(&party),
            other => panic!("{other}"),
        }
    }
    drop(writing);
}

fn answer(text: &str) {
    println!("@{text}");
}

/// Takes the lock again and again, and says when it got it and when it let it go, until it is killed.
fn relay(party: &Party) {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = |at: rustix::time::Timespec| at.tv_sec * 1_000_000_000 + at.tv_nsec;
    let (mut claim, mut fence) = party.acquire();
    loop {
        let got = now();
        std::thread::sleep(Duration::from_millis(5));
        let gave = now();
        let (again, acquired) = party.pass_on(claim);
        answer(&format!("{fence} {} {}", nanos(got), nanos(gave)));
        (claim, fence) = party.await_grant(again, acquired);
    }
}

/// Reads a number from a file and writes one more, many times.
fn count(party: &Party, file: &Path, times: u32) {
    for _ in 0..times {
        let (claim, _) = party.acquire();
        let number: u32 = std::fs::read_to_string(file).unwrap().parse().unwrap();
        std::fs::write(file, (number + 1).to_string()).unwrap();
        party.release(claim);
    }
}

/// Writes its name into a file under the lock, and says whether it stayed there, until it is killed.
fn sign(party: &Party, file: &Path) {
    let name = party.session.to_string();
    loop {
        let (claim, _) = party.acquire();
        std::fs::write(file, &name).unwrap();
        std::thread::yield_now();
        let alone = std::fs::read_to_string(file).unwrap() == name;
        party.release(claim);
        answer(if alone { "alone" } else { "two at once" });
    }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("locks.db");
    (dir, path)
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn check_refused(path: &Path, said: &str) {
    let fault = open(path).expect_err("it should be refused");
    assert!(!fault.is_transient(), "{fault}");
    assert!(fault.to_string().contains(said), "{fault}");
}

// ---- between stores and processes ----

#[test]
fn two_stores_on_one_path_exclude_each_other() {
    let (_dir, path) = place();
    let (one, two) = (Party::join(&path), Party::join(&path));
    let (claim, first) = one.try_acquire().unwrap();
    assert_eq!(two.try_acquire(), None);
    one.release(claim);
    let (_, second) = two.try_acquire().unwrap();
    assert!(second > first);
    assert_eq!(one.try_acquire(), None);
}

#[test]
fn a_killed_holder_is_buried_at_the_next_look_and_leaves_nothing() {
    let (dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let fence: FencingToken = worker.ask("acquire").parse().unwrap();
    assert_eq!(party.try_acquire(), None);
    worker.kill();
    let (_, after) = party.try_acquire().expect("its holder is dead");
    assert!(after > fence);
    let sessions = std::fs::read_dir(dir.path().join("locks.db-sessions")).unwrap().count();
    assert_eq!(sessions, 2, "the life and the socket of the party alone");
    let audit = party.inspect().audit;
    let told: Vec<_> = audit.iter().map(|entry| (entry.how, entry.fence, entry.by.to_string())).collect();
    assert_eq!(told, [(Ended::Evicted, Some(fence), "party".to_owned())]);
}

#[test]
fn a_detached_hold_outlives_the_process_that_took_it() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let session: SessionId = worker.ask("begin").parse().unwrap();
    let fence: FencingToken = worker.ask("detach").parse().unwrap();
    worker.kill();
    assert_eq!(party.try_acquire(), None, "no process is needed for it");
    let evict = Op::Evict(Evict { dead: session, by: Label::new("party").unwrap() });
    assert_eq!(party.execute(&evict), Reply::Evict(Evicted::Gone { hold: None, place: false }));
    let seen = party.inspect();
    assert_eq!(seen.holder.and_then(|holder| holder.fence), Some(fence));
    assert_eq!(seen.audit, []);
}

#[test]
fn a_forced_release_reaches_the_holder_in_another_process() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let fence: FencingToken = worker.ask("acquire").parse().unwrap();
    assert_eq!(worker.ask("await force"), "waiting");
    let free = Op::Free(Free { seen: Seen::Hold(fence), by: Label::new("a person").unwrap() });
    assert_eq!(party.execute(&free), Reply::Free(Freed::Freed));
    assert_eq!(worker.answer(), format!("freed {fence}"));
    let (_, next) = party.try_acquire().expect("it is free");
    assert_eq!(party.inspect().audit.len(), 1);
    assert_eq!(worker.ask("release"), "released", "which touches nothing");
    assert_eq!(party.inspect().holder.and_then(|holder| holder.fence), Some(next));
}

#[test]
fn the_list_tells_who_lives_and_who_has_died_with_a_lock() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let session: SessionId = worker.ask("begin").parse().unwrap();
    let about = "about a worker".to_owned();
    let mut entry = SessionEntry { session, alive_ms: Some(u64::MAX), about, held: vec![] };
    assert_eq!(party.list(), [entry.clone()], "the party has not begun, and holds nothing");
    worker.ask("acquire");
    entry.held.push(lock());
    assert_eq!(party.list(), [entry.clone()]);
    worker.stop();
    assert_eq!(party.list(), [entry.clone()], "who is stopped lives");
    worker.kill();
    entry.alive_ms = None;
    assert_eq!(party.list(), [entry], "nobody has looked at the lock yet");
    party.try_acquire().unwrap();
    let list = party.list();
    let [mine] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(
        (mine.session, mine.alive_ms, mine.held.as_slice()),
        (party.session, Some(u64::MAX), &[lock()][..])
    );
}

#[test]
fn a_stopped_holder_is_never_buried() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    worker.ask("acquire");
    worker.stop();
    for _ in 0..50 {
        assert_eq!(party.try_acquire(), None);
    }
    drop(Party::join(&path));
    assert_eq!(party.try_acquire(), None, "nor by one who opens the store");
    worker.go_on();
    assert_eq!(worker.ask("release"), "released");
    party.try_acquire().unwrap();
}

#[test]
fn killed_waiters_are_skipped() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let (claim, _) = party.acquire();
    let mut dead: Vec<_> = (0..3).map(|_| Worker::start(&path)).collect();
    for worker in &mut dead {
        assert_eq!(worker.ask("queue"), "queued");
    }
    let mut live = Worker::start(&path);
    assert_eq!(live.ask("queue"), "queued");
    dead.iter_mut().for_each(Worker::kill);
    assert_eq!(party.waiting(), 1);
    party.release(claim);
    assert!(live.answer().starts_with("woken "));
}

#[test]
fn a_release_wakes_the_waiter_in_another_process() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let (claim, fence) = party.acquire();
    assert_eq!(worker.ask("queue"), "queued");
    party.release(claim);
    let woken = worker.answer();
    let granted: FencingToken = woken.strip_prefix("woken ").unwrap().parse().unwrap();
    assert!(granted > fence);
    assert_eq!(worker.ask("release"), "released");
    party.try_acquire().unwrap();
}

#[test]
fn whoever_is_killed_at_any_moment_takes_nothing_along() {
    let (dir, path) = place();
    let start = || {
        let mut worker = Worker::start(&path);
        worker.tell("sign");
        worker
    };
    let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
    for round in 0..40 {
        let at = round % workers.len();
        for _ in 0..rand::random_range(0..20) {
            assert_eq!(workers[at].answer(), "alone");
        }
        workers[at].kill();
        workers[at] = start();
    }
    for worker in &mut workers {
        assert_eq!(worker.answer(), "alone", "nobody waits for the dead");
    }
    drop(workers);
    let started = Instant::now();
    let party = Party::join(&path);
    party.acquire();
    assert!(started.elapsed() < Duration::from_secs(LEASE_MS / 1000), "{:?}", started.elapsed());
    drop(open(&path).unwrap());
    let left = std::fs::read_dir(dir.path().join("locks.db-sessions")).unwrap().count();
    assert_eq!(left, 2, "the life and the socket of the party alone");
}

#[test]
fn no_increment_is_lost_between_processes() {
    let (dir, path) = place();
    let file = dir.path().join("locks.count");
    std::fs::write(&file, "0").unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start(&path)).collect();
    for worker in &mut workers {
        worker.tell("count");
    }
    for worker in &mut workers {
        assert_eq!(worker.answer(), "counted");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "400");
}

#[test]
fn no_increment_is_lost_between_threads() {
    let (_dir, path) = place();
    let (number, shared) = (AtomicU64::new(0), open(&path).unwrap());
    std::thread::scope(|scope| {
        for n in 0..10 {
            let number = &number;
            // Half of them share a store and its thread, and half have their own.
            let party = if n % 2 == 0 { Party::of(shared.clone()) } else { Party::join(&path) };
            scope.spawn(move || {
                for _ in 0..50 {
                    let (claim, _) = party.acquire();
                    let seen = number.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    number.store(seen + 1, Ordering::Relaxed);
                    party.release(claim);
                }
            });
        }
    });
    assert_eq!(number.into_inner(), 500);
}

#[test]
fn tokens_never_fall_back_over_an_open() {
    let (_dir, path) = place();
    let mut last = None;
    for _ in 0..5 {
        let party = Party::join(&path);
        let (claim, fence) = party.try_acquire().unwrap();
        assert!(last < Some(fence), "{last:?}, {fence}");
        last = Some(fence);
        party.release(claim);
    }
}

#[test]
fn a_container_with_a_clock_of_its_own_shares_the_stores_time() {
    let ahead = ["-T", "--boottime", "100000"];
    if !Command::new("unshare").args(ahead).arg("true").status().is_ok_and(|status| status.success()) {
        // Only root may make such a container, and only a new kernel can.
        return;
    }
    let (_dir, path) = place();
    let party = Party::join(&path);
    let (claim, fence) = party.try_acquire().unwrap();
    party.release(claim);
    let mut container = Command::new("unshare");
    container.args(ahead).arg(std::env::current_exe().unwrap());
    let mut worker = Worker::run(&path, container);
    let theirs: FencingToken = worker.ask("acquire").parse().unwrap();
    assert!(theirs.as_u64() - fence.as_u64() < 90_000 * 1_000_000, "{fence} and {theirs}");
    assert_eq!(party.try_acquire(), None);
}

#[test]
fn calls_end_in_time_while_another_process_writes() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    assert_eq!(worker.ask("write"), "writing");
    let within = Duration::from_millis(200);
    let claim = party.claim();
    let op = Op::Acquire(ask(&claim, false));
    let started = Instant::now();
    // The first waits for the writer, the others in the queue behind it, and the last is given up.
    let all = [(lock(), op.clone()), (lock(), op.clone())];
    let outcomes = block_on(async {
        let outcomes = party.store.execute_all(&all, within).await;
        let given_up = party.store.execute(&all[0].0, &op, WITHIN);
        let given_up = tokio::time::timeout(Duration::from_millis(10), given_up).await;
        assert!(given_up.is_err());
        outcomes
    });
    assert!(started.elapsed() < within * 3, "{:?}", started.elapsed());
    for outcome in outcomes {
        let Outcome::Refused(fault) = outcome else { panic!("{outcome:?}") };
        assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    }
    worker.kill();
    party.release(claim);
    party.try_acquire().expect("the killed writer wrote nothing");
}

// ---- the files ----

#[test]
fn the_files_are_for_their_owner_alone() {
    let (dir, path) = place();
    let party = Party::join(&path);
    party.try_acquire().unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(&dir.path().join(name)), 0o600, "{name}");
    }
    let sessions = dir.path().join("locks.db-sessions");
    assert_eq!(mode(&sessions), 0o700);
    let entries: Vec<_> = std::fs::read_dir(&sessions).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 2);
    for entry in entries {
        assert_eq!(mode(&entry), 0o600, "{}", entry.display());
    }
    party.store.close_mailbox(party.session);
    // The thread does one thing after the other.
    assert_eq!(party.try_acquire(), None);
    assert_eq!(std::fs::read_dir(&sessions).unwrap().count(), 0, "a closed mailbox leaves nothing");
}

#[test]
fn what_others_may_open_is_refused_with_its_remedy() {
    let (dir, path) = place();
    drop(open(&path).unwrap());
    set_mode(&path, 0o644);
    check_refused(&path, &format!("chmod 600 {}", path.display()));
    set_mode(&path, 0o600);
    let sessions = dir.path().join("locks.db-sessions");
    set_mode(&sessions, 0o755);
    check_refused(&path, &format!("chmod 700 {}", sessions.display()));
    set_mode(&sessions, 0o700);
    set_mode(dir.path(), 0o777);
    check_refused(&path, &format!("chmod go-w {}", dir.path().display()));
    set_mode(dir.path(), 0o770);
    check_refused(&path, &format!("chmod go-w {}", dir.path().display()));
    set_mode(dir.path(), 0o1777);
    drop(open(&path).unwrap());
}

#[test]
fn another_users_file_is_refused() {
    let (_dir, path) = place();
    std::fs::write(&path, "").unwrap();
    set_mode(&path, 0o600);
    // Only root can give a file away.
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        check_refused(&path, "belongs to user 12345");
    }
}

#[test]
fn links_to_the_file_are_refused() {
    let (dir, path) = place();
    let target = dir.path().join("elsewhere");
    for existing in [false, true] {
        if existing {
            drop(open(&target).unwrap());
        }
        std::os::unix::fs::symlink(&target, &path).unwrap();
        check_refused(&path, "is a symbolic link");
        assert_eq!(target.exists(), existing, "nothing is made by way of a link");
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::hard_link(&target, &path).unwrap();
    check_refused(&path, "second name");
    std::fs::remove_file(&path).unwrap();
    for beside in ["-sessions", "-wal", "-shm"] {
        let beside = dir.path().join(format!("locks.db{beside}"));
        std::os::unix::fs::symlink(dir.path(), &beside).unwrap();
        check_refused(&path, "is a symbolic link");
        std::fs::remove_file(&beside).unwrap();
    }
}

#[test]
fn links_to_its_directory_lead_to_the_same_store() {
    let dir = tempfile::tempdir().unwrap();
    let (real, linked) = (dir.path().join("real"), dir.path().join("linked"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &linked).unwrap();
    let (one, two) = (Party::join(&real.join("locks.db")), Party::join(&linked.join("locks.db")));
    one.try_acquire().unwrap();
    assert_eq!(two.try_acquire(), None);
}

#[test]
fn what_is_no_store_is_refused_and_stays_as_it_was() {
    let (_dir, path) = place();
    for content in ["no database", &"no database either\n".repeat(1000)] {
        std::fs::write(&path, content).unwrap();
        set_mode(&path, 0o600);
        check_refused(&path, "not a SQLite database");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
    std::fs::remove_file(&path).unwrap();
    let foreign = rusqlite::Connection::open(&path).unwrap();
    foreign.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (7)").unwrap();
    set_mode(&path, 0o600);
    check_refused(&path, "database of something else");
    assert_eq!(foreign.query_row("SELECT x FROM t", [], |row| row.get(0)), Ok(7));
    assert_eq!(foreign.query_row("PRAGMA journal_mode", [], |row| row.get(0)), Ok("delete".to_owned()));
}

#[test]
fn what_is_no_path_of_a_file_is_refused() {
    let (dir, path) = place();
    drop(open(&path).unwrap());
    check_refused(dir.path(), "not a regular file");
    check_refused(&dir.path().join("missing/locks.db"), "directory does not exist");
    check_refused(&path.join("locks.db"), "locks.db");
    check_refused(&dir.path().join("n\0l"), "");
    check_refused(Path::new("/"), "not the path of a file");
    check_refused(Path::new(""), "not the path of a file");
}

#[test]
fn a_file_put_in_the_place_of_an_open_one_is_noticed() {
    let (dir, path) = place();
    let party = Party::join(&path);
    let (claim, _) = party.try_acquire().unwrap();
    std::fs::rename(&path, dir.path().join("moved.db")).unwrap();
    let op = Op::Release(Release { claim, pass: Pass::Grant, next: None });
    let outcome = block_on(party.store.execute(&lock(), &op, WITHIN));
    let Outcome::Refused(fault) = outcome else { panic!("{outcome:?}") };
    assert!(fault.to_string().contains("replaced or removed"), "{fault}");
}

#[test]
fn any_path_works_however_long_or_strange() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("x".repeat(120)).join("y ?#%&'\"é".repeat(12));
    std::fs::create_dir_all(&deep).unwrap();
    let path = deep.join(":memory:");
    let party = Party::join(&path);
    let mut worker = Worker::start(&path);
    let (claim, _) = party.acquire();
    assert_eq!(worker.ask("queue"), "queued");
    party.release(claim);
    assert!(worker.answer().starts_with("woken "), "by its socket");
    assert!(path.exists());
}

#[test]
fn many_can_create_the_same_file_at_once() {
    let (_dir, path) = place();
    let parties: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| Party::join(&path))).collect();
        all.into_iter().map(|party| party.join().unwrap()).collect()
    });
    let granted = parties.iter().filter_map(Party::try_acquire).count();
    assert_eq!(granted, 1);
}

#[test]
fn processes_that_pass_the_lock_on_are_never_inside_at_once() {
    let (_dir, path) = place();
    let party = Party::join(&path);
    let (claim, _) = party.acquire();
    let mut workers: Vec<_> = (0..8).map(|_| Worker::start(&path)).collect();
    for worker in &mut workers {
        worker.tell("relay");
    }
    while party.waiting() < 8 {
        std::thread::sleep(Duration::from_millis(10));
    }
    party.release(claim);
    std::thread::sleep(Duration::from_secs(1));
    let turns: Vec<_> = turns(&mut workers).into_values().collect();
    assert!(turns.len() > 8, "only {} turns", turns.len());
    assert!(turns.windows(2).all(|pair| pair[1].0 > pair[0].1), "two at once");
}

/// When each hold was got and given, in nanoseconds, by its fencing token.
fn turns(workers: &mut [Worker]) -> BTreeMap<u64, (u64, u64)> {
    for worker in workers.iter_mut() {
        worker.child.kill().unwrap();
    }
    let lines = workers.iter_mut().flat_map(|worker| worker.answers.by_ref()).map_while(Result::ok);
    let turns = lines.filter_map(|line| {
        let mut numbers = line.strip_prefix('@')?.split(' ').map_while(|number| number.parse().ok());
        Some((numbers.next()?, (numbers.next()?, numbers.next()?)))
    });
    turns.collect()
}
