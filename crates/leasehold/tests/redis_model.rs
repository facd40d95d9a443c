//! The Lua scripts against the model: the same random operations to both, at the same times, and after each of them
//! the reply, both keys with their expiry, and all messages have to agree.
//!
//! The server runs by a clock that only moves when it is told. `LEASEHOLD_SEQUENCES` sets how many sequences are
//! tried, `LEASEHOLD_SEED` repeats one: a failure prints its own.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use leasehold::store::{Lock, Op, Outcome, RedisStore, Reply, Store, Wake};
use leasehold_core::model::{MutexState, Place, Record, Tenant, Value as Stands};
use leasehold_core::{
    Acquire, Acquired, Claim, Ended, Enqueue, Extended, Fate, FencingToken, Inspect, KeySpace, Label, Life,
    LockKeys, OwnValue, Pass, Refused, Release,
};
use leasehold_testkit::conformance::{Happening, Stranger, Workload};
use leasehold_testkit::{FrozenClock, RedisServer, RespConnection, Value};
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::time::Duration;

const SEQUENCES: u64 = 10_000;
const STEPS: u64 = 20;
const START_US: u64 = 1_762_000_000_123_456;
const WITHIN: Duration = Duration::from_secs(20);

/// Everything there is at a lock's keys, in one reply.
const DUMP: &str = "local kind = redis.call('TYPE', KEYS[1]).ok
local record = redis.call('TYPE', KEYS[2]).ok
return {kind, kind == 'string' and redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]),
  record, record == 'hash' and redis.call('HGETALL', KEYS[2]), redis.call('PTTL', KEYS[2])}";

