//! Releasing a lock.
//!
//! 1. The keeper retires the hold first, and its requests in flight are awaited: nothing is sent about a hold after
//!    its release has returned.
//! 2. If tasks of this process are queued, the same operation requests the lock for them, behind other clients'
//!    waiters. If they give up before it returns, the request is undone then: an earlier undo could overtake it.
//! 3. A hold lost by its cap that the keeper is already releasing is left to the keeper, and reported as lost.
//! 4. The same holds for every hold once a shutdown has begun. A shutdown takes over a release in flight.
//! 5. If an earlier attempt was not answered and may have been executed, it may have released the hold that this one
//!    does not find. Then the result is *unknown*, not *lost*, unless the store knows how the hold ended.
//! 6. A hold that the next local waiter can take over without the store is [handed off][handoff] instead.
//! 7. A release without an answer returns an error with the hold, which can be released again. If the caller drops that,
//!    the keeper goes on, as for a dropped guard. Until then nothing is sent, but by a shutdown.
//! 8. A hold with a lock delay that has ended before its release began is not released: it expires at the store, when the
//!    delay is over. This holds for every path that would release it, also at a cap, at a reconnect and at a shutdown.
//!
//! [handoff]: super::local::lock_entry::handoff

use super::keeper::Retired;
use super::local::lock_entry::PendingRequest;
use super::local::lock_entry::handoff::{IdleActions, ReleasePolicy};
use super::loss::reason;
use super::{Answer, CallFailure, Engine, Hold, LockEntry, LostReason, TrackingId, unexpected_reply};
use crate::store::{Fault, FaultKind, Phase};
use leasehold_core::Executed;
use leasehold_core::{Acquired, Ended, HoldId, HoldStatus, Op, Release, ReleaseAction, Released, Reply};
use std::pin::pin;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Why a hold was not released.
#[derive(Debug)]
pub(crate) enum NotReleased {
    /// It was not held any more.
    Lost(LostReason),
    /// No attempt was answered, or the store refused. It is to be released again (7).
    Fault { fault: Fault, executed: Executed },
    /// The store does not find it, and an earlier attempt without a reply, which had this fault, may have released it (5).
    NotFound(Fault),
}

/// What receives the result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReleaseObserver {
    /// The caller.
    Caller,
    /// Nothing: if the store does not answer, the keeper goes on.
    None,
}

/// Releases a hold or hands it off. Returns how many holds its owner still has.
pub(crate) async fn release(
    engine: &Engine,
    entry: &Arc<LockEntry>,
    hold: &Arc<Hold>,
    tracking: TrackingId,
    policy: ReleasePolicy,
) -> Result<u64, NotReleased> {
    if engine.gate.is_closed() {
        engine.keeper.ended().await;
        return Err(NotReleased::Lost(hold.reason(engine.environment.now())));
    }
    if make_idle(engine, entry, hold, tracking, policy) {
        return Ok(0);
    }
    release_at_store(engine, entry, hold, tracking, (policy.free_every, ReleaseObserver::Caller)).await
}

/// Keeps a hold in the process for the next waiter or for later acquisitions (6). Does not wait.
fn make_idle(
    engine: &Engine,
    entry: &LockEntry,
    hold: &Arc<Hold>,
    tracking: TrackingId,
    policy: ReleasePolicy,
) -> bool {
    let _permit = engine.gate.permit();
    let now = engine.environment.now();
    if is_of_other_session(engine, entry, hold) {
        return false;
    }
    let Some(IdleActions { reserve, check_at }) = entry.make_idle(hold, tracking, policy, now) else {
        return false;
    };
    if let Some(reserve) = reserve {
        engine.keeper.reserve(tracking, reserve);
    }
    if let Some(at) = check_at {
        engine.keeper.check_idle_at(tracking, at);
    }
    // Otherwise the session that replaces it has found the idle hold.
    if is_of_other_session(engine, entry, hold)
        && let Some(idle) = entry.remove_idle()
    {
        engine.keeper.release_idle(idle);
    }
    true
}

/// Whether the session of a hold that outlives it is over: no message tells that another client wants the lock.
fn is_of_other_session(engine: &Engine, entry: &LockEntry, hold: &Hold) -> bool {
    let outlives = !hold.session.liveness.ends_with_session() && engine.sessions.liveness.ends_with_session();
    outlives && hold.session.id != engine.sessions.id_at(entry.partition)
}

