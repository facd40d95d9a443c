//! The keeper: one timer for all holds of a client, on its own thread.
//!
//! It has its own thread, runtime and connection, so that tasks that block the user's runtime do not cost locks.
//!
//! 1. Due holds are extended in batches made up by [`RenewalBatcher`]; holds that end soon go in batches of their own.
//!    A hold has at most one extend in flight.
//! 2. A retired hold is not sent again; the retiring task can await what is in flight about it. A lost hold stays
//!    known until it is retired, since something about it may still be in flight.
//! 3. The deadline itself ends a hold: no reply, no network and no other task is needed. Nor does the late reply to an extend
//!    revive it: the store may have ended the hold in between, and a late acquire may have made it anew.
//! 4. Cleanups (undoing an acquire, releasing what a dropped guard held) are sent until they are known to have
//!    arrived, or until the store has dropped the hold by itself.
//! 5. A hold that reaches its cap is marked lost first, then released by a cleanup that counts as in flight about it.
//! 6. A shutdown takes over all holds. The keeper then finishes its remaining work, until a deadline, and ends; what
//!    was left undone is known from then on.
//! 7. Heartbeats go first. A session that lapses takes all its holds with it in one step, and another one begins.
//!    Partitions do not wait for each other, except for those whose heartbeats went along, until the deadline of a call. Each
//!    begins or ends at most one session at a time.
//!    A store that has lost its data forgets the session without a lapse. It begins again under its id, and the store is
//!    asked about each of its holds: what it still has is kept, and so is what was granted since.
//! 8. Messages are not trusted: they can be forged in any number. A message about a hold causes an early extend, a few times
//!    a second at most; only the store's reply counts. So it is with [`hints`] of the store.
//! 9. A hold that is handed off inside the process keeps its entry here: requests in flight about it go on, and their
//!    replies count for the holder at that time. An idle hold that no task takes is released when its time is over.
//! 10. A connection that was made again may lead to a store that knows less, or has what had ended: a promoted replica, or
//!     a server that was restarted. The session sends a heartbeat, each hold is extended, and what has ended within the
//!     last minute is released again.
//! 11. A process that ends waits for its cleanups, for a second at most ([`exit`]).

pub(super) mod activity;
pub(super) mod heartbeat;
pub(super) mod renewal_batcher;
pub(super) mod sessions;
pub(super) mod shutdown_report;

mod cleanup;
mod ended_holds;
#[cfg(not(shuttle))]
mod exit;
mod extend;
mod handoff;
mod hints;
mod outstanding;
mod reconnect;
mod run;
mod shutdown;
mod state;
mod statistics;

pub(super) use cleanup::latest_end;
pub(super) use outstanding::Outstanding;
pub(super) use shutdown::TakenHold;

use super::hold::{Hold, ReserveRequest, TrackingId};
use super::session::{Session, SessionFactory, Sessions};
use super::{LostReason, NEVER, Timings};
use crate::store::{SessionTracking, Store};
use crate::telemetry::Telemetry;
use activity::Activity;
use cleanup::Cleanup;
use ended_holds::EndedHolds;
use extend::Batch;
use handoff::ReserveInFlight;
use heartbeat::{HeartbeatBatch, SessionHeartbeat, SessionHeartbeats};
use hints::Hints;
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::machine::renewal::{ExtendRequest, RenewalSchedule};
use leasehold_core::{Claim, FencingToken, HoldId, Lock, Moment, Op, Partition, Released, SessionOp};
use leasehold_store::Environment;
use leasehold_store::sync::{Mutex, MutexGuard, Notify};
use outstanding::AllOutstanding;
use renewal_batcher::{BatchSlot, RenewalBatcher};
use shutdown_report::ShutdownReport;
use statistics::Merging;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

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
    /// Whether what the client counts is merged into the store.
    merging: Merging,
    /// Wakes the keeper.
    wake: Notify,
    /// Notified when no cleanup is left.
    cleanups_done: Notify,
    /// Cancelled when the keeper must close.
    closed: CancellationToken,
    /// Cancelled when the keeper has ended.
    ended: CancellationToken,
    /// Cancelled when the process ends, and waits for cleanups (11).
    process_ends: CancellationToken,
}

/// Hashed without a random key, since the ids are numbers of ours: holds that end together do so in the same order in each run
/// of a simulation.
type TrackedHolds = HashMap<TrackingId, TrackedHold, BuildHasherDefault<DefaultHasher>>;

