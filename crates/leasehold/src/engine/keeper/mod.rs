//! The keeper: one timer for all holds of a client, on its own thread.
//!
//! It has its own thread, its own runtime and its own connection, so that a user whose tasks block their runtime does
//! not lose locks by it.
//!
//! 1. Due holds are extended in batches made up by [`RenewalBatcher`]; holds that end soon go in batches of their own. A hold
//!    has at most one extend in flight.
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
//! 8. Messages are hints and can be forged in any number. A message about a hold causes an early extend, a few times
//!    a second at most; only the store's reply counts.
//! 9. A hold that is handed on inside the process keeps its entry here: requests in flight about it go on, and their
//!    replies count for the holder at that time. A kept hold that no task takes is released when its time is over.

pub(super) mod heartbeat;
pub(super) mod keep_id;
pub(super) mod renewal_batcher;
pub(super) mod sessions;
pub(super) mod shutdown_report;

mod cleanup;
mod extend;
mod handoff;

pub(super) use cleanup::Owed;

use super::local::reservation::Call;
use super::session::{Session, SessionFactory, Sessions};
use super::{FAR, Hold, LostReason, Timings, settled};
use crate::store::Store;
use cleanup::{Cleanup, run_errand};
use extend::{Batch, Sent, extend};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use handoff::{Called, call};
use heartbeat::{HeartbeatInFlight, SessionHeartbeat, SessionHeartbeats};
use keep_id::KeepId;
use leasehold_core::machine::heartbeat::HeartbeatSchedule;
use leasehold_core::machine::renewal::{ExtendRequest, RenewalAction, RenewalSchedule};
use leasehold_core::{Claim, FIRST_LEASE, FencingToken, HoldId, Lock, Moment, Partition, Released};
use leasehold_store::Environment;
use leasehold_store::sync::{Mutex, MutexGuard, Notify};
use renewal_batcher::{BatchSlot, DueHold, RenewalBatcher};
use sessions::{beat, begin, end_sessions, end_unused};
use shutdown_report::ShutdownReport;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The longest sleep while anything is held: timers stop during a suspend, deadlines of holds do not.
const NAP: Duration = Duration::from_secs(1);

/// Keeps the holds of a client.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) timings: Timings,
    birth: SessionFactory,
    sessions: Arc<Sessions>,
    state: Mutex<State>,
    bell: Notify,
    idle: Notify,
    /// Cancelled when the keeper is asked to close.
    closed: CancellationToken,
    /// Cancelled when the keeper has ended.
    ended: CancellationToken,
}

