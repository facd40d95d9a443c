//! Acquiring a lock: what one session sends, and when, until it holds the lock or gives up.
//!
//! A [`Contender`] is one session's attempt to acquire one lock. Its driver calls [`poll`](Contender::poll),
//! does what the [`ContenderAction`] says, and feeds back what happened through the `handle_*` functions. It does not
//! know how many tasks of the process wait: they queue in front of it.
//!
//! 1. One hold at a time. Requesting the same hold again changes nothing at the store, so a lost reply, a
//!    dropped future or any other doubt is resolved by sending the request again.
//! 2. A grant counts from the sending of *its* nonce, never from its arrival. An unknown nonce only makes the
//!    contender look.
//! 3. A hold that was given up is spent: [`give_up`](Contender::give_up) returns its claim for the undo and
//!    forgets it.
//! 4. The contender watches its predecessor in the queue, and looks at the moment when that session is dead
//!    unless it sends another heartbeat. So every dead session is noticed by the waiter behind it, and a row
//!    of dead sessions is cleared from behind, one round trip each. Where several clients hold the lock, the
//!    first waiter in the queue watches each of them: it names one per request, and next the one that would
//!    be dead first.
//! 5. A hold that excludes no other client needs no short first lease: an orphan of it does no harm.
//! 6. Over a quorum each request is for a [hold of its own](AcquireTerms::fresh_hold): the undo of a hold that only a
//!    minority granted may be late, and must never hit the next one. What a request may have left is given up
//!    before the next request is sent.

use crate::{
    Acquire, Acquired, Claim, Enqueue, Executed, FIRST_LEASE, FencingToken, HoldId, Holder, Label, Liveness,
    LockMode, Moment, Nonce, OwnValue, OwnerHolds, Predecessor, SessionId, drift, whole_millis,
};
use std::collections::VecDeque;
use std::time::Duration;

/// How often the first waiter in the queue looks, whatever messages arrive.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How much longer the interval between two looks is for each further position.
const POLL_INTERVAL_STEP: Duration = Duration::from_millis(250);
/// The longest interval between two looks.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// For how long a queue entry is kept at most without another look.
pub const MAX_QUEUE_ENTRY_TTL: Duration = Duration::from_secs(21);
/// How often the first waiter looks while no client can grant the lock: the holder is a client of another
/// library.
const FOREIGN_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));
/// When to request the remaining life of a session that has just become the predecessor.
const PREDECESSOR_POLL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(300));
/// How often in a row the next look follows immediately because the predecessor is not the session that the
/// request named.
const MAX_IMMEDIATE_POLLS: u32 = 64;
/// The pause after that.
const PREDECESSOR_PAUSE: Duration = Duration::from_millis(20);
/// Pauses after a fault: the first, and the longest.
const FAULT_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How many nonces are remembered: a message that answers an older one makes the contender look.
const MAX_NONCES: usize = 4;
/// How long to wait after a split vote, where no client got the lock: the range of the first pause, and how
/// often it doubles.
const SPLIT_VOTE_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
const SPLIT_VOTE_DOUBLINGS: u32 = 3;
/// How often in a row a hold may be over before its reply arrives.
const MAX_STALE_GRANTS: u32 = 3;

/// A source of random bits.
pub type Random<'a> = &'a mut dyn FnMut() -> u64;

/// What to acquire, and how.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireTerms {
    /// The minimum time for which the lock is wanted: the hold starts with this or [`FIRST_LEASE`], whichever
    /// is less.
    pub lease: Duration,
    /// A description of the client, for people to read.
    pub label: Label,
    /// For a Mutex, set if the user wants a value of their own at the lock's key. For a ReentrantMutex or an
    /// RwLock, the owner.
    pub value: Option<OwnValue>,
    /// Set to give a foreign lock without an expiry this one.
    pub adopt: Option<Duration>,
    /// What ends the hold before its time.
    pub liveness: Liveness,
    /// Set to wait in the store's queue; a single try, or a poll, does not.
    pub queue: bool,
    /// Set to look as often at the head of the queue as clients do that do not queue: where such clients
    /// share the lock, or where no message can arrive.
    pub poll_often: bool,
    /// The requested mode.
    pub mode: LockMode,
    /// Set if each request is for a new hold, because a store without a queue may have undone the previous
    /// one in part, or be about to.
    pub fresh_hold: bool,
}

/// What to do next.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContenderAction {
    /// Send this, and pass its reply to [`Contender::handle_reply`] with this nonce.
    Send(Nonce, Acquire),
    /// Nothing to do before this moment, unless something is handled.
    Sleep(Moment),
    /// The lock is held.
    Granted(Grant),
    /// The lease is shorter than the time that its reply takes.
    TooSlow,
    /// Release this at the store, and poll again (6).
    Undo(Claim),
}

/// A hold, fresh from the store.
///
/// See [`Contender`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The hold.
    pub claim: Claim,
    /// Its fencing token.
    pub fence: FencingToken,
    /// Until when the client may rely on the hold, unless it is extended.
    pub valid_until: Moment,
    /// Set if others are known to wait for the lock.
    pub others_wait: bool,
    /// What the owner of a ReentrantMutex holds now, if a reply has reported it. A message does not report
    /// it, and then the owner has this hold alone.
    pub owner_holds: Option<OwnerHolds>,
}

/// What is known about the clients ahead of a waiter.
///
/// See [`Contender`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WaitStatus {
    /// The holder of the lock, as of the last reply.
    pub holder: Option<Holder>,
    /// How many sessions wait before this one, if it has queued.
    pub position: Option<u64>,
    /// The session whose death would bring the lock closer, as of the last reply.
    pub predecessor: Option<Predecessor>,
    /// When the reply was received.
    pub received_at: Option<Moment>,
}

