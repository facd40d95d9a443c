//! The simulated server does what every store must do, reached through the Redis store's client and script calls: a
//! failure found by a simulation is then not the server's.

use futures_util::future::{BoxFuture, ready};
use leasehold_core::model::{Content, LockState, ReentrantHolds, Sessions, Value};
use leasehold_core::{Acquire, Extended, KeyError, Kind, LockName, MultiAcquired, OwnValue, Partition};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_sim::ModelServer;
use leasehold_store::{Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::conformance::{self, ForeignWrite, StoreUnderTest, Workload, WorkloadStep};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{DuplexStream, duplex};

struct Simulated {
    server: ModelServer,
    now_us: Arc<AtomicU64>,
}

impl Simulated {
    fn new() -> Self {
        let now_us = Arc::new(AtomicU64::new(1_762_000_000_000_000));
        let read = Arc::clone(&now_us);
        Self { server: ModelServer::new(move || read.load(Ordering::Relaxed)), now_us }
    }

    fn put(&self, lock: &Lock, content: Content, expiry: Option<Duration>) {
        let now_ms = self.now_us.load(Ordering::Relaxed) / 1000;
        let ms = |expiry: Duration| u64::try_from(expiry.as_millis()).expect("a time that can be counted");
        let expires_ms = expiry.map(|expiry| now_ms + ms(expiry));
        self.server.put(lock, Some(&Value { content, expires_ms }));
    }
}

/// Opens a pipe to a server.
pub(crate) async fn pipe(server: ModelServer) -> io::Result<DuplexStream> {
    let (near, far) = duplex(4096);
    tokio::spawn(async move { server.serve(far).await });
    Ok(near)
}

impl StoreUnderTest for Simulated {
    fn store(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        Box::pin(async {
            let server = self.server.clone();
            let config: RedisConfig = "redis://simulated".parse().expect("it is a URL");
            let config = config.connector(move |_| pipe(server.clone()));
            Arc::new(RedisStore::connect(config).await.expect("a server that answers")) as Arc<dyn Store>
        })
    }

    fn advance(&self, by: Duration) -> Option<BoxFuture<'_, ()>> {
        let by_us = u64::try_from(by.as_micros()).expect("a time that can be counted");
        self.now_us.fetch_add(by_us, Ordering::Relaxed);
        Some(Box::pin(ready(())))
    }

    fn delete_key<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, ()>> {
        self.server.put(lock, None);
        Some(Box::pin(ready(())))
    }

    fn put_foreign<'a>(
        &'a self,
        lock: &'a Lock,
        value: &'a str,
        expiry: Option<Duration>,
    ) -> Option<BoxFuture<'a, ()>> {
        let content = match lock.kind {
            Kind::Reentrant => {
                let owner = OwnValue::new(value).expect("a plain text is a value");
                Content::ReentrantHolds(ReentrantHolds {
                    owner,
                    count: 1,
                    fence: None,
                    lease_ms: 0,
                    holds: Vec::new(),
                })
            }
            kind => Content::Token([kind.token_prefix(), value].concat()),
        };
        self.put(lock, content, expiry);
        Some(Box::pin(ready(())))
    }

    fn put_other_type<'a>(&'a self, lock: &'a Lock) -> Option<BoxFuture<'a, String>> {
        self.put(lock, Content::Other("list".to_owned()), None);
        Some(Box::pin(ready("list".to_owned())))
    }

    fn refused_names(&self) -> Vec<(LockName, KeyError)> {
        let name = |text| LockName::new(text).expect("a good name");
        vec![(name("a}b"), KeyError::Brace), (name("leasehold:{x}:record:mutex:x"), KeyError::Reserved)]
    }
}

conformance::suite!(Simulated::new());

/// The call timeout.
const WITHIN: Duration = Duration::from_secs(20);
/// How many locks are requested together, one of which the other operations use, too.
const LOCKS: usize = 3;

/// The same locks at the server and in the model.
struct Contest {
    simulated: Simulated,
    store: Arc<dyn Store>,
    locks: Vec<(Lock, LockState, Workload)>,
    sessions: Sessions,
    now_us: u64,
    /// How often each reply occurred.
    seen: BTreeMap<&'static str, u64>,
}

impl Contest {
    async fn new(kind: Kind, seed: u64) -> Self {
        let simulated = Simulated::new();
        let lock = |n: usize| {
            let lock = Lock { kind, name: format!("job-{n}").parse().expect("a good name") };
            (lock, LockState::new(kind), Workload::of(kind, seed * LOCKS as u64 + n as u64))
        };
        Self {
            store: simulated.store().await,
            now_us: simulated.now_us.load(Ordering::Relaxed),
            simulated,
            locks: (0..LOCKS).map(lock).collect(),
            sessions: Sessions::default(),
            seen: BTreeMap::new(),
        }
    }

