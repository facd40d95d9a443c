//! The Lua scripts against the model: the same random operations to both, at the same times, and after each of them
//! the reply, all keys with their expiry, and all messages have to agree.
//!
//! The server runs by a clock that only moves when it is told. `LEASEHOLD_SEQUENCES` sets how many sequences are
//! tried, `LEASEHOLD_SEED` repeats one: a failure prints its own.

#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use leasehold::store::{Lock, Op, Outcome, RedisStore, Reply, SessionOp, SessionReply, Store, Wake};
use leasehold_core::model::{
    Audit, Content, LockState, Place, Record, SessionRecord, Sessions, Tenant, Value as Stands, everybody,
};
use leasehold_core::{
    Acquire, Acquired, Beat, Beaten, Claim, Ended, Enqueue, Evicted, Extended, Fate, FencingToken, Freed,
    Inspect, KeySpace, Kind, Label, Life, LockKeys, OwnValue, Pass, Refused, Release, SessionId,
};
use leasehold_testkit::conformance::{Happening, Stranger, Workload, rlock};
use leasehold_testkit::{FrozenClock, RedisServer, RespConnection, Value};
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use std::time::Duration;

const SEQUENCES: u64 = 10_000;
const STEPS: u64 = 20;
const START_US: u64 = 1_762_000_000_123_456;
const WITHIN: Duration = Duration::from_secs(20);

/// Everything there is at some keys, in one reply: of each its type, its content, and how long it lasts.
const DUMP: &str = "local dump = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  local content = kind == 'string' and redis.call('GET', key) or kind == 'hash' and redis.call('HGETALL', key)
    or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') or ''
  dump[i] = {kind, content, redis.call('PTTL', key)}
end
return dump";

#[test]
fn the_scripts_of_a_mutex_mean_what_the_model_means() {
    means_what_the_model_means(Kind::Mutex, &["adopted"]);
}

#[test]
fn the_scripts_of_a_reentrant_mutex_mean_what_the_model_means() {
    let seen = [
        "adopted",
        "entered again",
        "entered after a stranger",
        "a sibling's hold",
        "released, and held yet",
        "extended one of several",
        "entries that are over",
        "dropped entries that are over",
        "a stranger entered",
        "a stranger left",
        "fewer than ours",
        "evicted one of several",
        "warned several",
        "said to be free",
        "other kind",
    ];
    means_what_the_model_means(Kind::Reentrant, &seen);
}

/// Plays random sequences, and looks whether all came up that can, and what this kind alone has.
fn means_what_the_model_means(kind: Kind, of_this_kind: &[&str]) {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        return World::new().sequence(kind, seed);
    }
    let sequences = number("LEASEHOLD_SEQUENCES").unwrap_or(SEQUENCES);
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let mut world = World::new();
            (half..sequences).step_by(2).for_each(|seed| world.sequence(kind, seed));
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
    println!("{sequences} sequences of a {}: {seen:?}", kind.word());
    // A generator that never gets anywhere would agree with anything.
    for (what, seldom) in [
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
        "extended together",
        "not held",
        "wrong kind",
        "next granted",
        "next taken",
        "ahead",
        "ahead, and its life",
        "the dead ahead buried",
        "evicted a hold",
        "evicted a place",
        "nothing to evict",
        "not evicted",
        "freed",
        "not freed",
        "warned",
        "found freed",
        "stranger's fingerprint",
        "audit",
        "begun",
        "beaten",
        "lapsed",
        "ended",
        "listed alive",
        "listed dead",
        "listed a lock",
    ]
    .iter()
    .map(|what| (what, 100))
    .chain(of_this_kind.iter().chain(&["found evicted"]).map(|what| (what, 500)))
    {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(sequences < 1_000 || times >= sequences / seldom, "`{what}` came {times} times only");
    }
}

