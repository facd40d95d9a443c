//! Several locks in one step of a store: `LockState::acquire_all` defines the meaning.
//!
//! Random operations on four locks, and occasionally an acquire of several of them: the replies of the store and of the
//! model agree, and so do their reports about each lock.

use crate::encoding::{fields, found_fields};
use crate::fixture::{DUMP, Found, tap, url};
use crate::tap::Tap;
use leasehold_core::model::{LockState, Sessions, Watermark, all_alive};
use leasehold_core::{Acquire, Acquired, Claim, Enqueue, Inspect, Label, Liveness, LockMode, MultiAcquired};
use leasehold_redis::RedisStore;
use leasehold_store::{Lock, Op, Outcome, Reply, Store};
use leasehold_testkit::conformance::{ForeignWrite, Workload, WorkloadStep};
use leasehold_testkit::{FrozenClock, RedisServer, RespConnection, share_of_seeds};
use std::collections::BTreeMap;
use std::time::Duration;

const START_US: u64 = 1_762_000_000_123_456;
const WITHIN: Duration = Duration::from_secs(20);
const LOCKS: usize = 4;
const SEQUENCES: u64 = 120;
const STEPS: u64 = 40;

struct Fixture {
    clock: FrozenClock,
    connection: RespConnection,
    runtime: tokio::runtime::Runtime,
    store: RedisStore,
    /// The greatest fencing token of idle locks.
    watermark: Watermark,
    seen: BTreeMap<&'static str, u64>,
    _tap: Option<Tap>,
    /// Last, so that it outlives its clients.
    _server: RedisServer,
}

/// One lock, in the model.
struct One {
    lock: Lock,
    state: LockState,
    workload: Workload,
}

impl Fixture {
    fn new() -> Self {
        let clock = FrozenClock::new(i64::try_from(START_US).unwrap()).unwrap();
        let server = RedisServer::builder().clock(&clock).lazy_expiry().start().unwrap();
        let tap = tap(&server);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store =
            runtime.block_on(RedisStore::connect(url(&server, tap.as_ref()).parse().unwrap())).unwrap();
        let connection = server.connect().unwrap();
        Self {
            clock,
            _tap: tap,
            _server: server,
            connection,
            runtime,
            store,
            watermark: Watermark::default(),
            seen: BTreeMap::new(),
        }
    }

    fn execute(&self, lock: &Lock, op: &Op) -> Reply {
        match self.runtime.block_on(self.store.execute(lock, op, WITHIN)) {
            Outcome::Done(reply) => reply,
            other @ Outcome::Failed(..) => panic!("{op:?}: {other:?}"),
        }
    }

    fn sequence(&mut self, seed: u64) {
        let mut now_us = START_US;
        self.clock.set_us(now_us.cast_signed()).unwrap();
        let one = |n: usize| One {
            lock: Lock::mutex(format!("{seed}/{n}").parse().unwrap()),
            state: LockState::default(),
            workload: Workload::new(seed * LOCKS as u64 + n as u64),
        };
        let mut locks: Vec<_> = (0..LOCKS).map(one).collect();
        let sessions = Sessions::default();
        for step in 0..STEPS {
            let at = usize::try_from(locks[0].workload.random().below(LOCKS as u64)).unwrap();
            let what = format!("seed {seed}, step {step}");
            let by_us = locks[at].workload.time_us(&locks[at].state, &sessions, now_us).max(0);
            now_us = now_us.saturating_add_signed(by_us);
            self.clock.set_us(now_us.cast_signed()).unwrap();
            if step % 3 == 2 {
                self.take_some(&mut locks, now_us, &what);
            } else {
                self.do_something(&mut locks[at], now_us, &what);
            }
            self.compare(&mut locks, now_us, &what);
        }
        self.connection.call(&["FLUSHALL"]).unwrap().ok().unwrap();
        self.watermark = Watermark::default();
    }

    fn do_something(&mut self, one: &mut One, now_us: u64, what: &str) {
        match one.workload.next_step(&one.state) {
            WorkloadStep::Sent(op) | WorkloadStep::SentTwice(op) => {
                let expected = self.expected(one, &op, now_us);
                assert_eq!(self.execute(&one.lock, &op), expected, "{what}: {op:?}");
            }
            WorkloadStep::SentSession(_) => {}
            WorkloadStep::ForeignWrite(write) => self.write_as_foreigner(one, write, now_us),
        }
    }

