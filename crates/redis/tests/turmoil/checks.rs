//! The rules that must hold whatever happens. Independent of the workload, which only reports its guards.
//!
//! 1. Exclusion: at no instant of true time do two guards of a lock pass their `check()`, unless both are of a
//!    ReentrantMutex and of one owner.
//! 2. A guard that passes its `check()` is backed by a hold at the server at that instant: the client stops relying
//!    on it before the server ends it. For a set this applies to all its holds; for a ReentrantMutex the owner's
//!    count equals the number of such guards. After a local hand-off the server knows the hold by the token that it
//!    granted, and has reserved the tokens of the later guards.
//! 3. Tokens grow from each guard of a lock to the next; all entries that an owner holds at one time have the same
//!    token.
//! 4. Once no new fault begins, every client is served, and keeps its holds.
//! 5. Once a release has returned, nothing more is sent about its hold, and if it reports the lock as free, the
//!    server has no holder by that token; unless the process has kept the hold for the next of its tasks.
//! 6. In the end the server has no holder and no queue left.
//!
//! The first three are guaranteed while the server keeps its data, so guards granted before a loss are not counted
//! after it.

use crate::any_lock::AnyGuard;
use crate::environment::{HostClock, lock};
use crate::simulation::server_time_us;
use crate::tap::RequestKind;
use leasehold::inspect::SessionId;
use leasehold::{FencingToken, Moment, Owner, Released};
use leasehold_core::{
    Acquire, Acquired, Extended, HoldId, HoldStatus, Inspection, MultiAcquired, Notification, Op, Reply,
    TokenBlock,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The prefix of a trace line that reports a broken rule.
pub(crate) const VIOLATION: &str = "VIOLATION";

/// How long an undisturbed message takes at most, with the greatest latency.
const MESSAGE: Duration = Duration::from_millis(400);

/// For how long after a loss of data a session may not know yet that it is forgotten, in microseconds: as long as a
/// session lasts without a heartbeat, and a little more.
const FORGOTTEN_FOR_US: u64 = 13_000_000;

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    Exclusion,
    Belief,
    Count,
    AllOrNone,
    Tokens,
    OneToken,
    Returned,
    Service,
    Keeping,
    Silence,
    Leftovers,
    Panic,
}

/// Everything that happened, and the rules that were broken.
#[derive(Default)]
pub(crate) struct Record {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    trace: String,
    seen: BTreeMap<&'static str, u64>,
    violations: BTreeSet<Rule>,
    /// The live guards.
    held: BTreeMap<u64, Entry>,
    entries: u64,
    /// The greatest token of each lock, and its owner.
    tokens: BTreeMap<String, (u64, Option<Owner>)>,
    /// The holds that a token of a lock belongs to, and the hold with which a session waits: a guard does not show
    /// its hold.
    granted: BTreeMap<(String, FencingToken), BTreeSet<HoldId>>,
    queued: BTreeMap<(String, SessionId), HoldId>,
    /// For each token reserved for a hand-off, the token by which the server knows the hold.
    known_as: BTreeMap<(String, FencingToken), FencingToken>,
    /// When the server published each granted token.
    grant_times: BTreeMap<(String, FencingToken), Duration>,
    /// The holds whose process has begun to release them, and those that the server has released for it.
    given_up: BTreeMap<HoldId, Duration>,
    /// How many connections its client had opened then.
    opened_before: BTreeMap<HoldId, u64>,
    ended: BTreeSet<HoldId>,
    /// The holds whose release has returned (5).
    given_back: BTreeSet<HoldId>,
    /// Those whose release has failed: the client goes on.
    unanswered: BTreeSet<HoldId>,
    /// The tokens by which the lock is not held any more.
    over: BTreeSet<(String, FencingToken)>,
    /// The server's time at the last loss of data.
    lost_us: u64,
    /// Since when no new fault begins.
    faults_ended_at: Option<Duration>,
    /// When each session has last sent a heartbeat.
    heartbeats: BTreeMap<SessionId, Duration>,
}

