//! Readers and writers of several processes: each records what it did, and the test checks the records.

use super::fixture::{client, server, until};
use futures_util::future::BoxFuture;
use leasehold::core::{
    Acquired, HoldId, KeyError, Lock, Nonce, Notification, Op, Partition, Reply, SessionId,
};
use leasehold::store::{
    Capabilities, Fault, NotificationSink, Outcome, RedisConfig, RedisStore, SessionOp, SessionReply, Store,
};
use leasehold::{Client, RwLock};
use leasehold_sim::history::{RecordedHold, check};
use leasehold_testkit::{Random, RedisServer, Worker};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

const PROCESSES: usize = 4;
const TASKS: usize = 8;
const LIMIT: Duration = Duration::from_secs(60);

/// The requests of one process.
#[derive(Debug, Default)]
struct Requests {
    /// When each hold was first requested, and when it was first reported as queued.
    holds: HashMap<HoldId, (u64, Option<u64>)>,
    nonces: HashMap<Nonce, HoldId>,
    tokens: HashMap<u64, HoldId>,
}

/// A store that records the times of requests and replies.
#[derive(Debug, Clone)]
struct Noting {
    inner: Arc<dyn Store>,
    requests: Arc<Mutex<Requests>>,
}

/// A mailbox that records which hold was granted.
struct NotingPost {
    inner: Arc<dyn NotificationSink>,
    requests: Arc<Mutex<Requests>>,
}

fn noted<T>(requests: &Mutex<Requests>, note: impl FnOnce(&mut Requests) -> T) -> T {
    note(&mut requests.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Microseconds of the machine's clock, the same in all processes.
fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000 + now.tv_nsec / 1000).expect("the clock began with the machine")
}

impl NotificationSink for NotingPost {
    fn deliver(&self, wake: Notification) {
        if let Notification::Grant { nonce, fence, .. } = wake {
            noted(&self.requests, |requests| {
                if let Some(hold) = requests.nonces.get(&nonce).copied() {
                    requests.tokens.insert(fence.as_u64(), hold);
                }
            });
        }
        self.inner.deliver(wake);
    }

    fn resubscribed(&self) {
        self.inner.resubscribed();
    }
}

impl Store for Noting {
    fn execute<'a>(&'a self, lock: &'a Lock, op: &'a Op, within: Duration) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Op::Acquire(request) = op else { return self.inner.execute(lock, op, within).await };
            let hold = request.claim.hold;
            noted(&self.requests, |requests| {
                requests.holds.entry(hold).or_insert((now_us(), None));
                if let Some(queue) = &request.queue {
                    requests.nonces.insert(queue.nonce, hold);
                }
            });
            let outcome = self.inner.execute(lock, op, within).await;
            noted(&self.requests, |requests| match &outcome {
                Outcome::Done(Reply::Acquire(Acquired::Granted { fence, .. })) => {
                    requests.tokens.insert(fence.as_u64(), hold);
                }
                Outcome::Done(Reply::Acquire(Acquired::Taken { position: Some(_), .. })) => {
                    if let Some((_, queued)) = requests.holds.get_mut(&hold) {
                        queued.get_or_insert_with(now_us);
                    }
                }
                _ => {}
            });
            outcome
        })
    }

    fn open_mailbox(
        &self,
        place: Partition,
        session: SessionId,
        post: Arc<dyn NotificationSink>,
        within: Duration,
    ) -> BoxFuture<'_, Result<(), Fault>> {
        let post = Arc::new(NotingPost { inner: post, requests: self.requests.clone() });
        self.inner.open_mailbox(place, session, post, within)
    }

    fn close_mailbox(&self, place: Partition, session: SessionId) {
        self.inner.close_mailbox(place, session);
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn execute_session<'a>(
        &'a self,
        place: Partition,
        op: &'a SessionOp,
        within: Duration,
    ) -> BoxFuture<'a, Outcome<SessionReply>> {
        self.inner.execute_session(place, op, within)
    }

    fn fork(&self) -> Arc<dyn Store> {
        self.inner.fork()
    }

    fn check(&self, lock: &Lock) -> Result<(), KeyError> {
        self.inner.check(lock)
    }
}

/// Starts one process of readers and writers.
fn start(server: &RedisServer, process: usize, time: Duration) -> Worker {
    Worker::of_test("failures::rwlock::a_worker_that_reads_and_writes", "reader")
        .env("LEASEHOLD_TEST_URL", server.url())
        .env("LEASEHOLD_TEST_SEED", process.to_string())
        .env("LEASEHOLD_TEST_MS", time.as_millis().to_string())
        .start()
        .expect("a worker")
}

