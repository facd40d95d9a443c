//! Scripts that are stopped after each of their commands: Redis does not roll back what they have done (failure row 18).
//!
//! An embedded Redis runs the very texts of the scripts. A lock is brought into some state (`reach.rs`); an operation of
//! each kind is sent, and stopped after none, one, two … of its commands; and after each cut-off
//!
//! 1. no key is without an expiry, but for a lock that had none before;
//! 2. the keys are a state that the model knows, and one of the five that `law.rs` names;
//! 3. the same operation again, any other one, or none is answered as the model says;
//! 4. everybody who waits is served after that (`serve.rs`).
//!
//! `LEASEHOLD_SEQUENCES` sets how many states are tried, `LEASEHOLD_SEED` repeats one: a failure prints its own.
//!
//! What is not here: whether the scripts mean what the model means on a real server (`tests/redis_model.rs`), and what is
//! done by those who send operations (the engine).

mod agreement;
mod commands;
mod law;
mod planted;
mod reach;
mod serve;
mod site;

use law::Left;
use leasehold_core::model::MutexState;
use leasehold_core::{Fate, Op, Reply};
use reach::Play;
use site::{MAILBOXES, Site};
use std::collections::BTreeMap;

const STATES: u64 = 3_000;

/// What is wrong after a cut-off.
#[derive(Debug)]
struct Broken(String);

/// The kinds of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OpKind {
    Acquire,
    Extend,
    Release,
    ReleaseAndAcquire,
    Inspect,
}

const OP_KINDS: [OpKind; 5] =
    [OpKind::Acquire, OpKind::Extend, OpKind::Release, OpKind::ReleaseAndAcquire, OpKind::Inspect];

impl OpKind {
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::Acquire(_) => Some(Self::Acquire),
            Op::Extend(_) => Some(Self::Extend),
            Op::Release(release) if release.next.is_some() => Some(Self::ReleaseAndAcquire),
            Op::Release(_) => Some(Self::Release),
            Op::Inspect(_) => Some(Self::Inspect),
            _ => None,
        }
    }
}

/// How often a cut-off of an operation left what.
type Seen = BTreeMap<(OpKind, Left), u64>;

#[test]
fn a_script_that_is_cut_off_leaves_expiries_and_a_way_on() {
    if let Some(seed) = number("LEASEHOLD_SEED") {
        return check(&mut Site::new(), seed, &mut Seen::new())
            .unwrap_or_else(|Broken(what)| panic!("{what}"));
    }
    let states = number("LEASEHOLD_SEQUENCES").unwrap_or(STATES);
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            let (mut site, mut seen) = (Site::new(), Seen::new());
            for seed in (half..states).step_by(2) {
                check(&mut site, seed, &mut seen).unwrap_or_else(|Broken(what)| panic!("{what}"));
            }
            seen
        })
    });
    let mut seen = Seen::new();
    for half in halves {
        for (what, times) in half.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            *seen.entry(what).or_insert(0) += times;
        }
    }
    println!("{states} states, {} cut-offs: {seen:?}", seen.values().sum::<u64>());
    // A generator that never gets anywhere would find nothing.
    for what in [
        (OpKind::Acquire, Left::Untouched),
        (OpKind::Acquire, Left::Opened),
        (OpKind::Acquire, Left::Entered),
        (OpKind::Acquire, Left::Done),
        (OpKind::Extend, Left::Untouched),
        (OpKind::Extend, Left::Done),
        (OpKind::Release, Left::Untouched),
        (OpKind::Release, Left::Freed),
        (OpKind::Release, Left::Opened),
        (OpKind::Release, Left::Entered),
        (OpKind::Release, Left::Done),
        (OpKind::ReleaseAndAcquire, Left::Freed),
        (OpKind::ReleaseAndAcquire, Left::Entered),
        (OpKind::ReleaseAndAcquire, Left::Done),
    ] {
        let times = seen.get(&what).copied().unwrap_or(0);
        assert!(states < 1_000 || times >= states / 1_000, "{what:?} came {times} times only");
    }
}

