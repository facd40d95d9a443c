//! A lock entry: this process's state for one lock, and the local queue of tasks that want it.
//!
//! It is a state machine over the core's [`Contender`]. Each waiting task calls [`LockEntry::poll`], does what the
//! [`WaiterAction`] says, and passes replies back through the `handle_*` functions. The entry sends nothing and never
//! waits.
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
//! 4. Every change that empties the entry, or finds it empty, signals the front. The front may sleep without a limit,
//!    because it came to the front while the entry was occupied. This includes changes by the keeper, which ends
//!    lapsed holds, and by the tasks behind the front.
//! 5. What a release requests for the next waiter is undone only after that release has returned. The task that gave
//!    up may run on another thread, and its undo could overtake the request.
//! 6. Closing the entry takes everything in it: the holds that occupy it and the pending requests. Nothing enters it
//!    after that.
//! 7. A task that comes to the front with other terms takes over the process's entry in the store's queue: it sends
//!    its request first, and the predecessor's request is undone once that is answered. In the other order the
//!    process would lose its position.
//! 8. When a task learns which owner holds a ReentrantMutex, from a reply or by acquiring it, all queued tasks of
//!    that owner are signaled and [bypass](ReentrantBypass) the queue. The owner may be waiting for them. A bypass and a
//!    request that a release carries for the same task are never in flight at once: both could be granted, and the
//!    owner would have a hold too many until one is undone.
//! 9. A hold whose guard was released may stay here for the next waiter or for later acquisitions; see [`handoff`].

pub(in crate::engine) mod handoff;

use super::reentrant_bypass::ReentrantBypass;
use super::wait_queue::WaitQueue;
use crate::engine::hold::{Hold, ReserveRequest, TrackingId};
use crate::engine::session::Session;
use handoff::Handoff;
use leasehold_core::machine::contender::{
    AcquireTerms, Contender, ContenderAction, Grant, MAX_QUEUE_ENTRY_TTL, WaitStatus,
};
use leasehold_core::machine::jitter::Random;
use leasehold_core::{
    Acquire, Acquired, Claim, Executed, FIRST_LEASE, FencingToken, HoldId, Holder, Kind, Label, Lock,
    LockMode, Moment, Nonce, OwnValue, Partition, SessionId,
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
    pub(crate) partition: Partition,
    /// The entry's index in the lock table. Every nonce of the entry repeats it.
    slot: u32,
    state: Mutex<State>,
    /// Called with the idle hold, if there is one, when the entry is dropped.
    on_drop: Box<dyn Fn(Option<TrackingId>) + Send + Sync>,
}

pub(in crate::engine) struct State {
    /// What this process requests from the store for the queue.
    contender: Contender,
    queue: WaitQueue,
    /// The holds that occupy the entry.
    holds: BTreeMap<HoldId, CurrentHold>,
    /// Requests of earlier front tasks, to be undone (7).
    superseded: Vec<Claim>,
    /// Requests sent with releases that are in flight; with the claim, once the request was given up (5).
    sent_with_release: BTreeMap<HoldId, Option<Claim>>,
    /// How much longer than a first lease the store may keep what a task has requested: the longest such time.
    beyond_first_lease: Duration,
    /// How often this process has released the lock.
    releases: u32,
    /// Local hand-off state of the hold that the store granted (9).
    handoff: Option<Handoff>,
    /// Set once the client is shut down (6).
    closed: bool,
}

/// A hold that occupies an entry.
struct CurrentHold {
    hold: Arc<Hold>,
    /// Set once its release is in flight.
    releasing: bool,
}

/// An acquire request that the entry has issued. The caller passes it back with the reply.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct PendingRequest {
    /// The task that sends it; `None` if it goes with a release.
    waiter: Option<u64>,
    pub(in crate::engine) path: RequestPath,
    nonce: Nonce,
}

/// How a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum RequestPath {
    /// Through the process's entry in the store's queue.
    Queue,
    /// Past the local queue (8).
    Bypass,
}