struct State {
    /// Live sessions that need heartbeats.
    heartbeats: SessionHeartbeats,
    /// Partitions where a session must begin, and those where one is beginning or ending.
    sessions_wanted: BTreeSet<Partition>,
    sessions_changing: BTreeSet<Partition>,
    /// Partitions to which a connection was made again (10), and how many holds had ended by then.
    reconnected: BTreeMap<Partition, u64>,
    /// Partitions whose session is over and whose next one has not begun (10).
    renewed: BTreeSet<Partition>,
    /// Hints that holds may be gone.
    hints: Hints,
    /// When the stores were compared last.
    compared_at: Option<Moment>,
    /// Partitions that have been connected to again, and those that have forgotten the session: the store may have lost holds.
    unverified: BTreeSet<Partition>,
    /// Holds that have ended, and that a store may have again.
    ended_holds: EndedHolds,
    /// Holds whose release had no answer, and that callers have with its error.
    unanswered: BTreeMap<HoldId, Arc<Hold>>,
    /// Holds to be extended when the session of their partition has begun.
    awaiting_session: BTreeMap<Partition, BTreeSet<TrackingId>>,
    /// Holds of sessions that can never begin, until their loss is reported.
    lost_with_session: Vec<(TrackingId, Arc<Hold>, LostReason)>,
    tracked: TrackedHolds,
    /// The same by fencing token, which messages name.
    by_fence: BTreeSet<(FencingToken, TrackingId)>,
    batcher: RenewalBatcher,
    /// When the lock entries of idle holds must be checked.
    idle_checks: BTreeSet<(Moment, TrackingId)>,
    /// What is reported of waits and holds.
    activity: Activity,
    cleanups: Vec<Cleanup>,
    /// Cleanups that are not done yet, by number.
    outstanding: AllOutstanding,
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
    /// Heartbeats that go now.
    heartbeats: Vec<HeartbeatBatch>,
    /// Reports of waits and holds that go without heartbeats.
    activity: Vec<(Partition, SessionOp)>,
    /// Partitions where a session must begin.
    to_begin: Vec<Partition>,
    /// Partitions whose session has lapsed.
    lapsed: Vec<Partition>,
    /// Sessions that are not used any more.
    unused_sessions: Vec<Arc<Session>>,
    cleanups: Vec<Cleanup>,
    /// Releases that are sent once more, in batches.
    repeated_releases: Vec<Vec<(Lock, Op)>>,
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
            let (session, metadata) = (sessions.current(Partition::ONLY), session_factory.metadata.clone());
            heartbeats.insert(SessionHeartbeat::new(session, schedule, metadata, now));
        }
        let by_store = store.capabilities().sessions == SessionTracking::ByStore;
        let state = State {
            heartbeats,
            sessions_wanted: BTreeSet::new(),
            sessions_changing: BTreeSet::new(),
            reconnected: BTreeMap::new(),
            renewed: BTreeSet::new(),
            hints: Hints::new(),
            compared_at: None,
            unverified: BTreeSet::new(),
            ended_holds: EndedHolds::default(),
            unanswered: BTreeMap::new(),
            awaiting_session: BTreeMap::new(),
            lost_with_session: Vec::new(),
            tracked: TrackedHolds::default(),
            by_fence: BTreeSet::new(),
            batcher: RenewalBatcher::new(),
            idle_checks: BTreeSet::new(),
            activity: Activity::new(sessions.id(), by_store),
            cleanups: Vec::new(),
            outstanding: AllOutstanding::default(),
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
            merging: Merging::default(),
            wake: Notify::new(),
            cleanups_done: Notify::new(),
            closed: CancellationToken::new(),
            ended: CancellationToken::new(),
            process_ends: CancellationToken::new(),
        });
        shared.watch_holds();
        shared.watch_statistics();
        environment.spawn_keeper(Box::pin(run::run(shared.clone())))?;
        #[cfg(not(shuttle))]
        exit::register(&shared);
        Ok(Self { shared })
    }

    /// How many holds there are, and how many of them a bare majority of a quorum had when they were last extended.
    pub(crate) fn count_holds(&self) -> (usize, usize) {
        let state = self.shared.state();
        let held = state.tracked.values().filter(|tracked| !tracked.lost);
        let is_bare = |tracked: &&TrackedHold| tracked.hold.votes().is_some_and(|votes| votes.margin() <= 1);
        (held.clone().count(), held.filter(is_bare).count())
    }

    /// Whether a task of this process holds the lock.
    pub(crate) fn holds(&self, lock: &Lock, now: Moment) -> bool {
        let state = self.shared.state();
        let is_held = |hold: &Hold| !hold.is_idle() && now < hold.valid_until() && hold.lock == *lock;
        state.tracked.values().any(|tracked| !tracked.lost && !tracked.releasing && is_held(&tracked.hold))
    }

    /// Tracks a hold from now on, unless a shutdown has begun (6).
    pub(crate) fn track(&self, hold: Arc<Hold>, schedule: RenewalSchedule) -> Option<TrackingId> {
        let mut state = self.shared.state();
        if state.shut_down {
            return None;
        }
        let id = TrackingId(state.fresh_id());
        let mut tracked = TrackedHold {
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
        state.hints.add(id, &mut tracked, self.shared.environment.now());
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
        let must_report = state.activity.hold_changed();
        state.stop_extending(id);
        let Some(tracked) = state.tracked.get_mut(&id) else { return Retired::default() };
        tracked.releasing = true;
        let retired = Retired {
            in_flight: tracked.in_flight.clone(),
            background_release: tracked.background_release.clone(),
        };
        if must_report {
            drop(state);
            self.shared.wake.notify_one();
        }
        retired
    }

    /// A retired hold has been released, or its release is a cleanup.
    pub(super) fn forget(&self, id: TrackingId) {
        let now = self.shared.environment.now();
        self.shared.state().forget(id, now);
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

    /// The moment from which on a hold has less than `left` [by its schedule](RenewalSchedule::warn_at); `None` if it is not
    /// tracked.
    pub(crate) fn warn_at(&self, id: TrackingId, left: Duration) -> Option<Moment> {
        self.shared.state().tracked.get(&id).map(|tracked| tracked.schedule.warn_at(left))
    }

    /// The user has extended a hold. Does nothing if its deadline has passed meanwhile (3).
    pub(crate) fn handle_extended(&self, id: TrackingId, sent_at: Moment, lease: Duration) {
        let mut state = self.shared.state();
        let now = self.shared.environment.now();
        let lasts = |tracked: &&mut TrackedHold| !tracked.lost && now < tracked.hold.valid_until();
        let Some(tracked) = state.tracked.get_mut(&id).filter(lasts) else { return };
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

    /// Undoes an acquire that was sent on `main`, may still be in flight and may have been executed. Tries for so long, and for
    /// as long as a call may take.
    pub(super) fn undo(&self, main: &Arc<dyn Store>, lock: &Lock, claim: Claim, within: Duration) {
        let until = self.shared.environment.now() + within + self.shared.timings.call;
        self.shared.post(lock.clone(), claim, until, 0, Some(main.clone()));
    }

    /// Releases a hold whose guard was dropped, if it [may be released](Hold::may_release).
    pub(crate) fn release(&self, hold: &Hold) {
        let now = self.shared.environment.now();
        if !hold.may_release(now) {
            return;
        }
        let until = hold.may_last_until().max(now + self.shared.timings.call);
        self.shared.state().ended_holds.add(hold, now);
        self.shared.post(hold.lock.clone(), hold.claim.clone(), until, hold.history(), None);
    }

    /// A caller has a hold whose release had no answer: a shutdown releases it, unless it is
    /// [settled](Self::unanswered_is_settled) before.
    pub(super) fn add_unanswered(&self, hold: &Arc<Hold>) {
        let now = self.shared.environment.now();
        let mut state = self.shared.state();
        // A caller may keep errors for ever.
        state.unanswered.retain(|_, kept| now < latest_end(kept.may_last_until(), now));
        state.unanswered.insert(hold.claim.hold, hold.clone());
    }

    /// Such a hold is released, or its release is a cleanup.
    pub(super) fn unanswered_is_settled(&self, hold: &Hold) {
        self.shared.state().unanswered.remove(&hold.claim.hold);
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

    /// A signal for each cleanup of this lock, which may release what this client holds of it. It fires when the cleanup
    /// has ended.
    pub(crate) fn releasing(&self, lock: &Lock) -> Vec<CancellationToken> {
        self.shared.state().outstanding.of(lock)
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

    /// Messages for a partition may have been missed, as a rule because a connection was made again, perhaps to a store
    /// that has lost data: compares it with what this client knows (10). Does not wait.
    pub(super) fn reconnected(&self, partition: Partition) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut state = shared.state();
        let is_new = state.compare_soon(partition);
        drop(state);
        if is_new {
            shared.wake.notify_one();
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Shared {
    /// Receives what the keeper reports.
    fn telemetry(&self) -> &Telemetry {
        &self.session_factory.telemetry
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
