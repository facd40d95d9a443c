//! A granted lock is taken up, and a free lock is granted.

use super::{Check, CheckContext, CheckResult, Health, LOOK};
use crate::event::{
    Event, Execution, GuardId, Held, HostEvent, LockId, ServerEvent, TaskEvent, TaskId, ends,
};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquire, Acquired, Evicted, FencingToken, ForceReleased, HoldId, Inspect, Op, ReleaseAction, Reply,
    SessionId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a grant may go unnoticed by a process that is well: a few round trips.
const TAKEN_WITHIN: Duration = Duration::from_millis(150);

/// The remaining time of a hold worth taking up: a fifth of the first lease, and a margin.
const WORTH_TAKING: Duration = Duration::from_millis(700);

/// How long a lapsed session may stay ahead of a healthy waiter, which checks a new predecessor within 300 ms, and
/// again once it must have lapsed.
const BURIED_WITHIN: Duration = Duration::from_millis(500);

/// How long a waiter may take to notice a new predecessor, which is not notified. With four processes, the queue has
/// at most three entries before it.
const SEEN_WITHIN: Duration = Duration::from_millis(1800);

/// How long waiters may take to find a lock that expired or was left free.
const FOUND_WITHIN: Duration = LOOK;

/// For locks with one holder (see [`SharedProgress`](super::SharedProgress) for the others). No wake-up is lost: a
/// healthy process takes up a grant at once; a free lock with waiters is found; waiters poll; no operation that can
/// grant the lock leaves it free; the queue entry of a polling waiter does not expire. The first waiter evicts the
/// holds and queue entries of a lapsed session ahead of it.
#[derive(Debug, Default)]
pub struct Progress {
    locks: BTreeMap<LockId, ObservedHolder>,
    lines: BTreeMap<(HostId, LockId), Line>,
    /// Holds requested by late or duplicate messages. No client relies on them.
    ghosts: BTreeSet<HoldId>,
    /// Holds that were given up.
    given_up: BTreeSet<HoldId>,
    /// When a queue entry was created or refreshed last.
    looked: BTreeMap<HoldId, Instant>,
    /// Until when a process believes that it has a lock, by each of its guards.
    believed: BTreeMap<(HostId, LockId), BTreeMap<GuardId, Instant>>,
    /// The hold that a process queued for last. It knows nothing of other grants, or learns of them at once.
    asked: BTreeMap<(HostId, LockId), HoldId>,
    /// When a process was last busy with a lock at the store.
    busy: BTreeMap<(HostId, LockId), Instant>,
    /// When sessions end at the store.
    ends: BTreeMap<SessionId, Instant>,
    /// When sessions ended that the store has forgotten, and whether they were ended explicitly, which no waiter can
    /// foresee.
    gone: BTreeMap<SessionId, (Instant, bool)>,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct ObservedHolder {
    grant: Option<Grant>,
    /// Set while a foreign client holds it.
    is_strangers: bool,
    /// When it became free, or will; `None` if it never does.
    free_from: Option<Instant>,
    waiting: Vec<Partition>,
    /// The entries directly behind a session, and since when.
    behind: BTreeMap<HoldId, Predecessor>,
}

/// The predecessor of an entry.
#[derive(Debug, Clone, Copy)]
struct Predecessor {
    hold: HoldId,
    since: Instant,
    /// Until when it is spared, where the store does not know its session.
    spared_until: Instant,
}

/// An unexpired queue entry.
#[derive(Debug, Clone, Copy)]
struct Partition {
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
struct Line {
    tasks: Vec<TaskId>,
    /// Those that acquire it together with other locks. What they hold meanwhile is not visible.
    with_others: BTreeSet<TaskId>,
    /// When it changed last.
    changed: Instant,
}

impl Progress {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        if let Op::Release(release) = done.op {
            self.given_up.insert(release.claim.hold);
        }
        if let Some((ask, _)) = done.acquires()
            && (done.out_of_time || self.given_up.contains(&ask.claim.hold))
        {
            self.ghosts.insert(ask.claim.hold);
        }
        let seen = self.locks.entry(done.lock).or_default();
        let was_free = seen.free_from;
        seen.free_from = match &done.state.value {
            None => Some(was_free.map_or(at, |since| since.min(at))),
            Some(value) => value.expires_ms.map(|at_ms| done.clock.shows_at((at_ms + 1) * 1000)),
        };
        let holds = done.holds(at);
        seen.is_strangers &= done.state.value.is_some() && holds.is_empty();
        let first = holds.first().filter(|held| !self.ghosts.contains(&held.hold));
        seen.grant = match (first, seen.grant.take()) {
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
        let places = done.state.record.iter().flat_map(|record| record.entries.iter());
        let kept = places.filter(|(_, place)| place.expires_ms >= now_ms);
        let waiting = kept.filter_map(|(session, place)| {
            let until = done.clock.shows_at((place.expires_ms + 1) * 1000);
            Some(Partition { host: context.host(session.session())?, hold: place.claim.hold, until })
        });
        seen.waiting = waiting.collect();
        seen.behind = behind(at, done, &seen.behind);
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires() {
            self.looked.insert(ask.claim.hold, at);
        }
        if is_freed(done) && !context.shares {
            return Err(format!("{} is left free, and no release requested that", done.lock));
        }
        if done.state.value.is_none() && !seen.waiting.is_empty() && may_grant(done) {
            return Err(format!("{} is left free, and {:?} wait", done.lock, seen.waiting));
        }
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent) {
        self.believe(task, lock, what);
        let (tasks, with_others) = (Vec::new(), BTreeSet::new());
        let line = Line { tasks, with_others, changed: at };
        let line = self.lines.entry((task.host, lock)).or_insert(line);
        match what {
            TaskEvent::Acquiring(way, _) if way.is_in_line() => line.tasks.push(task),
            TaskEvent::Acquiring(way, _) if way.is_for_several() => drop(line.with_others.insert(task)),
            TaskEvent::Acquired(..)
            | TaskEvent::NotAcquired(_)
            | TaskEvent::Cancelled
            | TaskEvent::Admitted => {
                line.tasks.retain(|other| *other != task);
                line.with_others.remove(&task);
            }
            TaskEvent::Acquiring(..) | TaskEvent::Releasing(..) | TaskEvent::Released(..) => {}
            TaskEvent::ValidityChanged(..)
            | TaskEvent::Converting(_)
            | TaskEvent::LossReported(..)
            | TaskEvent::Extends(_)
            | TaskEvent::Extended(..) => return,
        }
        line.changed = at;
    }

