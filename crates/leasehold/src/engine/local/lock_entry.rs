//! A lock entry: this process's state for one lock, and the local queue of tasks that want it.
//!
//! A Mutex entry has one hold at a time; a ReentrantMutex entry has as many as its owner holds in this process. For a
//! lock with several simultaneous holders each acquisition has its own entry, with a queue of one task.
//!
//! 1. Only the front of the queue drives the contender, and only while no hold occupies the entry, or while the
//!    process has an entry in the store's queue. That entry must be kept alive although other tasks of this process
//!    acquired the lock past it.
//! 2. Tasks that wait in the store's queue come before tasks that pause between two attempts.
//! 3. A front task that leaves wakes the next one. The last one to leave gives the attempt up; the caller undoes what
//!    it may have left at the store.
//! 4. Every change that empties the entry, or finds it empty, signals the front, which may sleep without a limit
//!    because it came to the front while the entry was occupied. The tasks behind it do so as well. The keeper, which
//!    ends lapsed holds, empties the entry, too.
//! 5. What a release requests for the next waiter is undone only after that release has returned. The task that gave
//!    up may run on another thread, and its undo could overtake the request.
//! 6. Closing the entry takes everything in it: the holds that occupy it and the pending requests. Nothing enters it
//!    after that.
//! 7. A task that comes to the front with other terms takes over the process's entry in the store's queue: it sends
//!    its request first, and the predecessor's request is undone once that is answered. In the other order the
//!    process would lose its position.
//! 8. When a task learns which owner holds a ReentrantMutex, from a reply or by acquiring it, all queued tasks of
//!    that owner are signaled and go [straight] to the store. The owner may be waiting for them.
//! 9. A hold whose guard was released may be kept here for the next waiter or for later acquisitions; see
//!    [`passing`](crate::engine::passing).
//!
//! [straight]: crate::engine::straight

pub(in crate::engine) mod handoff;

use super::reentrant_bypass::ReentrantBypass;
use super::reservation::Call;
use super::wait_queue::WaitQueue;
use crate::engine::hold::Hold;
use crate::engine::keeper::keep_id::KeepId;
use crate::engine::session::Session;
use handoff::Handoff;
use leasehold_core::machine::contender::{AcquireTerms, Contender, ContenderAction, Grant, WaitStatus};
use leasehold_core::machine::jitter::Random;
use leasehold_core::{
    Acquire, Acquired, Claim, Executed, FencingToken, HoldId, Holder, Kind, Label, Lock, LockMode, Moment,
    Nonce, OwnValue, Partition, SessionId,
};
use leasehold_store::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// This process's state for one lock.
pub(crate) struct LockEntry {
    pub(crate) lock: Lock,
    /// The store's partition that contains the lock.
    pub(crate) place: Partition,
    slot: u32,
    state: Mutex<State>,
    on_drop: Box<dyn Fn(Option<KeepId>) + Send + Sync>,
}

pub(in crate::engine) struct State {
    pub(in crate::engine) contender: Contender,
    pub(in crate::engine) line: WaitQueue,
    pub(in crate::engine) occupants: BTreeMap<HoldId, CurrentHold>,
    /// Requests of earlier front tasks, to be undone (7).
    former: Vec<Claim>,
    pub(in crate::engine) releases: u32,
    /// Local hand-off state of the hold that the store granted (9).
    pub(in crate::engine) passing: Option<Handoff>,
    /// Requests sent with releases that are in flight; with the claim, once the request was given up (5).
    escorted: BTreeMap<HoldId, Option<Claim>>,
    /// Set once the client is shut down (6).
    pub(in crate::engine) closed: bool,
}

/// A hold that occupies an entry.
pub(in crate::engine) struct CurrentHold {
    pub(in crate::engine) hold: Arc<Hold>,
    /// Set once its release is in flight.
    pub(in crate::engine) leaving: bool,
}

/// The task behind a request, and the way the request is sent.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Asker {
    pub(in crate::engine) id: u64,
    pub(in crate::engine) way: Way,
}

impl Asker {
    /// A release that requests the lock for the queue.
    pub(in crate::engine) const RELEASE: Self = Self { id: 0, way: Way::Queue };
}

/// How a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Way {
    /// Through the process's entry in the store's queue.
    Queue,
    /// Past the local queue (8).
    ReentrantBypass,
}