struct State {
    /// Live sessions that need heartbeats.
    hearts: SessionHeartbeats,
    /// Partitions where a session must begin, and those where one is beginning or ending.
    wanted: BTreeSet<Partition>,
    busy: BTreeSet<Partition>,
    kept: HashMap<KeepId, Kept>,
    /// The same by fencing token, which messages name.
    by_fence: BTreeSet<(FencingToken, KeepId)>,
    pace: RenewalBatcher,
    /// When the lock entries of holds kept for later acquisitions must be checked.
    rests: BTreeSet<(Moment, KeepId)>,
    errands: Vec<Cleanup>,
    /// Cleanups that are not done yet, by number.
    open: BTreeMap<u64, Owed>,
    /// When the keeper wakes by itself.
    armed: Moment,
    last_id: u64,
    /// Set to end once no work is left, or at this moment.
    closing: Option<Moment>,
    /// Set once a shutdown has taken over all holds (6), and what it has to send.
    handed_over: bool,
    farewell: Option<ShutdownReport>,
    /// The earliest deadline requested for a shutdown.
    hurry: Moment,
    /// Set once the keeper has ended.
    ended: Option<Moment>,
    /// What a shutdown could not release.
    unreturned: Vec<Owed>,
    /// Replies that a shutdown received about holds whose releases it may have cut off.
    verdicts: BTreeMap<HoldId, Released>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Kept {
    hold: Arc<Hold>,
    tenure: RenewalSchedule,
    /// Its position in the pace; `None` once it is lost.
    place: Option<BatchSlot>,
    /// Set once it is lost: it is not extended any more.
    lost: bool,
    /// Set once heartbeats report it.
    told: bool,
    /// Set once its release is in flight.
    leaving: bool,
    /// The request to send for it when it is handed on.
    call: Option<Call>,
    /// When its lock entry must be checked, if the hold was kept for later acquisitions.
    rest_until: Option<Moment>,
    /// Set once the user has extended it.
    extended_by_user: bool,
    /// Cancelled when nothing is in flight about it any more; normally shared by a batch.
    in_flight: Option<CancellationToken>,
    /// Set once it is being released without its guard (5).
    giving_back: Option<CancellationToken>,
}

/// A hold that a shutdown takes over.
pub(super) struct Handed {
    pub(super) hold: Arc<Hold>,
    /// Set if its release is in flight.
    pub(super) leaving: bool,
    /// Set if the user may have a request about it in flight.
    pub(super) sent_by_user: bool,
    /// Set if the keeper is releasing it already (5).
    pub(super) given_back: bool,
}

/// A hold that the keeper has retired.
#[derive(Default)]
pub(super) struct Retired {
    /// Cancelled when nothing is in flight about it any more.
    pub(super) in_flight: Option<CancellationToken>,
    /// Set if the keeper is releasing it already (5): cancel this to stop that.
    pub(super) giving_back: Option<CancellationToken>,
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
    lost: Vec<(KeepId, Arc<Hold>, LostReason)>,
    /// Holds that have reached their caps, and their releases.
    capped: Vec<(Arc<Hold>, Cleanup)>,
    /// Holds kept for hand-off that no task took in time.
    unused: Vec<KeepId>,
    /// Requests for holds that are handed on.
    called: Vec<Called>,
    /// Holds whose time kept for later acquisitions may be over.
    rested: Vec<(KeepId, Arc<Hold>)>,
    /// Heartbeats that are due.
    throbs: Vec<HeartbeatInFlight>,
    /// Partitions where a session must begin.
    begun: Vec<Partition>,
    /// Partitions whose session has lapsed.
    lapsed: Vec<Partition>,
    /// Sessions that are not used any more.
    unused_sessions: Vec<Arc<Session>>,
    errands: Vec<Cleanup>,
    farewell: Option<ShutdownReport>,
    next: Option<Moment>,
    closing: Option<Moment>,
}

impl Keeper {
    /// Starts the keeper on a thread of the environment.
    pub(super) fn start(
        store: Arc<dyn Store>,
        birth: SessionFactory,
        sessions: Arc<Sessions>,
        pulse: Option<HeartbeatSchedule>,
    ) -> io::Result<Self> {
        let (environment, timings) = (birth.environment.clone(), birth.timings);
        let now = environment.now();
        let mut hearts = SessionHeartbeats::default();
        if let Some(pulse) = pulse {
            hearts.insert(SessionHeartbeat::new(sessions.present(Partition::ONLY), pulse, now));
        }
        let state = State {
            hearts,
            wanted: BTreeSet::new(),
            busy: BTreeSet::new(),
            kept: HashMap::new(),
            by_fence: BTreeSet::new(),
            pace: RenewalBatcher::new(),
            rests: BTreeSet::new(),
            errands: Vec::new(),
            open: BTreeMap::new(),
            armed: Moment::ZERO,
            last_id: 0,
            closing: None,
            handed_over: false,
            farewell: None,
            hurry: FAR,
            ended: None,
            unreturned: Vec::new(),
            verdicts: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            store,
            environment: environment.clone(),
            timings,
            birth,
            sessions,
            state: Mutex::new(state),
            bell: Notify::new(),
            idle: Notify::new(),
            closed: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        environment.spawn_keeper(Box::pin(run(shared.clone())))?;
        Ok(Self { shared })
    }

    /// Takes a hold over, unless a shutdown has begun (6).
    pub(crate) fn keep(&self, hold: Arc<Hold>, tenure: RenewalSchedule) -> Option<KeepId> {
        let mut state = self.shared.state();
        if state.handed_over {
            return None;
        }
        let id = KeepId(state.fresh_id());
        let kept = Kept {
            hold,
            tenure,
            place: None,
            lost: false,
            told: false,
            leaving: false,
            call: None,
            rest_until: None,
            extended_by_user: false,
            in_flight: None,
            giving_back: None,
        };
        kept.raise();
        let hold = kept.hold.clone();
        state.by_fence.insert((hold.known_as, id));
        state.kept.insert(id, kept);
        if hold.session.alive_until() == Moment::ZERO {
            // The task stood still between acquiring the lock and registering it; the session will never be checked
            // again.
            state.lose(id);
            drop(state);
            hold.lose(LostReason::SessionLapsed);
            return Some(id);
        }
        let due = state.schedule(id);
        let early = due < state.armed;
        drop(state);
        if early {
            self.shared.bell.notify_one();
        }
        Some(id)
    }

    /// Retires a hold (2). It stays known, for a shutdown, until it is [forgotten](Self::forget).
    pub(super) fn retire(&self, id: KeepId) -> Retired {
        let mut state = self.shared.state();
        state.lose(id);
        let Some(kept) = state.kept.get_mut(&id) else { return Retired::default() };
        kept.leaving = true;
        Retired { in_flight: kept.in_flight.clone(), giving_back: kept.giving_back.clone() }
    }

    /// A retired hold has been released, or its release is a cleanup.
    pub(super) fn forget(&self, id: KeepId) {
        self.shared.state().forget(id);
    }

    /// A hold was found to be lost: it is not extended any more.
    pub(crate) fn found_lost(&self, id: KeepId) {
        let mut state = self.shared.state();
        state.lose(id);
        let fence = state.kept.get(&id).map(|kept| kept.hold.known_as);
        let hastened = fence.is_some_and(|fence| state.hasten(fence, self.shared.environment.now()));
        drop(state);
        if hastened {
            self.shared.bell.notify_one();
        }
    }

    /// The lease for an extend by the user, and whether the extend should renew the record beside the lock as well.
    /// The error is the time left until the cap that forbids it.
    pub(crate) fn allow(
        &self,
        id: KeepId,
        now: Moment,
        wish: ExtendRequest,
    ) -> Result<(Duration, bool), Duration> {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&id) else {
            let (ExtendRequest::Exactly(lease) | ExtendRequest::UpTo(lease)) = wish;
            return Ok((lease, false));
        };
        let lease = kept.tenure.allowed_lease(now, wish)?;
        kept.extended_by_user = true;
        Ok((lease, kept.tenure.should_keep_record(now, lease)))
    }

