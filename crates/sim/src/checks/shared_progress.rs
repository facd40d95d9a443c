//! Waiters for a lock with several holders are granted once there is capacity, and take up their grants.

use super::{Check, CheckContext, CheckResult, Health, LOOK};
use crate::event::{Event, Execution, Held, HostEvent, LockId, ServerEvent, TaskEvent, TaskId, ends};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquired, Claim, Evicted, ForceReleased, HoldId, Kind, LockMode, Op, Reply, Resized, SessionId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a healthy process may leave a grant at the store without taking it up or releasing it.
const HEEDED_WITHIN: Duration = Duration::from_millis(700);

/// The remaining time of a hold worth taking up: a fifth of the first lease, and a margin.
const WORTH_TAKING: Duration = Duration::from_millis(700);

/// By how much the polling interval grows with each entry ahead, including jitter.
const LOOK_STEP: Duration = Duration::from_millis(350);

/// How long it may take to check the session of each holder.
const ASK_EACH: Duration = Duration::from_millis(350);

/// How long a lapsed session may block a waiter that knows when it lapses.
const BURIED_WITHIN: Duration = Duration::from_millis(500);

/// No operation that can grant leaves a waiter beside free capacity. The first waiter finds capacity that arises by
/// an expiry. A process takes up or releases a grant at once. The entry of a polling waiter does not expire. Lapsed
/// sessions, whether holders or directly ahead, do not block a waiter for long.
#[derive(Debug, Default)]
pub struct SharedProgress {
    locks: BTreeMap<LockId, ObservedHolder>,
    /// Tasks that seek a lock, and when that changed last.
    lines: BTreeMap<(HostId, LockId), (BTreeSet<TaskId>, Instant)>,
    /// When a queue entry was created or refreshed last.
    looked: BTreeMap<HoldId, Instant>,
    /// Holds requested by late or duplicate messages. No client relies on them.
    ghosts: BTreeSet<HoldId>,
    given_up: BTreeSet<HoldId>,
    /// When sessions end at the store.
    ends: BTreeMap<SessionId, Instant>,
    /// When those ended that it knows no more.
    gone: BTreeMap<SessionId, Instant>,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct ObservedHolder {
    kind: Kind,
    limit: Option<u32>,
    /// The holders, and since when.
    holds: Vec<(Held, Instant)>,
    /// The waiters in order, and since when each has its predecessor.
    queue: Vec<Partition>,
    /// Since when there has been room for the first.
    room: Option<(HoldId, Instant)>,
}

/// A queue entry.
#[derive(Debug, Clone)]
struct Partition {
    claim: Claim,
    mode: LockMode,
    /// When it expires.
    until: Instant,
    /// Whether it ends with its session.
    can_die: bool,
    /// Its predecessor, and since when.
    behind: Option<(HoldId, Instant)>,
    /// Since when it has been first, if it is.
    first_since: Option<Instant>,
}

impl ObservedHolder {
    /// Whether a waiter could be granted at that time. Always false if its own owner holds the lock.
    fn has_room(&self, place: &Partition, at: Instant) -> bool {
        let holds = || self.holds.iter().map(|(held, _)| held).filter(|held| held.lasts(at));
        let sum = || holds().map(|held| u64::from(held.mode.count())).sum::<u64>();
        let writes = |held: &Held| matches!(held.mode, LockMode::Write | LockMode::Upgrade);
        let is_own = |held: &Held| held.owner == place.claim.value;
        match place.mode {
            LockMode::Permits { count, total } => {
                sum() + u64::from(count) <= u64::from(self.limit.unwrap_or(total))
            }
            LockMode::Read => !holds().any(writes),
            LockMode::Upgradable => !holds().any(|held| writes(held) || held.mode == LockMode::Upgradable),
            LockMode::Write => holds().next().is_none(),
            LockMode::Upgrade => {
                holds().all(|held| is_own(held) && !writes(held))
                    && holds().any(|held| held.mode == LockMode::Upgradable)
            }
            LockMode::LatchWait { total } => sum() >= u64::from(total),
            LockMode::BarrierWait { total } => {
                self.queue.iter().filter(|other| at < other.until).count() >= total as usize
            }
            _ => false,
        }
    }

    /// The first unexpired entry.
    fn first(&self, at: Instant) -> Option<&Partition> {
        self.queue.iter().find(|place| at < place.until)
    }