/// Failure row 26. 32 tasks in 4 processes read and write for 30 s. Their records show that no other hold overlaps a
/// write hold, and that no request is granted before one that was queued earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_readers_and_writers_of_four_processes_keep_their_order() {
    let server = server();
    let time = Duration::from_secs(30);
    let mut workers: Vec<_> = (0..PROCESSES).map(|process| start(&server, process, time)).collect();
    let mut holds: Vec<RecordedHold> = Vec::new();
    for worker in &mut workers {
        loop {
            let line = worker.line(time + LIMIT).expect("the worker reports its record");
            if line == "done" {
                break;
            }
            holds.push(line.parse().expect("a recorded hold"));
        }
    }
    let coverage = check(&holds).unwrap_or_else(|flaw| panic!("{flaw}"));
    println!("{coverage:?}");
    assert!(coverage.exclusive > 100 && coverage.shared > 300, "too few for a result: {coverage:?}");
    assert!(coverage.most_concurrent > 1 && coverage.queued > 100 && coverage.in_order > 50, "{coverage:?}");
    let lock = client(&server.url()).await.rwlock("rw").expect("a good name");
    until("no hold and no waiter is left", LIMIT, async || {
        let status = lock.inspect().await.expect("an answer");
        !status.held && status.waiting == 0
    })
    .await;
}

/// Not a test by itself: one process of the readers and writers.
#[test]
fn a_worker_that_reads_and_writes() {
    if Worker::role().as_deref() != Some("reader") {
        return;
    }
    let env = |name: &str| std::env::var(name).expect("set by the test");
    let seed: u64 = env("LEASEHOLD_TEST_SEED").parse().expect("a number");
    let time = Duration::from_millis(env("LEASEHOLD_TEST_MS").parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config: RedisConfig = env("LEASEHOLD_TEST_URL").parse().expect("a URL");
        let inner = Arc::new(RedisStore::connect(config).await.expect("connected"));
        let requests = Arc::<Mutex<Requests>>::default();
        let store = Noting { inner, requests: requests.clone() };
        let client = Client::with_store(store).connect().await.expect("connected");
        let until = Instant::now() + time;
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let lock = client.rwlock("rw").expect("a good name");
                let random = Random::from_seed(seed * 100 + task as u64);
                tokio::spawn(one_of_them(lock, random, until, requests.clone()))
            })
            .collect();
        // Nothing is printed before all tasks are done: a full pipe would block this thread, and all its tasks with
        // it.
        let mut holds = Vec::new();
        for task in tasks {
            holds.extend(task.await.expect("no task panicked"));
        }
        for hold in holds {
            Worker::report(&hold.to_string());
        }
        Worker::report("done");
    });
}

/// Reads and writes until the given time and returns the record.
async fn one_of_them(
    lock: RwLock,
    random: Random,
    until: Instant,
    requests: Arc<Mutex<Requests>>,
) -> Vec<RecordedHold> {
    let mut holds = Vec::new();
    while Instant::now() < until {
        let exclusive = random.below(4) == 0;
        let pause = Duration::from_micros(random.below(4_000));
        let (token, acquired_us, released_us) = if exclusive {
            let guard = lock.write().await.expect("acquired");
            let acquired_us = now_us();
            tokio::time::sleep(pause / 2).await;
            guard.check().expect("held");
            let (token, released_us) = (guard.fencing_token(), now_us());
            guard.release().await.expect("released");
            (token, acquired_us, released_us)
        } else {
            let guard = lock.read().await.expect("acquired");
            let acquired_us = now_us();
            tokio::time::sleep(pause).await;
            guard.check().expect("held");
            let (token, released_us) = (guard.fencing_token(), now_us());
            guard.release().await.expect("released");
            (token, acquired_us, released_us)
        };
        let token = token.as_u64();
        let requested = noted(&requests, |requests| {
            let hold = requests.tokens.remove(&token)?;
            requests.holds.remove(&hold)
        });
        let (requested_us, queued_us) = requested.expect("it was requested and granted");
        holds.push(RecordedHold { exclusive, requested_us, queued_us, acquired_us, released_us, token });
        tokio::time::sleep(Duration::from_micros(random.below(2_000))).await;
    }
    holds
}