#[test]
fn a_token_of_sixteen_digits_stays_exact() {
    let mut world = World::new();
    let mut play = world.play(Kind::Mutex, 0);
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
    let mut play = world.play(Kind::Mutex, 0);
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
    for kind in Kind::ALL {
        (0..40).for_each(|seed| world.sequence(kind, seed));
    }
}

#[test]
fn a_dead_queue_longer_than_one_look_is_passed_over_several() {
    let mut world = World::new();
    let mut play = world.play(Kind::Mutex, 0);
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
    let mut play = world.play(Kind::Mutex, 0);
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
                life: Life::Session { alive_ms: 10_000 },
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
        hearer.call(&["PSUBSCRIBE", "redisson_lock__channel:*"]).unwrap();
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

    fn play(&mut self, kind: Kind, seed: u64) -> Play<'_> {
        let lock = Lock { kind, name: format!("lock {seed}").parse().unwrap() };
        let keys = self.keys.lock(&lock).unwrap();
        Play {
            world: self,
            lock,
            keys,
            state: LockState::new(kind),
            sessions: Sessions::default(),
            index: None,
            workload: Workload::of(kind, seed),
            trace: format!("LEASEHOLD_SEED={seed}\n"),
        }
    }

    fn sequence(&mut self, kind: Kind, seed: u64) {
        let mut play = self.play(kind, seed);
        for _ in 0..STEPS {
            play.random_step();
        }
        play.spoil_record();
        let keys = [vec!["DEL".to_owned()], play.all_keys()].concat();
        play.raw(&keys);
    }
}

/// One sequence on one lock.
struct Play<'a> {
    world: &'a mut World,
    lock: Lock,
    keys: LockKeys,
    state: LockState,
    sessions: Sessions,
    index: Option<Index>,
    workload: Workload,
    trace: String,
}

/// What stands in the index of all sessions. It is not the model's, which needs none.
#[derive(Debug, PartialEq, Eq)]
struct Index {
    expires_ms: u64,
    members: BTreeMap<String, u64>,
}

impl Index {
    /// The index after a beat of a session whose record expires then.
    fn after(index: Option<Self>, now_ms: u64, beat: &Beat, expires_ms: u64) -> Self {
        let members = || BTreeMap::from([("-".to_owned(), 0)]);
        let mut index = index.unwrap_or_else(|| Self { expires_ms, members: members() });
        index.expires_ms = index.expires_ms.max(expires_ms);
        index.members.insert(beat.session.to_string(), expires_ms);
        index.members.retain(|_, expires_ms| *expires_ms >= now_ms);
        index
    }

    /// The index without a session.
    fn without(mut self, session: SessionId) -> Option<Self> {
        self.members.remove(&session.to_string());
        (!self.members.is_empty()).then_some(self)
    }
}

