//! How long a task keeps requesting a lock: until its deadline or, without one, until the store has not answered for
//! too long.
//!
//! It owns what is known of the last unanswered request, and the wait for another session. It does not know what is
//! requested, or with how many requests.
//!
//! 1. A refusal says nothing about earlier requests. Until the store has answered, an earlier request that may have
//!    been executed makes the final result *unknown*, whatever it is otherwise.
//! 2. A request that leaves no time for its reply is not sent, unless it is the first, or follows one without an answer: it
//!    would make a result that is known, that others held the lock until the deadline, unknown.

use super::{AcquireFailure, AcquireParams};
use crate::engine::activity::REPORT_WAIT_AFTER;
use crate::engine::keeper::activity::WaitReport;
use crate::engine::local::lock_entry::LockEntry;
use crate::engine::{Engine, Session};
use crate::store::Fault;
use leasehold_core::machine::contender::WaitStatus;
use leasehold_core::{Executed, Kind, Moment, Partition, whole_millis};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A request gets so much time for its reply, at least (2): more than a busy machine takes to run a thread.
const LEAST_TIME: Duration = Duration::from_millis(20);

/// The deadline and outage budget of one task.
pub(super) struct AcquireDeadline<'a> {
    engine: &'a Engine,
    params: &'a AcquireParams,
    /// When the task began. Others may have waited for the store before.
    begun: Moment,
    /// The last fault, if the store has not answered since, and whether any request was executed (1).
    last_fault: Option<(Fault, Executed)>,
    /// Whether the store has answered any request.
    has_answered: bool,
    /// The sessions last used, held here so that they do not count as idle during the attempt.
    sessions: BTreeMap<Partition, Arc<Session>>,
}

impl<'a> AcquireDeadline<'a> {
    pub(super) fn new(engine: &'a Engine, params: &'a AcquireParams) -> Self {
        let begun = engine.environment.now();
        Self { engine, params, begun, last_fault: None, has_answered: false, sessions: BTreeMap::new() }
    }

    /// A live session for a partition, and the current time. If there is none, waits for the next one, as long as it
    /// would wait for a store that does not answer.
    pub(super) async fn live_session(
        &mut self,
        partition: Partition,
    ) -> Result<(Arc<Session>, Moment), AcquireFailure> {
        // Of this wait: sessions that begin anew meanwhile, and get no answer, do not prolong it.
        let mut outage_ends = None;
        loop {
            let now = self.engine.environment.now();
            let own = self.params.session.clone();
            let session = own.unwrap_or_else(|| self.engine.sessions.current(partition));
            let alive_until = session.alive_until();
            if now < alive_until {
                self.sessions.insert(partition, session.clone());
                return Ok((session, now));
            }
            let outage_ends = *outage_ends.get_or_insert(now + self.engine.timings.outage);
            let until = self.params.limit.unwrap_or(outage_ends);
            let is_alive = |session: &Session| session.alive_until() != alive_until;
            if !self.wait_for_session(&session, is_alive, until).await? {
                return Err(self.no_session(self.engine.sessions.last_fault(partition)));
            }
        }
    }

    /// Waits until a session has begun, or another one is current.
    pub(super) async fn begin(&mut self, session: &Arc<Session>, now: Moment) -> Result<(), AcquireFailure> {
        let until = self.params.limit.unwrap_or(now + self.engine.timings.outage);
        if self.wait_for_session(session, Session::has_begun, until).await? {
            return Ok(());
        }
        match self.engine.sessions.known_fault(session.partition) {
            Some(fault) => Err(self.no_session(fault)),
            // The deadline came first.
            None if self.params.limit.is_some() => Ok(()),
            None => Err(self.no_session(self.engine.sessions.last_fault(session.partition))),
        }
    }