/// Brings a lock into the state of this seed, and cuts off an operation of each kind after each of its commands.
fn check(site: &mut Site, seed: u64, seen: &mut Seen) -> Result<(), Broken> {
    let told = |what: String| Broken(format!("LEASEHOLD_SEED={seed}\n{what}"));
    let mut play = Play::new(site, seed);
    play.reach(true).map_err(|Broken(what)| told(format!("on the way there: {what}")))?;
    for kind in OP_KINDS {
        let op = play.op_of(kind);
        let (before, keyspace) = (play.state.clone(), play.site.redis.keyspace());
        for commands in 0.. {
            let whole = play.cut_off(&op, commands, seen).map_err(|Broken(what)| {
                told(format!("{op:?},\n  cut off after {commands} commands in {before:?}:\n  {what}"))
            })?;
            play.state.clone_from(&before);
            play.site.redis.load(keyspace.clone());
            if whole {
                break;
            }
        }
    }
    Ok(())
}

impl Play<'_> {
    fn op_of(&mut self, kind: OpKind) -> Op {
        loop {
            let op = self.workload.op(&self.state);
            if OpKind::of(&op) == Some(kind) {
                return op;
            }
        }
    }

    /// Cuts an operation off, and looks at what is left and where that leads to; says whether it came to its end before.
    fn cut_off(&mut self, op: &Op, commands: usize, seen: &mut Seen) -> Result<bool, Broken> {
        let before = self.state.clone();
        let whole = self.site.run(op, commands)?.is_some();
        let left = self.look_at_what_is_left(&before, op)?;
        if let Some(kind) = OpKind::of(op) {
            *seen.entry((kind, left)).or_insert(0) += 1;
        }
        match self.workload.random().below(3) {
            0 => drop(self.site.agree(&mut self.state, self.now_us, op)?),
            1 => {
                let other = self.workload.op(&self.state);
                self.site.agree(&mut self.state, self.now_us, &other)?;
            }
            _ => {}
        }
        self.serve_all(&before, op)?;
        Ok(whole)
    }

    /// The present state becomes the model's.
    fn look_at_what_is_left(&mut self, before: &MutexState, op: &Op) -> Result<Left, Broken> {
        self.check_expiries(before)?;
        self.state = self.site.state()?;
        let mut after = before.clone();
        let (reply, wakes) = after.apply(self.now_us, op);
        let given_up = matches!(reply, Reply::Release(released) if released.found == Fate::Held);
        let Some(left) = law::left(before, &after, &self.state, given_up) else {
            return Err(Broken(format!("it left {:?},\n  and makes {after:?}", self.state)));
        };
        let told = self.site.redis.with(|keyspace| std::mem::take(&mut keyspace.messages));
        let expected = wakes.iter().map(|wake| (format!("{MAILBOXES}{}", wake.to), wake.message()));
        if told.is_empty() || left == Left::Done && told.iter().cloned().eq(expected) {
            return Ok(left);
        }
        Err(Broken(format!("it is {left:?}, and told {told:?}")))
    }

    fn check_expiries(&self, before: &MutexState) -> Result<(), Broken> {
        let persisted = |content: &str| {
            let value = before.value.as_ref().filter(|value| value.expires_ms.is_none());
            value.is_some_and(|value| value.content.as_ref().unwrap_or_else(|kind| kind) == content)
        };
        let keyspace = self.site.redis.keyspace();
        for (key, entry) in keyspace.entries().filter(|(_, entry)| entry.expires_ms.is_none()) {
            let lock = key == self.site.keys.name.as_bytes();
            if !lock || !persisted(&entry.content.shown()) {
                return Err(Broken(format!("`{}` never expires", key.escape_ascii())));
            }
        }
        Ok(())
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}