/// The next action of a waiter.
pub(in crate::engine) enum WaiterAction {
    /// Wait: another task of this process holds the lock or is ahead in the queue.
    Stand(Option<Moment>),
    /// The attempt in flight belongs to another task or session: release these claims, then poll again.
    Misfit(Vec<Claim>),
    /// Send this request to the store.
    Ask(Way, Nonce, Acquire),
    /// Wait for a signal, or until this moment.
    Sleep(Moment),
    /// The task acquired the lock and has left the queue. The claims must be released at the store.
    AcquiredHold(Arc<Hold>, Grant, Vec<Claim>),
    /// The task received the hold by local hand-off and has left the queue. It owns the hold only once the keeper has
    /// registered the hand-off.
    HandedOn(Arc<Hold>, KeepId, Option<Call>),
    /// A hold is kept here, and the store is, or must be, consulted before it is handed on: wait for the reply.
    Call(KeepId, Option<Call>),
    /// A hold is kept here that does not suit this task: release it.
    GiveBack(Arc<Hold>, KeepId),
    /// The lease is shorter than the round trip.
    TooSlow,
    /// The client was shut down.
    Closed,
}

/// What a task leaves behind when it leaves the queue.
pub(in crate::engine) struct Left {
    /// To be released at the store.
    pub(in crate::engine) claims: Vec<Claim>,
    /// A hold that was kept for it and that no other task waits for.
    pub(in crate::engine) kept: Option<KeepId>,
}

/// What an entry contained when it was closed.
pub(in crate::engine) struct Cleared {
    pub(in crate::engine) occupants: Vec<Arc<Hold>>,
    /// To be released at the store once nothing more is sent for the entry.
    pub(in crate::engine) claims: Vec<Claim>,
}

