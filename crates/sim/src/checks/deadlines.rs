//! An acquire ends at its time limit, and not before; no client polls too often.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{AcquireFailure, AcquireMethod, Event, HostEvent, LockId, TaskEvent, TaskId};
use crate::world::time::Instant;
use leasehold_core::{HoldId, Op};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an acquire without a limit tolerates an outage, less clock drift.
const OUTAGE: Duration = Duration::from_secs(18);
/// How long a single try may take: the longest call timeout that the world has, and the drift.
const TRY: Duration = Duration::from_millis(2200);
/// How long a failing attempt may take: a few round trips.
const TAKEN: Duration = Duration::from_millis(150);
/// How often one hold may be requested within a second: the first waiter polls every 50 ms at most, and faults add a
/// few.
const LOOKS_A_SECOND: u32 = 45;

/// A single attempt ends soon. A wait with a limit ends at the limit. A wait without one ends only after a long
/// outage. A waiter polls at a bounded rate.
#[derive(Debug, Default)]
pub struct Deadlines {
    sought: BTreeMap<(LockId, TaskId), (AcquireMethod, Instant)>,
    /// Since when a hold's questions are counted, and how many there were.
    asked: BTreeMap<HoldId, (Instant, u32)>,
}

impl Deadlines {
    fn missed(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        miss: AcquireFailure,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((way, since)) = self.sought.remove(&(lock, task)) else { return Ok(()) };
        let took = at.since(since);
        // A process that stood still is late through no fault of its own.
        let well = context.health(task.host).and_then(Health::well_since).is_some_and(|well| well <= since);
        let slack = |limit: Duration| limit / 10 + Duration::from_millis(20);
        let is_early = match (way, miss) {
            (_, AcquireFailure::TooSlow | AcquireFailure::Lost | AcquireFailure::Impossible)
            | (AcquireMethod::Try | AcquireMethod::TryAll | AcquireMethod::Poll(_), _) => false,
            (AcquireMethod::WaitForEver | AcquireMethod::All(None), _) => {
                miss != AcquireFailure::Fault || took < OUTAGE
            }
            (AcquireMethod::Wait(limit) | AcquireMethod::All(Some(limit)), _) => {
                miss == AcquireFailure::Taken || took + slack(limit) < limit
            }
        };
        let longest = match way {
            AcquireMethod::Try | AcquireMethod::TryAll if miss == AcquireFailure::Taken => TAKEN,
            AcquireMethod::Try | AcquireMethod::TryAll => TRY,
            AcquireMethod::Wait(limit) | AcquireMethod::Poll(limit) | AcquireMethod::All(Some(limit)) => {
                limit + slack(limit)
            }
            AcquireMethod::WaitForEver | AcquireMethod::All(None) => Duration::MAX,
        };
        if is_early {
            return Err(format!("{task} gave {lock} up after {took:?} ({way:?}, {miss:?})"));
        }
        if well && took > longest {
            return Err(format!("{task} gave {lock} up after {took:?} only ({way:?}, {miss:?})"));
        }
        Ok(())
    }

    fn asks(&mut self, at: Instant, lock: LockId, hold: HoldId) -> CheckResult {
        let (since, count) = self.asked.entry(hold).or_insert((at, 0));
        if at.since(*since) > Duration::from_secs(1) {
            (*since, *count) = (at, 0);
        }
        *count += 1;
        if *count > LOOKS_A_SECOND {
            return Err(format!("{hold:?} was asked for {count} times within a second ({lock})"));
        }
        Ok(())
    }
}

impl Check for Deadlines {
    fn name(&self) -> &'static str {
        "deadlines"
    }

    fn observe(&mut self, at: Instant, event: &Event<'_>, context: &CheckContext) -> CheckResult {
        match *event {
            Event::Task(task, lock, TaskEvent::Acquiring(way, _)) => {
                self.sought.insert((lock, task), (way, at));
            }
            Event::Task(task, lock, TaskEvent::NotAcquired(miss)) => {
                return self.missed(at, task, lock, miss, context);
            }
            Event::Task(task, lock, TaskEvent::Acquired(..) | TaskEvent::Admitted | TaskEvent::Cancelled) => {
                self.sought.remove(&(lock, task));
            }
            Event::Sent { lock, op: Op::Acquire(ask), .. } => return self.asks(at, lock, ask.claim.hold),
            Event::Host(host, HostEvent::Crashed) => self.sought.retain(|(_, task), _| task.host != host),
            _ => {}
        }
        Ok(())
    }
}