/// Releases an idle hold that does not suit the front of the queue, whose request for the lock goes with it.
///
/// Cancel safety: if the future is dropped, the keeper continues the release.
pub(super) async fn release_idle(
    engine: &Engine,
    entry: &Arc<LockEntry>,
    hold: &Arc<Hold>,
    tracking: TrackingId,
) {
    // The hold has no guard that needs the result.
    let _ = release_at_store(engine, entry, hold, tracking, (None, ReleaseObserver::None)).await;
}

async fn release_at_store(
    engine: &Engine,
    entry: &Arc<LockEntry>,
    hold: &Arc<Hold>,
    tracking: TrackingId,
    (free_every, observer): (Option<u32>, ReleaseObserver),
) -> Result<u64, NotReleased> {
    let Retired { in_flight, background_release } = engine.keeper.retire(tracking);
    if let (Some(in_flight), Some(stop)) = (&in_flight, background_release) {
        engine.keeper.forget(tracking);
        return Err(wait_for_background_release(engine, hold, in_flight, &stop).await);
    }
    let now = engine.environment.now();
    if !hold.may_release(now) {
        return Err(left_to_expire(engine, entry, hold, tracking, in_flight).await);
    }
    let begun_in_time = now < hold.valid_until();
    let mut pending = PendingRelease {
        engine,
        entry,
        hold,
        tracking,
        done: false,
        taken_over: false,
        next: None,
        requested: None,
    };
    let result = pending.run(free_every).await;
    let is_unanswered = matches!(&result, Some(Err(NotReleased::Fault { .. })));
    // Before the keeper forgets it: a shutdown must find it at any time.
    let unanswered = is_unanswered.then(|| UnansweredRelease::new(engine, hold));
    drop(pending);
    let result = match result {
        Some(result) => result,
        None => match engine.keeper.release_result(hold).await {
            Ok(released) => read_release(released, begun_in_time, Some(ended_early())),
            Err(reason) => Err(NotReleased::Lost(reason)),
        },
    };
    let lost = match &result {
        Err(NotReleased::Lost(reason)) => Some(reason.clone()),
        _ => hold.is_invalid().then_some(LostReason::Expired),
    };
    if let Some(reason) = lost {
        // Work spread over tasks may still run and watch the signal. This also ends the keeper's query for the
        // reason, if that is in flight.
        hold.lose(reason);
    }
    if let Some(in_flight) = in_flight {
        in_flight.cancelled().await;
    }
    let result = match (result, hold.loss()) {
        // The store does not tell, but the loss was reported with its reason before.
        (Err(NotReleased::Lost(LostReason::Expired)), Some(reported)) => Err(NotReleased::Lost(reported)),
        (result, _) => result,
    };
    let result = match result {
        // A shutdown that has begun meanwhile releases it once more.
        Err(NotReleased::Fault { fault, .. }) if engine.gate.is_closed() => {
            return result_of_shutdown(engine, hold, begun_in_time, fault).await;
        }
        result => result,
    };
    if engine.gate.is_closed() {
        engine.keeper.ended().await;
    }
    if observer == ReleaseObserver::Caller {
        // From here on it is up to the caller.
        std::mem::forget(unanswered);
    }
    result
}

/// Ends a hold that has ended before its release, and that the store keeps for its margin (8). Returns why it was lost.
///
/// Cancel safety: if the future is dropped, nothing more is sent about the hold.
async fn left_to_expire(
    engine: &Engine,
    entry: &LockEntry,
    hold: &Hold,
    tracking: TrackingId,
    in_flight: Option<CancellationToken>,
) -> NotReleased {
    entry.remove_hold(hold);
    engine.keeper.forget(tracking);
    if let Some(in_flight) = in_flight {
        in_flight.cancelled().await;
    }
    if hold.is_invalid() {
        // The reason is known, or will be in a moment.
        hold.signal().cancelled().await;
    }
    let reason = hold.reason(engine.environment.now());
    hold.lose(reason.clone());
    NotReleased::Lost(reason)
}

/// A release without an answer. If it is dropped, the keeper goes on.
struct UnansweredRelease<'a> {
    engine: &'a Engine,
    hold: &'a Arc<Hold>,
}

impl<'a> UnansweredRelease<'a> {
    fn new(engine: &'a Engine, hold: &'a Arc<Hold>) -> Self {
        engine.keeper.add_unanswered(hold);
        Self { engine, hold }
    }
}

impl Drop for UnansweredRelease<'_> {
    fn drop(&mut self) {
        continue_release(self.engine, self.hold);
    }
}