    async fn step(&mut self, at: usize, what: &str) {
        let (lock, state, workload) = &mut self.locks[at];
        // Time advances, because the model at the server forgets data that no request reads.
        let by_us = workload.time_us(state, &self.sessions, self.now_us).max(0);
        self.now_us = self.now_us.saturating_add_signed(by_us);
        self.simulated.now_us.store(self.now_us, Ordering::Relaxed);
        match workload.next_step(state) {
            WorkloadStep::Sent(op) | WorkloadStep::SentTwice(op) => {
                let alive = |session| self.sessions.status(self.now_us / 1000, session);
                let expected = state.apply(self.now_us, &op, &alive).0;
                let found = self.store.execute(lock, &op, WITHIN).await;
                let agree = matches!(&found, Outcome::Done(found) if *found == expected);
                assert!(agree, "{what}: {op:?}\n  {found:?}\n  {expected:?}");
                if matches!(expected, Reply::Extend(Extended::Reserved { .. })) {
                    *self.seen.entry("reserved").or_default() += 1;
                }
            }
            WorkloadStep::SentSession(op) => {
                let expected = self.sessions.apply(self.now_us / 1000, &op);
                let found = self.store.execute_session(Partition::ONLY, &op, WITHIN).await;
                let agree = matches!(&found, Outcome::Done(found) if *found == expected);
                assert!(agree, "{what}: {op:?}\n  {found:?}\n  {expected:?}");
            }
            // No client of another library reaches the records of this server.
            WorkloadStep::ForeignWrite(ForeignWrite::DeletesRecord) => {}
            WorkloadStep::ForeignWrite(write) => {
                write.apply(state, self.now_us);
                self.simulated.server.put(lock, state.value.as_ref());
            }
        }
    }

    /// Requests all the locks together, with claims that are new or were sent before.
    async fn take_all(&mut self, what: &str) {
        let ask = |(_, state, workload): &mut (Lock, LockState, Workload)| loop {
            // Only the workload's acquires; none of them queues here.
            if let Op::Acquire(ask) = workload.op(state) {
                break Acquire { queue: None, expire_foreign_ms: None, predecessor: None, ..ask };
            }
        };
        let mut asks: Vec<_> = self.locks.iter_mut().map(ask).collect();
        let (label, liveness) = (asks[0].label.clone(), asks[0].liveness);
        for ask in &mut asks {
            (ask.label, ask.liveness) = (label.clone(), liveness);
        }
        let sent: Vec<_> =
            self.locks.iter().zip(&asks).map(|((lock, ..), ask)| (lock.clone(), ask.clone())).collect();
        let mut pairs: Vec<_> =
            self.locks.iter_mut().zip(&asks).map(|((_, state, _), ask)| (state, ask)).collect();
        let expected = LockState::acquire_all(&mut pairs, self.now_us);
        let found = self.store.acquire_all(&sent, WITHIN).await.expect("several Mutexes are one step");
        let agree = matches!(&found, Outcome::Done(found) if *found == expected);
        assert!(agree, "{what}: {sent:?}\n  {found:?}\n  {expected:?}");
        for share in &expected {
            let word = match share {
                MultiAcquired::Acquired(_) => "had",
                MultiAcquired::Blocked(Ok(_)) => "in the connection",
                MultiAcquired::Blocked(Err(_)) => "refused",
                MultiAcquired::Available => "open",
                MultiAcquired::Held => "held",
            };
            *self.seen.entry(word).or_default() += 1;
        }
    }
}

/// The server parses every script call correctly, and formats every reply as the script would.
#[tokio::test]
async fn random_operations_are_answered_as_by_the_model() {
    let mut seen = BTreeMap::new();
    for (seed, kind) in (0..40).flat_map(|seed| Kind::ALL.map(|kind| (seed, kind))) {
        let mut contest = Contest::new(kind, seed).await;
        for step in 0..60 {
            let what = format!("seed {seed}, step {step}");
            // The first lock gets most of the operations, so that it sees long histories, too.
            contest.step(if step % 4 == 0 { step % LOCKS } else { 0 }, &what).await;
            if kind == Kind::Mutex && step % 4 == 0 {
                contest.take_all(&what).await;
            }
        }
        contest.seen.into_iter().for_each(|(word, times)| *seen.entry(word).or_insert(0) += times);
    }
    for word in ["had", "in the connection", "refused", "open", "held", "reserved"] {
        assert!(seen.get(word).copied().unwrap_or(0_u64) >= 10, "`{word}` is rare: {seen:?}");
    }
}
