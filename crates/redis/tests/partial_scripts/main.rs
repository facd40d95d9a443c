//! Scripts that are cut off after each of their commands: Redis does not roll back what they have done (failure row 18).
//!
//! The scripts run on a real server, under a clock of the test. Between the store and the server a tap (`tap.rs`) puts a
//! prelude before each script, whose `redis.call` fails after a number of commands. A lock is brought into a random
//! state (`generator.rs`); an operation of each kind is sent and cut off after 0, 1, 2 … commands; and after each cut
//!
//! 1. no key is without an expiry, but for a lock that had none before;
//! 2. the keys are a state that the model knows, and one of the seven in `invariants.rs`;
//! 3. the same operation again, or any other, gets the reply of the model;
//! 4. every waiter is served after that (`serve.rs`). That takes most of the time, so it is tried after every fourth cut:
//!    of one state after the first, the fifth …, of the next after others. `cargo xtask verify cutoffs` tries it after each.
//!
//! Heartbeats are cut off likewise (`heartbeats.rs`). `mutants.rs` has scripts with mistakes, each of which must be found.
//!
//! `LEASEHOLD_SEQUENCES` sets the number of states, `LEASEHOLD_SEED` repeats one: a failure prints its own.
//!
//! Not here: whether whole scripts do what the model does (`tests/scripts`), and what the clients that send operations do
//! (the engine).

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

mod acquire_all;
mod commands;
mod coverage;
mod fixture;
mod generator;
mod heartbeats;
mod invariants;
mod keyspace;
#[path = "../support/lua_mutants.rs"]
mod lua_mutants;
mod mutants;
mod mutation;
mod serve;
mod serve_shared;
mod server;
mod tap;
mod without_watermark;

use coverage::{Coverage, OpKind, op_kinds};
use fixture::{Fixture, live};
use generator::Generator;
use invariants::Left;
use leasehold_core::model::{Content, LockState, SharedHold, Value, all_alive};
use leasehold_core::{
    Acquire, Evict, HoldStatus, Kind, Label, ObservedHolder, Op, Release, ReleaseAction, Reply,
};
use leasehold_testkit::conformance::is_sent_with_others;
use leasehold_testkit::share_of_seeds;

/// The share of one server must be able to reach each command of the fast paths.
const STATES_MUTEX: u64 = 1_000;
const STATES: u64 = 500;
/// For each of the four kinds with several holders, whose scripts are the same.
const STATES_SHARED: u64 = 250;

/// What a partial script has broken.
#[derive(Debug)]
struct Violation(String);

impl From<std::io::Error> for Violation {
    fn from(error: std::io::Error) -> Self {
        Self(format!("the server: {error}"))
    }
}

#[test]
fn a_partial_script_leaves_expiries_and_blocks_no_client() {
    leaves_expiries_and_blocks_no_client(&[Kind::Mutex], STATES_MUTEX);
}

#[test]
fn a_partial_script_of_a_reentrant_mutex_does_so_too() {
    leaves_expiries_and_blocks_no_client(&[Kind::Reentrant], STATES);
}

#[test]
fn a_partial_script_of_an_election_does_so_too() {
    leaves_expiries_and_blocks_no_client(&[Kind::Election], STATES);
}

/// All four kinds have the same scripts, and differ in some of the states that these can leave.
#[test]
fn a_partial_script_of_a_shared_lock_does_so_too() {
    leaves_expiries_and_blocks_no_client(
        &[Kind::Semaphore, Kind::RwLock, Kind::Latch, Kind::Barrier],
        STATES_SHARED,
    );
}