impl Play<'_> {
    /// Sends one operation to both, and compares.
    fn check(&mut self, op: &Op) -> Reply {
        self.note(&format!("{op:?}"));
        if self.world.flush_scripts {
            self.raw(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let outcome = self.outcome(op);
        let now_us = self.world.now_us;
        let before = self.state.clone();
        let was_held = is_held(&before, now_us);
        let alive = |session| self.sessions.vital(now_us / 1000, session);
        let (expected, wakes) = self.state.apply(now_us, op, &alive);
        let Outcome::Done(reply) = outcome else { panic!("{outcome:?}\n{}", self.trace) };
        assert_eq!(reply, expected, "replies\n{}", self.trace);
        self.note(&format!("    {reply:?}"));
        self.compare_keys();
        let mut expected = said(&wakes);
        if self.lock.kind == Kind::Reentrant && was_held && self.state.value.is_none() {
            // Nobody was given it, so that clients of Redisson's may come.
            expected.push((self.keys.released_channel(), "0".to_owned()));
            *self.world.seen.entry("said to be free").or_default() += 1;
        }
        assert_eq!(self.heard(), expected, "messages\n{}", self.trace);
        self.count(&reply, &wakes);
        self.count_entries(&before, op, &reply);
        let audit = |state: &LockState| state.audit.as_ref().map(|audit| audit.entries.clone());
        if matches!(op, Op::Acquire(_)) && audit(&self.state) != audit(&before) {
            *self.world.seen.entry("the dead ahead buried").or_default() += 1;
        }
        reply
    }

    /// Sends one operation to the server. An extend goes by itself, or among others: again, and of locks that are free.
    fn outcome(&mut self, op: &Op) -> Outcome {
        let among = matches!(op, Op::Extend(_)) && self.workload.random().below(2) == 0;
        let World { runtime, store, seen, .. } = &mut *self.world;
        if !among {
            return runtime.block_on(store.execute(&self.lock, op, WITHIN));
        }
        *seen.entry("extended together").or_default() += 1;
        let free = Lock { kind: self.lock.kind, name: "nobody's".parse().unwrap() };
        let ops = [&free, &self.lock, &self.lock, &free].map(|lock| (lock.clone(), op.clone()));
        let mut outcomes = runtime.block_on(store.execute_all(&ops, WITHIN));
        assert_eq!(outcomes.len(), ops.len());
        for nobodys in [outcomes.pop(), Some(outcomes.remove(0))] {
            let free = matches!(nobodys, Some(Outcome::Done(Reply::Extend(Extended::NotHeld))));
            assert!(free, "{nobodys:?}\n{}", self.trace);
        }
        let second = outcomes.pop().unwrap();
        let first = outcomes.pop().unwrap();
        let replies = (&first, &second);
        let same = matches!(replies, (Outcome::Done(first), Outcome::Done(second)) if first == second);
        assert!(same, "{replies:?}\n{}", self.trace);
        first
    }

    /// Sends one operation on sessions to both, and compares.
    fn attend(&mut self, op: &SessionOp) -> SessionReply {
        self.note(&format!("{op:?}"));
        if self.world.flush_scripts {
            self.raw(&["SCRIPT", "FLUSH", "SYNC"]);
        }
        let outcome = self.world.runtime.block_on(self.world.store.attend(op, WITHIN));
        let now_ms = self.world.now_us / 1000;
        let expected = self.sessions.apply(now_ms, op);
        let Outcome::Done(reply) = outcome else { panic!("{outcome:?}\n{}", self.trace) };
        assert_eq!(reply, expected, "replies\n{}", self.trace);
        self.note(&format!("    {reply:?}"));
        let index = self.index.take().filter(|index| now_ms <= index.expires_ms);
        self.index = match (op, &reply) {
            (SessionOp::Beat(beat), SessionReply::Beat(Beaten::Alive)) => {
                Some(Index::after(index, now_ms, beat, self.sessions.records[&beat.session].expires_ms))
            }
            (SessionOp::End(session), _) => index.and_then(|index| index.without(*session)),
            _ => index,
        };
        self.compare_keys();
        assert_eq!(self.heard(), [], "messages\n{}", self.trace);
        self.count_session(op, &reply);
        reply
    }

    fn note(&mut self, what: &str) {
        writeln!(self.trace, "{:>12} us: {what}", self.world.now_us.cast_signed() - START_US.cast_signed())
            .unwrap();
    }

    fn compare_keys(&mut self) {
        let now_ms = self.world.now_us / 1000;
        let dump = self.dump();
        let [lock, record, audit, index, sessions @ ..] = dump.elements() else { panic!("{dump:?}") };
        let [lock, record, audit, index] = [lock, record, audit, index].map(|key| Found::of(key, now_ms));
        let found = lock.and_then(|Found { kind, content, expires_ms }| {
            let content = match (kind.as_str(), self.lock.kind) {
                ("string", _) => Content::Token(content.text().unwrap().to_owned()),
                ("hash", Kind::Reentrant) => {
                    rlock(&pairs(&content)).unwrap_or_else(|what| panic!("{what}\n{}", self.trace))?
                }
                _ => Content::Other(kind),
            };
            Some(Stands { content, expires_ms })
        });
        assert_eq!(found, self.state.value, "the lock\n{}", self.trace);
        let expected = self.state.record.as_ref().map(|record| (fields(record), Some(record.expires_ms)));
        let found = record.map(|found| (without_loose_ends(pairs(&found.content)), found.expires_ms));
        assert_eq!(found, expected, "the record\n{}", self.trace);
        let expected = self.state.audit.as_ref().map(|audit| (lines(audit), Some(audit.expires_ms)));
        let found = audit.map(|found| (found.content.text().unwrap().to_owned(), found.expires_ms));
        assert_eq!(found, expected, "the audit\n{}", self.trace);
        let found = index.map(|found| Index {
            expires_ms: found.expires_ms.expect("the index always expires"),
            members: pairs(&found.content)
                .into_iter()
                .map(|(member, at)| (member, at.parse().unwrap()))
                .collect(),
        });
        assert_eq!(found, self.index, "the index\n{}", self.trace);
        for (session, found) in Workload::sessions().zip(sessions) {
            let found = Found::of(found, now_ms).map(|found| (pairs(&found.content), found.expires_ms));
            let expected = self.sessions.records.get(&session);
            let expected = expected.map(|record| (session_fields(record), Some(record.expires_ms)));
            assert_eq!(found, expected, "session {session}\n{}", self.trace);
        }
    }

    /// The lock's keys, the index, and the sessions' records.
    fn all_keys(&self) -> Vec<String> {
        let LockKeys { name, record, audit } = self.keys.clone();
        let sessions = Workload::sessions().map(|session| self.world.keys.session(session));
        [name, record, audit, self.world.keys.sessions()].into_iter().chain(sessions).collect()
    }

    /// Looks at all keys, which removes what is over, also where no operation looks; and the clock may go back.
    fn dump(&mut self) -> Value {
        let now_ms = self.world.now_us / 1000;
        self.state.is_over(self.world.now_us);
        self.sessions.records.retain(|_, record| now_ms <= record.expires_ms);
        self.index.take_if(|index| now_ms > index.expires_ms);
        if self.world.flush_scripts {
            self.raw(&["SCRIPT", "LOAD", DUMP]);
        }
        let keys = self.all_keys();
        let call = ["EVALSHA".to_owned(), self.world.dump.clone(), keys.len().to_string()];
        self.raw(&[&call[..], &keys].concat())
    }

    fn field(&mut self, field: &str) -> String {
        pairs(&self.dump().elements()[1].elements()[1])[field].clone()
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
        let by_us = self.workload.time_us(&self.state, &self.sessions, self.world.now_us);
        self.step_us(by_us);
        match self.workload.happening(&self.state) {
            Happening::Sent(op) => drop(self.check(&op)),
            Happening::SentTwice(op) => {
                self.check(&op);
                self.check(&op);
            }
            Happening::Attended(op) => drop(self.attend(&op)),
            Happening::Stranger(stranger) => self.meddle(stranger),
        }
    }

    fn meddle(&mut self, stranger: Stranger) {
        // The server sees that a key has expired when somebody looks at it, and the clock may go back after that.
        self.dump();
        self.note(&format!("stranger {stranger:?}"));
        for command in stranger.commands(&self.keys, &self.state) {
            self.raw(&command);
        }
        let before = self.state.value.clone();
        stranger.apply(&mut self.state, self.world.now_us);
        let what = match stranger {
            Stranger::Enters(..) if self.state.value != before => "a stranger entered",
            Stranger::Leaves(_) if self.state.value != before => "a stranger left",
            _ => return,
        };
        *self.world.seen.entry(what).or_default() += 1;
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
        for wake in wakes {
            seen(if matches!(wake, Wake::Freed { .. }) { "warned" } else { "woken" });
        }
        if let Reply::Acquire(Acquired::Taken { ahead: Some(ahead), .. }) = reply {
            seen(if ahead.alive_ms.is_some() { "ahead, and its life" } else { "ahead" });
        }
        match reply {
            Reply::Refused(Refused::WrongKind { found }) if found == "string" => seen("other kind"),
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
                    Fate::Ended(Ended::Evicted) => "found evicted",
                    Fate::Ended(Ended::Freed) => "found freed",
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
            Reply::Evict(Evicted::Alive) => seen("not evicted"),
            Reply::Evict(Evicted::Gone { hold: None, place: false }) => seen("nothing to evict"),
            Reply::Evict(Evicted::Gone { hold, place }) => {
                if hold.is_some() {
                    seen("evicted a hold");
                }
                if *place {
                    seen("evicted a place");
                }
            }
            Reply::Free(Freed::Freed) => seen("freed"),
            Reply::Free(Freed::Changed { .. }) => seen("not freed"),
            Reply::Inspect(found) => {
                if found.stranger.is_some() {
                    seen("stranger's fingerprint");
                }
                if !found.audit.is_empty() {
                    seen("audit");
                }
            }
            Reply::Refused(_) => seen("wrong kind"),
            _ => {}
        }
    }

    /// What only a ReentrantMutex has.
    fn count_entries(&mut self, before: &LockState, op: &Op, reply: &Reply) {
        let now_ms = self.world.now_us / 1000;
        let entries = |state: &LockState| state.value.as_ref()?.content.entries().cloned();
        let (before, after) = (entries(before), entries(&self.state));
        let held = before.as_ref().map_or(0, |entries| entries.holds.len());
        let mut seen = |what| *self.world.seen.entry(what).or_default() += 1;
        if let Some(entries) = &before {
            let over = entries.holds.iter().filter(|entry| entry.until_ms < now_ms).count();
            if over > 0 && before == after {
                seen("entries that are over");
            } else if over > 0 {
                seen("dropped entries that are over");
            }
            if entries.count < held as u64 {
                seen("fewer than ours");
            }
        }
        match (op, reply) {
            (Op::Acquire(ask), Reply::Acquire(Acquired::Granted { entered: Some(entered), .. })) => {
                if entered.count > 1 && before != after {
                    seen(if held > 0 { "entered again" } else { "entered after a stranger" });
                }
                let others = before.iter().flat_map(|entries| &entries.holds);
                if others.into_iter().any(|entry| entry.hold.session() != ask.claim.hold.session()) {
                    seen("a sibling's hold");
                }
            }
            (Op::Extend(_), Reply::Extend(Extended::Extended)) if held > 1 => seen("extended one of several"),
            (Op::Release(_), Reply::Release(released)) if released.left > 0 => seen("released, and held yet"),
            (Op::Evict(_), Reply::Evict(Evicted::Gone { hold: Some(_), .. }))
                if after.is_some() && held > 1 =>
            {
                seen("evicted one of several");
            }
            (Op::Free(_), Reply::Free(Freed::Freed)) if held > 1 => seen("warned several"),
            _ => {}
        }
    }

    fn count_session(&mut self, op: &SessionOp, reply: &SessionReply) {
        let mut seen = |what| *self.world.seen.entry(what).or_default() += 1;
        match (op, reply) {
            (SessionOp::Beat(_), SessionReply::Beat(Beaten::Lapsed)) => seen("lapsed"),
            (SessionOp::Beat(beat), _) => seen(if beat.begin.is_some() { "begun" } else { "beaten" }),
            (SessionOp::End(_), _) => seen("ended"),
            (_, SessionReply::List(entries)) => {
                for entry in entries {
                    seen(if entry.alive_ms.is_some() { "listed alive" } else { "listed dead" });
                    if !entry.held.is_empty() {
                        seen("listed a lock");
                    }
                }
            }
            _ => {}
        }
    }
}

/// What stands at a key.
struct Found {
    kind: String,
    content: Value,
    expires_ms: Option<u64>,
}

impl Found {
    fn of(dumped: &Value, now_ms: u64) -> Option<Self> {
        let [kind, content, ttl] = dumped.elements() else { panic!("{dumped:?}") };
        let kind = kind.text().unwrap().to_owned();
        let expires_ms = u64::try_from(ttl.integer().unwrap()).ok().map(|ttl| now_ms + ttl);
        (kind != "none").then(|| Self { kind, content: content.clone(), expires_ms })
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
        life: Life::Session { alive_ms: 10_000 },
        ahead: None,
    })
}

