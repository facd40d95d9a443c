//! The keeper: one timer for all holds of a client, on a thread of its own.
//!
//! A user whose tasks block his runtime does not lose his locks by it: the keeper has its own thread,
//! its own runtime and its own connection.
//!
//! 1. What is due is extended in batches, as [`Pace`] makes them up (what ends soon in some of its own). One
//!    extend a hold is in flight at a time.
//! 2. A hold that was retired is not sent again; who retires it can await what is in flight about it. A hold
//!    that is lost stays known until it is retired: something may be in flight about it still.
//! 3. The deadline itself ends a hold: no reply, no network, no other task is needed for it.
//! 4. Errands (undoing an acquire, giving back what a dropped guard held) are sent until they are known
//!    to have arrived, or until the store has forgotten the hold by itself.
//! 5. A hold that has reached its cap is lost first and released then, by an errand that counts as being in flight
//!    about it.
//! 6. A shutdown takes all holds over. The keeper then does what is still to be done, until its bound, and ends; what
//!    was left undone is known from then on.
//! 7. Beats go first. A session that has lapsed takes all its holds with it, in one step, and another one is begun. Places
//!    do not wait for one another, and in none is more than one thing at a time done to have another session.
//! 8. Messages are hints, and can be forged in any number: one about a hold makes it be extended early, a few times a
//!    second at most, and the store's answer is what counts.
//! 9. A hold that is handed on inside the process stays what it is here: what is in flight about it goes on, and counts for
//!    whoever has it by the time of the answer. One whose guard is done with it, and that nobody comes for, is given back
//!    when it is over.

mod errand;
mod extend;
pub(super) mod farewell;
mod life;
mod passing;

pub(super) use errand::Owed;

use super::heart::{Heart, Hearts, Throb};
use super::keep_id::KeepId;
use super::pace::{Pace, Spot, Turn};
use super::reservation::Call;
use super::session::{Birth, Session, Sessions};
use super::{FAR, Hold, LostReason, Timings, settled};
use crate::store::Store;
use errand::{Errand, run_errand};
use extend::{Batch, Sent, extend};
use farewell::Farewell;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use leasehold_core::pulse::Pulse;
use leasehold_core::tenure::{Duty, Tenure, Wish};
use leasehold_core::{Claim, FIRST_LEASE, FencingToken, HoldId, Lock, Moment, Place, Released};
use leasehold_store::World;
use leasehold_store::sync::{Mutex, MutexGuard, Notify};
use life::{beat, begin, end_sessions, end_unused};
use passing::{Called, call};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The longest nap while anything is held: timers stand still in a suspend, and the deadline of a hold does not.
const NAP: Duration = Duration::from_secs(1);

/// Keeps the holds of a client.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) store: Arc<dyn Store>,
    pub(super) world: Arc<dyn World>,
    pub(super) timings: Timings,
    birth: Birth,
    sessions: Arc<Sessions>,
    state: Mutex<State>,
    bell: Notify,
    idle: Notify,
    /// Cancelled when it is closed.
    closed: CancellationToken,
    /// Cancelled when the keeper has ended.
    ended: CancellationToken,
}

