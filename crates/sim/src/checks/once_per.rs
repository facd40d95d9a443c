//! At most one start succeeds within a period.

use super::{Check, CheckContext, CheckResult};
use crate::event::{Event, Execution, Held, HostEvent, LockId, PeriodEvent, ServerEvent, TaskId};
use crate::world::time::{Clock, Instant};
use leasehold_core::{FencingToken, HoldId, HoldStatus, Kind, Op, ReleaseAction, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// By the store's clock, no client acquires the lock before the period is over, counted from its start; unless the
/// start was given up or released by force, its key was deleted, the store lost its data, or its clock was set. The
/// lock rests no longer than the period. The store keeps the hold as long as its guard is valid. Every such key
/// expires.
#[derive(Debug, Default)]
pub struct OncePerPeriod {
    /// Holds that were seen at the store. One that a failover brings back is not a new start.
    seen: BTreeSet<HoldId>,
    given: BTreeMap<(LockId, FencingToken), Given>,
    /// Valid guards, and until when.
    believed: BTreeMap<(LockId, FencingToken), (TaskId, Instant)>,
    held: BTreeMap<LockId, Vec<Held>>,
    /// The store's clock, as it was last seen.
    clock: Option<Clock>,
}

/// A hold that was given.
#[derive(Debug, Clone, Copy)]
struct Given {
    hold: HoldId,
    /// When, in the store's milliseconds.
    at_ms: u64,
    /// Set once a task is known to have it for its turn.
    period_ms: Option<u64>,
    /// Set once it was given up or released by force.
    is_void: bool,
}

impl Given {
    /// Until when no other client may acquire the lock.
    fn rules_until_ms(&self) -> Option<u64> {
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
                self.not_before(lock, now_ms, &format!("{hold:?}"))?;
                let new = Given { hold: *hold, at_ms: now_ms, period_ms: None, is_void: false };
                self.given.insert((lock, *fence), new);
            }
        }
        self.held.insert(lock, holds);
        self.rests(done)?;
        if context.promises.exclusion {
            let all = self.believed.keys().filter(|(of, _)| *of == lock);
            all.copied().try_for_each(|turn| self.judge(at, turn))?;
        }
        Ok(())
    }

    /// Records what was given up or released by force.
    fn end(&mut self, done: &Execution<'_>) {
        if let (Op::Release(release), Reply::Release(released)) = (done.op, done.reply)
            && released.status == HoldStatus::Held
            && !matches!(release.action, ReleaseAction::Cooldown { .. })
        {
            let hold = release.claim.hold;
            let given = self.given.values_mut().filter(|given| given.hold == hold);
            given.for_each(|given| given.is_void = true);
        }
        if let Some(Some(fence)) = done.freed() {
            self.believed.remove(&(done.lock, fence));
            if let Some(given) = self.given.get_mut(&(done.lock, fence)) {
                given.is_void = true;
            }
        }
    }

    /// No client acquires the lock before the period is over.
    fn not_before(&self, lock: LockId, now_ms: u64, who: &str) -> CheckResult {
        let mut given = self.given.iter().filter(|((of, _), _)| *of == lock);
        let rules = given.find(|(_, given)| given.rules_until_ms().is_some_and(|until_ms| now_ms < until_ms));
        match rules {
            Some(((_, fence), given)) => Err(format!(
                "{who} got {lock} at {now_ms}, and the turn {fence} of {:?} was given at {}",
                given.period_ms.map(Duration::from_millis),
                given.at_ms
            )),
            None => Ok(()),
        }
    }

    /// A resting lock expires at the end of its period.
    fn rests(&self, done: &Execution<'_>) -> CheckResult {
        let (lock, state) = (done.lock, done.state);
        let Some(value) = &state.value else { return Ok(()) };
        let fence = state.record.as_ref().and_then(|record| record.last_fence);
        let given = fence.and_then(|fence| self.given.get(&(lock, fence)));
        let Some((given, period_ms)) = given.and_then(|given| Some((given, given.period_ms?))) else {
            return Ok(());
        };
        match value.expires_ms {
            None => Err(format!("the turn {fence:?} of {lock} stays for ever")),
            Some(until_ms)
                if value.content.token() == Some(&*state.kind.cooldown_token(fence))
                    && until_ms > given.at_ms + period_ms =>
            {
                let due_ms = given.at_ms + period_ms;
                Err(format!("{lock} rests until {until_ms}, and its period is over at {due_ms}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// The store keeps the hold as long as its guard is valid.
    fn judge(&self, at: Instant, turn: (LockId, FencingToken)) -> CheckResult {
        let Some((task, until)) = self.believed.get(&turn).filter(|(_, until)| *until > at) else {
            return Ok(());
        };
        let (lock, fence) = turn;
        let held = self.held.get(&lock).and_then(|held| held.iter().find(|held| held.fence == fence));
        match held {
            Some(held) if held.until.is_none_or(|end| end >= *until) => Ok(()),
            other => {
                Err(format!("{task} believes in its turn of {lock} until {until}, the store has {other:?}"))
            }
        }
    }

    fn turn(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        what: PeriodEvent,
        context: &CheckContext,
    ) -> CheckResult {
        match what {
            PeriodEvent::Has { fence, until, period } => {
                let Some(given) = self.given.get_mut(&(lock, fence)) else { return Ok(()) };
                given.period_ms = Some(u64::try_from(period.as_millis()).unwrap_or(u64::MAX));
                let given = *given;
                let end_ms = given.rules_until_ms();
                let after = self.given.iter().filter(|((of, token), _)| *of == lock && *token > fence);
                for (_, other) in after {
                    if end_ms.is_some_and(|end_ms| other.at_ms < end_ms) {
                        return Err(format!(
                            "{task} has a turn of {lock} ({given:?}), and {other:?} came after"
                        ));
                    }
                }
                if !given.is_void {
                    self.believed.insert((lock, fence), (task, until));
                }
                if context.promises.exclusion {
                    return self.judge(at, (lock, fence));
                }
            }
            PeriodEvent::Releasing(fence) => drop(self.believed.remove(&(lock, fence))),
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
            Event::Period(task, lock, what) => return self.turn(at, task, lock, what, context),
            Event::Foreign(lock, Some(_)) => {
                self.held.remove(&lock);
                let now_ms = self.clock.map_or(u64::MAX, |clock| clock.reading_us(at) / 1000);
                return self.not_before(lock, now_ms, "a stranger");
            }
            Event::Host(host, HostEvent::Crashed) => self.believed.retain(|_, (task, _)| task.host != host),
            // Periods of another clock, or that were lost, do not count. The state is unknown until the next
            // operation.
            Event::Server(
                ServerEvent::Up { with_data: false } | ServerEvent::FailedOver | ServerEvent::Jumped(_),
            ) => {
                self.given.clear();
                self.held.clear();
                self.clock = None;
            }
            Event::Server(ServerEvent::Deleted(lock)) => {
                self.given.retain(|(of, _), _| *of != lock);
                self.held.remove(&lock);
            }
            _ => {}
        }
        Ok(())
    }
}