/// One session's attempt to acquire one lock.
///
/// ```
/// use leasehold_core::machine::contender::{Contender, ContenderAction, AcquireTerms};
/// use leasehold_core::{Acquired, FencingToken, Label, Liveness, Moment, LockMode, SessionId};
/// use std::time::Duration;
///
/// let terms = AcquireTerms {
///     lease: Duration::from_secs(30),
///     label: Label::new("billing on web-3")?,
///     value: None,
///     adopt: None,
///     liveness: Liveness::Session { alive_ms: 10_000 },
///     queue: true,
///     poll_often: false,
///     mode: LockMode::Exclusive,
///     fresh_hold: false,
/// };
/// let mut random = { let mut drawn = 0; move || { drawn += 1; drawn } }; // use unpredictable bits in production
/// let mut contender = Contender::new(SessionId::from_random([7; 12]), 0);
/// let now = Moment::from_micros(5_000_000);
///
/// let ContenderAction::Send(nonce, request) = contender.poll(now, &terms, &mut random) else { panic!("it asks first") };
/// assert_eq!(request.lease_ms, 3_000); // every hold starts with a short lease
///
/// let taken = Acquired::Taken { holder: None, position: Some(0), predecessor: None, other_holders: Vec::new() };
/// contender.handle_reply(nonce, &taken, now, &mut random);
/// assert!(matches!(contender.poll(now, &terms, &mut random), ContenderAction::Sleep(_)));
///
/// contender.handle_grant(nonce, FencingToken::new(4711), now + Duration::from_millis(400));
/// let grant = contender.take_grant().expect("a grant with the nonce of the question is believed");
/// assert!(grant.valid_until < now + Duration::from_secs(3)); // it counts from the request
/// # Ok::<(), leasehold_core::LabelError>(())
/// ```
#[derive(Debug)]
pub struct Contender {
    session: SessionId,
    slot: u32,
    phase: Phase,
    /// The requested hold, if the store may know anything of it.
    attempt: Option<Attempt>,
    wait_status: WaitStatus,
    /// The sessions whose death would bring the lock closer, in the order of the reply, and until when each
    /// is alive without another heartbeat; `None` where that is not known yet (4).
    watched: Vec<(SessionId, Option<Moment>)>,
    faults: u32,
    /// When the first of the unanswered requests was sent.
    unresponsive_since: Option<Moment>,
    stale_grants: u32,
    /// How often in a row the predecessor was not the session that the request named.
    predecessor_changes: u32,
    /// How often in a row the vote was split (6).
    split_votes: u32,
    /// Set while a release by a client of another library would be reported to it.
    subscribed: bool,
}

#[derive(Debug)]
enum Phase {
    /// Send a request as soon as the lock is wanted.
    Idle,
    /// A request is in flight, or its task was dropped. `hint` is set if a hint arrived since it was sent.
    InFlight { hint: bool },
    /// Wait for a message, or for this moment.
    Waiting(Moment),
    /// The lock is acquired, and ready to be taken.
    Granted(Grant),
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own, and all of them can be true")]
struct Attempt {
    claim: Claim,
    liveness: Liveness,
    /// For how long the queue entry was requested.
    queue_ttl: Duration,
    poll_often: bool,
    mode: LockMode,
    /// Set if no other request is for this hold.
    fresh_hold: bool,
    /// The last few requests.
    sent_requests: VecDeque<SentRequest>,
    /// Whether the store may have anything of the hold: a queue entry, or the lock.
    may_exist: bool,
    /// The same, before the request that is in flight.
    may_have_existed: bool,
}

/// One request.
#[derive(Debug, Clone, Copy)]
struct SentRequest {
    nonce: Nonce,
    /// When it was sent.
    sent_at: Moment,
    /// How long the hold lasts if the request is granted.
    lease: Duration,
    /// The session that the request named as the predecessor.
    predecessor: Option<SessionId>,
}

impl Contender {
    /// A contender for one lock. The nonce of every message for it repeats `slot`.
    pub fn new(session: SessionId, slot: u32) -> Self {
        Self {
            session,
            slot,
            phase: Phase::Idle,
            attempt: None,
            wait_status: WaitStatus::default(),
            watched: Vec::new(),
            faults: 0,
            unresponsive_since: None,
            stale_grants: 0,
            predecessor_changes: 0,
            split_votes: 0,
            subscribed: false,
        }
    }

    /// The session that acquires the lock.
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Switches to another session, because the old one has lapsed. The caller must release the returned
    /// claim at the store (3).
    pub fn change_session(&mut self, session: SessionId) -> Option<Claim> {
        let claim = self.give_up();
        self.session = session;
        claim
    }

    /// What to do now. A request that was in flight is sent again: its task is gone (1).
    pub fn poll(&mut self, now: Moment, terms: &AcquireTerms, random: Random<'_>) -> ContenderAction {
        match &self.phase {
            Phase::Granted(grant) if grant.valid_until > now => {
                return ContenderAction::Granted(grant.clone());
            }
            Phase::Waiting(until) if *until > now => return ContenderAction::Sleep(*until),
            _ if self.stale_grants >= MAX_STALE_GRANTS => {
                // The next caller may request a longer lease.
                self.stale_grants = 0;
                return ContenderAction::TooSlow;
            }
            _ => {}
        }
        if let Some(claim) = self.give_up_fresh() {
            return ContenderAction::Undo(claim);
        }
        let (nonce, request) = self.request(now, terms, random);
        ContenderAction::Send(nonce, request)
    }

    /// Gives up the hold of a request that was not granted, where the next request is for another hold (6).
    /// The caller must release the returned claim at the store.
    pub fn give_up_fresh(&mut self) -> Option<Claim> {
        let is_over = |attempt: &mut Attempt| attempt.fresh_hold;
        if matches!(self.phase, Phase::Granted(_)) {
            return None;
        }
        let attempt = self.attempt.take_if(is_over)?;
        if matches!(self.phase, Phase::InFlight { .. }) {
            // The task that sent it is gone.
            self.phase = Phase::Idle;
        }
        attempt.may_exist.then_some(attempt.claim)
    }

