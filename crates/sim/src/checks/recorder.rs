//! The recorder runs the checks, keeps the trace and counts the coverage.

use crate::checks::{Check, CheckContext, GuardRecord};
use crate::event::{
    AcquireFailure, Event, Execution, Held, HostEvent, ObserverEvent, PeriodEvent, ServerEvent, TaskEvent,
};
use crate::timeline::{Collector, Timeline};
use crate::world::time::Instant;
use leasehold_core::{Acquired, Ended, LockMode, Notification, Op, Reply, Resized, SessionOp};
use std::ops::AddAssign;

/// A violation that a check has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The check.
    pub check: &'static str,
    /// When, in true time.
    pub at: Instant,
    /// A description of the violation.
    pub what: String,
}

/// What a run covered. A run in which nothing happens proves nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that the store executed.
    pub executed: u64,
    /// Of these, late and duplicate ones.
    pub stale: u64,
    /// Messages that were lost, late or duplicated.
    pub message_faults: u64,
    /// Locks that tasks acquired.
    pub acquired: u64,
    /// Of these, re-entrant ones.
    pub entered: u64,
    /// Of these, those whose owner held the lock in another process.
    pub entered_remotely: u64,
    /// Of these, those of a guard on several locks.
    pub with_others: u64,
    /// Acquires of several locks in one step.
    pub multi_executed: u64,
    /// Releases after which the owner still held the lock.
    pub still_held: u64,
    /// Of these, those handed off within the process.
    pub handed_off: u64,
    /// Releases that the process did not send, because it cached the hold.
    pub cached: u64,
    /// Notifications that another process waits for a hold.
    pub wanted: u64,
    /// Grants that were published.
    pub granted: u64,
    /// Futures that were dropped.
    pub cancelled: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Processes that crashed.
    pub crashes: u64,
    /// Processes that were stopped.
    pub stops: u64,
    /// Connections that broke.
    pub broken_links: u64,
    /// Times that the server went down, failed over or had its clock set.
    pub server_events: u64,
    /// Acquires of a hold that had ended.
    pub already_ended: u64,
    /// Heartbeats that the store executed.
    pub heartbeats: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Holds of lapsed sessions that were evicted.
    pub evicted: u64,
    /// Holds that were released by force.
    pub force_released: u64,
    /// Acquired permits, reads and writes.
    pub shared: u64,
    /// Of these, upgrades.
    pub upgraded: u64,
    /// Writes that the store granted to an owner that already wrote.
    pub written_again: u64,
    /// Arrivals at a Latch or a Barrier, and waits there that ended.
    pub admitted: u64,
    /// Resizes of Semaphores.
    pub resized: u64,
    /// Leaders that observers reported.
    pub observed: u64,
    /// Texts that leaders proclaimed.
    pub proclaimed: u64,
    /// Reported losses of guards with a lock delay.
    pub lost_with_delay: u64,
    /// Periods that tasks started.
    pub periods: u64,
    /// Partitions that left two primaries.
    pub partitions: u64,
    /// Acquires that no replica confirmed.
    pub unconfirmed: u64,
    /// Times that a node of a quorum lost its data.
    pub forgotten: u64,
    /// Holds that these left to less than a majority of the nodes.
    pub outvoted: u64,
    /// Holds that a renewal put on a node.
    pub repaired: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.executed += other.executed;
        self.stale += other.stale;
        self.message_faults += other.message_faults;
        self.acquired += other.acquired;
        self.entered += other.entered;
        self.entered_remotely += other.entered_remotely;
        self.with_others += other.with_others;
        self.multi_executed += other.multi_executed;
        self.still_held += other.still_held;
        self.handed_off += other.handed_off;
        self.cached += other.cached;
        self.wanted += other.wanted;
        self.granted += other.granted;
        self.cancelled += other.cancelled;
        self.lost += other.lost;
        self.crashes += other.crashes;
        self.stops += other.stops;
        self.broken_links += other.broken_links;
        self.server_events += other.server_events;
        self.already_ended += other.already_ended;
        self.heartbeats += other.heartbeats;
        self.sessions += other.sessions;
        self.evicted += other.evicted;
        self.force_released += other.force_released;
        self.shared += other.shared;
        self.upgraded += other.upgraded;
        self.written_again += other.written_again;
        self.admitted += other.admitted;
        self.resized += other.resized;
        self.observed += other.observed;
        self.proclaimed += other.proclaimed;
        self.lost_with_delay += other.lost_with_delay;
        self.periods += other.periods;
        self.partitions += other.partitions;
        self.unconfirmed += other.unconfirmed;
        self.forgotten += other.forgotten;
        self.outvoted += other.outvoted;
        self.repaired += other.repaired;
    }
}

