//! What must hold, whatever happens; apart from the workload, which only says what it has.
//!
//! 1. Exclusion: at no instant of true time do two guards of a lock pass their `check()`.
//! 2. Whose guard passes its `check()` has the lock at the server at that instant: he stops believing first.
//! 3. Tokens grow from each guard of a lock to the next.
//! 4. Once nothing goes wrong any more everybody is served, and keeps what he was given.
//! 5. Once a release has returned, nothing more is sent about its hold.
//! 6. In the end the server has no holder and no queue left.
//!
//! The first three are promised while the server keeps its data, so guards that it granted before a loss are not counted
//! after it.

use crate::host::{Pace, lock};
use leasehold::{FencingToken, Guard, Moment, SessionId};
use leasehold_core::{Acquire, Acquired, HoldId, Inspection, Op, Reply, Wake};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the trace begins a broken rule's line with.
pub(crate) const VIOLATION: &str = "VIOLATION";

/// How long a message takes that nothing holds up, with a latency of the most that there is.
const MESSAGE: Duration = Duration::from_millis(400);

/// What was found to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    Exclusion,
    Belief,
    Tokens,
    Service,
    Keeping,
    Silence,
    Leftovers,
    Panic,
}

/// Everything that happened, and what was wrong with it.
#[derive(Default)]
pub(crate) struct Record {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: String,
    seen: BTreeMap<&'static str, u64>,
    violations: BTreeSet<Rule>,
    /// The guards that somebody believes in.
    held: BTreeMap<u64, Entry>,
    entries: u64,
    /// The greatest token of each lock.
    tokens: BTreeMap<String, u64>,
    /// Which hold a token of a lock belongs to, and which one a session waits with: a guard does not show its hold.
    granted: BTreeMap<(String, FencingToken), HoldId>,
    queued: BTreeMap<(String, SessionId), HoldId>,
    /// When who was told that a token of a lock is his.
    told: BTreeMap<(String, FencingToken), Duration>,
    /// The holds whose release has returned (5).
    given_back: BTreeSet<HoldId>,
    /// The server's time when it lost its data last.
    lost_us: u64,
}

#[derive(Clone)]
struct Entry {
    who: String,
    pace: Pace,
    guard: Arc<Guard>,
}

/// A guard that is watched until it is given back, lost or dropped.
pub(crate) struct Held {
    record: Arc<Record>,
    number: u64,
    guard: Option<Arc<Guard>>,
}

impl Record {
    /// Writes a line of the trace.
    pub(crate) fn say(&self, at: Duration, who: &str, what: impl fmt::Display) {
        let mut state = lock(&self.state);
        // Writing to a string does not fail.
        let _ = writeln!(state.trace, "{:>10.3} ms  {who:<12} {what}", at.as_secs_f64() * 1e3);
    }

    /// Counts something that a simulation should see now and then.
    pub(crate) fn count(&self, what: &'static str) {
        *lock(&self.state).seen.entry(what).or_insert(0) += 1;
    }

    /// A rule is broken. What happens to it after that is not told.
    pub(crate) fn violated(&self, rule: Rule, at: Duration, what: impl fmt::Display) {
        let first = lock(&self.state).violations.insert(rule);
        if first {
            self.say(at, VIOLATION, format_args!("{rule:?}: {what}"));
        }
    }

    /// The server has lost its data.
    pub(crate) fn data_lost(&self, at_us: u64) {
        lock(&self.state).lost_us = at_us;
    }

    /// A lock was had: its guard is watched from now on.
    pub(crate) fn hold(self: &Arc<Self>, at: Duration, pace: Pace, who: &str, guard: Guard) -> Held {
        let guard = Arc::new(guard);
        let (name, fence) = (guard.name().to_string(), guard.fencing_token().as_u64());
        let entry = Entry { who: who.to_owned(), pace, guard: Arc::clone(&guard) };
        let believed = entry.is_believed(at);
        let (number, last) = {
            let mut state = lock(&self.state);
            state.entries += 1;
            let number = state.entries;
            if let Some(told_at) = state.told.get(&(name.clone(), guard.fencing_token())).copied() {
                let how = if at <= told_at + MESSAGE { "told in time" } else { "told late" };
                *state.seen.entry(how).or_insert(0) += 1;
            }
            state.held.insert(number, entry);
            // Granted before the loss, and heard of only now: at most a first lease has gone by since.
            let excused = (state.lost_us.saturating_sub(3_000_000)..=state.lost_us).contains(&fence);
            let last = state.tokens.get(&name).copied().filter(|_| believed && !excused).unwrap_or(0);
            if believed {
                state.tokens.insert(name.clone(), last.max(fence));
            }
            (number, last)
        };
        if fence <= last {
            self.violated(Rule::Tokens, at, format_args!("{who} has {fence} of {name}, after {last}"));
        }
        self.check_exclusion(at);
        Held { record: Arc::clone(self), number, guard: Some(guard) }
    }

