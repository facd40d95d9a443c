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
//! 7. Beats go first. A session that has lapsed takes all its holds with it, in one step, and another one is begun.
//! 8. Messages are hints, and can be forged in any number: one about a hold makes it be extended early, a few times a
//!    second at most, and the store's answer is what counts.

use super::heart::{Heart, Need, Throb};
use super::pace::{BATCH, Pace, Place, Turn};
use super::release::announce;
use super::session::{Birth, Sessions};
use super::shutdown::{self, Farewell};
use super::{FAR, Hold, LostReason, Session, Timings, World, call, jitter};
use crate::store::{Outcome, Store};
use crate::sync::{Mutex, MutexGuard, Notify};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use leasehold_core::pulse::Pulse;
use leasehold_core::tenure::{Duty, Tenure, Wish};
use leasehold_core::{
    Beaten, Claim, Extend, Extended, FIRST_LEASE, FencingToken, HoldId, Lock, Moment, Op, Pass, Release,
    Reply, SessionOp, SessionReply, whole_millis,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest nap while anything is held: timers stand still in a suspend, and the deadline of a hold does not.
const NAP: Duration = Duration::from_secs(1);

/// Pauses between two tries to begin a session: the first, and the longest.
const BIRTH_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Keeps the holds of a client.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

/// Which hold of the keeper's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeepId(pub(super) u64);

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
    /// The session, where it lives by beats and has not lapsed.
    heart: Option<Heart>,
    kept: HashMap<KeepId, Kept>,
    /// The same by their fencing tokens, which messages name.
    by_fence: BTreeSet<(FencingToken, KeepId)>,
    pace: Pace,
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
    /// What a shutdown knows of holds whose releases it may have cut off, where they were not released.
    verdicts: BTreeMap<HoldId, LostReason>,
}