#[test]
fn the_scripts_mean_what_the_model_means() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        return World::new().sequence(seed);
    }
    let sequences = number("LEASEHOLD_SEQUENCES").unwrap_or(SEQUENCES);
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let mut world = World::new();
            (half..sequences).step_by(2).for_each(|seed| world.sequence(seed));
            world.seen
        })
    });
    let mut seen = BTreeMap::new();
    for half in halves {
        let half = half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (what, times) in half {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    println!("{sequences} sequences: {seen:?}");
    // A generator that never gets anywhere would agree with anything.
    for what in [
        "granted",
        "taken",
        "spent",
        "woken",
        "held",
        "queued",
        "released",
        "vanished",
        "superseded",
        "forgotten",
        "extended",
        "not held",
        "wrong kind",
        "adopted",
        "next granted",
        "next taken",
    ] {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(sequences < 1_000 || times >= sequences / 100, "`{what}` came {times} times only");
    }
}

#[test]
fn a_token_of_sixteen_digits_stays_exact() {
    let mut world = World::new();
    let mut play = world.play(0);
    for _ in 0..3 {
        let claim = play.workload.fresh(0);
        let reply = play.check(&acquire(&claim, 1000, None));
        let Reply::Acquire(Acquired::Granted { fence, .. }) = reply else { panic!("{reply:?}") };
        let last = play.field("last");
        assert_eq!(last, fence.to_string());
        assert_eq!(last.len(), 16, "{last}");
        play.check(&release(&claim));
    }
}

#[test]
fn the_greatest_token_is_not_passed() {
    let mut world = World::new();
    let mut play = world.play(0);
    let claim = play.workload.fresh(0);
    play.check(&acquire(&claim, 1000, None));
    play.check(&release(&claim));
    for last in [FencingToken::MAX.as_u64() - 1, FencingToken::MAX.as_u64()] {
        play.set_last(last);
        let claim = play.workload.fresh(0);
        let reply = play.check(&acquire(&claim, 1000, None));
        let greatest = matches!(reply, Reply::Acquire(Acquired::Granted { fence: FencingToken::MAX, .. }));
        assert!(greatest, "{reply:?}");
        play.check(&release(&claim));
    }
}

/// Failure row 33.
#[test]
fn scripts_flushed_between_all_calls_are_loaded_again() {
    let mut world = World::new();
    world.flush_scripts = true;
    (0..40).for_each(|seed| world.sequence(seed));
}

#[test]
fn a_dead_queue_longer_than_one_look_is_passed_over_several() {
    let mut world = World::new();
    let mut play = world.play(0);
    let holder = play.workload.fresh(0);
    play.check(&acquire(&holder, 10_000, None));
    for session in 1..=150 {
        let waiter = play.workload.fresh(session);
        let queue = Enqueue { nonce: play.workload.nonce(), kept_ms: 100 };
        play.check(&acquire(&waiter, 1000, Some(queue)));
    }
    play.step_us(101_000);
    play.check(&release(&holder));
    for _ in 0..3 {
        let claim = play.workload.fresh(0);
        let queue = Enqueue { nonce: play.workload.nonce(), kept_ms: 100 };
        play.check(&acquire(&claim, 1000, Some(queue)));
    }
}

#[test]
fn texts_of_users_are_texts() {
    let mut world = World::new();
    let mut play = world.play(0);
    for text in ["a b", "%d%s%%", "'\"\\", "]] .. redis.call('FLUSHALL') .. [[", "é…", "(.*)", ""] {
        let label = Label::new(text).unwrap();
        let mut holder = play.workload.fresh(0);
        holder.value = OwnValue::new(text).ok();
        let waiter = play.workload.fresh(1);
        let nonce = play.workload.nonce();
        let ask = |claim: &Claim| {
            let (claim, label) = (claim.clone(), label.clone());
            let queue = Some(Enqueue { nonce, kept_ms: 1000 });
            Op::Acquire(Acquire {
                claim,
                lease_ms: 1000,
                label,
                queue,
                adopt_ms: None,
                life: Life::Session,
                ahead: None,
            })
        };
        play.check(&ask(&holder));
        play.check(&ask(&waiter));
        play.check(&release(&holder));
        play.check(&Op::Inspect(Inspect { claim: Some(waiter.clone()), in_full: false }));
        play.check(&release(&waiter));
    }
}

/// A server, by a clock of ours, and whoever looks at it.
struct World {
    clock: FrozenClock,
    now_us: u64,
    runtime: tokio::runtime::Runtime,
    store: RedisStore,
    keys: KeySpace,
    /// Looks at the keys, with this script.
    looker: RespConnection,
    dump: String,
    /// Hears all messages.
    hearer: RespConnection,
    /// Set to flush all scripts before each operation.
    flush_scripts: bool,
    /// What came how often.
    seen: BTreeMap<&'static str, u64>,
    /// Last, so that it outlives its clients.
    _server: RedisServer,
}

impl World {
    fn new() -> Self {
        let clock = FrozenClock::new(i64::try_from(START_US).unwrap()).unwrap();
        let server = RedisServer::builder().clock(&clock).start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let config = format!("{}?prefix=m:", server.url()).parse().unwrap();
        let store = runtime.block_on(RedisStore::connect(config)).unwrap();
        let mut looker = server.connect().unwrap();
        let dump = looker.call(&["SCRIPT", "LOAD", DUMP]).unwrap().text().unwrap().to_owned();
        let mut hearer = server.connect().unwrap();
        hearer.call(&["PSUBSCRIBE", "m:leasehold:mailbox:*"]).unwrap();
        Self {
            clock,
            now_us: START_US,
            runtime,
            store,
            keys: KeySpace::new("m:").unwrap(),
            looker,
            dump,
            hearer,
            flush_scripts: false,
            seen: BTreeMap::new(),
            _server: server,
        }
    }

    fn play(&mut self, seed: u64) -> Play<'_> {
        let lock = Lock::mutex(format!("lock {seed}").parse().unwrap());
        let keys = self.keys.lock(&lock).unwrap();
        Play {
            world: self,
            lock,
            keys,
            state: MutexState::default(),
            workload: Workload::new(seed),
            trace: format!("LEASEHOLD_SEED={seed}\n"),
        }
    }

    fn sequence(&mut self, seed: u64) {
        let mut play = self.play(seed);
        for _ in 0..STEPS {
            play.random_step();
        }
        play.spoil_record();
        let (name, record) = (play.keys.name.clone(), play.keys.record.clone());
        play.raw(&["DEL", &name, &record]);
    }
}

/// One sequence on one lock.
struct Play<'a> {
    world: &'a mut World,
    lock: Lock,
    keys: LockKeys,
    state: MutexState,
    workload: Workload,
    trace: String,
}

