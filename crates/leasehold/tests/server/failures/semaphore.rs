//! Semaphore permits of processes that are killed.

use super::fixture::{MS, S, client, server, until};
use leasehold::core::Ended;
use leasehold::error::{AcquireError, Refused, ReleaseError};
use leasehold::inspect::HoldEnding;
use leasehold::{Client, LostReason};
use leasehold_testkit::{Random, RedisServer, Stopwatch, Value, Worker};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const PERMITS: u32 = 3;
const PROCESSES: usize = 6;

/// Microseconds of the machine's clock, the same in all processes.
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1000).expect("the clock began with the machine")
}

fn start(server: &RedisServer) -> Worker {
    Worker::of_test("failures::semaphore::a_worker_that_takes_permits", "permits")
        .env("LEASEHOLD_TEST_URL", server.url())
        .start()
        .expect("a worker")
}

/// Kills a worker, and returns until when it may have lived. If the machine took so long that the worker's session may have
/// lapsed meanwhile, that is not known: then the time before.
fn kill(worker: &mut Worker) -> u64 {
    let before_us = now_us();
    worker.kill().expect("killed");
    let after_us = now_us();
    if after_us - before_us > 500_000 {
        println!("killing a worker took {} us", after_us - before_us);
        return before_us;
    }
    after_us
}

/// When each permit was held, as far as can be known: at the latest until its holder was killed.
fn stays(worker: &mut Worker, killed_us: u64) -> Vec<(u64, u64)> {
    let mut stays: Vec<(u64, u64)> = Vec::new();
    let mut inside: Option<u64> = None;
    while let Ok(line) = worker.line(S) {
        let (word, at_us) = line.split_once(' ').expect("a word and a time");
        let at_us: u64 = at_us.parse().expect("a time");
        match word {
            "in" => inside = Some(at_us),
            "lost" => inside = None,
            _ => stays.extend(inside.take().map(|from_us| (from_us, at_us))),
        }
    }
    stays.extend(inside.map(|from_us| (from_us, killed_us)));
    stays
}

/// Failure row 27. Holders of a semaphore of three are killed at random for a minute: never more than three hold a
/// permit at once, and afterwards three are free and no key of a dead process is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_27_holders_killed_at_random_leave_no_permit_taken() {
    let server = server();
    let random = Random::from_env();
    println!("{}", random.seed_setting());
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| start(&server)).collect();
    let (begun, mut kills, mut all) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(500 + random.below(2_500))).await;
        let victim = usize::try_from(random.below(PROCESSES as u64)).expect("a few");
        let killed_us = kill(&mut workers[victim]);
        all.extend(stays(&mut workers[victim], killed_us));
        workers[victim] = start(&server);
        kills += 1;
    }
    for worker in &mut workers {
        let killed_us = kill(worker);
        all.extend(stays(worker, killed_us));
    }
    let most = most_at_a_time(&all);
    println!("{kills} kills, {} stays, {most} inside at most", all.len());
    assert!(most <= PERMITS as usize, "{most} held one of {PERMITS}");
    assert!(all.len() > 100 && most == PERMITS as usize, "too few for a result: {}", all.len());
    nothing_is_left(&server).await;
}

/// The largest number of permits held at the same time.
fn most_at_a_time(stays: &[(u64, u64)]) -> usize {
    let mut turns: Vec<(u64, bool)> = Vec::new();
    for (from_us, until_us) in stays {
        // In the same microsecond, ends sort before starts.
        turns.extend([(*from_us, true), (*until_us, false)]);
    }
    turns.sort_unstable();
    let (mut inside, mut most) = (0_usize, 0);
    for (_, comes) in turns {
        inside = if comes { inside + 1 } else { inside - 1 };
        most = most.max(inside);
    }
    most
}