    /// The user has extended a hold.
    pub(crate) fn prolonged(&self, id: KeepId, sent_at: Moment, lease: Duration) {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&id) else { return };
        kept.tenure.handle_extended_by_user(sent_at, lease);
        kept.raise();
        state.tell(id);
        state.schedule(id);
        drop(state);
        self.shared.bell.notify_one();
    }

    /// The handle by which messages reach this keeper.
    pub(super) fn ear(&self) -> KeeperHandle {
        KeeperHandle(Arc::downgrade(&self.shared))
    }

    /// Undoes an acquire that was sent on `main`, may still be in flight and may have been executed.
    pub(super) fn undo(&self, main: &Arc<dyn Store>, lock: &Lock, claim: Claim) {
        let until = self.shared.environment.now() + FIRST_LEASE + self.shared.timings.call;
        self.shared.post(lock.clone(), claim, until, Some(main.clone()));
    }

    /// Releases a hold whose guard is gone.
    pub(super) fn give_back(&self, hold: &Hold) {
        let until = hold.may_last_until().max(self.shared.environment.now() + self.shared.timings.call);
        self.shared.post(hold.lock.clone(), hold.claim.clone(), until, None);
    }

    /// Requests a session in a partition that has none.
    pub(super) fn begin(&self, place: Partition) {
        self.shared.state().wanted.insert(place);
        self.shared.bell.notify_one();
    }