    /// Returns whether the session is as expected, or is not the current one any more. If not, the time is over.
    async fn wait_for_session(
        &self,
        session: &Arc<Session>,
        is_expected: impl Fn(&Session) -> bool,
        until: Moment,
    ) -> Result<bool, AcquireFailure> {
        let engine = self.engine;
        let request = || engine.keeper.begin_session(session.partition);
        let changes = pin!(engine.sessions.wait_for_change(session, request, is_expected));
        tokio::select! {
            biased;
            changed = engine.gate.run(changes) => changed.map(|()| true).ok_or(AcquireFailure::Closed),
            () = engine.environment.sleep_until(until) => Ok(false),
        }
    }

    fn no_session(&mut self, fault: Fault) -> AcquireFailure {
        let executed = self.last_fault.take().map_or(Executed::No, |(_, executed)| executed);
        AcquireFailure::Fault { fault, executed }
    }

    /// The time limit of the next call, or `None` if no time is left.
    pub(super) fn call_timeout(&self, now: Moment) -> Option<Duration> {
        let call = self.engine.timings.call;
        let Some(limit) = self.params.limit else { return Some(call) };
        (limit > now).then(|| limit.since(now).min(call))
    }

    /// Whether a request that is sent now would have no time for its reply (2).
    pub(super) fn is_too_late(&self, now: Moment) -> bool {
        let is_late = |limit: Moment| limit.since(now) < LEAST_TIME;
        self.has_answered && self.last_fault.is_none() && self.params.limit.is_some_and(is_late)
    }

    /// The store has answered.
    pub(super) fn handle_reply(&mut self) {
        self.last_fault = None;
        self.has_answered = true;
    }

    /// The store has not answered this process for `unresponsive_for`. Fails if a retry is useless.
    pub(super) fn handle_fault(
        &mut self,
        fault: Fault,
        executed: Executed,
        unresponsive_for: Duration,
    ) -> Result<(), AcquireFailure> {
        let (earlier, earlier_executed) = self.last_fault.take().unzip();
        let executed = earlier_executed.map_or(executed, |earlier| executed.or(earlier));
        let fault = fault.or_earlier(earlier);
        let waited = self.engine.environment.now().since(self.begun);
        let unresponsive_for = unresponsive_for.min(waited);
        let too_long = self.params.limit.is_none() && unresponsive_for >= self.engine.timings.outage;
        if too_long || !fault.is_transient() {
            return Err(AcquireFailure::Fault { fault, executed });
        }
        self.last_fault = Some((fault, executed));
        Ok(())
    }

    pub(super) fn has_passed(&self, now: Moment) -> bool {
        self.params.limit.is_some_and(|limit| limit <= now)
    }

    /// The result once the deadline has passed: that the lock was held, or that the store did not answer.
    pub(super) fn failure(&mut self, wait_status: impl FnOnce() -> WaitStatus) -> AcquireFailure {
        match self.last_fault.take() {
            Some((fault, executed)) => AcquireFailure::Fault { fault, executed },
            None => AcquireFailure::TimedOut(Box::new(wait_status())),
        }
    }

    /// When the wait is to be [reported](Self::report_wait); `None` if it is not: it does not end when a holder releases the
    /// lock, or no session of this client can report it.
    pub(super) fn report_at(&self, kind: Kind) -> Option<Moment> {
        let waits_for_holder = !matches!(kind, Kind::Latch | Kind::Barrier) && !self.params.once;
        let has_sessions = self.engine.sessions.liveness.ends_with_session();
        (waits_for_holder && has_sessions).then(|| self.begun + REPORT_WAIT_AFTER)
    }

    /// Reports the wait.
    pub(super) fn report_wait(&self, entry: &LockEntry) -> WaitReport {
        let environment = &self.engine.environment;
        let waited = environment.now().since(self.begun);
        let now = environment.system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let who = (self.params.terms.mode, (self.params.actor)());
        let since_ms = whole_millis(now.saturating_sub(waited));
        self.engine.keeper.report_wait(
            &entry.lock,
            entry.partition,
            who,
            since_ms,
            self.params.refuses_deadlock,
        )
    }

    /// Sleeps until then, or until the deadline.
    pub(super) async fn sleep_until(&self, until: Option<Moment>) {
        match until.into_iter().chain(self.params.limit).min() {
            Some(at) => self.engine.environment.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