    /// Creates a request, which counts as sent now: for [`ContenderAction::Send`], or to accompany the release of another
    /// hold.
    pub fn request(&mut self, now: Moment, terms: &AcquireTerms, random: Random<'_>) -> (Nonce, Acquire) {
        let nonce = Nonce::new(self.slot, random());
        let excludes = !matches!(terms.mode, LockMode::LatchWait { .. } | LockMode::BarrierWait { .. });
        let lease = if excludes { terms.lease.min(FIRST_LEASE) } else { terms.lease };
        let queue_ttl = (self.poll_interval() * 2 + POLL_INTERVAL).min(MAX_QUEUE_ENTRY_TTL);
        let (session, predecessor) = (self.session, self.next_watched().map(|(session, _)| session));
        let attempt = self.attempt.get_or_insert_with(|| Attempt {
            claim: Claim { hold: new_hold_id(session, random), value: terms.value.clone() },
            liveness: terms.liveness,
            queue_ttl,
            poll_often: terms.poll_often,
            mode: terms.mode,
            fresh_hold: terms.fresh_hold,
            sent_requests: VecDeque::with_capacity(MAX_NONCES),
            may_exist: false,
            may_have_existed: false,
        });
        attempt.queue_ttl = queue_ttl;
        attempt.poll_often = terms.poll_often;
        if attempt.sent_requests.len() == MAX_NONCES {
            attempt.sent_requests.pop_front();
        }
        attempt.sent_requests.push_back(SentRequest { nonce, sent_at: now, lease, predecessor });
        attempt.may_have_existed = attempt.may_exist;
        attempt.may_exist = true;
        self.phase = Phase::InFlight { hint: false };
        let queue = terms.queue.then(|| Enqueue { nonce, ttl_ms: whole_millis(queue_ttl) });
        let request = Acquire {
            claim: attempt.claim.clone(),
            lease_ms: whole_millis(lease),
            label: terms.label.clone(),
            queue,
            adopt_ms: terms.adopt.map(whole_millis),
            liveness: terms.liveness,
            predecessor,
            mode: terms.mode,
        };
        (nonce, request)
    }

    /// Whether the requested hold fits other terms; if it does not, the caller must give it up.
    pub fn matches(&self, terms: &AcquireTerms) -> bool {
        let fits = |attempt: &Attempt| {
            (&attempt.claim.value, attempt.liveness, attempt.mode)
                == (&terms.value, terms.liveness, terms.mode)
        };
        self.attempt.as_ref().is_none_or(fits)
    }

    /// Handles the reply to a request.
    pub fn handle_reply(&mut self, nonce: Nonce, reply: &Acquired, now: Moment, random: Random<'_>) {
        let granted = matches!(self.phase, Phase::Granted(_));
        let hint = matches!(self.phase, Phase::InFlight { hint: true });
        let Some((attempt, sent)) = self.sent_request(nonce).filter(|_| !granted) else { return };
        match reply {
            Acquired::Granted { fence, remaining_ms, others_wait, owner_holds } => {
                let remaining = Duration::from_millis(*remaining_ms);
                let claim = attempt.claim.clone();
                let valid_until = sent.sent_at + remaining - drift(remaining);
                self.note_reply();
                // Less than this is too short to be of use.
                let least = sent.lease / 10;
                self.phase = if valid_until > now + least {
                    Phase::Granted(Grant {
                        claim,
                        fence: *fence,
                        valid_until,
                        others_wait: *others_wait,
                        owner_holds: *owner_holds,
                    })
                } else if sent.sent_at + sent.lease - drift(sent.lease) <= now + least {
                    // Even a whole lease would have been over before its reply arrived.
                    self.stale_grants += 1;
                    Phase::Waiting(now)
                } else if remaining > least * 2 {
                    // This reply was slow, but the next one may not be.
                    Phase::Waiting(now)
                } else {
                    // An old hold that is almost over can be requested anew after its end.
                    Phase::Waiting(now.max(sent.sent_at + remaining + Duration::from_millis(1)))
                };
            }
            Acquired::Taken { holder, position, predecessor, other_holders } => {
                // A request that does not queue leaves the entry of an earlier one in place.
                attempt.may_exist = position.is_some() || attempt.may_have_existed;
                self.note_reply();
                let (holder, holder_is_there) = (holder.clone(), holder.is_some());
                self.wait_status = WaitStatus {
                    holder,
                    position: *position,
                    predecessor: *predecessor,
                    received_at: Some(now),
                };
                self.watch(*predecessor, other_holders, now);
                self.split_votes = if holder_is_there { 0 } else { self.split_votes.saturating_add(1) };
                let poll_delay =
                    if hint { Duration::ZERO } else { self.poll_delay(sent.predecessor, now, random) };
                self.phase = Phase::Waiting(now + poll_delay);
            }
            Acquired::AlreadyEnded(_) => {
                self.attempt = None;
                self.phase = Phase::Idle;
                self.note_reply();
            }
        }
    }

    /// Handles a request that had no reply, or whose reply says that it was not executed.
    pub fn handle_fault(&mut self, nonce: Nonce, executed: Executed, now: Moment, random: Random<'_>) {
        let Some((attempt, sent)) = self.sent_request(nonce) else { return };
        if executed == Executed::No {
            attempt.may_exist = attempt.may_have_existed;
        }
        if !matches!(self.phase, Phase::InFlight { .. }) {
            return;
        }
        self.faults += 1;
        self.unresponsive_since.get_or_insert(sent.sent_at);
        let (first, most) = FAULT_BACKOFF;
        let poll_delay = first.saturating_mul(1 << self.faults.saturating_sub(1).min(10)).min(most);
        self.phase = Phase::Waiting(now + between(poll_delay / 2, poll_delay, random()));
    }

    /// The request was not sent after all, or the store replied that it did nothing. This is no fault: it may
    /// be sent again at once.
    pub fn cancel_request(&mut self, nonce: Nonce) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(at) = attempt.sent_requests.iter().position(|sent| sent.nonce == nonce) else { return };
        attempt.sent_requests.remove(at);
        attempt.may_exist = attempt.may_have_existed;
        if matches!(self.phase, Phase::InFlight { .. }) {
            self.phase = Phase::Waiting(Moment::ZERO);
        }
    }

    /// Handles the message of a grant. It is valid only as far as its own nonce carries (2).
    pub fn handle_grant(&mut self, nonce: Nonce, fence: FencingToken, now: Moment) {
        if matches!(self.phase, Phase::Granted(_)) {
            return;
        }
        let Some((attempt, sent)) = self.sent_request(nonce) else { return self.handle_hint(now) };
        let claim = attempt.claim.clone();
        let valid_until = sent.sent_at + sent.lease - drift(sent.lease);
        // If the request was sent long ago, little or nothing is left of its lease. The reply to a new
        // request carries the whole lease, because the store counts from the grant.
        if valid_until.since(now) < sent.lease / 3 {
            return self.handle_hint(now);
        }
        self.note_reply();
        self.phase =
            Phase::Granted(Grant { claim, fence, valid_until, others_wait: true, owner_holds: None });
    }