/// The next action of a waiter.
pub(in crate::engine) enum WaiterAction {
    /// The task acquired the lock and has left the queue. The claims must be released at the store.
    Granted(Arc<Hold>, Grant, Vec<Claim>),
    /// The task received the hold by local hand-off and has left the queue. It owns the hold only once the keeper has
    /// registered the hand-off.
    HandedOff(Arc<Hold>, TrackingId, Option<ReserveRequest>),
    /// Send this request to the store.
    Send(PendingRequest, Acquire),
    /// Wait for a signal, or until this moment.
    Sleep(Moment),
    /// Another task of this process holds the lock, at least until this moment, or is ahead in the queue: wait for a
    /// signal.
    Blocked(Option<Moment>),
    /// An idle hold is here, and the store is, or must be, consulted before it is handed off: wait for the reply.
    AwaitReserve(TrackingId, Option<ReserveRequest>),
    /// An idle hold is here that does not suit this task: release it.
    ReleaseIdle(Arc<Hold>, TrackingId),
    /// The attempt in flight belongs to another task or session: release these claims, then poll again.
    Undo(Vec<Claim>),
    /// The lease is shorter than the round trip.
    LeaseTooShort,
    /// The client was shut down.
    Closed,
}

/// What a task leaves behind when it leaves the queue.
pub(in crate::engine) struct LeftBehind {
    /// To be released at the store.
    pub(in crate::engine) claims: Vec<Claim>,
    /// The idle hold that was meant for it and that no other task waits for.
    pub(in crate::engine) idle: Option<TrackingId>,
}

/// What an entry contained when it was closed.
pub(in crate::engine) struct ClosedEntry {
    pub(in crate::engine) holds: Vec<Arc<Hold>>,
    /// To be released at the store once nothing more is sent for the entry.
    pub(in crate::engine) claims: Vec<Claim>,
}