    /// The reply of the model. All locks share a watermark.
    fn expected(&mut self, one: &mut One, op: &Op, now_us: u64) -> Reply {
        one.state.watermark = self.watermark;
        let unknown = |_| leasehold_core::model::SessionStatus::Unknown;
        let (reply, _) = one.state.apply(now_us, op, &unknown);
        self.watermark = one.state.watermark;
        reply
    }

    fn write_as_foreigner(&mut self, one: &mut One, write: ForeignWrite, now_us: u64) {
        let keys = leasehold_core::KeySpace::default().lock(&one.lock).unwrap();
        one.state.is_empty_at(now_us);
        for command in write.commands(&keys, &one.state) {
            self.connection.call(&command).unwrap().ok().unwrap();
        }
        write.apply(&mut one.state, now_us);
    }

    /// Acquires some of the locks together, with claims that are new or were sent before.
    fn take_some(&mut self, locks: &mut [One], now_us: u64, what: &str) {
        let label = Label::new("all of them").unwrap();
        let mut asked: Vec<(&mut One, Acquire)> = Vec::new();
        for (n, one) in locks.iter_mut().enumerate() {
            let random = one.workload.random();
            if random.below(3) == 0 {
                continue;
            }
            let claim = match one.state.record.as_ref().and_then(|record| record.last_holder.clone()) {
                Some(last_holder) if random.below(2) == 0 => last_holder.claim,
                _ => Claim { value: None, ..one.workload.fresh_claim(u8::try_from(n).unwrap()) },
            };
            let (liveness, label) = (Liveness::Session { alive_ms: 10_000 }, label.clone());
            let lease_ms = 3_000;
            let ask = Acquire {
                claim,
                lease_ms,
                label,
                queue: None,
                expire_foreign_ms: None,
                liveness,
                predecessor: None,
                mode: LockMode::Exclusive,
            };
            asked.push((one, ask));
        }
        if asked.is_empty() {
            return;
        }
        let asks: Vec<_> = asked.iter().map(|(one, ask)| (one.lock.clone(), ask.clone())).collect();
        let abandoned = |state: &mut LockState| {
            state.is_empty_at(now_us);
            state.value.is_none() && state.record.as_ref().is_some_and(|record| !record.entries.is_empty())
        };
        let abandoned: Vec<_> = asked.iter_mut().map(|(one, _)| abandoned(&mut one.state)).collect();
        for (one, _) in &mut asked {
            one.state.watermark = self.watermark;
        }
        let mut together: Vec<_> = asked.iter_mut().map(|(one, ask)| (&mut one.state, &*ask)).collect();
        let expected = LockState::acquire_all(&mut together, now_us);
        let found = self.runtime.block_on(self.store.acquire_all(&asks, WITHIN)).unwrap();
        let Outcome::Done(found) = found else { panic!("{what}: {found:?}") };
        assert_eq!(found, expected, "{what}: {asks:?}");
        for (share, abandoned) in found.iter().zip(abandoned) {
            let word = match share {
                MultiAcquired::Acquired(_) if abandoned => "had, past the dead",
                MultiAcquired::Acquired(Acquired::Granted { others_wait: true, .. }) => "had, awaited",
                MultiAcquired::Acquired(_) => "had",
                MultiAcquired::Blocked(Ok(Acquired::AlreadyEnded(_))) => "already ended",
                MultiAcquired::Blocked(Ok(Acquired::Taken { holder: None, .. })) => "awaited",
                MultiAcquired::Blocked(Ok(_)) => "taken",
                MultiAcquired::Blocked(Err(_)) => "refused",
                MultiAcquired::Available => "open",
                MultiAcquired::Held => "held",
            };
            *self.seen.entry(word).or_default() += 1;
        }
    }

    fn compare(&mut self, locks: &mut [One], now_us: u64, what: &str) {
        let inspect = Op::Inspect(Inspect { claim: None, details: true });
        for one in locks {
            let expected = self.expected(one, &inspect, now_us);
            assert_eq!(self.execute(&one.lock, &inspect), expected, "{what}: {}", one.lock);
            self.compare_record(one, now_us, what);
        }
    }