    /// Takes note of whether there is room for the first.
    fn pass(&mut self, at: Instant) {
        let first = self.first(at).filter(|first| self.has_room(first, at)).map(|first| first.claim.hold);
        let old = self.room.take();
        self.room = first.map(|first| old.filter(|(hold, _)| *hold == first).unwrap_or((first, at)));
    }
}

impl SharedProgress {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        if let Op::Release(release) = done.op {
            self.given_up.insert(release.claim.hold);
        }
        if let Some((ask, _)) = done.acquires()
            && (done.out_of_time || self.given_up.contains(&ask.claim.hold))
        {
            self.ghosts.insert(ask.claim.hold);
        }
        if let Some((ask, Acquired::Taken { position: Some(_), .. })) = done.acquires() {
            self.looked.insert(ask.claim.hold, at);
        }
        let seen = self.locks.entry(done.lock).or_default();
        let had = |hold: &HoldId| seen.holds.iter().find(|(held, _)| held.hold == *hold);
        let was_there = done.claim().is_some_and(|claim| had(&claim.hold).is_some());
        let holds = done.holds(at).into_iter();
        let holds = holds.map(|held| (had(&held.hold).map_or(at, |(_, since)| *since), held));
        let holds: Vec<_> = holds.map(|(since, held)| (held, since)).collect();
        (seen.kind, seen.holds) = (done.state.kind, holds);
        seen.limit = done.state.record.as_ref().and_then(|record| record.limit);
        seen.queue = queue(at, done, &seen.queue);
        seen.pass(at);
        if let Some(first) = seen.first(at)
            && serves(done, was_there)
            && seen.has_room(first, at)
        {
            return Err(format!("{first:?} is left waiting for {}, and there is room", done.lock));
        }
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent) {
        let (tasks, changed) = self.lines.entry((task.host, lock)).or_default();
        match what {
            TaskEvent::Acquiring(..) => drop(tasks.insert(task)),
            TaskEvent::Acquired(..)
            | TaskEvent::NotAcquired(_)
            | TaskEvent::Cancelled
            | TaskEvent::Admitted => {
                tasks.remove(&task);
            }
            _ => return,
        }
        *changed = at;
    }

    /// Since when tasks of a process have sought a lock, and it is well.
    fn eager_since(&self, host: HostId, lock: LockId, context: &CheckContext) -> Option<Instant> {
        let (_, changed) = self.lines.get(&(host, lock)).filter(|(tasks, _)| !tasks.is_empty())?;
        Some(context.health(host).and_then(Health::waiters_well_since)?.max(*changed))
    }

    fn sessions(&mut self, at: Instant, ends: BTreeMap<SessionId, Instant>) {
        for (session, end) in self.ends.iter().filter(|(session, _)| !ends.contains_key(session)) {
            self.gone.insert(*session, at.min(*end));
        }
        self.ends = ends;
    }

    /// When a session lapses or lapsed.
    fn dead_from(&self, session: SessionId) -> Option<Instant> {
        self.ends.get(&session).or_else(|| self.gone.get(&session)).copied()
    }

    /// A process takes up or releases its grants.
    fn heeded(
        &self,
        at: Instant,
        lock: LockId,
        seen: &ObservedHolder,
        context: &CheckContext,
    ) -> CheckResult {
        for (held, since) in &seen.holds {
            let is_wanted = !self.ghosts.contains(&held.hold) && !self.given_up.contains(&held.hold);
            if !is_wanted || !held.lasts(at) || context.guards.of(&held.hold).is_some() {
                continue;
            }
            let Some(host) = context.host(held.hold.session()) else { continue };
            let Some(well) = context.health(host).and_then(Health::well_since) else { continue };
            let from = well.max(*since);
            if at > from + HEEDED_WITHIN && held.lasts(from + WORTH_TAKING) {
                return Err(format!(
                    "{host} has not noticed that it was let in to {lock} at {since}: {held:?}"
                ));
            }
        }
        Ok(())
    }

    /// Waiters keep their entries alive, and find free capacity.
    fn found(&self, at: Instant, lock: LockId, seen: &ObservedHolder, context: &CheckContext) -> CheckResult {
        for place in &seen.queue {
            let hold = place.claim.hold;
            if self.given_up.contains(&hold) || self.ghosts.contains(&hold) {
                continue;
            }
            let Some(host) = context.host(hold.session()) else { continue };
            let Some(eager) = self.eager_since(host, lock, context) else { continue };
            let is_kept = self.looked.get(&hold).is_some_and(|looked| eager <= *looked);
            if at > place.until && is_kept {
                return Err(format!("{host} waits for {lock}, and its place lapsed at {}", place.until));
            }
            let look = LOOK + LOOK_STEP * u32::try_from(seen.queue.len()).unwrap_or(u32::MAX);
            if let Some((_, since)) = seen.room.filter(|(first, _)| *first == hold)
                && at > since.max(eager) + look
            {
                return Err(format!("there is room for {host} at {lock} since {since}, and it waits"));
            }
        }
        Ok(())
    }

