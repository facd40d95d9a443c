//! A granted lock is taken up, and a free lock is granted.

use super::session_ends::SessionEnds;
use super::{Check, CheckContext, CheckResult, Health, POLL_INTERVAL};
use crate::event::{Event, Execution, GuardId, Held, HostEvent, LockId, ServerEvent, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquire, Acquired, Evicted, FencingToken, ForceReleased, HoldId, Inspect, Op, ReleaseAction, Reply,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a healthy process may take to notice a grant: a few round trips.
const TAKEN_UP_WITHIN: Duration = Duration::from_millis(150);

/// The remaining time from which on a hold is worth taking up: a fifth of the first lease, and a margin.
const WORTH_TAKING_UP: Duration = Duration::from_millis(700);

/// How long a lapsed session may stay ahead of a healthy waiter, which checks a new predecessor within 300 ms, and
/// again once it must have lapsed.
const EVICTED_WITHIN: Duration = Duration::from_millis(500);

/// How long a waiter may take to notice a new predecessor, which is not notified. With four processes, the queue has
/// at most three entries before it.
const PREDECESSOR_NOTICED_WITHIN: Duration = Duration::from_millis(1800);

/// How long waiters may take to find a lock that expired or was left free.
const FOUND_WITHIN: Duration = POLL_INTERVAL;

/// For locks with one holder (see [`SharedProgress`](super::SharedProgress) for the others). No wake-up is lost: a
/// healthy process takes up a grant at once; a free lock with waiters is found; waiters poll; no operation that can
/// grant the lock leaves it free; the queue entry of a polling waiter does not expire. The first waiter evicts the
/// holds and queue entries of a lapsed session ahead of it.
#[derive(Debug, Default)]
pub struct Progress {
    locks: BTreeMap<LockId, LockView>,
    local_waiters: BTreeMap<(HostId, LockId), LocalWaiters>,
    /// Holds requested by late or duplicate messages. No client relies on them.
    stale_holds: BTreeSet<HoldId>,
    /// Holds that were given up.
    given_up: BTreeSet<HoldId>,
    /// When a queue entry was created or refreshed last.
    polled: BTreeMap<HoldId, Instant>,
    /// Until when each guard of a process is valid.
    valid_until: BTreeMap<(HostId, LockId), BTreeMap<GuardId, Instant>>,
    /// The last hold for which a process queued. Only the grant of this hold has to be noticed: a grant of an earlier
    /// one is void, and any other grant is the reply to its own request.
    queued_hold: BTreeMap<(HostId, LockId), HoldId>,
    /// When a process last sent a request about a lock.
    last_activity: BTreeMap<(HostId, LockId), Instant>,
    session_ends: SessionEnds,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct LockView {
    grant: Option<Grant>,
    /// Set while a foreign client holds it.
    is_foreign: bool,
    /// When it became free, or will; `None` if it never does.
    free_from: Option<Instant>,
    waiting: Vec<QueuedWaiter>,
    /// The predecessor of each entry whose hold or entry ends with its session.
    predecessors: BTreeMap<HoldId, Predecessor>,
}

/// The predecessor of an entry.
#[derive(Debug, Clone, Copy)]
struct Predecessor {
    hold: HoldId,
    since: Instant,
    /// Until when it is not evicted although the store does not know its session.
    spared_until: Instant,
}

/// An unexpired queue entry.
#[derive(Debug, Clone, Copy)]
struct QueuedWaiter {
    host: HostId,
    hold: HoldId,
    /// When it expires.
    until: Instant,
}

#[derive(Debug)]
struct Grant {
    hold: HoldId,
    /// When it ends; `None` if it never does.
    until: Option<Instant>,
    fence: FencingToken,
    host: HostId,
    since: Instant,
}

/// The waiting tasks of a process.
#[derive(Debug)]
struct LocalWaiters {
    tasks: Vec<TaskId>,
    /// Those that acquire it together with other locks. Their holds are not visible until they have all.
    with_others: BTreeSet<TaskId>,
    /// When it changed last.
    changed: Instant,
}

impl Progress {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        if let Op::Release(release) = done.op {
            self.given_up.insert(release.claim.hold);
        }
        if let Some((request, _)) = done.acquires()
            && (done.is_stale || self.given_up.contains(&request.claim.hold))
        {
            self.stale_holds.insert(request.claim.hold);
        }
        let view = self.locks.entry(done.lock).or_default();
        let was_free = view.free_from;
        view.free_from = match &done.state.value {
            None => Some(was_free.map_or(at, |since| since.min(at))),
            Some(value) => value.expires_ms.map(|at_ms| done.clock.shows_at((at_ms + 1) * 1000)),
        };
        let holds = done.holds(at);
        view.is_foreign &= done.state.value.is_some() && holds.is_empty();
        let first = holds.first().filter(|held| !self.stale_holds.contains(&held.hold));
        view.grant = match (first, view.grant.take()) {
            (Some(held), Some(grant)) if (grant.hold, grant.fence) == (held.hold, held.fence) => {
                Some(Grant { until: held.until, ..grant })
            }
            (Some(Held { hold, fence, until, .. }), _) => {
                let (hold, fence, until, since) = (*hold, *fence, *until, at);
                context.host(hold.session()).map(|host| Grant { hold, until, fence, host, since })
            }
            (None, _) => None,
        };
        let now_ms = done.clock.reading_us(at) / 1000;
        let entries = done.state.record.iter().flat_map(|record| record.entries.iter());
        let kept = entries.filter(|(_, waiter)| waiter.expires_ms >= now_ms);
        let waiting = kept.filter_map(|(session, waiter)| {
            let until = done.clock.shows_at((waiter.expires_ms + 1) * 1000);
            Some(QueuedWaiter { host: context.host(session.session())?, hold: waiter.claim.hold, until })
        });
        view.waiting = waiting.collect();
        view.predecessors = predecessors(at, done, &view.predecessors);
        if let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires() {
            self.polled.insert(request.claim.hold, at);
        }
        if is_left_free(done) && !context.may_leave_free {
            return Err(format!("{} is left free, and no release requested that", done.lock));
        }
        if done.state.value.is_none() && !view.waiting.is_empty() && may_grant(done) {
            return Err(format!("{} is left free although {:?} wait", done.lock, view.waiting));
        }
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent) {
        self.record_validity(task, lock, what);
        let (tasks, with_others) = (Vec::new(), BTreeSet::new());
        let waiters = LocalWaiters { tasks, with_others, changed: at };
        let waiters = self.local_waiters.entry((task.host, lock)).or_insert(waiters);
        match what {
            TaskEvent::Acquiring(method, _) if method.is_queued() => waiters.tasks.push(task),
            TaskEvent::Acquiring(method, _) if method.is_multi_acquire() => {
                waiters.with_others.insert(task);
            }
            TaskEvent::Acquired(..)
            | TaskEvent::NotAcquired(_)
            | TaskEvent::Cancelled
            | TaskEvent::Admitted => {
                waiters.tasks.retain(|other| *other != task);
                waiters.with_others.remove(&task);
            }
            TaskEvent::Acquiring(..) | TaskEvent::Releasing(..) | TaskEvent::Released(..) => {}
            TaskEvent::ValidityChanged(..)
            | TaskEvent::Converting(_)
            | TaskEvent::LossReported(..)
            | TaskEvent::Proclaiming(..)
            | TaskEvent::Proclaimed(..)
            | TaskEvent::Extending(_)
            | TaskEvent::Extended(..) => return,
        }
        waiters.changed = at;
    }

    /// Records which tasks rely on holding the lock.
    fn record_validity(&mut self, task: TaskId, lock: LockId, what: TaskEvent) {
        let guards = self.valid_until.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquired(guard_id, new_guard) => {
                // If another lock of the same guard was lost, it is held until its release.
                guards.insert(
                    guard_id,
                    if new_guard.is_multi { Instant(u64::MAX) } else { new_guard.validity.until },
                );
            }
            TaskEvent::ValidityChanged(guard_id, validity) => {
                guards.entry(guard_id).and_modify(|until| {
                    if *until != Instant(u64::MAX) {
                        *until = validity.until;
                    }
                });
            }
            TaskEvent::Releasing(guard_id, _) => drop(guards.remove(&guard_id)),
            _ => {}
        }
    }

    /// Since when tasks of a healthy process wait, and none relies on holding the lock.
    fn waiting_since(
        &self,
        at: Instant,
        host: HostId,
        lock: LockId,
        context: &CheckContext,
    ) -> Option<Instant> {
        let is_eager = |waiters: &&LocalWaiters| !waiters.tasks.is_empty() && waiters.with_others.is_empty();
        let waiters = self.local_waiters.get(&(host, lock)).filter(is_eager)?;
        let guards = self.valid_until.get(&(host, lock)).into_iter().flat_map(BTreeMap::values);
        let valid_until = guards.max().copied().unwrap_or_default();
        if at < valid_until {
            return None;
        }
        Some(
            context
                .health(host)
                .and_then(Health::waiters_healthy_since)?
                .max(waiters.changed)
                .max(valid_until),
        )
    }

    /// No waiter waits behind a lapsed session.
    fn check_dead_predecessors(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        for QueuedWaiter { host, hold, until } in view.waiting.iter().filter(|waiter| at < waiter.until) {
            let Some(predecessor) = view.predecessors.get(hold) else { continue };
            let session = predecessor.hold.session();
            let Some(end) = self.session_ends.get(session) else { continue };
            let is_known = self.session_ends.is_known(session);
            let ended_at = if is_known { end.at } else { end.at.max(predecessor.spared_until) };
            let is_foreseeable = context.promises.clocks && !end.is_explicit;
            let within = if is_foreseeable { EVICTED_WITHIN } else { POLL_INTERVAL };
            if view.free_from.is_some_and(|free| free <= at)
                || self.queued_hold.get(&(*host, lock)) != Some(hold)
            {
                continue;
            }
            let Some(waiting) = self.waiting_since(at, *host, lock, context) else { continue };
            // A late reply counts from its arrival.
            let is_informed = self.polled.get(hold).is_some_and(|polled| waiting <= *polled);
            let since = if is_informed { predecessor.since } else { predecessor.since.max(waiting) };
            if at > waiting.max(since + PREDECESSOR_NOTICED_WITHIN).max(ended_at) + within {
                return Err(format!(
                    "{host} waits for {lock} until {until} behind {session} since {since}, which lapsed at {ended_at}"
                ));
            }
        }
        Ok(())
    }

    fn check_overdue(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        // A short hold lasts longer once the store's clock is set back.
        let within =
            if context.promises.clocks { TAKEN_UP_WITHIN } else { TAKEN_UP_WITHIN + WORTH_TAKING_UP };
        if let Some(grant) = view.grant.as_ref().filter(|grant| context.guards.of(&grant.hold).is_none())
            && self.queued_hold.get(&(grant.host, lock)) == Some(&grant.hold)
            && let Some(waiting) = self.waiting_since(at, grant.host, lock, context)
            && at > waiting.max(grant.since) + within
            && grant.until.is_none_or(|until| waiting.max(grant.since) + WORTH_TAKING_UP < until)
        {
            let since = grant.since;
            return Err(format!("{} has not noticed that it was granted {lock} at {since}", grant.host));
        }
        for waiter in &view.waiting {
            let QueuedWaiter { host, hold, until } = *waiter;
            let Some(waiting) = self.waiting_since(at, host, lock, context) else { continue };
            let polled = self.polled.get(&hold).copied();
            if at > until
                && self.queued_hold.get(&(host, lock)) == Some(&hold)
                && polled.is_some_and(|at| waiting <= at)
            {
                return Err(format!("{host} waits for {lock}, and its queue entry expired at {until}"));
            }
            if let Some(free) = view.free_from.filter(|free| at > waiting.max(*free) + FOUND_WITHIN)
                && at < until
            {
                return Err(format!("{lock} is free since {free}, and {host} waits for it until {until}"));
            }
        }
        Ok(())
    }
}

