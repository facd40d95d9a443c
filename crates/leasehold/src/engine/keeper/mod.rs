//! The keeper: one timer for all holds of a client, on its own thread.
//!
//! It has its own thread, runtime and connection, so that tasks that block the user's runtime do not cost locks.
//!
//! 1. Due holds are extended in batches made up by [`RenewalBatcher`]; holds that end soon go in batches of their own.
//!    A hold has at most one extend in flight.
//! 2. A retired hold is not sent again; the retiring task can await what is in flight about it. A lost hold stays
//!    known until it is retired, since something about it may still be in flight.
//! 3. The deadline itself ends a hold: no reply, no network and no other task is needed.
//! 4. Cleanups (undoing an acquire, releasing what a dropped guard held) are sent until they are known to have
//!    arrived, or until the store has dropped the hold by itself.
//! 5. A hold that reaches its cap is marked lost first, then released by a cleanup that counts as in flight about it.
//! 6. A shutdown takes over all holds. The keeper then finishes its remaining work, until a deadline, and ends; what
//!    was left undone is known from then on.
//! 7. Heartbeats go first. A session that lapses takes all its holds with it in one step, and another one begins.
//!    Partitions do not wait for each other; each begins or ends at most one session at a time.
//! 8. Messages are not trusted: they can be forged in any number. A message about a hold causes an early extend, a few times
//!    a second at most; only the store's reply counts.
//! 9. A hold that is handed off inside the process keeps its entry here: requests in flight about it go on, and their
//!    replies count for the holder at that time. An idle hold that no task takes is released when its time is over.

pub(super) mod heartbeat;
pub(super) mod renewal_batcher;
pub(super) mod sessions;
pub(super) mod shutdown_report;

mod cleanup;
mod extend;
mod handoff;

pub(super) use cleanup::Outstanding;

use super::hold::{Hold, ReserveRequest, TrackingId};
use super::session::{Session, SessionFactory, Sessions};
use super::{LostReason, NEVER, Timings, flush_store};
use crate::store::Store;
use cleanup::{Cleanup, run_cleanup};
use extend::{Batch, Sent, extend};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use handoff::{ReserveInFlight, send_reserve};
use heartbeat::{HeartbeatInFlight, SessionHeartbeat, SessionHeartbeats};
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::machine::renewal::{ExtendRequest, RenewalAction, RenewalSchedule};
use leasehold_core::{Claim, FIRST_LEASE, FencingToken, HoldId, Lock, Moment, Partition, Released};
use leasehold_store::Environment;
use leasehold_store::sync::{Mutex, MutexGuard, Notify};
use renewal_batcher::{BatchSlot, DueHold, RenewalBatcher};
use sessions::{begin, end_sessions, end_unused, send_heartbeat};
use shutdown_report::ShutdownReport;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The longest sleep while anything is held: timers stop during a suspend, deadlines of holds do not.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// Tracks the holds of a client, and renews them.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) timings: Timings,
    session_factory: SessionFactory,
    sessions: Arc<Sessions>,
    state: Mutex<State>,
    /// Wakes the keeper.
    wake: Notify,
    /// Notified when no cleanup is left.
    cleanups_done: Notify,
    /// Cancelled when the keeper must close.
    closed: CancellationToken,
    /// Cancelled when the keeper has ended.
    ended: CancellationToken,
}