/// Releases a hold whose release before had no answer, with this fault. Even if that was certainly not executed, the keeper
/// may have released the hold after a reconnect: that it is not found does not mean that it was lost (5). `in_time` is set if
/// the first attempt began before the lease had ended by the holder's own clock.
pub(crate) async fn release_again(
    engine: &Engine,
    hold: &Hold,
    in_time: bool,
    earlier: Fault,
) -> Result<u64, NotReleased> {
    if engine.gate.is_closed() {
        return result_of_shutdown(engine, hold, in_time, earlier).await;
    }
    let (claim, action) = (hold.claim.clone(), ReleaseAction::Grant);
    let op = Op::Release(Release { claim, action, next: None, history: hold.history() });
    let reply = pin!(engine.request(&hold.lock, &op, engine.timings.call));
    let result = match engine.gate.run(reply).await {
        Some(Ok(Answer { reply: Reply::Release(released), .. })) => {
            read_release(released, in_time, Some(earlier))
        }
        Some(Ok(Answer { reply, .. })) => {
            let (fault, executed) = unexpected_reply(reply);
            Err(NotReleased::Fault { fault, executed })
        }
        Some(Err(CallFailure { fault, executed })) => Err(NotReleased::Fault { fault, executed }),
        None => return result_of_shutdown(engine, hold, in_time, earlier).await,
    };
    if !matches!(result, Err(NotReleased::Fault { .. })) {
        engine.keeper.unanswered_is_settled(hold);
    }
    if engine.gate.is_closed() {
        // A shutdown that has begun meanwhile may release it once more.
        engine.keeper.ended().await;
    }
    result
}

/// The result of a shutdown's release of a hold whose release before had no answer.
async fn result_of_shutdown(
    engine: &Engine,
    hold: &Hold,
    in_time: bool,
    earlier: Fault,
) -> Result<u64, NotReleased> {
    match engine.keeper.release_result(hold).await {
        Ok(released) => read_release(released, in_time, Some(earlier)),
        Err(_) => Err(NotReleased::NotFound(ended_early())),
    }
}

/// Waits until the keeper has released a hold that reached its cap, for at most one call's time (3).
///
/// Cancel safety: if the future is dropped, the keeper continues the release.
async fn wait_for_background_release(
    engine: &Engine,
    hold: &Hold,
    in_flight: &CancellationToken,
    stop: &CancellationToken,
) -> NotReleased {
    // The keeper marks it, too, but possibly later.
    hold.lose(LostReason::Capped);
    let until = engine.environment.now() + engine.timings.call;
    tokio::select! {
        biased;
        () = in_flight.cancelled() => {}
        () = engine.environment.sleep_until(until) => {
            stop.cancel();
            in_flight.cancelled().await;
        }
    }
    NotReleased::Lost(hold.reason(engine.environment.now()))
}

/// A guard was dropped: the keeper releases its hold as soon as it can.
pub(crate) fn abandon(
    engine: &Engine,
    entry: &LockEntry,
    hold: &Arc<Hold>,
    tracking: TrackingId,
    policy: ReleasePolicy,
) {
    let _permit = engine.gate.permit();
    // Otherwise the shutdown releases it (4).
    if !engine.gate.is_closed() && !make_idle(engine, entry, hold, tracking, policy) {
        if engine.keeper.retire(tracking).background_release.is_none() {
            // Unless it is left to expire (8).
            engine.keeper.release(hold);
        }
        entry.remove_hold(hold);
        engine.keeper.forget(tracking);
    }
}

/// A release had no answer, and no caller tries again: the keeper continues it (7).
pub(crate) fn continue_release(engine: &Engine, hold: &Hold) {
    let _permit = engine.gate.permit();
    // Otherwise a shutdown releases it (4).
    if !engine.gate.is_closed() {
        engine.keeper.release(hold);
        engine.keeper.unanswered_is_settled(hold);
    }
}

/// A release in flight. If it is dropped early, the keeper continues it.
struct PendingRelease<'a> {
    engine: &'a Engine,
    entry: &'a Arc<LockEntry>,
    hold: &'a Arc<Hold>,
    tracking: TrackingId,
    done: bool,
    /// Set if a shutdown has taken it over (4).
    taken_over: bool,
    /// The request for the next waiter that went with it, until it is answered.
    next: Option<PendingRequest>,
    /// The hold that was requested.
    requested: Option<HoldId>,
}

