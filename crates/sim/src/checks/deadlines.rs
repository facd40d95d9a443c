//! An acquire ends at its time limit, and not before; no client polls too often.

use super::{Check, CheckContext, CheckResult, Health};
use crate::event::{AcquireFailure, AcquireMethod, Event, HostEvent, LockId, TaskEvent, TaskId};
use crate::world::time::Instant;
use leasehold_core::{HoldId, Op};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long an acquire without a limit tolerates an outage, less clock drift.
const OUTAGE_TOLERANCE: Duration = Duration::from_secs(18);
/// How long a single attempt may take: the longest call timeout of the world, and the drift.
const TRY_WITHIN: Duration = Duration::from_millis(2200);
/// How long an attempt at a taken lock may take: a few round trips.
const REFUSAL_WITHIN: Duration = Duration::from_millis(150);
/// How often one hold may be requested within a second: the first waiter polls every 50 ms at most, and faults add a
/// few.
const POLLS_PER_SECOND: u32 = 45;

/// A single attempt ends soon. A wait with a limit ends at the limit. A wait without one ends only after a long
/// outage. A waiter polls at a bounded rate.
#[derive(Debug, Default)]
pub struct Deadlines {
    acquiring: BTreeMap<(LockId, TaskId), (AcquireMethod, Instant)>,
    /// Since when the requests for a hold are counted, and their number.
    requests: BTreeMap<HoldId, (Instant, u32)>,
}

impl Deadlines {
    fn acquire_failed(
        &mut self,
        at: Instant,
        task: TaskId,
        lock: LockId,
        failure: AcquireFailure,
        context: &CheckContext,
    ) -> CheckResult {
        let Some((method, since)) = self.acquiring.remove(&(lock, task)) else { return Ok(()) };
        let took = at.since(since);
        // A stopped process may be late.
        let healthy =
            context.health(task.host).and_then(Health::healthy_since).is_some_and(|healthy| healthy <= since);
        let slack = |limit: Duration| limit / 10 + Duration::from_millis(20);
        let is_early = match (method, failure) {
            (
                _,
                AcquireFailure::LeaseTooShort
                | AcquireFailure::Unconfirmed
                | AcquireFailure::Lost
                | AcquireFailure::Impossible,
            )
            | (AcquireMethod::Try | AcquireMethod::TryAll | AcquireMethod::Poll(_), _) => false,
            (AcquireMethod::Wait | AcquireMethod::All(None), _) => {
                failure != AcquireFailure::Fault || took < OUTAGE_TOLERANCE
            }
            (AcquireMethod::WaitTimeout(limit) | AcquireMethod::All(Some(limit)), _) => {
                failure == AcquireFailure::Taken || took + slack(limit) < limit
            }
        };
        let longest = match method {
            // A session may have to begin first, which counts only once the replica has it.
            AcquireMethod::Try | AcquireMethod::TryAll
                if failure == AcquireFailure::Taken && context.replica_lag.is_zero() =>
            {
                REFUSAL_WITHIN
            }
            AcquireMethod::Try | AcquireMethod::TryAll => TRY_WITHIN + context.replica_lag * 4,
            AcquireMethod::WaitTimeout(limit)
            | AcquireMethod::Poll(limit)
            | AcquireMethod::All(Some(limit)) => limit + slack(limit),
            AcquireMethod::Wait | AcquireMethod::All(None) => Duration::MAX,
        };
        if is_early {
            return Err(format!(
                "{task} failed to acquire {lock} too early, after {took:?} ({method:?}, {failure:?})"
            ));
        }
        if healthy && took > longest {
            return Err(format!(
                "{task} failed to acquire {lock} too late, after {took:?} ({method:?}, {failure:?})"
            ));
        }
        Ok(())
    }

    fn acquire_sent(&mut self, at: Instant, lock: LockId, hold: HoldId) -> CheckResult {
        let (since, count) = self.requests.entry(hold).or_insert((at, 0));
        if at.since(*since) > Duration::from_secs(1) {
            (*since, *count) = (at, 0);
        }
        *count += 1;
        if *count > POLLS_PER_SECOND {
            return Err(format!("{hold:?} of {lock} was requested {count} times within a second"));
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
            Event::Task(task, lock, TaskEvent::Acquiring(method, _)) => {
                self.acquiring.insert((lock, task), (method, at));
            }
            Event::Task(task, lock, TaskEvent::NotAcquired(failure)) => {
                return self.acquire_failed(at, task, lock, failure, context);
            }
            Event::Task(task, lock, TaskEvent::Acquired(..) | TaskEvent::Admitted | TaskEvent::Cancelled) => {
                self.acquiring.remove(&(lock, task));
            }
            Event::Sent { lock, op: Op::Acquire(request), .. } => {
                return self.acquire_sent(at, lock, request.claim.hold);
            }
            Event::Host(host, HostEvent::Crashed) => self.acquiring.retain(|(_, task), _| task.host != host),
            _ => {}
        }
        Ok(())
    }
}
