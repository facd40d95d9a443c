//! Waiters of a low priority, which ages.
//!
//! 1. While its priority is low, a waiter is in no queue. It tries again and again, and acquires the lock only if no other client
//!    waits. So each waiter of the usual priority goes before it, also one that comes later.
//! 2. After its time it queues, and no later waiter goes before it: none waits for ever.
//!
//! No store knows of it: a queue that is sorted anew for each waiter would cost every client.

use crate::error::AcquireError;
use crate::lock::handle::{Attempt, LockHandle};
use leasehold_core::{Moment, RetryPolicy};
use std::time::Duration;

/// The pauses between tries. Over the longest, a free lock may lie idle, if clients of low priority alone want it.
const PAUSES: RetryPolicy = RetryPolicy::exponential(Duration::from_millis(20), Duration::from_secs(1));

impl LockHandle {
    /// Tries for as long as the priority of a call that began at `start` is low; `None` if it is not, or not any more. An
    /// attempt takes the longest time that it may wait for its reply.
    pub(crate) async fn try_while_low_priority<T, F: Future<Output = Result<Attempt<T>, AcquireError>>>(
        &self,
        wait: Option<Duration>,
        start: Moment,
        attempt: impl Fn(Duration) -> F,
    ) -> Result<Option<T>, AcquireError> {
        let Some(low_for) = self.low_priority_for.filter(|_| wait != Some(Duration::ZERO)) else {
            return Ok(None);
        };
        let (ages_at, limit) = (start + low_for, wait.map(|wait| start + wait));
        let until = limit.map_or(ages_at, |limit| limit.min(ages_at));
        let (mut tries, mut unanswered_since) = (0, None);
        while self.now() < ages_at {
            let began = self.now();
            let call = self.engine.timings.call;
            let call = limit.map_or(call, |limit| call.min(limit.since(began)));
            let error = match attempt(call).await {
                Ok(Attempt::Granted(acquired)) => return Ok(Some(acquired)),
                Ok(Attempt::Taken(contention)) => {
                    unanswered_since = None;
                    let waited = self.now().since(start);
                    let contention = Box::new(contention);
                    AcquireError::TimedOut { lock: self.name().clone(), waited, contention }
                }
                Err(error) => {
                    let since = *unanswered_since.get_or_insert(began);
                    let is_over = limit.is_none() && self.now() >= since + self.engine.timings.outage;
                    if is_over || !error.may_succeed_later() {
                        return Err(error);
                    }
                    error
                }
            };
            if limit.is_some_and(|limit| self.now() >= limit) {
                return Err(error);
            }
            tries += 1;
            let environment = &self.engine.environment;
            let pause = PAUSES.backoff_after(tries, environment.random()).unwrap_or_default();
            environment.sleep_until((self.now() + pause).min(until)).await;
        }
        Ok(None)
    }
}