/// Whether an owner has got a write beside another one.
fn has_written_again(at: Instant, done: &Execution<'_>) -> bool {
    let Some((request, Acquired::Granted { .. })) = done.acquires() else { return false };
    let is_own = |held: &Held| held.owner.is_some() && held.owner == request.claim.value;
    let is_other = |held: &Held| held.hold != request.claim.hold && held.mode == LockMode::Write;
    request.mode == LockMode::Write && done.holds(at).iter().any(|held| is_own(held) && is_other(held))
}

impl Counts {
    fn count(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) {
        let counter = match event {
            Event::Executed(done) => {
                let wanted =
                    |notification: &&Notification| matches!(notification, Notification::Wanted { .. });
                let wanted = done.notifications.iter().filter(wanted).count() as u64;
                self.wanted += wanted;
                self.granted += done.notifications.len() as u64 - wanted;
                self.stale += u64::from(done.is_stale);
                let already_ended =
                    done.acquires().is_some_and(|(_, reply)| matches!(reply, Acquired::AlreadyEnded(_)));
                self.already_ended += u64::from(already_ended && matches!(done.op, Op::Acquire(_)));
                self.force_released += u64::from(done.force_released().is_some());
                self.entered_remotely += u64::from(has_entered_remotely(at, done));
                self.evicted += u64::from(has_evicted(at, done));
                self.written_again += u64::from(has_written_again(at, done));
                self.resized += u64::from(*done.reply == Reply::Resize(Resized::Done));
                &mut self.executed
            }
            Event::SessionExecuted(done) if matches!(done.op, SessionOp::Heartbeat(_)) => {
                &mut self.heartbeats
            }
            Event::SessionSent { op: SessionOp::Heartbeat(heartbeat), .. } if heartbeat.begin.is_some() => {
                &mut self.sessions
            }
            Event::MessageFault { .. } => &mut self.message_faults,
            Event::Host(_, HostEvent::Crashed) => &mut self.crashes,
            Event::Host(_, HostEvent::Stopped) => &mut self.stops,
            Event::Host(_, HostEvent::LinkDown { .. }) => &mut self.broken_links,
            Event::Server(ServerEvent::Up { .. }) => return,
            Event::Server(ServerEvent::Promoted) => &mut self.partitions,
            Event::Server(_) => &mut self.server_events,
            Event::Task(_, _, TaskEvent::Acquired(guard_id, new_guard)) => {
                let was_handed_off = context.guards.get(*guard_id).is_some_and(GuardRecord::was_handed_off);
                self.handed_off += u64::from(was_handed_off);
                self.entered += u64::from(new_guard.count > 1);
                self.with_others += u64::from(new_guard.is_multi);
                self.shared += u64::from(new_guard.mode != LockMode::Exclusive);
                self.upgraded += u64::from(new_guard.mode == LockMode::Upgrade);
                &mut self.acquired
            }
            Event::Task(_, _, TaskEvent::Cancelled) => &mut self.cancelled,
            Event::Task(_, _, TaskEvent::NotAcquired(AcquireFailure::Unconfirmed)) => &mut self.unconfirmed,
            Event::Task(_, _, TaskEvent::Admitted) => &mut self.admitted,
            Event::Task(_, _, TaskEvent::LossReported(guard_id, _)) => {
                let has_delay =
                    context.guards.get(*guard_id).is_some_and(|known| !known.lock_delay.is_zero());
                self.lost_with_delay += u64::from(has_delay);
                &mut self.lost
            }
            Event::Task(_, _, TaskEvent::Proclaimed(..)) => &mut self.proclaimed,
            Event::Task(_, _, TaskEvent::Released(_, Some(1..))) => &mut self.still_held,
            Event::Task(_, _, TaskEvent::Released(guard_id, Some(0))) => {
                let hold = context.guards.hold(*guard_id);
                let is_cached = hold.is_some_and(|hold| context.guards.given_up(&hold).is_none());
                self.cached += u64::from(is_cached);
                return;
            }
            Event::MultiExecuted(_) => &mut self.multi_executed,
            Event::Observer(_, _, ObserverEvent::Reported(Some(_))) => &mut self.observed,
            Event::Period(_, _, PeriodEvent::Started { .. }) => &mut self.periods,
            _ => return,
        };
        *counter += 1;
    }
}

