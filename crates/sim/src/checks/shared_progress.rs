//! Waiters for a lock with several holders are granted once there is capacity, and take up their grants.

use super::session_ends::{SessionEnd, SessionEnds};
use super::sharing::writes;
use super::{Check, CheckContext, CheckResult, Health, POLL_INTERVAL};
use crate::event::{Event, Execution, Held, HostEvent, LockId, ServerEvent, TaskEvent, TaskId};
use crate::world::scheduler::HostId;
use crate::world::time::Instant;
use leasehold_core::{
    Acquired, Claim, Evicted, ForceReleased, HoldId, Kind, LockMode, Op, Reply, Resized, SessionId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a healthy process may leave a grant at the store without taking it up or releasing it.
const TAKEN_UP_WITHIN: Duration = Duration::from_millis(700);

/// The remaining time from which on a hold is worth taking up: a fifth of the first lease, and a margin.
const WORTH_TAKING: Duration = Duration::from_millis(700);

/// By how much the polling interval grows with each entry ahead, including jitter.
const POLL_STEP: Duration = Duration::from_millis(350);

/// How long a waiter may take to check the session of each holder.
const CHECK_EACH: Duration = Duration::from_millis(350);

/// How long a lapsed session may block a waiter that knows when it lapses.
const EVICTED_WITHIN: Duration = Duration::from_millis(500);

/// How many expired holds one operation drops. A latch stays shut while any are left.
const DROPPED_AT_ONCE: usize = 64;

/// No operation that can grant the lock leaves a waiter beside free capacity, except at a latch with more expired arrivals
/// than one operation drops: what is left of them keeps it shut. The first waiter finds capacity that an
/// expiry frees. A process takes up or releases a grant at once. The entry of a polling waiter does not expire. Lapsed
/// sessions, whether holders or directly ahead, do not block a waiter for long.
#[derive(Debug, Default)]
pub struct SharedProgress {
    locks: BTreeMap<LockId, LockView>,
    /// Tasks that acquire a lock, and when these changed last.
    local_waiters: BTreeMap<(HostId, LockId), (BTreeSet<TaskId>, Instant)>,
    /// When a queue entry was created or refreshed last.
    polled: BTreeMap<HoldId, Instant>,
    /// Holds requested by late or duplicate messages. No client relies on them.
    stale_holds: BTreeSet<HoldId>,
    /// Holds that were released, or whose client knows that they have ended. A store that comes back with older data may
    /// have them again: those that exclude others are released once more, and a pass ends by its lease.
    given_up: BTreeSet<HoldId>,
    /// Every hold that the store had at some time.
    ever_held: BTreeSet<HoldId>,
    session_ends: SessionEnds,
}

/// A lock at the store.
#[derive(Debug, Default)]
struct LockView {
    kind: Kind,
    limit: Option<u32>,
    /// The holders, and since when.
    holds: Vec<(Held, Instant)>,
    /// How many holds had expired and were left by the last operation.
    expired_left: usize,
    /// The waiters in order.
    queue: Vec<QueuedWaiter>,
    /// Since when there is capacity for the first waiter.
    capacity_for_first: Option<(HoldId, Instant)>,
}

/// A queue entry.
#[derive(Debug, Clone)]
struct QueuedWaiter {
    claim: Claim,
    mode: LockMode,
    /// When it expires.
    until: Instant,
    /// Whether it ends with its session.
    ends_with_session: bool,
    /// Its predecessor, and since when.
    behind: Option<(HoldId, Instant)>,
    /// Since when it has been first, if it is.
    first_since: Option<Instant>,
}

impl LockView {
    /// Whether a waiter could be granted at that time. For a read, always false if its own owner writes.
    fn has_capacity_for(&self, waiter: &QueuedWaiter, at: Instant) -> bool {
        let holds = || self.holds.iter().map(|(held, _)| held).filter(|held| held.lasts(at));
        let sum = || holds().map(|held| u64::from(held.mode.count())).sum::<u64>();
        let writes = |held: &Held| writes(held.mode);
        let is_own = |held: &Held| held.owner == waiter.claim.value;
        match waiter.mode {
            LockMode::Permits { count, total } => {
                sum() + u64::from(count) <= u64::from(self.limit.unwrap_or(total))
            }
            LockMode::Read => !holds().any(writes),
            LockMode::Upgradable => !holds().any(|held| writes(held) || held.mode == LockMode::Upgradable),
            LockMode::Write => holds().next().is_none() || holds().all(is_own) && holds().any(writes),
            LockMode::Upgrade => holds().all(is_own) && holds().any(|held| held.mode == LockMode::Upgradable),
            LockMode::LatchWait { total } => sum() >= u64::from(total),
            LockMode::BarrierWait { total } => {
                self.queue.iter().filter(|other| at < other.until).count() >= total as usize
            }
            _ => false,
        }
    }

    /// The first unexpired entry.
    fn first(&self, at: Instant) -> Option<&QueuedWaiter> {
        self.queue.iter().find(|waiter| at < waiter.until)
    }

    /// How many expired holds the store has.
    fn expired(&self, at: Instant) -> usize {
        self.expired_left + self.holds.iter().filter(|(held, _)| !held.lasts(at)).count()
    }

    /// Whether the next poll of the first waiter finds capacity for it.
    fn poll_finds_capacity(&self, waiter: &QueuedWaiter, at: Instant) -> bool {
        let opens = !is_latch_wait(waiter.mode) || self.expired(at) <= DROPPED_AT_ONCE;
        opens && self.has_capacity_for(waiter, at)
    }

    /// Updates whether there is capacity for the first waiter.
    fn advance(&mut self, at: Instant) {
        let first =
            self.first(at).filter(|first| self.poll_finds_capacity(first, at)).map(|first| first.claim.hold);
        let old = self.capacity_for_first.take();
        self.capacity_for_first =
            first.map(|first| old.filter(|(hold, _)| *hold == first).unwrap_or((first, at)));
    }
}

impl SharedProgress {
    fn executed(&mut self, at: Instant, done: &Execution<'_>) -> CheckResult {
        if let Op::Release(release) = done.op {
            self.given_up.insert(release.claim.hold);
        }
        if let Some((request, Acquired::AlreadyEnded(_))) = done.acquires() {
            self.given_up.insert(request.claim.hold);
        }
        if let Some((request, _)) = done.acquires()
            && (done.is_stale || self.given_up.contains(&request.claim.hold))
        {
            self.stale_holds.insert(request.claim.hold);
        }
        if let Some((request, Acquired::Taken { position: Some(_), .. })) = done.acquires() {
            self.polled.insert(request.claim.hold, at);
        }
        // In an unknown state any number can have expired.
        let before = self.locks.get(&done.lock).map(|view| view.expired(at));
        let may_be_left = before.map_or(usize::MAX, |expired| expired.saturating_sub(DROPPED_AT_ONCE));
        let view = self.locks.entry(done.lock).or_default();
        let held_before = |hold: &HoldId| view.holds.iter().find(|(held, _)| held.hold == *hold);
        let may_have_been_held = done.claim().is_some_and(|claim| match before {
            None => self.ever_held.contains(&claim.hold),
            Some(_) => held_before(&claim.hold).is_some(),
        });
        self.ever_held.extend(crate::event::holds(done.state, done.clock).iter().map(|held| held.hold));
        let holds = done.holds(at).into_iter();
        let holds = holds.map(|held| (held_before(&held.hold).map_or(at, |(_, since)| *since), held));
        let holds: Vec<_> = holds.map(|(since, held)| (held, since)).collect();
        view.expired_left = crate::event::holds(done.state, done.clock).len() - holds.len();
        (view.kind, view.holds) = (done.state.kind, holds);
        view.limit = done.state.record.as_ref().and_then(|record| record.limit);
        view.queue = queue(at, done, &view.queue);
        view.advance(at);
        let is_left_shut = |waiter: &QueuedWaiter| {
            is_latch_wait(waiter.mode) && (1..=may_be_left).contains(&view.expired_left)
        };
        if let Some(first) = view.first(at)
            && grants_to_waiters(done, may_have_been_held)
            && view.has_capacity_for(first, at)
            && !is_left_shut(first)
        {
            return Err(format!("{first:?} waits for {}, which has capacity for it", done.lock));
        }
        Ok(())
    }

    fn change(&mut self, at: Instant, task: TaskId, lock: LockId, what: TaskEvent) {
        let (tasks, changed) = self.local_waiters.entry((task.host, lock)).or_default();
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

    /// Since when tasks of a healthy process wait for a lock.
    fn waiting_since(&self, host: HostId, lock: LockId, context: &CheckContext) -> Option<Instant> {
        let (_, changed) = self.local_waiters.get(&(host, lock)).filter(|(tasks, _)| !tasks.is_empty())?;
        Some(context.health(host).and_then(Health::waiters_healthy_since)?.max(*changed))
    }

    /// A process takes up or releases its grants.
    fn check_taken_up(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        for (held, since) in &view.holds {
            let is_current = !self.stale_holds.contains(&held.hold) && !self.given_up.contains(&held.hold);
            if !is_current || !held.lasts(at) || context.guards.of(&held.hold).is_some() {
                continue;
            }
            let Some(host) = context.host(held.hold.session()) else { continue };
            let Some(healthy) = context.health(host).and_then(Health::healthy_since) else { continue };
            let from = healthy.max(*since);
            if at > from + TAKEN_UP_WITHIN && held.lasts(from + WORTH_TAKING) {
                return Err(format!(
                    "{host} has not noticed that it was granted {lock} at {since}: {held:?}"
                ));
            }
        }
        Ok(())
    }

    /// Waiters keep their entries alive, and find free capacity.
    fn check_entries(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        for waiter in &view.queue {
            let hold = waiter.claim.hold;
            if self.given_up.contains(&hold) || self.stale_holds.contains(&hold) {
                continue;
            }
            let Some(host) = context.host(hold.session()) else { continue };
            let Some(waiting) = self.waiting_since(host, lock, context) else { continue };
            let is_kept = self.polled.get(&hold).is_some_and(|polled| waiting <= *polled);
            if at > waiter.until && is_kept {
                return Err(format!(
                    "{host} waits for {lock}, and its queue entry expired at {}",
                    waiter.until
                ));
            }
            let interval = POLL_INTERVAL + POLL_STEP * u32::try_from(view.queue.len()).unwrap_or(u32::MAX);
            if let Some((_, since)) = view.capacity_for_first.filter(|(first, _)| *first == hold)
                && at > since.max(waiting) + interval
            {
                return Err(format!("{lock} has capacity for {host} since {since}, which waits"));
            }
        }
        Ok(())
    }

    /// No waiter is blocked by a lapsed session.
    fn check_dead_predecessors(
        &self,
        at: Instant,
        lock: LockId,
        view: &LockView,
        context: &CheckContext,
    ) -> CheckResult {
        for (index, waiter) in view.queue.iter().enumerate().filter(|(_, waiter)| at < waiter.until) {
            let (hold, own) = (waiter.claim.hold, waiter.claim.hold.session());
            if self.given_up.contains(&hold) || self.stale_holds.contains(&hold) {
                continue;
            }
            let Some(host) = context.host(own) else { continue };
            let Some(waiting) = self.waiting_since(host, lock, context) else { continue };
            let interval = POLL_INTERVAL + POLL_STEP * u32::try_from(view.queue.len()).unwrap_or(u32::MAX);
            let check_overdue = |session: SessionId, since: Instant, others: usize| {
                let checks = CHECK_EACH * u32::try_from(others).unwrap_or(u32::MAX);
                // A session without a record is spared because of any of its holds here.
                let is_spared = !self.session_ends.is_known(session)
                    && view.holds.iter().any(|(held, _)| held.hold.session() == session);
                let end = self.session_ends.get(session).filter(|_| session != own && !is_spared)?;
                let checked_by = waiting.max(since) + interval + checks;
                (at > noticed_by(end, checked_by, interval)).then_some(end.at)
            };
            let before = index.checked_sub(1).and_then(|before| view.queue.get(before));
            // An expired entry blocks no waiter.
            let before = before.filter(|before| at < before.until);
            if let (Some(before), Some((_, since))) =
                (before.filter(|before| before.ends_with_session), waiter.behind)
                && let Some(ended_at) = check_overdue(before.claim.hold.session(), since, 1)
            {
                return Err(format!(
                    "{host} waits for {lock} behind a session that lapsed at {ended_at}: {before:?}"
                ));
            }
            let Some(first_since) = waiter.first_since else { continue };
            // Waiters of a latch or a barrier wait for arrivals, not for holders.
            let has_holders = matches!(view.kind, Kind::Semaphore | Kind::RwLock);
            let holds = view.holds.iter().filter(|(held, _)| held.lasts(at) && has_holders);
            for (held, since) in holds.filter(|(held, _)| held.liveness.ends_with_session()) {
                if let Some(ended_at) =
                    check_overdue(held.hold.session(), first_since.max(*since), view.holds.len())
                {
                    return Err(format!(
                        "{host} waits for {lock}, held by a session that lapsed at {ended_at}: {held:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// When a waiter has noticed the end of a session, which it checks until `checked_by`, and then after each interval.
fn noticed_by(end: SessionEnd, checked_by: Instant, interval: Duration) -> Instant {
    // A waiter knows when a session lapses, but not that its process ends it.
    let found_at = if end.is_explicit { end.at + interval } else { end.at };
    checked_by.max(found_at) + EVICTED_WITHIN
}

/// Whether it waits until a latch opens.
const fn is_latch_wait(mode: LockMode) -> bool {
    matches!(mode, LockMode::LatchWait { .. })
}

/// The waiters in order.
fn queue(at: Instant, done: &Execution<'_>, old: &[QueuedWaiter]) -> Vec<QueuedWaiter> {
    let Some(record) = &done.state.record else { return Vec::new() };
    let entries = record.tickets.values().filter_map(|id| record.entries.get(id));
    let mut before: Option<HoldId> = None;
    let view = entries.map(|waiter| {
        let known = old.iter().find(|known| known.claim.hold == waiter.claim.hold);
        let position = known.and_then(|known| known.behind).filter(|(hold, _)| Some(*hold) == before);
        let behind = before.map(|before| position.unwrap_or((before, at)));
        let first_since = behind.is_none().then(|| known.and_then(|known| known.first_since).unwrap_or(at));
        before = Some(waiter.claim.hold);
        QueuedWaiter {
            claim: waiter.claim.clone(),
            mode: waiter.mode,
            until: done.clock.shows_at((waiter.expires_ms + 1) * 1000),
            ends_with_session: waiter.liveness.ends_with_session(),
            behind,
            first_since,
        }
    });
    view.collect()
}

/// Whether an operation grants to all waiters for which there is capacity. An acquire that finds its own hold does not.
fn grants_to_waiters(done: &Execution<'_>, may_have_been_held: bool) -> bool {
    match (done.op, done.reply) {
        (Op::Acquire(_), Reply::Acquire(Acquired::Granted { .. })) => !may_have_been_held,
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
                self.session_ends.update(at, done.sessions, done.clock);
                if context.is_shared(done.lock) {
                    return self.executed(at, done);
                }
            }
            Event::SessionExecuted(done) => self.session_ends.update(at, done.sessions, done.clock),
            Event::Task(task, lock, what) if context.is_shared(lock) => self.change(at, task, lock, what),
            Event::Sent { op: Op::Release(release), .. } => {
                self.given_up.insert(release.claim.hold);
            }
            Event::Host(host, HostEvent::Crashed) => {
                self.local_waiters.retain(|(waiters, _), _| *waiters != host);
            }
            // The state of the store is unknown until the next operation.
            Event::Server(what) if what.makes_state_unknown() || matches!(what, ServerEvent::Deleted(_)) => {
                self.locks.clear();
                self.polled.clear();
                self.session_ends.clear();
                // With the clock set back, holds that had expired last again. Their processes have lost them.
                if matches!(what, ServerEvent::Jumped(by) if by < 0) {
                    self.stale_holds.extend(&self.ever_held);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, at: Instant, context: &CheckContext) -> CheckResult {
        for view in self.locks.values_mut() {
            view.advance(at);
        }
        self.locks.iter().try_for_each(|(lock, view)| {
            self.check_taken_up(at, *lock, view, context)?;
            self.check_entries(at, *lock, view, context)?;
            self.check_dead_predecessors(at, *lock, view, context)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::{LOCK, StoredLock, acquire, hold};
    use leasehold_core::model::{Content, LockState, Value};
    use leasehold_core::{Acquire, Claim, Enqueue, Nonce};

    /// How many arrivals expire at once.
    const EXPIRED: u8 = 130;
    /// When the others have expired.
    const LATER: Instant = Instant(1_000_000);

    /// A latch of one arrival at its store, and the check.
    struct Latch {
        stored: StoredLock,
        check: SharedProgress,
    }

    fn arrive_or_wait(n: u8, mode: LockMode, lease_ms: u64, queues: bool) -> Op {
        let queue = queues.then_some(Enqueue { nonce: Nonce::new(0, 1), ttl_ms: 3_000 });
        let claim = Claim { hold: hold(n), value: None };
        Op::Acquire(Acquire { lease_ms, queue, ..acquire(claim, mode) })
    }

    impl Latch {
        /// One arrival that lasts, and many that expire before `LATER`.
        fn new() -> Self {
            let mut latch = Self { stored: StoredLock::new(Kind::Latch), check: SharedProgress::default() };
            for n in 0..=EXPIRED {
                let lease_ms = if n == EXPIRED { 60_000 } else { 10 };
                let arrival = arrive_or_wait(n, LockMode::CountDown { count: 1, total: 1 }, lease_ms, false);
                latch.execute(Instant(0), &arrival, |_| {}).expect("no waiter");
            }
            latch
        }

        /// Executes an operation. The check sees the state that `change` leaves.
        fn execute(&mut self, at: Instant, op: &Op, change: impl Fn(&mut LockState)) -> CheckResult {
            let check = &mut self.check;
            self.stored.execute(at, op, |_| false, |state, _| change(state), |done| check.executed(at, done))
        }

        fn wait(&mut self, at: Instant) -> CheckResult {
            let wait = arrive_or_wait(255, LockMode::LatchWait { total: 1 }, 60_000, true);
            self.execute(at, &wait, |_| {})
        }

        fn waiters(&self) -> usize {
            self.stored.state.record.as_ref().map_or(0, |record| record.entries.len())
        }

        /// Whether the next poll of the first waiter finds capacity.
        fn capacity_at(&mut self, at: Instant) -> bool {
            let view = self.check.locks.get_mut(&LOCK).expect("a known lock");
            view.advance(at);
            view.capacity_for_first.is_some()
        }
    }

    #[test]
    fn expired_arrivals_beyond_those_that_an_operation_drops_keep_a_latch_shut() {
        for state_is_unknown in [false, true] {
            let mut latch = Latch::new();
            if state_is_unknown {
                latch.check.locks.clear();
            }
            for (polls, next_opens) in [(1, false), (2, true)] {
                latch.wait(LATER).unwrap_or_else(|violation| panic!("{violation} after {polls} polls"));
                assert_eq!(latch.waiters(), 1, "some of the expired are left");
                assert_eq!(latch.capacity_at(LATER), next_opens);
            }
            latch.wait(LATER).expect("none is left");
            assert_eq!(latch.waiters(), 0);
        }
    }

    #[test]
    fn a_waiter_notices_a_lapse_at_once_and_an_explicit_end_with_its_next_poll() {
        let (early, at, late) = (Instant(1_000_000), Instant(5_000_000), Instant(9_000_000));
        let interval = Duration::from_secs(3);
        let noticed =
            |is_explicit, checked_by| noticed_by(SessionEnd { at, is_explicit }, checked_by, interval);
        assert_eq!(noticed(false, early), at + EVICTED_WITHIN);
        assert_eq!(noticed(true, early), at + interval + EVICTED_WITHIN);
        for is_explicit in [false, true] {
            assert_eq!(noticed(is_explicit, late), late + EVICTED_WITHIN);
        }
    }

    #[test]
    fn an_operation_drops_as_many_expired_arrivals_as_it_may() {
        let mut latch = Latch::new();
        // To the check, only ten arrivals expire.
        let arrival = arrive_or_wait(200, LockMode::CountDown { count: 1, total: 1 }, 60_000, false);
        let forget = |state: &mut LockState| {
            if let Some(Value { content: Content::SharedHolders(shared), .. }) = &mut state.value {
                shared.holds.drain(..usize::from(EXPIRED) - 10);
            }
        };
        latch.execute(Instant(0), &arrival, forget).expect("no waiter");
        latch.wait(LATER).expect_err("it left expired arrivals, and had to drop all ten");
    }

    #[test]
    fn an_acquire_that_finds_its_own_hold_need_not_grant_what_has_expired() {
        let permit = |n: u8, lease_ms: u64| {
            arrive_or_wait(n, LockMode::Permits { count: 1, total: 2 }, lease_ms, true)
        };
        for state_is_unknown in [false, true] {
            let mut semaphore = Latch { stored: StoredLock::new(Kind::Semaphore), ..Latch::new() };
            semaphore.check.locks.clear();
            for op in [permit(1, 60_000), permit(2, 10), permit(3, 60_000)] {
                semaphore.execute(Instant(0), &op, |_| {}).expect("there is no capacity for the third");
            }
            if state_is_unknown {
                semaphore.check.locks.clear();
            }
            semaphore.execute(LATER, &permit(1, 60_000), |_| {}).expect("it says that the first holds it");
            assert_eq!(semaphore.waiters(), 1);
            assert!(semaphore.capacity_at(LATER), "the next poll of the third finds it");
        }
    }

    #[test]
    fn a_pass_whose_client_was_told_that_it_had_ended_need_not_be_taken_up_again() {
        let mut barrier = Latch { stored: StoredLock::new(Kind::Barrier), ..Latch::new() };
        barrier.check.locks.clear();
        let pass = arrive_or_wait(1, LockMode::BarrierWait { total: 1 }, 60_000, true);
        barrier.execute(Instant(0), &pass, |_| {}).expect("it passes");
        let held = crate::event::holds(&barrier.stored.state, &barrier.stored.clock);
        let actor = leasehold_core::Label::new("an operator").expect("a plain text");
        let observed = leasehold_core::ObservedHolder::Hold(held[0].fence);
        let free = Op::ForceRelease(leasehold_core::ForceRelease { observed, actor });
        barrier.execute(Instant(0), &free, |_| {}).expect("no waiter");
        assert!(!barrier.check.given_up.contains(&hold(1)), "its client does not know it yet");
        barrier.execute(Instant(0), &pass, |_| {}).expect("no waiter");
        assert!(barrier.check.given_up.contains(&hold(1)));
    }
}
