//! At most one start succeeds within a period.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, HostEvent, LockId, PeriodEvent, ServerEvent, TaskId};
use crate::world::time::{Clock, Instant};
use leasehold_core::{FencingToken, HoldId, HoldStatus, Kind, Op, ReleaseAction, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// By the store's clock, no client acquires the lock within a period after a start. Exceptions: the start was given up
/// or released by force, its key was deleted, the store lost its data, or its clock was set. The key expires at the
/// end of the period at the latest. The store keeps the hold as long as its guard is valid.
#[derive(Debug, Default)]
pub struct OncePerPeriod {
    /// Holds that were seen at the store. One that a failover restores is not a new start.
    seen: BTreeSet<HoldId>,
    starts: BTreeMap<(LockId, FencingToken), Start>,
    /// Valid guards, and until when.
    valid_guards: BTreeMap<(LockId, FencingToken), (TaskId, Instant)>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// The store's clock at its last operation.
    clock: Option<Clock>,
}

/// A hold that may start a period.
#[derive(Debug, Clone, Copy)]
struct Start {
    hold: HoldId,
    /// When it was granted, in the store's milliseconds.
    at_ms: u64,
    /// The period, once a task is known to have started it.
    period_ms: Option<u64>,
    /// Set once the start was given up or released by force.
    is_void: bool,
}

impl Start {
    /// Until when no other client may acquire the lock.
    fn blocks_until_ms(&self) -> Option<u64> {
        self.period_ms.filter(|_| !self.is_void).map(|period_ms| self.at_ms + period_ms)
    }
}

impl OncePerPeriod {
    fn executed(&mut self, at: Instant, done: &Execution<'_>, context: &CheckContext) -> CheckResult {
        self.clock = Some(*done.clock);
        self.end(done);
        let (lock, now_ms) = (done.lock, done.clock.reading_us(at) / 1000);
        let holds = done.holds(at);
        for Held { hold, fence, .. } in &holds {
            if self.seen.insert(*hold) {
                self.check_start(lock, now_ms, &format!("{hold:?}"))?;
                let new = Start { hold: *hold, at_ms: now_ms, period_ms: None, is_void: false };
                self.starts.insert((lock, *fence), new);
            }
        }
        self.held.insert(lock, holds);
        self.check_expiry(done)?;
        if context.promises.exclusion {
            let all = self.valid_guards.keys().filter(|(of, _)| *of == lock);
            all.copied().try_for_each(|period_guard| self.check_guard(at, period_guard))?;
        }
        Ok(())
    }

    /// Records a start that was given up or released by force.
    fn end(&mut self, done: &Execution<'_>) {
        if let (Op::Release(release), Reply::Release(released)) = (done.op, done.reply)
            && released.status == HoldStatus::Held
            && !matches!(release.action, ReleaseAction::Cooldown { .. })
        {
            let hold = release.claim.hold;
            let starts = self.starts.values_mut().filter(|start| start.hold == hold);
            starts.for_each(|start| start.is_void = true);
        }
        if let Some(Some(fence)) = done.force_released() {
            self.valid_guards.remove(&(done.lock, fence));
            if let Some(start) = self.starts.get_mut(&(done.lock, fence)) {
                start.is_void = true;
            }
        }
    }

    /// No client acquires the lock before the period is over.
    fn check_start(&self, lock: LockId, now_ms: u64, holder: &str) -> CheckResult {
        let mut starts = self.starts.iter().filter(|((of, _), _)| *of == lock);
        let blocking =
            starts.find(|(_, start)| start.blocks_until_ms().is_some_and(|until_ms| now_ms < until_ms));
        match blocking {
            Some(((_, fence), start)) => Err(format!(
                "{holder} acquired {lock} at {now_ms}, and the period {fence} of {:?} started at {}",
                start.period_ms.map(Duration::from_millis),
                start.at_ms
            )),
            None => Ok(()),
        }
    }

    /// The key expires at the end of the period at the latest.
    fn check_expiry(&self, done: &Execution<'_>) -> CheckResult {
        let (lock, state) = (done.lock, done.state);
        let Some(value) = &state.value else { return Ok(()) };
        let fence = state.record.as_ref().and_then(|record| record.last_fence);
        let start = fence.and_then(|fence| self.starts.get(&(lock, fence)));
        let Some((start, period_ms)) = start.and_then(|start| Some((start, start.period_ms?))) else {
            return Ok(());
        };
        match value.expires_ms {
            None => Err(format!("the key of period {fence:?} of {lock} has no expiry")),
            Some(until_ms)
                if value.content.token() == Some(&*state.kind.cooldown_token(fence))
                    && until_ms > start.at_ms + period_ms =>
            {
                let due_ms = start.at_ms + period_ms;
                Err(format!("{lock} is blocked until {until_ms}, and its period ends at {due_ms}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The store keeps the hold as long as its guard is valid.
    fn check_guard(&self, at: Instant, period_guard: (LockId, FencingToken)) -> CheckResult {
        let Some((task, until)) = self.valid_guards.get(&period_guard).filter(|(_, until)| *until > at)
        else {
            return Ok(());
        };
        let (lock, fence) = period_guard;
        let held = self.held.get(&lock).and_then(|held| held.iter().find(|held| held.fence == fence));
        match held {
            Some(held) if held.until.is_none_or(|end| end >= *until) => Ok(()),
            other => Err(format!(
                "the guard of {task} on {lock} is valid until {until}, and the store has {other:?}"
            )),
        }
    }

    fn period_guard(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        what: PeriodEvent,
        context: &CheckContext,
    ) -> CheckResult {
        match what {
            PeriodEvent::Started { fence, until, period } => {
                let Some(start) = self.starts.get_mut(&(lock, fence)) else { return Ok(()) };
                start.period_ms = Some(u64::try_from(period.as_millis()).unwrap_or(u64::MAX));
                let start = *start;
                let end_ms = start.blocks_until_ms();
                let after = self.starts.iter().filter(|((of, token), _)| *of == lock && *token > fence);
                for (_, other) in after {
                    if end_ms.is_some_and(|end_ms| other.at_ms < end_ms) {
                        return Err(format!(
                            "{task} started a period of {lock} ({start:?}), and {other:?} followed within it"
                        ));
                    }
                }
                if !start.is_void {
                    self.valid_guards.insert((lock, fence), (task, until));
                }
                if context.promises.exclusion {
                    return self.check_guard(at, (lock, fence));
                }
            }
            PeriodEvent::Releasing { fence, .. } => drop(self.valid_guards.remove(&(lock, fence))),
        }
        Ok(())
    }
}

impl Check for OncePerPeriod {
    fn name(&self) -> &'static str {
        "once_per"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Executed(done) if done.state.kind == Kind::Mutex => {
                return self.executed(at, done, context);
            }
            Event::Period(task, lock, what) => return self.period_guard(at, task, lock, what, context),
            Event::Foreign(lock, Some(_)) => {
                self.held.remove(&lock);
                let now_ms = self.clock.map_or(u64::MAX, |clock| clock.reading_us(at) / 1000);
                return self.check_start(lock, now_ms, "a foreign client");
            }
            Event::Host(host, HostEvent::Crashed) => {
                self.valid_guards.retain(|_, (task, _)| task.host != host);
            }
            // Periods that were lost, or measured by another clock, do not count.
            Event::Server(what) if what.makes_state_unknown() => {
                self.starts.clear();
                self.held.clear();
                self.clock = None;
            }
            Event::Server(ServerEvent::Deleted(lock)) => {
                self.starts.retain(|(of, _), _| *of != lock);
                self.held.remove(&lock);
            }
            _ => {}
        }
        Ok(())
    }
}
