//! Acquiring several locks at once: all of them or none. The caller never waits in here while it holds one of them.
//!
//! 1. All locks are requested in one step of the store, if it supports that. If one is not available, none is
//!    acquired.
//! 2. Holds whose session lapsed before the reply arrived are released, and all are requested again: other clients may
//!    have held the locks since, with greater fencing tokens.
//! 3. The result names the lock that was not available: the caller waits for that one as for any lock, then requests
//!    the rest while holding it. How often it does so, and what it does then, is up to the caller.

use super::deadline::AcquireDeadline;
use super::{AcquireFailure, AcquireParams, AcquiredHold, QueuedWaiter};
use crate::engine::local::lock_entry::{LockEntry, PendingRequest, WaiterAction};
use crate::engine::{Engine, Hold, Session, TrackingId};
use crate::store::{Executed, Fault, Outcome};
use leasehold_core::{Acquire, Acquired, Lock, Moment, MultiAcquired, Op, Reply};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// The lock that prevented acquiring all.
#[derive(Debug)]
pub(crate) struct MultiBlocked {
    /// Its index.
    pub(crate) at: usize,
    /// The result for that lock alone, usually [`AcquireFailure::Taken`].
    pub(crate) failure: AcquireFailure,
}

/// Acquires the locks of all these entries, or none. No two may be for the same lock. The caller must hand all holds
/// to the keeper before the next await.
///
/// Two tasks that call this have the same order in each local queue, so at least one of the two never waits behind
/// the other.
pub(crate) async fn acquire_all<'a>(
    engine: &'a Engine,
    entries: &[&'a Arc<LockEntry>],
    params: &'a AcquireParams,
) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
    if !engine.environment.timers_follow_clock() {
        return Err(MultiBlocked { at: 0, failure: AcquireFailure::PausedClock });
    }
    loop {
        let ids = engine.locks.join_all(entries, &params.terms);
        let waiters =
            entries.iter().zip(ids).map(|(entry, id)| QueuedWaiter { engine, entry, id, acquired: false });
        let waiter = MultiWaiter {
            engine,
            waiters: waiters.collect(),
            deadline: AcquireDeadline::new(engine, params),
        };
        match waiter.run().await {
            // (2)
            Err(MultiBlocked { failure: AcquireFailure::Lost(..), .. })
                if params.limit.is_none_or(|limit| engine.environment.now() < limit) =>
            {
                // Otherwise the next request may find what this one has left.
                let until = engine.environment.now() + engine.timings.call;
                let until = params.limit.map_or(until, |limit| until.min(limit));
                for signal in entries.iter().flat_map(|entry| engine.keeper.releasing(&entry.lock)) {
                    tokio::select! {
                        () = signal.cancelled() => {}
                        () = engine.environment.sleep_until(until) => {}
                    }
                }
            }
            result => return result,
        }
    }
}

/// A task in the queues of several locks.
struct MultiWaiter<'a> {
    engine: &'a Engine,
    waiters: Vec<QueuedWaiter<'a>>,
    deadline: AcquireDeadline<'a>,
}

/// The next step.
enum MultiAction {
    /// Send all of these.
    Send(Vec<(PendingRequest, Acquire)>),
    /// Wait until then.
    Sleep(Moment),
}

