//! Acquiring a lock: the only acquire loop.
//!
//! [`acquire`] puts the task into the local queue of the lock entry. Then it polls the entry, which says what to do
//! next, does that, and passes the result back. The entry knows what to request, and when; this module sends, sleeps,
//! and gives up.

pub(super) mod confirm;
pub(super) mod deadline;
pub(super) mod several;

use super::activity::Actor;
use super::hold::{Hold, ReserveRequest, TrackingId};
use super::keeper::activity::WaitReport;
use super::local::lock_entry::{LeftBehind, LockEntry, PendingRequest, RequestPath, WaiterAction};
use super::release::release_idle;
use super::shutdown_gate::GatePermit;
use super::wait_graph::{WaitCycle, must_give_up};
use super::{Engine, Session, unexpected_reply};
use crate::lost_reason::LostReason;
use crate::store::{Fault, Outcome, Subscription};
use crate::telemetry::{AcquireTrace, Operation};
use deadline::AcquireDeadline;
use futures_util::future::BoxFuture;
use leasehold_core::machine::contender::{AcquireTerms, Grant, WaitStatus};
use leasehold_core::{
    Acquire, Acquired, Claim, Executed, FencingToken, Liveness, Moment, Op, Reply, RetryPolicy,
};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Parameters of an acquire loop.
#[derive(Debug)]
pub(crate) struct AcquireParams {
    pub(crate) terms: Arc<AcquireTerms>,
    /// The session to acquire under; the client's current session if `None`.
    pub(crate) session: Option<Arc<Session>>,
    /// When to give up; never if `None`.
    pub(crate) limit: Option<Moment>,
    /// Set to give up as soon as the lock is known to be held.
    pub(crate) once: bool,
    /// Set to retry with pauses, without queueing.
    pub(crate) retry: Option<RetryPolicy>,
    /// Names what waits, once that is to be reported.
    pub(crate) actor: fn() -> Actor,
    /// Set to give up rather than be part of a cycle of waits.
    pub(crate) refuses_deadlock: bool,
}

/// Why a lock was not acquired.
#[derive(Debug)]
pub(crate) enum AcquireFailure {
    /// Another client holds it, and no attempts are left.
    Taken(Box<WaitStatus>),
    /// Another client held it until the deadline.
    TimedOut(Box<WaitStatus>),
    /// The store did not answer, or refused. If it is unknown whether any of the requests was executed, the lock may be
    /// held until its undo arrives or its first lease ends.
    Fault { fault: Fault, executed: Executed },
    /// The lease is shorter than the round trip to the store.
    LeaseTooShort,
    /// It was granted, and lost before replicas had confirmed it.
    Lost(FencingToken, Box<LostReason>),
    /// It is part of a cycle of waits, and gives up.
    Deadlock(Box<WaitCycle>),
    /// The client was shut down.
    Closed,
    /// No timer would fire when it should.
    PausedClock,
}

/// A newly acquired hold. The caller must hand it to the keeper before dropping this and before the next await.
pub(crate) struct AcquiredHold<'a> {
    pub(crate) hold: Arc<Hold>,
    pub(crate) grant: Grant,
    /// Set if it was handed off within the process: the keeper already tracks it.
    pub(crate) tracking: Option<TrackingId>,
    /// Delays a shutdown while this exists.
    pub(super) permit: GatePermit<'a>,
}

impl<'a> AcquiredHold<'a> {
    /// A hold handed off within the process. Sends the reserve request, if there is one.
    fn handed_off(
        engine: &Engine,
        hold: Arc<Hold>,
        tracking: TrackingId,
        reserve: Option<ReserveRequest>,
        permit: GatePermit<'a>,
    ) -> Self {
        if let Some(reserve) = reserve {
            engine.keeper.reserve(tracking, reserve);
        }
        let (claim, fence, valid_until) = (hold.claim.clone(), hold.fence, hold.valid_until());
        let (may_last_until, others_wait, owner_holds) = (hold.may_last_until(), false, None);
        let grant = Grant { claim, fence, valid_until, may_last_until, others_wait, owner_holds };
        Self { hold, grant, tracking: Some(tracking), permit }
    }
}

/// Takes the hold that the process keeps idle for later acquisitions, if there is one. Sends no acquire request and
/// never waits.
pub(crate) fn take_idle<'a>(
    engine: &'a Engine,
    entry: &LockEntry,
    (liveness, margin): (Liveness, Duration),
    lease: Duration,
) -> Option<AcquiredHold<'a>> {
    if !entry.lock.kind.supports_handoff() {
        return None;
    }
    let session = engine.sessions.current(entry.partition);
    let permit = engine.gate.permit();
    let now = engine.environment.now();
    let (hold, tracking, reserve) = entry.take_idle(&session, (liveness, margin), lease, now)?;
    Some(AcquiredHold::handed_off(engine, hold, tracking, reserve, permit))
}