    /// Records which tasks rely on holding the lock.
    fn believe(&mut self, task: TaskId, lock: LockId, what: TaskEvent) {
        let guards = self.believed.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquired(guard_id, gain) => {
                // If another lock of the same guard was lost, it is held until its release.
                guards.insert(guard_id, if gain.together { Instant(u64::MAX) } else { gain.belief.until });
            }
            TaskEvent::ValidityChanged(guard_id, belief) => {
                guards.entry(guard_id).and_modify(|until| {
                    if *until != Instant(u64::MAX) {
                        *until = belief.until;
                    }
                });
            }
            TaskEvent::Releasing(guard_id, _) => drop(guards.remove(&guard_id)),
            _ => {}
        }
    }

    /// Since when tasks of a healthy process wait, and none relies on holding the lock.
    fn eager_since(
        &self,
        at: Instant,
        host: HostId,
        lock: LockId,
        context: &CheckContext,
    ) -> Option<Instant> {
        let is_eager = |line: &&Line| !line.tasks.is_empty() && line.with_others.is_empty();
        let line = self.lines.get(&(host, lock)).filter(is_eager)?;
        let guards = self.believed.get(&(host, lock)).into_iter().flat_map(BTreeMap::values);
        let believed = guards.max().copied().unwrap_or_default();
        if at < believed {
            return None;
        }
        Some(context.health(host).and_then(Health::waiters_well_since)?.max(line.changed).max(believed))
    }