impl LockEntry {
    pub(in crate::engine) fn new(
        lock: Lock,
        place: Partition,
        session: SessionId,
        slot: u32,
        on_drop: impl Fn(Option<KeepId>) + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            contender: Contender::new(session, slot),
            line: WaitQueue::default(),
            occupants: BTreeMap::new(),
            former: Vec::new(),
            releases: 0,
            passing: None,
            escorted: BTreeMap::new(),
            closed: false,
        };
        Self { lock, place, slot, state: Mutex::new(state), on_drop: Box::new(on_drop) }
    }

    pub(in crate::engine) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue.
    pub(in crate::engine) fn join(&self, terms: Arc<AcquireTerms>) -> u64 {
        let mut state = self.state();
        let straight = (self.lock.kind == Kind::Reentrant)
            .then(|| ReentrantBypass::new(state.contender.session(), self.slot));
        let id = state.line.join(terms, straight);
        if state.line.is_front(id) {
            // A pause, if there is one, belongs to a task that has stepped aside.
            state.contender.handle_hint(Moment::ZERO);
        }
        id
    }

    /// Leaves the queue without the lock. The claims returned must be released at the store.
    pub(in crate::engine) fn leave(&self, id: u64) -> Left {
        let mut state = self.state();
        let was_front = state.line.is_front(id);
        let queued = state.line.front().is_some_and(|front| front.queue);
        let own = state.line.remove(id).and_then(|mut straight| straight.give_up());
        let mut claims = Vec::from_iter(own);
        if was_front {
            state.contender.set_subscribed(false);
            claims.extend(state.succeed(queued));
        }
        Left { claims, kept: state.unclaimed_keep() }
    }

    /// Lets other tasks go first while a polling task pauses.
    pub(in crate::engine) fn step_aside(&self, id: u64) {
        let mut state = self.state();
        let was_front = state.line.is_front(id);
        state.line.set_aside(id, true);
        if was_front && !state.line.is_front(id) {
            state.bring_forward(false);
        }
    }

    /// The next action of this task.
    pub(in crate::engine) fn turn(
        self: &Arc<Self>,
        id: u64,
        session: &Arc<Session>,
        now: Moment,
        random: Random<'_>,
    ) -> WaiterAction {
        let mut state = self.state();
        if state.closed {
            return WaiterAction::Closed;
        }
        let occupied = state.occupied_until(now);
        state.line.quiet(id);
        if let Some(turn) = state.turn_of_the_next(id, session, now) {
            return turn;
        }
        let own = state.line.straight(id).map(|(_, straight)| (straight.is_won(now), straight.is_wanted()));
        let (won, wanted) = own.unwrap_or_default();
        // A hold acquired past the queue is not given up because its task has come to the front meanwhile.
        if !won && state.drives(id, occupied.is_some(), self.lock.kind) {
            return self.drive(&mut state, id, session, now, random);
        }
        if won || wanted {
            return self.go_straight(&mut state, id, session, now, random);
        }
        // The task in front is signaled, and signals the next one (4).
        WaiterAction::Stand(occupied.filter(|_| state.line.is_front(id)))
    }

    /// The next action of the front, which acts for the process (1).
    fn drive(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        session: &Arc<Session>,
        now: Moment,
        random: Random<'_>,
    ) -> WaiterAction {
        state.line.set_aside(id, false);
        if state.contender.session() != session.id {
            // A request of another session is given up, whatever its reply.
            let claims = state.give_up();
            state.contender.change_session(session.id);
            return WaiterAction::Misfit(claims);
        }
        if let Some((_, straight)) = state.line.straight(id) {
            let called = straight.is_wanted();
            // The task's own bypass request is not needed any more, and must not end in a second hold.
            if let Some(claim) = straight.give_up() {
                return WaiterAction::Misfit(vec![claim]);
            }
            if called {
                straight.rest();
                state.contender.handle_hint(now);
            }
            state.line.make_unaware(id);
        }
        let Some(terms) = state.line.front().cloned() else { return WaiterAction::Stand(None) };
        if !state.contender.matches(&terms) {
            let former = state.give_up_attempt();
            state.former.extend(former);
        }
        let step = state.contender.poll(now, &terms, random);
        self.follow(state, Asker { id, way: Way::Queue }, step, &terms, session, now)
    }

    /// The next action of a task that bypasses the queue (8).
    fn go_straight(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        session: &Arc<Session>,
        now: Moment,
        random: Random<'_>,
    ) -> WaiterAction {
        let Some((terms, straight)) = state.line.straight(id) else { return WaiterAction::Stand(None) };
        if let Some(claim) = straight.change_session(session) {
            return WaiterAction::Misfit(vec![claim]);
        }
        let terms = terms.clone();
        let step = straight.poll(now, &terms, random);
        if matches!(step, ContenderAction::Send(..)) {
            state.line.make_unaware(id);
        }
        self.follow(state, Asker { id, way: Way::ReentrantBypass }, step, &terms, session, now)
    }

    /// Maps a contender's step to the task's action.
    fn follow(
        self: &Arc<Self>,
        state: &mut State,
        asker: Asker,
        step: ContenderAction,
        terms: &AcquireTerms,
        session: &Arc<Session>,
        now: Moment,
    ) -> WaiterAction {
        match step {
            ContenderAction::Send(nonce, ask) => WaiterAction::Ask(asker.way, nonce, ask),
            ContenderAction::Sleep(until) => WaiterAction::Sleep(until),
            ContenderAction::TooSlow => WaiterAction::TooSlow,
            ContenderAction::Undo(claim) => WaiterAction::Misfit(vec![claim]),
            ContenderAction::Granted(_) => match state.take(asker) {
                Some(grant) => self.won(state, asker.id, terms, session, grant, now),
                None => WaiterAction::Sleep(now),
            },
        }
    }

    /// Removes a task from the queue with the hold it has acquired.
    fn won(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        terms: &AcquireTerms,
        session: &Arc<Session>,
        grant: Grant,
        now: Moment,
    ) -> WaiterAction {
        state.line.remove(id);
        let claims = if state.line.front().is_none() {
            // The lock may have been requested twice: by a release, and past the queue.
            state.give_up()
        } else {
            if !state.contender.is_idle() {
                // The new front has an entry in the store's queue to keep alive.
                state.signal_front();
            }
            std::mem::take(&mut state.former)
        };
        if let Some(owner) = owner_of(&grant.claim, self.lock.kind) {
            // Other tasks of this owner may have queued before the owner acquired the lock (8).
            state.line.call(&owner, id);
        }
        let session = session.of_life(terms.liveness);
        let passing = || Handoff::of(&self.lock, &grant, now, state.line.last_id());
        // A store without a queue neither reports other waiters nor reserves tokens.
        let passing = if terms.fresh_hold { None } else { passing() };
        state.passing = passing;
        let (claim, until, entry) = (grant.claim.clone(), grant.valid_until, Arc::downgrade(self));
        let hold = Arc::new(Hold::new(self.lock.clone(), claim, grant.fence, until, session, entry));
        // Holds with another token are gone: the store has just granted a newer one.
        state.occupants.retain(|_, occupant| occupant.hold.fence == hold.fence);
        state.occupy(hold.clone());
        WaiterAction::AcquiredHold(hold, grant, claims)
    }

    /// Waits for a signal to this task.
    pub(in crate::engine) async fn signaled(&self, id: u64) {
        poll_fn(|cx| self.state().line.poll_signaled(id, cx.waker())).await;
    }

    /// Whether the lock has been granted to this process and no task has taken it yet.
    pub(in crate::engine) fn is_won(&self, now: Moment) -> bool {
        self.state().contender.is_granted(now)
    }

    /// Handles the reply to a request, or its absence. The claims returned must be released at the store.
    pub(in crate::engine) fn handle_answer(
        &self,
        asker: Asker,
        nonce: Nonce,
        answer: Result<&Acquired, Executed>,
        now: Moment,
        random: Random<'_>,
    ) -> Vec<Claim> {
        let mut state = self.state();
        if let Ok(Acquired::Taken { holder: Some(Holder { owner: Some(owner), .. }), .. }) = answer {
            state.line.call(owner, asker.id);
        }
        if asker.way == Way::ReentrantBypass {
            if let Some((_, straight)) = state.line.straight(asker.id) {
                return Vec::from_iter(straight.handle_answer(nonce, answer, now, random));
            }
            return Vec::new();
        }
        match answer {
            Ok(reply) => state.contender.handle_reply(nonce, reply, now, random),
            Err(executed) => state.contender.handle_fault(nonce, executed, now, random),
        }
        let mut claims = std::mem::take(&mut state.former);
        claims.extend(state.contender.give_up_fresh());
        claims
    }

    /// A request was not sent, or the store did not execute it.
    pub(in crate::engine) fn unask(&self, asker: Asker, nonce: Nonce) {
        let mut state = self.state();
        match asker.way {
            Way::Queue => state.contender.cancel_request(nonce),
            Way::ReentrantBypass => {
                if let Some((_, straight)) = state.line.straight(asker.id) {
                    straight.unask(nonce);
                }
            }
        }
    }

    /// How long the store has not answered requests sent this way.
    pub(in crate::engine) fn silence(&self, asker: Asker, now: Moment) -> Duration {
        let mut state = self.state();
        match state.line.straight(asker.id) {
            Some((_, straight)) if asker.way == Way::ReentrantBypass => straight.silence(now),
            _ => state.contender.unresponsive_for(now),
        }
    }

    /// Handles a grant message for this entry.
    pub(in crate::engine) fn handle_grant(&self, nonce: Nonce, fence: FencingToken, now: Moment) {
        let mut state = self.state();
        state.contender.handle_grant(nonce, fence, now);
        state.signal_front();
    }

    /// Whether this task acts for the process, and waits for a client of another library.
    pub(in crate::engine) fn waits_for_stranger(&self, id: u64) -> bool {
        let state = self.state();
        self.lock.kind == Kind::Reentrant
            && state.line.is_front(id)
            && state.contender.waits_for_foreign_holder()
    }

    /// Records whether this task is subscribed to releases by such clients.
    pub(in crate::engine) fn hear(&self, id: u64, hears: bool) {
        let mut state = self.state();
        if state.line.is_front(id) {
            state.contender.set_subscribed(hears);
        }
    }

    /// Makes the front send its request again, after a pause or a notification.
    pub(in crate::engine) fn ask_again(&self, id: u64, now: Moment) {
        let mut state = self.state();
        if state.line.is_front(id) {
            state.contender.handle_hint(now);
        }
        if let Some((_, straight)) = state.line.straight(id) {
            straight.call();
        }
    }

    /// Notifies all subscribers that they may have missed messages.
    pub(in crate::engine) fn handle_news(&self, now: Moment) {
        let mut state = self.state();
        state.contender.handle_hint(now);
        state.signal_front();
    }

    /// The acquire request to send with the release of this hold, if tasks are queued, and whether this release
    /// should leave the lock free for clients that do not queue.
    pub(in crate::engine) fn depart(
        &self,
        hold: &Hold,
        free_every: Option<u32>,
        session: &Session,
        now: Moment,
        random: Random<'_>,
    ) -> (bool, Option<(Nonce, Acquire)>) {
        let mut state = self.state();
        let Some(occupant) = state.occupants.get_mut(&hold.claim.hold) else {
            // The hold was lost, and the queued tasks send their own requests since.
            return (false, None);
        };
        occupant.leaving = true;
        if state.occupants.values().any(|occupant| !occupant.leaving) {
            // The owner still holds the lock: its last release requests it for the queue.
            return (false, None);
        }
        state.releases = state.releases.wrapping_add(1);
        let free = free_every.is_some_and(|every| state.releases.is_multiple_of(every.max(1)));
        let terms = state.line.front().filter(|front| front.queue && !state.closed).cloned();
        let next = terms
            .filter(|_| state.contender.session() == session.id && now < session.alive_until())
            .filter(|terms| state.contender.matches(terms))
            .map(|terms| state.contender.request(now, &terms, random));
        if let Some((_, ask)) = &next {
            state.escorted.insert(ask.claim.hold, None);
        }
        (free, next)
    }

    /// The release that carried a request is not in flight any more. Returns the request's claim if it was given up
    /// since: it must be released at the store.
    pub(in crate::engine) fn arrived(&self, asked: HoldId) -> Option<Claim> {
        self.state().escorted.remove(&asked).flatten()
    }

    /// Registers a hold that was acquired elsewhere. The store has just confirmed it, so any other hold in this entry
    /// is gone.
    pub(in crate::engine) fn occupy(&self, hold: &Arc<Hold>) {
        let mut state = self.state();
        state.occupants.clear();
        state.passing = None;
        state.occupy(hold.clone());
    }

    /// The hold is over: the front of the queue may go on.
    pub(crate) fn vacate(&self, hold: &Hold) {
        let mut state = self.state();
        // It may have been handed on, and then belongs to another task.
        let same = |occupant: &CurrentHold| occupant.hold.fence == hold.fence;
        if state.occupants.get(&hold.claim.hold).is_some_and(same) {
            state.put_out(hold.claim.hold);
        }
        // Also where the hold had lapsed before: its release may have returned with the lock for the next task (4).
        state.signal_front();
    }

    /// Sends all tasks away and returns what was in the entry (6).
    pub(in crate::engine) fn close(&self) -> Cleared {
        let mut state = self.state();
        state.closed = true;
        let mut claims: Vec<_> = std::mem::take(&mut state.escorted).into_values().flatten().collect();
        claims.extend(state.contender.give_up());
        claims.append(&mut state.former);
        claims.extend(state.line.all_straight().filter_map(ReentrantBypass::give_up));
        state.line.signal_all();
        state.passing = None;
        let occupants = state.occupants.values().map(|occupant| occupant.hold.clone()).collect();
        Cleared { occupants, claims }
    }

    /// Whether a task of this process holds the lock.
    pub(crate) fn is_occupied(&self, now: Moment) -> bool {
        self.state().occupant(now).is_some()
    }

    /// The longest lease of the holds in this process that have this token.
    pub(crate) fn longest_lease(&self, fence: FencingToken, now: Moment) -> Duration {
        let state = self.state();
        let of_it =
            |occupant: &&CurrentHold| occupant.hold.fence == fence && now < occupant.hold.valid_until();
        let leases = state.occupants.values().filter(of_it).map(|occupant| occupant.hold.lease());
        leases.max().unwrap_or_default()
    }

    /// What blocks a task, as far as this process knows.
    pub(in crate::engine) fn standing(&self, id: u64, label: &Label, now: Moment) -> WaitStatus {
        let mut state = self.state();
        if let Some((_, straight)) = state.line.straight(id)
            && straight.standing().received_at.is_some()
        {
            return straight.standing().clone();
        }
        let Some(hold) = state.occupant(now) else { return state.contender.wait_status().clone() };
        let remaining = hold.valid_until().since(now).as_millis();
        let holder = Holder {
            label: Some(label.clone()),
            owner: owner_of(&hold.claim, self.lock.kind),
            count: state.occupants.len() as u64,
            remaining_ms: Some(u64::try_from(remaining).unwrap_or(u64::MAX)),
            fence: Some(hold.fence),
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        WaitStatus { holder: Some(holder), position: None, predecessor: None, received_at: Some(now) }
    }
}