/// Acquires the lock of an entry.
///
/// Cancel safety: if the future is dropped, the task leaves the queue, and an acquisition that may have happened is
/// undone in the background.
pub(crate) async fn acquire<'a>(
    engine: &'a Engine,
    entry: &'a Arc<LockEntry>,
    params: &'a AcquireParams,
    trace: &'a AcquireTrace<'a>,
) -> Result<AcquiredHold<'a>, AcquireFailure> {
    if !engine.environment.timers_follow_clock() {
        return Err(AcquireFailure::PausedClock);
    }
    let waiter = QueuedWaiter { engine, entry, id: entry.join(params.terms.clone()), acquired: false };
    let (deadline, subscription) = (AcquireDeadline::new(engine, params), ReleaseSubscription::NotYet);
    let (report, watch) = (None, None);
    AcquireLoop { waiter, params, trace, deadline, attempts: 0, subscription, report, watch }.run().await
}

struct AcquireLoop<'a> {
    waiter: QueuedWaiter<'a>,
    params: &'a AcquireParams,
    trace: &'a AcquireTrace<'a>,
    deadline: AcquireDeadline<'a>,
    /// The number of attempts of a polling task.
    attempts: u32,
    subscription: ReleaseSubscription,
    /// Set once the wait has lasted for so long that it is reported.
    report: Option<WaitReport>,
    /// Ends with the cycle because of which the wait gives up. Set with the report, if the wait is to give up.
    watch: Option<BoxFuture<'a, WaitCycle>>,
}

/// Whether a waiter receives releases: by clients of other libraries, or by all clients of a store without a queue.
enum ReleaseSubscription {
    /// Not subscribed.
    NotYet,
    /// Subscribed.
    Subscribed(Subscription),
    /// Subscribing is not possible: the waiter polls often instead.
    Unavailable,
}