/// Whether the operation has just evicted a hold.
fn has_evicted(at: Instant, done: &Execution<'_>) -> bool {
    let last = done.state.audit.as_ref().and_then(|audit| audit.entries.first());
    let now_ms = done.clock.reading_us(at) / 1000;
    done.evicts().is_some() && last.is_some_and(|last| last.ended == Ended::Evicted && last.at_ms == now_ms)
}

/// Whether a process has just acquired a lock that its owner held in other processes only.
fn has_entered_remotely(at: Instant, done: &Execution<'_>) -> bool {
    let Some((request, Acquired::Granted { owner_holds: Some(_), .. })) = done.acquires() else {
        return false;
    };
    let session = request.claim.hold.session();
    let holds = done.holds(at);
    let (its, others): (Vec<_>, Vec<_>) = holds.iter().partition(|held| held.hold.session() == session);
    matches!(its[..], [new] if new.hold == request.claim.hold) && !others.is_empty()
}

/// Records one run.
pub(crate) struct Recorder {
    context: CheckContext,
    checks: Vec<Box<dyn Check + Send>>,
    pub(crate) violation: Option<Violation>,
    pub(crate) counts: Counts,
    /// What happened, if a trace was requested.
    trace: Option<Collector>,
}

impl Recorder {
    pub(crate) fn new(checks: Vec<Box<dyn Check + Send>>, context: CheckContext, with_trace: bool) -> Self {
        Self {
            context,
            checks,
            violation: None,
            counts: Counts::default(),
            trace: with_trace.then(Collector::default),
        }
    }

    pub(crate) fn record(&mut self, at: Instant, event: &Event<'_>) {
        if self.violation.is_some() {
            return;
        }
        if let Some(trace) = &mut self.trace {
            trace.observe(at, event);
        }
        self.context.observe(at, event);
        self.counts.count(at, event, &self.context);
        for check in &mut self.checks {
            if let Err(what) = check.observe(at, event, &self.context) {
                self.violation = Some(Violation { check: check.name(), at, what });
                return;
            }
        }
    }

    /// The trace; empty unless one was requested.
    pub(crate) fn timeline(&mut self) -> Timeline {
        self.trace.take().map_or_else(Timeline::default, Collector::finish)
    }

    pub(crate) fn advance(&mut self, at: Instant) {
        if self.violation.is_some() {
            return;
        }
        self.context.advance(at);
        for check in &mut self.checks {
            if let Err(what) = check.advance(at, &self.context) {
                self.violation = Some(Violation { check: check.name(), at, what });
                return;
            }
        }
    }

    pub(crate) fn fail(&mut self, check: &'static str, at: Instant, what: String) {
        self.violation.get_or_insert(Violation { check, at, what });
    }
}