fn release(claim: &Claim) -> Op {
    Op::Release(Release { claim: claim.clone(), pass: Pass::Grant, next: None })
}

/// Whether somebody has a lock, of its own kind.
fn is_held(state: &LockState, now_us: u64) -> bool {
    let inspect = Op::Inspect(Inspect { claim: None, in_full: false });
    let (reply, _) = state.clone().apply(now_us, &inspect, &everybody);
    matches!(reply, Reply::Inspect(seen) if seen.holder.is_some())
}

/// The fields of a record as they stand in its hash.
fn fields(record: &Record) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::from([("format".to_owned(), "1".to_owned())]);
    let mut put = |field: &str, value: String| drop(fields.insert(field.to_owned(), value));
    let own = |claim: &Claim| claim.value.as_ref().map_or("", |value| value.as_str()).to_owned();
    if let Some(last) = record.last {
        put("last", last.to_string());
    }
    if let Some(Tenant { claim, since_ms, life, label }) = &record.tenant {
        let (hold, life) = (claim.hold.token(), letter(*life));
        put("tenant", format!("{hold}\n{since_ms}\n{life}\n{}\n{label}", own(claim)));
    }
    let endings = record.ended.kept.iter().map(|(hold, how)| format!("{} {}", hold.token(), word(*how)));
    let endings: Vec<_> = endings.collect();
    if !endings.is_empty() {
        put("ended", endings.join("\n"));
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
    for (session, Place { ticket, nonce, expires_ms, lease_ms, life, claim, label }) in &record.places {
        let (hold, own, life) = (claim.hold.token(), own(claim), letter(*life));
        let place = format!("{ticket}\n{nonce}\n{expires_ms}\n{lease_ms}\n{life}\n{hold}\n{own}\n{label}");
        put(&format!("w:{session}"), place);
    }
    fields
}