    /// A message may have been missed (for example, after a new subscription): look at once.
    pub fn handle_hint(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Waiting(until) => *until = now.min(*until),
            // The reply may be older than the missed message.
            Phase::InFlight { hint } => *hint = true,
            Phase::Idle | Phase::Granted(_) => {}
        }
    }

    /// Sets whether the driver receives a message when a client of another library releases the lock, and
    /// passes it on through `handle_hint`. While it does, the contender looks no more often than with a
    /// holder of Leasehold.
    pub fn set_subscribed(&mut self, subscribed: bool) {
        self.subscribed = subscribed;
    }

    /// Whether this session waits at the head of the queue for a client of another library, which does not
    /// grant the lock on release.
    pub fn waits_for_foreign_holder(&self) -> bool {
        let foreign = self.wait_status.holder.as_ref().is_some_and(Holder::is_foreign);
        foreign && self.wait_status.position == Some(0)
    }

    /// Whether the lock is acquired, and ready to be taken.
    pub fn is_granted(&self, now: Moment) -> bool {
        matches!(&self.phase, Phase::Granted(grant) if grant.valid_until > now)
    }

    /// Takes the hold: from here on the caller extends and releases it.
    pub fn take_grant(&mut self) -> Option<Grant> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Granted(grant) => {
                self.reset();
                Some(grant)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Ends the attempt. The caller must release the returned claim at the store (3).
    pub fn give_up(&mut self) -> Option<Claim> {
        let attempt = self.attempt.take();
        self.reset();
        attempt.filter(|attempt| attempt.may_exist).map(|attempt| attempt.claim)
    }

    /// Whether nothing is requested and nothing is held.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle) && self.attempt.is_none()
    }

    /// For how long the store has not replied, since the first request without a reply.
    pub fn unresponsive_for(&self, now: Moment) -> Duration {
        self.unresponsive_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// What the last reply reported about the clients ahead.
    pub fn wait_status(&self) -> &WaitStatus {
        &self.wait_status
    }

    fn reset(&mut self) {
        self.phase = Phase::Idle;
        self.attempt = None;
        self.wait_status = WaitStatus::default();
        self.watched.clear();
        self.note_reply();
        self.stale_grants = 0;
        self.predecessor_changes = 0;
        self.split_votes = 0;
        self.subscribed = false;
    }

    fn note_reply(&mut self) {
        self.faults = 0;
        self.unresponsive_since = None;
    }

    fn sent_request(&mut self, nonce: Nonce) -> Option<(&mut Attempt, SentRequest)> {
        let attempt = self.attempt.as_mut()?;
        let sent = *attempt.sent_requests.iter().find(|sent| sent.nonce == nonce)?;
        Some((attempt, sent))
    }

    /// Records the sessions that a reply named as being ahead (4).
    fn watch(&mut self, predecessor: Option<Predecessor>, others: &[SessionId], now: Moment) {
        let known = std::mem::take(&mut self.watched);
        let until = |session| known.iter().find(|(of, _)| *of == session).and_then(|(_, until)| *until);
        let first = predecessor.map(|Predecessor { session, alive_ms }| {
            let told = alive_ms.map(|alive_ms| now + Duration::from_millis(alive_ms));
            (session, told.or(until(session)))
        });
        self.watched.extend(first);
        self.watched.extend(others.iter().map(|session| (*session, until(*session))));
    }

    /// The session to name in the next request, and until when it is alive: the first one of unknown life, or
    /// else the one that would be dead first. The reply continues from that session, so naming the first also
    /// reaches holders beyond those of a single reply.
    fn next_watched(&self) -> Option<(SessionId, Option<Moment>)> {
        self.watched.iter().min_by_key(|(_, alive)| *alive).copied()
    }

    /// How long to wait for a message after a "taken" reply to a request that named `named`.
    fn poll_delay(&mut self, named: Option<SessionId>, now: Moment, random: Random<'_>) -> Duration {
        let usual = self.base_poll_delay(random);
        let Some(predecessor) = self.wait_status.predecessor else { return usual };
        let predecessor_changed = named.is_some_and(|named| named != predecessor.session);
        self.predecessor_changes =
            if predecessor_changed { self.predecessor_changes.saturating_add(1) } else { 0 };
        let watch = match self.next_watched().and_then(|(_, alive)| alive) {
            Some(alive) => {
                let dead = alive.since(now).saturating_add(Duration::from_millis(1));
                dead.saturating_add(between(Duration::ZERO, Duration::from_millis(5), random()))
            }
            // The session that the request named is gone, perhaps dead, and a whole row of others may be dead
            // as well (4).
            None if predecessor_changed && self.predecessor_changes <= MAX_IMMEDIATE_POLLS => Duration::ZERO,
            None if predecessor_changed => PREDECESSOR_PAUSE,
            None => between(PREDECESSOR_POLL.0, PREDECESSOR_POLL.1, random()),
        };
        usual.min(watch)
    }

    /// The same, as if no session could die.
    fn base_poll_delay(&self, random: Random<'_>) -> Duration {
        let holder = self.wait_status.holder.as_ref();
        let fresh_hold = self.attempt.as_ref().is_some_and(|attempt| attempt.fresh_hold);
        if fresh_hold && holder.is_none() {
            let most =
                SPLIT_VOTE_POLL.1 * (1 << self.split_votes.saturating_sub(1).min(SPLIT_VOTE_DOUBLINGS));
            return between(SPLIT_VOTE_POLL.0, most, random());
        }
        let head = self.wait_status.position.unwrap_or(0) == 0;
        let poll_often = self.attempt.as_ref().is_some_and(|attempt| attempt.poll_often);
        let unsubscribed = !self.subscribed && holder.is_some_and(Holder::is_foreign);
        // The lock is free with this client behind it: it was left free, or the waiters before are long dead,
        // so no grant would arrive. At a latch or a barrier there is nothing to take; the arriving clients
        // cause the grant.
        let gathers = self.attempt.as_ref().is_some_and(|attempt| {
            matches!(attempt.mode, LockMode::LatchWait { .. } | LockMode::BarrierWait { .. })
        });
        let often = (holder.is_none() && !gathers) || (head && (poll_often || unsubscribed));
        let poll_delay = if often {
            between(FOREIGN_POLL.0, FOREIGN_POLL.1, random())
        } else {
            let queue_ttl = self.attempt.as_ref().map_or(FIRST_LEASE, |attempt| attempt.queue_ttl);
            let longest = self.poll_interval().min(queue_ttl.saturating_sub(POLL_INTERVAL) / 2);
            between(longest * 4 / 5, longest, random())
        };
        match holder.and_then(|holder| holder.remaining_ms) {
            Some(remaining_ms) if head => {
                let expiry = Duration::from_millis(remaining_ms + 1);
                poll_delay.min(expiry + between(Duration::ZERO, Duration::from_millis(5), random()))
            }
            _ => poll_delay,
        }
    }

    /// The longest interval between two looks: longer further back in the queue.
    fn poll_interval(&self) -> Duration {
        let steps = self.wait_status.position.unwrap_or(0).min(64);
        let steps = u32::try_from(steps).unwrap_or(64);
        (POLL_INTERVAL + POLL_INTERVAL_STEP * steps).min(MAX_POLL_INTERVAL)
    }
}