/// The sessions directly ahead of each waiter: in the queue, or holding the lock.
fn predecessors(
    at: Instant,
    done: &Execution<'_>,
    before: &BTreeMap<HoldId, Predecessor>,
) -> BTreeMap<HoldId, Predecessor> {
    let Some(record) = &done.state.record else { return BTreeMap::new() };
    let holder = done.holds(at).into_iter().next();
    let spared_ms = holder.as_ref().and_then(|held| done.session_spared_until_ms(held.hold.session(), at));
    let holder_spared = spared_ms.map_or(at, |ms| done.clock.shows_at((ms + 1) * 1000));
    let holder = holder.map(|held| (held.hold, held.liveness));
    let entries = record.tickets.values().filter_map(|session| record.entries.get(session));
    let chain: Vec<_> =
        holder.into_iter().chain(entries.map(|waiter| (waiter.claim.hold, waiter.liveness))).collect();
    let pairs = chain.windows(2).filter(|pair| pair[0].1.ends_with_session());
    pairs
        .map(|pair| {
            let (predecessor, waiter) = (pair[0].0, pair[1].0);
            let old = before.get(&waiter).filter(|old| old.hold == predecessor);
            let is_holder = holder.is_some_and(|(hold, _)| hold == predecessor);
            let spared_until = if is_holder { holder_spared } else { at };
            let since = old.map_or(at, |old| old.since);
            (waiter, Predecessor { hold: predecessor, since, spared_until })
        })
        .collect()
}