struct State {
    /// The sessions that live by beats and have not lapsed.
    hearts: Hearts,
    /// Places where a session is to begin, and those where one is being begun or ended.
    wanted: BTreeSet<Place>,
    busy: BTreeSet<Place>,
    kept: HashMap<KeepId, Kept>,
    /// The same by their fencing tokens, which messages name.
    by_fence: BTreeSet<(FencingToken, KeepId)>,
    pace: Pace,
    /// When the seats of holds are to be looked at that are kept for whoever comes.
    rests: BTreeSet<(Moment, KeepId)>,
    errands: Vec<Errand>,
    /// What is being given back, by a number.
    open: BTreeMap<u64, Owed>,
    /// When the keeper wakes by itself.
    armed: Moment,
    last_id: u64,
    /// Set to end once nothing is left to do, or at this moment.
    closing: Option<Moment>,
    /// Set once a shutdown has taken all holds over (6), and what it has to say.
    handed_over: bool,
    farewell: Option<Farewell>,
    /// The earliest end that was asked for of a shutdown.
    hurry: Moment,
    /// Set once it has ended.
    ended: Option<Moment>,
    /// What a shutdown could not give back.
    unreturned: Vec<Owed>,
    /// What a shutdown was told of holds whose releases it may have cut off.
    verdicts: BTreeMap<HoldId, Released>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Kept {
    hold: Arc<Hold>,
    tenure: Tenure,
    /// Where it stands in the pace; `None` once it is lost.
    place: Option<Spot>,
    /// Set once it is lost: it is not extended any more.
    lost: bool,
    /// Set once people are told of it.
    told: bool,
    /// Set once its release is on its way.
    leaving: bool,
    /// What it is to be called for, where it is handed on.
    call: Option<Call>,
    /// When the seat is to be looked at, where its hold was kept for whoever comes.
    rest_until: Option<Moment>,
    /// Set once the user has extended it himself.
    extended_by_user: bool,
    /// Cancelled when nothing is in flight about it any more; as a rule the whole batch has one.
    in_flight: Option<CancellationToken>,
    /// Set once it is given back without its guard (5).
    giving_back: Option<CancellationToken>,
}

/// A hold that is handed over to a shutdown.
pub(super) struct Handed {
    pub(super) hold: Arc<Hold>,
    /// Set if its release is on its way.
    pub(super) leaving: bool,
    /// Set if the user may have sent something about it that is on its way.
    pub(super) sent_by_user: bool,
    /// Set if the keeper gives it back already (5).
    pub(super) given_back: bool,
}

/// A hold that the keeper has let go of.
#[derive(Default)]
pub(super) struct Retired {
    /// Cancelled when nothing is in flight about it any more.
    pub(super) in_flight: Option<CancellationToken>,
    /// Set if the keeper gives it back already (5): to be cancelled when it is to stop with that.
    pub(super) giving_back: Option<CancellationToken>,
}

/// What messages reach a keeper by. It does not keep it alive.
pub(super) struct Ear(Weak<Shared>);

/// What there is to do now.
#[derive(Default)]
struct Work {
    /// Holds that have time for more than one try.
    calm: Vec<Batch>,
    /// Holds that end soon: they leave little time for an answer, and should not take it from the others.
    urgent: Vec<Batch>,
    lost: Vec<(KeepId, Arc<Hold>, LostReason)>,
    /// Holds that have reached their caps, and their releases.
    capped: Vec<(Arc<Hold>, Errand)>,
    /// Holds that were passed on, and that nobody came for in time.
    unused: Vec<KeepId>,
    /// Questions for those that are handed on.
    called: Vec<Called>,
    /// Holds that were kept for whoever comes until now.
    rested: Vec<(KeepId, Arc<Hold>)>,
    /// Beats that are due.
    throbs: Vec<Throb>,
    /// Where a session is to begin.
    begun: Vec<Place>,
    /// Where one has lapsed.
    lapsed: Vec<Place>,
    /// Sessions that nobody uses any more.
    unused_sessions: Vec<Arc<Session>>,
    errands: Vec<Errand>,
    farewell: Option<Farewell>,
    next: Option<Moment>,
    closing: Option<Moment>,
}

impl Keeper {
    /// Starts the keeper in its own place in the world.
    pub(super) fn start(
        store: Arc<dyn Store>,
        birth: Birth,
        sessions: Arc<Sessions>,
        pulse: Option<Pulse>,
    ) -> io::Result<Self> {
        let (world, timings) = (birth.world.clone(), birth.timings);
        let now = world.now();
        let mut hearts = Hearts::default();
        if let Some(pulse) = pulse {
            hearts.insert(Heart::new(sessions.present(Place::ONLY), pulse, now));
        }
        let state = State {
            hearts,
            wanted: BTreeSet::new(),
            busy: BTreeSet::new(),
            kept: HashMap::new(),
            by_fence: BTreeSet::new(),
            pace: Pace::new(),
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
            world: world.clone(),
            timings,
            birth,
            sessions,
            state: Mutex::new(state),
            bell: Notify::new(),
            idle: Notify::new(),
            closed: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        world.host(Box::pin(run(shared.clone())))?;
        Ok(Self { shared })
    }

    /// Takes a hold into its care, unless a shutdown has begun (6).
    pub(crate) fn keep(&self, hold: Arc<Hold>, tenure: Tenure) -> Option<KeepId> {
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
            // Its task stood still between winning it and saying so, and nobody will come by this session again.
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

    /// Lets go of a hold (2). It stays known, for a shutdown, until it is [forgotten](Self::forget).
    pub(super) fn retire(&self, id: KeepId) -> Retired {
        let mut state = self.shared.state();
        state.lose(id);
        let Some(kept) = state.kept.get_mut(&id) else { return Retired::default() };
        kept.leaving = true;
        Retired { in_flight: kept.in_flight.clone(), giving_back: kept.giving_back.clone() }
    }

    /// A hold that was retired has been released, or its release is an errand.
    pub(super) fn forget(&self, id: KeepId) {
        self.shared.state().forget(id);
    }

    /// A hold was found to be lost: it is not extended any more.
    pub(crate) fn found_lost(&self, id: KeepId) {
        let mut state = self.shared.state();
        state.lose(id);
        let fence = state.kept.get(&id).map(|kept| kept.hold.known_as);
        let hastened = fence.is_some_and(|fence| state.hasten(fence, self.shared.world.now()));
        drop(state);
        if hastened {
            self.shared.bell.notify_one();
        }
    }

    /// The lease that an extend by the user asks for, and whether it should keep the record beside the lock as well;
    /// or how much time is left until the cap that stands against it.
    pub(crate) fn allow(&self, id: KeepId, now: Moment, wish: Wish) -> Result<(Duration, bool), Duration> {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&id) else {
            let (Wish::Exactly(lease) | Wish::UpTo(lease)) = wish;
            return Ok((lease, false));
        };
        let lease = kept.tenure.allow(now, wish)?;
        kept.extended_by_user = true;
        Ok((lease, kept.tenure.wants_record(now, lease)))
    }

    /// A hold was extended by its user.
    pub(crate) fn prolonged(&self, id: KeepId, sent_at: Moment, lease: Duration) {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&id) else { return };
        kept.tenure.prolong(sent_at, lease);
        kept.raise();
        state.tell(id);
        state.schedule(id);
        drop(state);
        self.shared.bell.notify_one();
    }