    /// Waits until no cleanup is left.
    pub(crate) async fn errands_done(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.state().open.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Ends the keeper once its cleanups are done.
    pub(super) fn close(&self) {
        self.shared.state().closing.get_or_insert(FAR);
        self.shared.closed.cancel();
        self.shared.bell.notify_one();
    }

    /// Hands all holds over to a shutdown (6): from now on none is extended, and none accepted.
    pub(super) fn hand_over(&self) -> Vec<Handed> {
        let mut state = self.shared.state();
        state.handed_over = true;
        (state.pace, state.rests) = (RenewalBatcher::new(), BTreeSet::new());
        let handed = |kept: &mut Kept| {
            kept.lost = true;
            (kept.place, kept.rest_until) = (None, None);
            Handed {
                hold: kept.hold.clone(),
                leaving: kept.leaving,
                sent_by_user: kept.leaving || kept.extended_by_user,
                given_back: kept.giving_back.is_some(),
            }
        };
        state.kept.values_mut().map(handed).collect()
    }

    /// Records that a shutdown is releasing a hold.
    pub(super) fn owe(&self, hold: &Arc<Hold>) -> u64 {
        self.shared.state().owe(hold.lock.clone(), hold.may_last_until())
    }

    /// Makes the keeper send this and end by `by` at the latest.
    pub(super) fn part(&self, farewell: ShutdownReport, by: Moment) {
        let mut state = self.shared.state();
        state.farewell = Some(farewell);
        state.closing = Some(by);
        drop(state);
        self.shared.closed.cancel();
        self.shared.bell.notify_one();
    }

    /// Ends a shutdown at `by`, if that is before its present deadline.
    pub(super) fn hurry(&self, by: Moment) {
        let mut state = self.shared.state();
        state.hurry = state.hurry.min(by);
        drop(state);
        self.shared.bell.notify_one();
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
    pub(super) async fn verdict(&self, hold: &Hold) -> Result<Released, LostReason> {
        self.ended().await;
        if let Some(reason) = hold.loss() {
            return Err(reason);
        }
        self.shared.state().verdicts.remove(&hold.claim.hold).ok_or(LostReason::ShutDown)
    }

    /// Waits until the keeper has ended. Returns when that was, and what a shutdown could not release.
    pub(super) async fn unreturned(&self) -> (Moment, Vec<Owed>) {
        self.ended().await;
        let state = self.shared.state();
        (state.ended.unwrap_or(Moment::ZERO), state.unreturned.clone())
    }
}

impl KeeperHandle {
    /// A notification says that the hold with this token was released by force. It may be forged, so the hold is
    /// extended at once, and the store's reply decides. A request already in flight does not count. Does not wait.
    pub(super) fn force_released(&self, fence: FencingToken) {
        let Some(shared) = self.0.upgrade() else { return };
        if shared.state().hasten(fence, shared.environment.now()) {
            shared.bell.notify_one();
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Kept {
    /// Updates the hold's validity from its renewal schedule.
    fn raise(&self) {
        self.hold.keep_until(self.tenure.kept_until());
        self.hold.raise(self.tenure.valid_until());
        if self.tenure.ends_by_limit() {
            self.hold.reach_cap();
        }
    }
}

impl State {
    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn forget(&mut self, id: KeepId) {
        if let Some(kept) = self.kept.remove(&id) {
            self.by_fence.remove(&(kept.hold.known_as, id));
            if let Some(place) = kept.place {
                self.pace.leave(id, place);
            }
            if let Some(at) = kept.rest_until {
                self.rests.remove(&(at, id));
            }
        }
    }

    /// Schedules the next action for a hold.
    fn schedule(&mut self, id: KeepId) -> Moment {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost) else { return FAR };
        if let Some(place) = kept.place.take() {
            self.pace.leave(id, place);
        }
        let due = kept.tenure.due();
        // A hold that must be extended at once does not wait for others.
        let until = if kept.tenure.is_verification_pending() || kept.tenure.has_queued_request() {
            due
        } else {
            kept.tenure.valid_until()
        };
        kept.place = Some(self.pace.enter(id, due, until));
        due
    }

    /// Extends all holds with this token as soon as possible: one of them is gone, or is reported to be. Returns
    /// whether there are any.
    fn hasten(&mut self, fence: FencingToken, now: Moment) -> bool {
        let of_it = (fence, KeepId(0))..=(fence, KeepId(u64::MAX));
        let ids: Vec<_> = self.by_fence.range(of_it).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(kept) = self.kept.get_mut(id).filter(|kept| !kept.lost) {
                kept.tenure.verify_soon(now);
                self.schedule(*id);
            }
        }
        !ids.is_empty()
    }

    /// Stops extending a hold, until it is retired (2).
    fn lose(&mut self, id: KeepId) -> Option<Arc<Hold>> {
        self.not_told(id);
        let kept = self.kept.get_mut(&id)?;
        kept.lost = true;
        if let Some(place) = kept.place.take() {
            self.pace.leave(id, place);
        }
        Some(kept.hold.clone())
    }

    /// Collects all work that is due, and the extends that go along with it.
    fn collect(&mut self, now: Moment, call: Duration, sessions: &Sessions) -> Work {
        let closing = self.closing.map(|by| by.min(self.hurry));
        let mut work = Work { closing, farewell: self.farewell.take(), ..Work::default() };
        work.errands.append(&mut self.errands);
        self.execute_session(now, sessions, &mut work);
        for DueHold { id, ahead } in self.pace.take(now) {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.place = None;
            if kept.hold.is_doubted() {
                // It was found gone, or is being released, elsewhere; that code reports it.
                self.lose(id);
                continue;
            }
            match kept.tenure.poll(now, ahead) {
                RenewalAction::Expired | RenewalAction::Release if kept.hold.is_passed() => {
                    work.unused.push(id);
                    continue;
                }
                RenewalAction::Expired => {
                    work.lost.extend(self.lose(id).map(|hold| (id, hold, LostReason::Expired)));
                    continue;
                }
                RenewalAction::Release => {
                    work.capped.extend(self.give_up(id));
                    continue;
                }
                RenewalAction::SendRequest => {
                    work.called.push(Called::new(id, kept, call, now));
                }
                RenewalAction::Extend { lease, keep_record } => {
                    kept.hold.may_last(now + call + lease);
                    let ends_soon = kept.tenure.valid_until().since(now) < call * 2;
                    let batches = if ends_soon { &mut work.urgent } else { &mut work.calm };
                    let sent = Sent { id, hold: kept.hold.clone(), lease, keep_record };
                    kept.in_flight = Some(Batch::add(batches, sent));
                    self.tell(id);
                }
                RenewalAction::Sleep(_) => {}
            }
            self.schedule(id);
        }
        work.rested = self.take_rested(now);
        let beat = self.hearts.next().filter(|_| self.closing.is_none());
        let rest = self.rests.first().map(|(at, _)| *at);
        work.next = self.pace.next().into_iter().chain(beat).chain(rest).min();
        self.armed = work.next.unwrap_or(FAR);
        work.next = work.next.into_iter().chain(closing.filter(|by| *by != FAR)).min();
        work
    }
}

/// Runs the keeper until it is closed and its cleanups are done.
async fn run(shared: Arc<Shared>) {
    // Dropped after the running futures, so nothing is sent any more by then.
    let _end = End(shared.clone());
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    // Whether a closing keeper without other work has waited for the store's background work.
    let mut settled = false;
    loop {
        let now = shared.environment.now();
        let work = shared.state().collect(now, shared.timings.call, &shared.sessions);
        for (id, hold, reason) in work.lost {
            hold.lose(reason);
            if hold.is_passed() {
                // No guard will release it, and the store may still keep it.
                shared.part_with(id);
            }
        }
        for (hold, errand) in work.capped {
            hold.lose(LostReason::Capped);
            running.push(Box::pin(run_errand(shared.clone(), errand)));
        }
        for id in work.unused {
            shared.part_with(id);
        }
        for called in work.called {
            running.push(Box::pin(call(shared.clone(), called)));
        }
        for (id, hold) in work.rested {
            shared.end_rest(id, &hold, now);
        }
        for throb in work.throbs {
            running.push(Box::pin(beat(shared.clone(), throb)));
        }
        for place in work.lapsed {
            running.push(Box::pin(begin(shared.clone(), place, true)));
        }
        for place in work.begun {
            running.push(Box::pin(begin(shared.clone(), place, false)));
        }
        for session in work.unused_sessions {
            running.push(Box::pin(end_unused(shared.clone(), session)));
        }
        for batch in work.urgent.into_iter().chain(work.calm) {
            running.push(Box::pin(extend(shared.clone(), batch)));
        }
        settled &= work.errands.is_empty() && work.farewell.is_none();
        for errand in work.errands {
            running.push(Box::pin(run_errand(shared.clone(), errand)));
        }
        if let Some(farewell) = work.farewell {
            running.push(Box::pin(shutdown_report::part(shared.clone(), farewell)));
        }
        if work.closing.is_some_and(|by| running.is_empty() || by <= now) {
            if settled || work.closing.is_some_and(|by| by <= now) {
                return end_sessions(&shared, work.closing).await;
            }
            settled = true;
            running.push(Box::pin(settle(shared.clone())));
        }
        let nap = async {
            match work.next {
                Some(at) => shared.environment.sleep_until(at.min(now + NAP)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some(()) = running.next(), if !running.is_empty() => {}
            () = shared.bell.notified() => {}
            () = nap => {}
        }
    }
}

async fn settle(shared: Arc<Shared>) {
    settled(&*shared.store, &*shared.environment, shared.timings).await;
}

/// Ends the keeper on every path.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let now = self.0.environment.now();
        let mut state = self.0.state();
        state.ended = Some(now);
        state.errands.clear();
        let open = std::mem::take(&mut state.open);
        state.unreturned.extend(open.into_values());
        drop(state);
        self.0.idle.notify_waiters();
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
    pub(super) fn note(&self, hold: &Hold, released: Released) {
        self.state().verdicts.insert(hold.claim.hold, released);
    }
}

#[cfg(test)]
mod tests;