impl State {
    /// The hold that was acquired this way, if there is one.
    fn take(&mut self, asker: Asker) -> Option<Grant> {
        match asker.way {
            Way::Queue => self.contender.take_grant(),
            Way::ReentrantBypass => self.line.straight(asker.id).and_then(|(_, straight)| straight.take()),
        }
    }

    pub(in crate::engine) fn occupy(&mut self, hold: Arc<Hold>) {
        self.occupants.insert(hold.claim.hold, CurrentHold { hold, leaving: false });
    }

    pub(in crate::engine) fn put_out(&mut self, hold: HoldId) {
        self.occupants.remove(&hold);
        self.passing.take_if(|passing| passing.hold == hold);
    }

    /// A hold that occupies the entry.
    fn occupant(&self, now: Moment) -> Option<&Arc<Hold>> {
        let holds = self.occupants.values().map(|occupant| &occupant.hold);
        // A hold that is kept for hand-off has no holder.
        holds.filter(|hold| !hold.is_passed()).find(|hold| now < hold.valid_until())
    }

    /// Removes lapsed holds and returns until when the entry is occupied at least.
    fn occupied_until(&mut self, now: Moment) -> Option<Moment> {
        while let Some(first) = self.occupants.first_entry() {
            let until = first.get().hold.valid_until();
            if now < until {
                return Some(until);
            }
            let lapsed = *first.key();
            self.put_out(lapsed);
            if self.occupants.is_empty() {
                // The task that reports the loss may be late (4).
                self.line.signal_front();
            }
        }
        None
    }