impl<'a> AcquireLoop<'a> {
    async fn run(mut self) -> Result<AcquiredHold<'a>, AcquireFailure> {
        let (engine, entry) = (self.waiter.engine, self.waiter.entry);
        let random = &mut || engine.environment.random();
        loop {
            let (session, now) = self.deadline.live_session(entry.partition).await?;
            // A shutdown waits until the hold is registered with the keeper, or released.
            let permit = engine.gate.permit();
            let action = match entry.poll(self.waiter.id, &session, now, random) {
                WaiterAction::Granted(hold, grant, claims) => {
                    self.waiter.acquired = true;
                    self.waiter.undo(claims);
                    return Ok(AcquiredHold { hold, grant, tracking: None, permit });
                }
                WaiterAction::HandedOff(hold, tracking, reserve) => {
                    self.waiter.acquired = true;
                    return Ok(AcquiredHold::handed_off(engine, hold, tracking, reserve, permit));
                }
                action => action,
            };
            drop(permit);
            self.perform(action, &session, now).await?;
        }
    }

    async fn perform(
        &mut self,
        action: WaiterAction,
        session: &Arc<Session>,
        now: Moment,
    ) -> Result<(), AcquireFailure> {
        let (engine, entry) = (self.waiter.engine, self.waiter.entry);
        match action {
            WaiterAction::Send(request, acquire) => self.send(request, acquire, session, now).await,
            WaiterAction::Sleep(until) => self.sleep(Some(until), now).await,
            WaiterAction::Blocked(_) if self.params.once => {
                Err(AcquireFailure::Taken(Box::new(self.waiter.wait_status(now))))
            }
            WaiterAction::Blocked(until) => {
                // A polling task also polls while this process holds the lock.
                if self.pause(now).await? { Ok(()) } else { self.sleep(until, now).await }
            }
            WaiterAction::AwaitReserve(tracking, reserve) => {
                if let Some(reserve) = reserve {
                    engine.keeper.reserve(tracking, reserve);
                }
                // A single attempt waits for this reply, too: it shows whether the lock is held.
                self.sleep(None, now).await
            }
            WaiterAction::ReleaseIdle(hold, tracking) => {
                // It may wait for a renewal in flight. At the deadline the keeper continues it.
                let release = release_idle(engine, entry, &hold, tracking);
                match self.params.limit {
                    None => release.await,
                    Some(limit) => tokio::select! {
                        biased;
                        () = release => {}
                        () = engine.environment.sleep_until(limit) => {}
                    },
                }
                Ok(())
            }
            WaiterAction::Undo(claims) => {
                self.waiter.undo(claims);
                Ok(())
            }
            WaiterAction::LeaseTooShort => Err(AcquireFailure::LeaseTooShort),
            WaiterAction::Closed => Err(AcquireFailure::Closed),
            // Returned by `run`.
            WaiterAction::Granted(..) | WaiterAction::HandedOff(..) => Ok(()),
        }
    }

    /// Sends the acquire request and handles its reply or fault. A grant message that arrives earlier ends the wait.
    async fn send(
        &mut self,
        request: PendingRequest,
        acquire: Acquire,
        session: &Arc<Session>,
        now: Moment,
    ) -> Result<(), AcquireFailure> {
        let (engine, entry) = (self.waiter.engine, self.waiter.entry);
        let Some(within) = self.deadline.call_timeout(now) else { return Err(self.timed_out(now)) };
        if self.deadline.is_too_late(now) {
            entry.cancel_request(request);
            return self.wait_for_deadline().await;
        }
        let queues = acquire.queue.is_some();
        let op = Op::Acquire(acquire);
        let sent = engine.telemetry.request();
        let outcome = {
            let sending = pin!(async { engine.store.execute(&entry.lock, &op, within).await });
            let mut reply = pin!(engine.gate.run(sending));
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut reply => match outcome {
                        Some(outcome) => break outcome,
                        None => return Err(AcquireFailure::Closed),
                    },
                    () = entry.signaled(self.waiter.id) => {
                        if request.path == RequestPath::Queue && entry.is_granted(engine.environment.now()) {
                            return Ok(());
                        }
                    }
                }
            }
        };
        sent.answered(op.operation(), &outcome);
        let now = engine.environment.now();
        let (fault, executed) = match outcome {
            Outcome::Done(Reply::Acquire(reply)) => {
                self.deadline.handle_reply();
                self.waiter.handle_answer(request, Ok(&reply), now);
                return match reply {
                    Acquired::Taken { .. } if !queues && self.waits_in_queue(request.path) => {
                        self.begin_session(session, now).await
                    }
                    Acquired::Taken { .. } => self.handle_taken(request.path, now).await,
                    Acquired::Granted { .. } | Acquired::AlreadyEnded(_) => Ok(()),
                };
            }
            Outcome::Done(reply) => unexpected_reply(reply),
            Outcome::Failed(executed, fault) => (fault, executed),
        };
        tracing::debug!(lock = %entry.lock, %fault, "no answer");
        self.waiter.handle_answer(request, Err(executed), now);
        self.deadline.handle_fault(fault, executed, entry.unresponsive_for(request, now))
    }

    /// Sends nothing more: waits for a grant, or for another task of this process, until the deadline.
    async fn wait_for_deadline(&mut self) -> Result<(), AcquireFailure> {
        let QueuedWaiter { engine, entry, id, .. } = self.waiter;
        tokio::select! {
            biased;
            () = entry.signaled(id) => Ok(()),
            () = self.deadline.sleep_until(None) => Err(self.timed_out(engine.environment.now())),
        }
    }

    /// Whether requests on this path queue, once the session has begun.
    fn waits_in_queue(&self, path: RequestPath) -> bool {
        path == RequestPath::Queue && self.params.terms.queue && !self.params.once
    }

    /// Another client holds the lock, and the request did not queue, because the session had not begun. Begins it, and
    /// requests again.
    async fn begin_session(&mut self, session: &Arc<Session>, now: Moment) -> Result<(), AcquireFailure> {
        self.deadline.begin(session, now).await?;
        self.waiter.entry.retry_now(self.waiter.id, self.waiter.engine.environment.now());
        Ok(())
    }

    /// Another client holds the lock: a single attempt fails, and a polling task pauses.
    async fn handle_taken(&mut self, path: RequestPath, now: Moment) -> Result<(), AcquireFailure> {
        if self.params.once {
            return Err(AcquireFailure::Taken(Box::new(self.waiter.wait_status(now))));
        }
        if path == RequestPath::Queue && self.params.retry.is_none() {
            self.subscribe(now).await?;
        }
        self.pause(now).await.map(drop)
    }

    /// Subscribes to release notifications where the holder will not grant to this waiter: a client of another
    /// library, or any holder in a store without a queue. Then re-checks, as the lock may have been released before.
    async fn subscribe(&mut self, now: Moment) -> Result<(), AcquireFailure> {
        let QueuedWaiter { engine, entry, id, .. } = self.waiter;
        if engine.store.capabilities().queue && !entry.waits_for_foreign_holder(id) {
            // The next holder is checked anew.
            self.subscription = ReleaseSubscription::NotYet;
            entry.set_subscribed(id, false);
            return Ok(());
        }
        let within = self.deadline.call_timeout(now);
        let Some(within) = within.filter(|_| matches!(self.subscription, ReleaseSubscription::NotYet)) else {
            return Ok(());
        };
        let subscribing = pin!(async { engine.store.subscribe(&entry.lock, within).await });
        self.subscription = match engine.gate.run(subscribing).await {
            None => return Err(AcquireFailure::Closed),
            Some(Ok(Some(subscription))) => {
                entry.set_subscribed(id, true);
                entry.retry_now(id, engine.environment.now());
                ReleaseSubscription::Subscribed(subscription)
            }
            Some(Ok(None)) => ReleaseSubscription::Unavailable,
            Some(Err(fault)) => {
                tracing::debug!(lock = %entry.lock, %fault, "cannot subscribe to releases; polling often");
                ReleaseSubscription::Unavailable
            }
        };
        Ok(())
    }

    /// The pause of a polling task after an attempt; false for other tasks. Fails after the last attempt.
    async fn pause(&mut self, now: Moment) -> Result<bool, AcquireFailure> {
        let QueuedWaiter { engine, entry, id, .. } = self.waiter;
        let Some(retry) = &self.params.retry else { return Ok(false) };
        self.attempts += 1;
        let Some(pause) = retry.backoff_after(self.attempts, engine.environment.random()) else {
            return Err(AcquireFailure::Taken(Box::new(self.waiter.wait_status(now))));
        };
        entry.set_aside(id);
        self.sleep(Some(now + pause), now).await?;
        entry.retry_now(id, engine.environment.now());
        Ok(true)
    }

    /// Sleeps until a signal or `until`. Fails at the deadline.
    async fn sleep(&mut self, until: Option<Moment>, now: Moment) -> Result<(), AcquireFailure> {
        if self.deadline.has_passed(now) {
            return Err(self.timed_out(now));
        }
        let QueuedWaiter { engine, entry, id, .. } = self.waiter;
        let status = || entry.wait_status(id, &engine.label, engine.environment.now());
        self.trace.waiting(status);
        loop {
            let report_at = match &self.report {
                Some(_) => None,
                None => self.deadline.report_at(entry.lock.kind),
            };
            let report_at = report_at.filter(|report_at| until.is_none_or(|until| *report_at < until));
            let (subscription, watch) = (&mut self.subscription, &mut self.watch);
            let released = async {
                match subscription {
                    ReleaseSubscription::Subscribed(subscription) => subscription.notified().await,
                    ReleaseSubscription::NotYet | ReleaseSubscription::Unavailable => {
                        std::future::pending::<()>().await;
                    }
                }
            };
            let deadlock = async {
                match watch {
                    Some(watch) => watch.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = entry.signaled(id) => return Ok(()),
                () = released => {
                    entry.retry_now(id, engine.environment.now());
                    return Ok(());
                }
                cycle = deadlock => return Err(AcquireFailure::Deadlock(Box::new(cycle))),
                () = self.deadline.sleep_until(report_at.or(until)) => {}
                () = self.trace.warn_when_slow(status) => {}
            }
            if report_at.is_none() || self.deadline.has_passed(engine.environment.now()) {
                return Ok(());
            }
            self.report_wait();
        }
    }

    /// Reports the wait, and looks for a cycle of waits from now on if the task is to give up then.
    fn report_wait(&mut self) {
        let QueuedWaiter { engine, entry, .. } = self.waiter;
        let report = self.report.insert(self.deadline.report_wait(entry));
        if self.params.refuses_deadlock {
            self.watch = Some(Box::pin(must_give_up(engine, report.id)));
        }
    }

    /// The deadline has passed: reports whether the lock was held or the store did not answer.
    fn timed_out(&mut self, now: Moment) -> AcquireFailure {
        self.deadline.failure(|| self.waiter.wait_status(now))
    }
}

