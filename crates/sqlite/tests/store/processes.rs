//! Exclusion between stores and processes, and the cleanup after dead ones.

use crate::session::{LEASE_MS, TestSession, WITHIN, acquire_op, block_on, lock, open, temporary_path};
use crate::worker::Worker;
use leasehold_core::{
    Ended, Evict, Evicted, FencingToken, ForceRelease, ForceReleased, Label, ObservedHolder, Op, Reply,
    SessionEntry, SessionId,
};
use leasehold_store::{Executed, FaultKind, Outcome, Store};
use leasehold_testkit::Stopwatch;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn two_stores_on_one_path_exclude_each_other() {
    let (_dir, path) = temporary_path();
    let (one, two) = (TestSession::join(&path), TestSession::join(&path));
    let (claim, first) = one.try_acquire().unwrap();
    assert_eq!(two.try_acquire(), None);
    one.release(claim);
    let (_, second) = two.try_acquire().unwrap();
    assert!(second > first);
    assert_eq!(one.try_acquire(), None);
}

#[test]
fn a_killed_holder_is_evicted_at_the_next_request_and_leaves_nothing() {
    let (dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let fence: FencingToken = worker.ask("acquire").parse().unwrap();
    assert_eq!(ours.try_acquire(), None);
    worker.kill();
    let (_, after) = ours.try_acquire().expect("its holder is dead");
    assert!(after > fence);
    let sessions = std::fs::read_dir(dir.path().join("locks.db-sessions")).unwrap().count();
    assert_eq!(sessions, 2, "the session file and the socket of this process");
    let audit = ours.inspect().audit;
    let reported: Vec<_> =
        audit.iter().map(|entry| (entry.ended, entry.fence, entry.actor.to_string())).collect();
    assert_eq!(reported, [(Ended::Evicted, Some(fence), "a test".to_owned())]);
}

#[test]
fn a_detached_hold_outlives_the_process_that_took_it() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let session: SessionId = worker.ask("begin").parse().unwrap();
    let fence: FencingToken = worker.ask("detach").parse().unwrap();
    worker.kill();
    assert_eq!(ours.try_acquire(), None, "no process is needed for it");
    let evict = Op::Evict(Evict { session, actor: Label::new("a test").unwrap() });
    assert_eq!(ours.execute(&evict), Reply::Evict(Evicted::Removed { fence: None, was_queued: false }));
    let seen = ours.inspect();
    assert_eq!(seen.holder.and_then(|holder| holder.fence), Some(fence));
    assert_eq!(seen.audit, []);
}

#[test]
fn a_forced_release_reaches_the_holder_in_another_process() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let fence: FencingToken = worker.ask("acquire").parse().unwrap();
    assert_eq!(worker.ask("await force"), "waiting");
    let free = Op::ForceRelease(ForceRelease {
        observed: ObservedHolder::Hold(fence),
        actor: Label::new("a person").unwrap(),
    });
    assert_eq!(ours.execute(&free), Reply::ForceRelease(ForceReleased::Released));
    assert_eq!(worker.answer(), format!("force_released {fence}"));
    let (_, next) = ours.try_acquire().expect("it is free");
    assert_eq!(ours.inspect().audit.len(), 1);
    assert_eq!(worker.ask("release"), "released", "which touches nothing");
    assert_eq!(ours.inspect().holder.and_then(|holder| holder.fence), Some(next));
}

#[test]
fn the_list_shows_live_and_dead_sessions() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let session: SessionId = worker.ask("begin").parse().unwrap();
    let metadata = "a worker".to_owned();
    let mut entry =
        SessionEntry { session, alive_ms: Some(u64::MAX), metadata, held: vec![], activity: String::new() };
    assert_eq!(ours.list(), [entry.clone()], "this session has not begun, and holds nothing");
    worker.ask("acquire");
    entry.held.push(lock());
    assert_eq!(ours.list(), [entry.clone()]);
    worker.stop();
    assert_eq!(ours.list(), [entry.clone()], "a suspended process is alive");
    worker.kill();
    entry.alive_ms = None;
    assert_eq!(ours.list(), [entry], "no request has inspected the lock yet");
    ours.try_acquire().unwrap();
    let list = ours.list();
    let [mine] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(
        (mine.session, mine.alive_ms, mine.held.as_slice()),
        (ours.session, Some(u64::MAX), &[lock()][..])
    );
}

#[test]
fn a_stopped_holder_is_never_evicted() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    worker.ask("acquire");
    worker.stop();
    for _ in 0..50 {
        assert_eq!(ours.try_acquire(), None);
    }
    drop(TestSession::join(&path));
    assert_eq!(ours.try_acquire(), None, "nor by a process that opens the store");
    worker.cont();
    assert_eq!(worker.ask("release"), "released");
    ours.try_acquire().unwrap();
}

#[test]
fn killed_waiters_are_skipped() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let (claim, _) = ours.acquire();
    let mut dead: Vec<_> = (0..3).map(|_| Worker::start(&path)).collect();
    for worker in &mut dead {
        assert_eq!(worker.ask("queue"), "queued");
    }
    let mut live = Worker::start(&path);
    assert_eq!(live.ask("queue"), "queued");
    dead.iter_mut().for_each(Worker::kill);
    assert_eq!(ours.waiting(), 1);
    ours.release(claim);
    assert!(live.answer().starts_with("woken "));
}

#[test]
fn a_release_wakes_the_waiter_in_another_process() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    let (claim, fence) = ours.acquire();
    assert_eq!(worker.ask("queue"), "queued");
    ours.release(claim);
    let woken = worker.answer();
    let granted: FencingToken = woken.strip_prefix("woken ").unwrap().parse().unwrap();
    assert!(granted > fence);
    assert_eq!(worker.ask("release"), "released");
    ours.try_acquire().unwrap();
}