    /// The server has executed an operation: notes who got what.
    pub(crate) fn executed(&self, at: Duration, key: &str, op: &Op, reply: &Reply, wakes: &[Wake]) {
        let mut state = lock(&self.state);
        match (op, reply) {
            (Op::Acquire(ask), Reply::Acquire(acquired)) => state.asked(key, ask, acquired),
            (Op::Release(release), Reply::Release(released)) => {
                if let (Some(ask), Some(Ok(acquired))) = (&release.next, &released.next) {
                    state.asked(key, ask, acquired);
                }
            }
            _ => {}
        }
        for wake in wakes {
            state.told.insert((key.to_owned(), wake.fence()), at);
            if let Some(hold) = state.queued.get(&(key.to_owned(), wake.to())).copied() {
                state.granted.insert((key.to_owned(), wake.fence()), hold);
            }
        }
    }

    /// The release of a guard has returned.
    pub(crate) fn given_back(&self, lock_name: &str, fence: FencingToken) {
        let mut state = lock(&self.state);
        if let Some(hold) = state.granted.get(&(lock_name.to_owned(), fence)).copied() {
            state.given_back.insert(hold);
            *state.seen.entry("given back").or_insert(0) += 1;
        }
    }

    /// A client sends something about a hold.
    pub(crate) fn sent(&self, at: Duration, hold: HoldId) {
        let too_late = lock(&self.state).given_back.contains(&hold);
        if too_late {
            self.violated(
                Rule::Silence,
                at,
                format_args!("something is sent about {hold:?} after its release"),
            );
        }
    }

    /// Looks at all guards at a true time, beside what the server says of its locks (1, 2).
    pub(crate) fn check(&self, at: Duration, server: &[(String, Inspection)]) {
        self.check_exclusion(at);
        for Entry { who, guard, .. } in self.believed(at) {
            let lock = server.iter().find(|(key, _)| key == guard.name().as_str());
            let holder = lock.and_then(|(_, seen)| seen.holder.as_ref());
            if holder.and_then(|holder| holder.fence) != Some(guard.fencing_token()) {
                self.violated(
                    Rule::Belief,
                    at,
                    format_args!("{who} has {}, and not: {holder:?}", guard.name()),
                );
            }
        }
    }

    fn check_exclusion(&self, at: Duration) {
        let mut holders = BTreeMap::new();
        for Entry { who, guard, .. } in self.believed(at) {
            if let Some(other) = holders.insert(guard.name().clone(), who.clone()) {
                self.violated(Rule::Exclusion, at, format_args!("{other} and {who} have {}", guard.name()));
            }
        }
    }

    /// The guards that would pass their `check()` at a true time, but for those of before a loss.
    fn believed(&self, at: Duration) -> Vec<Entry> {
        let state = lock(&self.state);
        let counts = |entry: &&Entry| entry.guard.fencing_token().as_u64() > state.lost_us;
        state.held.values().filter(|entry| entry.is_believed(at)).filter(counts).cloned().collect()
    }

    /// All that happened, and how often what.
    pub(crate) fn into_parts(self) -> (String, BTreeMap<&'static str, u64>, BTreeSet<Rule>) {
        let state = self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        (state.trace, state.seen, state.violations)
    }
}

impl State {
    fn asked(&mut self, key: &str, ask: &Acquire, acquired: &Acquired) {
        let hold = ask.claim.hold;
        self.queued.insert((key.to_owned(), hold.session()), hold);
        if let Acquired::Granted { fence, .. } = acquired {
            self.granted.insert((key.to_owned(), *fence), hold);
        }
    }
}

impl Entry {
    /// Whether `check()` would pass at a true time.
    fn is_believed(&self, at: Duration) -> bool {
        let until: Moment = self.guard.valid_until();
        self.pace.at(at) < until
    }
}

impl Held {
    /// The guard.
    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("it is there until it is taken out, which ends this value")
    }

    /// The guard, to be released: nobody believes in it any more.
    pub(crate) fn into_guard(mut self) -> Option<Guard> {
        drop(lock(&self.record.state).held.remove(&self.number));
        self.guard.take().and_then(Arc::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let entry = lock(&self.record.state).held.remove(&self.number);
        // Not under the lock: the last reference to the guard gives the lock back.
        drop(entry);
    }
}