fn leaves_expiries_and_blocks_no_client(kinds: &[Kind], all: u64) {
    let states = number("LEASEHOLD_SEQUENCES").unwrap_or(all);
    let serves = if states > all { Serves::AfterEachCut } else { Serves::AfterEveryFourth };
    if let Some(seed) = number("LEASEHOLD_SEED") {
        for kind in kinds {
            println!("a {}", kind.as_str());
            let checked = check_serving(&mut Fixture::new(*kind), seed, &mut Coverage::default(), serves);
            checked.unwrap_or_else(|Violation(what)| panic!("{what}"));
        }
        return;
    }
    let seeds = share_of_seeds(states);
    let halves = |kind: Kind| {
        let halves = [0, 1].map(|half| {
            let own: Vec<u64> = seeds.iter().copied().skip(half).step_by(2).collect();
            std::thread::spawn(move || check_all(kind, own.into_iter(), serves))
        });
        halves.map(|half| half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    };
    let seen = kinds.iter().flat_map(|kind| halves(*kind)).fold(Coverage::default(), Coverage::with);
    println!("{} states of {kinds:?}, {seen:?}", seeds.len());
    // A smaller share need not reach them all.
    if 2 * seeds.len() as u64 > all {
        seen.check(kinds, all.div_ceil(1_000), seeds.len() as u64 >= all);
    }
}

fn check_all(kind: Kind, seeds: impl Iterator<Item = u64>, serves: Serves) -> Coverage {
    let (mut fixture, mut seen) = (Fixture::new(kind), Coverage::default());
    for seed in seeds {
        check_serving(&mut fixture, seed, &mut seen, serves)
            .unwrap_or_else(|Violation(what)| panic!("a {}: {what}", kind.as_str()));
    }
    seen.cut_at(fixture.cuts);
    seen
}

/// Compares replies, keys, expiries and messages after each of some random operations, none of which is cut off.
fn agrees_with_the_model(fixture: &mut Fixture, seed: u64) -> Result<(), Violation> {
    let mut generator = Generator::new(fixture, seed);
    generator.generate(false).map_err(|Violation(what)| Violation(format!("LEASEHOLD_SEED={seed}\n{what}")))
}

/// Servers before 7.0 have neither GT nor a version number for scripts.
#[test]
fn without_gt_the_scripts_do_what_the_model_does() {
    let mut fixture = Fixture::edited(Kind::Mutex, &[("redis.REDIS_VERSION_NUM and 'GT'", "nil")]);
    for seed in number("LEASEHOLD_SEED").map_or(0..500, |seed| seed..seed + 1) {
        agrees_with_the_model(&mut fixture, seed).unwrap_or_else(|Violation(what)| panic!("{what}"));
    }
}

/// After which cuts all waiters are served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    AfterEachCut,
    AfterEveryFourth,
}

fn check(fixture: &mut Fixture, seed: u64, seen: &mut Coverage) -> Result<(), Violation> {
    check_serving(fixture, seed, seen, Serves::AfterEachCut)
}

/// Brings a lock into the state of this seed, and cuts off an operation of each kind after each of its commands.
fn check_serving(
    fixture: &mut Fixture,
    seed: u64,
    seen: &mut Coverage,
    serves: Serves,
) -> Result<(), Violation> {
    let with_seed = |what: String| Violation(format!("LEASEHOLD_SEED={seed}\n{what}"));
    let mut generator = Generator::new(fixture, seed);
    generator.generate(true).map_err(|Violation(what)| with_seed(format!("on the way there: {what}")))?;
    for kind in op_kinds(generator.fixture.kind) {
        let op = generator.op_of(kind);
        let (before, keyspace) = (generator.state.clone(), generator.fixture.redis.keyspace());
        let can_share = is_sent_with_others(generator.fixture.kind, &op);
        // Alone; and together with others, if it can.
        let (mut together, mut commands) = (false, 0);
        loop {
            generator.fixture.together = together;
            let is_served = serves == Serves::AfterEachCut || (seed + commands as u64).is_multiple_of(4);
            let whole =
                generator.execute_partially(&op, commands, seen, is_served).map_err(|Violation(what)| {
                    let how = if together { " with others" } else { "" };
                    with_seed(format!(
                        "{op:?}{how},\n  cut off after {commands} commands in {before:?}:\n  {what}"
                    ))
                })?;
            generator.state.clone_from(&before);
            generator.fixture.redis.load(keyspace.clone());
            commands += 1;
            if whole && can_share && !together {
                (together, commands) = (true, 0);
            } else if whole {
                break;
            }
        }
    }
    generator.cut_off_heartbeats().map_err(|Violation(what)| with_seed(what))?;
    generator.damage_record().map_err(|Violation(what)| with_seed(format!("with a damaged record: {what}")))
}