/// The fields of a session's record.
fn session_fields(record: &SessionRecord) -> BTreeMap<String, String> {
    let held = record.held.iter().map(|lock| (format!("l:mutex:{}", lock.name), "1".to_owned()));
    let until = record.alive_until_ms.to_string();
    let rest = [("format", "1"), ("until", &until), ("about", &record.about)];
    held.chain(rest.map(|(field, text)| (field.to_owned(), text.to_owned()))).collect()
}

/// The text of an audit.
fn lines(audit: &Audit) -> String {
    let lines = audit.entries.iter().map(|entry| {
        let fence = entry.fence.map_or_else(String::new, |fence| fence.to_string());
        let whose = entry.whose.as_ref().map_or_else(|| "0\t".to_owned(), |whose| format!("1\t{whose}"));
        format!("{}\t{}\t{fence}\t{whose}\t{}", entry.at_ms, word(entry.how), entry.by)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn letter(life: Life) -> String {
    match life {
        Life::Session { alive_ms } => format!("s{alive_ms}"),
        Life::Lease => "l".to_owned(),
    }
}

fn word(how: Ended) -> &'static str {
    match how {
        Ended::Released => "released",
        Ended::Evicted => "evicted",
        Ended::Freed => "freed",
        _ => panic!("{how:?} is none of the model's"),
    }
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