    /// Takes note of the sessions that the store knows.
    fn sessions(&mut self, at: Instant, ends: BTreeMap<SessionId, Instant>) {
        for (session, end) in self.ends.iter().filter(|(session, _)| !ends.contains_key(session)) {
            self.gone.insert(*session, (at.min(*end), at < *end));
        }
        self.ends = ends;
    }

    /// No waiter waits behind a lapsed session.
    fn buried(
        &self,
        at: Instant,
        lock: LockId,
        seen: &ObservedHolder,
        context: &CheckContext,
    ) -> CheckResult {
        for Partition { host, hold, until } in seen.waiting.iter().filter(|place| at < place.until) {
            let Some(ahead) = seen.behind.get(hold) else { continue };
            let session = ahead.hold.session();
            let lapses = self.ends.get(&session).map(|end| (*end, false));
            let gone =
                || self.gone.get(&session).map(|(gone, order)| ((*gone).max(ahead.spared_until), *order));
            let Some((dead, in_order)) = lapses.or_else(gone) else { continue };
            let within = if context.promises.clocks && !in_order { BURIED_WITHIN } else { LOOK };
            if seen.free_from.is_some_and(|free| free <= at) || self.asked.get(&(*host, lock)) != Some(hold) {
                continue;
            }
            let Some(eager) = self.eager_since(at, *host, lock, context) else { continue };
            // A late reply counts from its arrival.
            let is_informed = self.looked.get(hold).is_some_and(|looked| eager <= *looked);
            let since = if is_informed { ahead.since } else { ahead.since.max(eager) };
            if at > eager.max(since + SEEN_WITHIN).max(dead) + within {
                return Err(format!(
                    "{host} waits for {lock} (until {until}) behind {session} since {since}, which is dead since {dead}"
                ));
            }
        }
        Ok(())
    }