/// Something that is being given back.
#[derive(Clone)]
pub(super) struct Owed {
    pub(super) lock: Lock,
    /// Until when the store may have it.
    pub(super) until: Moment,
    /// Set if it is a hold whose release was on its way, so that its loss has not been told.
    pub(super) untold: Option<HoldId>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Kept {
    hold: Arc<Hold>,
    tenure: Tenure,
    /// Where it stands in the pace; `None` once it is lost.
    place: Option<Place>,
    /// Set once it is lost: it is not extended any more.
    lost: bool,
    /// Set once people are told of it.
    told: bool,
    /// Set once its release is on its way.
    leaving: bool,
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

/// A release that somebody else began.
struct Errand {
    id: u64,
    lock: Lock,
    claim: Claim,
    until: Moment,
    /// Set where the operation that is undone may still be on its way: the connection that it went by.
    behind: Option<Arc<dyn Store>>,
    /// Set if it is about a hold whose guard is there still (5).
    guarded: Option<Guarded>,
}

/// What ties an errand to a hold whose guard is there still.
struct Guarded {
    /// Cancelled when nothing more is to be sent.
    stop: CancellationToken,
    /// What was in flight about the hold before.
    earlier: Option<CancellationToken>,
    /// Kept for as long as anything is in flight about the hold.
    in_flight: DropGuard,
}

/// What messages reach a keeper by. It does not keep it alive.
pub(super) struct Ear(Weak<Shared>);

/// An extend on its way.
struct Sent {
    id: KeepId,
    hold: Arc<Hold>,
    lease: Duration,
    keep_record: bool,
}

/// Extends that go together.
struct Batch {
    sent: Vec<Sent>,
    /// For those who wait until none of them is in flight.
    token: CancellationToken,
    /// Kept for as long as any of them is in flight.
    in_flight: DropGuard,
}

/// A hold of which the store said that it is gone.
struct Gone {
    hold: Arc<Hold>,
    /// Whether that was before its lease has ended.
    in_time: bool,
    /// Kept for as long as anything is asked about it.
    in_flight: DropGuard,
}

/// What there is to do now.
#[derive(Default)]
struct Work {
    /// Holds that have time for more than one try.
    calm: Vec<Batch>,
    /// Holds that end soon: they leave little time for an answer, and should not take it from the others.
    urgent: Vec<Batch>,
    lost: Vec<(Arc<Hold>, LostReason)>,
    /// Holds that have reached their caps, and their releases.
    capped: Vec<(Arc<Hold>, Errand)>,
    /// A beat that is due.
    throb: Option<Throb>,
    /// Set if the session has lapsed.
    lapsed: bool,
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
        let state = State {
            heart: pulse.map(|pulse| Heart::new(sessions.present(), pulse, now)),
            kept: HashMap::new(),
            by_fence: BTreeSet::new(),
            pace: Pace::new(),
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
            extended_by_user: false,
            in_flight: None,
            giving_back: None,
        };
        kept.raise();
        let hold = kept.hold.clone();
        state.by_fence.insert((hold.fence, id));
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
        let mut state = self.shared.state();
        if let Some(kept) = state.kept.remove(&id) {
            state.by_fence.remove(&(kept.hold.fence, id));
        }
    }

    /// A hold was found to be lost: it is not extended any more.
    pub(crate) fn found_lost(&self, id: KeepId) {
        self.shared.state().lose(id);
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
        state.pace = Pace::new();
        let handed = |kept: &mut Kept| {
            kept.lost = true;
            kept.place = None;
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
    pub(super) fn owe(&self, hold: &Arc<Hold>, leaving: bool) -> u64 {
        let untold = leaving.then_some(hold.claim.hold);
        self.shared.state().owe(hold.lock.clone(), hold.may_last_until(), untold)
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

    /// Waits until the keeper has ended: says what became of a hold whose release was cut off, if it was not released.
    pub(super) async fn verdict(&self, hold: &Hold) -> Option<LostReason> {
        self.ended().await;
        hold.loss().or_else(|| self.shared.state().verdicts.get(&hold.claim.hold).cloned())
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
        let now = shared.world.now();
        let mut state = shared.state();
        let of_it = (fence, KeepId(0))..=(fence, KeepId(u64::MAX));
        let ids: Vec<_> = state.by_fence.range(of_it).map(|(_, id)| *id).collect();
        for id in &ids {
            if let Some(kept) = state.kept.get_mut(id).filter(|kept| !kept.lost) {
                kept.tenure.hasten(now);
                state.schedule(*id);
            }
        }
        drop(state);
        if !ids.is_empty() {
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

    /// Enters that something is being given back.
    fn owe(&mut self, lock: Lock, until: Moment, untold: Option<HoldId>) -> u64 {
        let id = self.fresh_id();
        self.open.insert(id, Owed { lock, until, untold });
        id
    }

    /// Enters when a hold next needs attention.
    fn schedule(&mut self, id: KeepId) -> Moment {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost) else { return FAR };
        if let Some(place) = kept.place.take() {
            self.pace.leave(id, place);
        }
        let due = kept.tenure.due();
        // Who is to be extended at once has no time for others.
        let until = if kept.tenure.is_hastened() { due } else { kept.tenure.valid_until() };
        kept.place = Some(self.pace.enter(id, due, until));
        due
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

    /// People are told that a hold is there: it was extended, so it is one that lasts.
    fn tell(&mut self, id: KeepId) {
        if let (Some(kept), Some(heart)) = (self.kept.get_mut(&id).filter(|kept| !kept.lost), &mut self.heart)
            && !std::mem::replace(&mut kept.told, true)
        {
            heart.tell(&kept.hold.lock);
        }
    }

    /// People are not told any more that a hold is there.
    fn not_told(&mut self, id: KeepId) {
        if let (Some(kept), Some(heart)) = (self.kept.get_mut(&id), &mut self.heart)
            && std::mem::take(&mut kept.told)
        {
            heart.left(&kept.hold.lock);
        }
    }

    /// Looks after the session (7). Once the keeper is closed nothing lives with it any more: it is ended, and does not
    /// beat.
    fn attend(&mut self, now: Moment, work: &mut Work) {
        let Some(heart) = self.heart.as_mut().filter(|_| self.closing.is_none()) else { return };
        match heart.poll(now) {
            Need::Rest => {}
            Need::Beat(throb) => work.throb = Some(throb),
            Need::Lapsed => {
                let session = heart.session.clone();
                // By our own count it would still be alive.
                let in_time = now < session.alive_until();
                session.end();
                self.heart = None;
                // What the next session has told of is its own.
                self.kept.values_mut().for_each(|kept| kept.told = false);
                work.lapsed = true;
                let reason = if in_time { LostReason::StoreLostData } else { LostReason::SessionLapsed };
                let of_it = |kept: &Kept| !kept.lost && kept.hold.session.id == session.id;
                let ids: Vec<_> =
                    self.kept.iter().filter(|(_, kept)| of_it(kept)).map(|(id, _)| *id).collect();
                for id in ids {
                    work.lost.extend(self.lose(id).map(|hold| (hold, reason.clone())));
                }
            }
        }
    }

    /// Enters the outcome of one extend. Gives the hold if it is gone.
    fn enter(
        &mut self,
        sent: &Sent,
        outcome: &Outcome,
        sent_at: Moment,
        now: Moment,
        random: &mut dyn FnMut() -> u64,
    ) -> Option<Gone> {
        let kept = self.kept.get_mut(&sent.id).filter(|kept| !kept.lost)?;
        match outcome {
            Outcome::Done(Reply::Extend(Extended::Extended)) => {
                kept.tenure.handle_extended(sent_at, sent.lease, sent.keep_record);
                kept.raise();
            }
            Outcome::Done(Reply::Extend(Extended::NotHeld)) => {
                let in_time = now < kept.hold.valid_until();
                sent.hold.doubt();
                // The rest of the batch does not wait until somebody has said why.
                let in_flight = kept.in_flight.insert(CancellationToken::new()).clone().drop_guard();
                self.lose(sent.id);
                return Some(Gone { hold: sent.hold.clone(), in_time, in_flight });
            }
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Unknown(_) => {
                if let Outcome::Refused(fault) | Outcome::Unknown(fault) = outcome {
                    tracing::debug!(lock = %sent.hold.lock, %fault, "not extended yet");
                }
                kept.tenure.handle_fault(now, random);
            }
        }
        self.schedule(sent.id);
        None
    }

    /// Has a hold given back whose guard is there still (5). It has to be lost before that is sent.
    fn give_up(&mut self, id: KeepId) -> Option<(Arc<Hold>, Errand)> {
        let hold = self.lose(id)?;
        let kept = self.kept.get_mut(&id)?;
        let (stop, in_flight) = (CancellationToken::new(), CancellationToken::new());
        kept.giving_back = Some(stop.clone());
        let earlier = kept.in_flight.replace(in_flight.clone());
        let (lock, claim, until) = (hold.lock.clone(), hold.claim.clone(), hold.may_last_until());
        let guarded = Some(Guarded { stop, earlier, in_flight: in_flight.drop_guard() });
        let id = self.owe(lock.clone(), until, None);
        Some((hold, Errand { id, lock, claim, until, behind: None, guarded }))
    }

    /// Takes out all that is due, and the extends that go along with it.
    fn collect(&mut self, now: Moment, call: Duration) -> Work {
        let closing = self.closing.map(|by| by.min(self.hurry));
        let mut work = Work { closing, farewell: self.farewell.take(), ..Work::default() };
        work.errands.append(&mut self.errands);
        self.attend(now, &mut work);
        for Turn { id, ahead } in self.pace.take(now) {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            kept.place = None;
            if kept.hold.is_doubted() {
                // It was found gone, or is being released, elsewhere: whoever knows it tells it.
                self.lose(id);
                continue;
            }
            match kept.tenure.poll(now, ahead) {
                Duty::Over => {
                    work.lost.extend(self.lose(id).map(|hold| (hold, LostReason::Expired)));
                    continue;
                }
                Duty::GiveUp => {
                    work.capped.extend(self.give_up(id));
                    continue;
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
        let heart = self.heart.as_ref().filter(|_| self.closing.is_none());
        work.next = self.pace.next().into_iter().chain(heart.map(Heart::due)).min();
        self.armed = work.next.unwrap_or(FAR);
        work.next = work.next.into_iter().chain(closing.filter(|by| *by != FAR)).min();
        work
    }
}

impl Batch {
    /// Adds an extend to the last batch, or to a new one if that is full. What is returned is cancelled when the batch
    /// is in flight no more.
    fn add(batches: &mut Vec<Self>, sent: Sent) -> CancellationToken {
        if let Some(batch) = batches.last_mut().filter(|batch| batch.sent.len() < BATCH) {
            batch.sent.push(sent);
            return batch.token.clone();
        }
        let token = CancellationToken::new();
        let in_flight = token.clone().drop_guard();
        batches.push(Self { sent: vec![sent], token: token.clone(), in_flight });
        token
    }
}

/// Runs the keeper until it is closed and its errands are done.
async fn run(shared: Arc<Shared>) {
    // Dropped after what is running: nothing is sent any more when it is.
    let _end = End(shared.clone());
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let now = shared.world.now();
        let work = shared.state().collect(now, shared.timings.call);
        for (hold, reason) in work.lost {
            hold.lose(reason);
        }
        for (hold, errand) in work.capped {
            hold.lose(LostReason::Capped);
            running.push(Box::pin(run_errand(shared.clone(), errand)));
        }
        if let Some(throb) = work.throb {
            running.push(Box::pin(beat(shared.clone(), throb)));
        }
        if work.lapsed {
            running.push(Box::pin(begin_again(shared.clone())));
        }
        for batch in work.urgent.into_iter().chain(work.calm) {
            running.push(Box::pin(extend(shared.clone(), batch)));
        }
        for errand in work.errands {
            running.push(Box::pin(run_errand(shared.clone(), errand)));
        }
        if let Some(farewell) = work.farewell {
            running.push(Box::pin(shutdown::part(shared.clone(), farewell)));
        }
        if work.closing.is_some_and(|by| running.is_empty() || by <= now) {
            return end_session(&shared, work.closing).await;
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
        let untold: Vec<_> = state.unreturned.iter().filter_map(|owed| owed.untold).collect();
        for hold in untold {
            state.verdicts.entry(hold).or_insert(LostReason::ShutDown);
        }
        drop(state);
        self.0.idle.notify_waiters();
        self.0.ended.cancel();
    }
}

/// Sends one beat, and enters what came of it.
async fn beat(shared: Arc<Shared>, throb: Throb) {
    let sent_at = shared.world.now();
    // Half of what is left, so that there is time for another try.
    let left = throb.valid_until.since(sent_at);
    let within = shared.timings.call.min(left / 2).max(Duration::from_millis(1));
    let outcome = shared.store.attend(&throb.op, within).await;
    let now = shared.world.now();
    let mut state = shared.state();
    let Some(heart) = state.heart.as_mut().filter(|heart| heart.session.id == throb.session.id) else {
        return;
    };
    match outcome {
        Outcome::Done(SessionReply::Beat(Beaten::Alive)) => heart.handle_beaten(sent_at, now),
        Outcome::Done(SessionReply::Beat(Beaten::Lapsed)) => heart.handle_lapsed(),
        other => {
            if let Outcome::Refused(fault) | Outcome::Unknown(fault) = other {
                tracing::debug!(%fault, "the session has not beaten yet");
            }
            heart.handle_fault(&throb.op, now, &mut || shared.world.random());
        }
    }
    drop(state);
    shared.bell.notify_one();
}

/// Begins another session, since the present one has lapsed, unless the keeper is closed.
async fn begin_again(shared: Arc<Shared>) {
    tokio::select! {
        biased;
        () = shared.closed.cancelled() => {}
        () = try_to_begin(&shared) => {}
    }
}

/// Begins another session as soon as that can be.
async fn try_to_begin(shared: &Shared) {
    let old = shared.sessions.present();
    tracing::warn!(session = %old.id, "the session has lapsed: all that it held is lost");
    let (mut pause, most) = BIRTH_PAUSE;
    loop {
        match shared.birth.begin().await {
            Ok((session, pulse)) => return shared.live_on(&old, session, pulse),
            Err(fault) => {
                tracing::debug!(%fault, "no session could begin yet");
                shared.sessions.note(fault);
            }
        }
        let again_at = shared.world.now() + pause / 2 + jitter(&*shared.world, pause / 2);
        shared.world.sleep_until(again_at).await;
        pause = (pause * 2).min(most);
    }
}

/// Tells the store that nothing more comes, once: if that is lost, the session lapses.
async fn end_session(shared: &Shared, by: Option<Moment>) {
    let Some(heart) = shared.state().heart.take() else { return };
    heart.session.end();
    let op = SessionOp::End(heart.session.id);
    let within = shared.timings.call.min(by.unwrap_or(FAR).since(shared.world.now()));
    if within.is_zero() {
        return;
    }
    if let Outcome::Refused(fault) | Outcome::Unknown(fault) = shared.store.attend(&op, within).await {
        tracing::debug!(%fault, "the session was not ended: it lapses");
    }
}

/// Sends one batch of extends, and enters what came of each.
async fn extend(shared: Arc<Shared>, batch: Batch) {
    let Batch { sent, in_flight, token: _ } = batch;
    let sent_at = shared.world.now();
    let soonest = sent.iter().map(|sent| sent.hold.valid_until()).min().unwrap_or(sent_at);
    // Half of what the shortest has left, so that there is time for another try.
    let within = shared.timings.call.min(soonest.since(sent_at) / 2).max(Duration::from_millis(1));
    let op = |sent: &Sent| {
        let claim = sent.hold.claim.clone();
        let (lease_ms, keep_record) = (whole_millis(sent.lease), sent.keep_record);
        (sent.hold.lock.clone(), Op::Extend(Extend { claim, lease_ms, keep_record }))
    };
    let ops: Vec<_> = sent.iter().map(op).collect();
    let outcomes = shared.store.execute_all(&ops, within).await;
    let gone = shared.enter_all(&sent, &outcomes, sent_at);
    drop(in_flight);
    if gone.is_empty() {
        return;
    }
    // The rest of the batch may be due again before anybody has said why these are gone.
    shared.bell.notify_one();
    let shared = &shared;
    join_all(gone.into_iter().map(|gone| async move {
        announce(&*shared.store, &*shared.world, shared.timings, &gone.hold, gone.in_time).await;
        drop(gone.in_flight);
    }))
    .await;
}

/// Runs an errand, for as long as it is wanted.
async fn run_errand(shared: Arc<Shared>, mut errand: Errand) {
    let guarded = errand.guarded.take();
    let mut returned = true;
    let run = async { returned = give_back(&shared, &errand).await };
    match guarded {
        None => run.await,
        Some(Guarded { stop, earlier, in_flight }) => {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = run => {}
            }
            if let Some(earlier) = earlier {
                earlier.cancelled().await;
            }
            drop(in_flight);
        }
    }
    shared.settle(errand.id, returned);
}

/// Releases a hold, again and again until it is known to be gone; says whether it is.
async fn give_back(shared: &Shared, errand: &Errand) -> bool {
    let op = Op::Release(Release { claim: errand.claim.clone(), pass: Pass::Grant, next: None });
    let each = shared.timings.call;
    let within = errand.until.since(shared.world.now()).max(each);
    let ours = || call(&*shared.store, &*shared.world, &errand.lock, &op, within, each);
    // Ours may overtake what it undoes. A second one behind it, by the same connection, cannot; sending it
    // twice equals sending it once.
    let behind = async {
        match &errand.behind {
            Some(main) => matches!(main.execute(&errand.lock, &op, each).await, Outcome::Done(_)),
            None => true,
        }
    };
    let (mut released, is_behind) = futures_util::future::join(ours(), behind).await;
    if !is_behind {
        // By now what is to be undone has arrived, or never will.
        released = ours().await;
    }
    if let Err(failed) = released {
        tracing::warn!(lock = %errand.lock, fault = %failed.fault, "not given back: it ends with its lease");
        return false;
    }
    true
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something released that may be at the store. Whoever comes when the keeper has ended has no news: a shutdown
    /// has taken it over.
    pub(super) fn post(&self, lock: Lock, claim: Claim, until: Moment, behind: Option<Arc<dyn Store>>) {
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        let id = state.owe(lock.clone(), until, None);
        state.errands.push(Errand { id, lock, claim, until, behind, guarded: None });
        drop(state);
        self.bell.notify_one();
    }

    /// A hold was found gone when a shutdown released it. Only a release that was cut off is told so: one that had its
    /// answer knows better.
    pub(super) fn judge(&self, hold: &Hold, reason: LostReason) {
        self.state().verdicts.insert(hold.claim.hold, reason);
    }

    /// Something was given back, or cannot be.
    pub(super) fn settle(&self, id: u64, returned: bool) {
        let mut state = self.state();
        let owed = state.open.remove(&id);
        if !returned && state.handed_over {
            state.unreturned.extend(owed);
        }
        let idle = state.open.is_empty();
        drop(state);
        if idle {
            self.idle.notify_waiters();
        }
    }

    /// Another session has begun: those who wait go on in its name.
    fn live_on(&self, old: &Session, session: Arc<Session>, pulse: Option<Pulse>) {
        let (id, now) = (session.id, self.world.now());
        self.state().heart = pulse.map(|pulse| Heart::new(session.clone(), pulse, now));
        tracing::info!(old = %old.id, new = %id, "another session has begun");
        self.sessions.replace(session);
        self.birth.store.close_mailbox(old.id);
        if self.state().closing.is_some() {
            // Who closes says so first, and then closes the mailbox that he finds: it may have been the old one.
            self.birth.store.close_mailbox(id);
        }
        self.birth.post.renewed();
        self.bell.notify_one();
    }

    /// Enters the outcomes of a batch. Gives the holds that are gone.
    fn enter_all(&self, batch: &[Sent], outcomes: &[Outcome], sent_at: Moment) -> Vec<Gone> {
        let now = self.world.now();
        let mut random = || self.world.random();
        let mut state = self.state();
        let entered = batch.iter().zip(outcomes);
        entered.filter_map(|(sent, outcome)| state.enter(sent, outcome, sent_at, now, &mut random)).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::engine::System;
    use crate::store::{MemoryStore, Postbox};
    use leasehold_core::tenure::Plan;
    use leasehold_core::{Acquire, FencingToken, HoldId, Label, Wake};
    use std::sync::Weak;

    const SECOND: Duration = Duration::from_secs(1);

    /// A mailbox that nobody looks into.
    struct Deaf;

    impl Postbox for Deaf {
        fn deliver(&self, _: Wake) {}
        fn renewed(&self) {}
    }

    /// A hold at the store that lasts for a minute, known here as kept by this plan.
    async fn held(store: &MemoryStore, session: Arc<Session>, until: Moment) -> Arc<Hold> {
        let (lock, hold) = (Lock::mutex("m".parse().expect("a good name")), [7; 16]);
        let claim = Claim::new(HoldId::from_random(session.id, hold));
        let label = Label::new("").expect("a good label");
        let (life, ahead) = (session.life, None);
        let ask = Acquire {
            claim: claim.clone(),
            lease_ms: 60_000,
            label,
            queue: None,
            adopt_ms: None,
            life,
            ahead,
        };
        assert!(matches!(store.execute(&lock, &Op::Acquire(ask), SECOND).await, Outcome::Done(_)));
        Arc::new(Hold::new(lock, claim, FencingToken::new(1), until, session, Weak::new()))
    }

    #[tokio::test]
    async fn who_is_hastened_learns_at_once_that_his_hold_was_ended() {
        let world: Arc<dyn World> = Arc::new(System);
        let timings =
            Timings { call: SECOND, outage: SECOND, watchdog: 30 * SECOND, session: Some(10 * SECOND) };
        let end = world.now() + 60 * SECOND;
        for plan in [Plan::Until { end }, Plan::Renew { lease: 180 * SECOND }] {
            let store = MemoryStore::new();
            let (post, about) = (Arc::new(Deaf), String::new());
            let birth = Birth { store: store.sibling(), world: world.clone(), post, about, timings };
            let (session, pulse) = birth.begin().await.expect("a store without faults");
            let sessions = Arc::new(Sessions::new(session.clone()));
            let keeper = Keeper::start(store.sibling(), birth, sessions, pulse).expect("a thread");
            let hold = held(&store, session, end).await;
            let mut tenure = Tenure::new(plan, end, world.now());
            // The next extend by itself is a minute ahead, or there is none.
            tenure.handle_extended(world.now(), 180 * SECOND, false);
            let id = keeper.keep(hold.clone(), tenure).expect("nobody shuts it down");
            keeper.ear().hear_freed(hold.fence);
            tokio::time::sleep(SECOND / 20).await;
            hold.check(&*world).expect("it was asked, and is held still");

            let release = Release { claim: hold.claim.clone(), pass: Pass::Grant, next: None };
            assert!(matches!(
                store.execute(&hold.lock, &Op::Release(release), SECOND).await,
                Outcome::Done(_)
            ));
            keeper.ear().hear_freed(hold.fence);
            let told = tokio::time::timeout(5 * SECOND, hold.signal().cancelled()).await;
            told.expect("not only a minute later");
            assert_eq!(hold.reason(world.now()), LostReason::Released);
            keeper.retire(id);
            keeper.ear().hear_freed(hold.fence);
            keeper.close();
        }
    }

    #[tokio::test]
    async fn a_hold_that_comes_when_its_session_has_lapsed_is_told_as_lost_and_not_lengthened() {
        let world: Arc<dyn World> = Arc::new(System);
        let timings =
            Timings { call: SECOND, outage: SECOND, watchdog: 30 * SECOND, session: Some(10 * SECOND) };
        let store = MemoryStore::new();
        let birth = || Birth {
            store: store.sibling(),
            world: world.clone(),
            post: Arc::new(Deaf),
            about: String::new(),
            timings,
        };
        let (old, _) = birth().begin().await.expect("a store without faults");
        let (present, pulse) = birth().begin().await.expect("a store without faults");
        let sessions = Arc::new(Sessions::new(present));
        let keeper = Keeper::start(store.sibling(), birth(), sessions, pulse).expect("a thread");
        // Its task won it, and stood still before it could say so; the keeper has ended the session meanwhile.
        let end = world.now() + SECOND;
        let hold = held(&store, old.clone(), end).await;
        old.end();
        let tenure = Tenure::new(Plan::Renew { lease: 3 * SECOND }, end, world.now());
        let _id = keeper.keep(hold.clone(), tenure).expect("nobody shuts it down");
        assert_eq!(hold.check(&*world), Err(LostReason::SessionLapsed));
        let told = tokio::time::timeout(4 * SECOND, hold.signal().cancelled()).await;
        keeper.close();
        told.expect("whoever waits for its loss is told of it");
    }
}