#[derive(Clone)]
struct Entry {
    client: String,
    host_clock: HostClock,
    guard: Arc<AnyGuard>,
}

/// The server's state of a lock.
type ServerLock = (String, Inspection);

/// A guard that is checked until it is released, lost or dropped.
pub(crate) struct CheckedGuard {
    record: Arc<Record>,
    number: u64,
    guard: Option<Arc<AnyGuard>>,
}

impl Record {
    /// Writes a line of the trace.
    pub(crate) fn log(&self, at: Duration, client: &str, what: impl fmt::Display) {
        let mut state = lock(&self.state);
        // Writing to a string does not fail.
        let _ = writeln!(state.trace, "{:>10.3} ms  {client:<12} {what}", at.as_secs_f64() * 1e3);
    }

    /// Counts a case that a simulation should come across now and then.
    pub(crate) fn count(&self, what: &'static str) {
        *lock(&self.state).seen.entry(what).or_insert(0) += 1;
    }

    /// Records a broken rule. The trace omits what follows.
    pub(crate) fn violated(&self, rule: Rule, at: Duration, what: impl fmt::Display) {
        let first = lock(&self.state).violations.insert(rule);
        if first {
            self.log(at, VIOLATION, format_args!("{rule:?}: {what}"));
        }
    }

    /// The server has lost its data.
    pub(crate) fn data_lost(&self, at_us: u64) {
        lock(&self.state).lost_us = at_us;
    }

    /// Whether the server may have lost, with its data, a session that does not know so yet: its heartbeats were
    /// late or lost since, and locks that its process acquires meanwhile are lost with it.
    pub(crate) fn may_have_forgotten_a_session(&self, at: Duration) -> bool {
        let lost_us = lock(&self.state).lost_us;
        lost_us > 0 && server_time_us(at) < lost_us + FORGOTTEN_FOR_US
    }

    /// No new fault begins from now on.
    pub(crate) fn faults_ended(&self, at: Duration) {
        lock(&self.state).faults_ended_at = Some(at);
    }

    /// A session has sent a heartbeat.
    pub(crate) fn heartbeats(&self, at: Duration, session: SessionId) {
        lock(&self.state).heartbeats.insert(session, at);
    }

    /// Whether no heartbeat of a session with these locks has arrived since the faults ended: an earlier fault
    /// may still end it.
    pub(crate) fn may_lapse_yet(&self, locks: &[(String, FencingToken)]) -> bool {
        let state = lock(&self.state);
        let holds = |(name, fence): &(String, FencingToken)| {
            state.granted.get(&(name.clone(), state.known_as(name, *fence))).into_iter().flatten()
        };
        let heartbeats = |hold: &HoldId| state.heartbeats.get(&hold.session()).copied();
        locks.iter().flat_map(holds).any(|hold| heartbeats(hold) < state.faults_ended_at)
    }

    /// A guard was acquired, for one lock or several. It is checked from now on.
    pub(crate) fn acquired(
        self: &Arc<Self>,
        at: Duration,
        host_clock: HostClock,
        client: &str,
        guard: AnyGuard,
    ) -> CheckedGuard {
        let guard = Arc::new(guard);
        let entry = Entry { client: client.to_owned(), host_clock, guard: Arc::clone(&guard) };
        let (number, not_grown) = {
            let mut state = lock(&self.state);
            state.entries += 1;
            let number = state.entries;
            state.held.insert(number, entry.clone());
            state.note_delay(at, &guard);
            let handed_off = guard.locks().iter().any(|token| state.known_as.contains_key(token));
            if handed_off {
                *state.seen.entry("handed off").or_insert(0) += 1;
            }
            (number, state.not_grown(&entry, at))
        };
        for (name, fence, last) in not_grown {
            self.violated(Rule::Tokens, at, format_args!("{client}: {name} by token {fence}, after {last}"));
        }
        self.check_exclusion(at);
        CheckedGuard { record: Arc::clone(self), number, guard: Some(guard) }
    }

