//! What must hold, whatever happens; apart from the workload, which only says what it has.
//!
//! 1. Exclusion: at no instant of true time do two guards of a lock pass their `check()`.
//! 2. Tokens grow from each guard of a lock to the next.
//! 3. Once nothing goes wrong any more everybody is served, and keeps what he has.
//! 4. Once a release has returned, nothing more is sent about its hold.
//! 5. In the end the server has no holder and no queue left.
//!
//! The first two are promised while the server keeps its data, so guards that it granted before a loss are not counted
//! after it.

use crate::host::{Pace, lock};
use leasehold::{FencingToken, Guard, Moment, SessionId};
use leasehold_core::{Acquire, Acquired, HoldId, Op, Reply, Wake};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was found to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    Exclusion,
    Tokens,
    Service,
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
    violation: Option<Rule>,
    /// The guards that somebody believes in.
    held: BTreeMap<u64, Entry>,
    entries: u64,
    /// The greatest token of each lock.
    tokens: BTreeMap<usize, u64>,
    /// Which hold a token of a lock belongs to, and which one a session waits with: a guard does not show its hold.
    granted: BTreeMap<(String, FencingToken), HoldId>,
    queued: BTreeMap<(String, SessionId), HoldId>,
    /// The holds whose release has returned (4).
    given_back: BTreeSet<HoldId>,
    /// The server's time when it lost its data last.
    lost_us: u64,
}

#[derive(Clone)]
struct Entry {
    lock: usize,
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

    /// A rule is broken.
    pub(crate) fn violated(&self, rule: Rule, at: Duration, what: impl fmt::Display) {
        self.say(at, "VIOLATION", format_args!("{rule:?}: {what}"));
        lock(&self.state).violation.get_or_insert(rule);
    }

    pub(crate) fn violation(&self) -> Option<Rule> {
        lock(&self.state).violation
    }

    /// The server has lost its data.
    pub(crate) fn data_lost(&self, at_us: u64) {
        lock(&self.state).lost_us = at_us;
    }

    /// A lock was had: its guard is watched from now on.
    pub(crate) fn hold(
        self: &Arc<Self>,
        at: Duration,
        pace: Pace,
        lock_number: usize,
        who: &str,
        guard: Guard,
    ) -> Held {
        let guard = Arc::new(guard);
        let fence = guard.fencing_token().as_u64();
        let entry = Entry { lock: lock_number, who: who.to_owned(), pace, guard: Arc::clone(&guard) };
        let believed = entry.is_believed(at);
        let (number, last) = {
            let mut state = lock(&self.state);
            state.entries += 1;
            let number = state.entries;
            state.held.insert(number, entry);
            // Granted before the loss, and heard of only now: at most a first lease has gone by since.
            let excused = (state.lost_us.saturating_sub(3_000_000)..=state.lost_us).contains(&fence);
            let last = state.tokens.get(&lock_number).copied().filter(|_| believed && !excused).unwrap_or(0);
            if believed {
                state.tokens.insert(lock_number, last.max(fence));
            }
            (number, last)
        };
        if fence <= last {
            self.violated(
                Rule::Tokens,
                at,
                format_args!("{who} has {fence} of lock {lock_number}, after {last}"),
            );
        }
        self.check(at);
        Held { record: Arc::clone(self), number, guard: Some(guard) }
    }

    /// The server has executed an operation: notes who got what.
    pub(crate) fn executed(&self, key: &str, op: &Op, reply: &Reply, wakes: &[Wake]) {
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
            if let Some(hold) = state.queued.get(&(key.to_owned(), wake.to)).copied() {
                state.granted.insert((key.to_owned(), wake.fence), hold);
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

    /// Looks at all guards at a true time (1).
    pub(crate) fn check(&self, at: Duration) {
        let (held, lost_us) = {
            let state = lock(&self.state);
            (state.held.values().cloned().collect::<Vec<_>>(), state.lost_us)
        };
        let mut holders: BTreeMap<usize, &Entry> = BTreeMap::new();
        for entry in &held {
            if !entry.is_believed(at) || entry.guard.fencing_token().as_u64() <= lost_us {
                continue;
            }
            if let Some(other) = holders.insert(entry.lock, entry) {
                let (one, two) = (&other.who, &entry.who);
                self.violated(Rule::Exclusion, at, format_args!("{one} and {two} have lock {}", entry.lock));
            }
        }
    }

    /// All that happened, and how often what.
    pub(crate) fn into_parts(self) -> (String, BTreeMap<&'static str, u64>, Option<Rule>) {
        let state = self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        (state.trace, state.seen, state.violation)
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