/// Whether a release requests that the lock is left free.
fn is_left_free(done: &Execution<'_>) -> bool {
    matches!(done.op, Op::Release(release) if release.action == ReleaseAction::Free)
}

/// Whether an operation grants the lock if it finds it free.
fn may_grant(done: &Execution<'_>) -> bool {
    match (done.op, done.reply) {
        (Op::Acquire(_), Reply::Acquire(reply)) => {
            !done.in_multi_acquire && !matches!(reply, Acquired::AlreadyEnded(_))
        }
        (Op::Evict(_), Reply::Evict(Evicted::Removed { .. }))
        | (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released)) => true,
        (Op::Release(release), Reply::Release(released)) => {
            release.action == ReleaseAction::Grant
                && !matches!(released.next, Some(Ok(Acquired::AlreadyEnded(_)) | Err(_)))
        }
        _ => false,
    }
}

impl Check for Progress {
    fn name(&self) -> &'static str {
        "progress"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => {
                self.session_ends.update(at, done.sessions, done.clock);
                if !context.is_shared(done.lock) {
                    return self.executed(at, done, context);
                }
            }
            Event::SessionExecuted(done) => self.session_ends.update(at, done.sessions, done.clock),
            Event::Sent { host, lock, op, .. } if !context.is_shared(lock) => {
                // An inspection requests nothing.
                if !matches!(op, Op::Inspect(Inspect { claim: None, .. })) {
                    self.last_activity.insert((host, lock), at);
                }
                let next = match op {
                    Op::Acquire(request) => Some(request),
                    Op::Release(release) => release.next.as_ref(),
                    _ => None,
                };
                // A test for re-entry does not depend on a queue entry.
                let is_queued = |request: &&Acquire| request.queue.is_some() || !context.is_reentrant(lock);
                if let Some(request) = next.filter(is_queued) {
                    self.queued_hold.insert((host, lock), request.claim.hold);
                }
            }
            Event::Task(task, lock, what) if !context.is_shared(lock) => self.change(at, task, lock, what),
            Event::Host(host, HostEvent::Crashed) => {
                self.local_waiters.retain(|(waiters, _), _| *waiters != host);
            }
            Event::Foreign(lock, Some(until)) => {
                let view = self.locks.entry(lock).or_default();
                view.free_from = Some(until);
                view.grant = None;
                view.is_foreign = true;
            }
            // One of our clients may have evicted it before.
            Event::Foreign(lock, None) => {
                let view = self.locks.entry(lock).or_default();
                if view.is_foreign {
                    view.free_from = view.free_from.map(|free| free.min(at));
                }
            }
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() || matches!(what, ServerEvent::Deleted(_)) => {
                self.locks.clear();
                self.polled.clear();
                self.session_ends.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (host, lock) in self.local_waiters.keys() {
            let last_activity = self.last_activity.get(&(*host, *lock)).copied().unwrap_or_default();
            let waiting = self.waiting_since(at, *host, *lock, context);
            if waiting.is_some_and(|waiting| at > waiting.max(last_activity) + FOUND_WITHIN) {
                return Err(format!(
                    "{host} waits for {lock}, and has sent no request for it since {last_activity}"
                ));
            }
        }
        self.locks.iter().try_for_each(|(lock, view)| {
            self.check_dead_predecessors(at, *lock, view, context)?;
            self.check_overdue(at, *lock, view, context)
        })
    }
}