    /// The server has executed an operation: records the grants.
    pub(crate) fn executed(&self, at: Duration, key: &str, op: &Op, reply: &Reply, wakes: &[Notification]) {
        let mut state = lock(&self.state);
        match (op, reply) {
            (Op::Acquire(ask), Reply::Acquire(acquired)) => state.asked(key, ask, acquired),
            (Op::Extend(extend), Reply::Extend(Extended::Reserved { block, .. })) => {
                state.reserved(key, extend.claim.hold, *block);
            }
            (Op::Release(release), Reply::Release(released)) => {
                state.ended.extend(Some(release.claim.hold).filter(|_| released.status == HoldStatus::Held));
                if let (Some(ask), Some(Ok(acquired))) = (&release.next, &released.next) {
                    state.asked(key, ask, acquired);
                }
            }
            _ => {}
        }
        for wake in wakes.iter().filter(|wake| matches!(wake, Notification::Grant { .. })) {
            state.grant_times.insert((key.to_owned(), wake.fence()), at);
            if let Some(hold) = state.queued.get(&(key.to_owned(), wake.to())).copied() {
                state.granted.entry((key.to_owned(), wake.fence())).or_default().insert(hold);
            }
        }
    }

    /// The server has received a request for several locks at once.
    pub(crate) fn multi_executed(&self, asks: &[(String, Acquire)], shares: &[MultiAcquired]) {
        let mut state = lock(&self.state);
        for ((key, ask), share) in asks.iter().zip(shares) {
            if let MultiAcquired::Acquired(acquired) = share {
                state.asked(key, ask, acquired);
            }
        }
        *state.seen.entry("asked together").or_insert(0) += 1;
    }

    /// The release of a guard has returned; `released` is its result if it was executed.
    pub(crate) fn given_back(
        &self,
        locks: &[(String, FencingToken)],
        begun: Duration,
        released: Option<&Released>,
    ) {
        let mut state = lock(&self.state);
        for (name, fence) in locks {
            let token = (name.clone(), state.known_as(name, *fence));
            // An owner that re-entered has several holds by one token; which of them this was is not known.
            let holds = state.granted.get(&token).filter(|holds| holds.len() == 1);
            if let Some(hold) = holds.and_then(BTreeSet::first).copied() {
                // Some holds of a set may be kept, and given up by another task while the rest is released; also if
                // the release of one of them has failed. That task's release may still be under way. A hold that
                // was not kept is given up when the release of the set begins.
                let given_up_at = state.given_up.get(&hold);
                let is_over = if locks.len() > 1 {
                    state.ended.contains(&hold) && given_up_at.is_some_and(|at| *at <= begun)
                } else {
                    given_up_at.is_some()
                };
                if (released.is_some() || locks.len() > 1) && !is_over {
                    *state.seen.entry("kept").or_insert(0) += 1;
                    continue;
                }
                state.given_back.insert(hold);
                if released.is_none() {
                    state.unanswered.insert(hold);
                }
                if locks.len() > 1 {
                    *state.seen.entry("given back of a set").or_insert(0) += 1;
                }
                *state.seen.entry("given back").or_insert(0) += 1;
            }
            if released == Some(&Released::NoLongerHeld) {
                state.over.insert(token);
            }
        }
    }

    /// A client sends something about a hold, and has opened that many connections so far.
    pub(crate) fn sent(&self, at: Duration, hold: HoldId, kind: RequestKind, opened: u64) {
        let too_late = {
            let mut state = lock(&self.state);
            if kind == RequestKind::Release {
                state.given_up.entry(hold).or_insert(at);
                state.opened_before.entry(hold).or_insert(opened);
            }
            // The store of a new connection may have the hold again.
            let has_reconnected = state.opened_before.get(&hold).is_some_and(|before| *before < opened);
            let goes_on =
                kind == RequestKind::Release && (state.unanswered.contains(&hold) || has_reconnected);
            state.given_back.contains(&hold) && !goes_on
        };
        if too_late {
            self.violated(
                Rule::Silence,
                at,
                format_args!("something is sent about {hold:?} after its release"),
            );
        }
    }

