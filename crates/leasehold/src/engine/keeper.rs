//! The keeper: one timer for all holds of a client, on a thread of its own.
//!
//! A user whose tasks block his runtime does not lose his locks by it: the keeper has its own thread,
//! its own runtime and its own connection.
//!
//! 1. What is due is extended in one batch (and one more for what ends soon). One extend a hold is in
//!    flight at a time.
//! 2. A hold that was retired is not sent again; who retires it can await what is in flight about it. A hold
//!    that is lost stays known until it is retired: something may be in flight about it still.
//! 3. The deadline itself ends a hold: no reply, no network, no other task is needed for it.
//! 4. Errands (undoing an acquire, giving back what a dropped guard held) are sent until they are known
//!    to have arrived, or until the store has forgotten the hold by itself.
//! 5. Beats go first. A session that has lapsed takes all its holds with it, in one step, and another one is begun.

use super::heart::{Heart, Need, Throb};
use super::release::announce;
use super::session::{Birth, Sessions};
use super::{FAR, Hold, LostReason, Session, Timings, World, call, jitter};
use crate::store::{Outcome, Store};
use crate::sync::{Mutex, MutexGuard, Notify};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use leasehold_core::pulse::Pulse;
use leasehold_core::tenure::{Duty, Tenure};
use leasehold_core::{
    Beaten, Claim, Extend, Extended, FIRST_LEASE, Lock, Moment, Op, Pass, Release, Reply, SessionOp,
    SessionReply, whole_millis,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What is due within this goes with what is due now.
const TICK: Duration = Duration::from_millis(10);

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
pub(crate) struct KeepId(u64);

struct Shared {
    store: Arc<dyn Store>,
    world: Arc<dyn World>,
    timings: Timings,
    birth: Birth,
    sessions: Arc<Sessions>,
    state: Mutex<State>,
    bell: Notify,
    idle: Notify,
}

struct State {
    /// The session, where it lives by beats and has not lapsed.
    heart: Option<Heart>,
    kept: HashMap<KeepId, Kept>,
    due: BTreeSet<(Moment, KeepId)>,
    errands: Vec<Errand>,
    /// How many errands are not done yet.
    open_errands: usize,
    /// When the keeper wakes by itself.
    armed: Moment,
    last_id: u64,
    closing: bool,
}

struct Kept {
    hold: Arc<Hold>,
    tenure: Tenure,
    due: Moment,
    /// Set once it is lost: it is not extended any more.
    lost: bool,
    /// Set once people are told of it.
    told: bool,
    /// Cancelled when nothing is in flight about it any more.
    in_flight: Option<CancellationToken>,
}

/// A release that somebody else began.
struct Errand {
    lock: Lock,
    claim: Claim,
    until: Moment,
    /// Set where the operation that is undone may still be on its way: the connection that it went by.
    behind: Option<Arc<dyn Store>>,
}

/// An extend on its way.
struct Sent {
    id: KeepId,
    hold: Arc<Hold>,
    lease: Duration,
    keep_record: bool,
    /// Kept for as long as anything is in flight about the hold.
    in_flight: DropGuard,
}

/// What there is to do now.
#[derive(Default)]
struct Work {
    /// Holds that have time for more than one try.
    calm: Vec<Sent>,
    /// Holds that end soon: they leave little time for an answer, and should not take it from the others.
    urgent: Vec<Sent>,
    lost: Vec<(Arc<Hold>, LostReason)>,
    /// A beat that is due.
    throb: Option<Throb>,
    /// Set if the session has lapsed.
    lapsed: bool,
    errands: Vec<Errand>,
    next: Option<Moment>,
    closing: bool,
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
            due: BTreeSet::new(),
            errands: Vec::new(),
            open_errands: 0,
            armed: Moment::ZERO,
            last_id: 0,
            closing: false,
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
        });
        world.host(Box::pin(run(shared.clone())))?;
        Ok(Self { shared })
    }

    /// Takes a hold into its care.
    pub(crate) fn keep(&self, hold: Arc<Hold>, tenure: Tenure) -> KeepId {
        let mut state = self.shared.state();
        state.last_id += 1;
        let id = KeepId(state.last_id);
        let due = Moment::ZERO;
        state.kept.insert(id, Kept { hold, tenure, due, lost: false, told: false, in_flight: None });
        let due = state.schedule(id);
        let early = due < state.armed;
        drop(state);
        if early {
            self.shared.bell.notify_one();
        }
        id
    }

    /// Lets go of a hold (2). What is returned is cancelled when nothing is in flight about it.
    pub(crate) fn retire(&self, id: KeepId) -> Option<CancellationToken> {
        let mut state = self.shared.state();
        state.not_told(id);
        let kept = state.kept.remove(&id)?;
        state.due.remove(&(kept.due, id));
        kept.in_flight
    }

    /// A hold was found to be lost: it is not extended any more.
    pub(crate) fn found_lost(&self, id: KeepId) {
        self.shared.state().lose(id);
    }

    /// Whether an extend by the user should keep the record beside the lock as well.
    pub(crate) fn wants_record(&self, id: KeepId, now: Moment, lease: Duration) -> bool {
        self.shared.state().kept.get(&id).is_some_and(|kept| kept.tenure.wants_record(now, lease))
    }

    /// A hold was extended by its user.
    pub(crate) fn prolonged(&self, id: KeepId, sent_at: Moment, lease: Duration) {
        let mut state = self.shared.state();
        let Some(kept) = state.kept.get_mut(&id) else { return };
        kept.tenure.prolong(sent_at, lease);
        kept.hold.raise(kept.tenure.valid_until());
        state.schedule(id);
        drop(state);
        self.shared.bell.notify_one();
    }

    /// Undoes what an acquire may have left that was sent by `main`, and may be on its way still.
    pub(super) fn undo(&self, main: &Arc<dyn Store>, lock: &Lock, claim: Claim) {
        let until = self.shared.world.now() + FIRST_LEASE + self.shared.timings.call;
        self.post(Errand { lock: lock.clone(), claim, until, behind: Some(main.clone()) });
    }

    /// Gives back a hold whose guard is gone.
    pub(super) fn give_back(&self, hold: &Hold) {
        let until = hold.may_last_until().max(self.shared.world.now() + self.shared.timings.call);
        let (lock, claim) = (hold.lock.clone(), hold.claim.clone());
        self.post(Errand { lock, claim, until, behind: None });
    }

    /// Waits until no errand is left.
    pub(crate) async fn errands_done(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.shared.state().open_errands == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Ends the keeper once its errands are done.
    pub(super) fn close(&self) {
        self.shared.state().closing = true;
        self.shared.bell.notify_one();
    }

    fn post(&self, errand: Errand) {
        let mut state = self.shared.state();
        state.open_errands += 1;
        state.errands.push(errand);
        drop(state);
        self.shared.bell.notify_one();
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl State {
    /// Enters when a hold next needs attention.
    fn schedule(&mut self, id: KeepId) -> Moment {
        let Some(kept) = self.kept.get_mut(&id).filter(|kept| !kept.lost) else { return FAR };
        self.due.remove(&(kept.due, id));
        kept.due = kept.tenure.due();
        self.due.insert((kept.due, id));
        kept.due
    }

    /// Extends a hold no more, until it is retired (2).
    fn lose(&mut self, id: KeepId) -> Option<Arc<Hold>> {
        self.not_told(id);
        let kept = self.kept.get_mut(&id)?;
        kept.lost = true;
        self.due.remove(&(kept.due, id));
        Some(kept.hold.clone())
    }

    /// People are not told any more that a hold is there.
    fn not_told(&mut self, id: KeepId) {
        if let (Some(kept), Some(heart)) = (self.kept.get_mut(&id), &mut self.heart)
            && std::mem::take(&mut kept.told)
        {
            heart.left(&kept.hold.lock);
        }
    }

    /// Looks after the session (5). Once the keeper is closed nothing lives with it any more: it is ended, and does not
    /// beat.
    fn attend(&mut self, now: Moment, work: &mut Work) {
        let Some(heart) = self.heart.as_mut().filter(|_| !self.closing) else { return };
        match heart.poll(now) {
            Need::Rest => {}
            Need::Beat(throb) => work.throb = Some(throb),
            Need::Lapsed => {
                let session = heart.session.clone();
                // By our own count it would still be alive.
                let in_time = now < session.alive_until();
                session.end();
                self.heart = None;
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

    /// Takes out all that is due, and with it the extends that will be within the tick.
    fn collect(&mut self, now: Moment, call: Duration) -> Work {
        let mut work = Work { closing: self.closing, ..Work::default() };
        work.errands.append(&mut self.errands);
        self.attend(now, &mut work);
        let ripe: Vec<_> = self.due.range(..=(now + TICK, KeepId(u64::MAX))).copied().collect();
        for (_, id) in ripe {
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            match kept.tenure.poll(now, TICK) {
                Duty::Over => {
                    work.lost.extend(self.lose(id).map(|hold| (hold, LostReason::Expired)));
                    continue;
                }
                Duty::Extend { lease, keep_record } => {
                    if let Some(heart) = self.heart.as_mut().filter(|_| !kept.told) {
                        kept.told = true;
                        heart.tell(&kept.hold.lock);
                    }
                    kept.hold.may_last(now + call + lease);
                    let ends_soon = kept.tenure.valid_until().since(now) < call * 2;
                    let batch = if ends_soon { &mut work.urgent } else { &mut work.calm };
                    let in_flight = kept.in_flight.insert(CancellationToken::new()).clone().drop_guard();
                    batch.push(Sent { id, hold: kept.hold.clone(), lease, keep_record, in_flight });
                }
                Duty::Rest(_) => {}
            }
            self.schedule(id);
        }
        let due = self.due.first().map(|(due, _)| *due);
        let heart = self.heart.as_ref().filter(|_| !self.closing);
        work.next = due.into_iter().chain(heart.map(Heart::due)).min();
        self.armed = work.next.unwrap_or(FAR);
        work
    }
}

/// Runs the keeper until it is closed and its errands are done.
async fn run(shared: Arc<Shared>) {
    let mut running: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
    loop {
        let now = shared.world.now();
        let work = shared.state().collect(now, shared.timings.call);
        for (hold, reason) in work.lost {
            hold.lose(reason);
        }
        if let Some(throb) = work.throb {
            running.push(Box::pin(beat(shared.clone(), throb)));
        }
        if work.lapsed {
            running.push(Box::pin(begin_again(shared.clone())));
        }
        for batch in [work.urgent, work.calm] {
            if !batch.is_empty() {
                running.push(Box::pin(extend(shared.clone(), batch)));
            }
        }
        for errand in work.errands {
            running.push(Box::pin(run_errand(shared.clone(), errand)));
        }
        if work.closing && running.is_empty() {
            return end_session(&shared).await;
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

/// Begins another session, since the present one has lapsed.
async fn begin_again(shared: Arc<Shared>) {
    let old = shared.sessions.present();
    tracing::warn!(session = %old.id, "the session has lapsed: all that it held is lost");
    let (mut pause, most) = BIRTH_PAUSE;
    loop {
        if shared.state().closing {
            return;
        }
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
async fn end_session(shared: &Shared) {
    let Some(heart) = shared.state().heart.take() else { return };
    heart.session.end();
    let op = SessionOp::End(heart.session.id);
    if let Outcome::Refused(fault) | Outcome::Unknown(fault) =
        shared.store.attend(&op, shared.timings.call).await
    {
        tracing::debug!(%fault, "the session was not ended: it lapses");
    }
}

/// Sends one batch of extends, and enters what came of each.
async fn extend(shared: Arc<Shared>, batch: Vec<Sent>) {
    let sent_at = shared.world.now();
    let soonest = batch.iter().map(|sent| sent.hold.valid_until()).min().unwrap_or(sent_at);
    // Half of what the shortest has left, so that there is time for another try.
    let within = shared.timings.call.min(soonest.since(sent_at) / 2).max(Duration::from_millis(1));
    let ops: Vec<_> = batch
        .iter()
        .map(|sent| {
            let claim = sent.hold.claim.clone();
            let (lease_ms, keep_record) = (whole_millis(sent.lease), sent.keep_record);
            (sent.hold.lock.clone(), Op::Extend(Extend { claim, lease_ms, keep_record }))
        })
        .collect();
    let outcomes = shared.store.execute_all(&ops, within).await;
    let mut gone = Vec::new();
    for (sent, outcome) in batch.into_iter().zip(outcomes) {
        if let Some(in_time) = shared.enter(&sent, &outcome, sent_at) {
            gone.push((sent, in_time));
        }
    }
    if gone.is_empty() {
        return;
    }
    // The rest of the batch may be due again before anybody has said why these are gone.
    shared.bell.notify_one();
    let shared = &shared;
    join_all(gone.into_iter().map(|(sent, in_time)| async move {
        announce(&*shared.store, &*shared.world, shared.timings, &sent.hold, in_time).await;
        drop(sent.in_flight);
    }))
    .await;
}

/// Releases a hold, again and again until it is known to be gone.
async fn run_errand(shared: Arc<Shared>, errand: Errand) {
    let op = Op::Release(Release { claim: errand.claim, pass: Pass::Grant, next: None });
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
    }
    let mut state = shared.state();
    state.open_errands -= 1;
    if state.open_errands == 0 {
        shared.idle.notify_waiters();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another session has begun: those who wait go on in its name.
    fn live_on(&self, old: &Session, session: Arc<Session>, pulse: Option<Pulse>) {
        let (id, now) = (session.id, self.world.now());
        self.state().heart = pulse.map(|pulse| Heart::new(session.clone(), pulse, now));
        tracing::info!(old = %old.id, new = %id, "another session has begun");
        self.sessions.replace(session);
        self.birth.store.close_mailbox(old.id);
        if self.state().closing {
            // Who closes says so first, and then closes the mailbox that he finds: it may have been the old one.
            self.birth.store.close_mailbox(id);
        }
        self.birth.post.renewed();
        self.bell.notify_one();
    }

    /// Enters the outcome of one extend. If the hold is gone, says whether that was early.
    fn enter(&self, sent: &Sent, outcome: &Outcome, sent_at: Moment) -> Option<bool> {
        let now = self.world.now();
        let mut state = self.state();
        let kept = state.kept.get_mut(&sent.id).filter(|kept| !kept.lost)?;
        match outcome {
            Outcome::Done(Reply::Extend(Extended::Extended)) => {
                kept.tenure.handle_extended(sent_at, sent.lease, sent.keep_record);
                kept.hold.raise(kept.tenure.valid_until());
            }
            Outcome::Done(Reply::Extend(Extended::NotHeld)) => {
                let in_time = now < kept.hold.valid_until();
                sent.hold.doubt();
                state.lose(sent.id);
                return Some(in_time);
            }
            Outcome::Done(_) | Outcome::Refused(_) | Outcome::Unknown(_) => {
                if let Outcome::Refused(fault) | Outcome::Unknown(fault) = outcome {
                    tracing::debug!(lock = %sent.hold.lock, %fault, "not extended yet");
                }
                kept.tenure.handle_fault(now, &mut || self.world.random());
            }
        }
        state.schedule(sent.id);
        None
    }
}