/// Failure row 22. Ten thousand tasks of one process wait, each with its own queue entry, over the connections that
/// the client already has; and all are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_22_ten_thousand_waiters_need_no_more_connections() {
    const WAITERS: u64 = 10_000;
    // A quarter of a minute on a quiet machine, and more than one with other builds beside it.
    const LIMIT: Duration = Duration::from_secs(300);
    let server = server();
    // A busy machine takes a while to reply to ten thousand requests sent at once.
    let patient = Client::builder(server.url()).call_timeout(LIMIT).connect().await;
    let (own, other) = (patient.expect("connected"), client(&server.url()).await);
    let connections = || {
        let info = server.cli(&["INFO", "clients"]).expect("an answer");
        let text = info.text().expect("a text").to_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("connected_clients:").map(str::to_owned));
        line.expect("the server reports it").parse::<u64>().expect("a number")
    };
    let held = other.semaphore("crowd", 1).expect("a good name").acquire().await.expect("acquired");
    let semaphore = own.semaphore("crowd", 1).expect("a good name");
    let watch = Arc::new(Stopwatch::start());
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (semaphore, watch) = (semaphore.clone(), watch.clone());
            tokio::spawn(async move {
                let mut lost = 0_u64;
                loop {
                    let permit = semaphore.acquire().await.expect("acquired");
                    match permit.release().await {
                        Ok(()) => return lost,
                        // The machine ran this process late: the short first lease ended, and the task waits again.
                        Err(ReleaseError::Lost(LostReason::Expired)) if watch.longest_delay() > 300 * MS => {
                            lost += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    until("all wait", LIMIT, async || semaphore.inspect().await.expect("an answer").waiting == WAITERS).await;
    // Two of each client, and the test's own.
    assert!(connections() <= 5, "{} connections", connections());
    let start = Instant::now();
    held.release().await.expect("released");
    let mut lost = 0;
    for task in waiting {
        lost += task.await.expect("no task panicked");
    }
    assert!(lost <= WAITERS / 100, "{lost} permits were lost");
    println!("{WAITERS} were served in {:?}", start.elapsed());
    let status = semaphore.inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.waiting), (0, 0));
}

async fn nothing_is_left(server: &RedisServer) {
    let own = client(&server.url()).await;
    let semaphore = own.semaphore("permits", PERMITS).expect("a good name");
    let all = semaphore.acquire_many_timeout(PERMITS, LIMIT).await.expect("they are free");
    all.release().await.expect("released");
    let status = semaphore.inspect().await.expect("an answer");
    assert_eq!((status.taken(), status.waiting, status.limit), (0, 0, Some(PERMITS)));
    let ours = own.session_id().to_string();
    until("no key of the dead is left", LIMIT, async || {
        let keys = words(server, &["KEYS", "*"]);
        assert!(!keys.contains(&"permits".to_owned()), "the lock's own key went with its last hold");
        let mut of_sessions: Vec<String> = Vec::new();
        for key in &keys {
            assert_ne!(
                server.cli(&["PTTL", key]).expect("an answer"),
                Value::Integer(-1),
                "{key} has no expiry"
            );
            of_sessions.extend(key.split_once("{sessions}:").map(|(_, session)| session.to_owned()));
            // Queue entries, and the fields of holders.
            if key.contains(":record:") {
                let fields = words(server, &["HKEYS", key]);
                assert!(fields.iter().all(|field| !field.contains(':')), "{fields:?}");
            }
        }
        of_sessions.iter().all(|session| *session == ours)
    })
    .await;
}

fn words(server: &RedisServer, arguments: &[&str]) -> Vec<String> {
    let Value::Array(items) = server.cli(arguments).expect("an answer") else { panic!("no array") };
    items.iter().filter_map(|item| item.text().map(str::to_owned)).collect()
}

/// A deploy with a new number of permits beside a process of the old one that was killed: once that session is over, its permits
/// are no reason to refuse the new number, though their lease lasts for longer.
#[tokio::test]
async fn another_number_is_not_refused_for_the_permits_of_a_dead_process() {
    let server = server();
    let mut old = Worker::of_test("failures::semaphore::a_worker_that_keeps_a_permit", "keeps")
        .env("LEASEHOLD_TEST_URL", server.url())
        .start()
        .expect("a worker");
    old.expect("held", LIMIT).expect("it holds a permit");
    let own = client(&server.url()).await;
    let new = own.semaphore("permits", PERMITS + 2).expect("a good name");
    let refused = new.try_acquire().await;
    assert!(
        matches!(refused, Err(AcquireError::Impossible(Refused::Disagreement { known: PERMITS, .. }))),
        "{refused:?}"
    );
    let mut ends = new.observe_ends().await.expect("an answer");
    old.kill().expect("killed");
    until("the new number is accepted", LIMIT, async || {
        let acquired = new.acquire().await;
        let Ok(permit) = acquired else { return false };
        permit.release().await.expect("released");
        true
    })
    .await;
    let audit = new.inspect_full().await.expect("an answer").audit;
    assert!(
        audit.iter().any(|entry| entry.ended == Ended::Evicted),
        "it did not wait for the lease: {audit:?}"
    );
    assert_eq!(ends.next().await.expect("an answer").ending, HoldEnding::Evicted);
}

/// Not a test by itself: a process that keeps a permit for an hour, or until it is killed.
#[test]
fn a_worker_that_keeps_a_permit() {
    if Worker::role().as_deref() != Some("keeps") {
        return;
    }
    let url = std::env::var("LEASEHOLD_TEST_URL").expect("set by the test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(&url).session_ttl(2 * S).connect().await.expect("connected");
        let semaphore = client.semaphore("permits", PERMITS).expect("a good name").lease(3_600 * S);
        let permit = semaphore.acquire().await.expect("acquired");
        permit.extend().await.expect("for the whole lease");
        Worker::report("held");
        tokio::time::sleep(3_600 * S).await;
        permit.release().await.expect("released");
    });
}

/// Not a test by itself: a process that acquires a permit again and again.
#[test]
fn a_worker_that_takes_permits() {
    if Worker::role().as_deref() != Some("permits") {
        return;
    }
    let url = std::env::var("LEASEHOLD_TEST_URL").expect("set by the test");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = Client::builder(&url).session_ttl(2 * S).connect().await.expect("connected");
        let semaphore = client.semaphore("permits", PERMITS).expect("a good name");
        loop {
            let permit = semaphore.acquire().await.expect("acquired");
            Worker::report(&format!("in {}", now_us()));
            tokio::time::sleep(Duration::from_millis(20)).await;
            let left_us = now_us();
            if permit.check().is_ok() {
                Worker::report(&format!("out {left_us}"));
                permit.release().await.expect("released");
            } else {
                // The permit was lost before, so the current holder is right.
                Worker::report("lost 0");
            }
        }
    });
}