impl Generator<'_> {
    /// A damaged record stays as it is, and so does the lock beside it, unless it needs no record: wherever scripts are cut
    /// off.
    fn damage_record(&mut self) -> Result<(), Violation> {
        let record = self.fixture.keys.record().to_owned();
        self.fixture.command(&["DEL", &record])?;
        match self.workload.random().below(3) {
            0 => self.fixture.command(&["LPUSH", &record, "x"]),
            1 => self.fixture.command(&["SET", &record, "x"]),
            _ => self.fixture.command(&["HSET", &record, "format", "2"]),
        }?;
        let before = self.fixture.redis.keyspace();
        for kind in op_kinds(self.fixture.kind) {
            let op = self.op_of(kind);
            for commands in 0..6 {
                self.fixture.run(&op, commands)?;
                let after = self.fixture.redis.keyspace();
                let record_stays = after.entry(&record) == before.entry(&record);
                let extends = matches!(kind, OpKind::Extend | OpKind::Reserve);
                if !record_stays || after != before && !extends {
                    return Err(Violation(format!(
                        "{op:?}, cut off after {commands} commands, changes {after:?}"
                    )));
                }
                self.fixture.redis.load(before.clone());
            }
        }
        Ok(())
    }

    fn op_of(&mut self, kind: OpKind) -> Op {
        loop {
            let op = self.workload.op(&self.state);
            if OpKind::of(&op) == Some(kind) {
                return op;
            }
        }
    }

    /// Cuts an operation off, checks what is left, and continues from there. Returns whether it ended before it was cut off.
    fn execute_partially(
        &mut self,
        op: &Op,
        commands: usize,
        seen: &mut Coverage,
        is_served: bool,
    ) -> Result<bool, Violation> {
        let before = self.state.clone();
        let whole = self.fixture.run(op, commands)?.is_some();
        let left = self.inspect_what_is_left(&before, op, whole)?;
        if let Some(kind) = OpKind::of(op) {
            seen.left(kind, left);
        }
        match self.workload.random().below(3) {
            0 => drop(self.fixture.agree(&mut self.state, self.now_us, op)?),
            1 => {
                let other = self.workload.op(&self.state);
                self.fixture.agree(&mut self.state, self.now_us, &other)?;
            }
            _ => {}
        }
        if is_served {
            self.serve_all(&before, op)?;
        }
        Ok(whole)
    }

    /// Makes the present state the model's.
    fn inspect_what_is_left(&mut self, before: &LockState, op: &Op, whole: bool) -> Result<Left, Violation> {
        self.check_expiries(before)?;
        self.state = self.fixture.state()?;
        self.check_that_parts_end_before_the_key()?;
        let mut after = before.clone();
        let (sessions, now_ms) = (self.fixture.sessions()?, self.now_us / 1000);
        let (reply, notifications) =
            after.apply(self.now_us, op, &|session| sessions.status(now_ms, session));
        let released = matches!(reply, Reply::Release(released) if released.status == HoldStatus::Held);
        // An eviction is recorded in the audit.
        let taken = after.audit != before.audit;
        let given_up = (released || taken).then(|| self.given_up(before, op));
        let states = [before, &after, &self.state].map(|state| live(state, self.now_us));
        let left = if self.state == after {
            Some(Left::Done)
        } else if self.state == *before {
            Some(Left::Untouched)
        } else {
            invariants::left(&states[0], &states[1], &states[2], given_up.as_ref())
        };
        let Some(left) = left else {
            return Err(Violation(format!("it left {:?},\n  and makes {after:?}", self.state)));
        };
        let published = self.fixture.redis.take_messages();
        let expected = self.fixture.messages(self.now_us, op, (before, &after), &notifications);
        let fits = match left {
            Left::Done => published == expected || expected.starts_with(&published) && !whole && !taken,
            Left::Unnoted => expected.starts_with(&published) && !whole,
            _ => published.is_empty() && !whole,
        };
        if fits { Ok(left) } else { Err(Violation(format!("it is {left:?}, and published {published:?}"))) }
    }

    /// The lock without the holds that an operation ends, and without its other effects.
    fn given_up(&self, before: &LockState, op: &Op) -> LockState {
        let mut state = before.clone();
        let by = Label::new("test").expect("a plain text is a label");
        match op {
            // It ends no hold.
            Op::Release(Release { action: ReleaseAction::KeepPermits { .. }, .. }) => {}
            // The release of one shared hold admits others.
            Op::Release(release) if state.kind.is_shared() => {
                state = live(&state, self.now_us);
                keep_parts(&mut state, |part| part.hold != release.claim.hold);
                state = live(&state, self.now_us);
            }
            Op::ForceRelease(free) if state.kind.is_shared() => {
                state = live(&state, self.now_us);
                keep_parts(&mut state, |part| free.observed != ObservedHolder::Hold(part.fence));
                state = live(&state, self.now_us);
            }
            Op::Release(release) => {
                let rest = Release { next: None, ..release.clone() };
                state.apply(self.now_us, &Op::Release(rest.clone()), &all_alive);
                let stands = state.value.as_ref().and_then(|value| value.content.token());
                if !stands.is_some_and(|stands| stands.contains("cooldown\n")) {
                    state.clone_from(before);
                    let release = Release { action: ReleaseAction::Free, ..rest };
                    state.apply(self.now_us, &Op::Release(release), &all_alive);
                }
            }
            Op::Acquire(Acquire { predecessor: Some(session), .. }) | Op::Evict(Evict { session, .. }) => {
                state.evict_session(self.now_us, *session, &by);
            }
            _ => state.value = None,
        }
        state
    }

    /// No hold of a shared lock lasts longer than the key.
    fn check_that_parts_end_before_the_key(&self) -> Result<(), Violation> {
        let Some(Value { content: Content::SharedHolders(parts), expires_ms: Some(expires_ms) }) =
            &self.state.value
        else {
            return Ok(());
        };
        match parts.holds.iter().find(|part| part.until_ms > *expires_ms) {
            Some(part) => Err(Violation(format!("it ends at {expires_ms}, and {part:?} later"))),
            None => Ok(()),
        }
    }

    fn check_expiries(&self, before: &LockState) -> Result<(), Violation> {
        let persisted = |content: &str| {
            let value = before.value.as_ref().filter(|value| value.expires_ms.is_none());
            value.is_some_and(|value| {
                value.content.token().unwrap_or_else(|| value.content.type_name()) == content
            })
        };
        let keyspace = self.fixture.redis.keyspace();
        for (key, entry) in keyspace.entries().filter(|(_, entry)| entry.expires_ms.is_none()) {
            let lock = key == self.fixture.keys.name();
            if !lock || !persisted(&entry.content.shown()) {
                return Err(Violation(format!("`{key}` never expires")));
            }
        }
        Ok(())
    }
}

/// Removes all shared holds but those that stay.
fn keep_parts(state: &mut LockState, stays: impl Fn(&SharedHold) -> bool) {
    state.value.take_if(|value| {
        let Content::SharedHolders(parts) = &mut value.content else { return false };
        parts.holds.retain(stays);
        parts.holds.is_empty()
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