impl PendingRelease<'_> {
    /// Sends the release. Returns `None` if a shutdown has cut it off.
    async fn run(&mut self, free_every: Option<u32>) -> Option<Result<u64, NotReleased>> {
        let environment = &self.engine.environment;
        let (begun, valid_until) = (environment.now(), self.hold.valid_until());
        let session = self.engine.sessions.current(self.entry.partition);
        let random = &mut || environment.random();
        let (free, next) =
            self.entry.begin_release(self.hold, free_every, &session, environment.now(), random);
        let (request, next) = next.unzip();
        self.next = request;
        self.requested = next.as_ref().map(|next| next.claim.hold);
        let action = if free { ReleaseAction::Free } else { ReleaseAction::Grant };
        let (claim, history) = (self.hold.claim.clone(), self.hold.history());
        let op = Op::Release(Release { claim, action, next, history });
        let reply = pin!(self.engine.request(&self.hold.lock, &op, self.engine.timings.call));
        let reply = self.engine.gate.run(reply).await;
        self.done = true;
        self.taken_over = reply.is_none();
        Some(match reply? {
            Ok(Answer { reply: Reply::Release(released), unanswered }) => {
                self.take_next(&released);
                let sent_by = if unanswered.is_some() { begun } else { self.engine.environment.now() };
                read_release(released, sent_by < valid_until, unanswered)
            }
            Ok(Answer { reply, .. }) => {
                let (fault, executed) = unexpected_reply(reply);
                Err(NotReleased::Fault { fault, executed })
            }
            Err(CallFailure { fault, executed }) => Err(NotReleased::Fault { fault, executed }),
        })
    }

    /// Handles the reply to the request that went with it.
    fn take_next(&mut self, released: &Released) {
        if let (Some(request), Some(Ok(reply))) = (self.next, &released.next) {
            self.next = None;
            self.handle_answer(request, Ok(reply));
        }
    }

    fn handle_answer(&self, request: PendingRequest, answer: Result<&Acquired, Executed>) {
        let environment = &self.engine.environment;
        let random = &mut || environment.random();
        for claim in self.entry.handle_answer(request, answer, environment.now(), random) {
            let within = self.entry.undo_for();
            self.engine.keeper.undo(&self.engine.store, &self.entry.lock, claim, within);
        }
    }
}

impl Drop for PendingRelease<'_> {
    fn drop(&mut self) {
        let _permit = self.engine.gate.permit();
        if self.taken_over {
            // The shutdown finds the hold with the keeper and the request in the lock entry, now or in a moment.
            return;
        }
        let environment = &self.engine.environment;
        if let Some(request) = self.next.take() {
            if self.done {
                self.handle_answer(request, Err(Executed::Unknown));
            } else {
                // No store has failed, but the lock may arrive with a reply that no task awaits: the front re-checks,
                // even if it has sent its own request in the meantime.
                self.entry.poll_soon(environment.now());
            }
        }
        if let Some(claim) = self.requested.and_then(|requested| self.entry.end_release(requested)) {
            let within = self.entry.undo_for();
            self.engine.keeper.undo(&self.engine.store, &self.entry.lock, claim, within);
        }
        if !self.done {
            self.engine.keeper.release(self.hold);
        }
        // Remove it first: a hold in a lock entry that the keeper does not know counts as newly acquired.
        self.entry.remove_hold(self.hold);
        self.engine.keeper.forget(self.tracking);
    }
}

/// Maps the reply to a release: how many holds the owner still has, if this attempt or an earlier one ended the hold;
/// otherwise why it had ended before. `unanswered` is the fault of an earlier attempt that may have been executed
/// (5). `in_time` is set if the lease had not ended by the holder's own clock: when the reply came, or, after an
/// unanswered attempt, when the first attempt was sent.
pub(super) fn read_release(
    released: Released,
    in_time: bool,
    unanswered: Option<Fault>,
) -> Result<u64, NotReleased> {
    let Released { status, remaining_holds, holder, .. } = released;
    match (status, unanswered.filter(|_| in_time)) {
        (HoldStatus::Held | HoldStatus::Ended(Ended::Released), _) => Ok(remaining_holds),
        (HoldStatus::Vanished | HoldStatus::Superseded | HoldStatus::Forgotten, Some(fault)) => {
            Err(NotReleased::NotFound(fault))
        }
        (other, _) => Err(NotReleased::Lost(reason(other, holder, in_time))),
    }
}

/// The fault if the reply to a release that a shutdown took over stays unknown.
fn ended_early() -> Fault {
    let text = "the client was shut down before the reply arrived".to_owned();
    Fault::new(FaultKind::Unusable(text), Phase::Reply, "the client")
}