    /// Checks all guards at a true time against the server's state of its locks (1, 2, 5).
    pub(crate) fn check(&self, at: Duration, server: &[ServerLock]) {
        self.check_exclusion(at);
        self.check_belief(at, server);
        for (name, seen) in server {
            let Some(fence) = seen.holder.as_ref().and_then(|holder| holder.fence) else { continue };
            let over = lock(&self.state).over.contains(&(name.clone(), fence));
            if over {
                self.violated(
                    Rule::Returned,
                    at,
                    format_args!("{name} is held by {fence}, which was released"),
                );
            }
        }
    }

    fn check_belief(&self, at: Duration, server: &[ServerLock]) {
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for Entry { client, guard, .. } in self.believed(at) {
            let locks = self.known_as(guard.locks());
            let backed =
                locks.iter().filter(|(name, fence)| has(server, name, *fence, guard.owner())).count();
            if backed < locks.len() {
                self.violated(Rule::Belief, at, format_args!("{client}: {locks:?}, but server: {server:?}"));
            }
            if (1..locks.len()).contains(&backed) {
                self.violated(
                    Rule::AllOrNone,
                    at,
                    format_args!("{client}: {backed} of {locks:?}: {server:?}"),
                );
            }
            if guard.owner().is_some() {
                for (name, _) in locks {
                    *counts.entry(name).or_insert(0) += 1;
                }
            }
        }
        for (name, count) in counts {
            let counted = lock_at(server, &name).and_then(|seen| seen.holder.as_ref());
            let counted = counted.map_or(0, |holder| holder.count);
            if counted < count {
                self.violated(
                    Rule::Count,
                    at,
                    format_args!("{name} has {count} holds, and {counted} are counted"),
                );
            }
        }
    }

    fn check_exclusion(&self, at: Duration) {
        let mut holders: BTreeMap<String, (String, Option<Owner>, FencingToken)> = BTreeMap::new();
        for Entry { client, guard, .. } in self.believed(at) {
            for (name, fence) in guard.locks() {
                let owner = guard.owner().cloned();
                let Some((other, others, token)) =
                    holders.insert(name.clone(), (client.clone(), owner.clone(), fence))
                else {
                    continue;
                };
                if owner.is_none() || owner != others {
                    self.violated(Rule::Exclusion, at, format_args!("{other} and {client} hold {name}"));
                } else if token != fence {
                    let what = format_args!("{owner:?} has {name} by {token} and {fence}");
                    self.violated(Rule::OneToken, at, what);
                } else {
                    self.count(if *other == *client { "held twice" } else { "held by two" });
                }
            }
        }
    }

    /// The locks of a guard, each by the token by which the server knows its hold.
    fn known_as(&self, locks: Vec<(String, FencingToken)>) -> Vec<(String, FencingToken)> {
        let state = lock(&self.state);
        let known_as = |(name, fence): (String, FencingToken)| {
            let fence = state.known_as(&name, fence);
            (name, fence)
        };
        locks.into_iter().map(known_as).collect()
    }

    /// The guards that would pass their `check()` at a true time, except those from before a loss of data.
    fn believed(&self, at: Duration) -> Vec<Entry> {
        let state = lock(&self.state);
        let is_current =
            |entry: &&Entry| entry.guard.locks().iter().all(|(_, fence)| fence.as_u64() > state.lost_us);
        state.held.values().filter(|entry| entry.is_believed(at)).filter(is_current).cloned().collect()
    }

    /// The trace, and how often each case occurred.
    pub(crate) fn into_parts(self) -> (String, BTreeMap<&'static str, u64>, BTreeSet<Rule>) {
        let state = self.state.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        (state.trace, state.seen, state.violations)
    }
}

impl State {
    fn asked(&mut self, key: &str, ask: &Acquire, acquired: &Acquired) {
        let hold = ask.claim.hold;
        // A late request of an earlier hold does not queue.
        if ask.queue.is_some() && !matches!(acquired, Acquired::AlreadyEnded(_)) {
            self.queued.insert((key.to_owned(), hold.session()), hold);
        }
        if let Acquired::Granted { fence, .. } = acquired {
            self.granted.entry((key.to_owned(), *fence)).or_default().insert(hold);
        }
    }