impl<'a> MultiWaiter<'a> {
    async fn run(mut self) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
        loop {
            let (sessions, now) = self.live_sessions().await?;
            match self.poll(&sessions, now)? {
                MultiAction::Sleep(until) => self.sleep(until, now).await?,
                MultiAction::Send(requests) => {
                    if self.send(&requests, now).await? {
                        return self.take_all(&sessions);
                    }
                }
            }
        }
    }

    /// The session for each lock.
    async fn live_sessions(&mut self) -> Result<(Vec<Arc<Session>>, Moment), MultiBlocked> {
        let mut sessions = Vec::with_capacity(self.waiters.len());
        for (at, waiter) in self.waiters.iter().enumerate() {
            let session = self.deadline.live_session(waiter.entry.partition).await;
            sessions.push(session.map_err(|failure| MultiBlocked { at, failure })?.0);
        }
        Ok((sessions, self.engine.environment.now()))
    }

    /// The requests for all locks. Fails if this process holds one, or has another task ahead in its queue.
    fn poll(&mut self, sessions: &[Arc<Session>], now: Moment) -> Result<MultiAction, MultiBlocked> {
        let mut requests = Vec::with_capacity(self.waiters.len());
        for (at, session) in sessions.iter().enumerate() {
            // Read first: once the lock is acquired here, the present holder is this process.
            let status = self.waiters[at].wait_status(now);
            let failure = match self.poll_one(at, session, now) {
                WaiterAction::Send(request, acquire) => {
                    requests.push((request, acquire));
                    continue;
                }
                WaiterAction::Sleep(until) => {
                    self.cancel(&requests);
                    return Ok(MultiAction::Sleep(until));
                }
                WaiterAction::LeaseTooShort => AcquireFailure::LeaseTooShort,
                WaiterAction::Closed => AcquireFailure::Closed,
                other => {
                    self.decline(at, other);
                    AcquireFailure::Taken(Box::new(status))
                }
            };
            self.cancel(&requests);
            return Err(MultiBlocked { at, failure });
        }
        Ok(MultiAction::Send(requests))
    }

    fn poll_one(&self, at: usize, session: &Arc<Session>, now: Moment) -> WaiterAction {
        let waiter = &self.waiters[at];
        let environment = &self.engine.environment;
        loop {
            let _permit = self.engine.gate.permit();
            match waiter.entry.poll(waiter.id, session, now, &mut || environment.random()) {
                WaiterAction::Undo(claims) => waiter.undo(claims),
                action => return action,
            }
        }
    }

    /// Declines what a lock entry has for this task: a set is acquired as a whole, or not at all.
    fn decline(&mut self, at: usize, action: WaiterAction) {
        match action {
            WaiterAction::Granted(hold, _, claims) => {
                // It was granted for a task that has left since. The release hands it to the next waiter.
                self.waiters[at].acquired = true;
                self.waiters[at].undo(claims);
                self.release(at, &hold);
            }
            WaiterAction::HandedOff(hold, tracking, _) => {
                self.waiters[at].acquired = true;
                self.release_idle(at, &hold, tracking);
            }
            WaiterAction::ReleaseIdle(hold, tracking) => self.release_idle(at, &hold, tracking),
            WaiterAction::AwaitReserve(tracking, Some(reserve)) => {
                self.engine.keeper.reserve(tracking, reserve);
            }
            _ => {}
        }
    }

    /// Cancels requests that were not sent.
    fn cancel(&self, requests: &[(PendingRequest, Acquire)]) {
        for (waiter, (request, _)) in self.waiters.iter().zip(requests) {
            waiter.entry.cancel_request(*request);
        }
    }

    /// Sends the requests. Returns whether all locks were acquired; fails if one was not, and if a retry is useless.
    async fn send(
        &mut self,
        requests: &[(PendingRequest, Acquire)],
        now: Moment,
    ) -> Result<bool, MultiBlocked> {
        let Some(within) = self.deadline.call_timeout(now) else {
            self.cancel(requests);
            return Err(self.timed_out(now));
        };
        if self.deadline.is_too_late(now) {
            self.cancel(requests);
            self.deadline.sleep_until(None).await;
            return Err(self.timed_out(self.engine.environment.now()));
        }
        let locks = self.waiters.iter().map(|waiter| waiter.entry.lock.clone());
        let named: Vec<_> = locks.zip(requests.iter().map(|(_, acquire)| acquire.clone())).collect();
        let outcome = {
            let sending = pin!(async {
                let request = self.engine.telemetry.request();
                match self.engine.store.acquire_all(&named, within).await {
                    Some(outcome) => {
                        request.answered("acquire", &outcome);
                        outcome
                    }
                    None => self.send_one_by_one(&named, within).await,
                }
            });
            self.engine.gate.run(sending).await
        };
        let now = self.engine.environment.now();
        match outcome {
            None => Err(MultiBlocked { at: 0, failure: AcquireFailure::Closed }),
            Some(Outcome::Done(replies)) => {
                self.deadline.handle_reply();
                self.handle_replies(requests, &replies, now).map(|()| true)
            }
            Some(Outcome::Failed(executed, fault)) => self.handle_fault(requests, fault, executed, now),
        }
    }

    /// Fallback for a store without a single step: one batch of separate requests. If one fails, the others are
    /// released.
    async fn send_one_by_one(
        &self,
        requests: &[(Lock, Acquire)],
        within: Duration,
    ) -> Outcome<Vec<MultiAcquired>> {
        let ops = requests.iter().map(|(lock, acquire)| (lock.clone(), Op::Acquire(acquire.clone())));
        let ops: Vec<_> = ops.collect();
        let mut replies = Vec::with_capacity(ops.len());
        let request = self.engine.telemetry.request();
        let outcomes = self.engine.store.execute_all(&ops, within).await;
        request.all_answered(&ops, &outcomes);
        for outcome in outcomes {
            replies.push(match outcome {
                Outcome::Done(Reply::Acquire(granted @ Acquired::Granted { .. })) => {
                    MultiAcquired::Acquired(granted)
                }
                Outcome::Done(Reply::Acquire(other)) => MultiAcquired::Blocked(Ok(other)),
                Outcome::Done(Reply::Refused(refused)) => MultiAcquired::Blocked(Err(refused)),
                Outcome::Done(other) => {
                    return Outcome::Failed(Executed::Unknown, Fault::unexpected_reply(other));
                }
                Outcome::Failed(_, fault) => return Outcome::Failed(Executed::Unknown, fault),
            });
        }
        Outcome::Done(replies)
    }

    /// Passes the store's replies to all entries. Fails if a lock was not available.
    fn handle_replies(
        &self,
        requests: &[(PendingRequest, Acquire)],
        replies: &[MultiAcquired],
        now: Moment,
    ) -> Result<(), MultiBlocked> {
        let mut blocked = None;
        let sent = self.waiters.iter().zip(requests.iter().zip(replies));
        for (at, (waiter, ((request, _), reply))) in sent.enumerate() {
            let answer = match reply {
                MultiAcquired::Acquired(acquired) | MultiAcquired::Blocked(Ok(acquired)) => {
                    Some(Ok(acquired))
                }
                MultiAcquired::Blocked(Err(_)) => Some(Err(Executed::No)),
                // An earlier attempt, whose reply was lost, acquired it.
                MultiAcquired::Held => Some(Err(Executed::Unknown)),
                MultiAcquired::Available => None,
            };
            match answer {
                Some(answer) => waiter.handle_answer(*request, answer, now),
                // It was available, and the store did nothing.
                None => waiter.entry.cancel_request(*request),
            }
            let failure = match reply {
                MultiAcquired::Blocked(Err(refused)) => {
                    let fault = Fault::unexpected_reply(Reply::Refused(refused.clone()));
                    Some(AcquireFailure::Fault { fault, executed: Executed::No })
                }
                MultiAcquired::Blocked(Ok(_)) => {
                    Some(AcquireFailure::Taken(Box::new(waiter.wait_status(now))))
                }
                MultiAcquired::Acquired(_) | MultiAcquired::Available | MultiAcquired::Held => None,
            };
            blocked = blocked.or(failure.map(|failure| MultiBlocked { at, failure }));
        }
        blocked.map_or(Ok(()), Err)
    }

    /// Takes the acquired holds. If one of them is too old by the time its reply arrives, or its session has lapsed, none
    /// is kept.
    fn take_all(mut self, sessions: &[Arc<Session>]) -> Result<Vec<AcquiredHold<'a>>, MultiBlocked> {
        let mut all = Vec::with_capacity(self.waiters.len());
        for (at, session) in sessions.iter().enumerate() {
            // A shutdown waits until the hold is registered with the keeper, or released.
            let permit = self.engine.gate.permit();
            let now = self.engine.environment.now();
            let failure = match self.poll_one(at, session, now) {
                WaiterAction::Granted(hold, grant, claims) => {
                    self.waiters[at].acquired = true;
                    self.waiters[at].undo(claims);
                    let lapsed = hold.check(&*self.engine.environment).err();
                    let fence = hold.fence;
                    all.push(AcquiredHold { hold, grant, tracking: None, permit });
                    match lapsed {
                        None => continue,
                        Some(reason) => AcquireFailure::Lost(fence, Box::new(reason)), // (2)
                    }
                }
                WaiterAction::Closed => AcquireFailure::Closed,
                WaiterAction::LeaseTooShort => AcquireFailure::LeaseTooShort,
                _ => AcquireFailure::Taken(Box::new(self.waiters[at].wait_status(now))),
            };
            for (at, acquired) in all.iter().enumerate() {
                self.release(at, &acquired.hold);
            }
            return Err(MultiBlocked { at, failure });
        }
        Ok(all)
    }

    /// Releases an idle hold of this process.
    fn release_idle(&self, at: usize, hold: &Arc<Hold>, tracking: TrackingId) {
        self.waiters[at].entry.remove_hold(hold);
        self.engine.keeper.release_idle(tracking);
    }

    /// Releases a hold that is of no use alone. Once a shutdown has begun, the shutdown releases it.
    fn release(&self, at: usize, hold: &Arc<Hold>) {
        let _permit = self.engine.gate.permit();
        if !self.engine.gate.is_closed() {
            self.engine.keeper.release(hold);
            self.waiters[at].entry.remove_hold(hold);
        }
    }

    fn handle_fault(
        &mut self,
        requests: &[(PendingRequest, Acquire)],
        fault: Fault,
        executed: Executed,
        now: Moment,
    ) -> Result<bool, MultiBlocked> {
        tracing::debug!(%fault, locks = requests.len(), "no reply to a request for several locks");
        let mut unresponsive_for = Duration::ZERO;
        for (waiter, (request, _)) in self.waiters.iter().zip(requests) {
            waiter.handle_answer(*request, Err(executed), now);
            unresponsive_for = unresponsive_for.max(waiter.entry.unresponsive_for(*request, now));
        }
        let failed = self.deadline.handle_fault(fault, executed, unresponsive_for);
        failed.map(|()| false).map_err(|failure| MultiBlocked { at: 0, failure })
    }

    async fn sleep(&mut self, until: Moment, now: Moment) -> Result<(), MultiBlocked> {
        if self.deadline.has_passed(now) {
            return Err(self.timed_out(now));
        }
        self.deadline.sleep_until(Some(until)).await;
        Ok(())
    }

    fn timed_out(&mut self, now: Moment) -> MultiBlocked {
        let first = &self.waiters[0];
        MultiBlocked { at: 0, failure: self.deadline.failure(|| first.wait_status(now)) }
    }
}
