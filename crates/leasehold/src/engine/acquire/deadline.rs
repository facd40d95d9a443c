//! How long a task keeps requesting a lock: until its deadline or, without one, until the store has not answered for
//! too long.
//!
//! It owns what is known of the last unanswered request, and the wait for another session. It does not know what is
//! requested, or with how many requests.
//!
//! 1. A refusal says nothing about earlier requests. Until the store has answered, an earlier request that may have
//!    been executed makes the final result *unknown*, whatever it is otherwise.

use super::params::{AcquireFailure, AcquireParams};
use crate::engine::{Engine, Session};
use crate::store::Fault;
use leasehold_core::machine::contender::WaitStatus;
use leasehold_core::{Executed, Moment, Partition};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The deadline and outage budget of one task.
pub(in crate::engine) struct AcquireDeadline<'a> {
    engine: &'a Engine,
    pursuit: &'a AcquireParams,
    /// The last fault, if the store has not answered since, and whether any request was executed (1).
    last_fault: Option<(Fault, Executed)>,
    /// The sessions last used, held here so that they do not count as idle during the attempt.
    sessions: BTreeMap<Partition, Arc<Session>>,
}

impl<'a> AcquireDeadline<'a> {
    pub(in crate::engine) fn new(engine: &'a Engine, pursuit: &'a AcquireParams) -> Self {
        Self { engine, pursuit, last_fault: None, sessions: BTreeMap::new() }
    }

    /// A live session for a partition. If there is none, waits for the next one, as long as it would wait for a store
    /// that does not answer.
    pub(in crate::engine) async fn session(
        &mut self,
        place: Partition,
    ) -> Result<(Arc<Session>, Moment), AcquireFailure> {
        loop {
            let now = self.engine.environment.now();
            let own = self.pursuit.session.clone();
            let session = own.unwrap_or_else(|| self.engine.sessions.present(place));
            if now < session.alive_until() {
                self.sessions.insert(place, session.clone());
                return Ok((session, now));
            }
            self.outlive(&session, now).await?;
        }
    }

    /// Waits until another session has begun.
    async fn outlive(&mut self, session: &Arc<Session>, now: Moment) -> Result<(), AcquireFailure> {
        let engine = self.engine;
        let patience = now.max(session.alive_until()) + engine.timings.outage;
        let until = self.pursuit.limit.unwrap_or(patience);
        let begins = pin!(engine.sessions.after(session, || engine.keeper.begin(session.place)));
        tokio::select! {
            biased;
            begun = engine.gate.pass(begins) => begun.ok_or(AcquireFailure::Closed),
            () = engine.environment.sleep_until(until) => {
                let executed = self.last_fault.take().map_or(Executed::No, |(_, executed)| executed);
                Err(AcquireFailure::Fault { fault: engine.sessions.trouble(session.place), executed })
            }
        }
    }

    /// The time limit of the next call, or `None` if no time is left.
    pub(in crate::engine) fn time_to_answer(&self, now: Moment) -> Option<Duration> {
        let call = self.engine.timings.call;
        let Some(limit) = self.pursuit.limit else { return Some(call) };
        (limit > now).then(|| limit.since(now).min(call))
    }

    /// The store has answered.
    pub(in crate::engine) fn answered(&mut self) {
        self.last_fault = None;
    }

    /// The store has not answered for `silence`. Fails if a retry is useless.
    pub(in crate::engine) fn fault(
        &mut self,
        fault: Fault,
        executed: Executed,
        silence: Duration,
    ) -> Result<(), AcquireFailure> {
        let (earlier, earlier_executed) = self.last_fault.take().unzip();
        let executed = earlier_executed.map_or(executed, |earlier| executed.or(earlier));
        let fault = fault.or_earlier(earlier);
        let too_long = self.pursuit.limit.is_none() && silence >= self.engine.timings.outage;
        if too_long || !fault.is_transient() {
            return Err(AcquireFailure::Fault { fault, executed });
        }
        self.last_fault = Some((fault, executed));
        Ok(())
    }

    /// Whether no time is left.
    pub(in crate::engine) fn is_over(&self, now: Moment) -> bool {
        self.pursuit.limit.is_some_and(|limit| limit <= now)
    }

    /// The deadline has passed: reports whether the lock was held (`standing`) or the store did not answer.
    pub(in crate::engine) fn time_is_up(&mut self, standing: impl FnOnce() -> WaitStatus) -> AcquireFailure {
        match self.last_fault.take() {
            Some((fault, executed)) => AcquireFailure::Fault { fault, executed },
            None => AcquireFailure::TimedOut(Box::new(standing())),
        }
    }

    /// Sleeps until then, or until the deadline.
    pub(in crate::engine) async fn sleep(&self, until: Option<Moment>) {
        match until.into_iter().chain(self.pursuit.limit).min() {
            Some(at) => self.engine.environment.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