struct State {
    /// Live sessions that need heartbeats.
    heartbeats: SessionHeartbeats,
    /// Partitions where a session must begin, and those where one is beginning or ending.
    sessions_wanted: BTreeSet<Partition>,
    sessions_changing: BTreeSet<Partition>,
    tracked: HashMap<TrackingId, TrackedHold>,
    /// The same by fencing token, which messages name.
    by_fence: BTreeSet<(FencingToken, TrackingId)>,
    batcher: RenewalBatcher,
    /// When the lock entries of idle holds must be checked.
    idle_checks: BTreeSet<(Moment, TrackingId)>,
    cleanups: Vec<Cleanup>,
    /// Cleanups that are not done yet, by number.
    outstanding: BTreeMap<u64, Outstanding>,
    /// When the keeper wakes by itself.
    wakes_at: Moment,
    last_id: u64,
    /// Set to end once no work is left, or at this moment.
    closing: Option<Moment>,
    /// Set once a shutdown has taken over all holds (6), and what it has to send.
    shut_down: bool,
    shutdown_report: Option<ShutdownReport>,
    /// The earliest deadline requested for a shutdown.
    end_by: Moment,
    /// Set once the keeper has ended.
    ended: Option<Moment>,
    /// What a shutdown could not release.
    unreleased: Vec<Outstanding>,
    /// Replies that a shutdown received about holds whose releases it may have cut off.
    release_results: BTreeMap<HoldId, Released>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct TrackedHold {
    hold: Arc<Hold>,
    schedule: RenewalSchedule,
    /// Its position in the batcher; `None` once it is lost.
    slot: Option<BatchSlot>,
    /// Set once it is lost: it is not extended any more.
    lost: bool,
    /// Set once heartbeats report it.
    reported: bool,
    /// Set once its release is in flight.
    releasing: bool,
    /// The request to send for it when it is handed off.
    reserve: Option<ReserveRequest>,
    /// When its lock entry must be checked, if the hold is or was idle.
    idle_check_at: Option<Moment>,
    /// Set once the user has extended it.
    extended_by_user: bool,
    /// Cancelled when nothing is in flight about it any more; normally shared by a batch.
    in_flight: Option<CancellationToken>,
    /// Set once it is being released without its guard (5).
    background_release: Option<CancellationToken>,
}

/// A hold that a shutdown takes over.
pub(super) struct TakenHold {
    pub(super) hold: Arc<Hold>,
    /// Set if its release is in flight.
    pub(super) releasing: bool,
    /// Set if the user may have a request about it in flight.
    pub(super) sent_by_user: bool,
    /// Set if the keeper is releasing it already (5).
    pub(super) in_background: bool,
}

/// A hold that the keeper has retired.
#[derive(Default)]
pub(super) struct Retired {
    /// Cancelled when nothing is in flight about it any more.
    pub(super) in_flight: Option<CancellationToken>,
    /// Set if the keeper is releasing it already (5): cancel this to stop that.
    pub(super) background_release: Option<CancellationToken>,
}

/// Delivers messages to a keeper, without keeping it alive.
pub(super) struct KeeperHandle(Weak<Shared>);

/// The work that is due now.
#[derive(Default)]
struct Work {
    /// Holds with time for more than one attempt.
    calm: Vec<Batch>,
    /// Holds that end soon. They leave little time for a reply and must not limit the others.
    urgent: Vec<Batch>,
    lost: Vec<(TrackingId, Arc<Hold>, LostReason)>,
    /// Holds that have reached their caps, and their releases.
    capped: Vec<(Arc<Hold>, Cleanup)>,
    /// Idle holds that no task took in time.
    unclaimed: Vec<TrackingId>,
    /// Requests for holds that are handed off.
    reserves: Vec<ReserveInFlight>,
    /// Holds whose idle time may be over.
    idle_checks: Vec<(TrackingId, Arc<Hold>)>,
    /// Heartbeats that are due.
    heartbeats: Vec<HeartbeatInFlight>,
    /// Partitions where a session must begin.
    to_begin: Vec<Partition>,
    /// Partitions whose session has lapsed.
    lapsed: Vec<Partition>,
    /// Sessions that are not used any more.
    unused_sessions: Vec<Arc<Session>>,
    cleanups: Vec<Cleanup>,
    shutdown_report: Option<ShutdownReport>,
    next: Option<Moment>,
    closing: Option<Moment>,
}

impl Keeper {
    /// Starts the keeper on a thread of the environment.
    pub(super) fn start(
        store: Arc<dyn Store>,
        session_factory: SessionFactory,
        sessions: Arc<Sessions>,
        schedule: Option<HeartbeatSchedule>,
    ) -> io::Result<Self> {
        let (environment, timings) = (session_factory.environment.clone(), session_factory.timings);
        let now = environment.now();
        let mut heartbeats = SessionHeartbeats::default();
        if let Some(schedule) = schedule {
            heartbeats.insert(SessionHeartbeat::new(sessions.current(Partition::ONLY), schedule, now));
        }
        let state = State {
            heartbeats,
            sessions_wanted: BTreeSet::new(),
            sessions_changing: BTreeSet::new(),
            tracked: HashMap::new(),
            by_fence: BTreeSet::new(),
            batcher: RenewalBatcher::new(),
            idle_checks: BTreeSet::new(),
            cleanups: Vec::new(),
            outstanding: BTreeMap::new(),
            wakes_at: Moment::ZERO,
            last_id: 0,
            closing: None,
            shut_down: false,
            shutdown_report: None,
            end_by: NEVER,
            ended: None,
            unreleased: Vec::new(),
            release_results: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            store,
            environment: environment.clone(),
            timings,
            session_factory,
            sessions,
            state: Mutex::new(state),
            wake: Notify::new(),
            cleanups_done: Notify::new(),
            closed: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        environment.spawn_keeper(Box::pin(run(shared.clone())))?;
        Ok(Self { shared })
    }

    /// Tracks a hold from now on, unless a shutdown has begun (6).
    pub(crate) fn track(&self, hold: Arc<Hold>, schedule: RenewalSchedule) -> Option<TrackingId> {
        let mut state = self.shared.state();
        if state.shut_down {
            return None;
        }
        let id = TrackingId(state.fresh_id());
        let tracked = TrackedHold {
            hold,
            schedule,
            slot: None,
            lost: false,
            reported: false,
            releasing: false,
            reserve: None,
            idle_check_at: None,
            extended_by_user: false,
            in_flight: None,
            background_release: None,
        };
        tracked.update_hold();
        let hold = tracked.hold.clone();
        state.by_fence.insert((hold.store_fence, id));
        state.tracked.insert(id, tracked);
        if hold.session.alive_until() == Moment::ZERO {
            // The task was suspended between acquiring the lock and registering it; the session will never be
            // checked again.
            state.stop_extending(id);
            drop(state);
            hold.lose(LostReason::SessionLapsed);
            return Some(id);
        }
        let due = state.reschedule(id);
        let early = due < state.wakes_at;
        drop(state);
        if early {
            self.shared.wake.notify_one();
        }
        Some(id)
    }

    /// Retires a hold (2). It stays known, for a shutdown, until it is [forgotten](Self::forget).
    pub(super) fn retire(&self, id: TrackingId) -> Retired {
        let mut state = self.shared.state();
        state.stop_extending(id);
        let Some(tracked) = state.tracked.get_mut(&id) else { return Retired::default() };
        tracked.releasing = true;
        Retired {
            in_flight: tracked.in_flight.clone(),
            background_release: tracked.background_release.clone(),
        }
    }

    /// A retired hold has been released, or its release is a cleanup.
    pub(super) fn forget(&self, id: TrackingId) {
        self.shared.state().forget(id);
    }

    /// A hold was found to be lost: it is not extended any more.
    pub(crate) fn found_lost(&self, id: TrackingId) {
        let mut state = self.shared.state();
        state.stop_extending(id);
        let fence = state.tracked.get(&id).map(|tracked| tracked.hold.store_fence);
        let found = fence.is_some_and(|fence| state.extend_soon(fence, self.shared.environment.now()));
        drop(state);
        if found {
            self.shared.wake.notify_one();
        }
    }

    /// The lease for an extend by the user, and whether the extend should renew the record beside the lock as well.
    /// The error is the time left until the cap that forbids it.
    pub(crate) fn allowed_lease(
        &self,
        id: TrackingId,
        now: Moment,
        request: ExtendRequest,
    ) -> Result<(Duration, bool), Duration> {
        let mut state = self.shared.state();
        let Some(tracked) = state.tracked.get_mut(&id) else {
            let (ExtendRequest::Exactly(lease) | ExtendRequest::UpTo(lease)) = request;
            return Ok((lease, false));
        };
        let lease = tracked.schedule.allowed_lease(now, request)?;
        tracked.extended_by_user = true;
        Ok((lease, tracked.schedule.should_keep_record(now, lease)))
    }

    /// The user has extended a hold.
    pub(crate) fn handle_extended(&self, id: TrackingId, sent_at: Moment, lease: Duration) {
        let mut state = self.shared.state();
        let Some(tracked) = state.tracked.get_mut(&id) else { return };
        tracked.schedule.handle_extended_by_user(sent_at, lease);
        tracked.update_hold();
        state.report(id);
        state.reschedule(id);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The handle by which messages reach this keeper.
    pub(super) fn handle(&self) -> KeeperHandle {
        KeeperHandle(Arc::downgrade(&self.shared))
    }

    /// Undoes an acquire that was sent on `main`, may still be in flight and may have been executed.
    pub(super) fn undo(&self, main: &Arc<dyn Store>, lock: &Lock, claim: Claim) {
        let until = self.shared.environment.now() + FIRST_LEASE + self.shared.timings.call;
        self.shared.post(lock.clone(), claim, until, Some(main.clone()));
    }

    /// Releases a hold whose guard was dropped.
    pub(crate) fn release(&self, hold: &Hold) {
        let until = hold.may_last_until().max(self.shared.environment.now() + self.shared.timings.call);
        self.shared.post(hold.lock.clone(), hold.claim.clone(), until, None);
    }

    /// Requests a session in a partition that has none.
    pub(super) fn begin_session(&self, partition: Partition) {
        self.shared.state().sessions_wanted.insert(partition);
        self.shared.wake.notify_one();
    }

    /// Waits until no cleanup is left.
    pub(crate) async fn cleanups_done(&self) {
        loop {
            let done = self.shared.cleanups_done.notified();
            if self.shared.state().outstanding.is_empty() {
                return;
            }
            done.await;
        }
    }

    /// Ends the keeper once its cleanups are done.
    pub(super) fn close(&self) {
        self.shared.state().closing.get_or_insert(NEVER);
        self.shared.closed.cancel();
        self.shared.wake.notify_one();
    }

    /// Hands all holds over to a shutdown (6): from now on none is extended, and none accepted.
    pub(super) fn begin_shutdown(&self) -> Vec<TakenHold> {
        let mut state = self.shared.state();
        state.shut_down = true;
        (state.batcher, state.idle_checks) = (RenewalBatcher::new(), BTreeSet::new());
        let take = |tracked: &mut TrackedHold| {
            tracked.lost = true;
            (tracked.slot, tracked.idle_check_at) = (None, None);
            TakenHold {
                hold: tracked.hold.clone(),
                releasing: tracked.releasing,
                sent_by_user: tracked.releasing || tracked.extended_by_user,
                in_background: tracked.background_release.is_some(),
            }
        };
        state.tracked.values_mut().map(take).collect()
    }

    /// Records that a shutdown is releasing a hold.
    pub(super) fn add_outstanding(&self, hold: &Arc<Hold>) -> u64 {
        self.shared.state().add_outstanding(hold.lock.clone(), hold.may_last_until())
    }

    /// Makes the keeper send this and end by `by` at the latest.
    pub(super) fn finish_shutdown(&self, shutdown_report: ShutdownReport, by: Moment) {
        let mut state = self.shared.state();
        state.shutdown_report = Some(shutdown_report);
        state.closing = Some(by);
        drop(state);
        self.shared.closed.cancel();
        self.shared.wake.notify_one();
    }

    /// Ends a shutdown at `by`, if that is before its present deadline.
    pub(super) fn end_by(&self, by: Moment) {
        let mut state = self.shared.state();
        state.end_by = state.end_by.min(by);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Waits until the keeper has ended.
    pub(super) async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// A token that is cancelled when the keeper has ended. It does not keep the keeper alive.
    pub(crate) fn end(&self) -> CancellationToken {
        self.shared.ended.clone()
    }

    /// Waits until the keeper has ended. Returns the store's reply about a hold whose release was cut off, or why
    /// that hold is lost.
    pub(super) async fn release_result(&self, hold: &Hold) -> Result<Released, LostReason> {
        self.ended().await;
        if let Some(reason) = hold.loss() {
            return Err(reason);
        }
        self.shared.state().release_results.remove(&hold.claim.hold).ok_or(LostReason::ShutDown)
    }

    /// Waits until the keeper has ended. Returns when that was, and what a shutdown could not release.
    pub(super) async fn unreleased(&self) -> (Moment, Vec<Outstanding>) {
        self.ended().await;
        let state = self.shared.state();
        (state.ended.unwrap_or(Moment::ZERO), state.unreleased.clone())
    }
}

impl KeeperHandle {
    /// A notification says that the hold with this token was released by force. It may be forged, so the hold is
    /// extended at once, and the store's reply decides. A request already in flight does not count. Does not wait.
    pub(super) fn force_released(&self, fence: FencingToken) {
        let Some(shared) = self.0.upgrade() else { return };
        if shared.state().extend_soon(fence, shared.environment.now()) {
            shared.wake.notify_one();
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl TrackedHold {
    /// Updates the hold's validity from its renewal schedule.
    fn update_hold(&self) {
        self.hold.set_kept_until(self.schedule.kept_until());
        self.hold.extend_validity(self.schedule.valid_until());
        if self.schedule.ends_by_limit() {
            self.hold.set_capped();
        }
    }
}

impl State {
    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn forget(&mut self, id: TrackingId) {
        if let Some(tracked) = self.tracked.remove(&id) {
            self.by_fence.remove(&(tracked.hold.store_fence, id));
            if let Some(slot) = tracked.slot {
                self.batcher.remove(id, slot);
            }
            if let Some(at) = tracked.idle_check_at {
                self.idle_checks.remove(&(at, id));
            }
        }
    }

    /// Schedules the next action for a hold.
    fn reschedule(&mut self, id: TrackingId) -> Moment {
        let Some(tracked) = self.tracked.get_mut(&id).filter(|tracked| !tracked.lost) else { return NEVER };
        if let Some(slot) = tracked.slot.take() {
            self.batcher.remove(id, slot);
        }
        let due = tracked.schedule.due();
        // A hold that must be extended at once does not wait for others.
        let until = if tracked.schedule.is_verification_pending() || tracked.schedule.has_queued_request() {
            due
        } else {
            tracked.schedule.valid_until()
        };
        tracked.slot = Some(self.batcher.insert(id, due, until));
        due
    }

    /// Extends all holds with this token as soon as possible: one of them is gone, or is reported to be. Returns
    /// whether there are any.
    fn extend_soon(&mut self, fence: FencingToken, now: Moment) -> bool {
        let range = (fence, TrackingId(0))..=(fence, TrackingId(u64::MAX));
        let ids: Vec<_> = self.by_fence.range(range).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(tracked) = self.tracked.get_mut(id).filter(|tracked| !tracked.lost) {
                tracked.schedule.verify_soon(now);
                self.reschedule(*id);
            }
        }
        !ids.is_empty()
    }

    /// Stops extending a hold, until it is retired (2).
    fn stop_extending(&mut self, id: TrackingId) -> Option<Arc<Hold>> {
        self.unreport(id);
        let tracked = self.tracked.get_mut(&id)?;
        tracked.lost = true;
        if let Some(slot) = tracked.slot.take() {
            self.batcher.remove(id, slot);
        }
        Some(tracked.hold.clone())
    }

    /// Collects all work that is due, and the extends that go along with it.
    fn collect(&mut self, now: Moment, call: Duration, sessions: &Sessions) -> Work {
        let closing = self.closing.map(|by| by.min(self.end_by));
        let mut work = Work { closing, shutdown_report: self.shutdown_report.take(), ..Work::default() };
        work.cleanups.append(&mut self.cleanups);
        self.collect_sessions(now, sessions, &mut work);
        for DueHold { id, ahead } in self.batcher.take(now) {
            let Some(tracked) = self.tracked.get_mut(&id) else { continue };
            tracked.slot = None;
            if tracked.hold.is_invalid() {
                // It was found lost, or is being released, elsewhere; that code reports it.
                self.stop_extending(id);
                continue;
            }
            match tracked.schedule.poll(now, ahead) {
                RenewalAction::Expired | RenewalAction::Release if tracked.hold.is_idle() => {
                    work.unclaimed.push(id);
                    continue;
                }
                RenewalAction::Expired => {
                    work.lost.extend(self.stop_extending(id).map(|hold| (id, hold, LostReason::Expired)));
                    continue;
                }
                RenewalAction::Release => {
                    work.capped.extend(self.give_up(id));
                    continue;
                }
                RenewalAction::SendRequest => {
                    work.reserves.push(ReserveInFlight::new(id, tracked, call, now));
                }
                RenewalAction::Extend { lease, keep_record } => {
                    tracked.hold.may_last(now + call + lease);
                    let ends_soon = tracked.schedule.valid_until().since(now) < call * 2;
                    let batches = if ends_soon { &mut work.urgent } else { &mut work.calm };
                    let sent = Sent { id, hold: tracked.hold.clone(), lease, keep_record };
                    tracked.in_flight = Some(Batch::add(batches, sent));
                    self.report(id);
                }
                RenewalAction::Sleep(_) => {}
            }
            self.reschedule(id);
        }
        work.idle_checks = self.take_idle_checks(now);
        let heartbeat = self.heartbeats.next().filter(|_| self.closing.is_none());
        let idle_check = self.idle_checks.first().map(|(at, _)| *at);
        work.next = self.batcher.next().into_iter().chain(heartbeat).chain(idle_check).min();
        self.wakes_at = work.next.unwrap_or(NEVER);
        work.next = work.next.into_iter().chain(closing.filter(|by| *by != NEVER)).min();
        work
    }
}

/// Runs the keeper until it is closed and its cleanups are done.
async fn run(shared: Arc<Shared>) {
    // Dropped after the running futures, so nothing is sent any more by then.
    let _end = End(shared.clone());
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    // Whether a closing keeper without other work has waited for the store's background work.
    let mut flushed = false;
    loop {
        let now = shared.environment.now();
        let work = shared.state().collect(now, shared.timings.call, &shared.sessions);
        for (id, hold, reason) in work.lost {
            hold.lose(reason);
            if hold.is_idle() {
                // No guard will release it, and the store may still keep it.
                shared.release_idle(id);
            }
        }
        for (hold, cleanup) in work.capped {
            hold.lose(LostReason::Capped);
            running.push(Box::pin(run_cleanup(shared.clone(), cleanup)));
        }
        for id in work.unclaimed {
            shared.release_idle(id);
        }
        for reserve in work.reserves {
            running.push(Box::pin(send_reserve(shared.clone(), reserve)));
        }
        for (id, hold) in work.idle_checks {
            shared.check_idle(id, &hold, now);
        }
        for request in work.heartbeats {
            running.push(Box::pin(send_heartbeat(shared.clone(), request)));
        }
        for partition in work.lapsed {
            running.push(Box::pin(begin(shared.clone(), partition, true)));
        }
        for partition in work.to_begin {
            running.push(Box::pin(begin(shared.clone(), partition, false)));
        }
        for session in work.unused_sessions {
            running.push(Box::pin(end_unused(shared.clone(), session)));
        }
        for batch in work.urgent.into_iter().chain(work.calm) {
            running.push(Box::pin(extend(shared.clone(), batch)));
        }
        flushed &= work.cleanups.is_empty() && work.shutdown_report.is_none();
        for cleanup in work.cleanups {
            running.push(Box::pin(run_cleanup(shared.clone(), cleanup)));
        }
        if let Some(shutdown_report) = work.shutdown_report {
            running.push(Box::pin(shutdown_report::send(shared.clone(), shutdown_report)));
        }
        if work.closing.is_some_and(|by| running.is_empty() || by <= now) {
            if flushed || work.closing.is_some_and(|by| by <= now) {
                return end_sessions(&shared, work.closing).await;
            }
            flushed = true;
            running.push(Box::pin(flush_before_end(shared.clone())));
        }
        let sleep = async {
            match work.next {
                Some(at) => shared.environment.sleep_until(at.min(now + MAX_SLEEP)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            () = shared.wake.notified() => {}
            () = sleep => {}
        }
    }
}

async fn flush_before_end(shared: Arc<Shared>) {
    flush_store(&*shared.store, &*shared.environment, shared.timings).await;
}

/// Ends the keeper on every path.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let now = self.0.environment.now();
        let mut state = self.0.state();
        state.ended = Some(now);
        state.cleanups.clear();
        let outstanding = std::mem::take(&mut state.outstanding);
        state.unreleased.extend(outstanding.into_values());
        drop(state);
        self.0.cleanups_done.notify_waiters();
        self.0.ended.cancel();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the reply to a shutdown's release. Only a release that was cut off reads it: one with a reply of its
    /// own does not need it.
    pub(super) fn record_result(&self, hold: &Hold, released: Released) {
        self.state().release_results.insert(hold.claim.hold, released);
    }
}

#[cfg(test)]
mod tests;