/// A task in the local wait queue. Leaves it on drop.
pub(super) struct QueuedWaiter<'a> {
    engine: &'a Engine,
    entry: &'a Arc<LockEntry>,
    /// Its number in the queue.
    id: u64,
    /// Set once the lock is acquired and the task has left the queue.
    acquired: bool,
}

impl QueuedWaiter<'_> {
    /// Passes the reply to a request, or its absence, to the entry.
    fn handle_answer(&self, request: PendingRequest, answer: Result<&Acquired, Executed>, now: Moment) {
        let random = &mut || self.engine.environment.random();
        self.undo(self.entry.handle_answer(request, answer, now, random));
    }

    fn undo(&self, claims: Vec<Claim>) {
        for claim in claims {
            let within = self.entry.undo_for();
            self.engine.keeper.undo(&self.engine.store, &self.entry.lock, claim, within);
        }
    }

    fn wait_status(&self, now: Moment) -> WaitStatus {
        self.entry.wait_status(self.id, &self.engine.label, now)
    }
}

impl Drop for QueuedWaiter<'_> {
    fn drop(&mut self) {
        let _permit = self.engine.gate.permit();
        if !self.acquired {
            let LeftBehind { claims, idle } = self.entry.leave(self.id);
            self.undo(claims);
            if let Some(idle) = idle {
                self.engine.keeper.release_idle(idle);
            }
        }
    }
}