    /// Tokens were reserved for a hold.
    fn reserved(&mut self, key: &str, hold: HoldId, mut block: TokenBlock) {
        let of_it = |((name, fence), holds): (&(String, FencingToken), &BTreeSet<HoldId>)| {
            (name == key && holds.contains(&hold)).then_some(*fence)
        };
        let Some(given) = self.granted.iter().rev().find_map(of_it) else { return };
        while let Some(token) = block.pop_first() {
            self.known_as.insert((key.to_owned(), token), given);
        }
    }

    /// The token by which the server knows a hold.
    fn known_as(&self, name: &str, fence: FencingToken) -> FencingToken {
        self.known_as.get(&(name.to_owned(), fence)).copied().unwrap_or(fence)
    }

    /// Counts whether a task learned in time that it had been granted a lock. Sets are left out: one of their locks
    /// may have been granted long before the rest.
    fn note_delay(&mut self, at: Duration, guard: &AnyGuard) {
        let [token] = &*guard.locks() else { return };
        if let Some(granted_at) = self.grant_times.remove(token) {
            let how = if at <= granted_at + MESSAGE { "notified in time" } else { "notified late" };
            *self.seen.entry(how).or_insert(0) += 1;
        }
    }

    /// The tokens of a guard that are not greater than the last ones, and those (3). An owner that already holds a
    /// lock re-enters it with the same token.
    fn not_grown(&mut self, entry: &Entry, at: Duration) -> Vec<(String, u64, u64)> {
        let mut not_grown = Vec::new();
        if !entry.is_believed(at) {
            return not_grown;
        }
        let owner = entry.guard.owner();
        for (name, fence) in entry.guard.locks() {
            let fence = fence.as_u64();
            // Granted before the loss, and learned of only now: at most a first lease has passed since.
            let excused = (self.lost_us.saturating_sub(3_000_000)..=self.lost_us).contains(&fence);
            let last = self.tokens.entry(name.clone()).or_insert((0, None));
            let same = fence == last.0 && owner.is_some() && owner == last.1.as_ref();
            if fence > last.0 || excused {
                *last = (last.0.max(fence), owner.cloned());
            } else if !same {
                not_grown.push((name, fence, last.0));
            }
        }
        not_grown
    }
}

/// The server's state of a lock.
fn lock_at<'a>(server: &'a [ServerLock], name: &str) -> Option<&'a Inspection> {
    server.iter().find(|(key, _)| key == name).map(|(_, seen)| seen)
}

/// Whether the server has the lock held by that token, and by that owner if there is one.
fn has(server: &[ServerLock], name: &str, fence: FencingToken, owner: Option<&Owner>) -> bool {
    let holder = lock_at(server, name).and_then(|seen| seen.holder.as_ref());
    holder.is_some_and(|holder| {
        let owner_there = holder.owner.as_ref().map(leasehold_core::OwnValue::as_str);
        holder.fence == Some(fence) && owner.is_none_or(|owner| owner_there == Some(owner.as_str()))
    })
}

impl Entry {
    /// Whether `check()` would pass at a true time.
    fn is_believed(&self, at: Duration) -> bool {
        let until: Moment = self.guard.valid_until();
        self.host_clock.at(at) < until
    }
}

impl CheckedGuard {
    /// The guard.
    pub(crate) fn guard(&self) -> &AnyGuard {
        self.guard.as_ref().expect("present until `into_guard` consumes this value")
    }

    /// The guard, to be released: from now on no task relies on it.
    pub(crate) fn into_guard(mut self) -> Option<AnyGuard> {
        drop(lock(&self.record.state).held.remove(&self.number));
        self.guard.take().and_then(Arc::into_inner)
    }
}

impl Drop for CheckedGuard {
    fn drop(&mut self) {
        let entry = lock(&self.record.state).held.remove(&self.number);
        // Not under the mutex: dropping the last reference to the guard releases the lock.
        drop(entry);
    }
}