fn new_hold_id(session: SessionId, random: Random<'_>) -> HoldId {
    let mut bits = [0; 16];
    bits[..8].copy_from_slice(&random().to_ne_bytes());
    bits[8..].copy_from_slice(&random().to_ne_bytes());
    HoldId::from_random(session, bits)
}

/// A random duration between two bounds.
fn between(least: Duration, most: Duration, random: u64) -> Duration {
    let span = most.saturating_sub(least);
    #[allow(clippy::cast_precision_loss, reason = "a jitter needs no more than the leading bits")]
    let share = random as f64 / u64::MAX as f64;
    least + span.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Moment {
        Moment::from_micros(ms * 1000)
    }

    fn terms() -> AcquireTerms {
        AcquireTerms {
            lease: Duration::from_secs(30),
            label: Label::new("test").expect("a plain text"),
            value: None,
            adopt: None,
            liveness: Liveness::Session { alive_ms: 10_000 },
            queue: true,
            poll_often: false,
            mode: LockMode::Exclusive,
            fresh_hold: false,
        }
    }

    fn counter() -> impl FnMut() -> u64 {
        let mut n = 0_u64;
        move || {
            n += 1;
            n << 32
        }
    }

    fn expect_send(step: ContenderAction) -> (Nonce, Acquire) {
        match step {
            ContenderAction::Send(nonce, request) => (nonce, request),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    fn taken(position: u64) -> Acquired {
        let label = Label::new("other").ok();
        let holder = Holder {
            label,
            owner: None,
            count: 1,
            remaining_ms: Some(60_000),
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        Acquired::Taken {
            holder: Some(holder),
            position: Some(position),
            predecessor: None,
            other_holders: Vec::new(),
        }
    }

    fn fence() -> FencingToken {
        FencingToken::new(7)
    }

    #[test]
    fn a_grant_counts_from_the_sending_of_its_nonce() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 9);
        let (first, request) = expect_send(contender.poll(ms(0), &terms(), random));
        assert_eq!((request.lease_ms, first.slot()), (3000, 9));
        let taken = taken(0);
        contender.handle_reply(first, &taken, ms(1), random);
        assert!(matches!(contender.poll(ms(1), &terms(), random), ContenderAction::Sleep(_)));
        let (second, again) = expect_send(contender.poll(ms(1001), &terms(), random));
        assert_eq!(again.claim, request.claim, "a look requests the same hold");
        contender.handle_grant(first, fence(), ms(1500));
        let ContenderAction::Granted(grant) = contender.poll(ms(1500), &terms(), random) else {
            panic!("not granted")
        };
        assert_eq!(grant.valid_until, ms(3000) - drift(FIRST_LEASE), "not from {second:?}, nor from now");
        assert_eq!(contender.take_grant().map(|grant| grant.claim), Some(request.claim));
        assert!(contender.is_idle());
    }

    #[test]
    fn what_was_not_asked_after_all_is_no_fault_and_leaves_nothing() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        contender.cancel_request(nonce);
        assert_eq!(contender.unresponsive_for(ms(9_000)), Duration::ZERO);
        let (nonce, request) = expect_send(contender.poll(ms(1), &terms(), random));
        contender.cancel_request(nonce);
        assert_eq!(contender.give_up(), None, "nothing of it can be at the store");
        // Something of an earlier request may be at the store.
        let (first, again) = expect_send(contender.poll(ms(2), &terms(), random));
        assert_ne!(again.claim, request.claim);
        contender.handle_fault(first, Executed::Unknown, ms(3), random);
        let (nonce, _) = expect_send(contender.poll(ms(1_000), &terms(), random));
        contender.cancel_request(nonce);
        assert_eq!(
            contender.unresponsive_for(ms(1_002)),
            Duration::from_millis(1_000),
            "the store is still silent"
        );
        assert_eq!(contender.give_up(), Some(again.claim));
    }

    #[test]
    fn a_message_out_of_date_or_unknown_only_makes_it_look() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        let taken = taken(40);
        contender.handle_reply(nonce, &taken, ms(1), random);
        contender.handle_grant(Nonce::new(0, 0xbad), fence(), ms(2));
        let (nonce, request) = expect_send(contender.poll(ms(2), &terms(), random));
        assert_eq!(
            request.queue.map(|queue| queue.ttl_ms),
            Some(21_000),
            "further back an entry is kept longer"
        );
        contender.handle_reply(nonce, &taken, ms(3), random);
        contender.handle_grant(nonce, fence(), ms(3100));
        assert!(
            matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Send(..)),
            "nothing is left of it"
        );
    }

    #[test]
    fn a_grant_of_which_little_is_left_makes_it_look() {
        for (now, believed) in [(1_000, true), (1_900, true), (2_000, false), (2_900, false), (3_100, false)]
        {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
            contender.handle_reply(nonce, &taken(40), ms(1), random);
            contender.handle_grant(nonce, fence(), ms(now));
            let step = contender.poll(ms(now), &terms(), random);
            assert_eq!(matches!(step, ContenderAction::Granted(_)), believed, "{now}: {step:?}");
            assert_eq!(matches!(step, ContenderAction::Send(..)), !believed, "{now}: {step:?}");
        }
    }

    #[test]
    fn an_answer_that_is_older_than_a_stale_grant_does_not_put_off_the_look() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        // The process was suspended: both messages were in its buffers, and the grant overtook the reply.
        contender.handle_grant(nonce, fence(), ms(3100));
        contender.handle_reply(nonce, &taken(0), ms(3100), random);
        assert!(matches!(contender.poll(ms(3100), &terms(), random), ContenderAction::Send(..)));
    }

    #[test]
    fn what_may_be_at_the_store_is_given_up_by_its_claim() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        contender.handle_fault(nonce, Executed::No, ms(1), random);
        assert_eq!(contender.give_up(), None, "it was not executed");
        let (nonce, request) = expect_send(contender.poll(ms(2), &terms(), random));
        contender.handle_fault(nonce, Executed::Unknown, ms(3), random);
        let (nonce, _) = expect_send(contender.poll(ms(5000), &terms(), random));
        contender.handle_fault(nonce, Executed::No, ms(5001), random);
        assert_eq!(contender.give_up(), Some(request.claim.clone()), "the first may have been");
        let (_, other) = expect_send(contender.poll(ms(6000), &terms(), random));
        assert_ne!(other.claim, request.claim, "a hold that was given up is spent");
    }

    #[test]
    fn looks_are_spread_and_bounded() {
        // Failure row 24.
        let mut pauses = std::collections::BTreeSet::new();
        for seed in 1..=64_u64 {
            let random = &mut move || seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
            let taken = taken(0);
            contender.handle_reply(nonce, &taken, ms(0), random);
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            assert!(until >= ms(800) && until <= ms(1000), "{until:?}");
            pauses.insert(until);
        }
        assert!(pauses.len() > 32, "{} different pauses", pauses.len());
    }

    #[test]
    fn the_head_looks_often_where_no_message_would_arrive() {
        let foreign = Holder {
            label: None,
            owner: None,
            count: 1,
            remaining_ms: None,
            fence: None,
            since_ms: None,
            session: None,
            mode: LockMode::Exclusive,
            in_cooldown: false,
        };
        let ours = Holder { label: Label::new("other").ok(), ..foreign.clone() };
        for (holder, position, poll_often, soon) in [
            (Some(foreign.clone()), 0, false, true),
            (Some(foreign), 1, false, false),
            (Some(ours.clone()), 0, true, true),
            (Some(ours), 0, false, false),
            (None, 7, false, true),
        ] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) =
                expect_send(contender.poll(ms(0), &AcquireTerms { poll_often, ..terms() }, random));
            let taken = Acquired::Taken {
                holder: holder.clone(),
                position: Some(position),
                predecessor: None,
                other_holders: Vec::new(),
            };
            contender.handle_reply(nonce, &taken, ms(0), random);
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            let often = until >= ms(50) && until <= ms(250);
            assert_eq!(often, soon, "{holder:?} at {position}: {until:?}");
        }
    }

    #[test]
    fn the_head_looks_when_the_holders_lease_ends() {
        for label in [None, Label::new("other").ok()] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
            let holder = Some(Holder {
                label,
                owner: None,
                count: 1,
                remaining_ms: Some(20),
                fence: None,
                since_ms: None,
                session: None,
                mode: LockMode::Exclusive,
                in_cooldown: false,
            });
            contender.handle_reply(
                nonce,
                &Acquired::Taken { holder, position: Some(0), predecessor: None, other_holders: Vec::new() },
                ms(0),
                random,
            );
            let ContenderAction::Sleep(until) = contender.poll(ms(0), &terms(), random) else {
                panic!("not asleep")
            };
            assert!(until > ms(20) && until <= ms(26), "{until:?}");
        }
    }

    #[test]
    fn a_hold_in_its_last_milliseconds_says_nothing_about_the_lease() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let granted = |remaining_ms| Acquired::Granted {
            fence: fence(),
            remaining_ms,
            others_wait: false,
            owner_holds: None,
        };
        let (mut nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        // The process was suspended after the grant; its looks find what is left of that hold.
        for now in 2_999..3_003 {
            let at = ms(now);
            contender.handle_reply(nonce, &granted(3_000_u64.saturating_sub(now)), at, random);
            assert!(
                matches!(
                    contender.poll(at, &terms(), random),
                    ContenderAction::Sleep(_) | ContenderAction::Send(..)
                ),
                "{now}"
            );
            (nonce, _) = contender.request(at, &terms(), random);
        }
        contender.handle_reply(nonce, &granted(3_000), ms(3_004), random);
        assert!(matches!(contender.poll(ms(3_004), &terms(), random), ContenderAction::Granted(_)));
    }

    #[test]
    fn a_lease_shorter_than_the_round_trip_is_reported() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let terms = || AcquireTerms { lease: Duration::from_millis(1), ..terms() };
        for round in 0..MAX_STALE_GRANTS {
            let sent_at = ms(u64::from(round) * 100);
            let (nonce, _) = expect_send(contender.poll(sent_at, &terms(), random));
            let granted =
                Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
            contender.handle_reply(nonce, &granted, sent_at + Duration::from_millis(2), random);
        }
        assert_eq!(contender.poll(ms(1000), &terms(), random), ContenderAction::TooSlow);
        assert!(contender.give_up().is_some());
    }

    #[test]
    fn a_lease_that_is_too_short_does_not_affect_the_next_attempt() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let short = AcquireTerms { lease: Duration::from_millis(1), ..terms() };
        for round in 0..MAX_STALE_GRANTS {
            let sent_at = ms(u64::from(round) * 100);
            let (nonce, _) = expect_send(contender.poll(sent_at, &short, random));
            let granted =
                Acquired::Granted { fence: fence(), remaining_ms: 1, others_wait: false, owner_holds: None };
            contender.handle_reply(nonce, &granted, sent_at + Duration::from_millis(2), random);
        }
        assert_eq!(contender.poll(ms(1000), &short, random), ContenderAction::TooSlow);
        assert!(matches!(contender.poll(ms(1000), &terms(), random), ContenderAction::Send(..)));
    }

    #[test]
    fn a_question_that_does_not_queue_leaves_the_place_of_an_earlier_one_to_be_given_up() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, request) = expect_send(contender.poll(ms(0), &terms(), random));
        contender.handle_reply(nonce, &taken(3), ms(1), random);
        let polls = AcquireTerms { queue: false, ..terms() };
        for t in [100, 200] {
            contender.handle_hint(ms(t));
            let (nonce, _) = expect_send(contender.poll(ms(t), &polls, random));
            let Acquired::Taken { holder, .. } = taken(0) else { panic!("taken is taken") };
            let unqueued =
                Acquired::Taken { holder, position: None, predecessor: None, other_holders: Vec::new() };
            contender.handle_reply(nonce, &unqueued, ms(t + 1), random);
        }
        assert_eq!(contender.give_up(), Some(request.claim), "its entry is still at the store");
    }

    #[test]
    fn news_while_a_question_is_on_its_way_makes_it_look_after_the_answer() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        contender.handle_hint(ms(1));
        contender.handle_reply(nonce, &taken(0), ms(2), random);
        let (nonce, _) = expect_send(contender.poll(ms(2), &terms(), random));
        contender.handle_reply(nonce, &taken(0), ms(3), random);
        assert!(matches!(contender.poll(ms(3), &terms(), random), ContenderAction::Sleep(_)), "once");
    }

    #[test]
    fn a_hold_is_never_believed_longer_than_the_store_was_asked_to_keep_it() {
        for us in [1_000, 1_001, 1_999, 5_500, 9_999, 2_999_999] {
            let random = &mut counter();
            let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
            let lease = Duration::from_micros(us);
            let (nonce, request) =
                expect_send(contender.poll(ms(0), &AcquireTerms { lease, ..terms() }, random));
            contender.handle_grant(nonce, fence(), ms(0));
            let ContenderAction::Granted(grant) = contender.poll(ms(0), &terms(), random) else {
                panic!("not granted")
            };
            assert!(
                grant.valid_until < ms(request.lease_ms),
                "{lease:?}: {:?} of {}",
                grant.valid_until,
                request.lease_ms
            );
        }
    }

    // ---- a new hold for each request (6) ----

    fn fresh_terms() -> AcquireTerms {
        AcquireTerms { queue: false, poll_often: true, fresh_hold: true, ..terms() }
    }

    #[test]
    fn where_each_question_asks_for_a_hold_of_its_own_no_undo_can_hit_the_next() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let split =
            Acquired::Taken { holder: None, position: None, predecessor: None, other_holders: Vec::new() };
        let (nonce, first) = expect_send(contender.poll(ms(0), &fresh_terms(), random));
        contender.handle_reply(nonce, &split, ms(1), random);
        assert_eq!(contender.give_up_fresh(), None, "the store has undone it");
        let ContenderAction::Sleep(until) = contender.poll(ms(1), &fresh_terms(), random) else {
            panic!("not asleep")
        };
        assert!(until >= ms(3) && until <= ms(21), "a split vote: {until:?}");

        let (nonce, second) = expect_send(contender.poll(until, &fresh_terms(), random));
        assert_ne!(first.claim, second.claim);
        contender.handle_fault(nonce, Executed::Unknown, until, random);
        assert_eq!(contender.give_up_fresh(), Some(second.claim), "it may be there");
        assert!(matches!(contender.poll(until, &fresh_terms(), random), ContenderAction::Sleep(_)));

        // A dropped task leaves a request with an unknown result.
        let later = until + Duration::from_secs(2);
        let (late, third) = expect_send(contender.poll(later, &fresh_terms(), random));
        assert_eq!(contender.poll(later, &fresh_terms(), random), ContenderAction::Undo(third.claim.clone()));
        let (nonce, fourth) = expect_send(contender.poll(later, &fresh_terms(), random));
        assert_ne!(third.claim, fourth.claim);
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
        contender.handle_reply(late, &granted, later, random);
        assert!(!contender.is_granted(later), "it is being undone");
        contender.handle_reply(nonce, &granted, later, random);
        assert_eq!(contender.give_up_fresh(), None);
        assert_eq!(contender.take_grant().map(|grant| grant.claim), Some(fourth.claim));
    }

    #[test]
    fn a_grant_that_came_too_late_is_undone_where_each_question_has_a_hold_of_its_own() {
        let random = &mut counter();
        let mut contender = Contender::new(SessionId::from_random([1; 12]), 0);
        let (nonce, request) = expect_send(contender.poll(ms(0), &fresh_terms(), random));
        let granted =
            Acquired::Granted { fence: fence(), remaining_ms: 3_000, others_wait: false, owner_holds: None };
        contender.handle_reply(nonce, &granted, ms(2_990), random);
        assert_eq!(contender.give_up_fresh(), Some(request.claim));
    }

    // ---- watching the predecessor (4) ----

    fn session(n: u8) -> SessionId {
        SessionId::from_random([n; 12])
    }

    /// A "taken" reply with `who` as the predecessor of `position`, and its remaining life if the request
    /// named it.
    fn behind(who: SessionId, position: u64, alive_ms: Option<u64>) -> Acquired {
        let Acquired::Taken { holder, .. } = taken(position) else { panic!("taken is taken") };
        Acquired::Taken {
            holder,
            position: Some(position),
            predecessor: Some(Predecessor { session: who, alive_ms }),
            other_holders: Vec::new(),
        }
    }

    /// When the contender looks after that reply.
    fn next_poll(
        contender: &mut Contender,
        nonce: Nonce,
        reply: &Acquired,
        now: Moment,
        random: Random<'_>,
    ) -> Moment {
        contender.handle_reply(nonce, reply, now, random);
        match contender.poll(now, &terms(), random) {
            ContenderAction::Sleep(until) => until,
            other => panic!("not asleep: {other:?}"),
        }
    }

    #[test]
    fn it_soon_checks_a_new_predecessor() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let (nonce, request) = expect_send(contender.poll(ms(0), &terms(), random));
        assert_eq!(request.predecessor, None, "no predecessor is known yet");
        // A wait that ends within that time costs no further request, also far back in the queue.
        let until = next_poll(&mut contender, nonce, &behind(session(7), 40, None), ms(10), random);
        assert!(until >= ms(210) && until <= ms(310), "{until:?}");
        let (_, request) = expect_send(contender.poll(until, &terms(), random));
        assert_eq!(request.predecessor, Some(session(7)));
    }

    #[test]
    fn it_looks_when_the_predecessor_would_be_dead() {
        for (alive_ms, position, within) in
            [(300, 0, true), (300, 40, true), (60_000, 0, false), (u64::MAX, 0, false)]
        {
            let random = &mut counter();
            let mut contender = Contender::new(session(1), 0);
            let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
            let until = next_poll(&mut contender, nonce, &behind(session(7), position, None), ms(0), random);
            let (nonce, _) = expect_send(contender.poll(until, &terms(), random));
            let reply = behind(session(7), position, Some(alive_ms));
            let next = next_poll(&mut contender, nonce, &reply, until, random);
            if within {
                assert!(
                    next > until + Duration::from_millis(alive_ms),
                    "the session is alive in its last millisecond"
                );
                assert!(next <= until + Duration::from_millis(alive_ms + 6), "{next:?} after {until:?}");
            } else {
                assert!(
                    next <= until + Duration::from_secs(1),
                    "the usual look is sooner: {next:?} after {until:?}"
                );
                assert!(next >= until + Duration::from_millis(800), "{next:?} after {until:?}");
            }
        }
    }

    #[test]
    fn a_holder_that_cannot_die_is_not_watched() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let (nonce, _) = expect_send(contender.poll(ms(0), &terms(), random));
        let until = next_poll(&mut contender, nonce, &taken(0), ms(0), random);
        assert!(until >= ms(800), "the usual look: {until:?}");
        assert_eq!(expect_send(contender.poll(until, &terms(), random)).1.predecessor, None);
    }

    #[test]
    fn it_looks_at_once_where_another_stands_ahead_but_not_for_ever() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let mut now = ms(0);
        let mut at_once = 0;
        for n in 0..200 {
            let (nonce, request) = expect_send(contender.poll(now, &terms(), random));
            contender.handle_reply(nonce, &behind(session(n), 0, None), now, random);
            now = match contender.poll(now, &terms(), random) {
                ContenderAction::Send(..) => {
                    at_once += 1;
                    assert_eq!(
                        request.predecessor,
                        Some(session(n - 1)),
                        "the request named another session"
                    );
                    now
                }
                ContenderAction::Sleep(until) if n == 0 => until,
                ContenderAction::Sleep(until) => {
                    assert_eq!(until, now + PREDECESSOR_PAUSE, "after {at_once} looks at once");
                    until
                }
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(at_once, MAX_IMMEDIATE_POLLS);
        // A predecessor that is still the one named in the request resets the count: the next row is cleared
        // as fast.
        let (nonce, _) = expect_send(contender.poll(now, &terms(), random));
        let until = next_poll(&mut contender, nonce, &behind(session(199), 0, Some(500)), now, random);
        let (nonce, _) = expect_send(contender.poll(until, &terms(), random));
        contender.handle_reply(nonce, &behind(session(200), 0, None), until, random);
        assert!(matches!(contender.poll(until, &terms(), random), ContenderAction::Send(..)));
    }

    /// Fifty waiters and the holder are dead, and one live session waits behind them. The model replies, and
    /// its clock stands still while the live session clears the queue.
    #[test]
    fn a_chain_of_fifty_dead_is_cleared_in_fifty_looks() {
        use crate::Op;
        use crate::model::{LockState, SessionStatus};
        let dead = |n: u8| {
            let hold = HoldId::from_random(session(n), [n; 16]);
            let queue = Some(Enqueue { nonce: Nonce::new(0, n.into()), ttl_ms: 3_600_000 });
            let (label, liveness) = (terms().label, Liveness::Session { alive_ms: 10_000 });
            Acquire {
                claim: Claim::new(hold),
                lease_ms: 3_600_000,
                label,
                queue,
                adopt_ms: None,
                liveness,
                predecessor: None,
                mode: LockMode::Exclusive,
            }
        };
        let random = &mut counter();
        let mut contender = Contender::new(session(200), 0);
        let mut lock = LockState::default();
        for n in 0..50 {
            lock.apply(1_000_000, &Op::Acquire(dead(n)), &|_| SessionStatus::Lapsed);
        }
        let alive =
            |who| if who == session(200) { SessionStatus::Alive(10_000) } else { SessionStatus::Lapsed };
        let (mut now, mut polls) = (ms(1_000), 0);
        loop {
            match contender.poll(now, &terms(), random) {
                ContenderAction::Send(nonce, request) => {
                    let (crate::Reply::Acquire(reply), _) =
                        lock.apply(now.as_micros(), &Op::Acquire(request), &alive)
                    else {
                        panic!("an acquire is answered by an acquire")
                    };
                    contender.handle_reply(nonce, &reply, now, random);
                    polls += 1;
                }
                ContenderAction::Sleep(until) => {
                    assert_eq!(polls, 1, "only the first look has to find the predecessor");
                    now = until;
                }
                ContenderAction::Granted(_) => break,
                ContenderAction::TooSlow | ContenderAction::Undo(_) => {
                    panic!("no time has passed, and it keeps its hold")
                }
            }
        }
        assert_eq!(polls, 51, "one to queue, and one for each of the dead");
        assert!(now <= ms(1_310), "{now:?}");
    }

    /// Where the lock changes hands quickly, a waiter sends one request per turn: its grant arrives before
    /// its next look.
    #[test]
    fn quick_hand_overs_cost_no_further_requests() {
        let random = &mut counter();
        let mut contender = Contender::new(session(1), 0);
        let mut now = ms(0);
        for round in 0..100 {
            let (nonce, _) = expect_send(contender.poll(now, &terms(), random));
            contender.handle_reply(nonce, &behind(session(7), 63, None), now, random);
            for waited in [1, 50, 199] {
                let step = contender.poll(now + Duration::from_millis(waited), &terms(), random);
                assert!(
                    matches!(step, ContenderAction::Sleep(_)),
                    "round {round}, after {waited} ms: {step:?}"
                );
            }
            now = now + Duration::from_millis(199);
            contender.handle_grant(nonce, fence(), now);
            assert!(contender.take_grant().is_some());
        }
    }
}