impl Play<'_> {
    /// Sends one operation to both, and compares.
    fn check(&mut self, op: &Op) -> Reply {
        self.note(&format!("{op:?}"));
        if self.world.flush_scripts {
            self.raw(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let outcome = self.world.runtime.block_on(self.world.store.execute(&self.lock, op, WITHIN));
        let (expected, wakes) = self.state.apply(self.world.now_us, op);
        let Outcome::Done(reply) = outcome else { panic!("{outcome:?}\n{}", self.trace) };
        assert_eq!(reply, expected, "replies\n{}", self.trace);
        self.note(&format!("    {reply:?}"));
        self.compare_keys();
        assert_eq!(self.heard(), said(&wakes), "messages\n{}", self.trace);
        self.count(&reply, &wakes);
        reply
    }

    fn note(&mut self, what: &str) {
        writeln!(self.trace, "{:>12} us: {what}", self.world.now_us.cast_signed() - START_US.cast_signed())
            .unwrap();
    }

    fn compare_keys(&mut self) {
        let dump = self.dump();
        let [kind, value, ttl, record_kind, record, record_ttl] = dump.elements() else { panic!("{dump:?}") };
        let now_ms = self.world.now_us / 1000;
        let expires = |ttl: &Value| u64::try_from(ttl.integer().unwrap()).ok().map(|ttl| now_ms + ttl);
        let content = match kind.text().unwrap() {
            "none" => None,
            "string" => Some(Ok(value.text().unwrap().to_owned())),
            other => Some(Err(other.to_owned())),
        };
        let found = content.map(|content| Stands { content, expires_ms: expires(ttl) });
        assert_eq!(found, self.state.value, "the lock\n{}", self.trace);
        let expected = self.state.record.as_ref().map(|record| (fields(record), Some(record.expires_ms)));
        let found = match record_kind.text().unwrap() {
            "none" => None,
            _ => Some((without_loose_ends(pairs(record)), expires(record_ttl))),
        };
        assert_eq!(found, expected, "the record\n{}", self.trace);
    }

    fn dump(&mut self) -> Value {
        if self.world.flush_scripts {
            self.raw(&["SCRIPT", "LOAD", DUMP]);
        }
        let (dump, name, record) =
            (self.world.dump.clone(), self.keys.name.clone(), self.keys.record.clone());
        self.raw(&["EVALSHA", &dump, "2", &name, &record])
    }

    fn field(&mut self, field: &str) -> String {
        pairs(&self.dump().elements()[4])[field].clone()
    }

    /// All messages since the last call: what was published before the PING comes before its answer.
    fn heard(&mut self) -> Vec<(String, String)> {
        self.world.hearer.send(&["PING"]).unwrap();
        let mut heard = Vec::new();
        loop {
            let message = self.world.hearer.receive().unwrap();
            match message.elements() {
                [kind, _, channel, text] if kind.text() == Some("pmessage") => {
                    heard.push((channel.text().unwrap().to_owned(), text.text().unwrap().to_owned()));
                }
                _ => return heard,
            }
        }
    }

    fn raw(&mut self, command: &[impl AsRef<[u8]>]) -> Value {
        self.world.looker.call(command).unwrap().ok().unwrap()
    }

    fn step_us(&mut self, by_us: i64) {
        if by_us != 0 {
            self.world.now_us = self.world.now_us.checked_add_signed(by_us).unwrap();
            self.world.clock.set_us(self.world.now_us.cast_signed()).unwrap();
        }
    }

    fn set_last(&mut self, last: u64) {
        let record = self.keys.record.clone();
        self.raw(&["HSET", &record, "last", &last.to_string()]);
        self.state.record.as_mut().unwrap().last = Some(FencingToken::new(last));
    }
}

/// What a random sequence is made of.
impl Play<'_> {
    fn random_step(&mut self) {
        let by_us = self.workload.time_us(&self.state, self.world.now_us);
        self.step_us(by_us);
        match self.workload.happening(&self.state) {
            Happening::Sent(op) => drop(self.check(&op)),
            Happening::SentTwice(op) => {
                self.check(&op);
                self.check(&op);
            }
            Happening::Stranger(stranger) => self.meddle(stranger),
        }
    }

    fn meddle(&mut self, stranger: Stranger) {
        // The server sees that a key has expired when somebody looks at it, and the clock may go back after that.
        self.dump();
        self.note(&format!("stranger {stranger:?}"));
        for command in stranger.commands(&self.keys) {
            self.raw(&command);
        }
        stranger.apply(&mut self.state, self.world.now_us);
    }

    /// A record that is none: every operation that needs it says so, and changes nothing.
    fn spoil_record(&mut self) {
        let record = self.keys.record.clone();
        let spoilt = *self.workload.random().pick(&["list", "string", "2"]);
        self.raw(&["DEL", &record]);
        match spoilt {
            "list" => self.raw(&["LPUSH", &record, "x"]),
            "string" => self.raw(&["SET", &record, "x"]),
            format => self.raw(&["HSET", &record, "format", format]),
        };
        let before = self.dump();
        for _ in 0..2 {
            let op = self.workload.op(&self.state);
            if matches!(op, Op::Extend(_)) {
                continue;
            }
            self.note(&format!("{op:?}, with a spoilt record"));
            let outcome = self.world.runtime.block_on(self.world.store.execute(&self.lock, &op, WITHIN));
            let Outcome::Done(Reply::Refused(Refused::Format { found })) = outcome else {
                panic!("{outcome:?}\n{}", self.trace)
            };
            assert_eq!(found, spoilt, "{}", self.trace);
            assert_eq!(self.dump(), before, "{}", self.trace);
            assert_eq!(self.heard(), []);
        }
    }

    fn count(&mut self, reply: &Reply, wakes: &[Wake]) {
        let mut seen = |what| *self.world.seen.entry(what).or_default() += 1;
        if !wakes.is_empty() {
            seen("woken");
        }
        match reply {
            Reply::Acquire(Acquired::Taken { holder: Some(holder), .. })
                if holder.is_stranger() && holder.remaining_ms == Some(2_000) =>
            {
                seen("adopted");
            }
            Reply::Acquire(Acquired::Granted { .. }) => seen("granted"),
            Reply::Acquire(Acquired::Taken { .. }) => seen("taken"),
            Reply::Acquire(Acquired::Spent(_)) => seen("spent"),
            Reply::Extend(Extended::Extended) => seen("extended"),
            Reply::Extend(Extended::NotHeld) => seen("not held"),
            Reply::Release(released) => {
                seen(match released.found {
                    Fate::Held => "held",
                    Fate::Queued => "queued",
                    Fate::Ended(_) => "released",
                    Fate::Vanished => "vanished",
                    Fate::Superseded => "superseded",
                    Fate::Forgotten => "forgotten",
                });
                match &released.next {
                    Some(Ok(Acquired::Granted { .. })) => seen("next granted"),
                    Some(Ok(Acquired::Taken { .. })) => seen("next taken"),
                    _ => {}
                }
            }
            Reply::Refused(_) => seen("wrong kind"),
            _ => {}
        }
    }
}