    /// Whether this task may drive the contender (1).
    fn drives(&self, id: u64, occupied: bool, kind: Kind) -> bool {
        let has_place = || !self.contender.is_idle() && self.escorted.is_empty();
        self.line.is_front(id) && (!occupied || (kind == Kind::Reentrant && has_place()))
    }

    /// The front has left. The claims returned must be released at the store.
    fn succeed(&mut self, queued: bool) -> Vec<Claim> {
        if self.line.front().is_none() {
            return self.give_up();
        }
        self.bring_forward(queued);
        Vec::new()
    }

    /// Ends the attempt. The claims returned must be released at the store.
    fn give_up(&mut self) -> Vec<Claim> {
        let mut claims = std::mem::take(&mut self.former);
        claims.extend(self.give_up_attempt());
        claims
    }

    /// The same for the latest request alone.
    fn give_up_attempt(&mut self) -> Option<Claim> {
        let claim = self.contender.give_up()?;
        match self.escorted.get_mut(&claim.hold) {
            Some(given_up) => {
                *given_up = Some(claim);
                None
            }
            None => Some(claim),
        }
    }

    /// Another task has come to the front. `queued` is set if the one before it queued at the store.
    fn bring_forward(&mut self, queued: bool) {
        if !queued && self.line.front().is_some_and(|front| front.queue) {
            // The pause belongs to a task without an entry in the store's queue.
            self.contender.handle_hint(Moment::ZERO);
        }
        self.signal_front();
    }