    /// Compares what no report shows: a field that was left behind, and when the record expires.
    fn compare_record(&mut self, one: &mut One, now_us: u64, what: &str) {
        one.state.is_empty_at(now_us);
        let keys = leasehold_core::KeySpace::default().lock(&one.lock).unwrap();
        let dump = self.connection.call(&["EVAL", DUMP, "1", keys.record()]).unwrap().ok().unwrap();
        let found = Found::of(&dump.elements()[0], now_us / 1000);
        let found = found.map(|found| (found_fields(one.lock.kind, &found), found.expires_ms));
        let expected = one.state.record.as_ref().map(|record| (fields(record), Some(record.expires_ms)));
        assert_eq!(found, expected, "{what}: the record of {}", one.lock);
    }
}

/// A holder and its waiters have died: the lock is free if one script can skip all of their queue entries.
#[test]
pub(crate) fn expired_queue_entries_do_not_count() {
    let mut environment = Fixture::new();
    environment.clock.set_us(START_US.cast_signed()).unwrap();
    for (dead, had) in [(1, true), (64, true), (65, false)] {
        let lock = Lock::mutex(format!("{dead} dead").parse().unwrap());
        let mut one = One { lock, state: LockState::default(), workload: Workload::new(dead) };
        let label = Label::new("test").unwrap();
        let ask = |claim: Claim, queue| {
            let (liveness, label) = (Liveness::Session { alive_ms: 10_000 }, label.clone());
            Acquire {
                claim,
                lease_ms: 1_000,
                label,
                queue,
                expire_foreign_ms: None,
                liveness,
                predecessor: None,
                mode: LockMode::Exclusive,
            }
        };
        let fresh = |one: &mut One, n| Claim { value: None, ..one.workload.fresh_claim(n) };
        for n in 0..=u8::try_from(dead).unwrap() {
            let queue = (n > 0).then(|| Enqueue { nonce: one.workload.nonce(), ttl_ms: 900 });
            let op = Op::Acquire(ask(fresh(&mut one, n), queue));
            let (expected, _) = one.state.apply(START_US, &op, &all_alive);
            assert_eq!(environment.execute(&one.lock, &op), expected);
        }
        let now_us = START_US + 1_001_000;
        environment.clock.set_us(now_us.cast_signed()).unwrap();
        let late = ask(fresh(&mut one, 200), None);
        let expected = LockState::acquire_all(&mut [(&mut one.state, &late)], now_us);
        let found =
            environment.runtime.block_on(environment.store.acquire_all(&[(one.lock.clone(), late)], WITHIN));
        let Some(Outcome::Done(found)) = found else { panic!("{dead}: {found:?}") };
        assert_eq!(found, expected, "{dead}");
        assert_eq!(matches!(found[0], MultiAcquired::Acquired(_)), had, "{dead}: {found:?}");
        environment.compare(std::slice::from_mut(&mut one), now_us, "past the dead");
        // The rest of the queue serves the next waiter.
        let next = Op::Acquire(ask(
            fresh(&mut one, 201),
            Some(Enqueue { nonce: one.workload.nonce(), ttl_ms: 900 }),
        ));
        let (expected, _) = one.state.apply(now_us, &next, &all_alive);
        assert_eq!(environment.execute(&one.lock, &next), expected);
        environment.clock.set_us(START_US.cast_signed()).unwrap();
    }
}

#[test]
fn the_script_means_what_the_model_means() {
    let seeds = share_of_seeds(SEQUENCES);
    let own = u64::try_from(seeds.len()).unwrap();
    let seen = sequences(seeds.iter().copied());
    println!("{seen:?}");
    for what in [
        "had",
        "had, awaited",
        "had, past the dead",
        "already ended",
        "awaited",
        "taken",
        "refused",
        "open",
        "held",
    ] {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(times >= own / 50, "`{what}` came {times} times only");
    }
}

/// Runs the sequences of these seeds. Returns the cases that occurred.
pub(crate) fn sequences(seeds: impl IntoIterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut environment = Fixture::new();
    for seed in seeds {
        environment.sequence(seed);
    }
    environment.seen
}