#[test]
fn a_process_killed_at_any_moment_loses_nothing() {
    let (dir, path) = temporary_path();
    let start = || {
        let mut worker = Worker::start(&path);
        worker.send("sign");
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
        assert_eq!(worker.answer(), "alone", "no wait for dead processes");
    }
    drop(workers);
    let started = Instant::now();
    let ours = TestSession::join(&path);
    ours.acquire();
    assert!(started.elapsed() < Duration::from_secs(LEASE_MS / 1000), "{:?}", started.elapsed());
    drop(open(&path).unwrap());
    let left = std::fs::read_dir(dir.path().join("locks.db-sessions")).unwrap().count();
    assert_eq!(left, 2, "the session file and the socket of this process");
}

#[test]
fn no_increment_is_lost_between_processes() {
    let (dir, path) = temporary_path();
    let file = dir.path().join("locks.count");
    std::fs::write(&file, "0").unwrap();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start(&path)).collect();
    for worker in &mut workers {
        worker.send("count");
    }
    for worker in &mut workers {
        assert_eq!(worker.answer(), "counted");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "400");
}

#[test]
fn no_increment_is_lost_between_threads() {
    let (_dir, path) = temporary_path();
    let (number, shared) = (AtomicU64::new(0), open(&path).unwrap());
    std::thread::scope(|scope| {
        for n in 0..10 {
            let number = &number;
            // Half of them share a store and its thread; the others have their own.
            let ours = if n % 2 == 0 { TestSession::of(shared.clone()) } else { TestSession::join(&path) };
            scope.spawn(move || {
                for _ in 0..50 {
                    let (claim, _) = ours.acquire();
                    let seen = number.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    number.store(seen + 1, Ordering::Relaxed);
                    ours.release(claim);
                }
            });
        }
    });
    assert_eq!(number.into_inner(), 500);
}

#[test]
fn tokens_never_fall_back_over_an_open() {
    let (_dir, path) = temporary_path();
    let mut last = None;
    for _ in 0..5 {
        let ours = TestSession::join(&path);
        let (claim, fence) = ours.try_acquire().unwrap();
        assert!(last < Some(fence), "{last:?}, {fence}");
        last = Some(fence);
        ours.release(claim);
    }
}

#[test]
fn a_container_with_a_clock_of_its_own_shares_the_stores_time() {
    let ahead = ["-T", "--boottime", "100000"];
    if !Command::new("unshare").args(ahead).arg("true").status().is_ok_and(|status| status.success()) {
        // Only root can create such a container, and only a new kernel supports it.
        return;
    }
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let (claim, fence) = ours.try_acquire().unwrap();
    ours.release(claim);
    let mut container = Command::new("unshare");
    container.args(ahead).arg(std::env::current_exe().unwrap());
    let mut worker = Worker::run(&path, container);
    let theirs: FencingToken = worker.ask("acquire").parse().unwrap();
    assert!(theirs.as_u64() - fence.as_u64() < 90_000 * 1_000_000, "{fence} and {theirs}");
    assert_eq!(ours.try_acquire(), None);
}

#[test]
fn calls_end_in_time_while_another_process_writes() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let mut worker = Worker::start(&path);
    assert_eq!(worker.ask("write"), "writing");
    let within = Duration::from_millis(200);
    let claim = ours.claim();
    let op = Op::Acquire(acquire_op(&claim, false));
    // The first waits for the writer, the others in the queue behind it; the last one times out.
    let all = [(lock(), op.clone()), (lock(), op.clone())];
    let call = || {
        let started = Stopwatch::start();
        let outcomes = block_on(async {
            let outcomes = ours.store.execute_all(&all, within).await;
            let given_up = ours.store.execute(&all[0].0, &op, WITHIN);
            let given_up = tokio::time::timeout(Duration::from_millis(10), given_up).await;
            assert!(given_up.is_err());
            outcomes
        });
        started.assert_below(within * 3, "the calls end in time");
        (outcomes, started.longest_delay())
    };
    let (mut outcomes, mut delay) = call();
    for _ in 0..20 {
        let is_unknown = |outcome: &Outcome| matches!(outcome, Outcome::Failed(Executed::Unknown, _));
        // A thread that runs a few milliseconds late cannot tell what the store did.
        if delay.is_zero() || !outcomes.iter().any(is_unknown) {
            break;
        }
        (outcomes, delay) = call();
    }
    for outcome in outcomes {
        let Outcome::Failed(Executed::No, fault) = outcome else { panic!("{outcome:?}") };
        assert_eq!(fault.kind, FaultKind::TimedOut, "{fault}");
    }
    worker.kill();
    ours.release(claim);
    ours.try_acquire().expect("the killed writer wrote nothing");
}

#[test]
fn processes_that_pass_the_lock_on_are_never_inside_at_once() {
    let (_dir, path) = temporary_path();
    let ours = TestSession::join(&path);
    let (claim, _) = ours.acquire();
    let mut workers: Vec<_> = (0..8).map(|_| Worker::start(&path)).collect();
    for worker in &mut workers {
        worker.send("relay");
    }
    while ours.waiting() < 8 {
        std::thread::sleep(Duration::from_millis(10));
    }
    ours.release(claim);
    let start = Stopwatch::start();
    while start.undisturbed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let turns: Vec<_> = turns(&mut workers).into_values().collect();
    assert!(turns.len() > 8, "only {} turns", turns.len());
    assert!(turns.windows(2).all(|pair| pair[1].0 > pair[0].1), "two at once");
}

/// When each hold was acquired and released, in nanoseconds, by its fencing token.
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