    /// No waiter is blocked by a lapsed session.
    fn buried(
        &self,
        at: Instant,
        lock: LockId,
        seen: &ObservedHolder,
        context: &CheckContext,
    ) -> CheckResult {
        for (index, place) in seen.queue.iter().enumerate().filter(|(_, place)| at < place.until) {
            let (hold, own) = (place.claim.hold, place.claim.hold.session());
            if self.given_up.contains(&hold) || self.ghosts.contains(&hold) {
                continue;
            }
            let Some(host) = context.host(own) else { continue };
            let Some(eager) = self.eager_since(host, lock, context) else { continue };
            let look = LOOK + LOOK_STEP * u32::try_from(seen.queue.len()).unwrap_or(u32::MAX);
            let overdue = |session: SessionId, since: Instant, others: usize| {
                let asks = ASK_EACH * u32::try_from(others).unwrap_or(u32::MAX);
                // A session without a record is spared because of any of its holds here.
                let is_spared = !self.ends.contains_key(&session)
                    && seen.holds.iter().any(|(held, _)| held.hold.session() == session);
                let dead = self.dead_from(session).filter(|_| session != own && !is_spared)?;
                (at > (eager.max(since) + look + asks).max(dead) + BURIED_WITHIN).then_some(dead)
            };
            let before = index.checked_sub(1).and_then(|before| seen.queue.get(before));
            // An expired entry blocks no waiter.
            let before = before.filter(|before| at < before.until);
            if let (Some(before), Some((_, since))) = (before.filter(|before| before.can_die), place.behind)
                && let Some(dead) = overdue(before.claim.hold.session(), since, 1)
            {
                return Err(format!(
                    "{host} waits for {lock} behind one who is dead since {dead}: {before:?}"
                ));
            }
            let Some(first_since) = place.first_since else { continue };
            // A latch and a barrier wait for arrivals, not for holders.
            let has_holders = matches!(seen.kind, Kind::Semaphore | Kind::RwLock);
            let holds = seen.holds.iter().filter(|(held, _)| held.lasts(at) && has_holders);
            for (held, since) in holds.filter(|(held, _)| held.life.ends_with_session()) {
                if let Some(dead) = overdue(held.hold.session(), first_since.max(*since), seen.holds.len()) {
                    return Err(format!(
                        "{host} waits for {lock}, which the dead have since {dead}: {held:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The waiters in order.
fn queue(at: Instant, done: &Execution<'_>, old: &[Partition]) -> Vec<Partition> {
    let Some(record) = &done.state.record else { return Vec::new() };
    let places = record.tickets.values().filter_map(|id| record.entries.get(id));
    let mut before: Option<HoldId> = None;
    let seen = places.map(|place| {
        let known = old.iter().find(|known| known.claim.hold == place.claim.hold);
        let stood = known.and_then(|known| known.behind).filter(|(hold, _)| Some(*hold) == before);
        let behind = before.map(|before| stood.unwrap_or((before, at)));
        let first_since = behind.is_none().then(|| known.and_then(|known| known.first_since).unwrap_or(at));
        before = Some(place.claim.hold);
        Partition {
            claim: place.claim.clone(),
            mode: place.mode,
            until: done.clock.shows_at((place.expires_ms + 1) * 1000),
            can_die: place.liveness.ends_with_session(),
            behind,
            first_since,
        }
    });
    seen.collect()
}

/// Whether an operation grants to all waiters for which there is capacity.
fn serves(done: &Execution<'_>, was_there: bool) -> bool {
    match (done.op, done.reply) {
        (Op::Acquire(_), Reply::Acquire(Acquired::Granted { .. })) => !was_there,
        (Op::Acquire(_), Reply::Acquire(Acquired::Taken { .. }))
        | (Op::Evict(_), Reply::Evict(Evicted::Removed { .. }))
        | (Op::ForceRelease(_), Reply::ForceRelease(ForceReleased::Released))
        | (Op::Release(_), Reply::Release(_))
        | (Op::Resize(_), Reply::Resize(Resized::Done)) => true,
        _ => false,
    }
}

impl Check for SharedProgress {
    fn name(&self) -> &'static str {
        "shared_progress"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) => {
                self.sessions(at, ends(done.sessions, done.clock));
                if context.is_shared(done.lock) {
                    return self.executed(at, done);
                }
            }
            Event::SessionExecuted(done) => self.sessions(at, ends(done.sessions, done.clock)),
            Event::Task(task, lock, what) if context.is_shared(lock) => self.change(at, task, lock, what),
            Event::Sent { op: Op::Release(release), .. } => {
                self.given_up.insert(release.claim.hold);
            }
            Event::Host(host, HostEvent::Crashed) => self.lines.retain(|(line, _), _| *line != host),
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
        for seen in self.locks.values_mut() {
            seen.pass(at);
        }
        self.locks.iter().try_for_each(|(lock, seen)| {
            self.heeded(at, *lock, seen, context)?;
            self.found(at, *lock, seen, context)?;
            self.buried(at, *lock, seen, context)
        })
    }
}