    pub(in crate::engine) fn signal_front(&mut self) {
        self.line.signal_front();
    }
}

/// The owner of a ReentrantMutex hold.
fn owner_of(claim: &Claim, kind: Kind) -> Option<OwnValue> {
    claim.value.clone().filter(|_| kind == Kind::Reentrant)
}

impl Drop for LockEntry {
    fn drop(&mut self) {
        let kept = self.part();
        (self.on_drop)(kept);
    }
}

impl fmt::Debug for LockEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockEntry").field("lock", &self.lock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Label, Liveness};

    fn entry() -> Arc<LockEntry> {
        let lock = Lock::mutex("job".parse().expect("a good name"));
        Arc::new(LockEntry::new(lock, Partition::ONLY, SessionId::from_random([1; 12]), 0, |_| {}))
    }

    fn session() -> Arc<Session> {
        Arc::new(Session::new(
            Partition::ONLY,
            SessionId::from_random([1; 12]),
            Liveness::Session { alive_ms: 10_000 },
            at(100),
        ))
    }

    fn terms() -> Arc<AcquireTerms> {
        let label = Label::new("").expect("an empty label is a label");
        let lease = Duration::from_secs(1);
        Arc::new(AcquireTerms {
            lease,
            label,
            value: None,
            adopt: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            queue: true,
            poll_often: false,
            fresh_hold: false,
            mode: LockMode::Exclusive,
        })
    }

    fn at(s: u64) -> Moment {
        Moment::from_micros(s * 1_000_000)
    }

    fn granted() -> Acquired {
        Acquired::Granted {
            fence: FencingToken::new(1),
            remaining_ms: 1_000,
            others_wait: false,
            owner_holds: None,
        }
    }

    fn asked(turn: &WaiterAction) -> Nonce {
        let WaiterAction::Ask(_, nonce, _) = turn else { panic!("the front sends a request") };
        *nonce
    }

    fn by(id: u64) -> Asker {
        Asker { id, way: Way::Queue }
    }

    fn is_signaled(entry: &LockEntry, id: u64) -> bool {
        entry.state().line.poll_signaled(id, std::task::Waker::noop()).is_ready()
    }

    /// An entry whose hold ends at two seconds, and the front of its queue, which sleeps without a limit.
    fn taken() -> (Arc<LockEntry>, Arc<Hold>, u64) {
        let (entry, random) = (entry(), &mut || 7);
        let (holder, front) = (entry.join(terms()), entry.join(terms()));
        let nonce = asked(&entry.turn(holder, &session(), at(1), random));
        assert!(matches!(entry.turn(front, &session(), at(1), random), WaiterAction::Stand(None)));
        entry.handle_answer(by(holder), nonce, Ok(&granted()), at(1), random);
        let WaiterAction::AcquiredHold(hold, ..) = entry.turn(holder, &session(), at(1), random) else {
            panic!("it was granted")
        };
        assert!(!is_signaled(&entry, front));
        (entry, hold, front)
    }

    fn reentrant() -> Arc<LockEntry> {
        let lock = Lock::reentrant("job".parse().expect("a good name"));
        Arc::new(LockEntry::new(lock, Partition::ONLY, SessionId::from_random([1; 12]), 0, |_| {}))
    }

    fn of(owner: &str) -> Arc<AcquireTerms> {
        let value = OwnValue::new(owner).ok();
        Arc::new(AcquireTerms { value, ..(*terms()).clone() })
    }

    fn held_by(owner: &str) -> Acquired {
        let holder = Holder {
            label: None,
            owner: OwnValue::new(owner).ok(),
            count: 1,
            remaining_ms: None,
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        Acquired::Taken {
            holder: Some(holder),
            position: Some(0),
            predecessor: None,
            other_holders: Vec::new(),
        }
    }

    fn straight(id: u64) -> Asker {
        Asker { id, way: Way::ReentrantBypass }
    }

    /// Random bits that differ from call to call.
    fn counter() -> impl FnMut() -> u64 {
        let mut n = 0;
        move || {
            n += 1;
            n
        }
    }

    #[test]
    fn a_call_during_a_request_takes_effect_after_its_reply() {
        let (entry, random) = (reentrant(), &mut counter());
        let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
        let by_front = asked(&entry.turn(front, &session(), at(1), random));
        let first = asked(&entry.turn(behind, &session(), at(1), random));
        entry.handle_answer(by(front), by_front, Ok(&held_by("y")), at(1), random);
        // This request was executed before the owner acquired the lock.
        entry.handle_answer(straight(behind), first, Ok(&held_by("z")), at(1), random);
        assert!(is_signaled(&entry, behind));
        let second = asked(&entry.turn(behind, &session(), at(1), random));
        entry.handle_answer(straight(behind), second, Ok(&held_by("z")), at(1), random);
        assert!(
            matches!(entry.turn(behind, &session(), at(1), random), WaiterAction::Stand(None)),
            "one request per call"
        );
        // The same with no request in flight.
        assert!(matches!(entry.turn(front, &session(), at(1), random), WaiterAction::Sleep(_)));
        let by_front = asked(&entry.turn(front, &session(), at(9), random));
        entry.handle_answer(by(front), by_front, Ok(&held_by("y")), at(9), random);
        assert!(is_signaled(&entry, behind));
        let third = asked(&entry.turn(behind, &session(), at(9), random));
        entry.handle_answer(straight(behind), third, Ok(&granted()), at(9), random);
        assert!(matches!(entry.turn(behind, &session(), at(9), random), WaiterAction::AcquiredHold(..)));
        // It acquired the lock past the front, which still keeps its queue entry alive.
        assert!(matches!(entry.turn(front, &session(), at(9), random), WaiterAction::Sleep(_)));
    }

    #[test]
    fn a_question_without_an_answer_is_asked_again_by_the_same_hold() {
        let (entry, random) = (reentrant(), &mut counter());
        let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
        entry.turn(front, &session(), at(1), random);
        let WaiterAction::Ask(Way::ReentrantBypass, nonce, ask) =
            entry.turn(behind, &session(), at(1), random)
        else {
            panic!("it bypasses the queue")
        };
        assert!(ask.queue.is_none(), "the process has one queue entry");
        entry.handle_answer(straight(behind), nonce, Err(Executed::Unknown), at(1), random);
        assert!(
            matches!(entry.turn(behind, &session(), at(1), random), WaiterAction::Sleep(_)),
            "after a pause"
        );
        let WaiterAction::Ask(Way::ReentrantBypass, _, again) = entry.turn(behind, &session(), at(3), random)
        else {
            panic!("its owner may wait for it")
        };
        assert_eq!(ask.claim, again.claim);
        assert_eq!(entry.leave(behind).claims, [ask.claim], "its request must be undone");
    }

    /// The task in front has timed out while its request was in flight.
    #[test]
    fn a_lock_won_past_the_queue_is_kept_by_a_task_that_came_to_the_front() {
        let (entry, random) = (reentrant(), &mut counter());
        let (front, behind) = (entry.join(of("x")), entry.join(of("y")));
        let by_front = asked(&entry.turn(front, &session(), at(1), random));
        entry.handle_answer(by(front), by_front, Ok(&held_by("z")), at(1), random);
        let WaiterAction::Ask(Way::ReentrantBypass, nonce, ask) =
            entry.turn(behind, &session(), at(1), random)
        else {
            panic!("it bypasses the queue")
        };
        assert!(entry.leave(front).claims.is_empty(), "its queue entry passes to the next waiter");
        entry.handle_answer(straight(behind), nonce, Ok(&granted()), at(1), random);
        let WaiterAction::AcquiredHold(hold, _, undone) = entry.turn(behind, &session(), at(1), random)
        else {
            panic!("it was granted")
        };
        assert_eq!(hold.claim, ask.claim, "neither undone nor requested again");
        assert_eq!(undone.len(), 1, "no task needs the queue entry any more");
    }

    #[test]
    fn a_new_front_sends_its_request_before_its_predecessor_is_undone() {
        let (entry, random) = (reentrant(), &mut counter());
        let (first, second) = (entry.join(of("x")), entry.join(of("y")));
        let WaiterAction::Ask(_, nonce, ask) = entry.turn(first, &session(), at(1), random) else {
            panic!("it sends a request")
        };
        entry.handle_answer(by(first), nonce, Ok(&held_by("z")), at(1), random);
        assert!(entry.leave(first).claims.is_empty(), "its queue entry passes to the next waiter");
        assert!(is_signaled(&entry, second));
        let WaiterAction::Ask(Way::Queue, nonce, next) = entry.turn(second, &session(), at(1), random) else {
            panic!("it takes the queue entry over")
        };
        assert!(next.queue.is_some() && next.claim.hold != ask.claim.hold);
        let undone = entry.handle_answer(by(second), nonce, Ok(&held_by("z")), at(1), random);
        assert_eq!(undone, [ask.claim]);
        assert_eq!(entry.leave(second).claims, [next.claim]);
    }

    #[test]
    fn the_last_release_of_an_owner_asks_for_those_in_line() {
        let (entry, random) = (reentrant(), &mut counter());
        let holds = [(); 3].map(|()| {
            let id = entry.join(of("x"));
            let WaiterAction::Ask(way, nonce, _) = entry.turn(id, &session(), at(1), random) else {
                panic!("it sends a request")
            };
            entry.handle_answer(Asker { id, way }, nonce, Ok(&granted()), at(1), random);
            let WaiterAction::AcquiredHold(hold, ..) = entry.turn(id, &session(), at(1), random) else {
                panic!("granted")
            };
            hold
        });
        let front = entry.join(of("y"));
        let nonce = asked(&entry.turn(front, &session(), at(1), random));
        entry.handle_answer(straight(front), nonce, Ok(&held_by("x")), at(1), random);
        assert!(matches!(entry.turn(front, &session(), at(1), random), WaiterAction::Stand(Some(_))));
        let mut asks = |hold: &Hold| entry.depart(hold, None, &session(), at(1), random).1.is_some();
        assert_eq!([asks(&holds[1]), asks(&holds[0]), asks(&holds[2])], [false, false, true]);
        for hold in &holds {
            entry.vacate(hold);
        }
        assert!(is_signaled(&entry, front));
        assert!(!entry.is_occupied(at(1)));
    }

    #[test]
    fn finding_the_entry_empty_signals_the_front() {
        let (entry, _hold, front) = taken();
        let (last, random) = (entry.join(terms()), &mut || 7);
        assert!(
            matches!(entry.turn(last, &session(), at(1), random), WaiterAction::Stand(None)),
            "the keeper signals the front, and the front the next waiter"
        );
        assert!(matches!(entry.turn(last, &session(), at(3), random), WaiterAction::Stand(None)));
        assert!(is_signaled(&entry, front), "or it would sleep forever");
    }

    #[test]
    fn a_release_that_comes_back_with_the_lock_tells_the_front_also_where_the_hold_had_lapsed() {
        let (entry, hold, front) = taken();
        let random = &mut || 7;
        let (_, next) = entry.depart(&hold, None, &session(), at(1), random);
        let (with_release, _) = next.expect("a task is queued");
        // The release takes long. Meanwhile the front sends its own request and learns that the lock is held.
        let own = asked(&entry.turn(front, &session(), at(3), random));
        entry.handle_answer(
            by(front),
            own,
            Ok(&Acquired::Taken {
                holder: None,
                position: Some(0),
                predecessor: None,
                other_holders: Vec::new(),
            }),
            at(3),
            random,
        );
        assert!(matches!(entry.turn(front, &session(), at(3), random), WaiterAction::Sleep(_)));
        entry.handle_answer(Asker::RELEASE, with_release, Ok(&granted()), at(1), random);
        entry.vacate(&hold);
        assert!(is_signaled(&entry, front));
        assert!(matches!(entry.turn(front, &session(), at(1), random), WaiterAction::AcquiredHold(..)));
    }
}