    fn overdue(
        &self,
        at: Instant,
        lock: LockId,
        seen: &ObservedHolder,
        context: &CheckContext,
    ) -> CheckResult {
        // A short hold lasts longer once the store's clock is set back.
        let within = if context.promises.clocks { TAKEN_WITHIN } else { TAKEN_WITHIN + WORTH_TAKING };
        if let Some(grant) = seen.grant.as_ref().filter(|grant| context.guards.of(&grant.hold).is_none())
            && self.asked.get(&(grant.host, lock)) == Some(&grant.hold)
            && let Some(eager) = self.eager_since(at, grant.host, lock, context)
            && at > eager.max(grant.since) + within
            && grant.until.is_none_or(|until| eager.max(grant.since) + WORTH_TAKING < until)
        {
            let since = grant.since;
            return Err(format!("{} has not noticed that it was granted {lock} at {since}", grant.host));
        }
        for place in &seen.waiting {
            let Partition { host, hold, until } = *place;
            let Some(eager) = self.eager_since(at, host, lock, context) else { continue };
            let looked = self.looked.get(&hold).copied();
            if at > until
                && self.asked.get(&(host, lock)) == Some(&hold)
                && looked.is_some_and(|at| eager <= at)
            {
                return Err(format!("{host} waits for {lock}, and its place lapsed at {until}"));
            }
            if let Some(free) = seen.free_from.filter(|free| at > eager.max(*free) + FOUND_WITHIN)
                && at < until
            {
                return Err(format!("{lock} is free since {free}, and {host} waits for it (until {until})"));
            }
        }
        Ok(())
    }
}

/// The sessions directly ahead of each waiter: in the queue, or holding the lock.
fn behind(
    at: Instant,
    done: &Execution<'_>,
    before: &BTreeMap<HoldId, Predecessor>,
) -> BTreeMap<HoldId, Predecessor> {
    let Some(record) = &done.state.record else { return BTreeMap::new() };
    let holder = done.holds(at).into_iter().next();
    let spared_ms = holder.as_ref().and_then(Held::spared_until_ms);
    let holder_spared = spared_ms.map_or(at, |ms| done.clock.shows_at((ms + 1) * 1000));
    let holder = holder.map(|held| (held.hold, held.life));
    let places = record.tickets.values().filter_map(|session| record.entries.get(session));
    let row: Vec<_> =
        holder.into_iter().chain(places.map(|place| (place.claim.hold, place.liveness))).collect();
    let pairs = row.windows(2).filter(|pair| pair[0].1.ends_with_session());
    pairs
        .map(|pair| {
            let (ahead, behind) = (pair[0].0, pair[1].0);
            let old = before.get(&behind).filter(|old| old.hold == ahead);
            let is_holder = holder.is_some_and(|(hold, _)| hold == ahead);
            let spared_until = if is_holder { holder_spared } else { at };
            (behind, Predecessor { hold: ahead, since: old.map_or(at, |old| old.since), spared_until })
        })
        .collect()
}

/// Whether an operation leaves a lock free on purpose.
fn is_freed(done: &Execution<'_>) -> bool {
    matches!(done.op, Op::Release(release) if release.action == ReleaseAction::Free)
}

/// Whether an operation grants the lock if it finds it free.
fn may_grant(done: &Execution<'_>) -> bool {
    match (done.op, done.reply) {
        (Op::Acquire(_), Reply::Acquire(reply)) => {
            !done.together && !matches!(reply, Acquired::AlreadyEnded(_))
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
                self.sessions(at, ends(done.sessions, done.clock));
                if !context.is_shared(done.lock) {
                    return self.executed(at, done, context);
                }
            }
            Event::SessionExecuted(done) => self.sessions(at, ends(done.sessions, done.clock)),
            Event::Sent { host, lock, op, .. } if !context.is_shared(lock) => {
                // An inspection requests nothing.
                if !matches!(op, Op::Inspect(Inspect { claim: None, .. })) {
                    self.busy.insert((host, lock), at);
                }
                let next = match op {
                    Op::Acquire(ask) => Some(ask),
                    Op::Release(release) => release.next.as_ref(),
                    _ => None,
                };
                // A test for re-entry does not depend on a queue entry.
                let by_place = |ask: &&Acquire| ask.queue.is_some() || !context.is_reentrant(lock);
                if let Some(ask) = next.filter(by_place) {
                    self.asked.insert((host, lock), ask.claim.hold);
                }
            }
            Event::Task(task, lock, what) if !context.is_shared(lock) => self.change(at, task, lock, what),
            Event::Host(host, HostEvent::Crashed) => self.lines.retain(|(line, _), _| *line != host),
            Event::Foreign(lock, Some(until)) => {
                let seen = self.locks.entry(lock).or_default();
                seen.free_from = Some(until);
                seen.grant = None;
                seen.is_strangers = true;
            }
            // One of our clients may have evicted it before.
            Event::Foreign(lock, None) => {
                let seen = self.locks.entry(lock).or_default();
                if seen.is_strangers {
                    seen.free_from = seen.free_from.map(|free| free.min(at));
                }
            }
            // The state of the store is unknown until the next operation.
            Event::Server(
                ServerEvent::Up { with_data: false }
                | ServerEvent::FailedOver
                | ServerEvent::Jumped(_)
                | ServerEvent::Deleted(_),
            ) => {
                self.locks.clear();
                self.looked.clear();
                self.ends.clear();
                self.gone.clear();
            }
            _ => {}
        }
        Ok(())
    }

    fn pass(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for (host, lock) in self.lines.keys() {
            let busy = self.busy.get(&(*host, *lock)).copied().unwrap_or_default();
            let eager = self.eager_since(at, *host, *lock, context);
            if eager.is_some_and(|eager| at > eager.max(busy) + FOUND_WITHIN) {
                return Err(format!("{host} waits for {lock}, and has not asked for it since {busy}"));
            }
        }
        self.locks.iter().try_for_each(|(lock, seen)| {
            self.buried(at, *lock, seen, context)?;
            self.overdue(at, *lock, seen, context)
        })
    }
}