fn acquire(claim: &Claim, lease_ms: u64, queue: Option<Enqueue>) -> Op {
    let label = Label::new("test").unwrap();
    Op::Acquire(Acquire {
        claim: claim.clone(),
        lease_ms,
        label,
        queue,
        adopt_ms: None,
        life: Life::Session,
        ahead: None,
    })
}

fn release(claim: &Claim) -> Op {
    Op::Release(Release { claim: claim.clone(), pass: Pass::Grant, next: None })
}

/// The fields of a record as they stand in its hash.
fn fields(record: &Record) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("format".to_owned(), "1".to_owned())]);
    let mut put = |field: &str, value: String| drop(fields.insert(field.to_owned(), value));
    let own = |claim: &Claim| claim.value.as_ref().map_or("", |value| value.as_str()).to_owned();
    if let Some(last) = record.last {
        put("last", last.to_string());
    }
    if let Some(Tenant { claim, since_ms, label }) = &record.tenant {
        put("tenant", format!("{}\n{since_ms}\n{}\n{label}", claim.hold.token(), own(claim)));
    }
    if let Some((hold, how)) = &record.ended {
        let how = if *how == Ended::Released { "released" } else { "evicted" };
        put("ended", format!("{} {how}", hold.token()));
    }
    let line: Vec<String> = record.tickets.values().map(ToString::to_string).collect();
    if record.tail > 0 {
        let (first, last) =
            (line.first().cloned().unwrap_or_default(), line.last().cloned().unwrap_or_default());
        put("queue", format!("{} {} {first} {last}", line.len(), record.tail));
    }
    for pair in line.windows(2) {
        put(&format!("n:{}", pair[0]), pair[1].clone());
        put(&format!("p:{}", pair[1]), pair[0].clone());
    }
    for (session, Place { ticket, nonce, expires_ms, lease_ms, claim, label }) in &record.places {
        let (hold, own) = (claim.hold.token(), own(claim));
        let place = format!("{ticket}\n{nonce}\n{expires_ms}\n{lease_ms}\n{hold}\n{own}\n{label}");
        put(&format!("w:{session}"), place);
    }
    fields
}

/// The link before the first place and the one behind the last mean nothing, and may be left from before.
fn without_loose_ends(mut fields: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let ends =
        fields.get("queue").map(|queue| queue.split(' ').skip(2).map(str::to_owned).collect::<Vec<_>>());
    if let Some([first, last]) = ends.as_deref() {
        fields.remove(&format!("p:{first}"));
        fields.remove(&format!("n:{last}"));
    }
    fields
}

fn pairs(hash: &Value) -> BTreeMap<String, String> {
    let texts: Vec<_> = hash.elements().iter().map(|text| text.text().unwrap().to_owned()).collect();
    texts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

fn said(wakes: &[Wake]) -> Vec<(String, String)> {
    wakes.iter().map(|wake| (format!("m:leasehold:mailbox:{}", wake.to()), wake.message())).collect()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