/// Waiting.
impl LockEntry {
    pub(in crate::engine) fn new(
        lock: Lock,
        partition: Partition,
        session: SessionId,
        slot: u32,
        on_drop: impl Fn(Option<TrackingId>) + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            contender: Contender::new(session, slot),
            queue: WaitQueue::default(),
            holds: BTreeMap::new(),
            superseded: Vec::new(),
            sent_with_release: BTreeMap::new(),
            beyond_first_lease: Duration::ZERO,
            releases: 0,
            handoff: None,
            closed: false,
        };
        Self { lock, partition, slot, state: Mutex::new(state), on_drop: Box::new(on_drop) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the queue. Returns the number of the waiter.
    pub(in crate::engine) fn join(&self, terms: Arc<AcquireTerms>) -> u64 {
        let mut state = self.state();
        let queued = if terms.queue { MAX_QUEUE_ENTRY_TTL } else { Duration::ZERO };
        let beyond = queued + terms.requested_lease().saturating_sub(FIRST_LEASE) + terms.margin;
        state.beyond_first_lease = state.beyond_first_lease.max(beyond);
        let bypass = (self.lock.kind == Kind::Reentrant)
            .then(|| ReentrantBypass::new(state.contender.session(), self.slot));
        let id = state.queue.join(terms, bypass);
        if state.queue.is_front(id) {
            // A pause, if there is one, belongs to a task that is set aside.
            state.contender.poll_soon(Moment::ZERO);
        }
        id
    }

    /// The next action of this task.
    pub(in crate::engine) fn poll(
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
        let occupied_until = state.remove_lapsed(now);
        state.queue.clear_signal(id);
        if let Some(action) = state.poll_handoff(id, session, now) {
            return action;
        }
        let Some(path) = state.path(id, occupied_until.is_some(), self.lock.kind, now) else {
            // The task in front is signaled, and signals the next one (4).
            return WaiterAction::Blocked(occupied_until.filter(|_| state.queue.is_front(id)));
        };
        let Some(terms) = state.queue.terms(id) else { return WaiterAction::Blocked(None) };
        let terms = terms_in(session, terms);
        let polled = match path {
            RequestPath::Queue => state.poll_contender(id, &terms, session, now, random),
            RequestPath::Bypass => state.poll_bypass(id, &terms, session, now, random),
        };
        match polled {
            Ok(ContenderAction::Send(nonce, acquire)) => {
                WaiterAction::Send(PendingRequest { waiter: Some(id), path, nonce }, acquire)
            }
            Ok(ContenderAction::Sleep(until)) => WaiterAction::Sleep(until),
            Ok(ContenderAction::Granted(_)) => match state.take_grant(id, path) {
                Some(grant) => self.register(&mut state, id, &terms, session, grant, now),
                None => WaiterAction::Sleep(now),
            },
            Ok(ContenderAction::LeaseTooShort) => WaiterAction::LeaseTooShort,
            Ok(ContenderAction::Undo(claim)) => WaiterAction::Undo(vec![claim]),
            Err(claims) => WaiterAction::Undo(claims),
        }
    }

    /// Registers the hold that a task has acquired, and removes the task from the queue.
    fn register(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        terms: &AcquireTerms,
        session: &Arc<Session>,
        grant: Grant,
        now: Moment,
    ) -> WaiterAction {
        state.queue.remove(id);
        let claims = if state.queue.front().is_none() {
            // The lock may have been requested twice: by a release, and past the queue.
            state.give_up()
        } else {
            if !state.contender.is_idle() {
                // The new front has an entry in the store's queue to keep alive.
                state.queue.signal_front();
            }
            std::mem::take(&mut state.superseded)
        };
        if let Some(owner) = owner_of(&grant.claim, self.lock.kind) {
            // Other tasks of this owner may have queued before the owner acquired the lock (8).
            state.queue.notify_owner(&owner, Some(id));
        }
        // A store without a queue neither reports other waiters nor reserves tokens.
        state.handoff =
            if terms.fresh_hold { None } else { Handoff::of(&self.lock, &grant, now, state.queue.last_id()) };
        let session = session.with_liveness(terms.liveness);
        let (claim, until, entry) = (grant.claim.clone(), grant.valid_until, Arc::downgrade(self));
        let hold = Hold::new(self.lock.clone(), claim, grant.fence, until, session, entry);
        let hold = Arc::new(hold.with_margin(terms.margin).with_history(terms.history));
        hold.may_last(grant.may_last_until);
        // Holds with another token are gone: the store has just granted a newer one.
        state.holds.retain(|_, current| current.hold.fence == hold.fence);
        state.add_hold(hold.clone());
        WaiterAction::Granted(hold, grant, claims)
    }

    /// Waits for a signal to this task.
    pub(in crate::engine) async fn signaled(&self, id: u64) {
        poll_fn(|cx| self.state().queue.poll_signaled(id, cx.waker())).await;
    }

    /// Whether the lock has been granted to this process and no task has taken it yet.
    pub(in crate::engine) fn is_granted(&self, now: Moment) -> bool {
        self.state().contender.is_granted(now)
    }

    /// Handles the reply to a request, or its absence. The claims returned must be released at the store.
    pub(in crate::engine) fn handle_answer(
        &self,
        request: PendingRequest,
        answer: Result<&Acquired, Executed>,
        now: Moment,
        random: Random<'_>,
    ) -> Vec<Claim> {
        let mut state = self.state();
        let PendingRequest { waiter, path, nonce } = request;
        if let Ok(Acquired::Taken { holder: Some(Holder { owner: Some(owner), .. }), .. }) = answer {
            state.queue.notify_owner(owner, waiter);
        }
        if path == RequestPath::Bypass {
            // No other task sends a request while the owner holds the lock here, and it may wait for this one.
            let enters = waiter.is_some_and(|id| state.is_denied_by_split_votes(id, answer, now));
            let Some(bypass) = waiter.and_then(|id| state.queue.bypass(id)) else { return Vec::new() };
            let undo = bypass.handle_answer(nonce, answer, now, random);
            if enters {
                bypass.retry_after_pause();
            }
            return Vec::from_iter(undo);
        }
        match answer {
            Ok(reply) => state.contender.handle_reply(nonce, reply, now, random),
            Err(executed) => state.contender.handle_fault(nonce, executed, now, random),
        }
        if state.contender.is_idle()
            && let Some(id) = waiter.or_else(|| state.queue.front_id())
        {
            state.restore_bypass(id);
        }
        let mut claims = std::mem::take(&mut state.superseded);
        claims.extend(state.contender.give_up_fresh());
        claims
    }

    /// A request was not sent, or the store did not execute it.
    pub(in crate::engine) fn cancel_request(&self, request: PendingRequest) {
        let mut state = self.state();
        match request.path {
            RequestPath::Queue => state.contender.cancel_request(request.nonce),
            RequestPath::Bypass => {
                if let Some(bypass) = request.waiter.and_then(|id| state.queue.bypass(id)) {
                    bypass.cancel_request(request.nonce);
                }
            }
        }
    }

    /// How long the store has not answered requests sent on the path of this one.
    pub(in crate::engine) fn unresponsive_for(&self, request: PendingRequest, now: Moment) -> Duration {
        let mut state = self.state();
        match request.waiter.and_then(|id| state.queue.bypass(id)) {
            Some(bypass) if request.path == RequestPath::Bypass => bypass.unresponsive_for(now),
            _ => state.contender.unresponsive_for(now),
        }
    }

    /// Handles a grant message for this entry.
    pub(in crate::engine) fn handle_grant(&self, nonce: Nonce, fence: FencingToken, now: Moment) {
        let mut state = self.state();
        state.contender.handle_grant(nonce, fence, now);
        state.queue.signal_front();
    }

    /// Messages may have been missed: makes the front send its request again.
    pub(in crate::engine) fn handle_missed_messages(&self, now: Moment) {
        self.poll_soon(now);
        if let Some(handoff) = &mut self.state().handoff {
            handoff.handle_missed_messages(now);
        }
    }

    /// Makes the front ask the store soon.
    pub(in crate::engine) fn poll_soon(&self, now: Moment) {
        let mut state = self.state();
        state.contender.poll_soon(now);
        state.queue.signal_front();
    }

    /// Whether a task of this process waits for the lock.
    pub(crate) fn has_waiters(&self) -> bool {
        self.state().queue.front_id().is_some()
    }

    /// Makes this task send its request again, after a pause or a notification.
    pub(in crate::engine) fn retry_now(&self, id: u64, now: Moment) {
        let mut state = self.state();
        if state.queue.is_front(id) {
            state.contender.poll_soon(now);
        }
        if let Some(bypass) = state.queue.bypass(id) {
            bypass.retry_now();
        }
    }

    /// Whether this task acts for the process, and waits for a client of another library whose releases the store may
    /// notice: Redisson publishes them, and of a Mutex some servers report a change.
    pub(in crate::engine) fn waits_for_foreign_holder(&self, id: u64) -> bool {
        let state = self.state();
        matches!(self.lock.kind, Kind::Reentrant | Kind::Mutex)
            && state.queue.is_front(id)
            && state.contender.waits_for_foreign_holder()
    }

    /// Records whether this task is subscribed to releases.
    pub(in crate::engine) fn set_subscribed(&self, id: u64, subscribed: bool) {
        let mut state = self.state();
        if state.queue.is_front(id) {
            state.contender.set_subscribed(subscribed);
        }
    }

    /// Sets a polling task aside for the length of a pause: other tasks go first.
    pub(in crate::engine) fn set_aside(&self, id: u64) {
        let mut state = self.state();
        let was_front = state.queue.is_front(id);
        state.queue.set_aside(id, true);
        if was_front && !state.queue.is_front(id) {
            state.handle_new_front(false);
        }
    }

    /// Leaves the queue without the lock.
    pub(in crate::engine) fn leave(&self, id: u64) -> LeftBehind {
        let mut state = self.state();
        let was_front = state.queue.is_front(id);
        let queued = state.queue.front().is_some_and(|front| front.queue);
        let own = state.queue.remove(id).and_then(|mut bypass| bypass.give_up());
        let mut claims = Vec::from_iter(own);
        if was_front {
            state.contender.set_subscribed(false);
            if state.queue.front().is_none() {
                claims.extend(state.give_up());
            } else {
                state.handle_new_front(queued);
            }
        }
        LeftBehind { claims, idle: state.take_unclaimed() }
    }

    /// What blocks a task, as far as this process knows.
    pub(in crate::engine) fn wait_status(&self, id: u64, label: &Label, now: Moment) -> WaitStatus {
        let mut state = self.state();
        if let Some(bypass) = state.queue.bypass(id)
            && bypass.wait_status().received_at.is_some()
        {
            return bypass.wait_status().clone();
        }
        let Some(hold) = state.current_hold(now) else { return state.contender.wait_status().clone() };
        let remaining = hold.valid_until().since(now).as_millis();
        let holder = Holder {
            label: Some(label.clone()),
            owner: owner_of(&hold.claim, self.lock.kind),
            count: state.holds.len() as u64,
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

/// Holds, and their ends.
impl LockEntry {
    /// A hold is about to be released. Returns whether this release should leave the lock free for clients that do not
    /// queue, and the acquire request to send with it, if tasks are queued.
    pub(in crate::engine) fn begin_release(
        &self,
        hold: &Hold,
        free_every: Option<u32>,
        session: &Session,
        now: Moment,
        random: Random<'_>,
    ) -> (bool, Option<(PendingRequest, Acquire)>) {
        let mut state = self.state();
        let Some(current) = state.holds.get_mut(&hold.claim.hold) else {
            // The hold was lost, and the queued tasks send their own requests since.
            return (false, None);
        };
        current.releasing = true;
        if state.holds.values().any(|current| !current.releasing) {
            // The owner still holds the lock: its last release requests it for the queue.
            return (false, None);
        }
        state.releases = state.releases.wrapping_add(1);
        let free = free_every.is_some_and(|every| state.releases.is_multiple_of(every.max(1)));
        let front = state.queue.front_id().unwrap_or_default();
        // Its reply comes first (8). Then the task sends its own request.
        let bypasses = state.queue.bypass(front).is_some_and(|bypass| bypass.is_in_flight());
        let terms = state.queue.front().filter(|front| front.queue && !bypasses && !state.closed).cloned();
        let next = terms
            .filter(|_| state.contender.session() == session.id && session.has_begun())
            .filter(|_| now < session.alive_until())
            .filter(|terms| state.contender.matches(terms))
            .map(|terms| state.contender.request(now, &terms, random));
        let next = next.map(|(nonce, acquire)| {
            state.sent_with_release.insert(acquire.claim.hold, None);
            if let Some(bypass) = state.queue.bypass(front) {
                // This request stands for it.
                bypass.clear_pending();
                state.queue.await_owner(front);
            }
            (PendingRequest { waiter: None, path: RequestPath::Queue, nonce }, acquire)
        });
        (free, next)
    }

    /// The release that carried a request is not in flight any more. Returns the request's claim if it was given up
    /// since: it must be released at the store.
    pub(in crate::engine) fn end_release(&self, requested: HoldId) -> Option<Claim> {
        self.state().sent_with_release.remove(&requested).flatten()
    }

    /// Registers a hold that was acquired elsewhere. The store has just confirmed it, so holds with another token are
    /// gone. Those with its token are of the same owner.
    pub(in crate::engine) fn attach(&self, hold: &Arc<Hold>) {
        let mut state = self.state();
        state.holds.retain(|_, current| current.hold.fence == hold.fence);
        state.handoff = None;
        state.add_hold(hold.clone());
    }

    /// The hold is over: the front of the queue may go on.
    pub(crate) fn remove_hold(&self, hold: &Hold) {
        let mut state = self.state();
        // It may have been handed off, and then belongs to another task.
        let same = |current: &CurrentHold| current.hold.fence == hold.fence;
        if state.holds.get(&hold.claim.hold).is_some_and(same) {
            state.remove_hold(hold.claim.hold);
        }
        // Also where the hold had lapsed before: its release may have returned with the lock for the next task (4).
        state.queue.signal_front();
    }

    /// Sends all tasks away and returns what was in the entry (6).
    pub(in crate::engine) fn close(&self) -> ClosedEntry {
        let mut state = self.state();
        state.closed = true;
        let mut claims: Vec<_> =
            std::mem::take(&mut state.sent_with_release).into_values().flatten().collect();
        claims.extend(state.contender.give_up());
        claims.append(&mut state.superseded);
        claims.extend(state.queue.bypasses().filter_map(ReentrantBypass::give_up));
        state.queue.signal_all();
        state.handoff = None;
        let holds = state.holds.values().map(|current| current.hold.clone()).collect();
        ClosedEntry { holds, claims }
    }

    /// Whether a task of this process holds the lock.
    pub(crate) fn is_held(&self, now: Moment) -> bool {
        self.state().current_hold(now).is_some()
    }

    /// For how long an undo is worth trying: until the store has ended by itself what a task has requested, also what it grants
    /// only when the entry expires that was left in its queue.
    pub(in crate::engine) fn undo_for(&self) -> Duration {
        FIRST_LEASE + self.state().beyond_first_lease
    }

    /// The longest lease of the holds in this process that have this token.
    pub(crate) fn longest_lease(&self, fence: FencingToken, now: Moment) -> Duration {
        let state = self.state();
        let holds = state.holds.values().map(|current| &current.hold);
        let valid = holds.filter(|hold| hold.fence == fence && now < hold.valid_until());
        valid.map(|hold| hold.lease()).max().unwrap_or_default()
    }
}

/// The terms of a request in a session. Without a session, it does not queue, and asks for no more than a first lease.
fn terms_in(session: &Session, terms: &Arc<AcquireTerms>) -> Arc<AcquireTerms> {
    if session.has_begun() {
        return terms.clone();
    }
    let lease = terms.lease.min(FIRST_LEASE);
    Arc::new(AcquireTerms { queue: false, lease, ..(**terms).clone() })
}

/// What [`LockEntry::poll`] is made of.
impl State {
    /// Removes lapsed holds and returns until when the entry is occupied at least.
    fn remove_lapsed(&mut self, now: Moment) -> Option<Moment> {
        while let Some(first) = self.holds.first_entry() {
            let until = first.get().hold.valid_until();
            if now < until {
                return Some(until);
            }
            let lapsed = *first.key();
            self.remove_hold(lapsed);
            if self.holds.is_empty() {
                // The task that reports the loss may be late (4).
                self.queue.signal_front();
            }
        }
        None
    }

    /// How this task may send a request, if it may at all (1, 8).
    fn path(&mut self, id: u64, occupied: bool, kind: Kind, now: Moment) -> Option<RequestPath> {
        let bypass = self.queue.bypass(id).map(|bypass| (bypass.is_granted(now), bypass.is_pending()));
        let (granted, pending) = bypass.unwrap_or_default();
        let is_queued = || !self.contender.is_idle() && self.sent_with_release.is_empty();
        let may_drive = !occupied || (kind == Kind::Reentrant && is_queued());
        let is_front = self.queue.is_front(id);
        // A hold acquired past the queue is not given up because its task has come to the front meanwhile.
        if !granted && may_drive && is_front {
            return Some(RequestPath::Queue);
        }
        let is_requested = is_front && self.sent_with_release.values().any(Option::is_none);
        (granted || pending && !is_requested).then_some(RequestPath::Bypass)
    }

    /// Polls the contender for the front, which acts for the process (1). The error is what must be undone first.
    fn poll_contender(
        &mut self,
        id: u64,
        terms: &AcquireTerms,
        session: &Session,
        now: Moment,
        random: Random<'_>,
    ) -> Result<ContenderAction, Vec<Claim>> {
        self.queue.set_aside(id, false);
        if self.contender.session() != session.id {
            // A request of another session is given up, whatever its reply.
            let claims = self.give_up();
            self.contender.change_session(session.id);
            self.restore_bypass(id);
            return Err(claims);
        }
        if let Some(bypass) = self.queue.bypass(id) {
            let was_pending = bypass.is_pending();
            // The task's own bypass request is not needed any more, and must not end in a second hold.
            if let Some(claim) = bypass.give_up() {
                return Err(vec![claim]);
            }
            if was_pending {
                // The request through the queue stands for it.
                bypass.clear_pending();
                self.contender.poll_soon(now);
            }
            self.queue.await_owner(id);
        }
        if !self.contender.matches(terms) {
            let superseded = self.give_up_attempt();
            self.superseded.extend(superseded);
        }
        Ok(self.contender.poll(now, terms, random))
    }

    /// The request through the queue is over: this task's bypass, for which that request stood, is due again (8). The reply
    /// may not have said whether the owner holds the lock. If it has, this costs one request. Without it, a task of the
    /// owner that holds the lock in this process would wait for that hold's end.
    fn restore_bypass(&mut self, id: u64) {
        if let Some(bypass) = self.queue.bypass(id) {
            bypass.retry_now();
        }
    }

    /// Whether a quorum has not granted a task's request although the owner holds the lock in this process. Too few nodes
    /// may have replied, and one of them may have voted for another client's attempt.
    fn is_denied_by_split_votes(&self, id: u64, answer: Result<&Acquired, Executed>, now: Moment) -> bool {
        let terms = self.queue.terms(id).filter(|terms| terms.fresh_hold && terms.value.is_some());
        let is_taken = matches!(answer, Ok(Acquired::Taken { .. }));
        terms.filter(|_| is_taken).is_some_and(|terms| {
            let current =
                self.holds.values().filter(|current| !current.releasing).map(|current| &current.hold);
            current.into_iter().any(|hold| hold.claim.value == terms.value && now < hold.valid_until())
        })
    }

    /// Polls the bypass of a task (8). The error is what must be undone first.
    fn poll_bypass(
        &mut self,
        id: u64,
        terms: &AcquireTerms,
        session: &Session,
        now: Moment,
        random: Random<'_>,
    ) -> Result<ContenderAction, Vec<Claim>> {
        let Some(bypass) = self.queue.bypass(id) else { return Err(Vec::new()) };
        if let Some(claim) = bypass.change_session(session) {
            return Err(vec![claim]);
        }
        let action = bypass.poll(now, terms, random);
        if matches!(action, ContenderAction::Send(..)) {
            self.queue.await_owner(id);
        }
        Ok(action)
    }

    /// The hold that was acquired on this path, if there is one.
    fn take_grant(&mut self, id: u64, path: RequestPath) -> Option<Grant> {
        match path {
            RequestPath::Queue => self.contender.take_grant(),
            RequestPath::Bypass => self.queue.bypass(id).and_then(ReentrantBypass::take_grant),
        }
    }

    /// Ends the attempt. The claims returned must be released at the store.
    fn give_up(&mut self) -> Vec<Claim> {
        let mut claims = std::mem::take(&mut self.superseded);
        claims.extend(self.give_up_attempt());
        claims
    }

    /// The same for the latest request alone.
    fn give_up_attempt(&mut self) -> Option<Claim> {
        let claim = self.contender.give_up()?;
        match self.sent_with_release.get_mut(&claim.hold) {
            Some(given_up) => {
                *given_up = Some(claim);
                None
            }
            None => Some(claim),
        }
    }

    /// Another task has come to the front. `queued` is set if the one before it queued at the store.
    fn handle_new_front(&mut self, queued: bool) {
        if !queued && self.queue.front().is_some_and(|front| front.queue) {
            // The pause belongs to a task without an entry in the store's queue.
            self.contender.poll_soon(Moment::ZERO);
        }
        self.queue.signal_front();
    }

    fn add_hold(&mut self, hold: Arc<Hold>) {
        self.holds.insert(hold.claim.hold, CurrentHold { hold, releasing: false });
    }

    fn remove_hold(&mut self, hold: HoldId) {
        self.holds.remove(&hold);
        self.handoff.take_if(|handoff| handoff.hold == hold);
    }

    /// A hold of a task of this process.
    fn current_hold(&self, now: Moment) -> Option<&Arc<Hold>> {
        let holds = self.holds.values().map(|current| &current.hold);
        // An idle hold has no holder.
        holds.filter(|hold| !hold.is_idle()).find(|hold| now < hold.valid_until())
    }
}

/// The owner of a ReentrantMutex hold.
fn owner_of(claim: &Claim, kind: Kind) -> Option<OwnValue> {
    claim.value.clone().filter(|_| kind == Kind::Reentrant)
}

impl Drop for LockEntry {
    fn drop(&mut self) {
        let idle = self.remove_idle();
        (self.on_drop)(idle);
    }
}

impl fmt::Debug for LockEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockEntry").field("lock", &self.lock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