    /// What messages reach this keeper by.
    pub(super) fn ear(&self) -> Ear {
        Ear(Arc::downgrade(&self.shared))
    }

    /// Undoes what an acquire may have left that was sent by `main`, and may be on its way still.
    pub(super) fn undo(&self, main: &Arc<dyn Store>, lock: &Lock, claim: Claim) {
        let until = self.shared.world.now() + FIRST_LEASE + self.shared.timings.call;
        self.shared.post(lock.clone(), claim, until, Some(main.clone()));
    }

    /// Gives back a hold whose guard is gone.
    pub(super) fn give_back(&self, hold: &Hold) {
        let until = hold.may_last_until().max(self.shared.world.now() + self.shared.timings.call);
        self.shared.post(hold.lock.clone(), hold.claim.clone(), until, None);
    }

    /// Has a session begin in a place where there is none.
    pub(super) fn begin(&self, place: Place) {
        self.shared.state().wanted.insert(place);
        self.shared.bell.notify_one();
    }

    /// Waits until no errand is left.
    pub(crate) async fn errands_done(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.state().open.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Ends the keeper once its errands are done.
    pub(super) fn close(&self) {
        self.shared.state().closing.get_or_insert(FAR);
        self.shared.closed.cancel();
        self.shared.bell.notify_one();
    }

    /// Hands all holds over to a shutdown (6): from now on none is extended, and none taken in.
    pub(super) fn hand_over(&self) -> Vec<Handed> {
        let mut state = self.shared.state();
        state.handed_over = true;
        (state.pace, state.rests) = (Pace::new(), BTreeSet::new());
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

    /// Enters that a hold is being given back by a shutdown.
    pub(super) fn owe(&self, hold: &Arc<Hold>) -> u64 {
        self.shared.state().owe(hold.lock.clone(), hold.may_last_until())
    }

    /// Has the keeper end by that moment at the latest, with what is to be said to the store before.
    pub(super) fn part(&self, farewell: Farewell, by: Moment) {
        let mut state = self.shared.state();
        state.farewell = Some(farewell);
        state.closing = Some(by);
        drop(state);
        self.shared.closed.cancel();
        self.shared.bell.notify_one();
    }

    /// Has a shutdown end earlier, if that is earlier.
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

    /// A token that is cancelled when the keeper has ended. It does not keep it alive.
    pub(crate) fn end(&self) -> CancellationToken {
        self.shared.ended.clone()
    }

    /// Waits until the keeper has ended: says what the store has told it of a hold whose release was cut off, or why that
    /// hold is lost.
    pub(super) async fn verdict(&self, hold: &Hold) -> Result<Released, LostReason> {
        self.ended().await;
        if let Some(reason) = hold.loss() {
            return Err(reason);
        }
        self.shared.state().verdicts.remove(&hold.claim.hold).ok_or(LostReason::ShutDown)
    }

    /// Waits until the keeper has ended: says when that was, and what a shutdown could not give back.
    pub(super) async fn unreturned(&self) -> (Moment, Vec<Owed>) {
        self.ended().await;
        let state = self.shared.state();
        (state.ended.unwrap_or(Moment::ZERO), state.unreturned.clone())
    }
}

impl Ear {
    /// Somebody says that the hold with this token was ended by force. It may be forged: the hold is extended at once,
    /// whenever its turn would come, and the store says what is true. What is in flight about it already does not
    /// count as the answer. Does not wait.
    pub(super) fn hear_freed(&self, fence: FencingToken) {
        let Some(shared) = self.0.upgrade() else { return };
        if shared.state().hasten(fence, shared.world.now()) {
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
    /// Has the hold be believed for as long as its tenure says.
    fn raise(&self) {
        self.hold.keep_until(self.tenure.kept_until());
        self.hold.raise(self.tenure.valid_until());
        if self.tenure.ends_by_cap() {
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

    /// Enters when a hold next needs attention.
    fn schedule(&mut self, id: KeepId) -> Moment {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost) else { return FAR };
        if let Some(place) = kept.place.take() {
            self.pace.leave(id, place);
        }
        let due = kept.tenure.due();
        // Who is to be extended at once has no time for others.
        let until = if kept.tenure.is_hastened() || kept.tenure.is_called() {
            due
        } else {
            kept.tenure.valid_until()
        };
        kept.place = Some(self.pace.enter(id, due, until));
        due
    }

    /// Extends all holds with this token as soon as can be: one of them is gone, or is said to be. Says whether there
    /// are any.
    fn hasten(&mut self, fence: FencingToken, now: Moment) -> bool {
        let of_it = (fence, KeepId(0))..=(fence, KeepId(u64::MAX));
        let ids: Vec<_> = self.by_fence.range(of_it).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(kept) = self.kept.get_mut(id).filter(|kept| !kept.lost) {
                kept.tenure.hasten(now);
                self.schedule(*id);
            }
        }
        !ids.is_empty()
    }

    /// Extends a hold no more, until it is retired (2).
    fn lose(&mut self, id: KeepId) -> Option<Arc<Hold>> {
        self.not_told(id);
        let kept = self.kept.get_mut(&id)?;
        kept.lost = true;
        if let Some(place) = kept.place.take() {
            self.pace.leave(id, place);
        }
        Some(kept.hold.clone())
    }

    /// Takes out all that is due, and the extends that go along with it.
    fn collect(&mut self, now: Moment, call: Duration, sessions: &Sessions) -> Work {
        let closing = self.closing.map(|by| by.min(self.hurry));
        let mut work = Work { closing, farewell: self.farewell.take(), ..Work::default() };
        work.errands.append(&mut self.errands);
        self.attend(now, sessions, &mut work);
        for Turn { id, ahead } in self.pace.take(now) {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.place = None;
            if kept.hold.is_doubted() {
                // It was found gone, or is being released, elsewhere: whoever knows it tells it.
                self.lose(id);
                continue;
            }
            match kept.tenure.poll(now, ahead) {
                Duty::Over | Duty::GiveUp if kept.hold.is_passed() => {
                    work.unused.push(id);
                    continue;
                }
                Duty::Over => {
                    work.lost.extend(self.lose(id).map(|hold| (id, hold, LostReason::Expired)));
                    continue;
                }
                Duty::GiveUp => {
                    work.capped.extend(self.give_up(id));
                    continue;
                }
                Duty::Call => {
                    work.called.push(Called::new(id, kept, call, now));
                }
                Duty::Extend { lease, keep_record } => {
                    kept.hold.may_last(now + call + lease);
                    let ends_soon = kept.tenure.valid_until().since(now) < call * 2;
                    let batches = if ends_soon { &mut work.urgent } else { &mut work.calm };
                    let sent = Sent { id, hold: kept.hold.clone(), lease, keep_record };
                    kept.in_flight = Some(Batch::add(batches, sent));
                    self.tell(id);
                }
                Duty::Rest(_) => {}
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

/// Runs the keeper until it is closed and its errands are done.
async fn run(shared: Arc<Shared>) {
    // Dropped after what is running: nothing is sent any more when it is.
    let _end = End(shared.clone());
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    // Whether the store has been waited for, of a keeper that has nothing else to do and is to end.
    let mut settled = false;
    loop {
        let now = shared.world.now();
        let work = shared.state().collect(now, shared.timings.call, &shared.sessions);
        for (id, hold, reason) in work.lost {
            hold.lose(reason);
            if hold.is_passed() {
                // It has no guard that would give it back, and the store may have it yet.
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
            running.push(Box::pin(farewell::part(shared.clone(), farewell)));
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
                Some(at) => shared.world.sleep_until(at.min(now + NAP)).await,
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
    settled(&*shared.store, &*shared.world, shared.timings).await;
}

/// The end of the keeper, whatever ends it.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let now = self.0.world.now();
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
        // Nothing in here panics while it holds the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a shutdown was told when it released a hold. Only a release that was cut off asks for it: one that had its
    /// answer knows better.
    pub(super) fn note(&self, hold: &Hold, released: Released) {
        self.state().verdicts.insert(hold.claim.hold, released);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
